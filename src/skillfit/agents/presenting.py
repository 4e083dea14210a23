"""How skill and item are put before a model: what stays the same comes first, so that provider prompt caches hit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skillfit.agents.agent import AgentFailure
from skillfit.errors import InputError
from skillfit.models.protocol import Message
from skillfit.tasks.item import Item

if TYPE_CHECKING:
    from skillfit.skill import Skill

DEFAULT_PROMPT = "Follow this skill.\n\n{skill}"


def check_template(template: str) -> str:
    """The template itself, or an error when the skill would never reach the agent."""
    if "{skill}" not in template:
        raise InputError("env.prompt has no {skill}, so the agent would never see the skill.", hint="Put {skill} where it belongs.")
    return template


def system_message(template: str, skill: Skill) -> Message:
    # Plain replacement: a skill or a template may hold any other braces.
    return Message("system", template.replace("{skill}", skill.body.strip()).strip())


def item_messages(item: Item, instruction: str = "", *, inline_files: bool = True) -> tuple[Message, ...]:
    """The item's conversation, with its files (where they are not in a workspace) and the instruction after the last turn."""
    *before, last = item.messages
    files = [f"## File: {name}\n\n{_read(path)}" for name, path in item.files.items()] if inline_files else []
    return (*before, replace(last, content="\n\n".join([last.content, *files, *filter(None, [instruction])])))


def shorten(text: str, limit: int = 8000) -> str:
    """Head and tail of a long text, with a note of what was left out between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AgentFailure(f"The attached file {path} cannot be read as text: {error}.", hint="Use agent: tools or cli.") from error
