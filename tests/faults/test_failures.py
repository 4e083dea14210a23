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
from skillfit.models.protocol import AuthFailed, BadRequest, ModelError, NetworkFailed, NoReply
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
    World,
    differences,
    fingerprint,
    items,
    readable,
    task,
)
from tests.training.world_fixture import MakeWorld

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
    """Fails a share of the agent's requests for good, in the ways endpoints do; the rest is
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


async def test_a_fifth_of_the_rollouts_failing_moves_no_mean(make_world: MakeWorld) -> None:
    rows = items(12, 24, 12)
    settings = (*SETTINGS, "evaluation.gate=strict")
    reliable = make_world(*settings, rows=rows, name="reliable")
    world = make_world(*settings, script=Unreliable(0.2), rows=rows, name="unreliable")
    await reliable.train()
    result = await world.train()
    failed = [event for event in world.events(RolloutFinished) if event.status == "failed"]
    assert {event.failure.partition(":")[0] for event in failed} == {"rate_limit", "overloaded"}
    assert all(event.hard is None for event in failed)
    scores = {event.name: event for event in world.events(EvaluationFinished)}
    expected = {event.name: event for event in reliable.events(EvaluationFinished)}
    # The agent is right or wrong by colour alone, so an unbiased mean is near, and one that counts
    # failures as zeros is not.
    assert scores["step_0001"].hard == expected["step_0001"].hard == 1.0
    assert scores["baseline"].hard == pytest.approx(expected["baseline"].hard, abs=0.12)
    assert scores["baseline"].scored < scores["baseline"].planned == 24
    assert result.finish_reason == "improved"
    assert 0.6 < world.summary()["coverage"] < 1
    assert world.best() == reliable.best()


async def test_an_item_that_times_out_is_missing_not_wrong(make_world: MakeWorld) -> None:
    script = Script()

    async def stuck(call: Call) -> Any:
        if call.stage == "rollout" and slow in call.text:
            await asyncio.sleep(6)
        return script(call)

    rows = items(4, 8, 0, ("red",))
    slow = rows[5]["input"]
    world = make_world(
        *SETTINGS, "env.exec_timeout=3", "evaluation.gate=strict", script=stuck, rows=rows
    )
    await world.train("train.num_epochs=1", "evaluation.ship_test=false")
    [baseline] = [event for event in world.events(EvaluationFinished) if event.name == "baseline"]
    assert (baseline.hard, baseline.scored, baseline.planned) == (1.0, 7, 8)
    assert world.summary()["coverage"] < 1


async def test_scattered_failures_are_decided_on_once(make_world: MakeWorld) -> None:
    """What a verdict was reached without stays out of it when the run is started again: it must not
    decide anew.
    """
    world = make_world(*SETTINGS, script=Unreliable(0.2), rows=items(12, 12, 4))
    await world.train()
    before, asked = readable(world.folder / "run"), len(world.calls)
    await world.train()
    assert len(world.calls) == asked
    assert differences(readable(world.folder / "run"), before) == []


async def test_below_the_coverage_floor_a_verdict_is_inconclusive(make_world: MakeWorld) -> None:
    script = Script()

    def refusing(call: Call) -> Any:
        """Refuses what the candidate makes of half the items: no outage, and no score either."""
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
    world = make_world(*SETTINGS, strict, script=refusing, rows=items(8, 20, 0))
    result = await world.train("train.num_epochs=1")
    [verdict] = world.events(GateDecided)
    assert verdict.decision == "inconclusive"
    assert "were scored" in verdict.reason
    assert world.history()[0]["action"] == "inconclusive"
    assert result.finish_reason in ("no_improvement", "inconclusive", "infrastructure")
    assert world.summary()["total_rejects"] == 1


class Mended:
    """Broken until mended."""

    def __init__(self, stages: tuple[str, ...], answer: Response) -> None:
        self.stages, self.answer, self.script, self.mended = stages, answer, Script(), False

    def __call__(self, call: Call) -> Any:
        return self.answer if call.stage in self.stages and not self.mended else self.script(call)


@pytest.mark.parametrize(
    "stages", [("rollout",), ("reflect.failure", "reflect.success"), ("merge",)]
)
async def test_an_outage_ends_the_run_and_the_resumed_run_is_the_same_as_without_it(
    make_world: MakeWorld, stages: tuple[str, ...]
) -> None:
    broken = Mended(stages, error(503, "down for maintenance"))
    world = make_world(*SETTINGS, "gradient.minibatch_size=2", script=broken, rows=items(8, 8, 2))
    with pytest.raises((InfrastructureError, ModelError)) as failed:
        await world.train()
    assert failed.value.exit_code == Exit.INFRASTRUCTURE
    assert world.summary()["finish_reason"] == "infrastructure"
    assert world.summary()["ship"] is None
    assert not (world.folder / "run/history.json").exists()
    broken.mended = True
    await world.train()
    await world.train(run="straight")
    different = differences(readable(world.folder / "run"), readable(world.folder / "straight"))
    assert different in ([], ["summary.json"])  # the bill has the failed calls in it
    assert world.summary()["finish_reason"] == world.summary("straight")["finish_reason"]


async def test_an_optimizer_nobody_answers_at_stops_the_run_before_it_spends(
    make_world: MakeWorld,
) -> None:
    world = make_world(*IMPATIENT, "model.optimizer.base_url=http://127.0.0.1:9/v1")
    with pytest.raises(NetworkFailed) as failed:
        await world.train()
    assert failed.value.exit_code == Exit.INFRASTRUCTURE
    assert world.asked("rollout") == []


def assert_nothing_was_scored(world: World) -> None:
    summary = world.summary()
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
        world.events(EvaluationFinished)
        == world.events(ShipTested)
        == world.events(RolloutFinished)
        == []
    )


@pytest.mark.parametrize("recipe", ["default", "paper", "lite"])
@pytest.mark.parametrize("role", ["agent", "optimizer"])
async def test_a_wrong_key_ends_the_run_at_the_probe(
    make_world: MakeWorld, recipe: str, role: str
) -> None:
    script = Script()

    def refused(call: Call) -> Any:
        return (
            error(401, "Incorrect API key provided") if call.body["model"] == role else script(call)
        )

    world = make_world(f"recipe={recipe}", script=refused)
    with pytest.raises(AuthFailed) as failed:
        await world.train()
    assert failed.value.exit_code == Exit.INFRASTRUCTURE
    assert {call.stage for call in world.calls} == {"probe"}
    assert Counter(call.body["model"] for call in world.calls)[role] == 1
    assert_nothing_was_scored(world)


async def test_a_model_that_does_not_exist_ends_the_run_at_the_probe(make_world: MakeWorld) -> None:
    def unknown(call: Call) -> Any:
        return error(404, "The model `agent` does not exist")

    world = make_world(script=unknown)
    with pytest.raises(BadRequest):
        await world.train()
    assert len(world.calls) == 1
    assert_nothing_was_scored(world)


@pytest.mark.parametrize(
    "page",
    [
        Response("<html>Welcome</html>", media_type="text/html"),
        JSONResponse({"choices": []}),
        JSONResponse(None),
    ],
)
async def test_an_address_where_no_model_answers_ends_the_run_at_the_probe(
    make_world: MakeWorld, page: Response
) -> None:
    world = make_world(script=lambda call: page)
    with pytest.raises(NoReply):
        await world.train()
    assert {call.stage for call in world.calls} == {"probe"} and len(world.calls) <= 3
    assert_nothing_was_scored(world)


async def test_a_coding_agent_that_is_not_logged_in_ends_the_run_without_a_score(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "coder"
    program.parent.mkdir()
    said = json.dumps(
        {"type": "result", "is_error": True, "text": "Not logged in. Please run /login"}
    )
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint({said!r})\n")
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
    world = make_world(
        "evaluation.preflight=true", f"model.agent={agent}", "model.agent.base_url=null"
    )
    with pytest.raises(AuthFailed, match="Not logged in") as failed:
        await world.train()
    assert failed.value.exit_code == Exit.INFRASTRUCTURE
    assert {call.stage for call in world.calls} == {"probe"}
    assert world.events(EvaluationFinished) == []
    assert not any(event.status == "scored" for event in world.events(RolloutFinished))


async def test_answers_in_flight_when_another_rollout_stops_the_run_are_kept(
    make_world: MakeWorld,
) -> None:
    """The first of a batch fails at once and for good; the others are slower, paid for, and must
    not be asked again.
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
    world = make_world(
        *SETTINGS, "train.num_epochs=1", "model.concurrency=8", script=uneven, rows=rows
    )
    with pytest.raises(AuthFailed):
        await world.train()
    wrong = False
    await world.train()
    asked = Counter(
        ids[task(call)] for call in world.asked("rollout") if "green means" not in call.text
    )
    assert [asked[f"train-{number:02d}"] for number in range(4)].count(2) == 1, (
        "only the refused one is asked again"
    )
    assert asked[ids[first]] == 2


async def test_a_lost_analyst_stays_lost_when_the_run_is_started_again(
    make_world: MakeWorld,
) -> None:
    """One group's analyst never answers. The step goes on without it and says so, and a second
    start decides and says the same.
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
    world = make_world(*SETTINGS, *settings, script=silent, rows=items(8, 8, 0))
    await world.train()
    [lost] = world.events(Discarded)
    assert "timeout" in lost.reason
    before, asked = readable(world.folder / "run"), len(world.calls)
    await world.train()
    assert len(world.calls) == asked
    assert world.events(Discarded) == [lost]
    assert differences(readable(world.folder / "run"), before) == []
    assert world.history()[0]["n_failure_patches"] == 2
