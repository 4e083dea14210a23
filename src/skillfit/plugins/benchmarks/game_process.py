"""A program that runs one text game: `python -m skillfit.plugins.benchmarks.game_process`.

It reads one JSON object per line: first the game to open, then {"command": "go north"} for each
move. It answers each with the state as one line of JSON, or with {"error": …} and ends. The game
engines may write to standard output, so the answers go to a copy of it that only this program uses.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict


class Game(TypedDict):
    """Which game to play. Games of textworld whose file does not exist are made first, from the
    last three values.
    """

    kind: Literal["alfworld", "textworld"]
    game: str  # the file, or for alfworld the folder
    challenge: NotRequired[str]
    settings: NotRequired[dict[str, int | str]]
    seed: NotRequired[int]


class Move(TypedDict):
    command: str


class GameAnswer(TypedDict):
    """What this program answers: the state that the player sees."""

    text: str
    admissible: list[str]
    won: bool
    done: bool
    score: float
    max_score: float


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        game = None
        for line in sys.stdin:
            request = json.loads(line)
            game = _open(request) if game is None else game.act(request["command"])
            print(json.dumps(game.state()), file=answers, flush=True)
    except Exception as error:  # noqa: BLE001  # reported to the parent
        failure = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(failure), file=answers, flush=True)


class TextworldGame:
    """A game of the textworld package."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._state = environment.reset()
        self._done = False

    def act(self, command: str) -> TextworldGame:
        self._state, _, self._done = self._environment.step(command)
        return self

    def state(self) -> GameAnswer:
        state = self._state
        return {
            "text": _plain(str(state.feedback or "")),
            "admissible": sorted(set(state.admissible_commands or [])),
            "won": bool(state.won),
            "done": bool(self._done),
            "score": float(state.get("score") or 0),
            "max_score": float(state.get("max_score") or 0),
        }


def _open(request: Game) -> TextworldGame:
    import textworld

    wanted = textworld.EnvInfos(
        feedback=True, admissible_commands=True, won=True, score=True, max_score=True
    )
    if request["kind"] == "alfworld":
        return TextworldGame(_alfworld(Path(request["game"]), wanted))
    path = Path(request["game"])
    if not path.is_file():
        _generate(path, request["challenge"], request["settings"], request["seed"])
    return TextworldGame(textworld.start(str(path), wanted))


def _alfworld(game: Path, wanted: Any) -> Any:
    """Return a game file, or a folder with the files that alfworld makes game files from."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    if game.is_file():
        return textworld.start(str(game), wanted, wrappers=[AlfredDemangler()])
    with tempfile.TemporaryDirectory(prefix="skillfit-game-") as folder:
        path = Path(folder) / "game.tw-pddl"
        path.write_text(json.dumps(_game_data(game)), encoding="utf-8")
        return textworld.start(str(path), wanted, wrappers=[AlfredDemangler()])


def _game_data(folder: Path) -> dict[str, str]:
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    trajectory = json.loads((folder / "traj_data.json").read_bytes())
    task = str(trajectory["turk_annotations"]["anns"][0]["task_desc"]).strip().rstrip(".")
    grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8")
    return {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": grammar.replace("UNKNOWN GOAL", task),
        "pddl_problem": (folder / "initial_state.pddl").read_text(encoding="utf-8"),
    }


def _generate(path: Path, challenge: str, settings: dict[str, int | str], seed: int) -> None:
    """Make and compile a game of one of textworld's families; it appears whole or not at all."""
    import textworld
    from textworld.challenges import CHALLENGES

    options = textworld.GameOptions()
    options.seeds = seed
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        options.path = str(Path(folder) / path.name)
        _, make, _ = CHALLENGES[challenge]
        compiled = textworld.generator.compile_game(make(settings, options), options)
        for made in Path(folder).iterdir():
            if made.suffix in (".z8", ".json"):
                made.replace(path.parent / made.name)
        assert Path(compiled).name == path.name


def _plain(text: str) -> str:
    """Remove the status line that Z-machine games print at the right margin."""
    lines = [line.rstrip() for line in text.splitlines()]
    kept = [line for line in lines if not (line.startswith(">") and "-=" in line)]
    return "\n".join(kept).strip().removesuffix(">").strip()


if __name__ == "__main__":
    main()
