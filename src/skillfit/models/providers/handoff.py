"""A model without an API: each prompt is written to a file, and a person or another agent writes
the answer into a file beside it.

For a prompt ID, the folder holds
- `ID.prompt.md`: what to answer;
- `ID.answer.json` (or `.md` for plain text): where the answer goes, with the form pre-filled;
- `ID.request.json`: the request for programs, with the complete JSON schema.
An answer is checked when it is read. One that cannot be used is reported and keeps waiting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillfit.atomic_write import write_whole
from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject, json_candidates, parse_model_json
from skillfit.models.protocol import AnswerPending, Message, Reply, Request, Usage
from skillfit.models.registry import Setup
from skillfit.plain_text import quantity, shorten

_ENDINGS = (".answer.json", ".answer.md", ".answer.txt")
_MAX_SHOWN = 3  # problems named in one message
_MAX_DEPTH = 8  # of a pre-filled form; schemas can be recursive
_HEADINGS = {
    "system": "What to do",
    "user": "Input",
    "assistant": "Earlier answer",
    "tool": "Tool result",
}


@dataclass(frozen=True, slots=True)
class Pending:
    """A prompt without a usable answer. `problem`: why the answer in the folder cannot be used."""

    id: str
    prompt: Path
    answer: Path
    problem: str = ""


def pending(folder: Path) -> list[Pending]:
    """Return every prompt in `folder` without a usable answer, sorted by id."""
    found = []
    for prompt in sorted(folder.glob("*.prompt.md")):
        name = prompt.name.removesuffix(".prompt.md")
        form = _recorded_form(folder / f"{name}.request.json")
        answer = _read_answer(folder, name, form)
        if answer.text is None:
            where = answer.path or folder / f"{name}{form.ending}"
            found.append(Pending(name, prompt, where, answer.problem))
    return found


def pending_error(folder: Path) -> AnswerPending:
    """Make the error of a run that stops for answers: how many, where they go, what is wrong so
    far.
    """
    prompts = pending(folder)
    count = quantity(len(prompts), "prompt waits", "prompts wait")
    problems = [f"{prompt.answer.name}: {prompt.problem}" for prompt in prompts if prompt.problem]
    unusable = "".join(f" Cannot use {problem}" for problem in problems[:_MAX_SHOWN])
    first = prompts[0].answer.name if prompts else "ID.answer.json"
    return AnswerPending(
        f"{count} for an answer in {folder}.{unusable}",
        hint=f"Fill in the answer beside each prompt ({first}), then run the same command again.",
    )


def handoff(setup: Setup) -> HandoffProvider:
    """Return the provider. A run gives it the folder."""
    setup.takes(base_url=False, key_env=False)
    if setup.folder is None:
        raise InputError(
            "A handoff model needs a folder for its prompts.",
            hint="A run gives it one; elsewhere pass `folder` to connect().",
        )
    return HandoffProvider(setup.folder)


class HandoffProvider:
    """Writes prompts into a folder and reads the answers from it."""

    endpoint = "handoff"
    slots: int | None = None
    context_window: int | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def send(self, request: Request) -> Reply:
        """Return the answer in the folder. Raises `AnswerPending` when there is none that can be
        used.
        """
        name, form = _name(request), _Form(request.schema)
        answer = _read_answer(self._folder, name, form)
        if answer.text is not None:
            return Reply(answer.text, usage=Usage(calls=1), model="handoff")
        if answer.problem:
            raise AnswerPending(
                f"The answer in {answer.path} cannot be used: {answer.problem}",
                hint="Correct it, then run the same command again.",
            )
        self._write(name, request, form)
        raise AnswerPending(
            f"The prompt {name}.prompt.md waits for its answer.",
            hint=f"Fill in {self._folder / name}{form.ending}, then run the same command again.",
        )

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _write(self, name: str, request: Request, form: _Form) -> None:
        """Return the files of a prompt. The prompt comes last: with it the others are there too."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fields = {
            "id": name,
            "stage": request.stage,
            "purpose": request.purpose,
            "schema": request.schema,
            "messages": [_plain(message) for message in request.messages],
        }
        recorded = json.dumps(fields, ensure_ascii=False, indent=2) + "\n"
        write_whole(self._folder / f"{name}.request.json", recorded.encode())
        answer = self._folder / f"{name}{form.ending}"
        if not answer.exists():
            write_whole(answer, form.prefilled.encode())
        write_whole(self._folder / f"{name}.prompt.md", _prompt(name, request, form).encode())


class _Form:
    """The form of an answer: JSON that follows a schema, or plain text."""

    def __init__(self, schema: JsonObject | None) -> None:
        self._schema = schema

    @property
    def ending(self) -> str:
        return ".answer.md" if self._schema is None else ".answer.json"

    @property
    def prefilled(self) -> str:
        """The answer file before it has an answer."""
        if self._schema is None:
            return ""
        return json.dumps(_empty_value(self._schema, self._schema), indent=2) + "\n"

    @property
    def lists(self) -> list[str]:
        """The fields that hold lists of objects, which may be empty, as `patch.edits`."""
        return [] if self._schema is None else list(_object_lists(self._schema, self._schema))

    def is_filled_in(self, text: str) -> bool:
        """Return whether the text is an answer. ValueError: what is wrong with it."""
        if not text.strip() or text.strip() == self.prefilled.strip():
            return False
        if self._schema is None:
            return True
        first_problem = ""
        for candidate in json_candidates(text):
            try:
                value = parse_model_json(candidate)
            except ValueError as error:
                first_problem = first_problem or str(error)
                continue
            if value == _empty_value(self._schema, self._schema):
                return False
            problem = next(_problems(value, self._schema, self._schema), "")
            if not problem:
                return True
            first_problem = first_problem or problem
        raise ValueError(first_problem or "There is no JSON in it.")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the folder holds for a prompt. `text` is None when there is no usable answer."""

    text: str | None = None
    path: Path | None = None
    problem: str = ""


def _read_answer(folder: Path, name: str, form: _Form) -> _Answer:
    unusable = _Answer()
    for ending in _ENDINGS:
        path = folder / f"{name}{ending}"
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
            if form.is_filled_in(text):
                return _Answer(text.strip(), path)
        except UnicodeDecodeError:
            unusable = _Answer(path=path, problem="It is not UTF-8 text.")
        except ValueError as error:
            unusable = _Answer(path=path, problem=str(error))
    return unusable


def _recorded_form(path: Path) -> _Form:
    """Return the form that the request file of a prompt names; plain text if it is missing or
    damaged.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return _Form(None)
    schema = fields.get("schema") if isinstance(fields, dict) else None
    return _Form(schema if isinstance(schema, dict) else None)


def _name(request: Request) -> str:
    """Return the id of a prompt: its stage and purpose in readable form, and a hash of the
    request.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", f"{request.stage} {request.purpose}".lower())
    return f"{readable.strip('-')[:60].strip('-')}-{request.fingerprint()[:12]}"


def _prompt(name: str, request: Request, form: _Form) -> str:
    about = f" ({request.purpose})" if request.purpose else ""
    parts = [
        f"# {request.stage}{about}\n",
        f"Write the answer into `{name}{form.ending}` in this folder, and nothing else.\n",
    ]
    for message in request.messages:
        parts.append(f"\n## {_HEADINGS[message.role]}\n\n{message.content}\n")
        parts += [f"\n![image]({image.path})\n" for image in message.images]
    if request.schema is not None:
        parts.append(
            "\n## Form of the answer\n\nJSON with these fields (the answer file has them already; "
            f"`{name}.request.json` has the complete schema):\n\n```json\n{form.prefilled}```\n"
        )
        if form.lists:
            edits = [name for name in form.lists if name.rpartition(".")[2] == "edits"]
            nothing = f"To propose nothing, set `{(edits or form.lists)[0]}` to `[]`."
            parts.append(f"\n{nothing} Other lists may be empty too.\n")
    return "".join(parts)


def _empty_value(schema: JsonObject, root: JsonObject, depth: int = 0) -> Any:
    """Return a value of the schema's form with nothing in it. Lists of objects get one empty
    object.
    """
    schema = _resolved(schema, root)
    if "default" in schema and not isinstance(schema["default"], (list, dict)):
        return schema["default"]
    kind = schema.get("type")
    if kind == "object" and depth < _MAX_DEPTH:
        properties = schema.get("properties", {})
        return {name: _empty_value(part, root, depth + 1) for name, part in properties.items()}
    if kind == "array":
        items = _resolved(schema.get("items", {}), root)
        is_object = items.get("type") == "object" and depth < _MAX_DEPTH
        return [_empty_value(items, root, depth + 1)] if is_object else []
    return {"string": "", "integer": 0, "number": 0, "boolean": False, "object": {}}.get(str(kind))


def _object_lists(schema: JsonObject, root: JsonObject, inside: str = "") -> Iterator[str]:
    """Yield the names of the lists of objects that may be empty, not those inside of other
    lists.
    """
    for name, part in _resolved(schema, root).get("properties", {}).items():
        resolved = _resolved(part, root)
        if resolved.get("type") == "object":
            yield from _object_lists(resolved, root, f"{inside}{name}.")
        items = _resolved(resolved.get("items", {}), root)
        if items.get("type") == "object" and not resolved.get("minItems"):
            yield f"{inside}{name}"


def _problems(value: Any, schema: JsonObject, root: JsonObject) -> Iterator[str]:
    """Yield the required fields that a value does not have, and words that are none of those that
    its schema names. Types of single values are checked later, by the stage that asked.
    """
    schema = _resolved(schema, root)
    if schema.get("type") == "array" and isinstance(value, list):
        for item in value:
            yield from _problems(item, schema.get("items", {}), root)
    if schema.get("type") != "object":
        return
    if not isinstance(value, dict):
        present = shorten(json.dumps(value, ensure_ascii=False), 60)
        yield f"An object is needed where it has {present}."
        return
    for name in schema.get("required", ()):
        if name not in value:
            yield f"The field `{name}` is missing."
    is_filled_in = any(value.values())
    for name, part in schema.get("properties", {}).items():
        known = _resolved(part, root).get("enum", ())
        given = value.get(name, part.get("default"))
        is_word = bool(known) and is_filled_in and isinstance(given, str)
        if is_word and not {given, _word(given)}.intersection(known):
            shown = shorten(json.dumps(given, ensure_ascii=False), 60)
            yield f"The field `{name}` is {shown}; available: {', '.join(map(str, known))}."
        elif value.get(name) is not None:
            yield from _problems(value[name], part, root)


def _word(text: str) -> str:
    """Return a word as schemas name it: `Insert-after` is `insert_after`."""
    return re.sub(r"[\s-]+", "_", text.strip().lower())


def _resolved(schema: JsonObject, root: JsonObject) -> JsonObject:
    """Return the schema that a `$ref` or an optional value means; nothing where it has several
    forms.
    """
    for _ in range(_MAX_DEPTH):
        if "$ref" in schema:
            schema = root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
        elif "anyOf" in schema:
            options = [part for part in schema["anyOf"] if part.get("type") != "null"]
            schema = options[0] if len(options) == 1 else {}
        else:
            break
    return schema


def _plain(message: Message) -> JsonObject:
    return {
        "role": message.role,
        "content": message.content,
        "images": [str(image.path) for image in message.images],
    }
