"""The default gate. Candidates of one step race on the same items in the same order; the survivor
must win again on fresh rollouts.

Lenient on purpose: a significance test per step accepts almost nothing at the sizes people have.
The claim that a run improved the skill is made by the ship test, not here. What the race must avoid
is luck that stays: the pass that won never becomes the incumbent's record. `bench/gate` shows what
each part buys over `strict`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from skillfit.errors import InputError
from skillfit.gate.evidence import PRIOR_VARIANCE, Runner, Spending, believe, conclude
from skillfit.gate.samples import TOLERANCE, Records, Samples
from skillfit.gate.verdict import Candidate, Decision, GateSettings, Measure, Verdict
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Tally
from skillfit.skill import Skill, apply_edits
from skillfit.tasks.item import Item

BLOCK = 10  # items between two looks at the race
HOPELESS = 0.4  # a candidate whose chance of being better falls below this stops
CLEAR = 0.6  # a lone survivor with this chance goes straight to the confirming pass
STACKABLE = 0.5  # a beaten candidate with this chance is tried on top of the winner
AGAIN = 3  # rollouts of a must-pass item that looks broken, on each side
OPEN = (
    0.4,
    0.6,
)  # after the fresh pass: between these the items that speak for one side are asked again
INCUMBENT_REPEATS = 2  # the incumbent meets every candidate of a step: its noise is everybody's


class RaceGate(Records):
    def __init__(self, measure: Measure, items: Sequence[Item], settings: GateSettings) -> None:
        super().__init__(measure, items, settings)
        if unknown := set(settings.must_pass) - {item.id for item in items}:
            raise InputError(
                f"evaluation.must_pass names items that are not in the selection split: {', '.join(sorted(unknown))}.",
                hint="Give them `split: selection`, or take them off the list.",
            )
        count, again = len(self.items), 2 * AGAIN * len(set(settings.must_pass))
        needed = 2 * min(BLOCK, count) + count + again
        if 0 < settings.rollout_budget < needed:
            raise InputError(
                f"evaluation.rollout_budget: {settings.rollout_budget} rollouts cannot decide on a candidate over {count} items.",
                hint=f"Give it {needed} or more, 0 for as many as the split needs, or use fewer items (evaluation.sel_env_num).",
            )

    async def judge(self, name: str, incumbent: Skill, candidates: Sequence[Candidate]) -> Verdict:
        race = _Race(self, name, incumbent, candidates)
        race.record = await self.record(incumbent)
        if not race.runners:
            return race.conclude("reject", "no candidate differs from the incumbent")
        if not self.settings.use_gate:
            return await self._force(race)
        winner = await race.run()
        if winner is None:
            return race.conclude(*race.no_winner())
        winner = await race.stack(winner)
        fresh = await race.confirm(winner)
        await race.ask_again(winner, fresh)
        decision, reason, winner.fate = race.decide(winner, fresh, await race.regressions(winner))
        if decision != "accept":
            return race.conclude(decision, reason, winner=winner, fresh=fresh)
        lead = winner.belief.mean + self.lead_of(incumbent)
        # Only the confirming pass enters the record: the one that won was selected for luck.
        best = self.carry(winner.candidate.skill, fresh, better_than_best=lead > TOLERANCE)
        return race.conclude(
            "accept",
            reason,
            action="accept_new_best" if best else "accept",
            winner=winner,
            fresh=fresh,
        )

    def lead_of(self, incumbent: Skill) -> float:
        """What is believed of its difference to the best: 0 for the best itself, and a sceptic's
        share for a skill that was carried on without a verdict. So what is accepted on top of that
        one need not beat the luck in the best one's record.
        """
        return believe(self.known(incumbent).against(self.known(self.best)).values()).mean

    async def adopt(self, skill: Skill, like: Skill | None = None) -> Tally:
        if like is None:
            return await super().adopt(skill)
        return self.take_over(skill, like).tally()

    async def _force(self, race: _Race) -> Verdict:
        runner = race.runners[0]
        runner.samples = await self.record(runner.candidate.skill)
        runner.look(race.record)
        self.carry(runner.candidate.skill, runner.samples)
        return race.conclude(
            "accept", "gate off: every candidate is accepted", action="force_accept", winner=runner
        )


class _Race:
    """One judgement. Every decision uses planned order and drawn values only."""

    def __init__(
        self, gate: RaceGate, name: str, incumbent: Skill, candidates: Sequence[Candidate]
    ) -> None:
        self._drawer, self._settings, self._skill = gate.drawer, gate.settings, incumbent
        self._order = list(gate.items)
        random.Random(f"{gate.settings.seed}/{name}").shuffle(self._order)
        self.spending = Spending(gate.drawer)
        self.record = Samples(gate.settings)
        distinct = {c.skill.hash: c for c in reversed(candidates) if c.skill.hash != incumbent.hash}
        chosen = list(reversed(distinct.values()))[: gate.settings.candidates]
        most = max((len(c.edits) for c in chosen), default=0)
        # Fewer edits, smaller expected effect.
        self.runners = [
            self._runner(c, PRIOR_VARIANCE * (len(c.edits) / most if c.edits else 1.0))
            for c in chosen
        ]

    def _runner(self, candidate: Candidate, prior_variance: float) -> Runner:
        return Runner(candidate, Samples(self._settings), prior_variance)

    def _affords(self, rollouts: int, passes: int = 1) -> bool:
        """Whether the race may go on with `passes` of the survivor and its must-pass items still in
        reach.
        """
        count, again = len(self._order), 2 * AGAIN * len(set(self._settings.must_pass))
        budget = self._settings.rollout_budget or count * (self._settings.candidates + 4) + again
        return self.spending.rollouts + rollouts + passes * count + again <= budget

    async def run(self) -> Runner | None:
        """Successive halving. The survivor, or None when all were stopped."""
        alive = self.runners
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
            runner for runner in alive if runner.belief.items and runner.belief.mean > TOLERANCE
        ]
        for runner in alive[1:]:
            runner.fate = "beaten"
        return alive[0] if alive else None

    def _without_last(self, alive: Sequence[Runner]) -> list[Runner]:
        """The last is the one proposed last, later on the least promising."""
        if alive[-1].belief.items:
            alive[-1].fate = "beaten"
        return list(alive[:-1])

    async def _draw(
        self, runners: Sequence[Runner], block: Sequence[Item], thin: Sequence[Item]
    ) -> None:
        arms = [(runner.candidate.skill, runner.samples, block) for runner in runners]
        if thin:
            arms.append((self._skill, self.record, thin))
        drawn = await gather(self._drawer.draw(skill, items) for skill, _, items in arms)
        for (_, samples, _), outcomes in zip(arms, drawn, strict=True):
            samples.add(outcomes)
        for runner in runners:
            runner.look(self.record)

    def _halve(self, alive: Sequence[Runner]) -> list[Runner]:
        for runner in alive:
            runner.fate = "rejected" if runner.belief.probability >= HOPELESS else "dropped"
        ranked = sorted((r for r in alive if r.fate != "dropped"), key=lambda r: -r.belief.mean)
        half = (len(ranked) + 1) // 2
        for runner in ranked[half:]:
            runner.fate = "beaten"
        return ranked[:half]

    async def stack(self, winner: Runner) -> Runner:
        """The winner with the beaten on top of it, one after the other, as long as their edits go
        together and each makes it better on the items the winner has seen.
        """
        beaten = [
            r for r in self.runners if r.fate == "beaten" and r.belief.probability > STACKABLE
        ]
        seen = [item for item in self._order if item.id in winner.samples.means]
        for other in sorted(beaten, key=lambda r: -r.belief.mean):
            merged = self._merge(winner.candidate, other.candidate)
            if merged is None or not self._affords(len(seen)):
                continue
            pair = self._runner(merged, winner.prior_variance + other.prior_variance)
            self.runners.append(pair)
            await self._draw([pair], seen, ())
            better = pair.belief.mean > winner.belief.mean + TOLERANCE
            (winner if better else pair).fate = "beaten"
            winner = pair if better else winner
        return winner

    def _merge(self, one: Candidate, other: Candidate) -> Candidate | None:
        if not one.edits or not other.edits or set(one.edits) & set(other.edits):
            return None
        edits = (*one.edits, *other.edits)
        applied = apply_edits(self._skill, edits, self._settings.max_skill_tokens)
        if applied.edits != edits or any(
            applied.skill.hash == runner.candidate.skill.hash for runner in self.runners
        ):
            return None
        return Candidate(applied.skill, edits, f"{one.label} + {other.label}")

    async def confirm(self, winner: Runner) -> Samples:
        """A second, fresh pass, items the race has not reached first: they tell most. Stops when
        all together looks hopeless.
        """
        order = sorted(self._order, key=lambda item: item.id in winner.samples.means)
        fresh = Samples(self._settings)
        part = max(BLOCK, len(order) // 8)
        for start in range(0, len(order), part):
            outcomes = await self._drawer.draw(winner.candidate.skill, order[start : start + part])
            fresh.add(outcomes)
            winner.samples.add(outcomes)
            if winner.look(self.record).probability < HOPELESS:
                break
        return fresh

    async def ask_again(self, winner: Runner, fresh: Samples) -> None:
        """Still open after two passes: one more rollout, on both sides, of the items that spoke for
        one of them. Luck goes away, a real difference stays.
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
            self._drawer.draw(skill, telling) for skill in (self._skill, winner.candidate.skill)
        )
        self.record.add(old)
        for samples in (fresh, winner.samples):
            samples.add(new)
        winner.look(self.record)

    async def regressions(self, winner: Runner) -> list[str]:
        """Must-pass items the winner breaks, confirmed by more rollouts of each side; one bad draw
        is no veto.
        """
        old, new, must = self.record.means, winner.samples.means, self._settings.must_pass
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
            await self._drawer.sample(skill, suspects, AGAIN)
            for skill in (self._skill, winner.candidate.skill)
        ]
        return [
            i.id for i in suspects if kept.means.get(i.id, 0.0) >= 0.5 > broken.means.get(i.id, 1.0)
        ]

    def decide(
        self, winner: Runner, fresh: Samples, regressions: Sequence[str]
    ) -> tuple[Decision, str, str]:
        """Decision, reason, and the winner's fate."""
        floor = self._settings.coverage_floor
        covered = min(
            winner.belief.items / len(self._order), self.spending.coverage, fresh.coverage
        )
        if covered < floor:
            return (
                "inconclusive",
                f"only {covered:.0%} of the rollouts were scored (floor {floor:.0%})",
                "undecided",
            )
        if regressions:
            return (
                "reject",
                f"breaks must-pass items, confirmed on fresh rollouts: {', '.join(regressions)}",
                "vetoed",
            )
        if winner.belief.mean <= TOLERANCE:
            return "reject", "won the race, but not again on fresh rollouts", "rejected"
        return (
            "accept",
            f"better with probability {winner.belief.probability:.2f} over two passes, the second one fresh",
            "winner",
        )

    def no_winner(self) -> tuple[Decision, str]:
        if self.spending.coverage < self._settings.coverage_floor or not any(
            runner.belief.items for runner in self.runners
        ):
            return "inconclusive", f"only {self.spending.coverage:.0%} of the rollouts were scored"
        return "reject", "no candidate looks better than the incumbent"

    def conclude(self, decision: Decision, reason: str, **about: Any) -> Verdict:
        return conclude(
            self._skill, self.record, self.runners, self.spending, decision, reason, **about
        )
