"""Trackers with the real packages: what a run said stands there once, also when the run was told
again.
"""

import gzip
import importlib.util
import json
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from skillfit.errors import InputError
from skillfit.run.directory import RunDirectory
from skillfit.run.events import Stored
from skillfit.run.records import TokenCounts, UsageTotals
from skillfit.trackers import Tracker, make
from tests.report.runs import BEST, improved
from tests.support.records import run_summary, standings, step_record


@pytest.fixture
async def events(tmp_path: Path) -> list[Stored]:
    view = RunDirectory.read(await improved(tmp_path / "run"))
    told = list(view.events.read())
    view.close()
    return told


def tell(tracker: Tracker, events: list[Stored]) -> None:
    for stored in events:
        tracker(stored)


def test_jsonl_has_each_event_once_though_the_run_was_resumed_after_a_kill(
    tmp_path: Path, events: list[Stored]
) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    tell(make(f"jsonl:{path}"), events[:10])
    with path.open("a") as file:
        file.write('{"seq": 11, "half a li')
    tell(make(f"jsonl:{path}"), events)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seq"] for line in lines] == [stored.seq for stored in events]
    assert lines[0]["kind"] == "RunStarted"


async def test_jsonl_refuses_a_file_that_holds_another_run(
    tmp_path: Path, events: list[Stored]
) -> None:
    path = tmp_path / "events.jsonl"
    tell(make(f"jsonl:{path}"), events)
    with (
        closing(RunDirectory.read(await improved(tmp_path / "second"))) as view,
        pytest.raises(InputError, match="another run"),
    ):
        tell(make(f"jsonl:{path}"), list(view.events.read()))
    assert len(path.read_text().splitlines()) == len(events)


@pytest.mark.parametrize("text", ['{"id": "a", "input": "b"}\n', "one line without an end"])
def test_jsonl_leaves_a_file_alone_that_holds_something_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(InputError, match="other things"):
        make(f"jsonl:{path}")
    assert path.read_text() == text


def test_mlflow_has_settings_scores_verdicts_and_the_best_skill_once(
    tmp_path: Path, events: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    tell(make(f"mlflow:{uri}"), events[:-5])
    tell(make(f"mlflow:{uri}"), events)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("skillfit")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["model.agent.id"] == "practice/agent"
    assert run.data.metrics["ship/difference"] == 0.375
    history = client.get_metric_history(run.info.run_id, "selection/hard")
    assert [(point.step, point.value) for point in history] == [
        (0, pytest.approx(3 / 7)),
        (1, 0.875),
    ]
    assert [
        point.value for point in client.get_metric_history(run.info.run_id, "gate/accepted")
    ] == [1.0, 0.0]
    folder = client.download_artifacts(run.info.run_id, "best_skill.md", str(tmp_path))
    assert Path(folder).read_text() == BEST


def test_an_mlflow_store_that_cannot_be_opened_is_said_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(InputError, match="MLflow cannot be used"):
        make(f"mlflow:{(tmp_path / 'mlruns').as_uri()}")


def test_mlflow_that_goes_away_does_not_stop_the_run(
    tmp_path: Path, events: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.warns(UserWarning, match="MLflow could not be written to"):
        tell(make("mlflow:http://127.0.0.1:9"), events)


def test_tensorboard_files_are_read_back(tmp_path: Path, events: list[Stored]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tell(make(f"tensorboard:{tmp_path / 'tb'}"), events)
    tell(make(f"tensorboard:{tmp_path / 'tb'}"), events)
    (folder,) = (tmp_path / "tb").iterdir()
    read = EventAccumulator(str(folder)).Reload()
    points = {
        (point.step, point.wall_time, point.value) for point in read.Scalars("selection/hard")
    }
    assert sorted((step, round(value, 3)) for step, _, value in points) == [(0, 0.429), (1, 0.875)]
    assert read.Scalars("ship/difference")[0].value == 0.375


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A loopback OTLP/HTTP collector that keeps what it is sent."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[Any] = []

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            sent = ExportTraceServiceRequest.FromString(body)
            spans.extend(
                span for r in sent.resource_spans for scope in r.scope_spans for span in scope.spans
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collect)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", spans
    server.shutdown()
    server.server_close()


def test_opentelemetry_gets_run_step_and_stage_with_genai_attributes(
    collector: tuple[str, list[Any]], tmp_path: Path
) -> None:
    from skillfit.run.events import (
        RunFinished,
        RunStarted,
        StageFinished,
        StageStarted,
        StepFinished,
    )

    endpoint, spans = collector
    model = {"agent": {"id": "openai/small"}, "optimizer": {"id": "anthropic/big"}}
    shared = {
        "version": "1",
        "skill": "",
        "skill_hash": "",
        "splits": {},
        "total_epochs": 1,
        "steps_per_epoch": 1,
    }
    tokens = {"reflect.failure": TokenCounts(1, 100, 20)}
    step = {
        "skill": "",
        "skill_hash": "",
        "best_skill": "",
        "record": step_record(tokens=tokens, standings=standings(best_score=0.5)),
    }
    said = [
        RunStarted(run="r1", config={"model": model}, **shared),
        StageStarted(epoch=0, step=0, stage="baseline"),
        StageFinished(epoch=0, step=0, stage="baseline", seconds=1.0),
        StageStarted(epoch=1, step=1, stage="reflect"),
        StageFinished(epoch=1, step=1, stage="reflect", seconds=1.0),
        StepFinished(epoch=1, step=1, action="accept", **step),
        StageStarted(epoch=1, step=1, stage="slow_update"),
        StageFinished(epoch=1, step=1, stage="slow_update", seconds=1.0),
        RunFinished(
            finish_reason="improved",
            diagnosis="",
            best_skill="",
            summary=run_summary(usage=UsageTotals(input=100, output=20, usd=0.1)),
        ),
    ]
    for _ in range(2):  # a run and its replay
        tell(
            make(f"otel:{endpoint}"),
            [Stored(seq, 1000.0 + seq, event) for seq, event in enumerate(said, start=1)],
        )
    names = {span.span_id: span.name for span in spans}
    tree = {(span.name, names.get(span.parent_span_id, "")) for span in spans}
    assert tree == {
        ("run", ""),
        ("baseline", "run"),
        ("step 1", "run"),
        ("reflect", "step 1"),
        ("slow_update", "run"),
    }
    assert len({span.span_id for span in spans}) == 5, "a replay makes no new spans"
    assert len({span.trace_id for span in spans}) == 1
    told = {
        span.name: {a.key: a.value.string_value or a.value.int_value for a in span.attributes}
        for span in spans
    }
    assert told["reflect"]["gen_ai.request.model"] == "big"
    assert told["reflect"]["gen_ai.provider.name"] == "anthropic"
    assert told["step 1"]["gen_ai.usage.input_tokens"] == 100
    assert told["run"]["gen_ai.usage.output_tokens"] == 20
    assert told["run"]["skillfit.finish_reason"] == "improved"


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_takes_a_run_offline(
    tmp_path: Path, events: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    tell(make("wandb:skillfit-test"), events)
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_an_unknown_tracker_and_a_missing_file_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no tracker 'mlfow'"):
        make("mlfow")
    with pytest.raises(InputError, match="needs a file"):
        make("jsonl")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "skillfit.trackers.wandb", raising=False)
    with (
        pytest.raises(InputError, match=r"needs wandb.*skillfit\[wandb\]"),
        warnings.catch_warnings(),
    ):
        make("wandb")
