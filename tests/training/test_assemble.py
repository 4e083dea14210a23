"""What a run is assembled from: the two graders of the ship test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skillfit.errors import SkillfitError, TaskFailure
from skillfit.extensions import PartDescription
from skillfit.models.protocol import (
    AnswerPending,
    AuthFailed,
    ModelError,
    Overloaded,
    QuotaExhausted,
    Refused,
)
from skillfit.run.budget import BudgetReached
from skillfit.run.control import Interrupted
from skillfit.tasks.item import Attempt, Item, Score
from skillfit.training.assemble import BothGraders


class Steps:
    """A grader that raises or returns one thing after the other."""

    def __init__(self, *steps: SkillfitError | Score) -> None:
        self._steps: Iterator[SkillfitError | Score] = iter(steps)
        self.calls = 0

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        self.calls += 1
        step = next(self._steps)
        if isinstance(step, SkillfitError):
            raise step
        return step

    def patterns(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> PartDescription:
        return {"grader": "steps"}


ITEM = Item.from_content("one", {"question": "?"})


async def graded(trained: Steps) -> Score:
    return await BothGraders(Steps(Score(1.0)), trained).grade(ITEM, Attempt("red"))


@pytest.mark.parametrize(
    "failure",
    [
        TaskFailure("config", "The image does not exist."),
        AuthFailed("The key is wrong."),
        QuotaExhausted("The account is empty."),
        AnswerPending("A prompt was written."),
        BudgetReached("usd", 1.0, 1.0),
        Interrupted(),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_a_fatal_failure_of_the_training_grader_ends_the_run(
    failure: SkillfitError,
) -> None:
    trained = Steps(failure)
    with pytest.raises(type(failure)) as raised:
        await graded(trained)
    assert raised.value is failure and trained.calls == 1


@pytest.mark.parametrize("failure", [TaskFailure("docker", "No daemon."), Overloaded("Busy.")])
async def test_a_transient_failure_of_the_training_grader_is_retried(
    failure: TaskFailure | ModelError,
) -> None:
    score = await graded(Steps(failure, Score(0.0, 0.5)))
    assert score == Score(1.0, trained=(0.0, 0.5))


@pytest.mark.parametrize(
    ("failures", "calls"),
    [
        ((TaskFailure("docker", "No daemon."),) * 2, 2),
        ((TaskFailure("grader", "ZeroDivisionError"),), 1),
        ((Refused("The judge does not answer this."),), 1),
        ((Overloaded("Busy."),) * 2, 2),
    ],
)
async def test_a_rollout_is_kept_when_only_the_training_grader_fails(
    failures: tuple[TaskFailure | ModelError, ...], calls: int
) -> None:
    trained = Steps(*failures)
    assert await graded(trained) == Score(1.0)
    assert trained.calls == calls
