"""What a run recorded about its best skill, small enough to keep in a repository, and the
comparison `verify` makes with it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from skillfit.api import Run
from skillfit.cli.train import stored
from skillfit.errors import InputError
from skillfit.gate.samples import mean, sign_flip_p
from skillfit.rollout.outcome import Outcome
from skillfit.run.directory import RunDirectory, RunView
from skillfit.run.events import RolloutFinished
from skillfit.skill.document import write_whole


@dataclass(frozen=True, slots=True)
class Record:
    config: dict[str, Any]
    skill: str  # the best skill's document
    means: dict[str, float]  # selection item -> mean score, from the freshest rollouts there are

    @classmethod
    def of_run(cls, path: Path) -> Record:
        run = Run.open(path)
        if run.finished is None:
            raise InputError(
                f"The run in {path} has not finished.", hint=f"Go on with: skillfit resume {path}"
            )
        best = stored(path).skill.with_document(run.best_skill).hash
        second = run.config["evaluation"].get("ship_grader") is not None
        scores: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        with closing(RunDirectory.read(path)) as view:
            for event in (entry.event for entry in view.events.read()):
                if (
                    isinstance(event, RolloutFinished)
                    and event.skill_hash == best
                    and event.hard is not None
                ):
                    hard = (
                        _by_trained(view, event) if event.phase == "ship" and second else event.hard
                    )
                    if hard is not None:
                        scores[event.phase][event.item].append(hard)
        measured = (
            scores.get("ship")
            or scores.get("pruned")
            or scores.get("final")
            or scores.get("gate")
            or scores.get("baseline")
        )
        if not measured:
            raise InputError(
                f"The run in {path} has no measurement of its best skill on the selection split."
            )
        return cls(
            run.config,
            run.best_skill.text,
            {item: mean(values) for item, values in sorted(measured.items())},
        )

    @classmethod
    def read(cls, path: Path) -> Record:
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{path} is neither a run nor a record of one.",
                hint="Write one: skillfit verify RUN --save FILE",
            ) from error

    def write(self, path: Path) -> None:
        write_whole(path, (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode())


def _by_trained(view: RunView, event: RolloutFinished) -> float | None:
    """What the grader trained on, which `verify` grades with, gave a rollout that the ship grader
    scored.
    """
    outcome = view.journal.get(event.rollout, Outcome)
    return outcome.score.trained[0] if outcome and outcome.score and outcome.score.trained else None


@dataclass(frozen=True, slots=True)
class RecordComparison:
    recorded: float
    measured: float
    p_value: float  # that a drop this big is luck, one-sided
    items: int


def compare(before: Mapping[str, float], now: Mapping[str, float]) -> RecordComparison:
    """Paired by item. Items that only one side has do not count; without any in common there is
    nothing to say.
    """
    shared = [item for item in before if item in now]
    if not shared:
        raise InputError(
            "No item of the record was measured.", hint="The tasks have changed since: train again."
        )
    drops = [before[item] - now[item] for item in shared]
    old, new = mean([before[item] for item in shared]), mean([now[item] for item in shared])
    return RecordComparison(old, new, sign_flip_p(drops) if sum(drops) > 0 else 1.0, len(shared))
