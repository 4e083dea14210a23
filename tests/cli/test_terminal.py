"""The live screen and the plain lines are functions of events: no terminal is needed."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from skillfit.cli import terminal as terminal_module
from skillfit.cli.terminal import (
    CountingTerminal,
    LiveTerminal,
    PlainTerminal,
    render_screen,
    usage_text,
)
from skillfit.models.protocol import Usage
from skillfit.record.fold import Fold
from skillfit.record.text import event_lines
from skillfit.run.directory import RunDirectory
from skillfit.run.events import (
    Discarded,
    EvaluationFinished,
    Event,
    GateDecided,
    RolloutFinished,
    SlowUpdateFinished,
    StageFinished,
    StageStarted,
    StepFinished,
    Stored,
    Warned,
)
from skillfit.run.records import (
    EditEffect,
    Evidence,
    KindEffect,
    RecordedConfig,
    ScoreEstimate,
    SlowUpdateAction,
    SlowUpdateRecord,
    StageName,
    slow_update_name,
)
from skillfit.skill import Edit
from tests.support.records import run_started, ship_tested, standings, step_record

STARTED = run_started(
    run="r",
    config={
        "env": {"skill": "/home/me/triage"},
        "model": {"agent": {"id": "openai/gpt-5-mini"}, "optimizer": {"id": "openai/gpt-5"}},
        "budget": {"calls": 1000},
    },
    skill="# v0\n",
    skill_hash="s0",
    splits={"train": 40, "selection": 40, "test": 20},
    total_epochs=3,
    steps_per_epoch=2,
)
BASELINE = EvaluationFinished(
    name="baseline", split="selection", skill_hash="s0", hard=0.4, soft=0.4, scored=40, planned=40
)


def rollout(number: int, **fields: object) -> RolloutFinished:
    given = {
        "rollout": f"rollout/train/{number}",
        "phase": "rollout",
        "step": 1,
        "item": f"i{number}",
        "repeat": 0,
        "skill_hash": "s0",
        "status": "scored",
        "hard": 1.0,
        "soft": 1.0,
    }
    return RolloutFinished(**{**given, **fields})  # type: ignore[arg-type]


def effect(number: int, status: str = "pending", text: str = "- a rule") -> EditEffect:
    edit = Edit("append", content=text)
    return EditEffect(f"s0001e{number:02d}", 1, edit, status, 0.04, 0.01, 0.07, 0.9, 80)  # type: ignore[arg-type]


def decided(step: int, effects: list[EditEffect]) -> GateDecided:
    return GateDecided(
        name=f"step_{step:04d}",
        step=step,
        decision="accept",
        reason="promoted s0001e01",
        evidence=Evidence(rollouts=40, coverage=1.0),
        score=ScoreEstimate(0.55, 0.45, 0.65, estimated=True),
        effects=effects,
    )


def screen(*events: Event, width: int = 80, height: int = 24, notice: str = "") -> str:
    builder = Fold()
    for number, event in enumerate(events):
        builder(Stored(number + 1, 1000.0 + number, event))
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    spent = Usage(calls=120, input=9_000, output=1_000, usd=0.25)
    console.print(render_screen(builder.record(), spent, 90, width, height, notice))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_screen_has_the_estimated_score_of_a_gate_that_measures_no_baseline() -> None:
    estimated = replace(
        BASELINE, name="step_0001", estimate=ScoreEstimate(0.4, 0.3, 0.5, estimated=True)
    )
    assert "score 0.400" in screen(STARTED, estimated)


def test_the_screen_shows_models_step_progress_and_spend() -> None:
    stage = StageStarted(epoch=1, step=1, stage="rollout", total=40)
    drawn = screen(STARTED, BASELINE, stage, *(rollout(n) for n in range(10)))
    assert "triage" in drawn and "openai/gpt-5-mini ← openai/gpt-5" in drawn
    assert "step 1 of 6" in drawn and "measuring" in drawn and "10 of 40" in drawn
    assert "120 calls of 1,000 (12%)" in drawn and "$0.25" in drawn


def test_the_screen_has_one_line_for_each_kind_of_work_in_a_step() -> None:
    stages: list[StageName] = ["reflect", "aggregate", "select", "update"]
    wrote: list[Event] = []
    for stage in stages:
        wrote.append(StageStarted(epoch=1, step=1, stage=stage, total=0))
        wrote.append(StageFinished(epoch=1, step=1, stage=stage, seconds=2.0))
    first = StageStarted(epoch=1, step=1, stage="rollout", total=2)
    over = StageFinished(epoch=1, step=1, stage="rollout", seconds=4.0)
    gate = StageStarted(epoch=1, step=1, stage="gate", total=40)
    drawn = screen(STARTED, BASELINE, first, rollout(0), rollout(1), over, *wrote, gate)
    assert drawn.count("writing edits") == 1 and "✓ writing edits" in drawn and "8.0 s" in drawn
    assert drawn.count("measuring") == 1 and "▸ measuring" in drawn
    assert "gate" not in drawn and "rollout" not in drawn and "reflect" not in drawn


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (120, 50)])
def test_the_score_is_on_the_screen_at_any_size(width: int, height: int) -> None:
    stage = StageStarted(epoch=1, step=1, stage="rollout", total=40)
    drawn = screen(STARTED, BASELINE, stage, width=width, height=height)
    assert "score 0.400  step 1 of 6" in drawn
    better = StepFinished(
        epoch=1,
        step=1,
        action="accept_new_best",
        skill="# v1\n",
        skill_hash="s1",
        best_skill="# v1\n",
        record=step_record(1),
    )
    drawn = screen(
        STARTED, BASELINE, decided(1, [effect(1)]), better, stage, width=width, height=height
    )
    assert "score 0.400 → 0.550  step 2 of 6" in drawn


def test_the_time_on_the_screen_goes_on_when_a_run_is_resumed() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    with LiveTerminal(console, earlier_seconds=3_600) as terminal:
        terminal(Stored(1, 0.0, STARTED))
        terminal.tick(Usage(calls=3))
    assert isinstance(console.file, io.StringIO)
    assert "1 h 0 min" in console.file.getvalue()


def test_measuring_says_now_and_then_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal_module, "HEARTBEAT", 0.0)
    console = Console(file=io.StringIO(), width=80)
    with CountingTerminal(console) as terminal:
        terminal.tick()
        terminal(Stored(1, 0.0, rollout(1)))
        terminal.tick()
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "... 0 rollouts, 0.0 s" in printed and "... 1 rollout, 0.0 s" in printed


def test_the_pool_is_shown_with_effects_promoted_edits_first() -> None:
    effects = [effect(1), effect(2, "promoted", "- green means g."), effect(3, "dropped")]
    drawn = screen(STARTED, BASELINE, decided(1, effects))
    assert "1 promoted, 1 pending, 1 dropped" in drawn
    lines = drawn.splitlines()
    promoted = next(at for at, line in enumerate(lines) if "green means g." in line)
    pending = next(at for at, line in enumerate(lines) if "- a rule" in line)
    assert promoted < pending
    assert "+0.040 (+0.01 … +0.07)" in lines[promoted]
    assert "measured to help: - green means g." in lines[promoted]


def test_an_edit_is_shown_with_the_types_of_items_that_it_acts_on() -> None:
    money = KindEffect("money", 18, 60, 0.41, 0.3, 0.5)
    drawn = screen(STARTED, BASELINE, decided(1, [replace(effect(1), kinds=(money,))]))
    assert "a rule (+0.41 on money" in drawn


def test_the_last_notice_may_take_two_lines() -> None:
    why = "Retrying up to 5 times, waiting about 16 s: Cannot reach openai/m: connection refused."
    drawn = screen(STARTED, Warned(what="w", message=why))
    assert "Cannot reach" in drawn and "connection refused." in drawn


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (120, 50)])
def test_a_long_run_fits_the_terminal(width: int, height: int) -> None:
    events: list[Event] = [STARTED, BASELINE]
    for step in range(1, 7):
        for stage in ("rollout", "reflect", "aggregate", "gate"):
            events.append(StageStarted(epoch=1, step=step, stage=stage, total=40))
        effects = [effect(n, text="- " + "a very long rule " * 20) for n in range(1, 40)]
        events.append(decided(step, effects))
        events.append(Warned(what=f"w{step}", message="something " * 30))
    lines = screen(*events, width=width, height=height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_control_characters_of_a_model_are_shown_as_escapes() -> None:
    spoofed = "- Run evil.sh \x1b[2K\x1b[1G- Be careful."
    drawn = screen(STARTED, BASELINE, decided(1, [effect(1, text=spoofed)]))
    assert "\x1b" not in drawn and "\\x1b" in drawn
    [line] = event_lines(Warned(what="w", message="x"))
    assert line == "warning: x"


def test_spend_names_the_caps_that_are_set() -> None:
    assert usage_text(Usage(calls=5), {"minutes": 10.0}, 60).endswith("1.0 min of 10 min (10%)")
    assert usage_text(Usage(usd=0.5), {"usd": 5}, 60).startswith("$0.50 of $5.00 (10%)")
    assert "of 20,000,000 (" in usage_text(Usage(input=5), {"tokens": 20_000_000}, 60)


def test_plain_lines_are_readable_sentences() -> None:
    assert event_lines(STARTED) == [
        "Training triage for openai/gpt-5-mini: 40 train, 40 selection, 20 test items, 6 steps.",
        "Scores are means over items, from 0 to 1.",
    ]
    models = {"agent": {"id": "openai/gpt-5-mini"}, "optimizer": {"id": "practice/optimizer"}}
    [line, _] = event_lines(replace(STARTED, config=RecordedConfig({"model": models})))
    assert "for openai/gpt-5-mini (practice optimizer, no language model):" in line
    [line] = event_lines(decided(2, [effect(1, "promoted"), effect(2)]))
    assert line.startswith("step 2: selection score about 0.550; promoted s0001e01")
    assert "1 promoted, 1 pending, 0 dropped" in line
    skipped = StepFinished(
        epoch=1,
        step=3,
        action="skip_no_patches",
        skill="",
        skill_hash="",
        best_skill="",
        record=step_record(3),
    )
    assert event_lines(skipped) == ["step 3: skipped: no edits proposed"]
    nothing = ship_tested(
        verdict="no improvement",
        reason="no candidate was accepted",
        difference=0.0,
        interval=None,
        p_value=1.0,
        pairs=0,
        skill_hash="s0",
    )
    assert event_lines(nothing) == ["ship test: no improvement: no candidate was accepted"]
    assert event_lines(ship_tested()) == [
        "ship test: improved, score +0.200 on fresh rollouts (90 % interval +0.10 … +0.30)"
    ]


@pytest.mark.parametrize(
    ("name", "split", "printed"),
    [
        ("baseline", "selection", "baseline: initial skill scores 0.500 on 4 selection items"),
        ("test_baseline", "test", "test split: initial skill scores 0.500 on 4 test items"),
        ("test_best", "test", "test split: skill handed back scores 0.500 on 4 test items"),
        ("test_final", "test", "test split: last skill scores 0.500 on 4 test items"),
    ],
)
def test_a_score_names_its_skill_and_its_split(name: str, split: str, printed: str) -> None:
    measured = replace(BASELINE, name=name, split=split, hard=0.5, soft=0.5, scored=4, planned=4)
    assert event_lines(measured) == [printed]


def test_a_slow_update_that_the_gate_decided_on_has_one_line() -> None:
    found = Evidence(difference=0.0, interval=(-0.1, 0.1), rollouts=40)
    gate = replace(
        decided(4, []), name=slow_update_name(2), decision="reject", evidence=found, score=None
    )
    [line] = [*event_lines(gate), *event_lines(slow_update("reject"))]
    assert line.startswith("writing edits after epoch 2: rejected, selection score +0.000")
    assert event_lines(slow_update("join_pool")) == [
        "writing edits after epoch 2: added as a pending edit"
    ]
    [line] = event_lines(slow_update("force_accept"))  # no gate decided
    assert line.startswith("writing edits after epoch 2: ")


def slow_update(action: SlowUpdateAction) -> SlowUpdateFinished:
    return SlowUpdateFinished(
        epoch=2,
        action=action,
        result=SlowUpdateRecord(action=action, standings=standings()),
        pairs=[],
        all_pairs=[],
        candidate="",
        skill="",
        best_skill="",
    )


def test_a_gain_of_graded_scores_is_not_reported_as_nothing_fixed() -> None:
    found = Evidence(difference=0.276, interval=(0.1, 0.4), rollouts=40, higher=7, lower=1)
    event = replace(decided(1, []), evidence=found, score=None, effects=[])
    assert "7 items better, 1 worse" in event_lines(event)[0]
    solved = replace(event, evidence=replace(found, fixed=("a", "b")))
    assert "2 fixed, 0 broken" in event_lines(solved)[0]


def test_the_screen_and_the_lines_say_what_the_leak_check_blocked_with_the_words() -> None:
    blocked = Discarded(
        step=1,
        stage="leak_check",
        what="- For the Skerryvore lighthouse\n  say nine letters.",
        reason="carries answer of item s1",
        evidence="nine letters",
    )
    text = '"- For the Skerryvore lighthouse say nine letters.", which carries answer of item s1'
    assert event_lines(blocked) == [f'leak check blocked "nine letters" in {text}']
    drawn = screen(STARTED, BASELINE, blocked, Warned(what="w", message="The server is slow."))
    assert '! leak check blocked 1: "nine letters" in "- For the Skerryvore' in drawn
    assert "! The server is slow." in drawn


@pytest.mark.parametrize("stage", ["reflect.corpus", "reflect.failure", "merge", "rank", "rewrite"])
def test_what_is_not_used_is_said_without_the_name_of_an_internal_stage(stage: str) -> None:
    event = Discarded(step=1, stage=stage, what="edit 1", reason="the edit is empty")
    assert event_lines(event) == ["writing edits: not used: the edit is empty"]


def test_the_plain_terminal_does_not_repeat_replayed_events() -> None:
    console = Console(file=io.StringIO(), width=200)
    terminal = PlainTerminal(console)
    terminal(Stored(1, 1.0, STARTED))
    terminal(Stored(2, 2.0, BASELINE))
    terminal(Stored(3, 1e12, Warned(what="w", message="now")))
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "baseline" not in printed
    assert "Resuming where the run stopped (1 recorded event)." in printed
    assert "warning: now" in printed


def test_the_live_terminal_draws_a_whole_recorded_run(finished: Path) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with closing(RunDirectory.read(finished / "run")) as view:
        events = list(view.events.read())
    with LiveTerminal(console) as terminal:
        for stored in events:
            terminal(stored)
        terminal.tick(Usage(calls=3))
        terminal.say("Stopping.")
    assert isinstance(console.file, io.StringIO)
    assert "ship test" in console.file.getvalue()


def test_the_cursor_stays_below_the_frame_so_that_an_echoed_interrupt_does_not_break_it() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    with LiveTerminal(console) as terminal:
        terminal(Stored(1, 0.0, STARTED))
        terminal.say("Stopping.")
        assert isinstance(console.file, io.StringIO)
        drawn = console.file.getvalue()
    assert drawn.rstrip(" ").endswith("╯\x1b[0m\n")
