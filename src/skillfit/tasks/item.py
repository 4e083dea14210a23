"""Items: the task instances a skill is measured on. Big rows stay on disk and are read at the moment of use."""

from __future__ import annotations

import hashlib
import json
import mimetypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from skillfit.models.protocol import Image, Message

Split = Literal["train", "selection", "test"]

# canonical name -> the columns it may come from, unless env.fields says otherwise
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "id": ("id",),
    "input": ("input", "prompt"),
    "messages": ("messages",),
    "answers": ("answers", "answer", "expected"),
    "type": ("type",),
    "split": ("split",),
    "files": ("files",),
    "images": ("images", "image"),
    "reference": ("reference",),
    "weight": ("weight",),
}


@dataclass(frozen=True, slots=True)
class RowAt:
    """Where an item's JSON row stands in a JSONL file, for rows too big to keep in memory by the thousand."""

    path: Path
    offset: int
    length: int

    def read(self) -> dict[str, Any]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return dict(json.loads(file.read(self.length)))


@dataclass(frozen=True, slots=True)
class Item:
    """One task instance. `row` holds the canonical fields: input, messages, answers, reference, files, images, and anything else
    the user's grader wants. Read them through the properties; a `RowAt` row is loaded anew at each read."""

    id: str
    row: Mapping[str, Any] | RowAt
    type: str = ""
    split: Split | None = None
    weight: float = 1.0
    fields: Mapping[str, str] = field(default_factory=dict)  # canonical name -> the user's column, from env.fields
    base: Path = Path()  # folder that relative files and images stand in
    digest: str = ""  # the fingerprint, when the loader has computed it
    _content: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.row, RowAt):
            object.__setattr__(self, "_content", canonical(self.row, self.fields))

    def content(self) -> Mapping[str, Any]:
        """The whole row under canonical names."""
        return canonical(self.row.read(), self.fields) if isinstance(self.row, RowAt) else self._content

    def loaded(self) -> Item:
        """The same item with its row in memory, for whoever reads several fields."""
        return replace(self, row=self.row.read()) if isinstance(self.row, RowAt) else self

    @property
    def input(self) -> str:
        """The task text. A row with `messages` has its user turns joined here."""
        content = self.content()
        if "input" in content:
            return str(content["input"])
        return "\n\n".join(str(turn.get("content", "")) for turn in content.get("messages", ()) if turn.get("role") == "user")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation to answer: the row's turns, or the input as one user turn; images go with the last user turn."""
        turns = [Message(turn["role"], str(turn.get("content", ""))) for turn in self.content().get("messages", ())]
        turns = turns or [Message("user", self.input)]
        if images := self.images:
            last = max((at for at, turn in enumerate(turns) if turn.role == "user"), default=len(turns) - 1)
            turns[last] = replace(turns[last], images=images)
        return tuple(turns)

    @property
    def answers(self) -> tuple[str, ...]:
        """Gold answers, any of which will do; empty when the grader needs none."""
        answers = self.content().get("answers", ())
        listed = answers if isinstance(answers, (list, tuple)) else [answers]
        given = [answer for answer in listed if answer is not None]
        return tuple(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False) for answer in given)

    @property
    def reference(self) -> str:
        """Hidden reference text: analysts may read it for training items, the agent never does."""
        return str(self.content().get("reference", ""))

    @property
    def files(self) -> dict[str, Path]:
        """Files to place in the agent's workspace: name there -> where the file stands now."""
        files = self.content().get("files", ())
        if isinstance(files, Mapping):
            return {str(name): self.base / str(path) for name, path in files.items()}
        paths = [Path(path) for path in ([files] if isinstance(files, str) else files)]
        return {path.name if path.is_absolute() or ".." in path.parts else path.as_posix(): self.base / path for path in paths}

    @property
    def images(self) -> tuple[Image, ...]:
        images = self.content().get("images", ())
        paths = [self.base / str(path) for path in ([images] if isinstance(images, str) else images)]
        return tuple(Image(path, mimetypes.guess_type(path.name)[0] or "image/png") for path in paths)

    def attachments(self) -> tuple[Path, ...]:
        """Every file and image the item needs."""
        return (*self.files.values(), *(image.path for image in self.images))

    def fingerprint(self) -> str:
        """Stable hash of id, row and attached files: changes with the item's meaning, not when it moves to another split."""
        if self.digest:
            return self.digest
        meaning = {name: value for name, value in self.content().items() if name not in ("split", "weight")}
        attached = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.attachments()]
        return stable_hash([self.id, meaning, attached] if attached else [self.id, meaning])


def canonical(row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """The row with its columns renamed to canonical names; others keep theirs. A column that holds nothing is not there."""
    found = {}
    for name, usual in COLUMNS.items():
        columns = (fields[name],) if name in fields else usual
        column = next((column for column in columns if row.get(column) not in (None, "")), None)
        if column is not None:
            found[name] = column
    claimed = {*found.values(), *COLUMNS}
    rest = {name: value for name, value in row.items() if name not in claimed}
    return {name: row[column] for name, column in found.items()} | rest


def weights_of(items: Iterable[Item]) -> dict[str, float]:
    """Item id -> how much it counts, of the items that don't count 1."""
    return {item.id: item.weight for item in items if item.weight != 1.0}


def stable_hash(value: Any) -> str:
    """Sixteen hex digits that depend on the value alone, not on key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode()).hexdigest()[:16]
