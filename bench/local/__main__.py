"""`python -m bench.local compare | ablate | train | report`: measurements with a real local model.

compare: the gates on one task with a fixed pool of edits. ablate: the command, on a skill with
planted lines. train: benchmarks before and after training. report: writes results.md from the
stored results.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from bench.local.ablation import ablate
from bench.local.compare import compare
from bench.local.report import report
from bench.local.training import BENCHMARKS, train

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.local", description=__doc__)
    parser.add_argument("what", choices=("compare", "ablate", "train", "report"))
    parser.add_argument("--model", type=Path, help="the GGUF file")
    parser.add_argument("--work", type=Path, help="a folder for tasks, journals and runs")
    parser.add_argument("--results", type=Path, default=HERE, help="a folder for the results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--rollouts", type=int, help="ablate: the number, if not its default")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the model")
    parser.add_argument("--only", help="train: the name of one benchmark")
    asked = parser.parse_args()
    if asked.what == "report":
        text = report(asked.results)
        (asked.results / "results.md").write_text(text, encoding="utf-8")
        print(text)
        return
    if asked.model is None or asked.work is None:
        parser.error(f"{asked.what} needs --model and --work")
    where = (asked.work / asked.what, asked.model)
    if asked.what == "compare":
        results = asked.results / "comparison.jsonl"
        asyncio.run(compare(*where, results, asked.seeds, asked.threads))
    elif asked.what == "ablate":
        ablate(*where, asked.results / "ablation.json", asked.rollouts, asked.threads)
    else:
        for benchmark in BENCHMARKS:
            if asked.only in (None, benchmark.name):
                train(*where, asked.results / "training.json", benchmark, asked.threads)


if __name__ == "__main__":
    main()
