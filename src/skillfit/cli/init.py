"""The first project: `init` makes it from a skill and a tasks file, without overwriting anything;
`demo` trains a small skill that comes with skillfit; `data` prepares the data of a benchmark.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from skillfit.cli.output import (
    Json,
    console,
    relative_path,
    relative_to_here,
    result_text,
    rich_table,
    shell_line,
    show,
)
from skillfit.errors import InputError, near_file
from skillfit.plain_text import quantity, shorten, visible

if TYPE_CHECKING:
    from skillfit.config.schema import GraderSetting
    from skillfit.models.json_text import JsonObject
    from skillfit.plugins.benchmarks.prepare import Prepared
    from skillfit.tasks.recognise import RecognisedEnv, RecognisedTasks


_BenchmarkName = Annotated[str, typer.Argument(help="The benchmark, for example searchqa.")]
_CONFIG_NAME = "skillfit.yaml"
_JUDGE_NOTE = (
    "This grader asks a judge: model.judge is set to the model that uses the skill. Set it to "
    "another model if you can, because a model rates its own answers too high."
)
_SKILL_TEMPLATE = """\
---
name: {name}
description: Say in a sentence or two what this skill does and when to use it.
---

# {title}

Say how the work is done.
"""


def init_command(
    folder: Annotated[Path, typer.Argument(help="Where to put the project.")] = Path(),
    skill: Annotated[
        Path | None, typer.Option(help="An existing skill; without one, a template is written.")
    ] = None,
    tasks: Annotated[
        Path | None, typer.Option(help="An existing tasks file; without one, a template.")
    ] = None,
    agent: Annotated[str, typer.Option(help="The model that uses the skill.")] = "",
    optimizer: Annotated[str, typer.Option(help="The model that improves it.")] = "",
    grader: Annotated[
        str, typer.Option(help="How answers are graded; default: proposed from the answers.")
    ] = "",
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            help="A column: input=COLUMN, answers=COLUMN; may be given again.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a project. Reads your tasks file, shows three rows as the agent will get them, proposes
    a grader and tries it. Never overwrites a file.

    Example: skillfit init --skill ./my-skill --tasks ./tasks.csv
    """
    from skillfit.skill import Skill
    from skillfit.tasks.recognise import needs_judge
    from skillfit.tasks.template import TASKS

    asking = sys.stdin.isatty() and not as_json
    agent = agent or _ask("Model that uses the skill", "openai/gpt-5-mini", asking)
    optimizer = optimizer or _ask("Model that improves it", "openai/gpt-5", asking)
    for model in (agent, optimizer):
        _refuse_unknown_model(model)
    tasks = tasks or _own_evals(skill)
    fields = _parse_fields(field or ())
    if fields and tasks is None:
        raise InputError("--field is for a tasks file.", hint="Give it with --tasks.")
    found = _recognise_tasks(tasks, fields, grader, folder) if tasks is not None else None
    files: dict[Path, str] = {}
    if skill is None:
        skill = folder / "my-skill"
        files[skill / "SKILL.md"] = _SKILL_TEMPLATE.format(name="my-skill", title="My skill")
    else:
        Skill.load(skill)  # refuses a path that is no skill
    env: RecognisedEnv = {"skill": relative_path(skill, folder)}
    if tasks is None or found is None:
        files[folder / "tasks.jsonl"] = "".join(f"{json.dumps(row)}\n" for row in TASKS)
        chosen = given_setting(grader) if grader else "exact"
        env |= {"tasks": "./tasks.jsonl", "grader": chosen}
        judged = needs_judge(chosen, folder)
    else:
        env |= {**found.env, "tasks": relative_path(tasks, folder)}
        judged = found.grader.needs_judge
    config = folder / _CONFIG_NAME
    files[config] = _config_text(agent, optimizer, env, judged)
    _write_new(files)
    data = InitJson(
        written=[str(path) for path in files],
        config=str(config),
        grader=env.get("grader"),
        problems=[*(found.problems if found else ()), *([_JUDGE_NOTE] if judged else [])],
    )
    show(data, _init_summary(files, config, skill, found, judged), as_json)


class InitJson(TypedDict):
    """What the command prints with --json."""

    written: list[str]
    config: str
    grader: GraderSetting | None  # None: the config leaves it to the tasks file
    problems: list[str]


def _ask(question: str, default: str, asking: bool) -> str:
    return str(typer.prompt(question, default=default)) if asking else default


def _refuse_unknown_model(given: str) -> None:
    """Raise an error for a model, or settings of one, whose provider is not known."""
    from skillfit.models.registry import refuse_unknown_provider

    setting = given_setting(given)
    refuse_unknown_provider(str(setting.get("id", "") if isinstance(setting, dict) else setting))


def _own_evals(skill: Path | None) -> Path | None:
    """Return the evals that a skill folder brings itself."""
    evals = skill / "evals" / "evals.json" if skill else None
    return evals if evals is not None and evals.is_file() else None


def _parse_fields(given: Sequence[str]) -> dict[str, str]:
    """Parse options written as `NAME=COLUMN`, for env.fields."""
    from skillfit.tasks.item import checked_fields

    fields = {}
    for option in given:
        name, equals, column = option.partition("=")
        if not equals or not column:
            raise InputError(f"--field {option}: expected NAME=COLUMN, as in input=query.")
        fields[name.strip()] = column.strip()
    return checked_fields(fields)


def _recognise_tasks(
    tasks: Path, fields: Mapping[str, str], grader: str, folder: Path
) -> RecognisedTasks:
    import asyncio

    from skillfit.tasks.recognise import recognise

    if not tasks.exists():
        hint = near_file(tasks) or "Give your tasks file with --tasks."
        raise InputError(f"{tasks} does not exist.", hint=hint)
    chosen = given_setting(grader) if grader else None
    return asyncio.run(recognise(tasks, fields=fields, grader=chosen, base=folder))


def given_setting(text: str) -> str | JsonObject:
    """Return a grader or a model as given on the command line: a name, or settings in braces."""
    from skillfit.config.yaml_source import read_text

    setting: str | JsonObject = read_text(text) if text.lstrip().startswith("{") else text
    return setting


def _config_text(agent: str, optimizer: str, env: RecognisedEnv, judged: bool) -> str:
    """Return the config, which is checked before anything is written."""
    import yaml

    from skillfit.config import load_config

    models = {"agent": given_setting(agent), "optimizer": given_setting(optimizer)}
    if judged:
        models["judge"] = given_setting(agent)
    data = {"model": models, "env": env, "budget": {"usd": 5}}
    load_config(data)
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return f"# Every other key has a default: `skillfit docs config` lists them.\n{text}"


def _write_new(files: dict[Path, str]) -> None:
    from skillfit.atomic_write import write_whole

    there = [str(path) for path in files if path.exists()]
    if there:
        raise InputError(
            f"{', '.join(there)}: exists already; init never overwrites a file.",
            hint="Give another folder, or name your files with --skill and --tasks.",
        )
    for path, text in files.items():
        write_whole(path, text.encode())


def _init_summary(
    files: dict[Path, str], config: Path, skill: Path, found: RecognisedTasks | None, judged: bool
) -> str:
    lines = []
    if found is not None:
        lines += _describe_tasks(found)
    lines.append(f"Wrote {', '.join(str(path) for path in files)}.")
    if judged:
        lines.append(_JUDGE_NOTE)
    if found is None:
        drafted = config.with_name("drafted.jsonl")
        lines += [
            "Put your items into the tasks file. Or let a model draft them, and name the new file "
            "in env.tasks:",
            f"  skillfit tasks draft {skill} --config {config} --out {drafted}",
            "Then:",
        ]
    lines += [f"  skillfit check {config}", f"  skillfit train {config}"]
    return "\n".join(lines)


def _describe_tasks(found: RecognisedTasks) -> list[str]:
    """Return what was recognised: rows as they will be sent, the grader and how it did."""
    lines = [f"{quantity(found.count, 'item')} in {found.path} ({found.format})."]
    for row in found.examples:
        lines.append(f"--- {row.id}")
        lines += [shorten(visible(message.content), 300) for message in row.messages]
        lines.append(f"expected: {shorten(visible(', '.join(row.expected)), 120)}")
    lines.append(f"Grader: {_setting_text(found.grader.setting)}: {found.grader.why}")
    trial = found.grader.trial
    if trial is not None:
        gold = f"{trial.gold - len(trial.gold_missed)} of {trial.gold} gold answers score 1"
        wrong = f"{len(trial.wrong_passed)} of {trial.wrong} wrong answers pass"
        lines.append(f"  tried: {gold}, {wrong}")
    lines += [f"! {problem}" for problem in found.problems]
    return lines


def _setting_text(setting: GraderSetting) -> str:
    """Return the grader as a config or --grader names it."""
    import yaml

    if isinstance(setting, str):
        return setting
    text: str = yaml.safe_dump(setting, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.strip()


def demo_command(
    model: Annotated[
        str,
        typer.Option(
            help="A real model: local/PATH.gguf or ollama/NAME. Default: the practice models."
        ),
    ] = "",
    optimizer: Annotated[
        str, typer.Option(help="With --model: a model that proposes edits beside worked examples.")
    ] = "",
    folder: Annotated[Path, typer.Option("--dir", help="Where the project is copied to.")] = Path(
        "skillfit-demo"
    ),
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live screen.")] = False,
    as_json: Json = False,
) -> None:
    """Train a small skill now. Without --model: ticket triage with the built-in practice models, no
    key, no network, no download.

    Example: skillfit demo --model local/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf
    """
    from skillfit.cli.estimate import planned_time
    from skillfit.cli.train import config_inputs, train_in_terminal
    from skillfit.record.fold import read_record
    from skillfit.report import write_report

    if optimizer and not model:
        raise InputError(
            "--optimizer needs --model: the practice models have their own optimizer.",
            hint="Name the model that uses the skill with --model.",
        )
    for given in (model, optimizer):
        if given:
            _refuse_unknown_model(given)
    models = {"agent": model, "optimizer": optimizer} if model else {}
    with _demo_project("sql" if model else "triage", folder, models) as run:
        if not as_json:
            what = "ticket triage with practice models (no language model)"
            if model:
                what = f"SQL with house rules for {model}"
            message = f"The project is in {folder}: {what}."
            console(stderr=True).print(message, markup=False, soft_wrap=True)
        inputs = config_inputs(folder / _CONFIG_NAME, None)
        if model and not as_json:
            message = f"This takes about {planned_time(inputs)}, depending on the machine."
            console(stderr=True).print(message, markup=False, soft_wrap=True)
        result = train_in_terminal(inputs, run, as_json=as_json, plain=plain, force=True)
    record = read_record(result.run)
    lines = [
        result_text(record),
        f"The report: {relative_to_here(write_report(result.run))}",
        f"Edit the project in {folder} and train it again:",
        f"  {shell_line('train', folder / _CONFIG_NAME)}",
    ]
    show(record.result_json(), "\n".join(lines), as_json)


@contextmanager
def _demo_project(name: str, folder: Path, models: Mapping[str, str]) -> Iterator[Path]:
    """Yield the place of the run in a demo project, which is copied into the folder with the models
    that were chosen. A demo project with the same models that is there already is used again. The
    copy is removed when the block raises before a run began.
    """
    import shutil
    from importlib.resources import as_file, files

    marker, run = folder / _CONFIG_NAME, folder / "run"
    was_there, copied = folder.exists(), list[Path]()
    with as_file(files("skillfit.cli") / "demo_data" / name) as source:
        text = _with_models((source / _CONFIG_NAME).read_text(), models)
        if not was_there or (folder.is_dir() and not any(folder.iterdir())):
            _make_demo_folder(folder)
            shutil.copytree(
                source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
            marker.write_text(text)
            copied = list(folder.iterdir())
        elif not marker.is_file():
            raise InputError(f"{folder} holds other files.", hint="Give another folder with --dir.")
        elif marker.read_text() != text:
            raise InputError(
                f"{folder} holds a project with other settings.",
                hint=f"Train it with `{shell_line('train', marker)}`, or give another folder with "
                "--dir.",
            )
    try:
        yield run
    except BaseException:
        if copied and not run.exists():
            for path in copied:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if not was_there:
                folder.rmdir()
            message = f"Nothing was trained, so the copy in {folder} was removed again."
            console(stderr=True).print(message, markup=False, soft_wrap=True)
        raise


def _with_models(config: str, models: Mapping[str, str]) -> str:
    """Return the config of a demo project with the models in place of its own."""
    if models:
        agent = f"id: {_model_id(models['agent'])}"
        config = re.sub(r"id: local/model\.gguf.*", lambda _: agent, config)
    if models.get("optimizer"):
        optimizer = f"  optimizer: {_model_id(models['optimizer'])}\n  concurrency:"
        config = config.replace("  concurrency:", optimizer, 1)
        config = config.replace("proposer: examples", "proposer: both", 1)
    return config


def _model_id(given: str) -> str:
    """Return the id as a config names it from any folder: a model's file by its whole path."""
    from skillfit.models.registry import map_file, split_id

    provider, name = split_id(given)
    path = Path(name).expanduser()
    if path.is_file():
        return json.dumps(f"{provider}/{path.resolve()}")
    return json.dumps(map_file(given, lambda file: str(Path(file).expanduser().resolve())))


def _make_demo_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, NotADirectoryError) as error:  # as in /proc, or below a file
        raise InputError(
            f"Cannot create the folder {folder}.", hint="Give another folder with --dir."
        ) from error


data_app = typer.Typer(
    help="Prepare the data of the built-in benchmarks.",
    no_args_is_help=True,
    add_completion=False,
)


@data_app.command("list")
def data_list_command(as_json: Json = False) -> None:
    """List the benchmarks, their licences, and which of them have data here.

    Example: skillfit data list
    """
    from skillfit.plugins.benchmarks.benchmark import (
        MANIFEST,
        benchmark_names,
        data_home,
        find_benchmark,
        prepared,
    )

    rows = [
        BenchmarkJson(
            name=benchmark.name,
            prepared=(prepared(benchmark.name) / MANIFEST).is_file(),
            licence=benchmark.licence,
            homepage=benchmark.homepage,
        )
        for benchmark in map(find_benchmark, benchmark_names())
    ]
    cells = [
        (row["name"], "yes" if row["prepared"] else "no", row["licence"], row["homepage"])
        for row in rows
    ]
    shown = rich_table(("benchmark", "prepared", "licence of the data", "from"), cells)
    shown.columns[0].no_wrap = True  # other columns are wrapped first
    show({"folder": str(data_home()), "benchmarks": rows}, shown, as_json)


class BenchmarkJson(TypedDict):
    name: str
    prepared: bool
    licence: str
    homepage: str


@data_app.command("get")
def data_get_command(
    name: _BenchmarkName,
    mirror: Annotated[
        str, typer.Option(help="Address to download from instead: replaces scheme and host.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Download a benchmark's public data and prepare it, with its published splits.

    Example: skillfit data get searchqa
    """
    from skillfit.plugins.benchmarks import prepare

    progress = console(stderr=True)
    result = prepare.get(
        name, mirror=mirror, report=lambda line: progress.print(line, markup=False, soft_wrap=True)
    )
    _show_prepared(result, as_json)


@data_app.command("make")
def data_make_command(
    name: _BenchmarkName,
    source: Annotated[
        Path, typer.Option("--from", help="File or folder with the data as its publisher has it.")
    ],
    splits: Annotated[
        Path | None,
        typer.Option(help="Folder with lists of ids: train/, val/ and test/, items.json in each."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prepare a benchmark from a local copy of its data.

    Example: skillfit data make spreadsheetbench --from spreadsheetbench_verified_400
    """
    from skillfit.plugins.benchmarks import prepare

    _show_prepared(prepare.make(name, source, splits=splits), as_json)


def _show_prepared(result: Prepared, as_json: bool) -> None:
    counts = ", ".join(f"{count} {split}" for split, count in result.counts.items())
    lines = [
        f"{result.title}",
        f"  items     {counts}",
        f"  licence   {result.licence}",
        f"  source    {result.source}",
    ]
    for file in result.files:
        checked = ", as the publisher says" if file.verified else ""
        lines.append(f"  sha256    {file.sha256}  {Path(file.path).name}{checked}")
    lines.append(f"  prepared  {result.folder}")
    lines.append(f"Use it with: env: {{tasks: {result.name}}}")
    show(result, "\n".join(lines), as_json)


COMMANDS = (init_command, demo_command)
