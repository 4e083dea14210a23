"""The highest resident memory of this process, for tests that measure a separate process."""

from __future__ import annotations

import resource
from pathlib import Path


def peak_megabytes() -> float:
    """`ru_maxrss` counts the process that started this one too: Linux carries it over fork and
    exec, so under a large test runner it says nothing about the child. VmHWM starts at exec.
    """
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise LookupError("/proc/self/status has no VmHWM")
