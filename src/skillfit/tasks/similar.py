"""Near-duplicate items: the same normalised text, or four fifths of their five-word runs in common.

Items made from one template share most of their words without being copies, so words of a template
do not count. A run of words belongs to a template if most items have it, or if a large group of
similar items all have it while each also has words of its own. Copies, even many of them, differ
from each other in a word or two, or each in another place.

Each text is reduced to the 64 smallest hashes of its runs (a bottom-k sketch). Two sketches that
are four fifths the same almost certainly share one of their smallest hashes (a miss has
probability 0.2**8), so only items that share one are compared.
"""

from __future__ import annotations

import json
import random
import re
import string
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import chain
from statistics import median_low
from typing import TypeVar
from zlib import crc32

from skillfit.tasks.item import Item

THRESHOLD = 0.8
_RUN = 5  # words
_WEIGHTS = (0x9E3779, 0x85EBCB, 0xC2B2AF, 0x27D4EB, 0x165667)  # of the words in a run's hash
_BATCH = 256  # items whose runs are hashed together
_SKETCH = 64  # hashes
_LOOKED_UP = 8  # smallest hashes of a sketch by which similar items are found
_MIN_SHARED = 4  # hashes that two sketches must share at least
_WINDOW = 4000  # characters that are read from each end of a long text
_NEIGHBOURS = 8  # items that each holder of a frequent hash is compared with
_SAMPLE = 64  # items from which the template of a group is worked out
_MOST, _HALF = 0.75, 0.5
# Groups of up to 3 items, or up to a tenth of all items, are kept together even if they come from a
# template: that hardly affects the splits.
_SMALL_COUNT, _SMALL_SHARE = 3, 0.1
_OWN_WORDS = 3  # an item of a template has at least so many words of its own; a copy has fewer
# Operators count (2 + 2 is not 2 - 2), sentence punctuation does not.
_TOKEN = re.compile(r"\w+|[^\w\s.,;:!?'\"]")
_SEPARATORS = b".,;:!?'\"\x1c\x1d\x1e\x1f"
_TO_SPACE = bytes.maketrans(_SEPARATORS, b" " * len(_SEPARATORS))
_PLAIN = f"{string.ascii_letters}{string.digits}_{string.whitespace}".encode() + _SEPARATORS
_NOT_COMPARED = ("id", "split", "weight", "type", "answers")
Part = TypeVar("Part", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Words:
    """The normalised text of an item."""

    words: list[bytes]
    exact: bytes  # hash of the whole text and of the attached files
    attached: bytes  # hashes of the attached files


@dataclass(frozen=True, slots=True)
class _Text:
    """What is kept of it."""

    exact: bytes
    attached: bytes
    sketch: array[int]  # smallest run hashes, ascending


def similar_groups(items: Sequence[Item], *, whole_rows: bool = False) -> list[list[int]]:
    """Positions of the items, near-duplicates grouped together, in order of first member. Most
    groups have one member.

    By default the items' input is compared. With `whole_rows` all of the row is: for tasks that run
    items themselves, where the input may be the same for every item and something else in the row
    tells them apart. Where even the rows are the same, ids tell items apart.
    """
    reader = _Reader(whole_rows)
    large = max(_SMALL_COUNT, _SMALL_SHARE * len(items))
    template = reader.common_runs(_sample(items)) if len(items) > large else set()
    texts = reader.reduced(items, template)
    while True:
        groups = _grouped(texts, whole_rows)
        found: set[int] = set()
        for group in groups:
            if len(group) > large:
                found |= reader.template([items[at] for at in _sample(group)])
        found -= template
        if not found:
            return groups
        template |= found
        changed = [at for at, text in enumerate(texts) if not found.isdisjoint(text.sketch)]
        reduced = reader.reduced([items[at] for at in changed], template)
        for at, text in zip(changed, reduced, strict=True):
            texts[at] = text


class _Reader:
    """Reads the texts of items and reduces them to hashes."""

    def __init__(self, whole_rows: bool) -> None:
        self._whole_rows = whole_rows

    def reduced(self, items: Sequence[Item], template: set[int]) -> list[_Text]:
        """What is compared of each item. Works on many items at once, to hash all their runs in one
        go.
        """
        texts: list[_Text] = []
        for start in range(0, len(items), _BATCH):
            batch = [self._normalised(item.loaded()) for item in items[start : start + _BATCH]]
            hashes = self._run_hashes(chain.from_iterable(text.words for text in batch))
            end = 0
            for text in batch:
                begin, end = end, end + len(text.words)
                runs = set(hashes[begin : max(begin, end - _RUN + 1)])
                runs -= template
                sketch = array("Q", sorted(runs)[:_SKETCH])
                texts.append(_Text(text.exact, text.attached, sketch))
        return texts

    def common_runs(self, items: Sequence[Item]) -> set[int]:
        """Runs that most of these items have."""
        return _shared([self._runs(_words(self._text(item))) for item in items], _MOST)

    def template(self, items: Sequence[Item]) -> set[int]:
        """The runs of the template that these similar items are made from; empty if they are copies
        of one another.
        """
        texts = [_words(self._text(item)) for item in items]
        runs = [self._runs(words) for words in texts]
        words = [_numbered(words) for words in texts]
        frame, usual = _shared(runs, _HALF), _shared(words, _HALF)
        own = median_low([len(held - usual) for held in words])
        broken = median_low([len(frame - held) for held in runs])
        return frame if own >= _OWN_WORDS and not broken else set()

    def _normalised(self, item: Item) -> _Words:
        text = self._text(item)
        words = _words(text)
        whole = b" ".join(words) if len(text) <= 2 * _WINDOW else " ".join(text.split()).encode()
        attached = _attached(item)
        return _Words(words, blake2b(whole + attached, digest_size=16).digest(), attached)

    def _text(self, item: Item) -> str:
        if not self._whole_rows:
            return item.input.casefold()
        content = item.content()
        compared = {name: value for name, value in content.items() if name not in _NOT_COMPARED}
        return json.dumps(compared, ensure_ascii=False, sort_keys=True, default=str).casefold()

    def _runs(self, words: Sequence[bytes]) -> set[int]:
        return set(self._run_hashes(words)[: max(0, len(words) - _RUN + 1)])

    def _run_hashes(self, words: Iterable[bytes]) -> array[int]:
        """For each word, a 32-bit hash of it and the four words that follow.

        The hash is a weighted sum of the words' hashes, modulo 2**32. All sums are computed at
        once, in 64-bit lanes of one large integer: shifting it by a lane puts the next word's hash
        in each lane. No sum exceeds 59 bits, so no lane overflows into the next.
        """
        word_hashes = array("Q", map(crc32, words))
        if sys.byteorder == "big":
            word_hashes.byteswap()
        lanes = int.from_bytes(word_hashes, "little")
        sums = sum((lanes >> 64 * place) * weight for place, weight in enumerate(_WEIGHTS))
        low_halves = b"\xff\xff\xff\xff\0\0\0\0" * len(word_hashes)
        sums &= int.from_bytes(low_halves, "little")
        hashes = array("Q", sums.to_bytes(8 * len(word_hashes), "little"))
        if sys.byteorder == "big":
            hashes.byteswap()
        return hashes


def _words(text: str) -> list[bytes]:
    """The words of a text; of a long one, those at both ends."""
    if len(text) > 2 * _WINDOW:
        text = f"{text[:_WINDOW]} {text[-_WINDOW:]}"
    data = text.encode()
    if not data.translate(None, _PLAIN):  # nothing but words and separators: the quick way
        return data.translate(_TO_SPACE).split()
    return " ".join(_TOKEN.findall(text)).encode().split()


def _attached(item: Item) -> bytes:
    content = item.content()
    if "files" not in content and "images" not in content:
        return b""
    return b"".join(sha256(path.read_bytes()).digest() for path in item.attachments())


def _grouped(texts: Sequence[_Text], whole_rows: bool) -> list[list[int]]:
    """The connected groups of the similarity relation (union-find)."""
    parent: dict[int, int] = {}  # of items that were joined with another one

    def root(at: int) -> int:
        while (above := parent.get(at, at)) != at:
            parent[at] = at = parent.get(above, above)
        return at

    def join(one: int, other: int) -> None:
        low, high = sorted((root(one), root(other)))
        parent[low] = parent[high] = low

    for one, other in _same_text(texts, whole_rows):
        join(one, other)
    for one, other in _candidates([text.sketch for text in texts]):
        first, second = texts[one], texts[other]
        if (
            first.attached == second.attached
            and first.exact != second.exact
            and root(one) != root(other)
            and _near(first.sketch, second.sketch)
        ):
            join(one, other)
    groups = {at: [at] for at in range(len(texts)) if parent.get(at, at) == at}
    for at in sorted(parent):
        if (top := root(at)) != at:
            groups[top].append(at)
    return list(groups.values())


def _same_text(texts: Sequence[_Text], whole_rows: bool) -> Iterator[tuple[int, int]]:
    """Pairs of items with the same text. A text that most items have does not tell them apart: with
    `whole_rows` it is ignored.
    """
    first: dict[bytes, int] = {}
    counts = Counter(text.exact for text in texts)
    for at, text in enumerate(texts):
        if whole_rows and counts[text.exact] > _HALF * len(texts):
            continue
        earlier = first.setdefault(text.exact, at)
        if earlier != at:
            yield earlier, at


def _candidates(sketches: Sequence[array[int]]) -> Iterator[tuple[int, int]]:
    """Pairs that share one of their smallest hashes. Where many items share a hash, each is paired
    with a few neighbours, in another order for each hash, instead of with all.
    """
    import numpy as np  # here, because most commands do not need it

    smallest = [sketch[:_LOOKED_UP].tolist() for sketch in sketches]
    everything = np.sort(np.fromiter(chain.from_iterable(smallest), dtype=np.uint64))
    shared = set(everything[1:][everything[1:] == everything[:-1]].tolist())
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for at, runs in enumerate(smallest):
        if not shared.isdisjoint(runs):
            for run in runs:
                if run in shared:
                    holders[run].append(at)
    for run, held in holders.items():
        if len(held) > _NEIGHBOURS + 1:
            random.Random(run).shuffle(held)
        for place, one in enumerate(held):
            for other in held[place + 1 : place + 1 + _NEIGHBOURS]:
                yield one, other


def _near(one: array[int], other: array[int]) -> bool:
    """Whether the Jaccard index, estimated from the hashes that both sketches could hold, reaches
    the threshold. A full sketch holds only hashes up to its last.
    """
    first, second = set(one), set(other)
    both = first & second
    if len(both) < _MIN_SHARED:
        return False
    end = min(sketch[-1] if len(sketch) == _SKETCH else 1 << 32 for sketch in (one, other))
    in_both = sum(run <= end for run in both)
    return in_both >= THRESHOLD * sum(run <= end for run in first | second)


def _sample(values: Sequence[Value]) -> Sequence[Value]:
    return values if len(values) <= _SAMPLE else random.Random(0).sample(values, _SAMPLE)


def _numbered(words: Sequence[bytes]) -> set[tuple[bytes, int]]:
    """The words, with a number for each occurrence: a template's word that an item uses once more
    is one of the item's own.
    """
    return {(word, time) for word, times in Counter(words).items() for time in range(times)}


def _shared(wholes: Sequence[set[Part]], share: float) -> set[Part]:
    """The parts that more than this share of the wholes contain."""
    held = Counter(part for whole in wholes for part in whole)
    return {part for part, count in held.items() if count > share * len(wholes)}
