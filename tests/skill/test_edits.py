from __future__ import annotations

import pytest

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
    with_notes,
)

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


def test_append_goes_to_the_end_as_a_block_of_its_own() -> None:
    assert run(BODY, Edit("append", content="New.")) == (BODY + "\nNew.\n", ["applied_append"])


def test_append_goes_before_the_regions_at_the_end() -> None:
    text, statuses = run(FENCED, Edit("append", content="New."))
    assert statuses == ["applied_append_before_protected_region"]
    assert text == FENCED.replace("After.\n", "After.\n\nNew.\n")


def test_insert_after_goes_below_the_line_of_the_anchor() -> None:
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


def test_an_anchor_with_other_white_space_is_found_when_unique() -> None:
    text, statuses = run(BODY, Edit("replace", "- first   rule\n\n- second rule", "- one"))
    assert (text, statuses) == (
        BODY.replace("- first rule\n- second  rule", "- one"),
        ["applied_replace"],
    )


def test_an_anchor_that_is_one_whole_line_wins_over_parts_of_lines() -> None:
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
def test_an_edit_that_cannot_be_made_changes_nothing_and_says_why(edit: Edit, status: str) -> None:
    applied = apply_edits(Skill.from_text(HEAD + FENCED), [edit])
    assert applied.skill.text == HEAD + FENCED
    assert [result.status for result in applied.results] == [status]
    assert applied.results[0].reason and not applied.results[0].applied and applied.edits == ()


def test_a_target_that_also_stands_in_a_region_means_the_free_one() -> None:
    text, statuses = run("guidance\n\n" + SLOW, Edit("replace", "guidance", "advice"))
    assert (text, statuses) == ("advice\n\n" + SLOW, ["applied_replace"])


def test_markers_in_content_are_taken_out() -> None:
    text, _ = run(
        BODY,
        Edit(
            "append",
            content="a <!-- PROTECTED_<!-- APPENDIX_END -->START --> b <!--slow_update_end--> c",
        ),
    )
    assert text == BODY + "\na  b  c\n"


def test_characters_that_hide_text_from_a_reviewer_are_taken_out() -> None:
    hiding = "- Run curl.\x1b[2K\x9b2J\x08\x00\x7f \u202eback\u202c\u2066\u2069\tGrüße مر"
    after, statuses = run("Be brief.\n", Edit("append", content=hiding))
    assert after == "Be brief.\n\n- Run curl.[2K2J back\tGrüße مر\n"
    assert statuses == ["applied_append"]
    fenced, _ = run("Be brief.\n", Edit("append", content="<!-- PROTECTED\x00_START -->Rude."))
    assert "PROTECTED" not in fenced


def test_a_marker_cannot_be_put_together_from_halves() -> None:
    text = "<!-- PROTECTED_\n\nmiddle\n"
    assert (
        run(text, Edit("replace", "\n\nmiddle", "START -->"))[0] == "<!-- PROTECTED_\n\nSTART -->\n"
    )
    halves = "<!-- PROTECTED_xSTART --> mine"
    assert run(halves, Edit("delete", "x")) == (halves, ["skipped_protected_region"])


def test_edits_of_one_patch_see_each_other_in_order() -> None:
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


def test_edits_that_would_pass_the_token_ceiling_are_skipped_and_shorter_ones_are_not() -> None:
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


def test_an_append_to_nothing_but_frontmatter_leaves_the_fence_whole() -> None:
    assert (
        run("---\nname: x\n---", Edit("append", content="Body."))[0] == "---\nname: x\n---\nBody.\n"
    )


def test_an_op_may_be_written_in_other_ways() -> None:
    assert Edit.from_reply(" Insert-After ", "a", "b") == Edit("insert_after", "a", "b")
    assert Edit.from_reply("DELETE", "a", "") == Edit("delete", "a")


def test_a_result_has_a_plain_form() -> None:
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
def test_an_example_that_cannot_be_shown_is_skipped_and_said(edit: Edit, status: str) -> None:
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


def test_removing_a_slow_update_that_is_not_there_changes_nothing() -> None:
    assert run(BODY, Edit(SLOW_UPDATE_OP)) == (BODY, ["skipped_no_change"])


@pytest.mark.parametrize("op", ["Slow-Update", "slow update", "NOTE"])
def test_a_model_cannot_send_a_region_edit(op: str) -> None:
    edit = Edit.from_reply(op, "", "words")
    assert apply_edits(Skill.from_text(BODY), [edit]).results[0].status == "skipped_unknown_op"
