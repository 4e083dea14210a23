"""A model server on loopback, in a separate process, with seeded latencies and faults.

The path chooses what it does:
- `/RUN/clean/v1/chat/completions` answers each question after its latency;
- `/RUN/faulty/…` does the same, and three requests in ten fail;
- `/RUN/practice-SHARE/…` answers as the practice models do, after about 20 ms, and this share of
  the requests fails;
- `/RUN/train-SEED-AGENT-OPTIMIZER/…` answers as the agent or the optimizer of that training
  world, after latencies with these means;
- `/RUN/used` says what the run has used so far: calls, seconds of latency, and when.
A failure is a 429, a 500, or a connection cut in the middle of the answer. It is drawn per question
and attempt, so all contestants get the same faults. HTTP is written by hand, because the server
shares the cores with the contestants.
"""

import asyncio
import json
import re
import time
from collections import Counter, defaultdict

from bench.throughput import training_world
from bench.throughput.world import answer, draw, latency
from skillfit.models.providers.practice import practice_answer, practice_reply

FAULTS = 0.3
FAST = 0.02  # seconds; the usual latency of a practice model
_SHELF = re.compile(rb"shelf (\d{5})\?")
_STAGE = re.compile(r"\[stage: (\w+)\]")
attempts: Counter[tuple[str, str]] = Counter()
used: defaultdict[str, list[tuple[bool, float, float]]] = defaultdict(list)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await _exchange(reader, writer):
            pass
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """One request and its answer. False: the connection ends here."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"(?i)content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    _, run, mode, *_ = head.split(" ", 2)[1].split("/")
    if mode == "used":
        _send(writer, "200 OK", used[run])
        return True
    if mode.startswith("train-"):
        stage = re.search(r"(?i)x-skillfit-stage: (\S+)", head)
        await _train(writer, run, mode, json.loads(body), stage[1] if stage else "")
        return True
    if mode.startswith("practice-"):
        stage = re.search(r"(?i)x-skillfit-stage: (\S+)", head)
        text = _practice(json.loads(body), stage[1] if stage else "")
        key, share = body.decode("latin-1"), float(mode.removeprefix("practice-"))
        seconds = FAST * (0.5 + draw("latency", key))
    else:
        number = int(_SHELF.findall(body)[-1])
        text, seconds = answer(number), latency(number)
        key, share = str(number), FAULTS if mode == "faulty" else 0.0
    attempts[run, key] += 1
    luck = draw("fault", key, attempts[run, key])
    if luck < share * 2 / 3:
        status = "429 Too Many Requests" if luck < share / 3 else "500 Internal Server Error"
        _send(writer, status, {"error": {"message": "not now", "type": "server_error"}})
        return True
    await asyncio.sleep(seconds)
    if luck < share:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b'content-length: 900\r\n\r\n{"id": '
        )
        return False
    _send(writer, "200 OK", completion(text))
    return True


async def _train(writer: asyncio.StreamWriter, run: str, mode: str, body: dict, stage: str) -> None:
    """One call of a training run. Its latency is recorded as (by the agent, begun, seconds)."""
    _, seed, agent_mean, optimizer_mean = mode.split("-")
    texts = [(message["role"], message["content"]) for message in body["messages"]]
    system = "\n".join(text for role, text in texts if role == "system")
    user = "\n".join(text for role, text in texts if role == "user")
    agent = training_world.is_agent(body["model"])
    key = f"{agent}/{system}/{user}"
    attempts[run, key] += 1
    mean = float(agent_mean if agent else optimizer_mean)
    seconds = training_world.latency(mean, key, attempts[run, key]) if mean else 0.0
    if agent:
        text = training_world.agent_reply(seed, system, user, attempts[run, key])
    else:
        named = _STAGE.search(system)
        text = training_world.optimizer_reply(stage or (named[1] if named else ""), user)
    begun = time.perf_counter()
    if seconds:
        await asyncio.sleep(seconds)
    used[run].append((agent, begun, seconds))
    _send(writer, "200 OK", completion(text))


def _practice(body: dict, stage: str) -> str:
    texts = [(message["role"], message["content"]) for message in body["messages"]]
    if body["model"] == "optimizer":
        return practice_reply(stage, "\n\n".join(text for _, text in texts))
    skill = "\n".join(text for role, text in texts if role == "system")
    task = "\n".join(text for role, text in texts if role == "user")
    return practice_answer(skill, task, int(body.get("seed") or 0))


def _send(writer: asyncio.StreamWriter, status: str, value: object) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)


def completion(text: str) -> dict[str, object]:
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
