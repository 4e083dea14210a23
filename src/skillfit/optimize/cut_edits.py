"""Cut a rewritten skill into single edits, so that each change is measured by itself.

The two texts are compared part by part (list items, sentence lines, tables, code blocks). What was
added, removed or reworded becomes one edit for each part, and a part that stands elsewhere becomes
a move. The edits apply to the old skill one by one as well as together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from skillfit.run.records import EditEffect
from skillfit.skill import MOVE_OP, WRITE_OP, Edit, Piece, Skill, apply_edits, pieces
from skillfit.skill.parts import DESCRIPTION, ONLY_BODY, Part, part_of, part_text

_ALIKE = 0.4  # words in common, from which a new part counts as the old one reworded
_MOST_MOVED_OVER = 2_000  # characters between a line and the place that it moves to
_MOST_PIECES = 2_000  # of a document; comparing more takes long
_DOUBLED_BULLET = re.compile(r"^([ \t]*)(?:[-*+•][ \t]+)+(?=[-*+•][ \t])", re.MULTILINE)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class RefusedChange:
    """A change that cannot become an edit."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class CutEdits:
    """The edits that lead from one skill to another."""

    edits: tuple[Edit, ...] = ()
    refused: tuple[RefusedChange, ...] = ()


def cut_edits(
    old: Skill,
    new: str,
    appended: frozenset[str] = frozenset(),
    *,
    parts: Collection[Part] = ONLY_BODY,
    files: Mapping[str, str] | None = None,
) -> CutEdits:
    """Return the edits of these parts that turn the old skill into the new one.

    `new` holds a whole document, with its frontmatter, and `files` the references and scripts that
    changed (empty: removed). Changes of other frontmatter than the description and of protected
    text are refused. `appended`: as for `move_edit`.
    """
    document = Skill.from_text(new)
    refused, found = [], list[Edit | RefusedChange]()
    body = document.unix_body
    described = _description_edit(old, document) if "description" in parts else None
    if described is not None:
        found.append(described)
    elif document.head.split() != old.head.split():
        if old.head and not document.head:
            body = _without_head(old, body)
        refused.append(RefusedChange(document.head, "the frontmatter does not belong to the body"))
    found += _text_edits(old.unix_body, body, appended)
    for file, text in (files or {}).items():
        present = part_text(old, file) or ""
        if part_of(file) == "scripts":
            found.append(Edit(WRITE_OP, content=text, file=file))
            continue
        text = _with_moves(found, file, present, text)
        if not present.strip():
            found += [Edit("append", content=text, file=file)] if text.strip() else []
        elif not text.strip():
            found.append(Edit("delete", present, file=file))
        else:
            changes = _text_edits(present, text, frozenset())
            found += [replace(one, file=file) if isinstance(one, Edit) else one for one in changes]
    edits = []
    for edit in found:
        if isinstance(edit, RefusedChange):
            refused.append(edit)
            continue
        result = apply_edits(old, [edit]).results[0]
        if result.applied:
            edits.append(edit)
        else:
            refused.append(RefusedChange(edit.content or edit.target, result.reason))
    return CutEdits(tuple(dict.fromkeys(edits)), tuple(refused))


def _description_edit(old: Skill, new: Skill) -> Edit | None:
    """Return the edit of the description; None if it is the same or other frontmatter changed."""
    before, after = part_text(old, DESCRIPTION), part_text(new, DESCRIPTION)
    if before == after or not after:
        return None
    others = [{**skill.frontmatter, "description": ""} for skill in (old, new)]
    if others[0] != others[1]:
        return None
    if not before:
        return Edit("append", content=after, file=DESCRIPTION)
    return Edit("replace", before, after, file=DESCRIPTION)


def _with_moves(found: list[Edit | RefusedChange], file: str, present: str, text: str) -> str:
    """Turn edits that take text out of the body into moves, where that text is now in a reference.
    A line that points to the file takes the place of the text, or of the first one. Return the text
    of the reference without what the moves bring.
    """
    of_body = [edit for edit in found if isinstance(edit, Edit) and not edit.file]
    moved = [
        edit
        for edit in of_body
        if edit.op in ("delete", "replace")
        and _words(edit.target) in _words(text)
        and _words(edit.target) not in _words(present)
    ]
    if not moved:
        return text
    pointers = [edit for edit in of_body if file in edit.content and edit not in moved]
    if pointers and not any(file in edit.content for edit in moved):
        found[found.index(moved[0])] = moved[0] = replace(moved[0], content=pointers[0].content)
        found.remove(pointers[0])
    for edit in moved:
        found[found.index(edit)] = Edit(MOVE_OP, edit.target, edit.content, file=file)
    lines, stays = text.split("\n"), False
    for piece in pieces(text):
        if any(_words(piece.text) in _words(edit.target) for edit in moved):
            lines[piece.start : piece.end] = [""] * (piece.end - piece.start)
        else:
            stays = stays or not piece.heading
    return "\n".join(lines) if stays or present.strip() else ""


def _words(text: str) -> str:
    """Return the text with single spaces between and around its words, to find it in another."""
    return f" {' '.join(text.split())} "


def _text_edits(old: str, new: str, appended: frozenset[str]) -> Sequence[Edit | RefusedChange]:
    """Return the edits that turn one text of a skill into another."""
    before, after = pieces(old), pieces(new)
    if max(len(before), len(after)) > _MOST_PIECES:
        return [RefusedChange("", f"more than {_MOST_PIECES:,} lines of text")]
    return _TextComparison(old, new, before, after, appended).edits()


def without_doubled_bullets(text: str) -> str:
    """Replace `- - text` by `- text`."""
    return _DOUBLED_BULLET.sub(r"\1", text)


def appended_lines(effects: Sequence[EditEffect]) -> frozenset[str]:
    """Return the texts that edits appended to the skill."""
    return frozenset(
        effect.edit.content.strip("\n") for effect in effects if effect.edit.op == "append"
    )


def move_edit(
    body: str, line: str, after: str, appended: frozenset[str] = frozenset()
) -> Edit | str:
    """Return the edit that moves a line: what lies between it and its new place, in the new order;
    or why the line cannot be moved.

    A line that an edit `appended` is inserted at its new place instead: the gate never applies
    both, since the same text is in the skill once.
    """
    if not after.strip():
        return "no line that stays is above the place where it moves to"
    if not (line.strip() and body.count(line) == body.count(after) == 1):
        return "the line to move, or the line that it should follow, does not occur exactly once"
    if line in after or after in line:
        return "a line cannot follow itself"
    if line in appended:
        return Edit("insert_after", after, line)
    first, last = sorted(((body.index(line), line), (body.index(after), after)))
    start = body.rfind("\n", 0, first[0]) + 1
    end = (body + "\n").index("\n", last[0] + len(last[1]))
    lines, moving = body[start:end].split("\n"), line.split("\n")
    at = next((n for n in range(len(lines)) if lines[n : n + len(moving)] == moving), None)
    if at is None or end - start > _MOST_MOVED_OVER:
        return "only a whole line can be moved, and not across a long text"
    rest = lines[:at] + lines[at + len(moving) :]
    place = next((n for n, text in enumerate(rest) if after.split("\n")[-1] in text), None)
    if place is None:
        return "the line that it should follow is a part of the line to move"
    place += 1
    return Edit("replace", body[start:end], "\n".join(rest[:place] + moving + rest[place:]))


def _without_head(old: Skill, text: str) -> str:
    """Drop the lines of the old frontmatter, some of which may be missing, from a text."""
    lines = text.split("\n")
    head = {line.strip() for line in old.head.split("\n")}
    while lines and (not lines[0].strip() or lines[0].strip() in head):
        lines.pop(0)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _TextComparison:
    """Two texts as parts."""

    old: str
    new: str
    before: Sequence[Piece]
    after: Sequence[Piece]
    appended: frozenset[str]

    def edits(self) -> list[Edit | RefusedChange]:
        keys = [
            [" ".join(part.text.split()) for part in side] for side in (self.before, self.after)
        ]
        same, reworded = dict[int, int](), dict[int, int]()  # new part -> old one
        differ = []
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, keys[0], keys[1]).get_opcodes():
            if tag == "equal":
                same |= zip(range(j1, j2), range(i1, i2), strict=True)
            else:
                differ.append((range(i1, i2), range(j1, j2)))
        moved = _moved_parts(keys, differ)
        for gone, come in differ:
            old = [at for at in gone if at not in moved.values()]
            new = [at for at in come if at not in moved]
            for i, j in _reworded([self.before[at] for at in old], [self.after[at] for at in new]):
                reworded[new[j]] = old[i]
        kept = same | reworded | moved
        gone_for_good = [at for at in range(len(self.before)) if at not in kept.values()]
        return [
            *self._replacements(reworded),
            *self._deletions(gone_for_good),
            *self._insertions(same, reworded, moved),
            *(self._move(old, new, same) for new, old in sorted(moved.items())),
        ]

    def _replacements(self, reworded: Mapping[int, int]) -> list[Edit]:
        return [
            Edit("replace", self.before[old].text, without_doubled_bullets(self.after[new].text))
            for new, old in reworded.items()
        ]

    def _deletions(self, gone: Sequence[int]) -> list[Edit]:
        return [
            Edit("delete", _text(self.old, self.before, group))
            for group in _with_headings(self.before, gone)
        ]

    def _insertions(
        self, same: Mapping[int, int], reworded: Mapping[int, int], moved: Mapping[int, int]
    ) -> list[Edit]:
        """Insert each new part after the nearest line above it that stays, or at the end."""
        come = [at for at in range(len(self.after)) if at not in {*same, *reworded, *moved}]
        last = max((at for at in {**same, **reworded} if not self.after[at].protected), default=-1)
        appended, inserted = list[Edit](), dict[str, list[Edit]]()
        for group in _with_headings(self.after, come):
            content = without_doubled_bullets(_text(self.new, self.after, group))
            anchor = "" if group[0] > last else self._anchor(group[0], same, reworded)
            if anchor:
                edit = Edit("insert_after", anchor, content)
                inserted.setdefault(anchor, []).append(edit)
            else:
                appended.append(Edit("append", "", content))
        # Each goes right after its anchor, so the last one must come first.
        return [edit for edits in inserted.values() for edit in reversed(edits)] + appended

    def _anchor(self, place: int, same: Mapping[int, int], reworded: Mapping[int, int]) -> str:
        """Return a text that names the nearest line above a new part: of one that is reworded, what
        the wordings have in common. Empty: there is none.
        """
        for at in range(place - 1, -1, -1):
            part = self.after[at]
            if part.protected or at not in {**same, **reworded}:
                continue
            line = part.text.split("\n")[-1]
            candidates = [line, part.text]
            if at in reworded:
                old_line = self.before[reworded[at]].text.split("\n")[-1]
                candidates = [_in_common(old_line, line)]
            for text in candidates:
                texts = (self.old, self.new)
                if len(text.strip()) > 1 and all(whole.count(text) == 1 for whole in texts):
                    return text
        return ""

    def _move(self, old: int, new: int, same: Mapping[int, int]) -> Edit | RefusedChange:
        part = self.before[old]
        stayed = [at for at in range(new) if at in same]
        after = self.after[stayed[-1]].text.split("\n")[-1] if stayed else ""
        edit = move_edit(self.old, part.text, after, self.appended)
        return RefusedChange(part.text, edit) if isinstance(edit, str) else edit


def _moved_parts(
    keys: Sequence[Sequence[str]], differ: Sequence[tuple[range, range]]
) -> dict[int, int]:
    """Map each new part to the old one that is the same text in another place."""
    counts = [Counter(side) for side in keys]
    gone = {keys[0][at]: at for old, _ in differ for at in old}
    return {
        at: gone[key]
        for _, new in differ
        for at in new
        if (key := keys[1][at]) in gone and counts[0][key] == counts[1][key] == 1
    }


def _in_common(one: str, other: str) -> str:
    found = SequenceMatcher(None, one, other, autojunk=False).find_longest_match()
    return one[found.a : found.a + found.size].strip()


def _reworded(old: Sequence[Piece], new: Sequence[Piece]) -> list[tuple[int, int]]:
    """Pair old pieces with new ones that say the same in other words."""
    if len(old) == len(new) == 1 and old[0].heading == new[0].heading:
        return [(0, 0)]
    words = [
        [frozenset(_WORD.findall(piece.text.casefold())) for piece in side] for side in (old, new)
    ]
    alike = [
        (-likeness, i, j)
        for i, first in enumerate(old)
        for j, second in enumerate(new)
        if first.heading == second.heading
        and (likeness := _likeness(words[0][i], words[1][j])) >= _ALIKE
    ]
    pairs, taken = dict[int, int](), set[int]()
    for _, i, j in sorted(alike):
        if i not in pairs and j not in taken:
            pairs[i] = j
            taken.add(j)
    return sorted(pairs.items())


def _likeness(words: frozenset[str], others: frozenset[str]) -> float:
    """Return the share of words that two texts have in common."""
    shared = len(words & others)
    either = len(words) + len(others) - shared
    return shared / max(1, min(len(words), len(others)), either // 2)


def _with_headings(all_parts: Sequence[Piece], chosen: Sequence[int]) -> list[list[int]]:
    """Group the chosen parts, each heading with the part that follows it."""
    groups: list[list[int]] = []
    for at in chosen:
        last = groups[-1] if groups else []
        if last and all_parts[last[-1]].heading and last[-1] + 1 == at:
            last.append(at)
        else:
            groups.append([at])
    return groups


def _text(body: str, all_parts: Sequence[Piece], group: Sequence[int]) -> str:
    lines = body.split("\n")
    return "\n".join(lines[all_parts[group[0]].start : all_parts[group[-1]].end])
