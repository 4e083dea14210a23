"""Requests of people to a run: whole lines, numbered, also from several processes at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from skillfit.errors import InputError
from skillfit.run.control import STEERING, read_requests, request_steering


def test_requests_are_numbered_and_read_in_order(tmp_path: Path) -> None:
    request_steering(tmp_path, "veto", "s0001e01")
    request_steering(tmp_path, "budget", "usd", "10")
    assert [(one.number, one.action, one.target, one.text) for one in read_requests(tmp_path)] == [
        (1, "veto", "s0001e01", ""),
        (2, "budget", "usd", "10"),
    ]
    assert [one.number for one in read_requests(tmp_path, after=1)] == [2]


def test_a_request_has_the_equivalent_command(tmp_path: Path) -> None:
    reworded = request_steering(tmp_path, "reword", "s0001e01", "- Use one word; no more.")
    assert reworded.command("runs/a") == (
        "skillfit steer runs/a reword s0001e01 '- Use one word; no more.'"
    )
    assert request_steering(tmp_path, "undo").command("runs/a") == "skillfit apply runs/a --undo"


def test_requests_of_several_processes_are_not_interleaved(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from skillfit.run.control import request_steering\n"
        "for n in range(10): request_steering(Path(sys.argv[1]), 'reword', sys.argv[2], 'x' * 5000)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), f"e{n}"]) for n in range(3)
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    requests = read_requests(tmp_path)
    assert [one.number for one in requests] == list(range(1, 31))
    assert {len(one.text) for one in requests} == {5000}


def test_an_incomplete_line_is_read_later(tmp_path: Path) -> None:
    request_steering(tmp_path, "stop")
    with (tmp_path / STEERING).open("a") as file:
        file.write('{"number": 2, "acti')
    assert [one.action for one in read_requests(tmp_path)] == ["stop"]


@pytest.mark.parametrize(
    ("action", "target", "text", "message"),
    [
        ("vetoo", "", "", "Did you mean 'veto'"),
        ("veto", "", "", "needs a target"),
        ("reword", "s0001e01", " ", "needs a text"),
        ("reword", "s0001e01", "\0\u202e", "needs a text"),
        ("reword", "s0001e01", "x" * 30_000, "20,000 are allowed"),
        ("veto", "s0001e01\0", "", "a target that is no name"),
        ("veto", "x" * 1_000, "", "a target that is no name"),
        ("budget", "euros", "3", "no budget 'euros'"),
        ("budget", "rollouts", "900", "the plan of a run"),
        ("budget", "usd", "nan", "not a budget"),
        ("budget", "usd", "-1", "not a budget"),
    ],
)
def test_invalid_requests_are_refused(
    tmp_path: Path, action: str, target: str, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        request_steering(tmp_path, action, target, text)
    assert not (tmp_path / STEERING).exists()


def test_a_line_that_is_not_a_request_is_reported(tmp_path: Path) -> None:
    (tmp_path / STEERING).write_text("{}\n")
    with pytest.raises(InputError, match=r"Line 1 of .*steering\.jsonl"):
        read_requests(tmp_path)
