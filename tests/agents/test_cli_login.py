"""The user's own login survives rollouts that use it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from skillfit.agents import build_agent
from skillfit.agents.agent import AttemptContext, remove_workspace
from skillfit.config.schema import AgentSection
from skillfit.models import ModelSpec
from skillfit.models.protocol import AuthFailed
from tests.agents.stand_in import ITEM, SKILL, StandIn

# Like Claude Code: credentials are in the folder that CLAUDE_SECURESTORAGE_CONFIG_DIR names (else
# in HOME), a lock in the same folder guards the refresh, and the file is replaced by a rename.
CLAUDE = """#!{python}
import json, os, pathlib, sys, time, urllib.error, urllib.request

sys.stdin.read()
chosen = os.environ.get("CLAUDE_SECURESTORAGE_CONFIG_DIR")
folder = pathlib.Path(chosen or pathlib.Path.home() / ".claude")
file, lock = folder / ".credentials.json", folder / ".oauth_refresh.lock"

def end(text, error=False):
    print(json.dumps(dict(type="result", is_error=error, result=text, total_cost_usd=0.1,
                          usage=dict(input_tokens=5, output_tokens=1))))
    sys.exit(int(error))

def expired():
    return json.loads(file.read_text())["claudeAiOauth"]["expiresAt"] < time.time()

if not file.exists():
    end("Not logged in", error=True)
while expired():
    try:
        lock.mkdir()
    except FileExistsError:
        time.sleep(0.02)
        continue
    try:
        if expired():
            token = json.loads(file.read_text())["claudeAiOauth"]["refreshToken"]
            url = os.environ["ANTHROPIC_BASE_URL"] + "/token?" + token
            try:
                renewed = urllib.request.urlopen(url).read().decode()
            except urllib.error.HTTPError:
                end("OAuth token revoked. Please run /login", error=True)
            written = folder / ".credentials.json.tmp.1234"
            written.write_text(renewed)
            os.replace(written, file)
    finally:
        lock.rmdir()
end("Entries of my folder: " + " ".join(
    f"{{path.name}}={{len(list(path.iterdir())) if path.is_dir() else len(path.read_text())}}"
    for path in sorted(folder.iterdir()) if path.name != file.name))
"""


class TokenServer:
    """Each refresh token works once, as at a vendor that rotates them."""

    def __init__(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                token = self.path.partition("?")[2]
                server.used.append(token)
                if token != server.valid:
                    self.send_error(400)
                    return
                server.valid = f"refresh-token-number-{len(server.used)}"
                self.send_response(200)
                self.end_headers()
                self.wfile.write(credentials(server.valid, expires=1e12).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.valid = "refresh-token-number-0"
        self.used: list[str] = []
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"


def credentials(refresh_token: str, expires: float) -> str:
    login = {"accessToken": "access", "refreshToken": refresh_token, "expiresAt": expires}
    return json.dumps({"claudeAiOauth": login})


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    server = TokenServer()
    thread = threading.Thread(target=server.http.serve_forever)
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


@pytest.fixture
def claude_folder(fake: StandIn) -> Path:
    """The user's ~/.claude with an expired login and other files."""
    folder = fake.home / ".claude"
    (folder / "projects" / "secret").mkdir(parents=True)
    (folder / "history.jsonl").write_text("private")
    (folder / ".credentials.json").write_text(credentials("refresh-token-number-0", expires=0))
    (folder / ".credentials.json").chmod(0o600)
    fake.install(CLAUDE)
    return folder


def claude(fake: StandIn, tokens: TokenServer) -> Any:
    options = {"program": str(fake.program), "login": True}
    spec = ModelSpec(id="cli/claude", base_url=tokens.url, options=options)
    return build_agent(AgentSection(agent="cli"), spec, None, environ=fake.environ)


async def test_three_rollouts_with_an_expired_login_refresh_it_once_and_save_it(
    fake: StandIn, claude_folder: Path, tokens: TokenServer
) -> None:
    agent = claude(fake, tokens)
    attempts = await asyncio.gather(
        *(agent.attempt(SKILL, ITEM, AttemptContext()) for _ in range(3))
    )
    for attempt in attempts:
        remove_workspace(attempt.workspace)

    assert tokens.used == ["refresh-token-number-0"]
    saved = json.loads((claude_folder / ".credentials.json").read_text())
    assert saved["claudeAiOauth"]["refreshToken"] == tokens.valid
    assert not (claude_folder / ".credentials.json").is_symlink()
    if attempts[0].isolation == "bubblewrap":
        assert "history.jsonl=0 projects=0" in attempts[0].answer
    assert (claude_folder / "history.jsonl").read_text() == "private"
    assert (claude_folder / "projects" / "secret").is_dir()


async def test_a_program_that_replaces_its_linked_login_file_updates_the_users_file(
    fake: StandIn,
) -> None:
    login = fake.home / ".fake" / "login.json"
    login.chmod(0o600)
    replace = "cd ~/.fake && echo renewed-login-of-the-user > new && mv new login.json"
    await fake.shell(replace, options={"login": True})

    assert login.read_text() == "renewed-login-of-the-user\n"
    assert login.stat().st_mode & 0o777 == 0o600


async def test_a_login_file_that_is_written_in_place_is_the_users_file(fake: StandIn) -> None:
    await fake.shell("echo renewed > ~/.fake/login.json", options={"login": True})

    assert (fake.home / ".fake" / "login.json").read_text() == "renewed\n"


def test_a_missing_login_is_an_error_at_the_start(fake: StandIn) -> None:
    (fake.home / ".fake" / "login.json").unlink()

    with pytest.raises(AuthFailed, match=r"no login here \(looked for ~/\.fake/login\.json\)"):
        fake.agent(options={"login": True})


def test_gemini_is_configured_to_use_the_login(fake: StandIn) -> None:
    from skillfit.agents.agent import Workspace
    from skillfit.agents.cli_agent import configured_program

    def auth(**options: Any) -> str:
        command = configured_program(ModelSpec(id="cli/gemini", options=options))
        return command.values(Workspace(Path()))["auth"]

    assert auth() == "gemini-api-key"
    assert auth(login=True) == "oauth-personal"
    assert auth(login=True, auth="vertex-ai") == "vertex-ai"


async def test_the_hint_for_a_failed_login_does_not_suggest_the_login(fake: StandIn) -> None:
    from skillfit.tasks.item import Item

    with pytest.raises(AuthFailed, match="log in again"):
        await fake.attempt(Item("q", {"input": "NOLOGIN"}), options={"login": True})
    with pytest.raises(AuthFailed, match=r"Export FAKE_KEY, or set options: \{login: true\}"):
        await fake.attempt(Item("q", {"input": "NOLOGIN"}))
