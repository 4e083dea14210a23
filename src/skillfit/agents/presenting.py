"""How skill and item are put before a model: what stays the same comes first, so that provider prompt caches hit."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillfit.agents.agent import AgentFailure
from skillfit.errors import InputError
from skillfit.models.protocol import Image, Message
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
    """The item as the user says it: its own messages or its input, with files and images attached to the last user turn."""
    content = item.content()
    turns = [Message(turn["role"], _text(turn.get("content"))) for turn in content.get("messages") or ()]
    turns = turns or [Message("user", item.input)]
    extra = [f"## File: {name}\n\n{_read(path)}" for name, path in item_files(item).items()] if inline_files else []
    last = turns[-1]
    text = "\n\n".join([last.content, *extra, *([instruction] if instruction else [])])
    images = tuple(Image(Path(path), mimetypes.guess_type(str(path))[0] or "image/png") for path in content.get("images") or ())
    return (*turns[:-1], Message(last.role, text, images=images))


def item_files(item: Item) -> dict[str, Path]:
    """The item's attached files: name in a workspace -> where it stands."""
    files: Any = item.content().get("files") or ()
    if isinstance(files, dict):
        return {str(name): Path(path) for name, path in files.items()}
    return {Path(path).name: Path(path) for path in files}


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AgentFailure(f"The attached file {path} cannot be read as text: {error}.", hint="Use agent: tools or cli.") from error
