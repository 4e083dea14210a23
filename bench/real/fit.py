"""Fit the emulator of `world.emulator` to outcomes: a few small networks, by Adam."""

from __future__ import annotations

import numpy as np

from bench.real.world import Array, forward, gelu, gelu_slope, set_features

NETWORKS = 3
HIDDEN, FEATURES = 96, 24
STEPS, BATCH = 3000, 64  # sets
RATE = 3e-3
# Pulls effects that the outcomes say little about to zero.
DECAY = {"lin": 3e-4, "v": 1e-4, "w0": 1e-4, "w1": 1e-4, "w2": 1e-4}

Network = dict[str, Array]


def fit(sets: Array, right: Array, steps: int = STEPS) -> list[Network]:
    """Return the networks for sets (sets x lines) and their outcomes (sets x items)."""
    return [_fit_one(sets, right, steps, np.random.default_rng(at)) for at in range(NETWORKS)]


def log_loss(networks: list[Network], sets: Array, right: Array) -> float:
    """Return the mean over all rollouts."""
    chance = np.mean([forward(network, sets) for network in networks], axis=0).clip(1e-6, 1 - 1e-6)
    return float(-(right * np.log(chance) + (1 - right) * np.log(1 - chance)).mean())


def _fit_one(sets: Array, right: Array, steps: int, luck: np.random.Generator) -> Network:
    network = _start(sets.shape[1], right, luck)
    mean = {name: np.zeros_like(value) for name, value in network.items()}
    square = {name: np.zeros_like(value) for name, value in network.items()}
    for step in range(1, steps + 1):
        rows = luck.integers(len(sets), size=BATCH)
        rate = RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
        for name, slope in _slopes(network, sets[rows], right[rows]).items():
            mean[name] = 0.9 * mean[name] + 0.1 * slope
            square[name] = 0.999 * square[name] + 0.001 * slope**2
            change = mean[name] / (1 - 0.9**step)
            change /= np.sqrt(square[name] / (1 - 0.999**step)) + 1e-8
            network[name] = network[name] - rate * (change + DECAY.get(name, 0) * network[name])
    return network


def _start(lines: int, right: Array, luck: np.random.Generator) -> Network:
    level = right.mean(0).clip(0.01, 0.99)
    inputs = lines + 2

    def drawn(rows: int, columns: int) -> Array:
        return luck.normal(0, columns**-0.5, (rows, columns))

    return {
        "a": np.log(level / (1 - level)),
        "lin": np.zeros((right.shape[1], lines)),
        "v": 0.1 * drawn(right.shape[1], FEATURES),
        "w0": drawn(HIDDEN, inputs),
        "b0": np.zeros(HIDDEN),
        "w1": drawn(HIDDEN, HIDDEN),
        "b1": np.zeros(HIDDEN),
        "w2": drawn(FEATURES, HIDDEN),
        "b2": np.zeros(FEATURES),
    }


def _slopes(network: Network, sets: Array, right: Array) -> Network:
    """Return the gradient of the mean log loss per set and item, by hand."""
    inputs = set_features(sets)
    first = inputs @ network["w0"].T + network["b0"]
    hidden = gelu(first)
    second = hidden @ network["w1"].T + network["b1"]
    upper = gelu(second)
    features = upper @ network["w2"].T + network["b2"]
    logits = network["a"] + sets @ network["lin"].T + features @ network["v"].T
    error = (1 / (1 + np.exp(-logits)) - right) / len(sets)
    to_features = error @ network["v"]
    to_second = (to_features @ network["w2"]) * gelu_slope(second)
    to_first = (to_second @ network["w1"]) * gelu_slope(first)
    return {
        "a": error.sum(0),
        "lin": error.T @ sets,
        "v": error.T @ features,
        "w2": to_features.T @ upper,
        "b2": to_features.sum(0),
        "w1": to_second.T @ hidden,
        "b1": to_second.sum(0),
        "w0": to_first.T @ inputs,
        "b0": to_first.sum(0),
    }
