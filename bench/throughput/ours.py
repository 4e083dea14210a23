"""The work through skillfit: chat agent, real client, journal and events on disk, one
`RolloutEngine.run`.
"""

import asyncio
import time
from pathlib import Path

from bench.throughput.world import (
    CONTEXT,
    SKILL,
    gold,
    peak_megabytes,
    question,
    report,
    settings,
)
from skillfit.agents import ChatAgent
from skillfit.models import ModelSpec, connect
from skillfit.rollout import Outcome, RolloutEngine, requests_for
from skillfit.run.events import EventLog
from skillfit.run.journal import Journal, RecordedModel
from skillfit.skill import Skill
from skillfit.tasks.task import Task


def rows(numbers: range) -> list[dict[str, str]]:
    return [
        {
            "id": f"{number:05d}",
            "input": f"## Context\n{CONTEXT}\n\n## Question\n{question(number)}",
            "answer": gold(number),
        }
        for number in numbers
    ]


async def run(
    url: str, numbers: range, concurrency: int, folder: Path
) -> tuple[list[Outcome], float, float, float]:
    """The outcomes, how long they took, the CPU that took, and how long they take again from the
    journal.
    """
    folder.mkdir(exist_ok=True)
    journal = Journal(folder / "journal.db")
    events = EventLog(folder / "journal.db", beside=journal)
    spec = ModelSpec(id="openai/bench", base_url=url)
    client = connect(
        spec,
        role="agent",
        run_id="bench",
        concurrency=concurrency,
        environ={"OPENAI_API_KEY": "none"},
    )
    task = Task(rows(numbers), grade={"normalized": {"extract": "tag"}})
    agent = ChatAgent(RecordedModel(client, journal, "agent"))
    rollouts = RolloutEngine(task, agent, journal, events, max_in_flight=2 * concurrency)
    skill = Skill.from_text(SKILL)
    begun, cpu = time.perf_counter(), time.process_time()
    outcomes = await rollouts.run(
        requests_for(skill, task.items), stage="baseline", series="selection"
    )
    done, cpu = time.perf_counter(), time.process_time() - cpu
    await rollouts.run(requests_for(skill, task.items), stage="baseline", series="selection")
    again = time.perf_counter()
    await client.close()
    return outcomes, done - begun, cpu, again - done


async def main(url: str, count: int, concurrency: int, folder: Path) -> None:
    await run(url, range(count, count + concurrency), concurrency, folder / "warm")
    outcomes, seconds, cpu, resumed = await run(url, range(count), concurrency, folder / "run")
    scores = [None if outcome.score is None else outcome.score.hard for outcome in outcomes]
    report(
        seconds,
        cpu,
        peak_megabytes(),
        scores,
        resumed=resumed,
    )


asyncio.run(main(*settings()))
