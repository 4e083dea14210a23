"""Rows of JSONL, JSON and CSV files, and the items made of them. Every complaint names file and
line.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skillfit.errors import InputError, did_you_mean
from skillfit.tasks.item import COLUMNS, Item, RowAt, Split, canonical, stable_hash

BIG_ROW = 4096  # bytes; longer JSONL rows stay on disk
SUFFIXES = (".jsonl", ".json", ".csv")
SPLIT_NAMES: Mapping[str, Split] = {
    "train": "train",
    **dict.fromkeys(("selection", "val", "valid", "validation", "valid_seen"), "selection"),
    **dict.fromkeys(("test", "valid_unseen"), "test"),
}


@dataclass(frozen=True, slots=True)
class Row:
    values: Mapping[str, Any]
    where: str  # file:line, for messages
    base: Path = Path()
    at: RowAt | None = None
    split: Split | None = None  # given by the folder it stands in


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of one file, in order."""
    if not path.is_file():
        raise InputError(
            f"{path}: no such file.", hint="env.tasks is relative to the config's folder."
        )
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"{path}: unknown kind of tasks file.", hint=f"Known are {', '.join(SUFFIXES)}."
        )
    readers = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv}
    row = None
    for row in readers[path.suffix](path):
        yield row
    if row is None:
        raise InputError(f"{path}: no items in this file.")


def folder_rows(folder: Path) -> Iterator[Row]:
    """`train/ val/ test/` with a file of items each, or `train.jsonl val.jsonl test.jsonl`."""
    found = [
        child
        for child in sorted(folder.iterdir())
        if child.stem in SPLIT_NAMES and (child.is_dir() or child.suffix in SUFFIXES)
    ]
    if not any(SPLIT_NAMES[child.stem] == "train" for child in found):
        raise InputError(
            f"{folder}: no train/ in this folder.",
            hint="Expected train/, val/ and test/, each with a JSON, JSONL or CSV file.",
        )
    for child in found:
        files = (
            [file for file in sorted(child.iterdir()) if file.suffix in SUFFIXES]
            if child.is_dir()
            else [child]
        )
        if not files:
            raise InputError(f"{child}: no JSON, JSONL or CSV file in this folder.")
        for file in files:
            yield from (replace(row, split=SPLIT_NAMES[child.stem]) for row in read_rows(file))


def items_of(rows: Iterable[Row], fields: Mapping[str, str]) -> list[Item]:
    """Items with stable ids. Rows without an id get one from their content; an id used twice is
    refused.
    """
    fields = _checked_fields(fields)
    items: list[Item] = []
    seen: dict[str, str] = {}
    for row in rows:
        item = _item(row, fields)
        if item.id in seen:
            same = (
                "id {id!r} is used twice"
                if "id" in canonical(row.values, fields)
                else "the same row stands twice"
            )
            raise InputError(
                f"{seen[item.id]} and {row.where}: {same.format(id=item.id)}.",
                hint="Ids must be unique over all splits.",
            )
        seen[item.id] = row.where
        items.append(item)
    return items


def _item(row: Row, fields: Mapping[str, str]) -> Item:
    if not isinstance(row.values, Mapping):
        raise InputError(f"{row.where}: expected an object, found {type(row.values).__name__}.")
    content = canonical(row.values, fields)
    if "input" not in content and not content.get("messages"):
        raise InputError(
            f"{row.where}: no input. Columns here: {', '.join(map(str, row.values)) or 'none'}.",
            hint="Name one `input`, `prompt` or `messages`, or map it: env.fields: {input: YOUR_COLUMN}.",
        )
    _check_messages(content.get("messages", []), row.where)
    _check_paths(content, row.where)
    meaning = {name: value for name, value in content.items() if name not in ("split", "weight")}
    item = Item(
        id=str(content["id"]) if "id" in content else stable_hash(meaning)[:12],
        row=row.values,
        type=str(content.get("type", "")),
        split=row.split or _split(content.get("split"), row.where),
        weight=_weight(content.get("weight", 1.0), row.where),
        fields=fields,
        base=row.base,
    )
    for path in item.attachments() if "files" in content or "images" in content else ():
        if not path.is_file():
            raise InputError(
                f"{row.where}: {path} does not exist.",
                hint="Files and images are relative to the tasks file.",
            )
    return replace(item, row=row.at or row.values, digest=item.fingerprint())


def _checked_fields(fields: Mapping[str, str]) -> dict[str, str]:
    known = {alias: name for name, aliases in COLUMNS.items() for alias in aliases}
    for name in fields:
        if name not in known:
            hint = did_you_mean(name, known) or f"Known: {', '.join(COLUMNS)}."
            raise InputError(f"env.fields: unknown field {name!r}.", hint=hint)
    return {known[name]: column for name, column in fields.items()}


def _check_messages(messages: Any, where: str) -> None:
    roles = ("system", "user", "assistant")
    for turn in messages if isinstance(messages, list) else [messages]:
        if not (
            isinstance(turn, dict)
            and turn.get("role") in roles
            and isinstance(turn.get("content"), str)
        ):
            raise InputError(
                f"{where}: messages must be a list of {{role, content}}.",
                hint=f"Roles: {', '.join(roles)}; content is text.",
            )


def _check_paths(content: Mapping[str, Any], where: str) -> None:
    for name, forms in (
        ("files", "a path, a list of paths or an object of names and paths"),
        ("images", "a path or a list of paths"),
    ):
        given = content.get(name, [])
        named = name == "files" and isinstance(given, Mapping)
        paths = (
            list(given.values())
            if named
            else given
            if isinstance(given, (list, tuple))
            else [given]
        )
        if not all(isinstance(path, (str, Path)) for path in paths):
            raise InputError(
                f"{where}: {name} must be {forms}.", hint="Leave it out when there are none."
            )


def _split(value: Any, where: str) -> Split | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in SPLIT_NAMES:
        raise InputError(
            f"{where}: unknown split {value!r}.", hint=f"Known: {', '.join(SPLIT_NAMES)}."
        )
    return SPLIT_NAMES[value]


def _weight(value: Any, where: str) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError):
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise InputError(f"{where}: weight {value!r} is not a number above 0.")
    return weight


def _read_jsonl(path: Path) -> Iterator[Row]:
    offset = 0
    with path.open("rb") as file:
        folder, full = path.parent, path.resolve()
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                at = (
                    RowAt(full, offset + len(line) - len(text), len(text))
                    if len(line) > BIG_ROW
                    else None
                )
                yield Row(parse_json(text, f"{path}:{number}"), f"{path}:{number}", folder, at)
            offset += len(line)


def _read_json(path: Path) -> Iterator[Row]:
    rows = parse_json(path.read_bytes(), str(path))
    if not isinstance(rows, list):
        raise InputError(
            f"{path}: expected a JSON array of items.",
            hint="One object per line is JSONL: name the file .jsonl.",
        )
    for number, values in enumerate(rows, 1):
        yield Row(values, f"{path}: item {number}", path.parent)


def parse_json(text: bytes, where: str) -> Any:
    """What the text says, or an error that tells where it breaks."""
    try:
        value = json.loads(text.decode("utf-8-sig"))
        if b"\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: half a character: an emoji was cut in two ({error.object[error.start]!a})."
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 text ({error.reason} at byte {error.start})."
        ) from error
    except RecursionError as error:
        raise InputError(f"{where}: nested too deeply.") from error
    except json.JSONDecodeError as error:
        place = (
            f"line {error.lineno}, column {error.colno}"
            if b"\n" in text.strip()
            else f"column {error.colno}"
        )
        raise InputError(f"{where}: not valid JSON: {error.msg} at {place}.") from error


def _read_csv(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for values in reader:
                if None in values or None in values.values():
                    raise InputError(
                        f"{path}:{reader.line_num}: not as many cells as the header has."
                    )
                yield Row(
                    {name: _cell(text) for name, text in values.items()},
                    f"{path}:{reader.line_num}",
                    path.parent,
                )
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path}:{reader.line_num + 1}: not valid CSV: {error}.") from error


def _cell(text: str) -> Any:
    """Lists and objects come as JSON or as Python literals (as DocVQA's answers do); what JSON
    cannot hold stays text.
    """
    if text[:1] not in ("[", "{"):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            return json.loads(json.dumps(parse(text)))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return text
