"""What one step does, seen from outside: requests, records and files."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest

from skillfit.optimize.stages import edit_budget
from skillfit.run.events import (
    Discarded,
    GateDecided,
    ReflectionFinished,
    RolloutFinished,
    RunStarted,
    StageStarted,
)
from tests.support.chat_server import Call
from tests.training.practice_project import (
    SKILL,
    Script,
    analyse,
    answer,
    append,
    differences,
    items,
    knowing,
    readable,
    section,
    system,
    task,
)
from tests.training.project_fixture import MakeProject

STRICT = (
    "evaluation.gate=strict",
    "evaluation.ship_test=false",
    "evaluation.eval_test=false",
)


async def test_failed_rollouts_become_rules_and_the_gate_accepts_them(
    make_project: MakeProject,
) -> None:
    project = make_project(*STRICT)
    result = await project.train()
    assert result.finish_reason == "improved"
    assert project.history()[0] | {"timing": 0, "tokens": 0, "wall_time_s": 0} == {
        **project.history()[0],
        "action": "accept_new_best",
        "step_in_epoch": 0,
        "n_patches": 1,
        "rollout_hard": 0.25,
        "rollout_n": 8,
        "selection_hard": 1.0,
        "incumbent_gate_score": 0.25,
        "current_score": 1.0,
        "best_step": 1,
        "n_edits_merged": 3,
        "timing": 0,
        "tokens": 0,
        "wall_time_s": 0,
    }
    assert all(f"{colour} means" in project.best() for colour in ("green", "blue", "gold"))


async def test_a_step_without_proposals_is_skipped_without_evaluation(
    make_project: MakeProject,
) -> None:
    project = make_project(*STRICT, optimizer={"reflect.failure": json.dumps(append())})
    await project.train()
    assert [record["action"] for record in project.history()] == ["skip_no_patches"]
    assert len(project.asked("rollout")) == 8 + 8  # the baseline and the batch
    assert project.summary()["total_skips"] == 1


async def test_a_candidate_equal_to_the_incumbent_is_not_evaluated(
    make_project: MakeProject,
) -> None:
    same = {
        "patch": {
            "edits": [{"op": "replace", "target": "- red means r.", "content": "- red means r."}]
        }
    }
    project = make_project(*STRICT, optimizer={"reflect.failure": json.dumps(same)})
    await project.train()
    assert project.history()[0]["action"] == "skip_no_change"
    assert len(project.asked("rollout")) == 8 + 8
    assert project.events(GateDecided) == []


async def test_a_step_without_a_change_has_its_candidate_and_says_why_no_edit_was_applied(
    make_project: MakeProject,
) -> None:
    lost = {"patch": {"edits": [{"op": "replace", "target": "- no such line", "content": "- x"}]}}
    project = make_project(*STRICT, optimizer={"reflect.failure": json.dumps(lost)})
    await project.train()
    step = project.folder / "run/steps/step_0001"
    [record] = project.history()
    assert record["action"] == "skip_no_change"
    assert record["edit_apply_summary"]["skipped"] == 1
    assert (step / "candidate_skill.md").read_text() == SKILL
    [row] = json.loads((step / "edit_apply_report.json").read_text())
    assert row["status"] == "skipped_replace_target_not_found"


@pytest.mark.parametrize(
    ("rate", "cause"),
    [("no JSON", "was not usable"), ('{"learning_rate": 0}', "chose to apply none")],
)
async def test_a_step_whose_rate_lets_no_edit_in_is_diagnosed_as_such(
    make_project: MakeProject, rate: str, cause: str
) -> None:
    project = make_project(
        *STRICT,
        "optimizer.lr_control_mode=autonomous",
        "optimizer.use_slow_update=false",
        optimizer={"lr_autonomous": rate},
    )
    await project.train()
    assert project.history()[0]["action"] == "skip_no_change"
    assert (project.folder / "run/steps/step_0001/candidate_skill.md").read_text() == SKILL
    assert cause in project.summary()["diagnosis"]


async def test_the_reason_of_a_verdict_says_that_the_gate_is_off(make_project: MakeProject) -> None:
    useless = json.dumps(append("- a line that changes nothing"))
    project = make_project(
        *STRICT, "evaluation.use_gate=false", optimizer={"reflect.failure": useless}
    )
    await project.train()
    verdict = json.loads((project.folder / "run/steps/step_0001/verdict.json").read_text())
    assert verdict["decision"] == "accept"
    assert verdict["reason"].startswith("the gate is off: mean +0.0000")


async def test_an_unusable_rewrite_is_skipped(make_project: MakeProject) -> None:
    mode = "optimizer.skill_update_mode=rewrite_from_suggestions"
    project = make_project(*STRICT, mode, optimizer={"rewrite": json.dumps({"new_skill": ""})})
    await project.train()
    assert project.history()[0]["action"] == "skip_no_rewrite"
    assert project.summary()["total_skips"] == 1
    assert project.best() == SKILL


async def test_a_stage_announces_as_many_selection_rollouts_as_it_makes(
    make_project: MakeProject,
) -> None:
    project = make_project(
        "train.num_epochs=2", "evaluation.ship_test=false", "evaluation.eval_test=false"
    )
    await project.train()
    announced = [event.total for event in project.events(StageStarted) if event.stage == "gate"]
    made = [event for event in project.events(RolloutFinished) if event.phase == "gate"]
    assert sum(announced) == len(made) > 0


async def test_a_run_announces_the_steps_that_its_budget_allows(make_project: MakeProject) -> None:
    project = make_project("budget.rollouts=250", "train.batch_size=3", "train.num_epochs=4")
    await project.train()
    (started,) = project.events(RunStarted)
    assert started.total_steps % started.steps_per_epoch  # the last epoch is cut
    assert started.total_steps == project.summary()["total_steps"] == len(project.history())


async def test_an_edit_budget_of_zero_applies_nothing(make_project: MakeProject) -> None:
    project = make_project(
        *STRICT,
        "train.num_epochs=2",
        "optimizer.learning_rate=0",
        "optimizer.use_slow_update=false",
    )
    await project.train()
    assert project.best() == SKILL
    assert [record["action"].partition("_")[0] for record in project.history()] == ["skip"] * 2
    asked = [call.text for call in project.asked("reflect.failure")]
    assert all(
        "Edit budget: at most 0" in text for text in asked
    )  # the default least of 2 does not lift it
    assert len(asked) > 1


async def test_the_edit_budgets_in_prompts_follow_the_schedule(make_project: MakeProject) -> None:
    rows = items(8, 4, 0, ("green", "blue", "gold", "pink"))
    schedule = (
        "train.num_epochs=2",
        "train.batch_size=2",
        "optimizer.learning_rate=5",
        "optimizer.min_learning_rate=1",
    )
    project = make_project(
        *STRICT,
        *schedule,
        "optimizer.lr_scheduler=linear",
        rows=rows,
        optimizer={"merge": json.dumps({"edits": []})},
    )
    await project.train()
    expected = [edit_budget("linear", step, 8, maximum=5, minimum=1) for step in range(1, 9)]
    recorded = {
        record["step"]: record["edit_budget"]
        for record in project.history()
        if "edit_budget" in record
    }
    assert recorded == {step: expected[step - 1] for step in recorded}
    assert recorded
    asked = {
        int(n)
        for call in project.asked("reflect.failure")
        for n in re.findall(r"Edit budget: at most (\d+)", call.text)
    }
    assert asked <= set(expected)
    assert asked


async def test_selection_and_test_items_never_reach_the_optimizer(
    make_project: MakeProject,
) -> None:
    rows = items(8, 8, 4)
    every = (
        "train.num_epochs=2",
        "gradient.deep_reflection=true",
        "optimizer.use_skill_aware_reflection=true",
    )
    project = make_project("evaluation.preflight=true", *every, rows=rows)
    await project.train(force=True)
    hidden = [row["input"].partition(" ")[2] for row in rows if row["split"] != "train"]
    shown = [row["input"].partition(" ")[2] for row in rows if row["split"] == "train"]
    prompts = "\n".join(call.text for call in project.calls if call.body["model"] == "optimizer")
    assert not [text for text in hidden if text in prompts]
    assert [text for text in shown if text in prompts]


def noisy(call: Call) -> str:
    """Forgets a rule now and then, by the rollout's seed."""
    return knowing(call) if random.Random(call.body["seed"]).random() < 0.8 else "unknown"


@pytest.mark.slow
async def test_decisions_do_not_depend_on_the_order_in_which_answers_arrive(
    make_project: MakeProject,
) -> None:
    def late(seed: int) -> Any:
        luck, script = random.Random(seed), Script(agent=noisy)

        async def say(call: Call) -> Any:
            await asyncio.sleep(luck.random() * 0.03)
            return script(call)

        return say

    settings = (
        "train.num_epochs=2",
        "train.batch_size=4",
        "gradient.minibatch_size=2",
        "model.concurrency=8",
    )
    runs = []
    for seed in range(3):
        project = make_project(
            *settings, script=late(seed), rows=items(8, 8, 2), name=f"order-{seed}"
        )
        await project.train()
        files = readable(project.folder / "run")
        for name in ("config.json", "summary.json"):  # they contain the server's port
            files[name] = json.loads(
                json.dumps(files[name])
                .replace(project.server.url, "URL")
                .replace(str(project.folder), "")
            )
        runs.append(files)
    assert differences(runs[0], runs[1]) == differences(runs[0], runs[2]) == []


async def test_accumulated_batches_are_reflected_on_separately_and_give_one_update(
    make_project: MakeProject,
) -> None:
    project = make_project(*STRICT, "train.batch_size=4", "train.accumulation=2")
    await project.train()
    [record] = project.history()
    assert [batch["n_envs"] for batch in record["accumulation_batches"]] == [4, 4]
    assert {event.group.partition("/")[0] for event in project.events(ReflectionFinished)} == {
        "batch_0",
        "batch_1",
    }
    assert record["action"] == "accept_new_best"


async def test_several_rollouts_of_an_item_are_shown_together(make_project: MakeProject) -> None:
    def sometimes(call: Call) -> str:
        return task(call) and (
            "r" if random.Random(call.body["seed"]).random() < 0.5 else "unknown"
        )

    project = make_project(
        *STRICT, "gradient.rollouts_per_item=3", rows=items(6, 4, 0, ("red",)), agent=sometimes
    )
    await project.train()
    sources = {event.source for event in project.events(ReflectionFinished)}
    [call] = project.asked("reflect.failure")
    assert "contrast" in sources
    assert call.text.count("#### Attempt 2") >= 1
    assert project.history()[0]["rollout_n"] == 18


async def test_deep_reflection_rolls_out_failures_again_with_the_optimizers_question(
    make_project: MakeProject,
) -> None:
    project = make_project(
        *STRICT, "gradient.deep_reflection=true", "gradient.deep_reflection_items=2"
    )
    await project.train()
    diagnosed = [
        call for call in project.asked("rollout") if "Say which rule you used." in call.text
    ]
    assert len(diagnosed) == 2
    [call] = project.asked("reflect.diagnosis")
    assert "Say which rule you used." in section(call.text, "diagnostic_question")
    assert {event.phase for event in project.events(RolloutFinished)} >= {"rollout", "reflect"}
    tokens = project.history()[0]["tokens"]
    assert tokens["rollout"]["calls"] == 8 + 2


async def test_without_the_gate_every_candidate_is_used_and_the_best_one_is_kept(
    make_project: MakeProject,
) -> None:
    def harmful(call: Call) -> str:
        return json.dumps(
            append("- red means wrong.")
            if "green means g" in section(call.text, "current_skill")
            else analyse(call)
        )

    project = make_project(
        *STRICT,
        "evaluation.use_gate=false",
        "train.num_epochs=2",
        optimizer={"reflect.failure": harmful, "reflect.success": harmful},
    )
    await project.train("optimizer.use_slow_update=false", "optimizer.use_meta_skill=false")
    first, second = project.history()
    assert [first["action"], second["action"]] == ["force_accept", "force_accept"]
    assert (first["current_score"], second["current_score"]) == (1.0, 0.75)
    assert (second["best_score"], second["best_step"]) == (1.0, 1)
    assert "red means wrong" not in project.best()


async def test_rejected_edits_and_their_scores_are_remembered_within_the_epoch(
    make_project: MakeProject,
) -> None:
    project = make_project(
        *STRICT,
        "train.batch_size=4",
        optimizer={"reflect.failure": json.dumps(append("- Be kind."))},
    )
    await project.train()
    first, second = project.asked("reflect.failure")
    assert not section(first.text, "previous_steps")
    memory = section(second.text, "previous_steps")
    assert "Step 1: reject, score 0.250 -> 0.250" in memory
    assert "Be kind." in memory


async def test_usage_is_counted_by_stage_and_only_within_the_step(
    make_project: MakeProject,
) -> None:
    project = make_project(*STRICT)
    await project.train()
    tokens = project.history()[0]["tokens"]
    assert {stage: used["calls"] for stage, used in tokens.items()} == {
        "evaluate": 8,  # the candidate; the baseline came before the step
        "reflect.failure": 1,
        "reflect.success": 1,
        "rollout": 8,
    }


async def test_unusable_replies_are_reported_and_lose_only_their_group(
    make_project: MakeProject,
) -> None:
    def broken_once(call: Call) -> str:
        return (
            '{"patch": {"edits": [{"op": "app'
            if "train-01" in call.text
            else json.dumps(analyse(call))
        )

    project = make_project(
        *STRICT, "gradient.minibatch_size=2", optimizer={"reflect.failure": broken_once}
    )
    await project.train()
    [discarded] = project.events(Discarded)
    assert discarded.stage == "reflect.failure"
    assert "bad_reply" in discarded.reason
    assert project.history()[0]["action"] == "accept_new_best"
    assert project.history()[0]["n_failure_patches"] == 2


async def test_rollouts_use_the_current_skill(make_project: MakeProject) -> None:
    project = make_project(*STRICT, "train.batch_size=4")
    await project.train()
    read = [system(call) for call in project.asked("rollout")]
    assert answer(read[0], "green x") == "unknown"
    assert answer(read[-1], "green x") == "g"


async def test_optimizer_requests_use_the_token_ceiling_of_its_model(
    make_project: MakeProject,
) -> None:
    usual, raised = (
        make_project(*STRICT, name="usual"),
        make_project(*STRICT, "model.optimizer.max_tokens=20000", name="raised"),
    )
    for project in (usual, raised):
        await project.train()
    (sent,), (sent_raised,) = (
        {call.body["max_tokens"] for call in project.asked("reflect.failure")}
        for project in (usual, raised)
    )
    assert (sent, sent_raised) == (16384, 20000)
