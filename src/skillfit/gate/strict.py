"""SkillOpt's rule: accept if and only if the candidate's mean on the selection items is strictly
above the incumbent's recorded score. Ties are rejected.
"""

from __future__ import annotations

from skillfit.gate.base import BaseGate
from skillfit.gate.samples import TOLERANCE, Samples, mean
from skillfit.gate.verdict import Ruling


class StrictGate(BaseGate):
    """One pass per skill, kept for the whole run. With `use_gate` off every candidate is accepted,
    still measured, and the best one kept.
    """

    def decide(self, new: Samples, old: Samples) -> Ruling:
        # On items scored under both; with nothing failed this is the difference of the two means.
        difference = mean(list(new.against(old).values()))
        if difference > TOLERANCE:
            return Ruling("accept", f"mean {difference:+.4f} above the incumbent")
        return Ruling("reject", f"mean {difference:+.4f}: not strictly above the incumbent")
