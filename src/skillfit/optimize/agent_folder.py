"""The folder in which an agent works on a skill, and what it left there.

    skill/                  a copy of the skill with all pending edits, which the agent edits
    rollouts/index.csv      one row per training rollout
    rollouts/kinds.csv      rollouts and failures by kind of item
    rollouts/statistics.md  what was counted over all rollouts
    rollouts/0001-ID.md     one training rollout in full
    pairs/ID.md             an item with a success beside a failure
    edits.json              pending and past edits with their measured effects
    notes/                  what the agent kept from earlier rounds
    changes.md              what each change is for; the agent writes it

It holds training items only. What the agent left is read as untrusted data: only regular files, no
links, and no more than a fixed size.
"""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from skillfit.models.json_text import without_surrogates
from skillfit.optimize.context import Context, ItemAttempts, failure_reason, render_cases
from skillfit.optimize.material import Material, Seen, kinds_table, statistics
from skillfit.plain_text import head_and_tail, one_line, quantity
from skillfit.run.records import EditEffect
from skillfit.skill import Skill
from skillfit.skill.document import DOCUMENT_LIMIT, DOCUMENT_NAMES, folder_name
from skillfit.skill.parts import FILE_LIMIT, ONLY_BODY, Part, part_of

CHANGES = "changes.md"
NOTES = "notes"
_SKILL = "skill"
_ROLLOUT_TOKENS = 40_000  # of one rollout's file
_MOST_ROLLOUTS = 3_000  # that have a file: the latest ones
_MESSAGE = 300  # characters of a grader's message in the index
_LARGEST_TEXT = 200_000  # bytes of changes.md, and of one note
_MOST_NOTES = 40
_NOTES_ROOM = 400_000  # characters of all notes
_MOST_FILES = 10_000  # of the skill's folder that are compared

_COLUMNS = (
    *("item", "kind", "round", "result", "score", "turns", "tokens", "edits", "grader", "file"),
)


@dataclass(frozen=True, slots=True)
class AgentFolder:
    """What an agent is given to work on a skill."""

    skill: Skill
    files: Mapping[str, str]  # by relative path, besides those of the skill
    parts: tuple[Part, ...] = ONLY_BODY  # of the skill that the agent may change

    @classmethod
    def of(
        cls,
        skill: Skill,
        material: Material,
        context: Context,
        notes: Mapping[str, str],
        *,
        trace: bool = True,
        parts: tuple[Part, ...] = ONLY_BODY,
    ) -> AgentFolder:
        """Compose the folder of a round. Without `trace`, tool steps of rollouts are left out."""
        shown = _Shown(skill, context.pending_ids, trace)
        kinds = {seen.item.id: kind.name for kind in material.kinds for seen in kind.rollouts}
        rollouts = material.rollouts[-_MOST_ROLLOUTS:]
        names = [
            f"rollouts/{number:04d}-{_file_name(seen.item.id)}.md"
            for number, seen in enumerate(rollouts, start=1)
        ]
        files = {name: shown.text([seen]) for name, seen in zip(names, rollouts, strict=True)}
        rows = [
            _row(seen, kinds[seen.item.id], name)
            for name, seen in zip(names, rollouts, strict=True)
        ]
        files |= {f"pairs/{name}.md": shown.text(pair) for name, pair in _pairs(rollouts)}
        files |= {f"{NOTES}/{name}": text for name, text in notes.items()}
        files |= {
            "rollouts/index.csv": _csv([_COLUMNS, *rows]),
            "rollouts/kinds.csv": kinds_table(material).replace(" | ", ",") + "\n",
            "rollouts/statistics.md": statistics(material, context.pending_ids) + "\n",
            "edits.json": _edits_json(context.effects or context.pending),
            f"{NOTES}/README.md": "What you write in this folder is here in the next round.\n",
        }
        return cls(skill, files, parts)

    @property
    def document(self) -> str:
        """The path of the document that the agent edits."""
        name = self.skill.document_name
        return f"{_SKILL}/{name if name in DOCUMENT_NAMES else DOCUMENT_NAMES[0]}"

    def write(self, folder: Path) -> None:
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(without_surrogates(text), encoding="utf-8", newline="\n")
        (folder / "pairs").mkdir(exist_ok=True)
        self.skill.save(folder / _SKILL)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What an agent left in its folder."""

    document: str | None = None  # of the skill; None: it cannot be read
    files: Mapping[str, str] = field(default_factory=dict)  # of the skill that changed
    notes: Mapping[str, str] = field(default_factory=dict)
    changes: str = ""
    problems: tuple[str, ...] = ()  # what cannot be used


def read_left_behind(folder: Path, given: AgentFolder) -> LeftBehind:
    """Read what the agent changed. No process of the agent may be running any more."""
    problems = list[str]()
    name = Path(given.document).name
    document = _read_text(folder, given.document, DOCUMENT_LIMIT, problems)
    changes = _read_text(folder, CHANGES, _LARGEST_TEXT, problems, required=False)
    files, others = dict[str, str](), list[str]()
    for file in _changed_files(folder, given.skill, name):
        if part_of(file) not in given.parts:
            others.append(file)
        elif not os.path.lexists(folder / _SKILL / file):
            files[file] = ""
        elif (text := _read_text(folder, f"{_SKILL}/{file}", FILE_LIMIT, problems)) is not None:
            files[file] = text.replace("\r\n", "\n")
    if others:
        shown = ", ".join(others[:5])
        problems.append(
            f"{quantity(len(others), 'other file')} of the skill changed ({shown}); only "
            f"{', '.join(given.parts) if len(given.parts) > 1 else name} can be improved"
        )
    notes = _read_notes(folder, problems)
    return LeftBehind(document, files, notes, changes or "", tuple(problems))


@dataclass(frozen=True, slots=True)
class _Shown:
    """How rollouts are shown."""

    skill: Skill
    pending: frozenset[str]
    trace: bool

    def text(self, rollouts: Sequence[Seen]) -> str:
        arms = tuple(seen.arm for seen in rollouts if seen.arm is not None)
        labels = tuple("Succeeded" if seen.outcome.succeeded else "Failed" for seen in rollouts)
        case = ItemAttempts(
            rollouts[0].item,
            tuple(seen.outcome for seen in rollouts),
            labels,
            arms if len(arms) == len(rollouts) else (),
        )
        text = render_cases(
            [case],
            self.skill,
            _ROLLOUT_TOKENS * len(rollouts),
            trace=self.trace,
            pending=self.pending,
        )
        return text + "\n"


def _row(seen: Seen, kind: str, file: str) -> tuple[str, ...]:
    outcome, attempt = seen.outcome, seen.outcome.attempt
    turns = sum(step.role == "assistant" for step in attempt.steps) if attempt else 0
    edits = sorted(seen.arm.edits) if seen.arm is not None else []
    return (
        seen.item.id,
        kind,
        "newest" if seen.newest else "earlier",
        "succeeded" if outcome.succeeded else "failed",
        f"{outcome.hard or 0.0:g}",
        str(turns),
        str(outcome.usage.tokens),
        " ".join(edits),
        one_line(failure_reason(outcome), _MESSAGE),
        file,
    )


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _pairs(rollouts: Sequence[Seen]) -> Iterator[tuple[str, list[Seen]]]:
    """Yield the latest success and the latest failure of each item that has both."""
    latest: dict[str, dict[bool, Seen]] = {}
    for seen in rollouts:
        latest.setdefault(seen.item.id, {})[seen.outcome.succeeded] = seen
    mixed = [found for found in latest.values() if len(found) == 2]
    for number, found in enumerate(mixed, start=1):
        name = f"{number:04d}-{_file_name(found[True].item.id)}"
        yield name, [found[True], found[False]]


def _file_name(item: str) -> str:
    return folder_name(item)[:40] or "item"


def _edits_json(effects: Sequence[EditEffect]) -> str:
    rows = [
        {
            "id": effect.id,
            "status": effect.status,
            "op": effect.edit.op,
            **({"file": effect.edit.file} if effect.edit.file else {}),
            "target": effect.edit.target,
            "content": effect.edit.content,
            "purpose": effect.edit.label,
            "items": list(effect.items),
            "effect": effect.mean,
            "interval": None if effect.mean is None else [effect.low, effect.high],
            "rollouts": effect.rollouts,
            "kinds": {one.kind: one.mean for one in effect.kinds},
            "reason": effect.reason,
        }
        for effect in effects
    ]
    return json.dumps(rows, ensure_ascii=False, indent=1) + "\n"


def _read_text(
    folder: Path, name: str, limit: int, problems: list[str], *, required: bool = True
) -> str | None:
    """Read a regular file in the folder; return None, with the problem noted, for anything else."""
    path = folder
    try:
        for part in Path(name).parts:
            path = path / part
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                problems.append(f"{name} is a link")
                return None
        if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
            problems.append(f"{name} is not a regular file of its own")
            return None
        if info.st_size > limit:
            problems.append(f"{name} has more than {limit:,} bytes")
            return None
        return without_surrogates(path.read_bytes().decode("utf-8-sig", "replace"))
    except FileNotFoundError:
        if required:
            problems.append(f"{name} was removed")
    except OSError as error:
        problems.append(f"{name} cannot be read: {error.strerror}")
    return None


def _walk(top: Path) -> Iterator[Path]:
    """Yield entries that are no folder, in order. Links are not followed."""
    for parent, folders, files in os.walk(top):
        folders.sort()
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in sorted([*files, *linked]))


def _read_notes(folder: Path, problems: list[str]) -> dict[str, str]:
    notes = dict[str, str]()
    room = _NOTES_ROOM
    top = folder / NOTES
    if top.is_symlink():
        problems.append(f"{NOTES} is a link")
        return notes
    for path in _walk(top):
        name = path.relative_to(top).as_posix()
        if name == "README.md":
            continue
        if len(notes) == _MOST_NOTES or room <= 0:
            problems.append(f"more than {_MOST_NOTES} notes, or notes that are too long")
            break
        text = _read_text(folder, f"{NOTES}/{name}", _LARGEST_TEXT, problems)
        if text is not None:
            notes[without_surrogates(name)] = text = head_and_tail(text, room)
            room -= len(text)
    return notes


def _changed_files(folder: Path, given: Skill, document: str) -> list[str]:
    """Return the names of the skill's other files that were changed, added or removed."""
    top, found, names = folder / _SKILL, list[str](), set[str]()
    if top.is_symlink():
        return [_SKILL]
    for path in _walk(top):
        name = path.relative_to(top).as_posix()
        if name == document or name.startswith(".") or "__pycache__" in name:
            continue
        names.add(name)
        old, info = given.files.get(name), path.lstat()
        is_same = stat.S_ISREG(info.st_mode) and old is not None and info.st_size == len(old)
        if not is_same or path.read_bytes() != old:
            found.append(without_surrogates(name))
        if len(names) > _MOST_FILES:
            break
    return [*found, *(name for name in given.files if name not in names)]
