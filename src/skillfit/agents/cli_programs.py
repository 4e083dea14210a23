"""Coding-agent programs: how each one is called, and how its output is read.

**Description.** Each built-in program has a small YAML file in cli_programs/. A user's own file
(`options.file`) works the same way. Strings may use $model, $effort, $base_url, $skill,
$prompt_file, $usage_file, $home, $max_usd and any of the description's own options.

**Output.** What a program printed becomes the answer, the trajectory and the usage, or the error
that it reported, with the kind of failure that the error text means.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skillfit.agents.agent import STEP_TEXT, AgentFailure
from skillfit.errors import InputError
from skillfit.models.failures import make_failure
from skillfit.models.json_text import JsonObject, at_path, parse_json
from skillfit.models.protocol import ModelError, Usage
from skillfit.models.registry import Readiness
from skillfit.models.wire import MAX_TOKEN_COUNT
from skillfit.plain_text import head_and_tail, last_part
from skillfit.settings import setting_problems
from skillfit.skill import Skill
from skillfit.tasks.item import Reported, TrajectoryStep

FailureKind = Literal["auth", "quota", "rate_limit", "overloaded", "config", "limit"]
DESCRIPTIONS = Path(__file__).parent / "cli_programs"


class DescriptionPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Arguments(DescriptionPart):
    """Arguments that belong together. They are left out as a whole when one of their values is
    empty, or when the variable named by `without` has a value.
    """

    args: tuple[str, ...]
    without: str = ""


class Pick(DescriptionPart):
    """Selects texts from the program's events.

    An event counts when all of `when` matches. With `each`, every element of that list in the event
    counts that matches `where`.
    """

    when: JsonObject = Field(default_factory=dict)
    each: str = ""
    where: JsonObject = Field(default_factory=dict)
    text: tuple[str, ...]
    """Dotted paths. The first that holds something is taken."""


class ErrorPick(Pick):
    """Selects texts of errors."""

    status: str = ""
    """Dotted path of the HTTP status that the program got, put before the text."""


class StepPick(Pick):
    """Selects steps of the trajectory."""

    step: Literal["message", "tool_call", "tool_result"]
    name: str = ""
    """Dotted path of the tool's name."""
    tool: str = ""
    """The tool's name, for events that do not have it."""
    id: str = ""
    """Dotted path of what a call and its result have in common."""
    failed: JsonObject = Field(default_factory=dict)
    """Dotted paths and their values in the result of a call that failed."""


class UsagePick(DescriptionPart):
    """Selects usage. Each list of dotted paths is added up, also over all matching events."""

    when: JsonObject = Field(default_factory=dict)
    each: str = ""
    """Dotted path of a list in the event; each of its elements counts."""
    input: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    usd: str = ""


class ProgramDescription(DescriptionPart):
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
    """Other variables that it may see (addresses, regions)."""
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
    error: tuple[ErrorPick, ...] = ()
    usage: tuple[UsagePick, ...] = ()
    skill_read: tuple[str, ...] = ()
    """Regular expressions over `TOOL ARGUMENTS` of its tool calls. A match shows that it loaded
    $skill, unless the call failed. So does a tool result that holds the skill's text, as after
    `cat`, which needs no expression.
    """
    failures: dict[FailureKind, tuple[str, ...]] = Field(default_factory=dict)
    """Regular expressions over its error text, by kind of failure. They are tried before the
    general ones.
    """

    def uses(self, variable: str) -> bool:
        """Return whether a value for `variable` would reach the program at all."""
        strings = [
            *_strings(self.argv),
            *_strings(self.model_argv),
            *self.env.values(),
            *self.files.values(),
        ]
        return any(f"${variable}" in text or f"${{{variable}}}" in text for text in strings)

    @property
    def shows_reads(self) -> bool:
        """Whether its output tells which skills it loaded."""
        return bool(self.skill_read) or any(pick.step == "tool_result" for pick in self.events)

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
    """Fill in the variables of `text`; None if one of them is empty. Unknown `$words` stay."""
    names = Template(text).get_identifiers()
    if any(name in values and not values[name] for name in names):
        return None
    return Template(text).safe_substitute(values)


def arguments(argv: tuple[str | Arguments, ...], values: Mapping[str, str]) -> list[str]:
    """Return the argument list for these values, without what an empty value leaves out."""
    done: list[str] = []
    for part in argv:
        group = Arguments(args=(part,)) if isinstance(part, str) else part
        filled = [text for arg in group.args if (text := fill(arg, values)) is not None]
        if len(filled) == len(group.args) and not values.get(group.without):
            done += filled
    return done


def readiness(environ: Mapping[str, str]) -> Readiness:
    """Return which of the built-in programs are installed."""
    names = sorted(file.stem for file in DESCRIPTIONS.glob("*.yaml"))
    path = environ.get("PATH", os.defpath)
    found = [name for name in names if shutil.which(load_description(name).program, path=path)]
    if found:
        return Readiness(True, f"installed: {', '.join(found)}")
    return Readiness(False, f"none of {', '.join(names)} is installed")


def load_description(name: str) -> ProgramDescription:
    """Load a built-in description by name, or the one in the file at this path."""
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    path = Path(name) if is_path else DESCRIPTIONS / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in DESCRIPTIONS.glob("*.yaml")))
        missing = f"{path} does not exist." if is_path else f"No command-line agent {name!r}."
        raise InputError(
            missing, hint=f"Available: {known}; options.file names your own description."
        )
    return _read(path.resolve(), path.stat().st_mtime_ns)


@cache
def _read(path: Path, version: int) -> ProgramDescription:
    """Read the description in a file. `version` makes a changed file load again."""
    data: Any = None
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        description = ProgramDescription.model_validate(data)
    except (ValidationError, yaml.YAMLError) as error:
        problem = str(error)
        if isinstance(error, ValidationError):
            problem = " ".join(
                one.sentence for one in setting_problems(error, ProgramDescription, data)
            )
        raise InputError(
            f"{path} does not describe a command-line agent: {problem}",
            hint=f"The files in {DESCRIPTIONS} show the keys.",
        ) from error
    program = description.program
    if "/" in program:
        program = str(path.parent / Path(program).expanduser())
    return description.model_copy(update={"program": program})


def _strings(argv: tuple[str | Arguments, ...]) -> Iterator[str]:
    for part in argv:
        yield from (part,) if isinstance(part, str) else part.args


ProgramEvent = JsonObject
"""A line of JSON that a program printed."""

_MOST_USD = 1_000_000.0  # no run of a program costs this much


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """What the output of one run says."""

    answer: str | None
    error: str  # what the program itself called an error
    steps: tuple[TrajectoryStep, ...]
    usage: Usage
    skills_read: Mapping[str, bool]  # by name; without those of which nothing is known


def read_output(
    description: ProgramDescription,
    stdout: str,
    skills: Sequence[Skill] = (),
    usage_file: str = "",
) -> ProgramOutput:
    """Read the output of a program, and the usage file it wrote, if any. `skills`: as installed.

    The answer is the last text that `answer` selects. In a description without `answer` it is the
    last message, and in one without `events` too the whole output.
    """
    events = list(_events(stdout))
    found = list(_steps(description.events, events))
    steps = [one.step for one in found]
    errors = list(_errors(description.error, events))
    counted = [*events, *_events(usage_file)]
    return ProgramOutput(
        answer=_answer(description, events, steps, stdout.strip()),
        error=errors[-1] if errors else "",
        steps=tuple(replace(step, text=head_and_tail(step.text, STEP_TEXT)) for step in steps),
        usage=_usage(description.usage, counted),
        skills_read={
            skill.name: _is_read(description, found, skill)
            for skill in skills
            if description.shows_reads and skill.body.strip()
        },
    )


def _answer(
    description: ProgramDescription,
    events: Sequence[ProgramEvent],
    steps: Sequence[TrajectoryStep],
    output: str,
) -> str | None:
    if description.answer:
        answers = list(_texts(description.answer, events))
    elif description.events:
        answers = [step.text for step in steps if step.kind == "message"]
    else:
        answers = [output] if output else []
    return answers[-1] if answers else None


def _events(text: str) -> Iterator[ProgramEvent]:
    """Parse one JSON object per line, or one value over the whole text. Skip other lines."""
    whole = _json(text)
    if whole is None:
        found = [_json(line) for line in text.splitlines()]
    else:
        found = whole if isinstance(whole, list) else [whole]
    return (event for event in found if isinstance(event, dict))


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _FoundStep:
    step: TrajectoryStep
    id: str = ""  # of the call that this is, or whose result
    failed: bool = False


def _steps(picks: Sequence[StepPick], events: Iterable[ProgramEvent]) -> Iterator[_FoundStep]:
    """Yield steps in the order of the events. Chunks of one message (`delta: true`) are joined."""
    chunks: list[str] = []
    for event in events:
        for pick in picks:
            for part in _parts(pick, event):
                text = _first(part, pick.text)
                if not text and pick.step != "tool_result":
                    continue
                if pick.step == "message" and event.get("delta") is True:
                    chunks.append(text)
                    continue
                yield from _joined(chunks)
                yield _step(pick, part, text)
    yield from _joined(chunks)


def _step(pick: StepPick, part: ProgramEvent, text: str) -> _FoundStep:
    if pick.step == "message":
        return _FoundStep(TrajectoryStep("message", text))
    name = pick.tool or _text(at_path(part, pick.name))
    role = "tool" if pick.step == "tool_result" else "assistant"
    step = TrajectoryStep(pick.step, text, role=role, name=name)
    failed = bool(pick.failed) and _matches(part, pick.failed)
    return _FoundStep(step, _text(at_path(part, pick.id)) if pick.id else "", failed)


def _joined(chunks: list[str]) -> Iterator[_FoundStep]:
    if chunks:
        yield _FoundStep(TrajectoryStep("message", "".join(chunks)))
        chunks.clear()


def _usage(picks: Sequence[UsagePick], events: Iterable[ProgramEvent]) -> Usage:
    """Add up the usage of the whole run, which counts as one call.

    Dollars are None when the program reports none. Zero dollars for some tokens means that it does
    not know the price (of a model at another `base_url`, for example), not that they were free.
    """
    total, usd = Usage(calls=1), 0.0
    for event in events:
        for pick in picks:
            if not _matches(event, pick.when):
                continue
            for part in _elements(event, pick.each):
                total += Usage(
                    0,
                    input=_sum(part, pick.input),
                    cached=_sum(part, pick.cached),
                    output=_sum(part, pick.output),
                    reasoning=_sum(part, pick.reasoning),
                )
                usd += _number(at_path(part, pick.usd), _MOST_USD) if pick.usd else 0.0
    return replace(
        total,
        cached=min(total.cached, total.input),
        reasoning=min(total.reasoning, total.output),
        usd=usd or None,
    )


def _is_read(description: ProgramDescription, found: Sequence[_FoundStep], skill: Skill) -> bool:
    """Return whether the program loaded the skill: by a call that only loads skills, or because the
    skill's text is in the result of any call.
    """
    name = rf"(?<![\w-]){re.escape(skill.name)}(?![\w-])"
    patterns = [Template(text).safe_substitute(skill=name) for text in description.skill_read]
    refused = {one.id for one in found if one.failed and one.id}
    for one in found:
        step, call = one.step, f"{one.step.name} {one.step.text}"
        if step.kind == "tool_result" and skill.shown_in(step.text):
            return True
        if step.kind != "tool_call" or one.id in refused:
            continue
        if any(re.search(pattern, call) for pattern in patterns):
            return True
    return False


def _texts(picks: Sequence[Pick], events: Iterable[ProgramEvent]) -> Iterator[str]:
    for event in events:
        for pick in picks:
            for part in _parts(pick, event):
                yield _first(part, pick.text)


def _errors(picks: Sequence[ErrorPick], events: Iterable[ProgramEvent]) -> Iterator[str]:
    for event in events:
        for pick in picks:
            for part in _parts(pick, event):
                status = _text(at_path(part, pick.status)) if pick.status else ""
                text = _first(part, pick.text)
                yield f"status {status}: {text}" if status else text


def _parts(pick: Pick, event: ProgramEvent) -> Iterator[ProgramEvent]:
    if _matches(event, pick.when):
        yield from (part for part in _elements(event, pick.each) if _matches(part, pick.where))


def _elements(event: ProgramEvent, path: str) -> Iterator[ProgramEvent]:
    """Yield the event itself, or the elements of the list at `path` in it."""
    found = at_path(event, path) if path else [event]
    for part in found if isinstance(found, list) else ():
        if isinstance(part, dict):
            yield part


def _matches(event: ProgramEvent, wanted: JsonObject) -> bool:
    return all(at_path(event, path) == value for path, value in wanted.items())


def _sum(event: ProgramEvent, paths: Sequence[str]) -> int:
    return sum(int(_number(at_path(event, path), MAX_TOKEN_COUNT)) for path in paths)


def _number(value: Any, most: float) -> float:
    """Return a number that may be added up: 0 for everything that is no usable count or price,
    `most` for what is larger than any.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return 0.0
    return min(max(0.0, value), most)


def _first(part: ProgramEvent, paths: Sequence[str]) -> str:
    return next((text for path in paths if (text := _text(at_path(part, path)))), "")


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in value
    ):
        return "\n".join(part["text"] for part in value)
    return json.dumps(value, ensure_ascii=False)


_SHOWN = 1000  # characters of the error text
# The patterns must match the program's own complaints only: stderr may also hold what an agent's
# tools printed, with any words and numbers in it.
_STATUS = r"\b(status|code|error|http(/[\d.]+)?)\W{0,3}(status|code)?\W{0,3}"
_PATTERNS: Mapping[FailureKind, tuple[str, ...]] = {
    "limit": (),
    "auth": (
        r"not logged in",
        r"please (run )?/?log ?in",
        r"(invalid|incorrect|missing) (x-)?api.?key",
        r"authentication.?(error|failed|required|failure)",
        r"(failed|unable|could not) to authenticate|not authenticated|no authentication",
        r"^\W*(error\W+)?unauthorized\b",
        rf"{_STATUS}401\b|\b401\W{{1,3}}unauthorized",
    ),
    "quota": (
        r"credit balance is too low",
        r"insufficient.quota",
        r"usage limit (reached|exceeded)|(hit|reached) your usage limit",
        r"(?<!disk )quota exceeded|exceeded your current quota",
    ),
    "rate_limit": (r"rate.?limit", rf"{_STATUS}429\b", r"too many requests"),
    "overloaded": (
        r"overloaded",
        rf"{_STATUS}(500|502|503|504|529)\b",
        r"(internal server|service unavailable)",
    ),
    "config": (
        r"\bmodel\b(?!/)[^\n]{0,60}(not found|does not exist|not supported|may not exist)",
        r"^(error: )?(unknown|unexpected) (option|argument)",
    ),
}


def failure_of(
    description: ProgramDescription,
    code: int | None,
    text: str,
    usage: Usage,
    *,
    auth_hint: str,
    timed_out: bool = False,
) -> ModelError:
    """Return the typed failure for a program that ended with this exit code and error text, or that
    was ended at its time limit: many programs retry a refused call for longer than that.
    """
    text = last_part(text.strip(), _SHOWN) or "it printed no error"
    ended = "ended at the time limit" if timed_out else f"exit code {code}"
    message = f"{description.name} gave no answer ({ended}): {text}"
    kind = _kind(description, text)
    if kind is None and timed_out:
        return AgentFailure(message, kind="timeout", hint="Raise env.exec_timeout.", usage=usage)
    if kind is None:
        return AgentFailure(message, kind="command", usage=usage)
    if kind == "limit":
        return AgentFailure(
            message, kind="limit", hint="Raise the program's own limit.", usage=usage
        )
    return make_failure(kind, message, usage=usage, hint=auth_hint if kind == "auth" else "")


def _kind(description: ProgramDescription, text: str) -> FailureKind | None:
    for kind, general in _PATTERNS.items():
        for pattern in (*description.failures.get(kind, ()), *general):
            if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
                return kind
    return None
