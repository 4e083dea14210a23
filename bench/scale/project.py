"""Projects for the practice models with as many items as asked for. No key, no network."""

from __future__ import annotations

import json
import random
from pathlib import Path

_TOPICS = {
    "billing": ("invoice", "refund", "charge", "payment"),
    "delivery": ("parcel", "courier", "shipping", "address"),
    "account": ("login", "password", "email", "profile"),
    "returns": ("return", "exchange", "size", "defect"),
}
_SKILL = """\
---
name: route-tickets
description: Route support tickets to a team.
---

Answer with the label alone, in lower case.
"""


_EVALUATE = """\
import random

async def evaluate(skill, item, seed):
    right = random.Random(f"{seed}/{len(skill)}").random() < 0.6
    answer = "right" if right else "unknown"
    return {"score": float(right), "feedback": "", "answer": answer}
"""


def write_project(
    folder: Path, splits: dict[str, int], config: str, *, evaluator: bool = False
) -> Path:
    """A skill, `splits` items ("" for items that skillfit splits itself), and the config's path.

    `evaluator`: a Python function draws the scores, which is several times as fast as the practice
    agent.
    """
    (folder / "route-tickets").mkdir(parents=True)
    (folder / "route-tickets" / "SKILL.md").write_text(_SKILL)
    draw = random.Random(0)
    with (folder / "items.jsonl").open("w") as file:
        for split, count in splits.items():
            for number in range(count):
                file.write(json.dumps(_item(draw, split, number)) + "\n")
    path = folder / "skillfit.yaml"
    if evaluator:
        (folder / "evaluate.py").write_text(_EVALUATE)
        models, task = "optimizer: practice/optimizer", "tasks: ./evaluate.py:evaluate"
    else:
        models = "agent: practice/agent, optimizer: practice/optimizer"
        task = "tasks: ./items.jsonl, grader: exact"
    path.write_text(f"model: {{{models}}}\nenv: {{skill: ./route-tickets, {task}}}\n{config}")
    return path


def _item(draw: random.Random, split: str, number: int) -> dict[str, str]:
    label = draw.choice(list(_TOPICS))
    noise = " ".join(f"{draw.randrange(16**6):06x}" for _ in range(10))  # no two items look alike
    item = {
        "id": f"{split or 'item'}-{number}",
        "input": f"My {draw.choice(_TOPICS[label])}: {noise}",
        "answer": label,
    }
    return item | {"split": split} if split else item
