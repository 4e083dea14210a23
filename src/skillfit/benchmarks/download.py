"""Fetch a benchmark's public files: from the Hugging Face Hub or a fixed address.

Files that are already in the download folder are not fetched again.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from skillfit.benchmarks.benchmark import Benchmark, HubFiles, PublishedFile, PublishedSplits
from skillfit.errors import InputError

HUB = "https://huggingface.co"
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to download."""

    url: str
    path: str  # in the download folder
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file in the download folder and its checksum."""

    path: Path
    url: str
    sha256: str
    verified: bool  # the publisher names this checksum


class Downloader:
    """Downloads into `folder`. `mirror` replaces scheme and host of every address."""

    def __init__(self, folder: Path, *, mirror: str = "", report: Report = lambda line: None):
        self._folder, self._mirror, self._report = folder, mirror, report
        self._client = httpx.Client(follow_redirects=True, timeout=60, trust_env=True)

    def __enter__(self) -> Downloader:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def fetch(self, benchmark: Benchmark) -> list[Fetched]:
        """All files of the benchmark, archives unpacked beside them."""
        fetched = []
        for download in benchmark.downloads:
            for wanted in self._wanted(benchmark, download):
                fetched.append(self._fetch(benchmark, wanted))
                unpack(fetched[-1].path)
        return fetched

    def fetch_splits(self, benchmark: Benchmark, splits: PublishedSplits) -> Path:
        """The published lists of ids, as a folder with train/, val/ and test/."""
        for split in ("train", "val", "test"):
            path = f"../splits/{split}/items.json"
            self._fetch(benchmark, Wanted(f"{splits.url}/{split}/items.json", path))
        return self._folder.parent / "splits"

    def _wanted(self, benchmark: Benchmark, download: HubFiles | PublishedFile) -> list[Wanted]:
        if isinstance(download, PublishedFile):
            name = urlsplit(download.url).path.rpartition("/")[2]
            return [Wanted(download.url, name, download.sha256)]
        return self._hub_files(benchmark, download)

    def _hub_files(self, benchmark: Benchmark, download: HubFiles) -> list[Wanted]:
        """The Hub's listing names size and, for big files, the SHA-256 of each file."""
        listing = f"{HUB}/api/datasets/{download.repo}/tree/{download.revision}?recursive=true"
        entries = self._get(benchmark, listing).json()
        files = {entry["path"]: entry for entry in entries if entry.get("type") == "file"}
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
            Wanted(f"{root}/{quote(path)}", path, (files[path].get("lfs") or {}).get("oid", ""))
            for path in sorted(matching)
        ]

    def _fetch(self, benchmark: Benchmark, wanted: Wanted) -> Fetched:
        target = self._folder / wanted.path
        if not target.is_file():
            self._report(f"Downloading {wanted.url}")
            self._download(benchmark, wanted, target)
        found = sha256_of(target)
        if wanted.sha256 and found != wanted.sha256:
            raise InputError(
                f"{target}: the SHA-256 is {found}, but the publisher says {wanted.sha256}.",
                hint="Delete the file and run the command again.",
            )
        return Fetched(target, wanted.url, found, bool(wanted.sha256))

    def _download(self, benchmark: Benchmark, wanted: Wanted, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.part")
        try:
            address, headers = self._request(wanted.url)
            with self._client.stream("GET", address, headers=headers) as response:
                self._check(benchmark, response, wanted.url)
                with partial.open("wb") as file:
                    for chunk in response.iter_bytes():
                        file.write(chunk)
        except httpx.TransportError as error:
            raise self._unreachable(benchmark, wanted.url, error) from error
        partial.replace(target)

    def _get(self, benchmark: Benchmark, url: str) -> httpx.Response:
        address, headers = self._request(url)
        try:
            response = self._client.get(address, headers=headers)
        except httpx.TransportError as error:
            raise self._unreachable(benchmark, url, error) from error
        self._check(benchmark, response, url)
        return response

    def _request(self, url: str) -> tuple[str, dict[str, str]]:
        """The address under the mirror, if there is one, and the Hub's token for the Hub alone."""
        mirror = self._mirror or (os.environ.get("HF_ENDPOINT", "") if url.startswith(HUB) else "")
        token = os.environ.get("HF_TOKEN") if url.startswith(HUB) else None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if mirror:
            there, asked = urlsplit(mirror), urlsplit(url)
            path = there.path.rstrip("/") + asked.path
            url = urlunsplit((there.scheme, there.netloc, path, asked.query, ""))
        return url, headers

    def _check(self, benchmark: Benchmark, response: httpx.Response, url: str) -> None:
        if response.is_success:
            return
        hint = self._by_hand(benchmark)
        if response.status_code in (401, 403):
            hint = (
                f"Request access at {benchmark.homepage}, then set HF_TOKEN to a token of your "
                "Hugging Face account."
            )
        raise InputError(f"{url} answers {response.status_code}.", hint=hint)

    def _unreachable(
        self, benchmark: Benchmark, url: str, error: httpx.TransportError
    ) -> InputError:
        return InputError(
            f"Cannot download {url}: {error or type(error).__name__}.",
            hint=self._by_hand(benchmark),
        )

    def _by_hand(self, benchmark: Benchmark) -> str:
        """What to download elsewhere, and where to put it."""
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
            archive.extractall(path.parent, filter="data")
    else:
        return
    done.touch()
