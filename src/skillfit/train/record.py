"""What is written down about a step: the fields users of the reference system know, and ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from skillfit.gate import Verdict
from skillfit.optimize.memory import StepMemory
from skillfit.optimize.patch import Patch
from skillfit.optimize.select import Selection
from skillfit.optimize.update import Update
from skillfit.rollout.outcome import Outcome, Tally
from skillfit.run.events import StepFinished
from skillfit.train.parts import Parts, Stage
from skillfit.train.plan import Batch, PlannedStep
from skillfit.train.progress import Progress


class StepRecord:
    """Filled stage by stage; `finish` gives the record."""

    def __init__(self, planned: PlannedStep, parts: Parts) -> None:
        config = parts.config
        self._parts = parts
        self._blocked_before = parts.screen.blocked
        parts.ledger.close()  # what was used between the steps is none of this one's
        self.action = "skip_no_patches"
        self._timing: dict[str, float] = {}
        self._rollout: Stage | None = None
        self._fields: dict[str, Any] = {
            "step": planned.step,
            "epoch": planned.epoch,
            "step_in_epoch": planned.index,
            "lr_control_mode": config.optimizer.lr_control_mode,
            "gate_metric": config.evaluation.gate_metric,
        }

    def watch(self, stage: Stage, rollouts: Sequence[asyncio.Task[Outcome]]) -> None:
        """The rollout stage ends with its last rollout, whatever else runs meanwhile."""
        left = len(rollouts)

        def ended(task: asyncio.Task[Outcome]) -> None:
            nonlocal left
            left -= 1
            if not left and not task.cancelled() and task.exception() is None:
                stage.done()
                self.timed("rollout", stage)

        for task in rollouts:
            task.add_done_callback(ended)

    def timed(self, name: str, stage: Stage) -> None:
        self._timing[f"{name}_s"] = round(stage.seconds, 3)

    def rolled_out(
        self, batches: Sequence[Batch], outcomes: Sequence[Sequence[Outcome]], patches: Sequence[Sequence[Patch]]
    ) -> None:
        whole = Tally.of(outcome for batch in outcomes for outcome in batch)
        sides = [_sides(found) for found in patches]
        self._fields |= {
            "rollout_hard": whole.hard,
            "rollout_soft": whole.soft,
            "rollout_n": whole.scored,
            "rollout_coverage": whole.coverage,
            "accumulation_batches": [
                {
                    "batch_idx": at,
                    "batch_seed": batch.seed,
                    "n_envs": len(batch.items),
                    "hard": tally.hard,
                    "soft": tally.soft,
                    "n_failure_patches": failure,
                    "n_success_patches": success,
                }
                for at, (batch, tally, (failure, success)) in enumerate(
                    zip(batches, [Tally.of(group) for group in outcomes], sides, strict=True)
                )
            ],
            "n_patches": sum(failure + success for failure, success in sides),
            "n_failure_patches": sum(failure for failure, _ in sides),
            "n_success_patches": sum(success for _, success in sides),
        }

    def merged(self, patch: Patch) -> None:
        self._fields |= {"n_edits_merged": len(patch.proposals), "support_counts": patch.support_counts}

    def selected(self, selection: Selection) -> None:
        self._fields |= {"n_edits_ranked": len(selection.proposals), "edit_budget": selection.edit_budget}
        if "learning_rate" in selection.decision:
            self._fields["lr_decision"] = selection.decision

    def updated(self, update: Update) -> None:
        if update.change_summary:
            self._fields["rewrite_change_summary"] = list(update.change_summary)
        if update.report:
            total = len(update.report)
            counts = {"total": total, "applied": update.applied, "skipped": total - update.applied, "errors": 0}
            self._fields["edit_apply_summary"] = counts
        if update.skill is not None:
            self._fields |= {"candidate_hash": update.skill.hash, "candidate_skill_len": len(update.skill.text)}

    def judged(self, verdict: Verdict) -> None:
        tally = verdict.tally
        self._fields |= {
            "selection_hard": tally.hard if tally else None,
            "selection_soft": tally.soft if tally else None,
            "candidate_gate_score": verdict.candidate_score,
            "incumbent_gate_score": verdict.incumbent_score,
            "verdict": verdict.decision,
            "reason": verdict.reason,
            "gate_rollouts": verdict.evidence.rollouts,
        }

    def noted(self, seen: int, added: int, total: int, consolidated: bool) -> None:
        self._fields |= {
            "n_execution_lapse_notes": seen,
            "n_appendix_notes_added": added,
            "n_appendix_notes_total": total,
            "n_appendix_notes_consolidated": consolidated,
        }

    def finish(self, progress: Progress) -> dict[str, Any]:
        parts = self._parts
        return self._fields | {
            "action": self.action,
            "n_edits_blocked": parts.screen.blocked - self._blocked_before,
            "current_score": progress.score,
            "best_score": parts.gate.best_score,
            "best_step": progress.best_step,
            "current_origin": progress.origin,
            "best_origin": progress.best_origin,
            "skill_len": len(progress.skill.text),
            "timing": self._timing,
            "tokens": parts.ledger.close(),
            "wall_time_s": round(sum(self._timing.values()), 3),
        }


def step_finished(
    parts: Parts, planned: PlannedStep, progress: Progress, record: dict[str, Any], entry: StepMemory, notes: list[str]
) -> StepFinished:
    return StepFinished(
        epoch=planned.epoch,
        step=planned.step,
        action=record["action"],
        skill=progress.skill.text,
        skill_hash=progress.skill.hash,
        best_skill=parts.gate.best.text,
        record=record,
        digest=entry.as_dict(),
        appendix_notes=notes,
    )


def gate_evidence(verdict: Verdict) -> dict[str, Any]:
    """The evidence and the candidates' table, as events carry them."""
    return {"evidence": asdict(verdict.evidence), "candidates": [asdict(standing) for standing in verdict.standings]}


def _sides(patches: Sequence[Patch]) -> tuple[int, int]:
    success = sum(patch.source == "success" for patch in patches)
    return len(patches) - success, success
