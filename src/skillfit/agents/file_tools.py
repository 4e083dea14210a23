"""The tools of the tools agent that look at files: read, write, list, search.

They run in skillfit's own process and can use nothing outside the workspace and the corpus.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skillfit.agents.workspace import CORPUS, Workspace

PAGE = 20_000  # characters of a file that one `read` returns, and of any tool's result
_MATCHES = 100  # lines that one `search` returns
_LINE = 500  # characters of a matching line
_NAMES = 2_000  # files that one `list` names


@dataclass(frozen=True, slots=True)
class FileTools:
    """Each method is a tool. Misuse raises ValueError or OSError, with a message for the model."""

    workspace: Workspace
    search_seconds: float = 60.0

    def read(self, name: str, first: int) -> str:
        """A page of a text file, from line `first` on (1 is the first)."""
        path = _regular_file(self.workspace.inside(name), name)
        shown: list[str] = []
        size, number = 0, 0
        with path.open(encoding="utf-8", errors="replace", newline="") as lines:
            while line := lines.readline(PAGE):
                number += 1
                if number < first:
                    _skip_rest(line, lines)
                    continue
                if size + len(line) > PAGE and shown:
                    return "".join(shown) + f"\n[more follows: read on with offset {number}]"
                shown.append(line)
                size += len(line)
                if left := _skip_rest(line, lines):
                    shown.append(f"[… {left} more characters in line {number}]\n")
        if number < first and first > 1:
            raise ValueError(f"{name} has only {number} lines")
        return "".join(shown)

    def write(self, name: str, content: str) -> str:
        if self.workspace.in_corpus(name):
            raise ValueError(f"{CORPUS}/ cannot be written to")
        path = self.workspace.inside(name)
        if path.exists() and not path.is_file():
            raise ValueError(f"{name} is not a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return f"wrote {len(content)} characters"

    def list(self, name: str) -> str:
        """All files in a folder. The corpus is listed only when it is asked for."""
        names: list[str] = []
        for found, _ in self._files(name, with_corpus=False):
            names.append(found)
            if len(names) > _NAMES:
                names[-1] = f"[more than {_NAMES} files: list a folder in it]"
                break
        if self.workspace.corpus is not None and name in ("", "."):
            names.append(f"{CORPUS}/ (read-only documents; list this folder to see them)")
        return "\n".join(names) or "(empty)"

    def search(self, text: str, name: str) -> str:
        """Lines of text files that contain a text, whatever its case."""
        wanted, matches, count = text.casefold(), list[str](), 0
        give_up = time.monotonic() + self.search_seconds
        for found, path in self._files(name, with_corpus=True):
            if time.monotonic() > give_up:
                matches.append(f"[… stopped after {self.search_seconds:g} s, at {found}]")
                break
            with path.open(encoding="utf-8", errors="replace") as lines:
                for number, line in enumerate(lines, 1):
                    if wanted in line.casefold():
                        count += 1
                        if count <= _MATCHES:
                            matches.append(f"{found}:{number}: {line.rstrip()[:_LINE]}")
        if count > _MATCHES:
            matches.append(f"[… {count - _MATCHES} more]")
        return "\n".join(matches) or "no match"

    def _files(self, name: str, *, with_corpus: bool) -> Iterator[tuple[str, Path]]:
        """Regular files at or under a path, with the name the agent knows them by, in order.
        Symbolic links are not followed.
        """
        top = self.workspace.inside(name)
        if not top.exists():
            raise ValueError(f"there is no file or folder {name}")
        in_corpus = self.workspace.in_corpus(name)
        root = self.workspace.corpus if in_corpus else self.workspace.work
        assert root is not None  # in_corpus says so
        for path in _walk(top):
            relative = path.relative_to(root).as_posix()
            yield (f"{CORPUS}/{relative}" if in_corpus else relative), path
        if with_corpus and self.workspace.corpus is not None and name in ("", "."):
            yield from self._files(CORPUS, with_corpus=False)


def _regular_file(path: Path, name: str) -> Path:
    """Only regular files are opened: reading a pipe would block the whole run."""
    if not path.is_file():
        raise ValueError(f"there is no file {name}")
    return path


def _walk(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
        return
    for parent, folders, files in os.walk(top):
        folders.sort()
        for name in sorted(files):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _skip_rest(line: str, lines: object) -> int:
    """Read on to the end of a line that is longer than a page; how many characters that were."""
    skipped = 0
    while line and not line.endswith(("\n", "\r")):
        line = lines.readline(PAGE)  # type: ignore[attr-defined]
        skipped += len(line)
    return skipped
