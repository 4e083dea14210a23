"""The practice agent: follows the rules of a skill that it understands, and otherwise guesses.

Anywhere in the skill it understands
- routing rules such as "Mentions of refund, invoice or charge mean billing." and "Tickets about
  login go to account."; a word stands for its other forms too (charge, charged, charges), and a
  label for itself;
- "label alone" or "only the label": without one of them it answers in a sentence;
- "lower case": without it the answer is capitalised;
- "full sentences": it then answers in a sentence, whatever else the skill says;
- "when unsure, answer X";
- worked examples, when one is similar to the task.
"""

from __future__ import annotations

import hashlib
import random
import re

_RULE = re.compile(
    r"(?:mentions?(?: of)?|\w+ about)\s+(?P<words>[^.\n]+?),?\s+"
    r"(?:means?|go(?:es)? to|belongs? to)\s+[`\"*]*(?P<label>[\w-]+)",
    re.IGNORECASE,
)
_UNSURE = re.compile(r"when unsure,? answer\s+[`\"*]*(?P<label>[\w-]+)", re.IGNORECASE)
_EXAMPLE = re.compile(
    r"Input:\n\n(`{3,})\n(?P<input>.*?)\n\1\n\nOutput:\n\n(`{3,})\n(?P<output>.*?)\n\3", re.DOTALL
)
_SLIP = 0.06  # share of tasks where it overlooks a rule
_GUESS = 0.25  # share of the tasks without a rule where it names one of the skill's labels
_ALIKE = 0.45  # share of common words that makes an example similar
_ENDING = re.compile(r"(?:'s|ing|ed|es|s|e|y)$")


def answer(skill: str, task: str, seed: int) -> str:
    """The agent's answer. The same skill, task and seed always give the same answer."""
    luck = random.Random(hashlib.sha256(f"{seed}\n{task}".encode()).digest())
    slips, guesses, turn = luck.random(), luck.random(), luck.random()
    label = _by_example(skill, task) or _by_rule(skill, task)
    known = sorted({match["label"].lower() for match in _RULE.finditer(skill)}) or ["general"]
    if label is None:
        fallback = _UNSURE.search(skill)
        guess = known[int(turn * len(known))] if guesses < _GUESS else "general"
        label = fallback["label"].lower() if fallback else guess
    elif slips < _SLIP:
        label = known[int(turn * len(known))]
    return _phrase(label, skill.lower())


def words(text: str) -> list[str]:
    return re.findall(r"[a-z][a-z'-]+", text.lower())


def stem(word: str) -> str:
    """The word without its ending, roughly."""
    cut = _ENDING.sub("", word)
    return cut if len(cut) >= 3 else word


def _by_rule(skill: str, task: str) -> str | None:
    """The label whose rules share the most words with the task; of equal ones the later."""
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
    """The answer of the worked example most similar to the task, if it is similar enough."""
    task_words = set(words(task))
    best, answer = 0.0, ""
    for match in _EXAMPLE.finditer(skill):
        example_words = set(words(match["input"]))
        common = len(task_words & example_words) / max(1, len(task_words | example_words))
        best, answer = max((best, answer), (common, match["output"]))
    return answer.strip().lower() if best >= _ALIKE else None


def _phrase(label: str, skill: str) -> str:
    shown = label if "lower case" in skill or "lowercase" in skill else label.capitalize()
    brief = "label alone" in skill or "only the label" in skill
    if "full sentences" in skill or not brief:
        return f"I would send this to {shown}."
    return shown
