"""An edit as an optimizer asks for it, and what became of it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

OPS = ("append", "insert_after", "replace", "delete")
# Adds a worked example: `content` is the example as JSON, `target` the item id of one it takes the place of. Without content, the
# example of `target` goes. Made by the examples proposer only: a model cannot send it.
EXAMPLE_OP = "example"


@dataclass(frozen=True, slots=True)
class Edit:
    """One change an optimizer asks for. `target` is the anchor: text that stands in the body."""

    op: str
    target: str = ""
    content: str = ""
    support_count: int = 1
    source_type: str = "failure"
    id: str = ""
    label: str = ""

    @classmethod
    def from_reply(cls, op: str, target: str, content: str) -> Edit:
        """What a model sent. Any word may stand for `op`; applying says which ones are not known."""
        word = re.sub(r"[\s-]+", "_", op.strip().lower())
        return cls(f"unknown_{word}" if word == EXAMPLE_OP else word, target, content)

    def as_dict(self) -> dict[str, Any]:
        """Plain form; id and label only where given."""
        return {key: value for key, value in asdict(self).items() if value or key not in ("id", "label")}


@dataclass(frozen=True, slots=True)
class EditResult:
    edit: Edit
    status: str
    reason: str = ""

    @property
    def applied(self) -> bool:
        return self.status.startswith("applied_")

    def as_dict(self) -> dict[str, Any]:
        """One row of the edit report."""
        return {**self.edit.as_dict(), "status": self.status, "reason": self.reason}


class Skip(Exception):
    """Why an edit is not applied: ends it as `skipped_<status>`."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
