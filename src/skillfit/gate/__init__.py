"""Decide which edits enter the skill, and test at the end whether the skill got better.

`ScreeningGate` is the default, `StrictGate` is SkillOpt's rule; both implement `Gate`. Around them:
the ship test, the leak check, the checks before a run, and the diagnosis after one.
"""

from skillfit.gate.base import (
    BaseGate,
    Candidate,
    Composition,
    Gate,
    Judgement,
    Observation,
    Origin,
    Round,
    Ruling,
    SelectionNeed,
    StrictGate,
    Verdict,
)
from skillfit.gate.diagnosis import Facts, diagnose_run, overall
from skillfit.gate.leak import LeakIndex, TextFilter
from skillfit.gate.samples import GateSettings, Measure, RolloutCount, Samples
from skillfit.gate.screening import ScreeningGate
from skillfit.gate.ship import ship_test
from skillfit.rollout.outcome import Arm
from skillfit.run.records import EditEffect

__all__ = [
    "Arm",
    "BaseGate",
    "Candidate",
    "Composition",
    "EditEffect",
    "Facts",
    "Gate",
    "GateSettings",
    "Judgement",
    "LeakIndex",
    "Measure",
    "Observation",
    "Origin",
    "RolloutCount",
    "Round",
    "Ruling",
    "Samples",
    "ScreeningGate",
    "SelectionNeed",
    "StrictGate",
    "TextFilter",
    "Verdict",
    "diagnose_run",
    "overall",
    "ship_test",
]
