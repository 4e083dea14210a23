"""Finding processes by their last argument, for tests that check that none is left."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path


def is_running(word: str) -> bool:
    """Whether a process (other than a zombie) has this word as its last argument."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if entry.read_bytes().endswith(f"\0{word}\0".encode()):
                return True
        except OSError:
            continue
    return False


async def is_gone(word: str) -> bool:
    """Wait until no such process runs; false when one still runs after some seconds."""
    for _ in range(400):
        if not is_running(word):
            return True
        await asyncio.sleep(0.02)
    return False


def wait_for(word: str) -> None:
    """Wait until such a process runs."""
    for _ in range(1000):
        if is_running(word):
            return
        time.sleep(0.02)
    raise AssertionError(f"no process with {word} came up")


def leaving_a_child(word: str, then: str) -> str:
    """Python code that starts a child with its own session and an empty environment."""
    child = f"[sys.executable, '-c', 'import time; time.sleep(600)', '{word}']"
    start = f"subprocess.Popen({child}, start_new_session=True, env={{}})"
    return f"import subprocess, sys, time; {start}; print('up', flush=True); {then}"
