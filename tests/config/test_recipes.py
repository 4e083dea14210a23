"""A recipe fills in what the user does not set."""

import pytest

from skillfit.config import load_config
from skillfit.config.schema import RECIPES


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_is_a_valid_config(recipe: str) -> None:
    assert load_config({"recipe": recipe}).recipe == recipe


def test_the_paper_recipe_has_the_settings_of_skillopt() -> None:
    config = load_config({"recipe": "paper"})
    evaluation = config.evaluation
    assert (evaluation.gate, evaluation.use_gate, evaluation.gate_metric) == (
        "strict",
        True,
        "hard",
    )
    assert not any((evaluation.ship_test, evaluation.leak_check, evaluation.preflight))
    assert (config.optimizer.use_slow_update, config.optimizer.slow_update_gate_with_selection) == (
        True,
        False,
    )
    assert (
        config.optimizer.learning_rate,
        config.optimizer.min_learning_rate,
        config.optimizer.lr_scheduler,
    ) == (4, 2, "cosine")
    assert (config.train.num_epochs, config.train.batch_size, config.train.seed) == (4, 40, 42)
    assert config.env.split_ratio == "2:1:7"
    assert config.gradient.rollouts_per_item == 1


def test_user_settings_take_precedence_over_the_recipe() -> None:
    source = {"recipe": "paper", "evaluation": {"ship_test": True}}
    config = load_config(source, ["evaluation.leak_check=true"])
    evaluation = config.evaluation
    assert (evaluation.ship_test, evaluation.leak_check, evaluation.gate) == (True, True, "strict")


def test_a_recipe_given_as_an_override_fills_settings() -> None:
    lite = load_config({}, ["recipe=lite"])
    assert lite.train.num_epochs < load_config({}).train.num_epochs
    assert not lite.optimizer.use_slow_update
