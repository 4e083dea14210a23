from __future__ import annotations

from pathlib import Path

import pytest

from skillfit.agents import ChatAgent, build_agent
from skillfit.agents.agent import AgentFailure, AttemptContext
from skillfit.config.schema import AgentSection
from skillfit.errors import InputError
from skillfit.models import ModelSpec
from skillfit.models.protocol import Reply, Usage
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.skill import Skill
from skillfit.tasks.item import Item

SKILL = Skill.from_text(
    "---\nname: sums\ndescription: d\n---\n# Sums\n\nAdd with {care} and say {result}.\n"
)


def item(text: str = "What is 2 + 2?", **row: object) -> Item:
    return Item("i1", {"input": text, **row})


async def test_the_prompt_starts_with_the_skill_and_items_share_its_prefix() -> None:
    model = ScriptedModel(lambda _: "4")
    agent = ChatAgent(model)

    for text in ("What is 2 + 2?", "What is 3 + 1?"):
        await agent.attempt(SKILL, item(text), AttemptContext(seed=7, purpose=text))

    first, second = model.requests
    assert first.messages[0] == second.messages[0]
    assert first.messages[0].role == "system"
    assert "Add with {care} and say {result}." in first.messages[0].content
    assert "description: d" not in first.messages[0].content
    assert [message.content for message in first.messages[1:]] == ["What is 2 + 2?"]
    assert first.seed == 7


async def test_the_trajectory_contains_the_replies_but_neither_skill_nor_item() -> None:
    attempt = await ChatAgent(ScriptedModel(["It is 4."])).attempt(SKILL, item(), AttemptContext())

    assert attempt.answer == "It is 4."
    assert [(step.kind, step.text) for step in attempt.steps] == [("message", "It is 4.")]
    assert attempt.usage.calls == 1


async def test_a_refining_turn_keeps_the_question_and_has_its_own_purpose() -> None:
    model = ScriptedModel(["5", "4", "4", "never asked"])
    attempt = await ChatAgent(model, max_turns=6).attempt(
        SKILL, item(), AttemptContext(purpose="i1/repeat_0")
    )

    assert attempt.answer == "4"
    assert len(model.requests) == 3, "an answer that no longer changes ends the turns"
    assert (
        model.requests[2].messages[: len(model.requests[0].messages)] == model.requests[0].messages
    )
    assert [request.purpose for request in model.requests] == [
        f"i1/repeat_0/turn_{turn}" for turn in range(3)
    ]
    assert attempt.usage.calls == 3


async def test_a_final_answer_tag_ends_the_turns() -> None:
    model = ScriptedModel(["so <answer>4</answer>", "never asked"])
    attempt = await ChatAgent(model, max_turns=3).attempt(SKILL, item(), AttemptContext())

    assert len(model.requests) == 1
    assert attempt.answer == "so <answer>4</answer>"


async def test_no_turn_starts_beyond_the_token_limit() -> None:
    model = ScriptedModel([Reply("5", usage=Usage(calls=1, input=90, output=20)), "never asked"])
    attempt = await ChatAgent(model, max_turns=3, max_tokens=100).attempt(
        SKILL, item(), AttemptContext()
    )

    assert len(model.requests) == 1
    assert attempt.steps[-1].kind == "note" and "100 tokens" in attempt.steps[-1].text


async def test_files_and_the_instruction_follow_the_item(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    model = ScriptedModel(["ok"])
    asked = Item("i1", {"input": "Sum it.", "files": ["table.csv"]}, base=tmp_path)

    await ChatAgent(model).attempt(
        SKILL, asked, AttemptContext(instruction="Say which rule you used.")
    )

    prompt = model.requests[0].messages[-1].content
    assert (
        prompt.index("Sum it.")
        < prompt.index("table.csv")
        < prompt.index("1,2")
        < prompt.index("Say which rule you used.")
    )


async def test_an_attached_binary_file_fails_the_rollout(
    tmp_path: Path,
) -> None:
    (tmp_path / "blob.bin").write_bytes(b"\xff\xfe\x00")
    asked = Item("i1", {"input": "Sum it.", "files": ["blob.bin"]}, base=tmp_path)

    with pytest.raises(AgentFailure, match=r"blob\.bin"):
        await ChatAgent(ScriptedModel(["ok"])).attempt(SKILL, asked, AttemptContext())


def test_a_template_without_a_skill_placeholder_is_refused() -> None:
    with pytest.raises(InputError, match="never see the skill"):
        build_agent(AgentSection(prompt="Be good."), ModelSpec(id="scripted/x"), ScriptedModel([]))


def test_an_agents_description_includes_its_model_and_settings() -> None:
    plain = build_agent(AgentSection(), ModelSpec(id="scripted/x"), ScriptedModel([]))
    patient = build_agent(AgentSection(max_turns=3), ModelSpec(id="scripted/x"), ScriptedModel([]))

    assert plain.describe()["model"] == "scripted/model"
    assert plain.describe() != patient.describe()
