"""TextWorld: generated text games, played with the `textworld` package.

`textworld:coin_collector` makes games of that family as they are needed and keeps them with the
prepared data; `textworld:PATH` plays the game files (.z8) in a folder. Scored by whether the game
was won; the soft score is the share of its points.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skillfit.benchmarks.benchmark import prepared
from skillfit.benchmarks.game_player import GameEvaluator, GameRow, game_item, need_engine
from skillfit.benchmarks.game_process import Game
from skillfit.errors import InputError, did_you_mean
from skillfit.tasks.load import LoadContext, SourceItems, SourceReference, TaskSource

_FOLDER = Path(__file__).with_suffix("")
# Families of games, and the settings that each of them takes with their defaults.
FAMILIES: dict[str, dict[str, int | str]] = {
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
    known = FAMILIES.get(family)
    if known is None and not path.exists():
        names = list(FAMILIES)
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
            rows = list(_files(path))
        else:
            rows = [_made(family, {**known, **settings}, seed + at) for at in range(games)]
        evaluator = GameEvaluator(
            context.model, f"textworld:{family}", max_steps, history, graded_by="score"
        )
        return SourceItems(rows, evaluator=evaluator)

    skill = str(_FOLDER / "textworld.md")
    return TaskSource(load, {"env": {"skill": skill, "exec_timeout": 1200}})


def _files(path: Path) -> Iterator[GameRow]:
    found = [path] if path.is_file() else sorted(path.glob("*.z8"))
    if not found:
        raise InputError(f"{path}: no .z8 files in this folder.")
    for file in found:
        game = Game(kind="textworld", game=str(file.resolve()))
        yield game_item(file.stem, f"A text game: {file.stem}", "", game)


def _made(family: str, settings: dict[str, int | str], seed: int) -> GameRow:
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
