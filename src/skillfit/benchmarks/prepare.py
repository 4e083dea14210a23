"""Prepare a benchmark's data: `get` downloads it, `make` takes a local copy.

The result is a folder that `env.tasks: NAME` reads: rows in the benchmark's own format, divided as
published (`train/`, `val/`, `test/`) or in one `items.jsonl`. Its file `skillfit-data.json` says
where they came from. Files that rows refer to stay where they are; images stored inside rows are
written to `files/`.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from skillfit.benchmarks.benchmark import (
    FOLDERS_COLUMN,
    MANIFEST,
    Benchmark,
    find_benchmark,
    has_splits,
    prepared,
)
from skillfit.benchmarks.download import Downloader, Fetched, Report, sha256_of, unpack
from skillfit.errors import InputError
from skillfit.skill.document import write_whole
from skillfit.tasks.item import Split
from skillfit.tasks.rows import Row, folder_rows

_FOLDERS: Mapping[Split | None, str] = {
    "train": "train/items.jsonl",
    "selection": "val/items.jsonl",
    "test": "test/items.jsonl",
    None: "items.jsonl",
}
_RECORDED = (".parquet", ".csv", ".zip", ".gz", ".tgz", ".tar")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that the data was made from."""

    path: str
    url: str
    sha256: str
    verified: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `get` and `make` produced; also the content of `skillfit-data.json`."""

    name: str
    title: str
    licence: str
    homepage: str
    folder: str
    source: str
    counts: dict[str, int]
    files: tuple[DataFile, ...]


def get(name: str, *, mirror: str = "", report: Report = lambda line: None) -> Prepared:
    """Download the public data set and prepare it, with the published splits if there are any."""
    benchmark = find_benchmark(name)
    downloads = prepared(name) / "download"
    with Downloader(downloads, mirror=mirror, report=report) as downloader:
        fetched = downloader.fetch(benchmark)
        splits = None
        if benchmark.splits is not None:
            splits = downloader.fetch_splits(benchmark, benchmark.splits)
    return _prepare(benchmark, downloads, splits, fetched, benchmark.homepage)


def make(name: str, source: Path, *, splits: Path | None = None) -> Prepared:
    """Prepare a local copy in the publisher's layout, or in train/, val/ and test/ folders."""
    benchmark = find_benchmark(name)
    if not source.exists():
        raise InputError(f"{source}: no such file or folder.")
    files = _files(source)
    if source.is_dir():
        for path in files:
            unpack(path)
    fetched = [Fetched(path, "", sha256_of(path), False) for path in files]
    return _prepare(benchmark, source.resolve(), splits, fetched, str(source.resolve()))


def _files(source: Path) -> list[Path]:
    """Files whose checksums are recorded: all at the top of the folder, and big ones below it."""
    if source.is_file():
        return [source]
    return sorted(
        path
        for path in source.rglob("*")
        if path.is_file() and (path.parent == source or path.suffix in _RECORDED)
    )


def _prepare(
    benchmark: Benchmark, source: Path, splits: Path | None, fetched: list[Fetched], origin: str
) -> Prepared:
    folder = prepared(benchmark.name)
    folder.mkdir(parents=True, exist_ok=True)
    divided = _divided(benchmark, source, splits)
    counts = _write(divided, folder, source if source.is_dir() else source.parent)
    files = tuple(DataFile(str(f.path), f.url, f.sha256, f.verified) for f in fetched)
    result = Prepared(
        name=benchmark.name,
        title=benchmark.title,
        licence=benchmark.licence,
        homepage=benchmark.homepage,
        folder=str(folder),
        source=origin,
        counts=counts,
        files=files,
    )
    text = json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n"
    write_whole(folder / MANIFEST, text.encode())
    return result


def _divided(benchmark: Benchmark, source: Path, splits: Path | None) -> Iterator[Row]:
    """The rows with their splits: the source's own, or by the lists of ids in `splits`."""
    if has_splits(source) and splits is None:
        yield from folder_rows(source)
        return
    rows = benchmark.read(source)
    if splits is None:
        yield from rows
        return
    wanted = {benchmark.row_id(row): row.split for row in folder_rows(splits)}
    missing = set(wanted)
    for row in rows:
        key = benchmark.row_id(row)
        if key in wanted:
            missing.discard(key)
            yield replace(row, split=wanted[key])
    if missing:
        some = ", ".join(sorted(missing)[:3])
        raise InputError(
            f"{benchmark.name}: {len(missing)} of {len(wanted)} ids of the splits in {splits} are "
            f"not in {source}: {some}{', …' if len(missing) > 3 else ''}.",
            hint="Check that data and splits belong together, or leave --splits out.",
        )


def _write(rows: Iterable[Row], folder: Path, root: Path) -> dict[str, int]:
    """Write the rows of each split; what an earlier preparation left is replaced."""
    fresh = folder / "preparing"
    shutil.rmtree(fresh, ignore_errors=True)
    counts: Counter[str] = Counter()
    open_files: dict[Split | None, Any] = {}
    try:
        for row in rows:
            if row.split not in open_files:
                path = fresh / _FOLDERS[row.split]
                path.parent.mkdir(parents=True, exist_ok=True)
                open_files[row.split] = path.open("w", encoding="utf-8")
            line = json.dumps(_stored(row, fresh, root), ensure_ascii=False, default=str)
            open_files[row.split].write(line + "\n")
            counts[row.split or "items"] += 1
    finally:
        for file in open_files.values():
            file.close()
    if not counts:
        raise InputError("There are no rows to prepare.")
    for name in ("train", "val", "test", "files"):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "items.jsonl").unlink(missing_ok=True)
    for child in fresh.iterdir():
        child.replace(folder / child.name)
    fresh.rmdir()
    return {split or "items": counts[split or "items"] for split in _FOLDERS if split in open_files}


def _stored(row: Row, folder: Path, root: Path) -> dict[str, object]:
    """The row as it is written, with the folders that its relative paths start from and must be in.
    Images that are part of the row become files.
    """
    values = {name: _image(value, folder) for name, value in row.values.items()}
    if any(value is not row.values[name] for name, value in values.items()):
        files = str((folder.parent / "files").resolve())
        return {**values, FOLDERS_COLUMN: [files, files]}
    return {**values, FOLDERS_COLUMN: [str(row.base.resolve()), str(root.resolve())]}


def _image(value: Any, folder: Path) -> Any:
    """The Hub stores an image as its bytes and a file name."""
    if isinstance(value, list):
        stored = [_image(part, folder) for part in value]
        return value if stored == value else stored
    if not isinstance(value, Mapping) or not isinstance(value.get("bytes"), bytes):
        return value
    data = value["bytes"]
    suffix = Path(str(value.get("path") or "")).suffix or _suffix(data)
    path = folder / "files" / f"{sha256(data).hexdigest()[:16]}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path.name


def _suffix(data: bytes) -> str:
    if data.startswith(b"\xff\xd8"):
        return ".jpg"
    return ".webp" if data[8:12] == b"WEBP" else ".png"
