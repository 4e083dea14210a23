"""`apply`: put what a run found into the skill's folder, and take it back again. The run directory keeps what was there before."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from skillfit.api import Run
from skillfit.errors import InputError
from skillfit.skill import Skill, rewrite, without_placeholder
from skillfit.skill.package import DOCUMENT_SUFFIXES, find_document, write_whole

_BACKUPS = "applied"


@dataclass(frozen=True, slots=True)
class Change:
    """A document that would be changed."""

    run: Run
    document: Path
    present: Skill
    wanted: Skill


def plan(run: Run, to: Path | None, *, anyway: bool) -> Change:
    """What applying would change. Refused without `anyway`: a run that did not improve, a document that changed since it began."""
    if run.finish_reason != "improved" and not anyway:
        raise InputError(
            f"The run in {run.path} did not show an improvement ({run.finish_reason.replace('_', ' ')}).",
            hint="Apply its best skill all the same with --anyway.",
        )
    best = without_placeholder(run.best_skill)
    named = to or (Path(run.config["env"]["skill"]) if run.config["env"]["skill"] else None)
    if named is None:
        raise InputError("The run began with a blank skill, so there is no file to change.", hint="Name one: --to SKILL.md")
    if not named.exists() and to is not None:
        document = named if named.suffix.lower() in DOCUMENT_SUFFIXES else named / "SKILL.md"
        return Change(run, document, Skill.from_text(""), best)
    document, present = find_document(named) if named.is_dir() else named, Skill.load(named)
    if present.text in (run.initial_skill.text, run.best_skill.text, best.text):
        return Change(run, document, present, present.with_body(best.body))
    if not anyway:
        raise InputError(f"{document} has changed since the run began.", hint="Look at it, then apply all the same with --anyway.")
    return Change(run, document, present, rewrite(present, best.unix_body))


def apply(change: Change) -> Path:
    """Write the document, whole; where the former one is kept."""
    folder = change.run.path / _BACKUPS
    number = len(list(folder.glob("*.json"))) + 1
    kept = folder / f"{number:04d}.json"
    before = change.document.read_bytes().decode() if change.document.exists() else None
    change.wanted.save(change.document)
    write_whole(
        kept, json.dumps({"document": str(change.document.absolute()), "before": before, "after": change.wanted.text}).encode()
    )
    return kept


def undo(run: Run, *, anyway: bool) -> Path:
    """Put back what stood there before the last `apply`; refused when the document changed since."""
    kept = sorted((run.path / _BACKUPS).glob("*.json"))
    if not kept:
        raise InputError(f"Nothing of the run in {run.path} is applied.")
    record = json.loads(kept[-1].read_bytes())
    document = Path(record["document"])
    present = document.read_bytes().decode().removeprefix("\ufeff") if document.exists() else None
    if present != record["after"] and not anyway:
        raise InputError(f"{document} has changed since it was applied.", hint="Undo all the same with --anyway.")
    if record["before"] is None:
        document.unlink(missing_ok=True)
    else:
        write_whole(document, record["before"].encode())
    kept[-1].unlink()
    return document
