"""Step memory: what the earlier steps of this epoch tried and how it went, so that analysts do not
propose it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from skillfit.optimize.patch import Patch, union
from skillfit.optimize.trajectories import cut, failure_reason
from skillfit.rollout.outcome import Outcome

_ROOM = 12_000  # characters of the rendered memory
_EDIT_ROOM = 400


@dataclass(frozen=True, slots=True)
class FailurePattern:
    pattern: str
    count: int
    task_ids: tuple[str, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One step in the epoch's memory. Scores are None when nothing was measured."""

    step: int
    action: str
    n_total: int
    n_fail: int
    failure_patterns: tuple[FailurePattern, ...] = ()
    score_before: float | None = None
    score_after: float | None = None
    rejected_edits: tuple[Mapping[str, Any], ...] = field(
        default=()
    )  # Proposal.as_dict() of what the gate turned down

    def as_dict(self) -> dict[str, Any]:
        """As in trajectory_digest.json."""
        return asdict(self)


def failure_patterns(
    outcomes: Sequence[Outcome], patches: Sequence[Patch]
) -> tuple[FailurePattern, ...]:
    """The kinds of failure of a step, most frequent first: as analysts described them, and the rest
    by the grader's reason.
    """
    failed = {
        outcome.item_id: failure_reason(outcome)
        for outcome in outcomes
        if outcome.score is not None and not outcome.succeeded
    }
    patterns: dict[str, FailurePattern] = {}
    for note in (note for patch in patches for note in patch.failure_summary):
        key = note.failure_type.casefold().strip()
        first = patterns.setdefault(key, FailurePattern(note.failure_type, 0, (), note.description))
        items = union(first.task_ids, (item for item in note.items if item in failed))
        patterns[key] = replace(first, task_ids=items, count=len(items) or first.count + note.count)
    described = {item for pattern in patterns.values() for item in pattern.task_ids}
    by_reason: dict[str, list[str]] = {}
    for item, reason in failed.items():
        if item not in described:
            by_reason.setdefault(
                cut(reason.partition(":")[0].partition("\n")[0].strip(), 120), []
            ).append(item)
    rest = [FailurePattern(reason, len(items), tuple(items)) for reason, items in by_reason.items()]
    return tuple(sorted([*patterns.values(), *rest], key=lambda pattern: -pattern.count))


def render_memory(entries: Sequence[StepMemory], room: int = _ROOM) -> str:
    """The entries as analysts read them. When they do not fit, the oldest go first and a line says
    how many.
    """
    shown: list[str] = []
    for entry in reversed(entries):
        text = _entry(entry)
        if shown and sum(map(len, shown)) + len(text) > room:
            break
        shown.insert(0, cut(text, room))
    left_out = len(entries) - len(shown)
    return "\n\n".join([*([f"({left_out} earlier steps left out)"] if left_out else []), *shown])


def _entry(entry: StepMemory) -> str:
    scores = ""
    if entry.score_before is not None and entry.score_after is not None:
        scores = f", score {entry.score_before:.3f} -> {entry.score_after:.3f}"
    lines = [
        f"Step {entry.step}: {entry.action}{scores}; {entry.n_fail} of {entry.n_total} rollouts failed"
    ]
    for pattern in entry.failure_patterns:
        described = f": {cut(pattern.description, _EDIT_ROOM)}" if pattern.description else ""
        lines.append(f"- failed {pattern.count}x, {pattern.pattern}{described}")
    for edit in entry.rejected_edits:
        plain = {
            key: value
            for key, value in edit.items()
            if key not in ("items", "source_type", "support_count") and value
        }
        lines.append(f"- rejected: {cut(json.dumps(plain, ensure_ascii=False), _EDIT_ROOM)}")
    return "\n".join(lines)
