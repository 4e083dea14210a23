"""Evidence over a whole run: what failed, which edits were tried against it, and how they did.

It is kept when an edit is dropped and when an epoch ends. `optimizer.memory` names a file that
carries it to the next run of the same skill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from skillfit.atomic_write import write_whole
from skillfit.errors import InputError
from skillfit.models.secrets import hide_keys_in_use
from skillfit.optimize.context import edit_text, measured_effect
from skillfit.plain_text import one_line, quantity
from skillfit.record.evidence import tried_failures
from skillfit.run.records import EditEffect, EvidenceMemory, EvidencePattern
from skillfit.tasks.item import stable_hash

_ROOM = 12_000  # characters of the rendered memory
_DESCRIPTION_ROOM = 300
_MOST_PATTERNS = 100  # in a file
_MOST_EDITS = 400
_EARLIER = "run"  # how the ids of edits of earlier runs begin
_FILE: TypeAdapter[EvidenceMemory] = TypeAdapter(EvidenceMemory)


def render_evidence(memory: EvidenceMemory, room: int = _ROOM) -> str:
    """Render the patterns as the optimizer reads them, the latest first, each with what was tried.

    The text of an edit that may be in the skill is not repeated.
    """
    shown: list[str] = []
    listed = tried_failures(memory)
    for number, failure in enumerate(listed):
        text = _pattern_text(failure.pattern, failure.edits)
        if shown and sum(map(len, shown)) + len(text) > room:
            left_out = quantity(len(listed) - number, "kind of failure", "kinds of failure")
            shown.append(f"({left_out} left out)")
            break
        shown.append(text)
    return "\n".join(shown)


def _pattern_text(pattern: EvidencePattern, tried: Sequence[EditEffect]) -> str:
    line = f"{pattern.name}: {quantity(len(pattern.items), 'item')}, last seen in {pattern.seen}"
    if pattern.description:
        line += f". {one_line(pattern.description, _DESCRIPTION_ROOM)}"
    return "\n".join([line, *(f"- {_tried_text(effect)}" for effect in tried)])


def _tried_text(effect: EditEffect) -> str:
    line = f"{effect.id} {effect.status}: {measured_effect(effect)}"
    in_skill = effect.status != "dropped" and not effect.id.startswith(_EARLIER)
    return line if in_skill else f"{line}: {edit_text(effect.edit)}"


def evidence_hash(memory: EvidenceMemory) -> str:
    """Return a hash of the memory; empty for an empty memory."""
    if memory == EvidenceMemory():
        return ""
    return stable_hash(_FILE.dump_python(memory, mode="json"))


def read_evidence(path: Path) -> EvidenceMemory:
    """Read the memory that earlier runs left in a file; empty where there is no file yet."""
    try:
        return _FILE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return EvidenceMemory()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"optimizer.memory: {path} is not a memory that a run wrote: "
            f"{f'{where}: ' if where else ''}{first['msg']}.",
            hint="Restore the file, or remove it to start without what earlier runs found.",
        ) from error
    except OSError as error:
        raise InputError(f"optimizer.memory: {path} cannot be read: {error}.") from error


def write_evidence(path: Path, memory: EvidenceMemory) -> None:
    """Write the memory of a finished run for the next one. The oldest patterns and edits go first
    where there are very many. A file that a later run wrote stays as it is.
    """
    run = memory.runs + 1
    if read_evidence(path).runs > run:
        return
    carried = EvidenceMemory(
        tuple(replace(pattern, last_step=0) for pattern in memory.patterns[-_MOST_PATTERNS:]),
        tuple(
            effect if "/" in effect.id else replace(effect, id=f"{_EARLIER}{run}/{effect.id}")
            for effect in memory.edits[-_MOST_EDITS:]
        ),
        run,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _FILE.dump_json(carried, indent=1).decode()
    write_whole(path, f"{hide_keys_in_use(text)}\n".encode())
