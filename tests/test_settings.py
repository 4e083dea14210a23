"""What is wrong with a setting, in plain words: every error that the schema can raise."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from skillfit.config import describe_keys, load_config
from skillfit.config.schema import Config
from skillfit.errors import InputError
from skillfit.settings import setting_problems
from skillfit.tasks.graders import BUILT_IN, build_grader

_BIG = 10**30
_VALUES: list[Any] = [
    *(None, True, 0, -1, 3, 2.5, _BIG, float(_BIG), "", "x", "3", "nan", "\ud800"),
    *([], [3], ["x"], [[1]], {}, {"x": 1}, {"x": {"y": "z"}}, {"x": {"y": True}}, {1: 2}),
]
# Words of pydantic that no message may have.
_LIBRARY_WORDS = ("Input", "input", "permitted", "tuple", "dictionary", "valid integer", "unable")
_LIBRARY_WORDS += ("valid string", "valid boolean", "valid number", "Field required", "Value error")


def _config_with(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    role = key.split(".")[1] if key.count(".") == 2 and key.startswith("model.") else ""
    if role and not key.endswith(".id"):
        value["model"][role]["id"] = "openai/x"
    return dict(value)


def _config_refusals() -> Iterator[InputError]:
    """A value of every kind at every key of the config."""
    for key in [*Config.model_fields, *(described.key for described in describe_keys())]:
        for value in _VALUES:
            try:
                load_config(_config_with(key, value), warn=lambda _: None)
            except InputError as error:
                yield error


def _grader_refusals() -> Iterator[InputError]:
    """A value of every kind at every setting of every built-in grader."""
    for name, kind in BUILT_IN.items():
        for setting in (*kind.model_fields, "unknown"):
            for value in _VALUES:
                for given in ({setting: value}, value):
                    try:
                        build_grader({name: given})
                    except InputError as error:
                        yield error


@pytest.mark.parametrize("refusals", [_config_refusals, _grader_refusals])
def test_no_message_contains_pydantic_wording(refusals: Any) -> None:
    kinds: set[str] = set()
    for refusal in refusals():
        cause = refusal.__cause__
        kinds |= {error["type"] for error in cause.errors()} if _of_pydantic(cause) else set()
        assert not [word for word in _LIBRARY_WORDS if word in refusal.message], refusal.message
    assert len(kinds) >= 18  # all kinds of errors were provoked, also rare ones


def _of_pydantic(error: BaseException | None) -> bool:
    return isinstance(error, ValidationError)


def _refusal(settings: dict[str, Any]) -> str:
    with pytest.raises(InputError) as raised:
        load_config(settings)
    return raised.value.message.removeprefix("the settings: ")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"evaluation": {"must_pass": "item-1"}},
            "evaluation.must_pass = 'item-1' is not valid: it should be a list.",
        ),
        (
            {"evaluation": {"must_pass": ["item-1", 3]}},
            "evaluation.must_pass.1 = 3 is not valid: it should be text.",
        ),
        ({"review": "maybe"}, "review = 'maybe' is not valid: it should be true or false."),
        ({"train": {"seed": 0.5}}, "train.seed = 0.5 is not valid: it should be a whole number."),
        ({"train": {"seed": None}}, "train.seed = null is not valid: it should be a whole number."),
        (
            {"model": {"agent": ["openai/x"]}},
            "model.agent: it should be provider/name, such as openai/gpt-5-mini, or a mapping "
            "with an `id`.",
        ),
        (
            {"evaluation": {"gate_metric": "herd"}},
            "evaluation.gate_metric = 'herd' is not valid: it should be 'hard', 'soft' or 'mixed'. "
            "Did you mean 'hard'?",
        ),
        (
            {"model": {"prices": {"mine": {"input": True}}}},
            "model.prices.mine.input = true is not valid: it should be a number.",
        ),
    ],
)
def test_a_message_names_the_setting_what_was_found_and_what_is_expected(
    settings: dict[str, Any], sentence: str
) -> None:
    assert _refusal(settings) == sentence


def test_a_long_value_is_cut() -> None:
    message = _refusal({"train": {"seed": "x" * 10_000}})
    assert message.endswith("… is not valid: it should be a whole number.")
    assert len(message) < 300


def test_an_error_without_our_own_message_keeps_the_pydantic_message() -> None:
    class Dated(BaseModel):
        moment: complex

    with pytest.raises(ValidationError) as raised:
        Dated.model_validate({"moment": "x"})
    found: ErrorDetails = raised.value.errors()[0]
    (problem,) = setting_problems(raised.value, Dated, {"moment": "x"})
    assert found["type"].startswith("complex")
    assert problem.sentence.startswith("moment = 'x' is not valid: it should be a valid python")
