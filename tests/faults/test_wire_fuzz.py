"""Nothing a server sends can crash the client or block a run.

Thousands of mutated replies per protocol. A failing case names its seed and number;
`SKILLFIT_FUZZ_SEED=… SKILLFIT_FUZZ_CASES=… pytest tests/faults/test_wire_fuzz.py` repeats it.
`make torture` runs many more, with a new seed each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response

import skillfit
from skillfit.errors import Exit, SkillfitError
from skillfit.models import ask
from skillfit.models.failures import POLICIES
from skillfit.models.protocol import ModelError, Reply
from skillfit.models.providers.practice import practice_answer, practice_reply
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.optimize import optimizer
from tests.models.clocks_and_meters import CappedMeter, say, to
from tests.support.chat_server import (
    Call,
    ChatServer,
    anthropic_message,
    completion,
    openai_response,
)
from tests.support.fuzz_server import fuzz_server
from tests.support.mutations import as_json, mutated_http, mutated_reply, mutated_value

SEED = os.environ.get("SKILLFIT_FUZZ_SEED", "1")
CASES = int(os.environ.get("SKILLFIT_FUZZ_CASES", "1000"))
RUNS = max(2, CASES // 1000)
AT_ONCE = 32

TEXT = '{"edits": [{"op": "append", "content": "- Be brief."}], "reasoning": "so"}'
TOOL = {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
PROTOCOLS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "chat": (
        {"id": "openai/gpt-4o"},
        [
            completion({"content": TEXT}, "m"),
            completion({"content": [{"type": "text", "text": TEXT}]}, "m"),
            completion({"content": None, "tool_calls": [TOOL]}, "m", "tool_calls"),
            completion({"content": "<think>so</think>four"}, "m", "length"),
            {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}},
        ],
    ),
    "responses": (
        {"id": "openai/gpt-4o", "options": {"api": "responses"}},
        [
            openai_response(TEXT, "m"),
            openai_response(
                {
                    "output": [
                        {"type": "reasoning", "summary": [], "content": []},
                        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                    ],
                    "status": "incomplete",
                    "incomplete_details": {"reason": "max_output_tokens"},
                },
                "m",
            ),
            openai_response({"status": "failed", "error": {"code": "x", "message": "y"}}, "m"),
        ],
    ),
    "anthropic": (
        {"id": "anthropic/claude-sonnet", "environ": {"ANTHROPIC_API_KEY": "key-123456"}},
        [
            anthropic_message(TEXT, "m"),
            anthropic_message(
                {
                    "content": [
                        {"type": "thinking", "thinking": "so", "signature": "x"},
                        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                    ],
                    "stop_reason": "tool_use",
                },
                "m",
            ),
            {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
        ],
    ),
}
_RECORD = TypeAdapter(Reply)


def check(result: object, case: str) -> str:
    """What came is a usable reply or a typed failure; returns its kind."""
    if isinstance(result, ModelError):
        assert result.kind in POLICIES, case
        assert len(str(result)) < 5000, case
        usage = result.usage
    else:
        assert isinstance(result, Reply), f"{case}: {result!r}"
        assert _RECORD.validate_json(_RECORD.dump_json(result)) == result, case
        assert result.text.strip() or result.tool_calls, case
        usage = result.usage
    counts = (usage.calls, usage.input, usage.output, usage.cached, usage.written, usage.reasoning)
    assert all(isinstance(count, int) and count >= 0 for count in counts), case
    assert usage.cached + usage.written <= usage.input, case
    assert usage.usd is not None and 0 <= usage.usd < 1e6, case
    return result.kind if isinstance(result, ModelError) else "reply"


@pytest.mark.parametrize("layer", ["json", "http"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_mutated_reply_is_a_reply_or_a_typed_failure(
    protocol: str, layer: str, record_property: Callable[[str, int], None]
) -> None:
    record_property("mutated replies", CASES)
    spec, replies = PROTOCOLS[protocol]
    sent: Counter[str] = Counter()

    def answer(path: str, body: dict[str, Any]) -> bytes:
        case = re.findall(r"case (\d+)", json.dumps(body))[-1]
        sent[case] += 1
        luck = random.Random(f"{SEED}/{protocol}/{layer}/{case}/{sent[case]}")
        reply = luck.choice(replies)
        if layer == "http":
            return mutated_http(as_json(reply), luck)
        data = mutated_reply(reply, luck)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        return f"{head}\r\n\r\n".encode() + data

    meter, kinds = CappedMeter(), Counter[str]()
    async with fuzz_server(answer) as root:
        url = root if protocol == "anthropic" else f"{root}/v1"
        model = to(url, meter=meter, retries=1, timeout=20, concurrency=AT_ONCE, **spec)
        for start in range(0, CASES, AT_ONCE):
            numbers = range(start, min(CASES, start + AT_ONCE))
            calls = [model.complete(say(f"case {number}")) for number in numbers]
            results = await asyncio.gather(*calls, return_exceptions=True)
            for number, result in zip(numbers, results, strict=True):
                kinds[check(result, f"seed {SEED}, {protocol}/{layer} case {number}")] += 1
        await model.close()
    assert meter.open == 0 and model.limiter.in_flight == 0
    broken = kinds["bad_reply"] + kinds["not_a_reply"] + kinds["network"]
    assert kinds["reply"] > CASES / 50 and broken > CASES / 10
    assert kinds["timeout"] < CASES / 50


FORMS: dict[str, type[BaseModel]] = {
    "reflect": optimizer.ANALYST_REPLY["patch"],
    "reflect suggestions": optimizer.ANALYST_REPLY["rewrite_from_suggestions"],
    "reflect rewrite": optimizer.ANALYST_REPLY["full_rewrite_minibatch"],
    "merge": optimizer.PATCH_REPLY["patch"],
    "rank": optimizer.RankReply,
    "learning rate": optimizer.LearningRateReply,
    "rewrite": optimizer.RewriteReply,
    "slow_update": optimizer.SlowUpdateReply,
    "meta_skill": optimizer.MetaSkillReply,
    "consolidate": optimizer.NotesReply,
    "diagnose": optimizer.DiagnosisReply,
}
GOOD: dict[str, Any] = {
    "reasoning": "so",
    "patch": {
        "reasoning": "so",
        "edits": [{"op": "append", "target": "", "content": "- Be brief.", "sources": [1]}],
        "revise_suggestions": [{"type": "add_rule", "title": "a", "instruction": "b"}],
        "skill_candidates": [{"title": "a", "change_summary": ["b"], "new_skill": "# c"}],
    },
    "edits": [{"op": "append", "target": "", "content": "- Be brief."}],
    "failure_summary": [{"failure_type": "a", "count": 2, "description": "b", "items": ["1"]}],
    "selected_indices": [0, 2, 1],
    "learning_rate": 2,
    "confidence": "high",
    "risk_notes": ["none"],
    "change_summary": ["a"],
    "new_skill": "# A skill",
    "slow_update_content": "Rules.",
    "meta_skill_content": "Advice.",
    "notes": ["a"],
    "instruction": "Say why.",
}


@pytest.mark.parametrize("stage", FORMS)
async def test_a_mutated_stage_reply_is_read_or_a_bad_reply(
    stage: str, record_property: Callable[[str, int], None]
) -> None:
    record_property("mutated optimizer answers", CASES // 5)
    form, read = FORMS[stage], 0
    for number in range(CASES // 5):
        case = f"{SEED}/{stage}/{number}"
        luck = random.Random(case)

        def text(luck: random.Random = luck) -> str:
            data = (
                mutated_reply(GOOD, luck)
                if luck.random() < 0.6
                else as_json(mutated_value(GOOD, luck))
            )
            reply_text = data.decode("utf-8", "replace")
            return luck.choice(
                (reply_text, f"```json\n{reply_text}\n```", f"Sure! {reply_text} Done.")
            )

        try:
            value = await ask(ScriptedModel([text(), text()]), say("x"), form)
        except ModelError as error:
            assert error.kind in POLICIES, case
            continue
        read += 1
        assert form.model_validate_json(value.model_dump_json()) is not None, case
    assert read > CASES / 50


ROWS = [
    {"id": f"{number:02d}", "input": f"Ticket {number}: {text}", "answer": label}
    for number, (text, label) in enumerate(
        [
            ("the invoice shows a refund twice", "billing"),
            ("my password does not work", "account"),
            ("the parcel came broken", "delivery"),
            ("I was charged again", "billing"),
            ("the login page is empty", "account"),
            ("the courier never came", "delivery"),
        ]
        * 4
    )
]
SKILL = """# Triage

Answer with the label alone, in lower case.

- Mentions of refund mean billing.
"""
SMALL = {
    "train.num_epochs": 2,
    "train.batch_size": 6,
    "optimizer.proposer": "reflect",  # the practice optimizer answers its stages
    "evaluation.ship_test": False,
    "evaluation.preflight": False,
    "model.concurrency": 8,
}


class Mutating:
    """The practice models behind a server that mutates a share of their replies."""

    def __init__(self, seed: str, share: float) -> None:
        self.seed, self.share = seed, share

    def __call__(self, call: Call) -> Response:
        texts = [(message["role"], message["content"] or "") for message in call.body["messages"]]
        prompt = "\n\n".join(text for _, text in texts)
        if call.body["model"] == "optimizer":
            reply_text = practice_reply(call.stage, prompt)
        else:
            skill = "\n".join(text for role, text in texts if role == "system")
            task = "\n".join(text for role, text in texts if role == "user")
            reply_text = practice_answer(skill, task, int(call.body.get("seed") or 0))
        luck = random.Random(f"{self.seed}/{prompt}/{call.number}")
        spoilt = luck.random() < self.share and call.stage != "probe"
        if spoilt and luck.random() < 0.5 and reply_text.startswith("{"):
            reply_text = as_json(mutated_value(json.loads(reply_text), luck)).decode(
                "utf-8", "replace"
            )
            spoilt = False
        reply = completion({"content": reply_text}, "m")
        data = mutated_reply(reply, luck) if spoilt else as_json(reply)
        return Response(data, media_type="application/json")


@pytest.mark.parametrize("number", range(RUNS))
async def test_a_run_on_a_mutating_server_ends_with_a_verdict_or_can_be_resumed(
    number: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    script = Mutating(f"{SEED}/run/{number}", 0.3)
    with ChatServer(script) as server:

        async def train() -> str:
            run = await skillfit.train_async(
                skill=skillfit.Skill.from_text(SKILL),
                tasks=ROWS,
                run=tmp_path / "run",
                settings={
                    "model.agent": {"id": "openai/agent", "base_url": server.url},
                    "model.optimizer": {"id": "openai/optimizer", "base_url": server.url},
                    "env.grader": "exact",
                    **SMALL,
                },
            )
            return run.finish_reason

        try:
            reason = await train()
        except SkillfitError as stopped:
            assert stopped.exit_code in (Exit.INFRASTRUCTURE, Exit.BUDGET), stopped
            script.share = 0.0
            reason = await train()
    assert reason in ("improved", "no_improvement", "inconclusive"), f"seed {script.seed}"
