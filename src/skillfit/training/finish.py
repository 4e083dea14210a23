"""The end of a run: prune what earns nothing, make the claim on fresh rollouts, read the test once,
and say how it went and why.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from skillfit.errors import Exit
from skillfit.gate import (
    Facts,
    ShipResult,
    assign_credit,
    diagnose,
    edit_pieces,
    paragraph_pieces,
    ship_test,
)
from skillfit.gate.shortcut import audit, shortcuts
from skillfit.gate.statistics import detectable_effect
from skillfit.rollout.outcome import Tally
from skillfit.run.budget import BudgetReached
from skillfit.run.events import CreditAssigned, RunFinished, ShipTested, Warned
from skillfit.skill import Skill
from skillfit.training.evaluate import Measured
from skillfit.training.parts import Parts
from skillfit.training.progress import Ending, Progress, Scores, say_score
from skillfit.training.shipping import ShipRollouts
from skillfit.training.summary import count_actions, summarise

EXIT_OF = {
    "improved": Exit.OK,
    "no_improvement": Exit.NO_IMPROVEMENT,
    "inconclusive": Exit.INCONCLUSIVE,
    "unverified": Exit.INCONCLUSIVE,
    "budget": Exit.BUDGET,
    "infrastructure": Exit.INFRASTRUCTURE,
}


async def finish(parts: Parts, progress: Progress) -> RunFinished:
    parts.at.epoch = 0
    final = await _validate(parts, progress)
    pruned = await _credit(parts, progress, parts.gate.best)
    fresh = ShipRollouts(parts)
    ship = await _ship(parts, pruned, fresh)
    best = ship.skill if ship is not None and ship.verdict == "improved" else pruned
    if best.hash == pruned.hash != parts.gate.best.hash:
        progress.best_origin = "pruned"
    progress.ending = Ending(best, await _scores(parts, progress, best, fresh), ship, final)
    ending = replace(progress.ending, tests=await _tests(parts, progress, best))
    _audit(parts, progress, ending)
    reason = _reason(parts, progress, ending)
    diagnosis = diagnose(_facts(parts, progress, ending, reason))
    if diagnosis.cause == "infrastructure":
        # nothing can be said about the skill, whatever the scores are; starting again tries again
        reason = "infrastructure"
    else:
        await parts.go_on_without_lost()
    return conclude(parts, progress, ending, reason, diagnosis.message)


def end_by_budget(parts: Parts, progress: Progress, reached: BudgetReached) -> RunFinished:
    ending = so_far(parts, progress)
    diagnosis = diagnose(replace(_facts(parts, progress, ending, "budget"), budget_reached=True))
    return conclude(parts, progress, ending, "budget", f"{diagnosis.message} {reached}")


def so_far(parts: Parts, progress: Progress) -> Ending:
    """What a run that ends early has to hand back."""
    best = parts.gate.best if progress.baseline is not None else parts.initial
    return progress.ending or Ending(best, _known_scores(parts, progress, best))


def conclude(
    parts: Parts, progress: Progress, ending: Ending, finish_reason: str, diagnosis: str
) -> RunFinished:
    """Say that the run ended, and why. Also for runs that ended early."""
    event = RunFinished(
        finish_reason=finish_reason,
        diagnosis=diagnosis,
        best_skill=ending.best.text,
        summary=summarise(parts, progress, ending, finish_reason, diagnosis),
    )
    parts.emit(event)
    return event


async def _validate(parts: Parts, progress: Progress) -> Tally:
    """The skill carried out of the last epoch is measured like any other, and becomes the best one
    if it is.
    """
    with parts.stage("final", len(parts.task.selection)):
        tally = await parts.gate.adopt(progress.skill)
    say_score(parts, "final", progress.skill, tally)
    progress.track_best(parts)
    return tally


async def _credit(parts: Parts, progress: Progress, best: Skill) -> Skill:
    """What each accepted edit and each old paragraph is worth, and the best skill without those
    that are worth nothing.
    """
    evaluation = parts.config.evaluation
    edits = edit_pieces([accepted.edit for accepted in progress.accepted])
    pieces = [*edits, *paragraph_pieces(parts.initial)]
    if not evaluation.prune or not edits or best.hash == parts.initial.hash:
        return best
    items = parts.task.selection
    with parts.stage("credit"):
        credit = await assign_credit(
            parts.measure,
            items,
            best,
            pieces,
            parts.gate_settings,
            discordant=parts.gate.discordant(best, parts.initial),
            rollout_budget=evaluation.rollout_budget or (evaluation.candidates + 4) * len(items),
        )
    steps = {accepted.edit: accepted.step for accepted in progress.accepted}
    parts.emit(
        CreditAssigned(
            edits=[
                {
                    "step": steps[worth.piece.edit] if worth.piece.edit else 0,
                    "label": worth.piece.label,
                    "edit": worth.piece.edit.as_dict() if worth.piece.edit else {},
                    "worth": worth.worth,
                    "interval": list(worth.interval),
                    "kept": worth.kept,
                    "reason": worth.reason,
                }
                for worth in credit.worths
                if worth.piece.edit
                or worth.worth is not None  # old text is told where it was looked at
            ],
            tokens_before=credit.tokens_before,
            tokens_after=credit.tokens_after,
            skill=credit.skill.text,
        )
    )
    return credit.skill


async def _ship(parts: Parts, best: Skill, fresh: ShipRollouts) -> ShipResult | None:
    if not parts.config.evaluation.ship_test:
        return None
    # The best one may have been pruned since the gate saw it; it goes first all the same.
    others = parts.gate.finalists(parts.config.evaluation.finalists)[1:]
    with parts.stage("ship"):
        result = await ship_test(
            fresh.measure,
            parts.task.selection,
            parts.initial,
            [] if best.hash == parts.initial.hash else [best, *others],
            parts.gate_settings,
            noise=parts.gate.noise(),
            fit_only=parts.task.fit_only,
        )
    result = replace(result, gap=fresh.gap(result.skill, parts.initial))
    parts.emit(
        ShipTested(
            verdict=result.verdict,
            difference=result.difference,
            interval=list(result.interval),
            probability=result.evidence.probability,
            repeats=result.repeats,
            evidence={
                **asdict(result.evidence),
                "reason": result.reason,
                "p_value": result.p_value,
                "gap": result.gap,
                "skill_hash": result.skill.hash,
            },
        )
    )
    return result


async def _scores(
    parts: Parts, progress: Progress, best: Skill, fresh: ShipRollouts
) -> Scores | None:
    """Both skills on the ship test's own rollouts; without these on what the gate knows, which has
    yet to meet a pruned skill.
    """
    before, after = fresh.tally(parts.initial), fresh.tally(best)
    if before is not None and after is not None:
        return Scores(before, after)
    if progress.best_origin == "pruned":
        with parts.stage("pruned", len(parts.task.selection)):
            tally = await parts.gate.adopt(best)
        say_score(parts, "pruned", best, tally)
    return _known_scores(parts, progress, best)


def _known_scores(parts: Parts, progress: Progress, best: Skill) -> Scores | None:
    """What the gate knows of both skills now; None before the first was measured."""
    if progress.baseline is None:
        return None
    if best.hash == parts.initial.hash:
        return Scores(progress.baseline, progress.baseline)
    return Scores(parts.gate.tally(parts.initial), parts.gate.tally(best))


def _values(parts: Parts, progress: Progress, ending: Ending) -> tuple[float, float]:
    """The scores of the initial skill and of the best one under the gate's metric."""
    if ending.scores is None:
        return progress.baseline_score, progress.baseline_score
    before, after = (
        parts.gate_settings.value(tally.hard, tally.soft)
        for tally in (ending.scores.baseline, ending.scores.best)
    )
    return before, after


def _audit(parts: Parts, progress: Progress, ending: Ending) -> None:
    """A score that a one-line rule reaches too says little about the skill."""
    found = audit(
        shortcuts(parts.task.train, parts.task.selection), *_values(parts, progress, ending)
    )
    if found.verdict != "go":
        parts.emit(Warned(what="shortcut", message=found.message))


async def _tests(parts: Parts, progress: Progress, best: Skill) -> dict[str, Tally] | None:
    """The test split, read once: initial, best and final skill, each distinct one measured once."""
    items = parts.task.test
    if not parts.config.evaluation.eval_test or not items:
        return None
    named = {"baseline": parts.initial, "best": best, "final": progress.skill}
    distinct = {skill.hash: skill for skill in named.values()}
    with parts.stage("test", len(items) * len(distinct)):
        found = {
            key: await parts.roll_out(skill, items, series="test")
            for key, skill in distinct.items()
        }
    measured = {
        name: Measured(name, skill, items, tuple(found[skill.hash]))
        for name, skill in named.items()
    }
    for name, one in measured.items():
        say_score(parts, f"test_{name}", one.skill, one.tally, "test", one.by_type)
    return {name: one.tally for name, one in measured.items()}


def _reason(parts: Parts, progress: Progress, ending: Ending) -> str:
    if ending.ship is not None:
        if parts.task.fit_only:
            return "unverified"
        return ending.ship.verdict.replace(" ", "_")
    # Without a ship test the gate's own score has to do, as in the reference.
    before, after = _values(parts, progress, ending)
    return "improved" if after > before else "no_improvement"


def _facts(parts: Parts, progress: Progress, ending: Ending, finish_reason: str) -> Facts:
    counts = parts.counts
    baseline = progress.baseline_score
    before, after = _values(parts, progress, ending)
    noise = parts.gate.noise() or baseline * (1 - baseline) / 2
    repeats = ending.ship.repeats if ending.ship and ending.ship.repeats else 1
    improved = "improved" if finish_reason == "improved" else ""
    return Facts(
        ship=ending.ship.verdict if ending.ship else improved,
        baseline=baseline,
        coverage=1.0 if counts.coverage is None else counts.coverage,
        coverage_floor=parts.config.evaluation.coverage_floor,
        proposed=progress.proposed,
        applied=progress.valid_edits,
        accepted=count_actions(progress.records)["accepts"],
        steps=len(progress.records),
        detectable=detectable_effect(len(parts.task.selection), noise, repeats),
        difference=ending.ship.difference if ending.ship else after - before,
        optimizer_failures=counts.discarded,
        changed=ending.best.hash != parts.initial.hash,
        verified=ending.ship is not None,
        grader_blind=counts.grader_blind,
        constant=counts.constant,
        fit_only=parts.task.fit_only,
    )
