"""What every page of the studio needs: the folders, the templates, short messages, the runs under
the folder, the items of a run in full, lists in pages, and parts of a page that are sent again when
they changed.

Events keep long texts cut, so the full text and the images of an item come from the data file of
the run. Only data files are read: tasks that are programs or Python code are never run for a page.

Updates that take long are sent less often: after each look at a run the stream pauses fifty times
as long as the look took. So a watched run takes at most about 2 % of a core.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment
from markupsafe import Markup
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from skillfit.errors import InputError, SkillfitError
from skillfit.models.wire import image_media_type
from skillfit.plain_text import shorten
from skillfit.plugins.studio.commands import Folders, Starter
from skillfit.plugins.studio.markdown import markdown
from skillfit.record.fold import RunFollower
from skillfit.record.labels import LABELS
from skillfit.record.lists import find_runs, read_card
from skillfit.record.record import Record, RunCard
from skillfit.report.charts import StepRange, sparkline
from skillfit.report.html_report import PageData, make_environment
from skillfit.report.run_details import ItemMatrix, ItemSummary, open_details
from skillfit.run.control import STEERING
from skillfit.run.store import CONFIG_FILE, HANDOFF, JOURNAL, LOCK, in_use
from skillfit.run.view import RunView
from skillfit.tasks.item import Item
from skillfit.tasks.rows import FILE_SUFFIXES, items_of, read_rows

_MESSAGES = 100  # kept until the page that shows them is loaded
_LARGEST_FORM = 2_000_000  # bytes
_MOST_FIELDS = 1_000
_CSRF_FIELD = "csrf"
_FOLLOWED = 40  # runs whose record is kept in memory
_ASKED_RUNS = 20  # runs that are asked for the folder of their config
_PAUSE_FACTOR = 50  # pause between two looks, in durations of a look
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 15.0  # seconds between two looks
_QUIET = 20.0  # seconds after which a comment keeps the connection open
_LARGEST_FILE = 64_000_000  # bytes
_LARGEST_IMAGE = 20_000_000

Stamp = tuple[int, ...]  # changes whenever a file of the run was written
Look = Callable[[], Mapping[str, str]]  # the parts of a page by name, as HTML


@dataclass(frozen=True, slots=True)
class ActionMessage:
    """The message of an action, for the next page."""

    text: str
    failed: bool
    while_running: bool  # it is removed when the run is not running any more


class Studio:
    """One studio: its folders, its runs, and how pages are made."""

    def __init__(self, library: RunLibrary, project: Path | None, csrf: str) -> None:
        """Set up the studio. `project`: where new runs find skills, tasks and configs; None: not
        known. `csrf`: the token that every changing form must carry.
        """
        runs = library.folder
        self.library = library
        self.project = project
        self.folders = Folders.of(project, runs) if project else Folders.of(runs)
        self.csrf = csrf
        self.starter = Starter()
        self.closing = asyncio.Event()  # the server is shutting down
        self._messages: OrderedDict[str, ActionMessage] = OrderedDict()
        self.templates: Environment = make_environment("skillfit.plugins.studio", "skillfit.report")
        self.templates.globals |= {
            "run_url": run_url,
            "markdown": markdown,
            "config_of": self.config_of,
            "is_starting": lambda record: self.starter.is_alive(Path(record.path)),
            "csrf_field": _CSRF_FIELD,
            "folder_name": runs.name,
            "folder_path": str(runs) if project in (None, runs) else self.folders.shown(runs),
        }

    def config_of(self, record: Record) -> str:
        """Return the config file to start another run like this one from; empty where that cannot
        be.
        """
        path = Path(record.path) / CONFIG_FILE
        if self.project is None or record.only_measures or not path.is_file():
            return ""
        return self.folders.shown(self.folders.resolve(path))

    def render(self, page: PageData, part: str = "", **shared: object) -> str:
        """Render a page, or a part of it, as HTML."""
        return page.render(self.templates, part, csrf=self.csrf, **shared)

    def page(self, request: Request, page: PageData, status: int = 200) -> Response:
        """Reply with a page, and with the message that a change left for it. After a change that
        was refused the status says so too.
        """
        message = self._messages.pop(request.query_params.get("message", ""), None)
        if message is not None and message.failed:
            status = max(status, 400)
        return HTMLResponse(self.render(page, message=message), status)

    def go_to(
        self, url: str, message: str = "", *, failed: bool = False, while_running: bool = False
    ) -> Response:
        """Redirect after a change, with a message for the next page."""
        if message:
            key = secrets.token_urlsafe(9)
            self._messages[key] = ActionMessage(message, failed, while_running)
            while len(self._messages) > _MESSAGES:
                self._messages.popitem(last=False)
            page, mark, place = url.partition("#")
            url = f"{page}{'&' if '?' in page else '?'}message={key}{mark}{place}"
        return RedirectResponse(url, 303)

    def find(self, request: Request) -> Path:
        """Return the run that the address names, or raise a 404."""
        return self.find_name(str(request.path_params["name"]))

    def find_name(self, name: str) -> Path:
        try:
            return self.library.find(name)
        except NoSuchRun as error:
            raise HTTPException(404, str(error)) from error

    def record(self, request: Request) -> Record:
        return self.library.follow(self.find(request)).record()

    async def form(self, request: Request) -> dict[str, str]:
        """Read the fields of a changing request. Without the session's CSRF token it is refused.

        All forms are urlencoded. Starlette reads only with another package what the standard
        library reads too.
        """
        length = request.headers.get("content-length", "")
        if not length.isdigit() or int(length) > _LARGEST_FORM:
            raise HTTPException(413, "The form is too large.")
        body = (await request.body()).decode("utf-8", "replace")
        try:
            form = dict(parse_qsl(body, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
        except ValueError as error:
            raise HTTPException(400, "The form has too many fields.") from error
        token = form.get(_CSRF_FIELD, "").encode("utf-8", "replace")
        if not secrets.compare_digest(token, self.csrf.encode()):
            raise HTTPException(403, "This form is out of date. Reload the page and try again.")
        return form


class NoSuchRun(InputError):
    """No run of this name is in the folder."""


@dataclass(frozen=True, slots=True)
class NamedRun:
    """A run with the name it has in the studio: its path below the folder."""

    name: str
    card: RunCard

    @property
    def state(self) -> str:
        if self.card.only_checked:
            return "checked"
        return "failed" if self.card.failed else self.card.state

    @property
    def models(self) -> str:
        models = self.card.models
        return " ← ".join(models[role] for role in ("agent", "optimizer") if role in models)

    @property
    def curve(self) -> Markup:
        points = self.card.points
        return sparkline([point.score for point in points if point.split == "selection"])


@dataclass(frozen=True, slots=True)
class RunIndex:
    """The runs of the folder, the one changed last first, and what could not be read."""

    runs: tuple[NamedRun, ...]
    problems: tuple[str, ...]


class FollowedRun:
    """One run in memory. Any number of threads may ask for its record; only one reads at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._follower = RunFollower(path)
        self._lock = threading.Lock()
        self._stamp: Stamp = ()
        self._record: Record | None = None
        self._items: tuple[Record, tuple[ItemSummary, ...]] | None = None
        self._matrix: tuple[Record, ItemMatrix] | None = None

    def items(self) -> tuple[ItemSummary, ...]:
        """Return the items that the present record compares."""
        record, known = self.record(), self._items
        if known is None or known[0] is not record:
            with open_details(self.path) as details:
                known = self._items = record, details.compared_items(record)
        return known[1]

    def matrix(self) -> ItemMatrix:
        """Return all items over the run, as of the present record."""
        record, known = self.record(), self._matrix
        if known is None or known[0] is not record:
            with open_details(self.path) as details:
                known = self._matrix = record, details.matrix(record)
        return known[1]

    def record(self) -> Record:
        """Return the record as of now. Nothing is read when no file of the run has changed."""
        with self._lock:
            if not (self.path / JOURNAL).is_file():
                raise NoSuchRun(f"The run in {self.path} is gone: it was deleted or moved.")
            stamp = stamp_of(self.path)
            record = self._record
            ended = record is not None and record.state == "running" and not in_use(self.path)
            if record is None or stamp != self._stamp or ended:
                record = self._record = self._follower.record()
                self._stamp = stamp
            return record


class RunLibrary:
    """The runs under a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._listed: dict[Path, tuple[Stamp, RunCard]] = {}
        self._followed: OrderedDict[Path, FollowedRun] = OrderedDict()

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path != self.folder else path.name

    def find(self, name: str) -> Path:
        """Return the directory of a run. Only names of runs inside the folder lead anywhere."""
        parts = Path(name).parts
        plain = name and "\x00" not in name and not Path(name).is_absolute() and ".." not in parts
        with suppress(OSError):  # the name is too long for the file system
            for path in (self.folder / name, self.folder) if plain else ():
                if self.name_of(path) == name and (path / JOURNAL).is_file() and self._holds(path):
                    return path
        raise NoSuchRun(f"There is no run {shorten(name, 200)!r}.")

    def _holds(self, path: Path) -> bool:
        """Return whether the run's journal is in the folder, with links followed."""
        return (path / JOURNAL).resolve().is_relative_to(self.folder.resolve())

    def follow(self, path: Path) -> FollowedRun:
        """Return the run in a directory, kept in memory with the others that were asked for
        last.
        """
        with self._lock:
            followed = self._followed.get(path)
            if followed is None:
                followed = self._followed[path] = FollowedRun(path)
            self._followed.move_to_end(path)
            while len(self._followed) > _FOLLOWED:
                self._followed.popitem(last=False)
            return followed

    def record(self, name: str) -> Record:
        return self.follow(self.find(name)).record()

    @property
    def is_run(self) -> bool:
        """Whether the folder is itself a run."""
        return (self.folder / JOURNAL).is_file()

    def config_folders(self) -> Iterator[Path]:
        """Yield the folders of the configs of the newest runs that are still there."""
        for run in self.index().runs[:_ASKED_RUNS]:
            try:
                with closing(RunView.open(Path(run.card.path))) as view:
                    folder = view.config.settings.env.folder
            except SkillfitError:  # damaged: its own page says so
                continue
            if folder and Path(folder).is_dir():
                yield Path(folder).resolve()

    def index(self) -> RunIndex:
        """List all runs. A run whose files did not change is not read again."""
        runs: list[NamedRun] = []
        problems: list[str] = []
        if not self.folder.is_dir():
            problems.append(f"The folder {self.folder} is gone: it was deleted or moved.")
        with self._lock:
            known, self._listed = self._listed, {}
            for path in find_runs(self.folder):
                if (path / JOURNAL).is_symlink() and not self._holds(path):
                    continue
                try:
                    stamp = stamp_of(path)
                    kept = known.get(path)
                    if kept is not None and kept[0] == stamp and kept[1].state != "running":
                        card = kept[1]
                    else:
                        card = read_card(path)
                except (InputError, OSError) as error:
                    problems.append(str(error))
                    continue
                self._listed[path] = (stamp, card)
                if card.started or card.state == "running":
                    runs.append(NamedRun(self.name_of(path), card))
        runs.sort(key=lambda run: (-(run.card.ended or 0.0), run.name))
        return RunIndex(tuple(runs), tuple(problems))


def stamp_of(path: Path) -> Stamp:
    """Return sizes and times of the files that change with a run."""
    stamp: list[int] = []
    for name in (JOURNAL, f"{JOURNAL}-wal", LOCK, STEERING, HANDOFF, LABELS):
        try:
            found = (path / name).stat()
        except OSError:
            stamp.append(0)
        else:
            stamp += (found.st_mtime_ns, found.st_size)
    return tuple(stamp)


@dataclass(frozen=True, slots=True)
class FullItem:
    """An item as the agent was given it."""

    input: str
    images: tuple[Path, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageFile:
    media_type: str
    data: bytes


def full_item(folders: Folders, record: Record, item_id: str) -> FullItem | None:
    """Return the item, or None when its file is not there, not inside the folders, or no data
    file.
    """
    path = Path(record.data.tasks)
    if path.suffix not in FILE_SUFFIXES or not folders.holds(path) or not path.is_file():
        return None
    found = path.stat()
    if found.st_size > _LARGEST_FILE:
        return None
    fields = record.config.settings.env.fields
    try:
        items = _items_of_file(path, found.st_mtime_ns, tuple(sorted(fields.items())))
    except SkillfitError:  # the file changed since the run; its events are all there is
        return None
    item = items.get(item_id)
    if item is None:
        return None
    images = tuple(image.path for image in item.images)
    return FullItem(item.input, images, tuple(item.files))


@lru_cache(maxsize=4)
def _items_of_file(
    path: Path, modified: int, fields: tuple[tuple[str, str], ...]
) -> dict[str, Item]:
    """Read the items of a file by id. `modified` makes a changed file another entry of the
    cache.
    """
    return {item.id: item for item in items_of(read_rows(path), dict(fields))}


def image_file(folders: Folders, path: Path) -> ImageFile | None:
    """Read an image inside the folders, recognised by its first bytes; None for anything else."""
    if not folders.holds(path) or not path.is_file() or path.stat().st_size > _LARGEST_IMAGE:
        return None
    data = path.read_bytes()
    media_type = image_media_type(data)
    return ImageFile(media_type, data) if media_type else None


def run_url(page: str, name: str, /, **query: object) -> str:
    """Return the address of a page of a run."""
    words = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in query.items())
    return f"/{page}/{quote(name)}" + (f"?{words}" if words else "")


def number_in(request: Request, name: str, default: int = 1, least: int = 1) -> int:
    """Return a whole number of the query; the default where there is none."""
    text = request.query_params.get(name, "")
    return max(least, int(text)) if text.isdecimal() and len(text) < 10 else default


def steps_in(request: Request) -> StepRange | None:
    """Return the part of a curve that the query asks for."""
    if not {"from", "to"} <= set(request.query_params):
        return None
    first = number_in(request, "from", 0, 0)
    return first, number_in(request, "to", first, first)


ListedRow = TypeVar("ListedRow")


@dataclass(frozen=True, slots=True)
class ListPage(Generic[ListedRow]):
    """One page of a list."""

    rows: Sequence[ListedRow]
    number: int
    pages: int
    first: int  # number of the first row, counted from 1; 0 when there is none
    total: int
    query: str  # of the other pages, without their number

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0


def page_of(
    rows: Sequence[ListedRow], number: int, size: int, query: QueryParams
) -> ListPage[ListedRow]:
    """Return the page with this number, or the last one."""
    pages = max(1, -(-len(rows) // size))
    number = min(number, pages)
    kept = [(key, value) for key, value in query.multi_items() if key not in ("page", "message")]
    start = (number - 1) * size
    first = start + 1 if rows else 0
    return ListPage(rows[start : start + size], number, pages, first, len(rows), urlencode(kept))


def stream_parts(
    studio: Studio, request: Request, look: Look, is_over: Callable[[], bool] = lambda: False
) -> Response:
    """Stream the parts that changed as server-sent events. `look` runs in a thread; when the client
    leaves, a read in progress finishes and nothing else happens. The stream ends when the server is
    shutting down, and when nothing will change any more: `is_over` is asked after each look. A
    browser has six connections to a site, and an open stream holds one of them.
    """
    return StreamingResponse(
        _changes(studio, request, look, is_over),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _changes(
    studio: Studio, request: Request, look: Look, is_over: Callable[[], bool]
) -> AsyncIterator[str]:
    shown: dict[str, str] = {}
    last_sent = time.monotonic()
    while not studio.closing.is_set() and not await request.is_disconnected():
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
        if is_over():
            yield "event: over\ndata: {}\n\n"
            return
        pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, _PAUSE_FACTOR * took))
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await studio.closing.wait()
