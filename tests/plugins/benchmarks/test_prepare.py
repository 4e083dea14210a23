"""`skillfit data get` and `make`: downloads, checksums, splits, errors without network."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skillfit.cli.app import app
from skillfit.config.schema import EnvSection
from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.plugins.benchmarks.benchmark import benchmark_names, extract_tar, find_benchmark
from skillfit.plugins.benchmarks.prepare import get, make
from skillfit.tasks import load_task
from tests.support.chat_server import RawServer
from tests.support.file_server import FileServer

pyarrow = pytest.importorskip("pyarrow")
SPLITS = "/microsoft/SkillOpt/main/data/searchqa_id_split"
TREE = "/api/datasets/lucadiliello/searchqa/tree/main"
FILE = "/datasets/lucadiliello/searchqa/resolve/main/data/train-00000-of-00001.parquet"


def rows(count: int = 5) -> list[dict[str, Any]]:
    """As in the published data set."""
    return [
        {
            "key": f"key{number}",
            "question": f"Question number {number} about thing {number * 7}?",
            "context": f"[DOC] [TLE] Thing {number * 7} [PAR] Words on number {number}.",
            "answers": [f"answer {number}"],
            "labels": [{"start": [1], "end": [2]}],
        }
        for number in range(count)
    ]


def parquet(records: list[dict[str, Any]]) -> bytes:
    from pyarrow import Table, parquet

    buffer = io.BytesIO()
    parquet.write_table(Table.from_pylist(records), buffer)
    return buffer.getvalue()


def ids(*keys: str) -> bytes:
    return json.dumps([{"id": key} for key in keys]).encode()


def published(data: bytes, sha256: str | None = None) -> dict[str, bytes]:
    oid = hashlib.sha256(data).hexdigest() if sha256 is None else sha256
    tree = [
        {"type": "directory", "path": "data"},
        {"type": "file", "path": "README.md", "size": 3},
        {"type": "file", "path": FILE.partition("main/")[2], "lfs": {"oid": oid}},
    ]
    return {
        TREE: json.dumps(tree).encode(),
        FILE: data,
        f"{SPLITS}/train/items.json": ids("key3", "key0"),
        f"{SPLITS}/val/items.json": ids("key1"),
        f"{SPLITS}/test/items.json": ids("key4"),
    }


def error_of(name: str, address: str) -> SkillfitError:
    """What `get` raises."""
    with pytest.raises(SkillfitError) as raised:
        get(name, mirror=address)
    return raised.value


def test_get_downloads_verifies_and_splits_as_published(no_user_data: Path) -> None:
    data = parquet(rows())
    with FileServer(published(data)) as server:
        result = get("searchqa", mirror=server.url)
    assert result.counts == {"train": 2, "selection": 1, "test": 1}
    assert result.licence == "not stated by the publisher"
    (file,) = result.files
    assert file.sha256 == hashlib.sha256(data).hexdigest() and file.verified
    task = load_task(EnvSection(tasks="searchqa", grader="normalized"))
    splits = {item.id: item.split for item in task.items}
    assert splits == {"key0": "train", "key3": "train", "key1": "selection", "key4": "test"}
    manifest = json.loads((no_user_data / "searchqa" / "skillfit-data.json").read_text())
    assert manifest["source"] == "https://huggingface.co/datasets/lucadiliello/searchqa"


def test_a_second_get_downloads_no_file_again() -> None:
    with FileServer(published(parquet(rows()))) as server:
        get("searchqa", mirror=server.url)
        get("searchqa", mirror=server.url)
        fetched = [path for path, _ in server.requests if path != TREE]
    assert len(fetched) == len(set(fetched)) == 4


def test_a_wrong_checksum_is_an_error() -> None:
    with FileServer(published(parquet(rows()), sha256="0" * 64)) as server:
        raised = error_of("searchqa", server.url)
    assert "but the publisher says 0000" in raised.message


def test_an_interrupted_download_leaves_no_file(no_user_data: Path) -> None:
    tree = published(b"")[TREE]
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(tree), tree)
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nPAR1"
    with RawServer(lambda number: cut if number else whole) as server:
        raised = error_of("searchqa", server.url.removesuffix("/v1"))
    assert "Cannot download" in raised.message and server.requests == 2
    assert not [path for path in no_user_data.rglob("*") if path.is_file()]


def test_an_unreachable_mirror_is_named_instead_of_the_hub() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    raised = error_of("searchqa", f"http://user:password@{address}/hub")
    assert raised.message.startswith(f"Cannot download http://{address}/hub/api/datasets/")
    assert "huggingface.co" not in raised.message and "password" not in str(raised)
    assert raised.exit_code == Exit.INFRASTRUCTURE


def test_a_mirror_without_the_data_is_named_instead_of_the_hub() -> None:
    with FileServer({}) as server:
        raised = error_of("searchqa", server.url)
    assert raised.message.startswith(server.url) and "answers 404" in raised.message


def test_a_mirror_without_a_list_of_files_is_reported() -> None:
    with FileServer({TREE: b"<html>Please sign in</html>"}) as server:
        raised = error_of("searchqa", server.url)
    assert raised.message.startswith(server.url)
    assert raised.message.endswith("does not answer with a list of files.")


@pytest.mark.parametrize("address", ["mirror", "ftp://mirror", "http://", "http://mirror:many"])
def test_an_invalid_mirror_address_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert error_of("searchqa", address).message == f"--mirror: {address!r} is not an address."
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert error_of("searchqa", "").message == f"HF_ENDPOINT: {address!r} is not an address."


def test_the_hub_token_is_sent_only_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_tests")
    with FileServer(published(parquet(rows())), private=("/api", "/datasets")) as server:
        get("searchqa", mirror=server.url)
        tokens = {path.split("/")[1]: token for path, token in server.requests}
    assert tokens == {
        "api": "Bearer hf_of_the_tests",
        "datasets": "Bearer hf_of_the_tests",
        "microsoft": "",
    }


def test_data_that_requires_an_account_is_an_error_with_the_address() -> None:
    with FileServer(published(parquet(rows())), private=("/api",)) as server:
        raised = error_of("searchqa", server.url)
    assert "answers 401" in raised.message
    assert "Request access" in raised.hint and "HF_TOKEN" in raised.hint


def test_a_reorganised_data_set_is_reported_by_name() -> None:
    tree = json.dumps([{"type": "file", "path": "other.bin"}]).encode()
    with FileServer({TREE: tree}) as server:
        raised = error_of("searchqa", server.url)
    assert "matches data/*.parquet" in raised.message and "other.bin" in raised.hint


@pytest.mark.parametrize("name", benchmark_names())
def test_the_error_without_network_names_the_download_and_its_folder(
    name: str, no_user_data: Path
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        raised = error_of(name, address)
    assert "Cannot download" in raised.message
    hint = raised.hint
    assert f"skillfit data make {name} --from {no_user_data / name / 'download'}" in hint
    assert "hf download" in hint or "https://" in hint
    assert find_benchmark(name).licence


def test_make_reads_a_local_copy_with_or_without_splits(tmp_path: Path) -> None:
    (tmp_path / "copy" / "data").mkdir(parents=True)
    (tmp_path / "copy" / "data" / "train.parquet").write_bytes(parquet(rows()))
    result = make("searchqa", tmp_path / "copy")
    assert result.counts == {"items": 5}
    for split, keys in {"train": ["key3"], "val": ["key1"], "test": ["key2", "key4"]}.items():
        (tmp_path / "splits" / split).mkdir(parents=True)
        (tmp_path / "splits" / split / "items.json").write_bytes(ids(*keys))
    result = make("searchqa", tmp_path / "copy", splits=tmp_path / "splits")
    assert result.counts == {"train": 1, "selection": 1, "test": 2}
    assert not (Path(result.folder) / "items.jsonl").exists()


def test_a_killed_preparation_leaves_no_partial_data(tmp_path: Path) -> None:
    """The process ends while it replaces the files of an earlier preparation."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    for split, key in {"train": "key3", "val": "key1", "test": "key2"}.items():
        (tmp_path / "splits" / split).mkdir(parents=True)
        (tmp_path / "splits" / split / "items.json").write_bytes(ids(key))
    make("searchqa", tmp_path / "rows.jsonl", splits=tmp_path / "splits")
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from skillfit.plugins.benchmarks.prepare import make\n"
        "def end(event, arguments):\n"
        "    if event == 'os.rename' and str(arguments[1]).endswith('val'):\n"
        "        os._exit(9)\n"
        "sys.addaudithook(end)\n"
        "make('searchqa', Path('rows.jsonl'), splits=Path('splits'))\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert killed.returncode == 9
    with pytest.raises(InputError, match="there is no data for searchqa"):
        load_task(EnvSection(tasks="searchqa", grader="normalized"))
    result = make("searchqa", tmp_path / "rows.jsonl", splits=tmp_path / "splits")
    assert result.counts == {"train": 1, "selection": 1, "test": 1}
    assert len(load_task(EnvSection(tasks="searchqa", grader="normalized")).items) == 3


def test_ids_missing_from_the_data_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    (tmp_path / "splits" / "train").mkdir(parents=True)
    (tmp_path / "splits" / "train" / "items.json").write_bytes(ids("key1", "key99"))
    with pytest.raises(InputError, match=r"1 of 2 ids .* key99"):
        make("searchqa", tmp_path / "rows.jsonl", splits=tmp_path / "splits")


def test_the_commands_print_licence_checksum_and_counts(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    runner = CliRunner()
    made = runner.invoke(app, ["data", "make", "searchqa", "--from", str(tmp_path / "rows.jsonl")])
    assert made.exit_code == 0, made.output
    assert "not stated by the publisher" in made.output and "5 items" in made.output
    assert hashlib.sha256((tmp_path / "rows.jsonl").read_bytes()).hexdigest() in made.output
    listed = runner.invoke(app, ["data", "list", "--json"])
    found = {one["name"]: one["prepared"] for one in json.loads(listed.output)["benchmarks"]}
    assert found["searchqa"] is True


def test_an_unknown_benchmark_is_an_error_with_its_name() -> None:
    with pytest.raises(InputError, match=r"'serchqa' is not a benchmark.*Did you mean 'searchqa'"):
        get("serchqa")


@pytest.mark.parametrize("name", benchmark_names())
def test_make_from_a_copy_of_the_sample_gives_the_same_items(name: str, tmp_path: Path) -> None:
    """The sample is in the benchmark's own format, with files beside it."""
    options = {"mode": "single"} if name == "spreadsheetbench" else {}
    benchmark = find_benchmark(name)
    shutil.copytree(benchmark.folder / "sample", tmp_path / "copy")
    result = make(name, tmp_path / "copy")
    judge = ScriptedModel([])
    sample = load_task(EnvSection(tasks=f"{name}:sample", task_args=options), judge=judge)
    made = load_task(EnvSection(tasks=name, task_args=options), judge=judge)
    assert sorted(item.id for item in made.items) == sorted(item.id for item in sample.items)
    assert sum(result.counts.values()) >= len(made.items)
    attached = [path for item in made.items for path in item.attachments()]
    assert all(path.is_relative_to(tmp_path / "copy") for path in attached)


@pytest.mark.parametrize("filters", [True, False], ids=["with filters", "before Python 3.11.4"])
@pytest.mark.parametrize("hostile", ["../outside.txt", "link"])
def test_an_archive_is_unpacked_only_inside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: str, filters: bool
) -> None:
    if not filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filters")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        fine = tarfile.TarInfo("folder/fine.txt")
        fine.size = 4
        archive.addfile(fine, io.BytesIO(b"fine"))
        bad = tarfile.TarInfo(hostile)
        if hostile == "link":
            bad.type, bad.linkname = tarfile.SYMTYPE, "../../etc"
        archive.addfile(bad)
    packed.seek(0)
    folder = tmp_path / "unpacked"
    with tarfile.open(fileobj=packed) as archive, pytest.raises(InputError, match="refused"):
        extract_tar(archive, folder)
    assert (folder / "folder" / "fine.txt").read_bytes() == b"fine"
    assert {path.name for path in tmp_path.iterdir()} == {"unpacked"}
