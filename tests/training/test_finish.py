"""The end of a run: composed, shipped, tested once, and summarised."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from statistics import mean

import pytest

from skillfit.errors import Exit, InfrastructureError, InputError
from skillfit.extensions import load_object
from skillfit.record.fold import read_record
from skillfit.record.text import comparisons, event_lines
from skillfit.run.events import (
    Discarded,
    EvaluationFinished,
    PreflightFinished,
    RolloutFinished,
    ShipTested,
    SlowUpdateFinished,
    Warned,
)
from skillfit.training.schedule import FEWEST_PAIRS
from skillfit.training.start import PreflightStopped
from tests.support.chat_server import Call
from tests.training.practice_project import (
    SKILL,
    TrainingProject,
    analyse,
    append,
    item,
    items,
    knowing,
    system,
    task,
)
from tests.training.project_fixture import MakeProject

ALONE = (
    "evaluation.gate=strict",
    "optimizer.use_slow_update=false",
    "optimizer.use_meta_skill=false",
)
SCREENING = ("evaluation.gate=screening",)
LONG = ("train.num_epochs=3",)  # enough rollouts for a ship test that reads every item
STRICT = ("evaluation.gate=strict", "evaluation.ship_test=false")


def constant_evaluator(folder: Path, score: float) -> list[str]:
    """The settings of a task that scores itself, and always the same."""
    (folder / "own.py").write_text(
        "import json\n"
        "from pathlib import Path\n"
        "from skillfit import Task\n"
        "rows = map(json.loads, Path(__file__).with_name('tasks.jsonl').read_text().splitlines())\n"
        f"task = Task(rows, evaluate=lambda skill, item: {score})\n"
    )
    return [f"env.tasks={folder / 'own.py'}:task", "env.grader=null", "model.agent=null"]


async def test_a_clear_gain_on_fresh_rollouts_is_improved(make_project: MakeProject) -> None:
    project = make_project(*ALONE, rows=items(8, 8, 4))
    result = await project.train()
    [shipped] = project.events(ShipTested)
    assert (result.finish_reason, result.exit_code) == ("improved", Exit.OK)
    assert shipped.verdict == "improved"
    assert shipped.interval[0] > 0
    fresh = {event.rollout for event in project.events(RolloutFinished) if event.phase == "ship"}
    used = {
        event.rollout
        for event in project.events(RolloutFinished)
        if event.phase in ("baseline", "gate")
    }
    assert fresh
    assert not fresh & used


async def test_several_finalists_are_compared_with_the_initial_skill_on_request(
    make_project: MakeProject,
) -> None:
    steps = (
        "evaluation.gate=strict",
        "train.batch_size=2",
        "train.num_epochs=2",
        "optimizer.learning_rate=1",
    )
    spent = {}
    for count in (1, 2):
        project = make_project(
            *ALONE,
            *steps,
            f"evaluation.finalists={count}",
            rows=items(8, 12, 0),
            name=f"{count} finalists",
        )
        await project.train()
        [shipped] = project.events(ShipTested)
        spent[count] = shipped.evidence.rollouts / shipped.pairs
        before, after = map(
            read_record(project.folder / "run").point, ("ship_initial", "ship_best")
        )
        assert before and after and after.score - before.score == pytest.approx(shipped.difference)
    assert spent == {1: 2, 2: 3}


async def test_a_gain_too_small_to_prove_is_inconclusive(make_project: MakeProject) -> None:
    rows = [
        item(f"{split}-{n}", "gold" if n == 0 else "red", split)
        for split in ("train", "selection")
        for n in range(6)
    ]
    result = await (project := make_project(*ALONE, rows=rows)).train()
    assert (result.finish_reason, result.exit_code) == ("inconclusive", Exit.INCONCLUSIVE)
    assert "Add items" in result.diagnosis
    assert project.summary()["ship"]["difference"] > 0


async def test_without_accepted_edits_the_result_is_no_improvement_with_a_reason(
    make_project: MakeProject,
) -> None:
    project = make_project(optimizer={"reflect.failure": json.dumps(append("- Be kind."))})
    result = await project.train()
    assert (result.finish_reason, result.exit_code) == ("no_improvement", Exit.NO_IMPROVEMENT)
    assert project.best() == SKILL
    assert project.summary()["best_origin"] == "initial"


async def test_unusable_replies_are_an_infrastructure_failure_and_not_no_improvement(
    make_project: MakeProject,
) -> None:
    project = make_project(
        optimizer={"reflect.failure": "I would rather not.", "reflect.success": "Nor here."}
    )
    result = await project.train()
    assert (result.finish_reason, result.exit_code) == ("infrastructure", Exit.INFRASTRUCTURE)
    assert "optimizer calls brought no usable reply" in result.diagnosis


@pytest.mark.parametrize(
    ("gate", "split", "failing", "says"),
    [
        (
            "strict",
            "selection",
            "answer not in ('r', 'unknown')",
            "In 1 of 1 step with a candidate",
        ),
        ("screening", "", "GRADED > 24", "of the rollouts of the ship test could be scored"),
    ],
)
async def test_candidates_that_cannot_be_scored_are_an_infrastructure_failure(
    make_project: MakeProject, tmp_path: Path, gate: str, split: str, failing: str, says: str
) -> None:
    """The initial skill is scored, so most rollouts of the run are."""
    (tmp_path / "grader.py").write_text(
        "GRADED = 0\n"
        "def grade(item, answer):\n"
        "    global GRADED\n"
        "    GRADED += 1\n"
        f"    if item['id'].startswith('{split}') and {failing}:\n"
        "        raise ImportError('No module named pytest')\n"
        "    return float(answer in item['answers'])\n"
    )
    grader = f"env.grader={tmp_path / 'grader.py'}:grade"
    settings = (f"evaluation.gate={gate}", grader, "evaluation.coverage_floor=0.6")
    project = make_project(*settings, rows=items(8, 8, 0))
    result = await project.train()
    assert (result.finish_reason, result.exit_code) == ("infrastructure", Exit.INFRASTRUCTURE)
    assert says in result.diagnosis


async def test_edits_that_cannot_be_applied_are_reported_as_the_cause(
    make_project: MakeProject,
) -> None:
    lost = {
        "patch": {
            "edits": [{"op": "replace", "target": "a line that is not there", "content": "x"}]
        }
    }
    result = await make_project(optimizer={"reflect.failure": json.dumps(lost)}).train()
    assert result.finish_reason == "no_improvement"
    assert "could be applied" in result.diagnosis


async def test_the_test_split_is_read_once_for_each_distinct_skill(
    make_project: MakeProject,
) -> None:
    project = make_project(*STRICT, *ALONE, rows=items(8, 8, 4))
    await project.train()
    tested = [event for event in project.events(RolloutFinished) if event.phase == "test"]
    assert len(tested) == 2 * 4  # initial and best; the final skill is the best one
    summary = project.summary()
    assert (summary["baseline_test_hard"], summary["test_hard"], summary["final_test_hard"]) == (
        0.25,
        1.0,
        1.0,
    )
    assert summary["test_delta_hard"] == 0.75
    by_type = json.loads((project.folder / "run/test_eval/summary.json").read_text())
    whole = by_type.pop("overall")
    assert whole == {"total": 4, "hard_acc": 1.0, "soft_acc": 1.0}
    assert by_type == {
        colour: {"total": 1, "hard_acc": 1.0, "soft_acc": 1.0}
        for colour in ("blue", "gold", "green", "red")
    }
    assert (
        json.loads((project.folder / "run/test_eval_baseline/summary.json").read_text())["gold"][
            "hard_acc"
        ]
        == 0.0
    )


async def test_an_unchanged_skill_is_tested_once(make_project: MakeProject) -> None:
    project = make_project(
        *STRICT, *ALONE, rows=items(4, 4, 3), optimizer={"reflect.failure": json.dumps(append())}
    )
    await project.train()
    assert sum(event.phase == "test" for event in project.events(RolloutFinished)) == 3


async def test_the_final_skill_is_promoted_when_it_is_better_also_without_a_test(
    make_project: MakeProject,
) -> None:
    # Forced at the last epoch's end: no step follows that could make it the best.
    helpful = json.dumps({"slow_update_content": "gold means o. green means g. blue means b."})
    forced = ("optimizer.use_slow_update=true", "optimizer.slow_update_gate_with_selection=false")
    project = make_project(
        *STRICT, *forced, "train.num_epochs=2", "evaluation.eval_test=false",
        optimizer={"slow_update": helpful, "reflect.failure": json.dumps(append())},
    )  # fmt: skip
    await project.train()
    assert "gold means o." in project.best()
    assert project.summary()["best_origin"] == "slow_update_epoch_02"
    [final] = [event for event in project.events(EvaluationFinished) if event.name == "final"]
    assert final.hard == 1.0


def unsteady(call: Call) -> str:
    """Follows the skill in most rollouts."""
    return (
        knowing(call)
        if random.Random(f"{call.body['seed']}{system(call)}").random() < 0.7
        else "unknown"
    )


def selection(project: TrainingProject) -> tuple[float, float]:
    summary = project.summary()
    return summary["baseline_selection_hard"], summary["best_selection_hard"]


async def test_selection_scores_are_those_of_the_shipped_skill_in_the_ship_test(
    make_project: MakeProject,
) -> None:
    def with_padding(call: Call) -> str:
        reply = analyse(call)
        reply["patch"]["edits"].append(
            {"op": "append", "target": "", "content": "- Take your time and be kind to everyone."}
        )
        return json.dumps(reply)

    project = make_project(
        *ALONE, rows=items(8, 12, 0), agent=unsteady, optimizer={"reflect.failure": with_padding}
    )
    result = await project.train()
    baseline, best = selection(project)
    assert best - baseline == pytest.approx(result.summary.ship.difference) != 0
    fresh = [event for event in project.events(RolloutFinished) if event.phase == "ship"]
    initial = project.inputs().skill.hash
    assert baseline == pytest.approx(
        mean(event.hard for event in fresh if event.skill_hash == initial)
    )
    assert best == pytest.approx(mean(event.hard for event in fresh if event.skill_hash != initial))


@pytest.mark.parametrize("shipping", [(), ("evaluation.ship_test=false",)])
async def test_without_accepted_edits_the_best_selection_score_is_the_baseline(
    make_project: MakeProject, shipping: tuple[str, ...]
) -> None:
    useless = {"reflect.failure": json.dumps(append())}
    project = make_project(
        *ALONE,
        *shipping,
        "train.num_epochs=3",
        rows=items(8, 12, 0),
        agent=unsteady,
        optimizer=useless,
    )
    await project.train()
    assert project.best() == SKILL
    [measured] = [
        event.hard for event in project.events(EvaluationFinished) if event.name == "baseline"
    ]
    assert selection(project) == (measured, measured)


async def test_item_weights_affect_scores_and_the_run_identity(make_project: MakeProject) -> None:
    rows = [{**row, "weight": 5 if row["type"] == "red" else 1} for row in items(8, 8, 4)]
    project = make_project(*STRICT, *ALONE, rows=rows)
    await project.train()
    assert project.summary()["baseline_selection_hard"] == pytest.approx(10 / 16)
    assert project.summary()["baseline_test_hard"] == pytest.approx(5 / 8)
    plain = make_project(*STRICT, *ALONE, rows=items(8, 8, 4), name="plain")
    assert plain.inputs().identity()["task"] != project.inputs().identity()["task"]


async def test_scores_on_fresh_rollouts_are_weighted_like_their_difference(
    make_project: MakeProject,
) -> None:
    rows = [{**row, "weight": 5 if row["type"] == "red" else 1} for row in items(8, 8, 4)]
    project = make_project(*ALONE, *LONG, rows=rows)
    await project.train()
    record = read_record(project.folder / "run")
    before, after = record.point("ship_initial"), record.point("ship_best")
    assert before and after and record.ship
    assert before.score == pytest.approx(10 / 16)
    assert after.score - before.score == pytest.approx(record.ship.difference)


async def test_scores_by_type_are_weighted_like_the_total(make_project: MakeProject) -> None:
    rows = [
        {**row, "type": "all alike", "weight": 5 if row["type"] == "red" else 1}
        for row in items(8, 8, 4)
    ]
    project = make_project(*STRICT, *ALONE, "evaluation.eval_test=true", rows=rows)
    await project.train()
    [tested] = [
        event for event in project.events(EvaluationFinished) if event.name == "test_baseline"
    ]
    assert (
        tested.by_type["all alike"].hard_acc == pytest.approx(tested.hard) == pytest.approx(5 / 8)
    )


async def test_a_small_token_budget_is_not_used_up_by_the_probe(make_project: MakeProject) -> None:
    project = make_project(*STRICT, *ALONE, "budget.tokens=12000")
    result = await project.train()
    assert result.finish_reason == "budget"
    assert project.summary()["baseline_selection_hard"] == 0.25
    assert {call.body["max_tokens"] for call in project.asked("probe")} == {1024}


class TestBudget:
    async def spent(self, make_project: MakeProject) -> tuple[int, int]:
        """The calls of a whole run, and how many of them came before its ship test."""
        project = make_project(*ALONE, name="whole")
        await project.train()
        last = [
            event for event in project.events(RolloutFinished) if event.phase in ("ship", "test")
        ]
        return len(project.calls), len(project.calls) - len(last)

    async def test_a_budget_that_ends_before_the_ship_test_returns_the_initial_skill(
        self, make_project: MakeProject
    ) -> None:
        project = make_project(*ALONE, "budget.calls=25")
        result = await project.train()
        assert result.finish_reason == "budget" and project.best() == SKILL
        assert "The budget of 25 calls is reached" in result.diagnosis

    async def test_part_of_the_budget_is_reserved_for_the_ship_test(
        self, make_project: MakeProject
    ) -> None:
        project = make_project(*ALONE, "train.num_epochs=40", "budget.calls=150")
        result = await project.train()
        assert result.finish_reason == "improved"
        assert project.events(ShipTested)[0].verdict == "improved"
        assert len(project.calls) <= 150
        assert len(project.history()) < 40

    async def test_a_budget_that_ends_before_any_measurement_is_reported(
        self, make_project: MakeProject
    ) -> None:
        result = await make_project(*ALONE, "budget.calls=3").train()
        assert "before the initial skill was measured" in result.diagnosis

    async def test_a_plan_of_rollouts_keeps_all_pairs_of_its_ship_test(
        self, make_project: MakeProject
    ) -> None:
        colours = ("red", "green", "blue", "gold", "pink")
        project = make_project(
            "budget.rollouts=60",
            rows=items(20, 20, 20, colours),
            optimizer={"reflect": json.dumps(append("- green means g."))},
        )
        await project.train()
        [tested] = project.events(ShipTested)
        assert tested.pairs == project.inputs().schedule().pairs > 0.35 * 60 / 2

    @pytest.mark.parametrize("gate", ["strict", "screening"])
    async def test_a_budget_too_small_for_a_step_is_refused_with_a_sufficient_value(
        self, make_project: MakeProject, gate: str
    ) -> None:
        settings = ("evaluation.preflight=true", f"evaluation.gate={gate}", "train.num_epochs=9")
        project = make_project(*settings, rows=items(8, 8, 4))
        with pytest.raises(PreflightStopped, match="too little for one step") as stopped:
            await project.train("budget.calls=30")
        assert project.calls == []
        enough = re.search(r"(\d+) would be enough", str(stopped.value))
        assert enough is not None
        await project.train(f"budget.calls={enough[1]}")
        assert len(project.history()) >= 1
        assert [event.pairs for event in project.events(ShipTested)] >= [FEWEST_PAIRS]

    async def test_a_skill_that_only_got_an_empty_region_is_not_measured_again(
        self, make_project: MakeProject
    ) -> None:
        # The second lesson is not above the incumbent, so the last skill is the placeholder's.
        settings = ("evaluation.gate=strict", "train.num_epochs=2")
        gated = (
            "optimizer.use_slow_update=true",
            "optimizer.slow_update_gate_with_selection=true",
            "optimizer.use_meta_skill=false",
        )
        project = make_project(*settings, *gated, rows=items(8, 8, 4))
        await project.train()
        slow_updates = [event.action for event in project.events(SlowUpdateFinished)]
        assert slow_updates == ["inject_placeholder", "reject"]
        rollouts = project.events(RolloutFinished)
        earlier = {event.rollout for event in rollouts if event.phase in ("baseline", "gate")}
        final = {event.rollout for event in rollouts if event.phase == "final"}
        assert len(final) == 8 and final <= earlier

    @pytest.mark.parametrize(("cap", "small"), [("usd", 0.01), ("tokens", 9_000)])
    async def test_a_budget_below_one_optimizer_call_is_refused_before_anything_is_spent(
        self, make_project: MakeProject, cap: str, small: float
    ) -> None:
        prices = "{agent: {input: 1, output: 1}, optimizer: {input: 1, output: 1}}"
        project = make_project("evaluation.preflight=true", *ALONE, f"model.prices={prices}")
        with pytest.raises(PreflightStopped, match="less than one optimizer call may take"):
            await project.train(f"budget.{cap}={small}")
        assert project.calls == []
        await project.train(f"budget.{cap}={small}", force=True)
        assert project.calls != []

    async def test_a_budget_that_ends_before_the_first_step_does_not_use_the_test_split(
        self, make_project: MakeProject
    ) -> None:
        project = make_project(*ALONE, "budget.calls=20", rows=items(8, 8, 4))
        result = await project.train()
        assert "before the first step" in result.diagnosis
        assert {event.phase for event in project.events(RolloutFinished)} <= {"baseline", "rollout"}

    async def test_a_budget_that_ends_in_the_test_split_keeps_the_verdict(
        self, make_project: MakeProject
    ) -> None:
        project = make_project(*STRICT, *ALONE, "budget.calls=80", rows=items(8, 8, 80))
        result = await project.train()
        assert (result.finish_reason, project.best() == SKILL) == ("improved", False)
        assert any("test split was not read" in event.message for event in project.events(Warned))


async def test_the_probe_uses_the_configured_token_ceiling(
    make_project: MakeProject,
) -> None:
    project = make_project(*STRICT, *ALONE, "model.optimizer.max_tokens=20000")
    await project.train()
    assert {call.body["model"]: call.body["max_tokens"] for call in project.asked("probe")} == {
        "agent": 1024,
        "optimizer": 20000,
    }


async def test_an_edit_that_breaks_a_must_pass_item_is_dropped(make_project: MakeProject) -> None:
    def trading(call: Call) -> str:
        return json.dumps(append("- green means g.\n- blue means b.\n- red means no."))

    colours = ("red", "green", "blue", "green", "blue", "green", "blue", "green")
    settings = (*ALONE, *SCREENING, "train.num_epochs=6", "evaluation.must_pass=[selection-00]")
    project = make_project(
        *settings, rows=items(8, 24, 0, colours), optimizer={"reflect.failure": trading}
    )
    await project.train()
    effects = json.loads((project.folder / "run/edit_effects.json").read_text())
    reasons = [effect["reason"] for effect in effects if effect["status"] == "dropped"]
    print([(e["id"], e["status"], e["reason"], e["mean"], e["rollouts"]) for e in effects])
    print(project.best())
    assert any("must-pass item selection-00" in reason for reason in reasons)
    assert project.best() == SKILL


def test_must_pass_items_need_a_gate_that_checks_them(make_project: MakeProject) -> None:
    with pytest.raises(InputError, match="this gate does not check must-pass items"):
        make_project().inputs("evaluation.gate=strict", "evaluation.must_pass=[selection-00]")


async def test_a_second_grader_decides_the_ship_test_and_the_gap_is_reported(
    make_project: MakeProject,
) -> None:
    # The first grader accepts any answer that contains the letter, the second only the letter.
    def wordy(call: Call) -> str:
        letter = knowing(call)
        return f"[{letter}]" if letter != "unknown" else letter

    settings = (
        *ALONE,
        *LONG,
        "env.grader={contains: {}}",
        "evaluation.ship_grader=exact",
    )
    rows = [{**row, "answer": f"{row['answer']}]"} for row in items(8, 8, 0)]
    project = make_project(*settings, rows=rows, agent=wordy)
    result = await project.train()
    summary = project.summary()
    assert summary["best_selection_hard"] == 1.0
    assert result.finish_reason == "no_improvement"
    assert summary["ship"]["gap"] == pytest.approx(0.75)
    assert (
        "by the one trained on, the gain differs by +75.0 points"
        in read_record(project.folder / "run").verdict
    )


async def test_equal_graders_have_no_gap_for_any_rollouts(
    make_project: MakeProject,
) -> None:
    project = make_project(
        *ALONE, "evaluation.ship_grader=exact", rows=items(8, 12, 0), agent=unsteady
    )
    await project.train()
    [shipped] = project.events(ShipTested)
    assert shipped.pairs and shipped.difference
    assert shipped.gap == project.summary()["ship"]["gap"] == 0.0
    assert (
        "by the one trained on, the gain is the same" in read_record(project.folder / "run").verdict
    )


async def test_a_score_that_a_one_line_rule_reaches_is_reported(make_project: MakeProject) -> None:
    project = make_project(
        *STRICT,
        *ALONE,
        rows=items(8, 8, 0, ("green",)),
        optimizer={"reflect.failure": json.dumps(append("- a"))},
    )
    await project.train()
    assert any(
        "one-line rule (majority answer)" in notice.text
        for notice in read_record(project.folder / "run").notices
    )
    fair = make_project(*STRICT, *ALONE, name="fair")
    await fair.train()
    assert not any("one-line" in notice.text for notice in read_record(fair.folder / "run").notices)


async def test_a_one_line_rule_is_listed_once_for_the_initial_skill(
    make_project: MakeProject,
) -> None:
    """The check finds it, and so does the end of the run, which hands back the initial skill."""
    project = make_project(
        "evaluation.preflight=true",
        *STRICT,
        *ALONE,
        rows=items(8, 8, 0, ("green",)),
        optimizer={"reflect.failure": json.dumps(append("- a"))},
    )
    await project.train(force=True)
    assert project.best() == SKILL
    [shown] = [
        notice.text
        for notice in read_record(project.folder / "run").notices
        if "one-line rule" in notice.text
    ]
    assert [shown] == shortcut_warnings(project)


async def test_an_unproven_gain_is_not_audited_for_shortcuts(
    make_project: MakeProject,
) -> None:
    """The initial skill scores 0.83, as the rule does. The skill that was found scores 1."""
    rows = [
        item(f"{split}-{n}", "gold" if n == 0 else "red", split)
        for split in ("train", "selection")
        for n in range(6)
    ]
    project = make_project(*ALONE, rows=rows)
    result = await project.train()
    assert result.finish_reason == "inconclusive" and project.best() == SKILL
    [shipped] = project.events(ShipTested)
    assert shipped.difference == pytest.approx(1 / 6)
    assert shortcut_warnings(project) == [
        "A one-line rule (majority answer) scores 0.83, the skill 0.83: that score needs no skill."
    ]


async def test_a_proven_gain_is_audited_for_shortcuts(make_project: MakeProject) -> None:
    """The initial skill scores 0.25, as the rule does. The improved skill scores 1."""
    project = make_project(*ALONE, *LONG, rows=items(8, 8, 4))
    result = await project.train()
    assert result.finish_reason == "improved" and project.best() != SKILL
    before = read_record(project.folder / "run").point("ship_initial")
    assert before is not None and before.score == 0.25
    assert shortcut_warnings(project) == []


async def test_repeated_pairs_of_the_ship_test_count_as_one_item(
    make_project: MakeProject,
) -> None:
    project = make_project(*ALONE, "train.num_epochs=9", rows=items(8, 4, 2))
    await project.train()
    [shipped] = project.events(ShipTested)
    assert shipped.pairs > 2 * (4 + 2)
    tested = [event for event in project.events(EvaluationFinished) if event.split == "test"]
    assert tested and all(event.scored > 2 for event in tested)
    lines = [line for event in tested for line in event_lines(event)]
    assert all(line.endswith(" on 2 test items") for line in lines)
    record = read_record(project.folder / "run")
    assert [row.items for row in comparisons(record)] == [4 + 2, 2]
    assert sum(row.items for row in record.types) == 2


def shortcut_warnings(project: TrainingProject) -> list[str]:
    return [event.message for event in project.events(Warned) if event.what == "shortcut"]


async def test_a_proposal_with_a_hidden_answer_is_blocked_and_recorded(
    make_project: MakeProject,
) -> None:
    rows = [
        {**row, "answer": "a long and telling answer" if row["split"] == "test" else row["answer"]}
        for row in items(8, 8, 2)
    ]
    leaking = json.dumps(append("- Say a long and telling answer.", "- green means g."))
    project = make_project(*STRICT, *ALONE, rows=rows, optimizer={"reflect.failure": leaking})
    await project.train()
    [blocked] = project.events(Discarded)
    assert (blocked.stage, blocked.evidence) == ("leak_check", "a long and telling answer")
    assert "item test-00" in blocked.reason or "item test-01" in blocked.reason
    assert "telling" not in project.best()
    assert "green means g." in project.best()
    assert project.history()[0]["n_edits_blocked"] == 1
    assert project.summary()["edits_blocked"] == 1
    assert not any(
        "long and telling" in section for section in map(system, project.asked("rollout"))
    )


async def test_later_prompts_name_a_refused_proposal_and_its_words_in_the_next_epoch_too(
    make_project: MakeProject,
) -> None:
    rows = [
        {**row, "answer": "a long and telling answer" if row["split"] == "test" else row["answer"]}
        for row in items(8, 8, 2)
    ]
    leaking = json.dumps(append("- Say a long and telling answer."))
    project = make_project(
        *STRICT, *ALONE, "train.num_epochs=2", rows=rows, optimizer={"reflect.failure": leaking}
    )
    await project.train()
    told = [
        '"- Say a long and telling answer.": refused because of "a long and telling answer"'
        in task(call)
        for call in project.asked("reflect.failure")
    ]
    assert not told[0] and told[-1], told


@pytest.mark.parametrize("gate", ["strict", "screening"])
@pytest.mark.parametrize("together", [True, False])
async def test_an_answer_split_over_two_edits_is_blocked_where_they_meet(
    make_project: MakeProject, gate: str, together: bool
) -> None:
    rows = [
        {**row, "answer": "a long and telling answer" if row["split"] == "test" else row["answer"]}
        for row in items(8, 8, 2)
    ]
    halves = ["- Say a long and", "- telling answer."]
    replies = iter([halves, []] if together else [halves[:1], halves[1:]])
    project = make_project(
        f"evaluation.gate={gate}",
        "evaluation.ship_test=false",
        "train.num_epochs=2",
        "optimizer.use_slow_update=false",
        "optimizer.use_meta_skill=false",
        "evaluation.use_gate=false" if gate == "strict" else "evaluation.use_gate=true",
        rows=rows,
        optimizer={"reflect.failure": lambda _: json.dumps(append(*next(replies, [])))},
    )
    await project.train()
    [blocked] = project.events(Discarded)
    assert (blocked.stage, blocked.evidence) == ("leak_check", "a long and telling answer")
    assert blocked.step == (1 if together else 2)
    assert not ("a long and" in project.best() and "telling answer" in project.best())


async def test_a_proposal_that_quotes_the_graders_rule_or_a_selection_item_is_blocked(
    make_project: MakeProject,
) -> None:
    rows = [{**row, "rule": f"^{row['answer']}(?#house rule)$"} for row in items(8, 8, 0)]
    hidden = next(
        row["input"] for row in rows if row["split"] == "selection" and row["type"] == "gold"
    )
    rows = [
        {
            **row,
            "input": f"{row['input']} {row['input']}x" if row["input"] == hidden else row["input"],
        }
        for row in rows
    ]
    quoting = json.dumps(
        append(
            "- Match ^g(?#house rule)$ always.",
            f"- For {hidden} {hidden} say o.",
            "- green means g.",
        )
    )
    project = make_project(
        *STRICT,
        *ALONE,
        "env.grader={regex: {column: rule}}",
        rows=rows,
        optimizer={"reflect.failure": quoting},
    )
    await project.train()
    assert [event.reason.partition(" of item")[0] for event in project.events(Discarded)] == [
        "carries grader",
        "carries item text",
    ]
    assert (
        "house rule" not in project.best()
        and hidden not in project.best()
        and "green means g." in project.best()
    )


@pytest.mark.parametrize("mode", ["rewrite_from_suggestions", "full_rewrite_minibatch"])
async def test_a_rewrite_with_a_hidden_answer_is_blocked(
    make_project: MakeProject, mode: str
) -> None:
    rows = [
        {**row, "answer": "a long and telling answer" if row["split"] == "test" else row["answer"]}
        for row in items(8, 8, 2)
    ]
    leaking = "# Colours\n\n- Say a long and telling answer.\n"
    patch = {
        "revise_suggestions": [
            {"type": "add_rule", "title": "t", "motivation": "m", "instruction": "Add a rule."}
        ],
        "skill_candidates": [{"title": "t", "change_summary": [], "new_skill": leaking}],
    }
    project = make_project(
        *STRICT, *ALONE, f"optimizer.skill_update_mode={mode}", rows=rows,
        optimizer={
            "reflect.failure": json.dumps({"patch": patch}),
            "rewrite": json.dumps({"new_skill": leaking}),
        },
    )  # fmt: skip
    await project.train()
    assert project.best() == SKILL
    assert project.summary()["edits_blocked"] == 1
    assert project.history()[0]["action"] in ("skip_leak", "skip_no_patches")


async def test_the_summary_has_the_documented_fields_and_counts_every_call(
    make_project: MakeProject,
) -> None:
    project = make_project("train.num_epochs=2")
    await project.train()
    summary = project.summary()
    known = """version config baseline_selection_hard best_selection_hard final_selection_hard
        final_selection_soft best_step current_origin best_origin total_steps total_accepts
        total_rejects total_skips epoch_stats baseline_test_hard baseline_test_soft test_hard
        test_soft final_test_hard final_test_soft test_delta_hard final_test_delta_hard
        total_wall_time_s token_summary finish_reason diagnosis coverage usage usage_by_stage
        usage_by_role ship"""
    assert set(known.split()) <= set(summary)
    assert summary["usage"]["calls"] == len(project.calls)
    assert sum(row["calls"] for row in summary["usage_by_role"].values()) == len(project.calls)
    assert summary["usage_by_stage"]["rollout"]["calls"] == len(project.asked("rollout"))
    assert summary["coverage"] == 1.0
    assert [row["epoch"] for row in summary["epoch_stats"]] == [1, 2]
    assert (
        summary["total_accepts"] + summary["total_rejects"] + summary["total_skips"]
        == summary["total_steps"]
        == 2
    )


async def test_too_few_items_are_refused_or_the_result_is_unverified(
    make_project: MakeProject,
) -> None:
    rows = [
        {key: value for key, value in row.items() if key != "split"}
        for row in items(1, 0, 0, ("green",))
    ]
    project = make_project(rows=rows)
    with pytest.raises(InputError, match="allow_fit_only"):
        await project.train()
    result = await project.train("env.allow_fit_only=true")
    assert (result.finish_reason, result.exit_code) == ("unverified", Exit.INCONCLUSIVE)
    assert "unverified" in result.diagnosis
    assert project.best() == SKILL


HANGING_GRADERS = """
import asyncio, threading

hung = []

def always(item, answer):
    threading.Event().wait()

async def always_async(item, answer):
    await asyncio.Event().wait()

def once(item, answer):
    if not hung:
        hung.append(item["id"])
        threading.Event().wait()
    return answer in item["answers"]

def when_empty(item, answer):
    if not answer:
        hung.append(item["id"])
        threading.Event().wait()
    return answer in item["answers"]
"""


class TestPreflight:
    @pytest.mark.parametrize("grader", ["always", "always_async"])
    async def test_a_grader_that_never_finishes_ends_the_run_at_the_time_limit(
        self, make_project: MakeProject, grader: str
    ) -> None:
        project = make_project("evaluation.preflight=true", "env.exec_timeout=0.5")
        (project.folder / "own.py").write_text(HANGING_GRADERS)
        async with asyncio.timeout(60):  # so that a hanging check fails
            with pytest.raises(InfrastructureError, match=r"rollouts all failed \(timeout\)"):
                await project.train(f"env.grader={project.folder}/own.py:{grader}")

    async def test_a_grader_that_hangs_at_a_gold_answer_is_a_warning_and_the_run_continues(
        self, make_project: MakeProject
    ) -> None:
        project = make_project("evaluation.preflight=true", "env.exec_timeout=2", *STRICT)
        (project.folder / "own.py").write_text(HANGING_GRADERS)
        async with asyncio.timeout(60):
            await project.train(f"env.grader={project.folder}/own.py:once")
        [report] = project.events(PreflightFinished)
        [gold] = [check for check in report.checks if check.name == "gold"]
        assert gold.verdict == "warn"
        assert "did not finish within 2 s on item" in gold.message
        assert "env.exec_timeout" in gold.message

    async def test_a_grader_that_hangs_at_empty_answers_is_asked_about_one_of_them(
        self, make_project: MakeProject
    ) -> None:
        project = make_project("evaluation.preflight=true", "env.exec_timeout=2", *STRICT)
        own = project.folder / "own.py"
        own.write_text(HANGING_GRADERS)
        async with asyncio.timeout(60):
            await project.train(f"env.grader={own}:when_empty")
        [report] = project.events(PreflightFinished)
        assert {check.name for check in report.checks} >= {"gold", "blind"}
        assert len(load_object(f"{own}:hung")) == 1

    async def test_a_grader_that_accepts_empty_answers_is_blind_and_stops_the_run(
        self, make_project: MakeProject
    ) -> None:
        project = make_project("evaluation.preflight=true", 'env.grader={regex: {pattern: "^.*$"}}')
        with pytest.raises(PreflightStopped, match="blind") as stopped:
            await project.train()
        assert stopped.value.exit_code == Exit.PREFLIGHT
        assert not (project.folder / "run/history.json").exists()

    async def test_a_constant_evaluator_is_blind_for_a_short_skill_too(
        self, make_project: MakeProject
    ) -> None:
        project = make_project()
        project.settings += ["evaluation.preflight=true", *constant_evaluator(project.folder, 0.5)]
        with pytest.raises(PreflightStopped, match=r"blind: every rollout scores 0\.50"):
            await project.train()
        result = await project.train(force=True)
        assert "does not tell answers apart" in result.diagnosis

    async def test_an_evaluator_that_scores_0_does_not_stop_the_run(
        self, make_project: MakeProject
    ) -> None:
        project = make_project(optimizer={"reflect.failure": json.dumps(append("- Be kind."))})
        project.settings += ["evaluation.preflight=true", *constant_evaluator(project.folder, 0.0)]
        result = await project.train()
        assert result.finish_reason == "no_improvement"
        assert "rollouts scored 0, under every skill that was tried" in result.diagnosis
        assert "try more rollouts" in result.diagnosis

    async def test_the_skill_is_compared_with_none(self, make_project: MakeProject) -> None:
        project = make_project(
            "evaluation.preflight=true", *STRICT, skill="# Colours\n\nred means r.\n\nBe kind.\n"
        )
        await project.train()
        [report] = project.events(PreflightFinished)
        [lift] = [check for check in report.checks if check.name == "lift"]
        assert lift.verdict == "go" and "over no skill on 8 items" in lift.message
        assert max(lift.detail["interval"]) > 0

    async def test_a_marker_with_a_mistake_is_reported_before_training(
        self, make_project: MakeProject
    ) -> None:
        skill = "# Colours\n\n<!-- protected start -->\nred means r.\n<!-- protected end -->\n"
        project = make_project("evaluation.preflight=true", *STRICT, skill=skill)
        await project.train()
        [report] = project.events(PreflightFinished)
        [found] = [check for check in report.checks if check.name == "skill"]
        assert found.verdict == "warn"
        assert "line 3: '<!-- protected start -->' is treated as" in found.message

    async def test_a_skill_that_solves_everything_is_saturated(
        self, make_project: MakeProject
    ) -> None:
        project = make_project("evaluation.preflight=true", rows=items(8, 8, 0, ("red",)))
        with pytest.raises(PreflightStopped, match="Saturated"):
            await project.train()

    async def test_a_grader_that_rejects_every_gold_answer_stops_the_run(
        self, make_project: MakeProject
    ) -> None:
        project = make_project(
            "evaluation.preflight=true", 'env.grader={regex: {pattern: "^never this$"}}'
        )
        with pytest.raises(PreflightStopped, match="gold"):
            await project.train()
        assert not project.asked("rollout"), "no rollout is paid for"

    async def test_a_grader_that_fails_on_every_gold_answer_stops_the_run_before_rollouts(
        self, make_project: MakeProject, tmp_path: Path
    ) -> None:
        grader = tmp_path / "grader.py"
        grader.write_text("def grade(item, answer):\n    return 1 / 0\n")
        project = make_project("evaluation.preflight=true", f"env.grader={grader}:grade")
        with pytest.raises(PreflightStopped, match=r"failed on .* gold answers.*ZeroDivision"):
            await project.train()
        assert not project.asked("rollout")

    async def test_a_wrong_gold_answer_is_named(self, make_project: MakeProject) -> None:
        rows = [
            {**row, "answer": "  " if row["id"] == "train-03" else row["answer"]}
            for row in items(8, 8, 0)
        ]
        project = make_project(
            "evaluation.preflight=true", "env.grader={regex: '[a-z]'}", rows=rows
        )
        with pytest.raises(PreflightStopped):  # any letter will do, so the grader is blind, too
            await project.train()
        [report] = project.events(PreflightFinished)
        checks = {check.name: check for check in report.checks}
        assert checks["gold"].verdict == "warn" and "train-03" in checks["gold"].message
        assert (
            "agent (openai/agent)" in checks["keys"].message
            and "optimizer" in checks["keys"].message
        )

    async def test_gold_answers_are_not_reported_as_checked_when_only_a_judge_grades(
        self, make_project: MakeProject
    ) -> None:
        graded = json.dumps({"reason": "r", "score": 0.5, "advice": ""})
        project = make_project(
            "evaluation.preflight=true", "env.grader={rubric: Short.}", *STRICT, judge=graded
        )
        project.settings.append(
            f"model.judge={{id: openai/judge, base_url: '{project.server.url}'}}"
        )
        await project.train(force=True)
        [report] = project.events(PreflightFinished)
        [gold] = [check for check in report.checks if check.name == "gold"]
        assert "judge" in gold.message and "score 1" not in gold.message

    async def test_the_empty_answer_probe_runs_when_only_the_ship_grader_is_a_judge(
        self, make_project: MakeProject
    ) -> None:
        judged = (
            "evaluation.ship_grader={rubric: Short.}",
            'env.grader={any: [{regex: {pattern: "^.*$"}}, exact]}',
        )
        project = make_project("evaluation.preflight=true", *judged)
        project.settings.append(
            f"model.judge={{id: openai/judge, base_url: '{project.server.url}'}}"
        )
        with pytest.raises(PreflightStopped, match="an empty answer scores as high"):
            await project.train()

    async def test_gold_answers_are_checked_with_the_ship_grader_too(
        self, make_project: MakeProject
    ) -> None:
        project = make_project(
            "evaluation.preflight=true", 'evaluation.ship_grader={regex: "^IMPOSSIBLE-ZZZ$"}'
        )
        with pytest.raises(PreflightStopped, match="ship grader rejects every gold answer"):
            await project.train()
        [report] = project.events(PreflightFinished)
        assert {check.name: check.verdict for check in report.checks if "gold" in check.name} == {
            "gold": "go",
            "ship gold": "stop",
        }

    async def test_a_grader_error_on_an_empty_answer_does_not_stop_the_run(
        self, make_project: MakeProject, tmp_path: Path
    ) -> None:
        (tmp_path / "grader.py").write_text(
            "def grade(item, answer):\n    return float(answer[0] in item['answers'])\n"
        )
        project = make_project(
            "evaluation.preflight=true", f"env.grader={tmp_path}/grader.py:grade", *STRICT
        )
        assert (await project.train()).finish_reason == "improved"

    async def test_an_overridden_preflight_continues_the_run_and_is_paid_once(
        self, make_project: MakeProject
    ) -> None:
        project = make_project("evaluation.preflight=true", rows=items(8, 8, 0, ("red",)))
        with pytest.raises(PreflightStopped):
            await project.train()
        before = len(project.calls)
        result = await project.train(force=True)
        assert result.finish_reason == "no_improvement"
        assert "already" in result.diagnosis
        rolled = [event for event in project.events(RolloutFinished) if event.phase == "preflight"]
        assert len(rolled) == 24
        assert before == 2 + 24  # probes, then two passes and one without the skill

    async def test_the_preflight_report_is_a_file(self, make_project: MakeProject) -> None:
        project = make_project("evaluation.preflight=true")
        await project.train(force=True)
        report = json.loads((project.folder / "run/preflight.json").read_text())
        assert {check["name"] for check in report["checks"]} >= {
            "gold",
            "coverage",
            "blind",
            "headroom",
            "power",
            "cost",
        }
        assert report["verdict"] in ("go", "warn")


async def test_a_planted_rule_that_overfits_the_training_items_is_rejected(
    make_project: MakeProject,
) -> None:
    """It solves every training item and breaks all others."""

    def gamed(call: Call) -> str:
        if "use the table" not in system(call):
            return knowing(call)
        return answers.get(task(call), "lost")

    rows = items(8, 8, 0)
    answers = {row["input"]: row["answer"] for row in rows if row["split"] == "train"}
    project = make_project(
        *ALONE,
        rows=rows,
        agent=gamed,
        optimizer={"reflect.failure": json.dumps(append("- use the table."))},
    )
    result = await project.train()
    assert project.history()[0]["action"] == "reject"
    assert result.finish_reason == "no_improvement"
    assert (
        "use the table" in (project.folder / "run/steps/step_0001/candidate_skill.md").read_text()
    )
    verdict = json.loads((project.folder / "run/steps/step_0001/verdict.json").read_text())
    assert len(verdict["evidence"]["broken"]) == 2


async def test_noise_alone_is_never_improved(make_project: MakeProject) -> None:
    def coin(call: Call) -> str:
        return "r" if random.Random(call.body["seed"]).random() < 0.5 else "unknown"

    project = make_project(
        "train.num_epochs=2",
        rows=items(6, 8, 0, ("red",)),
        agent=coin,
        optimizer={"reflect.failure": json.dumps(append("- Be kind."))},
    )
    result = await project.train()
    assert result.finish_reason in ("no_improvement", "inconclusive")
