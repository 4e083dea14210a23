"""Execution notes: reminders of rules the agent knew and did not follow, kept in the skill's
appendix.
"""

from __future__ import annotations

from collections.abc import Sequence

from skillfit.optimize.epoch import collect_notes, consolidate
from skillfit.optimize.patch import Patch
from skillfit.skill import appendix_notes, with_consolidated_notes, with_notes
from skillfit.training.parts import Parts
from skillfit.training.plan import PlannedStep
from skillfit.training.progress import Progress, adopt
from skillfit.training.record import StepRecord


async def flush_notes(
    parts: Parts,
    progress: Progress,
    planned: PlannedStep,
    patches: Sequence[Patch],
    record: StepRecord,
) -> list[str]:
    """A step's notes go to the appendix whether or not a candidate was accepted; the skill that
    carries them is measured. Returns those that are new.
    """
    optimizer, screen = parts.optimizer, parts.screen
    found = collect_notes(patches) if parts.config.optimizer.use_skill_aware_reflection else ()
    notes = tuple(note for note in found if screen.passes(note))
    if optimizer is None or not notes:
        return []
    held = set(appendix_notes(progress.skill))
    skill = with_notes(progress.skill, notes)
    condensed = await consolidate(optimizer, appendix_notes(skill), step=planned.step)
    consolidated = condensed is not None and all(screen.passes(note) for note in condensed)
    if consolidated:
        skill = with_consolidated_notes(skill, condensed or ())
    if skill.hash == progress.skill.hash or not screen.fits(skill, progress.skill, "appendix"):
        return []
    await adopt(parts, progress, skill, f"appendix_{planned.name}")
    kept = appendix_notes(skill)
    added = [note for note in kept if note not in held]
    record.noted(len(notes), len(added), len(kept), consolidated)
    return added
