"""Where two runs first differ, and whether a defect of SkillOpt is the reason.

A difference counts as explained only when SkillOpt's own files show the defect at the point where
the runs differ. A step whose candidate is the incumbent itself is rejected there (9) and skipped
here; nothing depends on it, so the comparison continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from bench.parity.outcome import Outcome, StepRow
from bench.parity.scenario import PROBES, Scenario
from bench.parity.world import SIZES
from skillfit.config import load_config
from skillfit.optimize.stages import edit_budget
from skillfit.skill import Skill, without_placeholder

DEFECTS = {
    5: "a forced slow update leaves the recorded score stale: later gates compare with a score "
    "the carried skill does not have",
    7: "the last skill is promoted only when the test split is evaluated",
    9: "a candidate equal to the incumbent is not noticed; it is scored and rejected (or, with the "
    "gate off, accepted)",
    19: "skipped steps do not advance the learning-rate schedule",
    24: "an edit that begins before a protected region reaches into it",
    25: "rewrites may drop the protected region",
    26: "an append with `target: null` is lost",
    27: "an insertion whose anchor is missing is appended and counts as applied",
    29: "`lr_control_mode: none` still follows the schedule",
    32: "a learning rate of 0 lets one edit in",
}
_SKIPPED = "skip_no_change"


@dataclass(frozen=True, slots=True)
class Comparison:
    scenario: Scenario
    parted: str = ""  # what differed first; empty: nothing
    defect: int | None = None  # the reason, where it is one of SkillOpt's
    unchanged: int = 0  # steps whose candidate was the incumbent (defect 9)
    actions: tuple[str, ...] = ()  # ours

    @property
    def agrees(self) -> bool:
        return not self.parted

    @property
    def expected(self) -> bool:
        """Plain runs agree or differ for a known reason; a probe shows the defect it is for."""
        if self.scenario.probe:
            return self.defect == PROBES[self.scenario.probe].defect
        return self.agrees or self.defect is not None


def compare(scenario: Scenario, reference: Outcome, ours: Outcome) -> Comparison:
    actions = tuple(row.action for row in ours.steps)
    unchanged = 0
    for before, (theirs, mine) in enumerate(zip(reference.steps, ours.steps, strict=False)):
        if _both_unchanged(theirs, mine):
            unchanged += 1
            theirs, mine = _decided(theirs), _decided(mine)
        if (what := _difference(theirs, mine)) is not None:
            parted = (
                f"step {mine.step}, {what}: "
                f"{getattr(theirs, what)} there, {getattr(mine, what)} here"
            )
            return Comparison(
                scenario,
                parted,
                _reason(scenario, reference.steps[:before], theirs, mine, what),
                unchanged,
                actions,
            )
    parted, defect = _at_the_end(scenario, reference, ours)
    return Comparison(scenario, parted, defect, unchanged, actions)


def _both_unchanged(theirs: StepRow, mine: StepRow) -> bool:
    return mine.action == _SKIPPED and "unchanged" in theirs.facts


def _decided(row: StepRow) -> StepRow:
    return StepRow(row.step, "unchanged", row.edit_budget, None, None, row.facts)


def _difference(theirs: StepRow, mine: StepRow) -> str | None:
    """The first field that differs, in the order in which a step decides."""
    for name in ("step", "edit_budget", "candidate", "action"):
        if getattr(theirs, name) != getattr(mine, name):
            return name
    if theirs.score is None or mine.score is None:
        return None if theirs.score is mine.score else "score"
    return "score" if abs(theirs.score - mine.score) > 1e-9 else None


def _reason(
    scenario: Scenario, before: tuple[StepRow, ...], theirs: StepRow, mine: StepRow, what: str
) -> int | None:
    if what == "edit_budget":
        if (
            scenario.settings()["optimizer"]["lr_control_mode"] == "none"
            and mine.edit_budget is None
        ):
            return 29
        skipped = sum(row.action.startswith("skip") for row in before)
        lagging = theirs.edit_budget == _scheduled(scenario, theirs.step - skipped)
        return (
            19
            if skipped and lagging and mine.edit_budget == _scheduled(scenario, mine.step)
            else None
        )
    if what == "candidate" and theirs.edit_budget == 0:
        return 32
    if what == "candidate":
        signs = {
            "memory_touched": 24 if scenario.mode == "patch" else 25,
            "edit_lost": 26,
            "anchor_missed": 27,
        }
        return next((defect for sign, defect in signs.items() if sign in theirs.facts), None)
    return 5 if what == "action" and "stale_score" in theirs.facts else None


def _scheduled(scenario: Scenario, step: int) -> int | None:
    settings = load_config({"recipe": "paper", **scenario.settings()})
    steps_per_epoch = ceil(
        SIZES["train"] / (settings.train.batch_size * settings.train.accumulation)
    )
    optimizer = settings.optimizer
    return edit_budget(
        optimizer.lr_scheduler,
        step,
        steps_per_epoch * settings.train.num_epochs,
        maximum=optimizer.learning_rate,
        minimum=optimizer.min_learning_rate,
    )


def _shown(what: str, outcome: Outcome) -> Any:
    """The reference leaves an empty slow-update region in its final skill; ours does not."""
    found = getattr(outcome, what)
    return without_placeholder(Skill.from_text(found)).text if what == "best" else found


def _at_the_end(scenario: Scenario, reference: Outcome, ours: Outcome) -> tuple[str, int | None]:
    """Differences of runs that agree in every step."""
    for what in ("final", "best", "memory", "advice", "test"):
        if _shown(what, reference) == _shown(what, ours):
            continue
        defect = None
        if (
            what == "best"
            and "unmeasured_best" in reference.facts
            and not scenario.settings()["evaluation"]["eval_test"]
        ):
            defect = 7
        elif what == "best" and any("unmeasured_best" in row.facts for row in reference.steps):
            defect = 5
        return f"{what} differs", defect
    return (
        ("", None) if len(reference.steps) == len(ours.steps) else ("number of steps differs", None)
    )
