"""The default gate: every rollout measures every pending edit.

Each rollout of a step, training and selection, runs under the incumbent with a random subset of the
pending edits. One regression over all rollouts so far estimates the effect of every edit at once,
and each edit is promoted into the incumbent, dropped, or kept pending by that estimate. The edits
that a step proposes join the pool at its end and are measured from the next step on. The rollouts
of the first step carry no pending edit: they are the control group.

The rule is lenient on purpose: the final skill takes every edit that is more likely to help than
not, and the claim that the skill got better is left to the ship test.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from skillfit.errors import InputError
from skillfit.gate.base import (
    FIRST_ROUND,
    INITIAL,
    BaseGate,
    Candidate,
    Composition,
    Observation,
    Origin,
    Round,
    Ruling,
    SelectionNeed,
    Verdict,
    after_baseline,
)
from skillfit.gate.local_effects import TypedItems, local_effects
from skillfit.gate.pool import Decisions, Pool, PoolEdit
from skillfit.gate.regression import (
    ColumnKind,
    Family,
    PossibleChange,
    Posterior,
    SelectionItems,
    TrialTable,
    fit,
)
from skillfit.gate.samples import (
    TOLERANCE,
    GateSettings,
    Measure,
    RolloutCount,
    Samples,
    believe,
    paired_evidence,
)
from skillfit.plain_text import with_interval
from skillfit.rollout.outcome import Arm, Outcome, Tally
from skillfit.run.control import DONE_TO_EDIT, STATUS_AFTER, EditAction
from skillfit.run.records import (
    AWAITS_APPROVAL,
    EFFECT,
    SOLVED,
    EditEffect,
    EpochSkip,
    Evidence,
    ScoreEstimate,
)
from skillfit.skill import WRITE_OP, Applied, Edit, Skill
from skillfit.skill.units import removed_lines, units_of_parts
from skillfit.tasks.item import Item

MUST_PASS_REPEATS = 3  # rollouts of a must-pass item that looks broken, under each skill
DOCUMENT_PASSES = 4  # of a rewritten document's paired test: up to two for each of the two skills
HOPELESS = 0.4  # a rewritten document less likely than this to be better gets no second pass


@dataclass(frozen=True, slots=True)
class ScreeningJudgement:
    """A judgement that has begun, with the incumbent before it."""

    gate: ScreeningGate
    origin: Origin  # of what the judgement promotes
    old: Arm
    count: RolloutCount
    arms: Sequence[tuple[Arm, Item]] = ()  # of the selection rollouts that have started
    running: asyncio.Task[list[Outcome]] | None = None  # those rollouts
    last: bool = False  # the final skill is composed next

    @property
    def started(self) -> int:
        return len(self.arms)

    async def decide(
        self, candidate: Candidate | None, training: Sequence[Observation] = ()
    ) -> Verdict | None:
        verdict = await self.gate.decide_judgement(self, candidate, training)
        self.gate.comes_from(self.origin, self.old.skill)
        return verdict


class ScreeningGate(BaseGate):
    """Implements `Gate` with a pool of edits and a regression over all rollouts."""

    checks_must_pass = True

    def __init__(self, measure: Measure, items: Sequence[Item], settings: GateSettings) -> None:
        super().__init__(measure, items, settings)
        self._selection = SelectionItems.of([item.id for item in items], settings.weights)
        binary = settings.config.evaluation.gate_metric == "hard"
        self._family: Family = "logistic" if binary else "linear"
        self._trials = TrialTable()
        self._types = {item.id: item.type for item in items}
        self._training: set[str] = set()  # training items that were rolled out
        self._rollouts: Counter[str] = Counter()  # edit -> scored rollouts that count for it
        self._pool: Pool | None = None
        self._posterior: Posterior | None = None
        self._base: tuple[str, ...] = ()  # columns of the regression that the base stands for
        self._base_of: dict[str, tuple[str, ...]] = {}  # skill hash -> columns of its base
        self._documents: list[str] = []  # columns of whole-document changes
        self._finalists: dict[str, Arm] = {}  # by the hash of the skill
        self._final: Arm | None = None  # the best of the final skills, once they are composed
        self._initial_score: float | None = None
        self._order = list(self.items)  # in which selection items take their turn
        self._turn = 0

    # State

    @property
    def pool(self) -> Pool:
        return after_baseline(self._pool)

    @property
    def posterior(self) -> Posterior:
        """The regression over all rollouts so far."""
        return after_baseline(self._posterior)

    @property
    def incumbent(self) -> Skill:
        return self.pool.incumbent.skill

    @property
    def best(self) -> Skill:
        """The incumbent, until the final skills are composed."""
        return (self._final or self.pool.incumbent).skill

    @property
    def best_score(self) -> float:
        return self._score_of(self._final or self.pool.incumbent).mean

    @property
    def score(self) -> float:
        return self._score().mean

    @property
    def initial_score(self) -> float | None:
        """As the first step measured it."""
        return self._initial_score

    def need(self, selection: int) -> SelectionNeed:
        """Return how many selection rollouts the gate makes. A step measures the edits of earlier
        ones, and removals from the first one on; a rewritten document gets its own test.
        """
        rewrites = self.config.optimizer.skill_update_mode != "patch"
        document = len(self.items) * DOCUMENT_PASSES if rewrites else 0
        removals = selection if self.config.removes_initial_text else 0
        return SelectionNeed(
            first_step=removals + document,
            step=selection + document,
            typical_step=selection + document // 2,  # a clear first pass ends the test
            lesson=0 if self.config.optimizer.slow_update_gate_with_selection else len(self.items),
            prune=selection,
        )

    def ignored(self) -> frozenset[str]:
        """Return the settings that have no effect here. Notes that do not help are dropped, so they
        need no model that consolidates them.
        """
        ignored = {"optimizer.skill_aware_consolidate_threshold"}
        if not self.config.evaluation.use_gate:
            ignored |= {"optimizer.prune_initial", "evaluation.objective", "evaluation.use_gate"}
        return frozenset(ignored)

    def noise(self) -> float | None:
        """Return the variance expected of one rollout: p * (1 - p) for hard scores, else fitted."""
        if self._family == "linear":
            return self.posterior.scales.noise
        columns = self._columns(self.pool.incumbent)
        chance = self.posterior.expected(self.posterior.predictor(self._selection.items, columns))
        return float(self._selection.weights @ (chance * (1 - chance)))

    def effects(self) -> tuple[EditEffect, ...]:
        return tuple(_shown(entry) for entry in self.pool.edits.values())

    # Measuring

    async def baseline(self, skill: Skill) -> None:
        """Begin a pool on the initial skill. The first step measures it."""
        evaluation = self.config.evaluation
        # Half of the margin is left to what the estimates do not show.
        loss = evaluation.margin / 2 if evaluation.objective == "cheaper" else None
        self._pool = Pool(
            skill,
            self.config.optimizer.max_skill_tokens,
            loss,
            every_type=bool(self.config.model.agents),
        )
        self._initial = skill
        self._origins[skill.hash] = INITIAL
        self._fit()
        if self.config.removes_initial_text:
            parts = units_of_parts(skill, "paragraph", self.config.optimizer.parts)
            removals = tuple(unit.removal for unit in parts)
            candidate = Candidate(skill, removals, label="prune", removes_initial_text=True)
            self.pool.join(candidate)

    def assign(
        self, name: str, items: Sequence[Item], repeats: int = 1, at: Round = FIRST_ROUND
    ) -> list[Arm]:
        self._types |= {item.id: item.type for item in items}
        self._training |= {item.id for item in items}
        key = f"{self.config.train.seed}/{name}/training"
        return self._arms(key, list(items) * repeats, at.share)

    def _arms(self, key: str, items: Sequence[Item], share: float) -> list[Arm]:
        """Draw an arm for each rollout, from a few distinct subsets of the pool. `share`: of an
        edit without evidence.
        """
        arms = self.pool.draw(key, self.settings.subsets, self.pool.shares(share))
        for arm in arms:
            self._base_of[arm.skill.hash] = self._base
        return self.pool.assign(f"{key}/order", arms, items)

    async def _roll_out(self, arms: Sequence[tuple[Arm, Item]]) -> list[Outcome]:
        """Run selection rollouts; record them as evidence and as measurements of their skills."""
        outcomes = await self.sampler.roll_out(arms)
        self._record(arms, outcomes)
        return outcomes

    def _record(self, arms: Sequence[tuple[Arm, Item]], outcomes: Sequence[Outcome]) -> None:
        observed = []
        for (arm, item), outcome in zip(arms, outcomes, strict=True):
            observed.append(Observation(item.id, arm, outcome))
            samples = self._samples.setdefault(arm.skill.hash, Samples(self.settings))
            samples.add([outcome])
        self._observe(observed)

    def _observe(self, observations: Sequence[Observation]) -> None:
        """Add scored rollouts to the table. A rollout of an item is no evidence for an edit that
        was written from the item: the pair gets its own intercept instead.
        """
        for observation in observations:
            score = observation.outcome.score
            if score is None:
                continue
            item, columns = observation.item_id, self._columns(observation.arm)
            own = {key for key in columns if self._is_own(key, item)}
            group = "\n".join([item, *sorted(own)])
            value = self.config.evaluation.value(score.hard, score.soft)
            self._trials.add(group, (key for key in columns if key not in own), value)
            self._rollouts.update(key for key in columns if key not in own)

    def _is_own(self, key: str, item: str) -> bool:
        return key in self.pool.edits and item in self.pool.edits[key].own_items

    def _columns(self, arm: Arm) -> tuple[str, ...]:
        """Return the columns of the regression that are on under an arm."""
        return (*self._base_of.get(arm.skill.hash, self._base), *arm.edits)

    def _fit(self) -> None:
        """Fit all rollouts so far, starting from the last fit."""
        kinds: dict[str, ColumnKind] = {key: entry.kind for key, entry in self.pool.edits.items()}
        kinds |= dict.fromkeys(self._documents, "base")
        columns = [key for key in kinds if self._rollouts[key]]
        self._posterior = fit(
            self._trials.rows(), columns, family=self._family, kinds=kinds, start=self._posterior
        )
        self._estimate()

    def _estimate(self) -> None:
        """Express the effect of every edit in use relative to the incumbent."""
        changes = self._measured_changes()
        incumbent = self._columns(self.pool.incumbent)
        estimates = self._selection.effects(self.posterior, incumbent, list(changes.values()))
        for key, estimate in zip(changes, estimates, strict=True):
            self.pool.edits[key].estimate = estimate

    def _locate(self) -> None:
        """Find the types of items that every edit in use acts on."""
        changes = self._measured_changes()
        incumbent = self._columns(self.pool.incumbent)
        found = local_effects(
            self._trials.rows(),
            self.posterior,
            self._typed_items(),
            incumbent,
            list(changes.values()),
        )
        for key, kinds in zip(changes, found, strict=True):
            self.pool.edits[key].kinds = kinds

    def _measured_changes(self) -> dict[str, PossibleChange]:
        """Return what each edit that is in use and was measured changes in the incumbent."""
        return {
            entry.id: PossibleChange(
                self.pool.signs(entry.id), entry.status == "promoted", self._rollouts[entry.id]
            )
            for entry in self.pool.edits.values()
            if entry.status != "dropped" and self._rollouts[entry.id]
        }

    def _typed_items(self) -> TypedItems:
        """Return the selection items by type. Types that no training item has stay hidden from the
        optimizer, which sees effects.
        """
        known = {self._types[item] for item in self._training}
        types = {item: kind for item, kind in self._types.items() if kind in known}
        return TypedItems.of(self._selection.items, types, self.settings.weights)

    def _score(self) -> ScoreEstimate:
        return self._score_of(self.pool.incumbent)

    def _score_of(self, arm: Arm) -> ScoreEstimate:
        return self._selection.score(self.posterior, self._columns(arm))

    async def record(self, skill: Skill) -> Samples:
        """Return the measurements of a skill. Roll out selection items that it never ran on."""
        samples = self._samples.setdefault(skill.hash, Samples(self.settings))
        missing = [item for item in self.items if item.id not in samples.scores]
        samples.add(await self.sampler.roll_out([(Arm(skill), item) for item in missing]))
        return samples

    # Judging

    def begin(self, name: str, at: Round = FIRST_ROUND) -> ScreeningJudgement:
        """Start selection rollouts of the pending edits; none when no edit is pending."""
        origin, count = Origin(name, at.step), RolloutCount(self.sampler)
        judgement = ScreeningJudgement(self, origin, self.pool.incumbent, count, last=at.last)
        if not self.pool.pending():
            return judgement
        items = self._next_items(at.selection)
        drawn = self._arms(f"{self.config.train.seed}/{name}/selection", items, at.share)
        arms = list(zip(drawn, items, strict=True))
        return replace(judgement, arms=arms, running=self.sampler.start(arms))

    def _next_items(self, count: int) -> list[Item]:
        """Take the selection items whose turn it is, in an order that the seed decides."""
        taken = []
        for _ in range(count if self.items else 0):
            at = self._turn % len(self.items)
            if at == 0:
                key = f"{self.config.train.seed}/selection/{self._turn}"
                random.Random(key).shuffle(self._order)
            taken.append(self._order[at])
            self._turn += 1
        return taken

    def __init_subclass__(cls) -> None:
        if "judge" in vars(cls):  # a run calls `begin` and decides the judgement that it returns
            raise TypeError(f"{cls.__name__}: override decide_judgement instead of judge.")

    async def decide_judgement(
        self,
        judgement: ScreeningJudgement,
        candidate: Candidate | None,
        training: Sequence[Observation],
    ) -> Verdict | None:
        """Take in the rollouts of a step, promote and drop edits, then let new ones join."""
        judged = bool(self.pool.pending())
        self._observe(training)
        if judgement.running is not None:
            self._record(judgement.arms, await judgement.running)
        self._fit()
        if self._initial_score is None:
            self._initial_score = self._score_of(judgement.old).mean
        if candidate is None and not judged:
            return None
        if candidate is not None and self._is_document(candidate):
            return await self._judge_document(judgement, candidate)
        ruling = await self._rule(judgement)
        if candidate is not None:
            self.pool.join(candidate)
        return self._verdict(ruling, judgement)

    async def _rule(self, judgement: ScreeningJudgement) -> Ruling:
        """Decide about the edits that were measured, and carry it out."""
        if uncovered := self.uncovered(judgement.count.coverage):
            return uncovered
        for entry in self.pool.pending():
            entry.judgements += entry.estimate is not None
        changes = await self._carry_out(self._hold_for_review(self.pool.decide(), judgement.last))
        return Ruling("accept", changes) if changes else Ruling("reject", "no edit was promoted")

    def candidate(
        self, applied: Applied, sources: Sequence[tuple[str, ...]], step: int
    ) -> Candidate:
        """Return a candidate with all edits: the pool finds out which of them apply together."""
        edits = tuple(result.edit for result in applied.results)
        report = tuple(
            result if result.applied else self.pool.tried(result.edit) or result
            for result in applied.results
        )
        return Candidate(applied.skill, edits, tuple(sources), step, report=report)

    async def add(self, skill: Skill, edits: Sequence[Edit], origin: Origin) -> None:
        """Let the edits join the pool."""
        self.pool.join(Candidate(skill, tuple(edits), step=origin.step))

    async def judge_lesson(self, lesson: Candidate, origin: Origin) -> None:
        self.pool.join(lesson)

    def with_lesson_region(self) -> None:
        return None

    def skips_epoch(self, changed: bool, unused: bool) -> EpochSkip | None:
        """Compare different skills only, and only where that can still act."""
        if not changed:
            return "skip_same_skill"
        return "skip_last_epoch" if unused else None

    def _is_document(self, candidate: Candidate) -> bool:
        return not candidate.edits and candidate.skill.hash != self.incumbent.hash

    def _hold_for_review(self, decisions: Decisions, last: bool) -> Decisions:
        """Mark, with `review`, each edit that would be promoted as waiting for the user's approval,
        and before the final skill is composed each that would be in it. Return the decisions
        without those that are not approved yet.
        """
        if not self.config.review:
            return decisions
        wanted = {*decisions.promote, *(self.pool.worthwhile() if last else ())}
        for entry in self.pool.pending():
            if entry.id in wanted and entry.id not in decisions.drop:
                entry.awaits_approval = True
                entry.reason = f"{AWAITS_APPROVAL}: {_effect_text(entry)}"
            elif entry.awaits_approval:  # later rollouts lowered its estimate
                entry.awaits_approval, entry.reason = False, ""
        approved = tuple(key for key in decisions.promote if self.pool.edits[key].pinned)
        return Decisions(approved, decisions.drop)

    def steer(self, action: EditAction, key: str, text: str = "") -> None:
        """Carry out a user's request about one edit."""
        before = self.incumbent
        self._steer(action, key, text)
        self.comes_from(Origin("person", 0), before)

    def _steer(self, action: EditAction, key: str, text: str) -> None:
        entry = self.pool.edits.get(key)
        if entry is None:
            raise InputError(f"There is no edit {key!r} in the pool.", hint="See `skillfit show`.")
        if action == "release":
            self.pool.release(key)
            return
        if action == "reword" and entry.edit.op == WRITE_OP:
            raise InputError(
                f"The edit {key} writes a script, which is checked before it is tried: it cannot "
                "be reworded."
            )
        reason = f"{DONE_TO_EDIT[action]} by a person"
        if STATUS_AFTER[action] == "promoted":
            if entry.status == "dropped":
                raise InputError(f"The edit {key} was dropped: {entry.reason}.")
            entry.pinned, entry.vetoed = True, False
            if entry.status == "pending":
                self.pool.promote(key, reason)
            return
        entry.vetoed, entry.pinned = True, False
        self.pool.drop(key, reason)
        if action == "reword":
            edit = replace(entry.edit, content=text)
            sources = (tuple(sorted(entry.sources)),)
            candidate = Candidate(
                self.pool.incumbent.skill, (edit,), sources, entry.step, "reworded"
            )
            self.pool.join(candidate)

    async def _carry_out(self, decisions: Decisions) -> str:
        """Promote and drop. The reason of the verdict; empty when the incumbent stays the same."""
        before = {entry.id for entry in self.pool.promoted()}
        for key in decisions.drop:
            if self.pool.edits[key].status != "dropped":
                self.pool.drop(key, _effect_text(self.pool.edits[key]))
        for key, item in (await self._culprits(decisions.promote)).items():
            self.pool.drop(key, f"breaks must-pass item {item}")
        for key in decisions.promote:
            if self.pool.edits[key].status == "pending":
                self.pool.promote(key, _effect_text(self.pool.edits[key]))
        after = {entry.id for entry in self.pool.promoted()}
        return self._change_text(sorted(after - before), sorted(before - after))

    def _change_text(self, came: Sequence[str], gone: Sequence[str]) -> str:
        """Describe what changed in the incumbent; removals are named by the lines that they cut."""
        cut = [key for key in came if self.pool.edits[key].removal]
        restored = [key for key in gone if self.pool.edits[key].removal]
        parts = []
        if promoted := [key for key in came if key not in cut]:
            parts.append(f"promoted {', '.join(promoted)}")
        if cut:
            parts.append(f"cut {self._lines_of(cut)}")
        if dropped := [key for key in gone if key not in restored]:
            parts.append(f"dropped {', '.join(dropped)} again")
        if restored:
            parts.append(f"restored {self._lines_of(restored)}")
        return "; ".join(parts)

    def _lines_of(self, removals: Sequence[str]) -> str:
        lines = [removed_lines(self.pool.edits[key].edit) for key in removals]
        return f"{', '.join(lines)} of the initial skill"

    async def _culprits(self, promote: Sequence[str]) -> dict[str, str]:
        """Find the edits about to be promoted that break must-pass items; return the ids of these
        items by edit.

        Items that fail once under the new incumbent are rolled out again on both sides; for those
        that are really broken the edits are added one by one.
        """
        must = [item for item in self.items if item.id in self.config.evaluation.must_pass]
        if not must or not promote:
            return {}
        kept = [entry.id for entry in self.pool.promoted()]
        old, new = self.pool.incumbent, self.pool.apply([*kept, *promote])
        first = await self._fresh_means(new, must, 1)
        suspects = [item for item in must if first.get(item.id, 1.0) < SOLVED]
        broken = await self._confirmed_broken(old, new, suspects)
        culprits: dict[str, str] = {}
        for key in promote if broken else ():
            trial = self.pool.apply([*kept, key])
            scores = await self._fresh_means(trial, broken, MUST_PASS_REPEATS)
            failed = [item.id for item in broken if scores.get(item.id, 1.0) < SOLVED]
            if failed:
                culprits[key] = ", ".join(failed)
            else:
                kept.append(key)
        return culprits

    async def _confirmed_broken(self, old: Arm, new: Arm, suspects: Sequence[Item]) -> list[Item]:
        """Return items that the old skill solves and the new one does not, by rollouts of both."""
        before = await self._fresh_means(old, suspects, MUST_PASS_REPEATS)
        after = await self._fresh_means(new, suspects, MUST_PASS_REPEATS)
        return [i for i in suspects if before.get(i.id, 0.0) >= SOLVED > after.get(i.id, 1.0)]

    async def _fresh_means(self, arm: Arm, items: Sequence[Item], repeats: int) -> dict[str, float]:
        """Return the mean score per item over fresh rollouts under one arm."""
        fresh = await self._fresh_samples(arm, items, repeats)
        return fresh.means

    async def _fresh_samples(self, arm: Arm, items: Sequence[Item], repeats: int = 1) -> Samples:
        fresh = Samples(self.settings)
        fresh.add(await self._roll_out([(arm, item) for _ in range(repeats) for item in items]))
        return fresh

    async def _pass_of_both(
        self, new: Arm, old: Arm, after: Samples | None = None, before: Samples | None = None
    ) -> tuple[Samples, Samples]:
        """Roll out each selection item once more under both arms and add the outcomes to the
        samples.
        """
        after, before = after or Samples(self.settings), before or Samples(self.settings)
        outcomes = await self._roll_out([(arm, item) for arm in (new, old) for item in self.items])
        after.add(outcomes[: len(self.items)])
        before.add(outcomes[len(self.items) :])
        return after, before

    def _verdict(self, ruling: Ruling, judgement: ScreeningJudgement) -> Verdict:
        """Return the verdict after the pool has changed."""
        old, new = judgement.old, self.pool.incumbent
        if new.skill.hash != old.skill.hash:
            self._estimate()
        self._locate()
        difference = self._selection.difference(
            self.posterior, self._columns(new), self._columns(old)
        )
        score = self._score()
        return Verdict(
            decision=ruling.decision,
            action="accept_new_best" if ruling.decision == "accept" else ruling.decision,
            winner=new.skill,
            reason=ruling.reason,
            evidence=Evidence(
                difference=difference.mean,
                interval=(difference.low, difference.high),
                probability=difference.probability,
                rollouts=judgement.count.rollouts,
                coverage=judgement.count.coverage,
            ),
            incumbent_score=self._score_of(old).mean,
            candidate_score=score.mean,
            candidate_tally=None,
            score=score,
            effects=self.effects(),
        )

    # Whole documents

    async def _judge_document(self, judgement: ScreeningJudgement, candidate: Candidate) -> Verdict:
        """Test a rewritten document against the incumbent in pairs: one pass each, and a second one
        when the first is not hopeless. Accept it when it is better over both.
        """
        name, count = judgement.origin.name, judgement.count
        column = f"document {name}"
        self._documents.append(column)
        old, new = self.pool.incumbent, Arm(candidate.skill)
        self._base_of[new.skill.hash] = (column,)
        new_samples, old_samples = await self._pass_of_both(new, old)
        belief = believe(new_samples.against(old_samples).values())
        if belief.probability >= HOPELESS:
            await self._pass_of_both(new, old, new_samples, old_samples)
            belief = believe(new_samples.against(old_samples).values())
        broken = await self._broken(new, old, new_samples, old_samples)
        evidence = paired_evidence(
            new_samples, old_samples, rollouts=count.rollouts, coverage=count.coverage
        )
        ruling = self._decide_document(belief.mean, broken, count)
        if ruling.decision == "accept":
            self._base = (column,)
            self.pool.rebase(candidate.skill, replaces=f"replaced by the document of {name}")
        self._fit()
        self._locate()
        return Verdict(
            decision=ruling.decision,
            action="accept_new_best" if ruling.decision == "accept" else ruling.decision,
            winner=self.incumbent,
            reason=ruling.reason,
            evidence=evidence,
            incumbent_score=self._score_of(old).mean,
            candidate_score=new_samples.score,
            candidate_tally=new_samples.tally(),
            score=self._score(),
            effects=self.effects(),
        )

    async def _broken(self, new: Arm, old: Arm, after: Samples, before: Samples) -> list[str]:
        """Return must-pass items that a document breaks, confirmed by more rollouts of both."""
        suspects = []
        for item in self.items:
            looks_broken = before.means.get(item.id, 0.0) >= SOLVED > after.means.get(item.id, 1.0)
            if item.id in self.config.evaluation.must_pass and looks_broken:
                suspects.append(item)
        return [item.id for item in await self._confirmed_broken(old, new, suspects)]

    def _decide_document(
        self, difference: float, broken: Sequence[str], count: RolloutCount
    ) -> Ruling:
        if uncovered := self.uncovered(count.coverage):
            return uncovered
        if broken:
            return Ruling("reject", f"breaks must-pass items: {', '.join(broken)}")
        if difference > TOLERANCE:
            return Ruling("accept", "the new document is better over two passes")
        return Ruling("reject", "the new document is not better than the incumbent")

    async def adopt(self, skill: Skill, origin: Origin, like: Skill | None = None) -> Tally:
        """Continue with a skill that no verdict chose. It shares the measurements of `like`, if
        there are any; otherwise it gets a pass over the selection items.
        """
        before, self._base = self.incumbent, self._columns(self.pool.incumbent)
        known = self._samples.get(like.hash) if like is not None else None
        if known is not None:
            self._samples.setdefault(skill.hash, known)
        else:
            column = f"adopted {len(self._documents)}"
            self._documents.append(column)
            self._base = (*self._base, column)
        self.pool.rebase(skill)
        self._base_of[skill.hash] = self._base
        self.comes_from(origin, before)
        if known is None:
            await self._fresh_samples(self.pool.incumbent, self.items)
            self._fit()
        return self.tally(skill)

    # The end

    async def last_tally(self) -> None:
        return None

    async def compose(self) -> list[Skill]:
        """Return the skill of all edits that are more likely to help than not, then the incumbent.
        Where every rollout scored 0, nothing can be lost, and all additions are tried together.
        """
        incumbent = self.pool.incumbent
        composed = incumbent
        if not self.config.review:  # else only what the user approved
            chosen = self.pool.worthwhile()
            if not chosen and self._trials.nothing_scored:
                chosen = self.pool.additions()
            culprits = await self._culprits([key for key in chosen if key not in incumbent.edits])
            composed = self.pool.apply([key for key in chosen if key not in culprits])
        self._final = composed
        arms = {arm.skill.hash: arm for arm in (composed, incumbent)}
        self._finalists = {key: arm for key, arm in arms.items() if key != self.initial.hash}
        return [arm.skill for arm in self._finalists.values()]

    def composition(self, skill: Skill) -> Composition:
        if self._pool is None:
            return Composition()
        arm = self._finalists.get(skill.hash, self._pool.incumbent)
        if arm.skill.hash != skill.hash:
            return Composition()
        return Composition(arm.edits, self._score_of(arm) if self._posterior is not None else None)


def _effect_text(entry: PoolEdit) -> str:
    if entry.estimate is None:
        return "not measured"
    estimate = entry.estimate
    interval = with_interval(estimate.mean, estimate.low, estimate.high)
    if entry.removal:
        return f"score without this text {interval}, in {estimate.rollouts} rollouts"
    return f"{EFFECT} {interval}"


def _shown(entry: PoolEdit) -> EditEffect:
    estimate = entry.estimate
    return EditEffect(
        id=entry.id,
        step=entry.step,
        edit=entry.edit,
        status=entry.status,
        mean=estimate.mean if estimate else None,
        low=estimate.low if estimate else 0.0,
        high=estimate.high if estimate else 0.0,
        probability=estimate.probability if estimate else 0.5,
        rollouts=estimate.rollouts if estimate else 0,
        reason=entry.reason,
        items=tuple(sorted(entry.sources)),
        awaits_approval=entry.awaits_approval,
        kinds=entry.kinds,
    )
