"""`model.agents`: one skill for several models."""

import json
from pathlib import Path

import pytest

from skillfit.api import Run
from skillfit.errors import Exit
from tests.cli.cli_project import Shell

# `odd` answers "general" as soon as the skill has a rule about an app.
MODELS = """
from skillfit.models.providers.practice import practice_answer


def even(request):
    return practice_answer(skill(request), request.messages[-1].content, request.seed or 0)


def odd(request):
    return "general" if "an app" in skill(request) else even(request)


def skill(request):
    return " ".join(one.content for one in request.messages if one.role == "system")
"""
PROPOSER = """
from skillfit import Edit, Patch, Proposal


class OneRule:
    async def propose(self, skill, rollouts, context):
        rule = "- Mentions of an app, website or scanner mean technical."
        return [Patch((Proposal(Edit("append", content=rule)),))]
"""
RULES = "\n- Mentions of parcel or package mean delivery.\n- Mentions of return mean returns.\n"


@pytest.fixture
def several(config: Path) -> tuple[str, ...]:
    """The overrides for two models in the agent's place."""
    file = config.with_name("models.py")
    file.write_text(MODELS)
    text = config.read_text().replace(
        "agent: practice/agent", "agents: [scripted/models.py:even, scripted/models.py:odd]"
    )
    assert "agents" in text
    config.write_text(text)
    return (str(config), "--rollouts", "400")


def test_every_item_is_run_with_every_model_and_results_are_by_model(
    shell: Shell, several: tuple[str, ...]
) -> None:
    trained = shell("train", *several, "--run", "r")
    assert trained.code == 0, trained.err
    for model in ("even", "odd"):
        assert f"with models.py:{model}: initial skill" in trained.out.replace("scripted/", "")
    ship = json.loads(Path("r/summary.json").read_text())["ship"]
    assert [one["type"] for one in ship["models"]] == [
        "scripted/models.py:even",
        "scripted/models.py:odd",
    ]
    record = Run.open("r").record
    assert record.agent == "scripted/models.py:even, scripted/models.py:odd"
    assert {one.type for one in record.types} == set(record.agent.split(", "))
    shell("report", "r", "--format", "md")
    assert "| With scripted/models.py:odd |" in Path("r/report.md").read_text()
    both = ("--model", "scripted/triage/models.py:even", "--model", "scripted/triage/models.py:odd")
    verified = shell("verify", "r", *both, "--json")
    assert verified.code in (0, Exit.REGRESSION), verified.err
    assert [one["model"].rpartition(":")[2] for one in verified.json] == ["even", "odd"]
    assert shell("verify", "r", "--json").json["model"] == record.agent


def test_what_helps_one_model_and_hurts_another_is_not_handed_over(
    shell: Shell, several: tuple[str, ...]
) -> None:
    """The rewritten skill gains much with one model and loses all with the other."""
    document = Path(several[0]).parent / "triage-tickets" / "SKILL.md"
    document.write_text(document.read_text() + RULES)
    rules = Path("proposer.py")
    rules.write_text(PROPOSER)
    trained = shell("train", *several, f"optimizer.proposer={rules}:OneRule", "--run", "r")
    assert trained.code in (Exit.NO_IMPROVEMENT, Exit.INCONCLUSIVE), trained.err
    assert "an app" not in Path("r/best_skill.md").read_text()
    assert "an app" in (Path("r/edit_effects.json").read_text())


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("model.agents=[practice/agent]", "agents should be two or more different models"),
        ("model.agents=[practice/agent, practice/agent]", "two or more different models"),
        ("model.agents=[practice/agent, cli/claude]", "programs and models cannot be mixed"),
    ],
)
def test_wrong_lists_of_models_are_refused(
    shell: Shell, config: Path, setting: str, why: str
) -> None:
    refused = shell("train", config, setting, "model.agent=null")
    assert refused.code == 2 and why in refused.err


def test_one_model_and_several_exclude_each_other(shell: Shell, config: Path) -> None:
    refused = shell("train", config, "model.agents=[openai/a, practice/agent]")
    assert refused.code == 2 and "exclude each other" in refused.err


def test_the_price_of_a_rollout_is_the_mean_of_the_models_prices(
    shell: Shell, config: Path
) -> None:
    def cost(*models: str) -> float:
        agent = [f"model.agents=[{', '.join(models)}]", "model.agent=null"]
        if len(models) == 1:
            agent = [f"model.agent={models[0]}"]
        prices = "model.prices={a: {input: 1, output: 1}, b: {input: 3, output: 3}}"
        found = shell(
            "estimate",
            config,
            *agent,
            prices,
            "model.optimizer=null",
            "optimizer.proposer=examples",
            "--json",
        ).json
        return float(found["total"]["usd"][1])

    assert cost("openai/a", "openai/b") > cost("openai/a")
