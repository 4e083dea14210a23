"""Edits change only their target and report the result. Units can be removed from a skill in any
combination; headings and protected text stay.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillfit.skill import (
    NOTE_OP,
    SLOW_UPDATE_OP,
    Edit,
    Example,
    Skill,
    appendix_notes,
    apply_edits,
    example_edit,
    examples,
    slow_update_text,
    units,
    with_notes,
)
from skillfit.skill.regions import protected
from skillfit.skill.units import Unit, without_units
from tests.skill.test_properties import make_skill

BODY = (
    "# Title\n\nIntro text here.\n\n## Rules\n\n- first rule\n- second  rule\n\n"
    "## Rules for tables\n\nLast words.\n"
)
SLOW = "<!-- SLOW_UPDATE_START -->\nguidance\n<!-- SLOW_UPDATE_END -->\n"
FENCED = BODY + "\n<!-- PROTECTED_START -->\nby hand\n<!-- PROTECTED_END -->\n\nAfter.\n\n" + SLOW
HEAD = "---\nname: x\ndescription: d\n---\n"


def run(text: str, *edits: Edit, max_tokens: int | None = None) -> tuple[str, list[str]]:
    applied = apply_edits(Skill.from_text(text), edits, max_tokens)
    return applied.skill.text, [result.status for result in applied.results]


def test_append_adds_a_separate_block_at_the_end() -> None:
    assert run(BODY, Edit("append", content="New.")) == (BODY + "\nNew.\n", ["applied_append"])


def test_append_inserts_before_the_regions_at_the_end() -> None:
    text, statuses = run(FENCED, Edit("append", content="New."))
    assert statuses == ["applied_append_before_protected_region"]
    assert text == FENCED.replace("After.\n", "After.\n\nNew.\n")


def test_insert_after_inserts_below_the_line_of_the_anchor() -> None:
    text, statuses = run(BODY, Edit("insert_after", "Intro", "More intro."))
    assert (text, statuses) == (
        BODY.replace("here.\n", "here.\n\nMore intro.\n"),
        ["applied_insert_after"],
    )


def test_items_of_a_list_stay_together() -> None:
    text, _ = run(BODY, Edit("insert_after", "- first rule", "- between"))
    assert "- first rule\n- between\n- second  rule\n" in text


def test_replace_and_delete_change_the_target_only() -> None:
    assert run(BODY, Edit("replace", "Intro text", "Some words"))[0] == BODY.replace(
        "Intro text", "Some words"
    )
    assert run(BODY, Edit("delete", "- first rule")) == (
        BODY.replace("- first rule\n", ""),
        ["applied_delete"],
    )
    assert run(BODY, Edit("delete", "Intro text here."))[0] == BODY.replace(
        "Intro text here.\n\n", ""
    )


def test_an_anchor_with_different_white_space_is_found_if_unique() -> None:
    text, statuses = run(BODY, Edit("replace", "- first   rule\n\n- second rule", "- one"))
    assert (text, statuses) == (
        BODY.replace("- first rule\n- second  rule", "- one"),
        ["applied_replace"],
    )


def test_an_anchor_that_is_a_whole_line_takes_precedence_over_parts_of_lines() -> None:
    text, statuses = run(BODY, Edit("insert_after", "## Rules", "Read all."))
    assert (text, statuses) == (
        BODY.replace("## Rules\n", "## Rules\n\nRead all.\n"),
        ["applied_insert_after"],
    )


@pytest.mark.parametrize(
    ("edit", "status"),
    [
        (Edit("add", "", "x"), "skipped_unknown_op"),
        (Edit("append", "", " \n"), "skipped_empty_content"),
        (Edit("append", "", "<!-- PROTECTED_START -->"), "skipped_empty_content"),
        (Edit("replace", "Intro text here.", ""), "skipped_empty_content"),
        (Edit("insert_after", "", "x"), "skipped_insert_after_missing_target"),
        (Edit("replace", " ", "x"), "skipped_replace_missing_target"),
        (Edit("delete"), "skipped_delete_missing_target"),
        (Edit("insert_after", "nowhere", "x"), "skipped_insert_after_target_not_found"),
        (Edit("replace", "nowhere", "x"), "skipped_replace_target_not_found"),
        (Edit("delete", "nowhere"), "skipped_delete_target_not_found"),
        (Edit("delete", "rule"), "skipped_delete_target_ambiguous"),
        (Edit("insert_after", "rule", "x"), "skipped_insert_after_target_ambiguous"),
        (Edit("replace", "e", "x"), "skipped_replace_target_ambiguous"),
        (Edit("replace", "Last words.", "Last words."), "skipped_no_change"),
        (Edit("append", "", "Last words."), "skipped_no_change"),
        (Edit("delete", "by hand"), "skipped_protected_region"),
        (Edit("insert_after", "guidance", "x"), "skipped_protected_region"),
        (
            Edit("delete", "Last words.\n\n<!-- PROTECTED_START -->\nby hand"),
            "skipped_protected_region",
        ),
        (Edit("delete", FENCED), "skipped_protected_region"),
        (Edit("replace", "<!-- SLOW_UPDATE_END -->", "x"), "skipped_protected_region"),
        (Edit("replace", "description: d", "description: e"), "skipped_frontmatter"),
    ],
)
def test_an_edit_that_cannot_be_applied_changes_nothing_and_has_a_reason(
    edit: Edit, status: str
) -> None:
    applied = apply_edits(Skill.from_text(HEAD + FENCED), [edit])
    assert applied.skill.text == HEAD + FENCED
    assert [result.status for result in applied.results] == [status]
    assert applied.results[0].reason and not applied.results[0].applied and applied.edits == ()


def test_a_target_also_found_in_a_region_matches_outside_the_region() -> None:
    text, statuses = run("guidance\n\n" + SLOW, Edit("replace", "guidance", "advice"))
    assert (text, statuses) == ("advice\n\n" + SLOW, ["applied_replace"])


def test_markers_in_content_are_removed() -> None:
    text, _ = run(
        BODY,
        Edit(
            "append",
            content="a <!-- PROTECTED_<!-- APPENDIX_END -->START --> b <!--slow_update_end--> c",
        ),
    )
    assert text == BODY + "\na  b  c\n"


def test_characters_that_hide_text_from_a_reviewer_are_removed() -> None:
    hiding = "- Run curl.\x1b[2K\x9b2J\x08\x00\x7f \u202eback\u202c\u2066\u2069\tGrüße مر"
    after, statuses = run("Be brief.\n", Edit("append", content=hiding))
    assert after == "Be brief.\n\n- Run curl.[2K2J back\tGrüße مر\n"
    assert statuses == ["applied_append"]
    fenced, _ = run("Be brief.\n", Edit("append", content="<!-- PROTECTED\x00_START -->Rude."))
    assert "PROTECTED" not in fenced


def test_edits_cannot_assemble_a_marker_from_parts() -> None:
    text = "<!-- PROTECTED_\n\nmiddle\n"
    assert (
        run(text, Edit("replace", "\n\nmiddle", "START -->"))[0] == "<!-- PROTECTED_\n\nSTART -->\n"
    )
    halves = "<!-- PROTECTED_xSTART --> mine"
    assert run(halves, Edit("delete", "x")) == (halves, ["skipped_protected_region"])


def test_edits_of_one_patch_are_applied_in_order() -> None:
    text, statuses = run(
        BODY, Edit("append", content="- alpha"), Edit("insert_after", "- alpha", "- beta")
    )
    assert text.endswith("\n- alpha\n- beta\n") and statuses == [
        "applied_append",
        "applied_insert_after",
    ]


@pytest.mark.parametrize(
    "later",
    [
        Edit("replace", "Intro text", "x"),
        Edit("delete", "text here."),
        Edit("insert_after", "Intro text here.", "x"),
        Edit("delete", "rewritten"),
        Edit("replace", "was rewritten.\n\n## Rules\n", "x"),
    ],
)
def test_edits_that_overlap_an_earlier_one_of_the_patch_are_skipped(later: Edit) -> None:
    _, statuses = run(BODY, Edit("replace", "Intro text here.", "This was rewritten."), later)
    assert statuses == ["applied_replace", "skipped_overlapping_edit"]


def test_overlaps_are_still_seen_after_the_text_before_them_moved() -> None:
    edits = (
        Edit("replace", "Last words.", "Final words."),
        Edit("insert_after", "# Title", "Longer now."),
        Edit("delete", "Final"),
    )
    assert run(BODY, *edits)[1] == [
        "applied_replace",
        "applied_insert_after",
        "skipped_overlapping_edit",
    ]


def test_edits_over_the_token_ceiling_are_skipped_and_shorter_ones_are_not() -> None:
    ceiling = Skill.from_text(BODY).tokens
    text, statuses = run(
        BODY,
        Edit("append", content="long " * 9),
        Edit("delete", "- first rule"),
        Edit("append", content="ok"),
        max_tokens=ceiling,
    )
    assert statuses == ["skipped_over_token_ceiling", "applied_delete", "applied_append"]
    assert run(BODY, Edit("delete", "- first rule"), max_tokens=1)[1] == ["applied_delete"]
    assert Skill.from_text(text).tokens <= ceiling


def test_a_windows_file_keeps_its_newlines_and_matches_unix_targets() -> None:
    text, statuses = run(
        FENCED.replace("\n", "\r\n"), Edit("replace", "- first rule\n- second  rule", "- a\n- b")
    )
    assert statuses == ["applied_replace"]
    assert text == FENCED.replace("- first rule\n- second  rule", "- a\n- b").replace("\n", "\r\n")


def test_a_file_with_mixed_newlines_keeps_each_of_them() -> None:
    assert run("a\r\r\nb\r\nc\r\n", Edit("replace", "b", "B"))[0] == "a\r\r\nB\r\nc\r\n"
    assert run("a\r\nb\nc\n", Edit("delete", "c"))[0] == "a\r\nb\n"


def test_an_append_to_frontmatter_without_a_body_keeps_the_frontmatter() -> None:
    assert (
        run("---\nname: x\n---", Edit("append", content="Body."))[0] == "---\nname: x\n---\nBody.\n"
    )


def test_spelling_variants_of_an_op_are_accepted() -> None:
    assert Edit.from_reply(" Insert-After ", "a", "b") == Edit("insert_after", "a", "b")
    assert Edit.from_reply("DELETE", "a", "") == Edit("delete", "a")


def test_a_result_converts_to_a_row() -> None:
    result = apply_edits(Skill.from_text(BODY), [Edit("delete", "nowhere", id="e1")]).results[0]
    assert result.as_row() == {
        "op": "delete",
        "target": "nowhere",
        "content": "",
        "support_count": 1,
        "source_type": "failure",
        "id": "e1",
        "status": "skipped_delete_target_not_found",
        "reason": "the target is not in the skill",
    }


def test_worked_examples_are_edits_that_add_replace_and_remove() -> None:
    one, two = Example("q1", "a1", "i1"), Example("q2", "a2", "i2")
    skill = apply_edits(
        Skill.from_text(BODY), [Edit("append", content="x"), example_edit(one)]
    ).skill
    assert examples(skill) == (one,)
    assert examples(apply_edits(skill, [example_edit(two)]).skill) == (one, two)
    assert examples(apply_edits(skill, [example_edit(two, replaces="i1")]).skill) == (two,)
    assert apply_edits(skill, [Edit("example", "i1")]).skill.text == BODY + "\nx\n"


@pytest.mark.parametrize(
    ("edit", "status"),
    [
        (example_edit(Example("q", "a", "i1")), "skipped_no_change"),
        (
            example_edit(Example("q", "a", "new"), replaces="none"),
            "skipped_example_target_not_found",
        ),
        (Edit("example"), "skipped_empty_content"),
        (Edit("example", "", "garbage"), "skipped_invalid_example"),
        (Edit("example", "", "[1]"), "skipped_invalid_example"),
        (Edit("example", "", '{"input": "q"}'), "skipped_invalid_example"),
        (example_edit(Example("long " * 99, "a", "new")), "skipped_over_token_ceiling"),
    ],
)
def test_an_example_that_cannot_be_shown_is_skipped_with_a_reason(edit: Edit, status: str) -> None:
    skill = apply_edits(Skill.from_text(BODY), [example_edit(Example("q", "a", "i1"))]).skill
    applied = apply_edits(skill, [edit], max_tokens=100)
    assert (applied.skill, [result.status for result in applied.results]) == (skill, [status])


def test_a_skill_shows_eight_examples_at_the_most() -> None:
    edits = [example_edit(Example("q", "a", f"i{number}")) for number in range(9)]
    applied = apply_edits(Skill.from_text(BODY), edits)
    assert (
        len(examples(applied.skill)) == 8 and applied.results[-1].status == "skipped_example_limit"
    )


def test_a_model_cannot_send_an_example() -> None:
    edit = Edit.from_reply("Example", "", example_edit(Example("q", "a", "i")).content)
    assert apply_edits(Skill.from_text(BODY), [edit]).results[0].status == "skipped_unknown_op"


def test_a_slow_update_edit_replaces_the_text_of_its_region() -> None:
    text, statuses = run(FENCED, Edit(SLOW_UPDATE_OP, content="other <!-- PROTECTED_END --> words"))
    assert statuses == ["applied_slow_update"]
    assert text == FENCED.replace("guidance", "other  words")


def test_a_slow_update_edit_without_content_removes_the_region() -> None:
    text, statuses = run(FENCED, Edit(SLOW_UPDATE_OP))
    assert statuses == ["applied_slow_update"]
    assert text == FENCED.replace("\n" + SLOW, "")


def test_a_note_edit_adds_one_note_to_the_appendix() -> None:
    skill = Skill.from_text(FENCED)
    applied = apply_edits(skill, [Edit(NOTE_OP, content="check units"), Edit(NOTE_OP, content="b")])
    assert [result.status for result in applied.results] == ["applied_note"] * 2
    assert appendix_notes(applied.skill) == ("check units", "b")
    assert slow_update_text(applied.skill) == "guidance"


@pytest.mark.parametrize(
    ("edit", "status"),
    [
        (Edit(SLOW_UPDATE_OP, content="guidance\n"), "skipped_no_change"),
        (Edit(SLOW_UPDATE_OP, content="<!-- PROTECTED_START -->"), "skipped_empty_content"),
        (Edit(SLOW_UPDATE_OP, content="long " * 99), "skipped_over_token_ceiling"),
        (Edit(NOTE_OP, content="Check  units."), "skipped_no_change"),
        (Edit(NOTE_OP, content=" \n"), "skipped_empty_content"),
        (Edit(NOTE_OP), "skipped_empty_content"),
        (Edit(NOTE_OP, content="long " * 99), "skipped_over_token_ceiling"),
    ],
)
def test_a_region_edit_that_changes_nothing_or_too_much_is_skipped(edit: Edit, status: str) -> None:
    skill = with_notes(Skill.from_text(FENCED), ["check units"])
    applied = apply_edits(skill, [edit], max_tokens=skill.tokens + 20)
    assert (applied.skill, [result.status for result in applied.results]) == (skill, [status])


def test_removing_a_missing_slow_update_changes_nothing() -> None:
    assert run(BODY, Edit(SLOW_UPDATE_OP)) == (BODY, ["skipped_no_change"])


@pytest.mark.parametrize("op", ["Slow-Update", "slow update", "NOTE"])
def test_a_model_cannot_send_a_region_edit(op: str) -> None:
    edit = Edit.from_reply(op, "", "words")
    assert apply_edits(Skill.from_text(BODY), [edit]).results[0].status == "skipped_unknown_op"


DOCUMENT = """---
name: refunds
description: d
---
# Refunds

Read the order first.
It is in the tool `orders`.

## Rules

- Check the date.
  It is in UTC.
- Ask for a receipt
  before you refund.

  Photos count too.
- Be brief.

| days | refund |
|------|--------|
| 14   | full   |

```python
def refund():

    return 1
```

## Tone

Be polite and
never rude.

<!-- PROTECTED_START -->
Never promise a refund.
<!-- PROTECTED_END -->

## Last

Close the ticket.
"""
SKILL = Skill.from_text(DOCUMENT)


def texts(found: tuple[Unit, ...]) -> list[str]:
    return [unit.text for unit in found]


def test_paragraphs_lists_tables_and_code_blocks_are_units() -> None:
    found = units(SKILL, "paragraph")
    assert [(unit.id, unit.start, unit.end) for unit in found] == [
        ("L7-8", 7, 8),
        ("L12-18", 12, 18),
        ("L20-22", 20, 22),
        ("L24-28", 24, 28),
        ("L32-33", 32, 33),
        ("L39-41", 39, 41),
    ]
    lines = DOCUMENT.split("\n")
    assert all(unit.text == "\n".join(lines[unit.start - 1 : unit.end]) for unit in found)
    assert found[0].tokens == 13


def test_list_items_and_lines_that_end_a_sentence_are_units_by_line() -> None:
    assert texts(units(SKILL, "line")) == [
        "Read the order first.",
        "It is in the tool `orders`.",
        "- Check the date.\n  It is in UTC.",
        "- Ask for a receipt\n  before you refund.\n\n  Photos count too.",
        "- Be brief.",
        "| days | refund |\n|------|--------|\n| 14   | full   |",
        "```python\ndef refund():\n\n    return 1\n```",
        "Be polite and\nnever rude.",
        "## Last\n\nClose the ticket.",
    ]


def test_a_heading_and_its_only_text_are_one_unit() -> None:
    skill = Skill.from_text(
        "# T\n\nIntro.\n\n## A\n\nOne.\n\n## B\n\nTwo.\n\nThree.\n\n### C\n\nx\n"
    )
    assert texts(units(skill)) == ["Intro.", "## A\n\nOne.", "Two.", "Three.", "### C\n\nx"]


def test_units_are_removed_without_a_gap() -> None:
    found = {unit.id: unit for unit in units(SKILL)}
    shorter = without_units(SKILL, [found["L20-22"], found["L39-41"], found["L7-8"]])
    expected = DOCUMENT
    for cut in (
        "Read the order first.\nIt is in the tool `orders`.\n\n",
        "| days | refund |\n|------|--------|\n| 14   | full   |\n\n",
        "\n## Last\n\nClose the ticket.\n",
    ):
        expected = expected.replace(cut, "")
    assert shorter.text == expected


def test_a_removal_is_an_edit_that_names_its_lines() -> None:
    unit = units(SKILL)[1]
    assert (unit.removal.op, unit.removal.id) == ("delete", "L12-18")
    assert unit.removal.label == "remove lines 12-18"
    assert apply_edits(SKILL, [unit.removal]).results[0].status == "applied_delete"


def test_text_that_occurs_twice_is_not_a_unit() -> None:
    skill = Skill.from_text("- same\n- other\n\ntext between\n\n- same\n- third\n")
    assert texts(units(skill, "line")) == ["- other", "text between", "- third"]


def test_text_beside_a_protected_region_is_a_unit_and_text_on_its_lines_is_not() -> None:
    body = "before\n<!-- PROTECTED_START -->\nkept\n<!-- PROTECTED_END --> tail\nafter\n"
    assert texts(units(Skill.from_text(body))) == ["before", "after"]


def test_a_list_that_interrupts_a_paragraph_is_a_unit_of_its_own() -> None:
    skill = Skill.from_text("Do this:\n1. first\n   ```\n- not an item\n   ```\n2) second\nlazy\n")
    assert texts(units(skill)) == [
        "Do this:",
        "1. first\n   ```\n- not an item\n   ```\n2) second\nlazy",
    ]
    assert texts(units(skill, "line"))[1:] == [
        "1. first\n   ```\n- not an item\n   ```",
        "2) second\nlazy",
    ]


def test_a_comment_over_several_lines_stays_whole() -> None:
    skill = Skill.from_text("a <!-- one\n\n# two\n\n- three --> b\n\nc\n")
    assert texts(units(skill, "line")) == ["a <!-- one\n\n# two\n\n- three --> b", "c"]


def test_thematic_breaks_and_underlined_headings_are_not_units() -> None:
    skill = Skill.from_text("Title\n=====\n\none\n\n---\n\n* * *\n\nSub\n---\n\ntwo\n\nthree\n")
    assert texts(units(skill)) == ["one", "two", "three"]


@pytest.mark.parametrize("body", ["", "\n\n", "# Only\n\n## Headings\n", "```\nopen"])
def test_a_body_without_text_has_at_most_one_unit(body: str) -> None:
    assert len(units(Skill.from_text(body))) <= 1


def test_a_unit_of_another_skill_is_refused() -> None:
    with pytest.raises(ValueError, match="L1 is not a unit of this skill"):
        without_units(SKILL, units(Skill.from_text("elsewhere\n")))


def nonblank(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()]


PIECES = [
    "# Heading\n",
    "## Sub\n\n",
    "- item one.\n",
    "- item one, and\n  more of it\n",
    "1. numbered\n",
    "  - nested\n",
    "words that end here.\n",
    "words that go on\n",
    "words",
    "xwords\n",
    "| a | b |\n|---|---|\n",
    "```\ncode\n\n```\n",
    "```\n",
    "> quote\n",
    "---\n",
    "===\n",
    "<!--\n",
    "-->\n",
    "PROTECTED_START -->\n",
    "PROTECTED_END",
    "<!-- PROTECTED_START -->\nkept\n<!-- PROTECTED_END -->\n",
    "<!-- PROTECTED_START -->",
    "<!-- note\n\nmore -->\n",
    "key: value\n",
    "\n",
    "\n",
    "\n\n\n",
    " ",
    "\t",
    "\r\n",
    "\r",
]
markdown = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text("ab -#\n", max_size=4)), max_size=24
).map(lambda pieces: Skill.from_text("".join(pieces)))
hostile = st.binary(min_size=1, max_size=10).map(make_skill)


@pytest.mark.slow
@settings(max_examples=4000, suppress_health_check=list(HealthCheck))
@given(st.one_of(markdown, hostile), st.sampled_from(["paragraph", "line"]), st.data())
def test_any_subset_of_units_can_be_removed_in_any_order(
    skill: Skill, by: str, data: st.DataObject
) -> None:
    found = units(skill, by)  # type: ignore[arg-type]
    document = skill.text.replace("\r\n", "\n") if skill.newline == "\r\n" else skill.text
    lines = document.split("\n")
    assert all(unit.text == "\n".join(lines[unit.start - 1 : unit.end]) for unit in found)
    assert all(one.end < other.start for one, other in pairwise(found))
    chosen = data.draw(st.permutations(found)) if found else []
    chosen = chosen[: data.draw(st.integers(0, len(found)))]
    shorter = without_units(skill, chosen)
    gone = {number for unit in chosen for number in range(unit.start - 1, unit.end)}
    kept = [line for number, line in enumerate(lines) if number not in gone]
    assert nonblank(shorter.text.split("\n")) == nonblank(kept)
    assert protected(shorter.body) == protected(skill.body)
    assert shorter.head.rstrip("\r\n") == skill.head.rstrip("\r\n")
    assert without_units(skill, sorted(chosen, key=lambda unit: unit.start)).text == shorter.text
