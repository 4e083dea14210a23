"""What every stage is handed: the optimizer's model, the settings of the stages, and how to say what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pydantic import BaseModel

from skillfit.models import ask
from skillfit.models.protocol import (
    BadReply,
    ContextTooLong,
    Message,
    Model,
    ModelError,
    NetworkFailed,
    Overloaded,
    RateLimited,
    Refused,
    Request,
    TimedOut,
)
from skillfit.optimize.patch import UpdateMode
from skillfit.run.events import Discarded, Event
from skillfit.skill import estimate_tokens

R = TypeVar("R", bound=BaseModel)

# A reply nobody can use costs one call's worth of learning; the stage goes on without it and says so.
UNUSABLE = (BadReply, Refused, ContextTooLong)
# The provider was tried again and could not be reached. Auth, quota, config, budget and handoff are neither: they stop the run.
UNREACHABLE = (RateLimited, Overloaded, TimedOut, NetworkFailed)

REPLY_TOKENS = 16_384
_SMALLEST_ROOM = 1_000


@dataclass(frozen=True, slots=True)
class OptimizeSettings:
    update_mode: UpdateMode = "patch"
    minibatch_size: int = 8
    merge_batch_size: int = 8
    failure_only: bool = False
    skill_aware: bool = False
    appendix_source: Literal["both", "failure_only"] = "both"
    consolidate_threshold: int = 0
    trace_to_optimizer: bool = True
    max_skill_tokens: int | None = None
    reply_tokens: int = REPLY_TOKENS  # ceiling of a reply that carries no whole skill
    rewrite_reasoning_effort: str | None = None
    rewrite_max_tokens: int = 64_000


@dataclass(frozen=True, slots=True)
class Call:
    """One question to the optimizer's model. Step and name tell equal questions apart."""

    stage: str
    step: int
    name: str
    system: str
    user: str
    reply_tokens: int | None = None  # None: the settings' own
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True)
class Optimizer:
    model: Model
    emit: Callable[[Event], None]
    workers: asyncio.Semaphore  # calls in flight at one time
    settings: OptimizeSettings = field(default_factory=OptimizeSettings)

    def reply_tokens(self, wanted: int | None = None) -> int:
        """Room for a reply: what the stage wants, but never more than half of what the model holds."""
        return min(wanted or self.settings.reply_tokens, self.model.context_window // 2)

    def patch_tokens(self) -> int:
        """What a reply with proposals may take: whole skills need more room than edits."""
        settings = self.settings
        return settings.rewrite_max_tokens if settings.update_mode == "full_rewrite_minibatch" else settings.reply_tokens

    def room(self, *fixed: str, reply: int | None = None) -> int:
        """Tokens left for material beside the fixed parts of a prompt. Estimates err, so a tenth of the window stays free."""
        window = self.model.context_window
        used = sum(estimate_tokens(part) for part in fixed)
        return max(_SMALLEST_ROOM, window - window // 10 - self.reply_tokens(reply) - used)

    async def ask(self, returns: type[R], call: Call) -> R:
        request = Request(
            messages=(Message("system", call.system), Message("user", call.user)),
            stage=call.stage,
            purpose=f"step {call.step} {call.name}",
            max_tokens=self.reply_tokens(call.reply_tokens),
            reasoning_effort=call.reasoning_effort,
        )
        async with self.workers:
            return await ask(self.model, request, returns)

    async def try_ask(self, returns: type[R], call: Call, *, otherwise: str) -> R | None:
        """As `ask`; a reply nobody can use is None, and an event says what happens `otherwise`."""
        try:
            return await self.ask(returns, call)
        except UNUSABLE as error:
            self.discard(call.step, call.stage, call.name, error, otherwise)
            return None

    def discard(self, step: int, stage: str, what: str, problem: ModelError | str, evidence: str = "") -> None:
        """Say that something was not used, and why."""
        reason = problem if isinstance(problem, str) else f"{problem.kind}: {problem}"
        self.emit(Discarded(step=step, stage=stage, what=what, reason=reason, evidence=evidence))
