import pytest

from skillfit.models.protocol import BadReply
from skillfit.optimize.context import Context, ItemAttempts
from skillfit.optimize.reflect import diagnose, worth_diagnosing
from skillfit.run.events import ReflectionFinished
from tests.optimize.scripted_optimizer import (
    SKILL,
    analysis,
    append,
    broken,
    item,
    outcome,
    text_of,
    world,
)


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


def test_one_failure_of_each_kind_comes_before_a_second_of_any():
    assert [chosen.item.id for chosen in worth_diagnosing(CASES, 3)] == ["a", "d", "b"]
    assert worth_diagnosing([CASES[2]], 3) == ()


async def test_failures_are_tried_again_with_the_question_and_read():
    asked = []

    def script(request):
        if request.stage == "diagnose":
            return {"reasoning": "r", "instruction": "Name the rule you follow."}
        return analysis(append("A rule."))

    async def reroll(instruction, items):
        asked.append((instruction, [each.id for each in items]))
        return [broken("a"), outcome("d", 0, answer="I follow rule 3")]

    it = world(script)
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
async def test_without_an_instruction_nothing_is_tried_again(reply):
    async def reroll(instruction, items):
        raise AssertionError("there is nothing to ask")

    it = world(lambda request: reply)
    assert await diagnose(it.optimizer, SKILL, CASES, reroll, Context(5, 4), limit=2) == ()
    assert it.discarded[0].stage == "diagnose"
