"""The two models of a run: the agent, whose chance of success the world knows, and the simulated
optimizer. They answer in this process (`scripted.py`) or behind a server (`server.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bench.real.optimizer import QUALITIES, SimulatedOptimizer
from bench.real.world import World, draw

WRONG = "<answer>unclear</answer>"


@dataclass
class Players:
    world: World
    optimizer: SimulatedOptimizer
    seed: int
    rollouts: int = 0
    proposed_after: list[int] = field(default_factory=list)  # rollouts, for each optimizer call
    _asked: Counter[tuple[frozenset[int], int]] = field(default_factory=Counter)

    def answer(self, system: str, user: str, attempt: str = "") -> str:
        """The agent's reply. The same attempt at an item with the same lines has the same result;
        without a name, attempts are counted.
        """
        asked = self.world.asked_in(user)
        if not asked:  # skillfit's probe
            return "ok"
        self.rollouts += 1
        lines, item = self.world.lines_in(system), asked[-1][0]
        self._asked[lines, item] += 1
        name = attempt or self._asked[lines, item]
        right = draw(self.seed, name, item, *sorted(lines)) < self.world.chances(lines)[item]
        return f"<answer>{self.world.items[item].gold}</answer>" if right else WRONG

    def propose(self, stage: str, prompt: str) -> str:
        """The optimizer's reply."""
        self.proposed_after.append(self.rollouts)
        return self.optimizer.reply(stage, prompt)


def players(world: World, quality: str, seed: int) -> Players:
    return Players(world, SimulatedOptimizer(world, QUALITIES[quality], seed), seed)
