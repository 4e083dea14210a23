"""Compare ways to get a skill at equal rollouts, on the user's own tasks and models.

Every way gets the same number of rollouts to find a skill. Then all skills are measured on the same
rollouts of the test split, which count for none of them. All runs are in one folder: the same call
continues there, and nothing that is paid for is paid again. Caps hold for all runs together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Protocol

from skillfit.api import Run
from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.gate.samples import item_differences
from skillfit.intervals import Interval, interval, weighted_values
from skillfit.plain_text import quantity
from skillfit.plugins.compare.peers import Peer, PeerFailed, PeerResult
from skillfit.plugins.compare.ways import Training, Way
from skillfit.run.budget import BudgetReached
from skillfit.run.directory import RunDirectory
from skillfit.run.journal import Bill
from skillfit.run.store import JOURNAL
from skillfit.skill import NO_SKILL, Skill
from skillfit.skill.parts import with_trained
from skillfit.tasks.item import Item, weights_of
from skillfit.training.inputs import Inputs
from skillfit.training.measure import Measured, items_of_split
from skillfit.training.start import TrainingResult
from skillfit.training.user_parts import GivenParts

_CONTINUE = "Raise the budget and give the same command again: it continues from here."


class CapReached(SkillfitError):
    """A cap ended the comparison before its end."""

    exit_code = Exit.BUDGET


class MeasureSkills(Protocol):
    """Measures skills in a run directory."""

    def __call__(
        self,
        inputs: Inputs,
        skills: Mapping[str, Skill],
        path: Path,
        *,
        split: str,
        repeats: int,
        only: Sequence[str] | None = None,
    ) -> list[Measured]: ...


class MakeInputs(Protocol):
    """Reads the user's config with settings on top of it, and with parts of its own."""

    def __call__(self, settings: Sequence[str], given: GivenParts) -> Inputs: ...


class LetPeerFind(Protocol):
    """Lets another optimizer find a skill in a run directory."""

    def __call__(self, inputs: Inputs, peer: Peer, rollouts: int, path: Path) -> PeerResult: ...


@dataclass(frozen=True, slots=True)
class Effects:
    """What a comparison needs to run: where its inputs come from, and who trains and measures."""

    inputs: MakeInputs
    train: Callable[[Inputs, Path], TrainingResult]
    measure: MeasureSkills
    let_peer_find: LetPeerFind


@dataclass(frozen=True, slots=True)
class Cost:
    """What runs have used."""

    rollouts: int = 0
    optimizer_calls: int = 0
    tokens: int = 0
    usd: float | None = 0.0  # None: a price is unknown
    minutes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        known = self.usd is not None and other.usd is not None
        return Cost(
            self.rollouts + other.rollouts,
            self.optimizer_calls + other.optimizer_calls,
            self.tokens + other.tokens,
            (self.usd or 0.0) + (other.usd or 0.0) if known else None,
            self.minutes + other.minutes,
        )


@dataclass(frozen=True, slots=True)
class WayAttempt:
    """One way with one number of rollouts and one seed: the skill that it handed back."""

    way: Way
    rollouts: int  # that it might use
    seed: int
    skill: Skill
    cost: Cost
    finish_reasons: tuple[str, ...] = ()  # of its trainings
    measured: Measured | None = None  # on the test split

    @property
    def improved(self) -> bool:
        """Whether the way itself has shown that its skill is better."""
        return "improved" in self.finish_reasons


@dataclass(frozen=True, slots=True)
class WayRow:
    """A way with one number of rollouts, over all seeds."""

    way: Way
    rollouts: int
    attempts: tuple[WayAttempt, ...]
    score: Interval  # of the items' mean scores over all seeds
    gain: Interval | None  # over the initial skill, paired by item

    @property
    def scores(self) -> tuple[float, ...]:
        """The test score of every seed."""
        return tuple(one.measured.score for one in self.attempts if one.measured)

    @property
    def cost(self) -> Cost:
        """What an attempt has used, on average."""
        total, count = sum((one.cost for one in self.attempts), Cost()), len(self.attempts)
        return Cost(
            round(total.rollouts / count),
            round(total.optimizer_calls / count),
            round(total.tokens / count),
            None if total.usd is None else total.usd / count,
            total.minutes / count,
        )

    @property
    def skill_tokens(self) -> int:
        return round(mean(one.skill.tokens for one in self.attempts))

    @property
    def improved(self) -> int | None:
        """Attempts that showed an improvement; None for ways that test nothing."""
        tests = [one for one in self.attempts if one.way.proves]
        return sum(one.improved for one in tests) if tests else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, and what the test cost."""

    rows: tuple[WayRow, ...]
    items: int  # of the test split
    repeats: int
    test_cost: Cost
    left_out: tuple[str, ...] = ()  # ways that cannot use so few rollouts, or this config, and why
    failed: tuple[str, ...] = ()  # attempts of other optimizers without a skill, and why


def compare(
    effects: Effects,
    folder: Path,
    ways: Sequence[Way],
    rollouts: Sequence[int],
    seeds: Sequence[int],
    *,
    repeats: int,
    say: Callable[[str], None],
) -> Comparison:
    """Find a skill in every way, with every number of rollouts and seed, and measure all of them.

    Raises CapReached where a cap ends it; the same call continues under a higher cap.
    """
    runner = _Runner(effects, folder, say)
    planned, left_out = [], []
    for way in ways:
        for budget in rollouts if way.trains else (0,):
            try:  # nothing is spent yet
                if way.peer is not None:
                    way.peer.selection_items(budget, runner.base.available)
                for training in way.trainings(budget, runner.base.available):
                    effects.inputs(training.settings, training.parts)
            except InputError as error:  # the config itself is right: this way cannot use it
                reason = f"{error.message} {error.hint or ''}".strip()
                left_out.append(f"{way.name} with {quantity(budget, 'rollout')}: {reason}")
                continue
            planned += [(way, budget, seed) for seed in (seeds if way.trains else (0,))]
    items_of_split(runner.base.task, "test")
    attempts, failed = [], []
    for way, budget, seed in planned:
        try:
            attempts.append(runner.attempt(way, budget, seed))
        except PeerFailed as error:
            failed.append(f"{way.name} with {quantity(budget, 'rollout')}, seed {seed}: {error}")
            say(f"Failed: {failed[-1]}")
    if not attempts:
        raise PeerFailed(f"No way found a skill. {failed[0]}")
    measured, test_cost = runner.test(attempts, repeats)
    initial = next((one.measured for one in measured if one.way.name == "initial"), None)
    rows = tuple(_row(group, initial) for group in _grouped(measured).values())
    items = len(runner.base.task.test)
    return Comparison(rows, items, repeats, test_cost, tuple(left_out), tuple(failed))


def _grouped(attempts: Iterable[WayAttempt]) -> dict[tuple[str, int], list[WayAttempt]]:
    groups: defaultdict[tuple[str, int], list[WayAttempt]] = defaultdict(list)
    for one in attempts:
        groups[one.way.name, one.rollouts].append(one)
    return groups


def _row(attempts: Sequence[WayAttempt], initial: Measured | None) -> WayRow:
    first, measured = attempts[0], [one.measured for one in attempts if one.measured]
    for one in measured:
        one.refuse_without_score()
    items = measured[0].items
    means = _means_over_seeds(measured)
    gain = None
    if initial is not None and measured[0].skill.hash != initial.skill.hash:
        gain = interval(_weighted(item_differences(means, initial.means), items))
    score = interval(_weighted(means, items))
    bounded = Interval(score.mean, max(0.0, score.low), min(1.0, score.high))
    return WayRow(first.way, first.rollouts, tuple(attempts), bounded, gain)


def _means_over_seeds(measured: Sequence[Measured]) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for one in measured:
        for item, value in one.means.items():
            values[item].append(value)
    return {item: mean(found) for item, found in values.items()}


def _weighted(values: Mapping[str, float], items: Sequence[Item]) -> list[float]:
    return list(weighted_values(values, weights_of(items)).values())


@dataclass
class _Runner:
    """Runs attempts one after the other, each in a folder of its own, under common caps."""

    effects: Effects
    folder: Path
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.base = self.effects.inputs((), GivenParts())

    def attempt(self, way: Way, rollouts: int, seed: int) -> WayAttempt:
        """Return the skill that a way finds. What is on disk is not paid for again."""
        base = self.base
        if not way.trains:
            skill = NO_SKILL if way.name == "no-skill" else base.skill
            return WayAttempt(way, 0, seed, skill, Cost())
        place = self.folder / way.folder / f"{rollouts}" / f"seed_{seed}"
        if way.peer is not None:
            return self._of_peer(way, way.peer, rollouts, seed, place)
        trainings = way.trainings(rollouts, base.available)
        reasons, skills, cost = [], [], Cost()
        for number, training in enumerate(trainings):
            path = place / training.name
            self._say_start(way, rollouts, seed, path)
            # Rewrites of one attempt read different items.
            result = self._train(training, path, seed * len(trainings) + number)
            reasons.append(result.finish_reason)
            parts = base.config.optimizer.parts
            skills.append(with_trained(base.skill, Run.open(path).best_skill, parts))
            cost += _trained_cost(result)
        found = skills[0]
        if len(skills) > 1:
            found, choosing = self._choose(skills, way.choosing(rollouts, base.available), place)
            cost += choosing
        return WayAttempt(way, rollouts, seed, found, cost, tuple(reasons))

    def _say_start(self, way: Way, rollouts: int, seed: int, path: Path) -> None:
        self.say(f"{way.name}, {rollouts} rollouts, seed {seed}: {path}")

    def _of_peer(self, way: Way, peer: Peer, rollouts: int, seed: int, path: Path) -> WayAttempt:
        self._say_start(way, rollouts, seed, path)
        inputs = self._capped((f"train.seed={seed}", "budget.rollouts=null"), path)
        try:
            found = self.effects.let_peer_find(inputs, peer, rollouts, path)
        except BudgetReached as reached:
            raise CapReached(reached.message, hint=_CONTINUE) from reached
        bill, minutes = _spent(path)
        calls = sum(row.usage.calls for row in bill.rows if row.role == "optimizer")
        cost = Cost(found.rollouts, calls, bill.total.tokens, bill.total.usd, minutes)
        return WayAttempt(way, rollouts, seed, self.base.skill.with_body(found.body), cost)

    def _train(self, training: Training, path: Path, seed: int) -> TrainingResult:
        settings = (*training.settings, f"train.seed={seed}")
        inputs = self._capped(settings, path, training.parts)
        result = self.effects.train(inputs, path)
        if result.finish_reason == "budget":
            raise CapReached(result.diagnosis, hint=_CONTINUE)
        return result

    def _choose(self, skills: Sequence[Skill], rollouts: int, place: Path) -> tuple[Skill, Cost]:
        """Return the skill with the best mean on selection items; the first of equal ones."""
        path = place / "choose"
        inputs = self._capped((), path)
        each, items = rollouts // len(skills), [item.id for item in inputs.task.selection]
        if not each or not items:
            return skills[0], Cost()
        repeats = max(1, each // len(items))
        named = {str(number): skill for number, skill in enumerate(skills, 1)}
        measured = self.effects.measure(
            inputs, named, path, split="selection", repeats=repeats, only=items[:each]
        )
        scored = [one for one in measured if one.has_score]
        best = max(scored or measured, key=lambda one: (one.score, -int(one.name)))
        return best.skill, _measured_cost(measured, path)

    def test(self, attempts: Sequence[WayAttempt], repeats: int) -> tuple[list[WayAttempt], Cost]:
        """Measure all attempts on the test split. Attempts with the same skill share its
        rollouts.
        """
        path = self.folder / "test"
        inputs = self._capped((), path)
        names = [f"{one.way.name}/{one.rollouts}/{one.seed}" for one in attempts]
        skills = {name: one.skill for name, one in zip(names, attempts, strict=True)}
        self.say(f"Measuring {len({one.hash for one in skills.values()})} skills: {path}")
        measured = self.effects.measure(inputs, skills, path, split="test", repeats=repeats)
        by_name = {one.name: one for one in measured}
        tested = [
            replace(one, measured=by_name[name]) for name, one in zip(names, attempts, strict=True)
        ]
        distinct = list({one.skill.hash: one for one in measured}.values())
        return tested, _measured_cost(distinct, path)

    def _capped(
        self, settings: Sequence[str], path: Path, given: GivenParts | None = None
    ) -> Inputs:
        """Return the inputs of a run, capped by what the other runs have left."""
        caps = self.base.config.budget
        used = [_spent(run) for run in self._others(path)]
        left = {
            "usd": (caps.usd, sum(one.known_usd for one, _ in used)),
            "tokens": (caps.tokens, sum(one.total.tokens for one, _ in used)),
            "calls": (caps.calls, sum(one.total.calls for one, _ in used)),
            "minutes": (caps.minutes, sum(minutes for _, minutes in used)),
        }
        changed = []
        for name, (cap, spent) in left.items():
            if cap is None:
                continue
            if spent >= cap:
                raise CapReached(
                    f"All runs together have used budget.{name} ({cap:g}).", hint=_CONTINUE
                )
            changed.append(f"budget.{name}={cap - spent}")
        return self.effects.inputs((*settings, *changed), given or GivenParts())

    def _others(self, path: Path) -> Iterator[Path]:
        for journal in sorted(self.folder.rglob(JOURNAL)):
            if journal.parent != path:
                yield journal.parent


def _spent(run: Path) -> tuple[Bill, float]:
    """Return the bill of a run and its minutes."""
    with closing(RunDirectory.read(run)) as view:
        return view.journal.bill(), view.seconds / 60


def _trained_cost(result: TrainingResult) -> Cost:
    summary = result.summary
    optimizer = summary.usage_by_role.get("optimizer")
    return Cost(
        summary.rollouts.planned or 0,
        optimizer.calls if optimizer else 0,
        summary.usage.tokens,
        summary.usage.usd,
        summary.total_wall_time_s / 60,
    )


def _measured_cost(measured: Sequence[Measured], path: Path) -> Cost:
    bill, minutes = _spent(path)
    rollouts = sum(one.tally.planned for one in measured)
    return Cost(rollouts, 0, bill.total.tokens, bill.total.usd, minutes)
