from hypothesis import given
from hypothesis import strategies as st

from skillfit.gate import GateSettings, ship_test
from skillfit.gate.ship import holm
from tests.gate.scripted_measure import BASE, Scripted, by_rule, candidate, items

GOOD, OTHER = candidate("good").skill, candidate("other").skill


async def shipped(measure, finalists=(GOOD,), count=40, settings=None, **options):
    return await ship_test(
        measure, items(count), BASE, finalists, settings or GateSettings(), **options
    )


async def test_a_real_gain_is_improved_with_its_interval():
    result = await shipped(Scripted(by_rule(0.3, good=0.4)))
    assert result.verdict == "improved" and result.skill.hash == GOOD.hash
    assert (
        0 < result.interval[0] < result.difference < result.interval[1] and result.p_value <= 0.05
    )


async def test_initial_skill_and_finalists_are_compared_on_fresh_rollouts_of_their_own_series():
    measure = Scripted(by_rule(0.3, good=0.4))
    result = await shipped(measure, noise=0.2)
    assert {series for series, *_ in measure.asked} == {"ship"}
    assert (
        result.repeats == 4
        and len(measure.asked) == len(set(measure.asked)) == 2 * 40 * 4 == result.evidence.rollouts
    )


async def test_rollouts_without_noise_are_not_repeated():
    assert (await shipped(Scripted(by_rule(0.0, good=1.0)), count=100, noise=0.0)).repeats == 1


async def test_repeats_do_not_count_as_items():
    """Four items can't reach 5 %, however often each is repeated."""
    result = await shipped(Scripted(by_rule(0.0, good=1.0)), count=4, noise=0.2)
    assert result.repeats == 4 and result.verdict == "inconclusive" and result.p_value == 0.0625


async def test_two_items_are_never_enough_to_claim_an_improvement():
    assert (await shipped(Scripted(by_rule(0.0, good=1.0)), count=2)).verdict == "inconclusive"


async def test_a_gain_on_the_training_items_is_never_improved():
    result = await shipped(Scripted(by_rule(0.0, good=1.0)), fit_only=True)
    assert result.verdict == "inconclusive" and "unverified suggestion" in result.reason


async def test_a_worse_finalist_is_no_improvement_and_a_small_gain_is_inconclusive():
    assert (await shipped(Scripted(by_rule(0.6, good=-0.3)))).verdict == "no improvement"
    slightly = Scripted(lambda skill, item: 1.0 if skill is GOOD and item < "i002" else 0.0)
    assert (await shipped(slightly)).verdict == "inconclusive"


async def test_without_a_finalist_nothing_is_measured():
    measure = Scripted(by_rule(0.5))
    result = await shipped(measure, finalists=(BASE,))
    assert (result.verdict, measure.asked, result.skill) == ("no improvement", [], BASE)


async def test_p_values_are_corrected_for_the_number_of_finalists():
    chance = lambda skill, item: 1.0 if skill is not BASE and item < "i005" else 0.0  # noqa: E731
    alone = await shipped(Scripted(chance), noise=0.0)
    chosen = await shipped(Scripted(chance), finalists=(GOOD, OTHER), noise=0.0)
    assert alone.p_value == 0.03125 and chosen.p_value == 0.0625
    assert (alone.verdict, chosen.verdict) == ("improved", "inconclusive")


async def test_the_better_finalist_is_the_one_reported():
    result = await shipped(Scripted(by_rule(0.2, good=0.1, other=0.6)), finalists=(GOOD, OTHER))
    assert result.skill.hash == OTHER.hash and result.verdict == "improved"


async def test_lost_rollouts_make_the_ship_test_inconclusive():
    result = await shipped(
        Scripted(by_rule(0.0, good=1.0), fails=lambda skill, item, repeat: item > "i015")
    )
    assert result.verdict == "inconclusive" and "scored" in result.reason


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p_values):
    corrected = holm(p_values)
    assert all(raw <= new <= 1 for raw, new in zip(p_values, corrected, strict=True))
    ranked = sorted(range(len(p_values)), key=lambda index: p_values[index])
    assert [corrected[index] for index in ranked] == sorted(corrected)
