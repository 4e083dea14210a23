"""Parts of a user's own in real runs: each of the seven kinds given from Python, named as
file.py:name in a config, and by an entry point of an installed package.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import skillfit
from skillfit.agents import BaseAgent, as_agent
from skillfit.config import load_config
from skillfit.errors import Exit, InputError
from skillfit.extensions import load_object
from skillfit.gate import (
    BaseGate,
    Candidate,
    Judgement,
    Observation,
    RolloutCount,
    Round,
    Ruling,
    Samples,
    StrictGate,
    Verdict,
)
from skillfit.gate.base import FIRST_ROUND
from skillfit.optimize.optimizer import Patch, Proposal
from skillfit.run.directory import RunDirectory
from skillfit.run.events import PatchMerged, RolloutFinished, StepFinished
from skillfit.run.records import Evidence, Suggestion
from skillfit.skill import Edit
from skillfit.tasks.item import Attempt
from skillfit.training.forecast import Forecast, forecast
from skillfit.training.inputs import read_inputs
from skillfit.training.user_parts import PartFailed
from tests.cli.cli_project import Shell

# Every part writes a line with its kind when it is used.
PARTS = """
from pathlib import Path

from skillfit import Score
from skillfit.gate import Ruling, StrictGate
from skillfit.optimize.optimizer import Patch, Proposal
from skillfit.rollout import LocalExecutor
from skillfit.skill import Edit
from skillfit.tasks.item import Attempt
from skillfit.training.plan import ShuffledBatches


def mark(kind):
    with Path("marks").open("a") as file:
        file.write(kind + "\\n")


class MyGate(StrictGate):
    def decide(self, new, old):
        mark("gate")
        return Ruling("reject", "rejected by my gate")


def my_gate(measure, items, settings):
    return MyGate(measure, items, settings)


class MyProposer:
    async def propose(self, skill, rollouts, context):
        mark("proposer")
        await rollouts.outcomes()
        edit = Edit("append", content="- Mentions of parcel mean delivery.")
        return [Patch((Proposal(edit, "failure", ()),), "failure")]


class MySampler(ShuffledBatches):
    def plan(self, items, settings):
        mark("sampler")
        return super().plan(items, settings)


class MyGrader:
    async def grade(self, item, attempt):
        mark("grader")
        return Score(1.0 if attempt.answer in item.answers else 0.0)


class MyAgent:
    async def attempt(self, skill, item, context):
        mark("agent")
        return Attempt("delivery" if "parcel" in skill.body else "unknown")


class MyExecutor(LocalExecutor):
    async def run(self, worker, assignment):
        mark("executor")
        return await super().run(worker, assignment)


class MyTracker:
    def __init__(self, where, run):
        self.where = where or "tracker"

    def __call__(self, stored):
        mark(self.where)

    def close(self):
        mark(self.where + " closed")


def solve(skill, item):
    mark("agent")
    return "delivery" if "parcel" in skill else "unknown"


def grade(item, answer):
    mark("grader")
    return float(answer in item["answers"])


def track(stored):
    mark("tracker")
"""
CLASSES = {
    "gate": "MyGate",
    "proposer": "MyProposer",
    "sampler": "MySampler",
    "grader": "MyGrader",
    "agent": "MyAgent",
    "executor": "MyExecutor",
    "tracker": "MyTracker",
}
SETTINGS = {
    "gate": "evaluation.gate",
    "proposer": "optimizer.proposer",
    "sampler": "train.sampler",
    "grader": "env.grader",
    "agent": "env.agent",
    "executor": "executor",
}
KINDS = list(CLASSES)
SKILL = "Sort tickets.\n\n- Answer with the label alone, in lower case.\n"
ROWS = [
    {"id": f"{split}-{number}", "input": f"My parcel {number} is late.", "answer": "delivery"}
    | {"split": split}
    for split in ("train", "selection", "test")
    for number in range(2 if split == "test" else 4)
]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder, which is not the folder of the config."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with tasks, a config and parts.py."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "SKILL.md").write_text(SKILL)
    (folder / "parts.py").write_text(PARTS)
    write_config(folder, {})
    return folder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that offers every part as `mine`, as pip would have installed it."""
    folder = tmp_path / "site"
    information = folder / "my_parts-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "my_parts.py").write_text(PARTS)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 1.0\n")
    groups = [
        f"[skillfit.{kind}s]\nmine = my_parts:{name}\nbroken = my_parts:Missing\n"
        for kind, name in CLASSES.items()
    ]
    (information / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    return folder


def write_config(folder: Path, settings: dict[str, str]) -> Path:
    data: dict[str, Any] = {
        "model": {"agent": "practice/agent", "optimizer": "practice/optimizer"},
        "train": {"num_epochs": 1, "batch_size": 4},
        "optimizer": {"use_slow_update": False, "use_meta_skill": False},
        "evaluation": {
            "preflight": False,
            "ship_test": False,
            "eval_test": False,
            "gate": "strict",
        },
        "env": {
            "skill": "SKILL.md",
            "tasks": "tasks.jsonl",
            "grader": "exact",
            "allow_duplicates": True,
        },
    }
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        (data.setdefault(section, {}) if section else data)[name] = value
    path = folder / "skillfit.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def marks(here: Path) -> set[str]:
    return set((here / "marks").read_text().splitlines()) if (here / "marks").exists() else set()


def named(kind: str, name: str, project: Path, track: str = "") -> skillfit.Run:
    """A run whose config, or `trackers`, names the part."""
    if kind == "tracker":
        return skillfit.train(
            config=project / "skillfit.yaml", run="r", trackers=[track or name], progress=False
        )
    config = write_config(project, {SETTINGS[kind]: name})
    return skillfit.train(config=config, run="r", progress=False)


def given(kind: str, part: Any, project: Path) -> skillfit.Run:
    """A run that gets the part from Python."""
    parts = {"trackers": [part]} if kind == "tracker" else {kind: part}
    return skillfit.train(config=project / "skillfit.yaml", run="r", progress=False, **parts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_can_be_given_from_python(kind: str, project: Path, here: Path) -> None:
    run = given(kind, load_object("parts.py:" + CLASSES[kind], project), project)
    assert run.finished is not None and kind in marks(here)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_can_be_named_as_a_file_beside_the_config(
    kind: str, project: Path, here: Path
) -> None:
    at = project if kind == "tracker" else Path()  # trackers are named on the command line
    run = named(kind, f"{at / 'parts.py'}:{CLASSES[kind]}", project)
    assert run.finished is not None and kind in marks(here)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_can_be_named_by_an_entry_point(
    kind: str, project: Path, here: Path, package: Path
) -> None:
    run = named(kind, "mine", project)
    assert run.finished is not None and kind in marks(here)


@pytest.mark.parametrize("kind", ["proposer", "sampler", "grader", "agent", "executor"])
def test_an_object_can_be_given_from_python(kind: str, project: Path, here: Path) -> None:
    run = given(kind, load_object("parts.py:" + CLASSES[kind], project)(), project)
    assert run.finished is not None and kind in marks(here)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("gate", "my_gate"), ("agent", "solve"), ("grader", "grade"), ("tracker", "track")],
)
def test_a_function_can_be_a_part(kind: str, name: str, project: Path, here: Path) -> None:
    run = given(kind, load_object(f"parts.py:{name}", project), project)
    assert run.finished is not None and kind in marks(here)


@pytest.mark.parametrize("kind", ["gate", "proposer", "sampler", "grader", "agent", "executor"])
def test_an_argument_of_train_can_be_the_name_of_a_part(
    kind: str, project: Path, here: Path
) -> None:
    run = given(kind, f"{project / 'parts.py'}:{CLASSES[kind]}", project)
    assert run.finished is not None and kind in marks(here)


def test_the_custom_gate_and_proposer_determine_the_run(project: Path) -> None:
    proposer = load_object("parts.py:MyProposer", project)
    run = given("proposer", proposer, project)
    assert "+- Mentions of parcel mean delivery." in run.diff()
    refused = skillfit.train(
        config=project / "skillfit.yaml",
        proposer=proposer,
        gate=load_object("parts.py:MyGate", project),
        run="refused",
        progress=False,
    )
    assert [verdict.reason for verdict in refused.verdicts] == ["rejected by my gate"]
    assert refused.diff() == ""


class AcceptAll(BaseGate):
    """A gate with its own `judge`, which does not make the winner its incumbent itself."""

    async def judge(
        self, name: str, candidate: Candidate | None, training: Sequence[Observation] = ()
    ) -> Verdict:
        count, old = RolloutCount(self.sampler), await self.record(self.incumbent)
        if candidate is None:
            return self.nothing_new(old, count)
        new = await self.record(candidate.skill)
        return Verdict(
            decision="accept",
            action="accept",
            winner=candidate.skill,
            reason="everything is accepted",
            evidence=Evidence(),
            incumbent_score=old.score,
            candidate_score=new.score,
            candidate_tally=None,
            score=new.estimate(),
        )


def test_a_gate_may_override_judge(project: Path) -> None:
    run = given("gate", AcceptAll, project)
    assert run.finished is not None
    assert [verdict.reason for verdict in run.verdicts] == ["everything is accepted"]
    history = json.loads((run.path / "history.json").read_text())
    assert [step["current_origin"] for step in history] == ["step_0001"]


class Forgetful(AcceptAll):
    """Names a winner and keeps another incumbent."""

    def begin(self, name: str, at: Round = FIRST_ROUND) -> Judgement:
        return ForgetfulJudgement(self, name)


@dataclass
class ForgetfulJudgement:
    gate: Forgetful
    name: str
    running: None = None
    started: int = 0

    async def decide(
        self, candidate: Candidate | None, training: Sequence[Observation] = ()
    ) -> Verdict:
        return await self.gate.judge(self.name, candidate, training)


def test_a_gate_whose_winner_is_not_its_incumbent_is_an_error(project: Path) -> None:
    with pytest.raises(InputError, match=r"step 1: decide\(\) returned a winner that"):
        given("gate", Forgetful, project)


class Tuples(BaseGate):
    def decide(self, new: Samples, old: Samples) -> Any:
        return "accept", "as a pair"


class Maybe(BaseGate):
    def decide(self, new: Samples, old: Samples) -> Ruling:
        return Ruling("maybe", "undecided")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gate", "says"),
    [(Tuples, "Tuples.decide returned"), (Maybe, "'maybe'; a decision is one of: accept, reject")],
)
def test_a_gate_that_returns_no_decision_is_an_error(
    project: Path, gate: type[BaseGate], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        given("gate", gate, project)


def test_a_custom_tracker_on_the_command_line(
    project: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "tr.py").write_text(PARTS)  # in the current folder, where the command is typed
    shell = Shell(capsys)
    shell("train", project / "skillfit.yaml", "--run", "r", "--track", "tr.py:MyTracker:and:text")
    assert {"and:text", "and:text closed"} <= marks(here)


def test_a_file_on_the_command_line_is_looked_up_in_the_current_folder(
    project: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "other.py").write_text(PARTS)
    word = "executor=other.py:MyExecutor"
    printed = Shell(capsys)("train", project / "skillfit.yaml", word, "--run", "r")
    assert "executor" in marks(here), printed.err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mien", r"mine"),
        ("broken", r"'broken' \(my_parts:Missing\) of the package my-parts cannot be imported"),
        ("parts.py:MyThing", r"parts\.py has no 'MyThing'"),
        ("nothing.py:Mine", r"nothing\.py does not exist"),
    ],
)
def test_the_error_for_a_wrong_name_lists_the_available_parts(
    kind: str, name: str, message: str, project: Path, here: Path, package: Path
) -> None:
    if kind == "tracker":
        (here / "parts.py").write_text(PARTS)
    with pytest.raises(InputError, match=message):
        named(kind, name, project)
    assert not (here / "r").exists()


class Empty: ...


class NeedsMore:
    def __init__(self, one: int, two: int, three: int, four: int) -> None: ...


class Fails:
    def __init__(self) -> None:
        raise ValueError("no such host")


@pytest.mark.parametrize("kind", ["gate", "proposer", "sampler", "executor"])
@pytest.mark.parametrize(
    ("part", "message"),
    [
        (NeedsMore, "NeedsMore cannot be made: it takes"),
        (Fails, r"Fails cannot be made: ValueError: no such host \(test_extensions"),
        (object(), r"has no '(\w+)': it is object"),
        (Empty, r"Empty has no '(\w+)': it is Empty"),
    ],
)
def test_an_object_of_the_wrong_type_is_refused(
    kind: str, part: Any, message: str, project: Path, here: Path
) -> None:
    with pytest.raises(InputError, match=message):
        given(kind, part, project)


def test_a_gate_object_is_refused_because_it_belongs_to_other_rollouts(project: Path) -> None:
    async def measure(*_: Any, **__: Any) -> list[Any]:
        return []

    inputs = read_inputs(load_config(project / "skillfit.yaml"))
    settings = inputs.parts.build_gate(
        measure, inputs.task.selection, gate_settings(inputs)
    ).settings
    gate = StrictGate(measure, inputs.task.selection, settings)
    with pytest.raises(InputError, match=r"StrictGate is an instance.*Pass a gate class"):
        given("gate", gate, project)


def gate_settings(inputs: Any) -> Any:
    from skillfit.training.user_parts import gate_settings as settings_of

    return settings_of(inputs.config, inputs.task)


@pytest.mark.parametrize(
    "setting",
    [
        {"optimizer.prune_initial": True},
    ],
    ids=lambda setting: next(iter(setting)),
)
@pytest.mark.parametrize("name", ["MyGate", "my_gate"])
def test_settings_that_need_a_pool_are_refused_for_a_gate_without_one(
    setting: dict[str, Any], name: str, project: Path
) -> None:
    gate = load_object(f"parts.py:{name}", project)
    with pytest.raises(InputError, match=r"needs a gate that (pools edits|decides each edit)"):
        skillfit.train(
            config=project / "skillfit.yaml", gate=gate, run="r", progress=False, settings=setting
        )


@pytest.mark.parametrize("name", ["MyGate", "my_gate"])
def test_the_estimate_counts_no_pool_for_a_gate_without_one(name: str, project: Path) -> None:
    def planned(gate: str) -> Forecast:
        inputs = read_inputs(load_config(write_config(project, {"evaluation.gate": gate})))
        return forecast(inputs.config, inputs.task, inputs.skill, inputs.schedule())

    assert planned(f"parts.py:{name}") == planned("strict")
    assert planned("screening") != planned("strict")


@pytest.mark.parametrize("kind", ["grader", "executor", "agent"])
def test_evaluate_accepts_parts(kind: str, project: Path, here: Path) -> None:
    part = load_object("parts.py:" + CLASSES[kind], project)
    measured = skillfit.evaluate(
        project / "SKILL.md", config=project / "skillfit.yaml", run="e", **{kind: part}
    )
    assert measured["skill"].tally.scored == 4 and kind in marks(here)


def test_evaluate_needs_no_gate(project: Path) -> None:
    config = write_config(project, {"evaluation.gate": "nothing.py:Gate"})
    measured = skillfit.evaluate(project / "SKILL.md", config=config)
    assert measured["skill"].tally.scored == 4


def test_concurrent_attempts_are_limited_to_the_agents_slots(project: Path) -> None:
    running, most = 0, 0

    class OneAtATime:
        async def attempt(self, skill: Any, item: Any, context: Any) -> Attempt:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return Attempt("delivery")

        def slots(self, cores: int) -> int:
            return 1

    given("agent", OneAtATime(), project)
    assert most == 1


def test_a_proposer_that_needs_no_model_trains_without_one(project: Path, here: Path) -> None:
    run = skillfit.train(
        config=project / "skillfit.yaml",
        proposer=load_object("parts.py:MyProposer", project),
        settings={"model.optimizer": None},
        run="r",
        progress=False,
    )
    assert run.finished is not None and "proposer" in marks(here)


def test_what_a_proposer_pays_for_is_paid_once_and_counted(project: Path, here: Path) -> None:
    text = """
from pathlib import Path
from skillfit.models.protocol import Usage
from skillfit.optimize.optimizer import Patch, Proposal
from skillfit.run.paid import Paid
from skillfit.skill import Edit


class Mine:
    def __init__(self, parts):
        self.paid = parts.paid

    async def propose(self, skill, rollouts, context):
        async def work():
            with Path("paid").open("a") as file:
                file.write("once\\n")
            usage = Usage(calls=2, input=50, usd=0.01)
            return Paid("- Mentions of parcel mean delivery.", usage)

        await rollouts.outcomes()
        found = await self.paid.once(f"step {context.step}", work, returns=str)
        return [Patch((Proposal(Edit("append", content=found.value)),))]
"""
    written(project, text)
    runs = [named("proposer", "mine.py:Mine", project) for _ in range(2)]
    assert all(run.finished is not None for run in runs)
    with closing(RunDirectory.read("r")) as run:
        paid = list(run.journal.entries("paid/"))
        steps = [event.record for event in run.events.found(StepFinished)]
    assert len(paid) == len((here / "paid").read_text().splitlines()) == len(steps) > 0
    assert {step.tokens["propose"].calls for step in steps} == {2}


@pytest.mark.parametrize("kind", ["gate", "proposer", "sampler", "agent", "grader"])
def test_a_changed_part_file_changes_the_run_identity(kind: str, project: Path) -> None:
    named(kind, f"parts.py:{CLASSES[kind]}", project)
    (project / "parts.py").write_text(PARTS + "\n# another rule\n")
    where = r"task\.grader\.source" if kind == "grader" else rf"parts\.{kind}\.source"
    with pytest.raises(InputError, match=rf"was started with other settings:\s+{where}"):
        named(kind, f"parts.py:{CLASSES[kind]}", project)


@pytest.mark.parametrize("kind", ["gate", "proposer", "sampler", "agent", "grader"])
def test_moving_the_project_keeps_the_run_identity(kind: str, project: Path) -> None:
    first = named(kind, f"parts.py:{CLASSES[kind]}", project)
    moved = project.rename(project.with_name("moved"))
    again = skillfit.train(config=moved / "skillfit.yaml", run="r", progress=False)
    assert again.summary == first.summary


def test_another_gate_from_python_changes_the_run_identity(project: Path) -> None:
    skillfit.train(config=project / "skillfit.yaml", run="r", progress=False)
    with pytest.raises(InputError, match=r"parts\.gate: null -> .*:MyGate"):
        given("gate", load_object("parts.py:MyGate", project), project)


def test_an_agent_needs_only_the_method_attempt() -> None:
    class Plain:
        async def attempt(self, skill: Any, item: Any, context: Any) -> Any: ...

    class Derived(BaseAgent):
        async def attempt(self, skill: Any, item: Any, context: Any) -> Any: ...

    class Limited(Plain):
        limits_itself = True

        def slots(self, cores: int) -> int:
            return 2 * cores

    for agent in (as_agent(Plain()), as_agent(Plain), as_agent(Derived())):
        assert not agent.recorded and not agent.reports and not agent.limits_itself
        assert agent.slots(4) is None
        assert "agent" in agent.describe()
    limited = as_agent(Limited())
    assert limited.limits_itself and limited.slots(4) == 8


def propose_with(body: str, signature: str = "async def propose(self, skill, rollouts, context)"):
    """The text of a proposer."""
    return f"class Mine:\n    {signature}:\n        {body}\n"


def written(project: Path, text: str, file: str = "mine.py") -> None:
    head = "from skillfit.gate import StrictGate\nfrom skillfit.training.plan import *\n"
    (project / file).write_text(head + text)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "proposer",
            propose_with("return []", "async def propose(self, skill, rollouts)"),
            r"proposer mine\.py:Mine: propose\(\) takes \(self, skill, rollouts\), and is called "
            r"with \(skill, rollouts, context\).*Write: async def propose\(self, skill, rollouts, "
            r"context\)",
        ),
        (
            "proposer",
            propose_with("return []", "def propose(self, skill, rollouts, context)"),
            r"propose\(\) is not async",
        ),
        (
            "proposer",
            propose_with("return []", "async def propose(self, rollouts, skill, context)"),
            r"called with \(skill, rollouts, context\), in this order",
        ),
        ("proposer", "class Mine:\n    propose = 'text'\n", r"propose\(\) is str, not a method"),
        (
            "proposer",
            "class Made:\n    async def propose(self): ...\n\ndef Mine():\n    return Made()\n",
            r"propose\(\) takes \(\)",
        ),
        (
            "gate",
            "class Mine(StrictGate):\n    async def judge(self, name, candidate): ...\n",
            r"Mine: judge\(\) takes .*called with \(name, candidate, training\)",
        ),
        (
            "gate",
            "class Mine(StrictGate):\n    def standings(self):\n        return None\n",
            r"standings is a method, and is read as an attribute",
        ),
        (
            "gate",
            "class Mine(StrictGate):\n    def decide(self, new): ...\n",
            r"decide\(\) takes \(new\), and is called with \(new, old\)",
        ),
        (
            "gate",
            "from skillfit.gate import BaseGate\n\nclass Mine(BaseGate): ...\n",
            r"The gate mine\.py:Mine has no rule: it defines neither decide nor judge.*Ruling",
        ),
        (
            "sampler",
            "class Mine(ShuffledBatches):\n    def order(self, items): ...\n",
            r"order\(\) takes \(items\), and is called with \(items, seed\)",
        ),
        (
            "sampler",
            "class Mine:\n    async def plan(self, items, settings): ...\n",
            r"sampler mine\.py:Mine: plan\(\) is async, and its result is not awaited",
        ),
        (
            "executor",
            "class Mine:\n    cores = 1\n    def run(self, worker, assignment): ...\n"
            "    async def close(self): ...\n",
            r"executor mine\.py:Mine: run\(\) is not async",
        ),
        (
            "agent",
            "class Mine:\n    def attempt(self, skill, item, context): ...\n",
            r"agent .*mine\.py:Mine: attempt\(\) is not async",
        ),
        (
            "grader",
            "class Mine:\n    async def grade(self, answer): ...\n",
            r"grader .*mine\.py:Mine: grade\(\) takes \(answer\), and is called with",
        ),
    ],
)
def test_a_method_that_cannot_be_called_is_refused_before_anything_is_spent(
    kind: str, text: str, message: str, project: Path, here: Path
) -> None:
    written(project, text)
    with pytest.raises(InputError, match=message):
        named(kind, "mine.py:Mine", project)
    assert not (here / "r").exists()


def test_check_refuses_a_method_that_cannot_be_called(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(project, propose_with("return []", "def propose(self, skill, rollouts, context)"))
    config = write_config(project, {"optimizer.proposer": "mine.py:Mine"})
    printed = Shell(capsys)("check", config, "--run", "r")
    assert printed.code == 2 and "propose() is not async" in printed.err


def test_parameters_may_have_other_names_and_no_defaults(project: Path) -> None:
    written(
        project,
        "class Mine(StrictGate):\n"
        "    async def judge(self, where, proposed, rollouts):\n"
        "        return await super().judge(where, proposed, rollouts)\n"
        "    def assign(self, *arguments):\n"
        "        return super().assign(*arguments)\n",
    )
    assert named("gate", "mine.py:Mine", project).finished is not None


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "proposer",
            propose_with("return [][0]"),
            r"proposer mine\.py:Mine failed in step 1: IndexError: list index out of range "
            r"\(mine\.py, line 5\)",
        ),
        (
            "proposer",
            propose_with("raise SystemExit(3)"),
            r"mine\.py:Mine failed in step 1: SystemExit: 3",
        ),
        (
            "proposer",
            propose_with("import json; json.loads('{')"),
            r"JSONDecodeError: .*\(mine\.py, line 5\) It was raised in decoder\.py",
        ),
        (
            "proposer",
            propose_with("pass"),
            r"failed in step 1: propose\(\) returned None, expected Proposals or a list of Patch "
            r"\(mine\.py, line 4\)\.",
        ),
        (
            "proposer",
            propose_with("return ['text']"),
            r"returned list, expected Proposals or",
        ),
        (
            "gate",
            "class Mine(StrictGate):\n    def decide(self, new, old):\n        return new.it\n",
            r"gate mine\.py:Mine failed in step 1: AttributeError: .*\(mine\.py, line 5\)",
        ),
        (
            "gate",
            "class Mine(StrictGate):\n    async def judge(self, *_):\n        return True\n",
            r"gate mine\.py:Mine failed in step 1: Mine\.judge returned True; it returns a Verdict "
            r"\(mine\.py, line 4\)\. Fix",
        ),
        (
            "gate",
            "class Mine(StrictGate):\n    def decide(self, new, old):\n        return 'accept'\n",
            r"gate mine\.py:Mine failed in step 1: Mine\.decide returned 'accept'; it returns "
            r"a Ruling, .* \(mine\.py, line 4\)\. Fix",
        ),
        (
            "gate",
            "class Mine(StrictGate):\n    def assign(self, *arguments):\n        return []\n",
            r"gate mine\.py:Mine failed.*: assign\(\) returned 0 arms for 4 rollouts",
        ),
        (
            "gate",
            "class Mine(StrictGate):\n    @property\n    def initial_score(self):\n"
            "        return 'high'\n",
            r"mine\.py:Mine failed.*: initial_score returned str, expected float or None "
            r"\(mine\.py, line 4\)",
        ),
        (
            "executor",
            "from skillfit.rollout import LocalExecutor\n"
            "class Mine(LocalExecutor):\n    async def run(self, *_):\n        return None\n",
            r"executor mine\.py:Mine failed: run\(\) returned None, expected ScoredAttempt",
        ),
        (
            "sampler",
            "class Mine:\n    def plan(self, items, settings):\n        return 1 / 0\n",
            r"sampler mine\.py:Mine failed: ZeroDivisionError: .*\(mine\.py, line 5\)",
        ),
        (
            "sampler",
            "class Mine:\n    def plan(self, items, settings):\n        return Plan(())\n",
            r"sampler mine\.py:Mine failed: plan\(\) returned an epoch without steps",
        ),
    ],
)
def test_the_error_of_a_failed_part_names_it(
    kind: str, text: str, message: str, project: Path
) -> None:
    written(project, text)
    with pytest.raises(PartFailed, match=message) as failure:
        named(kind, "mine.py:Mine", project)
    assert failure.value.exit_code == Exit.USAGE


@pytest.mark.parametrize("kind", ["agent", "grader"])
def test_an_agent_or_a_grader_that_fails_is_a_failed_rollout(
    kind: str, project: Path, here: Path
) -> None:
    method = "attempt" if kind == "agent" else "grade"
    written(project, f"class Mine:\n    async def {method}(self, *_):\n        return {{}}['x']\n")
    named(kind, "mine.py:Mine", project)
    with closing(RunDirectory.read(here / "r")) as view:
        errors = {event.failure for event in view.events.found(RolloutFinished)}
    assert errors and all("KeyError: 'x' (mine.py:5)" in error for error in errors)


def test_a_run_with_a_part_from_python_is_resumed_from_python(project: Path) -> None:
    class Mine:
        async def propose(self, skill: Any, rollouts: Any, context: Any) -> Any:
            return {}["x"]

    with pytest.raises(PartFailed, match=r"test_extensions\.py, line \d+\).*Call train again"):
        given("proposer", Mine, project)


def test_a_proposer_whose_suggestions_nothing_applies_is_refused(project: Path) -> None:
    class Mine:
        async def propose(self, skill: Any, rollouts: Any, context: Any) -> Any:
            edit = Edit("append", content="- Mentions of parcel mean delivery.")
            return [
                Patch(
                    (Proposal(edit), Proposal(Suggestion("style", "", "", "Be brief."))),
                    merge=False,
                )
            ]

    expected = r"returned a Suggestion, but optimizer.skill_update_mode: patch applies only Edit"
    with pytest.raises(PartFailed, match=expected):
        given("proposer", Mine, project)


def test_a_proposer_that_edits_other_files_than_the_document_is_refused(project: Path) -> None:
    class Mine:
        async def propose(self, skill: Any, rollouts: Any, context: Any) -> Any:
            return [Patch((Proposal(Edit("append", content="x", file="references/a.md")),))]

    [refused] = {one.reason for one in given("proposer", Mine, project).record.rejections}
    assert refused == "optimizer.parts lets edits change body, not references/a.md"


class OutOfOrder(InputError): ...


def test_skillfit_errors_raised_in_a_part_are_not_wrapped(project: Path) -> None:
    class Mine:
        async def propose(self, skill: Any, rollouts: Any, context: Any) -> Any:
            raise OutOfOrder("The scales are out of order.")

    with pytest.raises(OutOfOrder):
        given("proposer", Mine, project)


def test_an_exception_in_a_built_in_part_is_not_reported_as_a_failed_part(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(*_: Any) -> Any:
        raise ZeroDivisionError("a bug of skillfit")

    monkeypatch.setattr(StrictGate, "decide", decide)
    with pytest.raises(ZeroDivisionError):
        given("proposer", load_object("parts.py:MyProposer", project), project)


FAILS_LATE = """
class Mine:
    async def propose(self, skill, rollouts, context):
        if context.step == 2:
            return [][0]
        return []
"""


def calls(run: str) -> int:
    with closing(RunDirectory.read(run)) as view:
        return sum(row.usage.calls for row in view.journal.bill().rows)


def test_a_run_resumes_after_its_part_was_fixed(
    project: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(capsys)
    gate = "class Gate(StrictGate): ...\n"  # in the same file
    written(project, FAILS_LATE + gate)
    parts = {"optimizer.proposer": "mine.py:Mine", "evaluation.gate": "mine.py:Gate"}
    config = write_config(project, {**parts, "train.batch_size": 2})
    printed = shell("train", config, "--run", "r")
    assert printed.code == 2 and "failed in step 2: IndexError" in printed.err
    assert f"skillfit resume {here / 'r'}" in printed.err
    before = calls("r")
    fixed = FAILS_LATE.replace("[][0]", "[]") + gate
    written(project, fixed)
    printed = shell("resume", "r")
    assert printed.code == 3, printed.err
    assert calls("r") == before  # all was paid for before the failure
    written(project, fixed + "# another rule\n")  # a fix is accepted once
    assert "was started with other settings" in shell("resume", "r").err


def test_other_changes_are_refused_beside_a_fix(project: Path) -> None:
    written(project, FAILS_LATE)
    config = write_config(project, {"optimizer.proposer": "mine.py:Mine", "train.batch_size": 2})
    with pytest.raises(PartFailed):
        skillfit.train(config=config, run="r", progress=False)
    written(project, FAILS_LATE.replace("[][0]", "[]"))
    with pytest.raises(InputError, match=r"train\.seed: 42 -> 7"):
        skillfit.train(config=config, run="r", progress=False, settings={"train.seed": 7})
    assert skillfit.train(config=config, run="r", progress=False).finished is not None


TWO_PATCHES = """
from skillfit.optimize.optimizer import Patch, Proposal
from skillfit.skill import Edit


class Mine:
    needs_optimizer = False

    async def propose(self, skill, rollouts, context):
        texts = ["- Mentions of parcel mean delivery.", "- Read the whole ticket."]
        edits = [Edit("append", content=text) for text in texts]
        return [Patch((Proposal(edit),), merge=MERGE) for edit in edits]
"""


@pytest.mark.parametrize("merge", [True, False])
def test_the_optimizer_merges_only_patches_that_allow_it(merge: bool, project: Path) -> None:
    written(project, TWO_PATCHES.replace("MERGE", str(merge)))
    settings = {"optimizer.proposer": "mine.py:Mine", "gradient.merge": True}
    skillfit.train(config=write_config(project, settings), run="r", progress=False)
    with closing(RunDirectory.read("r")) as view:
        merges = sum(row.usage.calls for row in view.journal.bill().rows if row.stage == "merge")
        (merged,) = view.events.found(PatchMerged)
    assert (merges > 0) is merge
    if not merge:
        assert [proposal.source for proposal in merged.patch.proposals] == ["custom", "custom"]


def test_the_estimate_counts_optimizer_calls_for_a_proposer_without_a_model(
    project: Path,
) -> None:
    written(project, TWO_PATCHES.replace("MERGE", "True"))
    settings = {
        "optimizer.proposer": "mine.py:Mine",
        "optimizer.use_slow_update": True,
        "gradient.merge": True,
        "train.num_epochs": 3,
    }
    config = write_config(project, settings)
    inputs = read_inputs(load_config(config))
    found = forecast(inputs.config, inputs.task, inputs.skill, inputs.schedule())
    planned = {row.stage: row.calls.high for row in found.rows if row.role == "optimizer"}
    assert planned.keys() == {"merge", "slow_update"}
    skillfit.train(config=config, run="r", progress=False)
    with closing(RunDirectory.read("r")) as view:
        bill = [row for row in view.journal.bill().rows if row.role == "optimizer"]
    used = {row.stage: row.usage.calls for row in bill if row.stage != "probe"}
    assert used["merge"] and used["slow_update"]
    assert all(calls <= planned[stage] for stage, calls in used.items())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("Patch((Proposal(edit, 'mine'),))", r"ValueError: Unknown source 'mine'; available: fail"),
        ("Patch((), 'mine')", r"ValueError: Unknown source 'mine'"),
        ("Patch((edit,))", r"TypeError: A patch is made of Proposals, not Edit"),
        ("Patch((Proposal('text'),))", r"TypeError: A proposal is one of Edit, .*, not str"),
        ("Patch((Proposal(edit, items='train-1'),))", r"TypeError: items is a tuple of item ids"),
    ],
)
def test_an_invalid_patch_is_an_error_with_its_line(made: str, message: str, project: Path) -> None:
    text = TWO_PATCHES.rpartition("return")[0] + "edit = edits[0]\n"
    written(project, text + f"        return [{made}]\n")
    with pytest.raises(PartFailed, match=rf"failed in step 1: {message}.* \(mine\.py, line 15\)"):
        named("proposer", "mine.py:Mine", project)


@pytest.mark.parametrize("name", ["Mine", "mine"])
def test_a_gate_that_checks_must_pass_items_gets_them(name: str, project: Path) -> None:
    written(
        project,
        "from skillfit.gate import Ruling\n\n"
        "class Mine(StrictGate):\n"
        "    checks_must_pass = True\n"
        "    def decide(self, new, old):\n"
        "        return Ruling('reject', f'must pass: {self.config.evaluation.must_pass}')\n\n"
        "def mine(measure, items, settings):\n    return Mine(measure, items, settings)\n",
    )
    (project / "proposer.py").write_text(TWO_PATCHES.replace("MERGE", "False"))
    config = write_config(
        project,
        {"evaluation.gate": f"mine.py:{name}", "optimizer.proposer": "proposer.py:Mine"},
    )
    must_pass = {"evaluation.must_pass": ["selection-0"]}
    run = skillfit.train(config=config, run="r", progress=False, settings=must_pass)
    assert [verdict.reason for verdict in run.verdicts] == ["must pass: ('selection-0',)"]


@pytest.mark.parametrize("name", ["MyGate", "my_gate"])
def test_a_gate_without_checks_must_pass_gets_no_must_pass_items(name: str, project: Path) -> None:
    config = write_config(project, {"evaluation.gate": f"parts.py:{name}"})
    with pytest.raises(InputError, match=r"this gate does not check must-pass items\."):
        skillfit.train(
            config=config, progress=False, settings={"evaluation.must_pass": ["selection-0"]}
        )
