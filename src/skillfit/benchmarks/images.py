"""Images that rows refer to, and how they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from skillfit.errors import InputError
from skillfit.tasks.rows import Row
from skillfit.tasks.sources import SourceReference

ImageDetail = Literal["auto", "low", "high"]


def image_root(reference: SourceReference, data_root: str) -> Path | None:
    """The folder that the option `data_root` names; None when it is not set."""
    return reference.base / Path(data_root).expanduser() if data_root else None


def find_image(row: Row, name: str, root: Path | None = None) -> str:
    """The image file, as an absolute path. It is looked for in `root`, or from the row's own
    folder upwards, each time also in a folder `images`.
    """
    base = row.base.resolve()
    folders = [root.resolve()] if root else [base, *base.parents]
    for folder in folders:
        for candidate in (folder / name, folder / "images" / name):
            if candidate.is_file():
                return str(candidate)
    raise InputError(
        f"{row.where}: the image {name} is not in {folders[0]}.",
        hint="Put it there, or name its folder in env.task_args: {data_root: …}.",
    )


def check_detail(image_detail: str) -> None:
    """Refuse a value that the model layer does not know."""
    if image_detail not in get_args(ImageDetail):
        raise InputError(
            f"env.task_args: image_detail is {image_detail!r}.",
            hint=f"Choose one of {', '.join(get_args(ImageDetail))}.",
        )
