"""A proposer that works as an agent, with a real journal, budget and folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skillfit.config.schema import BudgetSection
from skillfit.models import ModelSpec, Prices
from skillfit.optimize.agent_proposer import AgentProposer
from skillfit.optimize.context import Context, ItemAttempts
from skillfit.optimize.optimizer import Optimizer, edits_of
from skillfit.optimize.proposer import OptimizerModel, Proposals, ProposerParts
from skillfit.rollout.outcome import Arm, RolloutRequest, StepRollouts
from skillfit.run.budget import Budget
from skillfit.run.events import Discarded, Event
from skillfit.run.journal import Journal
from skillfit.run.paid import PaidEffects
from skillfit.skill import Skill
from skillfit.tasks.item import TrajectoryStep
from tests.optimize.scripted_optimizer import finished, item, outcome

TEXT = """---
name: colours
description: Colours as letters.
---
# Colours

Answer with the letter of the colour.

<!-- PROTECTED_START -->
Never say more than the letter.
<!-- PROTECTED_END -->

- red means r.
"""
SKILL = Skill.from_text(TEXT, files={"references/why.md": b"because"})
ITEMS = [
    replace(item(f"{colour}{n}", f"{colour} {n}"), type=colour)
    for colour in ("green", "blue", "red")
    for n in range(3)
]
CASES = [
    ItemAttempts(
        one,
        (
            outcome(
                one.id,
                float(one.type == "red"),
                feedback="" if one.type == "red" else "expected another letter",
                steps=[TrajectoryStep("message", f"thinking about {one.id}")],
            ),
        ),
    )
    for one in ITEMS
]


@dataclass
class Bench:
    """A proposer with a real journal, budget and program."""

    folder: Path
    spec: ModelSpec
    optimizer: Optimizer
    caps: dict[str, Any] = field(default_factory=dict)
    minutes: float = 5.0
    parts: tuple[str, ...] = ("body",)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = Journal(self.folder / "journal.sqlite")
        self.budget = Budget(BudgetSection(**self.caps), self.journal)
        self.paid = PaidEffects(self.journal, self.budget)
        update = {"agent_minutes": self.minutes, "parts": self.parts}
        settings = self.optimizer.settings.model_copy(update=update)
        self.proposer = AgentProposer(
            ProposerParts(
                replace(self.optimizer, emit=self.events.append, settings=settings),
                [],
                settings,
                self.events.append,
                self.paid,
                OptimizerModel(self.spec, Prices(), "auto"),
            )
        )

    async def propose(
        self,
        context: Context | None = None,
        skill: Skill = SKILL,
        cases: Sequence[ItemAttempts] = CASES,
    ) -> Proposals:
        requests = [
            RolloutRequest(one.arms[at] if one.arms else Arm(skill), one.item, at)
            for one in cases
            for at in range(len(one.outcomes))
        ]
        running = finished([found for one in cases for found in one.outcomes])
        rollouts = StepRollouts((tuple(requests),), (tuple(running),))
        return await self.proposer.propose(skill, rollouts, context or Context(1))

    @property
    def discarded(self) -> str:
        found = [event for event in self.events if isinstance(event, Discarded)]
        return "\n".join(f"{event.what}: {event.reason}" for event in found)


def written(found: Proposals) -> list[tuple[str, str, str]]:
    return [
        (edit.op, edit.target, edit.content)
        for patch in found.patches
        for edit in edits_of(patch.proposals)
    ]


GOOD = [("append", "", "- blue means b."), ("append", "", "- green means g.")]
