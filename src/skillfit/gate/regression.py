"""Bayesian regression of rollout scores on edits: trials in, a posterior of all effects out.

The model of one rollout on item i under a set of edits S:

    link(expected score) = level + intercept[i] + sum of effect[e] for e in S
    intercept[i] ~ N(0, intercept_sd^2)
    effect[e]    ~ N(0, effect_sd^2)

The link is the logit for hard scores (a rollout is a coin, or a fraction of checks) and the
identity for soft and mixed scores (normal noise of unknown variance). The two standard deviations
and the noise (together `Scales`) are learned from the data (empirical Bayes): a fit alternates
Newton steps for the effects with updates of the scales. The posterior is the normal approximation
at the mode (Laplace).

Trials of the same item under the same edits are one row, and intercepts are eliminated block by
block, so a fit costs about (rows x edits in use at the time x edits in use at the time).

Decisions and displays use points instead of logits: by how much the mean score over the selection
items changes when an edit is added to the incumbent. `SelectionItems` computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from skillfit.gate.samples import probability_positive
from skillfit.run.records import ScoreEstimate

Family = Literal["logistic", "linear"]
ColumnKind = Literal["edit", "removal", "base"]
Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

CHUNK = 64  # sets of edits that are handled together
SCALE_ROUNDS = 12  # updates of the scales in one fit, at most
SETTLED = 0.03  # relative change of the scales that ends the updates
NEWTON_ROUNDS = 25
CONVERGED = 1e-4  # size of a Newton step; the error after it is about its square
FIRST_WEIGHT = 2.0  # the first scales count as much as this many effects or intercepts
LEVEL_PRECISION = 0.01  # keeps the level finite when all trials succeed or all fail
BASE_SD = 1.0  # prior of a change of the whole document
FIRST_EFFECT_SD = {"logistic": 0.2, "linear": 0.04}
FIRST_INTERCEPT_SD = {"logistic": 1.5, "linear": 0.3}
FIRST_NOISE = 0.06  # variance of one graded rollout
MIN_SD = 1e-3
ETA_LIMIT = 30.0  # of a linear predictor, so that exp() stays finite


@dataclass(frozen=True, slots=True)
class Trials:
    """Rollouts of one item under one set of edits, added up."""

    group: str  # rows of the same group share an intercept
    edits: tuple[str, ...]  # sorted; only edits that count as evidence here
    count: int
    total: float  # sum of the scores
    squares: float  # sum of their squares


class TrialTable:
    """Collects scores and adds them up by item and set of edits."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, tuple[str, ...]], Trials] = {}

    @property
    def nothing_scored(self) -> bool:
        """Whether every rollout scored 0."""
        return not any(row.squares for row in self._rows.values())

    def add(self, group: str, edits: Iterable[str], score: float) -> None:
        key = group, tuple(sorted(edits))
        old = self._rows.get(key) or Trials(*key, 0, 0.0, 0.0)
        self._rows[key] = Trials(
            *key, old.count + 1, old.total + score, old.squares + score * score
        )

    def rows(self) -> list[Trials]:
        """Return the rows in the order in which they first appeared."""
        return list(self._rows.values())


@dataclass(frozen=True, slots=True)
class Scales:
    """The parameters of the model that are learned: standard deviations of three priors, and the
    noise.
    """

    edit_sd: float  # of the effects of edits
    removal_sd: float  # of the effects of removals
    intercept_sd: float
    noise: float  # variance of one graded rollout; unused for hard scores

    @classmethod
    def first(cls, family: Family) -> Scales:
        effect_sd = FIRST_EFFECT_SD[family]
        return cls(effect_sd, effect_sd, FIRST_INTERCEPT_SD[family], FIRST_NOISE)

    def change(self, old: Scales) -> float:
        """Return the largest relative change from the `old` scales."""
        pairs = zip(astuple(self), astuple(old), strict=True)
        return float(max(abs(new / before - 1) for new, before in pairs))

    def effect_sd(self, kind: ColumnKind) -> float:
        return {"edit": self.edit_sd, "removal": self.removal_sd, "base": BASE_SD}[kind]


@dataclass(frozen=True, slots=True)
class Priors:
    """Normal priors of effects, one for each column."""

    means: Vector
    sds: Vector


@dataclass(frozen=True, slots=True)
class Posterior:
    """What a fit says: a joint normal distribution of the level and all effects, and the intercepts
    given those.
    """

    family: Family
    columns: Mapping[str, int]  # edit -> its place in `mean`; place 0 is the level
    mean: Vector
    covariance: Matrix
    groups: Mapping[str, int]  # group -> its place in `intercepts`
    intercepts: Vector
    scales: Scales
    # Per group, for the uncertainty of its intercept: precision, and regression on `mean`.
    precision: Vector
    slopes: Matrix

    def contrast(self, signs: Mapping[str, float]) -> Contrast:
        """Add up effects, each with its sign. Edits without a column count as 0 with the standard
        deviation of their prior.
        """
        known = [(self.columns[edit], sign) for edit, sign in signs.items() if edit in self.columns]
        unknown = len(signs) - len(known)
        places = [place for place, _ in known]
        weights = np.array([sign for _, sign in known])
        mean = float(weights @ self.mean[places]) if known else 0.0
        block = self.covariance[np.ix_(places, places)]
        variance = float(weights @ block @ weights) if known else 0.0
        variance += unknown * self.scales.edit_sd**2
        # Rounded, so that the order of floating-point sums cannot decide a tie.
        return Contrast(round(mean, 9), round(max(variance, 0.0) ** 0.5, 9))

    def predictor(self, groups: Sequence[str], edits: Sequence[str]) -> Vector:
        """Return the linear predictor of each group under a set of edits. A group without trials
        has an intercept of 0.
        """
        places = [self.columns[edit] for edit in edits if edit in self.columns]
        level = self.mean[0] + self.mean[places].sum()
        own = [self.intercepts[self.groups[g]] if g in self.groups else 0.0 for g in groups]
        return np.asarray(level + np.array(own, dtype=np.float64))

    def expected(self, predictor: Vector) -> Vector:
        """Return the expected scores for linear predictors."""
        return _logistic(predictor) if self.family == "logistic" else predictor

    def score_variance(self, groups: Sequence[str], weights: Vector, edits: Sequence[str]) -> float:
        """Return the variance of the groups' weighted mean score under a set of edits, by the delta
        method.
        """
        slope = weights * self.expected_slope(self.predictor(groups, edits))
        return self._variance(groups, slope, slope.sum() * self._design(edits))

    def difference_variance(
        self, groups: Sequence[str], weights: Vector, new: Sequence[str], old: Sequence[str]
    ) -> float:
        """Return the variance of the difference of two such scores, including that of the level."""
        after = weights * self.expected_slope(self.predictor(groups, new))
        before = weights * self.expected_slope(self.predictor(groups, old))
        gradient = after.sum() * self._design(new) - before.sum() * self._design(old)
        return self._variance(groups, after - before, gradient)

    def _design(self, edits: Sequence[str]) -> Vector:
        """Return the row of the design: 1 for the level and for each of the edits, else 0."""
        on = np.zeros(len(self.mean))
        on[[0, *(self.columns[edit] for edit in edits if edit in self.columns)]] = 1.0
        return on

    def _variance(self, groups: Sequence[str], slope: Vector, gradient: Vector) -> float:
        """Return the variance of a score with these slopes on the predictor of each group, and this
        gradient on `mean`.
        """
        own = 0.0
        for weight, group in zip(slope, groups, strict=True):
            if group in self.groups:
                place = self.groups[group]
                gradient = gradient - weight * self.slopes[place]
                own += weight**2 / self.precision[place]
            else:
                own += weight**2 * self.scales.intercept_sd**2
        return float(gradient @ self.covariance @ gradient + own)

    def expected_slope(self, predictor: Vector) -> Vector:
        """Return the derivative of `expected`."""
        if self.family == "linear":
            return np.ones_like(predictor)
        chance = _logistic(predictor)
        return np.asarray(chance * (1 - chance))


@dataclass(frozen=True, slots=True)
class Contrast:
    """Mean and standard deviation of a sum of effects, on the scale of the linear predictor."""

    mean: float
    sd: float

    @property
    def z(self) -> float:
        return round(self.mean / self.sd, 9) if self.sd > 0 else 0.0


@dataclass(slots=True)
class _Chunk:
    """Consecutive sets of edits and their rows. Sets that are drawn at the same time use the same
    few edits, so `design` has few columns.
    """

    columns: NDArray[np.intp]  # of `mean`; the first is the level
    design: Matrix  # sets x columns
    sets: NDArray[np.intp]  # per row: its set within the chunk
    groups: NDArray[np.intp]  # per row: its group
    local: NDArray[np.intp]  # distinct groups of the chunk
    local_of: NDArray[np.intp]  # per row: place of its group in `local`
    count: Vector
    total: Vector


@dataclass(slots=True)
class _State:
    theta: Vector
    intercepts: Vector
    scales: Scales
    covariance: Matrix = field(default_factory=lambda: np.zeros((0, 0)))
    precision: Vector = field(default_factory=lambda: np.zeros(0))
    slopes: Matrix = field(default_factory=lambda: np.zeros((0, 0)))


def fit(
    trials: Sequence[Trials],
    edits: Sequence[str],
    *,
    family: Family = "logistic",
    kinds: Mapping[str, ColumnKind] | None = None,
    start: Posterior | None = None,
    scales: Scales | None = None,
    first: Scales | None = None,
    priors: Priors | None = None,
    rounds: int = NEWTON_ROUNDS,
) -> Posterior:
    """Fit all trials. `edits` names the columns, in an order that the caller keeps fixed.

    `start`: an earlier posterior of the same data or less of it. Effects, intercepts and scales
    begin at its values. `first`: scales that every update is drawn to (FIRST_WEIGHT), and that a
    fit without `start` begins at; by default those of edits. `scales`: kept as they are instead of
    learned. `priors`: of the effects, instead of those that `scales` imply. `rounds`: Newton steps,
    at the most.

    Runs on one thread. These matrices are too small to gain from more, on a busy machine threads
    that wait for each other make it several times slower, and one thread always adds up in the same
    order.
    """
    with _threads().limit(limits=1, user_api="blas"):
        return _fit(
            trials,
            edits,
            family,
            kinds or {},
            start,
            scales,
            first or Scales.first(family),
            priors,
            rounds,
        )


@lru_cache(maxsize=1)
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


def _fit(
    trials: Sequence[Trials],
    edits: Sequence[str],
    family: Family,
    kinds: Mapping[str, ColumnKind],
    start: Posterior | None,
    scales: Scales | None,
    first: Scales,
    priors: Priors | None,
    rounds: int,
) -> Posterior:
    columns = {edit: place for place, edit in enumerate(edits, start=1)}
    groups = {group: at for at, group in enumerate(dict.fromkeys(row.group for row in trials))}
    chunks = _chunks(trials, columns, groups)
    column_kinds: list[ColumnKind] = [kinds.get(edit, "edit") for edit in edits]
    state = _start(columns, groups, first, start)
    if start is None:
        _start_level(state, trials, family)
    model = TrialMatrix(chunks, trials, column_kinds, family, len(groups), first, priors)
    if scales is not None:
        state.scales = scales
    for _ in range(SCALE_ROUNDS if trials and scales is None else 0):
        model.newton(state)
        if model.update_scales(state) < SETTLED:
            break
    for _ in range(rounds):
        if model.newton(state) < CONVERGED:
            break
    return Posterior(
        family=family,
        columns=columns,
        mean=state.theta,
        covariance=state.covariance,
        groups=groups,
        intercepts=state.intercepts,
        scales=state.scales,
        precision=state.precision,
        slopes=state.slopes,
    )


def _chunks(
    trials: Sequence[Trials], columns: Mapping[str, int], groups: Mapping[str, int]
) -> list[_Chunk]:
    """Group the rows by set of edits, and the sets into chunks in order of appearance."""
    by_set: dict[tuple[str, ...], list[Trials]] = {}
    for row in trials:
        by_set.setdefault(row.edits, []).append(row)
    sets = list(by_set)
    chunks = []
    for first in range(0, len(sets), CHUNK):
        part = sets[first : first + CHUNK]
        used = sorted({columns[edit] for edits in part for edit in edits})
        place = {column: at for at, column in enumerate([0, *used])}
        design = np.zeros((len(part), len(place)))
        design[:, 0] = 1.0
        for at, edits in enumerate(part):
            design[at, [place[columns[edit]] for edit in edits]] = 1.0
        rows = [(at, row) for at, edits in enumerate(part) for row in by_set[edits]]
        of = np.array([groups[row.group] for _, row in rows], dtype=np.intp)
        local, local_of = np.unique(of, return_inverse=True)
        chunks.append(
            _Chunk(
                columns=np.array([0, *used], dtype=np.intp),
                design=design,
                sets=np.array([at for at, _ in rows], dtype=np.intp),
                groups=of,
                local=local,
                local_of=local_of,
                count=np.array([row.count for _, row in rows], dtype=np.float64),
                total=np.array([row.total for _, row in rows], dtype=np.float64),
            )
        )
    return chunks


def _start(
    columns: Mapping[str, int], groups: Mapping[str, int], first: Scales, start: Posterior | None
) -> _State:
    theta, intercepts = np.zeros(len(columns) + 1), np.zeros(len(groups))
    if start is None:
        return _State(theta, intercepts, first)
    theta[0] = start.mean[0]
    for edit, place in columns.items():
        if edit in start.columns:
            theta[place] = start.mean[start.columns[edit]]
    for group, at in groups.items():
        if group in start.groups:
            intercepts[at] = start.intercepts[start.groups[group]]
    return _State(theta, intercepts, start.scales)


def _start_level(state: _State, trials: Sequence[Trials], family: Family) -> None:
    count = sum(row.count for row in trials)
    mean = (sum(row.total for row in trials) + 0.5) / (count + 1)
    state.theta[0] = np.log(mean / (1 - mean)) if family == "logistic" else mean


class TrialMatrix:
    """The trials, ready for Newton steps."""

    def __init__(
        self,
        chunks: Sequence[_Chunk],
        trials: Sequence[Trials],
        kinds: Sequence[ColumnKind],
        family: Family,
        groups: int,
        first: Scales,
        priors: Priors | None,
    ) -> None:
        self._chunks, self._kinds, self._family, self._groups = chunks, kinds, family, groups
        self._first, self._priors = first, priors
        self._count = sum(row.count for row in trials)
        self._squares = sum(row.squares for row in trials)

    def newton(self, state: _State) -> float:
        """Take one Newton step with block elimination of the intercepts; return its size.

        Leaves the covariance of the point before the step in `state`; at convergence the two
        points are the same.
        """
        size = len(state.theta)
        prior = self._prior_precision(state.scales)
        gradient = -prior * state.theta
        if self._priors is not None:
            gradient[1:] += prior[1:] * self._priors.means
        intercept_precision = state.scales.intercept_sd**-2
        own_gradient = -intercept_precision * state.intercepts
        curvature = np.diag(prior)
        precision = np.full(self._groups, intercept_precision)
        cross = np.zeros((self._groups, size))
        for chunk in self._chunks:
            weights, residuals = self._derivatives(chunk, state)
            by_set = np.bincount(chunk.sets, weights, len(chunk.design))
            block = chunk.design.T @ (chunk.design * by_set[:, None])
            curvature[np.ix_(chunk.columns, chunk.columns)] += block
            residual_by_set = np.bincount(chunk.sets, residuals, len(chunk.design))
            gradient[chunk.columns] += chunk.design.T @ residual_by_set
            local = len(chunk.local)
            precision[chunk.local] += np.bincount(chunk.local_of, weights, local)
            own_gradient[chunk.local] += np.bincount(chunk.local_of, residuals, local)
            cells = chunk.local_of * len(chunk.design) + chunk.sets
            table = np.bincount(cells, weights, local * len(chunk.design))
            shared = table.reshape(local, len(chunk.design)) @ chunk.design
            cross[np.ix_(chunk.local, chunk.columns)] += shared
        slopes = cross / precision[:, None]
        covariance = np.linalg.inv(curvature - cross.T @ slopes)
        state.covariance = (covariance + covariance.T) / 2
        state.precision, state.slopes = precision, slopes
        step = state.covariance @ (gradient - slopes.T @ own_gradient)
        own_step = own_gradient / precision - slopes @ step
        longest = float(np.abs(step).max(initial=0.0))
        shrink = min(1.0, 4.0 / longest) if longest else 1.0  # far from the mode steps overshoot
        state.theta = state.theta + shrink * step
        state.intercepts = state.intercepts + shrink * own_step
        return longest

    def _prior_precision(self, scales: Scales) -> Vector:
        if self._priors is not None:
            return np.concatenate([[LEVEL_PRECISION], self._priors.sds**-2])
        return np.array([LEVEL_PRECISION, *(scales.effect_sd(kind) ** -2 for kind in self._kinds)])

    def _predictor(self, chunk: _Chunk, state: _State) -> Vector:
        by_set = chunk.design @ state.theta[chunk.columns]
        return np.asarray(by_set[chunk.sets] + state.intercepts[chunk.groups])

    def _derivatives(self, chunk: _Chunk, state: _State) -> tuple[Vector, Vector]:
        """Return curvature and gradient of the log likelihood in the linear predictor, for each
        row.
        """
        predictor = self._predictor(chunk, state)
        if self._family == "linear":
            noise = state.scales.noise
            return chunk.count / noise, (chunk.total - chunk.count * predictor) / noise
        chance = _logistic(predictor)
        return chunk.count * chance * (1 - chance), chunk.total - chunk.count * chance

    def update_scales(self, state: _State) -> float:
        """Update the priors' standard deviations and the noise of graded scores once; return the
        largest relative change.
        """
        old, first = state.scales, self._first
        effects, variances = state.theta[1:], np.diag(state.covariance)[1:]
        kinds = np.array(self._kinds)
        edit, removal = kinds == "edit", kinds == "removal"
        state.scales = Scales(
            edit_sd=_learned_sd(effects[edit], variances[edit], old.edit_sd, first.edit_sd),
            removal_sd=_learned_sd(
                effects[removal], variances[removal], old.removal_sd, first.removal_sd
            ),
            intercept_sd=_learned_sd(
                state.intercepts, _intercept_variance(state), old.intercept_sd, first.intercept_sd
            ),
            noise=self._noise(state) if self._family == "linear" else old.noise,
        )
        return state.scales.change(old)

    def _noise(self, state: _State) -> float:
        """Return the residual variance of graded scores, with the effective number of parameters
        taken off the degrees of freedom.
        """
        squared = self._squares
        for chunk in self._chunks:
            predictor = self._predictor(chunk, state)
            squared += float((chunk.count * predictor**2 - 2 * predictor * chunk.total).sum())
        prior = self._prior_precision(state.scales)
        shrunk = float(prior @ np.diag(state.covariance))
        shrunk += float(_intercept_variance(state).sum()) * state.scales.intercept_sd**-2
        parameters = len(prior) + self._groups - shrunk
        freedom = max(self._count - parameters, 1.0)
        return (max(squared, 0.0) + FIRST_WEIGHT * FIRST_NOISE) / (freedom + FIRST_WEIGHT)


def _intercept_variance(state: _State) -> Vector:
    """Return the posterior variance of each intercept."""
    from_effects = ((state.slopes @ state.covariance) * state.slopes).sum(axis=1)
    return np.asarray(1 / state.precision + from_effects)


def _learned_sd(means: Vector, variances: Vector, old: float, first: float) -> float:
    """Update a prior's standard deviation by MacKay's fixed-point rule: the sum of squares over the
    number of effects that the data determine. It converges much faster than EM. `first` counts like
    FIRST_WEIGHT effects.
    """
    determined = float(np.clip(1 - variances / old**2, 0.0, 1.0).sum())
    squares = float(means @ means) + FIRST_WEIGHT * first**2
    return max(float(np.sqrt(squares / (determined + FIRST_WEIGHT))), MIN_SD)


def _logistic(predictor: Vector) -> Vector:
    return np.asarray(1 / (1 + np.exp(-np.clip(predictor, -ETA_LIMIT, ETA_LIMIT))))


Z80 = NormalDist().inv_cdf(0.9)  # half width of an 80 % interval in standard deviations
_Z90 = NormalDist().inv_cdf(0.95)
HARMLESS_LOSS = 0.01  # points that removing a text may cost and still count as no loss


@dataclass(frozen=True, slots=True)
class Estimate:
    """The effect of one edit on the incumbent's mean score."""

    contrast: Contrast  # on the scale of the regression; decisions use its z
    mean: float  # in points, as are the ends of the interval
    low: float  # 80 % interval
    high: float
    probability: float  # that the effect is above 0
    harm_probability: float  # that the effect is a loss of more than HARMLESS_LOSS
    rollouts: int  # scored rollouts that carried it and count as evidence


@dataclass(frozen=True, slots=True)
class PossibleChange:
    """An edit that joins or leaves the incumbent, with all that comes and goes with it."""

    signs: Mapping[str, float]  # +1 for edits that come, -1 for edits that go
    present: bool  # already part of the incumbent: it is compared with its absence
    rollouts: int = 0  # scored rollouts that carried the edit


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """Estimated difference of two skills in points, with a 90 % interval."""

    mean: float
    low: float
    high: float
    probability: float  # that it is above 0

    @property
    def sd(self) -> float:
        return (self.high - self.low) / (2 * _Z90)


@dataclass(frozen=True, slots=True)
class SelectionItems:
    """The selection items and how much each counts; the weights add up to 1."""

    items: tuple[str, ...]
    weights: Vector

    @classmethod
    def of(cls, items: Sequence[str], weights: Mapping[str, float]) -> SelectionItems:
        raw = np.array([weights.get(item, 1.0) for item in items], dtype=np.float64)
        return cls(tuple(items), raw / raw.sum() if raw.sum() > 0 else raw)

    def score(self, posterior: Posterior, edits: Sequence[str]) -> ScoreEstimate:
        """Return the mean score under a set of edits with its 90 % interval."""
        expected = posterior.expected(posterior.predictor(self.items, edits))
        mean = float(self.weights @ expected)
        half = _Z90 * posterior.score_variance(self.items, self.weights, edits) ** 0.5
        low, high = max(0.0, mean - half), min(1.0, mean + half)
        return ScoreEstimate(round(mean, 9), round(low, 9), round(high, 9), estimated=True)

    def difference(
        self, posterior: Posterior, new: Sequence[str], old: Sequence[str]
    ) -> ScoreChange:
        """Estimate the change of the mean score from one set of edits to another."""
        contrast = posterior.contrast(
            {edit: 1.0 for edit in new if edit not in old}
            | {edit: -1.0 for edit in old if edit not in new}
        )
        predictor = posterior.predictor(self.items, old)
        mean, low, high = self._change(posterior, predictor, contrast, _Z90)
        probability = probability_positive(contrast.mean, contrast.sd**2)
        return ScoreChange(mean, low, high, probability)

    def effects(
        self, posterior: Posterior, incumbent: Sequence[str], changes: Sequence[PossibleChange]
    ) -> list[Estimate]:
        """Estimate the effect of each change on the incumbent."""
        predictor = posterior.predictor(self.items, incumbent)
        found = []
        for change in changes:
            contrast = posterior.contrast(change.signs)
            before = predictor - contrast.mean if change.present else predictor
            mean, low, high = self._change(posterior, before, contrast, Z80)
            sd = max((high - low) / (2 * Z80), 1e-9)
            found.append(
                Estimate(
                    contrast=contrast,
                    mean=mean,
                    low=low,
                    high=high,
                    probability=round(probability_positive(contrast.mean, contrast.sd**2), 9),
                    harm_probability=round(probability_positive(-HARMLESS_LOSS - mean, sd**2), 9),
                    rollouts=change.rollouts,
                )
            )
        return found

    def points(
        self,
        posterior: Posterior,
        incumbent: Sequence[str],
        change: PossibleChange,
        contrast: Contrast,
    ) -> tuple[float, float, float]:
        """Return the mean and 80 % interval of a change whose effect on these items is `contrast`.
        The interval includes what is unknown about their score without it.
        """
        before = posterior.predictor(self.items, incumbent)
        if change.present:
            before = before - posterior.contrast(change.signs).mean
        mean, low, high = self._change(posterior, before, contrast, Z80)
        slope, slope_after = (
            float(self.weights @ posterior.expected_slope(predictor))
            for predictor in (before, before + contrast.mean)
        )
        level = (
            posterior.score_variance(self.items, self.weights, incumbent) / max(slope, 1e-3) ** 2
        )
        half = float(np.hypot((high - low) / 2, Z80 * (slope_after - slope) * level**0.5))
        return mean, round(max(-1.0, mean - half), 9), round(min(1.0, mean + half), 9)

    def removal(self, posterior: Posterior, edit: str, rollouts: int) -> Estimate:
        """Estimate the effect of an edit on the skill without edits. Unlike in `effects`, the
        interval includes what is unknown about the score of that skill: for large effects it
        matters most.
        """
        change = PossibleChange({edit: 1.0}, present=False, rollouts=rollouts)
        estimate = self.effects(posterior, [], [change])[0]
        variance = posterior.difference_variance(self.items, self.weights, [edit], [])
        half = Z80 * variance**0.5
        return replace(
            estimate,
            low=round(max(-1.0, estimate.mean - half), 9),
            high=round(min(1.0, estimate.mean + half), 9),
            harm_probability=round(
                probability_positive(-HARMLESS_LOSS - estimate.mean, variance), 9
            ),
        )

    def _change(
        self, posterior: Posterior, predictor: Vector, contrast: Contrast, width: float
    ) -> tuple[float, float, float]:
        """Convert the mean and both ends of a contrast's interval to points."""
        steps = contrast.mean + contrast.sd * np.array([0.0, -width, width])
        before = posterior.expected(predictor)
        after = posterior.expected(predictor[:, None] + steps[None, :])
        points = self.weights @ (after - before[:, None])
        mean, low, high = (round(float(point), 9) for point in points)
        return mean, low, high
