"""Shortcut audit: does a one-line skill reach the score? Then the items can be passed without doing
the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skillfit.gate.leak import words
from skillfit.run.records import CheckResult
from skillfit.skill import Skill
from skillfit.tasks.item import Item

_OPTIONS = ("options", "choices")


@dataclass(frozen=True, slots=True)
class Shortcut:
    name: str
    skill: Skill  # the trivial skill, to be measured where the prediction is not enough
    predicted: float  # share of items that the rule answers right


def shortcuts(train: Sequence[Item], selection: Sequence[Item]) -> list[Shortcut]:
    """Trivial rules learned from training golds: the most common answer, and the most common place
    of the answer among options.
    """
    found = []
    golds = Counter(answer for item in train for answer in item.answers[:1])
    if golds:
        answer, _ = golds.most_common(1)[0]
        right = sum(words(answer) in map(words, item.answers) for item in selection)
        found.append(_shortcut("majority answer", f"Always answer: {answer}", right, selection))
    places = Counter(place for item in train if (place := _place(item)) is not None)
    if places:
        place, _ = places.most_common(1)[0]
        right = sum(_place(item) == place for item in selection)
        found.append(
            _shortcut(
                "answer position", f"Always choose option number {place + 1}.", right, selection
            )
        )
    return found


def _shortcut(name: str, rule: str, right: int, items: Sequence[Item]) -> Shortcut:
    return Shortcut(name, Skill.from_text(rule + "\n"), right / len(items) if items else 0.0)


def _place(item: Item) -> int | None:
    """Where the gold answer stands among the item's options: by text, or by letter."""
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


def audit(
    found: Sequence[Shortcut],
    baseline: float,
    best: float,
    measured: Mapping[str, float] | None = None,
) -> CheckResult:
    """Compares the score reached with the best trivial rule, measured where it was and predicted
    otherwise.
    """
    scores = {s.name: (measured or {}).get(s.name, s.predicted) for s in found}
    name = max(scores, key=lambda key: scores[key], default="")
    if name and scores[name] > 0 and scores[name] >= best - 0.02:
        message = (
            f"A one-line rule ({name}) scores {scores[name]:.2f}, the skill "
            f"{best:.2f}: that score needs no skill."
        )
        return CheckResult("shortcut", "warn", message, scores)
    if name and scores[name] > max(baseline, 0.5):
        return CheckResult(
            "shortcut",
            "warn",
            f"A one-line rule ({name}) beats the initial skill: {scores[name]:.2f}.",
            scores,
        )
    return CheckResult("shortcut", "go", "No one-line rule reaches the score.", scores)
