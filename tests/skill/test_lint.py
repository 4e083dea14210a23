from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from skills_ref import validate

from skillfit.errors import InputError
from skillfit.skill import Skill, document_problems, lint, refuse_unreadable

GOOD = "---\nname: tables\ndescription: Read tables.\n---\n# Tables\n\nlook first\n"


def skill_folder(root: Path, document: str, name: str = "tables") -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "SKILL.md").write_bytes(document.encode())
    return folder


def found(path: Path) -> list[tuple[int, str, str]]:
    return [(problem.line, problem.severity, problem.rule) for problem in lint(path)]


def test_a_good_skill_has_no_problems(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path, GOOD)
    assert lint(folder) == lint(folder / "SKILL.md") == validate(folder) == []


FRONTMATTERS = [
    "",
    "# no frontmatter\n",
    "---\nname: tables\n",
    "---\nname: tables\n---\n",
    "---\ndescription: d\n---\n",
    "---\nname:\ndescription: d\n---\n",
    "---\nname: tables\ndescription: ' '\n---\n",
    "---\nname: Tables\ndescription: d\n---\n",
    "---\nname: other\ndescription: d\n---\n",
    "---\nname: -tables\ndescription: d\n---\n",
    "---\nname: tab--les\ndescription: d\n---\n",
    "---\nname: tab_les\ndescription: d\n---\n",
    f"---\nname: {'t' * 65}\ndescription: d\n---\n",
    f"---\nname: tables\ndescription: {'d' * 1025}\n---\n",
    f"---\nname: tables\ndescription: d\ncompatibility: {'c' * 501}\n---\n",
    "---\nname: tables\ndescription: d\ncompatibility:\n  a: b\n---\n",
    "---\nname: tables\ndescription: d\nversion: 1\n---\n",
    "---\nname: tables\ndescription: a: b\n---\n",
    "---\nname: tables\ndescription: d\nname: tables\n---\n",
    "---\nname: tables\ndescription: d\nmetadata: {a: b}\n---\n",
    "---\n- name\n---\n",
    "\ufeff" + GOOD,
]


@pytest.mark.parametrize("document", FRONTMATTERS)
def test_skills_that_the_reference_validator_refuses_have_errors(
    tmp_path: Path, document: str
) -> None:
    folder = skill_folder(tmp_path, document)
    assert validate(folder) != []
    assert any(problem.severity == "error" for problem in lint(folder))


@pytest.mark.parametrize(
    "extra",
    [
        "license: MIT\n",
        "metadata:\n  a: b\n",
        "allowed-tools: Bash(git:*) Read\n",
        "compatibility: Linux\n",
        "# a comment\n",
    ],
)
def test_skills_that_the_reference_validator_accepts_have_no_errors(
    tmp_path: Path, extra: str
) -> None:
    folder = skill_folder(tmp_path, GOOD.replace("---\n#", f"{extra}---\n#"))
    assert validate(folder) == [] == lint(folder)


def test_problems_have_their_line(tmp_path: Path) -> None:
    assert found(skill_folder(tmp_path, "---\ndescription: d\nname: Other\nfoo: 1\n---\nx\n")) == [
        (3, "error", "name"),
        (3, "error", "name"),
        (4, "error", "field"),
    ]


def test_fields_of_claude_code_are_warnings(tmp_path: Path) -> None:
    fields = (
        "model: opus\ncontext: fork\nargument-hint: [issue]\nhooks: {}\nuser-invocable: false\n"
    )
    document = GOOD.replace("---\n#", f"{fields}---\n#")
    problems = lint(skill_folder(tmp_path, document))
    assert {(problem.severity, problem.rule) for problem in problems} == {("warning", "field")}
    assert len(problems) == 5 and "a field of Claude Code" in problems[0].message


def test_broken_yaml_is_reported_where_it_breaks(tmp_path: Path) -> None:
    assert found(skill_folder(tmp_path, "---\nname: tables\ndescription: a: b\n---\nx\n")) == [
        (3, "error", "yaml")
    ]


def test_dashes_that_cut_the_frontmatter_short_for_other_readers_are_reported(
    tmp_path: Path,
) -> None:
    assert found(skill_folder(tmp_path, GOOD.replace("Read", "Read --- all"))) == [
        (3, "error", "yaml")
    ]


def test_markers_that_do_not_pair_up_are_reported(tmp_path: Path) -> None:
    (tmp_path / "plain.md").write_text(
        "# T\n<!-- APPENDIX_END -->\n<!-- SLOW_UPDATE_START -->\n"
        "<!-- PROTECTED_START -->\n<!-- PROTECTED_START -->\n"
        "<!-- PROTECTED_END -->\n<!-- PROTECTED_END -->\n<!-- PROTECTED_START -->\nrest\n"
    )
    problems = lint(tmp_path / "plain.md")
    assert [(problem.line, problem.rule) for problem in problems] == [
        (2, "marker"),
        (3, "marker"),
        (4, "marker"),
        (8, "marker"),
    ]
    assert "no START" in problems[0].message and "no END" in problems[1].message
    assert "nested" in problems[2].message and "never closed" in problems[3].message


@pytest.mark.parametrize(
    ("kind", "change"), [("APPENDIX", "merge"), ("EXAMPLES", "merge"), ("SLOW_UPDATE", "replace")]
)
def test_a_second_region_of_a_kind_is_reported(tmp_path: Path, kind: str, change: str) -> None:
    region = f"<!-- {kind}_START -->\n<!-- {kind}_END -->\n"
    (tmp_path / "plain.md").write_text(f"# T\n{region}{region}")
    assert found(tmp_path / "plain.md") == [(4, "warning", "marker")]
    (problem,) = lint(tmp_path / "plain.md")
    assert problem.message.endswith(f"region; the next update will {change} them")


def test_missing_files_named_in_the_body_are_reported(tmp_path: Path) -> None:
    body = (
        "see [this](references/here.md#top), [that](gone.md) or\n"
        "`scripts/run.py`; [web](https://x.y/z) [top](#top)\n"
    )
    folder = skill_folder(tmp_path, GOOD + body)
    (folder / "references").mkdir()
    (folder / "references" / "here.md").write_text("x")
    problems = lint(folder)
    assert [(problem.line, problem.rule) for problem in problems] == [
        (8, "reference"),
        (9, "reference"),
    ]
    assert problems[0].message.startswith("gone.md") and problems[1].message.startswith(
        "scripts/run.py"
    )


def test_a_long_body_is_a_warning(tmp_path: Path) -> None:
    folder = skill_folder(tmp_path, GOOD + "words and more words to read here today\n" * 510)
    assert found(folder) == [(5, "warning", "body"), (5, "warning", "body")]


def test_an_unreadable_skill_is_reported_as_a_problem(tmp_path: Path) -> None:
    (tmp_path / "bad.md").write_bytes(b"\xff")
    assert found(tmp_path / "bad.md") == found(tmp_path / "none.md") == [(1, "error", "readable")]
    (tmp_path / "empty").mkdir()
    assert found(tmp_path / "empty") == [(1, "error", "readable")]


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ("---\nname: tables\ndescription: a: b\n---\nx\n", 3),
        ("---\nname: tables\ndescription: never closed\n\n# T\n", 1),
        (f"---\nname: {'[' * 3000}\n---\nx\n", 1),
        ("---\nname: &a [*a]\nb: *c\n---\nx\n", 3),
    ],
)
def test_unreadable_frontmatter_is_an_error_in_any_markdown_file(
    tmp_path: Path, document: str, line: int
) -> None:
    (tmp_path / "plain.md").write_text(document)
    (problem,) = document_problems(Skill.load(tmp_path / "plain.md"))
    assert (problem.path, problem.line, problem.severity) == ("plain.md", line, "error")
    assert "frontmatter" in problem.message
    assert lint(tmp_path / "plain.md") == [replace(problem, path=str(tmp_path / "plain.md"))]


def test_a_thematic_break_at_the_top_is_not_unclosed_frontmatter() -> None:
    assert document_problems(Skill.from_text("---\n\n# Title\n\nNote: text\n")) == []


def test_unreadable_frontmatter_is_refused_with_file_and_line() -> None:
    refuse_unreadable(Skill.from_text(GOOD))
    refuse_unreadable(Skill.from_text(""))
    broken = Skill.from_text("---\nname: tables\ndescription: a: b\n---\nx\n")
    for path, file in {
        "skills/tables": "skills/tables/SKILL.md",
        "skills/notes.md": "skills/notes.md",
        "": "SKILL.md",
    }.items():
        with pytest.raises(InputError, match=rf"^{file}:3: the frontmatter is not YAML"):
            refuse_unreadable(broken, path)
