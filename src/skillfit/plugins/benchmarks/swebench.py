"""SWE-bench: resolve an issue of a code repository; hidden tests decide.

Rows: `instance_id`, `repo`, `base_commit`, `problem_statement`, `hints_text`, `patch`,
`test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`. Without Docker a copy of the repository is needed: a
folder in the row's column `repository`, or a clone in the folder `repo_root`. An agent with tools
works in it, and the tests run in skillfit's sandbox with the packages of this environment. With
`docker: true` the agent works in the instance's published container, and the official harness
evaluates its patch.

Without Docker a patch is graded so: apply it to a clean copy, add the hidden tests, run them in the
sandbox, and compare the results with those that resolve the issue. Results are read from pytest's
summary (`-rA`) as the swebench package reads them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import warnings
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import ClassVar, NotRequired

from skillfit.agents.agent import system_messages
from skillfit.atomic_write import whole_folder
from skillfit.errors import InputError, TaskFailure
from skillfit.extensions import PartDescription, SourceReference, TaskSource
from skillfit.models.client import with_retries
from skillfit.models.json_text import parse_json
from skillfit.models.limiter import paused
from skillfit.models.protocol import Model, Tool, ToolCall
from skillfit.models.wire import argument_object
from skillfit.plain_text import last_part
from skillfit.plugins.benchmarks.benchmark import (
    Benchmark,
    Dialogue,
    HubFiles,
    ItemRow,
    data_root_of,
    extract_tar,
    find_in_data,
    optional,
    packaged_text,
    prepared,
    required_model,
    text,
)
from skillfit.sandbox.known_good import KnownGood, missing_module, refuse_forbidden
from skillfit.sandbox.programs import (
    Isolation,
    ProcessResult,
    SandboxNotStarted,
    best_isolation,
    plain_environment,
    run_process,
    run_untrusted,
    scratch_folder,
)
from skillfit.skill import Skill
from skillfit.tasks.graders.built_in import BuiltIn
from skillfit.tasks.item import Attempt, Item, Score, ScoredAttempt
from skillfit.tasks.rows import Row
from skillfit.tasks.task import Evaluator, LoadContext, SourceItems

_DOCKER_SECONDS = 180.0
_COMMAND_SECONDS = 180.0  # for a command of the model
_REMOVE_SECONDS = 60.0  # for the removal of a container
_GRACE = 20.0  # seconds until a command that was told to end is killed, and docker with it
_ENDED = (124, 137)  # exit codes of `timeout`: at the limit; killed, also for lack of memory
_SHOWN = 10_000  # characters of a command's output
_HARNESS_SECONDS = 7200.0
# What the agent changed, with the files that it created.
_CONTAINER_DIFF = "cd /testbed && git add --all && git diff --cached --binary"
RUN_COMMAND = Tool(
    "run_command",
    "Run a shell command in the repository, /testbed.",
    {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
)


def require_docker() -> None:
    """Refuse to start where the harness could not evaluate anything."""
    if find_spec("swebench") is None:
        raise InputError(
            "swebench needs the package swebench to evaluate patches with Docker.",
            hint="pip install 'skillfit[swebench]', or grade without Docker: "
            "env.task_args: {docker: false}, and rows with a `repository` folder.",
        )
    program = shutil.which("docker")
    if program is None:
        raise InputError(
            "swebench with docker: true requires Docker, which was not found.",
            hint="Install Docker, or grade without it: env.task_args: {docker: false, repo_root: …}"
            " with a folder of repositories.",
        )


async def docker(*arguments: str, repeatable: bool = False) -> str:
    """Return what a docker command prints. Raises `TaskFailure` when it fails; one that is
    `repeatable` is retried first.
    """

    async def run() -> str:
        result = await _run_docker(*arguments)
        if result.code != 0:
            raise TaskFailure("docker", f"docker {arguments[0]}: {_last_output(result)}")
        return result.stdout

    return await (with_retries(run) if repeatable else run())


async def _run_docker(*arguments: str, timeout: float = _DOCKER_SECONDS) -> ProcessResult:
    return await run_process(
        [shutil.which("docker") or "docker", *arguments],
        cwd=Path("/"),
        timeout=timeout,
        env={**plain_environment(), **_docker_settings()},
    )


def _last_output(result: ProcessResult) -> str:
    return last_part((result.stderr or result.stdout).strip(), 500) or result.killed


def _docker_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("DOCKER_")}


@asynccontextmanager
async def container(image: str, remove_seconds: float = _REMOVE_SECONDS) -> AsyncIterator[str]:
    """Yield a running container of the instance's image; it is removed with the block."""
    run = ("run", "--detach", "--rm", "--network=none", image, "sleep", "infinity")
    name = (await docker(*run, repeatable=True)).strip()
    try:
        yield name
    finally:
        await asyncio.shield(_remove(name, remove_seconds))


async def _remove(container: str, seconds: float) -> None:
    """Remove a container, or warn that it is left. The time does not count as the rollout's, whose
    result is known by now.
    """
    try:
        with paused():
            result = await _run_docker("rm", "--force", container, timeout=seconds)
        problem = "" if result.code == 0 else _last_output(result)
    except SandboxNotStarted as error:
        problem = error.message
    if problem:
        warnings.warn(
            f"The container {container} could not be removed: {problem}. "
            f"Remove it with: docker rm --force {container}",
            stacklevel=1,
        )


def image_of(instance_id: str) -> str:
    """Return the name under which the harness publishes the image of an instance."""
    name = instance_id.lower().replace("__", "_1776_")
    return f"swebench/sweb.eval.x86_64.{name}:latest"


@dataclass(frozen=True)
class ContainerRounds(Evaluator):
    """The model runs commands in the container until it stops calling the tool."""

    needs_model: ClassVar[bool] = True

    model: Model | None
    prompt: str
    dataset: str
    step_limit: int
    timeout_per_instance: float
    command_seconds: float = _COMMAND_SECONDS
    remove_seconds: float = _REMOVE_SECONDS

    async def __call__(self, skill: Skill, item: Item, seed: int) -> ScoredAttempt:
        dialogue = Dialogue(required_model(self.model, "swebench"), item, seed)
        messages = (*system_messages(self.prompt, skill), *item.messages)
        async with container(image_of(item.id), self.remove_seconds) as name:
            use = partial(_run_command, name, self.command_seconds)
            await dialogue.use_tool(messages, RUN_COMMAND, use, self.step_limit)
            patch = await docker("exec", name, "bash", "-c", _CONTAINER_DIFF, repeatable=True)
        attempt = dialogue.attempt(patch)
        if not patch.strip():
            return ScoredAttempt(attempt, Score(0.0, feedback="Nothing was changed."))
        return ScoredAttempt(attempt, await self._evaluate(item, patch))

    async def _evaluate(self, item: Item, patch: str) -> Score:
        """Run the official harness on this one prediction; its report says whether it is
        resolved.
        """
        with scratch_folder("swebench") as folder:
            prediction = {
                "instance_id": item.id,
                "model_name_or_path": "skillfit",
                "model_patch": patch,
            }
            (folder / "predictions.json").write_text(json.dumps([prediction]), encoding="utf-8")
            arguments = ["--dataset_name", self.dataset, "--predictions_path", "predictions.json"]
            arguments += ["--instance_ids", item.id, "--run_id", "skillfit", "--max_workers", "1"]
            arguments += ["--timeout", str(int(self.timeout_per_instance))]
            result = await run_process(
                [sys.executable, "-m", "swebench.harness.run_evaluation", *arguments],
                cwd=folder,
                timeout=_HARNESS_SECONDS,
                env={**plain_environment(), **_docker_settings()},
            )
            report = folder / "skillfit.skillfit.json"
            if not report.is_file():
                raise TaskFailure("docker", f"the harness wrote no report: {_last_output(result)}")
            found = json.loads(report.read_bytes())
        if item.id in found.get("error_ids", []):
            # Not a failure of Docker: tests that never end are reported so too.
            raise TaskFailure("grader", f"the harness could not evaluate {item.id}.")
        resolved = item.id in found.get("resolved_ids", [])
        return Score(float(resolved), feedback="" if resolved else "The issue is not resolved.")

    def describe(self) -> PartDescription:
        return {
            "swebench": "docker",
            "dataset": self.dataset,
            "prompt": self.prompt,
            "step_limit": self.step_limit,
            "model": self.model.id if self.model else "",
        }


async def _run_command(container: str, seconds: float, call: ToolCall) -> str:
    """Return what the command of a tool call printed in the container. One that takes too long is
    ended, and the model is told so.
    """
    command = argument_object(call).get("command")
    if not isinstance(command, str):
        return 'error: call run_command with {"command": "…"}'
    shell = f"cd /testbed && ( {command}\n) 2>&1; echo [exit code $?]"
    limited = ("timeout", f"--kill-after={_GRACE / 2:g}", f"{seconds:g}", "bash", "-c", shell)
    result = await _run_docker(
        "exec", "--interactive", container, *limited, timeout=seconds + _GRACE
    )
    output = result.stdout
    if result.timed_out or result.code in _ENDED:
        output += f"\n[killed: it ran for {seconds:g} s or used too much memory]"
    elif result.code != 0:
        raise TaskFailure("docker", f"docker exec: {_last_output(result)}")
    return last_part(output, _SHOWN)


TEST_COMMAND = "python -m pytest -rA -p no:cacheprovider"
REPOSITORY = "repo"  # the folder of the repository in the agent's workspace
_DIFF = re.compile(r"```(?:diff|patch)[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_MEMORY = 4 << 30
_PATCHED = re.compile(r"^diff --git a/(.+?) b/(.+)$", re.MULTILINE)
_SKIPPED = shutil.ignore_patterns(".git", "__pycache__", "*.pyc", ".pytest_cache")
_SECONDS = 120.0
_PASSING = "test_known_good.py"
_LINE = re.compile(r"^(PASSED|FAILED|SKIPPED|ERROR|XFAIL)[ \t]+(\S+)", re.MULTILINE)
_COUNT = re.compile(r"^\[\d+\]$")  # SKIPPED [3] path:line: reason, which names no test


class PatchGrader(BuiltIn, name="patch"):
    """Hard and soft: whether the issue is resolved."""

    test_command: str = TEST_COMMAND
    timeout_per_instance: float = 600.0

    async def grade(self, item: Item, attempt: Attempt) -> Score:
        content = item.content()
        base = Path(str(content["repository"]))
        patch = attempt.answer if attempt.bare else await patch_of(attempt, base)
        if not patch.strip():
            return Score(0.0, feedback="Nothing was changed.")
        test_patch = str(content["test_patch"])
        with checkout(base) as repository:
            try:
                await repository.apply(patch)
            except PatchFailed as error:
                return Score(0.0, feedback=f"The patch does not apply: {error}")
            tests = files_in(test_patch)
            repository.restore(tests)
            try:
                await repository.apply(test_patch)
            except PatchFailed as error:
                raise TaskFailure("grader", f"the tests of item {item.id}: {error}") from error
            return await self._tested(item, repository.folder, tests, gold=attempt.bare)

    async def _run_tests(
        self, folder: Path, tests: list[str], isolation: Isolation
    ) -> ProcessResult:
        program, *arguments = shlex.split(self.test_command)
        python = sys.executable if program == "python" else program
        try:
            result = await run_untrusted(
                [python, *arguments, *(name for name in tests if name.endswith(".py"))],
                cwd=folder,
                timeout=self.timeout_per_instance,
                memory=_MEMORY,
                max_output=1 << 22,
                isolation=isolation,
            )
            if result.code != 0:
                await refuse_forbidden(f"{result.stdout}\n{result.stderr}", isolation)
        except SandboxNotStarted as error:
            raise TaskFailure("sandbox", error.message, hint=error.hint) from error
        return result

    async def _tested(self, item: Item, folder: Path, tests: list[str], *, gold: bool) -> Score:
        result = await self._run_tests(folder, tests, best_isolation())
        if result.killed:
            return Score(0.0, feedback=f"The tests were ended at the {result.killed}.")
        if "No module named pytest" in result.stderr:
            raise TaskFailure("grader", "pytest is not installed.", hint="pip install pytest")
        missing = missing_module(result.stdout) if gold else ""
        if result.code != 0 and missing:
            raise TaskFailure(
                "grader",
                f"The repository of {item.id} imports {missing}, which is not installed in "
                f"{sys.prefix}.",
                hint=f"pip install {missing.partition('.')[0]}",
            )
        statuses = parse_log(result.stdout)
        # A patch can print lines that look like results. A failed run must show a failure.
        failed = any(status in ("FAILED", "ERROR") for status in statuses.values())
        if result.code != 0 and not failed:
            statuses = {}
        content = item.content()
        found = suite_verdict(statuses, content["FAIL_TO_PASS"], content["PASS_TO_PASS"])
        if found.resolved:
            return Score(1.0)
        feedback = (
            f"{len(found.unresolved)} of {len(content['FAIL_TO_PASS'])} tests for the issue fail; "
            f"{len(found.broken)} tests that passed before fail now."
        )
        evidence = (*found.unresolved, *found.broken, last_part(result.stdout, 2000))
        return Score(0.0, feedback=feedback, evidence=evidence)

    def known_good(self, items: Sequence[Item]) -> KnownGood | None:
        """Return a repository with one test, which passes. Other programs than pytest may need
        more.
        """
        if "pytest" not in shlex.split(self.test_command):
            return None

        async def run(isolation: Isolation) -> str:
            with scratch_folder("known-good") as folder:
                (folder / _PASSING).write_text("def test_known_good():\n    pass\n")
                result = await self._run_tests(folder, [_PASSING], isolation)
            passed = parse_log(result.stdout).get(f"{_PASSING}::test_known_good") == "PASSED"
            return "" if passed else result.stderr or result.stdout or f"exit code {result.code}"

        return KnownGood(
            "tests of swebench", best_isolation(), run, modules=("pytest",), extra="swebench"
        )

    def problem(self, item: Item) -> str:
        content = item.content()
        if not content.get("FAIL_TO_PASS") or not content.get("test_patch"):
            return "has no FAIL_TO_PASS tests or no test_patch"
        return ""

    def patterns_of(self, item: Item) -> tuple[str, ...]:
        return tuple(item.content().get("FAIL_TO_PASS") or ())


async def patch_of(attempt: Attempt, base: Path) -> str:
    """Return what the agent changed in its copy of the repository, or the diff in its answer."""
    changed = Path(attempt.workspace) / REPOSITORY
    if attempt.workspace and changed.is_dir():
        return await changes(base, changed)
    return str((_DIFF.findall(attempt.answer) or [""])[-1])


class PatchFailed(Exception):
    """A patch that git cannot apply."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A copy of the folder `base`."""

    base: Path
    folder: Path

    async def apply(self, patch: str) -> None:
        """Apply a patch. Raises `PatchFailed` when it does not fit."""
        text = patch if patch.endswith("\n") else f"{patch}\n"
        result = await _git("apply", "--whitespace=nowarn", "-", cwd=self.folder, stdin=text)
        if result.code != 0:
            raise PatchFailed(last_part(result.stderr.strip(), 500))

    def restore(self, names: list[str]) -> None:
        """Bring files back to the base state; files that do not exist there are removed."""
        for name in names:
            here, there = self.folder / name, self.base / name
            if there.is_file():
                here.parent.mkdir(parents=True, exist_ok=True)
                here.unlink(missing_ok=True)
                shutil.copyfile(there, here)
            else:
                here.unlink(missing_ok=True)


@contextmanager
def checkout(base: Path) -> Iterator[Checkout]:
    """Yield a copy of the base state; it is removed with the block."""
    with scratch_folder("checkout") as scratch:
        shutil.copytree(base, scratch / "repo", symlinks=True, ignore=_SKIPPED)
        yield Checkout(base, scratch / "repo")


async def changes(base: Path, changed: Path) -> str:
    """Return what differs between the base state and an agent's copy, as a patch."""
    with scratch_folder("changes") as scratch:
        for name, folder in (("a", base), ("b", changed)):
            shutil.copytree(folder, scratch / name, symlinks=True, ignore=_SKIPPED)
        # The names of the two folders take the place of git's usual prefixes.
        arguments = ("diff", "--no-index", "--no-prefix", "--binary", "--no-renames", "a", "b")
        result = await _git(*arguments, cwd=scratch)
    if result.code not in (0, 1):
        raise TaskFailure("git", f"git diff failed: {last_part(result.stderr.strip(), 300)}")
    return result.stdout


async def _git(*arguments: str, cwd: Path, stdin: str = "") -> ProcessResult:
    program = shutil.which("git")
    if program is None:
        raise TaskFailure("git", "the program git is not installed.")
    env = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(cwd.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(cwd.parent),  # no repository above the folder matters
    }
    return await run_process(
        [program, *arguments],
        cwd=cwd,
        timeout=_SECONDS,
        env=env,
        stdin=stdin.encode(),
        max_output=1 << 24,
    )


def files_in(patch: str) -> list[str]:
    """Return the files that a patch changes, under their new names."""
    return [new for _, new in _PATCHED.findall(patch)]


def parse_log(log: str) -> dict[str, str]:
    """Map tests to their status; the last line about a test counts."""
    found = {}
    for status, name in _LINE.findall(log):
        if not (status == "SKIPPED" and _COUNT.match(name)):
            found[name] = status
    return found


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """Which of the tests that decide have not the result they must have."""

    unresolved: tuple[str, ...]  # should pass now, and do not
    broken: tuple[str, ...]  # passed before, and do not now

    @property
    def resolved(self) -> bool:
        return not self.unresolved and not self.broken


def suite_verdict(
    statuses: Mapping[str, str], fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]
) -> SuiteVerdict:
    """Judge the tests: those that should be fixed must pass. Tests that passed before may also be
    skipped.
    """
    return SuiteVerdict(
        tuple(name for name in fail_to_pass if _status(name, statuses) not in ("PASSED", "XFAIL")),
        tuple(
            name
            for name in pass_to_pass
            if _status(name, statuses) not in ("PASSED", "XFAIL", "SKIPPED")
        ),
    )


def _status(name: str, statuses: Mapping[str, str]) -> str | None:
    """Return the status of a test. Some published names are cut off inside their parameters; such a
    name stands for all tests that begin with it, if they agree.
    """
    if name in statuses or name.count("[") <= name.count("]"):
        return statuses.get(name)
    passing = ("PASSED", "XFAIL")
    matching = [status for test, status in statuses.items() if test.startswith(name)]
    agree = len({status in passing for status in matching}) == 1
    return matching[0] if agree else None


DATASETS = {
    "lite": "princeton-nlp/SWE-bench_Lite",
    "verified": "princeton-nlp/SWE-bench_Verified",
    "full": "princeton-nlp/SWE-bench",
}
SWEBENCH = Benchmark(
    name="swebench",
    title="SWE-bench Lite: issues of Python repositories",
    homepage="https://huggingface.co/datasets/princeton-nlp/SWE-bench_Lite",
    licence="MIT; the repositories have their own licences",
    folder=Path(__file__).with_suffix(""),
    downloads=(HubFiles(DATASETS["lite"], ("data/test-*.parquet",)),),
    row_id=lambda row: text(row, "instance_id"),
)


class _IssueRow(ItemRow):
    test_patch: str
    FAIL_TO_PASS: list[str]
    PASS_TO_PASS: list[str]
    repository: NotRequired[str]  # the folder with the files of the base state


def swebench(
    reference: SourceReference,
    *,
    docker: bool = False,
    dataset_name: str = "lite",
    repo_root: str = "",
    hints: bool = False,
    step_limit: int = 50,
    timeout_per_instance: float = 600.0,
    test_command: str = TEST_COMMAND,
) -> TaskSource:
    """`dataset_name`: lite, verified, full or the name of a data set, for the official harness.
    `hints` shows the discussion of the issue. `step_limit`: rounds of tool calls.
    """
    if docker:
        require_docker()
    root = data_root_of(reference, repo_root)

    def convert(row: Row) -> _IssueRow:
        parts = [text(row, "problem_statement")]
        if hints and optional(row, "hints_text"):
            parts.append(f"## Discussion\n\n{optional(row, 'hints_text')}")
        item: _IssueRow = {
            "id": text(row, "instance_id"),
            "type": optional(row, "repo"),
            "input": "\n\n".join(parts),
            "test_patch": _patch(row, "test_patch"),
            "FAIL_TO_PASS": _names(row, "FAIL_TO_PASS"),
            "PASS_TO_PASS": _names(row, "PASS_TO_PASS"),
            "answers": [_patch(row, "patch")],
        }
        if docker:
            return item
        folder = _repository(row, root)
        paths = sorted(path for path in folder.rglob("*") if _belongs(path, folder))
        files = {f"{REPOSITORY}/{path.relative_to(folder).as_posix()}": str(path) for path in paths}
        return {**item, "repository": str(folder), "files": files}

    def how(context: LoadContext) -> SourceItems:
        if docker:
            prompt = packaged_text(SWEBENCH.folder, "work_in_container.md")
            dataset = DATASETS.get(dataset_name, dataset_name)
            rounds = ContainerRounds(
                context.model, prompt, dataset, step_limit, timeout_per_instance
            )
            return SourceItems((), evaluator=rounds)
        grader = PatchGrader(test_command=test_command, timeout_per_instance=timeout_per_instance)
        return SourceItems((), grader=grader)

    env: dict[str, str | int] = {}
    if not docker:
        prompt = packaged_text(SWEBENCH.folder, "work_in_repository.md")
        env = {"agent": "tools", "prompt": prompt, "max_turns": step_limit}
    return SWEBENCH.source(reference, convert, how=how, config={"env": env})


def _patch(row: Row, column: str) -> str:
    """Return a patch as it is: white space at its end belongs to it."""
    text(row, column)
    return str(row.values[column])


def _names(row: Row, column: str) -> list[str]:
    """Return the names of tests, given as a list or its JSON text."""
    value = row.values.get(column)
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise InputError(f"{row.where}: {column} is not a list: {error}.") from error
    return [str(name) for name in value or []]


def _belongs(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    return path.is_file() and not path.is_symlink() and not {".git", "__pycache__"} & set(parts)


def _repository(row: Row, root: Path | None) -> Path:
    """Return the files of the base state: the row's own folder, or made from a clone in
    `repo_root`.
    """
    if named := optional(row, "repository"):
        found = find_in_data(row, (named,))
        if found is None or not found.is_dir():
            raise InputError(f"{row.where}: the repository {named} is not in {row.root}.")
        return found
    repo, commit = text(row, "repo"), text(row, "base_commit")
    name = repo.replace("/", "__")
    clone = find_in_data(row, (name, repo.rpartition("/")[2]), root) if root else None
    if clone is None:
        raise InputError(
            f"{row.where}: there is no copy of {repo}.",
            hint="Use docker: true in env.task_args, or repo_root with a folder of clones.",
        )
    return _exported(clone, commit, prepared("swebench") / "checkouts" / f"{name}-{commit[:12]}")


def _exported(clone: Path, commit: str, target: Path) -> Path:
    """Return the files of a commit, exported once."""
    if target.is_dir():
        return target
    archive = ["git", "-C", str(clone), "archive", "--format=tar", commit]
    exported = subprocess.run(archive, capture_output=True, check=False)
    if exported.returncode != 0:
        raise InputError(
            f"{clone}: no commit {commit}: {exported.stderr.decode(errors='replace').strip()}.",
            hint="Fetch the whole history of the repository.",
        )
    with (
        whole_folder(target) as folder,
        tarfile.open(fileobj=BytesIO(exported.stdout)) as files,
    ):
        extract_tar(files, folder)
    return target
