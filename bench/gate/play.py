"""One simulated run: the training loop reduced to what the gate sees, driven to the last paid rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.gate.world import Exhausted, World
from skillfit.gate import Gate
from skillfit.gate.candidates import propose
from skillfit.skill import Skill

START = Skill.from_text("# Skill\n\nDo the task.\n")
BATCH = 40  # training rollouts of a step
PATCH = 4  # edits in the budget

MakeGate = Callable[[World], Gate]


@dataclass(frozen=True, slots=True)
class Played:
    gain: float  # true score at the end minus at the start
    steps: int
    accepted: int
    false: int  # accepted although the true score fell or stayed
    optimism: float  # the gate's score of the final skill minus its true score


async def play(world: World, gate: Gate, *, candidates: int, pool: int) -> Played:
    """`pool` edits come out of each step's reflections; the first `PATCH` are the step's patch, the rest is spare."""
    skill, start = START, world.true_score(START)
    true, steps, accepted, false = start, 0, 0, 0
    try:
        await gate.baseline(skill)
        while True:
            world.spend(BATCH)
            edits = [world.edit() for _ in range(pool)]
            steps += 1
            proposals = propose(skill, edits[:PATCH], spare=edits[PATCH:], limit=candidates)
            verdict = await gate.judge(f"step_{steps:04d}", skill, proposals)
            if verdict.accepted:
                now = world.true_score(verdict.winner)
                accepted, false = accepted + 1, false + (now <= true)
                skill, true = verdict.winner, now
    except Exhausted:
        return Played(true - start, steps, accepted, false, gate.best_score - true)


def play_perfectly(world: World, *, pool: int) -> float:
    """The gain of strict's plan under a gate that is never wrong about the patch, at strict's price: what a better rule alone
    could reach."""
    skill, start = START, world.true_score(START)
    true = start
    try:
        world.spend(len(world.items))
        while True:
            world.spend(BATCH + len(world.items))
            edits = [world.edit() for _ in range(pool)]
            patched = propose(skill, edits[:PATCH], limit=1)[0].skill
            if (now := world.true_score(patched)) > true:
                skill, true = patched, now
    except Exhausted:
        return true - start
