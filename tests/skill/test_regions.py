"""Protected regions: how markers are read, what skillfit writes into its own, and rewrites."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillfit.skill import (
    Edit,
    Example,
    Skill,
    appendix_notes,
    apply_edits,
    examples,
    lint,
    rewrite,
    slow_update_text,
    with_consolidated_notes,
    with_notes,
    with_slow_update,
    with_trained_body,
    without_placeholder,
)
from skillfit.skill.regions import PROTECTED, clean, scan, with_examples

NEAR_MISSES = [
    ("<!--\u00a0PROTECTED_START\u00a0-->", "<!--\u00a0PROTECTED_END\u00a0-->"),
    ("<!-- PROTECTED START -->", "<!-- PROTECTED END -->"),
    ("<!-- Protected-Start -->", "<!-- Protected-End -->"),
    ("<!-- PROTECTED\u200b_START -->", "<!-- PROTECTED_END\u200b -->"),
    ("<!-- PRO\u00adTECTED_START -->", "<!-- PRO\u00adTECTED_END -->"),
    ("<!— PROTECTED_START —>", "<!— PROTECTED_END —>"),
    ("<!--- PROTECTED_START --->", "<!--- PROTECTED_END --->"),
    ("<! -- PROTECTED_START -- >", "<! -- PROTECTED_END -- >"),
    ("<!-- PROTECTED\\_START -->", "<!-- PROTECTED\\_END -->"),
    ("<!-- PROTECTED: BEGIN -->", "<!-- PROTECTED: END -->"),
    ("<!-- PROTECTED_START -->", "<!-- protected end -->"),
]


@pytest.mark.parametrize(("start", "end"), NEAR_MISSES)
def test_a_marker_with_a_small_mistake_protects_and_is_reported(
    tmp_path: Path, start: str, end: str
) -> None:
    text = f"# Rules\n\n{start}\nNever promise a refund.\n{end}\n\nOther rule.\n"
    skill = Skill.from_text(text)
    (region,) = scan(skill.body)
    assert (region.kind, region.text) == (PROTECTED, f"{start}\nNever promise a refund.\n{end}")
    edit = Edit("replace", "Never promise a refund.", "Promise everything.")
    assert apply_edits(skill, [edit]).results[0].status == "skipped_protected_region"
    assert f"{start}\nNever promise a refund.\n{end}" in rewrite(skill, "# New\n").body
    (tmp_path / "notes.md").write_text(text, encoding="utf-8")
    (problem,) = lint(tmp_path / "notes.md")
    assert (problem.line, problem.severity, problem.rule) == (3, "warning", "marker")
    assert "is treated as <!-- PROTECTED_" in problem.message


@pytest.mark.parametrize(("start", "end"), NEAR_MISSES)
def test_a_model_cannot_write_a_marker_with_a_small_mistake(start: str, end: str) -> None:
    assert clean(f"a {start} b {end} c") == "a  b  c"


@pytest.mark.parametrize(
    "comment",
    [
        "<!-- examples end -->",
        "<!-- appendix start -->",
        "<!-- start of the rules -->",
        "<!-- protected by law until the end -->",
    ],
)
def test_other_comments_are_ordinary_text(comment: str) -> None:
    assert scan(f"# T\n\n{comment}\n\ntext\n") == ()
    assert clean(comment) == comment


@pytest.mark.parametrize(
    "comment", ["<!-- BEGIN PROTECTED -->", "<!-- protect start -->", "<!-- DO NOT EDIT -->"]
)
def test_a_comment_that_looks_like_protection_but_is_none_is_reported(
    tmp_path: Path, comment: str
) -> None:
    (tmp_path / "notes.md").write_text(f"# T\n\n{comment}\n\ntext\n")
    (problem,) = lint(tmp_path / "notes.md")
    assert (problem.line, problem.severity, problem.rule) == (3, "warning", "marker")
    assert "protects nothing" in problem.message


BASE = Skill.from_text("# T\n\nbody\n")
PLACEHOLDER = "<!-- SLOW_UPDATE_START -->\n<!-- SLOW_UPDATE_END -->"


def test_an_empty_slow_update_region_is_put_at_the_end_once() -> None:
    skill = with_slow_update(BASE)
    assert skill.text == f"# T\n\nbody\n\n{PLACEHOLDER}\n"
    assert with_slow_update(skill) is skill
    assert slow_update_text(skill) == slow_update_text(BASE) == ""


def test_adding_a_slow_update_region_keeps_existing_guidance() -> None:
    skill = with_slow_update(BASE, "keep me")
    assert with_slow_update(skill) is skill


def test_the_slow_update_is_replaced_completely() -> None:
    skill = with_slow_update(
        with_slow_update(BASE, "one\n\ntwo"), "three <!-- SLOW_UPDATE_END --> four"
    )
    assert slow_update_text(skill) == "three  four"
    assert (
        skill.text
        == "# T\n\nbody\n\n<!-- SLOW_UPDATE_START -->\nthree  four\n<!-- SLOW_UPDATE_END -->\n"
    )


def test_several_slow_update_regions_become_one_at_the_end() -> None:
    second = PLACEHOLDER.replace("\n", "\nold\n")
    skill = Skill.from_text(f"{PLACEHOLDER}\n\n# T\n\n{second}\n\nend\n")
    assert slow_update_text(skill) == "old"
    assert (
        with_slow_update(skill, "new").text
        == "# T\n\nend\n\n<!-- SLOW_UPDATE_START -->\nnew\n<!-- SLOW_UPDATE_END -->\n"
    )


def test_an_empty_appendix_can_be_put_in() -> None:
    skill = with_notes(BASE)
    appendix = "<!-- APPENDIX_START -->\n## Execution Notes Appendix\n<!-- APPENDIX_END -->\n"
    assert skill.text == f"# T\n\nbody\n\n{appendix}"
    assert with_notes(skill) is skill and appendix_notes(skill) == ()


def test_notes_are_appended_as_bullets_without_duplicates() -> None:
    skill = with_notes(
        with_notes(BASE, ["Check units."]), ["check  UNITS!", "- New\nnote", "", "new note;"]
    )
    assert appendix_notes(skill) == ("Check units.", "New note")
    assert (
        "## Execution Notes Appendix\n\n- Check units.\n- New note\n<!-- APPENDIX_END -->"
        in skill.text
    )


def test_user_text_in_the_appendix_is_kept() -> None:
    inner = "## Execution Notes Appendix\n\nRead these.\n\n* one\n  goes on\n"
    skill = Skill.from_text(f"<!-- APPENDIX_START -->\n{inner}<!-- APPENDIX_END -->\n")
    assert appendix_notes(skill) == ("one goes on",)
    assert inner.rstrip() in with_notes(skill, ["two"]).text
    assert appendix_notes(with_notes(skill, ["two"])) == ("one goes on", "two")


def test_consolidated_notes_replace_all_notes() -> None:
    skill = with_consolidated_notes(with_notes(BASE, ["a", "b"]), ["a and b", "A and B."])
    assert appendix_notes(skill) == ("a and b",)


def test_new_regions_are_placed_before_the_slow_update() -> None:
    skill = with_examples(with_notes(with_slow_update(BASE, "s"), ["n"]), [Example("q", "a")])
    positions = [
        skill.text.index(f"<!-- {kind}_START") for kind in ("APPENDIX", "EXAMPLES", "SLOW_UPDATE")
    ]
    assert positions == sorted(positions)


def test_examples_are_written_read_back_and_removed() -> None:
    shown = (Example("what?\n```\ncode\n```", "42", "item 1 --> x"), Example("", "````", "b"))
    skill = with_examples(BASE, shown)
    assert "<!-- EXAMPLES_START -->\n## Examples\n\n### Example 1\n" in skill.text
    assert examples(skill) == shown
    assert examples(with_examples(skill, shown[1:])) == shown[1:]
    assert with_examples(skill, []).text == BASE.text


@pytest.mark.parametrize(
    "inner",
    ["", "## Examples\n\nby hand", "### Example 1\n<!-- item %zz -->\n\nInput:\n\n```\na\n"],
)
def test_an_examples_region_in_another_format_has_no_examples(inner: str) -> None:
    assert (
        examples(Skill.from_text(f"<!-- EXAMPLES_START -->\n{inner}\n<!-- EXAMPLES_END -->")) == ()
    )


def test_regions_of_a_windows_file_get_its_newlines() -> None:
    skill = with_slow_update(with_notes(Skill.from_text("# T\r\n\r\nbody\r\n"), ["n"]), "a\nb")
    assert skill.text.count("\n") == skill.text.count("\r\n")
    assert (appendix_notes(skill), slow_update_text(skill)) == (("n",), "a\nb")


def test_removing_a_region_never_joins_the_text_around_it_into_a_marker() -> None:
    skill = Skill.from_text(
        "<!--\n<!-- EXAMPLES_START -->\n<!-- EXAMPLES_END -->\nPROTECTED_START --> text\n"
    )
    assert with_examples(skill, []).text == skill.text


def test_an_empty_slow_update_region_can_be_left_out_and_a_full_one_stays():
    skill = Skill.from_text("# Skill\n\nBe kind.\n")
    assert without_placeholder(with_slow_update(skill)).body.strip() == skill.body.strip()
    full = with_slow_update(skill, "Remember the form.")
    assert without_placeholder(full) == full


SLOW = "<!-- SLOW_UPDATE_START -->\nguidance\n<!-- SLOW_UPDATE_END -->"
HAND = "<!-- PROTECTED_START -->\nby  hand\n<!-- PROTECTED_END -->"
HEAD = "---\nname: x\n---\n"
SKILL = Skill.from_text(f"{HEAD}# Old\n\n{HAND}\n\nold text\n\n{SLOW}\n")


def test_regions_that_the_rewrite_dropped_are_restored_at_the_end() -> None:
    assert rewrite(SKILL, "# New\n").text == f"{HEAD}# New\n\n{HAND}\n\n{SLOW}\n"


def test_regions_keep_their_position_in_the_rewrite() -> None:
    assert (
        rewrite(SKILL, f"# New\n\n{HAND}\n\nnew text\n\n{SLOW}\n").text
        == f"{HEAD}# New\n\n{HAND}\n\nnew text\n\n{SLOW}\n"
    )


def test_a_changed_region_is_restored() -> None:
    new = (
        f"# New\n\n{HAND.replace('hand', 'model')}\n\nnew\n\n{SLOW.replace('guidance', 'nothing')}"
    )
    assert rewrite(SKILL, new).body == f"# New\n\n{HAND}\n\nnew\n\n{SLOW}\n"


def test_regions_keep_their_order_and_are_not_duplicated() -> None:
    assert (
        rewrite(SKILL, f"{SLOW}\n\nmiddle\n\n{HAND}\n\n{SLOW}").body
        == f"{HAND}\n\n{SLOW}\n\nmiddle\n"
    )


def test_an_invented_region_becomes_plain_text() -> None:
    plain = Skill.from_text("# Old\n")
    assert rewrite(plain, f"# New\n\n{HAND}").text == "# New\n\n\nby  hand\n"


def test_frontmatter_in_the_rewrite_is_ignored() -> None:
    assert (
        rewrite(SKILL, "---\nname: other\n---\n# New").text == f"{HEAD}# New\n\n{HAND}\n\n{SLOW}\n"
    )


@pytest.mark.parametrize("nothing", ["", " \n\n", "---\nname: y\n---\n"])
def test_an_empty_rewrite_changes_nothing(nothing: str) -> None:
    assert rewrite(SKILL, nothing) is SKILL


def test_text_after_an_unclosed_marker_is_protected_in_a_rewrite() -> None:
    skill = Skill.from_text("# T\n\n<!-- PROTECTED_START -->\nmine\n\nalso mine\n")
    new = rewrite(skill, "# New\n\n<!-- PROTECTED_START -->\nyours\n\nmore")
    assert new.text.startswith("# New") and new.text.endswith(
        "<!-- PROTECTED_START -->\nmine\n\nalso mine\n"
    )


def region(text: str) -> str:
    return f"<!-- PROTECTED_START -->\n{text}\n<!-- PROTECTED_END -->"


TRAINED = Skill.from_text(f"{HEAD}\n# Trained\n\n{HAND}\n\nlearned\n\n{SLOW}\n")


@pytest.mark.parametrize("same_skill", [True, False])
def test_a_trained_body_keeps_its_markers_and_blank_lines(same_skill: bool) -> None:
    present = Skill.from_text("---\nname: y\n---\n# Other\n")
    wanted = with_trained_body(present, TRAINED, same_skill=same_skill)
    assert wanted.text == f"---\nname: y\n---\n{TRAINED.body}"


def test_a_trained_body_brings_its_own_slow_update() -> None:
    present = Skill.from_text(f"# Mine\n\n{SLOW.replace('guidance', 'old guidance')}\n")
    assert with_trained_body(present, TRAINED, same_skill=True).body == TRAINED.body


def test_protected_text_that_only_the_present_skill_has_is_kept_before_the_slow_update() -> None:
    present = Skill.from_text(f"# Mine\n\n{region('new')}\n\n{HAND}\n")
    wanted = with_trained_body(present, TRAINED, same_skill=True)
    assert wanted.body == f"\n# Trained\n\n{HAND}\n\nlearned\n\n{region('new')}\n\n{SLOW}\n"
    assert with_trained_body(wanted, TRAINED, same_skill=True) == wanted


def test_protected_text_that_the_user_changed_takes_the_place_of_the_old() -> None:
    present = Skill.from_text(f"# Mine\n\n{region('changed')}\n")
    wanted = with_trained_body(present, TRAINED, same_skill=True)
    assert wanted.body == TRAINED.body.replace(HAND, region("changed"))


def test_protected_text_of_another_skill_replaces_none_of_the_trained_one() -> None:
    present = Skill.from_text(f"# Other\n\n{region('theirs')}\n")
    body = with_trained_body(present, TRAINED, same_skill=False).body
    assert body == TRAINED.body.replace(SLOW, f"{region('theirs')}\n\n{SLOW}")


def test_an_unclosed_region_of_the_present_skill_does_not_protect_trained_text() -> None:
    present = Skill.from_text("# Mine\n\n<!-- PROTECTED_START -->\nmine\n")
    wanted = with_trained_body(present, TRAINED, same_skill=True)
    assert [one.text for one in scan(wanted.body)] == [
        HAND,
        "<!-- PROTECTED_START -->\nmine",
        SLOW,
    ]


def test_a_trained_skill_without_text_changes_nothing() -> None:
    assert with_trained_body(SKILL, Skill.from_text(HEAD), same_skill=True) is SKILL
