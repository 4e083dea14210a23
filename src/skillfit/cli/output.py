"""What commands print: results on stdout for people or as one line of JSON, progress on stderr."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

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

    from skillfit.report import RunStory
    from skillfit.report.run_details import FailedItem
    from skillfit.run.records import RunFinishReason, ShipResult, SkillTokens
    from skillfit.run.view import RunCard

Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings on top of the config: key.sub=value.", show_default=False),
]


def relative_to_here(path: Path) -> Path:
    """The path as one would type it here: relative, where it is below the current folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def shell_line(*words: object) -> str:
    """A command of skillfit that can be pasted into a shell: quoted, and with the path of the
    program where it is not on the PATH.
    """
    program = [_program()] if _program().endswith("skillfit") else [_program(), "-m", "skillfit"]
    return shlex.join([*program, *map(str, words)])


def _program() -> str:
    """The name that the shell knows the running program by: skillfit, its path, or Python's."""
    if shutil.which("skillfit"):
        return "skillfit"
    beside = Path(sys.executable).with_name("skillfit")
    return str(relative_to_here(beside) if beside.is_file() else sys.executable)


def relative_path(path: str | Path, folder: Path) -> str:
    """The path as seen from the folder, in the form that a config has: it starts with a dot."""
    relative = Path(os.path.relpath(path, folder)).as_posix()
    return relative if relative.startswith(".") else f"./{relative}"


def docstring_paragraphs(documented: object) -> list[str]:
    """The paragraphs of the docstring of a function or class, each on one line."""
    text = documented.__doc__ or ""
    return [" ".join(part.split()) for part in text.split("\n\n")]


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def warn(message: str) -> None:
    console(stderr=True).print(f"warning: {message}", markup=False, soft_wrap=True)


def show(data: object, shown: RenderableType, as_json: bool) -> None:
    """The result, in the form that was asked for."""
    if as_json:
        print(json.dumps(data, default=_plain))  # ASCII, which every terminal's encoding has
    else:
        console().print(shown, soft_wrap=isinstance(shown, str), markup=False)


def _plain(value: object) -> object:
    """A dataclass as a JSON object of its fields, and whatever else JSON does not have as text."""
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
    """A table as plain text, for lists that may be long: a rich table takes 0.5 ms per row."""
    lines = [columns, *(tuple(visible(cell) for cell in row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    padded = (zip(line, widths, strict=True) for line in lines)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in one).rstrip() for one in padded)


FAILED_SHOWN = 8  # items that a command lists


def failed_text(failed: Sequence[FailedItem], skill: str, most: int = FAILED_SHOWN) -> str:
    """The items that a skill does not solve, each with answer and expected answer; empty: there
    are none.
    """
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


@dataclass(frozen=True, slots=True)
class SplitScores:
    """The scores of a split. `final` is the last skill's, on the test split alone."""

    baseline: float | None = None
    best: float | None = None
    final: float | None = None


@dataclass(frozen=True, slots=True)
class UsedAmounts:
    calls: int | None = None
    tokens: int | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutUse:
    used: int | None = None
    cap: int | None = None  # budget.rollouts


class _SelectionJson(TypedDict):
    baseline: float | None
    best: float | None


class _TestJson(_SelectionJson):
    final: float | None


class ResultJson(TypedDict):
    """The line that `train --json` ends with."""

    finish_reason: RunFinishReason | Literal["ablation", "evaluation", "unfinished"]
    run: str
    best_step: int | None
    metric: str | None
    selection: _SelectionJson
    test: _TestJson
    ship: ShipResult | None
    unproven: bool
    cut: tuple[str, ...]
    skill_tokens: SkillTokens | dict[str, int]  # an empty object: the run has not finished
    rollouts: RolloutUse
    usage: UsedAmounts
    wall_s: float | None


@dataclass(frozen=True, slots=True)
class ResultSummary:
    """The result of a run, for people and programs. Scores are in the gate's metric."""

    finish_reason: RunFinishReason | Literal["ablation", "evaluation", "unfinished"]
    run: Path
    best_step: int | None = None
    metric: str | None = None
    selection: SplitScores = SplitScores()
    fresh: SplitScores = SplitScores()  # on the rollouts of the ship test, test items included
    test: SplitScores = SplitScores()
    ship: ShipResult | None = None
    unproven: bool = False
    cut: tuple[str, ...] = ()  # parts of the initial skill that the run removed
    edits: str = ""  # how many are in the skill that was found, and how many are not
    skill_tokens: SkillTokens | None = None
    rollouts: RolloutUse = RolloutUse()
    usage: UsedAmounts = UsedAmounts()
    wall_s: float | None = None

    @classmethod
    def of_story(cls, story: RunStory) -> ResultSummary:
        from skillfit.run.view import SummaryScores

        run, summary = Path(story.path), story.summary
        if summary is None:
            return cls("unfinished", run)
        scores, used = SummaryScores.of(summary), story.total
        fresh = (story.point("ship_initial"), story.point("ship_best"))
        return cls(
            summary.finish_reason,
            run,
            best_step=summary.best_step,
            metric=summary.metric,
            selection=SplitScores(scores.selection.baseline, scores.selection.best),
            fresh=SplitScores(*(point.score if point else None for point in fresh)),
            test=SplitScores(scores.test.baseline, scores.test.best, scores.test_final),
            ship=summary.ship,
            unproven=summary.unproven,
            cut=tuple(summary.cut),
            edits=story.edit_counts,
            skill_tokens=summary.skill_tokens,
            rollouts=RolloutUse(summary.rollouts.planned, summary.config.settings.budget.rollouts),
            usage=UsedAmounts(used.calls, used.tokens, used.usd),
            wall_s=summary.total_wall_time_s,
        )

    @classmethod
    def of_card(cls, run: Path, card: RunCard) -> ResultSummary:
        """What the card of a run knows: not the parts cut, sizes and rollouts."""
        return cls(
            card.finish_reason or "unfinished",
            run,
            best_step=card.best_step,
            metric=card.metric,
            selection=SplitScores(card.selection.baseline, card.selection.best),
            test=SplitScores(card.test.baseline, card.test.best, card.test_final),
            ship=card.ship,
            unproven=card.unproven,
            usage=UsedAmounts(card.calls, card.tokens, card.usd),
            wall_s=card.seconds,
        )

    def as_json(self) -> ResultJson:
        selection, test = self.selection, self.test
        return ResultJson(
            finish_reason=self.finish_reason,
            run=str(self.run),
            best_step=self.best_step,
            metric=self.metric,
            selection=_SelectionJson(baseline=selection.baseline, best=selection.best),
            test=_TestJson(baseline=test.baseline, best=test.best, final=test.final),
            ship=self.ship,
            unproven=self.unproven,
            cut=self.cut,
            skill_tokens=self.skill_tokens or {},
            rollouts=self.rollouts,
            usage=self.usage,
            wall_s=self.wall_s,
        )

    def as_text(self, diagnosis: str) -> str:
        """The result for people: verdict, scores, cost, next commands."""
        lines = [f"{display_name(self.finish_reason)}: {diagnosis}"]
        score = "score" if self.metric in (None, "hard") else f"{self.metric} score"
        # The selection scores are of the skill that was found, and `test.best` of the one that is
        # handed back. Both lines show the same skill.
        compared = "unproven skill" if self.unproven else "best skill"
        test_score = self.test.final if self.unproven else self.test.best
        on_test = f"test {score}"
        if self.fresh.best is None:
            shown = {f"selection {score}": (self.selection.baseline, self.selection.best)}
        else:
            shown = {f"{score} on fresh rollouts": (self.fresh.baseline, self.fresh.best)}
            on_test = "on the test items of these"
        shown[on_test] = (self.test.baseline, test_score)
        for name, (before, after) in shown.items():
            if before is not None and after is not None:
                scores = f"initial skill {mean_score(before)} → {compared} {mean_score(after)}"
                lines.append(f"{name}: {scores}")
        if self.ship is not None and self.ship.gap is not None:
            gain, gap = self.ship.difference, self.ship.gap
            trained = f"{score_change(gain + gap)} by the training grader (gap {score_change(gap)})"
            lines.append(f"gain {score_change(gain)} by the ship grader, {trained}")
        if self.edits:
            lines.append(f"edits: {self.edits}")
        lines += [*self._unused_rollouts(), self._cost()]
        if self.unproven:
            from skillfit.run.store import UNPROVEN_SKILL

            found = relative_to_here(self.run / UNPROVEN_SKILL)
            lines.append(f"The initial skill is handed back. What was found is unproven: {found}")
        if self.cut and self.skill_tokens is not None:
            sizes = self.skill_tokens
            tokens = f"{sizes.found:,} tokens, {sizes.initial:,} before"
            whose = "The unproven skill" if self.unproven else "The skill"
            lines.append(
                f"Cut from the initial skill: {', '.join(self.cut)}. {whose} has {tokens}."
            )
        run = relative_to_here(self.run)
        commands = [shell_line("report", run)]
        if self.finish_reason == "improved":
            commands = [shell_line("diff", run), *commands, shell_line("apply", run)]
        return "\n".join([*lines, "Next:", *(f"  {command}" for command in commands)])

    def _unused_rollouts(self) -> list[str]:
        """With budget.rollouts: how many were used, and why some were not."""
        used, cap = self.rollouts.used, self.rollouts.cap
        if used is None or cap is None or used >= cap:
            return []
        line = f"{used:,} of {cap:,} rollouts used."
        if self.ship is not None and not self.ship.pairs:
            line += " The others were kept to test a changed skill, and there was none to test."
        return [line]

    def _cost(self) -> str:
        amounts = [
            quantity(self.usage.calls or 0, "call"),
            quantity(self.usage.tokens or 0, "token"),
        ]
        if self.usage.usd:
            amounts.append(dollars(self.usage.usd))
        return ", ".join([*amounts, duration(self.wall_s or 0)])
