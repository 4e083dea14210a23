"""Errors that a user can act on, and the exit codes of the command line.

Each message says what was wrong and where; the hint says what to do. The CLI prints both without a
traceback.
"""

import difflib
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

from skillfit.plain_text import visible


class Exit(IntEnum):
    """Exit codes of every command (docs/reference/exit-codes.md)."""

    OK = 0
    BUG = 1
    USAGE = 2
    NO_IMPROVEMENT = 3
    INCONCLUSIVE = 4
    BUDGET = 5
    INFRASTRUCTURE = 6
    HANDOFF = 7
    REGRESSION = 8
    PREFLIGHT = 9
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "the command did what was asked; for `train`: improved",
    Exit.BUG: "an unexpected error in skillfit",
    Exit.USAGE: "bad input: config, path, tasks, skill, arguments",
    Exit.NO_IMPROVEMENT: "`train` finished; nothing better was found",
    Exit.INCONCLUSIVE: "`train` finished; the evidence does not show whether the skill is better",
    Exit.BUDGET: "a cap was reached before the planned steps were done",
    Exit.INFRASTRUCTURE: "auth, network, provider or coverage failure",
    Exit.HANDOFF: "waiting for a person: answer files, or edits to review",
    Exit.REGRESSION: "`verify` confirmed a regression",
    Exit.PREFLIGHT: "`check` said stop",
    Exit.INTERRUPTED: "Ctrl-C; resumable",
}


class SkillfitError(Exception):
    """What was wrong and where; `hint` says what to do about it.

    Messages often quote model output, file names or server replies, so control characters in them
    are replaced by visible escapes.
    """

    exit_code: Exit = Exit.USAGE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = visible(message)
        self.hint = visible(hint)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class InputError(SkillfitError):
    """A file, key or argument that the user gave is wrong."""


class InfrastructureError(SkillfitError):
    """A provider, the network or the machine failed; the run says nothing about the skill."""

    exit_code = Exit.INFRASTRUCTURE


class TaskFailure(SkillfitError):
    """Something around the item broke (a program, a function, a sandbox): a failed rollout, never
    a score.
    """

    exit_code = Exit.INFRASTRUCTURE

    def __init__(self, kind: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind

    def __reduce__(self) -> tuple[type, tuple[str, ...], dict[str, str]]:
        return (type(self), (self.kind, self.message), {"hint": self.hint})


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint for a word that may be a typo; empty when no known word is similar."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def near_file(path: Path) -> str:
    """Return a hint for a path whose name may be a typo; empty when none beside it is similar."""
    try:
        beside = [one.name for one in path.parent.iterdir()]
    except OSError:
        return ""
    return did_you_mean(path.name, beside)
