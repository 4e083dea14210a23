"""The studio over real HTTP: its pages, access control, and clients that disconnect."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from itertools import product
from pathlib import Path

import httpx
import pytest
from jinja2 import Environment, meta

from skillfit.config import Config
from skillfit.config.reading import text_keys
from skillfit.errors import InputError
from skillfit.plain_text import percent, quantity
from skillfit.plugins.studio.new_run import form_fields
from skillfit.plugins.studio.web_app import Session, make_app, serve_studio
from skillfit.record.fold import read_record
from skillfit.record.record import NOT_IN_SKILL
from skillfit.report.html_report import PageData, make_environment
from skillfit.run.control import EDIT_ACTIONS, read_requests
from skillfit.run.events import GateDecided, PersonDecided, ShipTested, StageStarted
from skillfit.run.records import EditEffect, Evidence, KindEffect
from skillfit.run.store import RunLock, in_use
from skillfit.skill import Edit
from skillfit.tasks.item import TrajectoryStep
from tests.plugins.studio.server import (
    RunningStudio,
    csrf_of,
    practice_project,
    studio,
    studio_process,
)
from tests.report.recorded_runs import (
    BEST,
    INITIAL,
    ITEMS,
    WrittenRun,
    before_first_event,
    improved,
    screening_run,
)
from tests.support.signals import default_signals

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)> \x1b[2K\u202e'
PAGES = (
    "/",
    "/?q=one&sort=gain&state=finished",
    "/run/good/one",
    "/step/1/good/one",
    "/step/3/pool",
    "/run/pool?edit=s0001e01",
    "/log/pool?page=2",
    "/about/pool",
    "/skill/pool",
    "/skill/pool?version=7&against=initial",
    "/items/good/one",
    "/items/pool?q=ticket&type=billing&page=2",
    "/items/good/one?item=t00",
    "/items/good/one?item=t00&phase=ship&step=0&key=rollout/ship/new/fp-t00/0",
    "/compare?run=pool&run=good/one",
    "/apply/good/one",
    "/handoff/good/one",
    "/pool/pool?step=3",
    "/report/good/one",
    "/new",
)


@contextmanager
def browser(path: Path, project: Path | None = None) -> Iterator[httpx.Client]:
    with studio(path, project) as running, running.client() as client:
        yield client


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    await improved(tmp_path / "good" / "one")
    screening_run(tmp_path / "pool", steps=8)
    return tmp_path


async def test_every_page_loads_with_a_content_security_policy(folder: Path) -> None:
    with browser(folder) as client:
        for page in PAGES:
            reply = client.get(page)
            assert reply.status_code == 200, page
            assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
            assert reply.headers["x-content-type-options"] == "nosniff"
            if page != "/report/good/one":
                assert "script-src 'self';" in reply.headers["content-security-policy"]
                assert "<script>" not in reply.text and "style=" not in reply.text
        assert "ship test, initial skill" in client.get("/items/good/one?item=t00").text
        listed = client.get("/").text
        assert 'href="/run/good/one"' in listed and 'href="/run/pool"' in listed


def test_the_overview_says_how_many_edits_it_does_not_list(tmp_path: Path) -> None:
    screening_run(tmp_path / "long", steps=110, items=2, rollouts=2)
    edits = read_record(tmp_path / "long").edits
    left_out = sum(edit.standing == NOT_IN_SKILL for edit in edits)
    kept = len(edits) - left_out
    with browser(tmp_path) as client:
        page = client.get("/run/long").text
    rest, _, cut = page.partition('data-keep="dropped"')
    assert kept > 60 and f"<summary>{kept - 20} more edits</summary>" in rest
    assert f"Not listed here: {kept - 60} edits." in rest
    assert left_out > 60 and f"<summary>{left_out} edits not in the skill</summary>" in cut
    assert f"Not listed here: {quantity(left_out - 60, 'edit')}." in cut


async def test_missing_pages_are_404(folder: Path) -> None:
    with browser(folder) as client:
        for page in (
            "/run/none",
            "/run/good",
            "/run/..%2f..%2fetc",
            "/run/%00",
            "/run//etc",
            "/step/99/pool",
            "/run/pool?edit=nope",
            "/skill/pool?version=nope",
            "/items/pool?item=nope",
            "/items/pool?item=ticket-0000&phase=gate&step=1&key=call/agent/x",
            "/image/good/one?id=t00&number=0",
            f"/run/{'z' * 6000}",
            "/starting/none",
            "/static/../app.py",
            "/static/..%2f..%2fapp.py",
        ):
            assert client.get(page).status_code == 404, page


def test_a_link_works_once_and_the_next_one_is_printed(tmp_path: Path) -> None:
    with (
        studio(tmp_path) as running,
        httpx.Client(timeout=60) as first,
        httpx.Client(timeout=60) as second,
    ):
        assert first.get(running.address).status_code == 401
        assert first.get(running.link, follow_redirects=True).status_code == 200
        assert first.get(running.address).status_code == 200, "the cookie remembers"
        assert second.get(running.link).status_code == 401
        following = running.links[-1]
        assert following != running.link
        assert second.get(following, follow_redirects=True).status_code == 200
        assert first.get(running.link, follow_redirects=True).status_code == 200, "known already"


def test_a_link_never_redirects_to_another_site(tmp_path: Path) -> None:
    with studio(tmp_path) as running, httpx.Client(timeout=60) as client:
        token = running.link.partition("token=")[2]
        for path in ("//evil.example/", "/\\evil.example/", "//evil.example/%2e%2e"):
            reply = client.get(f"{running.address}{path}?token={token}")
            assert reply.status_code in (303, 401)
            location = reply.headers.get("location", "/")
            assert location.startswith("/") and not location.startswith(("//", "/\\"))


def test_a_link_to_a_page_keeps_its_parameters(tmp_path: Path) -> None:
    query = [("change", "fixed"), ("q", "a&b ü"), ("run", "one"), ("run", "two")]
    with studio(tmp_path) as running, httpx.Client(timeout=60) as client:
        token = running.link.partition("token=")[2]
        reply = client.get(f"{running.address}/items/x", params=[("token", token), *query])
        target = httpx.URL(reply.headers["location"])
        assert (target.path, target.params.multi_items()) == ("/items/x", query)


@pytest.mark.parametrize("token", ["a", "secret", "a" * 40, "abcabcabcabcabcabc"])
def test_a_weak_token_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(InputError, match="too weak"):
        Session(token)


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "", "192.168.1.5"):
        with pytest.raises(InputError, match="can be reached from other machines"):
            serve_studio(tmp_path, host=host)


def test_a_chosen_token_works_every_time(tmp_path: Path) -> None:
    with studio(tmp_path, token="Correct-Horse-Battery") as running:
        for _ in range(2):
            with running.client() as client:
                assert client.get("/").status_code == 200


def test_a_chosen_token_keeps_open_pages_working_when_the_studio_is_started_again(
    tmp_path: Path,
) -> None:
    token = "Correct-Horse-Battery"
    assert Session(token).cookie == Session(token).cookie != Session(f"{token}!").cookie
    assert Session().cookie != Session().cookie


async def test_a_run_with_whole_candidates_shows_how_each_compared(folder: Path) -> None:
    with browser(folder) as client:
        page = client.get("/run/good/one").text
    assert "<th>Candidate</th>" in page and "+50.0" in page


def test_requests_with_an_unknown_host_name_are_refused(tmp_path: Path) -> None:
    with browser(tmp_path) as client:
        for host in ("evil.example", "127.0.0.1.evil.example", "[bad"):
            assert client.get("/", headers={"Host": host}).status_code == 400


async def test_changes_need_a_csrf_token_and_the_same_origin(folder: Path) -> None:
    screening_run(folder / "open", steps=4, finish="")
    with browser(folder) as client:
        csrf = csrf_of(client)
        veto = {"do": "veto", "target": "s0001e01"}
        assert client.post("/act/open", data=veto).status_code == 403
        assert client.post("/act/open", data=veto | {"csrf": "x" * 64}).status_code == 403
        other = {"Origin": "http://evil.example"}
        assert (
            client.post("/act/open", data=veto | {"csrf": csrf}, headers=other).status_code == 403
        )
        cross = {"Sec-Fetch-Site": "cross-site"}
        assert (
            client.post("/act/open", data=veto | {"csrf": csrf}, headers=cross).status_code == 403
        )
        assert client.get("/act/open").status_code == 405
        assert not read_requests(folder / "open")
        own = {"Origin": str(client.base_url).rstrip("/")}
        reply = client.post("/act/open", data=veto | {"csrf": csrf}, headers=own)
        assert reply.status_code == 200
        assert "skillfit steer open veto s0001e01" in reply.text
    assert [(one.action, one.target) for one in read_requests(folder / "open")] == [
        ("veto", "s0001e01")
    ]


def test_forms_work_without_packages_that_are_not_declared(tmp_path: Path) -> None:
    """Starlette reads forms with python-multipart, which a plain install does not have."""
    screening_run(tmp_path / "runs" / "open", steps=4, finish="")
    practice_project(tmp_path / "project")
    missing = ("multipart", "python_multipart")
    with (
        studio_process(tmp_path / "runs", tmp_path / "project", without=missing) as running,
        running.client() as client,
    ):
        csrf = {"csrf": csrf_of(client)}
        words = "- „Geld“ & 100 % = billing\n\n"
        form = {"do": "reword", "target": "s0001e01", "text": words}
        assert client.post("/act/open", data=form | csrf).status_code == 200
        form = {"do": "show", "name": "näme", "set:train.num_epochs": "3", "set:env.skill": ""}
        page = client.post("/new", data=form | csrf)
        assert page.status_code == 200 and 'value="näme"' in page.text
    assert [one.text for one in read_requests(tmp_path / "runs" / "open")] == [words]


def test_hostile_forms_are_refused_with_a_reason(tmp_path: Path) -> None:
    screening_run(tmp_path / "runs" / "open", steps=4, finish="")
    with browser(tmp_path / "runs", tmp_path) as client:
        csrf = {"csrf": csrf_of(client)}
        for key, value in (
            ("set:env.skill", "a\0b"),
            ("set:env.tasks", "~nobody-of-this-name/x"),
            ("set:env.grader", "{a: &x [*x]}"),
            ("set:env.grader", "[" * 500),
            ("set:train.num_epochs", "1e999"),
            ("config", "a\0b"),
            ("config", "x" * 5_000),
        ):
            form = {"name": "new", "do": "estimate", key: value}
            page = client.post("/new", data=form | csrf)
            assert page.status_code == 400, (key, page.text)
            assert 'role="alert"' in page.text
        many = {f"field-{number}": "" for number in range(2_000)}
        assert client.post("/act/open", data=many | csrf).status_code == 400
    assert not list(tmp_path.glob("*.yaml"))


def test_actions_with_nonsense_are_refused_with_a_reason_and_not_recorded(tmp_path: Path) -> None:
    """Runs before their first edit, stopped and finished runs, and a run that does not exist."""
    WrittenRun(tmp_path / "new").close()
    screening_run(tmp_path / "open", steps=4, finish="")
    screening_run(tmp_path / "done", steps=4)
    nonsense = ("", "\0", "s0001e01\0", "x" * 100_000, "../open", "a&b=c#d", "\u202e", "🙂" * 9_000)
    with browser(tmp_path) as client:
        csrf = {"csrf": csrf_of(client)}
        for run, do, target in product(
            ("new", "open", "done"), (*EDIT_ACTIONS, "budget", "answer"), nonsense
        ):
            if run == "new" and target in ("../open", "a&b=c#d"):
                continue  # an id like any other, before there are edits
            form = {"do": do, "target": target, "text": "5"}
            page = client.post(f"/act/{run}", data=form | csrf)
            assert page.status_code == 400, form
            assert 'class="message bad" role="status"' in page.text
            assert len(str(page.url)) < 4_000
        texts = ("", " \r\n", "\0", "\0\u202e", "x" * 100_000, "🙂" * 30_000)
        amounts = (*texts, "nan", "-1", "1e400", "0x10", "9" * 100_000)
        for do, target, given in (
            ("reword", "s0001e01", texts), ("budget", "usd", amounts), ("answer", "one", texts)
        ):  # fmt: skip
            for run, text in product(("new", "open", "done"), given):
                page = client.post(
                    f"/act/{run}", data={"do": do, "target": target, "text": text} | csrf
                )
                assert page.status_code == 400, (run, do, text)
                assert 'class="message bad" role="status"' in page.text
        for do in ("", "\0", "explode", "x" * 100_000):
            assert client.post("/act/open", data={"do": do} | csrf).status_code == 400
        for run in ("none", "open%00", "x" * 5_000, "%2e%2e/open"):
            page = client.post(f"/act/{run}", data={"do": "stop"} | csrf)
            assert page.status_code == 404
    assert not list(tmp_path.rglob("steering.jsonl"))


async def test_an_unexpected_error_is_a_page_in_the_usual_style(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await improved(tmp_path / "run")

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("by <nothing>")

    monkeypatch.setattr("skillfit.plugins.studio.site.FollowedRun.record", broken)
    with browser(tmp_path) as client:
        reply = client.get("/run/run")
    assert reply.status_code == 500
    assert "skillfit itself failed (ZeroDivisionError: by &lt;nothing&gt;)" in reply.text
    assert '<link rel="stylesheet"' in reply.text
    assert "script-src 'self';" in reply.headers["content-security-policy"]


async def test_decisions_about_edits_are_shown_with_their_command(folder: Path) -> None:
    screening_run(folder / "open", steps=4, finish="")
    with browser(folder) as client:
        csrf = {"csrf": csrf_of(client)}
        words = "- Mentions of money\nmean billing."
        for form in (
            {"do": "pin", "target": "s0001e01"},
            {"do": "reword", "target": "s0001e01", "text": words.replace("\n", "\r\n")},
            {"do": "reword", "target": "s0001e01", "text": ""},
            {"do": "explode"},
        ):
            client.post("/act/open", data=form | csrf)
        page = client.get("/run/open?edit=s0001e01").text
        assert "skillfit steer open pin s0001e01" in page
        assert "not yet read by the run" in page
        shown = page.partition(">pin</span>")[2].partition("</li>")[0]
        assert re.fullmatch(r"s0001e01 \d{4}-.*", re.sub("<.*?>", "", shown), re.DOTALL)
    assert [one.text for one in read_requests(folder / "open")] == ["", words]


async def test_a_finished_run_accepts_no_decisions(folder: Path) -> None:
    with browser(folder) as client:
        form = {"csrf": csrf_of(client), "do": "veto", "target": "s0001e01"}
        assert "can no longer be steered" in client.post("/act/pool", data=form).text
        assert "Veto: drop it" not in client.get("/run/pool?edit=s0001e01").text
    assert not read_requests(folder / "pool")


def test_events_of_a_running_run_reach_the_page_live(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "live")
    with browser(tmp_path) as client, client.stream("GET", "/live/live") as stream:
        parts = (
            json.loads(line.removeprefix("data: "))
            for line in stream.iter_lines()
            if line.startswith("data: {")
        )
        assert "Running, before the first step" in next(parts)["head"]
        run.emit(StageStarted(epoch=0, step=0, stage="baseline", total=8))
        assert "measuring" in next(part for part in parts if "stages" in part)["stages"]
        run.measured("baseline", "old", 0.25)
        assert "25\u00a0%" in next(part for part in parts if "scores" in part)["scores"]
        run.emit(PersonDecided(number=1, action="veto", target="s1", command="skillfit steer"))
        assert "veto" in next(part for part in parts if "notices" in part)["notices"]
        run.close()
        assert any("Stopped before the first step" in part.get("head", "") for part in parts)


def test_the_stream_of_a_run_ends_with_the_run(tmp_path: Path) -> None:
    screening_run(tmp_path / "over", steps=2)
    screening_run(tmp_path / "resumable", steps=2, finish="budget")
    run = WrittenRun(tmp_path / "live")
    with browser(tmp_path) as client:

        def events(name: str) -> Iterator[str]:
            with client.stream("GET", f"/live/{name}") as stream:
                for line in stream.iter_lines():
                    if line.startswith("event: "):
                        yield line.removeprefix("event: ")

        assert list(events("over")) == ["parts", "over"]
        live = events("live")
        assert next(live) == "parts"
        run.finish("no_improvement", INITIAL)
        run.close()
        assert list(live)[-1] == "over"
        with (
            client.stream("GET", "/live/resumable", timeout=3) as stream,
            pytest.raises(httpx.ReadTimeout),
        ):
            assert "event: over" not in list(stream.iter_lines())


def test_new_runs_appear_in_the_list(tmp_path: Path) -> None:
    with browser(tmp_path) as client, client.stream("GET", "/live") as stream:
        parts = (
            json.loads(line.removeprefix("data: "))["runs"]
            for line in stream.iter_lines()
            if line.startswith("data: ")
        )
        assert "There is no run here yet" in next(parts)
        WrittenRun(tmp_path / "fresh").close()
        assert any("/run/fresh" in part for part in parts)


def test_clients_may_disconnect_at_any_time(tmp_path: Path) -> None:
    """Clients disconnect from a stream dozens of times, before and while the journal is read."""
    run = WrittenRun(tmp_path / "live")
    screening_run(tmp_path / "big", steps=30, items=100, rollouts=400)
    with studio_process(tmp_path) as running, running.client() as client:
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        host, port = running.address.removeprefix("http://").split(":")
        for attempt in range(60):
            name = "live" if attempt % 2 else "big"
            with socket.create_connection((host, int(port)), 10) as connection:
                request = f"GET /live/{name} HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n"
                connection.sendall(request.encode())
                if attempt % 3:
                    connection.recv(10 * attempt)
        run.measured("baseline", "old", 0.25)
        assert "25\u00a0%" in client.get("/run/live").text
        assert client.get("/run/big").status_code == 200
    run.close()


@pytest.mark.parametrize("times", [1, 2])
def test_a_studio_with_open_pages_is_stopped_without_a_traceback(
    times: int, tmp_path: Path
) -> None:
    screening_run(tmp_path / "run", steps=2)
    command = [sys.executable, "-m", "skillfit", "studio", str(tmp_path), "--port", "0"]
    with subprocess.Popen(
        [*command, "--token", "Correct-Horse-Battery"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
    ) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        with ExitStack() as opened, RunningStudio(link, [link]).client() as client:
            replies = [opened.enter_context(client.stream("GET", "/live")) for _ in range(2)]
            streams = [reply.iter_lines() for reply in replies]
            assert [next(lines) for lines in streams] == ["event: parts", "event: parts"]
            for _ in range(times):
                process.send_signal(signal.SIGINT)
                time.sleep(0.02)  # two signals that arrive together count as one
            _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors and "ERROR" not in errors


async def test_an_unreadable_run_is_reported_and_other_runs_are_listed(
    folder: Path,
) -> None:
    (folder / "two").mkdir()
    (folder / "two" / "journal.sqlite").write_text("no database at all")
    with browser(folder) as client:
        listed = client.get("/").text
        assert 'href="/run/pool"' in listed and "two/journal.sqlite" in listed
        assert client.get("/run/two").status_code == 500
        assert "two/journal.sqlite" in client.get("/run/two").text


@pytest.mark.parametrize("finish", ["", "infrastructure", "budget"])
def test_a_run_that_cannot_be_resumed_shows_the_reason(tmp_path: Path, finish: str) -> None:
    """The skill of these runs does not exist."""
    screening_run(tmp_path / "run", steps=2, finish=finish)
    with browser(tmp_path) as client:
        client.post("/act/run", data={"csrf": csrf_of(client), "do": "resume"})
        page = client.get("/run/run").text
        while ">starting</span>" in page or 'data-state="running"' in page:
            page = client.get("/run/run").text
        failure = page.partition('<pre class="message bad">')[2].partition("</pre>")[0]
        assert failure.startswith("error: "), page


def test_a_folder_and_a_run_that_disappear_are_reported(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "runs" / "run").close()
    with browser(tmp_path / "runs", tmp_path) as client:
        with client.stream("GET", "/live/run") as reply:
            lines = reply.iter_lines()
            assert next(lines) == "event: parts"
            (tmp_path / "runs").rename(tmp_path / "moved")
            problem = next(line for line in lines if line == "event: problem")
            assert problem and "run is gone: it was deleted or moved" in next(lines)
        page = client.get("/").text
        assert "runs is gone: it was deleted or moved" in page and "no run here yet" not in page
        assert client.get("/run/run").status_code == 404


async def test_text_of_models_and_users_is_escaped(tmp_path: Path) -> None:
    skill = INITIAL + EVIL + "\n"
    await improved(tmp_path / "<b>run", skill=skill, text=EVIL)
    with browser(tmp_path) as client:
        for page in (
            "/",
            "/run/%3Cb%3Erun",
            "/skill/%3Cb%3Erun",
            "/skill/%3Cb%3Erun?version=best&against=initial",
            "/items/%3Cb%3Erun?item=t00&phase=ship&step=0&key=rollout/ship/new/fp-t00/0",
            "/items/%3Cb%3Erun?item=t00",
            "/report/%3Cb%3Erun",
        ):
            reply = client.get(page)
            assert reply.status_code == 200, page
            for raw in ("<b>run", "<script>alert", "<img src=x", "\x1b", "\u202e"):
                assert raw not in reply.text, (page, raw)


async def test_the_list_can_be_searched_filtered_and_sorted(folder: Path) -> None:
    screening_run(folder / "unproven", steps=4, finish="no_improvement")
    screening_run(folder / "halted", steps=4, finish="")
    with browser(folder) as client:

        def names(query: str) -> list[str]:
            text = client.get(f"/?{query}").text
            return [part.partition('"')[0] for part in text.split('href="/run/')[1:]]

        assert names("state=stopped") == ["halted"]
        assert names("q=unpro") == ["unproven"]
        assert set(names("q=practice/agent")) == {"good/one", "pool", "unproven", "halted"}
        assert names("q=nothing") == []
        assert names("sort=gain")[:2] == ["good/one", "pool"]
        assert names("sort=-gain") == ["unproven", "pool", "good/one", "halted"]
        assert names("sort=-name") == ["unproven", "pool", "halted", "good/one"]
        assert names("sort=name") == ["good/one", "halted", "pool", "unproven"]
        listed = client.get("/?q=good/one").text
        assert f"{percent(0.5)} → {percent(0.875)}" in listed and "fresh rollouts" in listed
        assert "selection split" in client.get("/?q=halted").text


def test_long_lists_are_paged(tmp_path: Path) -> None:
    for number in range(60):
        WrittenRun(tmp_path / f"run-{number:02d}").close()
    with browser(tmp_path) as client:
        first, second = client.get("/?sort=name").text, client.get("/?sort=name&page=2").text
    assert first.count('href="/run/') == 50 and second.count('href="/run/') == 10
    assert "1 to 50 of 60" in first and "51 to 60 of 60" in second
    assert 'href="?sort=name&amp;page=2"' in first


async def test_handoff_prompts_are_answered(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "run").close()
    (tmp_path / "run" / "handoff").mkdir()
    (tmp_path / "run" / "handoff" / "merge-1.prompt.md").write_text("Merge these.")
    with browser(tmp_path) as client:
        assert "Merge these." in client.get("/handoff/run").text
        form = {"csrf": csrf_of(client), "do": "answer", "text": "{}"}
        response = client.post("/act/run", data=form | {"target": "../../x"}).text
        assert "No prompt" in response
        client.post("/act/run", data=form | {"target": "merge-1"})
        assert "All prompts are answered" in client.get("/handoff/run").text
    assert (tmp_path / "run" / "handoff" / "merge-1.answer.md").read_text() == "{}"


def test_a_handoff_prompt_is_answered_from_a_terminal(tmp_path: Path) -> None:
    run = tmp_path / "run"
    WrittenRun(run).close()
    (run / "handoff").mkdir()
    for name in ("merge-1", "merge-2"):
        (run / "handoff" / f"{name}.prompt.md").write_text("Merge these.")
    (tmp_path / "mine.md").write_text("[]")
    command = [sys.executable, "-m", "skillfit", "steer", str(run), "answer"]

    def answer(*words: str, given: str = "") -> str:
        done = subprocess.run([*command, *words], input=given, capture_output=True, text=True)
        return done.stdout + done.stderr

    assert "1 prompt left." in answer("merge-1", str(tmp_path / "mine.md"))
    assert "No prompt 'merge-1'" in answer("merge-1", given="again")
    assert "Resume the run" in answer("merge-2", given="{}")
    assert (run / "handoff" / "merge-1.answer.md").read_text() == "[]"
    assert (run / "handoff" / "merge-2.answer.md").read_text() == "{}"
    assert [one.command(run) for one in read_requests(run)] == [
        f"skillfit steer {run} answer merge-1",
        f"skillfit steer {run} answer merge-2",
    ]


def test_runs_are_compared_by_edits_settings_and_any_two_skills(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two", "three")):
        screening_run(tmp_path / name, steps=6, seed=seed)
    with browser(tmp_path) as client:
        address = "/compare?run=one&run=two&run=three"
        page = client.get(address).text
        worth = page.partition("Worth of edits")[2].partition("<h2>")[0]
        row = worth.partition("<tbody>")[2].partition("</tr>")[0]
        assert all(f"/run/{name}?edit=" in row for name in ("one", "two", "three"))
        assert "Settings that differ" in page and "None." in page
        chosen = client.get(f"{address}&old=two&new=two").text
    assert "The same text." in chosen and "The same text." not in page


async def test_compared_runs_have_gains_paired_items_and_no_hidden_rest(tmp_path: Path) -> None:
    for number in range(9):
        await improved(tmp_path / f"run{number}")
    worse = WrittenRun(tmp_path / "worse")
    worse.items()
    await worse.roll("ship", "old", [1.0] * 8)
    await worse.roll("ship", "new", [0.0] * 4 + [1.0] * 4)
    worse.ship("no improvement", -0.5, (-0.8, -0.2))
    worse.finish("no_improvement", INITIAL, BEST)
    worse.close()
    with browser(tmp_path) as client:
        page = client.get("/compare?run=run0&run=worse").text
        names = "&".join(f"run=run{number}" for number in range(9))
        nine = client.get(f"/compare?{names}").text
    gains = page.partition("<h2>Gains</h2>")[2].partition("<h2>")[0]
    assert "+37.5" in gains and "−50.0" in gains and "−80.0 to −20.0" in gains
    # run0 solves 7 of the 8 items, worse 4: it misses the first four and solves the last one.
    assert "On the 8 items that both have measured" in page and "<b>−37.5</b> points" in page
    items = page.partition("<h2>Items</h2>")[2].partition("</table>")[0]
    assert items.count('<th scope="row">') == 8
    first = items.partition('<th scope="row">')[2].partition("</tr>")[0]
    assert ">100</a>" in first and ">0</a>" in first
    assert "8 runs compared" in nine and "1 more run that you chose is not shown" in nine


def test_a_setting_that_a_run_did_not_record_is_compared_by_its_default(
    tmp_path: Path,
) -> None:
    WrittenRun(tmp_path / "short", {"train": {"seed": 7}}).close()
    gradient = Config().gradient.model_dump(mode="json")
    WrittenRun(tmp_path / "whole", {"train": {"seed": 8}, "gradient": gradient}).close()
    with browser(tmp_path) as client:
        page = client.get("/compare?run=short&run=whole").text
    differ = page.partition("Settings that differ")[2].partition("<h2>")[0]
    assert re.findall(r"<tr><td><code>([\w.]+)</code>", differ) == ["train.seed"]


def test_overview_and_skill_page_show_the_same_number_of_tokens(tmp_path: Path) -> None:
    screening_run(tmp_path / "run", steps=6)
    tokens = read_record(tmp_path / "run").tokens[1]
    with browser(tmp_path) as client:
        overview, skill = client.get("/run/run").text, client.get("/skill/run").text
    assert f"{tokens:,} tokens" in overview
    assert f"About {tokens:,} tokens in every call" in skill


def test_an_edit_names_the_trajectories_it_was_written_from(tmp_path: Path) -> None:
    screening_run(tmp_path / "run", steps=3, items=6, rollouts=24)
    with browser(tmp_path) as client:
        page = client.get("/run/run?edit=s0001e01").text
        link = page.partition("Written from")[2].partition('href="')[2].partition('"')[0]
        assert link.startswith("/items/run?item=ticket-000")
        assert "What happened" in client.get(link.replace("&amp;", "&")).text


def test_an_edit_of_a_file_and_its_kinds_of_items_are_shown(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    effect = EditEffect(
        "s0001e01",
        1,
        Edit("append", "", "- See the table.", file="references/queues.md"),
        "pending",
        mean=0.1,
        low=0.02,
        high=0.18,
        rollouts=40,
        kinds=(KindEffect("billing", 4, 8, 0.25, 0.1, 0.4),),
    )
    decided = GateDecided(
        name="step_0001",
        step=1,
        decision="inconclusive",
        reason="",
        evidence=Evidence(),
        effects=[effect],
    )
    run.emit(decided)
    run.close()
    with browser(tmp_path) as client:
        page = client.get("/run/run?edit=s0001e01").text
    row, _, side = page.partition('id="side"')
    assert "references/queues.md: " in row and "+25.0 on billing, 4 of 8 items" in row
    assert "<code>references/queues.md</code>" in side
    assert "+25.0 <small>+10.0 to +40.0, 4 of 8 items" in side


def test_edits_under_review_are_approved_or_declined(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", {"review": True})
    edit = Edit("append", "", "- Use the order number.")
    waiting = EditEffect(
        id="s0001e01",
        step=1,
        edit=edit,
        status="pending",
        mean=0.1,
        low=0.02,
        high=0.18,
        probability=0.95,
        rollouts=60,
        reason="waiting for approval: +0.100",
        awaits_approval=True,
    )
    decided = GateDecided(
        name="step_0001",
        step=1,
        decision="reject",
        reason="no edit was promoted",
        evidence=Evidence(),
        effects=[waiting],
    )
    run.emit(decided)
    with browser(tmp_path) as client:
        page = client.get("/run/run").text
        assert "To review" in page and "- Use the order number." in page
        form = {"csrf": csrf_of(client), "do": "approve", "target": "s0001e01"}
        assert "skillfit steer run approve s0001e01" in client.post("/act/run", data=form).text
    run.close()
    assert [one.action for one in read_requests(tmp_path / "run")] == ["approve"]


def test_a_run_under_review_is_listed_as_such_and_continues_with_the_next_edit(
    tmp_path: Path,
) -> None:
    run = WrittenRun(tmp_path / "run", {"review": True})
    effects = [
        EditEffect(
            id=name,
            step=1,
            edit=Edit("append", "", f"- Rule {name}."),
            status="pending",
            mean=0.1,
            low=0.02,
            high=0.18,
            probability=0.95,
            rollouts=60,
            reason="waiting for approval: +0.100",
            awaits_approval=True,
        )
        for name in ("s0001e01", "s0001e02")
    ]
    run.emit(
        GateDecided(
            name="step_0001",
            step=1,
            decision="reject",
            reason="no edit was promoted",
            evidence=Evidence(),
            effects=effects,
        )
    )
    run.close()
    with browser(tmp_path) as client:
        listed = client.get("/").text
        assert "waiting for review" in listed and "waiting for answers" not in listed
        form = {"csrf": csrf_of(client), "do": "approve", "target": "s0001e01"}
        page = client.post("/act/run", data=form).text
        assert "your approval of 1 edit," in page
        assert page.count("waiting for approval") == 1
        assert "approved, not yet read by the run" in page
        page = client.post("/act/run", data={**form, "do": "decline", "target": "s0001e02"}).text
        assert "waiting for approval" not in page and ">Resume</button>" in page


def test_an_ablation_is_shown_without_steps_scores_and_an_optimizer(tmp_path: Path) -> None:
    practice_project(tmp_path)
    (tmp_path / "parts.yaml").write_text(
        "model: {agent: practice/agent}\n"
        "env: {skill: ./triage, tasks: ./tasks.jsonl, grader: exact}\n"
    )
    command = [sys.executable, "-m", "skillfit", "ablate", "parts.yaml", "--run", "runs/parts"]
    subprocess.run([*command, "--rollouts", "24"], cwd=tmp_path, check=True, capture_output=True)
    with browser(tmp_path / "runs", tmp_path) as client:
        page = client.get("/run/parts").text
        assert "Worth of each part" in page and "the whole skill" in page
        for untrue in ("trained with", "worked examples", "Pool of edits", "skillfit train"):
            assert untrue not in page
        for heading in ("Steps", "Scores"):
            assert f"<h2>{heading}</h2>" not in page
        assert "best so far" not in client.get("/skill/parts").text
        assert "has no new skill to apply" in client.get("/apply/parts").text
        items = client.get("/items/parts").text
        assert 'href="/items/parts?item=t' in items and "No item was rolled out" not in items


def test_a_stopped_ablation_is_resumed_as_an_ablation(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "parts", total_epochs=0, steps_per_epoch=0)
    run.journal.set_fact("identity", {"kind": "ablation", "skill": "old", "by": "line"})
    run.close()
    with browser(tmp_path) as client:
        page = client.get("/run/parts").text
        assert ">Resume</button>" in page and "new budget" not in page
        form = {"csrf": csrf_of(client), "do": "resume"}
        assert f"skillfit ablate {tmp_path}/parts/config.json" in (
            client.post("/act/parts", data=form).text
        )


async def test_a_run_without_a_comparison_has_no_gain(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "none")
    run.measured("baseline", "old", 0.25)
    run.emit(
        ShipTested(
            verdict="no improvement",
            reason="nothing to compare",
            difference=0.0,
            interval=None,
            p_value=1.0,
            pairs=0,
            skill_hash="old",
            evidence=Evidence(),
        )
    )
    run.finish("no_improvement", INITIAL)
    run.close()
    await improved(tmp_path / "other")
    with browser(tmp_path) as client:
        text = client.get("/").text
        assert "+0.0" not in text and "not verified" not in text
        assert "+0.0" not in client.get("/compare?run=none&run=other").text


def test_a_refused_action_is_shown_as_an_error(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "run").close()
    with browser(tmp_path) as client:
        form = {"csrf": csrf_of(client), "do": "budget", "target": "calls", "text": "many"}
        page = client.post("/act/run", data=form).text
        assert '<p class="message bad" role="status">&#39;many&#39; is not a budget.' in page


@pytest.mark.parametrize(
    ("cap", "amount", "reason"),
    [
        ("calls", "60", "60 calls is not higher than the present one (60 calls)."),
        ("usd", "2", "$2.00 is not higher than what the run has used ($2.00)."),
        ("minutes", "1.5", "1.5 min is not higher than the present one (9.0 min)."),
        ("tokens", "700", "700 tokens is not higher than the present one (900 tokens)."),
    ],
)
async def test_a_budget_that_is_not_higher_is_refused_and_stays_in_the_form(
    tmp_path: Path, cap: str, amount: str, reason: str
) -> None:
    caps = {"calls": 60, "minutes": 9, "tokens": 800}
    run = WrittenRun(tmp_path / "run", {"budget": caps})
    await run.roll("train", "old", [1.0] * 8, phase="rollout", step=1)  # 8 calls, $2
    raised = {"number": 1, "action": "budget", "target": "tokens", "text": "900"}
    run.emit(PersonDecided(**raised, cap=900, command="skillfit steer run budget tokens 900"))
    run.close()
    with browser(tmp_path) as client:
        form = {"csrf": csrf_of(client), "do": "budget", "target": cap, "text": amount}
        refused = client.post("/act/run", data=form)
        assert f'<p class="message bad" role="status">A budget of {reason}' in refused.text
        live = refused.text.partition('data-live="')[2].partition('"')[0].replace("&amp;", "&")
        with client.stream("GET", live) as stream:
            parts = next(line for line in stream.iter_lines() if line.startswith("data: "))
        for head in (refused.text, json.loads(parts.removeprefix("data: "))["head"]):
            assert f"<option selected>{cap}</option>" in head
            assert f'name="text" value="{amount}"' in head
    assert read_requests(tmp_path / "run") == [] and not in_use(tmp_path / "run")


def test_a_new_budget_is_compared_with_the_one_that_was_lowered_last(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", {"budget": {"calls": 60}})
    for number, cap in enumerate((90, 20), 1):
        changed = {"action": "budget", "target": "calls", "text": str(cap)}
        run.emit(PersonDecided(number=number, **changed, cap=cap))
    run.close()
    with browser(tmp_path) as client:
        form = {"csrf": csrf_of(client), "do": "budget", "target": "calls", "text": "15"}
        page = client.post("/act/run", data=form).text
    assert "15 calls is not higher than the present one (20 calls)." in page


def test_a_practice_optimizer_is_named_on_the_page_and_in_the_report(tmp_path: Path) -> None:
    models = {"agent": {"id": "openai/gpt-5-mini"}, "optimizer": {"id": "practice/optimizer"}}
    WrittenRun(tmp_path / "run", {"model": models}).close()
    with browser(tmp_path) as client:
        for page in ("/run/run", "/report/run"):
            text = client.get(page).text
            assert '<span class="badge care">practice optimizer, no language model</span>' in text


def test_a_run_with_only_a_directory_is_starting(tmp_path: Path) -> None:
    before_first_event(tmp_path / "fresh")
    lock = RunLock(tmp_path / "fresh")
    with browser(tmp_path) as client:
        assert "Starting fresh" in client.get("/run/fresh").text
        lock.release()
        assert "Stopped before the first step" in client.get("/run/fresh").text


def test_the_form_refuses_the_name_of_an_existing_run(tmp_path: Path) -> None:
    practice_project(tmp_path)
    WrittenRun(tmp_path / "runs" / "first").close()
    with browser(tmp_path / "runs", tmp_path) as client:
        form = {"csrf": csrf_of(client), "do": "start", "name": "first", "set:env.skill": "triage"}
        reply = client.post("/new", data=form)
        assert reply.status_code == 400
        assert "There is a run named first already." in reply.text


def test_items_with_scores_of_one_skill_are_not_shown_as_compared(tmp_path: Path) -> None:
    """A run without a ship test: the initial skill has scores for each item, the found one none."""
    run = WrittenRun(tmp_path / "run")
    run.items([*ITEMS, "train-1"])
    asyncio.run(run.roll("baseline", "old", [1.0] * 3 + [0.0] * 5, phase="baseline"))
    asyncio.run(run.roll("train", "old", [0.0], phase="rollout", step=1, ids=["train-1"]))
    asyncio.run(run.roll("final", "new", [1.0] * 8, phase="final"))
    run.step(1, "accept", BEST, "new")
    run.finish("improved", BEST)
    run.close()
    with browser(tmp_path) as client:
        page = client.get("/items/run").text
        assert "● right" in page and "○ fails" in page
        assert "still fails</span>" not in page and "always right</span>" not in page
        page = client.get("/items/run?view=map").text
        columns = [part.partition("<")[0] for part in page.split('<th class="col">')[1:]]
        assert columns == ["initial", "1", "final"]
        listed = client.get("/items/run?view=map&group=still+fails").text
        assert listed.count('<th scope="row">') == 5
        report = client.get("/report/run").text
        assert "fails 5" in report and "the one that was found" not in report


def test_links_outside_the_folder_are_not_followed(tmp_path: Path) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    WrittenRun(elsewhere / "run").close()
    secret = elsewhere / "secret.txt"
    secret.write_text("the secret")
    (runs / "journal").mkdir(parents=True)
    (runs / "journal" / "journal.sqlite").symlink_to(elsewhere / "run" / "journal.sqlite")
    (runs / "folder").symlink_to(elsewhere / "run")
    (runs / "log").mkdir()
    (runs / "log" / ".start.log").symlink_to(secret)
    WrittenRun(runs / "asking", total_epochs=0, steps_per_epoch=0).close()
    (runs / "asking" / ".start.log").symlink_to(secret)
    (runs / "asking" / "handoff").mkdir()
    (runs / "asking" / "handoff" / "merge-1.prompt.md").symlink_to(secret)
    with browser(runs) as client:
        assert client.get("/run/journal").status_code == 404
        assert client.get("/run/folder").status_code == 404
        listed = client.get("/").text
        assert "/run/asking" in listed
        assert "/run/journal" not in listed and "/run/folder" not in listed
        for page in ("/handoff/asking", "/starting/log"):
            assert "the secret" not in client.get(page).text
        form = {"csrf": csrf_of(client), "do": "answer", "target": "merge-1", "text": "mine"}
        assert "No prompt" in client.post("/act/asking", data=form).text
        client.post("/act/asking", data={"csrf": form["csrf"], "do": "resume"})
    assert secret.read_text() == "the secret"


async def test_a_skill_outside_the_folders_is_not_changed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "SKILL.md").write_text(INITIAL)
    run = WrittenRun(tmp_path / "runs" / "run", {"env": {"skill": str(outside)}})
    await run.roll("ship", "old", [0] * 8)
    await run.roll("ship", "new", [1] * 8)
    run.ship("improved", 1.0, (0.8, 1.0))
    run.finish("improved", BEST)
    run.close()
    with browser(tmp_path / "runs") as client:
        assert "outside of the studio" in client.get("/apply/run").text
        form = {"csrf": csrf_of(client), "do": "apply"}
        assert "outside of the allowed folders" in client.post("/act/run", data=form).text
    assert (outside / "SKILL.md").read_text() == INITIAL


def test_images_of_items_are_shown_but_no_other_files(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
    (tmp_path / "a.png").write_bytes(png)
    (tmp_path / "b.png").write_text("not an image")
    (tmp_path / "secret.txt").write_text("secret")
    row = {"id": "t00", "input": "look", "images": ["a.png", "b.png", "secret.txt"]}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    env = {"env": {"tasks": str(tmp_path / "tasks.jsonl")}}
    WrittenRun(tmp_path / "runs" / "run", env).close()
    with browser(tmp_path / "runs", tmp_path) as client:
        reply = client.get("/image/run?id=t00&number=0")
        assert (reply.content, reply.headers["content-type"]) == (png, "image/png")
        assert client.get("/image/run?id=t00&number=1").status_code == 404
        assert client.get("/image/run?id=t00&number=2").status_code == 404
    with browser(tmp_path / "runs") as client:
        assert client.get("/image/run?id=t00&number=0").status_code == 404, "outside the folder"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("tasks.ndjson", '{"id": "t00", "input": "look", "images": ["a.png"]}'),
        ("tasks.yaml", "- {id: t00, input: look, images: [a.png]}"),
    ],
)
def test_items_are_read_from_every_kind_of_file(tmp_path: Path, name: str, written: str) -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
    (tmp_path / "a.png").write_bytes(png)
    (tmp_path / name).write_text(written)
    WrittenRun(tmp_path / "runs" / "run", {"env": {"tasks": str(tmp_path / name)}}).close()
    with browser(tmp_path / "runs", tmp_path) as client:
        assert client.get("/image/run?id=t00&number=0").content == png


def test_the_form_refuses_programs_and_outside_paths(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with browser(tmp_path / "runs", tmp_path) as client:
        csrf = csrf_of(client)
        for given in (
            {"name": "../x"},
            {"set:env.tasks": "command: touch pwned"},
            {"set:env.grader": "evil.py:grade"},
            {"set:env.skill": "/etc"},
            {"set:model.agent": "cli/claude"},
            {"config": "/etc/passwd"},
            {"yaml": "env: {tasks: 'command: touch pwned'}"},
            {"yaml": "env: {skill: /etc}"},
            {"yaml": "model: {agent: {id: cli/claude}}"},
            {"yaml": "model: {agent.timeout: 5}"},
            {"yaml": "model.agent.timeout: 5"},
            {"yaml": "env: 5"},
            {"yaml": "_base_: /etc/passwd"},
            {"yaml": "- a list"},
            {"yaml": "train: [}"},
            {"yaml": "train: {nonsense: 1}"},
        ):
            form = {"csrf": csrf, "name": "new", "do": "start"} | given
            page = client.post("/new", data=form)
            assert page.status_code == 400, given
            marked = page.text.partition('id="yaml"')[2].partition("</textarea>")[0]
            assert ('aria-invalid="true"' in marked) == ("yaml" in given), given
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_the_form_takes_no_path_outside_the_folder_for_any_setting(tmp_path: Path) -> None:
    """The fields are those of the schema, so that new settings are tried too."""
    inside = tmp_path / "inside"
    practice_project(inside)
    (inside / "link").symlink_to(tmp_path)
    (tmp_path / "SKILL.md").write_text("# Secret")
    nested = "{some: ../SKILL.md}"  # of a setting that may be a mapping
    outside = ("../SKILL.md", str(tmp_path), "link/SKILL.md", nested)
    with browser(inside) as client:
        csrf = csrf_of(client)
        for one, path in product(form_fields(), outside):
            if one.key == "env.prompt" or (path == nested and one.key in text_keys()):
                continue  # it is no path
            form = {"csrf": csrf, "name": "new", "do": "estimate", f"set:{one.key}": path}
            page = client.post("/new", data=form)
            assert page.status_code == 400 and 'role="alert"' in page.text, (one.key, path)
    assert not (inside / "new.yaml").exists()


def test_the_form_shows_the_values_of_the_chosen_config(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "triage").mkdir()
    (tmp_path / "mine.yaml").write_text(
        "model: {agent: openai/gpt-5-mini}\nenv: {skill: ./triage}\ntrain: {num_epochs: 7}\n"
        "evaluation: {gate: strict, preflight: false}\n"
    )
    (tmp_path / "wrong.yaml").write_text("env: {skil: ./triage}\n")
    with browser(tmp_path / "runs", tmp_path) as client:
        page = client.get("/new?config=mine.yaml").text
        for key, value in (
            ("model.agent", "openai/gpt-5-mini"),
            ("env.skill", "triage"),
            ("train.num_epochs", "7"),
        ):
            field = page.partition(f'name="set:{key}"')[2].partition(">")[0]
            assert f'placeholder="{value}"' in field, key
        assert "false (mine.yaml)" in page
        form = {"csrf": csrf_of(client), "do": "show", "name": "", "set:train.num_epochs": "9"}
        chosen = client.post("/new", data=form | {"config": "mine.yaml"}).text
        assert "false (mine.yaml)" in chosen and 'value="9"' in chosen
        assert "skil" in client.get("/new?config=wrong.yaml").text.partition('role="alert"')[2]


def _configured_run(run: Path, folder: Path) -> Path:
    """A run whose config was in `folder`."""
    WrittenRun(run, {"env": {"folder": str(folder)}}).close()
    return run


def test_a_studio_started_elsewhere_finds_the_project_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    practice_project(project)
    (project / "mine.yaml").write_text("env: {skill: ./triage}\n")
    _configured_run(project / "runs" / "one", project)
    monkeypatch.chdir(project / "triage")
    with studio(project / "runs", find_project=True) as running, running.client() as client:
        page = client.get("/new").text
        for offered in (">mine.yaml<", 'value="triage"', 'value="tasks.jsonl"', str(project)):
            assert offered in page
        form = {"csrf": csrf_of(client), "name": "new", "do": "check"}
        settings = {
            "set:env.tasks": "tasks.jsonl",
            "set:env.skill": "triage",
            "set:env.grader": "exact",
            "set:model.agent": "practice/agent",
            "set:model.optimizer": "practice/optimizer",
        }
        assert client.post("/new", data=form | settings).status_code == 200
    assert (project / "new.yaml").is_file()
    assert not (project / "runs" / "new.yaml").exists()


@pytest.mark.parametrize("place", ["elsewhere", "runs", "no config"])
def test_without_a_project_the_page_shows_the_command_to_start_a_studio_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A run may come from another user, so it cannot open any folder that it names."""
    named = {"elsewhere": tmp_path / "other", "runs": tmp_path / "gone", "no config": tmp_path}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.yaml").write_text("env: {}\n")
    _configured_run(tmp_path / "runs" / "one", named[place])
    monkeypatch.chdir(tmp_path / "other")
    with studio(tmp_path / "runs", find_project=True) as running, running.client() as client:
        page = client.get("/new").text
        folder = "PROJECT" if place == "runs" else named[place]
        assert f"skillfit studio {tmp_path / 'runs'} --project {folder}" in page
        assert client.post("/new", data={"name": "new", "do": "start"}).status_code == 400
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["one"]


def test_a_studio_of_one_run_starts_no_run_inside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _configured_run(tmp_path / "run", tmp_path)
    monkeypatch.chdir(tmp_path)
    with studio(run, find_project=True) as running, running.client() as client:
        assert client.get("/run/run").status_code == 200
        assert f"skillfit studio {tmp_path}" in client.get("/new").text


def test_the_form_reports_invalid_values(tmp_path: Path) -> None:
    with studio_process(tmp_path) as running, running.client() as client:
        csrf = csrf_of(client)
        for key, value, problem in (
            ("evaluation.preflight", "maybe", "none of true, false"),
            ("recipe", "<b>", "none of default"),
            ("train.num_epochs", "many", "is not a number"),
            ("env.grader", "{bad: [", "is not valid YAML: expected the node content"),
            ("env.skill", "x" * 100_000, "File name too long"),
        ):
            form = {"csrf": csrf, "name": "new", "do": "estimate", f"set:{key}": value}
            page = client.post("/new", data=form).text
            assert problem in page.partition('class="message bad"')[2], key


def test_a_decision_about_a_missing_edit_is_refused(tmp_path: Path) -> None:
    screening_run(tmp_path / "open", steps=2, finish="")
    with browser(tmp_path) as client:
        form = {"csrf": csrf_of(client), "do": "approve", "target": "x" * 100_000}
        page = client.post("/act/open", data=form).text
        assert "has no edit &#39;xxx" in page and "s0001e01" in page and len(page) < 50_000
    assert not read_requests(tmp_path / "open")


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        make_app(tmp_path / "none")


def test_the_printed_address_is_reachable_at_once(tmp_path: Path) -> None:
    class Reached(Exception):
        pass

    def visit(link: str) -> None:
        url = httpx.URL(link)
        socket.create_connection((url.host, url.port or 0), 5).close()
        raise Reached

    with pytest.raises(Reached):
        serve_studio(tmp_path, announce=visit)


def _names_in(environment: Environment, template: str) -> set[str]:
    """The names that a template and the templates it includes take from outside."""
    assert environment.loader is not None
    tree = environment.parse(environment.loader.get_source(environment, template)[0])
    names = meta.find_undeclared_variables(tree)
    for included in meta.find_referenced_templates(tree):
        names |= _names_in(environment, included) if included else set()
    return names


TEMPLATES = {page.template: page for page in PageData.__subclasses__()}


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_a_template_uses_every_value_of_its_page(template: str) -> None:
    given = {one.name for one in fields(TEMPLATES[template])}
    assert given <= _names_in(
        make_environment("skillfit.plugins.studio", "skillfit.report"), template
    )


WRITTEN = """# Plan

1. Look at `A-17`

```python
<b>code</b>
```

| a |
|:-:|
| 1 |

[a link](javascript:alert(1)) ![an image](https://example.com/x.png) <https://example.com>
"""


async def test_messages_are_shown_as_markdown_that_is_safe_and_as_raw_text(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.items()
    steps = tuple(
        TrajectoryStep(kind, WRITTEN + EVIL, name="look") for kind in ("message", "tool_result")
    )
    await run.roll("ship", "new", [0] * 8, steps=steps)
    run.close()
    with browser(tmp_path) as client:
        read, raw = (client.get(f"/items/run?item=t00{query}").text for query in ("", "&raw=1"))
    talk = read.partition("What happened")[2]
    assert '<p class="head">Plan</p>' in talk and "<ol>" in talk and "<code>A-17</code>" in talk
    assert '<pre><code class="language-python">&lt;b&gt;code&lt;/b&gt;' in talk
    assert "<td>1</td>" in talk and "style=" not in talk
    assert talk.count("# Plan") == 1, "what a tool returned stays as it is"
    for page in (read, raw):
        assert "<script>alert" not in page and "<img" not in page and "\x1b" not in page
        assert 'href="javascript' not in page and 'href="https://example' not in page
    assert "<ol>" not in raw and raw.partition("What happened")[2].count("# Plan") == 2


def test_runs_are_tagged_and_archived(tmp_path: Path) -> None:
    for name in ("one", "two"):
        screening_run(tmp_path / name, steps=2, items=4, rollouts=4, journaled=False)
    with browser(tmp_path) as client:
        csrf = csrf_of(client, "/about/one")

        def listed(query: str = "") -> list[str]:
            text = client.get(f"/{query}").text
            return sorted(part.partition('"')[0] for part in text.split('href="/run/')[1:])

        def act(do: str, text: str = "") -> str:
            return client.post("/act/one", data={"csrf": csrf, "do": do, "text": text}).text

        assert "Tags: base, gpt" in act("tag", "base, gpt")
        assert "Tags: base" in act("tag", "base")
        assert listed("?q=base") == ["one"] and listed() == ["one", "two"]
        assert "skillfit tag one --archive" in act("archive")
        assert listed() == ["two"] and listed("?state=archived") == ["one"]
        assert "skillfit tag one --no-archive" in act("unarchive")
        assert listed() == ["one", "two"]
        assert "is no tag" in act("tag", "x" * 50)
