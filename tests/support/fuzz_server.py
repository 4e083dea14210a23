"""A server on loopback that answers each request with the bytes that a function gives."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Answer = Callable[[str, dict[str, Any]], bytes]  # path and body -> a whole HTTP answer


@asynccontextmanager
async def fuzz_server(answer: Answer) -> AsyncIterator[str]:
    """Its address. Each connection carries one request; then it is closed. An error in `answer` is
    raised at the end.
    """
    errors: list[Exception] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = re.search(r"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            try:
                data = answer(head.split(" ", 2)[1], json.loads(body))
            except Exception as error:  # noqa: BLE001  raised below
                errors.append(error)
                data = b""
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
    if errors:
        raise errors[0]
