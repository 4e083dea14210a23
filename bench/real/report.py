"""The tables of the results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from bench.real.run import Job, Run

_ROLES = ("helpful", "overlapping", "useless", "wrong")


def markdown(runs: Sequence[Run]) -> str:
    """Per world and optimizer: the true scores, and what the runs were like."""
    parts = []
    for (world, optimizer), found in _grouped(runs, lambda job: (job.world, job.optimizer)):
        parts += [f"## World {world}, {optimizer} optimizer", _scores(found), _details(found)]
    return "\n\n".join(parts)


def aa_table(runs: Sequence[Run]) -> str:
    lines = ["| rollouts | runs | improved | share | refused |", "|---" * 5 + "|"]
    for budget, found in _grouped(runs, lambda job: job.budget):
        improved = sum(run.verdict == "improved" for run in found)
        refused = sum(run.verdict == "refused" for run in found)
        share = f"{improved / len(found):.1%}"
        lines.append(f"| {budget} | {len(found)} | {improved} | {share} | {refused} |")
    return "\n".join(lines)


def _scores(runs: Sequence[Run]) -> str:
    budgets = list(dict.fromkeys(run.job.budget for run in runs))
    start = statistics.mean(run.start for run in runs)
    lines = [
        f"True score of the skill handed back (initial skill: {start:.3f}), by rollouts in all.",
        "",
        "| system | " + " | ".join(map(str, budgets)) + " |",
        "|---" * (1 + len(budgets)) + "|",
    ]
    for system, found in _grouped(runs, lambda job: job.system):
        of_budget = dict(_grouped(found, lambda job: job.budget))
        cells = [_mean([run.score for run in of_budget[budget]]) for budget in budgets]
        lines.append(f"| {system} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _details(runs: Sequence[Run]) -> str:
    heads = ["system", "budget", "runs", "improved", "refused", "rollouts", "optimizer calls"]
    heads += ["CPU s", *(f"{role} lines" for role in _ROLES)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (system, budget), found in _grouped(runs, lambda job: (job.system, job.budget)):
        cells = [
            system,
            str(budget),
            str(len(found)),
            _share(found, "improved"),
            _share(found, "refused"),
            f"{statistics.mean(run.rollouts for run in found):.0f}",
            f"{statistics.mean(run.optimizer_calls for run in found):.0f}",
            f"{statistics.mean(run.seconds for run in found):.1f}",
            *(f"{statistics.mean(run.kept.get(role, 0) for run in found):.1f}" for role in _ROLES),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(runs: Sequence[Run], verdict: str) -> str:
    if not runs[0].verdict:
        return "–"
    return f"{sum(run.verdict == verdict for run in runs) / len(runs):.0%}"


def _mean(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ± {error:.3f}"


def _grouped(
    runs: Iterable[Run], key: Callable[[Job], object]
) -> Iterable[tuple[object, list[Run]]]:
    groups: dict[object, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run.job), []).append(run)
    return groups.items()
