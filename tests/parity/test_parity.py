"""`recipe: paper` against the recorded decisions of SkillOpt. `python -m bench.parity --live`
runs both side by side.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import bench.parity.__main__ as parity
import pytest
from bench.parity import ours, world
from bench.parity.__main__ import main, recorded
from bench.parity.compare import compare
from bench.parity.outcome import Outcome, StepRow
from bench.parity.scenario import MODES, PROBES, VARIANTS, Scenario, plain, probes, variants
from bench.parity.server import ParityServer
from hypothesis import given
from hypothesis import strategies as st

known = cache(recorded)

# Refilled batches with pairs topped up; a soft metric; the gate off.
SEEDS = (4, 6, 10)
SHORT_PROBES = [
    Scenario(probe.seeds["patch"], "patch", name)
    for name, probe in PROBES.items()
    if "patch" in probe.seeds
]
FORGETFUL = Scenario(1, "rewrite_from_suggestions", "forgetful")


@pytest.fixture(scope="module")
def server() -> Iterator[ParityServer]:
    with ParityServer() as running:
        yield running


@pytest.fixture(autouse=True)
def a_dummy_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITY_API_KEY", "not-a-key")


def reference(scenario: Scenario) -> Outcome:
    return known(scenario.mode)[scenario.name]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
async def test_the_paper_recipe_decides_as_skillopt_did(
    server: ParityServer, tmp_path: Path, mode: str, seed: int
) -> None:
    scenario = Scenario(seed, mode)

    outcome = await ours.run(scenario, server.url, tmp_path)

    assert compare(scenario, reference(scenario), outcome).parted == ""


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", MODES)
async def test_variants_decide_as_skillopt_did(
    server: ParityServer, tmp_path: Path, mode: str, variant: str
) -> None:
    scenario = Scenario(1, mode, variant)

    outcome = await ours.run(scenario, server.url, tmp_path)

    assert compare(scenario, reference(scenario), outcome).parted == ""


@pytest.mark.parametrize("scenario", [*SHORT_PROBES, FORGETFUL], ids=lambda scenario: scenario.name)
async def test_the_first_difference_from_skillopt_is_at_its_known_defect(
    server: ParityServer, tmp_path: Path, scenario: Scenario
) -> None:
    outcome = await ours.run(scenario, server.url, tmp_path)

    found = compare(scenario, reference(scenario), outcome)

    assert found.defect == PROBES[scenario.probe].defect, found.parted


def test_twenty_seeds_every_variant_and_every_probe_are_recorded_for_each_mode() -> None:
    for scenario in [*plain(20), *variants(), *probes()]:
        assert reference(scenario).steps


@pytest.mark.parametrize("mode", MODES)
def test_the_recorded_runs_cover_every_kind_of_decision(mode: str) -> None:
    runs = [reference(scenario) for scenario in plain(20) if scenario.mode == mode]
    steps = [step for run in runs for step in run.steps]

    assert {"accept_new_best", "reject", "force_accept"} <= {step.action for step in steps}
    assert mode == "full_rewrite_minibatch" or len({step.edit_budget for step in steps}) > 3
    assert any(ties(run) for run in runs)
    assert any(text for run in runs for text in run.memory)
    assert any(text for run in runs for text in run.advice)
    assert any(run.final != run.best for run in runs)
    assert any(run.best != world.SKILL for run in runs)


def ties(run: Outcome) -> list[StepRow]:
    """Candidates that were rejected with the very score of the last accepted one."""
    found, current = [], None
    for step in run.steps:
        found += (
            [step]
            if step.action == "reject" and step.score == current and "unchanged" not in step.facts
            else []
        )
        current = step.score if "accept" in step.action else current
    return found


@pytest.mark.parametrize(
    "changed",
    [{"action": "accept"}, {"edit_budget": 9}, {"candidate": "000000000000"}, {"score": 0.123}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_difference_without_a_known_defect_is_not_explained(changed: dict[str, object]) -> None:
    scenario = Scenario(1, "patch")
    run = reference(scenario)
    at = next(number for number, step in enumerate(run.steps) if step.action == "reject")
    other = replace(
        run, steps=(*run.steps[:at], replace(run.steps[at], **changed), *run.steps[at + 1 :])
    )

    found = compare(scenario, run, other)

    assert found.parted
    assert not found.expected


@pytest.mark.parametrize("part", ["final", "best"])
def test_another_final_or_best_skill_is_not_explained(part: str) -> None:
    scenario = Scenario(1, "patch")
    run = reference(scenario)

    assert not compare(scenario, run, replace(run, **{part: "# Something else\n"})).expected


def test_more_seeds_than_recorded_need_skillopt_installed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "1000"])

    assert "--live" in capsys.readouterr().err


def test_a_partial_run_leaves_the_committed_results_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(parity, "variants", list)
    monkeypatch.setattr(parity, "probes", list)
    monkeypatch.setattr(parity, "RESULTS", tmp_path / "results.md")
    parity.RESULTS.write_text("committed")

    assert main(["--seeds", "1"]) == 0

    assert parity.RESULTS.read_text() == "committed"
    assert "results.md is left as it is" in capsys.readouterr().out


def test_recording_a_run_keeps_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = {mode: recorded(mode) for mode in MODES}
    first, *_ = before["patch"]
    shutil.copytree(parity.RECORDED, tmp_path / "recorded")
    monkeypatch.setattr(parity, "RECORDED", tmp_path / "recorded")

    parity.record({first: replace(before["patch"][first], best="# New\n")})

    assert recorded("patch")[first].best == "# New\n"
    assert {mode: list(recorded(mode)) for mode in MODES} == {m: list(before[m]) for m in MODES}


@given(
    seed=st.integers(1, 50),
    groups=st.lists(
        st.sets(st.sampled_from(list(world.KINDS)), min_size=1), min_size=1, max_size=4
    ),
    rules=st.sets(
        st.tuples(st.sampled_from(list(world.KINDS)), st.sampled_from(["good", "shady", "harm"]))
    ),
    budget=st.integers(1, 6),
)
def test_the_scripted_optimizer_does_not_depend_on_the_grouping_of_trajectories(
    seed: int, groups: list[set[int]], rules: set[tuple[int, str]], budget: int
) -> None:
    skill = world.rewritten(
        seed,
        world.SKILL,
        [world.Action("add", f"r{kind}-{flavour}") for kind, flavour in sorted(rules)],
    )

    def best(actions: list[world.Action]) -> list[world.Action]:
        return sorted(set(actions), key=lambda action: world.priority(seed, action.rule, ""))[
            :budget
        ]

    together = best(world.from_failures(seed, set().union(*groups), skill, ()))
    apart = best(
        [action for group in groups for action in best(world.from_failures(seed, group, skill, ()))]
    )

    assert apart == together
