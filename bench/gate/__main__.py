"""python -m bench.gate [--full] [--runs N] [--jobs N]: what screening gains over strict and the
race at equal rollouts, and how far its intervals and verdicts can be trusted.

Writes bench/gate/results.md, bench/gate/results.json and docs/images/gate-*.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.gate.gains import Chosen, Compared, choices, compare, try_choice
from bench.gate.kept import Kept
from bench.gate.report import Results, load, markdown, write
from bench.gate.settings import SIZES, other_worlds, setting, ship_settings, usual
from bench.gate.trust import (
    Calibrated,
    Null,
    Shipped,
    Timed,
    calibrate,
    run_null,
    ship,
    time_fit,
)
from bench.gate.world import Setting

FIRST_SEED = 5000  # the gate was tuned with seeds below 500
NULL_STEPS = 12
T = TypeVar("T")


def main() -> None:
    names = [field.name for field in fields(Results)]
    parser = argparse.ArgumentParser(prog="python -m bench.gate", description=__doc__)
    parser.add_argument("--full", action="store_true", help="four times the repetitions")
    parser.add_argument("--brief", action="store_true", help="a tenth of the repetitions")
    parser.add_argument("--runs", type=int, help="runs a row, instead of the standard numbers")
    parser.add_argument("--only", nargs="+", choices=names, help="keep the other tables")
    parser.add_argument(
        "--keep",
        type=Path,
        help="keep finished runs in this folder and use those that are there: another call with "
        "more runs continues the measurement. Use a new folder after a change to the code",
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args()
    scale = 4.0 if options.full else 0.1 if options.brief else 1.0
    results = load() if options.only else Results()
    with ProcessPoolExecutor(options.jobs) as pool:
        sized = Sized(pool, scale, options.runs, options.first_seed, Kept(options.keep))
        for name in options.only or names:
            results = replace(results, **{name: SECTIONS[name](sized)})
            write(results)
    print(markdown(results))


@dataclass(frozen=True, slots=True)
class Sized:
    """Where to run, and how often."""

    pool: ProcessPoolExecutor
    scale: float
    fixed: int | None  # runs a row; None: the standard number times the scale
    first: int  # seed
    kept: Kept

    def runs(self, standard: int) -> int:
        return self.fixed or max(2, round(standard * self.scale))


def gains(sized: Sized) -> list[Compared]:
    return _compared(sized, usual())


def worlds(sized: Sized) -> list[Compared]:
    return _compared(sized, other_worlds())


def _compared(sized: Sized, settings: Sequence[Setting]) -> list[Compared]:
    runs = sized.runs(16)
    return _results(
        [sized.pool.submit(compare, one, runs, sized.first, sized.kept) for one in settings]
    )


def tried(sized: Sized) -> list[Chosen]:
    runs = sized.runs(8)
    return _results(
        [sized.pool.submit(try_choice, one, runs, sized.first, sized.kept) for one in choices()]
    )


def calibration(sized: Sized) -> list[Calibrated]:
    found = [setting(20), setting(40), setting(100), setting(40, graded=True), *other_worlds()]
    runs = sized.runs(6)
    return _results(
        [sized.pool.submit(calibrate, one, runs, sized.first, sized.kept) for one in found]
    )


def null(sized: Sized) -> list[Null]:
    found = [setting(items, kind="null", steps=NULL_STEPS) for items in (20, 40, 100)]
    found += [setting(items, kind="harmful", steps=NULL_STEPS) for items in (20, 40, 100)]
    runs = sized.runs(40)
    return _results(
        [sized.pool.submit(run_null, one, runs, sized.first, sized.kept) for one in found]
    )


def equal(sized: Sized) -> list[Shipped]:
    runs = sized.runs(400)
    futures = [
        sized.pool.submit(ship, one, 0.0, finalists, runs, sized.first)
        for one in ship_settings()
        for finalists in (1, 2)
    ]
    return _results(futures)


def power(sized: Sized) -> list[Shipped]:
    runs = sized.runs(60)
    futures = [
        sized.pool.submit(ship, setting(items), effect, 1, runs, sized.first)
        for items in SIZES
        for effect in (0.4, 0.8, 1.6)
    ]
    return _results(futures)


def fitting(sized: Sized) -> list[Timed]:
    return _results([sized.pool.submit(time_fit)])


Section = Callable[[Sized], list[Any]]
SECTIONS: dict[str, Section] = {
    "gains": gains,
    "worlds": worlds,
    "choices": tried,
    "calibration": calibration,
    "null": null,
    "ship": equal,
    "power": power,
    "fit": fitting,
}


def _results(futures: Sequence[Future[T]]) -> list[T]:
    return [future.result() for future in futures]


if __name__ == "__main__":
    main()
