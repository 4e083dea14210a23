"""The practice agent: reads the skill, follows the rules it understands, and errs at random
elsewhere.

It understands, anywhere in the skill:
- routing rules: "Mentions of refund, invoice or charge mean billing.", "Tickets about login go to
  account."; a word covers its other forms (charge, charged, charges), and a label that rules name
  covers itself;
- "label alone" / "only the label" (otherwise it chats around its answer), "lower case" (otherwise
  it capitalises);
- "full sentences" (it will, whatever else is said), "when unsure, answer X";
- worked examples, where one resembles the task.
"""

from __future__ import annotations

import hashlib
import random
import re

_RULE = re.compile(
    (
        r"(?:mentions?(?: of)?|\w+ about)\s+(?P<words>[^.\n]+?),?\s+(?:means?|go(?:es)? "
        r"to|belongs? to)\s+[`\"*]*(?P<label>[\w-]+)"
    ),
    re.IGNORECASE,
)
_UNSURE = re.compile(r"when unsure,? answer\s+[`\"*]*(?P<label>[\w-]+)", re.IGNORECASE)
_EXAMPLE = re.compile(
    r"Input:\n\n(`{3,})\n(?P<input>.*?)\n\1\n\nOutput:\n\n(`{3,})\n(?P<output>.*?)\n\3", re.DOTALL
)
_SLIP = 0.06  # it overlooks a rule this often
_GUESS = 0.25  # of what no rule covers, this much goes where it would have gone anyway
_ALIKE = 0.45
_ENDING = re.compile(r"(?:'s|ing|ed|es|s|e|y)$")


def answer(skill: str, task: str, seed: int) -> str:
    """What the agent says to a task. The same skill, task and seed always give the same answer."""
    luck = random.Random(hashlib.sha256(f"{seed}\n{task}".encode()).digest())
    slips, guesses, turn = luck.random(), luck.random(), luck.random()
    label = _by_example(skill, task) or _by_rule(skill, task)
    known = sorted({match["label"].lower() for match in _RULE.finditer(skill)}) or ["general"]
    if label is None:
        fallback = _UNSURE.search(skill)
        label = (
            fallback["label"].lower()
            if fallback
            else (known[int(turn * len(known))] if guesses < _GUESS else "general")
        )
    elif slips < _SLIP:
        label = known[int(turn * len(known))]
    return _phrase(label, skill.lower())


def words(text: str) -> list[str]:
    return re.findall(r"[a-z][a-z'-]+", text.lower())


def stem(word: str) -> str:
    """What the forms of a word have in common, roughly."""
    cut = _ENDING.sub("", word)
    return cut if len(cut) >= 3 else word


def _by_rule(skill: str, task: str) -> str | None:
    """The label most words of the task speak for; the later one on ties, as people read
    corrections.
    """
    rules: dict[str, set[str]] = {}
    for match in _RULE.finditer(skill):
        label = match["label"].lower()
        rules[label] = rules.pop(label, {stem(label)}) | {
            stem(word) for word in words(match["words"])
        }
    found = {stem(word) for word in words(task)}
    hits = {label: len(found & known) for label, known in rules.items()}
    best = max(reversed(hits), key=hits.__getitem__, default=None)
    return best if best and hits[best] else None


def _by_example(skill: str, task: str) -> str | None:
    found = set(words(task))
    shown = [
        (
            len(found & set(words(m["input"]))) / max(1, len(found | set(words(m["input"])))),
            m["output"],
        )
        for m in _EXAMPLE.finditer(skill)
    ]
    likeness, output = max(shown, default=(0.0, ""))
    return output.strip().lower() if likeness >= _ALIKE else None


def _phrase(label: str, skill: str) -> str:
    shown = label if "lower case" in skill or "lowercase" in skill else label.capitalize()
    brief = "label alone" in skill or "only the label" in skill
    if "full sentences" in skill or not brief:
        return f"I would send this to {shown}."
    return shown
