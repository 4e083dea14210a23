"""Recipes: named sets of settings that fill what a person did not set. `default` is the schema's own values."""

from __future__ import annotations

from typing import Any

RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    # The reference system's defaults and decisions, for reproduction.
    "paper": {
        "optimizer": {"slow_update_gate_with_selection": False},
        "evaluation": {
            "gate": "strict",
            "candidates": 1,
            "ship_test": False,
            "prune": False,
            "preflight": False,
            "leak_check": False,
        },
        "env": {"split_ratio": "2:1:7"},
    },
    # Fewer than about 20 items: short epochs, small groups, few candidates, every rollout spent on measuring.
    "lite": {
        "train": {"num_epochs": 2, "batch_size": 8},
        "gradient": {"minibatch_size": 4, "merge_batch_size": 4, "rollouts_per_item": 2},
        "optimizer": {"use_slow_update": False, "use_meta_skill": False, "lr_scheduler": "constant"},
        "evaluation": {"candidates": 2},
        "env": {"split_ratio": "5:5:0"},
    },
}
