"""skillfit trains agent skills: the markdown that tells a frozen LLM agent how to do a kind of
work. Everything that users and authors of plugins need can be imported from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillfit.agents import Agent as Agent
    from skillfit.agents import BaseAgent as BaseAgent
    from skillfit.api import Evaluation as Evaluation
    from skillfit.api import Run as Run
    from skillfit.api import evaluate as evaluate
    from skillfit.api import evaluate_async as evaluate_async
    from skillfit.api import train as train
    from skillfit.api import train_async as train_async
    from skillfit.config import Config as Config
    from skillfit.config import load_config as load_config
    from skillfit.errors import InputError as InputError
    from skillfit.errors import SkillfitError as SkillfitError
    from skillfit.gate import BaseGate as BaseGate
    from skillfit.gate import Candidate as Candidate
    from skillfit.gate import Gate as Gate
    from skillfit.gate import GateSettings as GateSettings
    from skillfit.gate import Judgement as Judgement
    from skillfit.gate import RolloutCount as RolloutCount
    from skillfit.gate import Ruling as Ruling
    from skillfit.gate import Samples as Samples
    from skillfit.gate.base import Composition as Composition
    from skillfit.gate.base import Observation as Observation
    from skillfit.gate.base import Origin as Origin
    from skillfit.gate.base import Round as Round
    from skillfit.gate.base import SelectionNeed as SelectionNeed
    from skillfit.gate.base import StrictGate as StrictGate
    from skillfit.gate.base import Verdict as Verdict
    from skillfit.gate.screening import ScreeningGate as ScreeningGate
    from skillfit.intervals import Interval as Interval
    from skillfit.models import CHAT_API as CHAT_API
    from skillfit.models import KnownProvider as KnownProvider
    from skillfit.models import ModelSpec as ModelSpec
    from skillfit.models import Reply as Reply
    from skillfit.models import Usage as Usage
    from skillfit.models import connect as connect
    from skillfit.models import register_provider as register_provider
    from skillfit.models.protocol import AuthFailed as AuthFailed
    from skillfit.models.protocol import BadReply as BadReply
    from skillfit.models.protocol import BadRequest as BadRequest
    from skillfit.models.protocol import ContextTooLong as ContextTooLong
    from skillfit.models.protocol import Image as Image
    from skillfit.models.protocol import Message as Message
    from skillfit.models.protocol import Model as Model
    from skillfit.models.protocol import ModelError as ModelError
    from skillfit.models.protocol import NetworkFailed as NetworkFailed
    from skillfit.models.protocol import Overloaded as Overloaded
    from skillfit.models.protocol import QuotaExhausted as QuotaExhausted
    from skillfit.models.protocol import RateLimited as RateLimited
    from skillfit.models.protocol import Refused as Refused
    from skillfit.models.protocol import Request as Request
    from skillfit.models.protocol import TimedOut as TimedOut
    from skillfit.models.protocol import Tool as Tool
    from skillfit.models.protocol import ToolCall as ToolCall
    from skillfit.optimize.optimizer import Patch as Patch
    from skillfit.optimize.optimizer import Proposal as Proposal
    from skillfit.optimize.proposer import Proposer as Proposer
    from skillfit.optimize.proposer import ProposerParts as ProposerParts
    from skillfit.optimize.proposer import finished_cases as finished_cases
    from skillfit.plugins.trackers.trackers import Tracker as Tracker
    from skillfit.record.fold import read_record as read_record
    from skillfit.record.lists import list_runs as list_runs
    from skillfit.record.record import Record as Record
    from skillfit.record.record import RunCard as RunCard
    from skillfit.report import write_report as write_report
    from skillfit.rollout import Arm as Arm
    from skillfit.rollout import Executor as Executor
    from skillfit.rollout import LocalExecutor as LocalExecutor
    from skillfit.rollout import Outcome as Outcome
    from skillfit.rollout import Tally as Tally
    from skillfit.rollout.engine import Assignment as Assignment
    from skillfit.rollout.engine import Worker as Worker
    from skillfit.run.control import Control as Control
    from skillfit.run.control import Interrupted as Interrupted
    from skillfit.run.events import EvaluationFinished as EvaluationFinished
    from skillfit.run.events import Event as Event
    from skillfit.run.events import GateDecided as GateDecided
    from skillfit.run.events import PreflightFinished as PreflightFinished
    from skillfit.run.events import RolloutFinished as RolloutFinished
    from skillfit.run.events import RunFinished as RunFinished
    from skillfit.run.events import RunStarted as RunStarted
    from skillfit.run.events import ShipTested as ShipTested
    from skillfit.run.events import StepFinished as StepFinished
    from skillfit.run.events import Stored as Stored
    from skillfit.run.paid import Paid as Paid
    from skillfit.run.records import EditEffect as EditEffect
    from skillfit.run.records import Evidence as Evidence
    from skillfit.run.records import ShipResult as ShipResult
    from skillfit.skill import Edit as Edit
    from skillfit.skill import Skill as Skill
    from skillfit.tasks import Evaluator as Evaluator
    from skillfit.tasks import LoadContext as LoadContext
    from skillfit.tasks import SourceItems as SourceItems
    from skillfit.tasks import SourceReference as SourceReference
    from skillfit.tasks import TaskSource as TaskSource
    from skillfit.tasks.item import Attempt as Attempt
    from skillfit.tasks.item import Grader as Grader
    from skillfit.tasks.item import Item as Item
    from skillfit.tasks.item import Score as Score
    from skillfit.tasks.item import ScoredAttempt as ScoredAttempt
    from skillfit.tasks.item import TrajectoryStep as TrajectoryStep
    from skillfit.tasks.task import Task as Task
    from skillfit.training.measure import Measured as Measured
    from skillfit.training.plan import BalancedBatches as BalancedBatches
    from skillfit.training.plan import BatchSampler as BatchSampler
    from skillfit.training.plan import Plan as Plan
    from skillfit.training.plan import ShuffledBatches as ShuffledBatches

__version__ = "0.1.0"

# The module of each public name. It is imported with the first use of the name, so that
# `import skillfit` costs nothing.
_HOMES = {
    name: module
    for module, names in {
        "skillfit.agents": ("Agent", "BaseAgent"),
        "skillfit.api": ("Evaluation", "Run", "evaluate", "evaluate_async", "train", "train_async"),
        "skillfit.config": ("Config", "load_config"),
        "skillfit.errors": ("InputError", "SkillfitError"),
        "skillfit.gate": (
            "BaseGate",
            "Candidate",
            "Gate",
            "GateSettings",
            "Judgement",
            "RolloutCount",
            "Ruling",
            "Samples",
        ),
        "skillfit.gate.base": (
            "Composition",
            "Observation",
            "Origin",
            "Round",
            "SelectionNeed",
            "StrictGate",
            "Verdict",
        ),
        "skillfit.gate.screening": ("ScreeningGate",),
        "skillfit.intervals": ("Interval",),
        "skillfit.models": (
            "CHAT_API",
            "KnownProvider",
            "ModelSpec",
            "Reply",
            "Usage",
            "connect",
            "register_provider",
        ),
        "skillfit.models.protocol": (
            "AuthFailed",
            "BadReply",
            "BadRequest",
            "ContextTooLong",
            "Image",
            "Message",
            "Model",
            "ModelError",
            "NetworkFailed",
            "Overloaded",
            "QuotaExhausted",
            "RateLimited",
            "Refused",
            "Request",
            "TimedOut",
            "Tool",
            "ToolCall",
        ),
        "skillfit.optimize.optimizer": ("Patch", "Proposal"),
        "skillfit.optimize.proposer": ("Proposer", "ProposerParts", "finished_cases"),
        "skillfit.plugins.trackers.trackers": ("Tracker",),
        "skillfit.record.fold": ("read_record",),
        "skillfit.record.lists": ("list_runs",),
        "skillfit.record.record": ("Record", "RunCard"),
        "skillfit.report": ("write_report",),
        "skillfit.rollout": ("Arm", "Executor", "LocalExecutor", "Outcome", "Tally"),
        "skillfit.rollout.engine": ("Assignment", "Worker"),
        "skillfit.run.control": ("Control", "Interrupted"),
        "skillfit.run.events": (
            "EvaluationFinished",
            "Event",
            "GateDecided",
            "PreflightFinished",
            "RolloutFinished",
            "RunFinished",
            "RunStarted",
            "ShipTested",
            "StepFinished",
            "Stored",
        ),
        "skillfit.run.paid": ("Paid",),
        "skillfit.run.records": ("EditEffect", "Evidence", "ShipResult"),
        "skillfit.skill": ("Edit", "Skill"),
        "skillfit.tasks": (
            "Evaluator",
            "LoadContext",
            "SourceItems",
            "SourceReference",
            "TaskSource",
        ),
        "skillfit.tasks.item": (
            "Attempt",
            "Grader",
            "Item",
            "Score",
            "ScoredAttempt",
            "TrajectoryStep",
        ),
        "skillfit.tasks.task": ("Task",),
        "skillfit.training.measure": ("Measured",),
        "skillfit.training.plan": ("BalancedBatches", "BatchSampler", "Plan", "ShuffledBatches"),
    }.items()
    for name in names
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'skillfit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
