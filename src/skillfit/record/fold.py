"""From events to the record of a run, and to its card.

`Fold` is fed event by event. The writer of a run, a live page and the report of a finished run use
the same one, so they agree. `RunFollower` and `read_record` read the events of a run's directory,
and the journal for the bill: failed attempts and all resumes are in it. `Fold` adds up three things
in objects of their own:

- `ScoreBook`: the scores of the skills that were measured.
- `EditHistory`: the worth of the edits. With screening every decision of the gate lists the pool
  with effects. The strict gate decides about a whole candidate, so its edits share one decision and
  have no separate effect.
- `RolloutTotals`: counts of rollouts. A run may have 100,000 of them. Pages need sums, so a reader
  lets SQLite count; a live terminal adds each event as it comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from pathlib import Path
from typing import get_args

from skillfit.config.schema import EvaluationSection
from skillfit.intervals import Interval, half_width, interval, mean, weighted_values
from skillfit.models.json_text import JsonObject
from skillfit.models.providers.handoff import pending
from skillfit.record.evidence import with_step
from skillfit.record.labels import read_labels
from skillfit.record.lists import state_of
from skillfit.record.record import (
    APPLIED,
    DataSummary,
    EditRecord,
    GateSummary,
    PersonDecision,
    Point,
    Record,
    RolloutUse,
    RunCard,
    RunEnd,
    RunNotice,
    SkillVersion,
    SplitScores,
    StageProgress,
)
from skillfit.record.text import failed_calls, verdict_sentence
from skillfit.run.control import (
    DONE_TO_EDIT,
    EDIT_ACTIONS,
    NOTE_ACTIONS,
    STATUS_AFTER,
    read_requests,
    without_undone,
)
from skillfit.run.directory import ablated_by
from skillfit.run.events import (
    AblationFinished,
    CandidateBuilt,
    Discarded,
    EvaluationFinished,
    Event,
    EventLog,
    GateDecided,
    ItemsRead,
    MarkedRollout,
    PersonDecided,
    PreflightFinished,
    RolloutFinished,
    RolloutScore,
    RunFinished,
    RunStarted,
    ShipTested,
    SkillsMeasured,
    SlowUpdateFinished,
    StageFinished,
    StageStarted,
    StepFinished,
    Stored,
    Warned,
)
from skillfit.run.journal import ROLLOUTS, Bill
from skillfit.run.records import (
    COMPOSED,
    DECIDED,
    SHORTCUT,
    CheckResult,
    EditEffect,
    EditStatus,
    EvidenceMemory,
    MeasuredSplit,
    RecordedConfig,
    ShipResult,
    TypeSummary,
    edit_id,
    fields_of,
    slow_update_epoch,
    slow_update_name,
    step_name,
)
from skillfit.run.store import HANDOFF, in_use
from skillfit.run.view import RunView
from skillfit.skill import Skill, estimate_tokens
from skillfit.skill.edits import MOVE_OP, example_of
from skillfit.skill.parts import BODY, part_text
from skillfit.skill.regions import examples
from skillfit.skill.units import Granularity

_RECENT_STEPS = 5  # whose mean duration predicts the next ones
_LOOKED_AT = 500  # rollouts that tell whether scores are graded
_NOT_STARTED = RunStarted(
    run="",
    config=RecordedConfig({}),
    version="",
    skill="",
    skill_hash="",
    splits={},
    total_epochs=0,
    steps_per_epoch=0,
)


def read_record(path: Path) -> Record:
    """Return the record of the run in `path`, which may still be running."""
    return RunFollower(path).record()


class RunFollower:
    """A run's record, brought up to date at each call of `record`.

    Every call opens the journal and closes it again, so no connection is ever shared between
    threads. Calls must not overlap.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()
        self._fold = Fold()
        self._bill = Bill()
        self._last = 0  # number of the last event that was read
        self._isolation = ""
        self._seconds, self._stop_reason = 0.0, ""
        self._ablated_by: Granularity | None = None

    def record(self) -> Record:
        with closing(RunView.open(self.path)) as view:
            run_id = view.run_id
            with view.events.snapshot():
                self._last = self._fold.read(view.events, after=self._last)
            self._bill = view.journal.bill(self._bill)
            self._isolation = self._isolation or _last_isolation(view)
            self._seconds, self._stop_reason = view.seconds, view.stop_reason
            self._ablated_by = ablated_by(view.journal)
        return self._complete(run_id)

    def _complete(self, run_id: str) -> Record:
        record = self._fold.record()
        failed = failed_calls(self._bill.total, self._bill.failures)
        running, labels = in_use(self.path), read_labels(self.path)
        decisions = _with_requests(self.path, record.decisions, running=running)
        edits = tuple(_with_decision(edit, decisions) for edit in record.edits)
        record = replace(
            record,
            run=run_id or record.run,
            path=str(self.path),
            state=state_of(
                self.path,
                running=running,
                finished=bool(record.finish_reason),
                to_review=any(edit.awaits_approval for edit in edits),
            ),
            tags=labels.tags,
            archived=labels.archived,
            isolation=self._isolation,
            ablated_by=self._ablated_by,
            seconds=record.seconds if record.finished else self._seconds or record.seconds,
            costs=self._bill.rows,
            usage=self._bill.total,
            notices=(*record.notices, *([RunNotice("retried", "", failed)] if failed else ())),
            prompts=len(pending(self.path / HANDOFF)),
            applied=any((self.path / APPLIED).glob("*.json")),
            decisions=decisions,
            edits=edits,
        )
        if record.state == "stopped" and not record.only_checked:
            record = replace(record, diagnosis=self._stop_reason)
        return replace(record, verdict=verdict_sentence(record))


def _last_isolation(view: RunView) -> str:
    """Return how the programs of the agent were isolated in the last rollout; empty when it ran
    none.
    """
    outcome = view.journal.latest(ROLLOUTS, JsonObject) or {}
    attempt = outcome.get("attempt")
    return str(attempt.get("isolation", "")) if isinstance(attempt, dict) else ""


def _with_requests(
    path: Path, recorded: tuple[PersonDecision, ...], *, running: bool
) -> tuple[PersonDecision, ...]:
    """Add the requests that the run has not taken up yet."""
    numbers = {decision.number for decision in recorded}
    unread = [request for request in read_requests(path) if request.number not in numbers]
    requests = without_undone(unread)
    waiting = [
        PersonDecision(
            request.number,
            request.action,
            request.target,
            request.text,
            request.command(path.name),
            request.at,
            done=request.action in ("apply", "undo")
            or (request.action in ("stop", *NOTE_ACTIONS) and not running),
        )
        for request in requests
    ]
    return (*recorded, *waiting)


def _with_decision(edit: EditRecord, decisions: Sequence[PersonDecision]) -> EditRecord:
    """Show that an edit under review waits for the run, once a person has decided on it."""
    answers = [
        one.action
        for one in decisions
        if not one.done
        and one.target == edit.id
        and one.action in EDIT_ACTIONS
        and one.action != "release"
    ]
    if not answers or not edit.awaits_approval:
        return edit
    reason = f"{DONE_TO_EDIT[answers[-1]]}, not yet read by the run"
    return replace(edit, reason=reason, awaits_approval=False)


class Fold:
    """A listener on the events of a run; `record` and `card` tell what happened so far."""

    def __init__(self) -> None:
        self.rollouts = RolloutTotals()
        self.scores = ScoreBook()
        self._started = _NOT_STARTED
        self._finished: RunFinished | None = None
        self._ship: ShipResult | None = None
        self._ablation: AblationFinished | None = None
        self._measured: SkillsMeasured | None = None
        self._data = DataSummary()
        self._times: list[float] = []  # of the first and the last event
        self._seq = 0  # of the last event
        self._gates: dict[str, GateSummary] = {}
        self._edits = EditHistory()
        self._rejections: dict[str, list[Discarded]] = {}
        self._versions: dict[str, SkillVersion] = {}
        self._stages: dict[tuple[int, int, str], StageProgress] = {}
        self._step_ends: dict[int, float] = {}  # step -> when it was finished
        self._decisions: dict[int, PersonDecision] = {}
        self._notices: dict[str, list[RunNotice]] = {}
        self._checks: tuple[CheckResult, ...] = ()
        self._best = ""
        self._files: Mapping[str, str] = {}  # of the best or the found skill, that changed
        self._evidence = EvidenceMemory()

    def __call__(self, stored: Stored) -> None:
        self._times = [*self._times[:1], stored.at]
        self._seq = max(self._seq, stored.seq)
        if not _may_follow_end(stored.event):
            self._finished = None  # the run was resumed
        self._on(stored.event, stored)

    def read(self, events: EventLog, after: int = 0) -> int:
        """Take in the events of a log behind number `after`; return the number of the last one. At
        first the rollouts are counted by the database, and not read one by one.
        """
        if after:
            for stored in events.read(after):
                self(stored)
            return max(after, self._seq)
        for stored in events.without(RolloutFinished):
            self(stored)
        for row in events.found(RolloutFinished, "ship"):
            self.scores.ship_rows[row.rollout] = row
        self.rollouts.read(events)
        self._seq = events.newest()
        return self._seq

    @singledispatchmethod
    def _on(self, event: Event, stored: Stored) -> None:
        """Ignore other events, which add nothing to the record."""

    @_on.register
    def _(self, event: RunStarted, stored: Stored) -> None:
        self._started = event
        self._best = event.skill
        self._evidence = event.evidence or EvidenceMemory()
        self._versions["initial"] = SkillVersion(
            "initial", "initial skill", event.skill, event.skill_hash, files=event.files
        )
        self.scores.evaluation = event.config.settings.evaluation
        env = event.config.settings.env
        self._data = replace(
            self._data,
            skill=env.skill,
            tasks=env.tasks,
            grader=_grader_name(env.grader),
            splits=event.splits,
        )

    @_on.register
    def _(self, event: ItemsRead, stored: Stored) -> None:
        types = Counter(item.type for item in event.items if item.type)
        self._data = replace(self._data, types=dict(sorted(types.items())))
        self.scores.weights = {item.id: item.weight for item in event.items if item.weight != 1.0}

    @_on.register
    def _(self, event: PreflightFinished, stored: Stored) -> None:
        self._notices["check"] = [
            RunNotice("check", check.name, check.message)
            for check in event.checks
            if check.verdict != "go"
        ]
        self._checks = tuple(event.checks)

    @_on.register
    def _(self, event: StageStarted, stored: Stored) -> None:
        self._stages = {
            key: stage
            for key, stage in self._stages.items()
            if not stage.over or stage.step == event.step
        }
        self._stages[event.epoch, event.step, event.stage] = StageProgress(
            event.epoch, event.step, event.stage, event.total, stored.at
        )

    @_on.register
    def _(self, event: StageFinished, stored: Stored) -> None:
        key = (event.epoch, event.step, event.stage)
        if key in self._stages:
            self._stages[key] = replace(self._stages[key], seconds=event.seconds)

    @_on.register
    def _(self, event: RolloutFinished, stored: Stored) -> None:
        self.rollouts.add(stored, event)
        if event.phase == "ship":
            self.scores.ship_rows[event.rollout] = event

    @_on.register
    def _(self, event: EvaluationFinished, stored: Stored) -> None:
        self.scores.evaluated(event, self._gates.get(event.name))

    @_on.register
    def _(self, event: CandidateBuilt, stored: Stored) -> None:
        self._rejections[event.key] = self._edits.built(event)

    @_on.register
    def _(self, event: GateDecided, stored: Stored) -> None:
        summary = GateSummary(
            name=event.name,
            step=event.step,
            epoch=slow_update_epoch(event.name) or 0,
            action=event.decision,
            reason=event.reason,
            evidence=event.evidence,
            candidates=tuple(event.candidates),
            at=stored.at,
        )
        self._gates[event.name] = self._edits.measured(event, summary)
        self.scores.decided(event)

    @_on.register
    def _(self, event: StepFinished, stored: Stored) -> None:
        name = step_name(event.step)
        gate = self._gates.get(name) or GateSummary(
            name, event.step, event.epoch, event.action, event.record.reason or "", at=stored.at
        )
        gate = replace(gate, epoch=event.epoch, action=event.action)
        self._gates[name] = gate
        self._edits.decided(
            event.step,
            accepted=gate.accepted,
            skipped=gate.skipped,
            reason=gate.reason,
        )
        self._step_ends[event.step] = stored.at
        if event.digest is not None:
            patterns = event.digest.failure_patterns
            self._evidence = with_step(self._evidence, event.step, patterns, ())
        self._ship = None  # of an end after which the run was resumed
        label = f"step {event.step}"
        self._add_version(
            SkillVersion(
                str(event.step),
                label,
                event.skill,
                event.skill_hash,
                after=event.step,
                files=self._files_after(event.skill_files),
            )
        )
        self._best, self._files = event.best_skill, event.best_files

    @_on.register
    def _(self, event: SlowUpdateFinished, stored: Stored) -> None:
        name = slow_update_name(event.epoch)
        if event.action in DECIDED:
            gate = self._gates.get(name) or GateSummary(name, 0, event.epoch, event.action)
            self._gates[name] = replace(gate, action=event.action, epoch=event.epoch)
        after, label = max(self._step_ends, default=0), f"slow update {event.epoch}"
        files = self._files_after(event.skill_files)
        self._add_version(
            SkillVersion(f"slow {event.epoch}", label, event.skill, after=after, files=files)
        )
        self._best, self._files = event.best_skill, event.best_files

    @_on.register
    def _(self, event: Discarded, stored: Stored) -> None:
        self._rejections[event.key] = [event]

    @_on.register
    def _(self, event: Warned, stored: Stored) -> None:
        where = event.what if event.what == SHORTCUT else ""
        self._notices[event.key] = [RunNotice("warning", where, event.message)]

    @_on.register
    def _(self, event: PersonDecided, stored: Stored) -> None:
        self._decisions[event.number] = PersonDecision(**fields_of(event), at=stored.at)
        self._edits.steered(event)

    @_on.register
    def _(self, event: ShipTested, stored: Stored) -> None:
        self._ship = ShipResult(**fields_of(event))

    @_on.register
    def _(self, event: AblationFinished, stored: Stored) -> None:
        self._ablation = event

    @_on.register
    def _(self, event: SkillsMeasured, stored: Stored) -> None:
        self._measured = event

    @_on.register
    def _(self, event: RunFinished, stored: Stored) -> None:
        self._finished, self._best, self._files = event, event.best_skill, event.files

    def _add_version(self, version: SkillVersion) -> None:
        """Note a skill unless the step left it as it was."""
        last = next(reversed(self._versions.values()), None)
        if last is None or (last.text, last.files) != (version.text, version.files):
            self._versions[version.name] = version

    def _files_after(self, changed: Mapping[str, str]) -> dict[str, str]:
        """Return the files that edits may change, after the changes that an event records."""
        files = {**self._started.files, **changed}
        return {name: text for name, text in files.items() if text or name not in changed}

    @property
    def _end(self) -> RunEnd:
        """How the run ended; empty while it has not."""
        if self._finished is not None:
            return self._finished.finish_reason
        if self._measured is not None:
            return "evaluation"
        return "ablation" if self._ablation is not None else ""

    def card(self) -> RunCard:
        """Return the facts for lists. The reader fills in path, state and usage."""
        started, settings = self._started, self._started.config.settings
        summary = self._finished.summary if self._finished else None
        points = self.scores.points(self._ship, started.skill_hash)
        card = RunCard(
            state="finished" if self._end else "running",
            seq=self._seq,
            run=started.run,
            version=started.version,
            skill_name=started.skill_name,
            tasks=settings.env.tasks,
            models={role: settings.model.named(role) for role in settings.model.by_role()},
            metric=settings.evaluation.gate_metric,
            begun=self._times[0] if self._times else None,
            ended=self._times[-1] if self._times else None,
            total_steps=started.total_steps,
            steps_done=len(self._step_ends),
            checked=bool(self._checks),
            points=points,
            finish_reason=self._end,
            diagnosis=self._finished.diagnosis if self._finished else "",
            ship=self._ship if self._end else None,  # a resumed run may make another one
            selection=self._selection(points),
            awaiting=self._edits.awaiting,
        )
        if summary is None:
            return card
        return replace(
            card,
            best_step=summary.best_step,
            test=SplitScores(
                _score(summary.baseline_test_score, summary.baseline_test_hard),
                _score(summary.test_score, summary.test_hard),
                _score(summary.final_test_score, summary.final_test_hard),
            ),
            unproven=summary.unproven,
            cut=summary.cut,
            skill_tokens=summary.skill_tokens,
            rollouts_used=RolloutUse(self.rollouts.done, settings.budget.rollouts),
            wall_s=summary.total_wall_time_s,
        )

    def _selection(self, points: Sequence[Point]) -> SplitScores:
        """Score the initial and best skill; of an evaluation, the first and the highest."""
        if self._measured is not None:
            first, *others = self._measured.scores
            known = [one.hard for one in (first, *others) if one.has_score]
            return SplitScores(
                first.hard if first.has_score else None,
                max(known, default=None) if others else None,
            )
        measured = next((point.score for point in points if point.name == "baseline"), None)
        if self._finished is None:
            return SplitScores(measured)
        summary = self._finished.summary
        baseline = summary.baseline_selection_score
        return SplitScores(measured if baseline is None else baseline, summary.best_selection_score)

    def record(self) -> Record:
        """Return all that the events say. The reader adds path, state, usage and the verdict."""
        started, finished = self._started, self._finished
        unproven = finished.unproven_skill if finished else ""
        unproven = "" if unproven == self._best and not self._files else unproven
        best = SkillVersion("best", "", unproven or self._best)
        found = replace(best, files=self._files_after(self._files)).skill
        return Record(
            **fields_of(self.card()),
            has_begun=started is not _NOT_STARTED,
            finished=finished,
            config=started.config,
            data=self._data,
            total_epochs=started.total_epochs,
            seconds=self._seconds(),
            seconds_left=self._seconds_left(),
            initial_skill=started.skill,
            initial_files=started.files,
            best_skill=self._best,
            unproven_skill=unproven,
            found_files=self._files,
            tokens=(estimate_tokens(started.skill), found.tokens),
            versions=self._listed_versions(unproven),
            ablation=self._ablation,
            measured=self._measured,
            checks=self._checks,
            gates=tuple(self._gates.values()),
            edits=self._edits.listed(found, finished, unproven=bool(unproven)),
            evidence=self._evidence,
            rejections=tuple(one for found in self._rejections.values() for one in found),
            types=self.scores.types(),
            stages=self._listed_stages(),
            decisions=tuple(self._decisions[number] for number in sorted(self._decisions)),
            notices=self._listed_notices(),
            graded=self.rollouts.graded,
            rollouts=self.rollouts.done,
            skill_loaded=self.rollouts.skill_reads[True],
            skill_missed=self.rollouts.skill_reads[False],
        )

    def _seconds(self) -> float:
        if self._finished and self._finished.summary.total_wall_time_s:
            return self._finished.summary.total_wall_time_s
        return self._times[-1] - self._times[0] if self._times else 0.0

    def _seconds_left(self) -> float | None:
        """Multiply the steps that are left by the mean duration of the last ones."""
        left = self._started.total_steps - len(self._step_ends)
        recent = sorted(self._step_ends.values())[-_RECENT_STEPS - 1 :]
        if self._finished or len(recent) < 2 or left <= 0:
            return None
        return left * (recent[-1] - recent[0]) / (len(recent) - 1)

    def _listed_versions(self, unproven: str) -> tuple[SkillVersion, ...]:
        versions = list(self._versions.values())
        if not self._started.total_steps:  # an ablation or an evaluation
            shorter = self._ablation.shorter_skill if self._ablation else ""
            if shorter:
                files = self._files_after(self._ablation.shorter_files if self._ablation else {})
                label = "without what can be cut"
                versions.append(SkillVersion("shorter", label, shorter, files=files))
            return tuple(versions)
        tested = self._ship.skill_hash if self._ship else ""
        found = self._files_after(self._files)
        if unproven:
            versions.append(
                SkillVersion("unproven", "found, unproven", unproven, tested, files=found)
            )
            tested, found = "", self._started.files
        if versions:
            label = "best so far" if self._finished is None else "result of the run"
            changed = (self._best, found) != (self._started.skill, self._started.files)
            tested = tested if changed else ""
            versions.append(SkillVersion("best", label, self._best, tested, files=found))
        return tuple(versions)

    def _listed_stages(self) -> tuple[StageProgress, ...]:
        listed = []
        for stage in self._stages.values():
            counted = self.rollouts.stages.get((stage.stage, stage.step))
            if counted is not None:
                stage = replace(
                    stage, done=counted.done, failed=counted.failed, latest=counted.latest
                )
            listed.append(stage)
        return tuple(listed)

    def _listed_notices(self) -> tuple[RunNotice, ...]:
        listed = [notice for notices in self._notices.values() for notice in notices]
        audited = [notice for notice in listed if notice.where == SHORTCUT]
        if audited[1:] and self._best == self._started.skill:
            listed.remove(audited[0])  # the same skill again, with more rollouts
        total = self.rollouts.done
        for kind, count in self.rollouts.failures.most_common():
            message = self.rollouts.first_failure[kind]
            text = f"{count:,} of {total:,} rollouts failed and entered no score: {message}"
            listed.append(RunNotice("failed", kind, text))
        reads = self.rollouts.skill_reads
        if missed := reads[False]:
            text = (
                f"The agent did not load the skill in {missed:,} of {reads.total():,} rollouts: "
                "their scores say nothing about its text."
            )
            listed.append(RunNotice("warning", "skill", text))
        return tuple(listed)


def _may_follow_end(event: Event) -> bool:
    """Return whether a finished run stays finished after this event: decisions of people, warnings,
    `skillfit check`.
    """
    if isinstance(event, StageStarted | StageFinished):
        return event.stage == "preflight"
    if isinstance(event, RolloutFinished):
        return event.phase == "preflight"
    return isinstance(event, PersonDecided | Warned | PreflightFinished)


def _score(in_metric: float | None, hard: float | None) -> float | None:
    """Return a test score in the gate's metric; early versions recorded hard scores only."""
    return hard if in_metric is None else in_metric


def _grader_name(grader: object) -> str:
    if isinstance(grader, dict):
        return ", ".join(str(name) for name in grader)
    return str(grader or "exact")


@dataclass(slots=True)
class ScoreBook:
    """Collects measurements under the run's metric."""

    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    weights: dict[str, float] = field(default_factory=dict)  # of items that do not count 1
    ship_rows: dict[str, RolloutFinished] = field(default_factory=dict)  # by rollout key
    _points: dict[str, Point] = field(default_factory=dict)
    _typed: dict[str, EvaluationFinished] = field(default_factory=dict)

    def evaluated(self, event: EvaluationFinished, gate: GateSummary | None) -> None:
        """Note the score of a skill on a split; `gate` is the decision about it, if any."""
        if not event.has_score:
            return
        if event.by_type:
            self._typed[event.name] = event
        if event.split not in get_args(MeasuredSplit):  # a split of another version
            return
        if event.split == "selection":
            self._points.pop(COMPOSED, None)  # of an end after which the run was resumed
        # With a pool of edits the score is that of the skill the loop continues with, whatever was
        # decided about single edits.
        rejected = gate is not None and not gate.accepted and gate.pending is None
        decision = gate.action if gate is not None and rejected else "accept"
        measured = _score_interval(
            self.evaluation.value(event.hard, event.soft), event.scored_items
        )
        found = event.estimate or measured
        self._points[event.name] = Point(
            name=event.name,
            split=event.split,
            score=found.mean,
            low=found.low,
            high=found.high,
            items=event.scored_items,
            decision=decision,
            estimated=event.estimate is not None and event.estimate.estimated,
        )

    def decided(self, event: GateDecided) -> None:
        """Take the score that came with a decision, unless the skill was measured on its own."""
        found = event.score
        if found is None or event.name in self._points:
            return
        self._points[event.name] = Point(
            name=event.name,
            split="selection",
            score=found.mean,
            low=found.low,
            high=found.high,
            items=0,
            estimated=found.estimated,
        )

    def points(self, ship: ShipResult | None, initial_hash: str) -> tuple[Point, ...]:
        listed = list(self._points.values())
        if ship is not None:
            initial, found = map(self._ship_means, (initial_hash, ship.skill_hash))
            # The comparison is one of pairs: an item that has a score under one skill alone is in
            # neither mean.
            for name, means, others in (
                ("ship_initial", initial, found),
                ("ship_best", found, initial),
            ):
                if paired := {item: means[item] for item in means if item in others}:
                    bounds = interval(list(weighted_values(paired, self.weights).values()))
                    low, high = max(0.0, bounds.low), min(1.0, bounds.high)
                    listed.append(Point(name, "ship", bounds.mean, low, high, len(paired)))
        return tuple(listed)

    def _ship_means(self, skill: str) -> dict[str, float]:
        """Return the mean score of each item under a skill, on the rollouts of the ship test."""
        values: dict[str, list[float]] = {}
        for row in self.ship_rows.values():
            if row.skill_hash == skill and row.hard is not None:
                values.setdefault(row.item, []).append(row_value(self.evaluation, row))
        return {item: mean(scores) for item, scores in values.items()}

    def types(self) -> tuple[TypeSummary, ...]:
        """Return scores per type on the test split; empty when it was not read."""
        before, after = self._typed.get("test_baseline"), self._typed.get("test_best")
        if before is None:
            return ()
        names = dict.fromkeys([*before.by_type, *(after.by_type if after else ())])
        return tuple(
            TypeSummary(
                name,
                before.by_type[name].total if name in before.by_type else 0,
                self._type_score(before, name),
                self._type_score(after, name),
            )
            for name in names
        )

    def _type_score(self, event: EvaluationFinished | None, name: str) -> float | None:
        found = event.by_type.get(name) if event else None
        if found is None or not found.total:
            return None
        return self.evaluation.value(found.hard_acc, found.soft_acc)


def row_value(evaluation: EvaluationSection, row: RolloutFinished | RolloutScore) -> float:
    """Return the score of a scored rollout under the run's metric."""
    hard = row.hard or 0.0
    return evaluation.value(hard, hard if row.soft is None else row.soft)


def _score_interval(score: float, count: int) -> Interval:
    """Return a 90 % interval around a mean of `count` scores. It assumes scores of 0 and 1, the
    case with the widest interval.
    """
    if not count:
        return Interval(score, 0.0, 1.0)
    half = half_width(max(0.0, count * score * (1 - score)), count)
    return Interval(score, max(0.0, score - half), min(1.0, score + half))


@dataclass(slots=True)
class EditHistory:
    """All edits that were tried, in the order in which they came."""

    _edits: dict[str, EditEffect] = field(default_factory=dict)
    _history: dict[str, dict[int, EditEffect]] = field(default_factory=dict)  # id -> step -> then
    _candidates: dict[int, CandidateBuilt] = field(default_factory=dict)
    _screening: bool = False  # the gate measures edits one by one
    _step: int = 0  # the latest one with effects

    @property
    def awaiting(self) -> tuple[str, ...]:
        """The ids of the edits that wait for a person's approval."""
        return tuple(edit.id for edit in self._edits.values() if edit.awaits_approval)

    def built(self, event: CandidateBuilt) -> list[Discarded]:
        """Note a candidate's edits; those that could not be applied are rejections."""
        self._candidates[event.step] = event
        return [
            Discarded(
                step=event.step,
                stage="update",
                what=report.edit.content or report.edit.target,
                reason=report.reason,
            )
            for report in event.report
            if not report.applied
        ]

    def measured(self, event: GateDecided, summary: GateSummary) -> GateSummary:
        """Take in the effects of a decision; the summary with what entered and left the pool."""
        if not event.effects:
            return summary
        self._screening = True
        # The rounds after the last step tell more about the pool that it left.
        self._step = max(self._step, event.step)
        before = {name: edit.status for name, edit in self._edits.items()}
        for effect in event.effects:
            self._history.setdefault(effect.id, {})[self._step] = effect
            self._edits[effect.id] = effect
        moved = [effect for effect in event.effects if before.get(effect.id) != effect.status]
        return replace(
            summary,
            entered=tuple(effect.id for effect in event.effects if effect.id not in before),
            promoted=tuple(effect.id for effect in moved if effect.status == "promoted"),
            dropped=tuple(effect.id for effect in moved if effect.status == "dropped"),
            pending=sum(edit.status == "pending" for edit in self._edits.values()),
        )

    def decided(self, step: int, *, accepted: bool, skipped: bool, reason: str) -> None:
        """Note a decision about a whole candidate, where edits are not measured one by one."""
        candidate = self._candidates.pop(step, None)
        if candidate is None or self._screening or skipped:
            return
        status: EditStatus = "promoted" if accepted else "dropped"
        applied = [report for report in candidate.report if report.applied]
        for number, report in enumerate(applied, 1):
            name = report.edit.id or edit_id(step, number)
            self._edits[name] = EditEffect(
                id=name, step=step, edit=report.edit, status=status, reason=reason
            )

    def steered(self, event: PersonDecided) -> None:
        """Note that a person decided about an edit; the gate shows it in its next decision."""
        edit = self._edits.get(event.target)
        if edit is None or event.action not in EDIT_ACTIONS:
            return
        released = event.action == "release" and edit.status == "promoted"
        self._edits[edit.id] = replace(
            edit,
            status=edit.status if released else STATUS_AFTER[event.action],
            reason=f"{DONE_TO_EDIT[event.action]} by a person",
            awaits_approval=False,
        )

    def listed(
        self, found: Skill, finished: RunFinished | None, *, unproven: bool
    ) -> tuple[EditRecord, ...]:
        """List every edit with its history and, when the run has ended, whether the skill that was
        found has it. `unproven`: that skill is not handed back.
        """
        return tuple(
            EditRecord(
                **fields_of(edit),
                history=dict(self._history.get(name, {})),
                in_best=None if finished is None else self._is_kept(edit, found, finished.edits),
                unproven=unproven,
            )
            for name, edit in self._edits.items()
        )

    def _is_kept(self, edit: EditEffect, found: Skill, recorded: list[str] | None) -> bool:
        """Return whether the skill found has the edit: by the recorded composition, without edits
        whose text others of it replaced. A gate without a pool has none: there it is the accepted
        edits, without those that a later step replaced.
        """
        if self._screening and recorded is not None:
            others = [self._edits[name] for name in recorded if name in self._edits]
            return edit.id in recorded and not _is_overwritten(edit, others, found)
        return edit.status == "promoted" and (self._screening or _has_text_of(found, edit))


def _is_overwritten(edit: EditEffect, others: Sequence[EditEffect], skill: Skill) -> bool:
    """Return whether none of the lines that an edit adds is left in the skill, because one of the
    others replaces or deletes them.
    """
    written = edit.edit.content.strip()
    lines = _lines_beside(skill, edit)
    if not written or any(line.strip() in lines for line in written.splitlines() if line.strip()):
        return False
    targets = [
        other.edit.target.strip()
        for other in others
        if other.id != edit.id
        and other.edit.file == edit.edit.file
        and other.edit.op in ("replace", "delete")
    ]
    return any(target and (target in written or written in target) for target in targets)


def _lines_beside(skill: Skill, edit: EditEffect) -> set[str]:
    """Return the lines of the part that an edit writes to; text that it moves leaves a pointer in
    the body.
    """
    file = BODY if edit.edit.op == MOVE_OP else edit.edit.file
    return {line.strip() for line in (part_text(skill, file) or "").splitlines()}


def _has_text_of(skill: Skill, edit: EditEffect) -> bool:
    """Return whether the lines that an edit adds are there; for a deletion, whether its lines are
    gone.
    """
    example = example_of(edit.edit)
    if example is not None:
        shown = examples(skill)
        return any(one.item_id == example.item_id for one in shown)
    lines = _lines_beside(skill, edit)
    if edit.edit.content:
        return all(line.strip() in lines for line in edit.edit.content.splitlines())
    return not any(line.strip() in lines for line in edit.edit.target.splitlines() if line.strip())


@dataclass(slots=True)
class RolloutTotals:
    """Sums over all rollouts so far. Fed with events, or read from a log at once."""

    stages: dict[tuple[str, int], StageRollouts] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    first_failure: dict[str, str] = field(default_factory=dict)  # kind -> message
    graded: bool = False  # some score is neither 0 nor 1
    skill_reads: Counter[bool] = field(default_factory=Counter)  # whether the agent loaded it
    _keys: set[int] = field(default_factory=set)  # hashes: a rollout may belong to several stages

    @property
    def done(self) -> int:
        return len(self._keys)

    def add(self, stored: Stored, event: RolloutFinished) -> None:
        stage = self._stage(event.phase, event.step)
        stage.done += 1
        stage.latest = max(stage.latest, stored.at)
        self._keys.add(hash(event.rollout))
        self._mark(event)
        self.graded = self.graded or event.hard not in (None, 0, 1)

    def read(self, events: EventLog) -> None:
        """Count the rollouts of a log. Nothing may have been added before."""
        for count in events.rollouts_done():
            stage = self._stage(count.phase, count.step)
            stage.done, stage.latest = count.done, count.latest
        self._keys = {hash(key) for key in events.rollout_keys()}
        for row in events.marked_rollouts():
            self._mark(row)
        scores = events.some_hard_scores(_LOOKED_AT)
        self.graded = any(score not in (None, 0, 1) for score in scores)

    def _stage(self, phase: str, step: int) -> StageRollouts:
        return self.stages.setdefault((phase, step), StageRollouts())

    def _mark(self, row: RolloutFinished | MarkedRollout) -> None:
        if row.failure:
            self._stage(row.phase, row.step).failed += 1
            kind, _, message = row.failure.partition(": ")
            self.failures[kind] += 1
            self.first_failure.setdefault(kind, message)
        if row.skill_read is not None:
            self.skill_reads[row.skill_read] += 1


@dataclass(slots=True)
class StageRollouts:
    """The rollouts of one stage of one step."""

    done: int = 0
    failed: int = 0
    latest: float = 0.0  # time of the last one
