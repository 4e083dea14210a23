"""Agents that are offered a skill beside its neighbours, and which of them they read.

A command-line program gets all skills in the folder where it discovers skills, and the query as its
prompt. Any other model gets their names and descriptions in a prompt and names the one it would
read, which is a simulation of an agent. The answer of an attempt is the names of the skills read.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from skillfit.agents import build_agent
from skillfit.agents.agent import (
    Agent,
    AgentFailure,
    AttemptContext,
    ModelAgent,
    item_messages,
    workspace_for,
)
from skillfit.agents.cli_agent import CliAgent, install
from skillfit.config.schema import AgentSection
from skillfit.errors import InputError
from skillfit.extensions import PartDescription
from skillfit.models import Model, ModelSpec
from skillfit.models.protocol import Message
from skillfit.skill import Skill
from skillfit.skill.parts import DESCRIPTION, as_description, part_text, with_part
from skillfit.tasks.item import Attempt, Item, TrajectoryStep

NO_SKILL_READ = "none"
_SHARE_OF_LIMIT = 0.9  # of a rollout's time; in the rest the program's output is read
ROUTER_PROMPT = """\
You choose skills for an agent. A skill is a document that the agent reads before it does a kind of
work. These are the names and descriptions of its skills:

{skill}

The user's message is a request to the agent. Do not carry it out. If one of the skills is for such
requests, answer with the name of that skill as your label; else answer none. Answer with only the
label, in lower case. When unsure, answer none."""


def build_trigger_agent(
    skill: Skill, others: tuple[Skill, ...], env: AgentSection, spec: ModelSpec, model: Model | None
) -> Agent:
    """Make the agent for a model: the program that it names, or the simulation."""
    if model is not None:
        return RouterAgent(model, ROUTER_PROMPT, max_turns=1, whole=skill, others=others)
    agent = build_agent(env, spec, None)
    assert isinstance(agent, CliAgent)  # an agent without a model is a program
    program = agent.command.description
    if not program.shows_reads:
        raise InputError(
            f"The output of {program.name} does not tell which skills it reads, so nothing can be "
            "said about triggering.",
            hint="Describe its tool results under `events`, or its skill tool in `skill_read`.",
        )
    if program.uses("skill") or spec.options.get("mention_skill"):
        raise InputError(
            f"{program.name} is told the name of the skill, so it does not choose it by itself.",
            hint="Leave $skill out of its description, and mention_skill out of its options.",
        )
    return TriggerAgent(agent.command, whole=skill, others=others)


def offered(skill: Skill, others: tuple[Skill, ...], trained: Skill) -> list[Skill]:
    """Return all skills by name, this one with the description in training: where that has no text,
    with its name. Without the skill (`eval --no-skill`) the others.
    """
    own = with_part(skill, DESCRIPTION, as_description(trained) or skill.name)
    return sorted((*others, *(() if trained.absent else (own,))), key=lambda one: one.name)


def names_in(answer: str) -> tuple[str, ...]:
    """Return the skills that an answer names."""
    return tuple(name for name in answer.split(", ") if name not in ("", NO_SKILL_READ))


def answer_of(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or NO_SKILL_READ


@dataclass(frozen=True, kw_only=True)
class RouterAgent(ModelAgent):
    """Asks a model which skill it would read: a simulation of an agent that has skills."""

    name: ClassVar[str] = "router"

    whole: Skill
    others: tuple[Skill, ...]

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        skills = offered(self.whole, self.others, skill)
        listed = "\n".join(f"- {one.name}: {part_text(one, DESCRIPTION)}" for one in skills)
        system = Message("system", self.prompt.replace("{skill}", listed))
        messages = (system, *item_messages(item, context.instruction))
        reply = await self.model.complete(self.request(messages, context, 0))
        named = {
            one.name
            for one in skills
            if re.search(rf"(?<![\w-]){re.escape(one.name)}(?![\w-])", reply.text.lower())
        }
        return Attempt(
            answer_of(named if len(named) == 1 else ()),
            (TrajectoryStep("message", reply.text),),
            usage=reply.usage,
        )

    def describe(self) -> PartDescription:
        return {"agent": self.name, "model": self.model.id, "prompt": self.prompt}


@dataclass(frozen=True, kw_only=True)
class TriggerAgent(CliAgent):
    """Puts each query to a program beside all skills. The skill of an attempt is a description.

    What a program has read counts, also if the limit of time, or the user's own limit in dollars,
    ends it at work.
    """

    whole: Skill
    others: tuple[Skill, ...]

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        program = self.command.description
        with workspace_for(item) as workspace:
            installed = [
                install(one, workspace, program.skills)
                for one in offered(self.whole, self.others, skill)
            ]
            seconds = context.seconds
            done = await self.command.run(
                workspace,
                self._prompt(item, "", context),
                program.argv,
                skills=installed,
                max_usd=context.max_usd,
                timeout=None if seconds is None else seconds * _SHARE_OF_LIMIT,
                may_reach_max_usd=bool(self.command.spec.options.get("max_usd")),
            )
            workspace.leave_only_work()
        output = done.output
        read = {name for name, is_read in output.skills_read.items() if is_read}
        if not output.steps and (done.timed_out or done.reached_max_usd):
            limit = f"{seconds:g} seconds" if done.timed_out else "its limit in dollars"
            raise AgentFailure(
                f"{program.name} did nothing within {limit}.",
                kind="timeout" if done.timed_out else "limit",
                hint=f"Raise {'env.exec_timeout' if done.timed_out else 'options.max_usd'}.",
                usage=output.usage,
            )
        return Attempt(
            answer_of(read),
            output.steps,
            str(workspace.work),
            usage=output.usage,
            isolation=done.isolation,
        )
