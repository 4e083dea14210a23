"""What an agent says about its changes: what each is for, and whether its counts are right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from skillfit.optimize.material import Kind, Material, Seen
from skillfit.optimize.optimizer import union
from skillfit.plain_text import one_line, shorten
from skillfit.skill import Edit

_LEAST_SHARED = 0.5  # of the words that an entry quotes, from which it is about an edit
_PURPOSE = 200  # characters
_CAUSE = 80

_ENTRY = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+", re.MULTILINE)
_FIELD = re.compile(r"\s*\|\s*(?=(?:kinds?|items?|cause|purpose)\s*:)", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_CLAIM = re.compile(
    r"(?<![\w.,/:-])(?P<part>\d{1,6})\s*(?:of|out of)\s*(?:the |all )?(?P<whole>\d{1,6})"
    r"(?![\w/:-]|[.,]\d)"
)
_SENTENCE = re.compile(r"(?:[^.!?\n;|]|(?<=\d)\.(?=\d))*(?:[.!?;|\n]+|$)")
_CLAUSE = re.compile(r"(?:[^,]|(?<=\d),(?=\d))*(?:,|$)")
_ABOUT_ROLLOUTS = re.compile(
    r"\b(rollouts?|items?|cases?|tasks?|answers?|repl(y|ies)|attempts?|fail\w*|succe\w+)\b",
    re.IGNORECASE,
)
_FAILED = re.compile(r"\b(fail\w*|wrong|incorrect)\b", re.IGNORECASE)
_SUCCEEDED = re.compile(r"\b(succe\w+|pass\w*|solved|correct)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ChangeEntry:
    """What an agent wrote about one of its changes."""

    quoted: str  # words of the line
    kinds: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    cause: str = ""
    purpose: str = ""


def read_entries(text: str, material: Material) -> tuple[ChangeEntry, ...]:
    """Read changes.md: a list with one entry for each change. Kinds and items that do not exist are
    left out.
    """
    return tuple(_entry(part, material) for part in _ENTRY.split(text)[1:] if part.strip())


def entry_for(edit: Edit, entries: Sequence[ChangeEntry]) -> ChangeEntry | None:
    """Return the entry that quotes the edit's line best; None where no entry is about it."""
    texts = [edit.content or edit.target, edit.target]
    best, found = _LEAST_SHARED, None
    for text in texts:
        words = _words(text)
        for entry in entries:
            quoted = _words(entry.quoted)
            shared = len(words & quoted) / len(quoted) if quoted else 0.0
            if shared > best or (shared == best and found is None):
                best, found = shared, entry
        if found is not None:
            return found
    return None


def _entry(text: str, material: Material) -> ChangeEntry:
    quoted, *rest = _FIELD.split(text.strip())
    fields = dict[str, str]()
    for part in rest:
        name, _, value = part.partition(":")
        fields[name.strip().casefold().rstrip("s")] = value.strip()
    kinds = [kind.name for kind in material.kinds]
    items = [item for kind in material.kinds for item in kind.items]
    purpose = fields.get("purpose") or ("" if fields else quoted)
    return ChangeEntry(
        quoted.strip().strip("`"),
        tuple(_named(fields.get("kind", ""), kinds)),
        tuple(_named(fields.get("item", "" if fields else text), union(items))),
        one_line(fields.get("cause", ""), _CAUSE),
        shorten(one_line(checked_counts(purpose, material), 2 * _PURPOSE), _PURPOSE),
    )


def _named(text: str, names: Sequence[str]) -> Iterator[str]:
    """Yield the names that occur in a text as whole words."""
    for name in names:
        if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text, re.IGNORECASE):
            yield name


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))


def checked_counts(text: str, material: Material) -> str:
    """Return the text with a mark behind each count ("16 of 50") that the rollouts contradict.

    A count of failures or successes must be that of all rollouts or items, or of the kinds that its
    sentence names, in all rounds or in the newest. Other counts only have to be possible.
    """
    return "".join(_checked_sentence(part, material) for part in _SENTENCE.findall(text))


def _checked_sentence(sentence: str, material: Material) -> str:
    if not (_CLAIM.search(sentence) and _ABOUT_ROLLOUTS.search(sentence)):
        return sentence
    named = _named_kinds(sentence, material)
    return "".join(
        _checked_clause(clause, _named_kinds(clause, material), named, material)
        for clause in _CLAUSE.findall(sentence)
    )


def _named_kinds(text: str, material: Material) -> list[Kind]:
    names = set(_named(text, [kind.name for kind in material.kinds]))
    return [kind for kind in material.kinds if kind.name in names]


def _checked_clause(
    clause: str, kinds: Sequence[Kind], around: Sequence[Kind], material: Material
) -> str:
    """Mark the counts of a clause that the rollouts contradict. `kinds` are those that the clause
    names, `around` those of its sentence.
    """
    failing, succeeding = _FAILED.search(clause), _SUCCEEDED.search(clause)
    side = "failed" if failing else "succeeded"
    if bool(failing) == bool(succeeding):
        side = ""
    scopes = [kinds] if kinds else [material.kinds, around]

    def checked(claim: re.Match[str]) -> str:
        part, whole = int(claim["part"]), int(claim["whole"])
        problem = _problem(part, whole, scopes, side, len(material.rollouts))
        return f"{claim[0]} [{problem}]" if problem else claim[0]

    return _CLAIM.sub(checked, clause)


def _problem(
    part: int, whole: int, scopes: Sequence[Sequence[Kind]], side: str, rollouts: int
) -> str:
    """Return why a count is wrong; empty: it is right or cannot be checked."""
    if part > whole or whole > rollouts:
        return f"wrong: there are {rollouts} rollouts"
    if not side:
        return ""
    counts = [_count(kinds, side) for kinds in scopes if kinds]
    counts += [_count([kind], side) for kinds in scopes for kind in kinds]
    known = {pair for count in counts for pair in count.values()}
    if (part, whole) in known or whole in {chosen for chosen, _ in known}:
        return ""  # right, or a share of the failures themselves
    right = counts[0]["rollouts"]
    return f"counted: {right[0]} of {right[1]} rollouts {side}"


def _count(kinds: Sequence[Kind], side: str) -> Mapping[str, tuple[int, int]]:
    """Count how many failed or succeeded of how many, in different ways."""
    every = [seen for kind in kinds for seen in kind.rollouts]
    newest = [seen for seen in every if seen.newest]
    wanted = side == "succeeded"

    def pair(seen: Sequence[Seen], *, by_item: bool) -> tuple[int, int]:
        chosen = [one for one in seen if one.outcome.succeeded == wanted]
        if by_item:
            return len({one.item.id for one in chosen}), len({one.item.id for one in seen})
        return len(chosen), len(seen)

    return {
        "rollouts": pair(every, by_item=False),
        "items": pair(every, by_item=True),
        "newest rollouts": pair(newest, by_item=False),
        "newest items": pair(newest, by_item=True),
    }
