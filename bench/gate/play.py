"""One simulated run: the training loop reduced to what the gate sees, until the rollouts are used
up.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.gate.race import RaceGate, propose
from bench.gate.world import Exhausted, World
from skillfit.gate import (
    Candidate,
    GateSettings,
    Observation,
    Round,
    ScreeningGate,
    StrictGate,
)
from skillfit.skill import Skill, apply_edits
from skillfit.tasks.item import Item

START = Skill.from_text("# Skill\n\nDo the task.\n")
BATCH = 40  # training rollouts of a step
PATCH = 4  # edits that the edit budget of strict and race lets through
EDITS = 16  # edits that a step's reflections bring


@dataclass(frozen=True, slots=True)
class Played:
    gain: float  # true score of the final skill minus that of the initial one
    steps: int
    edits: int  # in the final skill
    harmful: int  # of these, edits that lower the true score
    useless: int  # of these, edits that change nothing
    optimism: float  # the gate's own score of its incumbent minus the true one
    composed: float = 0.0  # the same of the final skill, before it is compared on fresh rollouts


def batch(world: World, step: int) -> list[Item]:
    """The training items of a step; every eighth step starts a new epoch."""
    first = (step - 1) * BATCH % len(world.training)
    return world.training[first : first + BATCH]


def played(
    world: World, skill: Skill, steps: int, optimism: float, composed: float = 0.0
) -> Played:
    rules = world.rules(skill)
    harmful = sum(world.harms(rule) for rule in rules)
    helpful = sum(world.helps(rule) for rule in rules)
    return Played(
        gain=world.true_score(skill) - world.true_score(START),
        steps=steps,
        edits=len(rules),
        harmful=harmful,
        useless=len(rules) - harmful - helpful,
        optimism=optimism,
        composed=composed,
    )


async def play_strict(world: World, settings: GateSettings, patch: int = PATCH) -> Played:
    gate, steps = StrictGate(world, world.items, settings), 0
    await gate.baseline(START)
    try:
        while True:
            world.spend(BATCH)
            proposed = world.propose(EDITS, batch(world, steps + 1))
            edits = tuple(one.edit for one in proposed[:patch])
            skill = apply_edits(gate.incumbent, edits).skill
            await gate.judge(f"step_{steps + 1:04d}", Candidate(skill, edits))
            steps += 1
    except Exhausted:
        return played(world, gate.incumbent, steps, _optimism(world, gate.incumbent, gate.score))


async def play_race(world: World, settings: GateSettings, candidates: int = 4) -> Played:
    gate, steps = RaceGate(world, world.items, settings, candidates), 0
    await gate.baseline(START)
    skill = START
    try:
        while True:
            world.spend(BATCH)
            edits = [one.edit for one in world.propose(EDITS, batch(world, steps + 1))]
            raced = propose(skill, edits[:PATCH], spare=edits[PATCH:], limit=candidates)
            verdict = await gate.race(f"step_{steps + 1:04d}", skill, raced)
            skill, steps = verdict.winner, steps + 1
    except Exhausted:
        return played(world, skill, steps, _optimism(world, skill, gate.best_score))


def _optimism(world: World, skill: Skill, score: float) -> float:
    return score - world.true_score(skill)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a screening run spends its rollouts."""

    edits: int = EDITS  # that join per step
    training: bool = True  # use the scores of training rollouts
    selection: float = 1.0  # selection rollouts of a step, in passes over the items


async def screened(world: World, gate: ScreeningGate, plan: Plan) -> int:
    """Make the steps of a screening run until the rollouts are used up; return their number."""
    await gate.baseline(START)
    steps, selection = 0, round(len(world.items) * plan.selection)
    while world.left >= BATCH + selection:
        steps += 1
        training = batch(world, steps)
        name = f"step_{steps:04d}"
        arms = gate.assign(name, training)
        judgement = gate.begin(name, Round(steps, selection))
        pairs = list(zip(arms, training, strict=True))
        outcomes = world.roll_out([(arm.skill, item) for arm, item in pairs])
        observed = [
            Observation(item.id, arm, outcome)
            for (arm, item), outcome in zip(pairs, outcomes, strict=True)
        ]
        joining = world.propose(plan.edits, training)
        candidate = Candidate(
            gate.incumbent,
            tuple(one.edit for one in joining),
            tuple(one.sources for one in joining),
            step=steps,
        )
        await judgement.decide(candidate, observed if plan.training else ())
    return steps


DEFAULT_PLAN = Plan()


async def play_screening(world: World, settings: GateSettings, plan: Plan = DEFAULT_PLAN) -> Played:
    gate = ScreeningGate(world, world.items, settings)
    steps = await screened(world, gate, plan)
    optimism = _optimism(world, gate.incumbent, gate.score)
    finalists = await gate.compose()
    final = finalists[0] if finalists else START
    return played(world, final, steps, optimism, _optimism(world, final, gate.best_score))
