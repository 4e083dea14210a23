"""Searching with somebody's regex, in a process of its own: some patterns never end, and nothing
interrupts Python's matcher.

Finding the answer in what the agent said.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from queue import LifoQueue
from typing import Annotated, Any, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from skillfit.errors import InputError
from skillfit.tasks.item import TaskFailure

_SECONDS = 2.0  # of CPU time, for one search
_PROCESSES = 4

# The clock is the kernel's (Windows has none): it ends the process in the middle of a search. So
# does the end of ours, between two.
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
    """One process that answers one question at a time; started at the first, and anew after one
    that ended it.
    """

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
    """The first match, its first group where it has one. Waits: call it in a thread. One that takes
    too long is a `TaskFailure`.
    """
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


def compiled(pattern: str) -> re.Pattern[str]:
    """A user's regex; one that does not compile is an error that shows where it breaks."""
    try:
        return re.compile(pattern)
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos}"
        raise InputError(
            f"regex {pattern!r} does not compile: {error.msg}{place}.",
            hint="Try it with Python's re.",
        ) from error


Pattern = Annotated[str, AfterValidator(lambda pattern: compiled(pattern).pattern)]
_SHORT = {
    "tag": {"tag": "answer"},
    "boxed": {"boxed": True},
    "last_line": {"last_line": True},
    "json": {"json": ""},
}


class Extract(BaseModel):
    """One way to find the answer: exactly one of these is set. `extract: tag` means
    `<answer>…</answer>`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    tag: str | None = None
    """The last `<tag>…</tag>`."""
    boxed: bool = False
    """The last `\\boxed{…}`."""
    last_line: bool = False
    """The last line that is not empty."""
    json_field: str | None = Field(default=None, alias="json")
    """This field of the last JSON object; empty: the object itself."""
    regex: Pattern | None = None
    """The last match; its first group where it has one."""

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: Any) -> Any:
        return _SHORT.get(value, value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [
            name for name in type(self).model_fields if getattr(self, name) not in (None, False)
        ]
        if len(ways) != 1:
            raise ValueError(f"one way is wanted, found {' and '.join(ways) or 'none'}")
        return self

    def find(self, text: str) -> str | None:
        """The answer, or None when there is none of this kind. A regex may take a while."""
        if self.tag is not None:
            return _last(
                re.compile(
                    rf"<{re.escape(self.tag)}>(.*?)</{re.escape(self.tag)}>",
                    re.DOTALL | re.IGNORECASE,
                ),
                text,
            )
        if self.boxed:
            return _boxed(text)
        if self.regex is not None:
            found = last_match(self.regex, text)
            return None if found is None else found.strip()
        if self.json_field is not None:
            record = last_json_object(text)
            if record is None or not self.json_field:
                return None if record is None else json.dumps(record, ensure_ascii=False)
            value = record.get(self.json_field)
            return (
                value
                if value is None or isinstance(value, str)
                else json.dumps(value, ensure_ascii=False)
            )
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)

    @property
    def missing(self) -> str:
        """What to tell the optimizer when nothing was found."""
        if self.tag is not None:
            return f"The reply has no <{self.tag}>…</{self.tag}>."
        if self.boxed:
            return "The reply has no \\boxed{…}."
        if self.json_field is not None:
            return f"The reply has no JSON object{f' with a field {self.json_field!r}' if self.json_field else ''}."
        return "The reply has no answer in the expected form."


def last_json_object(text: str) -> dict[str, Any] | None:
    """The last complete outermost JSON object in the text."""
    decoder = json.JSONDecoder()
    found, at = None, text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            end = at + 1
        else:
            found = value
        at = text.find("{", end)
    return found


def at_path(value: Any, path: str) -> Any:
    """What stands at a dotted path of nested objects, or None."""
    if isinstance(value, dict) and path in value:
        return value[path]
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    matches = list(pattern.finditer(text))
    return (matches[-1].group(1 if pattern.groups else 0) or "").strip() if matches else None


def _boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    depth = 0
    for at in range(start + 6, len(text)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 7 : at].strip()
    return None
