"""`skillfit compare`: ways to get a skill, at equal rollouts."""

import json
from pathlib import Path
from typing import Any

import pytest
from docs._hooks import generate

from tests.cli.cli_project import Shell

WAYS = ("--way", "initial", "--way", "one-shot", "--way", "best-of", "--way", "train:reflect")
LINE = ("--rollouts", "60", *WAYS, "--run", "cmp")


def rows(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["way"]: row for row in told["rows"]}


def test_no_way_uses_more_rollouts_than_it_may(shell: Shell, config: Path) -> None:
    told = shell("compare", config, *LINE, "--seeds", "2", "--json").json
    found = rows(told)
    assert set(found) == {"initial", "one-shot", "best-of", "train:reflect"}
    for row in found.values():
        assert row["cost"]["rollouts"] <= row["budget"], row["way"]
    assert found["one-shot"]["cost"]["rollouts"] == 40
    assert found["one-shot"]["cost"]["optimizer_calls"] > 0
    assert len(found["one-shot"]["seeds"]) == 2 and len(found["initial"]["seeds"]) == 1
    assert found["initial"]["gain"] is None and found["one-shot"]["gain"] is not None
    assert found["one-shot"]["improved"] is None and found["train:reflect"]["improved"] is not None


def test_a_comparison_that_is_repeated_pays_nothing_and_says_the_same(
    shell: Shell, config: Path
) -> None:
    first = shell("compare", config, *LINE, "--json").json
    paid = {path: path.stat().st_size for path in Path("cmp").rglob("journal.sqlite")}
    again = shell("compare", config, *LINE, "--json").json
    for told in (first, again):
        for cost in [told["test_cost"], *(row["cost"] for row in told["rows"])]:
            del cost["minutes"]  # opening the runs again takes a moment
    assert again == {**first, "date": again["date"]}
    assert {path: path.stat().st_size for path in Path("cmp").rglob("journal.sqlite")} == paid


def test_the_results_are_files_and_a_table(shell: Shell, config: Path) -> None:
    printed = shell("compare", config, *LINE)
    assert printed.code == 0 and "one-shot" in printed.out
    assert "count for none of the ways" in printed.out
    told = json.loads(Path("cmp/comparison.json").read_text())
    assert [row["way"] for row in told["rows"]] == [way for way in WAYS if way != "--way"]
    figure = Path("cmp/comparison.svg").read_text()
    assert figure.startswith("<svg") and "train:reflect" in figure
    assert "| one-shot |" in Path("cmp/comparison.md").read_text()


def test_the_page_of_evidence_collects_result_files(
    shell: Shell, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "ROOT", Path.cwd())
    assert generate.comparisons() == "None were sent yet."
    assert shell("compare", config, "--rollouts", "60", *WAYS[:4], "--run", "cmp").code == 0
    sent = Path("bench", "comparisons", "triage.json")
    sent.parent.mkdir(parents=True)
    Path("cmp/comparison.json").rename(sent)
    table = generate.comparisons()
    assert "| practice/agent, practice/optimizer | one-shot | 60 |" in table
    assert len(table.splitlines()) == 4


@pytest.mark.parametrize("cap", ["budget.calls=60", "budget.tokens=20000"])
def test_the_caps_hold_for_all_runs_together(shell: Shell, config: Path, cap: str) -> None:
    ended = shell("compare", config, *LINE, cap)
    assert ended.code == 5 and "same command again" in ended.err
    assert not Path("cmp/comparison.json").exists()
    calls = tokens = 0
    for summary in Path("cmp").rglob("summary.json"):
        usage = json.loads(summary.read_text())["usage"]
        calls, tokens = calls + usage["calls"], tokens + usage["tokens"]
    name, _, amount = cap.removeprefix("budget.").partition("=")
    assert {"calls": calls, "tokens": tokens}[name] <= int(amount)
    assert shell("compare", config, *LINE).code == 0  # continues without the cap


def test_a_way_that_cannot_use_the_config_is_left_out_with_the_reason(
    shell: Shell, config: Path
) -> None:
    ways = ("--way", "initial", "--way", "paper")
    printed = shell("compare", config, "--rollouts", "30", *ways, "--run", "few")
    assert "Left out: paper with 30 rollouts: budget.rollouts: 30 is too small" in printed.out


def test_an_unknown_way_is_refused_before_anything_is_spent(shell: Shell, config: Path) -> None:
    refused = shell("compare", config, "--way", "magic", "--run", "none")
    assert refused.code == 2 and "--way magic: unknown." in refused.err
    assert not Path("none").exists()
