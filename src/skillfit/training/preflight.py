"""The check before a run, which is also `skillfit check`: a few rollouts of training items show
whether this is worth training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skillfit.agents.cli_agent import program_isolation
from skillfit.config import Config
from skillfit.config.schema import PROGRAM_AGENTS
from skillfit.errors import InputError, TaskFailure
from skillfit.gate import GateSettings, overall
from skillfit.gate.diagnosis import (
    blindness_check,
    cost_check,
    coverage_check,
    gold_check,
    headroom_check,
    lift_check,
    power_check,
    room_to_lose_check,
    skill_use_check,
)
from skillfit.gate.samples import Samples, item_differences, within_item_variance
from skillfit.gate.shortcut import audit, shortcuts
from skillfit.models.failures import policy_of
from skillfit.models.protocol import Message, Model, ModelError, Request, Role
from skillfit.models.registry import find_provider
from skillfit.plain_text import quantity
from skillfit.rollout import Outcome, requests_for
from skillfit.rollout.outcome import raise_if_skipped
from skillfit.run.events import EventLog, PreflightFinished
from skillfit.run.journal import RecordedModel
from skillfit.run.records import (
    CheckName,
    CheckResult,
    Level,
)
from skillfit.sandbox.programs import Isolation, choose_isolation
from skillfit.skill import NO_SKILL, Skill, document_problems
from skillfit.tasks.graders import without_judges
from skillfit.tasks.item import Attempt, Item, count_unreviewed
from skillfit.tasks.task import GradingTimedOut, Task, grading_limit, prove_gold
from skillfit.training.assemble import Assembled
from skillfit.training.forecast import RolloutCost, forecast, small_caps
from skillfit.training.schedule import CheckRollouts, training_series
from skillfit.training.state import Components, StepLog

_ENOUGH_ITEMS = 4  # on fewer, equal scores may be chance
_PROBE_TOKENS = 1_024  # for one word and the thinking before it
_PROBE_SCHEMA = {
    "type": "object",
    "properties": {"reply": {"type": "string"}},
    "required": ["reply"],
    "additionalProperties": False,
}
_SMALLEST_WINDOW = 1_000  # tokens


async def run_preflight(ready: Assembled) -> PreflightFinished:
    """Check whether the run is worth its rollouts, with some of training items. Raises what `probe`
    raises.
    """
    run = ready.components
    tried = run.schedule.check
    with StepLog(run.emit).stage("preflight", tried.total):
        found = [
            *_marker_checks(run.initial),
            *_draft_checks(run.task.items),
            await _key_check(ready),
            *_isolation_checks(run.config, run.task),
            *(gold := await _gold_checks(run.task, run.ship_task, run.config)),
        ]
        # Rollouts whose grader works on no gold answer are paid for and say nothing.
        if overall(gold) != "stop":
            noise = _measured_noise(ready.directory.events)
            found += [*await _rollout_checks(run, tried, noise), *_budget_checks(run)]
    finished = PreflightFinished(verdict=overall(found), checks=found)
    run.emit(finished)
    return finished


def _measured_noise(events: EventLog) -> float | None:
    """Return the noise that an earlier check of this run measured with repeats, if there was one: a
    run with a small budget rolls out no item twice in its own check.
    """
    stored = events.last(PreflightFinished)
    checks = stored.event.checks if stored and isinstance(stored.event, PreflightFinished) else ()
    details = [check.detail for check in checks if check.name == "power"]
    measured = [one["noise"] for one in details if one.get("noise_measured")]
    return next((noise for noise in measured if isinstance(noise, int | float)), None)


async def probe(ready: Assembled, *, again: bool = False) -> list[str]:
    """Send one small call to each model that can be tested; return role and name of each. Raise
    what would make every call of a run fail: a wrong key, a wrong model name, an address where no
    model answers. What the model replies does not matter.

    A recorded probe is not repeated, unless `again`: a key may have changed since.
    """
    probed: list[str] = []
    for role, client in ready.probes:
        known = find_provider(client.id)
        if known is not None and not known.probed:
            continue
        probed.append(f"{role} ({client.id})")
        # A limit that the user chose is tried as it is; the default one could reserve more than a
        # small budget has.
        models = ready.components.config.model
        several = models.agents if role == "agent" else ()
        spec = next((one for one in several if one.id == client.id), models.of_role(role))
        chosen = spec.max_tokens if spec is not None else None
        request = _probe_request(role, client, chosen or _PROBE_TOKENS)
        if several:
            request = replace(request, purpose=f"{request.purpose} {client.id}")
        earlier = ready.directory.journal.count(f"call/{role}/{request.stage}/")
        if again and earlier:
            request = replace(request, purpose=f"{request.purpose} {earlier}")
        try:
            await RecordedModel(client, ready.directory.journal, role).complete(request)
        except ModelError as error:
            if not policy_of(error).answered:
                raise
    return probed


def _probe_request(role: Role, client: Model, max_tokens: int) -> Request:
    """Return a small request of the same kind as the real ones. The optimizer is asked for JSON,
    and its prompts are cut to its context window.
    """
    user = Message("user", "Reply with: ok")
    if role != "optimizer":
        return Request((user,), "probe", purpose="probe", max_tokens=max_tokens)
    if client.context_window < _SMALLEST_WINDOW:
        raise InputError(
            f"The context window of {client.id} is {client.context_window} tokens, "
            "too small for an optimizer.",
            hint="Use another model, or correct model.optimizer.context_window.",
        )
    system = Message("system", "You reply in JSON.")
    return Request(
        (system, user), "probe", schema=_PROBE_SCHEMA, purpose="probe", max_tokens=max_tokens
    )


def _marker_checks(skill: Skill) -> list[CheckResult]:
    """Warn about markers in the skill that do not protect as their author may expect."""
    problems = [problem for problem in document_problems(skill) if problem.rule == "marker"]
    if not problems:
        return []
    named = "; ".join(f"line {problem.line}: {problem.message}" for problem in problems)
    return [CheckResult("skill", "warn", f"{skill.document_name}: {named}.")]


def _draft_checks(items: Sequence[Item]) -> list[CheckResult]:
    """Warn about tasks that a model wrote and nobody reviewed (`skillfit tasks draft --yes`)."""
    unread = count_unreviewed(items)
    if not unread:
        return []
    message = (
        f"{quantity(unread, 'task was', 'tasks were')} drafted by a model and not reviewed. A "
        "wrong answer teaches the skill something wrong: read them and remove `reviewed: false`."
    )
    return [CheckResult("tasks", "warn", message)]


async def _key_check(ready: Assembled) -> CheckResult:
    reached = ", ".join(await probe(ready))
    if reached:
        message = f"Reached: {reached}."
    else:
        message = "No model needs a key." if ready.probes else "skillfit calls no model itself."
    return CheckResult("keys", "go", message)


def _isolation_checks(config: Config, task: Task) -> list[CheckResult]:
    """Report how the agent's programs are isolated on this machine or, where it runs none, the
    programs in answers.
    """
    if config.agent_kind not in PROGRAM_AGENTS:
        known = task.known_good()
        return [_isolation_check(known[0].isolation, "Programs in answers")] if known else []
    spec, sandbox = config.model.agent, config.env.sandbox
    if spec is not None and spec.is_cli:
        isolation = program_isolation(spec, sandbox)
    else:
        isolation = choose_isolation(sandbox, "env.sandbox")
    return [_isolation_check(isolation, "The agent's programs")]


def _isolation_check(isolation: Isolation, programs: str) -> CheckResult:
    if isolation.full:
        return CheckResult("isolation", "go", f"{programs} are isolated by {isolation.name}.")
    message = (
        f"{programs} are not fully isolated ({isolation.name}): they can read your files "
        "and the tasks with their answers. See docs/isolation.md."
    )
    return CheckResult("isolation", "warn", message)


async def _gold_checks(task: Task, ship_task: Task | None, config: Config) -> list[CheckResult]:
    """Check the gold answers with the training grader, and with the ship grader if there is one."""
    timeout = config.rollout_seconds
    found = [await _gold_check_of(task, "gold", "The grader", timeout)]
    if ship_task is not None:
        found.append(await _gold_check_of(ship_task, "ship gold", "The ship grader", timeout))
    return found


async def _gold_check_of(task: Task, name: CheckName, grader: str, timeout: float) -> CheckResult:
    if task.grader is None:
        message = "The task scores itself: there are no gold answers to check."
        return CheckResult(name, "go", message)
    if without_judges(task.grader) is None:
        return CheckResult(name, "go", "A judge grades: no gold answer was put to it.")
    try:
        problems = await prove_gold(task, timeout=timeout)
    except GradingTimedOut as ended:
        # The other gold answers could take as long each. The rollouts show whether they all would.
        return CheckResult(name, "warn", f"{grader} was ended at a gold answer. {ended}")
    failed = {problem.item_id: problem.why for problem in problems if problem.score is None}
    wrong = {problem.item_id: problem.score.hard if problem.score else 0.0 for problem in problems}
    scores: dict[str, float | None] = {}
    for item in task.items:
        has_gold = bool(item.answers or item.reference)
        scores[item.id] = wrong.get(item.id, 1.0) if has_gold else None
    return gold_check(scores, name, grader, failed)


async def _rollout_checks(
    run: Components, tried: CheckRollouts, measured_noise: float | None
) -> list[CheckResult]:
    """Roll out some training items with the skill and without it, and check noise, headroom, and
    whether the skill helps. The first rollout of each item with the skill is also one of the first
    step. `measured_noise`: for a check that rolls out no item twice.
    """
    engine, task, skill, settings = run.engine, run.task, run.initial, run.gate_settings
    first_step = run.schedule.steps[0]
    items = first_step.batches[0].items[: tried.items]
    series = training_series(first_step.name, 0)
    full = await engine.run(
        requests_for(skill, items, range(tried.repeats)), stage="preflight", series=series
    )
    # Afterwards: an agent that cannot work without a skill does not end the check then.
    bare_repeats = range(int(tried.bare and bool(skill.text.strip())))
    without = await engine.run(
        requests_for(NO_SKILL, items, bare_repeats), stage="preflight", series=series
    )
    raise_if_skipped([*full, *without])
    known, bare = _samples_of(settings, full), _samples_of(settings, without)
    empty = _samples_of(settings, await _empty_answers(task, items, settings.config))
    lost = list(item_differences(known.means, empty.means).values())
    gains = list(item_differences(known.means, bare.means).values())
    noise = within_item_variance(known.by_item)
    noise = measured_noise if noise is None else noise
    first = next((str(outcome.failure.message) for outcome in full if outcome.failure), "")
    floor = settings.config.evaluation.coverage_floor
    evaluation = settings.config.evaluation
    constant = _only_score(known, [one for one in (empty, bare) if one.scored])
    attempts = [outcome.attempt for outcome in full if outcome.attempt is not None]
    return [
        *skill_use_check([one.skill_read for one in attempts if one.skill_read is not None]),
        coverage_check(known.scored, known.planned, floor, first),
        blindness_check(known.score, lost, constant=constant),
        *([lift_check(gains)] if gains else []),
        room_to_lose_check(known.score, evaluation.margin)
        if evaluation.objective == "cheaper"
        else headroom_check(known.score),
        power_check(len(task.selection), noise, known.score),
        audit(shortcuts(task.train, task.selection), known.score, "initial skill"),
    ]


def _only_score(known: Samples, worse: Sequence[Samples]) -> float | None:
    """Return the one score that every probe got, where there was a worse one and enough items."""
    values = {
        value
        for samples in (known, *worse)
        for item in samples.scores
        for value in samples.values(item)
    }
    enough = worse and len(known.scores) >= _ENOUGH_ITEMS
    return values.pop() if enough and len(values) == 1 else None


def _samples_of(settings: GateSettings, outcomes: Sequence[Outcome]) -> Samples:
    samples = Samples(settings)
    samples.add(outcomes)
    return samples


async def _empty_answers(task: Task, items: Sequence[Item], config: Config) -> list[Outcome]:
    """Return the scores of an empty answer; none where a judge would have to be paid for them."""
    grader = task.grader
    if grader is None or without_judges(grader) != grader:
        return []
    outcomes = []
    for item in items:
        try:
            async with grading_limit(item, config.rollout_seconds):
                score = await grader.grade(item, Attempt(""))
        except TaskFailure:
            continue  # a grader that fails on an empty answer does not reward it either
        except GradingTimedOut:
            break  # nor does one that does not finish; every other item could take as long
        outcomes.append(Outcome(item.id, 0, "scored", score))
    return outcomes


def _budget_checks(run: Components) -> list[CheckResult]:
    """Return what the plan takes, by what the check's own rollouts cost, and whether the budget has
    room for it.
    """
    stats = run.engine.stats  # of the rollouts that the check made
    cost = RolloutCost.mean(stats.scored, stats.usage)
    budget = budget_check(run, cost)
    return [_cost_of_plan(run, cost), *([budget] if budget.verdict != "go" else [])]


def budget_check(run: Components, cost: RolloutCost | None) -> CheckResult:
    """Check that every cap has room for one step and the ship test."""
    small = small_caps(run.config, run.task, run.initial, run.schedule, cost)
    level: Level = "stop" if any(cap.certain for cap in small) else "warn" if small else "go"
    return CheckResult("budget", level, " ".join(map(str, small)))


def _cost_of_plan(run: Components, cost: RolloutCost | None) -> CheckResult:
    """Say what the whole plan will take."""
    whole = forecast(run.config, run.task, run.initial, run.schedule, cost).total
    if whole.usd is None:
        most = f"{whole.calls.high:,.0f} at the most"
        message = f"The plan takes about {whole.calls.typical:,.0f} calls ({most})."
        return CheckResult("cost", "go", message)
    return cost_check(whole.usd.typical, whole.usd.high, run.config.budget.usd)
