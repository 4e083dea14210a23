"""Many big rows do not fill the memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

LOAD = """
import resource, sys
from pathlib import Path
from skillfit.tasks import TaskSettings, load_task
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
task = load_task(TaskSettings(sys.argv[1]))
task.identity(), task.train
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_rows_of_100_kb_are_not_kept(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(5000)]
    with (tmp_path / "big.jsonl").open("w") as file:
        for number in range(600):
            text = " ".join(random.Random(number).sample(words, 200)) + "x" * 100_000
            file.write(json.dumps({"input": text, "answer": "a"}) + "\n")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "big.jsonl")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 30_000  # kilobytes, for 60 MB of rows
