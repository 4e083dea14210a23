"""Reading what a command-line agent printed: its event stream becomes answer, trajectory, usage, or
the error it reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Any

from skillfit.agents.chat import shorten
from skillfit.agents.coding_cli.description import Description, Pick, StepPick, UsagePick
from skillfit.models.json_text import parse_json
from skillfit.models.protocol import Usage
from skillfit.tasks.graders.extract import at_path
from skillfit.tasks.item import Step


@dataclass(frozen=True, slots=True)
class Reading:
    answer: str | None
    error: str  # what the program itself called an error
    steps: tuple[Step, ...]
    usage: Usage
    skill_read: bool | None


def read_output(description: Description, stdout: str, skill: str) -> Reading:
    """What the output says. The answer is what `answer` picks, else the last message, else (no
    events) the whole output.
    """
    events = list(_events(stdout))
    steps = list(_steps(description.events, events))
    picked = list(_texts(description.answer, events))
    said = [step.text for step in steps if step.kind == "message"]
    answers = (
        picked
        if description.answer
        else said
        if description.events
        else [stdout.strip()]
        if stdout.strip()
        else []
    )
    errors = list(_texts(description.error, events))
    return Reading(
        answer=answers[-1] if answers else None,
        error=errors[-1] if errors else "",
        steps=tuple(replace(step, text=shorten(step.text)) for step in steps),
        usage=_usage(description.usage, events),
        skill_read=_skill_read(description.skill_read, steps, skill),
    )


def _events(stdout: str) -> Iterator[Mapping[str, Any]]:
    """One JSON object per line, or one over the whole output; other lines are chatter."""
    whole = _json(stdout)
    if whole is None:
        found = [_json(line) for line in stdout.splitlines()]
    else:
        found = whole if isinstance(whole, list) else [whole]
    return (event for event in found if isinstance(event, dict))


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return None


def _steps(picks: Sequence[StepPick], events: Iterable[Mapping[str, Any]]) -> Iterator[Step]:
    """Steps in the order of the events. Chunks of one message (`delta: true`) are put together."""
    held: list[str] = []
    for event in events:
        for pick in picks:
            for part in _parts(pick, event):
                text = _first(part, pick.text)
                if not text and pick.step != "tool_result":
                    continue
                if pick.step == "message" and event.get("delta") is True:
                    held.append(text)
                    continue
                yield from _joined(held)
                name = (
                    pick.tool or _text(at_path(part, pick.name)) if pick.step != "message" else ""
                )
                yield Step(
                    pick.step,
                    text,
                    role="tool" if pick.step == "tool_result" else "assistant",
                    name=name,
                )
    yield from _joined(held)


def _joined(held: list[str]) -> Iterator[Step]:
    if held:
        yield Step("message", "".join(held))
        held.clear()


def _usage(picks: Sequence[UsagePick], events: Iterable[Mapping[str, Any]]) -> Usage:
    """A run counts as one call; what the program does not report stays unknown (no price), never
    zero dollars.
    """
    total, usd = Usage(calls=1), None
    for event in events:
        for pick in picks:
            if not _matches(event, pick.when):
                continue
            total += Usage(
                0,
                *(
                    _sum(event, paths)
                    for paths in (pick.input, pick.cached, pick.output, pick.reasoning)
                ),
            )
            cost = at_path(event, pick.usd) if pick.usd else None
            usd = (usd or 0.0) + float(cost) if isinstance(cost, (int, float)) else usd
    return replace(total, usd=usd)


def _skill_read(patterns: Sequence[str], steps: Iterable[Step], skill: str) -> bool | None:
    if not patterns:
        return None
    tried = [
        re.compile(Template(pattern).safe_substitute(skill=re.escape(skill)))
        for pattern in patterns
    ]
    calls = [f"{step.name} {step.text}" for step in steps if step.kind == "tool_call"]
    return any(pattern.search(call) for pattern in tried for call in calls)


def _texts(picks: Sequence[Pick], events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    return (
        _first(part, pick.text)
        for event in events
        for pick in picks
        for part in _parts(pick, event)
    )


def _parts(pick: Pick, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if not _matches(event, pick.when):
        return
    found = at_path(event, pick.each) if pick.each else [event]
    for part in found if isinstance(found, list) else ():
        if isinstance(part, dict) and _matches(part, pick.where):
            yield part


def _matches(event: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(at_path(event, path) == value for path, value in wanted.items())


def _sum(event: Mapping[str, Any], paths: Sequence[str]) -> int:
    return sum(
        int(value) for path in paths if isinstance(value := at_path(event, path), (int, float))
    )


def _first(part: Mapping[str, Any], paths: Sequence[str]) -> str:
    return next((text for path in paths if (text := _text(at_path(part, path)))), "")


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in value
    ):
        return "\n".join(part["text"] for part in value)
    return json.dumps(value, ensure_ascii=False)
