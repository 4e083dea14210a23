"""`python docs/_hooks/refresh.py` runs the commands of pages and puts what they printed into them.

`quickstart` (quickstart, cost, commands, and the pictures), `complete-run`, `trigger` and
`whole-skill` can be named; by default all are refreshed. Blocks after `<!-- run -->` are run in
order, in an empty folder. `<!-- copy: PATH … -->` copies files of the repository into it first. A
block after `<!-- output: COMMAND -->` is filled with what that command printed. The terminal is
drawn as SVG; the report is drawn as PNG, which needs Chromium on the PATH.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from skillfit.api import Run
from skillfit.cli.terminal import render_screen
from skillfit.run.directory import RunDirectory

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
QUICKSTART = ROOT / "docs" / "quickstart.md"
# Pages whose output no other page shows.
ALONE = {name: ROOT / "docs" / f"{name}.md" for name in ("complete-run", "trigger", "whole-skill")}
SHARING_ITS_OUTPUT = [
    QUICKSTART,
    *(ROOT / "docs" / name for name in ("cost.md", "reference/commands.md")),
]
_RUN = re.compile(r"<!-- run -->\n```sh\n(.*?)```", re.DOTALL)
_COPY = re.compile(r"<!-- copy: (.+?) -->")
_OUTPUT = re.compile(r"(<!-- output: (?P<command>.+?) -->\n```text\n)(.*?)(```)", re.DOTALL)


def runnable(page: Path) -> list[str]:
    """The commands of a page that are meant to be run, in order."""
    return [
        line
        for block in _RUN.findall(page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if line.strip()
    ]


def run(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}")
    # Paths are shown as they look from the folder.
    lines = (line.rstrip() for line in done.stdout.replace(f"{folder.resolve()}/", "").splitlines())
    return "".join(f"{line}\n" for line in lines)


def draw_terminal(directory: Path) -> None:
    """The live screen of a finished run, at the end."""
    view = RunDirectory.read(directory)
    spent = view.journal.spent()
    view.close()
    finished = Run.open(directory)
    assert finished.summary is not None
    seconds = finished.summary.total_wall_time_s
    recorder = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    recorder.print(render_screen(finished.record, spent, seconds, width=100, height=32))
    drawn = recorder.export_svg(title="skillfit")
    # Rich names web fonts; the documentation loads nothing from elsewhere.
    plain = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL).replace(
        "Fira Code, monospace", "monospace"
    )
    (IMAGES / "terminal.svg").write_text(
        "\n".join(line.rstrip() for line in plain.splitlines() if line.strip()) + "\n"
    )


def draw_report(directory: Path) -> None:
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        "--window-size=1040,1240",
    ]
    page = (directory / "report.html").resolve().as_uri()
    subprocess.run(
        [*command, f"--screenshot={IMAGES / 'report.png'}", page], check=True, capture_output=True
    )


def draw_skill(runs: Path) -> None:
    """The page of a skill in the studio, with its files."""
    # Imported here: the other pages need no browser that a program drives.
    from playwright.sync_api import sync_playwright
    from studio_pictures import launch, open_page, photograph, served

    with sync_playwright() as playwright, served(runs, runs.parent) as link:
        browser = launch(playwright)
        page = open_page(browser, "desktop", "light")
        page.goto(link)
        page.goto(link.partition("/?")[0] + "/skill/offline")
        photograph(page, IMAGES / "studio-files.png", 1150)
        browser.close()


def refresh(source: Path, pages: list[Path], folder: Path) -> None:
    """Run the commands of `source` in `folder`, then fill the outputs of `pages`."""
    for names in _COPY.findall(source.read_text(encoding="utf-8")):
        for name in names.split():
            original = ROOT / name
            if original.is_dir():
                shutil.copytree(original, folder / original.name)
            else:
                shutil.copy(original, folder)
    printed = {command: run(command, folder) for command in runnable(source)}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for asked in _OUTPUT.finditer(text):
            if asked["command"] not in printed:
                printed[asked["command"]] = run(asked["command"], folder)
        page.write_text(
            _OUTPUT.sub(lambda asked: asked[1] + printed[asked["command"]] + asked[4], text),
            encoding="utf-8",
        )


def main() -> None:
    chosen = sys.argv[1:] or ["quickstart", *ALONE]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "quickstart" in chosen:
            refresh(QUICKSTART, SHARING_ITS_OUTPUT, folder)
            draw_terminal(folder / "runs" / "first")
            draw_report(folder / "runs" / "first")
    for name, page in ALONE.items():
        with tempfile.TemporaryDirectory() as temporary:
            if name in chosen:
                refresh(page, [page], Path(temporary))
                if name == "whole-skill":
                    draw_skill(Path(temporary).resolve() / "runs")


if __name__ == "__main__":
    main()
