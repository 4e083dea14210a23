"""SWE-bench: resolve an issue of a code repository; hidden tests decide.

Rows: `instance_id`, `repo`, `base_commit`, `problem_statement`, `hints_text`, `patch`,
`test_patch`, `FAIL_TO_PASS`, `PASS_TO_PASS`. Without Docker a copy of the repository is needed: a
folder in the row's column `repository`, or a clone in the folder `repo_root`. An agent with tools
works in it, and the tests run in skillfit's sandbox with the packages of this environment. With
`docker: true` the agent works in the instance's published container, and the official harness
evaluates its patch.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from skillfit.benchmarks.benchmark import (
    Benchmark,
    HubFiles,
    data_root_of,
    find_in_data,
    optional,
    prepared,
    text,
)
from skillfit.benchmarks.dialogue import packaged_text
from skillfit.benchmarks.swebench.containers import ContainerRounds, require_docker
from skillfit.benchmarks.swebench.patch_grader import REPOSITORY, TEST_COMMAND, PatchGrader
from skillfit.errors import InputError
from skillfit.tasks.load import LoadContext, SourceItems, SourceReference, TaskSource
from skillfit.tasks.rows import Row

DATASETS = {
    "lite": "princeton-nlp/SWE-bench_Lite",
    "verified": "princeton-nlp/SWE-bench_Verified",
    "full": "princeton-nlp/SWE-bench",
}
BENCHMARK = Benchmark(
    name="swebench",
    title="SWE-bench Lite: issues of Python repositories",
    homepage="https://huggingface.co/datasets/princeton-nlp/SWE-bench_Lite",
    licence="MIT; the repositories have licences of their own",
    folder=Path(__file__).parent,
    downloads=(HubFiles(DATASETS["lite"], ("data/test-*.parquet",)),),
    row_id=lambda row: text(row, "instance_id"),
)


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

    def convert(row: Row) -> Mapping[str, Any]:
        parts = [text(row, "problem_statement")]
        if hints and optional(row, "hints_text"):
            parts.append(f"## Discussion\n\n{optional(row, 'hints_text')}")
        item = {
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
            prompt = packaged_text(__package__, "work_in_container.md")
            dataset = DATASETS.get(dataset_name, dataset_name)
            rounds = ContainerRounds(
                context.model, prompt, dataset, step_limit, timeout_per_instance
            )
            return SourceItems((), evaluator=rounds)
        grader = PatchGrader(test_command=test_command, timeout_per_instance=timeout_per_instance)
        return SourceItems((), grader=grader)

    env: dict[str, str | int] = {}
    if not docker:
        prompt = packaged_text(__package__, "work_in_repository.md")
        env = {"agent": "tools", "prompt": prompt, "max_turns": step_limit}
    return BENCHMARK.source(reference, convert, how=how, config={"env": env})


def _patch(row: Row, column: str) -> str:
    """A patch as it is: white space at its end belongs to it."""
    text(row, column)
    return str(row.values[column])


def _names(row: Row, column: str) -> list[str]:
    """Names of tests: a list, or its JSON text."""
    value = row.values.get(column)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise InputError(f"{row.where}: {column} is not a list: {error}.") from error
    return [str(name) for name in value or []]


def _belongs(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    return path.is_file() and not path.is_symlink() and not {".git", "__pycache__"} & set(parts)


def _repository(row: Row, root: Path | None) -> Path:
    """The files of the base state: the row's own folder, or made from a clone in `repo_root`."""
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
    """The files of a commit, exported once."""
    if target.is_dir():
        return target
    partial = target.with_name(f"{target.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    archive = ["git", "-C", str(clone), "archive", "--format=tar", commit]
    exported = subprocess.run(archive, capture_output=True, check=False)
    if exported.returncode != 0:
        raise InputError(
            f"{clone}: no commit {commit}: {exported.stderr.decode(errors='replace').strip()}.",
            hint="Fetch the whole history of the repository.",
        )
    with tarfile.open(fileobj=BytesIO(exported.stdout)) as files:
        files.extractall(partial, filter="data")
    partial.replace(target)
    return target
