"""The edits of a run: what each is worth, how the estimate moved from step to step, what became of
it.

With screening every decision of the gate lists the pool with effects. The strict gate decides about
a whole candidate, so its edits share one decision and have no effect of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from skillfit.report.story_parts import EditSummary, EffectPoint, GateSummary, Rejection
from skillfit.run.events import CandidateBuilt, GateDecided
from skillfit.run.records import EditEffect, EditStatus


@dataclass(slots=True)
class EditPool:
    """All edits that were tried, in the order in which they came."""

    _edits: dict[str, EditSummary] = field(default_factory=dict)
    _history: dict[str, list[EffectPoint]] = field(default_factory=dict)
    _candidates: dict[int, CandidateBuilt] = field(default_factory=dict)
    screening: bool = False

    def measured(self, event: GateDecided, summary: GateSummary) -> GateSummary:
        """Take in the effects of a decision; the summary with what entered and left the pool."""
        if not event.effects:
            return summary
        self.screening = True
        before = {name: edit.status for name, edit in self._edits.items()}
        for effect in event.effects:
            self._take(effect, event.step)
        moved = [effect for effect in event.effects if before.get(effect.id) != effect.status]
        return replace(
            summary,
            entered=tuple(effect.id for effect in event.effects if effect.id not in before),
            promoted=tuple(effect.id for effect in moved if effect.status == "promoted"),
            dropped=tuple(effect.id for effect in moved if effect.status == "dropped"),
            pending=sum(edit.status == "pending" for edit in self._edits.values()),
        )

    def _take(self, effect: EditEffect, step: int) -> None:
        history = self._history.setdefault(effect.id, [])
        point = EffectPoint(
            step, effect.status, effect.mean, effect.low, effect.high, effect.rollouts
        )
        if history and history[-1].step == step:
            history[-1] = point
        else:
            history.append(point)
        self._edits[effect.id] = EditSummary(
            id=effect.id,
            step=effect.step,
            edit=effect.edit,
            status=effect.status,
            mean=effect.mean,
            low=effect.low,
            high=effect.high,
            probability=effect.probability,
            rollouts=effect.rollouts,
            reason=effect.reason,
            items=effect.items,
        )

    def built(self, event: CandidateBuilt) -> list[Rejection]:
        """Note a candidate's edits; those that could not be applied are rejections."""
        self._candidates[event.step] = event
        return [
            Rejection(
                event.step, "update", report.edit.content or report.edit.target, report.reason
            )
            for report in event.report
            if not report.status.startswith("applied")
        ]

    def decided(self, step: int, *, accepted: bool, skipped: bool, reason: str) -> None:
        """The gate's word on a whole candidate, where edits are not measured one by one."""
        candidate = self._candidates.pop(step, None)
        if candidate is None or self.screening or skipped:
            return
        status: EditStatus = "promoted" if accepted else "dropped"
        applied = [report for report in candidate.report if report.status.startswith("applied")]
        for number, report in enumerate(applied, 1):
            name = report.edit.id or f"s{step:04d}e{number:02d}"
            self._edits[name] = EditSummary(
                id=name, step=step, edit=report.edit, status=status, reason=reason
            )

    def listed(self, skill: str) -> tuple[EditSummary, ...]:
        """Every edit with its history, and whether its text stands in `skill`."""
        return tuple(
            replace(
                edit,
                history=tuple(self._history.get(name, ())),
                in_best=_stands_in(skill, edit),
            )
            for name, edit in self._edits.items()
        )


def _stands_in(skill: str, edit: EditSummary) -> bool:
    if edit.edit.content:
        return edit.edit.content.strip("\n") in skill
    return edit.status != "dropped" and edit.edit.target.strip("\n") not in skill


def by_effect(edits: Iterable[EditSummary]) -> list[EditSummary]:
    """Measured edits from the best to the worst, then those without a measurement."""
    return sorted(edits, key=lambda edit: (edit.mean is None, -(edit.mean or 0.0), edit.id))
