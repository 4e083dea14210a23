"""What a finished run says about itself (summary.json)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from skillfit import __version__
from skillfit.config.schema import EvaluationSection
from skillfit.gate import ShipResult
from skillfit.models import Usage
from skillfit.rollout.outcome import Tally
from skillfit.run.journal import Spend
from skillfit.run.records import (
    ACCEPTED,
    SKIPPED,
    EpochStats,
    RecordedConfig,
    RolloutCounts,
    RunFinishReason,
    RunSummary,
    ShipSummary,
    SkillTokens,
    StepRecord,
    TokenCounts,
    UsageTotals,
)
from skillfit.skill import Skill, units
from skillfit.training.components import Components
from skillfit.training.ship_rollouts import Closing, ComparedTallies
from skillfit.training.state import TrainingState


@dataclass(frozen=True, slots=True)
class Ending:
    """What the last stages found. Fields stay empty where a run ended earlier."""

    handed_back: Skill  # best_skill.md: the initial skill unless the run improved it
    found: Skill  # what training arrived at
    scores: ComparedTallies | None = None
    ship: ShipResult | None = None
    final: Tally | None = None  # the last incumbent on the selection items
    tests: Mapping[str, Tally] = field(default_factory=dict)  # baseline, best, final


def summarise(
    run: Components,
    closing: Closing,
    state: TrainingState,
    ending: Ending,
    finish_reason: RunFinishReason,
    diagnosis: str,
) -> RunSummary:
    """summary.json of a run that ends now."""
    actions, ship, stats = count_actions(state.records), ending.ship, run.engine.stats
    summary = RunSummary(
        version=f"skillfit-{__version__}",
        finish_reason=finish_reason,
        diagnosis=diagnosis,
        config=RecordedConfig.of(run.config),
        total_steps=run.plan.total_steps,
        steps_done=len(state.records),
        total_accepts=actions.accepts,
        total_rejects=actions.rejects,
        total_skips=actions.skips,
        edits_blocked=run.texts.refused,
        best_step=state.best_step,
        current_origin=state.origin,
        best_origin=state.best_origin,
        epoch_stats=_epochs(state.records),
        ship=ShipSummary(ship.verdict, ship.difference, ship.interval, ship.gap, ship.repeats)
        if ship
        else None,
        skill_tokens=SkillTokens(
            initial=run.initial.tokens,
            best=ending.handed_back.tokens,
            found=ending.found.tokens,
        ),
        unproven=ending.found.hash not in (ending.handed_back.hash, run.initial.hash),
        cut=_cut(run.initial, ending.found) if run.config.optimizer.prune_initial else (),
        coverage=stats.coverage,
        rollouts=RolloutCounts(stats.planned, stats.scored),
        total_wall_time_s=round(closing.budget.minutes * 60, 1),
    )
    summary = _with_selection_scores(summary, run.config.evaluation, ending)
    summary = _with_test_scores(summary, run.config.evaluation, ending)
    return _with_usage(summary, closing.journal.bill())


def _with_selection_scores(
    summary: RunSummary, evaluation: EvaluationSection, ending: Ending
) -> RunSummary:
    scores, final = ending.scores, ending.final
    return replace(
        summary,
        metric=evaluation.gate_metric,
        baseline_selection_hard=_hard(scores.baseline if scores else None),
        baseline_selection_score=_score(evaluation, scores.baseline if scores else None),
        best_selection_hard=_hard(scores.best if scores else None),
        best_selection_score=_score(evaluation, scores.best if scores else None),
        final_selection_hard=_hard(final),
        final_selection_soft=final.soft if final else None,
    )


def _with_test_scores(
    summary: RunSummary, evaluation: EvaluationSection, ending: Ending
) -> RunSummary:
    baseline, best, final = (ending.tests.get(name) for name in ("baseline", "best", "final"))
    return replace(
        summary,
        baseline_test_hard=_hard(baseline),
        baseline_test_soft=baseline.soft if baseline else None,
        test_hard=_hard(best),
        test_soft=best.soft if best else None,
        final_test_hard=_hard(final),
        final_test_soft=final.soft if final else None,
        baseline_test_score=_score(evaluation, baseline),
        test_score=_score(evaluation, best),
        final_test_score=_score(evaluation, final),
        test_delta_hard=best.hard - baseline.hard if best and baseline else None,
        final_test_delta_hard=final.hard - baseline.hard if final and baseline else None,
    )


def _with_usage(summary: RunSummary, bill: Iterable[Spend]) -> RunSummary:
    stages: defaultdict[str, Usage] = defaultdict(Usage)
    roles: defaultdict[str, Usage] = defaultdict(Usage)
    total = Usage()
    for spend in bill:
        stages[spend.stage] += spend.usage
        roles[spend.role] += spend.usage
        total += spend.usage
    return replace(
        summary,
        usage=UsageTotals.of(total),
        usage_by_stage={name: UsageTotals.of(usage) for name, usage in sorted(stages.items())},
        usage_by_role={name: UsageTotals.of(usage) for name, usage in sorted(roles.items())},
        token_summary={name: TokenCounts.of(usage) for name, usage in sorted(stages.items())},
    )


def _cut(initial: Skill, found: Skill) -> tuple[str, ...]:
    """The lines that `optimizer.prune_initial` took out of the initial skill: "lines 12-14"."""
    return tuple(unit.lines for unit in units(initial) if unit.text not in found.unix_body)


def _hard(tally: Tally | None) -> float | None:
    return tally.hard if tally else None


def _score(evaluation: EvaluationSection, tally: Tally | None) -> float | None:
    """Under the gate's metric."""
    return evaluation.value(tally.hard, tally.soft) if tally else None


@dataclass(frozen=True, slots=True)
class ActionCounts:
    """How many steps were accepted, rejected and skipped."""

    accepts: int
    rejects: int
    skips: int


def count_actions(records: Sequence[StepRecord]) -> ActionCounts:
    actions = [record.action for record in records]
    return ActionCounts(
        sum(action in ACCEPTED for action in actions),
        sum(action in ("reject", "inconclusive") for action in actions),
        sum(action in SKIPPED for action in actions),
    )


def _epochs(records: Sequence[StepRecord]) -> tuple[EpochStats, ...]:
    stats = []
    for epoch, group in groupby(records, key=lambda record: record.epoch):
        steps = list(group)
        counts, standings = count_actions(steps), steps[-1].standings
        stats.append(
            EpochStats(
                epoch,
                len(steps),
                counts.accepts,
                counts.rejects,
                counts.skips,
                standings.best_score,
                standings.current_score,
            )
        )
    return tuple(stats)
