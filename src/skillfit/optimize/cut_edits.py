"""Cut a rewritten skill into single edits, so that each change is measured by itself.

The two texts are compared part by part (list items, sentence lines, tables, code blocks). What was
added, removed or reworded becomes one edit for each part, and a part that stands elsewhere becomes
a move. The edits apply to the old skill one by one as well as together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from skillfit.run.records import EditEffect
from skillfit.skill import Edit, Piece, Skill, apply_edits, pieces

_ALIKE = 0.4  # words in common, from which a new part counts as the old one reworded
_MOST_MOVED_OVER = 2_000  # characters between a line and the place that it moves to
_MOST_PARTS = 4_000  # of a document; comparing more takes long
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


def cut_edits(old: Skill, new: str, appended: frozenset[str] = frozenset()) -> CutEdits:
    """Return the edits that turn the old document into the text of the new one.

    `new` holds a whole document, with its frontmatter; changes of frontmatter and protected text
    are refused. `appended`: as for `move_edit`.
    """
    document = Skill.from_text(new)
    refused = []
    body = document.unix_body
    if document.head.split() != old.head.split():
        if old.head and not document.head:
            body = _without_head(old, body)
        refused.append(RefusedChange(document.head, "the frontmatter does not belong to the body"))
    before, after = pieces(old.unix_body), pieces(body)
    if max(len(before), len(after)) > _MOST_PARTS:
        return CutEdits((), (RefusedChange("", f"more than {_MOST_PARTS:,} lines of text"),))
    found = _TextComparison(old, body, before, after, appended).edits()
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


def without_doubled_bullets(text: str) -> str:
    """`- - text` as `- text`."""
    return _DOUBLED_BULLET.sub(r"\1", text)


def appended_lines(effects: Sequence[EditEffect]) -> frozenset[str]:
    """The texts that edits appended to the skill."""
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
    if not (line.strip() and after.strip() and body.count(line) == body.count(after) == 1):
        return "the line to move, or the line that it should follow, does not occur exactly once"
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
    place = next(n for n, text in enumerate(rest) if after.split("\n")[-1] in text) + 1
    return Edit("replace", body[start:end], "\n".join(rest[:place] + moving + rest[place:]))


def _without_head(old: Skill, text: str) -> str:
    """The text without the lines of the old frontmatter, of which a part may be missing."""
    lines = text.split("\n")
    head = {line.strip() for line in old.head.split("\n")}
    while lines and (not lines[0].strip() or lines[0].strip() in head):
        lines.pop(0)
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _TextComparison:
    """Two bodies as parts."""

    old: Skill
    new_body: str
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
            Edit("delete", _text(self.old.unix_body, self.before, group))
            for group in _with_headings(self.before, gone)
        ]

    def _insertions(
        self, same: Mapping[int, int], reworded: Mapping[int, int], moved: Mapping[int, int]
    ) -> list[Edit]:
        """Each new part after the nearest line above it that stays, or at the end."""
        come = [at for at in range(len(self.after)) if at not in {*same, *reworded, *moved}]
        last = max((at for at in {**same, **reworded} if not self.after[at].protected), default=-1)
        appended, inserted = list[Edit](), dict[str, list[Edit]]()
        for group in _with_headings(self.after, come):
            content = without_doubled_bullets(_text(self.new_body, self.after, group))
            anchor = "" if group[0] > last else self._anchor(group[0], same, reworded)
            if anchor:
                edit = Edit("insert_after", anchor, content)
                inserted.setdefault(anchor, []).append(edit)
            else:
                appended.append(Edit("append", "", content))
        # Each goes right after its anchor, so the last one must come first.
        return [edit for edits in inserted.values() for edit in reversed(edits)] + appended

    def _anchor(self, place: int, same: Mapping[int, int], reworded: Mapping[int, int]) -> str:
        """A text that names the nearest line above a new part: of one that is reworded, what the
        wordings have in common. Empty: there is none.
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
                bodies = (self.old.unix_body, self.new_body)
                if len(text.strip()) > 1 and all(body.count(text) == 1 for body in bodies):
                    return text
        return ""

    def _move(self, old: int, new: int, same: Mapping[int, int]) -> Edit | RefusedChange:
        part = self.before[old]
        stayed = [at for at in range(new) if at in same]
        after = self.after[stayed[-1]].text.split("\n")[-1] if stayed else ""
        edit = move_edit(self.old.unix_body, part.text, after, self.appended)
        return RefusedChange(part.text, edit) if isinstance(edit, str) else edit


def _comparable(side: Sequence[Piece]) -> list[str]:
    return [" ".join(part.text.split()) for part in side]


def _moved_parts(
    keys: Sequence[Sequence[str]], differ: Sequence[tuple[range, range]]
) -> dict[int, int]:
    """New part -> the old one that is the same text in another place."""
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
    """Which new part is which old one in other words."""
    if len(old) == len(new) == 1 and old[0].heading == new[0].heading:
        return [(0, 0)]
    likeness = [
        (-_likeness(first.text, second.text), i, j)
        for i, first in enumerate(old)
        for j, second in enumerate(new)
        if first.heading == second.heading
    ]
    pairs = dict[int, int]()
    for score, i, j in sorted(likeness):
        if -score >= _ALIKE and i not in pairs and j not in pairs.values():
            pairs[i] = j
    return sorted(pairs.items())


def _likeness(one: str, other: str) -> float:
    words, others = (set(_WORD.findall(text.casefold())) for text in (one, other))
    return len(words & others) / max(1, min(len(words), len(others)), len(words | others) // 2)


def _with_headings(all_parts: Sequence[Piece], chosen: Sequence[int]) -> list[list[int]]:
    """The chosen parts, each heading with the part that follows it."""
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
