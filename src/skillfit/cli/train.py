"""`train` and `resume`: the same run, started or gone on with, under a live terminal that Ctrl-C
can end well.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from skillfit.cli.output import Json, Overrides, console, show, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from skillfit.cli.terminal import Terminal
    from skillfit.run.records import RunSummary
    from skillfit.training.components import Control
    from skillfit.training.inputs import Inputs
    from skillfit.training.start import Result


RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="The run's directory; default: runs/ and a name of its own."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of a live screen.")]
Force = Annotated[bool, typer.Option("--force", help="Train even if the preflight says stop.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track", help="mlflow, wandb, tensorboard, otel or jsonl:FILE; may be given again."
    ),
]
T = TypeVar("T")
_TICK = 0.1  # seconds between two looks at the screen
_BILL = 10  # ticks between two looks at the bill


def train(
    config: Annotated[Path, typer.Argument(help="The YAML config.")],
    overrides: Overrides = None,
    run: RunOption = None,
    as_json: Json = False,
    plain: Plain = False,
    force_new: Annotated[
        bool,
        typer.Option("--force-new", help="Start anew; another run in the directory is kept aside."),
    ] = False,
    force: Force = False,
    track: Track = None,
) -> None:
    """Train a skill, or go on with the run that is there.

    Example: skillfit train skillfit.yaml budget.usd=2 --run runs/first
    """
    from skillfit.api import default_run

    inputs = read(config, overrides)
    result = drive(
        inputs,
        run or default_run(inputs),
        as_json=as_json,
        plain=plain,
        force_new=force_new,
        force=force,
        track=track or (),
    )
    report(result, as_json)


def resume(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    overrides: Overrides = None,
    as_json: Json = False,
    plain: Plain = False,
    force: Force = False,
    track: Track = None,
) -> None:
    """Go on with a run: nothing that is paid for is paid again.

    Example: skillfit resume runs/first budget.usd=5
    """
    result = drive(
        stored(run, overrides), run, as_json=as_json, plain=plain, force=force, track=track or ()
    )
    report(result, as_json)


def read(
    config: Path | Mapping[str, Any], overrides: Sequence[str] | None, *, training: bool = True
) -> Inputs:
    """The config's inputs. Without `training` the optimizer is left out: its key need not be
    there.
    """
    from skillfit.config import load_config
    from skillfit.training.inputs import read_inputs

    return read_inputs(load_config(config, overrides or (), warn=warn), training=training)


def stored(run: Path, overrides: Sequence[str] | None = None) -> Inputs:
    """The inputs of a run, with the skill as it was when the run began: `apply` may have changed
    the file since.
    """
    from dataclasses import replace

    from skillfit.api import Run

    opened = Run.open(run)
    inputs = read(opened.config, overrides)
    return replace(inputs, skill=inputs.skill.with_document(opened.initial_skill))


def drive(
    inputs: Inputs,
    path: Path,
    *,
    as_json: bool = False,
    plain: bool = False,
    force_new: bool = False,
    force: bool = False,
    track: Sequence[str] = (),
) -> Result:
    from skillfit.cli.terminal import LiveTerminal, PlainTerminal
    from skillfit.trackers import make
    from skillfit.training.start import start

    screen = console(stderr=True)
    terminal = (
        LiveTerminal(screen)
        if screen.is_terminal and not plain and not as_json
        else PlainTerminal(screen)
    )
    listeners = [*map(make, track), terminal]
    how = {"force_new": force_new, "force": force}
    return attend(
        path,
        terminal,
        lambda control: start(inputs, path, listeners=listeners, control=control, **how),
    )


def attend(path: Path, terminal: Terminal, begin: Callable[[Control], Coroutine[Any, Any, T]]) -> T:
    """Do a run's work. Ctrl-C once: what is in flight finishes; twice: now. Either way the run can
    be gone on with.
    """
    import asyncio

    from skillfit.training.components import Control

    control = Control()
    with terminal:
        return asyncio.run(_attended(begin(control), path, terminal, control))


async def _attended(
    work: Coroutine[Any, Any, T], path: Path, terminal: Terminal, control: Control
) -> T:
    import asyncio

    from skillfit.training.components import Interrupted

    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    pressed = 0

    def interrupt() -> None:
        nonlocal pressed
        pressed += 1
        if pressed == 1:
            terminal.say(
                "Stopping: what is in flight finishes and is saved. Ctrl-C again stops at once."
            )
            control.stop()
        else:
            task.cancel()

    with _on_signals(lambda: loop.call_soon_threadsafe(interrupt)), _bill(path) as spent:
        ticks = 0
        while not task.done():
            await asyncio.wait(
                {task}, timeout=_TICK
            )  # first: before the run is open, another one's journal may stand there
            terminal.tick(spent() if ticks % _BILL == 0 else None)
            ticks += 1
        terminal.tick(spent())
    if task.cancelled():
        raise Interrupted(path)
    return task.result()


@contextmanager
def _on_signals(handler: Callable[[], Any]) -> Iterator[None]:
    names, heard = (signal.SIGINT, signal.SIGTERM), False

    def hear(*_: object) -> None:
        nonlocal heard
        heard = True
        handler()

    before = [signal.signal(name, hear) for name in names]
    try:
        yield
    finally:
        for name, old in zip(names, before, strict=True):
            # Who was asked to stop is on the way out: one press more must not break into its last
            # words.
            signal.signal(name, signal.SIG_IGN if heard else old)


@contextmanager
def _bill(path: Path) -> Iterator[Callable[[], Any]]:
    """What the run has spent, from its journal, as soon as there is one."""
    from skillfit.run.directory import JOURNAL
    from skillfit.run.journal import Journal

    opened: list[Journal] = []

    def spent() -> Any:
        with suppress(OSError):  # the run itself says so
            if not opened and (path / JOURNAL).is_file() and (path / "config.json").is_file():
                opened.append(Journal.open_readonly(path / JOURNAL))
        return opened[0].spent() if opened else None

    try:
        yield spent
    finally:
        for journal in opened:
            journal.close()


def line(run: Path, finish_reason: str, summary: RunSummary | None) -> dict[str, Any]:
    """The one line that `train --json` ends with. Scores are in the gate's metric."""
    ship = summary.ship if summary else None
    shipped: dict[str, Any] = {
        "verdict": ship.verdict if ship else None,
        "difference": ship.difference if ship else None,
        "interval": list(ship.interval) if ship else None,
    }
    if ship is not None and ship.gap is not None:  # only with a second grader
        shipped["gap"] = ship.gap
    return {
        "finish_reason": finish_reason,
        "run": str(run),
        "best_step": summary.best_step if summary else None,
        "metric": summary.metric if summary else None,
        "selection": {
            "baseline": summary.baseline_selection_score if summary else None,
            "best": summary.best_selection_score if summary else None,
        },
        "test": {
            "baseline": summary.baseline_test_hard if summary else None,
            "best": summary.test_hard if summary else None,
            "final": summary.final_test_hard if summary else None,
        },
        "ship": shipped,
        "unproven": summary.unproven if summary else False,
        "usage": {
            "calls": summary.usage.calls if summary else None,
            "tokens": summary.usage.tokens if summary else None,
            "usd": summary.usage.usd if summary else None,
        },
        "wall_s": summary.total_wall_time_s if summary else None,
    }


def report(result: Result, as_json: bool) -> None:
    """Say how it went and what to do next, and end with the run's exit code."""
    said = line(result.run, result.finish_reason, result.summary)
    show(said, in_words(said, result.diagnosis), as_json)
    raise typer.Exit(int(result.exit_code))


def in_words(said: dict[str, Any], diagnosis: str) -> str:
    measured = {
        name: said[name] for name in ("selection", "test") if said[name]["baseline"] is not None
    }
    where = {
        "selection": "selection, on fresh rollouts:" if said["ship"]["verdict"] else "selection"
    }
    scores = [
        f"{where.get(name, name)} {score['baseline']:.3f} → {score['best']:.3f}"
        for name, score in measured.items()
    ]
    if (gap := said["ship"].get("gap")) is not None:
        gain = said["ship"]["difference"]
        scores.append(
            f"gain {gain:+.3f} by the ship grader, {gain + gap:+.3f} by the one trained on (gap {gap:+.3f})"
        )
    used = said["usage"]
    cost = f"{used['calls'] or 0:,} calls, {used['tokens'] or 0:,} tokens" + (
        f", ${used['usd']:.2f}" if used["usd"] else ""
    )
    result = f"{said['finish_reason'].replace('_', ' ')}: {diagnosis}"
    following = [f"skillfit report {said['run']}"]
    if said["finish_reason"] == "improved":
        following = [
            f"skillfit diff {said['run']}",
            *following,
            f"skillfit apply {said['run']}",
        ]
    elif said["unproven"]:
        result += " The initial skill is handed back; what was found is in unproven_skill.md."
    return "\n".join(
        [
            result,
            *scores,
            f"{cost}, {said['wall_s'] or 0:.0f} s",
            "Next:",
            *(f"  {command}" for command in following),
        ]
    )


COMMANDS = (train, resume)
