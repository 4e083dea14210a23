"""Commands that measure skills without training: `eval`, `ablate`, `verify`."""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from skillfit.atomic_write import write_whole
from skillfit.cli.output import (
    Json,
    Overrides,
    console,
    failed_text,
    relative_path,
    relative_to_here,
    rich_table,
    shell_line,
    show,
)
from skillfit.cli.train import (
    ConfigFile,
    RunOption,
    config_inputs,
    failed_items,
    inputs_of_run,
    open_training_run,
    run_in_terminal,
)
from skillfit.errors import Exit, InputError
from skillfit.plain_text import (
    duration,
    mean_score,
    p_value,
    quantity,
    score_change,
    score_with_interval,
    shorten,
    visible,
    with_interval,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pydantic import ValidationError
    from rich.console import RenderableType

    from skillfit.intervals import Interval, Lift
    from skillfit.report import RunDetails
    from skillfit.report.run_details import FailedItem
    from skillfit.run.budget import Budget
    from skillfit.run.control import Control
    from skillfit.run.events import AblationFinished, RolloutFinished
    from skillfit.run.records import Evidence, ScoreEstimate, UnitWorth
    from skillfit.skill import Skill
    from skillfit.training.inputs import Inputs
    from skillfit.training.measure import Ablation, Measured


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
        chosen = _with_agent(name)
        inputs = config_inputs(config, [*(overrides or ()), *chosen], training=False)
        skills = {str(path): Skill.load(path) for path in skill or ()}
        if not skills:
            skills = {inputs.skill.name: inputs.skill}
        if no_skill:
            skills = {NO_SKILL.name: NO_SKILL, **skills}
        agent = inputs.config.model.named("agent") or "the task's own"
        path = run or default_run_path(inputs, "evaluate")
        if run and len(model or ()) > 1:  # what was measured with one model is no run of another
            path = run / re.sub(r"[^\w.-]+", "-", name)
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
        from skillfit.plugins.agentskills.export import write_benchmark

        for number, (bare, *others) in enumerate(_by_model(scores), 1):
            for one in others:
                many = len(scores) > 2
                write_benchmark(
                    export / f"{number}-{one.measured.name.replace('/', '-')}" if many else export,
                    one.agent,
                    without=bare.measured,
                    with_skill=one.measured,
                )
    show([score.as_json(split) for score in scores], _side_by_side(scores), as_json)
    if not as_json:
        show(scores, _evaluation_notes(scores), as_json)
    if not all(score.measured.has_score for score in scores):
        raise typer.Exit(int(Exit.INFRASTRUCTURE))


def _by_model(scores: Sequence[_ModelScore]) -> Iterator[list[_ModelScore]]:
    """Group the scores by the agent's model; each group in the order measured."""
    for _, group in groupby(scores, key=lambda score: (score.agent, score.run)):
        yield list(group)


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
    """The scores, and under them the scores per type where there are types."""
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
    """What fails, what was measured before, and where everything is."""
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


def evaluate_in_terminal(
    inputs: Inputs,
    skills: Mapping[str, Skill],
    path: Path,
    *,
    split: str,
    repeats: int,
    budgets: list[Budget],
    only: Collection[str] | None = None,
    series: str = "evaluate",
    force_new: bool = False,
) -> list[Measured]:
    from skillfit.cli.terminal import CountingTerminal
    from skillfit.training.measure import evaluate_skills

    terminal = CountingTerminal(console(stderr=True))

    def begin(control: Control) -> Coroutine[Any, Any, list[Measured]]:
        return evaluate_skills(
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
        )

    return run_in_terminal(terminal, begin)


_LINE_LENGTH = 60  # characters of a line in the table


def ablate_command(
    config: ConfigFile,
    overrides: Overrides = None,
    rollouts: Annotated[
        int | None, typer.Option(min=20, help="Rollouts to spend; default: about 12 per line.")
    ] = None,
    by: Annotated[str, typer.Option(help="line or paragraph.")] = "line",
    run: RunOption = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Cut what can go without loss, after a comparison on fresh rollouts."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Estimate how much each part of a skill adds to its score. Rollouts leave random parts out; no
    optimizer is needed.

    Example: skillfit ablate skillfit.yaml --rollouts 300
    """
    from skillfit.api import default_run_path
    from skillfit.cli.terminal import CountingTerminal
    from skillfit.report.html_report import write_ablation_report
    from skillfit.training.measure import ablate_skill

    if by not in ("line", "paragraph"):
        raise InputError(f"--by {by}: unknown.", hint="Use line or paragraph.")
    inputs = config_inputs(config, overrides, training=False)
    path = run or default_run_path(inputs, "ablate")
    terminal = CountingTerminal(console(stderr=True))
    ablation: Ablation = run_in_terminal(
        terminal,
        lambda control: ablate_skill(
            inputs,
            path,
            rollouts=rollouts,
            by="paragraph" if by == "paragraph" else "line",
            check=apply,
            listeners=[terminal],
            control=control,
        ),
    )
    report = write_ablation_report(
        ablation.event, inputs.skill.name, path / "report.html", inputs.skill.text
    )
    applied = apply and _write_shorter(inputs, ablation)
    data = _ablation_json(ablation.event, path, report, applied)
    show(data, _ablation_table(ablation.event), as_json)
    if not as_json:
        options = [config, *(overrides or ()), *(["--by", by] if by != "line" else [])]
        options += ["--run", str(run)] if run else []
        command = shell_line("ablate", *options, "--apply")
        print(_ablation_text(ablation.event, report, command, apply, applied))


def _write_shorter(inputs: Inputs, ablation: Ablation) -> bool:
    """Write the shorter skill to its place. False when nothing is cut."""
    from skillfit.skill.parts import save_trained

    if ablation.shorter is None:
        return False
    save_trained(inputs.config.env.skill, ablation.shorter)
    return True


class AblationJson(TypedDict):
    score: ScoreEstimate
    rollouts: int
    tokens_before: int
    tokens_after: int
    comparison: Evidence | None
    holds: bool | None
    units: list[UnitWorth]
    run: str
    report: str
    applied: bool


def _ablation_json(event: AblationFinished, run: Path, report: Path, applied: bool) -> AblationJson:
    return AblationJson(
        score=event.score,
        rollouts=event.rollouts,
        tokens_before=event.tokens_before,
        tokens_after=event.tokens_after,
        comparison=event.comparison,
        holds=event.holds,
        units=event.units,
        run=str(run),
        report=str(report),
        applied=applied,
    )


def _ablation_table(event: AblationFinished) -> RenderableType:
    from skillfit.run.records import kinds_text

    rows = []
    for unit in event.units:
        text = shorten(visible(" ".join(unit.text.split())), _LINE_LENGTH)
        acts_on = visible(kinds_text(unit.kinds))
        rows.append(
            (
                unit.id,
                with_interval(unit.mean, unit.low, unit.high),
                unit.tokens,
                unit.decision,
                f"{text} ({acts_on})" if acts_on else text,
            )
        )
    return rich_table(("line", "worth (80 %)", "tokens", "", "text"), rows)


def _ablation_text(
    event: AblationFinished, report: Path, command: str, asked: bool, applied: bool
) -> str:
    from skillfit.run.records import skill_file

    cut = [unit for unit in event.units if unit.decision == "cut"]
    saved = event.tokens_before - event.tokens_after
    score = score_with_interval(event.score.mean, event.score.low, event.score.high)
    lines = [f"{event.rollouts} rollouts; score of the whole skill about {score}."]
    parts = quantity(len(cut), "part")
    if event.all_zero:
        lines.append(
            "No rollout scored above 0, so nothing is known about the lines. "
            "Run `skillfit check` first."
        )
    elif not cut:
        lines.append("Nothing can be cut with confidence; more rollouts narrow the intervals.")
    elif not event.shorter_skill:
        lines.append("Nothing is cut: the skill would be empty.")
    elif applied:
        lines.append(f"Cut {parts}: {saved} of {event.tokens_before} tokens saved.")
        if event.comparison is not None:
            lines.append(
                f"On {event.comparison.rollouts} fresh rollouts the score changed by "
                f"{score_change(event.comparison.difference)}."
            )
        lines.append(f"The former text, to undo this: {report.parent / skill_file(0)}")
    elif asked and event.comparison is not None:
        compared = event.comparison
        lines.append(
            "Nothing was cut: fresh rollouts did not show that the shorter skill is as good. "
            f"The score changed by {score_change(compared.difference)}; "
            f"{compared.coverage:.0%} of {compared.rollouts} rollouts were scored."
        )
    else:
        lines.append(
            f"{parts} can go: {saved} of {event.tokens_before} tokens per call. "
            f"Cut them with: {command}"
        )
    lines.append(f"Report: {report}")
    return "\n".join(lines)


# Phases that may have measured the best skill. Training rollouts are the last resort: they measured
# the initial skill of a run that changed nothing.
_LATEST_FIRST = ("ship", "compose", "final", "gate", "baseline", "rollout")
_SUSPICIOUS = 0.05  # one-sided p-value below which a drop is looked at again, and then counts


@dataclass(frozen=True, slots=True)
class VerifyRecord:
    """What a run measured of its best skill."""

    config: dict[str, Any]  # the settings of the run, with absolute paths
    skill: str  # the best skill's document
    means: dict[str, float]  # item -> mean score, from the freshest rollouts there are
    tokens: dict[str, float] = field(default_factory=dict)  # item -> mean tokens of these rollouts

    @classmethod
    def of_run(cls, path: Path) -> VerifyRecord:
        run = open_training_run(path)
        if run.finished is None:
            raise InputError(
                f"The run in {path} has not finished.", hint=f"Resume with: skillfit resume {path}"
            )
        inputs = inputs_of_run(path)
        best = inputs.skill.with_document(run.best_skill)
        second_grader = run.config.evaluation.ship_grader is not None
        means, tokens = _item_means(path, best.hash, second_grader)
        return cls(inputs.config.model_dump(mode="json"), run.best_skill.text, means, tokens)

    @classmethod
    def read(cls, path: Path) -> VerifyRecord:
        from pydantic import ValidationError

        from skillfit.config import map_paths
        from skillfit.run.store import load

        try:
            record = load(cls, path.read_bytes())
        except OSError as error:
            raise _not_a_record(path, f"it cannot be read ({error.strerror})") from error
        except ValidationError as error:
            raise _not_a_record(path, _wrong_field(error)) from error
        if problem := record.problem():
            raise _not_a_record(path, problem)
        folder = path.parent.resolve()
        config = map_paths(record.config, lambda _, name: _from_folder(name, folder))
        return replace(record, config=config)

    def problem(self) -> str:
        """What is wrong with values that have the right types; empty: nothing."""
        from skillfit.config import describe_keys

        env = self.config.get("env")
        if not isinstance(env, dict):
            return "config.env is missing"
        for described in describe_keys():
            section, _, key = described.key.rpartition(".")
            is_text = section == "env" and described.type in ("str", "str | null")
            if is_text and not isinstance(env.get(key) or "", str):
                return f"config.env.{key} should be text"
        for item, mean in self.means.items():
            if not 0 <= mean <= 1:
                return f"means.{item} should be a score from 0 to 1"
        for item, count in self.tokens.items():
            if not 0 <= count < math.inf:
                return f"tokens.{item} should be a number of tokens"
        return ""

    def over_models(self) -> VerifyRecord:
        """Return the record of a run with `model.agents` as one of a single model: means over the
        models.
        """
        from skillfit.config.schema import settings_of_run
        from skillfit.intervals import mean

        models = settings_of_run(self.config).model.by_name()

        def merged(values: Mapping[str, float]) -> dict[str, float]:
            found: defaultdict[str, list[float]] = defaultdict(list)
            for item, value in values.items():
                ending = next((f"@{one}" for one in models if item.endswith(f"@{one}")), "")
                found[item.removesuffix(ending)].append(value)
            return {item: mean(several) for item, several in found.items()}

        return replace(self, means=merged(self.means), tokens=merged(self.tokens))

    def write(self, path: Path) -> None:
        """Paths are written relative to the file, so that a record works in every checkout."""
        from skillfit.config import map_paths

        folder = path.parent.resolve()
        config = map_paths(self.config, lambda _, name: _to_folder(name, folder))
        portable = replace(self, config=config)
        text = json.dumps(asdict(portable), indent=1, ensure_ascii=False)
        write_whole(path, f"{text}\n".encode())


def _wrong_field(error: ValidationError) -> str:
    """The first thing that makes a file no record."""
    from skillfit.settings import expected_value

    first = error.errors()[0]
    key = visible(".".join(map(str, first["loc"])))
    if not key:
        return "it is not a JSON object"
    if first["type"] == "missing":
        return f"{key} is missing"
    return f"{key} should be {expected_value(first)}"


def _not_a_record(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is neither a run nor a record of one: {why}.",
        hint="Restore it, or write a new one: skillfit verify RUN --save FILE",
    )


def _to_folder(path: str, folder: Path) -> str:
    """The path as seen from the folder. One that has only the root in common with the folder, such
    as that of an installed program, stays as it is.
    """
    if not Path(path).is_absolute():  # the name of a task source
        return path
    try:
        shared = os.path.commonpath([path, folder])
    except ValueError:  # another drive
        return path
    return path if shared == Path(shared).anchor else relative_path(path, folder)


def _from_folder(path: str, folder: Path) -> str:
    """Return the absolute form of a path in a record that is in the folder."""
    if not path.startswith("."):
        return path
    return os.path.normpath(folder / path)


def _item_means(
    path: Path, skill_hash: str, second_grader: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean score of each item, and its mean tokens, in the latest phase that measured
    the skill.
    """
    from skillfit.intervals import mean
    from skillfit.report import open_details

    phases: defaultdict[str, defaultdict[str, list[tuple[float, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with open_details(path) as details:
        for rollout in details.rollouts():
            if rollout.skill_hash != skill_hash:
                continue
            hard = rollout.hard
            if hard is not None and rollout.phase == "ship" and second_grader:
                hard = _by_training_grader(details, rollout)
            if hard is not None:
                phases[rollout.phase][rollout.item].append((hard, rollout.tokens))
    measured = next((phases[phase] for phase in _LATEST_FIRST if phases[phase]), None)
    if measured is None:
        raise InputError(
            f"The run in {path} has no measurement of its best skill.",
            hint=f"Continue the run with `skillfit resume {path}`, or train again.",
        )
    rows = sorted(measured.items())
    return (
        {item: mean([hard for hard, _ in found]) for item, found in rows},
        {item: mean([tokens for _, tokens in found]) for item, found in rows},
    )


def _by_training_grader(details: RunDetails, rollout: RolloutFinished) -> float | None:
    """What the grader trained on, which `verify` grades with, gave a rollout that the ship grader
    scored.
    """
    outcome = details.outcome(rollout.rollout)
    return outcome.score.trained[0] if outcome and outcome.score and outcome.score.trained else None


@dataclass(frozen=True, slots=True)
class RecordComparison:
    """A new measurement beside the recorded one, on the items that both have."""

    recorded: float  # mean score
    measured: float  # mean score
    p_value: float  # that a drop this big is luck, one-sided
    items: int
    saving: Interval | None = None  # share of a rollout's tokens; None: none are recorded

    @property
    def costs_more(self) -> bool:
        """Whether rollouts take more tokens for sure."""
        return self.saving is not None and self.saving.high < 0


def compare_with_record(record: VerifyRecord, now: Measured) -> RecordComparison:
    """Paired by item. Items that only one side has do not count; without any in common there is
    nothing to say.
    """
    from skillfit.gate.samples import sign_flip_p
    from skillfit.intervals import interval, mean

    before, after = record.means, now.means
    shared = [item for item in before if item in after]
    if not shared:
        raise InputError(
            "No item of the record was measured.", hint="The tasks have changed since: train again."
        )
    drops = [before[item] - after[item] for item in shared]
    tokens = now.tokens
    saved = [1 - tokens[item] / record.tokens[item] for item in shared if record.tokens.get(item)]
    return RecordComparison(
        mean([before[item] for item in shared]),
        mean([after[item] for item in shared]),
        sign_flip_p(drops) if sum(drops) > 0 else 1.0,
        len(shared),
        interval(saved) if saved else None,
    )


class VerifyJson(TypedDict):
    model: str
    verdict: str
    recorded: float
    measured: float
    p_value: float
    items: int
    saving: tuple[float, float, float] | None  # share of tokens saved, with its 90 % interval


def verify_command(
    recorded: Annotated[
        Path, typer.Argument(help="A run's directory, or a record written with --save.")
    ],
    overrides: Overrides = None,
    skill: Annotated[
        Path | None, typer.Option(help="The skill to measure; default: the run's best.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model in place of the agent's; several: each by itself."),
    ] = None,
    repeats: Repeats = 2,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the run's record to this file and end: small enough for a repository."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that a skill still scores as recorded. For CI and model upgrades. A drop is measured
    again before it counts (exit 8). With --model, another model runs it.

    Example: skillfit verify runs/first model.agent=openai/gpt-5.1-mini
    """
    from skillfit.skill import Skill

    record = VerifyRecord.of_run(recorded) if recorded.is_dir() else VerifyRecord.read(recorded)
    if save is not None:
        record.write(save)
        return show({"record": str(save)}, f"Wrote {save}.", as_json)
    found = []
    for name in model or [""]:
        inputs = config_inputs(
            record.config, [*(overrides or ()), *_with_agent(name)], training=False
        )
        best = inputs.skill.with_document(Skill.from_text(record.skill))
        before = record.over_models() if name else record
        checked = _verify(before, inputs, Skill.load(skill) if skill else best, repeats)
        found.append((inputs.config.model.named("agent"), checked))
    lines = [
        f"{name}: {checked.text}" if len(found) > 1 else checked.text for name, checked in found
    ]
    data = [checked.as_json(name) for name, checked in found]
    show(data if len(found) > 1 else data[0], "\n".join(lines), as_json)
    regression = any(checked.regression for _, checked in found)
    raise typer.Exit(int(Exit.REGRESSION if regression else Exit.OK))


def _with_agent(model: str) -> list[str]:
    """Return the overrides that put a model in the agent's place."""
    return ["model.agents=[]", f"model.agent={model}"] if model else []


def _tokens_text(compared: RecordComparison) -> str:
    saving = compared.saving
    if saving is None or saving.low <= 0 <= saving.high:
        return ""
    change, word = (saving, "fewer") if saving.mean > 0 else (-saving, "more")
    share = f"{change.mean:.0%} {word} tokens in a rollout"
    return f" {share} than recorded ({change.low:.0%} to {change.high:.0%})."


@dataclass(frozen=True, slots=True)
class Verification:
    """The last comparison with the record."""

    comparison: RecordComparison
    regression: bool  # a second measurement confirmed it
    twice: bool  # the first measurement seemed to show a regression, and this is the second one

    @property
    def verdict(self) -> str:
        return "regression" if self.regression else "ok"

    @property
    def text(self) -> str:
        compared = self.comparison
        recorded, measured = mean_score(compared.recorded), mean_score(compared.measured)
        items = quantity(compared.items, "item")
        text = f"{self.verdict}: recorded {recorded}, now {measured} on {items} "
        text += f"({p_value(compared.p_value)}).{_tokens_text(compared)}"
        return f"{text} Measured twice." if self.twice else text

    def as_json(self, model: str) -> VerifyJson:
        compared = self.comparison
        return VerifyJson(
            model=model,
            verdict=self.verdict,
            recorded=compared.recorded,
            measured=compared.measured,
            p_value=compared.p_value,
            items=compared.items,
            saving=astuple(compared.saving) if compared.saving else None,
        )


def _verify(record: VerifyRecord, inputs: Inputs, skill: Skill, repeats: int) -> Verification:
    """Measure once. Only when the skill seems to have become worse, measure again. Where a cheaper
    skill was the objective, more tokens are worse, too.
    """
    wants_cheaper = inputs.config.evaluation.objective == "cheaper"

    def is_worse(found: RecordComparison) -> bool:
        return found.p_value <= _SUSPICIOUS or (wants_cheaper and found.costs_more)

    budgets: list[Budget] = []  # the caps hold for both measurements together
    first = _measure_again(record, inputs, skill, repeats, "verify/1", budgets)
    if not is_worse(first):
        return Verification(first, regression=False, twice=False)
    second = _measure_again(record, inputs, skill, repeats, "verify/2", budgets)
    return Verification(second, regression=is_worse(second), twice=True)


def _measure_again(
    record: VerifyRecord,
    inputs: Inputs,
    skill: Skill,
    repeats: int,
    series: str,
    budgets: list[Budget],
) -> RecordComparison:
    """Compare new rollouts with the record, in a run directory that is deleted afterwards."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="skillfit-") as folder:
        (measured,) = evaluate_in_terminal(
            inputs,
            {"skill": skill},
            Path(folder) / "run",
            split="all",
            only=record.means,
            repeats=repeats,
            series=series,
            budgets=budgets,
        )
    return compare_with_record(record, measured)


COMMANDS = (eval_command, ablate_command, verify_command)
