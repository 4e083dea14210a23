"""Run a described program: with a HOME of its own, only its own variables, and in a sandbox."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skillfit.agents.agent import CORPUS, AgentFailure, Workspace
from skillfit.agents.coding_cli.description import (
    Arguments,
    Description,
    arguments,
    fill,
    load_description,
)
from skillfit.agents.coding_cli.login import Login
from skillfit.agents.coding_cli.transcript import Reading, failure_of, read_output
from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import AuthFailed, Usage
from skillfit.models.provider import ModelSpec
from skillfit.models.secrets import redact, remember_secret
from skillfit.sandbox.installation import installation_of
from skillfit.sandbox.isolation import (
    NONE,
    Access,
    Isolation,
    Mount,
    SandboxMode,
    choose_isolation,
    run_sandboxed,
)
from skillfit.sandbox.process import ProcessResult, SandboxNotStarted

# Options of every program, besides those in its description.
OWN_OPTIONS = (
    "file",
    "program",
    "login",
    "env",
    "readable",
    "isolation",
    "trace",
    "mention_skill",
    "concurrency",
)
_PROGRAM_FOLDERS = ("bin", "sbin", "shims")  # folders of PATH that the program may look into
_LONGEST = 86_400.0  # seconds; the caller ends the program long before, by cancelling
_MAX_OUTPUT = 64 << 20
_MAX_USAGE_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One run of the program that gave an answer."""

    reading: Reading
    isolation: str


@dataclass(frozen=True)
class CommandLine:
    """A described program with the user's settings for it.

    Keys are read from the environment when the program is started.
    """

    description: Description
    spec: ModelSpec
    model: str = ""
    environ: Mapping[str, str] | None = field(default=None, repr=False)  # None: os.environ
    sandbox: SandboxMode = "auto"

    def check(self) -> None:
        """Raise what would keep every run from working: a missing program, key or isolation."""
        self.program()
        self._require_needed_programs()
        self._require_key()
        choose_isolation(self._sandbox)

    def program(self) -> str:
        """The path of the program."""
        name = str(self.spec.options.get("program", self.description.program))
        path = shutil.which(name, path=self._environ.get("PATH"))
        if path is None:
            raise InputError(
                f"{name} is not installed, or is not executable.",
                hint=f"{self.description.install} Or name it in options.program.".strip(),
            )
        return str(Path(path).absolute())

    async def run(
        self,
        workspace: Workspace,
        prompt: str,
        argv: tuple[str | Arguments, ...],
        *,
        skill: str = "",
        effort: str = "",
        max_usd: float | None = None,
    ) -> ProgramRun:
        """Run the program on `prompt` in the work folder. Raises when it failed to answer."""
        isolation = choose_isolation(self._sandbox)
        values = self.values(workspace, skill, effort, max_usd, isolation)
        login = self._login()
        self._prepare_home(workspace, values, login)
        stdin = prompt.encode()
        if self.description.prompt == "file":
            Path(values["prompt_file"]).write_bytes(stdin)
            stdin = b""
        try:
            done = await run_sandboxed(
                [self.program(), *arguments(argv, values)],
                cwd=workspace.work,
                timeout=_LONGEST,
                env=self.environment(workspace, values, login),
                access=self._access(workspace, login),
                stdin=stdin,
                max_output=_MAX_OUTPUT,
                isolation=isolation,
            )
        except SandboxNotStarted as error:
            raise AgentFailure(error.message, kind="sandbox", hint=error.hint) from error
        finally:
            if login is not None:
                login.save_back(workspace.home)
        return ProgramRun(self._read(done, skill, Path(values["usage_file"])), done.isolation)

    def values(
        self,
        workspace: Workspace,
        skill: str = "",
        effort: str = "",
        max_usd: float | None = None,
        isolation: Isolation = NONE,
    ) -> dict[str, str]:
        """The values of the description's $variables in one run."""
        mine = self.description
        defaults = mine.options | (mine.login_options if self._uses_login else {})
        defaults |= mine.landlock_options if "landlock" in isolation.name else {}
        own = {name: str(self.spec.options.get(name, value)) for name, value in defaults.items()}
        limits = [float(own["max_usd"])] if own.get("max_usd") else []
        limits += [] if max_usd is None else [max_usd]
        return {
            **own,
            "max_usd": f"{min(limits):.6f}" if limits else "",
            "effort": effort or self.spec.reasoning_effort or "",
            "base_url": self.spec.base_url or "",
            "model": self.model,
            "skill": skill,
            "prompt_file": str(workspace.root / "prompt.md"),
            "usage_file": str(workspace.root / "usage.json"),
            "home": str(workspace.home),
        }

    def environment(
        self, workspace: Workspace, values: Mapping[str, str], login: Login | None = None
    ) -> dict[str, str]:
        """The program's environment: of ours only PATH, its own variables, and `options.env`."""
        mine, parent = self.description, self._environ
        env = {
            "HOME": str(workspace.home),
            "TMPDIR": str(workspace.temporary),
            "LANG": "C.UTF-8",
            "PATH": os.defpath,
        }
        kept = ("PATH", *mine.keys, *mine.keep, *self.spec.options.get("env", ()))
        env |= {name: parent[name] for name in kept if name in parent}
        if self.spec.key_env:
            if not parent.get(self.spec.key_env):
                raise AuthFailed(
                    f"{self.spec.key_env} is not set.",
                    hint=f"Export the key {mine.name} should use under that name.",
                )
            env[mine.keys[0]] = parent[self.spec.key_env]
        for name in mine.keys:
            remember_secret(env.get(name, ""))
        for name, text in mine.env.items():
            if (value := fill(text, values)) is not None:
                env[name] = value
        return env | (login.environment() if login is not None else {})

    @property
    def _environ(self) -> Mapping[str, str]:
        return os.environ if self.environ is None else self.environ

    @property
    def _sandbox(self) -> SandboxMode:
        mode: SandboxMode = self.spec.options.get("isolation", self.sandbox)
        return mode

    @property
    def _uses_login(self) -> bool:
        return bool(self.spec.options.get("login"))

    @property
    def _user_home(self) -> Path:
        return Path(self._environ.get("HOME") or Path.home())

    def _login(self) -> Login | None:
        """The user's own login, when options.login asks for it."""
        return Login.find(self.description, self._user_home) if self._uses_login else None

    def _shared(self) -> dict[str, Path]:
        """Folders with tools of the program that exist in the user's HOME."""
        found = {name: self._user_home / name for name in self.description.share}
        return {name: path for name, path in found.items() if path.exists()}

    def _prepare_home(
        self, workspace: Workspace, values: Mapping[str, str], login: Login | None
    ) -> None:
        for name, text in self.description.files.items():
            if (content := fill(text, values)) is not None:
                path = workspace.home / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8")
        if login is not None:
            login.link_into(workspace.home)
        for name, path in self._shared().items():
            link = workspace.home / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)

    def _access(self, workspace: Workspace, login: Login | None) -> Access:
        """What the program may use: its workspace, its installation, its login, the network."""
        search_path = self._environ.get("PATH", "")
        on_path = [Path(folder) for folder in search_path.split(os.pathsep) if folder]
        named = self.spec.options.get("readable", ())
        readable = [
            *installation_of(Path(self.program()), search_path),
            *(folder for folder in on_path if folder.name in _PROGRAM_FOLDERS),
            *self._shared().values(),
            *(Path(name).expanduser() for name in ([named] if isinstance(named, str) else named)),
        ]
        corpus = workspace.corpus
        return Access(
            writable=(workspace.root, *(login.writable() if login is not None else ())),
            readable=tuple(path.absolute() for path in readable),
            empty=login.hidden() if login is not None else (),
            mounts=() if corpus is None else (Mount(corpus, workspace.work / CORPUS),),
            network=True,
        )

    def _read(self, done: ProcessResult, skill: str, usage_file: Path) -> Reading:
        reported = _written_by_program(usage_file)
        reading = read_output(self.description, redact(done.stdout), skill, reported)
        if not reading.error and done.code == 0 and reading.answer is not None:
            return reading
        # When there are steps, stdout holds what tools printed: nothing of the program itself.
        said = done.stderr.strip() or ("" if reading.steps else done.stdout)
        usage = reading.usage if reading.usage.tokens else Usage(calls=1, usd=reading.usage.usd)
        raise failure_of(
            self.description,
            done.code,
            reading.error or redact(said),
            usage,
            auth_hint=self._auth_hint(),
        )

    def _auth_hint(self) -> str:
        mine = self.description
        keys = " or ".join(mine.keys)
        if self._uses_login:
            return f"Start {mine.program} yourself and log in again."
        if mine.login:
            return f"Export {keys}, or set options: {{login: true}} to use your own login."
        return f"Export {keys}."

    def _require_needed_programs(self) -> None:
        shared = [str(path) for path in self._shared().values()]
        path = os.pathsep.join([self._environ.get("PATH", os.defpath), *shared])
        for name, install in self.description.needs.items():
            if shutil.which(name, path=path) is None:
                raise InputError(
                    f"{self.description.name} needs {name}, which is not installed.", hint=install
                )

    def _require_key(self) -> None:
        if self._uses_login:
            self._login()
            return
        mine, options = self.description, self.spec.options
        names = (self.spec.key_env,) if self.spec.key_env else mine.keys
        has_key = any(self._environ.get(name) for name in names if name)
        # Other variables may make it sign in in another way (a cloud account, for example).
        if mine.needs_key and not has_key and not options.get("env"):
            raise AuthFailed(f"No key for {self.spec.id}.", hint=self._auth_hint())


def _written_by_program(path: Path) -> str:
    """The text of a file in a folder that the program controls: it may have left there a link to
    somebody else's file, bytes that are no text, or more than fits into memory.
    """
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(_MAX_USAGE_FILE).decode(errors="replace")


def described_program(spec: ModelSpec) -> JsonObject:
    """The description of the program that a spec names, for the run's identity: editing the user's
    own description file makes another run. Where the program is installed does not matter.
    """
    name = spec.id.removeprefix("cli/").partition("/")[0]
    description = load_description(str(spec.options.get("file", name)))
    fields = description.model_dump(mode="json", exclude_defaults=True)
    return fields | {"program": Path(description.program).name}


def command_line(
    spec: ModelSpec, environ: Mapping[str, str] | None = None, sandbox: SandboxMode = "auto"
) -> CommandLine:
    """The command line for a `cli/NAME[/MODEL]` spec. Settings that the program would never see
    are refused.
    """
    name, _, model = spec.id.removeprefix("cli/").partition("/")
    description = load_description(str(spec.options.get("file", name)))
    unknown = sorted(set(spec.options) - set(OWN_OPTIONS) - set(description.options))
    if unknown:
        known = ", ".join(sorted([*OWN_OPTIONS, *description.options]))
        raise InputError(
            f"cli/{description.name} has no option {', '.join(unknown)}.",
            hint=f"Available: {known}.",
        )
    if spec.options.get("isolation", "auto") not in ("auto", "require", "off"):
        raise InputError(
            f"options.isolation of {spec.id} is {spec.options['isolation']!r}.",
            hint="It is auto, require or off.",
        )
    ignored = {
        "temperature": spec.temperature is not None,
        "max_tokens": spec.max_tokens is not None,
        "thinking": spec.thinking != "default",
        "base_url": spec.base_url and not description.uses("base_url"),
        "reasoning_effort": spec.reasoning_effort and not description.uses("effort"),
        "model": model and not description.uses("model"),
        "key_env": spec.key_env and not description.keys,
        "options.login": spec.options.get("login") and not description.login,
    }
    if refused := [setting for setting, given in ignored.items() if given]:
        raise InputError(
            f"cli/{description.name} does not support {', '.join(refused)}.", hint="Leave it out."
        )
    return CommandLine(description, spec, model, environ, sandbox)
