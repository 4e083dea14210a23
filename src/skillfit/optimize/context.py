"""What the optimizer reads: trajectories, the memory of earlier steps, and pending edits.

Trajectories are fitted to a number of tokens. The text of the skill and of the task is not
repeated. What does not fit is cut from the middle, with a mark that says how much is missing. The
result of an attempt (score, feedback) is always shown. The grader's evidence is never shown: a
skill written from it would fit the grader instead of the task.

The memory holds failures, and edits with their effects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from skillfit.optimize.optimizer import Patch, union
from skillfit.plain_text import head_and_tail
from skillfit.rollout.outcome import Arm, Outcome
from skillfit.run.records import EditEffect, FailurePattern, ProposalRecord, StepMemory
from skillfit.skill import Edit, Skill, estimate_tokens
from skillfit.tasks.item import Item, Step

_REPEATED = 80  # shorter texts are not worth a placeholder and could match by chance


@dataclass(frozen=True, slots=True)
class Context:
    """What analysts know besides the trajectories."""

    step: int
    edit_budget: int | None = None  # None: no limit
    memory: str = ""  # earlier steps of the epoch
    meta_skill: str = ""  # the optimizer's advice to itself
    pending: tuple[EditEffect, ...] = ()  # edits under test, with their effects so far

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
    """The cases in order within `room` tokens, each with a fair share of it.

    Without `trace`, tool steps are left out. `pending` are ids of edits under test: each attempt
    says which of them its skill carried.
    """
    full = [_Parts.of(case, skill, trace=trace, pending=pending) for case in cases]
    whole = "\n\n".join(parts.text() for parts in full)
    tokens = estimate_tokens(whole)
    if tokens <= room:
        return whole
    characters = int(room * len(whole) / tokens)
    shares = fair_shares([len(parts.text()) for parts in full], characters)
    return "\n\n".join(
        parts.within(share).text() for parts, share in zip(full, shares, strict=True)
    )


def fair_shares(sizes: Sequence[int], room: int) -> list[int]:
    """What each may take of `room`: small ones keep all they need, the others share the rest
    evenly.
    """
    shares = [0] * len(sizes)
    left = room
    for rank, index in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
        shares[index] = min(sizes[index], left // (len(sizes) - rank))
        left -= shares[index]
    return shares


def failure_reason(outcome: Outcome) -> str:
    """What the grader lets the optimizer know about a score below full marks."""
    if outcome.score is None or outcome.succeeded:
        return ""
    return outcome.score.feedback.strip() or "the answer was not accepted"


@dataclass(frozen=True, slots=True)
class _Attempted:
    label: str
    steps: str
    verdict: str


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a case. When there is little room, the middle of the steps is cut first and the
    verdict last.
    """

    title: str
    task: str
    attempts: tuple[_Attempted, ...]

    @classmethod
    def of(
        cls, case: ItemAttempts, skill: Skill, *, trace: bool, pending: frozenset[str]
    ) -> _Parts:
        item = case.item
        if item.split in ("selection", "test"):
            raise ValueError(
                f"item {item.id} of the {item.split} split was handed to the optimizer, "
                "which may only see training items"
            )
        kind = f" ({item.type})" if item.type else ""
        text = item.input.strip()
        attempts = []
        for number, outcome in enumerate(case.outcomes):
            if outcome.score is None:
                continue
            label = (
                case.labels[number]
                if case.labels
                else ("" if len(case.outcomes) == 1 else f"Attempt {number + 1}")
            )
            arm = case.arms[number] if case.arms else Arm(skill)
            steps = _without_repeats(_steps(outcome, trace=trace), text, arm.skill.unix_body)
            carried = [edit for edit in arm.edits if edit in pending]
            verdict = _verdict(outcome)
            if pending:
                verdict += f"\nPending edits in effect: {', '.join(carried) or 'none'}"
            attempts.append(_Attempted(label, steps, verdict))
        return cls(f"### Item {item.id}{kind}", f"Task:\n{text}{_beside(item)}", tuple(attempts))

    def text(self) -> str:
        pieces = [self.title, self.task]
        for attempt in self.attempts:
            pieces += [f"#### {attempt.label}"] if attempt.label else []
            pieces += [attempt.steps, attempt.verdict]
        return "\n\n".join(pieces)

    def within(self, room: int) -> _Parts:
        if len(self.text()) <= room:
            return self
        shortened = [
            replace(
                one, verdict=head_and_tail(one.verdict, max(room // (3 * len(self.attempts)), 200))
            )
            for one in self.attempts
        ]
        fixed = len(self.title) + sum(len(one.label) + len(one.verdict) + 10 for one in shortened)
        task, *steps = fair_shares(
            [len(self.task), *(len(one.steps) for one in shortened)], max(0, room - fixed)
        )
        # The end of a trajectory usually shows what went wrong: it gets the larger half.
        attempts = [
            replace(one, steps=head_and_tail(one.steps, share, head=0.4))
            for one, share in zip(shortened, steps, strict=True)
        ]
        return _Parts(self.title, head_and_tail(self.task, task), tuple(attempts))


def _beside(item: Item) -> str:
    """What belongs to the task besides its text."""
    expected = "\n".join(item.answers)
    parts = [("Expected answer", expected), ("Reference", item.reference)]
    attached = ", ".join(path.name for path in item.attachments())
    files = f"\n\nAttached for the agent, not shown here: {attached}" if attached else ""
    return files + "".join(
        f"\n\n{name} (the agent does not see it):\n{text.strip()}"
        for name, text in parts
        if text.strip()
    )


def _steps(outcome: Outcome, *, trace: bool) -> str:
    attempt = outcome.attempt
    if attempt is None:
        return "(no trajectory was kept)"
    shown = [step for step in attempt.steps if trace or step.kind == "message"]
    lines = [_step(step) for step in shown]
    answer = attempt.answer.strip()
    if not (shown and shown[-1].text.strip() == answer):
        lines.append(f"[answer] {answer or '(empty)'}")
    return "\n".join(lines)


def _step(step: Step) -> str:
    names = {
        "message": step.role,
        "tool_call": f"calls {step.name}",
        "tool_result": f"{step.name} returns",
        "note": "note",
    }
    return f"[{names[step.kind].strip()}] {step.text.strip()}"


def _without_repeats(text: str, task: str, skill: str) -> str:
    for repeated, name in ((skill.strip(), "the skill"), (task, "the task, as above")):
        if len(repeated) >= _REPEATED:
            text = text.replace(repeated, f"[{name}]")
    return text


def _verdict(outcome: Outcome) -> str:
    score = outcome.score
    if score is None:
        return ""
    result = "succeeded" if outcome.succeeded else "failed"
    soft = f", soft {score.soft:.2f}" if score.soft != score.hard else ""
    reason = failure_reason(outcome)
    details = (
        f"\nWhy: {reason}"
        if reason
        else (f"\nFeedback: {score.feedback.strip()}" if score.feedback.strip() else "")
    )
    return f"Result: {result} (hard {score.hard:.2f}{soft}){details}"


_ROOM = 12_000  # characters of the rendered memory
_EDIT_ROOM = 400


def failure_patterns(
    outcomes: Sequence[Outcome], patches: Sequence[Patch]
) -> tuple[FailurePattern, ...]:
    """The kinds of failure of a step, most frequent first: as analysts described them, and the rest
    by the grader's reason.
    """
    failed = {
        outcome.item_id: failure_reason(outcome)
        for outcome in outcomes
        if outcome.score is not None and not outcome.succeeded
    }
    patterns: dict[str, FailurePattern] = {}
    for note in (note for patch in patches for note in patch.failure_summary):
        key = note.failure_type.casefold().strip()
        first = patterns.setdefault(key, FailurePattern(note.failure_type, 0, (), note.description))
        items = union(first.task_ids, (item for item in note.items if item in failed))
        patterns[key] = replace(first, task_ids=items, count=len(items) or first.count + note.count)
    described = {item for pattern in patterns.values() for item in pattern.task_ids}
    by_reason: dict[str, list[str]] = {}
    for item, reason in failed.items():
        if item not in described:
            by_reason.setdefault(
                head_and_tail(reason.partition(":")[0].partition("\n")[0].strip(), 120), []
            ).append(item)
    rest = [FailurePattern(reason, len(items), tuple(items)) for reason, items in by_reason.items()]
    return tuple(sorted([*patterns.values(), *rest], key=lambda pattern: -pattern.count))


def render_memory(entries: Sequence[StepMemory], room: int = _ROOM) -> str:
    """The entries as analysts read them. When they do not fit, the oldest go first and a line says
    how many.
    """
    shown: list[str] = []
    for entry in reversed(entries):
        text = _entry(entry)
        if shown and sum(map(len, shown)) + len(text) > room:
            break
        shown.insert(0, head_and_tail(text, room))
    left_out = len(entries) - len(shown)
    return "\n\n".join([*([f"({left_out} earlier steps left out)"] if left_out else []), *shown])


def _entry(entry: StepMemory) -> str:
    scores = ""
    if entry.score_before is not None and entry.score_after is not None:
        scores = f", score {entry.score_before:.3f} -> {entry.score_after:.3f}"
    lines = [
        (
            f"Step {entry.step}: {entry.action}{scores}; {entry.n_fail} of {entry.n_total} "
            "rollouts failed"
        )
    ]
    for pattern in entry.failure_patterns:
        described = (
            f": {head_and_tail(pattern.description, _EDIT_ROOM)}" if pattern.description else ""
        )
        lines.append(f"- failed {pattern.count}x, {pattern.pattern}{described}")
    for proposal in entry.rejected_edits:
        lines.append(f"- rejected: {head_and_tail(_proposal_text(proposal), _EDIT_ROOM)}")
    for effect in entry.decided:
        lines.append(f"- {effect.status}: {effect_line(effect)}")
    return "\n".join(lines)


def render_pending(effects: Sequence[EditEffect]) -> str:
    """The pending edits as analysts read them: one line each, with the measured effect."""
    return "\n".join(f"[{effect.id}] {effect_line(effect)}" for effect in effects)


def effect_line(effect: EditEffect) -> str:
    """An edit and its effect: `append "…": +0.04 (+0.01 to +0.07) after 120 rollouts`."""
    if effect.mean is None:
        measured = "not measured yet"
    else:
        interval = f"{effect.low:+.2f} to {effect.high:+.2f}"
        measured = f"{effect.mean:+.2f} ({interval}) after {effect.rollouts} rollouts"
    return f"{head_and_tail(_edit_text(effect.edit), _EDIT_ROOM)}: {measured}"


def _proposal_text(proposal: ProposalRecord) -> str:
    if proposal.edit is not None:
        return _edit_text(proposal.edit)
    written = proposal.suggestion or proposal.candidate
    fields = asdict(written) if written is not None else {}
    return json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=False)


def _edit_text(edit: Edit) -> str:
    fields = {"op": edit.op, "target": edit.target, "content": edit.content}
    return json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=False)
