"""Worked examples as edits: solved training items, chosen for the failures they resemble. Needs no optimizer model.

An example is an edit with op `example`, so it is budgeted, gated and credited like any other.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log, sqrt

from skillfit.optimize.patch import EXAMPLE_OP, Patch, Proposal
from skillfit.optimize.trajectories import cut
from skillfit.rollout.outcome import Outcome
from skillfit.run.events import ReflectionFinished
from skillfit.skill import Applied, Edit, EditResult, Example, Skill, apply_edits, examples, with_examples
from skillfit.tasks.item import Item

MAX_EXAMPLES = 8  # in a skill: more cost the agent's attention on every task
_SIDE = 2_000  # characters of an example's input or output
_LOOKED_AT = 4_000  # characters of a text that decide what it resembles
_WORD = re.compile(r"\w+")

Vector = Mapping[str, float]


def solved_examples(items: Sequence[Item], outcomes: Iterable[Outcome] = ()) -> tuple[Example, ...]:
    """Training items with an answer known to be right: the agent's own where a rollout succeeded, else the gold one.

    Items with attached files or images are left out: without these, an example would mislead.
    """
    own = {outcome.item_id: outcome.attempt.answer for outcome in outcomes if outcome.succeeded and outcome.attempt is not None}
    found = []
    for item in items:
        if item.split in ("selection", "test"):
            raise ValueError(f"item {item.id} of the {item.split} split may not become an example")
        answer = own.get(item.id) or next(iter(item.answers), "")
        if answer.strip() and item.input.strip() and not item.attachments():
            found.append(Example(cut(item.input.strip(), _SIDE), cut(answer.strip(), _SIDE), item.id))
    return tuple(found)


def propose_examples(
    skill: Skill, failures: Sequence[Item], solved: Sequence[Example], *, edit_budget: int | None, max_tokens: int | None = None
) -> Patch:
    """At most an edit budget's worth of examples for these failures, each worth more than what it takes the place of."""
    held = list(examples(skill))
    known = {example.item_id for example in held}
    pool = [example for example in solved if example.item_id not in known]
    likeness = _Likeness([*(item.input for item in failures), *(example.input for example in [*held, *pool])])
    covered = [max((likeness(item.input, example.input) for example in held), default=0.0) for item in failures]
    proposals: list[Proposal] = []
    limit = MAX_EXAMPLES if edit_budget is None else min(edit_budget, MAX_EXAMPLES)
    while pool and len(proposals) < limit:
        chosen = _most_helpful(pool, failures, covered, likeness)
        if chosen is None:
            break
        pool.remove(chosen.example)
        edit = _edit(skill, chosen, held, failures, likeness, max_tokens)
        if edit is None:
            continue
        skill = apply_all(skill, [edit], max_tokens=max_tokens).skill
        held = [example for example in held if example.item_id != edit.target]
        covered = [max(pair) for pair in zip(covered, chosen.likeness, strict=True)]
        proposals.append(Proposal(edit, "examples", chosen.helped))
    return Patch(tuple(proposals), "examples", tuple(item.id for item in failures), "Solved items that resemble the failures.")


def apply_all(skill: Skill, edits: Sequence[Edit], *, max_tokens: int | None = None) -> Applied:
    """`apply_edits` that knows worked examples too. Edits of the text that follow each other are one patch."""
    results: list[EditResult] = []
    for is_example, run in groupby(edits, key=lambda edit: edit.op == EXAMPLE_OP):
        if not is_example:
            applied = apply_edits(skill, list(run), max_tokens=max_tokens)
            skill = applied.skill
            results += applied.results
            continue
        for edit in run:
            result, skill = _apply_example(skill, edit, max_tokens)
            results.append(result)
    return Applied(skill, tuple(results))


def reflection_event(patch: Patch, step: int) -> ReflectionFinished:
    """The examples' line among the reflections of a step."""
    return ReflectionFinished(step=step, group="examples", source="examples", items=list(patch.items), patch=patch.as_reflection())


@dataclass(frozen=True, slots=True)
class _Choice:
    example: Example
    gain: float
    likeness: tuple[float, ...]  # to each failure
    helped: tuple[str, ...]  # failures it resembles more than anything shown so far


def _most_helpful(
    pool: Sequence[Example], failures: Sequence[Item], covered: Sequence[float], likeness: _Likeness
) -> _Choice | None:
    """The example that adds most to what the failures find that is like them; the first in planned order on ties."""
    best: _Choice | None = None
    for example in pool:
        alike = tuple(likeness(item.input, example.input) for item in failures)
        gains = [max(0.0, value - before) for value, before in zip(alike, covered, strict=True)]
        if sum(gains) > (best.gain if best else 0.0):
            helped = tuple(item.id for item, gain in zip(failures, gains, strict=True) if gain > 0)
            best = _Choice(example, sum(gains), alike, helped)
    return best


def _edit(
    skill: Skill, chosen: _Choice, held: Sequence[Example], failures: Sequence[Item], likeness: _Likeness, max_tokens: int | None
) -> Edit | None:
    """Add the example where there is room, else in the place of the one these failures resemble least, else not at all."""
    added = _example_edit(chosen.example)
    if apply_all(skill, [added], max_tokens=max_tokens).edits:
        return added
    worth = {example.item_id: sum(likeness(item.input, example.input) for item in failures) for example in held}
    for item_id in sorted(worth, key=lambda item_id: worth[item_id]):
        replaced = _example_edit(chosen.example, item_id)
        if worth[item_id] < sum(chosen.likeness) and apply_all(skill, [replaced], max_tokens=max_tokens).edits:
            return replaced
    return None


def _example_edit(example: Example, replaces: str = "") -> Edit:
    content = {"item_id": example.item_id, "input": example.input, "output": example.output}
    return Edit(EXAMPLE_OP, replaces, json.dumps(content, ensure_ascii=False), label=f"example {example.item_id}")


def _apply_example(skill: Skill, edit: Edit, max_tokens: int | None) -> tuple[EditResult, Skill]:
    example = Example(**json.loads(edit.content))
    held = list(examples(skill))
    known = [other.item_id for other in held]
    if example.item_id in known:
        return EditResult(edit, "skipped_no_change", "the skill already shows this item"), skill
    if edit.target and edit.target not in known:
        return EditResult(edit, "skipped_example_target_not_found", f"the skill shows no example {edit.target}"), skill
    if not edit.target and len(held) >= MAX_EXAMPLES:
        return EditResult(edit, "skipped_example_limit", f"the skill already shows {MAX_EXAMPLES} examples"), skill
    new = [example if other.item_id == edit.target else other for other in held] if edit.target else [*held, example]
    grown = with_examples(skill, new)
    if max_tokens is not None and grown.tokens > max_tokens and grown.tokens > skill.tokens:
        reason = f"the skill would have about {grown.tokens} tokens; {max_tokens} are allowed"
        return EditResult(edit, "skipped_over_token_ceiling", reason), skill
    return EditResult(edit, "applied_example"), grown


class _Likeness:
    """How alike two of some texts are: the cosine of their words, rare ones weighing more."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = {text: Counter(_WORD.findall(text[:_LOOKED_AT].casefold())) for text in texts}
        spread = Counter(word for words in counts.values() for word in words)
        self._vectors = {text: _weighed(words, spread, len(counts)) for text, words in counts.items()}

    def __call__(self, one: str, other: str) -> float:
        first, second = sorted((self._vectors[one], self._vectors[other]), key=len)
        return sum(weight * second.get(word, 0.0) for word, weight in first.items())


def _weighed(words: Counter[str], spread: Counter[str], texts: int) -> Vector:
    weights = {word: count * (1 + log((1 + texts) / (1 + spread[word]))) for word, count in words.items()}
    length = sqrt(sum(weight * weight for weight in weights.values())) or 1.0
    return {word: weight / length for word, weight in weights.items()}
