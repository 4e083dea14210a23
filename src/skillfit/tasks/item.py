"""Items: the task instances a skill is measured on. Big rows stay on disk and are read at the
moment of use.

What an agent did on an item (the attempt, with its trajectory) and what a grader thinks of it (the
score).
"""

from __future__ import annotations

import hashlib
import json
import math
import mimetypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, SupportsFloat

from skillfit.errors import Exit, SkillfitError
from skillfit.models.protocol import Image, Message, Usage

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
    """Where an item's JSON row stands in a JSONL file, for rows too big to keep in memory by the
    thousand.
    """

    path: Path
    offset: int
    length: int

    def read(self) -> dict[str, Any]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return dict(json.loads(file.read(self.length)))


@dataclass(frozen=True, slots=True)
class Item:
    """One task instance. `row` holds the canonical fields: input, messages, answers, reference,
    files, images, and anything else the user's grader wants. Read them through the properties; a
    `RowAt` row is loaded anew at each read.
    """

    id: str
    row: Mapping[str, Any] | RowAt
    type: str = ""
    split: Split | None = None
    weight: float = 1.0
    fields: Mapping[str, str] = field(
        default_factory=dict
    )  # canonical name -> the user's column, from env.fields
    base: Path = Path()  # folder that relative files and images stand in
    digest: str = ""  # the fingerprint, when the loader has computed it
    _content: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.row, RowAt):
            object.__setattr__(self, "_content", canonical(self.row, self.fields))

    def content(self) -> Mapping[str, Any]:
        """The whole row under canonical names."""
        return (
            canonical(self.row.read(), self.fields)
            if isinstance(self.row, RowAt)
            else self._content
        )

    def loaded(self) -> Item:
        """The same item with its row in memory, for whoever reads several fields."""
        return replace(self, row=self.row.read()) if isinstance(self.row, RowAt) else self

    @property
    def input(self) -> str:
        """The task text. A row with `messages` has its user turns joined here."""
        content = self.content()
        if "input" in content:
            return str(content["input"])
        return "\n\n".join(
            str(turn.get("content", ""))
            for turn in content.get("messages", ())
            if turn.get("role") == "user"
        )

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation to answer: the row's turns, or the input as one user turn; images go
        with the last user turn.
        """
        turns = [
            Message(turn["role"], str(turn.get("content", "")))
            for turn in self.content().get("messages", ())
        ]
        turns = turns or [Message("user", self.input)]
        if images := self.images:
            last = max(
                (at for at, turn in enumerate(turns) if turn.role == "user"), default=len(turns) - 1
            )
            turns[last] = replace(turns[last], images=images)
        return tuple(turns)

    @property
    def answers(self) -> tuple[str, ...]:
        """Gold answers, any of which will do; empty when the grader needs none."""
        answers = self.content().get("answers", ())
        listed = answers if isinstance(answers, (list, tuple)) else [answers]
        given = [answer for answer in listed if answer is not None]
        return tuple(
            answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
            for answer in given
        )

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
        return {
            path.name if path.is_absolute() or ".." in path.parts else path.as_posix(): self.base
            / path
            for path in paths
        }

    @property
    def images(self) -> tuple[Image, ...]:
        """The row's images. A column `image_detail` says how finely the model should look."""
        content = self.content()
        images = content.get("images", ())
        detail = content.get("image_detail", "auto")
        found = []
        for name in [images] if isinstance(images, str) else images:
            path = self.base / str(name)
            media_type = mimetypes.guess_type(path.name)[0] or "image/png"
            found.append(Image(path, media_type, detail))
        return tuple(found)

    def attachments(self) -> tuple[Path, ...]:
        """Every file and image the item needs."""
        return (*self.files.values(), *(image.path for image in self.images))

    def fingerprint(self) -> str:
        """Stable hash of id, row and attached files: changes with the item's meaning, not when it
        moves to another split.
        """
        if self.digest:
            return self.digest
        meaning = {
            name: value for name, value in self.content().items() if name not in ("split", "weight")
        }
        attached = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.attachments()]
        return stable_hash([self.id, meaning, attached] if attached else [self.id, meaning])


def canonical(row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """The row with its columns renamed to canonical names; others keep theirs. A column that holds
    nothing is not there.
    """
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
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, ensure_ascii=False, default=str).encode()
    ).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened in a trajectory. The skill and the item's own text are not repeated
    here: renderers know them.
    """

    kind: Literal["message", "tool_call", "tool_result", "note"]
    text: str
    role: str = "assistant"
    name: str = ""  # the tool


@dataclass(frozen=True, slots=True)
class Attempt:
    answer: str
    steps: tuple[Step, ...] = ()
    workspace: str = ""  # folder with the files the agent left, while graders run; gone afterwards
    skill_read: bool | None = None  # None: the agent cannot tell
    usage: Usage = field(default_factory=Usage)
    bare: bool = (
        False  # the answer stands alone (a gold answer being proved): graders extract nothing
    )


@dataclass(frozen=True, slots=True)
class Score:
    """`hard` is 0/1 or a fraction of checks passed; `soft` is a graded 0..1 (equal to hard where
    the grader has none). `feedback` may reach the optimizer; `evidence` (judge words, patterns,
    gold) never does.
    """

    hard: float
    soft: float = -1.0  # filled with hard when not given
    feedback: str = ""
    evidence: tuple[str, ...] = ()
    trained: tuple[float, float] | None = (
        None  # hard and soft by the grader trained on, beside a score of the ship grader
    )

    def __post_init__(self) -> None:
        if self.soft < 0:
            object.__setattr__(self, "soft", self.hard)


class TaskFailure(SkillfitError):
    """The machinery around an item broke (a program, a function, a sandbox): a failed rollout,
    never a score.
    """

    exit_code = Exit.INFRASTRUCTURE

    def __init__(self, kind: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.kind, self.message), {"hint": self.hint})


class Grader(Protocol):
    """Scores an attempt. Raises `ModelError` when a judge could not be reached: that is a failure,
    not a zero.
    """

    async def grade(self, item: Item, attempt: Attempt) -> Score: ...

    def patterns(self) -> tuple[str, ...]:
        """What would give the grader away if it stood in a skill (regexes, rubric lines): the leak
        check reads it.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Settings that make this grader this grader, for the run's identity."""
        ...


def as_score(value: Any, *, source: str) -> Score:
    """What a user's function or program gave back, as a score: a number in 0..1, a bool, (score,
    feedback or soft), a mapping with `score` or `hard`, or a Score. Anything else is a failure of
    `source`, not a zero.
    """
    if isinstance(value, Mapping):
        evidence = value.get("evidence") or ()
        hard = value.get("hard", value.get("score"))
        soft = hard if value.get("soft") is None else value["soft"]
        feedback = str(value.get("feedback") or "")
        evidence = (
            (evidence,) if isinstance(evidence, str) else tuple(str(line) for line in evidence)
        )
    elif isinstance(value, Score):
        hard, soft, feedback, evidence = value.hard, value.soft, value.feedback, value.evidence
    elif isinstance(value, tuple) and len(value) == 2:
        hard, other = value
        soft, feedback, evidence = (hard, other, ()) if isinstance(other, str) else (other, "", ())
    else:
        hard, soft, feedback, evidence = value, value, "", ()
    hard, soft = _number(hard), _number(soft)
    if not 0 <= hard <= 1 or not 0 <= soft <= 1:
        raise TaskFailure(
            "grader",
            f"{source} gave {value!r:.200}, which is not a score.",
            hint="Give a number from 0 to 1.",
        )
    return Score(hard, soft, feedback, evidence)


def _number(value: Any) -> float:
    """Numbers of every library, numpy's bools too; NaN for what is none."""
    try:
        return float(value) if isinstance(value, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan
