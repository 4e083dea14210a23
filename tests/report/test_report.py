"""The report: one self-contained file, for every kind of run and any text in it."""

import asyncio
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from skillfit.errors import InputError
from skillfit.intervals import Interval
from skillfit.models.protocol import Usage
from skillfit.record.fold import read_record
from skillfit.record.text import event_lines
from skillfit.report import write_report
from skillfit.report.card import share_card, write_card
from skillfit.report.charts import (
    ForestRow,
    compare_chart,
    compared_scores,
    forest_plot,
    score_chart,
    sparkline,
)
from skillfit.report.html_report import html_report, markdown_report, without_paths
from skillfit.report.run_details import full_trajectory, short_trajectory
from skillfit.rollout.outcome import Outcome
from skillfit.run.events import AblationFinished, StageStarted, StepFinished
from skillfit.run.records import Evidence, RecordedConfig, ScoreEstimate, UnitWorth
from skillfit.tasks.item import Attempt, Score, TrajectoryStep
from tests.report.recorded_runs import (
    BEST,
    INITIAL,
    WrittenRun,
    before_first_event,
    improved,
    screening_run,
)
from tests.support.records import step_record

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)> \x1b[2K\u202edetcelfer\u2066'


class _Page(HTMLParser):
    """Collects what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.loaded: list[str] = []
        self.handlers: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.images += tag == "img"
        for name, value in attrs:
            if name in ("src", "srcset") or (name == "href" and tag == "link"):
                self.loaded.append(value or "")
            if name.startswith("on") or name == "style":
                self.handlers.append(name)


def parsed(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    return page


async def test_the_report_is_self_contained(tmp_path: Path) -> None:
    path = write_report(await improved(tmp_path / "run"))
    text = path.read_text()
    page = parsed(text)
    assert page.scripts == 1 and not page.handlers
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.loaded)
    assert "http://" not in text and "https://" not in text
    assert "default-src 'none'" in text and "unsafe-inline" not in text


async def test_the_report_lists_tried_and_rejected_edits_with_reasons(tmp_path: Path) -> None:
    text = write_report(await improved(tmp_path / "run")).read_text()
    assert "carries gold answer of item t03" in text
    assert "The answer to t03 is 42." in text
    assert "dropped" in text and "because" in text


async def test_the_report_names_date_data_models_and_version(tmp_path: Path) -> None:
    text = write_report(await improved(tmp_path / "run")).read_text()
    for expected in ("/somewhere/tasks.jsonl", "8 selection", "practice/agent", "1.2.3", "hard sc"):
        assert expected in text
    assert re.search(r"Started</td><td>20\d\d-\d\d-\d\d \d\d:\d\d", text)


async def test_a_shared_report_has_no_local_paths(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run", text=f"I looked at {tmp_path}/run/secret.txt")
    shared = write_report(path, tmp_path / "shared.html", share=True).read_text()
    for folder in (str(tmp_path), str(Path.home()), "/somewhere"):
        assert folder not in shared
    assert "tasks.jsonl" in shared and "secret.txt" in shared
    assert str(tmp_path) in write_report(path).read_text()
    local = {
        "model": {"agent": {"id": "local//models/small.gguf"}},
        "env": {"corpus": "/papers/all"},
    }
    record = replace(read_record(path), config=RecordedConfig(local))
    text = "local//models/small.gguf read /papers/all/one.pdf"
    assert without_paths(text, record) == "local/small.gguf read all/one.pdf"


async def test_a_shared_report_has_no_folder_that_a_setting_names(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run")
    options = {"program": "/opt/tools/bin/claude", "readable": ["/srv/my papers/all"]}
    config = {
        "model": {"agent": {"id": "claude/sonnet", "options": options}},
        "env": {
            "tasks": "swebench:/data/issues/rows.jsonl",
            "task_args": {"repo_root": "/data/clones/all"},
            "grader": "/work/graders/mine.py:grade",
            "agent": "/work/agents/mine.py:Agent",
        },
        "train": {"sampler": "/work/samplers/mine.py:Sampler"},
        "optimizer": {"proposer": "/work/proposers/mine.py:propose"},
        "evaluation": {
            "gate": "/work/gates/mine.py:Gate",
            "ship_grader": "/work/ship/mine.py:grade",
        },
        "executor": "/work/executors/mine.py:Executor",
    }
    record = replace(read_record(path), config=RecordedConfig(config))
    text = html_report(record)
    for folder in ("/opt/tools/bin", "/srv/my papers", "/data/issues", "/data/clones", "/work"):
        assert folder in text
        assert folder not in without_paths(text, record)
    assert "mine.py:grade" in without_paths(text, record)


async def test_every_section_that_the_list_names_is_there(tmp_path: Path) -> None:
    text = write_report(await improved(tmp_path / "run")).read_text()
    listed = re.findall(r'<a href="#([a-z]+)">([^<]+)</a>', text)
    assert len(listed) > 8
    for id, title in listed:
        assert f'<h2 id="{id}">' in text, title


async def test_items_that_fail_under_the_result_are_shown_with_what_was_expected(
    tmp_path: Path,
) -> None:
    run = WrittenRun(tmp_path / "run")
    run.items()
    run.step(1, "accept", BEST, "new")
    await run.roll("ship", "old", [1, *[0] * 7])
    await run.roll("ship", "new", [0, *[1] * 7], text="returns")
    run.ship("improved", 0.75, (0.6, 0.9))
    run.finish("improved", BEST)
    run.close()
    text = write_report(run.path).read_text()
    section = text.partition('<h2 id="failing">')[2].partition("<h2")[0]
    assert "1 of 8 items fails" in section and "1 of them was solved by the initial" in section
    [link] = re.findall(r'href="#(item-\d+)">t00<', section)
    assert f'id="{link}"' in text
    for expected in ("billing", "returns", "graded 0", "broken"):
        assert expected in section
    assert "t01" not in section


async def test_a_gate_that_judges_candidates_shows_their_differences(tmp_path: Path) -> None:
    text = write_report(await improved(tmp_path / "run")).read_text()
    edits = text.partition('<h2 id="edits">')[2].partition("<h2")[0]
    assert "decided about whole candidates" in edits
    assert 'class="span"' in edits and "Candidate" in edits
    assert "not measured" not in edits


@pytest.mark.parametrize("finish", ["improved", "no_improvement", ""])
def test_a_run_has_a_card_without_paths_and_texts_of_items(tmp_path: Path, finish: str) -> None:
    path = screening_run(tmp_path / "run", steps=6, finish=finish)
    card = write_card(path)
    assert card == path / "card.svg"
    drawn = ElementTree.fromstring(card.read_text())
    texts = " ".join(element.text or "" for element in drawn.iter())
    assert drawn.get("width") == "1200" and "skillfit" in texts
    assert "initial skill" in texts and "tokens" in texts
    assert ("unproven skill" in texts) == (finish == "no_improvement")
    assert str(tmp_path) not in card.read_text() and "ticket-0" not in texts


async def test_texts_in_a_card_are_escaped_and_visible(tmp_path: Path) -> None:
    record = replace(read_record(await improved(tmp_path / "run")), skill_name=EVIL, verdict=EVIL)
    card = share_card(record)
    assert "<script" not in card and "\x1b" not in card and "\u202e" not in card
    ElementTree.fromstring(card)


async def test_the_final_skill_can_be_copied(tmp_path: Path) -> None:
    text = write_report(await improved(tmp_path / "run")).read_text()
    [skill] = re.findall(r'<textarea id="skill-text"[^>]*>(.*?)</textarea>', text, re.DOTALL)
    assert skill == BEST


def test_an_unproven_result_is_marked_as_unproven(tmp_path: Path) -> None:
    path = screening_run(tmp_path / "run", steps=8, finish="no_improvement")
    text = write_report(path).read_text()
    assert "You get the initial skill" in text
    assert "What was found, unproven" in text
    assert "skillfit apply" not in text, "nothing recommends applying it"
    markdown = write_report(path, format="md").read_text()
    assert "What was found, unproven" in markdown


def test_many_items_are_shown_in_pages(tmp_path: Path) -> None:
    path = screening_run(tmp_path / "run", steps=8, items=360, rollouts=720)
    text = write_report(path).read_text()
    assert text.count('<details class="item"') == 360
    assert text.count('<details class="chunk" open>') == 1, "one page of items is open"
    assert text.count('<details class="chunk">') == 14
    assert 'id="item-search"' in text


async def test_text_of_models_and_users_is_neither_executed_nor_hidden(tmp_path: Path) -> None:
    skill = INITIAL + EVIL + "\n"
    text = write_report(await improved(tmp_path / "run", skill=skill, text=EVIL)).read_text()
    page = parsed(text)
    assert page.scripts == 1 and page.images == 1 and not page.handlers, "the card is the image"
    assert "\x1b" not in text and "\u202e" not in text
    assert "\\x1b[2K\\u202edetcelfer" in text


async def test_a_report_written_twice_is_identical(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run")
    first = write_report(path, tmp_path / "a").read_bytes()
    assert first == write_report(path, tmp_path / "b").read_bytes()


async def test_unknown_prices_are_reported(tmp_path: Path) -> None:
    record = read_record(await improved(tmp_path / "run"))
    unpriced = replace(record, usage=replace(record.usage, usd=None))
    assert "no price known" in markdown_report(unpriced)
    assert "no price known" in html_report(unpriced)


def test_every_state_has_a_report(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run directory"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())
    before_first_event(tmp_path / "empty")
    assert write_report(tmp_path / "empty").is_file()
    WrittenRun(tmp_path / "stopped").close()
    assert "Stopped before" in write_report(tmp_path / "stopped").read_text()
    with pytest.raises(InputError, match="Unknown report format"):
        write_report(tmp_path / "stopped", format="pdf")


def test_long_trajectories_are_cut_with_the_number_of_cut_characters() -> None:
    steps = tuple(TrajectoryStep("tool_result", "x" * 10_000, name="sh") for _ in range(40))
    outcome = Outcome("a", 0, "scored", Score(1.0), None, Attempt("done", steps))
    short = short_trajectory(outcome)
    assert sum(len(turn.text) for turn in short.turns) < 60_000
    assert short.turns[-1].text == "done"
    assert short.cut == 400_004 - 23 * 2_000 - 4
    assert sum(len(turn.text) for turn in full_trajectory(outcome).turns) == 400_004


def test_tool_calls_are_readable() -> None:
    steps = (
        TrajectoryStep("tool_call", '{"command": "ls -l\\nwc"}', name="bash"),
        TrajectoryStep("tool_call", '{"path": "a", "line": 2}', name="read"),
        TrajectoryStep("tool_call", "not json", name="odd"),
    )
    turns = full_trajectory(Outcome("a", 0, "scored", Score(1), None, Attempt("", steps))).turns
    assert [turn.text for turn in turns] == [
        "ls -l\nwc",
        '{\n  "path": "a",\n  "line": 2\n}',
        "not json",
    ]


async def test_a_run_of_long_answers_keeps_the_file_small(tmp_path: Path) -> None:
    path = await improved(tmp_path / "run", text="y" * 100_000)
    assert write_report(path).stat().st_size < 400_000


async def test_the_curve_has_a_text_alternative_with_its_numbers(tmp_path: Path) -> None:
    drawn = score_chart(read_record(await improved(tmp_path / "run")))
    [label] = re.findall(r'aria-label="([^"]*)"', drawn)
    assert "initial 42.9\u00a0%, step 1 87.5\u00a0%" in label
    assert drawn.count("<circle") == 4


def test_a_forest_plot_shows_each_row_on_one_axis() -> None:
    rows = [
        ForestRow("helps", Interval(0.1, 0.05, 0.15), "promoted", rollouts=40),
        ForestRow("unclear", Interval(0.0, -0.05, 0.05), "pending"),
        ForestRow("harms", Interval(-0.1, -0.15, -0.05), "dropped", note="z = −2"),
        ForestRow("new", None),
    ]
    drawn = forest_plot(rows, heading="Line")
    assert [drawn.count(f'<g class="{kind}">') for kind in ("up", "open", "down")] == [1, 1, 1]
    assert "not measured" in drawn and "+10.0" in drawn and "−15.0 to −5.0" in drawn
    assert forest_plot([]) == ""


def test_a_sparkline_needs_two_scores() -> None:
    assert sparkline([0.5]) == ""
    assert "from 50\u00a0% to 70\u00a0%" in sparkline([0.5, 0.6, 0.7])


def test_a_rejected_step_leaves_a_gap_in_a_compared_curve(tmp_path: Path) -> None:
    records = {}
    for name, decisions in (("strict", ("reject", "accept")), ("lucky", ("accept", "accept"))):
        run = WrittenRun(tmp_path / name)
        run.measured("baseline", "old", 0.25)
        for step, decision in enumerate(decisions, 1):
            run.step(step, decision, BEST, "new")
            run.measured(f"step_{step:04d}", "new", 0.5)
        run.close()
        records[name] = read_record(tmp_path / name)
    chart = compare_chart(records)
    strict, lucky = (re.findall(rf'class="c{at}" cx="([\d.]+)"', chart) for at in (0, 1))
    assert (len(strict), len(lucky)) == (2, 3)
    assert strict == [lucky[0], lucky[2]]
    assert ">initial<" in chart and ">step 2<" in chart


def ablation() -> AblationFinished:
    units = [
        UnitWorth("L1", 1, 1, "# Triage", 3, 0.0, -1.0, 1.0, 0.5, 0, "unsure"),
        UnitWorth("L3", 3, 3, "Say which queue.", 5, 0.2, 0.1, 0.3, 0.99, 40, "keep"),
        UnitWorth("L5", 5, 5, "- Be <b>kind</b>.", 4, -0.01, -0.03, 0.01, 0.2, 40, "cut"),
    ]
    return AblationFinished(
        units=units,
        rollouts=120,
        score=ScoreEstimate(0.6, 0.5, 0.7, True),
        tokens_before=12,
        tokens_after=8,
        shorter_skill="# Triage\n\nSay which queue.\n",
        comparison=Evidence(difference=0.01, interval=(-0.02, 0.04), rollouts=80),
        holds=True,
    )


def test_an_ablation_has_a_report_with_the_worth_of_each_part(tmp_path: Path) -> None:
    skill = "# Triage\n\nSay which queue.\n\n- Be <b>kind</b>.\n"
    run = WrittenRun(tmp_path / "run", skill=skill, total_epochs=0, steps_per_epoch=0)
    run.emit(ablation())
    run.close()
    record = read_record(tmp_path / "run")
    assert record.state == "finished"
    assert record.verdict == (
        "1 of 3 parts can be cut without loss: 4 of 12 tokens saved in every call."
        " On fresh rollouts the shorter skill is as good: +1.0 points (−2.0 to +4.0)."
    )
    text = write_report(tmp_path / "run").read_text()
    assert parsed(text).scripts == 1 and "<b>kind" not in text
    assert text.count('class="removed ') == 1, "the line that can go is marked"
    line = text.partition('class="removed ')[2].partition("</div>")[0]
    assert "<b>−1.0</b>" in line and '<span class="origin">cut</span>' in line
    markdown = write_report(tmp_path / "run", format="md").read_text()
    assert "| - Be <b>kind</b>. | −1.0 | −3.0 to +1.0 | 40 | cut |" in markdown
    assert "promoted" not in markdown and "trained with" not in markdown


async def test_costs_are_shown_by_kind_of_work_and_on_demand_by_stage(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    for stage, role in (
        ("rollout", "agent"),
        ("judge", "judge"),
        ("reflect.failure", "optimizer"),
        ("merge", "optimizer"),
    ):
        await run.journal.once(
            f"call/{stage}",
            partial(asyncio.sleep, 0, "reply"),
            returns=str,
            stage=stage,
            role=role,
            model="m",
            usage=lambda _: Usage(calls=2, input=10),
        )
    run.close()
    rows = [
        (row.stage, row.role, row.usage.calls)
        for row in read_record(tmp_path / "run").costs_by_work
    ]
    assert sorted(rows) == [
        ("measuring", "agent", 2),
        ("measuring", "judge", 2),
        ("writing edits", "optimizer", 4),
    ]
    page = write_report(tmp_path / "run").read_text()
    shown, _, by_stage = page.partition("<summary>By stage</summary>")
    assert "writing edits" in shown and "reflect.failure" not in shown
    assert "reflect.failure" in by_stage and "merge" in by_stage


def test_the_current_stage_is_shown_only_while_a_run_is_running(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.emit(StageStarted(epoch=0, step=0, stage="baseline", total=8))
    assert "Now: measuring" in write_report(tmp_path / "run").read_text()
    run.close()
    assert "Now:" not in write_report(tmp_path / "run").read_text()


def test_unknown_values_of_another_version_are_shown_as_recorded(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    ended = StepFinished(
        epoch=1,
        step=1,
        action="skip_full_moon",  # type: ignore[arg-type]
        skill=INITIAL,
        skill_hash="old",
        best_skill=INITIAL,
        record=step_record(action="skip_full_moon"),
    )
    run.emit(ended)
    run.finish("struck_by_lightning", INITIAL)
    run.close()
    record = read_record(tmp_path / "run")
    assert [gate.action for gate in record.gates] == ["skip_full_moon"]
    assert event_lines(ended) == ["step 1: skip full moon"]
    page = html_report(record)
    assert "skip full moon" in page and "Ended (struck by lightning)" in page
    assert "Ended (struck by lightning)" in markdown_report(record)


def test_a_run_that_promoted_nothing_has_one_score(tmp_path: Path) -> None:
    """Its later points are the initial skill with more rollouts, and no other skill."""
    unchanged = read_record(screening_run(tmp_path / "run", steps=2, finish="", journaled=False))
    assert not unchanged.changed and len(unchanged.points) > 1
    scores = compared_scores(unchanged)
    assert list(scores) == ["initial skill"]
    assert scores["initial skill"].mean == unchanged.points[-1].score
