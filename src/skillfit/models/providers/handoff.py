"""No API at all: a prompt is written as a file, and whoever reads it, person or agent, drops the
answer beside it.

In the folder, `ID.prompt.md` is what to answer, `ID.request.json` the same for programs; the answer
goes into `ID.answer.md` (or .txt, .json).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from skillfit.errors import InputError
from skillfit.models.protocol import AnswerPending, Message, Reply, Request, Usage
from skillfit.models.provider import Setup

_ANSWERS = (".answer.md", ".answer.txt", ".answer.json")


@dataclass(frozen=True, slots=True)
class Pending:
    """A prompt that waits for its answer."""

    id: str
    prompt: Path
    answer: Path  # where the answer goes


def pending(folder: Path) -> list[Pending]:
    """Every prompt in `folder` without an answer, in order of name."""
    names = sorted(path.name.removesuffix(".prompt.md") for path in folder.glob("*.prompt.md"))
    return [
        Pending(n, folder / f"{n}.prompt.md", folder / f"{n}.answer.md")
        for n in names
        if _answer(folder, n) is None
    ]


def waiting(folder: Path) -> AnswerPending:
    """What a run that stops for answers says: how many, and where they go."""
    prompts = pending(folder)
    many = (
        f"{len(prompts)} prompts wait for their answers"
        if len(prompts) != 1
        else "1 prompt waits for its answer"
    )
    first = prompts[0].answer.name if prompts else "ID.answer.md"
    return AnswerPending(
        f"{many} in {folder}.",
        hint=f"Write each answer beside its prompt ({first}), then run the same command again.",
    )


def handoff(setup: Setup) -> HandoffProvider:
    setup.takes(base_url=False)
    if setup.folder is None:
        raise InputError(
            "A handoff model needs a folder for its prompts.",
            hint="A run gives it one; elsewhere pass `folder`.",
        )
    return HandoffProvider(setup.folder)


class HandoffProvider:
    endpoint = "handoff"
    slots: int | None = None
    context_window: int | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, request: Request) -> Reply:
        name = f"{request.stage.replace('.', '-')}-{request.fingerprint()[:16]}"
        text = _answer(self._folder, name)
        if text is None:
            self._write(name, request)
            where = self._folder / f"{name}.answer.md"
            raise AnswerPending(
                f"The prompt {name}.prompt.md waits for its answer.",
                hint=f"Write it to {where} and run the same command again.",
            )
        return Reply(text, usage=Usage(calls=1), model="handoff")

    async def close(self) -> None:
        """Nothing to close."""

    def _write(self, name: str, request: Request) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        fields = {
            "id": name,
            "stage": request.stage,
            "schema": request.schema,
            "messages": [_plain(m) for m in request.messages],
        }
        _write_whole(
            self._folder / f"{name}.request.json",
            json.dumps(fields, ensure_ascii=False, indent=2) + "\n",
        )
        _write_whole(self._folder / f"{name}.prompt.md", _readable(name, request))


def _readable(name: str, request: Request) -> str:
    head = f"# {request.stage}\n\nAnswer what follows, and write nothing but the answer to `{name}.answer.md` in this folder.\n"
    if request.schema:
        head += f"\nThe answer is JSON of this schema:\n\n```json\n{json.dumps(request.schema, ensure_ascii=False, indent=2)}\n```\n"
    parts = [
        f"\n---\n\n**{m.role}**\n\n{m.content}\n"
        + "".join(f"\n![image]({i.path})\n" for i in m.images)
        for m in request.messages
    ]
    return head + "".join(parts)


def _plain(message: Message) -> dict[str, object]:
    return {
        "role": message.role,
        "content": message.content,
        "images": [str(image.path) for image in message.images],
    }


def _answer(folder: Path, name: str) -> str | None:
    for ending in _ANSWERS:
        path = folder / f"{name}{ending}"
        if path.is_file() and (text := path.read_text(encoding="utf-8").strip()):
            return text
    return None


def _write_whole(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
