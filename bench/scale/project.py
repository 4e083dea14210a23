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


def write_project(folder: Path, splits: dict[str, int], config: str) -> Path:
    """A skill, `splits` items ("" for items that skillfit splits itself), and the config's path."""
    (folder / "route-tickets").mkdir(parents=True)
    (folder / "route-tickets" / "SKILL.md").write_text(_SKILL)
    draw = random.Random(0)
    with (folder / "tasks.jsonl").open("w") as file:
        for split, count in splits.items():
            for number in range(count):
                file.write(json.dumps(_item(draw, split, number)) + "\n")
    path = folder / "skillfit.yaml"
    path.write_text(
        "model: {agent: practice/agent, optimizer: practice/optimizer}\n"
        "env: {skill: ./route-tickets, tasks: ./tasks.jsonl, grader: exact}\n" + config
    )
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
