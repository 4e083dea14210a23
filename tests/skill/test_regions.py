"""Markers with small mistakes still protect, and are reported."""

from pathlib import Path

import pytest

from skillfit.skill import Edit, Skill, apply_edits, lint, rewrite
from skillfit.skill.regions import PROTECTED, clean, scan

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
