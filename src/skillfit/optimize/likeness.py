"""How alike two texts are: the cosine of their words, rare ones weighing more (TF-IDF)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import log, sqrt

_LOOKED_AT = 4_000  # characters of a text that decide what it resembles
_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")

WordVector = Mapping[str, float]


def word_vectors(texts: Sequence[str]) -> list[WordVector]:
    """Return a vector of length 1 per text. The weight of a word depends on all texts."""
    words = [Counter(_WORD.findall(text[:_LOOKED_AT].casefold())) for text in texts]
    in_texts = Counter(word for counts in words for word in counts)
    return [_weighed(counts, in_texts, len(texts)) for counts in words]


def likeness(one: WordVector, other: WordVector) -> float:
    """Return how alike two texts are: from 0, no common word, to 1."""
    return sum(weight * other.get(word, 0.0) for word, weight in one.items())


def groups_of_like(texts: Sequence[str], *, alike: float, most: int) -> list[int | None]:
    """Return for each text the position of the text that its group began with.

    A text begins a group of its own where it is less than `alike` to all groups so far; it has none
    where there are `most` of them already. Numbers are all the same word: they are what tasks of
    one kind differ in.
    """
    vectors = word_vectors([_DIGITS.sub("0", text[:_LOOKED_AT]) for text in texts])
    first: list[int] = []
    found = list[int | None]()
    for at, vector in enumerate(vectors):
        best = max(first, key=lambda one: likeness(vectors[one], vector), default=None)
        if best is None or likeness(vectors[best], vector) < alike:
            best = at if len(first) < most else None
            if best is not None:
                first.append(best)
        found.append(best)
    return found


def _weighed(words: Counter[str], in_texts: Counter[str], texts: int) -> WordVector:
    """Return a vector of length 1. `in_texts` says in how many of all texts a word occurs."""
    weights = {
        word: count * (1 + log((1 + texts) / (1 + in_texts[word]))) for word, count in words.items()
    }
    length = sqrt(sum(weight * weight for weight in weights.values())) or 1.0
    return {word: weight / length for word, weight in weights.items()}
