"""The commands that serve skillfit: `studio` to people in the browser, `mcp` to agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from skillfit.cli.output import Json, show
from skillfit.errors import InputError


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
        typer.Option(
            help="Where new runs find skills, tasks and configs. Default: this folder if the runs"
            " are in it, else the folder of the newest run's config."
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the link in the browser.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Watch, compare, start and steer runs in the browser.

    Example: skillfit studio runs --open
    """
    from skillfit.plugins.studio.web_app import serve_studio

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
    """Serve skillfit to agents over the Model Context Protocol. It uses stdin and stdout.

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
        from skillfit.plugins.mcp.server import serve_mcp
    except ImportError as error:
        raise InputError(
            f"skillfit mcp is not available here: {error}.", hint="pip install 'skillfit[mcp]'"
        ) from error
    return serve_mcp([Path(folder) for folder in named])


COMMANDS = (studio_command, mcp_command)
