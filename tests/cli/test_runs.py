"""Commands on an existing run: list, show, apply, undo, export, verify."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from starlette.responses import JSONResponse, Response

from skillfit.api import Run
from skillfit.config import load_config
from skillfit.errors import Exit
from skillfit.models.protocol import ROLES
from skillfit.plain_text import mean_score
from skillfit.report import open_details
from skillfit.run.directory import RunDirectory
from skillfit.run.events import GateDecided, RolloutFinished
from skillfit.run.records import EditEffect, Evidence
from skillfit.skill import Edit
from tests.cli.cli_project import SMALL, Shell, process
from tests.report.recorded_runs import WrittenRun, improved, screening_run
from tests.support.chat_server import Call, ChatServer


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, with its skill beside it."""
    shutil.copytree(finished, tmp_path / "project", dirs_exist_ok=True)
    journal = tmp_path / "project" / "run"
    _point_at(journal, finished, tmp_path / "project")
    return journal


def test_show_has_the_text_that_the_leak_check_blocked(shell: Shell, tmp_path: Path) -> None:
    path = asyncio.run(improved(tmp_path / "run"))
    shown = " ".join(shell("show", path).out.split())
    assert '"The answer to t03 is 42.", which carries gold answer of item t03' in shown
    [blocked] = shell("show", path, "--json").json["rejections"]
    assert (blocked["what"], blocked["evidence"]) == ("The answer to t03 is 42.", "")


def test_show_says_why_an_edit_has_no_effect(shell: Shell, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    first, reason = Edit("append", content="- Be brief."), "repeats s0001e01 (pending)"
    effects = [
        EditEffect("s0001e01", 1, first, "pending", 0.1, rollouts=9, reason="effect +0.1"),
        EditEffect("s0001e02", 1, first, "dropped", reason=reason),
    ]
    decided = GateDecided(
        name="step_0001",
        step=1,
        decision="inconclusive",
        reason="",
        evidence=Evidence(),
        effects=effects,
    )
    run.emit(decided)
    run.close()
    assert reason in " ".join(shell("show", run.path).out.split())


def _point_at(run: Path, old: Path, new: Path) -> None:
    import sqlite3

    with sqlite3.connect(run / "journal.sqlite") as db:
        db.execute("UPDATE events SET data = replace(data, ?, ?)", (str(old), str(new)))
    db.close()


def skill_of(run: Path) -> Path:
    return run.parent / "triage-tickets" / "SKILL.md"


def test_ls_and_show_report_the_result(shell: Shell, run: Path) -> None:
    (listed,) = shell("ls", run.parent, "--json").json
    assert listed["run"] == str(run) and listed["finish_reason"] == "improved"
    assert "improved" in shell("ls", run.parent).out
    shown = shell("show", run)
    assert (
        shown.code == 0 and "step 1" in shown.out and "promoted" in shown.out and "●" in shown.out
    )
    assert shell("show", run, "--json").json["gates"][0]["name"] == "step_0001"
    assert "No runs" in shell("ls").out


def test_ls_lists_the_scores_on_fresh_rollouts_as_the_other_views_do(
    shell: Shell, run: Path
) -> None:
    (listed,) = shell("ls", run.parent, "--json").json
    record = Run.open(run).record
    initial, best = record.point("ship_initial"), record.point("ship_best")
    assert initial and best and listed["fresh"] == {"baseline": initial.score, "best": best.score}
    assert listed["fresh"] != listed["selection"]
    shown = rf"{mean_score(initial.score)} +{mean_score(best.score)}"
    (row,) = shell("ls", run.parent).out.splitlines()[1:]
    assert re.search(rf" improved +{shown} ", row)
    arrow = shown.replace(" +", " → best skill ")
    assert f"score on fresh rollouts: initial skill {arrow}" in shell("show", run).out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports closed pipes otherwise")
@pytest.mark.parametrize(
    "arguments", [("show",), ("show", "--json"), ("diff",), ("ls",), ("--help",), ("nonsense",)]
)
def test_output_that_nobody_reads_ends_a_command_quietly(
    arguments: tuple[str, ...], run: Path
) -> None:
    """As after `skillfit show RUN | head -1`."""
    command, *options = arguments
    places = {"show": [run], "diff": [run], "ls": [run.parent]}
    child = process(command, *places.get(command, []), *options, cwd=run.parent)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    said = child.stderr.read()
    code = child.wait()
    if command == "nonsense":  # an error is not hidden
        assert code == Exit.USAGE and "nonsense" in said
    else:
        assert (code, said) == (128 + 13, "")
    child.stderr.close()


def test_ls_marks_a_best_score_that_fresh_rollouts_did_not_confirm(
    shell: Shell, config: Path
) -> None:
    few = ("env.limit=6", "evaluation.preflight=false", "--rollouts", 120)
    assert shell("train", config, *few, "--run", "runs/one").code == 4
    (listed,) = shell("ls", "runs", "--json").json
    assert listed["unproven"] and listed["selection"]["best"] > listed["selection"]["baseline"]
    row = shell("ls", "runs").out.splitlines()[1]
    assert re.search(r"inconclusive +0\.\d+ +0\.\d+ \(not confirmed\)", row)


def test_every_view_shows_the_same_usage_after_a_later_check(shell: Shell, config: Path) -> None:
    trained = shell("train", config, *SMALL, "--run", "runs/one", "--json").json
    assert shell("check", config, *SMALL, "--run", "runs/one", "--json").code == 0
    record = Run.open("runs/one").record
    assert record.usage.calls > trained["usage"]["calls"]
    (listed,) = shell("ls", "runs", "--json").json
    shown = shell("show", "runs/one", "--json").json
    assert listed["usage"]["calls"] == shown["usage"]["calls"] == record.usage.calls
    assert f"{record.usage.calls:,} calls" in shell("show", "runs/one").out
    assert shell("report", "runs/one", "--format", "md").code == 0
    assert f"{record.usage.calls:,} calls" in Path("runs/one/report.md").read_text()


def test_ls_of_a_missing_folder_is_an_error(shell: Shell) -> None:
    refused = shell("ls", "nope")
    assert refused.code == 2 and "nope is not a folder" in refused.err


@pytest.mark.parametrize("journal", ["no database at all", ""])
def test_a_run_that_cannot_be_read_does_not_hide_the_others(
    journal: str, shell: Shell, run: Path
) -> None:
    (run.parent / "damaged").mkdir()
    (run.parent / "damaged" / "journal.sqlite").write_text(journal)
    listed = shell("ls", run.parent, "--json")
    assert [one["run"] for one in listed.json] == [str(run)]
    assert listed.code == 0 and "damaged" in listed.err


def test_diff_shows_what_changed_between_any_two_steps(shell: Shell, run: Path) -> None:
    assert "+- Mentions of" in shell("diff", run).out
    assert shell("diff", run, "1", "1").out == ""
    assert (
        shell("diff", run, "0", "best", "--json").json["diff"]
        == shell("diff", run, "initial", "best", "--json").json["diff"]
        != ""
    )
    assert "no step '99'" in shell("diff", run, "99").err


WORDS = ("measured to help", "likely", "no evidence")


def test_every_view_says_the_same_about_each_line_of_the_final_skill(
    shell: Shell, run: Path
) -> None:
    edits = [edit for edit in shell("show", run, "--json").json["edits"] if edit["in_best"]]
    words = {edit["id"]: edit["evidence"] for edit in edits}
    assert words and set(words.values()) <= set(WORDS)
    shown, compared = shell("show", run), shell("diff", run)
    rows = shown.out.splitlines()
    assert all(any(key in row and word in row for row in rows) for key, word in words.items())
    assert all(word in compared.err and word not in compared.out for word in words.values())
    listed = shell("diff", run, "--json").json["edits"]
    assert {edit["id"]: edit["evidence"] for edit in listed} == words
    shell("report", run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert all(f"<small>{word}</small>" in page for word in words.values())
    applied = shell("apply", run, "--yes", "--json").json["edits"]
    assert {edit["id"]: edit["evidence"] for edit in applied} == words


def test_diff_of_an_unchanged_skill_prints_an_empty_patch_and_the_reason(
    shell: Shell, config: Path, run: Path
) -> None:
    assert "Nothing changed." in shell("diff", run, "1", "1").err
    assert shell("train", config, *SMALL, "budget.calls=20", "--run", "stopped").code == 5
    output = shell("diff", "stopped")
    assert (output.code, output.out) == (0, "")
    assert "the run handed back the initial skill (budget reached)" in output.err
    assert "unproven" not in output.err
    Path("stopped/unproven_skill.md").write_text("# Found\n")
    output = shell("diff", "stopped")
    assert "skillfit diff stopped initial unproven" in output.err
    refused = shell("diff", run, "initial", "unproven")
    assert refused.code == 2 and "The run has no step 'unproven'" in refused.err


def test_steer_accepts_a_text_that_begins_with_a_dash(shell: Shell, config: Path) -> None:
    shell("train", config, "evaluation.preflight=false", "budget.calls=12", "--run", "r")
    output = shell("steer", "r", "reword", "s0001e01", "- Answer with the label alone.", "--json")
    assert output.code == 0 and output.json["text"] == "- Answer with the label alone."
    refused = shell("steer", "r", "budget", "calls", "-5")
    assert refused.code == 2 and "'-5' is not a budget." in refused.err
    assert "No such option: --jsn" in shell("steer", "r", "stop", "--jsn").err


def test_steer_refuses_an_unknown_action_and_lists_those_of_its_help(
    shell: Shell, config: Path
) -> None:
    shell("train", config, "evaluation.preflight=false", "budget.calls=12", "--run", "r")
    refused = shell("steer", "r", "nonsense")
    assert refused.code == 2 and "Unknown action 'nonsense'" in refused.err
    actions = refused.err.partition("Actions: ")[2].strip(".\n").split(", ")
    edits, notes = ["veto", "pin", "reword", "approve", "decline", "release"], ["right", "wrong"]
    assert actions == [*edits, *notes, "budget", "stop", "answer"]


def test_what_people_say_about_answers_is_exported_for_the_next_run(
    shell: Shell, config: Path
) -> None:
    shell("train", config, "evaluation.preflight=false", "budget.calls=12", "--run", "r")
    with open_details(Path("r")) as details:
        item = next(details.rollouts()).item
    noted = shell("steer", "r", "wrong", item, "It names the old queue.")
    assert noted.code == 0 and "Recorded." in noted.out
    refused = shell("steer", "r", "right", "no-such-item")
    assert refused.code == 2 and "has no rollout 'no-such-item'" in refused.err
    exported = shell("export", "r", "--json")
    assert exported.json["notes"] == 1
    feedback = Path(exported.json["folder"]) / "feedback.json"
    (note,) = json.loads(feedback.read_text())
    assert (note["item"], note["verdict"]) == (item, "wrong")
    again = load_config(config, [f"optimizer.feedback={feedback}"])
    assert again.optimizer.feedback == {item: "wrong: It names the old queue."}


def test_steer_refuses_an_unknown_edit(shell: Shell, config: Path) -> None:
    small = ("evaluation.preflight=false", "env.limit=10", "budget.calls=25")
    assert shell("train", config, *small, "--run", "r").code == 5
    (edit, *_), wrong = Run.open("r").record.edits, "s0001e99"
    refused = shell("steer", "r", "veto", wrong)
    assert refused.code == 2 and f"The run in r has no edit '{wrong}'." in refused.err
    assert edit.id in refused.err and not Path("r/steering.jsonl").exists()
    assert "No person has decided" in shell("steer", "r", "release", edit.id).err
    assert shell("steer", "r", "veto", edit.id).code == 0
    assert shell("steer", "r", "release", edit.id).code == 0
    assert Run.open("r").record.decisions == ()


def test_steer_accepts_any_edit_before_the_run_has_a_pool(shell: Shell, config: Path) -> None:
    shell("train", config, "evaluation.preflight=false", "budget.calls=12", "--run", "r")
    assert shell("steer", "r", "veto", "s0001e01").code == 0


@pytest.mark.parametrize("decision", [("veto", "s0001e01"), ("budget", "calls", "5")])
def test_steer_refuses_a_folder_without_a_run_and_writes_nothing(
    shell: Shell, tmp_path: Path, decision: tuple[str, ...]
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "todo.txt").write_text("hi")
    refused = shell("steer", folder, *decision)
    assert refused.code == 2 and f"{folder} is not a run directory" in refused.err
    assert [path.name for path in folder.iterdir()] == ["todo.txt"]


def test_steer_refuses_a_run_whose_journal_is_gone(shell: Shell, run: Path) -> None:
    (run / "journal.sqlite").unlink()
    refused = shell("steer", run, "veto", "s0001e01")
    assert refused.code == 2 and "it has no journal.sqlite" in refused.err
    assert not (run / "steering.jsonl").exists() and not (run / ".steering.lock").exists()


def test_apply_shows_the_diff_and_undo_restores_every_byte(shell: Shell, run: Path) -> None:
    skill = skill_of(run)
    before = skill.read_bytes()
    refused = shell("apply", run)
    assert refused.code == 2 and "+- Mentions of" in refused.out and skill.read_bytes() == before
    assert shell("apply", run, "--yes").code == 0
    assert skill.read_text() == Run.open(run).best_skill.text != before.decode()
    assert "has that skill already" in shell("apply", run, "--yes").out
    assert shell("apply", run, "--undo").code == 0
    assert skill.read_bytes() == before
    assert "is not applied" in shell("apply", run, "--undo").err


def test_a_forced_apply_writes_the_skill_that_was_found_and_not_proven(
    shell: Shell, config: Path
) -> None:
    few = ("env.limit=6", "evaluation.preflight=false", "--rollouts", 120)
    assert shell("train", config, *few, "--run", "one").code == 4
    skill, found = skill_of(config), Path("one/unproven_skill.md").read_text()
    before = skill.read_text()
    refused = shell("apply", "one", "--yes").err
    assert "did not show an improvement" in refused and "--force" in refused
    assert shell("apply", "one", "--yes", "--force").code == 0
    assert skill.read_text() == found != before
    assert shell("apply", "one", "--undo").code == 0
    assert skill.read_text() == before


def test_apply_refuses_a_changed_skill_and_keeps_protected_text(shell: Shell, run: Path) -> None:
    skill = skill_of(run)
    mine = "<!-- PROTECTED_START -->\nNever promise a date.\n<!-- PROTECTED_END -->\n"
    skill.write_text(skill.read_text() + "\n" + mine)
    assert "has changed since the run began" in shell("apply", run, "--yes").err
    assert shell("apply", run, "--yes", "--force").code == 0
    assert "Never promise a date." in skill.read_text() and "Mentions of" in skill.read_text()


def test_a_forced_apply_writes_the_body_of_the_best_skill_with_its_markers(
    shell: Shell, config: Path
) -> None:
    own, other = config.parent / "triage-tickets" / "SKILL.md", Path("other/SKILL.md")
    rule = "<!-- PROTECTED_START -->\nNever promise a date.\n<!-- PROTECTED_END -->"
    advice = "<!-- SLOW_UPDATE_START -->\nRead twice.\n<!-- SLOW_UPDATE_END -->"
    own.write_text(f"{own.read_text()}\n{rule}\n\n{advice}\n")
    settings = (*SMALL, "env.limit=0", "train.batch_size=40", "train.num_epochs=3")
    assert shell("train", config, *settings, "--run", "r").code == 0
    other.parent.mkdir()
    best, head = Run.open("r").best_skill, "---\nname: other\ndescription: Other.\n---\n"
    assert "Mentions of" in best.body and rule in best.body and advice in best.body
    for document, named in ((own, ()), (other, ("--to", "other"))):
        document.write_text(f"{head}# Other\n")
        assert shell("apply", "r", "--yes", "--force", *named).code == 0
        assert document.read_text() == f"{head}{best.body}"


def test_undo_refuses_a_file_that_changed_after_apply(shell: Shell, run: Path) -> None:
    shell("apply", run, "--yes")
    skill_of(run).write_text("mine now\n")
    assert "has changed since it was applied" in shell("apply", run, "--undo").err
    assert skill_of(run).read_text() == "mine now\n"


def test_a_forced_undo_keeps_a_copy_of_the_text_it_replaces(shell: Shell, run: Path) -> None:
    before = skill_of(run).read_text()
    for text in ("mine now\n", "mine again\n"):
        shell("apply", run, "--yes")
        skill_of(run).write_text(text)
        undone = shell("apply", run, "--undo", "--force", "--json").json
        assert skill_of(run).read_text() == before
        [copy] = undone["copies"]
        assert Path(copy).read_text() == text


def test_apply_prints_a_command_that_undoes_it(shell: Shell, run: Path) -> None:
    moved = run.rename(run.with_name("my run"))
    applied = shell("apply", moved, "--yes").out
    (line,) = re.findall("Undo with: (.*)", applied)
    before = (moved / "skills" / "skill_v0000.md").read_text()
    assert skill_of(moved).read_text() != before
    done = subprocess.run(line, shell=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert skill_of(moved).read_text() == before


@pytest.mark.parametrize(
    "record", ["", "[]", '{"document": ', '{"document": 1, "before": null, "after": ""}']
)
def test_undo_names_a_damaged_record(shell: Shell, run: Path, record: str) -> None:
    shell("apply", run, "--yes")
    applied = skill_of(run).read_bytes()
    kept = run / "applied" / "0001.json"
    kept.write_text(record)
    refused = shell("apply", run, "--undo")
    assert refused.code == 2 and f"{kept} is damaged" in refused.err
    assert f"{run / 'skills/skill_v0000.md'}" in refused.err
    assert skill_of(run).read_bytes() == applied and kept.exists()


def test_apply_refuses_a_run_that_did_not_improve(shell: Shell, config: Path) -> None:
    shell("train", config, "evaluation.preflight=false", "budget.calls=12", "--run", "stopped")
    refused = shell("apply", "stopped", "--yes").err
    assert "did not show an improvement (budget reached)" in refused
    assert "skillfit show stopped" in refused and "--force" not in refused
    Path("stopped/unproven_skill.md").write_text("# Found\n")
    assert "stopped/unproven_skill.md" in shell("apply", "stopped", "--yes").err


def test_apply_can_write_to_another_path(shell: Shell, run: Path, tmp_path: Path) -> None:
    assert shell("apply", run, "--to", tmp_path / "elsewhere", "--yes").code == 0
    assert (tmp_path / "elsewhere" / "SKILL.md").read_text() == Run.open(run).best_skill.text
    shell("apply", run, "--undo")
    assert not (tmp_path / "elsewhere" / "SKILL.md").exists()


def test_apply_changes_nothing_when_the_old_text_cannot_be_saved(shell: Shell, run: Path) -> None:
    (run / "applied").write_text("in the way")
    before = skill_of(run).read_bytes()
    refused = shell("apply", run, "--yes")
    assert refused.code == 2 and refused.err.startswith(f"error: Cannot write {run / 'applied'}")
    assert skill_of(run).read_bytes() == before


def test_an_apply_that_fails_leaves_nothing_to_undo(shell: Shell, run: Path) -> None:
    Path("file").write_text("not a folder")
    assert shell("apply", run, "--to", "file/new", "--yes").err.startswith("error: Cannot write")
    assert "is not applied" in shell("apply", run, "--undo").err


def test_an_apply_killed_before_its_write_can_be_undone(shell: Shell, run: Path) -> None:
    before = skill_of(run).read_bytes()
    shell("apply", run, "--yes")
    skill_of(run).write_bytes(before)
    assert shell("apply", run, "--undo").code == 0 and skill_of(run).read_bytes() == before


def test_undo_changes_the_target_of_a_link_and_keeps_the_link(shell: Shell, run: Path) -> None:
    real = skill_of(run).rename(skill_of(run).with_name("real.md"))
    skill_of(run).symlink_to(real)
    before = real.read_bytes()
    shell("apply", run, "--yes")
    assert real.read_bytes() != before
    assert shell("apply", run, "--undo").code == 0
    assert skill_of(run).is_symlink() and real.read_bytes() == before


def test_apply_writes_a_complete_new_folder_and_undo_removes_its_unchanged_files(
    shell: Shell, run: Path
) -> None:
    tables = skill_of(run).parent / "references" / "tables.md"
    tables.parent.mkdir()
    tables.write_text("| a | b |\n")
    (tables.parent / "more.md").write_text("more\n")
    assert shell("apply", run, "--to", "new", "--yes").code == 0
    assert Path("new/SKILL.md").read_text() == Run.open(run).best_skill.text
    assert Path("new/references/tables.md").read_text() == "| a | b |\n"
    Path("new/references/more.md").write_text("mine\n")
    assert shell("apply", run, "--undo").code == 0
    assert [str(path) for path in Path("new").rglob("*.md")] == ["new/references/more.md"]
    assert (
        shell("apply", run, "--to", "again", "--yes").code == 0
        and shell("apply", run, "--undo").code == 0
    )
    assert not Path("again").exists()


def test_apply_to_a_new_folder_needs_the_initial_skill(shell: Shell, run: Path) -> None:
    shutil.rmtree(skill_of(run).parent)
    assert "--to new/SKILL.md" in shell("apply", run, "--to", "new", "--yes").err
    assert shell("apply", run, "--to", "new/SKILL.md", "--yes").code == 0


def test_a_run_can_be_resumed_after_its_skill_was_applied(shell: Shell, run: Path) -> None:
    shell("apply", run, "--yes")
    assert shell("resume", run, "--json").json["finish_reason"] == "improved"


def test_train_explains_that_apply_changed_the_skill(shell: Shell, config: Path) -> None:
    longer = ("env.limit=0", "train.batch_size=40", "train.num_epochs=3")
    command = ("train", config, *SMALL, *longer, "--run", "r")
    assert shell(*command).code == 0
    shell("apply", "r", "--yes")
    refused = shell(*command)
    skill = config.parent / "triage-tickets" / "SKILL.md"
    assert refused.code == 2 and f"`skillfit apply` changed {skill}." in refused.err
    assert f"skillfit resume {Path('r').absolute()}" in refused.err
    shell("apply", "r", "--undo")
    skill.write_text(f"{skill.read_text()}\nMore.\n")
    assert "was applied" not in shell(*command).err


def test_apply_to_a_new_folder_with_a_dot_in_its_name_can_be_undone(
    shell: Shell, run: Path
) -> None:
    assert shell("apply", run, "--to", "my.skill", "--yes").code == 0
    assert Path("my.skill/SKILL.md").read_text() == Run.open(run).best_skill.text
    assert shell("apply", run, "--undo").code == 0 and not Path("my.skill/SKILL.md").exists()


def test_an_unwritable_output_path_is_an_error(shell: Shell, run: Path) -> None:
    Path("file").write_text("not a folder")
    for line in (("report", run, "--out", "file/x.html"), ("verify", run, "--save", run)):
        output = shell(*line)
        assert output.code == 2 and output.err.startswith(f"error: Cannot write {line[-1]}:")


def test_export_writes_every_rollout_as_files(shell: Shell, run: Path) -> None:
    output = shell("export", run, "--out", "out", "--json").json
    written = sorted(Path("out").rglob("conversation.json"))
    assert len(written) == output["rollouts"] > 100
    first = written[0]
    turns = json.loads(first.read_text())
    result = json.loads((first.parent / "result.json").read_text())
    assert turns[0]["role"] == "user" and turns[0]["content"]
    assert turns[-1] == {"role": "assistant", "content": result["answer"]}
    assert result["id"] in first.parent.name and result["hard"] in (0.0, 1.0)
    assert (Path("out") / "steps/step_0001/rollout/predictions").is_dir()
    assert (Path("out") / "ship/predictions").is_dir()
    one = shell("export", run, "--item", result["id"], "--json").json
    assert 0 < one["rollouts"] < output["rollouts"]
    assert Path(one["folder"]) == run / "exported"
    assert shell("export", run, "--item", "nobody").code == 2


def test_report_writes_one_file(shell: Shell, run: Path) -> None:
    assert shell("report", run, "--json").json["report"].endswith("report.html")
    assert (
        shell("report", run, "--format", "md", "--out", "r.md").code == 0
        and Path("r.md").stat().st_size > 200
    )
    assert "Unknown report format" in shell("report", run, "--format", "pdf").err


def test_verify_passes_a_stable_score_and_fails_a_confirmed_drop(shell: Shell, run: Path) -> None:
    kept = shell("verify", run, "--json")
    assert kept.code == 0 and kept.json["verdict"] == "ok"
    weak = skill_of(run).parent.parent / "weak.md"
    weak.write_text("Answer in full sentences.\n")
    dropped = shell("verify", run, "--skill", weak, "--json")
    assert dropped.code == 8 and dropped.json["verdict"] == "regression"
    assert dropped.json["measured"] < dropped.json["recorded"]


def test_verify_uses_the_grader_of_its_record(shell: Shell, config: Path) -> None:
    """The ship grader scores these rollouts 0; verify uses the training grader."""
    settings = (
        *SMALL,
        "env.limit=16",
        "evaluation.use_gate=false",
        "evaluation.ship_grader={regex: '^never this$'}",
    )
    assert (
        shell("train", config, *settings, "--run", "here", "--json").json["ship"]["difference"]
        == 0.0
    )
    assert shell("verify", "here", "--json").json["recorded"] > 0


def test_verify_works_with_a_small_record(shell: Shell, run: Path) -> None:
    assert shell("verify", run, "--save", "record.json").code == 0
    record = json.loads(Path("record.json").read_text())
    assert (
        set(record) == {"config", "skill", "means", "tokens", "files"}
        and Path("record.json").stat().st_size < 20_000
    )
    shutil.rmtree(run)
    assert shell("verify", "record.json", "--repeats", "1", "--json").json["verdict"] == "ok"
    assert "neither a run nor a record" in shell("verify", "tasks.txt").err


def test_verify_reads_the_record_of_a_run_whose_grader_has_settings(
    shell: Shell, config: Path
) -> None:
    grader = "env.grader={exact: {ignore_case: true}}"  # as `skillfit init` writes it
    shell("train", config, *SMALL, grader, "--run", "r", "--force")
    assert shell("verify", "r", "--save", "record.json").code == 0
    assert shell("verify", "record.json", "--json").code in (0, Exit.REGRESSION)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ('{"config": {"env": {"sk', "it is not a JSON object"),
        ("[1, 2]", "it is not a JSON object"),
        ('{"config": {"env": {}}, "means": {}}', "skill is missing"),
        ('{"config": [], "skill": "s", "means": {}}', "config should be"),
        ('{"config": {}, "skill": "s", "means": {}}', "config.env is missing"),
        ('{"config": {"env": [1]}, "skill": "s", "means": {}}', "config.env is missing"),
        (
            '{"config": {"env": {"tasks": 7}}, "skill": "s", "means": {}}',
            "config.env.tasks should be text",
        ),
        (
            '{"config": {"env": {}}, "skill": "s", "means": {"q1": "high"}}',
            "means.q1 should be a number",
        ),
        (
            '{"config": {"env": {}}, "skill": "s", "means": {"q1": NaN}}',
            "means.q1 should be a score from 0 to 1",
        ),
        (
            '{"config": {"env": {}}, "skill": "s", "means": {"q1": 3}}',
            "means.q1 should be a score from 0 to 1",
        ),
        (
            '{"config": {"env": {}}, "skill": "s", "means": {}, "tokens": {"q1": -3}}',
            "tokens.q1 should be a number of tokens",
        ),
    ],
)
def test_a_damaged_record_is_refused_with_the_wrong_field(
    shell: Shell, written: str, why: str
) -> None:
    Path("record.json").write_text(written)
    done = shell("verify", "record.json")
    assert done.code == Exit.USAGE
    output = " ".join(done.err.split())
    assert f"record.json is neither a run nor a record of one: {why}" in output
    assert "skillfit verify RUN --save FILE" in output


def test_a_record_works_in_another_checkout(shell: Shell, run: Path, tmp_path: Path) -> None:
    record = run.parent / "ci" / "record.json"
    record.parent.mkdir()
    assert shell("verify", run, "--save", record).code == 0
    assert str(tmp_path) not in record.read_text(encoding="utf-8")
    shutil.rmtree(run)
    moved = run.parent.rename(tmp_path / "another checkout")
    line = ("verify", moved / "ci" / "record.json", "--repeats", "1", "--json")
    assert shell(*line).json["verdict"] == "ok"


def test_a_record_names_graders_and_scripts_relative_to_its_file(
    shell: Shell, config: Path, tmp_path: Path
) -> None:
    """Another checkout has the same files, and the record shows no folder of this machine."""
    (config.parent / "parts.py").write_text(
        "def grade(item, answer):\n    return 1.0 if answer == 'billing' else 0.0\n\n"
        "def reply(messages):\n    return 'billing'\n"
    )
    text = config.read_text().replace("grader: exact", "grader: parts.py:grade")
    config.write_text(text.replace("agent: practice/agent", "agent: scripted/parts.py:reply"))
    assert shell("train", config, *SMALL, "--run", "here", "--json").code == Exit.NO_IMPROVEMENT
    record = config.parent / "ci" / "record.json"
    record.parent.mkdir()
    assert shell("verify", "here", "--save", record).code == 0
    written = json.loads(record.read_text())
    assert str(tmp_path) not in record.read_text()
    assert written["config"]["env"]["grader"] == "../parts.py:grade"
    assert written["config"]["model"]["agent"]["id"] == "scripted/../parts.py:reply"
    moved = config.parent.rename(tmp_path / "another checkout")
    line = ("verify", moved / "ci" / "record.json", "--repeats", "1", "--json")
    assert shell(*line).json["measured"] == 1.0


def test_a_record_keeps_absolute_paths_of_earlier_versions(
    shell: Shell, run: Path, tmp_path: Path
) -> None:
    """They made only the paths of skill, tasks, folder and corpus relative."""
    (tmp_path / "grade.py").write_text("def grade(item, answer):\n    return 0.5\n")
    shell("verify", run, "--save", "record.json")
    record = json.loads(Path("record.json").read_text())
    record["config"]["env"]["grader"] = f"{tmp_path / 'grade.py'}:grade"
    Path("record.json").write_text(json.dumps(record))
    assert shell("verify", "record.json", "--repeats", "1", "--json").json["measured"] == 0.5


def test_verify_shows_the_second_measurement_when_it_clears_a_drop(
    shell: Shell, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = (run.parent / "tasks.jsonl").read_text().splitlines()
    answers = {task["input"]: task["answer"] for task in map(json.loads, tasks)}
    shell("verify", run, "--save", "record.json")
    items = len(json.loads(Path("record.json").read_text())["means"])

    def reply(call: Call) -> str:
        right = next(answer for question, answer in answers.items() if question in call.text)
        return right if call.number >= items else "no such category"

    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-tests")
    with ChatServer(reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        done = shell("verify", run, "model.agent=openai/one", "--repeats", "1")
    assert done.code == 0 and len(server.calls) == 2 * items
    assert done.out.startswith("ok: ") and "now 1.000 on" in done.out
    assert "(p = 1.000). " in done.out and done.out.endswith(" Measured twice.\n")


def test_eval_measures_several_models_in_one_directory(
    shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-tests")
    with ChatServer(lambda call: "billing") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        measured = shell(
            "eval",
            config,
            "--model",
            "openai/one",
            "--model",
            "openai/two",
            "--run",
            "both",
            "--json",
        ).json
    assert [one["model"] for one in measured] == ["openai/one", "openai/two"]
    assert sorted(path.name for path in Path("both").iterdir()) == ["openai-one", "openai-two"]


def test_eval_measures_several_skills_and_pays_once(shell: Shell, run: Path) -> None:
    config = run.parent / "skillfit.yaml"
    better = run.parent / "better.md"
    better.write_text(Run.open(run).best_skill.text)
    line = (
        "eval",
        config,
        "--skill",
        skill_of(run).parent,
        "--skill",
        better,
        "--split",
        "test",
        "--repeats",
        "2",
        "--json",
    )
    first, second = shell(*line).json
    assert first["hard"] < second["hard"] and second["planned"] == 40
    assert set(first["by_type"]) == {"billing", "delivery", "account", "returns", "technical"}
    assert first["interval"][0] < first["hard"] < first["interval"][1]
    for before, again in zip([first, second], shell(*line).json, strict=True):
        assert again == before | {"recorded": 40, "measured_at": again["measured_at"]}
    assert shell("eval", config, "--split", "nonsense").code == 2


def test_check_reports_go_and_estimate_gives_ranges(shell: Shell, config: Path) -> None:
    checked = shell("check", config, "--json")
    assert checked.code in (0, 9) and {"gold", "coverage", "headroom"} <= {
        one["name"] for one in checked.json["checks"]
    }
    assert any(one["detail"] for one in checked.json["checks"])
    found = shell("estimate", config, "--json").json
    low, typical, high = found["total"]["calls"]
    assert 0 < low <= typical <= high > low and {row["role"] for row in found["rows"]} == {
        "agent",
        "optimizer",
    }
    assert {"rollout", "gate", "ship", "reflect"} <= {row["stage"] for row in found["rows"]}
    of_work = found["work"]
    assert [(row["role"], row["stage"]) for row in of_work] == [
        ("agent", "check"),
        ("agent", "measuring"),
        ("agent", "ship test"),
        ("optimizer", "writing edits"),
    ]
    assert sum(row["calls"][2] for row in of_work) == sum(row["calls"][2] for row in found["rows"])
    text = shell("estimate", config).out
    assert all(row["stage"] in text for row in of_work) and "rollout  " not in text
    short = shell("estimate", config, "train.num_epochs=1", "train.batch_size=1000").out
    assert re.search(r"^1 step, ", short, re.MULTILINE)


def test_an_estimate_in_dollars_fits_a_terminal_of_80_columns(
    shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-tests")
    monkeypatch.setenv("COLUMNS", "80")
    models = ("model.agent=openai/gpt-5-mini", "model.optimizer=openai/gpt-5")
    for epochs in (2, 200):
        lines = shell("estimate", config, *models, f"train.num_epochs={epochs}").out.splitlines()
        total = next(at for at, line in enumerate(lines) if line.startswith("total"))
        stages = [line for line in lines[1 : total + 1] if line.strip() not in ROLES]
        assert {"measuring", "writing", "total"} <= {line.split()[0] for line in stages}
        for line in stages:
            assert re.search(r"\$[\d.,]+ \([<\d.,]+–[\d.,]+\)$", line.rstrip()), line


def test_estimate_reports_a_cap_too_small_for_a_step_and_a_sufficient_one(
    shell: Shell, config: Path
) -> None:
    (small,) = shell("estimate", config, "budget.calls=9", "--json").json["too_small"]
    assert (small["name"], small["cap"]) == ("calls", 9) and small["enough"] > small["least"] > 9
    assert "too little for one step" in shell("estimate", config, "budget.calls=9").out
    enough = f"budget.calls={small['enough']}"
    assert shell("estimate", config, enough, "--json").json["too_small"] == []


def test_check_tests_the_optimizers_key_before_any_rollout(
    shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-tests")
    with ChatServer(
        lambda call: JSONResponse({"error": {"message": "Incorrect API key"}}, 401)
    ) as server:
        refused = shell(
            "check",
            config,
            "model.optimizer=openai/gpt-5",
            f"model.optimizer.base_url={server.url}",
            "--run",
            "r",
        )
    assert refused.code == 6 and "Incorrect API key" in refused.err
    assert [
        event
        for event in RunDirectory.read("r").events.read()
        if isinstance(event.event, RolloutFinished)
    ] == []


def test_ls_shows_the_state_of_a_run_without_a_result(shell: Shell, config: Path) -> None:
    shell("train", config, *SMALL, "model.optimizer=handoff", "--run", "runs/r")
    (line,) = shell("ls", "runs").out.splitlines()[1:]
    assert "waiting" in line.split()


def test_check_leaves_a_finished_run_finished(shell: Shell, config: Path) -> None:
    trained = shell("train", config, *SMALL, "--run", "runs/r", "--json").json
    assert shell("check", config, *SMALL, "--run", "runs/r").code in (0, 9)
    shown = shell("show", "runs/r", "--json").json
    assert (shown["state"], shown["finish_reason"]) == ("finished", trained["finish_reason"])
    (listed,) = shell("ls", "runs", "--json").json
    assert listed["finish_reason"] == trained["finish_reason"]
    again = shell("train", config, *SMALL, "--run", "runs/r", "--json")
    assert again.json["finish_reason"] == trained["finish_reason"]
    assert "finished already: nothing was sent again" in again.err


def test_check_names_its_run_and_train_continues_with_its_rollouts(
    shell: Shell, config: Path
) -> None:
    def preflight(folder: str) -> list[str]:
        with closing(RunDirectory.read(folder)) as run:
            events = [stored.event for stored in run.events.read()]
        rollouts = [event for event in events if isinstance(event, RolloutFinished)]
        return [one.rollout for one in rollouts if one.phase == "preflight"]

    overrides = ("env.limit=8", "train.num_epochs=1", "model.prices={a: {input: 1, output: 1}}")
    checked = shell("check", config, *overrides)
    folder = shell("check", config, *overrides, "--json").json["run"]
    *_, where, command = checked.out.splitlines()
    assert f"The rollouts are in {folder}." in where
    made = preflight(folder)
    trained = shell(*shlex.split(command)[1:], "--json")
    assert Path(trained.json["run"]) == Path(folder).absolute(), trained.err
    assert made and preflight(folder) == made


def test_check_tests_a_key_that_changed_since_the_last_check(
    shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(call: Call) -> str | Response:
        if call.headers["authorization"] != "Bearer the-right-key":
            return JSONResponse({"error": {"message": "Incorrect API key"}}, 401)
        return "billing"

    monkeypatch.setenv("OPENAI_API_KEY", "the-right-key")
    with ChatServer(answer) as server:
        line = ("check", config, "model.agent=openai/a", f"model.agent.base_url={server.url}")
        assert shell(*line, "--run", "r").code in (0, 9)
        asked = len(server.calls)
        assert shell(*line, "--run", "r").code in (0, 9)
        assert len(server.calls) == asked + 1  # nothing but the key is tried again
        monkeypatch.setenv("OPENAI_API_KEY", "a-wrong-key")
        refused = shell(*line, "--run", "r")
    assert refused.code == 6 and "Incorrect API key" in refused.err


def test_init_writes_a_project_that_loads_and_never_overwrites_one(
    shell: Shell, tmp_path: Path
) -> None:
    assert (
        shell("init", "new", "--agent", "practice/agent", "--optimizer", "practice/optimizer").code
        == 0
    )
    assert shell("estimate", "new/skillfit.yaml", "budget.usd=null").code == 0
    Path("new/my-skill/SKILL.md").write_text("# Mine\n")
    refused = shell("init", "new")
    assert refused.code == 2 and "exists already" in refused.err
    assert Path("new/my-skill/SKILL.md").read_text() == "# Mine\n"


@pytest.mark.parametrize(
    ("options", "output"),
    [
        (("--grader", "regx"), "Did you mean 'regex'?"),
        (("--agent", "{id: openai/x, temprature: 1}"), "Did you mean model.agent.temperature?"),
        (("--agent", "{id: openai/x"), "'{id: openai/x' is not valid YAML"),
    ],
)
def test_init_refuses_wrong_settings_before_it_writes_anything(
    options: tuple[str, ...], output: str, shell: Shell
) -> None:
    refused = shell("init", "project", *options)
    assert refused.code == 2 and output in refused.err
    assert not Path("project").exists()


def test_init_sets_a_judge_for_a_grader_that_needs_one(shell: Shell) -> None:
    assert shell("init", "project", "--grader", "rubric").code == 0
    assert load_config(Path("project/skillfit.yaml")).model.judge is not None


def test_init_says_once_which_judge_it_has_set(shell: Shell) -> None:
    rows = [{"input": f"Why {at}?", "answer": f"Because {at} " + "is so " * 20} for at in range(5)]
    Path("tasks.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    output = shell("init", "project", "--tasks", "tasks.jsonl").out
    assert output.count("model.judge") == 1
    assert "model.judge is set to the model that uses the skill." in output
    (problem,) = shell("init", "again", "--tasks", "tasks.jsonl", "--json").json["problems"]
    assert "model.judge is set to" in problem


def test_init_uses_an_existing_skill(shell: Shell, run: Path) -> None:
    assert shell("init", "--skill", skill_of(run).parent).code == 0
    assert (
        "skill: ./project/triage-tickets" in Path("skillfit.yaml").read_text()
        and not Path("my-skill").exists()
    )


def test_init_uses_the_columns_that_the_user_names(shell: Shell, run: Path) -> None:
    lines = [f"Is {at} even?,What about {at}?,{at % 2 == 0}" for at in range(30)]
    Path("odd.csv").write_text("\n".join(["one,two,three", *lines]))
    skill = ("--skill", skill_of(run).parent, "--tasks", "odd.csv")
    assert "--field input=YOUR_COLUMN" in shell("init", *skill).err
    assert "expected NAME=COLUMN" in shell("init", *skill, "--field", "input").err
    assert "unknown field 'inptu'" in shell("init", *skill, "--field", "inptu=one").err
    output = shell("init", *skill, "--field", "input=two", "--field", "answers=three")
    assert output.code == 0 and "What about 0?" in output.out
    assert load_config("skillfit.yaml").env.fields == {"input": "two", "answers": "three"}


def test_init_prints_the_grader_as_the_option_accepts_it(shell: Shell) -> None:
    rows = [{"input": f"case {number}", "answer": "yes"} for number in range(4)]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    grader = "{exact: {ignore_case: true}}"
    made = shell("init", "new", "--tasks", "rows.jsonl", "--grader", grader)
    assert made.code == 0 and f"Grader: {grader}:" in made.out


def test_init_sets_no_grader_for_a_skill_with_evals(shell: Shell, run: Path) -> None:
    skill = skill_of(run).parent
    evals = [
        {"id": at, "prompt": f"Sort ticket {at}.", "expectations": [f"It names queue {at}."]}
        for at in range(20)
    ]
    (skill / "evals").mkdir()
    (skill / "evals" / "evals.json").write_text(json.dumps({"evals": evals}))
    output = shell("init", "new", "--skill", skill, "--json")
    assert output.code == 0 and output.json["grader"] is None
    assert "grader" not in Path("new/skillfit.yaml").read_text()


@pytest.mark.parametrize("name", ["w #1", "a: {b", "{x}", "'quoted'", "null", "näive \U0001f600"])
def test_init_writes_names_that_yaml_reads_back_unchanged(
    name: str, shell: Shell, run: Path
) -> None:
    skill = skill_of(run).parent.rename(run.parent / name)
    models = ("--agent", "practice/a: {b", "--optimizer", "{id: practice/optimizer, retries: 1}")
    assert (
        shell("init", "new", "--skill", skill, *models, "--grader", "{regex: {pattern: x}}").code
        == 0
    )
    config = load_config("new/skillfit.yaml")
    assert config.env.skill == str(skill) and config.env.grader == {"regex": {"pattern": "x"}}
    assert config.model.agent is not None and config.model.agent.id == "practice/a: {b"
    assert config.model.optimizer is not None and config.model.optimizer.retries == 1


def test_models_lists_providers_and_what_is_ready(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-shown-anywhere")
    output = shell("models", "--json")
    ready = {one["provider"]: one["ready"] for one in output.json}
    assert ready["openai"] and ready["practice"] and "cli" in ready
    assert "not-shown-anywhere" not in output.out + shell("models").out


def test_studio_prints_its_address_as_json(tmp_path: Path) -> None:
    studio = process("studio", ".", "--port", "0", "--json", cwd=tmp_path)
    try:
        assert studio.stdout is not None
        address = json.loads(studio.stdout.readline())["address"]
        assert httpx.get(address, follow_redirects=True).status_code == 200
    finally:
        studio.terminate()
        studio.communicate()


def test_mcp_prints_its_start_command_as_json(shell: Shell, tmp_path: Path) -> None:
    server = shell("mcp", "--json").json["mcpServers"]["skillfit"]
    ended = subprocess.run(
        [server["command"], *server["args"]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stderr


PLANTED = (
    "- The shop was founded by two sisters and sells garden tools, tea and lamps.",
    "- Think of the customer's day before you read the ticket for the second time.",
    "- The office is in Lyon, and the kitchen there is on the third floor.",
)
RULES = (
    "- Mentions of invoice, subscription, refund or charge mean billing.",
    "- Mentions of courier, parcel or package mean delivery.",
    "- Mentions of password, login or profile mean account.",
    "- Mentions of error, screen or crash mean technical.",
)


def test_ablate_removes_planted_useless_lines_after_a_fresh_comparison(
    shell: Shell, config: Path
) -> None:
    document = config.parent / "triage-tickets" / "SKILL.md"
    head = document.read_text().split("# Triage")[0]
    answer = "<!-- PROTECTED_START -->\nAnswer with the label alone, in lower case.\n"
    body = "\n".join([f"# Triage\n\n{answer}<!-- PROTECTED_END -->\n", *RULES, *PLANTED])
    document.write_text(f"{head}{body}\n")
    before = document.read_text()
    command = ("ablate", config, "--rollouts", 500, "--run", "here")
    measured = shell(*command)
    assert document.read_text() == before, "nothing is changed without --apply"
    assert "can go" in measured.out and "--apply" in measured.out
    output = shell(*command, "--apply", "--json").json
    assert output["applied"] and output["holds"] and output["comparison"]["rollouts"] > 0
    after = document.read_text()
    assert after == "".join(
        line for line in before.splitlines(keepends=True) if line in after.splitlines(keepends=True)
    )
    gone = set(before.splitlines()) - set(after.splitlines())
    assert gone and gone <= set(PLANTED)
    assert Path("here/former_skill/SKILL.md").read_text() == before, "the former text is kept"


NAMED = "---\nname: short\ndescription: A short skill.\n---\n\n"


@pytest.mark.parametrize(
    ("body", "graded", "why"),
    [
        ("A line.\n\nAnother line.\n", "1.0", "the skill would be empty"),
        (
            f"{NAMED}A line.\n",
            "1.0 if asked <= 120 else 1 / 0",
            "0% of 320 rollouts were scored",
        ),
        (f"{NAMED}A line.\n", "float(asked <= 120 or 'A line' in answer)", "changed by"),
    ],
)
def test_ablate_says_why_it_cut_nothing(
    shell: Shell, config: Path, body: str, graded: str, why: str
) -> None:
    """A skill that would be empty, too few scored rollouts, a loss on fresh rollouts."""
    (config.parent / "parts.py").write_text(
        "asked = 0\n\ndef grade(item, answer):\n    global asked\n    asked += 1\n"
        f"    return {graded}\n\ndef reply(messages):\n    return str(messages)\n"
    )
    text = config.read_text().replace("grader: exact", "grader: parts.py:grade")
    text = text.replace("./triage-tickets", "./short.md")
    config.write_text(text.replace("agent: practice/agent", "agent: scripted/parts.py:reply"))
    (config.parent / "short.md").write_text(body)
    done = shell("ablate", config, "--run", "here", "--apply")
    output = " ".join(done.out.split())
    assert done.code == 0 and why in output, output
    page = Path("here/report.html").read_text(encoding="utf-8")
    assert "would be empty" in page or "fresh rollouts did not show" in page
    assert (config.parent / "short.md").read_text() == body


def test_runs_are_tagged_archived_and_listed_by_that(shell: Shell, tmp_path: Path) -> None:
    for name in ("one", "two"):
        screening_run(tmp_path / "runs" / name, steps=2, items=4, rollouts=4, journaled=False)

    def listed(*options: str) -> list[str]:
        runs = shell("ls", str(tmp_path / "runs"), *options, "--json").json
        return [Path(run["run"]).name for run in runs]

    one = str(tmp_path / "runs" / "one")
    assert shell("tag", one, "base", "gpt").out.strip() == "Tags: base, gpt"
    assert shell("tag", one, "--remove", "gpt", "--json").json == {
        "tags": ["base"],
        "archived": False,
    }
    assert listed("--tag", "base") == ["one"] and listed("--tag", "gpt") == []
    assert "base" in shell("ls", str(tmp_path / "runs")).out
    shell("tag", one, "--archive")
    assert listed() == ["two"] and sorted(listed("--all")) == ["one", "two"]
    shell("tag", one, "--no-archive")
    assert sorted(listed()) == ["one", "two"]
    assert "is no tag" in shell("tag", one, "two words").err
    assert shell("tag", str(tmp_path), "x").code == 2
    (tmp_path / "runs" / "one" / "labels.json").write_text("{")
    listing = shell("ls", str(tmp_path / "runs"))
    assert "labels.json is damaged" in listing.err and "two" in listing.out
