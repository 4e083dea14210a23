"""The progress of a run as lines of text: for `--plain`, for logs, and for runs from Python."""

from __future__ import annotations

import time
from collections.abc import Callable

from skillfit.plain_text import duration, quantity, with_interval
from skillfit.report.story import RunStory
from skillfit.report.story_builder import StoryBuilder
from skillfit.run.events import (
    Discarded,
    EvaluationFinished,
    Event,
    GateDecided,
    PersonDecided,
    PreflightFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    SlowUpdateFinished,
    StepFinished,
    Stored,
    Warned,
)
from skillfit.run.records import display_name, label_of

_HEARTBEAT = 30.0  # seconds without a line before one says how far the run is


class ProgressLines:
    """A listener that hands lines to `write`. Events that a resumed run replays print nothing."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._since = time.time()
        self._last_line = time.monotonic()
        self._replayed = 0
        self._resumed = False
        self._builder = StoryBuilder()

    def __call__(self, stored: Stored) -> None:
        self._builder(stored)
        if stored.at < self._since and not isinstance(stored.event, RunStarted):
            self._replayed += 1
            return
        if self._replayed and not self._resumed:  # later ones are parts of the new work
            known = quantity(self._replayed, "recorded event")
            if isinstance(stored.event, RunFinished):
                self.say(f"The run was finished already: nothing was sent again ({known}).")
            else:
                self.say(f"Resuming where the run stopped ({known}).")
            self._resumed = True
        for line in event_lines(stored.event):
            self.say(line)

    def say(self, message: str) -> None:
        self._last_line = time.monotonic()
        self._write(message)

    def tick(self) -> None:
        """A line now and then while nothing else happens, so that a log shows the run is alive."""
        if time.monotonic() - self._last_line < _HEARTBEAT:
            return
        story = self._builder.story()
        stage = story.running_stage
        if stage is None:
            return
        where = f"step {stage.step}, " if stage.step else ""
        name = display_name(stage.stage)
        total = f" of {stage.total}" if stage.total >= stage.done else ""
        done = f": {stage.done}{total} rollouts" if stage.total else ""
        left = time_left(story)
        self.say(f"... {where}{name}{done}{f', {left}' if left else ''}")


def time_left(story: RunStory) -> str:
    """How long the training steps will take; after the last one, the stage that runs."""
    if story.seconds_left:
        return f"about {duration(story.seconds_left)} of training left"
    stage = story.running_stage
    if stage is None or not stage.seconds_left or story.steps_done < story.total_steps:
        return ""
    return f"about {duration(stage.seconds_left)} left of this stage"


def event_lines(event: Event) -> list[str]:
    """What the plain terminal prints for an event; most events print nothing."""
    if isinstance(event, RunStarted):
        return [_started(event)]
    if isinstance(event, PreflightFinished):
        return [
            f"check {check.name}: {check.message}"
            for check in event.checks
            if check.verdict != "go"
        ]
    if isinstance(event, EvaluationFinished):
        if event.name == "baseline" or event.split == "test":
            soft = f" (soft {event.soft:.3f})" if abs(event.soft - event.hard) > 1e-9 else ""
            name = event.name.replace("_", " ")
            return [f"{name}: {event.hard:.3f}{soft} on {event.scored} {event.split} items"]
        return []
    if isinstance(event, GateDecided):
        return [_decided(event)]
    if isinstance(event, StepFinished):
        skipped = event.action.startswith("skip")
        return [f"step {event.step}: {display_name(event.action)}"] if skipped else []
    if isinstance(event, SlowUpdateFinished):
        return [f"slow update after epoch {event.epoch}: {display_name(event.action)}"]
    if isinstance(event, ShipTested):
        return [_shipped(event)]
    if isinstance(event, PersonDecided):
        return [f"request {event.number}: {event.action} {event.target}".rstrip()]
    if isinstance(event, Discarded):
        return [f"discarded at {event.stage}: {event.reason}"]
    return [f"warning: {event.message}"] if isinstance(event, Warned) else []


def _started(event: RunStarted) -> str:
    splits = ", ".join(f"{count} {name}" for name, count in event.splits.items())
    agent = event.model_of("agent") or "your agent"
    practice = " (practice models, no language model)" if agent.startswith("practice/") else ""
    what = f"Training {event.skill_name} for {agent}{practice}"
    steps = quantity(event.total_steps, "step")
    return f"{what}: {splits} items, {steps}."


def _decided(event: GateDecided) -> str:
    """One line per step: with a pool what changed in it, else the comparison."""
    name = label_of(event.name)
    if event.effects or (event.score is not None and event.score.estimated):
        counts = [
            f"{sum(effect.status == status for effect in event.effects)} {status}"
            for status in ("promoted", "pending", "dropped")
        ]
        score = f"score about {event.score.mean:.3f}" if event.score else ""
        return f"{name}: {score}; {event.reason} (edits: {', '.join(counts)})"
    found, (low, high) = event.evidence, event.evidence.interval
    difference = with_interval(found.difference, low, high)
    counts_text = f"{len(found.fixed)} fixed, {len(found.broken)} broken"
    if not found.fixed and not found.broken and (found.higher or found.lower):
        counts_text = f"{found.higher} items better, {found.lower} worse"
    decision = display_name(event.decision)
    return f"{name}: {decision}, {difference}, {counts_text}, {found.rollouts} rollouts"


def _shipped(event: ShipTested) -> str:
    if not event.repeats:
        return f"ship test: {event.verdict}: {event.reason}"
    low, high = event.interval
    line = f"ship test: {event.verdict}, {with_interval(event.difference, low, high)}"
    if event.gap is not None:
        line += f"; {event.difference + event.gap:+.3f} under the training grader"
    return line
