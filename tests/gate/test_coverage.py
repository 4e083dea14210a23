"""Coverage counts rollouts that were run: one that was skipped is not missing."""

from __future__ import annotations

from collections.abc import Sequence

from skillfit.gate.samples import Arm, GateSettings, RolloutCount, Sampler
from skillfit.rollout.outcome import Failure, Outcome
from skillfit.skill import Skill
from skillfit.tasks.item import Item, Score

ITEMS = [Item(f"i{number}", {"input": "x"}) for number in range(20)]


async def test_rollouts_that_were_skipped_after_an_early_stop_do_not_lower_the_coverage() -> None:
    async def measure(
        arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]:
        scored = [Outcome(item.id, repeat, "scored", Score(1.0)) for _, item in arms[:7]]
        failed = [Outcome(arms[7][1].id, repeat, "failed", failure=Failure("timeout", "late"))]
        return [*scored, *failed, *(Outcome(item.id, repeat, "skipped") for _, item in arms[8:])]

    sampler = Sampler(measure, "confirm", GateSettings())
    count = RolloutCount(sampler)
    samples = await sampler.samples(Skill.from_text("x"), ITEMS)

    assert samples.planned == count.rollouts == 8, "not 20"
    assert samples.coverage == count.coverage == 7 / 8
