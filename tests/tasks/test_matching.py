"""Long grading does not delay other work, and it ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.errors import TaskFailure
from skillfit.tasks import Item
from skillfit.tasks.graders import build_grader
from skillfit.tasks.item import Attempt, Score

NEVER_ENDS = "(?:a|aa)+$"  # takes exponential time in the regex package, too
TRAP = "a" * 60 + "b"


async def grade(setting: Any, answer: str, gold: str) -> Score:
    return await build_grader(setting).grade(
        Item("1", {"input": "q", "answers": [gold]}), Attempt(answer)
    )


@pytest.mark.parametrize(
    "setting",
    [{"regex": NEVER_ENDS}, {"exact": {"extract": {"regex": NEVER_ENDS}}}],
    ids=["regex", "extract"],
)
async def test_an_endless_regex_is_a_failure_and_does_not_delay_others(setting: Any) -> None:
    grading = asyncio.ensure_future(grade(setting, TRAP, "a"))
    await asyncio.sleep(0.1)
    assert not grading.done(), "the loop turned while it searched"
    with pytest.raises(
        TaskFailure, match=r"more than 2 s of CPU time on an answer of 61 characters"
    ):
        await grading
    assert (await grade(setting, "aaa", "aaa")).hard == 1, "the next search is as good as ever"


async def test_concurrent_searches_get_their_own_results() -> None:
    grader = {"exact": {"extract": {"regex": r"is (\w+)"}}}
    scores = await asyncio.gather(
        *(grade(grader, f"It is x\nIt is n{number}", f"n{number}") for number in range(50))
    )
    assert [score.hard for score in scores] == [1] * 50


def test_a_running_search_does_not_block_process_exit() -> None:
    script = f"""
import asyncio
from skillfit.tasks import Attempt, Item
from skillfit.tasks.graders import build_grader

async def main():
    grader = build_grader({{"regex": "{NEVER_ENDS}"}})
    try:
        async with asyncio.timeout(0.2):
            await grader.grade(Item("1", {{"input": "q"}}), Attempt("{TRAP}"))
    except TimeoutError:
        print("over")

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("over\n", "")


async def test_comparing_long_texts_does_not_block_the_event_loop() -> None:
    grading = asyncio.ensure_future(grade("anls", "ab" * 6000, "ba " * 6000))
    await asyncio.sleep(0)
    assert not grading.done()
    assert 0 < (await grading).soft < 1


@given(st.text("abc", min_size=1, max_size=12), st.text("abcd", min_size=1, max_size=12))
def test_similarity_is_based_on_the_edit_distance(one: str, other: str) -> None:
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        before, row[0] = row[0], at
        for column, against in enumerate(other, 1):
            before, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, before + (letter != against)),
            )
    soft = asyncio.run(grade({"anls": 0}, one, other)).soft
    assert soft == pytest.approx(1 - row[-1] / max(len(one), len(other)))
