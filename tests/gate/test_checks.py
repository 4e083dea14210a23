import pytest

from skillfit.gate.diagnosis import (
    blindness_check,
    cost_check,
    coverage_check,
    gold_check,
    headroom_check,
    lift_check,
    overall,
    power_check,
)
from skillfit.gate.shortcut import audit, shortcuts
from skillfit.run.records import CheckResult
from skillfit.tasks.item import Item


def test_the_worst_check_is_the_verdict():
    checks = [
        CheckResult("a", "go", ""),
        CheckResult("b", "stop", ""),
        CheckResult("c", "warn", ""),
    ]
    assert overall(checks) == "stop" and overall(checks[::2]) == "warn" and overall([]) == "go"


def test_gold_answers_must_score_1():
    assert gold_check({"a": 1.0, "b": 1.0}).verdict == "go"
    assert gold_check({"a": 1.0, "b": 0.5}).verdict == "warn"
    assert gold_check({"a": 0.0, "b": 0.5}).verdict == "stop"
    assert gold_check({"a": None}).verdict == "warn"
    failed = gold_check({"a": 0.0, "b": 1.0}, failed={"a": "pytest is not installed."})
    assert failed.verdict == "warn"
    assert failed.message == "The grader failed on 1 of 2 gold answers. pytest is not installed."
    assert gold_check({"a": 0.0}, failed={"a": "why"}).verdict == "stop"


@pytest.mark.parametrize(
    ("gain", "verdict", "says"),
    [(0.4, "go", "helps, +0.4"), (0.0, "warn", "no effect shown"), (-0.5, "warn", "hurts, -0.5")],
)
def test_the_lift_of_a_skill_over_no_skill_is_said_and_none_is_a_warning(gain, verdict, says):
    check = lift_check([gain] * 20)
    assert check.verdict == verdict
    assert says in check.message and check.message.endswith("over no skill on 20 items.")


def test_a_grader_that_rewards_an_empty_answer_is_blind():
    assert blindness_check(0.7, [0.0] * 20).verdict == "stop"


def test_a_grader_that_scores_every_probe_alike_is_blind():
    check = blindness_check(0.5, constant=0.5)
    assert check.verdict == "stop" and "every rollout scores 0.50" in check.message


def test_a_skill_that_solves_nothing_does_not_stop_the_run():
    assert blindness_check(0.0, [0.0] * 10, constant=0.0).verdict == "go"


def test_a_grader_that_distinguishes_answers_passes():
    assert blindness_check(0.7, [0.7] * 20).verdict == "go"


@pytest.mark.parametrize(
    ("baseline", "verdict"), [(1.0, "stop"), (0.95, "warn"), (0.4, "go"), (0.0, "go")]
)
def test_a_saturated_baseline_stops_the_run(baseline, verdict):
    assert headroom_check(baseline).verdict == verdict


def test_the_smallest_detectable_effect_is_reported():
    assert power_check(100, 0.05, 0.4).verdict == "go"
    assert power_check(10, 0.25, 0.4, repeats=1).verdict == "warn"
    assert "2 selection items can't prove" in power_check(2, 0.1, 0.4).message
    assert "1 selection item can't prove" in power_check(1, 0.1, 0.4).message
    assert power_check(100, 0.05, 0.4).detail["detectable"] < 0.1


def test_lost_rollouts_and_cost_are_reported():
    assert (
        coverage_check(1, 10, 0.6, "auth: no key").verdict == "stop"
        and "no key" in coverage_check(1, 10, 0.6, "auth: no key").message
    )
    assert (
        coverage_check(9, 10, 0.6, "").verdict == "warn"
        and coverage_check(10, 10, 0.6, "").verdict == "go"
    )
    assert cost_check(6.0, 9.0, 5.0).verdict == "warn" and cost_check(1.0, 2.0, 5.0).verdict == "go"


def question(name, gold, options=("red", "green", "blue", "grey")):
    return Item(name, {"input": "which?", "answers": [gold], "options": list(options)})


def test_an_option_that_is_always_right_is_found_by_text_and_by_letter():
    by_text = [question(str(n), "blue") for n in range(8)]
    [majority, position] = shortcuts(by_text, by_text)
    assert (majority.predicted, position.predicted) == (1.0, 1.0)
    by_letter = [question(str(n), "C", ("w", "x", "y", "z")) for n in range(8)]
    assert shortcuts(by_letter, by_letter)[1].predicted == 1.0
    other_words = [question(str(n), "grey", ("red", "blue", "grey")) for n in range(8)]
    [majority, position] = shortcuts(by_text, other_words)
    assert (majority.predicted, position.predicted) == (0.0, 1.0), "the third option is right"
    other_places = [question(str(n), "blue", ("blue", "red", "grey")) for n in range(8)]
    [majority, position] = shortcuts(by_text, other_places)
    assert (majority.predicted, position.predicted) == (1.0, 0.0)


def test_free_answers_have_only_a_weak_majority_shortcut():
    items = [Item(str(n), {"input": "?", "answers": [f"answer {n}"]}) for n in range(10)]
    [majority] = shortcuts(items, items)
    assert majority.predicted == 0.1
    assert shortcuts([], items) == []


def test_the_audit_warns_when_a_one_line_rule_reaches_the_score():
    items = [question(str(n), "blue") for n in range(8)]
    assert audit(shortcuts(items, items), score=0.9).verdict == "warn"
    others = [question(str(n), "red") for n in range(8)]
    assert audit(shortcuts(items, others), score=0.9).verdict == "go"
    assert audit([], 0.9).verdict == "go"


def test_the_audit_does_not_place_a_rule_below_a_score_that_it_reaches():
    golds = ["blue", "blue", "red", "green", "grey"]
    items = [Item(gold, {"input": "?", "answers": [gold]}) for gold in golds]
    low = audit(shortcuts(items, items), 0.2, "initial skill")
    assert (low.verdict, low.message) == (
        "warn",
        "A one-line rule (majority answer) scores 0.40, the initial skill 0.20: that score needs "
        "no skill.",
    )
    near = audit(shortcuts(items, items), 0.41)
    assert (near.verdict, near.message) == (
        "warn",
        "A one-line rule (majority answer) scores 0.40, nearly as much as the skill, 0.41.",
    )
    high = audit(shortcuts(items, items), 0.5)
    assert (high.verdict, high.message) == ("go", "No one-line rule reaches the score.")
    others = [Item("other", {"input": "?", "answers": ["black"]})]
    none = audit(shortcuts(items, others), 0.0)
    assert (none.verdict, none.message) == ("go", "No one-line rule scores above 0.")
