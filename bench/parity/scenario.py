"""What a run is: a seed, an update mode, and the settings that go with them, written for both
systems from one place.

Seeds from 1 on are plain. Each variant adds something that plain seeds leave out. Each probe
triggers one defect of SkillOpt. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MODES = ("patch", "rewrite_from_suggestions", "full_rewrite_minibatch")


VARIANTS = {
    "bullets": "rules are list items, which the two systems join with other blank lines",
    "autonomous": "the optimizer says how many edits may enter, sometimes in words",
    "skill_aware": "analysts also write notes for the appendix",
}
VARIANT_SEEDS = (1, 2, 3, 5, 6, 7)


@dataclass(frozen=True)
class Probe:
    """A behaviour of the scripted models, or a setting, that triggers a defect, and the seeds for
    which it matters.
    """

    defect: int
    habit: str
    seeds: Mapping[str, int]  # by update mode


_PATCH, _REWRITE, _FULL = MODES
_HELPFUL = {_PATCH: 2, _REWRITE: 2, _FULL: 1}

PROBES: dict[str, Probe] = {
    "helpful_slip": Probe(5, "the slow update's text carries rules that help", _HELPFUL),
    "harmful_slip": Probe(
        5, "the slow update's text carries rules that harm", dict.fromkeys(MODES, 3)
    ),
    "no_test": Probe(
        7,
        "as helpful_slip, and the test split is not evaluated",
        {_PATCH: 10, _REWRITE: 10, _FULL: 1},
    ),
    "silence": Probe(
        19,
        "analysts say nothing in the first epoch, so its steps are skipped",
        {_PATCH: 1, _REWRITE: 1},
    ),
    "cut_memory": Probe(
        24, "an edit deletes text that reaches into the protected memory", {_PATCH: 1}
    ),
    "forgetful": Probe(25, "rewrites leave the protected memory out", {_REWRITE: 1, _FULL: 1}),
    "null_target": Probe(26, "appends are sent with `target: null`", {_PATCH: 1}),
    "lost_anchor": Probe(27, "insertions name an anchor the skill does not have", {_PATCH: 1}),
    "no_rate": Probe(
        32,
        "an autonomous learning rate of 0 in the first step",
        {_PATCH: 2, _REWRITE: 2},
    ),
    "no_control": Probe(29, "`lr_control_mode: none`", {_PATCH: 1, _REWRITE: 1}),
}


@dataclass(frozen=True)
class Scenario:
    seed: int
    mode: str
    extra: str = ""  # a variant or a probe

    @property
    def name(self) -> str:
        """As model names carry it to the server, and as recorded results are found by."""
        return f"{self.mode}.{self.seed}" + (f".{self.extra}" if self.extra else "")

    @classmethod
    def parse(cls, name: str) -> Scenario:
        """From a name, also with a role or a provider in front."""
        found = re.search(rf"({'|'.join(MODES)})\.(\d+)(?:\.(\w+))?$", name)
        if found is None:
            raise ValueError(f"{name!r} names no scenario")
        return cls(int(found[2]), found[1], found[3] or "")

    @property
    def probe(self) -> str:
        return self.extra if self.extra in PROBES else ""

    @property
    def mark(self) -> str:
        """How a line with a rule begins."""
        return "- " if self.extra == "bullets" else ""

    @property
    def slip(self) -> str:
        return {"helpful_slip": "helpful", "no_test": "helpful", "harmful_slip": "harmful"}.get(
            self.probe, ""
        )

    def settings(self) -> dict[str, dict[str, object]]:
        """Sections and keys as both systems know them. Everything a paper run may set is varied
        over the seeds.
        """
        seed = self.seed
        batch, accumulation = {2: (6, 2), 4: (10, 3)}.get(seed % 5, (12, 1))
        probing = bool(self.probe)
        return {
            "train": {
                "num_epochs": 2 if seed % 4 == 0 else 3,
                "batch_size": batch,
                "accumulation": accumulation,
                "seed": seed,
            },
            "gradient": {
                "minibatch_size": (4, 8, 3)[seed % 3],
                "merge_batch_size": (2, 8, 3, 2)[seed % 4],
                "failure_only": seed % 8 == 7,
            },
            "optimizer": {
                "learning_rate": (4, 6, 3)[seed % 3],
                "min_learning_rate": 2,
                "lr_scheduler": {3: "linear", 5: "constant"}.get(seed % 6, "cosine"),
                "lr_control_mode": {
                    "no_control": "none",
                    "autonomous": "autonomous",
                    "no_rate": "autonomous",
                }.get(self.extra, "fixed"),
                "skill_update_mode": self.mode,
                "use_slow_update": True,
                "slow_update_samples": 20 if seed % 2 else 10,
                "slow_update_gate_with_selection": seed % 4 == 3 and not probing,
                "longitudinal_pair_policy": {4: "changed", 7: "unchanged"}.get(seed % 9, "mixed"),
                "use_meta_skill": True,
                "use_skill_aware_reflection": self.extra == "skill_aware",
            },
            "evaluation": {
                "use_gate": seed % 11 != 10 or probing,
                "gate_metric": {5: "mixed", 6: "soft"}.get(seed % 7, "hard"),
                "sel_env_num": 16 if seed % 10 == 9 else 0,
                "test_env_num": 0,
                "eval_test": self.probe != "no_test",
            },
        }


def plain(seeds: int) -> list[Scenario]:
    return [Scenario(seed, mode) for mode in MODES for seed in range(1, seeds + 1)]


def variants() -> list[Scenario]:
    return [
        Scenario(seed, mode, name) for name in VARIANTS for mode in MODES for seed in VARIANT_SEEDS
    ]


def probes() -> list[Scenario]:
    return [
        Scenario(seed, mode, name)
        for name, probe in PROBES.items()
        for mode, seed in probe.seeds.items()
    ]
