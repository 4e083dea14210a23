"""What a run works with, and the filter for text that is about to enter the skill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skillfit.config.schema import Config
from skillfit.gate import Gate, GateSettings, Leak, LeakIndex
from skillfit.optimize.optimizer import Optimizer, Patch, Payload
from skillfit.optimize.proposer import Proposer
from skillfit.plain_text import shorten
from skillfit.rollout import Rollouts
from skillfit.run.budget import Budget
from skillfit.run.events import Discarded
from skillfit.run.records import SkillCandidate, Suggestion
from skillfit.skill import EXAMPLE_OP, Edit, Skill
from skillfit.tasks.task import Task
from skillfit.training.plan import Plan
from skillfit.training.steering import RecordedRequests
from skillfit.training.step_log import Emit


@dataclass(frozen=True, slots=True)
class Components:
    """What a run works with, put together by assemble.py.

    Only what composes a run takes all of it: loop, preflight and finish. A stage is given the
    parts that it uses.
    """

    config: Config
    path: Path  # the run directory
    task: Task
    initial: Skill
    plan: Plan
    lag: int  # by how many steps edits join later than they were written
    engine: Rollouts
    gate: Gate
    gate_settings: GateSettings
    optimizer: Optimizer | None  # None: no optimizer model is configured
    proposer: Proposer
    leaks: LeakFilter
    emit: Emit
    check_stop: Callable[[], None]  # raises Interrupted once the user asked to stop
    persist_failures: Callable[[], Awaitable[None]]  # before a decision is emitted
    budget: Budget
    requests: RecordedRequests  # of the user, while the run works


class LeakFilter:
    """Keeps text out of the skill that carries hidden answers or passes the token ceiling.

    Each refusal is emitted with its evidence. Without an index (`evaluation.leak_check: false`)
    every text passes. The index of a large task takes seconds, so it is built for the first text
    and not before the first rollout. `blocked` counts refusals over the run.
    """

    def __init__(
        self, build_index: Callable[[], LeakIndex] | None, emit: Emit, max_tokens: int | None
    ) -> None:
        self._build_index, self._emit, self.max_tokens = build_index, emit, max_tokens
        self._index: LeakIndex | None = None
        self.blocked = 0

    def passes(self, text: str, step: int, *, example: bool = False) -> bool:
        """`example`: the text goes into the fenced examples, where training answers belong."""
        if self._index is None and self._build_index is not None:
            self._index = self._build_index()
        leaks = self._index.check(text, examples=example) if self._index else ()
        if leaks:
            self.blocked += 1
            self._emit(_leak_event(step, text, leaks))
        return not leaks

    def fits(self, wanted: Skill, present: Skill, what: str, step: int) -> bool:
        """Whether a skill stays below the token ceiling. One that shrinks always does."""
        limit = self.max_tokens
        if limit is None or wanted.tokens <= max(limit, present.tokens):
            return True
        reason = f"the skill would have about {wanted.tokens} tokens; {limit} are allowed"
        stays = "the skill stays as it is"
        self._emit(Discarded(step=step, stage=what, what="text", reason=reason, evidence=stays))
        return False

    def clean(self, patch: Patch, step: int) -> Patch:
        """The patch without the proposals that leak."""
        kept = []
        for proposal in patch.proposals:
            # Only edits of the fenced examples may show training answers.
            payload = proposal.payload
            example = isinstance(payload, Edit) and payload.op == EXAMPLE_OP
            if self.passes(_written_text(payload), step, example=example):
                kept.append(proposal)
        return replace(patch, proposals=tuple(kept))


def _leak_event(step: int, text: str, leaks: Sequence[Leak]) -> Discarded:
    kinds = [f"{leak.kind} of item {leak.item}" if leak.item else leak.kind for leak in leaks]
    return Discarded(
        step=step,
        stage="leak_check",
        what=shorten(text, 200),
        reason=f"carries {', '.join(kinds)}",
        evidence=" | ".join(leak.evidence for leak in leaks),
    )


def _written_text(payload: Payload) -> str:
    """What a proposal would put into the skill."""
    if isinstance(payload, Suggestion):
        return payload.instruction
    return payload.new_skill if isinstance(payload, SkillCandidate) else payload.content
