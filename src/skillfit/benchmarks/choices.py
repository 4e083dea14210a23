"""Options of multiple-choice questions: reading, labelling, shuffling, showing them."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LABELLED = re.compile(r"^\(?([A-Z])\)?\s*[.:)]\s*(.*)$|^\(([A-Z])\)\s*(.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Option:
    label: str
    text: str


def read_options(given: Any) -> list[Option]:
    """Options from a list of texts or of {label, text}, or from {label: text}. Labels that stand
    before the texts ("B. a cat") are used if all options have one; else they are A, B, C, ….
    """
    if isinstance(given, Mapping):
        return [Option(str(label).strip(), str(text).strip()) for label, text in given.items()]
    if not isinstance(given, Sequence) or isinstance(given, str):
        return []
    if all(isinstance(one, Mapping) and "text" in one for one in given):
        pairs = [(one.get("label"), one["text"]) for one in given]
    else:
        matches = [_LABELLED.match(str(one).strip()) for one in given]
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
    """The option that a gold answer names: by {label, text}, label, text, or position from 0."""
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


def shuffled(options: Sequence[Option], seed: str) -> list[Option]:
    """The same texts in an order that depends on `seed`, labelled anew from the first label on."""
    texts = [option.text for option in options]
    random.Random(seed).shuffle(texts)
    labels = [option.label for option in options]
    return [Option(label, text) for label, text in zip(labels, texts, strict=True)]


def show_options(options: Sequence[Option]) -> str:
    return "\n".join(f"{option.label}. {option.text}" for option in options)
