from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.benchmarks.sample_training import Lab


@pytest.fixture(autouse=True)
def no_user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepared data goes into the test's folder, never into the user's cache."""
    monkeypatch.setenv("SKILLFIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-tests")
    for name in ("HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "data"


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Builds labs; their servers end with the test."""
    with ExitStack() as closing:

        def make(**parts: Any) -> Lab:
            return closing.enter_context(Lab(tmp_path / "lab", **parts))

        yield make
