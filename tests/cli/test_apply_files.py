"""`apply` writes the files of a skill that a run changed, and `--undo` restores them exactly."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillfit import Run
from skillfit.cli.apply import (
    DocumentChange,
    changed_since,
    make_change,
    plan_change,
    undo_change,
)
from skillfit.errors import InputError
from skillfit.skill import Edit, Skill, apply_edits, parts
from tests.report.recorded_runs import WrittenRun

TABLE = "references/data.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    skill = tmp_path / "skill"
    (skill / "references").mkdir(parents=True)
    (skill / "scripts").mkdir()
    (skill / "SKILL.md").write_text("# Skill\n\n- One.\n")
    (skill / TABLE).write_bytes(b"{}\r\n")
    (skill / "references/empty.md").write_bytes(b"")
    (skill / "scripts/old.sh").write_text("#!/bin/sh\n")
    (skill / "scripts/old.sh").chmod(0o755)
    return skill


@pytest.fixture
def run(tmp_path: Path) -> Run:
    written = WrittenRun(tmp_path / "run")
    written.close()
    return Run.open(tmp_path / "run")


def change(run: Run, folder: Path, *edits: Edit) -> DocumentChange:
    present = Skill.load(folder)
    applied = apply_edits(present, edits)
    assert all(result.applied for result in applied.results)
    return DocumentChange(run, folder / "SKILL.md", present, applied.skill)


def files(folder: Path) -> dict[str, tuple[Any, ...]]:
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


EDITS = (
    Edit("append", content="- Two."),
    Edit("append", content="[1]", file=TABLE),
    Edit("append", content="- Three.", file="references/empty.md"),
    Edit("append", content="- New.", file="references/sub/new.md"),
    Edit("write", file="scripts/old.sh"),
)


def test_undo_restores_bytes_and_modes(run: Run, folder: Path) -> None:
    before = files(folder)
    make_change(change(run, folder, *EDITS))
    assert (folder / TABLE).read_bytes() == b"{}\r\n\r\n[1]\r\n"
    assert not (folder / "scripts").exists()
    undo_change(run, force=False)
    assert files(folder) == before and not (folder / "references/sub").exists()


def test_a_forced_undo_keeps_copies_that_are_no_backups(run: Run, folder: Path) -> None:
    before = files(folder)
    for data in (b"\xff mine", b"mine again"):
        make_change(change(run, folder, *EDITS))
        (folder / TABLE).write_bytes(data)
        with pytest.raises(InputError, match=r"data\.json has changed since it was applied"):
            undo_change(run, force=False)
        [copy] = undo_change(run, force=True).copies
        assert copy.read_bytes() == data and files(folder) == before
    with pytest.raises(InputError, match="is not applied"):
        undo_change(run, force=False)


def test_a_change_that_cannot_be_made_changes_nothing_and_is_not_recorded(
    run: Run, folder: Path
) -> None:
    wanted = change(run, folder, *EDITS)
    (folder / "references/empty.md").unlink()
    (folder / "references/empty.md").symlink_to("data.json")
    before = files(folder)
    with pytest.raises(InputError, match=r"empty\.md is a symbolic link"):
        make_change(wanted)
    assert files(folder) == before
    with pytest.raises(InputError, match="is not applied"):
        undo_change(run, force=False)


def test_a_description_in_an_unusual_form_is_a_clear_error(folder: Path) -> None:
    text = "---\nname: a\ndescription: &d old\nsummary: *d\n---\n# Skill\n"
    edit = Edit("replace", "old", "new", file="description")
    [result] = apply_edits(Skill.from_text(text), [edit]).results
    assert not result.applied and "a form that cannot be replaced" in result.reason


def test_a_failed_change_that_cannot_be_restored_keeps_the_former_files(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, calls = files(folder), 0

    def full(path: Path, data: bytes, mode: int | None = None) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise InputError(f"Cannot write {path}: No space left on device.")
        real(path, data, mode)

    real = parts.write_whole
    with monkeypatch.context() as patched:
        patched.setattr(parts, "write_whole", full)
        with pytest.raises(InputError, match="could not be restored") as failed:
            make_change(change(run, folder, *EDITS))
    assert "--undo" in str(failed.value.hint)
    undo_change(run, force=True)
    assert files(folder) == before


def test_files_go_beside_a_document_that_is_a_link(run: Run, folder: Path) -> None:
    (folder / "docs").mkdir()
    (folder / "SKILL.md").rename(folder / "docs/SKILL.md")
    (folder / "SKILL.md").symlink_to("docs/SKILL.md")
    before = files(folder)
    make_change(change(run, folder, *EDITS))
    assert (folder / "references/sub/new.md").exists() and (folder / "SKILL.md").is_symlink()
    assert "- Two." in (folder / "docs/SKILL.md").read_text()
    (folder / "docs/SKILL.md").write_bytes(b"\xff")
    undo_change(run, force=True)
    assert files(folder) == before


def test_a_trained_description_is_applied_with_the_body(tmp_path: Path) -> None:
    head = "---\nname: a\ndescription: Old.\n---\n"
    before, after = f"{head}# A\n\n- One.\n", f"{head.replace('Old', 'New')}# A\n\n- One.\n- Two.\n"
    written = WrittenRun(tmp_path / "run", skill=before)
    written.finish("improved", after)
    written.close()
    document = tmp_path / "SKILL.md"
    document.write_text(before)
    run = Run.open(tmp_path / "run")
    make_change(plan_change(run, document, force=False))
    assert document.read_text() == after
    undo_change(run, force=False)
    document.write_text(before.replace("name: a", "name: mine"))
    make_change(plan_change(run, document, force=True))
    assert document.read_text() == after.replace("name: a", "name: mine")


def test_a_file_that_somebody_made_in_the_meantime_is_not_overwritten(
    run: Run, folder: Path
) -> None:
    new = "references/new.md"
    record = replace(run.record, found_files={new: "- New.\n"})
    assert changed_since(record, Skill.load(folder)) == []
    for data in (b"\xff\xfe", b"mine\n"):
        (folder / new).write_bytes(data)
        assert changed_since(record, Skill.load(folder)) == [new]
    (folder / new).write_text("- New.\n")
    assert changed_since(record, Skill.load(folder)) == []
