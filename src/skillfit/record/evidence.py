"""What failed over a whole run, and which edits were tried against it.

The optimizer reads it, and so do people: it is kept when an edit is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from skillfit.run.records import EditEffect, EvidenceMemory, EvidencePattern, FailurePattern


def with_step(
    memory: EvidenceMemory,
    step: int,
    patterns: Sequence[FailurePattern],
    effects: Iterable[EditEffect],
) -> EvidenceMemory:
    """Return the memory after a step. `effects`: all edits of the gate's pool, if it has one."""
    known = {_key(pattern.name): pattern for pattern in memory.patterns}
    for found in patterns:
        old = known.pop(_key(found.pattern), EvidencePattern(found.pattern, ()))
        known[_key(found.pattern)] = replace(
            old,
            items=tuple(dict.fromkeys((*old.items, *found.task_ids))),
            description=found.description or old.description,
            last_step=step,
        )
    return with_edits(replace(memory, patterns=tuple(known.values())), effects)


def with_edits(memory: EvidenceMemory, effects: Iterable[EditEffect]) -> EvidenceMemory:
    """Return the memory with what is known about these edits by now. Edits that were written from
    no item are left out.
    """
    edits = {effect.id: effect for effect in memory.edits}
    edits |= {effect.id: effect for effect in effects if effect.items}
    return replace(memory, edits=tuple(edits.values()))


def _key(name: str) -> str:
    return " ".join(name.casefold().split())


def tried_against(memory: EvidenceMemory) -> Mapping[str, tuple[EditEffect, ...]]:
    """Return the edits by the name of the pattern that they were written against: each that holds
    all items of the edit, else the one that shares most of them, of several the latest.
    """
    found: dict[str, list[EditEffect]] = {pattern.name: [] for pattern in memory.patterns}
    for effect in memory.edits:
        for pattern in _written_against(frozenset(effect.items), memory.patterns):
            found[pattern.name].append(effect)
    return {name: tuple(effects) for name, effects in found.items()}


def _written_against(
    items: frozenset[str], patterns: Sequence[EvidencePattern]
) -> list[EvidencePattern]:
    sharing = [pattern for pattern in patterns if items.intersection(pattern.items)]
    whole = [pattern for pattern in sharing if items.issubset(pattern.items)]
    if whole or not sharing:
        return whole
    shares_most = max(
        enumerate(sharing),
        key=lambda entry: (
            len(items.intersection(entry[1].items)),
            entry[1].last_step,
            entry[0],
        ),
    )
    return [shares_most[1]]


@dataclass(frozen=True, slots=True)
class TriedFailure:
    """A kind of failure with the edits that were tried against it."""

    pattern: EvidencePattern
    edits: tuple[EditEffect, ...]


def tried_failures(memory: EvidenceMemory) -> tuple[TriedFailure, ...]:
    """Return the kinds of failure as they are listed: the latest and those of most items first."""
    tried = tried_against(memory)
    latest_first = sorted(
        memory.patterns, key=lambda pattern: (-pattern.last_step, -len(pattern.items))
    )
    return tuple(TriedFailure(pattern, tried[pattern.name]) for pattern in latest_first)
