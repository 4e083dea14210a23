"""Check a skill against the Agent Skills format and against our own markers, with line numbers."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import yaml

from skillfit.errors import InputError
from skillfit.skill.document import (
    DOCUMENT_NAMES,
    DOCUMENT_SUFFIXES,
    Skill,
    estimate_tokens,
    find_document,
)
from skillfit.skill.regions import MARKER, ORPHAN, PROTECTED, SLOW_UPDATE, scan

FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
CLAUDE_FIELDS = {
    *("agent", "argument-hint", "arguments", "context", "disable-model-invocation", "effort"),
    *("hooks", "model", "paths", "shell", "user-invocable", "when_to_use"),
}
_LIMITS = {"name": 64, "description": 1024, "compatibility": 500}
_BODY_LINES, _BODY_TOKENS = 500, 5000
_LINK = re.compile(r"\]\(<?([^)\s>#]+)[^)]*\)")
_MENTION = re.compile(r"(?<![\w/.(-])((?:references|scripts|assets)/[\w./-]*\w)")
# Comments that ask for protection in words that skillfit does not know.
_CLAIMS_PROTECTION = re.compile(
    r"<!-+[^<>\n]*\b(?:(?:BEGIN|START|END)[ _:-]*PROTECT\w*|PROTECT\w*[ _:-]*(?:BEGIN|START|END)"
    r"|DO NOT (?:EDIT|CHANGE|MODIFY|TOUCH))\b[^<>\n]*-+>",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LintProblem:
    """One finding. Lines count from 1 in the whole document."""

    path: str
    line: int
    severity: Literal["error", "warning"]
    message: str
    rule: str


def lint(path: str | Path) -> list[LintProblem]:
    """Return the problems of a skill folder, a SKILL.md or another markdown file, sorted by line.

    The rules of the Agent Skills format apply to folders and to files called SKILL.md.
    """
    path = Path(path)
    try:
        document = find_document(path) if path.is_dir() else path
        skill = Skill.load(path)
    except InputError as error:
        return [LintProblem(str(path), 1, "error", str(error), "readable")]
    problems = document_problems(skill)
    if document.name in DOCUMENT_NAMES:
        problems += _format_problems(skill, document.resolve().parent.name)
        problems += _missing_files(skill, document.parent)
    located = [replace(problem, path=str(document)) for problem in problems]
    return sorted(located, key=lambda problem: problem.line)


def document_problems(skill: Skill) -> list[LintProblem]:
    """Return the problems that any markdown skill can have: unreadable frontmatter, markers, size.

    Errors here mean that skillfit cannot tell the frontmatter from the text to be trained.
    """
    name = skill.document_name
    found = [*_unreadable_frontmatter(skill), *_markers(skill), *_size(skill)]
    return sorted((replace(problem, path=name) for problem in found), key=lambda one: one.line)


def refuse_unreadable(skill: Skill, path: str = "") -> None:
    """Raise when the frontmatter cannot be separated from the body, or cannot be read."""
    for problem in document_problems(skill):
        if problem.severity == "error":
            file = path if path.endswith(DOCUMENT_SUFFIXES) else str(Path(path, problem.path))
            raise InputError(
                f"{file}:{problem.line}: {problem.message}.",
                hint="Fix the frontmatter; `skillfit lint` lists every problem of a skill.",
            )


def _error(line: int, message: str, rule: str) -> LintProblem:
    return LintProblem("", line, "error", message, rule)


def _warning(line: int, message: str, rule: str) -> LintProblem:
    return LintProblem("", line, "warning", message, rule)


def _unreadable_frontmatter(skill: Skill) -> Iterator[LintProblem]:
    if skill.unclosed_frontmatter:
        yield _error(
            1, "the frontmatter is never closed: its last line must be `---`", "frontmatter"
        )
    if not skill.head:
        return
    try:
        node = yaml.compose(skill.frontmatter_block, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 2 if error.problem_mark else 1
        message = f"the frontmatter is not YAML: {error.problem}; quote values that hold a colon"
        yield _error(line, message, "yaml")
        return
    except (yaml.YAMLError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        yield _error(1, f"the frontmatter is not YAML: {reason.splitlines()[0]}", "yaml")
        return
    if not isinstance(node, yaml.MappingNode):
        yield _error(1, "the frontmatter is not a YAML mapping", "yaml")


def _format_problems(skill: Skill, folder: str) -> Iterator[LintProblem]:
    """Yield the format's rules for the frontmatter of a SKILL.md."""
    if skill.bom:
        yield _error(
            1, "the file starts with a byte order mark; some agents then see no frontmatter", "bom"
        )
    if not skill.head and not skill.unclosed_frontmatter:
        message = "a SKILL.md starts with frontmatter: `---`, `name:`, `description:`, `---`"
        yield _error(1, message, "frontmatter")
    if not skill.head or any(_unreadable_frontmatter(skill)):
        return
    node = yaml.compose(skill.frontmatter_block, Loader=yaml.BaseLoader)
    assert isinstance(node, yaml.MappingNode)
    yield from _stricter_yaml(skill, node)
    lines = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            lines[key.value] = key.start_mark.line + 2
    for name in lines.keys() - set(FIELDS):
        if name in CLAUDE_FIELDS:
            message = f"{name!r} is a field of Claude Code, and not of the Agent Skills format"
            yield _warning(lines[name], message, "field")
        else:
            message = f"unknown field {name!r}; available: {', '.join(FIELDS)}"
            yield _error(lines[name], message, "field")
    yield from _fields(skill, lines)
    yield from _name(skill, lines.get("name", 1), folder)


def _stricter_yaml(skill: Skill, node: yaml.MappingNode) -> Iterator[LintProblem]:
    """Yield what YAML allows and the format's own parser does not."""
    names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
    for name, count in names.items():
        if count > 1:
            yield _error(1, f"the field {name!r} is given {count} times", "yaml")
    for key, value in node.value:
        flow = isinstance(value, yaml.CollectionNode) and value.flow_style
        if flow and key.value not in CLAUDE_FIELDS:
            message = f"{key.value!r} uses braces or brackets; write one entry per line"
            yield _error(key.start_mark.line + 2, message, "yaml")
    for number, line in enumerate(skill.frontmatter_block.split("\n"), 2):
        if "---" in line:
            yield _error(number, "`---` inside the frontmatter ends it for some agents", "yaml")


def _fields(skill: Skill, lines: dict[str, int]) -> Iterator[LintProblem]:
    """Check required fields, their types and their lengths."""
    for name, limit in _LIMITS.items():
        value = skill.frontmatter.get(name)
        line = lines.get(name, 1)
        optional = name == "compatibility"
        if value is None:
            if not optional:
                yield _error(1, f"the frontmatter has no {name}", name)
        elif not isinstance(value, str) or (not value.strip() and not optional):
            yield _error(line, f"{name} must be a text", name)
        elif len(value.strip() if name == "name" else value) > limit:
            message = f"{name} has {len(value)} characters; {limit} are allowed"
            yield _error(line, message, name)


def _name(skill: Skill, line: int, folder: str) -> Iterator[LintProblem]:
    given = skill.frontmatter.get("name")
    if not isinstance(given, str) or not given.strip():
        return
    name = unicodedata.normalize("NFKC", given.strip())
    if not all(letter.isalnum() or letter == "-" for letter in name) or name != name.lower():
        message = f"name {name!r} may contain only lower-case letters, digits and hyphens"
        yield _error(line, message, "name")
    if name.strip("-") != name or "--" in name:
        message = f"name {name!r} may not start or end with a hyphen or contain two in a row"
        yield _error(line, message, "name")
    if name != unicodedata.normalize("NFKC", folder):
        message = f"name {name!r} differs from the name of the folder, {folder!r}"
        yield _error(line, message, "name")


def _markers(skill: Skill) -> Iterator[LintProblem]:
    seen: set[str] = set()
    for region in scan(skill.body):
        line = _line(skill, region.start)
        if region.problem:
            yield _warning(line, region.problem, "marker")
        if region.kind in seen:
            change = "replace" if region.kind == SLOW_UPDATE else "merge"
            message = f"a second {region.kind} region; the next update will {change} them"
            yield _warning(line, message, "marker")
        if region.kind not in (PROTECTED, ORPHAN):
            seen.add(region.kind)
    for match in _CLAIMS_PROTECTION.finditer(skill.body):
        if not MARKER.match(match[0]):
            message = (
                f"the comment {match[0]!r} protects nothing; "
                "use <!-- PROTECTED_START --> and <!-- PROTECTED_END -->"
            )
            yield _warning(_line(skill, match.start()), message, "marker")


def _size(skill: Skill) -> Iterator[LintProblem]:
    lines, tokens = len(skill.body.splitlines()), estimate_tokens(skill.body)
    first = _line(skill, 0)
    if not skill.body.strip():
        yield _warning(first, "the body is empty", "body")
    if lines > _BODY_LINES:
        message = f"the body has {lines} lines; keep it under {_BODY_LINES}, detail in references/"
        yield _warning(first, message, "body")
    if tokens > _BODY_TOKENS:
        message = f"the body has about {tokens} tokens; keep it under {_BODY_TOKENS}"
        yield _warning(first, message, "body")


def _missing_files(skill: Skill, folder: Path) -> Iterator[LintProblem]:
    """Warn about links and file names in the body that point to nothing."""
    for match in [*_LINK.finditer(skill.body), *_MENTION.finditer(skill.body)]:
        name = unquote(match[1])
        is_address = re.match(r"[a-zA-Z][\w+.-]*:|/", name)
        if is_address or "\0" in name or (folder / name).exists():
            continue
        line = _line(skill, match.start())
        yield _warning(line, f"{name} is not in the skill's folder", "reference")


def _line(skill: Skill, offset: int) -> int:
    return (skill.head + skill.body[:offset]).count("\n") + 1
