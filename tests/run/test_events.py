"""The event log: ordered, persisted, the same on replay, readable live."""

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from skillfit.config import Config, load_config
from skillfit.config.schema import EvaluationSection
from skillfit.models.registry import ModelSpec
from skillfit.models.secrets import remember_secret
from skillfit.run.events import (
    EventLog,
    GateDecided,
    MarkedRollout,
    RolloutFinished,
    RolloutScore,
    RolloutsDone,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    Stored,
    Unknown,
    Warned,
    as_json,
)
from skillfit.run.records import EditEffect, Evidence, KindEffect, RecordedConfig
from skillfit.run.store import dump
from skillfit.skill import Edit
from tests.support.records import run_started, run_summary

ROLLOUT = RolloutFinished(
    rollout="r1",
    phase="gate",
    step=3,
    item="a",
    repeat=0,
    skill_hash="h",
    status="scored",
    hard=1.0,
    soft=0.5,
    seconds=2.5,
)
STARTED = run_started(config={"budget": {"usd": 1}}, skill="s")
FINISHED = RunFinished(finish_reason="budget", diagnosis="d", best_skill="s", summary=run_summary())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def log_with_listener(path: Path) -> tuple[EventLog, list[Stored]]:
    log, received = EventLog(path), []
    log.listen(received.append)
    return log, received


def test_events_are_read_back_in_order_with_their_types(path: Path) -> None:
    log = EventLog(path)
    events = [STARTED, ROLLOUT, Warned(what="w", message="m")]
    for event in events:
        log.emit(event)
    assert [stored.event for stored in EventLog.open_readonly(path).read()] == events
    assert [stored.event for stored in log.read(after=2)] == events[2:]


def test_replayed_events_are_stored_once_and_listeners_get_the_stored_ones(
    path: Path,
) -> None:
    EventLog(path).emit(StageFinished(epoch=1, step=1, stage="gate", seconds=2.0))
    log, received = log_with_listener(path)
    log.emit(StageFinished(epoch=1, step=1, stage="gate", seconds=0.001))
    assert [
        (stored.seq, stored.event.seconds)
        for stored in received
        if isinstance(stored.event, StageFinished)
    ] == [(1, 2.0)]
    assert len(list(log.read())) == 1


def test_a_rollout_that_succeeds_on_resume_replaces_its_failed_event(path: Path) -> None:
    EventLog(path).emit(
        replace(ROLLOUT, status="failed", hard=None, soft=None, failure="network: cut")
    )
    log, received = log_with_listener(path)
    log.emit(ROLLOUT)
    assert [stored.event for stored in log.read()] == [ROLLOUT]
    assert received[0].seq == 2  # live readers get it as a new event


def test_a_resumed_run_is_unfinished_and_may_have_another_result(path: Path) -> None:
    log = EventLog(path)
    log.emit(STARTED)
    log.emit(FINISHED)
    log.resume()
    assert [type(stored.event) for stored in log.read()] == [RunStarted]
    log.emit(replace(STARTED, config=RecordedConfig({"budget": {"usd": 2}})))
    log.emit(replace(FINISHED, finish_reason="improved"))
    events = [stored.event for stored in log.read()]
    assert [type(event) for event in events] == [RunStarted, RunFinished]
    assert events[0].config.root == {"budget": {"usd": 2}}


def test_an_event_kind_of_a_newer_version_is_read_as_unknown(path: Path) -> None:
    log = EventLog(path)
    log.emit(STARTED)
    with sqlite3.connect(path) as db:
        db.execute(
            "INSERT INTO events (key, kind, data, at) "
            "VALUES ('k', 'Teleported', '{\"where\": \"moon\"}', 1.0)"
        )
    assert next(log.read(after=1)).event == Unknown(kind="Teleported", data={"where": "moon"})


def test_fields_a_newer_version_added_do_not_break_an_older_reader(path: Path) -> None:
    log = EventLog(path)
    log.emit(Warned(what="w", message="m"))
    with sqlite3.connect(path) as db:
        db.execute("""UPDATE events SET data = '{"what":"w","message":"m","mood":"calm"}'""")
    assert next(log.read()).event == Warned(what="w", message="m")


def effect(**changes: Any) -> EditEffect:
    edit = Edit("append", content="- Rule.")
    return EditEffect("s0001e01", 1, edit, "pending", 0.1, 0.0, 0.2, 0.9, 60, **changes)


@pytest.mark.parametrize(
    ("mean", "low", "probability", "word"),
    [
        (0.1, 0.01, 0.95, "measured to help"),
        (0.1, 0.0, 0.9, "likely"),
        (0.05, -0.3, 0.6, "likely"),
        (0.01, -0.3, 0.55, "no evidence"),
        (0.0, -0.1, 0.5, "no evidence"),
        (-0.2, -0.3, 0.01, "no evidence"),
        (None, 0.0, 0.5, "no evidence"),
    ],
)
def test_the_word_about_an_edit_follows_from_its_interval(
    mean: float | None, low: float, probability: float, word: str
) -> None:
    found = replace(effect(), mean=mean, low=low, probability=probability)
    assert found.evidence == word
    assert json.loads(dump(EditEffect, found))["evidence"] == word


def test_the_kinds_of_items_that_an_edit_acts_on_are_recorded(path: Path) -> None:
    money = KindEffect("money", 18, 60, mean=0.41, low=0.2, high=0.5)
    event = decided(effect(kinds=(money,)))
    EventLog(path).emit(event)
    assert next(EventLog.open_readonly(path).read()).event == event
    assert money.text == "+0.41 on money, 18 of 60 items"


def decided(*effects: EditEffect) -> GateDecided:
    return GateDecided(
        name="step_0001",
        step=1,
        decision="reject",
        reason="no edit was promoted",
        evidence=Evidence(),
        effects=list(effects),
    )


def as_an_earlier_version_wrote_it(path: Path) -> None:
    """Without a field that a later version added."""
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET data = json_remove(data, '$.effects[0].kinds')")


def test_a_replay_keeps_the_position_of_events_of_an_earlier_version(path: Path) -> None:
    event = decided(effect(reason="waiting for approval: effect +0.100"))
    log = EventLog(path)
    log.emit(event)
    log.emit(Warned(what="w", message="m"))
    as_an_earlier_version_wrote_it(path)
    EventLog(path).emit(event)
    assert [stored.seq for stored in EventLog(path).read()] == [1, 2]
    EventLog(path).emit(decided(effect()))
    assert [stored.seq for stored in EventLog(path).read()] == [2, 3]


def test_unknown_values_of_another_version_are_read_as_recorded(path: Path) -> None:
    events: list[Any] = [
        StageStarted(epoch=1, step=1, stage="daydream", total=3),  # type: ignore[arg-type]
        replace(ROLLOUT, phase="daydream", status="paused"),
        replace(FINISHED, finish_reason="struck_by_lightning"),
        replace(decided(), decision="postponed"),
    ]
    log = EventLog(path)
    for event in events:
        log.emit(event)
    assert [stored.event for stored in EventLog.open_readonly(path).read()] == events


def test_another_process_can_follow_events_live(path: Path) -> None:
    log = EventLog(path)
    log.emit(STARTED)
    code = (
        "import sys; from pathlib import Path; from skillfit.run.events import EventLog\n"
        "log = EventLog.open_readonly(Path(sys.argv[1]))\n"
        "print(len(list(log.read())), flush=True)\n"
        "sys.stdin.readline(); print([stored.event.what for stored in log.read(after=1)])"
    )
    follower = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert follower.stdout.readline().strip() == "1"
    log.emit(Warned(what="new", message=""))
    out, _ = follower.communicate("\n", timeout=60)
    assert out.strip() == "['new']"


def test_a_json_line_of_an_event_has_its_kind_and_number(path: Path) -> None:
    log, received = log_with_listener(path)
    log.emit(Warned(what="w", message="m"))
    line = as_json(received[0])
    assert {key: line[key] for key in ("seq", "kind", "what", "message")} == {
        "seq": 1,
        "kind": "Warned",
        "what": "w",
        "message": "m",
    }


def test_secrets_reach_neither_the_log_nor_its_listeners(path: Path) -> None:
    secret = remember_secret("zz-planted-in-an-event-1")
    log, received = log_with_listener(path)
    log.emit(Warned(what="w", message=f"refused {secret}"))
    assert received[0].event == Warned(what="w", message="refused [secret]")
    assert secret.encode() not in b"".join(file.read_bytes() for file in path.parent.iterdir())


NAMED = "---\nname: reasoning-gym\n---\nThink.\n"


@pytest.mark.parametrize(
    ("path", "text", "name"),
    [
        ("plugins/benchmarks/reasoning_gym/reasoning_gym.md", NAMED, "reasoning-gym"),
        ("my-skill/SKILL.md", "Think.\n", "my-skill"),
        ("skills/my-skill/", "Think.\n", "my-skill"),
        ("notes.md", "Think.\n", "notes"),
        (None, "", "a blank skill"),
    ],
)
def test_the_name_of_a_skill_comes_from_its_path_or_text(
    path: str | None, text: str, name: str
) -> None:
    started = replace(STARTED, config=RecordedConfig({"env": {"skill": path}}), skill=text)
    assert started.skill_name == name


OTHER_VERSION = {
    "model": {
        "agent": {"id": "openai/small", "removed_option": 1},
        "optimizer": {"temperature": 0.5},
        "judge": None,
    },
    "evaluation": {"gate_metric": "mixed", "gate_mixed_weight": "a third", "removed": True},
    "env": {"skill": None, "tasks": "tasks.jsonl"},
    "removed_section": {"x": 1},
}


def test_settings_of_a_run_of_another_version_are_read_where_possible() -> None:
    recorded = RecordedConfig(OTHER_VERSION)
    settings, defaults = recorded.settings, Config()
    assert settings.evaluation == EvaluationSection(gate_metric="mixed")
    assert (settings.env.tasks, settings.env.skill) == ("tasks.jsonl", "")
    assert settings.train == defaults.train
    assert settings.model.agent == ModelSpec(id="openai/small")
    assert settings.model.optimizer is None, "a model without an id is none"


def test_a_config_is_stored_as_it_was_recorded(path: Path) -> None:
    log = EventLog(path)
    log.emit(run_started(config=OTHER_VERSION))
    [stored] = log.read()
    assert isinstance(stored.event, RunStarted)
    assert stored.event.config.root == OTHER_VERSION
    assert as_json(stored)["config"] == OTHER_VERSION


def test_the_settings_of_a_run_are_those_it_was_started_with() -> None:
    config = load_config({"model": {"agent": "openai/small"}, "train": {"batch_size": 3}}, {})
    recorded = RecordedConfig.of(config)
    assert recorded.root == config.model_dump(mode="json")
    assert recorded.settings == config


def rollout(phase: Any, step: int, item: str, hard: float | None, failure: str = "") -> Any:
    key = f"rollout/{phase}/h/{item}/0"
    row = replace(ROLLOUT, rollout=key, phase=phase, step=step, item=item, hard=hard)
    return replace(row, failure=failure, status="failed" if failure else "scored")


ROLLOUTS = [
    rollout("rollout", 3, "a", 1.0),
    rollout("gate", 3, "a", 0.5),
    rollout("gate", 3, "b", None, "timeout: no answer"),
    rollout("gate", 12, "a", 0.0),
]


def test_all_rollouts_are_counted_and_their_fields_read_without_their_events(path: Path) -> None:
    log = EventLog(path)
    for event in [STARTED, *ROLLOUTS, Warned(what="w", message="m")]:
        log.emit(event)
    times = [stored.at for stored in log.read(kinds=(RolloutFinished,))]
    reader = EventLog.open_readonly(path)
    assert sorted(reader.rollouts_done()) == [
        RolloutsDone("gate", 3, 2, times[2]),
        RolloutsDone("gate", 12, 1, times[3]),
        RolloutsDone("rollout", 3, 1, times[0]),
    ]
    assert len(set(reader.rollout_keys())) == len({event.rollout for event in ROLLOUTS}) > 1
    assert reader.marked_rollouts() == [MarkedRollout("gate", 3, "timeout: no answer", None)]
    assert reader.rollout_scores("h") == {
        RolloutScore("rollout", 3, 1.0, 0.5, True): ["a"],
        RolloutScore("gate", 3, 0.5, 0.5, True): ["a"],
        RolloutScore("gate", 3, None, 0.5, True): ["b"],
        RolloutScore("gate", 12, 0.0, 0.5, True): ["a"],
    }
    assert not any(score.initial for score in reader.rollout_scores("another"))
    assert set(reader.some_hard_scores(10)) == {0.0, 0.5, 1.0, None}
    assert len(reader.some_hard_scores(2)) == 2
    assert reader.rollouts_of_item("a") == [ROLLOUTS[0], ROLLOUTS[1], ROLLOUTS[3]]
    assert reader.rollouts_of_item("missing") == []


def test_a_row_has_the_fields_of_the_event_it_is_read_from() -> None:
    known = get_type_hints(RolloutFinished)
    for name, kind in get_type_hints(MarkedRollout).items():
        assert name in known
        assert kind == known[name] or (kind is str and name == "phase")
