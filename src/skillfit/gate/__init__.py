"""Accept, reject, or say "can't tell": the gate's rules, the ship test, credit per edit, and the checks that keep results honest."""

from skillfit.gate.strict import StrictGate
from skillfit.gate.verdict import Candidate, Evidence, Gate, GateSettings, Measure, Standing, Verdict

__all__ = ["Candidate", "Evidence", "Gate", "GateSettings", "Measure", "Standing", "StrictGate", "Verdict"]
