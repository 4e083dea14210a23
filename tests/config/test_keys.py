"""The list of settings: documented, and divided into what may change on resume and what may not."""

import pytest

from skillfit.config import Config, describe_keys, identity, load_config


def test_every_key_is_described_once_with_type_and_default() -> None:
    keys = {described.key: described for described in describe_keys()}
    assert len(keys) == len(list(describe_keys()))
    assert keys["train.batch_size"].default == 40
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


def test_what_only_says_how_fast_and_how_far_may_change_on_resume() -> None:
    free = [
        "budget.usd=9",
        "executor=ray",
        "run=elsewhere",
        "model.concurrency=2",
        "model.prices={m: {input: 1.0}}",
        "gradient.analyst_workers=3",
        "env.exec_timeout=9",
        "model.agent.timeout=5",
        "model.agent.retries=1",
        "model.agent.key_env=OTHER",
    ]
    base = {"model": {"agent": "openai/a"}}
    assert identity(load_config(base, free)) == identity(load_config(base))


@pytest.mark.parametrize(
    "override",
    [
        "train.seed=1",
        "model.agent.temperature=1",
        "model.agent=openai/b",
        "env.grader=f1",
        "recipe=paper",
    ],
)
def test_what_says_what_the_run_does_may_not(override: str) -> None:
    base = {"model": {"agent": "openai/a"}}
    assert identity(load_config(base, [override])) != identity(load_config(base))


def test_an_identity_leaves_the_config_as_it_was() -> None:
    config = Config()
    identity(config)
    assert config == Config()
