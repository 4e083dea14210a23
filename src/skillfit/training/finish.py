"""The end of a run: compose the final skill, compare it with the initial one on fresh rollouts of
selection and test items, write the summary. Without a ship test the test split is read by itself.

When the ship test does not say "improved", the run hands back the initial skill. What training
found is kept beside it as unproven. A part of the budget is kept for the ship test while training
runs, and one for the prune rounds before it (`reserve_finish`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from math import ceil
from typing import Literal

from skillfit import __version__
from skillfit.config.schema import BudgetSection, EvaluationSection
from skillfit.errors import Exit
from skillfit.gate import Facts, Gate, GateSettings, diagnose_run, ship_test
from skillfit.gate.base import INITIAL, NotMeasured
from skillfit.gate.diagnosis import BUDGET_CAUSES
from skillfit.gate.samples import Samples, detectable_effect
from skillfit.gate.ship import entrants
from skillfit.gate.shortcut import audit, shortcuts
from skillfit.intervals import mean
from skillfit.optimize.proposer import author_of
from skillfit.rollout import Arm, Outcome, RolloutEngine, Tally, requests_for
from skillfit.rollout.outcome import raise_if_skipped
from skillfit.run.budget import Amounts, BudgetReached
from skillfit.run.events import RunFinished, ShipTested, Warned
from skillfit.run.journal import Bill
from skillfit.run.records import (
    ACCEPTED,
    COMPOSED,
    SKIPPED,
    CheckName,
    EpochStats,
    RecordedConfig,
    RolloutCounts,
    RunFinishReason,
    RunSummary,
    ShipVerdict,
    SkillTokens,
    StepRecord,
    TokenCounts,
    UsageTotals,
)
from skillfit.skill import Skill, without_placeholder
from skillfit.skill.parts import Part, changed_parts, part_text
from skillfit.skill.units import units_of_parts
from skillfit.tasks.item import Item, Score, stable_hash
from skillfit.tasks.task import Task
from skillfit.training.forecast import FINISH_SAFETY, RolloutCost, step_cost
from skillfit.training.loop import follow_requests, prune
from skillfit.training.measure import Measured
from skillfit.training.schedule import FEWEST_PAIRS
from skillfit.training.state import (
    Components,
    SelectionRollouts,
    StepLog,
    TrainingState,
)
from skillfit.training.step_end import emit_estimate, emit_score

FINISH_RESERVE = 0.35  # of every cap, at the most, while there is a choice
_SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15)  # of the planned pairs, where a cap has less room

EXIT_OF: Mapping[RunFinishReason, Exit] = {
    "improved": Exit.OK,
    "no_improvement": Exit.NO_IMPROVEMENT,
    "inconclusive": Exit.INCONCLUSIVE,
    "unverified": Exit.INCONCLUSIVE,
    "budget": Exit.BUDGET,
    "infrastructure": Exit.INFRASTRUCTURE,
}
_REASON_OF: Mapping[ShipVerdict, RunFinishReason] = {
    "improved": "improved",
    "no improvement": "no_improvement",
    "inconclusive": "inconclusive",
}


@dataclass(frozen=True, slots=True)
class ComparedTallies:
    """The initial skill and the one that was found, on comparable selection rollouts."""

    initial: Tally
    found: Tally


@dataclass(frozen=True, slots=True)
class Ending:
    """What the last stages found. Fields stay empty where a run ended earlier."""

    handed_back: Skill  # best_skill.md: the initial skill unless the run improved it
    found: Skill  # what training arrived at
    scores: ComparedTallies | None = None
    ship: ShipTested | None = None
    last: Tally | None = None  # of the last incumbent on the selection items
    # By name: baseline; best, which is handed back; final: what was found, or without a ship test
    # the last incumbent
    tests: Mapping[str, Tally] = field(default_factory=dict)

    def unproven(self, initial: Skill) -> bool:
        """Return whether training found a skill that is not handed back."""
        return self.found.hash not in (self.handed_back.hash, initial.hash)


def reserve_finish(run: Components, steps: int) -> int | None:
    """Keep a part of the budget for the prune rounds and the ship test, sized by what rollouts cost
    so far.

    Takes the largest number of pairs that needs at most FINISH_RESERVE of every cap and fits beside
    what is used: before the first step what that step is expected to use, later the calls so far.
    Return it; None: nothing is kept. `steps`: steps done.
    """
    caps, stats = run.config.budget, run.engine.stats
    if not run.config.evaluation.ship_test:
        return None
    if run.schedule.bought is not None:  # the plan has room for all of it
        caps = caps.model_copy(update={"rollouts": None})
    most = run.schedule.pairs
    if not stats.scored:
        return most
    pruned = steps == run.schedule.total_steps  # the prune rounds come next
    rounds_need = _rollouts_need(run, 0 if pruned else run.schedule.prune_rollouts)
    sizes = sorted({max(FEWEST_PAIRS, round(most * share)) for share in _SHARES}, reverse=True)
    needs = {pairs: _ship_need(run, pairs) + rounds_need for pairs in sizes}
    within = [pairs for pairs, need in needs.items() if _fits(need, caps, FINISH_RESERVE)]
    used = _used_by(run, steps)
    possible = [pairs for pairs in within if _fits(used + needs[pairs], caps, 1)]
    pairs = (possible or within[-1:] or sizes[-1:])[0]
    _keep(run, needs[pairs], steps)
    return pairs


async def prune_after_cap(run: Components, steps: int, pairs: int) -> None:
    """Measure the pending edits of a run that a cap ended after `steps` steps, on what was kept for
    it. What was kept for the ship test stays.
    """
    if steps == run.schedule.total_steps:
        return  # the cap ended the prune rounds themselves
    _keep(run, _ship_need(run, pairs), steps)
    for engine in run.engines:
        engine.resume()
    with suppress(BudgetReached):
        await prune(run, f"_after_step_{steps}")


def _keep(run: Components, need: Amounts, steps: int) -> None:
    caps, stats = run.config.budget, run.engine.stats
    minutes = run.budget.minutes / stats.scored * need.rollouts if steps else 0.0
    run.budget.hold_back(_at_most_half(need, caps), min(minutes, (caps.minutes or 0.0) / 2))


def _used_by(run: Components, steps: int) -> Amounts:
    """Return what will be used after the first step or, once a step is done, the calls so far.
    Computed from the usage of rollouts and not from the budget, so that a resumed run decides the
    same.
    """
    if run.schedule.bought is not None:
        return Amounts()  # the plan has room for its steps and the ship test
    stats = run.engine.stats
    cost = RolloutCost.mean(stats.scored, stats.usage)
    step = step_cost(run.config, run.task, run.initial, run.schedule, cost)
    if not steps:
        return Amounts.of(stats.usage + step.rollouts + step.optimizer + step.reserved)
    return Amounts(calls=stats.usage.calls + steps * step.optimizer.calls)


def _ship_need(run: Components, pairs: int) -> Amounts:
    return _rollouts_need(run, (1 + run.config.evaluation.finalists) * pairs)


def _rollouts_need(run: Components, rollouts: int) -> Amounts:
    """Return what so many rollouts take, by what rollouts cost so far."""
    stats = run.engine.stats
    share = rollouts / stats.scored * FINISH_SAFETY
    return Amounts(
        usd=(stats.usage.usd or 0.0) * share,
        tokens=ceil(stats.usage.tokens * share),
        calls=ceil(stats.usage.calls * share),
        rollouts=rollouts,
    )


def _at_most_half(need: Amounts, caps: BudgetSection) -> Amounts:
    return Amounts(
        usd=need.usd if caps.usd is None else min(need.usd, caps.usd / 2),
        tokens=need.tokens if caps.tokens is None else min(need.tokens, caps.tokens // 2),
        calls=need.calls if caps.calls is None else min(need.calls, caps.calls // 2),
        rollouts=need.rollouts if caps.rollouts is None else min(need.rollouts, caps.rollouts // 2),
    )


def _fits(need: Amounts, caps: BudgetSection, share: float) -> bool:
    """Return whether `need` is at most a share of every cap."""
    amounts = asdict(need)
    return all(cap is None or amounts[name] <= cap * share for name, cap in caps if name in amounts)


async def finish(
    run: Components,
    state: TrainingState,
    pairs: int | None,
    cut_short: BudgetReached | None = None,
) -> RunFinished:
    """Compose the finalists, run the ship test and end the run with its verdict.

    `pairs`: what the part of the budget that was kept for the ship test has room for.
    `cut_short`: the cap that ended training early. The ship test still runs, on what was kept for
    it; without an improvement the run counts as ended by its budget.
    """
    run.budget.release_held()  # what was kept for the ship test
    for engine in run.engines:
        engine.resume()
    log, gate, task, evaluation = StepLog(run.emit), run.gate, run.task, run.config.evaluation
    # A run that its budget cut short comes here again after a resume, with other requests.
    place = "finish" if cut_short is None else f"finish_after_{len(state.records)}"
    waiting = [edit.id for edit in gate.effects() if edit.awaits_approval]
    with run.decision(place) as losses:
        await follow_requests(run.requests, place, gate, run.budget, run.emit, undecided=waiting)
        last = await gate.last_tally()
        if last is not None:
            await _report_last(gate, run.engine, task.selection, last, log)
        finalists = await _compose(gate, log)
        fresh = ShipRollouts(
            SelectionRollouts(run.ship_engine or run.engine),
            run.gate_settings,
            second_grader=run.ship_engine is not None,
        )
        ship = None
        if evaluation.ship_test:
            most = run.schedule.pairs if pairs is None else pairs
            ship = await _run_ship_test(gate, task, run.initial, finalists, fresh, most, log)
        ending = _ending(gate, run.initial, state, finalists, ship, fresh, task.selection)
        ending = replace(ending, last=last)
        if evaluation.eval_test and task.test:
            skills = {"baseline": run.initial, "best": ending.handed_back, "final": ending.found}
            if ship is None:
                skills["final"] = gate.incumbent
                measured = await _run_tests(run.engine, task.test, skills, log)
            else:
                measured = fresh.measured(skills, task.test)
            ending = replace(ending, tests=_emit_tests(measured, log))
        before, after = _scores_before_and_after(evaluation, gate, ending)
        hands_back_found = ending.handed_back.hash == ending.found.hash
        _audit(task, after if hands_back_found else before, log)
        reason = _finish_reason(ending.ship, before, after, fit_only=run.task.fit_only)
        diagnosis = diagnose_run(_facts(run, state, ending, reason))
        cut_short = None if reason == "improved" else cut_short
        if cut_short is not None or diagnosis.cause == "infrastructure":
            losses.clear()  # resuming tries again
    if cut_short is not None:
        return end_by_budget(run, state, ending, cut_short)
    if diagnosis.cause == "infrastructure":
        # The scores are no evidence about the skill.
        reason, ending = "infrastructure", replace(ending, handed_back=run.initial)
    return conclude(run, state, ending, reason, str(diagnosis))


def end_by_budget(
    run: Components,
    state: TrainingState,
    ending: Ending,
    reached: BudgetReached,
) -> RunFinished:
    """End a run that reached a cap before it could show an improvement."""
    facts = replace(_facts(run, state, ending, "budget"), budget_reached=True)
    diagnosis = diagnose_run(facts)
    # Both advise to raise the cap; the cap's message names it.
    text = diagnosis.message if diagnosis.cause in BUDGET_CAUSES else str(diagnosis)
    return conclude(run, state, ending, "budget", f"{text} {reached}")


def unfinished(
    gate: Gate, initial: Skill, state: TrainingState, evaluation: EvaluationSection
) -> Ending:
    """Return what a run has that ends before the ship test."""
    found = gate.best if gate.initial_score is not None else initial
    trusted = found if not evaluation.ship_test else initial
    scores = _known_scores(gate, state, initial, found)
    return Ending(handed_back=trusted, found=found, scores=scores)


def conclude(
    run: Components,
    state: TrainingState,
    ending: Ending,
    finish_reason: RunFinishReason,
    diagnosis: str,
) -> RunFinished:
    """Emit that the run ended, and why. Also for runs that end early."""
    edits = list(run.gate.composition(ending.found).edits)
    handed_back, found = map(without_placeholder, (ending.handed_back, ending.found))
    ending = replace(ending, handed_back=handed_back, found=found)
    event = RunFinished(
        finish_reason=finish_reason,
        diagnosis=diagnosis,
        best_skill=handed_back.text,
        summary=summarise(run, state, ending, finish_reason, diagnosis),
        unproven_skill=found.text if ending.unproven(run.initial) else "",
        edits=edits,
        files=changed_parts(found, run.initial),
    )
    run.emit(event)
    return event


async def _compose(gate: Gate, log: StepLog) -> list[Skill]:
    """Return the skills worth a ship test, most promising first."""
    with log.stage("compose"):
        skills = await gate.compose()
    score = gate.composition(skills[0]).score if skills else None
    if score is not None and skills[0].hash != gate.incumbent.hash:
        emit_estimate(log.emit, COMPOSED, skills[0], score)
    return skills


async def _run_ship_test(
    gate: Gate,
    task: Task,
    initial: Skill,
    finalists: list[Skill],
    fresh: ShipRollouts,
    pairs: int,
    log: StepLog,
) -> ShipTested:
    """Compare the finalists with the initial skill on fresh rollouts."""
    evaluation = fresh.settings.config.evaluation
    finalists = finalists[: evaluation.finalists]
    items = ship_items(task, evaluation)
    skills = 1 + len(entrants(initial, finalists))
    with log.stage("ship", pairs * skills if skills > 1 else 0):
        result = await ship_test(
            fresh.measure,
            items,
            initial,
            finalists,
            fresh.settings,
            pairs=pairs,
            fit_only=task.fit_only,
        )
    tested = replace(result, gap=fresh.gap(result.skill_hash, initial.hash))
    log.emit(tested)
    return tested


def ship_items(task: Task, evaluation: EvaluationSection) -> list[Item]:
    """Return the items of the ship test, in an order in which every beginning has a similar share
    of test and selection items and of every type.
    """
    items = [*task.selection, *(task.test if evaluation.eval_test else ())]
    groups: defaultdict[tuple[str, str], list[Item]] = defaultdict(list)
    test = {item.id for item in task.test}
    for item in sorted(items, key=lambda item: stable_hash(item.id)):
        groups["test" if item.id in test else "selection", item.type].append(item)
    placed = []
    for kind in sorted(groups):
        for at, item in enumerate(groups[kind]):
            placed.append(((at + 0.5) / len(groups[kind]), stable_hash(item.id), item))
    return [item for _, _, item in sorted(placed, key=lambda entry: entry[:2])]


class ShipRollouts:
    """Measures skills for the ship test and keeps the outcomes."""

    def __init__(
        self, rollouts: SelectionRollouts, settings: GateSettings, *, second_grader: bool
    ) -> None:
        self._rollouts = rollouts
        self.settings = settings
        self._second_grader = second_grader
        self._outcomes: defaultdict[str, list[Outcome]] = defaultdict(list)

    async def measure(
        self, arms: Sequence[tuple[Arm, Item]], *, repeat: int, series: str
    ) -> list[Outcome]:
        outcomes = await self._rollouts(arms, repeat=repeat, series=series)
        for (arm, _), outcome in zip(arms, outcomes, strict=True):
            self._outcomes[arm.skill.hash].append(outcome)
        return outcomes

    def compared(
        self, initial: Skill, found: Skill, items: Sequence[Item]
    ) -> ComparedTallies | None:
        """Return the tallies of two skills under the training grader on some of the items; None
        where one has no scored rollout.
        """
        before, after = (
            self._samples(skill.hash, self._trained_score, items) for skill in (initial, found)
        )
        if not before.scored or not after.scored:
            return None
        return ComparedTallies(before.tally(), after.tally())

    def measured(self, skills: Mapping[str, Skill], items: Sequence[Item]) -> list[Measured]:
        """Return the rollouts of skills on some items, under the training grader."""
        ids = {item.id for item in items}
        found = []
        for name, skill in skills.items():
            outcomes = []
            for outcome in self._outcomes[skill.hash]:
                score = self._trained_score(outcome.score) if outcome.score is not None else None
                if outcome.item_id in ids:
                    outcomes.append(replace(outcome, score=score))
            found.append(Measured(name, skill, tuple(items), tuple(outcomes)))
        return [one for one in found if one.outcomes]

    def gap(self, skill_hash: str, initial_hash: str) -> float | None:
        """Return the gain under the training grader minus the gain under the second one, on the
        same rollouts; None without a second grader, or for the initial skill itself.
        """
        if not self._second_grader or skill_hash == initial_hash:
            return None
        gains = []
        for score in (self._trained_score, _ship_score):
            found = self._samples(skill_hash, score)
            differences = found.against(self._samples(initial_hash, score))
            gains.append(mean(list(differences.values())))
        return gains[0] - gains[1]

    def _samples(
        self,
        skill_hash: str,
        score_of: Callable[[Score], Score | None],
        items: Sequence[Item] | None = None,
    ) -> Samples:
        samples = Samples(self.settings)
        ids = None if items is None else {item.id for item in items}
        for outcome in self._outcomes[skill_hash]:
            if ids is not None and outcome.item_id not in ids:
                continue
            score = score_of(outcome.score) if outcome.score is not None else None
            samples.add([replace(outcome, score=score)])
        return samples

    def _trained_score(self, score: Score) -> Score | None:
        if not self._second_grader:
            return score
        return Score(*score.trained) if score.trained else None


def _ship_score(score: Score) -> Score | None:
    """Return the score by the ship grader; None where the training grader has no score."""
    return score if score.trained else None


def _ending(
    gate: Gate,
    initial: Skill,
    state: TrainingState,
    finalists: Sequence[Skill],
    ship: ShipTested | None,
    fresh: ShipRollouts,
    selection: Sequence[Item],
) -> Ending:
    """Return what the run found, and what it hands back: the initial skill, unless the ship test
    says "improved" or is turned off.
    """
    if ship is None:
        found = gate.best
    elif ship.pairs:
        found = next(one for one in finalists if one.hash == ship.skill_hash)
    else:
        found = finalists[0] if finalists else initial
    known = _known_scores(gate, state, initial, found)
    return Ending(
        handed_back=found if ship is None or ship.verdict == "improved" else initial,
        found=found,
        scores=fresh.compared(initial, found, selection) or known,
        ship=ship,
    )


async def _report_last(
    gate: Gate, engine: RolloutEngine, items: Sequence[Item], tally: Tally, log: StepLog
) -> None:
    """Report the recorded rollouts of the last incumbent once more, for this stage's files."""
    skill = gate.incumbent
    with log.stage("final", len(items)):
        recorded = requests_for(_measured_as(gate, skill, tally), items)
        await engine.run(recorded, stage="final", series="selection")
    emit_score(log.emit, "final", skill, tally)


def _measured_as(gate: Gate, skill: Skill, tally: Tally) -> Skill:
    """Return the skill whose rollouts a tally counts: the one without the empty region of the slow
    update, where the gate took its measurements for both.
    """
    plain = without_placeholder(skill)
    try:
        return plain if gate.tally(plain) == tally else skill
    except NotMeasured:
        return skill


def _known_scores(
    gate: Gate, state: TrainingState, initial: Skill, found: Skill
) -> ComparedTallies | None:
    """Return initial and found skill on what the gate measured."""
    if state.baseline is None:
        return None
    if found.hash == initial.hash:
        return ComparedTallies(state.baseline, state.baseline)
    try:
        return ComparedTallies(state.baseline, gate.tally(found))
    except NotMeasured:
        return None


def _scores_before_and_after(
    evaluation: EvaluationSection, gate: Gate, ending: Ending
) -> tuple[float, float]:
    """Return the scores of the initial and the found skill under the gate's metric."""
    if ending.scores is None:
        before = gate.initial_score
        return (0.0, 0.0) if before is None else (before, gate.standings.current_score)
    initial, found = ending.scores.initial, ending.scores.found
    return evaluation.value(initial.hard, initial.soft), evaluation.value(found.hard, found.soft)


def _audit(task: Task, score: float, log: StepLog) -> None:
    """Warn about a score that a one-line rule reaches too. `score`: of the skill handed back."""
    check = audit(shortcuts(task.train, task.selection), score)
    if check.verdict != "go":
        log.emit(Warned(what=check.name, message=check.message))


async def _run_tests(
    engine: RolloutEngine, items: tuple[Item, ...], skills: Mapping[str, Skill], log: StepLog
) -> list[Measured]:
    """Read the test split once: each distinct skill among initial, best and final."""
    distinct = {skill.hash: skill for skill in skills.values()}
    found = {}
    with log.stage("test", len(items) * len(distinct)):
        for key, skill in distinct.items():
            requests = requests_for(skill, items)
            try:
                found[key] = await engine.run(requests, stage="test", series="test")
            except BudgetReached as reached:
                message = f"The test split was not read. {reached}"
                log.emit(Warned(what="test", message=message))
                return []
            raise_if_skipped(found[key])
    return [
        Measured(name, skill, items, tuple(found[skill.hash])) for name, skill in skills.items()
    ]


def _emit_tests(measured: Sequence[Measured], log: StepLog) -> dict[str, Tally]:
    """Emit the scores of skills on the test split, and return them by name."""
    for one in measured:
        emit_score(log.emit, f"test_{one.name}", one.skill, one.tally, "test", one.by_type)
    return {one.name: one.tally for one in measured}


def _finish_reason(
    ship: ShipTested | None, before: float, after: float, *, fit_only: bool
) -> RunFinishReason:
    if ship is not None:
        return "unverified" if fit_only else _REASON_OF[ship.verdict]
    # Without a ship test the gate's own scores decide, as in SkillOpt.
    return "improved" if after > before else "no_improvement"


def _facts(
    run: Components, state: TrainingState, ending: Ending, finish_reason: RunFinishReason
) -> Facts:
    """Collect what the diagnosis may rest on."""
    stats, evaluation = run.engine.stats, run.config.evaluation
    baseline, is_measured = run.gate.initial_score or 0.0, run.gate.initial_score is not None
    before, after = _scores_before_and_after(evaluation, run.gate, ending)
    measured = run.gate.noise() if is_measured else None
    noise = measured or baseline * (1 - baseline) / 2
    pairs = ending.ship.pairs if ending.ship and ending.ship.pairs else len(run.task.selection)
    improved: ShipVerdict | None = "improved" if finish_reason == "improved" else None
    stopped = {check.name: check.message for check in state.checks if check.verdict == "stop"}
    effects = run.gate.effects() if is_measured else ()
    actions = count_actions(state.records)
    return Facts(
        run=str(run.path.resolve()),
        ship=ending.ship.verdict if ending.ship else improved,
        baseline=baseline,
        coverage=1.0 if stats.coverage is None else stats.coverage,
        coverage_floor=evaluation.coverage_floor,
        selection_items=len(run.task.selection),
        detectable=detectable_effect(pairs, noise),
        steps=len(state.records),
        edits_wanted=run.config.optimizer.learning_rate != 0,
        proposed=state.proposed,
        selected=sum(record.n_edits_ranked or 0 for record in state.records),
        unread_rates=sum(
            record.lr_decision is not None
            and record.lr_decision.fallback
            and not record.lr_decision.learning_rate
            for record in state.records
        ),
        refused=run.text_filter.refused,
        usable=state.usable_edits,
        accepted=actions.accepts,
        rejected=actions.rejects,
        uncovered=sum(record.action == "inconclusive" for record in state.records),
        ship_coverage=(
            ending.ship.evidence.coverage if ending.ship is not None and ending.ship.pairs else 1.0
        ),
        effects=effects,
        difference=ending.ship.difference if ending.ship else after - before,
        proposer=author_of(run.proposer),
        optimizer_failures=state.optimizer_failures,
        measured=is_measured,
        changed=ending.found.hash != run.initial.hash,
        verified=ending.ship is not None,
        blind_grader=stopped.get("blind", ""),
        gold_rejected_by=_gold_rejected_by(stopped),
        constant=stats.constant,
        fit_only=run.task.fit_only,
        gap=ending.ship.gap if ending.ship else None,
        margin=evaluation.margin if evaluation.objective == "cheaper" else None,
        saving=ending.ship.saving if ending.ship else None,
        ship_reason=ending.ship.reason if ending.ship else "",
        rollouts=stats.scored,
    )


def _gold_rejected_by(
    stopped: Collection[CheckName],
) -> Literal["", "env.grader", "evaluation.ship_grader"]:
    """Return the setting of the grader that rejected the gold answers in the preflight."""
    if "gold" in stopped:
        return "env.grader"
    return "evaluation.ship_grader" if "ship gold" in stopped else ""


def summarise(
    run: Components,
    state: TrainingState,
    ending: Ending,
    finish_reason: RunFinishReason,
    diagnosis: str,
) -> RunSummary:
    """Build the summary.json of a run that ends now."""
    actions, ship, stats = count_actions(state.records), ending.ship, run.engine.stats
    best_step, best_origin = _source_of(ending.handed_back, run.initial, run.gate)
    summary = RunSummary(
        version=f"skillfit-{__version__}",
        finish_reason=finish_reason,
        diagnosis=diagnosis,
        config=RecordedConfig.of(run.config),
        total_steps=run.schedule.total_steps,
        steps_done=len(state.records),
        total_accepts=actions.accepts,
        total_rejects=actions.rejects,
        total_skips=actions.skips,
        edits_blocked=run.text_filter.refused,
        best_step=best_step,
        current_origin=_current_origin(run.gate),
        best_origin=best_origin,
        epoch_stats=_epoch_stats(state.records),
        ship=ship,
        skill_tokens=SkillTokens(
            initial=run.initial.tokens,
            best=ending.handed_back.tokens,
            found=ending.found.tokens,
        ),
        unproven=ending.unproven(run.initial),
        cut=_lines_cut(run.initial, ending.found, run.config.optimizer.parts)
        if run.config.removes_initial_text
        else (),
        coverage=stats.coverage,
        rollouts=RolloutCounts(stats.planned, stats.scored),
        total_wall_time_s=round(run.budget.minutes * 60, 1),
    )
    summary = _with_selection_scores(summary, run.config.evaluation, ending)
    summary = _with_test_scores(summary, run.config.evaluation, ending)
    return _with_usage(summary, run.journal.bill())


def _current_origin(gate: Gate) -> str:
    """Return the origin of the last incumbent, also for a run that ended before its baseline."""
    return gate.standings.current_origin if gate.initial_score is not None else INITIAL.name


def _source_of(skill: Skill, initial: Skill, gate: Gate) -> tuple[int | None, str]:
    """Return the step and the origin of the skill that is handed back. One that was composed from
    edits of several steps has no step of its own.
    """
    if skill.hash == without_placeholder(initial).hash:
        return 0, "initial"
    for known in (gate.best, gate.incumbent):
        origin = gate.origin(known)
        if origin is not None and skill.hash == without_placeholder(known).hash:
            return origin.step, origin.name
    return None, COMPOSED


def _with_selection_scores(
    summary: RunSummary, evaluation: EvaluationSection, ending: Ending
) -> RunSummary:
    scores, last = ending.scores, ending.last
    return replace(
        summary,
        metric=evaluation.gate_metric,
        baseline_selection_hard=_hard_score(scores.initial if scores else None),
        baseline_selection_score=_metric_score(evaluation, scores.initial if scores else None),
        best_selection_hard=_hard_score(scores.found if scores else None),
        best_selection_score=_metric_score(evaluation, scores.found if scores else None),
        final_selection_hard=_hard_score(last),
        final_selection_soft=last.soft if last else None,
    )


def _with_test_scores(
    summary: RunSummary, evaluation: EvaluationSection, ending: Ending
) -> RunSummary:
    baseline, best, final = (ending.tests.get(name) for name in ("baseline", "best", "final"))
    return replace(
        summary,
        baseline_test_hard=_hard_score(baseline),
        baseline_test_soft=baseline.soft if baseline else None,
        test_hard=_hard_score(best),
        test_soft=best.soft if best else None,
        final_test_hard=_hard_score(final),
        final_test_soft=final.soft if final else None,
        baseline_test_score=_metric_score(evaluation, baseline),
        test_score=_metric_score(evaluation, best),
        final_test_score=_metric_score(evaluation, final),
        test_delta_hard=best.hard - baseline.hard if best and baseline else None,
        final_test_delta_hard=final.hard - baseline.hard if final and baseline else None,
    )


def _with_usage(summary: RunSummary, bill: Bill) -> RunSummary:
    stages, roles = bill.by_stage, bill.by_role
    return replace(
        summary,
        usage=UsageTotals.of(bill.total),
        usage_by_stage={name: UsageTotals.of(usage) for name, usage in stages.items()},
        usage_by_role={name: UsageTotals.of(usage) for name, usage in roles.items()},
        token_summary={name: TokenCounts.of(usage) for name, usage in stages.items()},
    )


def _lines_cut(initial: Skill, found: Skill, parts: Collection[Part]) -> tuple[str, ...]:
    """Return the lines of the initial skill that `optimizer.prune_initial` cut: "lines 12-14"."""
    return tuple(
        unit.lines
        for unit in units_of_parts(initial, "paragraph", parts)
        if unit.text not in (part_text(found, unit.file) or "")
    )


def _hard_score(tally: Tally | None) -> float | None:
    return tally.hard if tally and tally.scored else None


def _metric_score(evaluation: EvaluationSection, tally: Tally | None) -> float | None:
    """Return the score of a tally under the gate's metric."""
    return evaluation.value(tally.hard, tally.soft) if tally and tally.scored else None


@dataclass(frozen=True, slots=True)
class ActionCounts:
    """How many steps were accepted, rejected and skipped."""

    accepts: int
    rejects: int
    skips: int


def count_actions(records: Sequence[StepRecord]) -> ActionCounts:
    """Count the accepted, rejected and skipped steps. Every step is exactly one of the three."""
    actions = [record.action for record in records]
    return ActionCounts(
        sum(action in ACCEPTED for action in actions),
        sum(action in ("reject", "inconclusive") for action in actions),
        sum(action in SKIPPED for action in actions),
    )


def _epoch_stats(records: Sequence[StepRecord]) -> tuple[EpochStats, ...]:
    stats = []
    for epoch, group in groupby(records, key=lambda record: record.epoch):
        steps = list(group)
        counts, standings = count_actions(steps), steps[-1].standings
        stats.append(
            EpochStats(
                epoch,
                len(steps),
                counts.accepts,
                counts.rejects,
                counts.skips,
                standings.best_score,
                standings.current_score,
            )
        )
    return tuple(stats)
