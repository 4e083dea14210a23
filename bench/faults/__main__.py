"""`python -m bench.faults` runs the tests of kills, faults, fuzz, caps and secrets, and writes what
they counted into results.md. `--fuzz N` sends N mutated replies per protocol.

The tests use real processes, SIGKILL, small disks and HTTP servers on loopback. A test that counts
something records it with pytest's `record_property`.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.md")
SUBJECTS = {  # the promise -> the modules and classes of its tests
    "Killed anywhere, a run ends the same and pays for nothing twice": ("tests.faults.test_kill",),
    "Stopped, cancelled or extended, it ends the same": ("tests.faults.test_resume",),
    "A cap is never exceeded": (
        "tests.run.test_budget",
        "tests.faults.test_resume.TestBudget",
        "tests.faults.test_time_budget",
        "tests.faults.test_hanging_proposer",
    ),
    "A failure of servers, programs or keys is not a score": (
        "tests.faults.test_failures",
        "tests.faults.test_handoff",
    ),
    "No reply of a server crashes or blocks it": ("tests.faults.test_wire_fuzz",),
    "A full, read-only or deleted disk ends it, resumable": ("tests.faults.test_disk",),
    "No key reaches the disk": ("tests.faults.test_secrets",),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--fuzz", type=int, default=1000)
    parser.add_argument("--workers", default="2")
    asked = parser.parse_args()
    files = sorted({f"{'/'.join(name.split('.')[:3])}.py" for name in _modules()})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", asked.workers, *files]
        environment = {**os.environ, "SKILLFIT_FUZZ_CASES": str(asked.fuzz)}
        subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, env=environment, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    RESULTS.write_text(_table(cases), encoding="utf-8")


def _modules() -> list[str]:
    return [name for names in SUBJECTS.values() for name in names]


def _table(cases: list[Element]) -> str:
    lines = ["| promise | cases | passed | skipped | counted |", "|---|---|---|---|---|"]
    for subject, names in SUBJECTS.items():
        own = [case for case in cases if _place(case) in names]
        counted: Counter[str] = Counter()
        for entry in (found for case in own for found in case.iter("property")):
            counted[entry.get("name", "")] += int(entry.get("value", "0"))
        skipped = sum(case.find("skipped") is not None for case in own)
        bad = sum(
            case.find("failure") is not None or case.find("error") is not None for case in own
        )
        shown = ", ".join(f"{number:,} {name}" for name, number in counted.items())
        passed = len(own) - skipped - bad
        lines.append(f"| {subject} | {len(own)} | {passed} | {skipped} | {shown} |")
    seconds = sum(float(case.get("time", "0")) for case in cases)
    minutes = f"{seconds / 60:.0f} minutes of work"
    lines.append(f"\n{minutes}. Python {platform.python_version()}, {os.cpu_count()} cores.")
    return "\n".join(lines) + "\n"


def _place(case: Element) -> str:
    """Return the longest name in SUBJECTS that the case belongs to."""
    name = case.get("classname", "")
    return max((one for one in _modules() if f"{name}.".startswith(f"{one}.")), key=len, default="")


if __name__ == "__main__":
    main()
