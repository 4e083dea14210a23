"""Problems a person can act on. Every one says what was wrong, where, and what to do; the CLI
prints it without a traceback.
"""

import difflib
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command (docs/reference/exit-codes.md)."""

    OK = 0  # the command did what was asked; for `train`: improved
    BUG = 1  # an error nobody foresaw
    USAGE = 2  # bad input: config, path, tasks, skill, arguments
    NO_IMPROVEMENT = 3
    INCONCLUSIVE = 4
    BUDGET = 5  # a cap was reached before the plan was done
    INFRASTRUCTURE = 6  # auth, network, provider or coverage failure
    HANDOFF = 7  # waiting for answers to be dropped beside the prompts
    REGRESSION = 8  # `verify` confirmed one
    PREFLIGHT = 9  # `check` said stop
    INTERRUPTED = 130  # Ctrl-C; resumable


class SkillfitError(Exception):
    """What was wrong and where; `hint` says what to do about it."""

    exit_code: Exit = Exit.USAGE

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class InputError(SkillfitError):
    """A file, key or argument the person gave is wrong."""


class InfrastructureError(SkillfitError):
    """The machinery failed: nothing can be said about the skill."""

    exit_code = Exit.INFRASTRUCTURE


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a word that may be a slip of the pen; empty when no known one is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else ""
