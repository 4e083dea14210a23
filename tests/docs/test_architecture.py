"""docs/architecture.md and docs/contributing.md name what the code has."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "skillfit"
PAGES = ["architecture.md", "contributing.md"]
_CODE = re.compile(r"`([^`\n]+)`")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(heading: str) -> str:
    return page("architecture.md").partition(f"## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    lines = [line for line in section(heading).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def names_in(path: Path) -> set[str]:
    """Classes and functions that a module defines."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, kinds)}


def defined() -> set[str]:
    return set().union(*(names_in(path) for path in SOURCE.rglob("*.py")))


@pytest.mark.parametrize("name", PAGES)
def test_every_file_a_page_names_exists(name: str) -> None:
    named = {
        text
        for text in _CODE.findall(page(name))
        if re.fullmatch(r"[\w./-]+(\.py|\.json|\.md|\.toml|/)", text) and text != "file.py"
    }
    folders = {ROOT, ROOT / "docs", SOURCE}
    folders |= {SOURCE / package for row in rows("Packages") for package in _CODE.findall(row[0])}
    missing = [text for text in named if not any((base / text).exists() for base in folders)]
    assert missing == []


def test_the_table_of_packages_lists_every_package() -> None:
    listed = {name for row in rows("Packages") for name in _CODE.findall(row[0])}
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    described = set(re.findall(r"^`(\w+)` holds", section("Packages"), re.MULTILINE))
    assert listed | described == packages | modules


def test_the_modules_to_start_with_exist() -> None:
    for row in rows("Packages"):
        packages, starts = _CODE.findall(row[0]), _CODE.findall(row[2])
        for start in starts:
            places = [SOURCE / start, *(SOURCE / name / start for name in packages)]
            assert any(place.is_file() for place in places), start


def test_the_table_of_packages_is_in_import_order() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"skillfit\.(\w+)", layer) for layer in contract["layers"]]
    level = {name: number for number, names in enumerate(layers) for name in names}
    listed = [name for row in rows("Packages") for name in _CODE.findall(row[0]) if name in level]
    assert [level[name] for name in listed] == sorted(level[name] for name in listed)
    assert set(level) <= set(listed)


def test_protocols_and_implementations_in_the_table_of_decisions_exist() -> None:
    classes = defined()
    table = rows("Decisions are objects")
    assert len(table) > 5
    for row in table:
        for text in _CODE.findall(row[1]):
            if "." in text:
                module, _, name = text.rpartition(".")
                path = SOURCE / f"{module.replace('.', '/')}.py"
                assert path.is_file(), text
                assert name in names_in(path), text
        for text in _CODE.findall(row[2]):
            assert text.endswith(("/", ".py")) or text in classes, text


def test_the_stages_shown_are_the_functions_of_the_loop() -> None:
    shown = re.findall(r"= (?:await )?(\w+)\(", section("The data flow"))
    assert len(shown) >= 6
    assert set(shown) <= defined()
    assert [name for name in shown[:6] if name not in names_in(SOURCE / "training/loop.py")] == []


def test_pages_that_the_code_names_exist() -> None:
    named = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 2
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_file_and_class_names_are_unique() -> None:
    modules = [path for path in SOURCE.rglob("*.py") if not {"sample", "demo_data"} & {*path.parts}]
    files = Counter(path.name for path in modules if not path.name.startswith("__"))
    classes = Counter(
        node.name
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in (files + classes).items() if count > 1] == []
