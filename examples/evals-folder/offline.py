"""Stand-ins for three models, so that this example runs anywhere. They follow fixed rules."""

from __future__ import annotations

import json
import re
from typing import Any

from skillfit import Request

RULES = {
    "kind": "Start with the kind of change as one word: Added, Fixed or Removed.",
    "command": "Name the command in backticks, so that it can be searched for.",
    "number": "End with the number of the change in brackets, as in (#123).",
}
_CHANGE = re.compile(
    r"Change #(?P<number>\d+), command `(?P<command>\w+)`, (?P<kind>\w+): (?P<what>.+)\."
)


def agent(request: Request) -> str:
    """Writes a note, and does what the skill asks for as far as it knows the rule."""
    skill, task = request.messages[0].content, request.messages[-1].content
    change = _CHANGE.search(task)
    if change is None:
        return "ok"
    note = change["what"]
    if RULES["kind"] in skill:
        note = f"{change['kind'].capitalize()} {note}"
    if RULES["command"] in skill:
        note += f" in `{change['command']}`"
    return f"{note} (#{change['number']})" if RULES["number"] in skill else f"{note}."


def judge(request: Request) -> str:
    """Decides each check by looking for the words it asks for."""
    system, user = request.messages[0].content, request.messages[-1].content
    answer = user.partition("<answer>")[2].partition("</answer>")[0].strip()
    checks = re.findall(r"^\d+\. (.+)$", system, re.MULTILINE)
    given = [{"evidence": answer[:80], "passed": _passes(check, answer)} for check in checks]
    return json.dumps(
        {"checks": given, "advice": "Follow the form of our release notes more closely."}
    )


def _passes(check: str, answer: str) -> bool:
    if match := re.search(r"starts with the word (\w+)", check):
        return answer.startswith(match[1])
    if match := re.search(r"names the command (`\w+`)", check):
        return match[1] in answer
    match = re.search(r"ends with (\(#\d+\))", check)
    return match is not None and answer.endswith(match[1])


def optimizer(request: Request) -> str:
    """Proposes the rules the skill does not have yet."""
    prompt = "\n".join(message.content for message in request.messages)
    if request.stage != "reflect.corpus":
        return "{}"
    missing = [_append(rule) for rule in RULES.values() if rule not in prompt]
    return json.dumps({"reasoning": "form", "failures": [], "edits": missing})


def _append(rule: str) -> dict[str, Any]:
    return {"op": "append", "target": "", "content": f"- {rule}"}
