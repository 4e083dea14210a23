"""What each piece of the skill is worth, by leaving it out, and what can go without loss. Runs
before the ship test, which then judges the pruned skill on rollouts of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from skillfit.gate.evidence import believe
from skillfit.gate.samples import Drawer, Samples
from skillfit.gate.statistics import interval
from skillfit.gate.verdict import GateSettings, Measure
from skillfit.rollout.gather import gather
from skillfit.skill import EXAMPLE_OP, Edit, Skill, apply_edits
from skillfit.tasks.item import Item

MARGIN = 0.01  # a loss up to this is no loss
OLD_MARGIN = 0.05  # a person's own text goes only when a loss of more than this can be excluded
UNLIKELY = 0.2  # chance of such a loss that the pruned skill may have


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that could be left out: an accepted edit, or an old paragraph (`edit` None)."""

    label: str
    removal: Edit  # applied to the final skill, takes the piece out
    edit: Edit | None = None


@dataclass(frozen=True, slots=True)
class Worth:
    piece: Piece
    worth: float | None  # points of the mean score; None when it could not be taken out alone
    interval: tuple[float, float]
    kept: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Credit:
    skill: Skill  # after pruning
    worths: tuple[Worth, ...]
    tokens_before: int
    tokens_after: int
    rollouts: int


def edit_pieces(edits: Sequence[Edit]) -> list[Piece]:
    """Accepted edits as pieces of the final skill; what a deletion took away can't be left out
    again.
    """
    return [
        Piece(edit.label or f"edit {number}", _undo(edit), edit)
        for number, edit in enumerate(edits, start=1)
        if edit.op != "delete" and (edit.content or edit.op != EXAMPLE_OP)
    ]


def _undo(edit: Edit) -> Edit:
    if edit.op == EXAMPLE_OP:
        return Edit(EXAMPLE_OP, str(json.loads(edit.content)["item_id"]))
    return (
        Edit("replace", edit.content, edit.target)
        if edit.op == "replace"
        else Edit("delete", edit.content)
    )


def paragraph_pieces(initial: Skill) -> list[Piece]:
    """Old paragraphs, longest first. Headings stay; protected text is refused when the removal is
    applied.
    """
    paragraphs = [
        text.strip("\n")
        for text in initial.body.split("\n\n")
        if text.strip() and not text.lstrip().startswith("#")
    ]
    return [
        Piece(f"old text: {p.strip()[:40]}", Edit("delete", p))
        for p in sorted(set(paragraphs), key=lambda p: (-len(p), p))
    ]


async def assign_credit(
    measure: Measure,
    items: Sequence[Item],
    final: Skill,
    pieces: Sequence[Piece],
    settings: GateSettings,
    *,
    discordant: Sequence[str] = (),
    rollout_budget: int,
    prune: bool = True,
) -> Credit:
    """Leave each edit out on the discordant items (where the final skill and the initial one
    differ; all items if none are named) and old text on all items, as far as the budget goes; then
    drop what is worth nothing, and believe that only after the pruned skill was measured too.
    """
    drawer = Drawer(measure, "credit", settings)
    shown = [item for item in items if item.id in set(discordant)] or list(items)
    reserve = 2 * len(items) if prune else 0
    worths: list[Worth] = []
    for some, where in (
        ([p for p in pieces if p.edit], shown),
        ([p for p in pieces if not p.edit], list(items)),
    ):
        worths += await _left_out(
            drawer, final, some, where, rollout_budget - reserve - drawer.spent, len(items)
        )
    costless = sorted(
        (worth for worth in worths if not worth.kept), key=lambda worth: worth.worth or 0.0
    )
    room = (rollout_budget - drawer.spent) // max(1, len(items)) if prune else 0
    before = drawer.spent
    skill, gone = await _pruned(
        drawer, items, final, [worth.piece for worth in costless], settings, room
    )
    refuted = (
        "not missed at first, but the skill without it did not hold up"
        if drawer.spent > before
        else "can go without loss"
    )
    worths = [
        w if w.kept or w.piece in gone else replace(w, kept=True, reason=refuted) for w in worths
    ]
    return Credit(skill, tuple(worths), final.tokens, skill.tokens, drawer.spent)


async def _left_out(
    drawer: Drawer,
    final: Skill,
    pieces: Sequence[Piece],
    shown: Sequence[Item],
    room: int,
    count: int,
) -> list[Worth]:
    """The worth of each piece on the items shown, of as many as there is room for."""
    without = {piece: _removed(final, [piece]) for piece in pieces}
    fitting = max(0, room // len(shown) - 1) if shown else 0
    measured = [piece for piece in pieces if without[piece] is not None][:fitting]
    arms = [final, *(without[piece] or final for piece in measured)] if measured else []
    full, *parts = await gather(drawer.sample(skill, shown) for skill in arms) if arms else [None]
    found = dict(zip(measured, parts, strict=True))
    return [
        _worth(piece, found.get(piece), full, without[piece] is not None, count) for piece in pieces
    ]


def _worth(
    piece: Piece, part: Samples | None, full: Samples | None, separable: bool, count: int
) -> Worth:
    if part is None or full is None:
        return Worth(
            piece,
            None,
            (0.0, 0.0),
            True,
            "not measured: budget" if separable else "can't be taken out alone",
        )
    differences = list(full.against(part).values())
    share = len(differences) / count  # the other items were not moved by any edit
    estimate = interval(differences, 0.8)
    costless = (
        bool(differences)
        and share * believe(differences).mean <= MARGIN / 2
        and estimate.mean <= 0.0
    )
    if piece.edit is None:
        costless = costless and share * estimate.high <= OLD_MARGIN
    reason = (
        "can go without loss" if costless else "earns its place" if estimate.low > 0 else "may help"
    )
    return Worth(
        piece,
        share * estimate.mean,
        (share * estimate.low, share * estimate.high),
        not costless,
        reason,
    )


def _removed(skill: Skill, pieces: Sequence[Piece]) -> Skill | None:
    applied = apply_edits(skill, [piece.removal for piece in pieces])
    return (
        applied.skill
        if applied.skill.hash != skill.hash and len(applied.edits) == len(pieces)
        else None
    )


async def _pruned(
    drawer: Drawer,
    items: Sequence[Item],
    final: Skill,
    going: Sequence[Piece],
    settings: GateSettings,
    room: int,
) -> tuple[Skill, set[Piece]]:
    """The skill without the pieces, worst first, if it holds up over all items; else without the
    worse half of them, and so on while there is room for passes over the items; otherwise as it
    was. Each side has two passes where there is room for them.
    """
    repeats = 2 if room >= 4 else 1
    old: Samples | None = None
    while going and room >= repeats * (2 if old is None else 1):
        pruned = _removed(final, going)
        if pruned is not None:
            room -= repeats * (2 if old is None else 1)
            old = old or await drawer.sample(final, items, repeats)
            if _not_inferior(await drawer.sample(pruned, items, repeats), old, settings):
                return pruned, set(going)
        going = going[: len(going) // 2]
    return final, set()


def _not_inferior(new: Samples, old: Samples, settings: GateSettings) -> bool:
    """More likely than not there is no loss to speak of, and a large one is unlikely; no must-pass
    item breaks.
    """
    belief = believe(new.against(old).values())
    covered = belief.items and min(old.coverage, new.coverage) >= settings.coverage_floor
    broken = [
        item
        for item in settings.must_pass
        if old.means.get(item, 0.0) >= 0.5 > new.means.get(item, 0.0)
    ]
    return (
        bool(covered)
        and not broken
        and belief.above(-MARGIN) > 0.5
        and belief.above(-OLD_MARGIN) >= 1 - UNLIKELY
    )
