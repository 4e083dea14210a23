from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rollout.scripted_agents import RolloutSetup


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[RolloutSetup]:
    setup = RolloutSetup(tmp_path)
    yield setup
    setup.close()
