"""The studio and the report in a real browser: chromium through Playwright."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from skillfit.record.fold import read_record
from skillfit.report import write_report
from skillfit.run.events import StageStarted, Warned
from skillfit.run.store import in_use
from tests.plugins.studio.server import SKILL, RunningStudio, practice_project, studio
from tests.report.recorded_runs import BEST, INITIAL, WrittenRun, improved, screening_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PDFTOTEXT = shutil.which("pdftotext")
EVIL = '<script>window.pwned = 1</script><img src=x onerror="window.pwned = 1">\x1b[2K\u202e'
EVIL_RUN = "%3Cimg%20src%3Dx%20onerror%3Dpwned%3D1%3E"
PAGES = (
    "/",
    "/?q=nothing",
    "/run/pool",
    "/run/unproven",
    "/run/halted",
    "/run/live",
    f"/run/{EVIL_RUN}",
    "/step/3/pool",
    "/run/pool?edit=s0001e01",
    "/log/pool",
    "/about/pool",
    "/skill/pool",
    "/skill/pool?version=best&against=initial",
    f"/skill/{EVIL_RUN}",
    "/items/pool",
    f"/items/{EVIL_RUN}",
    "/items/pool?item=ticket-0003",
    f"/items/{EVIL_RUN}?item=t00",
    f"/items/{EVIL_RUN}?item=t00&phase=ship&step=0&key=rollout/ship/new/fp-t00/0",
    "/compare?run=pool&run=unproven",
    "/apply/pool",
    "/handoff/pool",
    "/new",
    "/report/pool",
    f"/report/{EVIL_RUN}",
)
_PATIENCE = 60_000  # milliseconds: a busy machine may take long for a page
expect.set_options(timeout=_PATIENCE)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.xdist_group("browser"),
]


@dataclass(slots=True)
class Window:
    """A page of the browser that remembers what went wrong in it."""

    page: Page
    address: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path)
        return self.page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with runs of every kind; the one called "live" is being written."""
    folder = tmp_path_factory.mktemp("project")
    practice_project(folder)
    runs = folder / "runs"
    skill = f"{INITIAL}{EVIL}\n"
    asyncio.run(improved(runs / "<img src=x onerror=pwned=1>", skill=skill, text=EVIL))
    asyncio.run(_measured_on_the_test_split(runs / "tested"))
    asyncio.run(_three_items_fail(runs / "failing"))
    screening_run(runs / "pool", steps=12, items=60, rollouts=120)
    screening_run(runs / "unproven", steps=6, finish="no_improvement")
    screening_run(runs / "halted", steps=3, finish="")
    live = WrittenRun(runs / "live")
    live.emit(StageStarted(epoch=0, step=0, stage="baseline", total=8))
    yield folder
    live.close()


async def _measured_on_the_test_split(path: Path) -> None:
    run = WrittenRun(path)
    run.step(1, "accept", BEST, "new")
    for skill, scores in (("old", [0] * 8), ("new", [1] * 8)):
        await run.roll("ship", skill, scores)
    run.ship("improved", 1.0, (0.8, 1.0))
    run.measured("test_baseline", "old", 0.25, split="test")
    run.measured("test_best", "new", 0.75, split="test")
    run.finish("improved", BEST)
    run.close()


async def _three_items_fail(path: Path) -> None:
    run = WrittenRun(path)
    run.items()
    await run.roll("ship", "old", [0] * 8)
    await run.roll("ship", "new", [0] * 3 + [1] * 5)
    run.ship("inconclusive", 0.1, (-0.2, 0.4))
    run.close()


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[RunningStudio]:
    with studio(folder / "runs", folder) as running:
        yield running


@pytest.fixture(scope="module")
def chromium(folder: Path) -> Iterator[Browser]:
    """`folder` comes first: it needs an event loop, and the browser's own runs from here on."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@contextmanager
def window(chromium: Browser, site: RunningStudio, **options: Any) -> Iterator[Window]:
    """A window that is logged in. At its end nothing may have gone wrong."""
    context = chromium.new_context(**options)
    context.set_default_timeout(_PATIENCE)
    page = context.new_page()
    opened = Window(page, site.address)
    page.on("console", lambda message: _note(opened, message.type, message.text))
    page.on("pageerror", lambda error: opened.problems.append(str(error)))
    page.goto(site.links[-1])
    yield opened
    assert opened.problems == []
    context.close()


def _note(opened: Window, kind: str, text: str) -> None:
    if kind in ("error", "warning"):
        opened.problems.append(text)


def confirm(page: Page, answer: str) -> None:
    """Press the button that is named so, and the one of the question that follows."""
    page.get_by_role("button", name=answer, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=answer, exact=True).click()


def seconds(count: float) -> float:
    return count * 1000


PROJECT = (
    "model.agent=practice/agent",
    "model.optimizer=practice/optimizer",
    "env.skill=./triage",
    "env.tasks=./tasks.jsonl",
    "env.grader=exact",
    "evaluation.preflight=false",
)
ONE_STEP = (
    "train.num_epochs=1",
    "optimizer.use_slow_update=false",
    "optimizer.use_meta_skill=false",
)


def train(folder: Path, name: str, *settings: str) -> None:
    """A run of the practice project, started in a terminal."""
    (folder / "practice.yaml").write_text("train: {seed: 42}\n")
    command = [sys.executable, "-m", "skillfit", "train", "practice.yaml", *PROJECT, *settings]
    subprocess.run([*command, "--run", f"runs/{name}", "--json"], cwd=folder, capture_output=True)


def test_no_page_has_errors_or_runs_injected_scripts(
    chromium: Browser, site: RunningStudio
) -> None:
    with window(chromium, site) as opened:
        for path in PAGES:
            page = opened.open(path)
            expect(page.locator("h1").first).to_be_visible()
            assert page.evaluate("window.pwned") is None, path
            assert page.locator("img:not(.card-picture)").count() == 0, path
            assert opened.problems == [], path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(chromium: Browser, site: RunningStudio, scheme: str) -> None:
    """axe finds nothing serious."""
    axe = Axe()
    with window(chromium, site, color_scheme=scheme) as opened:
        for path in PAGES:
            found = axe.run(opened.open(path)).response["violations"]
            serious = [
                (path, one["id"], [node["target"] for node in one["nodes"]][:3])
                for one in found
                if one["impact"] in ("serious", "critical")
            ]
            assert serious == []


def test_no_page_is_wider_than_a_phone(chromium: Browser, site: RunningStudio) -> None:
    with window(chromium, site, viewport={"width": 390, "height": 800}) as opened:
        for path in PAGES:
            page = opened.open(path)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, (path, wide)


TILE_ROWS = """[...document.querySelectorAll(".facts dl")].map((list) => {
  const rows = {};
  for (const tile of list.children) rows[tile.offsetTop] = (rows[tile.offsetTop] ?? 0) + 1;
  return Object.values(rows);
})"""


@pytest.mark.parametrize("width", [1440, 1200, 1024, 768, 390])
def test_no_tile_is_alone_in_a_row(chromium: Browser, site: RunningStudio, width: int) -> None:
    """Six tiles fill equal rows; with five, the last one would be alone in a row on a phone."""
    with window(chromium, site, viewport={"width": width, "height": 800}) as opened:
        for path, tiles in (("/run/tested", 6), ("/report/tested", 6), ("/run/pool", 5)):
            (rows,) = opened.open(path).evaluate(TILE_ROWS)
            assert sum(rows) == tiles, path
            if tiles == 6:
                assert len(set(rows)) == 1, (path, rows)
            elif width > 390:
                assert 1 not in rows, (path, rows)


def test_a_run_is_started_from_the_form_followed_and_applied(
    chromium: Browser, site: RunningStudio, folder: Path
) -> None:
    with window(chromium, site) as opened:
        page = opened.page
        page.get_by_role("link", name="New run").click()
        page.get_by_label("name", exact=True).fill("first")
        for label, value in (
            ("skill env.skill", "triage"),
            ("tasks env.tasks", "tasks.jsonl"),
            ("grader env.grader", "exact"),
            ("agent model.agent", "practice/agent"),
            ("optimizer model.optimizer", "practice/optimizer"),
        ):
            page.get_by_label(re.compile(f"^{label}$")).fill(value)
        expect(page.get_by_role("button", name=re.compile("^Start"))).to_have_count(0)
        page.get_by_label(re.compile("^usd budget.usd$")).fill("4.2")
        page.get_by_role("button", name="Show the price").click()
        expect(page.get_by_role("heading", name="Estimate")).to_be_visible(timeout=seconds(60))
        expect(page.locator(".config")).to_contain_text("24 of 24 gold answers score 1")
        expect(page.locator(".config")).to_contain_text("case 0: my refund is a problem")
        expect(page.locator(".config")).to_contain_text("optimizer: ready")
        assert not (folder / "first.yaml").exists(), "nothing is written for a price"
        total = page.locator("#result tr.sum [data-th=calls]").inner_text()
        typical, low, high = map(int, re.findall(r"\d+", total))
        assert low < typical <= high
        expect(page.get_by_label("name", exact=True)).to_have_value("first")
        page.get_by_role("button", name=re.compile("^Check")).click()
        expect(page.get_by_role("heading", name=re.compile("^Check:"))).to_be_visible(
            timeout=seconds(60)
        )
        opened.open("/?state=checked")
        expect(page.locator(".runs tbody tr")).to_contain_text("checked")
        page.get_by_role("link", name="first").click()
        expect(page.locator("#content")).to_contain_text("gold answers score 1")
        page.get_by_role("link", name="Price and start").click()
        expect(page.get_by_label("name", exact=True)).to_have_value("first")
        page.get_by_role("button", name="Show the price").click()
        page.get_by_role("button", name="Start, at most $4.20").click()
        page.wait_for_url("**/run/first", timeout=seconds(60))
        page.evaluate("window.untouched = true")
        expect(page.locator("h1")).to_contain_text("The skill is better", timeout=seconds(120))
        assert page.evaluate("window.untouched"), "the page was not loaded again"
        expect(page.locator("svg .point").first).to_be_visible()

        page.get_by_role("link", name="Skill", exact=True).click()
        expect(page.locator(".doc .note b").first).to_be_visible()
        page.get_by_label("compared with").select_option("initial")
        expect(page.locator(".diff .added").first).to_be_visible()

        page.get_by_role("link", name="Items", exact=True).click()
        expect(page.get_by_role("heading", name="What happened")).to_be_visible()
        expect(page.locator("#side pre").first).to_contain_text("is a problem")
        page.get_by_role("link", name="map of all rollouts").click()
        expect(page.locator(".heat .cell").first).to_be_visible()

        page.get_by_role("link", name="Overview").click()
        page.locator(".forest tbody a").first.click()
        expect(page.get_by_text("can no longer be steered")).to_be_visible()

        page.get_by_role("link", name="Apply", exact=True).click()
        confirm(page, "Apply")
        expect(page.get_by_role("status")).to_contain_text("skillfit apply", timeout=seconds(60))
        assert (folder / "triage" / "SKILL.md").read_text() != SKILL
        expect(page.get_by_text("This skill was applied to")).to_be_visible()
        expect(page.get_by_role("button", name="Apply")).to_have_count(0)
        confirm(page, "Undo")
        expect(page.get_by_role("status")).to_contain_text("Restored", timeout=seconds(60))
        assert (folder / "triage" / "SKILL.md").read_text() == SKILL

        (folder / "triage" / "SKILL.md").write_text(SKILL + "\n- By hand.\n")
        page.reload()
        expect(page.locator("#content")).to_contain_text("has changed since the run began")
        expect(page.locator(".diff")).to_contain_text("By hand.")
        expect(page.locator(".diff .added svg").first).to_be_visible()
        confirm(page, "Apply all the same")
        expect(page.get_by_role("status")).to_contain_text("--force", timeout=seconds(60))
        confirm(page, "Undo")
        expect(page.get_by_role("status")).to_contain_text("Restored", timeout=seconds(60))
        assert "- By hand." in (folder / "triage" / "SKILL.md").read_text()
        (folder / "triage" / "SKILL.md").write_text(SKILL)


CHOOSE_AT_ONCE = """
new MutationObserver((_, observer) => {
  const select = document.querySelector("select[name=against]");
  if (!select || location.search) return;
  observer.disconnect();
  select.value = "initial";
  select.dispatchEvent(new Event("change", { bubbles: true }));
}).observe(document, { childList: true, subtree: true });
"""


def test_a_choice_made_while_the_page_loads_takes_effect(
    chromium: Browser, site: RunningStudio
) -> None:
    with window(chromium, site) as opened:
        opened.page.add_init_script(CHOOSE_AT_ONCE)
        page = opened.open("/skill/pool")
        expect(page.locator(".diff .added").first).to_be_visible()


@pytest.mark.parametrize("script", [True, False])
def test_mistakes_stay_in_the_form_and_are_marked(
    chromium: Browser, site: RunningStudio, folder: Path, script: bool
) -> None:
    with window(chromium, site, java_script_enabled=script) as opened:
        page = opened.open("/new")
        page.get_by_label("name", exact=True).fill("wrong")
        page.get_by_label(re.compile("^tasks env.tasks$")).fill("tasks.jsonl")
        page.get_by_label(re.compile("^grader env.grader$")).fill("nonsense")
        page.get_by_role("button", name="Show the price").click()
        expect(page.get_by_role("alert").first).to_contain_text("'nonsense' is not a grader")
        marked = page.locator("[aria-invalid]")
        expect(marked).to_have_count(1)
        expect(marked).to_have_value("nonsense")
        assert "status of 400" in opened.problems.pop()  # Chromium logs the refused form
    assert not (folder / "wrong.yaml").exists() and not (folder / "runs" / "wrong").exists()
    assert not list(folder.glob(".wrong*"))


def test_the_form_says_how_items_are_divided_also_with_settings_as_yaml(
    chromium: Browser, site: RunningStudio
) -> None:
    with window(chromium, site) as opened:
        page = opened.open("/new")
        for label, value in (
            ("skill env.skill", "triage"),
            ("tasks env.tasks", "tasks.jsonl"),
            ("agent model.agent", "practice/agent"),
            ("optimizer model.optimizer", "practice/optimizer"),
        ):
            page.get_by_label(re.compile(f"^{label}$")).fill(value)
        page.get_by_role("button", name="Show the price").click()
        counts = page.locator(".splits .sum td")
        expect(counts).to_have_text(["total", "10", "9", "5"])
        page.locator("summary", has_text="without an input").click()
        page.get_by_label("settings as YAML").fill('env: {split_ratio: "2:1:1"}')
        page.get_by_role("button", name="Show the price").click()
        expect(counts).to_have_text(["total", "12", "6", "6"])
        expect(page.get_by_label("settings as YAML")).to_have_value('env: {split_ratio: "2:1:1"}')


def test_a_changed_form_shows_its_price_before_it_starts(
    chromium: Browser, site: RunningStudio, folder: Path
) -> None:
    (folder / "priced.yaml").write_text(
        "model: {agent: practice/agent, optimizer: practice/optimizer}\n"
        "env: {skill: ./triage, tasks: ./tasks.jsonl, grader: exact}\nbudget: {calls: 50}\n"
    )
    with window(chromium, site) as opened:
        page = opened.open("/new?config=priced.yaml")
        page.get_by_role("button", name="Show the price").click()
        page.get_by_label(re.compile("^calls budget.calls$")).fill("90")
        page.get_by_role("button", name="Start, at most 50 calls").click()
        expect(page.locator("#result")).to_contain_text("not those of the last estimate")
        expect(page.get_by_role("button", name="Start, at most 90 calls")).to_be_visible()
        assert not list((folder / "runs").glob("run-*"))


def test_the_demo_is_started_from_an_empty_studio(chromium: Browser, tmp_path: Path) -> None:
    with studio(tmp_path) as running, window(chromium, running) as opened:
        opened.page.get_by_role("button", name="Try the demo").click()
        expect(opened.page.get_by_role("status")).to_contain_text("The demo is starting")
        expect(opened.page.locator(".runs tbody tr")).to_contain_text("improved", timeout=120_000)
        opened.page.get_by_role("link", name="demo/run").click()
        expect(opened.page.locator("h1")).to_contain_text("The skill is better")


def test_a_run_is_stopped_and_resumed(chromium: Browser, site: RunningStudio, folder: Path) -> None:
    """Started from a config file in the folder, with settings of the form on top."""
    (folder / "long.yaml").write_text(
        "model: {agent: practice/agent, optimizer: practice/optimizer}\n"
        "env: {skill: ./triage, tasks: ./tasks.jsonl, grader: exact}\n"
        "evaluation: {preflight: false}\n"
    )
    run = folder / "runs" / "long"
    with window(chromium, site) as opened:
        page = opened.open("/new?config=long.yaml")
        page.get_by_label("name", exact=True).fill("long")
        page.locator("summary", has_text="train").click()
        page.get_by_label(re.compile("train.num_epochs$")).fill("300")
        page.get_by_label(re.compile("train.batch_size$")).fill("3")
        page.get_by_role("button", name="Show the price").click()
        page.get_by_role("button", name="Start", exact=True).click()
        expect(page.get_by_role("alert").first).to_contain_text("set a budget")
        expect(page.get_by_label(re.compile("^usd budget.usd$"))).to_have_attribute(
            "aria-invalid", "true"
        )
        assert "status of 400" in opened.problems.pop()  # Chromium logs the refused form
        page.get_by_role("button", name="Show the price").click()
        page.get_by_label("no limit").check()
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_url("**/run/long", timeout=seconds(60))
        for _ in range(2):
            confirm(page, "Stop")
            expect(page.locator("h1")).to_contain_text("Stopped", timeout=seconds(90))
            assert not in_use(run)
            page.get_by_role("button", name="Resume", exact=True).click()
            expect(page.locator("h1")).to_contain_text("Running", timeout=seconds(60))
            assert in_use(run)
        confirm(page, "Stop")
        expect(page.locator("h1")).to_contain_text("Stopped", timeout=seconds(90))
        expect(page.get_by_role("status")).to_have_count(0)


def test_a_budget_is_raised_and_edits_are_reviewed_pinned_reworded_and_vetoed(
    chromium: Browser, site: RunningStudio, folder: Path
) -> None:
    """One run under review that its budget ends before the first step."""
    run = folder / "runs" / "reviewed"
    train(folder, "reviewed", "review=true", "train.num_epochs=2", "budget.calls=60")
    with window(chromium, site) as opened:
        page = opened.open("/run/reviewed")
        expect(page.locator("h1")).to_contain_text("The budget was reached")
        page.get_by_label("Budget", exact=True).select_option("calls")
        page.get_by_label("Amount", exact=True).fill("5000")
        page.get_by_role("button", name="Raise budget and resume").click()
        expect(page.locator("h1")).to_contain_text("Waiting for your approval of 6 edits")
        expect(page.locator(".review")).to_have_count(6)
        page.locator(".review", has_text="login").get_by_role("button", name="Approve").click()
        expect(page.get_by_role("status")).to_contain_text("skillfit steer reviewed approve")
        page.get_by_role("link", name="Overview").click()
        page.locator(".review", has_text="parcel").get_by_role("button", name="Decline").click()
        expect(page.get_by_role("status")).to_contain_text("skillfit steer reviewed decline")

        opened.open("/run/reviewed?edit=s0001e03")
        page.get_by_role("button", name="Pin: keep it").click()
        expect(page.get_by_role("status")).to_contain_text("skillfit steer reviewed pin")
        opened.open("/run/reviewed?edit=s0001e06")
        page.get_by_role("button", name="Veto: drop it").click()
        expect(page.get_by_role("status")).to_contain_text("skillfit steer reviewed veto")
        page.get_by_role("button", name="Undo: veto").click()
        expect(page.get_by_role("status")).to_contain_text("skillfit steer reviewed release")
        expect(page.get_by_role("button", name="Undo: veto")).to_have_count(0)
        page.get_by_role("button", name="Veto: drop it").click()
        expect(page.get_by_role("status")).to_contain_text("skillfit steer reviewed veto")
        opened.open("/run/reviewed?edit=s0001e05")
        page.locator("summary", has_text="Reword it").click()
        page.get_by_label("New wording").fill("- Think of the queue that solves it.")
        page.get_by_role("button", name="Reword").click()
        expect(page.get_by_role("status")).to_contain_text("skillfit steer reviewed reword")
        expect(page.get_by_text("not yet read by the run").first).to_be_visible()

        page.get_by_role("link", name="Overview").click()
        label = page.locator(".review", has_text="label alone")
        label.get_by_role("button", name="Approve").click()
        page.get_by_role("link", name="Overview").click()
        expect(page.locator(".review")).to_have_count(0)
        page.get_by_role("button", name="Resume", exact=True).click()
        expect(page.locator("h1")).to_contain_text("The skill is better")
        expect(page.get_by_text("not yet read by the run")).to_have_count(0)
    record = read_record(run)
    assert [one.action for one in record.decisions] == [
        "budget",
        "approve",
        "decline",
        "pin",
        "veto",
        "reword",
        "approve",
    ]
    decided = [edit for edit in record.edits if edit.reason.endswith("by a person")]
    assert {edit.text[:45]: (edit.status, edit.reason) for edit in decided} == {
        "- Mentions of parcel mean delivery.": ("dropped", "declined by a person"),
        "- Mentions of login mean account.": ("promoted", "approved by a person"),
        "- Mentions of refund mean billing.": ("promoted", "pinned by a person"),
        "- Think about what the writer needs most.": ("dropped", "vetoed by a person"),
        "- Read the whole text before answering, becau": ("dropped", "reworded by a person"),
        "- Answer with the label alone, in lower case:": ("promoted", "approved by a person"),
    }
    assert all(edit.in_best == (edit.status == "promoted") for edit in decided)


def test_a_handoff_prompt_is_answered_and_the_run_continues(
    chromium: Browser, site: RunningStudio, folder: Path
) -> None:
    train(folder, "asking", *ONE_STEP, "model.optimizer=handoff")
    edit = {"op": "append", "target": "", "content": "- Mentions of refund mean billing."}
    with window(chromium, site) as opened:
        page = opened.open("/run/asking")
        expect(page.locator("h1")).to_contain_text("Waiting for answers")
        page.get_by_role("link", name="Answer 1 prompt").click()
        expect(page.locator("pre.tall")).to_contain_text("Form of the answer")
        page.get_by_label("Answer").fill("no JSON at all")
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("status")).to_contain_text("cannot be used")
        assert "status of 400" in opened.problems.pop()  # Chromium logs the refused form
        page.get_by_label("Answer").fill(json.dumps({"edits": [edit]}))
        page.get_by_role("button", name="Answer").click()
        expect(page.get_by_role("status")).to_contain_text("Resume the run now.")
        page.get_by_role("button", name="Resume").click()
        page.wait_for_url("**/run/asking?*")
        expect(page.locator(".forest tbody")).to_contain_text("Mentions of refund mean billing.")
        page.get_by_role("link", name="Steps", exact=True).click()
        expect(page.locator("[data-part=gates] tbody a").first).to_have_text("step 1")


def test_drafts_of_other_answers_stay_and_prompts_are_copied(
    chromium: Browser, tmp_path: Path
) -> None:
    WrittenRun(tmp_path / "run").close()
    for name in ("merge-1", "merge-2"):
        prompt = tmp_path / "run" / "handoff" / f"{name}.prompt.md"
        prompt.parent.mkdir(exist_ok=True)
        prompt.write_text(f"The prompt of {name}.")
    permissions = ["clipboard-read", "clipboard-write"]
    with studio(tmp_path) as running, window(chromium, running, permissions=permissions) as opened:
        page = opened.open("/handoff/run")
        page.locator("textarea").nth(1).fill("half an answer")
        page.get_by_role("button", name="Copy prompt").first.click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == "The prompt of merge-1."
        page.locator("textarea").nth(0).fill("[]")
        page.get_by_role("button", name="Answer", exact=True).first.click()
        expect(page.get_by_role("status")).to_contain_text("1 prompt left.")
        expect(page.locator("textarea")).to_have_value("half an answer")


def test_a_question_is_asked_before_a_run_is_stopped(
    chromium: Browser, site: RunningStudio
) -> None:
    with window(chromium, site) as opened:
        page = opened.open("/run/live")
        page.get_by_role("button", name="Stop").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("What is in progress finishes and is saved.")
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        page.get_by_role("button", name="Stop").click()
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.locator(".runbar")).to_contain_text("running")
        expect(page.get_by_role("status")).to_have_count(0)


def test_progress_of_a_run_appears_on_open_pages(
    chromium: Browser, site: RunningStudio, folder: Path
) -> None:
    with window(chromium, site) as opened:
        page = opened.open("/?sort=name")
        page.evaluate("window.untouched = true")
        run = WrittenRun(folder / "runs" / "appearing")
        page.get_by_role("link", name="appearing").wait_for()
        assert page.evaluate("window.untouched"), "the page was not loaded again"
        page = opened.open("/run/appearing")
        page.evaluate("window.untouched = true")
        expect(page.get_by_text("Nothing has been measured yet.")).to_be_visible()
        run.emit(StageStarted(epoch=0, step=0, stage="baseline", total=8))
        expect(page.locator(".stages")).to_contain_text("measuring")
        expect(page.locator(".strip summary")).to_contain_text("0 of 8")
        expect(page.locator(".strip")).to_be_in_viewport()
        run.measured("baseline", "old", 0.25)
        expect(page.locator("svg .point").first).to_be_attached()
        run.step(1, "accept", BEST, "new")
        expect(page.locator(".runbar")).to_contain_text("step 1 of 2")
        run.emit(Warned(what="x", message="The grader is slow."))
        expect(page.get_by_text("The grader is slow.")).to_be_visible()
        assert page.evaluate("window.untouched"), "the page was not loaded again"
        page.get_by_role("link", name="Steps", exact=True).click()
        expect(page.locator("[data-part=gates] tbody tr")).to_contain_text("accepted, new best")
        page.get_by_role("link", name="Overview").click()
        run.close()
        expect(page.locator("h1")).to_contain_text("Stopped")


def test_the_pool_on_an_open_page_grows_until_the_run_ends(
    chromium: Browser, site: RunningStudio, folder: Path
) -> None:
    """The slider over the steps is shown after the second one, and stays at the latest."""
    (folder / "grow.yaml").write_text("train: {seed: 42}\n")
    command = [sys.executable, "-m", "skillfit", "train", "grow.yaml", *PROJECT, *ONE_STEP]
    with window(chromium, site) as opened:
        page = opened.open("/?sort=name")
        settings = ["train.num_epochs=2", "--run", "runs/growing", "--json"]
        with subprocess.Popen([*command, *settings], cwd=folder, stdout=subprocess.DEVNULL):
            page.get_by_role("link", name="growing").click()
            page.evaluate("window.untouched = true")
            expect(page.locator("h1")).to_contain_text(re.compile("^(The skill|No imp|It is not)"))
        slider = page.get_by_label(re.compile("After step"))
        expect(slider).to_be_visible()
        assert slider.input_value() == slider.get_attribute("max")
        expect(page.locator("#pool-now")).to_have_text(slider.input_value())
        expect(page.get_by_text("Open an edit to pin")).to_have_count(0)
        assert page.evaluate("window.untouched"), "the page was not loaded again"
        page.get_by_role("link", name="Settings", exact=True).click()
        expect(page.locator("[data-part=about]")).to_contain_text("Ended")


def test_a_click_works_while_its_part_of_the_page_is_replaced(
    chromium: Browser, site: RunningStudio
) -> None:
    with window(chromium, site) as opened:
        page = opened.open("/run/pool")
        link = page.locator(".forest tbody a").first
        link.hover()
        page.mouse.down()
        page.evaluate(
            """() => {
              const part = document.querySelector('[data-part="pool"]');
              showParts({ pool: part.innerHTML + '<p id="sent-again"></p>' });
            }"""
        )
        expect(page.locator("#sent-again")).to_have_count(0)
        page.mouse.up()
        page.wait_for_url("**/run/pool?edit=*")


def test_an_edit_is_shown_beside_the_list_which_stays_where_it_is(
    chromium: Browser, site: RunningStudio
) -> None:
    with window(chromium, site, viewport={"width": 1280, "height": 800}) as opened:
        page = opened.open("/run/pool")
        row = page.locator(".forest tbody tr").nth(3)
        row.get_by_role("link").scroll_into_view_if_needed()
        scrolled = page.evaluate("window.scrollY")
        row.get_by_role("link").click()
        side = page.get_by_role("complementary", name="Chosen edit")
        expect(side.locator("pre").first).to_contain_text("Mentions of")
        expect(row).to_have_class(re.compile("chosen"))
        assert page.evaluate("window.scrollY") == scrolled
        expect(page.locator(".runbar")).to_be_in_viewport()
        address = page.url
        page.go_back()
        expect(side.locator("pre")).to_have_count(0)
        page.goto(address)
        expect(side.locator("pre").first).to_be_visible()


@pytest.mark.parametrize("script", [True, False])
def test_a_point_of_the_curve_leads_to_its_step(
    chromium: Browser, site: RunningStudio, script: bool
) -> None:
    with window(chromium, site, java_script_enabled=script) as opened:
        page = opened.open("/run/pool")
        page.locator(".wide svg").get_by_role("link", name="step 3", exact=True).click()
        expect(page.get_by_role("heading", name="Step 3", exact=True)).to_be_visible()


@pytest.mark.parametrize("script", [True, False])
def test_a_failing_rollout_is_open_two_clicks_from_the_list(
    chromium: Browser, site: RunningStudio, script: bool
) -> None:
    with window(chromium, site, java_script_enabled=script) as opened:
        page = opened.open("/?sort=name")
        page.get_by_role("link", name="pool", exact=True).click()
        page.get_by_role("link", name="Items", exact=True).click()
        side = page.get_by_role("complementary", name="Chosen item")
        expect(page.locator(".list tbody tr").first).to_contain_text("broken")
        expect(side.locator("section", has_text="Expected").locator("pre")).to_be_visible()
        expect(side.locator("section.missed pre")).to_contain_text(re.compile("billing|delivery"))
        expect(side.locator(".turn").first).to_contain_text("The ticket ticket-")

        first = side.get_by_role("heading", level=2).inner_text()
        side.get_by_role("link", name="Next").click()
        expect(side.get_by_role("heading", level=2)).not_to_have_text(first)
        if script:
            page.keyboard.press("k")
            expect(side.get_by_role("heading", level=2)).to_have_text(first)
        side.locator(".chip", has_text="initial skill").first.click()
        expect(side.locator(".chip[aria-current]")).to_contain_text("initial skill")
        side.get_by_role("link", name="the skill “initial skill”").click()
        expect(page.get_by_role("heading", name="Skill: initial skill")).to_be_visible()


def test_a_person_notes_why_an_answer_is_wrong(
    chromium: Browser, site: RunningStudio, folder: Path
) -> None:
    """Also about a finished run: its notes are for the next one."""
    with window(chromium, site) as opened:
        page = opened.open("/items/failing")
        side = page.get_by_role("complementary", name="Chosen item")
        item = side.get_by_role("heading", level=2).inner_text()
        side.get_by_label("Why").fill("The queue is an old one.")
        side.get_by_role("button", name="Wrong").click()
        expect(page.get_by_role("status")).to_contain_text(f"skillfit steer failing wrong {item}")
        expect(side.get_by_role("heading", level=2)).to_have_text(item)
        expect(side).to_contain_text("Person: wrong: The queue is an old one.")
        opened.open("/items/pool?item=ticket-0000")
        side.get_by_role("button", name="Right").click()
        expect(page.get_by_role("status")).to_contain_text("kept with the run, for the next one")
        opened.open("/items/failing?group=fixed")
        side.get_by_role("button", name="Wrong").click()
        expect(side).to_contain_text("the grader says otherwise")
        expect(page.locator("#content")).to_contain_text("the grader agrees with 1 of 2")
        with page.expect_download() as saved:
            page.get_by_role("link", name="Save feedback.json").click()
        notes = json.loads(saved.value.path().read_text())
    assert [(note["item"], note["verdict"], note["score"]) for note in notes] == [
        (item, "wrong", 0.0),
        (notes[1]["item"], "wrong", 1.0),
    ]
    assert notes[0]["text"] == "The queue is an old one." and notes[0]["answer"] == "billing"


def test_failing_items_are_counted_by_type_and_by_words_of_the_grader(
    chromium: Browser, site: RunningStudio
) -> None:
    with window(chromium, site) as opened:
        page = opened.open("/items/failing")
        counts = page.locator(".counts")
        expect(counts).to_contain_text("billing 2")
        expect(counts).to_contain_text("graded … 3")
        page.get_by_role("link", name="delivery 1").click()
        expect(page.locator(".list tbody tr")).to_have_count(4)
        page.get_by_role("link", name="still fails").click()
        expect(page.locator(".list tbody tr")).to_have_count(1)
        page.get_by_role("link", name="Remove the filter").click()
        expect(page.locator(".list tbody tr")).to_have_count(3)


def test_runs_are_chosen_and_compared(chromium: Browser, site: RunningStudio) -> None:
    with window(chromium, site) as opened:
        page = opened.open("/?sort=name")
        page.get_by_label("Choose pool").check()
        page.get_by_label("Choose unproven").check()
        page.get_by_role("button", name="Compare chosen").click()
        expect(page.get_by_role("heading", name="2 runs compared")).to_be_visible()
        expect(page.locator(".wide svg path.curve")).to_have_count(2)


def test_filters_work_by_keyboard(chromium: Browser, site: RunningStudio) -> None:
    with window(chromium, site) as opened:
        page = opened.open("/")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.get_by_label("Search runs").focus()
        page.keyboard.type("unproven")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("q=unproven"))
        expect(page.locator("tbody tr")).to_have_count(1)
        page.locator("tbody a").focus()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("No improvement")


def test_the_pool_can_be_viewed_step_by_step(chromium: Browser, site: RunningStudio) -> None:
    with window(chromium, site) as opened:
        page = opened.open("/run/pool")
        slider = page.get_by_label(re.compile("After step"))
        slider.focus()
        page.keyboard.press("Home")
        earlier = page.locator("#pool-then tbody tr")
        expect(earlier).to_have_count(2)
        page.get_by_role("button", name="Latest").click()
        expect(page.locator("#pool-then")).to_be_hidden()


def test_a_report_can_be_searched_and_shows_items_by_pages(
    chromium: Browser, site: RunningStudio, tmp_path: Path
) -> None:
    run = screening_run(tmp_path / "run", steps=6, items=360, rollouts=720)
    report = write_report(run)
    with window(chromium, site, viewport={"width": 1100, "height": 900}) as opened:
        page = opened.page
        page.goto(report.as_uri())
        items = page.locator("details.item:visible")
        expect(items).to_have_count(25)
        assert page.evaluate("document.documentElement.scrollHeight") < 12_000
        page.get_by_role("button", name="Show more items").click()
        expect(items).to_have_count(50)
        page.get_by_label("Search items").fill("ticket-0123")
        expect(items).to_have_count(1)
        items.first.click()
        expect(page.get_by_text("The ticket ticket-0123 is about billing").first).to_be_visible()
        page.get_by_label("Search items").fill("")
        page.get_by_role("button", name=re.compile("^broken")).click()
        expect(page.locator("details.item:visible .badge").first).to_contain_text("broken")
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.skipif(PDFTOTEXT is None, reason="pdftotext (poppler) is not installed")
@pytest.mark.parametrize("script", [True, False])
def test_a_printed_report_has_everything_in_dark_letters(
    chromium: Browser, site: RunningStudio, tmp_path: Path, script: bool
) -> None:
    """Also what is closed on the screen, what a search hides, and in dark mode."""
    run = screening_run(tmp_path / "run", steps=6, items=60, rollouts=120)
    report, pdf = write_report(run), tmp_path / "report.pdf"
    with window(chromium, site, color_scheme="dark", java_script_enabled=script) as opened:
        page = opened.page
        page.goto(report.as_uri())
        page.pdf(path=pdf)
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(28, 34, 38)"
    printed = subprocess.run(
        [PDFTOTEXT or "", pdf, "-"], capture_output=True, text=True, check=True
    ).stdout
    listed = set(re.findall(r"ticket-\d{4}", report.read_text()))
    assert len(listed) > 25
    assert set(re.findall(r"ticket-\d{4}", printed)) == listed
    closed = ("Expected", "@@", "Save the picture")  # an item, the changes, the picture
    assert all(text in printed for text in closed)


@pytest.mark.skipif(PDFTOTEXT is None, reason="pdftotext (poppler) is not installed")
def test_a_printed_page_of_a_run_has_all_of_its_edits(
    chromium: Browser, site: RunningStudio, folder: Path, tmp_path: Path
) -> None:
    with window(chromium, site, color_scheme="dark") as opened:
        opened.open("/run/pool?edit=s0001e01").pdf(path=tmp_path / "run.pdf")
    printed = subprocess.run(
        [PDFTOTEXT or "", tmp_path / "run.pdf", "-"], capture_output=True, text=True, check=True
    ).stdout
    words = " ".join(printed.split())
    for edit in read_record(folder / "runs" / "pool").edits:
        assert edit.text in words, "closed parts are printed, too"
    assert "Edit s0001e01" in words and "Latest" not in words


def test_the_arrow_keys_reach_every_option_of_a_filter(
    chromium: Browser, site: RunningStudio
) -> None:
    """Each choice loads the page again; the focus stays where it was."""
    with window(chromium, site) as opened:
        page = opened.open("/")
        page.get_by_label("Sort by").focus()
        for sort in ("gain", "score", "cost"):
            page.keyboard.press("ArrowDown")
            page.wait_for_url(f"**sort={sort}")
            expect(page.get_by_label("Sort by")).to_be_focused()


def test_many_open_tabs_do_not_block_the_studio(chromium: Browser, site: RunningStudio) -> None:
    """A browser opens six connections to a site. Each page that is watched holds one."""
    with window(chromium, site) as opened:
        tabs = [opened.page.context.new_page() for _ in range(8)]
        for tab in tabs:
            tab.goto(f"{site.address}/run/live")
            expect(tab.locator("[data-state]")).to_be_visible()
            hide(tab, True)
        opened.open("/run/unproven")
        expect(opened.page.locator("[data-state]")).to_be_visible()
        for tab in tabs:
            tab.close()


def test_a_tab_shows_what_changed_while_it_was_hidden(chromium: Browser, tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.emit(StageStarted(epoch=0, step=0, stage="baseline", total=8))
    with studio(tmp_path) as running, window(chromium, running) as opened:
        page = opened.open("/run/run")
        expect(page.locator("#content")).to_contain_text("measuring")
        hide(page, True)
        run.emit(Warned(what="x", message="While it was hidden"))
        page.wait_for_timeout(seconds(3))
        expect(page.locator("#content")).not_to_contain_text("While it was hidden")
        hide(page, False)
        expect(page.locator("#content")).to_contain_text("While it was hidden")
        run.close()


def hide(page: Page, hidden: bool) -> None:
    """What a browser does when another tab is chosen. Here all tabs count as visible."""
    page.evaluate(
        "(hidden) => {"
        " Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def test_a_page_shows_that_its_studio_was_stopped(chromium: Browser, tmp_path: Path) -> None:
    screening_run(tmp_path / "run", steps=2, finish="")
    context = chromium.new_context()
    page = context.new_page()
    with studio(tmp_path) as running:
        page.goto(running.link)
        page.goto(f"{running.address}/run/run")
        expect(page.locator("[data-state]")).to_be_visible()
        expect(page.locator("#offline")).to_be_hidden()
    expect(page.locator("#offline")).to_be_visible()
    context.close()


def test_a_curve_tells_its_values_and_shows_a_part_of_the_steps(
    chromium: Browser, site: RunningStudio
) -> None:
    with window(chromium, site) as opened:
        page = opened.open("/run/pool")
        marks, values = page.locator("[data-zoom] .wide g.point"), page.locator(".readout")

        def place(number: int) -> tuple[float, float]:
            box = marks.nth(number).bounding_box()
            assert box is not None
            return box["x"] + box["width"] / 2, box["y"] + box["height"]

        x, y = place(4)
        page.mouse.move(x + 2, y + 20)
        expect(values).to_contain_text("step 4:")
        page.mouse.move(place(3)[0] - 5, y + 20)
        page.mouse.down()
        page.mouse.move(place(8)[0] + 5, y + 20, steps=3)
        page.mouse.up()
        page.wait_for_url("**/run/pool?from=3&to=8")
        expect(marks).to_have_count(6)
        page.mouse.dblclick(place(1)[0] + 20, place(1)[1] + 20)
        page.wait_for_url("**/run/pool")
        expect(marks).to_have_count(13)
        page.locator("[data-zoom] .wide a").first.focus()
        page.keyboard.press("ArrowRight")
        expect(values).to_contain_text("step 2:")
        page = opened.open("/compare?run=pool&run=unproven")
        page.locator("[data-zoom] .wide circle").nth(2).hover()
        expect(values.locator("div")).to_have_count(2)


def test_steps_of_a_curve_are_chosen_without_scripts(
    chromium: Browser, site: RunningStudio
) -> None:
    with window(chromium, site, java_script_enabled=False) as opened:
        for path in ("/run/pool", "/compare?run=pool&run=unproven"):
            page = opened.open(path)
            before = page.locator("[data-zoom] .wide title").count()
            page.get_by_label("Steps").fill("2")
            page.get_by_label("to", exact=True).first.fill("4")
            page.locator("form.zoom button").click()
            assert page.locator("[data-zoom] .wide title").count() < before
            page.get_by_role("link", name="All steps").click()
            assert page.locator("[data-zoom] .wide title").count() == before


def test_a_version_of_the_skill_is_measured_within_a_budget(
    chromium: Browser, site: RunningStudio, folder: Path
) -> None:
    train(folder, "trained", *ONE_STEP)
    with window(chromium, site) as opened:
        page = opened.open("/skill/trained")
        page.locator("summary", has_text="Measure this version").click()
        page.get_by_label("What is measured").select_option("eval")
        page.get_by_role("button", name="Measure", exact=True).click()
        expect(page.get_by_role("status")).to_contain_text("Set a budget in dollars")
        assert "status of 400" in opened.problems.pop()  # Chromium logs the refused form
        page.get_by_label("What is measured").select_option("eval")
        page.get_by_label("Budget in dollars").fill("2")
        page.get_by_role("button", name="Measure", exact=True).click()
        page.wait_for_url("**/run/trained-eval", timeout=seconds(60))
        expect(page.locator("h1")).to_contain_text("over no skill", timeout=seconds(60))
    assert read_record(folder / "runs" / "trained-eval").caps["usd"] == 2
