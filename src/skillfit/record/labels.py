"""Tags of a run, and whether it is archived: what a person keeps in RUN/labels.json, for lists."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from skillfit.atomic_write import write_whole
from skillfit.errors import InputError
from skillfit.plain_text import shorten, visible
from skillfit.run.store import JOURNAL

LABELS = "labels.json"
_LONGEST = 40  # characters of a tag
_MOST = 20  # tags of a run


@dataclass(frozen=True, slots=True)
class Labels:
    tags: tuple[str, ...] = ()  # sorted
    archived: bool = False  # lists leave the run out, unless they are asked for all


_ADAPTER = TypeAdapter(Labels)


def read_labels(run: Path) -> Labels:
    try:
        return _ADAPTER.validate_json((run / LABELS).read_bytes())
    except FileNotFoundError:
        return Labels()
    except ValidationError as error:
        raise InputError(
            f"{run / LABELS} is damaged.", hint="Remove it: it has tags and nothing else."
        ) from error


def label_run(
    run: Path,
    add: Iterable[str] = (),
    remove: Collection[str] = (),
    archived: bool | None = None,
) -> Labels:
    """Change the tags of a run and whether it is archived; None leaves that as it is."""
    if not (run / JOURNAL).is_file():
        raise InputError(f"{run} is not a run directory.", hint="Give the directory of a run.")
    before = read_labels(run)
    tags = {tag for tag in before.tags if tag not in remove} | {_checked(tag) for tag in add}
    if len(tags) > _MOST:
        raise InputError(f"A run may have {_MOST} tags; these are {len(tags)}.")
    after = Labels(tuple(sorted(tags)), before.archived if archived is None else archived)
    if after != before:
        write_whole(run / LABELS, pydantic_core.to_json(asdict(after)) + b"\n")
    return after


def _checked(tag: str) -> str:
    plain = tag and visible(tag) == tag and not any(one.isspace() or one == "," for one in tag)
    if not plain or len(tag) > _LONGEST:
        raise InputError(
            f"{shorten(visible(tag), _LONGEST)!r} is no tag.",
            hint=f"Give a word of at most {_LONGEST} characters.",
        )
    return tag
