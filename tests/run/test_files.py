"""The readable files of a run: at SkillOpt's paths, and identical after a kill and a resume."""

import json
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillfit.run.directory import RunDirectory
from skillfit.run.events import (
    CandidateBuilt,
    EditsSelected,
    EvaluationFinished,
    Event,
    GateDecided,
    MetaSkillFinished,
    PatchMerged,
    PreflightFinished,
    ReflectionFinished,
    RolloutFinished,
    RunFinished,
    SlowUpdateFinished,
    StageFinished,
    StepFinished,
)
from skillfit.run.records import (
    CurrentAndBest,
    EditEffect,
    EpochStats,
    Evidence,
    MetaSkillRecord,
    PairRecord,
    PatchRecord,
    ProposalRecord,
    RewriteRecord,
    SelectionDecision,
    SlowUpdateRecord,
    StepMemory,
    TokenCounts,
    TypeScore,
)
from skillfit.skill import Edit, EditResult
from tests.support.records import run_started, run_summary, ship_tested, standings, step_record

ROOT = Path(__file__).parents[2]
APPEND = Edit("append", content="- a rule")


def after_step(score: float, step: int) -> CurrentAndBest:
    origin = f"step_{step:04d}"
    return standings(
        current_score=score,
        current_origin=origin,
        best_score=step / 10,
        best_step=step,
        best_origin=origin,
    )


def after_slow_update(epoch: int) -> CurrentAndBest:
    """The lesson of the second epoch makes a new best skill."""
    found = after_step(0.9, 2 * epoch)
    return replace(found, best_origin="slow_update_epoch_02") if epoch == 2 else found


def pair(name: str) -> PairRecord:
    return PairRecord(name, "improved", 0.0, 1.0, task="t", prev_answer="a", curr_answer="b")


def effect(status: str) -> EditEffect:
    return EditEffect("s0001e00", 1, APPEND, status, 0.1, 0.0, 0.2, 0.9, 12)


def rollouts(phase: str, step: int, skill: str, count: int = 3) -> list[Event]:
    return [
        RolloutFinished(
            rollout=f"rollout/{phase}/{step}/{skill}/{n}",
            phase=phase,
            step=step,
            item=f"item{n}",
            repeat=0,
            skill_hash=skill,
            status="scored",
            hard=float(n % 2),
            soft=0.5,
            seconds=n / 10,
        )
        for n in range(count)
    ]


def record(mode: str = "patch") -> Iterator[Event]:
    """A run of two epochs of two steps, with the events of the loop."""
    yield run_started(
        config={"optimizer": {"skill_update_mode": mode}},
        skill="# v0\n",
        skill_hash="s0",
        total_epochs=2,
        steps_per_epoch=2,
        splits={"train": 40, "selection": 20},
    )
    yield PreflightFinished(verdict="go", checks=[])
    yield from rollouts("baseline", 0, "s0")
    yield evaluation("baseline", "selection", "s0")
    for epoch in (1, 2):
        for step in (2 * epoch - 1, 2 * epoch):
            yield from step_story(epoch, step)
        yield from rollouts("slow_update", 2 * epoch, f"s{2 * epoch - 2}")
        yield from rollouts("slow_update", 2 * epoch, f"s{2 * epoch}")
        yield GateDecided(
            name=f"slow_update_epoch_{epoch:02d}",
            step=2 * epoch,
            decision="accept",
            reason="",
            evidence=Evidence(),
        )
        yield StageFinished(epoch=epoch, step=2 * epoch, stage="slow_update", seconds=2.25)
        yield SlowUpdateFinished(
            epoch=epoch,
            action="accept",
            result=SlowUpdateRecord(
                action="accept",
                standings=after_slow_update(epoch),
                slow_update_content="x",
                prev_hash=f"s{2 * epoch - 2}",
            ),
            pairs=[pair("1")],
            all_pairs=[pair("1"), pair("2")],
            candidate=f"# slow candidate {epoch}\n",
            skill=f"# v{2 * epoch} slow\n",
            best_skill=f"# best {2 * epoch}\n",
        )
        yield StageFinished(epoch=epoch, step=2 * epoch, stage="meta_skill", seconds=0.75)
        yield MetaSkillFinished(
            epoch=epoch,
            result=MetaSkillRecord(action="write_meta_skill"),
            pairs=[pair("1")],
            all_pairs=[pair("1")],
        )
    for name, skill in (("test_baseline", "s0"), ("test_best", "s4"), ("test_final", "s4")):
        yield from rollouts("test", 0, skill)
        yield evaluation(name, "test", skill)
    yield ship_tested(difference=0.1, interval=(0.0, 0.2), skill_hash="s4")
    yield RunFinished(
        finish_reason="no_improvement",
        diagnosis="",
        best_skill="# v0\n",
        unproven_skill="# composed\n",
        summary=run_summary(
            finish_reason="no_improvement",
            total_steps=4,
            steps_done=4,
            total_accepts=4,
            best_origin="initial",
            baseline_selection_score=0.2,
            epoch_stats=(EpochStats(1, 2, 2, 0, 0, 0.2, 0.2), EpochStats(2, 2, 2, 0, 0, 0.4, 0.4)),
            token_summary={"rollout": TokenCounts(2, 20, 10), "merge": TokenCounts(1, 10, 2)},
        ),
    )


def step_story(epoch: int, step: int) -> Iterator[Event]:
    yield from rollouts("rollout", step, f"s{step - 1}")
    yield ReflectionFinished(
        step=step,
        group="minibatch_fail_000",
        source="failure",
        items=["a"],
        patch=PatchRecord((), "failure", ("a", "b"), appendix_notes=("look twice",)),
    )
    yield ReflectionFinished(
        step=step,
        group="batch_1/minibatch_succ_000",
        source="success",
        items=["b"],
        patch=PatchRecord((), "success", ("b",)),
    )
    proposal = ProposalRecord("failure", ("a",), APPEND)
    yield PatchMerged(step=step, patch=PatchRecord((proposal,), "failure"))
    yield EditsSelected(
        step=step,
        edit_budget=2,
        edits=[proposal],
        decision=SelectionDecision(
            learning_rate=2, wanted_rate=9, available=2, rate_reasoning="why"
        ),
    )
    yield CandidateBuilt(
        step=step,
        label="patch",
        skill=f"# c{step}\n",
        skill_hash=f"s{step}",
        report=[EditResult(APPEND, "applied_append")],
        rewrite=RewriteRecord(reasoning="r", new_skill="# new"),
    )
    yield from rollouts("gate", step, f"s{step}")
    yield GateDecided(
        name=f"step_{step:04d}",
        step=step,
        decision="accept",
        reason="better",
        evidence=Evidence(fixed=("item1",)),
        effects=[effect("promoted")],
    )
    yield StageFinished(epoch=epoch, step=step, stage="gate", seconds=1.5)
    yield StepFinished(
        epoch=epoch,
        step=step,
        action="accept",
        skill=f"# v{step}\n",
        skill_hash=f"s{step}",
        best_skill=f"# best {step}\n",
        record=step_record(
            step,
            epoch=epoch,
            step_in_epoch=step - 2 * (epoch - 1),
            standings=after_step(step / 10, step),
            skill_len=5,
            wall_time_s=step * 1.5,
            n_execution_lapse_notes=1,
        ),
        digest=StepMemory(step, "accept", 3, 1),
        appendix_notes=["look twice"],
    )


def evaluation(name: str, split: str, skill: str) -> EvaluationFinished:
    by_type = (
        {"math": TypeScore(3, 0.5, 0.5)} if split == "test" else {}
    )  # types are not measured on selection
    return EvaluationFinished(
        name=name,
        split=split,
        skill_hash=skill,
        hard=0.5,
        soft=0.5,
        scored=3,
        planned=3,
        by_type=by_type,
    )


def later(event: Event) -> Event:
    """The same event with the clocks of another process."""
    if isinstance(event, StepFinished):
        return replace(event, record=replace(event.record, wall_time_s=0.001))
    if isinstance(event, (StageFinished, RolloutFinished)):
        return replace(event, seconds=0.0001)
    return event


def contents(path: Path) -> dict[str, bytes]:
    files = (
        file
        for file in path.rglob("*")
        if file.is_file() and not file.name.startswith(("journal", "run.lock"))
    )
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def load(path: Path, name: str) -> Any:
    return json.loads((path / name).read_text(encoding="utf-8"))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    with RunDirectory.open(tmp_path / "whole", {}) as run:
        for event in record():
            run.events.emit(event)
    return tmp_path / "whole"


def test_every_file_that_skillopt_writes_is_at_its_path(whole: Path) -> None:
    step = {
        "candidate_skill.md",
        "merged_patch.json",
        "ranked_edits.json",
        "edit_apply_report.json",
        "patches/minibatch_fail_000.json",
        "batch_1/patches/minibatch_succ_000.json",
        "lr_decision.json",
        "trajectory_digest.json",
        "appendix_notes.json",
        "step_record.json",
        "selection_eval/results.jsonl",
        "rollout/results.jsonl",
        "verdict.json",
        "edit_effects.json",
    }
    epoch = {
        "verdict.json",
        "slow_result.json",
        "comparison_pairs.json",
        "comparison_pairs_all.json",
        "candidate_skill.md",
        "rollout_prev/results.jsonl",
        "rollout_curr/results.jsonl",
    }
    top = {
        "config.json",
        "plan.json",
        "history.json",
        "runtime_state.json",
        "summary.json",
        "best_skill.md",
        "lr_history.jsonl",
    }
    expected = (
        top
        | {"preflight.json", "ship_test.json", "edit_effects.json", "unproven_skill.md"}
        | {f"skills/skill_v{n:04d}.md" for n in range(5)}
        | {f"skills/skill_v{n:04d}_slow_update.md" for n in (2, 4)}
        | {f"steps/step_{n:04d}/{name}" for n in range(1, 5) for name in step}
        | {f"slow_update/epoch_{n:02d}/{name}" for n in (1, 2) for name in epoch}
        | {
            f"meta_skill/epoch_{n:02d}/{name}"
            for n in (1, 2)
            for name in ("meta_skill_result.json", "comparison_pairs.json")
        }
        | {
            f"{folder}/summary.json"
            for folder in ("test_eval_baseline", "test_eval", "test_eval_final")
        }
        | {
            f"{folder}/results.jsonl"
            for folder in (
                "selection_eval_baseline",
                "test_eval_baseline",
                "test_eval",
                "test_eval_final",
            )
        }
    )
    assert set(contents(whole)) == expected


def test_file_contents_match_the_events(whole: Path) -> None:
    assert [entry["step"] for entry in load(whole, "history.json")] == [1, 2, 3, 4]
    assert load(whole, "runtime_state.json") == {
        "last_completed_step": 4,
        "current_skill_path": "skills/skill_v0004_slow_update.md",
        "best_skill_path": "best_skill.md",
        "current_score": 0.9,
        "current_origin": "step_0004",
        "best_score": 0.2,
        "best_step": 0,
        "best_origin": "initial",
    }
    assert (whole / "best_skill.md").read_text() == "# v0\n"
    assert (whole / "unproven_skill.md").read_text() == "# composed\n"
    assert load(whole, "steps/step_0001/lr_decision.json")["reasoning"] == "why"
    assert (
        whole / "skills/skill_v0002.md"
    ).read_text() == "# v2\n"  # the slow update did not write over it
    assert (whole / "skills/skill_v0002_slow_update.md").read_text() == "# v2 slow\n"
    assert load(whole, "test_eval/summary.json") == {
        "math": {"total": 3, "hard_acc": 0.5, "soft_acc": 0.5},
        "overall": {"total": 3, "hard_acc": 0.5, "soft_acc": 0.5},
    }
    rows = [
        json.loads(line)
        for line in (whole / "steps/step_0002/selection_eval/results.jsonl")
        .read_text()
        .splitlines()
    ]
    assert [(row["id"], row["hard"], row["skill_hash"]) for row in rows] == [
        ("item0", 0, "s2"),
        ("item1", 1, "s2"),
        ("item2", 0, "s2"),
    ]
    assert len((whole / "lr_history.jsonl").read_text().splitlines()) == 4


def test_the_files_have_the_fields_that_users_of_skillopt_know(whole: Path) -> None:
    assert load(whole, "plan.json") == {
        "train_size": 40,
        "samples_per_epoch": 40,
        "batches_per_epoch": 2,
        "steps_per_epoch": 2,
        "total_steps": 4,
    }
    first, *_ = map(json.loads, (whole / "lr_history.jsonl").read_text().splitlines())
    rate = {
        "learning_rate": 2,
        "raw_learning_rate": 9,
        "available_update_items": 2,
        "clamped": True,
        "reasoning": "why",
        "confidence": None,
        "risk_notes": [],
        "fallback": False,
    }
    assert first == {"step": 1, "epoch": 1, **rate}
    assert load(whole, "steps/step_0001/lr_decision.json") == rate
    assert load(whole, "steps/step_0001/appendix_notes.json") == {
        "step_notes": ["look twice"],
        "appendix_after": [],
    }
    slow = [load(whole, f"slow_update/epoch_0{epoch}/slow_result.json") for epoch in (1, 2)]
    assert [one["action"] for one in slow] == ["accept", "accept_new_best"]
    assert [(one["epoch"], one["time_s"]) for one in slow] == [(1, 2.2), (2, 2.2)]
    [row] = load(whole, "slow_update/epoch_02/comparison_pairs.json")
    assert row == {
        "id": "1",
        "task": "t",
        "category": "improved",
        "prev": {"hard": 0.0, "soft": None, "predicted_answer": "a", "fail_reason": ""},
        "curr": {"hard": 1.0, "soft": None, "predicted_answer": "b", "fail_reason": ""},
    }
    assert load(whole, "meta_skill/epoch_01/comparison_pairs.json") == [row]
    meta = load(whole, "meta_skill/epoch_02/meta_skill_result.json")
    assert (meta["action"], meta["epoch"], meta["time_s"]) == ("write_meta_skill", 2, 0.8)
    summary = load(whole, "summary.json")
    assert [one["steps"] for one in summary["epoch_stats"]] == [[1, 2], [3, 4]]
    assert summary["token_summary"]["_total"] == {
        "calls": 3,
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
    }


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("rewrite_from_suggestions", "rewrite_result.json"),
        ("full_rewrite_minibatch", "full_rewrite_result.json"),
    ],
)
def test_rewrite_modes_write_their_own_result_file(tmp_path: Path, mode: str, name: str) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as run:
        for event in record(mode):
            run.events.emit(event)
    assert load(tmp_path / "run", f"steps/step_0001/{name}") == {
        "reasoning": "r",
        "new_skill": "# new",
    }
    assert not (tmp_path / "run/steps/step_0001/edit_apply_report.json").exists()


def test_replaying_a_finished_run_writes_deleted_files_again(whole: Path) -> None:
    expected = contents(whole)
    for name in expected:
        (whole / name).unlink()
    with RunDirectory.open(whole, {}) as run:
        for event in record():
            run.events.emit(later(event))
    assert contents(whole) == expected


def test_a_run_stopped_after_any_event_and_replayed_has_identical_files(
    whole: Path, tmp_path: Path
) -> None:
    events = list(record())
    for stop in range(1, len(events), 31):
        path = tmp_path / f"run{stop}"
        with RunDirectory.open(path, {}) as run:
            for event in events[:stop]:
                run.events.emit(event)
        with RunDirectory.open(path, {}) as run:
            for event in events[:stop]:
                run.events.emit(later(event))
            for event in events[stop:]:
                run.events.emit(event)
        assert contents(path) == contents(whole)


@pytest.mark.slow
def test_a_run_killed_between_an_event_and_its_files_has_identical_files(
    whole: Path, tmp_path: Path
) -> None:
    program = textwrap.dedent("""
        import os, signal, sys
        from skillfit.run.directory import RunDirectory
        from tests.run.test_files import later, record

        stop, again = int(sys.argv[2]), len(sys.argv) > 3
        with RunDirectory.open(sys.argv[1], {}) as run:
            # called before the files are written: only the event is stored
            def kill(stored):
                if stored.seq == stop:
                    os.kill(os.getpid(), signal.SIGKILL)

            run.events._listeners.insert(0, kill)
            for number, event in enumerate(record(), start=1):
                run.events.emit(later(event) if again and number < stop else event)
    """)
    events = list(record())
    last_step = max(
        number for number, event in enumerate(events, start=1) if isinstance(event, StepFinished)
    )
    for stop in (last_step, len({event.key for event in events})):
        path = tmp_path / f"killed{stop}"
        killed = subprocess.run([sys.executable, "-c", program, str(path), str(stop)], cwd=ROOT)
        assert killed.returncode == -signal.SIGKILL
        subprocess.run(
            [
                sys.executable,
                "-c",
                program.replace("== stop", "< 0"),
                str(path),
                str(stop),
                "again",
            ],
            cwd=ROOT,
            check=True,
        )
        assert contents(path) == contents(whole)


def test_growing_files_do_not_shrink_during_a_replay(tmp_path: Path) -> None:
    events = [event for event in record() if not isinstance(event, RunFinished)]
    path = tmp_path / "run"
    with RunDirectory.open(path, {}) as run:
        for event in events:
            run.events.emit(event)
    before = contents(path)
    with RunDirectory.open(path, {}) as run:
        for event in events:
            run.events.emit(later(event))
            assert contents(path) == before


def test_a_file_lost_between_event_and_write_exists_after_the_resume(whole: Path) -> None:
    before = contents(whole)
    for name in (
        "history.json",
        "steps/step_0004/step_record.json",
        "skills/skill_v0001.md",
        "best_skill.md",
    ):
        (whole / name).unlink()
    with RunDirectory.open(whole, {}) as run:
        for event in record():
            run.events.emit(event)
    assert contents(whole) == before


def test_files_do_not_depend_on_the_order_in_which_rollouts_finish(
    whole: Path, tmp_path: Path
) -> None:
    events, batch = [], []
    for event in record():
        if isinstance(event, RolloutFinished):
            batch.append(event)
            continue
        random.Random(1).shuffle(batch)
        events += [*batch, event]
        batch = []
    with RunDirectory.open(tmp_path / "run", {}) as run:
        for event in events:
            run.events.emit(event)
    assert contents(tmp_path / "run") == contents(whole)
