"""Where the skill of an Inspect task goes: to the model under test and to no other role, wherever
the task keeps its messages.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import TaskFailure
from skillfit.models import Request
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.skill import Skill
from skillfit.tasks import Task, load_task
from skillfit.tasks.item import ScoredAttempt

pytest.importorskip("inspect_ai")

# As in tau2 of inspect_evals: the sample's messages are those of a simulated user, and the agent
# under test has its own.
FILE = """
from inspect_ai import Task, task
from inspect_ai.agent import AgentState, agent, as_solver
from inspect_ai.dataset import Sample
from inspect_ai.model import (ChatMessageAssistant, ChatMessageSystem, ChatMessageUser,
                              GenerateConfig, get_model)
from inspect_ai.scorer import Score, accuracy, includes, scorer
from inspect_ai.solver import generate, self_critique, solver

SAMPLES = [Sample(id=f"s{n}", input=f"You want {n} apples.", target="sold") for n in range(12)]

@agent
def simulated_user():
    async def execute(state: AgentState) -> AgentState:
        seller = get_model(config=GenerateConfig(temperature=0.0))
        user = get_model(role="user", config=GenerateConfig(temperature=0.0))
        sellers_side = [ChatMessageSystem(content="You sell fruit.")]
        for _ in range(2):
            said = await user.generate(state.messages)
            state.messages.append(said.message)
            sellers_side.append(ChatMessageUser(content=said.completion))
            reply = await seller.generate(sellers_side)
            sellers_side.append(reply.message)
            state.messages.append(ChatMessageUser(content=reply.completion))
        state.output = said
        return state
    return execute

@scorer(metrics=[accuracy()])
def sold():
    async def score(state, target):
        asked = await get_model().generate("Was it sold? " + state.messages[-1].text)
        return Score(value=float("sold" in state.messages[-1].text), explanation=asked.completion)
    return score

@task
def shop():
    return Task(dataset=SAMPLES, solver=simulated_user(), scorer=sold())

@solver
def only(*roles):
    async def solve(state, generate):
        for role in roles:
            state.output = await get_model(role=role).generate(state.messages)
        return state
    return solve

@task
def roles_only():
    return Task(dataset=SAMPLES, solver=only("seller", "user"), scorer=includes())

@task
def criticised():
    return Task(dataset=SAMPLES, solver=[generate(), self_critique()], scorer=includes())

@solver
def fresh_prompt():
    async def solve(state, generate):
        state.output = await get_model().generate("Sell: " + state.input_text)
        return state
    return solve

@task
def fresh():
    return Task(dataset=SAMPLES, solver=fresh_prompt(), scorer=includes())
"""
SKILL = Skill.from_text("Always close the deal.")


@pytest.fixture(autouse=True)
def _inspects_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "xdg"))


def answer(request: Request) -> str:
    first = request.messages[0].content
    if "You sell fruit." in str(request.messages):
        return "sold" if first == SKILL.text else "no"
    return "sold" if first == SKILL.text else "Apples, please."


async def roll_out(
    folder: Path, name: str, model: ScriptedModel, skill: Skill = SKILL, **roles: str
) -> ScoredAttempt:
    (folder / "shop.py").write_text(FILE)
    env = EnvSection(tasks=f"inspect:shop.py@{name}", folder=str(folder), model_roles=roles)  # type: ignore[arg-type]
    task: Task = load_task(env, model=model)
    assert task.evaluator is not None
    async with task.evaluator.opened(folder):
        return await task.evaluator(skill, task.items[3], 0)


def sees_skill(request: Request) -> bool:
    return any(SKILL.text in turn.content for turn in request.messages)


async def test_an_agent_with_its_own_messages_gets_the_skill_and_the_simulated_user_does_not(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(answer)
    attempt, score = await roll_out(tmp_path, "shop", model)
    *solving, scoring = model.requests
    sellers = [request for request in solving if "You sell fruit." in str(request.messages)]
    users = [request for request in solving if request not in sellers]
    assert (len(sellers), len(users)) == (2, 2)
    assert all(request.messages[0].content == SKILL.text for request in sellers)
    assert not any(map(sees_skill, [*users, scoring])), "only the agent under test has the skill"
    assert score.hard == 1 and attempt.skill_read is True


async def test_what_is_recorded_is_the_conversation_of_the_agent_under_test(
    tmp_path: Path,
) -> None:
    attempt, _ = await roll_out(tmp_path, "shop", ScriptedModel(answer))
    assert [(step.role, step.text) for step in attempt.steps] == [
        ("user", "Apples, please."),
        ("assistant", "sold"),
        ("user", "Apples, please."),
        ("assistant", "sold"),
    ]
    assert attempt.answer == "sold"


async def test_a_task_without_a_call_of_the_model_under_test_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskFailure, match=r"roles seller, user.*model_roles: {ROLE: agent}") as e:
        await roll_out(tmp_path, "roles_only", ScriptedModel(answer))
    assert e.value.kind == "config", "which ends a run at once"


async def test_a_role_can_be_named_as_the_one_under_test(tmp_path: Path) -> None:
    model = ScriptedModel(answer)
    attempt, _ = await roll_out(tmp_path, "roles_only", model, seller="agent")
    assert [sees_skill(request) for request in model.requests] == [True, False]
    assert attempt.skill_read is True


async def test_calls_beside_the_conversation_are_left_as_the_task_makes_them(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(answer)
    await roll_out(tmp_path, "criticised", model)
    assert [sees_skill(request) for request in model.requests] == [True, False, True]


async def test_a_prompt_that_the_solver_writes_itself_gets_the_skill(tmp_path: Path) -> None:
    model = ScriptedModel(answer)
    _, score = await roll_out(tmp_path, "fresh", model)
    assert [sees_skill(request) for request in model.requests] == [True] and score.hard == 1


async def test_an_empty_skill_is_no_reason_to_refuse_a_task(tmp_path: Path) -> None:
    attempt, _ = await roll_out(tmp_path, "roles_only", ScriptedModel(answer), Skill.from_text(""))
    assert attempt.skill_read is None
