"""The grader of officeqa: the same answer after normalising; soft: the token F1.

Numbers are compared by value: separators, currency signs and trailing zeros do not matter, scale
words do (3 million is 3,000,000 and never 3 billion), and parentheses around a number make it
negative. A percent sign belongs to the number: 5% is not 5.
"""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal, InvalidOperation

from skillfit.tasks.graders.base import TextGrader, verdict
from skillfit.tasks.item import Item, Score

_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_TOKEN = re.compile(
    r"(?P<open>\()?\s*(?P<sign>[-+−]?)\s*[$€£]?\s*(?P<minus>[-−]?)"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"\s*(?P<percent>%|percent\b|per\s+cent\b)?\s*(?P<close>\))?"
    r"(?:\s*(?P<scale>thousand|million|billion|trillion)s?\b)?"
    r"|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)?)",
    re.IGNORECASE,
)
_IGNORED = frozenset(
    ("a", "an", "the", "dollar", "dollars", "usd", "nominal", "approximately", "about")
)


class OfficeAnswer(TextGrader, name="office_answer"):
    def compare(self, item: Item, text: str) -> Score:
        said = tokens(text)
        golds = [tokens(gold) for gold in item.answers]
        best = max(_f1(said, gold) for gold in golds)
        return verdict(bool(said) and said in golds, best)


def tokens(text: str) -> list[str]:
    """Words in lower case and numbers by value, in order."""
    found = []
    for match in _TOKEN.finditer(text):
        if word := match["word"]:
            if word.lower() not in _IGNORED:
                found.append(word.lower())
        else:
            found.append(_number(match))
    return found


def _number(match: re.Match[str]) -> str:
    try:
        value = Decimal(match["digits"].replace(",", ""))
    except InvalidOperation:
        return match["digits"]
    negative = bool(match["minus"] or match["sign"] in ("-", "−"))
    if match["open"] and match["close"]:
        negative = not negative
    value = value.scaleb(_SCALES.get((match["scale"] or "").lower(), 0))
    text = f"{value.normalize():f}" if value else "0"
    return f"{'-' if negative and value else ''}{text}{'%' if match['percent'] else ''}"


def _f1(one: list[str], other: list[str]) -> float:
    shared = (Counter(one) & Counter(other)).total()
    return 2 * shared / (len(one) + len(other)) if shared else 0.0
