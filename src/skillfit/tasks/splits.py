"""Which items say nearly the same: the same normalised text, or four fifths of its five-word runs
in common.

Items made from one template say nearly the same too, and are no copies: what the template says does
not count. A template is what most items begin, end or are framed with; or what a big group has in
full and in common, each member with words of its own besides. Copies, however many, differ in a
word or two, or each in another place.

Each item is reduced to its 64 smallest run hashes (a bottom-k sketch), so ten thousand long items
take seconds and a few megabytes.

Train, selection and test: given by the items, or made by ratio. Always disjoint, by id and by
near-duplicate text.
"""

from __future__ import annotations

import hashlib
import random
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Literal, TypeVar, get_args

from skillfit.errors import InputError
from skillfit.tasks.item import Item, Split

THRESHOLD = 0.8
_RUN, _SKETCH, _WINDOW = (
    5,
    64,
    4000,
)  # words in a run, hashes in a sketch, characters looked at from each end of a long text
_MIN_SHARED = 4
# smallest hashes by which likely copies are found: two sketches that are four fifths the same share
# some of them
_LOOKED_UP = 16
_NEIGHBOURS = 8  # items a holder of a run is compared with; other runs bring other neighbours
_SAMPLE = 64  # items that tell what a group has in common
_MOST, _HALF = 0.75, 0.5
_BIG_GROUP = (
    3,
    0.1,
)  # up to so many items, or this share of all, stay together whatever they are: that costs the splits nothing
_OWN_WORDS = 3  # fewer are a changed word, not a template's content
Part = TypeVar("Part", bound=Hashable)
_TOKEN = re.compile(
    r"\w+|[^\w\s.,;:!?'\"]"
)  # 2 + 2 is not 2 - 2; a full stop more or less is no difference


def similar_groups(items: Sequence[Item]) -> list[list[int]]:
    """Positions of the items, near-duplicates grouped together; most groups have one member. In
    order of first member.
    """
    attached = [_attached(item) for item in items]
    exact = [_exact(item) + files for item, files in zip(items, attached, strict=True)]
    fewest, share = _BIG_GROUP
    big = max(fewest, share * len(items))
    template = (
        _shared([_runs(_words(item)) for item in _sample(items)], _MOST)
        if len(items) > big
        else set()
    )
    sketches = [_sketch(item, template) for item in items]
    while True:
        groups = _joined(exact, attached, sketches)
        found = {
            run
            for group in groups
            if len(group) > big
            for run in _template([items[at] for at in group])
        } - template
        if not found:
            return groups
        template |= found
        sketches = [
            sketch if sketch.isdisjoint(found) else _sketch(item, template)
            for item, sketch in zip(items, sketches, strict=True)
        ]


def _template(group: Sequence[Item]) -> set[int]:
    """The runs that items of one template are framed with; empty for copies of one another."""
    texts = [_words(item) for item in _sample(group)]
    runs, words = [_runs(text) for text in texts], [_numbered(text) for text in texts]
    frame, usual = _shared(runs, _HALF), _shared(words, _HALF)
    own = median_low([len(held - usual) for held in words])
    broken = median_low([len(frame - held) for held in runs])
    return frame if own >= _OWN_WORDS and not broken else set()


def _sample(items: Sequence[Item]) -> Sequence[Item]:
    return items if len(items) <= _SAMPLE else random.Random(0).sample(items, _SAMPLE)


def _numbered(words: Sequence[str]) -> set[tuple[str, int]]:
    """The words, each with a number for every time it is said: a template's word said once more is
    not the template's.
    """
    return {(word, time) for word, times in Counter(words).items() for time in range(times)}


def _shared(wholes: Sequence[set[Part]], share: float) -> set[Part]:
    """What more than this share of them hold."""
    held = Counter(part for whole in wholes for part in whole)
    return {part for part, count in held.items() if count > share * len(wholes)}


def _joined(
    exact: Sequence[str], attached: Sequence[str], sketches: Sequence[frozenset[int]]
) -> list[list[int]]:
    parent = list(range(len(exact)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = at = parent[parent[at]]
        return at

    def join(one: int, other: int) -> None:
        low, high = sorted((root(one), root(other)))
        parent[high] = low

    first: dict[str, int] = {}
    for at, text in enumerate(exact):
        join(first.setdefault(text, at), at)
    for one, other in _candidates(sketches):
        if (
            root(one) != root(other)
            and attached[one] == attached[other]
            and _near(sketches[one], sketches[other])
        ):
            join(one, other)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for at in range(len(exact)):
        groups[root(at)].append(at)
    return sorted(groups.values())


def _candidates(sketches: Sequence[frozenset[int]]) -> Iterator[tuple[int, int]]:
    """Pairs that share a run: all of them where few hold it; else each with some neighbours, in
    another order for each run.
    """
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for at, sketch in enumerate(sketches):
        for run in sorted(sketch)[:_LOOKED_UP]:
            holders[run].append(at)
    for run, held in holders.items():
        if len(held) > _NEIGHBOURS + 1:
            random.Random(run).shuffle(held)
        for place, one in enumerate(held):
            for other in held[place + 1 : place + 1 + _NEIGHBOURS]:
                yield one, other


def _near(one: frozenset[int], other: frozenset[int]) -> bool:
    """By Jaccard index over the hashes both sketches would hold: up to the smaller end of those
    that were cut.
    """
    both = one & other
    if len(both) < _MIN_SHARED:
        return False
    end = min(max(runs) if len(runs) == _SKETCH else 1 << 32 for runs in (one, other))
    return sum(run <= end for run in both) >= THRESHOLD * sum(run <= end for run in one | other)


def _words(item: Item) -> list[str]:
    text = item.input.casefold()
    return _TOKEN.findall(
        text if len(text) <= 2 * _WINDOW else f"{text[:_WINDOW]} {text[-_WINDOW:]}"
    )


def _runs(words: Sequence[str]) -> set[int]:
    runs = map(" ".join, zip(*(words[start:] for start in range(_RUN)), strict=False))
    return {zlib.crc32(run.encode()) for run in runs}


def _sketch(item: Item, template: set[int]) -> frozenset[int]:
    return frozenset(sorted(_runs(_words(item)) - template)[:_SKETCH])


def _exact(item: Item) -> str:
    text = item.input.casefold()
    words = _TOKEN.findall(text) if len(text) <= 2 * _WINDOW else text.split()
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def _attached(item: Item) -> str:
    return "".join(
        hashlib.sha256(path.read_bytes()).hexdigest() for path in item.loaded().attachments()
    )


SPLITS: tuple[Split, ...] = get_args(Split)

# Below four selection items a verdict rests on one or two flips; four is what ten examples give at
# the default ratio.
MIN_SELECTION = 4


@dataclass(frozen=True, slots=True)
class SplitSettings:
    mode: Literal["auto", "ratio", "split_dir"] = "auto"
    ratio: str = "4:4:2"
    seed: int = 42
    limit: int = 0  # items per split, 0 = all
    caps: Mapping[Split, int] = field(default_factory=dict)  # items of one split, 0 = all
    allow_fit_only: bool = False


@dataclass(frozen=True, slots=True)
class Splits:
    train: tuple[Item, ...]
    selection: tuple[Item, ...]
    test: tuple[Item, ...]
    fit_only: bool = False  # selection is train again: whatever comes out is unverified


def split_items(items: Sequence[Item], settings: SplitSettings) -> Splits:
    """The items in their splits. `auto` takes the splits the items carry, and makes them when they
    carry none.
    """
    given = [item for item in items if item.split is not None]
    if settings.mode == "split_dir" and not given:
        raise InputError(
            "env.split_mode is split_dir, but the tasks carry no splits.",
            hint="Use folders train/ val/ test/ or a split column.",
        )
    if settings.mode != "ratio" and given:
        if len(given) < len(items):
            missing = next(item.id for item in items if item.split is None)
            raise InputError(
                f"{len(items) - len(given)} items have no split (first: {missing}), the others have.",
                hint="Give all or none.",
            )
        _refuse_duplicates(items)
        divided = {name: [item for item in items if item.split == name] for name in SPLITS}
    else:
        divided = make_splits(items, parse_ratio(settings.ratio), settings.seed)
    for name in SPLITS:
        caps = [cap for cap in (settings.limit, settings.caps.get(name, 0)) if cap]
        divided[name] = divided[name][: min(caps)] if caps else divided[name]
    return _checked(divided, settings.allow_fit_only)


def parse_ratio(text: str) -> tuple[float, float, float]:
    """`train:selection:test`, as 4:4:2 or 0.2:0.1:0.7."""
    try:
        parts = tuple(float(part) for part in text.split(":"))
    except ValueError:
        parts = ()
    if len(parts) != 3 or not all(0 <= part < float("inf") for part in parts) or not parts[0]:
        raise InputError(
            f"env.split_ratio: {text!r} is not train:selection:test.", hint="For example 4:4:2."
        )
    return parts


def make_splits(
    items: Sequence[Item], ratio: tuple[float, float, float], seed: int
) -> dict[Split, list[Item]]:
    """Deal the items out by ratio (largest remainder), type by type, near-duplicates together.
    Depends on ids and seed, not on order; each split comes shuffled, so that its first n are a fair
    sample.
    """
    items = sorted(items, key=lambda item: item.id)
    wanted = dict(zip(SPLITS, _largest_remainder(len(items), ratio), strict=True))
    dealt: dict[Split, list[Item]] = {name: [] for name in SPLITS}
    groups = [
        sorted((items[at] for at in group), key=lambda item: _draw(seed, item))
        for group in similar_groups(items)
    ]
    # big groups first, while there is room for them; then type by type, so that every type meets
    # the ratio
    groups.sort(key=lambda group: (-len(group), group[0].type, _draw(seed, group[0])))
    done = 0
    for group in groups:
        done += len(group)
        behind = {name: wanted[name] * done / len(items) - len(dealt[name]) for name in SPLITS}
        room = [name for name in SPLITS if len(dealt[name]) + len(group) <= wanted[name]]
        chosen = max(
            room or SPLITS,
            key=lambda name: behind[name] if room else wanted[name] - len(dealt[name]),
        )
        dealt[chosen].extend(replace(item, split=chosen) for item in group)
    return {name: sorted(dealt[name], key=lambda item: _draw(seed, item)) for name in SPLITS}


def _largest_remainder(count: int, ratio: tuple[float, ...]) -> list[int]:
    shares = [count * part / sum(ratio) for part in ratio]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda at: (counts[at] - shares[at], at))
    for at in by_remainder[: count - sum(counts)]:
        counts[at] += 1
    return counts


def _draw(seed: int, item: Item) -> str:
    return hashlib.sha256(f"{seed}:{item.id}".encode()).hexdigest()


def _refuse_duplicates(items: Sequence[Item]) -> None:
    groups = [[items[at] for at in group] for group in similar_groups(items)]
    across = [group for group in groups if len({item.split for item in group}) > 1]
    if across:
        named = "; ".join(
            " ~ ".join(f"{item.id} ({item.split})" for item in group[:4]) for group in across[:10]
        )
        raise InputError(
            f"{len(across)} near-duplicate items stand in more than one split: {named}.",
            hint="Move each into one split, or let skillfit make the splits: env.split_mode: ratio.",
        )


def _checked(divided: Mapping[Split, list[Item]], allow_fit_only: bool) -> Splits:
    train, selection, test = (tuple(divided[name]) for name in SPLITS)
    fit_only = len(selection) < MIN_SELECTION
    if fit_only and not allow_fit_only:
        raise InputError(
            f"{len(selection)} selection items (train {len(train)}, test {len(test)}); at least {MIN_SELECTION} are needed.",
            hint="Add items, change env.split_ratio, or set env.allow_fit_only to train without verification.",
        )
    if fit_only:
        train = selection = tuple(replace(item, split="train") for item in (*train, *selection))
    if not train:
        raise InputError("The train split is empty.", hint="Add items or change env.split_ratio.")
    return Splits(train, selection, test, fit_only)
