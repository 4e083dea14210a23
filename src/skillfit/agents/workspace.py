"""A throw-away folder for one rollout: the agent's work, and apart from it a HOME of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skillfit.agents.agent import AgentFailure
from skillfit.errors import InputError
from skillfit.skill.document import check_relative
from skillfit.tasks.item import Item

_PREFIX = "skillfit-rollout-"


@dataclass(frozen=True, slots=True)
class Workspace:
    root: Path

    @classmethod
    def create(cls) -> Workspace:
        """A fresh one with nothing in it."""
        workspace = cls(Path(tempfile.mkdtemp(prefix=_PREFIX)))
        for folder in (workspace.work, workspace.home, workspace.temporary):
            folder.mkdir()
        return workspace

    @property
    def work(self) -> Path:
        """Where the agent works; graders look here."""
        return self.root / "work"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    def inside(self, name: str) -> Path:
        """The path `name` means in the work folder. Absolute names, `..` and symbolic links that
        lead out are refused.
        """
        path = self.work / name
        if (
            Path(name).is_absolute()
            or ".." in Path(name).parts
            or not path.resolve().is_relative_to(self.work.resolve())
        ):
            raise Outside(f"{name} is outside the workspace.")
        return path

    def leave_only_work(self) -> None:
        """Drop everything but the agent's work: HOME may hold a link to a login."""
        _remove(self.home)
        _remove(self.temporary)

    def remove(self) -> None:
        _remove(self.root)


class Outside(ValueError):
    """A path that leads out of the workspace."""


def new_workspace(item: Item) -> Workspace:
    """A fresh workspace that holds the item's files and images under their names."""
    workspace = Workspace.create()
    attached = {**{image.path.name: image.path for image in item.images}, **item.files}
    try:
        for name, source in attached.items():
            target = workspace.work / check_relative(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    except (OSError, InputError) as error:
        workspace.remove()
        raise AgentFailure(
            f"A file of item {item.id} could not be placed in the workspace: {error}", kind="config"
        ) from error
    return workspace


@contextmanager
def workspace_for(item: Item) -> Iterator[Workspace]:
    """A new workspace, which graders will look at: it stays, unless the body raises."""
    workspace = new_workspace(item)
    try:
        yield workspace
    except BaseException:
        workspace.remove()
        raise


def remove_workspace(path: str) -> None:
    """Remove the workspace an attempt left at `path` (`Attempt.workspace`). Nothing happens when
    there is none.
    """
    if path and Path(path).parent.name.startswith(_PREFIX):
        _remove(Path(path).parent)


def _remove(folder: Path) -> None:
    # Agents may leave folders nobody can write to; those would keep rmtree from emptying them.
    for parent, names, _ in os.walk(folder):
        for name in names:
            if not (path := Path(parent, name)).is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
