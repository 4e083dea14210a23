"""How far the figures of a run can be trusted: calibration of the intervals, runs in which nothing
helps (A/A), the ship test on equal and on different skills, and the time of one fit.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.gate.kept import NOTHING_KEPT, Kept
from bench.gate.play import START, Plan, played, screened
from bench.gate.settings import gate_settings
from bench.gate.world import Setting, World
from skillfit.gate import (
    Candidate,
    GateSettings,
    Observation,
    ScreeningGate,
    Verdict,
    ship_test,
)
from skillfit.gate.regression import TrialTable, fit
from skillfit.gate.screening import ScreeningJudgement
from skillfit.skill import apply_edits

ROOMY = 10**9  # rollouts: no limit
SHIP_PASSES = 3  # rollouts of an item under each skill in the ship test, at the most


@dataclass(frozen=True, slots=True)
class Calibrated:
    """How often 80 % intervals of edit effects contain the true effect. Every edit counts once,
    with the last interval that the run gave it.
    """

    setting: str
    edits: int
    selection: float  # share that contains the true effect on the selection items
    population: float  # share that contains the true effect on the population
    above: float  # share of true effects (selection items) above the interval
    below: float
    width: float  # mean width in points
    runs: int


@dataclass(frozen=True, slots=True)
class _Interval:
    incumbent: tuple[str, ...]  # edits of the incumbent that the effect refers to
    low: float
    high: float


class _Watched(ScreeningGate):
    """A screening gate that keeps the last interval of every edit."""

    def __init__(self, world: World, settings: GateSettings) -> None:
        super().__init__(world, world.items, settings)
        self._dropped: set[str] = set()
        self.last: dict[str, _Interval] = {}

    async def decide_judgement(
        self,
        judgement: ScreeningJudgement,
        candidate: Candidate | None,
        training: Sequence[Observation],
    ) -> Verdict | None:
        verdict = await super().decide_judgement(judgement, candidate, training)
        incumbent = self.pool.incumbent.edits
        for effect in verdict.effects if verdict is not None else ():
            if effect.mean is not None and effect.id not in self._dropped:
                self.last[effect.id] = _Interval(incumbent, effect.low, effect.high)
            if effect.status == "dropped":
                self._dropped.add(effect.id)
        return verdict

    def truth(self, world: World, key: str, part: str) -> float:
        """The true effect of an edit on the incumbent of its last interval."""
        others = [one for one in self.last[key].incumbent if one != key]
        with_it, without = self.pool.apply([*others, key]), self.pool.apply(others)
        return world.true_score(with_it.skill, part) - world.true_score(without.skill, part)


@dataclass(frozen=True, slots=True)
class _Held:
    """One run: per edit, whether its last interval contains the true effect, and how wide it is."""

    selection: list[bool]
    population: list[bool]
    above: list[bool]
    below: list[bool]
    widths: list[float]


def calibrate(
    setting: Setting, runs: int, first_seed: int, kept: Kept = NOTHING_KEPT
) -> Calibrated:
    seeds = range(first_seed, first_seed + runs)
    held = [
        kept.get(_Held, ("held", setting, seed), partial(_hold, setting, seed)) for seed in seeds
    ]

    def share(name: str) -> float:
        return statistics.fmean(value for run in held for value in getattr(run, name))

    return Calibrated(
        setting=setting.name,
        edits=sum(len(run.widths) for run in held),
        selection=share("selection"),
        population=share("population"),
        above=share("above"),
        below=share("below"),
        width=share("widths"),
        runs=runs,
    )


def _hold(setting: Setting, seed: int) -> _Held:
    world = World(setting, seed)
    settings = gate_settings(setting, seed)
    gate = _Watched(world, settings)
    asyncio.run(screened(world, gate, Plan()))
    held = _Held([], [], [], [], [])
    for key, last in gate.last.items():
        here, there = (gate.truth(world, key, part) for part in ("selection", "population"))
        held.selection.append(last.low <= here <= last.high)
        held.population.append(last.low <= there <= last.high)
        held.above.append(here > last.high)
        held.below.append(here < last.low)
        held.widths.append(last.high - last.low)
    return held


@dataclass(frozen=True, slots=True)
class Null:
    """Whole screening runs in which no edit helps."""

    setting: str
    shipped: float  # share of runs called improved
    few_lines: float  # share of runs that hand back at most three lines
    harmful: float  # harmful edits handed back per run
    candidates: float  # lines in the skill that went into the ship test
    runs: int


@dataclass(frozen=True, slots=True)
class _HandedBack:
    """One run in which nothing helps."""

    improved: bool
    edits: int  # lines handed back
    harmful: int
    candidates: int


def run_null(setting: Setting, runs: int, first_seed: int, kept: Kept = NOTHING_KEPT) -> Null:
    seeds = range(first_seed, first_seed + runs)
    found = [
        kept.get(_HandedBack, ("null", setting, seed), partial(_hand_back, setting, seed))
        for seed in seeds
    ]
    return Null(
        setting.name,
        statistics.fmean(run.improved for run in found),
        statistics.fmean(run.edits <= 3 for run in found),
        statistics.fmean(run.harmful for run in found),
        statistics.fmean(run.candidates for run in found),
        runs,
    )


def _hand_back(setting: Setting, seed: int) -> _HandedBack:
    world = World(setting, seed)
    settings = gate_settings(setting, seed)
    gate = ScreeningGate(world, world.items, settings)
    asyncio.run(screened(world, gate, Plan()))
    finalists = asyncio.run(gate.compose())[:1]
    world.setting = replace(setting, rollouts=ROOMY)
    pairs = SHIP_PASSES * len(world.items)
    result = asyncio.run(ship_test(world, world.items, START, finalists, settings, pairs=pairs))
    improved = result.verdict == "improved"
    handed_back = played(world, finalists[0] if improved else START, 0, 0.0)
    candidates = len(world.rules(finalists[0])) if finalists else 0
    return _HandedBack(improved, handed_back.edits, handed_back.harmful, candidates)


@dataclass(frozen=True, slots=True)
class Shipped:
    setting: str
    effect: float  # true mean difference of the finalist
    improved: float  # share of runs that were called improved
    runs: int


def ship(setting: Setting, effect: float, finalists: int, runs: int, first_seed: int) -> Shipped:
    """The share of ship tests that say improved. Effect 0: the finalists differ from the initial
    skill in words only.
    """
    called, true = 0, 0.0
    for seed in range(first_seed, first_seed + runs):
        world = World(replace(setting, rollouts=ROOMY), seed)
        edits = [world.planted(effect) for _ in range(finalists)]
        skills = [apply_edits(START, [edit]).skill for edit in edits]
        true += world.true_score(skills[0]) - world.true_score(START)
        settings = gate_settings(setting, seed)
        pairs = SHIP_PASSES * len(world.items)
        result = asyncio.run(ship_test(world, world.items, START, skills, settings, pairs=pairs))
        called += result.verdict == "improved"
    name = f"{setting.name}, {finalists} finalist{'s' * (finalists > 1)}"
    return Shipped(name, true / runs, called / runs, runs)


@dataclass(frozen=True, slots=True)
class Timed:
    """One fit of a long run."""

    edits: int
    rollouts: int
    subsets: int
    seconds: float  # of CPU time, best of three; the fit runs on one thread
    cold_seconds: float  # without the last fit to start from


def time_fit(steps: int = 125, per_step: int = 4, items: int = 100, training: int = 60) -> Timed:
    """500 edits and 20,000 rollouts as a long run leaves them behind: 60 edits pending at a time, a
    quarter of them promoted in the end, 16 subsets per stage.
    """
    rng = random.Random(0)
    table, edits = TrialTable(), list[str]()
    pending, promoted = list[str](), list[str]()
    for step in range(steps):
        new = [f"s{step:04d}e{number:02d}" for number in range(per_step)]
        edits += new
        pending += new
        for prefix, count in (("i", items), ("t", training)):
            subsets = [_subset(rng, pending, promoted) for _ in range(16)]
            for at in range(count):
                number = at if prefix == "i" else (step * training + at) % 320
                table.add(f"{prefix}{number}", rng.choice(subsets), float(rng.random() < 0.5))
        while len(pending) > 60:
            oldest = pending.pop(0)
            if rng.random() < 0.25:
                promoted.append(oldest)
    rows = table.rows()
    started = time.process_time()
    posterior = fit(rows, edits)
    cold = time.process_time() - started
    seconds = []
    for _ in range(3):
        started = time.process_time()
        posterior = fit(rows, edits, start=posterior)
        seconds.append(time.process_time() - started)
    rollouts = sum(row.count for row in rows)
    return Timed(len(edits), rollouts, len({row.edits for row in rows}), min(seconds), cold)


def _subset(rng: random.Random, pending: Sequence[str], promoted: Sequence[str]) -> list[str]:
    on = [edit for edit in pending if rng.random() < 0.5]
    return on + [edit for edit in promoted if rng.random() < 0.95]
