"""Inspect AI tasks: the skill goes in as the first system message or as a file in the sandbox,
Inspect's solver and scorers do the rest, our model answers.

Inspect runs one eval at a time in a process. So rollouts are samples that are added to the eval
that runs, each for itself: a slow one holds up no other, and one that is cancelled (its time is
over) ends its sample. The eval, and its log, ends when no rollout is left. In a log, the same item
under another skill or seed is another epoch of its sample; its store says which. What Inspect
cannot interrupt, a scorer or a thread of the task's own, runs on to its end after a cancelled
rollout, and the log is complete only then.

Finding an Inspect task, in a file or an installed package, and making items of its samples.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from copy import copy
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, cast

from skillfit.errors import InputError, SkillfitError
from skillfit.models.pausable_timeout import paused
from skillfit.models.protocol import Model
from skillfit.plugins.inspect_bridge import InspectRollout, bridge, running, text_of
from skillfit.skill import Skill
from skillfit.skill.document import folder_name
from skillfit.tasks.evaluator import Evaluator
from skillfit.tasks.item import Attempt, Item, Score, Step, TaskFailure, as_score
from skillfit.tasks.rows import Row, items_of
from skillfit.tasks.sources import LoadContext, SourceItems, SourceReference, TaskSource
from skillfit.tasks.user_code import errors_in

SkillAs = Literal["message", "file"]
_SKILLS = ".agents/skills"  # where agents that know skills look, from their working folder


class InspectEvaluator(Evaluator):
    """Runs items of an Inspect task. The id of an item is the id of its sample."""

    needs_model = True

    def __init__(
        self,
        task: Any,
        samples: dict[str, Any],
        model: Model | None,
        reference: str,
        skill_as: SkillAs,
    ) -> None:
        self._task, self._samples, self._model, self._reference, self._skill_as = (
            task,
            samples,
            model,
            reference,
            skill_as,
        )
        self._logs = Path("logs")  # where `inspect view` looks by itself
        self._waiting: list[InspectRollout] = []
        self._live: dict[tuple[str, int], InspectRollout] = {}
        self._epochs: Counter[str] = Counter()
        self._eval: Context | None = (
            None  # of the eval that runs: samples can be added to it from there alone
        )
        self._runner: asyncio.Task[None] | None = None

    def __reduce__(self) -> str:
        raise TypeError("Inspect runs its samples in the process that loaded the task")

    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        if self._model is None:
            raise InputError("An Inspect task needs the agent's model.", hint="Set model.agent.")
        rollout = InspectRollout(skill, item, seed, asyncio.get_running_loop().create_future())
        self._waiting.append(rollout)
        if self._eval is not None:
            self._add_waiting(self._eval)
        elif self._runner is None or self._runner.done():
            # In a context of its own: it outlives this rollout, and must not run under its time
            # limit.
            self._runner = asyncio.create_task(self._run_waiting(), context=Context())
        try:
            with paused():  # Inspect and sandboxes start up
                await rollout.begun.wait()
            return await rollout.result
        except asyncio.CancelledError:
            rollout.give_up()
            raise

    @asynccontextmanager
    async def opened(self, run_path: Path) -> AsyncIterator[None]:
        """Inspect's logs are written under `run_path`. At the end, samples that still run are
        cancelled and their log is completed.
        """
        self._logs = run_path / "inspect_logs"
        try:
            yield
        finally:
            for rollout in (*self._waiting, *self._live.values()):
                rollout.give_up()
            if self._runner is not None:
                await self._runner

    def describe(self) -> dict[str, Any]:
        return {"inspect": self._reference, "skill_as": self._skill_as}

    async def _run_waiting(self) -> None:
        while self._waiting:
            evaluation = asyncio.ensure_future(self._run())
            await asyncio.wait([evaluation])
            self._eval = None
            left = list(self._live.values())
            self._live.clear()
            if failed := evaluation.exception():
                left += self._waiting
                self._waiting.clear()
            for rollout in left:
                missing = TaskFailure(
                    "inspect", f"Inspect gave no result for item {rollout.item.id}."
                )
                if not rollout.result.done():
                    rollout.result.set_exception(failed or missing)

    async def _run(self) -> None:
        from inspect_ai import SampleSource, eval_async, task_with
        from inspect_ai.dataset import MemoryDataset
        from inspect_ai.util._display import init_display_type

        init_display_type("none")
        self._epochs.clear()
        setup = self._task.setup or []
        task = task_with(
            copy(self._task),
            dataset=SampleSource.from_samples(
                [], next_samples=self._next_samples, sample_complete=self._sample_complete
            ),
            setup=[
                _enter(self._live, self._skill_as),
                *(setup if isinstance(setup, Sequence) else [setup]),
            ],
            epochs=1,
        )
        task.dataset = MemoryDataset([], name=self._task.dataset.name)
        logs = await eval_async(
            task,
            model=bridge(cast(Model, self._model), self._logs / "images"),
            log_dir=str(self._logs),
            log_header_only=True,
            fail_on_error=False,
            max_samples=10_000,  # whoever starts rollouts decides how many run
            ctl_server=False,
            log_level="error",
        )
        if logs[0].error is not None:
            raise TaskFailure("inspect", f"Inspect stopped: {logs[0].error.message}")

    async def _next_samples(self) -> None:
        """Asked when no sample is left; the eval goes on when some were added meanwhile."""
        self._eval = copy_context()
        if not self._add_waiting(self._eval):
            self._eval = None

    def _add_waiting(self, context: Context) -> bool:
        from inspect_ai import enqueue_sample

        wanted = [rollout for rollout in self._waiting if not rollout.result.done()]
        self._waiting.clear()
        for rollout in wanted:
            name = rollout.item.id
            self._epochs[name] += 1
            self._live[name, self._epochs[name]] = rollout
            context.run(enqueue_sample, self._samples[name], epoch=self._epochs[name])
        return bool(wanted)

    async def _sample_complete(self, sample: Any) -> None:
        rollout = self._live.pop((str(sample.id), sample.epoch))
        rollout.sample = None
        if rollout.result.done():
            return  # whoever asked has given up
        try:
            rollout.result.set_result((_attempt(sample, rollout), _score(sample)))
        except SkillfitError as error:
            rollout.result.set_exception(error)


def _enter(live: dict[tuple[str, int], InspectRollout], skill_as: SkillAs) -> Any:
    """The solver that runs before the task's own: it brings the skill in."""
    from inspect_ai.log._samples import sample_active
    from inspect_ai.model import ChatMessageSystem
    from inspect_ai.solver import solver

    @solver(name="skillfit_skill")
    def enter() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            rollout = live[str(state.sample_id), state.epoch]
            running.set(rollout)
            rollout.sample = sample_active()
            rollout.begun.set()
            if rollout.result.done():
                rollout.give_up()  # before it began
            await _read_images(state.messages)
            skill = rollout.skill
            state.store.set("skillfit", {"skill": skill.hash, "seed": rollout.seed})
            if skill.text.strip() or skill.files:
                text = await _install(skill) if skill_as == "file" else skill.text
                state.messages.insert(0, ChatMessageSystem(content=text))
            return state

        return solve

    return enter()


async def _read_images(turns: Sequence[Any]) -> None:
    """Files and addresses of images that the task's author put into the sample. Inspect reads those
    of fixed datasets alone.
    """
    from inspect_ai.util import materialize_media

    for turn in turns:
        for part in turn.content if isinstance(turn.content, list) else ():
            if part.type == "image":
                part.image = await materialize_media(part.image)


async def _install(skill: Skill) -> str:
    """Put the package into the sandbox; what to tell the model. The path is relative: the same in
    every sandbox, as journal keys must be.
    """
    from inspect_ai.util import sandbox

    folder = f"{_SKILLS}/{folder_name(skill.name) or 'skill'}"
    files = {"SKILL.md": skill.text.encode(), **skill.files}
    for name, data in files.items():
        await sandbox().write_file(f"{folder}/{name}", data)
    programs = [f"{folder}/{name}" for name, mode in skill.modes.items() if mode & 0o111]
    if programs:
        await sandbox().exec(["chmod", "+x", *programs])
    return f"There is a skill for this kind of work in {folder}/SKILL.md. Read it before you start, and follow it."


def _attempt(sample: Any, rollout: InspectRollout) -> Attempt:
    if rollout.error is not None:
        raise rollout.error
    if sample.error is not None:
        raise TaskFailure("inspect", f"item {sample.id}: {sample.error.message}")
    return Attempt(sample.output.completion, tuple(_steps(sample.messages)), usage=rollout.usage)


def _steps(turns: Sequence[Any]) -> Iterator[Step]:
    for turn in turns:
        if turn.role == "tool":
            yield Step("tool_result", text_of(turn), "tool", turn.function or "")
        elif turn.role == "assistant":
            if turn.text:
                yield Step("message", turn.text)
            for call in turn.tool_calls or ():
                yield Step(
                    "tool_call", json.dumps(call.arguments, ensure_ascii=False), name=call.function
                )


def _score(sample: Any) -> Score:
    """The mean of the scorers, each the mean of its values."""
    means = [_mean(score.value) for score in (sample.scores or {}).values()]
    if not means or any(math.isnan(mean) for mean in means):
        raise TaskFailure("grader", f"item {sample.id}: Inspect's scorers gave no score.")
    evidence = [
        f"{name}: {score.explanation}" for name, score in sample.scores.items() if score.explanation
    ]
    return as_score(
        {"score": sum(means) / len(means), "evidence": evidence},
        source=f"Inspect on item {sample.id}",
    )


def _mean(value: Any) -> float:
    from inspect_ai.scorer import value_to_float

    parts = (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else [value]
    )
    return sum(float(value_to_float()(part)) for part in parts) / len(parts) if parts else math.nan


_WRITE = "Write inspect:file.py@task or inspect:package/task."


def inspect_source(reference: SourceReference) -> TaskSource:
    """`inspect:package/task` or `inspect:file.py@task`."""

    def load(context: LoadContext) -> SourceItems:
        return _load_inspect_task(reference.argument, reference.base, context)

    return TaskSource(load)


def _load_inspect_task(reference: str, base: Path, context: LoadContext) -> SourceItems:
    """The task's samples as items, and the evaluator that runs them."""
    task, skill_as = _find(reference, base), context.skill_as
    samples: dict[str, Any] = {}
    for number, sample in enumerate(task.dataset, 1):
        sample.id = sample.id if sample.id is not None else number
        samples[str(sample.id)] = sample
    bare = next(
        (name for name, sample in samples.items() if not (task.sandbox or sample.sandbox)), None
    )
    if skill_as == "file" and bare is not None:
        raise InputError(
            f"env.skill_as: file: sample {bare} of {reference} has no sandbox to put the skill in.",
            hint="Set env.skill_as: message, or give the task a sandbox.",
        )
    items = items_of(
        (Row(_row(name, sample), f"sample {name}") for name, sample in samples.items()), {}
    )
    evaluator = InspectEvaluator(task, samples, context.model, reference, skill_as)
    return SourceItems(items, evaluator=evaluator)


def _find(reference: str, base: Path) -> Any:
    try:
        from inspect_ai._eval.loader import load_tasks
        from inspect_ai._util.error import PrerequisiteError
    except ImportError as error:
        raise InputError(
            "Inspect AI is not installed.", hint="pip install 'skillfit[inspect]'"
        ) from error
    file, at, name = reference.partition("@")
    path, hint = (base / file).resolve(), "Mend the file."
    if not at and not file.endswith(".py"):
        _refuse_unknown(reference)
        path, hint = (
            Path(reference),
            "The package's own task failed; its documentation may say what it needs.",
        )
    elif not path.is_file():
        raise InputError(f"inspect: {path} does not exist.", hint=_WRITE)
    else:
        reference = f"{path}@{name or _only_task(path)}"
    try:
        with errors_in(path, PrerequisiteError, hint=hint):
            found = load_tasks([reference])
    except PrerequisiteError as error:
        raise InputError(
            f"inspect: {error.message}", hint=f"Is there a @task of this name? {_WRITE}"
        ) from error
    if len(found) != 1:
        raise InputError(f"inspect: {reference!r} names {len(found)} tasks.", hint=_WRITE)
    return found[0]


def _only_task(path: Path) -> str:
    from inspect_ai import list_tasks

    names = [task.name for task in list_tasks([path.name], root_dir=path.parent)]
    if len(names) != 1:
        known = (
            f"has {len(names)} of them: {', '.join(names)}"
            if names
            else "has none, or does not compile"
        )
        raise InputError(f"inspect: {path} names no @task, and the file {known}.", hint=_WRITE)
    return names[0]


def _refuse_unknown(reference: str) -> None:
    """Inspect would take a name it does not know for a pattern of file names. Packages offer tasks
    through an entry point.
    """
    from inspect_ai._util.registry import registry_find, registry_info

    package, _, name = reference.partition("/")
    offered = entry_points(group="inspect_ai", name=package)
    if package == "hf":
        return
    if not name or not offered:
        raise InputError(
            f"inspect: no installed package offers Inspect tasks as {package!r}.",
            hint=f"Install it, as in pip install {package}. {_WRITE}",
        )
    for entry in offered:
        try:
            entry.load()
        except ImportError as error:
            raise InputError(
                f"inspect: {package} cannot be imported: {error}.",
                hint="It may need an extra of its own.",
            ) from error
    known = [registry_info(one).name for one in registry_find(lambda info: info.type == "task")]
    if reference not in known:
        near = difflib.get_close_matches(
            reference, [one for one in known if one.startswith(f"{package}/")], n=5, cutoff=0
        )
        raise InputError(
            f"inspect: {package} has no task {name!r}.",
            hint=f"It has, for example: {', '.join(near) or 'none'}.",
        )


def _row(name: str, sample: Any) -> dict[str, Any]:
    text = (
        sample.input
        if isinstance(sample.input, str)
        else "\n\n".join(turn.text for turn in sample.input if turn.role == "user")
    )
    answers = [sample.target] if isinstance(sample.target, str) else list(sample.target)
    more = {"choices": sample.choices, "metadata": sample.metadata}
    row = {"id": name, "input": text, "answers": [one for one in answers if one]}
    return row | {key: value for key, value in more.items() if value}
