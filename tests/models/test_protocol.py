"""A request's fingerprint is its key in the journal. If it changed, runs of earlier versions would
pay again.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from skillfit.models import Request
from skillfit.models.protocol import Image, Message, Tool, ToolCall


def request(**more) -> Request:
    messages = (
        Message("system", "Follow."),
        Message(
            "user",
            "Größe \u2028 🚀",
            images=(Image(Path("a/b.png")),),
            tool_calls=(ToolCall("1", "n", "{}"),),
        ),
    )
    tools = (Tool("look", "Look", MappingProxyType({"b": 1, "a": [1, (2,)]})),)
    return Request(
        messages,
        "rollout",
        tools,
        schema={"z": 1, "a": {"y": None}},
        temperature=0.5,
        seed=3,
        **more,
    )


def test_fingerprints_equal_those_of_earlier_versions():
    assert (
        request().fingerprint()
        == "4dadc3782536fa98c182d99d7411002785cbb4f400cdf26a803840717abc8e58"
    )


def test_fingerprints_differ_by_purpose():
    assert request(purpose="one").fingerprint() != request(purpose="two").fingerprint()
