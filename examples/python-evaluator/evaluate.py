"""Runs an incident report through "our own system" and scores it. Replace it
with any Python code.
"""

from __future__ import annotations

from typing import Any

from skillfit.models.providers.practice import practice_answer

RANKS = ("p1", "p2", "p3")


def evaluate(skill: str, item: dict[str, Any], seed: int) -> dict[str, Any]:
    """The skill's text, the item as a dict, and a number that tells repeats apart; a score from 0
    to 1 comes back.

    `score` decides, `soft` is graded, `feedback` may be shown to the optimizer, `answer` is kept as
    the trajectory.
    """
    said = ask_our_system(skill, item["input"], seed)
    right = item["answers"][0]
    if said not in RANKS:
        return {"score": 0.0, "answer": said, "feedback": "The answer is none of p1, p2, p3."}
    off = abs(RANKS.index(said) - RANKS.index(right))
    return {
        "score": float(off == 0),
        "soft": 1 - off / 2,
        "answer": said,
        "feedback": f"{off} ranks off." if off else "",
    }


def ask_our_system(skill: str, text: str, seed: int) -> str:
    """Put your own call here. The practice agent, a handful of rules, keeps this example free of
    keys.
    """
    return practice_answer(skill, text, seed)
