"""What the optimizer reads: trajectories, the memory of earlier steps, and pending edits.

Trajectories are fitted to a number of tokens (`render_cases`). The text of the skill and of the
task is not repeated in them. What does not fit is cut from the middle, with a mark that says how
much is missing. Every attempt is shown with its result (score, feedback), of which at least the
beginning and the end stay. The grader's evidence is never shown: a skill written from it would fit
the grader instead of the task.

The memory (`render_memory`) tells what failed in earlier steps and what became of their edits.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from skillfit.optimize.optimizer import Patch, Payload, payload_fields, union
from skillfit.plain_text import head_and_tail, quantity, shorten
from skillfit.rollout.outcome import Arm, Outcome
from skillfit.run.records import (
    EditEffect,
    FailureNote,
    FailurePattern,
    ProposalRecord,
    RefusedText,
    StepMemory,
    kinds_text,
)
from skillfit.skill import Edit, Skill, estimate_tokens
from skillfit.tasks.item import Item, TrajectoryStep

_SHORTEST_REPEAT = 80  # shorter texts are not worth a placeholder and could match by chance
_SHORTEST_VERDICT = 200  # characters that a verdict keeps when there is little room
_ATTEMPT_MARKUP = 10  # characters around the label and the verdict of an attempt
_MEMORY_ROOM = 12_000  # characters of the rendered memory
_EDIT_ROOM = 400  # characters of an edit or of a description in it
_REFUSED_SHOWN = 8  # refused texts of the run in it
_LEAKED_ROOM = 100  # characters of a leak in it
_REFUSED = (
    "Refused and never tried, because they contain an answer or the text of an item that the skill "
    "must work for without knowing it, or a rule of the grader. Say what is useful in them without "
    "the words named:"
)
_REASON_ROOM = 120  # characters of a grader's reason that names a kind of failure


@dataclass(frozen=True, slots=True)
class Context:
    """What proposers, and the stages that select and rewrite, are told of a step besides its
    trajectories.
    """

    step: int
    edit_budget: int | None = None  # None: no limit
    memory: str = ""  # earlier steps of the epoch
    meta_skill: str = ""  # the optimizer's advice to itself
    pending: tuple[EditEffect, ...] = ()  # edits under test, with their effects so far
    history: tuple[ItemAttempts, ...] = ()  # training cases of earlier steps, oldest first
    effects: tuple[EditEffect, ...] = ()  # all edits of the pool, dropped ones too
    working: Skill | None = None  # the incumbent with all pending edits; None: the incumbent
    guidance: str = ""  # the owner's wishes
    evidence: str = ""  # failures of the whole run, and the edits that were tried against them

    @property
    def pending_ids(self) -> frozenset[str]:
        return frozenset(effect.id for effect in self.pending)


@dataclass(frozen=True, slots=True)
class ItemAttempts:
    """An item and its rollouts: with several per item, failures beside successes."""

    item: Item
    outcomes: tuple[Outcome, ...]
    labels: tuple[str, ...] = ()  # one per rollout; numbered when not given
    arms: tuple[Arm, ...] = ()  # what each rollout ran under; empty: the skill shown

    @property
    def scored(self) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.score is not None)

    @property
    def failed(self) -> bool:
        return any(not outcome.succeeded for outcome in self.scored)

    @property
    def mixed(self) -> bool:
        return self.failed and any(outcome.succeeded for outcome in self.scored)


def render_cases(
    cases: Sequence[ItemAttempts],
    skill: Skill,
    room: int,
    *,
    trace: bool = True,
    pending: frozenset[str] = frozenset(),
) -> str:
    """Render the cases in order within `room` tokens, each with a fair share of it.

    Without `trace`, tool steps are left out. `pending` are ids of edits under test: each attempt
    says which of them its skill carried.
    """
    shown = [_ShownCase.of(case, skill, trace=trace, pending=pending) for case in cases]
    whole = "\n\n".join(case.text() for case in shown)
    tokens = estimate_tokens(whole)
    if tokens <= room:
        return whole
    characters = int(room * len(whole) / tokens)
    shares = fair_shares([len(case.text()) for case in shown], characters)
    cut = (case.within(share) for case, share in zip(shown, shares, strict=True))
    return "\n\n".join(case.text() for case in cut)


def failure_reason(outcome: Outcome) -> str:
    """Return what the optimizer is told about a score below full marks, else an empty text."""
    if outcome.score is None or outcome.succeeded:
        return ""
    return outcome.score.feedback.strip() or "the answer was not accepted"


def fair_shares(sizes: Sequence[int], room: int) -> list[int]:
    """Divide `room`: short texts keep all, the others share the rest."""
    shares = [0] * len(sizes)
    left = room
    smallest_first = sorted(range(len(sizes)), key=lambda index: sizes[index])
    for served, index in enumerate(smallest_first):
        shares[index] = min(sizes[index], left // (len(sizes) - served))
        left -= shares[index]
    return shares


@dataclass(frozen=True, slots=True)
class _ShownCase:
    """The texts of one case. Where they do not fit, `within` cuts each in its middle."""

    title: str
    task: str
    attempts: tuple[_ShownAttempt, ...]

    @classmethod
    def of(
        cls, case: ItemAttempts, skill: Skill, *, trace: bool, pending: frozenset[str]
    ) -> _ShownCase:
        item = case.item
        if item.split in ("selection", "test"):
            raise ValueError(
                f"item {item.id} of the {item.split} split was handed to the optimizer, "
                "which may only see training items"
            )
        kind = f" ({item.type})" if item.type else ""
        task = item.input.strip()
        attempts = []
        for number, outcome in enumerate(case.outcomes):
            if outcome.score is None:
                continue
            arm = case.arms[number] if case.arms else Arm(skill)
            steps = _without_repeats(steps_text(outcome, trace=trace), task, arm.skill.unix_body)
            verdict = verdict_text(outcome)
            if pending:
                verdict += f"\n{_carried_text(arm, pending)}"
            attempts.append(_ShownAttempt(_attempt_label(case, number), steps, verdict))
        shown_task = f"Task:\n{task}{_attached_files(item)}{expected_answer(item)}"
        return cls(f"### Item {item.id}{kind}", shown_task, tuple(attempts))

    def text(self) -> str:
        pieces = [self.title, self.task]
        for attempt in self.attempts:
            if attempt.label:
                pieces.append(f"#### {attempt.label}")
            pieces += [attempt.steps, attempt.verdict]
        return "\n\n".join(pieces)

    def within(self, room: int) -> _ShownCase:
        """Cut the case to about `room` characters. The verdicts are cut first: together to a third
        of the room, but none below _SHORTEST_VERDICT. Task and steps share what is left.
        """
        if len(self.text()) <= room:
            return self
        verdict_room = max(room // (3 * len(self.attempts)), _SHORTEST_VERDICT)
        attempts = [
            replace(attempt, verdict=head_and_tail(attempt.verdict, verdict_room))
            for attempt in self.attempts
        ]
        fixed = len(self.title)
        for attempt in attempts:
            fixed += len(attempt.label) + len(attempt.verdict) + _ATTEMPT_MARKUP
        sizes = [len(self.task), *(len(attempt.steps) for attempt in attempts)]
        task_room, *steps_rooms = fair_shares(sizes, max(0, room - fixed))
        # The end of a trajectory usually shows what went wrong: it gets the larger half.
        attempts = [
            replace(attempt, steps=head_and_tail(attempt.steps, steps_room, head=0.4))
            for attempt, steps_room in zip(attempts, steps_rooms, strict=True)
        ]
        return _ShownCase(self.title, head_and_tail(self.task, task_room), tuple(attempts))


@dataclass(frozen=True, slots=True)
class _ShownAttempt:
    """The texts of one attempt."""

    label: str  # empty: the item's only attempt
    steps: str
    verdict: str


def _carried_text(arm: Arm, pending: frozenset[str]) -> str:
    """Say which pending edits an attempt carried, or which it did not, whichever is shorter."""
    carried = sorted(pending.intersection(arm.edits))
    missing = sorted(pending.difference(arm.edits))
    if not missing:
        return "Pending edits in effect: all"
    if len(missing) < len(carried):
        return f"Pending edits in effect: all but {', '.join(missing)}"
    return f"Pending edits in effect: {', '.join(carried) or 'none'}"


def _attempt_label(case: ItemAttempts, number: int) -> str:
    if case.labels:
        return case.labels[number]
    return f"Attempt {number + 1}" if len(case.outcomes) > 1 else ""


def _attached_files(item: Item) -> str:
    names = ", ".join(path.name for path in item.attachments())
    return f"\n\nAttached for the agent, not shown here: {names}" if names else ""


def expected_answer(item: Item) -> str:
    """Return what the optimizer is told of the right answer; empty where there is none."""
    texts = {"Expected answer": "\n".join(item.answers), "Reference": item.reference}
    return "".join(
        f"\n\n{name} (the agent does not see it):\n{text.strip()}"
        for name, text in texts.items()
        if text.strip()
    )


def steps_text(outcome: Outcome, *, trace: bool) -> str:
    """Render what the agent did, a line for each step. Without `trace`, tool steps are left out."""
    attempt = outcome.attempt
    if attempt is None:
        return "(no trajectory was kept)"
    shown = [step for step in attempt.steps if trace or step.kind == "message"]
    lines = [_step_line(step) for step in shown]
    answer = attempt.answer.strip()
    if not (shown and shown[-1].text.strip() == answer):
        lines.append(f"[answer] {answer or '(empty)'}")
    return "\n".join(lines)


def _step_line(step: TrajectoryStep) -> str:
    names = {
        "message": step.role,
        "tool_call": f"calls {step.name}",
        "tool_result": f"{step.name} returns",
        "note": "note",
    }
    return f"[{names[step.kind].strip()}] {step.text.strip()}"


def _without_repeats(text: str, task: str, skill: str) -> str:
    """Put a placeholder wherever the text repeats the whole skill or the whole task."""
    for repeated, name in ((skill.strip(), "the skill"), (task, "the task, as above")):
        if len(repeated) >= _SHORTEST_REPEAT:
            text = text.replace(repeated, f"[{name}]")
    return text


def verdict_text(outcome: Outcome) -> str:
    """Render the scores of a rollout and what the grader says; empty where it has no score."""
    score = outcome.score
    if score is None:
        return ""
    result = "succeeded" if outcome.succeeded else "failed"
    soft = f", soft {score.soft:.2f}" if score.soft != score.hard else ""
    verdict = f"Result: {result} (hard {score.hard:.2f}{soft})"
    if reason := failure_reason(outcome):
        return f"{verdict}\nWhy: {reason}"
    feedback = score.feedback.strip()
    return f"{verdict}\nFeedback: {feedback}" if feedback else verdict


def render_memory(entries: Sequence[StepMemory], refused: Sequence[RefusedText] = ()) -> str:
    """Render the entries as analysts read them. When they do not fit, the oldest go first and a
    line says how many. Below them, the latest texts that the leak check refused.
    """
    shown: list[str] = []
    for entry in reversed(entries):
        text = _memory_entry(entry)
        if shown and sum(map(len, shown)) + len(text) > _MEMORY_ROOM:
            break
        shown.insert(0, head_and_tail(text, _MEMORY_ROOM))
    if left_out := len(entries) - len(shown):
        shown.insert(0, f"({left_out} earlier steps left out)")
    latest = list({one.text: one for one in refused}.values())[-_REFUSED_SHOWN:]
    if latest:
        shown.append("\n".join([_REFUSED, *map(_refused_line, latest)]))
    return "\n\n".join(shown)


def _refused_line(refused: RefusedText) -> str:
    words = ", ".join(f'"{shorten(text, _LEAKED_ROOM)}"' for text in refused.leaked)
    text = json.dumps(head_and_tail(refused.text, _EDIT_ROOM), ensure_ascii=False)
    return f"- {text}: refused because of {words}"


def _memory_entry(entry: StepMemory) -> str:
    scores = ""
    if entry.score_before is not None and entry.score_after is not None:
        scores = f", score {entry.score_before:.3f} -> {entry.score_after:.3f}"
    failed = f"{entry.n_fail} of {entry.n_total} rollouts failed"
    lines = [f"Step {entry.step}: {entry.action}{scores}; {failed}"]
    for pattern in entry.failure_patterns:
        line = f"- failed {pattern.count}x, {pattern.pattern}"
        if pattern.description:
            line += f": {head_and_tail(pattern.description, _EDIT_ROOM)}"
        lines.append(line)
    for proposal in entry.rejected_edits:
        lines.append(f"- rejected: {head_and_tail(_proposal_text(proposal), _EDIT_ROOM)}")
    for effect in entry.decided:
        lines.append(f"- {effect.status}: {_effect_line(effect)}")
    return "\n".join(lines)


def render_pending(effects: Sequence[EditEffect]) -> str:
    """Render the pending edits as analysts read them: one line each, with the measured effect."""
    return "\n".join(f"[{effect.id}] {_effect_line(effect)}" for effect in effects)


def _effect_line(effect: EditEffect) -> str:
    """Render an edit and its effect: `append "…": +0.04 (+0.01 to +0.07) after 120 rollouts`."""
    return f"{edit_text(effect.edit)}: {measured_effect(effect)}"


def measured_effect(effect: EditEffect) -> str:
    """Describe an effect, and the types of items that it acts on: `+0.04 (+0.01 to +0.07) after 120
    rollouts; +0.41 on money, 18 of 60 items`.
    """
    if effect.mean is None:
        return "not measured yet"
    interval = f"{effect.low:+.2f} to {effect.high:+.2f}"
    overall = f"{effect.mean:+.2f} ({interval}) after {quantity(effect.rollouts, 'rollout')}"
    return "; ".join(filter(None, [overall, kinds_text(effect.kinds)]))


def edit_text(edit: Edit) -> str:
    """Return what the optimizer wrote of an edit, as JSON; cut when it is long."""
    return head_and_tail(_payload_text(edit), _EDIT_ROOM)


def _proposal_text(proposal: ProposalRecord) -> str:
    payload = proposal.edit or proposal.suggestion or proposal.candidate
    return _payload_text(payload) if payload is not None else "{}"


def _payload_text(payload: Payload) -> str:
    """Return the fields of a payload as JSON, without empty ones."""
    fields = {name: value for name, value in payload_fields(payload).items() if value}
    return json.dumps(fields, ensure_ascii=False)


def failure_patterns(
    outcomes: Sequence[Outcome], patches: Sequence[Patch]
) -> tuple[FailurePattern, ...]:
    """Return the kinds of failure of a step, most frequent first: as analysts described them, and
    the rest by the grader's reason.
    """
    reasons = {
        outcome.item_id: failure_reason(outcome)
        for outcome in outcomes
        if outcome.score is not None and not outcome.succeeded
    }
    notes = [note for patch in patches for note in patch.failure_summary]
    solved = {outcome.item_id for outcome in outcomes if outcome.succeeded} - reasons.keys()
    described = _described_patterns(notes, solved)
    covered = {item for pattern in described for item in pattern.task_ids}
    rest = {item: reason for item, reason in reasons.items() if item not in covered}
    patterns = [*described, *_patterns_by_reason(rest)]
    return tuple(sorted(patterns, key=lambda pattern: -pattern.count))


def _described_patterns(
    notes: Sequence[FailureNote], solved: Collection[str]
) -> list[FailurePattern]:
    """Return one pattern for each failure type that analysts named, with items of earlier steps
    that they read too. A type that names no failed item keeps the analysts' own count.
    """
    patterns: dict[str, FailurePattern] = {}
    for note in notes:
        key = note.failure_type.casefold().strip()
        first = patterns.setdefault(key, FailurePattern(note.failure_type, 0, (), note.description))
        items = union(first.task_ids, (item for item in note.items if item not in solved))
        patterns[key] = replace(first, task_ids=items, count=len(items) or first.count + note.count)
    return list(patterns.values())


def _patterns_by_reason(reasons: Mapping[str, str]) -> list[FailurePattern]:
    """Group failures by the beginning of the grader's reason, up to its first colon or line end."""
    items: dict[str, list[str]] = {}
    for item, reason in reasons.items():
        beginning = reason.partition(":")[0].partition("\n")[0].strip()
        items.setdefault(head_and_tail(beginning, _REASON_ROOM), []).append(item)
    return [FailurePattern(name, len(found), tuple(found)) for name, found in items.items()]
