"""A proposer that reads all training rollouts of a run at once and writes many single edits.

One call per step, over the rollouts of this step and of all earlier ones (material.py chooses what
it shows). It takes two calls, with one half of the failing kinds each, where there are many of them
or where their cases do not fit.

The edits refer to the skill with all pending edits applied, because most rollouts ran under it.
They are neither merged nor ranked: the gate measures each of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from skillfit.errors import InfrastructureError
from skillfit.models.failures import can_be_lost, is_unreachable, policy_of
from skillfit.models.protocol import ModelError
from skillfit.optimize.context import (
    Context,
    ItemAttempts,
    edit_text,
    fair_shares,
    measured_effect,
)
from skillfit.optimize.cut_edits import appended_lines, move_edit, without_doubled_bullets
from skillfit.optimize.material import (
    Kind,
    Material,
    ShownCases,
    kinds_table,
    show_cases,
    statistics,
)
from skillfit.optimize.optimizer import (
    CorpusEditReply,
    CorpusFileEditReply,
    CorpusReply,
    FailureNoteReply,
    Optimizer,
    OptimizerCall,
    Patch,
    Proposal,
    render,
    sections,
    union,
    without_duplicates,
)
from skillfit.optimize.proposer import Author, Proposals, ProposerParts, finished_cases
from skillfit.plain_text import head_and_tail
from skillfit.rollout.outcome import StepRollouts, gather
from skillfit.run.events import ReflectionFinished
from skillfit.run.records import EditEffect, FailureNote, ProposalSource
from skillfit.skill import MOVE_OP, WRITE_OP, Edit, Skill
from skillfit.skill.parts import (
    BODY,
    DESCRIPTION,
    ONLY_BODY,
    Part,
    named_file,
    part_of,
    part_text,
    part_texts,
)

MOST_EDITS = 60  # of one call
MANY_KINDS = 16  # failing kinds, from which two calls are made
CASES_ROOM = 120_000  # tokens of cases in one call, whatever the context window holds
_FILES_ROOM = 120_000  # characters of the skill's references and scripts
_CONTENT_OPTIONAL = ("delete", MOVE_OP, WRITE_OP)
_STAGE = "reflect.corpus"

_MARK = re.compile(r"[ \t]*⟦[^⟧\n]*⟧")
_BULLET = re.compile(r"[-*+] ")


class CorpusProposer:
    """The optimizer's model reads all training rollouts so far and writes many single edits."""

    needs_optimizer = True
    needs_patch_mode = True
    writes_notes = False
    author: Author = "model"

    def __init__(self, parts: ProposerParts) -> None:
        self._optimizer = parts.optimizer

    async def propose(self, skill: Skill, rollouts: StepRollouts, context: Context) -> Proposals:
        material = Material.of(context.history, await finished_cases(rollouts))
        fails_now = any(kind.new_failures for kind in material.kinds)
        if self._optimizer is None or not fails_now:
            return Proposals()
        parts = self._optimizer.settings.parts
        shown = _ShownSkill.of(context.working or skill, context, parts)
        readings = _readings(self._optimizer, material, shown, context)
        results = await gather(_read(self._optimizer, reading, context) for reading in readings)
        patches = tuple(result for result in results if isinstance(result, Patch))
        errors = [result for result in results if isinstance(result, ModelError)]
        if not patches and any(is_unreachable(error.kind) for error in errors):
            raise InfrastructureError(
                "The optimizer could not be asked for edits; the failure was: "
                f"{errors[-1].message}",
                hint="Nothing was learned and nothing was decided. Check the optimizer's endpoint, "
                "then start the same run again.",
            )
        return Proposals(extra=patches, failures=len(errors))


@dataclass(frozen=True, slots=True)
class _ShownSkill:
    """The skill as the call shows it: with a mark behind each line that an edit wrote."""

    skill: Skill
    texts: dict[str, str]  # of the body, and of each other part that edits may change
    lines: dict[str, str]  # edit id -> the text that it wrote and that stands in the skill
    effects: tuple[EditEffect, ...]
    parts: tuple[Part, ...]  # that edits may change

    @classmethod
    def of(cls, skill: Skill, context: Context, parts: tuple[Part, ...]) -> _ShownSkill:
        texts, lines = {BODY: skill.unix_body}, dict[str, str]()
        if "description" in parts:
            texts[DESCRIPTION] = part_text(skill, DESCRIPTION) or "(empty)"
        texts |= part_texts(skill, parts)
        effects = context.effects or context.pending
        for effect in effects:
            text, written = texts.get(effect.edit.file), effect.edit.content.strip("\n")
            if text is None or effect.status == "dropped" or not written.strip():
                continue
            found = re.search(rf"(?m)^{re.escape(written)}(?=[ \t]*(?:⟦|$))", text)
            if found is None:
                continue
            lines[effect.id] = written
            end = (text + "\n").index("\n", found.start())
            mark = f" ⟦{effect.id}: {measured_effect(effect)}⟧"
            texts[effect.edit.file] = f"{text[:end]}{mark}{text[end:]}"
        return cls(skill, texts, lines, effects, parts)

    @property
    def text(self) -> str:
        return self.texts[BODY] or "(empty)"

    @property
    def files(self) -> str:
        """The references and scripts, long ones cut in their middle."""
        found = {file: text for file, text in self.texts.items() if file not in (BODY, DESCRIPTION)}
        shares = fair_shares([len(text) for text in found.values()], _FILES_ROOM)
        return "\n\n".join(
            f"--- {file}\n{head_and_tail(text, share)}"
            for (file, text), share in zip(found.items(), shares, strict=True)
        )

    def text_of(self, file: str) -> str:
        """Return the text of a part without marks; empty for a file that does not exist."""
        return part_text(self.skill, file) or ""

    def other_edits(self, evidence: str) -> str:
        """List the edits that are not in the text, and not in the evidence either."""
        return "\n".join(
            f"[{effect.id}] {effect.status}: {edit_text(effect.edit)}: {measured_effect(effect)}"
            for effect in self.effects
            if effect.id not in self.lines and effect.id not in evidence
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one call reads."""

    name: str
    kinds: tuple[Kind, ...]  # the failing ones it shows
    material: Material
    shown: _ShownSkill
    system: str
    known: str

    def cases(self, optimizer: Optimizer, context: Context, *, shrink: int = 1) -> ShownCases:
        room = min(optimizer.room(self.system, self.known), CASES_ROOM) // shrink
        return show_cases(
            self.kinds,
            [kind for kind in self.material.kinds if not kind.is_open],
            self.shown.skill,
            room,
            trace=optimizer.gradient.trace_to_optimizer,
            pending=context.pending_ids,
        )


def _readings(
    optimizer: Optimizer, material: Material, shown: _ShownSkill, context: Context
) -> list[_Reading]:
    """Plan one call, or two where there are many failing kinds or their cases do not fit."""
    other_edits = shown.other_edits(context.evidence)
    system = render(
        "corpus",
        marks=bool(shown.lines),
        other_edits=bool(other_edits),
        guidance=bool(context.guidance),
        evidence=bool(context.evidence),
        most=MOST_EDITS,
        parts=shown.parts,
        other_parts=shown.parts != ONLY_BODY,
        check=optimizer.settings.script_check,
    )
    known = sections(
        owner_wishes=context.guidance,
        current_skill=shown.text,
        description=shown.texts.get(DESCRIPTION, ""),
        skill_files=shown.files,
        other_edits=other_edits,
        optimizer_meta_skill=context.meta_skill,
        failures_so_far=context.evidence,
        previous_steps=context.memory,
        kinds=kinds_table(material),
        statistics=statistics(material, context.pending_ids),
    )
    kinds = material.open_kinds
    whole = _Reading("corpus", kinds, material, shown, system, known)
    if len(kinds) < 2:
        return [whole]
    halves = [
        replace(whole, name=name, kinds=kinds[first::2])
        for first, name in enumerate(("corpus", "corpus_2"))
    ]
    if len(kinds) > MANY_KINDS:
        return halves
    shows = {case.item.id for case in whole.cases(optimizer, context).cases}
    fails_now = {seen.item.id for kind in kinds for seen in kind.new_failures}
    return [whole] if fails_now <= shows else halves


async def _read(optimizer: Optimizer, reading: _Reading, context: Context) -> Patch | ModelError:
    """Make one call. Returns the error when there is no usable reply (emitted as Discarded)."""
    try:
        answered = await _ask(optimizer, reading, context)
    except ModelError as error:
        if not can_be_lost(error.kind):
            raise
        optimizer.discard(context.step, _STAGE, reading.name, error)
        return error
    patch = _patch(optimizer, answered, reading, context.step)
    optimizer.emit(
        ReflectionFinished(
            step=context.step,
            group=reading.name,
            source=patch.source,
            items=list(patch.items),
            patch=patch.record(),
        )
    )
    return patch


@dataclass(frozen=True, slots=True)
class _Answered:
    """A reply, and the cases that it was written from."""

    reply: CorpusReply[CorpusEditReply] | CorpusReply[CorpusFileEditReply]
    cases: tuple[ItemAttempts, ...]

    @property
    def items(self) -> tuple[str, ...]:
        return tuple(case.item.id for case in self.cases)


async def _ask(optimizer: Optimizer, reading: _Reading, context: Context) -> _Answered:
    """Ask for the reply. Token counts are estimates, so a prompt that turns out to be too long is
    sent again with half the room for cases.
    """
    try:
        return await _ask_once(optimizer, reading, context)
    except ModelError as error:
        if not policy_of(error).shorten:
            raise
        return await _ask_once(optimizer, reading, context, shrink=2)


async def _ask_once(
    optimizer: Optimizer, reading: _Reading, context: Context, *, shrink: int = 1
) -> _Answered:
    shown = reading.cases(optimizer, context, shrink=shrink)
    user = f"{reading.known}\n\n{sections(cases=shown.text)}"
    call = OptimizerCall(_STAGE, context.step, reading.name, reading.system, user)
    if reading.shown.parts == ONLY_BODY:
        return _Answered(await optimizer.ask(CorpusReply[CorpusEditReply], call), shown.cases)
    return _Answered(await optimizer.ask(CorpusReply[CorpusFileEditReply], call), shown.cases)


def _patch(optimizer: Optimizer, answered: _Answered, reading: _Reading, step: int) -> Patch:
    """Return the edits of the reply that can be used."""
    failed = frozenset(reading.material.failed_items)
    by_kind = {kind.name.casefold(): kind for kind in reading.material.kinds}
    mixed = any(case.mixed for case in answered.cases)
    source: ProposalSource = "contrast" if mixed else "failure"
    proposals = []
    for number, entry in enumerate(answered.reply.edits, start=1):
        edits = _edits(entry, reading.shown)
        if isinstance(edits, str):
            optimizer.discard(step, _STAGE, f"{reading.name} edit {number}", edits)
            continue
        items = _items(entry, by_kind, answered.items, failed)
        proposals += [Proposal(edit, source, items) for edit in edits]
    kept = without_duplicates(proposals)
    if len(kept) > MOST_EDITS:
        reason = f"{len(kept)} edits; the first {MOST_EDITS} are used"
        optimizer.discard(step, _STAGE, f"{reading.name} edits", reason)
    return Patch(
        kept[:MOST_EDITS],
        source,
        answered.items,
        answered.reply.reasoning,
        tuple(_note(entry, failed) for entry in answered.reply.failures if entry.failure_type),
        merge=False,
        budgeted=False,
    )


def _items(
    entry: CorpusEditReply,
    kinds: dict[str, Kind],
    shown: Sequence[str],
    failed: frozenset[str],
) -> tuple[str, ...]:
    """Return the training items that an edit was written from: those that it names, else the
    failing ones of its kinds. An edit cannot have been written from an item that the call did not
    show.
    """
    named = tuple(item for item in union(entry.items) if item in shown)
    if named:
        return named
    of_kinds = [kinds[name] for text in entry.kinds if (name := text.strip().casefold()) in kinds]
    found = union(*(kind.items for kind in of_kinds))
    return tuple(item for item in shown if item in found and item in failed)


def _note(entry: FailureNoteReply, failed: frozenset[str]) -> FailureNote:
    """Return a failure with the items that did fail, which are counted here: a model's own count of
    what it read is often wrong.
    """
    items = tuple(item for item in union(entry.items) if item in failed)
    count = len(items) or min(max(entry.count or 1, 1), len(failed))
    description = entry.description
    if items and entry.count and entry.count != count:
        description = f"{description} (counted: {count}, not {entry.count})".strip()
    return FailureNote(entry.failure_type, description, count, items)


def _edits(entry: CorpusEditReply, shown: _ShownSkill) -> list[Edit] | str:
    """Return the edits that an entry of the reply stands for, or why it cannot be used."""
    file = named_file(entry.file) if isinstance(entry, CorpusFileEditReply) else BODY
    moves = entry.op.strip().casefold() == "move"
    target = _resolved(entry.target, shown, BODY if moves else file)
    content = _MARK.sub("", entry.content).strip("\n")
    label = " ".join(entry.purpose.split())
    if moves and file == BODY:
        after, appended = _resolved(entry.content, shown, BODY), appended_lines(shown.effects)
        moved = move_edit(shown.skill.unix_body, target, after, appended)
        return moved if isinstance(moved, str) else [replace(moved, label=label)]
    content = without_doubled_bullets(content) if part_of(file) != "scripts" else content
    edit = replace(Edit.from_reply(entry.op, target, content, file), label=label)
    adds = edit.op in ("append", "insert_after")
    if not edit.op or (edit.op not in _CONTENT_OPTIONAL and not content.strip()):
        return "the edit is empty"
    if adds and _says(shown.text_of(file), content):
        return "the skill already says this"
    if edit.op == "insert_after" and target not in shown.text_of(file):
        edit = replace(edit, op="append", target="")  # where it stands matters less than its text
    if edit.op == "append" and (not file or shown.text_of(file)):
        return [replace(edit, content=part) for part in _single_bullets(content)]
    return [edit]


def _resolved(target: str, shown: _ShownSkill, file: str) -> str:
    """Return the text that a target names: an id stands for the text that the edit wrote, marks do
    not count, and a line that differs in spacing or case is the line itself.
    """
    text = target.strip("\n")
    if (named := text.strip(" \t⟦⟧[]`:")) in shown.lines:
        return shown.lines[named]
    text = _MARK.sub("", text)
    present = shown.text_of(file)
    if not text.strip() or text in present:
        return text
    alike = [line for line in present.split("\n") if _plain(line) == _plain(text)]
    return alike[0] if len(alike) == 1 else text


def _plain(line: str) -> str:
    return " ".join(line.casefold().strip(" \t-*+•").split())


def _says(text: str, content: str) -> bool:
    """Return whether a text holds all these lines already."""
    lines = {_plain(line) for line in text.split("\n")}
    return all(_plain(line) in lines for line in content.split("\n") if line.strip())


def _single_bullets(content: str) -> list[str]:
    """Split a list into its bullets, so that each is measured by itself; keep other text."""
    lines = [line for line in content.split("\n") if line.strip()]
    is_list = all(_BULLET.match(line) for line in lines)
    return lines if is_list else [content]
