"""What tokens cost, and the most a request can cost.

Prices come from the config (`model.prices`), then from the few rows in `prices.json`, then from the
offline table of the `genai-prices` package. A model that none of them has is unpriced: a budget in
dollars is refused for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from skillfit.errors import InputError
from skillfit.models.protocol import Request, Usage
from skillfit.models.registry import find_provider, split_id

if TYPE_CHECKING:
    from decimal import Decimal

    from genai_prices.types import ModelInfo, TieredPrices

    _Rates = Mapping[str, Decimal | TieredPrices | None]  # by the names of genai-prices

DEFAULT_CONTEXT = 128_000
IMAGE_TOKENS = 16_384  # the most one image costs, except for the models in prices.json
_FIELDS = frozenset({"input", "output", "cached", "written"})
_REASONING = re.compile(r"(o\d|gpt-([5-9]|\d\d))\b(?!.*chat)")
_PER_MESSAGE = 16  # tokens of framing around one message; real framing has fewer


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens. `cached` is for input read from the provider's prompt cache,
    `written` for input written to it. `above` holds the prices of requests with more input tokens
    than a threshold, with the highest threshold first.
    """

    input: float
    output: float
    cached: float
    written: float
    above: tuple[tuple[int, Price], ...] = ()

    def cost(self, usage: Usage) -> float:
        price = self._at(usage.input)
        fresh = usage.input - usage.cached - usage.written
        paid = (
            fresh * price.input
            + usage.cached * price.cached
            + usage.written * price.written
            + usage.output * price.output
        )
        return paid / 1_000_000

    def most(self, input_tokens: int, output_tokens: int) -> float:
        """Return the most that a request with at most this many tokens can cost."""
        price = self._at(input_tokens)
        input_price = max(price.input, price.cached, price.written)
        return (input_tokens * input_price + output_tokens * price.output) / 1_000_000

    def _at(self, input_tokens: int) -> Price:
        return next((price for start, price in self.above if input_tokens > start), self)


FREE = Price(0, 0, 0, 0)


class Prices:
    """The prices of a run. `overrides`: {model: {input, output, cached, written}} from the config;
    they win over the tables.
    """

    def __init__(self, overrides: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._configured = {
            name: _configured_price(name, row) for name, row in (overrides or {}).items()
        }
        self._found: dict[str, Price | None] = {}

    def of(self, model_id: str) -> Price | None:
        """Return the price of `provider/name`, None when unknown. `model.prices` may name the id or
        the name alone.
        """
        if model_id not in self._found:
            self._found[model_id] = self._find(model_id)
        return self._found[model_id]

    def _find(self, model_id: str) -> Price | None:
        for key in (model_id, split_id(model_id)[1]):
            if key in self._configured:
                return self._configured[key]
        known = find_provider(model_id)
        if known is not None and known.free:
            return FREE
        return _listed_price(model_id)

    def priced(self, model_id: str, usage: Usage) -> Usage:
        """Return `usage` with its dollars: by the price, else as a program reported them itself,
        else None.
        """
        price = self.of(model_id)
        return replace(usage, usd=price.cost(usage) if price else usage.usd or None)

    def upper_bound(self, model_id: str, request: Request, max_tokens: int) -> Usage:
        """Return the most one attempt can use and cost."""
        price = self.of(model_id)
        tokens = input_bound(request, model_id)
        usd = price.most(tokens, max_tokens) if price else None
        return Usage(calls=1, input=tokens, output=max_tokens, usd=usd)


@cache
def context_window_of(model_id: str) -> int:
    """Return how many tokens fit in one request and its reply; a common size for unknown models."""
    name, listed = _bare_name(model_id), _listed(model_id)
    row = _table().models.get(name)
    in_table = _table().context_windows.get(name) or (row.context if row else None)
    return int(in_table or (listed and listed.context_window) or DEFAULT_CONTEXT)


@cache
def is_reasoning(model_id: str) -> bool:
    """Return whether this is a reasoning model of OpenAI. Those have other parameter names, take no
    temperature, and their thinking counts as output.
    """
    return _REASONING.match(model_id.rsplit("/", 1)[-1].lower()) is not None


def input_bound(request: Request, model_id: str) -> int:
    """Return an upper bound of the input tokens: no tokenizer makes more tokens of a text than the
    text has UTF-8 bytes.
    """
    text = 0
    for message in request.messages:
        text += len(message.content.encode())
        text += sum(len(call.name + call.arguments) * 4 + 32 for call in message.tool_calls)
    schemas: list[Any] = [
        {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
        for tool in request.tools
    ]
    if request.schema:
        schemas.append(dict(request.schema))
    schema_bytes = len(json.dumps(schemas, ensure_ascii=False).encode()) if schemas else 0
    images = sum(len(message.images) for message in request.messages)
    per_image = _table().image_tokens.get(_bare_name(model_id), IMAGE_TOKENS) if images else 0
    # Room for the words around a schema in the prompt and around each tool.
    framing = _PER_MESSAGE * (len(request.messages) + 2) + 256 * len(schemas)
    return text + 2 * schema_bytes + images * int(per_image) + framing


def full_name(name: str) -> str:
    """Return the model's name, with aliases such as `claude-sonnet` replaced by the model they
    mean.
    """
    return _table().aliases.get(name, name)


@dataclass(frozen=True, slots=True)
class _TableRow:
    """Dollars per million tokens, and the context window in tokens."""

    input: float
    output: float
    context: int


@dataclass(frozen=True, slots=True)
class _PriceTable:
    """prices.json: what genai-prices does not have."""

    note: str
    aliases: dict[str, str]
    models: dict[str, _TableRow]
    context_windows: dict[str, int]
    image_tokens: dict[str, int]


@cache
def _table() -> _PriceTable:
    data = resources.files("skillfit.models").joinpath("prices.json").read_bytes()
    table: _PriceTable = TypeAdapter(_PriceTable).validate_json(data)
    return table


def _bare_name(model_id: str) -> str:
    """Return the name without provider and variant: `openrouter/openai/gpt-5-mini:free` ->
    gpt-5-mini.
    """
    return full_name(model_id.rsplit("/", 1)[-1].partition(":")[0].lower())


@cache
def _listed(model_id: str) -> ModelInfo | None:
    """Return the model's row in genai-prices: of its own vendor, else of any vendor with that
    name.
    """
    from genai_prices.data_snapshot import get_snapshot

    known, (_, name) = find_provider(model_id), split_id(model_id)
    bare = _bare_name(model_id)
    tried = [(full_name(name), known.priced_as)] if known is not None and known.priced_as else []
    for reference, vendor in [*tried, (bare, None)]:
        try:
            return get_snapshot().find_provider_model(reference, None, vendor, None)[1]
        except LookupError:
            continue
    return None


def _listed_price(model_id: str) -> Price | None:
    row = _table().models.get(_bare_name(model_id))
    if row:
        return Price(row.input, row.output, row.input, row.input)
    listed = _listed(model_id)
    if listed is None:
        return None
    rates: _Rates = vars(listed.get_prices(datetime.now(UTC)))
    if rates.get("input_mtok") is None or rates.get("output_mtok") is None:
        return None
    tiers = {tier.start for rate in rates.values() for tier in getattr(rate, "tiers", ())}
    above = [(start, _price_at(rates, start + 1)) for start in sorted(tiers, reverse=True)]
    return replace(_price_at(rates, 0), above=tuple(above))


def _price_at(rates: _Rates, input_tokens: int) -> Price:
    """Return the price of a request with this many input tokens."""
    from genai_prices.types import TieredPrices

    def rate(name: str, otherwise: float) -> float:
        value = rates.get(name)
        if value is None:
            return otherwise
        if not isinstance(value, TieredPrices):
            return float(value)
        for tier in reversed(value.tiers):
            if input_tokens > tier.start:
                return float(tier.price)
        return float(value.base)

    fresh = rate("input_mtok", 0.0)
    return Price(
        input=fresh,
        output=rate("output_mtok", 0.0),
        cached=rate("cache_read_mtok", fresh),
        written=rate("cache_write_mtok", fresh),
    )


def _configured_price(name: str, row: Mapping[str, float]) -> Price:
    """Return a price from the config. Numbers that are negative or not finite would void a
    budget.
    """
    unknown = sorted(set(row) - _FIELDS)
    if unknown or not {"input", "output"} <= set(row):
        given = ", ".join(row) or "nothing"
        raise InputError(
            f"model.prices.{name} needs `input` and `output`, and has {given}.",
            hint="Dollars per million tokens. `cached` and `written` (prompt cache) are optional.",
        )
    for field, value in row.items():
        if not 0 <= value < float("inf"):
            raise InputError(f"model.prices.{name}.{field} is {value}.", hint="Use 0 or more.")
    cached, written = row.get("cached", row["input"]), row.get("written", row["input"])
    return Price(row["input"], row["output"], cached, written)
