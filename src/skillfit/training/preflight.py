"""`skillfit check`, also run before training: is this worth optimising? Spends a few rollouts of
training items to find out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from skillfit.gate import preflight as gate
from skillfit.gate.preflight import Check, Level
from skillfit.gate.samples import Samples
from skillfit.gate.shortcut import audit, shortcuts
from skillfit.gate.statistics import item_differences, within_item_variance
from skillfit.models.protocol import BadReply, Message, NoReply, Request
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Outcome
from skillfit.run.events import PreflightFinished
from skillfit.run.journal import RecordedModel
from skillfit.skill import Skill
from skillfit.tasks.graders import without_judges
from skillfit.tasks.item import Attempt, Item, TaskFailure
from skillfit.tasks.task import Task, prove_gold
from skillfit.training.estimate import PREFLIGHT_ITEMS, PREFLIGHT_REPEATS, estimate
from skillfit.training.parts import Parts

_UNPROBED = ("handoff", "scripted")  # a person answers, or a function
_ENOUGH_ITEMS = 4  # on fewer, equal scores may be chance
_PROBE_TOKENS = 1_024  # a word, and what a model thinks before it says one


@dataclass(frozen=True, slots=True)
class PreflightReport:
    verdict: Level
    checks: tuple[Check, ...]


async def run_preflight(parts: Parts) -> PreflightReport:
    """Rolls out some training items. Raises what `probe` raises."""
    with parts.stage("preflight"):
        checks = [await _keys(parts), *await _gold(parts), *await _tried(parts), _cost(parts)]
    report = PreflightReport(gate.overall(checks), tuple(checks))
    parts.emit(
        PreflightFinished(verdict=report.verdict, checks=[asdict(check) for check in checks])
    )
    return report


async def probe(parts: Parts) -> None:
    """One tiny call per role, which raises what no training could survive (a wrong key, a wrong
    model name, an address where no model answers). Whatever a model says, it could be reached.
    """
    for role, client in parts.probes.items():
        if client.id.partition("/")[0] in _UNPROBED:
            continue
        # A ceiling the person chose is tried as it is; the usual one would set aside what a small
        # budget does not have.
        chosen = getattr(parts.config.model, role).max_tokens
        request = Request(
            (Message("user", "Reply with: ok"),),
            "probe",
            purpose="probe",
            max_tokens=chosen or _PROBE_TOKENS,
        )
        try:
            await RecordedModel(client, parts.run.journal, role).complete(request)
        except NoReply:
            raise
        except BadReply:
            continue


async def _keys(parts: Parts) -> Check:
    await probe(parts)
    asked = ", ".join(f"{role} ({client.id})" for role, client in parts.probes.items())
    return Check(
        "keys", "go", f"Reached: {asked}." if asked else "No model is called by skillfit itself."
    )


async def _gold(parts: Parts) -> list[Check]:
    """Under the grader that is trained on, and under the one that ships where there is one."""
    checks = [await _proved(parts.task, "gold", "The grader")]
    return (
        [*checks, await _proved(parts.ship_task, "ship gold", "The ship grader")]
        if parts.ship_task
        else checks
    )


async def _proved(task: Task, name: str, grader: str) -> Check:
    if task.grader is None:
        return Check(name, "go", "The task scores itself: there are no gold answers to prove.")
    if without_judges(task.grader) is None:
        return Check(name, "go", "A judge grades: no gold answer was put to it.")
    wrong = {
        problem.item_id: problem.score.hard if problem.score else 0.0
        for problem in await prove_gold(task)
    }
    scores = {
        item.id: wrong.get(item.id, 1.0) if item.answers or item.reference else None
        for item in task.items
    }
    return gate.gold_check(scores, name, grader)


async def _tried(parts: Parts) -> list[Check]:
    """Rollouts of some training items with the skill and without what it says: noise, headroom, and
    does the grader see it.
    """
    items, skill = parts.task.train[:PREFLIGHT_ITEMS], parts.initial
    without, missing = _gutted(skill)
    asked = [(skill, range(PREFLIGHT_REPEATS)), (without, range(1))]
    full, gutted = await gather(
        parts.roll_out(tried, items, series="preflight", repeats=repeats)
        for tried, repeats in asked
    )
    known = _samples(parts, full)
    found = {
        "empty answer": await _empty(parts, items),
        missing: gutted if without.hash != skill.hash else [],
    }
    worse = {
        name: samples
        for name, outcomes in found.items()
        if (samples := _samples(parts, outcomes)).scored
    }
    lost = {
        name: list(item_differences(known.means, samples.means).values())
        for name, samples in worse.items()
        if known.scored
    }
    noise = within_item_variance({item: known.values(item) for item in known.scores})
    first = next((str(outcome.failure.message) for outcome in full if outcome.failure), "")
    return [
        gate.coverage_check(
            known.scored, known.planned, parts.config.evaluation.coverage_floor, first
        ),
        gate.blindness_check(
            known.score, lost, skill.tokens, constant=_constant(known, list(worse.values()))
        ),
        gate.headroom_check(known.score),
        gate.power_check(len(parts.task.selection), noise, known.score),
        audit(shortcuts(parts.task.train, parts.task.selection), known.score, 1.0),
    ]


def _gutted(skill: Skill) -> tuple[Skill, str]:
    """The skill without every second paragraph, or without all it says where that is little, and
    what is missing in words: what a grader that sees the skill at all should notice.
    """
    paragraphs = skill.body.split("\n\n")
    if skill.tokens > gate.SAYS_ENOUGH and len(paragraphs) > 1:
        return skill.with_body("\n\n".join(paragraphs[::2])), "half of it gone"
    return skill.with_body(""), "all of it gone"


def _constant(known: Samples, worse: Sequence[Samples]) -> float | None:
    """The score that every probe got, where there was a worse one, and enough items to call that no
    accident.
    """
    values = {
        value
        for samples in (known, *worse)
        for item in samples.scores
        for value in samples.values(item)
    }
    return (
        values.pop() if worse and len(known.scores) >= _ENOUGH_ITEMS and len(values) == 1 else None
    )


def _samples(parts: Parts, outcomes: Sequence[Outcome]) -> Samples:
    samples = Samples(parts.gate_settings)
    samples.add(outcomes)
    return samples


async def _empty(parts: Parts, items: Sequence[Item]) -> list[Outcome]:
    """What an empty answer would get; nothing where a judge would have to be paid to say so."""
    grader = parts.task.grader
    if grader is None or without_judges(grader) != grader:
        return []
    outcomes = []
    for item in items:
        try:
            score = await grader.grade(item, Attempt(""))
        except TaskFailure:
            continue  # a grader that breaks on nothing does not pay for it either
        outcomes.append(Outcome(item.id, 0, "scored", score))
    return outcomes


def _cost(parts: Parts) -> Check:
    whole = estimate(parts.config, parts.task, parts.initial, parts.plan).total
    if whole.usd is None:
        return Check(
            "cost",
            "go",
            f"The plan takes about {whole.calls.low:,}-{whole.calls.high:,} calls; no price is known.",
        )
    return gate.cost_check(whole.usd.low, whole.usd.high, parts.config.budget.usd)
