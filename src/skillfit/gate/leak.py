"""The leak check: text that would pass items without doing the task.

It finds proposals that carry text or answers of selection or test items, or rules of the grader:
- eight words in a row from the input or reference of a hidden item, unless training items or the
  skill have them too;
- an answer of a hidden item that is telling, or a name in its own spelling, and that is not known;
- a grader's pattern of four or more characters, or eight words in a row of a longer one, unless it
  is made of known words.

Telling: three words, or a word of eight letters, or a number of four digits. A name: three
characters, with capitals or digits. So "yes", "B", "42" and common words pass.

Known is what the optimizer may read or the agent has to say (`Vocabulary`): the skill, training
inputs and answers, what is put together from their words, and answers that three items share.
Training answers are known, because memorised ones do not raise the score on the selection items.

`TextFilter` applies the check to every text that is about to enter the skill.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from skillfit.gate.words import Words, plain, readings, spelled, words
from skillfit.plain_text import shorten
from skillfit.run.events import Discarded, Event
from skillfit.run.records import LEAK_CHECK, RefusedText
from skillfit.skill import Skill
from skillfit.skill.document import over_ceiling
from skillfit.skill.parts import DESCRIPTION, part_text, part_texts
from skillfit.tasks.item import Item

RUN_LENGTH = 8  # words in a row that make a leak
_SHORT_PART = 3  # words of a part of an answer that need not be side by side in the skill
_ITEMS_OF_LABEL = 3  # an answer that so many items share is a label
_REGEX = re.compile(r"[\\^$*+?()\[\]{}|]")


@dataclass(frozen=True, slots=True)
class Leak:
    kind: Literal["item text", "answer", "grader"]
    evidence: str  # the words found
    item: str = ""


def telling(answer: Words) -> bool:
    """Return whether an answer is so long or rare that its words in an edit are no coincidence."""
    return len(answer) >= 3 or any(len(w) >= 8 or (w.isdigit() and len(w) >= 4) for w in answer)


def named(answer: Words) -> bool:
    """Return whether an answer looks like a name: a word that is not in lower case."""
    return sum(map(len, answer)) >= 3 and any(not word.islower() for word in answer)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What is known without any hidden item."""

    texts: tuple[Words, ...]  # the skill; inputs, references and answers of training items
    words: frozenset[str]  # of the skill, and those that half of the training inputs share
    parts: frozenset[Words]  # of training answers
    labels: frozenset[str]  # answers that several items share

    @classmethod
    def of(cls, train: Sequence[Item], hidden: Sequence[Item], skill: str) -> Vocabulary:
        inputs = [words(item.input) for item in train]
        references = [words(item.reference) for item in train if item.reference]
        given = {answer for item in train for answer in item.answers}
        shared = Counter(word for text in inputs for word in set(text))
        template = {word for word, count in shared.items() if 2 * count >= len(inputs) > 1}
        owners = Counter(answer for item in (*train, *hidden) for answer in set(item.answers))
        return cls(
            (words(skill), *inputs, *references, *map(words, given)),
            frozenset(template.union(words(skill))),
            frozenset(part for answer in given for part in _parts(answer)),
            frozenset(answer for answer, count in owners.items() if count >= _ITEMS_OF_LABEL),
        )

    def makes(self, answer: str) -> bool:
        """Return whether an answer is a label, or known words make it up: `shipping/P1` where the
        skill lists teams and priorities. Numbers must be known as a whole: 12 and 50 do not make
        12.50.
        """
        return answer in self.labels or (
            any(map(str.isalpha, answer)) and all(map(self._has, _parts(answer)))
        )

    def _has(self, part: Words) -> bool:
        if part in self.parts:
            return True
        by_character = any(len(word) == 1 and not word.isascii() for word in part)
        return len(part) <= _SHORT_PART and not by_character and self.words.issuperset(part)


def _parts(answer: str) -> list[Words]:
    """Split an answer at its punctuation into lists of words: (shipping), (p1) of `shipping/P1`."""
    return [found for part in re.split(r"[^\w\s]+|_", answer) if (found := words(part))]


@dataclass(slots=True)
class LeakIndex:
    """Built once per run; a check costs time proportional to the proposal's length."""

    texts: dict[int, str] = field(
        default_factory=dict
    )  # hash of eight words -> item id ("" for the grader)
    answers: dict[Words, str] = field(default_factory=dict)
    names: dict[Words, str] = field(default_factory=dict)  # as they are spelled
    patterns: dict[str, str] = field(default_factory=dict)  # without disguise -> as it is written

    @classmethod
    def build(
        cls, train: Sequence[Item], hidden: Sequence[Item], patterns: Sequence[str], skill_text: str
    ) -> LeakIndex:
        """Index the text and the answers that must not enter the skill. `hidden` are the selection
        and test items.
        """
        known = Vocabulary.of(train, hidden, skill_text)
        index = cls(patterns=_secret_patterns(patterns, known, skill_text))
        open_runs = {hash(run) for text in known.texts for run in _runs(text, RUN_LENGTH)}
        for owner, text in [
            *((i.id, t) for i in hidden for t in (i.input, i.reference)),
            *(("", p) for p in patterns),
        ]:
            if text:
                for hashed in map(hash, _runs(words(text), RUN_LENGTH)):
                    if hashed not in open_runs:
                        index.texts[hashed] = owner
        for answer, item in _secret_answers(hidden, known).items():
            gold, name = words(answer), spelled(answer)
            if telling(gold):
                index.answers |= dict.fromkeys(_written(gold), item)
            if named(name):
                index.names |= dict.fromkeys(_written(name), item)
        return index

    def check(self, text: str) -> tuple[Leak, ...]:
        leaks = [leak for reading in readings(text) for leak in self._leaks(reading)]
        return tuple({(leak.kind, leak.item): leak for leak in reversed(leaks)}.values())[::-1]

    def _leaks(self, text: str) -> Iterator[Leak]:
        text_words, folded = words(text), plain(text).casefold()
        for pattern, written in self.patterns.items():
            if pattern in folded:
                yield Leak("grader", written)
        for run in _runs(text_words, RUN_LENGTH):
            if (owner := self.texts.get(hash(run))) is not None:
                yield Leak("item text" if owner else "grader", " ".join(run), owner)
        yield from _answers_in(text_words, self.answers)
        yield from _answers_in(spelled(text), self.names)


def _secret_patterns(patterns: Sequence[str], known: Vocabulary, skill_text: str) -> dict[str, str]:
    skill, found = plain(skill_text).casefold(), {}
    for written in patterns:
        pattern = plain(written).strip().casefold()
        in_words = not _REGEX.search(written) and known.makes(written)
        if len(pattern) >= 4 and not in_words and pattern not in skill:
            found[pattern] = written
    return found


def _secret_answers(hidden: Sequence[Item], known: Vocabulary) -> dict[str, str]:
    """Return the answers that are not known, with the id of their item."""
    owners = {answer: item.id for item in hidden for answer in item.answers}
    golds = {answer: words(answer) for answer in owners if not known.makes(answer)}
    wanted = set(golds.values())
    lengths = {len(gold) for gold in wanted}
    seen = {
        run
        for text in known.texts
        for length in lengths
        for run in _runs(text, length)
        if run in wanted
    }
    return {answer: owners[answer] for answer, gold in golds.items() if gold not in seen}


def _written(answer: Words) -> set[Words]:
    """Return the answer word by word and, if it has letters only, its words written as one."""
    return {answer, ("".join(answer),)} if all(map(str.isalpha, answer)) else {answer}


def _answers_in(text: Words, golds: Mapping[Words, str]) -> Iterator[Leak]:
    for length in sorted({len(gold) for gold in golds}):
        for run in _runs(text, length):
            if run in golds:
                yield Leak("answer", " ".join(run), golds[run])


def _runs(text: Words, length: int) -> Iterator[Words]:
    return (text[at : at + length] for at in range(len(text) - length + 1)) if length else iter(())


class TextFilter:
    """Keeps text out of the skill that leaks answers, items or the grader, or passes the token
    ceiling.

    Each refusal is emitted with its evidence. Without an index (`evaluation.leak_check: false`)
    every text passes. The index of a large task takes seconds, so it is built for the first text
    and not before the first rollout. `refused` counts the texts of the run that leaked:
    proposals, notes, lessons and rewrites.
    """

    def __init__(
        self,
        build_index: Callable[[], LeakIndex] | None,
        emit: Callable[[Event], None],
        max_tokens: int | None,
    ) -> None:
        self._build_index, self._emit, self.max_tokens = build_index, emit, max_tokens
        self._index: LeakIndex | None = None
        self.refused = 0

    def passes(self, text: str, step: int) -> bool:
        return self.refusal(text, step) is None

    def refusal(self, text: str, step: int) -> RefusedText | None:
        """Refuse a text that leaks; return None if it may enter the skill."""
        return self._refuse(text, self._leaks(text), step)

    def refusal_of_skill(self, wanted: Skill, present: Skill, step: int) -> RefusedText | None:
        """Refuse new lines of a skill that leaks more than the present one; else return None."""
        if wanted.hash == present.hash:
            return None
        before, after = _trained_text(present), _trained_text(wanted)
        known = {leak.evidence for leak in self._leaks(before)}
        leaks = [leak for leak in self._leaks(after) if leak.evidence not in known]
        lines = set(before.splitlines())
        new = [line for line in after.splitlines() if line not in lines]
        return self._refuse("\n".join(new), leaks, step)

    def _leaks(self, text: str) -> Sequence[Leak]:
        if self._index is None and self._build_index is not None:
            self._index = self._build_index()
        return self._index.check(text) if self._index else ()

    def _refuse(self, text: str, leaks: Sequence[Leak], step: int) -> RefusedText | None:
        if not leaks:
            return None
        self.refused += 1
        self._emit(_leak_event(step, text, leaks))
        return RefusedText(text, tuple(leak.evidence for leak in leaks))

    def fits(self, wanted: Skill, present: Skill, what: str, step: int) -> bool:
        """Return whether a skill stays below the token ceiling. One that shrinks always does. Emit
        an event when it does not fit.
        """
        reason = over_ceiling(wanted, present, self.max_tokens)
        if not reason:
            return True
        stays = "the skill stays as it is"
        self._emit(Discarded(step=step, stage=what, what="text", reason=reason, evidence=stays))
        return False


def _trained_text(skill: Skill) -> str:
    """Return all text of a skill that edits may change."""
    description = part_text(skill, DESCRIPTION) or ""
    return "\n".join([description, skill.body, *part_texts(skill).values()])


def _leak_event(step: int, text: str, leaks: Sequence[Leak]) -> Discarded:
    kinds = [f"{leak.kind} of item {leak.item}" if leak.item else leak.kind for leak in leaks]
    return Discarded(
        step=step,
        stage=LEAK_CHECK,
        what=shorten(text, 200),
        reason=f"carries {', '.join(kinds)}",
        evidence=" | ".join(leak.evidence for leak in leaks),
    )
