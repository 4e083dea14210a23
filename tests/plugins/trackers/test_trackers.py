"""Trackers with the real packages: each has what a run reported once, also after a resume."""

import gzip
import importlib.util
import json
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from skillfit.errors import InputError
from skillfit.models.protocol import Usage
from skillfit.plugins.trackers.trackers import Tracker, make_tracker
from skillfit.run.directory import RunDirectory
from skillfit.run.events import (
    RolloutFinished,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    StepFinished,
    Stored,
)
from skillfit.run.records import RecordedConfig, TokenCounts, UsageTotals
from tests.report.recorded_runs import BEST, improved
from tests.support.records import run_started, run_summary, standings, step_record


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    return await improved(tmp_path / "run")


@pytest.fixture
def events(run: Path) -> list[Stored]:
    with closing(RunDirectory.read(run)) as view:
        return list(view.events.read())


def feed(tracker: Tracker, events: list[Stored]) -> None:
    for stored in events:
        tracker(stored)


def test_jsonl_has_each_event_once_after_a_kill_and_a_resume(
    tmp_path: Path, run: Path, events: list[Stored]
) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    feed(make_tracker(f"jsonl:{path}", run), events[:10])
    with path.open("a") as file:
        file.write('{"seq": 11, "half a li')
    feed(make_tracker(f"jsonl:{path}", run), events)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seq"] for line in lines] == [stored.seq for stored in events]
    assert lines[0]["kind"] == "RunStarted"


def test_jsonl_refuses_a_file_of_another_run(
    tmp_path: Path, run: Path, events: list[Stored]
) -> None:
    path = tmp_path / "events.jsonl"
    feed(make_tracker(f"jsonl:{path}", run), events)
    first = events[0]
    assert isinstance(first.event, RunStarted)
    other = Stored(first.seq, first.at, replace(first.event, run="another"))
    with pytest.raises(InputError, match="another run"):
        feed(make_tracker(f"jsonl:{path}", run), [other, *events[1:]])
    assert len(path.read_text().splitlines()) == len(events)


@pytest.mark.parametrize("text", ['{"id": "a", "input": "b"}\n', "one line without an end"])
def test_jsonl_does_not_change_a_file_with_other_content(
    tmp_path: Path, run: Path, text: str
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(InputError, match="other lines"):
        make_tracker(f"jsonl:{path}", run)
    assert path.read_text() == text


def test_mlflow_has_settings_scores_verdicts_and_the_best_skill_once(
    tmp_path: Path, run: Path, events: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'tracked.db'}"
    feed(make_tracker(f"mlflow:{uri}", run), events[:-5])
    feed(make_tracker(f"mlflow:{uri}", run), events)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("skillfit")
    assert experiment is not None
    (run_,) = client.search_runs([experiment.experiment_id])
    assert run_.info.status == "FINISHED"
    assert run_.data.params["model.agent.id"] == "practice/agent"
    assert run_.data.metrics["ship/difference"] == 0.375
    history = client.get_metric_history(run_.info.run_id, "selection/hard")
    assert [(point.step, point.value) for point in history] == [
        (0, pytest.approx(3 / 7)),
        (1, 0.875),
    ]
    assert [
        point.value for point in client.get_metric_history(run_.info.run_id, "gate/accepted")
    ] == [1.0, 0.0]
    folder = client.download_artifacts(run_.info.run_id, "best_skill.md", str(tmp_path))
    assert Path(folder).read_text() == BEST
    page = client.download_artifacts(run_.info.run_id, "report.html", str(tmp_path))
    assert "<html" in Path(page).read_text()


def test_mlflow_tracks_locally_without_any_setting(
    tmp_path: Path, run: Path, events: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a separate process, as MLflow keeps its address for the whole process."""
    program = (
        "import sys; from pathlib import Path; from skillfit.run.directory import RunDirectory\n"
        "from skillfit.plugins.trackers.trackers import make_tracker\n"
        "run = Path(sys.argv[1]); tracker = make_tracker('mlflow', run)\n"
        "for stored in RunDirectory.read(run).events.read(): tracker(stored)\n"
        "tracker.close(); import mlflow\n"
        "print(len(mlflow.search_runs(experiment_names=['skillfit'], output_format='list')))"
    )
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:skillfit", "-c", program, str(run)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "1", done.stderr


def test_an_unfinished_run_is_marked_and_found_again_on_resume(
    tmp_path: Path, run: Path, events: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'tracked.db'}"
    stopped = make_tracker(f"mlflow:{uri}", run)
    feed(stopped, events[:-5])
    stopped.close()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("skillfit")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "KILLED"
    resumed = make_tracker(f"mlflow:{uri}", run)
    feed(resumed, events)
    resumed.close()
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"


def test_an_unusable_mlflow_store_is_reported_before_anything_is_spent(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(InputError, match="MLflow cannot be used"):
        make_tracker(f"mlflow:{(tmp_path / 'mlruns').as_uri()}", run)


def test_an_mlflow_server_that_becomes_unreachable_does_not_stop_the_run(
    tmp_path: Path, run: Path, events: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.warns(UserWarning, match="The tracker mlflow is off for the rest of this run"):
        feed(make_tracker("mlflow:http://127.0.0.1:9", run), events)


def test_a_listener_that_raises_is_disabled_and_does_not_stop_the_run(
    run: Path, events: list[Stored]
) -> None:
    called = []

    def failing(stored: Stored) -> None:
        called.append(stored)
        raise KeyError("score")

    with pytest.warns(UserWarning, match=r"failing is off .*KeyError\('score'\)"):
        feed(make_tracker(failing, run), events)
    assert len(called) == 1 < len(events)


def test_an_unreachable_mlflow_server_is_called_only_a_few_times(
    run: Path, events: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Gone(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "")  # restored at the end
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES")
    with ThreadingHTTPServer(("127.0.0.1", 0), Gone) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.warns(UserWarning, match="The tracker mlflow is off"):
            feed(make_tracker(f"mlflow:http://127.0.0.1:{server.server_port}", run), events)
        server.shutdown()
    assert len(asked) == 3


def test_tensorboard_files_are_read_back(tmp_path: Path, run: Path, events: list[Stored]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    feed(make_tracker(f"tensorboard:{tmp_path / 'tb'}", run), events)
    feed(make_tracker(f"tensorboard:{tmp_path / 'tb'}", run), events)
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
            if self.path != "/v1/traces":
                self.send_error(404)
                return
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
    emitted = [
        RunStarted(run="r1", config=RecordedConfig({"model": model}), **shared),
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
        feed(
            make_tracker(f"otel:{endpoint}", tmp_path),
            [Stored(seq, 1000.0 + seq, event) for seq, event in enumerate(emitted, start=1)],
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
    attributes = {
        span.name: {a.key: a.value.string_value or a.value.int_value for a in span.attributes}
        for span in spans
    }
    assert attributes["reflect"]["gen_ai.request.model"] == "big"
    assert attributes["reflect"]["gen_ai.provider.name"] == "anthropic"
    assert attributes["step 1"]["gen_ai.usage.input_tokens"] == 100
    assert attributes["run"]["gen_ai.usage.output_tokens"] == 20
    assert attributes["run"]["skillfit.finish_reason"] == "improved"


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
async def test_opentelemetry_takes_the_address_of_a_collector(
    path: str, collector: tuple[str, list[Any]], tmp_path: Path
) -> None:
    endpoint, spans = collector
    address = endpoint.removesuffix("/v1/traces") + path
    with RunDirectory.open(tmp_path / "run", {}) as run:
        tracker = make_tracker(f"otel:{address}", tmp_path / "run")
        run.events.listen(tracker)
        await small_run(run, 1)
    tracker.close()
    assert spans


async def test_opentelemetry_gets_rollouts_and_their_model_calls(
    collector: tuple[str, list[Any]], tmp_path: Path
) -> None:
    endpoint, spans = collector
    for resumed in (False, True):  # a run that is stopped, and the same run resumed
        tracker = make_tracker(f"otel:{endpoint}", tmp_path / "run")
        with RunDirectory.open(tmp_path / "run", {}) as run:
            run.events.listen(tracker)
            await small_run(run, 3 if resumed else 2)
        tracker.close()
    names = {span.span_id: span.name for span in spans}
    tree = Counter((span.name, names.get(span.parent_span_id, "")) for span in spans)
    assert tree == {
        ("rollout", "rollout"): 3,  # in the stage of that name, each sent once
        ("chat small", "rollout"): 3,
        ("chat big", "reflect"): 1,
        ("reflect", ""): 2,  # the step of a stopped run is sent when it has finished
        ("rollout", ""): 2,
    }
    rollout = next(span for span in spans if any(a.key == "skillfit.item" for a in span.attributes))
    about = {a.key: a.value.string_value or a.value.double_value for a in rollout.attributes}
    assert about["gen_ai.request.model"] == "small" and about["skillfit.hard"] == 1.0
    call = next(span for span in spans if span.name == "chat big")
    about = {a.key: a.value.string_value or a.value.int_value for a in call.attributes}
    assert about["gen_ai.provider.name"] == "openai" and about["skillfit.role"] == "optimizer"
    assert about["gen_ai.usage.input_tokens"] == 7
    assert call.end_time_unix_nano >= call.start_time_unix_nano


async def small_run(run: RunDirectory, rollouts: int) -> None:
    """A step of so many rollouts with a model call each, and a call of the optimizer."""
    config = {"model": {"agent": {"id": "openai/small"}, "optimizer": {"id": "openai/big"}}}
    run.events.emit(run_started(run=run.run_id, config=config, skill="", skill_hash=""))

    async def call() -> int:
        return 1

    async def rollout(number: int) -> int:
        return await run.journal.once(
            f"call/agent/rollout/{number}",
            call,
            returns=int,
            stage="rollout",
            role="agent",
            model="openai/small",
            usage=lambda _: Usage(calls=1, input=5, output=2),
        )

    run.events.emit(StageStarted(epoch=1, step=1, stage="rollout", total=rollouts))
    for number in range(rollouts):
        key = f"rollout/train/{number}"
        await run.journal.once(key, lambda number=number: rollout(number), returns=int)
        run.events.emit(
            RolloutFinished(
                rollout=key,
                phase="rollout",
                step=1,
                item=str(number),
                repeat=0,
                skill_hash="h",
                status="scored",
                hard=1.0,
                soft=1.0,
            )
        )
    run.events.emit(StageFinished(epoch=1, step=1, stage="rollout", seconds=1.0))
    run.events.emit(StageStarted(epoch=1, step=1, stage="reflect"))
    await run.journal.once(
        "call/optimizer/reflect.failure/1",
        call,
        returns=int,
        stage="reflect.failure",
        role="optimizer",
        model="openai/big",
        usage=lambda _: Usage(calls=1, input=7, output=2),
    )
    run.events.emit(StageFinished(epoch=1, step=1, stage="reflect", seconds=1.0))


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_records_a_run_offline(
    tmp_path: Path, run: Path, events: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    feed(make_tracker("wandb:skillfit-test", run), events)
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_an_unknown_tracker_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Unknown tracker 'mlfow'.*mlflow"):
        make_tracker("mlfow", tmp_path)
    with pytest.raises(InputError, match="needs a file"):
        make_tracker("jsonl", tmp_path)


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    with (
        pytest.raises(InputError, match=r"needs the package 'wandb'.*skillfit\[wandb\]"),
        warnings.catch_warnings(),
    ):
        make_tracker("wandb", tmp_path)


def test_a_missing_package_of_a_users_tracker_has_no_extra(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n    def __init__(self, where, run):\n        import no_such_package\n"
    )
    with pytest.raises(InputError, match="needs the package 'no_such_package'") as raised:
        make_tracker(f"{file}:Mine", tmp_path)
    assert raised.value.hint == "Install it in this environment."


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("ConnectionError('no server')", "cannot be started: no server."),
        ("PermissionError(13, 'Permission denied', '/x')", "cannot write to /x: Permission denied"),
    ],
)
def test_an_error_of_a_tracker_without_a_place_is_a_whole_sentence(
    error: str, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"class Mine:\n    def __init__(self, where, run):\n        raise {error}\n")
    with pytest.raises(InputError, match=sentence):
        make_tracker(f"{file}:Mine", tmp_path)
