"""The studio's routes, the server that answers them on this machine, and who may use it.

- The link that is printed carries a token that works once. It is exchanged for a cookie, and the
  next link is printed for another browser. A token that a person chose works every time.
- On a loopback address only this machine's own names are accepted as Host, so no web page can
  reach the studio under another name.
- Every change needs the session's CSRF token (`Studio.form` checks it) and, where the browser sends
  one, an Origin of ours.
- Responses forbid inline scripts, framing and everything from other hosts.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skillfit.errors import InputError, SkillfitError
from skillfit.plain_text import shorten
from skillfit.plugins.studio import folder_pages, item_pages, new_run, run_pages
from skillfit.plugins.studio.commands import has_config
from skillfit.plugins.studio.site import RunLibrary, Studio
from skillfit.report.html_report import ASSETS as REPORT_ASSETS
from skillfit.report.html_report import PageData

if TYPE_CHECKING:
    import uvicorn

View = Callable[[Studio, Request], Response]  # runs in a thread

_OWN_NAMES = ("127.0.0.1", "localhost", "::1")
_LEAST_TOKEN = 16  # characters of a token that the user chose
_LEAST_VARIETY = 8  # different characters in it
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_REFUSED = """<!doctype html><html lang="en"><meta charset="utf-8"><title>skillfit studio</title>
<h1>Open the studio with its link</h1>
<p>Use the link that <code>skillfit studio</code> printed last in its terminal.
A link works once; when it was used, the next one is printed.</p></html>"""
_STATIC = Path(__file__).parent / "assets"
_PAGES: tuple[tuple[str, View], ...] = (
    ("/", folder_pages.index_page),
    ("/live", folder_pages.index_live),
    ("/compare", folder_pages.compare_page),
    ("/run/{name:path}", run_pages.run_page),
    ("/live/{name:path}", run_pages.run_live),
    ("/pool/{name:path}", run_pages.pool_part),
    ("/step/{number:int}/{name:path}", run_pages.step_page),
    ("/log/{name:path}", run_pages.run_page),
    ("/about/{name:path}", run_pages.run_page),
    ("/skill/{name:path}", run_pages.skill_page),
    ("/items/{name:path}", item_pages.items_page),
    ("/feedback/{name:path}", item_pages.feedback_file),
    ("/image/{name:path}", item_pages.image),
    ("/report/{name:path}", run_pages.report_page),
    ("/apply/{name:path}", run_pages.apply_page),
    ("/handoff/{name:path}", run_pages.handoff_page),
    ("/starting/{name:path}", new_run.starting_page),
)


def make_app(
    path: Path,
    session: Session | None = None,
    *,
    host: str = "127.0.0.1",
    project: Path | None = None,
) -> Starlette:
    """Create the studio for the runs under `path`. New runs take skills and tasks from `project`;
    by default that is found as `project_of` says.
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a folder.", hint="Give the folder that your runs are in.")
    runs = path.resolve()
    session = session or Session()
    library = RunLibrary(runs)
    studio = Studio(library, project_of(library, project), session.csrf)
    routes = [Route(address, partial(view, studio), name=address) for address, view in _PAGES]
    app = Starlette(
        routes=[
            *routes,
            Route("/new", partial(new_run.new_page, studio), methods=["GET", "POST"]),
            Route("/demo", partial(new_run.start_demo, studio), methods=["POST"]),
            Route("/act/{name:path}", partial(run_pages.act, studio), methods=["POST"]),
            Mount("/static/report", StaticFiles(directory=REPORT_ASSETS)),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(Guard, session=session, loopback=is_loopback(host))],
        exception_handlers={
            HTTPException: partial(_http_problem, studio),
            SkillfitError: partial(_problem, studio),
            OSError: partial(_problem, studio),
            Exception: partial(_failure, studio),
        },
    )
    app.state.studio = studio
    return app


def project_of(library: RunLibrary, project: Path | None) -> Path | None:
    """Return the folder that skills and tasks of new runs are picked from: as given, else the
    current one if the runs lie in it, else the one with the config of the newest run. None: it is
    not known.

    The studio may read and write in the project, and a run may come from somebody else. So the
    folder that a run names only counts if the runs lie in it and it has a config file.
    """
    if project is not None:
        if not project.is_dir():
            raise InputError(f"{project} is not a folder.", hint="Give a folder with --project.")
        return project.resolve()
    here = Path.cwd().resolve()
    if here in library.folder.parents:
        return here
    for folder in (*library.config_folders(), library.folder):
        if library.folder.is_relative_to(folder) and has_config(folder):
            return folder
    return None


@dataclass(frozen=True, slots=True)
class ProblemPage(PageData):
    template: ClassVar = "problem.html.j2"

    title: str
    problem: str


async def _http_problem(studio: Studio, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = "Not found" if error.status_code == 404 else "Error"
    return studio.page(request, ProblemPage(title, error.detail), error.status_code)


async def _problem(studio: Studio, request: Request, error: Exception) -> Response:
    return studio.page(request, ProblemPage("Error", str(error)), 500)


async def _failure(studio: Studio, request: Request, error: Exception) -> Response:
    """Show an error in skillfit itself. It is raised again behind this page, so that the terminal
    shows its traceback. `Guard` is not around this page.
    """
    problem = (
        f"skillfit itself failed ({type(error).__name__}: {shorten(str(error), 300)}). The terminal"
        " in which the studio runs shows where. Please report this."
    )
    response = studio.page(request, ProblemPage("Error", problem), 500)
    _protect(response.headers)
    return response


def serve_studio(
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
            timeout_graceful_shutdown=5,  # enough for a page that is being read
            server_header=False,
        )
        make_web_server(config, app.state.studio).run([listening])


def make_web_server(config: uvicorn.Config, studio: Studio) -> uvicorn.Server:
    """Create a server that ends the streams of open pages before it shuts down. Otherwise it would
    wait for them, and cancel them with a traceback.
    """
    import uvicorn

    class StudioServer(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            studio.closing.set()
            await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # A second Ctrl-C would skip parts of the shutdown, which then end with tracebacks. The
            # shutdown that the first one began takes `timeout_graceful_shutdown` at the most.
            if not self.should_exit:
                super().handle_exit(sig, frame)

    return StudioServer(config)


class Session:
    """The secrets of one running studio."""

    def __init__(self, token: str = "", announce: Callable[[str], object] = lambda token: None):
        """Choose the first token. `token`: chosen by the user, works any number of times. Without
        one, links work once and `announce` is called with the token of the next one.
        """
        if token:
            check_token(token)
        self._chosen = token
        self._announce = announce
        self._next = token or secrets.token_urlsafe(24)
        # With a chosen token, pages that are open work again when the studio is started again.
        self._cookie = (
            hmac.new(token.encode(), b"cookie", hashlib.sha256).hexdigest()
            if token
            else secrets.token_urlsafe(32)
        )

    @property
    def token(self) -> str:
        """The token of the link that works now."""
        return self._next

    @property
    def cookie(self) -> str:
        return self._cookie

    @property
    def csrf(self) -> str:
        return hmac.new(self._cookie.encode(), b"csrf", hashlib.sha256).hexdigest()

    def accepts_token(self, token: str) -> bool:
        """Return whether the link is right. A link without a chosen token is used up by this."""
        if not _same(token, self._next):
            return False
        if not self._chosen:
            self._next = secrets.token_urlsafe(24)
            self._announce(self._next)
        return True

    def accepts_cookie(self, cookie: str) -> bool:
        return _same(cookie, self._cookie)


def check_token(token: str) -> None:
    if len(token) < _LEAST_TOKEN or len(set(token)) < _LEAST_VARIETY:
        raise InputError(
            f"The studio's token is too weak: it needs {_LEAST_TOKEN} characters or more,"
            f" {_LEAST_VARIETY} of them different.",
            hint='Make one with: python -c "import secrets; print(secrets.token_urlsafe(24))"',
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Middleware in front of every page."""

    def __init__(self, app: ASGIApp, session: Session, *, loopback: bool) -> None:
        self._app = app
        self._session = session
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _protect(MutableHeaders(scope=message))
            await send(message)

        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """Return the response to a request that gets no page; None when it may pass."""
        if self._loopback and _host_name(request) not in _OWN_NAMES:
            return Response("Unknown host name.", 400)
        cookie = request.cookies.get(_cookie_name(request), "")
        known = self._session.accepts_cookie(cookie)
        if request.method in ("GET", "HEAD"):
            if "token" in request.query_params:
                return self._enter(request, known)
        elif not _own_origin(request):
            return Response("This request comes from another site.", 403)
        return None if known else HTMLResponse(_REFUSED, 401)

    def _enter(self, request: Request, known: bool) -> Response:
        """Exchange the token of the link for a cookie."""
        if not known and not self._session.accepts_token(request.query_params["token"]):
            return HTMLResponse(_REFUSED, 401)
        # One slash in front: "//host/" would be another site.
        target = "/" + quote(request.url.path.replace("\\", "/").lstrip("/"))
        rest = [(key, text) for key, text in request.query_params.multi_items() if key != "token"]
        if rest:
            target += f"?{urlencode(rest)}"
        response = RedirectResponse(target, 303)
        response.set_cookie(
            _cookie_name(request),
            self._session.cookie,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response


def _protect(headers: MutableHeaders) -> None:
    headers.setdefault("Content-Security-Policy", POLICY)
    headers["X-Content-Type-Options"] = "nosniff"
    headers["X-Frame-Options"] = "DENY"
    # "same-origin" and not "no-referrer": with that, browsers send the Origin "null".
    headers["Referrer-Policy"] = "same-origin"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    # Our own files may be kept and are asked for again with their ETag; pages are never kept.
    headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")


def _cookie_name(request: Request) -> str:
    """Return a name with the port: cookies do not tell ports apart, so two studios on one machine
    need two names.
    """
    server = request.scope.get("server")
    return f"skillfit-studio-{server[1] if server else 0}"


def _host_name(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _own_origin(request: Request) -> bool:
    """Return whether a changing request comes from our own pages. Browsers send an Origin with
    those.
    """
    origin = request.headers.get("origin")
    if origin is None:
        return request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    try:
        return urlsplit(origin).netloc == request.headers.get("host", "")
    except ValueError:
        return False


def _same(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), expected.encode())
