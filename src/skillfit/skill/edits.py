"""Edits: the changes an optimizer proposes, and what became of each one.

A patch is a sequence of edits that are applied in order. Each edit gets a status that says what
happened: `applied_<op>`, `applied_append_before_protected_region`, or `skipped_<why>` with a
reason. A skipped edit changes nothing. Text edits find their anchor in the part of the skill that
they name, leave protected regions alone and join blocks with blank lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, NotRequired, TypedDict

from skillfit.errors import InputError
from skillfit.skill.document import Skill, over_ceiling
from skillfit.skill.parts import (
    BODY,
    DESCRIPTION,
    clash,
    named_file,
    over_limit,
    part_of,
    part_text,
    with_part,
)
from skillfit.skill.regions import (
    DECEPTIVE,
    Example,
    Region,
    clean,
    examples,
    scan,
    texts_of,
    with_examples,
    with_notes,
    with_slow_update,
    without_slow_update,
)

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
_INTERNAL_OPS = (EXAMPLE_OP, SLOW_UPDATE_OP, NOTE_OP)
TEXT_OPS = ("append", "insert_after", "replace", "delete")
# Takes `target` out of the body, puts `content` (a pointer) in its place, and appends the text to
# the reference that `file` names.
MOVE_OP = "move"
# `content` becomes the whole text of the script that `file` names; without content it is removed.
# Scripts have no other operation: any subset of edits leaves each script as somebody wrote it.
WRITE_OP = "write"
MAX_EXAMPLES = 8  # in one skill; the agent reads all of them for every task

# More places than this are ambiguous anyway; the limit keeps the search for them quick.
_MOST_PLACES = 200
# Inserted text continues a list if it begins like this.
_ITEM_WITH_TEXT = re.compile(r"[ \t]*(?:[-*+]|\d+[.)])[ \t]")


@dataclass(frozen=True, slots=True)
class Edit:
    """One proposed change. `target` is the anchor: text in the part that is changed.

    `file` names the part: nothing for the body, `description`, or the path of a file in references/
    or scripts/. Appending to a file that does not exist creates it; a file that loses all of its
    text is removed.
    """

    op: str
    target: str = ""
    content: str = ""
    support_count: int = 1
    source_type: str = "failure"
    id: str = ""
    label: str = ""
    file: str = BODY

    @classmethod
    def from_reply(cls, op: str, target: str, content: str, file: str = BODY) -> Edit:
        """Read an edit that a model sent. Unknown operations and files are accepted here and
        skipped when the edit is applied.
        """
        word = re.sub(r"[\s-]+", "_", op.strip().lower())
        if word in _INTERNAL_OPS:
            word = f"unknown_{word}"
        return cls(word, target, content, file=named_file(file))

    def as_json(self) -> EditFields:
        """Return the fields as written; `id`, `label` and `file` only where they are set."""
        fields = EditFields(
            op=self.op,
            target=self.target,
            content=self.content,
            support_count=self.support_count,
            source_type=self.source_type,
        )
        if self.id:
            fields["id"] = self.id
        if self.label:
            fields["label"] = self.label
        if self.file:
            fields["file"] = self.file
        return fields


class EditFields(TypedDict):
    op: str
    target: str
    content: str
    support_count: int
    source_type: str
    id: NotRequired[str]
    label: NotRequired[str]
    file: NotRequired[str]  # left out for the body


class EditReportRow(EditFields):
    """A row of edit_apply_report.json."""

    status: str
    reason: str


def apply_edits(skill: Skill, edits: Sequence[Edit], max_tokens: int | None = None) -> Applied:
    """Apply a patch.

    Nothing that a model sends raises, changes a protected region or another entry of the
    frontmatter than the description, names a file outside of the skill's parts, or makes the
    document longer than `max_tokens` (estimated). Edits that make it shorter are always allowed.
    """
    patching = _Patching(skill, max_tokens)
    results = tuple(_apply_edit(patching, edit) for edit in edits)
    return Applied(patching.result(), results)


@dataclass(frozen=True, slots=True)
class Applied:
    """The skill after a patch, and the status of each edit."""

    skill: Skill
    results: tuple[EditResult, ...]

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits that took effect."""
        return tuple(result.edit for result in self.results if result.applied)


@dataclass(frozen=True, slots=True)
class EditResult:
    """What became of one edit."""

    edit: Edit
    status: str
    reason: str = ""

    @property
    def applied(self) -> bool:
        return self.status.startswith("applied_")

    def as_row(self) -> EditReportRow:
        """Return one row of the edit report."""
        return {**self.edit.as_json(), "status": self.status, "reason": self.reason}


def _apply_edit(patching: _Patching, edit: Edit) -> EditResult:
    try:
        if edit.op in _INTERNAL_OPS:
            if edit.file:
                raise _EditSkipped("unknown_file", f"{edit.op} changes the body alone")
            patching.continue_with(_with_region_changed(patching.result(), edit))
            return EditResult(edit, f"applied_{edit.op}")
        return EditResult(edit, patching.apply(edit))
    except _EditSkipped as skipped:
        return EditResult(edit, f"skipped_{skipped.status}", skipped.reason)


class _EditSkipped(Exception):
    """An edit is not applied. Its status becomes `skipped_<status>`."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason


def example_edit(example: Example, replaces: str = "") -> Edit:
    """Return the edit that adds an example, or puts it in place of the example of item
    `replaces`.
    """
    content = {"item_id": example.item_id, "input": example.input, "output": example.output}
    text = json.dumps(content, ensure_ascii=False)
    return Edit(EXAMPLE_OP, replaces, text, label=f"example {example.item_id}")


def example_of(edit: Edit) -> Example | None:
    """Return the example that an edit adds; None for other edits."""
    if edit.op != EXAMPLE_OP or not edit.content:
        return None
    try:
        return _parse_example(edit.content)
    except _EditSkipped:
        return None


def _with_region_changed(skill: Skill, edit: Edit) -> Skill:
    """Return the skill after an internal operation."""
    if edit.op == EXAMPLE_OP:
        return with_examples(skill, _examples_after(edit, examples(skill)))
    content = clean(edit.content or "").strip()
    if not content and (edit.content or edit.op == NOTE_OP):
        raise _EditSkipped("empty_content", "the edit holds no text besides region markers")
    if edit.op == NOTE_OP:
        changed = with_notes(skill, [content])
    elif content:
        changed = with_slow_update(skill, content)
    else:
        changed = without_slow_update(skill)
    if changed == skill:
        raise _EditSkipped("no_change", "the skill already says exactly this")
    return changed


def _examples_after(edit: Edit, shown: Sequence[Example]) -> list[Example]:
    """Return the examples of the skill after an example edit."""
    ids = [example.item_id for example in shown]
    if edit.target and edit.target not in ids:
        raise _EditSkipped(
            "example_target_not_found", f"the skill shows no example of item {edit.target}"
        )
    if not edit.content and not edit.target:
        raise _EditSkipped("empty_content", "the edit names no example")
    if not edit.content:
        return [example for example in shown if example.item_id != edit.target]
    new = _parse_example(edit.content)
    if new.item_id in ids:
        raise _EditSkipped("no_change", "the skill already shows this item")
    if edit.target:
        return [new if example.item_id == edit.target else example for example in shown]
    if len(shown) >= MAX_EXAMPLES:
        raise _EditSkipped("example_limit", f"the skill already shows {MAX_EXAMPLES} examples")
    return [*shown, new]


def _parse_example(content: str) -> Example:
    try:
        fields = json.loads(content)
        return Example(str(fields["input"]), str(fields["output"]), str(fields["item_id"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _EditSkipped("invalid_example", "the content is not an example as JSON") from error


class _Patching:
    """The state of a skill while one patch is applied: its parts that were changed so far."""

    def __init__(self, skill: Skill, max_tokens: int | None) -> None:
        self._max_tokens = max_tokens
        self._skill = skill
        self._texts: dict[str, _PartText] = {}

    def result(self) -> Skill:
        """Return the skill after the edits so far."""
        return self._with(self._texts)

    def continue_with(self, skill: Skill) -> None:
        """Take over a skill that was changed outside; the following edits apply to it."""
        self._refuse_growth(skill, BODY)
        self._skill, self._texts = skill, {}

    def apply(self, edit: Edit) -> str:
        """Apply one text edit and return its status. Raises `_EditSkipped` and changes nothing when
        the edit cannot be applied.
        """
        op, target = edit.op, edit.target or ""
        if op not in (*TEXT_OPS, MOVE_OP, WRITE_OP):
            raise _EditSkipped("unknown_op", f"op is {op!r}; available: {', '.join(TEXT_OPS)}")
        content = edit.content or ""
        content = "" if op == "delete" else content if op == WRITE_OP else clean(content)
        content = content.strip("\n")
        if op not in ("delete", MOVE_OP, WRITE_OP) and not content.strip():
            raise _EditSkipped(
                "empty_content",
                "there is nothing to write (markers of protected regions do not count)",
            )
        if op == MOVE_OP:
            return self._move(target, content, edit.file)
        text = self._text(edit.file, creates=op in ("append", WRITE_OP))
        if (part_of(edit.file) == "scripts") != (op == WRITE_OP):
            raise _EditSkipped("unknown_op", f"{WRITE_OP} is the op of scripts, and only of them")
        if op == WRITE_OP:
            content = content.replace("\r\n", "\n")
            if unreadable := sorted(set(DECEPTIVE.findall(content))):
                shown = ", ".join(f"U+{ord(one):04X}" for one in unreadable)
                raise _EditSkipped("unreadable", f"the script holds control characters: {shown}")
            splice, status = text.rewritten(f"{content}\n" if content else ""), f"applied_{op}"
        elif op == "append":
            splice, status = text.append(content)
        else:
            splice, status = text.splice(op, target, content), f"applied_{op}"
        changed = text.after(splice)
        if edit.file == DESCRIPTION and not changed.text.strip():
            raise _EditSkipped("empty_content", "a skill must have a description")
        self._commit({edit.file: changed})
        return status

    def _move(self, target: str, pointer: str, file: str) -> str:
        if part_of(file) != "references":
            raise _EditSkipped("unknown_file", "text moves into a file in references/")
        body, reference = self._text(BODY), self._text(file, creates=True)
        span = body.locate(MOVE_OP, target)
        moved = body.text[span.start : span.end].strip("\n")
        taken = body.splice("replace" if pointer.strip() else "delete", target, pointer)
        added, _ = reference.append(moved)
        self._commit({BODY: body.after(taken), file: reference.after(added)})
        return f"applied_{MOVE_OP}"

    def _text(self, file: str, *, creates: bool = False) -> _PartText:
        """Return the present text of a part; empty if the edit creates it."""
        if file in self._texts:
            return self._texts[file]
        if part_of(file) is None:
            raise _EditSkipped(
                "unknown_file",
                f"{file!r} is not the body, the description or a file in references/ or scripts/",
            )
        present = self.result()
        is_new = file not in (BODY, DESCRIPTION) and file not in present.files
        if is_new and (other := clash(present, file)):
            raise _EditSkipped("unknown_file", f"{file} cannot stand beside {other}")
        text = part_text(self._skill, file)
        if text is None and (not creates or file in self._skill.files):
            problem = "is not UTF-8 text" if file in self._skill.files else "does not exist"
            raise _EditSkipped("file_not_found", f"{file} {problem}")
        head = self._skill.head if file == BODY else ""
        return _PartText(text or "", text or "", scan(text or ""), head)

    def _commit(self, changed: dict[str, _PartText]) -> None:
        texts = {**self._texts, **changed}
        if self._max_tokens is not None or any(file != BODY for file in changed):
            new = self._with(texts)
            for file in changed:
                self._refuse_growth(new, file)
        self._texts = texts

    def _with(self, texts: dict[str, _PartText]) -> Skill:
        skill = self._skill
        for file, text in texts.items():
            if text.text == text.original:
                continue
            try:
                skill = with_part(skill, file, text.text)
            except InputError as error:
                raise _EditSkipped("frontmatter", error.message) from error
        return skill

    def _refuse_growth(self, new: Skill, file: str) -> None:
        present = self.result()
        if problem := over_ceiling(new, present, self._max_tokens):
            raise _EditSkipped("over_token_ceiling", problem)
        if problem := over_limit(new, file, part_text(present, file) or ""):
            raise _EditSkipped("over_size_limit", problem)


@dataclass(frozen=True, slots=True)
class _PartText:
    """The text of one part while a patch is applied.

    `written` are the places that earlier edits of the patch wrote or deleted. Later edits of the
    same patch may not change them.
    """

    original: str
    text: str
    regions: tuple[Region, ...]
    head: str = ""  # the frontmatter above a body, which no anchor may be in
    written: tuple[_Span, ...] = ()

    def splice(self, op: str, target: str, content: str) -> _Splice:
        """Plan an edit at the one place that the target names."""
        span = self.locate(op, target)
        if op == "insert_after":
            place = _line_end(self.text, span.end, self.regions)
            return _insertion(self.text, place, content)
        if op == "replace":
            content = _with_edges_of(self.text[span.start : span.end], content)
            return _Splice(span, content, _Span(0, len(content)))
        return _deletion(self.text, span)

    def rewritten(self, content: str) -> _Splice:
        """Plan to put another text in place of the whole."""
        whole = _Span(0, len(self.text))
        if self.written:
            raise _EditSkipped("overlapping_edit", "an earlier edit of this patch wrote the script")
        return _Splice(whole, content, _Span(0, len(content)))

    def append(self, content: str) -> tuple[_Splice, str]:
        """Plan to append, before protected regions at the end, and name the status."""
        if f"\n{content}\n" in f"\n{self.text}\n":
            raise _EditSkipped("no_change", "the skill already says exactly this")
        place = len(self.text)
        status = "applied_append"
        for region in reversed(self.regions):
            if not self.text[region.end : place].strip():
                place = region.start
                status = "applied_append_before_protected_region"
        return _insertion(self.text, place, content), status

    def locate(self, op: str, target: str) -> _Span:
        """Find the one place that the target names."""
        if not target.strip():
            raise _EditSkipped(f"{op}_missing_target", "the edit names no text to anchor to")
        places = self._places_of(op, target)
        allowed = [place for place in places if not _overlaps_any(place, self.regions)]
        if not allowed:
            raise _EditSkipped(
                "protected_region", "the target is in, or reaches into, a protected region"
            )
        unwritten = [place for place in allowed if not _overlaps_any(place, self.written)]
        if not unwritten and op != "insert_after":
            raise _EditSkipped("overlapping_edit", "an earlier edit of this patch wrote this text")
        places = unwritten or allowed
        if len(places) == 1:
            return places[0]
        whole_lines = [place for place in places if _is_whole_lines(self.text, place)]
        if len(whole_lines) != 1:
            raise _EditSkipped(
                f"{op}_target_ambiguous", f"the target occurs in {len(places)} places"
            )
        return whole_lines[0]

    def _places_of(self, op: str, target: str) -> list[_Span]:
        places = _find_target(self.text, target)
        if places:
            return places
        if _find_target(self.original, target):
            raise _EditSkipped(
                "overlapping_edit", "an earlier edit of this patch already changed the target"
            )
        if _find_target(self.head, target):
            raise _EditSkipped(
                "frontmatter", "the target is in the frontmatter, which edits may not change"
            )
        raise _EditSkipped(f"{op}_target_not_found", "the target is not in the skill")

    def after(self, splice: _Splice) -> _PartText:
        """Return the text with a splice made."""
        start, end = splice.span
        text = self.text[:start] + splice.text + self.text[end:]
        if text == self.text:
            raise _EditSkipped("no_change", "the skill would stay as it is")
        regions = scan(text)
        if texts_of(regions) != texts_of(self.regions):
            raise _EditSkipped(
                "protected_region", "the result would make, break or reach into a protected region"
            )
        written = tuple(
            span if span.end < start else _span_after(splice, span) for span in self.written
        )
        content = _Span(start + splice.content.start, start + splice.content.end)
        return replace(self, text=text, regions=regions, written=(*written, content))


class _Span(NamedTuple):
    """A range of characters of the body."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Splice:
    """Put `text` in place of `span`. `content` is the part of `text` that the edit asked for, as a
    range within `text`; the rest is newlines around it.
    """

    span: _Span
    text: str
    content: _Span


def _span_after(splice: _Splice, span: _Span) -> _Span:
    """Find where a range of the old text is after the splice."""
    shift = len(splice.text) - (splice.span.end - splice.span.start)

    def moved(position: int) -> int:
        if position >= splice.span.end:
            return position + shift
        return min(position, splice.span.start)

    return _Span(moved(span.start), moved(span.end))


def _find_target(body: str, target: str) -> list[_Span]:
    """Return the places where the target occurs: exactly, else with other newlines or white
    space.
    """
    exact = {*_occurrences(body, target), *_line_occurrences(body, target)}
    if exact:
        return sorted(exact)
    unix = target.replace("\r\n", "\n")
    if unix != target and (places := _find_target(body, unix)):
        return places
    words = target.split()
    if not all(word in body for word in words):
        return []
    pattern = r"\s+".join(re.escape(word) for word in words)
    return [_Span(*match.span()) for match in re.finditer(pattern, body)]


def _occurrences(body: str, target: str) -> list[_Span]:
    """Return the places that do not overlap each other, from left to right."""
    places = []
    start = body.find(target)
    while start >= 0:
        places.append(_Span(start, start + len(target)))
        start = body.find(target, start + len(target))
    return places


def _line_occurrences(body: str, target: str) -> list[_Span]:
    """Return the places at the beginning of a line. They may overlap each other, and a place that
    begins within a line cannot hide them.
    """
    places = [_Span(0, len(target))] if body.startswith(target) else []
    newline = body.find(f"\n{target}")
    while newline >= 0 and len(places) < _MOST_PLACES:
        places.append(_Span(newline + 1, newline + 1 + len(target)))
        newline = body.find(f"\n{target}", newline + 1)
    return places


def _overlaps_any(span: _Span, others: Sequence[_Span | Region]) -> bool:
    return any(span.start < other.end and other.start < span.end for other in others)


def _is_whole_lines(body: str, span: _Span) -> bool:
    """Return whether only spaces are before the span on its first line and after it on its last
    line.
    """
    before = body[: span.start].rstrip(" \t")
    after = body[span.end :].lstrip(" \t")
    starts_line = not before or before.endswith("\n")
    ends_line = not after or after.startswith("\n") or body[span.end - 1] == "\n"
    return starts_line and ends_line


def _line_end(body: str, position: int, regions: Sequence[Region]) -> int:
    """Return the end of the line that an anchor ends in. When a protected region begins on that
    line, the end of the line on which the region ends.
    """
    if body[position - 1] == "\n":
        return position - 1
    end = (body + "\n").index("\n", position)
    for region in regions:
        if region.start < end < region.end:
            end = (body + "\n").index("\n", region.end)
    return end


def _insertion(body: str, place: int, content: str) -> _Splice:
    """Plan to insert content as a separate block at a line end: with one blank line before and
    after it, and none between items of a list.
    """
    before, after = body[:place].rstrip("\n"), body[place:].lstrip("\n")
    lead = _gap_between(before, content) if before else ""
    tail = _gap_between(content, after) if after else "\n"
    return _Splice(
        _Span(len(before), len(body) - len(after)),
        lead + content + tail,
        _Span(len(lead), len(lead) + len(content)),
    )


def _gap_between(upper: str, lower: str) -> str:
    last_line = upper[upper.rfind("\n") + 1 :]
    both_items = _ITEM_WITH_TEXT.match(last_line) and _ITEM_WITH_TEXT.match(lower)
    return "\n" if both_items else "\n\n"


def _with_edges_of(old: str, new: str) -> str:
    """Return the new text with the newlines that the old text begins and ends with."""
    inner = old.strip("\n")
    if not inner:
        return new
    start = old.index(inner)
    return old[:start] + new + old[start + len(inner) :]


def _deletion(body: str, span: _Span) -> _Splice:
    """Delete the span. Whole lines go with their newline and with the blank lines that would
    otherwise be doubled or left at the end of the body.
    """
    start, end = span
    starts_line = start == 0 or body[start - 1] == "\n"
    if not starts_line or body[end : end + 1] not in ("\n", ""):
        return _Splice(span, "", _Span(0, 0))
    if end < len(body):
        end += 1
    while body[end : end + 1] == "\n" and (start == 0 or body[start - 2 : start] == "\n\n"):
        end += 1
    while end == len(body) and body[start - 2 : start] == "\n\n":
        start -= 1
    return _Splice(_Span(start, end), "", _Span(0, 0))
