"""What a run decided, in the terms both systems share."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.parity import world
from bench.parity.scenario import VARIANTS, Scenario


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class StepRow:
    step: int
    action: str
    edit_budget: int | None
    candidate: str | None  # the candidate skill's hash; for variants, of the text without spacing
    score: float | None  # under the gate's metric
    facts: tuple[str, ...] = ()  # where a defect of SkillOpt may show (see compare.py)


@dataclass(frozen=True, slots=True)
class Outcome:
    steps: tuple[StepRow, ...]
    final: str
    best: str
    memory: tuple[str, ...]  # the slow update's text of each epoch
    advice: tuple[str, ...]  # the meta skill's
    test: tuple[float | None, ...]  # hard scores of the initial, best and final skill
    facts: tuple[str, ...] = ()  # as of a step, about the end of the run

    def as_dict(self) -> dict[str, Any]:
        """For the record. A final skill that is also the best is written once."""
        plain = asdict(self)
        plain["steps"] = [list(step.values()) for step in plain["steps"]]
        return {**plain, "best": None if self.best == self.final else self.best}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Outcome:
        steps = tuple(
            replace(StepRow(*values), facts=tuple(values[-1])) for values in plain["steps"]
        )
        lists = {name: tuple(plain[name]) for name in ("memory", "advice", "test", "facts")}
        best = plain["final"] if plain["best"] is None else plain["best"]
        return cls(steps=steps, final=plain["final"], best=best, **lists)


def read_outcome(scenario: Scenario, run: Path, final: str) -> Outcome:
    """What a finished run decided, from the files that both systems write. `final`: the text of the
    skill it ended with, which they keep in different places.
    """
    rows = []
    for record in read_json(run / "history.json"):
        candidate = run / "steps" / f"step_{record['step']:04d}" / "candidate_skill.md"
        rows.append(
            StepRow(
                step=record["step"],
                action=record["action"],
                edit_budget=record.get("edit_budget"),
                candidate=sha(_compared(candidate.read_text(), scenario))
                if candidate.exists()
                else None,
                score=record.get("candidate_gate_score"),
            )
        )
    summary = read_json(run / "summary.json")
    return Outcome(
        steps=tuple(rows),
        final=_compared(final, scenario),
        best=_compared((run / "best_skill.md").read_text(), scenario),
        memory=_texts(run / "slow_update", "slow_result.json", "slow_update_content"),
        advice=_texts(run / "meta_skill", "meta_skill_result.json", "meta_skill_content"),
        test=tuple(
            summary[name] for name in ("baseline_test_hard", "test_hard", "final_test_hard")
        ),
    )


def _compared(text: str, scenario: Scenario) -> str:
    """The text of a skill as far as the two systems must agree on it."""
    return world.without_spacing(text) if scenario.extra in VARIANTS else text


def _texts(folder: Path, file: str, field: str) -> tuple[str, ...]:
    return tuple(
        str(read_json(found).get(field) or "") for found in sorted(folder.glob(f"epoch_*/{file}"))
    )


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
