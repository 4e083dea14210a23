"""Each row of the tables refuses its settings where they would have no effect, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from skillfit.config import load_config
from skillfit.config.requires import ROLLOUTS, TRAINING, RunFacts, refuse_idle
from skillfit.config.schema import describe_keys
from skillfit.errors import InputError

KEYS = {key.key for key in describe_keys()}


# (settings, what the parts say, how the message begins)
def ignoring(setting: str) -> dict[str, Any]:
    return {"ignored": frozenset({setting})}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("env.prompt='{skill}'", {"runs_items": "task"}, "env.prompt: this task or agent"),
    ("env.max_turns=3", {"runs_items": "python"}, "env.max_turns: this task or agent"),
    ("env.agent=tools", {"runs_items": "python"}, "env.agent: this task or agent"),
    ("model.agent=openai/x", {"runs_items": "task"}, "model.agent: this task or agent"),
    ("env.sandbox=off", {}, "env.sandbox: not supported by the chat agent"),
    ("env.network=on", {}, "env.network: not supported by the chat agent"),
    ("env.corpus=docs", {}, "env.corpus: not supported by the chat agent"),
    ("env.prompt='{skill}' env.agent=cli", {}, "env.prompt: not supported by command-line agents"),
    ("env.max_turns=2 env.agent=cli", {}, "env.max_turns: not supported by command-line"),
    ("env.network=off env.agent=cli", {}, "env.network: command-line agents call their model"),
    ("env.skill_as=file", {}, "env.skill_as: is for Inspect tasks"),
    ("env.task_args={a:1}", {"tasks": "tasks.jsonl"}, "env.task_args: these tasks take no"),
    ("evaluation.ship_grader=exact", {"own_scores": True}, "evaluation.ship_grader: this task"),
    (
        "evaluation.ship_grader=exact evaluation.ship_test=false",
        {},
        "evaluation.ship_grader: needs evaluation.ship_test: true",
    ),
    (
        "optimizer.proposer=corpus optimizer.skill_update_mode=full_rewrite_minibatch",
        {"needs_patch_mode": True},
        "optimizer.skill_update_mode: full_rewrite_minibatch applies no edits, and "
        "optimizer.proposer: corpus proposes nothing else",
    ),
    (
        "optimizer.proposer=agent model.optimizer=handoff",
        {},
        "optimizer.proposer: agent needs an optimizer that can use tools, and handoff cannot",
    ),
    (
        "optimizer.agent_minutes=5 optimizer.proposer=reflect",
        {},
        "optimizer.agent_minutes: needs optimizer.proposer: agent, and it is reflect",
    ),
    (
        "optimizer.use_skill_aware_reflection=true optimizer.proposer=examples",
        {"writes_notes": False},
        "optimizer.use_skill_aware_reflection: optimizer.proposer: examples writes no notes",
    ),
    (
        "evaluation.use_gate=false",
        ignoring("evaluation.use_gate"),
        "evaluation.use_gate: this gate decides about each edit",
    ),
    (
        "evaluation.must_pass=[a] evaluation.use_gate=false",
        {},
        "evaluation.must_pass: needs evaluation.use_gate: true",
    ),
    (
        "evaluation.must_pass=[a]",
        ignoring("evaluation.must_pass"),
        "evaluation.must_pass: this gate",
    ),
    (
        "optimizer.prune_initial=true",
        ignoring("optimizer.prune_initial"),
        "optimizer.prune_initial: needs a",
    ),
    (
        "model.agents=[openai/a,openai/b]",
        {"runs_items": "task"},
        "model.agents: this task or agent",
    ),
    (
        "evaluation.must_pass=[a] model.agents=[openai/a,openai/b]",
        {},
        "evaluation.must_pass: not with model.agents",
    ),
    (
        "model.agents=[openai/a,cli/claude]",
        {},
        "model.agents: programs and models cannot be mixed",
    ),
    ("optimizer.parts=[references]", {}, "optimizer.parts: the chat agent is given the body"),
    (
        "optimizer.parts=[description] env.agent=tools",
        {},
        "optimizer.parts: the tools agent is given the body",
    ),
    (
        "optimizer.parts=[references] env.agent=tools optimizer.proposer=both",
        {},
        "optimizer.parts: optimizer.proposer: both writes edits of the body alone",
    ),
    (
        "optimizer.parts=[references] env.agent=tools optimizer.proposer=corpus "
        "optimizer.skill_update_mode=full_rewrite_minibatch",
        {},
        "optimizer.parts: full_rewrite_minibatch writes the document alone",
    ),
    (
        "optimizer.parts=[references] env.agent=tools optimizer.proposer=corpus "
        "env.skill=SKILL.md#description",
        {},
        "optimizer.parts: env.skill names the description alone",
    ),
    (
        "optimizer.script_check=check",
        {},
        "optimizer.script_check: needs scripts in optimizer.parts",
    ),
    (
        "evaluation.objective=cheaper",
        ignoring("evaluation.objective"),
        "evaluation.objective: needs evaluation.ship_test: true and a gate",
    ),
    (
        "optimizer.skill_aware_consolidate_threshold=5",
        ignoring("optimizer.skill_aware_consolidate_threshold"),
        "optimizer.skill_aware_consolidate_threshold: needs a gate without a pool",
    ),
]


@pytest.mark.parametrize(("overrides", "facts", "message"), REFUSED)
def test_a_setting_that_would_not_act_is_refused_with_the_reason(
    overrides: str, facts: dict[str, Any], message: str
) -> None:
    config = load_config({}, overrides.split())
    with pytest.raises(InputError) as refused:
        refuse_idle(RunFacts(config, **facts), [*ROLLOUTS, *TRAINING])
    assert str(refused.value).startswith(message) and refused.value.hint


def test_every_row_is_refused_in_a_test() -> None:
    rows = {id(row): row for row in (*ROLLOUTS, *TRAINING)}
    for overrides, facts, _ in REFUSED:
        config = load_config({}, overrides.split())
        for row in list(rows.values()):
            if row.refused(RunFacts(config, **facts)):
                rows.pop(id(row))
    assert not rows


def test_the_tables_name_settings_that_exist() -> None:
    for row in (*ROLLOUTS, *TRAINING):
        assert set(row.settings) <= KEYS


def test_the_default_config_is_accepted() -> None:
    refuse_idle(RunFacts(load_config({})), [*ROLLOUTS, *TRAINING])


def test_what_a_named_source_brings_is_not_held_against_the_user() -> None:
    config = load_config({}, ["env.max_turns=4"])
    refuse_idle(RunFacts(config, "task", brought=frozenset({"env.max_turns"})), ROLLOUTS)
