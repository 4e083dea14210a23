from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from skillfit.agents import CallableAgent
from skillfit.agents.agent import AgentFailure, AttemptContext
from skillfit.models.protocol import RateLimited
from skillfit.run.budget import BudgetReached
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Score, TrajectoryStep

SKILL = Skill.from_text("Say it twice.")
ITEM = Item("i1", {"input": "ho", "answers": ["hoho"], "reference": "gold", "colour": "red"})


async def test_a_plain_function_is_an_agent() -> None:
    attempt = await CallableAgent(lambda skill, item: item["input"] * 2).attempt(
        SKILL, ITEM, AttemptContext()
    )

    assert attempt.answer == "hoho"
    assert attempt.steps[0].text == "hoho"


async def test_an_async_callable_object_is_an_agent_and_gets_the_arguments_it_names() -> None:
    class Solver:
        async def __call__(
            self, skill: str, item: dict[str, Any], seed: int, instruction: str
        ) -> Attempt:
            return Attempt(f"{skill} {seed} {instruction}")

    attempt = await CallableAgent(Solver()).attempt(
        SKILL, ITEM, AttemptContext(seed=3, instruction="Why?")
    )

    assert attempt.answer == "Say it twice. 3 Why?"


async def test_a_callable_does_not_get_the_gold_answer() -> None:
    seen: dict[str, Any] = {}
    await CallableAgent(lambda skill, item: seen.update(item) or "x").attempt(
        SKILL, ITEM, AttemptContext()
    )

    assert seen == {"id": "i1", "input": "ho", "colour": "red"}


async def test_any_exception_of_a_callable_fails_the_rollout() -> None:
    class Odd(Exception):
        pass

    def broken(skill: str, item: dict[str, Any]) -> str:
        raise Odd("no luck")

    with pytest.raises(
        AgentFailure, match=r"broken on item i1: Odd: no luck \(test_callable\.py:\d+\)"
    ):
        await CallableAgent(broken).attempt(SKILL, ITEM, AttemptContext())


async def test_a_model_error_keeps_its_kind() -> None:
    async def limited(skill: str, item: dict[str, Any]) -> str:
        raise RateLimited("slow down")

    with pytest.raises(RateLimited):
        await CallableAgent(limited).attempt(SKILL, ITEM, AttemptContext())


async def test_a_skillfit_error_that_stops_a_run_is_not_wrapped() -> None:
    def spends(skill: str, item: dict[str, Any]) -> str:
        raise BudgetReached("usd", spent=2.0, limit=1.0)

    with pytest.raises(BudgetReached):
        await CallableAgent(spends).attempt(SKILL, ITEM, AttemptContext())


async def test_many_plain_functions_run_concurrently() -> None:
    """More than there are threads in Python's own pool on a small machine."""
    together = threading.Barrier(40, timeout=20)

    def slow(skill: str, item: dict[str, Any]) -> str:
        together.wait()
        return "x"

    attempts = await asyncio.gather(
        *(CallableAgent(slow).attempt(SKILL, ITEM, AttemptContext()) for _ in range(40))
    )
    assert len(attempts) == 40


async def test_a_result_of_the_wrong_type_is_a_failure() -> None:
    with pytest.raises(AgentFailure, match="returned int"):
        await CallableAgent(lambda skill, item: 4).attempt(SKILL, ITEM, AttemptContext())


async def test_a_lone_surrogate_in_a_callables_result_is_replaced() -> None:
    """It could be neither recorded nor sent to a judge, and would end the run."""

    def solve(skill: str, item: dict[str, Any]) -> Attempt:
        return Attempt("4\ud83d", (TrajectoryStep("message", "\ude00", name="\udcff"),))

    attempt = await CallableAgent(solve).attempt(
        Skill.from_text("x"), Item("i", {"input": "x"}), AttemptContext()
    )
    score = Score(1.0, feedback="\ud83d", evidence=("\ud83d",))
    texts = (attempt.answer, attempt.steps[0].text, attempt.steps[0].name, score.feedback)
    assert all(text.encode() for text in (*texts, *score.evidence))
    assert attempt.answer == "4\N{REPLACEMENT CHARACTER}"
