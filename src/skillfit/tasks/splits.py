"""Train, selection and test: given by the items, or made by ratio, with near-duplicates together.

`split_items` divides the items. The second half of the module, from `similar_groups` on, finds
near-duplicates: items with the same normalised text, or with four fifths of their five-word runs in
common.

Items made from one template share most of their words without being copies, so words of a template
do not count. A run of words belongs to a template if most items have it, or if a large group of
similar items all have it while each also has its own words. Copies, even many of them, differ
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
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from itertools import chain, pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Any, TypeVar, get_args
from zlib import crc32

from skillfit.config.schema import SplitSection
from skillfit.errors import InputError
from skillfit.plain_text import quantity
from skillfit.tasks.item import Item, Split

if TYPE_CHECKING:
    from numpy.typing import NDArray  # numpy is imported when it is used: few commands need it

SPLITS: tuple[Split, ...] = get_args(Split)
# Every name that a split may be given: ours, common ones, and those of SkillOpt.
SPLIT_NAMES: Mapping[str, Split] = {
    "train": "train",
    **dict.fromkeys(("selection", "val", "valid", "validation", "valid_seen"), "selection"),
    **dict.fromkeys(("test", "valid_unseen"), "test"),
}
# With fewer selection items a verdict depends on one or two of them. Ten items give four at the
# default ratio.
MIN_SELECTION = 4
_SHOWN_DUPLICATES = 4  # ids of one group in a message
_SHOWN_GROUPS = 10
_APART = (
    "Add items that differ or make the texts differ. To divide them nevertheless, set "
    "env.split_method: shuffle and env.allow_duplicates: true."
)


@dataclass(frozen=True, slots=True)
class Splits:
    """The three splits. `fit_only`: selection is the train split again, so the result of training
    is unverified. `warnings` are sentences for the user, which a run records. The command line also
    shows `small_split_warning`: that near-duplicates made a split much smaller than wanted, and
    what to do; usually empty.
    """

    train: tuple[Item, ...]
    selection: tuple[Item, ...]
    test: tuple[Item, ...]
    fit_only: bool = False
    warnings: tuple[str, ...] = ()
    small_split_warning: str = ""


def split_named(name: Any, *others: str) -> Split:
    """Return the split that a user's word means. An error also lists `others`, words that the
    caller accepts besides.
    """
    if not isinstance(name, str) or name not in SPLIT_NAMES:
        known = ", ".join((*SPLIT_NAMES, *others))
        raise InputError(f"There is no split {name!r}.", hint=f"Known splits: {known}.")
    return SPLIT_NAMES[name]


def split_items(
    items: Sequence[Item],
    settings: SplitSection,
    *,
    caps: Mapping[Split, int] | None = None,
    whole_rows: bool = False,
    training: bool = True,
) -> Splits:
    """Return the items in their splits. `auto` uses the splits that the items have, and makes
    splits when they have none. `caps` limits the items of single splits; 0 = all. `whole_rows`:
    near-duplicates are found by whole rows, see `similar_groups`. `training`: splits without train
    items or selection items are refused.
    """
    caps = caps or {}
    warnings: list[str] = []
    together = ""
    if _use_given(items, settings):
        divided = {name: [item for item in items if item.split == name] for name in SPLITS}
        warnings += _check_duplicates(divided, settings, whole_rows)
    elif settings.split_method == "shuffle":
        divided = _shuffled(items, settings.ratio, settings.split_seed)
        warnings += _check_duplicates(divided, settings, whole_rows)
    else:
        divided = make_splits(items, settings.ratio, settings.split_seed, whole_rows=whole_rows)
        together = _small_split_reason(items, divided, settings.ratio, whole_rows)
    for name in SPLITS:
        limits = [limit for limit in (settings.limit, caps.get(name, 0)) if limit]
        divided[name] = divided[name][: min(limits)] if limits else divided[name]
    splits = replace(
        _arranged(divided, settings.allow_fit_only, warnings),
        small_split_warning=f"{together} {_APART}" if together else "",
    )
    if training:
        _refuse_untrainable(splits, together)
    return splits


def _use_given(items: Sequence[Item], settings: SplitSection) -> bool:
    without = [item for item in items if item.split is None]
    if settings.split_mode == "split_dir" and len(without) == len(items):
        raise InputError(
            "env.split_mode is split_dir, but the tasks have no splits.",
            hint="Use folders train/ val/ test/ or a split column.",
        )
    if settings.split_mode == "ratio" or len(without) == len(items):
        return False
    if without:
        count = quantity(len(without), "item has", "items have")
        raise InputError(
            f"{count} no split (first: {without[0].id}), the others have one.",
            hint="Give every item a split, or none.",
        )
    return True


def make_splits(
    items: Sequence[Item],
    ratio: tuple[float, float, float],
    seed: int,
    *,
    whole_rows: bool = False,
) -> dict[Split, list[Item]]:
    """Divide the items by ratio, type by type, with near-duplicates in the same split. The result
    depends on ids and seed, not on the order of the items. Each split is shuffled, so that its
    first n items are a fair sample.
    """
    items = sorted(items, key=lambda item: item.id)
    order = [sha256(f"{seed}:{item.id}".encode()).digest() for item in items]
    groups = similar_groups(items, whole_rows=whole_rows)
    for group in groups:
        if len(group) > 1:
            group.sort(key=order.__getitem__)
    # Large groups first, while there is room for them; then type by type, so that every type meets
    # the ratio. Three stable sorts are faster than one by all three.
    groups.sort(key=lambda group: order[group[0]])
    groups.sort(key=lambda group: items[group[0]].type)
    groups.sort(key=len, reverse=True)
    wanted = _counts(len(items), ratio)
    dealt: list[list[int]] = [[], [], []]
    done = 0
    for group in groups:
        done += len(group)
        dealt[_next_split(wanted, dealt, len(group), done / len(items))].extend(group)
    return {
        name: [items[at].in_split(name) for at in sorted(places, key=order.__getitem__)]
        for name, places in zip(SPLITS, dealt, strict=True)
    }


def _next_split(
    wanted: Sequence[int], dealt: Sequence[Sequence[int]], size: int, progress: float
) -> int:
    """Return the split for the next group of this size: of those with room for it, the one that is
    furthest behind its share. If none has room, the one with the most room.
    """
    best, most = -1, 0.0
    for at, places in enumerate(dealt):
        behind = wanted[at] * progress - len(places)
        if len(places) + size <= wanted[at] and (best < 0 or behind > most):
            best, most = at, behind
    if best >= 0:
        return best
    room = [count - len(places) for count, places in zip(wanted, dealt, strict=True)]
    return room.index(max(room))


def _shuffled(
    items: Sequence[Item], ratio: tuple[float, float, float], seed: int
) -> dict[Split, list[Item]]:
    shuffled = list(items)
    random.Random(seed).shuffle(shuffled)
    divided: dict[Split, list[Item]] = {}
    start = 0
    for name, count in zip(SPLITS, _counts(len(items), ratio), strict=True):
        divided[name] = [item.in_split(name) for item in shuffled[start : start + count]]
        start += count
    return divided


def _counts(total: int, ratio: tuple[float, ...]) -> list[int]:
    """Divide the total by largest remainder; of equal remainders the larger share comes first."""
    shares = [total * part / sum(ratio) for part in ratio]
    counts = [int(share) for share in shares]
    order = sorted(
        range(len(shares)), key=lambda at: (shares[at] - counts[at], ratio[at]), reverse=True
    )
    for at in order[: total - sum(counts)]:
        counts[at] += 1
    return counts


def _check_duplicates(
    divided: Mapping[Split, Sequence[Item]], settings: SplitSection, whole_rows: bool
) -> list[str]:
    """Raise an error for near-duplicates in more than one split; where they are allowed, return a
    warning.
    """
    items = [item for name in SPLITS for item in divided[name]]
    across = [
        [items[at] for at in group]
        for group in similar_groups(items, whole_rows=whole_rows)
        if len({items[at].split for at in group}) > 1
    ]
    if not across:
        return []
    shown = "; ".join(
        " ~ ".join(f"{item.id} ({item.split})" for item in group[:_SHOWN_DUPLICATES])
        for group in across[:_SHOWN_GROUPS]
    )
    groups = quantity(
        len(across), "group of near-duplicate items is", "groups of near-duplicate items are"
    )
    message = f"{groups} in more than one split: {shown}."
    if settings.allow_duplicates:
        return [f"{message} Scores on selection and test may be too high."]
    raise InputError(
        message,
        hint="Move each into one split, let skillfit make the splits (env.split_mode: ratio), "
        "or accept them with env.allow_duplicates: true.",
    )


def _small_split_reason(
    items: Sequence[Item],
    divided: Mapping[Split, Sequence[Item]],
    ratio: tuple[float, float, float],
    whole_rows: bool,
) -> str:
    """Say why a split has less than half of the items that the ratio wants: large groups of
    near-duplicates. Empty where that is not so.
    """
    wanted = dict(zip(SPLITS, _counts(len(items), ratio), strict=True))
    if all(2 * len(divided[name]) >= wanted[name] for name in SPLITS):
        return ""
    groups = [group for group in similar_groups(items, whole_rows=whole_rows) if len(group) > 1]
    if not groups:
        return ""
    largest = max(groups, key=len)
    shown = " ~ ".join(items[at].id for at in largest[:_SHOWN_DUPLICATES])
    rest = len(largest) - _SHOWN_DUPLICATES
    made, meant = ("/".join(map(str, one)) for one in (map(len, divided.values()), wanted.values()))
    return (
        f"{len(largest)} of {len(items)} items have nearly the same text "
        f"({shown}{f' and {rest} more' if rest > 0 else ''}). Near-duplicates stay in one split, "
        f"so train/selection/test have {made} items instead of {meant}."
    )


def _arranged(
    divided: Mapping[Split, list[Item]], allow_fit_only: bool, warnings: Sequence[str]
) -> Splits:
    train, selection, test = (tuple(divided[name]) for name in SPLITS)
    warnings = list(warnings)
    few = len(selection) < MIN_SELECTION
    counts = _counted(train, selection, test)
    if few and allow_fit_only:
        train = selection = tuple(item.in_split("train") for item in (*train, *selection))
        warnings.append(
            f"{counts}: selection uses the train items again, so the result is unverified."
        )
    elif few and selection:
        warnings.append(
            f"{counts}: with fewer than {MIN_SELECTION} a verdict depends on one or two items. "
            "Add items, or change env.split_ratio."
        )
    return Splits(train, selection, test, few and allow_fit_only, tuple(warnings))


def _refuse_untrainable(splits: Splits, together: str) -> None:
    """Refuse splits that leave nothing to train on or to compare skills on. `together`: why
    near-duplicates left a split without items.
    """
    if not splits.selection and not splits.fit_only:
        counts = _counted(splits.train, splits.selection, splits.test)
        hint = (
            "Add items, change env.split_ratio, or set env.allow_fit_only: true to train without "
            "verification."
        )
        raise InputError(
            f"{counts}: there is nothing to compare skills on. {together}".rstrip(),
            hint=_APART if together else hint,
        )
    if not splits.train:
        raise InputError("The train split is empty.", hint="Add items or change env.split_ratio.")


def _counted(train: Sequence[Item], selection: Sequence[Item], test: Sequence[Item]) -> str:
    found = quantity(len(selection), "selection item")
    return f"{found} (train {len(train)}, test {len(test)})"


THRESHOLD = 0.8
_RUN = 5  # words
_WEIGHTS = (0x9E3779, 0x85EBCB, 0xC2B2AF, 0x27D4EB, 0x165667)  # of the words in a run's hash
_BATCH = 512  # items whose runs are hashed together
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
_OWN_WORDS = 3  # an item of a template has at least so many other words; a copy has fewer
# Operators count (2 + 2 is not 2 - 2), sentence punctuation does not.
_TOKEN = re.compile(r"\w+|[^\w\s.,;:!?'\"]")
_SEPARATORS = b".,;:!?'\"\x1c\x1d\x1e\x1f"
_TO_SPACE = bytes.maketrans(_SEPARATORS, b" " * len(_SEPARATORS))
_PLAIN = f"{string.ascii_letters}{string.digits}_{string.whitespace}".encode() + _SEPARATORS
_NOT_COMPARED = ("id", "split", "weight", "type", "answers")
Part = TypeVar("Part", bound=Hashable)
Value = TypeVar("Value")


@dataclass(slots=True)
class _Text:
    """What is kept of an item's text."""

    exact: bytes  # hash of the whole normalised text and of the attached files
    attached: bytes  # hashes of the attached files
    sketch: NDArray[Any]  # smallest run hashes, ascending


def similar_groups(items: Sequence[Item], *, whole_rows: bool = False) -> list[list[int]]:
    """Group the positions of the items, near-duplicates together, in order of first member. Most
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
        changed = [
            at for at, text in enumerate(texts) if not found.isdisjoint(text.sketch.tolist())
        ]
        reduced = reader.reduced([items[at] for at in changed], template)
        for at, text in zip(changed, reduced, strict=True):
            texts[at] = text


class _Reader:
    """Reads the texts of items and reduces them to hashes."""

    def __init__(self, whole_rows: bool) -> None:
        self._whole_rows = whole_rows

    def reduced(self, items: Sequence[Item], template: set[int]) -> list[_Text]:
        """Return what is compared of each item. Works on many items at once, which is several times
        as fast.
        """
        texts: list[_Text] = []
        for start in range(0, len(items), _BATCH):
            texts += self._reduced_batch(items[start : start + _BATCH], template)
        return texts

    def _reduced_batch(self, items: Sequence[Item], template: set[int]) -> list[_Text]:
        texts, words = [], []
        for item in items:
            item = item.loaded()
            text = self._text(item)
            words.append(_words(text))
            whole = b" ".join(words[-1]) if len(text) <= 2 * _WINDOW else _one_line(text)
            attached = _attached(item)
            exact = blake2b(whole + attached, digest_size=16).digest()
            texts.append((exact, attached))
        sketches = _sketches(words, template)
        return [
            _Text(exact, attached, sketch)
            for (exact, attached), sketch in zip(texts, sketches, strict=True)
        ]

    def common_runs(self, items: Sequence[Item]) -> set[int]:
        """Return the runs that most of these items have."""
        return _shared([_runs(_words(self._text(item))) for item in items], _MOST)

    def template(self, items: Sequence[Item]) -> set[int]:
        """Return the runs of the template that these similar items are made from; empty if they are
        copies of one another.
        """
        texts = [_words(self._text(item)) for item in items]
        runs = [_runs(words) for words in texts]
        words = [_numbered(words) for words in texts]
        frame, usual = _shared(runs, _HALF), _shared(words, _HALF)
        own = median_low([len(held - usual) for held in words])
        broken = median_low([len(frame - held) for held in runs])
        return frame if own >= _OWN_WORDS and not broken else set()

    def _text(self, item: Item) -> str:
        if not self._whole_rows:
            return item.input.casefold()
        content = item.content()
        compared = {name: value for name, value in content.items() if name not in _NOT_COMPARED}
        return json.dumps(compared, ensure_ascii=False, sort_keys=True, default=str).casefold()


def _run_hashes(words: Iterable[bytes]) -> NDArray[Any]:
    """Return for each word a 32-bit hash of it and the four words that follow: a weighted sum of
    the words' hashes, modulo 2**32.
    """
    import numpy as np

    hashes = np.fromiter(map(crc32, words), dtype=np.uint64)
    sums = np.zeros_like(hashes)
    for place, weight in enumerate(_WEIGHTS):
        sums[: max(0, len(hashes) - place)] += hashes[place:] * np.uint64(weight)
    return sums & np.uint64(0xFFFFFFFF)


def _runs(words: Sequence[bytes]) -> set[int]:
    return set(_run_hashes(words)[: max(0, len(words) - _RUN + 1)].tolist())


def _sketches(texts: Sequence[Sequence[bytes]], template: set[int]) -> list[NDArray[Any]]:
    """Return for each text its smallest distinct run hashes outside the template, ascending."""
    import numpy as np

    lengths = np.fromiter(map(len, texts), dtype=np.int64)
    owner = np.repeat(np.arange(len(texts), dtype=np.uint64), lengths)
    ends = np.repeat(np.cumsum(lengths), lengths)
    whole_run = np.arange(len(owner)) <= ends - _RUN  # the others reach into the next text
    hashes = _run_hashes(chain.from_iterable(texts))
    # Text number and hash in one integer: sorting these sorts the hashes of each text.
    ordered = np.sort(((owner << np.uint64(32)) | hashes)[whole_run])
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    distinct = ordered[first]
    owner, hashes = distinct >> np.uint64(32), distinct & np.uint64(0xFFFFFFFF)
    if template:
        kept = ~np.isin(hashes, np.fromiter(template, dtype=np.uint64))
        owner, hashes = owner[kept], hashes[kept]
    bounds = np.searchsorted(owner, np.arange(len(texts) + 1, dtype=np.uint64)).tolist()
    # Copies, so that no sketch keeps the hashes of the whole batch in memory.
    return [hashes[begin : min(end, begin + _SKETCH)].copy() for begin, end in pairwise(bounds)]


def _words(text: str) -> list[bytes]:
    """Return the words of a text; of a long one, those at both ends."""
    if len(text) > 2 * _WINDOW:
        text = f"{text[:_WINDOW]} {text[-_WINDOW:]}"
    data = text.encode()
    if not data.translate(None, _PLAIN):  # nothing but words and separators: the quick way
        return data.translate(_TO_SPACE).split()
    return " ".join(_TOKEN.findall(text)).encode().split()


def _one_line(text: str) -> bytes:
    return " ".join(text.split()).encode()


def _attached(item: Item) -> bytes:
    content = item.content()
    if "files" not in content and "images" not in content:
        return b""
    return b"".join(sha256(path.read_bytes()).digest() for path in item.attachments())


def _grouped(texts: Sequence[_Text], whole_rows: bool) -> list[list[int]]:
    """Return the connected groups of the similarity relation (union-find)."""
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
    """Yield pairs of items with the same text. A text that most items have does not tell them
    apart: with `whole_rows` it is ignored.
    """
    first: dict[bytes, int] = {}
    counts = Counter(text.exact for text in texts)
    for at, text in enumerate(texts):
        if whole_rows and counts[text.exact] > _HALF * len(texts):
            continue
        earlier = first.setdefault(text.exact, at)
        if earlier != at:
            yield earlier, at


def _candidates(sketches: Sequence[NDArray[Any]]) -> Iterator[tuple[int, int]]:
    """Yield pairs that share one of their smallest hashes. Where many items share a hash, each is
    paired with a few neighbours, in another order for each hash, instead of with all.
    """
    import numpy as np

    smallest = [sketch[:_LOOKED_UP] for sketch in sketches]
    runs = np.concatenate(smallest)
    owners = np.repeat(np.arange(len(smallest)), [len(few) for few in smallest])
    ordered = np.sort(runs)
    shared = np.isin(runs, ordered[1:][ordered[1:] == ordered[:-1]])
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for run, at in zip(runs[shared].tolist(), owners[shared].tolist(), strict=True):
        holders[run].append(at)
    for run, held in holders.items():
        if len(held) > _NEIGHBOURS + 1:
            random.Random(run).shuffle(held)
        for place, one in enumerate(held):
            for other in held[place + 1 : place + 1 + _NEIGHBOURS]:
                yield one, other


def _near(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether the Jaccard index, estimated from the hashes that both sketches could hold,
    reaches the threshold. A full sketch holds only hashes up to its last.
    """
    first: set[int] = set(one.tolist())
    second: set[int] = set(other.tolist())
    both = first & second
    if len(both) < _MIN_SHARED:
        return False
    end = min(int(full[-1]) if len(full) == _SKETCH else 1 << 32 for full in (one, other))
    in_both = sum(run <= end for run in both)
    return in_both >= THRESHOLD * sum(run <= end for run in first | second)


def _sample(values: Sequence[Value]) -> Sequence[Value]:
    return values if len(values) <= _SAMPLE else random.Random(0).sample(values, _SAMPLE)


def _numbered(words: Sequence[bytes]) -> set[tuple[bytes, int]]:
    """Return the words, with a number for each occurrence: a template's word that an item uses once
    more is one of the item's own.
    """
    return {(word, time) for word, times in Counter(words).items() for time in range(times)}


def _shared(wholes: Sequence[set[Part]], share: float) -> set[Part]:
    """Return the parts that more than this share of the wholes contain."""
    held = Counter(part for whole in wholes for part in whole)
    return {part for part, count in held.items() if count > share * len(wholes)}
