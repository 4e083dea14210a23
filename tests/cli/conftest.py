import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import skillfit
from tests.cli.cli_project import SMALL, Shell, project


@pytest.fixture
def shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "stdin", open("/dev/null") if sys.platform != "win32" else sys.stdin)  # noqa: PTH123, SIM115
    yield Shell(capsys)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return project(tmp_path / "triage")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a small run that improved: tests copy it before they change anything."""
    folder = tmp_path_factory.mktemp("finished")
    small = [*SMALL, "env.limit=0", "train.batch_size=40", "train.num_epochs=3"]
    settings: dict[str, dict[str, object]] = {}
    for text in small:
        section, _, rest = text.partition(".")
        key, _, value = rest.partition("=")
        settings.setdefault(section, {})[key] = (
            value == "true" if value in ("true", "false") else int(value)
        )
    skillfit.train(config=project(folder), run=folder / "run", **settings)
    return folder
