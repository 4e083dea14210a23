import pytest

from skillfit.gate import Arm, GateSettings, StrictGate
from skillfit.gate.base import NotMeasured
from skillfit.gate.samples import Sampler
from tests.gate.scripted_measure import BASE, Scripted, by_rule, candidate, items, settings_of


async def gate_for(measure, count=20, **settings):
    gate = StrictGate(measure, items(count), settings_of(**settings))
    await gate.baseline(BASE)
    return gate


async def test_a_better_mean_is_accepted_and_is_the_new_best():
    gate = await gate_for(Scripted(by_rule(0.0, good=1.0)))
    verdict = await gate.judge("step_0001", candidate("good"))
    assert (verdict.decision, verdict.action) == ("accept", "accept_new_best")
    assert verdict.winner.hash == gate.best.hash == candidate("good").skill.hash
    assert len(verdict.evidence.fixed) == 20 and verdict.evidence.difference == 1.0


async def test_a_tie_is_rejected():
    gate = await gate_for(Scripted(by_rule(1.0)))
    verdict = await gate.judge("step_0001", candidate("neutral"))
    assert (verdict.decision, verdict.winner.hash) == ("reject", BASE.hash)
    assert verdict.candidate_score == verdict.incumbent_score == 1.0


async def test_each_skill_is_measured_once_for_the_whole_run():
    measure = Scripted(by_rule(0.5))
    gate = await gate_for(measure)
    for step in range(3):
        await gate.judge(f"step_{step}", candidate("again"))
    assert len(measure.asked) == 40 == len(set(measure.asked))


async def test_a_byte_identical_candidate_is_not_evaluated():
    measure = Scripted(by_rule(0.5))
    gate = await gate_for(measure)
    verdict = await gate.judge("step_0001", candidate())
    assert (
        verdict.decision == "reject" and verdict.evidence.rollouts == 0 and len(measure.asked) == 20
    )


async def test_with_the_gate_off_a_worse_candidate_becomes_the_incumbent_but_not_the_best():
    gate = await gate_for(Scripted(by_rule(1.0, bad=-1.0)), evaluation={"use_gate": False})
    verdict = await gate.judge("step_0001", candidate("bad"))
    assert (verdict.action, verdict.winner.hash) == ("force_accept", candidate("bad").skill.hash)
    assert gate.best.hash == BASE.hash and verdict.candidate_score == 0.0


async def test_accepting_a_candidate_below_the_best_keeps_the_best():
    gate = await gate_for(
        Scripted(lambda skill, item: 0.0 if "- bad" in skill.body else 1.0),
        evaluation={"use_gate": False},
    )
    await gate.judge("step_0001", candidate("bad"))
    gate.settings = GateSettings()
    verdict = await gate.judge("step_0002", candidate("fine"))
    assert (verdict.decision, verdict.action, gate.best.hash) == ("accept", "accept", BASE.hash)


async def test_failed_rollouts_are_missing_not_zero():
    fails = lambda skill, item, repeat: skill.hash != BASE.hash and item < "i004"  # noqa: E731
    gate = await gate_for(Scripted(by_rule(1.0), fails=fails))
    verdict = await gate.judge("step_0001", candidate("neutral"))
    assert (
        verdict.decision == "reject"
        and verdict.candidate_score == 1.0
        and verdict.evidence.broken == ()
    )


async def test_below_the_coverage_floor_the_decision_is_inconclusive():
    fails = lambda skill, item, repeat: skill.hash != BASE.hash and item < "i012"  # noqa: E731
    gate = await gate_for(Scripted(by_rule(0.0, good=1.0), fails=fails))
    verdict = await gate.judge("step_0001", candidate("good"))
    assert (
        verdict.decision == "inconclusive"
        and verdict.winner.hash == BASE.hash
        and "40%" in verdict.reason
    )


@pytest.mark.parametrize(
    ("metric", "decision"), [("hard", "reject"), ("soft", "accept"), ("mixed", "accept")]
)
async def test_the_gate_decides_by_the_chosen_metric(metric, decision):
    gate = await gate_for(
        Scripted(by_rule(0.3, good=0.5), graded=True), evaluation={"gate_metric": metric}
    )
    assert (await gate.judge("step_0001", candidate("good"))).decision == decision


async def test_a_step_without_a_candidate_changes_nothing():
    measure = Scripted(by_rule(0.5))
    gate = await gate_for(measure)
    verdict = await gate.judge("step_0001", None)
    assert (verdict.decision, verdict.winner.hash, len(measure.asked)) == ("reject", BASE.hash, 20)


async def test_training_rollouts_run_under_the_incumbent():
    gate = await gate_for(Scripted(by_rule(0.0, good=1.0)))
    assert [arm.skill.hash for arm in gate.assign("step_0001", items(3), 2)] == [BASE.hash] * 6
    winner = (await gate.judge("step_0001", candidate("good"))).winner
    assert gate.incumbent.hash == winner.hash
    assert {arm.skill.hash for arm in gate.assign("step_0002", items(3))} == {winner.hash}


async def test_the_finalists_are_the_best_skill_and_then_earlier_incumbents():
    gate = await gate_for(Scripted(by_rule(0.0, good=0.6, better=1.0)))
    first = (await gate.judge("step_0001", candidate("good"))).winner
    second = (await gate.judge("step_0002", candidate("better"))).winner
    assert [skill.hash for skill in await gate.compose()] == [second.hash, first.hash]


async def test_the_tally_of_an_unmeasured_skill_is_an_error():
    gate = await gate_for(Scripted(by_rule(0.5)))
    with pytest.raises(NotMeasured):
        gate.tally(candidate("other").skill)


async def test_the_same_skill_and_item_twice_in_one_request_are_two_rollouts():
    measure = Scripted(by_rule(0.5))
    sampler = Sampler(measure, "selection", GateSettings())
    outcomes = await sampler.roll_out([(Arm(BASE), item) for _ in range(2) for item in items(3)])
    assert [outcome.repeat for outcome in outcomes] == [0, 0, 0, 1, 1, 1]
    assert [outcome.item_id for outcome in outcomes] == ["i000", "i001", "i002"] * 2
