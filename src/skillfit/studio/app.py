"""The studio: the runs under a folder, each on a page that updates itself while the run goes on.

Pages are told from events, with the report's own template. Whoever watches one gets its content
anew as a server-sent event whenever the log has grown.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from skillfit.errors import InputError
from skillfit.report.page import asset, environment, page, view
from skillfit.report.story import RunStory, Teller, read_story
from skillfit.run.directory import JOURNAL, RunDirectory

_POLL = 0.5  # seconds between two looks at the log
_QUIET = 30  # looks after which a comment keeps the connection open
_DEPTH = 3  # folders below the given one
_COOKIE = "skillfit-token"
_OWN_NAMES = [
    "127.0.0.1",
    "localhost",
    "[::1]",
]  # other names for this machine are a trick of some web page


def serve(
    path: Path,
    port: int = 0,
    host: str = "127.0.0.1",
    token: str = "",
    announce: Callable[[str], object] = print,
) -> None:
    """Serve the runs under `path` until Ctrl-C, at the address `announce` is told. Other machines
    may look only with a token.
    """
    import uvicorn

    app = make_app(path, host, token)
    if not 0 <= port < 1 << 16:
        raise InputError(f"There is no port {port}.", hint="Give another one with --port.")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen()  # so that who hears the address can be sure of an answer
        except OSError as error:
            raise InputError(
                f"Port {port} of {host} cannot be had: {error.strerror}.",
                hint="Give another one with --port.",
            ) from error
        name = f"[{host}]" if ":" in host else host
        announce(f"http://{name}:{listening.getsockname()[1]}/{f'?token={token}' if token else ''}")
        sys.stdout.flush()  # who started this may be waiting for the address
        uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)).run(
            [listening]
        )


def make_app(path: Path, host: str = "127.0.0.1", token: str = "") -> Starlette:
    if not _loopback(host) and not token:
        hint = "Stay on 127.0.0.1, or give a token that visitors must know."
        raise InputError(f"{host} can be reached from other machines.", hint=hint)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder.", hint="Give the folder that your runs are in.")
    runs = Runs(path.absolute())
    routes = [
        Route("/", runs.index),
        Route("/events", runs.index_events),
        Route("/report/{name:path}", runs.report),
        Route("/events/{name:path}", runs.events),
        Route("/run/{name:path}", runs.run),
    ]
    guards = (
        [Middleware(Guard, token=token)]
        if token
        else [Middleware(TrustedHostMiddleware, allowed_hosts=_OWN_NAMES)]
    )
    return Starlette(routes=routes, middleware=guards)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Lets in who knows the token: in the address once, then in a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope)
        response: Response = PlainTextResponse(
            "This studio asks for its token: add ?token=… to the address.", 401
        )
        if self._known(request.query_params.get("token", "")):
            response = RedirectResponse(request.url.path, 303)
            response.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
        elif self._known(request.cookies.get(_COOKIE, "")):
            return await self._app(scope, receive, send)
        return await response(scope, receive, send)

    def _known(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())


class Runs:
    """The pages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[Path, tuple[tuple[int, ...], RunStory]] = {}
        loaders = [
            PackageLoader("skillfit.studio", "assets"),
            PackageLoader("skillfit.report", "assets"),
        ]
        self._templates: Environment = environment().overlay(loader=ChoiceLoader(loaders))

    async def index(self, request: Request) -> Response:
        return self._page("skillfit studio", "/events", await asyncio.to_thread(self._list))

    async def index_events(self, request: Request) -> Response:
        return _stream(request, self._list)

    async def run(self, request: Request) -> Response:
        name, path = self._found(request)
        with closing(Watch(path)) as watch:
            content = await asyncio.to_thread(self._content, watch, name)
        return self._page(f"{name}: skillfit studio", f"/events/{name}", content)

    async def events(self, request: Request) -> Response:
        name, path = self._found(request)
        watch = Watch(path)
        return _stream(request, lambda: self._content(watch, name), watch.close)

    async def report(self, request: Request) -> Response:
        _, path = self._found(request)
        return HTMLResponse(
            await asyncio.to_thread(lambda: page(read_story(path), with_trajectories=True))
        )

    def _found(self, request: Request) -> tuple[str, Path]:
        name = str(request.path_params["name"])
        path = next((path for path in self._runs() if self._name(path) == name), None)
        if path is None:
            raise HTTPException(404, f"There is no run {name}.")
        return name, path

    def _runs(self) -> Iterator[Path]:
        for depth in range(_DEPTH + 1):
            yield from (found.parent for found in self._path.glob("*/" * depth + JOURNAL))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._path).as_posix() if path != self._path else path.name

    def _page(self, title: str, events: str, content: str) -> Response:
        """A page whose content comes anew with each of these events."""
        script = asset("script.js") + (Path(__file__).parent / "assets" / "live.js").read_text(
            encoding="utf-8"
        )
        given = {"script": script, "style": asset("style.css"), "connect": "'self'", "title": title}
        shown = self._templates.get_template("watched.html.j2").render(
            content=content, events=events, **given
        )
        return HTMLResponse(shown, headers={"Cache-Control": "no-store"})

    def _list(self) -> str:
        told: list[tuple[str, RunStory]] = []
        damaged: list[str] = []
        for path in self._runs():
            try:
                told.append((self._name(path), self._story(path)))
            except InputError as error:
                damaged.append(str(error))
        told.sort(key=lambda run: -(run[1].begun or 0))
        return self._templates.get_template("list.html.j2").render(
            runs=told, damaged=damaged, folder=self._path.name
        )

    def _story(self, path: Path) -> RunStory:
        """Read anew only when something was written, or somebody may be writing."""
        files = [path / f"{JOURNAL}{ending}" for ending in ("", "-wal")]
        stamp = tuple(file.stat().st_mtime_ns for file in files if file.exists())
        if (
            path not in self._told
            or self._told[path][0] != stamp
            or self._told[path][1].state == "running"
        ):
            self._told[path] = (stamp, read_story(path))
        return self._told[path][1]

    def _content(self, watch: Watch, name: str) -> str:
        return self._templates.get_template("live.html.j2").render(**view(watch.story()), name=name)


class Watch:
    """A run, told on as its log grows."""

    def __init__(self, path: Path) -> None:
        self._view = RunDirectory.read(path)
        self._teller, self._last = Teller(), 0

    def story(self) -> RunStory:
        for stored in self._view.events.read(self._last):
            self._teller(stored)
            self._last = stored.seq
        return self._teller.story(self._view)

    def close(self) -> None:
        self._view.close()


def _stream(
    request: Request, look: Callable[[], str], close: Callable[[], None] = lambda: None
) -> Response:
    async def changes() -> AsyncIterator[str]:
        shown, quiet = "", 0
        try:
            while not await request.is_disconnected():
                content = await asyncio.to_thread(look)
                quiet = 0 if content != shown else quiet + 1
                if content != shown:
                    shown = content
                    yield f"data: {json.dumps(content)}\n\n"
                elif quiet % _QUIET == 0:
                    yield ": still here\n\n"
                await asyncio.sleep(_POLL)
        finally:
            close()

    return StreamingResponse(
        changes(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )
