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


def test_images_are_found_from_the_rows_folder_upwards_or_in_a_named_folder(tmp_path: Path) -> None:
    (tmp_path / "data" / "pages").mkdir(parents=True)
    (tmp_path / "data" / "pages" / "a.png").touch()
    (tmp_path / "other" / "images").mkdir(parents=True)
    (tmp_path / "other" / "images" / "b.png").touch()
    row = Row({}, "rows.csv:1", tmp_path / "data" / "splits" / "train")
    assert find_image(row, "data/pages/a.png") == str(tmp_path / "data" / "pages" / "a.png")
    found = find_image(row, "b.png", tmp_path / "other")
    assert found == str(tmp_path / "other" / "images" / "b.png")
    with pytest.raises(InputError, match=r"rows.csv:1: the image b.png is not in"):
        find_image(row, "b.png")
    with pytest.raises(InputError, match="image_detail is 'fine'"):
        check_detail("fine")
