"""Pages that update themselves: parts of a page are sent again whenever they changed.

The pace follows the cost: after each look the stream rests fifty times as long as the look took, so
that a watched run never takes more than about 2 % of a core.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from skillfit.errors import SkillfitError

_REST = 50  # times the duration of a look
_LEAST = 1.0  # seconds between two looks
_MOST = 15.0
_QUIET = 20.0  # seconds after which a comment keeps the connection open

Look = Callable[[], Mapping[str, str]]  # the parts of a page by name, as HTML


def stream_parts(request: Request, look: Look) -> Response:
    """Server-sent events with the parts that changed. `look` runs in a thread; when the client
    leaves, a look in progress ends by itself and nothing else happens.
    """
    return StreamingResponse(
        _changes(request, look),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _changes(request: Request, look: Look) -> AsyncIterator[str]:
    shown: dict[str, str] = {}
    heard = time.monotonic()
    while not await request.is_disconnected():
        began = time.monotonic()
        try:
            parts = await asyncio.to_thread(look)
        except SkillfitError as error:  # the run was deleted or damaged while it was watched
            yield f"event: problem\ndata: {json.dumps(str(error))}\n\n"
            return
        took = time.monotonic() - began
        changed = {name: part for name, part in parts.items() if shown.get(name) != part}
        if changed:
            shown |= changed
            heard = time.monotonic()
            yield f"event: parts\ndata: {json.dumps(changed)}\n\n"
        elif time.monotonic() - heard > _QUIET:
            heard = time.monotonic()
            yield ": still here\n\n"
        await asyncio.sleep(min(_MOST, max(_LEAST, _REST * took)))
