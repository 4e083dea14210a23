"""The commands to set up a project, to look things up, and to serve skillfit.

- `init` makes a project from a skill and a tasks file, without overwriting anything.
- `demo` copies a small project and trains its skill.
- `lint` checks skills, `models` lists the providers, `docs` prints the reference.
- `studio` serves the web app, `mcp` serves agents.
- `data` prepares the data of the benchmarks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from skillfit.cli.output import Json, ResultLine, console, near, rich_table, show
from skillfit.errors import MEANINGS, Exit, InputError, did_you_mean
from skillfit.plain_text import shorten, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from skillfit.benchmarks.prepare import Prepared
    from skillfit.config.schema import GraderSetting
    from skillfit.models.json_text import JsonObject
    from skillfit.tasks.recognise import RecognisedEnv, RecognisedTasks

_CONFIG_NAME = "skillfit.yaml"
_SKILL_TEMPLATE = """\
---
name: {name}
description: Say in a sentence or two what this skill does and when to use it.
---

# {title}

Say how the work is done.
"""
_TASKS_TEMPLATE = [
    {
        "id": "example-1",
        "input": "Replace this with a task the skill must be good at.",
        "answer": "and this with the right answer",
    },
    {
        "id": "example-2",
        "input": "One object per line. Twenty are a start, sixty give clear results.",
        "answer": "exactly this",
    },
    {
        "id": "example-3",
        "input": "A type is optional: results are shown per type.",
        "answer": "42",
        "type": "numbers",
    },
]
_TOPICS = ("config", "commands", "graders", "exit-codes")
_BenchmarkName = Annotated[str, typer.Argument(help="The benchmark, for example searchqa.")]


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

    asking = sys.stdin.isatty() and not as_json
    agent = agent or _ask("Model that uses the skill", "openai/gpt-5-mini", asking)
    optimizer = optimizer or _ask("Model that improves it", "openai/gpt-5", asking)
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
    env: RecognisedEnv = {"skill": _relative_path(skill, folder)}
    if tasks is None or found is None:
        files[folder / "tasks.jsonl"] = "".join(f"{json.dumps(row)}\n" for row in _TASKS_TEMPLATE)
        env |= {"tasks": "./tasks.jsonl", "grader": given_setting(grader) if grader else "exact"}
    else:
        env |= {**found.env, "tasks": _relative_path(tasks, folder)}
    config = folder / _CONFIG_NAME
    files[config] = _config_text(agent, optimizer, env, found)
    _write_new(files)
    data = InitJson(
        written=[str(path) for path in files],
        config=str(config),
        grader=env.get("grader"),
        problems=list(found.problems) if found else [],
    )
    show(data, _init_summary(files, config, skill, found), as_json)


class InitJson(TypedDict):
    """What the command prints with --json."""

    written: list[str]
    config: str
    grader: GraderSetting | None  # None: the config leaves it to the tasks file
    problems: list[str]


def _ask(question: str, default: str, asking: bool) -> str:
    return str(typer.prompt(question, default=default)) if asking else default


def _own_evals(skill: Path | None) -> Path | None:
    """The evals that a skill folder brings itself."""
    evals = skill / "evals" / "evals.json" if skill else None
    return evals if evals is not None and evals.is_file() else None


def _parse_fields(given: Sequence[str]) -> dict[str, str]:
    """`NAME=COLUMN` options, for env.fields."""
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
        raise InputError(f"{tasks} does not exist.", hint="Give your tasks file with --tasks.")
    chosen = given_setting(grader) if grader else None
    return asyncio.run(recognise(tasks, fields=fields, grader=chosen, base=folder))


def given_setting(text: str) -> str | JsonObject:
    """A grader or a model as given on the command line: a name, or settings in braces."""
    import yaml

    setting: str | JsonObject = yaml.safe_load(text) if text.lstrip().startswith("{") else text
    return setting


def _relative_path(path: Path, folder: Path) -> str:
    """The path as seen from the config's folder."""
    relative = Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix()
    return relative if relative.startswith(".") else f"./{relative}"


def _config_text(
    agent: str, optimizer: str, env: RecognisedEnv, found: RecognisedTasks | None
) -> str:
    import yaml

    models = {"agent": given_setting(agent), "optimizer": given_setting(optimizer)}
    if found is not None and found.grader.needs_judge:
        models["judge"] = given_setting(agent)
    data = {"model": models, "env": env, "budget": {"usd": 5}}
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
    files: dict[Path, str], config: Path, skill: Path, found: RecognisedTasks | None
) -> str:
    lines = []
    if found is not None:
        lines += _describe_tasks(found)
    lines.append(f"Wrote {', '.join(str(path) for path in files)}.")
    if found is not None and found.grader.needs_judge:
        lines.append("In it, model.judge is the model that uses the skill. Another one is better.")
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
    """What was recognised: rows as they will be sent, the grader and how it did."""
    lines = [f"{found.count} items in {found.path} ({found.format})."]
    for row in found.examples:
        lines.append(f"--- {row.id}")
        lines += [shorten(visible(message.content), 300) for message in row.messages]
        lines.append(f"expected: {shorten(visible(', '.join(row.expected)), 120)}")
    lines.append(f"Grader: {found.grader.setting}: {found.grader.why}")
    trial = found.grader.trial
    if trial is not None:
        gold = f"{trial.gold - len(trial.gold_missed)} of {trial.gold} gold answers score 1"
        wrong = f"{len(trial.wrong_passed)} of {trial.wrong} wrong answers pass"
        lines.append(f"  tried: {gold}, {wrong}")
    lines += [f"! {problem}" for problem in found.problems]
    return lines


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
    from skillfit.cli.train import config_inputs, train_in_terminal
    from skillfit.report import read_story, write_report

    overrides = [f"model.agent.id={model}"] if model else []
    if optimizer:
        overrides += [f"model.optimizer={optimizer}", "optimizer.proposer=both"]
    copied = _copy_demo("sql" if model else "triage", folder)
    if not as_json:
        what = "ticket triage with practice models (no language model)"
        if model:
            what = f"SQL with house rules for {model}"
        message = f"The project is in {copied}: {what}."
        console(stderr=True).print(message, markup=False, soft_wrap=True)
    inputs = config_inputs(copied / _CONFIG_NAME, overrides)
    result = train_in_terminal(inputs, copied / "run", as_json=as_json, plain=plain, force=True)
    story = read_story(result.run)
    line = ResultLine.of_story(story)
    lines = [
        line.as_text(story.diagnosis),
        f"The report: {near(write_report(result.run))}",
        f"The project, to change and train again: {copied}",
    ]
    show(line.as_json(), "\n".join(lines), as_json)


def _copy_demo(name: str, folder: Path) -> Path:
    """The demo project in the folder; a demo project that is there already is used again."""
    import shutil
    from importlib.resources import as_file, files

    marker = folder / _CONFIG_NAME
    with as_file(files("skillfit.cli") / "demo_data" / name) as source:
        if folder.is_file() or (folder.exists() and any(folder.iterdir())):
            if not marker.is_file() or marker.read_text() != (source / _CONFIG_NAME).read_text():
                raise InputError(
                    f"{folder} holds other files.", hint="Give another folder with --dir."
                )
        else:
            shutil.copytree(
                source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
    return folder


def lint_command(
    paths: Annotated[list[Path], typer.Argument(help="Skill folders or markdown files.")],
    as_json: Json = False,
) -> None:
    """Check skills against the format and good practice; prints path:line of every problem.

    Example: skillfit lint ./my-skill
    """
    from skillfit.skill import lint as lint_skill

    problems = [problem for path in paths for problem in lint_skill(path)]
    lines = [
        f"{problem.path}:{problem.line}: {problem.severity}: {problem.message}"
        for problem in problems
    ]
    show(problems, "\n".join(lines) or "No problems.", as_json)
    failed = any(problem.severity == "error" for problem in problems)
    raise typer.Exit(int(Exit.USAGE if failed else Exit.OK))


def models_command(as_json: Json = False) -> None:
    """List the providers, and which of them can be used here.

    Example: skillfit models
    """
    import skillfit.agents  # noqa: F401  registers cli/…
    from skillfit.models import known_providers

    rows: list[tuple[str, ...]] = []
    data: list[ProviderJson] = []
    for provider in known_providers():
        readiness = provider.readiness()
        status = "ready" if readiness.ready else "not ready"
        rows.append((f"{provider.name}/…", status, readiness.detail, provider.about))
        data.append(
            ProviderJson(
                provider=provider.name,
                ready=readiness.ready,
                detail=readiness.detail,
                keys=list(provider.keys),
                about=provider.about,
            )
        )
    show(data, rich_table(("model ids", "", "", ""), rows), as_json)


class ProviderJson(TypedDict):
    provider: str
    ready: bool
    detail: str
    keys: list[str]
    about: str


def docs_command(
    topic: Annotated[str, typer.Argument(help="config, commands, graders or exit-codes.")] = "",
    word: Annotated[str, typer.Argument(help="Only entries that contain this word.")] = "",
    as_json: Json = False,
) -> None:
    """Print the reference: every setting, command, grader and exit code.

    Example: skillfit docs config budget
    """
    if not topic:
        show(list(_TOPICS), f"Topics: {', '.join(_TOPICS)}.", as_json)
        return
    if topic not in _TOPICS:
        hint = did_you_mean(topic, _TOPICS) or f"Topics: {', '.join(_TOPICS)}."
        raise InputError(f"Unknown topic {topic!r}.", hint=hint)
    rows = [row for row in _reference_rows(topic) if word.lower() in " ".join(row).lower()]
    columns = {
        "config": ("key", "type", "default", "meaning"),
        "commands": ("command", "what it does"),
        "graders": ("grader", "what it does"),
        "exit-codes": ("code", "meaning"),
    }[topic]
    data = [dict(zip(columns, row, strict=True)) for row in rows]
    if not rows:
        raise InputError(f"Nothing in {topic} contains {word!r}.")
    show(data, _reference_text(rows), as_json)


def _reference_rows(topic: str) -> list[tuple[str, ...]]:
    if topic == "config":
        from skillfit.config import describe_keys

        return [
            (key.key, key.type, str(key.default), " ".join(key.doc.split()))
            for key in describe_keys()
        ]
    if topic == "commands":
        return _command_rows()
    if topic == "graders":
        from skillfit.tasks.graders import BUILT_IN

        return [(name, _first_line(kind.__doc__)) for name, kind in sorted(BUILT_IN.items())]
    return [
        (f"{int(code)} ({code.name.lower().replace('_', ' ')})", meaning)
        for code, meaning in MEANINGS.items()
    ]


def _command_rows() -> list[tuple[str, ...]]:
    from skillfit.cli.app import app

    rows = []
    for command in app.registered_commands:
        callback = command.callback
        name = command.name or (callback.__name__ if callback else "")
        rows.append((name, _first_line(callback.__doc__ if callback else "")))
    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands if group.typer_instance else ():
            doc = command.callback.__doc__ if command.callback else ""
            rows.append((f"{group.name} {command.name}", _first_line(doc)))
    return sorted(rows)


def _first_line(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _reference_text(rows: list[tuple[str, ...]]) -> RenderableType:
    """Each entry with its meaning below it: keys are long, and must be shown whole."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for name, *kind, meaning in rows:
        head = Text(name, style="bold")
        if kind:
            head.append(f"  {kind[0]}, default {kind[1] or 'none'}", style="dim not bold")
        parts += [head, Padding(Text(meaning), (0, 0, 0, 4))]
    return Group(*parts)


def studio_command(
    path: Annotated[Path, typer.Argument(help="A run, or a folder of runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Another address than this machine's own needs a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str,
        typer.Option(
            envvar="SKILLFIT_STUDIO_TOKEN",
            help="Your own token, 16 characters or more; without one, each link works once.",
        ),
    ] = "",
    project: Annotated[
        Path | None,
        typer.Option(help="Where new runs find skills, tasks and configs; default: this folder."),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the link in the browser.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch, compare, start and steer runs in the browser.

    Example: skillfit studio runs --open
    """
    from skillfit.studio.web_app import serve_studio

    opened: list[str] = []

    def announce(link: str) -> None:
        show({"address": link}, link if not opened else f"For another browser: {link}", as_json)
        if open_browser and not opened:
            import webbrowser

            webbrowser.open(link)
        opened.append(link)

    if path == Path("runs"):
        path.mkdir(exist_ok=True)
    serve_studio(path, port, host, token, announce=announce, project=project)


def mcp_command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="What agents may reach; default: the current folder."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print what a client's settings need to start it, and end."),
    ] = False,
) -> None:
    """Serve skillfit to agents over the Model Context Protocol (stdin and stdout).

    Example: skillfit mcp ./my-project
    """
    named = [str(folder.absolute()) for folder in folders or [Path()]]
    if as_json:
        arguments = ["-m", "skillfit", "mcp", *named]
        return show(
            {"mcpServers": {"skillfit": {"command": sys.executable, "args": arguments}}},
            "",
            as_json,
        )
    for folder in named:
        if not Path(folder).is_dir():
            raise InputError(f"{folder} is not a folder.", hint="Give folders that exist.")
    try:
        from skillfit.plugins.mcp_server import serve_mcp
    except ImportError as error:
        raise InputError(
            f"skillfit mcp is not available here: {error}.", hint="pip install 'skillfit[mcp]'"
        ) from error
    return serve_mcp([Path(folder) for folder in named])


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
    from skillfit.benchmarks.benchmark import (
        MANIFEST,
        benchmark_names,
        data_home,
        find_benchmark,
        prepared,
    )

    found = [find_benchmark(name) for name in benchmark_names()]
    rows = [
        BenchmarkJson(
            name=benchmark.name,
            prepared=(prepared(benchmark.name) / MANIFEST).is_file(),
            licence=benchmark.licence,
            homepage=benchmark.homepage,
        )
        for benchmark in found
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
    from skillfit.benchmarks import prepare

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
    from skillfit.benchmarks import prepare

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


COMMANDS = (
    init_command,
    demo_command,
    lint_command,
    models_command,
    docs_command,
    studio_command,
    mcp_command,
)
