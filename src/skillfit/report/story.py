"""The one outside view of a run, as plain data. Terminal, report, studio, Python API and MCP server
all read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skillfit.report.story_parts import (
    Cost,
    EditSummary,
    GateSummary,
    Notice,
    PersonDecision,
    Point,
    Rejection,
    SkillVersion,
    StageProgress,
    State,
    TypeSummary,
)
from skillfit.run.events import AblationFinished, ShipTested
from skillfit.skill import Hunk, diff_hunks


@dataclass(frozen=True, slots=True)
class SelectionScores:
    """The initial and the best skill on the selection split."""

    initial: float
    best: float


@dataclass(frozen=True, slots=True)
class DataSummary:
    """What the skill is trained on."""

    skill: str = ""  # path
    tasks: str = ""
    grader: str = ""
    splits: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStory:
    """What a run did so far: settings, scores, edits, decisions, cost and result."""

    run: str
    path: str
    state: State
    finish_reason: str = ""  # empty while the run has not finished
    verdict: str = ""  # one sentence
    diagnosis: str = ""
    skill_name: str = ""
    agent: str = ""
    optimizer: str = ""
    judge: str = ""
    version: str = ""
    isolation: str = ""  # how agents and graders were kept apart from this machine
    metric: str = "hard"  # hard, soft or mixed: which score every number here is in
    config: dict[str, Any] = field(default_factory=dict)
    data: DataSummary = DataSummary()
    total_steps: int = 0
    total_epochs: int = 0
    steps_done: int = 0
    begun: float | None = None
    ended: float | None = None  # time of the last event
    seconds: float = 0.0
    seconds_left: float | None = None  # expected; None when there is nothing to go by
    initial_skill: str = ""
    best_skill: str = ""  # what the run hands back; while it runs, the best so far
    unproven_skill: str = ""  # what was found where it is not handed back
    tokens: tuple[int, int] = (0, 0)  # of the initial and of the found skill
    versions: tuple[SkillVersion, ...] = ()
    points: tuple[Point, ...] = ()
    selection: SelectionScores | None = None  # as the end of the run says
    ship: ShipTested | None = None  # None unless fresh rollouts were made
    ablation: AblationFinished | None = None  # of `skillfit ablate`
    gates: tuple[GateSummary, ...] = ()
    edits: tuple[EditSummary, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    types: tuple[TypeSummary, ...] = ()
    stages: tuple[StageProgress, ...] = ()  # of the present step, and any that still run
    decisions: tuple[PersonDecision, ...] = ()
    prompts: int = 0  # handoff prompts that wait for an answer
    costs: tuple[Cost, ...] = ()
    total: Cost = field(default_factory=lambda: Cost("total"))
    notices: tuple[Notice, ...] = ()
    graded: bool = False  # some scores are neither 0 nor 1
    rollouts: int = 0
    rollouts_failed: int = 0

    @property
    def failed(self) -> bool:
        return self.finish_reason == "infrastructure"

    @property
    def practice(self) -> bool:
        """Whether the built-in practice models took part. They are not language models."""
        return any(model.startswith("practice/") for model in (self.agent, self.optimizer))

    @property
    def found_skill(self) -> str:
        """What the training led to, whether it is handed back or not."""
        return self.unproven_skill or self.best_skill

    @property
    def changed(self) -> bool:
        return self.found_skill != self.initial_skill

    @property
    def hunks(self) -> tuple[Hunk, ...]:
        """What changed from the initial skill to the one found."""
        return diff_hunks(self.initial_skill, self.found_skill)

    @property
    def caps(self) -> dict[str, float]:
        """The budgets that are set."""
        budget = self.config.get("budget") or {}
        return {name: float(cap) for name, cap in budget.items() if cap}

    @property
    def running_stage(self) -> StageProgress | None:
        """The latest stage that is not over."""
        return next((stage for stage in reversed(self.stages) if not stage.over), None)

    def point(self, name: str) -> Point | None:
        return next((point for point in reversed(self.points) if point.name == name), None)

    def version_of(self, name: str) -> SkillVersion | None:
        return next((version for version in self.versions if version.name == name), None)

    def edit(self, edit_id: str) -> EditSummary | None:
        return next((edit for edit in self.edits if edit.id == edit_id), None)

    def edits_with(self, *statuses: str) -> tuple[EditSummary, ...]:
        return tuple(edit for edit in self.edits if edit.status in statuses)

    def selected(self) -> SelectionScores | None:
        """Scores on the selection split: what the end of the run says, or the last point of the
        curve that the loop went on with.
        """
        first = self.point("baseline")
        if self.selection is not None or first is None:
            return self.selection
        kept = [point for point in self.points if point.split == "selection" and point.kept]
        best = max(point.score for point in kept) if self.changed else first.score
        return SelectionScores(first.score, best)
