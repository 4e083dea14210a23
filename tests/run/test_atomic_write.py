"""Files appear complete or not at all, with the mode that a user expects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skillfit.atomic_write import whole_folder, write_whole
from skillfit.errors import InputError


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_file_gets_the_mode_that_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "private.md", b"text")
        write_whole(tmp_path / "script.sh", b"text", 0o755)
    finally:
        os.umask(before)
    assert mode(tmp_path / "private.md") == 0o600
    assert mode(tmp_path / "script.sh") == 0o755


def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "kept.md"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert mode(path) == 0o640


def test_a_file_with_the_same_content_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "same.md"
    write_whole(path, b"same")
    inode = path.stat().st_ino
    write_whole(path, b"same")
    assert path.stat().st_ino == inode
    write_whole(path, b"same", 0o600)
    assert mode(path) == 0o600


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "old.md"
    path.write_bytes(b"old")
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from skillfit.atomic_write import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_whole(Path(sys.argv[1]), bytes(5000))\n"
    )
    argv = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "Cannot write" in done.stderr
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="Cannot write"):
        write_whole(tmp_path / "file" / "inside.md", b"text")


def test_a_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder"
    with pytest.raises(ValueError, match="broken"), whole_folder(path) as folder:
        (folder / "first").write_bytes(b"1")
        raise ValueError("broken")
    assert list(path.parent.iterdir()) == []
    with whole_folder(path) as folder:
        (folder / "first").write_bytes(b"1")
        assert not path.exists()
    assert (path / "first").read_bytes() == b"1" and list(path.parent.iterdir()) == [path]


def test_two_writers_of_one_folder_do_not_mix_their_files(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with whole_folder(path) as first, whole_folder(path) as second:
        (first / "a").write_bytes(b"1")
        (second / "b").write_bytes(b"2")
    assert [file.name for file in path.iterdir()] == ["b"]
    assert list(tmp_path.iterdir()) == [path]


_WRITER = """
import sys, time
from pathlib import Path
from skillfit.atomic_write import hidden_folder
with hidden_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_bytes(b"1")
    print(folder, flush=True)
    time.sleep(600)
"""


def writer_in(folder: Path) -> subprocess.Popen[str]:
    """Another process, in the middle of writing a folder."""
    argv = [sys.executable, "-c", _WRITER, str(folder)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def test_a_folder_that_a_killed_process_left_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    with writer_in(tmp_path) as killed:
        assert killed.stdout is not None
        left = Path(killed.stdout.readline().strip())
        killed.kill()
    assert (left / "half").exists()
    with whole_folder(tmp_path / "new") as folder:
        (folder / "a").write_bytes(b"1")
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]


def test_the_folder_of_a_process_that_is_still_writing_is_kept(tmp_path: Path) -> None:
    with writer_in(tmp_path) as writing:
        try:
            assert writing.stdout is not None
            its_own = Path(writing.stdout.readline().strip())
            with whole_folder(tmp_path / "new"):
                pass
            assert (its_own / "half").exists()
        finally:
            writing.kill()


def test_a_folder_of_an_earlier_version_is_removed_after_a_day(tmp_path: Path) -> None:
    old, recent = tmp_path / ".writing-old", tmp_path / ".writing-recent"
    for folder in (old, recent):
        folder.mkdir()
    os.utime(old, (0, 0))
    with whole_folder(tmp_path / "new"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".writing-recent", "new"]
