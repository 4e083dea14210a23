"""Your own gate, proposer and batch sampler."""

from __future__ import annotations

import re
from collections import Counter
from statistics import fmean

from skillfit import (
    BaseGate,
    Edit,
    Patch,
    Proposal,
    Ruling,
    Samples,
    ShuffledBatches,
    finished_cases,
)


class FivePoints(BaseGate):
    """Accept a candidate only if its mean is at least five points above the incumbent's."""

    def decide(self, new: Samples, old: Samples) -> Ruling:
        gain = fmean(new.against(old).values())
        if gain < 0.05:
            return Ruling("reject", f"mean {gain:+.4f}: less than five points above the incumbent")
        return Ruling("accept", f"mean {gain:+.4f} above the incumbent")


class WordRules:
    """Propose rules for words that failed requests of one team have and other teams' do not."""

    needs_optimizer = False

    def __init__(self, parts) -> None:
        self._items = parts.train_items

    async def propose(self, skill, rollouts, context) -> list[Patch]:
        failed = [case.item for case in await finished_cases(rollouts) if case.failed]
        proposals = []
        for team in sorted({item.answers[0] for item in failed}):
            others = set[str]().union(
                *(words(item) for item in self._items if item.answers[0] != team)
            )
            mine = [item for item in failed if item.answers[0] == team]
            counts = Counter(word for item in mine for word in words(item))
            new = [word for word in counts if word not in others and word not in skill.body]
            for word in sorted(new, key=lambda word: (-counts[word], word))[:4]:
                edit = Edit("append", content=f"- Mentions of {word} mean {team}.")
                seen = tuple(item.id for item in mine if word in words(item))
                proposals.append(Proposal(edit, "failure", seen))
        return [Patch(tuple(proposals), "failure")]


def words(item) -> set[str]:
    """The longer words of a request, which are more informative."""
    return {word for word in re.findall(r"[a-z]+", item.input.lower()) if len(word) > 4}


class TeamByTeam(ShuffledBatches):
    """Fill batches with one team's requests after the other's, so that a step sees one kind."""

    def order(self, items, seed):
        return tuple(sorted(super().order(items, seed), key=lambda item: item.type))
