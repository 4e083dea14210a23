"""Where edits come from.

A proposer turns a step's rollouts into patches. `AnalystProposer` asks the optimizer's model;
`ExampleProposer` adds solved training items and needs no model. A custom one is a class with this
one method, named in `optimizer.proposer` (file.py:name, or an entry point of group
`skillfit.proposers`) or handed to `skillfit.train(proposer=…)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from skillfit.optimize.examples import propose_examples, reflection_event, solved_examples
from skillfit.optimize.optimizer import Optimizer
from skillfit.optimize.patch import Patch
from skillfit.optimize.reflect import Context, Reflection, group_by_item, reflect
from skillfit.optimize.trajectories import Case
from skillfit.rollout.outcome import StepRollouts, gather
from skillfit.run.events import Event
from skillfit.skill import Skill
from skillfit.tasks.item import Item


@dataclass(frozen=True, slots=True)
class Proposals:
    """The patches of a step: per accumulation batch, and those that belong to no batch."""

    batches: tuple[tuple[Patch, ...], ...] = ()
    extra: tuple[Patch, ...] = ()
    failures: int = 0  # model calls without a usable reply

    @property
    def patches(self) -> tuple[Patch, ...]:
        return (*(patch for batch in self.batches for patch in batch), *self.extra)

    def __add__(self, other: Proposals) -> Proposals:
        return Proposals(
            self.batches or other.batches,
            (*self.extra, *other.extra),
            self.failures + other.failures,
        )


class Proposer(Protocol):
    async def propose(
        self, skill: Skill, rollouts: StepRollouts, context: Context
    ) -> Proposals | Sequence[Patch]:
        """Patches for the skill. The rollouts may still run: `await finished_cases(rollouts)`
        waits for them. Only training items appear here.
        """
        ...


ProposerFactory = Callable[["ProposerParts"], Proposer]


@dataclass(frozen=True, slots=True)
class ProposerParts:
    """What a proposer may use."""

    optimizer: Optimizer | None  # None: no optimizer model is configured
    train_items: Sequence[Item]
    max_skill_tokens: int | None
    emit: Callable[[Event], None]


async def finished_cases(rollouts: StepRollouts) -> list[Case]:
    """Each item of the step with all its rollouts, in planned order."""
    cases = []
    for requests, outcomes in zip(rollouts.requests, await rollouts.outcomes(), strict=True):
        for found in group_by_item(requests):
            arms = tuple(requests[at].arm for at in found.positions)
            tried = tuple(outcomes[at] for at in found.positions)
            cases.append(Case(found.item, tried, arms=arms))
    return cases


class AnalystProposer:
    """Groups of trajectories go to the optimizer's model, which writes a patch for each."""

    def __init__(self, parts: ProposerParts) -> None:
        self._optimizer = parts.optimizer

    async def propose(self, skill: Skill, rollouts: StepRollouts, context: Context) -> Proposals:
        found = await gather(
            self._reflect_on_batch(skill, rollouts, number, context)
            for number in range(len(rollouts.requests))
        )
        return Proposals(
            tuple(reflection.patches for reflection in found),
            failures=sum(reflection.discarded for reflection in found),
        )

    async def _reflect_on_batch(
        self, skill: Skill, rollouts: StepRollouts, number: int, context: Context
    ) -> Reflection:
        """Ends only after the batch's last rollout, also on errors: rollouts in flight are paid
        for and must be recorded.
        """
        requests, running = rollouts.requests[number], rollouts.running[number]
        if self._optimizer is None:
            await gather(running)
            return Reflection((), 0, 0)
        prefix = f"batch_{number}/" if len(rollouts.requests) > 1 else ""
        analysts = reflect(self._optimizer, skill, requests, running, context, prefix=prefix)
        work: list[Awaitable[Any]] = [analysts, *running]
        reflection: Reflection = (await gather(work))[0]
        return reflection


class ExampleProposer:
    """Solved training items that resemble the step's failures, as worked examples."""

    def __init__(self, parts: ProposerParts) -> None:
        self._parts = parts

    async def propose(self, skill: Skill, rollouts: StepRollouts, context: Context) -> Proposals:
        outcomes = [outcome for batch in await rollouts.outcomes() for outcome in batch]
        failed = {
            outcome.item_id
            for outcome in outcomes
            if outcome.score is not None and not outcome.succeeded
        }
        asked = {request.item.id: request.item for batch in rollouts.requests for request in batch}
        patch = propose_examples(
            skill,
            [item for name, item in asked.items() if name in failed],
            solved_examples(self._parts.train_items, outcomes),
            edit_budget=context.edit_budget,
            max_tokens=self._parts.max_skill_tokens,
        )
        if not patch.proposals:
            return Proposals()
        self._parts.emit(reflection_event(patch, context.step))
        return Proposals(extra=(patch,))


class AnalystsAndExamples:
    """Both at once."""

    def __init__(self, parts: ProposerParts) -> None:
        self._proposers = (AnalystProposer(parts), ExampleProposer(parts))

    async def propose(self, skill: Skill, rollouts: StepRollouts, context: Context) -> Proposals:
        analysts, examples = await gather(
            proposer.propose(skill, rollouts, context) for proposer in self._proposers
        )
        return analysts + examples
