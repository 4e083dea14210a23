"""Whether a program loaded the skill, read from events as the real programs print them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skillfit.agents.cli_programs import load_description, read_output
from skillfit.skill import Skill

SKILL = Skill.from_text(
    "---\nname: bays\ndescription: Where goods go.\n---\n"
    "# Bays\n\nPut heavy goods into the lowest bay.\nPut fragile goods into bay 7.\n"
)
LISTING = ".agents/skills/bays/SKILL.md\n"
NUMBERED = "".join(f"{n:>6}\t{line}\n" for n, line in enumerate(SKILL.text.splitlines(), 1))
MATCHES = "".join(f"{LISTING.strip()}:{line}\n" for line in SKILL.body.splitlines())
REFUSED = "cat: .agents/skills/bays/SKILL.md: Permission denied\n"
OTHER = "---\nname: old-bays\n---\nPut everything onto the floor.\n"


def read(program: str, *events: dict[str, Any], skill: Skill = SKILL) -> bool | None:
    printed = "\n".join(json.dumps(event) for event in events)
    return read_output(load_description(program), printed, [skill]).skills_read.get(skill.name)


def shell(command: str, output: str) -> dict[str, Any]:
    item = {"type": "command_execution", "command": command, "aggregated_output": output}
    return {"type": "item.completed", "item": {"id": "item_1", **item}}


@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        ("cat .agents/skills/bays/SKILL.md", SKILL.text, True),
        ("cd .agents/skills/bays && cat SKILL.md", SKILL.text, True),
        ("cat .agents/skills/*/SKILL.md", OTHER + SKILL.text, True),
        ("rg '' .agents/skills", MATCHES, True),
        ("nl -ba .agents/skills/bays/SKILL.md", NUMBERED, True),
        ("sed -n 1,6p .agents/skills/bays/SKILL.md", SKILL.text[:120], True),
        ("ls .agents/skills/bays/SKILL.md", LISTING, False),
        ("cat .agents/skills/bays/SKILL.md", REFUSED, False),
        ("cat .agents/skills/old-bays/SKILL.md", OTHER, False),
        ("head -3 .agents/skills/bays/SKILL.md", "---\nname: bays\ndescription: Where\n", False),
        ("echo hello", "hello\n", False),
    ],
)
def test_a_read_by_a_command_is_seen_by_what_it_printed(
    command: str, output: str, expected: bool
) -> None:
    assert read("codex", shell(command, output)) is expected


def claude(name: str, *, error: bool = False) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": "t1", "name": "Skill", "input": {"skill": name}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": f"Launching skill: {name}"}
    if error:
        result |= {"content": f"Unknown skill: {name}", "is_error": True}
    return [
        {"type": "assistant", "message": {"content": [call]}},
        {"type": "user", "message": {"content": [result]}},
    ]


def gemini(name: str, *, error: bool = False) -> list[dict[str, Any]]:
    call = {"tool_name": "activate_skill", "tool_id": "a1", "parameters": {"name": name}}
    output = "params/name must be one of" if error else f"Skill **{name}** activated."
    result = {"tool_id": "a1", "status": "error" if error else "success", "output": output}
    return [{"type": "tool_use", **call}, {"type": "tool_result", **result}]


def copilot(name: str, *, error: bool = False) -> list[dict[str, Any]]:
    start = {"toolCallId": "c1", "toolName": "skill", "arguments": {"skill": name}}
    end: dict[str, Any] = {"toolCallId": "c1", "success": not error}
    if error:
        end["error"] = {"message": f"Skill not found: {name}"}
    else:
        end["result"] = {"content": f'Skill "{name}" loaded successfully.'}
    return [
        {"type": "tool.execution_start", "data": start},
        {"type": "tool.execution_complete", "data": end},
    ]


def opencode(name: str, *, error: bool = False) -> list[dict[str, Any]]:
    state: dict[str, Any] = {"status": "completed", "output": f"Loaded skill: {name}"}
    if error:
        state = {"status": "error", "error": f'Skill "{name}" not found.'}
    state["input"] = {"name": name}
    part = {"type": "tool", "tool": "skill", "callID": "c1", "state": state}
    return [{"type": "tool_use", "part": part}]


@pytest.mark.parametrize("events", [claude, gemini, copilot, opencode])
def test_the_programs_own_event_shows_a_load_unless_it_was_refused(events: Any) -> None:
    program = events.__name__
    assert read(program, *events("bays")) is True
    assert read(program, *events("bays", error=True)) is False
    assert read(program, *events("old-bays")) is False
    assert read(program, *events("bays-2")) is False


def test_a_path_in_a_pattern_of_a_users_description_means_this_skill_only() -> None:
    codex = load_description("codex")
    changed = {"skill_read": (r"$skill/SKILL\.md",), "events": codex.events[:2]}
    description = codex.model_copy(update=changed)

    def found(command: str) -> bool | None:
        printed = json.dumps(shell(command, ""))
        return read_output(description, printed, [SKILL]).skills_read[SKILL.name]

    assert found("cat skills/bays/SKILL.md") and not found("cat skills/old-bays/SKILL.md")


def test_it_is_unknown_without_a_text_to_read_or_results_to_see() -> None:
    assert read("codex", shell("ls", ""), skill=Skill.from_text("")) is None
    silent = load_description("codex").model_copy(update={"events": ()})
    assert not read_output(silent, "done", [SKILL]).skills_read
