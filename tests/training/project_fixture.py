"""The fixture `make_project`: a project whose models are scripted servers on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.chat_server import Answer, Call, ChatServer
from tests.training.practice_project import (
    SKILL,
    Reply,
    Script,
    TrainingProject,
    items,
    write_project,
)


class MakeProject(Protocol):
    def __call__(
        self,
        *settings: str,
        rows: Sequence[Mapping[str, Any]] = ...,
        skill: str = ...,
        agent: Callable[[Call], Answer] | None = ...,
        optimizer: Mapping[str, Reply] | None = ...,
        judge: Reply = ...,
        script: Callable[[Call], Any] | None = ...,
        name: str = ...,
    ) -> TrainingProject: ...


@pytest.fixture
def make_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeProject]:
    """Builds projects; their servers end with the test."""
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-tests")
    with ExitStack() as closing:

        def make(
            *settings: str,
            rows: Sequence[Mapping[str, Any]] = tuple(items(8, 8, 4)),
            skill: str = SKILL,
            agent: Callable[[Call], Answer] | None = None,
            optimizer: Mapping[str, Reply] | None = None,
            judge: Reply = "",
            script: Callable[[Call], Any] | None = None,
            name: str = "project",
        ) -> TrainingProject:
            server = closing.enter_context(
                ChatServer(script or Script(optimizer or {}, agent, judge))
            )
            return TrainingProject(
                write_project(tmp_path / name, rows, skill), server, list(settings)
            )

        yield make
