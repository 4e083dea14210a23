"""Stages 3 to 5 of a step, and the end of an epoch: what the optimizer is asked after reflection.

From the patches of a step to a candidate skill:

- Aggregate: the patches become one. Failures are merged with failures and successes with successes,
  then both together.
- Select: at most an edit budget of proposals is kept. The edit budget is the learning rate, and
  `edit_budget` is its schedule. The optimizer ranks the proposals only where there are more than
  the budget allows.
- Update: the selected proposals become a candidate skill. Protected regions never change.

At the end of an epoch the same items run under the previous and the current skill. From these
pairs the optimizer draws two lessons:

- The slow update is for the agent: it goes to a protected region of the skill, which step edits
  cannot change.
- The meta skill is for the optimizer: advice about editing this skill, given to the analysts, the
  merger and the ranker of the next epoch.

Appendix notes remind the agent of rules that it knew and did not follow. Steps add them; when there
are too many, `consolidate_notes` condenses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import cos, pi
from typing import Literal

from skillfit.config.schema import ControlMode, PairPolicy, Scheduler
from skillfit.models.registry import is_handoff
from skillfit.optimize.context import Context, ItemAttempts, failure_reason, render_cases
from skillfit.optimize.optimizer import (
    PATCH_REPLY,
    LearningRateReply,
    MetaSkillReply,
    NotesReply,
    Optimizer,
    OptimizerCall,
    Patch,
    PatchReply,
    Proposal,
    RankReply,
    RewriteReply,
    SlowUpdateReply,
    edits_of,
    render,
    sections,
    union,
    without_duplicates,
)
from skillfit.plain_text import head_and_tail, quantity
from skillfit.rollout.outcome import Outcome, gather
from skillfit.run.events import EditsSelected
from skillfit.run.records import (
    PairKind,
    PairRecord,
    RewriteRecord,
    SelectionDecision,
    SkillCandidate,
    Suggestion,
)
from skillfit.skill import (
    Edit,
    EditResult,
    Skill,
    apply_edits,
    estimate_tokens,
    rewrite,
    slow_update_text,
)
from skillfit.skill.document import over_ceiling
from skillfit.tasks.item import Item

MergeSide = Literal["failure", "success", "final"]

_UNION_INSTEAD = "the union of the patches is used instead"
_SKILL_STAYS = "the skill stays as it is"
_NOTES_STAY = "the notes stay as they are"
_PAIR_TEXT = 2_000  # characters of a task or an answer in comparison_pairs.json

_PAIR_KINDS: dict[tuple[bool, bool], PairKind] = {
    (False, True): "improved",
    (True, False): "regressed",
    (False, False): "persistent_fail",
    (True, True): "stable_success",
}
_KEPT_KINDS: dict[PairPolicy, tuple[PairKind, ...]] = {
    "mixed": ("improved", "regressed", "persistent_fail", "stable_success"),
    "changed": ("improved", "regressed"),
    "unchanged": ("persistent_fail", "stable_success"),
}
# What went wrong comes first; what worked both times is only counted.
_SHOWN_KINDS: tuple[PairKind, ...] = ("regressed", "persistent_fail", "improved")


async def merge_patches(
    optimizer: Optimizer, skill: Skill, patches: Sequence[Patch], *, step: int, meta_skill: str = ""
) -> Patch:
    """Merge many patches into one. A merge that cannot be used becomes the union of its parts, and
    an event says so.
    """
    merge = _Merge(optimizer, skill, step, meta_skill)
    usable = [patch for patch in patches if patch.proposals]
    by_side: dict[MergeSide, list[Patch]] = {
        "failure": [patch for patch in usable if patch.source != "success"],
        "success": [patch for patch in usable if patch.source == "success"],
    }
    merged = await gather(merge.into_one(found, side) for side, found in by_side.items() if found)
    return await merge.into_one(merged, "final") if merged else Patch((), "failure")


class _Merge:
    """The merges of one step. Each level merges batches of patches, until one patch is left."""

    def __init__(self, optimizer: Optimizer, skill: Skill, step: int, meta_skill: str) -> None:
        self._optimizer = optimizer
        self._mode = optimizer.settings.skill_update_mode
        self._step = step
        self._known = sections(current_skill=skill, optimizer_meta_skill=meta_skill)

    async def into_one(self, patches: Sequence[Patch], side: MergeSide) -> Patch:
        level = 0
        while len(patches) > 1:
            batches = self._batches(patches, side)
            if len(batches) == len(patches):
                reason = "two patches together do not fit the model's context window"
                self._discard(f"{side} level {level}", reason)
                return _union_of(patches, side)
            merged = await gather(
                self._merge_batch(batch, side, f"{side} level {level} batch {number}")
                for number, batch in enumerate(batches)
            )
            level += 1
            patches = [replace(patch, merge_level=level) for patch in merged]
        return patches[0]

    async def _merge_batch(self, patches: Sequence[Patch], side: MergeSide, name: str) -> Patch:
        if len(patches) == 1:
            return patches[0]
        user = f"{self._known}\n\n{sections(proposals=_listed_proposals(patches))}"
        tokens = self._optimizer.patch_tokens()
        call = OptimizerCall("merge", self._step, name, self._system(side), user, tokens)
        reply = await self._optimizer.try_ask(
            PATCH_REPLY[self._mode], call, otherwise=_UNION_INSTEAD
        )
        if reply is None:
            return _union_of(patches, side)
        given = [proposal for patch in patches for proposal in patch.proposals]
        proposals = _with_support(reply, given)
        if not proposals:
            self._discard(name, "the merged patch held nothing that can be used")
            return _union_of(patches, side)
        return replace(
            _without_proposals(patches, side), proposals=proposals, reasoning=reply.reasoning
        )

    def _batches(self, patches: Sequence[Patch], side: MergeSide) -> list[list[Patch]]:
        """Split the patches, in order, into batches of at most `merge_batch_size`, and never more
        than the context window takes.
        """
        room = self._optimizer.room(
            self._system(side), self._known, reply=self._optimizer.patch_tokens()
        )
        batches: list[list[Patch]] = [[]]
        for patch in patches:
            last = batches[-1]
            full = len(last) == self._optimizer.gradient.merge_batch_size
            if last and (full or estimate_tokens(_listed_proposals([*last, patch])) > room):
                batches.append([])
            batches[-1].append(patch)
        return batches

    def _system(self, side: MergeSide) -> str:
        return render("merge", side=side, mode=self._mode)

    def _discard(self, what: str, reason: str) -> None:
        self._optimizer.discard(self._step, "merge", what, reason, _UNION_INSTEAD)


def _union_of(patches: Sequence[Patch], side: MergeSide) -> Patch:
    """Put all their proposals into one patch, equal ones once."""
    proposals = without_duplicates(proposal for patch in patches for proposal in patch.proposals)
    return replace(_without_proposals(patches, side), proposals=proposals)


def _without_proposals(patches: Sequence[Patch], side: MergeSide) -> Patch:
    """Return a patch with everything of these but their proposals."""
    return Patch(
        proposals=(),
        source="success" if side == "success" else "failure",
        items=union(*(patch.items for patch in patches)),
        reasoning="\n".join(patch.reasoning for patch in patches if patch.reasoning),
        failure_summary=tuple(note for patch in patches for note in patch.failure_summary),
        success_patterns=union(*(patch.success_patterns for patch in patches)),
        appendix_notes=union(*(patch.appendix_notes for patch in patches)),
    )


def _listed_proposals(patches: Sequence[Patch]) -> str:
    """List the proposals under one numbering, so that a merged one can name its sources."""
    numbers = count()
    lines = []
    for patch in patches:
        reasoning = patch.reasoning.strip() or "no reasoning given"
        lines.append(f"An analyst of {len(patch.items)} items: {reasoning}")
        lines += [proposal.listed(next(numbers)) for proposal in patch.proposals]
    return "\n".join(lines)


def _with_support(reply: PatchReply, given: Sequence[Proposal]) -> tuple[Proposal, ...]:
    """Return the merged proposals, each supported by the distinct items of its sources."""
    merged = []
    for entry in reply.entries():
        payload = entry.payload()
        if payload is None:
            continue
        named = [given[index] for index in dict.fromkeys(entry.sources) if index < len(given)]
        behind = named or _look_alike(Proposal(payload, "failure"), given)
        source = behind[0].source if behind else given[0].source
        merged.append(Proposal(payload, source, union(*(proposal.items for proposal in behind))))
    return without_duplicates(merged)


def _look_alike(merged: Proposal, given: Sequence[Proposal]) -> list[Proposal]:
    """Return the probable sources of a merged proposal that names none: equal proposals, or else
    those that change the same place.
    """
    equal = [proposal for proposal in given if proposal.content_key() == merged.content_key()]
    if equal or not isinstance(merged.payload, Edit) or not merged.payload.target:
        return equal
    target = merged.payload.target
    return [
        proposal
        for proposal in given
        if isinstance(proposal.payload, Edit) and proposal.payload.target == target
    ]


async def select_proposals(
    optimizer: Optimizer, skill: Skill, patch: Patch, context: Context, *, control: ControlMode
) -> SelectedProposals:
    """Select the proposals to use. `context.edit_budget` applies in `fixed` mode only."""
    budget = context.edit_budget
    decision = SelectionDecision()
    mode = optimizer.settings.skill_update_mode
    if mode == "full_rewrite_minibatch" or control == "none" or not patch.budgeted:
        budget = None
    elif control == "autonomous":
        decision = await _decide_edit_budget(optimizer, skill, patch, context)
        budget = decision.learning_rate
    chosen = patch.proposals
    if budget is not None and len(chosen) > budget:
        ranking = await _rank_proposals(optimizer, skill, patch, budget, context)
        chosen = tuple(chosen[index] for index in ranking.selected_indices or ())
        decision = replace(
            decision,
            selected_indices=ranking.selected_indices,
            reasoning=ranking.reasoning,
            fallback=decision.fallback or ranking.fallback,
        )
    selected = SelectedProposals(chosen, budget, decision)
    optimizer.emit(selection_event(context.step, selected))
    return selected


@dataclass(frozen=True, slots=True)
class SelectedProposals:
    """The proposals of a step that become edits, and how they were chosen."""

    proposals: tuple[Proposal, ...]
    edit_budget: int | None  # the limit that applied; None: no limit
    decision: SelectionDecision = field(default_factory=SelectionDecision)


def selection_event(step: int, selected: SelectedProposals) -> EditsSelected:
    """Return the selected proposals as the event log and ranked_edits.json show it."""
    return EditsSelected(
        step=step,
        edit_budget=selected.edit_budget,
        edits=[proposal.record() for proposal in selected.proposals],
        decision=selected.decision,
    )


def edit_budget(
    scheduler: Scheduler, step: int, total_steps: int, *, maximum: int, minimum: int
) -> int | None:
    """Return how many edits step `step` (from 1) may apply; None means no limit. Decay starts with
    the first step and ends at `minimum`.
    """
    if scheduler == "autonomous":
        return None
    if scheduler == "constant" or total_steps <= 1:
        return maximum
    progress = min(step, total_steps) / total_steps
    if scheduler == "linear":
        return max(minimum, round(maximum + (minimum - maximum) * progress))
    return max(minimum, round(minimum + 0.5 * (maximum - minimum) * (1 + cos(pi * progress))))


async def _decide_edit_budget(
    optimizer: Optimizer, skill: Skill, patch: Patch, context: Context
) -> SelectionDecision:
    """Ask the optimizer for its learning rate of this step, from none to all of the proposals."""
    available = len(patch.proposals)
    system = render("learning_rate", available=available)
    user = _selection_prompt(optimizer, skill, patch, context, system, memory=context.memory)
    call = OptimizerCall("lr_autonomous", context.step, "learning rate", system, user)
    reply = await optimizer.try_ask(
        LearningRateReply, call, otherwise="no edit is applied in this step"
    )
    if reply is None:
        return SelectionDecision(learning_rate=0, available=available, fallback=True)
    return SelectionDecision(
        learning_rate=min(max(reply.learning_rate, 0), available),
        wanted_rate=reply.learning_rate,
        available=available,
        rate_reasoning=reply.reasoning,
        confidence=reply.confidence or None,
        risk_notes=tuple(reply.risk_notes),
    )


async def _rank_proposals(
    optimizer: Optimizer, skill: Skill, patch: Patch, budget: int, context: Context
) -> SelectionDecision:
    """Choose which proposals to keep, best first, and say why."""
    if budget <= 0:
        return SelectionDecision(selected_indices=())
    otherwise = f"the {budget} proposals with the most support are used instead"
    reply = None
    if not is_handoff(optimizer.model.id):  # a question of its own would stop the run once more
        system = render("rank", edit_budget=budget)
        prompt = _selection_prompt(optimizer, skill, patch, context, system)
        call = OptimizerCall("rank", context.step, "ranking", system, prompt)
        reply = await optimizer.try_ask(RankReply, call, otherwise=otherwise)
    if reply is not None:
        named = dict.fromkeys(reply.selected_indices)
        indices = tuple(index for index in named if index < len(patch.proposals))[:budget]
        if indices:
            return SelectionDecision(selected_indices=indices, reasoning=reply.reasoning)
        problem = "no usable index was selected"
        optimizer.discard(context.step, "rank", "ranking", problem, otherwise)
    by_support = sorted(
        range(len(patch.proposals)), key=lambda index: -patch.proposals[index].support
    )
    return SelectionDecision(selected_indices=tuple(by_support[:budget]), fallback=True)


def _selection_prompt(
    optimizer: Optimizer,
    skill: Skill,
    patch: Patch,
    context: Context,
    system: str,
    memory: str = "",
) -> str:
    """Write the prompt: skill, memory and the numbered proposals. If the proposals do not fit, each
    is cut to the same length.
    """
    known = sections(
        current_skill=skill, optimizer_meta_skill=context.meta_skill, previous_steps=memory
    )
    lines = [proposal.listed(number) for number, proposal in enumerate(patch.proposals)]
    room = optimizer.room(system, known)
    tokens = estimate_tokens("\n".join(lines))
    if tokens > room:
        share = int(room / tokens * sum(map(len, lines)) / len(lines))
        lines = [head_and_tail(line, share) for line in lines]
    listed = "\n".join(lines)
    return f"{known}\n\n{sections(proposals=listed)}"


def apply_proposals(
    skill: Skill, proposals: Sequence[Proposal], *, max_tokens: int | None = None
) -> SkillChange:
    """Apply the edits among some proposals, in order: all of a patch, or any part of it."""
    applied = apply_edits(skill, edits_of(proposals), max_tokens=max_tokens)
    return SkillChange(applied.skill, applied.skill.hash != skill.hash, applied.results)


async def rewrite_skill(
    optimizer: Optimizer, skill: Skill, proposals: Sequence[Proposal], context: Context
) -> SkillChange:
    """Return the candidate of the two rewriting update modes. Its `changed` is False when it equals
    the incumbent.
    """
    if optimizer.settings.skill_update_mode == "rewrite_from_suggestions":
        return await _rewrite_from_suggestions(optimizer, skill, proposals, context)
    return _first_candidate(optimizer, skill, proposals, context)


@dataclass(frozen=True, slots=True)
class SkillChange:
    """A candidate and how it was made. `skill` is None when a rewrite gave nothing usable."""

    skill: Skill | None
    changed: bool
    report: tuple[EditResult, ...] = ()  # patch mode: what became of each edit
    change_summary: tuple[str, ...] = ()
    # Rewrite modes: the model's reply
    rewrite: RewriteRecord = field(default_factory=RewriteRecord)

    @property
    def applied(self) -> tuple[EditResult, ...]:
        """The edits that changed the skill."""
        return tuple(result for result in self.report if result.applied)


async def _rewrite_from_suggestions(
    optimizer: Optimizer, skill: Skill, proposals: Sequence[Proposal], context: Context
) -> SkillChange:
    settings = optimizer.settings
    suggestions = [
        proposal.payload for proposal in proposals if isinstance(proposal.payload, Suggestion)
    ]
    if not suggestions:
        return SkillChange(skill, changed=False)
    listed = "\n\n".join(
        f"{number}. {entry.title} ({entry.type}) {entry.priority_hint}\n"
        f"Why: {entry.motivation}\n{entry.instruction}"
        for number, entry in enumerate(suggestions, 1)
    )
    user = sections(current_skill=skill, previous_steps=context.memory, suggestions=listed)
    tokens, effort = settings.rewrite_max_completion_tokens, settings.rewrite_reasoning_effort
    call = OptimizerCall(
        "rewrite", context.step, "rewritten skill", render("rewrite"), user, tokens, effort
    )
    reply = await optimizer.try_ask(RewriteReply, call, otherwise=_SKILL_STAYS)
    if reply is None:
        return SkillChange(None, changed=False)
    written = RewriteRecord(
        reasoning=reply.reasoning,
        change_summary=tuple(reply.change_summary),
        new_skill=reply.new_skill,
    )
    return _checked_rewrite(optimizer, skill, written, context)


def _first_candidate(
    optimizer: Optimizer, skill: Skill, proposals: Sequence[Proposal], context: Context
) -> SkillChange:
    """Return the first whole skill among the proposals."""
    for proposal in proposals:
        candidate = proposal.payload
        if isinstance(candidate, SkillCandidate) and candidate.new_skill.strip():
            written = RewriteRecord(
                title=candidate.title,
                change_summary=candidate.change_summary,
                new_skill=candidate.new_skill,
            )
            return _checked_rewrite(optimizer, skill, written, context)
    return SkillChange(None, changed=False)


def _checked_rewrite(
    optimizer: Optimizer, skill: Skill, written: RewriteRecord, context: Context
) -> SkillChange:
    """Return a whole skill that a model wrote, unless it is empty or above the token ceiling."""
    candidate = rewrite(skill, written.new_skill)
    limit = optimizer.settings.max_skill_tokens
    problem = "" if written.new_skill.strip() else "the rewritten skill is empty"
    if over_ceiling(candidate, skill, limit):
        problem = f"the rewritten skill has {candidate.tokens} tokens, above the ceiling of {limit}"
    if problem:
        optimizer.discard(context.step, "rewrite", "rewritten skill", problem, _SKILL_STAYS)
        return SkillChange(None, changed=False, rewrite=written)
    return SkillChange(
        candidate,
        candidate.hash != skill.hash,
        change_summary=written.change_summary,
        rewrite=written,
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """One item under the previous and the current skill."""

    item: Item
    previous: Outcome
    current: Outcome

    @property
    def kind(self) -> PairKind:
        return _PAIR_KINDS[self.previous.succeeded, self.current.succeeded]

    def record(self) -> PairRecord:
        """Return the pair for the log, with long texts cut."""
        return PairRecord(
            id=self.item.id,
            category=self.kind,
            prev_hard=self.previous.hard,
            curr_hard=self.current.hard,
            task=head_and_tail(self.item.input, _PAIR_TEXT),
            prev_soft=self.previous.soft,
            curr_soft=self.current.soft,
            prev_answer=_shown_answer(self.previous),
            curr_answer=_shown_answer(self.current),
            prev_fail_reason=failure_reason(self.previous),
            curr_fail_reason=failure_reason(self.current),
        )


def pair_up(
    items: Sequence[Item], previous: Sequence[Outcome], current: Sequence[Outcome]
) -> tuple[Pair, ...]:
    """Pair the items scored under both skills: a rollout that failed says nothing about either."""
    pairs = []
    for item, before, after in zip(items, previous, current, strict=True):
        if before.score is not None and after.score is not None:
            pairs.append(Pair(item, before, after))
    return tuple(pairs)


async def top_up(
    pairs: Sequence[Pair],
    untried: Sequence[Item],
    target: int,
    compare: Callable[[Sequence[Item]], Awaitable[Sequence[Pair]]],
) -> tuple[Pair, ...]:
    """Add pairs until `target` of them changed or nothing is left to try.

    Each round tries as many items as changed pairs are still missing, in the planned order. So it
    tries no item that would be left out if the items were tried one by one.
    """
    tried = list(pairs)
    untried = list(untried)
    while untried and (missing := target - len(keep_pairs(tried, "changed"))) > 0:
        tried += await compare(untried[:missing])
        untried = untried[missing:]
    return tuple(tried)


def keep_pairs(pairs: Sequence[Pair], policy: PairPolicy) -> tuple[Pair, ...]:
    """Return the pairs that `optimizer.longitudinal_pair_policy` shows to the optimizer."""
    return tuple(pair for pair in pairs if pair.kind in _KEPT_KINDS[policy])


def _shown_answer(outcome: Outcome) -> str:
    return head_and_tail(outcome.attempt.answer, _PAIR_TEXT) if outcome.attempt else ""


async def write_lesson(
    optimizer: Optimizer,
    previous: Skill,
    current: Skill,
    pairs: Sequence[Pair],
    *,
    epoch: int,
    step: int,
) -> EpochText:
    """Write the lesson of a slow update, to replace the one in the skill; empty: that one stays."""
    if not pairs:
        return EpochText("")
    known = sections(
        previous_skill=previous,
        current_skill=current,
        previous_guidance=slow_update_text(current),
    )
    call = _look_back_call("slow_update", optimizer, known, current, pairs, epoch=epoch, step=step)
    reply = await optimizer.try_ask(
        SlowUpdateReply, call, otherwise="the slow update memory stays as it is"
    )
    if reply is None:
        return EpochText("")
    return EpochText(reply.slow_update_content.strip(), reply.reasoning)


async def write_advice(
    optimizer: Optimizer,
    previous: Skill,
    current: Skill,
    pairs: Sequence[Pair],
    *,
    advice: str,
    epoch: int,
    step: int,
) -> EpochText:
    """Write the advice of a meta skill, to replace `advice`; empty: that one stays."""
    if not pairs:
        return EpochText("")
    known = sections(previous_skill=previous, current_skill=current, previous_advice=advice)
    call = _look_back_call("meta_skill", optimizer, known, current, pairs, epoch=epoch, step=step)
    reply = await optimizer.try_ask(MetaSkillReply, call, otherwise="the previous advice stays")
    if reply is None:
        return EpochText("")
    return EpochText(reply.meta_skill_content.strip(), reply.reasoning)


@dataclass(frozen=True, slots=True)
class EpochText:
    """What the optimizer writes at the end of an epoch: the lesson of a slow update, for the agent,
    or the advice of a meta skill, for itself.
    """

    text: str
    reasoning: str = ""


def _look_back_call(
    stage: str,
    optimizer: Optimizer,
    known: str,
    current: Skill,
    pairs: Sequence[Pair],
    *,
    epoch: int,
    step: int,
) -> OptimizerCall:
    """Compose the question of a stage: what is `known` (both skills and the earlier text), the kind
    of every pair, and as many trajectories of the pairs that teach something as have room.
    """
    counts = Counter(pair.kind for pair in pairs)
    training_items = quantity(len(pairs), "training item")
    system = render(
        stage,
        training_items=training_items,
        **{kind: counts[kind] for kind in _PAIR_KINDS.values()},
    )
    telling = sorted(
        (pair for pair in pairs if pair.kind in _SHOWN_KINDS),
        key=lambda pair: _SHOWN_KINDS.index(pair.kind),
    )
    labels = ("Under the previous skill", "Under the current skill")
    cases = [ItemAttempts(pair.item, (pair.previous, pair.current), labels) for pair in telling]
    room = optimizer.room(system, known)
    shown = render_cases(cases, current, room, trace=optimizer.gradient.trace_to_optimizer)
    kinds = "\n".join(f"{pair.item.id}: {pair.kind}" for pair in pairs)
    user = f"{known}\n\n{sections(items=kinds, trajectories=shown)}"
    return OptimizerCall(stage, step, f"epoch {epoch}", system, user)


def collect_notes(patches: Sequence[Patch]) -> tuple[str, ...]:
    """Return the notes of a step in planned order, each once."""
    return union(note for patch in patches for note in patch.appendix_notes)


async def consolidate_notes(
    optimizer: Optimizer, notes: Sequence[str], *, step: int
) -> tuple[str, ...] | None:
    """Return fewer notes that say the same, or None when the threshold is not passed or the result
    would not be smaller.
    """
    threshold = optimizer.settings.skill_aware_consolidate_threshold
    if not threshold or len(notes) <= threshold:
        return None
    user = sections(notes="\n".join(f"- {note}" for note in notes))
    call = OptimizerCall(
        "appendix_consolidate", step, "notes", render("consolidate", count=len(notes)), user
    )
    reply = await optimizer.try_ask(NotesReply, call, otherwise=_NOTES_STAY)
    if reply is None:
        return None
    condensed = tuple(text for note in reply.notes if (text := " ".join(note.split())))
    if (
        not condensed
        or len(condensed) >= len(notes)
        or sum(map(len, condensed)) >= sum(map(len, notes))
    ):
        optimizer.discard(
            step, "appendix_consolidate", "notes", "the result is not smaller", _NOTES_STAY
        )
        return None
    return condensed
