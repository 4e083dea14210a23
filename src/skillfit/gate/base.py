"""What a gate is: candidates and observations go in, verdicts come out.

A gate decides how training continues: which edits enter the skill, and which skill the next step
starts from. `Gate` is the protocol. `BaseGate` has everything but the rule: it measures skills as
a whole on the selection items. `StrictGate` is SkillOpt's rule. `ScreeningGate` (screening.py), the
default, measures every edit in every rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, get_args

from skillfit.config.schema import Config
from skillfit.errors import InputError
from skillfit.gate.samples import (
    TOLERANCE,
    GateSettings,
    Measure,
    RolloutCount,
    Sampler,
    Samples,
    believe,
    paired_evidence,
    within_item_variance,
)
from skillfit.intervals import mean
from skillfit.rollout.outcome import Arm, Outcome, Tally
from skillfit.run.control import EditAction
from skillfit.run.records import (
    COMPOSED,
    CandidateComparison,
    CurrentAndBest,
    Decision,
    EditEffect,
    EpochSkip,
    Evidence,
    GateAction,
    ScoreEstimate,
)
from skillfit.skill import Applied, Edit, EditResult, Skill, with_slow_update
from skillfit.tasks.item import Item

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a step proposes: a skill, and the edits that make it from the incumbent.

    A candidate without edits is a rewrite of the whole document.
    """

    skill: Skill
    edits: tuple[Edit, ...] = ()
    sources: tuple[tuple[str, ...], ...] = ()  # per edit: training items it was written from
    step: int = 0
    label: str = "patch"  # as people read it
    gated: bool = False  # decide by the rule even where `use_gate` is off
    removes_initial_text: bool = False  # its edits are promoted unless they cost score
    report: tuple[EditResult, ...] = ()  # of its patch, where the gate knows more than the patch


@dataclass(frozen=True, slots=True)
class Round:
    """How pending edits are measured in a step, by the schedule of the run. Gates without a pool
    need only `step`.
    """

    step: int = 0  # over the whole run
    selection: int = 20  # selection rollouts under pending edits
    share: float = 0.5  # of the rollouts, for edits without evidence
    last: bool = False  # the final skill is composed next


@dataclass(frozen=True, slots=True)
class Origin:
    """The step or update in which a skill became the incumbent."""

    name: str
    step: int


@dataclass(frozen=True, slots=True)
class SelectionNeed:
    """Selection rollouts that a gate makes, at the most."""

    baseline: int = 0  # of the initial skill, before the first step
    first_step: int = 0
    step: int = 0  # from the second one on
    typical_step: int = 0
    lesson: int = 0  # after each slow update
    prune: int = 0  # in each round after the last step


@dataclass(frozen=True, slots=True)
class Observation:
    """One finished rollout as evidence. Rollouts without a score are ignored."""

    item_id: str
    arm: Arm
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule says about a candidate."""

    decision: Decision
    reason: str

    def __post_init__(self) -> None:
        if self.decision not in get_args(Decision):
            allowed = ", ".join(get_args(Decision))
            raise ValueError(f"A gate decided {self.decision!r}; a decision is one of: {allowed}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gate decided in one judgement, and what the decision rests on."""

    decision: Decision  # screening: accept = an edit was promoted, or a promoted one was dropped
    action: GateAction
    winner: Skill  # what the loop continues with
    reason: str
    evidence: Evidence
    incumbent_score: float  # before the judgement
    candidate_score: float | None  # of the candidate; of the winner when edits were judged
    candidate_tally: Tally | None  # of the candidate's own rollouts; None: not measured alone
    score: ScoreEstimate  # of the winner
    effects: tuple[EditEffect, ...] = ()  # screening: the whole pool, dropped edits included
    comparisons: tuple[CandidateComparison, ...] = ()  # strict: candidate and incumbent

    @property
    def accepted(self) -> bool:
        return self.decision == "accept"


@dataclass(frozen=True, slots=True)
class Composition:
    """What a skill is made of; empty for gates without a pool."""

    edits: tuple[str, ...] = ()  # ids of the pool's edits
    score: ScoreEstimate | None = None  # what the pool's estimates say about it


FIRST_ROUND = Round()
INITIAL = Origin("initial", 0)


class Judgement(Protocol):
    """The judgement of one step. Its selection rollouts may run while training rollouts do."""

    @property
    def running(self) -> asyncio.Future[Any] | None:
        """The selection rollouts that have started; None: they wait for `decide`."""
        ...

    @property
    def started(self) -> int:
        """Their number, for progress displays."""
        ...

    async def decide(
        self, candidate: Candidate | None, training: Sequence[Observation] = ()
    ) -> Verdict | None:
        """Return the verdict; None when there was nothing to decide.

        `candidate`: None when the step proposed nothing new. `training`: the finished training
        rollouts of the step.
        """
        ...


class Gate(Protocol):
    """Decides how training continues. All is a function of seed, names and measured scores.

    `BaseGate` has all of this but the rule itself. The gate alone knows the incumbent, the best
    skill and their scores; everything else asks it.
    """

    async def baseline(self, skill: Skill) -> Tally | None:
        """Start with the initial skill; it is incumbent and best from here. Return its measurements
        on the selection items, or None for a gate that learns its score from the steps.
        """
        ...

    def need(self, selection: int) -> SelectionNeed:
        """Return how many selection rollouts the gate makes. `selection`: those of a `Round`."""
        ...

    def ignored(self) -> frozenset[str]:
        """Return the settings that have no effect under this gate. config/requires.py says why."""
        ...

    def assign(
        self, name: str, items: Sequence[Item], repeats: int = 1, at: Round = FIRST_ROUND
    ) -> list[Arm]:
        """Return the arm of each training rollout: all items of the first repeat, then of the
        next.
        """
        ...

    def begin(self, name: str, at: Round = FIRST_ROUND) -> Judgement:
        """Begin a step whose training rollouts have started. Selection rollouts that depend neither
        on those nor on what the step proposes may start here: they run while the optimizer reads.
        """
        ...

    def candidate(
        self, applied: Applied, sources: Sequence[tuple[str, ...]], step: int
    ) -> Candidate | None:
        """Return what to judge of a patch; None when nothing of it can take effect. `applied`: the
        patch on the incumbent. `sources`: per edit the items that it was written from.
        """
        ...

    async def add(self, skill: Skill, edits: Sequence[Edit], origin: Origin) -> Tally | None:
        """Take in text of skillfit itself that no step proposed, such as notes. `skill` is the
        incumbent with the edits. Return its measurements; None where the edits wait in a pool.
        """
        ...

    async def judge_lesson(self, lesson: Candidate, origin: Origin) -> Verdict | None:
        """Judge a slow update; None where it waits in a pool."""
        ...

    def with_lesson_region(self) -> Skill | None:
        """Return the incumbent with an empty region for lessons, so that edits cannot take its
        place; None where a lesson is an edit like any other.
        """
        ...

    def skips_epoch(self, changed: bool, unused: bool) -> EpochSkip | None:
        """Return why the first and the last skill of an epoch are not compared, or None. `changed`:
        whether they differ. `unused`: no later epoch reads what is learned from that.
        """
        ...

    async def adopt(self, skill: Skill, origin: Origin, like: Skill | None = None) -> Tally:
        """Adopt a skill that no verdict chose. `like` is a skill with the same meaning for
        the agent: a gate may use its measurements for both.
        """
        ...

    async def last_tally(self) -> Tally | None:
        """Return the measurements of the last incumbent on all selection items; None for a gate
        that estimates scores.
        """
        ...

    async def compose(self) -> list[Skill]:
        """Return the skills worth the ship test, most promising first; never the initial skill."""
        ...

    def composition(self, skill: Skill) -> Composition:
        """Return what a skill that `compose` returned, or the incumbent, consists of."""
        ...

    @property
    def incumbent(self) -> Skill:
        """The skill that training continues with."""
        ...

    @property
    def best(self) -> Skill:
        """The best skill so far by its score on the selection items."""
        ...

    @property
    def initial_score(self) -> float | None:
        """The score of the initial skill on the selection items; None until it is known."""
        ...

    @property
    def standings(self) -> CurrentAndBest:
        """The scores of incumbent and best skill, and where they come from."""
        ...

    def origin(self, skill: Skill) -> Origin | None:
        """Return where a skill became the incumbent; None for one that never was."""
        ...

    def tally(self, skill: Skill) -> Tally:
        """Return the measurements of a skill. Raises NotMeasured for a skill that has none."""
        ...

    def noise(self) -> float | None:
        """Return the variance between rollouts of one item and skill; None without repeats."""
        ...

    def effects(self) -> tuple[EditEffect, ...]:
        """Return all edits of the pool with their effects; empty for gates without a pool."""
        ...

    def steer(self, action: EditAction, key: str, text: str = "") -> None:
        """Carry out a user's request about an edit of the pool; `text` is its new wording. Only
        called for gates that pool edits.
        """
        ...


class NotMeasured(KeyError):
    """A gate was asked for the measurements of a skill that it never measured."""

    def __init__(self, skill: Skill) -> None:
        super().__init__(f"The gate has no measurements of skill {skill.hash}.")


class WrongResult(TypeError):
    """A method of a subclass of BaseGate returned something else than it must. The traceback ends
    in BaseGate, so `method` says where the wrong code is.
    """

    def __init__(self, gate: BaseGate, name: str, result: object, expected: str) -> None:
        super().__init__(f"{type(gate).__name__}.{name} returned {result!r}; it returns {expected}")
        self.method: object = getattr(gate, name)


class BaseGate:
    """A gate without a pool of edits, except for its rule.

    It keeps the skills that training continued with, their measurements, and which one is best. A
    subclass defines `decide`, which compares the measurements of two skills, or overrides `judge`
    to measure in another way.
    """

    checks_must_pass = False  # True: the rule keeps `evaluation.must_pass`

    def __init__(self, measure: Measure, items: Sequence[Item], settings: GateSettings) -> None:
        self.items, self.settings = list(items), settings
        self.sampler = Sampler(measure, "selection", settings)
        self._samples: dict[str, Samples] = {}  # by the hash of the skill
        self._incumbents: dict[str, Skill] = {}  # after the initial skill, in order; by hash
        self._initial: Skill | None = None
        self._best: Skill | None = None
        self._incumbent: Skill | None = None
        self._origins: dict[str, Origin] = {}  # by the hash of the skill

    @property
    def config(self) -> Config:
        """The settings of the run."""
        return self.settings.config

    @property
    def initial(self) -> Skill:
        return after_baseline(self._initial)

    @property
    def incumbent(self) -> Skill:
        return after_baseline(self._incumbent)

    @property
    def best(self) -> Skill:
        return after_baseline(self._best)

    @property
    def best_score(self) -> float:
        return self.samples_of(self.best).score

    @property
    def score(self) -> float:
        """The score of the incumbent."""
        return self.samples_of(self.incumbent).score

    @property
    def initial_score(self) -> float | None:
        known = self._initial is not None and self._initial.hash in self._samples
        return self.samples_of(self.initial).score if known else None

    @property
    def standings(self) -> CurrentAndBest:
        current, best = (
            self.origin(skill) or Origin(COMPOSED, 0) for skill in (self.incumbent, self.best)
        )
        return CurrentAndBest(
            current_score=self.score,
            current_origin=current.name,
            best_score=self.best_score,
            best_step=best.step,
            best_origin=best.name,
        )

    def origin(self, skill: Skill) -> Origin | None:
        return self._origins.get(skill.hash)

    def comes_from(self, origin: Origin, before: Skill) -> None:
        """Note where the incumbent comes from, if it is another skill than `before`."""
        if self.incumbent.hash != before.hash:
            self._origins[self.incumbent.hash] = origin

    def need(self, selection: int) -> SelectionNeed:
        """Count one pass over the items per skill; a step with notes makes a second skill."""
        count, config = len(self.items), self.config
        notes = config.optimizer.use_skill_aware_reflection and config.model.optimizer is not None
        step = count * (2 if notes else 1)
        return SelectionNeed(
            baseline=count,
            first_step=step,
            step=step,
            typical_step=step,
            lesson=count,
        )

    def ignored(self) -> frozenset[str]:
        # It measures no single paragraph.
        paragraphs = frozenset({"optimizer.prune_initial", "evaluation.objective"})
        return paragraphs if self.checks_must_pass else paragraphs | {"evaluation.must_pass"}

    async def baseline(self, skill: Skill) -> Tally | None:
        self._initial = self._best = self._incumbent = skill
        self._origins[skill.hash] = INITIAL
        return (await self.record(skill)).tally()

    def assign(
        self, name: str, items: Sequence[Item], repeats: int = 1, at: Round = FIRST_ROUND
    ) -> list[Arm]:
        """Assign the incumbent to every training rollout."""
        return [Arm(self.incumbent)] * (len(items) * repeats)

    def begin(self, name: str, at: Round = FIRST_ROUND) -> Judgement:
        """Begin without selection rollouts: all of them wait for the candidate of the step."""
        return _LaterJudgement(self, Origin(name, at.step))

    def candidate(
        self, applied: Applied, sources: Sequence[tuple[str, ...]], step: int
    ) -> Candidate | None:
        """Return the patched skill with the edits that apply; None when it equals the incumbent."""
        if applied.skill.hash == self.incumbent.hash:
            return None
        taken = [at for at, result in enumerate(applied.results) if result.applied]
        return Candidate(
            applied.skill,
            applied.edits,
            tuple(sources[at] for at in taken),
            step,
        )

    async def add(self, skill: Skill, edits: Sequence[Edit], origin: Origin) -> Tally | None:
        return await self.adopt(skill, origin)

    async def judge_lesson(self, lesson: Candidate, origin: Origin) -> Verdict | None:
        return await self.begin(origin.name, Round(origin.step)).decide(lesson)

    def with_lesson_region(self) -> Skill | None:
        return with_slow_update(self.incumbent)

    def skips_epoch(self, changed: bool, unused: bool) -> EpochSkip | None:
        """Return None: as in SkillOpt, epochs are compared in any case."""
        return None

    async def judge(
        self, name: str, candidate: Candidate | None, training: Sequence[Observation] = ()
    ) -> Verdict:
        """Measure incumbent and candidate, each skill once in a run, and decide."""
        count, old = RolloutCount(self.sampler), await self.record(self.incumbent)
        if candidate is None or candidate.skill.hash == self.incumbent.hash:
            return self.nothing_new(old, count)
        new = await self.record(candidate.skill)
        ruling = self.uncovered(min(old.coverage, new.coverage)) or self.decide(new, old)
        if not isinstance(ruling, Ruling):
            expected = 'a Ruling, for example Ruling("accept", "why")'
            raise WrongResult(self, "decide", ruling, expected)
        return self.verdict(candidate, ruling, new, old, count)

    def uncovered(self, coverage: float) -> Ruling | None:
        """Return an inconclusive ruling when too few rollouts were scored, else None."""
        floor = self.config.evaluation.coverage_floor
        if coverage >= floor:
            return None
        reason = f"only {coverage:.0%} of the rollouts were scored (floor {floor:.0%})"
        return Ruling("inconclusive", reason)

    def decide(self, new: Samples, old: Samples) -> Ruling:
        """Decide whether the candidate replaces the incumbent, and say why. Only called when enough
        rollouts of both were scored.
        """
        raise NotImplementedError("A gate defines decide(new, old) or overrides judge.")

    def verdict(
        self, candidate: Candidate, ruling: Ruling, new: Samples, old: Samples, count: RolloutCount
    ) -> Verdict:
        """Return the verdict about a candidate that was measured, and make an accepted one the
        incumbent. With `use_gate` off every candidate is accepted.
        """
        decision, action = ruling.decision, cast(GateAction, ruling.decision)
        reason = ruling.reason
        if not self.config.evaluation.use_gate and not candidate.gated:
            self.make_incumbent(candidate.skill, new)
            decision, action = "accept", "force_accept"
            reason = f"the gate is off: {reason}"
        elif decision == "accept":
            is_best = self.make_incumbent(candidate.skill, new)
            action = "accept_new_best" if is_best else "accept"
        return Verdict(
            decision=decision,
            action=action,
            winner=self.incumbent,
            reason=reason,
            evidence=paired_evidence(new, old, rollouts=count.rollouts, coverage=count.coverage),
            incumbent_score=old.score,
            candidate_score=new.score,
            candidate_tally=new.tally(),
            score=self.samples_of(self.incumbent).estimate(),
            comparisons=(_comparison(candidate, new, old, ruling.decision),),
        )

    def nothing_new(self, old: Samples, count: RolloutCount) -> Verdict:
        """Return the verdict about a step without a candidate."""
        return Verdict(
            decision="reject",
            action="reject",
            winner=self.incumbent,
            reason="no candidate differs from the incumbent",
            evidence=Evidence(rollouts=count.rollouts, coverage=count.coverage),
            incumbent_score=old.score,
            candidate_score=None,
            candidate_tally=None,
            score=old.estimate(),
        )

    async def adopt(self, skill: Skill, origin: Origin, like: Skill | None = None) -> Tally:
        """Continue with a skill. It is measured, unless `like` is: then both share one record."""
        before = self.incumbent
        if like is not None and skill.hash not in self._samples:
            self._samples[skill.hash] = self.samples_of(like)
        samples = await self.record(skill)
        self.make_incumbent(skill, samples)
        self.comes_from(origin, before)
        return samples.tally()

    async def last_tally(self) -> Tally | None:
        samples = await self.record(self.incumbent)
        self.make_incumbent(self.incumbent, samples)  # it may be the best one
        return samples.tally()

    async def record(self, skill: Skill) -> Samples:
        """Return the measurements of a skill. A new skill gets one pass over the items."""
        if skill.hash not in self._samples:
            self._samples[skill.hash] = await self.sampler.samples(skill, self.items)
        return self._samples[skill.hash]

    def make_incumbent(self, skill: Skill, samples: Samples) -> bool:
        """Make a skill the incumbent. True when it is the best so far."""
        self._samples[skill.hash] = samples
        self._incumbents[skill.hash] = self._incumbent = skill
        covered = samples.coverage >= self.config.evaluation.coverage_floor
        if not covered or samples.score <= self.best_score + TOLERANCE:
            return False
        self._best = skill
        return True

    async def compose(self) -> list[Skill]:
        """Return the best skill, then the other incumbents, latest first; not the initial skill."""
        ranked = {skill.hash: skill for skill in [self.best, *reversed(self._incumbents.values())]}
        return [skill for key, skill in ranked.items() if key != self.initial.hash]

    def composition(self, skill: Skill) -> Composition:
        return Composition()

    def effects(self) -> tuple[EditEffect, ...]:
        return ()

    def steer(self, action: EditAction, key: str, text: str = "") -> None:
        raise InputError("This gate has no pool of edits.")

    def samples_of(self, skill: Skill) -> Samples:
        """Return the measurements of a skill. Raises NotMeasured where `record` would roll out."""
        if skill.hash not in self._samples:
            raise NotMeasured(skill)
        return self._samples[skill.hash]

    def tally(self, skill: Skill) -> Tally:
        return self.samples_of(skill).tally()

    def noise(self) -> float | None:
        values: dict[str, list[float]] = {}
        for key, samples in self._samples.items():
            for item in samples.scores:
                values[f"{key}/{item}"] = samples.values(item)
        return within_item_variance(values)


class StrictGate(BaseGate):
    """Accept a candidate if and only if its mean on the selection items is strictly above the
    incumbent's recorded score. Ties are rejected.

    One pass per skill, kept for the whole run. With `use_gate` off every candidate is accepted,
    still measured, and the best one kept.
    """

    def decide(self, new: Samples, old: Samples) -> Ruling:
        # On items scored under both; with nothing failed this is the difference of the two means.
        difference = mean(list(new.against(old).values()))
        if difference > TOLERANCE:
            return Ruling("accept", f"mean {difference:+.4f} above the incumbent")
        return Ruling("reject", f"mean {difference:+.4f}: not strictly above the incumbent")


def has_rule(gate: BaseGate) -> bool:
    """Return whether a gate defines `decide`, or overrides `judge` or `begin`, which call it."""
    return any(
        getattr(getattr(gate, name), "__func__", None) is not getattr(BaseGate, name)
        for name in ("decide", "judge", "begin")
    )


def after_baseline(value: T | None) -> T:
    """Return a value that `baseline` sets. Raises RuntimeError while it is not set."""
    if value is None:
        raise RuntimeError("The gate has no baseline yet: call baseline() first.")
    return value


@dataclass(frozen=True, slots=True)
class _LaterJudgement:
    """Measures and decides once the candidate is known."""

    gate: BaseGate
    origin: Origin

    @property
    def running(self) -> None:
        return None

    @property
    def started(self) -> int:
        return 0

    async def decide(
        self, candidate: Candidate | None, training: Sequence[Observation] = ()
    ) -> Verdict | None:
        if candidate is None:
            return None
        before = self.gate.incumbent
        verdict = await self.gate.judge(self.origin.name, candidate, training)
        if not isinstance(verdict, Verdict):
            raise WrongResult(self.gate, "judge", verdict, "a Verdict")
        if verdict.winner.hash != self.gate.incumbent.hash:  # a subclass's `judge` need not do it
            self.gate.make_incumbent(verdict.winner, await self.gate.record(verdict.winner))
        self.gate.comes_from(self.origin, before)
        return verdict


def _comparison(
    candidate: Candidate, new: Samples, old: Samples, decision: Decision
) -> CandidateComparison:
    differences = list(new.against(old).values())
    return CandidateComparison(
        label=candidate.label,
        skill_hash=candidate.skill.hash,
        items=len(differences),
        rollouts=new.planned,
        score=new.score,
        difference=mean(differences),
        probability=believe(differences).probability,
        result="winner" if decision == "accept" else "rejected",
    )
