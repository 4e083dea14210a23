"""The tools agent: a loop of tool calls in its own folder.

The model can read, write, list and search files, run commands in a sandbox, and finish. The file
tools run in skillfit's own process and can use nothing outside the workspace and the corpus.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from skillfit.agents.agent import (
    CORPUS,
    SKILL_INTRODUCTION,
    STEP_TEXT,
    AgentFailure,
    AttemptContext,
    ModelAgent,
    Workspace,
    item_messages,
    system_messages,
    workspace_for,
)
from skillfit.extensions import PartDescription
from skillfit.models.json_text import JsonObject, parse_json, without_surrogates
from skillfit.models.protocol import Message, Reply, Tool, ToolCall, Usage
from skillfit.plain_text import head_and_tail, shorten
from skillfit.sandbox.file_view import Mount
from skillfit.sandbox.known_good import KnownGood, refuse_forbidden
from skillfit.sandbox.programs import (
    Isolation,
    SandboxMode,
    SandboxNotStarted,
    choose_isolation,
    run_untrusted,
    scratch_folder,
)
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, TrajectoryStep

PAGE = 20_000  # characters of a file that one `read` returns, and of any tool's result
_MATCHES = 100  # lines that one `search` returns
_LINE = 500  # characters of a matching line
_LONGEST_LINE = 1 << 20  # characters of a line that `search` looks at together
LONGEST_COMMAND = 100_000  # bytes; Linux itself accepts a little more in one argument
_NAMES = 2_000  # files that one `list` names
_LARGEST_EDITED = 4 << 20  # bytes of a file that `edit` changes


@dataclass(frozen=True, slots=True)
class FileTools:
    """Each method is a tool. Misuse raises ValueError or OSError, with a message for the model."""

    workspace: Workspace
    search_seconds: float = 60.0

    def read(self, name: str, first: int) -> str:
        """Read a page of a text file, from line `first` on (1 is the first)."""
        path = _regular_file(self.workspace.inside(name), name)
        shown: list[str] = []
        size, number = 0, 0
        with path.open(encoding="utf-8", errors="replace", newline="") as lines:
            while line := lines.readline(PAGE):
                number += 1
                if number < first:
                    _skip_rest(line, lines)
                    continue
                if size + len(line) > PAGE and shown:
                    return "".join(shown) + f"\n[more follows: read on with offset {number}]"
                shown.append(line)
                size += len(line)
                if left := _skip_rest(line, lines):
                    shown.append(f"[… {left} more characters in line {number}]\n")
        if number < first and first > 1:
            raise ValueError(f"{name} has only {number} lines")
        return "".join(shown)

    def write(self, name: str, content: str) -> str:
        if self.workspace.in_corpus(name):
            raise ValueError(f"{CORPUS}/ cannot be written to")
        path = self.workspace.inside(name)
        if path.exists() and not path.is_file():
            raise ValueError(f"{name} is not a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return f"wrote {len(content)} characters"

    def edit(self, name: str, old: str, new: str) -> str:
        """Replace a text that occurs once in a file."""
        path = _regular_file(self.workspace.inside(name), name)
        if path.stat().st_size > _LARGEST_EDITED:
            raise ValueError(f"{name} is too large to edit")
        text = path.read_text(encoding="utf-8", errors="replace")
        count = text.count(old) if old else 0
        if count != 1:
            raise ValueError(f"the text occurs {count} times in {name}; give one that occurs once")
        return self.write(name, text.replace(old, new))

    def list(self, name: str) -> str:
        """List all files in a folder. The corpus is listed only when it is asked for."""
        names: list[str] = []
        for found, _ in self._files(name, with_corpus=False):
            names.append(found)
            if len(names) > _NAMES:
                names[-1] = f"[more than {_NAMES} files: list a folder in it]"
                break
        if self.workspace.corpus is not None and name in ("", "."):
            names.append(f"{CORPUS}/ (read-only documents; list this folder to see them)")
        return "\n".join(names) or "(empty)"

    def search(self, text: str, name: str) -> str:
        """Find the lines of text files that contain a text, whatever its case."""
        wanted, matches, count = text.casefold(), list[str](), 0
        give_up = time.monotonic() + self.search_seconds
        for found, path in self._files(name, with_corpus=True):
            if time.monotonic() > give_up:
                matches.append(f"[… stopped after {self.search_seconds:g} s, at {found}]")
                break
            for number, line in _lines(path):
                if wanted in line.casefold():
                    count += 1
                    if count <= _MATCHES:
                        matches.append(f"{found}:{number}: {shorten(line.rstrip(), _LINE)}")
        if count > _MATCHES:
            matches.append(f"[… {count - _MATCHES} more]")
        return "\n".join(matches) or "no match"

    def _files(self, name: str, *, with_corpus: bool) -> Iterator[tuple[str, Path]]:
        """Yield regular files at or under a path, with the name the agent knows them by, in order.
        Symbolic links are not followed.
        """
        top = self.workspace.inside(name)
        if not top.exists():
            raise ValueError(f"there is no file or folder {name}")
        in_corpus = self.workspace.in_corpus(name)
        root = self.workspace.corpus if in_corpus else self.workspace.work
        assert root is not None  # in_corpus says so
        for path in _walk(top):
            relative = path.relative_to(root).as_posix()
            yield (f"{CORPUS}/{relative}" if in_corpus else relative), path
        if with_corpus and self.workspace.corpus is not None and name in ("", "."):
            yield from self._files(CORPUS, with_corpus=False)


def _regular_file(path: Path, name: str) -> Path:
    """Return the path of a regular file; raise ValueError for others: reading a pipe would block
    the whole run.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {name}")
    return path


def _walk(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
        return
    for parent, folders, files in os.walk(top):
        folders.sort()
        for name in sorted(files):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers. A very long line comes in parts, because a file
    without line ends may be larger than the memory.
    """
    number = 1
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(_LONGEST_LINE):
            yield number, line
            number += line.endswith("\n")


def _skip_rest(line: str, lines: object) -> int:
    """Read on to the end of a line that is longer than a page; return the number of characters."""
    skipped = 0
    while line and not line.endswith(("\n", "\r")):
        line = lines.readline(PAGE)  # type: ignore[attr-defined]
        skipped += len(line)
    return skipped


TOOLS_PROMPT = f"""{SKILL_INTRODUCTION}

You work in a folder of your own through tools; paths are relative to it. The skill's own files are
under skill/. When you are done, call finish with the final answer."""
CORPUS_PROMPT = f"The documents to work with are under {CORPUS}/; they are read-only."


def _tool(
    name: str,
    description: str,
    required: Mapping[str, JsonObject],
    optional: Mapping[str, JsonObject] | None = None,
) -> Tool:
    """Make a tool with these parameters, each a JSON schema."""
    schema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    return Tool(name, description, schema)


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


def _integer(description: str) -> JsonObject:
    return {"type": "integer", "description": description}


FILE_TOOLS = (
    _tool(
        "read",
        f"Read a text file, {PAGE} characters at a time.",
        {"path": _text("the file")},
        {"offset": _integer("the line to begin with; default 1 (optional)")},
    ),
    _tool(
        "write",
        "Write a text file, replacing what it held.",
        {"path": _text("the file"), "content": _text("all of its text")},
    ),
    _tool(
        "list",
        "List all files in a folder.",
        {},
        {"path": _text("the folder; default the whole workspace (optional)")},
    ),
    _tool(
        "search",
        "Find lines that contain a text, in any case.",
        {"text": _text("what to look for")},
        {"path": _text("file or folder (optional)")},
    ),
)
RUN_COMMAND = _tool(
    "run_command", "Run a shell command in the workspace.", {"command": _text("for sh -c")}
)
FINISH = _tool("finish", "Give the final answer and end.", {"answer": _text("the final answer")})
TOOLS = (*FILE_TOOLS, RUN_COMMAND, FINISH)
# Not for agents under test, which get `TOOLS`.
EDIT = _tool(
    "edit",
    "Replace a text that occurs once in a file.",
    {"path": _text("the file"), "old": _text("the text"), "new": _text("what takes its place")},
)
PYTHON = _tool(
    "python",
    "Run a short Python program in the folder; what it prints is the result.",
    {"code": _text("the program")},
)


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """What a command that a model runs may use."""

    timeout: float = 60.0  # seconds
    memory: int = 2 * 1024**3  # bytes
    network: bool = False


@dataclass(frozen=True)
class ToolsAgent(ModelAgent):
    """Ends at `finish`, at a message without tool calls, or at a limit, which a note names.

    The workspace stays for graders.
    """

    name: ClassVar[str] = "tools"

    prompt: str = TOOLS_PROMPT
    max_turns: int = 20
    command_timeout: float = 60.0  # seconds
    command_memory: int = 2 * 1024**3  # bytes
    corpus: Path | None = None
    network: bool = False
    sandbox: SandboxMode = "auto"

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        with workspace_for(item, self.corpus) as workspace:
            skill.save(workspace.work / "skill")
            isolation = choose_isolation(self.sandbox, "env.sandbox")
            limits = CommandLimits(self.command_timeout, self.command_memory, self.network)
            session = ToolSession(workspace, isolation, limits)
            messages = (
                *system_messages(self._template(), skill),
                *item_messages(item, context.instruction, inline_files=False),
            )
            answer, usage = await session.work(
                messages,
                lambda messages, turn: self.model.complete(
                    self.request(messages, context, turn, TOOLS)
                ),
                max_turns=self.max_turns,
                limit_note=self.token_limit_note,
            )
            workspace.leave_only_work()
        return Attempt(
            answer,
            tuple(session.steps),
            str(workspace.work),
            usage=usage,
            isolation=isolation.name if session.ran_commands else "",
        )

    def known_good(self, modules: Sequence[str]) -> KnownGood:
        """Return a command of the agent that must work: it imports these modules."""
        imports = "".join(f"import {module}\n" for module in modules)

        async def run(isolation: Isolation) -> str:
            with scratch_folder("known-good") as folder:
                command = shlex.join([sys.executable, "-c", imports])
                done = await run_untrusted(
                    ["/bin/sh", "-c", command],
                    cwd=folder,
                    timeout=self.command_timeout,
                    memory=self.command_memory,
                    network=self.network,
                    isolation=isolation,
                )
            if done.killed:
                return f"The command was ended at the {done.killed}."
            return "" if done.code == 0 else done.stderr or f"exit code {done.code}"

        isolation = choose_isolation(self.sandbox, "env.sandbox")
        return KnownGood("commands of the agent", isolation, run, tuple(modules))

    def _template(self) -> str:
        return self.prompt if self.corpus is None else f"{self.prompt}\n\n{CORPUS_PROMPT}"

    def describe(self) -> PartDescription:
        """Leave out what may differ between machines that give the same results."""
        settings = {name: value for name, value in super().describe().items() if name != "sandbox"}
        return {**settings, "corpus": self.corpus is not None}


@dataclass
class ToolSession:
    """The tools of one attempt, and what happened so far."""

    workspace: Workspace
    isolation: Isolation
    limits: CommandLimits = CommandLimits()
    tools: Sequence[Tool] = TOOLS
    steps: list[TrajectoryStep] = field(default_factory=list)
    answer: str | None = None
    ran_commands: bool = False

    def note(self, text: str) -> None:
        self.steps.append(TrajectoryStep("note", text, role="harness"))

    async def work(
        self,
        messages: tuple[Message, ...],
        ask: Callable[[tuple[Message, ...], int], Awaitable[Reply]],
        *,
        max_turns: int,
        limit_note: Callable[[Usage], TrajectoryStep | None],
    ) -> tuple[str, Usage]:
        """Let the model use the tools until it is done, and return its final answer with what its
        replies used.

        `ask` sends the messages of a turn. `limit_note` is a step that says why no further turn
        may start.
        """
        usage, text = Usage(), ""
        for turn in range(max_turns):
            if note := limit_note(usage):
                self.steps.append(note)
                break
            reply = await ask(messages, turn)
            usage += reply.usage
            if reply.text.strip():
                text = reply.text
                self.steps.append(TrajectoryStep("message", text))
            results = [await self.use(tool_call) for tool_call in reply.tool_calls]
            if not results or self.answer is not None:
                break
            message = Message("assistant", reply.text, tool_calls=reply.tool_calls)
            messages = (*messages, message, *results)
        else:
            self.note(f"Ended after {max_turns} rounds of tool calls.")
        return text if self.answer is None else self.answer, usage

    async def use(self, tool_call: ToolCall) -> Message:
        """Use a tool and return its result. The model is told of misuse and may correct itself."""
        self.steps.append(
            TrajectoryStep(
                "tool_call", head_and_tail(tool_call.arguments, STEP_TEXT), name=tool_call.name
            )
        )
        try:
            result = await self._act(tool_call.name, _arguments(tool_call, self.tools))
        except (OSError, ValueError) as error:
            result = f"error: {error}".replace(str(self.workspace.work), ".")
        # Names of files may be bytes that are no text.
        result = head_and_tail(without_surrogates(result), PAGE + 200)
        self.steps.append(
            TrajectoryStep(
                "tool_result", head_and_tail(result, STEP_TEXT), role="tool", name=tool_call.name
            )
        )
        return Message("tool", result, tool_call_id=tool_call.id)

    async def _act(self, name: str, arguments: Mapping[str, str]) -> str:
        """Use a tool of `TOOLS`. Files and the corpus may be large: they are read in a thread."""
        files = FileTools(self.workspace, self.limits.timeout)
        path = arguments.get("path") or "."
        match name:
            case "finish":
                self.answer = arguments["answer"]
                return "finished"
            case "run_command":
                return await self._run(["/bin/sh", "-c", arguments["command"]])
            case "python":
                # Sets are printed in the same order when the program runs again after a kill.
                code = arguments["code"]
                return await self._run(["env", "PYTHONHASHSEED=0", sys.executable, "-c", code])
            case "edit":
                return await asyncio.to_thread(files.edit, path, arguments["old"], arguments["new"])
            case "write":
                return files.write(path, arguments["content"])
            case "read":
                line = _line_number(arguments.get("offset"))
                return await asyncio.to_thread(files.read, path, line)
            case "search":
                return await asyncio.to_thread(files.search, arguments["text"], path)
            case "list":
                return await asyncio.to_thread(files.list, path)
        raise NotImplementedError(name)

    async def _run(self, argv: Sequence[str]) -> str:
        if len(argv[-1].encode()) > LONGEST_COMMAND:
            raise ValueError(
                f"the command is longer than {LONGEST_COMMAND:,} bytes; write a script, and run it"
            )
        timeout = self.limits.timeout
        corpus = self.workspace.corpus
        mounts = () if corpus is None else (Mount(corpus, self.workspace.work / CORPUS),)
        try:
            done = await run_untrusted(
                argv,
                cwd=self.workspace.work,
                timeout=timeout,
                memory=self.limits.memory,
                mounts=mounts,
                network=self.limits.network,
                isolation=self.isolation,
                temporary=self.workspace.temporary,
            )
            if done.code != 0:
                await refuse_forbidden(done.stderr, self.isolation)
        except SandboxNotStarted as error:
            raise AgentFailure(error.message, kind="sandbox", hint=error.hint) from error
        if not self.ran_commands:
            self.ran_commands = True
            self.note(f"Commands run isolated by: {done.isolation}.")
        ended = f"exit code {done.code}"
        if done.timed_out:
            ended = f"ended after {timeout:g} s"
        elif done.killed:
            ended = f"killed at the {done.killed}"
        return "\n".join(filter(None, [done.stdout, done.stderr, f"[{ended}]"]))


def _line_number(text: str | None) -> int:
    if not text:
        return 1
    if not text.isdigit():
        raise ValueError("offset is a line number, 1 or more")
    return max(1, int(text))


def _arguments(tool_call: ToolCall, tools: Sequence[Tool]) -> dict[str, str]:
    required = {tool.name: list(tool.parameters["required"]) for tool in tools}
    if tool_call.name not in required:
        raise ValueError(f"there is no tool {tool_call.name}; there are {', '.join(required)}")
    arguments = parse_json(tool_call.arguments or "{}")
    needed = required[tool_call.name]
    if not isinstance(arguments, dict) or not all(
        isinstance(arguments.get(name), str) for name in needed
    ):
        raise ValueError(f"{tool_call.name} needs an object with the strings {', '.join(needed)}")
    return {name: str(value) for name, value in arguments.items() if value is not None}
