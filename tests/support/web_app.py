"""A small web service on loopback, from one function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.loopback_server import LoopbackServer


class WebApp(LoopbackServer):
    """`with WebApp(serve) as app:` every request to `app.url` is answered by `serve`."""

    def __init__(self, serve: Callable[[Request], Awaitable[Response]]) -> None:
        routes = [Route("/{path:path}", serve, methods=["GET", "POST"])]
        super().__init__(Starlette(routes=routes))

    @property
    def url(self) -> str:
        return f"{self.root}/"
