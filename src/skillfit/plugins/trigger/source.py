"""The task source `trigger`: an item is a query, and the skill in training is a description.

    env:
      tasks: trigger
      task_args: {skill: pdf-forms, queries: queries.json, beside: other-skills}

A query that should trigger the skill is right when the agent reads the skill, any other query when
it does not. The file holds `[{"query": "…", "should_trigger": true}]`, as JSON or one object a
line. With it come the agents of `agents.py`, which offer the skill beside its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from skillfit.config.schema import AgentSection
from skillfit.errors import InputError
from skillfit.extensions import PartDescription, SourceReference, TaskSource
from skillfit.models.json_text import JsonObject
from skillfit.plain_text import head_and_tail, one_line
from skillfit.plugins.trigger.agents import NO_SKILL_READ, build_trigger_agent, names_in
from skillfit.skill import Skill, lint
from skillfit.skill.document import DOCUMENT_NAMES, folder_name, reads_path
from skillfit.skill.parts import (
    DESCRIPTION,
    DESCRIPTION_LIMIT,
    DESCRIPTION_OF,
    load_trained,
    part_text,
    trained_path,
)
from skillfit.tasks.item import Attempt, Item, Score
from skillfit.tasks.rows import Row, items_of, read_rows
from skillfit.tasks.task import LoadContext, SourceItems

SECONDS = 120.0  # for one query; a program that is still at work then is ended
_NEEDED = (DESCRIPTION, "frontmatter", "readable", "yaml")  # rules of lint that a program needs
_NOT_USED = ("prompt", "max_turns", "max_rollout_tokens", "corpus", "network", "skill_as")
_SHOWN_BODY, _SHOWN_DESCRIPTION = 6000, 300  # characters in the optimizer's guidance
_GUIDANCE = """\
The document in training is the description of the skill {name}: the one text of the skill that an
agent sees before it decides whether to read the skill. Each line becomes a sentence of one
paragraph of at most {limit:,} characters. Say in the third person what the skill does and when to
use it, in words that people use in requests, also where they do not name the skill's subject. Say
what it is not for where another skill or no skill is right. Leave out how the work is done, and do
not quote single requests.

The text that the agent reads if it decides for the skill:

{body}

The other skills beside it:

{others}"""


def trigger_source(
    reference: SourceReference, *, skill: str, queries: str, beside: str = ""
) -> TaskSource:
    """Make the source for a skill, its queries and the folder of its neighbours."""
    if reference.argument:
        raise InputError(
            f"env.tasks: {reference.name}:{reference.argument} takes no argument.",
            hint="Name skill, queries and beside in env.task_args.",
        )
    path = reference.base / skill
    whole = checked_skill(path)
    others = neighbours(reference.base / beside, path, whole.name) if beside else ()
    return TaskSource(
        partial(_load, whole, path, reference.base / queries, others),
        config={
            "env": {
                "skill": f"{path.absolute()}{DESCRIPTION_OF}",
                "exec_timeout": SECONDS,
                "split_ratio": "5:5:0",
            },
            "optimizer": {
                "guidance": guidance(whole, others),
                # A token is four bytes, and a character is at least one.
                "max_skill_tokens": DESCRIPTION_LIMIT // 4,
            },
        },
    )


def _load(
    skill: Skill, path: Path, queries: Path, others: tuple[Skill, ...], context: LoadContext
) -> SourceItems:
    if trained_path(context.env.skill).resolve() != path.resolve():
        raise InputError(
            f"env.skill: {context.env.skill} is not the description of the skill in env.task_args.",
            hint="Leave env.skill out.",
        )
    usual = AgentSection()
    if unused := [key for key in _NOT_USED if getattr(context.env, key) != getattr(usual, key)]:
        raise InputError(
            f"env.{unused[0]}: trigger puts each query to the agent as it is.", hint="Leave it out."
        )
    if reads_path(path, queries):
        raise InputError(
            f"{queries} is inside the skill {path}: the agent would see the answers.",
            hint="Move it out, or into the folder evals/ of the skill.",
        )
    return SourceItems(
        read_queries(queries, skill.name),
        TriggerGrader(skill.name, {one.name: one.hash for one in others}),
        agent=partial(build_trigger_agent, skill, others),
    )


def checked_skill(path: Path) -> Skill:
    """Return a skill that programs can discover; any other is an error that says why."""
    skill = Skill.load(path)
    for problem in lint(path):
        if problem.severity == "error" and problem.rule in _NEEDED:
            raise InputError(f"{problem.path}:{problem.line}: {problem.message}.")
    load_trained(f"{path}{DESCRIPTION_OF}")
    if skill.name != folder_name(skill.name):
        raise InputError(
            f"The skill {path} is named {skill.name!r}, which programs do not accept.",
            hint=f"Name it {folder_name(skill.name)!r} in its frontmatter.",
        )
    if not skill.body.strip():
        raise InputError(
            f"The skill {path} has no text, so it cannot be told whether a program reads it."
        )
    return skill


def neighbours(folder: Path, skill: Path, name: str) -> tuple[Skill, ...]:
    """Return the skills in a folder, without the one at `skill` with this name."""
    if not folder.is_dir():
        raise InputError(f"beside: {folder} is not a folder.")
    names = {name: skill}
    found = []
    for path in sorted(folder.iterdir()):
        if not any((path / document).is_file() for document in DOCUMENT_NAMES):
            continue
        if path.resolve() in (skill.resolve(), skill.resolve().parent):
            continue
        other = checked_skill(path)
        if other.name in names:
            raise InputError(
                f"{path} and {names[other.name]} are both named {other.name}.",
                hint="Programs tell skills apart by their names.",
            )
        names[other.name] = path
        found.append(other)
    if not found:
        raise InputError(
            f"beside: {folder} holds no other skill.", hint="A skill is a folder with a SKILL.md."
        )
    return tuple(found)


def guidance(skill: Skill, others: Iterable[Skill]) -> str:
    """Say for the optimizer what a description is. It must not depend on the present one, which
    `apply` changes.
    """
    return _GUIDANCE.format(
        name=skill.name,
        limit=DESCRIPTION_LIMIT,
        body=head_and_tail(skill.unix_body.strip(), _SHOWN_BODY),
        others=listed(others) or "(none)",
    )


def listed(skills: Iterable[Skill]) -> str:
    """Return names and descriptions as a list."""
    return "\n".join(
        f"- {one.name}: {one_line(part_text(one, DESCRIPTION) or '', _SHOWN_DESCRIPTION)}"
        for one in skills
    )


def read_queries(path: Path, skill: str) -> list[Item]:
    """Return the queries of a file as items: the answer to one that should trigger the skill is the
    name of the skill.
    """
    places: dict[str, str] = {}
    items = items_of(_query_rows(path, skill, places), {})
    if not any(skill in item.answers for item in items):
        raise InputError(
            f"{path}: no query should trigger the skill.",
            hint='Add some with "should_trigger": true.',
        )
    return items


def _query_rows(path: Path, skill: str, places: dict[str, str]) -> Iterator[Row]:
    for row in read_rows(path):
        values = dict(row.values)
        query, wanted = values.pop("query", None), values.pop("should_trigger", None)
        if isinstance(wanted, str) and wanted.lower() in ("true", "false"):  # in CSV files
            wanted = wanted.lower() == "true"
        if not isinstance(query, str) or not query.strip() or not isinstance(wanted, bool):
            wrong = "query should be a text"
            if isinstance(query, str) and query.strip():
                wrong = "should_trigger should be true or false"
            raise InputError(
                f"{row.where}: {wrong}.", hint='A row is {"query": "…", "should_trigger": true}.'
            )
        if query in places:
            raise InputError(f"{places[query]} and {row.where}: the same query is there twice.")
        places[query] = row.where
        fields: JsonObject = {
            **{name: value for name, value in values.items() if name in ("id", "split", "files")},
            "input": query,
            "answers": [skill if wanted else NO_SKILL_READ],
            "type": "should trigger" if wanted else "should not",
        }
        yield Row(fields, row.where, row.base, None, row.split, row.root)


@dataclass(frozen=True)
class TriggerGrader:
    """Grades whether the skill was read where it should be, and only there."""

    skill: str
    beside: Mapping[str, str]  # name -> hash of the neighbours

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        read = names_in(attempt.answer)
        fired, wanted = self.skill in read, self.skill in item.answers
        others = ", ".join(name for name in read if name != self.skill)
        if fired:
            feedback = f"The agent read {self.skill}."
        elif others:
            feedback = f"The agent read {others} and not {self.skill}."
        else:
            feedback = "The agent read no skill."
        # An agent that has decided names a skill, or says that it read none.
        return Score(float(fired == wanted and bool(attempt.answer)), feedback=feedback)

    def patterns(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> PartDescription:
        return {"trigger": {"skill": self.skill, "beside": dict(self.beside)}}
