"""An installed wheel without extras does what the pages show without naming one.

`make plain-install` builds the wheel, installs it into an empty environment, and names that
environment in SKILLFIT_PLAIN.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.plain_install.forms import press, press_shown

ROOT = Path(__file__).parents[2]
PLAIN = os.environ.get("SKILLFIT_PLAIN", "")
PRACTICE = "--agent practice/agent --optimizer practice/optimizer"
# Benchmarks that docs/benchmarks.md lists without an extra, and those with free answers.
BENCHMARKS = ("docvqa", "livemathematicianbench", "mmrb", "officeqa", "searchqa")
FREE_ANSWERS = ("babyvision", "mathverse", "sealqa")
SNIPPETS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, code in enumerate(
        re.findall(r"<!-- python -->\n```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    )
]

pytestmark = pytest.mark.skipif(not PLAIN, reason="`make plain-install` runs these")


def environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([f"{PLAIN}/bin", "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"}


def sh(command: str, folder: Path) -> str:
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"
    return done.stdout


def shown_commands(page: str, pattern: str) -> list[str]:
    blocks = re.findall(pattern, (ROOT / page).read_text("utf-8"), re.DOTALL)
    lines = "".join(blocks).splitlines()
    return [line for line in lines if line.startswith("skillfit ")]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A skill, tasks and a config, started as the README says."""
    folder = tmp_path_factory.mktemp("project")
    sh("skillfit demo --plain && mv skillfit-demo/triage-tickets .", folder)
    sh(
        f"skillfit init --skill ./triage-tickets --tasks skillfit-demo/tasks.jsonl {PRACTICE}",
        folder,
    )
    return folder


@pytest.fixture(scope="module")
def trained(project: Path) -> Path:
    sh("skillfit train skillfit.yaml --run runs/trained", project)
    return project / "runs" / "trained"


def test_the_command_comes_from_the_wheel(tmp_path: Path) -> None:
    found = sh("python -c 'import skillfit; print(skillfit.__file__)'", tmp_path)
    assert Path(found.strip()).is_relative_to(PLAIN)
    assert re.fullmatch(r"skillfit \d+\.\d+\.\d+\n", sh("skillfit --version", tmp_path))


def test_the_commands_of_the_quickstart_work(tmp_path: Path) -> None:
    commands = shown_commands("docs/quickstart.md", r"<!-- run -->\n```sh\n(.*?)```")
    assert len(commands) >= 9
    for command in commands:
        sh(command, tmp_path)
    assert (tmp_path / "runs" / "first" / "report.html").is_file()


def test_the_commands_of_the_readme_work(project: Path) -> None:
    """Except `studio`, which has a test of its own."""
    commands = shown_commands("README.md", r"\n```sh\n(skillfit check .*?)```")
    assert len(commands) >= 7
    before = (project / "triage-tickets" / "SKILL.md").read_text()
    for command in commands:
        command, _, _ = command.partition("#")
        if " studio " in command:
            continue
        asks = " apply " in command
        sh(f"{command} --yes" if asks else command, project)
        if asks:
            assert (project / "triage-tickets" / "SKILL.md").read_text() != before
            sh("skillfit apply runs/a --undo", project)
            assert (project / "triage-tickets" / "SKILL.md").read_text() == before


@pytest.mark.parametrize(
    "command",
    [
        "ls runs",
        "show runs/trained",
        "diff runs/trained",
        "export runs/trained",
        "report runs/trained --format md",
        "lint triage-tickets",
        "models",
        "data list",
        "docs config",
        "doctor",
        "skill install --program claude",
        "ci init skillfit.yaml",
        "tasks draft triage-tickets --model practice/optimizer --count 5 --out more.jsonl --yes",
    ],
)
@pytest.mark.usefixtures("trained")
def test_another_command_works(project: Path, command: str) -> None:
    assert sh(f"skillfit {command}", project)


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_of_the_pages_runs(code: str, tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(code)
    sh("python snippet.py", tmp_path)


@pytest.mark.parametrize("name", [*BENCHMARKS, *FREE_ANSWERS])
def test_the_sample_of_a_benchmark_is_measured(name: str, project: Path) -> None:
    env = {"skill": "./triage-tickets", "tasks": f"{name}:sample"}
    arguments = {"task_args": {"judge": False}} if name in FREE_ANSWERS else {}
    config = {"model": {"agent": "practice/agent"}, "env": {**env, **arguments}}
    (project / f"{name}.yaml").write_text(json.dumps(config))
    assert sh(f"skillfit eval {name}.yaml --split all", project)


@contextmanager
def studio(project: Path) -> Iterator[httpx.Client]:
    command = [f"{PLAIN}/bin/skillfit", "studio", "runs", "--port", "0"]
    with subprocess.Popen(
        command,
        cwd=project,
        env=environment(project),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            address = link.partition("/?")[0]
            with httpx.Client(base_url=address, timeout=60, follow_redirects=True) as client:
                assert client.get(link).status_code == 200
                yield client
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors, errors


def page_with(client: httpx.Client, page: str, pattern: str) -> re.Match[str]:
    """Read a page until it shows something."""
    end = time.monotonic() + 120
    while not (found := re.search(pattern, text := client.get(page).text)):
        assert time.monotonic() < end, text
        time.sleep(0.2)
    return found


def test_forms_of_the_studio_start_steer_stop_and_resume_a_run(project: Path) -> None:
    settings = {"config": "skillfit.yaml", "set:budget.rollouts": "600"}
    with studio(project) as client:
        assert "practice/optimizer" in press(client, "/new", "show", config="skillfit.yaml")
        assert 'value="start"' not in client.get("/new").text  # the price comes first
        settings |= {"name": "here", "set:model.concurrency": "1"}
        priced = press(client, "/new", "estimate", **settings)
        assert re.search(r"Start, at most [^<]+</button>", priced)
        press_shown(client, priced, "start")
        edit = page_with(client, "/run/here", r"/run/here\?edit=(\w+)")[1]
        press(client, f"/run/here?edit={edit}", "veto", target=edit)
        press(client, "/run/here", "stop")
        page_with(client, "/run/here", 'value="resume"')
        assert f'"{edit}"' in (project / "runs" / "here" / "steering.jsonl").read_text()
        press(client, "/run/here", "resume")
        page_with(client, "/run/here", 'value="stop"')
        press(client, "/run/here", "stop")
        page_with(client, "/run/here", 'value="resume"')


def test_forms_of_the_studio_apply_the_skill_and_undo_it(project: Path, trained: Path) -> None:
    skill = project / "triage-tickets" / "SKILL.md"
    before = skill.read_text()
    with studio(project) as client:
        press(client, f"/apply/{trained.name}", "apply")
        assert skill.read_text() != before
        press(client, f"/apply/{trained.name}", "undo")
    assert skill.read_text() == before
