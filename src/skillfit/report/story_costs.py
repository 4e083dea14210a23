"""What a run has spent, by stage, role and model, from its journal. Failed attempts and all resumes
are included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from skillfit.report.story_parts import Cost
from skillfit.run.journal import Journal

_SUMS = """
SELECT stage, role, model, max(seq), sum(calls), sum(tokens), sum(usd),
       sum(usd IS NULL AND calls > 0)
FROM (
  SELECT seq, stage, role, model, json_extract(usage, '$.calls') AS calls,
    json_extract(usage, '$.input') + json_extract(usage, '$.output') AS tokens,
    json_extract(usage, '$.usd') AS usd
  FROM {table} WHERE seq > ?)
GROUP BY stage, role, model
"""
_RETRIES = "SELECT kind, count(*), max(seq) FROM losses WHERE seq > ? GROUP BY kind"


@dataclass(slots=True)
class CostTotals:
    """The bill of a run. `read` adds what was recorded since the last call."""

    costs: dict[tuple[str, str, str], Cost] = field(default_factory=dict)
    retries: Counter[str] = field(default_factory=Counter)  # kind of a failed call -> how many
    _seen: dict[str, int] = field(default_factory=dict)

    def read(self, journal: Journal) -> None:
        retried = self._seen.get("losses", 0)
        for kind, count, _ in journal.query(_RETRIES, (retried,)):
            self.retries[kind] += count
        for table in ("effects", "losses"):
            self._read(journal, table)

    def _read(self, journal: Journal, table: str) -> None:
        seen = self._seen.get(table, 0)
        last = seen
        for stage, role, model, seq, calls, tokens, usd, unpriced in journal.query(
            _SUMS.format(table=table), (seen,)
        ):
            last = max(last, seq)
            if not calls:
                continue
            key = (stage, role, model)
            used = Cost(*key, calls=calls, tokens=tokens or 0, usd=None if unpriced else usd)
            self.costs[key] = self.costs.get(key, Cost(*key)).plus(used)
        self._seen[table] = last

    def listed(self) -> tuple[Cost, ...]:
        return tuple(self.costs.values())
