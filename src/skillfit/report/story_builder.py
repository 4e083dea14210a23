"""From events to the story of a run. `StoryBuilder` is fed event by event, so that a live page and
the report of a finished run agree. `RunFollower` and `read_story` read the events of a run's
directory, and the journal for the bill: failed attempts and all resumes are in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import singledispatchmethod
from pathlib import Path

from skillfit.models.providers.handoff import pending
from skillfit.report.run_text import verdict_sentence
from skillfit.report.story import (
    APPLIED,
    DataSummary,
    EditSummary,
    GateSummary,
    PersonDecision,
    Rejection,
    RunNotice,
    RunStory,
    SkillVersion,
    StageProgress,
)
from skillfit.report.story_evidence import EditPool, RolloutTotals, ScoreBook
from skillfit.run.control import DONE_TO_EDIT, EDIT_ACTIONS, read_requests
from skillfit.run.events import (
    AblationFinished,
    CandidateBuilt,
    Discarded,
    EvaluationFinished,
    Event,
    GateDecided,
    ItemsRead,
    PersonDecided,
    PreflightFinished,
    RolloutFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    SlowUpdateFinished,
    StageFinished,
    StageStarted,
    StepFinished,
    Stored,
    Warned,
)
from skillfit.run.journal import Bill
from skillfit.run.records import (
    DECIDED,
    RecordedConfig,
    slow_update_epoch,
    slow_update_name,
    step_name,
)
from skillfit.run.store import in_use
from skillfit.run.view import RunView, state_of
from skillfit.skill import estimate_tokens

_RECENT_STEPS = 5  # whose mean duration predicts the next ones
_LAST_ROLLOUT = """
SELECT json_extract(CAST(value AS TEXT), '$.attempt.isolation') FROM effects NOT INDEXED
WHERE key >= 'rollout/' AND key < 'rollout0' ORDER BY seq DESC LIMIT 1
"""


class StoryBuilder:
    """A listener; `story` is the story of all events so far."""

    def __init__(self) -> None:
        self.rollouts = RolloutTotals()
        self.scores = ScoreBook()
        self._started = _NOT_STARTED
        self._finished: RunFinished | None = None
        self._ship: ShipTested | None = None
        self._ablation: AblationFinished | None = None
        self._data = DataSummary()
        self._times: list[float] = []  # of the first and the last event
        self._gates: dict[str, GateSummary] = {}
        self._edits = EditPool()
        self._rejections: dict[str, list[Rejection]] = {}
        self._versions: dict[str, SkillVersion] = {}
        self._stages: dict[tuple[int, int, str], StageProgress] = {}
        self._step_ends: dict[int, float] = {}  # step -> when it was finished
        self._decisions: dict[int, PersonDecision] = {}
        self._notices: dict[str, list[RunNotice]] = {}
        self._best = ""

    @property
    def finished(self) -> bool:
        return self._finished is not None or self._ablation is not None

    def __call__(self, stored: Stored) -> None:
        self._times = [*self._times[:1], stored.at]
        if not _may_follow_end(stored.event):
            self._finished = None  # the run was resumed
        self._on(stored.event, stored)

    @singledispatchmethod
    def _on(self, event: Event, stored: Stored) -> None:
        """Other events add nothing to the story."""

    @_on.register
    def _(self, event: RunStarted, stored: Stored) -> None:
        self._started = event
        self._best = event.skill
        self._versions["initial"] = SkillVersion(
            "initial", "initial skill", event.skill, event.skill_hash
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
        found = event.evidence
        summary = GateSummary(
            name=event.name,
            step=event.step,
            epoch=slow_update_epoch(event.name) or 0,
            action=event.decision,
            reason=event.reason,
            difference=found.difference,
            interval=found.interval,
            probability=found.probability if found.rollouts else None,
            fixed=found.fixed,
            broken=found.broken,
            higher=found.higher,
            lower=found.lower,
            rollouts=found.rollouts,
            coverage=found.coverage,
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
        label = f"step {event.step}"
        self._add_version(
            SkillVersion(str(event.step), label, event.skill, event.skill_hash, after=event.step)
        )
        self._best = event.best_skill

    @_on.register
    def _(self, event: SlowUpdateFinished, stored: Stored) -> None:
        name = slow_update_name(event.epoch)
        if event.action in DECIDED:
            gate = self._gates.get(name) or GateSummary(name, 0, event.epoch, event.action)
            self._gates[name] = replace(gate, action=event.action, epoch=event.epoch)
        after, label = max(self._step_ends, default=0), f"slow update {event.epoch}"
        self._add_version(SkillVersion(f"slow {event.epoch}", label, event.skill, after=after))
        self._best = event.best_skill

    @_on.register
    def _(self, event: Discarded, stored: Stored) -> None:
        rejection = Rejection(event.step, event.stage, event.what, event.reason, event.evidence)
        self._rejections[event.key] = [rejection]

    @_on.register
    def _(self, event: Warned, stored: Stored) -> None:
        self._notices[event.key] = [RunNotice("warning", "", event.message)]

    @_on.register
    def _(self, event: PersonDecided, stored: Stored) -> None:
        self._decisions[event.number] = PersonDecision(
            event.number,
            event.action,
            event.target,
            event.text,
            event.command,
            stored.at,
            cap=event.cap,
        )
        self._edits.steered(event)

    @_on.register
    def _(self, event: ShipTested, stored: Stored) -> None:
        self._ship = event

    @_on.register
    def _(self, event: AblationFinished, stored: Stored) -> None:
        self._ablation = event

    @_on.register
    def _(self, event: RunFinished, stored: Stored) -> None:
        self._finished, self._best = event, event.best_skill

    def _add_version(self, version: SkillVersion) -> None:
        """Note a skill unless the step left it as it was."""
        last = next(reversed(self._versions.values()), None)
        if last is None or last.text != version.text:
            self._versions[version.name] = version

    def story(self) -> RunStory:
        """What the events say; the state of the run and its cost are filled in by the caller."""
        started, finished = self._started, self._finished
        unproven = finished.unproven_skill if finished else ""
        found = unproven or self._best
        ship = self._ship if self._ship is not None and self._ship.repeats else None
        return RunStory(
            run=started.run,
            path="",
            state="finished" if self.finished else "running",
            has_begun=started is not _NOT_STARTED,
            finished=finished,
            skill_name=started.skill_name,
            agent=started.model_of("agent"),
            optimizer=started.model_of("optimizer"),
            judge=started.model_of("judge"),
            version=started.version,
            metric=self.scores.evaluation.gate_metric,
            config=started.config,
            data=self._data,
            total_steps=started.total_steps,
            total_epochs=started.total_epochs,
            steps_done=len(self._step_ends),
            begun=self._times[0] if self._times else None,
            ended=self._times[-1] if self._times else None,
            seconds=self._seconds(),
            seconds_left=self._seconds_left(),
            initial_skill=started.skill,
            best_skill=self._best,
            unproven_skill=unproven if unproven != self._best else "",
            tokens=(estimate_tokens(started.skill), estimate_tokens(found)),
            versions=self._listed_versions(unproven),
            points=self.scores.points(self._ship, started.skill_hash),
            ship=ship,
            ablation=self._ablation,
            gates=tuple(self._gates.values()),
            edits=self._edits.listed(found),
            rejections=tuple(one for found in self._rejections.values() for one in found),
            types=self.scores.types(),
            stages=self._listed_stages(),
            decisions=tuple(self._decisions[number] for number in sorted(self._decisions)),
            notices=self._listed_notices(),
            graded=self.rollouts.graded,
            rollouts=self.rollouts.done,
        )

    def _seconds(self) -> float:
        if self._finished and self._finished.summary.total_wall_time_s:
            return self._finished.summary.total_wall_time_s
        return self._times[-1] - self._times[0] if self._times else 0.0

    def _seconds_left(self) -> float | None:
        """Steps that are left times the mean duration of the last ones."""
        left = self._started.total_steps - len(self._step_ends)
        recent = sorted(self._step_ends.values())[-_RECENT_STEPS - 1 :]
        if self._finished or len(recent) < 2 or left <= 0:
            return None
        return left * (recent[-1] - recent[0]) / (len(recent) - 1)

    def _listed_versions(self, unproven: str) -> tuple[SkillVersion, ...]:
        versions = list(self._versions.values())
        if not self._started.total_steps:  # an ablation
            shorter = self._ablation.shorter_skill if self._ablation else ""
            if shorter:
                versions.append(SkillVersion("shorter", "without what can be cut", shorter))
            return tuple(versions)
        if unproven and unproven != self._best:
            versions.append(SkillVersion("unproven", "found, unproven", unproven))
        if versions:
            label = "best so far" if self._finished is None else "handed back"
            versions.append(SkillVersion("best", label, self._best))
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
        total = self.rollouts.done
        for kind, count in self.rollouts.failures.most_common():
            message = self.rollouts.first_failure[kind]
            text = f"{count:,} of {total:,} rollouts failed and entered no score: {message}"
            listed.append(RunNotice("failed", kind, text))
        return tuple(listed)


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


def _may_follow_end(event: Event) -> bool:
    """Whether a finished run stays finished: decisions of people, warnings, `skillfit check`."""
    if isinstance(event, StageStarted | StageFinished):
        return event.stage == "preflight"
    if isinstance(event, RolloutFinished):
        return event.phase == "preflight"
    return isinstance(event, PersonDecided | Warned | PreflightFinished)


def _grader_name(grader: object) -> str:
    if isinstance(grader, dict):
        return ", ".join(str(name) for name in grader)
    return str(grader or "exact")


def read_story(path: Path) -> RunStory:
    """The story of the run in `path`, which may still be running."""
    return RunFollower(path).story()


class RunFollower:
    """A run's story, brought up to date at each call of `story`.

    Every call opens the journal and closes it again, so no connection is ever shared between
    threads. Calls must not overlap.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()
        self._builder = StoryBuilder()
        self._bill = Bill()
        self._last = 0  # number of the last event that was read
        self._isolation = ""

    def story(self) -> RunStory:
        with closing(RunView.open(self.path)) as view:
            run_id = view.run_id
            with view.events.snapshot():
                self._read_events(view)
            self._bill = view.journal.bill(self._bill)
            self._isolation = self._isolation or _isolation(view)
        return self._complete(run_id)

    def _read_events(self, view: RunView) -> None:
        if self._last:
            for stored in view.events.read(self._last):
                self._builder(stored)
                self._last = stored.seq
            return
        for stored in view.events.without(RolloutFinished):
            self._builder(stored)
        for row in view.events.found(RolloutFinished, "ship"):
            self._builder.scores.ship_rows[row.rollout] = row
        self._builder.rollouts.read(view.events)
        self._last = view.events.newest()

    def _complete(self, run_id: str) -> RunStory:
        story = self._builder.story()
        retried = [
            RunNotice(
                "retried", kind, f"{count:,} calls failed ({kind}) and were repeated or given up"
            )
            for kind, count in Counter(self._bill.failures).most_common()
        ]
        running = in_use(self.path)
        decisions = _with_requests(self.path, story.decisions, running=running)
        edits = tuple(_with_decision(edit, decisions) for edit in story.edits)
        state = state_of(
            self.path,
            running=running,
            finished=self._builder.finished,
            to_review=any(edit.awaits_approval for edit in edits),
        )
        story = replace(
            story,
            run=run_id or story.run,
            path=str(self.path),
            state=state,
            isolation=self._isolation,
            costs=self._bill.rows,
            total=self._bill.total,
            notices=(*story.notices, *retried),
            prompts=len(pending(self.path / "handoff")),
            applied=any((self.path / APPLIED).glob("*.json")),
            decisions=decisions,
            edits=edits,
        )
        return replace(story, verdict=verdict_sentence(story))


def _isolation(view: RunView) -> str:
    """How the programs of the agent were isolated in the last rollout; empty when it ran none."""
    rows = view.journal.query(_LAST_ROLLOUT)
    return str(rows[0][0] or "") if rows else ""


def _with_requests(
    path: Path, recorded: tuple[PersonDecision, ...], *, running: bool
) -> tuple[PersonDecision, ...]:
    """What the run recorded, then what it has not taken up yet."""
    numbers = {decision.number for decision in recorded}
    requests = [request for request in read_requests(path) if request.number not in numbers]
    waiting = [
        PersonDecision(
            request.number,
            request.action,
            request.target,
            request.text,
            request.command(path.name),
            request.at,
            done=request.action in ("apply", "undo") or (request.action == "stop" and not running),
        )
        for request in requests
    ]
    return (*recorded, *waiting)


def _with_decision(edit: EditSummary, decisions: Sequence[PersonDecision]) -> EditSummary:
    """An edit under review that a person has decided on waits for the run, not for a person."""
    answers = [
        one.action
        for one in decisions
        if not one.done and one.target == edit.id and one.action in EDIT_ACTIONS
    ]
    if not answers or not edit.awaits_approval:
        return edit
    reason = f"{DONE_TO_EDIT[answers[-1]]}, waits for the run to take it up"
    return replace(edit, reason=reason, awaits_approval=False)
