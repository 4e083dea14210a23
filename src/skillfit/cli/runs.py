"""The score curve as text.

Commands that look at runs and use what they found: `ls`, `show`, `diff`, `report`, `apply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillfit.cli.output import Json, coloured_diff, console, show, table, warn
from skillfit.cli.train import in_words, line
from skillfit.errors import InputError

if TYPE_CHECKING:
    from skillfit.run.listing import ListedRun


_HEIGHT = 6


@dataclass(frozen=True, slots=True)
class Point:
    score: float
    accepted: bool


def plot(points: Sequence[Point], width: int = 60, height: int = _HEIGHT) -> list[str]:
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
    """What a run did: result, score curve, verdicts with their evidence.

    Example: skillfit show runs/first
    """
    from rich.console import Group
    from rich.text import Text

    from skillfit.api import Run
    from skillfit.cli.terminal import Screen, render
    from skillfit.run.directory import RunDirectory

    opened = Run.open(run)
    screen = Screen()
    with closing(RunDirectory.read(run)) as view:
        for stored in view.events.read():
            screen(stored)
        screen.spent, screen.bars = view.journal.spent(), {}
    said = line(opened.path, opened.finish_reason, opened.summary)
    data = {
        **said,
        "verdicts": [
            {"name": one.name, "decision": one.decision, "reason": one.reason}
            for one in opened.verdicts
        ],
    }
    ending = (
        in_words(said, opened.finished.diagnosis)
        if opened.finished
        else f"Not finished. Go on with: skillfit resume {run}"
    )
    seconds = said["wall_s"] or 0.0
    show(data, Group(render(screen, seconds, console().width), Text(ending)), as_json)


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
    show(
        {"old": old, "new": new, "diff": found}, coloured_diff(found or "Nothing changed."), as_json
    )


def report(
    run: RunFolder,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; default: report.html or report.md in the run."),
    ] = None,
    format: Annotated[str, typer.Option(help="html, or md for pull requests.")] = "html",
    as_json: Json = False,
) -> None:
    """Write the report of a run: one file, readable offline.

    Example: skillfit report runs/first --format md
    """
    from skillfit.api import Run
    from skillfit.report import write_report

    path = write_report(Run.open(run).path, out, format=format)
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
    from skillfit.skill import diff as diff_skills

    opened = Run.open(run)
    if undo:
        document = applying.undo(opened, force=force)
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
    data: dict[str, Any] = {"applied": str(change.document), "backup": str(kept), "diff": found}
    return show(
        data, f"Changed {change.document}. Take it back with: skillfit apply {run} --undo", as_json
    )


def _confirmed(document: Path) -> bool:
    import sys

    return sys.stdin.isatty() and typer.confirm(f"Change {document}?")


COMMANDS = (ls, show_, diff, report, apply)
