"""A grader that runs the answer: Python code against the item's tests, in a sandbox.

Graders in Python: a function of the item's content and the answer, as `file.py:grade` or given to
`Task`.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field, PrivateAttr

from skillfit.sandbox.isolation import run_untrusted
from skillfit.sandbox.process import SandboxNotStarted
from skillfit.sandbox.scratch import scratch_folder
from skillfit.tasks.graders.base import BuiltIn, Given, listed
from skillfit.tasks.item import Attempt, Item, Score, TaskFailure, as_score, stable_hash
from skillfit.tasks.user_code import call, described, load_object, plain

_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)

# Leaving early, even with exit code 0, is not passing: only who comes to the end of the tests can
# say the word. While answer and tests run, it stands in no variable, file or stream, but among the
# arguments of a call that is still being put together, where Python code does not reach. The tests
# are compiled and gone before the answer runs, which might change them.
_HARNESS = """
import contextlib, os


def word():
    read = os.read(0, 100)
    with contextlib.suppress(OSError):
        os.ftruncate(0, 0)
    return read


def load(name):
    with open(name) as file:
        return compile(file.read(), name, "exec")


def run(answer):
    os.unlink("tests.py")
    names = {"__name__": "answer"}
    with contextlib.suppress(SystemExit):
        exec(answer, names)
    return names


def passed(word, tests, path=os.path.abspath("passed")):
    with open(path, "wb") as file:
        file.write(word)


passed(word(), exec(load("tests.py"), run(load("answer.py"))))
"""


class Code(BuiltIn, name="code", short="column"):
    """Runs the last fenced block of the answer (or all of it) with each of the item's tests, a
    process per test. `column` holds the tests (text, or a list of them). Hard: all pass; soft: the
    share that does.
    """

    column: str = "tests"
    timeout: float = Field(default=10, gt=0)
    memory_mb: int = Field(default=1024, gt=0)

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        code = (_FENCE.findall(attempt.answer) or [attempt.answer])[-1]
        tests = self._tests(item)
        failures = [failure for test in tests if (failure := await self._run(code, test))]
        # what an assertion says is the test's own text: evidence, not feedback
        shown = [
            "AssertionError" if failure.startswith("AssertionError") else failure
            for failure in failures[:1]
        ]
        feedback = (
            f"{len(failures)} of {len(tests)} tests fail. First: {shown[0]}" if failures else ""
        )
        return Score(float(not failures), 1 - len(failures) / len(tests), feedback, tuple(failures))

    def _tests(self, item: Item) -> list[str]:
        return [str(test) for test in listed(item.content().get(self.column))]

    async def _run(self, code: str, test: str) -> str:
        """Why the test fails; empty when it passes."""
        word = secrets.token_hex(16)
        with scratch_folder("code") as folder:
            for name, text in (("answer.py", code), ("tests.py", test), ("harness.py", _HARNESS)):
                (folder / name).write_text(text, encoding="utf-8", errors="replace")
            argv = [sys.executable, "-I", "harness.py"]
            try:
                result = await run_untrusted(
                    argv,
                    cwd=folder,
                    timeout=self.timeout,
                    memory=self.memory_mb << 20,
                    stdin=word.encode(),
                )
            except SandboxNotStarted as error:
                raise TaskFailure("sandbox", error.message, hint=error.hint) from error
            said = folder / "passed"
            passed = said.is_file() and said.read_bytes() == word.encode()
        if result.timed_out:
            return f"no end after {self.timeout:g} s."
        if passed:
            return ""
        last = result.stderr.strip().splitlines()[-1:] or [
            "the program ended before the tests did."
        ]
        return last[0][:300]

    def patterns_of(self, item: Item) -> tuple[str, ...]:
        return tuple(self._tests(item))

    def problem(self, item: Item) -> str:
        return (
            ""
            if self._tests(item)
            else f"has no tests in its column {self.column!r}, which the grader 'code' runs"
        )


@dataclass(frozen=True, slots=True)
class FunctionGrader:
    """A user's `grade(item, answer)` given from Python."""

    function: Callable[..., Any]
    name: str  # in messages

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        given = await call(
            self.function,
            plain(item),
            attempt.answer,
            kind="grader",
            where=f"{self.name} on item {item.id}",
        )
        return as_score(given, source=self.name)

    def patterns(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> dict[str, Any]:
        return {"function": described(self.function)}


class Python(BuiltIn, name="python", short="path"):
    """`def grade(item: dict, answer: str) -> float | Score`, sync or async; what `as_score` takes
    may come back.
    """

    path: str
    _grader: FunctionGrader = PrivateAttr()
    _source: str = PrivateAttr()

    def model_post_init(self, given: Given) -> None:
        self._grader = FunctionGrader(load_object(self.path, given.base), self.path)
        self._source = stable_hash(
            (given.base / self.path.rpartition(":")[0]).read_text(encoding="utf-8")
        )

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        return await self._grader.grade(item, attempt)

    def describe(self) -> dict[str, Any]:
        return {"python": self.path, "source": self._source}
