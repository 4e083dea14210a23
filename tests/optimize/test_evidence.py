import pytest

from skillfit.errors import InputError
from skillfit.optimize.memory import (
    evidence_hash,
    read_evidence,
    render_evidence,
    write_evidence,
)
from skillfit.record.evidence import tried_against, with_step
from skillfit.run.records import EditEffect, EvidenceMemory, FailurePattern
from skillfit.skill import Edit


def pattern(name, *items, description=""):
    return FailurePattern(name, len(items), items, description)


def effect(name, *items, status="pending", mean=None, content="- Rule."):
    edit = Edit("append", content=content)
    return EditEffect(name, 1, edit, status, mean, 0.0, 0.2, 0.9, 40, items=items)


def memory():
    first = with_step(
        EvidenceMemory(),
        1,
        [pattern("Dates", "a", "b", description="month names"), pattern("money", "c")],
        [effect("s0001e01", "a"), effect("s0001e02", "c", content="- Pay.")],
    )
    return with_step(
        first,
        2,
        [pattern("dates", "b", "d")],
        [
            effect("s0001e01", "a", mean=0.1),
            effect("s0001e02", "c", status="dropped", mean=-0.1, content="- Pay."),
        ],
    )


def test_a_pattern_keeps_the_distinct_items_of_all_steps():
    found = {pattern.name: pattern for pattern in memory().patterns}
    assert found["Dates"].items == ("a", "b", "d")
    assert (found["Dates"].last_step, found["money"].last_step) == (2, 1)
    assert found["Dates"].description == "month names"


def test_an_edit_belongs_to_the_pattern_whose_items_it_was_written_from():
    tried = tried_against(memory())
    assert [edit.id for edit in tried["Dates"]] == ["s0001e01"]
    assert [edit.id for edit in tried["money"]] == ["s0001e02"]


def test_a_dropped_edit_is_kept_with_its_text_and_effect():
    assert render_evidence(memory()).split("\n") == [
        "Dates: 3 items, last seen in step 2. month names",
        "- s0001e01 pending: +0.10 (+0.00 to +0.20) after 40 rollouts",
        "money: 1 item, last seen in step 1",
        "- s0001e02 dropped: -0.10 (+0.00 to +0.20) after 40 rollouts: "
        '{"op": "append", "content": "- Pay."}',
    ]


def test_an_edit_for_items_of_two_patterns_is_tried_against_both():
    found = with_step(
        EvidenceMemory(),
        1,
        [pattern("order", "a", "b"), pattern("dates", "b", "a")],
        [effect("s0001e01", "a", "b")],
    )
    assert [len(edits) for edits in tried_against(found).values()] == [1, 1]


def test_an_edit_for_items_of_single_patterns_is_tried_against_the_latest():
    first = with_step(EvidenceMemory(), 1, [pattern("a", "a"), pattern("b", "b")], [])
    found = with_step(first, 2, [pattern("c", "c")], [effect("s0002e01", "a", "b", "c")])
    assert {name: len(edits) for name, edits in tried_against(found).items()} == {
        "a": 0,
        "b": 0,
        "c": 1,
    }


def test_an_edit_is_tried_against_the_pattern_that_shares_most_items_where_none_has_all():
    kinds = [pattern("order", "a", "b"), pattern("dates", "c")]
    found = with_step(EvidenceMemory(), 1, kinds, [effect("s0001e01", "a", "b", "c")])
    assert [len(edits) for edits in tried_against(found).values()] == [1, 0]


def test_edits_without_items_are_tried_against_nothing():
    assert with_step(EvidenceMemory(), 1, [], [effect("s0000e01")]).edits == ()


def test_what_does_not_fit_is_counted():
    found = with_step(EvidenceMemory(), 1, [pattern(f"kind {n}", "a") for n in range(9)], [])
    text = render_evidence(found, room=100)
    assert text.startswith("kind 0") and text.endswith(" left out)")
    assert render_evidence(EvidenceMemory()) == ""


def test_a_file_carries_the_memory_to_the_next_run(tmp_path):
    path = tmp_path / "new" / "memory.json"
    assert read_evidence(path) == EvidenceMemory()
    write_evidence(path, memory())
    carried = read_evidence(path)
    assert carried.runs == 1 and [edit.id for edit in carried.edits] == [
        "run1/s0001e01",
        "run1/s0001e02",
    ]
    assert "last seen in an earlier run" in render_evidence(carried)
    assert '"- Rule."' in render_evidence(carried)  # it need not be in the skill of this run
    write_evidence(path, with_step(carried, 1, [], [effect("s0001e01", "a")]))
    assert [edit.id for edit in read_evidence(path).edits] == [
        "run1/s0001e01",
        "run1/s0001e02",
        "run2/s0001e01",
    ]


def test_an_earlier_run_does_not_overwrite_what_a_later_one_wrote(tmp_path):
    path = tmp_path / "memory.json"
    write_evidence(path, memory())
    write_evidence(path, read_evidence(path))
    later = path.read_bytes()
    write_evidence(path, memory())
    assert path.read_bytes() == later


@pytest.mark.parametrize("text", ["{", "[]", '{"patterns": 3}', '{"patterns": [{}]}'])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, text):
    path = tmp_path / "memory.json"
    path.write_text(text)
    with pytest.raises(
        InputError, match=r"memory\.json is not a memory that a run wrote"
    ) as caught:
        read_evidence(path)
    assert "remove it" in caught.value.hint


def test_only_content_makes_a_memory_part_of_the_identity():
    assert evidence_hash(EvidenceMemory()) == ""
    assert evidence_hash(memory()) != evidence_hash(
        with_step(memory(), 3, [pattern("dates", "z")], [])
    )
