"""Canonical field names, and the columns of a user's rows that they are read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from skillfit.errors import InputError, did_you_mean

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


@dataclass(frozen=True, slots=True)
class _Candidates:
    """For one set of columns: the columns that may hold each canonical field, and the others."""

    fields: tuple[tuple[str, tuple[str, ...]], ...]
    aliases: tuple[str, ...]  # columns of `fields` that are not canonical names themselves
    others: tuple[str, ...]


def canonical(row: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """The row under canonical names. Columns that belong to no field keep their name. A field whose
    column is empty (null or "") is left out.
    """
    candidates = _candidates(tuple(row), tuple(fields.items()))
    content: dict[str, Any] = {}
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
    """Cached, because the rows of a file mostly have the same columns."""
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
    """Label -> text of the choices in a column: a list of texts (A, B, C, …), a list of objects
    with label and text, or an object of labels and texts.
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
    """`env.fields` with canonical names as keys; unknown names are refused."""
    known = {alias: name for name, aliases in COLUMNS.items() for alias in aliases}
    for name in fields:
        if name not in known:
            hint = did_you_mean(name, known) or f"Known fields: {', '.join(COLUMNS)}."
            raise InputError(f"env.fields: unknown field {name!r}.", hint=hint)
    return {known[name]: column for name, column in fields.items()}
