"""Searching with somebody's regex, in a process of its own: some patterns never end, and nothing interrupts Python's matcher."""

from __future__ import annotations

import json
import subprocess
import sys
from queue import LifoQueue
from typing import cast

from skillfit.tasks.attempt import TaskFailure

_SECONDS = 2.0  # of CPU time, for one search
_PROCESSES = 4

# The clock is the kernel's (Windows has none): it ends the process in the middle of a search. So does the end of ours, between two.
_PROGRAM = """
import json, re, signal, sys
def allow(seconds):
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
for line in sys.stdin:
    pattern, text, last, seconds = json.loads(line)
    allow(seconds)
    matches = re.finditer(pattern, text)
    found = next(matches, None)
    for found in matches if last else ():
        pass
    allow(0)
    print(json.dumps(found and (found.group(1 if found.re.groups else 0) or "")), flush=True)
"""


class _Searcher:
    """One process that answers one question at a time; started at the first, and anew after one that ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, pattern: str, text: str, last: bool) -> str | None:
        self._process = process = self._process or _start()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps([pattern, text, last, _SECONDS]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            return cast("str | None", json.loads(answer))
        self._process = None
        process.kill()
        process.communicate()
        raise TaskFailure(
            "grader",
            f"the regex {pattern!r:.200} came to no end on an answer of {len(text):,} characters within {_SECONDS:g} s.",
            hint="Nested repeats, as in (a+)+, take for ever: write it without them.",
        )


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is ours to handle
    )


_free: LifoQueue[_Searcher] = LifoQueue()
for _ in range(_PROCESSES):
    _free.put(_Searcher())


def first_match(pattern: str, text: str) -> str | None:
    """The first match, its first group where it has one. Waits: call it in a thread. One that takes too long is a `TaskFailure`."""
    return _search(pattern, text, last=False)


def last_match(pattern: str, text: str) -> str | None:
    """As `first_match`, of the last match."""
    return _search(pattern, text, last=True)


def _search(pattern: str, text: str, *, last: bool) -> str | None:
    searcher = _free.get()
    try:
        return searcher.ask(pattern, text, last)
    finally:
        _free.put(searcher)
