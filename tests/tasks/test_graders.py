"""Each grader's scores, its errors for wrong settings, and that its feedback does not reveal the
gold answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skillfit.errors import InputError, TaskFailure
from skillfit.tasks import Item, Task
from skillfit.tasks.graders import build_grader, check_items
from skillfit.tasks.item import Attempt, Score
from skillfit.tasks.task import prove_gold


async def grade(
    setting: Any, answer: str, *golds: Any, base: Path = Path(), **columns: Any
) -> Score:
    grader = build_grader(setting, base=base)
    item = Item("i", {"input": "q", "answers": list(golds), **columns})
    check_items(grader, [item])
    return await grader.grade(item, Attempt(answer))


@pytest.mark.parametrize(
    ("setting", "answer", "golds", "hard"),
    [
        ("exact", " Paris\n", ["Paris"], 1),
        ("exact", "paris", ["Paris"], 0),
        ({"exact": {"ignore_case": True}}, "paris", ["Paris"], 1),
        ("exact", "B", ["A", "B"], 1),
        ("normalized", "The Eiffel-Tower!", ["eiffeltower"], 1),
        ("normalized", "a cat", ["The cat."], 1),
        ("normalized", "a dog", ["The cat."], 0),
        ("contains", "I think it is Paris, France.", ["paris"], 1),
        ("contains", "It is 15.", ["5"], 0),
        ({"contains": {"every": True}}, "red and blue", ["red", "green"], 0),
        ({"regex": r"^\d{4}$"}, "2024", [], 1),
        ({"regex": r"^\d{4}$"}, "year 2024", [], 0),
        ({"f1": 0.5}, "the big red cat", ["big cat"], 1),
        ("f1", "the big red cat", ["big cat"], 0),
        ("anls", "Hello World", ["hello  world"], 1),
        ("anls", "Hello Wurld", ["hello world"], 0),
    ],
)
async def test_text_graders_score_answers(
    setting: Any, answer: str, golds: list[str], hard: float
) -> None:
    assert (await grade(setting, answer, *golds)).hard == hard


async def test_soft_scores_give_partial_credit() -> None:
    assert (await grade("normalized", "big red cat", "big cat")).soft == pytest.approx(0.8)
    assert (await grade({"contains": {"every": True}}, "red and blue", "red", "green")).soft == 0.5
    assert (await grade("anls", "hello wurld", "hello world")).soft == pytest.approx(1 - 1 / 11)
    assert (await grade("anls", "something else", "hello world")).soft == 0
    assert (await grade("exact", "x", "y")).soft == 0


@pytest.mark.parametrize(
    ("answer", "gold", "hard"),
    [
        ("B", "B", 1),
        ("(b)", "B", 1),
        ("**B**", "B", 1),
        ("B. because it is", "B", 1),
        ("I first thought option A, but the answer is (C).", "C", 1),
        ("Answer: D", "D", 1),
        (r"The final answer is \boxed{E}", "E", 1),
        ("The answer is b.", "B", 1),
        ("The answer is a, as said.", "A", 1),
        ("answer: (b) because", "B", 1),
        ("I choose B", "B", 1),
        ("I pick option **C** here", "C", 1),
        (r"\boxed{B}", "B", 1),
        (r"So $\boxed{\text{D}}$.", "D", 1),
        ("B, since it is heavier", "B", 1),
        ("B because it is heavier", "B", 1),
        ("A, B and C are wrong", "A", 0),
        ("The answer is a cat.", "A", 0),
        ("I choose apples", "A", 0),
        ("I choose B", "A", 0),
        ("A cat would be nice", "A", 0),
        ("It depends", "A", 0),
        ("Answer: Apples", "A", 0),
        ("C", "B", 0),
    ],
)
async def test_choice_reads_the_label(answer: str, gold: str, hard: float) -> None:
    assert (await grade("choice", answer, gold)).hard == hard


async def test_choice_is_fast_with_long_white_space() -> None:
    assert (
        await grade(
            "choice", "answer" + " \n" * 3 + " " * 20_000 + "?\nAnswer:" + " " * 20_000 + "B", "B"
        )
    ).hard == 1


async def test_choice_accepts_the_text_of_a_choice() -> None:
    assert (
        await grade("choice", "the blue whale", "B", choices=["a cat", "the blue whale"])
    ).hard == 1
    assert (
        await grade("choice", "B", "the blue whale", choices={"A": "a cat", "B": "the blue whale"})
    ).hard == 1
    assert (
        await grade(
            "choice",
            "a cat",
            "B",
            choices=[{"label": "A", "text": "a cat"}, {"label": "B", "text": "a dog"}],
        )
    ).hard == 0


@pytest.mark.parametrize(
    ("setting", "answer", "gold", "hard"),
    [
        ("numeric", "The total is $1,234.50.", "1234.5", 1),
        ("numeric", "12 + 30 = 42", "42", 1),
        ("numeric", "-7", "7", 0),
        ("numeric", "−7", "-7", 1),
        ("numeric", "5 million", "5", 0),
        ("numeric", "5", "5 million", 0),
        ("numeric", "5 million", "5,000,000", 1),
        ("numeric", "3 km", "3 m", 0),
        ("numeric", "3 km", "3", 1),
        ("numeric", "3", "3 km", 1),
        ("numeric", "the trip takes 3 hours in all", "3 km", 1),
        ("numeric", "1/2", "0.5", 1),
        ("numeric", "1/2", "2", 0),
        ("numeric", "6.02e23", "6.02e23", 1),
        ("numeric", "3.15", "3.14", 0),
        ({"numeric": {"rel": 0.01}}, "3.15", "3.14", 1),
        ({"numeric": {"abs": 0.5}}, "10.4", "10", 1),
        ("numeric", "no idea", "3", 0),
        ("numeric", "5", "10^5", 0),
        ("numeric", "100,000", "10^5", 1),
        ("numeric", "10^{-3}", "0.001", 1),
        ("numeric", "2**10", "1024", 1),
        ("numeric", "3 x 10^5", "300000", 1),
        ("numeric", r"about $3.2 \times 10^{5}$", "320000", 1),
        ("numeric", "**42** 3 times checked is **42**", "42", 1),
        ("numeric", "2^3 million", "8,000,000", 1),
        ("numeric", "10^999", "5", 0),
        ("numeric", "0^-1", "5", 0),
        ("numeric", "9 m^2", "9", 1),
    ],
)
async def test_numeric_compares_values_and_units(
    setting: Any, answer: str, gold: str, hard: float
) -> None:
    assert (await grade(setting, answer, gold)).hard == hard


async def test_json_fields_are_scored_one_by_one() -> None:
    gold = {"name": "Ada", "born": 1815, "place": {"city": "London"}}
    score = await grade(
        "json_fields",
        'Here: ```json\n{"name": "Ada", "born": 1816, "place": {"city": "London"}}\n```',
        gold,
    )
    assert (score.hard, score.soft) == (0, pytest.approx(2 / 3))
    assert "born" in score.feedback and "1815" not in score.feedback
    assert (
        await grade({"json_fields": ["place.city"]}, '{"place": {"city": "London"}}', gold)
    ).hard == 1
    assert (await grade("json_fields", "nothing here", gold)).hard == 0
    assert (await grade("json_fields", '{"a": true}', {"a": 1})).hard == 0
    assert (await grade("json_fields", '{"a": 1}', 'It is {"a": 1.0}.')).hard == 1


@pytest.mark.parametrize(
    ("extract", "reply"),
    [
        ("tag", "<answer>no</answer> then <ANSWER> yes </ANSWER> bye"),
        ({"tag": "final"}, "<final>yes</final>"),
        ("boxed", r"so \boxed{no} or \boxed{yes}"),
        ("last_line", "because\nyes\n\n"),
        ({"regex": r"Final: (\w+)"}, "Final: no. Final: yes."),
        ({"json": "verdict"}, 'thinking {"x": 1} {"verdict": "yes"}'),
        (["tag", "last_line"], "no tag\nyes"),
    ],
)
async def test_the_answer_is_extracted(extract: Any, reply: str) -> None:
    assert (await grade({"exact": {"extract": extract}}, reply, "yes")).hard == 1


async def test_boxed_braces_nest() -> None:
    assert (
        await grade({"exact": {"extract": "boxed"}}, r"\boxed{\frac{1}{2}}", r"\frac{1}{2}")
    ).hard == 1


async def test_a_missing_tag_is_reported_in_the_feedback() -> None:
    score = await grade({"exact": {"extract": "tag"}}, "yes", "yes")
    assert (score.hard, score.feedback) == (0, "The reply has no <answer>…</answer>.")


async def test_compositions_combine_scores() -> None:
    parts = ["normalized", {"regex": "^[A-Z]"}]
    assert (await grade({"all": parts}, "paris", "Paris")).hard == 0
    assert (await grade({"all": parts}, "paris", "Paris")).soft == 0.5
    assert (await grade({"any": parts}, "paris", "Paris")).hard == 1
    assert (await grade({"mean": parts, "weights": [3, 1]}, "paris", "Paris")).hard == 0.75
    assert (await grade({"mean": [{"all": parts}, "exact"]}, "Paris", "Paris")).hard == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("exactt", "'exactt' is not a grader. Did you mean 'exact'"),
        ({"exact": {}, "f1": {}}, "names 2 graders: exact, f1"),
        ({}, "an empty mapping names no grader"),
        ({"numeric": {"rell": 1}}, "unknown key env.grader.numeric.rell. Did you mean 'rel'"),
        ({"numeric": {"rel": "much"}}, "env.grader.numeric.rel = 'much' .* should be a number"),
        ({"numeric": {"rel": True}}, "env.grader.numeric.rel = true .* should be a number"),
        ({"all": [{"f1": {"threshold": True}}]}, "env.grader.all.f1.threshold = true"),
        ({"code": {"memory_mb": False}}, "memory_mb = false .* should be a whole number"),
        (
            {"mean": ["exact"], "weights": [True]},
            "env.grader.weights: expected 1 number from 1e-06 to",
        ),
        ({"numeric": {"rel": -1}}, "env.grader.numeric.rel"),
        ({"numeric": {"rel": "inf"}}, "env.grader.numeric.rel = .* a finite number"),
        (
            {"regex": "a(b"},
            r"env.grader.regex.pattern: regex 'a\(b' does not compile: .* at position 3",
        ),
        ({"exact": {"extract": {"regex": "["}}}, r"exact.extract.regex: regex .* does not compile"),
        ({"exact": {"extract": {"tga": "a"}}}, "env.grader.exact.extract.tga. Did you mean 'tag'"),
        ({"exact": {"extract": "tga"}}, "env.grader.exact.extract: it should be one of tag, boxed"),
        (
            {"exact": {"extract": {"tag": "a", "boxed": True}}},
            "exactly one way to extract is needed, found tag and boxed",
        ),
        (
            {"exact": {"extract": {"boxed": False}}},
            "exactly one way to extract is needed, found none",
        ),
        ({"mean": ["exact"], "weights": [1, 2]}, "expected 1 number from 1e-06 to"),
        ({"all": []}, "expected a list"),
        ({"all": ["exact"], "weights": [1]}, "'weights' is not a grader"),
        ("rubric", "model.judge"),
        ("gone.py:grade", "does not exist"),
    ],
)
def test_wrong_settings_are_refused_at_start(setting: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_grader(setting)


@pytest.mark.parametrize(
    ("setting", "row", "message"),
    [
        ("exact", {}, "has no answer"),
        ("numeric", {"answer": "many"}, "not a number"),
        ("json_fields", {"answer": "plain"}, "no JSON object"),
        ({"json_fields": ["x"]}, {"answer": {"y": 1}}, "no field 'x'"),
        ("code", {}, "no tests in its column 'tests'"),
        ({"regex": {"column": "form"}}, {}, "has no pattern"),
        ({"regex": {"column": "form"}}, {"form": "*"}, "does not compile"),
        ({"all": ["exact", "numeric"]}, {"answer": "many"}, "not a number"),
    ],
)
def test_an_item_that_cannot_be_graded_is_refused_at_start(
    setting: Any, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Task([{"input": "q", **row}], grade=setting)


@pytest.mark.parametrize("setting", ["exact", "normalized", "contains", "choice", "f1", "anls"])
async def test_feedback_does_not_contain_the_gold_answer(setting: str) -> None:
    score = await grade(setting, "wrong", "B")
    assert score.hard == 0 and score.feedback and "B" not in score.feedback.split()


async def test_a_regex_stays_out_of_the_feedback_and_in_the_patterns() -> None:
    grader = build_grader({"all": [{"regex": "^Total: [0-9]+$"}, "exact"]})
    score = await grader.grade(Item("i", {"input": "q", "answer": "Total: 3"}), Attempt("3"))
    assert grader.patterns() == ("^Total: [0-9]+$",)
    assert "Total" not in score.feedback


async def test_a_python_grader_is_called_with_item_and_answer(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def grade(item, answer):\n    near = answer == item['hint']\n"
        "    return (0.5, 'closer') if near else {'score': 0, 'soft': 0.2}\n"
        "async def later(item, answer):\n    return True\n"
        "def broken(item, answer):\n    return item['nothing']\n"
        "def silly(item, answer):\n    return 7\n"
    )
    assert await grade("own.py:grade", "h", hint="h", base=tmp_path) == Score(0.5, 0.5, "closer")
    assert (await grade("own.py:grade", "x", hint="h", base=tmp_path)).soft == 0.2
    assert (await grade("own.py:later", "x", base=tmp_path)).hard == 1
    with pytest.raises(
        TaskFailure, match=r"own.py:broken on item i: KeyError: 'nothing' \(own.py:7\)"
    ) as failed:
        await grade("own.py:broken", "x", base=tmp_path)
    assert failed.value.kind == "grader"
    with pytest.raises(TaskFailure, match="not a score"):
        await grade("own.py:silly", "x", base=tmp_path)


def test_a_changed_python_grader_changes_the_identity(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def grade(item, answer): return 1\n")
    before = build_grader("own.py:grade", base=tmp_path).describe()
    (tmp_path / "own.py").write_text("def grade(item, answer): return 0\n")
    assert build_grader("own.py:grade", base=tmp_path).describe() != before


async def test_code_is_run_against_each_test() -> None:
    tests = ["assert add(1, 2) == 3", "assert add(0, 0) == 0, 'add(0, 0) must be 0'"]
    assert (
        await grade("code", "Sure:\n```python\ndef add(a, b):\n    return a + b\n```", tests=tests)
    ).hard == 1
    half = await grade("code", "def add(a, b):\n    return 3", tests=tests)
    assert (half.hard, half.soft) == (0, 0.5)
    assert "must be" not in half.feedback and "must be" in half.evidence[0]
    assert "NameError" in (await grade("code", "def sub(a, b): return 0", tests=tests)).feedback


_LEAVE = (
    "\nprint(word.decode(), flush=True)\nopen('passed', 'wb').write(word)\nimport os; os._exit(0)"
)
_LOOK = """
import gc, os, sys
def bytes_in(value, depth):
    if isinstance(value, (bytes, str)):
        yield (value if isinstance(value, bytes) else value.encode(errors="replace")).strip()
    elif depth:
        several = isinstance(value, (list, tuple, set))
        parts = [*value.values()] if isinstance(value, dict) else list(value) if several else []
        for part in parts:
            yield from bytes_in(part, depth - 1)
def looked_up():
    frame = sys._getframe()
    while frame:
        names = [dict(frame.f_locals), dict(frame.f_globals)]
        yield from bytes_in([*gc.get_referents(frame), *names, frame.f_code.co_consts], 3)
        frame = frame.f_back
    for held in gc.get_objects():
        yield from bytes_in(gc.get_referents(held), 1)
def found():
    digits = set(b"0123456789abcdef")
    return next((one for one in looked_up() if len(one) == 32 and set(one) <= digits), b"?")
"""


@pytest.mark.parametrize(
    "trick",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "while True: pass",
        "print('ok'); raise SystemExit",
        "import __main__; word = str(__main__.word).encode()" + _LEAVE,
        "import sys; word = sys.stdin.read().strip().encode()" + _LEAVE,
        "import os; os.lseek(0, 0, 0); word = os.read(0, 100).strip()" + _LEAVE,
        "word = open('/proc/self/fd/0', 'rb').read(100)" + _LEAVE,
        "open('tests.py', 'w').write('')",
        "import builtins; builtins.exec = builtins.compile = lambda *given: None",
        _LOOK + "word = found()" + _LEAVE,
        _LOOK + "def solve():\n    word = found()" + _LEAVE.replace("\n", "\n    "),
    ],
)
async def test_code_that_never_reaches_the_end_of_the_tests_does_not_pass(trick: str) -> None:
    assert (await grade({"code": {"timeout": 5}}, trick, tests="solve()\nassert False")).hard == 0


async def test_code_may_print_much_output_and_exit_after_its_definitions() -> None:
    talk = (
        "import sys\ndef solve(): print('x' * 200_000); return 1\nprint('y' * 200_000)\nsys.exit(0)"
    )
    assert (await grade("code", talk, tests="assert solve() == 1")).hard == 1


async def test_gold_answers_are_checked_with_their_own_grader() -> None:
    good = Task(
        [{"input": "q", "answer": "42 km"}, {"input": "r", "answers": ["1", "one hundred 100"]}],
        grade={"numeric": {"extract": "tag"}},
    )
    assert await prove_gold(good) == []
    bad = Task(
        [{"id": "x", "input": "q", "answer": "forty"}],
        grade={"all": ["exact", {"regex": r"^\d+$"}]},
    )
    (problem,) = await prove_gold(bad)
    assert (
        problem.item_id == "x"
        and "forty" in problem.why
        and problem.score is not None
        and problem.score.hard == 0
    )
    every = Task([{"input": "q", "answers": ["a", "b"]}], grade={"contains": {"every": True}})
    assert await prove_gold(every) == []
    code = Task(
        [{"input": "q", "reference": "def f(): return 1", "tests": "assert f() == 1"}], grade="code"
    )
    assert await prove_gold(code) == []


@pytest.mark.parametrize("how", ["all", "any", "mean"])
async def test_gold_answers_are_checked_with_each_part_of_a_composition(how: str) -> None:
    rows = [{"id": "x", "input": "q", "answers": ["alpha", "beta"]}]
    parts = [{"contains": {"every": True}}, {"all": [{"regex": "alpha"}]}]
    assert await prove_gold(Task(rows, grade={how: parts})) == []
    (wrong,) = await prove_gold(Task(rows, grade={"all": [*parts, {"regex": "gamma"}]}))
    assert wrong.item_id == "x"
    code = [{"input": "q", "reference": "def f(): return 1", "tests": "assert f() == 2"}]
    assert len(await prove_gold(Task(code, grade={how: ["code"]}))) == 1


async def test_extremely_large_numbers_are_compared() -> None:
    huge = "9" * 400
    gold = Item("1", {"input": "q", "answers": [f'{{"n": {huge}}}']})
    grader = build_grader("json_fields")
    assert (await grader.grade(gold, Attempt(f'{{"n": {huge}}}'))).hard == 1
    assert (await grader.grade(gold, Attempt('{"n": 1.5}'))).hard == 0
    assert (await grader.grade(gold, Attempt('{"n": ' + "9" * 5000 + "}"))).hard == 0
    small = Item("2", {"input": "q", "answers": ["7"]})
    assert (await build_grader("numeric").grade(small, Attempt(huge))).hard == 0


@pytest.mark.parametrize(("kind", "problems"), [("sandbox", 0), ("grader", 1)])
async def test_grading_a_gold_answer_is_retried_after_a_transient_failure(
    kind: str, problems: int
) -> None:
    asked = []

    def grade(item: dict[str, Any], answer: str) -> float:
        asked.append(answer)
        if len(asked) == 1:
            raise TaskFailure(kind, "not this time")
        return 1.0

    task = Task([{"input": "q", "answer": "a"}], grade=grade)
    assert len(await prove_gold(task)) == problems
    assert asked == ["a"] * (2 - problems)
