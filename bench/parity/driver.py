"""Runs scenarios through skillopt 0.2.0, one after another in one process. Started by reference.py
with that package's interpreter:

    python driver.py URL FOLDER SCENARIO …

Leaves each run's own files in FOLDER/SCENARIO/out, and the skill of every rollout in
FOLDER/SCENARIO/rollouts.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])
from bench.parity import world  # noqa: E402
from bench.parity.scenario import Scenario  # noqa: E402

# Settings that have another name in SkillOpt's trainer.
_FLAT = {"learning_rate": "edit_budget", "min_learning_rate": "min_edit_budget"}


def config(scenario: Scenario, folder: Path) -> dict[str, Any]:
    flat = {
        _FLAT.get(key, key): value
        for section in scenario.settings().values()
        for key, value in section.items()
    }
    return flat | {
        "env": "searchqa",
        "out_root": str(folder / "out"),
        "skill_init": str(folder / "skill.md"),
        "split_mode": "split_dir",
        "split_dir": str(folder / "items"),
        "optimizer_model": f"optimizer.{scenario.name}",
        "target_model": f"target.{scenario.name}",
        "optimizer_backend": "openai_chat",
        "target_backend": "openai_chat",
        "analyst_workers": 4,
        "reasoning_effort": "",
        "rewrite_reasoning_effort": "",
        "workers": 6,
    }


def run(scenario: Scenario, folder: Path) -> None:
    from skillopt.engine.trainer import ReflACTTrainer
    from skillopt.envs.searchqa.adapter import SearchQAAdapter

    for split in world.SIZES:
        (folder / "items" / split).mkdir(parents=True)
        (folder / "items" / split / "items.json").write_text(
            json.dumps(world.items(scenario.seed, split))
        )
    (folder / "skill.md").write_text(world.SKILL)
    cfg = config(scenario, folder)
    wanted = (
        "split_dir",
        "split_mode",
        "workers",
        "analyst_workers",
        "failure_only",
        "minibatch_size",
        "edit_budget",
        "seed",
    )
    adapter = SearchQAAdapter(**{name: cfg[name] for name in wanted})
    skills: dict[str, str] = {}
    rollout = adapter.rollout

    def watched(items: Any, skill: str, out_dir: str, **more: Any) -> Any:
        skills[os.path.relpath(out_dir, cfg["out_root"])] = skill
        return rollout(items, skill, out_dir, **more)

    adapter.rollout = watched
    ReflACTTrainer(cfg, adapter).train()
    (folder / "rollouts.json").write_text(json.dumps(skills))


def main(url: str, folder: str, *names: str) -> None:
    os.environ |= {
        "AZURE_OPENAI_AUTH_MODE": "openai_compatible",
        "AZURE_OPENAI_ENDPOINT": url,
        "AZURE_OPENAI_API_KEY": "not-a-key",
    }
    for name in names:
        run(Scenario.parse(name), Path(folder) / name)
        print(f"PARITY DONE {name}", flush=True)


main(*sys.argv[1:])
