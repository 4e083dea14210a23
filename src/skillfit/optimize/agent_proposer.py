"""A proposer that lets the optimizer work as an agent on a copy of the skill.

The agent gets a folder with the skill and all training rollouts as files (agent_folder.py), and
edits the skill there. What it changed is cut into single edits (cut_edits.py), which the gate
measures one by one, as those of any proposer. Its notes are in the folder of the next round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from skillfit.agents.cli_agent import configured_program
from skillfit.errors import InfrastructureError, InputError
from skillfit.models.failures import can_be_lost, is_unreachable
from skillfit.models.protocol import ModelError
from skillfit.optimize.agent_changes import ChangeEntry, checked_counts, entry_for, read_entries
from skillfit.optimize.agent_folder import AgentFolder
from skillfit.optimize.agent_sessions import STAGE, AgentAssignment, AgentSession, AgentSessions
from skillfit.optimize.context import Context
from skillfit.optimize.cut_edits import appended_lines, cut_edits
from skillfit.optimize.material import Material
from skillfit.optimize.optimizer import (
    Optimizer,
    Patch,
    Proposal,
    render,
    sections,
    union,
    without_duplicates,
)
from skillfit.optimize.proposer import (
    Author,
    OptimizerModel,
    Proposals,
    ProposerParts,
    finished_cases,
)
from skillfit.rollout.outcome import StepRollouts
from skillfit.run.events import ReflectionFinished
from skillfit.run.paid import PaidEffects
from skillfit.run.records import FailureNote
from skillfit.skill import Edit, Skill
from skillfit.skill.parts import ONLY_BODY

MOST_EDITS = 60  # of one session
_NAME = "agent"
_SHOWN = 120  # characters of a refused change


class AgentProposer:
    """The optimizer works as an agent in a folder with the skill and all training rollouts."""

    needs_optimizer = True
    needs_patch_mode = True
    writes_notes = False
    author: Author = "model"

    def __init__(self, parts: ProposerParts) -> None:
        if parts.optimizer is None or parts.model is None:
            raise InputError("optimizer.proposer: agent needs model.optimizer.")
        if parts.model.spec.is_cli:
            _check_program(parts.model, parts.paid)
        self._optimizer = parts.optimizer
        minutes = parts.settings.agent_minutes
        self._sessions = AgentSessions(parts.optimizer, parts.model, parts.paid, minutes)
        self._has_tools = not parts.model.spec.is_cli
        self._notes: Mapping[str, str] = {}  # of the rounds so far

    async def propose(self, skill: Skill, rollouts: StepRollouts, context: Context) -> Proposals:
        material = Material.of(context.history, await finished_cases(rollouts))
        if not any(kind.new_failures for kind in material.kinds):
            return Proposals()
        assignment = self._assignment(context.working or skill, material, context)
        try:
            session = await self._sessions.run(assignment)
        except ModelError as error:
            if is_unreachable(error.kind):
                raise InfrastructureError(
                    f"The agent that writes the edits failed: {error.message}",
                    hint=error.hint
                    or "Nothing was learned and nothing was decided. Check the "
                    "optimizer, then start the same run again.",
                ) from error
            if not can_be_lost(error.kind):
                raise
            self._optimizer.discard(context.step, STAGE, _NAME, error)
            return Proposals(failures=1)
        self._notes = {
            name: checked_counts(text, material) for name, text in session.left.notes.items()
        }
        patch = _patch(self._optimizer, assignment, session, material, context)
        self._optimizer.emit(
            ReflectionFinished(
                step=context.step,
                group=_NAME,
                source=patch.source,
                items=list(patch.items),
                patch=patch.record(),
            )
        )
        return Proposals(extra=(patch,))

    def _assignment(self, skill: Skill, material: Material, context: Context) -> AgentAssignment:
        trace = self._optimizer.gradient.trace_to_optimizer
        settings = self._optimizer.settings
        folder = AgentFolder.of(
            skill, material, context, self._notes, trace=trace, parts=settings.parts
        )
        system = render(
            "agent",
            document=folder.document,
            guidance=bool(context.guidance),
            tools=self._has_tools,
            most=MOST_EDITS,
            parts=settings.parts,
            other_parts=settings.parts != ONLY_BODY,
            check=settings.script_check,
        )
        user = sections(
            owner_wishes=context.guidance,
            optimizer_meta_skill=context.meta_skill,
            failures_so_far=context.evidence,
            previous_steps=context.memory,
            task=f"Round {context.step}. Improve {folder.document}.",
        )
        return AgentAssignment(context.step, folder, system, user)


def _check_program(model: OptimizerModel, paid: PaidEffects) -> None:
    """Raise what would keep every session from working, or a cap from being held."""
    command = configured_program(model.spec, sandbox=model.sandbox)
    command.check()
    left, reports = paid.left(), command.description.reports
    has_price = model.prices.of(model.spec.id) is not None
    unseen = {
        "tokens": left.tokens is not None and "tokens" not in reports,
        "usd": left.usd is not None
        and not ("usd" in reports or ("tokens" in reports and has_price)),
    }
    if caps := [f"budget.{cap}" for cap, is_unseen in unseen.items() if is_unseen]:
        raise InputError(
            f"{' and '.join(caps)} cannot be held: {model.spec.id} does not report what it uses.",
            hint="Cap calls (each session counts as one), rollouts or minutes instead, or set "
            "optimizer.proposer: corpus.",
        )


def _patch(
    optimizer: Optimizer,
    assignment: AgentAssignment,
    session: AgentSession,
    material: Material,
    context: Context,
) -> Patch:
    """Turn the changes of a session into single edits, each with the purpose the agent gives."""
    step, given = context.step, assignment.folder.skill
    for problem in session.left.problems:
        optimizer.discard(step, STAGE, _NAME, problem)
    if session.ended:
        otherwise = "What it changed until then is used."
        optimizer.discard(step, STAGE, f"{_NAME} session", session.ended, otherwise)
    document = given.text if session.left.document is None else session.left.document
    cut = cut_edits(
        given,
        document,
        appended_lines(context.effects or context.pending),
        parts=assignment.folder.parts,
        files=session.left.files,
    )
    for change in cut.refused:
        what = f"{_NAME} change {' '.join(change.text.split())[:_SHOWN]!r}"
        optimizer.discard(step, STAGE, what, change.reason)
    entries = read_entries(session.left.changes or session.message, material)
    proposals = [_proposal(edit, entry_for(edit, entries), material) for edit in cut.edits]
    kept = without_duplicates(proposals)
    if len(kept) > MOST_EDITS:
        reason = f"{len(kept)} changes; the first {MOST_EDITS} are used"
        optimizer.discard(step, STAGE, f"{_NAME} changes", reason)
    return Patch(
        kept[:MOST_EDITS],
        "failure",
        material.failed_items,
        checked_counts(session.message, material),
        _failure_notes(entries, material),
        merge=False,
        budgeted=False,
    )


def _proposal(edit: Edit, entry: ChangeEntry | None, material: Material) -> Proposal:
    if entry is None:
        return Proposal(edit, "failure")
    return Proposal(replace(edit, label=entry.purpose), "failure", _items(entry, material))


def _items(entry: ChangeEntry, material: Material) -> tuple[str, ...]:
    """Return the items that a change is for: those it names, else the failing ones of its kinds."""
    if entry.items:
        return entry.items
    failed = set(material.failed_items)
    of_kinds = (kind.items for kind in material.kinds if kind.name in entry.kinds)
    return tuple(item for item in union(*of_kinds) if item in failed)


def _failure_notes(entries: Sequence[ChangeEntry], material: Material) -> tuple[FailureNote, ...]:
    """Return the causes that the agent named, with the items that did fail."""
    failed = set(material.failed_items)
    items, purposes = dict[str, tuple[str, ...]](), dict[str, str]()
    for entry in entries:
        if entry.cause:
            found = (item for item in _items(entry, material) if item in failed)
            items[entry.cause] = union(items.get(entry.cause, ()), found)
            purposes.setdefault(entry.cause, entry.purpose)
    return tuple(
        FailureNote(cause, purposes[cause], len(found), found)
        for cause, found in items.items()
        if found
    )
