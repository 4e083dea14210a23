"""Tasks whose truth is known: the chance of success of every item under any set of lines.

- `real_table()`: a real model, by an emulator that was fitted to its real rollouts (README.md).
- `without_effects()`: the same items, and no line changes anything (A/A).
- `local_rules()`: a made-up task of ten kinds where each line acts on one kind only.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

threadpool_limits(1)  # of small matrices, waiting for threads takes longer than multiplying
_GELU = 0.7978845608  # the square root of 2 / pi
TABLE = Path(__file__).with_name("table")
TEST_ITEMS = 60  # of the test split are given to a run; the true score counts all of them
UNSEEN = ("selection", "test")

Array = NDArray[np.float64]
Chances = Callable[[Array], Array]  # sets x lines (1: the line is in the skill) -> sets x items
Role = Literal["helpful", "overlapping", "useless", "wrong"]
Split = Literal["train", "selection", "test"]


def draw(*names: object) -> float:
    """A number in [0, 1) that depends on the names alone."""
    digest = hashlib.sha256("\x1f".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


@dataclass(frozen=True, slots=True)
class Item:
    id: str
    kind: str
    split: Split
    ask: str  # no item's ask is part of another's
    gold: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line that an optimizer may add to the skill, and what it was written to do."""

    text: str
    role: Role


@dataclass(frozen=True)
class World:
    name: str
    start: str  # the initial skill
    items: tuple[Item, ...]
    lines: tuple[Line, ...]
    model: Chances
    _known: dict[frozenset[int], Array] = field(default_factory=dict, repr=False)

    def chances(self, lines: Collection[int]) -> Array:
        """The chance of success of each item when these lines are in the skill."""
        key = frozenset(lines)
        if key not in self._known:
            present = np.zeros((1, len(self.lines)))
            present[0, list(key)] = 1
            self._known[key] = self.model(present)[0]
        return self._known[key]

    def lines_in(self, skill: str) -> frozenset[int]:
        """The lines that a skill has, as lines of their own."""
        written = {line.strip() for line in skill.splitlines()}
        return frozenset(at for at, line in enumerate(self.lines) if line.text in written)

    def true(self, skill: str) -> float:
        """The mean chance of success over all selection and test items."""
        unseen = [at for at, item in enumerate(self.items) if item.split in UNSEEN]
        return float(self.chances(self.lines_in(skill))[unseen].mean())

    def given(self, split: Split) -> list[Item]:
        """The items of a split that a run gets."""
        found = [item for item in self.items if item.split == split]
        return found[:TEST_ITEMS] if split == "test" else found

    def asked_in(self, text: str) -> list[tuple[int, int]]:
        """Where items are asked in a text: (item, position), in order."""
        return [(self._by_ask[found[0]], found.start()) for found in self._asks.finditer(text)]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.kind for item in self.items))

    @cached_property
    def helpful(self) -> tuple[int, ...]:
        return tuple(at for at, line in enumerate(self.lines) if line.role == "helpful")

    @cached_property
    def gain(self) -> Array:
        """kinds x lines: what a line adds to the score of a kind, on average over random sets of
        helpful lines.
        """
        luck = random.Random(5)
        sets = np.zeros((36, len(self.lines)))
        for row, share in zip(sets, (0.1, 0.2, 0.3, 0.5, 0.7, 0.9) * 6, strict=True):
            row[[line for line in self.helpful if luck.random() < share]] = 1
        change = np.array([self._mean_change(sets, line) for line in range(len(self.lines))])
        of_kind = np.array([[item.kind == kind for item in self.items] for kind in self.kinds])
        gain: Array = (of_kind / of_kind.sum(1, keepdims=True)) @ change.T
        return gain

    def _mean_change(self, sets: Array, line: int) -> Array:
        on, off = sets.copy(), sets.copy()
        on[:, line], off[:, line] = 1, 0
        change: Array = (self.model(on) - self.model(off)).mean(0)
        return change

    @cached_property
    def _by_ask(self) -> dict[str, int]:
        return {item.ask: at for at, item in enumerate(self.items)}

    @cached_property
    def _asks(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._by_ask)))


# The real table


def real_table(folder: Path = TABLE) -> World:
    """The task and the emulator in a folder, as `make_table` writes them."""
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    items = tuple(Item(**item) for item in task["items"])
    lines = tuple(Line(**line) for line in task["lines"])
    return World(task["name"], task["start"], items, lines, emulator(folder / "emulator.npz"))


def emulator(path: Path) -> Chances:
    """The mean of several small networks. Each reads which lines are there, and adds to the item's
    own logit one number per line of that item and a product of the item's and the set's features.
    """
    with np.load(path) as stored:
        weights = {name: stored[name].astype(np.float64) for name in stored.files}
    count = sum(name.startswith("lin_") for name in weights)
    networks = [
        {name.removesuffix(f"_{at}"): weights[name] for name in weights if name.endswith(f"_{at}")}
        for at in range(count)
    ]

    def chances(sets: Array) -> Array:
        mean: Array = np.mean([forward(network, sets) for network in networks], axis=0)
        return mean

    return chances


def forward(network: dict[str, Any], sets: Array) -> Array:
    """The chances (sets x items) that one network gives."""
    features = set_features(sets)
    for layer in ("0", "1"):
        features = gelu(features @ network[f"w{layer}"].T + network[f"b{layer}"])
    features = features @ network["w2"].T + network["b2"]
    logits = network["a"] + sets @ network["lin"].T + features @ network["v"].T
    chances: Array = 1 / (1 + np.exp(-logits))
    return chances


def set_features(sets: Array) -> Array:
    """The inputs of a network: which lines are there, and how many."""
    count = sets.sum(1, keepdims=True)
    return np.hstack([sets, count / 20, np.log1p(count) / 3])


def gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(_GELU * (x + 0.044715 * x**3)))
    return result


def gelu_slope(x: Array) -> Array:
    curve = np.tanh(_GELU * (x + 0.044715 * x**3))
    inner = _GELU * (1 + 3 * 0.044715 * x**2)
    result: Array = 0.5 * (1 + curve) + 0.5 * x * (1 - curve**2) * inner
    return result


# Other worlds


def without_effects() -> World:
    """The items of the real table at the level of half its helpful lines, whatever the skill."""
    world = real_table()
    level = world.chances(world.helpful[::2])
    return World(
        "without effects",
        world.start,
        world.items,
        world.lines,
        lambda sets: np.tile(level, (len(sets), 1)),
    )


def local_rules(seed: int) -> World:
    """Ten kinds of cases. Two lines help each kind, eight harm one kind each, fourteen do
    nothing.
    """
    luck = random.Random(f"local rules {seed}")
    kinds = [f"kind {letter}" for letter in "ABCDEFGHIJ"]
    items = tuple(
        Item(f"{split}-{at:03d}", kinds[at % 10], split, f"Case {split}-{at:03d}.", f"code {at}")
        for split, count in _SIZES.items()
        for at in range(count)
    )
    lines: list[Line] = []
    effects: list[list[float]] = []  # line x kind, in logits

    def add(role: Role, kind: str | None, effect: float) -> None:
        lines.append(Line(f"- Check the {_word(luck)} before the {_word(luck)}.", role))
        effects.append([effect * (kind == other) for other in kinds])

    for kind in kinds:
        add("helpful", kind, luck.uniform(1.5, 3.0))
        add("helpful", kind, luck.uniform(0.8, 2.0))
    for kind in luck.sample(kinds, 8):
        add("wrong", kind, -luck.uniform(1.0, 3.0))
    for _ in range(14):
        add("useless", None, 0.0)
    levels = {kind: luck.gauss(-1.6, 0.6) for kind in kinds}
    alone = np.array([levels[item.kind] + luck.gauss(0, 0.7) for item in items])
    by_item = np.array(effects)[:, [kinds.index(item.kind) for item in items]]

    def chances(sets: Array) -> Array:
        result: Array = 1 / (1 + np.exp(-(alone + sets @ by_item)))
        return result

    start = "# Reading cases\n\nRead the case and answer with its code."
    return World("local rules", start, items, tuple(lines), chances)


_SIZES: dict[Split, int] = {"train": 100, "selection": 40, "test": 100}


def _word(luck: random.Random) -> str:
    return "".join(luck.choice("aeioubdgklmnprst") for _ in range(7))


@cache
def world_named(name: str, seed: int) -> World:
    return WORLDS[name](seed)


WORLDS: dict[str, Callable[[int], World]] = {
    "style": lambda _: real_table(),
    "local": local_rules,
    "null": lambda _: without_effects(),
}
