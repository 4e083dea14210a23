"""The failure policy: what the client, the limiter, the rollout engine and the run do about each
kind of failure, and how a provider's error answer is mapped to a kind.

`POLICIES` lists every kind. Other code asks the functions below it whether to retry, stop or
continue. Two things are decided elsewhere: client.py has the seconds between retries, and
agents/cli_programs.py has the words by which the error text of a program is mapped to a kind.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from skillfit.errors import TaskFailure
from skillfit.models.json_text import JsonObject, parse_json
from skillfit.models.protocol import (
    AuthFailed,
    BadReply,
    BadRequest,
    ContextTooLong,
    CutOff,
    ModelError,
    NetworkFailed,
    NotAReply,
    NotReached,
    Overloaded,
    ParameterDropped,
    QuotaExhausted,
    RateLimited,
    Refused,
    TimedOut,
    Usage,
)
from skillfit.models.secrets import redact
from skillfit.plain_text import one_line


@dataclass(frozen=True, slots=True)
class Policy:
    """What is done about one kind of failure. By default the rollout fails and nothing else."""

    # Whether the call is sent again. changed: at once and uncounted, because the provider has
    # changed the request.
    retry: Literal["never", "changed", "at_once", "after_wait"] = "never"
    most_retries: int | None = None  # None: as many as the model's `retries`
    rollout_retries: int = 0  # how often a whole rollout that failed this way runs again
    larger_limit: bool = False  # the rollout runs again with a larger reservation, if there is one
    fatal: bool = False  # stops the run: every other call would fail the same way
    pending: bool = False  # no failure: the run stops at the end of the stage, for an answer
    infrastructure: bool = False  # says nothing about the skill or the item
    # A run may continue without the reply and record it as lost, because no reply could be used or
    # none could be had. None: it may not.
    lost: Literal["unusable", "unreachable"] | None = None
    # What an attempt is billed for that reports no usage. at_most: as much as it can have cost,
    # because it was sent and not answered readably.
    billed: Literal["nothing", "one_call", "at_most"] = "one_call"
    # What the limiter learns about the endpoint: it is sent too many requests, or it has trouble.
    endpoint: Literal["crowded", "failing"] | None = None
    shorten: bool = False  # a caller that can cut its prompt sends the call once more, shorter
    answered: bool = False  # a model answered, so key and address are right: enough for a probe
    meaning: str = field(default="", compare=False)  # what happened, for the documentation


_PASSING = Policy("after_wait", rollout_retries=1, infrastructure=True, lost="unreachable")
_NETWORK = replace(_PASSING, billed="at_most", endpoint="failing")
_UNUSABLE = Policy(lost="unusable", billed="at_most", answered=True)
_SERVICE = Policy("after_wait", most_retries=2, rollout_retries=1, infrastructure=True)
POLICIES: Mapping[str, Policy] = {
    "auth": Policy(fatal=True, meaning="the key is missing, wrong, or may not use the model"),
    "quota": Policy(fatal=True, meaning="the account has no credit left"),
    "config": Policy(fatal=True, meaning="the model, a parameter or an address is wrong"),
    "rate_limit": replace(
        _PASSING, endpoint="crowded", meaning="the provider refuses requests at this rate"
    ),
    "overloaded": replace(
        _PASSING, endpoint="failing", meaning="the provider failed or is too busy"
    ),
    "network": replace(_NETWORK, meaning="the connection failed"),
    "timeout": replace(_NETWORK, rollout_retries=0, meaning="no answer within the time limit"),
    # Unlike other failures these are billed, and some models send the same bad reply every time.
    "bad_reply": replace(
        _UNUSABLE,
        retry="at_once",
        most_retries=2,
        rollout_retries=1,
        meaning="the reply is empty, cut off or not in the requested form",
    ),
    # It says nothing about the skill: a proxy, a page of maintenance, a server that is broken.
    "not_a_reply": replace(
        _NETWORK,
        most_retries=2,
        meaning="the answer is no reply of a model: a web page, data that cannot be read, or more"
        " than 8 MB",
    ),
    "cut_off": replace(
        _UNUSABLE,
        meaning="at temperature 0 the reply reached `max_tokens`, as the next one would",
    ),
    "refused": Policy(lost="unusable", meaning="the model or a content filter refused"),
    "context_too_long": Policy(
        lost="unusable", shorten=True, meaning="the prompt does not fit into the context window"
    ),
    "handoff": Policy(pending=True, billed="nothing", meaning="a handoff prompt has no answer yet"),
    "model": Policy(meaning="a call failed in another way"),
    # Failures of agents, graders and workers.
    "agent": Policy(meaning="the agent failed"),
    "command": Policy(
        "after_wait", rollout_retries=1, lost="unreachable", meaning="a program failed"
    ),
    "limit": Policy(larger_limit=True, meaning="a program reached the spending limit it was given"),
    "sandbox": replace(_PASSING, meaning="a program could not be started in its sandbox"),
    "worker": Policy(rollout_retries=3, infrastructure=True, meaning="a Ray worker was lost"),
    "evaluate": Policy(meaning="the task's own code failed"),
    "grader": Policy(meaning="the grader failed"),
    "inspect": Policy(meaning="Inspect failed"),
    # Failures of programs and services that benchmarks use.
    "docker": replace(_SERVICE, meaning="Docker failed"),
    "search": replace(_SERVICE, meaning="the search service of a benchmark failed"),
    "game": Policy(meaning="the game of a benchmark failed"),
    "git": Policy(meaning="git failed"),
}
# Failures that are treated differently from others of their kind.
_BY_CLASS: Mapping[type[ModelError], Policy] = {
    ParameterDropped: Policy("changed"),
    NotReached: replace(_NETWORK, billed="nothing"),
}
# Other failures (refused, context_too_long, agent) may be caused by a candidate skill, and then the
# gate must see them.
INFRASTRUCTURE = frozenset(kind for kind, policy in POLICIES.items() if policy.infrastructure)

LONGEST_PAUSE = 600.0  # seconds; longer Retry-After values are reported instead of waited for
_ENOUGH = 5  # failed rollouts that can stop a run; fewer may be an accident

_CLASSES: tuple[type[ModelError], ...] = (
    *(AuthFailed, QuotaExhausted, BadRequest, RateLimited, Overloaded, NetworkFailed),
    *(TimedOut, BadReply, NotAReply, CutOff, Refused, ContextTooLong),
)
_BY_KIND: Mapping[str, type[ModelError]] = {error.kind: error for error in _CLASSES}


def policy(kind: str) -> Policy:
    """Return the policy of a kind; kinds of the user's own code have the default."""
    return POLICIES.get(kind, Policy())


def policy_of(failure: ModelError | TaskFailure) -> Policy:
    """Return the policy of a failure: of its class, where that has its own, else of its kind. Code
    of a task (its grader, its commands) is not repeated, unless the infrastructure around it
    failed.
    """
    for failure_class, own in _BY_CLASS.items():
        if isinstance(failure, failure_class):
            return own
    found = policy(failure.kind)
    if isinstance(failure, TaskFailure) and not found.infrastructure:
        return replace(found, rollout_retries=0)
    return found


def may_retry(failure: ModelError | TaskFailure, failures: int, retries: int | None = None) -> bool:
    """Return whether a call is sent again after it has failed `failures` times, this one included.
    `retries`: how many retries the model's settings allow; None: it is no call of a model.
    """
    found = policy_of(failure)
    if found.retry in ("never", "changed"):
        return found.retry == "changed"
    pause = failure.retry_after if isinstance(failure, ModelError) else None
    if pause is not None and pause > LONGEST_PAUSE:
        return False
    limits = [most for most in (retries, found.most_retries) if most is not None]
    return failures <= min(limits, default=0)


def why_stop(
    failed: Counter[str],
    latest: str,
    *,
    scored: int,
    planned: int,
    coverage_floor: float,
    proven: bool,
) -> str:
    """Say why rollouts that were started together stop the run, because they fail for reasons other
    than the skill; empty: they do not.

    `failed`: how many failed, by kind. `latest`: the kind of the latest failure. `proven`: a
    rollout was scored earlier in this run, so the setup as such works.
    """
    same_kind = failed[latest]
    systemic = is_infrastructure(latest) or not proven
    if systemic and not scored and same_kind == failed.total() >= _ENOUGH:
        return f"The first {same_kind} rollouts all failed ({latest})."
    broken = sum(failed[kind] for kind in INFRASTRUCTURE)
    if broken >= _ENOUGH and broken > (1 - coverage_floor) * planned:
        needed = f"a coverage of {coverage_floor:.0%} cannot be reached"
        return f"{broken} of {planned} planned rollouts failed: {needed}."
    return ""


def is_infrastructure(kind: str) -> bool:
    """Return whether the failure says nothing about the skill or the item."""
    return policy(kind).infrastructure


def can_be_lost(kind: str) -> bool:
    """Return whether a run may continue without the reply."""
    return policy(kind).lost is not None


def is_unusable(kind: str) -> bool:
    """Return whether there was a reply, but none that can be used. A stage continues without it."""
    return policy(kind).lost == "unusable"


def is_unreachable(kind: str) -> bool:
    """Return whether no reply could be had. A stage continues without it, unless no call has a
    reply.
    """
    return policy(kind).lost == "unreachable"


def make_failure(
    kind: str, message: str, *, hint: str = "", usage: Usage | None = None
) -> ModelError:
    """Return a failure of this kind."""
    failure = _BY_KIND.get(kind, ModelError)(message, hint=hint, usage=usage)
    failure.kind = kind
    return failure


_BY_WORDS: tuple[tuple[str, type[ModelError]], ...] = (
    (
        r"insufficient_quota|credit balance is too low|exceeded your current quota"
        r"|billing_hard_limit|billing_not_active|insufficient (account )?balance"
        r"|payment required|usage limit reached|arrearage",
        QuotaExhausted,
    ),
    (
        r"context_length_exceeded|maximum context length|context window|prompt is too long"
        r"|input is too long|exceeds the available context|exceed_context_size"
        r"|request_too_large|string_above_max_length",
        ContextTooLong,
    ),
    (
        r"content_filter|content_policy|responsibleaipolicy|data_inspection_failed"
        r"|content management policy|safety system",
        Refused,
    ),
    (
        r"not logged in|please run /login|invalid[_ ]api[_ ]key|incorrect api key"
        r"|invalid x-api-key|authentication_error|invalid authentication|login fail"
        r"|token (is )?expired|unauthorized",
        AuthFailed,
    ),
    (r"rate[_ ]limit|too many requests|tokens per min|requests per min", RateLimited),
    (
        r"overloaded|server is busy|over capacity|model is (currently )?loading|loading model"
        r"|service_?unavailable",
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
# Kinds that a status alone decides. Words in the body can only change them to a kind listed here.
_FINER: dict[type[ModelError], tuple[type[ModelError], ...]] = {
    RateLimited: (QuotaExhausted,),
    AuthFailed: (QuotaExhausted, Refused),
    QuotaExhausted: (),
    ContextTooLong: (),
    TimedOut: (),
    Overloaded: (QuotaExhausted, ContextTooLong),
}
_HINTS: dict[type[ModelError], str] = {
    AuthFailed: "Check the key in the environment and that it may use this model "
    "(`skillfit models` shows which keys are set).",
    QuotaExhausted: "Top up the account or use another model. Then resume the run.",
    ContextTooLong: "Use a model with a larger context window, or set `context_window` so that "
    "prompts are cut to fit.",
    BadRequest: "Check the model's name, its endpoint and its parameters.",
}
_MAX_SAID = 500  # characters of a provider's words in our messages
_MAX_SEARCHED = 10_000  # characters of a provider's answer that are searched for known words
_TRY_AGAIN_IN = re.compile(r"try again in (\d+(?:\.\d+)?) ?(ms|s)\b")


def classify(status: int, body: Any, headers: Mapping[str, str], where: str) -> ModelError:
    """Return the failure that an HTTP error answer means. `where` names the model and its
    address.
    """
    provider_text = provider_message(body)
    searched = provider_text if isinstance(body, str) else _as_text(body)
    error = _kind(status, searched[:_MAX_SEARCHED])
    message = (
        f"{where} answered {status}: {provider_text}"
        if provider_text
        else f"{where} answered {status}."
    )
    return error(
        redact(message),
        hint=_HINTS.get(error, ""),
        retry_after=_retry_after(headers, provider_text),
    )


def classify_service(kind: str, status: int, message: str, *, hint: str = "") -> TaskFailure:
    """Return the failure that an HTTP error answer of a service that is not a model means: `kind`
    when it may pass, `config` when the address or the sign-in is wrong, else one of this rollout
    only.
    """
    if status in (401, 403, 404):
        return TaskFailure("config", message, hint=hint)
    passing = status >= 500 or _BY_STATUS.get(status) in (TimedOut, Overloaded, RateLimited)
    return TaskFailure(kind if passing else "evaluate", message)


def read_json(text: str, content_type: str, where: str) -> JsonObject:
    """Return the object in the body of a 200 answer. Raises `NetworkFailed` for a body that is cut
    off and `NotAReply` for one that is not a JSON object.
    """
    try:
        body = parse_json(text)
    except ValueError as error:
        shown = one_line(text, _MAX_SAID)
        if "json" not in content_type:
            content = f"{content_type or 'text'}: {shown}" if shown else "an empty body."
            raise NotAReply(
                redact(f"{where} answered with {content}"),
                hint="Check the base_url: it usually ends in /v1.",
                usage=Usage(calls=1),
            ) from error
        if "EOF while parsing" in str(error):
            raise NetworkFailed(
                f"The answer of {where} broke off after {len(text)} characters."
            ) from error
        raise NotAReply(
            redact(f"{where} answered with JSON that cannot be read ({error}): {shown}")
        ) from error
    if not isinstance(body, dict):
        shown = one_line(text, _MAX_SAID)
        raise NotAReply(redact(f"{where} answered with JSON that is no reply: {shown}"))
    return body


def provider_message(body: Any) -> str:
    """Return the provider's own words in an error body."""
    if not isinstance(body, Mapping):
        text = str(body or "")[:_MAX_SEARCHED]
        return one_line(re.sub(r"<[^<>]*>", " ", text), _MAX_SAID)
    inner = body.get("error", body.get("base_resp", body))
    if isinstance(inner, Mapping):
        words = [inner.get(name) for name in ("message", "status_msg", "detail", "msg")]
        inner = next((word for word in words if word), inner)
    return one_line(inner if isinstance(inner, str) else _as_text(inner), _MAX_SAID)


def _as_text(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, default=str)


def _kind(status: int, words: str) -> type[ModelError]:
    named = next(
        (error for pattern, error in _BY_WORDS if re.search(pattern, words, re.IGNORECASE)), None
    )
    by_status = _BY_STATUS.get(status) or (Overloaded if status >= 500 else None)
    if by_status is None:
        return named or BadRequest
    return named if named is not None and named in _FINER[by_status] else by_status


def _retry_after(headers: Mapping[str, str], text: str) -> float | None:
    """Return the seconds to wait, from the header (milliseconds, seconds or a date) or from the
    words `try again in 2.5s`; None when there is neither.
    """
    if millis := _number(headers.get("retry-after-ms")):
        return millis / 1000
    value = headers.get("retry-after", "")
    if (seconds := _number(value)) is not None:
        return seconds
    if (when := _date(value)) is not None:
        # Use the server's clock where it sends one: ours may be off.
        now = _date(headers.get("date", "")) or datetime.now(UTC)
        return max(0.0, (when - now).total_seconds())
    match = _TRY_AGAIN_IN.search(text)
    return float(match[1]) / (1000 if match[2] == "ms" else 1) if match else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _date(text: str) -> datetime | None:
    try:
        when = parsedate_to_datetime(text)
        return when if when.tzinfo else when.replace(tzinfo=UTC)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
