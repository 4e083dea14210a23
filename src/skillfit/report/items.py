"""Rollouts as they were told, by series and skill, and the items they are about: initial skill against best."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from skillfit.gate import GateSettings
from skillfit.report.story import Cost, ItemTold, Notice, Side
from skillfit.run.events import RolloutFinished

_PURPOSES = {"rollout": "training"}  # of rollouts, where the stage's name would say little


class Rows:
    """Every rollout once, though a shared one is told to each stage that uses it."""

    def __init__(self) -> None:
        self._settings = GateSettings()
        self._rows: defaultdict[tuple[str, str], dict[str, RolloutFinished]] = defaultdict(dict)
        self._phase: dict[str, RolloutFinished] = {}

    def weigh(self, metric: Any, mixed_weight: float) -> None:
        self._settings = GateSettings(metric=metric, mixed_weight=mixed_weight)

    def value(self, hard: float, soft: float | None) -> float:
        return self._settings.value(hard, hard if soft is None else soft)

    def add(self, row: RolloutFinished) -> None:
        series = row.rollout.removeprefix("rollout/").partition(f"/{row.skill_hash}")[0]
        rows = self._rows[series, row.skill_hash]
        rows.pop(row.rollout, None)  # the latest word comes last
        rows[row.rollout] = row
        first = self._phase.get(row.rollout)
        if first is None or first.status != "scored":
            self._phase[row.rollout] = row

    def skills(self, series: str) -> list[str]:
        return [skill for name, skill in self._rows if name == series]

    def of(self, series: str, skill: str) -> list[RolloutFinished]:
        return list(self._rows.get((series, skill), {}).values())

    def means(self, series: str, skill: str, last: int = 0) -> dict[str, float]:
        """Item -> mean score; of the `last` rollouts only, for a skill that was measured anew."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for row in self.of(series, skill)[-last:]:
            if row.hard is not None:
                values[row.item].append(self.value(row.hard, row.soft))
        return {item: sum(scores) / len(scores) for item, scores in values.items()}

    def costs(self, role: str, model: str) -> list[Cost]:
        """What the rollouts cost, by what they were first made for."""
        sums: dict[str, Cost] = {}
        for row in self._phase.values():
            stage = f"rollouts: {_PURPOSES.get(row.phase, row.phase)}"
            sums[stage] = sums.get(stage, Cost(stage, role, model)).plus(row)
        return [cost for cost in sums.values() if cost.calls]

    def failed(self) -> tuple[Notice, ...]:
        """Failed rollouts by kind, with the words of the first."""
        failures = [row.failure.partition(": ") for row in self._phase.values() if row.failure]
        first = {kind: message for kind, _, message in reversed(failures)}
        counts = Counter(kind for kind, _, _ in failures)
        total = len(self._phase)
        return tuple(
            Notice("failed", kind, f"{count} of {total} rollouts failed and entered no score: {first[kind]}")
            for kind, count in counts.most_common()
        )


def compare(rows: Rows, initial: str, best: str, listed: Mapping[str, Mapping[str, Any]]) -> tuple[ItemTold, ...]:
    """Items of the selection split (on fresh rollouts where there were some) and of the test split under both skills."""
    told = []
    for split, serieses in (("selection", ("ship", "selection")), ("test", ("test",))):
        series = next((name for name in serieses if rows.of(name, initial) and rows.of(name, best)), None)
        if series is None:
            continue
        before, after = _sides(rows, series, initial), _sides(rows, series, best)
        for item in dict.fromkeys([*before, *after]):
            known = {name: str(listed.get(item, {}).get(name, "")) for name in ("type", "input", "expected")}
            told.append(ItemTold(item, split, before.get(item, Side()), after.get(item, Side()), **known))
    return tuple(told)


def _sides(rows: Rows, series: str, skill: str) -> dict[str, Side]:
    grouped: defaultdict[str, list[RolloutFinished]] = defaultdict(list)
    for row in sorted(rows.of(series, skill), key=lambda row: row.repeat):
        grouped[row.item].append(row)
    return {item: _side(rows, found) for item, found in grouped.items()}


def _side(rows: Rows, found: list[RolloutFinished]) -> Side:
    scored = [(row, rows.value(row.hard, row.soft)) for row in found if row.hard is not None]
    side = Side(tuple(score for _, score in scored), tuple(row.failure for row in found if row.failure))
    typical = min(scored, key=lambda pair: abs(pair[1] - float(side.solved)), default=(found[0], 0.0))[0]
    return Side(side.scores, side.failures, typical.rollout)
