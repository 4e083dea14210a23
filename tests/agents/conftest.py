from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.stand_in import StandIn


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of skillfit, in this test alone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr("skillfit.sandbox.programs._root", None)
    return folder


@pytest.fixture
def fake(tmp_path: Path, scratch: Path) -> StandIn:
    return StandIn(tmp_path)
