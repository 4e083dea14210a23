"""The documentation is true: its commands run, its snippets work, its lists are complete."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skillfit.config import describe_keys
from skillfit.errors import Exit
from skillfit.models.registry import MACHINE_OPTIONS
from skillfit.run.directory import CHANGEABLE, CHANGEABLE_OF_A_MODEL

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_RUN = re.compile(r"<!-- run -->\n```sh\n(.*?)```", re.DOTALL)
_PYTHON = re.compile(r"<!-- python -->\n```python\n(.*?)```", re.DOTALL)
_YAML_GRADER = re.compile(r"^grader: (.+?)(?:\s{2,}#.*)?$", re.MULTILINE)
SNIPPETS = [
    pytest.param(code, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.glob("**/*.md"))
    for number, code in enumerate(_PYTHON.findall(page.read_text(encoding="utf-8")))
]


def load_hook(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / "_hooks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated() -> Any:
    return load_hook("generate")


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
    }


@pytest.mark.slow
def test_every_command_of_the_quickstart_works(tmp_path: Path) -> None:
    blocks = _RUN.findall((DOCS / "quickstart.md").read_text(encoding="utf-8"))
    commands = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert len(commands) >= 9
    for command in commands:
        assert command.startswith("skillfit ")
        argv = [sys.executable, "-m", "skillfit.cli.app", *shlex.split(command)[1:]]
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert "improved" in (tmp_path / "runs" / "first" / "summary.json").read_text(encoding="utf-8")
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    assert (tmp_path / "my-project" / "skillfit.yaml").is_file()


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_of_the_documentation_runs(code: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", code]
    done = subprocess.run(
        argv,
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_graders_shown_in_the_documentation_can_be_built(tmp_path: Path) -> None:
    import yaml

    from skillfit.models.providers.scripted import ScriptedModel
    from skillfit.tasks.graders import BUILT_IN, build_grader

    (tmp_path / "grade.py").write_text("def grade(item, answer):\n    return 1.0\n")
    shown = _YAML_GRADER.findall((DOCS / "tasks.md").read_text(encoding="utf-8"))
    graders = [
        build_grader(yaml.safe_load(text), judge=ScriptedModel([]), base=tmp_path) for text in shown
    ]
    assert len(graders) > 20
    described = " ".join(str(grader.describe()) for grader in graders)
    assert [name for name in BUILT_IN if f"'{name}'" not in described] == []


def test_the_reference_lists_every_setting_with_its_meaning(generated: Any) -> None:
    page = generated.config()
    missing = [
        key.key
        for key in describe_keys()
        if f"`{key.key}`" not in page
        and not key.key.startswith(("model.optimizer.", "model.judge."))
    ]
    assert missing == []
    assert [key.key for key in describe_keys() if not key.doc.strip()] == []


def test_the_page_on_runs_names_the_settings_that_may_change() -> None:
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    start = page.index("These settings may change")
    named = re.findall(r"`([^`]+)`", page[start : page.index("\n\n", start)])
    assert len(named) == len(set(named))
    assert set(named) == CHANGEABLE | CHANGEABLE_OF_A_MODEL | MACHINE_OPTIONS


def test_the_generated_tables_in_the_pages_are_up_to_date() -> None:
    argv = [sys.executable, "-m", "docs._hooks.write_reference", "--check"]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"run: python -m docs._hooks.write_reference\n{done.stdout}"
    for page in ("config", "commands", "exit-codes", "events"):
        text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
        assert len(re.findall(r"^\| `", text, re.MULTILINE)) >= 10, page


def test_a_table_with_old_rows_is_replaced_and_the_text_around_it_stays(generated: Any) -> None:
    page = "Before.\n\n<!-- generate: exit_codes -->\n\n| old |\n\n<!-- end -->\n\nAfter.\n"
    filled = generated.fill_generated(page)
    assert "| old |" not in filled
    assert "| `8` | regression |" in filled
    assert filled.startswith("Before.\n") and filled.endswith("<!-- end -->\n\nAfter.\n")
    assert generated.fill_generated(filled) == filled


def test_the_reference_lists_every_command_and_exit_code(generated: Any) -> None:
    import typer

    from skillfit.cli.app import app

    group: Any = typer.main.get_command(app)
    page = generated.commands()
    assert [name for name in group.commands if f"\n## {name}\n" not in f"\n{page}"] == []
    codes = generated.exit_codes()
    assert [code for code in Exit if f"| `{int(code)}` |" not in codes] == []
    assert "|  |" not in codes


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": (\S+\.md)$", settings, re.MULTILINE))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.glob("**/*.md")}


def test_the_script_that_refreshes_outputs_uses_names_that_exist() -> None:
    refresh = load_hook("refresh")
    assert len(refresh.runnable(DOCS / "quickstart.md")) >= 9


def test_every_cause_of_a_diagnosis_has_a_section() -> None:
    tree = ast.parse((ROOT / "src/skillfit/gate/diagnosis.py").read_text(encoding="utf-8"))
    causes = {
        str(node.args[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Diagnosis"
        and isinstance(node.args[0], ast.Constant)
    }
    page = (DOCS / "nothing-improved.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    described = {re.sub(r".*\((.+)\)$", r"\1", heading).lower() for heading in headings}
    assert len(causes) > 15
    assert causes - {"improved"} == described


def test_the_readme_is_short_and_its_links_work() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    links = [
        target for target in re.findall(r"\]\(([^)#]+)", text) if not target.startswith("http")
    ]
    assert len(links) > 10
    assert [target for target in links if not (ROOT / target).exists()] == []


def test_the_readme_begins_with_the_recorded_run() -> None:
    record = load_hook("record")
    command, lines, result = record.recorded()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```sh\n{command}\n```" in readme
    assert f"<!-- recorded -->\n```text\n{result}```" in readme and "ship test: " in result
    page = (DOCS / "complete-run.md").read_text(encoding="utf-8")
    printed = "".join(f"{line}\n" for _, line in lines)
    assert f"<!-- recorded -->\n```text\n{printed}```" in page
    picture = record.PICTURE.read_text(encoding="utf-8")
    assert picture == record.draw(command, lines)
    assert "prefers-reduced-motion" in picture and len(picture) < 200_000


def test_the_readmes_claim_about_equal_skills_holds_in_the_bench() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    claimed = re.search(r'says "improved" in less than (\d+) % of simulated runs', readme)
    results = (ROOT / "bench" / "gate" / "results.md").read_text(encoding="utf-8")
    equal = results.partition("## Ship test on equal skills")[2]
    measured = re.search(r"^\| all \| ([\d.]+)% \|", equal, re.MULTILINE)
    assert claimed is not None and measured is not None
    assert float(measured[1]) < float(claimed[1])


def test_every_command_the_readme_names_exists() -> None:
    import typer

    from skillfit.cli.app import app

    group: Any = typer.main.get_command(app)
    shown = "".join(
        re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    )
    named = set(re.findall(r"^skillfit (\w+)", shown, re.MULTILINE))
    assert len(named) > 3
    assert named - set(group.commands) == set()


def test_every_setting_and_option_that_a_page_names_exists() -> None:
    import typer

    from skillfit.cli.app import app
    from skillfit.config.schema import SECTIONS, describe_keys

    known = {one.key for one in describe_keys()}
    setting = re.compile(rf"`((?:{'|'.join(SECTIONS)})\.[a-z_]+(?:\.[a-z_]+)*)(?=[`:= ])")
    command = re.compile(
        r"(?<![\w/-])skillfit ((?:tasks |data |ci |skill |trigger (?=draft ))?[a-z]+)"
        r"((?: [^`\n|#]+)?)"
    )
    root: Any = typer.main.get_command(app)
    wrong = []
    for page in (ROOT / "README.md", *DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if page.name != "coming-from.md":  # which also names the settings of others
            for found in setting.finditer(text):
                parts = [key for key in known if f"{key}.".startswith(f"{found[1]}.")]
                if not parts and not found[1].endswith((".jsonl", ".yaml", ".py")):  # no file
                    wrong.append(f"{page.name}: {found[1]}")
        for found in command.finditer(text):
            one = root
            for name in found[1].split():
                one = getattr(one, "commands", {}).get(name)
            if one is None:
                continue  # a sentence about skillfit
            if hasattr(one, "commands"):  # `skillfit trigger SKILL`
                one = one.commands["measure"]
            options = {name for option in one.params for name in option.opts}
            for name in re.findall(r"(?<!\S)--[a-z-]+", found[2]):
                if name not in options | {"--help"}:
                    wrong.append(f"{page.name}: {found[1]} {name}")
    assert wrong == []


def test_no_page_uses_markup_that_only_the_site_shows() -> None:
    """Definition lists and admonitions are plain text on a code host, and break when wrapped."""
    marked = re.compile(
        r"^(:   \S|!!! |(\*\*[^*\n]+\*\*|`[^`\n]+`( \([^)\n]*\))?) : )", re.MULTILINE
    )
    found = [
        f"{page.name}: {line[0]}"
        for page in DOCS.glob("**/*.md")
        for line in marked.finditer(page.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_page_names_a_local_path() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *DOCS.glob("**/*.md"),
        *DOCS.glob("images/*.svg"),
        *(ROOT / "examples").glob("**/*.*"),
    ]
    foreign = re.compile(r"/(work|tmp|root|home)/")
    found = [
        str(page)
        for page in pages
        if page.is_file()
        and page.suffix != ".png"
        and foreign.search(page.read_text(encoding="utf-8"))
    ]
    assert found == []


def too_wide(text: str) -> list[int]:
    """Numbers of the prose lines over 100 columns that have a space to break at.

    Tables, headings, comments, fenced and indented code are left out; code spans stay in one piece.
    """
    wide: list[int] = []
    fence, previous = "", ""
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        marker = re.match(r"```+|~~~+", stripped)
        if fence:
            fence = "" if stripped == fence else fence
        elif marker:
            fence = marker[0]
        elif len(line) > 100 and not stripped.startswith(("|", "#", "<!--")):
            indented_code = line.startswith("    ") and not previous.strip()
            pieces = re.sub(r"`[^`]+`", "code", re.sub(r"^([-*+]|\d+\.) +", "", stripped))
            if " " in pieces and not indented_code:
                wide.append(number)
        previous = line
    return wide


def test_prose_lines_of_the_documentation_have_at_most_100_columns() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *DOCS.glob("**/*.md"),
        *(ROOT / "examples").glob("**/README.md"),
        *(ROOT / "bench").glob("**/README.md"),
    ]
    found = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in pages
        for number in too_wide(page.read_text(encoding="utf-8"))
    ]
    assert found == []
    assert too_wide(f"```\n{'wide ' * 30}\n```\n| {'wide ' * 30}|\n\n{'wide ' * 30}\n") == [6]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material")
    argv = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").glob("**/*.html"))
    assert len(pages) > 15
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]+src=["']?https?:|<link[^>]+rel=["']?stylesheet[^>]+href=["']?https?:"""
    )
    assert [page.name for page in pages if loaded.search(page.read_text(encoding="utf-8"))] == []


def test_pages_with_command_outputs_contain_them() -> None:
    refresh = load_hook("refresh")
    for page in (*refresh.SHARING_ITS_OUTPUT, *refresh.ALONE.values()):
        shown = refresh._OUTPUT.findall(page.read_text(encoding="utf-8"))
        assert shown, page
        assert [command for _, command, printed, _ in shown if not printed.strip()] == []
    assert len(refresh.runnable(refresh.ALONE["complete-run"])) >= 9
