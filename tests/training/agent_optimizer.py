"""Optimizers that work as agents on a colour project: a scripted chat model that uses tools, and a
small coding-agent program. Both count failures in the index and add a line for each failing colour.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.chat_server import Answer, Call
from tests.training.practice_project import COLOURS

COUNT = """
import csv
rows = list(csv.DictReader(open("rollouts/index.csv")))
print(" ".join(sorted({row["kind"] for row in rows if row["result"] == "failed"})))
"""


def lines_for(colours: Sequence[str]) -> list[str]:
    return [f"- {colour} means {COLOURS[colour]}." for colour in colours if colour in COLOURS]


def changes_for(colours: Sequence[str]) -> str:
    return "".join(
        f"- `{line}` | kinds: {colour} | cause: {colour} unknown | purpose: name {colour}\n"
        for colour, line in zip(colours, lines_for(colours), strict=True)
    )


def tool_calls(*calls: tuple[str, dict[str, str]]) -> dict[str, Any]:
    """A message that uses tools."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ],
    }


def results(call: Call) -> list[str]:
    """What the tools returned so far."""
    return [
        message["content"] for message in call.body["messages"] if message.get("role") == "tool"
    ]


def working(call: Call) -> Answer:
    """Count, read, edit, say what for, finish."""
    seen = results(call)
    match len(seen):
        case 0:
            return tool_calls(("python", {"code": COUNT}))
        case 1:
            return tool_calls(("read", {"path": "skill/SKILL.md"}))
        case 2:
            colours = seen[0].partition("\n")[0].split()
            old = seen[1].rstrip("\n").split("\n")[-1]
            new = "\n".join([old, *lines_for(colours)])
            return tool_calls(
                ("edit", {"path": "skill/SKILL.md", "old": old, "new": new}),
                ("write", {"path": "changes.md", "content": changes_for(colours)}),
                ("write", {"path": "notes/rounds.md", "content": f"Failing: {seen[0]}"}),
            )
    return tool_calls(("finish", {"answer": "Named the colours."}))


# A coding-agent program: it works in its folder and prints events as JSON. `{extra}` runs first,
# `{last}` after the work.
PROGRAM = """#!{python}
import csv, json, os, pathlib, sys, time
prompt = sys.stdin.read()
def end(text):
    print(json.dumps(dict(type="message", text=text)))
    print(json.dumps(dict(type="result", tokens=dict(read=3000, written=200), cost=0.05)))
    sys.exit(0)
if sys.argv[1] == "answer":
    end("ok")
letters = {letters}
{extra}
rows = list(csv.DictReader(open("rollouts/index.csv")))
failing = sorted(set(row["kind"] for row in rows if row["result"] == "failed"))
skill = pathlib.Path("skill/SKILL.md")
lines = ["- %s means %s." % (colour, letters[colour]) for colour in failing]
skill.write_text(skill.read_text() + "".join(line + "\\n" for line in lines))
pathlib.Path("changes.md").write_text("".join(
    "- `%s` | kinds: %s | purpose: name it\\n" % pair for pair in zip(lines, failing)))
notes = pathlib.Path("notes/rounds.md")
old = notes.read_text() if notes.exists() else ""
notes.write_text(old + "Failing: " + " ".join(failing) + "\\n")
{last}
end("Named " + " ".join(failing))
"""
DESCRIPTION: dict[str, Any] = {
    "name": "worker",
    "argv": ["work", {"args": ["--max-usd", "$max_usd"]}],
    "model_argv": ["answer"],
    "skills": ".worker/skills",
    "failures": {"limit": ["LIMIT REACHED"]},
    "events": [{"when": {"type": "message"}, "step": "message", "text": ["text"]}],
    "usage": [
        {
            "when": {"type": "result"},
            "input": ["tokens.read"],
            "output": ["tokens.written"],
            "usd": "cost",
        }
    ],
}


class Worker:
    """The program in a folder of its own; `settings` name it as the optimizer."""

    def __init__(self, folder: Path, *, extra: str = "", last: str = "") -> None:
        self.folder = folder
        self.program = folder / "bin" / "worker"
        self.program.parent.mkdir(parents=True, exist_ok=True)
        self.install(extra=extra, last=last)
        description = folder / "worker.yaml"
        description.write_text(yaml.safe_dump({**DESCRIPTION, "program": str(self.program)}))
        options = json.dumps({"file": str(description)})
        self.settings = (
            "model.optimizer.id=cli/worker",
            "model.optimizer.base_url=null",
            f"model.optimizer.options={options}",
        )

    def install(self, *, extra: str = "", last: str = "") -> None:
        text = PROGRAM.format(
            python=sys.executable,
            letters=COLOURS,
            extra=extra,
            last=last,
        )
        self.program.write_text(text)
        self.program.chmod(0o755)
