"""The commands that look things up, serve skillfit, or prepare data.

- `lint` checks skills, `models` lists the providers, `docs` prints the reference.
- `studio` serves the web app, `mcp` serves agents.
- `data` prepares the data of the benchmarks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from skillfit.cli.output import Json, console, rich_table, show
from skillfit.errors import MEANINGS, Exit, InputError, did_you_mean

if TYPE_CHECKING:
    from rich.console import RenderableType

    from skillfit.benchmarks.prepare import Prepared

_TOPICS = ("config", "commands", "graders", "exit-codes")
_BenchmarkName = Annotated[str, typer.Argument(help="The benchmark, for example searchqa.")]


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
    lint_command,
    models_command,
    docs_command,
    studio_command,
    mcp_command,
)
