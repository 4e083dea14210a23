"""One simulated run: the training loop reduced to what the gate sees, driven to the last paid
rollout.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.gate.world import Exhausted, World
from skillfit.gate import Gate
from skillfit.gate.candidates import Finest, propose
from skillfit.skill import Skill

START = Skill.from_text("# Skill\n\nDo the task.\n")
BATCH = 40  # training rollouts of a step
PATCH = 4  # edits in the budget
POOL = 16  # edits that a step's reflections bring


@dataclass(frozen=True, slots=True)
class Played:
    gain: float  # true score at the end minus at the start
    steps: int
    accepted: int
    false: int  # accepted although the true score fell or stayed
    optimism: float  # the gate's score of the final skill minus its true score
    taken: int  # edits in the final skill


@dataclass(frozen=True, slots=True)
class Plan:
    """What of a step's edits is put before the gate."""

    candidates: int = 1
    patch: int = PATCH
    spare: bool = True
    finest: Finest = "patch"


async def play(world: World, gate: Gate, plan: Plan) -> Played:
    """`POOL` edits come out of each step's reflections; the first `plan.patch` are the step's
    patch, the rest may be spare.
    """
    skill, start = START, world.true_score(START)
    true, steps, accepted, false, taken = start, 0, 0, 0, 0
    try:
        await gate.baseline(skill)
        while True:
            world.spend(BATCH)
            edits = [world.edit() for _ in range(POOL)]
            steps += 1
            patch, spare = edits[: plan.patch], edits[plan.patch :] if plan.spare else []
            proposals = propose(
                skill, patch, spare=spare, limit=plan.candidates, finest=plan.finest
            )
            verdict = await gate.judge(f"step_{steps:04d}", skill, proposals)
            if verdict.accepted:
                now = world.true_score(verdict.winner)
                accepted, false = accepted + 1, false + (now <= true)
                skill, true = verdict.winner, now
                taken += len(verdict.chosen.edits) if verdict.chosen else 0
    except Exhausted:
        return Played(true - start, steps, accepted, false, gate.best_score - true, taken)


def play_perfectly(world: World) -> float:
    """The gain of strict's plan under a gate that is never wrong about the patch, at strict's
    price: what a better rule alone could reach.
    """
    skill, start = START, world.true_score(START)
    true = start
    try:
        world.spend(len(world.items))
        while True:
            world.spend(BATCH + len(world.items))
            edits = [world.edit() for _ in range(POOL)]
            patched = propose(skill, edits[:PATCH], limit=1)[0].skill
            if (now := world.true_score(patched)) > true:
                skill, true = patched, now
    except Exhausted:
        return true - start
