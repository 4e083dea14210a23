"""SkillOpt's rule: accept if and only if the candidate's mean on the selection items is strictly
above the incumbent's recorded score. Ties are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

from skillfit.gate.samples import (
    TOLERANCE,
    RolloutCount,
    Samples,
    SkillScores,
    believe,
    compare,
    mean,
)
from skillfit.gate.verdict import (
    Begun,
    Candidate,
    Decision,
    Evidence,
    GateAction,
    Observation,
    Standing,
    Verdict,
)


class StrictGate(SkillScores):
    """One pass per skill, kept for the whole run. With `use_gate` off every candidate is accepted,
    still measured, and the best one kept.
    """

    async def judge(
        self,
        name: str,
        candidate: Candidate | None,
        training: Sequence[Observation] = (),
        begun: Begun | None = None,
    ) -> Verdict:
        spending = RolloutCount(self.sampler)
        incumbent = self.incumbent
        old = await self.record(incumbent)
        if candidate is None or candidate.skill.hash == incumbent.hash:
            reason = "no candidate differs from the incumbent"
            return Verdict(
                decision="reject",
                action="reject",
                winner=incumbent,
                reason=reason,
                evidence=Evidence(rollouts=spending.rollouts, coverage=spending.coverage),
                incumbent_score=old.score,
                candidate_score=None,
                tally=None,
                score=old.estimate(),
            )
        new = await self.record(candidate.skill)
        decision, reason = self.decide(new, old)
        standing = _standing(candidate, new, old, decision)
        action: GateAction = decision
        if not self.settings.use_gate and not candidate.gated:
            self.carry(candidate.skill, new)
            decision, action = "accept", "force_accept"
        elif decision == "accept":
            best = self.carry(candidate.skill, new)
            action = "accept_new_best" if best else "accept"
        evidence = compare(new, old, rollouts=spending.rollouts, coverage=spending.coverage)
        return Verdict(
            decision=decision,
            action=action,
            winner=self.incumbent,
            reason=reason,
            evidence=evidence,
            incumbent_score=old.score,
            candidate_score=new.score,
            tally=new.tally(),
            score=self.known(self.incumbent).estimate(),
            standings=(standing,),
        )

    def decide(self, new: Samples, old: Samples) -> tuple[Decision, str]:
        """The decision about a candidate, and its reason. Override it for another rule."""
        floor, covered = self.settings.coverage_floor, min(old.coverage, new.coverage)
        if covered < floor:
            reason = f"only {covered:.0%} of the rollouts were scored (floor {floor:.0%})"
            return "inconclusive", reason
        # On items scored under both; with nothing failed this is the difference of the two means.
        difference = mean(list(new.against(old).values()))
        if difference > TOLERANCE:
            return "accept", f"mean {difference:+.4f} above the incumbent"
        return "reject", f"mean {difference:+.4f}: not strictly above the incumbent"


def _standing(candidate: Candidate, new: Samples, old: Samples, decision: Decision) -> Standing:
    differences = list(new.against(old).values())
    return Standing(
        label=candidate.label,
        skill_hash=candidate.skill.hash,
        items=len(differences),
        rollouts=new.planned,
        score=new.score,
        difference=mean(differences),
        probability=believe(differences).probability,
        result="winner" if decision == "accept" else "rejected",
    )
