"""The task source `inspect:`: find an Inspect AI task in a file or an installed package, make items
of its samples, and run them. Inspect's solver and scorers do the work, our models answer.

The skill is the first system message, or a package of files in the sample's sandbox.

`InspectEvaluator` runs the items. Inspect runs one eval at a time in a process. Rollouts are
therefore samples that are added to the running eval, each on its own: a slow one does not delay the
others, and a cancelled one cancels its sample. The eval ends, and its log is written, when no
rollout is left. In the log, the same item under another skill or seed is another epoch of its
sample; the sample's store says which. A scorer or a thread of the task that Inspect cannot
interrupt runs on after a cancelled rollout, and delays the end of the log.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from copy import copy
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, SkillfitError, TaskFailure, did_you_mean
from skillfit.extensions import JsonValue, PartDescription, SourceReference, TaskSource, errors_in
from skillfit.models.json_text import JsonObject
from skillfit.models.limiter import paused
from skillfit.models.protocol import (
    Model,
)
from skillfit.plugins.inspect.bridge import (
    AGENT,
    JUDGE,
    PROVIDER,
    InspectRole,
    InspectRollout,
    asks_for_own_model,
    own_model_failure,
    refuse_other_models,
    register_inspect_provider,
    text_of,
    without_markup,
)
from skillfit.skill import Skill
from skillfit.skill.document import folder_name
from skillfit.tasks.item import Attempt, Item, Score, ScoredAttempt, TrajectoryStep
from skillfit.tasks.rows import Row, items_of
from skillfit.tasks.splits import SPLIT_NAMES
from skillfit.tasks.task import Evaluator, LoadContext, SourceItems

if TYPE_CHECKING:
    from inspect_ai import Task as InspectTask
    from inspect_ai.dataset import Sample
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessage
    from inspect_ai.model import Model as InspectModel
    from inspect_ai.scorer import Value
    from inspect_ai.solver import Generate, Solver, TaskState

_GRADER_ROLE = "grader"  # Inspect's name for the model that scorers ask
_SKILLS_FOLDER = ".agents/skills"  # where agents look for skills, relative to their working folder
_REFERENCE_HINT = "Write inspect:file.py@task or inspect:package/task."


def inspect_source(reference: SourceReference, **task_args: JsonValue) -> TaskSource:
    """Return the source for `inspect:package/task` or `inspect:file.py@task`. Options are arguments
    of the task.
    """

    def load(context: LoadContext) -> SourceItems:
        task = _find_task(reference.argument, reference.base, task_args)
        _refuse_missing_judge(context)
        return _source_items(NamedTask(task, reference.argument, task_args), context)

    return TaskSource(load)


def _refuse_missing_judge(context: LoadContext) -> None:
    roles = [role for role, model in context.env.model_roles.items() if model == JUDGE]
    if roles and context.judge is None:
        raise InputError(
            f"env.model_roles: {roles[0]} is the judge, but model.judge is not set.",
            hint="Set model.judge, or use the agent's model for this role.",
        )


def _find_task(reference: str, base: Path, task_args: Mapping[str, JsonValue]) -> InspectTask:
    """Return the Inspect task, made with its arguments."""
    try:
        from inspect_ai._util.error import PrerequisiteError
    except ImportError as error:
        raise InputError(
            "Inspect AI is not installed.", hint="pip install 'skillfit[inspect]'"
        ) from error
    file, at, name = reference.partition("@")
    path, hint = (base / file).resolve(), "Fix the error in this file."
    if not at and not file.endswith(".py"):
        _refuse_unknown_task(reference)
        path = Path(reference)
        hint = "The package's own task failed; its documentation may say what it needs."
    elif not path.is_file():
        raise InputError(f"inspect: {path} does not exist.", hint=_REFERENCE_HINT)
    else:
        reference = f"{path}@{name or _only_task(path)}"
    try:
        with errors_in(path, PrerequisiteError, hint=hint):
            found = copy_context().run(_load_tasks, reference, task_args)
    except PrerequisiteError as error:
        raise _prerequisite_missing(str(error.message)) from error
    if len(found) != 1:
        raise InputError(f"inspect: {reference!r} names {len(found)} tasks.", hint=_REFERENCE_HINT)
    _refuse_unknown_arguments(found[0], task_args)
    return found[0]


def _refuse_unknown_task(reference: str) -> None:
    """Refuse an unknown name, which Inspect would take for a pattern of file names. Packages offer
    their tasks through an entry point.
    """
    from inspect_ai._util.registry import registry_find
    from inspect_ai.util import registry_info

    package, _, name = reference.partition("/")
    offered = entry_points(group="inspect_ai", name=package)
    if package == "hf":
        return
    if not name or not offered:
        raise InputError(
            f"inspect: no installed package offers Inspect tasks as {package!r}.",
            hint=f"Install it, as in pip install {package}. {_REFERENCE_HINT}",
        )
    for entry in offered:
        try:
            entry.load()
        except ImportError as error:
            raise InputError(
                f"inspect: {package} cannot be imported: {error}.",
                hint="It may need an extra to be installed.",
            ) from error
    known = [registry_info(task).name for task in registry_find(lambda info: info.type == "task")]
    if reference not in known:
        offered_here = [task for task in known if task.startswith(f"{package}/")]
        near = difflib.get_close_matches(reference, offered_here, n=5, cutoff=0)
        raise InputError(
            f"inspect: {package} has no task {name!r}.",
            hint=f"It has, for example: {', '.join(near) or 'none'}.",
        )


def _only_task(path: Path) -> str:
    from inspect_ai import list_tasks

    names = [task.name for task in list_tasks([path.name], root_dir=path.parent)]
    if len(names) != 1:
        known = "has none, or does not compile"
        if names:
            known = f"has {len(names)} of them: {', '.join(names)}"
        raise InputError(
            f"inspect: {path} names no @task, and the file {known}.", hint=_REFERENCE_HINT
        )
    return names[0]


def _load_tasks(reference: str, task_args: Mapping[str, JsonValue]) -> list[InspectTask]:
    """Run the sample in its own context, in which the agent's model is the model of the eval: some
    tasks ask for it when they are made.
    """
    from inspect_ai._eval.loader import load_tasks
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.model._model import init_active_model

    register_inspect_provider()
    init_active_model(get_model(f"{PROVIDER}/{AGENT}", memoize=False), GenerateConfig())
    tasks: list[Any] = load_tasks([reference], dict(task_args))
    return tasks


def _prerequisite_missing(message: str) -> InputError:
    plain = without_markup(message)
    hint = f"Is there a @task of this name? {_REFERENCE_HINT}"
    if asks_for_own_model(plain):
        hint = (
            "The task creates its own model. If an argument names it, set it to one of ours: "
            "env.task_args: {ARGUMENT: skillfit/judge}."
        )
    return InputError(f"inspect: {plain}", hint=hint)


def _refuse_unknown_arguments(task: InspectTask, task_args: Mapping[str, JsonValue]) -> None:
    """Refuse arguments that the task does not have, which Inspect would drop."""
    from inspect_ai._util.registry import registry_lookup
    from inspect_ai.util import registry_info

    task_name = registry_info(task).name
    function: Any = registry_lookup("task", task_name)
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in task_args:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise InputError(
                f"inspect: the task {task_name} has no argument {name!r}.",
                hint=did_you_mean(name, parameters) or f"Its arguments: {known}.",
            )


def _source_items(named: NamedTask, context: LoadContext) -> SourceItems:
    samples: dict[str, Sample] = {}
    for number, sample in enumerate(named.task.dataset, 1):
        sample.id = sample.id if sample.id is not None else number
        samples[str(sample.id)] = sample
        if context.env.skill_as == "file" and not (named.task.sandbox or sample.sandbox):
            raise InputError(
                f"env.skill_as: file: sample {sample.id} of {named.reference} has no sandbox to "
                "put the skill in.",
                hint="Set env.skill_as: message, or give the task a sandbox.",
            )
    given: dict[InspectRole, Model | None] = {AGENT: context.model, JUDGE: context.judge}
    models = {role: model for role, model in given.items() if model is not None}
    evaluator = InspectEvaluator(named, samples, models, context.env)
    return SourceItems(_sample_items(samples), evaluator=evaluator)


def _sample_items(samples: Mapping[str, Sample]) -> list[Item]:
    """Return the samples as items. If every sample's metadata names its split, the items have
    splits.
    """
    splits = [(sample.metadata or {}).get("split") for sample in samples.values()]
    named = all(isinstance(split, str) and split in SPLIT_NAMES for split in splits)
    rows = []
    for (name, sample), split in zip(samples.items(), splits, strict=True):
        row = _sample_row(name, sample)
        rows.append(Row(row | {"split": split} if named else row, f"sample {name}"))
    return items_of(rows, {})


def _sample_row(name: str, sample: Sample) -> JsonObject:
    """Return what is known of a sample. Everything in it tells samples apart when they are
    split.
    """
    turns = [] if isinstance(sample.input, str) else sample.input
    text = sample.input if isinstance(sample.input, str) else _joined_text(turns, ("user",))
    other_turns = _joined_text(turns, ("system", "assistant", "tool"))
    answers = [sample.target] if isinstance(sample.target, str) else list(sample.target)
    row = {
        "id": name,
        "input": text or other_turns or "(the task's own code makes the input)",
        "answers": [answer for answer in answers if answer],
        "other_turns": other_turns,
        "choices": sample.choices,
        "metadata": sample.metadata,
        "sandbox_files": sample.files,
        "setup": sample.setup,
    }
    return {key: value for key, value in row.items() if value}


def _joined_text(turns: Iterable[ChatMessage], roles: tuple[str, ...]) -> str:
    return "\n\n".join(turn.text for turn in turns if turn.role in roles)


@dataclass(frozen=True, slots=True)
class NamedTask:
    """An Inspect task, with the name and the arguments it was made with."""

    task: InspectTask
    reference: str
    arguments: Mapping[str, JsonValue]


class InspectEvaluator(Evaluator):
    """Runs items of an Inspect task. An item has the id of its sample."""

    needs_model = True

    def __init__(
        self,
        named: NamedTask,
        samples: Mapping[str, Sample],
        models: Mapping[InspectRole, Model],
        env: EnvSection,
    ) -> None:
        self._named, self._task, self._samples = named, named.task, samples
        self._models, self._env = models, env
        self._logs = Path("logs")  # Inspect's own default
        self._waiting: list[InspectRollout] = []
        self._live: dict[tuple[str, int], InspectRollout] = {}
        self._epochs: Counter[str] = Counter()
        # Context of the running eval. Samples can be added to the eval only from there.
        self._eval: Context | None = None
        self._runner: asyncio.Task[None] | None = None

    @property
    def _as_file(self) -> bool:
        return self._env.skill_as == "file"

    def __reduce__(self) -> str:
        raise TypeError("Inspect runs its samples in the process that loaded the task")

    async def __call__(self, skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        if AGENT not in self._models:
            raise InputError("An Inspect task needs the agent's model.", hint="Set model.agent.")
        result = asyncio.get_running_loop().create_future()
        images = self._logs / "images"
        rollout = InspectRollout(skill, item, seed, self._models, images, result)
        self._waiting.append(rollout)
        if self._eval is not None:
            self._add_waiting(self._eval)
        elif self._runner is None or self._runner.done():
            # In an empty context: it outlives this rollout and must not inherit its time limit.
            self._runner = asyncio.create_task(self._run_waiting(), context=Context())
        try:
            with paused():  # the start of Inspect and of sandboxes
                await rollout.begun.wait()
            return await rollout.result
        except asyncio.CancelledError:
            rollout.give_up()
            raise

    @asynccontextmanager
    async def opened(self, run_path: Path) -> AsyncIterator[None]:
        """Write Inspect's logs under `run_path`. At the end, running samples are cancelled and
        their log is completed.
        """
        self._logs = run_path / "inspect_logs"
        try:
            yield
        finally:
            for rollout in (*self._waiting, *self._live.values()):
                rollout.give_up()
            if self._runner is not None:
                await self._runner

    def describe(self) -> PartDescription:
        named, env = self._named, self._env
        described: dict[str, JsonValue] = {"inspect": named.reference, "skill_as": env.skill_as}
        if named.arguments:
            described["task_args"] = dict(named.arguments)
        if env.model_roles:
            described["model_roles"] = dict(env.model_roles)
        if env.score_range:
            described["score_range"] = list(env.score_range)
        return described

    async def _run_waiting(self) -> None:
        while self._waiting:
            evaluation = asyncio.ensure_future(self._run())
            await asyncio.wait([evaluation])
            self._eval = None
            left = list(self._live.values())
            for rollout in left:
                rollout.end()
            self._live.clear()
            if failed := evaluation.exception():
                left += self._waiting
                self._waiting.clear()
            for rollout in left:
                missing = TaskFailure(
                    "inspect", f"Inspect returned no result for item {rollout.item.id}."
                )
                if not rollout.result.done():
                    rollout.result.set_exception(failed or missing)

    async def _run(self) -> None:
        """Run one eval, to which samples are added while it runs."""
        from inspect_ai import SampleSource, eval_async, task_with
        from inspect_ai.dataset import MemoryDataset
        from inspect_ai.util._display import init_display_type

        init_display_type("none")
        self._epochs.clear()
        model, roles = self._inspect_models()
        refuse_other_models()
        setup = self._task.setup or []
        own_setup = setup if isinstance(setup, Sequence) else [setup]
        task = task_with(
            copy(self._task),
            dataset=SampleSource.from_samples(
                [], next_samples=self._next_samples, sample_complete=self._sample_complete
            ),
            setup=[
                _bring_skill(self._live, self._in_role, as_file=self._as_file),
                *own_setup,
            ],
            epochs=1,
            model=model,
            model_roles=roles,
        )
        task.dataset = MemoryDataset([], name=self._task.dataset.name)
        logs = await eval_async(
            task,
            model=model,
            model_roles=roles,
            log_dir=str(self._logs),
            log_header_only=True,
            fail_on_error=False,
            max_samples=10_000,  # the rollout engine decides how many run at a time
            ctl_server=False,
            log_level="error",
        )
        if logs[0].error is not None:
            raise TaskFailure("inspect", f"Inspect stopped: {logs[0].error.message}")

    def _inspect_models(self) -> tuple[InspectModel, dict[str, InspectModel]]:
        """Return Inspect's model under test, and those for the task's roles."""
        from inspect_ai.model import get_model

        agent = get_model(f"{PROVIDER}/{self._models[AGENT].id}", memoize=False)
        judge = self._in_role(_GRADER_ROLE)
        if JUDGE in self._models:
            judge = get_model(f"{PROVIDER}/{JUDGE}", memoize=False)
        roles = {role: self._in_role(role) for role in self._task.model_roles or {}}
        roles[_GRADER_ROLE] = judge
        for role, ours in self._env.model_roles.items():
            roles[role] = judge if ours == JUDGE else agent
        return agent, roles

    def _in_role(self, role: str) -> InspectModel:
        """Return the agent's model in a role of the task, where it is not the one under test."""
        from inspect_ai.model import get_model

        name = f"{PROVIDER}/{self._models[AGENT].id}"
        return get_model(name, memoize=False, plays=role)

    async def _next_samples(self) -> None:
        """Add the waiting samples. Inspect calls this when no sample is left, and continues if some
        are added.
        """
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

    async def _sample_complete(self, sample: EvalSample) -> None:
        rollout = self._live.pop((str(sample.id), sample.epoch))
        rollout.end()
        if rollout.result.done():
            return  # cancelled
        try:
            attempt = _sample_attempt(sample, rollout, as_file=self._as_file)
            rollout.result.set_result(
                ScoredAttempt(attempt, _sample_score(sample, self._env.score_range))
            )
        except SkillfitError as error:
            rollout.result.set_exception(error)


class _TaskRoles(dict[str, Any]):
    """The models of a task's roles. Roles that are not bound are played by the agent's model, and
    not as the model under test, which Inspect would give them.
    """

    def __init__(self, bound: Mapping[str, Any], play: Callable[[str], InspectModel]) -> None:
        super().__init__(bound)
        self._play = play

    def get(self, role: str, default: Any = None) -> Any:
        if role not in self:
            self[role] = self._play(role)
        return self[role]


def _bring_skill(
    live: Mapping[tuple[str, int], InspectRollout],
    play: Callable[[str], InspectModel],
    *,
    as_file: bool,
) -> Solver:
    """Return a solver that runs before those of the task and brings the skill in."""
    from inspect_ai.log._samples import sample_active
    from inspect_ai.model import ChatMessageSystem
    from inspect_ai.model._model import init_model_roles, model_roles
    from inspect_ai.solver import solver

    @solver(name="skillfit_skill")
    def bring_skill() -> Solver:
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            rollout = live[str(state.sample_id), state.epoch]
            active = sample_active()
            assert active is not None  # a solver runs within a sample
            rollout.begin(active)
            if rollout.result.done():
                rollout.give_up()  # cancelled before it began
            init_model_roles(_TaskRoles(model_roles(), play))
            await _read_images(state.messages)
            skill = rollout.skill
            state.store.set("skillfit", {"skill": skill.hash, "seed": rollout.seed})
            if skill.text.strip() or skill.files:
                text = await _install_skill(skill) if as_file else skill.text
                rollout.delivery.message = text
                state.messages.insert(0, ChatMessageSystem(content=text))
            return state

        return solve

    return bring_skill()


async def _read_images(turns: Sequence[Any]) -> None:
    """Turn paths and addresses of images into data. Inspect does it itself only for samples that
    are known when the eval starts.
    """
    from inspect_ai.util import materialize_media

    for turn in turns:
        for part in turn.content if isinstance(turn.content, list) else ():
            if part.type == "image":
                part.image = await materialize_media(part.image)


async def _install_skill(skill: Skill) -> str:
    """Write the package into the sandbox; returns what to tell the model. The path is relative, and
    therefore the same in every sandbox: journal keys depend on it.
    """
    from inspect_ai.util import sandbox

    folder = f"{_SKILLS_FOLDER}/{folder_name(skill.name) or 'skill'}"
    files = {"SKILL.md": skill.text.encode(), **skill.files}
    for name, data in files.items():
        await sandbox().write_file(f"{folder}/{name}", data)
    programs = [f"{folder}/{name}" for name, mode in skill.modes.items() if mode & 0o111]
    if programs:
        await sandbox().exec(["chmod", "+x", *programs])
    return (
        f"There is a skill for this kind of work in {folder}/SKILL.md. "
        "Read it before you start, and follow it."
    )


def _sample_attempt(sample: EvalSample, rollout: InspectRollout, *, as_file: bool) -> Attempt:
    if rollout.error is not None:
        raise rollout.error
    if sample.error is not None:
        message = f"item {sample.id}: {without_markup(sample.error.message)}"
        if asks_for_own_model(message):
            raise own_model_failure(message)
        raise TaskFailure("inspect", message)
    delivery = rollout.delivery
    if delivery.message and not delivery.reached and delivery.other_roles:
        raise TaskFailure(
            "config",
            f"item {sample.id}: the Inspect task calls its models in the roles "
            f"{', '.join(sorted(delivery.other_roles))} only, so no call is one of the model under "
            "test and none has the skill.",
            hint="Name the role that is trained: env.model_roles: {ROLE: agent}.",
        )
    answer, steps = sample.output.completion, tuple(_trajectory(sample.messages))
    if delivery.added:
        # The agent has messages of its own: those of the sample may be somebody else's.
        turns = [turn for conversation in delivery.conversations for turn in conversation]
        answer, steps = turns[-1].text, tuple(_trajectory(turns, users=True))
    read = _skill_read(rollout, steps, as_file=as_file)
    return Attempt(answer, steps, skill_read=read, usage=rollout.usage)


def _skill_read(
    rollout: InspectRollout, steps: Iterable[TrajectoryStep], *, as_file: bool
) -> bool | None:
    """Return whether the model under test had the skill, or read its file; None: there is no
    skill.
    """
    if not rollout.delivery.message:
        return None
    results = (step.text for step in steps if step.kind == "tool_result")
    return any(map(rollout.skill.shown_in, results)) if as_file else rollout.delivery.reached


def _trajectory(turns: Iterable[ChatMessage], *, users: bool = False) -> Iterator[TrajectoryStep]:
    """Convert turns to the steps of a trajectory. `users`: also what the users say, where that is
    not the item's own text.
    """
    for turn in turns:
        if users and turn.role == "user":
            yield TrajectoryStep("message", text_of(turn), "user")
        if turn.role == "tool":
            yield TrajectoryStep("tool_result", text_of(turn), "tool", turn.function or "")
        elif turn.role == "assistant":
            if turn.text:
                yield TrajectoryStep("message", turn.text)
            for call in turn.tool_calls or ():
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                yield TrajectoryStep("tool_call", arguments, name=call.function)


def _sample_score(sample: EvalSample, limits: tuple[float, float] | None) -> Score:
    """Return the mean of the scorers, each the mean of its values."""
    scores = sample.scores or {}
    means = [_mean_value(score.value, limits) for score in scores.values()]
    if not means or any(math.isnan(mean) for mean in means):
        raise TaskFailure("grader", f"item {sample.id}: Inspect's scorers returned no score.")
    mean = sum(means) / len(means)
    if not 0 <= mean <= 1:
        raise TaskFailure(
            "config",
            f"item {sample.id}: Inspect's scorers returned "
            + (f"{mean:g}; skillfit needs 0 to 1." if limits is None else _outside(means, limits)),
            hint="Set env.score_range to the lowest and the highest score of this task, for "
            "example [1, 10].",
        )
    evidence = [
        f"{name}: {score.explanation}" for name, score in scores.items() if score.explanation
    ]
    return Score(mean, evidence=tuple(evidence))


def _outside(means: Sequence[float], limits: tuple[float, float]) -> str:
    low, high = limits
    found = ", ".join(f"{low + mean * (high - low):g}" for mean in means)
    return f"{found}, which is not in env.score_range [{low:g}, {high:g}]."


def _mean_value(value: Value, limits: tuple[float, float] | None) -> float:
    """Return the mean of the values of a scorer, as shares of `limits`. Inspect's grades (C, I, P,
    N, yes, no) have no limits.
    """
    from inspect_ai.scorer import value_to_float

    parts = [value]
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list):
        parts = value
    numbers = []
    for part in parts:
        number = float(value_to_float()(part))
        if limits is not None and _is_number(part):
            number = (number - limits[0]) / (limits[1] - limits[0])
        numbers.append(number)
    return sum(numbers) / len(numbers) if numbers else math.nan


def _is_number(value: Any) -> bool:
    """Return whether the value is a finite number, or one in a text, as `model_graded_qa` returns
    it.
    """
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False
