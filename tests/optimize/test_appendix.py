import pytest

from skillfit.models.protocol import Refused
from skillfit.optimize.epoch import collect_notes, consolidate
from skillfit.optimize.optimizer import Patch
from tests.optimize.scripted_optimizer import text_of, world

NOTES = ("Check the sum twice.", "Check sums two times.", "Write the unit.")


def test_notes_come_in_planned_order_each_once():
    patches = [
        Patch((), "failure", appendix_notes=("b", "a")),
        Patch((), "success", appendix_notes=("a", "c")),
    ]
    assert collect_notes(patches) == ("b", "a", "c")


async def test_up_to_the_threshold_nothing_happens():
    for threshold in (0, 3):
        it = world(lambda request: {"notes": ["x"]}, skill_aware_consolidate_threshold=threshold)
        assert await consolidate(it.optimizer, NOTES, step=1) is None
        assert not it.model.requests


async def test_above_the_threshold_notes_are_condensed():
    it = world(
        lambda request: {"notes": ["Check the\nsum twice.", "", "Write the unit."]},
        skill_aware_consolidate_threshold=2,
    )
    assert await consolidate(it.optimizer, NOTES, step=1) == (
        "Check the sum twice.",
        "Write the unit.",
    )
    (request,) = it.asked("appendix_consolidate")
    assert (
        request.max_tokens == 16_384
    )  # thinking counts as output: no smaller than for other replies
    assert all(note in text_of(request) for note in NOTES)


@pytest.mark.parametrize(
    "reply",
    [
        Refused("no"),
        {"notes": []},
        {"notes": list(NOTES)},
        {"notes": ["x" * 200]},
        {"notes": ["a"] * 3},
    ],
)
async def test_what_does_not_shrink_is_not_kept_and_that_is_said(reply):
    it = world(lambda request: reply, skill_aware_consolidate_threshold=2)
    assert await consolidate(it.optimizer, NOTES, step=1) is None
    assert it.discarded[0].stage == "appendix_consolidate"
