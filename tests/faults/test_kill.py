"""A run killed at any point and started again has the result of an uninterrupted one and sends no
request twice.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from skillfit.run.events import RolloutFinished
from skillfit.run.journal import Journal
from tests.support.chat_server import Call, ChatServer
from tests.training.agent_optimizer import Worker, working
from tests.training.practice_project import (
    Script,
    TrainingProject,
    analyse,
    answered,
    append,
    differences,
    fingerprint,
    items,
    readable,
    write_project,
)

ROOT = Path(__file__).parents[2]
CHUNKS = 4
ROWS = items(2, 4, 1, ("green", "blue"))
USELESS = json.dumps(
    {"success_patterns": ["short"], **append("- Be kind.")}
)  # a tie: rejected by strict, remembered
SETTINGS = [
    "gradient.minibatch_size=1",
    "optimizer.learning_rate=1",
    "optimizer.min_learning_rate=1",
]
STRICT = [
    *SETTINGS,
    "train.num_epochs=2",
    "train.batch_size=2",
    *(f"evaluation.{s}" for s in ("gate=strict", "ship_test=false")),
]
SCREENING = [
    *SETTINGS,
    "optimizer.use_skill_aware_reflection=true",
    "evaluation.ship_test=false",
]
SHIPPED = [*SETTINGS, "evaluation.eval_test=false"]
# Several steps, whose selection rollouts run beside the training rollouts and the proposer.
CORPUS = [
    *SETTINGS,
    "evaluation.ship_test=false",
    "optimizer.proposer=corpus",
    "train.num_epochs=3",
    "train.batch_size=1",
]
AGENT = [*CORPUS, "optimizer.proposer=agent", "train.num_epochs=1"]
GATES = {"strict": STRICT, "screening": SCREENING}


def with_note(call: Call) -> str:
    """An analyst that also leaves a note, where notes are asked for."""
    return json.dumps({**analyse(call), "appendix_notes": ["Look at the first word."]})


@dataclass
class Killer:
    """A project whose trainings run in children of the driver."""

    project: TrainingProject
    driver: subprocess.Popen[str]
    numbers: Iterator[int] = field(default_factory=count)
    kills: int = 0

    def train(
        self, run: Path, settings: list[str], kill: tuple[str, int] | None = None
    ) -> tuple[dict[str, Any], Counter[str]]:
        """How it ended, and its requests. Each child has its own key, so that what a killed one
        sent is not taken for the next one's: a server may read a request after its sender was
        killed.
        """
        key = f"key-of-{self.project.folder.name}-{next(self.numbers)}"
        order = {
            "config": self.project.config(),
            "settings": settings,
            "run": str(run),
            "key": key,
            "kill": kill,
        }
        assert self.driver.stdin and self.driver.stdout
        self.driver.stdin.write(json.dumps(order) + "\n")
        self.driver.stdin.flush()
        report = json.loads(self.driver.stdout.readline())
        self.kills += report["killed"]
        return report, Counter(
            fingerprint(call)
            for call in self.project.calls
            if call.headers["authorization"] == f"Bearer {key}"
        )


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    folder = write_project(tmp_path_factory.mktemp("killed"), ROWS)
    environment = {**os.environ, "OPENAI_API_KEY": "a-key-of-the-tests", "PYTHONPATH": str(ROOT)}
    script = Script(
        {"reflect.success": USELESS, "reflect.failure": with_note, "reflect.agent": working}
    )
    with ChatServer(script) as server:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.killed_training"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        with driver:
            killer = Killer(TrainingProject(folder, server), driver)
            killer.train(folder / "first", SETTINGS)
            yield killer
            assert driver.stdin
            driver.stdin.close()


@pytest.fixture(autouse=True)
def counted_kills(killer: Killer, record_property: Callable[[str, int], None]) -> Iterator[None]:
    """Count for `python -m bench.faults`."""
    before = killer.kills
    yield
    record_property("runs killed and resumed", killer.kills - before)


@dataclass
class Straight:
    """The uninterrupted run."""

    files: dict[str, Any]
    passed: dict[str, int]
    requests: Counter[str]


@pytest.fixture(scope="module", params=list(GATES))
def straight(request: pytest.FixtureRequest, killer: Killer) -> tuple[list[str], Straight]:
    settings = GATES[request.param]
    return settings, undisturbed(killer, settings, request.param)


def undisturbed(killer: Killer, settings: list[str], name: str) -> Straight:
    run = killer.project.folder / f"straight-{name}"
    report, requests = killer.train(run, settings)
    assert report["reason"] in ("improved", "inconclusive", "no_improvement"), report
    return Straight(readable(run), report["passed"], requests)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_run_killed_after_any_record_ends_the_same_and_sends_nothing_again(
    killer: Killer, straight: tuple[list[str], Straight], chunk: int
) -> None:
    settings, expected = straight
    for number in range(1 + chunk, expected.passed["record"] + 1, CHUNKS):
        check_kill(killer, settings, expected, ("record", number))


@pytest.mark.parametrize("kind", ["event", "file"])
def test_a_run_killed_between_events_or_files_ends_the_same(
    killer: Killer, straight: tuple[list[str], Straight], kind: str
) -> None:
    settings, expected = straight
    for number in range(2, expected.passed[kind] + 1, 13):
        check_kill(killer, settings, expected, (kind, number))


def test_a_run_killed_during_the_ship_test_ends_the_same(killer: Killer) -> None:
    expected = undisturbed(killer, SHIPPED, "shipped")
    for number in range(expected.passed["record"], expected.passed["record"] // 2, -11):
        check_kill(killer, SHIPPED, expected, ("record", number))


def test_a_run_killed_while_edits_are_measured_beside_the_proposer_ends_the_same(
    killer: Killer,
) -> None:
    expected = undisturbed(killer, CORPUS, "corpus")
    phases = {event.phase for event in killer.project.events(RolloutFinished, "straight-corpus")}
    assert {"rollout", "gate", "prune"} <= phases
    for number in range(3, expected.passed["record"] + 1, 5):
        check_kill(killer, CORPUS, expected, ("record", number))


def test_a_run_killed_while_the_optimizer_uses_tools_ends_the_same(killer: Killer) -> None:
    expected = undisturbed(killer, AGENT, "agent")
    for number in range(2, expected.passed["record"] + 1, 2):
        check_kill(killer, AGENT, expected, ("record", number))


def test_the_session_of_a_program_is_not_run_again_once_it_is_recorded(
    killer: Killer, tmp_path: Path
) -> None:
    worker = Worker(tmp_path / "worker")
    settings = [*AGENT, *worker.settings]
    expected = undisturbed(killer, settings, "program")
    tried = set()
    for number in range(2, expected.passed["record"] + 1, 4):
        run = killer.project.folder / "killed"
        shutil.rmtree(run, ignore_errors=True)
        assert killer.train(run, settings, ("record", number))[0]["killed"]
        sessions = recorded_sessions(run)
        if sessions == recorded_sessions(killer.project.folder / "straight-program"):
            worker.install(extra="sys.exit('it was started again')")
        report, _ = killer.train(run, settings)
        worker.install()
        assert "reason" in report, (number, report)
        assert differences(readable(run), expected.files) == [], number
        tried.add(sessions)
    assert len(tried) > 1


def recorded_sessions(run: Path) -> int:
    journal = Journal(run / "journal.sqlite", readonly=True)
    try:
        return journal.count("paid/agent/")
    finally:
        journal.close()


def check_kill(
    killer: Killer, settings: list[str], expected: Straight, kill: tuple[str, int]
) -> None:
    run = killer.project.folder / "killed"
    shutil.rmtree(run, ignore_errors=True)
    assert killer.train(run, settings, kill)[0]["killed"]
    recorded = answered(run)
    report, again = killer.train(run, settings)
    assert not report["killed"] and "reason" in report, (kill, report)
    # With a lag, two steps may send the optimizer the same request, so twice is correct.
    twice = again + recorded - expected.requests
    assert not twice, f"{kill}: requests sent again although their answers were recorded"
    assert again + recorded == expected.requests, kill
    assert differences(readable(run), expected.files) == [], kill
