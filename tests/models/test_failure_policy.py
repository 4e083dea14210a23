"""Which failures exist, what is done about each, and how a provider's answer is mapped to one."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import skillfit
from skillfit.agents.cli_programs import FailureKind
from skillfit.errors import Exit, TaskFailure
from skillfit.models.failures import (
    INFRASTRUCTURE,
    LONGEST_PAUSE,
    POLICIES,
    can_be_lost,
    classify,
    is_infrastructure,
    is_unreachable,
    is_unusable,
    make_failure,
    may_retry,
    policy,
    policy_of,
    why_stop,
)
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
)
from skillfit.rollout.engine import WorkerLost


def openai_error(message: str, code: str = "") -> dict[str, dict[str, str]]:
    return {"error": {"message": message, "code": code}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (
            400,
            openai_error(
                "This model's maximum context length is 128000 tokens", "context_length_exceeded"
            ),
            ContextTooLong,
        ),
        (
            400,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 210000 tokens",
                },
            },
            ContextTooLong,
        ),
        (
            400,
            openai_error(
                "the request exceeds the available context size", "exceed_context_size_error"
            ),
            ContextTooLong,
        ),
        (413, "", ContextTooLong),
        (400, openai_error("The response was filtered", "content_filter"), Refused),
        (400, {"code": "data_inspection_failed", "message": "inappropriate content"}, Refused),
        (
            400,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "Your credit balance is too low",
                },
            },
            QuotaExhausted,
        ),
        (
            429,
            openai_error("You exceeded your current quota", "insufficient_quota"),
            QuotaExhausted,
        ),
        (402, openai_error("pay first"), QuotaExhausted),
        (429, openai_error("Rate limit reached for gpt-4o"), RateLimited),
        (401, openai_error("bad key"), AuthFailed),
        (403, openai_error("Country not supported"), AuthFailed),
        (400, {"message": "Not logged in · Please run /login"}, AuthFailed),
        (404, openai_error("The model `gpt-9` does not exist", "model_not_found"), BadRequest),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "extra"}]}, BadRequest),
        (400, openai_error("bad value"), BadRequest),
        (500, openai_error("server had an error"), Overloaded),
        (503, {"error": {"message": "Loading model", "type": "unavailable_error"}}, Overloaded),
        (
            529,
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            Overloaded,
        ),
        (500, openai_error("Invalid authentication backend hiccup"), Overloaded),
        (408, "", TimedOut),
        (504, "<html>Gateway Timeout</html>", TimedOut),
    ],
)
def test_status_and_message_give_the_kind(status, body, kind):
    error = classify(status, body, {}, "openai/m at http://localhost")
    assert type(error) is kind
    assert error.exit_code is Exit.INFRASTRUCTURE
    assert str(status) in error.message


@pytest.mark.parametrize(
    ("headers", "text", "seconds"),
    [
        ({"retry-after": "12"}, "", 12),
        ({"retry-after": "0.5"}, "", 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, "", 0.25),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:29:00 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            "",
            60,
        ),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:27:00 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            "",
            0,
        ),
        ({}, "Rate limit reached. Please try again in 20s.", 20),
        ({}, "Please try again in 340ms.", 0.34),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "-5"}, "", None),
        ({"retry-after": "nan"}, "", None),
        ({}, "", None),
    ],
)
def test_retry_after_is_read_in_every_format(headers, text, seconds):
    assert classify(429, {"error": {"message": text}}, headers, "m").retry_after == seconds


def test_an_html_error_page_is_reported_without_tags():
    assert (
        "502 Bad Gateway"
        in classify(502, "<html><h1>502  Bad\nGateway</h1></html>", {}, "m").message
    )
    assert "<" not in classify(502, "<html><h1>502 Bad Gateway</h1></html>", {}, "m").message


def all_errors(error: type[ModelError] = ModelError) -> list[type[ModelError]]:
    return [error, *(each for sub in error.__subclasses__() for each in all_errors(sub))]


def test_every_failure_of_a_model_has_a_policy():
    ours = [error for error in all_errors() if error.__module__.startswith("skillfit.models")]
    assert len(ours) > 10
    assert {error.kind for error in ours} <= set(POLICIES)


def raised_kinds(path: Path) -> Iterator[str]:
    """The kinds that a module passes to the classes and functions that make failures."""
    for call in ast.walk(ast.parse(path.read_text())):
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func)
        arguments = [word.value for word in call.keywords if word.arg == "kind"]
        if name in ("TaskFailure", "make_failure", "classify_service"):
            arguments += call.args[:1]
        elif name not in ("AgentFailure", "call_user_code"):
            continue
        for part in (part for argument in arguments for part in ast.walk(argument)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def test_every_kind_that_the_package_raises_has_a_policy():
    package = Path(skillfit.__file__).parent
    kinds = {kind for path in package.rglob("*.py") for kind in raised_kinds(path)}
    kinds |= set(get_args(FailureKind)) | {WorkerLost.kind}
    assert {"evaluate", "grader", "limit", "sandbox", "worker"} <= kinds
    assert kinds - set(POLICIES) == set()


def asked_classes(source: str) -> Iterator[tuple[str, str]]:
    """What a module decides by: `except`, `case`, `isinstance` or the like, with a class."""
    for node in ast.walk(ast.parse(source)):
        how, asked = "", list[ast.expr]()
        if isinstance(node, ast.Call):
            how = ast.unparse(node.func).rpartition(".")[2]
            asked = node.args if how in ("isinstance", "issubclass", "suppress") else []
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            how, asked = "except", [node.type]
        elif isinstance(node, ast.MatchClass):
            how, asked = "case", [node.cls]
        for part in (part for argument in asked for part in ast.walk(argument)):
            if isinstance(part, ast.Name | ast.Attribute):
                yield how, ast.unparse(part).rpartition(".")[2]


DECIDED_BY_CLASS = {
    # Providers replace the failure by a more exact one.
    "models/providers/anthropic.py: except BadRequest",
    "models/providers/openai_protocols.py: except BadRequest",
    # Not a failure: the run waits for an answer, and the error names the prompts.
    "cli/compare.py: except AnswerPending",
    "cli/draft.py: except AnswerPending",
    "cli/interrupts.py: except AnswerPending",
    "cli/train.py: except AnswerPending",
    "plugins/compare/peers.py: except AnswerPending",
    "training/assemble.py: except AnswerPending",
    "training/start.py: except AnswerPending",
}


def test_other_modules_use_the_policy_and_not_the_class_of_a_failure():
    package = Path(skillfit.__file__).parent
    classes = {error.__name__ for error in all_errors()} - {"ModelError"}
    asked = {
        f"{path.relative_to(package).as_posix()}: {how} {name}"
        for path in package.rglob("*.py")
        for how, name in asked_classes(path.read_text())
        if name in classes
    }
    assert asked == DECIDED_BY_CLASS


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(failure, ModelError | Refused)",
        "with contextlib.suppress(protocol.Refused): pass",
        "try: pass\nexcept (ValueError, Refused): pass",
        "try: pass\nexcept protocol.Refused as error: raise",
        "match failure:\n    case Refused(): pass",
    ],
)
def test_every_kind_of_check_of_a_failures_class_is_found(code):
    assert "Refused" in {name for _, name in asked_classes(code)}


def test_a_probe_passes_only_when_a_model_answered():
    assert policy_of(BadReply("empty")).answered and policy_of(CutOff("long")).answered
    others = (NotAReply("a web page"), Refused("no"), AuthFailed("bad key"), NetworkFailed("reset"))
    assert not any(policy_of(failure).answered for failure in others)


def test_every_kind_has_a_meaning():
    assert [kind for kind, found in POLICIES.items() if not found.meaning] == []


def test_no_failure_is_both_fatal_and_retried_or_lost():
    fatal = {kind for kind in POLICIES if policy(kind).fatal}
    assert fatal == {"auth", "quota", "config"}
    assert not any(
        policy(kind).retry != "never" or can_be_lost(kind) or is_infrastructure(kind)
        for kind in fatal
    )


def test_lost_replies_are_unusable_or_unreachable():
    unusable, unreachable = (
        set(filter(is_so, POLICIES)) for is_so in (is_unusable, is_unreachable)
    )
    assert unusable == {"bad_reply", "cut_off", "refused", "context_too_long"}
    assert {"rate_limit", "overloaded", "network", "timeout"} <= unreachable
    assert unusable | unreachable == set(filter(can_be_lost, POLICIES))


@pytest.mark.parametrize("kind", POLICIES)
def test_a_failure_can_be_rebuilt_from_its_kind(kind):
    failure = make_failure(kind, "again", hint="Wait.")
    assert (failure.kind, str(failure)) == (kind, "again Wait.")
    assert policy_of(failure) == policy(kind)
    assert type(make_failure("timeout", "again")) is TimedOut


def test_infrastructure_failures_are_not_evidence_about_the_skill():
    calls = {"rate_limit", "overloaded", "network", "timeout", "not_a_reply"}
    assert calls | {"worker", "sandbox", "docker", "search"} == INFRASTRUCTURE
    assert not is_infrastructure("refused") and not is_infrastructure("bad_reply")


def test_failure_kinds_of_user_code_fail_only_the_rollout():
    assert policy("my_grader") == policy("agent")
    assert policy("my_grader").retry == "never" and not policy("my_grader").fatal


def test_a_call_is_retried_as_often_as_the_policy_and_the_model_allow():
    def repeats(failure: ModelError | TaskFailure, retries: int | None) -> int:
        return next(n for n in range(100) if n == 50 or not may_retry(failure, n + 1, retries))

    assert repeats(RateLimited("slow down"), 5) == 5
    assert repeats(RateLimited("slow down", retry_after=LONGEST_PAUSE), 5) == 5
    assert repeats(RateLimited("tomorrow", retry_after=LONGEST_PAUSE + 1), 5) == 0
    assert repeats(BadReply("empty"), 5) == 2
    assert repeats(BadReply("empty"), 1) == 1
    assert repeats(Refused("no"), 5) == repeats(BadRequest("no such model"), 5) == 0
    assert repeats(ParameterDropped("left out"), 0) == 50  # the request changes each time
    assert repeats(TaskFailure("search", "busy"), None) == 2
    assert repeats(TaskFailure("grader", "KeyError"), None) == 0


def test_task_code_is_retried_only_when_its_environment_failed():
    program, command = make_failure("command", "exit 1"), TaskFailure("command", "exit 1")
    assert policy_of(program).rollout_retries == 1 and policy_of(command).rollout_retries == 0
    assert policy_of(TaskFailure("docker", "busy")).rollout_retries == 1


def test_what_was_never_sent_is_not_billed():
    billed = {
        type(failure): policy_of(failure).billed
        for failure in (NotReached("no route"), NetworkFailed("reset"), RateLimited("slow down"))
    }
    assert billed == {NotReached: "nothing", NetworkFailed: "at_most", RateLimited: "one_call"}


TOO_FEW = "11 of 100 planned rollouts failed: a coverage of 90% cannot be reached."


@pytest.mark.parametrize(
    ("failed", "scored", "proven", "why"),
    [
        ({"network": 4}, 0, True, ""),
        ({"network": 5}, 0, True, "The first 5 rollouts all failed (network)."),
        ({"grader": 5}, 0, True, ""),
        ({"grader": 5}, 0, False, "The first 5 rollouts all failed (grader)."),
        ({"grader": 4, "network": 1}, 0, False, ""),
        ({"network": 5}, 1, True, ""),
        (
            {"search": 11},
            1,
            True,
            "11 of 100 planned rollouts failed: a coverage of 90% cannot be reached.",
        ),
        ({"grader": 60}, 1, True, ""),
    ],
)
def test_failures_that_the_skill_cannot_cause_stop_the_run(failed, scored, proven, why):
    counts = Counter(failed)
    latest = next(iter(failed))
    stop = why_stop(counts, latest, scored=scored, planned=100, coverage_floor=0.9, proven=proven)
    assert stop == why


@pytest.mark.parametrize(
    "text",
    [
        "try again in 1.2.3s",
        "try again in s",
        "<" * 60_000,
        "<a" * 30_000 + ">",
        "rate limit " * 10_000,
        "\x1b[2J" * 100,
    ],
    ids=lambda text: f"{text[:12]!r}",
)
@pytest.mark.timeout(30)
def test_any_error_text_of_a_provider_is_classified(text):
    for body in (text, {"error": {"message": text}}, {"error": text}, {"message": [text] * 3}):
        error = classify(429, body, {"retry-after": text[:100]}, "m")
        assert isinstance(error, ModelError) and len(error.message) < 1500


@pytest.mark.parametrize("code", [None, True, -1, 10**400, "429", [], {}])
def test_any_error_code_in_a_body_is_accepted(code):
    assert isinstance(classify(500, {"error": {"code": code}}, {}, "m"), Overloaded)
