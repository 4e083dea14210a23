"""Aggregate, select and update a step; slow update, meta skill and notes between the steps."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.models.protocol import AuthFailed, BadReply, NetworkFailed, Refused
from skillfit.optimize.context import Context
from skillfit.optimize.optimizer import Patch, Proposal, edits_of
from skillfit.optimize.stages import (
    Pair,
    apply_proposals,
    collect_notes,
    consolidate_notes,
    edit_budget,
    keep_pairs,
    merge_patches,
    pair_up,
    rewrite_skill,
    select_proposals,
    top_up,
    write_advice,
    write_lesson,
)
from skillfit.run.events import EditsSelected
from skillfit.run.records import SelectionDecision, SkillCandidate, Suggestion
from skillfit.skill import Edit, Skill, estimate_tokens, slow_update_text, with_slow_update
from skillfit.tasks.item import TrajectoryStep
from tests.optimize.scripted_optimizer import (
    SKILL,
    append,
    broken,
    item,
    outcome,
    scripted,
    text_of,
)


def patch(name: str, source="failure", items=("i1",)) -> Patch:
    return Patch(
        (Proposal(Edit("append", content=f"Rule {name}."), source, tuple(items)),),
        source,
        tuple(items),
        f"reason {name}",
    )


def keep_all(request):
    numbers = [
        line.split("]")[0][1:]
        for line in text_of(request).splitlines()
        if line[:1] == "[" and line[1:2].isdigit()
    ]
    return {
        "reasoning": "merged",
        "edits": [append(f"Merged {request.purpose} {n}.", sources=[n]) for n in numbers],
    }


async def test_one_patch_passes_through_without_a_call():
    it = scripted(keep_all)
    assert (await merge_patches(it.optimizer, SKILL, [patch("a")], step=1)).proposals == patch(
        "a"
    ).proposals
    assert not it.model.requests


async def test_nothing_proposed_gives_an_empty_patch():
    it = scripted(keep_all)
    assert (
        await merge_patches(it.optimizer, SKILL, [Patch((), "failure")], step=1)
    ).proposals == ()


async def test_failures_and_successes_are_merged_separately_and_then_together():
    it = scripted(keep_all)
    patches = [patch("a"), patch("b", "contrast"), patch("c", "success"), patch("d", "success")]
    merged = await merge_patches(it.optimizer, SKILL, patches, step=2, meta_skill="Keep it short")
    assert [request.purpose for request in it.asked("merge")] == [
        "step 2 failure level 0 batch 0",
        "step 2 success level 0 batch 0",
        "step 2 final level 0 batch 0",
    ]
    assert len(merged.proposals) == 4
    assert "failures come first" in text_of(it.model.requests[-1])
    assert all("Keep it short" in text_of(request) for request in it.model.requests)


async def test_merging_proceeds_by_level_in_batches():
    it = scripted(keep_all, merge_batch_size=2)
    merged = await merge_patches(it.optimizer, SKILL, [patch(str(n)) for n in range(5)], step=1)
    assert [request.purpose.removeprefix("step 1 failure ") for request in it.model.requests] == [
        "level 0 batch 0",
        "level 0 batch 1",
        "level 1 batch 0",
        "level 2 batch 0",
    ]
    assert merged.merge_level == 3
    assert len(merged.proposals) == 5


async def test_support_is_counted_from_the_distinct_items_behind_an_edit():
    def script(request):
        claimed = append("Both.", sources=[0, 1, 1, 77], support_count=400)
        return {"edits": [claimed, append("Second.", sources=["1"]), append("From nowhere.")]}

    it = scripted(script)
    merged = await merge_patches(
        it.optimizer, SKILL, [patch("a", items="xyz"), patch("b", items="zw")], step=1
    )
    assert merged.support_counts == [4, 2, 0]
    assert merged.proposals[0].items == ("x", "y", "z", "w")
    assert merged.proposals[0].edit.support_count == 4


async def test_an_edit_without_sources_gets_those_of_an_equal_edit():
    it = scripted(lambda request: {"edits": [append("rule  A."), append("Rule b.")]})
    merged = await merge_patches(
        it.optimizer, SKILL, [patch("a", items="xyz"), patch("b", items="zw")], step=1
    )
    assert merged.support_counts == [3, 2]


@pytest.mark.parametrize(
    "reply",
    [BadReply("no"), "not JSON at all", {"edits": []}, {"edits": None}, {"edits": ["text"]}],
)
async def test_an_unusable_merge_becomes_a_union_without_duplicates_and_is_reported(reply):
    it = scripted(lambda request: reply)
    merged = await merge_patches(
        it.optimizer,
        SKILL,
        [patch("a", items="x"), patch("b", items="y"), patch("a", items="z")],
        step=1,
    )
    assert [edit.content for edit in edits_of(merged.proposals)] == ["Rule a.", "Rule b."]
    assert merged.support_counts == [2, 1]
    (reported,) = it.discarded
    assert reported.stage == "merge" and "union" in reported.evidence


@pytest.mark.parametrize("error", [NetworkFailed("gone"), AuthFailed("no key")])
async def test_an_unreachable_optimizer_stops_the_merge(error):
    it = scripted(lambda request: error)
    with pytest.raises(type(error)):
        await merge_patches(it.optimizer, SKILL, [patch("a"), patch("b")], step=1)


async def test_patches_too_long_for_one_prompt_are_merged_in_smaller_batches():
    it = scripted(keep_all, context_window=16_000)
    long = [
        Patch(
            (Proposal(Edit("append", content=f"{n} " * 4_000), "failure", (str(n),)),),
            "failure",
            (str(n),),
        )
        for n in range(4)
    ]
    await merge_patches(it.optimizer, SKILL, long, step=1)
    assert len(it.asked("merge")) == 3
    assert all(
        len(text_of(request)) / 4 + request.max_tokens <= 16_000 for request in it.model.requests
    )


async def test_patches_too_big_for_any_prompt_become_a_union():
    it = scripted(keep_all, context_window=8_000)
    long = [
        Patch(
            (Proposal(Edit("append", content=f"{n} " * 10_000), "failure", (str(n),)),),
            "failure",
            (str(n),),
        )
        for n in range(2)
    ]
    merged = await merge_patches(it.optimizer, SKILL, long, step=1)
    assert len(merged.proposals) == 2
    assert "context window" in it.discarded[0].reason


async def test_failures_and_successes_too_big_to_merge_become_a_union():
    it = scripted(keep_all, context_window=8_000)
    long = [
        Patch((Proposal(Edit("append", content="x " * 10_000), source, ("i",)),), source, ("i",))
        for source in ("failure", "success")
    ]
    assert len((await merge_patches(it.optimizer, SKILL, long, step=1)).proposals) == 1
    assert not it.model.requests and it.discarded[0].what == "final level 0"


async def test_failures_and_successes_are_merged_concurrently():
    both = asyncio.Barrier(2)

    async def meet(request):
        if "final" not in request.purpose:
            await both.wait()
        return '{"edits": [{"op": "append", "content": "x"}]}'

    it = scripted(keep_all)
    it.model._script = meet
    patches = [patch("a"), patch("b"), patch("c", "success"), patch("d", "success")]
    merged = await asyncio.wait_for(merge_patches(it.optimizer, SKILL, patches, step=1), 5)
    assert [proposal.payload.content for proposal in merged.proposals] == ["x"]
    assert len(it.model.requests) == 3


@pytest.mark.parametrize(
    ("mode", "field", "payload"),
    [
        (
            "rewrite_from_suggestions",
            "revise_suggestions",
            Suggestion("clarify", "t", "m", "Say it.", "high"),
        ),
        ("full_rewrite_minibatch", "skill_candidates", SkillCandidate("t", ("one",), "# New")),
    ],
)
async def test_the_rewrite_modes_merge_their_own_payload(mode, field, payload):
    def script(request):
        entry = {
            "title": "merged",
            "instruction": "Do.",
            "new_skill": "# Merged",
            "sources": [0, 1],
        }
        return {"reasoning": "r", field: [entry]}

    it = scripted(script, skill_update_mode=mode)
    patches = [Patch((Proposal(payload, "failure", (n,)),), "failure", (n,)) for n in "ab"]
    merged = await merge_patches(it.optimizer, SKILL, patches, step=1)
    assert merged.proposals[0].payload.title == "merged"
    assert merged.support_counts == [2]
    assert merged.record().proposals[0].support == 2


@pytest.mark.parametrize(
    ("scheduler", "maximum", "minimum", "budgets"),
    [
        ("constant", 4, 2, [4, 4, 4, 4]),
        ("linear", 4, 2, [4, 3, 2, 2]),
        ("cosine", 4, 2, [4, 3, 2, 2]),
        ("linear", 4, 2, [4, 4, 3, 3, 3, 2, 2, 2]),
        ("cosine", 4, 2, [4, 4, 3, 3, 3, 2, 2, 2]),
        ("cosine", 4, 2, [4, 4, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2]),
        ("linear", 8, 2, [7, 6, 5, 4, 3, 2]),
        ("cosine", 16, 2, [15, 14, 12, 9, 6, 4, 3, 2]),
        ("linear", 4, 2, [4]),
        ("cosine", 4, 2, [4]),
        ("autonomous", 4, 2, [None, None]),
    ],
)
def test_schedules_give_the_published_tables(scheduler, maximum, minimum, budgets):
    steps = range(1, len(budgets) + 1)
    assert [
        edit_budget(scheduler, step, len(budgets), maximum=maximum, minimum=minimum)
        for step in steps
    ] == budgets


def test_steps_after_the_plan_stay_at_the_minimum():
    assert edit_budget("cosine", 20, 8, maximum=4, minimum=2) == 2


def test_a_learning_rate_of_zero_stays_zero():
    assert edit_budget("constant", 1, 4, maximum=0, minimum=0) == 0


def patch_with(*support: int) -> Patch:
    proposals = [
        Proposal(Edit("append", content=f"Rule {n}."), "failure", tuple(map(str, range(count))))
        for n, count in enumerate(support)
    ]
    return Patch(tuple(proposals), "failure")


def contents(selection):
    return [proposal.payload.content for proposal in selection.proposals]


async def test_within_the_edit_budget_no_ranking_is_requested():
    it = scripted(lambda request: {})
    selection = await select_proposals(
        it.optimizer, SKILL, patch_with(1, 2), Context(1, 2), control="fixed"
    )
    assert contents(selection) == ["Rule 0.", "Rule 1."]
    assert not it.model.requests


async def test_over_the_budget_the_optimizer_ranks():
    it = scripted(lambda request: {"reasoning": "r", "selected_indices": [2, 2, 9, "0", 1, None]})
    selection = await select_proposals(
        it.optimizer,
        SKILL,
        patch_with(1, 2, 3),
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
async def test_without_a_usable_ranking_support_decides_and_it_is_reported(reply):
    it = scripted(lambda request: reply)
    selection = await select_proposals(
        it.optimizer, SKILL, patch_with(1, 3, 2, 3), Context(1, 2), control="fixed"
    )
    assert contents(selection) == ["Rule 1.", "Rule 3."]
    assert selection.decision.fallback is True
    assert [reported.stage for reported in it.discarded] == ["rank"]


async def test_an_edit_budget_of_zero_applies_nothing_and_sends_nothing():
    it = scripted(lambda request: {})
    assert (
        await select_proposals(
            it.optimizer, SKILL, patch_with(1, 1), Context(1, 0), control="fixed"
        )
    ).proposals == ()
    assert not it.model.requests


async def test_control_none_means_no_limit():
    it = scripted(lambda request: {})
    selection = await select_proposals(
        it.optimizer, SKILL, patch_with(1, 1, 1), Context(1, 1), control="none"
    )
    assert len(selection.proposals) == 3
    assert selection.edit_budget is None and not it.model.requests


@pytest.mark.parametrize(
    ("reported", "budget"),
    [(1, 1), (99, 3), (-4, 0), ("2", 2), (2.0, 2), ("about 2", 2), ("2 edits", 2)],
)
async def test_an_autonomous_learning_rate_is_limited_to_the_number_of_proposals(reported, budget):
    def script(request):
        if request.stage == "lr_autonomous":
            return {
                "learning_rate": reported,
                "reasoning": "r",
                "confidence": 0.9,
                "risk_notes": None,
            }
        return {"selected_indices": [2, 1, 0]}

    it = scripted(script)
    selection = await select_proposals(
        it.optimizer,
        SKILL,
        patch_with(1, 1, 1),
        Context(1, 1, memory="Step 1 was rejected"),
        control="autonomous",
    )
    assert selection.edit_budget == len(selection.proposals) == budget
    assert selection.decision.learning_rate == budget and selection.decision.fallback is False
    assert "Step 1 was rejected" in text_of(it.asked("lr_autonomous")[0])


@pytest.mark.parametrize("reported", ["a lot", True, None])
async def test_an_unusable_learning_rate_is_zero_and_reported(reported):
    it = scripted(lambda request: {"learning_rate": reported})
    selection = await select_proposals(
        it.optimizer, SKILL, patch_with(1, 1), Context(1, 4), control="autonomous"
    )
    assert selection.proposals == () and selection.decision.fallback is True
    assert it.discarded[0].stage == "lr_autonomous"


async def test_full_rewrites_are_never_truncated():
    it = scripted(lambda request: {}, skill_update_mode="full_rewrite_minibatch")
    whole = Patch(
        tuple(Proposal(SkillCandidate("t", (), f"# {n}"), "failure") for n in range(3)), "failure"
    )
    assert (
        await select_proposals(it.optimizer, SKILL, whole, Context(1, 1), control="fixed")
    ).proposals == whole.proposals


async def test_proposals_that_exceed_the_window_are_truncated():
    it = scripted(lambda request: {"selected_indices": [0]}, context_window=8_000)
    long = Patch(
        tuple(Proposal(Edit("append", content=f"{n}" * 20_000), "failure") for n in range(3)),
        "failure",
    )
    await select_proposals(it.optimizer, SKILL, long, Context(1, 1), control="fixed")
    assert "characters left out" in text_of(it.model.requests[0])
    assert len(text_of(it.model.requests[0])) / 4 + it.model.requests[0].max_tokens <= 8_000


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


def test_a_candidate_equal_to_the_incumbent_is_not_a_change():
    done = apply_proposals(SKILL, edits(Edit("delete", "not there")))
    assert not done.changed and done.skill == SKILL


def test_edits_that_would_exceed_the_token_ceiling_are_skipped():
    made = edits(Edit("append", content="x" * 400))
    done = apply_proposals(SKILL, made, max_tokens=SKILL.tokens + 5)
    assert done.report[0].status == "skipped_over_token_ceiling" and not done.changed


def test_part_of_a_patch_can_be_applied():
    made = edits(Edit("append", content="One."), Edit("append", content="Two."))
    assert "One." not in apply_proposals(SKILL, made[1:]).skill.body


async def test_a_rewrite_follows_the_suggestions_and_keeps_protected_regions():
    skill = with_slow_update(SKILL, "Remember the carry.")
    it = scripted(
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


async def test_frontmatter_in_a_rewrite_is_not_added_to_the_body():
    skill = Skill.from_text("---\nname: adding\n---\n# Adding\n")
    it = scripted(
        lambda request: {"new_skill": "---\nname: other\n---\n# Better\n"},
        skill_update_mode="rewrite_from_suggestions",
    )
    done = await rewrite_skill(it.optimizer, skill, [SUGGESTION], Context(1))
    assert done.skill.text == "---\nname: adding\n---\n# Better\n"


@pytest.mark.parametrize(
    "reply", [BadReply("no"), "no JSON", {"new_skill": " "}, {"new_skill": "x" * 4_000}]
)
async def test_an_unusable_rewrite_gives_no_candidate_and_is_reported(reply):
    it = scripted(
        lambda request: reply, skill_update_mode="rewrite_from_suggestions", max_skill_tokens=500
    )
    done = await rewrite_skill(it.optimizer, SKILL, [SUGGESTION], Context(1))
    assert done.skill is None and not done.changed
    assert it.discarded[0].stage == "rewrite"


async def test_an_unreachable_optimizer_stops_the_rewrite():
    it = scripted(
        lambda request: NetworkFailed("gone"), skill_update_mode="rewrite_from_suggestions"
    )
    with pytest.raises(NetworkFailed):
        await rewrite_skill(it.optimizer, SKILL, [SUGGESTION], Context(1))


async def test_an_identical_rewrite_is_not_a_change():
    it = scripted(
        lambda request: {"new_skill": SKILL.body}, skill_update_mode="rewrite_from_suggestions"
    )
    assert not (await rewrite_skill(it.optimizer, SKILL, [SUGGESTION], Context(1))).changed


async def test_full_rewrites_use_the_first_usable_candidate():
    skill = with_slow_update(SKILL, "Remember the carry.")
    candidates = [
        Proposal(SkillCandidate(name, ("new",), text), "failure")
        for name, text in (("a", " "), ("b", "# B"), ("c", "# C"))
    ]
    it = scripted(lambda request: {}, skill_update_mode="full_rewrite_minibatch")
    done = await rewrite_skill(it.optimizer, skill, candidates, Context(1))
    assert (
        done.skill.body.startswith("# B") and slow_update_text(done.skill) == "Remember the carry."
    )
    assert done.rewrite.title == "b" and not it.model.requests


async def test_full_rewrites_without_a_usable_candidate_give_none():
    it = scripted(lambda request: {}, skill_update_mode="full_rewrite_minibatch")
    assert (await rewrite_skill(it.optimizer, SKILL, [], Context(1))).skill is None


BEFORE = Skill.from_text("# Adding\n\nThe old words.\n")


def pair(name: str, previous: float, current: float) -> Pair:
    return Pair(
        item(name),
        outcome(name, previous, answer=f"old {name}"),
        outcome(name, current, answer=f"new {name}"),
    )


PAIRS = (pair("up", 0, 1), pair("down", 1, 0.5), pair("stuck", 0, 0), pair("fine", 1, 1))


def test_pairs_are_classified_by_what_changed():
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
def test_each_pair_policy_keeps_its_kinds_of_pairs(policy, kept):
    assert [p.item.id for p in keep_pairs(PAIRS, policy)] == kept


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 8))
async def test_topping_up_rolls_out_items_in_planned_order_until_enough_changed(changed, target):
    order = [item(str(n)) for n in range(len(changed))]
    rounds = []

    async def compare(items):
        rounds.append([each.id for each in items])
        return [pair(each.id, 0, 1 if changed[int(each.id)] else 0) for each in items]

    pairs = await top_up((), order, target, compare)
    tried = [name for names in rounds for name in names]
    assert tried == [each.id for each in order[: len(tried)]] == [p.item.id for p in pairs]
    found = len(keep_pairs(pairs, "changed"))
    assert found <= target
    assert found == target or len(tried) == len(order)


async def test_a_full_sample_needs_no_topping_up():
    async def compare(items):
        raise AssertionError("nothing is missing")

    assert await top_up(PAIRS, [item("more")], 2, compare) == PAIRS


async def test_the_slow_update_prompt_states_the_number_of_compared_items():
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


async def test_the_prompt_uses_the_singular_for_one_item():
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
async def test_an_unusable_reply_gives_no_content(reply):
    it = scripted(lambda request: reply)
    assert (await write_lesson(it.optimizer, BEFORE, SKILL, PAIRS, epoch=2, step=8)).text == ""
    assert (
        await write_advice(it.optimizer, BEFORE, SKILL, PAIRS, advice="", epoch=2, step=8)
    ).text == ""
    assert [reported.stage for reported in it.discarded] == (
        [] if isinstance(reply, dict) else ["slow_update", "meta_skill"]
    )


async def test_without_pairs_no_request_is_sent():
    it = scripted(lambda request: AuthFailed("no"))
    assert (await write_lesson(it.optimizer, BEFORE, SKILL, (), epoch=2, step=8)).text == ""
    assert (
        await write_advice(it.optimizer, BEFORE, SKILL, (), advice="", epoch=2, step=8)
    ).text == ""


async def test_a_rejected_key_stops_the_slow_update():
    it = scripted(lambda request: AuthFailed("no"))
    with pytest.raises(AuthFailed):
        await write_lesson(it.optimizer, BEFORE, SKILL, PAIRS, epoch=2, step=8)


NOTES = ("Check the sum twice.", "Check sums two times.", "Write the unit.")


def test_notes_are_in_planned_order_without_duplicates():
    patches = [
        Patch((), "failure", appendix_notes=("b", "a")),
        Patch((), "success", appendix_notes=("a", "c")),
    ]
    assert collect_notes(patches) == ("b", "a", "c")


async def test_up_to_the_threshold_notes_are_not_condensed():
    for threshold in (0, 3):
        it = scripted(lambda request: {"notes": ["x"]}, skill_aware_consolidate_threshold=threshold)
        assert await consolidate_notes(it.optimizer, NOTES, step=1) is None
        assert not it.model.requests


async def test_above_the_threshold_notes_are_condensed():
    it = scripted(
        lambda request: {"notes": ["Check the\nsum twice.", "", "Write the unit."]},
        skill_aware_consolidate_threshold=2,
    )
    assert await consolidate_notes(it.optimizer, NOTES, step=1) == (
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
async def test_condensed_notes_that_do_not_shrink_are_discarded_and_reported(reply):
    it = scripted(lambda request: reply, skill_aware_consolidate_threshold=2)
    assert await consolidate_notes(it.optimizer, NOTES, step=1) is None
    assert it.discarded[0].stage == "appendix_consolidate"
