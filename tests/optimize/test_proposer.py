import pytest

from skillfit.optimize.context import Context
from skillfit.optimize.optimizer import AnalystReply, EditsReply, Patch, edits_of
from skillfit.optimize.proposer import (
    AnalystProposer,
    ExampleProposer,
    Proposals,
    optimizer_use,
    propose_examples,
    solved_examples,
)
from skillfit.optimize.stages import apply_proposals
from skillfit.skill import MAX_EXAMPLES, Edit, Example, Skill, apply_edits, examples
from skillfit.skill.regions import with_examples
from skillfit.tasks.item import Item
from tests.optimize.scripted_optimizer import (
    SKILL,
    analysis,
    finished,
    item,
    outcome,
    reflect_on,
    scripted,
)

TEXTS = {
    "train": "When does the train to Basel leave the station?",
    "bus": "When does the bus to Bern leave the station?",
    "cake": "How much flour goes into a chocolate cake?",
    "bread": "How much flour and salt goes into a rye bread?",
    "moon": "Which planet has the largest moon?",
}
ITEMS = {name: item(name, text) for name, text in TEXTS.items()}


def names(patch):
    return [edit.label.removeprefix("example ") for edit in edits_of(patch.proposals)]


def test_the_agents_own_verified_answer_is_preferred_to_the_gold_one():
    outcomes = [
        outcome("bus", 1, answer="Reasoning first. 9:15"),
        outcome("cake", 0, answer="wrong"),
    ]
    bus, cake = solved_examples([ITEMS["bus"], ITEMS["cake"]], outcomes)
    assert (bus.output, cake.output) == ("Reasoning first. 9:15", "gold of cake")


def test_items_without_an_answer_or_with_attachments_are_not_examples(tmp_path):
    picture = Item(
        "p", {"input": "What is it?", "answers": ["a"], "images": ["p.png"]}, base=tmp_path
    )
    assert solved_examples([Item("x", {"input": "q"}), picture]) == ()


@pytest.mark.parametrize("split", ["selection", "test"])
def test_other_splits_never_become_examples(split):
    with pytest.raises(ValueError, match=split):
        solved_examples([Item("x", {"input": "q", "answers": ["a"]}, split=split)])


def test_examples_are_chosen_for_the_failures_they_resemble():
    pool = solved_examples([ITEMS["moon"], ITEMS["bread"], ITEMS["bus"]])
    patch = propose_examples(SKILL, [ITEMS["train"], ITEMS["cake"]], pool, edit_budget=2)
    assert names(patch) == ["bus", "bread"]
    assert [proposal.items for proposal in patch.proposals] == [("train",), ("cake",)]
    assert patch.source == "examples"


def test_the_second_example_adds_what_the_first_does_not_cover():
    pool = solved_examples([item("bus2", TEXTS["bus"]), ITEMS["bus"], ITEMS["bread"]])
    assert names(propose_examples(SKILL, [ITEMS["train"], ITEMS["cake"]], pool, edit_budget=2)) == [
        "bus2",
        "bread",
    ]


@pytest.mark.parametrize(("budget", "count"), [(0, 0), (1, 1), (None, 2)])
def test_the_edit_budget_bounds_the_examples(budget, count):
    pool = solved_examples([ITEMS["bus"], ITEMS["bread"]])
    assert (
        len(
            propose_examples(
                SKILL, [ITEMS["train"], ITEMS["cake"]], pool, edit_budget=budget
            ).proposals
        )
        == count
    )


def test_without_failures_no_example_is_proposed():
    assert (
        propose_examples(SKILL, [], solved_examples([ITEMS["bus"]]), edit_budget=4).proposals == ()
    )


def test_applying_changes_only_the_examples_section():
    patch = propose_examples(
        SKILL, [ITEMS["train"]], solved_examples([ITEMS["bus"]]), edit_budget=1
    )
    done = apply_proposals(SKILL, patch.proposals)
    assert [row.status for row in done.report] == ["applied_example"]
    assert examples(done.skill) == (Example(TEXTS["bus"], "gold of bus", "bus"),)
    assert done.skill.body.startswith(SKILL.body.rstrip())
    assert not apply_proposals(done.skill, patch.proposals).changed


def test_each_example_is_a_separate_edit():
    patch = propose_examples(
        SKILL,
        [ITEMS["train"], ITEMS["cake"]],
        solved_examples([ITEMS["bus"], ITEMS["bread"]]),
        edit_budget=2,
    )
    alone = apply_proposals(SKILL, patch.proposals[1:])
    assert [example.item_id for example in examples(alone.skill)] == ["bread"]


def test_examples_and_text_edits_are_applied_in_order():
    example = (
        propose_examples(SKILL, [ITEMS["train"]], solved_examples([ITEMS["bus"]]), edit_budget=1)
        .proposals[0]
        .edit
    )
    applied = apply_edits(
        SKILL, [Edit("append", content="One."), example, Edit("insert_after", "One.", "Two.")]
    )
    assert [result.status for result in applied.results] == [
        "applied_append",
        "applied_example",
        "applied_insert_after",
    ]


def test_at_the_token_ceiling_an_example_replaces_a_less_helpful_one():
    skill = with_examples(SKILL, solved_examples([ITEMS["moon"]]))
    patch = propose_examples(
        skill,
        [ITEMS["train"]],
        solved_examples([ITEMS["bus"]]),
        edit_budget=2,
        max_tokens=skill.tokens + 10,
    )
    (edit,) = edits_of(patch.proposals)
    assert edit.target == "moon"
    assert [example.item_id for example in examples(apply_edits(skill, [edit]).skill)] == ["bus"]


def test_an_example_that_does_not_fit_is_not_proposed():
    assert not propose_examples(
        SKILL,
        [ITEMS["train"]],
        solved_examples([ITEMS["bus"]]),
        edit_budget=2,
        max_tokens=SKILL.tokens + 5,
    ).proposals


def test_a_full_examples_section_swaps_examples():
    held = solved_examples(
        [item(f"m{n}", f"Which planet has moon number {n}?") for n in range(MAX_EXAMPLES)]
    )
    skill = with_examples(SKILL, held)
    patch = propose_examples(
        skill, [ITEMS["train"]], solved_examples([ITEMS["bus"]]), edit_budget=1
    )
    assert patch.proposals[0].payload.target.startswith("m")
    assert len(examples(apply_proposals(skill, patch.proposals).skill)) == MAX_EXAMPLES


def test_a_replacement_without_its_target_is_skipped():
    edit = Edit("example", "gone", '{"item_id": "bus", "input": "q", "output": "a"}')
    assert apply_edits(SKILL, [edit]).results[0].status == "skipped_example_target_not_found"


def test_long_items_are_truncated_in_examples():
    (example,) = solved_examples([item("long", "word " * 5_000)])
    assert len(example.input) <= 2_000 and "characters left out" in example.input


async def test_an_example_from_a_model_is_skipped():
    made_up = {"op": "Example", "content": '{"item_id": "x", "input": "q", "output": "a"}'}
    it = scripted(lambda request: analysis(made_up, {"op": "append", "content": "- Be brief."}))
    reflection = await reflect_on(
        it.optimizer, SKILL, [item("0")], finished([outcome("0", 0)]), Context(1, 4)
    )
    done = apply_proposals(SKILL, reflection.patches[0].proposals)
    assert [row.status for row in done.report] == ["skipped_unknown_op", "applied_append"]
    assert done.skill.body == SKILL.body.rstrip("\n") + "\n\n- Be brief.\n"


@pytest.mark.parametrize("sent", [[{"op": "frobnicate", "content": "- One."}], [{"content": "x"}]])
def test_an_analysis_without_any_known_operation_is_no_reply(sent):
    with pytest.raises(ValueError, match="No edit has a known op"):
        AnalystReply[EditsReply].model_validate(analysis(*sent))
    assert AnalystReply[EditsReply].model_validate(analysis()).patch.edits == []


def test_items_without_words_have_no_similarity():
    assert (
        propose_examples(
            Skill.from_text(""),
            [item("e", "!!!")],
            solved_examples([item("f", "???")]),
            edit_budget=1,
        ).proposals
        == ()
    )


def test_the_sum_of_two_proposals_has_the_patches_of_both_by_batch():
    first, second, third, extra = (Patch((), reasoning=name) for name in "123x")
    both = Proposals(((first,),), failures=1) + Proposals(((second,), (third,)), (extra,), 2)
    assert both == Proposals(((first, second), (third,)), (extra,), failures=3)


def test_a_proposer_that_does_not_say_may_call_the_optimizer():
    used = [optimizer_use(made) for made in (AnalystProposer, lambda parts: None, ExampleProposer)]
    assert used == ["required", "possible", "never"]
