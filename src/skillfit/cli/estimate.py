"""`estimate`: show what a run would cost, without spending anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, TypedDict

from skillfit.cli.output import Json, Overrides, rich_table, show
from skillfit.cli.train import ConfigFile, Rollouts, RunOption, planned_inputs
from skillfit.plain_text import dollars, duration, quantity, rounded, rounded_dollars

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from skillfit.run.records import PhasePlan
    from skillfit.training.forecast import (
        BudgetOption,
        EstimateRow,
        Forecast,
        ReachedCap,
        RolloutCost,
        SmallCap,
    )
    from skillfit.training.inputs import Inputs
    from skillfit.training.schedule import Range, Schedule


def estimate_command(
    config: ConfigFile,
    overrides: Overrides = None,
    run: RunOption = None,
    as_json: Json = False,
    rollouts: Rollouts = None,
) -> None:
    """Show what a run would cost. Calls, tokens, dollars and minutes, typically and as a range. It
    uses what `check` measured, if it was run before, and spends nothing.

    Example: skillfit estimate skillfit.yaml train.num_epochs=2
    """
    from skillfit.api import default_run_path
    from skillfit.models.registry import refuse_unknown_provider
    from skillfit.training.inputs import with_checked_plan

    inputs = planned_inputs(config, overrides or (), rollouts)
    for spec in (*inputs.config.model.by_role().values(), *inputs.config.model.agents):
        refuse_unknown_provider(spec.id)
    path = run or default_run_path(inputs)
    inputs = with_checked_plan(inputs, path)
    cost = _measured_cost(path, inputs)
    planned = _estimated(inputs, cost)
    show(_estimate_json(planned), _estimate_text(planned, inputs), as_json)


@dataclass(frozen=True, slots=True)
class PlannedCost:
    """What a planned run would take, and what its budget does to it."""

    schedule: Schedule
    total: Forecast  # within the budget
    reached: Sequence[ReachedCap]
    too_small: Sequence[SmallCap]
    options: Sequence[BudgetOption]  # what numbers of rollouts buy
    baseline: float | None  # score of the initial skill in `check`; None: not measured


def _estimated(inputs: Inputs, cost: RolloutCost | None) -> PlannedCost:
    from skillfit.training.forecast import budget_options, forecast, small_caps

    inputs.refuse_useless_plan()
    config, task, skill = inputs.config, inputs.task, inputs.skill
    schedule, budget = inputs.schedule(), inputs.config.budget
    planned = forecast(config, task, skill, schedule, cost)
    baseline = cost.score if cost else None
    return PlannedCost(
        schedule=schedule,
        total=planned.within(budget),
        reached=planned.reached(budget),
        too_small=small_caps(config, task, skill, schedule, cost),
        options=budget_options(config, inputs.available, inputs.gate.gate, baseline),
        baseline=baseline,
    )


def planned_time(inputs: Inputs) -> str:
    """Estimate how long a run takes before its first rollout: "20 min (4 min – 2 h)"."""
    minutes = _estimated(inputs, None).total.minutes
    return _range_text(minutes, lambda amount: duration(60 * amount))


RangeJson = tuple[float, float, float]  # low, typical, high


class RowJson(TypedDict):
    stage: str
    role: str
    calls: RangeJson
    tokens: RangeJson
    usd: RangeJson | None


class ReachedCapJson(TypedDict):
    cap: str
    at: float
    ends_early: bool


class EstimateJson(TypedDict):
    steps: int
    rollouts: RangeJson
    rows: Sequence[RowJson]  # by stage
    work: Sequence[RowJson]  # the same by kind of work
    total: RowJson
    minutes: RangeJson
    measured_rollouts: int
    reached_caps: Sequence[ReachedCapJson]
    too_small: Sequence[SmallCap]
    phases: Sequence[PhasePlan]
    options: Sequence[BudgetOption]


def _estimate_json(planned: PlannedCost) -> EstimateJson:
    return EstimateJson(
        steps=planned.schedule.total_steps,
        rollouts=_range_json(planned.total.rollouts),
        rows=[_row_json(row) for row in planned.total.rows],
        work=[_row_json(row) for row in planned.total.by_work],
        total=_row_json(planned.total.total),
        minutes=_range_json(planned.total.minutes),
        measured_rollouts=planned.total.measured,
        reached_caps=[
            ReachedCapJson(cap=one.name, at=one.cap, ends_early=one.ends_early)
            for one in planned.reached
        ],
        too_small=planned.too_small,
        phases=planned.schedule.phases,
        options=planned.options,
    )


def _estimate_text(planned: PlannedCost, inputs: Inputs) -> RenderableType:
    from rich.console import Group

    from skillfit.training.forecast import ASSUMED_BASELINE

    rollouts = _range_text(planned.total.rollouts)
    time = _range_text(planned.total.minutes, lambda minutes: duration(60 * minutes))
    notes = [
        f"{quantity(planned.schedule.total_steps, 'step')}, {rollouts} rollouts, {time}. {_RANGES}",
        *_cap_notes(inputs.config.budget.rollouts, planned.reached),
        *map(str, planned.too_small),
        _cost_basis(planned.total),
    ]
    shown: list[RenderableType] = [_cost_table(planned.total), "\n".join(notes)]
    shown += [_phases_table(planned.schedule), _options_table(planned.options)]
    known = planned.baseline is not None
    score = f"{ASSUMED_BASELINE if planned.baseline is None else planned.baseline:.2f}"
    basis = f"as `check` measured, {score}" if known else f"assumed to be {score}; `check` measures"
    shown.append(
        f"Expected gain: mean of the benchmarks, from the score of the initial skill ({basis})."
    )
    return Group(*shown)


_RANGES = "Each amount is typical (least – most)."


def _measured_cost(run: Path, inputs: Inputs) -> RolloutCost | None:
    """Return what a rollout cost in an earlier `check` of the same run; None without one."""
    from skillfit.models.registry import local_slots
    from skillfit.report import open_details
    from skillfit.run.store import JOURNAL
    from skillfit.training.forecast import RolloutCost, rollouts_at_once

    if not (run / JOURNAL).is_file():
        return None
    with open_details(run) as details:
        cost = RolloutCost.of(list(details.rollouts()), details.initial_hash)
        paces = details.paces()
    if cost is None or not paces or local_slots(inputs.config.model.agent) is None:
        return cost
    # A rollout's own seconds include its wait for one of the few slots, so the pace of all counts.
    return replace(cost, seconds=mean(paces) * rollouts_at_once(inputs.config))


def _cap_notes(rollouts: int | None, reached: Sequence[ReachedCap]) -> list[str]:
    """Say what the caps of the budget do to the estimate."""
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


def _cost_basis(estimate: Forecast) -> str:
    if estimate.measured:
        return f"The cost of a rollout is the mean of {estimate.measured} measured ones."
    return "The cost of a rollout is assumed; `skillfit check` measures it."


def _phases_table(schedule: Schedule) -> RenderableType:
    """Show what each phase of the run takes, and why."""
    rows = []
    for one in schedule.phases:
        unit = "comparison" if one.phase == "prove" else "round"
        rows.append((one.phase, quantity(one.rounds, unit), f"{one.rollouts:,}", one.reason))
    return rich_table(("phase", "", "rollouts", "why"), rows)


def _options_table(options: Sequence[BudgetOption]) -> RenderableType:
    rows = []
    for one in options:
        if one.plan is None:
            rows.append((f"{one.rollouts:,}", f"nothing: at least {one.least} are needed", "", ""))
            continue
        steps = f"{quantity(one.plan.steps, 'step')} of {one.plan.batch_size}"
        chance = f"{one.chance:.0%}" if one.chance < 0.95 else "over 95%"
        rows.append((f"{one.rollouts:,}", steps, f"{one.gain:+.2f}", chance))
    return rich_table(("--rollouts", "buys", "expected gain", "chance that it is shown"), rows)


def _cost_table(estimate: Forecast) -> RenderableType:
    """List the kinds of work under the role that pays for them: this fits 80 columns."""
    rows: list[tuple[str, ...]] = []
    role = ""
    for row in estimate.by_work:
        if row.role != role:
            role = row.role
            rows.append((role, "", "", ""))
        rows.append(_cost_row(row, indent="  "))
    rows.append(_cost_row(estimate.total))
    return rich_table(("work", "calls", "tokens", "usd"), rows)


def _cost_row(row: EstimateRow, indent: str = "") -> tuple[str, ...]:
    from skillfit.record.text import UNPRICED

    usd = UNPRICED if row.usd is None else _range_text(row.usd, rounded_dollars)
    cells = (_range_text(row.calls), _range_text(row.tokens), usd)
    return (f"{indent}{row.stage}", *(cell.replace(" – ", "–") for cell in cells))


def _row_json(row: EstimateRow) -> RowJson:
    return RowJson(
        stage=row.stage,
        role=row.role,
        calls=_range_json(row.calls),
        tokens=_range_json(row.tokens),
        usd=_range_json(row.usd) if row.usd else None,
    )


def _range_json(amount: Range) -> RangeJson:
    return round(amount.low, 4), round(amount.typical, 4), round(amount.high, 4)


def _range_text(amount: Range, form: Callable[[float], str] = rounded) -> str:
    typical, low, high = form(amount.typical), form(amount.low), form(amount.high)
    if low == high:
        return typical
    bounds = f"{low} – {high}".replace("$", "")
    return f"{typical} ({bounds})"


COMMANDS = (estimate_command,)
