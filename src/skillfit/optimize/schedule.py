"""The edit budget of a step: the learning rate and its decay. A pure function of the step, so skipped steps advance it too."""

from __future__ import annotations

from math import cos, pi
from typing import Literal

Scheduler = Literal["constant", "linear", "cosine", "autonomous"]


def edit_budget(scheduler: Scheduler, step: int, total_steps: int, *, maximum: int, minimum: int) -> int | None:
    """Edits that step `step` (from 1) may apply; None means no limit. Decay starts with the first step and ends at `minimum`."""
    if scheduler == "autonomous":
        return None
    if scheduler == "constant" or total_steps <= 1:
        return maximum
    progress = min(step, total_steps) / total_steps
    if scheduler == "linear":
        return max(minimum, round(maximum + (minimum - maximum) * progress))
    return max(minimum, round(minimum + 0.5 * (maximum - minimum) * (1 + cos(pi * progress))))
