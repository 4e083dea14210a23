"""The report: one file that stands alone, for every run there can be, whatever texts are in it."""

import asyncio
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from skillfit.report.page import chart, markdown, page, shorten

from skillfit.report import read_story, write_report
from skillfit.rollout.outcome import Outcome
from skillfit.tasks.item import Attempt, Score, Step
from tests.report.runs import BEST, INITIAL, Told, before_its_first_word, improved

EVIL = "</script></pre><script>document.title = 'broken'</script><img src=x onerror=alert(1)>\" & {{ 7 * 7 }}"
VOID = {"meta", "img", "br", "line", "circle", "path"}


class Page(HTMLParser):
    """The tags of a page, and whether each is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data


async def test_the_page_has_every_part_of_the_story(tmp_path: Path) -> None:
    out = write_report(await improved(tmp_path / "run"))
    assert out == tmp_path / "run" / "report.html"
    page = Page(out.read_text())
    for part in (
        "The skill is better",
        "practice models",
        "step 1 · +50.0 points",
        "earns its place",
        "leak blocked",
        "graded 1",
    ):
        assert part in page.text
    for heading in (
        "Scores",
        "What changed in the skill",
        "Items",
        "Steps",
        "Worth knowing",
        "Cost",
        "Settings",
        "Repeat it",
    ):
        assert heading in page.text
    assert "ticket t00" in page.text


async def test_the_page_loads_nothing_from_anywhere(tmp_path: Path) -> None:
    page = Page(write_report(await improved(tmp_path / "run")).read_text())
    assert not [
        value for name, value in page.attributes if name in ("src", "href", "action") and value
    ]
    assert ("http-equiv", "Content-Security-Policy") in page.attributes


async def test_skills_and_trajectories_that_look_like_html_stay_text(tmp_path: Path) -> None:
    page = Page(
        write_report(
            await improved(tmp_path / "run", skill=BEST + EVIL + "\n", text=EVIL)
        ).read_text()
    )
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count(EVIL) >= 1 + 2 * 8


async def test_markdown_survives_a_skill_with_fences(tmp_path: Path) -> None:
    skill = INITIAL + "````\n```diff\n</details>\n````\n"
    text = write_report(await improved(tmp_path / "run", skill=skill), format="md").read_text()
    fences = [line for line in text.splitlines() if line.startswith("`````")]
    assert fences == ["`````diff", "`````"]
    assert "| Fresh rollouts | 8 | 50\u00a0% | 87.5\u00a0% | +37.5 points |" in text
    assert "leak blocked" in text
    assert "Practice models" in text


@pytest.mark.parametrize("format", ["html", "md"])
def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path, format: str) -> None:
    Told(tmp_path / "run").close()
    out = write_report(tmp_path / "run", tmp_path / "out" / f"r.{format}", format=format)
    assert "nothing is measured yet" in out.read_text()


async def test_a_model_without_a_price_is_said_in_both_forms(tmp_path: Path) -> None:
    story = read_story(await improved(tmp_path / "run"))
    unpriced = replace(story, total=replace(story.total, usd=None))
    assert "tokens, no price known\n" in markdown(unpriced) and "no price known" in page(unpriced)


async def test_a_report_written_twice_is_the_same_bytes(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run")
    assert (
        write_report(path, tmp_path / "a").read_bytes()
        == write_report(path, tmp_path / "b").read_bytes()
    )


def test_long_trajectories_are_cut_and_say_by_how_much() -> None:
    steps = tuple(Step("tool_result", "x" * 10_000, name="sh") for _ in range(40))
    short = shorten(Outcome("a", 0, "scored", Score(1.0), None, Attempt("done", steps)))
    shown = sum(len(turn.text) for turn in short.steps)
    assert shown < 60_000
    assert short.steps[-1].text == "done"
    assert short.cut == 400_004 - 23 * 2_000 - 4


async def test_a_run_of_many_items_keeps_the_file_small(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run", text="y" * 100_000)
    assert write_report(path).stat().st_size < 400_000


async def test_the_curve_says_its_numbers_to_those_who_cannot_see_it(tmp_path: Path) -> None:
    drawn = chart(read_story(await improved(tmp_path / "run")))
    (label,) = re.findall(r'aria-label="([^"]*)"', drawn)
    assert "initial 42.9\u00a0%, step 1 87.5\u00a0%" in label
    assert drawn.count("<circle") == 4


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here")
@pytest.mark.parametrize("width", [390, 1100])
def test_no_page_is_wider_than_the_screen(tmp_path: Path, width: int) -> None:
    """Measured by a browser: in a frame of that width, with every item open."""
    report = write_report(asyncio.run(improved(tmp_path / "run", text="w" * 500)))
    probe = tmp_path / "probe.html"
    opened = report.read_text().replace("<details", "<details open")
    opened = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", opened)
    measure = "<script>const e = document.documentElement; document.title = `${e.clientWidth} ${e.scrollWidth}`</script></body>"
    (tmp_path / "open.html").write_text(opened.replace("</body>", measure))
    told = "<script>f.onload = () => { document.body.dataset.found = f.contentDocument.title }</script>"
    probe.write_text(
        f'<body><iframe id="f" src="open.html" style="width:{width}px;height:900px;border:0"></iframe>{told}</body>'
    )
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ]
    flags += [
        "--disable-component-update",
        "--disable-sync",
        "--allow-file-access-from-files",
        "--virtual-time-budget=5000",
    ]
    command = [
        "chromium",
        *flags,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        probe.as_uri(),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    room, wide = map(int, re.findall(r'data-found="(\d+) (\d+)"', shown)[0])
    assert width - 20 <= wide == room


def test_what_is_no_run_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="is not a run directory"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())
    before_its_first_word(tmp_path / "run")
    assert write_report(tmp_path / "run").is_file()
