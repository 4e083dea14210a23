"""The race: the default gate before screening, kept as a baseline for the benchmarks.

The candidates of one step run on the same items in the same order. After each block of items the
worse half stops. The survivor must win again on fresh rollouts, and only those become its record.
`propose` builds the candidates of a step: the whole patch, and wide patches of twice its length.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from skillfit.gate import Arm, BaseGate, Candidate, GateSettings, Measure
from skillfit.gate.samples import (
    PRIOR_VARIANCE,
    TOLERANCE,
    Belief,
    RolloutCount,
    Samples,
    believe,
)
from skillfit.rollout.outcome import Outcome, gather
from skillfit.run.records import Decision
from skillfit.skill import Edit, Skill, apply_edits
from skillfit.tasks.item import Item

BLOCK = 10  # items between two looks at the race
HOPELESS = 0.4  # a candidate whose chance of being better falls below this stops
CLEAR = 0.6  # a single survivor with this chance goes straight to the confirming pass
STACKABLE = 0.5  # a beaten candidate with this chance is tried on top of the winner
AGAIN = 3  # rollouts of a must-pass item that looks broken, on each side
OPEN = (0.4, 0.6)  # after the fresh pass: between these, items that differ are rolled out again
INCUMBENT_REPEATS = 2  # rollouts of the incumbent on the items that the race reaches


@dataclass(frozen=True, slots=True)
class RaceVerdict:
    decision: Decision
    winner: Skill
    chosen: Candidate | None  # the accepted candidate

    @property
    def accepted(self) -> bool:
        return self.decision == "accept"


@dataclass(slots=True)
class Contender:
    """A candidate in a race."""

    candidate: Candidate
    samples: Samples
    prior_variance: float = PRIOR_VARIANCE
    belief: Belief = field(default_factory=Belief)
    fate: str = "not measured"

    def look(self, incumbent: Samples) -> Belief:
        differences = self.samples.against(incumbent)
        self.belief = believe(differences.values(), self.prior_variance)
        return self.belief


class RaceGate(BaseGate):
    def __init__(
        self,
        measure: Measure,
        items: Sequence[Item],
        settings: GateSettings,
        candidates: int = 4,
    ) -> None:
        super().__init__(measure, items, settings)
        self.candidates = candidates  # of one step, at most

    async def race(
        self, name: str, incumbent: Skill, candidates: Sequence[Candidate]
    ) -> RaceVerdict:
        race = _Race(self, name, incumbent, candidates)
        race.record = await self.record(incumbent)
        winner = await race.run()
        if winner is None:
            return RaceVerdict(race.no_winner(), incumbent, None)
        winner = await race.stack(winner)
        fresh = await race.confirm(winner)
        await race.ask_again(winner, fresh)
        decision = race.decide(winner, fresh, await race.regressions(winner))
        if decision != "accept":
            return RaceVerdict(decision, incumbent, None)
        lead = winner.belief.mean + self.lead_of(incumbent)
        # Only the confirming pass is recorded: the winner of the race was partly selected by
        # chance.
        skill = winner.candidate.skill
        if not self.make_incumbent(skill, fresh) and lead > TOLERANCE:
            self._best = skill
        return RaceVerdict("accept", skill, winner.candidate)

    def lead_of(self, incumbent: Skill) -> float:
        """The shrunk difference of the incumbent to the best skill; 0 for the best itself."""
        return believe(self.samples_of(incumbent).against(self.samples_of(self.best)).values()).mean


class _Race:
    """One judgement. Every decision uses planned order and drawn values only."""

    def __init__(
        self, gate: RaceGate, name: str, incumbent: Skill, candidates: Sequence[Candidate]
    ) -> None:
        self._sampler, self._settings, self._skill = gate.sampler, gate.settings, incumbent
        self._evaluation = gate.config.evaluation
        self._max_tokens = gate.config.optimizer.max_skill_tokens
        self._candidates = gate.candidates
        self._order = list(gate.items)
        random.Random(f"{gate.config.train.seed}/{name}").shuffle(self._order)
        self.spending = RolloutCount(gate.sampler)
        self.record = Samples(gate.settings)
        distinct = {c.skill.hash: c for c in reversed(candidates) if c.skill.hash != incumbent.hash}
        chosen = list(reversed(distinct.values()))[: gate.candidates]
        most = max((len(c.edits) for c in chosen), default=0)
        # Fewer edits, smaller expected effect.
        self.contenders = [
            self._contender(c, PRIOR_VARIANCE * (len(c.edits) / most if c.edits else 1.0))
            for c in chosen
        ]

    def _contender(self, candidate: Candidate, prior_variance: float) -> Contender:
        return Contender(candidate, Samples(self._settings), prior_variance)

    async def _roll_out(self, skill: Skill, items: Sequence[Item]) -> list[Outcome]:
        return await self._sampler.roll_out([(Arm(skill), item) for item in items])

    def _affords(self, rollouts: int, passes: int = 1) -> bool:
        """Whether the race may continue with `passes` of the survivor and its must-pass items still
        in reach.
        """
        count, again = len(self._order), 2 * AGAIN * len(set(self._evaluation.must_pass))
        budget = count * (self._candidates + 4) + again
        return self.spending.rollouts + rollouts + passes * count + again <= budget

    async def run(self) -> Contender | None:
        """Successive halving. The survivor, or None when all were stopped."""
        alive = self.contenders
        for start in range(0, len(self._order), BLOCK):
            block = self._order[start : start + BLOCK]
            thin = [
                item
                for item in block
                if len(self.record.scores.get(item.id, ())) < INCUMBENT_REPEATS
            ]
            while len(alive) > 1 and not self._affords(len(thin) + len(block) * len(alive)):
                alive = self._without_last(alive)
            if not alive or not self._affords(len(thin) + len(block) * len(alive)):
                break
            await self._draw(alive, block, thin)
            alive = self._halve(alive)
            if len(alive) == 1 and alive[0].belief.probability >= CLEAR:
                break
        alive = [
            contender
            for contender in alive
            if contender.belief.items and contender.belief.mean > TOLERANCE
        ]
        for contender in alive[1:]:
            contender.fate = "beaten"
        return alive[0] if alive else None

    def _without_last(self, alive: Sequence[Contender]) -> list[Contender]:
        """The last is the one proposed last, later on the least promising."""
        if alive[-1].belief.items:
            alive[-1].fate = "beaten"
        return list(alive[:-1])

    async def _draw(
        self, contenders: Sequence[Contender], block: Sequence[Item], thin: Sequence[Item]
    ) -> None:
        arms = [(contender.candidate.skill, contender.samples, block) for contender in contenders]
        if thin:
            arms.append((self._skill, self.record, thin))
        drawn = await gather(self._roll_out(skill, items) for skill, _, items in arms)
        for (_, samples, _), outcomes in zip(arms, drawn, strict=True):
            samples.add(outcomes)
        for contender in contenders:
            contender.look(self.record)

    def _halve(self, alive: Sequence[Contender]) -> list[Contender]:
        for contender in alive:
            contender.fate = "rejected" if contender.belief.probability >= HOPELESS else "dropped"
        ranked = sorted((r for r in alive if r.fate != "dropped"), key=lambda r: -r.belief.mean)
        half = (len(ranked) + 1) // 2
        for contender in ranked[half:]:
            contender.fate = "beaten"
        return ranked[:half]

    async def stack(self, winner: Contender) -> Contender:
        """The winner with the beaten on top of it, one after the other, as long as their edits go
        together and each makes it better on the items the winner has seen.
        """
        beaten = [
            r for r in self.contenders if r.fate == "beaten" and r.belief.probability > STACKABLE
        ]
        seen = [item for item in self._order if item.id in winner.samples.means]
        for other in sorted(beaten, key=lambda r: -r.belief.mean):
            merged = self._merge(winner.candidate, other.candidate)
            if merged is None or not self._affords(len(seen)):
                continue
            pair = self._contender(merged, winner.prior_variance + other.prior_variance)
            self.contenders.append(pair)
            await self._draw([pair], seen, ())
            better = pair.belief.mean > winner.belief.mean + TOLERANCE
            (winner if better else pair).fate = "beaten"
            winner = pair if better else winner
        return winner

    def _merge(self, one: Candidate, other: Candidate) -> Candidate | None:
        if not one.edits or not other.edits or set(one.edits) & set(other.edits):
            return None
        edits = (*one.edits, *other.edits)
        applied = apply_edits(self._skill, edits, self._max_tokens)
        if applied.edits != edits or any(
            applied.skill.hash == contender.candidate.skill.hash for contender in self.contenders
        ):
            return None
        return Candidate(applied.skill, edits, label=f"{one.label} + {other.label}")

    async def confirm(self, winner: Contender) -> Samples:
        """A second pass on fresh rollouts. Items that the race has not reached come first, because
        they are the most informative. Stops when the combined result is hopeless.
        """
        order = sorted(self._order, key=lambda item: item.id in winner.samples.means)
        fresh = Samples(self._settings)
        part = max(BLOCK, len(order) // 8)
        for start in range(0, len(order), part):
            outcomes = await self._roll_out(winner.candidate.skill, order[start : start + part])
            fresh.add(outcomes)
            winner.samples.add(outcomes)
            if winner.look(self.record).probability < HOPELESS:
                break
        return fresh

    async def ask_again(self, winner: Contender, fresh: Samples) -> None:
        """If undecided after two passes, roll out the items that favour one side once more on both
        sides. A chance difference disappears, a real one stays.
        """
        differences = winner.samples.against(self.record)
        loud = max(map(abs, differences.values()), default=0.0) / 2
        telling = [
            item for item in self._order if abs(differences.get(item.id, 0.0)) >= loud > TOLERANCE
        ]
        if not OPEN[0] <= winner.belief.probability <= OPEN[1] or not self._affords(
            2 * len(telling), passes=0
        ):
            return
        old, new = await gather(
            self._roll_out(skill, telling) for skill in (self._skill, winner.candidate.skill)
        )
        self.record.add(old)
        for samples in (fresh, winner.samples):
            samples.add(new)
        winner.look(self.record)

    async def regressions(self, winner: Contender) -> list[str]:
        """Must-pass items the winner breaks, confirmed by more rollouts of each side; one bad
        rollout is not enough.
        """
        old, new, must = self.record.means, winner.samples.means, self._evaluation.must_pass
        pairs = [
            (item, old.get(item.id, 0.0), new.get(item.id, 1.0))
            for item in self._order
            if item.id in must
        ]
        suspects = [
            item
            for item, before, now in pairs
            if before >= 0.5 and (now < 0.5 or before - now >= 0.5)
        ]
        if not suspects or winner.belief.mean <= TOLERANCE:
            return []
        kept, broken = [
            await self._sampler.samples(skill, suspects, AGAIN)
            for skill in (self._skill, winner.candidate.skill)
        ]
        return [
            i.id for i in suspects if kept.means.get(i.id, 0.0) >= 0.5 > broken.means.get(i.id, 1.0)
        ]

    def decide(self, winner: Contender, fresh: Samples, regressions: Sequence[str]) -> Decision:
        reached = winner.belief.items / len(self._order)
        if min(reached, self.spending.coverage, fresh.coverage) < self._evaluation.coverage_floor:
            return "inconclusive"
        return "reject" if regressions or winner.belief.mean <= TOLERANCE else "accept"

    def no_winner(self) -> Decision:
        measured = any(contender.belief.items for contender in self.contenders)
        covered = self.spending.coverage >= self._evaluation.coverage_floor
        return "reject" if covered and (measured or not self.contenders) else "inconclusive"


def propose(
    incumbent: Skill, edits: Sequence[Edit], *, spare: Sequence[Edit] = (), limit: int = 4
) -> list[Candidate]:
    """The whole patch, then wide patches from it and the `spare` edits, best first. Distinct skills
    that differ from the incumbent, `limit` at most.
    """
    size = max(1, len(edits))
    patches = [list(edits), *(list(spare[at : at + size]) for at in range(0, len(spare), size))]
    found: dict[str, Candidate] = {}
    for label, group in _groups(patches):
        applied = apply_edits(incumbent, group)
        if len(found) < limit and applied.skill.hash not in (incumbent.hash, *found):
            found[applied.skill.hash] = Candidate(applied.skill, applied.edits, label=label)
    return list(found.values())


def _groups(patches: Sequence[list[Edit]]) -> Iterator[tuple[str, list[Edit]]]:
    yield "whole patch", patches[0]
    for at in range(0, len(patches), 2):
        wide = [edit for patch in patches[at : at + 2] for edit in patch]
        yield f"wide patch {at // 2 + 1}", wide
