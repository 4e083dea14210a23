"""`skillfit apply`: put what a run found into the skill's folder, and take it back again. The run
directory keeps what was there before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillfit.cli.output import Json, coloured_diff, console, show
from skillfit.cli.runs import RunFolder
from skillfit.errors import InputError
from skillfit.skill import Skill, rewrite, without_placeholder
from skillfit.skill.document import DOCUMENT_NAMES, DOCUMENT_SUFFIXES, find_document, write_whole

if TYPE_CHECKING:
    from skillfit.api import Run

_BACKUPS = "applied"


@dataclass(frozen=True, slots=True)
class SkillChange:
    """A document that would be changed, or a skill folder that would be made."""

    run: Run
    document: Path
    present: Skill
    wanted: Skill
    new_folder: bool = False

    def write(self) -> None:
        self.wanted.save(self.document.parent if self.new_folder else self.document)


def plan_change(run: Run, to: Path | None, *, force: bool) -> SkillChange:
    """What applying would change. Refused without `force`: a run that did not improve, a document
    that changed since it began.
    """
    if run.finish_reason != "improved" and not force:
        raise InputError(
            (
                f"The run in {run.path} did not show an improvement "
                f"({run.finish_reason.replace('_', ' ')})."
            ),
            hint="Apply its best skill all the same with --force.",
        )
    best = without_placeholder(run.best_skill)
    began = Path(run.config["env"]["skill"]) if run.config["env"]["skill"] else None
    named = to or began
    if named is None:
        raise InputError(
            "The run began with a blank skill, so there is no file to change.",
            hint="Name one: --to SKILL.md",
        )
    if not named.exists() and to is not None:
        return _made_anew(run, to, began, best)
    document, present = find_document(named) if named.is_dir() else named, Skill.load(named)
    if present.text in (run.initial_skill.text, run.best_skill.text, best.text):
        return SkillChange(run, document, present, present.with_body(best.body))
    if not force:
        raise InputError(
            f"{document} has changed since the run began.",
            hint="Look at it, then apply all the same with --force.",
        )
    return SkillChange(run, document, present, rewrite(present, best.unix_body))


def _made_anew(run: Run, to: Path, began: Path | None, best: Skill) -> SkillChange:
    """A document alone, or a folder with the other files of the skill the run began with."""
    blank = Skill.from_text("")
    if to.suffix.lower() in DOCUMENT_SUFFIXES:
        return SkillChange(run, to, blank, best)
    if began is not None and not began.exists():
        raise InputError(
            f"The skill's other files are gone: there is no {began}.",
            hint=f"Write the document alone: --to {to}/SKILL.md",
        )
    package = Skill.load(began) if began else blank
    wanted = replace(package.with_document(best), document_name=DOCUMENT_NAMES[0])
    return SkillChange(run, to / wanted.document_name, blank, wanted, new_folder=True)


def make_change(change: SkillChange) -> Path:
    """Back up the present text, then write the new one; returns the path of the backup."""
    kept = change.run.path / _BACKUPS / f"{len(_kept(change.run)) + 1:04d}.json"
    document = change.document.resolve()
    before = document.read_bytes().decode() if document.exists() else None
    record: dict[str, Any] = {
        "document": str(document),
        "before": before,
        "after": change.wanted.text,
    }
    if change.new_folder:
        record["files"] = {
            name: sha256(data).hexdigest() for name, data in change.wanted.files.items()
        }
    write_whole(kept, json.dumps(record).encode())
    try:
        change.write()
    except InputError:
        _take_back(record)
        kept.unlink()
        raise
    return kept


def undo_change(run: Run, *, force: bool) -> Path:
    """Restore what was there before the last `apply`; refused when the document changed."""
    kept = _kept(run)
    if not kept:
        raise InputError(f"Nothing of the run in {run.path} is applied.")
    record = json.loads(kept[-1].read_bytes())
    document = Path(record["document"])
    present = document.read_bytes().decode() if document.exists() else None
    untouched = (
        present == record["before"] or (present or "").removeprefix("\ufeff") == record["after"]
    )
    if not untouched and not force:
        raise InputError(
            f"{document} has changed since it was applied.", hint="Undo all the same with --force."
        )
    _take_back(record)
    kept[-1].unlink()
    return document


def _kept(run: Run) -> list[Path]:
    return sorted((run.path / _BACKUPS).glob("*.json"))


def _take_back(record: dict[str, Any]) -> None:
    document = Path(record["document"])
    if record["before"] is not None:
        write_whole(document, record["before"].encode())
        return
    if document.exists():
        document.unlink()
    if "files" in record:
        _unmake(document.parent, record["files"])


def _unmake(folder: Path, files: dict[str, str]) -> None:
    """Remove what was put there: files that still are what they were, and folders that are then
    empty.
    """
    paths = {folder / name: digest for name, digest in files.items()}
    for path, digest in paths.items():
        if path.is_file() and sha256(path.read_bytes()).hexdigest() == digest:
            path.unlink()
    around = {
        folder,
        *(parent for path in paths for parent in path.parents if parent.is_relative_to(folder)),
    }
    for parent in sorted(around, reverse=True):
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def apply(
    run: RunFolder,
    to: Annotated[
        Path | None, typer.Option(help="Skill folder or file; default: the one the run began with.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Put back what stood there before.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Although nothing improved, or the file changed since.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put the best skill into its folder, after showing what changes. The former text is kept in
    the run.

    Example: skillfit apply runs/first --yes
    """
    from skillfit.api import Run
    from skillfit.run.control import request_steering
    from skillfit.skill import diff as diff_skills

    opened = Run.open(run)
    if undo:
        document = undo_change(opened, force=force)
        request_steering(opened.path, "undo", str(document))
        return show({"restored": str(document)}, f"Put back {document}.", as_json)
    change = plan_change(opened, to, force=force)
    found = diff_skills(change.present, change.wanted)
    if not found:
        return show(
            {"applied": None, "diff": ""}, f"{change.document} has the best skill already.", as_json
        )
    if not as_json:
        console().print(coloured_diff(found), soft_wrap=True)
    if not yes and not _confirmed(change.document):
        raise InputError(
            f"{change.document} was not changed.", hint="Apply without being asked: --yes"
        )
    kept = make_change(change)
    request_steering(opened.path, "apply", str(change.document))
    data: dict[str, Any] = {"applied": str(change.document), "backup": str(kept), "diff": found}
    return show(
        data, f"Changed {change.document}. Take it back with: skillfit apply {run} --undo", as_json
    )


def _confirmed(document: Path) -> bool:
    import sys

    return sys.stdin.isatty() and typer.confirm(f"Change {document}?")


COMMANDS = (apply,)
