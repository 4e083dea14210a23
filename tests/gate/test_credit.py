from skillfit.gate import GateSettings, assign_credit, edit_pieces, paragraph_pieces
from skillfit.skill import Edit, Example, Skill, apply_edits, example_edit, examples
from tests.gate.scripted import BASE, Scripted, by_rule, candidate, items

SETTINGS = GateSettings()


async def credit(measure, final, pieces, **options):
    options = {"rollout_budget": 2000, **options}
    return await assign_credit(measure, items(40), final, pieces, SETTINGS, **options)


async def test_each_edit_gets_its_measured_worth_with_an_interval():
    final = candidate("strong", "useless")
    result = await credit(
        Scripted(by_rule(0.2, strong=0.6)), final.skill, edit_pieces(final.edits), prune=False
    )
    strong, useless = result.worths
    assert strong.worth > 0.3 and strong.interval[0] > 0 and strong.reason == "earns its place"
    assert abs(useless.worth) < 0.3 and useless.interval[0] < 0 < useless.interval[1]
    assert result.skill.hash == final.skill.hash


async def test_an_edit_that_does_harm_is_pruned_and_the_tokens_are_counted():
    final = candidate("strong", "harmful rule with many words in it")
    chance = by_rule(0.3, strong=0.6, **{"harmful rule with many words in it": -0.3})
    result = await credit(Scripted(chance), final.skill, edit_pieces(final.edits))
    assert "harmful" not in result.skill.body and "- strong" in result.skill.body
    assert result.tokens_after < result.tokens_before == final.skill.tokens
    assert [worth.kept for worth in result.worths] == [True, False]


async def test_an_edit_that_earns_its_place_is_never_pruned():
    final = candidate("strong")
    result = await credit(Scripted(by_rule(0.0, strong=1.0)), final.skill, edit_pieces(final.edits))
    assert result.skill.hash == final.skill.hash and result.worths[0].kept


def belt_or_braces(skill, item):
    return float("- belt" in skill.body or "- braces" in skill.body)


async def test_of_two_pieces_that_do_the_same_only_one_goes():
    final = candidate("belt", "braces")
    result = await credit(Scripted(belt_or_braces), final.skill, edit_pieces(final.edits))
    assert ("- belt" in result.skill.body) != ("- braces" in result.skill.body)
    [kept] = [worth for worth in result.worths if worth.kept]
    assert kept.reason == "not missed at first, but the skill without it did not hold up"


async def test_pruning_that_does_not_hold_up_leaves_the_skill_as_it_was_when_there_is_no_room_to_try_less():
    final = candidate("belt", "braces")
    result = await credit(
        Scripted(belt_or_braces), final.skill, edit_pieces(final.edits), rollout_budget=5 * 40
    )
    assert result.rollouts == 5 * 40 and result.skill.hash == final.skill.hash
    assert all(worth.kept for worth in result.worths)


async def test_a_worked_example_is_left_out_by_itself_and_goes_when_it_does_harm():
    edits = [
        example_edit(Example(f"question {name}", f"answer {name}", name))
        for name in ("good", "bad")
    ]
    final = apply_edits(BASE, edits).skill
    chance = lambda skill, item: (
        0.3 + 0.5 * ("answer good" in skill.body) - 0.3 * ("answer bad" in skill.body)
    )  # noqa: E731
    result = await credit(Scripted(chance), final, edit_pieces(edits))
    assert [worth.kept for worth in result.worths] == [True, False]
    assert [example.item_id for example in examples(result.skill)] == ["good"]


async def test_nothing_is_pruned_that_a_must_pass_item_needs():
    final = candidate("rare", "strong")
    chance = lambda skill, item: float(
        "- strong" in skill.body and (item != "i007" or "- rare" in skill.body)
    )  # noqa: E731
    pieces, others = edit_pieces(final.edits), [item.id for item in items(40)[8:]]
    for must, rare in (((), False), (("i007",), True)):
        settings = GateSettings(must_pass=must)
        found = [item for item in items(200) if item.id in others or item.id > "i007"] + [
            items(8)[7]
        ]
        result = await assign_credit(
            Scripted(chance),
            found,
            final.skill,
            pieces,
            settings,
            discordant=others,
            rollout_budget=4000,
        )
        assert ("- rare" in result.skill.body) == rare


async def test_leaving_out_is_measured_on_the_discordant_items_only():
    measure = Scripted(by_rule(0.2, strong=0.6))
    final = candidate("strong")
    result = await credit(
        measure, final.skill, edit_pieces(final.edits), discordant=["i003", "i009"], prune=False
    )
    assert {item for _, _, item, _ in measure.asked} == {"i003", "i009"}
    assert abs(result.worths[0].worth) <= 2 / 40


async def test_credit_keeps_to_its_rollout_budget_and_says_what_was_left_out():
    measure = Scripted(by_rule(0.5))
    final = candidate(*"abcdefgh")
    result = await credit(measure, final.skill, edit_pieces(final.edits), rollout_budget=240)
    assert result.rollouts == len(measure.asked) <= 240
    assert any("budget" in worth.reason for worth in result.worths)
    nothing = await credit(
        Scripted(by_rule(0.5)), final.skill, edit_pieces(final.edits), rollout_budget=0
    )
    assert nothing.rollouts == 0 and nothing.skill.hash == final.skill.hash


def test_edits_are_taken_out_by_their_inverse():
    skill = Skill.from_text("# Skill\n\nFirst rule.\n\nSecond rule.\n")
    edits = [
        Edit("replace", "First rule.", "Better rule."),
        Edit("append", content="Third rule."),
        Edit("delete", "Second rule."),
    ]
    final = apply_edits(skill, edits).skill
    undo_replace, undo_append = [piece.removal for piece in edit_pieces(edits)]
    assert "First rule." in apply_edits(final, [undo_replace]).skill.body
    assert "Third rule." not in apply_edits(final, [undo_append]).skill.body


async def test_old_text_that_does_nothing_can_go_but_protected_text_stays():
    body = "# Skill\n\nUse the table.\n\nIdle words.\n\n<!-- APPENDIX_START -->\nkeep me\n<!-- APPENDIX_END -->\n"
    skill = Skill.from_text(body)
    chance = lambda skill, item: (
        1.0 - 0.7 * ("Use the table" not in skill.body) - 0.4 * ("Idle" in skill.body)
    )  # noqa: E731
    result = await credit(Scripted(chance), skill, paragraph_pieces(skill))
    assert (
        "Idle" not in result.skill.body
        and "Use the table." in result.skill.body
        and "keep me" in result.skill.body
    )


async def test_an_edit_that_later_edits_overwrote_is_said_to_be_inseparable():
    result = await credit(
        Scripted(by_rule(0.5)), BASE, edit_pieces([Edit("append", content="gone since")])
    )
    assert result.worths[0].worth is None and "taken out" in result.worths[0].reason
