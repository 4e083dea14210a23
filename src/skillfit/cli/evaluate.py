"""Commands that measure without training: `check`, `estimate`, `eval`, `ablate`."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillfit.cli.output import Json, Overrides, console, show, table
from skillfit.cli.train import RunOption, attend, read
from skillfit.errors import Exit
from skillfit.plain_text import (
    dollars,
    duration,
    mean_score,
    quantity,
    rounded,
    rounded_dollars,
    score_change,
    score_with_interval,
    shorten,
    visible,
    with_interval,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from rich.console import RenderableType

    from skillfit.models.json_text import JsonObject
    from skillfit.run.budget import Spending
    from skillfit.run.control import Control
    from skillfit.run.events import AblationFinished
    from skillfit.skill import Skill
    from skillfit.training.assemble import Listener
    from skillfit.training.estimate import (
        BudgetOption,
        EstimateRow,
        Range,
        ReachedCap,
        RolloutCost,
        RunEstimate,
        SmallCap,
    )
    from skillfit.training.inputs import Inputs
    from skillfit.training.measure import Ablation, Measured
    from skillfit.training.plan import Plan
    from skillfit.training.preflight import PreflightReport


ConfigFile = Annotated[Path, typer.Argument(help="The YAML config.")]
Repeats = Annotated[int, typer.Option(min=1, help="Rollouts an item.")]
SplitName = Annotated[
    str, typer.Option(help="train, selection (val, valid_seen), test (valid_unseen), or all.")
]


def check(
    config: ConfigFile, overrides: Overrides = None, run: RunOption = None, as_json: Json = False
) -> None:
    """Is this worth training? Tries keys, grader, noise, headroom and cost with a few rollouts that
    `train` does not pay for again.

    Example: skillfit check skillfit.yaml
    """
    from skillfit.api import default_run
    from skillfit.cli.terminal import CountingTerminal

    inputs = read(config, overrides)
    path, terminal = run or default_run(inputs), CountingTerminal(console(stderr=True))
    report = attend(path, terminal, lambda control: _run_checks(inputs, path, terminal, control))
    rows = [(one.verdict, one.name, one.message) for one in report.checks]
    data = {"verdict": report.verdict, "checks": [asdict(one) for one in report.checks]}
    show(data, table(("", f"verdict: {report.verdict}", ""), rows), as_json)
    raise typer.Exit(int(Exit.PREFLIGHT if report.verdict == "stop" else Exit.OK))


async def _run_checks(
    inputs: Inputs, path: Path, listener: Listener, control: Control
) -> PreflightReport:
    from skillfit.run.directory import RunDirectory
    from skillfit.training.assemble import assemble
    from skillfit.training.inputs import keep_recorded_plan
    from skillfit.training.preflight import probe, run_preflight

    inputs = keep_recorded_plan(inputs, path)
    with RunDirectory.open(path, inputs.identity(), keep_end=True) as opened:
        async with assemble(inputs, opened, [listener], control) as parts:
            await probe(parts, again=True)
            return await run_preflight(parts)


def estimate(
    config: ConfigFile, overrides: Overrides = None, run: RunOption = None, as_json: Json = False
) -> None:
    """What a run would take: calls, tokens, dollars and minutes, typically and as a range. Uses
    what `check` measured, if it was run before. Spends nothing.

    Example: skillfit estimate skillfit.yaml train.num_epochs=2
    """
    from skillfit.api import default_run

    inputs = read(config, overrides)
    cost = _measured_cost(run or default_run(inputs))
    found = _estimated(inputs, cost)
    show(_estimate_json(found), _estimate_text(found, inputs), as_json)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """What a planned run would take, and what its budget does to it."""

    plan: Plan
    total: RunEstimate  # within the budget
    reached: Sequence[ReachedCap]
    too_small: Sequence[SmallCap]
    options: Sequence[BudgetOption]  # without budget.rollouts: what other numbers would buy


def _estimated(inputs: Inputs, cost: RolloutCost | None) -> _Estimate:
    from skillfit.gate.ship import MOST_REPEATS
    from skillfit.training.estimate import budget_options, small_caps
    from skillfit.training.estimate import estimate as estimate_plan

    config, task, skill = inputs.config, inputs.task, inputs.skill
    plan, abilities, budget = inputs.plan(), inputs.abilities, inputs.config.budget
    repeats = inputs.rollout_plan.ship_repeats if inputs.rollout_plan else MOST_REPEATS
    planned = estimate_plan(config, task, skill, plan, cost, repeats, abilities)
    return _Estimate(
        plan=plan,
        total=planned.within(budget),
        reached=planned.reached(budget),
        too_small=small_caps(config, task, skill, plan, cost, abilities),
        options=budget_options(config, inputs.available, abilities.pools_edits)
        if budget.rollouts is None
        else [],
    )


def _estimate_json(found: _Estimate) -> JsonObject:
    return {
        "steps": found.plan.total_steps,
        "rollouts": _range_json(found.total.rollouts),
        "rows": [_row_json(row) for row in found.total.rows],
        "total": _row_json(found.total.total),
        "minutes": _range_json(found.total.minutes),
        "measured_rollouts": found.total.measured,
        "reached_caps": [
            {"cap": one.name, "at": one.cap, "ends_early": one.ends_early} for one in found.reached
        ],
        "too_small": [asdict(one) for one in found.too_small],
        "options": [
            {"rollouts": one.rollouts, "plan": asdict(one.plan) if one.plan else None}
            for one in found.options
        ],
    }


def _estimate_text(found: _Estimate, inputs: Inputs) -> RenderableType:
    from rich.console import Group

    rollouts = _span(found.total.rollouts)
    time = _span(found.total.minutes, lambda minutes: duration(60 * minutes))
    notes = [
        f"{found.plan.total_steps} steps, {rollouts} rollouts, {time}. {_RANGES}",
        *_cap_notes(inputs.config.budget.rollouts, found.reached),
        *map(str, found.too_small),
        _cost_basis(found.total),
        *_lag_notes(inputs, found.plan),
    ]
    shown: list[RenderableType] = [_cost_table(found.total), "\n".join(notes)]
    if found.options:
        shown.append(_options_table(found.options))
    return Group(*shown)


_RANGES = "Each amount is typical (least – most)."


def _measured_cost(run: Path) -> RolloutCost | None:
    """What a rollout cost in an earlier `check` of the same run; None without one."""
    from contextlib import closing

    from skillfit.run.directory import JOURNAL, RunDirectory
    from skillfit.run.events import RolloutFinished
    from skillfit.training.estimate import RolloutCost

    if not (run / JOURNAL).is_file():
        return None
    with closing(RunDirectory.read(run)) as view:
        events = [stored.event for stored in view.events.read()]
    return RolloutCost.of([one for one in events if isinstance(one, RolloutFinished)])


def _cap_notes(rollouts: int | None, reached: Sequence[ReachedCap]) -> list[str]:
    """What the caps of the budget do to the estimate."""
    lines = []
    if rollouts is not None:
        lines.append(f"budget.rollouts: all stages together make at most {rollouts:,} rollouts.")
    for one in reached:
        form = dollars if one.name == "usd" else rounded
        if one.ends_early:
            lines.append(
                f"budget.{one.name} ({form(one.cap)}) ends the run early: the whole plan typically "
                f"takes {form(one.planned.typical)}."
            )
        else:
            lines.append(
                f"budget.{one.name} ends the run at {form(one.cap)}; without it the plan takes "
                f"{form(one.planned.high)} at the most."
            )
    return lines


def _lag_notes(inputs: Inputs, plan: Plan) -> list[str]:
    from skillfit.training.plan import planned_lag

    if not inputs.abilities.pools_edits:
        return []
    lag = planned_lag(inputs.config.train.lag, plan.total_steps, pools_edits=True)
    if lag:
        steps = f"{lag} steps" if lag > 1 else "one step"
        return [f"train.lag: edits join {steps} later, so that rollouts do not wait for them."]
    return [
        "train.lag: 1 lets rollouts continue while the optimizer writes: faster, with less gain "
        "per rollout (docs/loop.md)."
    ]


def _cost_basis(found: RunEstimate) -> str:
    if found.measured:
        return f"The cost of a rollout is the mean of {found.measured} measured ones."
    return "The cost of a rollout is assumed; `skillfit check` measures it."


def _options_table(options: Sequence[BudgetOption]) -> RenderableType:
    rows = []
    for one in options:
        if one.plan is None:
            rows.append((f"{one.rollouts:,}", "too few for one step", "", ""))
            continue
        plan = one.plan
        steps = f"{plan.steps} steps of {plan.batch_size} rollouts"
        rows.append(
            (
                f"{one.rollouts:,}",
                steps,
                f"{plan.selection} selection items",
                f"shows gains of {one.detectable:.2f}",
            )
        )
    return table(("--rollouts", "buys", "", ""), rows)


def _cost_table(found: RunEstimate) -> RenderableType:
    """The stages under the role that pays for them: this fits 80 columns."""
    rows: list[tuple[str, ...]] = []
    role = ""
    for row in found.rows:
        if row.role != role:
            role = row.role
            rows.append((role, "", "", ""))
        rows.append(_cost_row(row, indent="  "))
    rows.append(_cost_row(found.total))
    return table(("stage", "calls", "tokens", "usd"), rows)


def _cost_row(row: EstimateRow, indent: str = "") -> tuple[str, ...]:
    from skillfit.report.run_text import UNPRICED

    usd = UNPRICED if row.usd is None else _span(row.usd, rounded_dollars)
    cells = (_span(row.calls), _span(row.tokens), usd)
    return (f"{indent}{row.stage}", *(cell.replace(" – ", "–") for cell in cells))


def _row_json(row: EstimateRow) -> JsonObject:
    return {
        "stage": row.stage,
        "role": row.role,
        "calls": _range_json(row.calls),
        "tokens": _range_json(row.tokens),
        "usd": _range_json(row.usd) if row.usd else None,
    }


def _range_json(span: Range) -> list[float]:
    """Low, typical, high."""
    return [round(span.low, 4), round(span.typical, 4), round(span.high, 4)]


def _span(span: Range, form: Callable[[float], str] = rounded) -> str:
    typical, low, high = form(span.typical), form(span.low), form(span.high)
    if low == high:
        return typical
    bounds = f"{low} – {high}".replace("$", "")
    return f"{typical} ({bounds})"


def eval_(
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
    run: RunOption = None,
    as_json: Json = False,
) -> None:
    """Measure skills on a split, with intervals and per type; several skills and models side by
    side.

    Example: skillfit eval skillfit.yaml --skill old/ --skill new/ --model openai/gpt-5-mini
    --repeats 3
    """
    from skillfit.api import default_run
    from skillfit.run.budget import Spending
    from skillfit.skill import Skill

    spending = Spending()  # the caps hold for all models together
    found: list[_ModelScore] = []
    for name in model or [""]:
        chosen = [f"model.agent={name}"] if name else []
        inputs = read(config, [*(overrides or ()), *chosen], training=False)
        skills = {str(path): Skill.load(path) for path in skill or ()}
        if not skills:
            skills = {inputs.skill.name: inputs.skill}
        agent = inputs.config.model.agent.id if inputs.config.model.agent else "the task's own"
        path = run or default_run(inputs, "evaluate")
        if run and len(model or ()) > 1:  # what was measured with one model is no run of another
            path = run / re.sub(r"[^\w.-]+", "-", name)
        measured = measure(inputs, skills, path, split=split, repeats=repeats, spending=spending)
        found += [_ModelScore(agent, one) for one in measured]
    show([one.as_json(split) for one in found], _side_by_side(found), as_json)


@dataclass(frozen=True, slots=True)
class _ModelScore:
    """What a skill scored with one agent's model."""

    agent: str
    measured: Measured

    def as_json(self, split: str) -> JsonObject:
        tally, bounds = self.measured.tally, self.measured.interval
        return {
            "model": self.agent,
            "skill": self.measured.name,
            "split": split,
            "hard": tally.hard,
            "soft": tally.soft,
            "interval": [bounds.low, bounds.high],
            "scored": tally.scored,
            "planned": tally.planned,
            "by_type": {
                kind: {"hard": part.hard, "scored": part.scored}
                for kind, part in self.measured.by_type.items()
            },
        }

    def cells(self) -> tuple[str, ...]:
        tally, bounds = self.measured.tally, self.measured.interval
        score = score_with_interval(tally.hard, bounds.low, bounds.high)
        return (self.agent, self.measured.name, score, f"{tally.scored}/{tally.planned}")

    def score_of_type(self, kind: str) -> str:
        part = self.measured.by_type.get(kind)
        return "" if part is None else mean_score(part.hard)


def _side_by_side(found: list[_ModelScore]) -> RenderableType:
    """The scores, and under them the scores per type where there are types."""
    from rich.console import Group

    numbers = [str(number) for number in range(1, len(found) + 1)]
    rows = [(number, *one.cells()) for number, one in zip(numbers, found, strict=True)]
    scores = table(("", "model", "skill", "score (90 %)", "scored"), rows)
    kinds = sorted({kind for one in found for kind in one.measured.by_type} - {"all"})
    if not kinds:
        return scores
    by_type = [(kind, *(one.score_of_type(kind) for one in found)) for kind in kinds]
    return Group(scores, table(("type", *numbers), by_type))


def measure(
    inputs: Inputs,
    skills: Mapping[str, Skill],
    path: Path,
    *,
    split: str,
    repeats: int,
    spending: Spending,
    series: str = "evaluate",
) -> list[Measured]:
    from skillfit.cli.terminal import CountingTerminal
    from skillfit.training.measure import evaluate

    terminal = CountingTerminal(console(stderr=True))

    def begin(control: Control) -> Coroutine[Any, Any, list[Measured]]:
        return evaluate(
            inputs,
            skills,
            path,
            split=split,
            repeats=repeats,
            series=series,
            listeners=[terminal],
            control=control,
            spending=spending,
        )

    return attend(path, terminal, begin)


_LINE_LENGTH = 60  # characters of a line in the table


def ablate(
    config: Annotated[Path, typer.Argument(help="The YAML config.")],
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
    """Which lines of this skill earn their tokens? Leaves random parts of the skill out and
    estimates what each one is worth. No optimizer is needed.

    Example: skillfit ablate skillfit.yaml --rollouts 300
    """
    from skillfit.api import default_run
    from skillfit.cli.terminal import CountingTerminal
    from skillfit.errors import InputError
    from skillfit.report.html_report import write_ablation_report
    from skillfit.training.measure import ablate as measure_units

    if by not in ("line", "paragraph"):
        raise InputError(f"--by {by}: unknown.", hint="Use line or paragraph.")
    inputs = read(config, overrides, training=False)
    path = run or default_run(inputs, "ablate")
    terminal = CountingTerminal(console(stderr=True))
    found: Ablation = attend(
        path,
        terminal,
        lambda control: measure_units(
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
        found.event, inputs.skill.name, path / "report.html", inputs.skill.text
    )
    applied = apply and _write_shorter(inputs, found)
    data = _ablation_json(found.event)
    data |= {"run": str(path), "report": str(report), "applied": applied}
    show(data, _ablation_table(found.event), as_json)
    if not as_json:
        print(_ablation_text(found.event, report, config, apply, applied))


def _write_shorter(inputs: Inputs, found: Ablation) -> bool:
    """Write the shorter skill to its place. False when nothing is cut."""
    from skillfit.skill.document import find_document

    if found.shorter is None or not inputs.config.env.skill:
        return False
    found.shorter.save(find_document(Path(inputs.config.env.skill)))
    return True


def _ablation_json(event: AblationFinished) -> JsonObject:
    return {
        "score": asdict(event.score),
        "rollouts": event.rollouts,
        "tokens_before": event.tokens_before,
        "tokens_after": event.tokens_after,
        "comparison": asdict(event.comparison) if event.comparison else None,
        "holds": event.holds,
        "units": [asdict(unit) for unit in event.units],
    }


def _ablation_table(event: AblationFinished) -> RenderableType:
    rows = []
    for unit in event.units:
        text = visible(" ".join(unit.text.split()))
        rows.append(
            (
                unit.id,
                with_interval(unit.mean, unit.low, unit.high),
                unit.tokens,
                unit.decision,
                shorten(text, _LINE_LENGTH),
            )
        )
    return table(("line", "worth (80 %)", "tokens", "", "text"), rows)


def _ablation_text(
    event: AblationFinished, report: Path, config: Path, asked: bool, applied: bool
) -> str:
    cut = [unit for unit in event.units if unit.decision == "cut"]
    saved = event.tokens_before - event.tokens_after
    score = score_with_interval(event.score.mean, event.score.low, event.score.high)
    lines = [f"{event.rollouts} rollouts; score of the whole skill about {score}."]
    parts = quantity(len(cut), "part")
    if event.all_zero:
        lines.append(
            "No rollout scored above 0, so nothing is known about the lines. Run "
            f"`skillfit check {config}` first."
        )
    elif not cut:
        lines.append("Nothing can be cut with confidence; more rollouts narrow the intervals.")
    elif applied:
        lines.append(f"Cut {parts}: {saved} of {event.tokens_before} tokens saved.")
        if event.comparison is not None:
            lines.append(
                f"On {event.comparison.rollouts} fresh rollouts the score changed by "
                f"{score_change(event.comparison.difference)}."
            )
        lines.append(f"The former text: {report.with_name('skills') / 'skill_v0000.md'}")
    elif asked:
        lines.append("Nothing was cut: the shorter skill did worse on fresh rollouts.")
    else:
        lines.append(
            f"{parts} can go: {saved} of {event.tokens_before} tokens per call. "
            f"Cut them with: skillfit ablate {config} --apply"
        )
    lines.append(f"Report: {report}")
    return "\n".join(lines)


COMMANDS = (check, estimate, eval_, ablate)
