"""The reference's rule: accept iff the candidate's mean is strictly above the incumbent's recorded score; ties are rejected."""

from __future__ import annotations

from collections.abc import Sequence

from skillfit.gate.evidence import compare
from skillfit.gate.samples import TOLERANCE, Samples
from skillfit.gate.verdict import Action, Candidate, Decision, Evidence, GateSettings, Measure, Standing, Verdict
from skillfit.rollout.outcome import Tally
from skillfit.skill import Skill
from skillfit.tasks.item import Item


class StrictGate:
    """One pass per skill, kept for the whole run. Of several candidates only the first (the whole patch) is looked at.
    With `use_gate` off every candidate is accepted, still scored, and the best one kept."""

    def __init__(self, measure: Measure, items: Sequence[Item], settings: GateSettings) -> None:
        self._measure = measure
        self._items = list(items)
        self._settings = settings
        self._known: dict[str, Samples] = {}
        self._scored: dict[str, tuple[Skill, float]] = {}  # accepted skills, for finalists
        self._initial: Skill | None = None
        self._best: Skill | None = None
        self._best_score = 0.0

    @property
    def best(self) -> Skill:
        if self._best is None:
            raise RuntimeError("The gate has no baseline yet.")
        return self._best

    @property
    def best_score(self) -> float:
        return self._best_score

    def finalists(self, limit: int) -> list[Skill]:
        ranked = sorted(self._scored.values(), key=lambda entry: -entry[1])
        return [skill for skill, _ in ranked[:limit]]

    async def baseline(self, skill: Skill) -> Tally:
        samples = await self._samples(skill)
        self._initial = self._best = skill
        self._best_score = samples.score(self._settings)
        return samples.tally()

    async def judge(self, name: str, incumbent: Skill, candidates: Sequence[Candidate]) -> Verdict:
        candidate = candidates[0] if candidates else None
        old = await self._samples(incumbent)
        if candidate is None or candidate.skill.hash == incumbent.hash:
            return self._unchanged(incumbent, old, candidate)
        self._keep(incumbent, old)  # it may have been changed outside the gate (slow update, appendix)
        cached = candidate.skill.hash in self._known
        new = await self._samples(candidate.skill)
        evidence = compare(
            new, old, self._settings, rollouts=0 if cached else new.planned, coverage=min(new.coverage, old.coverage)
        )
        decision, reason = self._decide(evidence, old, new)
        action: Action = decision
        if decision == "accept":
            action = "accept_new_best" if self._keep(candidate.skill, new) else "accept"
        if not self._settings.use_gate:
            decision, action, reason = "accept", "force_accept", f"gate off; {reason}"
        standing = Standing(
            label=candidate.label,
            skill_hash=candidate.skill.hash,
            items=len(new.scores),
            rollouts=evidence.rollouts,
            score=new.score(self._settings),
            difference=evidence.difference,
            probability=evidence.probability,
            fate="winner" if decision == "accept" else "rejected",
        )
        return Verdict(
            decision=decision,
            action=action,
            winner=candidate.skill if decision == "accept" else incumbent,
            chosen=candidate if decision == "accept" else None,
            reason=reason,
            evidence=evidence,
            standings=(standing,),
            incumbent_score=old.score(self._settings),
            candidate_score=new.score(self._settings),
            tally=new.tally(),
        )

    async def _samples(self, skill: Skill) -> Samples:
        if skill.hash not in self._known:
            samples = Samples()
            samples.add(await self._measure(skill, self._items, repeat=0, series="selection"))
            self._known[skill.hash] = samples
        return self._known[skill.hash]

    def _decide(self, evidence: Evidence, old: Samples, new: Samples) -> tuple[Decision, str]:
        floor = self._settings.coverage_floor
        if min(old.coverage, new.coverage) < floor:
            return "inconclusive", f"only {min(old.coverage, new.coverage):.0%} of the rollouts were scored (floor {floor:.0%})"
        # On the items scored in both: with nothing failed this is the difference of the two means.
        if evidence.difference > TOLERANCE:
            return "accept", f"mean {evidence.difference:+.4f} above the incumbent"
        return "reject", f"mean {evidence.difference:+.4f}: not strictly above the incumbent"

    def _keep(self, skill: Skill, samples: Samples) -> bool:
        """Remember a skill that was carried on; True when it is the best so far."""
        if self._initial is None or skill.hash == self._initial.hash or samples.coverage < self._settings.coverage_floor:
            return False
        score = samples.score(self._settings)
        self._scored[skill.hash] = (skill, score)
        if score <= self._best_score + TOLERANCE:
            return False
        self._best, self._best_score = skill, score
        return True

    def _unchanged(self, incumbent: Skill, old: Samples, candidate: Candidate | None) -> Verdict:
        reason = "no candidate" if candidate is None else "the candidate is byte for byte the incumbent"
        score = old.score(self._settings)
        return Verdict("reject", "reject", incumbent, None, reason, Evidence(), (), score, None, None)
