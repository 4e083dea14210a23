"""The optimizer's prompts: one Jinja2 template a stage, beside this file."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, **values: Any) -> str:
    """The prompt `name`.md with its blanks filled; a missing value is an error."""
    return _environment().get_template(f"{name}.md").render(**values).strip()


def sections(**parts: str) -> str:
    """Tagged sections in the order given, empty ones left out. Material cannot close its own section."""
    closed = {name: text.strip().replace(f"</{name}>", f"< /{name}>") for name, text in parts.items()}
    return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in closed.items() if text)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(loader=FunctionLoader(_read), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _read(name: str) -> str:
    from importlib.resources import files

    return files(__name__).joinpath(name).read_text(encoding="utf-8")
