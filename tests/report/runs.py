"""Runs as they stand on disk, made by telling their events to a run directory: no model needed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from skillfit.models.protocol import Usage
from skillfit.rollout.outcome import Failure, Outcome
from skillfit.run.directory import JOURNAL, RunDirectory
from skillfit.run.events import (
    CandidateBuilt,
    CreditAssigned,
    Discarded,
    EvaluationFinished,
    Event,
    EventLog,
    GateDecided,
    ItemsRead,
    RolloutFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    StageStarted,
    StepFinished,
    Warned,
)
from skillfit.run.journal import Journal
from skillfit.tasks.item import Attempt, Score, Step

INITIAL = "# Triage\n\nSay which queue.\n"
ADDED = "- Mentions of refund mean billing."
BEST = INITIAL + ADDED + "\n"
ITEMS = [f"t{number:02d}" for number in range(8)]


def before_its_first_word(path: Path) -> None:
    """The directory of a run that was killed before it said anything."""
    path.mkdir()
    with closing(Journal(path / JOURNAL)) as journal:
        EventLog(path / JOURNAL, beside=journal)


class Told:
    """A run that is told event by event."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.directory = RunDirectory.open(path, {"test": 1})
        model = {"agent": {"id": "practice/agent"}, "optimizer": {"id": "practice/optimizer"}}
        started = RunStarted(
            run=self.directory.run_id,
            config={"model": model, "env": {"skill": "/somewhere/triage"}, **config},
            version="1.2.3",
            skill=INITIAL,
            skill_hash="old",
            splits={"train": 8, "selection": 8, "test": 0},
            total_epochs=1,
            steps_per_epoch=2,
        )
        self.say(started, StageStarted(epoch=0, step=0, stage="baseline", total=8))

    def say(self, *events: Event) -> None:
        for event in events:
            self.directory.events.emit(event)

    async def roll(
        self,
        series: str,
        skill: str,
        scores: Sequence[float | None],
        text: str = "billing",
        phase: str = "",
    ) -> None:
        for item, score in zip(ITEMS, scores, strict=True):
            key = f"rollout/{series}/{skill}/fp-{item}/0"
            failure = Failure("timeout", "no answer in time") if score is None else None
            outcome = Outcome(
                item,
                0,
                "scored" if failure is None else "failed",
                None if score is None else Score(score, feedback=f"graded {score}"),
                failure,
                Attempt(text, (Step("message", text),)),
                Usage(calls=1, input=10, output=2, usd=0.01),
            )

            async def effect(outcome: Outcome = outcome) -> Outcome:
                return outcome

            usage = outcome.usage
            await self.directory.journal.once(
                key,
                effect,
                returns=Outcome,
                stage="rollout",
                role="agent",
                model="practice/agent",
                usage=lambda o: o.usage,
            )
            self.say(
                RolloutFinished(
                    rollout=key,
                    phase=phase or series,
                    step=0,
                    item=item,
                    repeat=0,
                    skill_hash=skill,
                    status=outcome.status,
                    hard=score,
                    soft=score,
                    failure=f"{failure.kind}: {failure.message}" if failure else "",
                    calls=usage.calls,
                    tokens=usage.tokens,
                    usd=usage.usd,
                )
            )

    def measured(self, name: str, skill: str, hard: float, split: str = "selection") -> None:
        self.say(
            EvaluationFinished(
                name=name, split=split, skill_hash=skill, hard=hard, soft=hard, scored=8, planned=8
            )
        )

    def step(self, number: int, decision: str, skill: str, skill_hash: str) -> None:
        report = [{"op": "append", "target": "", "content": ADDED, "status": "applied_append"}]
        evidence = {
            "difference": 0.5,
            "interval": [0.1, 0.9],
            "probability": 0.97,
            "fixed": ITEMS[:4],
            "broken": [],
            "rollouts": 16,
        }
        name = f"step_{number:04d}"
        action = "accept_new_best" if decision == "accept" else decision
        self.say(
            CandidateBuilt(
                step=number,
                number=0,
                label="whole patch",
                skill=BEST,
                skill_hash="new",
                report=report,
            ),
            GateDecided(
                name=name, step=number, decision=decision, reason="because", evidence=evidence
            ),
            StepFinished(
                epoch=1,
                step=number,
                action=action,
                skill=skill,
                skill_hash=skill_hash,
                best_skill=skill,
                record={},
            ),
        )

    def close(self) -> None:
        self.directory.close()


async def improved(path: Path, *, skill: str = BEST, text: str = "billing") -> Path:
    """Better by half of the items, with a leak blocked, a failed rollout and a warning on the way."""
    run = Told(path)
    run.say(
        ItemsRead(
            items=[
                {"id": item, "split": "selection", "input": f"ticket {item}", "expected": "billing"}
                for item in ITEMS
            ]
        )
    )
    await run.roll("selection", "old", [0, 0, 0, 0, 1, 1, 1, None], phase="baseline")
    run.measured("baseline", "old", 3 / 7)
    await run.roll("selection", "new", [1, 1, 1, 1, 1, 1, 1, 0], phase="gate")
    run.step(1, "accept", skill, "new")
    run.measured("step_0001", "new", 7 / 8)
    run.step(2, "reject", skill, "new")
    run.say(
        Discarded(
            step=2,
            stage="leak_check",
            what="The answer to t03 is 42.",
            reason="carries gold answer of item t03",
        ),
        Warned(what="budget usd 80", message="80 % of the dollars are used."),
    )
    worth = {
        "step": 1,
        "label": "edit 1",
        "edit": {"op": "append", "target": "", "content": ADDED},
        "worth": 0.5,
    }
    kept = {"interval": [0.2, 0.8], "kept": True, "reason": "earns its place"}
    run.say(CreditAssigned(edits=[worth | kept], tokens_before=9, tokens_after=9, skill=skill))
    await run.roll("ship", "old", [0, 0, 0, 0, 1, 1, 1, 1], text)
    await run.roll("ship", "new", [1, 1, 1, 1, 1, 1, 1, 0], text)
    run.say(
        ShipTested(
            verdict="improved",
            difference=0.375,
            interval=[0.05, 0.7],
            probability=0.98,
            repeats=1,
            evidence={},
        )
    )
    run.say(
        RunFinished(
            finish_reason="improved",
            diagnosis="Better.",
            best_skill=skill,
            summary={"total_wall_time_s": 75.0},
        )
    )
    run.close()
    return path
