"""Step edits: append, insert_after, replace, delete, and worked examples. Applied in order, each with a status that says what
happened and why.

Status words are `applied_<op>`, `applied_append_before_protected_region`, or `skipped_…`. A skipped edit changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from skillfit.skill.document import Skill
from skillfit.skill.edit import EXAMPLE_OP, Edit, EditResult, Skip
from skillfit.skill.memory import Example, examples, with_examples
from skillfit.skill.patching import Patching

MAX_EXAMPLES = 8  # in a skill: more cost the agent's attention on every task


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
    """Apply a patch. Nothing a model sends raises, touches a protected region or the frontmatter, or passes `max_tokens`
    (estimated, whole document; edits that make it shorter always may)."""
    patching = Patching(skill, max_tokens)
    results = tuple(_tried(patching, edit) for edit in edits)
    return Applied(patching.result(), results)


def _tried(patching: Patching, edit: Edit) -> EditResult:
    try:
        return EditResult(edit, _show(patching, edit) if edit.op == EXAMPLE_OP else patching.apply(edit))
    except Skip as skip:
        return EditResult(edit, f"skipped_{skip.status}", skip.reason)


def example_edit(example: Example, replaces: str = "") -> Edit:
    """The edit that shows an example, in the place of another item's if one is named."""
    content = {"item_id": example.item_id, "input": example.input, "output": example.output}
    return Edit(EXAMPLE_OP, replaces, json.dumps(content, ensure_ascii=False), label=f"example {example.item_id}")


def _show(patching: Patching, edit: Edit) -> str:
    skill = patching.result()
    patching.go_on_with(with_examples(skill, _shown(edit, examples(skill))))
    return "applied_example"


def _shown(edit: Edit, held: Sequence[Example]) -> list[Example]:
    known = [other.item_id for other in held]
    if edit.target not in ["", *known]:
        raise Skip("example_target_not_found", f"the skill shows no example {edit.target}")
    if not edit.content and not edit.target:
        raise Skip("empty_content", "the edit names no example")
    if not edit.content:
        return [other for other in held if other.item_id != edit.target]
    example = _read(edit.content)
    if example.item_id in known:
        raise Skip("no_change", "the skill already shows this item")
    if edit.target:
        return [example if other.item_id == edit.target else other for other in held]
    if len(held) >= MAX_EXAMPLES:
        raise Skip("example_limit", f"the skill already shows {MAX_EXAMPLES} examples")
    return [*held, example]


def _read(content: str) -> Example:
    try:
        fields = json.loads(content)
        return Example(str(fields["input"]), str(fields["output"]), str(fields["item_id"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Skip("invalid_example", "the content is not an example as JSON") from error
