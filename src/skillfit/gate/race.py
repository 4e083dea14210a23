"""The default gate. Candidates of one step race on the same items in the same order; the survivor must win again on fresh rollouts.

Lenient on purpose: a significance test per step accepts almost nothing at the sizes people have. The claim that a run improved the
skill is made by the ship test, not here. What the race must avoid is luck that stays: the pass that won never becomes the
incumbent's record. `bench/gate` shows what each part buys over `strict`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from skillfit.errors import InputError
from skillfit.gate.evidence import PRIOR_VARIANCE, Belief, belief, compare
from skillfit.gate.samples import TOLERANCE, Drawer, Samples
from skillfit.gate.statistics import item_differences, mean
from skillfit.gate.verdict import Action, Candidate, Decision, Evidence, GateSettings, Measure, Standing, Verdict
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Tally
from skillfit.skill import Skill, apply_edits
from skillfit.tasks.item import Item

BLOCK = 10  # items between two looks at the race
HOPELESS = 0.3  # a candidate whose chance of being better falls below this stops
CLEAR = 0.9  # a lone survivor with this chance goes straight to the confirming pass
STACKABLE = 0.5  # a beaten candidate with this chance is tried on top of the winner
INCUMBENT_REPEATS = 2  # the incumbent meets every candidate of a step: its noise is everybody's


@dataclass(slots=True)
class Runner:
    candidate: Candidate
    prior_variance: float
    samples: Samples = field(default_factory=Samples)
    belief: Belief = field(default_factory=Belief)
    fate: str = "not measured"


class RaceGate:
    def __init__(self, measure: Measure, items: Sequence[Item], settings: GateSettings) -> None:
        self._items = list(items)
        self._settings = settings
        self._drawer = Drawer(measure, "selection")
        self._records: dict[str, Samples] = {}
        self._accepted: list[Skill] = []
        self._initial: Skill | None = None
        self._best: Skill | None = None
        unknown = set(settings.must_pass) - {item.id for item in items}
        if unknown:
            raise InputError(
                f"evaluation.must_pass names items that are not in the selection split: {', '.join(sorted(unknown))}.",
                hint="Give them `split: selection`, or take them off the list.",
            )

    @property
    def best(self) -> Skill:
        if self._best is None:
            raise RuntimeError("The gate has no baseline yet.")
        return self._best

    @property
    def best_score(self) -> float:
        return self._records[self.best.hash].score(self._settings)

    def finalists(self, limit: int) -> list[Skill]:
        """The best, then what was accepted before it, latest first: each was believed to be better than its predecessor."""
        ranked = {skill.hash: skill for skill in [self.best, *reversed(self._accepted)]}
        return [skill for key, skill in ranked.items() if self._initial is None or key != self._initial.hash][:limit]

    async def baseline(self, skill: Skill) -> Tally:
        self._initial = self._best = skill
        return (await self._record(skill)).tally()

    async def judge(self, name: str, incumbent: Skill, candidates: Sequence[Candidate]) -> Verdict:
        race = _Race(self._drawer, self._items, self._settings, f"{self._settings.seed}/{name}", incumbent)
        race.incumbent = await self._record(incumbent)
        race.enter(candidates)
        if not race.runners:
            return race.verdict("reject", "reject", None, "no candidate differs from the incumbent")
        if not self._settings.use_gate:
            return await self._force(race)
        winner = await race.run()
        if winner is None:
            return race.verdict(*race.no_winner())
        winner = await race.stack(winner)
        fresh = await race.confirm(winner)
        decision, reason = race.decide(winner, fresh, await race.regressions(winner, fresh))
        if decision != "accept":
            return race.verdict(decision, decision, winner, reason, fresh)
        return race.verdict("accept", self._accept(incumbent, winner.candidate.skill, fresh), winner, reason, fresh)

    async def _record(self, skill: Skill) -> Samples:
        """Fresh rollouts only; measured when the skill is new here (the first one, or changed outside the gate)."""
        if skill.hash not in self._records:
            samples = Samples()
            samples.add(await self._drawer.draw(skill, self._items))
            self._records[skill.hash] = samples
        return self._records[skill.hash]

    def _accept(self, incumbent: Skill, skill: Skill, fresh: Samples) -> Action:
        """Only the confirming pass enters the record: the one that won was selected for luck."""
        self._records[skill.hash] = fresh
        self._accepted.append(skill)
        if incumbent.hash == self.best.hash or fresh.score(self._settings) > self.best_score + TOLERANCE:
            self._best = skill
            return "accept_new_best"
        return "accept"

    async def _force(self, race: _Race) -> Verdict:
        runner = race.runners[0]
        record = await self._record(runner.candidate.skill)
        runner.samples = record
        race.look(runner)
        self._accepted.append(runner.candidate.skill)
        if record.coverage >= self._settings.coverage_floor and record.score(self._settings) > self.best_score + TOLERANCE:
            self._best = runner.candidate.skill
        return race.verdict("accept", "force_accept", runner, "gate off: every candidate is accepted")


class _Race:
    """One judgement. Every decision uses planned order and drawn values only."""

    def __init__(self, drawer: Drawer, items: Sequence[Item], settings: GateSettings, seed: str, incumbent: Skill) -> None:
        self._drawer = drawer
        self._settings = settings
        self._skill = incumbent
        self._order = list(items)
        random.Random(seed).shuffle(self._order)
        self._spent_before, self._scored_before = drawer.spent, drawer.scored
        self.incumbent = Samples()
        self.runners: list[Runner] = []

    def enter(self, candidates: Sequence[Candidate]) -> None:
        """Distinct candidates that change something, in order. Fewer edits, smaller expected effect: the prior says so."""
        distinct = {c.skill.hash: c for c in reversed(candidates) if c.skill.hash != self._skill.hash}
        chosen = list(reversed(distinct.values()))[: self._settings.candidates]
        most = max((len(c.edits) for c in chosen), default=0)
        self.runners = [Runner(c, PRIOR_VARIANCE * (len(c.edits) / most if c.edits else 1.0)) for c in chosen]

    @property
    def spent(self) -> int:
        return self._drawer.spent - self._spent_before

    @property
    def coverage(self) -> float:
        return (self._drawer.scored - self._scored_before) / self.spent if self.spent else 1.0

    def _affords(self, rollouts: int) -> bool:
        """Whether the race may go on and the survivor's confirming pass still fits."""
        count = len(self._order)
        budget = self._settings.rollout_budget or count * (self._settings.candidates + 4)
        return self.spent + rollouts + count <= budget

    def look(self, runner: Runner) -> Belief:
        runner.belief = belief(runner.samples, self.incumbent, self._settings, runner.prior_variance)
        return runner.belief

    async def run(self) -> Runner | None:
        """Successive halving. The survivor, or None when all were stopped."""
        alive = list(self.runners)
        for start in range(0, len(self._order), BLOCK):
            block = self._order[start : start + BLOCK]
            thin = [item for item in block if len(self.incumbent.scores.get(item.id, ())) < INCUMBENT_REPEATS]
            if not self._affords(len(thin) + len(block) * len(alive)):
                break
            await self._draw_block(alive, block, thin)
            alive = self._halve(alive)
            if not alive or (len(alive) == 1 and alive[0].belief.probability >= CLEAR):
                break
        alive = [runner for runner in alive if runner.belief.items and runner.belief.mean > TOLERANCE]
        for runner in alive[1:]:
            runner.fate = "beaten"
        return alive[0] if alive else None

    async def _draw_block(self, alive: Sequence[Runner], block: Sequence[Item], thin: Sequence[Item]) -> None:
        arms = [(runner.candidate.skill, runner.samples, block) for runner in alive]
        if thin:
            arms.append((self._skill, self.incumbent, thin))
        drawn = await gather(self._drawer.draw(skill, items) for skill, _, items in arms)
        for (_, samples, _), outcomes in zip(arms, drawn, strict=True):
            samples.add(outcomes)

    def _halve(self, alive: list[Runner]) -> list[Runner]:
        for runner in alive:
            runner.fate = "rejected" if self.look(runner).probability >= HOPELESS else "dropped"
        ranked = sorted((r for r in alive if r.fate != "dropped"), key=lambda r: -r.belief.mean)
        for runner in ranked[(len(ranked) + 1) // 2 :]:
            runner.fate = "beaten"
        return ranked[: (len(ranked) + 1) // 2]

    async def stack(self, winner: Runner) -> Runner:
        """The winner together with the best of the beaten, if their edits go together and the pair does better still."""
        others = [r for r in self.runners if r is not winner and r.belief.probability > STACKABLE and r.fate == "beaten"]
        for other in sorted(others, key=lambda r: -r.belief.mean):
            merged = self._merge(winner.candidate, other.candidate)
            seen = [item for item in self._order if item.id in winner.samples.scores]
            if merged is None or not self._affords(len(seen)):
                continue
            pair = Runner(merged, winner.prior_variance + other.prior_variance)
            self.runners.append(pair)
            await self._draw_block([pair], seen, ())
            if self.look(pair).mean > winner.belief.mean + TOLERANCE:
                winner.fate = "beaten"
                return pair
            pair.fate = "beaten"
            return winner
        return winner

    def _merge(self, one: Candidate, other: Candidate) -> Candidate | None:
        if not one.edits or not other.edits or set(one.edits) & set(other.edits):
            return None
        edits = (*one.edits, *other.edits)
        applied = apply_edits(self._skill, edits, self._settings.max_skill_tokens)
        if applied.edits != edits or any(applied.skill.hash == runner.candidate.skill.hash for runner in self.runners):
            return None
        return Candidate(applied.skill, edits, f"{one.label} + {other.label}")

    async def confirm(self, winner: Runner) -> Samples:
        """A second, fresh pass, discordant items first: there luck shows soonest. Stops when both passes together look hopeless."""
        old, new = self.incumbent.values(self._settings), winner.samples.values(self._settings)
        moved = {item for item, difference in item_differences(new, old).items() if abs(difference) > 0.5}
        order = sorted(self._order, key=lambda item: item.id not in moved)
        fresh = Samples()
        quarter = max(BLOCK, len(order) // 4)
        for start in range(0, len(order), quarter):
            outcomes = await self._drawer.draw(winner.candidate.skill, order[start : start + quarter])
            fresh.add(outcomes)
            winner.samples.add(outcomes)
            if self.look(winner).probability < HOPELESS:
                break
        return fresh

    async def regressions(self, winner: Runner, fresh: Samples) -> list[str]:
        """Must-pass items the winner breaks, confirmed by two more rollouts of each side; one bad draw is no veto."""
        old, new = self.incumbent.values(self._settings), winner.samples.values(self._settings)
        must = [item for item in self._order if item.id in self._settings.must_pass]
        suspects = [item for item in must if mean(old.get(item.id, ())) >= 0.5 > mean(new.get(item.id, (1.0,)))]
        if not suspects or winner.belief.mean <= TOLERANCE:
            return []
        again = [Samples(), Samples()]
        for _ in range(2):
            for samples, skill in zip(again, (self._skill, winner.candidate.skill), strict=True):
                samples.add(await self._drawer.draw(skill, suspects))
        kept, broken = (samples.values(self._settings) for samples in again)
        return [s.id for s in suspects if mean(kept.get(s.id, ())) >= 0.5 > mean(broken.get(s.id, (1.0,)))]

    def decide(self, winner: Runner, fresh: Samples, regressions: Sequence[str]) -> tuple[Decision, str]:
        paired, wanted = winner.belief.items / len(self._order), self._settings.coverage_floor
        if min(paired, self.coverage, fresh.coverage) < wanted:
            winner.fate = "undecided"
            return (
                "inconclusive",
                f"{min(paired, self.coverage, fresh.coverage):.0%} of the rollouts were scored (floor {wanted:.0%})",
            )
        if regressions:
            winner.fate = "vetoed"
            return "reject", f"breaks must-pass items, confirmed on fresh rollouts: {', '.join(regressions)}"
        if winner.belief.mean <= TOLERANCE:
            winner.fate = "rejected"
            return "reject", "won the race, but not again on fresh rollouts"
        winner.fate = "winner"
        return "accept", f"better with probability {winner.belief.probability:.2f} over two passes, the second one fresh"

    def no_winner(self) -> tuple[Decision, Action, None, str]:
        if self.coverage < self._settings.coverage_floor or not any(runner.belief.items for runner in self.runners):
            if self._affords(len(self._order)):
                return "inconclusive", "inconclusive", None, f"only {self.coverage:.0%} of the rollouts were scored"
            return (
                "inconclusive",
                "inconclusive",
                None,
                f"the rollout budget does not cover {len(self._order)} selection items twice",
            )
        return "reject", "reject", None, "no candidate looks better than the incumbent"

    def verdict(
        self, decision: Decision, action: Action, winner: Runner | None, reason: str, fresh: Samples | None = None
    ) -> Verdict:
        shown = winner or max((r for r in self.runners if r.belief.items), key=lambda r: r.belief.mean, default=None)
        accepted = winner.candidate if winner and decision == "accept" else None
        evidence = Evidence(rollouts=self.spent, coverage=self.coverage)
        if shown:
            evidence = compare(shown.samples, self.incumbent, self._settings, rollouts=self.spent, coverage=self.coverage)
        record = fresh or (shown.samples if shown else None)
        return Verdict(
            decision=decision,
            action=action,
            winner=accepted.skill if accepted else self._skill,
            chosen=accepted,
            reason=reason,
            evidence=evidence,
            standings=tuple(self._standing(runner) for runner in self.runners),
            incumbent_score=self.incumbent.score(self._settings),
            candidate_score=record.score(self._settings) if record else None,
            tally=record.tally() if record else None,
        )

    def _standing(self, runner: Runner) -> Standing:
        differences = item_differences(runner.samples.values(self._settings), self.incumbent.values(self._settings))
        return Standing(
            label=runner.candidate.label,
            skill_hash=runner.candidate.skill.hash,
            items=runner.belief.items,
            rollouts=runner.samples.planned,
            score=runner.samples.score(self._settings),
            difference=mean(list(differences.values())),
            probability=runner.belief.probability,
            fate=runner.fate,
        )
