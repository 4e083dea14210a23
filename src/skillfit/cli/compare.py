"""The command `compare`: ways to get a skill, side by side at equal rollouts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skillfit.atomic_write import write_whole
from skillfit.cli.evaluate import evaluate_in_terminal
from skillfit.cli.interrupts import run_in_terminal
from skillfit.cli.output import Json, Overrides, console, plain_json, rich_table, show
from skillfit.cli.train import (
    ConfigFile,
    RunOption,
    Wait,
    await_answers,
    config_inputs,
    train_in_terminal,
)
from skillfit.errors import Exit

if TYPE_CHECKING:
    from skillfit.plugins.compare.peers import Peer, PeerResult
    from skillfit.training.inputs import Inputs

_RESULTS = "comparison"  # the name of the files with the results, without their endings


def compare_command(
    config: ConfigFile,
    overrides: Overrides = None,
    rollouts: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Rollouts of each way; may be given again. Default: 150."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of each way.")] = 1,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="no-skill, initial, one-shot, best-of, paper, train, train:PROPOSER, or one of "
            "the packages gepa and skillopt; may be given again. Default: the first six."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Rollouts per test item and skill, at the end.")
    ] = 2,
    run: RunOption = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Compare ways to get a skill on your tasks and models, at equal rollouts: no skill, the
    initial skill, rewrites by the optimizer, SkillOpt's rule, skillfit, and other optimizers.
    Writes a table and a figure; the same command continues where it stopped.

    Example: skillfit compare skillfit.yaml --rollouts 60 --rollouts 150 --seeds 2 budget.usd=5
    """
    from skillfit.api import default_run_path
    from skillfit.plugins.compare.comparison import Effects, compare
    from skillfit.plugins.compare.results import COLUMNS, cells, figure, markdown, notes
    from skillfit.plugins.compare.results import as_json as json_of
    from skillfit.plugins.compare.ways import NAMES, ways_named

    ways, own = ways_named(way or NAMES), tuple(overrides or ())
    notice = console(stderr=True)
    if not way:
        notice.print(
            "Not compared unless asked for: --way gepa, --way skillopt (other packages) and "
            "--way train:PROPOSER.",
            markup=False,
            soft_wrap=True,
        )
    base = config_inputs(config, own)
    folder = run or default_run_path(base, "compare")
    comparison = compare(
        Effects(
            inputs=lambda settings, given: config_inputs(config, [*own, *settings], given=given),
            train=lambda inputs, path: train_in_terminal(inputs, path, plain=True, wait=wait),
            measure=evaluate_in_terminal,
            let_peer_find=partial(_peer_in_terminal, wait=wait),
        ),
        folder,
        ways,
        sorted(set(rollouts or (150,))),
        range(seeds),
        repeats=repeats,
        say=lambda text: notice.print(text, markup=False, soft_wrap=True),
    )
    data = json_of(comparison, base.config)
    for ending, text in (
        ("json", json.dumps(data, default=plain_json, indent=1) + "\n"),
        ("md", markdown(comparison)),
        ("svg", figure(comparison)),
    ):
        write_whole(folder / f"{_RESULTS}.{ending}", text.encode())
    show(data, rich_table(COLUMNS[:6], (cells(row)[:6] for row in comparison.rows)), as_json)
    if not as_json:
        where = f"Table, figure and JSON: {folder / _RESULTS}.md, .svg, .json"
        show(data, f"{notes(comparison)}\n{where}", as_json)
    if comparison.failed:
        raise typer.Exit(int(Exit.INFRASTRUCTURE))


def _peer_in_terminal(
    inputs: Inputs, peer: Peer, rollouts: int, path: Path, *, wait: bool
) -> PeerResult:
    """Let another optimizer find a skill. With `wait` it continues as soon as its handoff prompts
    have their answers.
    """
    from skillfit.cli.terminal import CountingTerminal
    from skillfit.models.protocol import AnswerPending
    from skillfit.plugins.compare.peers import find_skill

    def attempt() -> PeerResult:
        terminal = CountingTerminal(console(stderr=True))
        return run_in_terminal(
            terminal,
            lambda control: find_skill(
                inputs, peer, rollouts, path, listeners=[terminal], control=control
            ),
        )

    while True:
        try:
            return attempt()
        except AnswerPending as waiting:
            await_answers(path, waiting, wait=wait)


COMMANDS = (compare_command,)
