"""The ways a run can end: each gets its own diagnosis, and a next step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from skillfit.gate import Facts, diagnose_run
from skillfit.run.records import EditEffect
from skillfit.skill import Edit


def effect(mean: float, low: float, high: float) -> EditEffect:
    edit = Edit("append", content="- a rule")
    return EditEffect("s0001e01", 1, edit, "pending", mean, low, high, 0.5, 100)


NORMAL = Facts(
    run="runs/a",
    ship="no improvement",
    baseline=0.5,
    coverage=1.0,
    coverage_floor=0.6,
    selection_items=40,
    detectable=0.08,
    steps=8,
    proposed=60,
    selected=55,
    usable=50,
    accepted=2,
    effects=(effect(0.05, 0.02, 0.08),),
)
NONE_HELPED = {"accepted": 0, "effects": (effect(0.0, -0.01, 0.01),)}
COMPOSED = {"accepted": 0, "changed": True, "verified": True, "difference": 0.01}

PLANTED: list[tuple[str, dict[str, Any], str]] = [
    ("a real gain", {"ship": "improved", "difference": 0.1}, "improved"),
    ("wrong base URL, most rollouts fail", {"coverage": 0.3}, "infrastructure"),
    (
        "candidates whose rollouts fail",
        {"coverage": 0.7, "accepted": 0, "rejected": 6, "uncovered": 4, "effects": ()},
        "infrastructure",
    ),
    (
        "a ship test whose rollouts fail",
        {**COMPOSED, "ship": "inconclusive", "ship_coverage": 0.5},
        "infrastructure",
    ),
    ("a cap below the baseline", {"budget_reached": True, "measured": False}, "budget too small"),
    ("a grader for another task", {"gold_rejected_by": "env.grader"}, "wrong grader"),
    ("a grader that takes anything", {"blind_grader": "The grader is blind."}, "blind grader"),
    ("a constant evaluator", {"constant": 0.5}, "blind grader"),
    ("a skill that solves everything", {"baseline": 1.0}, "saturated"),
    (
        "an optimizer that replies with prose",
        {"proposed": 0, "usable": 0, "optimizer_failures": 9},
        "infrastructure",
    ),
    ("a cap below the first step", {"budget_reached": True, "steps": 0}, "budget too small"),
    ("an optimizer without ideas", {"proposed": 0, "usable": 0}, "nothing proposed"),
    ("an optimizer that copies answers", {"refused": 9, "usable": 0}, "leaked answers"),
    ("a learning rate of 0", {"selected": 0, "edits_wanted": False}, "no edits selected"),
    ("an optimizer that chooses rate 0", {"selected": 0, "usable": 0}, "no edits selected"),
    (
        "rates that nobody can read, on items that no skill solves",
        {"selected": 0, "usable": 0, "unread_rates": 8, "constant": 0.0},
        "no edits selected",
    ),
    ("edits with wrong anchors", {"usable": 0}, "no usable edits"),
    ("items that no skill solves", {"constant": 0.0}, "out of reach"),
    ("an optimizer that games the grader", {"gap": 0.3, "difference": -0.1}, "graders disagree"),
    ("six items in all", {"fit_only": True}, "fit only"),
    ("a cap in the middle of training", {"budget_reached": True}, "budget"),
    (
        "eight selection items",
        {"ship": "inconclusive", "difference": 0.05, "selection_items": 8, "detectable": 0.3},
        "too few items",
    ),
    (
        "an agent that answers at random",
        {"ship": "inconclusive", "difference": 0.05, "detectable": 0.3},
        "noisy agent",
    ),
    ("a gain too small to see", {"ship": "inconclusive", "difference": 0.04}, "no power"),
    ("an optimizer with useless edits", NONE_HELPED, "useless edits"),
    (
        "one short step",
        {"accepted": 0, "effects": (effect(0.05, -0.1, 0.2),)},
        "too little evidence",
    ),
    (
        "useless edits that were only pending in the final skill",
        {**COMPOSED, "effects": (effect(0.0, -0.01, 0.01),)},
        "useless edits",
    ),
    (
        "likely edits that were only pending in the final skill",
        {**COMPOSED, "effects": (effect(0.05, -0.1, 0.2),)},
        "too little evidence",
    ),
    (
        "nine selection items, and edits that were only pending",
        {**COMPOSED, "ship": "inconclusive", "selection_items": 9, "detectable": 0.48},
        "too few items",
    ),
    ("a strict gate that rejects all", {"accepted": 0, "effects": ()}, "useless edits"),
    ("luck on the selection split", {"difference": -0.02}, "did not hold"),
]


@pytest.mark.parametrize(
    ("change", "cause"), [row[1:] for row in PLANTED], ids=[r[0] for r in PLANTED]
)
def test_each_cause_gets_its_own_diagnosis(change: dict[str, Any], cause: str) -> None:
    found = diagnose_run(replace(NORMAL, **change))
    assert found.cause == cause
    assert found.message
    assert found.next_step or cause == "improved"


def test_a_rate_that_was_not_read_and_one_of_zero_are_told_apart() -> None:
    none = replace(NORMAL, selected=0, usable=0)
    assert "was not usable" in str(diagnose_run(replace(none, unread_rates=8)))
    assert "chose to apply none of its 60 proposals" in str(diagnose_run(none))
    assert "optimizer.learning_rate is 0" in str(diagnose_run(replace(none, edits_wanted=False)))


def test_pending_edits_in_the_final_skill_are_not_reported_as_a_gain() -> None:
    facts = replace(NORMAL, **COMPOSED, ship="inconclusive", effects=(effect(0.01, -0.03, 0.05),))
    found = diagnose_run(facts)
    assert found.message.startswith("No edit was promoted: of 1 edit measured, the best is +0.01")
    assert "changed the score by +0.010 on fresh rollouts" in found.message
    assert "Try a stronger model.optimizer." in found.next_step


def test_a_ship_grader_that_rejects_gold_answers_is_named() -> None:
    found = diagnose_run(replace(NORMAL, gold_rejected_by="evaluation.ship_grader"))
    assert found.message.startswith("The ship grader rejects every gold answer")
    assert "Fix evaluation.ship_grader" in found.next_step and "env.grader" not in str(found)


def test_a_blind_grader_is_described_as_the_check_before_the_run_saw_it() -> None:
    seen = "The grader is blind: every rollout scores 0.50, whatever the skill and the answer."
    assert diagnose_run(replace(NORMAL, blind_grader=seen)).message == seen


def test_without_a_ship_test_no_fresh_rollouts_are_claimed() -> None:
    found = diagnose_run(replace(NORMAL, ship=None, verified=False, difference=-0.02))
    assert found.cause == "did not hold"
    assert "Nothing held up on the selection split, without a ship test (-0.020)" in found.message


def test_a_working_grader_is_never_diagnosed_as_blind() -> None:
    """Gold scores 1 and empty answers 0: a useless optimizer is not evidence about the grader."""
    found = diagnose_run(replace(NORMAL, **NONE_HELPED))
    assert "grader" not in str(found)
    assert "+0.000 (-0.01 … +0.01)" in found.message


def test_commands_in_the_advice_name_the_run() -> None:
    for _, change, _ in PLANTED:
        text = str(diagnose_run(replace(NORMAL, **change)))
        for command in ("skillfit show", "skillfit report"):
            assert command not in text or f"{command} runs/a" in text


def test_a_learning_rate_of_zero_is_not_diagnosed_as_an_optimizer_problem() -> None:
    nothing = {"proposed": 0, "usable": 0, "accepted": 0, "effects": (), "edits_wanted": False}
    found = diagnose_run(replace(NORMAL, **nothing))
    assert "learning_rate is 0" in found.message
    assert "stronger" not in str(found)


def test_with_few_selection_items_the_advice_is_to_add_items() -> None:
    few = replace(NORMAL, selection_items=5, detectable=0.45, **NONE_HELPED)
    for facts in (few, replace(few, effects=())):
        said = diagnose_run(facts)
        assert said.cause == "useless edits"
        assert "Add items: 5 selection items can show gains from 0.45 on only." in said.next_step
        assert "stronger" not in said.next_step


def test_the_advice_depends_on_the_proposer() -> None:
    useless = replace(NORMAL, **NONE_HELPED)
    assert diagnose_run(useless).next_step == "Try a stronger model.optimizer."
    examples = diagnose_run(replace(useless, proposer="examples"))
    assert "optimizer.proposer=both" in examples.next_step
    custom = diagnose_run(replace(useless, proposer="custom"))
    assert "model.optimizer" not in custom.next_step
    unsolved = replace(NORMAL, proposed=0, usable=0, proposer="examples")
    assert "No training item was solved" in diagnose_run(unsolved).message
