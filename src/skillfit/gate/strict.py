"""The reference's rule: accept iff the candidate's mean is strictly above the incumbent's recorded
score; ties are rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

from skillfit.gate.evidence import Runner, Spending, conclude
from skillfit.gate.samples import TOLERANCE, Records, Samples
from skillfit.gate.statistics import mean
from skillfit.gate.verdict import Action, Candidate, Decision, Verdict
from skillfit.skill import Skill


class StrictGate(Records):
    """One pass per skill, kept for the whole run. Of several candidates only the first (the whole
    patch) is looked at. With `use_gate` off every candidate is accepted, still scored, and the best
    one kept.
    """

    async def judge(self, name: str, incumbent: Skill, candidates: Sequence[Candidate]) -> Verdict:
        spending = Spending(self.drawer)
        old = await self.record(incumbent)
        if not candidates or candidates[0].skill.hash == incumbent.hash:
            return conclude(
                incumbent, old, (), spending, "reject", "no candidate differs from the incumbent"
            )
        runner = Runner(candidates[0], await self.record(candidates[0].skill))
        runner.look(old)
        decision, reason = self._decide(runner.samples, old)
        runner.fate = "winner" if decision == "accept" else "rejected"
        if decision != "accept" and self.settings.use_gate:
            return conclude(incumbent, old, (runner,), spending, decision, reason, winner=runner)
        best = self.carry(runner.candidate.skill, runner.samples)
        action: Action = (
            "force_accept"
            if not self.settings.use_gate
            else "accept_new_best"
            if best
            else "accept"
        )
        return conclude(
            incumbent, old, (runner,), spending, "accept", reason, action=action, winner=runner
        )

    def _decide(self, new: Samples, old: Samples) -> tuple[Decision, str]:
        floor, covered = self.settings.coverage_floor, min(old.coverage, new.coverage)
        if covered < floor:
            return (
                "inconclusive",
                f"only {covered:.0%} of the rollouts were scored (floor {floor:.0%})",
            )
        # On the items scored in both; with nothing failed this is the difference of the two means.
        difference = mean(list(new.against(old).values()))
        if difference > TOLERANCE:
            return "accept", f"mean {difference:+.4f} above the incumbent"
        return "reject", f"mean {difference:+.4f}: not strictly above the incumbent"
