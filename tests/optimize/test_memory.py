from skillfit.optimize.context import StepMemory, failure_patterns, render_memory
from skillfit.optimize.optimizer import Patch, Proposal
from skillfit.run.records import FailureNote
from skillfit.skill import Edit
from tests.optimize.scripted_optimizer import broken, outcome


def test_patterns_pair_analysts_descriptions_with_the_items_they_named():
    outcomes = [
        outcome("a", 0, feedback="format: no tag"),
        outcome("b", 0, feedback="format: no tag"),
        outcome("c", 0, feedback="value: 3"),
    ]
    notes = (
        FailureNote("Rounding", "rounded too early", 1, ("c",)),
        FailureNote("rounding", "again", 1, ("b",)),
    )
    patterns = failure_patterns(outcomes, [Patch((), "failure", failure_summary=notes)])
    assert [(p.pattern, p.count, p.task_ids, p.description) for p in patterns] == [
        ("Rounding", 2, ("c", "b"), "rounded too early"),
        ("format", 1, ("a",), ""),
    ]


def test_without_analysts_the_graders_reason_groups_failures():
    outcomes = [
        outcome("a", 0, feedback="format: x"),
        outcome("b", 1),
        broken("c"),
        outcome("d", 0.5, feedback="format: y"),
        outcome("e", 0),
    ]
    patterns = failure_patterns(outcomes, [])
    assert [(p.pattern, p.task_ids) for p in patterns] == [
        ("format", ("a", "d")),
        ("the answer was not accepted", ("e",)),
    ]


def test_a_pattern_never_claims_items_that_succeeded():
    notes = (FailureNote("slip", "d", 2, ("a", "b")),)
    (pattern,) = failure_patterns(
        [outcome("a", 0), outcome("b", 1)], [Patch((), "failure", failure_summary=notes)]
    )
    assert pattern.task_ids == ("a",) and pattern.count == 1


def test_rejected_edits_are_told_with_their_scores():
    rejected = Proposal(Edit("append", content="Shout."), "failure", ("a",)).record()
    entry = StepMemory(
        3,
        "reject",
        8,
        2,
        failure_patterns([outcome("a", 0, feedback="format: x")], []),
        0.5,
        0.25,
        (rejected,),
    )
    told = render_memory([entry])
    assert "Step 3: reject, score 0.500 -> 0.250; 2 of 8 rollouts failed" in told
    assert "Shout." in told and "format" in told
    assert "support_count" not in told
    assert entry.failure_patterns[0].task_ids == ("a",)


def test_an_empty_memory_says_nothing():
    assert render_memory([]) == ""


def test_the_memory_is_bounded_and_drops_the_oldest_first():
    long = Proposal(Edit("append", content="x" * 5_000), "failure").record()
    edits = (long,) * 8
    entries = [StepMemory(step, "reject", 8, 2, (), 0.5, 0.25, edits) for step in range(1, 21)]
    told = render_memory(entries)
    assert len(told) < 13_000
    assert "Step 20:" in told and "Step 1:" not in told
    assert "earlier steps left out" in told and "characters left out" in told
