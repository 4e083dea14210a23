"""The studio over real HTTP: runs in a folder, a page that learns of each new event, and closed
doors.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from skillfit.errors import InputError
from skillfit.studio import make_app, serve
from tests.report.runs import Told, improved


@contextmanager
def studio(path: Path, *arguments: str) -> Iterator[httpx.Client]:
    code = "import sys; from pathlib import Path; from skillfit.studio import serve; serve(Path(sys.argv[1]), 0, *sys.argv[2:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path), *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = httpx.URL(process.stdout.readline().strip())
        with httpx.Client(
            base_url=address.copy_with(query=None), timeout=30, follow_redirects=True
        ) as client:
            client.params = httpx.QueryParams()
            yield client
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


async def test_runs_are_listed_and_each_has_its_page_and_report(tmp_path: Path) -> None:
    await improved(tmp_path / "good" / "one")
    Told(tmp_path / "two").close()
    with studio(tmp_path) as browser:
        listed = browser.get("/").text
        assert 'href="/run/good/one"' in listed
        assert 'href="/run/two"' in listed
        assert "nothing is measured yet" in listed
        assert "The skill is better" in browser.get("/run/good/one").text
        report = browser.get("/report/good/one").text
        assert "graded 1" in report, "the report has the trajectories"
        assert browser.get("/run/none").status_code == 404
        assert browser.get("/run/../../etc").status_code == 404


def test_the_address_that_is_told_can_be_reached_at_once(tmp_path: Path) -> None:
    class Reached(Exception):
        pass

    def knock(address: str) -> None:
        url = httpx.URL(address)
        socket.create_connection((url.host, url.port), 5).close()
        raise Reached

    with pytest.raises(Reached):
        serve(tmp_path, announce=knock)


async def test_a_run_that_cannot_be_read_is_said_and_does_not_hide_the_others(
    tmp_path: Path,
) -> None:
    await improved(tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "journal.sqlite").write_text("no database at all")
    with studio(tmp_path) as browser:
        listed = browser.get("/").text
    assert 'href="/run/one"' in listed and "two/journal.sqlite is damaged" in listed


def test_a_page_is_told_of_what_happens_without_asking_again(tmp_path: Path) -> None:
    run = Told(tmp_path / "live")
    with studio(tmp_path) as browser, browser.stream("GET", "/events/live") as stream:
        pages = (
            json.loads(line.removeprefix("data: "))
            for line in stream.iter_lines()
            if line.startswith("data: ")
        )
        assert "Still running" in next(pages)
        run.measured("baseline", "old", 0.25)
        told = next(page for page in pages if "25\u00a0%" in page)
        assert "Now: baseline" in told
        run.close()
        assert "Stopped before the first step" in next(page for page in pages if "Stopped" in page)


def test_new_runs_appear_in_the_list(tmp_path: Path) -> None:
    with studio(tmp_path) as browser, browser.stream("GET", "/events") as stream:
        pages = (
            json.loads(line.removeprefix("data: "))
            for line in stream.iter_lines()
            if line.startswith("data: ")
        )
        assert "There is no run here yet" in next(pages)
        Told(tmp_path / "fresh").close()
        assert any("/run/fresh" in page for page in pages)


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"0\.0\.0\.0 can be reached from other machines"):
        make_app(tmp_path, "0.0.0.0")
    with pytest.raises(InputError):
        make_app(tmp_path, "")
    make_app(tmp_path, "::1")
    with studio(tmp_path, "127.0.0.1", "s3cret") as browser:
        assert browser.get("/").status_code == 401
        assert browser.get("/", params={"token": "wrong"}).status_code == 401
        assert browser.get("/", params={"token": "s3cret"}).status_code == 200
        assert browser.get("/").status_code == 200, "the cookie remembers"


def test_a_web_page_that_calls_this_machine_by_another_name_gets_nothing(tmp_path: Path) -> None:
    with studio(tmp_path) as browser:
        assert browser.get("/", headers={"Host": "evil.example"}).status_code == 400


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        make_app(tmp_path / "none")
