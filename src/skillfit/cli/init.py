"""`skillfit init`: make a project from a skill and a tasks file, without overwriting anything."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from skillfit.cli.output import Json, show
from skillfit.errors import InputError
from skillfit.plain_text import shorten, visible

if TYPE_CHECKING:
    from skillfit.config.schema import GraderSetting
    from skillfit.models.json_text import JsonObject
    from skillfit.tasks.recognise import RecognisedEnv, RecognisedTasks

_SKILL = """\
---
name: {name}
description: Say in a sentence or two what this skill does and when to use it.
---

# {title}

Say how the work is done.
"""
_TASKS = [
    {
        "id": "example-1",
        "input": "Replace this with a task the skill must be good at.",
        "answer": "and this with the right answer",
    },
    {
        "id": "example-2",
        "input": "One object per line. Twenty are a start, sixty give clear results.",
        "answer": "exactly this",
    },
    {
        "id": "example-3",
        "input": "A type is optional: results are shown per type.",
        "answer": "42",
        "type": "numbers",
    },
]
CONFIG = "skillfit.yaml"


def init_command(
    folder: Annotated[Path, typer.Argument(help="Where to put the project.")] = Path(),
    skill: Annotated[
        Path | None, typer.Option(help="An existing skill; without one, a template is written.")
    ] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="An existing tasks file; without one, a template.")
    ] = None,
    agent: Annotated[str, typer.Option(help="The model that uses the skill.")] = "",
    optimizer: Annotated[str, typer.Option(help="The model that improves it.")] = "",
    grader: Annotated[
        str, typer.Option(help="How answers are graded; default: proposed from the answers.")
    ] = "",
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            help="A column: input=COLUMN, answers=COLUMN; may be given again.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a project. Reads your tasks file, shows three rows as the agent will get them, proposes
    a grader and tries it. Never overwrites a file.

    Example: skillfit init --skill ./my-skill --tasks ./tasks.csv
    """
    asking = sys.stdin.isatty() and not as_json
    agent = agent or _ask("Model that uses the skill", "openai/gpt-5-mini", asking)
    optimizer = optimizer or _ask("Model that improves it", "openai/gpt-5", asking)
    tasks = tasks or _own_evals(skill)
    fields = _fields(field or ())
    if fields and tasks is None:
        raise InputError("--field is for a tasks file.", hint="Give it with --tasks.")
    found = _recognised(tasks, fields, grader, folder) if tasks is not None else None
    files: dict[Path, str] = {}
    if skill is None:
        skill = folder / "my-skill"
        files[skill / "SKILL.md"] = _SKILL.format(name="my-skill", title="My skill")
    else:
        _check_skill(skill)
    env: RecognisedEnv = {"skill": _relative(skill, folder)}
    if tasks is None or found is None:
        files[folder / "tasks.jsonl"] = "".join(f"{json.dumps(row)}\n" for row in _TASKS)
        env |= {"tasks": "./tasks.jsonl", "grader": given_setting(grader) if grader else "exact"}
    else:
        env |= {**found.env, "tasks": _relative(tasks, folder)}
    config = folder / CONFIG
    files[config] = _config(agent, optimizer, env, found)
    _write(files)
    data = InitJson(
        written=[str(path) for path in files],
        config=str(config),
        grader=env.get("grader"),
        problems=list(found.problems) if found else [],
    )
    show(data, _summary(files, config, skill, found), as_json)


class InitJson(TypedDict):
    """What the command prints with --json."""

    written: list[str]
    config: str
    grader: GraderSetting | None  # None: the config leaves it to the tasks file
    problems: list[str]


def _ask(question: str, default: str, asking: bool) -> str:
    return str(typer.prompt(question, default=default)) if asking else default


def _check_skill(skill: Path) -> None:
    """Refuse a path that is no skill."""
    from skillfit.skill import Skill

    Skill.load(skill)


def _own_evals(skill: Path | None) -> Path | None:
    """The evals that a skill folder brings itself."""
    evals = skill / "evals" / "evals.json" if skill else None
    return evals if evals is not None and evals.is_file() else None


def _relative(path: Path, folder: Path) -> str:
    """The path as seen from the config's folder."""
    relative = Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix()
    return relative if relative.startswith(".") else f"./{relative}"


def _fields(given: Sequence[str]) -> dict[str, str]:
    """`NAME=COLUMN` options, for env.fields."""
    from skillfit.tasks.item import checked_fields

    fields = {}
    for option in given:
        name, equals, column = option.partition("=")
        if not equals or not column:
            raise InputError(f"--field {option}: expected NAME=COLUMN, as in input=query.")
        fields[name.strip()] = column.strip()
    return checked_fields(fields)


def _recognised(
    tasks: Path, fields: Mapping[str, str], grader: str, folder: Path
) -> RecognisedTasks:
    import asyncio

    from skillfit.tasks.recognise import recognise

    if not tasks.exists():
        raise InputError(f"{tasks} does not exist.", hint="Give your tasks file with --tasks.")
    chosen = given_setting(grader) if grader else None
    return asyncio.run(recognise(tasks, fields=fields, grader=chosen, base=folder))


def given_setting(text: str) -> str | JsonObject:
    """A grader or a model as given on the command line: a name, or settings in braces."""
    import yaml

    setting: str | JsonObject = yaml.safe_load(text) if text.lstrip().startswith("{") else text
    return setting


def _config(agent: str, optimizer: str, env: RecognisedEnv, found: RecognisedTasks | None) -> str:
    import yaml

    models = {"agent": given_setting(agent), "optimizer": given_setting(optimizer)}
    if found is not None and found.grader.needs_judge:
        models["judge"] = given_setting(agent)
    data = {"model": models, "env": env, "budget": {"usd": 5}}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return f"# Every other key has a default: `skillfit docs config` lists them.\n{text}"


def _write(files: dict[Path, str]) -> None:
    from skillfit.atomic_write import write_whole

    there = [str(path) for path in files if path.exists()]
    if there:
        raise InputError(
            f"{', '.join(there)}: exists already; init never overwrites a file.",
            hint="Give another folder, or name your files with --skill and --tasks.",
        )
    for path, text in files.items():
        write_whole(path, text.encode())


def _summary(
    files: dict[Path, str], config: Path, skill: Path, found: RecognisedTasks | None
) -> str:
    lines = []
    if found is not None:
        lines += _described(found)
    lines.append(f"Wrote {', '.join(str(path) for path in files)}.")
    if found is not None and found.grader.needs_judge:
        lines.append("In it, model.judge is the model that uses the skill. Another one is better.")
    if found is None:
        drafted = config.with_name("drafted.jsonl")
        lines += [
            "Put your items into the tasks file. Or let a model draft them, and name the new file "
            "in env.tasks:",
            f"  skillfit tasks draft {skill} --config {config} --out {drafted}",
            "Then:",
        ]
    lines += [f"  skillfit check {config}", f"  skillfit train {config}"]
    return "\n".join(lines)


def _described(found: RecognisedTasks) -> list[str]:
    """What was recognised: rows as they will be sent, the grader and how it did."""
    lines = [f"{found.count} items in {found.path} ({found.format})."]
    for row in found.examples:
        lines.append(f"--- {row.id}")
        lines += [shorten(visible(message.content), 300) for message in row.messages]
        lines.append(f"expected: {shorten(visible(', '.join(row.expected)), 120)}")
    lines.append(f"Grader: {found.grader.setting}: {found.grader.why}")
    trial = found.grader.trial
    if trial is not None:
        gold = f"{trial.gold - len(trial.gold_missed)} of {trial.gold} gold answers score 1"
        wrong = f"{len(trial.wrong_passed)} of {trial.wrong} wrong answers pass"
        lines.append(f"  tried: {gold}, {wrong}")
    lines += [f"! {problem}" for problem in found.problems]
    return lines


COMMANDS = (init_command,)
