"""A config of the reference system is read as it is: every key of its own acts here, or is warned
about.
"""

from pathlib import Path
from typing import Any

import pytest

from skillfit.config import Config, ConfigWarning, load_config
from skillfit.errors import InputError

# Every structured key the reference knows (its flatten map).
KEYS = {
    "model": """
        backend optimizer target optimizer_backend target_backend reasoning_effort rewrite_reasoning_effort
        rewrite_max_completion_tokens codex_exec_path codex_exec_sandbox codex_exec_profile codex_exec_full_auto
        codex_exec_reasoning_effort codex_exec_use_sdk codex_exec_network_access codex_exec_web_search
        codex_exec_approval_policy claude_code_exec_path claude_code_exec_profile claude_code_exec_use_sdk
        claude_code_exec_effort claude_code_exec_max_thinking_tokens cursor_exec_path cursor_exec_sandbox copilot_exec_path
        copilot_exec_home copilot_exec_allow_all_tools copilot_chat_optimizer_model copilot_chat_target_model
        copilot_chat_timeout codex_trace_to_optimizer azure_endpoint azure_api_version azure_api_key azure_openai_endpoint
        azure_openai_api_version azure_openai_api_key azure_openai_auth_mode azure_openai_ad_scope
        azure_openai_managed_identity_client_id optimizer_azure_openai_endpoint optimizer_azure_openai_api_version
        optimizer_azure_openai_api_key optimizer_azure_openai_auth_mode optimizer_azure_openai_ad_scope
        optimizer_azure_openai_managed_identity_client_id target_azure_openai_endpoint target_azure_openai_api_version
        target_azure_openai_api_key target_azure_openai_auth_mode target_azure_openai_ad_scope
        target_azure_openai_managed_identity_client_id qwen_chat_base_url qwen_chat_api_key qwen_chat_temperature
        qwen_chat_timeout_seconds qwen_chat_max_tokens qwen_chat_enable_thinking qwen_chat_thinking_mode
        optimizer_qwen_chat_base_url optimizer_qwen_chat_api_key optimizer_qwen_chat_temperature
        optimizer_qwen_chat_timeout_seconds optimizer_qwen_chat_max_tokens optimizer_qwen_chat_enable_thinking
        optimizer_qwen_chat_thinking_mode target_qwen_chat_base_url target_qwen_chat_api_key target_qwen_chat_temperature
        target_qwen_chat_timeout_seconds target_qwen_chat_max_tokens target_qwen_chat_enable_thinking
        target_qwen_chat_thinking_mode minimax_region minimax_base_url minimax_api_key minimax_model minimax_temperature
        minimax_max_tokens minimax_enable_thinking
    """,
    "train": """
        num_epochs train_size steps_per_epoch batch_size accumulation seed
    """,
    "gradient": """
        minibatch_size merge_batch_size analyst_workers failure_only
    """,
    "optimizer": """
        learning_rate min_learning_rate lr_scheduler lr_control_mode skill_update_mode meta_learning_rate use_slow_update
        slow_update_samples slow_update_gate_with_selection longitudinal_pair_policy use_meta_skill use_skill_aware_reflection
        skill_aware_appendix_source skill_aware_consolidate_threshold
    """,
    "evaluation": """
        use_gate gate_metric gate_mixed_weight use_semantic_density semantic_density_weight leading_words sel_env_num
        test_env_num eval_test
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
env: {name: "", skill_init: "", split_mode: ratio, split_seed: 42, split_dir: "", data_path: "", exec_timeout: 120, out_root: ""}
"""


def read(source: Path | dict[str, Any], *overrides: str) -> tuple[Config, list[str]]:
    warnings: list[str] = []
    return load_config(source, overrides, warn=warnings.append), warnings


def agent(config: Config) -> dict[str, Any]:
    assert config.model.agent is not None
    return config.model.agent.model_dump(exclude_defaults=True)


def optimizer(config: Config) -> dict[str, Any]:
    assert config.model.optimizer is not None
    return config.model.optimizer.model_dump(exclude_defaults=True)


def test_a_file_that_inherits_the_references_defaults_is_recipe_paper_without_a_warning(
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


def test_there_are_116_keys() -> None:
    assert len(ALL) == 116


@pytest.mark.parametrize("key", ALL)
def test_every_key_of_the_reference_acts_or_is_warned_about(key: str) -> None:
    section, _, name = key.partition(".")
    value = VALUES.get(name, "11")
    base = {
        "model": {"target": "t", "optimizer": "o", **_backends(name)},
        "env": {"skill_init": "/s.md"},
    }
    before, quiet = read(base)
    after, warnings = read({**base, section: {**base.get(section, {}), name: value}})
    said = [warning for warning in warnings if warning not in quiet]
    assert after != before or said
    assert all(key in warning for warning in said)


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
            "openai/t",
            "openai/o",
        ),
    ],
)
def test_backends_become_providers_for_the_roles_they_fill(
    model: dict[str, str], agent_id: str, optimizer_id: str
) -> None:
    config, _ = read({"model": {"target": "t", "optimizer": "o", **model}})
    assert (agent(config)["id"], optimizer(config)["id"]) == (agent_id, optimizer_id)


def test_azure_sign_in_and_addresses_go_to_the_role_they_are_for() -> None:
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


def test_a_ceiling_the_reference_sets_by_itself_does_not_cut_the_optimizers_replies() -> None:
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


def test_a_key_in_the_file_is_dropped_with_the_variable_to_use_and_never_repeated() -> None:
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
    said = "\n".join(warnings)
    assert "hunter2" not in said + config.model_dump_json()
    for variable in (
        "variable AZURE_OPENAI_API_KEY.",
        "variable OPTIMIZER_AZURE_OPENAI_API_KEY.",
        "variable MINIMAX_API_KEY.",
    ):
        assert variable in said
    assert optimizer(config)["key_env"] == "OPTIMIZER_AZURE_OPENAI_API_KEY"
    assert "key_env" not in agent(config)


def test_a_flat_file_of_old_is_read_too() -> None:
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
    assert warnings == ["the settings: out_root = 'outputs/x' has no meaning here and is ignored."]


def test_the_references_words_for_a_mode_are_understood() -> None:
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


def test_a_word_it_would_have_taken_for_patch_in_silence_is_an_error() -> None:
    with pytest.raises(InputError, match=r"optimizer.skill_update_mode = 'pach' is not valid"):
        read({"model": {"target": "t"}, "optimizer": {"skill_update_mode": "pach"}})


def test_a_key_it_would_have_dropped_in_silence_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: {target: t}\ntrain:\n  batchsize: 7\n")
    with pytest.raises(
        InputError, match=r"c.yaml:3: unknown key train.batchsize. Did you mean train.batch_size\?"
    ):
        read(path)


def test_skillfits_own_keys_may_stand_in_the_file_and_overrides_may_use_either_vocabulary() -> None:
    config, _ = read(
        {
            "model": {"target": "t", "optimizer": "o"},
            "budget": {"usd": 3},
            "recipe": "lite",
            "evaluation": {"prune": False},
        },
        "model.target=t2",
        "model.optimizer=anthropic/claude",
        "env.grader=f1",
        "optimizer.lr_control_mode=none",
        "model.agent.temperature=0.5",
    )
    assert (config.budget.usd, config.recipe, config.evaluation.prune, config.env.grader) == (
        3,
        "lite",
        False,
        "f1",
    )
    assert agent(config) == {"id": "azure/t2", "temperature": 0.5}
    assert optimizer(config)["id"] == "anthropic/claude"
    assert config.optimizer.lr_control_mode == "none"


def test_paths_are_found_from_the_repository_above_the_config(tmp_path: Path) -> None:
    (tmp_path / "data" / "split").mkdir(parents=True)
    (tmp_path / "configs" / "searchqa").mkdir(parents=True)
    path = tmp_path / "configs" / "searchqa" / "default.yaml"
    path.write_text("env: {name: searchqa, split_mode: split_dir, split_dir: data/split}\n")
    config, warnings = read(path)
    assert config.env.tasks == str(tmp_path / "data" / "split")
    assert len(warnings) == 1
    assert "env.grader" in warnings[0]


def test_warnings_go_to_python_when_nobody_else_listens() -> None:
    with pytest.warns(
        ConfigWarning, match="evaluation.use_semantic_density = True has no meaning here"
    ):
        load_config({"model": {"target": "t"}, "evaluation": {"use_semantic_density": True}})
