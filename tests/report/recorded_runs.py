"""Runs as they are on disk, written event by event without a model."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from skillfit.models.protocol import Usage
from skillfit.record.lists import CardKeeper
from skillfit.rollout.outcome import Failure, Outcome
from skillfit.run.events import (
    CandidateBuilt,
    Discarded,
    EditsSelected,
    EvaluationFinished,
    Event,
    EventLog,
    GateDecided,
    ItemsRead,
    PatchMerged,
    ReflectionFinished,
    RolloutFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    StageFinished,
    StageStarted,
    StepFinished,
    Warned,
)
from skillfit.run.journal import Journal
from skillfit.run.records import (
    EditEffect,
    Evidence,
    FailureNote,
    ItemRecord,
    PatchRecord,
    ProposalRecord,
    RecordedConfig,
    ScoreEstimate,
    TypeScore,
    UsageTotals,
)
from skillfit.run.store import JOURNAL, RunLock, dump
from skillfit.skill import Edit, EditResult
from skillfit.tasks.item import Attempt, Score, TrajectoryStep
from tests.support.records import run_summary, step_record

INITIAL = "# Triage\n\nSay which queue.\n"
ADDED = "- Mentions of refund mean billing."
BEST = INITIAL + "\n" + ADDED + "\n"
ITEMS = [f"t{number:02d}" for number in range(8)]
TYPES = ("billing", "delivery")
CONFIG: dict[str, Any] = {
    "model": {"agent": {"id": "practice/agent"}, "optimizer": {"id": "practice/optimizer"}},
    "env": {"skill": "/somewhere/triage", "tasks": "/somewhere/tasks.jsonl", "grader": "exact"},
    "evaluation": {"gate_metric": "hard"},
    "budget": {"usd": 5.0},
}
SUMMARY: dict[str, Any] = {
    "version": "1.2.3",
    "total_steps": 2,
    "steps_done": 2,
    "total_rejects": 1,
    "edits_blocked": 1,
}


def before_first_event(path: Path) -> None:
    """The directory of a run that was killed before it emitted anything."""
    path.mkdir()
    with closing(Journal(path / JOURNAL)) as journal:
        EventLog(path / JOURNAL, beside=journal)


class WrittenRun:
    """A run directory that a test fills. It holds the run's lock until it is closed."""

    def __init__(self, path: Path, config: dict[str, Any] | None = None, **started: Any) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = RunLock(path)
        self.journal = Journal(path / JOURNAL)
        self.events = EventLog(path / JOURNAL, beside=self.journal)
        self.journal.set_fact("run", "abc123")
        self.config = CONFIG | (config or {})
        given: dict[str, Any] = {
            "run": "abc123",
            "config": RecordedConfig(self.config),
            "version": "1.2.3",
            "skill": INITIAL,
            "skill_hash": "old",
            "splits": {"train": 8, "selection": 8, "test": 0},
            "total_epochs": 1,
            "steps_per_epoch": 2,
        }
        self.emit(RunStarted(**(given | started)))

    def emit(self, *events: Event) -> None:
        for event in events:
            self.events.emit(event)

    def items(self, ids: Sequence[str] = ITEMS, **fields: Any) -> None:
        self.emit(
            ItemsRead(
                items=[
                    ItemRecord(
                        id=item,
                        split="selection",
                        type=TYPES[at % 2],
                        input=f"ticket {item}",
                        expected="billing",
                        **fields,
                    )
                    for at, item in enumerate(ids)
                ]
            )
        )

    async def roll(
        self,
        series: str,
        skill: str,
        scores: Sequence[float | None],
        text: str = "billing",
        phase: str = "",
        step: int = 0,
        ids: Sequence[str] = ITEMS,
        steps: tuple[TrajectoryStep, ...] = (),
    ) -> None:
        """One rollout per score: None is one that failed."""
        for item, score in zip(ids, scores, strict=True):
            key = f"rollout/{series}/{skill}/fp-{item}/0"
            failure = Failure("timeout", "no answer in time") if score is None else None
            outcome = Outcome(
                item,
                0,
                "scored" if failure is None else "failed",
                None if score is None else Score(score, feedback=f"graded {score}"),
                failure,
                Attempt(text, steps or (TrajectoryStep("message", text),)),
                Usage(calls=1, input=10, output=2, usd=0.25),
            )

            async def effect(outcome: Outcome = outcome) -> Outcome:
                return outcome

            await self.journal.once(
                key,
                effect,
                returns=Outcome,
                stage="rollout",
                role="agent",
                model="practice/agent",
                usage=lambda outcome: outcome.usage,
            )
            self.emit(
                RolloutFinished(
                    rollout=key,
                    phase=phase or series,
                    step=step,
                    item=item,
                    repeat=0,
                    skill_hash=skill,
                    status=outcome.status,
                    hard=score,
                    soft=score,
                    failure=f"{failure.kind}: {failure.message}" if failure else "",
                    calls=1,
                    tokens=12,
                    usd=0.25,
                    answer=text[:200],
                    feedback=f"graded {score}",
                )
            )

    def measured(self, name: str, skill: str, hard: float, split: str = "selection") -> None:
        self.emit(
            EvaluationFinished(
                name=name,
                split=split,
                skill_hash=skill,
                hard=hard,
                soft=hard,
                scored=8,
                planned=8,
                by_type={kind: TypeScore(4, hard, hard) for kind in TYPES},
            )
        )

    def step(self, number: int, decision: str, skill: str, skill_hash: str) -> None:
        """A step of the strict gate with one edit."""
        edit = Edit("append", "", ADDED)
        action = "accept_new_best" if decision == "accept" else decision
        proposal = ProposalRecord("failure", ("t00", "t01"), edit)
        patch = PatchRecord(
            (proposal,),
            "failure",
            ("t00", "t01"),
            "Refunds were sent to the wrong queue.",
            (FailureNote("wrong queue", "refund tickets", 2, ("t00", "t01")),),
        )
        self.emit(
            StageStarted(epoch=1, step=number, stage="reflect"),
            ReflectionFinished(
                step=number,
                group="minibatch_fail_000",
                source="failure",
                items=["t00", "t01"],
                patch=patch,
            ),
            PatchMerged(step=number, patch=replace(patch, merge_level=1)),
            EditsSelected(step=number, edit_budget=4, edits=[proposal]),
            StageFinished(epoch=1, step=number, stage="reflect", seconds=1.0),
            CandidateBuilt(
                step=number,
                label="whole patch",
                skill=BEST,
                skill_hash="new",
                report=[EditResult(edit, "applied_append")],
            ),
            GateDecided(
                name=f"step_{number:04d}",
                step=number,
                decision=decision,
                reason="because",
                evidence=Evidence(
                    fixed=tuple(ITEMS[:4]),
                    difference=0.5,
                    interval=(0.1, 0.9),
                    probability=0.97,
                    rollouts=16,
                    coverage=1.0,
                ),
            ),
            StepFinished(
                epoch=1,
                step=number,
                action=action,
                skill=skill,
                skill_hash=skill_hash,
                best_skill=skill,
                record=step_record(number, action=action, reason="because"),
            ),
        )

    def ship(self, verdict: str, difference: float, interval: tuple[float, float]) -> None:
        self.emit(
            ShipTested(
                verdict=verdict,
                reason="the interval includes 0" if verdict == "inconclusive" else "",
                difference=difference,
                interval=interval,
                p_value=0.02,
                pairs=8,
                skill_hash="new",
                evidence=Evidence(),
            )
        )

    def finish(
        self,
        finish_reason: str,
        best: str,
        found: str = "",
        edits: list[str] | None = None,
        **fields: Any,
    ) -> None:
        self.emit(
            RunFinished(
                finish_reason=finish_reason,
                diagnosis="Why.",
                best_skill=best,
                unproven_skill=found,
                edits=edits,
                summary=run_summary(**(SUMMARY | fields), finish_reason=finish_reason),
            )
        )

    def close(self) -> None:
        self.journal.close()
        self._lock.release()


async def improved(path: Path, *, skill: str = BEST, text: str = "billing") -> Path:
    """A strict run that became better on half of the items, with a leak blocked, a failed rollout
    and a warning on the way.
    """
    run = WrittenRun(path)
    run.items()
    run.emit(StageStarted(epoch=0, step=0, stage="baseline", total=8))
    await run.roll("selection", "old", [0, 0, 0, 0, 1, 1, 1, None], phase="baseline")
    run.measured("baseline", "old", 3 / 7)
    run.emit(StageFinished(epoch=0, step=0, stage="baseline", seconds=1.0))
    await run.roll("selection", "new", [1, 1, 1, 1, 1, 1, 1, 0], phase="gate", step=1)
    run.step(1, "accept", skill, "new")
    run.measured("step_0001", "new", 7 / 8)
    run.step(2, "reject", skill, "new")
    run.emit(
        Discarded(
            step=2,
            stage="leak_check",
            what="The answer to t03 is 42.",
            reason="carries gold answer of item t03",
        ),
        Warned(what="budget usd 80", message="80 % of the dollars are used."),
    )
    await run.roll("ship", "old", [0, 0, 0, 0, 1, 1, 1, 1], text)
    await run.roll("ship", "new", [1, 1, 1, 1, 1, 1, 1, 0], text)
    run.ship("improved", 0.375, (0.05, 0.7))
    run.finish("improved", skill, total_wall_time_s=75.0)
    run.close()
    return path


def _effects(step: int, edits: Sequence[Edit], draw: random.Random) -> list[EditEffect]:
    """The pool after a step: edits enter two per step, are measured more and more precisely, and
    are promoted or dropped after four steps.
    """
    effects = []
    for at, edit in enumerate(edits[: 2 * step]):
        born = at // 2 + 1
        age = step - born
        if age > 6:
            continue
        truth = (at * 7919 % 13 - 4) / 60
        half = 0.16 / (1 + age)
        mean = truth + draw.gauss(0, half / 3)
        status = "pending" if age < 4 else "promoted" if mean > 0 else "dropped"
        reasons = {
            "pending": "",
            "promoted": "z = 1.8 after 120 rollouts",
            "dropped": "z = −1.2 after 120 rollouts",
        }
        effects.append(
            EditEffect(
                id=f"s{born:04d}e{at % 2 + 1:02d}",
                step=born,
                edit=edit,
                status=status,
                mean=mean,
                low=mean - half,
                high=mean + half,
                probability=0.5 + max(-0.49, min(0.49, mean / half / 2)),
                rollouts=20 + 20 * age,
                reason=reasons[status],
                items=("ticket-0000", "ticket-0001"),
            )
        )
    return effects


def edit_texts(count: int) -> list[Edit]:
    nouns = ("refund", "parcel", "login", "invoice", "address", "voucher", "password", "return")
    queues = ("billing", "delivery", "account", "sales")
    return [
        Edit(
            "append",
            "",
            f"- Mentions of {nouns[at % len(nouns)]} ({at}) mean {queues[at % len(queues)]}.",
        )
        for at in range(count)
    ]


class _Bulk:
    """Writes many events and effects in one transaction."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(path / JOURNAL)
        self.events = EventLog(path / JOURNAL, beside=self.journal)
        self.journal.set_fact("run", "big123")
        self.at = time.time() - 86_400
        self.rows = sqlite3.connect(path / JOURNAL, isolation_level=None)
        self.rows.execute("BEGIN")

    def emit(self, event: Event, seconds: float = 0.01) -> None:
        self.at += seconds
        row = (event.key, type(event).__name__, dump(type(event), event).decode(), self.at)
        self.rows.execute("INSERT INTO events (key, kind, data, at) VALUES (?,?,?,?)", row)

    def effect(self, key: str, outcome: Outcome) -> None:
        row = (
            key,
            "rollout",
            "agent",
            "practice/agent",
            dump(Outcome, outcome),
            dump(Usage, outcome.usage),
            self.at,
            1.0,
        )
        columns = "key, stage, role, model, value, usage, at, seconds"
        marks = ",".join("?" * len(row))
        self.rows.execute(f"INSERT INTO effects ({columns}) VALUES ({marks})", row)

    def close(self) -> None:
        self.rows.execute("COMMIT")
        self.rows.close()
        CardKeeper(self.journal, self.events).save()
        self.journal.close()


def screening_run(
    path: Path,
    *,
    steps: int = 12,
    items: int = 40,
    rollouts: int = 80,
    finish: str = "improved",
    journaled: bool = True,
    seed: int = 1,
) -> Path:
    """A run with a pool of edits: `rollouts` per step on `items` items, deterministic.

    `finish`: a finish reason, or "" for a run that was stopped.
    """
    draw = random.Random(seed)
    bulk = _Bulk(path)
    ids = [f"ticket-{number:04d}" for number in range(items)]
    bulk.emit(
        RunStarted(
            run="big123",
            config=RecordedConfig(CONFIG),
            version="1.2.3",
            skill=INITIAL,
            skill_hash="old",
            splits={"train": items, "selection": items, "test": 0},
            total_epochs=4,
            steps_per_epoch=max(1, steps // 4),
        )
    )
    bulk.emit(
        ItemsRead(
            items=[
                ItemRecord(
                    id=item,
                    split="selection",
                    type=TYPES[at % 2],
                    input=f"My {item} has not arrived and I want to know why.",
                    expected=TYPES[at % 2],
                )
                for at, item in enumerate(ids)
            ]
        )
    )
    edits = edit_texts(2 * steps)
    skill, score = INITIAL, 0.42
    _measure(bulk, "baseline", score)
    for step in range(1, steps + 1):
        effects = _effects(step, edits, draw)
        for stage in ("rollout", "gate"):
            bulk.emit(StageStarted(epoch=1, step=step, stage=stage, total=rollouts // 2))
            for row in _rows(draw, ids, stage, step, rollouts // 2, effects, score):
                bulk.emit(row)
                if journaled:
                    bulk.effect(row.rollout, _outcome(row))
            bulk.emit(StageFinished(epoch=1, step=step, stage=stage, seconds=12.5))
        for event in _reflections(step, edits, ids):
            bulk.emit(event)
        score = min(0.9, score + 0.35 / steps + draw.gauss(0, 0.008))
        promoted = [effect.edit.content for effect in effects if effect.status == "promoted"]
        for text in promoted:
            if text not in skill:
                skill = f"{skill.rstrip()}\n{text}\n"
        _finish_step(bulk, step, skill, score, effects)
    if finish:
        _finish(bulk, draw, ids, finish, skill)
    bulk.close()
    return path


def _measure(bulk: _Bulk, name: str, score: float) -> None:
    bulk.emit(
        EvaluationFinished(
            name=name,
            split="selection",
            skill_hash=name,
            hard=score,
            soft=score,
            scored=40,
            planned=40,
            by_type={kind: TypeScore(20, score, score) for kind in TYPES},
            estimate=ScoreEstimate(score, max(0, score - 0.08), score + 0.08, name != "baseline"),
        )
    )


def _rows(
    draw: random.Random,
    ids: Sequence[str],
    stage: str,
    step: int,
    count: int,
    effects: Sequence[EditEffect],
    score: float,
) -> Iterator[RolloutFinished]:
    carried = [effect.id for effect in effects]
    for number in range(count):
        arm = draw.randrange(8)
        failed = draw.random() < 0.004
        hard = None if failed else float(draw.random() < score)
        item = ids[number % len(ids)]
        yield RolloutFinished(
            rollout=f"rollout/selection/arm{step:04d}{arm}/{stage}-{item}-{number}/0",
            phase=stage,
            step=step,
            item=item,
            repeat=0,
            skill_hash=f"arm{step:04d}{arm}",
            status="failed" if failed else "scored",
            hard=hard,
            soft=hard,
            failure="timeout: no answer in 120 s" if failed else "",
            seconds=2.5,
            calls=1,
            tokens=900,
            usd=0.0004,
            edits=[name for at, name in enumerate(carried) if (arm >> (at % 3)) & 1],
            answer="billing",
            feedback="" if hard else "expected delivery",
        )


def _outcome(row: RolloutFinished) -> Outcome:
    text = f"The ticket {row.item} is about billing. " * 12
    return Outcome(
        row.item,
        row.repeat,
        "failed" if row.failure else "scored",
        None if row.hard is None else Score(row.hard, feedback=row.feedback),
        Failure("timeout", "no answer in 120 s") if row.failure else None,
        Attempt("billing", (TrajectoryStep("message", text), TrajectoryStep("message", "billing"))),
        Usage(calls=1, input=800, output=100, usd=0.0004),
        2.5,
    )


def _reflections(step: int, edits: Sequence[Edit], ids: Sequence[str]) -> Iterator[Event]:
    proposals = tuple(
        ProposalRecord("failure", (ids[0], ids[1]), edit) for edit in edits[2 * step - 2 : 2 * step]
    )
    patch = PatchRecord(
        proposals,
        "failure",
        (ids[0], ids[1]),
        "Several tickets were sent to the wrong queue because the skill names no queue for them.",
        (FailureNote("wrong queue", "the ticket names no product", 3, (ids[0],)),),
    )
    for group in range(4):
        yield ReflectionFinished(
            step=step,
            group=f"minibatch_fail_{group:03d}",
            source="failure",
            items=[ids[0], ids[1]],
            patch=patch,
        )
    yield PatchMerged(step=step, patch=patch)
    yield EditsSelected(step=step, edit_budget=16, edits=list(proposals))
    if step % 3 == 0:
        yield Discarded(
            step=step,
            stage="leak_check",
            what=f"- The answer to {ids[0]} is billing.",
            reason=f"carries gold answer of item {ids[0]}",
            evidence="billing",
        )


def _finish_step(
    bulk: _Bulk, step: int, skill: str, score: float, effects: list[EditEffect]
) -> None:
    accepted = any(effect.status == "promoted" for effect in effects)
    action = "accept_new_best" if accepted else "inconclusive"
    promoted = sum(effect.status == "promoted" for effect in effects)
    reason = f"{promoted} promoted, {len(effects) - promoted} others in the pool"
    bulk.emit(
        GateDecided(
            name=f"step_{step:04d}",
            step=step,
            decision="accept" if accepted else "inconclusive",
            reason=reason,
            evidence=Evidence(
                fixed=("ticket-0001", "ticket-0002"),
                broken=("ticket-0003",),
                difference=0.02,
                interval=(-0.01, 0.05),
                probability=0.9,
                rollouts=80,
                coverage=0.99,
            ),
            score=ScoreEstimate(score, score - 0.06, score + 0.06, True),
            effects=effects,
        )
    )
    bulk.emit(
        EvaluationFinished(
            name=f"step_{step:04d}",
            split="selection",
            skill_hash=f"skill{step:04d}",
            hard=score,
            soft=score,
            scored=40,
            planned=40,
            estimate=ScoreEstimate(score, score - 0.06, score + 0.06, True),
        )
    )
    bulk.emit(
        StepFinished(
            epoch=1,
            step=step,
            action=action,
            skill=skill,
            skill_hash=f"skill{step:04d}",
            best_skill=skill,
            record=step_record(step, action=action, reason=reason),
        ),
        seconds=30,
    )


def _finish(bulk: _Bulk, draw: random.Random, ids: Sequence[str], finish: str, skill: str) -> None:
    better = finish == "improved"
    bulk.emit(StageStarted(epoch=0, step=0, stage="ship", total=4 * len(ids)))
    for name, chance in (("old", 0.4), ("shipped", 0.7 if better else 0.42)):
        for repeat in range(2):
            for item in ids:
                hard = float(draw.random() < chance)
                row = RolloutFinished(
                    rollout=f"rollout/ship/{name}/{item}/{repeat}",
                    phase="ship",
                    step=0,
                    item=item,
                    repeat=repeat,
                    skill_hash=name,
                    status="scored",
                    hard=hard,
                    soft=hard,
                    calls=1,
                    tokens=900,
                    usd=0.0004,
                    answer="billing",
                )
                bulk.emit(row)
                bulk.effect(row.rollout, _outcome(row))
    bulk.emit(StageFinished(epoch=0, step=0, stage="ship", seconds=40.0))
    verdict = finish.replace("_", " ")
    bulk.emit(
        ShipTested(
            verdict=verdict,
            reason="the interval includes 0",
            difference=0.3 if better else 0.02,
            interval=(0.18, 0.41) if better else (-0.06, 0.1),
            p_value=0.001,
            pairs=2 * len(ids),
            skill_hash="shipped",
            evidence=Evidence(),
        )
    )
    bulk.emit(
        RunFinished(
            finish_reason=finish,
            diagnosis="The edits about refunds and parcels carry the gain."
            if better
            else "The edits that were tried have effects around 0.",
            best_skill=skill if better else INITIAL,
            unproven_skill="" if better else skill,
            summary=run_summary(
                **SUMMARY,
                finish_reason=finish,
                baseline_selection_score=0.42,
                best_selection_score=0.71,
                unproven=not better,
                usage=UsageTotals(calls=1000, tokens=900_000, usd=0.4),
                total_wall_time_s=640.0,
            ),
        )
    )
