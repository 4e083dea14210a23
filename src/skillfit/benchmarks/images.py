"""Images that rows refer to, and how they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from skillfit.benchmarks.benchmark import find_in_data
from skillfit.errors import InputError
from skillfit.tasks.rows import Row

ImageDetail = Literal["auto", "low", "high"]


def find_image(row: Row, name: str, data_root: Path | None = None) -> str:
    """The image file, as an absolute path. It may also be in a folder `images`."""
    found = find_in_data(row, (name, f"images/{name}"), data_root)
    if found is None or not found.is_file():
        raise InputError(
            f"{row.where}: the image {name} is not in {data_root or row.root or row.base}.",
            hint="Put it there, or name its folder in env.task_args: {data_root: …}.",
        )
    return str(found)


def check_detail(image_detail: str) -> None:
    """Refuse a value that the model layer does not know."""
    if image_detail not in get_args(ImageDetail):
        raise InputError(
            f"env.task_args: image_detail is {image_detail!r}.",
            hint=f"Choose one of {', '.join(get_args(ImageDetail))}.",
        )
