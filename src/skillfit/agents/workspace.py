"""The folder of one rollout: the files the agent works on, and beside them a HOME of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skillfit.agents.agent import AgentFailure
from skillfit.errors import InputError
from skillfit.sandbox.process import new_folder, remove_folder, remove_tree
from skillfit.skill.document import check_relative
from skillfit.tasks.item import Item, stable_hash

CORPUS = "corpus"  # the name under which an agent sees the shared documents of `env.corpus`


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folders of one rollout. `corpus` is shared by all rollouts and never written to."""

    root: Path
    corpus: Path | None = None

    @classmethod
    def create(cls, corpus: Path | None = None) -> Workspace:
        """A fresh and empty workspace."""
        workspace = cls(new_folder("rollout"), corpus)
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
        """The path in the work folder, or in the corpus, that `name` means.

        Absolute names, `..` and symbolic links that lead out are refused.
        """
        top, relative = self.work, Path(name)
        if self.in_corpus(name) and self.corpus is not None:
            top, relative = self.corpus, Path(*relative.parts[1:])
        path = top / relative
        if (
            relative.is_absolute()
            or ".." in relative.parts
            # Not `resolve`, which raises RuntimeError for links in a circle.
            or not Path(os.path.realpath(path)).is_relative_to(top.resolve())
        ):
            raise OutsideWorkspace(f"{name} is outside the workspace")
        return path

    def in_corpus(self, name: str) -> bool:
        """Whether `name` is a path in the corpus."""
        return self.corpus is not None and Path(name).parts[:1] == (CORPUS,)

    def leave_only_work(self) -> None:
        """Remove everything but the agent's work: HOME may hold links to a login."""
        remove_tree(self.home)
        remove_tree(self.temporary)
        corpus = self.work / CORPUS
        if self.corpus is None:
            return
        if corpus.is_symlink() or corpus.is_file():
            corpus.unlink()
        else:
            remove_tree(corpus)  # the empty mount point, or a folder that a command put there

    def remove(self) -> None:
        remove_folder(self.root)


def corpus_fingerprint(folder: Path) -> str:
    """Changes when files are added, removed or changed in size. Reading all of a large corpus at
    every start would take too long.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return stable_hash(
        [[path.relative_to(folder).as_posix(), path.stat().st_size] for path in files]
    )


class OutsideWorkspace(ValueError):
    """A path that leads out of the workspace."""


def new_workspace(item: Item, corpus: Path | None = None) -> Workspace:
    """A fresh workspace that holds the item's files and images under their names."""
    attached = {**{image.path.name: image.path for image in item.images}, **item.files}
    if corpus is not None and any(Path(name).parts[:1] == (CORPUS,) for name in attached):
        raise AgentFailure(
            f"Item {item.id} has files named {CORPUS}/…, which is where env.corpus is shown.",
            kind="config",
            hint="Rename the item's files.",
        )
    workspace = Workspace.create(corpus)
    try:
        for name, source in attached.items():
            target = workspace.work / check_relative(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    except (OSError, InputError) as error:
        workspace.remove()
        raise AgentFailure(
            f"A file of item {item.id} could not be copied into the workspace: {error}",
            kind="config",
        ) from error
    return workspace


@contextmanager
def workspace_for(item: Item, corpus: Path | None = None) -> Iterator[Workspace]:
    """A new workspace. It stays, for graders to look at, unless the body raises."""
    workspace = new_workspace(item, corpus)
    try:
        yield workspace
    except BaseException:
        workspace.remove()
        raise


def remove_workspace(path: str) -> None:
    """Remove the workspace that an attempt left at `path` (`Attempt.workspace`), if there is one.

    A folder that is not a workspace of this process is left alone.
    """
    if path:
        remove_folder(Path(path).parent)
