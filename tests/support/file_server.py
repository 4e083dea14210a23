"""A real HTTP server on loopback that serves given files and refuses everything else."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """`with FileServer({"/a/b.json": b"[]"}) as server:` answers GET requests for these paths;
    the query is ignored. `requests` lists paths and the Authorization header that came with them.
    Paths in `private` need a header.
    """

    def __init__(self, files: Mapping[str, bytes], private: tuple[str, ...] = ()) -> None:
        self.files = dict(files)
        self.requests: list[tuple[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                token = self.headers.get("Authorization", "")
                outer.requests.append((path, token))
                body = outer.files.get(path)
                status = 200 if body is not None else 404
                if path.startswith(private) and private and not token:
                    status, body = 401, b"sign in"
                self.send_response(status)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """Keep the test output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"
