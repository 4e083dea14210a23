"""A coding-agent program, run with its own HOME, only its own variables, and in a sandbox.

It can be the agent (`CliAgent`): it discovers the skill, and the item is its prompt. It can also be
a plain model without tools (`CliProvider`), for example `model.optimizer: cli/claude`: the messages
become one prompt, and the program's answer is the reply. `ConfiguredProgram` runs it for both.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import yaml

from skillfit.agents.agent import (
    CORPUS,
    AgentFailure,
    AttemptContext,
    BaseAgent,
    Workspace,
    item_messages,
    workspace_for,
)
from skillfit.agents.cli_programs import (
    Arguments,
    ProgramDescription,
    ProgramOutput,
    arguments,
    failure_of,
    fill,
    load_description,
    read_output,
)
from skillfit.atomic_write import write_whole
from skillfit.errors import InputError
from skillfit.extensions import PartDescription
from skillfit.models.protocol import (
    AuthFailed,
    BadRequest,
    Message,
    ModelError,
    Reply,
    Request,
    Usage,
)
from skillfit.models.registry import MACHINE_OPTIONS, ModelSpec, Provider, Setup
from skillfit.models.secrets import redact, remember_secret
from skillfit.models.wire import schema_in_prompt
from skillfit.sandbox.file_view import Access, Mount, installation_of
from skillfit.sandbox.programs import (
    NO_ISOLATION,
    Isolation,
    ProcessResult,
    SandboxMode,
    SandboxNotStarted,
    choose_isolation,
    run_sandboxed,
)
from skillfit.skill import Skill
from skillfit.skill.document import folder_name
from skillfit.tasks.item import Attempt, Item, Reported

# Options of every program, besides those in its description.
COMMON_OPTIONS = (
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
_SLOTS = 4  # programs running at the same time, when one is used as a model
_PROGRAM_FOLDERS = ("bin", "sbin", "shims")  # folders of PATH that the program may look into
_TIME_LIMIT = 86_400.0  # seconds; the caller ends the program long before, by cancelling
_SHARE_OF_LIMIT = 0.95  # of a rollout's time; in the rest the program's output is read
_MAX_OUTPUT = 64 << 20
_MAX_USAGE_FILE = 1 << 20
_TOKEN = re.compile(r"[\w.\-]{20,}")


@dataclass(frozen=True)
class CliAgent(BaseAgent):
    """Runs the program once per attempt, in a fresh workspace with its own HOME.

    Its model calls happen inside the program, so the whole run is one journaled effect.
    """

    recorded: ClassVar[bool] = False

    command: ConfiguredProgram
    corpus: Path | None = None

    @property
    def reports(self) -> frozenset[Reported]:
        return self.command.description.reports

    @property
    def limits_itself(self) -> bool:
        """Whether the program accepts a limit in dollars that the user has not set already."""
        chosen = self.command.spec.options.get("max_usd")
        return self.command.description.uses("max_usd") and not chosen

    def slots(self, cores: int) -> int:
        """Return how many attempts may run at the same time: one per core, unless the user chose
        otherwise. Each is a program of some hundred megabytes.
        """
        return int(self.command.spec.options.get("concurrency", cores))

    async def attempt(self, skill: Skill, item: Item, context: AttemptContext) -> Attempt:
        program = self.command.description
        with workspace_for(item, self.corpus) as workspace:
            if not skill.absent:
                skill = install(skill, workspace, program.skills)
            done = await self.command.run(
                workspace,
                self._prompt(item, "" if skill.absent else skill.name, context),
                program.argv,
                skills=() if skill.absent else (skill,),
                max_usd=context.max_usd,
                limit=None if context.seconds is None else context.seconds * _SHARE_OF_LIMIT,
            )
            workspace.leave_only_work()
        output = done.output
        steps = output.steps
        if not self.command.spec.options.get("trace", True):
            steps = tuple(step for step in steps if step.kind == "message")[-1:]
        return Attempt(
            output.answer or "",
            steps,
            str(workspace.work),
            output.skills_read.get(skill.name),
            output.usage,
            isolation=done.isolation,
        )

    def _prompt(self, item: Item, name: str, context: AttemptContext) -> str:
        turns = item_messages(item, context.instruction, inline_files=False)
        text = turns[0].content
        if len(turns) > 1:
            text = "\n\n".join(f"[{turn.role}]\n{turn.content}" for turn in turns)
        parts = [text]
        if name and self.command.spec.options.get("mention_skill", True):
            parts.insert(0, f"Use the skill {name}.")
        if attached := [*(image.path.name for image in item.images), *item.files]:
            parts.append(f"Files in this folder: {', '.join(attached)}")
        if self.corpus is not None:
            parts.append(f"The documents to work with are in the folder {CORPUS} (read-only).")
        return "\n\n".join(parts)

    def describe(self) -> PartDescription:
        spec = self.command.spec
        options = {
            name: value for name, value in spec.options.items() if name not in MACHINE_OPTIONS
        }
        return {
            "agent": "cli",
            "description": described_program(spec),
            "id": spec.id,
            "base_url": spec.base_url,
            "effort": spec.reasoning_effort,
            "options": options,
        }


def install(skill: Skill, workspace: Workspace, folder: str) -> Skill:
    """Put the skill where the program discovers skills; returns it as it is there.

    Programs look for a file named SKILL.md, whatever the user's file is called. Front matter they
    would not accept (no description, a name that is no folder name) is completed. The body stays
    as it is.
    """
    name = folder_name(skill.name) or "skill-in-training"
    given = {
        key: value for key, value in skill.frontmatter.items() if key != "description" or value
    }
    frontmatter = {
        "description": "How to do the task at hand. Use it for every task here.",
        **given,
        "name": name,
    }
    if frontmatter != skill.frontmatter:
        head = yaml.safe_dump(frontmatter, sort_keys=False, allow_unicode=True)
        skill = replace(skill, head=f"---\n{head}---\n")
    skill = replace(skill, document_name="SKILL.md", bom=False)
    skill.save(workspace.work / folder / name)
    return skill


@dataclass
class CliProvider:
    """Each request is one run of the program in an empty folder with its own HOME."""

    command: ConfiguredProgram
    endpoint: str
    slots: int | None
    context_window: int | None = None  # known from the model's name, or not at all

    async def send(self, request: Request) -> Reply:
        if request.tools or any(message.images for message in request.messages):
            raise BadRequest(
                f"{self.endpoint} takes text only: no tools, no images.",
                hint="Use a provider with an API for this role.",
            )
        workspace = Workspace.create()
        try:
            done = await self.command.run(
                workspace,
                as_prompt(request),
                self.command.description.model_argv,
                effort=request.reasoning_effort or "",
            )
        finally:
            workspace.remove()
        return Reply(
            done.output.answer or "",
            usage=done.output.usage,
            model=self.command.model or self.command.description.name,
        )

    async def close(self) -> None:
        return None


def as_prompt(request: Request) -> str:
    """Join the messages into one text, with the required form of the reply at the end."""
    return "\n\n".join(_as_text(message) for message in schema_in_prompt(request).messages)


def _as_text(message: Message) -> str:
    if message.role == "assistant":
        return f"[assistant said]\n{message.content}"
    return message.content


def make_provider(setup: Setup) -> Provider:
    """Make the provider of `cli/…` models. Raises InputError where the program is only an agent."""
    command = configured_program(setup.spec, setup.environ)
    if not command.description.model_argv:
        raise InputError(
            f"{setup.spec.id} cannot serve as a model.", hint="Its description has no model_argv."
        )
    command.check()
    slots = int(setup.spec.options.get("concurrency", _SLOTS))
    return CliProvider(command, f"cli/{command.description.name}", slots)


def _description_of(spec: ModelSpec) -> ProgramDescription:
    name = spec.id.removeprefix("cli/").partition("/")[0]
    return load_description(str(spec.options.get("file", name)))


def described_program(spec: ModelSpec) -> PartDescription:
    """Return the description of the program that a spec names, for the run's identity: editing the
    user's own description file makes another run. Where the program is installed does not matter.
    """
    description = _description_of(spec)
    fields = description.model_dump(mode="json", exclude_defaults=True)
    return fields | {"program": Path(description.program).name}


def configured_program(
    spec: ModelSpec, environ: Mapping[str, str] | None = None, sandbox: SandboxMode = "auto"
) -> ConfiguredProgram:
    """Return the program of a `cli/NAME[/MODEL]` spec. Refuse settings that it would never see."""
    description, model = _description_of(spec), spec.id.removeprefix("cli/").partition("/")[2]
    unknown = sorted(set(spec.options) - set(COMMON_OPTIONS) - set(description.options))
    if unknown:
        known = ", ".join(sorted([*COMMON_OPTIONS, *description.options]))
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
    return ConfiguredProgram(description, spec, model, environ, sandbox)


def program_isolation(spec: ModelSpec, sandbox: SandboxMode) -> Isolation:
    """Choose the isolation of a command-line program: `options.isolation`, else `env.sandbox`."""
    if "isolation" in spec.options:
        return choose_isolation(spec.options["isolation"], f"options.isolation of {spec.id}")
    return choose_isolation(sandbox, "env.sandbox")


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """One run of the program that gave an answer, or reached a limit of the caller."""

    output: ProgramOutput
    isolation: str
    timed_out: bool = False
    reached_max_usd: bool = False


@dataclass(frozen=True)
class ConfiguredProgram:
    """A described program with the user's settings for it.

    Keys are read from the environment when the program is started.
    """

    description: ProgramDescription
    spec: ModelSpec
    model: str = ""
    environ: Mapping[str, str] | None = field(default=None, repr=False)  # None: os.environ
    sandbox: SandboxMode = "auto"

    def check(self) -> None:
        """Raise what would keep every run from working: a missing program, key or isolation."""
        self.program()
        self._require_needed_programs()
        self._require_key()
        self._isolation()

    def program(self) -> str:
        """Return the path of the program. Raises InputError when it is not installed."""
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
        skills: Sequence[Skill] = (),
        effort: str = "",
        max_usd: float | None = None,
        timeout: float | None = None,
        limit: float | None = None,
        may_reach_max_usd: bool = False,
    ) -> ProgramRun:
        """Run the program on `prompt` in the work folder. Raises when it failed to answer. At
        `timeout` seconds it is ended, which is no failure; at `limit` seconds it has failed. It has
        failed at its limit in dollars too, unless it may reach that.
        """
        isolation = self._isolation()
        name = skills[0].name if skills else ""
        values = self.values(workspace, name, effort, max_usd, isolation)
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
                timeout=min(each for each in (timeout, limit, _TIME_LIMIT) if each is not None),
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
        ended = timeout is not None and done.timed_out
        reported = _written_by_program(Path(values["usage_file"]))
        output = read_output(self.description, redact(done.stdout), skills, reported)
        failure = None if ended else self._failure(done, output)
        if failure is not None and not (may_reach_max_usd and failure.kind == "limit"):
            raise failure
        return ProgramRun(output, done.isolation, ended, failure is not None)

    def values(
        self,
        workspace: Workspace,
        skill: str = "",
        effort: str = "",
        max_usd: float | None = None,
        isolation: Isolation = NO_ISOLATION,
    ) -> dict[str, str]:
        """Return the values of the description's $variables in one run."""
        description = self.description
        defaults = description.options | (description.login_options if self._uses_login else {})
        defaults |= description.landlock_options if "landlock" in isolation.name else {}
        given = {name: self.spec.options.get(name, value) for name, value in defaults.items()}
        own = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in given.items()
        }
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
            "open_files": "" if isolation.hides_files else "yes",
        }

    def environment(
        self, workspace: Workspace, values: Mapping[str, str], login: Login | None = None
    ) -> dict[str, str]:
        """Return the program's environment: of ours only PATH, its variables and `options.env`."""
        description, parent = self.description, self._environ
        env = {
            "HOME": str(workspace.home),
            "TMPDIR": str(workspace.temporary),
            "LANG": "C.UTF-8",
            "PATH": os.defpath,
        }
        kept = ("PATH", *description.keys, *description.keep, *self.spec.options.get("env", ()))
        env |= {name: parent[name] for name in kept if name in parent}
        if self.spec.key_env:
            if not parent.get(self.spec.key_env):
                raise AuthFailed(
                    f"{self.spec.key_env} is not set.",
                    hint=f"Export the key {description.name} should use under that name.",
                )
            env[description.keys[0]] = parent[self.spec.key_env]
        for name in description.keys:
            remember_secret(env.get(name, ""))
        for name, text in description.env.items():
            if (value := fill(text, values)) is not None:
                env[name] = value
        return env | (login.environment() if login is not None else {})

    @property
    def _environ(self) -> Mapping[str, str]:
        return os.environ if self.environ is None else self.environ

    def _isolation(self) -> Isolation:
        return program_isolation(self.spec, self.sandbox)

    @property
    def _uses_login(self) -> bool:
        return bool(self.spec.options.get("login"))

    @property
    def _user_home(self) -> Path:
        return Path(self._environ.get("HOME") or Path.home())

    def _login(self) -> Login | None:
        """Find the user's own login, when options.login asks for it."""
        return Login.find(self.description, self._user_home) if self._uses_login else None

    def _shared(self) -> dict[str, Path]:
        """Return the folders with tools of the program that exist in the user's HOME."""
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
        """Return what the program may use: workspace, installation, login, network."""
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
            temporary=workspace.temporary,
        )

    def _failure(self, done: ProcessResult, output: ProgramOutput) -> ModelError | None:
        """Return why the program gave no answer; None if it gave one."""
        if not output.error and done.code == 0 and output.answer is not None:
            return None
        # When there are steps, stdout holds what tools printed: nothing of the program itself.
        printed = done.stderr.strip() or ("" if output.steps else done.stdout)
        usage = output.usage if output.usage.tokens else Usage(calls=1, usd=output.usage.usd)
        return failure_of(
            self.description,
            done.code,
            output.error or redact(printed),
            usage,
            auth_hint=self._auth_hint(),
            timed_out=done.timed_out,
        )

    def _auth_hint(self) -> str:
        description = self.description
        keys = " or ".join(description.keys)
        if self._uses_login:
            return f"Start {description.program} yourself and log in again."
        if description.login:
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
        description, options = self.description, self.spec.options
        names = (self.spec.key_env,) if self.spec.key_env else description.keys
        has_key = any(self._environ.get(name) for name in names if name)
        # Other variables may make it sign in in another way (a cloud account, for example).
        if description.needs_key and not has_key and not options.get("env"):
            raise AuthFailed(f"No key for {self.spec.id}.", hint=self._auth_hint())


def _written_by_program(path: Path) -> str:
    """Read a file in a folder that the program controls: it may have left there a link to somebody
    else's file, bytes that are no text, or more than fits into memory.
    """
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(_MAX_USAGE_FILE).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Login:
    """The credential files of the user that one rollout may use.

    A login holds a refresh token, which works once: whoever uses it gets a new one and must save
    it, or the user is logged out. So the programs of parallel rollouts must share one place, in
    which the user's own sessions find the new token too.

    - A program that can be pointed at a credentials folder (`login_folder`) uses the user's own
      folder directly, with its own locks. Under bubblewrap everything else in that folder is shown
      as empty.
    - For other programs each credential file is a symbolic link in their HOME. If a program
      replaces the link by a file, the new content is saved to the user's file afterwards.
    """

    user_home: Path
    names: tuple[str, ...]  # relative to HOME
    folder_variable: str
    contents: tuple[bytes, ...]  # of the files, at the start

    @classmethod
    def find(cls, description: ProgramDescription, user_home: Path) -> Login:
        """Find the login on this machine. Its tokens are hidden in all output from now on."""
        names = tuple(name for name in description.login if (user_home / name).is_file())
        if not names:
            places = ", ".join(f"~/{name}" for name in description.login)
            raise AuthFailed(
                f"{description.name} has no login here (looked for {places}).",
                hint=f"Start {description.program} once and log in, or export "
                f"{' or '.join(description.keys)}.",
            )
        contents = tuple((user_home / name).read_bytes() for name in names)
        for content in contents:
            for token in _TOKEN.findall(content.decode(errors="replace")):
                remember_secret(token)
        return cls(user_home, names, description.login_folder, contents)

    @property
    def folder(self) -> Path | None:
        """The user's credentials folder, for a program that uses it directly."""
        return (self.user_home / self.names[0]).parent if self.folder_variable else None

    def environment(self) -> dict[str, str]:
        return {self.folder_variable: str(self.folder)} if self.folder is not None else {}

    def writable(self) -> tuple[Path, ...]:
        """Return what the program must be able to write to."""
        if self.folder is not None:
            return (self.folder,)
        return tuple(self.user_home / name for name in self.names)

    def hidden(self) -> tuple[Path, ...]:
        """Return other entries of the user's folder, which a program in a rollout must not see."""
        if self.folder is None:
            return ()
        own = {Path(name).name for name in self.names}
        return tuple(entry for entry in sorted(self.folder.iterdir()) if not _belongs(entry, own))

    def link_into(self, home: Path) -> None:
        if self.folder is not None:
            return
        for name in self.names:
            link = home / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(self.user_home / name)

    def save_back(self, home: Path) -> None:
        """Save credentials that the program renewed in its own HOME to the user's file, unless
        that file has changed meanwhile.
        """
        if self.folder is not None:
            return
        for name, before in zip(self.names, self.contents, strict=True):
            renewed, users = home / name, self.user_home / name
            if renewed.is_symlink() or not renewed.is_file():
                continue
            if users.is_file() and users.read_bytes() == before:
                write_whole(users, renewed.read_bytes(), users.stat().st_mode & 0o777)


def _belongs(entry: Path, credentials: set[str]) -> bool:
    """Return whether an entry is a credential file, a part of writing one, or a lock."""
    name = entry.name
    return name.endswith(".lock") or any(name.startswith(own) for own in credentials)
