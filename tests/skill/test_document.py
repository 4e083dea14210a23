from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from skillfit.errors import InputError
from skillfit.skill import Skill, estimate_tokens
from skillfit.skill.document import folder_name

SKILL = b"---\nname: tables\ndescription: Read tables.\n---\n# Tables\n\n- look first\n"


def make_folder(root: Path) -> Path:
    folder = root / "tables"
    (folder / "scripts").mkdir(parents=True)
    (folder / "references").mkdir()
    (folder / "SKILL.md").write_bytes(SKILL)
    (folder / "scripts" / "run.sh").write_bytes(b"#!/bin/sh\r\necho\xff\n")
    (folder / "scripts" / "run.sh").chmod(0o755)
    (folder / "references" / "long.md").write_bytes(b"no newline at the end")
    (folder / "notes.md").write_bytes(b"beside")
    return folder


def bytes_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        p.relative_to(folder).as_posix(): (p.read_bytes(), p.stat().st_mode)
        for p in folder.rglob("*")
        if p.is_file()
    }


def test_a_folder_is_loaded_and_saved_with_the_same_bytes_and_modes(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    Skill.load(folder).save(tmp_path / "copy")
    assert bytes_of(tmp_path / "copy") == bytes_of(folder)


def test_frontmatter_body_name_and_files_are_read(tmp_path: Path) -> None:
    skill = Skill.load(make_folder(tmp_path))
    assert (skill.name, skill.frontmatter["description"]) == ("tables", "Read tables.")
    assert skill.body == "# Tables\n\n- look first\n"
    assert skill.text.encode() == SKILL
    assert set(skill.files) == {"scripts/run.sh", "references/long.md", "notes.md"}


def test_a_skill_md_named_alone_brings_only_the_folders_of_the_format(tmp_path: Path) -> None:
    skill = Skill.load(make_folder(tmp_path) / "SKILL.md")
    assert set(skill.files) == {"scripts/run.sh", "references/long.md"}


def test_task_data_and_hidden_files_are_not_part_of_a_skill(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "evals").mkdir()
    (folder / "evals" / "evals.json").write_text("{}")
    (folder / ".env").write_text("KEY=1")
    assert set(Skill.load(folder).files) == {"scripts/run.sh", "references/long.md", "notes.md"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        b"# no newline at the end",
        b"\xef\xbb\xbf---\r\nname: x\r\n---\r\n# Title\r\n",
        b"mixed\r\nnewlines\nand\rmore",
        b"---\nname: x\n---",
        b"---\n\nonly a line across\n\n---\n",
    ],
)
def test_a_markdown_file_is_saved_with_the_same_bytes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in.md").write_bytes(data)
    skill = Skill.load(tmp_path / "in.md")
    skill.save(tmp_path / "out.md")
    assert (tmp_path / "out.md").read_bytes() == data
    assert skill.name == ("x" if b"name: x" in data else "in")


def test_saving_over_a_folder_writes_only_what_changed(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.*")}
    skill = Skill.load(folder)
    skill.with_body(skill.body + "- more\n").save(folder)
    changed = [p.name for p, at in before.items() if p.stat().st_mtime_ns != at]
    assert changed == ["SKILL.md"]
    assert (folder / "SKILL.md").read_bytes() == SKILL + b"- more\n"
    assert not list(folder.glob(".SKILL*"))


def test_a_new_body_takes_on_the_newlines_of_the_skill() -> None:
    skill = Skill.from_text("---\r\nname: x\r\n---\r\nold\r\n")
    assert skill.with_body("a\nb\n").text == "---\r\nname: x\r\n---\r\na\r\nb\r\n"


def test_a_new_body_cannot_pass_for_frontmatter() -> None:
    forged = Skill.from_text("plain\n").with_body("---\nname: forged\n---\nbody\n")
    again = Skill.from_text(forged.text)
    assert (again.head, again.name, again.body) == ("", "skill", forged.body)


def test_frontmatter_that_is_not_yaml_is_kept_and_read_as_empty() -> None:
    skill = Skill.from_text("---\nname: a: b\n---\nbody\n")
    assert (dict(skill.frontmatter), skill.body) == ({}, "body\n")


def test_the_hash_covers_text_and_files_and_nothing_else(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    skill = Skill.load(folder)
    renamed = folder.rename(tmp_path / "elsewhere")
    (renamed / "notes.md").chmod(0o600)
    assert Skill.load(renamed).hash == skill.hash
    (renamed / "notes.md").write_bytes(b"beside!")
    assert Skill.load(renamed).hash != skill.hash
    assert skill.with_body(skill.body + " ").hash != skill.hash


def test_the_hash_is_the_same_in_every_release() -> None:
    assert Skill.from_text("same\n").hash == "fb1a497c378d9bc8"


def test_a_skill_travels_to_another_process(tmp_path: Path) -> None:
    skill = Skill.load(make_folder(tmp_path))
    assert (skill.hash, skill.tokens) == (
        pickle.loads(pickle.dumps(skill)).hash,
        estimate_tokens(SKILL.decode()),
    )


def test_bytes_that_are_not_utf8_are_an_error_with_line_and_offset(tmp_path: Path) -> None:
    (tmp_path / "bad.md").write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(InputError, match=r"bad\.md, line 2: byte 8 \(0xff\) is not UTF-8"):
        Skill.load(tmp_path / "bad.md")


def test_a_document_of_five_megabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big.md").write_bytes(b"x" * 5_000_000)
    with pytest.raises(InputError, match="larger than 1,000,000 bytes"):
        Skill.load(tmp_path / "big.md")


def test_a_package_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    with (folder / "huge.bin").open("wb") as file:
        file.truncate(33_000_000)
    with pytest.raises(InputError, match=r"more than 32,000,000 bytes"):
        Skill.load(folder)


@pytest.mark.parametrize("name", ["nowhere", "nowhere.md", "empty"])
def test_a_path_without_a_skill_is_an_input_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=name):
        Skill.load(tmp_path / name)


def test_links_out_of_the_skill_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (tmp_path / "secret").write_text("s")
    (folder / "inside.md").symlink_to(folder / "notes.md")
    assert Skill.load(folder).files["inside.md"] == b"beside"
    (folder / "references" / "out.md").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"out\.md is a symbolic link"):
        Skill.load(folder)


def test_a_linked_skill_folder_is_refused_for_reading_and_writing(tmp_path: Path) -> None:
    skill = Skill.load(make_folder(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "tables")
    with pytest.raises(InputError, match="symbolic link"):
        Skill.load(tmp_path / "link")
    with pytest.raises(InputError, match="symbolic link"):
        skill.save(tmp_path / "link")


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "", "c:\\out"])
def test_file_names_that_lead_out_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="inside a skill folder"):
        Skill.from_text("x", files={name: b""})


def test_saving_never_writes_through_a_linked_subfolder(tmp_path: Path) -> None:
    skill = Skill.load(make_folder(tmp_path))
    (tmp_path / "outside").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "scripts").symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="is outside"):
        skill.save(tmp_path / "target")
    assert not list((tmp_path / "outside").iterdir())
    assert not (tmp_path / "target" / "SKILL.md").exists()


@pytest.mark.parametrize("name", ["notes.md", "SKILL.md"])
def test_a_pipe_is_refused_instead_of_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is not a regular file"):
        Skill.load(tmp_path / name)


def test_a_device_is_refused_instead_of_read() -> None:
    with pytest.raises(InputError, match="is not a regular file"):
        Skill.load("/dev/zero")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("../../escaped", "escaped"),
        ("/etc/passwd", "etc-passwd"),
        ("nul\0name", "nul-name"),
        ("Ünïcode Name", "unicode-name"),
        ("..", ""),
        ("a" * 100, "a" * 64),
    ],
)
def test_a_folder_name_is_safe_whatever_the_skill_is_called(name: str, folder: str) -> None:
    assert folder_name(name) == folder
