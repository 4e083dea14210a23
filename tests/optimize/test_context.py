import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.optimize.context import (
    ItemAttempts,
    failure_patterns,
    fair_shares,
    render_cases,
    render_memory,
)
from skillfit.optimize.optimizer import Patch, Proposal
from skillfit.plain_text import head_and_tail
from skillfit.run.records import FailureNote, RefusedText, StepMemory
from skillfit.skill import Edit, Skill, estimate_tokens
from skillfit.tasks.item import Item, TrajectoryStep
from tests.optimize.scripted_optimizer import SKILL, broken, item, outcome


def test_a_case_shows_task_reference_steps_answer_score_and_reason():
    steps = [
        TrajectoryStep("tool_call", "ls", name="bash"),
        TrajectoryStep("tool_result", "a.txt", name="bash"),
        TrajectoryStep("message", "I see a.txt"),
    ]
    case = ItemAttempts(
        item("i1", "Find it.", reference="It is in a.txt"),
        (outcome("i1", 0.5, feedback="wrong: b.txt", steps=steps, answer="b"),),
    )
    shown = render_cases([case], SKILL, 10_000)
    for part in (
        "Item i1",
        "Find it.",
        "It is in a.txt",
        "gold of i1",
        "[calls bash] ls",
        "[bash returns] a.txt",
        "I see a.txt",
    ):
        assert part in shown
    assert "[answer] b" in shown
    assert "failed (hard 0.50)" in shown
    assert "Why: wrong: b.txt" in shown


def test_attached_files_are_named():
    shown = render_cases(
        [
            ItemAttempts(
                item("i1", files=["data/sales.xlsx"], images=["page.png"]), (outcome("i1", 0),)
            )
        ],
        SKILL,
        10_000,
    )
    assert "not shown here: sales.xlsx, page.png" in shown


def test_the_graders_evidence_is_never_shown():
    assert "SECRET RUBRIC" not in render_cases(
        [ItemAttempts(item("i1"), (outcome("i1", 0),))], SKILL, 10_000
    )


def test_tool_steps_are_left_out_when_the_trace_is_not_for_the_optimizer():
    steps = [
        TrajectoryStep("tool_call", "rm -r", name="bash"),
        TrajectoryStep("note", "event stream"),
        TrajectoryStep("message", "done with it"),
    ]
    shown = render_cases(
        [ItemAttempts(item("i1"), (outcome("i1", 0, steps=steps),))], SKILL, 10_000, trace=False
    )
    assert "rm -r" not in shown and "event stream" not in shown
    assert "done with it" in shown and "answer to i1" in shown


def test_neither_the_skill_nor_the_task_is_repeated():
    skill = Skill.from_text("# Long skill\n\n" + "Think before you answer. " * 10)
    task = "Read this context carefully. " * 10
    steps = [
        TrajectoryStep(
            "message", f"You know this:\n{skill.body.strip()}\nNow do: {task.strip()}", role="user"
        )
    ]
    shown = render_cases(
        [ItemAttempts(item("i1", task), (outcome("i1", 0, steps=steps),))], skill, 10_000
    )
    assert shown.count("Read this context carefully.") == 10
    assert "Think before you answer." not in shown
    assert "[the skill]" in shown and "[the task, as above]" in shown


def test_long_trajectories_are_cut_in_the_middle_and_keep_their_reason():
    steps = [TrajectoryStep("message", "FIRST " + "middle " * 20_000 + " LAST")]
    cases = [
        ItemAttempts(item(f"i{n}"), (outcome(f"i{n}", 0, feedback=f"reason {n}", steps=steps),))
        for n in range(4)
    ]
    shown = render_cases(cases, SKILL, 4_000)
    assert estimate_tokens(shown) <= 4_100
    for n in range(4):
        assert f"reason {n}" in shown
    assert shown.count("FIRST") == shown.count(" LAST") == 4
    assert len(re.findall(r"\[… [\d,]+ characters left out …\]", shown)) == 4


def test_a_short_trajectory_beside_a_long_one_is_not_cut():
    long = ItemAttempts(
        item("long"), (outcome("long", 0, steps=[TrajectoryStep("message", "x" * 100_000)]),)
    )
    short = ItemAttempts(
        item("short"), (outcome("short", 0, steps=[TrajectoryStep("message", "y" * 2_000)]),)
    )
    assert "y" * 2_000 in render_cases([long, short], SKILL, 3_000)


def test_attempts_of_one_item_are_shown_together_without_failed_ones():
    outcomes = (
        outcome("i1", 0, answer="bad"),
        broken("i1", 1),
        outcome("i1", 1, answer="good", repeat=2),
    )
    shown = render_cases([ItemAttempts(item("i1"), outcomes)], SKILL, 10_000)
    assert shown.count("What is i1?") == 1
    assert "#### Attempt 1" in shown and "#### Attempt 3" in shown and "Attempt 2" not in shown


@pytest.mark.parametrize("split", ["selection", "test"])
def test_items_of_other_splits_never_reach_the_optimizer(split):
    with pytest.raises(ValueError, match=split):
        render_cases(
            [ItemAttempts(Item("i1", {"input": "q"}, split=split), (outcome("i1", 0),))],
            SKILL,
            10_000,
        )


@given(st.text(max_size=2_000), st.integers(50, 500))
def test_the_note_states_exactly_how_much_was_cut(text, room):
    short = head_and_tail(text, room)
    if len(text) <= room:
        assert short == text
        return
    mark = re.search(r"\n\[… ([\d,]+) characters left out …\]\n", short)
    kept = len(short) - len(mark[0])
    assert int(mark[1].replace(",", "")) + kept == len(text)
    assert len(short) <= room
    assert text.startswith(short[: mark.start()]) and text.endswith(short[mark.end() :])


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=20), st.integers(0, 50_000))
def test_shares_fit_the_available_space_and_the_smallest_are_filled_first(sizes, room):
    shares = fair_shares(sizes, room)
    assert sum(shares) <= room
    assert all(share <= size for share, size in zip(shares, sizes, strict=True))
    if sum(sizes) <= room:
        assert shares == sizes
    else:
        assert min(
            share for share, size in zip(shares, sizes, strict=True) if share < size
        ) >= room // len(sizes)


def test_patterns_match_analysts_descriptions_with_the_named_items():
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


def test_a_pattern_never_lists_items_that_succeeded():
    notes = (FailureNote("slip", "d", 2, ("a", "b")),)
    (pattern,) = failure_patterns(
        [outcome("a", 0), outcome("b", 1)], [Patch((), "failure", failure_summary=notes)]
    )
    assert pattern.task_ids == ("a",) and pattern.count == 1


def test_a_pattern_keeps_items_of_earlier_steps_that_the_proposer_read():
    notes = (FailureNote("slip", "d", 3, ("a", "b", "earlier")),)
    (pattern,) = failure_patterns(
        [outcome("a", 0), outcome("b", 1)], [Patch((), "failure", failure_summary=notes)]
    )
    assert pattern.task_ids == ("a", "earlier") and pattern.count == 2


def test_rejected_edits_are_listed_with_their_scores():
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
    rendered = render_memory([entry])
    assert "Step 3: reject, score 0.500 -> 0.250; 2 of 8 rollouts failed" in rendered
    assert "Shout." in rendered and "format" in rendered
    assert "support_count" not in rendered
    assert entry.failure_patterns[0].task_ids == ("a",)


def test_an_empty_memory_adds_no_text():
    assert render_memory([]) == ""


def test_the_memory_lists_the_latest_refused_texts_once_with_the_words_that_leak():
    refused = [RefusedText(f"- Rule {number}.", (f"answer {number}",)) for number in range(9)]
    rendered = render_memory([], [*refused, refused[-1]])
    assert rendered.count('"- Rule 8.": refused because of "answer 8"') == 1
    assert "- Rule 1." in rendered and "- Rule 0." not in rendered


def test_the_memory_is_bounded_and_drops_the_oldest_first():
    long = Proposal(Edit("append", content="x" * 5_000), "failure").record()
    edits = (long,) * 8
    entries = [StepMemory(step, "reject", 8, 2, (), 0.5, 0.25, edits) for step in range(1, 21)]
    rendered = render_memory(entries)
    assert len(rendered) < 13_000
    assert "Step 20:" in rendered and "Step 1:" not in rendered
    assert "earlier steps left out" in rendered and "characters left out" in rendered
