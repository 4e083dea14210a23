"""Which items say nearly the same: the same normalised text, or four fifths of its five-word runs in common.

Runs of words that many items share are a template, not a likeness, and do not count. Each item is reduced to its 64 smallest run
hashes (a bottom-k sketch), so ten thousand long items take seconds and a few megabytes.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from skillfit.tasks.item import Item

THRESHOLD = 0.8
_RUN, _SKETCH, _WINDOW = 5, 64, 4000  # words in a run, hashes in a sketch, characters looked at from each end of a long text
_TEMPLATE = (3, 20)  # a run in more items than a twentieth of them, kept within these bounds, is a template
_MIN_SHARED = 4
_TOKEN = re.compile(r"\w+|[^\w\s.,;:!?'\"]")  # 2 + 2 is not 2 - 2; a full stop more or less is no difference


@dataclass(frozen=True, slots=True)
class _Sketch:
    exact: str  # hash of text and attachments: equal means duplicate
    attached: str
    runs: frozenset[int]


def similar_groups(items: Sequence[Item]) -> list[list[int]]:
    """Positions of the items, near-duplicates grouped together; most groups have one member. In order of first member."""
    sketches = [_sketch(item) for item in items]
    parent = list(range(len(items)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = at = parent[parent[at]]
        return at

    first: dict[str, int] = {}
    same = [(first.setdefault(sketch.exact, at), at) for at, sketch in enumerate(sketches)]
    for one, other in (*same, *_near_pairs(sketches)):
        low, high = sorted((root(one), root(other)))
        parent[high] = low
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for at in range(len(items)):
        groups[root(at)].append(at)
    return sorted(groups.values())


def _near_pairs(sketches: Sequence[_Sketch]) -> list[tuple[int, int]]:
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for at, sketch in enumerate(sketches):
        for run in sketch.runs:
            holders[run].append(at)
    low, high = _TEMPLATE
    limit = min(max(len(sketches) // 20, low), high)
    template = {run for run, held in holders.items() if len(held) > limit}
    shared = Counter(pair for run, held in holders.items() if 1 < len(held) <= limit for pair in combinations(held, 2))
    return [
        (one, other)
        for (one, other), count in shared.items()
        if count >= _MIN_SHARED
        and sketches[one].attached == sketches[other].attached
        and _likeness(sketches[one].runs, sketches[other].runs, template) >= THRESHOLD
    ]


def _likeness(one: frozenset[int], other: frozenset[int], template: set[int]) -> float:
    """Jaccard index without the template, over hashes both sketches would hold: up to the smaller end of those that were cut."""
    end = min(max(runs) if len(runs) == _SKETCH else 1 << 32 for runs in (one, other))
    either = {run for run in (one | other) - template if run <= end}
    return len(either & one & other) / len(either)


def _sketch(item: Item) -> _Sketch:
    item = item.loaded()
    text = item.input.casefold()
    attached = "".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in item.attachments())
    words = _TOKEN.findall(text if len(text) <= 2 * _WINDOW else f"{text[:_WINDOW]} {text[-_WINDOW:]}")
    exact = " ".join(words if len(text) <= 2 * _WINDOW else text.split())
    runs = {zlib.crc32(" ".join(words[at : at + _RUN]).encode()) for at in range(len(words) - _RUN + 1)}
    return _Sketch(hashlib.sha256(exact.encode()).hexdigest() + attached, attached, frozenset(sorted(runs)[:_SKETCH]))
