"""Queries that a model proposes for a skill, near misses included; a person reviews them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from skillfit.models import Model, Request, ask
from skillfit.models.protocol import Message
from skillfit.optimize.optimizer import render, sections
from skillfit.plain_text import head_and_tail
from skillfit.plugins.trigger.source import listed
from skillfit.skill import Skill

_LONGEST_SKILL = 60_000  # characters of the document in the prompt


class DraftQuery(BaseModel):
    """A query as the model wrote it: a row of the file."""

    model_config = ConfigDict(frozen=True)

    query: str = Field(min_length=1)
    should_trigger: bool
    why: str = ""


class DraftQueries(BaseModel):
    """What the model is asked for."""

    queries: list[DraftQuery] = Field(min_length=1)


async def draft_queries(
    model: Model, skill: Skill, others: Sequence[Skill], *, count: int, about: str = ""
) -> list[DraftQuery]:
    """Return up to `count` different queries. `about` is what the user says on the work."""
    material = sections(
        skill=head_and_tail(skill.text, _LONGEST_SKILL),
        other_skills=listed(others),
        what_the_user_says=about,
    )
    system = render("draft_queries", count=count, skill=skill.name)
    messages = (Message("system", system), Message("user", material))
    reply = await ask(model, Request(messages, "draft_queries"), DraftQueries)
    return list({one.query: one for one in reply.queries}.values())[:count]
