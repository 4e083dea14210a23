"""Proposers turn the rollouts of a step into patches for the skill.

`AnalystProposer` asks the optimizer's model. `ExampleProposer` adds solved training items that
resemble the failures as worked examples, and needs no model. An example is an edit with op
`example`, so it is budgeted, gated and measured like any other.

Your own proposer is a class with the one method of `Proposer`. Name it in `optimizer.proposer`
(file.py:name, or an entry point of group `skillfit.proposers`) or hand it to
`skillfit.train(proposer=…)`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Literal, Protocol

from skillfit.config.schema import OptimizerSection
from skillfit.optimize.context import Context, ItemAttempts
from skillfit.optimize.optimizer import Optimizer, Patch, Proposal
from skillfit.optimize.reflect import Reflection, ask_analysts, group_by_item
from skillfit.plain_text import head_and_tail
from skillfit.rollout.outcome import Outcome, StepRollouts, gather
from skillfit.run.events import Event, ReflectionFinished
from skillfit.skill import MAX_EXAMPLES, Edit, Example, Skill, apply_edits, example_edit, examples
from skillfit.tasks.item import Item

_SIDE = 2_000  # characters of an example's input or output
_LOOKED_AT = 4_000  # characters of a text that decide what it resembles
_WORD = re.compile(r"\w+")


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
    """Writes patches from the training rollouts of a step.

    A class may also have `needs_optimizer = True` (model.optimizer is required; False: it never
    calls the model), `needs_patch_mode = True` (it adds text that only `skill_update_mode: patch`
    applies) and `author`.
    """

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
    settings: OptimizerSection
    emit: Callable[[Event], None]


def asks_optimizer(proposer: Proposer | ProposerFactory) -> bool:
    """Whether a proposer, or what makes it, may call the optimizer's model. One that does not say
    `needs_optimizer` may.
    """
    return bool(getattr(proposer, "needs_optimizer", True))


Author = Literal["model", "examples", "custom"]


def author_of(proposer: Proposer) -> Author:
    """Who writes the edits, for the diagnosis of a run."""
    author: Author = getattr(proposer, "author", "custom")
    return author


async def finished_cases(rollouts: StepRollouts) -> list[ItemAttempts]:
    """Each item of the step with all its rollouts, in planned order."""
    cases = []
    for requests, outcomes in zip(rollouts.requests, await rollouts.outcomes(), strict=True):
        for found in group_by_item(requests):
            arms = tuple(requests[at].arm for at in found.positions)
            tried = tuple(outcomes[at] for at in found.positions)
            cases.append(ItemAttempts(found.item, tried, arms=arms))
    return cases


class AnalystProposer:
    """Groups of trajectories go to the optimizer's model, which writes a patch for each."""

    needs_optimizer = True
    author: Author = "model"

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
            return Reflection((), 0)
        prefix = f"batch_{number}/" if len(rollouts.requests) > 1 else ""
        analysts = ask_analysts(self._optimizer, skill, requests, running, context, prefix=prefix)
        work: list[Awaitable[Any]] = [analysts, *running]
        reflection: Reflection = (await gather(work))[0]
        return reflection


class ExampleProposer:
    """Solved training items that resemble the step's failures, as worked examples."""

    needs_optimizer = False
    needs_patch_mode = True
    author: Author = "examples"

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
            max_tokens=self._parts.settings.max_skill_tokens,
        )
        if not patch.proposals:
            return Proposals()
        self._parts.emit(
            ReflectionFinished(
                step=context.step,
                group="examples",
                source="examples",
                items=list(patch.items),
                patch=patch.record(),
            )
        )
        return Proposals(extra=(patch,))


class AnalystsAndExamples:
    """Both at once."""

    needs_optimizer = True
    needs_patch_mode = True
    author: Author = "model"

    def __init__(self, parts: ProposerParts) -> None:
        self._proposers = (AnalystProposer(parts), ExampleProposer(parts))

    async def propose(self, skill: Skill, rollouts: StepRollouts, context: Context) -> Proposals:
        analysts, examples = await gather(
            proposer.propose(skill, rollouts, context) for proposer in self._proposers
        )
        return analysts + examples


def solved_examples(items: Sequence[Item], outcomes: Iterable[Outcome] = ()) -> tuple[Example, ...]:
    """Training items with an answer known to be right: the agent's own where a rollout succeeded,
    else the gold one.

    Items with attached files or images are left out: without these, an example would mislead.
    """
    own = {
        outcome.item_id: outcome.attempt.answer
        for outcome in outcomes
        if outcome.succeeded and outcome.attempt is not None
    }
    found = []
    for item in items:
        if item.split in ("selection", "test"):
            raise ValueError(f"item {item.id} of the {item.split} split may not become an example")
        answer = own.get(item.id) or next(iter(item.answers), "")
        if answer.strip() and item.input.strip() and not item.attachments():
            found.append(
                Example(
                    head_and_tail(item.input.strip(), _SIDE),
                    head_and_tail(answer.strip(), _SIDE),
                    item.id,
                )
            )
    return tuple(found)


def propose_examples(
    skill: Skill,
    failures: Sequence[Item],
    solved: Sequence[Example],
    *,
    edit_budget: int | None,
    max_tokens: int | None = None,
) -> Patch:
    """At most an edit budget's worth of examples. Each is the one that resembles the failures best
    beyond what the examples before it cover.

    Where there is no room, an example takes the place of one that resembles the failures less.
    """
    old = examples(skill)
    alike = _likeness(failures, [*old, *solved])
    covered = [0.0] * len(failures)  # how alike the best example so far is to each failure
    for example in old:
        covered = _elementwise_max(covered, alike[example])
    pool = list(dict.fromkeys(solved))
    limit = MAX_EXAMPLES if edit_budget is None else min(edit_budget, MAX_EXAMPLES)
    proposals: list[Proposal] = []
    while pool and len(proposals) < limit:
        gains = [_gain(alike[example], covered) for example in pool]
        best = max(range(len(pool)), key=lambda index: sum(gains[index]))  # the first one on ties
        example, gain = pool.pop(best), gains[best]
        if not sum(gain):
            break
        for edit in _ways_to_add(example, old, alike):
            applied = apply_edits(skill, [edit], max_tokens=max_tokens)
            if applied.edits:
                skill = applied.skill
                covered = _elementwise_max(covered, alike[example])
                helped = [item.id for item, more in zip(failures, gain, strict=True) if more > 0]
                proposals.append(Proposal(edit, "examples", tuple(helped)))
                break
    return Patch(
        tuple(proposals),
        "examples",
        tuple(item.id for item in failures),
        "Solved items that resemble the failures.",
        merge=False,  # a model would reword what was solved
    )


def _elementwise_max(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [max(pair) for pair in zip(one, other, strict=True)]


def _gain(alike: Sequence[float], covered: Sequence[float]) -> list[float]:
    """By how much an example resembles each failure more than the examples so far."""
    return [max(0.0, now - before) for now, before in zip(alike, covered, strict=True)]


def _ways_to_add(
    example: Example, old: Sequence[Example], alike: Mapping[Example, Sequence[float]]
) -> Iterator[Edit]:
    """The edit that adds an example; then, for a skill without room, those that put it in place of
    an old one that resembles the failures less, the least first.
    """
    yield example_edit(example)
    for held in sorted(old, key=lambda held: sum(alike[held])):
        if sum(alike[held]) < sum(alike[example]):
            yield example_edit(example, replaces=held.item_id)


def _likeness(failures: Sequence[Item], shown: Sequence[Example]) -> dict[Example, list[float]]:
    """How alike each example is to each failure: the cosine of their words, rare ones weighing
    more (TF-IDF).
    """
    texts = [*(item.input for item in failures), *(example.input for example in shown)]
    words = [Counter(_WORD.findall(text[:_LOOKED_AT].casefold())) for text in texts]
    in_texts = Counter(word for counts in words for word in counts)
    vectors = [_weighed(counts, in_texts, len(texts)) for counts in words]
    of_failures, of_examples = vectors[: len(failures)], vectors[len(failures) :]
    return {
        example: [_cosine(failure, vector) for failure in of_failures]
        for example, vector in zip(shown, of_examples, strict=True)
    }


def _weighed(words: Counter[str], in_texts: Counter[str], texts: int) -> dict[str, float]:
    """A vector of length 1. `in_texts` says in how many of all texts a word occurs."""
    weights = {
        word: count * (1 + log((1 + texts) / (1 + in_texts[word]))) for word, count in words.items()
    }
    length = sqrt(sum(weight * weight for weight in weights.values())) or 1.0
    return {word: weight / length for word, weight in weights.items()}


def _cosine(one: dict[str, float], other: dict[str, float]) -> float:
    return sum(weight * other.get(word, 0.0) for word, weight in one.items())
