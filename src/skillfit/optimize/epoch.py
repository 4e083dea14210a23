"""What is written between the steps: slow update, meta skill and appendix notes.

At the end of an epoch the same items run under the previous and the current skill. From these
pairs the optimizer draws two lessons. The slow update is for the agent: it goes to a protected
region of the skill, which step edits cannot change. The meta skill is for the optimizer: advice
about editing this skill, given to the analysts, the merger and the ranker of the next epoch.

Appendix notes remind the agent of rules that it knew and did not follow. Steps add them; when there
are too many, `consolidate` condenses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from skillfit.config.schema import PairPolicy
from skillfit.optimize.context import ItemAttempts, failure_reason, render_cases
from skillfit.optimize.optimizer import (
    MetaSkillReply,
    NotesReply,
    Optimizer,
    OptimizerCall,
    Patch,
    SlowUpdateReply,
    render,
    sections,
    union,
)
from skillfit.plain_text import head_and_tail, quantity
from skillfit.rollout.outcome import Outcome
from skillfit.run.records import PairKind, PairRecord
from skillfit.skill import Skill, slow_update_text
from skillfit.tasks.item import Item

_SHOWN_TASK = 2_000  # characters of a task or an answer in comparison_pairs.json

_KINDS: dict[tuple[bool, bool], PairKind] = {
    (False, True): "improved",
    (True, False): "regressed",
    (False, False): "persistent_fail",
    (True, True): "stable_success",
}
_KEPT: dict[PairPolicy, tuple[PairKind, ...]] = {
    "mixed": ("improved", "regressed", "persistent_fail", "stable_success"),
    "changed": ("improved", "regressed"),
    "unchanged": ("persistent_fail", "stable_success"),
}
# What went wrong comes first; what worked both times is only counted.
_SHOWN: tuple[PairKind, ...] = ("regressed", "persistent_fail", "improved")


@dataclass(frozen=True, slots=True)
class Pair:
    """One item under the previous and the current skill."""

    item: Item
    previous: Outcome
    current: Outcome

    @property
    def kind(self) -> PairKind:
        return _KINDS[self.previous.succeeded, self.current.succeeded]

    def record(self) -> PairRecord:
        """As comparison_pairs.json shows it."""
        return PairRecord(
            id=self.item.id,
            category=self.kind,
            prev_hard=self.previous.hard,
            curr_hard=self.current.hard,
            task=head_and_tail(self.item.input, _SHOWN_TASK),
            prev_soft=self.previous.soft,
            curr_soft=self.current.soft,
            prev_answer=_answer(self.previous),
            curr_answer=_answer(self.current),
            prev_fail_reason=failure_reason(self.previous),
            curr_fail_reason=failure_reason(self.current),
        )


def _answer(outcome: Outcome) -> str:
    return head_and_tail(outcome.attempt.answer, _SHOWN_TASK) if outcome.attempt else ""


@dataclass(frozen=True, slots=True)
class Lesson:
    """Text for the skill's memory or for the optimizer. Empty: there is nothing to say, and the
    old one stays.
    """

    text: str
    reasoning: str = ""


def pair_up(
    items: Sequence[Item], previous: Sequence[Outcome], current: Sequence[Outcome]
) -> tuple[Pair, ...]:
    """The items scored under both skills: a rollout that failed says nothing about either."""
    pairs = []
    for item, before, after in zip(items, previous, current, strict=True):
        if before.score is not None and after.score is not None:
            pairs.append(Pair(item, before, after))
    return tuple(pairs)


def keep(pairs: Sequence[Pair], policy: PairPolicy) -> tuple[Pair, ...]:
    """The pairs that `optimizer.longitudinal_pair_policy` shows to the optimizer."""
    return tuple(pair for pair in pairs if pair.kind in _KEPT[policy])


async def top_up(
    pairs: Sequence[Pair],
    untried: Sequence[Item],
    target: int,
    compare: Callable[[Sequence[Item]], Awaitable[Sequence[Pair]]],
) -> tuple[Pair, ...]:
    """More pairs until `target` of them changed or nothing is left to try.

    Each round tries as many items at once as changed pairs are missing. So no more are tried than
    one at a time would need by luck alone, and which ones depends on the planned order only.
    """
    tried = list(pairs)
    untried = list(untried)
    while untried and (missing := target - len(keep(tried, "changed"))) > 0:
        tried += await compare(untried[:missing])
        untried = untried[missing:]
    return tuple(tried)


async def write_lesson(
    optimizer: Optimizer,
    previous: Skill,
    current: Skill,
    pairs: Sequence[Pair],
    *,
    epoch: int,
    step: int,
) -> Lesson:
    """Guidance for the agent in place of the current one, or an empty lesson."""
    if not pairs:
        return Lesson("")
    known = sections(
        previous_skill=previous,
        current_skill=current,
        previous_guidance=slow_update_text(current),
    )
    call = _look_back("slow_update", optimizer, known, current, pairs, epoch=epoch, step=step)
    reply = await optimizer.try_ask(
        SlowUpdateReply, call, otherwise="the slow update memory stays as it is"
    )
    if reply is None:
        return Lesson("")
    return Lesson(reply.slow_update_content.strip(), reply.reasoning)


async def write_advice(
    optimizer: Optimizer,
    previous: Skill,
    current: Skill,
    pairs: Sequence[Pair],
    *,
    advice: str,
    epoch: int,
    step: int,
) -> Lesson:
    """Advice for the optimizer in place of `advice`, or an empty lesson."""
    if not pairs:
        return Lesson("")
    known = sections(previous_skill=previous, current_skill=current, previous_advice=advice)
    call = _look_back("meta_skill", optimizer, known, current, pairs, epoch=epoch, step=step)
    reply = await optimizer.try_ask(MetaSkillReply, call, otherwise="the previous advice stays")
    if reply is None:
        return Lesson("")
    return Lesson(reply.meta_skill_content.strip(), reply.reasoning)


def _look_back(
    stage: str,
    optimizer: Optimizer,
    known: str,
    current: Skill,
    pairs: Sequence[Pair],
    *,
    epoch: int,
    step: int,
) -> OptimizerCall:
    """The question of a stage: what is `known` (both skills and the earlier lesson), the kind of
    every pair, and as many trajectories of the pairs that teach something as have room.
    """
    counts = Counter(pair.kind for pair in pairs)
    training_items = quantity(len(pairs), "training item")
    system = render(
        stage, training_items=training_items, **{kind: counts[kind] for kind in _KINDS.values()}
    )
    telling = sorted(
        (pair for pair in pairs if pair.kind in _SHOWN), key=lambda pair: _SHOWN.index(pair.kind)
    )
    labels = ("Under the previous skill", "Under the current skill")
    cases = [ItemAttempts(pair.item, (pair.previous, pair.current), labels) for pair in telling]
    room = optimizer.room(system, known)
    shown = render_cases(cases, current, room, trace=optimizer.gradient.trace_to_optimizer)
    kinds = "\n".join(f"{pair.item.id}: {pair.kind}" for pair in pairs)
    user = f"{known}\n\n{sections(items=kinds, trajectories=shown)}"
    return OptimizerCall(stage, step, f"epoch {epoch}", system, user)


_STAY = "the notes stay as they are"


def collect_notes(patches: Sequence[Patch]) -> tuple[str, ...]:
    """The notes of a step in planned order, each once."""
    return union(note for patch in patches for note in patch.appendix_notes)


async def consolidate(
    optimizer: Optimizer, notes: Sequence[str], *, step: int
) -> tuple[str, ...] | None:
    """Fewer notes that say the same, or None when the threshold is not passed or the result would
    not be smaller.
    """
    threshold = optimizer.settings.skill_aware_consolidate_threshold
    if not threshold or len(notes) <= threshold:
        return None
    user = sections(notes="\n".join(f"- {note}" for note in notes))
    call = OptimizerCall(
        "appendix_consolidate", step, "notes", render("consolidate", count=len(notes)), user
    )
    reply = await optimizer.try_ask(NotesReply, call, otherwise=_STAY)
    if reply is None:
        return None
    condensed = tuple(text for note in reply.notes if (text := " ".join(note.split())))
    if (
        not condensed
        or len(condensed) >= len(notes)
        or sum(map(len, condensed)) >= sum(map(len, notes))
    ):
        optimizer.discard(step, "appendix_consolidate", "notes", "the result is not smaller", _STAY)
        return None
    return condensed
