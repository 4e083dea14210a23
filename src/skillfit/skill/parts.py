"""The parts of a skill folder, and the file that each edit names.

An edit names its part in `Edit.file`: nothing for the body of the document, `description` for the
description in the frontmatter, or the relative path of a file in `references/` or `scripts/`. Other
files of the folder, such as assets and licenses, are no part and never change.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import yaml

from skillfit.atomic_write import write_whole
from skillfit.errors import InputError
from skillfit.skill.document import (
    DOCUMENT_NAMES,
    Skill,
    check_relative,
    estimate_tokens,
    find_document,
    folder_name,
    left_out,
)

Part = Literal["body", "description", "references", "scripts"]
PARTS: tuple[Part, ...] = get_args(Part)
ONLY_BODY: tuple[Part, ...] = ("body",)
BODY = ""
DESCRIPTION = "description"
DESCRIPTION_OF = f"#{DESCRIPTION}"  # the end of `env.skill` where the description alone is trained
_FOLDERS: tuple[Part, ...] = ("references", "scripts")

DESCRIPTION_LIMIT = 1024  # characters, as the Agent Skills format has it
FILE_LIMIT = 200_000  # characters of one file that edits may write
_LONGEST_NAME = 100  # bytes of a file or folder, so that temporary names beside it fit too
_LONGEST_PATH = 300  # bytes
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_BULLET = re.compile(r"^[ \t]*[-*+][ \t]+", re.MULTILINE)


def part_of(file: str) -> Part | None:
    """Return the part that a file belongs to; None if edits may not change it."""
    if file == BODY:
        return "body"
    if file == DESCRIPTION:
        return "description"
    try:
        path = PurePosixPath(check_relative(file))
    except InputError:
        return None
    in_plain_place = (
        str(path) == file
        and len(file.encode("utf-8", "replace")) <= _LONGEST_PATH
        and all(map(_is_plain_name, path.parts))
    )
    for folder in _FOLDERS:
        if in_plain_place and len(path.parts) > 1 and path.parts[0] == folder:
            return folder
    return None


def _is_plain_name(name: str) -> bool:
    """Return whether a file or folder may have a name: one that `Skill.load` reads, that every disk
    takes, and that shows all of its characters.
    """
    return (
        not left_out(name)
        and name == name.strip()
        and len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
        and all(unicodedata.category(character)[0] != "C" for character in name)
    )


def clash(skill: Skill, file: str) -> str:
    """Return the file of a skill in whose place, or under which, another file cannot stand; also
    one whose name differs in case alone, which some disks take for the same. Empty: there is none.
    """
    wanted = _comparable(file)
    for other in skill.files:
        known = _comparable(other)
        same = known == wanted and other != file
        if same or known.startswith(f"{wanted}/") or wanted.startswith(f"{known}/"):
            return other
    return ""


def _comparable(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def named_file(name: str) -> str:
    """Return the file that a model's reply names; several names stand for the body."""
    name = name.strip().removeprefix("./")
    return BODY if name == "body" or name in DOCUMENT_NAMES else name


def part_text(skill: Skill, file: str) -> str | None:
    """Return the text of a part with LF line ends; None if there is no such file, or no text."""
    if file == BODY:
        return skill.unix_body
    if file == DESCRIPTION:
        value = skill.frontmatter.get("description")
        return value.strip() if isinstance(value, str) else None
    try:
        text = skill.files[file].decode()
    except (KeyError, UnicodeDecodeError):
        return None
    return text.replace("\r\n", "\n") if _newline(text) == "\r\n" else text


def with_part(skill: Skill, file: str, text: str) -> Skill:
    """Return the skill with another text in one part. A file without text is removed.

    Raises `InputError` if the description cannot be written into the frontmatter, and if the file
    is no part of a skill.
    """
    if file == BODY:
        return skill.with_body(text)
    if file == DESCRIPTION:
        return _with_description(skill, " ".join(text.split()))
    if part_of(file) is None:
        raise InputError(
            f"{file!r} is no file that edits may change.",
            hint="Edits change the body, the description, and files in references/ and scripts/.",
        )
    files, modes = dict(skill.files), dict(skill.modes)
    present = files.pop(file, b"").decode("utf-8", "replace")
    if not text.strip():
        modes.pop(file, None)
        return replace(skill, files=files, modes=modes)
    files[file] = text.replace("\n", _newline(present)).encode("utf-8", "replace")
    if not present and text.startswith("#!"):
        modes[file] = 0o755
    return replace(skill, files=files, modes=modes)


def part_texts(skill: Skill, parts: Collection[Part] = _FOLDERS) -> dict[str, str]:
    """Return the texts of the files in references/ and scripts/ that edits of these parts may
    change, by path. Files that are no text are left out.
    """
    found = {name: part_text(skill, name) for name in sorted(skill.files) if part_of(name) in parts}
    return {name: text for name, text in found.items() if text is not None}


def changed_parts(skill: Skill, initial: Skill) -> dict[str, str]:
    """Return the texts of the files in references/ and scripts/ that differ from those of another
    skill; empty for a file that is gone.
    """
    before, after = part_texts(initial), part_texts(skill)
    names = sorted(before.keys() | after.keys())
    return {name: after.get(name, "") for name in names if before.get(name) != after.get(name)}


def with_parts(skill: Skill, texts: Mapping[str, str]) -> Skill:
    """Return the skill with the texts of files in references/ and scripts/, as `changed_parts`
    returns them.
    """
    for file, text in texts.items():
        skill = with_part(skill, file, text)
    return skill


def with_trained(skill: Skill, trained: Skill, parts: Collection[Part]) -> Skill:
    """Return a skill with the document of another, and with its files that edits of these parts may
    change. Other files stay.
    """
    present, wanted = part_texts(skill, parts), part_texts(trained, parts)
    differ = {name for name, _ in present.items() ^ wanted.items()}
    changed = {name: wanted.get(name, "") for name in sorted(differ)}
    return with_parts(skill.with_document(trained), changed)


def on_demand_tokens(skill: Skill) -> int:
    """Return the estimated tokens of references and scripts, which an agent reads when it needs
    them. `Skill.tokens` are those of the document, which it reads for each task.
    """
    return sum(map(estimate_tokens, part_texts(skill).values()))


def over_limit(skill: Skill, file: str, present: str) -> str:
    """Say why the text of a part is too long; empty if it is not, or shorter than the present."""
    text = part_text(skill, file) or ""
    limit = {BODY: None, DESCRIPTION: DESCRIPTION_LIMIT}.get(file, FILE_LIMIT)
    if limit is None or len(text) <= max(limit, len(present)):
        return ""
    return f"{file} would have {len(text):,} characters; {limit:,} are allowed"


def trained_path(named: str) -> Path:
    """Return the skill that `env.skill` names, as a whole or with `#description` at its end."""
    return Path(named.removesuffix(DESCRIPTION_OF))


def load_trained(named: str) -> Skill:
    """Load the document that is trained: a skill, or with `#description` at the end of its path
    the description in its frontmatter, one sentence a line.
    """
    path = trained_path(named)
    skill = Skill.load(path)
    if not named.endswith(DESCRIPTION_OF):
        return skill
    text = part_text(skill, DESCRIPTION)
    if not text:
        raise InputError(
            f"The skill {path} has no description, so no program can discover it.",
            hint="Write one into its frontmatter: what the skill does, and when to use it.",
        )
    lines = _SENTENCE_END.sub("\n", " ".join(text.split()))
    return Skill.from_text(f"{lines}\n", name=f"{skill.name}{DESCRIPTION_OF}")


def save_trained(named: str, trained: Skill) -> None:
    """Write a trained document to where `env.skill` says that it belongs."""
    path = trained_path(named)
    document = find_document(path) if path.is_dir() else path
    if named.endswith(DESCRIPTION_OF):
        trained = with_part(Skill.load(document), DESCRIPTION, as_description(trained))
    save_changed(document, trained, tuple(changed_parts(trained, Skill.load(document))))


def save_changed(document: Path, skill: Skill, files: Collection[str]) -> None:
    """Write the document of a skill and these files of its folder; a file that the skill does not
    have is removed.
    """
    folder = document.parent.resolve()  # the document may be a link to elsewhere
    for name in files:
        checked_place(folder, name)
    for name in files:
        write_file(folder, name, skill.files.get(name), skill.modes.get(name))
    skill.save(document)


def write_file(folder: Path, name: str, data: bytes | None, mode: int | None = None) -> None:
    """Write a file of a skill's folder; None removes it, and folders that are then empty."""
    path = checked_place(folder, name)
    if data is not None:
        return write_whole(path, data, mode)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"Cannot remove {path}: {error.strerror}.", hint="Check its folder's permissions."
        ) from error
    with suppress(OSError):  # a folder that is not empty, or that must stay, stays
        for parent in path.parents:
            if parent == folder:
                break
            parent.rmdir()
    return None


def as_description(trained: Skill) -> str:
    """Return the text of a trained description as one paragraph; list markers go."""
    return " ".join(_BULLET.sub("", trained.unix_body).split())


def checked_place(folder: Path, name: str) -> Path:
    """Return the path of a file of a skill's folder. Raises `InputError` for a link or a folder in
    its place.
    """
    path = folder / check_relative(name)
    if path.is_symlink() or not path.parent.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{path} is a symbolic link.", hint="Put a file in its place.")
    if path.is_dir():
        raise InputError(f"{path} is a folder.", hint="Put a file in its place.")
    return path


def _newline(text: str) -> str:
    """Return CRLF if every line of the text ends with it."""
    crlf = text.count("\r\n")
    return "\r\n" if crlf and crlf == text.count("\n") == text.count("\r") else "\n"


def _with_description(skill: Skill, text: str) -> Skill:
    block = skill.frontmatter_block
    if not block:
        name = folder_name(skill.name) or "skill"
        lines = ("---", f"name: {name}", f"description: {_scalar(text)}", "---", "", "")
        return replace(skill, head=skill.newline.join(lines), body=skill.body.lstrip("\r\n"))
    start = skill.head.index(block)
    changed = _with_value(block, skill.frontmatter, text, skill.newline)
    head = skill.head[:start] + changed + skill.head[start + len(block) :]
    result = replace(skill, head=head)
    if dict(result.frontmatter) != {**skill.frontmatter, "description": text}:
        raise InputError(
            "The frontmatter holds the description in a form that cannot be replaced.",
            hint='Write it as one value in one place: `description: "…"`.',
        )
    return result


def _with_value(block: str, values: Mapping[str, Any], text: str, newline: str) -> str:
    """Return the YAML with another description; the other lines stay as they are."""
    if "description" not in values:
        return f"{block}description: {_scalar(text)}{newline}"
    node = yaml.compose(block, Loader=yaml.BaseLoader)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "description":
            start, end = key.end_mark.index, value.end_mark.index
            ending = newline if block[start:end].endswith("\n") else ""
            return f"{block[:start]}: {_scalar(text)}{ending}{block[end:]}"
    return block


def _scalar(text: str) -> str:
    """Return a text as a value in YAML, without quotes if it reads the same."""
    line = f"key: {text}\n"
    with suppress(yaml.YAMLError, ValueError):
        loaded = yaml.load(line, Loader=yaml.BaseLoader), yaml.safe_load(line)
        if text and loaded == ({"key": text},) * 2:
            return text
    return json.dumps(text, ensure_ascii=False)
