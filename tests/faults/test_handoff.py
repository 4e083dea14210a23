"""An optimizer without an API: prompts as files, answers written beside them, and the same
command repeated.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from skillfit.errors import Exit
from skillfit.models.protocol import AnswerPending
from skillfit.models.providers.handoff import pending
from tests.support.chat_server import Call
from tests.training.practice_project import OPTIMIZER, TrainingProject, fingerprint, items
from tests.training.project_fixture import MakeProject

SETTINGS = ("train.num_epochs=2", "gradient.minibatch_size=2", "optimizer.learning_rate=2")


def answer_all(folder: Path) -> list[str]:
    """Answer what waits, as the project's optimizer would; the stages that waited."""
    stages = []
    for waiting in pending(folder):
        asked = json.loads((folder / f"{waiting.id}.request.json").read_text())
        reply = OPTIMIZER[asked["stage"]]
        call = Call({"model": "optimizer", "messages": asked["messages"]}, {}, 0)
        waiting.answer.write_text(reply(call) if callable(reply) else str(reply))
        stages.append(asked["stage"])
    return stages


async def to_the_end(project: TrainingProject) -> list[list[str]]:
    rounds = []
    for _ in range(40):
        try:
            await project.train("model.optimizer=handoff")
        except AnswerPending as waiting:
            assert waiting.exit_code == Exit.HANDOFF
            assert not (project.folder / "run/summary.json").exists()
            rounds.append(answer_all(project.folder / "run/handoff"))
            assert rounds[-1]
            assert waiting.message.startswith(f"{len(rounds[-1])} prompt")
        else:
            return rounds
    pytest.fail("the run never ended")


async def test_all_prompts_of_a_stage_are_written_together_and_the_same_command_resumes(
    make_project: MakeProject,
) -> None:
    rows = items(8, 8, 2)
    served, handed = (
        make_project(*SETTINGS, rows=rows, name="served"),
        make_project(*SETTINGS, rows=rows, name="handed"),
    )
    result = await served.train()
    rounds = await to_the_end(handed)
    assert result.finish_reason == handed.summary()["finish_reason"]
    assert handed.best() == served.best()
    assert sorted(rounds[0]) == ["reflect.failure"] * 3 + [
        "reflect.success"
    ]  # eight items in groups of two
    assert all(
        len(set(stages)) == 1 or stages == rounds[0] or "reflect" in stages[0] for stages in rounds
    )
    assert all(stage != "rank" for stages in rounds for stage in stages)
    agent_calls = [
        Counter(fingerprint(call) for call in project.asked("rollout"))
        for project in (served, handed)
    ]
    assert agent_calls[0] == agent_calls[1]
    assert max(agent_calls[1].values()) == 1
