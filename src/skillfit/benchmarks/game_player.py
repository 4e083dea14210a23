"""Play a text game with a model: observation, action, observation, until it is won or the steps
are used up.

A model call that fails is a failed rollout. A reply without an action is reported to the model and
costs a step; no action is invented for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from skillfit.agents.agent import system_message
from skillfit.benchmarks.benchmark import Dialogue, ItemRow, packaged_text, required_model
from skillfit.benchmarks.game_process import Game, Move
from skillfit.errors import InputError, TaskFailure
from skillfit.extensions import PartDescription
from skillfit.models.protocol import Message, Model
from skillfit.sandbox.process import plain_environment
from skillfit.skill import Skill
from skillfit.tasks.item import Item, Score, ScoredAttempt, TrajectoryStep
from skillfit.tasks.task import Evaluator, LoadContext

_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_MOVE_SECONDS = 120.0  # for one move; opening a game may include compiling it
_MOST_UNREADABLE = 3  # replies without an action in a row


class GameRow(ItemRow):
    game: Game


def game_item(item_id: str, about: str, kind: str, game: Game) -> GameRow:
    """The row of an item. The digest of the game is part of its text, so that games that are
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
    """A process for one game; it ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "skillfit.benchmarks.game_process",
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
        system = system_message(packaged_text(Path(__file__).parent, "game_prompt.md"), skill)
        async with start_game_process() as game:
            opened = await game.exchange(item.content()["game"])
            state = await self._play(game, opened, dialogue, system)
        return ScoredAttempt(
            dialogue.attempt("won" if state.won else "not won"), self._score(state)
        )

    async def _play(
        self, game: GameProcess, state: GameState, dialogue: Dialogue, system: Message
    ) -> GameState:
        task, moves, unreadable = state.text, list[tuple[str, str]](), 0
        dialogue.steps.append(TrajectoryStep("tool_result", task, role="tool", name="game"))
        for _ in range(self.max_steps):
            if state.won or state.done:
                return state
            reply = await dialogue.ask((system, Message("user", self._show(task, moves, state))))
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
