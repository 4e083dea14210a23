"""The pool of edits: which edits are being measured, which subsets the next rollouts carry, and
what happens to each edit.

Pending edits are measured in random subsets. Promoted edits are part of the incumbent. Dropped
edits are no longer used. The same edits, estimates and seeds give the same arms and decisions.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from skillfit.gate.base import Candidate
from skillfit.gate.regression import ColumnKind, Estimate
from skillfit.rollout.outcome import Arm
from skillfit.run.records import EditStatus, KindEffect, edit_id
from skillfit.skill import SLOW_UPDATE_OP, Applied, Edit, EditResult, Skill, apply_edits
from skillfit.tasks.item import Item

PROMOTE_Z = 1.6  # promote at once when the effect is this many standard deviations above 0
DROP_Z = -1.5  # drop a pending edit at once when its effect is below
# In a crowded pool, an edit that was judged this often is decided by the sign of its effect:
# otherwise long runs carry hundreds of pending edits at a time, and the intervals of their effects
# become too narrow. In other pools that would drop helpful edits whose effect is still uncertain.
LONGEST_PENDING = 10
CROWDED = 50  # pending edits
DEMOTE_Z = -0.3  # drop a promoted edit when its effect is below
FINAL_WORTH_Z = 0.0  # edits above are in the final skill: they are more likely to help than not
CERTAIN_Z = 2.0  # promoted edits below are left out of some rollouts
UNCERTAIN_LEFT_OUT = 0.1  # share of rollouts without an uncertain promoted edit
INCLUSION = (0.15, 0.85)  # bounds of the share of rollouts that carry a pending edit
REMOVAL_INCLUSION = (0.1, 0.5)  # the same for an edit that removes text of the initial skill
WANTED_REMOVAL = 0.3  # the same, at least, where a shorter skill is wanted
HARMLESS_RISK = 0.2  # a removal may cost more than HARMLESS_LOSS with at most this probability
HARMLESS_ROLLOUTS = 20  # a removal needs this many rollouts without the text
RESTORE_Z = -1.0  # restore a removed text when the effect of the removal is below
NEEDED = 0.95  # never remove a text when a loss above HARMLESS_LOSS is more probable than this
SIMILAR = 0.9  # share of common words from which two edits are duplicates
THIN_ROLLOUTS = 20  # a dropped edit with fewer may join again
EXCLUSIVE_OPS = frozenset({SLOW_UPDATE_OP})  # the later one overwrites the earlier one


@dataclass(slots=True)
class PoolEdit:
    """One proposed edit and its state."""

    id: str
    step: int
    edit: Edit
    sources: frozenset[str] = frozenset()  # training items it was written from
    removal: bool = False  # removes text of the initial skill; kept unless that costs score
    status: EditStatus = "pending"
    needs: frozenset[str] = frozenset()  # edits whose text it is anchored in
    rivals: set[str] = field(default_factory=set)  # edits that cannot be in effect with it
    estimate: Estimate | None = None  # None: no evidence yet
    kinds: tuple[KindEffect, ...] = ()  # the types of items that it acts on
    judgements: int = 0  # in which it was pending with an estimate
    absorbed: bool = False  # promoted, and part of the base: it can no longer be taken out
    pinned: bool = False  # the user wants it in the skill, whatever its effect
    vetoed: bool = False  # the user does not want it: it is never proposed again
    awaits_approval: bool = False  # pending only until a person approves it (`review: true`)
    duplicate_of: str | None = None  # dropped because it repeats this edit
    reason: str = ""  # of its status, as people read it

    @property
    def own_items(self) -> frozenset[str]:
        """The items whose rollouts are no evidence for the edit. One that was written from a single
        item may show its answer; one that was written from several states what they share.
        """
        return self.sources if len(self.sources) == 1 else frozenset()

    @property
    def kind(self) -> ColumnKind:
        """Which prior the effect has. Text that is clearly needed says nothing about the worth of
        the other paragraphs, so it does not widen their prior.
        """
        if self.removal:
            return "base" if self.status == "dropped" else "removal"
        return "edit"


@dataclass(frozen=True, slots=True)
class Decisions:
    """Edits to promote and to drop, in order of joining. Nothing is carried out yet."""

    promote: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class Pool:
    """Edits in the order in which they joined, on top of a base skill.

    `loss`: what the removals in the final skill may cost together, where a shorter skill is wanted;
    an edit that adds text must be measured to help then. None: a higher score is wanted.
    `every_type`: an edit that is likely to hurt one type of items is not kept.
    """

    def __init__(
        self,
        base: Skill,
        max_tokens: int | None = None,
        loss: float | None = None,
        every_type: bool = False,
    ) -> None:
        self.base = base
        self._max_tokens = max_tokens
        self._loss = loss
        self._every_type = every_type
        self.edits: dict[str, PoolEdit] = {}
        self._promoted: list[str] = []  # in the order of promotion
        self._anchored: list[str] = []  # edits that are anchored in the text of others
        self._applied: dict[tuple[str, ...], Arm] = {}

    # Reading

    def pending(self) -> list[PoolEdit]:
        return [entry for entry in self.edits.values() if entry.status == "pending"]

    def promoted(self) -> list[PoolEdit]:
        return [self.edits[key] for key in self._promoted]

    @property
    def incumbent(self) -> Arm:
        """The base with all promoted edits."""
        return self.apply(self._promoted)

    def apply(self, ids: Sequence[str]) -> Arm:
        """Apply these edits to the base: promoted ones first, then the others as they joined. Edits
        that did not take effect are not in the arm.
        """
        chosen = set(ids)
        order = [key for key in self._promoted if key in chosen]
        order += [key for key in self.edits if key in chosen and key not in self._promoted]
        key = tuple(order)
        if key not in self._applied:
            edits = [self.edits[entry].edit for entry in order]
            applied = apply_one_by_one(self.base, edits, self._max_tokens)
            results = zip(order, applied.results, strict=True)
            present = tuple(sorted(entry for entry, result in results if result.applied))
            self._applied[key] = Arm(applied.skill, present)
        return self._applied[key]

    def signs(self, key: str) -> dict[str, float]:
        """Return which edits come (+1) and go (-1) when `key` is added to the incumbent. For a
        promoted edit: when it is added to the incumbent without it.
        """
        signs = {key: 1.0}
        if self.edits[key].status == "promoted":
            signs |= {other: 1.0 for other in self._dependents([key]) if self._is_promoted(other)}
            return signs
        gone = [rival for rival in self.edits[key].rivals if self._is_promoted(rival)]
        signs |= {other: -1.0 for other in self._dependents(gone) if self._is_promoted(other)}
        return signs

    def _is_promoted(self, key: str) -> bool:
        return self.edits[key].status == "promoted" and not self.edits[key].absorbed

    def _dependents(self, keys: Sequence[str]) -> list[str]:
        """Return these edits, then all that are anchored in them, in order of joining."""
        found = dict.fromkeys(keys)
        for key in self._anchored:
            if self.edits[key].status != "dropped" and self.edits[key].needs & found.keys():
                found[key] = None
        return list(found)

    # Joining

    def join(self, candidate: Candidate) -> list[PoolEdit]:
        """Add the edits of a candidate. Duplicates and edits that cannot take effect are listed as
        dropped, with the reason.
        """
        joined = []
        taken = sum(entry.step == candidate.step for entry in self.edits.values())
        for number, edit in enumerate(candidate.edits, start=taken + 1):
            at = number - taken - 1
            sources = candidate.sources[at] if at < len(candidate.sources) else ()
            entry = PoolEdit(
                id=edit_id(candidate.step, number),
                step=candidate.step,
                edit=edit,
                sources=frozenset(sources),
                removal=candidate.removes_initial_text,
            )
            joined.append(entry)
            twin = self._twin(edit)
            if twin is not None and self._revive(twin, entry):
                continue
            self.edits[entry.id] = entry
            if twin is not None:
                why = f": {twin.reason}" if twin.status == "dropped" and twin.reason else ""
                reason = f"repeats {twin.id} ({twin.status}{why})"
                self._set_dropped(entry, reason, duplicate_of=twin.id)
            else:
                self._find_needs_and_rivals(entry)
        return joined

    def _twin(self, edit: Edit) -> PoolEdit | None:
        """Return an edit of the pool that says the same, or None. Edits dropped as duplicates are
        skipped.
        """
        for entry in self.edits.values():
            if entry.duplicate_of is None and same_meaning(entry.edit, edit):
                return entry
        return None

    def _revive(self, twin: PoolEdit, proposed: PoolEdit) -> bool:
        """Give a dropped edit with hardly any evidence a second chance under its old id. Return
        whether it is pending again.
        """
        thin = twin.estimate is None or twin.estimate.rollouts < THIN_ROLLOUTS
        if twin.status != "dropped" or twin.vetoed or not thin:
            return False
        twin.sources |= proposed.sources
        return self._return(twin)

    def _return(self, entry: PoolEdit) -> bool:
        """Make a dropped edit pending again, if it can take effect."""
        entry.status, entry.reason = "pending", ""
        # To the end: edits are applied in this order, and what it needs may have joined since.
        self.edits[entry.id] = self.edits.pop(entry.id)
        self._find_needs_and_rivals(entry)
        return entry.status == "pending"

    def _find_needs_and_rivals(self, entry: PoolEdit) -> None:
        """Find what a new edit needs and what it excludes; drop it when it cannot take effect."""
        needs = self._find_needs(entry)
        if needs is None:
            problem = apply_edits(self.incumbent.skill, [entry.edit], self._max_tokens).results[0]
            self._set_dropped(entry, f"cannot be applied: {problem.reason}")
            return
        entry.needs = needs
        if needs:
            self._anchored.append(entry.id)
        for other in self.edits.values():
            if other.id == entry.id or other.status == "dropped" or other.absorbed:
                continue
            if other.id not in needs and self._exclude(other, entry):
                entry.rivals.add(other.id)
                other.rivals.add(entry.id)

    def _find_needs(self, entry: PoolEdit) -> frozenset[str] | None:
        """Return the edits whose text the new edit is anchored in: an empty set when the base has
        the anchor, None when the edit cannot be applied at all.
        """
        if self._takes_effect([], entry):
            return frozenset()
        for other in sorted(self.edits.values(), key=lambda other: len(other.needs)):
            unused = other.status == "dropped" or other.absorbed or not other.edit.content
            if other.id == entry.id or unused:
                continue
            chain = [*(self.edits[key] for key in sorted(other.needs)), other]
            if self._takes_effect(chain, entry):
                return frozenset({other.id, *other.needs})
        promoted = [other for other in self.promoted() if other.id != entry.id]
        if promoted and self._takes_effect(promoted, entry):
            return frozenset(other.id for other in promoted)
        return None

    def tried(self, edit: Edit) -> EditResult | None:
        """Return the result of applying an edit that is not in the pool on top of those whose text
        it is anchored in; None when it cannot be applied at all.
        """
        needs = self._find_needs(PoolEdit(id="", step=0, edit=edit))
        if needs is None:
            return None
        return apply_one_by_one(self.apply(sorted(needs)).skill, [edit]).results[0]

    def _takes_effect(self, before: Sequence[PoolEdit], entry: PoolEdit) -> bool:
        edits = [*(other.edit for other in before), entry.edit]
        results = apply_one_by_one(self.base, edits, self._max_tokens).results
        return all(result.applied for result in results)

    def _exclude(self, first: PoolEdit, second: PoolEdit) -> bool:
        """Return whether two edits exclude each other: in some order they do not both apply."""
        if first.edit.op in EXCLUSIVE_OPS and first.edit.op == second.edit.op:
            return True
        if first.edit.op == second.edit.op == "append":
            same_file = first.edit.file == second.edit.file
            return same_file and first.edit.content.strip() == second.edit.content.strip()
        if second.id in first.needs:
            return False
        keys = sorted((first.needs | second.needs) - {first.id, second.id})
        before = [self.edits[key].edit for key in keys]
        for pair in ([first.edit, second.edit], [second.edit, first.edit]):
            results = apply_one_by_one(self.base, [*before, *pair]).results
            if not all(result.applied for result in results[len(before) :]):
                return True
        return False

    # Drawing

    def shares(self, new: float = 0.5) -> dict[str, float]:
        """Return the share of rollouts that should carry each edit in use. `new`: of edits without
        evidence.
        """
        used = [*self.promoted(), *self.pending()]
        shares = {entry.id: inclusion(entry, new) for entry in used}
        if self._loss is not None:
            for entry in self.pending():
                if entry.removal:
                    shares[entry.id] = max(shares[entry.id], WANTED_REMOVAL)
        return shares

    def draw(self, key: str, count: int, shares: Mapping[str, float]) -> list[Arm]:
        """Draw at most `count` distinct arms in which each edit of `shares` has about its share.

        Rivals are never on together and an edit is only on with those it needs.
        """
        rng = random.Random(key)
        on: list[set[str]] = [set() for _ in range(count)]
        for edit, share in shares.items():
            whole = int(share * count)
            times = whole + (rng.random() < share * count - whole)
            for at in rng.sample(range(count), times):
                on[at].add(edit)
        arms = [self.apply(self._consistent(chosen, rng)) for chosen in on]
        return list({arm.skill.hash: arm for arm in arms}.values())

    def _consistent(self, chosen: set[str], rng: random.Random) -> list[str]:
        """Choose a subset without rivals and without edits whose anchor is missing. A pending edit
        takes the place of a promoted rival.
        """
        pending = [key for key in self.edits if key in chosen and not self._is_promoted(key)]
        rng.shuffle(pending)
        kept: set[str] = set()
        for key in [*pending, *(key for key in self._promoted if key in chosen)]:
            if not self.edits[key].rivals & kept:
                kept.add(key)
        return self._without_missing_anchors(kept)

    def assign(self, key: str, arms: Sequence[Arm], items: Sequence[Item]) -> list[Arm]:
        """Assign an arm to each rollout. Arms are used about equally often; a rollout gets one
        without edits that were written from its item where there is one.
        """
        rng = random.Random(key)
        order = list(arms)
        rng.shuffle(order)
        used = [0] * len(order)
        written_from = [self._sources(arm) for arm in order]
        assigned = []
        for item in items:
            ranks = [
                (item.id in written_from[at], used[at], rng.random(), at)
                for at in range(len(order))
            ]
            best = min(ranks)[-1]
            used[best] += 1
            assigned.append(order[best])
        return assigned

    def _sources(self, arm: Arm) -> frozenset[str]:
        """Return the items whose rollouts are no evidence for some edit of an arm."""
        return frozenset().union(*(self.edits[key].own_items for key in arm.edits))

    # Deciding

    def decide(self) -> Decisions:
        """Decide from the estimates which edits to promote and to drop. An edit without evidence
        stays as it is.
        """
        promote: list[PoolEdit] = []
        drop: list[str] = []
        pending = self.pending()
        longest = LONGEST_PENDING if len(pending) > CROWDED else math.inf
        for entry in [*self.promoted(), *pending]:
            verdict = _decide(entry, longest) if entry.estimate is not None else entry.status
            if verdict == "dropped":
                drop.append(entry.id)
            elif verdict == "promoted" and entry.status == "pending" and not self._hurts(entry):
                promote.append(entry)
        on = {entry.id for entry in self.promoted()} - set(drop)
        chosen: list[str] = []
        for entry in sorted(promote, key=_best_first):
            if not entry.rivals & set(chosen):
                chosen.append(entry.id)
        kept = set(self._without_missing_anchors(on | set(chosen)))
        order = [key for key in self.edits if key in chosen]  # what an edit needs joined before it
        return Decisions(tuple(key for key in order if key in kept), tuple(drop))

    def worthwhile(self) -> list[str]:
        """Return promoted edits and pending ones that are believed to help, for the final skill.
        Text of the initial skill is removed when no loss is expected from that. Where all together
        are too long, those stay that gain most per token.
        """
        helps = _helps if self._loss is None else _is_sure_to_help
        chosen = {
            entry.id
            for entry in self.promoted()
            if not self._hurts(entry) and (entry.removal or entry.pinned or helps(entry))
        }
        joining, loss = set[str](), self._loss or 0.0
        for entry in sorted(self.pending(), key=_best_first):
            wanted = _expects_loss_below(entry, loss) if entry.removal else helps(entry)
            wanted = wanted and not self._hurts(entry)
            if wanted and not entry.rivals & joining:  # the best of pending rivals
                chosen -= entry.rivals  # promoted ones: it was measured against them
                joining.add(entry.id)
                if entry.removal and entry.estimate is not None:
                    loss += min(0.0, entry.estimate.mean)
        return self._fitting(self._without_missing_anchors(chosen | joining))

    def additions(self) -> list[str]:
        """Return pending edits that add text, as many as take effect together."""
        wanted = {entry.id for entry in self.pending() if not entry.removal}
        return self._fitting(self._consistent(wanted, random.Random("additions")))

    def _hurts(self, entry: PoolEdit) -> bool:
        """Return whether an edit is likely to lower the score of a type, if every type counts."""
        counts = self._every_type and not entry.pinned
        return counts and any(kind.high < 0 for kind in entry.kinds)

    def _fitting(self, chosen: Sequence[str]) -> list[str]:
        """Return the edits that take effect together within `max_tokens`. Edits that do not make
        the skill longer and those that the user wants come first, then those with the largest
        expected gain per token: the sum of gains counts, and it is limited by their length. (On the
        real table of bench/real this scores higher than the most certain edits first.)
        """
        if self._fit_together(chosen):
            return list(chosen)
        kept: set[str] = set()
        for key in sorted(chosen, key=lambda key: (-self._gain_per_token(key), key)):
            trial = kept | {key, *(self.edits[key].needs & set(chosen))}
            if self._fit_together(trial):
                kept = trial
        return self._without_missing_anchors(kept)

    def _fit_together(self, chosen: Collection[str]) -> bool:
        return set(self.apply(list(chosen)).edits) == set(chosen)

    def _gain_per_token(self, key: str) -> float:
        """Return the expected gain of an edit for each token that it adds; infinite for a pinned
        edit and for one that adds none.
        """
        entry = self.edits[key]
        before = sorted(entry.needs & self.edits.keys())
        growth = self._length([*before, key]) - self._length(before)
        if entry.pinned or growth <= 0:
            return math.inf
        return entry.estimate.mean / growth if entry.estimate is not None else 0.0

    def _length(self, chosen: Sequence[str]) -> int:
        edits = [self.edits[key].edit for key in chosen]
        return apply_one_by_one(self.base, edits).skill.tokens

    def _available(self, entry: PoolEdit, on: set[str]) -> bool:
        """Return whether all edits that this one is anchored in are on or part of the base."""
        return all(key in on or self.edits[key].absorbed for key in entry.needs)

    def _without_missing_anchors(self, chosen: set[str]) -> list[str]:
        """Return the chosen edits without those whose anchor is missing, in order of joining."""
        kept = set(chosen)
        while missing := {key for key in kept if not self._available(self.edits[key], kept)}:
            kept -= missing
        return [key for key in self.edits if key in kept]

    # Changing

    def promote(self, key: str, reason: str) -> None:
        """Make an edit part of the incumbent. Promoted rivals and their dependents are dropped."""
        entry = self.edits[key]
        for rival in sorted(entry.rivals):
            if self._is_promoted(rival):
                self.drop(rival, f"replaced by {key}")
        entry.status, entry.reason, entry.awaits_approval = "promoted", reason, False
        self._promoted.append(key)
        self._applied.clear()

    def release(self, key: str) -> None:
        """Forget what a person decided about an edit: from now on its evidence decides."""
        entry = self.edits[key]
        entry.pinned = entry.vetoed = False
        if entry.status == "dropped":
            self._return(entry)

    def drop(self, key: str, reason: str) -> None:
        """Drop an edit and those that are anchored in it."""
        for other in self._dependents([key]):
            why = reason if other == key else f"depends on {key}, which was dropped"
            self._set_dropped(self.edits[other], why)

    def _set_dropped(self, entry: PoolEdit, reason: str, duplicate_of: str | None = None) -> None:
        entry.status, entry.reason, entry.awaits_approval = "dropped", reason, False
        entry.duplicate_of = duplicate_of
        if entry.id in self._promoted:
            self._promoted.remove(entry.id)
        self._applied.clear()

    def rebase(self, base: Skill, *, replaces: str = "") -> None:
        """Continue with another document. It contains the promoted edits, or, with `replaces` (the
        reason), they are gone. Pending edits that cannot be applied to it are dropped.
        """
        for entry in self.promoted():
            if replaces:
                self._set_dropped(entry, replaces)
            else:
                entry.absorbed = True
        self.base = base
        self._promoted.clear()
        self._anchored.clear()
        self._applied.clear()
        pending = self.pending()
        for entry in pending:  # compare each with those before it, as when they joined
            entry.needs, entry.rivals, entry.status = frozenset(), set(), "dropped"
        for entry in pending:
            entry.status = "pending"
            self._find_needs_and_rivals(entry)


def inclusion(entry: PoolEdit, new_share: float = 0.5) -> float:
    """Return the share of rollouts that should carry an edit. `new_share`: of one that has no
    evidence yet.
    """
    estimate = entry.estimate
    if entry.status == "promoted":
        certain = estimate is not None and estimate.contrast.z >= CERTAIN_Z
        return 1.0 if certain else 1 - UNCERTAIN_LEFT_OUT
    if entry.removal:
        return _removal_inclusion(estimate)
    if estimate is None:
        return new_share
    low, high = INCLUSION
    return min(high, max(low, round(estimate.probability, 6)))


def _removal_inclusion(estimate: Estimate | None) -> float:
    """Return the share of rollouts that leave out a text: a small one while the text may be needed.
    The less likely a loss is, the more rollouts leave it out: that hardly costs score, and it
    measures whether the text can be cut.
    """
    low, high = REMOVAL_INCLUSION
    if estimate is None or estimate.rollouts < HARMLESS_ROLLOUTS:
        return low
    return min(high, max(low, round(1 - 1.5 * estimate.harm_probability, 6)))


def _helps(entry: PoolEdit) -> bool:
    """Return whether an edit is believed to help enough to be in the final skill."""
    return entry.estimate is not None and entry.estimate.contrast.z > FINAL_WORTH_Z


def _is_sure_to_help(entry: PoolEdit) -> bool:
    return entry.estimate is not None and entry.estimate.low > 0


def _expects_loss_below(entry: PoolEdit, loss: float) -> bool:
    """Return whether a removal is expected, by enough rollouts, to lower the score by no more than
    `loss`.
    """
    found = entry.estimate
    return found is not None and found.rollouts >= HARMLESS_ROLLOUTS and found.mean >= -loss


def _decide(entry: PoolEdit, longest: float) -> EditStatus:
    """Return the status that an edit with an estimate should get. `longest`: judgements that it may
    wait.
    """
    assert entry.estimate is not None
    z = entry.estimate.contrast.z
    if entry.pinned:
        return "promoted"
    if entry.removal:
        return _decide_removal(entry, entry.estimate)
    if entry.status == "promoted":
        return "dropped" if z < DEMOTE_Z else "promoted"
    if entry.judgements >= longest:
        return "promoted" if z > FINAL_WORTH_Z else "dropped"
    if z < DROP_Z:
        return "dropped"
    return "promoted" if z > PROMOTE_Z else "pending"


def _decide_removal(entry: PoolEdit, estimate: Estimate) -> EditStatus:
    """Return the status of a removal: promoted when it is unlikely to cost score, dropped when it
    is likely to, or when it turned out to cost score after it was promoted.
    """
    if entry.status == "promoted":
        return "dropped" if estimate.contrast.z < RESTORE_Z else "promoted"
    if is_harmless(estimate):
        return "promoted"
    needed = estimate.rollouts >= HARMLESS_ROLLOUTS and estimate.harm_probability > NEEDED
    return "dropped" if needed else "pending"


def is_harmless(estimate: Estimate) -> bool:
    """Return whether a removal is unlikely to cost score; it saves tokens, so that is enough to
    promote it.
    """
    return estimate.rollouts >= HARMLESS_ROLLOUTS and estimate.harm_probability < HARMLESS_RISK


def _best_first(entry: PoolEdit) -> tuple[float, str]:
    return (-entry.estimate.contrast.z if entry.estimate else 0.0, entry.id)


def apply_one_by_one(base: Skill, edits: Sequence[Edit], max_tokens: int | None = None) -> Applied:
    """Apply each edit as a separate patch, so that it may change text that an earlier one wrote.
    Appended lines cannot touch each other: a run of them is one patch, which is quicker.
    """
    skill, results = base, list[EditResult]()
    for _, group in itertools.groupby(enumerate(edits), key=_patch_of):
        applied = apply_edits(skill, [edit for _, edit in group], max_tokens)
        skill = applied.skill
        results += applied.results
    return Applied(skill, tuple(results))


def _patch_of(numbered: tuple[int, Edit]) -> int:
    number, edit = numbered
    return -1 if edit.op == "append" else number


_WORD = re.compile(r"\w+")
_NEGATIONS = frozenset({"not", "no", "never", "without", "don", "dont", "avoid", "except"})


def same_meaning(entry: Edit, other: Edit) -> bool:
    """Return whether two edits are equal, or use nearly the same words with the same numbers and
    negations.
    """
    if (entry.op, entry.file) != (other.op, other.file):
        return False
    if (entry.target, entry.content) == (other.target, other.content):
        return True
    if entry.target.split() != other.target.split():
        return False
    words, others = _words(entry.content), _words(other.content)
    if any(_is_telling(word) for word in words ^ others):
        return False
    common = len(words & others)
    return common > 0 and common >= SIMILAR * len(words | others)


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


def _is_telling(word: str) -> bool:
    return word in _NEGATIONS or any(map(str.isdigit, word))
