"""`skillfit compare --way gepa --way skillopt`: other optimizers, in processes of their own."""

import importlib
import json
import shutil
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bench.parity import reference

from skillfit.cli.train import config_inputs
from skillfit.errors import Exit
from skillfit.models.providers.handoff import pending
from skillfit.plugins.compare import peers
from tests.cli.cli_project import CommandResult, Shell, process

# Understands the reflection prompt of gepa and the analysts of skillopt.
OPTIMIZER = r"""
import asyncio
import json
import random
import re
from pathlib import Path

RULE = "\n".join(
    f"- Mentions of {words}."
    for words in (
        "payment, card, price or charge mean billing",
        "parcel, address, driver or tracking mean delivery",
        "login, email, code or profile mean account",
        "return, exchange, size or label mean returns",
        "app, website, page, screen or search mean technical",
    )
)


async def improve(request):
    await asyncio.sleep(random.uniform(0, 0.2))  # analysts end in any order
    with Path("asked.txt").open("a") as log:
        log.write("x")
    system, user = request.messages[0].content, request.messages[-1].content
    if "[stage: analyst_error]" in system:
        edit = {"op": "append", "content": RULE}
        return json.dumps({"patch": {"reasoning": f"{len(user)}", "edits": [edit]}})
    found = re.search(r"```\n(.*?)\n```", user, re.DOTALL)
    return f"```\n{found[1].strip()}\n{RULE}\n```" if found else "{}"
"""
SLOW_AGENT = """
import asyncio
from pathlib import Path

from skillfit.models.providers.practice import practice_answer


async def answer(request):
    with Path("calls.txt").open("a") as log:
        log.write("x")
    await asyncio.sleep(0.05)
    return practice_answer(request.messages[0].content, request.messages[-1].content, 0)
"""
BUDGET = 60
GEPA = ("--rollouts", BUDGET, "--way", "initial", "--way", "gepa", "--run", "cmp")


@pytest.fixture
def improving(config: Path) -> Path:
    """The demo project with an optimizer that adds a rule."""
    (config.parent / "improver.py").write_text(OPTIMIZER)
    text = config.read_text()
    optimizer = f"optimizer: scripted/{config.parent / 'improver.py'}:improve"
    config.write_text(text.replace("optimizer: practice/optimizer", optimizer))
    return config


@pytest.fixture
def with_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed skillopt with stand-ins for the prompts that its wheel lacks."""
    pytest.importorskip("skillopt")
    installed = find_spec("skillopt")
    assert installed is not None and installed.origin is not None
    copied = tmp_path / "site-packages" / "skillopt"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(installed.origin).parent, copied, ignore=ignored)
    reference.write_prompts(copied)
    _put_first(monkeypatch, copied.parent)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package gepa whose `optimize` has the given lines."""

    def install(*lines: str) -> None:
        package = tmp_path / "site-packages" / "gepa"
        (package / "core").mkdir(parents=True)
        (package / "core" / "__init__.py").touch()
        (package / "core" / "adapter.py").write_text("EvaluationBatch = dict\n")
        (package / "api.py").touch()
        body = "".join(f"    {line}\n" for line in lines)
        head = "import os, sys, time\ndef optimize(adapter, trainset, valset, **settings):\n"
        (package / "__init__.py").write_text(head + body)
        monkeypatch.setattr(peers, "version", lambda name: "0.1.4")
        _put_first(monkeypatch, package.parent)

    return install


def _put_first(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] in ("gepa", "skillopt")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


def row_of(told: CommandResult, way: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = told.json["rows"]
    return next(row for row in rows if row["way"] == way)


def journals() -> dict[Path, int]:
    return {path: path.stat().st_size for path in Path("cmp").rglob("journal.sqlite")}


def test_gepa_finds_a_skill_within_the_rollouts_and_is_not_run_again(
    shell: Shell, improving: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gepa")
    first = shell("compare", improving, *GEPA, "--json")
    found = row_of(first, "gepa")
    assert 0 < found["cost"]["rollouts"] <= BUDGET
    assert found["cost"]["optimizer_calls"] > 0 and found["improved"] is None
    assert "payment, card" in found["skills"][0]
    assert found["skills"][0].startswith("---\nname: triage-tickets"), "the frontmatter stays"
    paid = journals()
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    monkeypatch.setattr(peers.Peer, "refuse_missing", lambda self: None)
    again = shell("compare", improving, *GEPA, "--json")
    assert row_of(again, "gepa")["skills"] == found["skills"] and journals() == paid


def test_skillopt_finds_a_skill_within_the_rollouts(
    shell: Shell, improving: Path, with_prompts: None
) -> None:
    line = ("--rollouts", 80, "--way", "initial", "--way", "skillopt", "--run", "cmp", "--json")
    found = row_of(shell("compare", improving, *line), "skillopt")
    assert 0 < found["cost"]["rollouts"] <= 80 and found["cost"]["optimizer_calls"] > 0
    assert "payment, card" in found["skills"][0]


def test_the_optimizer_sees_training_items_only(shell: Shell, config: Path, tmp_path: Path) -> None:
    pytest.importorskip("gepa")
    run = tmp_path / "cmp" / "gepa" / str(BUDGET) / "seed_0"
    waiting = shell("compare", config, *GEPA, "model.optimizer=handoff")
    assert waiting.code == Exit.HANDOFF and "With --wait the command stays" in waiting.err
    (prompt,) = pending(run / "handoff")
    asked, task = prompt.prompt.read_text(), config_inputs(config, ()).task
    assert sum(item.input in asked for item in task.train) == 3  # the minibatch of gepa
    assert not any(item.input in asked for item in (*task.selection, *task.test))


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_second_start_asks_the_same_again_and_continues_after_an_answer(
    shell: Shell, config: Path, tmp_path: Path
) -> None:
    pytest.importorskip("gepa")
    run = tmp_path / "cmp" / "gepa" / str(BUDGET) / "seed_0"
    line = ("compare", config, *GEPA, "model.optimizer=handoff")
    answered = []
    while shell(*line).code == Exit.HANDOFF:
        (prompt,) = pending(run / "handoff")
        assert prompt.id not in answered
        answered.append(prompt.id)
        prompt.answer.write_text("```\nAnswer with the label alone, in lower case.\n```")
    told = json.loads(Path("cmp/comparison.json").read_text())
    assert answered and told["rows"][1]["cost"]["optimizer_calls"] == len(answered)


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["gepa", "skillopt"])
@pytest.mark.parametrize("calls_before", [20, 45])
def test_ctrl_c_saves_the_work_of_a_peer_and_the_same_command_repeats_none_of_it(
    improving: Path, tmp_path: Path, with_prompts: None, peer: str, calls_before: int
) -> None:
    pytest.importorskip(peer)
    (improving.parent / "slow.py").write_text(SLOW_AGENT)
    slow = f"model.agent=scripted/{improving.parent / 'slow.py'}:answer"
    line = ("compare", improving, "--rollouts", 80, "--way", "initial", "--way", peer)
    line = (*line, "--run", "cmp", "--json", slow, "model.concurrency=2")
    path = str(tmp_path / "site-packages")
    running = process(*line, cwd=tmp_path, PYTHONPATH=path)
    calls, asked = tmp_path / "calls.txt", tmp_path / "asked.txt"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        calls.exists() and calls.stat().st_size >= calls_before
    ):
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == Exit.INTERRUPTED, err
    assert calls.stat().st_size < 80
    again = process(*line, cwd=tmp_path, PYTHONPATH=path)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    told = json.loads(out)
    cost = told["rows"][1]["cost"]
    assert cost["rollouts"] <= 80
    assert calls.stat().st_size == cost["rollouts"] + told["test_cost"]["rollouts"]
    assert asked.stat().st_size == cost["optimizer_calls"] > 0


def test_the_caps_of_the_config_hold_for_a_peer(shell: Shell, config: Path) -> None:
    pytest.importorskip("gepa")
    ended = shell("compare", config, *GEPA, "budget.calls=30")
    assert ended.code == Exit.BUDGET and "same command again" in ended.err
    assert shell("compare", config, *GEPA).code == 0  # continues without the cap


def test_a_package_that_is_not_installed_is_an_error_before_anything_is_spent(
    shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    for name, how in (("gepa", "pip install 'skillfit[gepa]'"), ("skillopt", "git+https://")):
        refused = shell("compare", config, "--way", name, "--run", "none")
        assert refused.code == Exit.USAGE and how in refused.err, refused.err
    assert not Path("none").exists()


def test_skillopt_without_its_prompts_is_an_error_that_says_where_they_are(
    shell: Shell, config: Path
) -> None:
    pytest.importorskip("skillopt")
    if (peers.PEERS["skillopt"].package or Path()).joinpath("prompts/analyst_error.md").exists():
        pytest.skip("this skillopt has its prompts")
    refused = shell("compare", config, "--way", "skillopt", "--run", "none")
    assert refused.code == Exit.USAGE and "needs prompts/analyst_error.md" in refused.err


def test_the_default_ways_name_the_others_in_a_line(shell: Shell, config: Path) -> None:
    printed = shell("compare", config, "--rollouts", 40, "--run", "cmp", "budget.calls=1")
    assert printed.err.count("--way gepa, --way skillopt") == 1
    assert not list(Path("cmp").glob("gepa*"))


def test_too_few_rollouts_leave_a_peer_out_with_the_reason(shell: Shell, config: Path) -> None:
    pytest.importorskip("gepa")
    line = ("--rollouts", 19, "--way", "initial", "--way", "gepa", "--run", "cmp")
    printed = shell("compare", config, *line)
    assert "Left out: gepa with 19 rollouts: gepa needs at least 20 rollouts" in printed.out


FAULTS = {
    "a crash": (["raise ValueError('no ' + 'luck')"], "no luck"),
    "an exit without a skill": (["os._exit(0)"], "without a skill that it had measured"),
    "a hang": (["time.sleep(3600)"], "did nothing for"),
    "endless output": (["while True: print('x' * 1000)"], "did nothing for"),
    "an endless line": (["while True: os.write(int(sys.argv[1]), b'x' * 65536)"], "a line of more"),
    "an unknown question": (
        ['os.write(int(sys.argv[1]), b\'{"id": 1, "do": "cheat"}\\n\')', "time.sleep(3600)"],
        "asked for something unknown",
    ),
    "an item of the test split": (
        ["adapter.evaluate([{'id': 'test-0'}], {'skill': 'x'})"],
        "there is no item test-0",
    ),
}


def test_a_peer_cannot_ask_the_optimizer_without_an_end(
    shell: Shell, improving: Path, broken: Any
) -> None:
    broken(
        "settings['callbacks'][0].on_valset_evaluated(",
        "    {'is_best_program': True, 'candidate': {'skill': 'Answer.'}})",
        "while True: settings['reflection_lm']('again')",
    )
    found = row_of(shell("compare", improving, *GEPA, "--json"), "gepa")
    assert found["cost"]["optimizer_calls"] == BUDGET and found["cost"]["rollouts"] == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_peer_that_fails_is_no_score_and_does_not_end_the_comparison(
    shell: Shell, config: Path, broken: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    lines, message = FAULTS[fault]
    broken(*lines)
    monkeypatch.setattr(peers, "_SILENT", 3.0)
    told = shell("compare", config, *GEPA, "--json")
    assert told.code == Exit.INFRASTRUCTURE, told.err
    assert [row["way"] for row in told.json["rows"]] == ["initial"]
    (failed,) = told.json["failed"]
    assert failed.startswith("gepa with 60 rollouts, seed 0: ") and message in failed


def test_a_peer_sees_no_keys_and_no_files_of_the_project(
    shell: Shell, config: Path, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-ours")
    tasks = str(config.parent / "tasks.jsonl")
    broken(f"raise ValueError(sorted(os.environ), os.access({tasks!r}, os.R_OK), len(valset[0]))")
    (failed,) = shell("compare", config, *GEPA, "--json").json["failed"]
    assert "OPENAI_API_KEY" not in failed and "'PATH'" in failed
    assert "1)" in failed, "of a selection item it gets a number only"
    if peers.choose_isolation("auto", "").hides_files:
        assert "False, 1)" in failed


def test_a_peer_that_goes_on_after_its_rollouts_is_stopped_and_its_best_skill_counts(
    shell: Shell, config: Path, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(
        "settings['callbacks'][0].on_valset_evaluated(",
        "    {'is_best_program': True, 'candidate': {'skill': 'Answer with the label alone.'}})",
        "while True:",
        "    try:",
        "        adapter.evaluate(trainset, {'skill': 'x'})",
        "    except BaseException:",
        "        pass",
    )
    monkeypatch.setattr(peers, "_ENDING", 1.0)
    found = row_of(shell("compare", config, *GEPA, "--json"), "gepa")
    assert found["skills"][0].endswith("Answer with the label alone.")
    assert found["cost"]["rollouts"] == 40  # the training items once: twice would be too many


def test_rollouts_that_fail_are_told_as_such_and_never_as_a_score(
    shell: Shell, config: Path, broken: Any
) -> None:
    agent = (
        "from skillfit import Refused\n\n\ndef answer(request):\n"
        "    text = request.messages[-1].content\n"
        "    return Refused('no') if len(text) % 7 == 0 else 'nothing'\n"
    )
    (config.parent / "refusing.py").write_text(agent)
    # The adapter hands gepa the mean of the others; the service itself tells which have no score.
    broken(
        "link = adapter.evaluate.__closure__",
        "link = next(c.cell_contents for c in link if hasattr(c.cell_contents, 'roll_out'))",
        "found = link.roll_out('x', [one['id'] for one in trainset])",
        "raise ValueError(f'{sum(one is None for one in found)} of {len(found)} without')",
    )
    refusing = f"model.agent=scripted/{config.parent / 'refusing.py'}:answer"
    settings = (refusing, "evaluation.coverage_floor=0.5")
    (failed,) = shell("compare", config, *GEPA, "--json", *settings).json["failed"]
    inputs = [row["input"] for row in _rows(config.parent / "tasks.jsonl")]
    assert any(len(text) % 7 == 0 for text in inputs)
    count = int(failed.rpartition("ValueError: ")[2].split()[0])
    assert 0 < count < 40, failed
