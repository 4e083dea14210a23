"""Everything that spends or changes something is done by the `skillfit` command in a process of its
own, as a person would do it in a terminal. A run that was started goes on when the studio or the
agent's session ends.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skillfit.errors import InputError
from skillfit.run.control import in_use

START_LOG = ".start.log"  # output of the process that was started, in the run directory
_PROGRAM = (sys.executable, "-m", "skillfit")
_LONGEST = 4_000  # characters of a program's output in a message


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. `data` is the JSON line it printed."""

    command: str
    exit_code: int
    data: dict[str, Any] = field(default_factory=dict)
    message: str = ""  # what it said on stderr

    @property
    def error(self) -> str:
        """The error in words; empty when there is none."""
        if "error" in self.data:
            return f"{self.data['error']} {self.data.get('hint', '')}".strip()
        if not self.data and self.exit_code:
            return self.message or f"The command ended with exit code {self.exit_code}."
        return ""


def as_typed(arguments: Sequence[str]) -> str:
    """The command as a person would type it."""
    return shlex.join(["skillfit", *arguments])


async def run_command(
    arguments: Sequence[str], *, folder: Path | None = None, timeout: float = 600
) -> CommandResult:
    """Run a command to its end with --json."""
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM,
        *arguments,
        "--json",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    )
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate()
    except BaseException as error:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        if isinstance(error, TimeoutError):
            message = f"`{as_typed(arguments)}` took longer than {timeout:.0f} s and was ended."
            raise InputError(message) from error
        raise
    lines = out.decode("utf-8", "replace").strip().splitlines()
    return CommandResult(
        command=as_typed(arguments),
        exit_code=process.returncode or 0,
        data=_last_json(lines),
        message=err.decode("utf-8", "replace").strip()[-_LONGEST:],
    )


def _last_json(lines: Sequence[str]) -> dict[str, Any]:
    for line in reversed(lines):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        return value if isinstance(value, dict) else {"result": value}
    return {}


class Starter:
    """Starts runs, and remembers the processes so that none stays behind as a zombie."""

    def __init__(self) -> None:
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, run: Path, arguments: Sequence[str], *, folder: Path | None = None) -> None:
        """Start a process for the run in `run` that outlives this one."""
        if in_use(run) or self.is_starting(run):
            raise InputError(f"The run in {run} is running already.", hint="Stop it first.")
        run.mkdir(parents=True, exist_ok=True)
        with (run / START_LOG).open("wb") as log:
            self._processes[run] = subprocess.Popen(
                [*_PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )

    def is_starting(self, run: Path) -> bool:
        """Whether a process that was started here is alive; it may not have its lock yet."""
        process = self._processes.get(run)
        return process is not None and process.poll() is None

    def failure(self, run: Path) -> str:
        """What a process that was started here and failed said last; empty otherwise."""
        process = self._processes.get(run)
        if process is None or process.poll() in (None, 0):
            return ""
        return start_log(run)


def start_log(run: Path) -> str:
    """The end of what the process printed that was last started for a run."""
    try:
        text = (run / START_LOG).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""
    return text[-_LONGEST:]
