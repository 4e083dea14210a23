"""skillfit from Python: `train`, `evaluate` and `Run`. Scripts and notebooks; sync, or async with
the same arguments.

    run = skillfit.train(
        skill="my-skill", tasks="tasks.jsonl", agent="openai/gpt-5-mini", optimizer="openai/gpt-5",
        budget="$5",
    )
    print(run.baseline_score, run.score, run.gain)
    print(run.diff())
"""

from __future__ import annotations

import asyncio
import html
import re
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, wraps
from inspect import signature
from logging import INFO, WARNING, StreamHandler, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from skillfit.agents import Agent, as_agent
from skillfit.config import Config, load_config
from skillfit.errors import InputError
from skillfit.extensions import is_reference
from skillfit.intervals import Interval
from skillfit.plain_text import display_name, one_line, shorten, visible
from skillfit.record.lists import read_card
from skillfit.run.control import Control
from skillfit.run.directory import refuse_other_kinds
from skillfit.run.records import RunSummary
from skillfit.skill import Skill
from skillfit.skill import diff as diff_skills
from skillfit.skill.document import folder_name
from skillfit.tasks import Item, Task
from skillfit.tasks.item import GraderLike, stable_hash
from skillfit.training.assemble import Listener
from skillfit.training.inputs import Inputs, read_inputs
from skillfit.training.measure import Measured, evaluate_skills
from skillfit.training.start import start
from skillfit.training.user_parts import (
    ExecutorLike,
    GateFactory,
    GivenParts,
    ProposerLike,
    SamplerLike,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from skillfit.record.record import Point, Record
    from skillfit.run.events import GateDecided, RunFinished

LOGGER = getLogger("skillfit")
T = TypeVar("T")
P = ParamSpec("P")
UserSettings = Mapping[str, Any]  # as in a config file; nested or with dotted keys
ModelLike = str | UserSettings
AgentLike = ModelLike | Agent | Callable[..., Any]
SkillLike = Skill | str | Path
TrackerLike = str | Callable[..., Any]
TaskLike = Task | str | Path | Iterable[Item | Mapping[str, Any]]
_NUMBER = r"\d+\.?\d*|\.\d+"
_BUDGETS = (
    (rf"\$\s*({_NUMBER})", "usd"),
    (rf"((?:{_NUMBER})[kM]?)\s*(tokens|calls|rollouts)", ""),
    (rf"({_NUMBER})\s*min(?:utes)?", "minutes"),
)


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not: what it found, for people and programs."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open the run in a directory. Raises an error when there is none."""
        run = cls(_run_path(path).absolute())
        if not read_card(run.path).started:
            refuse_other_kinds(run.path)
            raise InputError(
                f"{run.path} holds no started run.", hint="Give the directory named with --run."
            )
        return run

    @cached_property
    def record(self) -> Record:
        """The run as plain data, as report and studio show it: scores, edits, decisions, cost."""
        from skillfit.record.fold import read_record

        return read_record(self.path)

    @property
    def finished(self) -> RunFinished | None:
        """None while it is running, or when it was stopped before its end."""
        return self.record.finished

    @property
    def config(self) -> Config:
        """The settings of the run: `run.config.train.batch_size`."""
        return self.record.config.settings

    @property
    def summary(self) -> RunSummary | None:
        """As summary.json; None while the run has not finished."""
        return self.record.summary

    @property
    def finish_reason(self) -> str:
        """How the run ended: improved, no_improvement, inconclusive, unverified, budget or
        infrastructure; evaluation or ablation for those; unfinished until then.
        """
        return self.record.finish_reason or "unfinished"

    @property
    def score(self) -> float | None:
        """The selection score of the skill that the run returns; before the end, the latest one."""
        return self.record.score

    @property
    def baseline_score(self) -> float | None:
        """The selection score of the initial skill; None until it was measured."""
        return self.record.selection.baseline

    @property
    def gain(self) -> float | None:
        """What the skill that was found scores above the initial one: on fresh rollouts where they
        were made, else on the selection split. `record.ship` has its interval and verdict.
        """
        return self.record.gain

    @property
    def initial_skill(self) -> Skill:
        """The skill that the run began with: its document, and files that edits may change."""
        return self.record.initial

    @property
    def best_skill(self) -> Skill:
        """The best skill so far: its document, and files that edits may change."""
        found = self.record.version_of("best")
        return found.skill if found is not None else Skill.from_text(self.record.best_skill)

    def skill(self, step: int | str) -> Skill:
        """Return the skill after a step: 0 or "initial" is the first, "best" the one that the run
        returns, and "unproven" what it found and does not return.
        """
        if step == "unproven" and self.record.unproven_skill:
            return self.record.found
        if step in ("initial", "best"):
            return self.best_skill if step == "best" else self.initial_skill
        found = self.record.skill_after(int(step)) if str(step).isdigit() else None
        if found is None:
            raise InputError(
                f"The run has no step {step!r}.",
                hint=f"There are initial, best and 1 to {self.record.steps_done}.",
            )
        return found.skill

    def diff(self, old: int | str = "initial", new: int | str = "best") -> str:
        """Return a unified diff between two steps' skills."""
        return diff_skills(self.skill(old), self.skill(new))

    @property
    def scores(self) -> tuple[Point, ...]:
        """Every measurement of a skill on a split, in order, in the gate's metric."""
        return self.record.points

    @cached_property
    def verdicts(self) -> list[GateDecided]:
        """The decisions of the gate, with their evidence."""
        from skillfit.report import open_details

        with open_details(self.path) as details:
            return details.verdicts()

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the score curve on the selection split (needs matplotlib: `pip install
        'skillfit[notebook]'`).
        """
        try:
            import matplotlib.pyplot as plt
        except ModuleNotFoundError as error:
            raise InputError(
                f"plot() needs the package {error.name!r}.",
                hint="pip install 'skillfit[notebook]'",
            ) from error

        axes = ax or plt.subplots()[1]
        points = [point for point in self.scores if point.split == "selection"]
        kept = [(at, point.score) for at, point in enumerate(points) if point.kept]
        others = [(at, point.score) for at, point in enumerate(points) if not point.kept]
        axes.plot(*zip(*kept, strict=True), marker="o", label="accepted")
        if others:
            axes.scatter(*zip(*others, strict=True), marker="x", color="grey", label="not accepted")
        labels = [point.label for point in points]
        axes.set_xticks(range(len(points)), labels, rotation=45, ha="right")
        axes.set_ylabel("selection score")
        axes.legend()
        return axes

    def _facts(self) -> list[tuple[str, str]]:
        ends = [
            (f"{point.label} ({point.split})", f"{point.score:.3f}")
            for point in self.scores
            if point.name in ("baseline", "final") or point.split != "selection"
        ]
        return [("run", str(self.path)), ("result", display_name(self.finish_reason)), *ends]

    def __str__(self) -> str:
        diagnosis = (
            self.finished.diagnosis
            if self.finished
            else "Not finished: resume with `skillfit resume`."
        )
        return "\n".join([*(f"{name}: {value}" for name, value in self._facts()), diagnosis])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self._facts()
        )
        diagnosis = html.escape(self.finished.diagnosis) if self.finished else "not finished"
        return (
            "<p><b>skillfit</b>: "
            f"{diagnosis}</p><table>{rows}</table><pre>{html.escape(self.diff())}</pre>"
        )


async def train_async(
    *,
    skill: SkillLike | None = None,
    tasks: TaskLike | None = None,
    agent: AgentLike | None = None,
    optimizer: ModelLike | None = None,
    budget: str | float | Mapping[str, float] | None = None,
    run: str | Path | None = None,
    config: str | Path | UserSettings | None = None,
    settings: UserSettings | None = None,
    force_new: bool = False,
    force: bool = False,
    grader: GraderLike | None = None,
    gate: str | GateFactory | None = None,
    proposer: str | ProposerLike | None = None,
    sampler: str | SamplerLike | None = None,
    executor: str | ExecutorLike | None = None,
    trackers: TrackerLike | Sequence[TrackerLike] = (),
    callbacks: Listener | Sequence[Listener] = (),
    control: Control | None = None,
    progress: bool = True,
    **sections: Any,
) -> Run:
    """Train a skill, or resume the run in `run`. `train` blocks and works in notebooks too;
    `train_async` is to be awaited.

    skill: a path, or a Skill (`Skill.from_text`). tasks: a path or any other `env.tasks`, a Task,
    or dicts of items. agent: a model's id, a callable `(skill, item) -> answer`, or an Agent.
    optimizer: a model's id. budget: "$5", "2000 calls", "300 rollouts", "1M tokens", "30 min" or
    {usd, calls, rollouts, tokens, minutes}. run: the directory; without one, a folder in runs/ that
    is named after skill and settings. config: a YAML file or mapping to start from. settings: what
    to change in it, `{"optimizer.learning_rate": 2}`; sections may be given by name too:
    `train={"num_epochs": 2}`, `recipe="lite"`. force_new: start again; a run that is there is moved
    to NAME.old-N. force: train although the preflight says stop.
    grader, gate, proposer, sampler, executor: your own part, as a class, an object or a function,
    or its name as in the config (docs/extending.md). trackers: names as for `--track`, classes,
    objects or functions; they are closed at the end. callbacks: functions that are called with
    every event (`skillfit.Stored`). One tracker or callback needs no list. control: a
    `skillfit.Control`, whose `stop()` another thread may call: work in flight is saved, and the
    call raises `skillfit.Interrupted`. progress: log lines about the run to the logger `skillfit`;
    where a program has not set up logging, they are shown on stderr.
    """
    _refuse_misnamed(sections, train_async)
    changed = {**(settings or {}), **sections}
    inputs = prepare(
        skill=skill,
        tasks=tasks,
        agent=agent,
        optimizer=optimizer,
        budget=budget,
        config=config,
        settings=changed,
        grader=grader,
        gate=gate,
        proposer=proposer,
        sampler=sampler,
        executor=executor,
    )
    path = default_run_path(inputs) if run in (None, "") else _run_path(run)
    async with _logged_lines(progress) as lines:
        with _tracking(trackers, path) as tracking:
            await start(
                inputs,
                path,
                force_new=force_new,
                force=force,
                listeners=[*tracking, *_listed(callbacks), *lines],
                control=control,
            )
    return Run.open(path)


@contextmanager
def _tracking(
    trackers: TrackerLike | Sequence[TrackerLike], path: Path
) -> Iterator[list[Listener]]:
    if not trackers:
        yield []
        return
    if isinstance(trackers, str) or callable(trackers):
        trackers = [trackers]
    from skillfit.plugins.trackers.trackers import make_tracker

    with ExitStack() as closing:
        made = []
        for tracker in trackers:
            made.append(make_tracker(tracker, path))
            closing.callback(made[-1].close)
        yield list(made)


@asynccontextmanager
async def _logged_lines(wanted: bool) -> AsyncIterator[list[Listener]]:
    """Log lines about a run, and one now and then while nothing happens."""
    if not wanted:
        yield []
        return
    from skillfit.record.fold import Fold
    from skillfit.record.text import ProgressLines

    fold = Fold()

    def log(line: str) -> None:
        LOGGER.log(WARNING if line.startswith("warning: ") else INFO, "%s", visible(line))

    lines = ProgressLines(log, fold.record)

    async def beat() -> None:
        while True:
            await asyncio.sleep(1)
            lines.tick()

    with _stderr_unless_set_up():
        beating = asyncio.create_task(beat())
        try:
            yield [fold, lines]
        finally:
            beating.cancel()


@contextmanager
def _stderr_unless_set_up() -> Iterator[None]:
    """Show what is logged on stderr, where the program has not set up logging."""
    if LOGGER.hasHandlers():
        yield
        return
    handler, level = StreamHandler(sys.stderr), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(INFO)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


@dataclass(frozen=True)
class Evaluation(Mapping[str, Measured]):
    """The measured skills by name. Of a single skill, `score` and `interval` can be read here."""

    path: Path  # of the run that holds the rollouts
    measured: Mapping[str, Measured]

    def __getitem__(self, name: str) -> Measured:
        return self.measured[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.measured)

    def __len__(self) -> int:
        return len(self.measured)

    @property
    def score(self) -> float:
        """The mean hard score over the items."""
        return self._only.score

    @property
    def interval(self) -> Interval:
        """The mean hard score with its 90 % interval."""
        return self._only.interval

    @property
    def _only(self) -> Measured:
        if len(self.measured) > 1:
            raise InputError(
                f"{len(self.measured)} skills were measured: {', '.join(self.measured)}.",
                hint=f"Name one: result[{next(iter(self.measured))!r}].score",
            )
        return next(iter(self.measured.values()))


async def evaluate_async(
    skill: SkillLike | Mapping[str, SkillLike],
    tasks: TaskLike | None = None,
    *,
    agent: AgentLike | None = None,
    split: str = "selection",
    repeats: int = 1,
    run: str | Path | None = None,
    config: str | Path | UserSettings | None = None,
    settings: UserSettings | None = None,
    force_new: bool = False,
    grader: GraderLike | None = None,
    executor: str | ExecutorLike | None = None,
    callbacks: Listener | Sequence[Listener] = (),
    control: Control | None = None,
    **sections: Any,
) -> Evaluation:
    """Measure a skill, or several by name, on a split (train, selection, test, all) with `repeats`
    rollouts per item; the rest as in `train`.

    `.score` and `.interval` of the result are those of the skill; of several, `result[name]` has
    them. What was measured before with the same settings is not paid for again (`recorded` and
    `recorded_at` of `result[name]` tell it); `force_new` measures again.
    """
    if not isinstance(repeats, int) or isinstance(repeats, bool):
        raise InputError(
            f"repeats is {shorten(repr(repeats), 100)}, which is not a whole number.",
            hint="Each item needs at least one rollout: give 1 or more.",
        )
    skills = (
        {name: as_skill(one) for name, one in skill.items()}
        if isinstance(skill, Mapping)
        else {"skill": as_skill(skill)}
    )
    if not skills:
        raise InputError("There is no skill to measure.", hint="Give a skill, or {name: skill}.")
    first = next(iter(skills.values()))
    _refuse_misnamed(sections, evaluate_async)
    changed = {**(settings or {}), **sections}
    inputs = prepare(
        skill=first,
        tasks=tasks,
        agent=agent,
        config=config,
        settings=changed,
        grader=grader,
        executor=executor,
        training=False,
    )
    path = default_run_path(inputs, "evaluate") if run in (None, "") else _run_path(run)
    measured = await evaluate_skills(
        inputs,
        skills,
        path,
        split=split,
        repeats=repeats,
        force_new=force_new,
        listeners=_listed(callbacks),
        control=control,
    )
    return Evaluation(path.absolute(), {one.name: one for one in measured})


def _refuse_misnamed(sections: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise an error for a keyword that is no section of the settings and resembles an argument."""
    for name in sections:
        if name not in Config.model_fields:
            near = get_close_matches(name, signature(function).parameters, n=1)
            if near:
                called = function.__name__.removesuffix("_async")
                raise InputError(f"{called}() has no argument {name!r}. Did you mean {near[0]!r}?")


def _run_path(run: str | Path | None) -> Path:
    """Check the directory of a run, as it is given from Python, and return it as a Path."""
    if not isinstance(run, str | Path):
        raise InputError(
            f"{shorten(repr(run), 100)} is not a run directory.", hint="Give its path as a text."
        )
    return Path(run)


def _listed(callbacks: Listener | Sequence[Listener]) -> Sequence[Listener]:
    """Return the callbacks as a list; one alone is allowed too."""
    if callable(callbacks):
        return [callbacks]
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise InputError(
            f"callbacks is {shorten(repr(callbacks), 100)}, and not a list of functions.",
            hint="Give functions that are called with every event.",
        )
    return callbacks


def _blocking(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Wrap the function for callers without an event loop, or with a running one (notebooks)."""

    @wraps(work)
    def wait(*args: P.args, **kwargs: P.kwargs) -> T:
        control = kwargs.get("control")
        if not isinstance(control, Control):
            kwargs["control"] = control = Control()
        with ThreadPoolExecutor(1, thread_name_prefix="skillfit") as thread:
            running = thread.submit(asyncio.run, work(*args, **kwargs))
            try:
                return running.result()
            except KeyboardInterrupt:
                control.stop()  # what is in flight finishes and is saved
                return running.result()

    return wait


train = _blocking(train_async)
evaluate = _blocking(evaluate_async)


def prepare(
    *,
    skill: SkillLike | None = None,
    tasks: TaskLike | None = None,
    agent: AgentLike | None = None,
    optimizer: ModelLike | None = None,
    budget: str | float | Mapping[str, float] | None = None,
    config: str | Path | UserSettings | None = None,
    settings: UserSettings | None = None,
    grader: GraderLike | None = None,
    gate: str | GateFactory | None = None,
    proposer: str | ProposerLike | None = None,
    sampler: str | SamplerLike | None = None,
    executor: str | ExecutorLike | None = None,
    training: bool = True,
) -> Inputs:
    """Read and check settings, skill and task; nothing is spent. Without `training` no optimizer is
    needed.
    """
    given = dict(settings or {})
    if isinstance(agent, str) and is_reference(agent):
        given["env.agent"] = agent
    elif isinstance(agent, str | Mapping):
        given["model.agent"] = agent
    if isinstance(grader, str | Mapping):
        given["env.grader"], grader = grader, None
    parts = {
        "evaluation.gate": gate,
        "optimizer.proposer": proposer,
        "train.sampler": sampler,
        "executor": executor,
    }
    given |= {key: part for key, part in parts.items() if isinstance(part, str)}
    if optimizer is not None:
        given["model.optimizer"] = optimizer
    if isinstance(tasks, str | Path):
        given["env.tasks"] = str(tasks)
    if isinstance(skill, str | Path):
        _refuse_missing(skill)
        given["env.skill"], skill = str(skill), None  # the report and `apply` name the path
    if budget is not None:
        given["budget"] = parse_budget(budget)
    return read_inputs(
        load_config(config or {}, given),
        skill=None if skill is None else as_skill(skill),
        task=None if isinstance(tasks, str | Path) else tasks,
        agent=None if agent is None or isinstance(agent, str | Mapping) else as_agent(agent),
        grader=grader,
        given=GivenParts(
            gate=None if isinstance(gate, str) else gate,
            proposer=None if isinstance(proposer, str) else proposer,
            sampler=None if isinstance(sampler, str) else sampler,
            executor=None if isinstance(executor, str) else executor,
        ),
        training=training,
    )


def as_skill(skill: SkillLike) -> Skill:
    """Return a Skill as it is, and read one from a path."""
    if isinstance(skill, Skill):
        return skill
    if not isinstance(skill, str | Path):
        raise InputError(
            f"{shorten(repr(skill), 100)} is not a skill.",
            hint="Give a path, or a Skill: Skill.from_text(text).",
        )
    _refuse_missing(skill)
    return Skill.load(skill)


def _refuse_missing(skill: str | Path) -> None:
    """Refuse a path where there is no file, and a text that was given instead of a path."""
    try:
        there = Path(skill).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # no possible path; a home folder is not known
        there = False
    if not there:
        raise InputError(
            f"Cannot read the skill {one_line(str(skill), 200)}: there is no such file.",
            hint="A string is a path. For a text, give Skill.from_text(text).",
        )


def default_run_path(inputs: Inputs, kind: str = "") -> Path:
    """Return the directory that the config names, or runs/NAME-HASH. In the second case the same
    settings, skill and tasks resume in the same directory, and others get a new one. NAME is that
    of the skill, made safe as a folder name.
    """
    if inputs.config.run:
        return Path(f"{inputs.config.run}-{kind}" if kind else inputs.config.run)
    name = folder_name(inputs.skill.name) or "skill"
    parts = [name, kind, stable_hash(inputs.identity())[:6]]
    return Path("runs") / "-".join(part for part in parts if part)


def parse_budget(budget: str | float | Mapping[str, float]) -> dict[str, float]:
    """Convert a budget to the section `budget` of a config. A number is dollars, and a text is one
    amount, as in the docstring of `train`.
    """
    if isinstance(budget, Mapping):
        return dict(budget)
    if isinstance(budget, int | float) and not isinstance(budget, bool):
        return {"usd": float(budget)}
    text = budget.strip() if isinstance(budget, str) else ""
    for pattern, name in _BUDGETS:
        if match := re.fullmatch(pattern, text):
            amount = float(match[1].rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(match[1][-1], 1)
            return {name: amount} if name else {match[2]: int(amount)}
    raise InputError(
        f"Cannot parse budget {shorten(repr(budget), 100)}.",
        hint="Write $5, 2000 calls, 300 rollouts, 1M tokens or 30 min; or give a number of dollars "
        "or {usd, calls, rollouts, tokens, minutes}.",
    )
