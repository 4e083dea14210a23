"""What a run does and when: the check, steps, prune rounds and the final comparison.

A run has three phases. *Grow*: each step rolls out training items, the optimizer proposes edits
from all that was seen, and pending edits are on in nearly all rollouts. *Prune*: rollouts leave
random edits out, so that wrong and useless ones leave. *Prove*: initial and final skill are
compared on fresh rollouts. A capable optimizer grows first: most of its edits help, and the next
proposals should start from what is left to fix. Of what a small one proposes, about half is wrong
or useless, so edits are left out of half of the rollouts from the step on in which they join.

With `budget.rollouts`, `buy` decides how many steps of which size fit. All is a pure function of
settings, items and gate; `rollouts_by_stage` is the one place that counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from skillfit.config.schema import Config
from skillfit.errors import InputError
from skillfit.gate import Gate, Round
from skillfit.gate.ship import MOST_REPEATS
from skillfit.run.records import Phase, PhasePlan, RolloutPlan
from skillfit.tasks.task import Task
from skillfit.training.plan import BatchSampler, Epoch, Plan, PlannedStep

MOST_STEPS = 100_000
MOST_AT_ONCE = 100_000  # rollouts that are started at once: those of a step or of an evaluation
MOST_TRAINING_ROLLOUTS = 10_000_000  # of all steps


def refuse_endless_plan(config: Config, items: int, bought: RolloutPlan | None) -> None:
    """Raise an error for a plan that is too large to be built. `items`: the training items.
    `bought`: the plan for `budget.rollouts`, where that is set.
    """
    train, gradient = config.train, config.gradient
    size = min(train.batch_size if bought is None else bought.batch_size, max(1, items))
    per_step = size * train.accumulation * gradient.rollouts_per_item
    refuse_endless(
        f"train.accumulation: {shown_count(train.accumulation)} and gradient.rollouts_per_item: "
        f"{shown_count(gradient.rollouts_per_item)} with batches of {size:,} items "
        "(train.batch_size) give",
        per_step,
        "training rollouts in one step",
        most=MOST_AT_ONCE,
        hint="Use smaller values.",
    )
    if bought is None:
        key, value = "train.num_epochs", train.num_epochs
        steps = value * max(1, -(-items // (size * train.accumulation)))
    else:
        key, value, steps = "budget.rollouts", config.budget.rollouts or 0, bought.steps
    for count, what, most in (
        (steps, "steps", MOST_STEPS),
        (steps * per_step, "training rollouts", MOST_TRAINING_ROLLOUTS),
    ):
        refuse_endless(
            f"{key}: {shown_count(value)} gives a plan of",
            count,
            what,
            most=most,
            hint="Use a smaller value. To train until an amount is spent, set budget.usd, "
            "budget.tokens, budget.calls or budget.minutes.",
        )


def refuse_endless(cause: str, count: int, what: str, *, most: int, hint: str) -> None:
    """Raise an error when settings ask for more than memory could hold. `cause` names them and ends
    with a verb, for example `repeats: 5 gives`.
    """
    if count > most:
        raise InputError(
            f"{cause} {shown_count(count)} {what}. At most {most:,} are possible.", hint=hint
        )


def shown_count(number: int) -> str:
    return f"{number:,}" if number < 10**15 else "more than 10^15"


PREFLIGHT_ITEMS = 10  # training items that the check tries
PREFLIGHT_REPEATS = 2  # with the skill; and once without a part of it
BATCH = 20  # training rollouts of a step, where the settings ask for more
SMALLEST_BATCH = 10  # the same where few rollouts are planned
ENOUGH_STEPS = 3  # rather than larger ones
FEWEST = 4  # training rollouts of a step that can show something
PRUNE_ROUNDS = 2  # rounds of selection rollouts that measure the pending edits after the last step
SHIP_SHARE = 0.15  # of all rollouts: pairs of the ship test, which are two rollouts each
ENOUGH_PAIRS = 45  # more only where there are more items
FEW_PAIRS = 15  # where few rollouts are planned
FEWEST_PAIRS = 6  # fewer cannot show an improvement
CAPABLE = frozenset({"corpus", "agent"})  # proposers that need a capable optimizer
GROW_SHARE = 0.85  # of the rollouts of a grow step, for edits without evidence
PRUNE_SHARE = 0.5  # the same in a prune step or round


@dataclass(frozen=True, slots=True)
class Range:
    """The least, the typical and the most of an amount."""

    low: float
    typical: float
    high: float

    @classmethod
    def exactly(cls, amount: float) -> Range:
        return cls(amount, amount, amount)

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.typical + other.typical, self.high + other.high)

    def at_most(self, cap: float | None) -> Range:
        if cap is None:
            return self
        return Range(min(self.low, cap), min(self.typical, cap), min(self.high, cap))

    def __mul__(self, other: Range | float) -> Range:
        by = other if isinstance(other, Range) else Range.exactly(other)
        return Range(self.low * by.low, self.typical * by.typical, self.high * by.high)


NOTHING = Range(0, 0, 0)


@dataclass(frozen=True, slots=True)
class SplitSizes:
    train: int
    selection: int
    test: int

    @classmethod
    def of(cls, task: Task) -> SplitSizes:
        return cls(len(task.train), len(task.selection), len(task.test))

    def compared(self, config: Config) -> int:
        """Count the items of the ship test: those of the selection and of the test split."""
        return self.selection + (self.test if config.evaluation.eval_test else 0)


@dataclass(frozen=True, slots=True)
class CheckRollouts:
    """What the check before a run rolls out besides the first training rollouts of the run."""

    items: int
    repeats: int  # of each item with the skill; the first repeat belongs to the first step
    bare: bool  # also without the skill

    @property
    def total(self) -> int:
        return self.items * (self.repeats + self.bare)

    @property
    def extra(self) -> int:
        return self.items * (self.repeats - 1 + self.bare)


def check_rollouts(config: Config, train_items: int) -> CheckRollouts:
    """Choose the rollouts of the check. A small budget is left to the run: then the check reads the
    first training rollouts only.
    """
    budget, items = config.budget.rollouts, min(PREFLIGHT_ITEMS, train_items)
    if budget is None or budget >= 600:
        return CheckRollouts(items, PREFLIGHT_REPEATS, bare=True)
    return CheckRollouts(items, 1, bare=budget >= 200)


@dataclass(frozen=True, slots=True)
class Schedule(Plan):
    """The steps of a run, and what comes before and after them."""

    prune: tuple[Round, ...]  # rounds of selection rollouts after the last step
    pairs: int  # rollouts of each skill in the ship test, at the most
    check: CheckRollouts
    rollouts: Mapping[str, Range]  # by stage
    phases: tuple[PhasePlan, ...]
    bought: RolloutPlan | None = None  # what budget.rollouts buys
    asks_optimizer: bool = True  # the proposer may call the optimizer's model
    one_step: Schedule | None = None  # the same, cut to one step and the shortest ship test

    @property
    def shortest(self) -> Schedule:
        """The least that can show something."""
        return self.one_step or self

    @property
    def prune_rollouts(self) -> int:
        return ceil(self.rollouts["prune"].high)

    def reason(self, phase: Phase) -> str:
        """Return why a phase is as long as it is."""
        return next((one.reason for one in self.phases if one.phase == phase), "")


def make_schedule(
    config: Config,
    task: Task,
    gate: Gate,
    sampler: BatchSampler,
    bought: RolloutPlan | None = None,
    asks_optimizer: bool = True,
) -> Schedule:
    """Return the schedule of a run. `bought`: what `budget.rollouts` buys. `asks_optimizer`:
    whether the proposer may call the optimizer's model.
    """
    settings, sizes = config.train, SplitSizes.of(task)
    if bought is not None:
        per_epoch = ceil(sizes.train / (bought.batch_size * settings.accumulation))
        epochs = ceil(bought.steps / per_epoch)
        update = {"num_epochs": epochs, "batch_size": bought.batch_size}
        settings = settings.model_copy(update=update)
    plan = sampler.plan(task.train, settings)
    if bought is not None:
        plan = plan.first_steps(bought.steps)
        selection, pairs = bought.selection, bought.pairs
    else:
        selection = _batch_size(config, sizes) * config.train.accumulation
        training = sum(len(batch.items) for batch in plan.batches)
        wanted = training * config.gradient.rollouts_per_item + plan.total_steps * selection
        pairs = ship_pairs(config, sizes, wanted / (1 - 2 * SHIP_SHARE))
    one_step = _timetable(config, sizes, gate, plan.first_steps(1), selection, FEWEST_PAIRS)
    whole = _timetable(config, sizes, gate, plan, selection, pairs)
    return replace(
        whole,
        bought=bought,
        asks_optimizer=asks_optimizer,
        one_step=replace(one_step, asks_optimizer=asks_optimizer),
    )


def _timetable(
    config: Config, sizes: SplitSizes, gate: Gate, plan: Plan, selection: int, pairs: int
) -> Schedule:
    epochs = []
    for epoch in plan.epochs:
        planned = tuple(_timed(config, step, selection) for step in epoch.steps)
        epochs.append(replace(epoch, steps=planned))
    rounds = PRUNE_ROUNDS if gate.need(selection).prune else 0
    training = sum(len(batch.items) for batch in plan.batches)
    shape = _Shape(plan.total_steps, len(epochs), training, selection, rounds, pairs)
    counted = rollouts_by_stage(config, sizes, gate, shape)
    return Schedule(
        tuple(epochs),
        tuple(
            Round(plan.total_steps, selection, PRUNE_SHARE, last=number == rounds)
            for number in range(1, rounds + 1)
        ),
        pairs,
        check_rollouts(config, sizes.train),
        counted,
        _phases(config, epochs, counted, rounds),
    )


def _timed(config: Config, step: PlannedStep, selection: int) -> PlannedStep:
    """Return a step with its phase, and how it measures pending edits."""
    grows = config.proposer in CAPABLE or step.step == 1
    share = GROW_SHARE if config.proposer in CAPABLE else PRUNE_SHARE
    phase: Phase = "grow" if grows else "prune"
    return replace(step, phase=phase, round=Round(step.step, selection, share))


def _phases(
    config: Config, epochs: Sequence[Epoch], rollouts: Mapping[str, Range], prune: int
) -> tuple[PhasePlan, ...]:
    """Return the phases of a run and their reasons, for people."""
    steps = [step for epoch in epochs for step in epoch.steps]
    growing = [step for step in steps if step.phase == "grow"]
    pruning = len(steps) - len(growing)
    in_steps = sum(rollouts[stage].high for stage in ("rollout", "diagnosis", "gate"))
    share = len(growing) / len(steps)
    if config.proposer in CAPABLE:
        why_grow = (
            f"optimizer.proposer: {config.proposer} reads everything, so most edits help: pending "
            f"edits are on in about {GROW_SHARE:.0%} of the rollouts, and the next proposals start "
            "from what is left to fix"
        )
        why_prune = "measures edits by leaving them out, so that wrong and useless ones leave"
    else:
        why_grow = "nothing was proposed yet"
        if config.removes_initial_text:
            why_grow += "; the paragraphs of the initial skill are measured"
        why_prune = (
            f"of what optimizer.proposer: {config.proposer} writes, much may not help: each new "
            "edit is on in about half of the rollouts from the step on in which it joins"
        )
    found = [PhasePlan("grow", len(growing), round(share * in_steps), why_grow)]
    if pruning or prune:
        left = round((1 - share) * in_steps + rollouts["prune"].high)
        found.append(PhasePlan("prune", pruning + prune, left, why_prune))
    if rollouts["ship"].high:
        why = "compares initial and final skill on fresh rollouts, and stops once it is decided"
        found.append(PhasePlan("prove", 1, round(rollouts["ship"].high), why))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What decides how many rollouts a run makes."""

    steps: int
    epochs: int
    training: int  # items over all steps
    selection: int  # selection rollouts of a step under pending edits
    prune: int  # rounds after the last step
    pairs: int


def rollouts_by_stage(
    config: Config, sizes: SplitSizes, gate: Gate, shape: _Shape
) -> dict[str, Range]:
    """Count the rollouts of each stage."""
    evaluation, need, test = config.evaluation, gate.need(shape.selection), sizes.test
    gated = need.first_step + (shape.steps - 1) * need.step
    typical = need.first_step // 2 + (shape.steps - 1) * need.typical_step
    deep = shape.steps * diagnosis_rollouts(config)
    slow = _look_back_rollouts(config, sizes, shape.epochs, need.lesson)
    prune = shape.prune * need.prune
    ship = (1 + evaluation.finalists) * shape.pairs if evaluation.ship_test else 0
    reads_test = evaluation.eval_test and not evaluation.ship_test
    checked = check_rollouts(config, sizes.train)
    # Removals take part from the first step on, so that its rollouts are not those of the check.
    check = checked.total if config.removes_initial_text else checked.extra
    return {
        "preflight": Range.exactly(check if evaluation.preflight else 0),
        "baseline": Range.exactly(need.baseline),
        "rollout": Range.exactly(shape.training * config.gradient.rollouts_per_item),
        "diagnosis": Range(0, deep, deep),
        "gate": Range(0, min(typical, gated), gated),
        "slow_update": Range(0, slow, slow),
        "prune": Range(0, prune, prune),
        "ship": Range(0, 0.6 * ship, ship),
        "test": Range(test, 2 * test, 3 * test) if reads_test else NOTHING,
    }


def diagnosis_rollouts(config: Config) -> int:
    """Count the failures of a step that deep reflection rolls out again, at the most."""
    asks = config.gradient.deep_reflection and config.model.optimizer is not None
    return config.gradient.deep_reflection_items if asks else 0


def looked_back(epochs: int) -> int:
    """Count the epochs that end with a slow update and a meta skill. The first does not, because
    there is no epoch to compare it with.
    """
    return max(0, epochs - 1)


def _look_back_rollouts(config: Config, sizes: SplitSizes, epochs: int, lesson: int) -> int:
    """Return the most rollouts that the ends of all epochs take: both skills on some training
    items, and what the gate makes for a lesson.
    """
    optimizer = config.optimizer
    if config.model.optimizer is None:
        return 0
    if not optimizer.use_slow_update and not optimizer.use_meta_skill:
        return 0
    every = optimizer.longitudinal_pair_policy == "changed"
    compared = sizes.train if every else min(optimizer.slow_update_samples, sizes.train)
    measured = lesson if optimizer.use_slow_update else 0
    return looked_back(epochs) * (2 * compared + measured)


def training_series(step: str, batch: int) -> str:
    """Return the series of the training rollouts of a step's batch."""
    return f"train/{step}/{batch}"


def ship_pairs(config: Config, sizes: SplitSizes, rollouts: float) -> int:
    """Return the most pairs of rollouts for the ship test of a run of so many rollouts in all."""
    items = sizes.compared(config)
    few = min(FEW_PAIRS, rollouts // 4)
    wanted = max(few, min(round(SHIP_SHARE * rollouts), max(ENOUGH_PAIRS, items)))
    return int(max(FEWEST_PAIRS, min(wanted, MOST_REPEATS * items)))


def buy(config: Config, sizes: SplitSizes, gate: Gate, rollouts: int) -> RolloutPlan:
    """Return what about this number of rollouts buys. Raise when it is too small for one step."""
    ships = config.evaluation.ship_test
    pairs = ship_pairs(config, sizes, rollouts) if ships else 0
    largest = _batch_size(config, sizes)
    smallest = min(largest, FEWEST)
    first = min(largest, max(SMALLEST_BATCH, rollouts // 10))
    plans = [
        _longest_plan(config, sizes, gate, rollouts, size, pairs)
        for size in range(first, smallest - 1, -1)
    ]
    found = [plan for plan in plans if plan is not None]
    for plan in found:
        if plan.steps >= ENOUGH_STEPS and plan.batch_size >= min(SMALLEST_BATCH, first):
            return plan
    if found:
        return found[0]
    for fewer in range(pairs - 1, min(pairs, FEWEST_PAIRS) - 1, -1):
        plan = _bought(config, sizes, gate, smallest, 1, fewer)
        if plan.total <= rollouts:
            return plan
    raise InputError(
        f"budget.rollouts: {rollouts} is too small for one step and the ship test.",
        hint=f"This task needs at least {fewest_rollouts(config, sizes, gate)}.",
    )


def extend(
    plan: RolloutPlan, config: Config, sizes: SplitSizes, gate: Gate, rollouts: int
) -> RolloutPlan | None:
    """Return a plan whose steps begin with those of another one, for another number of rollouts.
    None: there is no room for a step.
    """
    pairs = ship_pairs(config, sizes, rollouts) if config.evaluation.ship_test else 0
    return _longest_plan(config, sizes, gate, rollouts, plan.batch_size, pairs)


def fewest_rollouts(config: Config, sizes: SplitSizes, gate: Gate) -> int:
    """Return the smallest number of rollouts that can show an improvement."""
    pairs = FEWEST_PAIRS if config.evaluation.ship_test else 0
    size = min(_batch_size(config, sizes), FEWEST)
    return _bought(config, sizes, gate, size, 1, pairs).total


def _longest_plan(
    config: Config, sizes: SplitSizes, gate: Gate, rollouts: int, size: int, pairs: int
) -> RolloutPlan | None:
    """Return the plan with the most steps of this size; None when there is no room for one."""
    steps, most = 0, rollouts
    while steps < most:
        middle = (steps + most + 1) // 2
        if _bought(config, sizes, gate, size, middle, pairs).total <= rollouts:
            steps = middle
        else:
            most = middle - 1
    return _bought(config, sizes, gate, size, steps, pairs) if steps else None


def _bought(
    config: Config, sizes: SplitSizes, gate: Gate, size: int, steps: int, pairs: int
) -> RolloutPlan:
    """Return the plan of this many steps of this many training items, with its rollouts at the
    most.
    """
    per_step = size * config.train.accumulation
    epochs = ceil(steps * per_step / max(1, sizes.train))
    prune = PRUNE_ROUNDS if gate.need(per_step).prune else 0
    shape = _Shape(steps, epochs, steps * per_step, per_step, prune, pairs)
    total = sum(count.high for count in rollouts_by_stage(config, sizes, gate, shape).values())
    return RolloutPlan(steps, size, per_step, pairs, int(total))


def _batch_size(config: Config, sizes: SplitSizes) -> int:
    """Return the batch size: small, as more steps are worth more than more trajectories per
    step.
    """
    return min(config.train.batch_size, BATCH, sizes.train)
