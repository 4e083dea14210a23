"""alfworld and textworld: real games of the real packages, one process each."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, TaskFailure
from skillfit.models.protocol import RateLimited
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.plugins.benchmarks.games import ALFWORLD, GameEvaluator, start_game_process
from skillfit.skill import Skill
from skillfit.tasks import load_task
from skillfit.tasks.item import Item
from skillfit.tasks.rows import Row
from tests.plugins.benchmarks.agents import solver, task_line, walkthrough, wrong
from tests.plugins.benchmarks.sample_training import LESSON, Lab, sample_task, user
from tests.support.chat_server import Call

SKILL = Skill.from_text("# Play\n\nWin.\n")


@pytest.fixture
def games() -> list[Item]:
    pytest.importorskip("alfworld")
    return list(sample_task("alfworld").items)


def evaluator(script: Any, **settings: Any) -> GameEvaluator:
    return GameEvaluator(
        ScriptedModel(script), "alfworld", **{"max_steps": 8, "history": 2, **settings}
    )


async def test_a_games_walkthrough_wins_it_and_idling_does_not(games: list[Item]) -> None:
    game = next(item for item in games if item.type == "pick_clean_then_place_in_recep")
    moves = [f"<think>next</think><action>{move}</action>" for move in walkthrough(game)]
    attempt, score = await evaluator(moves)(SKILL, game, seed=1)
    assert (score.hard, score.soft, attempt.answer) == (1, 1, "won")
    assert attempt.usage.calls == len(moves)
    assert "Your task is to" in attempt.steps[0].text
    attempt, score = await evaluator(["<action>inventory</action>"] * 8)(SKILL, game, seed=1)
    assert (score.hard, attempt.answer) == (0, "not won")
    assert "Ended after 8 steps" in attempt.steps[-1].text


async def test_the_model_sees_task_possible_actions_and_its_last_moves(games: list[Item]) -> None:
    game = games[0]
    moves = walkthrough(game)
    model = ScriptedModel([f"<action>{move}</action>" for move in moves])
    await GameEvaluator(model, "alfworld", 50, 2)(SKILL, game, seed=1)
    system, first = model.requests[0].messages
    assert "Win." in system.content and "{skill}" not in system.content
    assert task_line(game) in first.content and moves[0] in first.content
    last = model.requests[-1].messages[-1].content
    assert "## Your last moves" in last and moves[-2] in last and moves[-3] in last
    shown = last.partition("## Your last moves")[2].partition("## What you see now")[0]
    assert len(re.findall(r"^\d+\. ", shown, re.MULTILINE)) == 2
    assert len({request.purpose for request in model.requests}) == len(moves)


async def test_a_reply_without_an_action_is_reported_to_the_model_and_not_replaced(
    games: list[Item],
) -> None:
    model = ScriptedModel(["I would look around.", "<action>inventory</action>", "?", "?", "?"])
    attempt, score = await GameEvaluator(model, "alfworld", 50, 2)(SKILL, games[0], seed=1)
    assert score.hard == 0
    played = [step.text for step in attempt.steps if step.kind == "tool_call"]
    assert played == ["inventory"]
    assert "Your reply had no <action>" in model.requests[1].messages[-1].content
    assert "3 replies in a row had no <action>" in attempt.steps[-1].text


async def test_a_failed_model_call_fails_the_rollout(games: list[Item]) -> None:
    script = ["<action>inventory</action>", RateLimited("later")]
    with pytest.raises(RateLimited):
        await evaluator(script)(SKILL, games[0], seed=1)


async def test_a_broken_game_is_a_failure_of_its_own_kind(tmp_path: Path) -> None:
    pytest.importorskip("alfworld")
    broken = tmp_path / "game.tw-pddl"
    broken.write_text("{}")
    item = Item("1", {"input": "x", "game": {"kind": "alfworld", "game": str(broken)}})
    with pytest.raises(TaskFailure) as raised:
        await evaluator([])(SKILL, item, seed=1)
    assert raised.value.kind == "game"


async def test_a_game_process_that_dies_is_a_failure(games: list[Item]) -> None:
    async with start_game_process() as game:
        await game.exchange(games[0].content()["game"])
        game._process.kill()
        await game._process.wait()
        with pytest.raises(TaskFailure, match="game process"):
            await game.exchange({"command": "look"})


@pytest.mark.slow
async def test_a_training_run_on_the_alfworld_sample_learns(
    games: list[Item], make_lab: Callable[..., Lab]
) -> None:
    lab = make_lab(solve=solver("alfworld"), wrong=wrong("alfworld"))
    run = await lab.train("alfworld:sample", recipe="paper", task_args={"max_steps": 10})
    assert LESSON in run.best_skill.text
    assert [verdict.decision for verdict in run.verdicts] == ["accept"]


@pytest.mark.parametrize("name", ["alfworld", "textworld"])
def test_without_the_package_games_load_and_playing_names_the_package(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if not installed
    tasks = {"alfworld": "alfworld:sample", "textworld": "textworld:simple?games=3"}[name]
    assert load_task(EnvSection(tasks=tasks)).items
    with pytest.raises(InputError, match=rf"needs the package {name}.*skillfit\[{name}\]"):
        load_task(EnvSection(tasks=tasks), model=ScriptedModel([]))


def test_alfworld_reads_the_distributed_folders(tmp_path: Path) -> None:
    for split in ("train", "valid_seen", "valid_unseen"):
        for kind in ("pick_and_place_simple-Mug-None-Desk-1", "pick_and_place-AppleSliced-None-1"):
            folder = tmp_path / "json_2.1.1" / split / kind / "trial_T1"
            folder.mkdir(parents=True)
            (folder / "traj_data.json").write_text('{"task_type": "pick_and_place_simple"}')
            (folder / "game.tw-pddl").write_text("{}")
    task = load_task(EnvSection(tasks="alfworld:json_2.1.1", folder=str(tmp_path)))
    assert [item.split for item in sorted(task.items, key=lambda item: item.id)] == [
        "train",
        "selection",
        "test",
    ]
    assert {item.type for item in task.items} == {"pick_and_place_simple"}


def test_folders_above_the_data_of_alfworld_do_not_matter(tmp_path: Path) -> None:
    data = tmp_path / "test" / "movable-Sliced" / "alfworld"
    for trial in ("train/put-1/trial_T1", "train/put-1/trial_T2", "valid_seen/put-1/trial_T3"):
        (data / trial).mkdir(parents=True)
        (data / trial / "traj_data.json").write_text('{"task_type": "put"}')
        (data / trial / "initial_state.pddl").write_text("(define)")
    items = load_task(EnvSection(tasks=f"alfworld:{data}")).items
    assert sorted((item.id, item.split) for item in items) == [
        ("train/put-1/trial_T1", "train"),
        ("train/put-1/trial_T2", "train"),
        ("valid_seen/put-1/trial_T3", "selection"),
    ]


@pytest.mark.parametrize("game", ["train/put-1/trial_T1/game.tw-pddl", "train/put-1/trial_T1"])
def test_an_alfworld_game_is_named_by_its_file_or_its_folder(game: str, tmp_path: Path) -> None:
    folder = tmp_path / "train/put-1/trial_T1"
    folder.mkdir(parents=True)
    for name in ("game.tw-pddl", "initial_state.pddl"):
        (folder / name).write_text("{}")
    row = {"id": "1", "gamefile": game, "task_type": "put"}
    assert ALFWORLD.row_id(Row(row, "here", tmp_path)) == "trial_T1"
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    (item,) = load_task(EnvSection(tasks="alfworld:rows.json", folder=str(tmp_path))).items
    assert item.input.startswith("A household task as a text game: put-1\n")


def test_alfworld_finds_games_below_alfworld_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "alf" / "json_2.1.1" / "train" / "a" / "t1"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text("{}")
    row = {"id": "train:0", "gamefile": "json_2.1.1/train/a/t1/game.tw-pddl", "task_type": "x"}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    with pytest.raises(InputError, match=r"is not in .* set ALFWORLD_DATA"):
        load_task(EnvSection(tasks="alfworld:rows.json", folder=str(tmp_path)))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "alf"))
    (item,) = load_task(EnvSection(tasks="alfworld:rows.json", folder=str(tmp_path))).items
    assert item.content()["game"]["game"] == str(folder / "game.tw-pddl")


# textworld


@pytest.mark.slow
async def test_a_generated_textworld_game_is_played_and_kept(
    make_lab: Callable[..., Lab], no_user_data: Path
) -> None:
    pytest.importorskip("textworld")

    def solve(call: Call) -> str:
        actions = user(call).partition("## Possible actions")[2]
        take = re.search(r"^take .*$", actions, re.MULTILINE)
        move = take[0] if take else re.findall(r"^go \w+$", actions, re.MULTILINE)[0]
        return f"<action>{move}</action>"

    lab = make_lab(solve=solve, wrong=lambda call: "<action>inventory</action>")
    tasks = "textworld:coin_collector?level=1&games=2&max_steps=3"
    good = await lab.evaluate(tasks, f"# Skill\n\n{LESSON}\n")
    assert good == {"skill": 1.0}
    assert len(list((no_user_data / "textworld").glob("*.z8"))) == 2
    bad = await lab.evaluate(tasks, "# Skill\n\nNothing.\n")
    assert bad == {"skill": 0.0}
    files = load_task(EnvSection(tasks=f"textworld:{no_user_data / 'textworld'}"))
    assert len(files.items) == 2 and files.evaluator is not None


def test_textworld_options_are_checked() -> None:
    task = load_task(EnvSection(tasks="textworld:treasure_hunter?level=2&games=30"))
    assert len(task.items) == 30 and len(task.train) == 12
    with pytest.raises(InputError, match=r"textworld:coin_collector has no option 'levle'"):
        load_task(EnvSection(tasks="textworld:coin_collector?levle=2"))
    with pytest.raises(InputError, match=r"no such family.*Did you mean 'cooking'"):
        load_task(EnvSection(tasks="textworld:cookng"))
