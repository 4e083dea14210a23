"""Recognise a tasks file: its columns, and a grader that fits its answers.

    found = await recognise(Path("tasks.csv"))
    found.env       # {"tasks": "tasks.csv", "fields": {"input": "query"}, "grader": "numeric"}
    found.examples  # the first rows as the agent will get them

A proposed grader has been tried: gold answers must score 1, answers of other items 0. Nothing is
written and no model is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

from skillfit.config.schema import GraderSetting
from skillfit.errors import InputError, TaskFailure
from skillfit.models.json_text import parse_json
from skillfit.models.protocol import Message, Reply, Request
from skillfit.plain_text import quantity
from skillfit.tasks.graders import build_grader, golds, without_judges
from skillfit.tasks.graders.built_in import normalized
from skillfit.tasks.item import (
    COLUMNS,
    Attempt,
    Grader,
    Item,
    canonical,
    count_unreviewed,
    labelled_choices,
)
from skillfit.tasks.rows import Row, eval_rows, evals_file, folder_rows, items_of, read_rows
from skillfit.tasks.splits import SPLIT_NAMES
from skillfit.tasks.template import RUBRIC

# Names that people give to a field, most likely first, besides those in COLUMNS. Compared in lower
# case, with every run of other characters than letters and digits as one underscore.
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "uid", "uuid", "guid", "qid", "question_id", "task_id", "item_id", "key", "index"),
    "messages": ("conversation", "conversations", "chat", "dialogue", "turns"),
    "input": (
        *("query", "instruction", "problem", "problem_statement", "task", "request", "user_input"),
        *("user", "ticket", "utterance", "sentence", "text", "message", "body", "q", "x", "goal"),
    ),
    "context": (
        *("passage", "document", "documents", "article", "paragraph", "background", "evidence"),
        "source_text",
    ),
    "answers": (
        *("gold", "golds", "gold_answer", "target", "targets", "label", "labels", "correct_answer"),
        *("correct", "ground_truth", "groundtruth", "expected_answer", "expected_output", "ideal"),
        *("final_answer", "reference_answer", "output", "completion", "response", "solution"),
        *("canonical_solution", "result", "a", "y", "class"),
    ),
    "choices": ("candidates", "alternatives", "answer_choices"),
    "type": ("category", "kind", "topic", "subject", "domain", "difficulty", "level", "task_type"),
    "split": ("set", "fold", "partition", "subset"),
    "files": ("file", "attachments", "attachment", "file_path", "filename"),
    "images": ("img", "image_path", "picture", "photo", "image_file"),
    "reference": ("rationale", "explanation", "reasoning", "reference_solution"),
    "weight": ("importance",),
}
_USUAL_COLUMNS = {column for candidates in COLUMNS.values() for column in candidates}
Table = Sequence[Mapping[str, Any]]  # rows as they were read: column -> value
_ROWS_READ = 200  # rows that decide which columns there are
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ExampleRow:
    """One item as the agent will get it, and what is expected."""

    id: str
    messages: tuple[Message, ...]
    expected: tuple[str, ...]


class RecognisedEnv(TypedDict, total=False):
    """Settings of `env` in a config file."""

    skill: str
    tasks: str
    fields: dict[str, str]
    grader: GraderSetting


@dataclass(frozen=True, slots=True)
class RecognisedTasks:
    """What a tasks file is. `problems` are sentences on what the user should look at."""

    path: Path
    format: str  # jsonl, json, csv, tsv, evals.json or folder
    count: int
    fields: Mapping[str, str]  # for env.fields: only what is not found by its usual name
    grader: GraderProposal
    examples: tuple[ExampleRow, ...]
    problems: tuple[str, ...] = ()

    @property
    def env(self) -> RecognisedEnv:
        """The settings of `env` that describe this file."""
        settings: RecognisedEnv = {"tasks": str(self.path)}
        if self.fields:
            settings["fields"] = dict(self.fields)
        if self.format != "evals.json" or self.grader.setting != "checklist":
            settings["grader"] = self.grader.setting
        return settings


async def recognise(
    path: Path,
    *,
    fields: Mapping[str, str] | None = None,
    grader: GraderSetting | None = None,
    base: Path = Path(),
) -> RecognisedTasks:
    """Read a tasks file or folder and propose settings for it. `fields` and a `grader` that the
    user has chosen are kept; files that the grader names are in `base`. Raises `InputError` if the
    tasks cannot be read, or if no column can be the input.
    """
    kind, rows = _read(path)
    table = [row.values for row in rows if isinstance(row.values, Mapping)]
    if len(table) < len(rows):
        odd = next(row for row in rows if not isinstance(row.values, Mapping))
        raise InputError(f"{odd.where}: expected an object, found {type(odd.values).__name__}.")
    mapped = propose_fields(table) | dict(fields or {})
    guessed = _guessed(table, mapped, _guess_by_words, _guess_input, _guess_answers)
    mapped |= guessed
    remarks = _remarks(table, mapped, guessed)
    items = items_of(rows, mapped)
    if kind != "evals.json" and _short_references(items):
        # What is short is an answer, whatever its column is called.
        mapped["answers"] = _column_of("reference", table[0], mapped)
        mapped.pop("reference", None)
        items = items_of(rows, mapped)
    proposal = await propose_grader(items) if grader is None else await _chosen(grader, items, base)
    if proposal.compares_reference and not all(item.reference for item in items):
        mapped["reference"] = _column_of("answers", table[0], mapped)
        items = items_of(rows, mapped)
    return RecognisedTasks(
        path=path,
        format=kind,
        count=len(items),
        fields=mapped,
        grader=proposal,
        examples=tuple(_example(item) for item in items[:_SHOWN]),
        problems=(*remarks, *_problems(items, proposal)),
    )


def read_items(path: Path) -> list[Item]:
    """Return the items of a tasks file or folder, with its columns recognised."""
    _, rows = _read(path)
    table = [row.values for row in rows]
    mapped = propose_fields(table)
    guessed = _guessed(table, mapped, _guess_by_words, _guess_input)
    return items_of(rows, mapped | guessed)


def _read(path: Path) -> tuple[str, list[Row]]:
    if (evals := evals_file(path)) is not None:
        return "evals.json", list(eval_rows(evals))
    if path.is_dir():
        return "folder", list(folder_rows(path))
    rows = list(read_rows(path))
    return path.suffix.removeprefix(".").replace("ndjson", "jsonl"), rows


def propose_fields(rows: Table) -> dict[str, str]:
    """Propose columns for the canonical fields that are not found by one of their usual names."""
    columns = _columns(rows)
    if {"instruction", "input"} <= set(columns) and "context" not in columns:
        proposed = {"input": "instruction", "context": "input"}  # as in the Alpaca data
    else:
        proposed = {}
    names = {_simplified(column): column for column in reversed(columns)}
    present = _names_in_content(rows, proposed)
    for name, synonyms in _SYNONYMS.items():
        if name in present or (name == "input" and "messages" in present | proposed.keys()):
            continue
        for synonym in (*COLUMNS[name], *synonyms):
            column = names.get(synonym)
            if column is None or column in _USUAL_COLUMNS or column in proposed.values():
                continue
            if _FITS.get(name, _any_filled)([row.get(column) for row in rows]):
                proposed[name] = column
                break
    return proposed


# Words in a column's name that say what it is, for names such as "Case No." or "Right label".
_TELLING_WORDS: Mapping[str, frozenset[str]] = {
    "id": frozenset({"id", "no", "nr"}),
    "answers": frozenset(
        {"answer", "answers", "gold", "expected", "correct", "right", "truth", "label", "target"}
    ),
}
_FEWEST_WORDS = 3  # of a typical task text
_CLEARLY_LONGER = 1.5


def _columns(rows: Table) -> list[str]:
    """Return the names of all columns, in order."""
    return list(dict.fromkeys(column for row in rows for column in row))


def _names_in_content(rows: Table, fields: Mapping[str, str]) -> set[str]:
    """Return the names that items have: canonical fields, and columns that keep their own name."""
    return {name for row in rows[:_ROWS_READ] for name in canonical(row, fields)}


def _left_over(rows: Table, fields: Mapping[str, str]) -> list[str]:
    """Return the columns that no field is read from."""
    names = dict.fromkeys(map(str, _columns(rows)))
    taken = _USUAL_COLUMNS | set(fields.values())
    return [name for name in names if name not in taken]


_Guess = Callable[[Table, Mapping[str, str]], dict[str, str]]
"""Rows, and the fields that are known -> further fields, each with its column."""


def _guessed(rows: Table, fields: Mapping[str, str], *guesses: _Guess) -> dict[str, str]:
    """Return the fields that these guesses add, one after the other."""
    added: dict[str, str] = {}
    for guess in guesses:
        added |= guess(rows, {**fields, **added})
    return added


def _guess_by_words(rows: Table, fields: Mapping[str, str]) -> dict[str, str]:
    """Take a column by a word in its name, where only one has such a word and its values fit."""
    fits = {"id": _short_names, "answers": _all_answers}
    added: dict[str, str] = {}
    for name, words in _TELLING_WORDS.items():
        known = {**fields, **added}
        if name in _names_in_content(rows, known):
            continue
        named = [
            column
            for column in _left_over(rows, known)
            if words & set(_simplified(column).split("_"))
            and fits[name]([row.get(column) for row in rows])
        ]
        if len(named) == 1:
            added[name] = named[0]
    return added


def _guess_input(rows: Table, fields: Mapping[str, str]) -> dict[str, str]:
    """Take the column with clearly the longest texts if no name says which is the input."""
    if _names_in_content(rows, fields) & {"input", "messages"}:
        return {}
    lengths = {
        column: median(len(row[column]) for row in rows)
        for column in _left_over(rows, fields)
        if all(isinstance(row.get(column), str) for row in rows)
    }
    longest = sorted(lengths, key=lambda column: -lengths[column])
    if not longest or median(len(row[longest[0]].split()) for row in rows) < _FEWEST_WORDS:
        return {}
    if len(longest) > 1 and lengths[longest[0]] < _CLEARLY_LONGER * lengths[longest[1]]:
        return {}
    return {"input": longest[0]}


def _guess_answers(rows: Table, fields: Mapping[str, str]) -> dict[str, str]:
    """Take the only column left for the answers, if no column has a usual name for them."""
    left = _left_over(rows, fields)
    if _has_answers(rows, fields) or len(left) != 1:
        return {}
    return {"answers": left[0]} if _all_answers([row.get(left[0]) for row in rows]) else {}


def _remarks(rows: Table, fields: Mapping[str, str], guessed: Mapping[str, str]) -> list[str]:
    """Return what was guessed, and which columns may be the answers if none is read as such."""
    what = {"id": "The ids are", "input": "The task texts are", "answers": "The answers are"}
    remarks = [
        f"{what[name]} taken from the column {column!r}. If not so, change env.fields.{name} "
        f"(for skillfit init: --field {name}=COLUMN)."
        for name, column in guessed.items()
    ]
    left = _left_over(rows, fields)
    if left and not _has_answers(rows, fields):
        named = ", ".join(map(repr, left))
        remarks.append(
            f"No column is read as the answers. Name one in env.fields.answers (for skillfit init: "
            f"--field answers=COLUMN): {named}."
        )
    return remarks


def _has_answers(rows: Table, fields: Mapping[str, str]) -> bool:
    return bool(
        _names_in_content(rows, fields) & {"answers", "reference", "expectations", "assertions"}
    )


def _all_answers(values: Sequence[Any]) -> bool:
    return all(_is_answer(value) for value in values)


def _short_names(values: Sequence[Any]) -> bool:
    return _all_different(values) and not any(" " in str(value) for value in values)


def _short_references(items: Sequence[Item]) -> bool:
    """Return whether the items have no answers, and references that are as short as answers."""
    references = [item.loaded().reference for item in items if not item.has_answers]
    return len(references) == len(items) and all(
        0 < len(reference.split()) <= _SHORT_ANSWER for reference in references
    )


def _is_answer(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and value != ""


def _column_of(name: str, row: Mapping[str, Any], fields: Mapping[str, str]) -> str:
    """Return the column that a canonical field is read from."""
    return fields.get(name) or next(column for column in COLUMNS[name] if column in row)


def _simplified(column: str) -> str:
    words = "".join(letter if letter.isalnum() else " " for letter in str(column)).split()
    return "_".join(words).lower()


def _any_filled(values: Sequence[Any]) -> bool:
    return any(value not in (None, "") for value in values)


def _all_different(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (str, int)) and value != "" for value in values) and len(
        {str(value) for value in values}
    ) == len(values)


def _split_names(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) and value in SPLIT_NAMES for value in values)


def _few_texts(values: Sequence[Any]) -> bool:
    texts = [value for value in values if isinstance(value, str) and value]
    return bool(texts) and len(set(texts)) <= max(2, len(texts) // 2)


def _conversations(values: Sequence[Any]) -> bool:
    return all(
        isinstance(value, list)
        and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in value)
        for value in values
    )


def _positive_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) and value > 0 for value in values)


def _several_choices(values: Sequence[Any]) -> bool:
    return all(len(labelled_choices(value)) > 1 for value in values)


# What the values of a column must be like for it to be proposed as this field.
_FITS: Mapping[str, Callable[[Sequence[Any]], bool]] = {
    "id": _all_different,
    "split": _split_names,
    "type": _few_texts,
    "messages": _conversations,
    "weight": _positive_numbers,
    "choices": _several_choices,
}


def _example(item: Item) -> ExampleRow:
    expected = item.answers or ((item.reference,) if item.reference else ())
    return ExampleRow(item.id, item.messages, expected)


def _problems(items: Sequence[Item], grader: GraderProposal) -> list[str]:
    problems = []
    without = [item.id for item in items if not item.has_answers]
    if without and len(without) < len(items):
        count = quantity(len(without), "item has", "items have")
        problems.append(f"{count} no answer, the first is {without[0]}.")
    if unread := count_unreviewed(items):
        problems.append(
            f"{quantity(unread, 'item was', 'items were')} drafted by a model and not reviewed."
        )
    trial = grader.trial
    if trial is not None and trial.gold_missed:
        problems.append(
            f"{len(trial.gold_missed)} of {trial.gold} gold answers do not score 1 with "
            f"{grader.setting!r}. First: {trial.gold_missed[0]}."
        )
    if trial is not None and trial.wrong_passed:
        problems.append(
            f"{len(trial.wrong_passed)} of {trial.wrong} wrong answers score more than 0 with "
            f"{grader.setting!r}. First: {trial.wrong_passed[0]}."
        )
    return problems


_TESTS = ("tests", "test", "test_list", "test_cases", "unit_tests", "test_code")
_CHECKS = ("assertions", "expectations")
_TRIED = 200  # items that a grader is tried on
_TRIED_SLOWLY = 5  # items that a grader is tried on if it runs programs
_SHORT_ANSWER, _LONG_ANSWER = 6, 12  # words
SAME_FACTS = (
    "The answer states the same facts as the reference and nothing that contradicts it. Wording "
    "and order do not matter."
)


class _NoJudge:
    """Replaces the judge while a grader is only built, not used."""

    id = "none"
    context_window = 0

    async def complete(self, request: Request) -> Reply:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class GraderTrial:
    """How a grader scored answers that are known to be right and wrong."""

    gold: int  # gold answers graded
    gold_missed: tuple[str, ...]  # of these, which did not score 1: "ITEM: REASON"
    wrong: int  # answers of other items, and empty answers, graded
    wrong_passed: tuple[str, ...]  # of these, which scored more than 0: "ITEM: ANSWER"

    @property
    def clean(self) -> bool:
        return not self.gold_missed and not self.wrong_passed


@dataclass(frozen=True, slots=True)
class GraderProposal:
    """A value for `env.grader`. `trial` is None for graders that ask a judge model."""

    setting: GraderSetting
    why: str
    trial: GraderTrial | None = None
    needs_judge: bool = False
    compares_reference: bool = False  # it needs the gold answer in the field `reference`


async def propose_grader(items: Sequence[Item]) -> GraderProposal:
    """Return a grader for these items: of those that suit the answers, the first that scores gold
    answers 1 and wrong answers 0. If none does, the first of them, with its failed trial.
    """
    sample = [item.loaded() for item in items[:_TRIED]]
    tried: list[GraderProposal] = []
    for candidate in _candidates(sample):
        trial = await try_grader(build_grader(candidate.setting), sample)
        tried.append(replace(candidate, trial=trial))
        if trial.clean:
            return tried[-1]
    return tried[0] if tried else _judged(sample)


def _candidates(items: Sequence[Item]) -> list[GraderProposal]:
    """List graders that suit the answers, best first. They have not been tried."""
    tests = _common_column(items, _TESTS)
    if tests:
        why = f"the column {tests!r} holds tests"
        return [GraderProposal({"code": {"column": tests}}, why)]
    if any(_common_column(items, (name,)) for name in (*_CHECKS, "rubric")):
        return []
    answers = [answer for item in items for answer in item.answers]
    if not answers or not all(item.has_answers for item in items):
        return []
    found: list[GraderProposal] = []
    if all(item.content().get("choices") for item in items):
        found.append(GraderProposal("choice", "every item has choices"))
    if all(len(answer.strip()) == 1 and answer.strip().upper() in "ABCDE" for answer in answers):
        found.append(GraderProposal("choice", "every answer is a letter from A to E"))
    if all(_is_number(answer) for answer in answers):
        found.append(GraderProposal("numeric", "every answer is a number"))
    if all(_is_object(answer) for answer in answers):
        found.append(GraderProposal("json_fields", "every answer is a JSON object"))
    if found or median(len(answer.split()) for answer in answers) > _LONG_ANSWER:
        return found
    if len(set(answers)) <= max(2, len(answers) // 3):
        why = f"the answers are labels ({len(set(answers))} different ones)"
        found.append(GraderProposal({"exact": {"ignore_case": True}}, why))
    if max(len(answer.split()) for answer in answers) <= _SHORT_ANSWER:
        found.append(GraderProposal("normalized", "the answers are short texts"))
    found.append(GraderProposal("exact", "the answers are texts"))
    return found


def _judged(items: Sequence[Item]) -> GraderProposal:
    """Return a grader that asks a judge model, for answers that only a reader can compare."""
    if any(_common_column(items, (name,)) for name in _CHECKS):
        return GraderProposal("checklist", "the items have assertions", needs_judge=True)
    if _common_column(items, ("rubric",)):
        return GraderProposal("rubric", "the items have a rubric", needs_judge=True)
    if items and all(item.reference or item.has_answers for item in items):
        why = "the answers are long texts, which only a reader can compare"
        return GraderProposal(
            {"rubric": SAME_FACTS}, why, needs_judge=True, compares_reference=True
        )
    return GraderProposal(
        {"rubric": RUBRIC},
        "some items have no answer to compare with",
        needs_judge=True,
    )


async def _chosen(setting: GraderSetting, items: Sequence[Item], base: Path) -> GraderProposal:
    """Return the user's own choice, tried as a proposed one would be."""
    grader = build_grader(setting, judge=_NoJudge(), base=base)
    needs_judge = _asks_judge(grader)
    trial = None if needs_judge else await try_grader(grader, items)
    return GraderProposal(setting, "as you chose", trial, needs_judge=needs_judge)


def needs_judge(setting: GraderSetting, base: Path) -> bool:
    """Return whether a grader asks a judge model. Raises for settings that describe no grader."""
    return _asks_judge(build_grader(setting, judge=_NoJudge(), base=base))


def _asks_judge(grader: Grader) -> bool:
    return without_judges(grader) != grader


def _common_column(items: Sequence[Item], names: Sequence[str]) -> str:
    """Return the first of these columns that every item has; empty if there is none."""
    for name in names:
        if items and all(item.content().get(name) for item in items):
            return name
    return ""


def _is_number(answer: str) -> bool:
    bare = answer.strip().lstrip("-+$€£¥").rstrip("%").replace(",", "")
    if "####" in answer:  # GSM8K: the reasoning, then the number
        bare = answer.rpartition("####")[2].strip().lstrip("-+$").replace(",", "")
    try:
        float(bare)
    except ValueError:
        return False
    return bare[:1].isdigit() or bare[:1] == "."


def _is_object(answer: str) -> bool:
    try:
        return isinstance(parse_json(answer), dict)
    except ValueError:
        return False


async def try_grader(grader: Grader, items: Sequence[Item]) -> GraderTrial:
    """Grade every item's gold answers, the answer of another item, and an empty answer."""
    slow = "code" in grader.describe()
    missed, passed = [], []
    gold_count = wrong_count = 0
    for item in items[: _TRIED_SLOWLY if slow else _TRIED]:
        for answer in golds(grader, item):
            gold_count += 1
            score, reason = await _hard_score(grader, item, answer)
            if score < 1:
                missed.append(f"{item.id}: {reason or f'the gold answer {answer!r:.60} is not 1'}")
        for answer in (*_wrong_answer(grader, item, items), ""):
            wrong_count += 1
            score, _ = await _hard_score(grader, item, answer)
            if score > 0:
                passed.append(f"{item.id}: {answer!r:.60}")
    return GraderTrial(gold_count, tuple(missed), wrong_count, tuple(passed))


def _wrong_answer(grader: Grader, item: Item, items: Sequence[Item]) -> tuple[str, ...]:
    """Return a gold answer of another item that is not a gold answer of this one."""
    right = {normalized(answer) for answer in (*golds(grader, item), *item.answers)}
    for other in items:
        for answer in golds(grader, other):
            if normalized(answer) not in right:
                return (answer,)
    return ()


async def _hard_score(grader: Grader, item: Item, answer: str) -> tuple[float, str]:
    """Return the score, and why it is not 1."""
    try:
        score = await grader.grade(item, Attempt(answer, bare=True))
    except TaskFailure as failure:
        return 0.0, failure.message
    return score.hard, score.feedback
