"""What the studio and the MCP server may do: reach files inside the folders they were given, and
run the `skillfit` command in a separate process, as a person would do it in a terminal. A run
that was started continues when the studio or the agent's session ends.

A person who writes a config file may let it run programs: a task command, a grader in Python, a
coding agent. A request of a browser or of an agent may not add such a thing, nor name a file
outside the folders. Settings are checked as the values that the command will read, and by default
refused: every text may be a path, and keys that are not in the schema are not passed on.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from skillfit.config.reading import parse_override, write_override
from skillfit.config.schema import describe_keys
from skillfit.errors import InputError
from skillfit.extensions import JsonValue
from skillfit.models.json_text import JsonObject, printed_json
from skillfit.models.registry import names_cli_program
from skillfit.plain_text import last_part, shorten
from skillfit.run.store import JOURNAL, in_use
from skillfit.skill.document import DOCUMENT_NAMES
from skillfit.tasks.rows import SUFFIXES

START_LOG = ".start.log"  # output of the process that was started, in the run directory
_PROGRAM = (sys.executable, "-m", "skillfit")
_OUTPUT_LENGTH = 4_000  # characters of a program's output in a message


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. `data` is the JSON line it printed."""

    command: str
    exit_code: int
    data: JsonObject = field(default_factory=dict)
    message: str = ""  # what it said on stderr

    @property
    def error(self) -> str:
        """The error in words; empty when there is none."""
        if "error" in self.data:
            return f"{self.data['error']} {self.data.get('hint', '')}".strip()
        if not self.data and self.exit_code:
            return self.message or f"The command ended with exit code {self.exit_code}."
        return ""

    def renamed(self, old: str, new: str) -> CommandResult:
        """Return the same about a file of another name."""
        error = {"error": str(self.data["error"]).replace(old, new)} if self.error else {}
        data = {**self.data, **error} if self.data else self.data
        message, command = self.message.replace(old, new), self.command.replace(old, new)
        return replace(self, command=command, data=data, message=message)


def as_typed(arguments: Sequence[str]) -> str:
    """Return the command as a user would type it."""
    return shlex.join(["skillfit", *arguments])


async def run_command(
    arguments: Sequence[str], *, folder: Path | None = None, timeout: float = 600
) -> CommandResult:
    """Run a command to its end with --json."""
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM,
        *arguments,
        "--json",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    )
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate()
    except BaseException as error:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        if isinstance(error, TimeoutError):
            message = f"`{as_typed(arguments)}` took longer than {timeout:.0f} s and was ended."
            raise InputError(message) from error
        raise
    return CommandResult(
        command=as_typed(arguments),
        exit_code=process.returncode or 0,
        data=_printed_object(out.decode("utf-8", "replace")),
        message=last_part(err.decode("utf-8", "replace").strip(), _OUTPUT_LENGTH),
    )


def _printed_object(output: str) -> JsonObject:
    """Return the JSON that a command printed, as an object; empty: it printed none."""
    try:
        value = printed_json(output)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {"result": value}


class Starter:
    """Starts runs, and remembers the processes so that none stays behind as a zombie."""

    def __init__(self) -> None:
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, run: Path, arguments: Sequence[str], *, folder: Path | None = None) -> None:
        """Start a process for the run in `run` that outlives this one."""
        if in_use(run) or self.is_alive(run):
            raise InputError(f"The run in {run} is running already.", hint="Stop it first.")
        run.mkdir(parents=True, exist_ok=True)
        (run / START_LOG).unlink(missing_ok=True)  # a link would lead to another file
        with (run / START_LOG).open("xb") as log:
            self._processes[run] = subprocess.Popen(
                [*_PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )

    def is_alive(self, run: Path) -> bool:
        """Return whether a process that was started here is alive; it may not have its lock yet."""
        process = self._processes.get(run)
        return process is not None and process.poll() is None

    def failure(self, run: Path, codes: Collection[int] | None = None) -> str:
        """Return the last output of a process that was started here and failed, with one of these
        exit codes if they are given; empty otherwise.
        """
        process = self._processes.get(run)
        code = process.poll() if process is not None else None
        if not code or (codes is not None and code not in codes):
            return ""
        return start_log(run)


def start_log(run: Path) -> str:
    """Return the end of what the process printed that was last started for a run, without the JSON
    line that repeats it for programs.
    """
    log = run / START_LOG
    if log.is_symlink() or not log.is_file():
        return ""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.strip().splitlines() if not line.startswith('{"')]
    return last_part("\n".join(lines), _OUTPUT_LENGTH)


_DEPTH = 4  # folders below a root that are searched for skills, tasks and configs
_MOST_LISTED = 200  # files listed of one kind
_SKIPPED = {"node_modules", "__pycache__", "site-packages", "venv"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
# A value that names code or a program: file.py:name, package.module:name, command: …, inspect: ….
_CODE_VALUE = re.compile(
    r"(?s)^\s*(command\s*:|inspect\s*([:?]|$)|.*\.py(:|\s*$)|[\w.]+:[A-Za-z_]\w*\s*$)"
)
_CODE_KEYS = re.compile(
    r"^(executor|env\.folder|model\.\w+\.(options|base_url|key_env)(\..*)?)$"
    r"|(^|\.)(_base_|command|program|script|function|module|python|shell)(\.|$)"
)
_OWN_AGENTS = ("chat", "tools")
_FILE_MODELS = ("local/", "scripted/")  # the rest of the id is the path of a file
_PROSE = ("env.prompt",)  # a text that may begin with a slash and is no path


class OutsideFolders(InputError):
    """A path leads out of the folders that were given."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders that may be read and written, resolved. The first one is where relative paths
    begin.
    """

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, *paths: Path) -> Folders:
        """Create folders of these paths without those that lie inside another one."""
        resolved = [Path(os.path.realpath(path)) for path in paths]
        kept: list[Path] = []
        for path in resolved:
            inside = any(path != other and path.is_relative_to(other) for other in resolved)
            if not inside and path not in kept:
                kept.append(path)
        return cls(tuple(kept))

    def resolve(self, path: str | Path) -> Path:
        """Return the real path, with links followed. Raises OutsideFolders when it lies in no
        folder.
        """
        given = os.fspath(path)
        try:
            real = Path(os.path.realpath(self.roots[0] / Path(given).expanduser()))
        except (ValueError, RuntimeError) as error:  # NUL, no Unicode; ~ of an unknown user
            raise OutsideFolders(f"{shorten(repr(given), 200)} is no path: {error}.") from error
        if not any(real == root or real.is_relative_to(root) for root in self.roots):
            named = ", ".join(str(root) for root in self.roots)
            raise OutsideFolders(
                f"{shorten(repr(given), 200)} is outside of the allowed folders ({named}).",
                hint="Give a path inside one of them, or start with another folder.",
            )
        return real

    def holds(self, path: str | Path) -> bool:
        try:
            self.resolve(path)
        except OutsideFolders:
            return False
        return True

    def shown(self, path: Path) -> str:
        """Write a path inside as people do: relative to the first folder where that is possible."""
        if path.is_relative_to(self.roots[0]):
            return path.relative_to(self.roots[0]).as_posix()
        return str(path)

    def skills(self) -> list[Path]:
        """Find folders with the document of a skill."""
        return [
            folder
            for folder, names in self._walk()
            if any(name in names for name in DOCUMENT_NAMES)
        ][:_MOST_LISTED]

    def tasks(self) -> list[Path]:
        """Find files that may hold items."""
        return [
            folder / name
            for folder, names in self._walk()
            for name in names
            if name.endswith(SUFFIXES)
        ][:_MOST_LISTED]

    def configs(self) -> list[Path]:
        """Find YAML files with the sections of a skillfit config."""
        return [
            folder / name
            for folder, names in self._walk()
            for name in names
            if name.endswith((".yaml", ".yml")) and _is_config(folder / name)
        ][:_MOST_LISTED]

    def _walk(self) -> Iterator[tuple[Path, list[str]]]:
        for root in self.roots:
            for folder, below, names in os.walk(root):
                path = Path(folder)
                if JOURNAL in names:  # skip the files of a run
                    below.clear()
                    continue
                depth = len(path.relative_to(root).parts)
                below[:] = sorted(
                    name
                    for name in below
                    if depth < _DEPTH and not name.startswith(".") and name not in _SKIPPED
                )
                yield path, sorted(names)


def check_run_name(name: str) -> str:
    """Return a name for a new run or config if it is allowed: letters, digits, dots, dashes, no
    folders.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{shorten(name, 80)!r} cannot be the name of a run.",
            hint="Use up to 80 letters, digits, dots, dashes and underscores.",
        )
    return name


def check_settings(folders: Folders, settings: Mapping[str, JsonValue]) -> None:
    """Refuse settings (dotted keys) that a request may not make: programs, code, endpoints, paths
    outside the folders, and words of SkillOpt, which mean settings under other names.
    """
    for key, value in _flat(settings):
        text = value if isinstance(value, str) else ""
        if not _is_setting(key):
            raise InputError(f"There is no setting {shorten(key, 80)!r}.")
        if _CODE_KEYS.search(key):
            raise _refused(key, "may only be set in a config file")
        if _CODE_VALUE.match(text):
            raise _refused(key, f"names a program or code ({shorten(text, 60)!r})")
        if key == "env.agent" and text not in _OWN_AGENTS:
            raise _refused(key, f"may be {' or '.join(_OWN_AGENTS)}; other agents are programs")
        if key == "env.sandbox" and text == "off":
            raise _refused(key, "would let programs leave the folders")
        if key.startswith("model.") and names_cli_program(text):
            raise _refused(key, "starts a coding agent")
        for path in _possible_paths(key, text):
            try:
                folders.resolve(path)
            except InputError as error:
                raise InputError(f"{key}: {error.message}", hint=error.hint) from error


def checked_overrides(folders: Folders, overrides: Sequence[str]) -> list[str]:
    """Check settings given as `key.sub=value` words of a command line, as `check_settings` does.
    Returns words that the command reads as the values that were checked.
    """
    checked: list[str] = []
    for word in overrides:
        if word.startswith("-"):
            raise InputError(
                f"{shorten(word, 80)!r} is not an override.", hint="Write key.sub=value."
            )
        key, value = parse_override(word)
        check_settings(folders, {key: value})
        checked.append(write_override(key, value))
    return checked


def _is_setting(key: str) -> bool:
    """Return whether the schema has this key, keys below it, or a key around it."""
    return any(
        key == known or known.startswith(f"{key}.") or key.startswith(f"{known}.")
        for known in _known_keys()
    )


@cache
def _known_keys() -> tuple[str, ...]:
    return tuple(described.key for described in describe_keys())


def _possible_paths(key: str, text: str) -> Iterator[str]:
    """Yield what the text of a setting may name as a path. A name that is none, such as `exact`,
    lies in the first folder if it is taken as one.
    """
    if not text or key in _PROSE:
        return
    yield text
    yield text.strip().removeprefix("file://")
    if key == "env.tasks":  # name:path?option=path
        yield from filter(None, re.split(r"[:?=&]", unquote(text)))
    if key.startswith("model.") and text.startswith(_FILE_MODELS):
        yield text.partition("/")[2]


def _refused(key: str, reason: str) -> InputError:
    return InputError(
        f"{key} {reason}, so it cannot be set here.",
        hint="Put it into the config file yourself, and use that file.",
    )


def _flat(settings: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yield dotted keys with their values, down to the entries of lists."""
    for name, item in settings.items():
        key = f"{prefix}{name}"
        if isinstance(item, Mapping):
            yield key, ""
            yield from _flat(item, f"{key}.")
        elif isinstance(item, list | tuple):
            for at, one in enumerate(item):
                yield from _flat({str(at): one}, f"{key}.")
        else:
            yield key, item


def has_config(folder: Path) -> bool:
    """Return whether a config file lies directly in the folder."""
    return any(_is_config(path) for path in sorted(folder.glob("*.y*ml")))


def _is_config(path: Path) -> bool:
    try:
        if path.stat().st_size > 200_000:
            return False
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return bool(re.search(r"(?m)^(env|model)\s*:", text))
