"""The leak check: find proposals that carry text or answers of hidden items, rules of the grader,
or memorised answers.

The rules, all on words (case and punctuation ignored; CJK by character):
- eight words in a row from a selection or test item's input or reference, unless training inputs or
  the skill have them too;
- a selection or test answer that is telling, or a name in its own spelling, and that neither
  training items nor the skill contain;
- a grader's pattern of four or more characters, verbatim, or eight words in a row of a longer one;
- a training answer that is telling and belongs to at most two training items, unless it is in the
  fenced examples.

Telling: three words, or a word of eight letters, or a number of four digits. A name: three
characters, with capitals or digits. So "yes", "B", "42", common words and class labels pass.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from skillfit.tasks.item import Item

RUN = 8
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leak:
    kind: Literal["item text", "answer", "grader", "training answer"]
    evidence: str  # the words found
    item: str = ""


def spelled(text: str) -> Words:
    """The words as they are written; 1,945 is one."""
    return tuple(_WORD.findall(_THOUSANDS.sub("", text)))


def words(text: str) -> Words:
    return spelled(text.casefold())


def telling(answer: Words) -> bool:
    return len(answer) >= 3 or any(len(w) >= 8 or (w.isdigit() and len(w) >= 4) for w in answer)


def named(answer: Words) -> bool:
    return sum(map(len, answer)) >= 3 and any(not word.islower() for word in answer)


@dataclass(slots=True)
class LeakIndex:
    """Built once per run; a check costs time proportional to the proposal's length."""

    texts: dict[int, str] = field(
        default_factory=dict
    )  # hash of eight words -> item id ("" for the grader)
    answers: dict[Words, str] = field(default_factory=dict)
    names: dict[Words, str] = field(default_factory=dict)  # short answers, as they are spelled
    training_answers: dict[Words, str] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()

    @classmethod
    def build(
        cls, train: Sequence[Item], hidden: Sequence[Item], patterns: Sequence[str], skill_text: str
    ) -> LeakIndex:
        """`hidden` are the selection and test items."""
        index = cls(
            patterns=tuple(
                p
                for p in patterns
                if len(p.strip()) >= 4 and p.casefold() not in skill_text.casefold()
            )
        )
        known = [words(skill_text), *(words(item.input) for item in train)]
        open_runs = {hash(run) for text in known for run in _runs(text, RUN)}
        for owner, text in [
            *((i.id, t) for i in hidden for t in (i.input, i.reference)),
            *(("", p) for p in patterns),
        ]:
            index.texts.update(
                (hash(run), owner) for run in _runs(words(text), RUN) if hash(run) not in open_runs
            )
        golds: dict[Words, list[str]] = defaultdict(list)
        for item in train:
            for gold in {words(answer) for answer in item.answers}:
                golds[gold].append(item.id)
        hidden_golds = {gold: item.id for item in hidden for gold in map(words, item.answers)}
        lengths = {len(gold) for gold in (*golds, *hidden_golds)}
        seen = Counter(
            part
            for text in known
            for part in {run for length in lengths for run in _runs(text, length)}
        )
        in_skill = {run for length in lengths for run in _runs(known[0], length)}
        secret = {
            gold: item
            for gold, item in hidden_golds.items()
            if gold not in seen and gold not in golds
        }
        index.answers = {gold: item for gold, item in secret.items() if telling(gold)}
        short = {spelled(answer) for item in hidden for answer in item.answers}
        index.names = {
            name: secret[gold]
            for name in short
            if named(name) and (gold := words(" ".join(name))) in secret
        }
        # An answer that many training inputs mention is vocabulary; one that its own input mentions
        # is still an answer.
        index.training_answers = {
            gold: owners[0]
            for gold, owners in golds.items()
            if telling(gold) and len(owners) <= 2 and gold not in in_skill and seen[gold] <= 2
        }
        return index

    def check(self, text: str, *, examples: bool = False) -> tuple[Leak, ...]:
        """The leaks in a text. `examples`: the text goes into the fenced examples, which may hold
        training answers.
        """
        said, plain = words(text), text.casefold()
        leaks = [
            Leak("grader", pattern)
            for pattern in self.patterns
            if pattern.strip().casefold() in plain
        ]
        for run in _runs(said, RUN):
            if (owner := self.texts.get(hash(run))) is not None:
                leaks.append(Leak("item text" if owner else "grader", " ".join(run), owner))
        leaks += self._answers(said, self.answers, "answer")
        leaks += self._answers(spelled(text), self.names, "answer")
        if not examples:
            leaks += self._answers(said, self.training_answers, "training answer")
        return tuple({(leak.kind, leak.item): leak for leak in reversed(leaks)}.values())[::-1]

    @staticmethod
    def _answers(
        said: Words, golds: dict[Words, str], kind: Literal["answer", "training answer"]
    ) -> Iterator[Leak]:
        for length in sorted({len(gold) for gold in golds}):
            for run in _runs(said, length):
                if run in golds:
                    yield Leak(kind, " ".join(run), golds[run])


def _runs(text: Words, length: int) -> Iterator[Words]:
    return (text[at : at + length] for at in range(len(text) - length + 1)) if length else iter(())
