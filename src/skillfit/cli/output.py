"""What commands print: results on stdout for people or as one line of JSON, progress on stderr."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skillfit.plain_text import (
    display_name,
    dollars,
    duration,
    mean_score,
    one_line,
    quantity,
    score_change,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from skillfit.record.record import Record
    from skillfit.report.run_details import FailedItem

Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings on top of the config: key.sub=value.", show_default=False),
]


def relative_to_here(path: Path) -> Path:
    """Return the path as one would type it here: relative, where it is below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def shell_line(*words: object) -> str:
    """Return a command of skillfit that can be pasted into a shell: quoted, and with the path of
    the program where it is not on the PATH.
    """
    program = [_program()] if _program().endswith("skillfit") else [_program(), "-m", "skillfit"]
    return shlex.join([*program, *map(str, words)])


def runnable(text: str) -> str:
    """Return the text with its commands of skillfit as `shell_line` writes them. A command is in
    backticks or after a colon, with arguments; without them it is only named.
    """
    return re.sub(r"(`|: )skillfit (?=[a-z]+ )", lambda found: f"{found[1]}{shell_line()} ", text)


def _program() -> str:
    """Return the name by which the shell knows the program: skillfit, its path, or Python's."""
    if shutil.which("skillfit"):
        return "skillfit"
    beside = Path(sys.executable).with_name("skillfit")
    return str(relative_to_here(beside) if beside.is_file() else sys.executable)


def relative_path(path: str | Path, folder: Path) -> str:
    """Return the path as seen from the folder, in the form of a config: it starts with a dot."""
    relative = Path(os.path.relpath(path, folder)).as_posix()
    return relative if relative.startswith(".") else f"./{relative}"


def docstring_paragraphs(documented: object) -> list[str]:
    """Return the paragraphs of the docstring of a function or class, each on one line."""
    text = documented.__doc__ or ""
    return [" ".join(part.split()) for part in text.split("\n\n")]


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def warn(message: str) -> None:
    console(stderr=True).print(f"warning: {message}", markup=False, soft_wrap=True)


def show(data: object, shown: RenderableType, as_json: bool) -> None:
    """Print the result in the form that was asked for."""
    if as_json:
        print(json.dumps(data, default=plain_json))  # ASCII, which every terminal's encoding has
    else:
        console().print(shown, soft_wrap=isinstance(shown, str), markup=False)


def plain_json(value: object) -> object:
    """Return a dataclass as a JSON object of its fields, and whatever else JSON does not have as
    text.
    """
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return str(value)


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    from rich.table import Table

    made = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        made.add_column(column, overflow="fold" if number == len(columns) - 1 else "ellipsis")
    for row in rows:
        made.add_row(*map(str, row))
    return made


def aligned(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as plain text, for long lists: a rich table takes 0.5 ms per row."""
    lines = [columns, *(tuple(visible(cell) for cell in row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    padded = (zip(line, widths, strict=True) for line in lines)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in one).rstrip() for one in padded)


FAILED_SHOWN = 8  # items that a command lists


def failed_text(failed: Sequence[FailedItem], skill: str, most: int = FAILED_SHOWN) -> str:
    """List the items that a skill does not solve, each with answer and expected answer."""
    if not failed:
        return ""
    more = f"; the first {most}" if len(failed) > most else ""
    lines = [f"{visible(skill)} does not solve {quantity(len(failed), 'item')}{more}:"]
    for item in failed[:most]:
        score = "failed" if item.score is None else mean_score(item.score)
        lines.append(f"  {visible(item.id)}  {score}  {one_line(visible(item.input), 100)}")
        said = {
            "answer": item.answer or ("" if item.score is None else "(empty)"),
            "expected": item.expected,
            "grader": item.feedback,
            "failure": item.failure,
        }
        lines += [
            f"    {name:<9}{one_line(visible(text), 160)}" for name, text in said.items() if text
        ]
    return "\n".join(lines)


def coloured_diff(text: str) -> RenderableType:
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan"}
    lines = [Text(visible(line), styles.get(line[:1], "")) for line in text.splitlines()]
    return Text("\n").join(lines)


def result_text(record: Record) -> str:
    """Say how a run ended, for people: verdict, scores, cost, next commands."""
    reason = record.finish_reason or "unfinished"
    lines = [f"{display_name(reason)}: {runnable(record.diagnosis)}", *_score_lines(record)]
    if record.edit_counts:
        lines.append(f"edits: {record.edit_counts}")
    lines += [one.text for one in record.notices if one.kind == "failed"]
    lines += [*_unused_rollouts(record), _cost(record)]
    run = relative_to_here(Path(record.path))
    if record.unproven:
        from skillfit.record.text import unproven_sentence
        from skillfit.run.store import UNPROVEN_SKILL

        lines.append(unproven_sentence(run / UNPROVEN_SKILL))
    if record.cut and record.skill_tokens is not None:
        sizes = record.skill_tokens
        tokens = f"{sizes.found:,} tokens, {sizes.initial:,} before"
        whose = "The unproven skill" if record.unproven else "The skill"
        lines.append(f"Cut from the initial skill: {', '.join(record.cut)}. {whose} has {tokens}.")
    commands = [shell_line("report", run)]
    if record.finish_reason == "improved":
        commands = [shell_line("diff", run), *commands, shell_line("apply", run)]
    return "\n".join([*lines, "Next:", *(f"  {command}" for command in commands)])


def _score_lines(record: Record) -> list[str]:
    """Format scores of the initial skill and the one that was found. The selection scores are of
    the skill that was found, and `test.best` of the one that is handed back: all lines show the
    same skill.
    """
    score = "score" if record.metric == "hard" else f"{record.metric} score"
    compared = "unproven skill" if record.unproven else "best skill"
    test, on_test = record.test, f"test {score}"
    shown: dict[str, tuple[float | None, float | None]] = {}
    fresh = record.fresh
    if fresh.baseline is not None and fresh.best is not None:
        shown[f"{score} on fresh rollouts"] = (fresh.baseline, fresh.best)
        on_test = "on the test items of these"
    else:
        shown[f"selection {score}"] = (record.selection.baseline, record.selection.best)
    for model in record.compared.models if record.compared else ():
        shown[f"with {model.type}"] = (model.before, model.after)
    shown[on_test] = (test.baseline, test.final if record.unproven else test.best)
    lines = [
        f"{name}: initial skill {mean_score(before)} → {compared} {mean_score(after)}"
        for name, (before, after) in shown.items()
        if before is not None and after is not None
    ]
    if record.ship is not None and record.ship.gap is not None:
        gain, gap = record.ship.difference, record.ship.gap
        trained = f"{score_change(gain + gap)} by the training grader (gap {score_change(gap)})"
        lines.append(f"gain {score_change(gain)} by the ship grader, {trained}")
    return lines


def _unused_rollouts(record: Record) -> list[str]:
    """Say how many rollouts of budget.rollouts were used, and why some were not."""
    used, cap = record.rollouts_used.used, record.rollouts_used.cap
    if used is None or cap is None or used >= cap:
        return []
    line = f"{used:,} of {cap:,} rollouts used."
    if record.ship is not None and not record.ship.pairs:
        line += " The others were kept to test a changed skill, and there was none to test."
    return [line]


def _cost(record: Record) -> str:
    used = record.usage
    amounts = [quantity(used.calls, "call"), quantity(used.tokens, "token")]
    if used.usd:
        amounts.append(dollars(used.usd))
    return ", ".join([*amounts, duration(record.wall_s or 0)])
