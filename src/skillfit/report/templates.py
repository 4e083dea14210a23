"""How pages are rendered: the template environment that the report and the studio share, and the
filters for numbers, times and texts from models and users.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from skillfit.plain_text import dollars, duration, percent, points, quantity, shorten, visible
from skillfit.report.story_items import Side
from skillfit.run.records import display_name

ASSETS = Path(__file__).parent / "assets"


def shown(value: Any) -> Any:
    """What a template writes for a value. Hidden characters of texts become visible escapes; markup
    of our own is left alone.
    """
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return value


def code_marks(text: str) -> Markup:
    """Text in which `backticks` mark code."""
    parts = visible(text).split("`")
    shown = [
        Markup("<code>{}</code>" if at % 2 else "{}").format(part) for at, part in enumerate(parts)
    ]
    return Markup("").join(shown)


def side_score(side: Side) -> str:
    """An item's result: "2/3" for 0 and 1 scores, a percentage for graded ones."""
    if not side.scores:
        return "failed" if side.failures else "–"
    if set(side.scores) <= {0.0, 1.0}:
        return f"{sum(side.scores):.0f}/{len(side.scores)}"
    return percent(side.mean or 0.0)


def date(at: float | None) -> str:
    """A time as this machine's clock shows it."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M")


def content_hash(text: str) -> str:
    """The hash with which a Content-Security-Policy allows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def asset(name: str) -> Markup:
    """A file of this package, trusted as it is."""
    return Markup((ASSETS / name).read_text(encoding="utf-8"))


FILTERS: dict[str, Callable[..., Any]] = {
    "code": code_marks,
    "content_hash": content_hash,
    "words": display_name,
    "short": shorten,
    "line": lambda text: " ".join(text.split()),
    "percent": percent,
    "points": points,
    "score": side_score,
    "dollars": dollars,
    "quantity": quantity,
    "duration": duration,
    "date": date,
    "thousands": lambda number: f"{number:,}",
}


def make_environment(*packages: str) -> Environment:
    """Templates of these packages' `assets` folders, the first that has a name winning. Every text
    is escaped, and hidden characters are shown.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "assets") for package in packages]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=shown,
    )
    environment.filters.update(FILTERS)
    return environment


@cache
def report_environment() -> Environment:
    return make_environment("skillfit.report")
