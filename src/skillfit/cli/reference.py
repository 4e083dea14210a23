"""`skillfit docs`: the reference, from the installed package."""

from __future__ import annotations

from typing import Annotated

import typer

from skillfit.cli.output import Json, show, table
from skillfit.errors import InputError, did_you_mean

TOPICS = ("config", "commands", "graders", "exit-codes")


def docs(
    topic: Annotated[str, typer.Argument(help="config, commands, graders or exit-codes.")] = "",
    word: Annotated[str, typer.Argument(help="Only entries that contain this word.")] = "",
    as_json: Json = False,
) -> None:
    """Print the reference: every setting, command, grader and exit code.

    Example: skillfit docs config budget
    """
    if not topic:
        show(list(TOPICS), f"Topics: {', '.join(TOPICS)}.", as_json)
        return
    if topic not in TOPICS:
        hint = did_you_mean(topic, TOPICS) or f"Topics: {', '.join(TOPICS)}."
        raise InputError(f"Unknown topic {topic!r}.", hint=hint)
    rows = [row for row in _rows(topic) if word.lower() in " ".join(row).lower()]
    columns = {
        "config": ("key", "type", "default", "meaning"),
        "commands": ("command", "what it does"),
        "graders": ("grader", "what it does"),
        "exit-codes": ("code", "meaning"),
    }[topic]
    data = [dict(zip(columns, row, strict=True)) for row in rows]
    show(data, table(columns, list(rows)), as_json)


def _rows(topic: str) -> list[tuple[str, ...]]:
    if topic == "config":
        from skillfit.config import describe_keys

        return [
            (key.key, key.type, str(key.default), " ".join(key.doc.split()))
            for key in describe_keys()
        ]
    if topic == "commands":
        return _commands()
    if topic == "graders":
        from skillfit.tasks.graders import BUILT_IN

        return [(name, _first_line(kind.__doc__)) for name, kind in sorted(BUILT_IN.items())]
    from skillfit.errors import Exit

    return [(str(int(code)), code.name.lower().replace("_", " ")) for code in Exit]


def _commands() -> list[tuple[str, ...]]:
    from skillfit.cli.app import app

    rows = []
    for command in app.registered_commands:
        callback = command.callback
        name = command.name or (callback.__name__ if callback else "")
        rows.append((name.rstrip("_"), _first_line(callback.__doc__ if callback else "")))
    return sorted(rows)


def _first_line(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


COMMANDS = (docs,)
