"""Every setting has an effect, or an error says where it is, what is wrong and what is allowed."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.config import Config, load_config
from skillfit.config.schema import describe_keys
from skillfit.errors import InputError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(source: Path | dict[str, Any], *overrides: str) -> str:
    with pytest.raises(InputError) as raised:
        load_config(source, overrides)
    return str(raised.value)


def test_the_smallest_useful_config_of_the_design_loads(tmp_path: Path) -> None:
    path = write(
        tmp_path / "config.yaml",
        """
recipe: default
model:
  agent: openai/gpt-5-mini            # who uses the skill
  optimizer: anthropic/claude-sonnet  # who improves it
  judge: {id: openai/gpt-5-mini, temperature: 0}
  concurrency: 32
env:
  skill: ./my-skill
  tasks: ./tasks.jsonl
  grader: exact
budget: {usd: 5}
""",
    )
    config = load_config(path)
    assert config.model.agent is not None
    assert config.model.agent.id == "openai/gpt-5-mini"
    assert config.model.judge is not None
    assert config.model.judge.temperature == 0
    assert config.budget.usd == 5
    assert config.env.skill == str(tmp_path / "my-skill")


def test_an_empty_file_is_the_default_config(tmp_path: Path) -> None:
    assert load_config(write(tmp_path / "c.yaml", "# nothing yet\n")) == Config()
    assert load_config(write(tmp_path / "c.yaml", "train:\nenv:\n")) == Config()


def test_later_and_nearer_bases_take_precedence(
    tmp_path: Path,
) -> None:
    write(tmp_path / "bases" / "root.yaml", "train: {num_epochs: 1, batch_size: 1, seed: 1}\n")
    write(tmp_path / "bases" / "left.yaml", "_base_: root.yaml\ntrain: {batch_size: 2, seed: 2}\n")
    write(tmp_path / "bases" / "right.yaml", "train: {seed: 3}\nevaluation: {must_pass: [a, b]}\n")
    path = write(
        tmp_path / "c.yaml",
        "_base_: [bases/left.yaml, bases/right.yaml]\nevaluation: {must_pass: [c]}\n",
    )
    config = load_config(path)
    assert (config.train.num_epochs, config.train.batch_size, config.train.seed) == (1, 2, 3)
    assert config.evaluation.must_pass == ("c",)


def test_circular_bases_are_refused_with_the_chain(tmp_path: Path) -> None:
    write(tmp_path / "b.yaml", "_base_: c.yaml\n")
    write(tmp_path / "c.yaml", "_base_: a.yaml\n")
    message = refusal(write(tmp_path / "a.yaml", "_base_: b.yaml\n"))
    chain = " -> ".join(str(tmp_path / name) for name in ("a.yaml", "b.yaml", "c.yaml", "a.yaml"))
    assert message == f"Circular _base_: {chain}. Remove one of the _base_ lines."


@pytest.mark.parametrize("base", ["no.yaml", "[no.yaml]", "3", "{a: b}"])
def test_a_base_that_is_not_a_file_is_refused_with_its_line(tmp_path: Path, base: str) -> None:
    message = refusal(write(tmp_path / "a.yaml", f"train: {{}}\n_base_: {base}\n"))
    assert message.startswith(f"{tmp_path / 'a.yaml'}:2: _base_ ")


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("train.batch_size=7", "train.batch_size", 7),
        ("evaluation.gate_mixed_weight=1e-1", "evaluation.gate_mixed_weight", 0.1),
        ("optimizer.use_slow_update=false", "optimizer.use_slow_update", False),
        ("evaluation.must_pass=[a, b]", "evaluation.must_pass", ("a", "b")),
        ("budget.usd=null", "budget.usd", None),
        ("env.split_ratio=2:1:7", "env.split_ratio", "2:1:7"),
        ("env.grader={regex: {pattern: x}}", "env.grader", {"regex": {"pattern": "x"}}),
        ("env.limit=08", "env.limit", 8),
        ("env.prompt=0123", "env.prompt", "0123"),
        ("env.prompt=2026-01-01", "env.prompt", "2026-01-01"),
        ("env.prompt=a=b", "env.prompt", "a=b"),
        ("env.skill=", "env.skill", ""),
        ("executor=ray", "executor", "ray"),
    ],
)
def test_override_values_are_parsed_as_yaml(override: str, key: str, value: object) -> None:
    config: Any = load_config({"budget": {"usd": 3}, "env": {"skill": "/s"}}, [override])
    for part in key.split("."):
        config = getattr(config, part)
    assert config == value


def test_overrides_may_be_a_mapping_of_dotted_keys_and_sections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {
        "model.agent.temperature": 0.5,
        "train": {"num_epochs": 1},
        "train.seed": 7,
        "env.skill": Path("skill"),
    }
    config = load_config({"model": {"agent": "openai/a"}, "train": {"batch_size": 3}}, given)
    assert config.model.agent is not None
    assert (config.model.agent.id, config.model.agent.temperature) == ("openai/a", 0.5)
    assert (config.train.num_epochs, config.train.batch_size, config.train.seed) == (1, 3, 7)
    assert config.env.skill == str(tmp_path / "skill")


def test_an_override_inside_a_model_given_as_a_string_keeps_its_id() -> None:
    config = load_config({"model": {"agent": "openai/a"}}, ["model.agent.temperature=0.5"])
    assert config.model.agent is not None
    assert (config.model.agent.id, config.model.agent.temperature) == ("openai/a", 0.5)


@pytest.mark.parametrize(
    ("override", "base_url"),
    [("openai/c", "http://h/v1"), ("anthropic/c", None)],
)
def test_another_model_keeps_the_address_only_with_the_same_provider(
    override: str, base_url: str | None
) -> None:
    base = {"model": {"judge": {"id": "openai/b", "base_url": "http://h/v1"}}}
    config = load_config(base, [f"model.judge={override}"])
    assert config.model.judge is not None
    assert (config.model.judge.id, config.model.judge.base_url) == (override, base_url)


@pytest.mark.parametrize("key", ["env.grader", "evaluation.ship_grader"])
@pytest.mark.parametrize("as_section", [False, True])
def test_a_grader_replaces_an_inherited_one_completely(
    tmp_path: Path, key: str, as_section: bool
) -> None:
    section, _, name = key.partition(".")
    path = write(tmp_path / "c.yaml", f"{section}: {{{name}: {{exact: {{ignore_case: true}}}}}}\n")
    regex = '{regex: {pattern: "("}}'
    override = f"{section}={{{name}: {regex}}}" if as_section else f"{key}={regex}"
    above = write(tmp_path / "above.yaml", f"_base_: c.yaml\n{section}: {{{name}: {regex}}}\n")
    for config in (load_config(path, [override]), load_config(above)):
        assert getattr(getattr(config, section), name) == {"regex": {"pattern": "("}}


def test_a_key_inside_a_grader_changes_that_grader(tmp_path: Path) -> None:
    grader = "env: {grader: {exact: {ignore_case: true, strip: true}}}\n"
    path = write(tmp_path / "c.yaml", grader)
    config = load_config(path, ["env.grader.exact.ignore_case=false"])
    assert config.env.grader == {"exact": {"ignore_case": False, "strip": True}}
    replaced = ["env.grader.exact.ignore_case=false", "env.grader={regex: {}}"]
    assert load_config(path, replaced).env.grader == {"regex": {}}
    changed = load_config(path, ["env.grader={regex: {}}", "env.grader.regex.pattern=a"])
    assert changed.env.grader == {"regex": {"pattern": "a"}}
    other = load_config(path, ["env={limit: 3}", "env.grader.exact.strip=false"])
    assert other.env.grader == {"exact": {"ignore_case": True, "strip": False}}


def test_a_grader_replaces_the_one_of_the_benchmark() -> None:
    assert load_config({"env": {"tasks": "searchqa"}}).env.grader == {
        "normalized": {"extract": ["tag", "last_line"]}
    }
    config = load_config({"env": {"tasks": "searchqa", "grader": {"f1": {}}}})
    assert config.env.grader == {"f1": {}}
    override = ["env.grader.normalized.extract=[tag]"]
    config = load_config({"env": {"tasks": "searchqa"}}, override)
    assert config.env.grader == {"normalized": {"extract": ["tag"]}}


@pytest.mark.parametrize("key", ["env.grader", "evaluation.ship_grader"])
def test_an_empty_grader_is_refused(key: str) -> None:
    assert f"{key}: an empty mapping names no grader" in refusal({}, f"{key}={{}}")


@pytest.mark.parametrize(
    "text", ["", "1:1", "1:2:3:4", "a:b:c", "0:1:1", "4:4:-2", "1:1:nan", "1:1:inf", "[0,0,0]"]
)
def test_a_bad_split_ratio_is_refused_when_the_config_is_read(text: str) -> None:
    message = refusal({}, f"env.split_ratio={text}")
    assert f"env.split_ratio: {text!r} is not train:selection:test, for example 4:4:2" in message


@pytest.mark.parametrize(
    "key", ["budget.usd", "budget.minutes", "budget.tokens", "budget.calls", "budget.rollouts"]
)
def test_an_infinite_budget_is_refused(key: str) -> None:
    message = refusal({}, f"{key}=.inf")
    assert f"{key} = inf is not valid: it should be a finite number" in message


def _float_keys() -> list[str]:
    return [key.key for key in describe_keys() if "float" in key.type.split(" | ")]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "inf", "nan"])
@pytest.mark.parametrize("key", _float_keys())
def test_no_number_may_be_infinite_or_nan(key: str, value: float | str) -> None:
    with pytest.raises(InputError) as raised:
        load_config({"model": {"agent": {"id": "openai/x"}}}, {key: value})
    assert f"{key} = {value!r} is not valid: it should be a finite number" in str(raised.value)


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("model.agent.options={concurrency: .inf}", "model.agent.options.concurrency"),
        ("model.prices={mine: {input: .inf}}", "model.prices.mine.input"),
        ("env.task_args={timeout: .inf}", "env.task_args.timeout"),
        ("env.grader={all: [{numeric: {rel: .inf}}]}", "env.grader.all.numeric.rel"),
        ("evaluation.ship_grader={code: {timeout: .inf}}", "evaluation.ship_grader.code.timeout"),
    ],
)
def test_no_number_in_nested_settings_may_be_infinite(setting: str, key: str) -> None:
    message = refusal({"model": {"agent": {"id": "openai/x"}}}, setting)
    assert f"{key} = inf is not valid: it should be a finite number" in message


@pytest.mark.parametrize("key", ["train.batch_size", "budget.usd", *_float_keys()])
def test_true_is_not_a_number(key: str) -> None:
    for value in (True, False):
        with pytest.raises(InputError) as raised:
            load_config({"model": {"agent": {"id": "openai/x"}}}, {key: value})
        shown = str(value).lower()
        expected = rf"{re.escape(key)} = {shown} is not valid: it should be a (whole )?number\."
        assert re.search(expected, str(raised.value))
    assert "it should be a whole number" in refusal({}, "train.num_epochs=true")


def test_plain_words_that_older_yaml_reads_as_values_stay_text(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.yaml",
        "env: {split_ratio: 4:4:2, prompt: yes}\nmodel:\n  agent: {id: qwen/x, thinking: off}\n",
    )
    config = load_config(path)
    assert config.env.split_ratio == "4:4:2"
    assert config.env.prompt == "yes"
    assert config.model.agent is not None
    assert config.model.agent.thinking == "off"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "train:\n  batchsize: 7\n",
            "c.yaml:2: unknown key train.batchsize. Did you mean train.batch_size?",
        ),
        (
            "train:\n  learning_rate: 7\n",
            "c.yaml:2: unknown key train.learning_rate. Did you mean optimizer.learning_rate?",
        ),
        ("\n\ntrian: {}\n", "c.yaml:3: unknown key trian. Did you mean train?"),
        (
            "model:\n  agent:\n    id: a/b\n    temprature: 1\n",
            "c.yaml:4: unknown key model.agent.temprature. Did you mean model.agent.temperature?",
        ),
        (
            "budget: {zzz: 1}\n",
            "c.yaml:1: unknown key budget.zzz. Allowed here: rollouts, usd, tokens, calls,",
        ),
        (
            "train:\n  batch_size: many\n",
            "c.yaml:2: train.batch_size = 'many' is not valid: it should be a whole number",
        ),
        (
            "train:\n  batch_size: 0\n",
            "c.yaml:2: train.batch_size = 0 is not valid: it should be greater than or equal to 1",
        ),
        (
            "evaluation:\n  gate_metric: firm\n",
            "c.yaml:2: evaluation.gate_metric = 'firm' is not valid: it should be 'hard',",
        ),
        (
            "recipe: fast\n",
            "c.yaml:1: recipe = 'fast' is not valid: it should be 'default', 'paper' or 'lite'",
        ),
        (
            "env:\n  grader: 3\n",
            "c.yaml:2: env.grader = 3 is not valid: it should be text or a mapping",
        ),
        ("train: 3\n", "c.yaml:1: train = 3 is not valid: it should be a mapping"),
        ("model:\n  agent: {temperature: 1}\n", "c.yaml:2: model.agent.id is missing"),
        ("a: [1\n", "c.yaml:2:1: not valid YAML: "),
        ("a: b: c\n", "c.yaml:1:5: not valid YAML: mapping values are not allowed here"),
        (
            "train: {seed: 1}\ntrain: {seed: 2}\n",
            "c.yaml:2: train is set twice (before on line 1).",
        ),
        ("env: &e {fields: *e}\n", "c.yaml:1:6: not valid YAML: a value contains itself."),
        ("env:\n  grader: &g [*g]\n", "c.yaml:2:11: not valid YAML: a value contains itself."),
        ("3: x\n", "c.yaml:1: unknown key 3."),
        ("env: {name: x, tasks: t.jsonl}\n", "c.yaml:1: unknown key env.name."),
        ("- a\n", "c.yaml: a config is a mapping of sections, not list."),
        ("a: !!python/object:os.system {}\n", "c.yaml:1:4: not valid YAML: "),
    ],
)
def test_a_mistake_is_named_with_file_line_key_and_what_is_allowed(
    tmp_path: Path, text: str, expected: str
) -> None:
    assert refusal(write(tmp_path / "c.yaml", text)).startswith(f"{tmp_path}/{expected}")


def test_all_mistakes_are_reported_at_once_one_per_line(tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "c.yaml", "train: {seed: x}\n"), "budget.usd=-1", "foo=1")
    lines = message.splitlines()
    assert len(lines) == 3
    budget, unknown = "command-line override budget.usd=-1: ", "command-line override foo=1: "
    assert any(line.startswith(f"{budget}budget.usd = -1 is not valid") for line in lines)
    assert any(line.startswith(f"{unknown}unknown key foo.") for line in lines)


@pytest.mark.parametrize("override", ["foo.bar=1", "foo.bar.baz=1", "train.sed=1"])
def test_the_error_for_an_unknown_override_does_not_name_the_file(
    tmp_path: Path, override: str
) -> None:
    path = write(tmp_path / "c.yaml", "# my config\nmodel: {agent: practice/agent}\n")
    assert refusal(path, override).startswith(f"command-line override {override}: unknown key ")


BOMB = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 10))
MERGES = "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"l0: &l0 [x]\n{BOMB}", "with its aliases it has more than 20,000 values"),
        (f"m0: &m0 {{a: 1}}\n{MERGES}", "with its aliases it has more than 20,000 values"),
        (f"a: {'[' * 100}{']' * 100}\n", "it is nested too deeply"),
        (f"a: {'[' * 100_000}\n", "it is nested too deeply"),
        (f"train: {{seed: {'9' * 5000}}}\n", "a number with 5000 characters"),
        (f"train: {{seed: 0x{'f' * 5000}}}\n", "a number with 5002 characters"),
        (f"budget: {{usd: {'9' * 5000}.5}}\n", "a number with 5002 characters"),
        ("train: {seed: !!int many}\n", "'many' is not a number"),
        ("train: {seed: !!int [1]}\n", "'' is not a number"),
        ("optimizer: {use_slow_update: !!bool perhaps}\n", "neither true nor false"),
        ("a: !!timestamp 2001-99-99\n", "could not determine a constructor"),
        ("a: !!binary x\n", "could not determine a constructor"),
        ("a: \0\n", "special characters are not allowed"),
    ],
)
def test_yaml_that_would_hang_or_crash_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    message = refusal(write(tmp_path / "c.yaml", text))
    assert message.startswith(f"{tmp_path}/c.yaml") and expected in message


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 2000, "&a [*a]"])
def test_an_override_that_would_crash_is_refused(value: str) -> None:
    assert refusal({}, f"train.seed={value}").startswith("The override ")


def test_a_pipe_given_as_config_is_refused_instead_of_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "c.yaml")
    assert "c.yaml is not a regular file" in refusal(tmp_path / "c.yaml")


def test_a_huge_config_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "# " + "x" * 1_000_000 + "\n")
    assert "larger than 1,000,000 bytes" in refusal(path)


def test_a_mistake_in_a_base_is_named_with_the_base(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", "\ntrain: {sed: 1}\n")
    assert refusal(write(tmp_path / "c.yaml", "_base_: base.yaml\n")).startswith(
        f"{tmp_path}/base.yaml:2: unknown key train.sed"
    )


@pytest.mark.parametrize(
    "override", ["train.seed", "=3", "train..seed=3", "train.seed=[", "train.seed={a: b: c}"]
)
def test_an_override_without_key_or_value_is_refused(override: str) -> None:
    assert f"The override {override!r}" in refusal({}, override)


def test_a_missing_file_or_one_that_is_not_text_is_refused(tmp_path: Path) -> None:
    assert "Cannot read the config" in refusal(tmp_path / "no.yaml")
    assert "Cannot read the config" in refusal(tmp_path)
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00a")
    assert "not UTF-8" in refusal(tmp_path / "bin.yaml")


def test_paths_are_relative_to_their_file_and_overrides_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "bases" / "base.yaml",
        "env: {skill: ../skill, tasks: tasks.jsonl, grader: {all: [grade.py:score, exact]}}\n",
    )
    path = write(
        tmp_path / "c.yaml", "_base_: bases/base.yaml\nevaluation: {ship_grader: ship.py:score}\n"
    )
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    config = load_config(path)
    assert config.env.skill == str(tmp_path / "skill")
    assert config.env.tasks == str(tmp_path / "bases" / "tasks.jsonl")
    assert config.env.grader == {"all": [f"{tmp_path}/bases/grade.py:score", "exact"]}
    assert config.evaluation.ship_grader == f"{tmp_path}/ship.py:score"
    assert load_config(path, ["env.tasks=mine.jsonl"]).env.tasks == str(here / "mine.jsonl")


def test_a_scripted_model_is_relative_to_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = "{agent: scripted/own.py:agent, judge: {id: scripted/sub/own.py:judge}}"
    path = write(tmp_path / "c.yaml", f"model: {models}\n")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    config = load_config(path, ["model.optimizer=scripted/own.py:optimizer"])
    assert {role: spec.id for role, spec in config.model.by_role().items()} == {
        "agent": f"scripted/{tmp_path}/own.py:agent",
        "optimizer": f"scripted/{here}/own.py:optimizer",
        "judge": f"scripted/{tmp_path}/sub/own.py:judge",
    }


def test_a_model_file_is_looked_for_in_the_current_folder_and_then_beside_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    models = (
        "{agent: local/m.gguf, judge: {id: local/org/repo:m.gguf}, optimizer: {id: local/m.gguf}}"
    )
    path = write(tmp_path / "c.yaml", f"model: {models}\n")
    write(tmp_path / "m.gguf", "")
    found = {role: spec.id for role, spec in load_config(path).model.by_role().items()}
    assert found == {
        "agent": f"local/{tmp_path}/m.gguf",
        "judge": "local/org/repo:m.gguf",
        "optimizer": f"local/{tmp_path}/m.gguf",
    }
    write(here / "m.gguf", "")
    agent = load_config(path).model.agent
    assert agent is not None and agent.id == "local/m.gguf"


def test_a_function_and_a_folder_beside_the_config_are_found(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    assert load_config(write(tmp_path / "c.yaml", "env: {tasks: tasks}\n")).env.tasks == str(
        tmp_path / "tasks"
    )
    assert (
        load_config(write(tmp_path / "c.yaml", "env: {tasks: 'eval.py:run'}\n")).env.tasks
        == f"{tmp_path}/eval.py:run"
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["train", "env", "model", "seed", "agent", "grader", "x"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    )
)
def test_any_config_loads_or_is_refused_with_a_message(data: object) -> None:
    source = data if isinstance(data, dict) else {"env": data}
    try:
        assert isinstance(load_config(source, warn=lambda _: None), Config)
    except InputError as error:
        assert error.message


def test_commands_run_in_the_folder_of_the_config(tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "c.yaml").write_text('env: {tasks: "command: ./grade.sh < items.jsonl"}\n')
    monkeypatch.chdir(tmp_path)
    assert load_config(project / "c.yaml").env.folder == str(project)
    assert load_config(project / "c.yaml", ["env.folder=elsewhere"]).env.folder == str(
        tmp_path / "elsewhere"
    )


@pytest.mark.parametrize(
    "text",
    [
        "command: ./x --flag",
        "command: sh -c 'a: b' < rows.jsonl",
        'command: grep "x: y" {a,b} # c',
        "[odd",
        "command:./x",
    ],
)
def test_an_override_of_a_text_is_text_even_if_yaml_parses_a_mapping(text: str) -> None:
    assert load_config({}, [f"env.prompt={text}"]).env.prompt == text


def test_a_command_can_be_an_override_and_other_overrides_are_yaml() -> None:
    config = load_config(
        {},
        ["env.tasks=command: ./x", "env.skill='a b'", "env.grader=regex: ^a$", "env.prompt=null"],
    )
    assert config.env.tasks == "command: ./x"
    assert config.env.skill.endswith("/a b")
    assert (config.env.grader, config.env.prompt) == ({"regex": "^a$"}, None)


def test_guidance_is_text_or_a_file_beside_the_config(tmp_path: Path) -> None:
    write(tmp_path / "wishes.md", "Keep it short.\n")
    path = write(tmp_path / "c.yaml", "optimizer: {guidance: wishes.md}\n")
    assert load_config(path).optimizer.guidance == "Keep it short."
    assert load_config(path, ["optimizer.guidance=Be kind."]).optimizer.guidance == "Be kind."
    text = "Say the same as README.md"
    assert load_config(path, [f"optimizer.guidance={text}"]).optimizer.guidance == text


def test_a_guidance_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "optimizer:\n  guidance: wishes.md\n")
    assert f"names the file {tmp_path / 'wishes.md'}, which cannot be read" in refusal(path)


def test_feedback_is_read_from_a_file_of_notes_or_given_by_item(tmp_path: Path) -> None:
    notes = [
        {"item": "t1", "verdict": "wrong", "text": "It names the old queue.", "score": 1.0},
        {"item": "t1", "verdict": "right", "text": ""},
    ]
    write(tmp_path / "feedback.json", json.dumps(notes))
    path = write(tmp_path / "c.yaml", "optimizer: {feedback: feedback.json}\n")
    said = {"t1": "wrong: It names the old queue.; right"}
    assert load_config(path).optimizer.feedback == said
    given = write(tmp_path / "d.yaml", "optimizer: {feedback: {t2: wrong}}\n")
    assert load_config(given).optimizer.feedback == {"t2": "wrong"}
    write(tmp_path / "feedback.json", "{}")
    assert "cannot be read as notes of people" in refusal(path)


def test_the_memory_of_a_run_is_a_file_beside_the_config(tmp_path: Path) -> None:
    path = write(tmp_path / "sub" / "c.yaml", "optimizer: {memory: memory.json}\n")
    assert load_config(path).optimizer.memory == str(tmp_path / "sub" / "memory.json")
