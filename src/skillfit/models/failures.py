"""From what a provider said to the one word for it. Every failure is classified here and nowhere
else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from skillfit.models.protocol import (
    AuthFailed,
    BadRequest,
    ContextTooLong,
    ModelError,
    NetworkFailed,
    NoReply,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Refused,
    TimedOut,
)
from skillfit.models.secrets import redact
from skillfit.models.structured import whole_json

_BY_WORDS: tuple[tuple[str, type[ModelError]], ...] = (
    (
        r"insufficient_quota|credit balance is too low|exceeded your current quota|billing_hard_limit|billing_not_active"
        r"|insufficient (account )?balance|payment required|usage limit reached|arrearage",
        QuotaExhausted,
    ),
    (
        r"context_length_exceeded|maximum context length|context window|prompt is too long|input is too long"
        r"|exceeds the available context|exceed_context_size|request_too_large|string_above_max_length",
        ContextTooLong,
    ),
    (
        r"content_filter|content_policy|responsibleaipolicy|data_inspection_failed|content management policy|safety system",
        Refused,
    ),
    (
        r"not logged in|please run /login|invalid[_ ]api[_ ]key|incorrect api key|invalid x-api-key|authentication_error"
        r"|invalid authentication|login fail|token (is )?expired|unauthorized",
        AuthFailed,
    ),
    (r"rate[_ ]limit|too many requests|tokens per min|requests per min", RateLimited),
    (
        r"overloaded|server is busy|over capacity|model is (currently )?loading|loading model|service_?unavailable",
        Overloaded,
    ),
)
_BY_STATUS: dict[int, type[ModelError]] = {
    401: AuthFailed,
    402: QuotaExhausted,
    403: AuthFailed,
    408: TimedOut,
    409: Overloaded,
    413: ContextTooLong,
    425: Overloaded,
    429: RateLimited,
    504: TimedOut,
}
# A status that settles the matter by itself: words in the body may only name a finer kind listed
# here.
_FINER: dict[type[ModelError], tuple[type[ModelError], ...]] = {
    RateLimited: (QuotaExhausted,),
    AuthFailed: (QuotaExhausted, Refused),
    QuotaExhausted: (),
    ContextTooLong: (),
    TimedOut: (),
    Overloaded: (QuotaExhausted, ContextTooLong),
}
_HINTS: dict[type[ModelError], str] = {
    AuthFailed: "Check the key in the environment and that it may use this model (`skillfit models` shows which keys are set).",
    QuotaExhausted: "Top up the account or use another model; the run goes on from here when started again.",
    ContextTooLong: "Use a model with a larger context window, or set `context_window` so prompts are cut to fit.",
    BadRequest: "Check the model's name, its endpoint and its parameters.",
}


class NotReached(NetworkFailed):
    """Nothing was sent: connection refused, unknown host, no route. So nothing can have been
    billed.
    """


def classify(status: int, body: Any, headers: Mapping[str, str], where: str) -> ModelError:
    """The typed failure for an HTTP answer that is no reply. `where` says whom we asked."""
    said = said_by(body)
    kind = _kind(
        status, said if isinstance(body, str) else json.dumps(body, ensure_ascii=False, default=str)
    )
    message = redact(
        f"{where} answered {status}: {said}" if said else f"{where} answered {status}."
    )
    return kind(message, hint=_HINTS.get(kind, ""), retry_after=_retry_after(headers, said))


def read_json(text: str, content_type: str, where: str) -> dict[str, Any]:
    """The body of a 200 answer as an object; a cut or foreign body is a typed failure."""
    try:
        body = whole_json(text)
    except ValueError as error:
        if "json" in content_type:
            raise NetworkFailed(
                f"The answer of {where} broke off after {len(text)} characters."
            ) from error
        raise NoReply(
            redact(
                f"{where} answered with {content_type or 'no content type'} instead of JSON: {text[:80]!r}"
            ),
            hint="Check the base_url: it usually ends in /v1.",
        ) from error
    if not isinstance(body, dict):
        raise NoReply(redact(f"{where} answered with JSON that is no reply: {text[:80]!r}"))
    return body


def said_by(body: Any) -> str:
    """The provider's own words in an error body."""
    if isinstance(body, Mapping):
        inner = body.get("error", body.get("base_resp", body))
        if isinstance(inner, Mapping):
            inner = next(
                (
                    inner[key]
                    for key in ("message", "status_msg", "detail", "msg")
                    if inner.get(key)
                ),
                inner,
            )
        return (
            inner
            if isinstance(inner, str)
            else json.dumps(inner, ensure_ascii=False, default=str)[:500]
        )
    return " ".join(re.sub(r"<[^>]*>", " ", str(body or "")).split())[:300]


def _kind(status: int, words: str) -> type[ModelError]:
    named = next(
        (kind for pattern, kind in _BY_WORDS if re.search(pattern, words, re.IGNORECASE)), None
    )
    by_status = _BY_STATUS.get(status) or (Overloaded if status >= 500 else None)
    if by_status is None:
        return named or BadRequest
    return named if named in _FINER[by_status] and named is not None else by_status


def _retry_after(headers: Mapping[str, str], said: str) -> float | None:
    """Seconds to wait, from the header (milliseconds, seconds or a date) or from the words `try
    again in 2.5s`.
    """
    if millis := _number(headers.get("retry-after-ms")):
        return millis / 1000
    value = headers.get("retry-after", "")
    if (seconds := _number(value)) is not None:
        return seconds
    if (when := _date(value)) is not None:
        # The server's own clock, where it tells it: ours may be off.
        return max(
            0.0, (when - (_date(headers.get("date", "")) or datetime.now(UTC))).total_seconds()
        )
    match = re.search(r"try again in ([0-9.]+) ?(ms|s)\b", said)
    return float(match[1].rstrip(".")) / (1000 if match[2] == "ms" else 1) if match else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _date(text: str) -> datetime | None:
    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
