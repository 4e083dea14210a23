"""An edit as an optimizer asks for it, and what became of it.

Putting text edits into a body: finding anchors, keeping out of protected regions, joining blocks.

Step edits: append, insert_after, replace, delete, and worked examples. Applied in order, each with
a status that says what happened and why.

Status words are `applied_<op>`, `applied_append_before_protected_region`, or `skipped_…`. A skipped
edit changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from skillfit.skill.document import Skill
from skillfit.skill.regions import (
    Example,
    Region,
    clean,
    examples,
    protected,
    scan,
    with_examples,
    with_notes,
    with_slow_update,
    without_slow_update,
)

OPS = ("append", "insert_after", "replace", "delete")
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
        return cls(f"unknown_{word}" if word in INTERNAL_OPS else word, target, content)

    def as_dict(self) -> dict[str, Any]:
        """Plain form; id and label only where given."""
        return {
            key: value for key, value in asdict(self).items() if value or key not in ("id", "label")
        }


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


_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d+[.)])[ \t]")


class _Splice(NamedTuple):
    """Put `text` in place of body[start:end]; `lead` of its characters come before the content
    proper.
    """

    start: int
    end: int
    text: str
    lead: int = 0
    length: int = 0


class Patching:
    """A body on its way through one patch. `touched` are the spans earlier edits of the patch
    wrote.
    """

    def __init__(self, skill: Skill, max_tokens: int | None) -> None:
        self.max_tokens = max_tokens
        self._begin(skill)

    def _begin(self, skill: Skill) -> None:
        self.skill, self.original, self.body = skill, skill.unix_body, skill.unix_body
        self.touched: list[tuple[int, int]] = []

    def go_on_with(self, skill: Skill) -> None:
        """Take over a skill that was changed elsewhere; what follows is a patch to that one."""
        self._refuse_growth(skill)
        self._begin(skill)

    def apply(self, edit: Edit) -> str:
        if edit.op not in OPS:
            raise Skip("unknown_op", f"op is {edit.op!r}; known are {', '.join(OPS)}")
        content = clean(edit.content or "").strip("\n") if edit.op != "delete" else ""
        if edit.op != "delete" and not content.strip():
            raise Skip(
                "empty_content",
                "there is nothing to write (markers of protected regions do not count)",
            )
        regions = scan(self.body)
        if edit.op == "append":
            return self._append(content, regions)
        start, end = self._locate(edit.op, (edit.target or "").replace("\r\n", "\n"), regions)
        if edit.op == "insert_after":
            self._commit(_insertion(self.body, _line_end(self.body, end, regions), content))
        elif edit.op == "replace":
            content = _edge(self.body[start:end], content)
            self._commit(_Splice(start, end, content, 0, len(content)))
        else:
            self._commit(_deletion(self.body, start, end))
        return f"applied_{edit.op}"

    def result(self) -> Skill:
        return self.skill if self.body == self.original else self.skill.with_body(self.body)

    def _append(self, content: str, regions: Sequence[Region]) -> str:
        if f"\n{content}\n" in f"\n{self.body}\n":
            raise Skip("no_change", "the skill already says exactly this")
        at = end = len(self.body)
        for region in reversed(regions):
            if not self.body[region.end : at].strip():
                at = region.start
        self._commit(_insertion(self.body, at, content))
        return "applied_append" if at == end else "applied_append_before_protected_region"

    def _locate(self, op: str, target: str, regions: Sequence[Region]) -> tuple[int, int]:
        if not target.strip():
            raise Skip(f"{op}_missing_target", "the edit names no text to anchor to")
        spans = _find(self.body, target)
        if not spans and _find(self.original, target):
            raise Skip(
                "overlapping_edit", "an earlier edit of this patch already changed the target"
            )
        if not spans and _find(self.skill.head, target):
            raise Skip(
                "frontmatter", "the target is in the frontmatter, which edits may not change"
            )
        if not spans:
            raise Skip(f"{op}_target_not_found", "the target is not in the skill")
        free = [
            span
            for span in spans
            if not any(_overlap(span, (region.start, region.end)) for region in regions)
        ]
        if not free:
            raise Skip("protected_region", "the target is in, or reaches into, a protected region")
        fresh = [
            span for span in free if not any(_overlap(span, touched) for touched in self.touched)
        ]
        if not fresh and op != "insert_after":
            raise Skip("overlapping_edit", "an earlier edit of this patch wrote this text")
        matches = fresh or free
        lines = [span for span in matches if _is_whole_lines(self.body, span)]
        if len(matches) > 1 and len(lines) != 1:
            raise Skip(f"{op}_target_ambiguous", f"the target stands in {len(matches)} places")
        return (lines if len(matches) > 1 else matches)[0]

    def _commit(self, splice: _Splice) -> None:
        start, end, text, lead, length = splice
        body = self.body[:start] + text + self.body[end:]
        if body == self.body:
            raise Skip("no_change", "the skill would stay as it is")
        if protected(body) != protected(self.body):
            raise Skip(
                "protected_region", "the result would make, break or reach into a protected region"
            )
        self._refuse_growth(self.skill.with_body(body))
        shift = len(text) - (end - start)
        moved = [(a + shift, b + shift) if a >= end else (a, b) for a, b in self.touched]
        self.touched = [*moved, (start + lead, start + lead + length)]
        self.body = body

    def _refuse_growth(self, new: Skill) -> None:
        if self.max_tokens is not None and new.tokens > max(self.max_tokens, self.result().tokens):
            raise Skip(
                "over_token_ceiling",
                f"the skill would have about {new.tokens} tokens; {self.max_tokens} are allowed",
            )


def _find(body: str, target: str) -> list[tuple[int, int]]:
    """Where the target stands: exactly, else with other white space."""
    exact, at = [], body.find(target)
    while at >= 0:
        exact.append((at, at + len(target)))
        at = body.find(target, at + len(target))
    words = target.split()
    if exact or not all(word in body for word in words):
        return exact
    return [match.span() for match in re.finditer(r"\s+".join(map(re.escape, words)), body)]


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _is_whole_lines(body: str, span: tuple[int, int]) -> bool:
    before, after = body[: span[0]].rstrip(" \t"), body[span[1] :].lstrip(" \t")
    return (not before or before.endswith("\n")) and (
        not after or after.startswith("\n") or body[span[1] - 1] == "\n"
    )


def _line_end(body: str, at: int, regions: Sequence[Region]) -> int:
    """The end of the line an anchor ends in, past any region that line leads into."""
    if body[at - 1] == "\n":
        return at - 1
    end = (body + "\n").index("\n", at)
    for region in regions:
        if region.start < end < region.end:
            end = (body + "\n").index("\n", region.end)
    return end


def _insertion(body: str, at: int, content: str) -> _Splice:
    """Content as a block of its own at a line end: one blank line around it, none between items of
    a list.
    """
    before, after = body[:at].rstrip("\n"), body[at:].lstrip("\n")
    lead = _gap(before, content) if before else ""
    tail = _gap(content, after) if after else "\n"
    return _Splice(
        len(before), len(body) - len(after), lead + content + tail, len(lead), len(content)
    )


def _gap(upper: str, lower: str) -> str:
    tight = _LIST_ITEM.match(upper[upper.rfind("\n") + 1 :]) and _LIST_ITEM.match(lower)
    return "\n" if tight else "\n\n"


def _edge(old: str, new: str) -> str:
    """New text with the newlines that bound the old one."""
    inner = old.strip("\n")
    return old[: old.index(inner)] + new + old[old.index(inner) + len(inner) :] if inner else new


def _deletion(body: str, start: int, end: int) -> _Splice:
    """Take whole lines with their newline, so that no gap is left behind."""
    if (start == 0 or body[start - 1] == "\n") and body[end : end + 1] == "\n":
        end += 1
        while body[end : end + 1] == "\n" and (start == 0 or body[start - 2 : start] == "\n\n"):
            end += 1
    return _Splice(start, end, "")


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
    """Apply a patch. Nothing a model sends raises, touches a protected region or the frontmatter,
    or passes `max_tokens` (estimated, whole document; edits that make it shorter always may).
    """
    patching = Patching(skill, max_tokens)
    results = tuple(_tried(patching, edit) for edit in edits)
    return Applied(patching.result(), results)


def _tried(patching: Patching, edit: Edit) -> EditResult:
    try:
        if edit.op not in INTERNAL_OPS:
            return EditResult(edit, patching.apply(edit))
        patching.go_on_with(_with_region_changed(patching.result(), edit))
        return EditResult(edit, f"applied_{edit.op}")
    except Skip as skip:
        return EditResult(edit, f"skipped_{skip.status}", skip.reason)


def example_edit(example: Example, replaces: str = "") -> Edit:
    """The edit that shows an example, in the place of another item's if one is named."""
    content = {"item_id": example.item_id, "input": example.input, "output": example.output}
    return Edit(
        EXAMPLE_OP,
        replaces,
        json.dumps(content, ensure_ascii=False),
        label=f"example {example.item_id}",
    )


def _with_region_changed(skill: Skill, edit: Edit) -> Skill:
    """The skill after an internal operation; `Skip` when that would change nothing."""
    if edit.op == EXAMPLE_OP:
        return with_examples(skill, _shown(edit, examples(skill)))
    content = clean(edit.content or "").strip()
    if not content and (edit.content or edit.op == NOTE_OP):
        raise Skip("empty_content", "the edit holds no text besides region markers")
    if edit.op == NOTE_OP:
        changed = with_notes(skill, [content])
    elif content:
        changed = with_slow_update(skill, content)
    else:
        changed = without_slow_update(skill)
    if changed == skill:
        raise Skip("no_change", "the skill already says exactly this")
    return changed


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
