"""Prepare a benchmark's data: `get` downloads it, `make` takes a local copy.

The result is a folder that `env.tasks: NAME` reads: rows in the benchmark's own format, divided as
published (`train/`, `val/`, `test/`) or in one `items.jsonl`. Its file `skillfit-data.json` says
where they came from. Files that rows refer to stay where they are; images stored inside rows are
written to `files/`.

Public files come from the Hugging Face Hub or a fixed address. Files that are already in the
download folder are not fetched again.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from skillfit.atomic_write import hidden_folder, replacement, write_whole
from skillfit.errors import InfrastructureError, InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.registry import is_address
from skillfit.models.wire import image_media_type
from skillfit.plugins.benchmarks.benchmark import (
    FOLDERS_COLUMN,
    MANIFEST,
    Benchmark,
    HubFiles,
    PublishedFile,
    PublishedSplits,
    extract_tar,
    find_benchmark,
    has_splits,
    prepared,
)
from skillfit.tasks.item import Split
from skillfit.tasks.rows import Row, folder_rows

HUB = "https://huggingface.co"
_IMAGE_SUFFIXES = {"image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FileToDownload:
    """A file to download."""

    url: str
    path: str  # in the download folder
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that the data was made from, and its checksum."""

    path: str
    url: str  # empty: a local copy
    sha256: str
    verified: bool  # the publisher names this checksum


class Downloader:
    """Downloads into `folder`. `mirror` replaces scheme and host of every address."""

    def __init__(self, folder: Path, *, mirror: str = "", report: Report = lambda line: None):
        self._folder, self._report = folder, report
        self._mirror = _checked_mirror(mirror, "--mirror")
        self._hub_mirror = _checked_mirror(os.environ.get("HF_ENDPOINT", ""), "HF_ENDPOINT")
        # A connection that is kept open may be closed by the server just as it is used again.
        one_request_each = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(
            follow_redirects=True, timeout=60, trust_env=True, limits=one_request_each
        )

    def __enter__(self) -> Downloader:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def fetch(self, benchmark: Benchmark) -> list[DataFile]:
        """Return all files of the benchmark, archives unpacked beside them."""
        fetched = []
        for download in benchmark.downloads:
            for wanted in self._wanted(benchmark, download):
                fetched.append(self._fetch(benchmark, wanted))
                unpack(Path(fetched[-1].path))
        return fetched

    def fetch_splits(self, benchmark: Benchmark, splits: PublishedSplits) -> Path:
        """Return the published lists of ids, as a folder with train/, val/ and test/."""
        for split in ("train", "val", "test"):
            path = f"../splits/{split}/items.json"
            self._fetch(benchmark, FileToDownload(f"{splits.url}/{split}/items.json", path))
        return self._folder.parent / "splits"

    def _wanted(
        self, benchmark: Benchmark, download: HubFiles | PublishedFile
    ) -> list[FileToDownload]:
        if isinstance(download, PublishedFile):
            name = urlsplit(download.url).path.rpartition("/")[2]
            return [FileToDownload(download.url, name, download.sha256)]
        return self._hub_files(benchmark, download)

    def _hub_files(self, benchmark: Benchmark, download: HubFiles) -> list[FileToDownload]:
        """Read the Hub's listing, which names the size and, for big files, the SHA-256 of each
        file.
        """
        listing = f"{HUB}/api/datasets/{download.repo}/tree/{download.revision}?recursive=true"
        response = self._get(benchmark, listing)
        try:
            entries: list[JsonObject] = response.json()
            files = {entry["path"]: entry for entry in entries if entry.get("type") == "file"}
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise InfrastructureError(
                f"{_shown_address(str(response.url))} does not answer with a list of files.",
                hint=self._by_hand(benchmark),
            ) from error
        matching = [
            path
            for path in files
            if any(fnmatch.fnmatch(path, pattern) for pattern in download.patterns)
        ]
        if not matching:
            raise InputError(
                f"{benchmark.name}: no file of {download.repo} matches "
                f"{' or '.join(download.patterns)}.",
                hint=f"The data set may have been reorganised. It has: "
                f"{', '.join(sorted(files)[:10])}.",
            )
        root = f"{HUB}/datasets/{download.repo}/resolve/{download.revision}"
        return [
            FileToDownload(
                f"{root}/{quote(path)}", path, (files[path].get("lfs") or {}).get("oid", "")
            )
            for path in sorted(matching)
        ]

    def _fetch(self, benchmark: Benchmark, wanted: FileToDownload) -> DataFile:
        target = self._folder / wanted.path
        if not target.is_file():
            self._report(f"Downloading {_shown_address(self._request(wanted.url)[0])}")
            self._download(benchmark, wanted, target)
        found = sha256_of(target)
        if wanted.sha256 and found != wanted.sha256:
            raise InputError(
                f"{target}: the SHA-256 is {found}, but the publisher says {wanted.sha256}.",
                hint="Delete the file and run the command again.",
            )
        return DataFile(str(target), wanted.url, found, bool(wanted.sha256))

    def _download(self, benchmark: Benchmark, wanted: FileToDownload, target: Path) -> None:
        address, headers = self._request(wanted.url)
        try:
            with self._client.stream("GET", address, headers=headers) as response:
                self._check(benchmark, response, address)
                with replacement(target) as file:
                    for chunk in response.iter_bytes():
                        file.write(chunk)
        except httpx.TransportError as error:
            raise self._unreachable(benchmark, address, error) from error

    def _get(self, benchmark: Benchmark, url: str) -> httpx.Response:
        address, headers = self._request(url)
        try:
            response = self._client.get(address, headers=headers)
        except httpx.TransportError as error:
            raise self._unreachable(benchmark, address, error) from error
        self._check(benchmark, response, address)
        return response

    def _request(self, url: str) -> tuple[str, dict[str, str]]:
        """Return the address under the mirror, if there is one, and the Hub's token for the Hub
        alone.
        """
        mirror = self._mirror or (self._hub_mirror if url.startswith(HUB) else "")
        token = os.environ.get("HF_TOKEN") if url.startswith(HUB) else None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if mirror:
            there, asked = urlsplit(mirror), urlsplit(url)
            path = there.path.rstrip("/") + asked.path
            url = urlunsplit((there.scheme, there.netloc, path, asked.query, ""))
        return url, headers

    def _check(self, benchmark: Benchmark, response: httpx.Response, address: str) -> None:
        if response.is_success:
            return
        hint = self._by_hand(benchmark)
        if response.status_code in (401, 403):
            hint = (
                f"Request access at {benchmark.homepage}, then set HF_TOKEN to a token of your "
                "Hugging Face account."
            )
        raise InputError(f"{_shown_address(address)} answers {response.status_code}.", hint=hint)

    def _unreachable(
        self, benchmark: Benchmark, address: str, error: httpx.TransportError
    ) -> InfrastructureError:
        return InfrastructureError(
            f"Cannot download {_shown_address(address)}: {error or type(error).__name__}.",
            hint=self._by_hand(benchmark),
        )

    def _by_hand(self, benchmark: Benchmark) -> str:
        """Return what to download elsewhere, and where to put it."""
        lines = [
            f"Without network: on another machine download the following, copy it to "
            f"{self._folder}, and run `skillfit data make {benchmark.name} --from {self._folder}`."
        ]
        for download in benchmark.downloads:
            if isinstance(download, PublishedFile):
                lines.append(f"  {download.url}")
            else:
                patterns = " ".join(f"--include '{pattern}'" for pattern in download.patterns)
                lines.append(
                    f"  hf download {download.repo} --repo-type dataset {patterns} --local-dir DIR"
                )
        if benchmark.splits is not None:
            lines.append(
                f"  the published splits (optional, with --splits DIR): "
                f"{benchmark.splits.url}/{{train,val,test}}/items.json"
            )
        return "\n".join(lines)


def _checked_mirror(address: str, name: str) -> str:
    """Return the address of a mirror. `name` is the option or variable that it comes from."""
    if address and not is_address(address):
        raise InputError(
            f"{name}: {address.rpartition('@')[2]!r} is not an address.",
            hint="Give a complete one, for example https://mirror.example.com.",
        )
    return address


def _shown_address(address: str) -> str:
    """Return an address for a message: without a user name and password."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(path: Path) -> None:
    """Unpack a .zip, .tar or .tar.gz beside itself, unless that was done before."""
    done = path.with_name(f"{path.name}.unpacked")
    if done.exists():
        return
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(path.parent)
    elif path.name.endswith((".tar", ".tar.gz", ".tgz")):
        with tarfile.open(path) as archive:
            extract_tar(archive, path.parent)
    else:
        return
    done.touch()


_FOLDERS: Mapping[Split | None, str] = {
    "train": "train/items.jsonl",
    "selection": "val/items.jsonl",
    "test": "test/items.jsonl",
    None: "items.jsonl",
}
_RECORDED = (".parquet", ".csv", ".zip", ".gz", ".tgz", ".tar")


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
    fetched = [DataFile(str(path), "", sha256_of(path), False) for path in files]
    return _prepare(benchmark, source.resolve(), splits, fetched, str(source.resolve()))


def _files(source: Path) -> list[Path]:
    """List the files whose checksums are recorded: all at the top of the folder, and big ones below
    it.
    """
    if source.is_file():
        return [source]
    return sorted(
        path
        for path in source.rglob("*")
        if path.is_file() and (path.parent == source or path.suffix in _RECORDED)
    )


def _prepare(
    benchmark: Benchmark,
    source: Path,
    splits: Path | None,
    files: Sequence[DataFile],
    origin: str,
) -> Prepared:
    folder = prepared(benchmark.name)
    folder.mkdir(parents=True, exist_ok=True)
    divided = _divided(benchmark, source, splits)
    counts = _write(divided, folder, source if source.is_dir() else source.parent)
    result = Prepared(
        name=benchmark.name,
        title=benchmark.title,
        licence=benchmark.licence,
        homepage=benchmark.homepage,
        folder=str(folder),
        source=origin,
        counts=counts,
        files=tuple(files),
    )
    text = json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n"
    write_whole(folder / MANIFEST, text.encode())
    return result


def _divided(benchmark: Benchmark, source: Path, splits: Path | None) -> Iterator[Row]:
    """Yield the rows with their splits: the source's own, or by the lists of ids in `splits`."""
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
    """Write the rows of each split. They replace an earlier preparation when all are written. Until
    the caller writes the manifest, the folder does not count as prepared.
    """
    with hidden_folder(folder) as fresh:
        counts = _write_splits(rows, fresh, root)
        if not counts:
            raise InputError("There are no rows to prepare.")
        (folder / MANIFEST).unlink(missing_ok=True)
        for name in ("train", "val", "test", "files"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "items.jsonl").unlink(missing_ok=True)
        for child in fresh.iterdir():
            child.replace(folder / child.name)
    return counts


def _write_splits(rows: Iterable[Row], folder: Path, root: Path) -> dict[str, int]:
    """Write the rows into a new folder. Returns how many each split has."""
    counts: Counter[str] = Counter()
    open_files: dict[Split | None, Any] = {}
    try:
        for row in rows:
            if row.split not in open_files:
                path = folder / _FOLDERS[row.split]
                path.parent.mkdir(parents=True, exist_ok=True)
                open_files[row.split] = path.open("w", encoding="utf-8")
            line = json.dumps(_stored(row, folder, root), ensure_ascii=False, default=str)
            open_files[row.split].write(line + "\n")
            counts[row.split or "items"] += 1
    finally:
        for file in open_files.values():
            file.close()
    return {split or "items": counts[split or "items"] for split in _FOLDERS if split in open_files}


def _stored(row: Row, folder: Path, root: Path) -> JsonObject:
    """Return the row as it is written, with the folders that its relative paths start from and must
    be in. Images that are part of the row become files.
    """
    values = {name: _image(value, folder) for name, value in row.values.items()}
    if any(value is not row.values[name] for name, value in values.items()):
        files = str((folder.parent / "files").resolve())
        return {**values, FOLDERS_COLUMN: [files, files]}
    return {**values, FOLDERS_COLUMN: [str(row.base.resolve()), str(root.resolve())]}


def _image(value: Any, folder: Path) -> Any:
    """Read an image as the Hub stores it: its bytes and a file name."""
    if isinstance(value, list):
        stored = [_image(part, folder) for part in value]
        return value if stored == value else stored
    if not isinstance(value, Mapping) or not isinstance(value.get("bytes"), bytes):
        return value
    data = value["bytes"]
    suffix = Path(str(value.get("path") or "")).suffix or _image_suffix(data)
    path = folder / "files" / f"{sha256(data).hexdigest()[:16]}{suffix}"
    write_whole(path, data)
    return path.name


def _image_suffix(data: bytes) -> str:
    return _IMAGE_SUFFIXES.get(image_media_type(data) or "", ".png")
