"""`eval`: measure skills side by side, without training."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
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
    rich_table,
    shell_line,
    show,
)
from skillfit.cli.train import ConfigFile, RunOption, config_inputs, failed_items
from skillfit.errors import Exit, InputError
from skillfit.plain_text import duration, mean_score, quantity, score_with_interval, with_interval

if TYPE_CHECKING:
    from rich.console import RenderableType

    from skillfit.intervals import Interval, Lift
    from skillfit.report.run_details import FailedItem
    from skillfit.run.budget import Budget
    from skillfit.skill import Skill
    from skillfit.training.inputs import Inputs
    from skillfit.training.measure import Measured


Repeats = Annotated[int, typer.Option(min=1, help="Rollouts an item.")]
SplitName = Annotated[
    str, typer.Option(help="train, selection (val, valid_seen), test (valid_unseen), or all.")
]


def eval_command(
    config: ConfigFile,
    overrides: Overrides = None,
    skill: Annotated[
        list[Path] | None,
        typer.Option(help="A skill to measure; may be given again. Default: the config's."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="An agent's model; may be given again. Default: the config's."),
    ] = None,
    split: SplitName = "selection",
    repeats: Repeats = 1,
    no_skill: Annotated[
        bool,
        typer.Option(
            "--no-skill", help="Measure the agent without a skill too: does the skill help?"
        ),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            help="With --no-skill: write benchmark.json and a grading.json per answer into this "
            "folder, in the format of agentskills.io.",
        ),
    ] = None,
    run: RunOption = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Measure again; what was measured before is moved to NAME.old-N."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure skills on a split, several skills and models side by side. With intervals, scores per
    type, and what a rollout costs. Lists the items that fail. A repeated command reads what was
    measured before. With --no-skill it says whether each skill helps, compared with none.

    Example: skillfit eval skillfit.yaml --skill old/ --skill new/ --model openai/gpt-5-mini
    --repeats 3
    """
    from skillfit.api import default_run_path
    from skillfit.skill import NO_SKILL, Skill
    from skillfit.training.inputs import refuse_run_inside_skill

    if export is not None and not no_skill:
        raise InputError("--export compares with and without a skill.", hint="Add --no-skill.")
    budgets: list[Budget] = []  # the caps hold for all models together
    scores: list[_ModelScore] = []
    for name in model or [""]:
        chosen = with_agent(name)
        inputs = config_inputs(config, [*(overrides or ()), *chosen], training=False)
        skills = {str(path): Skill.load(path) for path in skill or ()}
        if not skills:
            skills = {inputs.skill.name: inputs.skill}
        if no_skill:
            skills = {NO_SKILL.name: NO_SKILL, **skills}
        agent = inputs.config.model.named("agent") or "the task's own"
        path = run or default_run_path(inputs, "evaluate")
        if run and len(model or ()) > 1:
            path = run_of_model(run, name)
        for measured_skill in skill or ():
            refuse_run_inside_skill(measured_skill, path)
        measured = evaluate_in_terminal(
            inputs,
            skills,
            path,
            split=split,
            repeats=repeats,
            budgets=budgets,
            force_new=fresh,
        )
        scores += [
            _ModelScore(
                agent,
                one,
                path,
                failed_items(path, one.skill.hash),
                inputs.config.evaluation.margin,
            )
            for one in measured
        ]
    scores = _compared(scores, per_model=no_skill)
    if export is not None:
        _export(scores, export)
    show([score.as_json(split) for score in scores], _side_by_side(scores), as_json)
    if not as_json:
        show(scores, _evaluation_notes(scores), as_json)
    if not all(score.measured.has_score for score in scores):
        raise typer.Exit(int(Exit.INFRASTRUCTURE))


def _by_model(scores: Sequence[_ModelScore]) -> Iterator[list[_ModelScore]]:
    """Group the scores by the agent's model; each group in the order measured."""
    for _, group in groupby(scores, key=lambda score: (score.agent, score.run)):
        yield list(group)


def _export(scores: Sequence[_ModelScore], folder: Path) -> None:
    """Write each comparison with no skill in the format of agentskills.io; several of them into
    folders of their own.
    """
    from skillfit.plugins.agentskills.export import write_benchmark

    many = len(scores) > 2
    for number, (bare, *others) in enumerate(_by_model(scores), 1):
        for one in others:
            write_benchmark(
                folder / f"{number}-{one.measured.name.replace('/', '-')}" if many else folder,
                one.agent,
                without=bare.measured,
                with_skill=one.measured,
            )


def _compared(scores: list[_ModelScore], *, per_model: bool) -> list[_ModelScore]:
    """Compare each score with the first one; `per_model`: with the first of its own model."""
    groups = _by_model(scores) if per_model else [scores]
    return [
        replace(score, first=group[0] if at else None)
        for group in groups
        for at, score in enumerate(group)
    ]


class TypeScoreJson(TypedDict):
    hard: float | None  # None: no rollout was scored
    scored: int


class ModelScoreJson(TypedDict):
    model: str
    skill: str
    split: str
    hard: float | None  # None: no rollout was scored
    soft: float | None
    interval: tuple[float, float] | None
    scored: int
    planned: int
    by_type: Mapping[str, TypeScoreJson]
    gain: GainJson | None  # over the first of the list, paired by item; None: it is the first
    lift: str | None  # what the gain over no skill shows; None: not compared with no skill
    cheaper: bool | None  # clearly fewer tokens than the first at a score that is not worse
    per_rollout: Mapping[str, float]  # mean tokens, turns and seconds
    recorded: int  # rollouts that were measured before
    measured_at: str | None  # when the oldest of those was measured
    failed: list[FailedItem]
    run: str


class GainJson(TypedDict):
    difference: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _ModelScore:
    """What a skill scored with one agent's model."""

    agent: str
    measured: Measured
    run: Path
    failed: list[FailedItem]
    margin: float  # a loss below it counts as not worse
    first: _ModelScore | None = None  # the one that it is compared with

    @property
    def gain(self) -> Interval | None:
        return self.measured.against(self.first.measured) if self.first else None

    @property
    def lift(self) -> Lift | None:
        """What the skill does for the agent, where it was compared with no skill."""
        from skillfit.intervals import lift_of

        if self.gain is None or self.first is None or not self.first.measured.skill.absent:
            return None
        return lift_of(self.gain)

    @property
    def cheaper(self) -> bool | None:
        return self.measured.cheaper_than(self.first.measured, self.margin) if self.first else None

    @property
    def measured_at(self) -> str | None:
        """When the oldest rollout was measured that an earlier command paid for."""
        at = self.measured.recorded_at
        return None if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"

    def as_json(self, split: str) -> ModelScoreJson:
        tally, gain, has_score = self.measured.tally, self.gain, self.measured.has_score
        bounds = self.measured.interval if has_score else None
        return ModelScoreJson(
            model=self.agent,
            skill=self.measured.name,
            split=split,
            hard=tally.hard if has_score else None,
            soft=tally.soft if has_score else None,
            interval=(bounds.low, bounds.high) if bounds else None,
            scored=tally.scored,
            planned=tally.planned,
            by_type={
                kind: TypeScoreJson(hard=part.hard if part.scored else None, scored=part.scored)
                for kind, part in self.measured.by_type.items()
            },
            gain=GainJson(difference=gain.mean, interval=(gain.low, gain.high)) if gain else None,
            lift=self.lift,
            cheaper=self.cheaper,
            per_rollout=self.measured.costs,
            recorded=self.measured.recorded,
            measured_at=self.measured_at,
            failed=self.failed,
            run=str(self.run),
        )

    def cells(self) -> tuple[str, ...]:
        tally, score = self.measured.tally, "none"
        if self.measured.has_score:
            bounds = self.measured.interval
            score = score_with_interval(tally.hard, bounds.low, bounds.high)
        costs = self.measured.costs
        return (
            self.agent,
            self.measured.name,
            score,
            f"{tally.scored}/{tally.planned}",
            " · ".join(
                (f"{costs['tokens']:,.0f}", f"{costs['turns']:.1f}", duration(costs["seconds"]))
            )
            if costs
            else "",
        )

    def score_of_type(self, kind: str) -> str:
        part = self.measured.by_type.get(kind)
        if part is None:
            return ""
        return mean_score(part.hard) if part.scored else "none"


def _side_by_side(scores: list[_ModelScore]) -> RenderableType:
    """Show the scores, and under them the scores per type where there are types."""
    from rich.console import Group

    numbers = [str(number) for number in range(1, len(scores) + 1)]
    rows = [(number, *score.cells()) for number, score in zip(numbers, scores, strict=True)]
    columns = ("", "model", "skill", "score (90 %)", "scored", "tokens · turns · time")
    table = rich_table(columns, rows)
    kinds = sorted({kind for score in scores for kind in score.measured.by_type} - {"all"})
    if not kinds:
        return table
    by_type = [(kind, *(score.score_of_type(kind) for score in scores)) for kind in kinds]
    return Group(table, rich_table(("type", *numbers), by_type))


def _gain_text(number: int, first: int, score: _ModelScore) -> str:
    """Say what a score shows in comparison with the first one."""
    gain = score.gain
    assert gain is not None
    paired = f"paired by item (90 %): {with_interval(gain.mean, gain.low, gain.high)}"
    if score.lift is None:
        text = f"{number} against {first}, {paired}"
    else:
        text = f"{score.measured.name} with {score.agent}: {score.lift}. Over no skill, {paired}"
    if score.cheaper:
        text += f". Cheaper, not worse (fewer tokens; a loss of {score.margin:g} is excluded)"
    return text


def _evaluation_notes(scores: Sequence[_ModelScore]) -> str:
    """Say what fails, what was measured before, and where everything is."""
    numbers = {id(score.measured): number for number, score in enumerate(scores, 1)}
    lines = [
        _gain_text(number, numbers[id(score.first.measured)], score)
        for number, score in enumerate(scores, 1)
        if score.first and score.gain
    ]
    for number, score in enumerate(scores, 1):
        if score.measured.skill.absent and len(scores) > 1:
            continue  # failures without the skill are expected
        name = score.measured.name if len(scores) == 1 else f"{number}: {score.measured.name}"
        if failed := failed_text(score.failed, name):
            lines.append(failed)
    recorded = sum(score.measured.recorded for score in scores)
    if recorded:
        total = sum(score.measured.tally.planned for score in scores)
        at = min(score.measured_at for score in scores if score.measured_at)
        lines.append(
            f"{recorded:,} of {quantity(total, 'rollout')} were measured before (from {at} on) "
            "and not sent again. --fresh measures again."
        )
    lines += [
        f"No rollout of {score.measured.name} was scored, so nothing is known about it."
        for score in scores
        if not score.measured.has_score
    ]
    for run in dict.fromkeys(str(relative_to_here(score.run)) for score in scores):
        lines.append(f"Every answer: {shell_line('report', run)}")
    return "\n".join(lines)


def with_agent(model: str) -> list[str]:
    """Return the overrides that put a model in the agent's place."""
    return ["model.agents=[]", f"model.agent={model}"] if model else []


def run_of_model(run: Path, model: str) -> Path:
    """Return the place of one of several models: a run holds what one of them did."""
    return run / re.sub(r"[^\w.-]+", "-", model)


def evaluate_in_terminal(
    inputs: Inputs,
    skills: Mapping[str, Skill],
    path: Path,
    *,
    split: str,
    repeats: int,
    only: Collection[str] | None = None,
    series: str = "evaluate",
    force_new: bool = False,
    budgets: list[Budget] | None = None,
) -> list[Measured]:
    """Measure skills and show the progress on stderr; all else is as in `evaluate_skills`."""
    from skillfit.cli.terminal import CountingTerminal
    from skillfit.training.measure import evaluate_skills

    terminal = CountingTerminal(console(stderr=True))
    return run_in_terminal(
        terminal,
        lambda control: evaluate_skills(
            inputs,
            skills,
            path,
            split=split,
            only=only,
            repeats=repeats,
            series=series,
            force_new=force_new,
            listeners=[terminal],
            control=control,
            budgets=budgets,
        ),
    )


COMMANDS = (eval_command,)
