"""Inspect AI tasks: its solvers and scorers, our model, its logs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skillfit.errors import InputError
from skillfit.models import Request, ScriptedModel
from skillfit.models.protocol import QuotaExhausted, Reply, ToolCall
from skillfit.skill import Skill
from skillfit.tasks import Task, TaskFailure, TaskSettings, load_task

pytest.importorskip("inspect_ai")

FILE = '''
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import tool

SAMPLES = [Sample(id=f"s{n}", input=f"What is {n} plus {n}?", target=str(2 * n)) for n in range(12)]

@task
def sums():
    return Task(dataset=SAMPLES, setup=system_message("Be exact."), solver=generate(), scorer=match())

@tool
def double():
    async def execute(number: int) -> str:
        """Double a number.

        Args:
            number: the number to double
        """
        return str(2 * number)
    return execute

@task
def with_tool():
    return Task(dataset=SAMPLES, solver=[use_tools(double()), generate()], scorer=match())
'''


@pytest.fixture(autouse=True)
def _inspects_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "xdg"))


def inspect_task(folder: Path, model: ScriptedModel | None, name: str = "sums") -> Task:
    (folder / "sums.py").write_text(FILE)
    return load_task(TaskSettings(f"inspect:sums.py@{name}", base=folder, logs=folder / "logs"), model=model)


def calculator(request: Request) -> str:
    number = int(request.messages[-1].content.split()[2])
    return str(2 * number if "carefully" in request.messages[0].content else 0)


async def test_samples_are_items_and_the_skill_decides_the_score(tmp_path: Path) -> None:
    model = ScriptedModel(calculator)
    task = inspect_task(tmp_path, model)
    assert task.evaluator is not None
    assert (task.items[3].id, task.items[3].input, task.items[3].answers) == ("s3", "What is 3 plus 3?", ("6",))
    good, bad = Skill.from_text("Add {carefully}."), Skill.from_text("Guess.")
    rollouts = await asyncio.gather(*(task.evaluator(skill, item, 5) for skill in (good, bad) for item in task.items[1:4]))
    assert [score.hard for _, score in rollouts] == [1, 1, 1, 0, 0, 0]
    assert rollouts[2][0].answer == "6" and rollouts[2][0].usage.calls == 1
    first = model.requests[0]
    assert [message.role for message in first.messages] == ["system", "system", "user"]
    assert first.messages[0].content == "Add {carefully}."
    assert first.purpose == "s1/5/1" and first.seed == 5


async def test_its_logs_stay_readable_with_inspect(tmp_path: Path) -> None:
    from inspect_ai.log import list_eval_logs, read_eval_log

    task = inspect_task(tmp_path, ScriptedModel(calculator))
    assert task.evaluator is not None
    await task.evaluator(Skill.from_text("carefully"), task.items[2], 0)
    (info,) = list_eval_logs(str(tmp_path / "logs"))
    log = read_eval_log(info)
    assert log.status == "success" and log.samples is not None and log.samples[0].id == "s2"


async def test_tools_of_the_task_are_offered_to_our_model(tmp_path: Path) -> None:
    call = ToolCall("c1", "double", '{"number": 4}')
    model = ScriptedModel([Reply("", tool_calls=(call,), finish_reason="tool_calls"), "8"])
    task = inspect_task(tmp_path, model, "with_tool")
    assert task.evaluator is not None
    attempt, score = await task.evaluator(Skill.from_text("Use tools."), task.items[4], 0)
    assert (attempt.answer, score.hard) == ("8", 1)
    assert model.requests[0].tools[0].name == "double"
    assert (model.requests[1].messages[-1].role, model.requests[1].messages[-1].content) == ("tool", "8")


async def test_our_models_failure_comes_back_as_itself_and_spares_the_others(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: QuotaExhausted("empty") if "1 plus 1" in request.messages[-1].content else "4")
    task = inspect_task(tmp_path, model)
    assert task.evaluator is not None
    skill = Skill.from_text("x")
    failed, fine = await asyncio.gather(*(task.evaluator(skill, item, 0) for item in task.items[1:3]), return_exceptions=True)
    assert isinstance(failed, QuotaExhausted)
    assert not isinstance(fine, BaseException) and fine[1].hard == 1


async def test_a_task_that_breaks_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import Sample\nfrom inspect_ai.solver import solver\n"
        "@solver\ndef explode():\n    async def solve(state, generate):\n        raise ValueError('boom')\n    return solve\n"
        "@task\ndef broken():\n    return Task(dataset=[Sample(input='q', target='a')], solver=explode())\n"
    )
    task = load_task(TaskSettings("inspect:broken.py@broken", base=tmp_path, logs=tmp_path / "logs"), model=ScriptedModel([]))
    assert task.evaluator is not None
    with pytest.raises(TaskFailure, match="boom"):
        await task.evaluator(Skill.from_text("x"), task.items[0], 0)


async def test_without_a_model_or_a_file_it_says_what_to_do(tmp_path: Path) -> None:
    task = inspect_task(tmp_path, None)
    assert task.evaluator is not None
    with pytest.raises(InputError, match=r"Set model\.agent"):
        await task.evaluator(Skill.from_text("x"), task.items[0], 0)
    with pytest.raises(InputError, match="does not exist"):
        load_task(TaskSettings("inspect:gone.py@sums", base=tmp_path))
