"""`skillfit tasks draft`: write the first tasks of a skill with a model; a person reviews them.

Beside the tasks file a folder FILE.draft keeps the model's replies and the reviewer's decisions, so
that the command can be stopped at any time: nothing is paid for or asked twice.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar

import typer

from skillfit.cli.init import given_setting
from skillfit.cli.output import Json, console, show, warn
from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.plain_text import dollars, quantity, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from skillfit.config.schema import GraderSetting
    from skillfit.models import Model, ModelSpec, Usage
    from skillfit.optimize.draft_tasks import Drafts, DraftTask
    from skillfit.run.control import Control
    from skillfit.run.journal import Journal
    from skillfit.skill import Skill

T = TypeVar("T")
ReviewChoice = Literal["accepted", "skipped", "unreviewed"]
_FEW = 20  # tasks below which results say little
_KEYS = "[a]ccept  [e]dit  [s]kip  accept the [r]est unread  [q]uit"
About = Annotated[
    str, typer.Option(help="What the model should know: who uses the skill, and for what.")
]
MostUsd = Annotated[float, typer.Option(min=0, help="Spend at most this many dollars.")]
tasks_app = typer.Typer(help="Write tasks for a skill.", no_args_is_help=True, add_completion=False)


@tasks_app.callback()  # without it, typer makes the only command the group itself
def _group() -> None:
    """Write tasks for a skill."""


@tasks_app.command("draft")
def draft_command(
    skill: Annotated[Path, typer.Argument(help="The skill: a folder or a markdown file.")],
    model: Annotated[
        str,
        typer.Option(
            help="The model that writes the tasks, such as openai/gpt-5; `handoff` writes prompts "
            "as files and needs no key. Settings go in braces: {id: …, base_url: …}."
        ),
    ] = "",
    config: Annotated[
        Path | None, typer.Option(help="Take the optimizer model and its prices from this config.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The tasks file to write.")] = Path("tasks.jsonl"),
    count: Annotated[int, typer.Option(min=1, max=200, help="How many tasks.")] = 20,
    about: About = "",
    besides: Annotated[
        Path | None, typer.Option(help="A tasks file whose tasks are not written again.")
    ] = None,
    usd: MostUsd = 1.0,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Take all tasks without a review; each row says so."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the first tasks of a skill with a model. You review each one: accept, edit or skip it.
    Never overwrites a file. After Ctrl-C, the same command continues where it stopped.

    Example: skillfit tasks draft ./my-skill --model openai/gpt-5
    """
    from skillfit.optimize.draft_tasks import draft_tasks
    from skillfit.skill import Skill

    refuse_overwriting(out, f"; to add to these tasks: --besides {out}")
    loaded = Skill.load(skill)
    writer = writer_of(model, config)
    present = _inputs_of(besides) if besides else []
    with draft_folder(out) as folder:
        ask = partial(draft_tasks, skill=loaded, count=count, about=about, besides=present)
        drafts = ask_writer(folder, writer, usd, quantity(count, "task"), ask)
        if len(drafts.tasks) < count:
            warn(f"The model wrote only {len(drafts.tasks)} different tasks of {count}.")
        decisions = _decide(folder, drafts, loaded, present, yes=yes, as_json=as_json)
        written = _write(out, drafts, decisions)
        spent = spent_on_drafts(folder)
    result = _DraftResult(
        tasks=out,
        written=len(written),
        skipped=sum(decision.choice == "skipped" for decision in decisions),
        unreviewed=sum(decision.choice == "unreviewed" for decision in written),
        grader=_grader(drafts, written),
        spent=spent,
    )
    given = ["--model", model] if model else []
    given += ["--config", str(config)] if config else []
    given += ["--about", about] if about else []
    show(result.as_json(), _summary(result, skill, given, folder), as_json)


@dataclass(frozen=True, slots=True)
class DraftWriter:
    """The model that writes drafts, and the prices that its config gives."""

    spec: ModelSpec
    prices: Mapping[str, Mapping[str, float]]


def refuse_overwriting(out: Path, more: str = ".") -> None:
    """Raise an error if a file of drafts is there. `more`: the rest of the hint."""
    if out.exists():
        raise InputError(
            f"{out} exists already; draft never overwrites a file.",
            hint=f"Give another file with --out{more}",
        )


def writer_of(model: str, config: Path | None = None) -> DraftWriter:
    """Return the model that `--model` names, else the optimizer of a config."""
    from pydantic import ValidationError

    from skillfit.config import load_config
    from skillfit.models import ModelSpec
    from skillfit.settings import setting_problems

    settings = load_config(config, warn=warn).model if config else None
    if model:
        try:
            return DraftWriter(
                ModelSpec.model_validate(given_setting(model)), settings.prices if settings else {}
            )
        except ValidationError as error:
            problem = next(setting_problems(error, ModelSpec, given_setting(model)))
            raise InputError(f"--model: {problem.sentence}") from error
    if settings is None or settings.optimizer is None:
        raise InputError(
            "No model to write the tasks.",
            hint="Give one: --model openai/gpt-5, or --model handoff to answer the prompt yourself "
            "or with any chat window. `skillfit models` lists what works here.",
        )
    return DraftWriter(settings.optimizer, settings.prices)


@dataclass(frozen=True, slots=True)
class _DraftResult:
    """What the command did."""

    tasks: Path
    written: int
    skipped: int
    unreviewed: int
    grader: GraderSetting
    spent: Usage

    def as_json(self) -> DraftJson:
        used = self.spent
        return DraftJson(
            tasks=str(self.tasks),
            written=self.written,
            skipped=self.skipped,
            unreviewed=self.unreviewed,
            grader=self.grader,
            usage=UsageJson(calls=used.calls, tokens=used.tokens, usd=used.usd),
        )


class UsageJson(TypedDict):
    calls: int
    tokens: int
    usd: float | None


class DraftJson(TypedDict):
    """What the command prints with --json."""

    tasks: str
    written: int
    skipped: int
    unreviewed: int
    grader: GraderSetting
    usage: UsageJson


def _inputs_of(tasks: Path) -> list[str]:
    """Return the inputs of a tasks file."""
    from skillfit.tasks.recognise import read_items

    if not tasks.exists():
        raise InputError(f"--besides: {tasks} does not exist.")
    return [item.input for item in read_items(tasks)]


@contextmanager
def draft_folder(out: Path) -> Iterator[Path]:
    """Yield the folder that keeps the model's replies beside the file, for this process alone."""
    from skillfit.run.store import RunLock

    folder = out.with_name(f"{out.name}.draft")
    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder)
    try:
        yield folder
    finally:
        lock.release()


def ask_writer(
    folder: Path,
    writer: DraftWriter,
    usd: float,
    wanted: str,
    ask: Callable[[Model], Coroutine[Any, Any, T]],
) -> T:
    """Return what a model drafts, recorded in the folder, for at most `usd` dollars."""
    from skillfit.cli.interrupts import run_in_terminal
    from skillfit.cli.terminal import Terminal
    from skillfit.run.journal import Journal
    from skillfit.run.store import JOURNAL

    if not math.isfinite(usd):
        raise InputError(f"--usd {usd} is not valid: it should be a finite number.")
    with closing(Journal(folder / JOURNAL)) as journal:

        async def work(control: Control) -> T:
            return await _drafted(folder, journal, writer, usd, ask, control)

        terminal = Terminal(console(stderr=True))
        if not journal.count("call/"):
            terminal.say(f"Asking {writer.spec.id} for {wanted} (at most {dollars(usd)}).")
        return run_in_terminal(terminal, work)


def spent_on_drafts(folder: Path) -> Usage:
    """Return what the draft has cost so far, over all times the command was run."""
    from skillfit.run.journal import Journal
    from skillfit.run.store import JOURNAL

    with closing(Journal.open_readonly(folder / JOURNAL)) as journal:
        return journal.spent()


async def _drafted(
    folder: Path,
    journal: Journal,
    writer: DraftWriter,
    usd: float,
    ask: Callable[[Model], Coroutine[Any, Any, T]],
    control: Control,
) -> T:
    from skillfit.config.schema import BudgetSection
    from skillfit.models import Prices, connect
    from skillfit.models.protocol import AnswerPending
    from skillfit.models.providers.handoff import pending_error
    from skillfit.run.budget import Budget, refuse_unpriced
    from skillfit.run.control import Interrupted
    from skillfit.run.journal import RecordedModel
    from skillfit.run.store import HANDOFF

    # Not validated: 0 dollars, which a config refuses, are enough for a model that is free.
    caps, prices = BudgetSection.model_construct(usd=usd), Prices(writer.prices)
    spec = writer.spec
    refuse_unpriced(caps, [spec.id] if prices.of(spec.id) is None else [])
    budget = Budget(caps, journal)
    control.on_stop(lambda: budget.stop(Interrupted()))
    client = connect(
        spec,
        role="optimizer",
        run_id=folder.name,
        meter=budget,
        prices=prices,
        notice=warn,
        folder=folder / HANDOFF,
    )
    model = RecordedModel(client, journal, "optimizer")
    try:
        return await ask(model)
    except AnswerPending as first:
        raise pending_error(folder / HANDOFF) from first
    finally:
        budget.close()
        await client.close()


@dataclass(frozen=True, slots=True)
class _Decision:
    """What the reviewer decided on the draft with this id. `task` is the text after edits."""

    id: str
    choice: ReviewChoice
    task: DraftTask


class _ReviewStopped(SkillfitError):
    exit_code = Exit.INTERRUPTED

    def __init__(self, decided: int, total: int) -> None:
        super().__init__(
            f"Stopped after {decided} of {total} tasks. What you decided is saved.",
            hint="Run the same command again to continue.",
        )


def _decide(
    folder: Path,
    drafts: Drafts,
    skill: Skill,
    besides: Sequence[str],
    *,
    yes: bool,
    as_json: bool,
) -> list[_Decision]:
    """Return a decision on every draft: those of an earlier review, then the new ones."""
    from skillfit.optimize.draft_tasks import problems

    review = folder / "review.jsonl"
    decided = {decision.id: decision for decision in _recorded(review)}
    notes = dict(zip(drafts.tasks, problems(drafts.tasks, skill, besides), strict=True))
    open_tasks = [task for task in drafts.tasks if task.id not in decided]
    asking = sys.stdin.isatty() and not as_json
    if open_tasks and not yes and not asking:
        raise InputError(
            f"{quantity(len(open_tasks), 'drafted task')} must be reviewed.",
            hint="Run the command in a terminal, or take them unread with --yes.",
        )
    take_rest = yes
    for task in open_tasks:
        if take_rest:
            for note in notes[task]:
                warn(f"{task.id}: {note}")
            decision = _Decision(task.id, "unreviewed", task)
        else:
            at = drafts.tasks.index(task) + 1
            heading = f"Task {at} of {len(drafts.tasks)}"
            try:
                answer = _reviewed(heading, task, notes[task])
            except (KeyboardInterrupt, EOFError, typer.Abort):
                answer = None
            if answer is None:
                raise _ReviewStopped(len(decided), len(drafts.tasks))
            decision, take_rest = answer, answer.choice == "unreviewed"
        decided[task.id] = decision
        _record(review, decision)
    return [decided[task.id] for task in drafts.tasks]


def _reviewed(heading: str, task: DraftTask, notes: Sequence[str]) -> _Decision | None:
    """Ask about one task. None: quit."""
    id_ = task.id
    while True:
        _present(heading, task, notes)
        key = typer.prompt(_KEYS, default="a", show_default=False).strip().lower()[:1]
        if key == "q":
            return None
        if key == "e":
            task, notes = _edited(task), ()
            continue
        choices: dict[str, ReviewChoice] = {"a": "accepted", "s": "skipped", "r": "unreviewed"}
        if key in choices:
            return _Decision(id_, choices[key], task)


def _present(heading: str, task: DraftTask, notes: Sequence[str]) -> None:
    kind = f" ({visible(task.type)})" if task.type else ""
    lines = [f"\n── {heading}{kind}", visible(task.input), f"expected: {visible(task.answer)}"]
    if task.reasoning:
        lines.append(f"because: {visible(task.reasoning)}")
    lines += [f"! {note}" for note in notes]
    console().print("\n".join(lines), markup=False, highlight=False)


def _edited(task: DraftTask) -> DraftTask:
    """Return the task after a change in the user's editor; unchanged if nothing was saved."""
    import click
    from pydantic import ValidationError

    from skillfit.optimize.draft_tasks import DraftTask
    from skillfit.settings import setting_problems

    text = json.dumps(task.model_dump(include={"input", "answer", "type"}), indent=2)
    try:
        changed = click.edit(text, extension=".json")
        return DraftTask.model_validate(json.loads(changed)) if changed else task
    except click.ClickException as error:
        warn(f"{error.format_message()} Set EDITOR to an editor.")
    except ValidationError as error:
        problem = next(setting_problems(error, DraftTask, {}))
        warn(f"Not changed: {problem.sentence}")
    except ValueError as error:
        warn(f"Not changed, because it is not JSON any more: {error}")
    return task


def _recorded(review: Path) -> Iterator[_Decision]:
    """Yield earlier decisions. A last line that was cut off is ignored."""
    from skillfit.optimize.draft_tasks import DraftTask

    if not review.is_file():
        return
    for line in review.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
            yield _Decision(
                record["id"], record["choice"], DraftTask.model_validate(record["task"])
            )
        except (ValueError, KeyError, TypeError):
            continue


def _record(review: Path, decision: _Decision) -> None:
    record = {
        "id": decision.id,
        "choice": decision.choice,
        "task": decision.task.model_dump(),
    }
    with review.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(record, ensure_ascii=False)}\n")


def _write(out: Path, drafts: Drafts, decisions: Sequence[_Decision]) -> list[_Decision]:
    """Write the tasks file. Two drafts that were edited into the same task are one."""
    from skillfit.atomic_write import write_whole

    accepted = [decision for decision in decisions if decision.choice != "skipped"]
    kept = list({decision.task.id: decision for decision in accepted}.values())
    if not kept:
        raise InputError(
            "No task was accepted, so nothing was written.",
            hint="Say with --about what the tasks should be like, and give another --out.",
        )
    rows = [
        decision.task.row(drafts.check, reviewed=decision.choice == "accepted") for decision in kept
    ]
    write_whole(out, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())
    return kept


def _grader(drafts: Drafts, written: Sequence[_Decision]) -> GraderSetting:
    import asyncio

    from skillfit.optimize.draft_tasks import fitting_grader

    tasks = [decision.task for decision in written]
    return asyncio.run(fitting_grader(drafts.check, tasks))


def _summary(result: _DraftResult, skill: Path, given: Sequence[str], folder: Path) -> str:
    """Describe the result for people. `given`: options of this command that the next needs too."""
    tasks, grader, cost = str(result.tasks), result.grader, result.spent.usd
    lines = [
        f"Wrote {quantity(result.written, 'task')} to {tasks}"
        + (f" ({dollars(cost)})." if cost else ".")
    ]
    if result.unreviewed:
        lines.append(
            f"{result.unreviewed} of them were not reviewed: read them, correct the answers, and "
            "remove `reviewed` from the rows that are right."
        )
    if result.written < _FEW:
        more = shlex.join(
            [
                *("skillfit", "tasks", "draft", str(skill), *given),
                *("--besides", tasks, "--out", "more.jsonl"),
            ]
        )
        lines.append(f"Twenty are a start, sixty give clear results. More of them:\n  {more}")
    setting = grader if isinstance(grader, str) else json.dumps(grader)
    start = shlex.join(
        ["skillfit", "init", "--skill", str(skill), "--tasks", tasks, "--grader", setting]
    )
    lines += ["Next:", f"  {start}", "  skillfit check skillfit.yaml"]
    lines.append(f"{folder} keeps the replies and your decisions; it can be deleted.")
    return "\n".join(lines)
