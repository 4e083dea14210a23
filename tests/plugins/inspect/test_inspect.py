"""Inspect AI tasks: its solvers and scorers, our model, its logs."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, TaskFailure
from skillfit.models import Request
from skillfit.models.protocol import BadRequest, QuotaExhausted, Reply, ToolCall
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.plugins.inspect.inspect_source import InspectEvaluator
from skillfit.skill import Skill
from skillfit.tasks import Item, Task, load_task

pytest.importorskip("inspect_ai")

FILE = '''
import base64
import pathlib
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ContentAudio, ContentImage, ContentText
from inspect_ai.scorer import match
from inspect_ai.solver import basic_agent, generate, solver, system_message, use_tools
from inspect_ai.tool import bash, tool
from inspect_ai.util import sandbox

SAMPLES = [Sample(id=f"s{n}", input=f"What is {n} plus {n}?", target=str(2 * n)) for n in range(12)]

@task
def sums():
    setup = system_message("Be exact.")
    return Task(dataset=SAMPLES, setup=setup, solver=generate(), scorer=match())

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

@task
def in_sandbox():
    solver = basic_agent(tools=[bash()])
    return Task(dataset=SAMPLES, solver=solver, scorer=match(), sandbox="local")

@task
def with_media():
    data = base64.b64encode(b"\\x89PNG bytes").decode()
    part = {"png": ContentImage(image="data:image/png;base64," + data),
            "file": ContentImage(image=str(pathlib.Path(__file__).parent / "cat.png")),
            "audio": ContentAudio(audio="data:audio/wav;base64,AAAA", format="wav")}
    text = ContentText(text="What is it?")
    samples = [Sample(id=name, input=[ChatMessageUser(content=[text, content])], target="cat")
               for name, content in part.items()]
    return Task(dataset=samples, solver=generate(), scorer=match())
'''


@pytest.fixture(autouse=True)
def _inspects_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "xdg"))


def inspect_task(
    folder: Path, model: ScriptedModel | None, name: str = "sums", **settings: str
) -> Task:
    (folder / "sums.py").write_text(FILE)
    return load_task(
        EnvSection(tasks=f"inspect:sums.py@{name}", folder=str(folder), **settings), model=model
    )  # type: ignore[arg-type]


@asynccontextmanager
async def opened(task: Task, folder: Path) -> AsyncIterator[InspectEvaluator]:
    assert isinstance(task.evaluator, InspectEvaluator)
    async with task.evaluator.opened(folder):
        yield task.evaluator


def calculator(request: Request) -> str:
    number = int(request.messages[-1].content.split()[2])
    return str(2 * number if "carefully" in request.messages[0].content else 0)


async def test_samples_are_items_and_the_skill_affects_the_score(tmp_path: Path) -> None:
    model = ScriptedModel(calculator)
    task = inspect_task(tmp_path, model)
    assert (task.items[3].id, task.items[3].input, task.items[3].answers) == (
        "s3",
        "What is 3 plus 3?",
        ("6",),
    )
    good, bad = Skill.from_text("Add {carefully}."), Skill.from_text("Guess.")
    async with opened(task, tmp_path) as evaluator:
        rollouts = await asyncio.gather(
            *(evaluator(skill, item, 5) for skill in (good, bad) for item in task.items[1:4])
        )
    assert [score.hard for _, score in rollouts] == [1, 1, 1, 0, 0, 0]
    assert rollouts[2][0].answer == "6" and rollouts[2][0].usage.calls == 1
    first = next(request for request in model.requests if request.purpose == "s1/5/1")
    assert [message.role for message in first.messages] == ["system", "system", "user"]
    assert first.messages[0].content == "Add {carefully}." and first.seed == 5


async def test_logs_are_readable_with_inspect_and_name_the_skill(
    tmp_path: Path,
) -> None:
    from inspect_ai.log import list_eval_logs, read_eval_log

    task = inspect_task(tmp_path, ScriptedModel(calculator))
    known = task.identity()
    skills = {
        skill.hash: skill
        for skill in (Skill.from_text("Do it carefully. " * 40), Skill.from_text("Guess."))
    }
    async with opened(task, tmp_path) as evaluator:
        await asyncio.gather(*(evaluator(skill, task.items[2], 0) for skill in skills.values()))
    (info,) = list_eval_logs(str(tmp_path / "inspect_logs"))
    log = read_eval_log(info)
    assert log.status == "success" and log.samples is not None
    assert [(sample.id, sample.epoch) for sample in log.samples] == [("s2", 1), ("s2", 2)]
    for sample in log.samples:
        skill = skills.pop(sample.store["skillfit"]["skill"])
        assert sample.messages[0].text == skill.text
    assert task.identity() == known, "where logs go is no part of what the task is"


async def test_task_tools_are_offered_to_our_model_and_bad_arguments_are_reported_to_it(
    tmp_path: Path,
) -> None:
    texts = ('{"number": 4', '{"number": NaN}', '{"number": 4}')
    calls = [ToolCall(f"c{n}", "double", text) for n, text in enumerate(texts)]
    model = ScriptedModel(
        [*(Reply("", tool_calls=(call,), finish_reason="tool_calls") for call in calls), "8"]
    )
    task = inspect_task(tmp_path, model, "with_tool")
    async with opened(task, tmp_path) as evaluator:
        attempt, score = await evaluator(Skill.from_text("Use tools."), task.items[4], 0)
    assert (attempt.answer, score.hard) == ("8", 1)
    assert model.requests[0].tools[0].name == "double"
    for request in model.requests[1:3]:
        assert "not valid JSON" in request.messages[-1].content
    assert (model.requests[3].messages[-1].role, model.requests[3].messages[-1].content) == (
        "tool",
        "8",
    )
    assert [(step.kind, step.name) for step in attempt.steps[-3:]] == [
        ("tool_call", "double"),
        ("tool_result", "double"),
        ("message", ""),
    ]


async def test_a_failure_of_our_model_keeps_its_type_and_affects_one_rollout(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(
        lambda request: (
            QuotaExhausted("empty") if "1 plus 1" in request.messages[-1].content else "4"
        )
    )
    task = inspect_task(tmp_path, model)
    skill = Skill.from_text("x")
    async with opened(task, tmp_path) as evaluator:
        failed, fine = await asyncio.gather(
            *(evaluator(skill, item, 0) for item in task.items[1:3]), return_exceptions=True
        )
    assert isinstance(failed, QuotaExhausted)
    assert not isinstance(fine, BaseException) and fine[1].hard == 1


async def test_an_exception_in_a_task_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import Sample\n"
        "from inspect_ai.solver import solver\n"
        "@solver\ndef explode():\n    async def solve(state, generate):\n"
        "        raise ValueError('boom')\n    return solve\n"
        "@task\ndef broken():\n"
        "    return Task(dataset=[Sample(input='q', target='a')], solver=explode())\n"
    )
    task = load_task(
        EnvSection(tasks="inspect:broken.py@broken", folder=str(tmp_path)), model=ScriptedModel([])
    )
    async with opened(task, tmp_path) as evaluator:
        with pytest.raises(TaskFailure, match="boom"):
            await evaluator(Skill.from_text("x"), task.items[0], 0)


class SlowModel(ScriptedModel):
    """Answers at once, except questions that contain `slow`, which it never answers."""

    def __init__(self, slow: str) -> None:
        super().__init__(calculator)
        self.slow, self.reached, self.cancelled = slow, asyncio.Event(), False

    async def complete(self, request: Request) -> Reply:
        if self.slow not in request.messages[-1].content:
            return await super().complete(request)
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


async def test_a_slow_rollout_does_not_delay_others_and_can_be_cancelled(
    tmp_path: Path,
) -> None:
    from inspect_ai.log import list_eval_logs, read_eval_log

    model = SlowModel("1 plus 1")
    task = inspect_task(tmp_path, model)
    skill = Skill.from_text("carefully")
    async with opened(task, tmp_path) as evaluator:
        slow = asyncio.create_task(evaluator(skill, task.items[1], 0))
        await model.reached.wait()
        for item in task.items[2:5]:
            assert (await evaluator(skill, item, 0))[1].hard == 1
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert (await evaluator(Skill.from_text("carefully, again"), task.items[5], 0))[1].hard == 1
    assert model.cancelled, "the call itself ended, not just the wait for it"
    assert all(
        read_eval_log(info).status == "success"
        for info in list_eval_logs(str(tmp_path / "inspect_logs"))
    )


async def test_closing_the_evaluator_cancels_running_rollouts(tmp_path: Path) -> None:
    model = SlowModel("1 plus 1")
    task = inspect_task(tmp_path, model)
    async with opened(task, tmp_path) as evaluator:
        slow = asyncio.create_task(evaluator(Skill.from_text("x"), task.items[1], 0))
        await model.reached.wait()
    assert model.cancelled
    with pytest.raises(asyncio.CancelledError):
        await slow


async def test_each_model_call_runs_in_the_context_of_its_own_rollout(tmp_path: Path) -> None:
    """Time limits are in the context: waiting for a slot pauses the clock of the waiting rollout,
    not of the first one.
    """
    asking: ContextVar[str] = ContextVar("asking")
    seen: dict[str, str] = {}

    def answer(request: Request) -> str:
        seen[request.purpose] = asking.get()
        return calculator(request)

    task = inspect_task(tmp_path, ScriptedModel(answer))

    async def ask(item: Item) -> None:
        asking.set(item.id)
        await evaluator(Skill.from_text("carefully"), item, 0)

    async with opened(task, tmp_path) as evaluator:
        await asyncio.gather(*(ask(item) for item in task.items[1:4]))
    assert seen == {f"s{n}/0/1": f"s{n}" for n in (1, 2, 3)}


def package(tmp_path: Path) -> Skill:
    skill = Skill.from_text(
        "---\nname: Sums!\n---\nAdd carefully.\n",
        files={"scripts/add.sh": b"#!/bin/sh\necho $(($1 + $1))\n"},
    )
    skill.save(tmp_path / "sums")
    (tmp_path / "sums/scripts/add.sh").chmod(0o755)
    return Skill.load(tmp_path / "sums")


async def test_the_skill_can_be_copied_into_the_sandbox(tmp_path: Path) -> None:
    read, run = "cat .agents/skills/sums/SKILL.md", ".agents/skills/sums/scripts/add.sh 3"
    calls = [
        ToolCall(f"c{n}", "bash", f'{{"command": "{line}"}}') for n, line in enumerate((read, run))
    ]
    calls.append(ToolCall("c3", "submit", '{"answer": "6"}'))
    model = ScriptedModel(
        [Reply("", tool_calls=(call,), finish_reason="tool_calls") for call in calls]
    )
    task = inspect_task(tmp_path, model, "in_sandbox", skill_as="file")
    assert task.identity() != inspect_task(tmp_path, model, "in_sandbox").identity()
    async with opened(task, tmp_path) as evaluator:
        attempt, score = await evaluator(package(tmp_path), task.items[3], 0)
    assert score.hard == 1
    message = model.requests[0].messages[0]
    assert (
        message.role == "system"
        and ".agents/skills/sums/SKILL.md" in message.content
        and "Add carefully." not in message.content
    )
    results = [
        step.text.strip()
        for step in attempt.steps
        if step.kind == "tool_result" and step.name == "bash"
    ]
    assert "Add carefully." in results[0] and results[1] == "6"


def test_a_skill_file_needs_an_inspect_task_with_a_sandbox(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sample s0 .* has no sandbox"):
        inspect_task(tmp_path, None, skill_as="file")


async def test_images_are_passed_on_and_other_media_are_refused(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: "cat")
    (tmp_path / "cat.png").write_bytes(b"\x89PNG file")
    task = inspect_task(tmp_path, model, "with_media")
    skill = Skill.from_text("Look.")
    async with opened(task, tmp_path) as evaluator:
        *shown, audio = await asyncio.gather(
            *(evaluator(skill, item, 0) for item in task.items), return_exceptions=True
        )
    assert [not isinstance(one, BaseException) and one[1].hard for one in shown] == [1, 1]
    images = {request.purpose: request.messages[-1].images[0] for request in model.requests}
    assert (
        images["png/0/1"].path.read_bytes() == b"\x89PNG bytes"
        and images["png/0/1"].media_type == "image/png"
    )
    assert images["file/0/1"].path.read_bytes() == b"\x89PNG file"
    assert isinstance(audio, BadRequest)


PACKAGE = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate

@task
def capitals():
    samples = [Sample(input="France?", target="Paris")]
    return Task(dataset=samples, solver=generate(), scorer=match())
"""


def install(folder: Path, name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with an entry point for Inspect, as pip install -e would leave it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[inspect_ai]\n{name} = {name}\n")
    (information / "direct_url.json").write_text(
        json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}})
    )
    monkeypatch.syspath_prepend(str(folder))


async def test_a_task_of_an_installed_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "tiny_evals", PACKAGE, monkeypatch)
    task = load_task(
        EnvSection(tasks="inspect:tiny_evals/capitals", folder=str(tmp_path)),
        model=ScriptedModel(["Paris"]),
    )
    async with opened(task, tmp_path) as evaluator:
        assert (await evaluator(Skill.from_text("Know."), task.items[0], 0))[1].hard == 1
    with pytest.raises(InputError, match=r"tiny_evals has no task 'capital'.*tiny_evals/capitals"):
        load_task(EnvSection(tasks="inspect:tiny_evals/capital", folder=str(tmp_path)))
    sys.modules.pop("tiny_evals")


def test_a_missing_or_broken_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        InputError, match=r"no installed package offers Inspect tasks as 'gone_evals'"
    ):
        load_task(EnvSection(tasks="inspect:gone_evals/capitals", folder=str(tmp_path)))
    install(tmp_path / "site", "broken_evals", "import not_there_either\n", monkeypatch)
    with pytest.raises(InputError, match=r"broken_evals cannot be imported: .*not_there_either"):
        load_task(EnvSection(tasks="inspect:broken_evals/capitals", folder=str(tmp_path)))


async def test_a_missing_model_or_file_is_an_error_with_a_hint(tmp_path: Path) -> None:
    task = inspect_task(tmp_path, None)
    assert task.evaluator is not None
    with pytest.raises(InputError, match=r"Set model\.agent"):
        await task.evaluator(Skill.from_text("x"), task.items[0], 0)
    with pytest.raises(InputError, match="does not exist"):
        load_task(EnvSection(tasks="inspect:gone.py@sums", folder=str(tmp_path)))
    with pytest.raises(InputError, match="no_such_task"):
        load_task(EnvSection(tasks="inspect:sums.py@no_such_task", folder=str(tmp_path)))
    with pytest.raises(TypeError, match="in the process that loaded the task"):
        pickle.dumps(task.evaluator)


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("sums.py", r"the file has 4 of them: in_sandbox, sums, with_media, with_tool"),
        ("plain.py", r"plain\.py names no @task, and the file has none"),
        ("broken.py", r"broken\.py:4: ZeroDivisionError"),
        ("broken.py@broken", r"broken\.py:4: ZeroDivisionError"),
        ("broken.py@other", r"Task named 'other' not found"),
    ],
)
def test_a_file_without_a_task_is_refused_with_the_reason(
    tmp_path: Path, reference: str, complaint: str
) -> None:
    (tmp_path / "sums.py").write_text(FILE)
    (tmp_path / "plain.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text(
        "from inspect_ai import task\n@task\ndef broken():\n    1 / 0\n"
    )
    with pytest.raises(InputError, match=complaint):
        load_task(EnvSection(tasks=f"inspect:{reference}", folder=str(tmp_path)))


def test_the_only_task_of_a_file_needs_no_name(tmp_path: Path) -> None:
    lines = ["from inspect_ai import Task, task", "from inspect_ai.dataset import Sample"]
    lines += [
        "@task",
        "def one():",
        "    return Task(dataset=[Sample(id=n, input=f'q{n}') for n in range(12)])",
    ]
    (tmp_path / "one.py").write_text("\n".join(lines))
    assert len(load_task(EnvSection(tasks="inspect:one.py", folder=str(tmp_path))).items) == 12
