"""summary.json: the fields users of the reference system know, and ours. Usage counts over all
resumes of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from skillfit import __version__
from skillfit.models import Usage
from skillfit.rollout.outcome import Tally
from skillfit.training.ledger import tokens
from skillfit.training.parts import Parts
from skillfit.training.progress import Ending, Progress, hard_and_soft


def summarise(
    parts: Parts, progress: Progress, ending: Ending, finish_reason: str, diagnosis: str
) -> dict[str, Any]:
    tests = ending.tests or {}
    baseline, best, final = (tests.get(name) for name in ("baseline", "best", "final"))
    ship = ending.ship
    return {
        "version": f"skillfit-{__version__}",
        "finish_reason": finish_reason,
        "diagnosis": diagnosis,
        "config": parts.config.model_dump(mode="json"),
        **_selection(parts, "baseline", ending.scores.baseline if ending.scores else None),
        **_selection(parts, "best", ending.scores.best if ending.scores else None),
        **hard_and_soft("final_selection", ending.final),
        "best_step": progress.best_step,
        "current_origin": progress.origin,
        "best_origin": progress.best_origin,
        "total_steps": parts.plan.total_steps,
        "steps_done": len(progress.records),
        **{f"total_{kind}": count for kind, count in count_actions(progress.records).items()},
        "edits_blocked": parts.screen.blocked,
        "epoch_stats": _epochs(progress),
        **hard_and_soft("baseline_test", baseline),
        **hard_and_soft("test", best),
        **hard_and_soft("final_test", final),
        "test_delta_hard": best.hard - baseline.hard if best and baseline else None,
        "final_test_delta_hard": final.hard - baseline.hard if final and baseline else None,
        "ship": {
            "verdict": ship.verdict,
            "difference": ship.difference,
            "interval": list(ship.interval),
            "gap": ship.gap,
        }
        if ship
        else None,
        "skill_tokens": {"initial": parts.initial.tokens, "best": ending.best.tokens},
        "coverage": parts.counts.coverage,
        "rollouts": {"planned": parts.counts.planned, "scored": parts.counts.scored},
        **_usage(parts),
        "total_wall_time_s": round(parts.budget.minutes * 60, 1),
    }


def _selection(parts: Parts, name: str, tally: Tally | None) -> dict[str, float | None]:
    score = parts.gate_settings.value(tally.hard, tally.soft) if tally else None
    return {
        f"{name}_selection_hard": tally.hard if tally else None,
        f"{name}_selection_score": score,
    }


def count_actions(records: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many steps were accepted, rejected and skipped."""
    actions = [record["action"] for record in records]
    return {
        "accepts": sum(
            action in ("accept", "accept_new_best", "force_accept") for action in actions
        ),
        "rejects": sum(action in ("reject", "inconclusive") for action in actions),
        "skips": sum(action.startswith("skip") for action in actions),
    }


def _epochs(progress: Progress) -> list[dict[str, Any]]:
    grouped = [
        (epoch, list(records))
        for epoch, records in groupby(progress.records, key=lambda record: record["epoch"])
    ]
    return [
        {
            "epoch": epoch,
            "steps": len(records),
            **count_actions(records),
            "best_score_at_epoch_end": records[-1]["best_score"],
            "current_score_at_epoch_end": records[-1]["current_score"],
        }
        for epoch, records in grouped
    ]


def _usage(parts: Parts) -> dict[str, Any]:
    stages: defaultdict[str, Usage] = defaultdict(Usage)
    roles: defaultdict[str, Usage] = defaultdict(Usage)
    total = Usage()
    for spend in parts.run.journal.bill():
        stages[spend.stage] += spend.usage
        roles[spend.role] += spend.usage
        total += spend.usage
    return {
        "usage": _plain(total),
        "usage_by_stage": {name: _plain(usage) for name, usage in sorted(stages.items())},
        "usage_by_role": {name: _plain(usage) for name, usage in sorted(roles.items())},
        "token_summary": {name: tokens(usage) for name, usage in sorted(stages.items())},
    }


def _plain(usage: Usage) -> dict[str, Any]:
    return {
        name: getattr(usage, name)
        for name in ("calls", "tokens", "input", "cached", "output", "usd")
    }
