"""Propose a grader for items from their answers, and try it before it is used.

Gold answers must score 1; answers of other items, and empty ones, must score 0. No model is called:
graders that ask a judge are proposed without a trial.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from skillfit.tasks.graders import build_grader, golds
from skillfit.tasks.graders.text import normalized
from skillfit.tasks.item import Attempt, Grader, Item, TaskFailure

GraderSetting = str | dict[str, Any]
_TESTS = ("tests", "test", "test_list", "test_cases", "unit_tests", "test_code")
_CHECKS = ("assertions", "expectations")
_TRIED = 200  # items that a grader is tried on
_TRIED_SLOWLY = 5  # items that a grader is tried on if it runs programs
_SHORT_ANSWER, _LONG_ANSWER = 6, 12  # words
_SAME_FACTS = (
    "The answer states the same facts as the reference and nothing that contradicts it. Wording "
    "and order do not matter."
)


@dataclass(frozen=True, slots=True)
class GraderTrial:
    """How a grader scored answers that are known to be right and wrong."""

    gold: int  # gold answers graded
    gold_missed: tuple[str, ...]  # of these, which did not score 1: "ITEM: REASON"
    wrong: int  # answers of other items, and empty answers, graded
    wrong_passed: tuple[str, ...]  # of these, which scored more than 0: "ITEM: ANSWER"

    @property
    def clean(self) -> bool:
        return not self.gold_missed and not self.wrong_passed


@dataclass(frozen=True, slots=True)
class GraderProposal:
    """A value for `env.grader`. `trial` is None for graders that ask a judge model."""

    setting: GraderSetting
    why: str
    trial: GraderTrial | None = None
    needs_judge: bool = False
    compares_reference: bool = False  # it needs the gold answer in the field `reference`


async def propose_grader(items: Sequence[Item]) -> GraderProposal:
    """A grader for these items: of those that suit the answers, the first that scores gold answers
    1 and wrong answers 0. If none does, the first of them, with its failed trial.
    """
    sample = [item.loaded() for item in items[:_TRIED]]
    tried: list[GraderProposal] = []
    for setting, why in _candidates(sample):
        trial = await try_grader(build_grader(setting), sample)
        proposal = GraderProposal(setting, why, trial)
        if trial.clean:
            return proposal
        tried.append(proposal)
    return tried[0] if tried else _judged(sample)


def _candidates(items: Sequence[Item]) -> list[tuple[GraderSetting, str]]:
    """Graders that suit the answers, best first, each with the reason."""
    tests = _common_column(items, _TESTS)
    if tests:
        return [({"code": {"column": tests}}, f"the column {tests!r} holds tests")]
    if any(_common_column(items, (name,)) for name in (*_CHECKS, "rubric")):
        return []
    answers = [answer for item in items for answer in item.answers]
    if not answers or not all(item.has_answers for item in items):
        return []
    found: list[tuple[GraderSetting, str]] = []
    if all(item.content().get("choices") for item in items):
        found.append(("choice", "every item has choices"))
    if all(len(answer.strip()) == 1 and answer.strip().upper() in "ABCDE" for answer in answers):
        found.append(("choice", "every answer is a letter from A to E"))
    if all(_is_number(answer) for answer in answers):
        found.append(("numeric", "every answer is a number"))
    if all(_is_object(answer) for answer in answers):
        found.append(("json_fields", "every answer is a JSON object"))
    if found or median(len(answer.split()) for answer in answers) > _LONG_ANSWER:
        return found
    if len(set(answers)) <= max(2, len(answers) // 3):
        why = f"the answers are {len(set(answers))} labels"
        found.append(({"exact": {"ignore_case": True}}, why))
    if max(len(answer.split()) for answer in answers) <= _SHORT_ANSWER:
        found.append(("normalized", "the answers are short texts"))
    found.append(("exact", "the answers are texts"))
    return found


def _judged(items: Sequence[Item]) -> GraderProposal:
    """A grader that asks a judge model, for answers that only a reader can compare."""
    if any(_common_column(items, (name,)) for name in _CHECKS):
        return GraderProposal("checklist", "the items have assertions", needs_judge=True)
    if _common_column(items, ("rubric",)):
        return GraderProposal("rubric", "the items have a rubric", needs_judge=True)
    if items and all(item.reference or item.has_answers for item in items):
        why = "the answers are long texts, which only a reader can compare"
        return GraderProposal(
            {"rubric": _SAME_FACTS}, why, needs_judge=True, compares_reference=True
        )
    return GraderProposal(
        {"rubric": "Describe here what a good answer is."},
        "some items have no answer to compare with",
        needs_judge=True,
    )


def _common_column(items: Sequence[Item], names: Sequence[str]) -> str:
    """The first of these columns that every item has; empty if there is none."""
    for name in names:
        if items and all(item.content().get(name) for item in items):
            return name
    return ""


def _is_number(answer: str) -> bool:
    bare = answer.strip().lstrip("-+$€£¥").rstrip("%").replace(",", "")
    if "####" in answer:  # GSM8K: the reasoning, then the number
        bare = answer.rpartition("####")[2].strip().lstrip("-+$").replace(",", "")
    try:
        float(bare)
    except ValueError:
        return False
    return bare[:1].isdigit() or bare[:1] == "."


def _is_object(answer: str) -> bool:
    try:
        return isinstance(json.loads(answer), dict)
    except (ValueError, RecursionError):
        return False


async def try_grader(grader: Grader, items: Sequence[Item]) -> GraderTrial:
    """Grade every item's gold answers, the answer of another item, and an empty answer."""
    slow = "code" in grader.describe()
    missed, passed = [], []
    gold_count = wrong_count = 0
    for item in items[: _TRIED_SLOWLY if slow else _TRIED]:
        for answer in golds(grader, item):
            gold_count += 1
            score, reason = await _hard_score(grader, item, answer)
            if score < 1:
                missed.append(f"{item.id}: {reason or f'the gold answer {answer!r:.60} is not 1'}")
        for answer in (*_wrong_answer(grader, item, items), ""):
            wrong_count += 1
            score, _ = await _hard_score(grader, item, answer)
            if score > 0:
                passed.append(f"{item.id}: {answer!r:.60}")
    return GraderTrial(gold_count, tuple(missed), wrong_count, tuple(passed))


def _wrong_answer(grader: Grader, item: Item, items: Sequence[Item]) -> tuple[str, ...]:
    """A gold answer of another item that is not a gold answer of this one."""
    right = {normalized(answer) for answer in (*golds(grader, item), *item.answers)}
    for other in items:
        for answer in golds(grader, other):
            if normalized(answer) not in right:
                return (answer,)
    return ()


async def _hard_score(grader: Grader, item: Item, answer: str) -> tuple[float, str]:
    """The score, and why it is not 1."""
    try:
        score = await grader.grade(item, Attempt(answer, bare=True))
    except TaskFailure as failure:
        return 0.0, failure.message
    return score.hard, score.feedback
