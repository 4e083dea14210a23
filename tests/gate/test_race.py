import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.errors import InputError
from skillfit.gate import Candidate, GateSettings, RaceGate, StrictGate
from skillfit.skill import Edit, apply_edits
from skillfit.tasks.item import Score
from tests.gate.scripted import BASE, Scripted, by_rule, candidate, items


async def gate_for(measure, count=40, **options):
    gate = RaceGate(measure, items(count), GateSettings(**options))
    await gate.baseline(BASE)
    return gate


async def test_the_best_of_several_candidates_wins_and_says_why():
    gate = await gate_for(Scripted(by_rule(0.2, good=0.6, bad=-0.2)))
    verdict = await gate.judge(
        "step_0001", BASE, [candidate("bad"), candidate("good"), candidate("neutral")]
    )
    assert (verdict.decision, verdict.action, verdict.chosen.label) == (
        "accept",
        "accept_new_best",
        "good",
    )
    evidence = verdict.evidence
    assert len(evidence.fixed) > 10 and evidence.probability > 0.95 and evidence.interval[0] > 0
    assert len({*evidence.fixed, *evidence.broken, *evidence.both, *evidence.neither}) == 40
    assert {row.label: row.fate for row in verdict.standings}["good"] == "winner"


async def test_a_hopeless_candidate_stops_after_the_first_block():
    measure = Scripted(by_rule(0.9, bad=-0.9))
    gate = await gate_for(measure, count=100)
    verdict = await gate.judge("step_0001", BASE, [candidate("bad")])
    assert verdict.decision == "reject"
    assert verdict.standings[0].rollouts == 10 and verdict.standings[0].fate == "dropped"


async def test_candidates_meet_the_same_items_in_the_same_order():
    measure = Scripted(by_rule(0.5))
    gate = await gate_for(measure)
    await gate.judge("step_0001", BASE, [candidate("one"), candidate("two"), candidate("three")])
    first = [
        [item for _, skill, item, _ in measure.asked if skill == candidate(r).skill.hash][:10]
        for r in ("one", "two", "three")
    ]
    assert first[0] == first[1] == first[2]
    assert first[0] != [item.id for item in items(10)]


async def test_a_byte_identical_or_repeated_candidate_is_never_evaluated():
    measure = Scripted(by_rule(0.5))
    gate = await gate_for(measure)
    verdict = await gate.judge("step_0001", BASE, [Candidate(BASE)])
    assert verdict.decision == "reject" and verdict.evidence.rollouts == 0
    verdict = await gate.judge(
        "step_0002", BASE, [candidate("twin"), candidate("twin"), Candidate(BASE)]
    )
    assert len(verdict.standings) == 1


async def test_the_pass_that_won_never_enters_the_new_incumbents_record():
    lucky = set()

    class Lucky(Scripted):
        """The first rollout of every item under the candidate succeeds; later ones are a coin."""

        def _outcome(self, skill, item, repeat, series):
            if skill.hash == BASE.hash or repeat:
                return super()._outcome(skill, item, repeat, series)
            lucky.add(item)
            return dataclasses.replace(
                super()._outcome(skill, item, repeat, series), score=Score(1.0)
            )

    gate = await gate_for(Lucky(by_rule(0.2, good=0.3)))
    verdict = await gate.judge("step_0001", BASE, [candidate("good")])
    assert verdict.decision == "accept" and len(lucky) == 40
    raced = sum(row.rollouts for row in verdict.standings) - 40
    assert gate.best_score == verdict.candidate_score < 1.0
    assert raced >= 10 and verdict.tally.scored == 40


async def test_a_skill_that_comes_back_is_measured_on_fresh_rollouts():
    measure = Scripted(by_rule(0.5))
    gate = await gate_for(measure)
    for step in range(4):
        await gate.judge(f"step_{step}", BASE, [candidate("again")])
    assert len(measure.asked) == len(set(measure.asked))


async def test_two_winners_whose_edits_go_together_are_stacked_and_measured_as_one():
    gate = await gate_for(Scripted(by_rule(0.1, left=0.4, right=0.4)))
    verdict = await gate.judge("step_0001", BASE, [candidate("left"), candidate("right")])
    assert verdict.decision == "accept" and {edit.content for edit in verdict.chosen.edits} == {
        "- left",
        "- right",
    }
    assert any(
        row.label == verdict.chosen.label and row.rollouts >= 10 for row in verdict.standings
    )


async def test_winners_whose_edits_touch_the_same_text_are_not_stacked():
    def rival(word):
        edit = Edit("replace", "Do the task.", f"Do the task {word}.")
        return Candidate(apply_edits(BASE, [edit]).skill, (edit,), word)

    gate = await gate_for(
        Scripted(
            lambda skill, item: 0.1 + 0.5 * ("well" in skill.body) + 0.5 * ("fast" in skill.body)
        )
    )
    verdict = await gate.judge("step_0001", BASE, [rival("well"), rival("fast")])
    assert verdict.decision == "accept" and len(verdict.chosen.edits) == 1


@pytest.mark.parametrize("budget", [60, 95, 120, 200])
async def test_a_step_never_uses_more_than_its_rollout_budget(budget):
    gate = await gate_for(Scripted(by_rule(0.4, a=0.1, b=0.1, c=0.1, d=0.1)), rollout_budget=budget)
    verdict = await gate.judge("step_0001", BASE, [candidate(rule) for rule in "abcd"])
    assert verdict.evidence.rollouts <= budget


@pytest.mark.parametrize("budget", [0, 120, 200])
async def test_must_pass_items_are_looked_at_again_within_the_budget(budget):
    must = tuple(f"i{number:03d}" for number in range(10))

    def chance(skill, item):
        return float((item in must) != ("- good" in skill.body))

    gate = await gate_for(Scripted(chance), rollout_budget=budget, must_pass=must)
    verdict = await gate.judge("step_0001", BASE, [candidate("good")])
    assert verdict.decision == "reject" and verdict.standings[0].fate == "vetoed"
    assert verdict.evidence.rollouts <= (budget or 40 * 8 + 60)


def test_a_rollout_budget_that_can_decide_nothing_is_refused_at_the_start():
    with pytest.raises(InputError, match="rollout_budget: 59 rollouts cannot decide") as refused:
        RaceGate(Scripted(by_rule(0.1)), items(40), GateSettings(rollout_budget=59))
    assert "60" in refused.value.hint


async def test_with_little_room_fewer_candidates_race():
    gate = await gate_for(Scripted(by_rule(0.1, good=0.9)), rollout_budget=65)
    verdict = await gate.judge(
        "step_0001", BASE, [candidate("good"), candidate("other"), candidate("third")]
    )
    assert verdict.accepted and [row.fate for row in verdict.standings] == [
        "winner",
        "not measured",
        "not measured",
    ]


async def test_a_skill_carried_on_without_a_verdict_is_held_against_the_best_with_scepticism():
    gate = await gate_for(Scripted(by_rule(0.2, one=0.4, region=-0.1)))
    best = (await gate.judge("step_0001", BASE, [candidate("one")])).winner
    region = candidate("region", incumbent=best).skill
    tally = await gate.adopt(region)
    assert gate.best == best and gate.lead_of(best) == 0.0
    assert tally.hard - gate.best_score < gate.lead_of(region) < 0


async def test_a_skill_that_says_the_same_takes_the_record_over_unmeasured():
    measure = Scripted(by_rule(0.2, one=0.3, two=0.3))
    gate = await gate_for(measure)
    first = (await gate.judge("step_0001", BASE, [candidate("one")])).winner
    asked, marked = len(measure.asked), candidate("region", incumbent=first).skill
    assert await gate.adopt(marked, first) == gate.tally(first)
    assert len(measure.asked) == asked and gate.best == first and gate.finalists(5) == [first]
    second = await gate.judge("step_0002", marked, [candidate("two", incumbent=marked)])
    assert second.action == "accept_new_best" and gate.best == second.winner


async def test_a_decision_that_is_still_open_is_asked_again_where_the_sides_differ():
    fixed, broken = [{f"i{number:03d}" for number in part} for part in (range(16), range(16, 30))]

    def chance(skill, item):
        return float(item in fixed if "- swap" in skill.body else item in broken)

    measure = Scripted(chance)
    gate = await gate_for(measure, seed=3)
    verdict = await gate.judge("step_0001", BASE, [candidate("swap")])
    assert 0.4 <= verdict.evidence.probability <= 0.6
    last = [(skill, item) for _, skill, item, _ in measure.asked[-60:]]
    assert set(last) == {
        (skill.hash, item) for skill in (BASE, candidate("swap").skill) for item in fixed | broken
    }


async def test_a_clear_decision_ends_with_the_fresh_pass():
    measure = Scripted(by_rule(0.1, good=0.8))
    gate = await gate_for(measure)
    verdict = await gate.judge("step_0001", BASE, [candidate("good")])
    assert (
        verdict.accepted
        and len({item for _, skill, item, _ in measure.asked[-40:] if skill == verdict.winner.hash})
        == 40
    )


async def test_a_confirmed_regression_on_a_must_pass_item_vetoes():
    def chance(skill, item):
        return (
            (0.0 if item == "i007" else 1.0)
            if "- good" in skill.body
            else float(item in ("i007", "i008"))
        )

    gate = await gate_for(Scripted(chance), must_pass=("i007",))
    verdict = await gate.judge("step_0001", BASE, [candidate("good")])
    assert (
        verdict.decision == "reject"
        and "i007" in verdict.reason
        and verdict.standings[0].fate == "vetoed"
    )
    assert "i007" in verdict.evidence.broken


@pytest.mark.parametrize(("kept", "least", "most"), [(0.4, 15, 40), (0.9, 0, 3)])
async def test_a_must_pass_item_that_mostly_fails_now_is_mostly_found(kept, least, most):
    def chance(skill, item):
        if item == "i007":
            return kept if "- good" in skill.body else 1.0
        return 0.9 if "- good" in skill.body else 0.1

    vetoed = 0
    for salt in range(40):
        gate = await gate_for(Scripted(chance, salt=salt), must_pass=("i007",))
        vetoed += (await gate.judge("step_0001", BASE, [candidate("good")])).standings[
            0
        ].fate == "vetoed"
    assert least <= vetoed <= most


async def test_an_unconfirmed_regression_on_a_must_pass_item_does_not_veto():
    class BadDay(Scripted):
        def _outcome(self, skill, item, repeat, series):
            self._chance = lambda s, i: (
                0.0
                if i == "i007" and repeat < 2 and "- good" in s.body
                else by_rule(0.2, good=0.8)(s, i)
            )
            if skill.hash == BASE.hash and item == "i007":
                self._chance = lambda s, i: 1.0
            return super()._outcome(skill, item, repeat, series)

    gate = await gate_for(BadDay(by_rule(0.2)), must_pass=("i007",))
    verdict = await gate.judge("step_0001", BASE, [candidate("good")])
    assert "i007" in verdict.evidence.broken and verdict.decision == "accept"


def test_must_pass_items_must_exist():
    with pytest.raises(InputError, match="nowhere"):
        RaceGate(Scripted(by_rule(0.5)), items(5), GateSettings(must_pass=("nowhere",)))


@pytest.mark.parametrize("gate", [RaceGate, StrictGate])
@pytest.mark.parametrize(("weight", "decision"), [(1.0, "accept"), (30.0, "reject")])
async def test_an_item_that_weighs_more_counts_more(gate, weight, decision):
    def chance(skill, item):
        return float((item == "i007") != ("- good" in skill.body))

    chosen = gate(Scripted(chance), items(20), GateSettings(weights={"i007": weight}))
    await chosen.baseline(BASE)
    verdict = await chosen.judge("step_0001", BASE, [candidate("good")])
    assert verdict.decision == decision
    assert verdict.incumbent_score == pytest.approx(weight / (19 + weight))
    assert verdict.evidence.difference == pytest.approx((19 - weight) / (19 + weight))


async def test_a_fifth_of_rollouts_lost_at_random_moves_no_mean_and_blocks_nothing():
    def fails(skill, item, repeat):
        return (int(item[1:]) * 7 + repeat * 3 + len(skill.body)) % 5 == 0

    gate = await gate_for(Scripted(by_rule(0.2, good=0.6), fails=fails))
    verdict = await gate.judge("step_0001", BASE, [candidate("good")])
    assert verdict.decision == "accept" and 0.7 < verdict.evidence.coverage < 0.9
    assert abs(verdict.candidate_score - 0.8) < 0.2


async def test_below_the_coverage_floor_the_verdict_is_inconclusive():
    gate = await gate_for(
        Scripted(
            by_rule(0.2, good=0.8),
            fails=lambda skill, item, repeat: skill.hash != BASE.hash and item > "i010",
        )
    )
    verdict = await gate.judge("step_0001", BASE, [candidate("good")])
    assert verdict.decision == "inconclusive" and verdict.winner.hash == BASE.hash


async def test_an_all_failing_candidate_is_inconclusive_not_worse():
    gate = await gate_for(
        Scripted(by_rule(0.5), fails=lambda skill, item, repeat: skill.hash != BASE.hash)
    )
    verdict = await gate.judge("step_0001", BASE, [candidate("dead")])
    assert verdict.decision == "inconclusive" and verdict.evidence.broken == ()


@pytest.mark.parametrize("metric", ["soft", "mixed"])
async def test_graded_scores_are_raced_too(metric):
    gate = await gate_for(Scripted(by_rule(0.3, good=0.3), graded=True), metric=metric)
    assert (await gate.judge("step_0001", BASE, [candidate("good")])).decision == "accept"
    hard = await gate_for(Scripted(by_rule(0.3, good=0.3), graded=True))
    assert (await hard.judge("step_0001", BASE, [candidate("good")])).decision == "reject"


async def test_a_planted_rule_that_breaks_held_out_items_is_rejected_with_its_evidence_kept():
    gate = await gate_for(Scripted(by_rule(0.8, shouting=-0.6)))
    verdict = await gate.judge("step_0001", BASE, [candidate("shouting")])
    assert verdict.decision == "reject" and len(verdict.evidence.broken) >= 3
    assert verdict.standings[0].label == "shouting" and verdict.standings[0].difference < -0.2


async def test_with_the_gate_off_every_candidate_is_carried_on_and_the_best_kept():
    gate = await gate_for(Scripted(by_rule(0.9, bad=-0.8)), use_gate=False)
    verdict = await gate.judge("step_0001", BASE, [candidate("bad")])
    assert (verdict.action, gate.best.hash) == ("force_accept", BASE.hash)
    assert verdict.winner.hash == candidate("bad").skill.hash


async def test_finalists_are_the_best_and_its_predecessors():
    gate = await gate_for(Scripted(by_rule(0.1, one=0.4, two=0.4)))
    first = (await gate.judge("step_0001", BASE, [candidate("one")])).winner
    second = (await gate.judge("step_0002", first, [candidate("two", incumbent=first)])).winner
    assert [skill.hash for skill in gate.finalists(3)] == [second.hash, first.hash]


@settings(max_examples=15, deadline=None)
@given(st.text("abc", min_size=1, max_size=8), st.integers(0, 5))
async def test_the_order_in_which_rollouts_finish_decides_nothing(shuffle, salt):
    chance = by_rule(0.4, a=0.15, b=0.1, c=-0.1)
    candidates = [candidate("a"), candidate("b"), candidate("c")]
    verdicts = []
    for order in ("", shuffle):
        gate = await gate_for(Scripted(chance, shuffle=order, salt=salt), count=30)
        verdicts.append(dataclasses.asdict(await gate.judge("step_0001", BASE, candidates)))
    assert verdicts[0] == verdicts[1]
