"""What may enter the skill: text that carries what the agent must not be handed is left out, and so
is what passes the token ceiling. Both are said, and the evidence kept for the person.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from skillfit.gate import Leak, LeakIndex
from skillfit.optimize.patch import Patch, Payload, SkillCandidate, Suggestion
from skillfit.run.events import Discarded, Event
from skillfit.skill import EXAMPLE_OP, Edit, Skill
from skillfit.training.stage import Position


class Screen:
    """`blocked` counts over the run. Without an index (`evaluation.leak_check: false`) everything
    passes.
    """

    def __init__(
        self,
        index: LeakIndex | None,
        emit: Callable[[Event], None],
        at: Position,
        max_tokens: int | None = None,
    ) -> None:
        self._index, self._emit, self._at, self._max_tokens = index, emit, at, max_tokens
        self.blocked = 0

    def passes(self, text: str, *, example: bool = False) -> bool:
        leaks = self._index.check(text, examples=example) if self._index else ()
        if leaks:
            self.blocked += 1
            self._emit(_found(self._at.step, text, leaks))
        return not leaks

    def fits(self, wanted: Skill, present: Skill, what: str) -> bool:
        """Whether a skill that grows outside the step's edits stays below the ceiling; one that
        shrinks always may.
        """
        limit = self._max_tokens
        if limit is None or wanted.tokens <= max(limit, present.tokens):
            return True
        reason = f"the skill would have about {wanted.tokens} tokens; {limit} are allowed"
        self._emit(
            Discarded(
                step=self._at.step,
                stage=what,
                what="text",
                reason=reason,
                evidence="the skill stays as it is",
            )
        )
        return False

    def patch(self, patch: Patch) -> Patch:
        """The patch without the proposals that leak."""
        kept = [
            p
            for p in patch.proposals
            if self.passes(_text(p.payload), example=_is_example(p.payload))
        ]
        return replace(patch, proposals=tuple(kept))


def _found(step: int, text: str, leaks: Sequence[Leak]) -> Discarded:
    reason = ", ".join(
        f"{leak.kind}{f' of item {leak.item}' if leak.item else ''}" for leak in leaks
    )
    evidence = " | ".join(leak.evidence for leak in leaks)
    return Discarded(
        step=step,
        stage="leak_check",
        what=text[:200],
        reason=f"carries {reason}",
        evidence=evidence,
    )


def _is_example(payload: Payload) -> bool:
    """Only what goes into the fenced examples may show training answers, whatever it says about its
    source.
    """
    return isinstance(payload, Edit) and payload.op == EXAMPLE_OP


def _text(payload: Payload) -> str:
    """What a proposal would put into the skill."""
    if isinstance(payload, Suggestion):
        return payload.instruction
    return payload.new_skill if isinstance(payload, SkillCandidate) else payload.content
