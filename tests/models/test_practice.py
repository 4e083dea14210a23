"""The practice models: no language models, but their replies depend on the skill."""

import json

import pytest

from skillfit.errors import InputError
from skillfit.models import ModelSpec, Request, connect
from skillfit.models.protocol import Message
from skillfit.models.providers.practice import (
    _HARMFUL,
    _USELESS,
    practice_answer,
    practice_reply,
)

RULES = """Answer with the label alone, in lower case.
- Mentions of invoice or charge mean billing.
- Mentions of parcel mean delivery.
"""
TICKET = "I was charged twice."


def share(skill: str, task: str, wanted: str) -> float:
    return sum(practice_answer(skill, task, seed) == wanted for seed in range(200)) / 200


def test_the_agent_follows_a_rule_with_occasional_errors() -> None:
    assert 0.85 < share(RULES, TICKET, "billing") < 1.0
    assert share("Answer with the label alone, in lower case.", TICKET, "billing") == 0


def test_a_word_matches_its_inflections_and_a_label_itself() -> None:
    assert share(RULES, "Why these charges?", "billing") > 0.85
    assert share(RULES, "When is the delivery?", "delivery") > 0.85


def test_the_later_rule_wins_on_ties() -> None:
    corrected = RULES + "- Mentions of charged mean fraud.\n"
    assert share(corrected, TICKET, "fraud") > 0.85


def test_the_skill_determines_the_format_of_the_answer() -> None:
    assert practice_answer(RULES.replace(", in lower case", ""), TICKET, 1) == "Billing"
    assert (
        practice_answer(RULES.replace("the label alone", "a label"), TICKET, 1)
        == "I would send this to billing."
    )
    assert (
        practice_answer(RULES + "Answer in full sentences.", TICKET, 1)
        == "I would send this to billing."
    )


def test_a_similar_worked_example_determines_the_answer() -> None:
    example = "Input:\n\n```\nMy bike has a flat tyre today\n```\n\nOutput:\n\n```\nworkshop\n```"
    assert share(RULES + example, "My bike has a flat tyre", "workshop") > 0.85


def test_the_same_skill_task_and_seed_give_the_same_answer() -> None:
    assert {practice_answer(RULES, TICKET, 7) for _ in range(5)} == {
        practice_answer(RULES, TICKET, 7)
    }


def trajectories(*cases: tuple[str, str, str]) -> str:
    shown = [
        f"### Item {number}\nTask:\n{task}\n\n[assistant] {answer}\nResult: failed\n"
        f"Expected answer:\n{label}\n"
        for number, (task, label, answer) in enumerate(cases)
    ]
    return (
        "<current_skill>\nSort tickets.\n</current_skill>\n<trajectories>\n"
        + "\n".join(shown)
        + "\n</trajectories>\n"
    )


def edits(prompt: str) -> list[str]:
    return [
        edit["content"]
        for edit in json.loads(practice_reply("reflect.failure", prompt))["patch"]["edits"]
    ]


def test_the_optimizer_proposes_words_that_the_failures_of_a_label_share() -> None:
    prompt = trajectories(
        ("The parcel is late", "delivery", "general"),
        ("Where is my parcel", "delivery", "general"),
        ("The app crashes", "technical", "general"),
    )
    rules = [line for line in edits(prompt) if "Mentions" in line]
    assert any("parcel" in rule and rule.endswith("mean delivery.") for rule in rules)
    assert any("app" in rule and rule.endswith("mean technical.") for rule in rules)
    assert not any(" where" in rule or " late" in rule for rule in rules)


def test_some_proposals_are_useless_and_some_harmful() -> None:
    proposed = {
        line.removeprefix("- ")
        for n in range(60)
        for line in edits(trajectories((f"The parcel {n} is late", "delivery", "x")))
    }
    assert proposed & set(_USELESS) and proposed & set(_HARMFUL)


def test_every_stage_gets_json() -> None:
    for stage in (
        "reflect.success",
        "merge",
        "rank",
        "lr_autonomous",
        "rewrite",
        "slow_update",
        "meta_skill",
        "diagnose",
        "unheard_of",
    ):
        assert isinstance(json.loads(practice_reply(stage, "")), dict)


async def test_practice_models_answer_through_the_client_and_report_their_name() -> None:
    model = connect(ModelSpec(id="practice/agent"), role="agent", run_id="r")
    try:
        reply = await model.complete(
            Request((Message("system", RULES), Message("user", TICKET)), stage="rollout", seed=3)
        )
    finally:
        await model.close()
    assert reply.text == practice_answer(RULES, TICKET, 3) and reply.usage.tokens > 0
    assert reply.model.startswith("practice/")


def test_an_unknown_practice_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"There is no practice model 'judge'"):
        connect(ModelSpec(id="practice/judge"), role="judge", run_id="r")
