"""The studio's routes, and the server that answers them on this machine."""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from skillfit.errors import InputError, SkillfitError
from skillfit.report.html_report import ASSETS as REPORT_ASSETS
from skillfit.studio import view_items, view_run, view_runs, view_steer
from skillfit.studio.access import Guard, Session, is_loopback
from skillfit.studio.site import Studio

View = Callable[[Studio, Request], Awaitable[Response]]

_STATIC = Path(__file__).parent / "assets"
_PAGES: tuple[tuple[str, View], ...] = (
    ("/", view_runs.index),
    ("/live", view_runs.index_live),
    ("/compare", view_runs.compare),
    ("/run/{name:path}", view_run.run),
    ("/live/{name:path}", view_run.run_live),
    ("/pool/{name:path}", view_run.pool),
    ("/step/{number:int}/{name:path}", view_run.step),
    ("/edit/{name:path}", view_run.edit),
    ("/skill/{name:path}", view_run.skill),
    ("/items/{name:path}", view_items.items),
    ("/item/{name:path}", view_items.item),
    ("/rollout/{name:path}", view_items.rollout),
    ("/image/{name:path}", view_items.image),
    ("/report/{name:path}", view_run.report),
    ("/apply/{name:path}", view_steer.apply_page),
    ("/handoff/{name:path}", view_steer.handoff),
    ("/starting/{name:path}", view_steer.starting),
)


def make_app(
    path: Path,
    session: Session | None = None,
    *,
    host: str = "127.0.0.1",
    project: Path | None = None,
) -> Starlette:
    """The studio for the runs under `path`. New runs take skills and tasks from `project`."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder.", hint="Give the folder that your runs are in.")
    runs = path.resolve()
    studio = Studio(runs, project_of(runs, project), session or Session())
    routes = [Route(address, partial(view, studio), name=address) for address, view in _PAGES]
    app = Starlette(
        routes=[
            *routes,
            Route("/new", partial(view_steer.new, studio), methods=["GET", "POST"]),
            Route("/act/{name:path}", partial(view_steer.act, studio), methods=["POST"]),
            Mount("/static/report", StaticFiles(directory=REPORT_ASSETS)),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(Guard, session=studio.session, loopback=is_loopback(host))],
        exception_handlers={
            HTTPException: partial(_http_problem, studio),
            SkillfitError: partial(_problem, studio),
        },
    )
    app.state.studio = studio
    return app


def project_of(runs: Path, project: Path | None) -> Path:
    """The folder that skills and tasks of new runs are picked from: as given, else the current one
    if the runs lie in it, else the one around the runs.
    """
    if project is not None:
        if not project.is_dir():
            raise InputError(f"{project} is not a folder.", hint="Give a folder with --project.")
        return project.resolve()
    here = Path.cwd().resolve()
    return here if runs.is_relative_to(here) and runs != here else runs


async def _http_problem(studio: Studio, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return studio.page(request, "problem.html.j2", error.status_code, problem=error.detail)


async def _problem(studio: Studio, request: Request, error: Exception) -> Response:
    return studio.page(request, "problem.html.j2", 500, problem=str(error))


def serve(
    path: Path,
    port: int = 0,
    host: str = "127.0.0.1",
    token: str = "",
    announce: Callable[[str], object] = print,
    project: Path | None = None,
) -> None:
    """Serve the runs under `path` until Ctrl-C. `announce` is called with the link that works
    now, and with the next one whenever a link was used. Other machines need a token.
    """
    import uvicorn

    if not is_loopback(host) and not token:
        raise InputError(
            f"{host} can be reached from other machines.",
            hint="Stay on 127.0.0.1, or give a strong token with --token.",
        )
    if not 0 <= port < 1 << 16:
        raise InputError(f"There is no port {port}.", hint="Give another one with --port.")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def link(token: str) -> None:
            name = f"[{host}]" if ":" in host else host
            announce(f"http://{name}:{listening.getsockname()[1]}/?token={token}")
            sys.stdout.flush()  # another program may be waiting for the address

        session = Session(token, link)
        app = make_app(path, session, host=host, project=project)
        try:
            listening.bind((host, port))
            listening.listen()  # before the address is announced, so that it can be reached
        except OSError as error:
            raise InputError(
                f"Cannot listen on {host}:{port}: {error.strerror}.",
                hint="Give another port with --port.",
            ) from error
        link(session.token)
        config = uvicorn.Config(
            app,
            log_level="warning",
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        uvicorn.Server(config).run([listening])
