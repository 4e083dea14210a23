"""Commands about runs that are there: `ls`, `show`, `diff`, `report`, `export`, `steer`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillfit.cli.output import Json, ResultLine, aligned, coloured_diff, console, show, table, warn
from skillfit.errors import InputError
from skillfit.plain_text import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from skillfit.report.story import RunStory
    from skillfit.rollout.outcome import Outcome
    from skillfit.run.events import RolloutFinished


_RUNS = Path("runs")  # the default folder of runs
_LONGEST_NAME = 120  # characters of an item's id in the name of its folder
RunFolder = Annotated[Path, typer.Argument(help="The run's directory.")]


def ls(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = _RUNS, as_json: Json = False
) -> None:
    """List the runs in a folder, newest last.

    Example: skillfit ls runs
    """
    from skillfit.run.listing import list_runs

    if not folder.is_dir() and folder != _RUNS:
        raise InputError(
            f"{folder} is not a folder.", hint="Give the folder that your runs are in."
        )
    listing = list_runs(folder)
    for problem in listing.problems:
        warn(str(problem))
    lines = [ResultLine.of_listed(listed) for listed in listing.runs]
    if as_json:
        states = [listed.state for listed in listing.runs]
        data = [{**line.as_json(), "state": at} for line, at in zip(lines, states, strict=True)]
        show(data, "", as_json)
    elif lines:
        names = ("run", "result", "baseline", "best", "calls")
        print(aligned(names, [_listed(line) for line in lines]))
    else:
        print(visible(f"No runs in {folder}."))


def _listed(line: ResultLine) -> tuple[str, ...]:
    path = line.run
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    scores = [
        "" if score is None else f"{score:.3f}"
        for score in (line.selection.baseline, line.selection.best)
    ]
    return (str(near), line.finish_reason, *scores, str(line.usage.calls or ""))


def show_(run: RunFolder, as_json: Json = False) -> None:
    """What a run did: result, score curve, every decision, edits with their effects.

    Example: skillfit show runs/first
    """
    from rich.console import Group

    from skillfit.api import Run
    from skillfit.report.read_story import read_story

    opened, story = Run.open(run), read_story(run)
    line = ResultLine.of(opened.path, opened.finish_reason, opened.summary)
    data = {
        **line.as_json(),
        "state": story.state,
        "verdicts": [
            {"name": gate.name, "decision": gate.action, "reason": gate.reason}
            for gate in story.gates
        ],
        "edits": [
            {"id": edit.id, "status": edit.status, "effect": edit.mean, "text": edit.text}
            for edit in story.edits
        ],
    }
    show(data, Group(*_shown(story)), as_json)
    if not as_json:
        finished = opened.finished
        print(
            line.in_words(finished.diagnosis)
            if finished
            else f"{story.verdict}\nResume with: skillfit resume {run}"
        )


def _shown(story: RunStory) -> list[RenderableType]:
    """The tables of `show`: curve, decisions, edits, notices."""
    from rich.text import Text

    from skillfit.cli.screen import PlotPoint, plot
    from skillfit.run.records import in_words

    parts: list[RenderableType] = []
    points = [PlotPoint(one.score, one.kept) for one in story.points if one.split == "selection"]
    if len(points) > 1:
        parts.append(Text("\n".join(plot(points)), style="cyan"))
    if story.gates:
        rows = [
            (gate.label, in_words(gate.action), f"{gate.difference:+.3f}", gate.reason)
            for gate in story.gates
        ]
        parts.append(table(("step", "decision", "difference", "reason"), rows))
    if story.edits:
        edits = [
            (
                edit.id,
                edit.status,
                "" if edit.mean is None else f"{edit.mean:+.3f}",
                visible(" ".join(edit.text.split()))[:90],
            )
            for edit in story.edits
        ]
        parts.append(table(("edit", "status", "effect", "text"), edits))
    for notice in story.notices:
        parts.append(Text(f"! {notice.where}: {visible(notice.text)}", style="yellow"))
    return parts


def diff(
    run: RunFolder,
    old: Annotated[str, typer.Argument(help="A step's number, initial or best.")] = "initial",
    new: Annotated[str, typer.Argument(help="A step's number, initial or best.")] = "best",
    as_json: Json = False,
) -> None:
    """What changed in the skill: from the initial one to the best, or between any two steps.

    Example: skillfit diff runs/first 2 5
    """
    from skillfit.api import Run

    found = Run.open(run).diff(old, new)
    if as_json:
        show({"old": old, "new": new, "diff": found}, "", as_json)
    elif console().is_terminal:
        console().print(coloured_diff(found or "Nothing changed."), soft_wrap=True)
    else:
        print(found, end="")  # exactly as it is, so that `patch` takes it


def report(
    run: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; default: report.html or report.md in the run."),
    ] = None,
    format: Annotated[str, typer.Option(help="html, or md for pull requests.")] = "html",
    share: Annotated[
        bool, typer.Option("--share", help="Leave out the paths of this machine.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run: one file, readable offline.

    Example: skillfit report runs/first --share --out report.html
    """
    from skillfit.api import Run
    from skillfit.report import write_report

    path = write_report(Run.open(run).path, out, format=format, share=share)
    show({"report": str(path)}, f"Wrote {path}.", as_json)


def export(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option(help="The folder; default: exported/ in the run.")] = (
        None
    ),
    item: Annotated[str, typer.Option(help="Only the rollouts of the item with this id.")] = "",
    as_json: Json = False,
) -> None:
    """Write every rollout as files: what the agent said and did (conversation.json), and how it was
    scored (result.json). The folders are those of SkillOpt: steps/step_NNNN/rollout/predictions/ID.

    Example: skillfit export runs/first --out trajectories
    """
    from collections import Counter
    from contextlib import closing

    from skillfit.rollout.outcome import Outcome
    from skillfit.run.directory import RunDirectory
    from skillfit.run.events import ItemsRead, RolloutFinished
    from skillfit.skill.document import write_whole

    folder = out or run / "exported"
    inputs: dict[str, str] = {}
    written: Counter[Path] = Counter()
    with closing(RunDirectory.read(run)) as view:
        for stored in view.events.read():
            event = stored.event
            if isinstance(event, ItemsRead):
                inputs |= {record.id: record.input for record in event.items}
            if not isinstance(event, RolloutFinished) or item not in ("", event.item):
                continue
            outcome = view.journal.get(event.rollout, Outcome)
            if outcome is None:  # it failed and was not recorded
                continue
            place = _prediction_folder(event)
            written[place] += 1
            number = f".{written[place]}" if written[place] > 1 else ""
            target = (folder / place).with_name(f"{place.name}{number}")
            texts = {
                "conversation.json": _conversation(inputs.get(event.item, ""), outcome),
                "result.json": _result(event, outcome),
            }
            for name, value in texts.items():
                text = json.dumps(value, ensure_ascii=False, indent=1)
                write_whole(target / name, f"{text}\n".encode())
    count = written.total()
    if not count:
        raise InputError(
            f"No rollouts {f'of item {item!r} ' if item else ''}in {run}.",
            hint="skillfit show RUN tells what the run did.",
        )
    show(
        {"folder": str(folder), "rollouts": count},
        f"Wrote {count:,} rollouts to {folder}.",
        as_json,
    )


def _prediction_folder(event: RolloutFinished) -> Path:
    """Where SkillOpt keeps a rollout like this one. Any id is a name of a file this way."""
    from urllib.parse import quote

    from skillfit.run.files import EVALUATIONS

    if event.step:
        names = {"gate": "selection_eval"}
        folder = Path("steps", f"step_{event.step:04d}", names.get(event.phase, event.phase))
    else:
        folder = Path(EVALUATIONS.get(event.phase, event.phase))
    return folder / "predictions" / quote(event.item, safe=" ")[:_LONGEST_NAME]


def _conversation(task: str, outcome: Outcome) -> list[dict[str, str]]:
    """The item's text, what the agent said, and its tool calls with their results."""
    turns = [{"role": "user", "content": task}]
    for step in outcome.attempt.steps if outcome.attempt else ():
        turn = {"role": step.role, "content": step.text}
        if step.kind != "message":
            turn |= {"type": step.kind, "name": step.name}
        turns.append(turn)
    return turns


def _result(event: RolloutFinished, outcome: Outcome) -> dict[str, Any]:
    score = outcome.score
    return {
        "id": event.item,
        "repeat": event.repeat,
        "status": event.status,
        "hard": event.hard,
        "soft": event.soft,
        "answer": outcome.attempt.answer if outcome.attempt else "",
        "feedback": score.feedback if score else "",
        "fail_reason": event.failure,
        "skill_hash": event.skill_hash,
        "edits": event.edits,
        "calls": event.calls,
        "tokens": event.tokens,
        "usd": event.usd,
        "seconds": event.seconds,
    }


def steer(
    run: RunFolder,
    action: Annotated[
        str,
        typer.Argument(
            help="veto, pin, reword, approve or decline an edit; budget; stop; answer.",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(help="The edit's or prompt's id, like s0003e02; for budget: usd, calls, …"),
    ] = "",
    text: Annotated[
        str,
        typer.Argument(help="The new wording or budget; for answer: its file, default stdin."),
    ] = "",
    as_json: Json = False,
) -> None:
    """Decide about an edit, raise a budget, answer a handoff prompt or stop a run. A running run
    takes it up between steps, a stopped one when it is resumed; the decision is recorded in the
    run.

    Example: skillfit steer runs/first veto s0003e02
    """
    from skillfit.run.control import in_use, stop_run
    from skillfit.studio.commands import steer_run

    if action == "stop":
        stop_run(run)
        return show(
            {"action": "stop", "run": str(run)},
            "Stopping: what is in progress finishes and is saved.",
            as_json,
        )
    if action == "answer":
        return _answer(run, target, text, as_json)
    request = steer_run(run, action, target, text)
    when = "after its present step" if in_use(run) else "when it is resumed"
    return show(
        {"number": request.number, "action": action, "target": target, "text": text},
        f"Noted. The run takes it up {when}.",
        as_json,
    )


def _answer(run: Path, prompt_id: str, file: str, as_json: bool) -> None:
    """The answer to a handoff prompt, from a file or from stdin."""
    from skillfit.studio.commands import answer_prompt

    text = Path(file).read_text(encoding="utf-8") if file not in ("", "-") else sys.stdin.read()
    left = answer_prompt(run, prompt_id, text)
    rest = f"{left} more wait." if left else f"Resume the run: skillfit resume {run}"
    show({"answered": prompt_id, "waiting": left}, f"Answered {prompt_id}. {rest}", as_json)


COMMANDS = (ls, show_, diff, report, export, steer)
