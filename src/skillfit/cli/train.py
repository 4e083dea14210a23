"""`train` and `resume`: start a run or resume it, under a terminal."""

from __future__ import annotations

import gc
import os
import signal
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from skillfit.cli.output import Json, Overrides, ResultLine, console, show, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence

    from skillfit.cli.terminal import Terminal
    from skillfit.run.control import Control
    from skillfit.training.inputs import Inputs
    from skillfit.training.start import TrainingResult


RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="The run's directory; default: a new name under runs/."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of a live screen.")]
Force = Annotated[bool, typer.Option("--force", help="Train even if the preflight says stop.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="mlflow, wandb, tensorboard, otel, jsonl:FILE or file.py:name; may be given again.",
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
    rollouts: Annotated[
        int | None, typer.Option(min=1, help="Plan the run to use this many rollouts.")
    ] = None,
    force_new: Annotated[
        bool,
        typer.Option(
            "--force-new", help="Start a new run; an existing one is moved to NAME.old-N."
        ),
    ] = False,
    force: Force = False,
    track: Track = None,
) -> None:
    """Train a skill, or resume the run that is there.

    Example: skillfit train skillfit.yaml budget.usd=2 --run runs/first
    """
    from skillfit.api import default_run

    planned = [f"budget.rollouts={rollouts}"] if rollouts else []
    inputs = read(config, [*(overrides or ()), *planned])
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
    """Resume a run: nothing that is paid for is paid again.

    Example: skillfit resume runs/first budget.usd=5
    """
    result = drive(
        stored(run, overrides), run, as_json=as_json, plain=plain, force=force, track=track or ()
    )
    report(result, as_json)


def read(
    config: Path | Mapping[str, Any], overrides: Sequence[str] | None, *, training: bool = True
) -> Inputs:
    """The config's inputs. Without `training` the optimizer is left out, and its key may be
    missing.
    """
    from skillfit.config import load_config
    from skillfit.tasks.task import collector_paused
    from skillfit.training.inputs import read_inputs

    with collector_paused():
        inputs = read_inputs(load_config(config, overrides or (), warn=warn), training=training)
        gc.freeze()  # the items stay until the end: the collector need never search them
    return inputs


def stored(run: Path, overrides: Sequence[str] | None = None) -> Inputs:
    """The inputs of a run, with the skill as it was when the run began: `apply` may have changed
    the file.
    """
    from dataclasses import replace

    from skillfit.api import Run
    from skillfit.config.schema import with_earlier_behaviour

    opened = Run.open(run)
    inputs = read(with_earlier_behaviour(opened.story.config.root), overrides)
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
) -> TrainingResult:
    from skillfit.cli.terminal import LiveTerminal, PlainTerminal
    from skillfit.plugins.trackers import make_tracker
    from skillfit.training.start import start

    screen = console(stderr=True)
    terminal = (
        LiveTerminal(screen)
        if screen.is_terminal and not plain and not as_json
        else PlainTerminal(screen)
    )
    trackers = [make_tracker(spec, path) for spec in track]
    how = {"force_new": force_new, "force": force}
    try:
        return attend(
            path,
            terminal,
            lambda control: start(
                inputs, path, listeners=[*trackers, terminal], control=control, **how
            ),
            resumable=True,
        )
    finally:
        for tracker in trackers:
            tracker.close()


def attend(
    path: Path,
    terminal: Terminal,
    begin: Callable[[Control], Coroutine[Any, Any, T]],
    *,
    resumable: bool = False,
) -> T:
    """Do a run's work under a terminal.

    The first Ctrl-C lets work in flight finish and saves it; the second one stops at once.
    `resumable`: the run can be resumed with `skillfit resume`.
    """
    import asyncio

    from skillfit.run.control import Control, Interrupted

    control = Control()
    try:
        with terminal:
            return asyncio.run(_attended(begin(control), path, terminal, control))
    except Interrupted:
        if resumable:
            raise
        raise Interrupted() from None


async def _attended(
    work: Coroutine[Any, Any, T], path: Path, terminal: Terminal, control: Control
) -> T:
    import asyncio

    from skillfit.run.control import Interrupted

    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            terminal.say("Stopping: saving work in flight. Ctrl-C again stops at once.")
            control.stop()
        else:
            task.cancel()

    with _on_signals(lambda: loop.call_soon_threadsafe(interrupt)):
        ticks = 0
        while not task.done():
            await asyncio.wait({task}, timeout=_TICK)
            terminal.tick(control.usage if ticks % _BILL == 0 else None)
            ticks += 1
        terminal.tick(control.usage)
    if task.cancelled():
        raise Interrupted(path)
    return task.result()


@contextmanager
def _on_signals(handler: Callable[[], Any]) -> Iterator[None]:
    """Handle Ctrl-C, termination and a closed terminal in the same way."""
    names = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:  # as under nohup
        names.append(hangup)
    received = False

    def receive(number: int, _: object) -> None:
        nonlocal received
        received = True
        if number == hangup:
            _leave_closed_terminal()
        handler()

    before = [signal.signal(name, receive) for name in names]
    try:
        yield
    finally:
        for name, old in zip(names, before, strict=True):
            # Already shutting down: ignore further signals so that cleanup can finish.
            signal.signal(name, signal.SIG_IGN if received else old)


def _leave_closed_terminal() -> None:
    """The terminal was closed: writing to it would fail, so output is discarded."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        # A closed terminal does not count as a terminal any more, but is still a device.
        if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def report(result: TrainingResult, as_json: bool) -> None:
    """Say how it went and what to do next, and end with the run's exit code."""
    line = ResultLine.of(result.run, result.summary)
    show(line.as_json(), line.as_text(result.diagnosis), as_json)
    raise typer.Exit(int(result.exit_code))


COMMANDS = (train, resume)
