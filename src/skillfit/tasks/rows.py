"""Rows of JSONL, JSON, CSV, YAML and evals.json files, and the items made from them. Errors name
file and line.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from skillfit.config.yaml_source import read_yaml
from skillfit.errors import InputError, near_file
from skillfit.models.json_text import JsonObject
from skillfit.tasks.item import (
    LARGEST_WEIGHT,
    SMALLEST_WEIGHT,
    Item,
    RowAt,
    Split,
    canonical,
    checked_fields,
    listed_answers,
    similar_column,
    stable_hash,
    without_placement,
)
from skillfit.tasks.splits import SPLIT_NAMES, split_named

LONG_ROW = 4096  # bytes; longer JSONL rows stay on disk
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
# In a folder, a YAML file is more likely a config than items.
FILE_SUFFIXES = (*SUFFIXES, ".yaml", ".yml")
_ROLES = ("system", "user", "assistant")
_DETAILS = ("auto", "low", "high")


@dataclass(slots=True)  # not frozen: there may be 100,000, and that makes each twice as slow
class Row:
    """One row as it was read, and its place for error messages."""

    values: Mapping[str, Any]
    where: str  # file and line, for error messages
    base: Path = Path()  # relative paths in the row start here
    at: RowAt | None = None
    split: Split | None = None  # given by the folder that the file is in
    root: Path | None = None  # files and images must be inside this folder; None: anywhere


def read_rows(path: Path, *, split: Split | None = None, root: Path | None = None) -> Iterator[Row]:
    """Yield the rows of one file, in order. Their files and images must be inside `root`, by
    default the file's folder.
    """
    if not path.is_file():
        problem = "not a regular file" if path.exists() else "no such file"
        hint = f"{near_file(path)} env.tasks is relative to the config's folder."
        raise InputError(f"{path}: {problem}.", hint=hint.lstrip())
    readers = {
        ".json": _read_json,
        ".csv": _read_csv,
        ".tsv": _read_csv,
        ".yaml": _read_yaml,
        ".yml": _read_yaml,
    }
    if path.suffix not in FILE_SUFFIXES:
        hint = f"Use one of {', '.join(FILE_SUFFIXES)}."
        if path.suffix.lower() in (".xlsx", ".xls", ".ods", ".numbers"):
            hint = "Save the sheet as CSV (UTF-8), with the column names in the first row."
        raise InputError(f"{path}: unknown kind of tasks file.", hint=hint)
    empty, folder = True, path.parent
    for where, values, at in readers.get(path.suffix, _read_jsonl)(path):
        empty = False
        yield Row(values, where, folder, at, split, root or folder)
    if empty:
        raise InputError(f"{path}: no items in this file.")


def folder_rows(folder: Path) -> Iterator[Row]:
    """Yield the rows of a folder: `train/ val/ test/` with a file of items each, `train.jsonl
    val.jsonl test.jsonl`, or one file with all items.
    """
    parts, files = [], []
    for child in sorted(folder.iterdir()):
        is_data = child.is_file() and child.suffix in SUFFIXES
        if child.stem in SPLIT_NAMES and (is_data or child.is_dir()):
            parts.append(child)
        elif is_data:
            files.append(child)
    if not parts and len(files) == 1:
        yield from read_rows(files[0])
        return
    if not any(SPLIT_NAMES[part.stem] == "train" for part in parts):
        raise InputError(
            f"{folder}: no train/ in this folder.",
            hint="Expected train/, val/ and test/, each with a JSON, JSONL or CSV file, or one "
            "such file with all items.",
        )
    for part in parts:
        for file in _data_files(part):
            yield from read_rows(file, split=SPLIT_NAMES[part.stem], root=folder)


def _data_files(part: Path) -> list[Path]:
    if part.is_file():
        return [part]
    files = [file for file in sorted(part.iterdir()) if file.suffix in SUFFIXES]
    if not files:
        raise InputError(f"{part}: no JSON, JSONL or CSV file in this folder.")
    return files


def evals_file(path: Path) -> Path | None:
    """Return the evals.json that this path is, or that it contains."""
    if path.is_file():
        return path if path.name == "evals.json" else None
    for file in (path / "evals.json", path / "evals" / "evals.json"):
        if file.is_file():
            return file
    return None


def eval_rows(path: Path) -> Iterator[Row]:
    """Yield the Agent Skills format: prompts with files, an expected output, assertions. Paths are
    relative to the skill's folder.
    """
    document = parse_row_json(path.read_bytes(), str(path))
    evals = document.get("evals") if isinstance(document, dict) else None
    if not isinstance(evals, list) or not evals or not all(isinstance(one, dict) for one in evals):
        raise InputError(
            f"{path}: no list of objects under `evals`.",
            hint="See the evals.json of the Agent Skills format.",
        )
    base = path.parent.parent if path.parent.name == "evals" else path.parent
    for number, entry in enumerate(evals, 1):
        row = dict(entry)
        if "expected_output" in row:
            row["reference"] = row.pop("expected_output")
        yield Row(row, f"{path}: eval {number}", base, root=base)


def items_of(
    rows: Iterable[Row], fields: Mapping[str, str], *, corpus: Path | None = None
) -> list[Item]:
    """Make items with stable ids from the rows. Rows without an id get one made from their content.
    An id that is used twice is refused. Files of the rows may also be in the folder `corpus`.
    """
    fields = checked_fields(fields)
    items: list[Item] = []
    places: dict[str, str] = {}
    missing = dict(fields)  # whose column no row has
    columns: Iterable[Any] = ()
    for row in rows:
        item = _item(row, fields, corpus)
        if missing:
            columns = row.values
            missing = {name: column for name, column in missing.items() if column not in columns}
        if item.id in places:
            has_id = "id" in canonical(row.values, fields)
            problem = f"id {item.id!r} is used twice" if has_id else "the same row is there twice"
            raise InputError(
                f"{places[item.id]} and {row.where}: {problem}.",
                hint="Ids must be unique over all splits.",
            )
        places[item.id] = row.where
        items.append(item)
    if items and missing:
        name, column = next(iter(missing.items()))
        raise InputError(
            f"env.fields.{name}: no row has a column {column!r}.",
            hint=f"Columns: {', '.join(map(str, columns))}. (For skillfit init: --field "
            f"{name}=COLUMN.)",
        )
    return items


def _item(row: Row, fields: Mapping[str, str], corpus: Path | None) -> Item:
    if not isinstance(row.values, Mapping):
        raise InputError(f"{row.where}: expected an object, found {type(row.values).__name__}.")
    content = canonical(row.values, fields)
    _check_content(content, row, fields.get("input"))
    meaning = without_placement(content)
    item_id = str(content["id"]) if "id" in content else _hash(meaning, row)[:12]
    attached = "files" in content or "images" in content
    item = Item.from_content(
        item_id,
        content,
        type=str(content.get("type", "")),
        split=row.split or _split(content.get("split"), row.where),
        weight=_weight(content["weight"], row.where) if "weight" in content else 1.0,
        base=row.base,
        digest="" if attached else _hash([item_id, meaning], row),
    )
    if attached:
        _check_attachments(item, row, corpus)
        item = replace(item, digest=item.fingerprint())
    return item if row.at is None else replace(item, row=row.at, fields=fields)


def _hash(value: Any, row: Row) -> str:
    try:
        return stable_hash(value)
    except RecursionError as error:
        raise InputError(f"{row.where}: nested too deeply.") from error


def _check_content(content: Mapping[str, Any], row: Row, mapped: str | None) -> None:
    if "messages" in content:
        _check_messages(content["messages"], row.where)
    if "input" not in content and not content.get("messages"):
        columns = ", ".join(map(str, row.values)) or "none"
        if mapped is not None:
            raise InputError(
                f"{row.where}: no column {mapped!r}, which env.fields.input names.",
                hint=f"Columns here: {columns}.",
            )
        raise InputError(
            f"{row.where}: no input. Columns here: {columns}.",
            hint=similar_column(row.values, "input")
            + "Name one `input`, `prompt`, `question` or `messages`, or map it: "
            "env.fields: {input: YOUR_COLUMN} (for skillfit init: --field input=YOUR_COLUMN).",
        )
    text = content.get("input")
    if isinstance(text, str) and not text.strip() and not content.get("messages"):
        raise InputError(
            f"{row.where}: the input is blank.", hint="Write what the agent is asked, or drop it."
        )
    if isinstance(text, float) and not math.isfinite(text):
        raise InputError(
            f"{row.where}: the input is {text}, which is no task.",
            hint="Write what the agent is asked, or drop it.",
        )
    _check_answers(content, row.where)
    if content.get("image_detail", "auto") not in _DETAILS:
        raise InputError(
            f"{row.where}: unknown image_detail {content['image_detail']!r}.",
            hint=f"Use one of {', '.join(_DETAILS)}.",
        )


def _check_answers(content: Mapping[str, Any], where: str) -> None:
    try:
        answers = listed_answers(content)
        number = _non_finite_in(answers)
        unknown = next((one for one in answers if not _is_json(one)), None)
    except RecursionError as error:
        raise InputError(f"{where}: nested too deeply.") from error
    if unknown is not None:
        raise InputError(
            f"{where}: the answer {unknown!r:.100} is or contains a value that JSON does not have.",
            hint="Give a text or a number, or a list or mapping of them.",
        )
    if number is not None:
        raise InputError(
            f"{where}: the answer is or contains {number}, which no answer can equal.",
            hint="Give a finite number or a text, or leave the answer out.",
        )


def _is_json(answer: Any) -> bool:
    """Return False for values that only rows from Python can hold, such as sets and dates."""
    if isinstance(answer, str | int | float):
        return True
    try:
        json.dumps(answer)
    except TypeError:
        return False
    return True


def _non_finite_in(value: Any) -> float | None:
    """Return a NaN or an infinity in the value, at any depth."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    inside: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inside = value.values()
    elif isinstance(value, (list, tuple)):
        inside = value
    return next((found for each in inside if (found := _non_finite_in(each)) is not None), None)


def _check_messages(messages: Any, where: str) -> None:
    for turn in messages if isinstance(messages, list) else [messages]:
        known_role = isinstance(turn, dict) and turn.get("role") in _ROLES
        if not known_role or not isinstance(turn.get("content"), str):
            raise InputError(
                f"{where}: messages must be a list of {{role, content}}.",
                hint=f"Roles: {', '.join(_ROLES)}; content is text.",
            )


def _check_attachments(item: Item, row: Row, corpus: Path | None) -> None:
    """Refuse files and images that do not exist. Those named in a tasks file must be inside its
    folder or the corpus, also after symbolic links are followed: a tasks file from somebody else
    must not read private files.
    """
    content = item.content()
    _check_paths(content, "files", "a path, a list of paths or an object of names and paths", row)
    _check_paths(content, "images", "a path or a list of paths", row)
    allowed = [folder.resolve() for folder in (row.root, corpus) if folder is not None]
    for path in item.attachments():
        if not path.is_file():
            problem = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(
                f"{row.where}: {path} {problem}.",
                hint="Paths of files and images are relative to the tasks file.",
            )
        resolved = path.resolve()
        inside = any(resolved.is_relative_to(folder) for folder in allowed)
        if row.root is not None and not inside:
            raise InputError(
                f"{row.where}: {path} is outside the folder of the tasks, {row.root.resolve()}.",
                hint="Copy it into that folder, put the tasks file into a folder above both, or "
                "name the folder of shared documents with env.corpus.",
            )


def _check_paths(content: Mapping[str, Any], name: str, forms: str, row: Row) -> None:
    value = content.get(name, [])
    if name == "files" and isinstance(value, Mapping):
        value = list(value.values())
    paths = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(path, (str, Path)) for path in paths):
        raise InputError(
            f"{row.where}: {name} must be {forms}.", hint="Leave it out when there are none."
        )


def _split(value: Any, where: str) -> Split | None:
    if value is None:
        return None
    try:
        return split_named(value)
    except InputError as error:
        raise InputError(f"{where}: {error.message}", hint=error.hint) from error


def _weight(value: Any, where: str) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError, OverflowError):
        weight = -1.0
    if not weight > 0:
        raise InputError(f"{where}: weight {value!r:.100} is not a number above 0.")
    if not SMALLEST_WEIGHT <= weight <= LARGEST_WEIGHT:  # means of such numbers are not exact
        raise InputError(
            f"{where}: weight {value!r:.100} is not between {SMALLEST_WEIGHT:g} and "
            f"{LARGEST_WEIGHT:g}."
        )
    return weight


# Where the row is, for messages; its values; its place on disk if it is long.
_Read = tuple[str, Any, RowAt | None]


def _read_jsonl(path: Path) -> Iterator[_Read]:
    offset, resolved, name = 0, path.resolve(), str(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if number == 1 and text.lstrip().startswith(b"["):
                raise InputError(
                    f"{path}: a JSON array, but a {path.suffix} file has one object per line.",
                    hint="Name the file .json.",
                )
            if text.strip():
                at, where = None, f"{name}:{number}"
                if len(line) > LONG_ROW:
                    at = RowAt(resolved, offset + len(line) - len(text), len(text))
                yield where, parse_row_json(text, where), at
            offset += len(line)


def _read_json(path: Path) -> Iterator[_Read]:
    text = path.read_bytes()
    try:
        rows = parse_row_json(text, str(path))
    except InputError as error:
        if text.strip().startswith(b"{") and b"\n{" in text:
            error.hint = "One object per line is JSONL: name the file .jsonl."
        raise
    hint = "One object per line is JSONL: name the file .jsonl."
    yield from _listed_rows(path, rows, "a JSON array of items", hint)


def _read_yaml(path: Path) -> Iterator[_Read]:
    hint = "Write one `- input: …` per item."
    yield from _listed_rows(path, read_yaml(path), "a list of items", hint)


def _listed_rows(path: Path, rows: Any, what: str, hint: str) -> Iterator[_Read]:
    if isinstance(rows, dict):
        rows = _rows_of_object(rows)
    if not isinstance(rows, list):
        raise InputError(
            f"{path}: expected {what}, an object that holds one array, or an object of ids and "
            "items.",
            hint=hint,
        )
    for number, values in enumerate(rows, 1):
        yield f"{path}: item {number}", values, None


def _rows_of_object(document: JsonObject) -> Any:
    """Return the rows in `{"data": [ROW, …]}` (under any name) or in `{ID: ROW, …}`."""
    lists = [value for value in document.values() if isinstance(value, list)]
    if len(lists) == 1:
        return lists[0]
    if document and all(isinstance(value, dict) for value in document.values()):
        return [{"id": name, **row} for name, row in document.items()]
    return document


def parse_row_json(text: bytes, where: str) -> Any:
    """Return the value of a JSON text. `where` names the place in errors."""
    try:
        return from_json(text)
    except ValueError:  # what this fast reader refuses, the standard one reads or explains
        return _parse_slowly(text, where)


def _parse_slowly(text: bytes, where: str) -> Any:
    try:
        value = json.loads(text.decode("utf-8-sig" if text[:1] == b"\xef" else "utf-8"))
        if b"\\ud" in text or b"\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise InputError(f"{where}: half a surrogate pair ({half!a}) is not a character.") from (
            error
        )
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 text ({error.reason} at byte {error.start}).",
            hint=_encoding_hint(text),
        ) from error
    except RecursionError as error:
        raise InputError(f"{where}: nested too deeply.") from error
    except json.JSONDecodeError as error:
        several_lines = b"\n" in text.strip()
        line = f"line {error.lineno}, " if several_lines else ""
        raise InputError(
            f"{where}: not valid JSON: {error.msg} at {line}column {error.colno}."
        ) from error
    except ValueError as error:  # Python limits the digits of a whole number
        raise InputError(
            f"{where}: a number has too many digits.", hint="Write it as text, in quotes."
        ) from error


_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # the first bytes of such a file, as Excel writes it


def _encoding_hint(data: bytes) -> str:
    if data.startswith(_UTF_16):
        return "It is UTF-16. Save it as UTF-8."
    return "It may be Windows-1252, as Excel saves it. Save it as UTF-8 (Excel: CSV UTF-8)."


def _delimiter(path: Path, header: str) -> str:
    """Return a comma, unless only another character splits the header: Excel writes semicolons in
    many countries.
    """
    if path.suffix == ".tsv":
        return "\t"
    cells = {one: len(next(csv.reader([header], delimiter=one), ())) for one in (",", ";", "\t")}
    return "," if cells[","] > 1 else max(cells, key=lambda one: cells[one])


def _not_utf8(path: Path) -> InputError:
    """Return the first line of a file that cannot be decoded."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                found = f"byte 0x{line[error.start]:02x}"
                return InputError(
                    f"{path}:{number}: not UTF-8 text ({found}).", hint=_encoding_hint(line)
                )
    return InputError(f"{path}: not UTF-8 text.")


def _read_csv(path: Path) -> Iterator[_Read]:
    csv.field_size_limit(sys.maxsize)  # the default refuses cells of more than 128 KiB
    with path.open("rb") as file:
        encoding = "utf-16" if file.read(2) in _UTF_16 else "utf-8-sig"
    with path.open(newline="", encoding=encoding) as file:
        try:
            delimiter = _delimiter(path, file.readline())
        except UnicodeDecodeError as error:
            raise _not_utf8(path) from error
        file.seek(0)
        reader = csv.DictReader(file, strict=True, delimiter=delimiter)
        try:
            for values in reader:
                if None in values or None in values.values():
                    raise InputError(
                        f"{path}:{reader.line_num}: the number of cells differs from the header's.",
                        hint=f"Put cells that contain {delimiter!r} in quotes.",
                    )
                cells = {name: _cell(text) for name, text in values.items()}
                yield f"{path}:{reader.line_num}", cells, None
        except UnicodeDecodeError as error:
            raise _not_utf8(path) from error
        except csv.Error as error:
            raise InputError(f"{path}:{reader.line_num + 1}: not valid CSV: {error}.") from error


def _cell(text: str) -> Any:
    """Return the value of a cell. Lists and objects may be written as JSON or as Python literals
    (as in DocVQA's answers); what JSON cannot represent stays text.
    """
    if text[:1] not in ("[", "{"):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            return json.loads(json.dumps(parse(text)))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return text
