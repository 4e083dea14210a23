"""Graders of the benchmarks against independent implementations, case by case."""

from __future__ import annotations

import random
import re
import string
from collections import Counter

import pytest

from skillfit.tasks.graders import build_grader
from skillfit.tasks.graders.built_in import normalized, token_f1
from skillfit.tasks.item import Attempt, Item

TEXT = (
    "the a an of in and Danube river Paris 1945 3.5 $12 John's U.S. self-made (old) émigré café "
    "Straße Œuvre a–b the’s «an» naïve O'Brien x/y 50% No. co-op iPhone ΑΒΓ 東京 an.the"
)
WORDS = TEXT.split()


def cases(count: int, seed: int) -> list[tuple[str, list[str]]]:
    """Answers and gold answers: unrelated, equal, and changed a little."""
    luck = random.Random(seed)
    found = []
    for _ in range(count):
        golds = [phrase(luck) for _ in range(luck.randrange(1, 4))]
        answer = luck.choice([phrase(luck), luck.choice(golds), changed(luck, luck.choice(golds))])
        found.append((answer, golds))
    return found


def phrase(luck: random.Random) -> str:
    return luck.choice([" ", "  ", "\n"]).join(luck.choices(WORDS, k=luck.randrange(1, 6)))


def changed(luck: random.Random, text: str) -> str:
    letters = list(luck.choice([str.upper, str.lower, str.title, str])(text))
    for _ in range(luck.randrange(1, 4)):
        at = luck.randrange(len(letters) + 1)
        how = luck.randrange(3)
        if how == 0:
            letters.insert(at, luck.choice(string.ascii_letters + string.punctuation + " "))
        elif letters and how == 1:
            letters.pop(min(at, len(letters) - 1))
        elif letters:
            letters[min(at, len(letters) - 1)] = luck.choice(string.ascii_lowercase)
    return "".join(letters)


def squad_form(text: str) -> str:
    """SQuAD's normal form, written from its definition: lower case, then no ASCII punctuation,
    then no articles as whole words, then single spaces.
    """
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def squad_f1(answer: str, gold: str) -> float:
    mine, theirs = squad_form(answer).split(), squad_form(gold).split()
    shared = sum(min(mine.count(word), theirs.count(word)) for word in set(mine))
    if not mine or not theirs:
        return float(mine == theirs)
    precision, recall = shared / len(mine), shared / len(theirs)
    return 2 * precision * recall / (precision + recall) if shared else 0.0


async def test_exact_match_and_f1_agree_with_squad() -> None:
    grader = build_grader({"normalized": {"extract": ["tag", "last_line"]}})
    right = 0
    for answer, golds in cases(800, seed=1):
        score = await grader.grade(
            Item("1", {"input": "?", "answers": golds}), Attempt(f"<answer>{answer}</answer>")
        )
        equal = any(squad_form(answer) == squad_form(gold) for gold in golds)
        assert score.hard == equal, (answer, golds)
        expected = max(squad_f1(answer, gold) for gold in golds)
        assert score.soft == pytest.approx(expected), (answer, golds)
        right += equal
    assert 200 < right < 700


def test_exact_match_and_f1_agree_with_inspects_scorers() -> None:
    """Inspect treats numbers and hyphens in its own way, so these cases have neither."""
    classification = pytest.importorskip("inspect_ai.scorer._classification")
    plain = re.compile(r"[^a-zA-Z'.,()\s]")
    compared = Counter[bool]()
    for answer, golds in cases(1200, seed=2):
        gold = plain.sub("", golds[0])
        answer = plain.sub("", answer)
        if not squad_form(gold) or not squad_form(answer):
            continue
        exact = classification.max_exact_score(answer, [gold])
        assert (normalized(answer) == normalized(gold)) == bool(exact), (answer, gold)
        assert token_f1(answer, gold) == pytest.approx(classification.compute_f1(answer, gold))
        compared[bool(exact)] += 1
    assert min(compared.values()) > 100 and compared.total() > 500


@pytest.mark.parametrize("package", ["anls", "anls_star"])
async def test_anls_agrees_with_published_packages(package: str) -> None:
    module = pytest.importorskip(package)
    grader = build_grader({"anls": {"extract": ["tag", "last_line"]}})
    kinds = Counter[str]()
    for answer, golds in cases(800, seed=3):
        answer, golds = " ".join(answer.split()), [" ".join(gold.split()) for gold in golds]
        if package == "anls":
            # It takes lengths in upper case, where ß has two letters.
            answer, golds = answer.replace("ß", "s"), [gold.replace("ß", "s") for gold in golds]
            expected = module.anls_score(prediction=answer, gold_labels=golds, threshold=0.5)
        else:
            expected = module.anls_score(tuple(golds), answer)
            if expected == 0.5:  # the definition of DocVQA excludes the threshold itself
                expected = 0.0
        score = await grader.grade(
            Item("1", {"input": "?", "answers": golds}), Attempt(f"<answer>{answer}</answer>")
        )
        assert score.soft == pytest.approx(expected), (answer, golds)
        assert score.hard == (expected >= 0.999)
        kinds["none" if expected == 0 else "full" if expected >= 0.999 else "part"] += 1
    assert min(kinds[kind] for kind in ("none", "part", "full")) > 80
