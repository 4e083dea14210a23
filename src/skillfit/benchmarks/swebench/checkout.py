"""A throw-away copy of a repository: the base state, patches applied to it by git, and what an
agent changed in its own copy.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skillfit.sandbox.process import ProcessResult, run_process, scratch_folder
from skillfit.tasks.item import TaskFailure

_PATCHED = re.compile(r"^diff --git a/(.+?) b/(.+)$", re.MULTILINE)
_SKIPPED = shutil.ignore_patterns(".git", "__pycache__", "*.pyc", ".pytest_cache")
_SECONDS = 120.0


class PatchFailed(Exception):
    """A patch that git cannot apply."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A copy of the folder `base`."""

    base: Path
    folder: Path

    async def apply(self, patch: str) -> None:
        """Apply a patch. Raises `PatchFailed` when it does not fit."""
        text = patch if patch.endswith("\n") else f"{patch}\n"
        result = await _git("apply", "--whitespace=nowarn", "-", cwd=self.folder, stdin=text)
        if result.code != 0:
            raise PatchFailed(result.stderr.strip()[-500:])

    def restore(self, names: list[str]) -> None:
        """Bring files back to the base state; files that do not exist there are removed."""
        for name in names:
            here, there = self.folder / name, self.base / name
            if there.is_file():
                here.parent.mkdir(parents=True, exist_ok=True)
                here.unlink(missing_ok=True)
                shutil.copyfile(there, here)
            else:
                here.unlink(missing_ok=True)


@contextmanager
def checkout(base: Path) -> Iterator[Checkout]:
    """A copy of the base state; it is removed with the block."""
    with scratch_folder("checkout") as scratch:
        shutil.copytree(base, scratch / "repo", symlinks=True, ignore=_SKIPPED)
        yield Checkout(base, scratch / "repo")


async def changes(base: Path, changed: Path) -> str:
    """What differs between the base state and an agent's copy, as a patch."""
    with scratch_folder("changes") as scratch:
        for name, folder in (("a", base), ("b", changed)):
            shutil.copytree(folder, scratch / name, symlinks=True, ignore=_SKIPPED)
        # The names of the two folders take the place of git's usual prefixes.
        arguments = ("diff", "--no-index", "--no-prefix", "--binary", "--no-renames", "a", "b")
        result = await _git(*arguments, cwd=scratch)
    if result.code not in (0, 1):
        raise TaskFailure("git", f"git diff failed: {result.stderr.strip()[-300:]}")
    return result.stdout


async def _git(*arguments: str, cwd: Path, stdin: str = "") -> ProcessResult:
    program = shutil.which("git")
    if program is None:
        raise TaskFailure("git", "the program git is not installed.")
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(cwd.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(cwd.parent),  # no repository above the folder matters
    }
    return await run_process(
        [program, *arguments],
        cwd=cwd,
        timeout=_SECONDS,
        env=env,
        stdin=stdin.encode(),
        max_output=1 << 24,
    )


def files_in(patch: str) -> list[str]:
    """The files that a patch changes, under their new names."""
    return [new for _, new in _PATCHED.findall(patch)]
