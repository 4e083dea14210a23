"""The description of a coding-agent program: how to call it, and how to read what it prints.

Each built-in program has a small YAML file in data/. A user's own file (`options.file`) works the
same way. Strings may use $model, $effort, $base_url, $skill, $prompt_file, $usage_file, $home,
$max_usd and any of the description's own options.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.provider import Readiness
from skillfit.tasks.user_code import Reported

FailureKind = Literal["auth", "quota", "rate_limit", "overloaded", "config", "limit"]
BUILT_IN = Path(__file__).parent / "data"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Arguments(Part):
    """Arguments that belong together. They are left out as a whole when one of their values is
    empty, or when the variable named by `without` has a value.
    """

    args: tuple[str, ...]
    without: str = ""


class Pick(Part):
    """Selects texts from the program's events.

    An event counts when all of `when` matches. With `each`, every element of that list in the event
    counts that matches `where`.
    """

    when: JsonObject = Field(default_factory=dict)
    each: str = ""
    where: JsonObject = Field(default_factory=dict)
    text: tuple[str, ...]
    """Dotted paths. The first that holds something is taken."""


class StepPick(Pick):
    """Selects steps of the trajectory."""

    step: Literal["message", "tool_call", "tool_result"]
    name: str = ""
    """Dotted path of the tool's name."""
    tool: str = ""
    """The tool's name, for events that do not have it."""


class UsagePick(Part):
    """Selects usage. Each list of dotted paths is added up, also over all matching events."""

    when: JsonObject = Field(default_factory=dict)
    each: str = ""
    """Dotted path of a list in the event; each of its elements counts."""
    input: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    usd: str = ""


class Description(Part):
    """Everything skillfit knows about a coding-agent program."""

    name: str
    program: str
    """A name to be found on the PATH, or a path relative to the description's file."""
    install: str = ""
    """How to install it, for the error message when it is missing."""
    needs: dict[str, str] = Field(default_factory=dict)
    """Other programs it cannot work without, and how to install them. They must be on the PATH or
    in one of the `share` folders.
    """
    argv: tuple[str | Arguments, ...]
    model_argv: tuple[str | Arguments, ...] = ()
    """The arguments when it serves as a plain model: without tools or permissions."""
    prompt: Literal["stdin", "file"] = "stdin"
    skills: str
    """The folder in the workspace where it discovers skills."""
    keys: tuple[str, ...] = ()
    """Variables with its own key or login token. `key_env` fills the first."""
    needs_key: bool = False
    """It cannot work without one of `keys` or a login. A missing one is an error at the start."""
    keep: tuple[str, ...] = ()
    """Other variables of its own that it may see (addresses, regions)."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables to set. One whose value is empty is left out."""
    files: dict[str, str] = Field(default_factory=dict)
    """Files to write into its HOME."""
    login: tuple[str, ...] = ()
    """Its credential files, relative to the user's HOME, for options: {login: true}."""
    login_folder: str = ""
    """The variable that makes it use its credentials in the user's own folder (that of the first
    `login` file), so that a renewed login is saved there. Without it the files are linked.
    """
    login_options: dict[str, str] = Field(default_factory=dict)
    """Other defaults of `options` when the login is used."""
    landlock_options: dict[str, str] = Field(default_factory=dict)
    """Other defaults of `options` under Landlock, where a program cannot set up a sandbox of its
    own.
    """
    share: tuple[str, ...] = ()
    """Folders in the user's HOME with tools that it would otherwise download for each rollout."""
    options: dict[str, str] = Field(default_factory=dict)
    """Its own options with their defaults."""
    events: tuple[StepPick, ...] = ()
    answer: tuple[Pick, ...] = ()
    error: tuple[Pick, ...] = ()
    usage: tuple[UsagePick, ...] = ()
    skill_read: tuple[str, ...] = ()
    """Regular expressions over `TOOL ARGUMENTS` of its tool calls. A match shows that it opened
    $skill.
    """
    failures: dict[FailureKind, tuple[str, ...]] = Field(default_factory=dict)
    """Regular expressions over its error text, by kind of failure. They are tried before the
    general ones.
    """

    def uses(self, variable: str) -> bool:
        """Whether a value for `variable` would reach the program at all."""
        strings = [
            *_strings(self.argv),
            *_strings(self.model_argv),
            *self.env.values(),
            *self.files.values(),
        ]
        return any(f"${variable}" in text or f"${{{variable}}}" in text for text in strings)

    @property
    def reports(self) -> frozenset[Reported]:
        """What it reports about its usage."""
        found: set[Reported] = set()
        for pick in self.usage:
            if pick.input or pick.output:
                found.add("tokens")
            if pick.usd:
                found.add("usd")
        return frozenset(found)


def fill(text: str, values: Mapping[str, str]) -> str | None:
    """`text` with its variables filled in, None when one of them is empty. Unknown `$words` stay
    as they are.
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
    """Which of the built-in programs are installed."""
    names = sorted(file.stem for file in BUILT_IN.glob("*.yaml"))
    path = environ.get("PATH", os.defpath)
    found = [name for name in names if shutil.which(load_description(name).program, path=path)]
    if found:
        return Readiness(True, f"installed: {', '.join(found)}")
    return Readiness(False, f"none of {', '.join(names)} is installed")


def load_description(name: str) -> Description:
    """A built-in description by name, or the one in the file at this path."""
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    path = Path(name) if is_path else BUILT_IN / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in BUILT_IN.glob("*.yaml")))
        missing = f"{path} does not exist." if is_path else f"No command-line agent {name!r}."
        raise InputError(
            missing, hint=f"Available: {known}; options.file names a description of your own."
        )
    return _read(path.resolve(), path.stat().st_mtime_ns)


@cache
def _read(path: Path, version: int) -> Description:
    """`version` makes a changed file load again."""
    try:
        description = Description.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise InputError(
            f"{path} does not describe a command-line agent: {error}",
            hint=f"The files in {BUILT_IN} show the keys.",
        ) from error
    program = description.program
    if "/" in program:
        program = str(path.parent / Path(program).expanduser())
    return description.model_copy(update={"program": program})


def _strings(argv: tuple[str | Arguments, ...]) -> Iterator[str]:
    for part in argv:
        yield from (part,) if isinstance(part, str) else part.args
