"""A rewritten skill becomes single edits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.optimize.cut_edits import CutEdits, cut_edits, move_edit
from skillfit.skill import Skill, apply_edits
from skillfit.skill.parts import PARTS, part_text

TEXT = """---
name: house
description: House style.
---
# House style

Write the value.

- Dates are short.
- Money is short.
- Names are upper case.

<!-- PROTECTED_START -->
Keep this.
<!-- PROTECTED_END -->

## At the end

Read it again.
"""
SKILL = Skill.from_text(TEXT)


def cut(new: str, old: Skill = SKILL) -> CutEdits:
    return cut_edits(old, new)


def ops(found: CutEdits) -> list[tuple[str, str, str]]:
    return [(edit.op, edit.target, edit.content) for edit in found.edits]


def test_nothing_changed() -> None:
    assert cut(TEXT) == CutEdits()


def test_each_new_bullet_is_an_edit_at_its_place() -> None:
    new = TEXT.replace("- Money is short.\n", "- Money is short.\n- One.\n- Two.\n")
    found = cut(new)
    assert ops(found) == [
        ("insert_after", "- Money is short.", "- Two."),
        ("insert_after", "- Money is short.", "- One."),
    ]
    assert apply_edits(SKILL, found.edits).skill.text == new


def test_reworded_and_added_lines_of_one_place_do_not_exclude_each_other() -> None:
    new = TEXT.replace(
        "- Money is short.\n", "- Money is short and ends in EUR.\n- Phones have spaces.\n"
    )
    found = cut(new)
    assert [edit.op for edit in found.edits] == ["replace", "insert_after"]
    for order in (found.edits, found.edits[::-1]):
        assert apply_edits(SKILL, order).skill.text == new


def test_a_new_section_keeps_its_heading() -> None:
    found = cut(TEXT + "\n## Phones\n\n- With spaces.\n- With a plus.\n")
    assert ops(found) == [
        ("append", "", "## Phones\n\n- With spaces."),
        ("append", "", "- With a plus."),
    ]


def test_a_line_that_stands_elsewhere_is_moved_by_one_edit() -> None:
    new = TEXT.replace("- Dates are short.\n", "").replace(
        "- Names are upper case.\n", "- Names are upper case.\n- Dates are short.\n"
    )
    found = cut(new)
    assert [edit.op for edit in found.edits] == ["replace"]
    assert apply_edits(SKILL, found.edits).skill.text == new


def test_a_deleted_line_is_one_edit() -> None:
    found = cut(TEXT.replace("- Money is short.\n", ""))
    assert ops(found) == [("delete", "- Money is short.", "")]


def test_protected_text_and_frontmatter_stay() -> None:
    new = TEXT.replace("Keep this.", "Drop this.").replace("name: house", "name: other")
    found = cut(new.replace("- Dates are short.", "- Dates are long."))
    assert ops(found) == [("replace", "- Dates are short.", "- Dates are long.")]
    reasons = " ".join(change.reason for change in found.refused)
    assert "frontmatter" in reasons and "protected" in reasons
    assert apply_edits(SKILL, found.edits).skill.head == SKILL.head


def test_a_document_without_its_frontmatter_is_read_as_the_body() -> None:
    found = cut(SKILL.body + "- One more.\n")
    assert ops(found) == [("append", "", "- One more.")]


def test_half_of_the_frontmatter_does_not_become_text_of_the_skill() -> None:
    found = cut(TEXT.removeprefix("---\n"))
    assert found.edits == ()


def test_an_emptied_document_never_takes_protected_text_along() -> None:
    left = apply_edits(SKILL, cut("").edits).skill
    assert left.head == SKILL.head and "Keep this." in left.body


def test_a_document_of_very_many_lines_is_refused() -> None:
    found = cut(TEXT + "- x\n" * 100_000)
    assert found.edits == () and "lines" in found.refused[0].reason


LINES = st.lists(
    st.sampled_from(
        ["- a one", "- b two", "- c three", "- d four", "Plain words.", "## Title", "", "| a | b |"]
    ),
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(LINES, LINES)
def test_every_edit_applies_by_itself_and_none_touches_what_did_not_change(
    old: list[str], new: list[str]
) -> None:
    skill = Skill.from_text("# Top\n\n" + "\n".join(old) + "\n")
    found = cut("# Top\n\n" + "\n".join(new) + "\n", skill)
    for edit in found.edits:
        assert apply_edits(skill, [edit]).results[0].applied
    if old == new:
        assert not found.edits and not found.refused


UNIQUE = st.permutations([f"- rule number {n} about thing{n * 7}" for n in range(8)])


@settings(max_examples=100, deadline=None)
@given(UNIQUE, st.integers(0, 8), UNIQUE, st.integers(0, 8))
def test_all_edits_together_give_the_lines_of_the_new_text(
    old: list[str], few: int, new: list[str], many: int
) -> None:
    skill = Skill.from_text("# Top\n\n" + "\n".join(old[:few]) + "\n")
    target = ["# Top", *new[:many]]
    found = cut("\n".join(target) + "\n", skill)
    left = apply_edits(skill, found.edits).skill.body
    if not any(edit.op == "replace" for edit in found.edits):
        assert sorted(filter(None, left.split("\n"))) == sorted(target)


FOLDER = Skill.from_text(
    TEXT,
    files={
        "references/money.md": b"# Money\n\n- Amounts end in EUR.\n",
        "scripts/dates.py": b"print(1)\n",
    },
)


def cut_folder(new: str, files: dict[str, str]) -> CutEdits:
    return cut_edits(FOLDER, new, parts=PARTS, files=files)


def test_changed_files_become_edits_that_name_them() -> None:
    money = "# Money\n\n- Amounts end in EUR.\n- Dollars end in USD.\n"
    files = {
        "references/money.md": money,
        "references/dates.md": "# Dates\n\n- ISO.\n",
        "scripts/dates.py": "print(2)\n",
    }
    found = cut_folder(TEXT.replace("House style.\n---", "Values.\n---"), files)
    assert not found.refused
    assert [(edit.op, edit.file) for edit in found.edits] == [
        ("replace", "description"),
        ("append", "references/money.md"),
        ("append", "references/dates.md"),
        ("write", "scripts/dates.py"),
    ]
    changed = apply_edits(FOLDER, found.edits).skill
    assert {name: data.decode() for name, data in changed.files.items()} == files
    assert changed.frontmatter["description"] == "Values."


def test_removed_files_become_edits_too() -> None:
    found = cut_folder(TEXT, {"references/money.md": "", "scripts/dates.py": ""})
    assert not apply_edits(FOLDER, found.edits).skill.files and not found.refused


def test_text_that_is_now_in_a_reference_was_moved_there() -> None:
    pointer = "- Dates and names: read references/values.md."
    new = TEXT.replace("- Dates are short.\n", f"{pointer}\n").replace(
        "- Names are upper case.\n", ""
    )
    text = "# Values\n\n- Dates are short.\n- Names are upper case.\n"
    found = cut_folder(new, {"references/values.md": text})
    assert [(edit.op, edit.target, edit.content) for edit in found.edits] == [
        ("move", "- Dates are short.", pointer),
        ("move", "- Names are upper case.", ""),
    ]
    changed = apply_edits(FOLDER, found.edits).skill
    assert changed.text == new
    assert part_text(changed, "references/values.md") == text.partition("\n\n")[2]
    alone = apply_edits(FOLDER, found.edits[1:]).skill
    assert "Dates are short" in alone.body and "Names" not in alone.body


def test_the_frontmatter_stays_where_the_description_is_not_trained() -> None:
    found = cut_edits(FOLDER, TEXT.replace("House style.\n---", "Values.\n---"))
    assert not found.edits and "frontmatter" in found.refused[0].reason
    renamed = TEXT.replace("name: house", "name: home").replace("House style.\n---", "Values.\n---")
    assert not cut_folder(renamed, {}).edits


@pytest.mark.parametrize(
    ("line", "after"),
    [("- a", "- a"), ("- a\n  b", "  b"), ("- ab", "ab"), ("  b", "- a\n  b"), ("- a", "")],
)
def test_a_line_that_would_follow_itself_cannot_be_moved(line: str, after: str) -> None:
    body = "# T\n\n- a\n  b\n- ab\n- c\n" if "\n" in line + after else "# T\n\n- a\n- c\n"
    assert isinstance(move_edit(body, line, after), str)


def test_a_long_document_is_compared_quickly_or_refused() -> None:
    lines = [f"- Rule {n} is about {n % 7} and {n % 11}." for n in range(2_100)]
    found = cut("\n".join([*TEXT.split("\n"), *lines]))
    assert not found.edits and "more than 2,000 lines" in found.refused[0].reason
