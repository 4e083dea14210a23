"""Results of tests from pytest's summary (`-rA`), as SWE-bench reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LINE = re.compile(r"^(PASSED|FAILED|SKIPPED|ERROR|XFAIL)[ \t]+(\S+)", re.MULTILINE)
_COUNT = re.compile(r"^\[\d+\]$")  # SKIPPED [3] path:line: reason, which names no test


def parse_log(log: str) -> dict[str, str]:
    """Test -> its status; the last line about a test counts."""
    found = {}
    for status, name in _LINE.findall(log):
        if not (status == "SKIPPED" and _COUNT.match(name)):
            found[name] = status
    return found


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """Which of the tests that decide have not the result they must have."""

    unresolved: tuple[str, ...]  # should pass now, and do not
    broken: tuple[str, ...]  # passed before, and do not now

    @property
    def resolved(self) -> bool:
        return not self.unresolved and not self.broken


def judge(
    statuses: Mapping[str, str], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]
) -> SuiteVerdict:
    """Tests that should be fixed must pass. Tests that passed before may also be skipped."""
    return SuiteVerdict(
        tuple(name for name in fail_to_pass if _status(name, statuses) not in ("PASSED", "XFAIL")),
        tuple(
            name
            for name in pass_to_pass
            if _status(name, statuses) not in ("PASSED", "XFAIL", "SKIPPED")
        ),
    )


def _status(name: str, statuses: Mapping[str, str]) -> str | None:
    """The status of a test. Some published names are cut off inside their parameters; such a name
    stands for all tests that begin with it, if they agree.
    """
    if name in statuses or name.count("[") <= name.count("]"):
        return statuses.get(name)
    passing = ("PASSED", "XFAIL")
    matching = [status for test, status in statuses.items() if test.startswith(name)]
    agree = len({status in passing for status in matching}) == 1
    return matching[0] if agree else None
