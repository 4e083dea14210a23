"""`python -m bench.parity [--seeds 24] [--live] [--record]`: does `recipe: paper` decide as the
reference does?
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.parity import ours, reference
from bench.parity.compare import DEFECTS, Comparison, compare
from bench.parity.outcome import Outcome
from bench.parity.scenario import MODES, PROBES, VARIANTS, plain, probes, variants
from bench.parity.server import ParityServer

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
RESULTS = HERE / "results.md"
SEEDS = 24  # plain seeds per update mode that the committed results are from


def recorded(mode: str) -> dict[str, Outcome]:
    """SkillOpt's recorded outcomes, by scenario name."""
    runs = json.loads((RECORDED / f"{mode}.json").read_text(encoding="utf-8"))
    return {name: Outcome.from_dict(run) for name, run in runs.items()}


def record(outcomes: dict[str, Outcome]) -> None:
    """One run a line, so that changes can be read. Other recorded runs stay as they are."""
    for mode in MODES:
        found = {name: run for name, run in outcomes.items() if name.startswith(f"{mode}.")}
        lines = [
            f"{json.dumps(name)}: {json.dumps(run.as_dict())}"
            for name, run in {**recorded(mode), **found}.items()
        ]
        (RECORDED / f"{mode}.json").write_text(
            "{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8"
        )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.parity", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="plain seeds per update mode")
    parser.add_argument(
        "--live",
        action="store_true",
        help="run SkillOpt now instead of reading its recorded outcomes",
    )
    parser.add_argument("--record", action="store_true", help="with --live: keep what SkillOpt did")
    options = parser.parse_args(arguments)
    scenarios = [*plain(options.seeds), *variants(), *probes()]
    with tempfile.TemporaryDirectory(prefix="parity-") as folder, ParityServer() as server:
        if options.live:
            theirs = reference.run(scenarios, server.url, Path(folder) / "reference")
        else:
            theirs = {name: outcome for mode in MODES for name, outcome in recorded(mode).items()}
            if missing := [scenario.name for scenario in scenarios if scenario.name not in theirs]:
                parser.error(
                    f"nothing is recorded for {missing[0]} and {len(missing) - 1} more: "
                    "run with --live"
                )
        if options.live and options.record:
            record(theirs)
        mine = ours.run_all(scenarios, server.url, Path(folder) / "ours")
    comparisons = [
        compare(scenario, theirs[scenario.name], mine[scenario.name]) for scenario in scenarios
    ]
    text = report(comparisons, live=options.live)
    print(text)
    if options.seeds >= SEEDS:
        RESULTS.write_text(text + "\n", encoding="utf-8")
    else:
        print(f"\n{RESULTS.name} is left as it is: it takes {SEEDS} seeds or more.")
    return 0 if all(found.expected for found in comparisons) else 1


def report(comparisons: Sequence[Comparison], *, live: bool) -> str:
    source = "run beside it" if live else "as recorded"
    lines = [
        "# Parity with SkillOpt",
        "",
        f"skillopt 0.2.0, {source}; skillfit with `recipe: paper`.",
        "",
    ]
    lines += [
        "| update mode | seeds | steps | accepted | rejected | unchanged (9) "
        "| agree | explained | unexplained |",
        "|" + "---|" * 9,
    ]
    for mode in MODES:
        rows = [
            found
            for found in comparisons
            if found.scenario.mode == mode and not found.scenario.extra
        ]
        actions = Counter(action for found in rows for action in found.actions)
        accepted = sum(count for action, count in actions.items() if "accept" in action)
        cells = [
            mode,
            len(rows),
            actions.total(),
            accepted,
            actions["reject"],
            sum(found.unchanged for found in rows),
        ]
        cells += [sum(found.agrees for found in rows), sum(bool(found.defect) for found in rows)]
        cells.append(sum(not found.expected for found in rows))
        lines.append(_row(cells))
    lines += _variants(comparisons)
    lines += ["", "Probes, each made to meet one defect of SkillOpt:", ""]
    lines += ["| probe | update mode | expected | found | where the runs part |", "|" + "---|" * 5]
    for found in comparisons:
        if probe := PROBES.get(found.scenario.probe):
            lines.append(
                _row(
                    [
                        found.scenario.probe,
                        found.scenario.mode,
                        probe.defect,
                        found.defect or "",
                        found.parted or "nowhere",
                    ]
                )
            )
    lines += _exceptions(
        [found for found in comparisons if not found.scenario.probe and found.parted]
    )
    met = {found.defect for found in comparisons} | (
        {9} if any(found.unchanged for found in comparisons) else set()
    )
    lines += ["", "Defects met, by their number in the README:", ""]
    return "\n".join(
        [*lines, *(f"- {number}: {text}" for number, text in DEFECTS.items() if number in met)]
    )


def _variants(comparisons: Sequence[Comparison]) -> list[str]:
    lines = ["", "Variants, compared without white space between lines:", ""]
    lines += [
        "| variant | update mode | seeds | agree | explained | unexplained |",
        "|" + "---|" * 6,
    ]
    for variant in VARIANTS:
        for mode in MODES:
            rows = [
                found
                for found in comparisons
                if (found.scenario.extra, found.scenario.mode) == (variant, mode)
            ]
            agree = sum(found.agrees for found in rows)
            unexplained = sum(not found.expected for found in rows)
            explained = len(rows) - agree - unexplained
            lines.append(_row([variant, mode, len(rows), agree, explained, unexplained]))
    return lines


def _exceptions(parted: Iterable[Comparison]) -> list[str]:
    lines = [
        f"- {found.scenario.name}: {found.parted} ({found.defect or 'UNEXPLAINED'})"
        for found in parted
    ]
    return ["", "Plain seeds and variants that part:", "", *lines] if lines else []


def _row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
