"""Reading a run's story from its directory, once, or repeatedly while it is running. Events
give the story, the journal gives the bill: failed attempts and all resumes are in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

from skillfit.models.providers.handoff import pending
from skillfit.report.story import Cost, EditSummary, Notice, PersonDecision, RunStory
from skillfit.report.story_builder import StoryBuilder
from skillfit.report.verdict_text import verdict_sentence
from skillfit.run.control import read_requests
from skillfit.run.directory import RunDirectory, RunView, state_of
from skillfit.run.events import RolloutFinished
from skillfit.run.journal import Journal


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
        self._costs = CostTotals()
        self._last = 0  # number of the last event that was read
        self._isolation = ""

    def story(self) -> RunStory:
        with open_run(self.path) as view:
            run_id = view.run_id
            with view.events.snapshot():
                self._read_events(view)
            self._costs.read(view.journal)
            self._isolation = self._isolation or _isolation(view)
        return self._told(run_id)

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

    def _told(self, run_id: str) -> RunStory:
        story = self._builder.story()
        costs = self._costs.listed()
        retried = [
            Notice(
                "retried", kind, f"{count:,} calls failed ({kind}) and were repeated or given up"
            )
            for kind, count in self._costs.retries.most_common()
        ]
        state = state_of(self.path, finished=self._builder.finished)
        decisions = _with_requests(self.path, story.decisions, running=state == "running")
        story = replace(
            story,
            run=run_id or story.run,
            path=str(self.path),
            state=state,
            isolation=self._isolation,
            costs=costs,
            total=reduce(Cost.plus, costs, Cost("total")),
            notices=(*story.notices, *retried),
            prompts=len(pending(self.path / "handoff")),
            decisions=decisions,
            edits=tuple(_with_decision(edit, decisions) for edit in story.edits),
        )
        return replace(story, verdict=verdict_sentence(story))


_LAST_ROLLOUT = """
SELECT json_extract(CAST(value AS TEXT), '$.attempt.isolation') FROM effects NOT INDEXED
WHERE key >= 'rollout/' AND key < 'rollout0' ORDER BY seq DESC LIMIT 1
"""


def _isolation(view: RunView) -> str:
    """How the programs of the agent were isolated in the last rollout; empty when it ran none."""
    rows = view.journal.query(_LAST_ROLLOUT)
    return str(rows[0][0] or "") if rows else ""


@contextmanager
def open_run(path: Path) -> Iterator[RunView]:
    """The run for reading, closed at the end."""
    with closing(RunDirectory.read(path)) as view:
        yield view


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
        if not one.done and one.target == edit.id and one.action in _ANSWERS
    ]
    if not answers or not edit.awaits_approval:
        return edit
    return replace(edit, reason=f"{_ANSWERS[answers[-1]]}, waits for the run to take it up")


_ANSWERS = {
    "approve": "approved",
    "decline": "declined",
    "pin": "pinned",
    "veto": "vetoed",
    "reword": "reworded",
}
_SUMS = """
SELECT stage, role, model, max(seq), sum(calls), sum(tokens), sum(usd),
       sum(usd IS NULL AND calls > 0)
FROM (
  SELECT seq, stage, role, model, json_extract(usage, '$.calls') AS calls,
    json_extract(usage, '$.input') + json_extract(usage, '$.output') AS tokens,
    json_extract(usage, '$.usd') AS usd
  FROM {table} WHERE seq > ?)
GROUP BY stage, role, model
"""
_RETRIES = "SELECT kind, count(*), max(seq) FROM losses WHERE seq > ? GROUP BY kind"


@dataclass(slots=True)
class CostTotals:
    """The bill of a run. `read` adds what was recorded since the last call."""

    costs: dict[tuple[str, str, str], Cost] = field(default_factory=dict)
    retries: Counter[str] = field(default_factory=Counter)  # kind of a failed call -> how many
    _seen: dict[str, int] = field(default_factory=dict)

    def read(self, journal: Journal) -> None:
        retried = self._seen.get("losses", 0)
        for kind, count, _ in journal.query(_RETRIES, (retried,)):
            self.retries[kind] += count
        for table in ("effects", "losses"):
            self._read(journal, table)

    def _read(self, journal: Journal, table: str) -> None:
        seen = self._seen.get(table, 0)
        last = seen
        for stage, role, model, seq, calls, tokens, usd, unpriced in journal.query(
            _SUMS.format(table=table), (seen,)
        ):
            last = max(last, seq)
            if not calls:
                continue
            key = (stage, role, model)
            used = Cost(*key, calls=calls, tokens=tokens or 0, usd=None if unpriced else usd)
            self.costs[key] = self.costs.get(key, Cost(*key)).plus(used)
        self._seen[table] = last

    def listed(self) -> tuple[Cost, ...]:
        return tuple(self.costs.values())
