"""Read what a program printed: its events become the answer, the trajectory, the usage, or the
error that it reported, with the kind of failure that the error text means.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Any

from skillfit.agents.agent import AgentFailure, shorten
from skillfit.agents.coding_cli.description import (
    Description,
    FailureKind,
    Pick,
    StepPick,
    UsagePick,
)
from skillfit.models.failures import make_failure
from skillfit.models.json_text import parse_json
from skillfit.models.protocol import ModelError, Usage
from skillfit.models.wire import MAX_TOKEN_COUNT
from skillfit.tasks.graders.base import at_path
from skillfit.tasks.item import Step

Event = Mapping[str, Any]

_MOST_USD = 1_000_000.0  # no run of a program costs this much


@dataclass(frozen=True, slots=True)
class Reading:
    """What the output of one run says."""

    answer: str | None
    error: str  # what the program itself called an error
    steps: tuple[Step, ...]
    usage: Usage
    skill_read: bool | None  # None: it cannot be told


def read_output(description: Description, stdout: str, skill: str, usage_file: str = "") -> Reading:
    """Read the output of a program, and the usage file it wrote, if any.

    The answer is what `answer` selects, else the last message, else (without any events) the whole
    output.
    """
    events = list(_events(stdout))
    steps = list(_steps(description.events, events))
    errors = list(_texts(description.error, events))
    counted = [*events, *_events(usage_file)]
    return Reading(
        answer=_answer(description, events, steps, stdout.strip()),
        error=errors[-1] if errors else "",
        steps=tuple(replace(step, text=shorten(step.text)) for step in steps),
        usage=_usage(description.usage, counted),
        skill_read=_skill_read(description.skill_read, steps, skill),
    )


def _answer(
    description: Description, events: Sequence[Event], steps: Sequence[Step], output: str
) -> str | None:
    if description.answer:
        answers = list(_texts(description.answer, events))
    elif description.events:
        answers = [step.text for step in steps if step.kind == "message"]
    else:
        answers = [output] if output else []
    return answers[-1] if answers else None


def _events(text: str) -> Iterator[Event]:
    """One JSON object per line, or one value over the whole text. Other lines are skipped."""
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


def _steps(picks: Sequence[StepPick], events: Iterable[Event]) -> Iterator[Step]:
    """Steps in the order of the events. Chunks of one message (`delta: true`) are joined."""
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


def _step(pick: StepPick, part: Event, text: str) -> Step:
    if pick.step == "message":
        return Step("message", text)
    name = pick.tool or _text(at_path(part, pick.name))
    role = "tool" if pick.step == "tool_result" else "assistant"
    return Step(pick.step, text, role=role, name=name)


def _joined(chunks: list[str]) -> Iterator[Step]:
    if chunks:
        yield Step("message", "".join(chunks))
        chunks.clear()


def _usage(picks: Sequence[UsagePick], events: Iterable[Event]) -> Usage:
    """The usage of the whole run, which counts as one call.

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


def _skill_read(patterns: Sequence[str], steps: Iterable[Step], skill: str) -> bool | None:
    if not patterns:
        return None
    name = re.escape(skill)
    compiled = [re.compile(Template(pattern).safe_substitute(skill=name)) for pattern in patterns]
    for step in steps:
        call = f"{step.name} {step.text}"
        if step.kind == "tool_call" and any(pattern.search(call) for pattern in compiled):
            return True
    return False


def _texts(picks: Sequence[Pick], events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        for pick in picks:
            for part in _parts(pick, event):
                yield _first(part, pick.text)


def _parts(pick: Pick, event: Event) -> Iterator[Event]:
    if _matches(event, pick.when):
        yield from (part for part in _elements(event, pick.each) if _matches(part, pick.where))


def _elements(event: Event, path: str) -> Iterator[Event]:
    """The event itself, or the elements of the list at `path` in it."""
    found = at_path(event, path) if path else [event]
    for part in found if isinstance(found, list) else ():
        if isinstance(part, dict):
            yield part


def _matches(event: Event, wanted: Mapping[str, Any]) -> bool:
    return all(at_path(event, path) == value for path, value in wanted.items())


def _sum(event: Event, paths: Sequence[str]) -> int:
    return sum(int(_number(at_path(event, path), MAX_TOKEN_COUNT)) for path in paths)


def _number(value: Any, most: float) -> float:
    """A number that may be added up: 0 for everything that is no usable count or price, `most` for
    what is larger than any.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return 0.0
    return min(max(0.0, value), most)


def _first(part: Event, paths: Sequence[str]) -> str:
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
        rf"{_STATUS}(500|502|503|529)\b",
        r"(internal server|service unavailable)",
    ),
    "config": (
        r"\bmodel\b(?!/)[^\n]{0,60}(not found|does not exist|not supported|may not exist)",
        r"^(error: )?(unknown|unexpected) (option|argument)",
    ),
}


def failure_of(
    description: Description, code: int | None, text: str, usage: Usage, *, auth_hint: str
) -> ModelError:
    """The typed failure for a program that ended with this exit code and error text."""
    text = (text.strip() or "it printed no error")[-_SHOWN:]
    message = f"{description.name} gave no answer (exit code {code}): {text}"
    kind = _kind(description, text)
    if kind is None:
        return AgentFailure(message, kind="command", usage=usage)
    if kind == "limit":
        return AgentFailure(
            message, kind="limit", hint="Raise the program's own limit.", usage=usage
        )
    return make_failure(kind, message, usage=usage, hint=auth_hint if kind == "auth" else "")


def _kind(description: Description, text: str) -> FailureKind | None:
    for kind, general in _PATTERNS.items():
        for pattern in (*description.failures.get(kind, ()), *general):
            if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
                return kind
    return None
