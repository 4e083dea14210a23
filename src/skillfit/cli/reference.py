"""The commands that look something up: `lint` problems of skills, `models` the providers, and
`docs` the reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from skillfit.cli.output import Json, docstring_paragraphs, rich_table, show
from skillfit.errors import MEANINGS, Exit, InputError, did_you_mean

if TYPE_CHECKING:
    from rich.console import RenderableType

_TOPICS = ("config", "commands", "graders", "exit-codes")


def lint_command(
    paths: Annotated[list[Path], typer.Argument(help="Skill folders or markdown files.")],
    as_json: Json = False,
) -> None:
    """Check skills against the format and good practice. Prints path:line of every problem.

    Example: skillfit lint ./my-skill
    """
    from skillfit.skill import lint as lint_skill

    problems = [problem for path in paths for problem in lint_skill(path)]
    lines = [
        f"{problem.path}:{problem.line}: {problem.severity}: {problem.message}"
        for problem in problems
    ]
    show(problems, "\n".join(lines) or "No problems.", as_json)
    failed = any(problem.severity == "error" for problem in problems)
    raise typer.Exit(int(Exit.USAGE if failed else Exit.OK))


def models_command(as_json: Json = False) -> None:
    """List the providers, and which of them can be used here.

    Example: skillfit models
    """
    from skillfit.models import known_providers

    rows: list[tuple[str, ...]] = []
    data: list[ProviderJson] = []
    for provider in known_providers():
        readiness = provider.readiness()
        status = "ready" if readiness.ready else "not ready"
        rows.append((f"{provider.name}/…", status, readiness.detail, provider.about))
        data.append(
            ProviderJson(
                provider=provider.name,
                ready=readiness.ready,
                detail=readiness.detail,
                keys=list(provider.keys),
                about=provider.about,
            )
        )
    show(data, rich_table(("model ids", "", "", ""), rows), as_json)


class ProviderJson(TypedDict):
    provider: str
    ready: bool
    detail: str
    keys: list[str]
    about: str


def docs_command(
    topic: Annotated[str, typer.Argument(help="config, commands, graders or exit-codes.")] = "",
    word: Annotated[str, typer.Argument(help="Only entries that contain this word.")] = "",
    as_json: Json = False,
) -> None:
    """Print the reference: every setting, command, grader and exit code.

    Example: skillfit docs config budget
    """
    if not topic:
        show(list(_TOPICS), f"Topics: {', '.join(_TOPICS)}.", as_json)
        return
    if topic not in _TOPICS:
        hint = did_you_mean(topic, _TOPICS) or f"Topics: {', '.join(_TOPICS)}."
        raise InputError(f"Unknown topic {topic!r}.", hint=hint)
    rows = [row for row in _reference_rows(topic) if word.lower() in " ".join(row).lower()]
    columns = {
        "config": ("key", "type", "default", "meaning"),
        "commands": ("command", "what it does"),
        "graders": ("grader", "what it does"),
        "exit-codes": ("code", "meaning"),
    }[topic]
    data = [dict(zip(columns, row, strict=True)) for row in rows]
    if not rows:
        raise InputError(f"Nothing in {topic} contains {word!r}.")
    show(data, _reference_text(rows), as_json)


def _reference_rows(topic: str) -> list[tuple[str, ...]]:
    if topic == "config":
        from skillfit.config import describe_keys

        return [
            (key.key, key.type, str(key.default), " ".join(key.doc.split()))
            for key in describe_keys()
        ]
    if topic == "commands":
        return _command_rows()
    if topic == "graders":
        from skillfit.tasks.graders import BUILT_IN

        return [(name, docstring_paragraphs(kind)[0]) for name, kind in sorted(BUILT_IN.items())]
    return [
        (f"{int(code)} ({code.name.lower().replace('_', ' ')})", meaning)
        for code, meaning in MEANINGS.items()
    ]


def _command_rows() -> list[tuple[str, ...]]:
    from skillfit.cli.app import app

    rows = []
    for command in app.registered_commands:
        callback = command.callback
        name = command.name or (callback.__name__ if callback else "")
        rows.append((name, docstring_paragraphs(callback)[0]))
    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands if group.typer_instance else ():
            about = docstring_paragraphs(command.callback)[0]
            rows.append((f"{group.name} {command.name}", about))
    return sorted(rows)


def _reference_text(rows: list[tuple[str, ...]]) -> RenderableType:
    """Return each entry with its meaning below it: keys are long, and must be shown whole."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for name, *kind, meaning in rows:
        head = Text(name, style="bold")
        if kind:
            head.append(f"  {kind[0]}, default {kind[1] or 'none'}", style="dim not bold")
        parts += [head, Padding(Text(meaning), (0, 0, 0, 4))]
    return Group(*parts)


COMMANDS = (lint_command, models_command, docs_command)
