"""Accept, reject, or say "can't tell": the gate's rules, the ship test, credit per edit, and checks that keep a result honest."""

from skillfit.gate.race import RaceGate
from skillfit.gate.strict import StrictGate
from skillfit.gate.verdict import Candidate, Evidence, Gate, GateSettings, Measure, Standing, Verdict

__all__ = ["Candidate", "Evidence", "Gate", "GateSettings", "Measure", "RaceGate", "Standing", "StrictGate", "Verdict"]
