from __future__ import annotations

from pathlib import Path

import pytest

from skillfit.benchmarks.images import check_detail, find_image
from skillfit.errors import InputError
from skillfit.tasks.item import Item
from skillfit.tasks.rows import Row


def test_an_images_detail_is_a_column_of_the_row() -> None:
    item = Item("1", {"input": "look", "images": ["a.png", "b.jpg"], "image_detail": "high"})
    assert [(image.media_type, image.detail) for image in item.images] == [
        ("image/png", "high"),
        ("image/jpeg", "high"),
    ]
    assert Item("1", {"input": "look", "images": "a.png"}).images[0].detail == "auto"


def test_images_are_found_in_the_named_folder_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "data" / "images").mkdir(parents=True)
    (tmp_path / "data" / "images" / "a.png").touch()
    (tmp_path / "private.png").touch()
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "private.png")
    folder = tmp_path / "data" / "train"
    row = Row({}, "rows.csv:1", folder, root=tmp_path / "data")
    assert find_image(row, "a.png") == str(tmp_path / "data" / "images" / "a.png")
    assert find_image(row, "../images/a.png") == str(tmp_path / "data" / "images" / "a.png")
    for name in ("../../private.png", str(tmp_path / "private.png"), "link.png", "gone.png"):
        with pytest.raises(InputError, match=r"rows.csv:1: the image .* is not in"):
            find_image(row, name)
    assert find_image(row, "private.png", tmp_path) == str(tmp_path / "private.png")
    with pytest.raises(InputError, match="image_detail is 'fine'"):
        check_detail("fine")
