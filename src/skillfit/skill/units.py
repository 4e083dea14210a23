"""Split the body of a skill into units that can be removed one by one.

`skillfit ablate` removes random subsets of the units to measure what each one is worth, and
`optimizer.prune_initial` offers each removal as an edit. A unit is a paragraph, list, table or code
block, or with `by="line"` a list item or a sentence line. Headings are removed only together with
the whole text of their section. Frontmatter and protected regions are never part of a unit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from skillfit.skill.document import Skill, estimate_tokens
from skillfit.skill.edits import WRITE_OP, Edit, apply_edits
from skillfit.skill.parts import BODY, Part, part_of, part_text, part_texts
from skillfit.skill.regions import scan

Granularity = Literal["paragraph", "line"]  # of units
_BlockKind = Literal["heading", "rule", "paragraph", "list", "table", "code"]

_REMOVAL_LABEL = "remove "  # how the label of a removal begins
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t\r]*$")
_RULE = re.compile(r" {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})\r?$")
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?:[ \t]|\r?$)")
_CODE_FENCE = re.compile(r"[> \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(?P<fence>`{3,}(?=[^`]*$)|~{3,})")
_SENTENCE_END = re.compile(r"[.!?:;…。！？][\"'”’»)\]*_`]*[ \t\r]*$|(?: {2,}|\\)\r?$")


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a skill that can be removed. Lines count from 1 in the whole file, frontmatter
    included; `end` is the last line of the unit.
    """

    id: str  # L12 or L12-15, after its lines; references/a.md:L12 in a file
    text: str
    start: int
    end: int
    file: str = BODY

    @property
    def tokens(self) -> int:
        """Estimated tokens of the text."""
        return estimate_tokens(self.text)

    @property
    def removal(self) -> Edit:
        """The edit that removes the unit. The removals of any subset of the units can be applied
        together, in any order.
        """
        label = f"{_REMOVAL_LABEL}{self.lines}"
        edit = Edit("delete", self.text, id=self.id, label=label, source_type="prune")
        if part_of(self.file) == "scripts":
            edit = replace(edit, op=WRITE_OP, target="")
        return replace(edit, file=self.file)

    @property
    def lines(self) -> str:
        """Where it is, for people: "line 12", "lines 12-15" or "line 12 of references/a.md"; a
        script is removed as a whole.
        """
        if part_of(self.file) == "scripts":
            return self.file
        single = self.start == self.end
        lines = f"line {self.start}" if single else f"lines {self.start}-{self.end}"
        return f"{lines} of {self.file}" if self.file else lines


def units(skill: Skill, by: Granularity = "paragraph", file: str = BODY) -> tuple[Unit, ...]:
    """Return the removable units of the body, or of another file of the skill, in order. A script
    is one unit.

    Text whose removal could be ambiguous, because the same lines occur elsewhere too, is left out.
    """
    text = part_text(skill, file) or ""
    lines = text.split("\n")
    if part_of(file) == "scripts":
        return () if scan(text) else (Unit(file, text, 1, len(lines), file),)
    protected, glued = _protected_lines(text, lines), _glued_lines(lines)
    body = _BodyLines(lines, _with_glued(protected, glued), glued)
    spans = _unit_blocks(body, _blocks(body), by)
    counts = Counter(
        line.strip(" \t") for number, line in enumerate(lines) if number not in protected
    )
    first_line = skill.head.count("\n") + 1 if file == BODY else 1
    found = []
    for span in spans:
        texts = lines[span.start : span.end]
        is_protected = any(number in body.protected for number in range(span.start, span.end))
        is_unique = any(line.strip() and counts[line.strip(" \t")] == 1 for line in texts)
        if is_protected or not is_unique:
            continue
        start, end = first_line + span.start, first_line + span.end - 1
        name = f"L{start}" if start == end else f"L{start}-{end}"
        if file != BODY:
            name = f"{file}:{name}"
        found.append(Unit(name, "\n".join(texts), start, end, file))
    return tuple(found)


def units_of_parts(skill: Skill, by: Granularity, parts: Collection[Part]) -> tuple[Unit, ...]:
    """Return the removable units of the body, references and scripts, where `parts` has them."""
    files = [*([BODY] if "body" in parts else []), *part_texts(skill, parts)]
    return tuple(unit for file in files for unit in units(skill, by, file))


def without_units(skill: Skill, removed: Iterable[Unit]) -> Skill:
    """Return the skill without these units, which must come from `units(skill)`."""
    applied = apply_edits(skill, [unit.removal for unit in removed])
    for result in applied.results:
        if not result.applied:
            raise ValueError(f"{result.edit.id} is not a unit of this skill: {result.reason}")
    return applied.skill


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a body: a list item, a sentence line, a table, a code block, a heading, a rule or
    a protected region. Lines count from 0 in the body; `end` is exclusive.
    """

    text: str
    start: int
    end: int
    heading: bool = False
    protected: bool = False


def pieces(body: str) -> tuple[Piece, ...]:
    """Return the pieces of a body in order. Blank lines between them belong to none."""
    lines = body.split("\n")
    protected, glued = _protected_lines(body, lines), _glued_lines(lines)
    known = _BodyLines(lines, _with_glued(protected, glued), glued)
    spans = [span for block in _blocks(known) for span in _parts_of_block(known, block)]
    spans += _protected_spans(known)
    return tuple(
        Piece(
            "\n".join(lines[span.start : span.end]),
            span.start,
            span.end,
            heading=span.kind in ("heading", "rule"),
            protected=span.start in known.protected,
        )
        for span in sorted(spans, key=lambda span: span.start)
    )


def _protected_spans(body: _BodyLines) -> list[_LineBlock]:
    """Return each run of protected lines, without the blank ones around it."""
    spans: list[_LineBlock] = []
    for number in sorted(body.protected):
        if body.is_blank(number):
            continue
        last = spans[-1] if spans else None
        between = range(last.end, number) if last is not None else range(0)
        if last is not None and all(one in body.protected for one in between):
            spans[-1] = _LineBlock(last.start, number + 1, last.kind)
        else:
            spans.append(_LineBlock(number, number + 1, "paragraph"))
    return spans


def removed_lines(removal: Edit) -> str:
    """Return the lines of the initial skill that a unit's removal takes out, for people."""
    return removal.label.removeprefix(_REMOVAL_LABEL)


@dataclass(frozen=True, slots=True)
class _LineBlock:
    """A range of lines of the body; `end` is exclusive."""

    start: int
    end: int
    kind: _BlockKind
    level: int = 0  # of a heading


@dataclass(frozen=True, slots=True)
class _BodyLines:
    """The lines of a body, and what must be known about them before they are grouped."""

    lines: Sequence[str]
    protected: frozenset[int]
    glued: frozenset[int]  # lines inside a code block or comment that began on an earlier line

    def is_blank(self, number: int) -> bool:
        return not self.lines[number].strip()

    def indent(self, number: int) -> int:
        expanded = self.lines[number].expandtabs(4)
        return len(expanded) - len(expanded.lstrip())

    def is_item(self, number: int) -> bool:
        line = self.lines[number]
        return bool(_LIST_ITEM.match(line)) and not _RULE.match(line)

    def starts_block(self, number: int) -> bool:
        """Return whether the line cannot continue a paragraph."""
        line = self.lines[number]
        return bool(
            number in self.protected
            or not line.strip()
            or _HEADING.match(line)
            or _RULE.match(line)
            or _LIST_ITEM.match(line)
            or _CODE_FENCE.match(line)
        )

    def past_glued(self, number: int) -> int:
        """Return the first line from `number` on that does not belong to the line before it."""
        while number in self.glued:
            number += 1
        return number


def _protected_lines(body: str, lines: Sequence[str]) -> frozenset[int]:
    """Return the numbers of the lines that a protected region touches."""
    regions = scan(body)
    found = set()
    position = 0
    for number, line in enumerate(lines):
        end = position + len(line)
        if any(region.start <= end and position < region.end for region in regions):
            found.add(number)
        position = end + 1
    return frozenset(found)


def _glued_lines(lines: Sequence[str]) -> frozenset[int]:
    """Return the numbers of the lines that must stay with the line before: the inside and the end
    of code blocks and of comments that span several lines.
    """
    last_comment_end = max((n for n, line in enumerate(lines) if "-->" in line), default=-1)
    glued = set()
    fence = ""
    in_comment = False
    for number, line in enumerate(lines):
        if fence or in_comment:
            glued.add(number)
        if fence:
            text = line.strip("> \t\r")
            if len(text) >= len(fence) and not text.strip(fence[0]):
                fence = ""
            continue
        if not in_comment and (opening := _CODE_FENCE.match(line)):
            fence = opening["fence"]
            continue
        if line.rfind("<!--") > line.rfind("-->"):
            in_comment = number < last_comment_end
        elif "-->" in line:
            in_comment = False
    return frozenset(glued)


def _with_glued(numbers: frozenset[int], glued: frozenset[int]) -> frozenset[int]:
    """Return these lines and all lines of the code blocks and comments that they are part of."""
    found: set[int] = set()
    for number in numbers:
        if number in found:
            continue
        before = after = number
        while before in glued:
            before -= 1
        while after + 1 in glued:
            after += 1
        found.update(range(before, after + 1))
    return frozenset(found)


def _blocks(body: _BodyLines) -> list[_LineBlock]:
    """Return the markdown blocks of the body, in order, without blank and protected lines."""
    blocks = []
    number = 0
    while number < len(body.lines):
        if body.is_blank(number) or number in body.protected:
            number += 1
            continue
        block = _block_at(body, number)
        blocks.append(block)
        number = block.end
    return blocks


def _block_at(body: _BodyLines, start: int) -> _LineBlock:
    line = body.lines[start]
    if heading := _HEADING.match(line):
        return _LineBlock(start, body.past_glued(start + 1), "heading", len(heading[1]))
    if _RULE.match(line):
        return _LineBlock(start, start + 1, "rule")
    if body.is_item(start):
        return _LineBlock(start, _list_end(body, start), "list")
    if _CODE_FENCE.match(line):
        return _LineBlock(start, body.past_glued(start + 1), "code")
    end = body.past_glued(start + 1)
    while end < len(body.lines):
        if underline := _UNDERLINE.match(body.lines[end]):
            return _LineBlock(start, end + 1, "heading", 1 if "=" in underline[1] else 2)
        if body.starts_block(end):
            break
        end = body.past_glued(end + 1)
    is_table = any(text.lstrip().startswith("|") for text in body.lines[start:end])
    return _LineBlock(start, end, "table" if is_table else "paragraph")


def _list_end(body: _BodyLines, start: int) -> int:
    """Find where the list that starts here ends, without blank lines after it."""
    inside = body.indent(start) + 2
    end = number = body.past_glued(start + 1)
    while number < len(body.lines) and number not in body.protected:
        if body.is_blank(number):
            number += 1
            continue
        follows_blank = number > end
        is_lazy = not follows_blank and not body.starts_block(number)
        if not (body.is_item(number) or body.indent(number) >= inside or is_lazy):
            break
        end = number = body.past_glued(number + 1)
    return end


def _unit_blocks(
    body: _BodyLines, blocks: Sequence[_LineBlock], by: Granularity
) -> list[_LineBlock]:
    """Return the parts of all blocks. A heading joins the one part that is its whole section."""
    spans: list[_LineBlock] = []
    for index, block in enumerate(blocks):
        if block.kind in ("heading", "rule"):
            continue
        parts = _parts_of_block(body, block) if by == "line" else [block]
        heading = blocks[index - 1] if index else None
        if len(parts) == 1 and heading is not None and _is_whole_section(body, blocks, index):
            parts = [_LineBlock(heading.start, block.end, block.kind)]
        spans += parts
    return spans


def _is_whole_section(body: _BodyLines, blocks: Sequence[_LineBlock], index: int) -> bool:
    """Return whether the block is everything between its heading and the next one of the same or a
    higher level.
    """
    heading, block = blocks[index - 1], blocks[index]
    following = blocks[index + 1] if index + 1 < len(blocks) else None
    if heading.kind != "heading":
        return False
    if following is not None and (following.kind != "heading" or following.level > heading.level):
        return False
    end = following.start if following is not None else len(body.lines)
    around = [*range(heading.end, block.start), *range(block.end, end)]
    return all(number not in body.protected for number in around)


def _parts_of_block(body: _BodyLines, block: _LineBlock) -> list[_LineBlock]:
    """Return the items of a list, the sentence lines of a paragraph; other blocks stay whole."""
    if block.kind == "list":
        top = body.indent(block.start) + 1
        starts = [
            number
            for number in range(block.start, block.end)
            if number not in body.glued and body.is_item(number) and body.indent(number) <= top
        ]
    elif block.kind == "paragraph":
        starts = [block.start]
        for number in range(block.start + 1, block.end):
            if number not in body.glued and _SENTENCE_END.search(body.lines[number - 1]):
                starts.append(number)
    else:
        return [block]
    parts = []
    for start, end in zip(starts, [*starts[1:], block.end], strict=True):
        while body.is_blank(end - 1):
            end -= 1
        parts.append(_LineBlock(start, end, block.kind))
    return parts
