"""`skillfit check`, also run before training: is this worth optimising? Spends a few rollouts of training items to find out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from skillfit.gate import preflight as gate
from skillfit.gate.preflight import Check, Level
from skillfit.gate.shortcut import audit, shortcuts
from skillfit.gate.statistics import within_item_variance
from skillfit.models.protocol import BadReply, Message, Request
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Outcome, Tally
from skillfit.run.events import PreflightFinished
from skillfit.run.recorded import RecordedModel
from skillfit.skill import Skill
from skillfit.tasks.attempt import Attempt, TaskFailure
from skillfit.tasks.graders import without_judges
from skillfit.tasks.item import Item
from skillfit.tasks.task import prove_gold
from skillfit.train.estimate import PREFLIGHT_ITEMS, PREFLIGHT_REPEATS, estimate
from skillfit.train.parts import Parts

_UNPROBED = ("handoff", "scripted")  # a person answers, or a function


@dataclass(frozen=True, slots=True)
class PreflightReport:
    verdict: Level
    checks: tuple[Check, ...]


async def run_preflight(parts: Parts) -> PreflightReport:
    """Rolls out some training items. Raises what `probe` raises."""
    with parts.stage("preflight"):
        checks = [await _keys(parts), await _gold(parts), *await _tried(parts), _cost(parts)]
    report = PreflightReport(gate.overall(checks), tuple(checks))
    parts.emit(PreflightFinished(verdict=report.verdict, checks=[asdict(check) for check in checks]))
    return report


async def probe(parts: Parts) -> None:
    """One tiny call per role, which raises what no training could survive (a wrong key, a wrong model name). Whatever the model
    says, it could be reached."""
    request = Request((Message("user", "Reply with: ok"),), stage="probe", purpose="probe")
    for role, client in parts.probes.items():
        if client.id.partition("/")[0] in _UNPROBED:
            continue
        try:
            await RecordedModel(client, parts.run.journal, role).complete(request)
        except BadReply:
            continue


async def _keys(parts: Parts) -> Check:
    await probe(parts)
    asked = ", ".join(f"{role} ({client.id})" for role, client in parts.probes.items())
    return Check("keys", "go", f"Reached: {asked}." if asked else "No model is called by skillfit itself.")


async def _gold(parts: Parts) -> Check:
    items = parts.task.items
    if parts.task.grader is None:
        return Check("gold", "go", "The task scores itself: there are no gold answers to prove.")
    if without_judges(parts.task.grader) is None:
        return Check("gold", "go", "A judge grades: no gold answer was put to it.")
    wrong = {problem.item_id: problem.score.hard if problem.score else 0.0 for problem in await prove_gold(parts.task)}
    return gate.gold_check({item.id: wrong.get(item.id, 1.0) if item.answers or item.reference else None for item in items})


async def _tried(parts: Parts) -> list[Check]:
    """Rollouts of some training items with the skill and with half of it: noise, headroom, whether the grader sees anything."""
    items = parts.task.train[:PREFLIGHT_ITEMS]
    half = _half(parts.initial)
    passes = [_roll(parts, parts.initial, items, repeat) for repeat in range(PREFLIGHT_REPEATS)]
    *full, gutted = await gather([*passes, _roll(parts, half, items, 0)])
    outcomes = [outcome for one in full for outcome in one]
    tally = Tally.of(outcomes)
    first = next((str(outcome.failure.message) for outcome in outcomes if outcome.failure), "")
    baseline = parts.gate_settings.value(tally.hard, tally.soft)
    noise = within_item_variance(_values(parts, outcomes))
    found = shortcuts(parts.task.train, parts.task.selection)
    lost = {"empty answer": await _empty(parts, items, outcomes), "half of it gone": _lost(parts, outcomes, gutted)}
    return [
        gate.coverage_check(tally.scored, tally.planned, parts.config.evaluation.coverage_floor, first),
        gate.blindness_check(baseline, {name: values for name, values in lost.items() if values}, parts.initial.tokens),
        gate.headroom_check(baseline),
        gate.power_check(len(parts.task.selection), noise, baseline),
        audit(found, baseline, 1.0),
    ]


async def _roll(parts: Parts, skill: Skill, items: Sequence[Item], repeat: int) -> list[Outcome]:
    outcomes = await parts.rollouts.run(skill, items, phase="preflight", repeats=[repeat], series="preflight")
    parts.refuse_skipped(outcomes)
    return outcomes


def _half(skill: Skill) -> Skill:
    """The skill without every second paragraph: what a grader that sees the skill at all should notice."""
    paragraphs = skill.body.split("\n\n")
    return skill.with_body("\n\n".join(paragraphs[::2]) if len(paragraphs) > 1 else "")


def _values(parts: Parts, outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.score is not None:
            values.setdefault(outcome.item_id, []).append(parts.gate_settings.value(outcome.score.hard, outcome.score.soft))
    return values


def _lost(parts: Parts, full: Sequence[Outcome], gutted: Sequence[Outcome]) -> list[float]:
    old, new = _values(parts, full), _values(parts, gutted)
    return [sum(old[item]) / len(old[item]) - new[item][0] for item in old if item in new] if parts.initial.tokens else []


async def _empty(parts: Parts, items: Sequence[Item], full: Sequence[Outcome]) -> list[float]:
    """How much an empty answer loses; nothing where a judge would have to be paid to say so."""
    grader = parts.task.grader
    if grader is None or "judge" in parts.probes:
        return []
    scored: Mapping[str, list[float]] = _values(parts, full)
    lost = []
    for item in items:
        if item.id in scored:
            try:
                score = await grader.grade(item, Attempt(""))
            except TaskFailure:
                continue  # a grader that breaks on nothing does not pay for it either
            lost.append(sum(scored[item.id]) / len(scored[item.id]) - parts.gate_settings.value(score.hard, score.soft))
    return lost


def _cost(parts: Parts) -> Check:
    whole = estimate(parts.config, parts.task, parts.initial, parts.plan).total
    if whole.usd is None:
        return Check("cost", "go", f"The plan takes about {whole.calls.low:,}-{whole.calls.high:,} calls; no price is known.")
    return gate.cost_check(whole.usd.low, whole.usd.high, parts.config.budget.usd)
