"""One step: each stage's work and what the record says about it. The order of the stages stands in
loop.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

from skillfit.gate import Candidate, Verdict, propose
from skillfit.optimize import examples as worked
from skillfit.optimize.memory import StepMemory, failure_patterns, render_memory
from skillfit.optimize.merge import aggregate
from skillfit.optimize.patch import Patch, Proposal
from skillfit.optimize.reflect import Context, Reflection, diagnose, reflect
from skillfit.optimize.select import Selection, edit_budget, select
from skillfit.optimize.trajectories import Case
from skillfit.optimize.update import Update, apply, update
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Outcome
from skillfit.run.events import CandidateBuilt, EditsSelected, PatchMerged, StepFinished
from skillfit.skill import Edit, Skill, apply_edits
from skillfit.tasks.item import Item
from skillfit.training.notes import flush_notes
from skillfit.training.parts import Parts
from skillfit.training.plan import PlannedStep
from skillfit.training.progress import AcceptedEdit, Progress, judge
from skillfit.training.record import StepRecord

Rollout = asyncio.Task[Outcome]


class Step:
    def __init__(self, parts: Parts, planned: PlannedStep, progress: Progress) -> None:
        self._parts = parts
        self._planned = planned
        self._progress = progress
        self._skill, self._score_before = progress.skill, progress.score
        self._settings = parts.config.optimizer
        self._context = Context(
            planned.step,
            self._scheduled_budget(),
            render_memory(progress.memory),
            progress.meta_skill,
        )
        self._analyst = parts.optimizer if self._settings.proposer != "examples" else None
        self._patches: tuple[Patch, ...] = ()
        self._outcomes: list[Outcome] = []
        self._merged: tuple[Proposal, ...] = ()
        self._selected: Selection | None = None
        parts.at.epoch, parts.at.step = planned.epoch, planned.step
        self._record = StepRecord(planned, parts)

    def _scheduled_budget(self) -> int | None:
        settings = self._settings
        if settings.lr_control_mode != "fixed":
            return None
        return edit_budget(
            settings.lr_scheduler,
            self._planned.step,
            self._parts.plan.total_steps,
            maximum=settings.learning_rate,
            minimum=min(
                settings.min_learning_rate, settings.learning_rate
            ),  # the learning rate is the most, whatever the least is
        )

    def roll_out(self) -> list[list[Rollout]]:
        """The rollouts of each batch, started: all items of the first repeat, then of the next."""
        planned, repeats = self._planned, range(self._parts.config.gradient.rollouts_per_item)
        stage = self._record.stage(
            "rollout", sum(len(batch.items) for batch in planned.batches) * len(repeats)
        )
        rollouts = [
            self._parts.rollouts.start(
                self._skill,
                batch.items,
                phase="rollout",
                step=planned.step,
                repeats=repeats,
                series=f"train/{planned.name}/{at}",
            )
            for at, batch in enumerate(planned.batches)
        ]
        self._record.watch(stage, [task for batch in rollouts for task in batch])
        return rollouts

    async def reflect(self, rollouts: Sequence[Sequence[Rollout]]) -> tuple[Patch, ...]:
        """Analysts' patches over all batches, and those of a deeper look at some failures where it
        is asked for.
        """
        with self._record.stage("reflect"):
            found = await gather(self._reflect_on(at, tasks) for at, tasks in enumerate(rollouts))
            outcomes = [[task.result() for task in tasks] for tasks in rollouts]
            self._outcomes = [outcome for batch in outcomes for outcome in batch]
            self._parts.take_in(self._outcomes)
            diagnosed = await self._diagnose(outcomes)
        self._record.rolled_out(self._planned.batches, outcomes, found)
        self._patches = (*(patch for patches in found for patch in patches), *diagnosed)
        return self._patches

    async def _reflect_on(self, at: int, rollouts: Sequence[Rollout]) -> tuple[Patch, ...]:
        """Whatever happens, ends no earlier than the batch's last rollout: what is in flight is
        paid for and must be recorded.
        """
        if self._analyst is None:
            await gather(rollouts)
            return ()
        prefix = f"batch_{at}/" if len(self._planned.batches) > 1 else ""
        items = self._planned.batches[at].items
        work: list[Awaitable[Any]] = [
            reflect(self._analyst, self._skill, items, rollouts, self._context, prefix=prefix),
            *rollouts,
        ]
        reflection: Reflection = (await gather(work))[0]
        return reflection.patches

    async def _diagnose(self, outcomes: Sequence[Sequence[Outcome]]) -> tuple[Patch, ...]:
        gradient = self._parts.config.gradient
        if self._analyst is None or not gradient.deep_reflection:
            return ()
        cases = [
            Case(item, tuple(rolled[index :: len(batch.items)]))
            for batch, rolled in zip(self._planned.batches, outcomes, strict=True)
            for index, item in enumerate(batch.items)
        ]
        return await diagnose(
            self._analyst,
            self._skill,
            cases,
            self._reroll,
            self._context,
            limit=gradient.deep_reflection_items,
        )

    async def _reroll(self, instruction: str, items: Sequence[Item]) -> list[Outcome]:
        series = f"diagnosis/{self._planned.name}"
        return await self._parts.roll_out(
            self._skill, items, series=series, instruction=instruction
        )

    async def aggregate(self, patches: Sequence[Patch]) -> Patch | None:
        """One patch of all, without what the leak check blocks; None when nobody proposed anything."""
        screen, step = self._parts.screen, self._planned.step
        proposing = [kept for patch in patches if (kept := screen.patch(patch)).proposals]
        sources = [self._examples()]
        with self._record.stage("aggregate"):
            if proposing and self._analyst is not None:
                # A merge may put things in new words, so what comes out of it is screened again.
                merged = await aggregate(
                    self._analyst,
                    self._skill,
                    proposing,
                    step=step,
                    meta_skill=self._progress.meta_skill,
                )
                sources.insert(0, screen.patch(merged))
        self._merged = tuple(proposal for patch in sources for proposal in patch.proposals)
        if not self._merged:
            return None
        whole = replace(sources[0], proposals=self._merged)
        self._parts.emit(
            PatchMerged(step=step, patch=whole.as_dict(self._settings.skill_update_mode))
        )
        self._record.merged(whole)
        self._progress.proposed += len(self._merged)
        return whole

    def _examples(self) -> Patch:
        """Solved training items that resemble this step's failures, where the proposer is asked for
        them. No model merges them.
        """
        if self._settings.proposer == "reflect":
            return Patch((), "examples")
        failed = {
            outcome.item_id
            for outcome in self._outcomes
            if outcome.score is not None and not outcome.succeeded
        }
        patch = worked.propose_examples(
            self._skill,
            [item for batch in self._planned.batches for item in batch.items if item.id in failed],
            worked.solved_examples(self._parts.task.train, self._outcomes),
            edit_budget=self._context.edit_budget,
            max_tokens=self._settings.max_skill_tokens,
        )
        if patch.proposals:
            self._parts.emit(worked.reflection_event(patch, self._planned.step))
        return self._parts.screen.patch(patch)

    async def select(self, patch: Patch | None) -> Selection | None:
        if patch is None:
            return None
        with self._record.stage("select"):
            self._selected = await self._select(patch)
        self._record.selected(self._selected)
        return self._selected

    async def _select(self, patch: Patch) -> Selection:
        if self._parts.optimizer is not None:
            control = self._settings.lr_control_mode
            return await select(
                self._parts.optimizer, self._skill, patch, self._context, control=control
            )
        budget = self._context.edit_budget
        chosen = patch.proposals[:budget]
        edits = [proposal.as_dict() for proposal in chosen]
        self._parts.emit(EditsSelected(step=self._planned.step, edit_budget=budget, edits=edits))
        return Selection(chosen, budget, {})

    async def update(self, selection: Selection | None) -> list[Candidate]:
        """The candidates of this step, the whole patch first; none when nothing would differ from
        the incumbent.
        """
        if selection is None or not selection.proposals:
            self._record.action = "skip_no_patches" if selection is None else "skip_no_change"
            return []
        with self._record.stage("update"):
            if self._parts.optimizer is not None:
                whole = await update(
                    self._parts.optimizer, self._skill, selection.proposals, self._context
                )
            else:
                whole = apply(
                    self._skill, selection.proposals, max_tokens=self._settings.max_skill_tokens
                )
        self._record.updated(whole)
        candidates = self._candidates(whole, selection)
        for number, candidate in enumerate(candidates):
            self._say_candidate(number, candidate, whole)
        return candidates

    def _candidates(self, whole: Update, selection: Selection) -> list[Candidate]:
        if whole.skill is None:
            self._record.action = "skip_no_rewrite"
            return []
        leak = whole.changed and self._leak_of_rewrite(whole.skill)
        if not whole.changed or leak:
            self._record.action = "skip_leak" if leak else "skip_no_change"
            return []
        self._progress.valid_edits += whole.applied if whole.report else len(selection.proposals)
        if self._settings.skill_update_mode != "patch":
            return [Candidate(whole.skill, (), "rewrite")]
        settings = self._parts.config.evaluation
        chosen = set(map(id, selection.proposals))
        spare = [proposal for proposal in self._merged if id(proposal) not in chosen]
        return propose(
            self._skill,
            _edits(selection.proposals),
            spare=_edits(spare) if settings.gate == "race" else (),
            sources=[proposal.items for proposal in (*selection.proposals, *spare)],
            limit=settings.candidates if settings.gate == "race" else 1,
            finest=settings.finest,
            max_tokens=self._settings.max_skill_tokens,
        )

    def _leak_of_rewrite(self, candidate: Skill) -> bool:
        """A rewrite's new lines are checked as edits are."""
        if self._settings.skill_update_mode == "patch":
            return False
        old = set(self._skill.body.splitlines())
        new = "\n".join(line for line in candidate.body.splitlines() if line not in old)
        return not self._parts.screen.passes(new)

    def _say_candidate(self, number: int, candidate: Candidate, whole: Update) -> None:
        report, detail = whole.report, whole.detail
        if number:
            report, detail = (
                [result.as_dict() for result in apply_edits(self._skill, candidate.edits).results],
                {},
            )
        self._parts.emit(
            CandidateBuilt(
                step=self._planned.step,
                number=number,
                label=candidate.label,
                skill=candidate.skill.text,
                skill_hash=candidate.skill.hash,
                report=report,
                detail=detail,
            )
        )

    async def gate(self, candidates: Sequence[Candidate]) -> Verdict | None:
        """Let the candidates meet the incumbent; a winner is the incumbent from here on."""
        if not candidates:
            return None
        with self._record.stage(
            "gate", len(self._parts.task.selection) * len(candidates), timed_as="evaluate"
        ):
            verdict = await judge(self._parts, self._progress, self._planned.name, candidates)
        self._record.judged(verdict)
        if verdict.chosen is not None:
            self._progress.accepted += [
                AcceptedEdit(self._planned.step, edit) for edit in verdict.chosen.edits
            ]
        return verdict

    async def close(self, verdict: Verdict | None) -> None:
        """Remember what happened, and say it."""
        parts, planned, progress = self._parts, self._planned, self._progress
        added = await flush_notes(parts, progress, planned, self._patches, self._record)
        progress.track_best(parts)
        entry = self._memory_entry(verdict)
        progress.memory.append(entry)
        await parts.go_on_without_lost()
        record = self._record.finish(progress)
        progress.records.append(record)
        parts.emit(
            StepFinished(
                epoch=planned.epoch,
                step=planned.step,
                action=record["action"],
                skill=progress.skill.text,
                skill_hash=progress.skill.hash,
                best_skill=parts.gate.best.text,
                record=record,
                digest=entry.as_dict(),
                appendix_notes=added,
            )
        )

    def _memory_entry(self, verdict: Verdict | None) -> StepMemory:
        scored = [outcome for outcome in self._outcomes if outcome.score is not None]
        turned_down = (
            self._selected.proposals if self._selected and verdict and not verdict.accepted else ()
        )
        return StepMemory(
            step=self._planned.step,
            action=self._record.action,
            n_total=len(scored),
            n_fail=sum(not outcome.succeeded for outcome in scored),
            failure_patterns=failure_patterns(self._outcomes, self._patches),
            score_before=self._score_before if verdict else None,
            score_after=verdict.candidate_score if verdict else None,
            rejected_edits=tuple(proposal.as_dict() for proposal in turned_down),
        )


def _edits(proposals: Sequence[Proposal]) -> list[Edit]:
    return [edit for proposal in proposals if (edit := proposal.edit) is not None]
