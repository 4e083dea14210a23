import pytest

from skillfit.models.protocol import BadReply, NetworkFailed
from skillfit.optimize.candidate import apply_proposals, rewrite_skill
from skillfit.optimize.context import Context
from skillfit.optimize.optimizer import Proposal
from skillfit.run.records import SkillCandidate, Suggestion
from skillfit.skill import Edit, Skill, slow_update_text, with_slow_update
from tests.optimize.scripted_optimizer import SKILL, text_of, world

SUGGESTION = Proposal(
    Suggestion("clarify", "Sum", "it was vague", "Say what a sum is.", "high"), "failure", ("i1",)
)


def edits(*made: Edit):
    return [Proposal(edit, "failure", ("i1", "i2")) for edit in made]


def test_patch_mode_applies_the_edits_and_reports_each():
    made = edits(
        Edit("append", content="Check it."),
        Edit("replace", "not there", "x"),
        Edit("shout", content="x"),
    )
    done = apply_proposals(SKILL, made)
    assert done.changed and done.skill.body.endswith("Check it.\n")
    assert [row.status for row in done.report] == [
        "applied_append",
        "skipped_replace_target_not_found",
        "skipped_unknown_op",
    ]
    assert done.report[0].edit.support_count == 2


def test_a_candidate_equal_to_the_incumbent_is_no_change():
    done = apply_proposals(SKILL, edits(Edit("delete", "not there")))
    assert not done.changed and done.skill == SKILL


def test_edits_that_would_pass_the_token_ceiling_are_skipped():
    made = edits(Edit("append", content="x" * 400))
    done = apply_proposals(SKILL, made, max_tokens=SKILL.tokens + 5)
    assert done.report[0].status == "skipped_over_token_ceiling" and not done.changed


def test_part_of_a_patch_can_be_applied_alone():
    made = edits(Edit("append", content="One."), Edit("append", content="Two."))
    assert "One." not in apply_proposals(SKILL, made[1:]).skill.body


async def test_a_rewrite_follows_the_suggestions_and_keeps_protected_regions():
    skill = with_slow_update(SKILL, "Remember the carry.")
    it = world(
        lambda request: {
            "reasoning": "r",
            "change_summary": ["clearer"],
            "new_skill": "# Adding\n\nA sum is a total.\n",
        },
        skill_update_mode="rewrite_from_suggestions",
        rewrite_reasoning_effort="high",
        rewrite_max_completion_tokens=50_000,
    )
    done = await rewrite_skill(
        it.optimizer, skill, [SUGGESTION], Context(4, memory="Step 3 was rejected")
    )
    assert done.changed and "A sum is a total." in done.skill.body
    assert slow_update_text(done.skill) == "Remember the carry."
    assert done.change_summary == ("clearer",) and done.rewrite.reasoning == "r"
    (request,) = it.asked("rewrite")
    assert (request.max_tokens, request.reasoning_effort) == (50_000, "high")
    assert "Say what a sum is." in text_of(request) and "Step 3 was rejected" in text_of(request)


async def test_front_matter_in_a_rewrite_does_not_end_up_in_the_body():
    skill = Skill.from_text("---\nname: adding\n---\n# Adding\n")
    it = world(
        lambda request: {"new_skill": "---\nname: other\n---\n# Better\n"},
        skill_update_mode="rewrite_from_suggestions",
    )
    done = await rewrite_skill(it.optimizer, skill, [SUGGESTION], Context(1))
    assert done.skill.text == "---\nname: adding\n---\n# Better\n"


@pytest.mark.parametrize(
    "reply", [BadReply("no"), "no JSON", {"new_skill": " "}, {"new_skill": "x" * 4_000}]
)
async def test_a_rewrite_nobody_can_use_leaves_no_candidate_and_is_said(reply):
    it = world(
        lambda request: reply, skill_update_mode="rewrite_from_suggestions", max_skill_tokens=500
    )
    done = await rewrite_skill(it.optimizer, SKILL, [SUGGESTION], Context(1))
    assert done.skill is None and not done.changed
    assert it.discarded[0].stage == "rewrite"


async def test_an_unreachable_optimizer_stops_the_rewrite():
    it = world(lambda request: NetworkFailed("gone"), skill_update_mode="rewrite_from_suggestions")
    with pytest.raises(NetworkFailed):
        await rewrite_skill(it.optimizer, SKILL, [SUGGESTION], Context(1))


async def test_a_rewrite_that_says_the_same_is_no_change():
    it = world(
        lambda request: {"new_skill": SKILL.body}, skill_update_mode="rewrite_from_suggestions"
    )
    assert not (await rewrite_skill(it.optimizer, SKILL, [SUGGESTION], Context(1))).changed


async def test_full_rewrites_take_the_first_usable_candidate():
    skill = with_slow_update(SKILL, "Remember the carry.")
    candidates = [
        Proposal(SkillCandidate(name, ("new",), text), "failure")
        for name, text in (("a", " "), ("b", "# B"), ("c", "# C"))
    ]
    it = world(lambda request: {}, skill_update_mode="full_rewrite_minibatch")
    done = await rewrite_skill(it.optimizer, skill, candidates, Context(1))
    assert (
        done.skill.body.startswith("# B") and slow_update_text(done.skill) == "Remember the carry."
    )
    assert done.rewrite.title == "b" and not it.model.requests


async def test_full_rewrites_without_a_usable_candidate_leave_none():
    it = world(lambda request: {}, skill_update_mode="full_rewrite_minibatch")
    assert (await rewrite_skill(it.optimizer, SKILL, [], Context(1))).skill is None
