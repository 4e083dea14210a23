"""OpenTelemetry traces over OTLP: a run is a span, its steps are in it, their stages in them, with
GenAI attributes.

Ids are made from the run and the event, so what a resumed run tells again is the same span and not
another one.
"""

from __future__ import annotations

import hashlib
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Span, StatusCode, set_span_in_context

from skillfit.run.events import (
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    StepFinished,
    Stored,
)
from skillfit.trackers.metrics import EventMetrics

_WHO = {
    "reflect": "optimizer",
    "aggregate": "optimizer",
    "select": "optimizer",
    "meta_skill": "optimizer",
}


class OpenTelemetry:
    def __init__(self, where: str) -> None:
        self._ids = _Ids()
        provider = TracerProvider(
            id_generator=self._ids, resource=Resource.create({"service.name": "skillfit"})
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=where or None)))
        self._provider, self._tracer = provider, provider.get_tracer("skillfit")
        self._open: dict[str, Span] = {}
        self._started: RunStarted | None = None
        self._done = 0  # steps; the end of an epoch comes behind its last one
        self._meter = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        event, at = stored.event, int(stored.at * 1e9)
        numbers = self._meter(event)
        if isinstance(event, RunStarted):
            self._ids.run, self._started = event.run, event
            self._start(
                "run",
                "",
                at,
                {
                    "gen_ai.workflow.name": "skillfit",
                    "skillfit.run": event.run,
                    **self._model("agent"),
                },
            )
        elif isinstance(event, StageStarted):
            step = f"step {event.step}"
            if event.epoch and event.step > self._done and step not in self._open:
                self._start(
                    step, "run", at, {"skillfit.epoch": event.epoch, "skillfit.step": event.step}
                )
            parent = step if step in self._open else "run"
            told = {"skillfit.stage": event.stage, **self._model(_WHO.get(event.stage, "agent"))}
            self._start(f"{event.stage} {event.step}", parent, at, told)
        elif isinstance(event, StageFinished):
            self._end(f"{event.stage} {event.step}", at, {"skillfit.seconds": event.seconds})
        elif isinstance(event, StepFinished):
            self._done = event.step
            used = {
                "input": numbers["usage/prompt_tokens"],
                "output": numbers["usage/completion_tokens"],
            }
            tokens = {f"gen_ai.usage.{name}_tokens": int(count) for name, count in used.items()}
            self._end(
                f"step {event.step}",
                at,
                {**tokens, "skillfit.action": event.action, **_named(numbers)},
            )
        elif isinstance(event, RunFinished):
            usage = event.summary.usage
            tokens = {
                "gen_ai.usage.input_tokens": usage.input,
                "gen_ai.usage.output_tokens": usage.output,
            }
            self._end(
                "run",
                at,
                {**tokens, "skillfit.finish_reason": event.finish_reason, **_named(numbers)},
            )
            self._provider.force_flush()
        elif numbers and "run" in self._open:
            self._open["run"].add_event(type(event).__name__, _named(numbers), at)

    def _model(self, role: str) -> dict[str, Any]:
        provider, _, name = (
            self._started.model_of(role).partition("/") if self._started else ("", "", "")
        )
        return {"gen_ai.provider.name": provider, "gen_ai.request.model": name} if name else {}

    def _start(self, name: str, parent: str, at: int, attributes: dict[str, Any]) -> None:
        inside = (
            set_span_in_context(self._open[parent], Context())
            if parent in self._open
            else Context()
        )
        self._ids.span = name
        shown = name if name.startswith("step") else name.partition(" ")[0]
        self._open[name] = self._tracer.start_span(
            shown, inside, start_time=at, attributes=attributes
        )

    def _end(self, name: str, at: int, attributes: dict[str, Any]) -> None:
        span = self._open.pop(name, None)
        if span is not None:
            span.set_attributes(attributes)
            if attributes.get("skillfit.finish_reason") == "infrastructure":
                span.set_status(StatusCode.ERROR)
            span.end(at)


class _Ids(IdGenerator):
    run = span = ""

    def generate_trace_id(self) -> int:
        return self._hash("", 16)

    def generate_span_id(self) -> int:
        return self._hash(self.span, 8)

    def _hash(self, name: str, size: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.run}/{name}".encode()).digest()[:size]) or 1


def _named(numbers: dict[str, float]) -> dict[str, float]:
    return {f"skillfit.{name.replace('/', '.')}": number for name, number in numbers.items()}
