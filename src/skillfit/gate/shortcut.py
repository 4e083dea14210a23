"""The shortcut audit: whether a trivial skill, such as "Always answer: B", reaches the score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skillfit.gate.words import words
from skillfit.run.records import SHORTCUT, CheckResult
from skillfit.tasks.item import Item

_OPTIONS = ("options", "choices")
_CLOSE = 0.02  # a rule that is so little below the score is told too


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A trivial rule that needs no skill."""

    name: str
    predicted: float  # share of selection items that the rule answers right


def shortcuts(train: Sequence[Item], selection: Sequence[Item]) -> list[Shortcut]:
    """Learn trivial rules from training golds, and score them on the selection items: the most
    common answer, and the most common place of the answer among options.
    """
    found = []
    golds = Counter(answer for item in train for answer in item.answers[:1])
    if golds:
        answer, _ = golds.most_common(1)[0]
        right = sum(words(answer) in map(words, item.answers) for item in selection)
        found.append(Shortcut("majority answer", _share(right, selection)))
    places = Counter(place for item in train if (place := _place(item)) is not None)
    if places:
        place, _ = places.most_common(1)[0]
        right = sum(_place(item) == place for item in selection)
        found.append(Shortcut("answer position", _share(right, selection)))
    return found


def _share(right: int, items: Sequence[Item]) -> float:
    return right / len(items) if items else 0.0


def _place(item: Item) -> int | None:
    """Return where the gold answer stands among the item's options, by text or by letter; None when
    it is not among them.
    """
    row = item.content()
    options = next((row[name] for name in _OPTIONS if row.get(name)), None)
    if options is None or not item.answers:
        return None
    texts = [
        words(str(option))
        for option in (options.values() if isinstance(options, Mapping) else options)
    ]
    gold = words(item.answers[0])
    if gold in texts:
        return texts.index(gold)
    letter = ord(gold[0]) - ord("a") if len(gold) == 1 and len(gold[0]) == 1 else -1
    return letter if 0 <= letter < len(texts) else None


def audit(found: Sequence[Shortcut], score: float, skill: str = "skill") -> CheckResult:
    """Compare the score of a skill with that of the best trivial rule. `skill`: what the message
    calls it.
    """
    scores = {shortcut.name: shortcut.predicted for shortcut in found}
    name = max(scores, key=lambda key: scores[key], default="")
    if not name or scores[name] <= 0:
        return CheckResult(SHORTCUT, "go", "No one-line rule scores above 0.", scores)
    rule, reached = f"A one-line rule ({name}) scores {scores[name]:.2f}", f"{score:.2f}"
    if scores[name] >= score:
        message = f"{rule}, the {skill} {reached}: that score needs no skill."
        return CheckResult(SHORTCUT, "warn", message, scores)
    if scores[name] >= score - _CLOSE:
        message = f"{rule}, nearly as much as the {skill}, {reached}."
        return CheckResult(SHORTCUT, "warn", message, scores)
    return CheckResult(SHORTCUT, "go", "No one-line rule reaches the score.", scores)
