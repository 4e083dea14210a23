"""Appendix: reminders of rules the agent knew and did not follow. Steps add them; when there are too many, they are condensed."""

from __future__ import annotations

from collections.abc import Sequence

from skillfit.optimize.optimizer import Call, Optimizer
from skillfit.optimize.patch import Patch, union
from skillfit.optimize.prompts import render, sections
from skillfit.optimize.replies import NotesReply

_STAY = "the notes stay as they are"


def collect_notes(patches: Sequence[Patch]) -> tuple[str, ...]:
    """The notes of a step in planned order, each once."""
    return union(note for patch in patches for note in patch.appendix_notes)


async def consolidate(optimizer: Optimizer, notes: Sequence[str], *, step: int) -> tuple[str, ...] | None:
    """Fewer notes that say the same, or None when the threshold is not passed or the result would not be smaller."""
    threshold = optimizer.settings.consolidate_threshold
    if not threshold or len(notes) <= threshold:
        return None
    user = sections(notes="\n".join(f"- {note}" for note in notes))
    call = Call("appendix_consolidate", step, "notes", render("consolidate", count=len(notes)), user)
    reply = await optimizer.try_ask(NotesReply, call, otherwise=_STAY)
    if reply is None:
        return None
    condensed = tuple(text for note in reply.notes if (text := " ".join(note.split())))
    if not condensed or len(condensed) >= len(notes) or sum(map(len, condensed)) >= sum(map(len, notes)):
        optimizer.discard(step, "appendix_consolidate", "notes", "the result is not smaller", _STAY)
        return None
    return condensed
