"""Start a run, or go on with it: open the directory, put the parts together, train, finish, and end
well whatever happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillfit import __version__
from skillfit.errors import Exit, InfrastructureError, SkillfitError
from skillfit.models import ModelError
from skillfit.models.protocol import AnswerPending
from skillfit.run.budget import BudgetReached
from skillfit.run.directory import RunDirectory
from skillfit.run.events import ItemsRead, RunStarted, Warned
from skillfit.tasks import Item
from skillfit.training.assemble import Listener, assemble
from skillfit.training.finish import EXIT_OF, conclude, end_by_budget, finish, so_far
from skillfit.training.loop import train
from skillfit.training.material import Material
from skillfit.training.parts import Control, Parts
from skillfit.training.preflight import probe, run_preflight
from skillfit.training.progress import Progress

_SHOWN = 400  # characters of an item's text


class PreflightStopped(SkillfitError):
    exit_code = Exit.PREFLIGHT


@dataclass(frozen=True, slots=True)
class Result:
    finish_reason: str
    diagnosis: str
    run: Path
    exit_code: Exit
    summary: dict[str, Any]


async def start(
    material: Material,
    path: Path,
    *,
    force_new: bool = False,
    anyway: bool = False,
    listeners: Sequence[Listener] = (),
    control: Control | None = None,
) -> Result:
    """Train in the run directory `path`. Raises what the person must mend (bad key, Ctrl-C, waiting
    for answers): the run is kept and the same call goes on with it. `anyway` trains although the
    preflight says stop.
    """
    with RunDirectory.open(path, material.identity(), force_new=force_new) as run:
        async with assemble(material, run, listeners, control or Control()) as parts:
            parts.emit(_started(parts))
            parts.emit(_items(parts))
            for message in parts.task.warnings:
                parts.emit(Warned(what=f"splits: {message}", message=message))
            progress = Progress(skill=parts.initial)
            try:
                await _preflight(parts, anyway)
                await train(parts, progress)
                ended = await finish(parts, progress)
            except BudgetReached as reached:
                ended = end_by_budget(parts, progress, reached)
            except AnswerPending:
                raise
            except (InfrastructureError, ModelError) as error:
                parts.admit()
                conclude(parts, progress, so_far(parts, progress), "infrastructure", str(error))
                raise
            return Result(
                ended.finish_reason,
                ended.diagnosis,
                run.path,
                EXIT_OF[ended.finish_reason],
                ended.summary,
            )


async def _preflight(parts: Parts, anyway: bool) -> None:
    """Wrong keys and model names end every run here, before it spends; the rest can be switched
    off.
    """
    if not parts.config.evaluation.preflight:
        await probe(parts)
        return
    report = await run_preflight(parts)
    if report.verdict == "stop" and not anyway:
        reasons = " ".join(check.message for check in report.checks if check.verdict == "stop")
        raise PreflightStopped(
            f"Not worth training yet: {reasons}",
            hint="Mend that, or train all the same with --anyway.",
        )


def _items(parts: Parts) -> ItemsRead:
    splits = {
        split: map(Item.loaded, getattr(parts.task, split))
        for split in ("train", "selection", "test")
    }
    return ItemsRead(
        items=[_shown(item, split) for split, items in splits.items() for item in items]
    )


def _shown(item: Item, split: str) -> dict[str, Any]:
    expected = "\n".join(item.answers) or item.reference
    told = {
        "id": item.id,
        "split": split,
        "type": item.type,
        "input": item.input[:_SHOWN],
        "expected": expected[:_SHOWN],
    }
    return told if item.weight == 1.0 else {**told, "weight": item.weight}


def _started(parts: Parts) -> RunStarted:
    task = parts.task
    return RunStarted(
        run=parts.run.run_id,
        config=parts.config.model_dump(mode="json"),
        version=__version__,
        skill=parts.initial.text,
        skill_hash=parts.initial.hash,
        splits={"train": len(task.train), "selection": len(task.selection), "test": len(task.test)},
        total_epochs=len(parts.plan.epochs),
        steps_per_epoch=parts.plan.steps_per_epoch,
        fit_only=task.fit_only,
    )
