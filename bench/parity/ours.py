"""skillfit on the same scenarios: `recipe: paper` through its own config and training entry, read
back from the run's files.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

from bench.parity import world
from bench.parity.outcome import Outcome, read_json, read_outcome
from bench.parity.scenario import Scenario
from skillfit.config import Config, load_config
from skillfit.training.inputs import read_inputs
from skillfit.training.start import start

_KEY = "PARITY_API_KEY"


def config(scenario: Scenario, url: str, folder: Path) -> Config:
    """The smallest config that names the task, and the scenario's settings: the rest is the
    recipe's.
    """
    spec = {"base_url": url, "key_env": _KEY}
    return load_config(
        {
            "recipe": "paper",
            "model": {
                "agent": {"id": f"openai/target.{scenario.name}", **spec},
                "optimizer": {
                    "id": f"openai/optimizer.{scenario.name}",
                    "context_window": 1_000_000,
                    **spec,
                },
            },
            "env": {
                "skill": str(folder / "skill.md"),
                "tasks": str(folder / "items"),
                "grader": {"normalized": {"extract": "tag"}},
            },
            **scenario.settings(),
        }
    )


async def run(scenario: Scenario, url: str, folder: Path) -> Outcome:
    os.environ.setdefault(_KEY, "not-a-key")
    for split in world.SIZES:
        (folder / "items" / split).mkdir(parents=True)
        (folder / "items" / split / "items.json").write_text(
            json.dumps(world.items(scenario.seed, split))
        )
    (folder / "skill.md").write_text(world.SKILL)
    result = await start(read_inputs(config(scenario, url, folder)), folder / "run")
    return read(scenario, result.run)


def run_all(scenarios: Sequence[Scenario], url: str, folder: Path) -> dict[str, Outcome]:
    async def each() -> list[Outcome]:
        return await asyncio.gather(*(one(scenario) for scenario in scenarios))

    async def one(scenario: Scenario) -> Outcome:
        async with few:
            return await run(scenario, url, folder / scenario.name)

    few = asyncio.Semaphore(4)
    return dict(zip((scenario.name for scenario in scenarios), asyncio.run(each()), strict=True))


def read(scenario: Scenario, run: Path) -> Outcome:
    state = read_json(run / "runtime_state.json")
    return read_outcome(scenario, run, (run / state["current_skill_path"]).read_text())
