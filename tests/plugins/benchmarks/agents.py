"""Scripted agents that solve the sample of a benchmark: each knows the gold answers, and works in
the way that the benchmark requires (a reply, tools, programs, moves of a game).
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from skillfit.plugins.benchmarks.swebench import files_in
from skillfit.tasks import Task
from skillfit.tasks.item import Item
from tests.plugins.benchmarks.sample_training import (
    Solve,
    by_question,
    image_urls,
    sample_task,
    tool,
    user,
)
from tests.support.chat_server import Call

TAG, BOXED = "I looked.\n<answer>{}</answer>", "I looked, so \\boxed{{{}}}."
CHAT = {
    "searchqa": TAG,
    "sealqa": TAG,
    "docvqa": TAG,
    "livemathematicianbench": TAG,
    "mathverse": TAG,
    "babyvision": BOXED,
    "mmrb": TAG,
}
COPY = "import shutil\nshutil.copy('input.xlsx', 'output.xlsx')\n"


def solver(name: str) -> Solve:
    """An agent that answers correctly."""
    makers = {
        "officeqa": document_agent,
        "spreadsheetbench": program_agent,
        "alfworld": player,
        "swebench": file_agent,
    }
    return makers[name]() if name in makers else chat_agent(name)


def wrong(name: str) -> Solve:
    """An agent that answers wrongly in the benchmark's format."""
    replies: dict[str, str | dict[str, Any]] = {
        "officeqa": tool("finish", answer="no idea"),
        "spreadsheetbench": fenced(COPY),
        "alfworld": "<action>look</action>",
        "swebench": tool("finish", answer="no"),
    }
    return lambda call: replies.get(name, "I do not know.")


def chat_agent(name: str) -> Solve:
    """Questions can have the same words; then their images differ."""
    answers = {(item.input, *pictures(item)): item.answers[0] for item in sample_task(name).items}
    return lambda call: CHAT[name].format(answers[(user(call), *sent_pictures(call))])


def pictures(item: Item) -> list[bytes]:
    return [image.path.read_bytes() for image in item.images]


def sent_pictures(call: Call) -> list[bytes]:
    urls = image_urls(call)
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    return [base64.b64decode(url.partition(",")[2]) for url in urls]


def document_agent() -> Solve:
    answers = by_question(sample_task("officeqa"))

    def solve(call: Call) -> dict[str, Any]:
        results = [message for message in call.body["messages"] if message["role"] == "tool"]
        if not results:
            document = user(call).partition("Documents: ")[2].splitlines()[0]
            return tool("read", path=document)
        assert "TREASURY BULLETIN OF NORLAND" in results[0]["content"]
        return tool("finish", answer=f"<answer>{answers[user(call)]}</answer>")

    return solve


def fenced(program: str) -> str:
    return f"Here it is.\n\n```python\n{program}```\n"


def program_agent() -> Solve:
    task = sample_task("spreadsheetbench", task_args={"mode": "single"})
    programs = by_question(task)
    return lambda call: fenced(programs[user(call)])


def player() -> Solve:
    known = {task_line(item): walkthrough(item) for item in sample_task("alfworld").items}

    def solve(call: Call) -> str:
        text = user(call)
        moves = next(moves for line, moves in known.items() if line in text)
        return f"<action>{moves[step_number(text) - 1]}</action>"

    return solve


def walkthrough(item: Item) -> list[str]:
    moves: list[str] = _trajectory(item)["walkthrough"]
    return moves


def task_line(item: Item) -> str:
    return f"Your task is to: {_trajectory(item)['turk_annotations']['anns'][0]['task_desc']}"


def _trajectory(item: Item) -> dict[str, Any]:
    file = Path(item.content()["game"]["game"]) / "traj_data.json"
    trajectory: dict[str, Any] = json.loads(file.read_text())
    return trajectory


def step_number(text: str) -> int:
    match = re.search(r"This is step (\d+) of", text)
    assert match is not None
    return int(match[1])


def file_agent() -> Solve:
    fixed = fixed_files(sample_task("swebench"))

    def solve(call: Call) -> dict[str, Any]:
        if any(message["role"] == "tool" for message in call.body["messages"]):
            return tool("finish", answer="fixed")
        name, text = fixed[user(call)]
        return tool("write", path=f"repo/{name}", content=text)

    return solve


def fixed_files(task: Task) -> dict[str, tuple[str, str]]:
    """Issue -> the file that its gold patch changes, and the file's text after that."""
    fixed = {}
    for item in task.items:
        (name,) = files_in(item.answers[0])
        folder = Path(item.content()["repository"])
        fixed[item.input] = (name, patched(folder / name, item.answers[0]))
    return fixed


def patched(path: Path, patch: str) -> str:
    """The text of a file after a patch of that file alone."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        command = ["patch", "-s", "-p1"]
        subprocess.run(command, input=patch, text=True, cwd=folder, check=True)
        return copy.read_text()
