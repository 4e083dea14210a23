"""Commands about runs that are there: `ls`, `show`, `report`, `export`, `steer`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict

import typer

from skillfit.atomic_write import write_whole
from skillfit.cli.output import (
    Json,
    aligned,
    failed_text,
    relative_to_here,
    result_text,
    rich_table,
    runnable,
    shell_line,
    show,
    warn,
)
from skillfit.cli.train import config_inputs, failed_items
from skillfit.errors import InputError
from skillfit.plain_text import (
    display_name,
    dollars,
    mean_score,
    one_line,
    quantity,
    score_change,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from skillfit.record.record import EditRecord, Record, RunCard
    from skillfit.rollout.outcome import Outcome
    from skillfit.run.events import RolloutFinished
    from skillfit.run.records import (
        ItemRecord,
        RolloutStatus,
    )


_RUNS = Path("runs")  # the default folder of runs
_FAILED_SHOWN = 50  # items that `show` lists
_FAILURES_SHOWN = 12  # the report has the others
_REJECTIONS_SHOWN = 12  # the latest; the report has the others
_LONGEST_NAME = 120  # characters of an item's id in the name of its folder
RunFolder = Annotated[Path, typer.Argument(help="The run's directory.")]


def ls_command(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = _RUNS,
    tag: Annotated[
        list[str] | None, typer.Option(help="Only runs with this tag; may be given again.")
    ] = None,
    all_runs: Annotated[bool, typer.Option("--all", help="Archived runs too.")] = False,
    as_json: Json = False,
) -> None:
    """List the runs in a folder, newest last, with the scores of the initial and the best skill: on
    fresh rollouts where a run made them, else on the selection split. Archived runs are left out.

    Example: skillfit ls runs
    """
    from skillfit.record.lists import list_runs

    if not folder.is_dir() and folder != _RUNS:
        raise InputError(
            f"{folder} is not a folder.", hint="Give the folder that your runs are in."
        )
    listing = list_runs(folder)
    for problem in listing.problems:
        warn(str(problem))
    runs = [
        card
        for card in listing.runs
        if set(tag or ()) <= set(card.tags) and (all_runs or not card.archived)
    ]
    if as_json:
        kept = ("state", "tags", "archived")
        data = [
            {**card.result_json(), **{name: getattr(card, name) for name in kept}} for card in runs
        ]
        show(data, "", as_json)
    elif runs:
        names = ["run", "date", "skill", "model", "result", "baseline", "best", "calls", "cost"]
        names += ["tags"] if any(card.tags for card in runs) else []
        print(aligned(names, (_listed_cells(card)[: len(names)] for card in runs)))
    else:
        left_out = len(listing.runs)
        rest = f" {quantity(left_out, 'run is', 'runs are')} not listed." if left_out else ""
        print(visible(f"No runs in {folder.resolve()}.{rest}"))


def _listed_cells(card: RunCard) -> tuple[str, ...]:
    scores = card.listed_scores
    baseline, best = (
        "" if score is None else mean_score(score) for score in (scores.baseline, scores.best)
    )
    doubt = f" ({card.doubt})" if card.doubt else ""
    result = display_name(card.finish_reason) if card.state == "finished" else card.state
    if card.only_checked:
        result = "checked"
    return (
        str(relative_to_here(Path(card.path))),
        f"{datetime.fromtimestamp(card.ended or 0.0):%Y-%m-%d %H:%M}",
        one_line(card.skill_name, 30),
        one_line(card.models.get("agent", ""), 40),
        result,
        baseline,
        f"{best}{doubt}",
        f"{card.usage.calls:,}" if card.usage.calls else "",
        dollars(card.usage.usd) if card.usage.usd else "",
        " ".join(card.tags),
    )


def tag_command(
    run: RunFolder,
    tags: Annotated[list[str] | None, typer.Argument(help="Tags that the run gets.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option(help="A tag that it loses; may be given again.")
    ] = None,
    archive: Annotated[
        bool | None,
        typer.Option("--archive/--no-archive", help="Leave the run out of lists, or no longer."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tag a run, or archive it, for `ls` and the studio.

    Example: skillfit tag runs/first baseline --archive
    """
    from skillfit.record.labels import label_run

    labels = label_run(run, tags or (), remove or (), archive)
    state = ", archived" if labels.archived else ""
    show(asdict(labels), f"Tags: {', '.join(labels.tags) or 'none'}{state}", as_json)


def show_command(run: RunFolder, as_json: Json = False) -> None:
    """Show what a run did or measured. Of a training run: result, score curve, decisions, edits
    with their effects, unused replies; of an evaluation or a check, the items that fail.

    Example: skillfit show runs/first
    """
    from rich.console import Group

    from skillfit.api import Run
    from skillfit.record.record import record_json

    record = Run.open(run).record
    if record.measured is not None or record.only_checked:
        _show_measured(record, run, as_json)
        return
    data = record_json(record)
    show(data, Group(*_record_tables(record)), as_json)
    if not as_json:
        ended = record.finished is not None
        print(result_text(record) if ended else _unfinished_text(record, run))
        if record.skill_missed:
            print(f"The agent loaded the skill {record.skill_use}.")


def _show_measured(record: Record, run: Path, as_json: bool) -> None:
    """Show an evaluation or a check: its scores or checks, and the items that fail."""
    from skillfit.record.text import resume_line

    scores = record.measured.scores if record.measured else ()
    failed = {score.name: failed_items(run, score.skill_hash) for score in scores}
    if not scores:
        failed = {"The skill": failed_items(run)}
    data = {
        **record.result_json(),
        "state": record.state,
        "scores": scores,
        "checks": record.checks,
        "failed": failed,  # by skill
    }
    lines = [record.verdict]
    lines += [f"{one.verdict}  {one.name}: {one.message}" for one in record.checks]
    lines += [failed_text(items, name, _FAILED_SHOWN) for name, items in failed.items()]
    if resume := resume_line(record, str(run)):
        lines.append(runnable(f"Train with: {resume}"))
    show(data, "\n".join(filter(None, lines)), as_json)


def _unfinished_text(record: Record, run: Path) -> str:
    from skillfit.record.text import resume_line

    resume = resume_line(record, str(run)) if record.state != "running" else ""
    lines = [record.verdict, f"Resume with: {resume}"] if resume else [record.verdict]
    return runnable("\n".join(lines))


def _record_tables(record: Record) -> list[RenderableType]:
    """Make the tables of `show`: guidance, curve, decisions, edits, unused replies, notices."""
    from rich.text import Text

    from skillfit.cli.terminal import PLOT_TITLE, PlotPoint, plot

    parts: list[RenderableType] = []
    if guidance := record.config.settings.optimizer.guidance:
        parts.append(Text(f"Guidance: {one_line(visible(guidance), 90)}"))
    points = [PlotPoint(one.score, one.kept) for one in record.points if one.split == "selection"]
    if len(points) > 1:
        parts.append(Text("\n".join([PLOT_TITLE, *plot(points)]), style="cyan"))
    if record.gates:
        rows = [
            (gate.label, gate.decision, score_change(gate.evidence.difference), gate.reason)
            for gate in record.gates
        ]
        parts.append(rich_table(("step", "decision", "change in score", "reason"), rows))
    if record.edits:
        edits = [
            (
                edit.id,
                edit.standing,
                one_line(visible(edit.note), 60) if edit.mean is None else score_change(edit.mean),
                edit.evidence,
                edit_text(edit),
            )
            for edit in record.edits
        ]
        columns = ("edit", "status", "effect on score", "evidence", "text")
        parts.append(rich_table(columns, edits))
    if record.evidence.patterns:
        parts += _failure_table(record)
    if record.rejections:
        shown = record.rejections[-_REJECTIONS_SHOWN:]
        rejected = [
            (
                str(one.step),
                display_name(one.stage),
                one_line(visible(one.blocked if one.leak else one.reason), 300),
            )
            for one in shown
        ]
        parts.append(rich_table(("step", "stage", "not used because"), rejected))
        if earlier := len(record.rejections) - len(shown):
            parts.append(Text(f"{earlier} earlier ones are in the report and in --json."))
    for notice in record.notices:
        if notice.kind == "failed" and record.finished is not None:
            continue  # `result_text` has it
        where = f"{display_name(notice.where)}: " if notice.where else ""
        parts.append(Text(f"! {where}{visible(notice.text)}", style="yellow"))
    return parts


def _failure_table(record: Record) -> list[RenderableType]:
    """List the kinds of failure of the run, and the edits that were tried against each."""
    from rich.text import Text

    failures = record.failures
    rows = [
        (
            one_line(visible(one.pattern.name), 60),
            str(len(one.pattern.items)),
            one.pattern.seen,
            ", ".join(f"{edit.id} {edit.standing}" for edit in one.edits),
        )
        for one in failures[:_FAILURES_SHOWN]
    ]
    parts: list[RenderableType] = [
        rich_table(("failure", "items", "last seen", "tried against it"), rows)
    ]
    if more := len(failures) - len(rows):
        parts.append(Text(f"{more} more are in the report and in --json."))
    return parts


def edit_text(edit: EditRecord) -> str:
    """Return the text of an edit in one line, and the types of items that it acts on."""
    from skillfit.run.records import kinds_text

    kinds = visible(kinds_text(edit.kinds))
    text = one_line(visible(edit.text), 90)
    return f"{text} ({kinds})" if kinds else text


def report_command(
    run: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; default: report.html or report.md in the run."),
    ] = None,
    format: Annotated[str, typer.Option(help="html, or md for pull requests.")] = "html",
    share: Annotated[
        bool, typer.Option("--share", help="Leave out the paths of this machine.")
    ] = False,
    card: Annotated[
        bool, typer.Option("--card", help="Write the result as one picture instead: card.svg.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run: one file, readable offline.

    Example: skillfit report runs/first --share --out report.html
    """
    from skillfit.api import Run
    from skillfit.report import write_report
    from skillfit.report.card import write_card

    folder = Run.open(run).path
    if card:
        path = write_card(folder, out)
        show({"card": str(path)}, f"Wrote {path}.", as_json)
        return
    path = write_report(folder, out, format=format, share=share)
    show({"report": str(path)}, f"Wrote {path}.", as_json)


def export_command(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="The folder; default: exported/ in the run.")] = (
        None
    ),
    item: Annotated[str, typer.Option(help="Only the rollouts of the item with this id.")] = "",
    as_json: Json = False,
) -> None:
    """Write every rollout as files. conversation.json has what the agent said and did, result.json
    how it was scored, feedback.json what people said about answers. The folders are those of
    SkillOpt: steps/step_NNNN/rollout/predictions/ID.

    Example: skillfit export runs/first --out trajectories
    """
    folder = out or run / "exported"
    count = 0
    for rollout in _exported(run, item):
        for name, value in rollout.files.items():
            text = json.dumps(value, ensure_ascii=False, indent=1)
            write_whole(folder / rollout.place / name, f"{text}\n".encode())
        count += 1
    if not count:
        raise InputError(
            f"No rollouts {f'of item {item!r} ' if item else ''}in {run}.",
            hint="skillfit show RUN tells what the run did.",
        )
    from pydantic_core import to_json

    from skillfit.report import open_details
    from skillfit.run.store import FEEDBACK

    with open_details(run) as details:
        notes = details.notes()
    if notes:
        write_whole(folder / FEEDBACK, to_json(notes, indent=1))
    data = ExportJson(folder=str(folder), rollouts=count, notes=len(notes))
    with_notes = f", and {FEEDBACK} with {quantity(len(notes), 'note')}" if notes else ""
    show(data, f"Wrote {quantity(count, 'rollout')} to {folder}{with_notes}.", as_json)


class ExportJson(TypedDict):
    folder: str
    rollouts: int
    notes: int  # of people, in feedback.json


class TurnJson(TypedDict):
    """A turn of conversation.json. Tool calls, results and notes have a type and a name."""

    role: str
    content: str
    type: NotRequired[str]
    name: NotRequired[str]


class RolloutJson(TypedDict):
    """result.json"""

    id: str
    repeat: int
    status: RolloutStatus
    hard: float | None
    soft: float | None
    answer: str
    feedback: str
    fail_reason: str
    skill_hash: str
    edits: list[str]
    calls: int
    tokens: int
    usd: float | None
    seconds: float
    skill_read: bool | None


@dataclass(frozen=True, slots=True)
class ExportedRollout:
    """The files of one rollout, and the folder they belong in."""

    place: Path
    files: dict[str, RolloutJson | list[TurnJson]]


def _exported(run: Path, item: str) -> Iterator[ExportedRollout]:
    """Yield the recorded rollouts of a run, or of one of its items."""
    from skillfit.report import open_details

    seen: Counter[Path] = Counter()
    with open_details(run) as details:
        records = details.item_records()
        asked = _asked_texts(run, records)
        for rollout in details.rollouts():
            if item not in ("", rollout.item):
                continue
            outcome = details.outcome(rollout.rollout)
            if outcome is None:  # it failed and was not recorded
                continue
            place = _prediction_folder(rollout)
            seen[place] += 1
            if seen[place] > 1:
                place = place.with_name(f"{place.name}.{seen[place]}")
            conversation = _conversation(asked.get(rollout.item, []), outcome)
            result = _result(rollout, outcome)
            yield ExportedRollout(place, {"conversation.json": conversation, "result.json": result})


def _prediction_folder(event: RolloutFinished) -> Path:
    """Return where SkillOpt keeps a rollout like this one. Any id is a name of a file this way."""
    from urllib.parse import quote

    from skillfit.run.files import rollouts_folder

    return (
        Path(rollouts_folder(event.phase, event.step))
        / "predictions"
        / quote(event.item, safe=" ")[:_LONGEST_NAME]
    )


def _asked_texts(run: Path, records: Mapping[str, ItemRecord]) -> dict[str, list[TurnJson]]:
    """Map items to their messages. The log has long texts cut, so they are read from the tasks; an
    item that is not as it was then, or cannot be read, has the text of the log.
    """
    from skillfit.api import Run
    from skillfit.errors import SkillfitError
    from skillfit.training.inputs import item_records

    asked = {
        item: [TurnJson(role="user", content=record.input)] for item, record in records.items()
    }
    try:
        task = config_inputs(Run.open(run).record.config.root, None, training=False).task
    except SkillfitError as error:
        if any(record.is_cut for record in records.values()):
            warn(f"Long inputs are cut, because the tasks cannot be read: {error.message}")
        return asked
    now = {record.id: record.input for record in item_records(task)}
    for item in task.items:
        if item.id in records and now[item.id] == records[item.id].input:
            messages = item.loaded().messages
            asked[item.id] = [TurnJson(role=one.role, content=one.content) for one in messages]
    return asked


def _conversation(asked: Sequence[TurnJson], outcome: Outcome) -> list[TurnJson]:
    """Return the item's messages, what the agent said, and its tool calls with their results."""
    turns = [*asked]
    for step in outcome.attempt.steps if outcome.attempt else ():
        turn = TurnJson(role=step.role, content=step.text)
        if step.kind != "message":
            turn["type"], turn["name"] = step.kind, step.name
        turns.append(turn)
    return turns


def _result(rollout: RolloutFinished, outcome: Outcome) -> RolloutJson:
    score = outcome.score
    return RolloutJson(
        id=rollout.item,
        repeat=rollout.repeat,
        status=rollout.status,
        hard=rollout.hard,
        soft=rollout.soft,
        answer=outcome.attempt.answer if outcome.attempt else "",
        feedback=score.feedback if score else "",
        fail_reason=rollout.failure,
        skill_hash=rollout.skill_hash,
        edits=rollout.edits,
        calls=rollout.calls,
        tokens=rollout.tokens,
        usd=rollout.usd,
        seconds=rollout.seconds,
        skill_read=rollout.skill_read,
    )


def steer_command(
    run: RunFolder,
    action: Annotated[
        str,
        typer.Argument(
            help="veto, pin, reword, approve or decline an edit, or release it from that; right or"
            " wrong, about an answer to an item; budget; stop; answer.",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            help="The id of the edit (like s0003e02), item or prompt; for budget: usd, calls, …"
        ),
    ] = "",
    text: Annotated[
        str,
        typer.Argument(
            help="The new wording or budget; the reason; for answer: its file, default stdin."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Decide about an edit, raise a budget, answer a prompt, stop a run. A running run
    takes it up between steps, a stopped one when it is resumed; the decision is recorded in the
    run.

    Example: skillfit steer runs/first veto s0003e02
    """
    from skillfit.record.steering import STOPPING, steer_run, when_followed
    from skillfit.run.control import stop_run

    if action == "stop":
        stop_run(run)
        return show(
            {"action": "stop", "run": str(run)},
            STOPPING,
            as_json,
        )
    if action == "answer":
        return _answer(run, target, text, as_json)
    request = steer_run(run, action, target, text)
    data = SteerJson(number=request.number, action=action, target=target, text=text)
    return show(data, f"Recorded. {when_followed(run)}", as_json)


class SteerJson(TypedDict):
    number: int
    action: str
    target: str
    text: str


class AnswerJson(TypedDict):
    answered: str
    waiting: int


def _answer(run: Path, prompt_id: str, file: str, as_json: bool) -> None:
    """Record the answer to a handoff prompt, from a file or from stdin."""
    from skillfit.record.steering import answer_prompt

    text = Path(file).read_text(encoding="utf-8") if file not in ("", "-") else sys.stdin.read()
    left = answer_prompt(run, prompt_id, text)
    resume = f"Resume the run: {shell_line('resume', run)}"
    rest = f"{quantity(left, 'prompt')} left." if left else resume
    data = AnswerJson(answered=prompt_id, waiting=left)
    show(data, f"Answered {prompt_id}. {rest}", as_json)


COMMANDS = (
    ls_command,
    tag_command,
    show_command,
    report_command,
    export_command,
    steer_command,
)
