"""The benchmark that docs/benchmarks.md shows is built from the page's text and works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import skillfit
from skillfit.config.schema import EnvSection
from skillfit.extensions import BENCHMARKS
from skillfit.plugins.benchmarks.benchmark import benchmark_names, find_benchmark
from skillfit.plugins.benchmarks.prepare import get, make
from skillfit.tasks import load_task
from skillfit.tasks.task import prove_gold
from tests.plugins.benchmarks.sample_training import LESSON, Lab, by_question, sample_task, user
from tests.support.file_server import FileServer

PAGE = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
COUNTRIES = [
    ("AT", "Austria", "Vienna"), ("BO", "Bolivia", "Sucre"), ("CA", "Canada", "Ottawa"),
    ("DK", "Denmark", "Copenhagen"), ("EG", "Egypt", "Cairo"), ("FJ", "Fiji", "Suva"),
    ("GH", "Ghana", "Accra"), ("HU", "Hungary", "Budapest"), ("IS", "Iceland", "Reykjavik"),
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, as the page prints it, built and installed by pip."""
    pytest.importorskip("hatchling")
    source = tmp_path_factory.mktemp("source")
    for name, text in _FILE.findall(PAGE):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-index", "--no-build-isolation", "--target", str(site), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return site


@pytest.fixture
def capitals(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed package, where Python finds it."""
    monkeypatch.syspath_prepend(str(site))
    for module in [name for name in sys.modules if name.partition(".")[0] == "capitals"]:
        monkeypatch.delitem(sys.modules, module)
    return site


def test_another_process_finds_the_installed_benchmark(site: Path, no_user_data: Path) -> None:
    sources = Path(skillfit.__file__).parents[1]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site), str(sources)]),
        "SKILLFIT_DATA": str(no_user_data),
    }
    command = [sys.executable, "-m", "skillfit", "data", "list", "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    listed = {one["name"]: one for one in json.loads(done.stdout)["benchmarks"]}
    assert listed["capitals"]["licence"] == "CC0" and "searchqa" in listed


async def test_the_benchmark_of_the_page_trains(
    capitals: Path, make_lab: Callable[..., Lab]
) -> None:
    task = sample_task("capitals")
    assert (len(task.train), len(task.selection), len(task.test)) == (4, 6, 3)
    assert await prove_gold(task) == []
    answers = by_question(task)
    lab = make_lab(solve=lambda call: f"<answer>{answers[user(call)]}</answer>")
    run = await lab.train("capitals:sample", recipe="paper")
    assert LESSON in run.best_skill.text


def test_data_of_the_pages_benchmark_can_be_prepared_and_its_options_work(
    capitals: Path, tmp_path: Path
) -> None:
    rows = [{"code": c, "country": n, "capital": s, "continent": n[0]} for c, n, s in COUNTRIES]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(text)
    assert make("capitals", tmp_path / "rows.jsonl").counts == {"items": 9}
    assert len(load_task(EnvSection(tasks="capitals?continent=C", grader="exact")).items) == 1
    with FileServer({"/capitals.jsonl": text.encode()}) as server:
        result = get("capitals", mirror=server.url)
    assert result.counts == {"items": 9} and result.licence == "CC0"


def test_a_package_may_register_its_benchmark_under_another_name(
    capitals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "towns-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: towns\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[skillfit.tasks]\ntowns = capitals.capitals:capitals\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_benchmark("towns").name == find_benchmark("capitals").name == "capitals"
    assert {"towns", "searchqa", "alfworld"} <= set(benchmark_names())
    assert "reasoning_gym" not in benchmark_names()


def test_the_page_lists_every_benchmark_and_its_splits() -> None:
    for name in BENCHMARKS:
        assert re.search(rf"^\| `{name}[:`]", PAGE, re.MULTILINE), name
    for name in ("searchqa", "spreadsheetbench", "officeqa", "docvqa", "alfworld"):
        splits = find_benchmark(name).splits
        assert splits is not None
        assert f"| `{name}` | {' / '.join(map(str, splits.counts))} |" in PAGE


def test_every_config_on_the_page_is_valid_yaml() -> None:
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        assert isinstance(yaml.safe_load(block), dict)
