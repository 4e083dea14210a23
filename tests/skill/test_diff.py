from __future__ import annotations

from skillfit.skill import DiffLine, Skill, diff, diff_hunks

OLD = Skill.from_text("a\nb\nc\nd\ne\nf\n")


def test_equal_skills_have_no_diff() -> None:
    assert diff(OLD, OLD) == "" and diff_hunks(OLD, OLD) == ()


def test_a_change_is_shown_with_the_lines_around_it() -> None:
    new = OLD.with_body("a\nb\nc\nD\ne\nf\n")
    assert diff(OLD, new, context=1) == "@@ -3,3 +3,3 @@\n c\n-d\n+D\n e\n"
    (hunk,) = diff_hunks(OLD, new, context=0)
    assert hunk.lines == (DiffLine("removed", "d", 4, None), DiffLine("added", "D", None, 4))


def test_far_changes_are_hunks_of_their_own() -> None:
    assert len(diff_hunks("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "x\n2\n3\n4\n5\n6\n7\n8\ny\n")) == 2


def test_a_missing_newline_at_the_end_is_visible() -> None:
    assert diff("a\n", "a") == "@@ -1,1 +1,1 @@\n-a\n+a (no newline at the end)\n"
    assert diff("", "a\n") == "@@ -0,0 +1,1 @@\n+a\n"


def test_changed_files_of_the_package_are_named() -> None:
    old = Skill.from_text("a\n", files={"x": b"1", "y": b"1"})
    new = Skill.from_text("a\n", files={"x": b"2", "z": b"1"})
    assert diff(old, new) == "file changed: x\nfile removed: y\nfile added: z\n"
