"""A task: items, how they are run and graded, and how `env` describes one.

Items are run by an agent and scored by a grader, or both is done by an `Evaluator`: a user's
function, a program, or a harness with its own environment.

`load_task` makes the task that `env.tasks` names: files, folders, evals.json, Python, a command, or
a named source. A named source (`env.tasks: searchqa`, `env.tasks: inspect:file.py@task`) is a
function that returns a `TaskSource`. It is registered under a name, either in `skillfit.extensions`
(sources that come with skillfit) or by another package as an entry point of group `skillfit.tasks`.
It is imported only when its name is used:

    def capitals(reference: SourceReference, *, continent: str = "all") -> TaskSource:
        def load(context: LoadContext) -> SourceItems:
            return SourceItems(read_countries(continent))

        return TaskSource(load, config={"env": {"grader": "normalized"}})

The text after the name and a colon is the argument (`textworld:coin`, `inspect:file.py@task`).
Keyword parameters of the function are its options. Users set them in the reference
(`capitals?continent=africa`) or in `env.task_args`; options the function does not have are refused.
"""

from __future__ import annotations

import gc
import inspect
import json
import shlex
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from skillfit.config.schema import ROLLOUT_SECONDS, EnvSection, SplitSection
from skillfit.errors import Exit, InputError, SkillfitError, TaskFailure, did_you_mean, near_file
from skillfit.extensions import (
    PartDescription,
    TaskSource,
    call_user_code,
    errors_in,
    find_source,
    load_object,
    name_of,
    qualified_name,
    source_names,
)
from skillfit.models.failures import policy_of
from skillfit.models.json_text import printed_json
from skillfit.models.limiter import time_limit
from skillfit.models.protocol import Model, ModelError
from skillfit.plain_text import last_part, shorten
from skillfit.sandbox.known_good import KnownGood
from skillfit.sandbox.programs import (
    SandboxNotStarted,
    plain_environment,
    run_process,
    scratch_folder,
)
from skillfit.skill import Skill
from skillfit.skill.document import find_document
from skillfit.tasks.graders import (
    build_grader,
    check_items,
    golds,
    known_good_programs,
    without_judges,
)
from skillfit.tasks.item import (
    Attempt,
    Grader,
    GraderLike,
    Item,
    Reported,
    Score,
    ScoredAttempt,
    Split,
    as_score,
    reported_by,
    stable_hash,
)
from skillfit.tasks.rows import Row, eval_rows, evals_file, folder_rows, items_of, read_rows
from skillfit.tasks.splits import Splits, split_items

if TYPE_CHECKING:
    from skillfit.agents import Agent
    from skillfit.models.registry import ModelSpec

    BuildAgent = Callable[[EnvSection, ModelSpec, Model | None], Agent]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Evaluator(ABC):
    """Runs and scores items. Subclass it for a task with its own environment or harness."""

    needs_model: ClassVar[bool] = False
    """True: it calls the agent's model itself, through the `Model` it was given when the task was
    loaded, so that each call is recorded, budgeted and limited. `model.agent` is required then.
    """

    @property
    def reports(self) -> frozenset[Reported]:
        """What its attempts report about their usage, if it does not call the agent's model."""
        return frozenset()

    @abstractmethod
    async def __call__(self, skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        """Run the item under the skill and score it. `seed` differs between repeats.

        Raises `TaskFailure` or `ModelError` when there is nothing to score: that is a failed
        rollout, never a score of 0.
        """

    @abstractmethod
    def describe(self) -> PartDescription:
        """Return what distinguishes this evaluator from others, as JSON, for the run's identity."""

    def known_good(self, items: Sequence[Item]) -> list[KnownGood]:
        """Return programs that must work on this machine before items can be scored."""
        return []

    def opened(self, run_path: Path) -> AbstractAsyncContextManager[None]:
        """Return a context that is entered before the first rollout of a run and left after the
        last. Override it to start and stop servers, or to write logs under `run_path`.
        """
        return nullcontext()


@dataclass(frozen=True, slots=True)
class FunctionEvaluator(Evaluator):
    """A user's functions as an evaluator: `evaluate(skill, item)` returns the score itself, or
    `run(skill, item)` returns the answer and a grader scores it. Either may take a third argument,
    the seed. The skill is passed as text, the item as a dict.
    """

    function: Callable[..., Any]
    grader: Grader | None = None  # None: the function returns the score

    @property
    def reports(self) -> frozenset[Reported]:
        return reported_by(self.function)

    async def __call__(self, skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        name = name_of(self.function)
        parameters = inspect.signature(self.function).parameters.values()
        wanted = [one for one in parameters if one.default is one.empty and one.kind in _POSITIONAL]
        arguments = (skill.text, item.as_dict(), seed)[: max(2, len(wanted))]
        value = await call_user_code(
            self.function,
            *arguments,
            kind="evaluate" if self.grader is None else "agent",
            where=f"{name} on item {item.id}",
        )
        if self.grader is None:
            return _evaluated(value, source=name)
        if not isinstance(value, str | Attempt):
            raise TaskFailure(
                "agent",
                f"{name} returned {type(value).__name__} on item {item.id}.",
                hint="Return the answer as a str or an Attempt; for a function that returns a "
                "score, use Task(items, evaluate=…).",
            )
        attempt = value if isinstance(value, Attempt) else Attempt(value)
        return ScoredAttempt(attempt, await self.grader.grade(item, attempt))

    def known_good(self, items: Sequence[Item]) -> list[KnownGood]:
        return [] if self.grader is None else known_good_programs(self.grader, items)

    def describe(self) -> PartDescription:
        return {
            "function": qualified_name(self.function),
            "grader": self.grader.describe() if self.grader else None,
        }


@dataclass(frozen=True, slots=True)
class CommandEvaluator(Evaluator):
    """Runs a program for each item. The program reads the item as JSON on stdin and the skill at
    `SKILLFIT_SKILL`, and prints a score:

        #!/bin/sh
        answer=$(my-agent --skill "$SKILLFIT_SKILL")
        echo '{"score": 1.0, "feedback": "…", "answer": "…"}'

    `SKILLFIT_SEED` differs between repeats of an item. API keys are not in the program's
    environment. An exit code other than 0 is a failed rollout, not a score of 0.
    """

    argv: tuple[str, ...]
    cwd: Path
    timeout: float  # seconds

    @classmethod
    def parse(cls, line: str, base: Path, timeout: float) -> CommandEvaluator:
        """Parse a command line, relative to `base`. The program must exist."""
        try:
            program, *arguments = shlex.split(line) or [""]
        except ValueError as error:
            raise InputError(
                f"command: {line.strip()!r} is not a valid command line: {error}.",
                hint="Close the quote, or escape it.",
            ) from error
        found = shutil.which(str(base / program) if "/" in program else program)
        if found is None:
            raise InputError(
                f"command: {program or 'nothing'!r} is not a program.",
                hint="Check the path and that it is executable.",
            )
        executable = str(Path(found).resolve()) if "/" in program else found
        return cls((executable, *arguments), base.resolve(), timeout)

    async def __call__(self, skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        where = f"{Path(self.argv[0]).name} on item {item.id}"
        stdin = json.dumps(item.as_dict(), ensure_ascii=False).encode()
        with scratch_folder("command") as folder:
            skill.save(folder / "skill")
            document = find_document(folder / "skill")
            env = {
                **plain_environment(),
                "SKILLFIT_SKILL": str(document),
                "SKILLFIT_SEED": str(seed),
            }
            try:
                result = await run_process(
                    self.argv, cwd=self.cwd, timeout=self.timeout, env=env, stdin=stdin
                )
            except SandboxNotStarted as error:
                raise TaskFailure("sandbox", f"{where}: {error.message}") from error
        if result.timed_out:
            raise TaskFailure(
                "timeout", f"{where}: still running after {self.timeout:g} s; killed."
            )
        if result.code != 0:
            stderr = last_part(result.stderr.strip(), 500) or "nothing on stderr"
            raise TaskFailure("command", f"{where}: exit code {result.code}: {stderr}")
        return _evaluated(_printed_score(result.stdout, where), source=where)

    def describe(self) -> PartDescription:
        """Return the command line and the content of the files in it, so that editing the program
        changes the run's identity.
        """
        argv, hashes = [], []
        for part in self.argv:
            path = self.cwd / part
            if path.is_relative_to(self.cwd) and path.is_file():
                hashes.append(stable_hash(path.read_bytes().hex()))
            inside = Path(part).is_relative_to(self.cwd)
            argv.append(str(Path(part).relative_to(self.cwd)) if inside else part)
        return {"command": argv, "files": hashes}


def _printed_score(stdout: str, where: str) -> Any:
    try:
        return printed_json(stdout)
    except ValueError as error:
        raise TaskFailure(
            "command",
            f"{where}: no JSON score on stdout, but {last_part(stdout.strip(), 200)!r}.",
            hint='Print {"score": 0.5}.',
        ) from error


def _evaluated(value: Any, *, source: str) -> ScoredAttempt:
    """Return the result of a user's evaluation: a score in any form, and the answer if it has
    one.
    """
    answer = str(value.get("answer", "")) if isinstance(value, Mapping) else ""
    return ScoredAttempt(Attempt(answer), as_score(value, source=source))


class Task:
    """Items and their grading, in one of four forms:

    - `Task(items, grade="exact")`: the agent of the config runs the items;
    - `Task(items, run=…, grade=…)`: your function `run(skill, item)` returns the answer;
    - `Task(items, evaluate=…)`: your function `evaluate(skill, item)` runs and scores the item;
    - `Task(items, evaluator=…)`: your `Evaluator` runs and scores the items.

    Items are dicts (`input`, `answer`, …) or `Item`s. `fields` names the columns of dicts that
    have other names: `{"input": "question_text"}`. `agent` makes an agent of the task's own from
    the settings. `grade` is a grader's name or settings, or a
    function of item and answer; `judge` is the model that it asks, where it asks one. `base` is the
    folder of files that items and the grader name. `splits` are the settings of `env` that divide
    the items; `caps` says how many items of a split are used, where not all are.
    """

    def __init__(
        self,
        items: Iterable[Item | Mapping[str, Any]],
        *,
        run: Callable[..., Any] | None = None,
        grade: GraderLike | None = None,
        evaluate: Callable[..., Any] | None = None,
        evaluator: Evaluator | None = None,
        agent: BuildAgent | None = None,
        splits: SplitSection | None = None,
        caps: Mapping[Split, int] | None = None,
        fields: Mapping[str, str] | None = None,
        judge: Model | None = None,
        base: Path = Path(),
    ) -> None:
        scores = "evaluate" if evaluate is not None else "evaluator"
        if (evaluate or evaluator) and (run or grade):
            raise InputError(
                f"Task: `{scores}` runs and scores items, so it excludes `run` and `grade`."
            )
        if evaluate and evaluator:
            raise InputError("Task: give `evaluate` or `evaluator`, not both.")
        self.items: tuple[Item, ...] = tuple(_as_items(items, fields or {}, base))
        if not self.items:
            raise InputError("Task: there are no items.")
        self.grader: Grader | None = None
        self.evaluator: Evaluator | None = evaluator
        self.build_agent = agent
        if evaluate is not None:
            self.evaluator = FunctionEvaluator(evaluate)
        if self.evaluator is None:
            self.grader = build_grader(grade or "exact", judge=judge, base=base)
            self.evaluator = FunctionEvaluator(run, self.grader) if run else None
            check_items(self.grader, self.items)
        self.split_settings = splits or SplitSection()
        self.caps = caps or {}
        self._training = True

    @cached_property
    def splits(self) -> Splits:
        """Computed on first use."""
        with collector_paused():
            return split_items(
                self.items,
                self.split_settings,
                caps=self.caps,
                whole_rows=self.evaluator is not None,
                training=self._training,
            )

    @property
    def train(self) -> tuple[Item, ...]:
        return self.splits.train

    @property
    def selection(self) -> tuple[Item, ...]:
        return self.splits.selection

    @property
    def test(self) -> tuple[Item, ...]:
        return self.splits.test

    @property
    def fit_only(self) -> bool:
        """Selection is the train split again, because there were too few items: results are
        unverified.
        """
        return self.splits.fit_only

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know about the splits."""
        return self.splits.warnings

    def known_good(self) -> list[KnownGood]:
        """Return the programs that must work on this machine before items can be scored."""
        if self.evaluator is not None:
            return self.evaluator.known_good(self.items)
        return [] if self.grader is None else known_good_programs(self.grader, self.items)

    def with_splits(self, settings: SplitSection, caps: Mapping[Split, int]) -> Task:
        """Return the same task with other split settings, and at most so many items of each
        split.
        """
        other = self._with_new_splits()
        other.split_settings, other.caps = settings, caps
        return other

    def for_measuring(self) -> Task:
        """Return the same task, of which any split may be empty: skills are measured on one of
        them.
        """
        other = self._with_new_splits()
        other._training = False
        return other

    def for_models(self, models: Sequence[str]) -> Task:
        """Return the same task with each item once for each of these models."""

        def each(items: Iterable[Item]) -> tuple[Item, ...]:
            return tuple(item.with_model(model) for item in items for model in models)

        other, splits = copy(self), self.splits
        other.items = each(self.items)
        vars(other)["splits"] = replace(
            splits,
            train=each(splits.train),
            selection=each(splits.selection),
            test=each(splits.test),
        )
        return other

    def _with_new_splits(self) -> Task:
        """Return a copy that computes its splits anew."""
        other = copy(self)
        vars(other).pop("splits", None)
        return other

    def with_grader(self, grader: Grader) -> Task:
        """Return the same items with another grader."""
        other = copy(self)
        other.grader = grader
        return other

    def identity(self) -> str:
        """Return a hash that changes when items, splits, grader or evaluator change. The order of
        the items does not matter.
        """
        parts = {
            name: sorted(item.fingerprint() for item in getattr(self, name))
            for name in ("train", "selection", "test")
        }
        how = [part.describe() if part else None for part in (self.grader, self.evaluator)]
        return stable_hash([parts, how, self.fit_only])


@dataclass(frozen=True, slots=True)
class GoldProblem:
    """A gold answer that its own grader does not score 1."""

    item_id: str
    score: Score | None
    why: str


async def prove_gold(
    task: Task, *, judges: bool = False, timeout: float | None = None
) -> list[GoldProblem]:
    """Grade every gold answer with the task's own grader and return the problems. Call judge models
    only with `judges=True`. Raise `GradingTimedOut` at the first gold answer that takes longer than
    `timeout` seconds.
    """
    grader = task.grader if judges or task.grader is None else without_judges(task.grader)
    if grader is None:
        return []
    problems = []
    for item in task.items:
        for gold in golds(grader, item):
            async with grading_limit(item, timeout):
                problem = await _grade_gold(grader, item, gold)
            if problem is not None:
                problems.append(problem)
    return problems


async def _grade_gold(grader: Grader, item: Item, gold: str) -> GoldProblem | None:
    """Say why a gold answer does not score 1; None when it does."""
    try:
        score = await grade_with_retries(grader, item, Attempt(gold, bare=True))
    except TaskFailure as failure:
        return GoldProblem(item.id, None, str(failure))
    if score.hard >= 1:
        return None
    reason = score.feedback or "no reason given"
    why = f"the gold answer {gold!r:.100} scores {score.hard:g}: {reason}"
    return GoldProblem(item.id, score, why)


class GradingTimedOut(SkillfitError):
    """A grader took longer than the time limit."""

    exit_code = Exit.INFRASTRUCTURE


@asynccontextmanager
async def grading_limit(item: Item, seconds: float | None) -> AsyncIterator[None]:
    """Raise `GradingTimedOut` when grading in this block takes longer than these seconds."""
    try:
        async with time_limit(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise GradingTimedOut(
            f"It did not finish within {seconds:g} s on item {item.id}.",
            hint="Fix it, or raise env.exec_timeout.",
        ) from None


async def grade_with_retries(grader: Grader, item: Item, attempt: Attempt) -> Score:
    """Return the score. A failure that may pass is tried again as often as in a rollout."""
    failures = 0
    while True:
        try:
            return await grader.grade(item, attempt)
        except (ModelError, TaskFailure) as failure:
            failures += 1
            if failures > policy_of(failure).rollout_retries:
                raise


def _as_items(
    items: Iterable[Item | Mapping[str, Any]], fields: Mapping[str, str], base: Path
) -> list[Item]:
    if not isinstance(items, Iterable):
        raise InputError(
            f"Task: {shorten(repr(items), 100)} is not a task.",
            hint="Give a list of items as dicts, a Task, or the path of a tasks file.",
        )
    listed = list(items)
    ready = [item for item in listed if isinstance(item, Item)]
    if not ready:
        rows = cast(list[Mapping[str, Any]], listed)
        return items_of((Row(row, f"items[{at}]", base) for at, row in enumerate(rows)), fields)
    if len(ready) < len(listed):
        raise InputError("Task: give all items as dicts, or all as Item.")
    if fields:
        raise InputError("env.fields: these items have their fields already.")
    twice, count = Counter(item.id for item in ready).most_common(1)[0]
    if count > 1:
        raise InputError(f"Task: id {twice!r} is used twice.")
    return ready


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What the run provides when the items are loaded."""

    model: Model | None = None  # the agent's model, for evaluators that call it themselves
    judge: Model | None = None
    env: EnvSection = field(default_factory=EnvSection)


@dataclass(frozen=True, slots=True)
class SourceItems:
    """The items of a source, and how to grade them where a config value cannot say it.

    `grader` is used unless the user sets `env.grader`. A source with an `evaluator` runs and scores
    its items itself and has no grader. One with an `agent` makes the agent of its items from the
    settings: its model is None for a command-line program.
    """

    items: Iterable[Item | Mapping[str, Any]]
    grader: GraderLike | None = None
    evaluator: Evaluator | None = None
    agent: BuildAgent | None = None


def load_task(
    env: EnvSection,
    *,
    caps: Mapping[Split, int] | None = None,
    grader: GraderLike | None = None,
    judge: Model | None = None,
    model: Model | None = None,
) -> Task:
    """Return the task that `env.tasks` names. Relative paths start from `env.folder`.

    `caps` limits the items of single splits; 0 = all. `grader` replaces `env.grader` and may be an
    object. `judge` is the model for graders that need one; `model` is the agent's, for evaluators
    that call it themselves.
    """
    with collector_paused():
        task = _load(env, grader or env.grader, LoadContext(model, judge, env))
    return _capped(task, caps)


def task_from_python(
    given: Task | Iterable[Item | Mapping[str, Any]],
    env: EnvSection,
    *,
    caps: Mapping[Split, int] | None = None,
    grader: GraderLike | None = None,
    judge: Model | None = None,
) -> Task:
    """Return a task or its rows made in Python, under the settings of `env`. The arguments are
    those of `load_task`. A Task keeps its own splits unless `env` sets them.
    """
    grader = grader or env.grader
    if isinstance(given, Task):
        task = _with_settings(given, env, grader)
    else:
        task = Task(given, grade=grader, fields=env.fields, splits=env, judge=judge)
    return _capped(task, caps)


def _capped(task: Task, caps: Mapping[Split, int] | None) -> Task:
    used = {name: cap for name, cap in (caps or {}).items() if cap}
    return task.with_splits(task.split_settings, {**task.caps, **used}) if used else task


def _load(env: EnvSection, grader: GraderLike | None, context: LoadContext) -> Task:
    if env.tasks.startswith("command:"):
        return _command_task(env, grader)
    source = find_source(env.tasks, base=Path(env.folder), options=env.task_args)
    if source is not None:
        return _source_task(source, env, grader, context)
    if ".py:" in env.tasks:
        return _python_task(env, grader)
    return _file_task(env, grader, context.judge)


def _file_task(env: EnvSection, grader: GraderLike | None, judge: Model | None) -> Task:
    base = Path(env.folder)
    path = base / env.tasks
    if "://" in env.tasks:
        raise InputError(
            f"env.tasks: {env.tasks} is an address, not a file.",
            hint="Download it, and give the path of the file.",
        )
    if not env.tasks or not path.exists():
        raise InputError(
            f"env.tasks: {env.tasks or 'nothing'!r} is neither a file nor a folder in "
            f"{base.resolve()}.",
            hint=near_file(path) or _known_sources(env.tasks),
        )
    if (evals := evals_file(path)) is not None:
        rows, grader = eval_rows(evals), grader or "checklist"
    else:
        rows = folder_rows(path) if path.is_dir() else read_rows(path)
    corpus = Path(env.corpus) if env.corpus else None
    return Task(
        items_of(rows, env.fields, corpus=corpus),
        grade=grader or "exact",
        splits=env,
        judge=judge,
        base=base,
    )


def _command_task(env: EnvSection, grader: GraderLike | None) -> Task:
    """Build the task of `command: ./grade.sh < items.jsonl`; without `<`, of the items.jsonl beside
    the config.
    """
    _refuse_grader(grader, "a command")
    base = Path(env.folder)
    line, _, items = env.tasks.removeprefix("command:").partition("<")
    file = base / (items.strip() or "items.jsonl")
    if not items and not file.is_file():
        raise InputError(
            f"env.tasks: the command needs items, and {file} does not exist.",
            hint="Name their file: command: PROGRAM < tasks.jsonl",
        )
    rows = read_rows(file)
    evaluator = CommandEvaluator.parse(line, base, env.exec_timeout or ROLLOUT_SECONDS)
    return Task(items_of(rows, env.fields), evaluator=evaluator, splits=env)


def _python_task(env: EnvSection, grader: GraderLike | None) -> Task:
    """Build the task that `file.py:name` names: a Task, a function without arguments that returns
    one, or an evaluate function with `items` beside it.
    """
    base = Path(env.folder)
    named = load_object(env.tasks, base)
    file = (base / env.tasks.rpartition(":")[0]).resolve()
    if inspect.isfunction(named) and not inspect.signature(named).parameters:
        with errors_in(file):
            named = named()
    if isinstance(named, Task):
        return _with_settings(named, env, grader)
    if not callable(named):
        raise InputError(
            f"{env.tasks} is a {type(named).__name__}.",
            hint="Expected a Task, a function that returns one, or evaluate(skill, item).",
        )
    _refuse_grader(grader, "an evaluate function")
    return Task(_items_beside(file, env.fields), evaluate=named, splits=env)


def _items_beside(file: Path, fields: Mapping[str, str]) -> list[Item]:
    for path in (file.with_suffix(".jsonl"), file.parent / "items.jsonl"):
        if path.is_file():
            return items_of(read_rows(path), fields)
    items = load_object(f"{file}:items")
    with errors_in(file):
        listed = list(items() if callable(items) else items)
    rows = (Row(row, f"{file.name}: items[{at}]", file.parent) for at, row in enumerate(listed))
    return items_of(rows, fields)


def _source_task(
    source: TaskSource, env: EnvSection, grader: GraderLike | None, context: LoadContext
) -> Task:
    loaded = source.load(context)
    if loaded.evaluator is not None:
        _refuse_grader(grader, f"env.tasks: {env.tasks}")
    return Task(
        loaded.items,
        grade=None if loaded.evaluator else grader or loaded.grader or "exact",
        evaluator=loaded.evaluator,
        agent=loaded.agent,
        splits=env,
        fields=env.fields,
        judge=context.judge,
        base=Path(env.folder),
    )


def _with_settings(task: Task, env: EnvSection, grader: GraderLike | None) -> Task:
    """Return a Task from Python. Its own splits count unless `env` sets them."""
    _refuse_grader(grader, "a Task")
    if env.fields:
        raise InputError(
            "env.fields: the items of a Task have their fields already.",
            hint="Give Task(…, fields=…) instead.",
        )
    splits = env.model_dump(include=set(SplitSection.model_fields))
    return task if splits == SplitSection().model_dump() else task.with_splits(env, task.caps)


def _refuse_grader(grader: GraderLike | None, what: str) -> None:
    if grader is not None:
        raise InputError(f"env.grader: {what} brings its own scores.", hint="Leave env.grader out.")


def _known_sources(tasks: str) -> str:
    names = source_names()
    return did_you_mean(tasks.partition(":")[0], names) or (
        "Give a .jsonl, .json, .csv or .yaml file, a folder with train/ val/ test/, evals.json, "
        f"file.py:name, command: PROGRAM, or one of: {', '.join(names)}."
    )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector while many long-lived objects are created.

    Without it, loading 100,000 items takes about a fifth longer: the collector searches all of
    them again and again and finds nothing to free.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
