"""Start a run or resume it: open the directory, check, train, finish, and end in any case. Or only
check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skillfit.config import Config
from skillfit.errors import Exit, InfrastructureError, SkillfitError
from skillfit.models import ModelError
from skillfit.models.protocol import AnswerPending
from skillfit.optimize.memory import write_evidence
from skillfit.record.record import RESUMABLE
from skillfit.run.budget import BudgetReached
from skillfit.run.control import Control, Interrupted, RecordedRequests
from skillfit.run.directory import RunDirectory
from skillfit.run.events import ItemsRead, PreflightFinished, RunFinished, RunStarted, Warned
from skillfit.run.records import (
    CheckResult,
    EvidenceMemory,
    RunFinishReason,
    RunSummary,
)
from skillfit.training.assemble import Assembled, Listener, assemble
from skillfit.training.finish import (
    EXIT_OF,
    conclude,
    end_by_budget,
    finish,
    prune_after_cap,
    reserve_finish,
    unfinished,
)
from skillfit.training.inputs import (
    Inputs,
    item_records,
    refuse_run_inside_skill,
    with_checked_plan,
    with_recorded_evidence,
)
from skillfit.training.loop import set_requested_caps, train
from skillfit.training.preflight import budget_check, probe, run_preflight
from skillfit.training.state import Components, TrainingState
from skillfit.training.user_parts import PartFailed


class PreflightStopped(SkillfitError):
    """The preflight found a reason not to train, and `force` was not given."""

    exit_code = Exit.PREFLIGHT


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """How a run ended. `run`: its directory."""

    finish_reason: RunFinishReason
    diagnosis: str
    run: Path
    exit_code: Exit
    summary: RunSummary

    @classmethod
    def of(cls, ended: RunFinished, run: Path) -> TrainingResult:
        reason = ended.finish_reason
        return cls(reason, ended.diagnosis, run, EXIT_OF[reason], ended.summary)


async def start(
    inputs: Inputs,
    path: Path,
    *,
    force_new: bool = False,
    force: bool = False,
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
) -> TrainingResult:
    """Train in the run directory `path`, or resume the run that is there. A run that is over only
    tells the listeners what it recorded.

    Raises what the user must fix (bad key, Ctrl-C, handoff prompts to answer, a failed part): the
    run is saved, and the same call resumes it. `force_new` moves a run that is there aside and
    starts a new one; `force` trains even if the preflight says stop.
    """
    refuse_run_inside_skill(inputs.config.env.skill, path, force_new=force_new)
    inputs.refuse_template()
    if force_new:
        inputs.refuse_useless_plan()
    else:
        inputs = with_recorded_evidence(with_checked_plan(inputs, path), path)
    control, identity = control or Control(), inputs.identity()
    with RunDirectory.open(path, identity, force_new=force_new, keep_end=True) as directory:
        if (over := _recorded_end(inputs.config, directory)) is not None:
            control.read_usage = directory.journal.spent
            for listener in listeners:
                directory.events.listen(listener)
            directory.events.replay()
            return TrainingResult.of(over, directory.path)
        directory.reopen()
        async with assemble(inputs, directory, listeners, control) as ready:
            directory.expect_no_fix()
            components = ready.components
            _begin(ready, directory.run_id, inputs)
            for message in components.task.warnings:
                components.emit(Warned(what=f"splits: {message}", message=message))
            try:
                ended = await _train(ready, force, inputs.evidence)
            except Interrupted:
                raise Interrupted(directory.path) from None
            except PartFailed as failure:
                directory.expect_fix_of(failure.kind)
                given = getattr(inputs.given, failure.kind) is not None
                raise failure.in_run(directory.path, from_python=given) from failure.__cause__
            return TrainingResult.of(ended, directory.path)


def _recorded_end(config: Config, directory: RunDirectory) -> RunFinished | None:
    """Return how a run ended if it would end the same again; None for one that can continue: it
    stopped at a cap or a failure, or has other caps or places now, or requests to read.
    """
    started, ended = directory.events.found(RunStarted), directory.events.found(RunFinished)
    if not started or not ended or ended[0].finish_reason not in EXIT_OF:
        return None
    requests = RecordedRequests(directory.journal, directory.path).unread()
    if ended[0].finish_reason in RESUMABLE or started[0].config.settings != config:
        return None
    if any(request.action not in ("apply", "undo") for request in requests):
        return None
    # A stop before the memory was written would leave it without this run.
    return None if config.optimizer.memory else ended[0]


async def check_run(
    inputs: Inputs, path: Path, *, listeners: Sequence[Listener] = (), control: Control
) -> PreflightFinished:
    """Run the preflight alone (`skillfit check`). Its rollouts are recorded in the run directory,
    so that a run started there later does not pay for them again.
    """
    refuse_run_inside_skill(inputs.config.env.skill, path)
    inputs.refuse_template()
    inputs = with_recorded_evidence(with_checked_plan(inputs, path), path)
    with RunDirectory.open(path, inputs.identity(), keep_end=True) as directory:
        async with assemble(inputs, directory, listeners, control) as ready:
            await probe(ready, again=True)
            _begin(ready, directory.run_id, inputs)
            return await run_preflight(ready)


async def _train(ready: Assembled, force: bool, evidence: EvidenceMemory) -> RunFinished:
    """Run the preflight, the loop and the last stages.

    When a budget is reached after the first step, pruning and the ship test still run on what was
    kept for them.
    Without that test the run hands back the initial skill, and the best one that it found counts as
    unproven. With `evaluation.ship_test` off it hands back the best one.
    """
    run = ready.components
    set_requested_caps(run.requests, run.budget)
    state = TrainingState(epoch_start=run.initial, evidence=evidence)
    pairs: int | None = None  # None: nothing is kept for the ship test yet
    try:
        state = replace(state, checks=await _preflight(ready, force))
        try:
            async for current in train(run, state):
                state = current
                pairs = reserve_finish(run, len(state.records))
        except BudgetReached as reached:
            if not state.records or pairs is None:
                raise  # nothing was tried yet, so there is nothing to compare
            await prune_after_cap(run, len(state.records), pairs)
            ended = await finish(run, state, pairs, cut_short=reached)
        else:
            ended = await finish(run, state, pairs)
        if run.config.optimizer.memory:
            write_evidence(Path(run.config.optimizer.memory), state.evidence)
        return ended
    except BudgetReached as reached:
        ending = unfinished(run.gate, run.initial, state, run.config.evaluation)
        return end_by_budget(run, state, ending, reached)
    except AnswerPending:
        raise
    except (InfrastructureError, ModelError) as error:
        run.check_stop()
        ending = unfinished(run.gate, run.initial, state, run.config.evaluation)
        conclude(run, state, ending, "infrastructure", str(error))
        raise


async def _preflight(ready: Assembled, force: bool) -> tuple[CheckResult, ...]:
    """End a run with wrong keys or model names here, before it spends, or with a budget that has no
    room for a step.
    """
    if not ready.components.config.evaluation.preflight:
        await probe(ready)
        return ()
    budget = budget_check(ready.components, None)
    if budget.verdict == "stop" and not force:
        raise PreflightStopped(
            f"Nothing was sent. {budget.message}", hint="Raise the budget, or use --force."
        )
    with ready.components.decision("preflight"):  # the next start does not repeat them
        report = await run_preflight(ready)
        if report.verdict == "stop" and not force:
            reasons = [check.message for check in report.checks if check.verdict == "stop"]
            raise PreflightStopped(
                f"Not worth training yet: {' '.join(reasons)}",
                hint="Fix this (another setting needs another --run), or override with --force.",
            )
    return tuple(report.checks)


def _begin(ready: Assembled, run_id: str, inputs: Inputs) -> None:
    """Record what the run begins with."""
    components = ready.components
    components.emit(_start_event(components, run_id, inputs))
    components.emit(ItemsRead(items=item_records(components.task)))


def _start_event(run: Components, run_id: str, inputs: Inputs) -> RunStarted:
    task = run.task
    splits = {"train": len(task.train), "selection": len(task.selection), "test": len(task.test)}
    return RunStarted.of(
        run_id,
        run.config,
        run.initial,
        splits,
        total_epochs=len(run.schedule.epochs),
        steps_per_epoch=run.schedule.steps_per_epoch,
        planned_steps=run.schedule.total_steps,
        fit_only=task.fit_only,
        rollout_plan=inputs.rollout_plan,
        phases=run.schedule.phases,
        evidence=inputs.evidence if run.config.optimizer.memory else None,
    )
