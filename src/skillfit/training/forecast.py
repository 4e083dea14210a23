"""What a run would take, before anything is spent: calls, tokens, dollars and minutes.

Every number is a typical value with a range. After `skillfit check` the cost of a rollout is taken
from what was measured there instead of from assumptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from skillfit.config.schema import BudgetSection, Config
from skillfit.gate import Gate
from skillfit.gate.ship import chance_to_show
from skillfit.models import Prices, Role, Usage, context_window_of
from skillfit.models.registry import local_slots
from skillfit.optimize.agent_sessions import MOST_TURNS
from skillfit.optimize.optimizer import REPLY_TOKENS
from skillfit.plain_text import dollars, work_name
from skillfit.run.events import RolloutFinished
from skillfit.run.records import RolloutPlan
from skillfit.skill import Skill, estimate_tokens
from skillfit.tasks.task import Task
from skillfit.training.schedule import (
    NOTHING,
    Range,
    Schedule,
    SplitSizes,
    buy,
    fewest_rollouts,
    looked_back,
)

_SAMPLE = 50  # items whose length is looked at
_BYTES = 4  # of a token; a reservation counts the bytes of a prompt as tokens
FINISH_SAFETY = 1.2  # prune rounds and ship test may cost this much more than rollouts did so far
_STEP = ("rollout", "diagnosis", "gate")  # stages of a step that roll out
_PROBES = 3  # calls that find out whether the models can be reached


_REPLY = Range(40, 150, 600)  # tokens of an agent's answer
_PROPOSAL = Range(300, 900, 2_500)  # tokens of an optimizer's reply
_SECONDS = Range(1.0, 5.0, 24.0)  # of one model call, waiting for others included
_OPTIMIZER_AT_ONCE = 4  # optimizer calls of a step that run side by side
_JUDGED = Range(1, 1, 2)  # judge calls of one rollout: a pairwise judge is asked twice
_TURNS = {"tools": Range(3, 6, 12), "cli": Range(2, 6, 15)}  # model calls of one rollout
# Tokens that a coding agent adds to every model call: its own prompt and tools.
_CLI_PROMPT = Range(10_000, 14_000, 24_000)
# A session of the proposer `agent`: model calls, then tokens read and written. A program counts as
# one call; what its own model calls read is added up.
_SESSION_TURNS = Range(5, 20, MOST_TURNS)
_SESSION_TOKENS = {
    "cli": (Range(50_000, 400_000, 2_000_000), Range(2_000, 10_000, 50_000)),
    "tools": (Range(4_000, 20_000, 80_000), Range(100, 500, 2_500)),
}
_SESSION_SECONDS = Range(60.0, 300.0, 1_800.0)
_CLI_OPTIMIZER_PROMPT = Range(1_000, 4_000, 14_000)  # the same program without tools


@dataclass(frozen=True, slots=True)
class RolloutCost:
    """What one rollout used on average, measured by `skillfit check`."""

    rollouts: int
    usage: Usage  # per rollout; calls and tokens are rounded up
    seconds: float
    score: float | None = None  # mean hard score of the initial skill

    @classmethod
    def of(cls, finished: Sequence[RolloutFinished], initial: str = "") -> RolloutCost | None:
        """Average the finished rollouts; return None when none of them was scored. `initial`: hash
        of the initial skill.
        """
        scored = [event for event in finished if event.status == "scored"]
        if not scored:
            return None
        count = len(scored)
        known = all(event.usd is not None for event in scored)
        usage = Usage(
            calls=ceil(sum(event.calls for event in scored) / count),
            input=ceil(sum(event.tokens for event in scored) / count),
            usd=sum(event.usd or 0.0 for event in scored) / count if known else None,
        )
        scores = [event.hard or 0.0 for event in scored if event.skill_hash == initial]
        score = sum(scores) / len(scores) if scores else None
        return cls(count, usage, sum(event.seconds for event in scored) / count, score)

    @classmethod
    def mean(cls, rollouts: int, used: Usage) -> RolloutCost | None:
        """Average the usage of all scored rollouts together; return None when there are none. How
        long they took is not known.
        """
        if not rollouts:
            return None
        usage = Usage(
            calls=ceil(used.calls / rollouts),
            input=ceil(used.tokens / rollouts),
            usd=None if used.usd is None else used.usd / rollouts,
        )
        return cls(rollouts, usage, 0.0)


@dataclass(frozen=True, slots=True)
class EstimateRow:
    """What a role's model is used for in one stage, or in total."""

    stage: str
    role: str
    calls: Range
    tokens: Range
    usd: Range | None  # None: no price is known


@dataclass(frozen=True, slots=True)
class ReachedCap:
    """A cap of the budget below the upper end of the estimate."""

    name: str
    cap: float
    planned: Range  # what the plan takes without the cap

    @property
    def ends_early(self) -> bool:
        """The typical run reaches the cap, so the plan is not finished."""
        return self.planned.typical > self.cap


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a schedule takes: `total`, `minutes` and `rollouts`. A cap in rollouts is part of the
    schedule; other caps may end the run before (`reached`, `within`).
    """

    rows: tuple[EstimateRow, ...]
    total: EstimateRow
    minutes: Range
    rollouts: Range
    measured: int = 0  # rollouts behind the cost of a rollout; 0: it is assumed

    @property
    def by_work(self) -> list[EstimateRow]:
        """The rows with the stages of one kind of work as one."""
        groups: dict[tuple[str, str], list[EstimateRow]] = {}
        for row in self.rows:
            groups.setdefault((work_name(row.stage, row.role), row.role), []).append(row)
        return [
            replace(_total(rows), stage=work, role=role) for (work, role), rows in groups.items()
        ]

    def reached(self, caps: BudgetSection) -> list[ReachedCap]:
        """Return the caps that may end the run before the plan does."""
        total = self.total
        planned = {
            "calls": total.calls,
            "tokens": total.tokens,
            "usd": total.usd,
            "minutes": self.minutes,
        }
        found = []
        for name, amount in planned.items():
            cap = getattr(caps, name)
            if cap is not None and amount is not None and amount.high > cap:
                found.append(ReachedCap(name, cap, amount))
        return found

    def within(self, caps: BudgetSection) -> Forecast:
        """Return the same with the total held under the caps."""
        total = replace(
            self.total,
            calls=self.total.calls.at_most(caps.calls),
            tokens=self.total.tokens.at_most(caps.tokens),
            usd=self.total.usd.at_most(caps.usd) if self.total.usd else None,
        )
        return replace(self, total=total, minutes=self.minutes.at_most(caps.minutes))


def forecast(
    config: Config, task: Task, skill: Skill, schedule: Schedule, cost: RolloutCost | None = None
) -> Forecast:
    """Return what a schedule takes. `cost`: what a rollout cost in `skillfit check`."""
    rollouts = {stage: count for stage, count in schedule.rollouts.items() if count.high}
    together = sum(rollouts.values(), NOTHING).at_most(config.budget.rollouts)
    item_tokens = _item_tokens(task)
    per_rollout = _one_rollout(config, skill, item_tokens, cost)
    rows = [per_rollout.times(count, stage) for stage, count in rollouts.items()]
    others = _optimizer_rows(config, task, skill, schedule)
    summed = list(others)
    if config.model.judge is not None:
        # With a second grader both grade the rollouts of the ship test.
        twice = schedule.rollouts["ship"] if config.evaluation.ship_grader else NOTHING
        every = sum(rollouts.values(), twice)
        others.append(_judge_row(config, every, item_tokens))
        summed.append(_judge_row(config, together + twice, item_tokens))
    seconds = per_rollout.seconds * together * (1 / rollouts_at_once(config))
    for row in summed:
        at_once = _OPTIMIZER_AT_ONCE if row.role == "optimizer" else config.model.concurrency
        seconds += row.calls * _SECONDS * (1 / min(at_once, config.model.concurrency))
    if config.proposer == "agent":
        longest = max(_SESSION_SECONDS.typical, 60 * config.optimizer.agent_minutes)
        seconds += replace(_SESSION_SECONDS, high=longest) * schedule.total_steps
    return Forecast(
        tuple(row for row in (*rows, *others) if row.calls.high),
        _total([per_rollout.times(together, "total"), *summed]),
        seconds * (1 / 60),
        together,
        cost.rollouts if cost else 0,
    )


@dataclass(frozen=True, slots=True)
class SmallCap:
    """A cap without room for one step and the ship test."""

    name: str
    cap: float
    least: float  # what the check, the baseline, one step and a short ship test take
    enough: float  # a value that has room for them
    call: float = 0.0  # the most that one optimizer call may take of it

    @property
    def certain(self) -> bool:
        """Calls are counted, and a call that could pass a cap is never made. The other amounts are
        estimates.
        """
        return self.name == "calls" or self.cap < self.call

    def __str__(self) -> str:
        cap, least = self._shown(self.cap), self._shown(self.least)
        enough, call = self._shown(self.enough), self._shown(self.call)
        if self.cap < self.call:
            return (
                f"budget.{self.name}: {cap} is less than one optimizer call may take ({call}), so "
                f"none could be made. {enough} would be enough for one step and the ship test; a "
                "smaller model.optimizer.max_tokens needs less."
            )
        if self.certain:
            return (
                f"budget.{self.name}: {cap} is too little for one step and the ship test, which "
                f"take at least {least}. {enough} would be enough."
            )
        return (
            f"budget.{self.name}: {cap} may be too little for one step and the ship test, which "
            f"take about {least}, with {call} in reserve for each optimizer call. {enough} would "
            "be enough."
        )

    def _shown(self, amount: float) -> str:
        return dollars(amount) if self.name == "usd" else f"{amount:,.0f}"


def small_caps(
    config: Config, task: Task, skill: Skill, schedule: Schedule, cost: RolloutCost | None = None
) -> list[SmallCap]:
    """Return the caps that end the run before it can show anything."""
    short = schedule.shortest
    whole = forecast(config, task, skill, short, cost).total
    stages = ("preflight", "baseline", *_STEP, "prune", "ship")
    rollouts = _total(_rollout_rows(stages, config, task, skill, short, cost))
    optimizer = _total(_optimizer_rows(config, task, skill, short))
    least = _total([rollouts, optimizer])
    call = _reserved_call(config, task, skill)
    found = []
    calls, fewest = config.budget.calls, ceil(rollouts.calls.low + optimizer.calls.typical)
    if calls is not None and calls < fewest + _PROBES:
        enough = max(whole.calls.high, rollouts.calls.high + optimizer.calls.high)
        found.append(SmallCap("calls", calls, fewest + _PROBES, ceil(enough) + _PROBES))
    tokens = config.budget.tokens
    if tokens is not None and tokens < least.tokens.typical + call.tokens:
        most = whole.tokens.high + call.tokens
        found.append(SmallCap("tokens", tokens, least.tokens.typical, most, call.tokens))
    usd = config.budget.usd
    if usd is not None and least.usd is not None and whole.usd is not None:
        reserved = call.usd or 0.0
        if usd < least.usd.typical + reserved:
            enough_usd = whole.usd.high + reserved
            found.append(SmallCap("usd", usd, least.usd.typical, enough_usd, reserved))
    return found


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step may take."""

    rollouts: Usage
    optimizer: Usage
    reserved: Usage  # for one optimizer call while it runs


def step_cost(
    config: Config, task: Task, skill: Skill, schedule: Schedule, cost: RolloutCost | None
) -> StepCost:
    """Return what the first step may take."""
    first = schedule.shortest
    rollouts = _usage(_rollout_rows(_STEP, config, task, skill, first, cost))
    return StepCost(
        rollouts=rollouts + Usage(calls=_PROBES),
        optimizer=_usage(_optimizer_rows(config, task, skill, first)),
        reserved=_reserved_call(config, task, skill),
    )


def _usage(rows: Sequence[EstimateRow]) -> Usage:
    """Return the most calls, and the typical tokens and dollars, of these rows together."""
    total = _total(rows)
    return Usage(
        calls=ceil(total.calls.high),
        input=ceil(total.tokens.typical),
        usd=total.usd.typical if total.usd else None,
    )


def _rollout_rows(
    stages: Sequence[str],
    config: Config,
    task: Task,
    skill: Skill,
    schedule: Schedule,
    cost: RolloutCost | None,
) -> list[EstimateRow]:
    """Return the rollouts of some stages; for prune rounds and ship test, what is held back."""
    counts = {stage: count.high for stage, count in schedule.rollouts.items()}
    for held in ("prune", "ship"):
        counts[held] *= FINISH_SAFETY
    rollouts = Range.exactly(sum(counts[stage] for stage in stages))
    item_tokens = _item_tokens(task)
    rows = [_one_rollout(config, skill, item_tokens, cost).times(rollouts, "total")]
    if config.model.judge is not None:
        rows.append(_judge_row(config, rollouts, item_tokens))
    return rows


def _reserved_call(config: Config, task: Task, skill: Skill) -> Usage:
    """Return what is reserved for one optimizer call: the bytes of its prompt, and its longest
    reply.
    """
    spec = config.model.optimizer
    counted = spec is not None and not (spec.is_cli or spec.is_handoff)
    if spec is None or not counted:
        return Usage()
    window = spec.context_window or context_window_of(spec.id)
    reply = min(spec.max_tokens or REPLY_TOKENS, window // 2)
    prompt = ceil(_BYTES * _optimizer_prompt(config, skill, _item_tokens(task)).typical)
    return Prices(config.model.prices).priced(spec.id, Usage(input=prompt, output=reply))


def _total(rows: Sequence[EstimateRow]) -> EstimateRow:
    calls = sum((row.calls for row in rows), NOTHING)
    tokens = sum((row.tokens for row in rows), NOTHING)
    priced = [row.usd for row in rows if row.usd is not None]
    usd = sum(priced, NOTHING) if len(priced) == len(rows) else None
    return EstimateRow("total", "", calls, tokens, usd)


def _around(amount: float) -> Range:
    """Return a measured amount as a range: a few rollouts give only a rough mean."""
    return Range(0.7 * amount, amount, 1.6 * amount)


def rollouts_at_once(config: Config) -> int:
    """Return how many rollouts can run at the same time. A model on this machine has few slots."""
    return min(
        config.model.concurrency, local_slots(config.model.agent) or config.model.concurrency
    )


@dataclass(frozen=True, slots=True)
class _OneRollout:
    calls: Range
    tokens: Range
    usd: Range | None
    seconds: Range

    def times(self, rollouts: Range, stage: str) -> EstimateRow:
        usd = None if self.usd is None else rollouts * self.usd
        return EstimateRow(stage, "agent", rollouts * self.calls, rollouts * self.tokens, usd)


def _one_rollout(
    config: Config, skill: Skill, item_tokens: float, cost: RolloutCost | None
) -> _OneRollout:
    """Return what the agent uses for one rollout: measured, or assumed from the lengths of the
    texts.
    """
    if cost is not None:
        usd = None if cost.usage.usd is None else _around(cost.usage.usd)
        calls = Range.exactly(cost.usage.calls)
        return _OneRollout(calls, _around(cost.usage.tokens), usd, _around(cost.seconds))
    spec, cli = config.model.agent, config.agent_kind == "cli"
    chat_turns = Range(1, 1, max(1, config.env.max_turns or 1))
    turns = _TURNS.get(config.agent_kind, chat_turns)
    prompt = Range(
        skill.tokens + item_tokens,
        1.3 * skill.tokens + item_tokens + 100,
        2 * skill.tokens + item_tokens + 500,
    )
    if cli:
        prompt += _CLI_PROMPT
    specs = config.model.agents or ((spec,) if spec is not None else ())
    prices = [Prices(config.model.prices).of(one.id) for one in specs]
    # A coding agent sends its prompt again in every turn, and reads it from the cache.
    again = Range(turns.low - 1, turns.typical - 1, turns.high - 1) if cli else NOTHING
    fresh = Range.exactly(1) if cli else turns
    costs = [
        prompt * fresh * price.input + prompt * again * price.cached + turns * _REPLY * price.output
        for price in prices
        if price is not None
    ]
    usd = None
    if costs and len(costs) == len(prices):
        usd = sum(costs, NOTHING) * (1e-6 / len(costs))
    # A program is one call of skillfit, whatever it asks its model.
    calls = Range.exactly(1) if cli else turns
    return _OneRollout(calls, turns * (prompt + _REPLY), usd, turns * _SECONDS)


def _item_tokens(task: Task) -> float:
    """Return the length of a typical item."""
    sample = task.items[:_SAMPLE]
    return sum(estimate_tokens(item.input) for item in sample) / max(1, len(sample))


def _optimizer_prompt(config: Config, skill: Skill, item_tokens: float) -> Range:
    shown = config.gradient.minibatch_size * (item_tokens + _REPLY.typical)
    prompt = Range(
        skill.tokens + 800,
        1.5 * skill.tokens + 1_500 + shown,
        2 * skill.tokens + 2_000 + 3 * shown,
    )
    spec = config.model.optimizer
    if spec is not None and spec.is_cli:
        prompt += _CLI_OPTIMIZER_PROMPT
    return prompt


def _optimizer_rows(
    config: Config, task: Task, skill: Skill, schedule: Schedule
) -> list[EstimateRow]:
    """Count the optimizer's calls. Where it is configured, it works for every proposer, also for
    one that does not call it: it merges, selects and compares epochs.
    """
    if config.model.optimizer is None:
        return []
    prompt = _optimizer_prompt(config, skill, _item_tokens(task))
    calls = _optimizer_calls(config, schedule)
    rows = {
        stage: _row(config, "optimizer", stage, count, prompt, _PROPOSAL)
        for stage, count in calls.items()
    }
    if config.proposer == "agent":
        kind = "cli" if config.model.optimizer.is_cli else "tools"
        read, written = _SESSION_TOKENS[kind]
        rows["reflect"] = _row(config, "optimizer", "reflect", calls["reflect"], read, written)
    return list(rows.values())


def _judge_row(config: Config, rollouts: Range, item_tokens: float) -> EstimateRow:
    graded = Range(item_tokens + 300, item_tokens + 600, item_tokens + 1_500 + _REPLY.high)
    return _row(config, "judge", "grading", rollouts * _JUDGED, graded, _REPLY)


def _row(
    config: Config, role: Role, stage: str, calls: Range, prompt: Range, reply: Range
) -> EstimateRow:
    """Return what a role's calls in a stage take."""
    spec = config.model.of_role(role)
    price = Prices(config.model.prices).of(spec.id) if spec else None
    usd = calls * (prompt * price.input + reply * price.output) * 1e-6 if price else None
    return EstimateRow(stage, role, calls, calls * (prompt + reply), usd)


def _optimizer_calls(config: Config, schedule: Schedule) -> dict[str, Range]:
    """Estimate the optimizer calls per stage, without replies that have to be asked for again. How
    many patches a user's proposer writes is not known: assume as many as the analysts.
    """
    gradient, optimizer, steps = config.gradient, config.optimizer, schedule.total_steps
    sizes = [len(batch.items) for batch in schedule.batches]
    groups = 0
    for size in sizes:
        groups += ceil(size / gradient.minibatch_size)
        groups += not gradient.failure_only and size > 1
    diagnoses = steps if gradient.deep_reflection else 0
    deeper = diagnoses * ceil(gradient.deep_reflection_items / gradient.minibatch_size)
    asked = groups if schedule.asks_optimizer else 0
    reflect = asked + diagnoses + deeper
    merges = ceil((groups + deeper) / (gradient.merge_batch_size - 1)) + 2 * steps
    if not gradient.merge and optimizer.skill_update_mode == "patch":
        merges = 0
    modes = {"autonomous": 2, "fixed": int(optimizer.learning_rate is not None)}
    selects = steps * modes.get(optimizer.lr_control_mode, 0)
    rewrites = steps if optimizer.skill_update_mode == "rewrite_from_suggestions" else 0
    notes = steps if optimizer.skill_aware_consolidate_threshold else 0
    later = looked_back(len(schedule.epochs))
    least = 0 if gradient.failure_only or not asked else len(sizes)
    read = Range(least, 0.8 * reflect, reflect)
    if config.proposer == "corpus":  # one call per step, rarely a second one for what it left out
        other = diagnoses + deeper
        read = Range(0, steps + 0.8 * other, 2 * steps + other)
    spec = config.model.optimizer
    if config.proposer == "agent" and spec is not None:
        sessions = Range(0, steps, steps)
        turns = Range.exactly(1) if spec.is_cli else _SESSION_TURNS
        read = sessions * turns + Range(0, 0.8 * (diagnoses + deeper), diagnoses + deeper)
    return {
        "reflect": read,
        "merge": Range(0, 0.6 * merges, merges),
        "select": Range(0, 0.5 * selects, selects),
        "update": Range(0, rewrites, rewrites),
        "appendix": Range(0, 0, notes),
        "slow_update": Range(0, later, later) if optimizer.use_slow_update else NOTHING,
        "meta_skill": Range(0, later, later) if optimizer.use_meta_skill else NOTHING,
    }


@dataclass(frozen=True, slots=True)
class BudgetOption:
    """What a number of rollouts would buy."""

    rollouts: int
    plan: RolloutPlan | None  # None: too few for one step
    gain: float = 0.0  # expected
    chance: float = 0.0  # that the ship test shows that gain
    least: int = 0  # rollouts that would be enough; 0: these are


# Share of the points that were missing which a run gained, by rollouts: the mean of the tasks and
# optimizers of bench/real.
_GAINED = {50: 0.10, 100: 0.30, 150: 0.42, 300: 0.52, 600: 0.58, 1_200: 0.63}
ASSUMED_BASELINE = 0.3  # score of the initial skill where `skillfit check` did not measure it


def budget_options(
    config: Config, sizes: SplitSizes, gate: Gate, baseline: float | None = None
) -> list[BudgetOption]:
    """Return the plans that `budget.rollouts` would give for some numbers, and what they can be
    expected to show. `baseline`: the score of the initial skill.
    """
    before = ASSUMED_BASELINE if baseline is None else baseline
    options = []
    for number, share in _GAINED.items():
        budget = config.budget.model_copy(update={"rollouts": number})
        bought = config.model_copy(update={"budget": budget})
        if number < (least := fewest_rollouts(bought, sizes, gate)):
            options.append(BudgetOption(number, None, least=least))
            continue
        plan = buy(bought, sizes, gate, number)
        gain = share * (1 - before)
        chance = chance_to_show(plan.pairs, before, before + gain)
        options.append(BudgetOption(number, plan, gain, chance))
    return options
