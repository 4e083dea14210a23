"""summary.json: the fields users of the reference system know, and ours. Usage counts over all resumes of the run."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from skillfit import __version__
from skillfit.models import Usage
from skillfit.rollout.outcome import Tally
from skillfit.train.parts import Parts
from skillfit.train.progress import Progress

if TYPE_CHECKING:
    from skillfit.train.finish import Ending

_ACCEPTS = ("accept", "accept_new_best", "force_accept")


def summarise(parts: Parts, progress: Progress, ending: Ending, finish_reason: str, diagnosis: str) -> dict[str, Any]:
    tests = ending.tests or {}
    baseline, best, final = (tests.get(name) for name in ("baseline", "best", "final"))
    actions = [record["action"] for record in progress.records]
    ship = ending.ship
    return {
        "version": f"skillfit-{__version__}",
        "finish_reason": finish_reason,
        "diagnosis": diagnosis,
        "config": parts.config.model_dump(mode="json"),
        "baseline_selection_hard": progress.baseline.hard if progress.baseline else None,
        "baseline_selection_score": progress.baseline_score,
        "best_selection_hard": parts.gate.tally(parts.gate.best).hard if progress.baseline else None,
        "best_selection_score": parts.gate.best_score if progress.baseline else None,
        "final_selection_hard": ending.final.hard if ending.final else None,
        "final_selection_soft": ending.final.soft if ending.final else None,
        "best_step": progress.best_step,
        "current_origin": progress.origin,
        "best_origin": progress.best_origin,
        "total_steps": parts.plan.total_steps,
        "steps_done": len(progress.records),
        "total_accepts": sum(action in _ACCEPTS for action in actions),
        "total_rejects": sum(action in ("reject", "inconclusive") for action in actions),
        "total_skips": sum(action.startswith("skip") for action in actions),
        "edits_blocked": parts.screen.blocked,
        "epoch_stats": _epochs(progress),
        **_tested("baseline_test", baseline),
        **_tested("test", best),
        **_tested("final_test", final),
        "test_delta_hard": best.hard - baseline.hard if best and baseline else None,
        "final_test_delta_hard": final.hard - baseline.hard if final and baseline else None,
        "ship": {"verdict": ship.verdict, "difference": ship.difference, "interval": list(ship.interval), "gap": ship.gap}
        if ship
        else None,
        "skill_tokens": {"initial": parts.initial.tokens, "best": ending.best.tokens},
        "coverage": parts.counts.scored / parts.counts.planned if parts.counts.planned else None,
        "rollouts": {"planned": parts.counts.planned, "scored": parts.counts.scored},
        **_usage(parts),
        "total_wall_time_s": round(parts.budget.minutes * 60, 1),
    }


def _tested(name: str, tally: Tally | None) -> dict[str, Any]:
    return {f"{name}_hard": tally.hard if tally else None, f"{name}_soft": tally.soft if tally else None}


def _epochs(progress: Progress) -> list[dict[str, Any]]:
    grouped: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in progress.records:
        grouped[record["epoch"]].append(record)
    return [
        {
            "epoch": epoch,
            "steps": len(records),
            "accepts": sum(record["action"] in _ACCEPTS for record in records),
            "rejects": sum(record["action"] in ("reject", "inconclusive") for record in records),
            "skips": sum(record["action"].startswith("skip") for record in records),
            "best_score_at_epoch_end": records[-1]["best_score"],
            "current_score_at_epoch_end": records[-1]["current_score"],
        }
        for epoch, records in sorted(grouped.items())
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
        "usage": plain(total),
        "usage_by_stage": {name: plain(usage) for name, usage in sorted(stages.items())},
        "usage_by_role": {name: plain(usage) for name, usage in sorted(roles.items())},
        "token_summary": {
            name: {"calls": usage.calls, "prompt_tokens": usage.input, "completion_tokens": usage.output}
            for name, usage in sorted(stages.items())
        },
    }


def plain(usage: Usage) -> dict[str, Any]:
    return {
        "calls": usage.calls,
        "tokens": usage.tokens,
        "input": usage.input,
        "cached": usage.cached,
        "output": usage.output,
        "usd": usage.usd,
    }
