"""Three gates on a real model, where only the gate differs.

Every gate gets the same task, the same initial skill, the same edits in the same steps and the same
number of rollouts. `ScreeningGate` and `StrictGate` are the code that `skillfit train` runs;
`RaceGate` is the default gate before screening. No optimizer is involved: a step proposes the next
lines of a fixed pool.

All rollouts go through the shipped engine into one journal. The model answers at temperature 0, so
equal requests are one rollout for the machine; each gate still pays for it from its own budget.
Results are appended to a file as they come, and a second start continues where the first one ended.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

import skillfit.gate
from bench.gate.play import EDITS, PATCH
from bench.gate.race import RaceGate, propose
from bench.gate.world import Exhausted
from bench.local.house_style import START, write_task
from bench.local.pool import POOL
from skillfit.config import load_config
from skillfit.config.schema import Config, TrainSection
from skillfit.gate import (
    Arm,
    Candidate,
    GateSettings,
    Observation,
    Round,
    ScreeningGate,
    StrictGate,
)
from skillfit.rollout import Outcome, RolloutEngine, RolloutRequest
from skillfit.run.directory import RunDirectory
from skillfit.skill import Edit, Skill, apply_edits
from skillfit.tasks import Task
from skillfit.tasks.item import Item
from skillfit.training.assemble import open_engine
from skillfit.training.inputs import read_inputs

BATCH = 10  # training rollouts of a step
SUBSETS = 8  # distinct skills per pass: the local server keeps one prompt in its cache
BUDGETS = (120, 240)
WAYS = ("screening", "race", "strict")
INITIAL = Skill.from_text(START)


@dataclass(frozen=True, slots=True)
class Compared:
    """One run of one gate."""

    seed: int
    way: str
    rollouts: int  # the budget
    spent: int
    steps: int
    test: float  # hard score of the final skill on the test split
    lines: dict[str, int]  # what was planted -> lines of that sort in the final skill
    skill: str
    seconds: float  # of this run, without rollouts that an earlier run had made
    effects: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    gate_code: str = ""  # fingerprint of the gate's sources that ran


class LocalWorld:
    """Rollouts of one run: implements the gate's Measure, and stops it when its rollouts are used
    up.
    """

    def __init__(
        self, engine: RolloutEngine, train: Sequence[Item], rollouts: int, seed: int
    ) -> None:
        self._engine, self._train = engine, list(train)
        self.left, self.spent = rollouts, 0
        rng = random.Random(f"lines/{seed}")
        self._order = list(POOL)
        rng.shuffle(self._order)
        rng.shuffle(self._train)

    def batch(self, step: int) -> list[Item]:
        first = step * BATCH
        return [self._train[at % len(self._train)] for at in range(first, first + BATCH)]

    def proposed(self, step: int, skill: Skill) -> list[Edit]:
        """The next lines of the pool, in an order that the seed fixes, without those that the skill
        has already.
        """
        first = step * EDITS
        lines = [self._order[at % len(self._order)] for at in range(first, first + EDITS)]
        return [line.edit for line in lines if line.text not in skill.body.splitlines()]

    async def __call__(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]:
        if len(arms) > self.left:
            raise Exhausted
        self.left -= len(arms)
        self.spent += len(arms)
        return await roll_out(self._engine, arms, repeat)


async def roll_out(
    engine: RolloutEngine, arms: Sequence[tuple[Arm, Item]], repeat: int = 0
) -> list[Outcome]:
    """Rollouts with equal skills follow each other, so that the server reads each skill once."""
    order = sorted(range(len(arms)), key=lambda at: arms[at][0].skill.text)
    requests = [RolloutRequest(arms[at][0], arms[at][1], repeat) for at in order]
    outcomes = await engine.run(requests, stage="compare", series="compare")
    found = dict(zip(order, outcomes, strict=True))
    return [found[at] for at in range(len(arms))]


@dataclass(slots=True)
class Played:
    skill: Skill
    steps: int = 0
    effects: dict[str, tuple[float, float, float]] = field(default_factory=dict)


async def play_screening(
    world: LocalWorld, items: Sequence[Item], settings: GateSettings
) -> Played:
    gate, played = ScreeningGate(world, items, settings), Played(INITIAL)
    await gate.baseline(INITIAL)
    while world.left >= BATCH + len(items):
        batch, edits = world.batch(played.steps), world.proposed(played.steps, gate.incumbent)
        played.steps += 1
        name = f"step_{played.steps:04d}"
        arms = gate.assign(name, batch)
        judgement = gate.begin(name, Round(played.steps, len(items)))
        outcomes = await world(list(zip(arms, batch, strict=True)), repeat=0, series="training")
        observed = [
            Observation(item.id, arm, outcome)
            for item, arm, outcome in zip(batch, arms, outcomes, strict=True)
        ]
        candidate = Candidate(gate.incumbent, tuple(edits), step=played.steps)
        await judgement.decide(candidate if edits else None, observed)
    finalists = await gate.compose()
    played.skill = finalists[0] if finalists else INITIAL
    for effect in gate.effects():
        if effect.mean is not None:
            played.effects[effect.edit.content] = (effect.mean, effect.low, effect.high)
    return played


async def play_race(world: LocalWorld, items: Sequence[Item], settings: GateSettings) -> Played:
    gate, played = RaceGate(world, items, settings), Played(INITIAL)
    await gate.baseline(INITIAL)
    try:
        while True:
            batch = world.batch(played.steps)
            await world([(Arm(played.skill), item) for item in batch], repeat=0, series="training")
            edits = world.proposed(played.steps, played.skill)
            raced = propose(played.skill, edits[:PATCH], spare=edits[PATCH:])
            verdict = await gate.judge(f"step_{played.steps + 1:04d}", played.skill, raced)
            played.skill = verdict.winner
            played.steps += 1
    except Exhausted:
        return played


async def play_strict(world: LocalWorld, items: Sequence[Item], settings: GateSettings) -> Played:
    gate, played = StrictGate(world, items, settings), Played(INITIAL)
    await gate.baseline(INITIAL)
    try:
        while True:
            batch = world.batch(played.steps)
            await world([(Arm(played.skill), item) for item in batch], repeat=0, series="training")
            edits = tuple(world.proposed(played.steps, played.skill)[:PATCH])
            candidate = Candidate(apply_edits(played.skill, edits).skill, edits)
            await gate.judge(f"step_{played.steps + 1:04d}", candidate)
            played.skill = gate.incumbent
            played.steps += 1
    except Exhausted:
        return played


PLAYERS = {"screening": play_screening, "race": play_race, "strict": play_strict}


def planted_lines(skill: Skill) -> dict[str, int]:
    present = set(skill.body.splitlines())
    return dict(Counter(line.planted for line in POOL if line.text in present))


@asynccontextmanager
async def opened(
    folder: Path, model: Path, threads: int
) -> AsyncIterator[tuple[Task, RolloutEngine]]:
    """The task, and the rollout engine on its journal."""
    config = load_config(write_task(folder, model, threads))
    inputs = read_inputs(config, training=False)
    with RunDirectory.open(folder / "rollouts", {"model": model.name}) as run:
        async with open_engine(inputs, run) as engine:
            yield inputs.task, engine


async def test_score(engine: RolloutEngine, items: Sequence[Item], skill: Skill) -> float:
    outcomes = await roll_out(engine, [(Arm(skill), item) for item in items])
    return sum(one.score.hard for one in outcomes if one.score) / len(items)


async def compare(
    folder: Path, model: Path, results: Path, seeds: Sequence[int], threads: int
) -> None:
    """All runs that the results do not have yet, seed by seed."""
    done, code = read_results(results), gate_code()
    async with opened(folder, model, threads) as (task, engine):
        if not any(one.way == "initial" for one in done):
            helpful = [line.edit for line in POOL if line.planted == "helpful"]
            for way, edits in (("initial", []), ("all helpful lines", helpful)):
                skill = apply_edits(INITIAL, edits).skill
                score = await test_score(engine, task.test, skill)
                record = Compared(0, way, 0, 0, 0, score, planted_lines(skill), skill.text, 0.0)
                _append(results, record)
        finished = {(one.seed, one.way, one.rollouts) for one in done}
        for seed in seeds:
            # The larger budget first: the smaller run is the beginning of it, so most of its
            # rollouts are in the journal then.
            for rollouts in sorted(BUDGETS, reverse=True):
                for way in WAYS:
                    if (seed, way, rollouts) in finished:
                        continue
                    begun = time.monotonic()
                    world = LocalWorld(engine, task.train, rollouts, seed)
                    settings = GateSettings(Config(train=TrainSection(seed=seed)), subsets=SUBSETS)
                    played = await PLAYERS[way](world, task.selection, settings)
                    seconds = time.monotonic() - begun
                    record = Compared(
                        seed,
                        way,
                        rollouts,
                        world.spent,
                        played.steps,
                        await test_score(engine, task.test, played.skill),
                        planted_lines(played.skill),
                        played.skill.text,
                        round(seconds, 1),
                        played.effects,
                        gate_code=code,
                    )
                    _append(results, record)


def gate_code() -> str:
    """A fingerprint of the sources of the shipped gates."""
    sources = sorted(Path(skillfit.gate.__file__).parent.glob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]


def read_results(path: Path) -> list[Compared]:
    if not path.is_file():
        return []
    return [Compared(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def _append(path: Path, record: Compared) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")
    print(
        f"seed {record.seed} {record.way} {record.rollouts}: test {record.test:.3f}, "
        f"{record.steps} steps, lines {record.lines}, {record.seconds:.0f} s",
        flush=True,
    )
