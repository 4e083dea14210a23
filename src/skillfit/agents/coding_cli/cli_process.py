"""Running a described command line: its own HOME, only its own variables, everyone it started ended
with it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from skillfit.agents.agent import AgentFailure
from skillfit.agents.coding_cli.description import (
    Arguments,
    Description,
    FailureKind,
    arguments,
    fill,
    load_description,
)
from skillfit.agents.coding_cli.transcript import Reading, read_output
from skillfit.agents.workspace import Workspace
from skillfit.errors import InputError
from skillfit.models.failures import error_of
from skillfit.models.protocol import AuthFailed, ModelError, Usage
from skillfit.models.secrets import redact, remember_secret
from skillfit.models.spec import ModelSpec
from skillfit.sandbox.process import run_process

OWN_OPTIONS = ("file", "program", "login", "env", "trace", "mention_skill", "concurrency")
_LONGEST = 86_400.0  # seconds; the caller's limit ends the program long before, by cancelling
_MAX_OUTPUT = 64 << 20
# Words that only the program's own complaint would have: what an agent's tools say may stand on
# stderr too, with any number in it.
_STATUS = r"\b(status|code|error|http(/[\d.]+)?)\W{0,3}(status|code)?\W{0,3}"
_FAILURES: Mapping[FailureKind, tuple[str, ...]] = {
    "auth": (
        r"not logged in",
        r"please (run )?/?log ?in",
        r"(invalid|incorrect|missing) (x-)?api.?key",
        r"authentication.?(error|failed|required|failure)",
        r"(failed|unable|could not) to authenticate|not authenticated|no authentication",
        r"^\W*(error\W+)?unauthorized\b",
        rf"{_STATUS}401\b|\b401\W{{1,3}}unauthorized",
    ),
    "quota": (
        r"credit balance is too low",
        r"insufficient.quota",
        r"usage limit (reached|exceeded)|(hit|reached) your usage limit",
        r"(?<!disk )quota exceeded|exceeded your current quota",
    ),
    "rate_limit": (r"rate.?limit", rf"{_STATUS}429\b", r"too many requests"),
    "overloaded": (
        r"overloaded",
        rf"{_STATUS}(500|502|503|529)\b",
        r"(internal server|service unavailable)",
    ),
    "config": (
        r"\bmodel\b(?!/)[^\n]{0,60}(not found|does not exist|not supported|may not exist)",
        r"^(error: )?(unknown|unexpected) (option|argument)",
    ),
}


@dataclass(frozen=True)
class CommandLine:
    """A described program with a person's settings for it. Keys are read from the environment at
    the moment of the call.
    """

    description: Description
    spec: ModelSpec
    model: str = ""
    environ: Mapping[str, str] | None = field(default=None, repr=False)  # None: this process's

    def values(self, workspace: Workspace, skill: str = "", effort: str = "") -> dict[str, str]:
        """What the description's $variables mean in this call."""
        own = {
            name: str(self.spec.options.get(name, usual))
            for name, usual in self.description.options.items()
        }
        settings = {
            "effort": effort or self.spec.reasoning_effort or "",
            "base_url": self.spec.base_url or "",
            "model": self.model,
        }
        return {
            **own,
            **settings,
            "skill": skill,
            "prompt_file": str(workspace.root / "prompt.md"),
            "home": str(workspace.home),
        }

    async def run(
        self,
        workspace: Workspace,
        prompt: str,
        argv: tuple[str | Arguments, ...],
        *,
        skill: str = "",
        effort: str = "",
    ) -> Reading:
        """What the program did with `prompt` in the work folder; raises when it failed rather than
        answered.
        """
        values = self.values(workspace, skill, effort)
        self._prepare(workspace, values)
        stdin = prompt.encode()
        if self.description.prompt == "file":
            Path(values["prompt_file"]).write_bytes(stdin)
            stdin = b""
        command = [self.program(), *arguments(argv, values)]
        env = self.environment(workspace, values)
        done = await run_process(
            command,
            cwd=workspace.work,
            timeout=_LONGEST,
            env=env,
            stdin=stdin,
            max_output=_MAX_OUTPUT,
        )
        reading = read_output(self.description, redact(done.stdout), skill)
        if reading.error or done.code != 0 or reading.answer is None:
            # with steps in it, stdout holds what tools said: no word of the program about itself
            said = done.stderr.strip() or ("" if reading.steps else done.stdout)
            raise self._failure(done.code, reading, redact(said))
        return reading

    def program(self) -> str:
        name = str(self.spec.options.get("program", self.description.program))
        path = shutil.which(name, path=self._environ.get("PATH"))
        if path is None:
            raise InputError(
                f"{name} is not installed.",
                hint=f"{self.description.install} Or name it in options.program.".strip(),
            )
        return path

    def environment(self, workspace: Workspace, values: Mapping[str, str]) -> dict[str, str]:
        """Nothing of the parent's but PATH, the program's own variables, and what options.env
        names.
        """
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
        filled = {name: fill(text, values) for name, text in mine.env.items()}
        return env | {name: text for name, text in filled.items() if text is not None}

    @property
    def _environ(self) -> Mapping[str, str]:
        return os.environ if self.environ is None else self.environ

    def _prepare(self, workspace: Workspace, values: Mapping[str, str]) -> None:
        for name, text in self.description.files.items():
            if (content := fill(text, values)) is not None:
                path = workspace.home / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8")
        login = self.description.login if self.spec.options.get("login") else ()
        user = Path(self._environ.get("HOME") or Path.home())
        found = [name for name in login if (user / name).is_file()]
        if login and not found:
            raise AuthFailed(
                f"{self.description.name} has no login here (looked for ~/{', ~/'.join(login)}).",
                hint="Log in first.",
            )
        for name in found:
            for secret in re.findall(
                r"[\w.\-]{20,}", (user / name).read_text(encoding="utf-8", errors="replace")
            ):
                remember_secret(secret)
        for name in (*found, *(name for name in self.description.share if (user / name).exists())):
            link = workspace.home / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(user / name)

    def _failure(self, code: int | None, reading: Reading, said: str) -> ModelError:
        text = (reading.error or said.strip() or "it said nothing")[-1000:]
        message = f"{self.description.name} gave no answer (exit code {code}): {text}"
        usage = reading.usage if reading.usage.tokens else Usage()
        for kind, usual in _FAILURES.items():
            patterns = (*self.description.failures.get(kind, ()), *usual)
            if any(re.search(pattern, text, re.IGNORECASE | re.MULTILINE) for pattern in patterns):
                return error_of(kind)(
                    message,
                    usage=usage,
                    hint="Set its key or use options: {login: true}." if kind == "auth" else "",
                )
        return AgentFailure(message, kind="command", usage=usage)


def command_line(spec: ModelSpec, environ: Mapping[str, str] | None = None) -> CommandLine:
    """The command line a `cli/NAME[/MODEL]` spec means. Settings the program would never see are
    refused.
    """
    name, _, model = spec.id.removeprefix("cli/").partition("/")
    description = load_description(str(spec.options.get("file", name)))
    unknown = sorted(set(spec.options) - set(OWN_OPTIONS) - set(description.options))
    if unknown:
        known = ", ".join(sorted([*OWN_OPTIONS, *description.options]))
        raise InputError(
            f"cli/{description.name} has no option {', '.join(unknown)}.",
            hint=f"Known are {known}.",
        )
    ignored = {
        "temperature": spec.temperature is not None,
        "max_tokens": spec.max_tokens is not None,
        "thinking": spec.thinking != "default",
        "base_url": spec.base_url and not description.uses("base_url"),
        "reasoning_effort": spec.reasoning_effort and not description.uses("effort"),
        "model": model and not description.uses("model"),
        "key_env": spec.key_env and not description.keys,
    }
    if refused := [setting for setting, so in ignored.items() if so]:
        raise InputError(
            f"cli/{description.name} has no setting for {', '.join(refused)}.", hint="Leave it out."
        )
    return CommandLine(description, spec, model, environ)
