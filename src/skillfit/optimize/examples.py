"""Worked examples as edits: solved training items, chosen for the failures they resemble. Needs no
optimizer model.

An example is an edit with op `example`, so it is budgeted, gated and credited like any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import log, sqrt

from skillfit.optimize.patch import Patch, Proposal
from skillfit.optimize.trajectories import cut
from skillfit.rollout.outcome import Outcome
from skillfit.run.events import ReflectionFinished
from skillfit.skill import MAX_EXAMPLES, Example, Skill, apply_edits, example_edit, examples
from skillfit.tasks.item import Item

_SIDE = 2_000  # characters of an example's input or output
_LOOKED_AT = 4_000  # characters of a text that decide what it resembles
_WORD = re.compile(r"\w+")


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
                Example(cut(item.input.strip(), _SIDE), cut(answer.strip(), _SIDE), item.id)
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
    """At most an edit budget's worth of examples for these failures, those first that resemble most
    of them best.

    Where there is no room, an example takes the place of one the failures resemble less.
    """
    old = examples(skill)
    alike = _likeness(failures, [*old, *solved])
    covered = [
        max((alike[example][at] for example in old), default=0.0) for at in range(len(failures))
    ]
    pool = list(dict.fromkeys(solved))
    limit = MAX_EXAMPLES if edit_budget is None else min(edit_budget, MAX_EXAMPLES)
    proposals: list[Proposal] = []
    while pool and len(proposals) < limit:
        gains = [
            [max(0.0, value - before) for value, before in zip(alike[each], covered, strict=True)]
            for each in pool
        ]
        best = max(
            range(len(pool)), key=lambda index: sum(gains[index])
        )  # the first in planned order on ties
        if not sum(gains[best]):
            break
        example, gain = pool.pop(best), gains[best]
        weaker = sorted(
            (held for held in old if sum(alike[held]) < sum(alike[example])),
            key=lambda held: sum(alike[held]),
        )
        for edit in [
            example_edit(example),
            *(example_edit(example, replaces=held.item_id) for held in weaker),
        ]:
            applied = apply_edits(skill, [edit], max_tokens=max_tokens)
            if applied.edits:
                skill = applied.skill
                covered = [max(pair) for pair in zip(covered, alike[example], strict=True)]
                helped = tuple(
                    item.id for item, value in zip(failures, gain, strict=True) if value > 0
                )
                proposals.append(Proposal(edit, "examples", helped))
                break
    return Patch(
        tuple(proposals),
        "examples",
        tuple(item.id for item in failures),
        "Solved items that resemble the failures.",
    )


def reflection_event(patch: Patch, step: int) -> ReflectionFinished:
    """The examples' line among the reflections of a step."""
    return ReflectionFinished(
        step=step,
        group="examples",
        source="examples",
        items=list(patch.items),
        patch=patch.record(),
    )


def _likeness(failures: Sequence[Item], shown: Sequence[Example]) -> dict[Example, list[float]]:
    """How alike each example is to each failure: the cosine of their words, rare ones weighing
    more.
    """
    words = [
        Counter(_WORD.findall(text[:_LOOKED_AT].casefold()))
        for text in (*(i.input for i in failures), *(e.input for e in shown))
    ]
    spread = Counter(word for counts in words for word in counts)
    vectors = [_weighed(counts, spread, len(words)) for counts in words]
    wanted = vectors[: len(failures)]
    return {
        example: [_cosine(one, vector) for one in wanted]
        for example, vector in zip(shown, vectors[len(failures) :], strict=True)
    }


def _weighed(words: Counter[str], spread: Counter[str], texts: int) -> dict[str, float]:
    weights = {
        word: count * (1 + log((1 + texts) / (1 + spread[word]))) for word, count in words.items()
    }
    length = sqrt(sum(weight * weight for weight in weights.values())) or 1.0
    return {word: weight / length for word, weight in weights.items()}


def _cosine(one: dict[str, float], other: dict[str, float]) -> float:
    return sum(weight * other.get(word, 0.0) for word, weight in one.items())
