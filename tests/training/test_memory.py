"""What a run keeps beside its edits: notes, slow updates, the optimizer's own memory, worked
examples.
"""

from __future__ import annotations

import json
from statistics import mean

import pytest

from skillfit.config import load_config
from skillfit.errors import InputError
from skillfit.run.events import (
    Discarded,
    EvaluationFinished,
    MetaSkillFinished,
    ReflectionFinished,
    SlowUpdateFinished,
)
from skillfit.skill import Skill, appendix_notes, examples, slow_update_text
from skillfit.training.inputs import read_inputs
from tests.support.chat_server import Call
from tests.training.practice_project import (
    OPTIMIZER,
    SKILL,
    analyse,
    append,
    fingerprint,
    items,
    knowing,
    section,
    system,
)
from tests.training.project_fixture import MakeProject

STRICT = (
    "evaluation.gate=strict",
    "evaluation.ship_test=false",
    "evaluation.eval_test=false",
    "optimizer.use_slow_update=true",
    "optimizer.use_meta_skill=true",
)
ALONE = ("optimizer.use_slow_update=false", "optimizer.use_meta_skill=false")
AWARE = "optimizer.use_skill_aware_reflection=true"
NOTE = "Look at the first word."


def lapse_only(call: Call) -> str:
    return json.dumps({**append(), "appendix_notes": [NOTE]})


async def test_notes_of_a_lapse_only_step_reach_the_appendix_and_are_measured(
    make_project: MakeProject,
) -> None:
    project = make_project(*STRICT, AWARE, optimizer={"reflect.failure": lapse_only})
    await project.train()
    [record] = project.history()
    carried = Skill.from_text((project.folder / "run/skills/skill_v0001.md").read_text())
    assert record["action"] == "skip_no_patches"
    assert (record["n_execution_lapse_notes"], record["n_appendix_notes_added"]) == (1, 1)
    assert appendix_notes(carried) == (NOTE,)
    assert carried.body.startswith(
        "# Colours\n\nAnswer with the letter of the colour.\n\n- red means r.\n"
    )
    [measured] = [
        event for event in project.events(EvaluationFinished) if event.name == "appendix_step_0001"
    ]
    assert measured.skill_hash == carried.hash
    notes = json.loads((project.folder / "run/steps/step_0001/appendix_notes.json").read_text())
    assert notes == {"step_notes": [NOTE], "appendix_after": [NOTE]}


async def test_notes_stay_when_the_steps_candidate_is_rejected(make_project: MakeProject) -> None:
    reply = json.dumps({**append("- Be kind."), "appendix_notes": [NOTE]})
    project = make_project(*STRICT, AWARE, optimizer={"reflect.failure": reply})
    await project.train()
    carried = Skill.from_text((project.folder / "run/skills/skill_v0001.md").read_text())
    assert project.history()[0]["action"] == "reject"
    assert appendix_notes(carried) == (NOTE,)
    assert "Be kind" not in carried.body


async def test_too_many_notes_are_condensed_if_that_makes_them_fewer(
    make_project: MakeProject,
) -> None:
    notes = [
        "Look at the first word of the task.",
        "Look at the second word of the task.",
        "Look at the third word too.",
    ]
    reply = json.dumps({**append(), "appendix_notes": notes})
    project = make_project(
        *STRICT,
        AWARE,
        "optimizer.skill_aware_consolidate_threshold=2",
        optimizer={"reflect.failure": reply},
    )
    await project.train()
    carried = Skill.from_text((project.folder / "run/skills/skill_v0001.md").read_text())
    assert appendix_notes(carried) == ("Look twice.",)
    assert project.history()[0]["n_appendix_notes_consolidated"] == 1


async def test_condensed_notes_that_leak_are_neither_used_nor_reported_as_used(
    make_project: MakeProject,
) -> None:
    rows = [
        {**row, "answer": "a long and telling answer" if row["split"] == "test" else row["answer"]}
        for row in items(8, 8, 2)
    ]
    notes = [
        "Look at the first word of the task.",
        "Look at the second word of the task.",
        "Look at the third word too.",
    ]
    replies = {
        "reflect.failure": json.dumps({**append(), "appendix_notes": notes}),
        "appendix_consolidate": json.dumps({"notes": ["Say a long and telling answer."]}),
    }
    project = make_project(
        *STRICT,
        AWARE,
        "optimizer.skill_aware_consolidate_threshold=2",
        rows=rows,
        optimizer=replies,
    )
    await project.train()
    carried = Skill.from_text((project.folder / "run/skills/skill_v0001.md").read_text())
    assert appendix_notes(carried) == tuple(notes)
    assert "n_appendix_notes_consolidated" not in project.history()[0]


async def test_without_skill_aware_reflection_requests_and_results_have_no_notes(
    make_project: MakeProject,
) -> None:
    def noted(call: Call) -> str:
        return json.dumps({**analyse(call), "appendix_notes": [NOTE]})

    plain, sending = (
        make_project(*STRICT, name="plain"),
        make_project(*STRICT, name="sending", optimizer={"reflect.failure": noted}),
    )
    for project in (plain, sending):
        await project.train()
    assert sorted(map(fingerprint, plain.calls)) == sorted(map(fingerprint, sending.calls))
    assert plain.best() == sending.best()
    assert not any("appendix_notes" in call.text for call in plain.calls)


async def test_the_first_epoch_leaves_an_empty_memory_and_the_second_fills_it(
    make_project: MakeProject,
) -> None:
    project = make_project(
        *STRICT, "train.num_epochs=2", "optimizer.slow_update_gate_with_selection=false"
    )
    await project.train()
    first, second = project.events(SlowUpdateFinished)
    assert (first.action, slow_update_text(Skill.from_text(first.skill))) == (
        "inject_placeholder",
        "",
    )
    assert "SLOW_UPDATE_START" in first.skill
    assert second.action == "force_accept"
    assert slow_update_text(Skill.from_text(second.skill)) == "Name every colour once."
    names = {event.name for event in project.events(EvaluationFinished)}
    assert {
        "slow_update_epoch_01",
        "slow_update_epoch_02",
    } <= names  # what is carried is always measured
    folder = project.folder / "run/slow_update/epoch_02"
    for name in (
        "slow_result.json",
        "comparison_pairs.json",
        "candidate_skill.md",
        "selection_eval/results.jsonl",
    ):
        assert (folder / name).exists()
    compared = [
        (folder / f"rollout_{skill}/results.jsonl").read_text().splitlines()
        for skill in ("prev", "curr")
    ]
    assert len(compared[0]) == len(compared[1]) > 0
    result = json.loads((project.folder / "run/slow_update/epoch_02/slow_result.json").read_text())
    state = json.loads((project.folder / "run/runtime_state.json").read_text())
    assert (
        result["selection_hard"] == state["current_score"]
        and state["current_origin"] == "slow_update_epoch_02"
    )


async def test_a_slow_update_that_the_gate_rejects_is_not_used(make_project: MakeProject) -> None:
    def confused(call: Call) -> str:
        return "confused" if "Name every colour once." in system(call) else knowing(call)

    project = make_project(*STRICT, "train.num_epochs=2", agent=confused)
    await project.train()
    _, second = project.events(SlowUpdateFinished)
    assert second.action == "reject"
    assert slow_update_text(Skill.from_text(second.skill)) == ""
    assert "Name every colour once." in second.candidate
    assert (project.folder / "run/slow_update/epoch_02/verdict.json").exists()


async def test_a_forced_harmful_slow_update_is_used_but_never_the_best(
    make_project: MakeProject,
) -> None:
    def confused(call: Call) -> str:
        return "confused" if "Name every colour once." in system(call) else knowing(call)

    project = make_project(
        *STRICT,
        "train.num_epochs=2",
        "optimizer.slow_update_gate_with_selection=false",
        agent=confused,
    )
    await project.train()
    summary = project.summary()
    assert (
        "Name every colour once."
        in (project.folder / "run/skills/skill_v0002_slow_update.md").read_text()
    )
    assert "Name every colour once." not in project.best()
    assert (summary["final_selection_hard"], summary["best_selection_hard"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("mixed", {"improved", "stable_success"}),
        ("changed", {"improved"}),
        ("unchanged", {"stable_success"}),
    ],
)
async def test_the_pair_policy_selects_the_items_shown_to_the_optimizer(
    make_project: MakeProject, policy: str, kept: set[str]
) -> None:
    # One rule a step: in the second epoch some items are solved before, and one colour is learned.
    learning = ("train.num_epochs=2", "optimizer.learning_rate=1", "optimizer.min_learning_rate=1")
    project = make_project(
        *STRICT,
        *learning,
        f"optimizer.longitudinal_pair_policy={policy}",
        rows=items(6, 4, 0, ("red", "green", "blue")),
    )
    await project.train()
    _, second = project.events(SlowUpdateFinished)
    assert {pair.category for pair in second.pairs} == kept
    [call] = project.asked("slow_update")
    assert f"the same {len(second.pairs)} training items" in call.text


async def test_the_changed_policy_tops_up_from_items_without_rollouts(
    make_project: MakeProject,
) -> None:
    learning = (
        "train.num_epochs=2",
        "optimizer.learning_rate=1",
        "optimizer.min_learning_rate=1",
        "optimizer.slow_update_samples=2",
    )
    project = make_project(
        *STRICT,
        *learning,
        "optimizer.longitudinal_pair_policy=changed",
        rows=items(9, 4, 0, ("red", "green", "blue")),
    )
    await project.train()
    _, second = project.events(SlowUpdateFinished)
    assert len(second.pairs) == 2
    assert all(pair.category == "improved" for pair in second.pairs)
    assert len({pair.id for pair in second.all_pairs}) == len(second.all_pairs)
    sample = second.all_pairs[:2]  # what topped it up is chosen by its result, so it has no score
    assert second.result.prev_hard == mean(pair.prev_hard or 0.0 for pair in sample)
    assert second.result.curr_hard == mean(pair.curr_hard or 0.0 for pair in sample)
    assert len(second.all_pairs) > len(sample)


async def test_the_meta_skill_written_after_an_epoch_is_in_the_prompts_of_the_next(
    make_project: MakeProject,
) -> None:
    advice = "Short rules were kept."
    project = make_project(
        *STRICT, "train.num_epochs=3", "optimizer.learning_rate=1", "optimizer.min_learning_rate=1"
    )
    await project.train()
    assert [event.result.action for event in project.events(MetaSkillFinished)] == [
        "skip_first_epoch",
        "write_meta_skill",
        "write_meta_skill",
    ]
    advised = [
        advice in section(call.text, "optimizer_meta_skill")
        for call in project.asked("reflect.failure")
    ]
    assert advised == [False, False, True]
    *_, last = project.asked("meta_skill")
    assert advice in last.text  # and it is carried on


async def test_a_lesson_over_the_token_ceiling_is_left_out_and_reported(
    make_project: MakeProject,
) -> None:
    long = json.dumps(
        {"slow_update_content": "Name every colour once, and then name it again. " * 40}
    )
    project = make_project(
        *STRICT,
        "train.num_epochs=2",
        "optimizer.max_skill_tokens=200",
        optimizer={"slow_update": long},
    )
    await project.train()
    assert [event.action for event in project.events(SlowUpdateFinished)] == [
        "inject_placeholder",
        "refused",
    ]
    assert any(
        event.stage == "slow_update" and "200 are allowed" in event.reason
        for event in project.events(Discarded)
    )


async def test_the_meta_skill_needs_no_slow_update(make_project: MakeProject) -> None:
    project = make_project(*STRICT, "train.num_epochs=2", "optimizer.use_slow_update=false")
    await project.train()
    assert len(project.asked("meta_skill")) == 1
    assert project.events(SlowUpdateFinished) == []
    assert "SLOW_UPDATE" not in project.best()
    folder = project.folder / "run/meta_skill/epoch_02"
    assert (folder / "rollout_prev/results.jsonl").exists()
    pairs = json.loads((folder / "comparison_pairs.json").read_text())
    assert len(pairs) == 8 and set(pairs[0]["prev"]) >= {"hard", "predicted_answer"}


def by_example(call: Call) -> str:
    """Answers as its examples do; follows no rule except the first."""
    shown = {
        example.input.split()[0]: example.output
        for example in examples(Skill.from_text(system(call)))
    }
    colour = call.body["messages"][-1]["content"].split()[0]
    return shown.get(colour) or knowing(call)


async def test_worked_examples_train_without_any_optimizer_model(make_project: MakeProject) -> None:
    project = make_project(
        *STRICT, "optimizer.proposer=examples", "model.optimizer=null", agent=by_example
    )
    result = await project.train()
    assert result.finish_reason == "improved"
    assert {call.body["model"] for call in project.calls} == {"agent"}
    learned = {example.output for example in examples(Skill.from_text(project.best()))}
    assert {"g", "b", "o"} <= learned
    assert [event.group for event in project.events(ReflectionFinished)] == ["examples"]


async def test_examples_and_reflections_are_combined_and_no_model_merges_the_examples(
    make_project: MakeProject,
) -> None:
    def only_green(call: Call) -> str:
        return json.dumps(append("- green means g."))

    stages = {"reflect.failure": only_green, "reflect.success": only_green}
    project = make_project(
        *STRICT,
        "optimizer.proposer=both",
        "optimizer.lr_control_mode=none",
        agent=by_example,
        optimizer={**OPTIMIZER, **stages},
    )
    await project.train()
    assert "green means g." in project.best()
    assert {"b", "o"} <= {example.output for example in examples(Skill.from_text(project.best()))}
    assert not any('"op": "example"' in call.text for call in project.asked("merge"))
    assert project.history()[0]["selection_hard"] == 1.0


@pytest.mark.parametrize("mode", ["rewrite_from_suggestions", "full_rewrite_minibatch"])
def test_examples_with_a_rewrite_mode_are_refused(make_project: MakeProject, mode: str) -> None:
    project = make_project()
    settings = load_config(
        project.config(), [f"optimizer.skill_update_mode={mode}", "optimizer.proposer=both"]
    )
    with pytest.raises(InputError, match="patch"):
        read_inputs(settings)


async def test_a_skill_without_text_can_be_trained(make_project: MakeProject) -> None:
    project = make_project(*STRICT, *ALONE, skill="")
    await project.train()
    assert project.history()[0]["action"] == "accept_new_best"
    assert SKILL not in project.best()
