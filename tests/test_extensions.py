"""Parts by name, and the user's own Python files."""

import asyncio
import py_compile
import subprocess
import sys

import pytest

from skillfit.errors import InputError, TaskFailure
from skillfit.extensions import call_user_code, find_extension, load_object

GATE = """
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from beside import LIMIT


@dataclass
class Gate:
    name: ClassVar[str] = "mine"
    limit: int = LIMIT
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = 1 / 0\n", r"mine\.py:2: ZeroDivisionError"),
        ("def f(:\n", r"mine\.py:1: SyntaxError"),
        ("import sys\nsys.exit(0)\n", r"mine\.py:2: SystemExit: 0"),
    ],
)
def test_an_error_in_a_user_file_is_reported_with_its_line(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=message):
        load_object("mine.py:evaluate", tmp_path)


def test_a_file_loads_after_it_was_fixed(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("1 / 0\n")
    with pytest.raises(InputError):
        load_object("mine.py:answer", tmp_path)
    file.write_text("answer = 42  # fixed\n")
    assert load_object("mine.py:answer", tmp_path) == 42


def test_a_gate_in_a_file_may_be_a_dataclass_and_import_modules_beside_it(tmp_path):
    (tmp_path / "gate.py").write_text(GATE)
    (tmp_path / "beside.py").write_text("LIMIT = 3\n")
    gate = find_extension("gate", "gate.py:Gate", {}, tmp_path)
    assert (gate.name, gate().limit) == ("mine", 3)


def test_an_error_in_the_file_of_a_gate_is_reported_with_its_line(tmp_path):
    (tmp_path / "broken_gate.py").write_text("x = 1\ny = 1 / 0\n")
    with pytest.raises(InputError, match=r"broken_gate\.py:2: ZeroDivisionError"):
        find_extension("gate", "broken_gate.py:Gate", {}, tmp_path)


def test_the_error_for_a_missing_file_or_name_lists_what_exists(tmp_path):
    imports = "import os\nfrom json import loads\nfrom pathlib import Path\n"
    (tmp_path / "other.py").write_text(f"{imports}class Gate: ...\n")
    with pytest.raises(InputError, match=r"no_such\.py does not exist"):
        find_extension("gate", "no_such.py:Gate", {}, tmp_path)
    with pytest.raises(InputError, match=r"other\.py has no 'Gates'\. It has: Gate\."):
        find_extension("gate", "other.py:Gates", {}, tmp_path)


def test_compiled_code_is_not_loaded(tmp_path):
    (tmp_path / "grader.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ngrade = 1\n")
    compiled = py_compile.compile(str(tmp_path / "grader.py"), str(tmp_path / "grader.pyc"))
    with pytest.raises(InputError, match=r"grader\.pyc is not a Python file"):
        load_object(f"{compiled}:grade")
    assert not (tmp_path / "ran").exists()


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(InputError, match=r"Unknown gate 'strickt'\. Did you mean 'strict'\?"):
        find_extension("gate", "strickt", {"strict": "json:loads"})


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(0),
        asyncio.CancelledError("x"),
        KeyboardInterrupt(),
        StopIteration(),
        GeneratorExit(),
    ],
)
async def test_exceptions_that_would_end_the_process_are_failures(error):
    def evaluate():
        raise error

    with pytest.raises(
        TaskFailure, match=rf"evaluate: {type(error).__name__}.* \(test_extensions\.py:\d+\)"
    ):
        await call_user_code(evaluate, kind="evaluate", where="evaluate")


@pytest.mark.parametrize("error", [SystemExit(0), asyncio.CancelledError("x")])
async def test_exceptions_of_async_functions_that_would_end_the_process_are_failures(error):
    async def evaluate():
        await asyncio.sleep(0)
        raise error

    with pytest.raises(TaskFailure, match=f"evaluate: {type(error).__name__}"):
        await call_user_code(evaluate, kind="evaluate", where="evaluate")


async def test_cancellation_is_not_wrapped():
    begun = asyncio.Event()

    async def evaluate():
        begun.set()
        await asyncio.sleep(600)

    running = asyncio.ensure_future(call_user_code(evaluate, kind="evaluate", where="evaluate"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_an_endless_function_does_not_block_process_exit():
    script = """
import asyncio, threading
from skillfit.extensions import call_user_code

async def main():
    try:
        async with asyncio.timeout(0.2):
            await call_user_code(threading.Event().wait, kind="evaluate", where="evaluate")
    except TimeoutError:
        print("over")

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("over\n", "")
