"""The list of settings, each documented."""

import pytest

from skillfit.config import Config, describe_keys, load_config
from skillfit.config.schema import (
    AgentSection,
    EnvSection,
    EvaluationSection,
    SplitSection,
    TaskSection,
)


def test_every_key_is_described_once_with_type_and_default() -> None:
    keys = {described.key: described for described in describe_keys()}
    assert len(keys) == len(list(describe_keys()))
    assert keys["train.batch_size"].default == 20
    assert keys["evaluation.gate_metric"].type == "hard | soft | mixed"
    assert keys["model.agent"].type == "string or mapping | null"
    assert keys["model.agent.id"].doc.startswith("`provider/name`")
    assert keys["budget.usd"].type == "float | null"
    assert (keys["env.fields"].default, keys["env.fields"].type) == ({}, "mapping")
    assert keys["evaluation.must_pass"].type == "list of str"
    assert keys["train.batch_size"].limits == ">= 1"
    assert keys["evaluation.gate_mixed_weight"].limits == ">= 0 and <= 1"
    assert (keys["train.seed"].section, keys["recipe"].section) == ("train", "")


def test_every_key_is_documented_in_one_paragraph() -> None:
    for described in describe_keys():
        assert described.doc and "\n" not in described.doc, described.key


def test_a_default_config_dump_has_exactly_the_described_keys() -> None:
    config = load_config({"model": {"agent": "a/b", "optimizer": "a/b", "judge": "a/b"}})
    leaves = set()
    for section, value in config.model_dump().items():
        for name, item in value.items() if isinstance(value, dict) else [("", value)]:
            key = f"{section}.{name}".strip(".")
            leaves.add(key)
            if section == "model" and isinstance(item, dict) and name != "prices":
                leaves |= {f"{key}.{setting}" for setting in item}
    assert leaves == {described.key for described in describe_keys()}


def test_env_keys_are_those_of_its_parts_with_tasks_first_and_splits_last() -> None:
    parts = (TaskSection, AgentSection, SplitSection)
    assert list(EnvSection.model_fields) == [name for part in parts for name in part.model_fields]


def test_the_gate_metric_computes_the_value_of_a_score() -> None:
    values = [
        EvaluationSection(gate_metric=metric, gate_mixed_weight=0.25).value(1.0, 0.2)
        for metric in ("hard", "soft", "mixed")
    ]
    assert values == [1.0, 0.2, 0.8]


@pytest.mark.parametrize(
    ("agent", "given", "seconds"),
    [("openai/gpt-5", None, 120), ("cli/claude", None, 600), ("cli/claude", 30, 30)],
)
def test_a_rollout_of_a_program_has_more_time(
    agent: str, given: float | None, seconds: float
) -> None:
    settings = {"model": {"agent": agent}, "env": {"exec_timeout": given}}
    assert Config.model_validate(settings).rollout_seconds == seconds
