"""The screening gate on scripted rollouts."""

from collections import Counter
from dataclasses import replace

import pytest

from skillfit.gate import Candidate, Observation, Origin, Round, ScreeningGate
from skillfit.gate.regression import Contrast, Estimate
from skillfit.rollout.outcome import Failure, Outcome
from skillfit.skill import Edit, Skill, apply_edits
from skillfit.tasks.item import Score
from tests.gate.scripted_measure import BASE, Scripted, by_rule, items, settings_of


def patch(*rules, step=1, incumbent=BASE, sources=()):
    edits = tuple(Edit("append", content=f"- {rule}") for rule in rules)
    return Candidate(apply_edits(incumbent, edits).skill, edits, sources, step)


async def gate_for(measure, count=40, **settings):
    gate = ScreeningGate(measure, items(count), settings_of(**settings))
    await gate.baseline(BASE)
    return gate


def trained(gate, name, measure, training):
    """The training rollouts of a step, as the loop would run them."""
    arms = gate.assign(name, training)
    return [
        Observation(item.id, arm, measure._outcome(arm.skill, item.id, 0, f"train/{name}"))
        for arm, item in zip(arms, training, strict=True)
    ]


async def judge(gate, step, candidate=None, training=(), selection=None):
    """Judge a step as the loop does: edits that wait in the pool are rolled out before its own.
    `selection`: rollouts of the step; by default one of each item.
    """
    measured = Round(step, len(gate.items) if selection is None else selection)
    return await gate.begin(f"step_{step:04d}", measured).decide(candidate, training)


async def measured(gate, candidate):
    """Let a step propose a candidate, and measure it in the next one."""
    await judge(gate, candidate.step, candidate)
    return await judge(gate, candidate.step + 1)


async def steps(gate, count, first=1, proposals=None):
    """Judge several steps; `proposals` are the candidates by step."""
    for step in range(first, first + count):
        verdict = await judge(gate, step, (proposals or {}).get(step))
    return verdict


def by_id(verdict):
    return {effect.id: effect for effect in verdict.effects}


async def test_helpful_edits_are_promoted_and_harmful_ones_dropped():
    gate = await gate_for(Scripted(by_rule(0.4, good=0.4, bad=-0.35)))
    verdict = await steps(gate, 4, proposals={1: patch("good", "neutral", "bad")})
    found = by_id(verdict)
    assert found["s0001e01"].status == "promoted" and found["s0001e01"].low > 0
    assert found["s0001e03"].status == "dropped" and found["s0001e03"].high < 0
    assert found["s0001e01"].reason.startswith("effect +0.")
    assert "- good" in gate.incumbent.body and "- bad" not in gate.incumbent.body
    assert gate.best.hash == gate.incumbent.hash == verdict.winner.hash


async def test_the_report_of_a_patch_knows_the_text_of_pending_edits():
    gate = await gate_for(Scripted(by_rule(0.4)))
    await judge(gate, 1, patch("brief"))
    assert [edit.status for edit in gate.pool.edits.values()] == ["pending"]
    edits = [
        Edit("replace", "- brief", "- short"),
        Edit("replace", "- brief", "- two lines"),
        Edit("replace", "- never written", "- x"),
    ]
    found = gate.candidate(apply_edits(gate.incumbent, edits), [()] * 3, 2)
    assert [result.applied for result in found.report] == [True, True, False]
    await judge(gate, 2, found)
    dropped = [edit.status == "dropped" for edit in gate.pool.edits.values() if edit.step == 2]
    assert dropped == [False, False, True]


async def test_the_verdict_lists_promoted_edits_and_their_evidence():
    gate = await gate_for(Scripted(by_rule(0.1, good=0.8)))
    verdict = await measured(gate, patch("good"))
    assert (verdict.decision, verdict.action) == ("accept", "accept_new_best")
    assert [one.id for one in verdict.effects if one.status == "promoted"] == ["s0001e01"]
    assert "- good" in verdict.winner.body
    assert verdict.reason == "promoted s0001e01"
    assert verdict.evidence.rollouts == 40 and verdict.evidence.coverage == 1.0
    assert verdict.evidence.interval[0] < verdict.evidence.difference < verdict.evidence.interval[1]
    assert verdict.evidence.difference > 0.3 and verdict.evidence.probability > 0.99
    assert verdict.score.estimated and verdict.score.low < verdict.score.mean < verdict.score.high
    assert verdict.incumbent_score < 0.3 < 0.6 < verdict.candidate_score == gate.best_score


async def test_effects_are_points_of_the_mean_score():
    gate = await gate_for(Scripted(by_rule(0.3, good=0.3), salt=1), count=1000)
    verdict = await measured(gate, patch("good"))
    effect = by_id(verdict)["s0001e01"]
    assert effect.low < 0.3 < effect.high and effect.high - effect.low < 0.2
    assert effect.rollouts == 500


async def test_training_rollouts_are_evidence():
    measure = Scripted(by_rule(0.2, good=0.6))
    gate = await gate_for(measure, count=10)
    await measured(gate, patch("good", "other"))
    before = gate.effects()[0]
    training = [item for item in items(90) if item.id >= "i050"]
    verdict = await judge(gate, 3, None, trained(gate, "step_0003", measure, training))
    after = by_id(verdict)["s0001e01"]
    assert after.rollouts > before.rollouts + 15 and after.status == "promoted"


async def test_rollouts_of_an_item_are_not_evidence_for_an_edit_written_from_it_alone():
    """The edit only helps the item that it was written from."""

    def chance(skill, item):
        return 1.0 if item == "i050" and "- memorised" in skill.body else 0.3

    measure = Scripted(chance)
    gate = await gate_for(measure, count=20)
    await measured(gate, patch("memorised", sources=(("i050",),)))
    evidence = gate.effects()[0].rollouts
    arm = gate.pool.apply(["s0001e01"])
    observed = [
        Observation("i050", arm, measure._outcome(arm.skill, "i050", repeat, "train"))
        for repeat in range(50)
    ]
    selected = gate.sampler.rollouts
    verdict = await judge(gate, 3, None, observed)
    effect = by_id(verdict)["s0001e01"]
    assert effect.rollouts <= evidence + gate.sampler.rollouts - selected
    assert effect.probability < 0.9


async def test_failed_rollouts_leave_no_row():
    fails = lambda skill, item, repeat: item < "i010"  # noqa: E731
    gate = await gate_for(Scripted(by_rule(0.2, good=0.6), fails=fails))
    verdict = await measured(gate, patch("good"))
    assert verdict.evidence.coverage == 0.75
    assert verdict.effects[0].rollouts <= 30


async def test_below_the_coverage_floor_nothing_is_decided():
    fails = lambda skill, item, repeat: skill.hash != BASE.hash or item < "i030"  # noqa: E731
    gate = await gate_for(Scripted(by_rule(0.0, good=1.0), fails=fails))
    verdict = await measured(gate, patch("good"))
    assert verdict.decision == verdict.action == "inconclusive" and "scored" in verdict.reason
    assert verdict.winner.hash == BASE.hash and verdict.effects[0].status == "pending"


async def test_an_empty_pool_costs_no_rollouts():
    measure = Scripted(by_rule(0.5))
    gate = await gate_for(measure)
    assert await judge(gate, 1) is None and measure.asked == []
    assert gate.assign("step_0002", items(3))[0].skill.hash == BASE.hash


async def test_a_step_uses_few_distinct_skills():
    measure = Scripted(by_rule(0.5))
    gate = await gate_for(measure, subsets=6)
    await measured(gate, patch(*(f"rule {at}" for at in range(20))))
    assert 1 < len({skill for _, skill, *_ in measure.asked}) <= 6
    arms = gate.assign("step_0003", items(30), repeats=2)
    assert len(arms) == 60 and len({arm.skill.hash for arm in arms}) <= 6


async def test_items_take_turns_when_a_step_has_more_rollouts_than_items():
    measure = Scripted(by_rule(0.5))
    gate = await gate_for(measure, count=10)
    await judge(gate, 1, patch("rule"))
    verdict = await judge(gate, 2, selection=30)
    assert Counter(item for _, _, item, _ in measure.asked) == {item.id: 3 for item in items(10)}
    assert verdict.evidence.rollouts == 30 and len(set(measure.asked)) == len(measure.asked)


@pytest.mark.parametrize("metric", ["soft", "mixed"])
async def test_graded_scores_are_screened_too(metric):
    measure = Scripted(by_rule(0.4, good=0.1, bad=-0.1), graded=True)
    gate = await gate_for(measure, evaluation={"gate_metric": metric})
    verdict = await steps(gate, 4, proposals={1: patch("good", "neutral", "bad")})
    assert by_id(verdict)["s0001e01"].status == "promoted"
    assert by_id(verdict)["s0001e03"].status == "dropped"
    assert 0 < gate.noise() < 0.05


# Must-pass items


async def test_an_edit_that_breaks_a_must_pass_item_is_dropped_and_the_others_stay():
    def chance(skill, item):
        if item == "i003" and "- breaker" in skill.body:
            return 0.0
        if item == "i003":
            return 1.0
        return 0.1 + 0.4 * ("- good" in skill.body) + 0.4 * ("- breaker" in skill.body)

    gate = await gate_for(Scripted(chance), evaluation={"must_pass": ["i003"]})
    await steps(gate, 4, proposals={1: patch("good", "breaker")})
    found = {effect.id: effect for effect in gate.effects()}
    assert found["s0001e01"].status == "promoted"
    assert found["s0001e02"].status == "dropped"
    assert found["s0001e02"].reason == "breaks must-pass item i003"


async def test_one_bad_rollout_of_a_must_pass_item_does_not_drop_the_edit():
    def chance(skill, item):
        return 0.1 + 0.8 * ("- good" in skill.body) if item != "i003" else 0.85

    for salt in range(5):
        gate = await gate_for(Scripted(chance, salt=salt), evaluation={"must_pass": ["i003"]})
        await steps(gate, 3, proposals={1: patch("good")})
        assert gate.effects()[0].status == "promoted"


# Whole documents

OTHER = Skill.from_text("# Another text\n\n- good\n")


async def test_a_better_document_replaces_the_incumbent():
    gate = await gate_for(Scripted(by_rule(0.3, good=0.5)))
    verdict = await judge(gate, 1, Candidate(OTHER))
    assert verdict.decision == "accept" and gate.incumbent.hash == OTHER.hash
    assert verdict.evidence.rollouts == 4 * 40 and verdict.candidate_tally is not None
    assert gate.best_score > 0.6


async def test_a_worse_document_is_rejected_after_one_pass():
    gate = await gate_for(Scripted(by_rule(0.8, good=-0.5)))
    verdict = await judge(gate, 1, Candidate(OTHER))
    assert verdict.decision == "reject" and gate.incumbent.hash == BASE.hash
    assert verdict.evidence.rollouts == 2 * 40


async def test_pending_edits_stay_pending_after_a_new_document():
    gate = await gate_for(Scripted(by_rule(0.1, good=0.3, more=0.5)))
    await judge(gate, 1, Candidate(OTHER))
    verdict = await measured(gate, patch("more", step=2, incumbent=OTHER))
    assert gate.incumbent.body.startswith("# Another text") and "- more" in verdict.winner.body
    assert 0.65 < gate.best_score < 1


async def test_an_adopted_skill_is_measured_unless_it_is_equivalent():
    measure = Scripted(by_rule(0.2, good=0.6))
    gate = await gate_for(measure)
    await gate.record(BASE)
    same = Skill.from_text(BASE.body + "\n<!-- note -->\n")
    assert (await gate.adopt(same, Origin("same", 1), BASE)) == gate.tally(BASE)
    assert len(measure.asked) == 40 and gate.incumbent.hash == same.hash
    await gate.adopt(OTHER, Origin("other", 1))
    assert len(measure.asked) == 80 and gate.incumbent.hash == OTHER.hash
    assert gate.best_score > 0.6


# The end


async def test_the_final_skill_is_composed_and_compared_on_fresh_rollouts():
    measure = Scripted(by_rule(0.2, good=0.4, fair=0.08))
    gate = await gate_for(measure)
    await steps(gate, 4, proposals={1: patch("good"), 2: patch("fair", step=2)})
    pending = [effect for effect in gate.effects() if effect.status == "pending"]
    spent = len(measure.asked)
    finalists = await gate.compose()
    assert BASE.hash not in [skill.hash for skill in finalists]
    assert "- good" in finalists[0].body
    assert len(measure.asked) - spent <= 2 * 40
    assert len(finalists) == (2 if pending and pending[0].mean > 0 else 1)


async def test_the_composed_skill_is_the_first_finalist_and_the_incumbent_the_second():
    measure = Scripted(by_rule(0.3, one=0.4))
    gate = await gate_for(measure)
    await measured(gate, patch("one"))
    pool = gate.pool
    if pool.edits["s0001e01"].status == "pending":
        pool.promote("s0001e01", "test")
    pool.join(patch("two", step=2))
    pool.edits["s0002e01"].estimate = pool.edits["s0001e01"].estimate
    spent = len(measure.asked)
    finalists = await gate.compose()
    assert [("- two" in skill.body) for skill in finalists] == [True, False]
    assert len(measure.asked) == spent  # the final comparison measures them


async def test_without_helpful_edits_there_is_no_finalist():
    gate = await gate_for(Scripted(by_rule(0.5, bad=-0.4)))
    await steps(gate, 2, proposals={1: patch("bad")})
    assert await gate.compose() == []


async def test_where_every_rollout_scores_0_all_additions_are_tried_together():
    gate = await gate_for(Scripted(by_rule(0.0)))
    await steps(gate, 1, proposals={1: patch("one", "two")})
    (finalist,) = await gate.compose()
    assert "- one" in finalist.body and "- two" in finalist.body


# Determinism


async def test_decisions_do_not_depend_on_the_order_in_which_rollouts_finish():
    async def run(shuffle):
        measure = Scripted(by_rule(0.4, good=0.3, bad=-0.2), shuffle=shuffle)
        gate = await gate_for(measure)
        verdicts = [await judge(gate, 1, patch("good", "bad", "neutral"))]
        training = items(80)[40:]
        observed = trained(gate, "step_0002", measure, training)
        verdicts.append(await judge(gate, 2, patch("more", step=2), observed, selection=80))
        verdicts.append(await judge(gate, 3, selection=80))
        return verdicts, [skill.hash for skill in await gate.compose()]

    first = await run("")
    assert first == await run("one") == await run("two")


async def test_assigning_arms_does_not_change_the_gate():
    gate = await gate_for(Scripted(by_rule(0.5)))
    await judge(gate, 1, patch("one", "two", "three"))
    assert gate.assign("step_0002", items(9)) == gate.assign("step_0002", items(9))
    assert gate.assign("step_0002", items(9)) != gate.assign("step_0003", items(9))


async def test_a_skipped_or_failed_training_rollout_is_ignored():
    gate = await gate_for(Scripted(by_rule(0.5)))
    arm = gate.assign("step_0001", items(1))[0]
    lost = Outcome("t1", 0, "failed", failure=Failure("timeout", "scripted"))
    skipped = Outcome("t2", 0, "skipped")
    scored = Outcome("t3", 0, "scored", Score(1.0))
    before = len(gate.posterior.groups)
    observed = [Observation(one.item_id, arm, one) for one in (lost, skipped, scored)]
    await judge(gate, 1, None, observed)
    assert len(gate.posterior.groups) == before + 1


async def test_the_final_skill_has_no_edit_that_breaks_a_must_pass_item():
    def chance(skill, item):
        if item == "i003":
            return 0.0 if "- breaker" in skill.body else 1.0
        return 0.3 + 0.1 * ("- breaker" in skill.body)

    gate = await gate_for(Scripted(chance), evaluation={"must_pass": ["i003"]})
    gate.pool.join(patch("breaker", step=1))
    gate.pool.edits["s0001e01"].estimate = Estimate(Contrast(0.2, 0.1), 0.1, 0, 0.2, 0.9, 0.0, 50)
    assert await gate.compose() == []


async def test_a_skill_can_be_measured_on_items_that_it_has_not_run_on():
    measure = Scripted(by_rule(0.2, good=0.8))
    gate = await gate_for(measure)
    await measured(gate, patch("good"))
    scored = gate.tally(gate.incumbent).scored
    samples = await gate.record(gate.incumbent)
    assert scored < 40 == len(samples.scores)
    assert len(measure.asked) == len(set(measure.asked)) == 40 + 40 - scored


USELESS = [f"Paragraph {number} tells a story that no item needs." for number in range(8)]
BLOATED = Skill.from_text(
    "# Skill\n\n"
    + "\n\n".join([*USELESS[:4], "- vital", *USELESS[4:]])
    + "\n\n<!-- PROTECTED_START -->\nA fenced story.\n<!-- PROTECTED_END -->\n"
)


async def pruned(count=12, *, prune=True):
    """A gate that trained on a bloated skill for some steps, and its last verdict."""
    measure = Scripted(by_rule(0.3, vital=0.4))
    gate = ScreeningGate(measure, items(40), settings_of(optimizer={"prune_initial": prune}))
    await gate.baseline(BLOATED)
    training = items(80)[40:]
    for step in range(1, count + 1):
        observed = trained(gate, f"step_{step:04d}", measure, training)
        verdict = await judge(gate, step, None, observed)
    return gate, verdict


async def test_useless_text_of_the_initial_skill_is_cut_and_needed_text_stays():
    gate, verdict = await pruned()
    finalist, *_ = await gate.compose()
    assert sum(text not in finalist.body for text in USELESS) >= 3
    assert "- vital" in finalist.body and "A fenced story." in finalist.body
    by_text = {effect.edit.target: effect for effect in verdict.effects}
    assert len(by_text) == len(USELESS) + 1  # protected text is not a candidate
    assert by_text["- vital"].status == "dropped" and by_text["- vital"].high < 0
    cut = [effect for effect in verdict.effects if effect.status == "promoted"]
    assert cut and all("score without this text" in effect.reason for effect in cut)


async def test_without_prune_initial_the_initial_skill_stays_unchanged():
    gate, verdict = await pruned(count=2, prune=False)
    assert verdict is None and gate.effects() == () and gate.incumbent.hash == BLOATED.hash


def test_a_subclass_that_overrides_judge_is_refused():
    with pytest.raises(TypeError, match="Mine: override decide_judgement"):

        class Mine(ScreeningGate):
            async def judge(self, name, candidate, training=()):
                return await super().judge(name, candidate, training)


async def measured_by_type(training_kinds):
    """The effects of a rule that helps items with even numbers, which are of one type."""

    def chance(skill, item):
        return 0.2 + 0.7 * ("- even" in skill.body and int(item[1:]) % 2 == 0)

    selection = [replace(item, type=("odd", "even")[at % 2 == 0]) for at, item in _numbered(24)]
    training = [
        replace(item, id=f"t{item.id[1:]}", type=training_kinds[at % 2])
        for at, item in _numbered(24)
    ]
    measure = Scripted(chance)
    gate = ScreeningGate(measure, selection, settings_of())
    await gate.baseline(BASE)
    await judge(gate, 1, patch("even", "nothing"), trained(gate, "step_0001", measure, training))
    for step in range(2, 9):
        observed = trained(gate, f"step_{step:04d}", measure, training)
        verdict = await judge(gate, step, training=observed)
    return verdict.effects


def _numbered(count):
    return enumerate(items(count))


async def test_the_verdict_says_which_types_of_items_an_edit_acts_on():
    even, nothing = await measured_by_type(("even", "odd"))
    assert [(one.kind, one.items, one.of) for one in even.kinds] == [("even", 12, 24)]
    assert even.kinds[0].mean > even.mean > 0 and not nothing.kinds


async def test_types_that_only_selection_items_have_are_not_shown():
    even, _ = await measured_by_type(("other", "odd"))
    assert even.mean > 0 and not even.kinds
