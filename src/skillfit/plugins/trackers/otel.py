"""OpenTelemetry traces over OTLP, with the attributes of the GenAI conventions.

A run is a trace: run > step > stage > rollout > model call. Rollouts come from events, model calls
from the journal, which knows the rollout each belongs to.

Span ids are hashes of names, so a resumed run sends the same run, step and stage spans again
instead of new ones. Rollouts and model calls are sent only by the process that made them: a resume
of a large run would otherwise send all of them again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from skillfit.models.registry import split_id
from skillfit.plugins.trackers.trackers import EventMetrics
from skillfit.run.events import (
    RolloutFinished,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    StepFinished,
    Stored,
)
from skillfit.run.journal import Entry, Journal
from skillfit.run.records import StageName
from skillfit.run.store import JOURNAL

Attributes = Mapping[str, str | int | float]  # of a span

_QUEUE = 1 << 16  # spans that wait for the exporter: the rollouts of a quick server come in bursts
_OPTIMIZER_STAGES: tuple[StageName, ...] = (
    "reflect",
    "aggregate",
    "select",
    "update",
    "meta_skill",
)
# The stage that a model call of this name is made in, where it has another name.
_STAGE_OF_CALL = {
    "merge": "aggregate",
    "rank": "select",
    "lr_autonomous": "select",
    "rewrite": "update",
    "diagnose": "reflect",
}


class OpenTelemetryTracker:
    """Sends spans to the given endpoint, or where OTEL_EXPORTER_OTLP_* says. An address without a
    path is that of the collector, as in OTEL_EXPORTER_OTLP_ENDPOINT.
    """

    def __init__(self, where: str, run: Path) -> None:
        self._ids = _NamedIds()
        provider = TracerProvider(
            id_generator=self._ids, resource=Resource.create({"service.name": "skillfit"})
        )
        if where and urlsplit(where).path in ("", "/"):
            where = f"{where.rstrip('/')}/v1/traces"
        exporter = OTLPSpanExporter(endpoint=where or None)
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE))
        self._provider, self._tracer = provider, provider.get_tracer("skillfit")
        self._path = run / JOURNAL
        self._journal: Journal | None = None
        self._began = time.time()
        self._seen = 0  # the last model call that was looked at
        self._open: dict[str, Span] = {}
        self._known: set[str] = set()  # names of all run, step and stage spans
        self._latest: dict[str, str] = {}  # stage -> name of its last span
        self._rollouts: set[str] = set()
        self._started: RunStarted | None = None
        self._steps_done = 0  # the end of an epoch follows its last step
        self._metrics = EventMetrics()

    def __call__(self, stored: Stored) -> None:
        event, at = stored.event, int(stored.at * 1e9)
        numbers = self._metrics(event)
        if isinstance(event, RunStarted):
            self._run_started(event, at)
        elif isinstance(event, StageStarted):
            self._stage_started(event, at)
        elif isinstance(event, RolloutFinished):
            self._rollout_finished(event, stored.at)
        elif isinstance(event, StageFinished):
            self._send_calls()
            self._end(f"{event.stage} {event.step}", at, {"skillfit.seconds": event.seconds})
        elif isinstance(event, StepFinished):
            self._steps_done = event.step
            used = {
                "gen_ai.usage.input_tokens": int(numbers["usage/prompt_tokens"]),
                "gen_ai.usage.output_tokens": int(numbers["usage/completion_tokens"]),
            }
            outcome = {"skillfit.action": event.action, **_attributes(numbers)}
            self._end(f"step {event.step}", at, used | outcome)
        elif isinstance(event, RunFinished):
            self._run_finished(event, at, numbers)
        elif numbers and "run" in self._open:
            self._open["run"].add_event(type(event).__name__, _attributes(numbers), at)

    def close(self) -> None:
        """Send what is waiting. A run that was stopped sends its open spans when it is resumed."""
        if self._started is not None:
            self._send_calls()
        if self._journal is not None:
            self._journal.close()
        self._provider.shutdown()

    def _run_started(self, event: RunStarted, at: int) -> None:
        self._ids.run, self._started = event.run, event
        if self._journal is None and self._path.is_file():
            self._journal = Journal.open_readonly(self._path)
            self._seen = self._journal.newest()
        about = {"gen_ai.workflow.name": "skillfit", "skillfit.run": event.run}
        self._start("run", "", at, {**about, **self._model_of("agent")})

    def _run_finished(self, event: RunFinished, at: int, numbers: dict[str, float]) -> None:
        self._send_calls()
        usage = event.summary.usage
        used = {
            "gen_ai.usage.input_tokens": usage.input,
            "gen_ai.usage.output_tokens": usage.output,
        }
        reason = {"skillfit.finish_reason": event.finish_reason}
        self._end("run", at, {**used, **reason, **_attributes(numbers)})
        self._provider.force_flush()

    def _stage_started(self, event: StageStarted, at: int) -> None:
        step = f"step {event.step}"
        if event.epoch and event.step > self._steps_done and step not in self._open:
            place = {"skillfit.epoch": event.epoch, "skillfit.step": event.step}
            self._start(step, "run", at, place)
        parent = step if step in self._open else "run"
        role = "optimizer" if event.stage in _OPTIMIZER_STAGES else "agent"
        name = self._latest[event.stage] = f"{event.stage} {event.step}"
        self._start(name, parent, at, {"skillfit.stage": event.stage, **self._model_of(role)})

    def _rollout_finished(self, event: RolloutFinished, at: float) -> None:
        """Send the span of a rollout. One that several stages share is a span of the first one."""
        if at < self._began or event.rollout in self._rollouts:
            return
        self._rollouts.add(event.rollout)
        about: dict[str, str | int | float] = {
            "gen_ai.operation.name": "invoke_agent",
            "skillfit.item": event.item,
            "skillfit.repeat": event.repeat,
            "skillfit.skill_hash": event.skill_hash,
            "skillfit.status": event.status,
            **self._model_of("agent"),
        }
        scores = {"skillfit.hard": event.hard, "skillfit.soft": event.soft}
        about |= {name: score for name, score in scores.items() if score is not None}
        parents = (f"{event.phase} {event.step}", f"step {event.step}")
        parent = next((name for name in parents if name in self._known), "run")
        span = self._span("rollout", event.rollout, parent, int((at - event.seconds) * 1e9), about)
        if event.failure:
            span.set_status(StatusCode.ERROR, event.failure)
        span.end(int(at * 1e9))

    def _send_calls(self) -> None:
        """Send the model calls recorded since the last time."""
        if self._journal is None:
            return
        for entry in self._journal.entries("call/", after=self._seen):
            self._seen = entry.seq
            self._send_call(entry)

    def _send_call(self, entry: Entry) -> None:
        provider, model = split_id(entry.model)
        about: dict[str, str | int | float] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
            "gen_ai.usage.input_tokens": entry.usage.input,
            "gen_ai.usage.output_tokens": entry.usage.output,
            "skillfit.role": entry.role,
            "skillfit.stage": entry.stage,
            "skillfit.attempts": entry.usage.calls,
        }
        if entry.usage.usd is not None:
            about["skillfit.usd"] = entry.usage.usd
        parent = entry.parent
        if not parent:
            stage = entry.stage.partition(".")[0]
            parent = self._latest.get(_STAGE_OF_CALL.get(stage, stage), "run")
        began = int(entry.at * 1e9)
        span = self._span(f"chat {model}", entry.key, parent, began, about, SpanKind.CLIENT)
        span.end(int((entry.at + entry.seconds) * 1e9))

    def _model_of(self, role: str) -> Attributes:
        if self._started is None:
            return {}
        provider, name = split_id(self._started.model_of(role))
        return {"gen_ai.provider.name": provider, "gen_ai.request.model": name} if name else {}

    def _start(self, name: str, parent: str, at: int, attributes: Attributes) -> None:
        shown = name if name.startswith("step") else name.partition(" ")[0]
        self._known.add(name)
        self._open[name] = self._span(shown, name, parent, at, attributes)

    def _span(
        self,
        shown: str,
        name: str,
        parent: str,
        at: int,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """Start a span with the id of `name` inside the span with the id of `parent`."""
        inside = Context()
        if parent:
            inside = set_span_in_context(NonRecordingSpan(self._ids.context(parent)), inside)
        self._ids.span = name
        return self._tracer.start_span(
            shown, inside, start_time=at, attributes=attributes, kind=kind
        )

    def _end(self, name: str, at: int, attributes: Attributes) -> None:
        span = self._open.pop(name, None)
        if span is not None:
            span.set_attributes(attributes)
            if attributes.get("skillfit.finish_reason") == "infrastructure":
                span.set_status(StatusCode.ERROR)
            span.end(at)


class _NamedIds(IdGenerator):
    """Ids that are hashes of the run's id and the span's name."""

    def __init__(self) -> None:
        self.run = ""
        self.span = ""  # the name of the span that is started next

    def context(self, name: str) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(self.generate_trace_id(), self._hash(name, 8), False, flags)

    def generate_trace_id(self) -> int:
        return self._hash("", 16)

    def generate_span_id(self) -> int:
        return self._hash(self.span, 8)

    def _hash(self, name: str, size: int) -> int:
        digest = hashlib.sha256(f"{self.run}/{name}".encode()).digest()
        return int.from_bytes(digest[:size]) or 1


def _attributes(numbers: dict[str, float]) -> Attributes:
    return {f"skillfit.{name.replace('/', '.')}": number for name, number in numbers.items()}
