"""Many big rows do not exhaust memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

LOAD = """
import sys
from pathlib import Path
from skillfit.config.schema import EnvSection
from skillfit.tasks import load_task
from tests.support.peak_memory import peak_megabytes
before = peak_megabytes()
task = load_task(EnvSection(tasks=sys.argv[1]))
task.identity(), task.train
print(peak_megabytes() - before)
"""


def test_rows_of_100_kb_are_not_kept_in_memory(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(5000)]
    with (tmp_path / "big.jsonl").open("w") as file:
        for number in range(600):
            text = " ".join(random.Random(number).sample(words, 200)) + "x" * 100_000
            file.write(json.dumps({"input": text, "answer": "a"}) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "big.jsonl")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < 30  # megabytes, for 60 MB of rows


def test_the_memory_measurement_excludes_the_test_runner() -> None:
    ballast = b"x" * 200_000_000
    code = "from tests.support.peak_memory import peak_megabytes; print(peak_megabytes())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) < len(ballast) / 1e6
