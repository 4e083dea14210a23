import asyncio

import pytest

from skillfit.models.protocol import AuthFailed, BadReply, NetworkFailed
from skillfit.optimize.candidate import merge_patches
from skillfit.optimize.optimizer import Patch, Proposal, edits_of
from skillfit.run.records import SkillCandidate, Suggestion
from skillfit.skill import Edit
from tests.optimize.scripted_optimizer import SKILL, append, text_of, world


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
    it = world(keep_all)
    assert (await merge_patches(it.optimizer, SKILL, [patch("a")], step=1)).proposals == patch(
        "a"
    ).proposals
    assert not it.model.requests


async def test_nothing_proposed_gives_an_empty_patch():
    it = world(keep_all)
    assert (
        await merge_patches(it.optimizer, SKILL, [Patch((), "failure")], step=1)
    ).proposals == ()


async def test_failures_and_successes_merge_apart_and_then_meet():
    it = world(keep_all)
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


async def test_merging_goes_up_level_by_level_in_batches():
    it = world(keep_all, merge_batch_size=2)
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

    it = world(script)
    merged = await merge_patches(
        it.optimizer, SKILL, [patch("a", items="xyz"), patch("b", items="zw")], step=1
    )
    assert merged.support_counts == [4, 2, 0]
    assert merged.proposals[0].items == ("x", "y", "z", "w")
    assert merged.proposals[0].edit.support_count == 4


async def test_an_edit_without_sources_is_traced_to_its_equal():
    it = world(lambda request: {"edits": [append("rule  A."), append("Rule b.")]})
    merged = await merge_patches(
        it.optimizer, SKILL, [patch("a", items="xyz"), patch("b", items="zw")], step=1
    )
    assert merged.support_counts == [3, 2]


@pytest.mark.parametrize(
    "reply",
    [BadReply("no"), "not JSON at all", {"edits": []}, {"edits": None}, {"edits": ["text"]}],
)
async def test_a_merge_that_cannot_be_used_becomes_a_union_without_duplicates_and_says_so(reply):
    it = world(lambda request: reply)
    merged = await merge_patches(
        it.optimizer,
        SKILL,
        [patch("a", items="x"), patch("b", items="y"), patch("a", items="z")],
        step=1,
    )
    assert [edit.content for edit in edits_of(merged.proposals)] == ["Rule a.", "Rule b."]
    assert merged.support_counts == [2, 1]
    (said,) = it.discarded
    assert said.stage == "merge" and "union" in said.evidence


@pytest.mark.parametrize("error", [NetworkFailed("gone"), AuthFailed("no key")])
async def test_an_optimizer_that_cannot_be_reached_is_not_papered_over(error):
    it = world(lambda request: error)
    with pytest.raises(type(error)):
        await merge_patches(it.optimizer, SKILL, [patch("a"), patch("b")], step=1)


async def test_what_does_not_fit_one_prompt_is_merged_in_smaller_batches():
    it = world(keep_all, context_window=16_000)
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


async def test_patches_too_big_to_meet_at_all_become_a_union():
    it = world(keep_all, context_window=8_000)
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


async def test_sides_too_big_to_meet_become_a_union():
    it = world(keep_all, context_window=8_000)
    long = [
        Patch((Proposal(Edit("append", content="x " * 10_000), source, ("i",)),), source, ("i",))
        for source in ("failure", "success")
    ]
    assert len((await merge_patches(it.optimizer, SKILL, long, step=1)).proposals) == 1
    assert not it.model.requests and it.discarded[0].what == "final level 0"


async def test_both_sides_are_merged_at_the_same_time():
    both = asyncio.Barrier(2)

    async def meet(request):
        if "final" not in request.purpose:
            await both.wait()
        return '{"edits": [{"op": "append", "content": "x"}]}'

    it = world(keep_all)
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

    it = world(script, skill_update_mode=mode)
    patches = [Patch((Proposal(payload, "failure", (n,)),), "failure", (n,)) for n in "ab"]
    merged = await merge_patches(it.optimizer, SKILL, patches, step=1)
    assert merged.proposals[0].payload.title == "merged"
    assert merged.support_counts == [2]
    assert merged.record().proposals[0].support == 2
