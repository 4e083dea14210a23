"""A failure of the infrastructure is not a score."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.responses import JSONResponse, Response

from skillfit.config.schema import TrainSection
from skillfit.errors import Exit, InfrastructureError
from skillfit.models.protocol import AuthFailed, BadRequest, ModelError, NetworkFailed, NotAReply
from skillfit.run.events import (
    Discarded,
    EvaluationFinished,
    GateDecided,
    RolloutFinished,
    ShipTested,
)
from skillfit.tasks.item import Item
from skillfit.training.plan import ShuffledBatches
from tests.support.chat_server import Call
from tests.training.practice_project import (
    Script,
    TrainingProject,
    differences,
    fingerprint,
    items,
    readable,
    task,
)
from tests.training.project_fixture import MakeProject

IMPATIENT = ("model.agent.retries=0", "model.optimizer.retries=0")
SETTINGS = (
    *IMPATIENT,
    "train.num_epochs=2",
    "optimizer.use_slow_update=false",
    "optimizer.use_meta_skill=false",
)


def error(status: int, message: str, **headers: str) -> Response:
    return JSONResponse(
        {"error": {"message": message, "code": str(status)}}, status, headers=headers
    )


class Unreliable:
    """Permanently fails a share of the agent's requests, in the ways endpoints do; the rest is
    answered.
    """

    def __init__(self, share: float, script: Script | None = None) -> None:
        self.share, self.script = share, script or Script()

    def __call__(self, call: Call) -> Any:
        luck = random.Random(fingerprint(call))
        if call.stage == "rollout" and luck.random() < self.share:
            return luck.choice(
                [
                    error(503, "overloaded"),
                    error(500, "oops"),
                    error(429, "slow down", **{"retry-after": "0"}),
                ]
            )
        return self.script(call)


async def test_twenty_percent_failed_rollouts_do_not_bias_the_mean(
    make_project: MakeProject,
) -> None:
    rows = items(12, 24, 12)
    settings = (*SETTINGS, "evaluation.gate=strict")
    reliable = make_project(*settings, rows=rows, name="reliable")
    project = make_project(*settings, script=Unreliable(0.2), rows=rows, name="unreliable")
    await reliable.train()
    result = await project.train()
    failed = [event for event in project.events(RolloutFinished) if event.status == "failed"]
    assert {event.failure.partition(":")[0] for event in failed} == {"rate_limit", "overloaded"}
    assert all(event.hard is None for event in failed)
    scores = {event.name: event for event in project.events(EvaluationFinished)}
    expected = {event.name: event for event in reliable.events(EvaluationFinished)}
    # The agent is right or wrong by colour alone, so an unbiased mean is close to the true one, and
    # one that counts failures as zeros is not.
    assert scores["step_0001"].hard == expected["step_0001"].hard == 1.0
    assert scores["baseline"].hard == pytest.approx(expected["baseline"].hard, abs=0.12)
    assert scores["baseline"].scored < scores["baseline"].planned == 24
    assert result.finish_reason == "improved"
    assert 0.6 < project.summary()["coverage"] < 1
    assert project.best() == reliable.best()


async def test_an_item_that_times_out_is_missing_not_wrong(make_project: MakeProject) -> None:
    script = Script()

    async def stuck(call: Call) -> Any:
        if call.stage == "rollout" and slow in call.text:
            await asyncio.sleep(6)
        return script(call)

    rows = items(4, 8, 0, ("red",))
    slow = rows[5]["input"]
    project = make_project(
        *SETTINGS, "env.exec_timeout=3", "evaluation.gate=strict", script=stuck, rows=rows
    )
    await project.train("train.num_epochs=1", "evaluation.ship_test=false")
    [baseline] = [event for event in project.events(EvaluationFinished) if event.name == "baseline"]
    assert (baseline.hard, baseline.scored, baseline.planned) == (1.0, 7, 8)
    assert project.summary()["coverage"] < 1


async def test_failed_rollouts_stay_excluded_when_the_run_is_started_again(
    make_project: MakeProject,
) -> None:
    """Rollouts that were missing from a verdict stay missing when the run is started again, so that
    it decides the same.
    """
    project = make_project(*SETTINGS, script=Unreliable(0.2), rows=items(12, 12, 4))
    await project.train()
    before, asked = readable(project.folder / "run"), len(project.calls)
    await project.train()
    assert len(project.calls) == asked
    assert differences(readable(project.folder / "run"), before) == []


async def test_below_the_coverage_floor_a_verdict_is_inconclusive(
    make_project: MakeProject,
) -> None:
    script = Script()

    def refusing(call: Call) -> Any:
        """Refuses half of the items under the candidate: neither an outage nor a score."""
        if (
            call.stage == "rollout"
            and "green means" in call.text
            and "selection"
            and random.Random(fingerprint(call)).random() < 0.6
        ):
            return JSONResponse(
                {
                    "choices": [
                        {
                            "finish_reason": "content_filter",
                            "message": {"role": "assistant", "content": ""},
                        }
                    ]
                }
            )
        return script(call)

    strict = "evaluation.gate=strict"
    project = make_project(*SETTINGS, strict, script=refusing, rows=items(8, 20, 0))
    result = await project.train("train.num_epochs=1")
    [verdict] = project.events(GateDecided)
    assert verdict.decision == "inconclusive"
    assert "were scored" in verdict.reason
    assert project.history()[0]["action"] == "inconclusive"
    assert result.finish_reason in ("no_improvement", "inconclusive", "infrastructure")
    assert project.summary()["total_rejects"] == 1


class BrokenUntilFixed:
    """Broken until fixed."""

    def __init__(self, stages: tuple[str, ...], answer: Response) -> None:
        self.stages, self.answer, self.script, self.fixed = stages, answer, Script(), False

    def __call__(self, call: Call) -> Any:
        return self.answer if call.stage in self.stages and not self.fixed else self.script(call)


@pytest.mark.parametrize(
    "stages", [("rollout",), ("reflect.failure", "reflect.success"), ("merge",)]
)
async def test_an_outage_ends_the_run_and_the_resumed_run_gives_the_same_result(
    make_project: MakeProject, stages: tuple[str, ...]
) -> None:
    broken = BrokenUntilFixed(stages, error(503, "down for maintenance"))
    project = make_project(
        *SETTINGS,
        "gradient.minibatch_size=2",
        "gradient.merge=true",
        script=broken,
        rows=items(8, 8, 2),
    )
    with pytest.raises((InfrastructureError, ModelError)) as failed:
        await project.train()
    assert failed.value.exit_code == Exit.INFRASTRUCTURE
    assert project.summary()["finish_reason"] == "infrastructure"
    assert project.summary()["ship"] is None
    assert not (project.folder / "run/history.json").exists()
    broken.fixed = True
    await project.train()
    await project.train(run="straight")
    different = differences(readable(project.folder / "run"), readable(project.folder / "straight"))
    assert different in ([], ["summary.json"])  # the bill has the failed calls in it
    assert project.summary()["finish_reason"] == project.summary("straight")["finish_reason"]


def not_json(text: str, media_type: str = "application/json", **headers: str) -> Response:
    return Response(text.encode(), media_type=media_type, headers=headers)


NOT_A_REPLY = {
    "html": not_json("<html>Please sign in to the network</html>", "text/html"),
    "nothing": Response(status_code=204),
    "broken gzip": not_json("no gzip", **{"content-encoding": "gzip"}),
    "brotli": not_json("no brotli", **{"content-encoding": "br"}),
    "events": not_json("data: {}\n\ndata: [DONE]\n\n", "text/event-stream"),
    "utf-16": Response("{}".encode("utf-16"), media_type="application/json"),
    "broken off": not_json('{"choices": [{"mess'),
    "no json": not_json('{"choices": }'),
    "another service": JSONResponse({"status": "healthy"}),
    "oversized": Response(b" " * (9 << 20), media_type="application/json"),
}


@pytest.mark.parametrize("kind", NOT_A_REPLY)
async def test_a_server_that_turns_into_something_else_ends_the_run_and_it_can_be_resumed(
    make_project: MakeProject, kind: str
) -> None:
    """It answers the first requests, so the setup as such works."""
    script, fixed = Script(), False

    def answer(call: Call) -> Any:
        is_rollout = call.stage == "rollout" and call.number > 20
        return NOT_A_REPLY[kind] if is_rollout and not fixed else script(call)

    project = make_project(*SETTINGS, "train.num_epochs=5", script=answer, rows=items(8, 8, 8))
    with pytest.raises(InfrastructureError):
        await project.train()
    sent = len(project.asked("rollout"))
    summary = project.summary()
    assert summary["finish_reason"] == "infrastructure" and summary["test_hard"] is None
    fixed = True
    await project.train()
    before = len(project.asked("rollout"))
    await project.train(run="straight")
    straight = len(project.asked("rollout")) - before
    assert sent < straight / 2, "it stopped early"
    different = differences(readable(project.folder / "run"), readable(project.folder / "straight"))
    assert different in ([], ["summary.json"])  # the bill has the failed calls in it
    assert project.summary()["finish_reason"] == project.summary("straight")["finish_reason"]


async def test_an_unreachable_optimizer_stops_the_run_before_it_spends(
    make_project: MakeProject,
) -> None:
    project = make_project(*IMPATIENT, "model.optimizer.base_url=http://127.0.0.1:9/v1")
    with pytest.raises(NetworkFailed) as failed:
        await project.train()
    assert failed.value.exit_code == Exit.INFRASTRUCTURE
    assert project.asked("rollout") == []


def assert_nothing_was_scored(project: TrainingProject) -> None:
    summary = project.summary()
    assert summary["finish_reason"] == "infrastructure"
    assert {
        summary[name]
        for name in (
            "baseline_selection_hard",
            "best_selection_hard",
            "final_selection_hard",
            "test_hard",
        )
    } == {None}
    assert (
        project.events(EvaluationFinished)
        == project.events(ShipTested)
        == project.events(RolloutFinished)
        == []
    )


@pytest.mark.parametrize("recipe", ["default", "paper", "lite"])
@pytest.mark.parametrize("role", ["agent", "optimizer"])
async def test_a_wrong_key_ends_the_run_at_the_probe(
    make_project: MakeProject, recipe: str, role: str
) -> None:
    script = Script()

    def refused(call: Call) -> Any:
        return (
            error(401, "Incorrect API key provided") if call.body["model"] == role else script(call)
        )

    project = make_project(f"recipe={recipe}", script=refused)
    with pytest.raises(AuthFailed) as failed:
        await project.train()
    assert failed.value.exit_code == Exit.INFRASTRUCTURE
    assert {call.stage for call in project.calls} == {"probe"}
    assert Counter(call.body["model"] for call in project.calls)[role] == 1
    assert_nothing_was_scored(project)


async def test_a_model_that_does_not_exist_ends_the_run_at_the_probe(
    make_project: MakeProject,
) -> None:
    def unknown(call: Call) -> Any:
        return error(404, "The model `agent` does not exist")

    project = make_project(script=unknown)
    with pytest.raises(BadRequest):
        await project.train()
    assert len(project.calls) == 1
    assert_nothing_was_scored(project)


@pytest.mark.parametrize(
    "page",
    [
        Response("<html>Welcome</html>", media_type="text/html"),
        JSONResponse({"choices": []}),
        JSONResponse(None),
        Response(b"notgzip", media_type="application/json", headers={"Content-Encoding": "gzip"}),
    ],
)
async def test_an_address_without_a_model_ends_the_run_at_the_probe(
    make_project: MakeProject, page: Response
) -> None:
    project = make_project(script=lambda call: page)
    with pytest.raises(NotAReply):
        await project.train()
    assert {call.stage for call in project.calls} == {"probe"} and len(project.calls) <= 3
    assert_nothing_was_scored(project)


async def test_a_coding_agent_that_is_not_logged_in_ends_the_run_without_a_score(
    make_project: MakeProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "coder"
    program.parent.mkdir()
    output = json.dumps(
        {"type": "result", "is_error": True, "text": "Not logged in. Please run /login"}
    )
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint({output!r})\n")
    program.chmod(0o755)
    described = {
        "name": "coder",
        "program": "coder",
        "argv": ["run"],
        "skills": ".coder/skills",
        "events": [{"when": {"type": "message"}, "step": "message", "text": ["text"]}],
        "error": [{"when": {"type": "result", "is_error": True}, "text": ["text"]}],
    }
    (tmp_path / "coder.yaml").write_text(yaml.safe_dump(described))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    agent = json.dumps({"id": "cli/coder", "options": {"file": str(tmp_path / "coder.yaml")}})
    project = make_project(
        "evaluation.preflight=true", f"model.agent={agent}", "model.agent.base_url=null"
    )
    with pytest.raises(AuthFailed, match="Not logged in") as failed:
        await project.train()
    assert failed.value.exit_code == Exit.INFRASTRUCTURE
    assert {call.stage for call in project.calls} == {"probe"}
    assert project.events(EvaluationFinished) == []
    assert not any(event.status == "scored" for event in project.events(RolloutFinished))


async def test_answers_in_flight_when_another_rollout_stops_the_run_are_kept(
    make_project: MakeProject,
) -> None:
    """The first of a batch fails at once and permanently. The others are slower, are paid for, and
    must not be sent again.
    """
    script, rows = Script(), items(4, 4, 0)
    plan = ShuffledBatches().plan(
        [Item(row["id"], row) for row in rows if row["split"] == "train"],
        TrainSection(
            num_epochs=1,
            batch_size=8,
            accumulation=1,
            seed=42,
        ),
    )
    first = plan.epochs[0].steps[0].batches[0].items[0].input
    wrong = True

    async def uneven(call: Call) -> Any:
        if call.stage == "rollout" and "train-" in ids[task(call)]:
            if wrong and first in call.text:
                return error(401, "Your key was revoked")
            await asyncio.sleep(0.5)
        return script(call)

    ids = {row["input"]: row["id"] for row in rows}
    project = make_project(
        *SETTINGS, "train.num_epochs=1", "model.concurrency=8", script=uneven, rows=rows
    )
    with pytest.raises(AuthFailed):
        await project.train()
    wrong = False
    await project.train()
    asked = Counter(
        ids[task(call)] for call in project.asked("rollout") if "green means" not in call.text
    )
    assert [asked[f"train-{number:02d}"] for number in range(4)].count(2) == 1, (
        "only the refused one is asked again"
    )
    assert asked[ids[first]] == 2


async def test_a_discarded_analyst_stays_discarded_when_the_run_is_started_again(
    make_project: MakeProject,
) -> None:
    """One group's analyst never answers. The step continues without it and reports it, and a second
    start decides and reports the same.
    """
    script = Script()

    async def silent(call: Call) -> Any:
        if call.stage == "reflect.failure" and "train-01" in call.text:
            await asyncio.sleep(8)
        return script(call)

    settings = (
        "gradient.minibatch_size=2",
        "model.optimizer.timeout=4",
        "train.num_epochs=1",
        "evaluation.ship_test=false",
    )
    project = make_project(*SETTINGS, *settings, script=silent, rows=items(8, 8, 0))
    await project.train()
    [lost] = project.events(Discarded)
    assert "timeout" in lost.reason
    before, asked = readable(project.folder / "run"), len(project.calls)
    await project.train()
    assert len(project.calls) == asked
    assert project.events(Discarded) == [lost]
    assert differences(readable(project.folder / "run"), before) == []
    assert project.history()[0]["n_failure_patches"] == 2
