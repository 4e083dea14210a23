"""The command line as tests use it: in this process where possible, as a real process where signals
and imports matter.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from skillfit.cli.app import main
from tests.support.signals import default_signals

# A run of a few seconds: eight items a split, one step.
SMALL = (
    "train.num_epochs=1",
    "env.limit=8",
    "evaluation.preflight=false",
)
COMMAND = [sys.executable, "-m", "skillfit.cli.app"]


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        (line,) = self.out.splitlines()
        return json.loads(line)


class Shell:
    """Runs commands in a folder and keeps their outputs separate."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> CommandResult:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        code = ended.value.code
        return CommandResult(code if isinstance(code, int) else 0, captured.out, captured.err)


def process(*arguments: object, cwd: Path, **environ: str) -> subprocess.Popen[str]:
    line = [*COMMAND, *(str(argument) for argument in arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    return subprocess.Popen(  # type: ignore[call-overload]
        line,
        cwd=cwd,
        text=True,
        env={**os.environ, **environ},
        preexec_fn=default_signals,
        **pipes,
    )


def project(folder: Path, name: str = "triage") -> Path:
    """The demo project, copied; its config."""
    with as_file(files("skillfit.cli") / "demo_data" / name) as source:
        shutil.copytree(
            source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder / "skillfit.yaml"
