"""Update modes, gates, slow updates and notes together: what was paid for acts or is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from skillfit.errors import InputError
from skillfit.run.events import (
    Discarded,
    GateDecided,
    ReflectionFinished,
    RunFinished,
    SlowUpdateFinished,
)
from skillfit.run.records import EditEffect
from skillfit.skill import (
    NOTE_OP,
    SLOW_UPDATE_OP,
    Skill,
    appendix_notes,
    slow_update_text,
    without_placeholder,
)
from tests.support.chat_server import Call
from tests.training.practice_project import (
    TrainingProject,
    analyse,
    append,
    items,
    read_corpus,
    readable,
    rewrite,
    section,
)
from tests.training.project_fixture import MakeProject

MODES = ("patch", "rewrite_from_suggestions", "full_rewrite_minibatch")
GATES = {
    "screening": (),
    "strict": ("evaluation.gate=strict",),
    "gate off": ("evaluation.use_gate=false",),
}
SLOW = {
    "no lesson": (),
    "gated lesson": ("optimizer.use_slow_update=true",),
    "forced lesson": (
        "optimizer.use_slow_update=true",
        "optimizer.slow_update_gate_with_selection=false",
    ),
}
NOTES = {"no notes": (), "notes": ("optimizer.use_skill_aware_reflection=true",)}
FRONTMATTER = "---\nname: colours\ndescription: Letters of colours.\n---\n"
FENCED = "<!-- PROTECTED_START -->\n- red means r.\n<!-- PROTECTED_END -->"
SKILL = f"{FRONTMATTER}# Colours\n\nAnswer with the letter of the colour.\n\n{FENCED}\n"
LESSON = "Name every colour once."
NOTE = "Look at the first word."
EPOCHS = 3


def one_rule_and_a_note(call: Call) -> str:
    """One rule a step, so that the skill still changes in later epochs; and an attack on the
    protected text.
    """
    found, skill = analyse(call), section(call.text, "current_skill")
    patch = found["patch"]
    patch["revise_suggestions"] = patch["revise_suggestions"][:1]
    rule = patch["edits"][0]["content"] if patch["edits"] else ""
    attack = {"op": "replace", "target": "- red means r.", "content": "- red means x."}
    patch["edits"] = [*patch["edits"][:1], attack]
    for candidate in patch["skill_candidates"]:
        candidate["new_skill"] = unfenced(f"{skill}\n{rule}")
    return json.dumps({**found, "appendix_notes": [NOTE]})


def one_rule(call: Call) -> str:
    found = read_corpus(call)
    return json.dumps({**found, "edits": found["edits"][:1]})


def unfenced(text: str) -> str:
    """The text without its protected region."""
    return text.replace(FENCED, "")


def forgetful_rewrite(call: Call) -> str:
    found = rewrite(call)
    return json.dumps({**found, "new_skill": unfenced(found["new_skill"])})


OPTIMIZER = {
    "reflect.failure": one_rule_and_a_note,
    "rewrite": forgetful_rewrite,
    "slow_update": json.dumps({"slow_update_content": LESSON}),
}
SMALL = (
    "optimizer.proposer=reflect",
    f"train.num_epochs={EPOCHS}",
    "train.batch_size=12",
)


@pytest.mark.parametrize(
    ("mode", "gate", "slow", "notes"),
    list(itertools.product(MODES, GATES, SLOW, NOTES)),
    ids=lambda value: value.replace(" ", "_"),
)
async def test_what_was_paid_for_is_applied_or_its_refusal_is_said(
    make_project: MakeProject, mode: str, gate: str, slow: str, notes: str
) -> None:
    project = make_project(
        *SMALL,
        f"optimizer.skill_update_mode={mode}",
        *GATES[gate],
        *SLOW[slow],
        *NOTES[notes],
        rows=items(12, 12, 4, ("red", "green", "blue")),
        skill=SKILL,
        optimizer=OPTIMIZER,
    )
    result = await project.train()
    assert result.finish_reason in ("improved", "no_improvement", "inconclusive")
    assert [record["step"] for record in project.history()] == list(range(1, EPOCHS + 1))
    check_best(project)
    check_protected(project)
    check_lessons(project, slow, pools_edits=gate == "screening")
    check_notes(project, notes)


@pytest.mark.parametrize("slow", ["gated lesson", "forced lesson"])
@pytest.mark.parametrize("gate", GATES)
async def test_lessons_act_beside_a_proposer_that_reads_all_rollouts(
    make_project: MakeProject, gate: str, slow: str
) -> None:
    project = make_project(
        *SMALL,
        "optimizer.proposer=corpus",
        *GATES[gate],
        *SLOW[slow],
        rows=items(12, 12, 4, ("red", "green", "blue")),
        skill=SKILL,
        optimizer={**OPTIMIZER, "reflect.corpus": one_rule},
    )
    await project.train()
    check_best(project)
    check_protected(project)
    check_lessons(project, slow, pools_edits=gate == "screening")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slow", ["gated lesson", "forced lesson"])
async def test_the_screening_gate_that_is_off_is_the_strict_gate_that_is_off(
    make_project: MakeProject, mode: str, slow: str
) -> None:
    found = []
    for gate in ("screening", "strict"):
        project = make_project(
            *SMALL,
            *SLOW[slow],
            *NOTES["notes"],
            f"optimizer.skill_update_mode={mode}",
            f"evaluation.gate={gate}",
            "evaluation.use_gate=false",
            rows=items(12, 12, 4, ("red", "green", "blue")),
            skill=SKILL,
            optimizer=OPTIMIZER,
            name=gate,
        )
        await project.train()
        files = readable(project.folder / "run")
        found.append(
            {name: files[name] for name in files if name.startswith(("skills/", "steps/"))}
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("mode", MODES)
async def test_notes_stay_when_the_leak_check_refuses_what_the_step_proposed(
    make_project: MakeProject, mode: str
) -> None:
    """Each half of a hidden answer passes alone."""
    answer = "a long and telling answer"
    rows = [
        {**row, "answer": answer if row["split"] == "test" else row["answer"]}
        for row in items(8, 8, 2)
    ]
    halves = ["- Say a long and", "- telling answer."]

    def leaking(call: Call) -> str:
        found = {**analyse(call), "appendix_notes": [NOTE]}
        found["patch"] = {
            "edits": append(*halves)["patch"]["edits"],
            "revise_suggestions": [
                {"type": "add_rule", "title": "t", "motivation": "m", "instruction": half}
                for half in halves
            ],
            "skill_candidates": [
                {"title": "t", "change_summary": [], "new_skill": f"{SKILL}- Say {half}"}
                for half in ("this.", answer)
            ][::-1],
        }
        return json.dumps(found)

    written = json.dumps({"change_summary": [], "new_skill": "\n".join([SKILL, *halves])})
    project = make_project(
        "optimizer.proposer=reflect",
        f"optimizer.skill_update_mode={mode}",
        *NOTES["notes"],
        rows=rows,
        optimizer={"reflect.failure": leaking, "rewrite": written},
    )
    await project.train()
    assert any(event.stage == "leak_check" for event in project.events(Discarded))
    assert [edit.edit.content for edit in pool(project, NOTE_OP)] == [NOTE]


async def test_the_origin_of_a_skill_with_an_empty_memory_is_its_step(
    make_project: MakeProject,
) -> None:
    """The region that the first epoch reserves is not part of what a run hands back."""
    project = make_project(
        *SMALL,
        *SLOW["gated lesson"],
        "evaluation.gate=strict",
        rows=items(12, 12, 4, ("red", "green", "blue")),
        skill=SKILL,
        optimizer={**OPTIMIZER, "slow_update": json.dumps({"slow_update_content": ""})},
    )
    await project.train()
    assert project.history()[1]["action"] == "accept_new_best"
    summary = project.summary()
    assert (summary["best_step"], summary["best_origin"]) == (2, "step_0002")


async def test_a_lesson_that_must_not_enter_is_reported_as_not_added(
    make_project: MakeProject,
) -> None:
    rows = [
        {**row, "answer": "a long and telling answer" if row["split"] == "test" else row["answer"]}
        for row in items(12, 12, 2, ("red", "green", "blue"))
    ]
    lesson = json.dumps({"slow_update_content": "Say a long and telling answer."})
    project = make_project(
        *SMALL,
        *SLOW["gated lesson"],
        "evaluation.gate=strict",
        rows=rows,
        optimizer={**OPTIMIZER, "slow_update": lesson},
    )
    await project.train()
    assert [event.action for event in project.events(SlowUpdateFinished)] == [
        "inject_placeholder",
        "refused",
        "refused",
    ]


def test_skill_aware_reflection_goes_with_a_proposer_that_writes_notes(
    make_project: MakeProject,
) -> None:
    project = make_project(*NOTES["notes"])
    assert project.inputs("optimizer.proposer=auto").config.proposer == "reflect"
    with pytest.raises(InputError, match=r"optimizer\.proposer: corpus writes no notes"):
        project.inputs("optimizer.proposer=corpus")


def check_best(project: TrainingProject) -> None:
    """best_step and best_origin name the skill in best_skill.md."""
    run, summary = project.folder / "run", project.summary()
    step, origin = summary["best_step"], summary["best_origin"]
    state = json.loads((run / "runtime_state.json").read_text())
    assert (state["best_step"], state["best_origin"]) == (step, origin)
    if origin == "initial":
        assert (step, project.best()) == (0, SKILL)
    elif origin == "composed":
        assert step is None
        assert any(event.edits for event in project.events(RunFinished))
    elif origin.startswith("prune_"):
        assert step == EPOCHS
    else:
        assert without_placeholder(Skill.from_text(project.best())).hash in {
            without_placeholder(Skill.from_text(path.read_text())).hash
            for path in skill_files(run, origin)
        }
        assert step == int(origin[-4:]) if "step_" in origin else step <= EPOCHS


def skill_files(run: Path, origin: str) -> list[Path]:
    """The files that hold the skill of an origin."""
    number = origin.rpartition("_")[2]
    if origin.startswith("slow_update"):
        return [run / f"slow_update/epoch_{number}/candidate_skill.md"]
    after = run / f"skills/skill_v{number}.md"
    return (
        [after]
        if origin.startswith("appendix")
        else [after, run / f"steps/{origin}/candidate_skill.md"]
    )


def check_protected(project: TrainingProject) -> None:
    for path in (project.folder / "run").rglob("*.md"):
        if path.parent.name != "patches":
            text = path.read_text()
            assert text.startswith(FRONTMATTER) and FENCED in text, path


def check_lessons(project: TrainingProject, slow: str, *, pools_edits: bool) -> None:
    """The end of each epoch says what became of its lesson, and that is so."""
    told: list[SlowUpdateFinished] = project.events(SlowUpdateFinished)
    written = [event for event in told if event.result.slow_update_content]
    assert len(project.asked("slow_update")) == len(written)
    if slow == "no lesson":
        assert told == []
        return
    assert [event.epoch for event in told] == list(range(1, EPOCHS + 1))
    assert written
    decided = {event.name for event in project.events(GateDecided)}
    joined = pool(project, SLOW_UPDATE_OP)
    for event in written:
        present = slow_update_text(Skill.from_text(event.skill)) == LESSON
        if event.action == "join_pool":
            assert pools_edits and joined
            assert all(edit.rollouts or edit.reason for edit in joined)
        elif event.action in ("force_accept", "accept", "unchanged"):
            assert present
        else:
            assert event.action == "reject" and not present
            assert f"slow_update_epoch_{event.epoch:02}" in decided


def check_notes(project: TrainingProject, notes: str) -> None:
    """Every note that the analysts wrote is in the appendix, in the pool, or refused."""
    written = {
        note for event in project.events(ReflectionFinished) for note in event.patch.appendix_notes
    }
    assert written == ({NOTE} if notes == "notes" else set())
    pooled = pool(project, NOTE_OP)
    assert all(edit.rollouts or edit.reason for edit in pooled)
    last = sorted((project.folder / "run/skills").glob("*.md"))[-1].read_text()
    said = {edit.edit.content for edit in pooled} | {*appendix_notes(Skill.from_text(last))}
    assert written <= said | {event.what for event in project.events(Discarded)}


def pool(project: TrainingProject, op: str) -> list[EditEffect]:
    """Edits of the pool with this operation, after the last decision."""
    decisions: list[GateDecided] = [event for event in project.events(GateDecided) if event.effects]
    return [edit for edit in decisions[-1].effects if edit.edit.op == op] if decisions else []
