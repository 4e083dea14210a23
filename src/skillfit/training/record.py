"""What is written down about a step: the fields users of the reference system know, and ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from skillfit.gate import Verdict
from skillfit.optimize.patch import Patch
from skillfit.optimize.select import Selection
from skillfit.optimize.update import Update
from skillfit.rollout.outcome import Outcome, Tally
from skillfit.training.parts import Parts
from skillfit.training.plan import Batch, PlannedStep
from skillfit.training.progress import Progress, hard_and_soft
from skillfit.training.stage import Stage


class StepRecord:
    """Filled stage by stage; `finish` gives the record."""

    def __init__(self, planned: PlannedStep, parts: Parts) -> None:
        self._parts = parts
        self._blocked_before = parts.screen.blocked
        parts.ledger.close()  # what was used between the steps is none of this one's
        self.action = "skip_no_patches"
        self._stages: dict[str, Stage] = {}
        self._fields: dict[str, Any] = {
            "step": planned.step,
            "epoch": planned.epoch,
            "step_in_epoch": planned.index,
            "lr_control_mode": parts.config.optimizer.lr_control_mode,
            "gate_metric": parts.config.evaluation.gate_metric,
        }

    def stage(self, stage: str, total: int = 0, *, timed_as: str = "") -> Stage:
        """Begin a stage whose time is part of the record."""
        begun = self._stages[timed_as or stage] = self._parts.stage(stage, total)
        return begun

    def watch(self, stage: Stage, rollouts: Sequence[asyncio.Task[Outcome]]) -> None:
        """The rollout stage ends with its last rollout, whatever else runs meanwhile."""
        left = len(rollouts)

        def ended(task: asyncio.Task[Outcome]) -> None:
            nonlocal left
            left -= 1
            if not left and not task.cancelled() and task.exception() is None:
                stage.done()

        for task in rollouts:
            task.add_done_callback(ended)

    def rolled_out(
        self,
        batches: Sequence[Batch],
        outcomes: Sequence[Sequence[Outcome]],
        patches: Sequence[Sequence[Patch]],
    ) -> None:
        whole = Tally.of(outcome for batch in outcomes for outcome in batch)
        rows = [
            _batch_row(at, batch, Tally.of(rolled), found)
            for at, (batch, rolled, found) in enumerate(
                zip(batches, outcomes, patches, strict=True)
            )
        ]
        self._fields |= {
            **hard_and_soft("rollout", whole),
            "rollout_n": whole.scored,
            "rollout_coverage": whole.coverage,
            "accumulation_batches": rows,
            "n_patches": sum(map(len, patches)),
            "n_failure_patches": sum(row["n_failure_patches"] for row in rows),
            "n_success_patches": sum(row["n_success_patches"] for row in rows),
        }

    def merged(self, patch: Patch) -> None:
        self._fields |= {
            "n_edits_merged": len(patch.proposals),
            "support_counts": patch.support_counts,
        }

    def selected(self, selection: Selection) -> None:
        self._fields |= {
            "n_edits_ranked": len(selection.proposals),
            "edit_budget": selection.edit_budget,
        }
        if "learning_rate" in selection.decision:
            self._fields["lr_decision"] = selection.decision

    def updated(self, update: Update) -> None:
        if update.change_summary:
            self._fields["rewrite_change_summary"] = list(update.change_summary)
        if update.report:
            total = len(update.report)
            counts = {
                "total": total,
                "applied": update.applied,
                "skipped": total - update.applied,
                "errors": 0,
            }
            self._fields["edit_apply_summary"] = counts
        if update.skill is not None:
            self._fields |= {
                "candidate_hash": update.skill.hash,
                "candidate_skill_len": len(update.skill.text),
            }

    def judged(self, verdict: Verdict) -> None:
        self.action = verdict.action
        self._fields |= {
            **hard_and_soft("selection", verdict.tally),
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
        timing = {f"{name}_s": round(stage.seconds, 3) for name, stage in self._stages.items()}
        return self._fields | {
            "action": self.action,
            "n_edits_blocked": self._parts.screen.blocked - self._blocked_before,
            **progress.standing(self._parts),
            "skill_len": len(progress.skill.text),
            "timing": timing,
            "tokens": self._parts.ledger.close(),
            "wall_time_s": round(sum(timing.values()), 3),
        }


def _batch_row(at: int, batch: Batch, tally: Tally, patches: Sequence[Patch]) -> dict[str, Any]:
    success = sum(patch.source == "success" for patch in patches)
    return {
        "batch_idx": at,
        "batch_seed": batch.seed,
        "n_envs": len(batch.items),
        "hard": tally.hard,
        "soft": tally.soft,
        "n_failure_patches": len(patches) - success,
        "n_success_patches": success,
    }
