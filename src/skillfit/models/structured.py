"""JSON that others wrote.

Replies of a given form: the schema goes out with the request, the text comes back validated, or is
asked for once more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from skillfit.models.protocol import BadReply, Message, Model, Reply, Request


def whole_json(text: str) -> Any:
    """What the text says. Half a surrogate pair (an emoji cut in two) can stand in JSON as an
    escape, but nowhere in UTF-8: it is replaced.
    """
    value = json.loads(text)
    if "\\ud" not in text.lower():
        return value
    plain = json.dumps(value, ensure_ascii=False)
    return json.loads(plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


T = TypeVar("T")
_FENCE = re.compile(r"```[A-Za-z]*\s*\n(.*?)```", re.DOTALL)


async def ask(model: Model, request: Request, reply_type: type[T]) -> T:
    """The reply as `reply_type`. One that does not fit is asked for again with the reason, once;
    then `BadReply`.
    """
    form: TypeAdapter[T]
    form, schema = _form(cast(Hashable, reply_type))
    request = replace(request, schema=request.schema or schema)
    first = await model.complete(request)
    try:
        return parse(first.text, form)
    except ValueError as error:
        again = _asked_again(request, first, error)
    second = await model.complete(again)
    try:
        return parse(second.text, form)
    except ValueError as error:
        # No usage: both replies came through and were billed when they did.
        raise BadReply(
            f"{model.id} did not reply in the form asked for ({request.stage}), twice: {_reason(error)}"
        ) from error


@lru_cache(maxsize=64)  # graders make types of their own, one an item
def _form(reply_type: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    form = TypeAdapter(reply_type)
    return form, form.json_schema()


def parse(text: str, form: TypeAdapter[T]) -> T:
    """`text` read as JSON with the usual slips of models forgiven, and validated. A reply that
    stops midway is never completed.
    """
    problem: ValueError | None = None
    for candidate in _candidates(text):
        try:
            return form.validate_python(_load(candidate))
        except ValueError as error:
            problem = problem or error
    raise problem or ValueError("There is no JSON in the reply.")


def _candidates(text: str) -> list[str]:
    """Where the JSON may be: fenced blocks, then from the first bracket on."""
    start = re.search(r"[\[{]", text)
    return [
        *(block.strip() for block in _FENCE.findall(text)),
        *([text[start.start() :]] if start else []),
    ]


def _load(text: str) -> Any:
    try:
        return json.JSONDecoder(strict=False).raw_decode(text)[0]
    except ValueError:
        if _stops_midway(text):
            raise ValueError("The reply stops in the middle of its JSON.") from None
    import json_repair

    value = json_repair.loads(text)
    if not isinstance(value, (dict, list)):
        raise ValueError("There is no JSON in the reply.")
    return value


def _stops_midway(text: str) -> bool:
    """Whether a bracket or a string is still open at the end."""
    depth, quoted, escaped = 0, False, False
    for char in text:
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
            if depth == 0:
                return False  # what follows a closed value is talk
    return quoted or depth > 0


def _asked_again(request: Request, reply: Reply, error: ValueError) -> Request:
    complaint = f"That reply could not be used: {_reason(error)}\nReply again, with nothing but JSON of the form asked for."
    return replace(
        request,
        messages=(*request.messages, Message("assistant", reply.text), Message("user", complaint)),
    )


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'reply'}: {e['msg']}"
            for e in error.errors(include_url=False)[:5]
        )
    return str(error)
