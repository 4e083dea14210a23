"""Check a skill against the Agent Skills format and against our own markers, with line numbers."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import yaml

from skillfit.errors import InputError
from skillfit.skill.document import DOCUMENT_NAMES, Skill, estimate_tokens, find_document
from skillfit.skill.regions import ORPHAN, PROTECTED, scan

FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
_LIMITS = {"name": 64, "description": 1024, "compatibility": 500}
_BODY_LINES, _BODY_TOKENS = 500, 5000
_LINK = re.compile(r"\]\(<?([^)\s>#]+)[^)]*\)")
_MENTION = re.compile(r"(?<![\w/.(-])((?:references|scripts|assets)/[\w./-]*\w)")


@dataclass(frozen=True, slots=True)
class Problem:
    path: str
    line: int
    severity: Literal["error", "warning"]
    message: str
    rule: str


def lint(path: str | Path) -> list[Problem]:
    """Problems of a skill folder, a SKILL.md or a markdown file, by line. The format's rules apply
    to the first two.
    """
    path = Path(path)
    try:
        document = find_document(path) if path.is_dir() else path
        skill = Skill.load(path)
    except InputError as error:
        return [Problem(str(path), 1, "error", str(error), "readable")]
    checks = [_markers(skill), _size(skill)]
    if document.name in DOCUMENT_NAMES:
        checks += [
            _frontmatter(skill, document.resolve().parent.name),
            _references(skill, document.parent),
        ]
    found = [finding for check in checks for finding in check]
    return [
        Problem(str(document), *finding)
        for finding in sorted(found, key=lambda finding: finding[0])
    ]


_Finding = tuple[int, Literal["error", "warning"], str, str]


def _frontmatter(skill: Skill, folder: str) -> Iterator[_Finding]:
    if skill.bom:
        yield (
            1,
            "error",
            "the file starts with a byte order mark; some agents then see no frontmatter",
            "bom",
        )
    if not skill.head:
        yield (
            1,
            "error",
            "a SKILL.md starts with frontmatter: a line `---`, `name:` and `description:`, a line `---`",
            "frontmatter",
        )
        return
    try:
        node = yaml.compose(skill.frontmatter_block, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 2 if error.problem_mark else 1
        yield (
            line,
            "error",
            f"the frontmatter is not YAML: {error.problem}; quote values that hold a colon",
            "yaml",
        )
        return
    except (yaml.YAMLError, RecursionError) as error:
        yield 1, "error", f"the frontmatter is not YAML: {str(error).splitlines()[0]}", "yaml"
        return
    if not isinstance(node, yaml.MappingNode):
        yield 1, "error", "the frontmatter is not a YAML mapping", "yaml"
        return
    yield from _strict_yaml(skill, node)
    lines = {
        key.value: key.start_mark.line + 2
        for key, _ in node.value
        if isinstance(key, yaml.ScalarNode)
    }
    for name in lines.keys() - set(FIELDS):
        yield (
            lines[name],
            "error",
            f"unknown field {name!r}; known are {', '.join(FIELDS)}",
            "field",
        )
    yield from _fields(skill, lines, folder)


def _strict_yaml(skill: Skill, node: yaml.MappingNode) -> Iterator[_Finding]:
    """What plain YAML allows and the format's own parser does not."""
    for name, count in Counter(
        key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)
    ).items():
        if count > 1:
            yield 1, "error", f"the field {name!r} stands {count} times", "yaml"
    for key, value in node.value:
        if isinstance(value, yaml.CollectionNode) and value.flow_style:
            yield (
                key.start_mark.line + 2,
                "error",
                f"{key.value!r} uses braces or brackets; write one entry a line",
                "yaml",
            )
    for number, line in enumerate(skill.frontmatter_block.split("\n"), 2):
        if "---" in line:
            yield number, "error", "`---` inside the frontmatter ends it for some agents", "yaml"


def _fields(skill: Skill, lines: dict[str, int], folder: str) -> Iterator[_Finding]:
    for name, limit in _LIMITS.items():
        value = skill.frontmatter.get(name)
        line = lines.get(name, 1)
        if value is None:
            if name != "compatibility":
                yield 1, "error", f"the frontmatter has no {name}", name
        elif not isinstance(value, str) or (not value.strip() and name != "compatibility"):
            yield line, "error", f"{name} must be a text", name
        elif len(value.strip() if name == "name" else value) > limit:
            yield line, "error", f"{name} has {len(value)} characters; {limit} are allowed", name
    given = skill.frontmatter.get("name")
    if not isinstance(given, str) or not given.strip():
        return
    name, line = unicodedata.normalize("NFKC", given.strip()), lines.get("name", 1)
    if not all(letter.isalnum() or letter == "-" for letter in name) or name != name.lower():
        yield (
            line,
            "error",
            f"name {name!r} may hold lower-case letters, digits and hyphens only",
            "name",
        )
    if name.strip("-") != name or "--" in name:
        yield (
            line,
            "error",
            f"name {name!r} may not start or end with a hyphen or hold two in a row",
            "name",
        )
    if name != unicodedata.normalize("NFKC", folder):
        yield line, "error", f"name {name!r} differs from the folder's name {folder!r}", "name"


def _markers(skill: Skill) -> Iterator[_Finding]:
    seen: set[str] = set()
    for region in scan(skill.body):
        line = _line(skill, region.start)
        if region.problem:
            yield line, "warning", region.problem, "marker"
        if region.kind in seen:
            yield (
                line,
                "warning",
                f"a second {region.kind} region; the next update makes them one",
                "marker",
            )
        seen |= {region.kind} - {PROTECTED, ORPHAN}


def _size(skill: Skill) -> Iterator[_Finding]:
    lines, tokens = len(skill.body.splitlines()), estimate_tokens(skill.body)
    first = _line(skill, 0)
    if not skill.body.strip():
        yield first, "warning", "the body is empty", "body"
    if lines > _BODY_LINES:
        yield (
            first,
            "warning",
            f"the body has {lines} lines; keep it under {_BODY_LINES}, with detail in references/",
            "body",
        )
    if tokens > _BODY_TOKENS:
        yield (
            first,
            "warning",
            f"the body has about {tokens} tokens; keep it under {_BODY_TOKENS}",
            "body",
        )


def _references(skill: Skill, folder: Path) -> Iterator[_Finding]:
    for match in [*_LINK.finditer(skill.body), *_MENTION.finditer(skill.body)]:
        name = unquote(match[1])
        if re.match(r"[a-zA-Z][\w+.-]*:|/", name) or (folder / name).exists():
            continue
        yield (
            _line(skill, match.start()),
            "warning",
            f"{name} is not in the skill's folder",
            "reference",
        )


def _line(skill: Skill, offset: int) -> int:
    return (skill.head + skill.body[:offset]).count("\n") + 1
