"""What tokens cost and how many can fit: a bundled table with its date, and a run's own prices on
top of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from skillfit.errors import InputError
from skillfit.models.protocol import Request, Usage

FREE_PROVIDERS = frozenset({"local", "ollama", "practice", "scripted", "handoff"})
DEFAULT_CONTEXT = 128_000
# the most one image costs at the vendors we know, where the table does not say otherwise
IMAGE_TOKENS = 16_384
_DATED = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest|preview(-\d{2}-\d{2,4})?)$")
_REASONING = re.compile(r"(o\d|gpt-([5-9]|\d\d))\b(?!.*chat)")
_PER_MESSAGE = 16  # tokens of framing around one message, generously


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens. `cached`: read from the provider's prompt cache; `written`: put
    into it.
    """

    input: float
    output: float
    cached: float
    written: float

    def cost(self, usage: Usage) -> float:
        plain = usage.input - usage.cached - usage.written
        paid = (
            plain * self.input
            + usage.cached * self.cached
            + usage.written * self.written
            + usage.output * self.output
        )
        return paid / 1_000_000

    @property
    def dearest_input(self) -> float:
        return max(self.input, self.cached, self.written)


FREE = Price(0, 0, 0, 0)


class Prices:
    """`Prices(overrides)`: the bundled table, extended by {model: {input, cached, output}} from the
    config.
    """

    def __init__(self, overrides: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._own = {name: _price(name, row) for name, row in (overrides or {}).items()}
        self._found: dict[str, Price | None] = {}

    @property
    def date(self) -> str:
        """When the bundled table was last checked."""
        return str(_table()["date"])

    def of(self, model_id: str) -> Price | None:
        """The price of `provider/name`, None when unknown. The run's own entries may name the id or
        the bare name.
        """
        if model_id not in self._found:
            self._found[model_id] = self._find(model_id)
        return self._found[model_id]

    def _find(self, model_id: str) -> Price | None:
        provider, _, name = model_id.partition("/")
        for key in (model_id, name):
            if key in self._own:
                return self._own[key]
        if provider in FREE_PROVIDERS:
            return FREE
        row = _row(name)
        return _price(name, row) if row and "input" in row else None

    def priced(self, model_id: str, usage: Usage) -> Usage:
        """`usage` with its dollars: by the price, else by the word of a program that counts them
        itself, else None.
        """
        price = self.of(model_id)
        return replace(usage, usd=price.cost(usage) if price else usage.usd or None)

    def upper_bound(self, model_id: str, request: Request, max_tokens: int) -> Usage:
        """The most one attempt can cost. No tokenizer makes more tokens of a text than it has UTF-8
        bytes.
        """
        price = self.of(model_id)
        tokens = input_bound(request, model_id)
        usd = (
            (tokens * price.dearest_input + max_tokens * price.output) / 1_000_000
            if price
            else None
        )
        return Usage(calls=1, input=tokens, output=max_tokens, usd=usd)


def price_of(model_id: str) -> Price | None:
    return Prices().of(model_id)


def context_window_of(model_id: str) -> int:
    """Tokens that fit in one request and its reply, for models we know; else a usual size."""
    return int((_row(model_id.partition("/")[2]) or {}).get("context", DEFAULT_CONTEXT))


@cache
def is_reasoning(model_id: str) -> bool:
    """Models of OpenAI that think first: other parameter names, no temperature, and thinking counts
    as output.
    """
    return _REASONING.match(model_id.rsplit("/", 1)[-1].lower()) is not None


def input_bound(request: Request, model_id: str) -> int:
    """An upper bound of the input's tokens."""
    text = sum(
        len(m.content.encode()) + sum(len(c.name + c.arguments) * 4 + 32 for c in m.tool_calls)
        for m in request.messages
    )
    forms = [
        {"name": t.name, "description": t.description, "parameters": dict(t.parameters)}
        for t in request.tools
    ]
    shape = [*forms, dict(request.schema)] if request.schema else forms
    shaped = 2 * len(json.dumps(shape, ensure_ascii=False).encode()) if shape else 0
    images = sum(len(m.images) for m in request.messages)
    per_image = (
        int((_row(model_id.partition("/")[2]) or {}).get("image", IMAGE_TOKENS)) if images else 0
    )
    # A schema asked for in the prompt adds words around it, a tool its own framing: both fit in the
    # allowance.
    framing = _PER_MESSAGE * (len(request.messages) + 2) + 256 * (
        len(request.tools) + (request.schema is not None)
    )
    return text + shaped + images * per_image + framing


@cache
def _table() -> dict[str, Any]:
    text = resources.files("skillfit.models").joinpath("prices.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def full_name(name: str) -> str:
    """`claude-sonnet` and the like stand for the newest model of that line in the table."""
    return str(_table()["aliases"].get(name, name))


@cache
def _row(name: str) -> dict[str, Any] | None:
    """The row of a model, under any vendor's prefix and with any date
    (`openai/gpt-5-mini-2025-08-07` is `gpt-5-mini`).

    No other guesses: a variant we do not know may cost ten times as much.
    """
    bare = full_name(name.rsplit("/", 1)[-1].split(":")[0].lower())
    rows: dict[str, dict[str, Any]] = _table()["models"]
    return rows.get(bare) or rows.get(_DATED.sub("", bare))


def _price(name: str, row: Mapping[str, float]) -> Price:
    unknown = set(row) - {"input", "output", "cached", "written", "context", "image"}
    if unknown or not {"input", "output"} <= set(row):
        raise InputError(
            f"The price of {name} needs `input` and `output` and has {', '.join(row) or 'nothing'}.",
            hint="Dollars per million tokens; `cached` and `written` (prompt cache) may be given too.",
        )
    return Price(
        row["input"],
        row["output"],
        row.get("cached", row["input"]),
        row.get("written", row["input"]),
    )
