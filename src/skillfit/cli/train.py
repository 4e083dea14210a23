"""`train` and `resume`, under a terminal; `check` and `estimate`, which look at a run before it."""

from __future__ import annotations

import gc
import os
import signal
import stat
import sys
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, Self, TypedDict, TypeVar

import typer

from skillfit.cli.output import (
    Json,
    Overrides,
    console,
    failed_text,
    relative_to_here,
    result_text,
    rich_table,
    shell_line,
    show,
    warn,
)
from skillfit.errors import Exit, InputError
from skillfit.plain_text import dollars, duration, quantity, rounded, rounded_dollars

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from rich.console import RenderableType

    from skillfit.api import Run
    from skillfit.cli.terminal import Terminal
    from skillfit.models.json_text import JsonObject
    from skillfit.models.protocol import AnswerPending
    from skillfit.report.run_details import FailedItem
    from skillfit.run.control import Control
    from skillfit.run.records import CheckResult, Level, PhasePlan
    from skillfit.training.forecast import (
        BudgetOption,
        EstimateRow,
        Forecast,
        ReachedCap,
        RolloutCost,
        SmallCap,
    )
    from skillfit.training.inputs import Inputs
    from skillfit.training.schedule import Range, Schedule
    from skillfit.training.start import TrainingResult
    from skillfit.training.user_parts import GivenParts


def _run_path(text: str) -> Path:
    if not text:  # would be the current folder, for example from a variable that is not set
        raise InputError("--run is empty.", hint="Give the run's directory; a dot is this folder.")
    return Path(text)


ConfigFile = Annotated[Path, typer.Argument(help="The YAML config.")]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        help="The run's directory; default: a new name under runs/.",
        parser=_run_path,
        metavar="<path>",
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of a live screen.")]
Force = Annotated[bool, typer.Option("--force", help="Train even if the preflight says stop.")]
Rollouts = Annotated[
    int | None, typer.Option(min=1, help="Plan the run to use this many rollouts.")
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Plan a small run: 120 rollouts, two or three optimizer answers."),
]
QUICK = range(50, 151)
QUICK_ROLLOUTS = 120
Wait = Annotated[
    bool,
    typer.Option("--wait", help="With a handoff model: stay, and continue when answers are there."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="mlflow, wandb, tensorboard, otel, jsonl:FILE or file.py:name; may be given again.",
    ),
]
T = TypeVar("T")
_ANSWER_POLL = 0.5  # seconds between two looks for answers
_REFRESH_SECONDS = 0.1  # between two refreshes of the terminal
_BLOCKED_SECONDS = 1.0  # a request to stop that the loop has not read until then
_PATIENCE = 5.0  # seconds that code may block the loop after a request to stop, or its time limit


def train_command(
    config: ConfigFile,
    overrides: Overrides = None,
    run: RunOption = None,
    as_json: Json = False,
    plain: Plain = False,
    rollouts: Rollouts = None,
    quick: Quick = False,
    force_new: Annotated[
        bool,
        typer.Option(
            "--force-new", help="Start a new run; an existing one is moved to NAME.old-N."
        ),
    ] = False,
    force: Force = False,
    wait: Wait = False,
    track: Track = None,
) -> None:
    """Train a skill, or resume the run that is there.

    Example: skillfit train skillfit.yaml budget.usd=2 --run runs/first
    """
    from skillfit.api import default_run_path

    inputs = _planned_inputs(config, overrides or (), rollouts, quick)
    result = train_in_terminal(
        inputs,
        run or default_run_path(inputs),
        as_json=as_json,
        plain=plain,
        force_new=force_new,
        force=force,
        wait=wait,
        track=track or (),
    )
    show_result(result, as_json)


def _planned_inputs(
    config: Path, overrides: Sequence[str], rollouts: int | None, quick: bool = False
) -> Inputs:
    """Read a config for a run that uses `rollouts`, where a number is given."""
    if quick:
        rollouts = _quick_rollouts(config, overrides, rollouts)
    if rollouts is None:
        return config_inputs(config, overrides)
    _refuse_contradictions(overrides)
    inputs = config_inputs(config, [*overrides, f"budget.rollouts={rollouts}"])
    _report_replaced(config, inputs, rollouts)
    return inputs


def _quick_rollouts(config: Path, overrides: Sequence[str], rollouts: int | None) -> int | None:
    """Return the rollouts of a quick run, and say so; None where the config decides them."""
    given = config_inputs(config, overrides).config.budget.rollouts if rollouts is None else None
    if rollouts is not None and rollouts not in QUICK:
        raise InputError(
            f"--quick is a plan for {QUICK[0]} to {QUICK[-1]} rollouts, and --rollouts asks for "
            f"{rollouts:,}.",
            hint="Give one of them.",
        )
    if given is not None and given in QUICK:
        return None
    number = rollouts or QUICK_ROLLOUTS
    console(stderr=True).print(
        f"--quick: {number} rollouts in all, two or three optimizer answers.", highlight=False
    )
    return number


def _refuse_contradictions(overrides: Sequence[str]) -> None:
    """Raise an error for overrides that --rollouts would replace. What the config file says is
    replaced, with a line about it (`_report_replaced`).
    """
    given = {text.partition("=")[0].strip() for text in overrides}
    if "budget.rollouts" in given:
        raise InputError(
            "--rollouts and budget.rollouts=… are the same setting.", hint="Give one of them."
        )
    if "train.num_epochs" in given:
        raise InputError(
            "--rollouts decides how many steps and epochs a run has, so train.num_epochs=… would "
            "have no effect.",
            hint="Give one of them.",
        )


def _report_replaced(config: Path, inputs: Inputs, rollouts: int) -> None:
    """Say which settings of the config file --rollouts replaces."""
    from skillfit.config.yaml_source import read_source, walk

    plan, available = inputs.rollout_plan, inputs.available
    if plan is None:
        return
    now = {"train.num_epochs": "", "budget.rollouts": f" (now {rollouts})"}
    if plan.batch_size < min(inputs.config.train.batch_size, available.train):
        now["train.batch_size"] = f" (now {plan.batch_size})"
    replaced = [
        f"{key}: {value}{now[key]}"
        for key, value in walk(read_source(config).data)
        if key in now and value is not None and (key, value) != ("budget.rollouts", rollouts)
    ]
    if replaced:
        message = f"--rollouts {rollouts} replaces settings of {config.name}: {', '.join(replaced)}"
        console(stderr=True).print(f"{message}.", markup=False, soft_wrap=True)


def resume_command(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    overrides: Overrides = None,
    as_json: Json = False,
    plain: Plain = False,
    force: Force = False,
    wait: Wait = False,
    track: Track = None,
) -> None:
    """Resume a run: nothing that is paid for is paid again.

    Example: skillfit resume runs/first budget.usd=5
    """
    result = train_in_terminal(
        inputs_of_run(run, overrides),
        run,
        as_json=as_json,
        plain=plain,
        force=force,
        wait=wait,
        track=track or (),
    )
    show_result(result, as_json)


def config_inputs(
    config: Path | JsonObject,
    overrides: Sequence[str] | None,
    *,
    training: bool = True,
    given: GivenParts | None = None,
) -> Inputs:
    """The config's inputs. Without `training` the optimizer is left out, and its key may be
    missing.
    """
    from skillfit.config import load_config
    from skillfit.tasks.task import collector_paused
    from skillfit.training.inputs import read_inputs

    with collector_paused():
        inputs = read_inputs(
            load_config(config, overrides or (), warn=warn), given=given, training=training
        )
        gc.freeze()  # the items stay until the end: the collector need never search them
    if training and inputs.task.splits.small_split_warning:
        warn(inputs.task.splits.small_split_warning)
    return inputs


def inputs_of_run(run: Path, overrides: Sequence[str] | None = None) -> Inputs:
    """The inputs of a run, with the skill as it was when the run began: `apply` may have changed
    the file.
    """
    from skillfit.skill.parts import with_trained

    opened = open_training_run(run)
    inputs = config_inputs(opened.record.config.root, overrides)
    parts = inputs.config.optimizer.parts
    return replace(inputs, skill=with_trained(inputs.skill, opened.initial_skill, parts))


def open_training_run(path: Path) -> Run:
    """The training run in a directory. An evaluation or an ablation is refused."""
    from skillfit.api import Run
    from skillfit.run.directory import refuse_other_kinds

    opened = Run.open(path)
    refuse_other_kinds(opened.path)
    return opened


def train_in_terminal(
    inputs: Inputs,
    path: Path,
    *,
    as_json: bool = False,
    plain: bool = False,
    force_new: bool = False,
    force: bool = False,
    wait: bool = False,
    track: Sequence[str] = (),
) -> TrainingResult:
    """Train, or resume the run at `path`, and show its progress on stderr: a live screen on a
    terminal, else lines. `track` names the trackers that get the events of the run too. With
    `wait` the run continues as soon as its handoff prompts have their answers.
    """
    from skillfit.models.protocol import AnswerPending

    again = False
    while True:
        try:
            return _train_once(
                inputs,
                path,
                lines=plain or as_json,
                again=again,
                force_new=force_new and not again,  # what waits is the new run
                force=force,
                track=track,
            )
        except AnswerPending as waiting:
            await_answers(path, waiting, wait=wait)
        again = True


def await_answers(run: Path, waiting: AnswerPending, *, wait: bool) -> None:
    """Wait until every handoff prompt of a run has an answer that can be used. Without `wait` end
    with the error that says which prompts there are.
    """
    from skillfit.models.providers.handoff import pending
    from skillfit.run.control import Interrupted
    from skillfit.run.store import HANDOFF

    if not wait:
        waiting.hint += " With --wait the command stays and continues by itself."
        raise waiting
    folder, said = run / HANDOFF, ""
    try:
        while (prompts := pending(folder)) or _is_being_written(folder):
            problems = [f" Cannot use {one.answer.name}: {one.problem}" for one in prompts]
            unusable = [text for text, one in zip(problems, prompts, strict=True) if one.problem]
            where = relative_to_here(folder)
            text = f"Waiting for {quantity(len(prompts), 'answer')} in {where}.{''.join(unusable)}"
            if prompts and text != said:
                console(stderr=True).print(text, markup=False, soft_wrap=True)
                said = text
            time.sleep(_ANSWER_POLL)
    except KeyboardInterrupt:
        raise Interrupted(run) from None


def _is_being_written(folder: Path) -> bool:
    """Whether an answer has changed just now, so that it may not be complete yet."""
    answers = folder.glob("*.answer.*")
    return any(time.time() - file.stat().st_mtime < 2 * _ANSWER_POLL for file in answers)


def _train_once(
    inputs: Inputs,
    path: Path,
    *,
    lines: bool,
    again: bool,
    force_new: bool,
    force: bool,
    track: Sequence[str],
) -> TrainingResult:
    """Train once. `again`: after an earlier start by the same command."""
    from skillfit.cli.terminal import LiveTerminal, PlainTerminal
    from skillfit.plugins.trackers.trackers import make_tracker
    from skillfit.training.start import start

    screen = console(stderr=True)
    used = 0.0 if force_new else _earlier_seconds(path)
    terminal = (
        LiveTerminal(screen, used)
        if screen.is_terminal and not lines
        else PlainTerminal(screen, again=again)
    )
    trackers = [make_tracker(spec, path) for spec in track]
    minutes = inputs.config.budget.minutes
    try:
        return run_in_terminal(
            terminal,
            lambda control: start(
                inputs,
                path,
                force_new=force_new,
                force=force,
                listeners=[*trackers, terminal],
                control=control,
            ),
            resume=path,
            seconds=None if minutes is None else max(0.0, 60 * minutes - used),
        )
    finally:
        for tracker in trackers:
            tracker.close()


def _earlier_seconds(run: Path) -> float:
    """How long earlier starts of a run took, without the pauses between them."""
    from skillfit.run.directory import RunDirectory
    from skillfit.run.store import JOURNAL

    if not (run / JOURNAL).is_file():
        return 0.0
    with closing(RunDirectory.read(run)) as view:
        return view.seconds


def run_in_terminal(
    terminal: Terminal,
    begin: Callable[[Control], Coroutine[Any, Any, T]],
    *,
    resume: Path | None = None,
    seconds: float | None = None,
) -> T:
    """Do some work while a terminal shows its progress.

    The first Ctrl-C lets work in flight finish and saves it; the second one stops at once.
    `resume`: the run that can be resumed with `skillfit resume` then. `seconds`: what is left of
    budget.minutes.
    """
    import asyncio

    from skillfit.run.control import Control, Interrupted

    control = Control()
    try:
        with terminal:
            return asyncio.run(_run_until_done(begin(control), terminal, control, seconds))
    except Interrupted:
        raise Interrupted(resume) from None


class _LoopWatch:
    """Ends code of the user that blocks the event loop after a request to stop, or after the time
    limit of the run: the loop reads both, and cannot. A thread sends the signal of a second Ctrl-C.
    """

    def __init__(self, terminal: Terminal, seconds: float | None) -> None:
        import threading

        self._terminal = terminal
        self._due = None if seconds is None else time.monotonic() + seconds
        self._ticked = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if hasattr(signal, "pthread_kill"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def tick(self) -> None:
        """Note that the loop runs."""
        self._ticked = time.monotonic()

    def expect_stop(self) -> None:
        """Note that a stop was asked for."""
        now = time.monotonic()
        self._due = now if self._due is None else min(self._due, now)

    def _watch(self) -> None:
        import threading

        said, main = False, threading.main_thread().ident
        while not self._over.wait(_BLOCKED_SECONDS):
            now = time.monotonic()
            is_due = self._due is not None and now - self._due > _PATIENCE
            if not is_due or now - self._ticked < _PATIENCE or main is None:
                continue
            if not said:
                self._terminal.say("Stopping: code of yours, such as a proposer, does not return.")
                said = True
            signal.pthread_kill(main, signal.SIGTERM)


async def _run_until_done(
    work: Coroutine[Any, Any, T], terminal: Terminal, control: Control, seconds: float | None
) -> T:
    """Wait for the work, refresh the terminal meanwhile, and handle signals."""
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

    first = 0.0

    def receive() -> None:
        nonlocal first
        loop.call_soon_threadsafe(interrupt)
        watch.expect_stop()
        now = time.monotonic()
        if first and not interrupts and now - first > _BLOCKED_SECONDS:
            raise Interrupted  # in code of the user, which blocks the loop
        first = first or now

    watch = _LoopWatch(terminal, seconds)
    with _on_signals(receive), watch:
        while not task.done():
            await asyncio.wait({task}, timeout=_REFRESH_SECONDS)
            watch.tick()
            terminal.tick(control.usage)
        terminal.tick(control.usage)
    if task.cancelled():
        raise Interrupted
    return task.result()


@contextmanager
def _on_signals(handler: Callable[[], Any]) -> Iterator[None]:
    """Handle Ctrl-C, termination and a closed terminal in the same way. SIGINT is handled also
    where it was ignored, as in background jobs of scripts: `steer stop` sends it.
    """
    signals = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:  # nohup ignores it
        signals.append(hangup)
    received = False

    def receive(number: int, _: object) -> None:
        nonlocal received
        received = True
        if number == hangup:
            _leave_closed_terminal()
        handler()

    before = [signal.signal(number, receive) for number in signals]
    try:
        yield
    finally:
        for number, old in zip(signals, before, strict=True):
            # Already shutting down: ignore further signals so that cleanup can finish.
            signal.signal(number, signal.SIG_IGN if received else old)


def _leave_closed_terminal() -> None:
    """The terminal was closed: writing to it would fail, so output is discarded."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        # A closed terminal does not count as a terminal any more, but is still a device.
        if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def show_result(result: TrainingResult, as_json: bool) -> None:
    """Say how it went and what to do next, and end with the run's exit code."""
    from skillfit.record.fold import read_record

    record = read_record(result.run)
    show(record.result_json(), result_text(record), as_json)
    raise typer.Exit(int(result.exit_code))


def check_command(
    config: ConfigFile, overrides: Overrides = None, run: RunOption = None, as_json: Json = False
) -> None:
    """Find out whether a skill is worth training. Tries keys, grader, noise, headroom and cost with
    a few rollouts that `train` does not pay for again.

    Example: skillfit check skillfit.yaml
    """
    from skillfit.api import default_run_path
    from skillfit.cli.terminal import CountingTerminal
    from skillfit.training.start import check_run

    inputs = config_inputs(config, overrides)
    path, terminal = run or default_run_path(inputs), CountingTerminal(console(stderr=True))
    report = run_in_terminal(
        terminal,
        lambda control: check_run(inputs, path, listeners=[terminal], control=control),
    )
    failed = failed_items(path, inputs.skill.hash)
    rows = [(one.verdict, one.name, one.message) for one in report.checks]
    data = CheckJson(verdict=report.verdict, checks=report.checks, failed=failed, run=str(path))
    show(data, rich_table(("", f"verdict: {report.verdict}", ""), rows), as_json)
    stop = report.verdict == "stop"
    if not as_json:  # not in the table, so that the command stays on one line
        where = relative_to_here(path)
        line = ["train", config, *(overrides or ()), "--run", where]
        train = shell_line(*line, *(["--force"] if stop else []))
        how = "Train anyway" if stop else "Train with them"
        listed = failed_text(failed, "The skill")
        show(data, f"{listed}\nThe rollouts are in {where}. {how}:\n  {train}".lstrip(), as_json)
    raise typer.Exit(int(Exit.PREFLIGHT if stop else Exit.OK))


def failed_items(run: Path, skill_hash: str = "") -> list[FailedItem]:
    """The items of a run that a skill did not solve; by default the initial skill."""
    from skillfit.record.fold import read_record
    from skillfit.report import open_details

    record = read_record(run)
    with open_details(run) as details:
        return details.failed_items(record, skill_hash or details.initial_hash)


class CheckJson(TypedDict):
    """What the command prints with --json."""

    verdict: Level
    checks: Sequence[CheckResult]
    failed: Sequence[FailedItem]  # items that the skill did not solve
    run: str


def estimate_command(
    config: ConfigFile,
    overrides: Overrides = None,
    run: RunOption = None,
    as_json: Json = False,
    rollouts: Rollouts = None,
) -> None:
    """Show what a run would cost. Calls, tokens, dollars and minutes, typically and as a range. It
    uses what `check` measured, if it was run before, and spends nothing.

    Example: skillfit estimate skillfit.yaml train.num_epochs=2
    """
    from skillfit.api import default_run_path
    from skillfit.models.registry import refuse_unknown_provider
    from skillfit.training.inputs import with_checked_plan

    inputs = _planned_inputs(config, overrides or (), rollouts)
    for spec in (*inputs.config.model.by_role().values(), *inputs.config.model.agents):
        refuse_unknown_provider(spec.id)
    path = run or default_run_path(inputs)
    inputs = with_checked_plan(inputs, path)
    cost = _measured_cost(path, inputs)
    planned = _estimated(inputs, cost)
    show(_estimate_json(planned), _estimate_text(planned, inputs), as_json)


@dataclass(frozen=True, slots=True)
class PlannedCost:
    """What a planned run would take, and what its budget does to it."""

    schedule: Schedule
    total: Forecast  # within the budget
    reached: Sequence[ReachedCap]
    too_small: Sequence[SmallCap]
    options: Sequence[BudgetOption]  # what numbers of rollouts buy
    baseline: float | None  # score of the initial skill in `check`; None: not measured


def _estimated(inputs: Inputs, cost: RolloutCost | None) -> PlannedCost:
    from skillfit.training.forecast import budget_options, forecast, small_caps

    inputs.refuse_useless_plan()
    config, task, skill = inputs.config, inputs.task, inputs.skill
    schedule, budget = inputs.schedule(), inputs.config.budget
    planned = forecast(config, task, skill, schedule, cost)
    baseline = cost.score if cost else None
    return PlannedCost(
        schedule=schedule,
        total=planned.within(budget),
        reached=planned.reached(budget),
        too_small=small_caps(config, task, skill, schedule, cost),
        options=budget_options(config, inputs.available, inputs.gate.gate, baseline),
        baseline=baseline,
    )


def planned_time(inputs: Inputs) -> str:
    """How long a run takes by what is known before its first rollout: "20 min (4 min – 2 h)"."""
    minutes = _estimated(inputs, None).total.minutes
    return _range_text(minutes, lambda amount: duration(60 * amount))


RangeJson = tuple[float, float, float]  # low, typical, high


class RowJson(TypedDict):
    stage: str
    role: str
    calls: RangeJson
    tokens: RangeJson
    usd: RangeJson | None


class ReachedCapJson(TypedDict):
    cap: str
    at: float
    ends_early: bool


class EstimateJson(TypedDict):
    steps: int
    rollouts: RangeJson
    rows: Sequence[RowJson]  # by stage
    work: Sequence[RowJson]  # the same by kind of work
    total: RowJson
    minutes: RangeJson
    measured_rollouts: int
    reached_caps: Sequence[ReachedCapJson]
    too_small: Sequence[SmallCap]
    phases: Sequence[PhasePlan]
    options: Sequence[BudgetOption]


def _estimate_json(planned: PlannedCost) -> EstimateJson:
    return EstimateJson(
        steps=planned.schedule.total_steps,
        rollouts=_range_json(planned.total.rollouts),
        rows=[_row_json(row) for row in planned.total.rows],
        work=[_row_json(row) for row in planned.total.by_work],
        total=_row_json(planned.total.total),
        minutes=_range_json(planned.total.minutes),
        measured_rollouts=planned.total.measured,
        reached_caps=[
            ReachedCapJson(cap=one.name, at=one.cap, ends_early=one.ends_early)
            for one in planned.reached
        ],
        too_small=planned.too_small,
        phases=planned.schedule.phases,
        options=planned.options,
    )


def _estimate_text(planned: PlannedCost, inputs: Inputs) -> RenderableType:
    from rich.console import Group

    from skillfit.training.forecast import ASSUMED_BASELINE

    rollouts = _range_text(planned.total.rollouts)
    time = _range_text(planned.total.minutes, lambda minutes: duration(60 * minutes))
    notes = [
        f"{quantity(planned.schedule.total_steps, 'step')}, {rollouts} rollouts, {time}. {_RANGES}",
        *_cap_notes(inputs.config.budget.rollouts, planned.reached),
        *map(str, planned.too_small),
        _cost_basis(planned.total),
    ]
    shown: list[RenderableType] = [_cost_table(planned.total), "\n".join(notes)]
    shown += [_phases_table(planned.schedule), _options_table(planned.options)]
    known = planned.baseline is not None
    score = f"{ASSUMED_BASELINE if planned.baseline is None else planned.baseline:.2f}"
    basis = f"as `check` measured, {score}" if known else f"assumed to be {score}; `check` measures"
    shown.append(
        f"Expected gain: mean of the benchmarks, from the score of the initial skill ({basis})."
    )
    return Group(*shown)


_RANGES = "Each amount is typical (least – most)."


def _measured_cost(run: Path, inputs: Inputs) -> RolloutCost | None:
    """What a rollout cost in an earlier `check` of the same run; None without one."""
    from skillfit.models.registry import local_slots
    from skillfit.report import open_details
    from skillfit.run.store import JOURNAL
    from skillfit.training.forecast import RolloutCost, rollouts_at_once

    if not (run / JOURNAL).is_file():
        return None
    with open_details(run) as details:
        cost = RolloutCost.of(list(details.rollouts()), details.initial_hash)
        paces = details.paces()
    if cost is None or not paces or local_slots(inputs.config.model.agent) is None:
        return cost
    # A rollout's own seconds include its wait for one of the few slots, so the pace of all counts.
    return replace(cost, seconds=mean(paces) * rollouts_at_once(inputs.config))


def _cap_notes(rollouts: int | None, reached: Sequence[ReachedCap]) -> list[str]:
    """What the caps of the budget do to the estimate."""
    lines = []
    if rollouts is not None:
        lines.append(f"budget.rollouts: all stages together make at most {rollouts:,} rollouts.")
    for one in reached:
        form = dollars if one.name == "usd" else rounded
        if one.ends_early:
            lines.append(
                f"budget.{one.name} ({form(one.cap)}) ends the run early: the whole plan typically "
                f"takes {form(one.planned.typical)}."
            )
        else:
            lines.append(
                f"budget.{one.name} ends the run at {form(one.cap)}; without it the plan takes "
                f"{form(one.planned.high)} at the most."
            )
    return lines


def _cost_basis(estimate: Forecast) -> str:
    if estimate.measured:
        return f"The cost of a rollout is the mean of {estimate.measured} measured ones."
    return "The cost of a rollout is assumed; `skillfit check` measures it."


def _phases_table(schedule: Schedule) -> RenderableType:
    """Show what each phase of the run takes, and why."""
    rows = []
    for one in schedule.phases:
        unit = "comparison" if one.phase == "prove" else "round"
        rows.append((one.phase, quantity(one.rounds, unit), f"{one.rollouts:,}", one.reason))
    return rich_table(("phase", "", "rollouts", "why"), rows)


def _options_table(options: Sequence[BudgetOption]) -> RenderableType:
    rows = []
    for one in options:
        if one.plan is None:
            rows.append((f"{one.rollouts:,}", f"nothing: at least {one.least} are needed", "", ""))
            continue
        steps = f"{quantity(one.plan.steps, 'step')} of {one.plan.batch_size}"
        chance = f"{one.chance:.0%}" if one.chance < 0.95 else "over 95%"
        rows.append((f"{one.rollouts:,}", steps, f"{one.gain:+.2f}", chance))
    return rich_table(("--rollouts", "buys", "expected gain", "chance that it is shown"), rows)


def _cost_table(estimate: Forecast) -> RenderableType:
    """The kinds of work under the role that pays for them: this fits 80 columns."""
    rows: list[tuple[str, ...]] = []
    role = ""
    for row in estimate.by_work:
        if row.role != role:
            role = row.role
            rows.append((role, "", "", ""))
        rows.append(_cost_row(row, indent="  "))
    rows.append(_cost_row(estimate.total))
    return rich_table(("work", "calls", "tokens", "usd"), rows)


def _cost_row(row: EstimateRow, indent: str = "") -> tuple[str, ...]:
    from skillfit.record.text import UNPRICED

    usd = UNPRICED if row.usd is None else _range_text(row.usd, rounded_dollars)
    cells = (_range_text(row.calls), _range_text(row.tokens), usd)
    return (f"{indent}{row.stage}", *(cell.replace(" – ", "–") for cell in cells))


def _row_json(row: EstimateRow) -> RowJson:
    return RowJson(
        stage=row.stage,
        role=row.role,
        calls=_range_json(row.calls),
        tokens=_range_json(row.tokens),
        usd=_range_json(row.usd) if row.usd else None,
    )


def _range_json(amount: Range) -> RangeJson:
    return round(amount.low, 4), round(amount.typical, 4), round(amount.high, 4)


def _range_text(amount: Range, form: Callable[[float], str] = rounded) -> str:
    typical, low, high = form(amount.typical), form(amount.low), form(amount.high)
    if low == high:
        return typical
    bounds = f"{low} – {high}".replace("$", "")
    return f"{typical} ({bounds})"


COMMANDS = (train_command, resume_command, check_command, estimate_command)
