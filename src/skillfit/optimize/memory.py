"""What the optimizer remembers of earlier steps: failures, and edits with their effects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from skillfit.optimize.patch import Patch, union
from skillfit.optimize.trajectories import cut, failure_reason
from skillfit.rollout.outcome import Outcome
from skillfit.run.records import EditEffect, FailurePattern, ProposalRecord, StepMemory
from skillfit.skill import Edit

_ROOM = 12_000  # characters of the rendered memory
_EDIT_ROOM = 400


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
        (
            f"Step {entry.step}: {entry.action}{scores}; {entry.n_fail} of {entry.n_total} "
            "rollouts failed"
        )
    ]
    for pattern in entry.failure_patterns:
        described = f": {cut(pattern.description, _EDIT_ROOM)}" if pattern.description else ""
        lines.append(f"- failed {pattern.count}x, {pattern.pattern}{described}")
    for proposal in entry.rejected_edits:
        lines.append(f"- rejected: {cut(_proposal_text(proposal), _EDIT_ROOM)}")
    for effect in entry.decided:
        lines.append(f"- {effect.status}: {effect_line(effect)}")
    return "\n".join(lines)


def render_pending(effects: Sequence[EditEffect]) -> str:
    """The pending edits as analysts read them: one line each, with the measured effect."""
    return "\n".join(f"[{effect.id}] {effect_line(effect)}" for effect in effects)


def effect_line(effect: EditEffect) -> str:
    """An edit and its effect: `append "…": +0.04 (+0.01 to +0.07) after 120 rollouts`."""
    if effect.mean is None:
        measured = "not measured yet"
    else:
        interval = f"{effect.low:+.2f} to {effect.high:+.2f}"
        measured = f"{effect.mean:+.2f} ({interval}) after {effect.rollouts} rollouts"
    return f"{cut(_edit_text(effect.edit), _EDIT_ROOM)}: {measured}"


def _proposal_text(proposal: ProposalRecord) -> str:
    if proposal.edit is not None:
        return _edit_text(proposal.edit)
    payload = proposal.suggestion or proposal.candidate or {}
    return json.dumps({name: value for name, value in payload.items() if value}, ensure_ascii=False)


def _edit_text(edit: Edit) -> str:
    fields = {"op": edit.op, "target": edit.target, "content": edit.content}
    return json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=False)
