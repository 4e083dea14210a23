"""A config of SkillOpt is read as it is: each of its keys has an effect or causes a warning."""

import re
from pathlib import Path
from typing import Any

import pytest

from skillfit.config import Config, load_config
from skillfit.config.reading import ConfigWarning
from skillfit.errors import InputError
from skillfit.extensions import is_source

REWRITE = "rewrite_from_suggestions"

# Every structured key the reference knows (its flatten map).
KEYS = {
    "model": """
        backend optimizer target optimizer_backend target_backend reasoning_effort
        rewrite_reasoning_effort rewrite_max_completion_tokens codex_exec_path
        codex_exec_sandbox codex_exec_profile codex_exec_full_auto codex_exec_reasoning_effort
        codex_exec_use_sdk codex_exec_network_access codex_exec_web_search
        codex_exec_approval_policy claude_code_exec_path claude_code_exec_profile
        claude_code_exec_use_sdk claude_code_exec_effort claude_code_exec_max_thinking_tokens
        cursor_exec_path cursor_exec_sandbox copilot_exec_path copilot_exec_home
        copilot_exec_allow_all_tools copilot_chat_optimizer_model copilot_chat_target_model
        copilot_chat_timeout codex_trace_to_optimizer azure_endpoint azure_api_version
        azure_api_key azure_openai_endpoint azure_openai_api_version azure_openai_api_key
        azure_openai_auth_mode azure_openai_ad_scope azure_openai_managed_identity_client_id
        optimizer_azure_openai_endpoint optimizer_azure_openai_api_version
        optimizer_azure_openai_api_key optimizer_azure_openai_auth_mode
        optimizer_azure_openai_ad_scope optimizer_azure_openai_managed_identity_client_id
        target_azure_openai_endpoint target_azure_openai_api_version target_azure_openai_api_key
        target_azure_openai_auth_mode target_azure_openai_ad_scope
        target_azure_openai_managed_identity_client_id qwen_chat_base_url qwen_chat_api_key
        qwen_chat_temperature qwen_chat_timeout_seconds qwen_chat_max_tokens
        qwen_chat_enable_thinking qwen_chat_thinking_mode optimizer_qwen_chat_base_url
        optimizer_qwen_chat_api_key optimizer_qwen_chat_temperature
        optimizer_qwen_chat_timeout_seconds optimizer_qwen_chat_max_tokens
        optimizer_qwen_chat_enable_thinking optimizer_qwen_chat_thinking_mode
        target_qwen_chat_base_url target_qwen_chat_api_key target_qwen_chat_temperature
        target_qwen_chat_timeout_seconds target_qwen_chat_max_tokens
        target_qwen_chat_enable_thinking target_qwen_chat_thinking_mode minimax_region
        minimax_base_url minimax_api_key minimax_model minimax_temperature minimax_max_tokens
        minimax_enable_thinking
    """,
    "train": """
        num_epochs train_size steps_per_epoch batch_size accumulation seed
    """,
    "gradient": """
        minibatch_size merge_batch_size analyst_workers failure_only
    """,
    "optimizer": """
        learning_rate min_learning_rate lr_scheduler lr_control_mode skill_update_mode
        meta_learning_rate use_slow_update slow_update_samples slow_update_gate_with_selection
        longitudinal_pair_policy use_meta_skill use_skill_aware_reflection
        skill_aware_appendix_source skill_aware_consolidate_threshold
    """,
    "evaluation": """
        use_gate gate_metric gate_mixed_weight use_semantic_density semantic_density_weight
        leading_words sel_env_num test_env_num eval_test
    """,
    "env": """
        name skill_init out_root
    """,
}
ALL = [f"{section}.{name}" for section, names in KEYS.items() for name in names.split()]
# Set to what the reference's own defaults file says; inherited by every config of its users.
DEFAULTS = """
model:
  backend: azure_openai
  optimizer: gpt-5.5
  target: gpt-5.5
  optimizer_backend: openai_chat
  target_backend: openai_chat
  reasoning_effort: medium
  rewrite_reasoning_effort: ""
  rewrite_max_completion_tokens: 64000
  codex_exec_path: ""
  codex_exec_use_sdk: null
  claude_code_exec_path: claude
  claude_code_exec_use_sdk: auto
  claude_code_exec_effort: medium
  claude_code_exec_max_thinking_tokens: 16384
  codex_trace_to_optimizer: true
  azure_openai_endpoint: ""
  azure_openai_api_version: "2024-12-01-preview"
  azure_openai_api_key: ""
  azure_openai_auth_mode: ""
  azure_openai_ad_scope: "https://cognitiveservices.azure.com/.default"
  target_azure_openai_api_version: "2024-12-01-preview"
  minimax_region: ""
  minimax_model: "MiniMax-M3"
  minimax_temperature: "0.7"
  minimax_max_tokens: "8000"
  minimax_enable_thinking: "false"
  optimizer_minimax_base_url: ""
train: {num_epochs: 4, train_size: 0, batch_size: 40, accumulation: 1, seed: 42}
gradient: {minibatch_size: 8, merge_batch_size: 8, analyst_workers: 16, failure_only: false}
optimizer:
  learning_rate: 4
  min_learning_rate: 2
  lr_scheduler: cosine
  lr_control_mode: fixed
  skill_update_mode: patch
  use_slow_update: true
  slow_update_samples: 20
  slow_update_gate_with_selection: false
  longitudinal_pair_policy: mixed
  use_meta_skill: true
  use_skill_aware_reflection: false
  skill_aware_appendix_source: both
  skill_aware_consolidate_threshold: 0
evaluation: {use_gate: true, sel_env_num: 0, test_env_num: 0, eval_test: true}
env:
  {name: "", skill_init: "", split_mode: ratio, split_seed: 42, split_dir: "", data_path: "",
   exec_timeout: 120, out_root: ""}
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(source: Path | dict[str, Any], *overrides: str) -> tuple[Config, list[str]]:
    warnings: list[str] = []
    return load_config(source, overrides, warn=warnings.append), warnings


def agent(config: Config) -> dict[str, Any]:
    assert config.model.agent is not None
    return config.model.agent.model_dump(exclude_defaults=True)


def optimizer(config: Config) -> dict[str, Any]:
    assert config.model.optimizer is not None
    return config.model.optimizer.model_dump(exclude_defaults=True)


def test_a_file_with_skillopts_defaults_is_recipe_paper_without_a_warning(
    tmp_path: Path,
) -> None:
    (tmp_path / "_base_").mkdir()
    (tmp_path / "_base_" / "default.yaml").write_text(DEFAULTS)
    (tmp_path / "mine.yaml").write_text(
        "_base_: _base_/default.yaml\nenv: {skill_init: init.md, data_path: items.jsonl}\n"
    )
    (tmp_path / "init.md").write_text("# Skill\n")
    (tmp_path / "items.jsonl").write_text("")
    config, warnings = read(tmp_path / "mine.yaml")
    assert warnings == []
    paper = load_config({"recipe": "paper"})
    assert config.evaluation == paper.evaluation
    assert config.optimizer == paper.optimizer
    assert config.train == paper.train
    assert (config.env.skill, config.env.tasks, config.env.split_mode) == (
        str(tmp_path / "init.md"),
        str(tmp_path / "items.jsonl"),
        "ratio",
    )
    assert agent(config)["id"] == optimizer(config)["id"] == "azure/gpt-5.5"
    assert agent(config)["reasoning_effort"] == "medium"


def test_the_reference_has_116_keys() -> None:
    assert len(ALL) == 116


@pytest.mark.parametrize("key", ALL)
def test_every_skillopt_key_has_an_effect_or_a_warning(key: str) -> None:
    section, _, name = key.partition(".")
    value = VALUES.get(name, "11")
    base = {
        "model": {"target": "t", "optimizer": "o", **_backends(name)},
        "env": {"skill_init": "/s.md"},
    }
    before, quiet = read(base)
    after, warnings = read({**base, section: {**base.get(section, {}), name: value}})
    warned = [warning for warning in warnings if warning not in quiet]
    assert after != before or warned
    assert all(key in warning for warning in warned)


VALUES: dict[str, Any] = {
    "backend": "qwen_chat",
    "optimizer_backend": "qwen_chat",
    "target_backend": "minimax_chat",
    "lr_scheduler": "linear",
    "lr_control_mode": "auto",
    "skill_update_mode": "rewrite",
    "longitudinal_pair_policy": "delta",
    "skill_aware_appendix_source": "failure_only",
    "gate_metric": "soft",
    "gate_mixed_weight": 0.25,
    "sel_env_num": 3,
    "copilot_chat_timeout": 60,
    **dict.fromkeys(
        (
            "failure_only",
            "use_skill_aware_reflection",
            "slow_update_gate_with_selection",
            "use_semantic_density",
        ),
        True,
    ),
    **dict.fromkeys(
        ("use_slow_update", "use_meta_skill", "use_gate", "eval_test", "codex_trace_to_optimizer"),
        False,
    ),
    **{
        name: "enabled"
        for name in ALL
        for name in [name.partition(".")[2]]
        if "thinking" in name and "tokens" not in name
    },
}


def _backends(name: str) -> dict[str, str]:
    """The role that would listen to the key."""
    family = next(
        (
            family
            for family in ("qwen", "minimax", "codex", "claude_code", "cursor", "copilot")
            if family in name
        ),
        "",
    )
    backend = f"{family}_chat" if family in ("qwen", "minimax") else f"{family}_exec"
    if not family or name == "codex_trace_to_optimizer":
        return {}
    return {"optimizer_backend" if name.startswith("optimizer_") else "target_backend": backend}


@pytest.mark.parametrize(
    ("model", "agent_id", "optimizer_id"),
    [
        ({}, "azure/t", "azure/o"),
        ({"backend": "openai_compatible"}, "openai/t", "openai/o"),
        ({"backend": "openai-compatible"}, "openai/t", "openai/o"),
        ({"backend": "codex"}, "cli/codex/t", "cli/codex/o"),
        ({"backend": "openai"}, "cli/codex/t", "cli/codex/o"),
        ({"backend": "qwen_chat"}, "qwen/t", "azure/o"),
        ({"backend": "claude_code_exec"}, "cli/claude/t", "azure/o"),
        ({"backend": "azure_openai", "target_backend": "cursor"}, "cli/cursor/t", "azure/o"),
        ({"target_backend": "minimax", "optimizer_backend": "qwen"}, "minimax/t", "qwen/o"),
        (
            {"azure_openai_auth_mode": "openai_compatible", "azure_openai_endpoint": "http://h/v1"},
            "azure/t",
            "azure/o",
        ),
    ],
)
def test_backends_become_providers_for_the_roles_they_fill(
    model: dict[str, str], agent_id: str, optimizer_id: str
) -> None:
    config, _ = read({"model": {"target": "t", "optimizer": "o", **model}})
    assert (agent(config)["id"], optimizer(config)["id"]) == (agent_id, optimizer_id)


def test_azure_sign_in_and_addresses_are_set_for_their_role() -> None:
    config, warnings = read(
        {
            "model": {
                "target": "t",
                "optimizer": "o",
                "azure_openai_endpoint": "https://shared",
                "optimizer_azure_openai_endpoint": "https://own",
                "azure_openai_auth_mode": "aad",
                "target_azure_openai_managed_identity_client_id": "id-1",
                "azure_openai_ad_scope": "scope",
            }
        }
    )
    assert warnings == []
    assert agent(config) == {
        "id": "azure/t",
        "base_url": "https://shared",
        "options": {"auth": "managed_identity", "scope": "scope", "client_id": "id-1"},
    }
    assert optimizer(config) == {
        "id": "azure/o",
        "base_url": "https://own",
        "options": {"auth": "managed_identity", "scope": "scope"},
    }


def test_an_override_of_the_model_takes_no_settings_of_another_provider() -> None:
    azure = {"target": "t", "azure_openai_endpoint": "https://shared", "reasoning_effort": "high"}
    for override in ("model.agent=practice/agent", "model.agent.id=practice/agent"):
        config, _ = read({"model": azure}, override)
        assert agent(config) == {"id": "practice/agent"}
    config, _ = read({"model": azure}, "model.agent.id=azure/other")
    assert agent(config) == {
        "id": "azure/other",
        "base_url": "https://shared",
        "reasoning_effort": "high",
        "options": {"auth": "auto"},
    }
    config, _ = read(
        {"model": {**azure, "codex_exec_web_search": True}}, "model.agent.id=cli/codex/gpt-5.5"
    )
    assert agent(config) == {
        "id": "cli/codex/gpt-5.5",
        "reasoning_effort": "high",
        "options": {"web_search": "live"},
    }


@pytest.mark.parametrize("mode", ["openai_compatible", "compat", "openai"])
def test_a_plain_server_in_place_of_azure_keeps_azures_address_and_key(mode: str) -> None:
    config, warnings = read({"model": {"target": "t", "azure_openai_auth_mode": mode}})
    assert (agent(config), warnings) == (
        {"id": "azure/t", "options": {"auth": "openai_compatible"}},
        [],
    )


@pytest.mark.parametrize(
    ("model", "agent_id", "optimizer_id", "warned"),
    [
        ({"backend": "claude"}, "anthropic/claude-sonnet-4-6", "anthropic/claude-sonnet-4-6", 2),
        ({"backend": "qwen"}, "qwen/Qwen/Qwen3.5-4B", "azure/gpt-5.5", 1),
        ({"backend": "minimax_chat"}, "minimax/MiniMax-M3", "azure/gpt-5.5", 1),
        ({"target_backend": "cursor_exec"}, "cli/cursor/composer-2.5", "azure/gpt-5.5", 1),
        ({"backend": "claude_code_exec"}, "cli/claude/claude-sonnet-4-6", "azure/gpt-5.5", 1),
        ({"backend": "codex"}, "cli/codex/gpt-5.5", "cli/codex/gpt-5.5", 0),
        ({"backend": "qwen", "target": "qwen-max"}, "qwen/qwen-max", "azure/gpt-5.5", 0),
    ],
)
def test_a_backend_without_a_model_of_its_own_uses_the_one_that_skillopt_would(
    model: dict[str, str], agent_id: str, optimizer_id: str, warned: int
) -> None:
    config, warnings = read({"model": {"target": "gpt-5.5", "optimizer": "gpt-5.5", **model}})
    assert (agent(config)["id"], optimizer(config)["id"]) == (agent_id, optimizer_id)
    assert sum("names no model of" in warning for warning in warnings) == warned


def test_a_backend_alone_has_its_default_model() -> None:
    config, (warning,) = read({"model": {"target_backend": "qwen_chat"}})
    assert agent(config)["id"] == "qwen/Qwen/Qwen3.5-4B"
    assert "model.target_backend = qwen_chat names no model of qwen" in warning


@pytest.mark.parametrize(
    ("env", "call", "rollout"),
    [
        ({"data_path": "x.jsonl"}, 90, 150),
        ({"data_path": "x.jsonl", "max_turns": 3}, 90, 330),
        ({"name": "searchqa"}, 90, 150),
        ({"name": "alfworld", "max_steps": 50}, 90, 4560),
        ({"name": "alfworld"}, 90, 1200),
        ({"name": "officeqa", "max_tool_turns": 24}, 90, 2220),
        ({"name": "spreadsheetbench", "max_turns": 30}, 300, 90),
    ],
)
def test_the_time_limit_of_a_call_is_not_that_of_a_rollout(
    env: dict[str, Any], call: float, rollout: float
) -> None:
    config, _ = read({"model": {"target": "t"}, "env": {**env, "exec_timeout": 90}})
    assert config.model.agent is not None
    assert (config.model.agent.timeout, config.env.exec_timeout) == (call, rollout)
    config, _ = read({"model": {"target": "t"}, "env": env}, "env.exec_timeout=90")
    assert config.env.exec_timeout == rollout


def test_a_command_line_agent_is_one_call() -> None:
    model = {"target": "t", "target_backend": "codex_exec"}
    config, _ = read({"model": model, "env": {"data_path": "x.jsonl", "exec_timeout": 90}})
    assert config.env.exec_timeout == 150
    assert agent(config) == {"id": "cli/codex/t"}


def test_an_exec_timeout_of_0_sets_no_limit_of_its_own() -> None:
    config, _ = read({"model": {"target": "t"}, "env": {"name": "searchqa", "exec_timeout": 0}})
    assert config.model.agent is not None
    assert (config.model.agent.timeout, config.rollout_seconds) == (300, 120)


def test_settings_that_codex_and_claude_still_have_become_options() -> None:
    codex = {
        "target_backend": "codex_exec",
        "codex_exec_network_access": True,
        "codex_exec_web_search": False,
    }
    config, warnings = read({"model": {"target": "t", **codex}})
    assert agent(config)["options"] == {
        "network_access": "true",
        "web_search": "disabled",
    }
    claude = {"target_backend": "claude_code_exec", "claude_code_exec_max_thinking_tokens": 2048}
    config, more = read({"model": {"target": "t", **claude}})
    assert agent(config)["options"] == {"max_thinking_tokens": 2048}
    assert warnings + more == []
    (warning,) = read({"model": {"target": "t", **codex, "codex_exec_profile": "fast"}})[1]
    assert "model.codex_exec_profile = 'fast' has no meaning here and is ignored" in warning


def test_skillopts_default_token_ceiling_does_not_cut_the_optimizers_replies() -> None:
    minimax = {
        "target_backend": "minimax_chat",
        "optimizer_backend": "minimax_chat",
        "target": "t",
        "optimizer": "o",
    }
    config, _ = read({"model": {**minimax, "minimax_max_tokens": "8000"}})
    assert agent(config)["max_tokens"] == 8000 and "max_tokens" not in optimizer(config)
    config, _ = read({"model": {**minimax, "minimax_max_tokens": "32000"}})
    assert optimizer(config)["max_tokens"] == 32000


def test_an_api_key_in_the_file_is_dropped_and_the_variable_to_use_is_named() -> None:
    config, warnings = read(
        {
            "model": {
                "target": "t",
                "optimizer": "o",
                "azure_openai_api_key": "hunter2hunter2",
                "optimizer_azure_openai_api_key": "hunter2hunter2",
                "minimax_api_key": "hunter2hunter2",
            },
            "env": {"search_auth": "sk-hunter2hunter2hunter2"},
        }
    )
    warned = "\n".join(warnings)
    assert "hunter2" not in warned + config.model_dump_json()
    for variable in (
        "variable AZURE_OPENAI_API_KEY.",
        "variable OPTIMIZER_AZURE_OPENAI_API_KEY.",
        "variable MINIMAX_API_KEY.",
    ):
        assert variable in warned
    assert optimizer(config)["key_env"] == "OPTIMIZER_AZURE_OPENAI_API_KEY"
    assert "key_env" not in agent(config)


def test_a_flat_file_is_read() -> None:
    config, warnings = read(
        {
            "env": "searchqa",
            "target_model": "t",
            "optimizer_model": "o",
            "target_backend": "qwen_chat",
            "edit_budget": 6,
            "min_edit_budget": 1,
            "batch_size": 12,
            "num_epochs": 2,
            "workers": 24,
            "max_completion_tokens": 900,
            "gate_metric": "soft",
            "out_root": "outputs/x",
        }
    )
    assert (config.optimizer.learning_rate, config.optimizer.min_learning_rate) == (6, 1)
    assert (config.train.batch_size, config.train.num_epochs, config.evaluation.gate_metric) == (
        12,
        2,
        "soft",
    )
    assert (config.model.concurrency, config.env.tasks) == (24, "searchqa")
    assert agent(config) == {"id": "qwen/t", "max_tokens": 900}
    assert config.run == str(Path.cwd() / "outputs" / "x")
    assert warnings == []


def test_skillopts_names_for_a_mode_are_accepted() -> None:
    def modes(**optimizer: str) -> tuple[str, str, str]:
        config, _ = read({"model": {"target": "t"}, "optimizer": optimizer})
        return (
            config.optimizer.lr_control_mode,
            config.optimizer.skill_update_mode,
            config.optimizer.longitudinal_pair_policy,
        )

    assert modes(
        lr_control_mode="manual", skill_update_mode="edits", longitudinal_pair_policy="all"
    ) == ("fixed", "patch", "mixed")
    assert modes(
        lr_control_mode="no_lr", skill_update_mode="full_rewrite", longitudinal_pair_policy="00_11"
    ) == (
        "none",
        "full_rewrite_minibatch",
        "unchanged",
    )


def test_an_unknown_update_mode_is_an_error() -> None:
    with pytest.raises(InputError, match=r"optimizer.skill_update_mode = 'pach' is not valid"):
        read({"model": {"target": "t"}, "optimizer": {"skill_update_mode": "pach"}})


def test_an_unknown_key_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: {target: t}\ntrain:\n  batchsize: 7\n")
    with pytest.raises(
        InputError, match=r"c.yaml:3: unknown key train.batchsize. Did you mean train.batch_size\?"
    ):
        read(path)


def test_skillfit_keys_are_accepted_in_a_skillopt_file_and_overrides_may_use_both() -> None:
    config, _ = read(
        {
            "model": {"target": "t", "optimizer": "o"},
            "budget": {"usd": 3},
            "recipe": "lite",
            "evaluation": {"coverage_floor": 0.9},
        },
        "model.target=t2",
        "model.optimizer=anthropic/claude",
        "env.grader=f1",
        "optimizer.lr_control_mode=none",
        "model.agent.temperature=0.5",
    )
    assert (
        config.budget.usd,
        config.recipe,
        config.evaluation.coverage_floor,
        config.env.grader,
    ) == (
        3,
        "lite",
        0.9,
        "f1",
    )
    assert agent(config) == {
        "id": "azure/t2",
        "temperature": 0.5,
        "options": {"auth": "auto"},
    }
    assert optimizer(config)["id"] == "anthropic/claude"
    assert config.optimizer.lr_control_mode == "none"


def test_paths_are_found_from_the_repository_above_the_config(tmp_path: Path) -> None:
    (tmp_path / "data" / "split").mkdir(parents=True)
    path = write(
        tmp_path / "configs" / "tickets" / "default.yaml",
        "env: {name: tickets, split_mode: split_dir, split_dir: data/split}\n",
    )
    config, (warning,) = read(path)
    assert (config.env.tasks, config.env.split_mode) == (
        str(tmp_path / "data" / "split"),
        "split_dir",
    )
    assert "env.name = tickets is not a benchmark of skillfit and chooses no grader" in warning
    assert read(path, "env.grader=exact")[1] == []


def test_the_name_of_a_benchmark_chooses_its_tasks_skill_and_grader(tmp_path: Path) -> None:
    (tmp_path / "data" / "split" / "train").mkdir(parents=True)
    (tmp_path / "start.md").write_text("# Start\n")
    text = "env: {name: searchqa, split_mode: split_dir, split_dir: data/split, skill_init: %s}\n"
    config, warnings = read(write(tmp_path / "a.yaml", text % "start.md"))
    assert warnings == []
    assert config.env.tasks == f"searchqa:{tmp_path / 'data' / 'split'}"
    assert (config.env.skill, config.env.split_mode) == (str(tmp_path / "start.md"), "split_dir")
    native = load_config({"recipe": "paper", "env": {"tasks": "searchqa"}})
    assert config.env.grader == native.env.grader
    config, warnings = read(
        {"env": {"name": "searchqa", "split_mode": "split_dir", "split_dir": "none/here"}}
    )
    assert (config.env.tasks, config.env.skill) == ("searchqa", native.env.skill)
    assert config.env.split_mode == "auto"
    assert "the data of `skillfit data get searchqa` is used" in warnings[0]


def test_a_missing_initial_skill_is_replaced_by_that_of_the_benchmark() -> None:
    native = load_config({"env": {"tasks": "searchqa"}})
    config, (warning,) = read({"env": {"name": "searchqa", "skill_init": "no/initial.md"}})
    assert config.env.skill == native.env.skill
    assert "env.skill_init = no/initial.md does not exist" in warning


@pytest.fixture
def installed_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A benchmark from another package, with options."""
    site = tmp_path / "site"
    write(
        site / "maze_benchmark.py",
        "from skillfit.tasks.task import SourceItems, TaskSource\n"
        "def maze(reference, *, max_steps=10, data_root='', data_dirs=(), mode='easy'):\n"
        "    return TaskSource(lambda context: SourceItems([]), {'env': {'agent': 'tools'}})\n",
    )
    write(
        site / "maze-1.0.dist-info" / "entry_points.txt",
        "[skillfit.tasks]\nmaze = maze_benchmark:maze\n",
    )
    write(site / "maze-1.0.dist-info" / "METADATA", "Name: maze\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(site))
    return "maze"


def test_settings_shared_with_a_benchmark_become_its_options(
    tmp_path: Path, installed_benchmark: str
) -> None:
    (tmp_path / "mazes").mkdir()
    path = write(
        tmp_path / "c.yaml",
        f"env: {{name: {installed_benchmark}, max_steps: 50, mode: hard, data_root: mazes,\n"
        "  data_dirs: [nowhere], max_tool_turns: 24, max_turns: 1, cost_limit: 3.0}\n",
    )
    config, warnings = read(path)
    assert config.env.task_args == {
        "max_steps": 50,
        "mode": "hard",
        "data_root": str(tmp_path / "mazes"),
    }
    assert (config.env.agent, config.env.max_turns) == ("tools", 24)
    warned = "\n".join(warnings)
    assert len(warnings) == 2
    assert "env.data_dirs = ['nowhere'] does not exist" in warned and "env.cost_limit" in warned


def test_the_training_seed_is_not_an_option_of_the_benchmark() -> None:
    config, _ = read({"env": {"name": "textworld", "max_steps": 9}, "train": {"seed": 7}})
    assert (config.train.seed, config.env.task_args) == (7, {"max_steps": 9})


def test_max_tool_turns_limits_the_tools_agent_and_max_steps_is_ignored() -> None:
    env = {"name": "mydocs", "data_path": "x.jsonl", "grader": "exact"}
    config, warnings = read({"env": {**env, "max_tool_turns": 24}})
    assert (config.env.agent, config.env.max_turns, warnings) == ("tools", 24, [])
    config, warnings = read({"env": {**env, "max_steps": 50}})
    assert (config.env.agent, config.env.max_turns) == ("chat", None)
    assert warnings == ["the settings: env.max_steps = 50 has no meaning here and is ignored."]
    config, warnings = read({"env": {**env, "max_turns": 3}})
    assert (config.env.agent, config.env.max_turns, warnings) == ("chat", 3, [])
    codex = {"model": {"target": "t", "target_backend": "codex_exec"}}
    config, warnings = read({**codex, "env": {**env, "max_tool_turns": 24, "max_turns": 1}})
    assert config.env.max_turns is None
    assert "env.max_tool_turns has no meaning for a command-line agent" in warnings[0]


@pytest.mark.parametrize(
    ("model", "agent_id"),
    [
        ({"target": "gpt-5.5", "minimax_model": "MiniMax-M3"}, "minimax/MiniMax-M3"),
        ({"target": "gpt-5.5", "minimax_model": "MiniMax-M2.5"}, "minimax/MiniMax-M2.5"),
        ({"target": "MiniMax-M2.5", "minimax_model": "MiniMax-M3"}, "minimax/MiniMax-M2.5"),
        ({"target": "MiniMax-M2.5"}, "minimax/MiniMax-M2.5"),
        ({"target": "my-deployment"}, "minimax/my-deployment"),
    ],
)
def test_the_minimax_model_is_chosen_from_both_keys(model: dict[str, str], agent_id: str) -> None:
    config, _ = read({"model": {**model, "target_backend": "minimax_chat"}})
    assert agent(config)["id"] == agent_id


@pytest.mark.parametrize("backend", ["qwen_chat", "minimax_chat", "cursor_exec", "copilot_exec"])
def test_reasoning_effort_is_not_sent_to_providers_that_lack_it(backend: str) -> None:
    model = {"target": "t", "target_backend": backend, "reasoning_effort": "high"}
    config, _ = read({"model": {**model, "optimizer": "o"}})
    assert "reasoning_effort" not in agent(config)
    assert optimizer(config)["reasoning_effort"] == "high"


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("edit_budget=6", "optimizer.learning_rate", 6),
        ("optimizer.edit_budget=6", "optimizer.learning_rate", 6),
        ("optimizer.lr_control_mode=manual", "optimizer.lr_control_mode", "fixed"),
        ("optimizer.skill_update_mode=rewrite", "optimizer.skill_update_mode", REWRITE),
        ("skill_update_mode=rewrite", "optimizer.skill_update_mode", REWRITE),
        (
            "optimizer.longitudinal_pair_policy=delta",
            "optimizer.longitudinal_pair_policy",
            "changed",
        ),
        ("env.workers=7", "model.concurrency", 7),
        ("model.student=t9", "model.agent.id", "azure/t9"),
        ("student_model=t9", "model.agent.id", "azure/t9"),
        ("model.target_backend=qwen", "model.agent.id", "qwen/t"),
        ("gradient.use_deep_reflect=true", "gradient.deep_reflection", True),
        ("env.out_root=/elsewhere", "run", "/elsewhere"),
        ("model.agent=practice/agent", "model.agent.id", "practice/agent"),
        ("train.batch_size=3", "train.batch_size", 3),
    ],
)
def test_overrides_may_use_skillopt_or_skillfit_keys(
    override: str, key: str, value: object
) -> None:
    config, _ = read({"model": {"target": "t", "optimizer": "o"}}, override)
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


# The first release called the two models teacher and student.
FIRST_RELEASE = """
model:
  backend: azure_openai
  teacher: gpt-big
  student: gpt-small
  teacher_backend: openai_chat
  student_backend: openai_chat
  reasoning_effort: low
  rewrite_reasoning_effort: ""
  rewrite_max_completion_tokens: 50000
  codex_exec_path: codex
  codex_exec_sandbox: workspace-write
  codex_exec_profile: ""
  codex_exec_full_auto: false
  codex_exec_reasoning_effort: none
  claude_code_exec_path: claude
  claude_code_exec_profile: ""
  codex_trace_to_teacher: false
  teacher_azure_openai_endpoint: https://teacher.example
  teacher_azure_openai_auth_mode: azure_cli
  student_azure_openai_endpoint: https://student.example
  student_azure_openai_auth_mode: azure_cli
train: {num_epochs: 3, train_size: 0, batch_size: 24, accumulation: 1, seed: 7}
gradient:
  minibatch_size: 6
  merge_batch_size: 5
  analyst_workers: 9
  max_analyst_rounds: 3
  failure_only: false
  use_deep_reflect: true
  deep_reflect_failures: 5
  deep_reflect_successes: 2
optimizer:
  learning_rate: 8
  min_learning_rate: 2
  lr_scheduler: linear
  skill_update_mode: patch
  use_meta_reflect: false
  meta_learning_rate: 8
  use_slow_update: true
  slow_update_samples: 10
  use_meta_skill: true
evaluation: {use_gate: true, sel_env_num: 0, test_env_num: 0, eval_test: true}
env: {split_mode: ratio, split_ratio: "3:2:5", split_seed: 42}
"""
# What the two generations set per benchmark, beside skill_init and split_dir.
SETTINGS_OF_BENCHMARKS = {
    "alfworld": "max_steps: 40, workers: 4, max_api_workers: 4, limit: 0",
    "babyvision": "max_turns: 1, image_detail: auto, judge_model: gpt-judge, judge_retries: 3",
    "docvqa": "max_turns: 1, workers: 5, image_detail: auto, max_completion_tokens: 9000",
    "livemathematicianbench": "shuffle_choices: true, use_theorem: false, exec_timeout: 200",
    "mathverse": "data_root: data/none, problem_version: Text Lite, judge_model: gpt-judge",
    "mmrb": "max_turns: 1, workers: 6, image_detail: auto",
    "officeqa": "max_tool_turns: 20, data_dirs: [data/none], search_mode: offline",
    "sealqa": "max_tool_turns: 10, workers: 2",
    "searchqa": "max_turns: 1, workers: 9, limit: 0",
    "spreadsheetbench": "mode: multi, max_turns: 20, data_root: data/none, exec_timeout: 500",
    "swebench": "dataset_name: lite, hf_split: test, step_limit: 40, cost_limit: 2.0",
}


@pytest.mark.parametrize("benchmark", SETTINGS_OF_BENCHMARKS)
@pytest.mark.parametrize("base", [FIRST_RELEASE, DEFAULTS], ids=["first release", "head"])
def test_the_configs_of_every_benchmark_load(tmp_path: Path, benchmark: str, base: str) -> None:
    write(tmp_path / "configs" / "_base_" / "default.yaml", base)
    path = write(
        tmp_path / "configs" / benchmark / "default.yaml",
        "_base_: ../_base_/default.yaml\n"
        f"env: {{name: {benchmark}, skill_init: skills/none.md, split_mode: split_dir,\n"
        f"  split_dir: data/split, out_root: {tmp_path}/out,\n"
        f"  {SETTINGS_OF_BENCHMARKS[benchmark]}}}\n",
    )
    (tmp_path / "data" / "split" / "train").mkdir(parents=True)
    config, _ = read(path)
    data = str(tmp_path / "data" / "split")
    assert config.env.tasks == (f"{benchmark}:{data}" if is_source(benchmark) else data)
    assert (config.recipe, config.run) == ("paper", f"{tmp_path}/out")
    if "judge_model" in SETTINGS_OF_BENCHMARKS[benchmark]:
        assert config.model.judge is not None and config.model.judge.id == "azure/gpt-judge"


def test_keys_of_the_first_release_are_accepted(tmp_path: Path) -> None:
    config, warnings = read(write(tmp_path / "default.yaml", FIRST_RELEASE))
    assert warnings == []
    assert agent(config) == {
        "id": "azure/gpt-small",
        "base_url": "https://student.example",
        "reasoning_effort": "low",
        "options": {"auth": "azure_cli"},
    }
    assert optimizer(config)["base_url"] == "https://teacher.example"
    gradient = config.gradient
    assert (gradient.deep_reflection, gradient.deep_reflection_items) == (True, 5)
    assert gradient.trace_to_optimizer is False
    assert (config.train.seed, config.optimizer.learning_rate) == (7, 8)
    assert (config.env.split_mode, config.env.split_ratio) == ("ratio", "3:2:5")


def test_a_flat_file_of_the_first_release_is_read(tmp_path: Path) -> None:
    config, warnings = read({"teacher_model": "o", "student_model": "t", "edit_budget": 6})
    assert (agent(config)["id"], optimizer(config)["id"]) == ("azure/t", "azure/o")
    assert (config.optimizer.learning_rate, warnings) == (6, [])


def test_unsupported_features_cause_a_warning_only_when_enabled() -> None:
    model = {"target": "t"}
    assert (
        read({"model": model, "human_feedback": {"enabled": False, "timeout_seconds": 9}})[1] == []
    )
    (warning,) = read({"model": model, "human_feedback": {"enabled": True}})[1]
    assert "human_feedback" in warning
    (warning,) = read({"model": model, "optimizer": {"use_meta_reflect": True}})[1]
    assert "optimizer.use_meta_reflect = True has no meaning here" in warning


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("model.target", "SkillOpt's model.target is model.agent here."),
        ("model.student", "SkillOpt's model.student is model.agent here."),
        ("env.workers", "SkillOpt's env.workers is model.concurrency here."),
        (
            "optimizer.edit_budget",
            "SkillOpt's optimizer.edit_budget is optimizer.learning_rate here.",
        ),
        ("env.out_root", "SkillOpt's env.out_root is run here."),
    ],
)
def test_a_key_of_skillopt_in_another_config_is_refused_with_the_key_to_use(
    key: str, hint: str
) -> None:
    section, _, name = key.partition(".")
    data: dict[str, Any] = {"env": {"tasks": "t.jsonl"}, "model": {"agent": "practice/agent"}}
    data.setdefault(section, {})[name] = "x"
    with pytest.raises(InputError, match=re.escape(hint)):
        load_config(data)


def test_warnings_go_to_python_by_default() -> None:
    with pytest.warns(
        ConfigWarning, match="evaluation.use_semantic_density = True has no meaning here"
    ):
        load_config({"model": {"target": "t"}, "evaluation": {"use_semantic_density": True}})
