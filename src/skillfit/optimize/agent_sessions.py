"""Sessions of an agent that works on a skill in its own folder.

The agent is a coding-agent program (`model.optimizer: cli/…`), or the optimizer's model with tools
that read, search, edit and count. A session is one paid effect: what it left behind is recorded as
a whole, and a resumed run does not start it again. It ends at its time limit, when the run is asked
to stop, and when the time of the run is over.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from skillfit.agents.agent import Workspace
from skillfit.agents.cli_agent import configured_program
from skillfit.agents.tools import EDIT, FILE_TOOLS, FINISH, PYTHON, CommandLimits, ToolSession
from skillfit.errors import SkillfitError
from skillfit.models.failures import is_unusable, policy_of
from skillfit.models.protocol import Message, ModelError, Reply, Request, ToolCall, Usage
from skillfit.optimize.agent_folder import AgentFolder, LeftBehind, read_left_behind
from skillfit.optimize.optimizer import Optimizer
from skillfit.optimize.proposer import OptimizerModel
from skillfit.plain_text import head_and_tail
from skillfit.run.paid import Paid, PaidEffects
from skillfit.sandbox.programs import choose_isolation
from skillfit.skill import estimate_tokens
from skillfit.tasks.item import TrajectoryStep, stable_hash

T = TypeVar("T")

STAGE = "reflect.agent"
MOST_TURNS = 80  # of the model with tools
_TOOLS = (*FILE_TOOLS, EDIT, PYTHON, FINISH)
_TOOL_TEXTS = tuple(f"{tool.description} {tool.parameters}" for tool in _TOOLS)
_SHOWN_STEPS = 400  # of a session that are recorded
_STEP_TEXT = 2_000
_MESSAGE_TEXT = 20_000
_CUT_RESULT = "[left out to save room: call the tool again if you need it]"
_FIRST_SHARE = 0.25  # of the dollars left, for the first session of a program that has a limit
_NEXT = 2.0  # times the highest cost so far, for later ones


@dataclass(frozen=True, slots=True)
class AgentSession:
    """What became of a session."""

    left: LeftBehind
    message: str = ""  # the agent's last one
    steps: tuple[TrajectoryStep, ...] = ()
    isolation: str = ""
    ended: str = ""  # why it was ended early
    seconds: float = 0.0
    used: Usage = field(default_factory=Usage)  # by the calls of a model with tools


@dataclass(frozen=True, slots=True)
class AgentAssignment:
    """What one session works on."""

    step: int
    folder: AgentFolder
    system: str
    user: str

    @property
    def name(self) -> str:
        """Says everything that the session depends on."""
        skill = self.folder.skill
        files = {name: stable_hash(data.hex()) for name, data in skill.files.items()}
        given = [self.system, self.user, dict(self.folder.files), skill.text, files]
        return f"agent/step_{self.step:04d}/{stable_hash(given)}"


@dataclass(slots=True)
class AgentSessions:
    """Runs sessions."""

    optimizer: Optimizer
    setup: OptimizerModel
    paid: PaidEffects
    minutes: float  # time limit of one session
    _highest: Usage = field(default_factory=Usage)

    async def run(self, assignment: AgentAssignment) -> AgentSession:
        """Return the recorded session of an assignment, or run it. Raises a ModelError when the
        agent failed before it changed anything.
        """
        spec = self.setup.spec
        if not spec.is_cli:
            return await self.paid.record(
                assignment.name,
                partial(self._in_workspace, assignment, self._use_tools),
                returns=AgentSession,
                stage=STAGE,
                used=lambda session: session.used,
            )
        at_most = self._at_most()
        try:
            done = await self._program_session(assignment, at_most)
        except ModelError as error:
            everything = self._at_most(share=1.0)
            if not policy_of(error).larger_limit or everything.usd == at_most.usd:
                raise
            done = await self._program_session(assignment, everything)
        if done.usage.tokens >= self._highest.tokens:
            self._highest = done.usage
        return done.value

    async def _program_session(
        self, assignment: AgentAssignment, at_most: Usage
    ) -> Paid[AgentSession]:
        work = partial(self._run_program, limit=at_most.usd or None)
        return await self.paid.once(
            assignment.name,
            partial(self._in_workspace, assignment, work),
            returns=AgentSession,
            stage=STAGE,
            model=self.setup.spec.id,
            at_most=at_most,
        )

    async def _in_workspace(
        self,
        assignment: AgentAssignment,
        work: Callable[[AgentAssignment, Workspace], Awaitable[T]],
    ) -> T:
        """Give the agent a workspace with its folder."""
        workspace = Workspace.create()
        try:
            assignment.folder.write(workspace.work)
            return await work(assignment, workspace)
        finally:
            workspace.remove()

    async def _run_program(
        self, assignment: AgentAssignment, workspace: Workspace, *, limit: float | None
    ) -> Paid[AgentSession]:
        command = configured_program(self.setup.spec, sandbox=self.setup.sandbox)
        began = time.monotonic()
        session, usage, ended = AgentSession(LeftBehind()), Usage(calls=1, usd=None), ""
        try:
            async with self.paid.until_stopped():
                done = await command.run(
                    workspace,
                    f"{assignment.system}\n\n{assignment.user}",
                    command.description.argv,
                    max_usd=limit,
                    timeout=self.minutes * 60,
                )
        except SkillfitError as error:
            left = read_left_behind(workspace.work, assignment.folder)
            if _is_fatal(error) or not _changed(left, assignment.folder):
                raise
            if isinstance(error, ModelError):
                usage = error.usage
            session, ended = AgentSession(left), str(error)
        else:
            left = read_left_behind(workspace.work, assignment.folder)
            output, usage = done.output, done.output.usage
            session = AgentSession(left, output.answer or "", output.steps, done.isolation)
            ended = f"the time limit of {self.minutes:g} minutes" if done.timed_out else ""
        seconds = time.monotonic() - began
        session = replace(session, ended=ended, seconds=seconds)
        priced = self.setup.prices.priced(self.setup.spec.id, usage)
        return Paid(_shortened(session), usage if usage.usd is not None else priced)

    async def _use_tools(self, assignment: AgentAssignment, workspace: Workspace) -> AgentSession:
        isolation = choose_isolation(self.setup.sandbox, "env.sandbox")
        session = _RecordedTools(workspace, isolation, CommandLimits(), _TOOLS)
        session.paid, session.name = self.paid, assignment.name
        began = time.monotonic()
        message, ended = "", ""
        asked = _Conversation(self.optimizer, assignment)

        def limit_note(_: Usage) -> TrajectoryStep | None:
            if time.monotonic() - began < self.minutes * 60:
                return None
            text = f"Ended at the time limit of {self.minutes:g} minutes."
            return TrajectoryStep("note", text, role="harness")

        messages = (Message("system", assignment.system), Message("user", assignment.user))
        try:
            message, _ = await session.work(
                messages, asked.reply, max_turns=MOST_TURNS, limit_note=limit_note
            )
        except ModelError as error:
            left = read_left_behind(workspace.work, assignment.folder)
            if not is_unusable(error.kind) or not _changed(left, assignment.folder):
                raise
            ended = str(error)
        left = read_left_behind(workspace.work, assignment.folder)
        last = session.steps[-1] if session.steps else None
        if last is not None and last.kind == "note" and last.text.startswith("Ended"):
            ended = last.text
        used = isolation.name if session.ran_commands else ""
        seconds = time.monotonic() - began
        steps = tuple(session.steps)
        done = AgentSession(left, message, steps, used, ended, seconds, asked.used)
        return _shortened(done)

    def _at_most(self, share: float = _FIRST_SHARE) -> Usage:
        """Return what a session of a program may take of the caps: all that is left, or a `share`
        of the dollars where the program keeps to a limit by itself.
        """
        left = self.paid.left()
        usd = left.usd or 0.0
        description = configured_program(self.setup.spec, sandbox=self.setup.sandbox).description
        if description.uses("max_usd"):
            usd = min(usd, max(share * usd, _NEXT * (self._highest.usd or 0.0)))
        return Usage(calls=1, input=left.tokens or 0, usd=usd)


@dataclass
class _RecordedTools(ToolSession):
    """Tools whose results are recorded, so that a session that was killed continues with the
    conversation that it had: a program may print something else when it runs again.
    """

    paid: PaidEffects | None = None
    name: str = ""
    _used: int = 0

    async def use(self, tool_call: ToolCall) -> Message:
        assert self.paid is not None
        async with self.paid.until_stopped():
            found = await super().use(tool_call)
        content = found.content.replace(str(self.workspace.work), ".")

        async def same() -> str:
            return content

        self._used += 1
        recorded = await self.paid.record(f"{self.name}/tool_{self._used}", same, returns=str)
        return replace(found, content=recorded)


@dataclass(slots=True)
class _Conversation:
    """Sends the turns of a session to the optimizer's model."""

    optimizer: Optimizer
    assignment: AgentAssignment
    used: Usage = field(default_factory=Usage)

    async def reply(self, messages: tuple[Message, ...], turn: int) -> Reply:
        optimizer = self.optimizer
        request = Request(
            _fitting(messages, optimizer.room(*_TOOL_TEXTS)),
            STAGE,
            _TOOLS,
            max_tokens=optimizer.reply_tokens(),
            purpose=f"step {self.assignment.step} agent turn {turn}",
        )
        async with optimizer.workers:
            reply = await optimizer.model.complete(request)
        self.used += reply.usage
        return reply


def _fitting(messages: tuple[Message, ...], room: int) -> tuple[Message, ...]:
    """Cut the messages to `room` tokens: the oldest results of tools are left out first."""
    sizes = [estimate_tokens(_whole_text(message)) for message in messages]
    fitted = list(messages)
    for at, message in enumerate(messages):
        if sum(sizes) <= room:
            break
        if message.role == "tool" and len(message.content) > len(_CUT_RESULT):
            fitted[at] = replace(message, content=_CUT_RESULT)
            sizes[at] = estimate_tokens(_CUT_RESULT)
    return tuple(fitted)


def _whole_text(message: Message) -> str:
    return message.content + "".join(call.arguments for call in message.tool_calls)


def _is_fatal(error: SkillfitError) -> bool:
    return isinstance(error, ModelError) and (policy_of(error).fatal or policy_of(error).pending)


def _changed(left: LeftBehind, folder: AgentFolder) -> bool:
    """Return whether the agent changed the skill."""
    return bool(left.files) or left.document not in (None, folder.skill.text)


def _shortened(session: AgentSession) -> AgentSession:
    """Return the session as it is recorded: its last steps, long texts cut."""
    steps = tuple(
        replace(step, text=head_and_tail(step.text, _STEP_TEXT))
        for step in session.steps[-_SHOWN_STEPS:]
    )
    return replace(
        session,
        steps=steps,
        message=head_and_tail(session.message, _MESSAGE_TEXT),
        ended=head_and_tail(session.ended, _STEP_TEXT),
    )
