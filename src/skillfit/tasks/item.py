"""Items, the attempts an agent makes at them, and the scores that graders give.

An item is one task instance. Its row can stay on disk (`RowAt`) and is then read whenever one of
its fields is used, so that a hundred thousand long rows need little memory. `COLUMNS` says which
columns of a user's rows the fields are read from.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import math
import mimetypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, SupportsFloat

from skillfit.errors import InputError, TaskFailure, did_you_mean
from skillfit.extensions import PartDescription
from skillfit.models.json_text import JsonObject, without_surrogates
from skillfit.models.protocol import Image, Message, Usage

Split = Literal["train", "selection", "test"]
Reported = Literal["tokens", "usd"]  # what an attempt says about its usage
SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-6, 1e6
_ROWS_SEARCHED = 500  # items whose row is read to find drafts; a file of drafts is small


@dataclass(frozen=True, slots=True)
class RowAt:
    """The place of an item's row in a JSONL file, for rows too long to keep in memory."""

    path: Path
    offset: int
    length: int

    def read(self) -> JsonObject:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return dict(json.loads(file.read(self.length)))


@dataclass(frozen=True, slots=True)
class Item:
    """One task instance. `row` holds its fields: input, messages, answers, reference, files,
    images, and whatever else the user's grader reads. Use the properties to read them; a `RowAt`
    row is read from disk each time.
    """

    id: str
    row: Mapping[str, Any] | RowAt
    type: str = ""
    split: Split | None = None
    weight: float = 1.0
    fields: Mapping[str, str] = field(default_factory=dict)  # canonical name -> the user's column
    base: Path = Path()  # the folder that relative paths of files and images start from
    digest: str = ""  # the fingerprint, if the loader has computed it
    model: str = ""  # with `model.agents`: the one that this item is run with
    _content: Mapping[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def content(self) -> Mapping[str, Any]:
        """Return the whole row under canonical names."""
        if self._content is not None:
            return self._content
        if isinstance(self.row, RowAt):
            return canonical(self.row.read(), self.fields)
        content = canonical(self.row, self.fields)
        object.__setattr__(self, "_content", content)
        return content

    def with_model(self, model: str) -> Item:
        """Return the item as one of this model alone. The model takes the place of its type."""
        digest = stable_hash([self.fingerprint(), model])
        return replace(self, id=f"{self.id}@{model}", type=model, model=model, digest=digest)

    def as_dict(self) -> JsonObject:
        """Return the item as a user's code gets it: the whole row under canonical names. `answers`
        is always a list.
        """
        content = self.content()
        row = {**content, "id": self.id.removesuffix(f"@{self.model}") if self.model else self.id}
        if "answers" in content:
            row["answers"] = listed_answers(content)
        return row

    @classmethod
    def from_content(
        cls,
        id: str,
        content: Mapping[str, Any],
        *,
        type: str = "",
        split: Split | None = None,
        weight: float = 1.0,
        base: Path = Path(),
        digest: str = "",
    ) -> Item:
        """Return an item from content that has canonical names already."""
        item = cls(id, content, type, split, weight, _NO_FIELDS, base, digest)
        object.__setattr__(item, "_content", content)
        return item

    def loaded(self) -> Item:
        """Return the same item with its row in memory. Call it before you read several fields."""
        if not isinstance(self.row, RowAt):
            return self
        content = self.content()
        loaded = replace(self, row=content, fields=_NO_FIELDS)
        object.__setattr__(loaded, "_content", content)
        return loaded

    def in_split(self, split: Split) -> Item:
        """Return the same item, assigned to this split."""
        if self.split == split:
            return self
        # Several times faster than `dataclasses.replace`, which matters at 100,000 items.
        moved = Item(
            self.id, self.row, self.type, split, self.weight, self.fields, self.base, self.digest
        )
        object.__setattr__(moved, "_content", self._content)
        return moved

    @property
    def input(self) -> str:
        """The task text as the agent gets it: the input with its context and choices, if it has
        any. A row with `messages` has its user turns joined here.
        """
        content = self.content()
        if "input" in content:
            return _complete(content, _input_text(content["input"]))
        turns = content.get("messages", ())
        texts = [str(turn.get("content", "")) for turn in turns if turn.get("role") == "user"]
        return _complete(content, "\n\n".join(texts))

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation to answer: the row's turns, or the input as one user turn. Context,
        choices and images go into the last user turn.
        """
        content = self.content()
        if not content.get("messages"):
            return (Message("user", self.input, self.images),)
        turns = [
            Message(turn["role"], str(turn.get("content", ""))) for turn in content["messages"]
        ]
        users = [at for at, turn in enumerate(turns) if turn.role == "user"]
        last = users[-1] if users else len(turns) - 1
        text = _complete(content, turns[last].content)
        turns[last] = replace(turns[last], content=text, images=self.images)
        return tuple(turns)

    @property
    def answers(self) -> tuple[str, ...]:
        """Gold answers, any of which is right; empty when the grader needs none."""
        return tuple(map(_as_text, listed_answers(self.content())))

    @property
    def has_answers(self) -> bool:
        return bool(listed_answers(self.content()))

    @property
    def reference(self) -> str:
        """Hidden reference text. The optimizer may read it for training items; the agent never
        sees it.
        """
        return str(self.content().get("reference", ""))

    @property
    def files(self) -> dict[str, Path]:
        """Files for the agent's workspace: name there -> path here. A folder stands for every file
        in it.
        """
        files = self.content().get("files", ())
        if isinstance(files, Mapping):
            named = {str(name): self.base / str(path) for name, path in files.items()}
        else:
            named = {_workspace_name(Path(path)): self.base / path for path in _as_sequence(files)}
        found: dict[str, Path] = {}
        for name, path in named.items():
            if not path.is_dir():
                found[name] = path
                continue
            inside = sorted(each for each in path.rglob("*") if each.is_file())
            found |= {f"{name}/{each.relative_to(path).as_posix()}": each for each in inside}
        return found

    @property
    def images(self) -> tuple[Image, ...]:
        """The row's images. A column `image_detail` says how finely the model should look."""
        content = self.content()
        if "images" not in content:
            return ()
        detail = content.get("image_detail", "auto")
        paths = [self.base / str(path) for path in _as_sequence(content["images"])]
        return tuple(
            Image(path, mimetypes.guess_type(path.name)[0] or "image/png", detail) for path in paths
        )

    def attachments(self) -> tuple[Path, ...]:
        """Return every file and image of the item."""
        return (*self.files.values(), *(image.path for image in self.images))

    def fingerprint(self) -> str:
        """Return a stable hash of id, row and attached files. Moving the item to another split, or
        giving it another weight, does not change it.
        """
        if self.digest:
            return self.digest
        content = self.content()
        meaning = without_placement(content)
        if "files" not in content and "images" not in content:
            return stable_hash([self.id, meaning])
        attached = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.attachments()]
        return stable_hash([self.id, meaning, attached] if attached else [self.id, meaning])


_NO_FIELDS: Mapping[str, str] = {}


def _complete(content: Mapping[str, Any], text: str) -> str:
    """Return the text with the row's context before it and its choices after it. Choices that are
    in the text already are not repeated.
    """
    if "choices" in content:
        choices = labelled_choices(content["choices"])
        if all(choices.values()) and not all(choice in text for choice in choices.values()):
            listed = "\n".join(f"{label}. {choice}" for label, choice in choices.items())
            text = f"{text}\n\n{listed}"
    context = content.get("context")
    if not context:
        return text
    if isinstance(context, list) and all(isinstance(part, str) for part in context):
        context = "\n\n".join(context)
    elif not isinstance(context, str):
        context = json.dumps(context, ensure_ascii=False)
    return f"## Context\n{context}\n\n## Question\n{text}"


def _workspace_name(path: Path) -> str:
    return path.name if path.is_absolute() or ".." in path.parts else path.as_posix()


def _input_text(value: Any) -> str:
    """Return an object or a list as JSON, which agents and people read better than Python's
    form.
    """
    if isinstance(value, (Mapping, list)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _as_text(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _as_sequence(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, (str, Path)) else value


def listed_answers(content: Mapping[str, Any]) -> list[Any]:
    """Return the gold answers of a row as a list, whether it holds one, several or none."""
    answers = content.get("answers", ())
    if isinstance(answers, str):
        return [answers]
    several = answers if isinstance(answers, (list, tuple)) else [answers]
    return [answer for answer in several if answer is not None]


def without_placement(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the content without `split` and `weight`, which are not part of what the item
    means.
    """
    if "split" not in content and "weight" not in content:
        return content
    return {name: value for name, value in content.items() if name not in ("split", "weight")}


def count_unreviewed(items: Sequence[Item]) -> int:
    """Count how many of the first items are drafts that no person has reviewed: their row says
    so.
    """
    return sum(item.content().get("reviewed") is False for item in items[:_ROWS_SEARCHED])


def weights_of(items: Iterable[Item]) -> dict[str, float]:
    """Map item ids to weights, for the items whose weight is not 1."""
    return {item.id: item.weight for item in items if item.weight != 1.0}


def _stable_encoder() -> Callable[[Any], str]:
    """Return an encoder equal to `json.JSONEncoder(…).encode`. That one builds its C encoder again
    for every value and takes half as long again for it.
    """
    plain = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # another implementation of Python
        return plain.encode
    quote = json.encoder.encode_basestring
    encode = make(None, plain.default, quote, None, ": ", ", ", True, False, True)
    return lambda value: "".join(encode(value, 0))


_encode = _stable_encoder()


def stable_hash(value: Any) -> str:
    """Return sixteen hex digits that depend on the value alone, not on the order of keys."""
    return hashlib.sha256(_encode(value).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class TrajectoryStep:
    """One event of a trajectory. The skill and the item's own text are not repeated here."""

    kind: Literal["message", "tool_call", "tool_result", "note"]
    text: str
    role: str = "assistant"
    name: str = ""  # of the tool

    def __post_init__(self) -> None:
        # Text of programs and of the user's own code: it must be possible to send and record it.
        object.__setattr__(self, "text", without_surrogates(self.text))
        object.__setattr__(self, "name", without_surrogates(self.name))


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the agent did on an item."""

    answer: str
    steps: tuple[TrajectoryStep, ...] = ()
    workspace: str = ""  # folder with the files the agent left; removed after grading
    skill_read: bool | None = None  # None: unknown
    usage: Usage = field(default_factory=Usage)
    isolation: str = ""  # how the programs of the agent were isolated; empty: it ran none
    bare: bool = False  # nothing but the answer, as gold answers are: graders extract nothing

    def __post_init__(self) -> None:
        object.__setattr__(self, "answer", without_surrogates(self.answer))


def reported_by(function: Callable[..., Any]) -> frozenset[Reported]:
    """Return what a function of the user reports about its usage: everything if it is annotated to
    return an `Attempt`, which has a field for it, and else nothing.
    """
    called = function if inspect.isroutine(function) else type(function).__call__
    returned = inspect.signature(called).return_annotation
    name = returned if isinstance(returned, str) else getattr(returned, "__name__", "")
    return frozenset({"tokens", "usd"} if name.rpartition(".")[2] == "Attempt" else ())


@dataclass(frozen=True, slots=True)
class Score:
    """`hard` is 0 or 1, or the fraction of checks passed. `soft` is a graded 0..1, equal to `hard`
    when the grader has none. The optimizer may see `feedback`. It never sees `evidence` (a judge's
    reasons, patterns, gold answers).
    """

    hard: float
    soft: float = -1.0  # set to `hard` when not given
    feedback: str = ""
    evidence: tuple[str, ...] = ()
    # Hard and soft by the grader used in training, when the score is the ship grader's.
    trained: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.soft < 0:
            object.__setattr__(self, "soft", self.hard)
        object.__setattr__(self, "feedback", without_surrogates(self.feedback))
        object.__setattr__(self, "evidence", tuple(map(without_surrogates, self.evidence)))


class ScoredAttempt(NamedTuple):
    """An attempt and its score: what a rollout brings back."""

    attempt: Attempt
    score: Score


class Grader(Protocol):
    """Scores attempts. Raises `ModelError` when a judge cannot be reached: that is a failed
    rollout, not a score of 0.
    """

    async def grade(self, item: Item, attempt: Attempt) -> Score: ...

    def patterns(self) -> tuple[str, ...]:
        """Return texts that would reveal the grader if a skill contained them (regexes, rubric
        lines). The leak check looks for them.
        """
        ...

    def describe(self) -> PartDescription:
        """Return the grader's settings as JSON, for the run's identity."""
        ...


# A grader as users give it: a setting, an object, or a function of item and answer.
GraderLike = str | Mapping[str, Any] | Grader | Callable[..., Any]


def as_score(value: Any, *, source: str) -> Score:
    """Return the score that a user's function or program returned: a number in 0..1, a bool, a pair
    (score, feedback) or (hard, soft), a mapping with `score` or `hard`, or a `Score`. Anything else
    is a `TaskFailure` that names `source`.
    """
    feedback, evidence = "", tuple[str, ...]()
    if isinstance(value, Mapping):
        hard = value.get("hard", value.get("score"))
        soft = hard if value.get("soft") is None else value["soft"]
        feedback = str(value.get("feedback") or "")
        lines = value.get("evidence") or ()
        evidence = (lines,) if isinstance(lines, str) else tuple(str(line) for line in lines)
    elif isinstance(value, Score):
        hard, soft, feedback, evidence = value.hard, value.soft, value.feedback, value.evidence
    elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        hard = soft = value[0]
        feedback = value[1]
    elif isinstance(value, tuple) and len(value) == 2:
        hard, soft = value
    else:
        hard = soft = value
    hard, soft = _number(hard), _number(soft)
    if not 0 <= hard <= 1 or not 0 <= soft <= 1:
        raise TaskFailure(
            "grader",
            f"{source} returned {value!r:.200}, which is not a score.",
            hint="Return a number from 0 to 1.",
        )
    return Score(hard, soft, feedback, evidence)


def _number(value: Any) -> float:
    """Convert numbers of any library, including numpy's bools; return NaN for everything else."""
    try:
        return float(value) if isinstance(value, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError):
        return math.nan


# Canonical name -> the columns it is read from, first match first, unless env.fields maps it.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "id": ("id",),
    "input": ("input", "prompt", "question"),
    "context": ("context",),
    "messages": ("messages",),
    "answers": ("answers", "answer", "expected"),
    "choices": ("choices", "options"),
    "type": ("type",),
    "split": ("split",),
    "files": ("files",),
    "images": ("images", "image"),
    "reference": ("reference",),
    "weight": ("weight",),
}


def similar_column(columns: Iterable[Any], field: str) -> str:
    """Return a hint for a column whose name may be a typo of a usual one; empty if there is
    none.
    """
    for column in map(str, columns):
        near = difflib.get_close_matches(column.lower(), COLUMNS[field], n=1)
        if near and column not in COLUMNS[field]:
            return f"Is {column!r} meant as {near[0]!r}? "
    return ""


@dataclass(frozen=True, slots=True)
class _Candidates:
    """For one set of columns: the columns that may hold each canonical field, and the others."""

    fields: tuple[tuple[str, tuple[str, ...]], ...]
    aliases: tuple[str, ...]  # columns of `fields` that are not canonical names themselves
    others: tuple[str, ...]


def canonical(row: Mapping[str, Any], fields: Mapping[str, str]) -> JsonObject:
    """Return the row under canonical names. Columns that belong to no field keep their name. A
    field whose column is empty (null or "") is left out.
    """
    candidates = _candidates(tuple(row), tuple(fields.items()))
    content: JsonObject = {}
    used: list[str] = []
    for name, columns in candidates.fields:
        for column in columns:
            value = row[column]
            if value is not None and value != "":
                content[name] = value
                used.append(column)
                break
    for column in candidates.aliases:
        if column not in used:
            content[column] = row[column]
    for column in candidates.others:
        content[column] = row[column]
    return content


@lru_cache(maxsize=1024)
def _candidates(columns: tuple[str, ...], mapped: tuple[tuple[str, str], ...]) -> _Candidates:
    """Map columns to fields; cached, because the rows of a file mostly have the same columns."""
    fields = []
    for name, usual in COLUMNS.items():
        possible = (dict(mapped)[name],) if name in dict(mapped) else usual
        if present := tuple(column for column in possible if column in columns):
            fields.append((name, present))
    listed = dict.fromkeys(column for _, present in fields for column in present)
    aliases = tuple(column for column in listed if column not in COLUMNS)
    others = tuple(column for column in columns if column not in listed and column not in COLUMNS)
    return _Candidates(tuple(fields), aliases, others)


def labelled_choices(column: Any) -> dict[str, str]:
    """Map labels to texts for the choices in a column: a list of texts (A, B, C, …), a list of
    objects with label and text, or an object of labels and texts.
    """
    if isinstance(column, Mapping):
        return {str(label).upper(): str(text) for label, text in column.items()}
    choices: dict[str, str] = {}
    for at, choice in enumerate(column if isinstance(column, (list, tuple)) else ()):
        label, text = chr(ord("A") + at), choice
        if isinstance(choice, Mapping) and "label" in choice and "text" in choice:
            label, text = choice["label"], choice["text"]
        choices[str(label).upper()] = str(text)
    return choices


def checked_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return `env.fields` with canonical names as keys; refuse unknown names."""
    known = {alias: name for name, aliases in COLUMNS.items() for alias in aliases}
    for name in fields:
        if name not in known:
            hint = did_you_mean(name, known) or f"Known fields: {', '.join(COLUMNS)}."
            raise InputError(f"env.fields: unknown field {name!r}.", hint=hint)
    return {known[name]: column for name, column in fields.items()}
