"""The ship test: an exact sequential test on fresh rollouts."""

import math
from dataclasses import replace
from itertools import accumulate, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.gate import GateSettings, ship_test
from skillfit.gate.samples import ALPHA
from skillfit.gate.ship import (
    FIRST_LOOK,
    MOST_LOOKS,
    SequentialTest,
    chance_to_show,
    looks,
    loss_p_value,
)
from skillfit.models import Usage
from skillfit.run.budget import BudgetReached
from tests.gate.scripted_measure import BASE, Scripted, by_rule, candidate, items, settings_of

GOOD, OTHER = candidate("good").skill, candidate("other").skill
MONTE_CARLO = 0.004  # three standard errors of a share of random sign assignments near ALPHA


async def shipped(measure, finalists=(GOOD,), count=40, settings=None, **options):
    options.setdefault("pairs", count)
    return await ship_test(
        measure, items(count), BASE, finalists, settings or GateSettings(), **options
    )


async def test_a_real_gain_is_improved_with_its_interval():
    result = await shipped(Scripted(by_rule(0.3, good=0.4)))
    assert result.verdict == "improved" and result.skill_hash == GOOD.hash
    assert (
        0 < result.interval[0] < result.difference < result.interval[1] and result.p_value <= 0.05
    )


async def test_initial_skill_and_finalists_are_compared_on_fresh_rollouts_of_their_own_series():
    measure = Scripted(by_rule(0.3, good=0.1))
    result = await shipped(measure, count=10, pairs=40)
    assert {series for series, *_ in measure.asked} == {"ship"}
    asked = {
        skill.hash: sorted(
            (item, repeat) for _, key, item, repeat in measure.asked if key == skill.hash
        )
        for skill in (BASE, GOOD)
    }
    assert asked[BASE.hash] == asked[GOOD.hash]
    assert len(asked[GOOD.hash]) == len(set(asked[GOOD.hash])) == result.pairs
    assert len(measure.asked) == 2 * result.pairs == result.evidence.rollouts


async def test_items_take_turns_before_any_is_repeated():
    measure = Scripted(by_rule(0.5))
    await shipped(measure, count=10, pairs=15, fit_only=True)
    repeats = {(item, repeat) for _, skill, item, repeat in measure.asked if skill == BASE.hash}
    assert repeats == {
        *((item.id, 0) for item in items(10)),
        *((item.id, 1) for item in items(10)[:5]),
    }


# Early stop


async def test_a_large_gain_is_decided_by_a_part_of_the_pairs():
    result = await shipped(Scripted(by_rule(0.0, good=1.0)), count=45)
    assert result.verdict == "improved"
    assert FIRST_LOOK <= result.pairs < 45 and result.evidence.rollouts == 2 * result.pairs


async def test_a_comparison_that_cannot_be_won_any_more_stops_early():
    measure = Scripted(by_rule(0.9, good=-0.8))
    result = await shipped(measure, count=45)
    assert result.verdict == "no improvement" and result.pairs < 45
    assert len(measure.asked) == 2 * result.pairs


async def test_one_finalist_that_may_still_win_keeps_the_comparison_going():
    measure = Scripted(by_rule(0.5, good=-0.5, other=0.1))
    result = await shipped(measure, finalists=(GOOD, OTHER), count=45)
    assert result.pairs == 45 and result.skill_hash == OTHER.hash


async def test_an_undecided_comparison_uses_all_pairs():
    """The finalist wins the items that the initial skill loses, and the other way round."""
    measure = Scripted(lambda skill, item: float((int(item[1:]) % 2 == 0) == (skill is GOOD)))
    result = await shipped(measure, count=45)
    assert result.pairs == 45 and result.verdict == "inconclusive"


@given(st.integers(1, 2_000))
def test_looks_are_few_and_the_last_one_sees_all_pairs(pairs):
    found = looks(pairs)
    assert found[-1] == pairs and len(found) <= MOST_LOOKS
    assert found == sorted(set(found))
    assert len(found) == 1 or found[0] >= FIRST_LOOK


# Level


def crosses(differences, batches, seed=0, level=ALPHA):
    """Whether a test says "better" at any of its looks, as the differences come in batches."""
    test = SequentialTest(level, f"seed {seed}")
    named = [(f"item {at}", difference) for at, difference in enumerate(differences)]
    return any(test.look(dict(named[:until]), until / len(named)) for until in accumulate(batches))


@pytest.mark.parametrize(
    "sizes",
    [
        (1.0,) * 9,
        (1.0, 0.0, 1.0, 0.5, 0.5, 1.0, 0.25, 0.0, 1.0),  # items without a difference, and repeats
        (0.1, 0.9, 0.3, 0.7, 0.5, 0.2, 0.8, 0.4, 0.6),
        (5.0, *(0.1,) * 8),  # one item outweighs all others
    ],
)
@pytest.mark.parametrize("batches", [(9,), (3, 3, 3), (5, 1, 1, 1, 1)])
def test_of_all_sign_assignments_at_most_five_percent_cross_at_any_look(sizes, batches):
    """The exact level: with no difference, each of them is equally likely."""
    signs = list(product((1, -1), repeat=len(sizes)))
    crossed = sum(
        crosses([sign * size for sign, size in zip(assigned, sizes, strict=True)], batches)
        for assigned in signs
    )
    assert crossed / len(signs) <= ALPHA + MONTE_CARLO


@pytest.mark.parametrize("kind", ["scores of 0 and 1", "graded", "saturated", "skewed"])
def test_without_a_difference_at_most_five_percent_of_runs_cross_at_any_look(kind):
    draw = {
        "scores of 0 and 1": lambda rng: rng.choice((-1, 0, 0, 1)),
        "graded": lambda rng: rng.gauss(0, 0.3),
        "saturated": lambda rng: rng.choice((-1, 1, *(0,) * 18)),
        "skewed": lambda rng: rng.choice((-1, 1)) * rng.random() ** 6,
    }[kind]
    runs, crossed = 600, 0
    for seed in range(runs):
        rng = Random(f"{kind} {seed}")
        crossed += crosses([draw(rng) for _ in range(30)], (8, 7, 8, 7), seed)
    assert crossed / runs <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


@pytest.mark.parametrize(("count", "pairs"), [(6, 24), (12, 24), (40, 40)])
@pytest.mark.parametrize("finalists", [(GOOD,), (GOOD, OTHER)])
async def test_equal_skills_are_improved_in_at_most_five_percent_of_runs(count, pairs, finalists):
    """A/A, with the repeats of few items."""
    runs, improved = 200, 0
    for seed in range(runs):
        rng = Random(f"{count} {seed}")
        chances = {item.id: rng.random() for item in items(count)}
        measure = Scripted(lambda skill, item, known=chances: known[item], salt=seed)
        settings = settings_of(train={"seed": seed})
        result = await shipped(measure, finalists, count, settings, pairs=pairs)
        improved += result.verdict == "improved"
    assert improved / runs <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / runs)


async def test_real_gains_are_found_about_as_often_as_the_plan_says():
    runs, pairs = 80, 45
    improved = 0
    for seed in range(runs):
        result = await shipped(Scripted(by_rule(0.4, good=0.25), salt=seed), count=pairs)
        improved += result.verdict == "improved"
    assert abs(improved / runs - chance_to_show(pairs, 0.4, 0.65)) < 0.15


def test_the_level_spent_grows_with_the_share_of_the_pairs():
    """Few pairs that are the beginning of many need more than the same pairs alone."""
    won = {f"item {at}": 1.0 for at in range(6)}
    assert SequentialTest(ALPHA, "a").look(won, 1.0)
    assert not SequentialTest(ALPHA, "a").look(won, 0.1)


# Ties


async def test_equal_scores_are_no_improvement_with_a_p_value_of_one():
    result = await shipped(Scripted(lambda skill, item: float(item < "i020")))
    assert (result.verdict, result.p_value, result.difference) == ("no improvement", 1.0, 0.0)


def test_paths_with_equal_sums_leave_together_or_not_at_all():
    """With five wins the highest sum is that of 1 path in 32: more than the level spent so far."""
    test = SequentialTest(ALPHA, "ties")
    won = {f"item {at}": 1.0 for at in range(5)}
    assert not test.look(won, 0.5)  # 0.0177 of the level
    assert test.look(won, 1.0) and test.p_value == pytest.approx(1 / 32, abs=0.004)


async def test_repeats_do_not_count_as_items():
    """Four items can't reach 5 %, however often each is repeated."""
    result = await shipped(Scripted(by_rule(0.0, good=1.0)), count=4, pairs=16)
    assert result.pairs == 16 and result.verdict == "inconclusive"
    assert result.p_value == pytest.approx(1 / 16, abs=0.006)


async def test_two_items_are_never_enough_to_claim_an_improvement():
    assert (await shipped(Scripted(by_rule(0.0, good=1.0)), count=2)).verdict == "inconclusive"


# Verdicts


async def test_a_gain_on_the_training_items_is_never_improved():
    result = await shipped(Scripted(by_rule(0.0, good=1.0)), fit_only=True)
    assert result.verdict == "inconclusive" and "unverified suggestion" in result.reason


async def test_a_worse_finalist_is_no_improvement_and_a_small_gain_is_inconclusive():
    assert (await shipped(Scripted(by_rule(0.6, good=-0.3)))).verdict == "no improvement"
    slightly = Scripted(lambda skill, item: 1.0 if skill is GOOD and item < "i002" else 0.0)
    assert (await shipped(slightly)).verdict == "inconclusive"


@pytest.mark.parametrize("options", [{"finalists": (BASE,)}, {"pairs": 0}, {"count": 0}])
async def test_without_a_finalist_pairs_or_items_nothing_is_measured(options):
    measure = Scripted(by_rule(0.5))
    result = await shipped(measure, **options)
    assert (result.verdict, measure.asked, result.skill_hash) == ("no improvement", [], BASE.hash)


async def test_p_values_are_corrected_for_the_number_of_finalists():
    chance = lambda skill, item: 1.0 if skill is not BASE and item < "i005" else 0.0  # noqa: E731
    alone = await shipped(Scripted(chance))
    chosen = await shipped(Scripted(chance), finalists=(GOOD, OTHER))
    assert alone.p_value == pytest.approx(1 / 32, abs=0.004)
    assert chosen.p_value == pytest.approx(2 / 32, abs=0.008)
    assert (alone.verdict, chosen.verdict) == ("improved", "inconclusive")


async def test_the_better_finalist_is_the_one_reported():
    result = await shipped(Scripted(by_rule(0.2, good=0.1, other=0.6)), finalists=(GOOD, OTHER))
    assert result.skill_hash == OTHER.hash and result.verdict == "improved"


async def test_lost_rollouts_make_the_ship_test_inconclusive():
    fails = lambda skill, item, repeat: int(item[1:]) % 5 > 1  # noqa: E731
    result = await shipped(Scripted(by_rule(0.0, good=1.0), fails=fails))
    assert result.verdict == "inconclusive" and "scored" in result.reason


async def test_the_result_does_not_depend_on_the_order_in_which_rollouts_finish():
    async def ship(shuffle):
        return await shipped(Scripted(by_rule(0.4, good=0.15), shuffle=shuffle))

    assert await ship("") == await ship("one") == await ship("two")


class Capped(Scripted):
    """A measure whose budget ends after some rollouts."""

    def __init__(self, chance, most):
        super().__init__(chance)
        self._most = most

    async def __call__(self, arms, *, repeat, series):
        if len(self.asked) + len(arms) > self._most:
            raise BudgetReached("rollouts", self._most, self._most)
        return await super().__call__(arms, repeat=repeat, series=series)


async def test_what_was_seen_counts_when_the_budget_ends_between_two_batches():
    result = await shipped(Capped(by_rule(0.5, good=0.1), most=60), count=45)
    assert 0 < result.pairs <= 30 and result.verdict != "improved"


async def test_a_budget_that_ends_before_anything_was_seen_ends_the_comparison():
    with pytest.raises(BudgetReached):
        await shipped(Capped(by_rule(0.5), most=3))


# A cheaper skill


class Costing(Scripted):
    """Rollouts that take 100 tokens, and `share` of them under another skill."""

    def __init__(self, chance, *, share):
        super().__init__(chance)
        self._share = share

    def _outcome(self, skill, item, repeat, series):
        outcome = super()._outcome(skill, item, repeat, series)
        tokens = 100 if skill.hash == BASE.hash else round(100 * self._share)
        return replace(outcome, usage=Usage(input=tokens))


CHEAPER = settings_of(evaluation={"objective": "cheaper", "margin": 0.1})


@pytest.mark.parametrize(
    ("effect", "share", "verdict", "reason"),
    [
        (0.0, 0.6, "improved", "cheaper, and a loss of 0.1 or more is excluded"),
        (0.0, 1.3, "no improvement", "does not save tokens"),
        (-0.4, 0.6, "no improvement", "the score is lower by 0.1 or more"),
        (-0.05, 0.6, "inconclusive", "a loss of 0.1 or more is not excluded"),
    ],
)
async def test_a_cheaper_skill_must_save_tokens_and_keep_its_score(effect, share, verdict, reason):
    base = 1.0 if effect == 0.0 else 0.6
    measure = Costing(by_rule(base, good=effect), share=share)
    result = await shipped(measure, count=60, settings=CHEAPER)
    assert (result.verdict, reason in result.reason) == (verdict, True)
    assert result.saving.mean == pytest.approx(1 - share)
    assert (result.p_value <= ALPHA) == (verdict == "improved")


async def test_a_saving_that_could_be_chance_is_named_as_such():
    class Uneven(Costing):
        def _outcome(self, skill, item, repeat, series):
            outcome = super()._outcome(skill, item, repeat, series)
            more = skill.hash != BASE.hash and int(item[1:]) % 2
            return replace(outcome, usage=Usage(input=140)) if more else outcome

    result = await shipped(Uneven(by_rule(1.0), share=0.5), count=60, settings=CHEAPER)
    assert result.verdict == "inconclusive" and 0 < result.saving.mean < 0.1
    assert "saves tokens, but chance could explain it" in result.reason


async def test_a_skill_without_a_score_to_keep_is_not_called_cheaper():
    result = await shipped(Costing(by_rule(0.0), share=0.5), count=60, settings=CHEAPER)
    assert result.verdict == "inconclusive" and "has no score to keep" in result.reason


async def test_a_higher_score_alone_does_not_make_a_skill_cheaper():
    measure = Costing(by_rule(0.3, good=0.5), share=1.0)
    result = await shipped(measure, count=60, settings=CHEAPER)
    assert result.verdict == "no improvement" and "does not save" in result.reason


@pytest.mark.parametrize("losing", [0.1, 0.3])
def test_a_loss_of_the_margin_is_seldom_excluded_at_any_look(losing):
    """The mean loss is the margin: `losing` of the pairs lose, and some of the others win."""
    random, margin, runs = Random(5), 0.1, 1_000
    excluded = 0
    for _ in range(runs):
        draws = [random.random() for _ in range(120)]
        differences = [-1 if draw < losing else int(draw > 1 - losing + margin) for draw in draws]
        looked_at = (loss_p_value(differences[:count], margin) for count in range(15, 121, 15))
        excluded += any(p <= ALPHA for p in looked_at)
    three_errors = 3 * math.sqrt(ALPHA * (1 - ALPHA) / runs)
    assert excluded / runs <= ALPHA + three_errors


@given(st.lists(st.floats(-1, 1), max_size=50), st.floats(0.01, 0.9))
def test_the_chance_of_a_loss_is_a_probability(differences, margin):
    assert 0 <= loss_p_value(differences, margin) <= 1


def test_equal_rollouts_exclude_a_loss_only_when_there_are_enough():
    assert loss_p_value([0.0] * 20, 0.1) > ALPHA >= loss_p_value([0.0] * 60, 0.1)


# Several models

TWO_MODELS = settings_of(
    model={"agents": ["openai/a", "openai/b"]}, evaluation={"gate_metric": "soft"}
)


@pytest.mark.parametrize(
    ("loss", "verdict"), [(0.0, "improved"), (0.05, "improved"), (0.3, "inconclusive")]
)
async def test_a_skill_that_one_model_loses_with_is_not_improved(loss, verdict):
    each = [item.with_model(model) for item in items(40) for model in ("a", "b")]

    def chance(skill, item):
        good = skill.hash == GOOD.hash
        return 0.4 + (0.6 if good else 0.0) if item.endswith("@a") else 0.9 - (loss if good else 0)

    result = await ship_test(
        Scripted(chance, graded=True), each, BASE, [GOOD], TWO_MODELS, pairs=80
    )
    assert result.verdict == verdict
    assert [one.type for one in result.models] == ["a", "b"]
    assert result.models[0].difference > 0.4
    assert (f"{result.models[1].difference:+.2f} with b" in result.reason) == (loss == 0.3)
