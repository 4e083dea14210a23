import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillfit.errors import InfrastructureError
from skillfit.models.protocol import (
    AnswerPending,
    AuthFailed,
    BadReply,
    BadRequest,
    ContextTooLong,
    NetworkFailed,
    QuotaExhausted,
    Refused,
)
from skillfit.optimize.context import Context, ItemAttempts
from skillfit.optimize.optimizer import edits_of
from skillfit.optimize.proposer import diagnose, worth_diagnosing
from skillfit.run.events import ReflectionFinished
from skillfit.tasks.item import TrajectoryStep
from tests.optimize.scripted_optimizer import (
    SKILL,
    analysis,
    append,
    broken,
    finished,
    item,
    outcome,
    reflect_on,
    scripted,
    text_of,
)


def groups_of(events):
    return {event.group: event.items for event in events if isinstance(event, ReflectionFinished)}


async def test_failures_and_successes_are_grouped_separately_in_planned_order():
    it = scripted(lambda request: analysis(append("A rule.")), minibatch_size=2)
    items = [item(str(n)) for n in range(7)]
    scores = [0, 1, 0.5, 1, 0, 1, 1]
    reflection = await reflect_on(
        it.optimizer,
        SKILL,
        items,
        finished([outcome(str(n), s) for n, s in enumerate(scores)]),
        Context(1, 4),
    )
    assert groups_of(it.events) == {
        "minibatch_fail_000": ["0", "2"],
        "minibatch_fail_001": ["4"],
        "minibatch_succ_000": ["1", "3"],
        "minibatch_succ_001": ["5", "6"],
    }
    assert (len(reflection.patches), reflection.discarded) == (4, 0)
    assert {request.stage for request in it.model.requests} == {
        "reflect.failure",
        "reflect.success",
    }
    assert [proposal.support for patch in reflection.patches for proposal in patch.proposals] == [
        2,
        2,
        2,
        1,
    ]


@given(
    st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_grouping_does_not_depend_on_the_order_in_which_rollouts_finish(scores, shuffle):
    async def run(order: random.Random) -> dict:
        it = scripted(lambda request: analysis(append("A rule.")), minibatch_size=3)
        items = [item(str(n)) for n in range(len(scores))]
        gates = [asyncio.Event() for _ in items]

        async def roll(n: int):
            await gates[n].wait()
            return broken(str(n)) if scores[n] is None else outcome(str(n), scores[n])

        tasks = [asyncio.create_task(roll(n)) for n in range(len(items))]
        work = asyncio.create_task(reflect_on(it.optimizer, SKILL, items, tasks, Context(1, 4)))
        for n in order.sample(range(len(items)), len(items)):
            gates[n].set()
            await asyncio.sleep(0)
        reflection = await work
        return groups_of(it.events), [patch.items for patch in reflection.patches]

    assert asyncio.run(run(shuffle)) == asyncio.run(run(random.Random(0)))


async def test_a_group_starts_while_the_rest_of_the_batch_still_runs():
    asked = asyncio.Event()

    def script(request):
        asked.set()
        return analysis(append("A rule."))

    it = scripted(script, minibatch_size=2)
    late = asyncio.get_running_loop().create_future()

    async def slow():
        return await late

    tasks = [*finished([outcome("0", 0), outcome("1", 0)]), asyncio.create_task(slow())]
    work = asyncio.create_task(
        reflect_on(it.optimizer, SKILL, [item("0"), item("1"), item("2")], tasks, Context(1, 4))
    )
    await asyncio.wait_for(asked.wait(), 5)
    late.set_result(outcome("2", 0))
    assert len((await work).patches) == 2


async def test_failed_rollouts_are_left_out():
    it = scripted(lambda request: analysis(append("A rule.")))
    reflection = await reflect_on(
        it.optimizer,
        SKILL,
        [item("0"), item("1")],
        finished([broken("0"), outcome("1", 0)]),
        Context(1, 4),
    )
    assert groups_of(it.events) == {"minibatch_fail_000": ["1"]}
    assert reflection.patches[0].items == ("1",)


async def test_failure_only_leaves_successes_out():
    it = scripted(lambda request: analysis(append("A rule.")), failure_only=True)
    await reflect_on(
        it.optimizer,
        SKILL,
        [item("0"), item("1")],
        finished([outcome("0", 1), outcome("1", 0)]),
        Context(1, 4),
    )
    assert [request.stage for request in it.model.requests] == ["reflect.failure"]


async def test_repeats_of_an_item_form_one_contrast_group():
    it = scripted(lambda request: analysis(append("A rule.")))
    items = [item("0"), item("1")]
    rollouts = [
        outcome("0", 0, answer="first"),
        outcome("1", 1),
        outcome("0", 1, answer="second", repeat=1),
        outcome("1", 1, repeat=1),
    ]
    reflection = await reflect_on(it.optimizer, SKILL, items, finished(rollouts), Context(1, 4))
    assert [patch.source for patch in reflection.patches] == ["contrast", "success"]
    contrast = text_of(it.asked("reflect.failure")[0])
    assert "both failed and successful attempts" in contrast
    assert contrast.index("first") < contrast.index("second")
    assert "both failed and successful attempts" not in text_of(it.asked("reflect.success")[0])


async def test_the_prompt_contains_skill_scheduled_budget_memory_and_meta_skill():
    it = scripted(lambda request: analysis())
    context = Context(3, 2, memory="Step 2 was rejected", meta_skill="Short rules work best")
    await reflect_on(it.optimizer, SKILL, [item("0")], finished([outcome("0", 0)]), context)
    (request,) = it.model.requests
    for part in (
        SKILL.body.strip(),
        "at most 2",
        "Step 2 was rejected",
        "Short rules work best",
        "What is 0?",
    ):
        assert part in text_of(request)
    assert request.messages[0].role == "system"
    assert text_of(request).count("Answer with the sum.") == 1
    assert request.max_tokens == 16_384
    assert "3" in request.purpose and "minibatch_fail_000" in request.purpose


async def test_without_a_limit_the_prompt_states_no_edit_budget():
    it = scripted(lambda request: analysis(*(append(f"Rule {n}.") for n in range(9))))
    reflection = await reflect_on(
        it.optimizer, SKILL, [item("0")], finished([outcome("0", 0)]), Context(1, None)
    )
    assert "Edit budget" not in text_of(it.model.requests[0])
    assert len(reflection.patches[0].proposals) == 9


async def test_a_group_proposes_no_more_than_the_edit_budget():
    it = scripted(lambda request: analysis(*(append(f"Rule {n}.") for n in range(5))))
    reflection = await reflect_on(
        it.optimizer, SKILL, [item("0")], finished([outcome("0", 0)]), Context(1, 3)
    )
    assert [edit.content for edit in edits_of(reflection.patches[0].proposals)] == [
        "Rule 0.",
        "Rule 1.",
        "Rule 2.",
    ]


@pytest.mark.parametrize("error", [BadReply("no"), Refused("no"), NetworkFailed("gone")])
async def test_a_failed_analyst_is_reported_and_the_others_continue(error):
    it = scripted(
        lambda request: error if "fail_000" in request.purpose else analysis(append("A rule.")),
        minibatch_size=1,
    )
    reflection = await reflect_on(
        it.optimizer,
        SKILL,
        [item("0"), item("1")],
        finished([outcome("0", 0), outcome("1", 0)]),
        Context(1, 4),
    )
    assert (reflection.discarded, len(reflection.patches)) == (1, 1)
    (lost,) = it.discarded
    assert (lost.what, lost.stage) == ("minibatch_fail_000", "reflect.failure")
    assert lost.reason.startswith(error.kind)


@pytest.mark.parametrize(
    "error",
    [
        AuthFailed("no key"),
        QuotaExhausted("empty"),
        BadRequest("no such model"),
        AnswerPending("waiting"),
    ],
)
async def test_fatal_errors_stop_the_stage(error):
    it = scripted(lambda request: error)
    with pytest.raises(type(error)):
        await reflect_on(
            it.optimizer, SKILL, [item("0")], finished([outcome("0", 0)]), Context(1, 4)
        )


async def test_an_unreachable_optimizer_is_not_reported_as_no_proposals():
    it = scripted(lambda request: NetworkFailed("connection refused"), minibatch_size=1)
    with pytest.raises(InfrastructureError, match="connection refused"):
        await reflect_on(
            it.optimizer,
            SKILL,
            [item("0"), item("1")],
            finished([outcome("0", 0), outcome("1", 0)]),
            Context(1, 4),
        )


async def test_unusable_replies_of_all_analysts_are_counted():
    it = scripted(lambda request: "I would rather not use JSON")
    reflection = await reflect_on(
        it.optimizer, SKILL, [item("0")], finished([outcome("0", 0)]), Context(1, 4)
    )
    assert reflection.discarded == 1 and not reflection.patches


async def test_a_prompt_that_is_too_long_is_retried_at_half_the_size():
    def script(request):
        return (
            ContextTooLong("too long")
            if len(it.model.requests) == 1
            else analysis(append("A rule."))
        )

    it = scripted(script, context_window=60_000)
    long = outcome("0", 0, steps=[TrajectoryStep("message", "word " * 100_000)])
    reflection = await reflect_on(it.optimizer, SKILL, [item("0")], finished([long]), Context(1, 4))
    first, second = (len(text_of(request)) for request in it.model.requests)
    assert second < 0.7 * first
    assert len(reflection.patches) == 1 and not it.discarded


async def test_calls_in_flight_finish_before_a_rollout_error_is_raised():
    it = scripted(lambda request: analysis(append("A rule.")), minibatch_size=1)

    async def fail():
        raise AuthFailed("no key")

    tasks = [*finished([outcome("0", 0)]), asyncio.create_task(fail())]
    with pytest.raises(AuthFailed):
        await reflect_on(it.optimizer, SKILL, [item("0"), item("1")], tasks, Context(1, 4))
    assert list(groups_of(it.events)) == ["minibatch_fail_000"]


async def test_small_models_get_smaller_replies_and_prompts_that_fit():
    it = scripted(lambda request: analysis(append("A rule.")), context_window=8_192)
    long = [
        outcome(str(n), 0, steps=[TrajectoryStep("message", "word " * 50_000)]) for n in range(8)
    ]
    await reflect_on(
        it.optimizer, SKILL, [item(str(n)) for n in range(8)], finished(long), Context(1, 4)
    )
    (request,) = it.model.requests
    assert request.max_tokens == 4_096
    assert len(text_of(request)) / 4 + request.max_tokens <= 8_192


async def test_skill_aware_reflection_records_lapses_as_notes():
    reply = analysis(append("A rule."), appendix_notes=["Check the sum.", None, " "])
    it = scripted(lambda request: reply, use_skill_aware_reflection=True)
    reflection = await reflect_on(
        it.optimizer,
        SKILL,
        [item("0"), item("1")],
        finished([outcome("0", 0), outcome("1", 1)]),
        Context(1, 4),
    )
    assert [patch.appendix_notes for patch in reflection.patches] == [("Check the sum.",)] * 2
    assert "EXECUTION_LAPSE" in text_of(it.asked("reflect.failure")[0])
    assert "appendix_notes" in text_of(it.asked("reflect.success")[0])


async def test_with_notes_from_failures_only_the_success_prompt_is_unchanged():
    prompts = []
    for wanted in (
        {"use_skill_aware_reflection": True, "skill_aware_appendix_source": "failure_only"},
        {"use_skill_aware_reflection": False},
    ):
        it = scripted(lambda request: analysis(appendix_notes=["nobody asked"]), **wanted)
        reflection = await reflect_on(
            it.optimizer, SKILL, [item("0")], finished([outcome("0", 1)]), Context(1, 4)
        )
        assert reflection.patches[0].appendix_notes == ()
        prompts.append(it.model.requests[0].fingerprint())
    assert prompts[0] == prompts[1]


async def test_without_skill_awareness_notes_are_neither_requested_nor_kept():
    it = scripted(lambda request: analysis(append("A rule."), appendix_notes=["Check the sum."]))
    reflection = await reflect_on(
        it.optimizer, SKILL, [item("0")], finished([outcome("0", 0)]), Context(1, 4)
    )
    assert "EXECUTION_LAPSE" not in text_of(it.model.requests[0])
    assert reflection.patches[0].appendix_notes == ()


async def test_analysts_may_name_only_items_they_were_shown():
    summary = [
        {"failure_type": "slip", "items": ["0", "99"], "description": "d", "count": "many"},
        {"failure_type": "other", "count": 9},
    ]
    it = scripted(lambda request: {**analysis(append("A rule.")), "failure_summary": summary})
    reflection = await reflect_on(
        it.optimizer,
        SKILL,
        [item("0"), item("1")],
        finished([outcome("0", 0), outcome("1", 0)]),
        Context(1, 4),
    )
    slip, other = reflection.patches[0].failure_summary
    assert (slip.items, slip.count) == (("0",), 1)
    assert (other.items, other.count) == ((), 2)


@pytest.mark.parametrize(
    ("mode", "field", "entry", "tokens"),
    [
        (
            "rewrite_from_suggestions",
            "revise_suggestions",
            {"type": "add_rule", "title": "t", "instruction": "Say it."},
            16_384,
        ),
        (
            "full_rewrite_minibatch",
            "skill_candidates",
            {"title": "t", "change_summary": "one", "new_skill": "# New"},
            64_000,
        ),
    ],
)
async def test_the_rewrite_modes_have_their_own_payload(mode, field, entry, tokens):
    it = scripted(
        lambda request: {"patch": {"reasoning": "r", field: [entry, None, {}]}},
        skill_update_mode=mode,
        context_window=400_000,
    )
    reflection = await reflect_on(
        it.optimizer, SKILL, [item("0")], finished([outcome("0", 0)]), Context(1, 4)
    )
    (proposal,) = reflection.patches[0].proposals
    assert field in text_of(it.model.requests[0])
    assert it.model.requests[0].max_tokens == tokens
    record = reflection.patches[0].record().proposals[0]
    recorded = record.suggestion or record.candidate
    assert recorded == proposal.payload and recorded.title == "t"


async def test_proposals_outside_the_patch_are_found():
    it = scripted(lambda request: {"reasoning": "r", "edits": [append("A rule.")]})
    reflection = await reflect_on(
        it.optimizer, SKILL, [item("0")], finished([outcome("0", 0)]), Context(1, 4)
    )
    assert [edit.content for edit in edits_of(reflection.patches[0].proposals)] == ["A rule."]


async def test_concurrent_calls_are_limited_to_the_number_of_workers():
    running, most = 0, 0

    async def slow(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return '{"patch": {"edits": []}}'

    it = scripted(lambda request: analysis(), minibatch_size=1, workers=3)
    it.model._script = slow
    items = [item(str(n)) for n in range(9)]
    await reflect_on(
        it.optimizer, SKILL, items, finished([outcome(str(n), 0) for n in range(9)]), Context(1, 4)
    )
    assert most == 3


def case(name: str, hard: float, feedback: str = "") -> ItemAttempts:
    return ItemAttempts(
        item(name), (outcome(name, hard, feedback=feedback, answer=f"usual {name}"),)
    )


CASES = [
    case("a", 0, "format: x"),
    case("b", 0, "format: y"),
    case("c", 1),
    case("d", 0, "value: z"),
    case("e", 0, "format: w"),
]


def test_one_failure_of_each_kind_is_chosen_before_a_second_one():
    assert [chosen.item.id for chosen in worth_diagnosing(CASES, 3)] == ["a", "d", "b"]
    assert worth_diagnosing([CASES[2]], 3) == ()


async def test_failures_are_rolled_out_again_with_the_question_and_shown():
    asked = []

    def script(request):
        if request.stage == "diagnose":
            return {"reasoning": "r", "instruction": "Name the rule you follow."}
        return analysis(append("A rule."))

    async def reroll(instruction, items):
        asked.append((instruction, [each.id for each in items]))
        return [broken("a"), outcome("d", 0, answer="I follow rule 3")]

    it = scripted(script)
    patches = await diagnose(it.optimizer, SKILL, CASES, reroll, Context(5, 4), limit=2)
    assert asked == [("Name the rule you follow.", ["a", "d"])]
    assert [(patch.source, patch.items) for patch in patches] == [("diagnosis", ("d",))]
    prompt = text_of(it.asked("reflect.diagnosis")[0])
    for part in (
        "usual d",
        "I follow rule 3",
        "With the diagnostic question",
        "Name the rule you follow.",
    ):
        assert part in prompt
    assert [event.source for event in it.events if isinstance(event, ReflectionFinished)] == [
        "diagnosis"
    ]


@pytest.mark.parametrize("reply", [BadReply("no"), {"instruction": ""}, {"instruction": None}])
async def test_without_an_instruction_nothing_is_rolled_out_again(reply):
    async def reroll(instruction, items):
        raise AssertionError("there is nothing to ask")

    it = scripted(lambda request: reply)
    assert await diagnose(it.optimizer, SKILL, CASES, reroll, Context(5, 4), limit=2) == ()
    assert it.discarded[0].stage == "diagnose"
