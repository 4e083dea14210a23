"""Question sets as data: where the rows come from, and which column is which field of an item.

The section `benchmark` of NAME.yaml describes the set:

    benchmark:
      title: "DocVQA: questions about pages of scanned documents"
      homepage: https://huggingface.co/datasets/lmms-lab/DocVQA
      licence: Apache-2.0
      hub: {lmms-lab/DocVQA: ["DocVQA/validation-*.parquet"]}
      splits: {docvqa_id_split: [107, 53, 374]}  # lists of ids that the SkillOpt authors publish
      fields: {id: [questionId, id], input: [question], answers: [answers], images: [image]}

Of the columns of a field the first that holds something counts. Where `options` holds options,
the question is a multiple-choice one, and `answers` names the right option by label or text; so
does `gold`, where a number is a position from 0.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import Field

from skillfit.errors import InputError
from skillfit.plugins.benchmarks.benchmark import (
    Benchmark,
    HubFiles,
    ItemRow,
    Read,
    RowId,
    find_in_data,
    optional,
    read_any,
    skillopt_splits,
    text,
)
from skillfit.settings import Settings
from skillfit.tasks.rows import Row

ImageDetail = Literal["auto", "low", "high"]
Columns = tuple[str, ...]
_LABELLED_OPTION = re.compile(r"^\(?([A-Z])\)?\s*[.:)]\s*(.*)$|^\(([A-Z])\)\s*(.*)$", re.DOTALL)


class _Fields(Settings):
    """The columns of each field."""

    id: Columns = ("id",)
    type: Columns = ()
    input: Columns = ("question",)
    answers: Columns = ("answer",)
    images: Columns = ()
    reference: Columns = ()
    options: Columns = ()
    gold: Columns = ()


class _Described(Settings):
    """The section `benchmark` of NAME.yaml."""

    title: str
    homepage: str
    licence: str
    hub: dict[str, tuple[str, ...]]
    splits: dict[str, tuple[int, int, int]] = Field(default_factory=dict)
    fields: _Fields = Field(default_factory=_Fields)


@dataclass(frozen=True, slots=True)
class QuestionSet(Benchmark):
    """A benchmark whose rows are questions, described by data."""

    fields: _Fields = field(default_factory=_Fields)

    @classmethod
    def load(cls, name: str, *, read: Read = read_any, row_id: RowId | None = None) -> QuestionSet:
        """Read the description of a set. `row_id` is for ids that no column holds."""
        folder = Path(__file__).parent / name
        described = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
        found = _Described.model_validate(described["benchmark"])
        splits = [skillopt_splits(one, *counts) for one, counts in found.splits.items()]
        return cls(
            name,
            found.title,
            found.homepage,
            found.licence,
            folder,
            tuple(HubFiles(repo, patterns) for repo, patterns in found.hub.items()),
            next(iter(splits), None),
            read,
            row_id or (lambda row: text(row, *found.fields.id)),
            found.fields,
        )

    def item(self, row: Row, data_root: Path | None, image_detail: str) -> ItemRow:
        """Return the item that the columns of a row make."""
        columns = self.fields
        question = text(row, *columns.input)
        item: ItemRow = {"id": self.row_id(row), "input": question}
        item["type"] = optional(row, *columns.type)
        item["reference"] = "\n".join(_texts(row, columns.reference))
        if columns.images:
            names = _required(row, columns.images)
            item["images"] = [find_image(row, name, data_root) for name in names]
            item["image_detail"] = image_detail
        options = read_options(_value(row, columns.options))
        if not options:
            return {**item, "answers": _required(row, columns.answers)}
        gold = _value(row, columns.gold) if columns.gold else text(row, *columns.answers)
        item["input"] = f"{question}\n\n{show_options(options)}"
        return with_options(item, options, gold, row.where)


def _value(row: Row, columns: Columns) -> Any:
    """Return the first value that is not empty."""
    values = (row.values.get(column) for column in columns)
    return next((value for value in values if value not in (None, "", [])), None)


def _texts(row: Row, columns: Columns) -> list[str]:
    value = _value(row, columns)
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, list) else [str(value).strip()]


def _required(row: Row, columns: Columns) -> list[str]:
    return _texts(row, columns) or [text(row, *columns)]


def check_detail(image_detail: str) -> None:
    """Refuse a value that the model layer does not know."""
    if image_detail not in get_args(ImageDetail):
        raise InputError(
            f"env.task_args: image_detail is {image_detail!r}.",
            hint=f"Choose one of {', '.join(get_args(ImageDetail))}.",
        )


def find_image(row: Row, name: str, data_root: Path | None = None) -> str:
    """Return the image file, as an absolute path. It may also be in a folder `images`."""
    found = find_in_data(row, (name, f"images/{name}"), data_root)
    if found is None or not found.is_file():
        raise InputError(
            f"{row.where}: the image {name} is not in {data_root or row.root or row.base}.",
            hint="Put it there, or name its folder in env.task_args: {data_root: …}.",
        )
    return str(found)


@dataclass(frozen=True, slots=True)
class Option:
    label: str
    text: str


def read_options(given: Any) -> list[Option]:
    """Read options from a list of texts or of {label, text}, or from {label: text}. Labels that
    stand before the texts ("B. a cat") are used if all options have one; else they are A, B, C, ….
    """
    if isinstance(given, Mapping):
        return [Option(str(label).strip(), str(text).strip()) for label, text in given.items()]
    if not isinstance(given, Sequence) or isinstance(given, str):
        return []
    if all(isinstance(one, Mapping) and "text" in one for one in given):
        pairs = [(one.get("label"), one["text"]) for one in given]
    else:
        matches = [_LABELLED_OPTION.match(str(one).strip()) for one in given]
        if all(matches):
            found = [match.groups() for match in matches if match]
            pairs = [(one[0] or one[2], one[1] if one[0] else one[3]) for one in found]
        else:
            pairs = [(None, one) for one in given]
    letters = string.ascii_uppercase
    return [
        Option(str(label or letters[at]).strip().upper(), str(text).strip())
        for at, (label, text) in enumerate(pairs)
    ]


def right_option(given: Any, options: Sequence[Option]) -> Option | None:
    """Return the option that a gold answer names: by {label, text}, label, text, or position from
    0.
    """
    if isinstance(given, Mapping):
        named = [given.get("label"), given.get("text")]
        return next((one for name in named if name and (one := right_option(name, options))), None)
    if isinstance(given, int) and not isinstance(given, bool):
        return options[given] if 0 <= given < len(options) else None
    wanted = str(given or "").strip()
    for option in options:
        if option.label == wanted.upper().strip("().: "):
            return option
    return next((option for option in options if option.text == wanted), None)


def with_options(item: ItemRow, options: Sequence[Option], gold: Any, where: str) -> ItemRow:
    """Return an item as a multiple-choice question. The answer is the label of the option that
    `gold` names.
    """
    right = right_option(gold, options)
    if right is None:
        raise InputError(f"{where}: the answer {gold!r} is none of the options.")
    choices = {option.label: option.text for option in options}
    return {**item, "choices": choices, "answers": [right.label]}


def shuffled(options: Sequence[Option], seed: str) -> list[Option]:
    """Return the same texts in an order that depends on `seed`, labelled anew from the first label
    on.
    """
    texts = [option.text for option in options]
    random.Random(seed).shuffle(texts)
    labels = [option.label for option in options]
    return [Option(label, text) for label, text in zip(labels, texts, strict=True)]


def show_options(options: Sequence[Option]) -> str:
    return "\n".join(f"{option.label}. {option.text}" for option in options)
