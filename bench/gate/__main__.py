"""python -m bench.gate [--full] [--jobs N]: what screening gains over strict and the race at equal
rollouts, and how far its intervals and verdicts can be trusted.

Writes bench/gate/results.md, bench/gate/results.json and docs/images/gate-*.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import fields, replace
from typing import Any, TypeVar

from bench.gate.gains import Chosen, Compared, choices, compare, try_choice
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

FIRST_SEED = 5000  # the gate was tuned with seeds below 500
NULL_STEPS = 12
T = TypeVar("T")


def main() -> None:
    names = [field.name for field in fields(Results)]
    parser = argparse.ArgumentParser(prog="python -m bench.gate", description=__doc__)
    parser.add_argument("--full", action="store_true", help="four times the repetitions")
    parser.add_argument("--brief", action="store_true", help="a tenth of the repetitions")
    parser.add_argument("--only", nargs="+", choices=names, help="keep the other tables")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args()
    scale = 4.0 if options.full else 0.1 if options.brief else 1.0
    results = load() if options.only else Results()
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in options.only or names:
            measured = SECTIONS[name](pool, scale, options.first_seed)
            results = replace(results, **{name: measured})
            write(results)
    print(markdown(results))


def gains(pool: ProcessPoolExecutor, scale: float, first: int) -> list[Compared]:
    return _results([pool.submit(compare, one, _runs(16, scale), first) for one in usual()])


def worlds(pool: ProcessPoolExecutor, scale: float, first: int) -> list[Compared]:
    return _results([pool.submit(compare, one, _runs(16, scale), first) for one in other_worlds()])


def tried(pool: ProcessPoolExecutor, scale: float, first: int) -> list[Chosen]:
    return _results([pool.submit(try_choice, one, _runs(8, scale), first) for one in choices()])


def calibration(pool: ProcessPoolExecutor, scale: float, first: int) -> list[Calibrated]:
    found = [setting(20), setting(40), setting(100), setting(40, graded=True), *other_worlds()]
    return _results([pool.submit(calibrate, one, _runs(6, scale), first) for one in found])


def null(pool: ProcessPoolExecutor, scale: float, first: int) -> list[Null]:
    found = [setting(items, kind="null", steps=NULL_STEPS) for items in (20, 40, 100)]
    found += [setting(items, kind="harmful", steps=NULL_STEPS) for items in (20, 40, 100)]
    return _results([pool.submit(run_null, one, _runs(40, scale), first) for one in found])


def equal(pool: ProcessPoolExecutor, scale: float, first: int) -> list[Shipped]:
    futures = [
        pool.submit(ship, one, 0.0, finalists, _runs(400, scale), first)
        for one in ship_settings()
        for finalists in (1, 2)
    ]
    return _results(futures)


def power(pool: ProcessPoolExecutor, scale: float, first: int) -> list[Shipped]:
    futures = [
        pool.submit(ship, setting(items), effect, 1, _runs(60, scale), first)
        for items in SIZES
        for effect in (0.4, 0.8, 1.6)
    ]
    return _results(futures)


def fitting(pool: ProcessPoolExecutor, scale: float, first: int) -> list[Timed]:
    return _results([pool.submit(time_fit)])


Section = Callable[[ProcessPoolExecutor, float, int], list[Any]]
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


def _runs(count: int, scale: float) -> int:
    return max(2, round(count * scale))


def _results(futures: Sequence[Future[T]]) -> list[T]:
    return [future.result() for future in futures]


if __name__ == "__main__":
    main()
