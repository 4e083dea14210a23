"""Commands about what a run changed in the skill: `diff` and `apply`.

`apply` puts what a run found into the skill's folder, and takes it back again. The run directory
keeps what was there before.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict

import typer

from skillfit.atomic_write import write_whole
from skillfit.cli.output import (
    Json,
    coloured_diff,
    console,
    relative_to_here,
    rich_table,
    shell_line,
    show,
)
from skillfit.cli.runs import RunFolder, edit_text
from skillfit.cli.train import open_training_run
from skillfit.errors import InputError
from skillfit.plain_text import display_name, with_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skillfit.api import Run
    from skillfit.record.record import EditRecord, Record
    from skillfit.skill import Skill


_VERSION = "A step's number, initial, best or unproven."


def diff_command(
    run: RunFolder,
    old: Annotated[str, typer.Argument(help=_VERSION)] = "initial",
    new: Annotated[str, typer.Argument(help=_VERSION)] = "best",
    as_json: Json = False,
) -> None:
    """Show what changed in the skill: from the initial one to the best, or between two steps.

    Example: skillfit diff runs/first 2 5
    """
    opened = open_training_run(run)
    difference = opened.diff(old, new)
    edits = _edits_of(difference, opened.record)
    if as_json:
        data = {"old": old, "new": new, "diff": difference, "edits": _edits_json(edits)}
        show(data, "", as_json)
    elif not difference:
        note = _why_same(opened) if (old, new) == ("initial", "best") else "Nothing changed."
        console(stderr=True).print(note, markup=False, soft_wrap=True)
    elif console().is_terminal:
        console().print(coloured_diff(difference), soft_wrap=True)
    else:
        print(difference, end="")  # exactly as it is, so that `patch` takes it
    if difference and not as_json:
        _show_evidence(edits, stderr=True)


def _why_same(run: Run) -> str:
    """Say why the best skill is the initial one, and how to see what was found."""
    from skillfit.run.store import UNPROVEN_SKILL

    if run.finished is None:
        return "Nothing changed: the run has not finished."
    reason = display_name(run.finish_reason)
    lines = [f"Nothing changed: the run handed back the initial skill ({reason})."]
    unproven = run.path / UNPROVEN_SKILL
    if unproven.is_file():
        command = shell_line("diff", relative_to_here(run.path), "initial", "unproven")
        lines.append(f"What it found is unproven. See it with: {command}")
    return "\n".join(lines)


def _edits_of(difference: str, record: Record) -> list[EditRecord]:
    """Find the edits whose text a diff adds or removes."""
    changed = {line[1:].strip() for line in difference.splitlines() if line[:1] in ("+", "-")}
    found = []
    for edit in record.kept_edits:
        text = edit.edit.content or edit.edit.target
        if any(line.strip() in changed for line in text.splitlines() if line.strip()):
            found.append(edit)
    return found


def _show_evidence(edits: Sequence[EditRecord], *, stderr: bool) -> None:
    """Say what was measured about the edits of a diff."""
    if edits:
        rows = [
            (
                edit.evidence,
                "" if edit.mean is None else with_interval(edit.mean, edit.low, edit.high),
                edit_text(edit),
            )
            for edit in edits
        ]
        columns = ("evidence", "effect on score (80 %)", "text")
        console(stderr=stderr).print(rich_table(columns, rows))


def _edits_json(edits: Sequence[EditRecord]) -> list[dict[str, object]]:
    names = ("id", "evidence", "mean", "low", "high", "rollouts", "kinds", "text")
    return [{name: getattr(edit, name) for name in names} for edit in edits]


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """A document that would be changed, with the files of its folder that the run changed, or a
    skill folder that would be made.
    """

    run: Run
    document: Path
    present: Skill
    wanted: Skill
    new_folder: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The changed files, by their paths in the skill's folder."""
        from skillfit.skill.parts import changed_parts

        return () if self.new_folder else tuple(changed_parts(self.wanted, self.present))

    def write(self) -> None:
        from skillfit.skill.parts import save_changed

        if self.new_folder:
            return self.wanted.save(self.document.parent)
        return save_changed(self.document, self.wanted, self.files)


@dataclass(frozen=True, slots=True)
class AppliedFile:
    """A file of the skill's folder that `apply` changed. None: there is no such file."""

    before: str | None  # its bytes in base64
    after: str | None  # the sha256 of its bytes
    mode: int | None = None  # before

    @classmethod
    def of(cls, present: Path, wanted: bytes | None) -> AppliedFile:
        """Return the file as it is on the disk, and what takes its place."""
        data = _bytes_of(present)
        if data is None:
            return cls(None, _digest(wanted))
        return cls(b64encode(data).decode(), _digest(wanted), S_IMODE(present.stat().st_mode))

    @property
    def data(self) -> bytes | None:
        """The bytes before."""
        return None if self.before is None else b64decode(self.before)

    def knows(self, data: bytes | None) -> bool:
        """Return whether these bytes are those before or after the change."""
        return data == self.data or _digest(data) == self.after


def _digest(data: bytes | None) -> str | None:
    return None if data is None else sha256(data).hexdigest()


def _bytes_of(path: Path) -> bytes | None:
    """Read a file; return None if there is none."""
    return path.read_bytes() if path.is_file() else None


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """What `apply` did, kept in the run's folder so that it can be undone."""

    document: str
    before: str | None  # the text that was there; None: no file
    after: str
    files: dict[str, str] | None = None  # of a new skill folder: name -> sha256
    changed: dict[str, AppliedFile] = field(default_factory=dict)  # by path in `folder`
    folder: str = ""

    @classmethod
    def read(cls, path: Path) -> AppliedChange:
        from pydantic import ValidationError

        from skillfit.run.records import skill_file
        from skillfit.run.store import load

        try:
            return load(cls, path.read_bytes())
        except ValidationError as error:
            began = path.parents[1] / skill_file(0)
            raise InputError(
                f"{path} is damaged: it does not say what `apply` changed.",
                hint=f"Restore the skill by hand (the run began with {began}), then delete {path}.",
            ) from error

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps(asdict(self)).encode())

    def undo(self) -> None:
        from skillfit.skill.parts import write_file

        document = Path(self.document)
        for name, file in self.changed.items():
            write_file(Path(self.folder), name, file.data, file.mode)
        if self.before is not None:
            write_whole(document, self.before.encode())
            return
        if document.exists():
            document.unlink()
        if self.files is not None:
            _remove_made(document.parent, self.files)


@dataclass(frozen=True, slots=True)
class UndoneChange:
    """A document that has its former text again, and its folder its former files."""

    document: Path
    copies: tuple[Path, ...]  # of the texts that were there, where they were not what `apply` wrote


def plan_change(run: Run, to: Path | None, *, force: bool) -> DocumentChange:
    """Return what applying would change. Two things are refused without `force`: a run that did not
    improve, whose unproven skill is applied then, and a document that changed since the run began.
    """
    from skillfit.skill import Skill, with_trained_body, without_placeholder
    from skillfit.skill.document import DOCUMENT_NAMES, find_document
    from skillfit.skill.parts import DESCRIPTION_OF, trained_path

    if run.finish_reason != "improved" and not force:
        raise InputError(
            f"The run in {run.path} did not show an improvement "
            f"({display_name(run.finish_reason)}).",
            hint=_why_not(run),
        )
    best = without_placeholder(run.record.found)
    began = trained_path(run.config.env.skill) if run.config.env.skill else None
    named = to or began
    if named is None:
        raise InputError(
            "The run began with a blank skill, so there is no file to change.",
            hint="Name one: --to SKILL.md",
        )
    if not named.exists() and to is not None:
        return _new_document(run, to, began, best)
    document, present = find_document(named) if named.is_dir() else named, Skill.load(named)
    described, changed = run.config.env.skill.endswith(DESCRIPTION_OF), list[str]()
    if described:
        known, wanted = _with_description(present, run.initial_skill, best)
    else:
        known = present.text in (run.initial_skill.text, run.record.found_skill, best.text)
        changed = changed_since(run.record, present)
        wanted = _with_other_parts(run.record, present.with_body(best.body))
    if document.name not in DOCUMENT_NAMES:
        _refuse_lost_files(run.record, document)
    if (known and not changed) or (force and described):
        return DocumentChange(run, document, present, wanted)
    if not force:
        raise InputError(
            f"{', '.join(changed) if known else document} has changed since the run began.",
            hint="Look at it, then override with --force.",
        )
    places = (document.resolve(), document.parent.resolve())
    same_skill = began is not None and began.resolve() in places
    wanted = with_trained_body(present, best, same_skill=same_skill)
    return DocumentChange(run, document, present, _with_other_parts(run.record, wanted))


def _refuse_lost_files(record: Record, document: Path) -> None:
    if record.found_files:
        raise InputError(
            f"{document} is no skill folder, and the run changed other files than the document: "
            f"{', '.join(record.found_files)}.",
            hint="Name a folder: --to FOLDER",
        )


def changed_since(record: Record, present: Skill) -> list[str]:
    """Return the files that are neither as the run found them nor as it left them."""
    from skillfit.skill.parts import part_text

    found = []
    for name, text in record.found_files.items():
        now = part_text(present, name) if name in present.files else ""
        if now not in (record.initial_files.get(name, ""), text):
            found.append(name)
    return found


def _with_other_parts(record: Record, skill: Skill) -> Skill:
    """Return the skill with the files and the description that a run changed."""
    from skillfit.skill.parts import DESCRIPTION, part_text, with_part, with_parts

    skill = with_parts(skill, record.found_files)
    description = part_text(record.found, DESCRIPTION)
    if description and description != part_text(record.initial, DESCRIPTION):
        skill = with_part(skill, DESCRIPTION, description)
    return skill


def _with_description(present: Skill, initial: Skill, best: Skill) -> tuple[bool, Skill]:
    """Return whether the skill still has the description that a run began with, or its best one,
    and the skill with the best one.
    """
    from skillfit.skill.parts import DESCRIPTION, as_description, part_text, with_part

    text = " ".join((part_text(present, DESCRIPTION) or "").split())
    known = text in (as_description(initial), as_description(best))
    return known, with_part(present, DESCRIPTION, as_description(best))


def _why_not(run: Run) -> str:
    """Say what to do about a run that did not improve: its best skill is the initial one."""
    from skillfit.run.store import UNPROVEN_SKILL

    unproven = run.path / UNPROVEN_SKILL
    if unproven.is_file():
        where = relative_to_here(unproven)
        return f"What it found is unproven: {where}. To apply that all the same: --force"
    return f"The reason: skillfit show {relative_to_here(run.path)}"


def _new_document(run: Run, to: Path, began: Path | None, best: Skill) -> DocumentChange:
    """Plan a document alone, or a folder with the other files of the skill the run began with."""
    from skillfit.skill import Skill
    from skillfit.skill.document import DOCUMENT_NAMES, DOCUMENT_SUFFIXES
    from skillfit.skill.parts import with_parts

    blank = Skill.from_text("")
    if to.suffix.lower() in DOCUMENT_SUFFIXES:
        _refuse_lost_files(run.record, to)
        return DocumentChange(run, to, blank, blank.with_document(best))
    if began is not None and not began.exists():
        raise InputError(
            f"The skill's other files are gone: there is no {began}.",
            hint=f"Write the document alone: --to {to}/SKILL.md",
        )
    package = Skill.load(began) if began else blank
    wanted = with_parts(package.with_document(best), run.record.found_files)
    wanted = replace(wanted, document_name=DOCUMENT_NAMES[0])
    return DocumentChange(run, to / wanted.document_name, blank, wanted, new_folder=True)


def make_change(change: DocumentChange) -> Path:
    """Back up the present text, then write the new one; returns the path of the backup."""
    from skillfit.record.record import APPLIED
    from skillfit.skill.parts import checked_place

    kept = change.run.path / APPLIED / f"{len(_backups(change.run)) + 1:04d}.json"
    document, folder = change.document.resolve(), change.document.parent.resolve()
    for name in change.files:
        checked_place(folder, name)
    before = document.read_bytes().decode() if document.exists() else None
    changed = {
        name: AppliedFile.of(folder / name, change.wanted.files.get(name)) for name in change.files
    }
    digests = {name: sha256(data).hexdigest() for name, data in change.wanted.files.items()}
    files = digests if change.new_folder else None
    text = change.wanted.text
    applied = AppliedChange(str(document), before, text, files, changed, str(folder))
    applied.write(kept)
    try:
        change.write()
    except InputError as error:
        try:
            applied.undo()
        except InputError:
            undo = shell_line("apply", relative_to_here(change.run.path), "--undo")
            raise InputError(
                f"{error.message} Some files are changed, and could not be restored.",
                hint=f"The former ones are kept. When the cause is gone: {undo}",
            ) from error
        kept.unlink()
        raise
    return kept


def undo_change(run: Run, *, force: bool) -> UndoneChange:
    """Restore what was there before the last `apply`. A document or file that changed since is
    refused without `force`, and copied into the run's folder with it.
    """
    from skillfit.skill.document import BOM

    kept = _backups(run)
    if not kept:
        raise InputError(f"The run in {run.path} is not applied.")
    applied = AppliedChange.read(kept[-1])
    document = Path(applied.document)
    present, folder = _bytes_of(document), Path(applied.folder)
    touched = dict[Path, bytes | None]()
    before = None if applied.before is None else applied.before.encode()
    if present != before and (present or b"").removeprefix(BOM.encode()) != applied.after.encode():
        touched[document] = present
    for name, file in applied.changed.items():
        data = _bytes_of(folder / name)
        if not file.knows(data):
            touched[folder / name] = data
    if touched and not force:
        raise InputError(
            f"{', '.join(map(str, touched))} has changed since it was applied.",
            hint="--force restores the former text all the same, and keeps a copy of this one.",
        )
    copies = []
    for path, data in touched.items():
        if data is None:
            continue
        names = (f"undone-{number}-{path.name}" for number in count(1))
        copies.append(next(new for name in names if not (new := kept[-1].with_name(name)).exists()))
        write_whole(copies[-1], data)
    applied.undo()
    kept[-1].unlink()
    return UndoneChange(document, tuple(copies))


def _backups(run: Run) -> list[Path]:
    from skillfit.record.record import APPLIED

    # Copies of what an undo replaced are there too, under other names.
    return sorted((run.path / APPLIED).glob("[0-9][0-9][0-9][0-9].json"))


def _remove_made(folder: Path, files: dict[str, str]) -> None:
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


class UndoJson(TypedDict):
    restored: str
    copies: list[str]  # of the texts that were there, where they were not what `apply` wrote


class ApplyJson(TypedDict):
    applied: str | None  # the document; None: it has that skill already
    backup: NotRequired[str]
    diff: str
    edits: NotRequired[list[dict[str, object]]]  # of the diff, with what was measured about them


def apply_command(
    run: RunFolder,
    to: Annotated[
        Path | None, typer.Option(help="Skill folder or file; default: the one the run began with.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the former text.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Apply even if the run did not improve or the file changed."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the best skill into its folder, after showing what changes. The former text is kept in
    the run. With --force, a run without a proven improvement applies what it found, unproven.

    Example: skillfit apply runs/first --yes
    """
    from skillfit.run.control import request_steering
    from skillfit.skill import diff as diff_skills

    opened = open_training_run(run)
    if undo:
        undone = undo_change(opened, force=force)
        request_steering(opened.path, "undo", str(undone.document))
        copies = [str(relative_to_here(copy)) for copy in undone.copies]
        told = f"Restored {undone.document}."
        told += f" The changed text is in {', '.join(copies)}." if copies else ""
        restored = UndoJson(restored=str(undone.document), copies=copies)
        return show(restored, told, as_json)
    change = plan_change(opened, to, force=force)
    difference = diff_skills(change.present, change.wanted)
    edits = _edits_of(difference, opened.record)
    if not difference:
        nothing = ApplyJson(applied=None, diff="")
        return show(nothing, f"{change.document} has that skill already.", as_json)
    if not as_json:
        console().print(coloured_diff(difference), soft_wrap=True)
        _show_evidence(edits, stderr=False)
    if not yes and not _confirmed(change.document):
        raise InputError(
            f"{change.document} was not changed.", hint="Apply without a question: --yes"
        )
    kept = make_change(change)
    request_steering(opened.path, "apply", str(change.document))
    data = ApplyJson(
        applied=str(change.document),
        backup=str(kept),
        diff=difference,
        edits=_edits_json(edits),
    )
    undo_line = shell_line("apply", run, "--undo")
    return show(data, f"Changed {change.document}. Undo with: {undo_line}", as_json)


def _confirmed(document: Path) -> bool:
    return sys.stdin.isatty() and typer.confirm(f"Change {document}?")


COMMANDS = (diff_command, apply_command)
