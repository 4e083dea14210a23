"""What a run comes down to, as plain data: the report, `show`, the studio and the MCP server all tell this story."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from skillfit.models.protocol import Usage
from skillfit.run.events import RolloutFinished, ShipTested
from skillfit.skill import Hunk

State = Literal["finished", "running", "stopped", "waiting"]  # waiting: for answers to handoff prompts
Change = Literal["fixed", "broken", "both", "neither"]


def label_of(name: str) -> str:
    """A step's or an evaluation's name as people say it."""
    for prefix, said in (("step_", "step "), ("slow_update_epoch_", "slow update ")):
        if name.startswith(prefix):
            return said + name.removeprefix(prefix).lstrip("0")
    return name.removeprefix("test_").removeprefix("ship_").replace("baseline", "initial").replace("_", " ")


@dataclass(frozen=True, slots=True)
class Point:
    """A skill's mean score on some items, with its 90 % interval."""

    name: str  # baseline, step_0003, slow_update_epoch_02, final, ship_initial, ship_best, test_baseline, test_best, …
    split: Literal["selection", "ship", "test"]
    score: float
    low: float
    high: float
    items: int
    decision: str = "accept"  # whether the skill was carried on

    @property
    def label(self) -> str:
        return label_of(self.name)


@dataclass(frozen=True, slots=True)
class Decided:
    """A verdict of the gate, or why a step came to none."""

    name: str
    epoch: int
    action: str  # accept_new_best, accept, force_accept, reject, inconclusive, skip_…
    reason: str = ""
    difference: float = 0.0
    interval: tuple[float, float] = (0.0, 0.0)
    probability: float | None = None  # None: nothing was measured
    fixed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    rollouts: int = 0
    candidates: tuple[dict[str, Any], ...] = ()

    @property
    def label(self) -> str:
        return label_of(self.name)

    @property
    def accepted(self) -> bool:
        return self.action in ("accept", "accept_new_best", "force_accept")


@dataclass(frozen=True, slots=True)
class EditTold:
    """An accepted edit. `worth` is in points of the mean score, None when it was not measured alone."""

    step: int
    op: str
    target: str
    content: str
    worth: float | None = None
    interval: tuple[float, float] = (0.0, 0.0)
    kept: bool = True
    reason: str = "not measured"


@dataclass(frozen=True, slots=True)
class Side:
    """An item under one skill: the scores of its rollouts, and the journal key of one that is typical."""

    scores: tuple[float, ...] = ()
    failures: tuple[str, ...] = ()
    rollout: str = ""

    @property
    def mean(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores else None

    @property
    def solved(self) -> bool:
        return (self.mean or 0.0) >= 0.5


@dataclass(frozen=True, slots=True)
class ItemTold:
    id: str
    split: str
    before: Side
    after: Side
    type: str = ""
    input: str = ""
    expected: str = ""

    @property
    def change(self) -> Change:
        pair = (self.before.solved, self.after.solved)
        words: dict[tuple[bool, bool], Change] = {(False, True): "fixed", (True, False): "broken", (True, True): "both"}
        return words.get(pair, "neither")


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the person should know: a check, a warning, an edit that was blocked or could not be used, a failure."""

    kind: Literal["check", "warning", "blocked", "discarded", "failed"]
    where: str
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    stage: str
    role: str = ""
    model: str = ""
    calls: int = 0
    tokens: int = 0
    usd: float | None = 0.0  # None: no price is known

    def plus(self, used: Usage | RolloutFinished | Cost) -> Cost:
        usd = None if self.usd is None or used.usd is None else self.usd + used.usd
        return replace(self, calls=self.calls + used.calls, tokens=self.tokens + used.tokens, usd=usd)


@dataclass(frozen=True, slots=True)
class RunStory:
    run: str
    path: str
    state: State
    finish_reason: str  # empty while there is no end
    verdict: str  # one sentence
    diagnosis: str
    skill_name: str = ""
    agent: str = ""
    optimizer: str = ""
    version: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    total_steps: int = 0
    at: str = ""  # the stage the run is in, or was in last
    begun: float | None = None
    seconds: float = 0.0
    initial_skill: str = ""
    best_skill: str = ""
    tokens: tuple[int, int] = (0, 0)  # of the initial and the best skill
    points: tuple[Point, ...] = ()
    selection: tuple[float, float] | None = None  # the initial and the best skill on comparable rollouts, once the run has ended
    ship: ShipTested | None = None  # where it made fresh rollouts
    decided: tuple[Decided, ...] = ()
    edits: tuple[EditTold, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    items: tuple[ItemTold, ...] = ()
    costs: tuple[Cost, ...] = ()
    total: Cost = Cost("total")
    notices: tuple[Notice, ...] = ()

    @property
    def practice(self) -> bool:
        """Whether the built-in practice models, which are no language models, took part."""
        return any(model.startswith("practice/") for model in (self.agent, self.optimizer))

    @property
    def changed(self) -> bool:
        return bool(self.hunks)

    def point(self, name: str) -> Point | None:
        return next((point for point in reversed(self.points) if point.name == name), None)

    def selected(self) -> tuple[float, float] | None:
        """Scores of the initial and the best skill on the selection split: what the end says, or the highest point so far."""
        first = self.point("baseline")
        if self.selection is not None or first is None:
            return self.selection
        carried = [point.score for point in self.points if point.split == "selection" and point.decision == "accept"]
        return first.score, max(carried, default=first.score) if self.changed else first.score

    def count(self, change: Change, split: str = "") -> int:
        return sum(item.change == change and split in ("", item.split) for item in self.items)
