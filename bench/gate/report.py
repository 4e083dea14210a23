"""Tables and figures of the simulation: results.md, results.json, docs/images/gate-*.svg."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.gate.figures import bars
from bench.gate.gains import Chosen, Compared
from bench.gate.trust import Calibrated, Null, Shipped, Timed

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Results:
    """All tables; an empty one has not been measured."""

    gains: Sequence[Compared] = ()
    worlds: Sequence[Compared] = ()
    choices: Sequence[Chosen] = ()
    calibration: Sequence[Calibrated] = ()
    null: Sequence[Null] = ()
    ship: Sequence[Shipped] = ()
    power: Sequence[Shipped] = ()
    fit: Sequence[Timed] = ()


_ROWS = {
    "gains": Compared,
    "worlds": Compared,
    "choices": Chosen,
    "calibration": Calibrated,
    "null": Null,
    "ship": Shipped,
    "power": Shipped,
    "fit": Timed,
}


def load() -> Results:
    """The results of the last run."""
    data = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    return Results(**{name: [_ROWS[name](**row) for row in rows] for name, rows in data.items()})


def write(results: Results) -> None:
    (HERE / "results.md").write_text(markdown(results), encoding="utf-8")
    data = json.dumps(asdict(results), indent=1)
    (HERE / "results.json").write_text(data + "\n", encoding="utf-8")
    images = ROOT / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    if compared := [*results.gains, *results.worlds]:
        shown = ("strict", "race", "screening")
        rows = [(one.setting, {way: one.ways[way]["gain"] for way in shown}) for one in compared]
        figure = bars("True gain at equal rollouts", rows)
        (images / "gate-gain.svg").write_text(figure, encoding="utf-8")
    if results.ship:
        rows = [(one.setting, {"A/A called improved": one.improved}) for one in results.ship]
        figure = bars("Ship test on equal skills", rows, limit=0.05)
        (images / "gate-aa.svg").write_text(figure, encoding="utf-8")
    if results.calibration:
        rows = [(one.setting, {"hold the truth": one.selection}) for one in results.calibration]
        figure = bars("80 % intervals of edit effects", rows, limit=0.8)
        (images / "gate-calibration.svg").write_text(figure, encoding="utf-8")


def markdown(results: Results) -> str:
    """The preface and every table that has been measured."""
    tables: list[tuple[str, Sequence[Any], Callable[[Any], str]]] = [
        ("True gain at equal rollouts", results.gains, _gain_table),
        ("Other worlds", results.worlds, _gain_table),
        ("Choices of a screening run", results.choices, _choice_table),
        ("Calibration: 80 % intervals of edit effects", results.calibration, _calibration_table),
        ("Runs in which nothing helps", results.null, _null_table),
        (
            "Ship test on equal skills: share called improved, at most 5 % wanted",
            results.ship,
            _ship_table,
        ),
        ("Power of the ship test", results.power, _power_table),
        ("One fit", results.fit, _fit_table),
    ]
    parts = [(HERE / "preface.md").read_text(encoding="utf-8")]
    for heading, rows, table in tables:
        if rows:
            parts += [f"## {heading}\n", table(rows)]
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _before() -> dict[str, float]:
    """The race's gains as the earlier version of this benchmark measured them."""
    data = json.loads((HERE / "race_before.json").read_text(encoding="utf-8"))
    return {one["setting"]: one["race"] for one in data["gains"]}


def _gain_table(compared: Sequence[Compared]) -> str:
    before = _before()
    head = ["setting", "rollouts", "strict", "strict, all edits", "race", "race, as published"]
    head += [
        "screening",
        "possible",
        "screening, × race",
        "at most",
        "edits (harmful): race",
        "screening",
        "optimism",
        "composed",
        "runs",
    ]
    rows = []
    for one in compared:
        race, ours = one.ways["race"], one.ways["screening"]
        rows.append(
            [
                one.setting,
                f"{one.rollouts:,}",
                f"{one.ways['strict']['gain']:+.3f}",
                f"{one.ways['strict, all edits']['gain']:+.3f}",
                f"{race['gain']:+.3f}",
                f"{before[one.setting]:+.3f}" if one.setting in before else "",
                f"{ours['gain']:+.3f} ± {one.errors['screening']:.3f}",
                f"{one.possible:+.3f}",
                f"**{one.ratio:.2f}** ± {one.ratio_error:.2f}",
                f"{one.possible / race['gain']:.2f}",
                f"{race['edits']:.0f} ({race['harmful']:.1f})",
                f"{ours['edits']:.0f} ({ours['harmful']:.1f})",
                f"{ours['optimism']:+.3f}",
                f"{ours['composed']:+.3f}",
                str(one.runs),
            ]
        )
    return _table(head, rows)


def _choice_table(choices: Sequence[Chosen]) -> str:
    rows = [
        [
            one.setting,
            one.name,
            f"{one.rollouts:,}",
            f"{one.played['gain']:+.3f} ± {one.error:.3f}",
            f"{one.played['edits']:.0f} ({one.played['harmful']:.1f})",
            f"{one.played['steps']:.0f}",
            str(one.runs),
        ]
        for one in sorted(choices, key=lambda one: one.setting)
    ]
    return _table(
        ["setting", "choice", "rollouts", "gain", "edits (harmful)", "steps", "runs"], rows
    )


def _calibration_table(calibration: Sequence[Calibrated]) -> str:
    head = ["setting", "holds: selection items", "population", "truth above", "below"]
    head += ["mean width", "edits", "runs"]
    rows = [
        [
            one.setting,
            f"{one.selection:.1%}",
            f"{one.population:.1%}",
            f"{one.above:.1%}",
            f"{one.below:.1%}",
            f"{one.width:.3f}",
            f"{one.edits:,}",
            str(one.runs),
        ]
        for one in calibration
    ]
    edits = sum(one.edits for one in calibration) or 1
    held = sum(one.selection * one.edits for one in calibration) / edits
    there = sum(one.population * one.edits for one in calibration) / edits
    rows.append(["all", f"{held:.1%}", f"{there:.1%}", "", "", "", f"{edits:,}", ""])
    return _table(head, rows)


def _null_table(null: Sequence[Null]) -> str:
    head = ["setting", "called improved", "hands back at most 3 lines", "harmful edits handed back"]
    head += ["lines in the ship test", "runs"]
    rows = [
        [
            one.setting,
            f"{one.shipped:.1%}",
            f"{one.few_lines:.1%}",
            f"{one.harmful:.3f} per run",
            f"{one.candidates:.1f}",
            str(one.runs),
        ]
        for one in null
    ]
    return _table(head, rows)


def _ship_table(ship: Sequence[Shipped]) -> str:
    rows = [[one.setting, f"{one.improved:.1%}", str(one.runs)] for one in ship]
    runs = sum(one.runs for one in ship) or 1
    pooled = sum(one.improved * one.runs for one in ship) / runs
    return _table(
        ["setting", "called improved", "runs"], [*rows, ["all", f"{pooled:.1%}", str(runs)]]
    )


def _power_table(power: Sequence[Shipped]) -> str:
    rows = [
        [one.setting, f"{one.effect:+.3f}", f"{one.improved:.0%}", str(one.runs)] for one in power
    ]
    return _table(["setting", "true difference", "called improved", "runs"], rows)


def _fit_table(timed: Sequence[Timed]) -> str:
    head = ["edits", "rollouts", "distinct subsets", "CPU seconds", "from scratch"]
    rows = [
        [
            str(one.edits),
            f"{one.rollouts:,}",
            f"{one.subsets:,}",
            f"{one.seconds:.2f}",
            f"{one.cold_seconds:.2f}",
        ]
        for one in timed
    ]
    return _table(head, rows)
