"""What `skillfit init` writes where the user has nothing yet, and what is left of it later."""

from __future__ import annotations

import json
from collections.abc import Iterable

from skillfit.config.schema import GraderSetting
from skillfit.tasks.item import Item

RUBRIC = "Describe here what a good answer is."
TASKS = [
    {
        "id": "example-1",
        "input": "Replace this with a task the skill must be good at.",
        "answer": "and this with the right answer",
    },
    {
        "id": "example-2",
        "input": "One object per line. Twenty are a start, sixty give clear results.",
        "answer": "exactly this",
    },
    {
        "id": "example-3",
        "input": "A type is optional: results are shown per type.",
        "answer": "42",
        "type": "numbers",
    },
]


def template_parts(grader: GraderSetting | None, items: Iterable[Item]) -> list[str]:
    """Return what of a project is still the template's text, in words."""
    texts = {task["id"]: task["input"] for task in TASKS}
    untouched = [item.id for item in items if item.id in texts and item.input == texts[item.id]]
    found = []
    if untouched:
        found.append(f"the tasks ({', '.join(untouched)})")
    if RUBRIC in json.dumps(grader):
        found.append("the rubric in env.grader")
    return found
