"""Measure skills without training: `skillfit eval` and `skillfit ablate`.

`evaluate` measures any number of skills on a split, with repeats. `ablate` finds out which parts of
a skill raise the score: rollouts run under the skill without a random subset of its units, and some
under the whole skill (`ablation_plan.py`). One regression over all of them estimates the effect of
each unit, a second one the score of the whole skill.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from pathlib import Path
from statistics import mean

from skillfit.config.schema import EvaluationSection
from skillfit.errors import InfrastructureError, InputError
from skillfit.gate import Arm, Candidate
from skillfit.gate.local_effects import TypedItems, local_effects
from skillfit.gate.pool import Pool, is_harmless
from skillfit.gate.regression import (
    ColumnKind,
    Family,
    PossibleChange,
    Posterior,
    Scales,
    SelectionItems,
    TrialTable,
    fit,
)
from skillfit.gate.samples import (
    ALPHA,
    Sampler,
    Samples,
    believe,
    item_differences,
    pair_differences,
    paired_evidence,
    savings,
)
from skillfit.gate.ship import loss_p_value
from skillfit.intervals import Interval, interval, weighted_values
from skillfit.plain_text import quantity
from skillfit.rollout import Outcome, RolloutEngine, RolloutRequest, Tally, gather, requests_for
from skillfit.rollout.outcome import raise_if_skipped
from skillfit.run.budget import Budget, BudgetReached
from skillfit.run.control import Control, Interrupted
from skillfit.run.directory import (
    Identity,
    RunDirectory,
    models_identity,
)
from skillfit.run.events import (
    AblationFinished,
    ItemsRead,
    RolloutFinished,
    RunStarted,
    SkillsMeasured,
    Stored,
)
from skillfit.run.journal import ROLLOUTS
from skillfit.run.records import KindEffect, MeasuredScore, UnitWorth
from skillfit.skill import Skill, estimate_tokens
from skillfit.skill.parts import ONLY_BODY, changed_parts, part_texts
from skillfit.skill.units import Granularity, Unit, units_of_parts, without_units
from skillfit.tasks.item import Item, Score, weights_of
from skillfit.tasks.splits import split_named
from skillfit.tasks.task import Task
from skillfit.training.ablation_plan import AblationPlan, PlannedRollout
from skillfit.training.assemble import Listener, open_engine
from skillfit.training.inputs import Inputs, item_records, refuse_run_inside_skill
from skillfit.training.schedule import (
    MOST_AT_ONCE,
    refuse_endless,
    shown_count,
)
from skillfit.training.state import StepLog
from skillfit.training.user_parts import gate_settings

COSTS = ("tokens", "turns", "seconds")


@dataclass(frozen=True, slots=True)
class Measured:
    """One skill on one split. Item means are averaged over repeats first, so that repeats do not
    count as items.
    """

    name: str
    skill: Skill
    items: tuple[Item, ...]
    outcomes: tuple[Outcome, ...]  # all items of the first repeat, then of the next
    recorded: int = 0  # outcomes that an earlier call measured
    recorded_at: float | None = None  # when the oldest of those was measured

    @property
    def tally(self) -> Tally:
        return Tally.of(self.outcomes, weights_of(self.items))

    @property
    def means(self) -> dict[str, float]:
        """Item id -> its mean hard score, for items that were scored."""
        return {item: mean(scores) for item, scores in self._scores.items()}

    @property
    def tokens(self) -> dict[str, float]:
        """Item id -> the mean tokens of its scored rollouts."""
        return {item: mean(counts) for item, counts in self._tokens.items()}

    @property
    def _scores(self) -> dict[str, list[float]]:
        return self._by_item(lambda outcome, score: score.hard)

    @property
    def _tokens(self) -> dict[str, list[float]]:
        return self._by_item(lambda outcome, score: outcome.usage.tokens)

    def _by_item(self, value: Callable[[Outcome, Score], float]) -> dict[str, list[float]]:
        """Return a number of each scored rollout, by item."""
        values: dict[str, list[float]] = {}
        for outcome in self.outcomes:
            if outcome.score is not None:
                values.setdefault(outcome.item_id, []).append(value(outcome, outcome.score))
        return values

    @property
    def has_score(self) -> bool:
        """False where every rollout failed."""
        return any(outcome.score is not None for outcome in self.outcomes)

    @property
    def interval(self) -> Interval:
        """The score with its 90 % interval. Raises where every rollout failed."""
        self.refuse_without_score()
        return interval(list(weighted_values(self.means, weights_of(self.items)).values()))

    @property
    def score(self) -> float:
        """The mean hard score over the items. Raises where every rollout failed."""
        self.refuse_without_score()
        return self.tally.hard

    def refuse_without_score(self) -> None:
        if not self.has_score:
            cause = next((one.failure.message for one in self.outcomes if one.failure), "")
            raise InfrastructureError(f"No rollout of {self.name} was scored. {cause}".strip())

    @property
    def record(self) -> MeasuredScore:
        """The score as the log of a run keeps it."""
        tally = self.tally
        bounds = self.interval if self.has_score else Interval(0.0, 0.0, 1.0)
        return MeasuredScore(
            name=self.name,
            skill_hash=self.skill.hash,
            hard=tally.hard,
            soft=tally.soft,
            low=max(0.0, bounds.low),
            high=min(1.0, bounds.high),
            scored=tally.scored,
            planned=tally.planned,
        )

    @property
    def costs(self) -> dict[str, float]:
        """Return the mean tokens, turns of the agent and seconds of a scored rollout."""
        scored = [one for one in self.outcomes if one.score is not None]
        rows = [(one.usage.tokens, turns_of(one), one.seconds) for one in scored]
        return {
            name: mean(column) for name, column in zip(COSTS, zip(*rows, strict=True), strict=False)
        }

    def cheaper_than(self, other: Measured, margin: float) -> bool:
        """Return whether the skill takes clearly fewer tokens than the other, and a loss of score
        of `margin` is excluded.
        """
        saved = list(savings(self._tokens, other._tokens).values())
        differences = pair_differences(self._scores, other._scores)
        saves = bool(saved) and interval(saved).low > 0
        return saves and loss_p_value(differences, margin) <= ALPHA

    def against(self, other: Measured) -> Interval | None:
        """Return the gain over another skill, paired by item; None if no item has both scores."""
        shared = item_differences(self.means, other.means)
        weights = weights_of(self.items)
        return interval(list(weighted_values(shared, weights).values())) if shared else None

    @property
    def by_type(self) -> dict[str, Tally]:
        types = {item.id: item.type or "all" for item in self.items}
        weights = weights_of(self.items)
        outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)
        for outcome in self.outcomes:
            outcomes[types[outcome.item_id]].append(outcome)
        return {kind: Tally.of(outcomes[kind], weights) for kind in sorted(set(types.values()))}


def turns_of(outcome: Outcome) -> int:
    """Return how many messages the agent wrote; 1 where its steps are not known."""
    steps = outcome.attempt.steps if outcome.attempt else ()
    return sum(step.role == "assistant" and step.kind == "message" for step in steps) or 1


async def evaluate_skills(
    inputs: Inputs,
    skills: Mapping[str, Skill],
    path: Path,
    *,
    split: str = "selection",
    only: Collection[str] | None = None,
    repeats: int = 1,
    series: str = "evaluate",
    force_new: bool = False,
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
    budgets: list[Budget] | None = None,
) -> list[Measured]:
    """Roll out each skill on the split's items; `only` names some of them. What is recorded in the
    run directory `path` is not paid for again; `force_new` moves it aside and measures again. A
    command that evaluates several times hands each call its one list of `budgets`.
    """
    refuse_run_inside_skill(inputs.config.env.skill, path, force_new=force_new)
    inputs.refuse_template()
    if not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats is {repeats!r}, but each item needs at least one rollout.")
    items = items_of_split(inputs.task, split)
    if only is not None:
        items = tuple(item for item in items if item.id in only)
    refuse_endless(
        f"repeats: {shown_count(repeats)} with {quantity(len(items), 'item')} and "
        f"{quantity(len(skills), 'skill')} gives",
        repeats * len(items) * len(skills),
        "rollouts",
        most=MOST_AT_ONCE,
        hint="Use fewer repeats, or measure fewer skills or items at a time.",
    )
    replayed = _Replayed()
    with RunDirectory.open(path, _evaluation_identity(inputs), force_new=force_new) as run:
        async with open_engine(inputs, run, [replayed, *listeners], control, budgets) as engine:
            first, splits = next(iter(skills.values())), {split: len(items)}
            run.events.emit(RunStarted.of(run.run_id, inputs.config, first, splits))
            run.events.emit(ItemsRead(items=item_records(inputs.task)))
            found = await gather(
                engine.run(
                    requests_for(skill, items, range(repeats)), stage="evaluate", series=series
                )
                for skill in skills.values()
            )
            if any(outcome.status == "skipped" for outcomes in found for outcome in outcomes):
                raise Interrupted
            measured = [
                Measured(name, skill, items, tuple(outcomes), *replayed.of(skill))
                for (name, skill), outcomes in zip(skills.items(), found, strict=True)
            ]
            bare = next((one for one in measured if one.skill.absent), None)
            scores = [
                replace(one.record, over_no_skill=one.against(bare))
                if bare is not None and one is not bare
                else one.record
                for one in measured
            ]
            run.events.emit(SkillsMeasured(split=split, repeats=repeats, scores=scores))
            return measured


class _Replayed:
    """A listener that notes which rollouts were recorded before, and when."""

    def __init__(self) -> None:
        self._begun = time.time()
        self._times: defaultdict[str, dict[str, float]] = defaultdict(dict)

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, RolloutFinished) and stored.at < self._begun:
            self._times[stored.event.skill_hash][stored.event.rollout] = stored.at

    def of(self, skill: Skill) -> tuple[int, float | None]:
        """Return the number of earlier rollouts under the skill, and the time of the oldest."""
        times = self._times[skill.hash]
        return len(times), min(times.values(), default=None)


def _evaluation_identity(inputs: Inputs) -> Identity:
    """Return how answers are made and graded. Items, splits, skills and repeats may change, because
    each rollout is recorded separately.
    """
    config, env, task = inputs.config, inputs.config.env, inputs.task
    return {
        "kind": "evaluation",
        "model": {
            name: found
            for name, found in models_identity(config.model).items()
            if name != "optimizer"
        },
        "env": {
            "agent": env.agent,
            "prompt": env.prompt,
            "max_turns": env.max_turns,
            "max_rollout_tokens": env.max_rollout_tokens,
            "network": env.network,
        },
        "corpus": inputs.corpus_hash,
        "seed": config.train.seed,
        "agent": inputs.agent.describe() if inputs.agent else None,
        "grader": task.grader.describe() if task.grader else None,
        "evaluator": task.evaluator.describe() if task.evaluator else None,
    }


def _ablation_identity(inputs: Inputs, by: Granularity) -> Identity:
    parts = inputs.config.optimizer.parts
    return {
        **_evaluation_identity(inputs),
        "kind": "ablation",
        "model": models_identity(inputs.config.model),
        "skill": inputs.skill.hash,
        "by": by,
        **({"parts": list(parts)} if parts != ONLY_BODY else {}),
    }


def items_of_split(task: Task, split: str) -> tuple[Item, ...]:
    """Return the items of a split, or of all splits; a split without items is an error."""
    if split == "all":
        used = {item.id for items in (task.train, task.selection, task.test) for item in items}
        return tuple(item for item in task.items if item.id in used)
    split = split_named(split, "all")
    items = {"train": task.train, "selection": task.selection, "test": task.test}[split]
    if not items:
        raise InputError(
            f"The {split} split is empty.", hint="Change env.split_ratio, or choose another split."
        )
    return items


ABLATE = "ablate"  # the series of these rollouts in the journal
PER_UNIT = 12  # rollouts per unit where the user names no number
FEWEST, MOST = 120, 1_200
MOST_ABLATION_ROLLOUTS = 100_000  # one regression holds them all
# The prior of what a line is worth, in log-odds or points. Lines that a person wrote may matter far
# more than one of many proposed edits.
UNIT_SCALE: Mapping[Family, float] = {"logistic": 1.5, "linear": 0.3}
SOME_LEFT_OUT = "any"  # the column of all rollouts that run without at least one unit
NO_LOSS = 0.01  # points: a smaller loss counts as none
CHECK_PASSES = 2  # rollouts of each item under each skill in the comparison before a cut


@dataclass(frozen=True, slots=True)
class Ablation:
    """What was found, and the skill without the parts that can be cut."""

    event: AblationFinished
    shorter: Skill | None  # None: nothing can be cut


def default_rollouts(count: int) -> int:
    """Return how many rollouts `ablate` spends on `count` units when the user names no number."""
    return min(MOST, max(FEWEST, PER_UNIT * count))


async def ablate_skill(
    inputs: Inputs,
    path: Path,
    *,
    rollouts: int | None = None,
    by: Granularity = "line",
    check: bool = False,
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
) -> Ablation:
    """Measure every unit of the skill. With `check`, compare the shorter skill with the whole one
    on fresh rollouts. What is recorded in the run directory `path` is not paid for again.
    """
    refuse_run_inside_skill(inputs.config.env.skill, path)
    parts = units_of_parts(inputs.skill, by, inputs.config.optimizer.parts)
    if not parts:
        raise InputError(
            "The skill has no part that could be left out.",
            hint="Headings, frontmatter and protected text always stay.",
        )
    items = (*inputs.task.train, *inputs.task.selection)
    if not items:
        raise InputError(
            "The train and selection splits are empty.", hint="Add items or change env.split_ratio."
        )
    total = rollouts or default_rollouts(len(parts))
    refuse_endless(
        "This ablation would take",
        total,
        "rollouts",
        most=MOST_ABLATION_ROLLOUTS,
        hint="Use a smaller number for --rollouts.",
    )
    with RunDirectory.open(path, _ablation_identity(inputs, by)) as run:
        async with open_engine(inputs, run, listeners, control) as engine:
            splits = {"selection": len(items)}
            run.events.emit(RunStarted.of(run.run_id, inputs.config, inputs.skill, splits))
            work = AblationRollouts(inputs, engine, run, parts, items)
            recorded = run.journal.count(f"{ROLLOUTS}{ABLATE}/")  # of an earlier call, paid for
            await work.roll_out(total if rollouts else max(total, recorded))
            found = work.measured()
            if check and found.shorter is not None:
                found = await work.checked(found, found.shorter)
            run.events.emit(found.event)
            return found


class AblationRollouts:
    """One ablation: rollouts in rounds over the items, then the fit."""

    def __init__(
        self,
        inputs: Inputs,
        engine: RolloutEngine,
        run: RunDirectory,
        parts: Sequence[Unit],
        items: Sequence[Item],
    ) -> None:
        self._engine, self._run, self._items = engine, run, list(items)
        self._skill = inputs.skill
        self._settings = gate_settings(inputs.config, inputs.task)
        self._pool = Pool(inputs.skill)
        edits = tuple(unit.removal for unit in parts)
        joined = self._pool.join(Candidate(inputs.skill, edits, removes_initial_text=True))
        self._units = dict(zip((edit.id for edit in joined), parts, strict=True))
        self._trials = TrialTable()
        self._without: Counter[str] = Counter()  # scored rollouts without a unit
        self._scored = 0
        self._highest = 0.0  # score of a rollout

    async def roll_out(self, total: int) -> None:
        """Make `total` rollouts, in rounds that use each item once. A reached budget ends them
        early.
        """
        plan = AblationPlan(self._settings.config.train.seed, self._pool, self._items)
        rounds = ceil(total / len(self._items))
        with StepLog(self._run.events.emit).stage("ablate", total):
            for number, planned in enumerate(islice(plan.rounds(), rounds)):
                left = total - number * len(self._items)
                try:
                    await self._round(number, planned[:left])
                except BudgetReached:
                    if not self._scored:
                        raise
                    return

    async def _round(self, number: int, planned: Sequence[PlannedRollout]) -> None:
        requests = [RolloutRequest(each.arm, each.item, number) for each in planned]
        outcomes = await self._engine.run(requests, stage="ablate", series=ABLATE)
        raise_if_skipped(outcomes)
        for request, outcome in zip(requests, outcomes, strict=True):
            self._observe(request.arm, outcome)

    def _observe(self, arm: Arm, outcome: Outcome) -> None:
        if outcome.score is None:
            return
        value = self._settings.config.evaluation.value(outcome.score.hard, outcome.score.soft)
        self._trials.add(outcome.item_id, arm.edits, value)
        self._without.update(arm.edits)
        self._scored += 1
        self._highest = max(self._highest, value)

    def measured(self) -> Ablation:
        """Return the worth of every unit, from all rollouts, and the skill without those that can
        be cut. A skill that would be empty is not handed back.
        """
        binary = self._settings.config.evaluation.gate_metric == "hard"
        family: Family = "logistic" if binary else "linear"
        posterior = self._fit(family)
        selection = SelectionItems.of([item.id for item in self._items], weights_of(self._items))
        kinds = self._kinds(posterior, selection)
        worths = [
            replace(self._worth(key, unit, posterior, selection), kinds=kinds.get(key, ()))
            for key, unit in self._units.items()
        ]
        cut = [
            unit
            for unit, worth in zip(self._units.values(), worths, strict=True)
            if worth.decision == "cut"
        ]
        shorter = without_units(self._skill, cut) if cut else None
        event = AblationFinished(
            units=worths,
            rollouts=self._scored,
            score=selection.score(self._fit(family, whole_apart=True), []),
            tokens_before=self._tokens(self._skill),
            tokens_after=self._tokens(shorter or self._skill),
            shorter_skill=shorter.text if shorter else "",
            shorter_files=changed_parts(shorter or self._skill, self._skill),
            all_zero=self._highest <= 0,
        )
        return Ablation(event, shorter if event.shorter_skill else None)

    def _tokens(self, skill: Skill) -> int:
        """Return the tokens of the document, and of the other files whose text is measured."""
        measured = {unit.file for unit in self._units.values()}
        files = [text for name, text in part_texts(skill).items() if name in measured]
        return skill.tokens + sum(map(estimate_tokens, files))

    def _fit(self, family: Family, *, whole_apart: bool = False) -> Posterior:
        """Estimate the effect of each removal. With `whole_apart` one more column is on wherever
        something is left out. Then the rollouts under the whole skill decide its score; the others
        only say how difficult each item is. Without it the score would be extrapolated from the
        effects, which is too low where units work only together.
        """
        columns = [key for key in self._pool.edits if self._without[key]]
        kinds: dict[str, ColumnKind] = dict.fromkeys(columns, "removal")
        rows = self._trials.rows()
        if whole_apart:
            columns, kinds = [SOME_LEFT_OUT, *columns], {SOME_LEFT_OUT: "base", **kinds}
            rows = [
                replace(row, edits=(SOME_LEFT_OUT, *row.edits)) if row.edits else row
                for row in rows
            ]
        first = replace(Scales.first(family), removal_sd=UNIT_SCALE[family])
        return fit(rows, columns, family=family, kinds=kinds, first=first)

    def _kinds(
        self, posterior: Posterior, selection: SelectionItems
    ) -> dict[str, tuple[KindEffect, ...]]:
        """Return for each unit the types of items that it is worth most on."""
        types = {item.id: item.type for item in self._items}
        typed = TypedItems.of(selection.items, types, weights_of(self._items))
        keys = list(posterior.columns)
        removals = [PossibleChange({key: 1.0}, present=False) for key in keys]
        found = local_effects(self._trials.rows(), posterior, typed, [], removals)
        return {key: tuple(-kind for kind in kinds) for key, kinds in zip(keys, found, strict=True)}

    def _worth(
        self, key: str, unit: Unit, posterior: Posterior, selection: SelectionItems
    ) -> UnitWorth:
        count = self._without[key]
        place = (unit.id, unit.start, unit.end, unit.text, unit.tokens)
        if not count:
            return UnitWorth(
                *place,
                mean=0.0,
                low=-1.0,
                high=1.0,
                probability=0.5,
                rollouts=0,
                decision="unsure",
                file=unit.file,
            )
        removal = selection.removal(posterior, key, count)
        # Where nothing is ever solved, no part can show what it is worth.
        cut = is_harmless(removal) and self._highest > 0
        keep = -removal.high > 0
        return UnitWorth(
            *place,
            mean=-removal.mean,
            low=-removal.high,
            high=-removal.low,
            probability=round(1 - removal.probability, 9),
            rollouts=count,
            decision="cut" if cut else "keep" if keep else "unsure",
            file=unit.file,
        )

    async def checked(self, found: Ablation, shorter: Skill) -> Ablation:
        """Compare the shorter skill with the whole one on fresh rollouts, and keep it only if it is
        not worse.
        """

        async def measure(
            arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
        ) -> list[Outcome]:
            requests = [RolloutRequest(arm, item, repeat) for arm, item in arms]
            outcomes = await self._engine.run(requests, stage="compare", series=series)
            raise_if_skipped(outcomes)
            return outcomes

        sampler = Sampler(measure, "ablate-check", self._settings)
        with StepLog(self._run.events.emit).stage("compare", 4 * len(self._items)):
            old = await sampler.samples(self._skill, self._items, CHECK_PASSES)
            new = await sampler.samples(shorter, self._items, CHECK_PASSES)
        evidence = paired_evidence(
            new, old, rollouts=sampler.rollouts, coverage=sampler.scored / max(1, sampler.rollouts)
        )
        holds = _not_worse(new, old, self._settings.config.evaluation)
        event = replace(found.event, comparison=evidence, holds=holds)
        return Ablation(event, shorter if holds else None)


def _not_worse(new: Samples, old: Samples, evaluation: EvaluationSection) -> bool:
    """Return whether a loss of more than NO_LOSS is less likely than not, on enough scored
    rollouts. With `objective: cheaper`, return whether a loss of the margin is excluded.
    """
    if min(new.coverage, old.coverage) < evaluation.coverage_floor:
        return False
    if evaluation.objective == "cheaper":
        differences = pair_differences(new.by_item, old.by_item)
        return loss_p_value(differences, evaluation.margin) <= ALPHA
    belief = believe(new.against(old).values())
    return belief.items > 0 and belief.mean > -NO_LOSS
