"""What every page of the studio needs: the runs, the folders, the templates, short messages, lists
in pages, and parts of a page that are sent again when they changed.

The pace of updates follows their cost: after each look the stream rests fifty times as long as the
look took, so that a watched run never takes more than about 2 % of a core.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

from jinja2 import Environment
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from skillfit.errors import SkillfitError
from skillfit.report import RunStory
from skillfit.report.html_report import make_environment
from skillfit.studio.access import CSRF_FIELD, Session
from skillfit.studio.commands import Folders, Starter
from skillfit.studio.library import NoSuchRun, RunLibrary

_MESSAGES = 100  # kept until the page that shows them is loaded
_LARGEST_FORM = 2_000_000  # bytes


@dataclass(frozen=True, slots=True)
class ActionMessage:
    """What an action said, for the next page."""

    text: str
    failed: bool


class Studio:
    """One studio: its folders, its session, and how pages are made."""

    def __init__(self, runs: Path, project: Path, session: Session) -> None:
        self.library = RunLibrary(runs)
        self.project = project
        self.folders = Folders.of(project, runs)
        self.session = session
        self.starter = Starter()
        self._messages: OrderedDict[str, ActionMessage] = OrderedDict()
        self.templates: Environment = make_environment("skillfit.studio", "skillfit.report")
        self.templates.globals |= {
            "run_url": run_url,
            "csrf_field": CSRF_FIELD,
            "folder_name": runs.name,
        }

    def render(self, template: str, /, **context: object) -> str:
        return self.templates.get_template(template).render(context)

    def page(
        self, request: Request, template: str, /, status: int = 200, **context: object
    ) -> Response:
        message = self._messages.pop(request.query_params.get("message", ""), None)
        text = self.render(template, csrf=self.session.csrf, message=message, **context)
        return HTMLResponse(text, status)

    def go_to(self, url: str, message: str = "", *, failed: bool = False) -> Response:
        """Redirect after a change, with a message for the next page."""
        if message:
            key = secrets.token_urlsafe(9)
            self._messages[key] = ActionMessage(message, failed)
            while len(self._messages) > _MESSAGES:
                self._messages.popitem(last=False)
            url += f"{'&' if '?' in url else '?'}message={key}"
        return RedirectResponse(url, 303)

    def find(self, request: Request) -> Path:
        """The run that the address names, or a 404."""
        try:
            return self.library.find(str(request.path_params["name"]))
        except NoSuchRun as error:
            raise HTTPException(404, str(error)) from error

    def story(self, request: Request) -> RunStory:
        return self.library.follow(self.find(request)).story()

    async def form(self, request: Request) -> FormData:
        """The fields of a changing request. Without the session's CSRF token it is refused."""
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > _LARGEST_FORM:
            raise HTTPException(413, "The form is too large.")
        form = await request.form(max_files=0)
        if not self.session.accepts_csrf(str(form.get(CSRF_FIELD, ""))):
            raise HTTPException(403, "This form is out of date. Reload the page and try again.")
        return form


def run_url(page: str, name: str, **query: object) -> str:
    """The address of a page of a run."""
    words = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in query.items())
    return f"/{page}/{quote(name)}" + (f"?{words}" if words else "")


def number_in(request: Request, name: str, default: int = 1, least: int = 1) -> int:
    """A whole number of the query; the default where there is none."""
    text = request.query_params.get(name, "")
    return max(least, int(text)) if text.isdecimal() and len(text) < 10 else default


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page of a list."""

    rows: Sequence[Row]
    number: int
    pages: int
    first: int  # number of the first row, counted from 1; 0 when there is none
    total: int
    query: str  # of the other pages, without their number

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0


def page_of(rows: Sequence[Row], number: int, size: int, query: QueryParams) -> Page[Row]:
    """The page with this number, or the last one."""
    pages = max(1, -(-len(rows) // size))
    number = min(number, pages)
    kept = [(key, value) for key, value in query.multi_items() if key not in ("page", "message")]
    start = (number - 1) * size
    first = start + 1 if rows else 0
    return Page(rows[start : start + size], number, pages, first, len(rows), urlencode(kept))


_REST = 50  # times the duration of a look
_LEAST = 1.0  # seconds between two looks
_MOST = 15.0
_QUIET = 20.0  # seconds after which a comment keeps the connection open

Look = Callable[[], Mapping[str, str]]  # the parts of a page by name, as HTML


def stream_parts(request: Request, look: Look) -> Response:
    """Server-sent events with the parts that changed. `look` runs in a thread; when the client
    leaves, a look in progress ends by itself and nothing else happens.
    """
    return StreamingResponse(
        _changes(request, look),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _changes(request: Request, look: Look) -> AsyncIterator[str]:
    shown: dict[str, str] = {}
    last_sent = time.monotonic()
    while not await request.is_disconnected():
        began = time.monotonic()
        try:
            parts = await asyncio.to_thread(look)
        except SkillfitError as error:  # the run was deleted or damaged while it was watched
            yield f"event: problem\ndata: {json.dumps(str(error))}\n\n"
            return
        took = time.monotonic() - began
        changed = {name: part for name, part in parts.items() if shown.get(name) != part}
        if changed:
            shown |= changed
            last_sent = time.monotonic()
            yield f"event: parts\ndata: {json.dumps(changed)}\n\n"
        elif time.monotonic() - last_sent > _QUIET:
            last_sent = time.monotonic()
            yield ": still here\n\n"
        await asyncio.sleep(min(_MOST, max(_LEAST, _REST * took)))
