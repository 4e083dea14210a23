"""Wrong input of any kind: one clear sentence, the right exit code, no traceback."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import skillfit
from skillfit.errors import Exit
from tests.cli.cli_project import COMMAND, SMALL, CommandResult, Shell
from tests.support.signals import default_signals


def one_sentence(result: CommandResult, *words: str, code: int = 2) -> None:
    assert result.code == code, result
    assert result.err.count("error: ") == 1 and "Traceback" not in result.err + result.out
    for word in words:
        assert word in result.err


def test_a_wrong_key_gets_a_suggestion(shell: Shell, config: Path) -> None:
    one_sentence(
        shell("train", config, "train.num_epoch=2"),
        "unknown key train.num_epoch",
        "Did you mean train.num_epochs?",
    )


@pytest.mark.parametrize("command", ["train", "check", "estimate"])
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.num_epochs=200000", ("train.num_epochs: 200,000", "steps. At most 100,000")),
        ("train.accumulation=200000", ("train.accumulation: 200,000", "in one step")),
        ("gradient.rollouts_per_item=200000", ("gradient.rollouts_per_item: 200,000", "in one")),
        ("budget.rollouts=90000000", ("budget.rollouts: 90,000,000", "steps. At most 100,000")),
    ],
)
def test_an_unreasonably_large_plan(
    shell: Shell, config: Path, command: str, setting: str, words: tuple[str, ...]
) -> None:
    one_sentence(shell(command, config, setting), *words)
    assert not list(config.parent.glob("runs/*"))


def test_a_missing_config(shell: Shell) -> None:
    one_sentence(shell("train", "nowhere.yaml"), "nowhere.yaml", "No such file", "skillfit init")
    one_sentence(shell("train", "."), "Is a directory", "skillfit.yaml")


def test_a_missing_skill(shell: Shell, config: Path) -> None:
    one_sentence(shell("train", config, "env.skill=./nothing"), "Cannot read the skill")


def test_missing_tasks(shell: Shell, config: Path) -> None:
    one_sentence(shell("train", config, "env.tasks=./nothing.jsonl"), "nothing.jsonl")


def test_a_file_that_is_not_yaml(shell: Shell, config: Path) -> None:
    config.write_text("model: {agent: practice/agent\nenv: [")
    one_sentence(shell("train", config), "skillfit.yaml:2", "not valid YAML")


@pytest.mark.parametrize("command", ["train", "check", "estimate", "eval"])
def test_an_empty_config(command: str, shell: Shell, config: Path) -> None:
    config.write_text("")
    one_sentence(shell(command, config), "env.tasks is not set")


def test_a_task_of_one_item(shell: Shell, config: Path) -> None:
    (config.parent / "tasks.jsonl").write_text('{"input": "a", "answer": "b"}\n')
    one_sentence(
        shell("train", config), "selection", "nothing to compare skills on", "env.allow_fit_only"
    )


def test_tasks_at_an_address(shell: Shell, config: Path) -> None:
    address = "https://example.org/t.jsonl"
    one_sentence(shell("train", config, f"env.tasks={address}"), address, "Download it")


def test_a_command_without_items(shell: Shell, config: Path) -> None:
    command = ("env.tasks=command: ./grade.sh", "env.grader=null")
    one_sentence(shell("train", config, *command), "needs items", "PROGRAM < tasks.jsonl")


def test_an_empty_tasks_file(shell: Shell, config: Path) -> None:
    (config.parent / "tasks.jsonl").write_text("")
    one_sentence(shell("train", config), "tasks.jsonl")


def test_a_row_that_is_not_json(shell: Shell, config: Path) -> None:
    (config.parent / "tasks.jsonl").write_text('{"input": "a", "answer": "b"}\n{"input": \n')
    one_sentence(shell("train", config), "tasks.jsonl:2", "not valid JSON")


def test_a_skill_of_five_megabytes(shell: Shell, config: Path) -> None:
    (config.parent / "triage-tickets" / "SKILL.md").write_text("x" * 5_000_000)
    one_sentence(shell("train", config), "the limit for a skill document", "references/")


def test_an_unknown_provider(shell: Shell, config: Path) -> None:
    one_sentence(
        shell("train", config, "model.agent=opena/gpt-5"),
        "Unknown provider",
        "Did you mean 'openai'?",
    )


def test_estimate_does_not_price_an_unknown_provider(shell: Shell, config: Path) -> None:
    result = shell("estimate", config, "model.agent=opnai/gpt-5")
    assert result.code == Exit.USAGE and "Unknown provider 'opnai'" in result.err
    assert "openai" in result.err and not result.out


def test_a_model_without_a_provider(shell: Shell, config: Path, tmp_path: Path) -> None:
    hint = "A model id is provider/name, for example openai/gpt-5."
    one_sentence(shell("train", config, "model.agent=gpt-5"), "Unknown provider 'gpt-5'", hint)
    for option, model in (("--agent", "foo"), ("--optimizer", "{id: foo, retries: 1}")):
        one_sentence(shell("init", "new", option, model), "Unknown provider 'foo'", hint)
    assert not (tmp_path / "new").exists()
    assert shell("init", "new", "--agent", "cli/claude", "--optimizer", "handoff").code == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("budget.rollouts=100", "--rollouts and budget.rollouts=… are the same setting"),
        ("train.num_epochs=2", "train.num_epochs=… would have no effect"),
    ],
)
def test_rollouts_beside_a_setting_that_they_replace(
    setting: str, words: str, shell: Shell, config: Path
) -> None:
    one_sentence(shell("train", config, "--rollouts", 300, setting), words)


def test_a_missing_key(shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    one_sentence(
        shell("train", config, "model.agent=openai/gpt-5-mini", "--run", "r"),
        "OPENAI_API_KEY is not set",
        code=6,
    )


@pytest.mark.parametrize("command", ["train", "check", "eval"])
def test_a_server_that_cannot_be_reached_is_reported_before_the_retries(
    command: str, shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    agent = f"model.agent={{id: openai/m, base_url: '{url}', retries: 1}}"
    result = shell(command, config, agent)
    reason = f"Cannot reach openai/m at {url}: connection refused."
    notice = f"Retrying up to 1 time, waiting about 0.5 s: {reason}"
    assert result.code == 6 and result.err.count("Retrying") == 1, result
    assert f"warning: {notice}" in result.err.partition("error: ")[0]
    assert reason in result.err.partition("error: ")[2]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="needs a place where nobody may write, not even root",
)
def test_a_read_only_folder(shell: Shell, config: Path) -> None:
    one_sentence(shell("train", config, "--run", "/sys/skillfit-run"), "No permission to write")
    for place in ("/proc/skillfit-run", "/proc/skillfit/run"):
        one_sentence(shell("train", config, "--run", place), "Cannot create the directory", "--run")


def test_a_run_directory_that_is_a_file(shell: Shell, config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one_sentence(shell("train", config, "--run", "file"), "is a file, not a directory")


@pytest.mark.parametrize("command", ["train", "check", "estimate", "eval"])
def test_an_empty_run_directory_option(command: str, shell: Shell, config: Path) -> None:
    one_sentence(shell(command, config, "--run", ""), "--run is empty")


def test_a_run_directory_with_other_files(shell: Shell, config: Path) -> None:
    one_sentence(shell("train", config, "--run", config.parent), "holds other files")


def test_another_run_in_the_directory(shell: Shell, config: Path) -> None:
    shell("train", config, *SMALL, "budget.calls=3", "--run", "here")
    one_sentence(
        shell("train", config, *SMALL, "train.seed=7", "--run", "here"),
        "other settings",
        "train.seed",
        "--force-new",
    )
    assert (
        shell(
            "train",
            config,
            *SMALL,
            "train.seed=7",
            "budget.calls=3",
            "--run",
            "here",
            "--force-new",
        ).code
        == 5
    )
    assert Path("here.old-1").is_dir()
    result = shell("resume", "here", "train.num_epochs=9")
    one_sentence(result, "train.num_epochs: 1 -> 9", "`skillfit train` starts a new run in another")


def test_a_directory_of_another_command(shell: Shell, config: Path) -> None:
    assert shell("eval", config, "env.limit=4", "--run", "measured").code == 0
    ablate = ("ablate", config, "env.limit=4", "--rollouts", 50, "--run", "ablated")
    assert shell(*ablate).code == 0
    for folder, kind in (("measured", "an evaluation"), ("ablated", "an ablation")):
        result = shell("train", config, *SMALL, "--run", folder)
        one_sentence(result, f"{folder} holds {kind}, not a training run.", "--run")
        assert "->" not in result.err
    result = shell("eval", config, "env.limit=4", "--run", "ablated")
    one_sentence(result, "holds an ablation, not an evaluation.")
    for command in ("resume", "diff", "apply", "verify"):
        for folder, kind in (("measured", "an evaluation"), ("ablated", "an ablation")):
            one_sentence(shell(command, folder), f"{folder} holds {kind}, not a training run.")
    assert shell("show", "measured").code == 0
    assert shell("show", "ablated").code == 0
    result = shell("eval", config, "env.limit=4", "train.seed=7", "--run", "measured")
    one_sentence(result, "other settings", "--run")
    assert "--force-new" not in result.err, "eval has no such option"


@pytest.mark.parametrize(
    "wrong", ["executor=foo", "model.agent.options={threads: canary}", "model.agent=cli/nobody"]
)
def test_a_command_that_fails_before_the_start_leaves_no_run(
    wrong: str, shell: Shell, config: Path
) -> None:
    one_sentence(shell("train", config, wrong, "--run", "here"))
    assert not Path("here").exists()


def test_a_run_that_never_reached_its_model_accepts_corrected_settings(
    shell: Shell, config: Path
) -> None:
    nobody = "{id: ollama/nobody, base_url: http://127.0.0.1:1/v1, retries: 0}"
    failed = shell("train", config, *SMALL, f"model.optimizer={nobody}", "--run", "here")
    assert (
        failed.code == 6 and shell("ls", ".", "--json").json[0]["finish_reason"] == "infrastructure"
    )
    fixed = shell("train", config, *SMALL, "budget.calls=12", "--run", "here", "--json")
    assert fixed.code == 5 and fixed.json["finish_reason"] == "budget"


@pytest.mark.parametrize("command", ["resume", "show", "diff", "apply", "report"])
def test_a_directory_without_a_run(command: str, shell: Shell, tmp_path: Path) -> None:
    one_sentence(shell(command, tmp_path), "is not a run directory")
    (tmp_path / "first").mkdir()
    one_sentence(shell(command, tmp_path / "frist"), "does not exist", "Did you mean 'first'?")


def test_a_config_that_is_not_utf8_is_named_with_its_line(shell: Shell, config: Path) -> None:
    config.write_bytes(config.read_bytes() + "# Straße\n".encode("cp1252"))
    line = config.read_bytes().count(b"\n")
    one_sentence(shell("train", config), f"line {line}: byte", "Save the file as UTF-8.")


def test_a_folder_with_the_name_of_the_document(shell: Shell, config: Path) -> None:
    skill = config.parent / "triage-tickets"
    (skill / "SKILL.md").unlink()
    (skill / "SKILL.md").mkdir()
    one_sentence(shell("train", config), "SKILL.md is a folder", "markdown file")


def test_an_item_without_an_answer_is_shown_with_its_text(shell: Shell, config: Path) -> None:
    rows = [json.dumps({"input": f"Question {number}", "answer": "a"}) for number in range(20)]
    lines = [*rows, '{"input": "Where is it?"}']
    (config.parent / "tasks.jsonl").write_text("\n".join(lines))
    one_sentence(shell("train", config), "(Where is it?): has no answer")


def test_no_runs_in_this_folder(shell: Shell, tmp_path: Path) -> None:
    assert f"No runs in {tmp_path}." in shell("ls", ".").out


@pytest.mark.parametrize("command", ["resume", "show", "diff"])
def test_a_run_with_an_empty_journal(command: str, shell: Shell) -> None:
    run = Path("run")
    run.mkdir()
    (run / "journal.sqlite").touch()
    one_sentence(shell(command, run), "is empty: no run was started there")
    (run / "config.json").touch()
    one_sentence(shell(command, run), "is damaged: it is empty, but config.json is there")
    (run / "best_skill.md").touch()
    one_sentence(shell(command, run), "but best_skill.md, config.json are there")


@pytest.mark.parametrize(
    "line",
    [("init", "file"), ("demo", "--dir", "file"), ("studio", ".", "--port", "99999")],
    ids=lambda line: line[0],
)
def test_an_output_path_below_a_file(line: tuple[str, ...], shell: Shell) -> None:
    Path("file").write_text("not a folder")
    one_sentence(shell(*line), line[-1])
    assert Path("file").read_text() == "not a folder"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="needs a place where nobody may write, not even root",
)
@pytest.mark.parametrize("path", ["/sys/skillfit", "/proc/skillfit", "/dev/null/skillfit"])
@pytest.mark.parametrize("line", [("demo", "--dir"), ("init",)], ids=lambda line: line[0])
def test_an_output_path_where_no_folder_can_be_made(
    line: tuple[str, ...], path: str, shell: Shell
) -> None:
    one_sentence(shell(*line, path), path)


@pytest.mark.parametrize(
    "line",
    [("demo", "--dir"), ("show",), ("verify",), ("apply",), ("ls",)],
    ids=lambda line: line[0],
)
def test_a_path_that_is_too_long(line: tuple[str, ...], shell: Shell) -> None:
    one_sentence(shell(*line, "x" * 300), "File name too long")


@pytest.mark.parametrize("setting", ["env.tasks=", "--run="])
def test_a_setting_with_a_path_that_is_too_long(setting: str, config: Path, tmp_path: Path) -> None:
    """As a process, so that output at its exit is seen too."""
    line = [*COMMAND, "train", str(config), setting + "x" * 300]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    one_sentence(CommandResult(ended.returncode, ended.stdout, ended.stderr))


@pytest.mark.parametrize("tracker", ["jsonl:file/x", "jsonl:folder", "tensorboard:file/x"])
def test_a_tracker_that_cannot_write(tracker: str, shell: Shell, config: Path) -> None:
    Path("file").write_text("not a folder")
    Path("folder").mkdir()
    one_sentence(
        shell("train", config, *SMALL, "--track", tracker),
        "cannot write to",
        tracker.partition(":")[2],
    )


def test_errors_are_json_for_programs(shell: Shell) -> None:
    result = shell("train", "nowhere.yaml", "--json")
    assert (
        result.json == {**result.json, "finish_reason": "usage", "exit_code": 2}
        and "nowhere.yaml" in result.json["error"]
    )


def test_a_count_that_is_too_large_is_refused_before_anything_is_spent(
    shell: Shell, config: Path, finished: Path
) -> None:
    count = 50_001  # of each item: two items are already over the limit
    for line in (
        ("eval", config, "--repeats", count, "budget.calls=1"),
        ("verify", finished / "run", "--repeats", count, "budget.calls=1"),
        ("ablate", config, "--rollouts", 2 * count, "budget.calls=1"),
    ):
        one_sentence(shell(*line), "At most 100,000 are possible")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (("data", "make", "foo"), "Missing option '--from'"),
        (("train",), "Missing argument"),
        (("eval", "a.yaml", "--repeats", "0"), "--repeats"),
        (("nothing",), "No such command 'nothing'"),
    ],
)
def test_errors_in_the_arguments_are_json_for_programs(
    line: tuple[str, ...], error: str, shell: Shell
) -> None:
    result = shell(*line, "--json")
    assert (result.code, result.json["exit_code"], result.json["finish_reason"]) == (2, 2, "usage")
    assert error in result.json["error"] and result.json["hint"] and "Usage: " in result.err
    assert shell(*line).out == ""


def test_an_unknown_tracker(shell: Shell, config: Path) -> None:
    one_sentence(shell("train", config, "--track", "nobody-knows-this"), "nobody-knows-this")


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits")
def test_a_full_disk(config: Path, tmp_path: Path) -> None:
    import resource

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing then fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    line = [*COMMAND, "train", str(config), *SMALL, "--run", "here", "--plain"]
    ended = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, preexec_fn=no_room)
    assert ended.returncode in (2, 6) and "Traceback" not in ended.stderr
    assert ended.stderr.count("error: ") == 1 and "disk" in ended.stderr.lower()


def test_an_internal_error_prints_one_sentence_writes_a_log_and_debug_shows_it(
    tmp_path: Path,
) -> None:
    code = (
        "import sys, skillfit.models as m; m.known_providers = None; "
        "from skillfit.cli.app import main; main(sys.argv[1:])"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    line = [sys.executable, "-c", code]
    ended = subprocess.run([*line, "models"], capture_output=True, text=True, env=environ)
    assert (
        ended.returncode == 1
        and "skillfit itself failed (TypeError" in ended.stderr
        and "Traceback" not in ended.stderr
    )
    (log,) = tmp_path.glob("skillfit-error-*.log")
    assert "Traceback" in log.read_text() and str(log) in ended.stderr
    debug = subprocess.run(
        [*line, "--debug", "models"], capture_output=True, text=True, env=environ
    )
    assert debug.returncode == 1 and "Traceback" in debug.stderr


def test_ctrl_c_during_imports_ends_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    line = [sys.executable, "-m", "skillfit", "--version"]
    ended = subprocess.run(
        line,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=default_signals,
    )
    assert (ended.returncode, ended.stderr) == (130, "")


def test_python_m_skillfit_is_the_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "skillfit", "--version"], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, f"skillfit {skillfit.__version__}\n")


def test_lint_names_path_and_line(shell: Shell, config: Path) -> None:
    skill = config.parent / "triage-tickets" / "SKILL.md"
    assert shell("lint", skill.parent).code == 0
    skill.write_text("---\nname: Wrong Name\ndescription: d\n---\nbody\n")
    result = shell("lint", skill.parent)
    assert result.code == 2 and f"{skill}:2: error: " in result.out
    assert json.loads(shell("lint", skill.parent, "--json").out)[0]["line"] == 2


@pytest.mark.parametrize("command", ["train", "check", "eval", "ablate"])
def test_a_run_directory_inside_the_skill_is_refused(
    shell: Shell, config: Path, command: str
) -> None:
    skill = config.parent / "triage-tickets"
    inside = skill / "runs" / "a"
    refused = shell(command, config, "--run", inside)
    one_sentence(refused, f"{inside} is inside the skill {skill}", "outside of the skill")
    assert [path.name for path in skill.iterdir()] == ["SKILL.md"]


def test_eval_refuses_a_run_directory_inside_a_skill_that_it_measures(
    shell: Shell, config: Path
) -> None:
    other = Path("other")
    other.mkdir()
    (other / "SKILL.md").write_text("# Other\n")
    refused = shell("eval", config, "--skill", other, "--run", other / "run")
    one_sentence(refused, "is inside the skill other")
    assert [path.name for path in other.iterdir()] == ["SKILL.md"]


def test_a_run_directory_that_the_skill_leaves_out_is_accepted_and_resumed(
    shell: Shell, config: Path
) -> None:
    hidden = config.parent / "triage-tickets" / ".runs" / "a"
    small = (*SMALL, "budget.calls=12", "--run", hidden)
    assert [shell("train", config, *small).code for _ in range(2)] == [5, 5]


@pytest.mark.parametrize("command", ["check", "train", "eval"])
def test_the_template_of_init_is_refused_before_anything_is_spent(
    command: str, shell: Shell
) -> None:
    models = ("--agent", "practice/agent", "--optimizer", "practice/optimizer")
    shell("init", "new", *models, "--grader", "{rubric: Describe here what a good answer is.}")
    refused = shell(command, "new/skillfit.yaml", "budget.usd=null")
    one_sentence(refused, "Still the template's text: the tasks (example-1, example-2, example-3)")
    assert "and the rubric in env.grader" in refused.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "override", "meant"),
    [
        ("skillfit.yml", "", "skillfit.yaml"),
        ("skillfit.yaml", "env.tasks=task.jsonl", "tasks.jsonl"),
        ("skillfit.yaml", "env.skill=triage-ticket", "triage-tickets"),
    ],
)
def test_a_path_with_a_typo_gets_the_name_of_the_file_beside_it(
    shell: Shell,
    config: Path,
    name: str,
    override: str,
    meant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(config.parent)
    result = shell("check", name, *([override] if override else []))
    assert result.code == Exit.USAGE and f"Did you mean {meant!r}?" in result.err
