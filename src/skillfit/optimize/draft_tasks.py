"""Draft the first tasks for a skill: a model writes them, a person reviews them.

    drafts = await draft_tasks(model, skill, count=20)
    drafts.tasks                                # with their expected answers
    problems(drafts.tasks, skill)               # what the reviewer should look at
    await fitting_grader(drafts.check, tasks)   # for env.grader

The model is asked in rounds. Each round sees the tasks of the earlier ones, so that it does not
repeat them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, field_validator

from skillfit.config.schema import GraderSetting
from skillfit.models.client import ask
from skillfit.models.protocol import Message, Model, Request
from skillfit.optimize.optimizer import render, sections
from skillfit.plain_text import one_line
from skillfit.skill import Skill
from skillfit.tasks.graders import build_grader
from skillfit.tasks.graders.built_in import normalized
from skillfit.tasks.item import Item
from skillfit.tasks.recognise import SAME_FACTS, propose_grader, try_grader
from skillfit.tasks.rows import Row, items_of

DraftCheck = Literal["exact", "normalized", "numeric", "json_fields", "rubric"]

_AT_ONCE = 25  # tasks in one reply
_MORE_ROUNDS = 2  # rounds beyond those that the count needs, if tasks are repeated
_ALIKE = 0.75  # share of common words that makes two tasks nearly the same
_LONGEST_SKILL = 60_000  # characters of the document in the prompt
_LONGEST_FILES = 20_000  # characters of the skill's other files in the prompt
_SHOWN = 300  # characters of an earlier task in the prompt


class DraftTask(BaseModel):
    """A task as the model or the reviewer wrote it. `reasoning` says why the answer is right."""

    model_config = ConfigDict(frozen=True)

    reasoning: str = ""
    input: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    type: str = ""

    @field_validator("answer", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        """Turn a value into text: models may write numbers and objects instead."""
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    @property
    def id(self) -> str:
        """The same task has the same id in every process."""
        text = json.dumps([self.input, self.answer])
        return f"draft-{sha256(text.encode()).hexdigest()[:8]}"

    def row(self, check: DraftCheck, *, reviewed: bool) -> DraftRow:
        """Return the row for a tasks file."""
        row: DraftRow = {"id": self.id, "input": self.input}
        row["reference" if check == "rubric" else "answer"] = self.answer
        if self.type:
            row["type"] = self.type
        if not reviewed:
            row["reviewed"] = False
        return row


class DraftRow(TypedDict, total=False):
    """A row of a tasks file that `tasks draft` writes."""

    id: str
    input: str
    answer: str
    reference: str  # instead of an answer, for a rubric
    type: str
    reviewed: bool  # False: nobody has read it


class DraftReply(BaseModel):
    """What the model is asked for."""

    check: DraftCheck = "normalized"
    tasks: list[DraftTask]


@dataclass(frozen=True, slots=True)
class Drafts:
    """Tasks that a model wrote, with the kind of check that all of them use."""

    check: DraftCheck
    tasks: tuple[DraftTask, ...]


async def draft_tasks(
    model: Model, skill: Skill, *, count: int, about: str = "", besides: Sequence[str] = ()
) -> Drafts:
    """Draft up to `count` different tasks. `about` is what the user says on the work; `besides` are
    the inputs of tasks that are there already. Fewer tasks come back if the model repeats itself.
    """
    check: DraftCheck | None = None
    tasks: list[DraftTask] = []
    for number in range(1, -(-count // _AT_ONCE) + _MORE_ROUNDS + 1):
        wanted = min(_AT_ONCE, count - len(tasks))
        earlier = [*besides, *(task.input for task in tasks)]
        request = Request(
            messages=(
                Message("system", render("draft_tasks", count=wanted, check=check)),
                Message("user", _material(skill, about, earlier)),
            ),
            stage="draft_tasks",
            purpose=f"round {number}",
        )
        reply = await ask(model, request, DraftReply)
        check = check or reply.check
        new = _different(reply.tasks, earlier)
        tasks += new[:wanted]
        if len(tasks) >= count or not new:
            break
    return Drafts(check or "normalized", tuple(tasks))


def _material(skill: Skill, about: str, earlier: Sequence[str]) -> str:
    return sections(
        skill=skill.text[:_LONGEST_SKILL] or "(empty)",
        files=_other_files(skill),
        what_the_user_says=about,
        tasks_that_are_there=_bullets(earlier),
    )


def _other_files(skill: Skill) -> str:
    """Return the text files of the skill's folder, as far as they fit, and names of the others."""
    parts, room = [], _LONGEST_FILES
    for name, data in skill.files.items():
        text = data.decode("utf-8", errors="replace")
        if "\0" in text or len(text) > room:
            parts.append(f"{name}: {len(data)} bytes, not shown")
            continue
        room -= len(text)
        parts.append(f"{name}:\n{text.strip()}")
    return "\n\n".join(parts)


def _bullets(inputs: Sequence[str]) -> str:
    return "\n".join(f"- {one_line(text, _SHOWN)}" for text in inputs)


def _different(tasks: Sequence[DraftTask], earlier: Sequence[str]) -> list[DraftTask]:
    """Return the tasks whose input is not there already, word by word."""
    known = {normalized(text) for text in earlier}
    new = []
    for task in tasks:
        words = normalized(task.input)
        if words not in known:
            known.add(words)
            new.append(task)
    return new


def problems(
    tasks: Sequence[DraftTask], skill: Skill, besides: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    """Return, for each task, what the reviewer should look at."""
    skill_text = f" {normalized(skill.text)} "
    labels = Counter(normalized(task.answer) for task in tasks)
    known = [(f"existing task {at}", _word_set(text)) for at, text in enumerate(besides, 1)]
    found: list[tuple[str, ...]] = []
    for at, task in enumerate(tasks, 1):
        words = _word_set(task.input)
        alike = [name for name, other in known if _overlap(words, other) > _ALIKE]
        sentences = [f"nearly the same as {alike[0]}"] if alike else []
        if f" {normalized(task.input)} " in skill_text:
            sentences.append("the skill contains this task")
        elif labels[normalized(task.answer)] == 1 and _is_stated(task.answer, skill_text):
            sentences.append("the answer is in the skill, so that the agent may copy it")
        known.append((f"task {at}", words))
        found.append(tuple(sentences))
    return found


def _word_set(text: str) -> frozenset[str]:
    """Return the words, all numbers as one: tasks that differ in their numbers alone are alike."""
    return frozenset(re.sub(r"\d+", "#", normalized(text)).split())


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _is_stated(answer: str, skill_text: str) -> bool:
    """Return whether the skill says the answer. Single words do not count: they may be labels."""
    words = normalized(answer)
    telling = " " in words or re.fullmatch(r"\d{3,}", words) is not None
    return telling and f" {words} " in skill_text


async def fitting_grader(check: DraftCheck, tasks: Sequence[DraftTask]) -> GraderSetting:
    """Return a value for `env.grader`: the model's choice if it grades these answers rightly, else
    one that does.
    """
    if check == "rubric":
        return {"rubric": SAME_FACTS}
    items = _items(check, tasks)
    trial = await try_grader(build_grader(check), items)
    if trial.clean:
        return check
    return (await propose_grader(items)).setting


def _items(check: DraftCheck, tasks: Sequence[DraftTask]) -> list[Item]:
    rows = (task.row(check, reviewed=True) for task in tasks)
    return items_of((Row(row, f"task {at}", Path()) for at, row in enumerate(rows, 1)), {})
