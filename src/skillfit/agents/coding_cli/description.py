"""A coding-agent command line as data: how to call it, where it finds skills, how to read what it
says.

One small YAML file each stands in data/; a user's own file works the same. Strings may use $model,
$effort, $base_url, $skill, $prompt_file, $home and any of the description's own options.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skillfit.errors import InputError
from skillfit.models.provider import Readiness

FailureKind = Literal["auth", "quota", "rate_limit", "overloaded", "config"]
BUILT_IN = Path(__file__).parent / "data"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Arguments(Part):
    """Arguments that go together: left out as a whole when one of their values is empty, or when
    `without` has a value.
    """

    args: tuple[str, ...]
    without: str = ""


class Pick(Part):
    """Text of the events that match: `when` on the event itself, then of each element under `each`
    those that match `where`.
    """

    when: dict[str, Any] = Field(default_factory=dict)
    each: str = ""
    where: dict[str, Any] = Field(default_factory=dict)
    text: tuple[str, ...]
    """Dotted paths; the first that holds something."""


class StepPick(Pick):
    step: Literal["message", "tool_call", "tool_result"]
    name: str = ""
    """Dotted path of the tool's name."""
    tool: str = ""
    """The tool's name where the event has none."""


class UsagePick(Part):
    """Dotted paths that are added up; over all matching events where there are several."""

    when: dict[str, Any] = Field(default_factory=dict)
    input: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    usd: str = ""


class Description(Part):
    name: str
    program: str
    install: str = ""
    """How to get it, for the message when it is missing."""
    argv: tuple[str | Arguments, ...]
    model_argv: tuple[str | Arguments, ...] = ()
    """The arguments when it serves as a plain model: no tools, nothing allowed."""
    prompt: Literal["stdin", "file"] = "stdin"
    skills: str
    """Folder in the workspace where it discovers skills."""
    keys: tuple[str, ...] = ()
    """Variables with its own key or login token; `key_env` fills the first."""
    keep: tuple[str, ...] = ()
    """Other variables of its own it may keep (addresses, regions)."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables to set; one whose value is empty is left out."""
    files: dict[str, str] = Field(default_factory=dict)
    """Files to write in its HOME."""
    login: tuple[str, ...] = ()
    """Its credential files in the user's HOME, linked when options.login is true."""
    share: tuple[str, ...] = ()
    """Tools it would download anew into each HOME; linked from the user's where present."""
    options: dict[str, str] = Field(default_factory=dict)
    events: tuple[StepPick, ...] = ()
    answer: tuple[Pick, ...] = ()
    error: tuple[Pick, ...] = ()
    usage: tuple[UsagePick, ...] = ()
    skill_read: tuple[str, ...] = ()
    """Patterns over `tool arguments` of its tool calls, one of which shows that it opened $skill.
    """
    failures: dict[FailureKind, tuple[str, ...]] = Field(default_factory=dict)
    """Patterns of its error text, by kind of failure; looked at before the usual ones."""

    def uses(self, variable: str) -> bool:
        """Whether a value given for `variable` would reach the program at all."""
        strings = [
            *_strings(self.argv),
            *_strings(self.model_argv),
            *self.env.values(),
            *self.files.values(),
        ]
        return any(f"${variable}" in text or f"${{{variable}}}" in text for text in strings)


def fill(text: str, values: Mapping[str, str]) -> str | None:
    """`text` with its variables filled in; None when one of them is empty. Unknown `$words` stay as
    they are.
    """
    names = Template(text).get_identifiers()
    if any(name in values and not values[name] for name in names):
        return None
    return Template(text).safe_substitute(values)


def arguments(argv: tuple[str | Arguments, ...], values: Mapping[str, str]) -> list[str]:
    """The argument list for these values."""
    done: list[str] = []
    for part in argv:
        group = Arguments(args=(part,)) if isinstance(part, str) else part
        filled = [text for arg in group.args if (text := fill(arg, values)) is not None]
        if len(filled) == len(group.args) and not values.get(group.without):
            done += filled
    return done


def readiness(environ: Mapping[str, str]) -> Readiness:
    """Which of the described programs are installed."""
    names = sorted(file.stem for file in BUILT_IN.glob("*.yaml"))
    path = environ.get("PATH", os.defpath)
    found = [name for name in names if shutil.which(load_description(name).program, path=path)]
    if found:
        return Readiness(True, f"installed: {', '.join(found)}")
    return Readiness(False, f"none of {', '.join(names)} is installed")


@cache
def load_description(name: str) -> Description:
    """A built-in description by name, or the one in the file at this path."""
    path = (
        BUILT_IN / f"{name}.yaml"
        if "/" not in name and not name.endswith((".yaml", ".yml"))
        else Path(name)
    )
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in BUILT_IN.glob("*.yaml")))
        raise InputError(
            f"No command-line agent {name!r}.",
            hint=f"Known are {known}; options.file names a description of your own.",
        )
    try:
        return Description.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise InputError(
            f"{path} does not describe a command-line agent: {error}",
            hint=f"Those in {BUILT_IN} show the keys.",
        ) from error


def _strings(argv: tuple[str | Arguments, ...]) -> Iterator[str]:
    for part in argv:
        yield from (part,) if isinstance(part, str) else part.args
