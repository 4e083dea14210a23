from __future__ import annotations

import pytest

from tests.models import support


@pytest.fixture(params=["direct", "sdk"])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to send: our own, and the vendor's SDK."""
    monkeypatch.setattr(support, "through_sdk", request.param == "sdk")
    return str(request.param)
