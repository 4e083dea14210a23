"""The code grader: what tests can see of an answer, and what an answer cannot do to its tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skillfit.errors import InputError, TaskFailure
from skillfit.sandbox.programs import ISOLATIONS, Isolation, best_isolation, works
from skillfit.tasks.graders import build_grader
from skillfit.tasks.item import Attempt, Item, Score

FULL = [isolation for isolation in ISOLATIONS if isolation.full and works(isolation)]


async def grade(answer: str, tests: str, **settings: object) -> Score:
    grader = build_grader({"code": settings})
    return await grader.grade(Item("i", {"input": "q", "tests": tests}), Attempt(answer))


CASES = {
    "values of many types": (
        "def same(x): return x",
        """
import datetime, decimal, fractions, math
from collections import deque
for value in (None, True, 3, 10**40, -2.5, float("inf"), "text \\ud83d", b"bytes", (1, (2,)),
              [1, [2]], {"a": {1: 2}}, {1, 2}, frozenset({3}), 2j, range(3), deque([1]),
              bytearray(b"x"), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3),
              datetime.timedelta(1, 2), decimal.Decimal("1.10"), fractions.Fraction(1, 3)):
    assert same(value) == value and type(same(value)) is type(value), value
assert math.isnan(same(float("nan")))
assert same(int) is int
""",
    ),
    "a list that is changed in place": (
        "def sort(numbers): numbers.sort()\ndef fill(d): d['x'].append(1); d.pop('y')",
        """
numbers = [3, 1, 2]
assert sort(numbers) is None and numbers == [1, 2, 3]
inner = []
outer = {"x": inner, "y": 0}
fill(outer)
assert outer == {"x": [1]} and outer["x"] is inner
""",
    ),
    "an argument that is returned": (
        "def same(x): return x",
        "numbers = [1]\nassert same(numbers) is numbers",
    ),
    "a class with methods, attributes and operators": (
        """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, at): return self.items[at]
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __mul__(self, number): return Vector(self.x * number, self.y * number)
    __rmul__ = __mul__
    def __eq__(self, other): return (self.x, self.y) == (other.x, other.y)
    def __hash__(self): return hash((self.x, self.y))
""",
        """
stack = Stack()
stack.push(1); stack.push([2])
assert len(stack) == 2 and list(stack) == [1, [2]] and stack[0] == 1 and 1 in stack
assert stack.pop() == [2] and stack.items == [1]
assert isinstance(stack, Stack) and not isinstance(3, Stack) and Stack.__name__ == "Stack"
assert Vector(1, 2) + Vector(1, 1) == Vector(2, 3) != Vector(0, 0)
assert 2 * Vector(1, 2) == Vector(1, 2) * 2
assert len({Vector(1, 2), Vector(1, 2)}) == 1
vector = Vector(0, 0)
vector.x = 5
assert vector.x == 5 and not hasattr(vector, "z")
""",
    ),
    "nodes that the test links": (
        """
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
def length(node): return 0 if node is None else 1 + length(node.next)
def reverse(node, before=None):
    while node: node.next, before, node = before, node, node.next
    return before
""",
        """
nodes = Node(1, Node(2))
nodes.next.next = Node(3)
assert length(nodes) == 3
turned = reverse(nodes)
assert [turned.value, turned.next.value, turned.next.next.value] == [3, 2, 1]
""",
    ),
    "nodes of the test's own class": (
        "def depth(t): return 0 if t is None else 1 + max(depth(t.left), depth(t.right))",
        """
class Tree:
    def __init__(self, left=None, right=None): self.left, self.right = left, right
assert depth(Tree(Tree(), Tree(None, Tree()))) == 3
""",
    ),
    "functions as arguments and results": (
        "def twice(f): return lambda x: f(f(x))\n"
        "def key_sorted(xs, key): return sorted(xs, key=key)",
        "assert twice(lambda x: x + 3)(1) == 7\n"
        "assert key_sorted(['bb', 'a'], key=len) == ['a', 'bb']",
    ),
    "exceptions": (
        """
class Empty(ValueError): pass
def first(items):
    if not items: raise Empty("nothing there")
    return items[0]
def call(f):
    try: return f()
    except KeyError as error: return f"caught {error}"
""",
        """
for kind in (Empty, ValueError, Exception):
    try:
        first([])
    except kind as error:
        assert str(error) == "nothing there" and type(error).__name__ == "Empty"
    else:
        raise AssertionError
def raising(): raise KeyError("k")
assert call(raising) == "caught 'k'"
""",
    ),
    "generators and coroutines": (
        "def count(n):\n    yield from range(n)\nasync def later(x):\n    return x * 2",
        """
import asyncio
assert list(count(3)) == [0, 1, 2]
numbers = count(1)
assert next(numbers) == 0 and next(numbers, None) is None
assert asyncio.run(later(4)) == 8
""",
    ),
    "what a function prints and reads": (
        "import sys\ndef greet():\n    print('Hello', input('? '), sys.stdin.readline().strip())",
        """
import contextlib, io, sys
sys.stdin = io.StringIO("Ann\\nLee\\n")
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    greet()
assert printed.getvalue().endswith("Hello Ann Lee\\n"), printed.getvalue()
""",
    ),
    "names and annotations of a function": (
        'def mean(xs: list) -> float:\n    "The mean."\n    return sum(xs) / len(xs)',
        "assert mean.__name__ == 'mean' and mean.__doc__ == 'The mean.'\n"
        "assert mean.__annotations__ == {'xs': list, 'return': float} and callable(mean)",
    ),
    "what the answer imports": (
        "import math\nfrom collections import Counter\ndef area(r): return math.pi * r * r",
        "assert math.isclose(area(1), 3.14159, rel_tol=1e-4) and Counter('aa') == {'a': 2}",
    ),
    "the answer as a module": (
        "def f(): return 1",
        "import answer\nfrom answer import f as g\nassert answer.f() == g() == 1",
    ),
    "files that the answer writes": (
        "def save(text): open('note.txt', 'w').write(text)",
        "save('hi')\nassert open('note.txt').read() == 'hi'",
    ),
    "large values that a test does not read as a whole": (
        "TEXT = 'a' * 300_000_000\nTABLE = [*range(2_000_000)]\n"
        "def ends(): return TEXT[-1], len(TEXT)",
        "assert ends() == ('a', 300_000_000) and len(TEXT) == 300_000_000\nassert TABLE[7] == 7",
    ),
    "arrays": (
        "import numpy as np\ndef double(a): return np.asarray(a) * 2\ndef total(a): return a.sum()",
        "import numpy\nassert (double(numpy.array([1.5, 2])) == [3, 4]).all()\n"
        "assert double([[1]]).shape == (1, 1) and total(np.array([1, 2])) == 3",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_right_answer_passes(case: str) -> None:
    answer, tests = CASES[case]
    score = await grade(answer, tests, timeout=60)

    assert (score.hard, score.feedback) == (1.0, "")


EQUAL_TO_EVERYTHING = """
class Anything:
    def __eq__(self, other): return True
    __ne__ = __lt__ = __gt__ = __contains__ = __eq__
    def __sub__(self, other): return 0.0
    __add__ = __rsub__ = __sub__
    def __abs__(self): return 0.0
    def __iter__(self): return iter([self])
"""
READ_MEMORY = """
import re
def solve(x):
    for line in open("/proc/self/maps"):
        area = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
        if area:
            begin, end = (int(number, 16) for number in area.groups())
            with open("/proc/self/mem", "rb") as memory:
                memory.seek(begin)
                try:
                    found = re.search(rb"secret-[0-9a-f]{8}", memory.read(end - begin))
                except OSError:
                    continue
            if found:
                return found[0].decode()
"""
TRICKS = {
    "an object that is equal to everything": (
        EQUAL_TO_EVERYTHING + "def solve(x): return Anything()",
        ["assert solve(1) == 4", "assert abs(solve(1) - 4.0) < 1e-6", "assert 4 in solve(1)"],
    ),
    "a class that is equal to everything": (
        EQUAL_TO_EVERYTHING.replace("Anything", "solve") + "    def __init__(self, x): pass",
        ["assert solve(1) == 4", "assert 4 == solve(1)", "assert not solve(1) != 4"],
    ),
    "writing a report to every descriptor": (
        "import os\n"
        "for number in range(3, 50):\n"
        "    try: os.write(number, b'passed')\n"
        "    except OSError: pass\n"
        "def solve(x): return 0",
        ["assert solve(1) == 4"],
    ),
    "its own reply": (
        "import os, json\n"
        "def solve(x):\n"
        "    reply = dict(changed=[], printed='', value={'int': '4'})\n"
        "    reply = json.dumps(reply).encode() + b'\\n'\n"
        "    for number in range(3, 50):\n"
        "        try: os.write(number, b'\\n' + reply)\n"
        "        except OSError: pass\n"
        "    os._exit(0)",
        ["assert solve(1) == 5"],
    ),
    "asking the checking process to run code": (
        "import os, json\n"
        "def solve(x):\n"
        "    ask = dict(ask='call', args=[{'type': 'exec'}, 'import os; os._exit(0)'], named={})\n"
        "    for number in range(3, 50):\n"
        "        try: os.write(number, json.dumps(ask).encode() + b'\\n')\n"
        "        except OSError: pass\n"
        "    return 0",
        ["assert solve(1) == 4"],
    ),
    "the globals of a function of the test": (
        "def solve(f):\n"
        "    try: names = f.__globals__\n"
        "    except AttributeError: return 0\n"
        "    names['expected'] = 0\n"
        "    return 0",
        ["expected = 4\nassert solve(lambda: 1) == expected"],
    ),
    "the frame of a generator of the test": (
        "def solve(g):\n"
        "    try: return g.gi_frame.f_globals['expected']\n"
        "    except AttributeError: return 0",
        ["expected = 4\nassert solve(x for x in [1]) == expected"],
    ),
    "looking for the expected value in its memory": (
        READ_MEMORY,
        ["assert solve(1) == 'secret-12ab34cd'"],
    ),
    "changing what assert raises": (
        "import builtins\nbuiltins.AssertionError = builtins.exec = None\ndef solve(x): return 0",
        ["assert solve(1) == 4"],
    ),
    "ending the process": (
        "import os\ndef solve(x): os._exit(0)",
        ["assert solve(1) == 4"],
    ),
    "killing everything": (
        "import os, signal\ndef solve(x):\n    os.kill(-1, signal.SIGKILL)",
        ["assert solve(1) == 4"],
    ),
}


@pytest.mark.parametrize("isolation", FULL, ids=lambda isolation: isolation.name)
@pytest.mark.parametrize("trick", TRICKS)
async def test_a_trick_does_not_make_a_wrong_answer_pass(
    trick: str, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillfit.sandbox.programs.best_isolation", lambda: isolation)
    answer, tests = TRICKS[trick]
    for test in tests:
        assert (await grade(answer, test, timeout=20)).hard == 0.0, test


async def test_the_answer_cannot_see_the_tests(tmp_path: Path) -> None:
    look = """
import glob
def solve():
    found = []
    for path in [*glob.glob("/proc/[0-9]*/environ"), *glob.glob("/proc/[0-9]*/cmdline"),
                 *glob.glob("**", recursive=True), *glob.glob("/tmp/**", recursive=True)]:
        try: found.append(open(path, errors="replace").read())
        except OSError: pass
    return "".join(found)
"""
    score = await grade(look, "secret = 'sesame'\nassert 'ses' + 'ame' not in solve()")

    assert score.hard == 1.0


async def test_too_many_processes_are_not_started() -> None:
    bomb = """
import subprocess, sys, time
def solve():
    for _ in range(300):
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    return "all started"
"""
    assert (await grade(bomb, "assert solve() == 'all started'", timeout=60)).hard == 0.0


async def test_an_endless_answer_is_stopped_at_the_time_limit() -> None:
    score = await grade("def solve():\n    while True: pass", "solve()", timeout=2)

    assert score.hard == 0.0 and "no end after 2 s" in score.feedback


async def test_the_evidence_names_the_isolation() -> None:
    score = await grade("def f(): return 1", "assert f() == 1")

    assert score.evidence == (f"Isolated by: {best_isolation().name}.",)
    assert (await grade("x = 1", "pass", sandbox="off")).evidence == ("Isolated by: none.",)


async def test_a_missing_required_sandbox_names_the_setting_of_the_grader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skillfit.sandbox.programs.best_isolation", lambda: ISOLATIONS[-1])
    with pytest.raises(InputError, match="`sandbox` of the code grader is require"):
        await grade("x = 1", "pass", sandbox="require")


async def test_a_sandbox_that_does_not_start_is_a_failure_and_not_a_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: no permission' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("skillfit.sandbox.programs.best_isolation", lambda: ISOLATIONS[0])

    with pytest.raises(TaskFailure, match="no permission") as failed:
        await grade("def f(): return 1", "assert f() == 1")

    assert failed.value.kind == "sandbox"


async def test_the_feedback_for_a_broken_answer_or_test_names_the_error() -> None:
    answer = await grade("def f(:", "f()")
    test = await grade("def f(): return 1", "assert f() == 2, 'the text of the test'")

    assert "SyntaxError" in answer.feedback
    assert test.feedback == "1 of 1 tests fail. First: AssertionError"
    assert test.evidence[0] == "AssertionError: the text of the test"
