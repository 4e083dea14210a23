"""What every page of the studio needs: the runs, the folders, the templates, short messages."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from jinja2 import Environment
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from skillfit.report import RunStory
from skillfit.report.templates import make_environment
from skillfit.run.events import Event, EventLog
from skillfit.studio.access import CSRF_FIELD, Session
from skillfit.studio.commands import Starter
from skillfit.studio.folders import Folders
from skillfit.studio.library import NoSuchRun, RunLibrary

E = TypeVar("E", bound=Event)

_MESSAGES = 100  # kept until the page that shows them is loaded
_LARGEST_FORM = 2_000_000  # bytes


class Studio:
    """One studio: its folders, its session, and how pages are made."""

    def __init__(self, runs: Path, project: Path, session: Session) -> None:
        self.library = RunLibrary(runs)
        self.project = project
        self.folders = Folders.of(project, runs)
        self.session = session
        self.starter = Starter()
        self._messages: OrderedDict[str, str] = OrderedDict()
        self.templates: Environment = make_environment("skillfit.studio", "skillfit.report")
        self.templates.globals |= {
            "run_url": run_url,
            "csrf_field": CSRF_FIELD,
            "folder_name": runs.name,
        }

    def render(self, template: str, **context: Any) -> str:
        return self.templates.get_template(template).render(context)

    def page(self, request: Request, template: str, status: int = 200, **context: Any) -> Response:
        message = self._messages.pop(request.query_params.get("message", ""), "")
        text = self.render(template, csrf=self.session.csrf, message=message, **context)
        return HTMLResponse(text, status)

    def go_to(self, url: str, message: str = "") -> Response:
        """Redirect after a change, with a message for the next page."""
        if message:
            key = secrets.token_urlsafe(9)
            self._messages[key] = message
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


def events_of(events: EventLog, kind: type[E], *identity: object) -> list[E]:
    """The events of a kind whose first identity fields have these values."""
    found = [stored.event for stored in events.of_kind(kind, *identity)]
    return [event for event in found if isinstance(event, kind)]
