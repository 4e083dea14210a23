"""`train`, `resume` and the live run, from the outside."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from rich.console import Console

from skillfit.api import Run
from skillfit.cli.interrupts import run_in_terminal
from skillfit.cli.output import result_text, shell_line
from skillfit.cli.terminal import Terminal
from skillfit.cli.train import config_inputs
from skillfit.errors import Exit
from skillfit.models.protocol import AnswerPending, Usage
from skillfit.models.providers.handoff import pending
from skillfit.record.record import Record, RolloutUse, SplitScores
from skillfit.run.control import Control, Interrupted
from skillfit.run.directory import RunDirectory
from skillfit.run.events import RolloutFinished
from skillfit.run.records import ShipResult
from skillfit.run.store import JOURNAL
from skillfit.training.start import start
from tests.cli.cli_project import COMMAND, SMALL, Shell, process


def test_train_json_prints_the_result_as_exactly_one_line(shell: Shell, config: Path) -> None:
    result = shell("train", config, *SMALL, "--run", "here", "--json")
    line = result.json
    assert list(line) == [
        "finish_reason",
        "run",
        "best_step",
        "metric",
        "selection",
        "fresh",
        "test",
        "ship",
        "unproven",
        "cut",
        "skill_tokens",
        "rollouts",
        "usage",
        "wall_s",
    ]
    assert Path(line["run"]) == Path("here").absolute()
    assert set(line["selection"]) == set(line["fresh"]) == {"baseline", "best"} and set(
        line["test"]
    ) == {
        "baseline",
        "best",
        "final",
    }
    assert set(line["ship"]) == {one.name for one in fields(ShipResult)}
    assert line["cut"] == [] and set(line["skill_tokens"]) == {"initial", "best", "found"}
    assert line["usage"]["calls"] > 30 and line["usage"]["tokens"] > line["usage"]["calls"]
    codes = {"improved": 0, "no_improvement": 3, "inconclusive": 4}
    assert result.code == codes[line["finish_reason"]]


def test_a_finished_run_is_one_database_file(shell: Shell, config: Path) -> None:
    shell("train", config, *SMALL, "--run", "here", "--json")
    assert [path.name for path in Path("here").glob(f"{JOURNAL}*")] == [JOURNAL]


def test_repeating_a_command_costs_nothing(shell: Shell, config: Path) -> None:
    first = shell("train", config, *SMALL, "--run", "here", "--json").json
    again = shell("train", config, *SMALL, "--run", "here", "--json").json
    assert {**again, "wall_s": 0} == {**first, "wall_s": 0}
    resumed = shell("resume", "here", "--json").json
    assert {**resumed, "wall_s": 0} == {**first, "wall_s": 0}


def test_a_new_run_is_not_billed_for_the_run_it_replaces(shell: Shell, config: Path) -> None:
    path = Path("here").absolute()
    before = shell("train", config, *SMALL, "--run", path, "--json").json["usage"]["calls"]
    bills: list[int] = []

    class Billed(Terminal):
        def tick(self, spent: Usage | None = None) -> None:
            bills.extend([spent.calls] if spent else [])

    inputs = config_inputs(config, [*SMALL, "budget.calls=9"])
    run_in_terminal(
        Billed(Console()),
        lambda control: start(inputs, path, force_new=True, control=control),
    )
    assert max(bills) <= 9 < before


def test_a_stop_holds_also_where_a_prompt_waits_for_its_answer(tmp_path: Path) -> None:
    async def ask(control: Control) -> None:
        stopped = asyncio.Event()
        control.on_stop(stopped.set)
        os.kill(os.getpid(), signal.SIGINT)
        await stopped.wait()
        raise AnswerPending("One prompt waits.")

    with pytest.raises(Interrupted):
        run_in_terminal(Terminal(Console()), ask, resume=tmp_path)


def test_default_run_directories_are_shared_only_by_equal_settings(
    shell: Shell, config: Path
) -> None:
    first = shell("train", config, *SMALL, "--json").json["run"]
    other = shell("train", config, *SMALL, "train.seed=7", "--json").json["run"]
    assert Path(first).parent == Path("runs").absolute() and first != other
    assert shell("train", config, *SMALL, "--json").json["run"] == first


def test_plain_lines_report_each_stage_and_name_the_practice_models(
    shell: Shell, config: Path
) -> None:
    result = shell("train", config, *SMALL, "train.num_epochs=4", "--run", "here", "--plain")
    assert "practice models, no language model" in result.err
    stages = ("step 1: ", "measuring 1: ", "final skill: ", "ship test: ", "test split: ")
    places = [result.err.index(f"\n{stage}") for stage in stages]
    assert places == sorted(places)
    assert ("skillfit apply" in result.out) == result.out.startswith("improved")


def test_every_view_of_a_run_reports_the_gap_between_two_graders(
    shell: Shell, config: Path
) -> None:
    settings = (
        *SMALL,
        "env.limit=16",
        "evaluation.use_gate=false",
        "evaluation.ship_grader=exact",
    )  # something is accepted
    result = shell("train", config, *settings, "--run", "here", "--plain")
    line = shell("show", "here", "--json").json
    assert line["ship"]["gap"] == 0.0
    gain = f"{line['ship']['difference']:+.3f}"
    assert f"; {gain} under the training grader" in result.err
    assert (
        f"gain {gain} by the ship grader, {gain} by the training grader (gap +0.000)" in result.out
    )
    assert "(gap +0.000)" in shell("show", "here").out


def test_a_reached_budget_has_its_own_exit_code_and_a_larger_one_resumes(
    shell: Shell, config: Path
) -> None:
    stopped = shell("train", config, *SMALL, "budget.calls=12", "--run", "here", "--json")
    assert stopped.code == 5 and stopped.json["finish_reason"] == "budget"
    assert stopped.json["usage"]["calls"] <= 12
    assert stopped.json["ship"]["interval"] is None, "nothing was measured on fresh rollouts"
    shown = shell("show", "here").out
    assert "fresh rollouts" not in shown
    assert shown.count("run the same command again") == 1, "the advice is given once"
    assert shell("resume", "here", "budget.calls=5000", "--json").json["finish_reason"] != "budget"


@pytest.mark.parametrize("tested", [True, False])
def test_unused_rollouts_of_a_budget_are_explained(tested: bool) -> None:
    compared = ShipResult(verdict="inconclusive", difference=0.1, interval=(-0.1, 0.3), pairs=9)
    ship = compared if tested else ShipResult(verdict="no improvement")
    line = Record(finish_reason="inconclusive", ship=ship, rollouts_used=RolloutUse(171, 240))
    words = result_text(line)
    assert "171 of 240 rollouts used." in words
    assert ("there was none to test" in words) == (not tested)
    assert "rollouts used" not in result_text(replace(line, rollouts_used=RolloutUse(240, 240)))
    assert "rollouts used" not in result_text(replace(line, rollouts_used=RolloutUse(171)))


@pytest.mark.parametrize("unproven", [True, False])
def test_the_scores_of_both_splits_are_those_of_one_skill(unproven: bool) -> None:
    test = SplitScores(0.5, best=0.5 if unproven else 0.7, final=0.7)
    line = Record(finish_reason="inconclusive", selection=SplitScores(0.4, 0.6), test=test)
    result = result_text(replace(line, unproven=unproven)).splitlines()
    whose = "unproven skill" if unproven else "best skill"
    assert result[1:3] == [
        f"selection score: initial skill 0.400 → {whose} 0.600",
        f"test score: initial skill 0.500 → {whose} 0.700",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("presses", [1, 2])
def test_an_interrupted_run_prints_the_resume_command_and_pays_nothing_twice(
    presses: int, shell: Shell, config: Path, tmp_path: Path
) -> None:
    running = process(
        "train", config, *SMALL, "env.limit=0", "--run", "here", "--plain", cwd=tmp_path
    )
    _wait_for_rollouts(tmp_path / "here", 10, running)
    for _ in range(presses):
        running.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, output = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert f"Resume with: {shell_line('resume')}" in output and "Traceback" not in output
    paid = _rollouts(tmp_path / "here")
    assert Run.open(tmp_path / "here").finish_reason == "unfinished"
    ended = shell("resume", "here", "--json").json
    assert ended["finish_reason"] in ("improved", "no_improvement", "inconclusive")
    assert paid <= _rollouts(tmp_path / "here")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_run_in_the_background_of_a_script_can_be_stopped(
    shell: Shell, config: Path, tmp_path: Path
) -> None:
    ignoring_ctrl_c = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    line = [*COMMAND, "train", str(config), *SMALL, "env.limit=0", "--run", "here", "--plain"]
    running = subprocess.Popen(
        [*ignoring_ctrl_c, *line], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    _wait_for_rollouts(tmp_path / "here", 10, running)
    assert shell("steer", "here", "stop").code == 0
    _, output = running.communicate(timeout=60)
    assert running.returncode == 130, output


@pytest.mark.parametrize("form", ["--plain", "--json"])
def test_characters_missing_from_the_terminals_encoding_are_replaced(
    config: Path, tmp_path: Path, form: str
) -> None:
    (config.parent / "漢字.md").write_text("# 漢字 – é\n", encoding="utf-8")
    settings = (f"env.skill={config.parent / '漢字.md'}", *SMALL)
    line = [*COMMAND, "train", str(config), *settings, form, "--run", "run–漢字"]
    done = subprocess.run(
        line,
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "cp1252"},
        check=False,
    )
    out, err = done.stdout.decode("cp1252"), done.stderr.decode("cp1252")
    assert done.returncode in (0, 3, 4), err
    assert "skillfit itself failed" not in err
    assert json.loads(out)["run"].endswith("run–漢字") if form == "--json" else "run–??" in out


def test_a_run_in_use_is_refused_in_one_sentence(
    shell: Shell, config: Path, tmp_path: Path
) -> None:
    running = process("train", config, "--run", "here", "--plain", cwd=tmp_path)
    _wait_for_rollouts(tmp_path / "here", 1, running)
    refused = [shell("train", config, "--run", "here"), shell("resume", "here")]
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    for result in refused:
        assert (
            result.code == 2
            and result.err.startswith("error: The run in")
            and "in use by process" in result.err
            and "--run" not in result.err  # `resume` has no such option
        )


def test_help_imports_no_heavy_modules() -> None:
    code = (
        "import sys; from skillfit.cli.app import main\n"
        "try: main(['--help'])\nexcept SystemExit: print(sorted(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    loaded = json.loads(output.splitlines()[-1].replace("'", '"'))
    heavy = {
        "openai",
        "anthropic",
        "ray",
        "starlette",
        "uvicorn",
        "pydantic",
        "sqlite3",
        "asyncio",
        "httpx",
        "skillfit.api",
    }
    assert not heavy & set(loaded)


def _wait_for_rollouts(run: Path, count: int, running: subprocess.Popen[str]) -> None:
    while running.poll() is None:
        if (
            (run / "config.json").is_file()
            and (run / JOURNAL).is_file()
            and len(_rollouts(run)) >= count
        ):
            return
        time.sleep(0.02)
    raise AssertionError(running.communicate())


def _rollouts(run: Path) -> set[str]:
    view = RunDirectory.read(run)
    try:
        events = (stored.event for stored in view.events.read())
        return {
            event.rollout
            for event in events
            if isinstance(event, RolloutFinished) and event.status == "scored"
        }
    finally:
        view.close()


@pytest.mark.parametrize("metric", ["soft", "mixed"])
def test_every_score_of_the_result_is_in_the_metric_that_decides(
    metric: str, shell: Shell, config: Path
) -> None:
    grader = config.with_name("half.py")
    grader.write_text("def grade(item, answer):\n    return {'hard': 0, 'soft': 0.5}\n")
    settings = (
        f"env.grader={grader}:grade",
        f"evaluation.gate_metric={metric}",
        "evaluation.gate_mixed_weight=0.5",
    )
    result = shell("train", config, *SMALL, *settings, "--run", "here")
    score = {"soft": 0.5, "mixed": 0.25}[metric]
    scores = f"initial skill {score:.3f} → unproven skill {score:.3f}"
    assert f"{metric} score on fresh rollouts: {scores}" in result.out
    assert f"on the test items of these: {scores}" in result.out
    line = shell("show", "here", "--json").json
    assert line["test"] == {"baseline": score, "best": score, "final": score}
    (listed,) = shell("ls", ".", "--json").json
    assert listed["test"]["baseline"] == score


@pytest.mark.parametrize("role", ["agent", "optimizer"])
def test_a_scripted_model_that_raises_is_no_bug_of_skillfit(
    shell: Shell, config: Path, role: str
) -> None:
    (config.parent / "own.py").write_text("def own(request):\n    raise RuntimeError('no way')\n")
    failing = f"model.{role}=scripted/{config.parent}/own.py:own"
    result = shell("train", config, *SMALL, failing, "--run", "r")
    assert result.code == 6
    assert "own.py:own: RuntimeError: no way (own.py:2)" in result.err
    assert "skillfit itself failed" not in result.err


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_one_ctrl_c_ends_a_check_whose_grader_hangs(config: Path, tmp_path: Path) -> None:
    (config.parent / "own.py").write_text(
        "import threading\nfrom pathlib import Path\n\n"
        "def hang(item, answer):\n    Path('called').touch()\n    threading.Event().wait()\n"
    )
    grader = f"env.grader={config.parent}/own.py:hang"
    line = ("check", config, grader, "env.exec_timeout=3", "--run", "r")
    running = process(*line, cwd=tmp_path)
    try:
        while not (tmp_path / "called").exists() and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, err


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("end", ["two signals", "one signal", "budget.minutes"])
def test_a_run_whose_proposer_blocks_the_loop_can_be_ended(
    config: Path, tmp_path: Path, end: str
) -> None:
    (config.parent / "own.py").write_text(
        "import time\nfrom pathlib import Path\n\n"
        "class Blocks:\n"
        "    def __init__(self, parts):\n        pass\n\n"
        "    async def propose(self, skill, rollouts, context):\n"
        "        Path('called').touch()\n        time.sleep(600)\n"
    )
    proposer = f"optimizer.proposer={config.parent}/own.py:Blocks"
    limit = ["budget.minutes=0.1"] if end == "budget.minutes" else []
    line = ("train", config, *SMALL, proposer, *limit, "--run", "r", "--plain")
    running = process(*line, cwd=tmp_path)
    try:
        while not (tmp_path / "called").exists() and running.poll() is None:
            time.sleep(0.05)
        if not limit:
            running.send_signal(signal.SIGTERM)
        if end == "two signals":
            time.sleep(1.5)
            running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130 and "skillfit resume r" in err, err
    assert ("code of yours" in err) == (end != "two signals")


def test_show_has_the_errors_of_an_optimizer_that_sends_no_json(
    shell: Shell, config: Path, tmp_path: Path
) -> None:
    (config.parent / "own.py").write_text("def own(request):\n    return 'no braces'\n")
    optimizer = f"model.optimizer=scripted/{config.parent}/own.py:own"
    settings = (*SMALL, "optimizer.proposer=reflect", optimizer)
    run = Path("r").resolve()
    result = shell("train", config, *settings, "--run", f"{run.parent}/nothing/../r")
    assert f"See the errors with `{shell_line('show', run)}`" in result.err + result.out
    shown = " ".join(shell("show", run).out.split())
    assert "not used because" in shown and "There is no JSON in the reply." in shown
    rejections = shell("show", run, "--json").json["rejections"]
    assert "reflect.failure" in {one["stage"] for one in rejections}
    assert all("There is no JSON in the reply." in one["reason"] for one in rejections)


def test_a_waiting_command_continues_when_the_answers_are_there(
    config: Path, tmp_path: Path
) -> None:
    settings = ("env.limit=4", "train.num_epochs=1", "model.optimizer=handoff")
    run = tmp_path / "run"
    line = ("train", config, *settings, "--run", run, "--force", "--wait", "--json")
    waiting, answered = process(*line, cwd=tmp_path), 0
    deadline = time.monotonic() + 60
    while waiting.poll() is None and time.monotonic() < deadline:
        prompts = pending(run / "handoff")
        time.sleep(2 if prompts else 0)  # a person takes longer than the command to say it waits
        for prompt in prompts:
            form = json.loads(prompt.answer.read_text())
            form["patch"] = {"reasoning": "It is fine as it is.", "edits": []}
            prompt.answer.write_text(json.dumps(form))
            answered += 1
        time.sleep(0.1)
    out, err = waiting.communicate(timeout=10)
    assert waiting.returncode == Exit.NO_IMPROVEMENT, err
    assert json.loads(out)["finish_reason"] == "no_improvement"
    assert answered >= 1 and err.count("Waiting for ") == 1 and "in run/handoff." in err
    assert err.count("Training ") == 1 and "Resuming" not in err


def test_waiting_for_answers_is_no_error(shell: Shell, config: Path) -> None:
    waiting = shell("train", config, *SMALL, "model.optimizer=handoff", "--run", "r")
    assert waiting.code == Exit.HANDOFF and "error" not in waiting.err
    assert "With --wait the command stays" in waiting.err


def test_printed_commands_have_the_path_of_the_program_where_the_shell_does_not_know_it(
    shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    program = str(Path(sys.executable).with_name("skillfit"))
    shell("train", config, *SMALL, "model.optimizer=handoff", "--run", "r")
    shown, refused = shell("show", "r").out, shell("apply", "r").err
    for text in (shown, refused):
        assert f": {program} " in text and not re.search(r"(`|: )skillfit [a-z]", text), text
    command = shown.strip().rpartition("Resume with: ")[2]
    again = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert again.returncode == Exit.HANDOFF, again.stderr


def test_the_plan_of_a_checked_run_counts_what_the_check_rolled_out(
    shell: Shell, config: Path
) -> None:
    assert shell("check", config, "--run", "r").code == 0
    trained = shell("train", config, "--rollouts", 120, "--run", "r")
    assert trained.code != Exit.BUDGET, trained.err
    record = Run.open("r").record
    assert record.steps_done == record.total_steps
    used = record.rollouts_used.used
    assert used == record.rollouts <= 120
    with closing(RunDirectory.read(Path("r"))) as run:
        assert run.journal.count("rollout/") == used


def test_a_run_keeps_the_noise_that_its_check_measured(shell: Shell, config: Path) -> None:
    def noise() -> str:
        checks = json.loads(Path("r/preflight.json").read_text())["checks"]
        (message,) = (check["message"] for check in checks if check["name"] == "power")
        return message.partition(":")[0]

    assert shell("check", config, "--run", "r").code == 0
    measured = noise()
    assert "assumed" not in measured
    assert shell("train", config, "--rollouts", 120, "--run", "r").code != Exit.BUDGET
    assert noise() == measured
    assert shell("train", config, "--rollouts", 120, "--run", "other").code != Exit.BUDGET
    checks = json.loads(Path("other/preflight.json").read_text())["checks"]
    assert any("assumed rollout noise" in check["message"] for check in checks)


def test_the_rollouts_option_reports_the_settings_it_replaces(shell: Shell, config: Path) -> None:
    own = config.with_name("own.yaml")
    own.write_text(
        "_base_: skillfit.yaml\nenv: {limit: 12}\ntrain: {num_epochs: 9}\n"
        "evaluation: {preflight: false, sel_env_num: 11}\nbudget: {rollouts: 600}\n"
    )
    result = shell("train", own, "--rollouts", 120, "--run", "r")
    (line,) = [line for line in result.err.splitlines() if line.startswith("--rollouts")]
    assert line == (
        "--rollouts 120 replaces settings of own.yaml: train.num_epochs: 9, "
        "budget.rollouts: 600 (now 120)."
    )
    assert "11 selection" in result.err
    assert Run.open("r").config.budget.rollouts == 120


def test_the_rollouts_option_does_not_report_settings_it_keeps(shell: Shell, config: Path) -> None:
    own = config.with_name("own.yaml")
    text = config.read_text().replace("  num_epochs: 2\n", "")
    own.write_text(f"{text}evaluation: {{preflight: false}}\nbudget: {{rollouts: 120}}\n")
    assert "replaces" not in shell("train", own, "env.limit=6", "--rollouts", 120).err


def test_estimate_takes_the_option_that_its_table_names(shell: Shell, config: Path) -> None:
    planned = shell("estimate", config, "--rollouts", 60, "--json").json
    same = shell("estimate", config, "budget.rollouts=60", "--json").json
    assert planned == same and planned["rollouts"][-1] == 60
    assert "--rollouts 60 replaces" in shell("estimate", config, "--rollouts", 60).err
    both = shell("estimate", config, "--rollouts", 60, "budget.rollouts=70")
    assert both.code == Exit.USAGE and "are the same setting" in both.err


def test_a_quick_run_plans_a_small_number_of_rollouts_and_says_so(
    shell: Shell, config: Path
) -> None:
    result = shell("train", config, "--quick", "--run", "r")
    assert "--quick: 120 rollouts in all, two or three optimizer answers." in result.err
    assert Run.open("r").config.budget.rollouts == 120


def test_a_quick_run_keeps_a_small_budget_and_refuses_a_large_one(
    shell: Shell, config: Path
) -> None:
    assert "--quick: " not in shell("train", config, "--quick", "budget.rollouts=60").err
    refused = shell("train", config, "--quick", "--rollouts", 300)
    assert refused.code == Exit.USAGE and "50 to 150 rollouts" in refused.err


def test_estimate_has_phases_with_reasons_and_what_each_budget_can_show(
    shell: Shell, config: Path
) -> None:
    planned = shell("estimate", config, "--rollouts", 300, "--json").json
    assert [one["phase"] for one in planned["phases"]][-1] == "prove"
    assert all(one["reason"] for one in planned["phases"])
    chances = [one["chance"] for one in planned["options"] if one["plan"]]
    assert [one["rollouts"] for one in planned["options"]] == [50, 100, 150, 300, 600, 1200]
    assert chances == sorted(chances) and chances[-1] > 0.9
    text = shell("estimate", config, "--rollouts", 300).out
    assert "grow" in text and "expected gain" in text and "assumed to be 0.30" in text
