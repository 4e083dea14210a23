"""How skill and item are put into a prompt.

What stays the same for all items (the skill) comes first, so that prompt caches of providers work.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from skillfit.agents.agent import AgentFailure
from skillfit.models.protocol import Message
from skillfit.skill import Skill
from skillfit.tasks.item import Item


def system_message(template: str, skill: Skill) -> Message:
    """The template with the skill's body in place of {skill}. Other braces stay as they are."""
    return Message("system", template.replace("{skill}", skill.body.strip()).strip())


def item_messages(
    item: Item, instruction: str = "", *, inline_files: bool = True
) -> tuple[Message, ...]:
    """The item's conversation. The last turn also holds its files (with `inline_files`: for agents
    without a workspace) and the instruction.
    """
    *before, last = item.messages
    parts = [last.content]
    if inline_files:
        parts += [f"## File: {name}\n\n{_read_text(path)}" for name, path in item.files.items()]
    if instruction:
        parts.append(instruction)
    return (*before, replace(last, content="\n\n".join(parts)))


def shorten(text: str, limit: int = 8000) -> str:
    """The beginning and the end of a long text, with a note about what was left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AgentFailure(
            f"The attached file {path} cannot be read as text: {error}.",
            hint="Use env.agent: tools or cli, which give the agent the file itself.",
        ) from error
