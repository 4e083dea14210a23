"""A Starlette app served on loopback, in its own thread."""

from __future__ import annotations

import threading
import time
from typing import Self

import uvicorn
from starlette.applications import Starlette


class LoopbackServer:
    """`with LoopbackServer(app) as server:` the app answers at `server.root`."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)

    @property
    def port(self) -> int:
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"
