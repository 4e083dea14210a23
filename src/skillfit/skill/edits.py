"""Edits: the changes an optimizer proposes, and what became of each one.

A patch is a sequence of edits that are applied in order. Each edit gets a status that says what
happened: `applied_<op>`, `applied_append_before_protected_region`, or `skipped_<why>` with a
reason. A skipped edit changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from skillfit.skill.document import Skill
from skillfit.skill.owned_regions import (
    Example,
    examples,
    with_examples,
    with_notes,
    with_slow_update,
    without_slow_update,
)
from skillfit.skill.patching import EditSkipped, Patching
from skillfit.skill.regions import clean

# Internal operations write the regions that skillfit itself owns. Only skillfit creates them: an
# operation of this name in a model's reply is renamed by `Edit.from_reply` and then refused.
#
# `content` is a worked example as JSON; `target` is the item id of the example it replaces. With a
# target and no content, that example is removed.
EXAMPLE_OP = "example"
# `content` replaces the text of the slow-update region. Empty content removes the region.
SLOW_UPDATE_OP = "slow_update"
# `content` is one note for the appendix.
NOTE_OP = "note"
INTERNAL_OPS = (EXAMPLE_OP, SLOW_UPDATE_OP, NOTE_OP)

MAX_EXAMPLES = 8  # in one skill; the agent reads all of them for every task


@dataclass(frozen=True, slots=True)
class Edit:
    """One proposed change. `target` is the anchor: text that stands in the body."""

    op: str
    target: str = ""
    content: str = ""
    support_count: int = 1
    source_type: str = "failure"
    id: str = ""
    label: str = ""

    @classmethod
    def from_reply(cls, op: str, target: str, content: str) -> Edit:
        """An edit that a model sent. Unknown operations are accepted here and skipped when the edit
        is applied.
        """
        word = re.sub(r"[\s-]+", "_", op.strip().lower())
        if word in INTERNAL_OPS:
            word = f"unknown_{word}"
        return cls(word, target, content)

    def as_dict(self) -> dict[str, Any]:
        """The edit as JSON data; `id` and `label` only where they are set."""
        fields = asdict(self)
        for name in ("id", "label"):
            if not fields[name]:
                del fields[name]
        return fields


@dataclass(frozen=True, slots=True)
class EditResult:
    """What became of one edit."""

    edit: Edit
    status: str
    reason: str = ""

    @property
    def applied(self) -> bool:
        return self.status.startswith("applied_")

    def as_dict(self) -> dict[str, Any]:
        """One row of the edit report."""
        return {**self.edit.as_dict(), "status": self.status, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Applied:
    """The skill after a patch, and what became of each edit."""

    skill: Skill
    results: tuple[EditResult, ...]

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits that took effect."""
        return tuple(result.edit for result in self.results if result.applied)


def apply_edits(skill: Skill, edits: Sequence[Edit], max_tokens: int | None = None) -> Applied:
    """Apply a patch.

    Nothing that a model sends raises, changes a protected region or the frontmatter, or makes the
    document longer than `max_tokens` (estimated). Edits that make it shorter are always allowed.
    """
    patching = Patching(skill, max_tokens)
    results = tuple(_apply(patching, edit) for edit in edits)
    return Applied(patching.result(), results)


def _apply(patching: Patching, edit: Edit) -> EditResult:
    try:
        if edit.op in INTERNAL_OPS:
            patching.continue_with(_with_region_changed(patching.result(), edit))
            return EditResult(edit, f"applied_{edit.op}")
        return EditResult(edit, patching.apply(edit.op, edit.target or "", edit.content or ""))
    except EditSkipped as skipped:
        return EditResult(edit, f"skipped_{skipped.status}", skipped.reason)


def example_edit(example: Example, replaces: str = "") -> Edit:
    """The edit that adds an example, or puts it in place of the example of item `replaces`."""
    content = {"item_id": example.item_id, "input": example.input, "output": example.output}
    text = json.dumps(content, ensure_ascii=False)
    return Edit(EXAMPLE_OP, replaces, text, label=f"example {example.item_id}")


def _with_region_changed(skill: Skill, edit: Edit) -> Skill:
    """The skill after an internal operation."""
    if edit.op == EXAMPLE_OP:
        return with_examples(skill, _examples_after(edit, examples(skill)))
    content = clean(edit.content or "").strip()
    if not content and (edit.content or edit.op == NOTE_OP):
        raise EditSkipped("empty_content", "the edit holds no text besides region markers")
    if edit.op == NOTE_OP:
        changed = with_notes(skill, [content])
    elif content:
        changed = with_slow_update(skill, content)
    else:
        changed = without_slow_update(skill)
    if changed == skill:
        raise EditSkipped("no_change", "the skill already says exactly this")
    return changed


def _examples_after(edit: Edit, shown: Sequence[Example]) -> list[Example]:
    """The examples of the skill after an example edit."""
    ids = [example.item_id for example in shown]
    if edit.target and edit.target not in ids:
        raise EditSkipped(
            "example_target_not_found", f"the skill shows no example of item {edit.target}"
        )
    if not edit.content and not edit.target:
        raise EditSkipped("empty_content", "the edit names no example")
    if not edit.content:
        return [example for example in shown if example.item_id != edit.target]
    new = _parse_example(edit.content)
    if new.item_id in ids:
        raise EditSkipped("no_change", "the skill already shows this item")
    if edit.target:
        return [new if example.item_id == edit.target else example for example in shown]
    if len(shown) >= MAX_EXAMPLES:
        raise EditSkipped("example_limit", f"the skill already shows {MAX_EXAMPLES} examples")
    return [*shown, new]


def _parse_example(content: str) -> Example:
    try:
        fields = json.loads(content)
        return Example(str(fields["input"]), str(fields["output"]), str(fields["item_id"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise EditSkipped("invalid_example", "the content is not an example as JSON") from error
