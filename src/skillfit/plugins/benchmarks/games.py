"""Text games: ALFWorld and TextWorld, played by a model.

- ALFWorld: household tasks, played with the `alfworld` package.
- TextWorld: generated games, played with the `textworld` package. `textworld:coin_collector` makes
  games of that family as they are needed and keeps them with the prepared data; `textworld:PATH`
  plays the game files (.z8) in a folder. Scored by whether the game was won; the soft score is the
  share of its points.

A game is played in a process of its own (game_process.py): observation, action, observation, until
it is won or the steps are used up. A model call that fails is a failed rollout. A reply without an
action is reported to the model and costs a step; no action is invented for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from skillfit.agents.agent import system_messages
from skillfit.errors import InputError, TaskFailure, did_you_mean
from skillfit.extensions import PartDescription, SourceReference, TaskSource
from skillfit.models.protocol import Message, Model
from skillfit.plugins.benchmarks.benchmark import (
    Benchmark,
    Dialogue,
    ItemRow,
    PublishedFile,
    data_root_of,
    find_in_data,
    optional,
    packaged_text,
    prepared,
    read_any,
    required_model,
    skillopt_splits,
    text,
)
from skillfit.plugins.benchmarks.game_process import Game, Move
from skillfit.sandbox.programs import plain_environment
from skillfit.skill import Skill
from skillfit.tasks.item import Item, Score, ScoredAttempt, Split, TrajectoryStep
from skillfit.tasks.rows import Row
from skillfit.tasks.splits import SPLIT_NAMES
from skillfit.tasks.task import Evaluator, LoadContext, SourceItems

_HERE = Path(__file__).parent
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_MOVE_SECONDS = 120.0  # for one move; opening a game may include compiling it
_MOST_UNREADABLE = 3  # replies without an action in a row

_ALFWORLD_RELEASES = "https://github.com/alfworld/alfworld/releases/download"


def _alfworld_rows(path: Path) -> Iterator[Row]:
    """Yield every game in folders train/, valid_seen/ and valid_unseen/ as alfworld distributes
    them.
    """
    games = sorted(path.rglob("traj_data.json")) if path.is_dir() else []
    for file in games:
        trial = file.parent.relative_to(path)
        # Games with movable receptacles or sliced objects are not supported by the text engine.
        if "movable" in str(trial) or "Sliced" in str(trial):
            continue
        game = file.with_name("game.tw-pddl")
        values = {
            "id": str(trial),
            "gamefile": str(game if game.is_file() else file.parent),
            "task_type": json.loads(file.read_bytes()).get("task_type", ""),
        }
        yield Row(values, str(file), path, split=_split_of(trial))
    if not games:
        yield from read_any(path)


def _split_of(trial: Path) -> Split | None:
    return next((SPLIT_NAMES[part] for part in trial.parts if part in SPLIT_NAMES), None)


def _trial_folder(game: Path) -> Path:
    """Return the folder of a game, which a row names itself or by the file game.tw-pddl in it."""
    return game.parent if game.suffix == ".tw-pddl" else game


ALFWORLD = Benchmark(
    name="alfworld",
    title="ALFWorld: household tasks as text games",
    homepage="https://github.com/alfworld/alfworld",
    licence="MIT",
    folder=_HERE / "alfworld",
    downloads=(
        PublishedFile(f"{_ALFWORLD_RELEASES}/0.4.0/json_2.1.2_tw-pddl.zip"),
        PublishedFile(f"{_ALFWORLD_RELEASES}/0.2.2/json_2.1.1_json.zip"),
    ),
    splits=skillopt_splits("alfworld_path_split", 39, 18, 134),
    read=_alfworld_rows,
    row_id=lambda row: _trial_folder(Path(text(row, "gamefile"))).name,
)
"""Rows: `id`, `gamefile` (`…/game.tw-pddl`, or the folder with `initial_state.pddl` and
`traj_data.json`), `task_type`. Relative paths start from the row's folder, from `data_root`, or
from ALFWORLD_DATA. Scored by whether the game was won.
"""


def alfworld(
    reference: SourceReference, *, max_steps: int = 50, history: int = 2, data_root: str = ""
) -> TaskSource:
    """`max_steps`: moves per game. `history`: earlier moves that the model sees at each step."""
    if max_steps < 1 or history < 0:
        raise InputError("env.task_args: max_steps must be positive, history not negative.")
    named = data_root or os.environ.get("ALFWORLD_DATA", "")
    root = data_root_of(reference, named)

    def convert(row: Row) -> GameRow:
        game = _find_game(row, text(row, "gamefile"), root)
        kind = optional(row, "task_type")
        about = f"A household task as a text game: {_trial_folder(game).parent.name or kind}"
        return game_item(text(row, "id"), about, kind, Game(kind="alfworld", game=str(game)))

    def how(context: LoadContext) -> SourceItems:
        need_engine("alfworld", context)
        evaluator = GameEvaluator(context.model, "alfworld", max_steps, history)
        return SourceItems((), evaluator=evaluator)

    return ALFWORLD.source(reference, convert, how=how)


def _find_game(row: Row, name: str, root: Path | None) -> Path:
    found = find_in_data(row, (name,)) or (find_in_data(row, (name,), root) if root else None)
    if found is not None and (found.is_file() or (found / "initial_state.pddl").is_file()):
        return found
    raise InputError(
        f"{row.where}: the game {name} is not in {row.root}{f' or {root}' if root else ''}.",
        hint="Run `skillfit data get alfworld`, or set ALFWORLD_DATA to the folder that holds it.",
    )


# Families of games, and the settings that each of them takes with their defaults.
_TEXTWORLD_FAMILIES: dict[str, dict[str, int | str]] = {
    "coin_collector": {"level": 3},
    "treasure_hunter": {"level": 3},
    "simple": {"rewards": "dense", "goal": "detailed", "test": False},
    "cooking": {
        "recipe": 1,
        "take": 1,
        "go": 1,
        "open": False,
        "cook": False,
        "cut": False,
        "drop": False,
        "recipe_seed": 0,
        "split": "train",
    },
}


def textworld(
    reference: SourceReference,
    *,
    games: int = 40,
    seed: int = 1,
    max_steps: int = 50,
    history: int = 4,
    **settings: int | str,
) -> TaskSource:
    """`games`: how many to make, with seeds from `seed` on. Other options are those of the family
    of games, for example `textworld:coin_collector?level=5`.
    """
    family = reference.argument
    path = reference.base / family
    known = _TEXTWORLD_FAMILIES.get(family)
    if known is None and not path.exists():
        names = list(_TEXTWORLD_FAMILIES)
        raise InputError(
            f"env.tasks: textworld:{family}: no such family of games, file or folder.",
            hint=did_you_mean(family, names) or f"Families: {', '.join(names)}.",
        )
    for name in settings:
        if known is None or name not in known:
            allowed = ", ".join(known) if known else "none"
            raise InputError(
                f"env.tasks: textworld:{family} has no option {name!r}.",
                hint=f"Its own options: {allowed}; for all games: games, seed, max_steps, history.",
            )

    def load(context: LoadContext) -> SourceItems:
        need_engine("textworld", context)
        if known is None:
            rows = list(_game_files(path))
        else:
            rows = [_made_game(family, {**known, **settings}, seed + at) for at in range(games)]
        evaluator = GameEvaluator(
            context.model, f"textworld:{family}", max_steps, history, graded_by="score"
        )
        return SourceItems(rows, evaluator=evaluator)

    skill = str(_HERE / "textworld" / "textworld.md")
    return TaskSource(load, {"env": {"skill": skill, "exec_timeout": 1200}})


def _game_files(path: Path) -> Iterator[GameRow]:
    found = [path] if path.is_file() else sorted(path.glob("*.z8"))
    if not found:
        raise InputError(f"{path}: no .z8 files in this folder.")
    for file in found:
        game = Game(kind="textworld", game=str(file.resolve()))
        yield game_item(file.stem, f"A text game: {file.stem}", "", game)


def _made_game(family: str, settings: dict[str, int | str], seed: int) -> GameRow:
    options = "-".join(f"{name}_{value}" for name, value in sorted(settings.items()))
    name = f"{family}-{options}-seed_{seed}"
    game = Game(
        kind="textworld",
        game=str(prepared("textworld") / f"{name}.z8"),
        challenge=f"tw-{family}",
        settings=settings,
        seed=seed,
    )
    return game_item(f"{family}-{seed}", f"A text game of the family {family}", family, game)


class GameRow(ItemRow):
    game: Game


def game_item(item_id: str, about: str, kind: str, game: Game) -> GameRow:
    """Return the row of an item. The digest of the game is part of its text, so that games that are
    described with the same words do not count as copies of each other.
    """
    digest = hashlib.sha256(f"{item_id}/{json.dumps(game, sort_keys=True)}".encode()).hexdigest()
    groups = " ".join(digest[at : at + 5] for at in range(0, 40, 5))
    return {"id": item_id, "type": kind, "input": f"{about}\n\nGame {groups}", "game": game}


def need_engine(package: str, context: LoadContext) -> None:
    """Raise an error when games are to be played and their package is not installed. Reading and
    preparing them needs no package.
    """
    if context.model is not None and find_spec(package) is None:
        raise InputError(
            f"Playing the games needs the package {package}.",
            hint=f"pip install 'skillfit[{package}]'",
        )


@dataclass(frozen=True, slots=True)
class GameState:
    text: str
    admissible: tuple[str, ...]
    won: bool
    done: bool
    score: float
    max_score: float


class GameProcess:
    """A process that plays one game. Use `start_game_process`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def exchange(self, request: Game | Move) -> GameState:
        """Send the game to open or a move, and read the state. Raises `TaskFailure` when the game
        breaks.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
            line = await asyncio.wait_for(self._process.stdout.readline(), _MOVE_SECONDS)
        except TimeoutError:
            raise TaskFailure(
                "game", f"the game did not answer within {_MOVE_SECONDS:g} s."
            ) from None
        except OSError as error:
            raise TaskFailure("game", f"the game process is gone: {error}.") from error
        if not line:
            raise TaskFailure("game", "the game process ended without an answer.")
        answer = json.loads(line)
        if "error" in answer:
            raise TaskFailure("game", str(answer["error"]))
        return GameState(**{**answer, "admissible": tuple(answer["admissible"])})


@asynccontextmanager
async def start_game_process() -> AsyncIterator[GameProcess]:
    """Yield a process for one game; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "skillfit.plugins.benchmarks.game_process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=plain_environment(),
        start_new_session=True,
        limit=1 << 24,
    )
    try:
        yield GameProcess(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@dataclass(frozen=True)
class GameEvaluator(Evaluator):
    """Plays the game that an item's column `game` describes."""

    needs_model: ClassVar[bool] = True

    model: Model | None
    name: str
    max_steps: int
    history: int  # earlier moves that the model sees
    graded_by: str = "won"  # won, or score: the soft score is the share of the game's points

    async def __call__(self, skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        dialogue = Dialogue(required_model(self.model, self.name), item, seed)
        system = system_messages(packaged_text(_HERE, "game_prompt.md"), skill)
        async with start_game_process() as game:
            opened = await game.exchange(item.content()["game"])
            state = await self._play(game, opened, dialogue, system)
        return ScoredAttempt(
            dialogue.attempt("won" if state.won else "not won"), self._score(state)
        )

    async def _play(
        self, game: GameProcess, state: GameState, dialogue: Dialogue, system: tuple[Message, ...]
    ) -> GameState:
        task, moves, unreadable = state.text, list[tuple[str, str]](), 0
        dialogue.steps.append(TrajectoryStep("tool_result", task, role="tool", name="game"))
        for _ in range(self.max_steps):
            if state.won or state.done:
                return state
            reply = await dialogue.ask((*system, Message("user", self._show(task, moves, state))))
            actions = _ACTION.findall(reply.text)
            if not actions:
                unreadable += 1
                if unreadable == _MOST_UNREADABLE:
                    dialogue.note(f"Ended: {unreadable} replies in a row had no <action>.")
                    return state
                moves.append(("(no action)", "Your reply had no <action>...</action>."))
                continue
            unreadable = 0
            action = " ".join(actions[-1].split())
            dialogue.steps.append(TrajectoryStep("tool_call", action, name="action"))
            state = await game.exchange({"command": action})
            moves.append((action, state.text))
            dialogue.steps.append(
                TrajectoryStep("tool_result", state.text, role="tool", name="action")
            )
        if not state.won:
            dialogue.note(f"Ended after {self.max_steps} steps.")
        return state

    def _show(self, task: str, moves: list[tuple[str, str]], state: GameState) -> str:
        parts = [f"## Game\n\n{task}"]
        if recent := moves[-self.history :] if self.history else []:
            first = len(moves) - len(recent) + 1
            shown = [
                f"{number}. {action}\n{text}" for number, (action, text) in enumerate(recent, first)
            ]
            parts.append("## Your last moves\n\n" + "\n\n".join(shown))
        if moves:
            parts.append(f"## What you see now\n\n{state.text}")
        if state.admissible:
            parts.append("## Possible actions\n\n" + "\n".join(state.admissible))
        parts.append(f"This is step {len(moves) + 1} of at most {self.max_steps}.")
        return "\n\n".join(parts)

    def _score(self, state: GameState) -> Score:
        hard = float(state.won)
        soft = hard
        if self.graded_by == "score" and state.max_score > 0 and not state.won:
            soft = max(0.0, min(1.0, state.score / state.max_score))
        return Score(hard, soft, "" if state.won else "The goal of the game was not reached.")

    def describe(self) -> PartDescription:
        return {
            "game": self.name,
            "max_steps": self.max_steps,
            "history": self.history,
            "graded_by": self.graded_by,
            "model": self.model.id if self.model else "",
        }
