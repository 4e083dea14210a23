"""`python -m bench.local compare | ablate | train | report`: measurements with a real local model.

compare: the gates on one task with a fixed pool of edits. ablate: the command, on a skill with
planted lines. train: benchmarks before and after training. report: writes results.md from the
stored results.
"""

from __future__ import annotations

import argparse
import asyncio
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
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rollouts", type=int, default=320, help="of ablate")
    parser.add_argument("--only", help="train: the name of one benchmark")
    asked = parser.parse_args()
    if asked.what == "report":
        text = report(asked.results)
        (asked.results / "results.md").write_text(text, encoding="utf-8")
        print(text)
        return
    if asked.model is None or asked.work is None:
        parser.error(f"{asked.what} needs --model and --work")
    if asked.what == "compare":
        results = asked.results / "comparison.jsonl"
        asyncio.run(compare(asked.work / "compare", asked.model, results, asked.seeds))
    elif asked.what == "ablate":
        ablate(asked.work / "ablate", asked.model, asked.results / "ablation.json", asked.rollouts)
    else:
        for benchmark in BENCHMARKS:
            if asked.only in (None, benchmark.name):
                train(asked.work / "train", asked.model, asked.results / "training.json", benchmark)


if __name__ == "__main__":
    main()
