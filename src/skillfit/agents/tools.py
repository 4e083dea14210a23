"""A loop of tool calls in a throw-away workspace: read, write, list, search, run a command, finish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from skillfit.agents.agent import AttemptContext
from skillfit.agents.chat import ModelAgent, item_messages, shorten
from skillfit.agents.workspace import Workspace, workspace_for
from skillfit.models.json_text import parse_json
from skillfit.models.protocol import Message, Tool, ToolCall, Usage
from skillfit.sandbox.isolation import run_untrusted
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Step

TOOLS_PROMPT = """Follow this skill.

{skill}

You work in a folder of your own through tools; paths are relative to it. The skill's own files are under skill/.
When you are done, call finish with the final answer."""
_MATCHES = 100
_MOST_BYTES = 1 << 20


def _tool(name: str, description: str, **parameters: str) -> Tool:
    """A tool whose parameters are all strings; those whose description ends with `(optional)` may
    be left out.
    """
    properties = {
        key: {"type": "string", "description": about} for key, about in parameters.items()
    }
    required = [key for key, about in parameters.items() if not about.endswith("(optional)")]
    return Tool(
        name,
        description,
        {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
    )


TOOLS = (
    _tool("read", "Read a text file.", path="the file"),
    _tool(
        "write",
        "Write a text file, replacing what it held.",
        path="the file",
        content="all of its text",
    ),
    _tool(
        "list",
        "List all files in a folder.",
        path="the folder; default the whole workspace (optional)",
    ),
    _tool(
        "search",
        "Find lines that contain a text, in any case.",
        text="what to look for",
        path="file or folder (optional)",
    ),
    _tool(
        "run_command", "Run a shell command in the workspace, without network.", command="for sh -c"
    ),
    _tool("finish", "Give the final answer and end.", answer="the final answer"),
)


@dataclass(frozen=True)
class ToolsAgent(ModelAgent):
    """Ends at `finish`, at a message without tool calls, or at a limit (said in a note). The
    workspace stays for graders.
    """

    name: ClassVar[str] = "tools"

    prompt: str = TOOLS_PROMPT
    max_turns: int = 20
    command_timeout: float = 60.0
    command_memory: int = 2 * 1024**3

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        with workspace_for(item) as workspace:
            skill.save(workspace.work / "skill")
            return await self._loop(_Session(self, workspace), skill, item, context)

    async def _loop(
        self, session: _Session, skill: Skill, item: Item, context: AttemptContext
    ) -> Attempt:
        messages = (
            self.system(skill),
            *item_messages(item, context.instruction, inline_files=False),
        )
        usage, text = Usage(), ""
        for turn in range(self.max_turns):
            if self.max_tokens and usage.tokens >= self.max_tokens:
                session.note(f"Ended at the limit of {self.max_tokens} tokens.")
                break
            reply = await self.reply(messages, context, turn, TOOLS)
            usage += reply.usage
            if reply.text.strip():
                text = reply.text
                session.steps.append(Step("message", text))
            results = [await session.use(tool_call) for tool_call in reply.tool_calls]
            if not results or session.answer is not None:
                break
            messages = (
                *messages,
                Message("assistant", reply.text, tool_calls=reply.tool_calls),
                *results,
            )
        else:
            session.note(f"Ended after {self.max_turns} rounds of tool calls.")
        answer = text if session.answer is None else session.answer
        return Attempt(answer, tuple(session.steps), str(session.workspace.work), usage=usage)


@dataclass
class _Session:
    """What one attempt's tools do and leave behind."""

    agent: ToolsAgent
    workspace: Workspace
    steps: list[Step] = field(default_factory=list)
    answer: str | None = None
    isolation: str = ""

    def note(self, text: str) -> None:
        self.steps.append(Step("note", text, role="harness"))

    async def use(self, tool_call: ToolCall) -> Message:
        """The tool's result. A misuse is told to the model, which may do better; it never ends the
        attempt.
        """
        self.steps.append(Step("tool_call", shorten(tool_call.arguments), name=tool_call.name))
        try:
            result = await self._act(tool_call.name, _arguments(tool_call))
        except (OSError, ValueError) as error:
            result = f"error: {error}".replace(str(self.workspace.work), ".")
        result = shorten(result, 20_000)
        self.steps.append(Step("tool_result", shorten(result), role="tool", name=tool_call.name))
        return Message("tool", result, tool_call_id=tool_call.id)

    async def _act(self, name: str, arguments: Mapping[str, str]) -> str:
        if name == "finish":
            self.answer = arguments["answer"]
            return "finished"
        if name == "run_command":
            return await self._run(arguments["command"])
        path = self.workspace.inside(arguments.get("path") or ".")
        if name == "read":
            return _text_of(path)
        if name == "write":
            if path.exists() and not path.is_file():
                raise ValueError(f"{arguments['path']} is not a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(arguments["content"], encoding="utf-8")
            return f"wrote {len(arguments['content'])} characters"
        found = self._files(path)
        if name == "list":
            return "\n".join(found) or "(empty)"
        return self._search(arguments["text"].casefold(), found)

    def _files(self, top: Path) -> list[str]:
        """Regular files at or under `top`; symbolic links are not followed."""
        paths = [top] if top.is_file() else sorted(top.rglob("*"))
        return [
            path.relative_to(self.workspace.work).as_posix()
            for path in paths
            if path.is_file() and not path.is_symlink()
        ]

    def _search(self, text: str, names: list[str]) -> str:
        matches: list[str] = []
        for name in names:
            lines = _text_of(self.workspace.work / name).splitlines()
            matches += [
                f"{name}:{number}: {line}"
                for number, line in enumerate(lines, 1)
                if text in line.casefold()
            ]
        more = f"\n[… {len(matches) - _MATCHES} more]" if len(matches) > _MATCHES else ""
        return "\n".join(matches[:_MATCHES]) + more or "no match"

    async def _run(self, command: str) -> str:
        timeout = self.agent.command_timeout
        argv = ["/bin/sh", "-c", command]
        done = await run_untrusted(
            argv, cwd=self.workspace.work, timeout=timeout, memory=self.agent.command_memory
        )
        if done.isolation != self.isolation:
            self.isolation = done.isolation
            self.note(f"Commands run isolated by: {done.isolation}.")
        ended = f"ended after {timeout:g} s" if done.timed_out else f"exit code {done.code}"
        return "\n".join(filter(None, [done.stdout, done.stderr, f"[{ended}]"]))


def _text_of(path: Path) -> str:
    """The beginning of a regular file: a pipe would hold up the whole run, and a huge file fill its
    memory.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")


def _arguments(tool_call: ToolCall) -> dict[str, str]:
    required = {tool.name: list(tool.parameters["required"]) for tool in TOOLS}
    if tool_call.name not in required:
        raise ValueError(f"there is no tool {tool_call.name}; there are {', '.join(required)}")
    arguments = parse_json(tool_call.arguments or "{}")
    needed = required[tool_call.name]
    if not isinstance(arguments, dict) or not all(
        isinstance(arguments.get(name), str) for name in needed
    ):
        raise ValueError(f"{tool_call.name} needs an object with the strings {', '.join(needed)}")
    return {name: str(value) for name, value in arguments.items() if value is not None}
