"""A gate and a proposer of your own."""

from __future__ import annotations

from collections import Counter

from skillfit.gate import Candidate, Verdict
from skillfit.gate.strict import StrictGate
from skillfit.optimize.optimizer import Patch, Proposal
from skillfit.optimize.proposer import finished_cases
from skillfit.skill import Edit


class TwoPoints(StrictGate):
    """Accept a candidate only if its mean is at least two points above the incumbent's."""

    async def judge(self, name: str, candidate: Candidate | None, training=()) -> Verdict:
        if candidate is None:
            return await super().judge(name, None, training)
        old = await self.record(self.incumbent)
        new = await self.record(candidate.skill)
        if new.score < old.score + 0.02:
            candidate = None  # too small a gain: the strict rule rejects a missing candidate
        return await super().judge(name, candidate, training)


class WordRules:
    """Propose a rule for the word that most failed requests of one team share."""

    def __init__(self, parts) -> None:
        self._known = {word.lower() for item in parts.train_items for word in item.answers}

    async def propose(self, skill, rollouts, context) -> list[Patch]:
        words: dict[str, Counter[str]] = {}
        items: dict[str, list[str]] = {}
        for case in await finished_cases(rollouts):
            if case.failed:
                team = case.item.answers[0]
                seen = {word.strip(".,").lower() for word in case.item.input.split()}
                long_words = {word for word in seen if len(word) > 4}
                words.setdefault(team, Counter()).update(long_words - self._known)
                items.setdefault(team, []).append(case.item.id)
        proposals = []
        for team, counts in words.items():
            for word, _ in counts.most_common(2):
                edit = Edit("append", content=f"- Mentions of {word} mean {team}.")
                proposals.append(Proposal(edit, "failure", tuple(items[team])))
        return [Patch(tuple(proposals), "failure")]
