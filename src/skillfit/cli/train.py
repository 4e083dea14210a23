"""`train` and `resume`, under a terminal, and `check`, which looks at a run before it."""

from __future__ import annotations

import gc
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from skillfit.cli.interrupts import run_in_terminal
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
from skillfit.plain_text import quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from skillfit.api import Run
    from skillfit.models.json_text import JsonObject
    from skillfit.models.protocol import AnswerPending
    from skillfit.report.run_details import FailedItem
    from skillfit.run.records import CheckResult, Level
    from skillfit.training.inputs import Inputs
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
_ANSWER_POLL = 0.5  # seconds between two looks for answers


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

    inputs = planned_inputs(config, overrides or (), rollouts, quick)
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


def planned_inputs(
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
    """Return the config's inputs. Without `training` the optimizer is left out, and its key may be
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
    """Return the inputs of a run, with the skill as it was when the run began: `apply` may have
    changed the file.
    """
    from skillfit.skill.parts import with_trained

    opened = open_training_run(run)
    inputs = config_inputs(opened.record.config.root, overrides)
    parts = inputs.config.optimizer.parts
    return replace(inputs, skill=with_trained(inputs.skill, opened.initial_skill, parts))


def open_training_run(path: Path) -> Run:
    """Open the training run in a directory. An evaluation or an ablation is refused."""
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
    """Return whether an answer has changed just now, so that it may not be complete yet."""
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
    """Return how long earlier starts of a run took, without the pauses between them."""
    from skillfit.run.directory import RunDirectory
    from skillfit.run.store import JOURNAL

    if not (run / JOURNAL).is_file():
        return 0.0
    with closing(RunDirectory.read(run)) as view:
        return view.seconds


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
    """Return the items of a run that a skill did not solve; by default the initial skill."""
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


COMMANDS = (train_command, resume_command, check_command)
