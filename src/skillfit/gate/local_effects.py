"""Where an edit helps: its effect on each type of items, beside its one effect on all of them.

    effect of edit e on items of type k = effect[e] + deviation[e, k]

Each item has one type, so given the effects on all items the types are independent: a small
regression of the rollouts of each type says what they alone know about each deviation. Most
deviations are close to 0 and a few are large, so their prior is a mixture of normal distributions
around 0, from a point mass to a wide one, whose shares are learned from all deviations together
(adaptive shrinkage; Stephens 2017, doi 10.1093/biostatistics/kxw041). An edit that seems to act on
one type by chance is drawn to its overall effect, and a clear local effect keeps its size.

People and the optimizer read these effects. Decisions use the overall ones only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from skillfit.gate.regression import (
    FIRST_EFFECT_SD,
    Z80,
    Contrast,
    PossibleChange,
    Posterior,
    Priors,
    SelectionItems,
    Trials,
    fit,
)
from skillfit.run.records import KindEffect

MIN_ITEMS = 3  # selection items of a type that is shown
MOST_SHOWN = 3  # types of one edit
WIDE = 5.0  # prior of a deviation in the regression of its type, in FIRST_EFFECT_SD
SPREADS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # of the mixture, in FIRST_EFFECT_SD
NO_DEVIATION = 3.0  # the point mass begins with as much evidence as this many deviations
MIXTURE_ROUNDS = 100
NEWTON_ROUNDS = 3  # from the overall effects; more change little, and this runs after each step
LIKELY = 0.5  # an edit acts on a type when it does more there than elsewhere with this probability

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class TypedItems:
    """The types of items, and the selection items of each that can be shown."""

    types: Mapping[str, str]  # item -> type, training items too
    selection: Mapping[str, SelectionItems]
    total: int  # selection items of all types

    @classmethod
    def of(
        cls, selection: Sequence[str], types: Mapping[str, str], weights: Mapping[str, float]
    ) -> TypedItems:
        """Group the selection items by type. Types with fewer than MIN_ITEMS items are not shown;
        where all items have the same type, none is.
        """
        items: dict[str, list[str]] = {}
        for item in selection:
            items.setdefault(types.get(item, ""), []).append(item)
        shown = {
            kind: SelectionItems.of(own, weights)
            for kind, own in items.items()
            if kind and len(own) >= MIN_ITEMS and len(items) > 1
        }
        return cls(types, shown, len(selection))


@dataclass(frozen=True, slots=True)
class _Deviation:
    """What the rollouts of a type alone say about a deviation: a normal distribution."""

    change: int  # its place among the changes
    kind: str
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class _Shrunk:
    """The posterior of a deviation."""

    mean: float
    sd: float
    same_sign: float  # probability that it has the sign of its mean


def _shrink(found: Sequence[_Deviation], unit: float) -> list[_Shrunk]:
    """Return the posteriors under a common prior. Its shares are learned by expectation
    maximization.
    """
    if not found:
        return []
    told = np.array([one.mean for one in found])[:, None]
    noise = np.array([one.variance for one in found])[:, None]
    spreads = (np.array(SPREADS) * unit) ** 2
    log = -0.5 * (told**2 / (noise + spreads) + np.log(noise + spreads))
    likelihood = np.exp(log - log.max(axis=1, keepdims=True))
    start = np.where(spreads > 0, 0.0, NO_DEVIATION)
    shares = np.full(len(spreads), 1 / len(spreads))
    for _ in range(MIXTURE_ROUNDS):
        weights = likelihood * shares
        weights /= weights.sum(axis=1, keepdims=True)
        shares = (start + weights.sum(axis=0)) / (NO_DEVIATION + len(found))
    means = told * spreads / (noise + spreads)
    variances = noise * spreads / (noise + spreads)
    mean = (weights * means).sum(axis=1)
    variance = (weights * (variances + means**2)).sum(axis=1) - mean**2
    sides = np.abs(means[:, 1:]) / np.sqrt(variances[:, 1:])
    same_sign = (weights[:, 1:] * np.vectorize(_NORMAL.cdf)(sides)).sum(axis=1)
    posteriors = zip(mean, np.sqrt(np.maximum(variance, 0.0)), same_sign, strict=True)
    return [_Shrunk(*map(float, one)) for one in posteriors]


def local_effects(
    trials: Sequence[Trials],
    overall: Posterior,
    items: TypedItems,
    incumbent: Sequence[str],
    changes: Sequence[PossibleChange],
) -> list[tuple[KindEffect, ...]]:
    """Return for each change the types that it acts on more than on others, where the 80 % interval
    of its effect excludes 0. The largest effect comes first.
    """
    unit = FIRST_EFFECT_SD[overall.family]
    by_type = _by_type(trials, items)
    own = {kind: _fit_type(rows, overall, WIDE * unit) for kind, rows in by_type.items()}
    found = [
        _deviation(at, kind, posterior, overall, change, WIDE * unit)
        for kind, posterior in own.items()
        for at, change in enumerate(changes)
        if change.signs.keys() <= posterior.columns.keys()
    ]
    acts: list[list[KindEffect]] = [[] for _ in changes]
    for one, shrunk in zip(found, _shrink(found, unit), strict=True):
        change = changes[one.change]
        effect = overall.contrast(change.signs)
        followed = 1 - shrunk.mean / one.mean if one.mean else 1.0
        local = Contrast(
            effect.mean + shrunk.mean, float(np.hypot(shrunk.sd, followed * effect.sd))
        )
        if shrunk.same_sign > LIKELY and abs(local.mean) > Z80 * local.sd:
            selection = items.selection[one.kind]
            mean, low, high = selection.points(own[one.kind], incumbent, change, local)
            if low > 0 if shrunk.mean > 0 else high < 0:
                acts[one.change].append(
                    KindEffect(one.kind, len(selection.items), items.total, mean, low, high)
                )
    return [tuple(sorted(each, key=_largest_first)[:MOST_SHOWN]) for each in acts]


def _by_type(trials: Sequence[Trials], items: TypedItems) -> dict[str, list[Trials]]:
    """Group the rows by type, for types that can be shown. A group of a row begins with the item
    (see `TrialTable`).
    """
    rows: dict[str, list[Trials]] = {}
    for row in trials:
        kind = items.types.get(row.group.partition("\n")[0], "")
        if kind in items.selection:
            rows.setdefault(kind, []).append(row)
    return rows


def _fit_type(rows: Sequence[Trials], overall: Posterior, sd: float) -> Posterior:
    """Fit the regression of one type, with wide priors around the overall effects."""
    used = {edit for row in rows for edit in row.edits}
    edits = [edit for edit in overall.columns if edit in used]
    places = [overall.columns[edit] for edit in edits]
    priors = Priors(overall.mean[places], np.full(len(edits), sd))
    return fit(
        rows,
        edits,
        family=overall.family,
        start=overall,
        scales=overall.scales,
        priors=priors,
        rounds=NEWTON_ROUNDS,
    )


def _deviation(
    at: int, kind: str, own: Posterior, overall: Posterior, change: PossibleChange, sd: float
) -> _Deviation:
    """Return the deviation of a change on one type, without the prior of the type's regression."""
    here, prior = own.contrast(change.signs), len(change.signs) * sd**2
    informed = max(1 - here.sd**2 / prior, 1e-6)
    mean = here.mean - overall.contrast(change.signs).mean
    return _Deviation(at, kind, mean / informed, here.sd**2 / informed)


def _largest_first(effect: KindEffect) -> tuple[float, str]:
    return -abs(effect.mean), effect.kind
