"""All training rollouts of a run so far, as the corpus proposer reads them: counted, and the most
telling ones chosen to be shown in full.

Items are grouped by kind: by their type or, where no item has one, by what the grader said or by
what their inputs have in common; inputs that hardly have anything in common are one kind. A kind is
open while its newest rollouts fail.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from statistics import median

from skillfit.optimize.context import ItemAttempts, failure_reason, render_cases
from skillfit.optimize.likeness import groups_of_like
from skillfit.plain_text import one_line, quantity
from skillfit.rollout.outcome import Arm, Outcome
from skillfit.skill import Skill, estimate_tokens
from skillfit.tasks.item import Item, TrajectoryStep

_MOST_LINES = 12  # of one list of statistics
_MOST_GROUPS = 12  # of inputs, where items have no type
_ALIKE = 0.35  # inputs that are less alike begin a new group
_SHOWN_ATTEMPTS = 4  # of one item
_MOST_SUCCESSES = 8  # cases that succeed, shown so that they are not broken
_SUCCESS_SHARE = 0.15  # of the room
_SMALLEST_CASE = 300  # tokens
_MESSAGE_ROOM = 120  # characters of a grader's message
_CLEAR_SHARE = 0.25  # by which edits are carried more often on one side of a contrast

_QUOTED = re.compile(r"'[^'\n]{1,200}'|\"[^\"\n]{1,200}\"|`[^`\n]{1,200}`")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class Seen:
    """One scored rollout of a training item."""

    item: Item
    outcome: Outcome
    arm: Arm | None  # None: the skill shown
    newest: bool  # of the newest round


@dataclass(frozen=True, slots=True)
class Kind:
    """The rollouts of one kind of items, oldest first."""

    name: str
    rollouts: tuple[Seen, ...]

    @property
    def newest(self) -> tuple[Seen, ...]:
        return tuple(seen for seen in self.rollouts if seen.newest)

    @property
    def failures(self) -> tuple[Seen, ...]:
        return tuple(seen for seen in self.rollouts if not seen.outcome.succeeded)

    @property
    def new_failures(self) -> tuple[Seen, ...]:
        return tuple(seen for seen in self.failures if seen.newest)

    @property
    def items(self) -> tuple[str, ...]:
        return _ids(self.rollouts)

    @property
    def is_open(self) -> bool:
        """Whether it fails in the newest round, or failed and was not seen since."""
        return bool(self.new_failures or (self.failures and not self.newest))


@dataclass(frozen=True, slots=True)
class Material:
    """All scored training rollouts of a run so far."""

    kinds: tuple[Kind, ...]  # those that fail most in the newest round first

    @classmethod
    def of(cls, history: Sequence[ItemAttempts], newest: Sequence[ItemAttempts]) -> Material:
        """Sort all rollouts into kinds. `history`: the cases of earlier steps, oldest first."""
        seen = [one for case in history for one in _seen(case, newest=False)]
        seen += [one for case in newest for one in _seen(case, newest=True)]
        names = _kind_names(seen)
        rollouts: dict[str, list[Seen]] = {}
        for one in seen:
            rollouts.setdefault(names[one.item.id], []).append(one)
        kinds = [Kind(name, tuple(found)) for name, found in rollouts.items()]
        return cls(tuple(sorted(kinds, key=_open_first)))

    @property
    def rollouts(self) -> tuple[Seen, ...]:
        return tuple(seen for kind in self.kinds for seen in kind.rollouts)

    @property
    def open_kinds(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in self.kinds if kind.is_open)

    @property
    def failed_items(self) -> tuple[str, ...]:
        """Items with a failed rollout."""
        return _ids([seen for kind in self.kinds for seen in kind.failures])


def _seen(case: ItemAttempts, *, newest: bool) -> list[Seen]:
    return [
        Seen(case.item, outcome, case.arms[at] if case.arms else None, newest)
        for at, outcome in enumerate(case.outcomes)
        if outcome.score is not None
    ]


def _ids(rollouts: Sequence[Seen]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(seen.item.id for seen in rollouts))


def _open_first(kind: Kind) -> tuple[bool, int, int]:
    return (not kind.is_open, -len(kind.new_failures), -len(kind.failures))


def _kind_names(rollouts: Sequence[Seen]) -> dict[str, str]:
    """Return the kind of each item by id: its type, a grader's message or a group of like texts."""
    items = {seen.item.id: seen.item for seen in rollouts}
    if any(item.type for item in items.values()):
        return {name: item.type or "(no type)" for name, item in items.items()}
    messages = {
        seen.item.id: _message(seen.outcome) for seen in rollouts if not seen.outcome.succeeded
    }
    if 2 <= len(set(messages.values())) <= _MOST_GROUPS:
        return {name: messages.get(name, "(never failed)") for name in items}
    listed = list(items.values())
    texts = [item.input for item in listed]
    groups = groups_of_like(texts, alike=_ALIKE, most=_MOST_GROUPS)
    # Each of the items in no group would be a kind of its own.
    kinds = len(set(groups) - {None}) + groups.count(None)
    if kinds == 1 or kinds > (len(items) + 1) // 2:
        return dict.fromkeys(items, "all items")
    return {
        item.id: "(others)" if first is None else f"like {one_line(texts[first], 60)!r}"
        for item, first in zip(listed, groups, strict=True)
    }


def _message(outcome: Outcome) -> str:
    """Return the grader's message without what differs from item to item."""
    first = failure_reason(outcome).partition("\n")[0]
    return one_line(_NUMBER.sub("#", _QUOTED.sub("'…'", first)), _MESSAGE_ROOM)


def kinds_table(material: Material) -> str:
    """Tabulate the kinds with their rollouts and failures, also of the newest round alone."""
    rows = ["kind | items | rollouts | failed | newest round | failed there"]
    for kind in material.kinds:
        counts = (kind.items, kind.rollouts, kind.failures, kind.newest, kind.new_failures)
        rows.append(" | ".join([kind.name, *(str(len(found)) for found in counts)]))
    return "\n".join(rows)


def statistics(material: Material, edits: frozenset[str] = frozenset()) -> str:
    """List what can be counted over all rollouts. `edits`: ids of edits that rollouts may carry."""
    rollouts = material.rollouts
    parts = {
        "Grader messages of failed rollouts": _message_counts(rollouts),
        "Answers": _answer_counts(rollouts),
        "Tools": _tool_counts(rollouts),
        "Same item, both outcomes": _contrast_counts(rollouts, edits),
    }
    return "\n\n".join(
        "\n".join([f"{name}:", *(f"- {line}" for line in lines[:_MOST_LINES])])
        for name, lines in parts.items()
        if lines
    )


def _message_counts(rollouts: Sequence[Seen]) -> list[str]:
    found: dict[str, list[Seen]] = {}
    for seen in rollouts:
        if not seen.outcome.succeeded:
            found.setdefault(_message(seen.outcome), []).append(seen)
    most_first = sorted(found.items(), key=lambda entry: -len(entry[1]))
    return [
        f"{quantity(len(seen), 'rollout')} of {quantity(len(_ids(seen)), 'item')} "
        f"({sum(one.newest for one in seen)} in the newest round): {message}"
        for message, seen in most_first
    ]


def _answer_counts(rollouts: Sequence[Seen]) -> list[str]:
    lines = []
    for name, found in _by_outcome(rollouts).items():
        answers = [(seen.item.input, _answer(seen)) for seen in found]
        if not answers:
            continue
        length = median(len(answer) for _, answer in answers)
        empty = sum(not answer for _, answer in answers)
        repeats = sum(bool(answer) and answer in task for task, answer in answers)
        line = f"{name}: {quantity(len(answers), 'rollout')}, median {length:.0f} characters"
        line += f", {empty} empty" if empty else ""
        line += f", {repeats} copied from the task as they stand" if repeats else ""
        beginnings = Counter(answer.split()[0] for _, answer in answers if answer)
        often = [(word, times) for word, times in beginnings.most_common(3) if times >= 3]
        if often:
            shown = ", ".join(f"{one_line(word, 30)!r} {times} times" for word, times in often)
            line += f"; begin with {shown}"
        lines.append(line)
    return lines


def _tool_counts(rollouts: Sequence[Seen]) -> list[str]:
    calls = {
        name: [[(step.name, step.text) for step in _tool_calls(seen)] for seen in found]
        for name, found in _by_outcome(rollouts).items()
    }
    every = [call for found in calls.values() for listed in found for call in listed]
    if not every:
        return []
    lines = []
    for tool, times in Counter(name for name, _ in every).most_common(_MOST_LINES - 1):
        rates = []
        for name, found in calls.items():
            used = sum(any(called == tool for called, _ in listed) for listed in found)
            rates.append(f"used by {used} of {len(found)} that {name}")
        lines.append(f"{tool}: {quantity(times, 'call')}, {', '.join(rates)}")
    repeated = sum(
        one == other
        for found in calls.values()
        for listed in found
        for one, other in pairwise(listed)
    )
    return [f"{repeated} of {quantity(len(every), 'call')} repeat the call before", *lines]


def _contrast_counts(rollouts: Sequence[Seen], edits: frozenset[str]) -> list[str]:
    """List what the successes and failures of the same items differ in."""
    by_item: dict[str, list[Seen]] = {}
    for seen in rollouts:
        by_item.setdefault(seen.item.id, []).append(seen)
    mixed = [
        seen
        for found in by_item.values()
        if len({one.outcome.succeeded for one in found}) == 2
        for seen in found
    ]
    if not mixed:
        return []
    succeeded, failed = _by_outcome(mixed).values()
    lines = [f"{quantity(len(_ids(mixed)), 'item')}, named in the cases"]
    found = []
    for edit in sorted(edits):
        with_it = [sum(_carries(seen, edit) for seen in side) for side in (succeeded, failed)]
        difference = with_it[0] / len(succeeded) - with_it[1] / len(failed)
        if abs(difference) >= _CLEAR_SHARE:
            line = (
                f"{edit} was carried by {with_it[0]} of {len(succeeded)} that succeeded and by "
                f"{with_it[1]} of {len(failed)} that failed"
            )
            found.append((-abs(difference), line))
    return lines + [line for _, line in sorted(found)]


def _by_outcome(rollouts: Sequence[Seen]) -> Mapping[str, list[Seen]]:
    return {
        "succeeded": [seen for seen in rollouts if seen.outcome.succeeded],
        "failed": [seen for seen in rollouts if not seen.outcome.succeeded],
    }


def _answer(seen: Seen) -> str:
    return seen.outcome.attempt.answer.strip() if seen.outcome.attempt else ""


def _tool_calls(seen: Seen) -> list[TrajectoryStep]:
    steps = seen.outcome.attempt.steps if seen.outcome.attempt else ()
    return [step for step in steps if step.kind == "tool_call"]


def _carries(seen: Seen, edit: str) -> bool:
    return seen.arm is not None and edit in seen.arm.edits


@dataclass(frozen=True, slots=True)
class ShownCases:
    """The cases that a call shows, and their text."""

    cases: tuple[ItemAttempts, ...]
    text: str


def show_cases(
    kinds: Sequence[Kind],
    others: Sequence[Kind],
    skill: Skill,
    room: int,
    *,
    trace: bool = True,
    pending: frozenset[str] = frozenset(),
) -> ShownCases:
    """Show the most telling cases within `room` tokens: failures of `kinds`, at least one of each,
    then a few successes, those of `kinds` before those of `others`.
    """

    def text(cases: Sequence[ItemAttempts], tokens: int) -> str:
        return render_cases(cases, skill, tokens, trace=trace, pending=pending)

    failures = _in_turn([_failing_cases(kind) for kind in kinds])
    successes = _in_turn([_successes(kind) for kind in [*kinds, *others]])[:_MOST_SUCCESSES]
    for_successes = int(room * _SUCCESS_SHARE) if failures else room
    for_failures = room - for_successes if successes else room
    chosen = _fitting(failures, for_failures, text, at_least=len(kinds))
    chosen += _fitting(successes, for_successes, text)
    return ShownCases(tuple(chosen), text(chosen, room))


def _in_turn(lists: Sequence[Sequence[ItemAttempts]]) -> list[ItemAttempts]:
    """Take the first of each list, then the second of each, and so on."""
    turns = zip_longest(*lists)
    return [case for turn in turns for case in turn if case is not None]


def _failing_cases(kind: Kind) -> list[ItemAttempts]:
    """Return the failing items of a kind: those of the newest round first, contrasts before others,
    and later ones before earlier ones.
    """
    found: dict[str, list[Seen]] = {}
    for seen in reversed(kind.rollouts):
        found.setdefault(seen.item.id, []).insert(0, seen)
    failing = [seen for seen in found.values() if not all(one.outcome.succeeded for one in seen)]

    def rank(seen: Sequence[Seen]) -> tuple[bool, bool]:
        fails_now = any(one.newest and not one.outcome.succeeded for one in seen)
        mixed = any(one.outcome.succeeded for one in seen)
        return (not fails_now, not mixed)

    return [_case(seen) for seen in sorted(failing, key=rank)]


def _successes(kind: Kind) -> list[ItemAttempts]:
    """Return the latest success of a kind, of an item that is not among the failing ones."""
    failed = set(_ids(kind.failures))
    for seen in reversed(kind.rollouts):
        if seen.item.id not in failed:
            return [_case([seen])]
    return []


def _case(rollouts: Sequence[Seen]) -> ItemAttempts:
    """Return the latest attempts at an item, with one of each outcome where there is one."""
    shown = list(rollouts[-_SHOWN_ATTEMPTS:])
    for outcome in (True, False):
        alike = [seen for seen in rollouts if seen.outcome.succeeded == outcome]
        if alike and not any(seen in shown for seen in alike):
            shown[0] = alike[-1]
    labels = tuple(
        f"Attempt {number}{'' if seen.newest else ', earlier round'}"
        for number, seen in enumerate(shown, start=1)
    )
    arms = [seen.arm for seen in shown if seen.arm is not None]
    return ItemAttempts(
        shown[0].item,
        tuple(seen.outcome for seen in shown),
        labels if len(shown) > 1 or not shown[0].newest else (),
        tuple(arms) if len(arms) == len(shown) else (),
    )


def _fitting(
    cases: Sequence[ItemAttempts],
    room: int,
    text: Callable[[Sequence[ItemAttempts], int], str],
    *,
    at_least: int = 0,
) -> list[ItemAttempts]:
    """Return as many of the first cases as fit when long ones are cut to a share of the room. The
    first `at_least` are always among them.
    """
    longest = max(room // max(_MOST_LINES, at_least), _SMALLEST_CASE)
    chosen: list[ItemAttempts] = []
    for case in cases:
        room -= min(estimate_tokens(text([case], longest)), longest)
        if room < 0 and len(chosen) >= at_least:
            break
        chosen.append(case)
    return chosen
