import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.models.protocol import AuthFailed, BadReply, Refused
from skillfit.optimize.optimizer import Patch
from skillfit.optimize.stages import (
    Pair,
    collect_notes,
    consolidate,
    keep,
    pair_up,
    top_up,
    write_advice,
    write_lesson,
)
from skillfit.skill import Skill, estimate_tokens, with_slow_update
from skillfit.tasks.item import TrajectoryStep
from tests.optimize.scripted_optimizer import SKILL, broken, item, outcome, scripted, text_of

BEFORE = Skill.from_text("# Adding\n\nThe old words.\n")


def pair(name: str, previous: float, current: float) -> Pair:
    return Pair(
        item(name),
        outcome(name, previous, answer=f"old {name}"),
        outcome(name, current, answer=f"new {name}"),
    )


PAIRS = (pair("up", 0, 1), pair("down", 1, 0.5), pair("stuck", 0, 0), pair("fine", 1, 1))


def test_pairs_are_named_by_what_changed():
    assert [p.kind for p in PAIRS] == ["improved", "regressed", "persistent_fail", "stable_success"]
    record = PAIRS[1].record()
    assert (record.id, record.category) == ("down", "regressed")
    assert (record.prev_hard, record.curr_hard) == (1, 0.5)
    assert (record.prev_answer, record.curr_answer) == ("old down", "new down")


def test_only_items_scored_under_both_skills_are_paired():
    items = [item(name) for name in "abc"]
    pairs = pair_up(
        items,
        [outcome("a", 0), broken("b"), outcome("c", 1)],
        [outcome("a", 1), outcome("b", 1), broken("c")],
    )
    assert [p.item.id for p in pairs] == ["a"]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("mixed", ["up", "down", "stuck", "fine"]),
        ("changed", ["up", "down"]),
        ("unchanged", ["stuck", "fine"]),
    ],
)
def test_policies_keep_their_kinds(policy, kept):
    assert [p.item.id for p in keep(PAIRS, policy)] == kept


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=30), st.integers(0, 8))
async def test_topping_up_tries_items_in_planned_order_until_enough_changed(changed, target):
    order = [item(str(n)) for n in range(len(changed))]
    rounds = []

    async def compare(items):
        rounds.append([each.id for each in items])
        return [pair(each.id, 0, 1 if changed[int(each.id)] else 0) for each in items]

    pairs = await top_up((), order, target, compare)
    tried = [name for names in rounds for name in names]
    assert tried == [each.id for each in order[: len(tried)]] == [p.item.id for p in pairs]
    found = len(keep(pairs, "changed"))
    assert found <= target
    assert found == target or len(tried) == len(order)


async def test_a_full_sample_needs_no_topping_up():
    async def compare(items):
        raise AssertionError("nothing is missing")

    assert await top_up(PAIRS, [item("more")], 2, compare) == PAIRS


async def test_the_slow_update_compares_both_skills_on_the_real_number_of_items():
    it = scripted(lambda request: {"reasoning": "r", "slow_update_content": " Mind the carry. "})
    current = with_slow_update(SKILL, "Old guidance.")
    lesson = await write_lesson(it.optimizer, BEFORE, current, PAIRS, epoch=2, step=8)
    assert (lesson.text, lesson.reasoning) == ("Mind the carry.", "r")
    (request,) = it.asked("slow_update")
    prompt = text_of(request)
    assert "the same 4 training items" in prompt and "1 regressed" in prompt
    for part in (
        "The old words.",
        "Add the numbers.",
        "<previous_guidance>\nOld guidance.",
        "old down",
        "new down",
        "fine: stable_success",
    ):
        assert part in prompt
    assert "new fine" not in prompt
    assert (
        prompt.index("### Item down") < prompt.index("### Item stuck") < prompt.index("### Item up")
    )
    assert request.max_tokens == 16_384


async def test_a_single_item_is_called_an_item():
    it = scripted(lambda request: {"slow_update_content": "x"})
    await write_lesson(it.optimizer, BEFORE, SKILL, PAIRS[:1], epoch=2, step=8)
    assert "the same 1 training item:" in text_of(it.model.requests[0])


async def test_many_long_pairs_fit_the_window():
    it = scripted(lambda request: {"slow_update_content": "x"}, context_window=32_000)
    long = [TrajectoryStep("message", "word " * 20_000)]
    pairs = [
        Pair(item(str(n)), outcome(str(n), 0, steps=long), outcome(str(n), 0, steps=long))
        for n in range(20)
    ]
    await write_lesson(it.optimizer, BEFORE, SKILL, pairs, epoch=2, step=8)
    (request,) = it.model.requests
    assert estimate_tokens(text_of(request)) + request.max_tokens <= 32_000
    assert text_of(request).count("Result: failed") == 40


async def test_the_meta_skill_replaces_the_previous_advice():
    it = scripted(lambda request: {"reasoning": "r", "meta_skill_content": "Short rules."})
    lesson = await write_advice(
        it.optimizer, BEFORE, SKILL, PAIRS, advice="Long rules.", epoch=3, step=12
    )
    assert lesson.text == "Short rules."
    assert "<previous_advice>\nLong rules." in text_of(it.asked("meta_skill")[0])


@pytest.mark.parametrize(
    "reply", [BadReply("no"), "no JSON", {"slow_update_content": None, "meta_skill_content": None}]
)
async def test_no_usable_text_is_no_content(reply):
    it = scripted(lambda request: reply)
    assert (await write_lesson(it.optimizer, BEFORE, SKILL, PAIRS, epoch=2, step=8)).text == ""
    assert (
        await write_advice(it.optimizer, BEFORE, SKILL, PAIRS, advice="", epoch=2, step=8)
    ).text == ""
    assert [said.stage for said in it.discarded] == (
        [] if isinstance(reply, dict) else ["slow_update", "meta_skill"]
    )


async def test_without_pairs_nobody_is_asked():
    it = scripted(lambda request: AuthFailed("no"))
    assert (await write_lesson(it.optimizer, BEFORE, SKILL, (), epoch=2, step=8)).text == ""
    assert (
        await write_advice(it.optimizer, BEFORE, SKILL, (), advice="", epoch=2, step=8)
    ).text == ""


async def test_a_dead_key_stops_the_slow_update():
    it = scripted(lambda request: AuthFailed("no"))
    with pytest.raises(AuthFailed):
        await write_lesson(it.optimizer, BEFORE, SKILL, PAIRS, epoch=2, step=8)


NOTES = ("Check the sum twice.", "Check sums two times.", "Write the unit.")


def test_notes_come_in_planned_order_each_once():
    patches = [
        Patch((), "failure", appendix_notes=("b", "a")),
        Patch((), "success", appendix_notes=("a", "c")),
    ]
    assert collect_notes(patches) == ("b", "a", "c")


async def test_up_to_the_threshold_nothing_happens():
    for threshold in (0, 3):
        it = scripted(lambda request: {"notes": ["x"]}, skill_aware_consolidate_threshold=threshold)
        assert await consolidate(it.optimizer, NOTES, step=1) is None
        assert not it.model.requests


async def test_above_the_threshold_notes_are_condensed():
    it = scripted(
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
    it = scripted(lambda request: reply, skill_aware_consolidate_threshold=2)
    assert await consolidate(it.optimizer, NOTES, step=1) is None
    assert it.discarded[0].stage == "appendix_consolidate"
