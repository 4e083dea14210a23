"""Train, selection and test: given by the items, or made by ratio. Always disjoint, by id and by near-duplicate text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from skillfit.errors import InputError
from skillfit.tasks.item import Item, Split
from skillfit.tasks.similar import similar_groups

SPLITS: tuple[Split, ...] = get_args(Split)

# Below four selection items a verdict rests on one or two flips; four is what ten examples give at the default ratio.
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
    """The items in their splits. `auto` takes the splits the items carry, and makes them when they carry none."""
    given = [item for item in items if item.split is not None]
    if settings.mode == "split_dir" and not given:
        raise InputError(
            "env.split_mode is split_dir, but the tasks carry no splits.", hint="Use folders train/ val/ test/ or a split column."
        )
    if settings.mode != "ratio" and given:
        if len(given) < len(items):
            missing = next(item.id for item in items if item.split is None)
            raise InputError(
                f"{len(items) - len(given)} items have no split (first: {missing}), the others have.", hint="Give all or none."
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
        raise InputError(f"env.split_ratio: {text!r} is not train:selection:test.", hint="For example 4:4:2.")
    return parts


def make_splits(items: Sequence[Item], ratio: tuple[float, float, float], seed: int) -> dict[Split, list[Item]]:
    """Deal the items out by ratio (largest remainder), type by type, near-duplicates together. Depends on ids and seed, not on
    order; each split comes shuffled, so that its first n are a fair sample."""
    items = sorted(items, key=lambda item: item.id)
    wanted = dict(zip(SPLITS, _largest_remainder(len(items), ratio), strict=True))
    dealt: dict[Split, list[Item]] = {name: [] for name in SPLITS}
    groups = [sorted((items[at] for at in group), key=lambda item: _draw(seed, item)) for group in similar_groups(items)]
    # big groups first, while there is room for them; then type by type, so that every type meets the ratio
    groups.sort(key=lambda group: (-len(group), group[0].type, _draw(seed, group[0])))
    done = 0
    for group in groups:
        done += len(group)
        behind = {name: wanted[name] * done / len(items) - len(dealt[name]) for name in SPLITS}
        room = [name for name in SPLITS if len(dealt[name]) + len(group) <= wanted[name]]
        chosen = max(room or SPLITS, key=lambda name: behind[name] if room else wanted[name] - len(dealt[name]))
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
        named = "; ".join(" ~ ".join(f"{item.id} ({item.split})" for item in group[:4]) for group in across[:10])
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
