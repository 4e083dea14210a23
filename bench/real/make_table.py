"""Make a table of another model: `python -m bench.real.make_table FOLDER --url URL --model NAME`.

Draw sets of the lines in FOLDER/task.json, put every item to the model under each set, and fit the
emulator. The folder then serves as a world: `world.real_table(FOLDER)`. Outcomes are kept in
FOLDER/outcomes.jsonl, one set per line, so that a command that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.real.fit import fit, log_loss
from bench.real.world import TABLE, Array, Item

TEMPERATURE = 0.7
HELD_OUT = 0.1  # of the sets, for the printed log loss
SETS = 1000


def main() -> None:
    asked = _arguments()
    asked.folder.mkdir(parents=True, exist_ok=True)
    task = _task(asked.folder)
    if asked.url:
        headers = {"content-type": "application/json", "authorization": f"Bearer {asked.key}"}
        server = urllib.request.Request(f"{asked.url.rstrip('/')}/chat/completions", None, headers)
        roll_out(asked.folder, task, asked.sets, server, asked.model, asked.concurrency)
    sets, right = outcomes(asked.folder, len(task["lines"]))
    held_out = np.random.default_rng(0).random(len(sets)) < HELD_OUT
    trial = fit(sets[~held_out], right[~held_out])
    print(f"{right.size} rollouts of {len(sets)} sets; log loss of the sets held out: ", end="")
    print(f"{log_loss(trial, sets[held_out], right[held_out]):.3f}")
    networks = fit(sets, right)
    stored = {f"{key}_{at}": value for at, net in enumerate(networks) for key, value in net.items()}
    np.savez_compressed(asked.folder / "emulator.npz", **stored)


def _task(folder: Path) -> dict[str, Any]:
    """Return the task of the folder; a new folder gets the task of the committed table."""
    path = folder / "task.json"
    if not path.exists():
        path.write_text((TABLE / "task.json").read_text(encoding="utf-8"), encoding="utf-8")
    task: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return task


def sets_of_lines(roles: Sequence[str], count: int) -> Iterator[list[int]]:
    """Yield no line, each line alone, the helpful lines, each of these left out and each other line
    added to them, and then random sets, in the order in which they stand in the skill.
    """
    helpful = [at for at, role in enumerate(roles) if role == "helpful"]
    named: list[list[int]] = [[], *([at] for at in range(len(roles))), helpful]
    named += [[other for other in helpful if other != at] for at in helpful]
    named += [[*helpful, at] for at in range(len(roles)) if at not in helpful]
    yield from named[:count]
    luck = random.Random(0)
    for _ in range(count - len(named)):
        share = luck.random()
        chosen = [at for at in range(len(roles)) if luck.random() < share]
        luck.shuffle(chosen)
        yield chosen


def roll_out(
    folder: Path,
    task: dict[str, Any],
    count: int,
    server: urllib.request.Request,
    model: str,
    concurrency: int,
) -> None:
    """Put all items to the model under each set that has no outcomes yet."""
    items = [Item(**item) for item in task["items"]]
    path = folder / "outcomes.jsonl"
    done = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
    sets = list(sets_of_lines([line["role"] for line in task["lines"]], count))
    with ThreadPoolExecutor(concurrency) as pool, path.open("a", encoding="utf-8") as file:
        for at, chosen in enumerate(sets[done:], done + 1):
            skill = "\n".join([task["start"], *(task["lines"][line]["text"] for line in chosen)])
            answer = partial(_answer, server, model, skill)
            answers = pool.map(answer, (item.ask for item in items))
            right = [int(said == item.gold) for said, item in zip(answers, items, strict=True)]
            file.write(json.dumps({"set": chosen, "right": right}) + "\n")
            file.flush()
            print(f"\r{at} of {len(sets)} sets", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _answer(server: urllib.request.Request, model: str, skill: str, ask: str) -> str:
    messages = [{"role": "system", "content": skill}, {"role": "user", "content": ask}]
    body = {"model": model, "messages": messages, "temperature": TEMPERATURE, "max_tokens": 60}
    data = json.dumps(body).encode()
    request = urllib.request.Request(server.full_url, data, dict(server.header_items()))
    with urllib.request.urlopen(request, timeout=300) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"]).strip()


def outcomes(folder: Path, lines: int) -> tuple[Array, Array]:
    """Return the sets (sets x lines) and what was right under them (sets x items)."""
    text = (folder / "outcomes.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    sets = np.zeros((len(rows), lines))
    for present, row in zip(sets, rows, strict=True):
        present[row["set"]] = 1
    return sets, np.array([row["right"] for row in rows], dtype=float)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.real.make_table", description=__doc__)
    parser.add_argument("folder", type=Path, help="for task.json, outcomes and emulator")
    parser.add_argument("--url", help="an OpenAI-compatible server; without it, only fit")
    parser.add_argument("--model", default="", help="the name of the model there")
    parser.add_argument("--key", default="none", help="the key of the server")
    parser.add_argument("--sets", type=int, default=SETS, help=f"default {SETS}")
    parser.add_argument("--concurrency", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    main()
