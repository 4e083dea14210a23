"""True gain at equal rollouts: strict, the race and screening in the same worlds, with the same
edits; and what the choices of a screening run buy.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

from bench.gate.kept import NOTHING_KEPT, Kept
from bench.gate.play import (
    DEFAULT_PLAN,
    EDITS,
    START,
    Plan,
    Played,
    play_race,
    play_screening,
    play_strict,
)
from bench.gate.settings import gate_settings, setting
from bench.gate.world import Setting, World
from skillfit.gate import GateSettings

DEFAULTS = GateSettings()
Player = Callable[[World, GateSettings], Awaitable[Played]]


async def play_strict_all(world: World, settings: GateSettings) -> Played:
    return await play_strict(world, settings, patch=EDITS)


WAYS: dict[str, Player] = {
    "strict": play_strict,
    "strict, all edits": play_strict_all,
    "race": play_race,
    "screening": play_screening,
}


@dataclass(frozen=True, slots=True)
class Compared:
    """Means over runs in one setting."""

    setting: str
    rollouts: int
    runs: int
    ways: dict[str, dict[str, float]]  # way -> the fields of Played
    errors: dict[str, float]  # way -> standard error of the gain
    ratio: float  # gain of screening to the gain of the race
    ratio_error: float  # standard error, from the paired runs
    possible: float  # gain of a skill that solves every item


def play_all(
    world: Setting,
    player: Player,
    seeds: Sequence[int],
    subsets: int = DEFAULTS.subsets,
    kept: Kept = NOTHING_KEPT,
    name: str = "",
) -> list[Played]:
    """One run per seed. `name` says which player it is among the runs that are kept."""
    found = []
    for seed in seeds:
        settings = gate_settings(world, seed, subsets=subsets)
        key = ("played", name, world, seed, subsets)
        make = partial(_play, player, world, settings)
        found.append(kept.get(Played, key, make))
    return found


def _play(player: Player, world: Setting, settings: GateSettings) -> Played:
    async def play() -> Played:
        return await player(World(world, settings.config.train.seed), settings)

    return asyncio.run(play())


def means(runs: Sequence[Played]) -> dict[str, float]:
    return {
        field.name: statistics.fmean(getattr(run, field.name) for run in runs)
        for field in fields(Played)
    }


def error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def compare(
    world: Setting,
    runs: int,
    first_seed: int,
    kept: Kept = NOTHING_KEPT,
    ways: Sequence[str] = tuple(WAYS),
) -> Compared:
    """The gains of `ways`, which include "race" and "screening"."""
    seeds = range(first_seed, first_seed + runs)
    played = {way: play_all(world, WAYS[way], seeds, kept=kept, name=way) for way in ways}
    averages = {way: means(found) for way, found in played.items()}
    base = averages["race"]["gain"]
    ratio = averages["screening"]["gain"] / base
    pairs = zip(played["screening"], played["race"], strict=True)
    residuals = [ours.gain - ratio * theirs.gain for ours, theirs in pairs]
    return Compared(
        setting=world.name,
        rollouts=world.rollouts,
        runs=runs,
        ways=averages,
        errors={way: error([run.gain for run in found]) for way, found in played.items()},
        ratio=ratio,
        ratio_error=error(residuals) / abs(base),
        possible=statistics.fmean(1 - World(world, seed).true_score(START) for seed in seeds),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to spend the rollouts of a screening run."""

    name: str
    setting: Setting
    plan: Plan = DEFAULT_PLAN
    subsets: int = DEFAULTS.subsets
    times: int = 1  # as many runs as other choices get: small differences need more


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a choice gains."""

    name: str
    setting: str
    rollouts: int
    runs: int
    played: dict[str, float]  # the fields of Played
    error: float  # standard error of the gain


def try_choice(choice: Choice, runs: int, first_seed: int, kept: Kept = NOTHING_KEPT) -> Chosen:
    async def player(world: World, settings: GateSettings) -> Played:
        return await play_screening(world, settings, choice.plan)

    runs *= choice.times
    seeds = range(first_seed, first_seed + runs)
    name = "screening" if choice.plan == DEFAULT_PLAN else f"screening {choice.plan}"
    found = play_all(
        choice.setting,
        player,
        seeds,
        subsets=choice.subsets,
        kept=kept,
        name=name,
    )
    return Chosen(
        name=choice.name,
        setting=choice.setting.name,
        rollouts=choice.setting.rollouts,
        runs=runs,
        played=means(found),
        error=error([run.gain for run in found]),
    )


def choices() -> list[Choice]:
    """What the defaults of a screening run are chosen from."""
    middle, sparse, graded = setting(40), setting(40, kind="sparse"), setting(40, graded=True)
    found = [Choice("defaults", world) for world in (middle, sparse, graded)]
    for edits in (4, 8):
        plan = Plan(edits=edits)
        found += [Choice(f"{edits} edits per step", w, plan) for w in (middle, sparse, graded)]
    found += [Choice(f"{count} subsets", middle, subsets=count) for count in (4, 8, 32)]
    for passes in (0.5, 2):
        plan = Plan(selection=passes)
        found += [Choice(f"{passes:g} passes per step", world, plan) for world in (middle, sparse)]
    found.append(Choice("no training scores", middle, Plan(training=False)))
    for items in (8, 12):
        few = setting(items)
        found += [
            Choice(f"{count} passes per step", few, Plan(selection=count)) for count in (1, 2, 4)
        ]
        found.append(Choice("8 edits per step", few, Plan(edits=8)))
    for steps in (6, 12):
        short = setting(40, steps=steps)
        found += [
            Choice(f"{steps} steps, {edits} edits", short, Plan(edits=edits)) for edits in (8, 16)
        ]
    return found
