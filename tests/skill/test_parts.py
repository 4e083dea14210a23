"""Edits change the part of the skill folder that they name, and nothing outside of it."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from skillfit.skill import Edit, Skill, apply_edits, units
from skillfit.skill.parts import (
    PARTS,
    named_file,
    part_of,
    part_text,
    part_texts,
    with_part,
    with_trained,
)
from skillfit.skill.units import units_of_parts, without_units

DOCUMENT = "---\nname: bays\ndescription: Sort goods.\n---\n# Bays\n\n- Heavy goods go low.\n"
REFERENCE = "# Tables\n\n- Bay 1 is low.\n- Bay 2 is high.\n"
FILES = {
    "references/tables.md": REFERENCE.encode(),
    "scripts/sort.py": b"#!/usr/bin/env python3\nprint(1)\n",
    "assets/logo.png": b"\x89PNG\xff",
    "references/photo.md": b"\xff\xfe",
    "LICENSE": b"MIT\n",
}
SKILL = Skill.from_text(DOCUMENT, files=FILES)
TABLES = "references/tables.md"


def run(*edits: Edit, skill: Skill = SKILL) -> tuple[Skill, list[str]]:
    applied = apply_edits(skill, edits)
    return applied.skill, [result.status for result in applied.results]


def text_of(skill: Skill, file: str) -> str:
    return skill.files[file].decode()


def test_an_edit_changes_the_file_that_it_names_and_no_other() -> None:
    skill, statuses = run(
        Edit("replace", "Bay 1 is low.", "Bay 1 is the lowest.", file=TABLES),
        Edit("write", content="print(1)\nprint(2)", file="scripts/sort.py"),
        Edit("append", content="- Fragile goods go last."),
    )
    assert statuses == ["applied_replace", "applied_write", "applied_append"]
    assert text_of(skill, TABLES) == REFERENCE.replace("is low", "is the lowest")
    assert text_of(skill, "scripts/sort.py") == "print(1)\nprint(2)\n"
    assert skill.body == SKILL.body + "- Fragile goods go last.\n"
    assert skill.head == SKILL.head and skill.files["LICENSE"] == b"MIT\n"


def test_edits_create_files_and_remove_those_that_lose_all_text() -> None:
    skill, statuses = run(
        Edit("write", content="#!/bin/sh\nls", file="scripts/list.sh"),
        Edit("write", file="scripts/sort.py"),
        Edit("delete", REFERENCE, file=TABLES),
        Edit("append", content="- Cold goods go last.", file="references/cold.md"),
    )
    assert statuses == ["applied_write", "applied_write", "applied_delete", "applied_append"]
    assert text_of(skill, "references/cold.md") == "- Cold goods go last.\n"
    assert "scripts/sort.py" not in skill.files
    assert text_of(skill, "scripts/list.sh") == "#!/bin/sh\nls\n"
    assert skill.modes["scripts/list.sh"] == 0o755
    assert TABLES not in skill.files


def test_text_moves_into_a_reference_with_a_pointer_in_its_place() -> None:
    pointer = "- Weights: see references/weights.md."
    skill, statuses = run(
        Edit("move", "- Heavy goods go low.", pointer, file="references/weights.md")
    )
    assert statuses == ["applied_move"]
    assert skill.body == f"# Bays\n\n{pointer}\n"
    assert text_of(skill, "references/weights.md") == "- Heavy goods go low.\n"


def test_a_move_that_fails_changes_neither_file() -> None:
    fenced = SKILL.with_body(
        "<!-- PROTECTED_START -->\nKeep.\n<!-- PROTECTED_END -->\n\nOther text.\n"
    )
    skill, statuses = run(
        Edit("move", "Keep.", file="references/new.md"),
        Edit("move", "Other text.", file="scripts/new.md"),
        skill=fenced,
    )
    assert statuses == ["skipped_protected_region", "skipped_unknown_file"]
    assert skill == fenced


@pytest.mark.parametrize(
    "file",
    [
        "../outside.md",
        "references/../../outside.md",
        "/etc/passwd",
        "references/../SKILL.md",
        "references/./a.md",
        "references//a.md",
        "references/.hidden.md",
        "references",
        "references/",
        "scripts\\a.py",
        "LICENSE",
        "assets/logo.png",
        "c:references/a.md",
        "references/a\0.md",
        "references/a\n+++ b.md",
        "references/a\u202e.md",
        "references/ a.md",
        "references/node_modules/a.md",
        "references/evals/a.md",
        "references/" + 101 * "a",
        "references/" + 60 * "abcde/" + "a.md",
    ],
)
def test_edits_cannot_name_a_file_outside_of_the_parts(file: str) -> None:
    edits = [Edit(op, "MIT", "x", file=file) for op in ("append", "replace", "delete", "move")]
    skill, statuses = run(*edits)
    assert statuses == ["skipped_unknown_file"] * 4
    assert skill == SKILL and part_of(file) is None


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_file_name_and_no_content_make_a_skill_that_cannot_be_saved_in_place(
    name: str, content: str
) -> None:
    skill, _ = run(Edit("append", content=content, file=f"references/{name}"))
    for file in skill.files.keys() - SKILL.files.keys():
        assert file.startswith("references/") and ".." not in file.split("/")
    skill, _ = run(Edit("append", content=content, file=name))
    assert skill.head == SKILL.head or named_file(name) == "description"


def test_files_that_are_missing_or_not_text_are_not_found() -> None:
    _, statuses = run(
        Edit("replace", "a", "b", file="references/none.md"),
        Edit("append", content="b", file="references/photo.md"),
    )
    assert statuses == ["skipped_file_not_found"] * 2


def test_protected_text_holds_in_every_file() -> None:
    text = "# <!-- PROTECTED_START -->\nlimit = 5\n# <!-- PROTECTED_END -->\nrest = 1\n"
    files = {"scripts/a.py": text.encode(), "references/a.md": text.encode()}
    skill = Skill.from_text(DOCUMENT, files=files)
    changed, statuses = run(
        Edit("replace", "limit = 5", "limit = 6", file="references/a.md"),
        Edit("replace", "rest = 1", "rest = 2", file="references/a.md"),
        Edit("write", content=text.replace("= 5", "= 6"), file="scripts/a.py"),
        Edit("write", content=text.replace("= 1", "= 2"), file="scripts/a.py"),
        skill=skill,
    )
    refused = "skipped_protected_region"
    assert statuses == [refused, "applied_replace", refused, "applied_write"]
    assert changed.files == dict.fromkeys(files, text.replace("= 1", "= 2").encode())


def test_a_script_is_written_as_a_whole_and_by_one_edit() -> None:
    script = "scripts/sort.py"
    skill, statuses = run(
        Edit("replace", "print(1)", "print(2)", file=script),
        Edit("write", content="print(3)", file=script),
        Edit("write", content="print(4)", file=script),
        Edit("write", content="text", file=TABLES),
        Edit("write", content="text"),
    )
    unknown = "skipped_unknown_op"
    assert statuses == [unknown, "applied_write", "skipped_overlapping_edit", unknown, unknown]
    assert text_of(skill, script) == "print(3)\n"


def test_windows_line_ends_of_a_file_stay() -> None:
    skill = Skill.from_text(DOCUMENT, files={"references/a.md": b"one\r\ntwo\r\n"})
    changed, _ = run(Edit("replace", "one\n", "1\n", file="references/a.md"), skill=skill)
    assert changed.files["references/a.md"] == b"1\r\ntwo\r\n"


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("---\nname: a\ndescription: Sort goods.\n---\n", "description: Sort all goods.\n"),
        ("---\ndescription: 'Sort goods.' # kept\nname: a\n---\n", "Sort all goods. # kept\n"),
        ("---\r\nname: a\r\ndescription: Sort goods.\r\n---\r\n", "Sort all goods.\r\n"),
        (
            "---\ndescription: >\n  Sort\n  goods.\nname: a\n---\n",
            "description: Sort all goods.\nname: a\n",
        ),
    ],
)
def test_the_description_changes_in_the_frontmatter_and_other_lines_stay(
    head: str, expected: str
) -> None:
    skill = Skill.from_text(head + "# Body\n")
    changed, statuses = run(
        Edit("replace", "Sort goods.", "Sort all goods.", file="description"), skill=skill
    )
    assert statuses == ["applied_replace"]
    assert expected in changed.head and changed.body == skill.body
    assert changed.frontmatter == {**skill.frontmatter, "description": "Sort all goods."}


def test_a_description_that_yaml_would_read_otherwise_is_quoted() -> None:
    changed = with_part(SKILL, "description", "Use: when # goods\narrive")
    assert changed.frontmatter["description"] == "Use: when # goods arrive"
    assert changed.frontmatter["name"] == "bays"


def test_a_skill_without_frontmatter_gets_one_for_its_description() -> None:
    changed = with_part(Skill.from_text("# Body\n", name="My Skill"), "description", "Sort.")
    assert changed.text == "---\nname: my-skill\ndescription: Sort.\n---\n\n# Body\n"
    assert part_text(changed, "description") == "Sort."


def test_a_description_longer_than_the_format_allows_is_refused() -> None:
    changed, statuses = run(
        Edit("append", content="x " * 600, file="description"),
        Edit("append", content="x" * 200_001, file=TABLES),
    )
    assert statuses == ["skipped_over_size_limit"] * 2
    assert changed == SKILL


def test_a_description_with_an_anchor_is_left_alone() -> None:
    skill = Skill.from_text("---\nname: &a Sort goods.\ndescription: *a\n---\nbody\n")
    changed, statuses = run(
        Edit("replace", "Sort goods.", "Sort.", file="description"), skill=skill
    )
    assert statuses == ["skipped_frontmatter"] and changed == skill


def test_internal_operations_change_the_body_alone() -> None:
    _, statuses = run(Edit("note", content="a note", file=TABLES))
    assert statuses == ["skipped_unknown_file"]


def test_units_of_a_file_are_removed_from_that_file() -> None:
    found = units(SKILL, "line", TABLES)
    assert [(unit.id, unit.lines) for unit in found] == [
        (f"{TABLES}:L3", f"line 3 of {TABLES}"),
        (f"{TABLES}:L4", f"line 4 of {TABLES}"),
    ]
    shorter = without_units(SKILL, found[:1])
    assert text_of(shorter, TABLES) == "# Tables\n\n- Bay 2 is high.\n"
    assert shorter.body == SKILL.body


def test_the_file_is_written_only_for_edits_outside_of_the_body() -> None:
    assert "file" not in Edit("append", content="a").as_json()
    assert Edit("append", content="a", file=TABLES).as_json()["file"] == TABLES


@pytest.mark.parametrize("name", ["", "body", "SKILL.md", "./SKILL.md", " skill.md "])
def test_several_names_in_a_reply_stand_for_the_body(name: str) -> None:
    assert Edit.from_reply("append", "", "x", name) == Edit("append", content="x")


@given(st.text(max_size=50), st.text(max_size=50))
def test_edits_of_the_body_leave_every_file_alone(body: str, added: str) -> None:
    skill = Skill.from_text(body, files=FILES)
    changed, _ = run(Edit("append", content=added), skill=skill)
    assert changed.files == skill.files


def test_references_have_units_and_a_script_is_one() -> None:
    found = units_of_parts(SKILL, "line", ("references", "scripts"))
    assert [unit.id for unit in found] == [f"{TABLES}:L3", f"{TABLES}:L4", "scripts/sort.py"]
    assert [unit.lines for unit in found][1:] == [f"line 4 of {TABLES}", "scripts/sort.py"]
    shorter = without_units(SKILL, found[1:])
    assert text_of(shorter, TABLES) == "# Tables\n\n- Bay 1 is low.\n"
    assert "scripts/sort.py" not in shorter.files and shorter.body == SKILL.body
    fenced = {"scripts/a.sh": b"# <!-- PROTECTED_START -->\nls\n# <!-- PROTECTED_END -->\n"}
    assert not units_of_parts(Skill.from_text(DOCUMENT, files=fenced), "line", ("scripts",))


@pytest.mark.parametrize(
    "file",
    [f"{TABLES}/extra.md", "references/TABLES.md", "references/tables.md/a/b.md"],
)
def test_a_file_cannot_stand_in_the_place_of_another(file: str) -> None:
    skill, statuses = run(Edit("append", content="- One.", file=file))
    assert statuses == ["skipped_unknown_file"] and skill == SKILL


def test_edits_of_one_patch_cannot_clash_either() -> None:
    edits = [
        Edit("append", content="- One.", file="references/d/x.md"),
        Edit("append", content="- Two.", file="references/d"),
    ]
    for order in (edits, edits[::-1]):
        _, statuses = run(*order)
        assert statuses == ["applied_append", "skipped_unknown_file"]


def test_scripts_hold_no_hidden_characters_and_a_description_stays() -> None:
    _, statuses = run(
        Edit("write", content="print(1)  # \u202e\x1b[31m", file="scripts/a.py"),
        Edit("delete", "Sort goods.", file="description"),
        Edit("write", content="print(1)\r\nprint(2)", file="scripts/b.py"),
    )
    assert statuses == ["skipped_unreadable", "skipped_empty_content", "applied_write"]


@pytest.mark.parametrize("text", ["null", "true", "123", "2024-01-01", "=", "Use when: needed"])
def test_a_description_reads_as_the_same_text_for_every_reader(text: str) -> None:
    changed = with_part(SKILL, "description", text)
    assert changed.frontmatter["description"] == text
    assert yaml.safe_load(changed.frontmatter_block)["description"] == text


def test_trained_files_take_the_place_of_others_and_equal_ones_stay_byte_for_byte() -> None:
    files = {"references/a.md": b"one\r\n", "scripts/__init__.py": b"", "references/b.md": b"two\n"}
    skill = Skill.from_text(DOCUMENT, files=files)
    recorded = Skill.from_text(
        DOCUMENT, files={name: text.encode() for name, text in part_texts(skill).items()}
    )
    assert with_trained(skill, recorded, PARTS).hash == skill.hash
    other = with_trained(skill, Skill.from_text("# B\n", files={"references/c.md": b"3"}), PARTS)
    assert set(other.files) == {"references/c.md"}
