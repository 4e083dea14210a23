"""An edit as an optimizer asks for it, and what became of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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
    def from_reply(cls, reply: object) -> Edit:
        """Whatever a model sent: null, missing, unknown and mistyped fields become empty ones, and applying says so."""
        fields = reply if isinstance(reply, Mapping) else {}
        op = re.sub(r"[\s-]+", "_", _string(fields.get("op")).strip().lower())
        return cls(
            op=f"unknown_{op}" if op == EXAMPLE_OP else op,
            target=_string(fields.get("target")),
            content=_string(fields.get("content")),
            support_count=_count(fields.get("support_count")),
            source_type=_string(fields.get("source_type")) or "failure",
            id=_string(fields.get("id")),
            label=_string(fields.get("label")),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain form; id and label only where given."""
        return {key: value for key, value in asdict(self).items() if value or key not in ("id", "label")}


def _string(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(line for line in value if isinstance(line, str))
    return str(value) if isinstance(value, str | int | float) else ""


def _count(value: object) -> int:
    number = value if isinstance(value, int | float) else 1
    return max(1, int(number)) if math.isfinite(number) else 1


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
