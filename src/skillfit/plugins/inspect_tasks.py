"""The task source `inspect:`: find an Inspect AI task in a file or an installed package, make items
of its samples, and run them. Inspect's solver and scorers do the work, our models answer.

The skill is the first system message, or a package of files in the sample's sandbox.

`InspectEvaluator` runs the items. Inspect runs one eval at a time in a process. Rollouts are
therefore samples that are added to the running eval, each on its own: a slow one does not delay the
others, and a cancelled one cancels its sample. The eval ends, and its log is written, when no
rollout is left. In the log, the same item under another skill or seed is another epoch of its
sample; the sample's store says which. A scorer or a thread of the task that Inspect cannot
interrupt runs on after a cancelled rollout, and delays the end of the log.

Inspect sees our models as those of a provider named skillfit. Calls of solvers and scorers go
through it to the journal, the budget and the limiter; calls to other providers are refused.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import hashlib
import inspect
import json
import math
import mimetypes
import re
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from skillfit.atomic_write import write_whole
from skillfit.config.schema import EnvSection
from skillfit.errors import InputError, SkillfitError, TaskFailure, did_you_mean
from skillfit.extensions import JsonValue, PartDescription, SourceReference, TaskSource, errors_in
from skillfit.models.json_text import JsonObject, parse_json
from skillfit.models.limiter import paused
from skillfit.models.protocol import (
    BadRequest,
    FinishReason,
    Image,
    Message,
    Model,
    Reply,
    Request,
    Tool,
    ToolCall,
    Usage,
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
    from inspect_ai.log._samples import ActiveSample
    from inspect_ai.model import ChatMessage, ContentImage, GenerateConfig, ModelOutput
    from inspect_ai.model import Model as InspectModel
    from inspect_ai.scorer import Value
    from inspect_ai.solver import Generate, Solver, TaskState
    from inspect_ai.tool import ToolCall as InspectCall
    from inspect_ai.tool import ToolChoice, ToolInfo

InspectRole = Literal["agent", "judge"]
_PROVIDER = "skillfit"  # the name of our models' provider in Inspect
_AGENT: InspectRole = "agent"
_JUDGE: InspectRole = "judge"
_GRADER_ROLE = "grader"  # Inspect's name for the model that scorers ask
_FREE_MODELS = ("mockllm/", "none/")  # Inspect's own stand-ins, which make no calls
_SKILLS_FOLDER = ".agents/skills"  # where agents look for skills, relative to their working folder
_REFERENCE_HINT = "Write inspect:file.py@task or inspect:package/task."
# Our finish reasons that have another name in Inspect.
_STOP_REASON: dict[FinishReason, str] = {
    "length": "max_tokens",
    "refused": "content_filter",
    "other": "unknown",
}
# Settings that our models do not take. The first ones change the shape of the reply.
_REFUSED_SETTINGS = ("num_choices", "logprobs", "top_logprobs", "prompt_logprobs")
_IGNORED_SETTINGS = ("top_p", "top_k", "frequency_penalty", "presence_penalty", "logit_bias")
_RUNNING: dict[str, InspectRollout] = {}  # by the uuid of Inspect's sample


def inspect_source(reference: SourceReference, **task_args: JsonValue) -> TaskSource:
    """`inspect:package/task` or `inspect:file.py@task`. Options are arguments of the task."""

    def load(context: LoadContext) -> SourceItems:
        task = _find_task(reference.argument, reference.base, task_args)
        _refuse_missing_judge(context)
        return _source_items(NamedTask(task, reference.argument, task_args), context)

    return TaskSource(load)


def _refuse_missing_judge(context: LoadContext) -> None:
    roles = [role for role, model in context.env.model_roles.items() if model == _JUDGE]
    if roles and context.judge is None:
        raise InputError(
            f"env.model_roles: {roles[0]} is the judge, but model.judge is not set.",
            hint="Set model.judge, or use the agent's model for this role.",
        )


def _find_task(reference: str, base: Path, task_args: Mapping[str, JsonValue]) -> InspectTask:
    """The Inspect task, made with its arguments."""
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
    """Inspect would take an unknown name for a pattern of file names. Packages offer their tasks
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
    """Runs in its own context, in which the agent's model is the model of the eval: some tasks
    ask for it when they are made.
    """
    from inspect_ai._eval.loader import load_tasks
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.model._model import init_active_model

    _register_provider()
    init_active_model(get_model(f"{_PROVIDER}/{_AGENT}", memoize=False), GenerateConfig())
    tasks: list[Any] = load_tasks([reference], dict(task_args))
    return tasks


def _prerequisite_missing(message: str) -> InputError:
    plain = _without_markup(message)
    hint = f"Is there a @task of this name? {_REFERENCE_HINT}"
    if _asks_for_own_model(plain):
        hint = (
            "The task creates its own model. If an argument names it, set it to one of ours: "
            "env.task_args: {ARGUMENT: skillfit/judge}."
        )
    return InputError(f"inspect: {plain}", hint=hint)


def _refuse_unknown_arguments(task: InspectTask, task_args: Mapping[str, JsonValue]) -> None:
    """Inspect drops arguments that the task does not have."""
    from inspect_ai._util.registry import registry_info, registry_lookup

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
    given: dict[InspectRole, Model | None] = {_AGENT: context.model, _JUDGE: context.judge}
    models = {role: model for role, model in given.items() if model is not None}
    evaluator = InspectEvaluator(named, samples, models, context.env)
    return SourceItems(_sample_items(samples), evaluator=evaluator)


def _sample_items(samples: Mapping[str, Sample]) -> list[Item]:
    """The samples as items. If every sample's metadata names its split, the items have splits."""
    splits = [(sample.metadata or {}).get("split") for sample in samples.values()]
    named = all(isinstance(split, str) and split in SPLIT_NAMES for split in splits)
    rows = []
    for (name, sample), split in zip(samples.items(), splits, strict=True):
        row = _sample_row(name, sample)
        rows.append(Row(row | {"split": split} if named else row, f"sample {name}"))
    return items_of(rows, {})


def _sample_row(name: str, sample: Sample) -> JsonObject:
    """What is known of a sample. Everything in it tells samples apart when they are split."""
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

    def __reduce__(self) -> str:
        raise TypeError("Inspect runs its samples in the process that loaded the task")

    async def __call__(self, skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        if _AGENT not in self._models:
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
        """Inspect's logs are written under `run_path`. At the end, running samples are cancelled
        and their log is completed.
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
        """One eval, to which samples are added while it runs."""
        from inspect_ai import SampleSource, eval_async, task_with
        from inspect_ai.dataset import MemoryDataset
        from inspect_ai.util._display import init_display_type

        init_display_type("none")
        self._epochs.clear()
        model, roles = self._inspect_models()
        _refuse_other_models()
        setup = self._task.setup or []
        own_setup = setup if isinstance(setup, Sequence) else [setup]
        task = task_with(
            copy(self._task),
            dataset=SampleSource.from_samples(
                [], next_samples=self._next_samples, sample_complete=self._sample_complete
            ),
            setup=[_bring_skill(self._live, as_file=self._env.skill_as == "file"), *own_setup],
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
        """Inspect's model for the agent, and those for the task's roles."""
        from inspect_ai.model import get_model

        agent = judge = get_model(f"{_PROVIDER}/{self._models[_AGENT].id}", memoize=False)
        if _JUDGE in self._models:
            judge = get_model(f"{_PROVIDER}/{_JUDGE}", memoize=False)
        roles = dict.fromkeys(self._task.model_roles or {}, agent) | {_GRADER_ROLE: judge}
        for role, ours in self._env.model_roles.items():
            roles[role] = judge if ours == _JUDGE else agent
        return agent, roles

    async def _next_samples(self) -> None:
        """Inspect calls this when no sample is left. The eval continues if some are added."""
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
            rollout.result.set_result(
                ScoredAttempt(_sample_attempt(sample, rollout), _sample_score(sample))
            )
        except SkillfitError as error:
            rollout.result.set_exception(error)


def _bring_skill(live: Mapping[tuple[str, int], InspectRollout], *, as_file: bool) -> Solver:
    """A solver that runs before those of the task and brings the skill in."""
    from inspect_ai.log._samples import sample_active
    from inspect_ai.model import ChatMessageSystem
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
            await _read_images(state.messages)
            skill = rollout.skill
            state.store.set("skillfit", {"skill": skill.hash, "seed": rollout.seed})
            if skill.text.strip() or skill.files:
                text = await _install_skill(skill) if as_file else skill.text
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


def _sample_attempt(sample: EvalSample, rollout: InspectRollout) -> Attempt:
    if rollout.error is not None:
        raise rollout.error
    if sample.error is not None:
        message = f"item {sample.id}: {_without_markup(sample.error.message)}"
        if _asks_for_own_model(message):
            raise _own_model_failure(message)
        raise TaskFailure("inspect", message)
    return Attempt(
        sample.output.completion, tuple(_trajectory(sample.messages)), usage=rollout.usage
    )


def _trajectory(turns: Sequence[ChatMessage]) -> Iterator[TrajectoryStep]:
    for turn in turns:
        if turn.role == "tool":
            yield TrajectoryStep("tool_result", _text_of(turn), "tool", turn.function or "")
        elif turn.role == "assistant":
            if turn.text:
                yield TrajectoryStep("message", turn.text)
            for call in turn.tool_calls or ():
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                yield TrajectoryStep("tool_call", arguments, name=call.function)


def _sample_score(sample: EvalSample) -> Score:
    """The mean of the scorers, each the mean of its values."""
    scores = sample.scores or {}
    means = [_mean_value(score.value) for score in scores.values()]
    if not means or any(math.isnan(mean) for mean in means):
        raise TaskFailure("grader", f"item {sample.id}: Inspect's scorers returned no score.")
    mean = sum(means) / len(means)
    if not 0 <= mean <= 1:
        raise TaskFailure(
            "config",
            f"item {sample.id}: Inspect's scorers returned {mean:g}; skillfit needs 0 to 1.",
            hint="Write a task file that calls this task and rescales its scores.",
        )
    evidence = [
        f"{name}: {score.explanation}" for name, score in scores.items() if score.explanation
    ]
    return Score(mean, evidence=tuple(evidence))


def _mean_value(value: Value) -> float:
    from inspect_ai.scorer import value_to_float

    parts = [value]
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list):
        parts = value
    return sum(float(value_to_float()(part)) for part in parts) / len(parts) if parts else math.nan


@dataclass(slots=True, eq=False)
class InspectRollout:
    """One rollout: the caller waits for `result` while Inspect runs the sample."""

    skill: Skill
    item: Item
    seed: int
    models: Mapping[InspectRole, Model]
    images: Path  # folder for images that arrive as data; journal keys contain their paths
    result: asyncio.Future[ScoredAttempt]
    context: Context = field(default_factory=copy_context)  # the caller's, with its time limit
    usage: Usage = field(default_factory=Usage)
    requests: Counter[str] = field(default_factory=Counter)  # fingerprints of those sent so far
    error: SkillfitError | None = None
    sample: ActiveSample | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # also set when it will not begin

    def __post_init__(self) -> None:
        self.result.add_done_callback(lambda _: self.begun.set())

    def numbered(self, request: Request) -> Request:
        """The request with a purpose that makes it unique in the run. Equal requests of one rollout
        are numbered; different ones need no number, so their order does not matter.
        """
        fingerprint = request.fingerprint()
        self.requests[fingerprint] += 1
        number = self.requests[fingerprint]
        return replace(request, purpose=f"{self.item.id}/{self.seed}/{number}")

    def begin(self, active_sample: ActiveSample) -> None:
        """Its sample has begun: model calls from within the sample belong to this rollout."""
        self.sample = active_sample
        _RUNNING[active_sample.sample_uuid] = self
        self.begun.set()

    def end(self) -> None:
        """Its sample has ended."""
        if self.sample is not None:
            _RUNNING.pop(self.sample.sample_uuid, None)
            self.sample = None

    def give_up(self) -> None:
        """The result is no longer needed: cancel the sample if it runs."""
        self.result.cancel()
        if self.sample is not None:
            self.sample.interrupt("cancel")


def _current_rollout() -> InspectRollout | None:
    """The rollout whose sample Inspect is running where this is called."""
    from inspect_ai.log._samples import sample_active

    active = sample_active()
    return _RUNNING.get(active.sample_uuid) if active is not None else None


@cache
def _register_provider() -> None:
    """Make our models known to Inspect: `skillfit/judge` is the judge, any other name of this
    provider the agent's model. Tasks can be given these names as arguments.
    """
    from inspect_ai.model import ModelAPI, modelapi

    class Bridge(ModelAPI):
        def max_connections(self) -> int:
            return 10_000  # skillfit's limiter decides

        async def generate(
            self,
            input: list[ChatMessage],
            tools: list[ToolInfo],
            tool_choice: ToolChoice,
            config: GenerateConfig,
        ) -> ModelOutput:
            rollout = _current_rollout()
            if rollout is None:
                raise TaskFailure(
                    "inspect",
                    "The Inspect task calls a model outside of a running sample, where the call "
                    "cannot be recorded.",
                )
            role = _JUDGE if self.model_name == _JUDGE else _AGENT
            try:
                return await _ask_model(rollout, role, input, tools, tool_choice, config)
            except SkillfitError as error:
                rollout.error = error
                raise

    modelapi(name=_PROVIDER)(lambda: Bridge)


async def _ask_model(
    rollout: InspectRollout,
    role: InspectRole,
    turns: Sequence[ChatMessage],
    tools: Sequence[ToolInfo],
    choice: ToolChoice,
    config: GenerateConfig,
) -> ModelOutput:
    model = rollout.models.get(role)
    if model is None:
        raise TaskFailure(
            "config", f"The Inspect task asks for the {role}.", hint=f"Set model.{role}."
        )
    request = rollout.numbered(
        replace(
            _our_request(turns, tools, choice, config, rollout.images),
            stage="judge" if role == _JUDGE else "rollout",
            seed=rollout.seed,
        )
    )
    # In the context of the caller, whose time limit counts.
    reply = await asyncio.create_task(model.complete(request), context=rollout.context)
    rollout.usage += reply.usage
    return _inspect_output(model.id, reply, config.stop_seqs or ())


def _our_request(
    turns: Sequence[ChatMessage],
    tools: Sequence[ToolInfo],
    tool_choice: ToolChoice,
    config: GenerateConfig,
    images: Path,
) -> Request:
    _check_model_settings(config)
    if tool_choice == "none":
        tools = ()
    forced = getattr(tool_choice, "name", None)  # a ToolFunction: only this tool is offered
    offered = tuple(
        Tool(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True))
        for tool in tools
        if forced is None or tool.name == forced
    )
    schema = config.response_schema
    return Request(
        tuple(_our_message(turn, images) for turn in turns),
        stage="rollout",
        tools=offered,
        schema=schema.json_schema.model_dump(exclude_none=True) if schema else None,
        temperature=config.temperature,
        max_tokens=config.max_tokens,
        reasoning_effort=config.reasoning_effort,
    )


def _check_model_settings(config: GenerateConfig) -> None:
    """Refuse or warn about settings of the task that our models do not take."""
    for name in _REFUSED_SETTINGS:
        if (getattr(config, name, None) or 1) not in (1, False):
            raise BadRequest(
                f"The Inspect task sets {name}, which skillfit's models do not support.",
                hint="Remove it from the task's GenerateConfig.",
            )
    ignored = [name for name in _IGNORED_SETTINGS if getattr(config, name, None) is not None]
    if ignored:
        warnings.warn(
            f"The Inspect task sets {', '.join(ignored)}: ignored, skillfit's models do not take "
            "these settings.",
            stacklevel=2,
        )


def _our_message(turn: ChatMessage, images: Path) -> Message:
    parts = [] if isinstance(turn.content, str) else turn.content
    other = [part.type for part in parts if part.type not in ("text", "reasoning", "image")]
    if other:
        raise BadRequest(
            f"An Inspect message contains {other[0]}.",
            hint="Only text and images can be sent to the agent's model.",
        )
    pictures = tuple(_our_image(part, images) for part in parts if part.type == "image")
    calls = tuple(
        ToolCall(call.id, call.function, json.dumps(call.arguments))
        for call in getattr(turn, "tool_calls", None) or ()
    )
    answered = getattr(turn, "tool_call_id", None) or ""
    return Message(turn.role, _text_of(turn), pictures, calls, answered)


def _text_of(turn: ChatMessage) -> str:
    """The text of a message. A failed tool has its error beside its content, not in it."""
    error = getattr(turn, "error", None)
    return f"Error: {error.message}" if error is not None else str(turn.text)


def _our_image(part: ContentImage, folder: Path) -> Image:
    """Inspect has turned every image into a data URL by now. The file is named by its content."""
    head, _, data = part.image.partition(",")
    media_type = head.removeprefix("data:").partition(";")[0]
    content = base64.b64decode(data)
    suffix = mimetypes.guess_extension(media_type) or ""
    path = folder / f"{hashlib.sha256(content).hexdigest()[:32]}{suffix}"
    write_whole(path, content)
    return Image(path, media_type, "high" if part.detail == "original" else part.detail)


def _inspect_output(model_id: str, reply: Reply, stop: Sequence[str]) -> ModelOutput:
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessageAssistant,
        ModelOutput,
        ModelUsage,
    )

    text = _before_stop(reply.text, stop)
    reason = _STOP_REASON.get(reply.finish_reason, reply.finish_reason)
    calls = [_inspect_call(call) for call in reply.tool_calls]
    message = ChatMessageAssistant(
        content=text, tool_calls=calls or None, model=model_id, source="generate"
    )
    used = reply.usage
    usage = ModelUsage(
        input_tokens=used.input - used.cached,
        output_tokens=used.output,
        total_tokens=used.tokens,
    )
    ended = "stop" if text != reply.text else reason
    choice = ChatCompletionChoice(message=message, stop_reason=ended)
    return ModelOutput(model=model_id, choices=[choice], usage=usage)


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first stop sequence, as a provider would have returned it."""
    ends = [at for sequence in stop if sequence and (at := text.find(sequence)) >= 0]
    return text[: min(ends)] if ends else text


def _inspect_call(call: ToolCall) -> InspectCall:
    """Arguments that are not a JSON object are reported to the model by Inspect."""
    from inspect_ai.tool import ToolCall as InspectCall

    arguments, problem = {}, None
    try:
        arguments = parse_json(call.arguments or "{}")
    except ValueError as error:
        problem = f"The arguments are not valid JSON: {error}"
    if not isinstance(arguments, dict):
        arguments, problem = {}, "The arguments are not a JSON object."
    return InspectCall(id=call.id, function=call.name, arguments=arguments, parse_error=problem)


@cache
def _refuse_other_models() -> None:
    """From now on a call that a sample makes to another provider is refused before it is sent:
    skillfit could neither record nor budget it. To be called when Inspect has loaded its hooks,
    because it prints those that are there before.
    """
    from inspect_ai.hooks import BeforeModelGenerate, Hooks, hooks
    from inspect_ai.util import LimitExceededError

    @hooks(name="skillfit", description="Refuses calls that cannot be recorded.")
    class Refusal(Hooks):
        async def on_before_model_generate(self, data: BeforeModelGenerate) -> None:
            rollout = _current_rollout()
            if rollout is None or data.model_name.startswith((f"{_PROVIDER}/", *_FREE_MODELS)):
                return
            rollout.error = _own_model_failure(
                f"The Inspect task called {data.model_name} directly: skillfit could neither "
                "record nor budget that call."
            )
            # The one exception of a hook that Inspect does not ignore.
            raise LimitExceededError("custom", value=1, limit=0, message=rollout.error.message)


def _own_model_failure(message: str) -> TaskFailure:
    """The failure of a task that uses its own model instead of ours."""
    return TaskFailure(
        "config",
        message,
        hint="If it is a model role, bind it: env.model_roles: {ROLE: judge}. If it is a task "
        f"argument, set it: env.task_args: {{ARGUMENT: {_PROVIDER}/{_JUDGE}}}.",
    )


def _asks_for_own_model(message: str) -> bool:
    """Whether an error of Inspect says that a provider's package or key is missing. Only a task
    that creates its own model needs them.
    """
    signs = ("API_KEY", "Unable to initiali", "requires optional dependencies")
    return any(sign in message for sign in signs)


def _without_markup(message: str) -> str:
    """An error of Inspect without its markup for the terminal, in one line."""
    return " ".join(re.sub(r"\[/?\w+\]", "", message).split())
