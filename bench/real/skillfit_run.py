"""A whole run of skillfit in a world: `skillfit.train` with its own defaults and a budget of
rollouts, its models in the same process.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import skillfit
from bench.real.play import Players
from bench.real.run import Job, Run
from bench.real.world import Split, World
from skillfit.errors import InputError

SPLITS: tuple[Split, ...] = ("train", "selection", "test")
_SCRIPT = Path(__file__).with_name("scripted.py")
_now_playing: list[Players] = []


def playing() -> Players:
    """The models of the run that this process makes."""
    return _now_playing[-1]


def train(job: Job, players: Players, settings: Mapping[str, Any]) -> Run:
    with tempfile.TemporaryDirectory(prefix="bench-real-") as scratch:
        folder = Path(scratch)
        begun = time.process_time()
        try:
            run = run_in(folder, job, players, settings)
        except InputError as error:
            skill, verdict, problem = players.world.start, "refused", str(error)
        else:
            skill = (folder / "run" / "best_skill.md").read_text(encoding="utf-8")
            verdict, problem = run.finish_reason, ""
        seconds = time.process_time() - begun
    return Run.of(job, players, skill, verdict, seconds, problem)


def run_in(folder: Path, job: Job, players: Players, settings: Mapping[str, Any]) -> skillfit.Run:
    """Train in a folder, which keeps the run."""
    with _playing(players):
        write_task(players.world, folder)
        return skillfit.train(
            config=_config(folder, job),
            settings=settings,
            run=folder / "run",
            force=True,
            progress=False,
        )


@contextmanager
def _playing(players: Players) -> Iterator[None]:
    _now_playing.append(players)
    try:
        yield
    finally:
        _now_playing.pop()


def write_task(world: World, folder: Path) -> None:
    """The initial skill and the items a run gets, as skillfit reads them."""
    (folder / "skill.md").write_text(world.start.rstrip() + "\n", encoding="utf-8")
    rows = [
        {"id": i.id, "input": i.ask, "answer": i.gold, "type": i.kind, "split": i.split}
        for split in SPLITS
        for i in world.given(split)
    ]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")


def _config(folder: Path, job: Job) -> dict[str, Any]:
    models = {role: {"id": f"scripted/{_SCRIPT}:{role}"} for role in ("agent", "optimizer")}
    return {
        "model": {**models, "concurrency": 8},
        "env": {
            "skill": str(folder / "skill.md"),
            "tasks": str(folder / "tasks.jsonl"),
            "grader": {"normalized": {"extract": "tag"}},
        },
        "train": {"seed": job.seed},
        "budget": {"rollouts": job.budget},
    }
