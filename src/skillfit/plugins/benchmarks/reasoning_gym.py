"""Reasoning Gym: procedural reasoning tasks with verifiers, from the `reasoning-gym` package.

`reasoning_gym:chain_sum` makes items of that task, without any download. The task's own verifier
scores the answer: soft is its score, hard is whether that is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypedDict

from skillfit.errors import InputError, TaskFailure, did_you_mean
from skillfit.extensions import (
    JsonValue,
    PartDescription,
    SourceReference,
    TaskSource,
    call_user_code,
)
from skillfit.plugins.benchmarks.benchmark import ItemRow
from skillfit.tasks.graders.built_in import Extract
from skillfit.tasks.item import Attempt, Item, Score
from skillfit.tasks.task import LoadContext, SourceItems

_EXTRACT = (Extract(tag="answer"), Extract(last_line=True))
_PROMPT = """You solve small reasoning problems.

{skill}

Reason first. Then put your final answer into <answer>...</answer>, in the form the problem asks
for, with nothing else inside the tags."""


def reasoning_gym(
    reference: SourceReference, *, size: int = 120, seed: int = 42, **settings: Any
) -> TaskSource:
    """`size`: how many items to make, from `seed`. Other options are those of the task, for
    example `reasoning_gym:chain_sum?min_terms=4`.
    """

    def load(context: LoadContext) -> SourceItems:
        dataset = _dataset(reference.argument, {"size": size, "seed": seed, **settings})
        rows = [_row(reference.argument, at, dataset[at]) for at in range(size)]
        described = {"task": reference.argument, "size": size, "seed": seed, **settings}
        return SourceItems(rows, grader=VerifierGrader(dataset, described))

    skill = str(Path(__file__).with_suffix("") / "reasoning_gym.md")
    return TaskSource(load, {"env": {"agent": "chat", "prompt": _PROMPT, "skill": skill}})


def _dataset(name: str, settings: Mapping[str, JsonValue]) -> Any:
    if find_spec("reasoning_gym") is None:
        raise InputError(
            "reasoning_gym: tasks need the package reasoning-gym.",
            hint="pip install 'skillfit[reasoning-gym]'",
        )
    package = import_module("reasoning_gym")
    known = sorted(import_module("reasoning_gym.factory").DATASETS)
    if name not in known:
        raise InputError(
            f"env.tasks: reasoning_gym has no task {name!r}.",
            hint=did_you_mean(name, known) or f"Some of them: {', '.join(known[:8])}, …",
        )
    try:
        return package.create_dataset(name, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(f"env.tasks: reasoning_gym:{name}: {error}.") from error


class Problem(TypedDict):
    """A problem of the package; it has more keys, which only its verifier reads."""

    question: str
    answer: str | None


class _EntryRow(ItemRow):
    index: int  # in the data set


def _row(name: str, at: int, entry: Problem) -> _EntryRow:
    row: _EntryRow = {"id": f"{name}-{at}", "input": str(entry["question"]), "index": at}
    answer = entry.get("answer")
    return row if answer is None else {**row, "answers": [str(answer)]}


@dataclass(frozen=True)
class VerifierGrader:
    """Scores answers with the verifier of a reasoning_gym data set."""

    dataset: Any
    settings: Mapping[str, JsonValue]

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        text = attempt.answer.strip()
        if not attempt.bare:
            found = (way.find(attempt.answer) for way in _EXTRACT)
            text = next((answer for answer in found if answer), "")
        if not text:
            return Score(0.0, feedback="No answer was given.")
        entry = self.dataset[int(item.content()["index"])]
        where = f"the verifier on item {item.id}"
        value = await call_user_code(
            self.dataset.score_answer, text, entry, kind="grader", where=where
        )
        try:
            soft = min(1.0, max(0.0, float(value)))
        except (TypeError, ValueError) as error:
            raise TaskFailure("grader", f"{where} returned {value!r}.") from error
        right = soft >= 0.999
        return Score(float(right), soft, "" if right else "The answer is wrong.")

    def patterns(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> PartDescription:
        return {"reasoning_gym": dict(self.settings)}
