"""Items: the task instances a skill is measured on. Big rows stay on disk and are read at the moment of use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Split = Literal["train", "selection", "test"]


@dataclass(frozen=True, slots=True)
class RowAt:
    """Where an item's JSON row stands in a JSONL file, for rows too big to keep in memory by the thousand."""

    path: Path
    offset: int
    length: int


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

    def content(self) -> Mapping[str, Any]:
        """The whole row under canonical names."""
        raise NotImplementedError  # built in the tasks room

    @property
    def input(self) -> str:
        """The task text. A row with `messages` has its user turns joined here."""
        return str(self.content().get("input", ""))

    @property
    def answers(self) -> tuple[str, ...]:
        """Gold answers; empty when the grader needs none."""
        return tuple(str(answer) for answer in self.content().get("answers", ()))

    @property
    def reference(self) -> str:
        """Hidden reference text: analysts may read it for training items, the agent never does."""
        return str(self.content().get("reference", ""))

    def fingerprint(self) -> str:
        """Stable hash of id and row: changes when the item's meaning changes."""
        return hashlib.sha256(
            json.dumps([self.id, dict(self.content())], sort_keys=True, ensure_ascii=False, default=str).encode()
        ).hexdigest()[:16]
