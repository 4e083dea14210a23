"""What each setting needs to act. A setting that would have no effect is refused with the reason.

Each row of the tables names settings, when they act, and why they do not. What cannot be read from
the config alone is said by the parts of the run (`RunFacts`), because users bring their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from skillfit.config.schema import PROGRAM_AGENTS, Config, agent_kind, describe_keys
from skillfit.errors import InputError
from skillfit.extensions import is_source
from skillfit.skill.parts import DESCRIPTION_OF


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A config, and what the task and the parts of the run say about themselves."""

    config: Config
    runs_items: Literal["agent", "python", "task"] = "agent"  # python: an agent given as an object
    calls_model: bool = False  # whether a task that runs its items calls the agent's model
    own_scores: bool = False  # whether the task brings its own scores
    tasks: str = ""  # env.tasks; empty for a task given from Python
    brought: frozenset[str] = frozenset()  # settings with the value that the named source brings
    ignored: frozenset[str] = frozenset()  # settings that the gate says it does not use
    writes_notes: bool = True  # the proposer
    needs_patch_mode: bool = False  # the proposer

    @property
    def agent_kind(self) -> str:
        """What runs the items: chat, tools, cli, task, python, or the name of a user's agent."""
        return self.config.agent_kind if self.runs_items == "agent" else self.runs_items

    def value(self, key: str) -> Any:
        """Return the value of a setting."""
        found: Any = self.config
        for name in key.split("."):
            found = getattr(found, name)
        return found


@dataclass(frozen=True, slots=True)
class Requirement:
    """Settings, when they act, and why they do not. `why` may name fields of the config."""

    settings: tuple[str, ...]
    when: Callable[[RunFacts], bool]
    why: str
    hint: str
    only: Collection[object] | None  # refuse these values; None: all but the default
    brought: bool  # refuse values that the named source brings, too

    def refused(self, facts: RunFacts) -> list[str]:
        """Return the settings that are set and do not act."""
        if self.when(facts):
            return []
        return [key for key in self.settings if self._is_set(key, facts)]

    def _is_set(self, key: str, facts: RunFacts) -> bool:
        value = facts.value(key)
        if not self.brought and key in facts.brought:
            return False
        return value != _defaults()[key] if self.only is None else value in self.only


def requires(
    *settings: str,
    when: Callable[[RunFacts], bool],
    why: str,
    hint: str = "Leave it out.",
    only: Collection[object] | None = None,
    brought: bool = True,
) -> Requirement:
    """Make a row of a table: the settings act only when the condition holds."""
    return Requirement(settings, when, why, hint, only, brought)


@cache
def _defaults() -> dict[str, Any]:
    return {key.key: key.default for key in describe_keys()}


def _provider_of_optimizer(config: Config) -> str:
    spec = config.model.optimizer
    return spec.id.partition("/")[0] if spec is not None else ""


_OWN_WAY = "this task or agent runs items in its own way"

ROLLOUTS = (
    requires(
        "evaluation.ship_grader",
        when=lambda facts: not facts.own_scores,
        why="this task scores itself, so a second grader has no effect",
        hint="Use a tasks file with env.grader, or leave evaluation.ship_grader out.",
    ),
    requires(
        "evaluation.ship_grader",
        when=lambda facts: facts.config.evaluation.ship_test,
        why="needs evaluation.ship_test: true, the comparison it grades",
    ),
    requires(
        "model.agents",
        when=lambda facts: facts.runs_items == "agent",
        why=f"{_OWN_WAY}, with one model",
        hint="Name one model: model.agent.",
    ),
    requires(
        "model.agents",
        when=lambda facts: (
            len({agent_kind(facts.config.env.agent, spec.id) for spec in facts.config.model.agents})
            < 2
        ),
        why="programs and models cannot be mixed in one run",
        hint="Name programs (cli/…) alone, or models alone.",
    ),
    requires(
        "evaluation.must_pass",
        when=lambda facts: not facts.config.model.agents,
        why="not with model.agents, where each item is run with several models",
    ),
    requires(
        "env.prompt",
        "env.max_turns",
        "env.max_rollout_tokens",
        "env.corpus",
        "env.network",
        "env.sandbox",
        when=lambda facts: facts.runs_items == "agent",
        why=_OWN_WAY,
        brought=False,
    ),
    requires(
        "env.agent",
        when=lambda facts: facts.runs_items == "agent",
        why=_OWN_WAY,
        only=PROGRAM_AGENTS,
        brought=False,
    ),
    requires(
        "model.agent",
        when=lambda facts: facts.runs_items != "task" or facts.calls_model,
        why=_OWN_WAY,
    ),
    requires(
        "env.sandbox",
        when=lambda facts: facts.agent_kind != "chat" or facts.config.proposer == "agent",
        why="not supported by the chat agent",
        hint="Leave it out. The code grader has its own setting: env.grader: {code: {sandbox: …}}.",
    ),
    requires(
        "env.corpus",
        "env.network",
        when=lambda facts: facts.agent_kind != "chat",
        why="not supported by the chat agent",
    ),
    requires(
        "env.prompt",
        "env.max_rollout_tokens",
        when=lambda facts: facts.agent_kind != "cli",
        why="not supported by command-line agents",
    ),
    requires(
        "env.network",
        when=lambda facts: facts.agent_kind != "cli",
        why="command-line agents call their model over the network",
        only=("off",),
    ),
    requires(
        "env.max_turns",
        when=lambda facts: facts.agent_kind != "cli" or facts.config.env.max_turns == 1,
        why="not supported by command-line agents",
    ),
    requires(
        "env.skill_as",
        "env.model_roles",
        "env.score_range",
        when=lambda facts: facts.tasks.startswith("inspect:"),
        why="is for Inspect tasks",
    ),
    requires(
        "env.task_args",
        when=lambda facts: is_source(facts.tasks),
        why="these tasks take no arguments",
        hint="They are options of a named source, such as inspect:file.py@task.",
    ),
)

_BODY_PROPOSERS = ("reflect", "examples", "both")  # proposers that know no other part of a skill
_NO_TOOLS = ("handoff", "practice")  # providers whose models use none

TRAINING = (
    requires(
        "optimizer.proposer",
        when=lambda facts: _provider_of_optimizer(facts.config) not in _NO_TOOLS,
        why="agent needs an optimizer that can use tools, and {config.model.optimizer.id} cannot",
        hint="Set optimizer.proposer: corpus.",
        only=("agent",),
    ),
    requires(
        "optimizer.agent_minutes",
        when=lambda facts: facts.config.proposer == "agent",
        why="needs optimizer.proposer: agent, and it is {config.proposer}",
    ),
    requires(
        "optimizer.skill_update_mode",
        when=lambda facts: not facts.needs_patch_mode,
        why="{config.optimizer.skill_update_mode} applies no edits, and optimizer.proposer: "
        "{config.proposer} proposes nothing else",
        hint="Set optimizer.skill_update_mode: patch, or optimizer.proposer: reflect.",
    ),
    requires(
        "optimizer.use_skill_aware_reflection",
        when=lambda facts: facts.writes_notes,
        why="optimizer.proposer: {config.proposer} writes no notes",
        hint="Set optimizer.proposer: reflect or both.",
    ),
    requires(
        "optimizer.parts",
        when=lambda facts: facts.agent_kind != "chat",
        why="the chat agent is given the body of the skill alone",
        hint="Set env.agent: tools or a coding-agent program, which are given the folder.",
    ),
    requires(
        "optimizer.parts",
        when=lambda facts: (
            "description" not in facts.config.optimizer.parts or facts.agent_kind != "tools"
        ),
        why="the tools agent is given the body, and chooses nothing by the description",
        hint="Leave description out, or train it alone: skillfit trigger.",
    ),
    requires(
        "optimizer.parts",
        when=lambda facts: facts.config.proposer not in _BODY_PROPOSERS,
        why="optimizer.proposer: {config.proposer} writes edits of the body alone",
        hint="Set optimizer.proposer: corpus or agent.",
    ),
    requires(
        "optimizer.parts",
        when=lambda facts: facts.config.optimizer.skill_update_mode == "patch",
        why="{config.optimizer.skill_update_mode} writes the document alone",
        hint="Set optimizer.skill_update_mode: patch.",
    ),
    requires(
        "optimizer.parts",
        when=lambda facts: not facts.config.env.skill.endswith(DESCRIPTION_OF),
        why="env.skill names the description alone",
        hint="Leave #description out of it.",
    ),
    requires(
        "optimizer.script_check",
        when=lambda facts: "scripts" in facts.config.optimizer.parts,
        why="needs scripts in optimizer.parts",
    ),
    requires(
        "evaluation.use_gate",
        when=lambda facts: "evaluation.use_gate" not in facts.ignored,
        why="this gate decides about each edit, and accepts no candidate as a whole",
        hint="Leave evaluation.gate at its default: use_gate: false then measures whole skills.",
    ),
    requires(
        "evaluation.must_pass",
        when=lambda facts: facts.config.evaluation.use_gate,
        why="needs evaluation.use_gate: true",
    ),
    requires(
        "evaluation.must_pass",
        when=lambda facts: "evaluation.must_pass" not in facts.ignored,
        why="this gate does not check must-pass items",
        hint="Set evaluation.gate: screening, or remove evaluation.must_pass. Your own gate "
        "declares with checks_must_pass = True that it checks them.",
    ),
    requires(
        "optimizer.prune_initial",
        when=lambda facts: "optimizer.prune_initial" not in facts.ignored,
        why="needs a gate that decides each edit, such as evaluation.gate: screening, with "
        "use_gate: true; this gate does not measure what a paragraph is worth",
        hint="Leave it out, or use `skillfit ablate`.",
    ),
    requires(
        "evaluation.objective",
        when=lambda facts: (
            "evaluation.objective" not in facts.ignored and facts.config.evaluation.ship_test
        ),
        why="needs evaluation.ship_test: true and a gate that decides each edit, such as "
        "evaluation.gate: screening with use_gate: true",
    ),
    requires(
        "optimizer.skill_aware_consolidate_threshold",
        when=lambda facts: "optimizer.skill_aware_consolidate_threshold" not in facts.ignored,
        why="needs a gate without a pool of edits, such as evaluation.gate: strict; this gate "
        "drops notes that do not help",
        hint="Leave it at 0.",
    ),
)


def refuse_idle(facts: RunFacts, requirements: Iterable[Requirement]) -> None:
    """Raise an error for the first row with a setting that would have no effect."""
    for row in requirements:
        if idle := row.refused(facts):
            why = row.why.format(config=facts.config)
            raise InputError(f"{', '.join(idle)}: {why}.", hint=row.hint)
