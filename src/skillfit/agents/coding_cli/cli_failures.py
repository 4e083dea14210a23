"""What kind of failure a program's error text means."""

from __future__ import annotations

import re
from collections.abc import Mapping

from skillfit.agents.agent import AgentFailure
from skillfit.agents.coding_cli.description import Description, FailureKind
from skillfit.models.failures import make_failure
from skillfit.models.protocol import ModelError, Usage

_SHOWN = 1000  # characters of the error text
# The patterns must match the program's own complaints only: stderr may also hold what an agent's
# tools printed, with any words and numbers in it.
_STATUS = r"\b(status|code|error|http(/[\d.]+)?)\W{0,3}(status|code)?\W{0,3}"
_PATTERNS: Mapping[FailureKind, tuple[str, ...]] = {
    "limit": (),
    "auth": (
        r"not logged in",
        r"please (run )?/?log ?in",
        r"(invalid|incorrect|missing) (x-)?api.?key",
        r"authentication.?(error|failed|required|failure)",
        r"(failed|unable|could not) to authenticate|not authenticated|no authentication",
        r"^\W*(error\W+)?unauthorized\b",
        rf"{_STATUS}401\b|\b401\W{{1,3}}unauthorized",
    ),
    "quota": (
        r"credit balance is too low",
        r"insufficient.quota",
        r"usage limit (reached|exceeded)|(hit|reached) your usage limit",
        r"(?<!disk )quota exceeded|exceeded your current quota",
    ),
    "rate_limit": (r"rate.?limit", rf"{_STATUS}429\b", r"too many requests"),
    "overloaded": (
        r"overloaded",
        rf"{_STATUS}(500|502|503|529)\b",
        r"(internal server|service unavailable)",
    ),
    "config": (
        r"\bmodel\b(?!/)[^\n]{0,60}(not found|does not exist|not supported|may not exist)",
        r"^(error: )?(unknown|unexpected) (option|argument)",
    ),
}


def failure_of(
    description: Description, code: int | None, text: str, usage: Usage, *, auth_hint: str
) -> ModelError:
    """The typed failure for a program that ended with this exit code and error text."""
    text = (text.strip() or "it printed no error")[-_SHOWN:]
    message = f"{description.name} gave no answer (exit code {code}): {text}"
    kind = _kind(description, text)
    if kind is None:
        return AgentFailure(message, kind="command", usage=usage)
    if kind == "limit":
        return AgentFailure(
            message, kind="limit", hint="Raise the program's own limit.", usage=usage
        )
    return make_failure(kind, message, usage=usage, hint=auth_hint if kind == "auth" else "")


def _kind(description: Description, text: str) -> FailureKind | None:
    for kind, general in _PATTERNS.items():
        for pattern in (*description.failures.get(kind, ()), *general):
            if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
                return kind
    return None
