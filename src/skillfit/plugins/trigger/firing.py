"""What a measurement says about triggering: recall, precision, and what was read instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from skillfit.intervals import Interval, interval, weighted_mean, weighted_values
from skillfit.plain_text import (
    dollars,
    duration,
    one_line,
    quantity,
    visible,
)
from skillfit.plugins.trigger.agents import names_in
from skillfit.training.measure import Measured

COLUMNS = ("model", "recall", "precision", "quiet", "scored")
_QUERIES_SHOWN, _QUERY_LENGTH = 10, 90


@dataclass(frozen=True, slots=True)
class QueryResult:
    """One query: in how many of the scored rollouts the skill was read, and which others were."""

    query: str
    should_trigger: bool
    fired: int
    scored: int
    others: Mapping[str, int]  # name -> rollouts that read it

    @property
    def right(self) -> int:
        return self.fired if self.should_trigger else self.scored - self.fired


@dataclass(frozen=True, slots=True)
class TriggerResult:
    """How a skill triggers with one model. An interval is None where no rollout says anything."""

    model: str
    skill: str
    simulated: bool  # a model was asked which skill it would read
    recall: Interval | None  # share of the queries that should trigger it, that do
    precision: Interval | None  # share of the rollouts that read it, where it was needed
    quiet: Interval | None  # share of the other queries that do not trigger it
    read_instead: Mapping[str, int]  # neighbour -> rollouts that read it and not the skill
    scored: int
    planned: int
    per_query: Mapping[str, float]  # mean tokens, turns and seconds of a rollout
    usd: float | None  # of all rollouts; None: unknown
    queries: Sequence[QueryResult]
    run: str

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.model,
            *map(_share, (self.recall, self.precision, self.quiet)),
            f"{self.scored}/{self.planned}",
        )


def result_of(measured: Measured, model: str, *, simulated: bool, run: Path) -> TriggerResult:
    """Return what a measurement of all queries says."""
    skill = measured.skill.name.partition("#")[0]
    queries = list(_queries(measured, skill))
    wanted = {one.query: one.fired / one.scored for one in queries if one.should_trigger}
    other = {one.query: one.fired / one.scored for one in queries if not one.should_trigger}
    instead: Counter[str] = Counter()
    for one in queries:
        if one.should_trigger:
            instead.update(one.others)
    costs = [one.usage.usd for one in measured.outcomes if one.score is not None]
    return TriggerResult(
        model=model,
        skill=skill,
        simulated=simulated,
        recall=_bounded(list(wanted.values())),
        precision=_precision(wanted, other),
        quiet=_bounded([1 - fired for fired in other.values()]),
        read_instead=dict(instead.most_common()),
        scored=measured.tally.scored,
        planned=measured.tally.planned,
        per_query=measured.costs,
        usd=None if None in costs else sum(usd for usd in costs if usd is not None),
        queries=queries,
        run=str(run),
    )


def _queries(measured: Measured, skill: str) -> Iterator[QueryResult]:
    for item in measured.items:
        reads = [
            names_in(outcome.attempt.answer)
            for outcome in measured.outcomes
            if outcome.item_id == item.id and outcome.score is not None and outcome.attempt
        ]
        if reads:
            others = Counter(name for read in reads if skill not in read for name in read)
            fired = sum(skill in read for read in reads)
            yield QueryResult(item.input, skill in item.answers, fired, len(reads), dict(others))


def _precision(wanted: Mapping[str, float], other: Mapping[str, float]) -> Interval | None:
    """Return the share of the rollouts that fired, that should have. Queries count by how often
    they fire, so the interval is that of a ratio.
    """
    fired = {**wanted, **other}
    right = {query: float(query in wanted) for query in fired}
    if not any(fired.values()):
        return None
    share = weighted_mean(right, fired)
    residuals = weighted_values({query: value - share for query, value in right.items()}, fired)
    return _bounded([share + residual for residual in residuals.values()])


def _bounded(values: Sequence[float]) -> Interval | None:
    if not values:
        return None
    found = interval(values)
    return Interval(found.mean, max(0.0, found.low), min(1.0, found.high))


def _share(found: Interval | None) -> str:
    if found is None:
        return "–"
    return f"{found.mean:.0%} ({100 * found.low:.0f} … {100 * found.high:.0f})"


def notes(result: TriggerResult) -> str:
    """Say for people what was read instead, and which queries go wrong, the worst first."""
    lines = []
    if result.simulated:
        lines.append(
            f"A simulation: {result.model} saw names and descriptions and said which skill it "
            "would read. An agent program may choose otherwise."
        )
    if result.read_instead:
        named = ", ".join(f"{name} ({count})" for name, count in result.read_instead.items())
        lines.append(f"Read instead of {result.skill}: {named}.")
    if result.precision is None:
        lines.append(f"{result.skill} was never read, so nothing is known about its precision.")
    wrong = sorted(
        (one for one in result.queries if one.right < one.scored),
        key=lambda one: one.right / one.scored,
    )
    if wrong:
        more = f"; the first {_QUERIES_SHOWN}" if len(wrong) > _QUERIES_SHOWN else ""
        lines.append(f"{quantity(len(wrong), 'query', 'queries')} go wrong{more}:")
        lines += [_query_line(one) for one in wrong[:_QUERIES_SHOWN]]
    if used := result.per_query:
        cost = "" if result.usd is None else f"; {dollars(result.usd)} for all"
        took = f"{used['tokens']:,.0f} tokens and {duration(used['seconds'])}"
        lines.append(f"A query took {took} on average{cost}.")
    return "\n".join(lines)


def _query_line(one: QueryResult) -> str:
    should = "should" if one.should_trigger else "should not"
    others = ", ".join(f"{name} {count}" for name, count in one.others.items())
    read = f" (read instead: {others})" if others and one.should_trigger else ""
    text = one_line(visible(one.query), _QUERY_LENGTH)
    return f"  {one.fired} of {one.scored}, {should}{read}: {text}"
