"""Ways to pass items without doing the task: text that leaks answers, and one-line shortcuts.

The leak check finds proposals that carry text or answers of hidden items, rules of the grader, or
memorised answers. Its rules, all on words (case and punctuation ignored; CJK by character):
- eight words in a row from a selection or test item's input or reference, unless training inputs or
  the skill have them too;
- a selection or test answer that is telling, or a name in its own spelling, and that neither
  training items nor the skill contain;
- a grader's pattern of four or more characters, verbatim, or eight words in a row of a longer one;
- a training answer that is telling and belongs to at most two training items, unless it is in the
  fenced examples.

Telling: three words, or a word of eight letters, or a number of four digits. A name: three
characters, with capitals or digits. So "yes", "B", "42", common words and class labels pass.

`TextFilter` applies the check to every text that is about to enter the skill.

The shortcut audit asks whether a trivial skill, such as "Always answer: B", reaches the score.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from skillfit.plain_text import shorten
from skillfit.run.events import Discarded, Event
from skillfit.run.records import LEAK_CHECK, CheckResult, RefusedText
from skillfit.skill import Skill
from skillfit.skill.document import over_ceiling
from skillfit.tasks.item import Item

RUN_LENGTH = 8  # words in a row that make a leak
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
    return tuple(_WORD.findall(_THOUSANDS.sub("", text) if "," in text else text))


def words(text: str) -> Words:
    return spelled(text.casefold())


def telling(answer: Words) -> bool:
    """Whether an answer is so long or rare that its words in an edit cannot be a coincidence."""
    return len(answer) >= 3 or any(len(w) >= 8 or (w.isdigit() and len(w) >= 4) for w in answer)


def named(answer: Words) -> bool:
    """Whether an answer looks like a name: a word that is not in lower case."""
    return sum(map(len, answer)) >= 3 and any(not word.islower() for word in answer)


class _Memo(dict[str, Words]):
    """The words of a text, found once."""

    def __missing__(self, text: str) -> Words:
        self[text] = found = words(text)
        return found


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
        open_runs = {hash(run) for text in known for run in _runs(text, RUN_LENGTH)}
        for owner, text in [
            *((i.id, t) for i in hidden for t in (i.input, i.reference)),
            *(("", p) for p in patterns),
        ]:
            if text:
                for hashed in map(hash, _runs(words(text), RUN_LENGTH)):
                    if hashed not in open_runs:
                        index.texts[hashed] = owner
        golds: dict[Words, list[str]] = defaultdict(list)
        memo = _Memo()  # many items share an answer
        for item in train:
            for gold in {memo[answer] for answer in item.answers}:
                golds[gold].append(item.id)
        hidden_answers = {answer: item.id for item in hidden for answer in item.answers}
        hidden_golds = {memo[answer]: owner for answer, owner in hidden_answers.items()}
        lengths = {len(gold) for gold in (*golds, *hidden_golds)}
        wanted = golds.keys() | hidden_golds.keys()
        seen: Counter[Words] = Counter()  # training texts and the skill that contain an answer
        for text_words in known:
            seen.update({run for length in lengths for run in _runs(text_words, length)} & wanted)
        in_skill = {run for length in lengths for run in _runs(known[0], length)}
        secret = {
            gold: item
            for gold, item in hidden_golds.items()
            if gold not in seen and gold not in golds
        }
        index.answers = {gold: item for gold, item in secret.items() if telling(gold)}
        short = {spelled(answer) for answer in hidden_answers}
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
        text_words, plain = words(text), text.casefold()
        leaks = [
            Leak("grader", pattern)
            for pattern in self.patterns
            if pattern.strip().casefold() in plain
        ]
        for run in _runs(text_words, RUN_LENGTH):
            if (owner := self.texts.get(hash(run))) is not None:
                leaks.append(Leak("item text" if owner else "grader", " ".join(run), owner))
        leaks += self._answers(text_words, self.answers, "answer")
        leaks += self._answers(spelled(text), self.names, "answer")
        if not examples:
            leaks += self._answers(text_words, self.training_answers, "training answer")
        return tuple({(leak.kind, leak.item): leak for leak in reversed(leaks)}.values())[::-1]

    @staticmethod
    def _answers(
        text_words: Words, golds: dict[Words, str], kind: Literal["answer", "training answer"]
    ) -> Iterator[Leak]:
        for length in sorted({len(gold) for gold in golds}):
            for run in _runs(text_words, length):
                if run in golds:
                    yield Leak(kind, " ".join(run), golds[run])


def _runs(text: Words, length: int) -> Iterator[Words]:
    return (text[at : at + length] for at in range(len(text) - length + 1)) if length else iter(())


_OPTIONS = ("options", "choices")


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

    def refusal(self, text: str, step: int, *, example: bool = False) -> RefusedText | None:
        """The words of a text that leak; None when it may enter the skill. `example`: the text goes
        into the fenced examples, where training answers belong.
        """
        if self._index is None and self._build_index is not None:
            self._index = self._build_index()
        leaks = self._index.check(text, examples=example) if self._index else ()
        if not leaks:
            return None
        self.refused += 1
        self._emit(_leak_event(step, text, leaks))
        return RefusedText(text, tuple(leak.evidence for leak in leaks))

    def fits(self, wanted: Skill, present: Skill, what: str, step: int) -> bool:
        """Whether a skill stays below the token ceiling. One that shrinks always does."""
        reason = over_ceiling(wanted, present, self.max_tokens)
        if not reason:
            return True
        stays = "the skill stays as it is"
        self._emit(Discarded(step=step, stage=what, what="text", reason=reason, evidence=stays))
        return False


def _leak_event(step: int, text: str, leaks: Sequence[Leak]) -> Discarded:
    kinds = [f"{leak.kind} of item {leak.item}" if leak.item else leak.kind for leak in leaks]
    return Discarded(
        step=step,
        stage=LEAK_CHECK,
        what=shorten(text, 200),
        reason=f"carries {', '.join(kinds)}",
        evidence=" | ".join(leak.evidence for leak in leaks),
    )


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A trivial rule that needs no skill."""

    name: str
    predicted: float  # share of selection items that the rule answers right


def shortcuts(train: Sequence[Item], selection: Sequence[Item]) -> list[Shortcut]:
    """Trivial rules learned from training golds: the most common answer, and the most common place
    of the answer among options.
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


def audit(found: Sequence[Shortcut], score: float, skill: str = "skill") -> CheckResult:
    """Compares the score of a skill with that of the best trivial rule. `skill`: what the message
    calls it.
    """
    scores = {shortcut.name: shortcut.predicted for shortcut in found}
    name = max(scores, key=lambda key: scores[key], default="")
    if not name or scores[name] <= 0:
        return CheckResult("shortcut", "go", "No one-line rule scores above 0.", scores)
    if scores[name] >= score - 0.02:
        message = (
            f"A one-line rule ({name}) scores {scores[name]:.2f}, the {skill} {score:.2f}: that "
            "score needs no skill."
        )
        return CheckResult("shortcut", "warn", message, scores)
    return CheckResult("shortcut", "go", "No one-line rule reaches the score.", scores)
