"""swebench: patches on small repositories, graded by hidden tests; Docker where it exists."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, TaskFailure
from skillfit.models.protocol import Reply, ToolCall
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.plugins.benchmarks.benchmark import find_benchmark
from skillfit.plugins.benchmarks.swebench import (
    ContainerRounds,
    PatchGrader,
    files_in,
    image_of,
    parse_log,
    suite_verdict,
)
from skillfit.skill import Skill
from skillfit.tasks import load_task
from skillfit.tasks.item import Attempt, Item
from skillfit.tasks.task import Task, prove_gold
from tests.plugins.benchmarks.agents import solver, wrong
from tests.plugins.benchmarks.sample_training import LESSON, Lab, sample_task

SKILL = Skill.from_text("# Fix\n\nFix it.\n")


@pytest.fixture(scope="module")
def sample() -> Task:
    return sample_task("swebench")


def grader_of(task: Task) -> PatchGrader:
    assert isinstance(task.grader, PatchGrader)
    return task.grader


PARAMETERS = ("1", "a-b", "x y", "/p/q")

# the log parser


def random_log(luck: random.Random) -> str:
    """Something like the output of pytest -rA, with all kinds of lines in it."""
    lines = ["============ test session starts ============", "collected 9 items", ""]
    for number in range(luck.randrange(1, 30)):
        name = luck.choice(
            [
                f"tests/test_{luck.choice('abc')}.py::test_{number}",
                f"tests/test_a.py::TestX::test_{number}[{luck.choice(PARAMETERS)}]",
                f"a/b.py::test_{luck.randrange(3)}",
            ]
        )
        reason = luck.choice(["", " - AssertionError: 1 - 2", " - ValueError", " (reason)"])
        lines.append(
            luck.choice(
                [
                    f"PASSED {name}",
                    f"FAILED {name}{reason}",
                    f"ERROR {name}{reason}",
                    f"XFAIL {name}{reason}",
                    f"XPASS {name}",
                    f"SKIPPED [{number}] {name}:12: no network",
                    f"SKIPPED {name}",
                    f"{name} PASSED   [ 12%]",
                    f"E   AssertionError: FAILED {name}",
                    "FAILED",
                    "PASSED ",
                    "",
                ]
            )
        )
    return "\n".join([*lines, "==== 3 failed, 4 passed in 0.12s ===="])


def test_logs_are_read_as_the_swebench_package_reads_them() -> None:
    module = pytest.importorskip("swebench.harness.log_parsers.python")
    luck = random.Random(11)
    statuses = set[str]()
    for _ in range(500):
        log = random_log(luck)
        assert parse_log(log) == module.parse_log_pytest(log, None), log
        statuses |= set(parse_log(log).values())
    assert statuses == {"PASSED", "FAILED", "ERROR", "XFAIL", "SKIPPED"}


def test_results_are_graded_as_the_swebench_package_grades_them() -> None:
    grading = pytest.importorskip("swebench.harness.grading")
    luck = random.Random(12)
    names = [f"t.py::test_{number}" for number in range(6)] + ["t.py::test_p[a b]", "t.py::test_q"]
    outcomes = set[bool]()
    for _ in range(800):
        statuses = {
            name: luck.choices(["PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"], [8, 1, 1, 1, 1])[
                0
            ]
            for name in names
            if luck.random() < 0.95
        }
        asked = [*names, "t.py::test_p[a"]
        fix = luck.sample(asked, luck.randrange(1, 4))
        keep = luck.sample(asked, luck.randrange(0, 5))
        gold = {"FAIL_TO_PASS": fix, "PASS_TO_PASS": keep}
        report = grading.get_eval_tests_report(statuses, gold)
        resolved = grading.get_resolution_status(report) == grading.ResolvedStatus.FULL.value
        assert suite_verdict(statuses, fix, keep).resolved == resolved, (statuses, fix, keep)
        outcomes.add(resolved)
    assert outcomes == {True, False}


def test_a_real_log_of_pytest_is_read(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n\ndef test_good():\n    pass\n\n\ndef test_bad():\n    assert 0\n\n\n"
        "@pytest.mark.skip\ndef test_later():\n    pass\n\n\n"
        "@pytest.mark.parametrize('x', ['a b', 'c'])\ndef test_many(x):\n    assert x\n"
    )
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    statuses = parse_log(done.stdout)
    assert statuses["test_it.py::test_good"] == "PASSED"
    assert statuses["test_it.py::test_bad"] == "FAILED"
    assert statuses["test_it.py::test_many[c]"] == "PASSED"
    assert "[1]" not in statuses


# grading without Docker


@pytest.mark.slow
async def test_gold_patches_resolve_their_issues(sample: Task) -> None:
    assert (len(sample.train), len(sample.selection), len(sample.test)) == (5, 5, 3)
    assert await prove_gold(sample) == []


async def test_patches_that_do_not_resolve_the_issue_score_0(sample: Task) -> None:
    grader, item = grader_of(sample), sample.items[0]
    other = next(one for one in sample.items if one.type == item.type and one.id != item.id)
    wrong = await grader.grade(item, Attempt(other.answers[0], bare=True))
    assert wrong.hard == wrong.soft == 0
    assert wrong.feedback == (
        "1 of 1 tests for the issue fail; 0 tests that passed before fail now."
    )
    for answer, expected in (
        ("no diff here", "Nothing was changed"),
        ("```diff\nx\n```", "not apply"),
    ):
        score = await grader.grade(item, Attempt(answer))
        assert score.hard == 0 and expected in score.feedback


async def test_a_patch_in_the_answer_counts_for_chat_agents(sample: Task) -> None:
    item = sample.items[0]
    answer = f"This fixes it:\n\n```diff\n{item.answers[0]}```\n"
    assert (await grader_of(sample).grade(item, Attempt(answer))).hard == 1


async def test_broken_behaviour_and_printed_results_do_not_pass(sample: Task) -> None:
    item = next(one for one in sample.items if one.type == "sample/wordmill")
    base = Path(item.content()["repository"])
    faked = "\n".join(f"PASSED {name}" for name in item.content()["FAIL_TO_PASS"])
    changed = base / "wordmill.py"
    text = changed.read_text()
    for code in (
        "raise ValueError('broken')\n",
        f"import os\nprint({faked!r})\nprint('===== 9 passed =====')\nos._exit(0)\n",
        f"import os\nprint({faked!r})\nos._exit(3)\n",
    ):
        workspace = make_workspace(sample, item, {"wordmill.py": code + text})
        try:
            score = await grader_of(sample).grade(item, Attempt("done", workspace=str(workspace)))
        finally:
            shutil.rmtree(workspace)
        assert score.hard == 0, code


async def test_a_package_that_a_repository_lacks_is_named_for_its_gold_patch(
    tmp_path: Path,
) -> None:
    (tmp_path / "tool.py").write_text("import a_package_that_nobody_has\n")
    added = "def test_tool():\n    import tool\n"
    lines = "".join(f"+{line}\n" for line in added.splitlines())
    test_patch = (
        "diff --git a/test_tool.py b/test_tool.py\nnew file mode 100644\n--- /dev/null\n"
        f"+++ b/test_tool.py\n@@ -0,0 +1,2 @@\n{lines}"
    )
    patch = test_patch.replace("test_tool.py", "other.py")
    content = {"repository": str(tmp_path), "test_patch": test_patch, "input": "q"}
    names = {"FAIL_TO_PASS": ["test_tool.py::test_tool"], "PASS_TO_PASS": []}
    item = Item("i", {**content, **names, "answers": [patch]})

    with pytest.raises(TaskFailure, match="of i imports a_package_that_nobody_has, which is not"):
        await PatchGrader().grade(item, Attempt(patch, bare=True))
    # A patch of the agent may have added the import.
    answer = Attempt(f"```diff\n{patch}```")
    assert (await PatchGrader().grade(item, answer)).hard == 0


def make_workspace(task: Task, item: Item, changes: dict[str, str]) -> Path:
    """An agent's workspace with the repository and some changed files."""
    workspace = Path(tempfile.mkdtemp())
    shutil.copytree(item.content()["repository"], workspace / "repo")
    for name, text in changes.items():
        (workspace / "repo" / name).write_text(text)
    return workspace


async def test_changed_tests_are_replaced_by_the_hidden_ones(sample: Task) -> None:
    item = sample.items[0]
    (test_file,) = files_in(item.content()["test_patch"])
    workspace = make_workspace(sample, item, {test_file: "def test_nothing():\n    pass\n"})
    try:
        score = await grader_of(sample).grade(item, Attempt("done", workspace=str(workspace)))
    finally:
        shutil.rmtree(workspace)
    assert score.hard == 0 and "1 of 1 tests for the issue fail; 0 tests" in score.feedback


@pytest.mark.slow
async def test_a_training_run_on_the_sample_learns(make_lab: Callable[..., Lab]) -> None:
    """The agent reads and writes the files of the repository with its tools."""
    lab = make_lab(solve=solver("swebench"), wrong=wrong("swebench"))
    run = await lab.train("swebench:sample", recipe="paper")
    assert LESSON in run.best_skill.text
    assert [verdict.decision for verdict in run.verdicts] == ["accept"]


@pytest.mark.slow
def test_check_grades_the_gold_patches_as_correct(make_lab: Callable[..., Lab]) -> None:
    checks = make_lab(solve=lambda call: "").check("swebench:sample", limit=3)
    assert checks["gold"]["verdict"] == "go", checks["gold"]


# data


async def test_clones_are_exported_at_the_base_commit(sample: Task, tmp_path: Path) -> None:
    item = next(one for one in sample.items if one.type == "sample/wordmill")
    clone = tmp_path / "clones" / "sample__wordmill"
    shutil.copytree(item.content()["repository"], clone)
    base = commit(clone, "base")
    (clone / "wordmill.py").write_text("# later everything was rewritten\n")
    commit(clone, "later")
    row = {
        "instance_id": "sample__wordmill-1",
        "repo": "sample/wordmill",
        "base_commit": base,
        "problem_statement": item.input,
        "hints_text": "Somebody said something.",
        "patch": item.answers[0],
        "test_patch": item.content()["test_patch"],
        "FAIL_TO_PASS": json.dumps(item.content()["FAIL_TO_PASS"]),
        "PASS_TO_PASS": item.content()["PASS_TO_PASS"],
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="there is no copy of sample/wordmill"):
        load_task(EnvSection(tasks="swebench:rows.jsonl", folder=str(tmp_path)))
    options = {"repo_root": "clones", "hints": True}
    task = load_task(
        EnvSection(tasks="swebench:rows.jsonl", folder=str(tmp_path), task_args=options)
    )
    assert "Somebody said something." in task.items[0].input
    assert "repo/wordmill.py" in task.items[0].files
    assert await prove_gold(task) == []
    row["base_commit"] = "0" * 40
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="no commit 0000"):
        load_task(EnvSection(tasks="swebench:rows.jsonl", folder=str(tmp_path), task_args=options))


def commit(folder: Path, message: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for arguments in (["init", "-q"], ["add", "--all"], ["commit", "-q", "-m", message]):
        subprocess.run(["git", *who, *arguments], cwd=folder, check=True)
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_items_without_tests_are_refused(sample: Task, tmp_path: Path) -> None:
    folder = find_benchmark("swebench").folder / "sample"
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "train" / "items.json"
    rows = json.loads(path.read_text())
    path.write_text(json.dumps([{**rows[0], "FAIL_TO_PASS": "[]"}, *rows[1:]]))
    with pytest.raises(InputError, match="has no FAIL_TO_PASS tests"):
        load_task(EnvSection(tasks="swebench:copy", folder=str(tmp_path)))


# Docker


def test_missing_docker_is_an_error_before_anything_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("swebench")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match=r"Docker, which was not found[^{]*\{docker: false"):
        load_task(EnvSection(tasks="swebench:sample?docker=true"))


STAND_IN = """#!{python}
# Plays the docker program: containers are folders, and commands run in them on this machine.
import os, subprocess, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/calls", "a") as log:
    print(*sys.argv[1:], file=log)
command, arguments = sys.argv[1], sys.argv[2:]
if command == "run":
    print("container-1")
elif command == "exec":
    given = [a for a in arguments if a != "--interactive"]
    arguments = [a.replace("/testbed", here + "/testbed") for a in given]
    sys.exit(subprocess.run(arguments[1:]).returncode)
elif command == "rm":
    pass
else:
    sys.exit("unknown command")
"""


def stand_in_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program.parent


def run_tool(command: str) -> Reply:
    arguments = json.dumps({"command": command})
    return Reply("", (ToolCall("1", "run_command", arguments),))


async def test_the_agent_works_in_the_container_and_a_missing_harness_is_a_failure(
    sample: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the docker program. The harness itself finds no Docker here."""
    pytest.importorskip("swebench")
    bin_folder = stand_in_docker(tmp_path, monkeypatch)
    item = sample.items[0]
    shutil.copytree(item.content()["repository"], bin_folder / "testbed")
    commit(bin_folder / "testbed", "base")
    long = run_tool("head -c 20000 /dev/zero | tr '\\0' x")
    script = [run_tool("ls; false"), long, run_tool("echo changed > /dev/null"), "Done."]
    model = ScriptedModel([*script])
    rounds = ContainerRounds(model, "Work. {skill}", "princeton-nlp/SWE-bench_Lite", 5, 60)
    _, score = await rounds(SKILL, item, seed=1)
    assert score.hard == 0 and score.feedback == "Nothing was changed."
    result = model.requests[1].messages[-1].content
    assert "tests" in result and "[exit code 1]" in result
    cut = model.requests[2].messages[-1].content
    assert cut.startswith("…xxx") and "[exit code 0]" in cut and len(cut) == 10_000
    calls = (bin_folder / "calls").read_text()
    assert calls.startswith(f"run --detach --rm --network=none {image_of(item.id)}")
    assert calls.rstrip().endswith("rm --force container-1")

    (name,) = files_in(item.answers[0])
    script = [run_tool(f"echo '# more' >> {name}"), "Done."]
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    rounds = ContainerRounds(ScriptedModel(script), "Work. {skill}", "no/such-dataset", 5, 60)
    with pytest.raises(TaskFailure, match="the harness wrote no report") as raised:
        await rounds(SKILL, item, seed=1)
    assert raised.value.kind == "docker"


async def test_files_that_the_agent_creates_in_the_container_are_part_of_its_patch(
    sample: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for docker and for the harness, which resolves every issue."""
    bin_folder = stand_in_docker(tmp_path, monkeypatch)
    item = sample.items[0]
    shutil.copytree(item.content()["repository"], bin_folder / "testbed")
    commit(bin_folder / "testbed", "base")
    (name,) = files_in(item.answers[0])
    script = [run_tool(f"echo '# more' >> {name}; echo 'X = 1' > new.py; git add {name}"), "Done."]
    rounds = ContainerRounds(ScriptedModel(script), "Work. {skill}", "no/such-dataset", 5, 60)
    harness = bin_folder / "harness"
    report = json.dumps({"resolved_ids": [item.id]})
    harness.write_text(
        f'#!/bin/sh\nif [ "$1" != -m ]; then exec {sys.executable} "$@"; fi\n'
        f"echo '{report}' > skillfit.skillfit.json\n"
    )
    harness.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(harness))
    attempt, score = await rounds(SKILL, item, seed=1)
    assert score.hard == 1
    assert sorted(files_in(attempt.answer)) == sorted(["new.py", name])
    assert "+X = 1" in attempt.answer


async def test_invalid_command_arguments_are_reported_to_the_model(
    sample: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_folder = stand_in_docker(tmp_path, monkeypatch)
    item = sample.items[0]
    shutil.copytree(item.content()["repository"], bin_folder / "testbed")
    commit(bin_folder / "testbed", "base")
    nested = '{"command": ' + "[" * 100_000 + "]" * 100_000 + "}"
    texts = (nested, "{", "[1]", '{"command": null}')
    calls = [Reply("", (ToolCall("1", "run_command", text),)) for text in texts]
    model = ScriptedModel([*calls, "Done."])
    rounds = ContainerRounds(model, "Work. {skill}", "x", 9, 60)
    attempt, score = await rounds(SKILL, item, seed=1)
    results = [step.text for step in attempt.steps if step.kind == "tool_result"]
    assert results == ['error: call run_command with {"command": "…"}'] * 4
    assert score.feedback == "Nothing was changed."


async def test_a_docker_error_is_a_failure_of_its_own_kind(
    sample: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\necho $1 >> "$0.calls"\n'
        "echo 'Cannot connect to the Docker daemon' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    rounds = ContainerRounds(ScriptedModel([]), "Work. {skill}", "x", 5, 60)
    with pytest.raises(TaskFailure, match="Cannot connect to the Docker daemon") as raised:
        await rounds(SKILL, sample.items[0], seed=1)
    assert raised.value.kind == "docker"
    assert Path(f"{program}.calls").read_text().split() == ["run"] * 3


async def test_a_docker_call_that_fails_once_is_retried(
    sample: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_folder = stand_in_docker(tmp_path, monkeypatch)
    program = bin_folder / "docker"
    program.rename(bin_folder / "working")
    program.write_text(
        f'#!/bin/sh\nif [ ! -e "$0.failed" ]; then : > "$0.failed"; echo busy >&2; exit 125; fi\n'
        f'exec {bin_folder / "working"} "$@"\n'
    )
    program.chmod(0o755)
    item = sample.items[0]
    shutil.copytree(item.content()["repository"], bin_folder / "testbed")
    commit(bin_folder / "testbed", "base")
    rounds = ContainerRounds(ScriptedModel(["Done."]), "Work. {skill}", "x", 5, 60)
    _, score = await rounds(SKILL, item, seed=1)
    assert score.feedback == "Nothing was changed."
    assert [line.split()[0] for line in (bin_folder / "calls").read_text().splitlines()] == [
        *("run", "exec", "rm")
    ]


async def test_an_endless_command_is_killed_and_reported_to_the_model(
    sample: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_folder = stand_in_docker(tmp_path, monkeypatch)
    item = sample.items[0]
    shutil.copytree(item.content()["repository"], bin_folder / "testbed")
    commit(bin_folder / "testbed", "base")
    model = ScriptedModel([run_tool("echo begun; sleep 600"), "Done."])
    rounds = ContainerRounds(model, "Work. {skill}", "x", 5, 60, command_seconds=1)
    attempt, _ = await rounds(SKILL, item, seed=1)
    (result,) = (step.text for step in attempt.steps if step.kind == "tool_result")
    assert result.startswith("begun\n") and "[killed: it ran for 1 s" in result


@pytest.mark.parametrize(
    ("removal", "reason"),
    [
        ("echo 'removal is in progress' >&2; exit 1", "removal is in progress"),
        ("sleep 600", "time limit"),
    ],
)
async def test_a_container_that_cannot_be_removed_does_not_lose_the_result(
    removal: str,
    reason: str,
    sample: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bin_folder = stand_in_docker(tmp_path, monkeypatch)
    program = bin_folder / "docker"
    program.rename(bin_folder / "working")
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = rm ]; then {removal}; fi\nexec {bin_folder / "working"} "$@"\n'
    )
    program.chmod(0o755)
    item = sample.items[0]
    shutil.copytree(item.content()["repository"], bin_folder / "testbed")
    commit(bin_folder / "testbed", "base")
    model = ScriptedModel(["Done."])
    rounds = ContainerRounds(model, "Work. {skill}", "x", 5, 60, remove_seconds=1)
    with pytest.warns(UserWarning, match=f"container-1 could not be removed: {reason}"):
        _, score = await rounds(SKILL, item, seed=1)
    assert score.feedback == "Nothing was changed."
