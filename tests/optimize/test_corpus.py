import asyncio
from dataclasses import replace

import pytest

from skillfit.errors import InfrastructureError
from skillfit.models.protocol import BadReply, ContextTooLong, NotReached
from skillfit.optimize.context import Context, ItemAttempts
from skillfit.optimize.corpus import MOST_EDITS, CorpusProposer
from skillfit.optimize.material import Material, kinds_table, statistics
from skillfit.optimize.optimizer import edits_of, render
from skillfit.optimize.proposer import ProposerParts
from skillfit.rollout.outcome import Arm, RolloutRequest, StepRollouts
from skillfit.run.events import ReflectionFinished
from skillfit.run.records import EditEffect, KindEffect
from skillfit.skill import Edit, Skill, apply_edits
from skillfit.tasks.item import TrajectoryStep
from tests.optimize.scripted_optimizer import (
    broken,
    finished,
    item,
    outcome,
    scripted,
    text_of,
)

SKILL = Skill.from_text("# House style\n\nWrite the value in the house style.\n")


def typed(name, text, kind):
    return replace(item(name, text), type=kind)


DATES = [typed(f"date{n}", f"Value: {n + 1} May 2021", "dates") for n in range(4)]
MONEY = [typed(f"money{n}", f"Value: {n + 7}0 euros", "money") for n in range(4)]


def effect(name, edit, status="pending", mean=None, rollouts=0):
    return EditEffect(
        name, 1, edit, status, mean, (mean or 0) - 0.1, (mean or 0) + 0.1, 0.9, rollouts
    )


def case(task, *scores, arms=(), **more):
    return ItemAttempts(task, tuple(outcome(task.id, score, **more) for score in scores), arms=arms)


def edit(content, **more):
    return {"op": "append", "target": "", "content": content, **more}


def reply(*edits, failures=()):
    return {"reasoning": "because", "failures": list(failures), "edits": list(edits)}


async def propose(optimizer, cases, context=None, skill=SKILL):
    proposer = CorpusProposer(
        ProposerParts(
            optimizer.optimizer,
            [],
            optimizer.optimizer.settings,
            optimizer.events.append,
            paid=None,
        )
    )
    requests = [
        RolloutRequest(one.arms[at] if one.arms else Arm(skill), one.item, at)
        for one in cases
        for at in range(len(one.outcomes))
    ]
    running = finished([found for one in cases for found in one.outcomes])
    rollouts = StepRollouts((tuple(requests),), (tuple(running),))
    return await proposer.propose(skill, rollouts, context or Context(1))


def ask(answer, cases, context=None, **settings):
    optimizer = scripted(answer if callable(answer) else lambda _: answer, **settings)
    found = asyncio.run(propose(optimizer, cases, context))
    return optimizer, found


def written(found):
    return [
        (one.op, one.target, one.content)
        for patch in found.patches
        for one in edits_of(patch.proposals)
    ]


def test_one_call_reads_all_rollouts_of_the_run():
    history = (case(DATES[0], 0, answer="1 May"), case(DATES[1], 1))
    context = Context(2, history=history)
    optimizer, found = ask(reply(), [case(MONEY[0], 0), case(MONEY[1], 1)], context)
    [request] = optimizer.model.requests
    text = text_of(request)
    assert "dates | 2 | 2 | 1 | 0 | 0" in text and "money | 2 | 2 | 1 | 2 | 1" in text
    assert "### Item money0" in text and "### Item date0" in text
    assert found.failures == 0 and found.patches[0].proposals == ()


def test_nothing_is_asked_where_the_newest_rollouts_all_succeed():
    context = Context(2, history=(case(DATES[0], 0),))
    optimizer, found = ask(reply(), [case(DATES[1], 1)], context)
    assert not optimizer.model.requests and not found.patches


def test_the_skill_is_shown_with_all_pending_edits_and_their_measured_effects():
    working = Skill.from_text(f"{SKILL.text}\n- Dates are YYYY-MM-DD.\n- Money ends in EUR.\n")
    dates = effect(
        "s0001e01", Edit("append", "", "- Dates are YYYY-MM-DD."), mean=0.12, rollouts=40
    )
    money = effect("s0001e02", Edit("append", "", "- Money ends in EUR."))
    dropped = effect("s0001e03", Edit("append", "", "- Be nice."), "dropped", -0.2, 30)
    context = Context(2, pending=(dates, money), effects=(dates, money, dropped), working=working)
    optimizer, _ = ask(reply(), [case(DATES[0], 0)], context)
    text = text_of(optimizer.model.requests[0])
    shown = "- Dates are YYYY-MM-DD. ⟦s0001e01: +0.12 (+0.02 to +0.22) after 40 rollouts⟧"
    assert shown in text
    assert "- Money ends in EUR. ⟦s0001e02: not measured yet⟧" in text
    assert "[s0001e03] dropped" in text and "-0.20 (-0.30 to -0.10) after 30 rollouts" in text


def test_an_effect_names_the_types_of_items_that_the_edit_acts_on():
    working = Skill.from_text(f"{SKILL.text}\n- Money ends in EUR.\n")
    rule = effect("s0001e01", Edit("append", "", "- Money ends in EUR."), mean=0.08, rollouts=40)
    money = replace(rule, kinds=(KindEffect("money", 18, 60, 0.41, 0.3, 0.5),))
    context = Context(2, pending=(money,), effects=(money,), working=working)
    optimizer, _ = ask(reply(), [case(DATES[0], 0)], context)
    shown = "+0.08 (-0.02 to +0.18) after 40 rollouts; +0.41 on money, 18 of 60 items⟧"
    assert shown in text_of(optimizer.model.requests[0])


def test_the_owners_wishes_are_part_of_the_prompt():
    optimizer, _ = ask(reply(), [case(DATES[0], 0)], Context(1, guidance="Stay polite."))
    assert "<owner_wishes>\nStay polite.\n</owner_wishes>" in text_of(optimizer.model.requests[0])


def test_each_edit_is_one_proposal_supported_by_the_items_it_names():
    edits = [
        edit("- Dates in digits.", items=["date0", "nobody"], purpose="month  names"),
        edit("- Money with a code.", kinds=["Money"]),
    ]
    _, found = ask(reply(*edits), [case(DATES[0], 0), case(MONEY[0], 0), case(MONEY[1], 1)])
    [patch] = found.patches
    assert [proposal.items for proposal in patch.proposals] == [("date0",), ("money0",)]
    assert edits_of(patch.proposals)[0].label == "month names"
    assert not patch.merge and not patch.budgeted


def test_a_list_becomes_single_edits_and_doubled_bullets_become_one():
    edits = [edit("- One.\n- Two."), edit("- - Three."), edit("- one."), edit("- One.")]
    _, found = ask(reply(*edits), [case(DATES[0], 0)])
    assert [content for _, _, content in written(found)] == ["- One.", "- Two.", "- Three."]


def test_an_edit_that_repeats_the_skill_is_discarded():
    optimizer, found = ask(
        reply(edit("- write the value in the house style.")), [case(DATES[0], 0)]
    )
    assert written(found) == []
    assert "already says" in optimizer.discarded[0].reason


def test_more_edits_than_the_ceiling_are_cut_and_reported():
    edits = [edit(f"- Rule {number}.") for number in range(MOST_EDITS + 5)]
    optimizer, found = ask(reply(*edits), [case(DATES[0], 0)])
    assert len(written(found)) == MOST_EDITS
    assert f"the first {MOST_EDITS} are used" in optimizer.discarded[0].reason


def working_context():
    working = Skill.from_text(f"{SKILL.text}\n- Dates in digits.\n- Money with a code.\n")
    effects = (
        effect("s0001e01", Edit("append", "", "- Dates in digits.")),
        effect("s0001e02", Edit("append", "", "- Money with a code.")),
    )
    return Context(2, pending=effects, effects=effects, working=working)


@pytest.mark.parametrize(
    "target",
    [
        "s0001e01",
        "- Dates in digits.",
        "- Dates in digits. ⟦s0001e01: not measured yet⟧",
        "dates  in digits.",
    ],
)
def test_a_line_of_a_pending_edit_can_be_replaced_however_it_is_named(target):
    change = {"op": "replace", "target": target, "content": "- Dates are YYYY-MM-DD."}
    _, found = ask(reply(change), [case(DATES[0], 0)], working_context())
    assert written(found) == [("replace", "- Dates in digits.", "- Dates are YYYY-MM-DD.")]


def test_a_line_that_an_edit_appended_moves_as_an_insertion_of_the_same_text():
    move = {"op": "move", "target": "s0001e02", "content": "Write the value in the house style."}
    _, found = ask(reply(move), [case(DATES[0], 0)], working_context())
    assert written(found) == [
        ("insert_after", "Write the value in the house style.", "- Money with a code.")
    ]


def test_a_line_of_the_initial_skill_moves_as_one_replacement():
    skill = Skill.from_text("# Style\n\n- One.\n- Two.\n- Three.\n")
    move = {"op": "move", "target": "- Three.", "content": "# Style"}
    _, found = ask(reply(move), [case(DATES[0], 0)], Context(1, working=skill))
    assert written(found) == [
        ("replace", "# Style\n\n- One.\n- Two.\n- Three.", "# Style\n- Three.\n\n- One.\n- Two.")
    ]


def test_text_for_a_place_that_does_not_exist_is_appended():
    insert = {"op": "insert_after", "target": "no such line", "content": "- Dates in digits."}
    _, found = ask(reply(insert), [case(DATES[0], 0)])
    assert written(found) == [("append", "", "- Dates in digits.")]


def test_failures_are_counted_from_the_items_that_failed():
    failures = [
        {
            "failure_type": "dates",
            "count": 16,
            "description": "16 of 50",
            "items": ["date0", "date1"],
        }
    ]
    _, found = ask(reply(failures=failures), [case(DATES[0], 0), case(DATES[1], 1)])
    [note] = found.patches[0].failure_summary
    assert (note.count, note.items) == (1, ("date0",))
    assert note.description == "16 of 50 (counted: 1, not 16)"


def test_contrasts_come_first_and_some_successes_are_shown():
    cases = [case(DATES[0], 0), case(DATES[1], 0, 1), case(DATES[2], 1)]
    optimizer, found = ask(reply(edit("- One.")), cases)
    text = text_of(optimizer.model.requests[0])
    places = [text.index(f"### Item date{number}") for number in (1, 0, 2)]
    assert places == sorted(places)
    assert found.patches[0].source == "contrast"


def test_every_failing_kind_is_shown_where_little_fits():
    kinds = [
        [typed(f"k{kind}i{n}", f"Task {kind} {n} " + "x " * 3_000, f"kind{kind}") for n in range(6)]
        for kind in range(5)
    ]
    cases = [case(one, 0, answer="a " * 2_000) for kind in kinds for one in kind]
    optimizer, found = ask(reply(), cases, context_window=24_000, workers=1)
    texts = [text_of(request) for request in optimizer.model.requests]
    assert len(texts) == 2 and len(found.patches) == 2
    assert all(any(f"### Item k{kind}i" in text for text in texts) for kind in range(5))


def test_what_the_attempts_at_one_item_carried_is_counted():
    on, off = Arm(SKILL, ("s0001e01",)), Arm(SKILL)
    material = Material.of((), [case(DATES[0], 1, 0, arms=(on, off))])
    text = statistics(material, frozenset({"s0001e01"}))
    assert "1 of 1 that succeeded and by 0 of 1 that failed" in text


def test_statistics_count_messages_answers_and_tools():
    calls = [TrajectoryStep("tool_call", "look", name="search")] * 2
    cases = [
        case(
            DATES[0], 0, feedback="expected '2021-05-01', got 3", answer="1 May 2021", steps=calls
        ),
        case(DATES[1], 0, feedback="expected '2021-05-02', got 4", answer="- x"),
        case(DATES[2], 1, answer="2021-05-03"),
    ]
    text = statistics(Material.of((), cases))
    assert "2 rollouts of 2 items (2 in the newest round): expected '…', got #" in text
    assert "failed: 2 rollouts, median 6 characters, 1 copied from the task" in text
    assert "1 of 2 calls repeat the call before" in text
    assert "search: 2 calls, used by 0 of 1 that succeeded, used by 1 of 2 that failed" in text


def test_items_without_a_type_are_grouped_by_what_the_grader_said():
    cases = [
        case(item("a"), 0, feedback="not a date: x"),
        case(item("b"), 0, feedback="not a number: y"),
        case(item("c"), 1),
    ]
    table = kinds_table(Material.of((), cases))
    assert "not a date: x | 1" in table and "(never failed) | 1" in table


def test_items_without_a_type_or_telling_messages_are_grouped_by_their_inputs():
    texts = ["The train to Basel leaves when?", "The train to Bern leaves when?", "Bake bread."]
    cases = [case(item(f"i{n}", text), 0) for n, text in enumerate(texts)]
    kinds = Material.of((), cases).kinds
    assert [kind.items for kind in kinds] == [("i0", "i1"), ("i2",)]


WORDS = [f"{first}{last}" for first in "bdfgklmnprst" for last in ("ane", "ork", "ile", "ust")]


def test_items_whose_inputs_have_nothing_in_common_are_one_kind():
    texts = [" ".join(WORDS[n : n + 2]) for n in range(0, len(WORDS), 2)]
    cases = [case(item(f"i{n}", text), 0) for n, text in enumerate(texts)]
    material = Material.of((), cases)
    assert [kind.name for kind in material.kinds] == ["all items"]
    assert kinds_table(material).splitlines()[1:] == ["all items | 24 | 24 | 24 | 24 | 24"]


def test_inputs_that_resemble_none_of_many_groups_are_grouped_as_others():
    alike = [f"{word} {number}" for word in WORDS[:12] for number in range(5)]
    cases = [case(item(f"i{n}", text), 0) for n, text in enumerate([*alike, *WORDS[12:15]])]
    kinds = {kind.name: kind.items for kind in Material.of((), cases).kinds}
    assert len(kinds) == 13 and kinds["(others)"] == ("i60", "i61", "i62")


def test_rollouts_without_a_score_are_left_out():
    cases = [ItemAttempts(DATES[0], (broken("date0"),)), case(DATES[1], 0)]
    optimizer, _ = ask(reply(), cases)
    assert "date0" not in text_of(optimizer.model.requests[0])


@pytest.mark.parametrize("split", ["selection", "test"])
def test_items_of_other_splits_are_refused(split):
    hidden = item("hidden", "hidden text")
    object.__setattr__(hidden, "split", split)
    with pytest.raises(ValueError, match=split):
        ask(reply(), [case(hidden, 0)])


def test_a_prompt_that_is_too_long_is_sent_again_with_fewer_cases():
    answers = iter([ContextTooLong("too long"), reply(edit("- One."))])
    optimizer, found = ask(lambda _: next(answers), [case(DATES[0], 0, answer="a " * 400_000)])
    long, short = (len(text_of(request)) for request in optimizer.model.requests)
    assert short < 0.6 * long and len(written(found)) == 1


def test_a_reply_without_any_known_operation_is_asked_for_again():
    wrong, right = [{"op": "frobnicate", "content": "- One."}], edit("- One.")
    answers = iter([reply(*wrong), reply(*wrong, right)])
    optimizer, found = ask(lambda _: next(answers), [case(DATES[0], 0)])
    complaint = optimizer.model.requests[1].messages[-1].content
    assert "No edit has a known op: 'frobnicate'; available: append, " in complaint
    (patch,) = found.patches
    assert patch.proposals[-1].payload == Edit("append", "", "- One.")


def test_a_reply_that_cannot_be_used_is_a_counted_failure():
    optimizer, found = ask(BadReply("nonsense"), [case(DATES[0], 0)])
    assert found.failures == 1 and not found.patches
    assert optimizer.discarded[0].stage == "reflect.corpus"


def test_an_optimizer_that_cannot_be_reached_stops_the_run():
    with pytest.raises(InfrastructureError, match="could not be asked"):
        ask(NotReached("no route"), [case(DATES[0], 0)])


def test_what_was_proposed_is_emitted():
    optimizer, _ = ask(reply(edit("- One.")), [case(DATES[0], 0)])
    [event] = [one for one in optimizer.events if isinstance(one, ReflectionFinished)]
    assert (event.group, event.items) == ("corpus", ["date0"])


def test_the_prompt_says_why_and_asks_for_single_edits():
    flags = dict.fromkeys(("marks", "other_edits", "guidance", "evidence"), False)
    body = {"parts": ("body",), "other_parts": False, "check": ""}
    text = render("corpus", **flags, **body, most=60)
    assert "two for each cause of failure" in text and "60 edits" in text
    assert '"edits"' in text and '"purpose"' in text
    assert "⟦" not in text and "owner_wishes" not in text
    assert "⟦" in render("corpus", **dict.fromkeys(flags, True), **body, most=60)
    assert '"file"' not in text and "references" not in text


FOLDER = Skill.from_text(
    "---\nname: house\ndescription: House style.\n---\n# House style\n\n- Look at the value.\n",
    files={
        "references/money.md": b"# Money\n\n- Amounts end in EUR.\n",
        "scripts/dates.py": b"print('1 May')\n",
        "assets/notes.txt": b"not a part",
    },
)
ALL_PARTS = ("body", "description", "references", "scripts")


def written_in_files(found):
    edits = edits_of(found.patches[0].proposals)
    return [Edit(one.op, one.target, one.content, file=one.file) for one in edits]


def ask_about_folder(*edits, parts=ALL_PARTS, context=None):
    optimizer = scripted(lambda _: reply(*edits), parts=parts)
    found = asyncio.run(propose(optimizer, [case(DATES[0], 0)], context, skill=FOLDER))
    return optimizer, found


def test_edits_name_the_part_that_they_change():
    optimizer, found = ask_about_folder(
        edit("- Short.", file="SKILL.md"),
        edit("- Dollars end in USD.", file="references/money.md"),
        {"op": "append", "content": "# Dates\n\n- ISO.", "file": "references/dates.md"},
        {"op": "replace", "target": "House style.", "content": "Values.", "file": "description"},
        {"op": "write", "content": "- = 1\nprint(1)\n", "file": "scripts/dates.py"},
        {
            "op": "move",
            "target": "- Look at the value.",
            "content": "See references/look.md.",
            "file": "references/look.md",
        },
    )
    assert written_in_files(found) == [
        Edit("append", "", "- Short."),
        Edit("append", "", "- Dollars end in USD.", file="references/money.md"),
        Edit("append", "", "# Dates\n\n- ISO.", file="references/dates.md"),
        Edit("replace", "House style.", "Values.", file="description"),
        Edit("write", "", "- = 1\nprint(1)", file="scripts/dates.py"),
        Edit("move", "- Look at the value.", "See references/look.md.", file="references/look.md"),
    ]
    text = text_of(optimizer.model.requests[0])
    assert "--- references/money.md\n# Money" in text and "--- scripts/dates.py\nprint" in text
    assert "<description>\nHouse style.\n</description>" in text and "not a part" not in text


def test_edits_in_files_are_marked_there():
    working = apply_edits(
        FOLDER, [Edit("append", "", "- Dollars end in USD.", file="references/money.md")]
    ).skill
    pending = effect(
        "s0001e01", Edit("append", "", "- Dollars end in USD.", file="references/money.md")
    )
    context = Context(2, pending=(pending,), effects=(pending,), working=working)
    optimizer, found = ask_about_folder(
        {"op": "delete", "target": "s0001e01", "file": "references/money.md"}, context=context
    )
    text = text_of(optimizer.model.requests[0])
    assert "- Dollars end in USD. ⟦s0001e01: not measured yet⟧" in text
    assert written_in_files(found) == [
        Edit("delete", "- Dollars end in USD.", file="references/money.md")
    ]


def test_other_parts_are_neither_shown_nor_asked_for_where_the_body_alone_is_trained():
    optimizer, found = ask_about_folder(
        edit("- Short.", file="references/money.md"), parts=("body",)
    )
    text = text_of(optimizer.model.requests[0])
    assert "references/" not in text and "scripts/" not in text
    assert written_in_files(found) == [Edit("append", "", "- Short.")]
