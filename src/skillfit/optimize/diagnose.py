"""Deep reflection: some failures are tried again with a question that makes the agent show how it works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from skillfit.optimize.memory import failure_patterns
from skillfit.optimize.optimizer import Call, Optimizer
from skillfit.optimize.patch import Patch
from skillfit.optimize.prompts import render, sections
from skillfit.optimize.reflect import Context, Group, analyse
from skillfit.optimize.replies import DiagnosisReply
from skillfit.optimize.trajectories import Case, render_cases
from skillfit.rollout.gather import gather
from skillfit.rollout.outcome import Outcome
from skillfit.skill import Skill
from skillfit.tasks.item import Item

Reroll = Callable[[str, Sequence[Item]], Awaitable[Sequence[Outcome]]]  # diagnostic instruction, items -> outcomes in their order


def worth_diagnosing(cases: Sequence[Case], limit: int) -> tuple[Case, ...]:
    """Failed cases of as many kinds as possible: one of each kind of failure in turn, in planned order."""
    failed = {case.item.id: case for case in cases if case.failed}
    outcomes = [outcome for case in failed.values() for outcome in case.scored if not outcome.succeeded]
    kinds = [list(dict.fromkeys(pattern.task_ids)) for pattern in failure_patterns(outcomes, ())]
    longest = max(map(len, kinds), default=0)
    turns = dict.fromkeys(kind[turn] for turn in range(longest) for kind in kinds if turn < len(kind))
    return tuple(failed[item] for item in list(turns)[:limit])


async def diagnose(
    optimizer: Optimizer, skill: Skill, cases: Sequence[Case], reroll: Reroll, context: Context, *, limit: int
) -> tuple[Patch, ...]:
    """Extra patches from diagnosed failures; none when there is nothing to diagnose or no instruction came."""
    chosen = worth_diagnosing(cases, limit)
    if not chosen:
        return ()
    system = render("diagnose")
    known = sections(current_skill=skill)
    shown = render_cases(chosen, skill, optimizer.room(system, known), trace=optimizer.settings.trace_to_optimizer)
    call = Call("diagnose", context.step, "instruction", system, f"{known}\n\n{sections(trajectories=shown)}")
    reply = await optimizer.try_ask(DiagnosisReply, call, otherwise="this step goes on without a diagnosis")
    if reply is None:
        return ()
    instruction = reply.instruction.strip()
    answers = await reroll(instruction, [case.item for case in chosen])
    told = [_with_answer(case, answer) for case, answer in zip(chosen, answers, strict=True) if answer.score is not None]
    size = optimizer.settings.minibatch_size
    groups = [
        Group(f"diagnosis_{number:03d}", "failure", tuple(told[start : start + size]), "diagnosis", instruction)
        for number, start in enumerate(range(0, len(told), size))
    ]
    results = await gather(analyse(optimizer, skill, group, context, stage="reflect.diagnosis") for group in groups)
    return tuple(result for result in results if isinstance(result, Patch))


def _with_answer(case: Case, answer: Outcome) -> Case:
    usual = tuple(f"Usual attempt {number}" for number in range(1, len(case.outcomes) + 1))
    return Case(case.item, (*case.outcomes, answer), (*usual, "With the diagnostic question"))
