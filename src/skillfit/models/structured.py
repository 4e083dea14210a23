"""Ask a model for a reply of a given type.

The type's JSON schema goes out with the request. The reply is read as JSON and validated; a reply
that does not fit is asked for once more with the reason, and then it is a `BadReply`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from skillfit.models.json_text import JsonObject, json_candidates, parse_model_json
from skillfit.models.protocol import BadReply, Message, Model, Reply, Request

T = TypeVar("T")
_MAX_PROBLEMS = 5  # validation problems named to the model
_MAX_REASON = 1000  # characters of the reason sent back to the model
_LONG = 50_000  # characters of a reply that takes a noticeable time to read
_MAX_SENT_BACK = 50_000  # characters of an unusable reply sent back to the model


async def ask(model: Model, request: Request, reply_type: type[T]) -> T:
    """The reply as `reply_type`. Raises `BadReply` when two replies in a row cannot be used."""
    form: ReplyForm[T] = _form(cast(Hashable, reply_type))
    request = replace(request, schema=request.schema or form.schema)
    first = await model.complete(request)
    try:
        return await _parse(form, first.text)
    except ValueError as error:
        second_request = _with_complaint(request, first, error)
    second = await model.complete(second_request)
    try:
        return await _parse(form, second.text)
    except ValueError as error:
        # The error carries no usage: both replies are already on the bill.
        raise BadReply(
            f"{model.id} sent two replies in a row that do not have the requested form "
            f"({request.stage}): {_reason(error)}"
        ) from error


async def _parse(form: ReplyForm[T], text: str) -> T:
    """A long reply is read in a thread: seconds in the event loop would hold up all other calls."""
    if len(text) < _LONG:
        return form.parse(text)
    return await asyncio.to_thread(form.parse, text)


@dataclass(frozen=True)
class ReplyForm(Generic[T]):
    """The form of a reply: validates a text, and has the JSON schema that asks for it."""

    adapter: TypeAdapter[T]
    schema: JsonObject

    def parse(self, text: str) -> T:
        """The reply in `text`. ValueError when there is none of this form."""
        first_problem: ValueError | None = None
        for candidate in json_candidates(text):
            try:
                return self.adapter.validate_python(parse_model_json(candidate))
            except ValueError as error:
                first_problem = first_problem or error
        raise first_problem or ValueError("There is no JSON in the reply.")


def reply_form(reply_type: type[T]) -> ReplyForm[T]:
    adapter = TypeAdapter(reply_type)
    return ReplyForm(adapter, adapter.json_schema())


@lru_cache(maxsize=64)  # bounded: graders create a type per item
def _form(reply_type: Any) -> ReplyForm[Any]:
    return reply_form(reply_type)


def _with_complaint(request: Request, reply: Reply, error: ValueError) -> Request:
    complaint = (
        f"That reply could not be used: {_reason(error)}\n"
        "Reply again, with nothing but JSON of the requested form."
    )
    answer = Message("assistant", reply.text[:_MAX_SENT_BACK])
    return replace(request, messages=(*request.messages, answer, Message("user", complaint)))


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)[:_MAX_REASON]
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [
        f"{'.'.join(map(str, problem['loc'])) or 'reply'}: {problem['msg']}"
        for problem in problems[:_MAX_PROBLEMS]
    ]
    return "; ".join(lines)[:_MAX_REASON]
