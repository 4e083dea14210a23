"""Accept, reject, or say "can't tell": the gate's rules, the ship test, credit per edit, and checks
that keep a result honest.
"""

from skillfit.gate.candidates import propose
from skillfit.gate.credit import Credit, Piece, Worth, assign_credit, edit_pieces, paragraph_pieces
from skillfit.gate.diagnosis import Diagnosis, Facts, diagnose
from skillfit.gate.leak import Leak, LeakIndex
from skillfit.gate.preflight import Check, overall
from skillfit.gate.race import RaceGate
from skillfit.gate.ship import ShipResult, ship_test
from skillfit.gate.strict import StrictGate
from skillfit.gate.verdict import (
    Candidate,
    Evidence,
    Gate,
    GateSettings,
    Measure,
    Standing,
    Verdict,
)

__all__ = [
    "Candidate",
    "Check",
    "Credit",
    "Diagnosis",
    "Evidence",
    "Facts",
    "Gate",
    "GateSettings",
    "Leak",
    "LeakIndex",
    "Measure",
    "Piece",
    "RaceGate",
    "ShipResult",
    "Standing",
    "StrictGate",
    "Verdict",
    "Worth",
    "assign_credit",
    "diagnose",
    "edit_pieces",
    "overall",
    "paragraph_pieces",
    "propose",
    "ship_test",
]
