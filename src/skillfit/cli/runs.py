"""Commands that read runs and use their results: `ls`, `show`, `diff`, `report`, `apply`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillfit.cli.output import Json, coloured_diff, console, show, table, warn
from skillfit.cli.score_plot import PlotPoint, plot
from skillfit.cli.train import in_words, line
from skillfit.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from skillfit.report.story import RunStory
    from skillfit.run.listing import ListedRun


_RUNS = Path("runs")  # where runs go that nobody gave a place
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
    said = [_line_of(listed) for listed in listing.runs]
    names = ("run", "result", "baseline", "best", "calls")
    show(
        said,
        table(names, [_listed(one) for one in said]) if said else f"No runs in {folder}.",
        as_json,
    )


def _line_of(listed: ListedRun) -> dict[str, Any]:
    """The line that `train --json` ends with, from the run's card."""
    card = listed.card
    ship: dict[str, Any] = {"verdict": None, "difference": None, "interval": None}
    if card.ship is not None:
        ship = {
            "verdict": card.ship.verdict,
            "difference": card.ship.difference,
            "interval": [card.ship.low, card.ship.high],
        }
        if card.ship.gap is not None:
            ship["gap"] = card.ship.gap
    return {
        "finish_reason": card.finish_reason or "unfinished",
        "state": listed.state,
        "run": str(listed.path),
        "best_step": card.best_step,
        "metric": card.metric,
        "selection": {"baseline": card.selection.baseline, "best": card.selection.best},
        "test": {"baseline": card.test.baseline, "best": card.test.best, "final": card.test_final},
        "ship": ship,
        "unproven": card.unproven,
        "usage": {"calls": card.calls, "tokens": card.tokens, "usd": card.usd},
        "wall_s": card.seconds,
    }


def _listed(said: dict[str, Any]) -> tuple[str, ...]:
    path = Path(said["run"])
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    scores = ["" if score is None else f"{score:.3f}" for score in said["selection"].values()]
    return (str(near), said["finish_reason"], *scores, str(said["usage"]["calls"] or ""))


def show_(run: RunFolder, as_json: Json = False) -> None:
    """What a run did: result, score curve, every decision, edits with their effects.

    Example: skillfit show runs/first
    """
    from rich.console import Group

    from skillfit.api import Run
    from skillfit.report.read_story import read_story

    opened, story = Run.open(run), read_story(run)
    said = line(opened.path, opened.finish_reason, opened.summary)
    data = {
        **said,
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
            in_words(said, finished.diagnosis)
            if finished
            else f"{story.verdict}\nResume with: skillfit resume {run}"
        )


def _shown(story: RunStory) -> list[RenderableType]:
    """The tables of `show`: curve, decisions, edits, notices."""
    from rich.text import Text

    from skillfit.cli.screen import action_words
    from skillfit.plain_text import visible

    parts: list[RenderableType] = []
    points = [PlotPoint(one.score, one.kept) for one in story.points if one.split == "selection"]
    if len(points) > 1:
        parts.append(Text("\n".join(plot(points)), style="cyan"))
    if story.gates:
        rows = [
            (gate.label, action_words(gate.action), f"{gate.difference:+.3f}", gate.reason)
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


def apply(
    run: RunFolder,
    to: Annotated[
        Path | None, typer.Option(help="Skill folder or file; default: the one the run began with.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Put back what stood there before.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Although nothing improved, or the file changed since.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put the best skill into its folder, after showing what changes. The former text is kept in
    the run.

    Example: skillfit apply runs/first --yes
    """
    from skillfit.api import Run
    from skillfit.cli import apply as applying
    from skillfit.run.control import request_steering
    from skillfit.skill import diff as diff_skills

    opened = Run.open(run)
    if undo:
        document = applying.undo(opened, force=force)
        request_steering(opened.path, "undo", str(document))
        return show({"restored": str(document)}, f"Put back {document}.", as_json)
    change = applying.plan(opened, to, force=force)
    found = diff_skills(change.present, change.wanted)
    if not found:
        return show(
            {"applied": None, "diff": ""}, f"{change.document} has the best skill already.", as_json
        )
    if not as_json:
        console().print(coloured_diff(found), soft_wrap=True)
    if not yes and not _confirmed(change.document):
        raise InputError(
            f"{change.document} was not changed.", hint="Apply without being asked: --yes"
        )
    kept = applying.apply(change)
    request_steering(opened.path, "apply", str(change.document))
    data: dict[str, Any] = {"applied": str(change.document), "backup": str(kept), "diff": found}
    return show(
        data, f"Changed {change.document}. Take it back with: skillfit apply {run} --undo", as_json
    )


def _confirmed(document: Path) -> bool:
    import sys

    return sys.stdin.isatty() and typer.confirm(f"Change {document}?")


COMMANDS = (ls, show_, diff, report, apply)
