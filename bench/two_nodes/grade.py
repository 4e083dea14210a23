"""The grader of the runs on two nodes: exact match, and a line in a file about where it ran."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

LOG = "graded_on.txt"  # beside the tasks file, which all nodes can read


def grade(item: dict[str, Any], answer: str) -> float:
    with (Path(os.environ["PROJECT"]) / LOG).open("a", encoding="utf-8") as log:
        log.write(f"{socket.gethostname()}\n")
    time.sleep(0.05)  # a grader with some work, such as running tests
    return float(answer.strip() == item["answers"][0])
