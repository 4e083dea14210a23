"""From events to the story: one reduction, fed event by event, so that a live page and a report of a finished run agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import reduce, singledispatchmethod
from pathlib import Path
from typing import Any

from skillfit.gate.statistics import interval
from skillfit.models.providers.handoff import pending
from skillfit.report.items import Rows, compare
from skillfit.report.story import Cost, Decided, EditTold, Notice, Point, RunStory, State
from skillfit.report.verdict import sentence
from skillfit.rollout.outcome import weighted_values
from skillfit.run.directory import RunDirectory, RunView
from skillfit.run.events import (
    CandidateBuilt,
    CreditAssigned,
    Discarded,
    EvaluationFinished,
    Event,
    GateDecided,
    ItemsRead,
    PreflightFinished,
    RolloutFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    SlowUpdateFinished,
    StageStarted,
    StepFinished,
    Stored,
    Warned,
)
from skillfit.run.journal import Spend
from skillfit.run.lock import in_use
from skillfit.skill import Skill, diff_hunks, estimate_tokens

_NOT_STARTED = RunStarted(run="", config={}, version="", skill="", skill_hash="", splits={}, total_epochs=0, steps_per_epoch=0)


def read_story(path: Path) -> RunStory:
    """The story of the run in `path`, which may still be going on."""
    with closing(RunDirectory.read(path)) as view:
        teller = Teller()
        for stored in view.events.read():
            teller(stored)
        return teller.story(view)


def state_of(view: RunView, finished: bool) -> State:
    if in_use(view.path):
        return "running"
    if finished:
        return "finished"
    return "waiting" if pending(view.path / "handoff") else "stopped"


class Teller:
    """Listens to events; `story` tells what they add up to so far."""

    def __init__(self) -> None:
        self._started = _NOT_STARTED
        self._finished: RunFinished | None = None
        self._ship: ShipTested | None = None
        self._credit: CreditAssigned | None = None
        self._at = ""
        self._times: list[float] = []
        self._rows = Rows()
        self._listed: dict[str, dict[str, Any]] = {}
        self._points: dict[str, Point] = {}
        self._decided: dict[str, Decided] = {}
        self._hashes: dict[str, str] = {}  # skill text -> hash
        self._best = ""
        self._candidates: defaultdict[int, dict[str, CandidateBuilt]] = defaultdict(dict)
        self._edits: dict[int, list[EditTold]] = {}  # accepted, per step
        self._incumbent = ""
        self._notices: dict[str, list[Notice]] = {}

    def __call__(self, stored: Stored) -> None:
        self._times = [*self._times[:1], stored.at]
        self._finished = None  # whatever comes after an end says that the run went on
        self._on(stored.event)

    @singledispatchmethod
    def _on(self, event: Event) -> None:
        """Other events add nothing to the story."""

    @_on.register
    def _(self, event: RunStarted) -> None:
        self._started = event
        self._hashes[event.skill] = event.skill_hash
        self._best = self._incumbent = event.skill
        evaluation = event.config.get("evaluation", {})
        self._rows.weigh(str(evaluation.get("gate_metric", "hard")), float(evaluation.get("gate_mixed_weight", 0.5)))

    @_on.register
    def _(self, event: ItemsRead) -> None:
        self._listed = {item["id"]: item for item in event.items}

    @_on.register
    def _(self, event: PreflightFinished) -> None:
        checks = [check for check in event.checks if check["verdict"] != "go"]
        self._notices["check"] = [Notice("check", check["name"], check["message"]) for check in checks]

    @_on.register
    def _(self, event: StageStarted) -> None:
        self._at = f"{event.stage} of step {event.step}" if event.epoch else event.stage

    @_on.register
    def _(self, event: RolloutFinished) -> None:
        self._rows.add(event)

    @_on.register
    def _(self, event: EvaluationFinished) -> None:
        if event.split not in ("selection", "test"):
            return
        score = self._rows.value(event.hard, event.soft)
        means = self._rows.means(event.split, event.skill_hash, last=event.planned)
        decided = self._decided.get(event.name)
        carried = [point for point in self._points.values() if point.split == event.split and point.decision == "accept"]
        # Without rollouts of its own a skill has the record of the one it says the same as.
        point = self._point(event.name, event.split, means) if means or not carried else replace(carried[-1], name=event.name)
        self._points[event.name] = replace(
            point,
            score=score,
            items=len(means) or event.scored,
            decision=decided.action if decided and not decided.accepted else "accept",
        )

    @_on.register
    def _(self, event: CandidateBuilt) -> None:
        self._hashes[event.skill] = event.skill_hash
        self._candidates[event.step][event.label] = event

    @_on.register
    def _(self, event: GateDecided) -> None:
        found = event.evidence
        self._decided[event.name] = Decided(
            name=event.name,
            epoch=int(event.name.rpartition("_")[2]) if event.name.startswith("slow_update") else 0,
            action=event.decision,
            reason=event.reason,
            difference=found.get("difference", 0.0),
            interval=_pair(found.get("interval")),
            probability=found.get("probability"),
            fixed=tuple(found.get("fixed", ())),
            broken=tuple(found.get("broken", ())),
            rollouts=found.get("rollouts", 0),
            candidates=tuple(event.candidates),
        )

    @_on.register
    def _(self, event: StepFinished) -> None:
        name = f"step_{event.step:04d}"
        decided = self._decided.get(name, Decided(name, event.epoch, event.action, str(event.record.get("reason", ""))))
        self._decided[name] = replace(decided, epoch=event.epoch, action=event.action)
        self._hashes[event.skill] = event.skill_hash
        if decided.accepted:
            self._edits[event.step] = _taken(event, self._candidates[event.step].values(), self._incumbent)
        self._incumbent, self._best = event.skill, event.best_skill

    @_on.register
    def _(self, event: SlowUpdateFinished) -> None:
        name = f"slow_update_epoch_{event.epoch:02d}"
        if event.action in ("accept", "reject", "inconclusive", "force_accept"):
            self._decided[name] = replace(self._decided.get(name, Decided(name, event.epoch, event.action)), action=event.action)
        self._incumbent, self._best = event.skill, event.best_skill

    @_on.register
    def _(self, event: Discarded) -> None:
        leak = event.stage == "leak_check"
        reason = f"{event.reason}: {event.evidence}" if leak and event.evidence else event.reason
        notice = Notice("blocked" if leak else "discarded", f"step {event.step}, {event.stage}", reason, event.what)
        self._notices[event.key] = [notice]

    @_on.register
    def _(self, event: Warned) -> None:
        self._notices[event.key] = [Notice("warning", "", event.message)]

    @_on.register
    def _(self, event: CreditAssigned) -> None:
        self._credit = event

    @_on.register
    def _(self, event: ShipTested) -> None:
        self._ship = event

    @_on.register
    def _(self, event: RunFinished) -> None:
        self._finished, self._best = event, event.best_skill

    def story(self, view: RunView) -> RunStory:
        started, finished = self._started, self._finished
        costs = _costs(view.journal.bill(), self._rows)
        story = RunStory(
            run=view.run_id,
            path=str(view.path),
            state=state_of(view, finished is not None),
            finish_reason=finished.finish_reason if finished else "",
            verdict="",
            diagnosis=finished.diagnosis if finished else "",
            skill_name=started.skill_name,
            agent=started.model_of("agent"),
            optimizer=started.model_of("optimizer"),
            version=started.version,
            config=started.config,
            splits=started.splits,
            total_steps=started.total_steps,
            at=self._at,
            begun=self._times[0] if self._times else None,
            seconds=self._seconds(),
            initial_skill=started.skill,
            best_skill=self._best,
            tokens=(estimate_tokens(started.skill), estimate_tokens(self._best)),
            points=(*self._points.values(), *self._ship_points()),
            selection=self._selection(),
            ship=self._ship if self._ship and self._ship.repeats else None,
            decided=tuple(self._decided.values()),
            edits=self._told_edits(),
            hunks=diff_hunks(started.skill, self._best),
            items=compare(self._rows, started.skill_hash, self._best_hash(), self._listed),
            costs=costs,
            total=reduce(Cost.plus, costs, Cost("total")),
            notices=tuple(notice for notices in self._notices.values() for notice in notices) + self._rows.failed(),
        )
        return replace(story, verdict=sentence(story))

    def _seconds(self) -> float:
        counted = self._finished.summary.get("total_wall_time_s") if self._finished else None
        return float(counted or (self._times[-1] - self._times[0] if self._times else 0.0))

    def _selection(self) -> tuple[float, float] | None:
        summary = self._finished.summary if self._finished else {}
        before, after = (summary.get(f"{name}_selection_score") for name in ("baseline", "best"))
        return None if before is None or after is None else (float(before), float(after))

    def _best_hash(self) -> str:
        tested = [skill for skill in self._rows.skills("ship") if skill != self._started.skill_hash]
        if self._finished and self._ship and tested:
            return str(self._ship.evidence.get("skill_hash", tested[-1]))  # of several, the one that its verdict is about
        return self._hashes.get(self._best) or Skill.from_text(self._best).hash

    def _ship_points(self) -> list[Point]:
        if self._ship is None:
            return []
        names = {self._started.skill_hash: "ship_initial", self._best_hash(): "ship_best"}
        found = {name: self._rows.means("ship", skill) for skill, name in names.items()}
        return [self._point(name, "ship", means) for name, means in found.items() if means]

    def _point(self, name: str, split: Any, means: Mapping[str, float]) -> Point:
        weights = {item: float(told["weight"]) for item, told in self._listed.items() if "weight" in told}
        bounds = interval(list(weighted_values(means, weights).values()))
        return Point(name, split, bounds.mean, max(0.0, bounds.low), min(1.0, bounds.high), len(means))

    def _told_edits(self) -> tuple[EditTold, ...]:
        if self._credit is None:
            return tuple(edit for edits in self._edits.values() for edit in edits)
        return tuple(
            EditTold(
                step=worth["step"],
                op=worth["edit"].get("op", ""),
                target=worth["edit"].get("target", ""),
                content=worth["edit"].get("content", "") or worth.get("label", ""),
                worth=worth["worth"],
                interval=_pair(worth["interval"]),
                kept=worth["kept"],
                reason=worth["reason"],
            )
            for worth in self._credit.edits
        )


def _taken(event: StepFinished, candidates: Iterable[CandidateBuilt], before: str) -> list[EditTold]:
    """The edits of a step's candidates that are in the skill carried on. Winners may be stacked, so each candidate is looked at."""
    reported = [edit for candidate in candidates for edit in candidate.report]
    told = [EditTold(event.step, edit["op"], edit["target"], edit["content"]) for edit in reported]
    fresh = [edit for edit in told if edit.content and edit.content in event.skill and edit.content not in before]
    gone = [edit for edit in told if not edit.content and edit.target in before and edit.target not in event.skill]
    return list(dict.fromkeys([*fresh, *gone]))


def _pair(found: Any) -> tuple[float, float]:
    low, high = found or (0.0, 0.0)
    return float(low), float(high)


def _costs(bill: Iterable[Spend], rows: Rows) -> tuple[Cost, ...]:
    """The bill by stage, role and model; the agent's rollouts by what they were for, and what failed attempts and retries cost."""
    billed: dict[tuple[str, str, str], Cost] = {}
    for spend in bill:
        key = (spend.stage, spend.role, spend.model)
        billed[key] = billed.get(key, Cost(*key)).plus(spend.usage)
    costs = []
    for cost in billed.values():
        known = rows.costs(cost.role, cost.model) if (cost.stage, cost.role) == ("rollout", "agent") else []
        calls, tokens = (getattr(cost, name) - sum(getattr(row, name) for row in known) for name in ("calls", "tokens"))
        usd = None if cost.usd is None else max(0.0, cost.usd - sum(row.usd or 0.0 for row in known))
        left = replace(cost, stage="rollouts: other and retried", calls=max(0, calls), tokens=max(0, tokens), usd=usd)
        costs += [*known, *([left] if left.calls else [])] if known else [cost]
    return tuple(costs)
