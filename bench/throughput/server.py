"""A model server on loopback, in a process of its own: answers each question after its latency, and
breaks when the path says so.

`/RUN/clean/v1/chat/completions` answers; `/RUN/faulty/…` fails three requests in ten: a 429, a 500,
or a cut in mid-answer, drawn per question and attempt, so every contestant meets the same faults.
Hand-written HTTP: it shares the cores with the contestants.
"""

import asyncio
import json
import re
from collections import Counter

from bench.throughput.world import answer, draw, latency

FAULTS = 0.3
_SHELF = re.compile(rb"shelf (\d{5})\?")
attempts: Counter[tuple[str, int]] = Counter()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await _exchange(reader, writer):
            pass
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """One request and its answer; False when the connection is at its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"(?i)content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    _, run, mode, *_ = head.split(" ", 2)[1].split("/")
    found = _SHELF.findall(body)
    number = int(found[-1])
    attempts[run, number] += 1
    luck = draw("fault", number, attempts[run, number]) if mode == "faulty" else 1.0
    if luck < FAULTS * 2 / 3:
        status = "429 Too Many Requests" if luck < FAULTS / 3 else "500 Internal Server Error"
        _send(writer, status, {"error": {"message": "not now", "type": "server_error"}})
        return True
    await asyncio.sleep(latency(number))
    if luck < FAULTS:
        writer.write(
            b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"id": '
        )
        return False
    _send(writer, "200 OK", _completion(answer(number)))
    return True


def _send(writer: asyncio.StreamWriter, status: str, value: object) -> None:
    body = json.dumps(value).encode()
    writer.write(
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )


def _completion(text: str) -> dict[str, object]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "bench",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 500, "completion_tokens": 9, "total_tokens": 509},
    }


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
