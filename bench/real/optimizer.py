"""A simulated optimizer: it proposes lines of the world, right ones with a chance that is its
quality, and answers in the form that the asking system wants.

It reads what a language model would read: which items the prompt shows, which of them failed, and
which lines the prompt holds already (in the skill, pending or rejected). Those are not proposed
again.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.real.world import World, draw
from bench.throughput.training_world import GEPA_PROMPT, merged

AT_ONCE = 3  # lines that an analyst proposes, whatever the number of cases
PER_KIND = 2  # lines per failing kind, where all cases are shown at once
SMALLEST_GAIN = 0.03  # a right line adds this much to the kind of item it is proposed for
_SHOWN = 3  # an analyst's line is for one of the kinds that failed most
_FAILED = re.compile(r"Result: failed|response is incorrect")
_SUCCEEDED = re.compile(r"Result: succeeded|response is correct")
_RANKED = re.compile(r"^\[(\d+)\] ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Quality:
    """The chances that a proposed line is right or wrong; the others are useless."""

    right: float
    wrong: float


QUALITIES = {
    "weak": Quality(0.25, 0.45),
    "ordinary": Quality(0.55, 0.20),
    "strong": Quality(0.70, 0.05),
}


@dataclass(frozen=True)
class SimulatedOptimizer:
    world: World
    quality: Quality
    seed: int

    def reply(self, stage: str, prompt: str) -> str:
        """The answer to a prompt. `stage` may be empty where the prompt says enough."""
        if found := GEPA_PROMPT.search(prompt):
            lines = "\n".join(self._lines_of_analyst(prompt, prompt[found.end() :]))
            return f"```\n{found[1].rstrip()}\n{lines}\n```"
        if stage == "reflect.corpus":
            return self._of_all_failures(prompt)
        if stage.startswith(("reflect", "analyst")):
            return self._patch("" if "success" in stage else prompt)
        if stage.startswith("merge"):
            return json.dumps({"reasoning": "simulated", "edits": merged(prompt)})
        if stage.startswith("rank"):
            numbers = sorted(set(map(int, _RANKED.findall(prompt))))
            random.Random(f"{self.seed}/{prompt}").shuffle(numbers)
            return json.dumps({"reasoning": "simulated", "selected_indices": numbers})
        return json.dumps({"reasoning": "simulated", f"{stage}_content": "Take care."})

    def _patch(self, prompt: str) -> str:
        """An analyst's reply, in the form of skillfit and of SkillOpt. Successes alone suggest
        nothing.
        """
        edits = [_append(line) for line in self._lines_of_analyst(prompt, prompt)]
        patch = {"reasoning": "simulated", "edits": edits}
        notes: dict[str, list[str]] = {"failure_summary": [], "success_patterns": []}
        return json.dumps({"batch_size": len(edits), **notes, "patch": patch})

    def _of_all_failures(self, prompt: str) -> str:
        """Lines for every kind that fails, and which items each is meant for."""
        failing = self._failing(prompt)
        of_kind: dict[str, list[str]] = {}
        for at in failing:
            of_kind.setdefault(self.world.items[at].kind, []).append(self.world.items[at].id)
        wanted = [kind for kind in of_kind for _ in range(PER_KIND)]
        chosen = self._choose(wanted, prompt)
        edits = []
        for kind, line in chosen:
            meant = {"items": of_kind[kind], "kinds": [kind], "purpose": f"for {kind}"}
            edits.append(_append(self.world.lines[line].text) | meant)
        failures = [
            {"failure_type": kind, "items": items, "description": f"{kind} is not as expected"}
            for kind, items in of_kind.items()
        ]
        return json.dumps({"reasoning": "simulated", "failures": failures, "edits": edits})

    def _lines_of_analyst(self, prompt: str, cases: str) -> list[str]:
        """A few lines for the kinds that failed most among the cases."""
        counts = Counter(self.world.items[at].kind for at in self._failing(cases))
        kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))[:_SHOWN]
        if not kinds:
            return []
        luck = random.Random(f"{self.seed}/kinds/{prompt}")
        chosen = self._choose([luck.choice(kinds) for _ in range(AT_ONCE)], prompt)
        return [self.world.lines[line].text for _, line in chosen]

    def _failing(self, text: str) -> list[int]:
        """The items that failed, each once: a case reaches from its item's ask to the next one.

        SkillOpt's analysts of failures are shown failures only, without a word that says so.
        """
        asked = self.world.asked_in(text)
        bounds = pairwise([*(position for _, position in asked), len(text)])
        cases = [
            (item, text[start:end]) for (item, _), (start, end) in zip(asked, bounds, strict=True)
        ]
        failed = [item for item, case in cases if _FAILED.search(case)]
        if not failed and not any(_SUCCEEDED.search(case) for _, case in cases):
            failed = [item for item, _ in cases]
        return list(dict.fromkeys(failed))

    def _choose(self, kinds: Iterable[str], prompt: str) -> list[tuple[str, int]]:
        """A line for each of these kinds in turn, none that the prompt holds already."""
        taken = {
            at
            for at, line in enumerate(self.world.lines)
            if line.text in prompt or json.dumps(line.text)[1:-1] in prompt
        }
        chosen = []
        for number, kind in enumerate(kinds):
            luck = draw(self.seed, "quality", number, prompt)
            pick = draw(self.seed, "line", number, prompt)
            line = self._right(kind, taken, pick) if luck < self.quality.right else None
            if self.quality.right <= luck < self.quality.right + self.quality.wrong:
                line = self._one_of(("wrong",), taken, pick)
            if line is None:
                line = self._one_of(("useless", "overlapping"), taken, pick)
            if line is not None:
                taken.add(line)
                chosen.append((kind, line))
        return chosen

    def _right(self, kind: str, taken: set[int], pick: float) -> int | None:
        """One of the two helpful lines that add most to this kind."""
        gain = self.world.gain[self.world.kinds.index(kind)]
        found = [at for at in self.world.helpful if at not in taken and gain[at] > SMALLEST_GAIN]
        return _pick(sorted(found, key=lambda at: -gain[at])[:2], pick)

    def _one_of(self, roles: Sequence[str], taken: set[int], pick: float) -> int | None:
        lines = enumerate(self.world.lines)
        return _pick([at for at, line in lines if line.role in roles and at not in taken], pick)


def _pick(found: Sequence[int], pick: float) -> int | None:
    return found[int(pick * len(found))] if found else None


def _append(line: str) -> dict[str, object]:
    return {"op": "append", "target": "", "content": line}
