"""`python docs/_hooks/refresh.py`: runs the quickstart in an empty folder and puts what it printed into the documentation.

Blocks after `<!-- run -->` are run in order; a block after `<!-- output: COMMAND -->` is filled with what that command printed. The
terminal is drawn as SVG, the report as PNG (that one needs a Chromium on the PATH). With `--numbers` only the README's numbers are
brought up to what the gate's bench printed last.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from skillfit.api import Run
from skillfit.cli.terminal import Screen, render
from skillfit.run.directory import RunDirectory

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("quickstart.md", "cost.md", "reference/commands.md")),
]
_RUN = re.compile(r"<!-- run -->\n```sh\n(.*?)```", re.DOTALL)
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
        check=True,
    )
    # Paths are shown as they look from the folder.
    lines = (line.rstrip() for line in done.stdout.replace(f"{folder.resolve()}/", "").splitlines())
    return "".join(f"{line}\n" for line in lines)


def draw_terminal(directory: Path) -> None:
    screen = Screen()
    view = RunDirectory.read(directory)
    for stored in view.events.read():
        screen(stored)
    screen.spent, screen.bars = view.journal.spent(), {}
    view.close()
    recorder = Console(record=True, width=110, file=io.StringIO(), force_terminal=True)
    recorder.print(render(screen, Run.open(directory).summary["total_wall_time_s"], 110))
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


def put_numbers() -> None:
    """The README's numbers, from what the gate's bench printed last."""
    results = (ROOT / "bench" / "gate" / "results.md").read_text(encoding="utf-8")
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    for items in (40, 200):
        ratios = re.findall(
            rf"^\| n={items} (?:quiet|middling|noisy) \|.*?\*\*([\d.]+)\*\*", results, re.MULTILINE
        )
        said = f"{min(map(float, ratios)):.1f} to {max(map(float, ratios)):.1f} times"
        text = re.sub(rf"[\d.]+ to [\d.]+ times(?=[^.]*? at {items}\b)", said, text)
    if share := re.search(r"^\| all \| ([\d.]+)% \|", results, re.MULTILINE):
        text = re.sub(r"in [\d.]+ % of simulated runs", f"in {share[1]} % of simulated runs", text)
    readme.write_text(text, encoding="utf-8")


def main() -> None:
    put_numbers()
    if "--numbers" in sys.argv:
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        printed = {
            command: run(command, folder) for command in runnable(ROOT / "docs" / "quickstart.md")
        }
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            for asked in _OUTPUT.finditer(text):
                printed.setdefault(asked["command"], "")
                printed[asked["command"]] = printed[asked["command"]] or run(
                    asked["command"], folder
                )
            page.write_text(
                _OUTPUT.sub(lambda asked: asked[1] + printed[asked["command"]] + asked[4], text),
                encoding="utf-8",
            )
        draw_terminal(folder / "runs" / "first")
        draw_report(folder / "runs" / "first")


if __name__ == "__main__":
    main()
