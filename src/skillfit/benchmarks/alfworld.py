"""ALFWorld: household tasks as text games, played with the `alfworld` package.

Rows: `id`, `gamefile` (`…/game.tw-pddl`, or the folder with `initial_state.pddl` and
`traj_data.json`), `task_type`. Relative paths start from the row's folder, from `data_root`, or
from ALFWORLD_DATA. Scored by whether the game was won.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from skillfit.benchmarks.benchmark import (
    Benchmark,
    PublishedFile,
    data_root_of,
    find_in_data,
    optional,
    read_any,
    skillopt_splits,
    text,
)
from skillfit.benchmarks.game_player import GameEvaluator, GameRow, game_item, need_engine
from skillfit.benchmarks.game_process import Game
from skillfit.errors import InputError
from skillfit.extensions import SourceReference, TaskSource
from skillfit.tasks.item import Split
from skillfit.tasks.rows import Row
from skillfit.tasks.splits import SPLIT_NAMES
from skillfit.tasks.task import LoadContext, SourceItems

_RELEASES = "https://github.com/alfworld/alfworld/releases/download"


def read(path: Path) -> Iterator[Row]:
    """Every game in folders train/, valid_seen/ and valid_unseen/ as alfworld distributes them."""
    games = sorted(path.rglob("traj_data.json")) if path.is_dir() else []
    for file in games:
        # Games with movable receptacles or sliced objects are not supported by the text engine.
        if "movable" in str(file) or "Sliced" in str(file):
            continue
        game = file.with_name("game.tw-pddl")
        values = {
            "id": str(file.parent.relative_to(path)),
            "gamefile": str(game if game.is_file() else file.parent),
            "task_type": json.loads(file.read_bytes()).get("task_type", ""),
        }
        yield Row(values, str(file), path, split=_split_of(file))
    if not games:
        yield from read_any(path)


def _split_of(file: Path) -> Split | None:
    return next((SPLIT_NAMES[part] for part in file.parts if part in SPLIT_NAMES), None)


BENCHMARK = Benchmark(
    name="alfworld",
    title="ALFWorld: household tasks as text games",
    homepage="https://github.com/alfworld/alfworld",
    licence="MIT",
    folder=Path(__file__).with_suffix(""),
    downloads=(
        PublishedFile(f"{_RELEASES}/0.4.0/json_2.1.2_tw-pddl.zip"),
        PublishedFile(f"{_RELEASES}/0.2.2/json_2.1.1_json.zip"),
    ),
    splits=skillopt_splits("alfworld_path_split", 39, 18, 134),
    read=read,
    row_id=lambda row: Path(text(row, "gamefile")).parent.name,
)


def alfworld(
    reference: SourceReference, *, max_steps: int = 50, history: int = 2, data_root: str = ""
) -> TaskSource:
    """`max_steps`: moves per game. `history`: earlier moves that the model sees at each step."""
    if max_steps < 1 or history < 0:
        raise InputError("env.task_args: max_steps must be positive, history not negative.")
    named = data_root or os.environ.get("ALFWORLD_DATA", "")
    root = data_root_of(reference, named)

    def convert(row: Row) -> GameRow:
        game = _find(row, text(row, "gamefile"), root)
        kind = optional(row, "task_type")
        about = f"A household task as a text game: {game.parent.parent.name or kind}"
        return game_item(text(row, "id"), about, kind, Game(kind="alfworld", game=str(game)))

    def how(context: LoadContext) -> SourceItems:
        need_engine("alfworld", context)
        evaluator = GameEvaluator(context.model, "alfworld", max_steps, history)
        return SourceItems((), evaluator=evaluator)

    return BENCHMARK.source(reference, convert, how=how)


def _find(row: Row, name: str, root: Path | None) -> Path:
    found = find_in_data(row, (name,)) or (find_in_data(row, (name,), root) if root else None)
    if found is not None and (found.is_file() or (found / "initial_state.pddl").is_file()):
        return found
    raise InputError(
        f"{row.where}: the game {name} is not in {row.root}{f' or {root}' if root else ''}.",
        hint="Run `skillfit data get alfworld`, or set ALFWORLD_DATA to the folder that holds it.",
    )
