"""The regression against a slow dense reference, and its edge cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.gate.regression import (
    LEVEL_PRECISION,
    PossibleChange,
    Posterior,
    Scales,
    SelectionItems,
    TrialTable,
    fit,
)

FIRST = Scales.first("logistic")


def drawn(seed, *, items=6, edits=4, rollouts=200, effects=None, graded=False, spread=1.0):
    """A table of rollouts with known effects."""
    rng = np.random.default_rng(seed)
    effects = np.zeros(edits) if effects is None else np.asarray(effects)
    intercepts = rng.normal(0, spread, items)
    table = TrialTable()
    for at in range(rollouts):
        item, on = at % items, rng.random(len(effects)) < 0.5
        predictor = intercepts[item] + effects @ on
        if graded:
            score = 0.5 + predictor / 10 + rng.normal(0, 0.1)
        else:
            score = float(rng.random() < 1 / (1 + np.exp(-predictor)))
        table.add(f"i{item}", [f"e{e}" for e in np.flatnonzero(on)], score)
    return table.rows()


def dense_reference(rows, edits, family):
    """Newton's method on level, effects and intercepts together, with dense matrices."""
    scales = Scales.first(family)
    groups = list(dict.fromkeys(row.group for row in rows))
    design = np.zeros((len(rows), 1 + len(edits) + len(groups)))
    design[:, 0] = 1
    for at, row in enumerate(rows):
        design[at, [1 + edits.index(edit) for edit in row.edits]] = 1
        design[at, 1 + len(edits) + groups.index(row.group)] = 1
    count = np.array([row.count for row in rows], float)
    total = np.array([row.total for row in rows])
    prior = np.array(
        [
            LEVEL_PRECISION,
            *[scales.edit_sd**-2] * len(edits),
            *[scales.intercept_sd**-2] * len(groups),
        ]
    )
    theta = np.zeros(design.shape[1])
    for _ in range(60):
        predictor = design @ theta
        if family == "logistic":
            chance = 1 / (1 + np.exp(-predictor))
            weight, residual = count * chance * (1 - chance), total - count * chance
        else:
            weight = count / scales.noise
            residual = (total - count * predictor) / scales.noise
        hessian = design.T @ (design * weight[:, None]) + np.diag(prior)
        theta = theta + np.linalg.solve(hessian, design.T @ residual - prior * theta)
    return theta, np.linalg.inv(hessian)


@pytest.mark.parametrize("family", ["logistic", "linear"])
@pytest.mark.parametrize("seed", range(3))
def test_mode_and_covariance_match_a_dense_fit(family, seed):
    rows = drawn(seed, effects=[0.8, -0.5, 0.0, 0.3], graded=family == "linear")
    edits = ["e0", "e1", "e2", "e3"]
    found = fit(rows, edits, family=family, scales=Scales.first(family))
    theta, covariance = dense_reference(rows, edits, family)
    assert found.mean == pytest.approx(theta[:5], abs=1e-5)
    assert found.intercepts == pytest.approx(theta[5:], abs=1e-5)
    assert found.covariance == pytest.approx(covariance[:5, :5], abs=1e-4)


def test_the_variance_of_a_score_matches_a_dense_fit():
    rows, edits = drawn(5, effects=[0.8, -0.5]), ["e0", "e1"]
    found = fit(rows, edits, scales=FIRST)
    theta, covariance = dense_reference(rows, edits, "logistic")
    groups = list(found.groups)
    predictor = theta[0] + theta[1] + theta[3:]
    chance = 1 / (1 + np.exp(-predictor))
    slope = chance * (1 - chance) / len(groups)
    gradient = np.concatenate([[slope.sum(), slope.sum(), 0.0], slope])
    expected = gradient @ covariance @ gradient
    weights = np.full(len(groups), 1 / len(groups))
    assert found.score_variance(groups, weights, ["e0"]) == pytest.approx(expected, rel=1e-3)


def test_many_sets_of_edits_match_a_dense_fit():
    """More sets than one block of the elimination holds."""
    rows = drawn(3, edits=9, rollouts=600, items=10, effects=np.linspace(-1, 1, 9))
    edits = [f"e{at}" for at in range(9)]
    found = fit(rows, edits, scales=FIRST)
    theta, _ = dense_reference(rows, edits, "logistic")
    assert found.mean == pytest.approx(theta[:10], abs=1e-5)


def test_the_spread_of_effects_is_learned():
    def learned(effects):
        rows = drawn(1, items=20, rollouts=6000, effects=effects)
        edits = [f"e{at}" for at in range(len(effects))]
        posterior = None
        for _ in range(8):
            posterior = fit(rows, edits, start=posterior)
        return posterior.scales.edit_sd

    rng = np.random.default_rng(0)
    assert learned(np.zeros(30)) < 0.15
    assert 0.7 < learned(rng.normal(0, 1, 30)) < 1.4


def test_the_noise_of_graded_scores_is_learned():
    rows = drawn(2, items=10, rollouts=2000, graded=True, effects=[1.0, 0.0])
    posterior = None
    for _ in range(8):
        posterior = fit(rows, ["e0", "e1"], family="linear", start=posterior)
    assert posterior.scales.noise == pytest.approx(0.01, rel=0.15)
    assert posterior.contrast({"e0": 1.0}).mean == pytest.approx(0.1, abs=0.02)


def finite(posterior: Posterior) -> bool:
    parts = (posterior.mean, posterior.covariance, posterior.intercepts)
    return all(np.isfinite(part).all() for part in parts)


@pytest.mark.parametrize("family", ["logistic", "linear"])
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_all_successes_and_all_failures_give_finite_estimates(family, score):
    table = TrialTable()
    for at in range(60):
        table.add(f"i{at % 5}", ["e0"] if at % 2 else [], score)
    found = fit(table.rows(), ["e0"], family=family)
    assert finite(found) and abs(found.contrast({"e0": 1.0}).z) < 0.5


@pytest.mark.parametrize("family", ["logistic", "linear"])
def test_without_rollouts_the_estimate_is_the_prior(family):
    found = fit([], ["e0", "e1"], family=family)
    effect = found.contrast({"e0": 1.0})
    assert (effect.mean, effect.sd) == (0.0, pytest.approx(Scales.first(family).edit_sd))


def test_one_item_and_constant_edits_give_finite_estimates():
    table = TrialTable()
    for at in range(30):
        table.add("only", ["always", *(["half"] if at % 2 else [])], float(at % 3 > 0))
    found = fit(table.rows(), ["always", "half", "never"])
    assert finite(found)
    assert found.contrast({"never": 1.0}).mean == 0.0
    assert found.contrast({"always": 1.0}).sd > found.contrast({"half": 1.0}).sd


def test_an_edit_without_data_has_an_unknown_effect():
    found = fit(drawn(0), ["e0", "e1", "e2", "e3"])
    effect = found.contrast({"new": 1.0})
    assert (effect.mean, effect.z) == (0.0, 0.0) and effect.sd == pytest.approx(
        found.scales.edit_sd
    )


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_warm_and_cold_starts_give_the_same_fit(seed):
    """With the spreads held fixed, the mode does not depend on the starting point."""
    rows = drawn(seed, effects=[0.5, -0.5, 0.0, 1.0])
    edits = ["e0", "e1", "e2", "e3"]
    cold = fit(rows, edits, scales=FIRST)
    half = fit(rows[: len(rows) // 2], edits, scales=FIRST)
    warm = fit(rows, edits, scales=FIRST, start=half)
    assert warm.mean == pytest.approx(cold.mean, abs=1e-5)


def test_the_same_trials_give_bitwise_equal_fits():
    rows = drawn(7, effects=[0.5, -0.5, 0.0, 1.0])
    one, two = (fit(rows, ["e0", "e1", "e2", "e3"]) for _ in range(2))
    assert one.mean.tobytes() == two.mean.tobytes()
    assert one.covariance.tobytes() == two.covariance.tobytes()


def test_effects_in_points_respect_the_weights_of_items():
    """A solved item has nothing to gain: where only it counts, effects are small."""
    table = TrialTable()
    rng = np.random.default_rng(0)
    for at in range(800):
        on = at // 2 % 2 == 1
        score = 1.0 if at % 2 else float(rng.random() < (0.7 if on else 0.3))
        table.add("easy" if at % 2 else "hard", ["e0"] if on else [], score)
    found = fit(table.rows(), ["e0"])

    def points(weights):
        selection = SelectionItems.of(["easy", "hard"], weights)
        return selection.effects(found, [], [PossibleChange({"e0": 1.0}, present=False)])[0].mean

    assert points({"easy": 0.0}) > 0.2 > points({}) > points({"hard": 0.0}) >= 0


def test_an_effect_is_the_same_before_and_after_promotion():
    found = fit(drawn(1, effects=[1.0, 0.0, 0.0, 0.0]), ["e0", "e1", "e2", "e3"])
    selection = SelectionItems.of(list(found.groups), {})
    before = selection.effects(found, [], [PossibleChange({"e0": 1.0}, present=False)])[0]
    after = selection.effects(found, ["e0"], [PossibleChange({"e0": 1.0}, present=True)])[0]
    assert before.mean == pytest.approx(after.mean, abs=1e-6) and before.mean > 0
    difference = selection.difference(found, ["e0"], [])
    assert difference.mean == pytest.approx(before.mean, abs=1e-6)
    assert selection.difference(found, [], ["e0"]).mean == pytest.approx(-before.mean, abs=1e-6)
