"""What the terminal shows of a run: a live screen, plain lines, or a counter.

Each is a listener of events. The live screen, which fits 80 × 24, and the plain lines read the same
story of the run as the report and the studio.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from skillfit.models.protocol import Usage
from skillfit.plain_text import visible
from skillfit.report.story import EditSummary, GateSummary, RunStory, label_of
from skillfit.report.story_builder import StoryBuilder
from skillfit.run.events import (
    Discarded,
    EvaluationFinished,
    Event,
    GateDecided,
    PersonDecided,
    PreflightFinished,
    RolloutFinished,
    RunStarted,
    ShipTested,
    SlowUpdateFinished,
    StepFinished,
    Stored,
    Warned,
)

STYLES = {"promoted": "green", "dropped": "red", "pending": ""}
STAGES = {
    "preflight": "check",
    "rollout": "training rollouts",
    "gate": "measuring edits",
    "slow_update": "slow update",
    "meta_skill": "meta skill",
    "compose": "final skill",
    "ship": "ship test",
    "test": "test split",
}
_ROLLOUTS = ("preflight", "baseline", "rollout", "gate", "compose", "final", "ship", "test")
_SMALL_PLOT = 5


def render(
    story: RunStory,
    spent: Usage,
    elapsed: float,
    width: int = 80,
    height: int = 24,
    notice: str = "",
) -> RenderableType:
    """The screen. What does not fit the height is left out from the bottom of each list."""
    parts: list[RenderableType] = [_header(story, spent, elapsed), _stages(story)]
    room = height - 10 - min(4, len(story.stages))
    points = [
        PlotPoint(point.score, point.kept) for point in story.points if point.split == "selection"
    ]
    if len(points) > 1 and room >= _SMALL_PLOT + 5:
        lines = plot(points, width=min(width, 100) - 14, height=_SMALL_PLOT)
        parts.append(Text("\n".join(lines), style="cyan"))
        room -= len(lines)
    if story.edits:
        parts.append(_edits(story.edits, max(2, min(8, room - 3))))
    elif story.gates:
        parts.append(_gates(story.gates[-max(2, min(5, room - 3)) :]))
    for shown in story.notices[-2:]:
        parts.append(_cut(f"! {visible(shown.text)}", "yellow"))
    if notice:
        parts.append(Text(notice, style="bold"))
    return Panel(Group(*parts), title="skillfit", title_align="left", border_style="dim")


def _cut(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def _header(story: RunStory, spent: Usage, elapsed: float) -> Text:
    models = f"{story.agent or 'your agent'} ← {story.optimizer or 'no optimizer model'}"
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(visible(story.skill_name), "bold")
    text.append(f"  {visible(models)}")
    if story.practice:
        text.append("  (practice models)", "italic yellow")
    step = f"step {min(story.steps_done + 1, story.total_steps)} of {story.total_steps}"
    left = time_left(story)
    text.append(
        f"\n{step}{f'  {left}' if left else ''}  {spend(spent, story.caps, elapsed)}", "dim"
    )
    return text


def time_left(story: RunStory) -> str:
    """How long the training steps will take; after the last one, the stage that runs."""
    if story.seconds_left:
        return f"about {duration(story.seconds_left)} of training left"
    stage = story.running_stage
    if stage is None or not stage.seconds_left or story.steps_done < story.total_steps:
        return ""
    return f"about {duration(stage.seconds_left)} left of this stage"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3600:.1f} h"


def spend(spent: Usage, caps: Mapping[str, float], seconds: float) -> str:
    """What was used, against the caps that are set."""
    amounts: dict[str, float | None] = {
        "usd": spent.usd,
        "calls": spent.calls,
        "tokens": spent.tokens,
        "minutes": seconds / 60,
    }
    shown = []
    for name, amount in amounts.items():
        if amount is None:
            continue
        if name == "usd":
            said = f"${amount:.2f}"
        elif name == "minutes":
            said = f"{amount:.1f} min"
        else:
            said = f"{int(amount):,} {name if amount != 1 else name.removesuffix('s')}"
        cap = caps.get(name)
        shown.append(f"{said} of {cap:g} ({amount / cap:.0%})" if cap else said)
    return "  ".join(shown)


def _stages(story: RunStory) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=19, no_wrap=True)
    table.add_column(width=24)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for stage in story.stages[-4:]:
        share = stage.share
        bar: RenderableType = Text("")
        if share is not None and stage.total:
            bar = ProgressBar(total=1.0, completed=share, width=24)
        elif not stage.over and stage.stage not in _ROLLOUTS:
            bar = Text("asking the optimizer", style="dim")
        count = f"{stage.done} of {stage.total}" if stage.total >= stage.done > 0 else ""
        if stage.failed:
            count += f", {stage.failed} failed"
        pace = f"{stage.seconds:.1f} s" if stage.seconds is not None else ""
        if stage.seconds_left:
            pace = f"{duration(stage.seconds_left)} left"
        style = "green" if stage.over else "bold"
        name = STAGES.get(stage.stage, stage.stage)
        table.add_row(
            Text(("✓ " if stage.over else "▸ ") + name, style), bar, f"{count}  {pace}".strip()
        )
    return table


def _edits(edits: Sequence[EditSummary], most: int) -> Table:
    """The pool: promoted edits first, then pending ones by their effect."""
    order = {"promoted": 0, "pending": 1, "dropped": 2}
    ranked = sorted(edits, key=lambda edit: (order[edit.status], -(edit.mean or 0.0)))
    counts = ", ".join(
        f"{sum(edit.status == status for edit in edits)} {status}" for status in order
    )
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=True)
    table.add_column("effect (80 %)", no_wrap=True, width=22)
    table.add_column(f"edits: {counts}", no_wrap=True, overflow="ellipsis", ratio=1)
    for edit in ranked[:most]:
        effect = "not measured yet"
        if edit.mean is not None:
            effect = f"{edit.mean:+.2f} ({edit.low:+.2f}…{edit.high:+.2f})"
        table.add_row(Text(effect, STYLES[edit.status]), visible(" ".join(edit.text.split())))
    return table


def _gates(gates: Sequence[GateSummary]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=True)
    table.add_column("step", no_wrap=True)
    table.add_column("difference (90 %)", no_wrap=True)
    table.add_column("decision", no_wrap=True, overflow="ellipsis", ratio=1)
    for gate in gates:
        low, high = gate.interval
        found = ""
        if gate.probability is not None:
            found = f"{gate.difference:+.3f} ({low:+.2f} … {high:+.2f})"
        decision = action_words(gate.action)
        reason = f": {gate.reason}" if gate.reason else ""
        table.add_row(gate.label, found, f"{decision}{reason}")
    return table


ACTIONS = {
    "accept_new_best": "accepted",
    "accept": "accepted",
    "force_accept": "accepted without a test",
    "reject": "rejected",
    "inconclusive": "undecided",
    "skip_lag": "no edits yet: the first ones join later (train.lag)",
    "skip_no_patches": "skipped: no edits proposed",
    "skip_no_change": "skipped: the edits change nothing",
    "skip_no_rewrite": "skipped: no usable rewrite",
    "skip_leak": "skipped: the rewrite carried hidden answers",
    "inject_placeholder": "added placeholder",
    "no_content": "nothing to add",
    "unchanged": "the same text again",
    "join_pool": "added as a pending edit",
}


def action_words(action: str) -> str:
    """An action as people read it."""
    return ACTIONS.get(action, action.replace("_", " "))


_HEIGHT = 6


@dataclass(frozen=True, slots=True)
class PlotPoint:
    score: float
    accepted: bool


def plot(points: Sequence[PlotPoint], width: int = 60, height: int = _HEIGHT) -> list[str]:
    """Lines of a small chart: ● carried on, × not accepted, ─ the skill carried on meanwhile. Many
    points: the latest.
    """
    points = points[-max(1, width // 2) :]
    low, high = min(point.score for point in points), max(point.score for point in points)
    if high - low < 0.1:
        middle = (low + high) / 2
        low, high = max(0.0, middle - 0.05), min(1.0, middle + 0.05)
    column = max(2, min(8, width // max(1, len(points))))

    def row(score: float) -> int:
        return round((high - score) / (high - low) * (height - 1))

    grid = [[" "] * (column * len(points)) for _ in range(height)]
    carried = row(points[0].score)
    for at, point in enumerate(points):
        here = row(point.score)
        carried = here if point.accepted else carried
        for filler in range(column):
            grid[carried][at * column + filler] = "─"
        grid[here][at * column] = "●" if point.accepted else "×"
    labels = {0: f"{high:.2f}", height - 1: f"{low:.2f}"}
    return [f"{labels.get(at, ''):>5} ┤{''.join(line).rstrip()}" for at, line in enumerate(grid)]


_HEARTBEAT = 30.0  # seconds without a line before the plain terminal says how far the run is
_REDRAW = 0.25  # seconds between two drawings of the live screen


class Terminal:
    """Base: shows nothing but what it is asked to say."""

    _display: AbstractContextManager[Any] = nullcontext()

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, stored: Stored) -> None:
        """Handle an event."""

    def tick(self, spent: Usage | None = None) -> None:
        """Periodic refresh."""

    def say(self, message: str) -> None:
        self._console.print(visible(message), highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__(None, None, None)


class LiveTerminal(Terminal):
    """One screen, updated in place."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._builder = StoryBuilder()
        self._begun = time.monotonic()
        self._drawn = 0.0
        self._spent = Usage()
        self._notice = ""
        self._display = self._live = Live(
            console=console,
            auto_refresh=False,
            get_renderable=self._draw,
            vertical_overflow="ellipsis",
        )

    def __call__(self, stored: Stored) -> None:
        self._builder(stored)

    def _draw(self) -> RenderableType:
        return render(
            self._builder.story(),
            self._spent,
            time.monotonic() - self._begun,
            self._console.width,
            self._console.height,
            self._notice,
        )

    def tick(self, spent: Usage | None = None) -> None:
        self._spent = spent or self._spent
        now = time.monotonic()
        if now - self._drawn >= _REDRAW:
            self._drawn = now
            self._live.refresh()

    def say(self, message: str) -> None:
        self._notice = visible(message)
        self._live.refresh()


class PlainTerminal(Terminal):
    """Lines for pipes, logs and CI. What a resumed run replays is not printed again."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._since = time.time()
        self._last_line = time.monotonic()
        self._replayed = 0
        self._builder = StoryBuilder()

    def __call__(self, stored: Stored) -> None:
        self._builder(stored)
        if stored.at < self._since and not isinstance(stored.event, RunStarted):
            self._replayed += 1
            return
        if self._replayed:
            self.say(f"Resuming where the run stopped ({self._replayed:,} recorded events).")
            self._replayed = 0
        for line in event_lines(stored.event):
            self.say(line)

    def say(self, message: str) -> None:
        self._last_line = time.monotonic()
        super().say(message)

    def tick(self, spent: Usage | None = None) -> None:
        """A line now and then while nothing else happens, so that a log shows the run is alive."""
        if time.monotonic() - self._last_line < _HEARTBEAT:
            return
        story = self._builder.story()
        stage = story.running_stage
        if stage is None:
            return
        where = f"step {stage.step}, " if stage.step else ""
        name = STAGES.get(stage.stage, stage.stage)
        done = f": {stage.done} of {stage.total} rollouts" if stage.total else ""
        left = time_left(story)
        self.say(f"... {where}{name}{done}{f', {left}' if left else ''}")


class CountingTerminal(Terminal):
    """A count of rollouts, for commands that only measure."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._done = 0
        self._display = self._status = console.status("0 rollouts")

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, Warned):
            self.say(f"warning: {stored.event.message}")
        self._done += isinstance(stored.event, RolloutFinished)
        self._status.update(f"{self._done} rollouts")


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
        return [f"step {event.step}: {action_words(event.action)}"] if skipped else []
    if isinstance(event, SlowUpdateFinished):
        return [f"slow update after epoch {event.epoch}: {action_words(event.action)}"]
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
    return f"{what}: {splits} items, {event.total_steps} steps."


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
    difference = f"{found.difference:+.3f} ({low:+.2f} … {high:+.2f})"
    counts_text = f"{len(found.fixed)} fixed, {len(found.broken)} broken"
    if not found.fixed and not found.broken and (found.higher or found.lower):
        counts_text = f"{found.higher} items better, {found.lower} worse"
    decision = action_words(event.decision)
    return f"{name}: {decision}, {difference}, {counts_text}, {found.rollouts} rollouts"


def _shipped(event: ShipTested) -> str:
    if not event.repeats:
        return f"ship test: {event.verdict}: {event.reason}"
    low, high = event.interval
    line = f"ship test: {event.verdict}, {event.difference:+.3f} ({low:+.2f} … {high:+.2f})"
    if event.gap is not None:
        line += f"; {event.difference + event.gap:+.3f} under the training grader"
    return line
