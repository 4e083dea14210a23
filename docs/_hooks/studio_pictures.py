"""`python docs/_hooks/studio_pictures.py` draws the pictures of the studio in the documentation.

It trains the demo three times with the practice models and photographs the pages in Chromium.
`--all FOLDER` writes every page instead, light and dark, for a desktop and a phone; `--runs FOLDER`
takes runs that are there instead of training.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

import uvicorn
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from skillfit.plugins.studio.web_app import Session, make_app, make_web_server

IMAGES = Path(__file__).parents[1] / "images"
SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
LONGEST = 3000  # pixels of a page in the pictures of --all
# Settings of the three runs: the middle one differs in its edits per step, the last in its budget.
RUNS: dict[str, list[str]] = {
    "first": [],
    "few-edits": ["optimizer.learning_rate=2"],
    "short": ["train.num_epochs=1", "train.seed=7"],
}
# Name of the picture in the documentation -> address, height in pixels.
DRAWN = {
    "studio-runs": ("/", 420),
    "studio-run": ("/run/first?edit=s0001e01", 1180),
    "studio-skill": ("/skill/first", 980),
    "studio-items": ("/items/first", 900),
    "studio-compare": ("/compare?run=first&run=few-edits&run=short", 1500),
    "studio-new": ("/new?config=skillfit.yaml", 1120),
}


def pages_of(run: str) -> dict[str, str]:
    """Every kind of page, by name."""
    return {
        "runs": "/",
        "run": f"/run/{run}",
        "edit": f"/run/{run}?edit=s0001e01",
        "steps": f"/log/{run}",
        "step": f"/step/1/{run}",
        "settings": f"/about/{run}",
        "skill": f"/skill/{run}",
        "diff": f"/skill/{run}?version=best&against=initial",
        "items": f"/items/{run}",
        "map": f"/items/{run}?view=map",
        "apply": f"/apply/{run}",
        "handoff": f"/handoff/{run}",
        "report": f"/report/{run}",
        "new": "/new",
    }


def train(folder: Path) -> Path:
    """The demo's project with its runs in `runs`."""
    skillfit = [sys.executable, "-m", "skillfit"]
    project = folder / "support"
    subprocess.run(
        [*skillfit, "demo", "--dir", str(project), "--json"], check=True, stdout=subprocess.DEVNULL
    )
    for name, settings in RUNS.items():
        command = [
            *skillfit,
            "train",
            "skillfit.yaml",
            *settings,
            "--run",
            f"runs/{name}",
            "--json",
        ]
        # A run without an improvement ends with its own exit code; its pictures are fine, too.
        subprocess.run(command, cwd=project, stdout=subprocess.DEVNULL)
    return project / "runs"


@contextmanager
def served(runs: Path, project: Path) -> Iterator[str]:
    """The studio on a loopback port; the link that logs in."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        session = Session()
        app = make_app(runs, session, project=project)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        server = make_web_server(config, app.state.studio)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/?token={session.token}"
        finally:
            server.should_exit = True
            thread.join()


def launch(playwright: Playwright) -> Browser:
    chromium = which("chromium") or which("chromium-browser")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    return playwright.chromium.launch(executable_path=chromium, args=flags)


def open_page(browser: Browser, size: str, scheme: str) -> Page:
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(180_000)
    return context.new_page()


def photograph(page: Page, out: Path, height: int) -> None:
    """The top of the page, at most `height` pixels of it."""
    whole = page.evaluate("document.documentElement.scrollHeight")
    width = page.viewport_size["width"] if page.viewport_size else 1280
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, whole)}
    page.screenshot(path=out, clip=clip, full_page=True)


def draw_documentation(browser: Browser, link: str) -> None:
    address = link.partition("/?")[0]
    page = open_page(browser, "desktop", "light")
    page.goto(link)
    for name, (path, height) in DRAWN.items():
        # What stays at the edge of the window is at the edge of the picture.
        page.set_viewport_size({"width": SIZES["desktop"][0], "height": height})
        page.goto(address + path)
        photograph(page, IMAGES / f"{name}.png", height)


def draw_all(browser: Browser, link: str, out: Path, runs: list[str]) -> None:
    address = link.partition("/?")[0]
    out.mkdir(parents=True, exist_ok=True)
    cookies = None
    for scheme in ("light", "dark"):
        for size in SIZES:
            page = open_page(browser, size, scheme)
            if cookies is None:
                page.goto(link)
                cookies = page.context.cookies()
            page.context.add_cookies(cookies)
            for run in runs:
                for name, path in pages_of(run).items():
                    began = time.monotonic()
                    page.goto(address + path)
                    took = time.monotonic() - began
                    photograph(page, out / f"{run}-{name}-{scheme}-{size}.png", LONGEST)
                    print(f"{run} {name} {scheme} {size}: {took:.2f} s")
            page.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, help="write every page into this folder instead")
    parser.add_argument("--runs", type=Path, help="a folder with runs; default: train the demo")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        os.environ["HOME"] = folder  # so that pages show no path of this machine
        runs = (given.runs or train(Path(folder))).resolve()
        browser = launch(playwright)
        with served(runs, runs.parent) as link:
            if given.all:
                names = sorted(path.name for path in runs.iterdir() if path.is_dir())
                draw_all(browser, link, given.all, names)
            else:
                draw_documentation(browser, link)
        browser.close()


if __name__ == "__main__":
    main()
