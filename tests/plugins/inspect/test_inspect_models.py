"""Inspect tasks: scorers that call models, model roles, arguments, splits, generate settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, TaskFailure
from skillfit.models import Request
from skillfit.models.protocol import BadRequest
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.skill import Skill
from skillfit.tasks import Task, load_task
from skillfit.tasks.item import ScoredAttempt
from tests.support.chat_server import ChatServer

pytest.importorskip("inspect_ai")

FILE = """
from pathlib import Path
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, GenerateConfig, ResponseSchema
from inspect_ai.model import ModelAPI, ModelOutput, get_model, modelapi
from inspect_ai.scorer import Score, accuracy, match, model_graded_qa, scorer
from inspect_ai.solver import generate, solver
from inspect_ai.util import collect, json_schema
from pydantic import BaseModel

SAMPLES = [Sample(id=f"s{n}", input=f"Question {n}?", target=str(n)) for n in range(12)]

def made(samples=SAMPLES, solver=None, scorer=None, **more):
    return Task(dataset=samples, solver=solver or generate(), scorer=scorer or match(), **more)

@task
def graded():
    return made(scorer=model_graded_qa())

@task
def judged_by(judge_model: str = "openai/gpt-4o", count: int = 12):
    return made(SAMPLES[:count], scorer=model_graded_qa(model=judge_model))

@task
def asks_for_the_model():
    return made(metadata={"model": get_model().name})

@scorer(metrics=[accuracy()])
def out_of_ten():
    async def score(state, target):
        return Score(value=8)
    return score

@task
def rated():
    return made(scorer=out_of_ten())

@task
def rated_by_the_judge():
    template = "Rate {answer} from 1 to 10."
    return made(scorer=model_graded_qa(template=template, grade_pattern=r"RATING: (10|[1-9])"))

@task
def own_model():
    return made(scorer=model_graded_qa(model=get_model("openai/o1")))

@modelapi(name="elsewhere")
def elsewhere():
    class Elsewhere(ModelAPI):
        async def generate(self, input, tools, tool_choice, config):
            Path(__file__).with_name("called").touch()
            return ModelOutput.from_content("big", "GRADE: C")
    return Elsewhere

@task
def own_provider():
    return made(scorer=model_graded_qa(model="elsewhere/big"))

@solver
def asks(role):
    async def solve(state, generate):
        reply = await get_model(role=role).generate("Are you there?")
        state.output.completion = reply.completion
        return state
    return solve

@task
def with_user():
    return made(solver=[generate(), asks("user")])

@scorer(metrics=[accuracy()])
def votes():
    async def score(state, target):
        async def vote(number):
            return (await get_model(role="grader").generate(f"Vote {number}")).completion
        replies = await collect(*(vote(number % 2) for number in range(4)))
        return Score(value=float(all(reply == "yes" for reply in replies)))
    return score

@task
def voted():
    return made(scorer=votes())

@task
def same_text():
    stories = [{"scenario": f"story {n} " * 3} for n in range(20)]
    return made([Sample(id=n, input="Begin.", metadata=story) for n, story in enumerate(stories)])

def customer(n):
    return ChatMessageSystem(content=f"You are customer {n}, born in {1900 + n}.")

@task
def scenario_in_the_system_turn():
    user = ChatMessageUser(content="Begin.")
    return made([Sample(id=n, input=[customer(n), user]) for n in range(20)])

@task
def only_ids():
    return made([Sample(id=n, input="Begin.") for n in range(20)])

@task
def own_splits():
    names = ["train"] * 5 + ["validation"] * 5 + ["test"] * 2
    return made([Sample(id=n, input=f"Question {n}?", metadata={"split": name})
                 for n, name in enumerate(names)])

class Reply(BaseModel):
    number: int

@task
def configured():
    schema = ResponseSchema(name="reply", json_schema=json_schema(Reply))
    return made(config=GenerateConfig(stop_seqs=["STOP", "END"], max_tokens=77, temperature=0.25,
                                      reasoning_effort="low", response_schema=schema))

@task
def several_choices():
    return made(config=GenerateConfig(num_choices=3))

@task
def log_probabilities(logprobs=None, top_logprobs=None, prompt_logprobs=None):
    return made(config=GenerateConfig(num_choices=1, logprobs=logprobs, top_logprobs=top_logprobs,
                                      prompt_logprobs=prompt_logprobs))

@task
def nucleus():
    return made(config=GenerateConfig(top_p=0.5))
"""


@pytest.fixture(autouse=True)
def _inspects_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "xdg"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def load(
    folder: Path,
    name: str,
    model: ScriptedModel | None = None,
    judge: ScriptedModel | None = None,
    **settings: Any,
) -> Task:
    (folder / "models.py").write_text(FILE)
    tasks = f"inspect:models.py@{name}"
    return load_task(
        EnvSection(tasks=tasks, folder=str(folder), **settings), model=model, judge=judge
    )


async def roll_out(task: Task, folder: Path, count: int = 1) -> list[ScoredAttempt]:
    assert task.evaluator is not None
    skill = Skill.from_text("Answer well.")
    async with task.evaluator.opened(folder):
        return await asyncio.gather(
            *(task.evaluator(skill, item, 3) for item in task.items[:count])
        )


async def test_a_scorer_that_calls_a_model_uses_the_judge(tmp_path: Path) -> None:
    agent, judge = ScriptedModel(lambda request: "7"), ScriptedModel(lambda request: "GRADE: C")
    results = await roll_out(load(tmp_path, "graded", agent, judge), tmp_path, 3)
    assert [score.hard for _, score in results] == [1, 1, 1]
    assert [attempt.answer for attempt, _ in results] == ["7", "7", "7"]
    assert len(agent.requests) == len(judge.requests) == 3
    assert {request.stage for request in judge.requests} == {"judge"}
    assert {request.stage for request in agent.requests} == {"rollout"}
    assert all("Answer well." not in turn.content for turn in judge.requests[0].messages)


async def test_without_a_judge_the_agents_model_grades(tmp_path: Path) -> None:
    def reply(request: Request) -> str:
        return "GRADE: I" if "[BEGIN DATA]" in request.messages[-1].content else "7"

    agent = ScriptedModel(reply)
    ((attempt, score),) = await roll_out(load(tmp_path, "graded", agent), tmp_path)
    assert (attempt.answer, score.hard, attempt.usage.calls) == ("7", 0, 2)


async def test_model_roles_choose_between_agent_and_judge(tmp_path: Path) -> None:
    agent, judge = ScriptedModel(lambda request: "0"), ScriptedModel(lambda request: "from judge")
    ((attempt, _),) = await roll_out(load(tmp_path, "with_user", agent, judge), tmp_path)
    assert attempt.answer == "0"
    task = load(tmp_path, "with_user", agent, judge, model_roles={"user": "judge"})
    ((attempt, _),) = await roll_out(task, tmp_path)
    assert attempt.answer == "from judge"
    assert task.evaluator is not None
    assert task.evaluator.describe()["model_roles"] == {"user": "judge"}


def test_a_role_for_the_judge_needs_a_judge(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"user is the judge, but model.judge is not set"):
        load(tmp_path, "with_user", ScriptedModel(["0"]), model_roles={"user": "judge"})


async def test_equal_requests_of_one_rollout_are_distinguished_in_any_order(
    tmp_path: Path,
) -> None:
    judge = ScriptedModel(lambda request: "yes")
    task = load(tmp_path, "voted", ScriptedModel(lambda request: "0"), judge)
    ((_, score),) = await roll_out(task, tmp_path)
    assert score.hard == 1
    asked = sorted((request.messages[-1].content, request.purpose) for request in judge.requests)
    assert asked == [
        ("Vote 0", "s0/3/1"),
        ("Vote 0", "s0/3/2"),
        ("Vote 1", "s0/3/1"),
        ("Vote 1", "s0/3/2"),
    ]


async def test_a_call_to_another_model_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    task = load(tmp_path, "own_provider", ScriptedModel(lambda request: "7"))
    with pytest.raises(TaskFailure, match=r"called elsewhere/big directly.*model_roles") as e:
        await roll_out(task, tmp_path)
    assert e.value.kind == "config" and not (tmp_path / "called").exists()


@pytest.mark.parametrize("key", ["", "some-key"])
async def test_the_error_for_a_scorer_with_its_own_model_explains_model_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """With and without a key, and whether or not the openai package is installed."""
    with ChatServer(lambda call: "GRADE: C") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", key)
        task = load(tmp_path, "judged_by", ScriptedModel(lambda request: "7"))
        with pytest.raises(TaskFailure, match=r"(?i)openai.*ARGUMENT: skillfit/judge") as e:
            await roll_out(task, tmp_path)
        assert e.value.kind == "config" and not server.calls and "[bold]" not in str(e.value)


def test_the_error_for_a_task_with_its_own_model_explains_model_roles(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?i)openai.*ARGUMENT: skillfit/judge"):
        load(tmp_path, "own_model", ScriptedModel(["7"]))


async def test_task_arguments_are_passed_and_may_name_our_judge(tmp_path: Path) -> None:
    agent, judge = ScriptedModel(lambda request: "7"), ScriptedModel(lambda request: "GRADE: C")
    task = load(
        tmp_path,
        "judged_by?judge_model=skillfit/judge",
        agent,
        judge,
        task_args={"count": 5},
    )
    assert len(task.items) == 5 and task.evaluator is not None
    assert task.evaluator.describe()["task_args"] == {"count": 5, "judge_model": "skillfit/judge"}
    ((_, score),) = await roll_out(task, tmp_path)
    assert score.hard == 1 and len(judge.requests) == 1


def test_an_unknown_task_argument_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no argument 'cuont'.*Did you mean 'count'"):
        load(tmp_path, "judged_by?cuont=5", ScriptedModel(["7"]))


@pytest.mark.parametrize("name", ["same_text", "scenario_in_the_system_turn", "only_ids"])
def test_samples_whose_user_turns_are_the_same_can_be_split(tmp_path: Path, name: str) -> None:
    task = load(tmp_path, name)
    assert [len(split) for split in (task.train, task.selection, task.test)] == [8, 8, 4]


def test_splits_named_in_the_metadata_are_used(tmp_path: Path) -> None:
    task = load(tmp_path, "own_splits")
    assert [len(split) for split in (task.train, task.selection, task.test)] == [5, 5, 2]


async def test_generate_settings_reach_our_model_and_stop_sequences_end_the_reply(
    tmp_path: Path,
) -> None:
    agent = ScriptedModel(lambda request: '{"number": 0}END and STOP more')
    ((attempt, _),) = await roll_out(load(tmp_path, "configured", agent), tmp_path)
    assert attempt.answer == '{"number": 0}'
    (request,) = agent.requests
    assert (request.max_tokens, request.temperature, request.reasoning_effort) == (77, 0.25, "low")
    assert request.schema is not None
    assert request.schema["properties"]["number"]["type"] == "integer"


async def test_settings_that_our_models_do_not_support_are_refused_or_cause_a_warning(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadRequest, match="num_choices"):
        await roll_out(load(tmp_path, "several_choices", ScriptedModel(["0"])), tmp_path)
    with pytest.warns(UserWarning, match="top_p: ignored"):
        await roll_out(load(tmp_path, "nucleus", ScriptedModel(["0"])), tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("logprobs", True), ("top_logprobs", 1), ("prompt_logprobs", 1)]
)
async def test_log_probabilities_are_refused(tmp_path: Path, name: str, value: int) -> None:
    model = ScriptedModel(["0"])
    task = load(tmp_path, "log_probabilities", model, task_args={name: value})
    with pytest.raises(BadRequest, match=f"sets {name},"):
        await roll_out(task, tmp_path)
    one_choice = load(tmp_path, "log_probabilities", model, task_args={"logprobs": False})
    assert await roll_out(one_choice, tmp_path)


def test_a_task_may_ask_for_the_model_when_it_is_made(tmp_path: Path) -> None:
    assert len(load(tmp_path, "asks_for_the_model").items) == 12


async def test_scores_above_1_are_a_failure_and_not_a_score(tmp_path: Path) -> None:
    task = load(tmp_path, "rated", ScriptedModel(["0"]))
    with pytest.raises(TaskFailure, match="scorers returned 8; skillfit needs 0 to 1"):
        await roll_out(task, tmp_path)


@pytest.mark.parametrize(
    ("name", "limits", "expected"),
    [
        ("rated", (0, 10), 0.8),
        ("rated", (8, 9), 0.0),
        ("rated_by_the_judge", (1, 10), 2 / 3),
        ("graded", (1, 10), 1.0),  # a grade, not a number
    ],
)
async def test_scores_are_rescaled_from_the_range_of_the_task(
    tmp_path: Path, name: str, limits: tuple[float, float], expected: float
) -> None:
    agent = ScriptedModel(lambda request: "0")
    judge = ScriptedModel(lambda request: "RATING: 7\nGRADE: C")
    task = load(tmp_path, name, agent, judge, score_range=limits)
    ((_, score),) = await roll_out(task, tmp_path)
    assert score.hard == pytest.approx(expected)
    assert task.identity() != load(tmp_path, name, agent, judge).identity()


async def test_a_score_outside_of_the_range_is_a_failure(tmp_path: Path) -> None:
    task = load(tmp_path, "rated", ScriptedModel(["0"]), score_range=(0, 5))
    with pytest.raises(TaskFailure, match=r"returned 8, which is not in env\.score_range \[0, 5\]"):
        await roll_out(task, tmp_path)
    with pytest.raises(ValueError, match="lowest, highest"):
        EnvSection(score_range=(5, 5))
