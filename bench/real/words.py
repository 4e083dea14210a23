"""python -m bench.real.words [--budgets 300,1200] [--seeds 16]: how often the words about the lines
of a final skill are right, and the types of items that an edit is said to act on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.real.play import players
from bench.real.run import Job
from bench.real.skillfit_run import run_in
from bench.real.world import UNSEEN, WORLDS, World, world_named
from skillfit.run.events import EventLog, GateDecided, RunFinished
from skillfit.run.records import EditEffect
from skillfit.run.store import JOURNAL

HELPS = 0.005  # points of the true score
FIRST_SEED = 1


@dataclass(frozen=True, slots=True)
class Line:
    """An edit of a final skill."""

    word: str
    true: float  # what the true score would lose without it
    held: bool  # the 80 % interval of its effect contains that


@dataclass(frozen=True, slots=True)
class Local:
    """A type of items that an edit is said to act on."""

    shown: float
    true: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.real.words", description=__doc__)
    parser.add_argument("--budgets", default="300,1200", help="rollouts in all")
    parser.add_argument("--world", choices=WORLDS, default="style")
    parser.add_argument("--seeds", type=int, default=16)
    asked = parser.parse_args()
    lines, local = list[Line](), list[Local]()
    for budget in map(int, asked.budgets.split(",")):
        for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds):
            world = world_named(asked.world, seed)
            effects, kept = play(Job("skillfit", asked.world, "ordinary", budget, seed), world)
            lines += judged(world, [effect for effect in effects if effect.id in kept])
            local += located(world, effects, kept)
    print(table(lines, local))


def play(job: Job, world: World) -> tuple[list[EditEffect], Collection[str]]:
    """The effects of all edits after the last decision, and the ids of those in the skill."""
    effects, kept = list[EditEffect](), list[str]()
    with tempfile.TemporaryDirectory(prefix="bench-real-") as scratch:
        run_in(Path(scratch), job, players(world, job.optimizer, job.seed), {})
        for stored in EventLog.open_readonly(Path(scratch) / "run" / JOURNAL).read():
            if isinstance(stored.event, GateDecided) and stored.event.effects:
                effects = stored.event.effects
            elif isinstance(stored.event, RunFinished):
                kept = list(stored.event.edits or ())
    return effects, kept


def judged(world: World, kept: Sequence[EditEffect]) -> list[Line]:
    found = []
    for effect in kept:
        others = _lines(world, (one for one in kept if one.id != effect.id))
        true = _change(world, others, _lines(world, [effect]), _items(world, UNSEEN))
        found.append(Line(effect.evidence, true, effect.low <= true <= effect.high))
    return found


def located(world: World, effects: Sequence[EditEffect], kept: Collection[str]) -> list[Local]:
    found = []
    for effect in effects:
        others = _lines(world, (one for one in effects if one.id in kept and one.id != effect.id))
        for kind in effect.kinds:
            items = _items(world, ("selection",), kind.kind)
            true = _change(world, others, _lines(world, [effect]), items)
            found.append(Local(kind.mean, true))
    return found


def _lines(world: World, effects: Iterable[EditEffect]) -> frozenset[int]:
    return frozenset(line for one in effects for line in world.lines_in(one.edit.content))


def _items(world: World, splits: Collection[str], kind: str = "") -> list[int]:
    items = enumerate(world.items)
    return [at for at, item in items if item.split in splits and kind in ("", item.kind)]


def _change(
    world: World, others: frozenset[int], added: frozenset[int], items: Sequence[int]
) -> float:
    difference = world.chances(others | added) - world.chances(others - added)
    return float(difference[items].mean())


def table(lines: Sequence[Line], local: Sequence[Local]) -> str:
    rows = ["| words | lines | help | harm | 80 % intervals hold |", "|---|---|---|---|---|"]
    for word in ("measured to help", "likely", "no evidence"):
        own = [line for line in lines if line.word == word]
        if own:
            helps = sum(line.true > HELPS for line in own) / len(own)
            harms = sum(line.true < -HELPS for line in own) / len(own)
            held = sum(line.held for line in own) / len(own)
            rows.append(f"| {word} | {len(own)} | {helps:.0%} | {harms:.0%} | {held:.0%} |")
    right = sum(one.shown * one.true > 0 for one in local)
    return "\n".join([*rows, f"\nTypes named: {len(local)}, with the right sign: {right}."])


if __name__ == "__main__":
    main()
