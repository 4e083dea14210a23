"""A studio in a separate process, and a project that practice models can train."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn

from skillfit.plugins.studio.web_app import Session, make_app, make_web_server

SKILL = """---
name: triage
description: Sort tickets into queues.
---

# Triage

- Answer with the label alone, in lower case.
"""
_SERVE = """
import sys
from pathlib import Path
for name in sys.argv[4:]:
    sys.modules[name] = None  # importing it fails, as if it were not installed
from skillfit.plugins.studio.web_app import serve_studio
serve_studio(Path(sys.argv[1]), project=Path(sys.argv[2]), token=sys.argv[3])
"""


@dataclass(frozen=True, slots=True)
class RunningStudio:
    """`link` works once; the following ones arrive in `links`."""

    link: str
    links: list[str]

    @property
    def address(self) -> str:
        return self.link.partition("/?")[0]

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """A client that has exchanged the latest link for a cookie."""
        with httpx.Client(base_url=self.address, timeout=60, follow_redirects=True) as client:
            assert client.get(self.links[-1]).status_code == 200
            yield client


@contextmanager
def studio(
    runs: Path, project: Path | None = None, token: str = "", *, find_project: bool = False
) -> Iterator[RunningStudio]:
    """A studio on a loopback port, in a thread of this process. Without `project` it is the folder
    of the runs, or with `find_project` the one that the studio finds.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        links: list[str] = []
        session = Session(token, lambda token: links.append(f"{address}/?token={token}"))
        links.append(f"{address}/?token={session.token}")
        app = make_app(runs, session, project=None if find_project else project or runs)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        server = make_web_server(config, app.state.studio)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield RunningStudio(links[0], links)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@contextmanager
def studio_process(
    runs: Path, project: Path | None = None, *, without: Sequence[str] = ()
) -> Iterator[RunningStudio]:
    """A studio in a separate process, which must be alive and without errors at the end. It cannot
    import the modules `without`.
    """
    words = [str(runs), str(project or runs), "Correct-Horse-Battery", *without]
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        link = process.stdout.readline().strip()
        assert link, process.stderr.read()
        yield RunningStudio(link, [link])
        assert process.poll() is None, process.stderr.read()
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)
        assert "Traceback" not in errors, errors


def csrf_of(client: httpx.Client, page: str = "/new") -> str:
    text = client.get(page).text
    return text.partition('name="csrf" value="')[2].partition('"')[0]


def practice_project(folder: Path, *, repeat: int = 8) -> None:
    """A skill and tasks that the practice models learn within seconds."""
    labels = {"refund": "billing", "parcel": "delivery", "login": "account"}
    (folder / "triage").mkdir(parents=True)
    (folder / "triage" / "SKILL.md").write_text(SKILL)
    rows = []
    for number in range(repeat):
        for word, label in labels.items():
            text = f"case {number}: my {word} is a problem"
            rows.append({"id": f"t{len(rows):02d}", "input": text, "answer": label, "type": word})
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "runs").mkdir()
