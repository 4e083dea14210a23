"""Train, selection and test: given by the items, or made by ratio."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from skillfit.errors import InputError
from skillfit.tasks.item import Item, Split
from skillfit.tasks.similar import similar_groups

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


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """How items are divided. `method` says how splits are made by ratio:

    - balanced: the types of items in equal shares, near-duplicates in the same split;
    - shuffle: one shuffle of all items in file order, exactly as SkillOpt divides them.
    """

    mode: Literal["auto", "ratio", "split_dir"] = "auto"
    method: Literal["balanced", "shuffle"] = "balanced"
    ratio: str = "4:4:2"
    seed: int = 42
    limit: int = 0  # items per split, 0 = all
    caps: Mapping[Split, int] = field(default_factory=dict)  # items of one split, 0 = all
    allow_fit_only: bool = False
    allow_duplicates: bool = False  # near-duplicates in different splits are only warned about


@dataclass(frozen=True, slots=True)
class Splits:
    """The three splits. `fit_only`: selection is the train split again, so the result of training
    is unverified. `warnings` are sentences for the user.
    """

    train: tuple[Item, ...]
    selection: tuple[Item, ...]
    test: tuple[Item, ...]
    fit_only: bool = False
    warnings: tuple[str, ...] = ()


def split_named(name: Any) -> Split:
    """The split that a user's word means."""
    if not isinstance(name, str) or name not in SPLIT_NAMES:
        raise InputError(
            f"There is no split {name!r}.", hint=f"Known splits: {', '.join(SPLIT_NAMES)}."
        )
    return SPLIT_NAMES[name]


def split_items(
    items: Sequence[Item], settings: SplitSettings, *, whole_rows: bool = False
) -> Splits:
    """The items in their splits. `auto` uses the splits that the items have, and makes splits when
    they have none. `whole_rows`: near-duplicates are found by whole rows, see `similar_groups`.
    """
    warnings: list[str] = []
    if _use_given(items, settings):
        divided = {name: [item for item in items if item.split == name] for name in SPLITS}
        warnings += _duplicates(divided, settings, whole_rows)
    elif settings.method == "shuffle":
        divided = _shuffled(items, parse_ratio(settings.ratio), settings.seed)
        warnings += _duplicates(divided, settings, whole_rows)
    else:
        divided = make_splits(
            items, parse_ratio(settings.ratio), settings.seed, whole_rows=whole_rows
        )
    for name in SPLITS:
        caps = [cap for cap in (settings.limit, settings.caps.get(name, 0)) if cap]
        divided[name] = divided[name][: min(caps)] if caps else divided[name]
    return _checked(divided, settings.allow_fit_only, warnings)


def _use_given(items: Sequence[Item], settings: SplitSettings) -> bool:
    without = [item for item in items if item.split is None]
    if settings.mode == "split_dir" and len(without) == len(items):
        raise InputError(
            "env.split_mode is split_dir, but the tasks have no splits.",
            hint="Use folders train/ val/ test/ or a split column.",
        )
    if settings.mode == "ratio" or len(without) == len(items):
        return False
    if without:
        raise InputError(
            f"{len(without)} items have no split (first: {without[0].id}), the others have one.",
            hint="Give every item a split, or none.",
        )
    return True


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
    order = [hashlib.sha256(f"{seed}:{item.id}".encode()).digest() for item in items]
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
    """The split for the next group of this size: of those with room for it, the one that is
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
    """Largest remainder; of equal remainders the larger share comes first."""
    shares = [total * part / sum(ratio) for part in ratio]
    counts = [int(share) for share in shares]
    order = sorted(
        range(len(shares)), key=lambda at: (shares[at] - counts[at], ratio[at]), reverse=True
    )
    for at in order[: total - sum(counts)]:
        counts[at] += 1
    return counts


def _duplicates(
    divided: Mapping[Split, Sequence[Item]], settings: SplitSettings, whole_rows: bool
) -> list[str]:
    """Near-duplicates in more than one split: an error, or a warning where they are allowed."""
    items = [item for name in SPLITS for item in divided[name]]
    across = [
        [items[at] for at in group]
        for group in similar_groups(items, whole_rows=whole_rows)
        if len({items[at].split for at in group}) > 1
    ]
    if not across:
        return []
    shown = "; ".join(
        " ~ ".join(f"{item.id} ({item.split})" for item in group[:4]) for group in across[:10]
    )
    message = f"{len(across)} near-duplicate items stand in more than one split: {shown}."
    if settings.allow_duplicates:
        return [f"{message} Scores on selection and test may be too high."]
    raise InputError(
        message,
        hint="Move each into one split, let skillfit make the splits (env.split_mode: ratio), "
        "or accept them with env.allow_duplicates: true.",
    )


def _checked(
    divided: Mapping[Split, list[Item]], allow_fit_only: bool, warnings: Sequence[str]
) -> Splits:
    train, selection, test = (tuple(divided[name]) for name in SPLITS)
    warnings = list(warnings)
    few = len(selection) < MIN_SELECTION
    noun = "item" if len(selection) == 1 else "items"
    counts = f"{len(selection)} selection {noun} (train {len(train)}, test {len(test)})"
    if few and allow_fit_only:
        train = selection = tuple(item.in_split("train") for item in (*train, *selection))
        warnings.append(
            f"{counts}: selection uses the train items again, so the result is unverified."
        )
    elif not selection:
        raise InputError(
            f"{counts}: there is nothing to compare skills on.",
            hint="Add items, change env.split_ratio, or set env.allow_fit_only: true to train "
            "without verification.",
        )
    elif few:
        warnings.append(
            f"{counts}: with fewer than {MIN_SELECTION} a verdict depends on one or two items. "
            "Add items, or change env.split_ratio."
        )
    if not train:
        raise InputError("The train split is empty.", hint="Add items or change env.split_ratio.")
    return Splits(train, selection, test, few and allow_fit_only, tuple(warnings))
