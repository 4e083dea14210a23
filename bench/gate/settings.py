"""The settings of the simulation: how many items, how noisy, which kind of world."""

from __future__ import annotations

from dataclasses import replace

from bench.gate.play import BATCH
from bench.gate.world import Kind, Setting
from skillfit.config.schema import Config, EvaluationSection, TrainSection
from skillfit.gate import GateSettings

NOISE = {"quiet": 3.0, "middling": 1.2, "noisy": 0.3}  # spread of item difficulty in logits
SIZES = (20, 40, 100, 200)
STEPS = 32  # four epochs of eight: the plan of strict sets the rollouts that all gates get
WORLDS: tuple[Kind, ...] = ("sparse", "crowding", "interactions", "useless", "duplicates")


def setting(
    items: int,
    noise: str = "middling",
    *,
    kind: Kind = "clusters",
    graded: bool = False,
    failures: float = 0.0,
    steps: int = STEPS,
) -> Setting:
    name = f"n={items} {noise}"
    name += f" {kind}" if kind != "clusters" else ""
    name += (" graded" if graded else "") + (" lossy" if failures else "")
    return Setting(
        name,
        items,
        NOISE[noise],
        items + steps * (BATCH + items),
        kind=kind,
        graded=graded,
        failures=failures,
    )


def gate_settings(world: Setting, seed: int, subsets: int | None = None) -> GateSettings:
    """Return the settings of a gate in this world. `subsets`: instead of the default."""
    evaluation = EvaluationSection(gate_metric="soft" if world.graded else "hard")
    config = Config(evaluation=evaluation, train=TrainSection(seed=seed))
    settings = GateSettings(config)
    return replace(settings, subsets=subsets) if subsets else settings


def usual() -> list[Setting]:
    """Sizes and noise levels, graded scores, failing rollouts."""
    settings = [setting(items, noise) for items in SIZES for noise in NOISE]
    return [*settings, setting(40, graded=True), setting(40, failures=0.1)]


def other_worlds() -> list[Setting]:
    return [setting(40, kind=kind) for kind in WORLDS]


def ship_settings() -> list[Setting]:
    """Settings of the ship test on equal skills: few items and saturated tasks too."""
    few = [setting(items, noise) for items in (8, 12, 15) for noise in ("quiet", "noisy")]
    saturated = [
        replace(setting(items), name=f"n={items} saturated", level=4.0) for items in (12, 40, 100)
    ]
    sizes = [setting(items, noise) for items in SIZES for noise in NOISE]
    other = [setting(40, graded=True), setting(40, "noisy", failures=0.2)]
    return [*few, *sizes, *saturated, *other]
