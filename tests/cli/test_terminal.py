"""The live screen is a pure function of events: no terminal needed."""

import io
import time
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from skillfit.cli.runs import Point, plot
from skillfit.cli.terminal import LiveTerminal, PlainTerminal, Screen, render, spend
from skillfit.models.protocol import Usage
from skillfit.run.directory import RunDirectory
from skillfit.run.events import (
    Discarded,
    EvaluationFinished,
    Event,
    GateDecided,
    RolloutFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    Stored,
    Warned,
)

CONFIG: dict[str, Any] = {
    "model": {"agent": {"id": "openai/gpt-5-mini"}, "optimizer": {"id": "practice/optimizer"}},
    "env": {"skill": "/somewhere/my-skill"},
    "budget": {"usd": 2.0, "calls": None},
}
STARTED = RunStarted(
    run="r",
    config=CONFIG,
    version="1",
    skill="",
    skill_hash="",
    splits={"train": 4},
    total_epochs=2,
    steps_per_epoch=3,
)


def rollout(number: int, phase: str = "gate", failure: str = "") -> RolloutFinished:
    status = "failed" if failure else "scored"
    return RolloutFinished(
        rollout=f"{phase}/{number}", phase=phase, step=1, item=str(number), repeat=0, skill_hash="h", status=status,
        hard=None if failure else 1.0, soft=None, failure=failure,
    )  # fmt: skip


def decided(name: str, decision: str) -> GateDecided:
    evidence = {
        "difference": 0.1,
        "interval": [-0.02, 0.22],
        "fixed": ["a", "b"],
        "broken": ["c"],
        "rollouts": 40,
    }
    return GateDecided(
        name=name, step=1, decision=decision, reason="because it is so", evidence=evidence
    )


def measured(name: str, hard: float) -> EvaluationFinished:
    return EvaluationFinished(
        name=name, split="selection", skill_hash="h", hard=hard, soft=hard, scored=4, planned=4
    )


def screen_of(*events: Event, every: float = 0.5) -> Screen:
    screen = Screen()
    for number, event in enumerate(events):
        screen(Stored(number, 1000 + number * every, event))
    return screen


def drawn(screen: Screen, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render(screen, 90, width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in text.splitlines())
    return text


def test_it_says_where_the_run_is_and_how_fast() -> None:
    gate = StageStarted(epoch=1, step=2, stage="gate", total=8)
    screen = screen_of(STARTED, gate, rollout(1), rollout(2), rollout(3), rollout(4))
    assert screen.bars["gate"].done == 4 and screen.bars["gate"].rate == 2.0
    text = drawn(screen)
    assert "my-skill" in text and "epoch 1/2  step 2/6" in text and "4 of 8  2.0/s" in text


def test_stages_of_a_step_stay_until_the_next_step_begins() -> None:
    first = [
        StageStarted(epoch=1, step=1, stage="rollout", total=2),
        StageFinished(epoch=1, step=1, stage="rollout", seconds=3.0),
    ]
    text = drawn(screen_of(STARTED, *first, StageStarted(epoch=1, step=1, stage="reflect")))
    assert "✓ rollout" in text and "3.0 s" in text and "▸ reflect" in text
    assert "rollout" not in drawn(
        screen_of(STARTED, *first, StageStarted(epoch=1, step=2, stage="gate"))
    )


def test_the_curve_tells_accepted_from_rejected() -> None:
    events = [measured("baseline", 0.4), decided("step_0001", "accept"), measured("step_0001", 0.6)]
    screen = screen_of(STARTED, *events, decided("step_0002", "reject"), measured("step_0002", 0.3))
    assert [(point.score, point.accepted) for point in screen.curve] == [
        (0.4, True),
        (0.6, True),
        (0.3, False),
    ]
    text = drawn(screen)
    assert text.count("●") == 2 and text.count("×") == 1 and "0.60 ┤" in text


def test_verdicts_carry_their_evidence_on_narrow_terminals_too() -> None:
    text = drawn(screen_of(STARTED, decided("step_0001", "accept")), width=80)
    assert "+0.100 (-0.02 … +0.22)" in text and "accept" in text


def test_failures_warnings_and_discarded_edits_show_as_they_happen() -> None:
    leak = Discarded(step=1, stage="leak_check", what="proposal 0", reason="it carries an answer")
    failed = [rollout(n, failure="timeout: no answer in 300 s") for n in range(3)]
    screen = screen_of(
        STARTED, leak, Warned(what="budget", message="80 % of the budget is used."), *failed
    )
    assert screen.failures == {"timeout": 3}
    text = drawn(screen)
    assert (
        "it carries an answer" in text
        and "80 % of the budget" in text
        and text.count("no answer in 300 s") == 1
    )


def test_practice_models_are_called_what_they_are() -> None:
    assert "practice models, no language model" in drawn(screen_of(STARTED))


def test_spend_is_set_against_the_caps() -> None:
    said = spend(Usage(calls=10, input=900, output=100, usd=0.5), {"usd": 2.0}, 90)
    assert (
        "$0.50 of 2 (25%)" in said
        and "10 calls" in said
        and "1,000 tokens" in said
        and "1.5 min" in said
    )
    assert "$" not in spend(Usage(usd=None), {}, 0)


def test_a_resumed_run_does_not_say_its_past_again_in_lines() -> None:
    console = Console(file=io.StringIO(), width=200)
    plain = PlainTerminal(console)
    long_ago = time.time() - 1000
    for number, event in enumerate(
        [STARTED, decided("step_0001", "accept"), decided("step_0002", "reject")]
    ):
        plain(Stored(number, long_ago, event))
    plain(Stored(9, time.time() + 1, decided("step_0003", "accept")))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "step_0001" not in text
        and "Going on where the run stopped" in text
        and "step_0003: accept" in text
    )


def test_the_live_terminal_draws_a_whole_recorded_run(finished: Path) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    view = RunDirectory.read(finished / "run")
    with LiveTerminal(console) as live:
        for stored in view.events.read():
            live(stored)
            live.tick()
        live.tick(view.journal.spent())
        live.say("Stopping.")
    view.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step_0001" in text and "Stopping." in text and live.screen.spent.calls > 100


def test_a_plot_holds_the_latest_points_within_its_width() -> None:
    points = [Point(n / 100, True) for n in range(100)]
    lines = plot(points, width=40)
    assert all(len(line) <= 40 + 8 for line in lines) and "0.99" in lines[0]
    assert plot([Point(1.0, True)])[0].startswith(" 1.00")


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_a_higher_score_is_never_drawn_below_a_lower_one(scores: list[float]) -> None:
    lines = plot([Point(score, True) for score in scores])
    width = min(8, 60 // len(scores))
    at = [
        next(row for row, line in enumerate(lines) if line[7 + width * n :].startswith("●"))
        for n in range(len(scores))
    ]
    ranked = [row for _, row in sorted(zip(scores, at, strict=True), reverse=True)]
    assert ranked == sorted(ranked)
