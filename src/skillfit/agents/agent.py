"""What an agent is, and the two that need no folder: the chat agent and the user's Python code.

An agent gets a skill and an item, and makes an attempt at the item. Skill and item are put into a
prompt in the same way for all agents: what stays the same for all items (the skill) comes first, so
that prompt caches of providers work.

- `Workspace`: the folder of one rollout for agents that work on files.
- `ChatAgent`: the skill is the system prompt, the item the user's message, in one turn or several.
- `BaseAgent`: a base class for your own agents; only `attempt` is left to write.
- `CallableAgent`: `def solve(skill: str, item: dict) -> str | Attempt`, given from Python
  (`agent=solve`) or named in the config (`env.agent: file.py:solve`). It may be async, and may take
  `seed` and `instruction` by name.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from skillfit.errors import InputError, TaskFailure
from skillfit.extensions import (
    PartDescription,
    build_part,
    call_user_code,
    check_methods,
    find_extension,
    is_built_in,
    is_reference,
    name_of,
)
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import Message, Model, ModelError, Request, Tool, Usage
from skillfit.sandbox.programs import new_folder, remove_folder, remove_tree
from skillfit.skill import Skill
from skillfit.skill.document import check_relative
from skillfit.tasks.item import Attempt, Item, Reported, TrajectoryStep, reported_by, stable_hash

STEP_TEXT = 8000  # characters of a step's text that are recorded


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """What an attempt depends on besides skill and item."""

    seed: int | None = None
    purpose: str = ""
    """Names item and repeat. It tells equal requests apart in the journal and is never sent."""
    instruction: str = ""
    """A question to be answered too, put after the item (deep reflection)."""
    max_usd: float | None = None
    """Dollars this attempt may spend, for agents that accept a limit."""
    seconds: float | None = None
    """Seconds that agent and grader have together, for agents that can say why they took longer."""


class Agent(Protocol):
    """Makes attempts."""

    @property
    def recorded(self) -> bool:
        """Whether every model call goes through skillfit's own client, which journals and meters
        it. Otherwise (a program, the user's own code) the rollout is metered and billed as a whole,
        with the usage that the attempt reports.
        """
        ...

    @property
    def reports(self) -> frozenset[Reported]:
        """What attempts report about their usage, for agents that are not `recorded`."""
        ...

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        """Let the agent work on the item.

        Raises a `ModelError` (such as `AgentFailure`) when the infrastructure failed: that is a
        failed rollout and never an answer. A time limit cancels this call.
        """
        ...

    def describe(self) -> PartDescription:
        """Return the settings that distinguish this agent from others, as JSON, for the run's
        identity. They hold nothing secret.
        """
        ...

    @property
    def limits_itself(self) -> bool:
        """Whether an attempt keeps to `AttemptContext.max_usd` by itself."""
        ...

    def slots(self, cores: int) -> int | None:
        """Return how many attempts may run at the same time on a machine with this many cores.
        None: as many as `model.concurrency` allows.
        """
        ...


class BaseAgent:
    """Defaults for everything in `Agent` but `attempt`."""

    @property
    def recorded(self) -> bool:
        return False

    @property
    def reports(self) -> frozenset[Reported]:
        return frozenset()

    @property
    def limits_itself(self) -> bool:
        return False

    def slots(self, cores: int) -> int | None:
        return None

    def describe(self) -> PartDescription:
        return {"agent": type(self).__qualname__}


@dataclass(frozen=True)
class AgentPerModel(BaseAgent):
    """Runs each item with the agent of the item's model. `price` adds the dollars of a model to
    what a program used.
    """

    agents: Mapping[str, Agent]  # by `Item.model`
    price: Callable[[str, Usage], Usage]

    @property
    def recorded(self) -> bool:
        return all(agent.recorded for agent in self.agents.values())

    @property
    def reports(self) -> frozenset[Reported]:
        return frozenset.intersection(*(agent.reports for agent in self.agents.values()))

    @property
    def limits_itself(self) -> bool:
        return all(agent.limits_itself for agent in self.agents.values())

    def slots(self, cores: int) -> int | None:
        known = [agent.slots(cores) for agent in self.agents.values()]
        return min((count for count in known if count is not None), default=None)

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        attempt = await self.agents[item.model].attempt(skill, item, context)
        if self.recorded or attempt.usage.usd is not None:
            return attempt
        return replace(attempt, usage=self.price(item.model, attempt.usage))

    def describe(self) -> PartDescription:
        return {name: agent.describe() for name, agent in self.agents.items()}


class AgentFailure(ModelError):
    """The agent's infrastructure failed. `kind` is one of agent, command, config, limit, sandbox,
    timeout.
    """

    def __init__(
        self, message: str, *, kind: str = "agent", hint: str = "", usage: Usage | None = None
    ) -> None:
        super().__init__(message, hint=hint, usage=usage)
        self.kind = kind


SKILL_INTRODUCTION = "Follow this skill.\n\n{skill}"  # in templates


def system_messages(template: str, skill: Skill) -> tuple[Message, ...]:
    """Return the template with the skill's body in place of {skill}; other braces stay as they
    are. Without a skill nothing introduces it, and an empty message is left out.
    """
    if skill.absent:
        template = template.replace(SKILL_INTRODUCTION, "")
    text = template.replace("{skill}", skill.body.strip()).strip()
    return (Message("system", text),) if text else ()


def item_messages(
    item: Item, instruction: str = "", *, inline_files: bool = True
) -> tuple[Message, ...]:
    """Return the item's conversation. The last turn also holds its files (with `inline_files`: for
    agents without a workspace) and the instruction.
    """
    *before, last = item.messages
    parts = [last.content]
    if inline_files:
        parts += [f"## File: {name}\n\n{_read_text(path)}" for name, path in item.files.items()]
    if instruction:
        parts.append(instruction)
    return (*before, replace(last, content="\n\n".join(parts)))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AgentFailure(
            f"The attached file {path} cannot be read as text: {error}.",
            hint="Use env.agent: tools or cli, which give the agent the file itself.",
        ) from error


CORPUS = "corpus"  # the name under which an agent sees the shared documents of `env.corpus`


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folders of one rollout. `corpus` is shared by all rollouts and never written to."""

    root: Path
    corpus: Path | None = None

    @classmethod
    def create(cls, corpus: Path | None = None) -> Workspace:
        """Make an empty workspace in a new folder."""
        workspace = cls(new_folder("rollout"), corpus)
        for folder in (workspace.work, workspace.home, workspace.temporary):
            folder.mkdir()
        return workspace

    @property
    def work(self) -> Path:
        """Where the agent works; graders look here."""
        return self.root / "work"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    def inside(self, name: str) -> Path:
        """Return the path in the work folder, or in the corpus, that `name` means.

        Absolute names, `..` and symbolic links that lead out are refused.
        """
        top, relative = self.work, Path(name)
        if self.in_corpus(name) and self.corpus is not None:
            top, relative = self.corpus, Path(*relative.parts[1:])
        path = top / relative
        if (
            relative.is_absolute()
            or ".." in relative.parts
            # Not `resolve`, which raises RuntimeError for links in a circle.
            or not Path(os.path.realpath(path)).is_relative_to(top.resolve())
        ):
            raise OutsideWorkspace(f"{name} is outside the workspace")
        return path

    def in_corpus(self, name: str) -> bool:
        """Return whether `name` is a path in the corpus."""
        return self.corpus is not None and Path(name).parts[:1] == (CORPUS,)

    def leave_only_work(self) -> None:
        """Remove everything but the agent's work: HOME may hold links to a login."""
        remove_tree(self.home)
        remove_tree(self.temporary)
        corpus = self.work / CORPUS
        if self.corpus is None:
            return
        if corpus.is_symlink() or corpus.is_file():
            corpus.unlink()
        else:
            remove_tree(corpus)  # the empty mount point, or a folder that a command put there

    def remove(self) -> None:
        remove_folder(self.root)


def corpus_fingerprint(folder: Path) -> str:
    """Return a hash that changes when files are added, removed or changed in size. Reading all of a
    large corpus at every start would take too long.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return stable_hash(
        [[path.relative_to(folder).as_posix(), path.stat().st_size] for path in files]
    )


class OutsideWorkspace(ValueError):
    """A path that leads out of the workspace."""


def new_workspace(item: Item, corpus: Path | None = None) -> Workspace:
    """Make a workspace that holds the item's files and images under their names."""
    attached = {**{image.path.name: image.path for image in item.images}, **item.files}
    if corpus is not None and any(Path(name).parts[:1] == (CORPUS,) for name in attached):
        raise AgentFailure(
            f"Item {item.id} has files named {CORPUS}/…, which is where env.corpus is shown.",
            kind="config",
            hint="Rename the item's files.",
        )
    workspace = Workspace.create(corpus)
    try:
        for name, source in attached.items():
            target = workspace.work / check_relative(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    except (OSError, InputError) as error:
        workspace.remove()
        raise AgentFailure(
            f"A file of item {item.id} could not be copied into the workspace: {error}",
            kind="config",
        ) from error
    return workspace


@contextmanager
def workspace_for(item: Item, corpus: Path | None = None) -> Iterator[Workspace]:
    """Yield a new workspace. It stays, for graders to look at, unless the body raises."""
    workspace = new_workspace(item, corpus)
    try:
        yield workspace
    except BaseException:
        workspace.remove()
        raise


def remove_workspace(path: str) -> None:
    """Remove the workspace that an attempt left at `path` (`Attempt.workspace`), if there is one.

    A folder that is not a workspace of this process is left alone.
    """
    if path:
        remove_folder(Path(path).parent)


REFINE = (
    "Check your answer against the task above and correct it where needed. "
    "Then give the whole final answer."
)
_FINAL_ANSWER = re.compile(r"<(answer|final_answer)>.*</\1>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class ModelAgent(BaseAgent):
    """An agent that calls a model itself, turn by turn. `describe` lists all its fields."""

    recorded: ClassVar[bool] = True
    reports: ClassVar[frozenset[Reported]] = frozenset({"tokens", "usd"})
    name: ClassVar[str]

    model: Model
    prompt: str  # the system prompt; {skill} stands for the skill's body
    max_turns: int
    max_tokens: int | None = None  # of the whole attempt: no further turn starts beyond it

    def __post_init__(self) -> None:
        if "{skill}" not in self.prompt:
            raise InputError(
                "env.prompt does not contain {skill}, so the agent would never see the skill.",
                hint="Put {skill} where the skill belongs.",
            )

    def request(
        self,
        messages: tuple[Message, ...],
        context: AttemptContext,
        turn: int,
        tools: tuple[Tool, ...] = (),
    ) -> Request:
        """Return the request for these messages, in this turn of the attempt."""
        purpose = f"{context.purpose}/turn_{turn}"
        return Request(messages, "rollout", tools, seed=context.seed, purpose=purpose)

    def token_limit_note(self, usage: Usage) -> TrajectoryStep | None:
        """Return the note to end with when the attempt has reached its token limit, else None."""
        if not self.max_tokens or usage.tokens < self.max_tokens:
            return None
        return TrajectoryStep(
            "note", f"Ended at the limit of {self.max_tokens} tokens.", role="harness"
        )

    def describe(self) -> PartDescription:
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"agent": self.name, **settings, "model": self.model.id}


@dataclass(frozen=True)
class ChatAgent(ModelAgent):
    """Asks the model for an answer, and in later turns to check it.

    It ends early when the answer has a final answer tag or does not change any more.
    """

    name: ClassVar[str] = "chat"

    prompt: str = SKILL_INTRODUCTION
    max_turns: int = 1

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        messages = (
            *system_messages(self.prompt, skill),
            *item_messages(item, context.instruction),
        )
        steps: list[TrajectoryStep] = []
        usage, answer = Usage(), ""
        for turn in range(self.max_turns):
            if note := self.token_limit_note(usage):
                steps.append(note)
                break
            reply = await self.model.complete(self.request(messages, context, turn))
            usage += reply.usage
            steps.append(TrajectoryStep("message", reply.text))
            unchanged = reply.text.strip() == answer.strip()
            answer = reply.text
            if unchanged or _FINAL_ANSWER.search(answer):
                break
            messages = (*messages, Message("assistant", answer), Message("user", REFINE))
        return Attempt(answer, tuple(steps), usage=usage)


Solve = Callable[..., str | Attempt | Awaitable[str | Attempt]]

_OPTIONAL_PARAMETERS = ("seed", "instruction")
_HIDDEN_FIELDS = ("answers", "reference")


@dataclass(frozen=True)
class CallableAgent(BaseAgent):
    """Calls a function with the skill's text and the item's fields, without the gold answers.

    A function that is not async runs in a thread. Its usage is what the `Attempt` it returns says.
    A function that returns text reports no usage; annotate it with `-> Attempt` if it reports.
    """

    recorded: ClassVar[bool] = False

    solve: Solve
    source: dict[str, str] = field(default_factory=dict)
    """Reference and content hash, for a function that was named in the config."""

    @property
    def reports(self) -> frozenset[Reported]:
        return reported_by(self.solve)

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        parameters = inspect.signature(self.solve).parameters
        extra = {
            name: getattr(context, name) for name in _OPTIONAL_PARAMETERS if name in parameters
        }
        where = f"{self._name} on item {item.id}"
        try:
            result = await call_user_code(
                self.solve, skill.text, visible_fields(item), kind="agent", where=where, **extra
            )
        except TaskFailure as failure:
            raise AgentFailure(failure.message) from failure
        if isinstance(result, str):
            return Attempt(result, (TrajectoryStep("message", result),))
        if not isinstance(result, Attempt):
            raise AgentFailure(
                f"{self._name} returned {type(result).__name__} on item {item.id}.",
                hint="Return a str or an Attempt.",
            )
        return result

    @property
    def _name(self) -> str:
        return getattr(self.solve, "__qualname__", type(self.solve).__name__)

    def describe(self) -> PartDescription:
        name = f"{getattr(self.solve, '__module__', '')}:{self._name}"
        return {"agent": "callable", **(self.source or {"callable": name})}


def visible_fields(item: Item) -> JsonObject:
    """Return the item's fields that an agent may see: no gold answers and no hidden reference."""
    fields = item.as_dict()
    return {name: value for name, value in fields.items() if name not in _HIDDEN_FIELDS}


@dataclass(frozen=True)
class AgentObject:
    """A user's object with a method `attempt`. Other members of `Agent` that it leaves out have the
    values of `BaseAgent`. Errors in its code are failed rollouts.
    """

    agent: Any

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        name = name_of(type(self.agent))
        try:
            attempt = await call_user_code(
                self.agent.attempt,
                skill,
                item,
                context,
                kind="agent",
                where=f"{name}.attempt on item {item.id}",
            )
        except TaskFailure as failure:
            raise AgentFailure(failure.message) from failure
        if not isinstance(attempt, Attempt):
            raise AgentFailure(
                f"{name}.attempt returned {type(attempt).__name__} on item {item.id}.",
                hint="Return an Attempt.",
            )
        return attempt

    @property
    def recorded(self) -> bool:
        return bool(getattr(self.agent, "recorded", False))

    @property
    def reports(self) -> frozenset[Reported]:
        return frozenset(getattr(self.agent, "reports", ()))

    @property
    def limits_itself(self) -> bool:
        return bool(getattr(self.agent, "limits_itself", False))

    def slots(self, cores: int) -> int | None:
        slots: int | None = self.agent.slots(cores) if hasattr(self.agent, "slots") else None
        return slots

    def describe(self) -> PartDescription:
        described: PartDescription = (
            self.agent.describe()
            if hasattr(self.agent, "describe")
            else {"agent": type(self.agent).__qualname__}
        )
        return described


def as_agent(found: Any, name: str = "") -> Agent:
    """Make an agent of a user's class, object or function. A class is called without arguments."""
    if isinstance(found, type) and hasattr(found, "attempt"):
        found = build_part("agent", found, _Attempts, source=name)
    if hasattr(found, "attempt"):
        check_methods("agent", found, _Attempts, name or name_of(found))
        return cast(Agent, found) if is_built_in(found) else AgentObject(found)
    if not callable(found):
        raise InputError(
            f"The agent {name or repr(found)} is {type(found).__name__}, which cannot be called.",
            hint="Give a function (skill, item) -> answer, or an object with a method `attempt`.",
        )
    return CallableAgent(found() if isinstance(found, type) else found)


class _Attempts(Protocol):
    """The one member of `Agent` that has no default."""

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt: ...


# The names of `env.agent` that are no extensions; `build_agent` makes these.
AGENTS = {
    "chat": "skillfit.agents.agent:ChatAgent",
    "tools": "skillfit.agents.tools:ToolsAgent",
    "cli": "skillfit.agents.cli_agent:CliAgent",
}


def load_agent(name: str, base: Path = Path()) -> Agent:
    """Load the agent that `file.py:name`, or an entry point of group `skillfit.agents`, names."""
    agent = as_agent(find_extension("agent", name, AGENTS, base, setting="env.agent"), name)
    if isinstance(agent, CallableAgent) and is_reference(name):
        file, _, function = name.rpartition(":")
        content = (base / file).read_text(encoding="utf-8")
        return replace(agent, source={"python": function, "source": stable_hash(content)})
    return agent
