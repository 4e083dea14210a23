"""The optimizer's prompts: one Jinja2 template a stage, beside this file."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from skillfit.skill import Skill

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, **values: Any) -> str:
    """The prompt `name`.md with its blanks filled; a missing value is an error."""
    return _environment().get_template(f"{name}.md").render(**values).strip()


def sections(**parts: str | Skill) -> str:
    """Tagged sections in the order given, empty texts left out. Material cannot close its own
    section.
    """
    texts = {
        name: part.unix_body or "(empty)" if isinstance(part, Skill) else part
        for name, part in parts.items()
    }
    closed = {
        name: text.strip().replace(f"</{name}>", f"< /{name}>") for name, text in texts.items()
    }
    return "\n\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in closed.items() if text)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_read),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _read(name: str) -> str:
    from importlib.resources import files

    return files(__name__).joinpath(name).read_text(encoding="utf-8")
