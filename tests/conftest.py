"""Settings of Hypothesis for all tests: no time limits, which a busy machine would exceed, and no
database of examples, which would be left behind.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "skillfit",
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("skillfit")
