"""`skillfit trigger`: does a skill fire where it should, and only there?"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from skillfit.atomic_write import write_whole
from skillfit.cli.draft import (
    About,
    MostUsd,
    ask_writer,
    draft_folder,
    refuse_overwriting,
    spent_on_drafts,
    writer_of,
)
from skillfit.cli.evaluate import evaluate_in_terminal, run_of_model
from skillfit.cli.init import given_setting
from skillfit.cli.output import Json, Overrides, relative_to_here, rich_table, shell_line, show
from skillfit.cli.train import (
    QUICK_ROLLOUTS,
    RunOption,
    Wait,
    config_inputs,
    show_result,
    train_in_terminal,
)
from skillfit.errors import Exit, InputError
from skillfit.plain_text import dollars, quantity

if TYPE_CHECKING:
    from skillfit.models.json_text import JsonObject
    from skillfit.run.budget import Budget
    from skillfit.training.inputs import Inputs


class _MeasureByDefault(TyperGroup):
    """`skillfit trigger SKILL …` is `skillfit trigger measure SKILL …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["measure", *args]
        return super().parse_args(ctx, args)


trigger_app = typer.Typer(
    cls=_MeasureByDefault,
    help="Does a skill fire? `skillfit trigger SKILL …` measures it.",
    no_args_is_help=True,
    add_completion=False,
)


@trigger_app.callback()
def _group() -> None:
    """Measure whether a skill fires: do queries that should make an agent read it do so, and no
    others? `skillfit trigger SKILL …` is short for `skillfit trigger measure SKILL …`.
    """


@trigger_app.command("measure")
def measure_command(
    skill: Annotated[Path, typer.Argument(help="The skill's folder or SKILL.md.")],
    queries: Annotated[
        Path, typer.Option(help='JSON or JSONL: [{"query": "…", "should_trigger": true}].')
    ],
    model: Annotated[
        list[str],
        typer.Option(
            help="cli/claude, cli/codex, …: the real program. Any other model is asked which skill "
            "it would read, a simulation. May be given again."
        ),
    ],
    overrides: Overrides = None,
    beside: Annotated[
        Path | None, typer.Option(help="A folder of other skills, to be installed beside it.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rollouts of each query.")] = 3,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Improve the description on one half of the queries, and prove it on the other.",
        ),
    ] = False,
    optimizer: Annotated[
        str, typer.Option(help="With --train: the model that improves the description.")
    ] = "",
    rollouts: Annotated[
        int, typer.Option(min=1, help="With --train: rollouts of the whole run.")
    ] = QUICK_ROLLOUTS,
    run: RunOption = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Measure whether a skill fires. Each query is put to the agent with the skill and its
    neighbours installed and nothing mentioned. Prints recall, precision, and what was read instead.

    Example: skillfit trigger ./pdf-forms --queries queries.json --model cli/claude
    --beside ~/.claude/skills
    """
    places = {"skill": skill, "queries": queries, "beside": beside}
    arguments = {name: str(path) for name, path in places.items() if path is not None}
    env: JsonObject = {"tasks": "trigger", "task_args": arguments}
    if train and optimizer and len(model) == 1:
        models = {"agent": given_setting(model[0]), "optimizer": given_setting(optimizer)}
        config: JsonObject = {"model": models, "env": env, "budget": {"rollouts": rollouts}}
        _train(config_inputs(config, overrides), run, as_json, wait)
    elif train:
        problem = "--train works with one --model" if optimizer else "--train needs --optimizer"
        raise InputError(
            f"{problem}.", hint="For example: --model cli/claude --optimizer anthropic/claude-opus"
        )
    elif optimizer:
        raise InputError("--optimizer is for --train.", hint="Add --train.")
    else:
        _measure(env, model, overrides or [], repeats, run, as_json)


@trigger_app.command("draft")
def draft_queries_command(
    skill: Annotated[Path, typer.Argument(help="The skill's folder or SKILL.md.")],
    model: Annotated[
        str,
        typer.Option(
            help="The model that writes the queries; `handoff` writes a prompt as a file and needs "
            "no key."
        ),
    ],
    beside: Annotated[
        Path | None, typer.Option(help="A folder of other skills, for queries that they are for.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("queries.json"),
    count: Annotated[int, typer.Option(min=2, max=100, help="How many queries.")] = 40,
    about: About = "",
    usd: MostUsd = 1.0,
    as_json: Json = False,
) -> None:
    """Propose queries for a skill, near misses included, each with a reason. Review the file before
    you measure with it.

    Example: skillfit trigger draft ./pdf-forms --model openai/gpt-5
    """
    from skillfit.plugins.trigger.drafts import draft_queries
    from skillfit.plugins.trigger.source import checked_skill, neighbours

    refuse_overwriting(out)
    loaded = checked_skill(skill)
    others = neighbours(beside, skill, loaded.name) if beside else ()
    ask = partial(draft_queries, skill=loaded, others=others, count=count, about=about)
    with draft_folder(out) as folder:
        drafts = ask_writer(folder, writer_of(model), usd, quantity(count, "query", "queries"), ask)
        cost = spent_on_drafts(folder).usd
    rows = [one.model_dump() for one in drafts]
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    write_whole(out, f"[\n{lines}\n]\n".encode())
    should = sum(one.should_trigger for one in drafts)
    after = ["trigger", skill, "--queries", out, "--model", "cli/claude"]
    after += ["--beside", beside] if beside else []
    told = [
        f"Wrote {quantity(len(drafts), 'query', 'queries')} to {out}: {should} should trigger "
        f"{loaded.name}, {len(drafts) - should} should not{f' ({dollars(cost)})' if cost else ''}.",
        "Read them and correct should_trigger where you decide otherwise. Then:",
        f"  {shell_line(*after)}",
    ]
    show({"queries": str(out), "written": len(drafts), "usd": cost}, "\n".join(told), as_json)


def _train(inputs: Inputs, run: Path | None, as_json: bool, wait: bool) -> None:
    from skillfit.api import default_run_path

    path = run or default_run_path(inputs)
    show_result(train_in_terminal(inputs, path, as_json=as_json, wait=wait), as_json)


def _measure(
    env: JsonObject,
    models: list[str],
    overrides: list[str],
    repeats: int,
    run: Path | None,
    as_json: bool,
) -> None:
    from skillfit.api import default_run_path
    from skillfit.plugins.trigger.firing import COLUMNS, TriggerResult, notes, result_of

    budgets: list[Budget] = []  # the caps hold for all models together
    results: list[TriggerResult] = []
    for name in models:
        config: JsonObject = {"model": {"agent": given_setting(name)}, "env": env}
        inputs = config_inputs(config, overrides, training=False)
        agent = inputs.config.model.agent
        assert agent is not None
        path = run or default_run_path(inputs, "trigger")
        if run and len(models) > 1:
            path = run_of_model(run, agent.id)
        (measured,) = evaluate_in_terminal(
            inputs,
            {inputs.skill.name: inputs.skill},
            path,
            split="all",
            repeats=repeats,
            budgets=budgets,
        )
        results.append(result_of(measured, agent.id, simulated=not agent.is_cli, run=path))
    show(results, rich_table(COLUMNS, (one.cells for one in results)), as_json)
    for one in results:
        if not as_json:
            report = shell_line("report", relative_to_here(Path(one.run)))
            heading = f"\n{one.model}\n" if len(results) > 1 else ""
            show(one, f"{heading}{notes(one)}\nEvery answer: {report}", as_json)
    if not all(one.scored for one in results):
        raise typer.Exit(int(Exit.INFRASTRUCTURE))
