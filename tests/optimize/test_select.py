import pytest

from skillfit.models.protocol import BadReply
from skillfit.optimize.candidate import select_proposals
from skillfit.optimize.context import Context
from skillfit.optimize.optimizer import Patch, Proposal
from skillfit.run.events import EditsSelected
from skillfit.run.records import SelectionDecision, SkillCandidate
from skillfit.skill import Edit
from tests.optimize.scripted_optimizer import SKILL, text_of, world


def patch(*support: int) -> Patch:
    proposals = [
        Proposal(Edit("append", content=f"Rule {n}."), "failure", tuple(map(str, range(count))))
        for n, count in enumerate(support)
    ]
    return Patch(tuple(proposals), "failure")


def contents(selection):
    return [proposal.payload.content for proposal in selection.proposals]


async def test_within_the_budget_nobody_is_asked():
    it = world(lambda request: {})
    selection = await select_proposals(
        it.optimizer, SKILL, patch(1, 2), Context(1, 2), control="fixed"
    )
    assert contents(selection) == ["Rule 0.", "Rule 1."]
    assert not it.model.requests


async def test_over_the_budget_the_optimizer_ranks():
    it = world(lambda request: {"reasoning": "r", "selected_indices": [2, 2, 9, "0", 1, None]})
    selection = await select_proposals(
        it.optimizer,
        SKILL,
        patch(1, 2, 3),
        Context(1, 2, meta_skill="Prefer short rules"),
        control="fixed",
    )
    assert contents(selection) == ["Rule 2.", "Rule 0."]
    assert selection.decision == SelectionDecision(selected_indices=(2, 0), reasoning="r")
    prompt = text_of(it.asked("rank")[0])
    assert "Prefer short rules" in prompt and "Rule 1." in prompt and "3 items" in prompt
    (event,) = [event for event in it.events if isinstance(event, EditsSelected)]
    assert event.edit_budget == 2 and [edit.support for edit in event.edits] == [3, 1]


@pytest.mark.parametrize(
    "reply", [BadReply("no"), "no JSON", {"selected_indices": []}, {"selected_indices": [8, -1]}]
)
async def test_without_a_usable_ranking_support_decides_and_that_is_said(reply):
    it = world(lambda request: reply)
    selection = await select_proposals(
        it.optimizer, SKILL, patch(1, 3, 2, 3), Context(1, 2), control="fixed"
    )
    assert contents(selection) == ["Rule 1.", "Rule 3."]
    assert selection.decision.fallback is True
    assert [said.stage for said in it.discarded] == ["rank"]


async def test_a_budget_of_zero_applies_nothing_and_asks_nobody():
    it = world(lambda request: {})
    assert (
        await select_proposals(it.optimizer, SKILL, patch(1, 1), Context(1, 0), control="fixed")
    ).proposals == ()
    assert not it.model.requests


async def test_control_none_means_no_limit():
    it = world(lambda request: {})
    selection = await select_proposals(
        it.optimizer, SKILL, patch(1, 1, 1), Context(1, 1), control="none"
    )
    assert len(selection.proposals) == 3
    assert selection.edit_budget is None and not it.model.requests


@pytest.mark.parametrize(("said", "budget"), [(1, 1), (99, 3), (-4, 0), ("2", 2)])
async def test_an_autonomous_learning_rate_stays_between_none_and_all(said, budget):
    def script(request):
        if request.stage == "lr_autonomous":
            return {"learning_rate": said, "reasoning": "r", "confidence": 0.9, "risk_notes": None}
        return {"selected_indices": [2, 1, 0]}

    it = world(script)
    selection = await select_proposals(
        it.optimizer,
        SKILL,
        patch(1, 1, 1),
        Context(1, 1, memory="Step 1 was rejected"),
        control="autonomous",
    )
    assert selection.edit_budget == len(selection.proposals) == budget
    assert selection.decision.learning_rate == budget and selection.decision.fallback is False
    assert "Step 1 was rejected" in text_of(it.asked("lr_autonomous")[0])


async def test_no_usable_learning_rate_is_zero_and_said():
    it = world(lambda request: {"learning_rate": "a lot"})
    selection = await select_proposals(
        it.optimizer, SKILL, patch(1, 1), Context(1, 4), control="autonomous"
    )
    assert selection.proposals == () and selection.decision.fallback is True
    assert it.discarded[0].stage == "lr_autonomous"


async def test_whole_rewrites_are_never_cut():
    it = world(lambda request: {}, skill_update_mode="full_rewrite_minibatch")
    whole = Patch(
        tuple(Proposal(SkillCandidate("t", (), f"# {n}"), "failure") for n in range(3)), "failure"
    )
    assert (
        await select_proposals(it.optimizer, SKILL, whole, Context(1, 1), control="fixed")
    ).proposals == whole.proposals


async def test_proposals_that_do_not_fit_the_window_are_shown_cut():
    it = world(lambda request: {"selected_indices": [0]}, context_window=8_000)
    long = Patch(
        tuple(Proposal(Edit("append", content=f"{n}" * 20_000), "failure") for n in range(3)),
        "failure",
    )
    await select_proposals(it.optimizer, SKILL, long, Context(1, 1), control="fixed")
    assert "characters left out" in text_of(it.model.requests[0])
    assert len(text_of(it.model.requests[0])) / 4 + it.model.requests[0].max_tokens <= 8_000
