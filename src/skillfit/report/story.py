"""The verdict of a run in one sentence, honest about what was not measured.

What a run comes down to, as plain data: the report, `show`, the studio and the MCP server all tell
this story.

Rollouts as they were told, by series and skill, and the items they are about: initial skill against
best.

From events to the story: one reduction, fed event by event, so that a live page and a report of a
finished run agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import reduce, singledispatchmethod
from pathlib import Path
from typing import Any, Literal

from skillfit.gate import GateSettings
from skillfit.gate.statistics import interval
from skillfit.models.protocol import Usage
from skillfit.models.providers.handoff import pending
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
from skillfit.skill import Hunk, Skill, diff_hunks, estimate_tokens

_GOING_ON = {
    "running": "Still running, {where}",
    "waiting": "Waiting for answers to handoff prompts, {where}",
    "stopped": "Stopped {where}, and can go on from there",
}
_NOT_VERIFIED = {
    "improved": "The skill scores higher on the selection split, with no check on fresh rollouts",
    "unverified": "A suggestion, not verified: too few items for a selection split of their own",
    "budget": "The budget was reached before the end, so nothing is verified",
    "infrastructure": "The machinery failed before the end, so nothing can be said about the skill",
}


def percent(score: float) -> str:
    return f"{score * 100:.1f}".removesuffix(".0") + "\u00a0%"


def points(difference: float) -> str:
    """A difference of scores, in percentage points, with a real minus sign."""
    return f"{difference * 100:+.1f}".replace("-", "−")


def sentence(story: RunStory) -> str:
    if story.state == "finished":
        return _ending(story) + _gap(story)
    done = sum(decided.name.startswith("step_") for decided in story.decided)
    where = (
        f"after {done} of {story.total_steps} steps" if done else "before the first step was done"
    )
    return _GOING_ON[story.state].format(where=where) + _so_far(story)


def _ending(story: RunStory) -> str:
    reason, ship, before, after = (
        story.finish_reason,
        story.ship,
        story.point("ship_initial"),
        story.point("ship_best"),
    )
    if reason == "no_improvement" and not story.changed:
        return "No improvement: no candidate beat the initial skill, which stays as it is."
    if reason == "no_improvement" and ship is None:
        return "No improvement: no skill scored above the initial one on the selection split."
    if reason == "no_improvement" and ship:
        return f"No improvement: {_difference(ship)} on fresh rollouts."
    if reason == "improved" and ship and before and after:
        return f"The skill is better: {percent(before.score)} → {percent(after.score)} on fresh rollouts, {_difference(ship)}."
    if reason == "inconclusive" and ship:
        return f"It can't be told whether the skill is better: {_difference(ship)}, {ship.evidence.get('reason', '')}."
    if reason == "budget" and ship:
        return f"The budget was reached after the ship test: {ship.verdict}, {_difference(ship)} on fresh rollouts."
    if reason in _NOT_VERIFIED:
        return _NOT_VERIFIED[reason] + _so_far(story, note="")
    return f"Ended ({reason.replace('_', ' ')}){_so_far(story)}"


def _gap(story: RunStory) -> str:
    """With a second grader: the gain under the one that was trained on, minus the gain that the
    verdict is about.
    """
    gap = story.ship.evidence.get("gap") if story.ship else None
    if gap is None:
        return ""
    differs = f"differs by {points(gap)} points" if round(gap, 3) else "is the same"
    return f" That is by the second grader; by the one trained on, the gain {differs}."


def _difference(ship: ShipTested) -> str:
    low, high = ship.interval
    return f"{points(ship.difference)} points (90 % interval {points(low)} to {points(high)})"


def _so_far(story: RunStory, note: str = ", not verified") -> str:
    """The best score seen, as an end of the sentence."""
    scores = story.selected()
    if scores is None:
        return "; nothing is measured yet."
    first, best = map(percent, scores)
    if not story.changed or best == first:
        return f"; the initial skill stands at {first} on the selection split."
    return (
        f"; best so far {best} against {first} of the initial skill on the selection split{note}."
    )


State = Literal[
    "finished", "running", "stopped", "waiting"
]  # waiting: for answers to handoff prompts
Change = Literal["fixed", "broken", "both", "neither"]


def label_of(name: str) -> str:
    """A step's or an evaluation's name as people say it."""
    for prefix, said in (("step_", "step "), ("slow_update_epoch_", "slow update ")):
        if name.startswith(prefix):
            return said + name.removeprefix(prefix).lstrip("0")
    return (
        name.removeprefix("test_")
        .removeprefix("ship_")
        .replace("baseline", "initial")
        .replace("_", " ")
    )


@dataclass(frozen=True, slots=True)
class Point:
    """A skill's mean score on some items, with its 90 % interval."""

    # baseline, step_0003, slow_update_epoch_02, final, ship_initial, ship_best, test_baseline,
    # test_best, …
    name: str
    split: Literal["selection", "ship", "test"]
    score: float
    low: float
    high: float
    items: int
    decision: str = "accept"  # whether the skill was carried on

    @property
    def label(self) -> str:
        return label_of(self.name)


@dataclass(frozen=True, slots=True)
class Decided:
    """A verdict of the gate, or why a step came to none."""

    name: str
    epoch: int
    action: str  # accept_new_best, accept, force_accept, reject, inconclusive, skip_…
    reason: str = ""
    difference: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)
    probability: float | None = None  # None: nothing was measured
    fixed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    rollouts: int = 0
    candidates: tuple[dict[str, Any], ...] = ()

    @property
    def label(self) -> str:
        return label_of(self.name)

    @property
    def accepted(self) -> bool:
        return self.action in ("accept", "accept_new_best", "force_accept")


@dataclass(frozen=True, slots=True)
class EditTold:
    """An accepted edit. `worth` is in points of the mean score, None when it was not measured
    alone.
    """

    step: int
    op: str
    target: str
    content: str
    worth: float | None = None
    interval: tuple[float, float] = (0.0, 0.0)
    kept: bool = True
    reason: str = "not measured"


@dataclass(frozen=True, slots=True)
class Side:
    """An item under one skill: the scores of its rollouts, and the journal key of one that is
    typical.
    """

    scores: tuple[float, ...] = ()
    failures: tuple[str, ...] = ()
    rollout: str = ""

    @property
    def mean(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores else None

    @property
    def solved(self) -> bool:
        return (self.mean or 0.0) >= 0.5


@dataclass(frozen=True, slots=True)
class ItemTold:
    id: str
    split: str
    before: Side
    after: Side
    type: str = ""
    input: str = ""
    expected: str = ""

    @property
    def change(self) -> Change:
        pair = (self.before.solved, self.after.solved)
        words: dict[tuple[bool, bool], Change] = {
            (False, True): "fixed",
            (True, False): "broken",
            (True, True): "both",
        }
        return words.get(pair, "neither")


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the person should know: a check, a warning, an edit that was blocked or could not
    be used, a failure.
    """

    kind: Literal["check", "warning", "blocked", "discarded", "failed"]
    where: str
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    stage: str
    role: str = ""
    model: str = ""
    calls: int = 0
    tokens: int = 0
    usd: float | None = 0.0  # None: no price is known

    def plus(self, used: Usage | RolloutFinished | Cost) -> Cost:
        usd = None if self.usd is None or used.usd is None else self.usd + used.usd
        return replace(
            self, calls=self.calls + used.calls, tokens=self.tokens + used.tokens, usd=usd
        )


@dataclass(frozen=True, slots=True)
class RunStory:
    run: str
    path: str
    state: State
    finish_reason: str  # empty while there is no end
    verdict: str  # one sentence
    diagnosis: str
    skill_name: str = ""
    agent: str = ""
    optimizer: str = ""
    version: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    total_steps: int = 0
    at: str = ""  # the stage the run is in, or was in last
    begun: float | None = None
    seconds: float = 0.0
    initial_skill: str = ""
    best_skill: str = ""
    tokens: tuple[int, int] = (0, 0)  # of the initial and the best skill
    points: tuple[Point, ...] = ()
    selection: tuple[float, float] | None = (
        None  # the initial and the best skill on comparable rollouts, once the run has ended
    )
    ship: ShipTested | None = None  # where it made fresh rollouts
    decided: tuple[Decided, ...] = ()
    edits: tuple[EditTold, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    items: tuple[ItemTold, ...] = ()
    costs: tuple[Cost, ...] = ()
    total: Cost = Cost("total")
    notices: tuple[Notice, ...] = ()

    @property
    def practice(self) -> bool:
        """Whether the built-in practice models, which are no language models, took part."""
        return any(model.startswith("practice/") for model in (self.agent, self.optimizer))

    @property
    def changed(self) -> bool:
        return bool(self.hunks)

    def point(self, name: str) -> Point | None:
        return next((point for point in reversed(self.points) if point.name == name), None)

    def selected(self) -> tuple[float, float] | None:
        """Scores of the initial and the best skill on the selection split: what the end says, or
        the highest point so far.
        """
        first = self.point("baseline")
        if self.selection is not None or first is None:
            return self.selection
        carried = [
            point.score
            for point in self.points
            if point.split == "selection" and point.decision == "accept"
        ]
        return first.score, max(carried, default=first.score) if self.changed else first.score

    def count(self, change: Change, split: str = "") -> int:
        return sum(item.change == change and split in ("", item.split) for item in self.items)


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
            Notice(
                "failed",
                kind,
                f"{count} of {total} rollouts failed and entered no score: {first[kind]}",
            )
            for kind, count in counts.most_common()
        )


def compare(
    rows: Rows, initial: str, best: str, listed: Mapping[str, Mapping[str, Any]]
) -> tuple[ItemTold, ...]:
    """Items of the selection split (on fresh rollouts where there were some) and of the test split
    under both skills.
    """
    told = []
    for split, serieses in (("selection", ("ship", "selection")), ("test", ("test",))):
        series = next(
            (name for name in serieses if rows.of(name, initial) and rows.of(name, best)), None
        )
        if series is None:
            continue
        before, after = _sides(rows, series, initial), _sides(rows, series, best)
        for item in dict.fromkeys([*before, *after]):
            known = {
                name: str(listed.get(item, {}).get(name, ""))
                for name in ("type", "input", "expected")
            }
            told.append(
                ItemTold(item, split, before.get(item, Side()), after.get(item, Side()), **known)
            )
    return tuple(told)


def _sides(rows: Rows, series: str, skill: str) -> dict[str, Side]:
    grouped: defaultdict[str, list[RolloutFinished]] = defaultdict(list)
    for row in sorted(rows.of(series, skill), key=lambda row: row.repeat):
        grouped[row.item].append(row)
    return {item: _side(rows, found) for item, found in grouped.items()}


def _side(rows: Rows, found: list[RolloutFinished]) -> Side:
    scored = [(row, rows.value(row.hard, row.soft)) for row in found if row.hard is not None]
    side = Side(
        tuple(score for _, score in scored), tuple(row.failure for row in found if row.failure)
    )
    typical = min(
        scored, key=lambda pair: abs(pair[1] - float(side.solved)), default=(found[0], 0.0)
    )[0]
    return Side(side.scores, side.failures, typical.rollout)


_NOT_STARTED = RunStarted(
    run="",
    config={},
    version="",
    skill="",
    skill_hash="",
    splits={},
    total_epochs=0,
    steps_per_epoch=0,
)


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
        self._rows.weigh(
            str(evaluation.get("gate_metric", "hard")),
            float(evaluation.get("gate_mixed_weight", 0.5)),
        )

    @_on.register
    def _(self, event: ItemsRead) -> None:
        self._listed = {item["id"]: item for item in event.items}

    @_on.register
    def _(self, event: PreflightFinished) -> None:
        checks = [check for check in event.checks if check["verdict"] != "go"]
        self._notices["check"] = [
            Notice("check", check["name"], check["message"]) for check in checks
        ]

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
        carried = [
            point
            for point in self._points.values()
            if point.split == event.split and point.decision == "accept"
        ]
        # Without rollouts of its own a skill has the record of the one it says the same as.
        point = (
            self._point(event.name, event.split, means)
            if means or not carried
            else replace(carried[-1], name=event.name)
        )
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
        decided = self._decided.get(
            name, Decided(name, event.epoch, event.action, str(event.record.get("reason", "")))
        )
        self._decided[name] = replace(decided, epoch=event.epoch, action=event.action)
        self._hashes[event.skill] = event.skill_hash
        if decided.accepted:
            self._edits[event.step] = _taken(
                event, self._candidates[event.step].values(), self._incumbent
            )
        self._incumbent, self._best = event.skill, event.best_skill

    @_on.register
    def _(self, event: SlowUpdateFinished) -> None:
        name = f"slow_update_epoch_{event.epoch:02d}"
        if event.action in ("accept", "reject", "inconclusive", "force_accept"):
            self._decided[name] = replace(
                self._decided.get(name, Decided(name, event.epoch, event.action)),
                action=event.action,
            )
        self._incumbent, self._best = event.skill, event.best_skill

    @_on.register
    def _(self, event: Discarded) -> None:
        leak = event.stage == "leak_check"
        reason = f"{event.reason}: {event.evidence}" if leak and event.evidence else event.reason
        notice = Notice(
            "blocked" if leak else "discarded",
            f"step {event.step}, {event.stage}",
            reason,
            event.what,
        )
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
            notices=tuple(notice for notices in self._notices.values() for notice in notices)
            + self._rows.failed(),
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
            return str(
                self._ship.evidence.get("skill_hash", tested[-1])
            )  # of several, the one that its verdict is about
        return self._hashes.get(self._best) or Skill.from_text(self._best).hash

    def _ship_points(self) -> list[Point]:
        if self._ship is None:
            return []
        names = {self._started.skill_hash: "ship_initial", self._best_hash(): "ship_best"}
        found = {name: self._rows.means("ship", skill) for skill, name in names.items()}
        return [self._point(name, "ship", means) for name, means in found.items() if means]

    def _point(self, name: str, split: Any, means: Mapping[str, float]) -> Point:
        weights = {
            item: float(told["weight"]) for item, told in self._listed.items() if "weight" in told
        }
        bounds = interval(list(weighted_values(means, weights).values()))
        return Point(
            name, split, bounds.mean, max(0.0, bounds.low), min(1.0, bounds.high), len(means)
        )

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


def _taken(
    event: StepFinished, candidates: Iterable[CandidateBuilt], before: str
) -> list[EditTold]:
    """The edits of a step's candidates that are in the skill carried on. Winners may be stacked, so
    each candidate is looked at.
    """
    reported = [edit for candidate in candidates for edit in candidate.report]
    told = [EditTold(event.step, edit["op"], edit["target"], edit["content"]) for edit in reported]
    fresh = [
        edit
        for edit in told
        if edit.content and edit.content in event.skill and edit.content not in before
    ]
    gone = [
        edit
        for edit in told
        if not edit.content and edit.target in before and edit.target not in event.skill
    ]
    return list(dict.fromkeys([*fresh, *gone]))


def _pair(found: Any) -> tuple[float, float]:
    low, high = found or (0.0, 0.0)
    return float(low), float(high)


def _costs(bill: Iterable[Spend], rows: Rows) -> tuple[Cost, ...]:
    """The bill by stage, role and model; the agent's rollouts by what they were for, and what
    failed attempts and retries cost.
    """
    billed: dict[tuple[str, str, str], Cost] = {}
    for spend in bill:
        key = (spend.stage, spend.role, spend.model)
        billed[key] = billed.get(key, Cost(*key)).plus(spend.usage)
    costs = []
    for cost in billed.values():
        known = (
            rows.costs(cost.role, cost.model)
            if (cost.stage, cost.role) == ("rollout", "agent")
            else []
        )
        calls, tokens = (
            getattr(cost, name) - sum(getattr(row, name) for row in known)
            for name in ("calls", "tokens")
        )
        usd = (
            None if cost.usd is None else max(0.0, cost.usd - sum(row.usd or 0.0 for row in known))
        )
        left = replace(
            cost,
            stage="rollouts: other and retried",
            calls=max(0, calls),
            tokens=max(0, tokens),
            usd=usd,
        )
        costs += [*known, *([left] if left.calls else [])] if known else [cost]
    return tuple(costs)
