"""One word for every failure."""

from __future__ import annotations

import pytest

from skillfit.errors import Exit
from skillfit.models.failures import classify
from skillfit.models.protocol import (
    AuthFailed,
    BadRequest,
    ContextTooLong,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    Refused,
    TimedOut,
)


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
def test_status_and_words_give_the_kind(status, body, kind):
    error = classify(status, body, {}, "openai/m at http://localhost")
    assert type(error) is kind
    assert error.exit_code is Exit.INFRASTRUCTURE
    assert str(status) in error.message


@pytest.mark.parametrize(
    ("headers", "said", "seconds"),
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
def test_how_long_to_wait_is_read_in_every_form(headers, said, seconds):
    assert classify(429, {"error": {"message": said}}, headers, "m").retry_after == seconds


def test_an_html_page_is_told_without_its_tags():
    assert (
        "502 Bad Gateway"
        in classify(502, "<html><h1>502  Bad\nGateway</h1></html>", {}, "m").message
    )
    assert "<" not in classify(502, "<html><h1>502 Bad Gateway</h1></html>", {}, "m").message
