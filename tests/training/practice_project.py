"""A small project to train in: colour items, an agent that knows the colours its skill names, an
optimizer that adds missing ones.

Everything between them is real: HTTP on loopback, journal, gate, files. What either says can be
replaced stage by stage.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse

from skillfit.config import load_config
from skillfit.run.control import Control
from skillfit.run.directory import RunDirectory
from skillfit.run.events import Event
from skillfit.training.assemble import Listener
from skillfit.training.inputs import Inputs, read_inputs
from skillfit.training.start import TrainingResult, start
from tests.support.chat_server import Answer, Call, ChatServer, completion

COLOURS = {"red": "r", "green": "g", "blue": "b", "gold": "o", "pink": "p", "teal": "t"}
SKILL = "# Colours\n\nAnswer with the letter of the colour.\n\n- red means r.\n"
CLOCKS = frozenset({"seconds", "timing", "wall_time_s", "total_wall_time_s", "minutes"})
_CASE = re.compile(
    r"^### Item (?P<id>\S+).*?^Task:\n(?P<colour>\w+) .*?^Result: (?P<result>\w+)",
    re.DOTALL | re.MULTILINE,
)
_NUMBERED = re.compile(r"^\[\d+\] [^{\n]*(\{.*\})$", re.MULTILINE)

Reply = Answer | Callable[[Call], Answer]


def item(name: str, colour: str, split: str) -> dict[str, Any]:
    """`red` and some words of the item, so that no two items look alike."""
    digits = hashlib.sha256(name.encode()).hexdigest()
    noise = " ".join(
        digits[at : at + 5].translate(str.maketrans("0123456789", "ghijklmnop"))
        for at in range(0, 30, 5)
    )
    return {
        "id": name,
        "input": f"{colour} {noise}",
        "answer": COLOURS[colour],
        "type": colour,
        "split": split,
    }


def items(
    train: int, selection: int, test: int, colours: Sequence[str] = ("red", "green", "blue", "gold")
) -> list[dict[str, Any]]:
    """So many of each split; the colours take turns."""
    sizes = {"train": train, "selection": selection, "test": test}
    return [
        item(f"{split}-{number:02d}", colours[number % len(colours)], split)
        for split, size in sizes.items()
        for number in range(size)
    ]


def answer(skill: str, task: str) -> str:
    """The agent's answer: the letter the skill names for the task's colour, or that it does not
    know.
    """
    colour = task.split()[0]
    letters = re.findall(rf"{colour} means (\w+)\.", skill)
    return letters[-1] if letters else "unknown"


def append(*lines: str) -> dict[str, Any]:
    edits = [{"op": "append", "target": "", "content": line} for line in lines]
    return {"patch": {"reasoning": "seen", "edits": edits}}


def rules(call: Call) -> list[str]:
    """A rule for each colour whose items failed in an analyst's prompt."""
    failed = [match["colour"] for match in _CASE.finditer(call.text) if match["result"] == "failed"]
    return [f"- {colour} means {COLOURS[colour]}." for colour in dict.fromkeys(failed)]


def analyse(call: Call) -> dict[str, Any]:
    """An analyst's reply, in whatever form the mode asks for."""
    lines = rules(call)
    skill = section(call.text, "current_skill")
    patch = {
        **append(*lines)["patch"],
        "revise_suggestions": [
            {"type": "add_rule", "title": "a rule", "motivation": "m", "instruction": line}
            for line in lines
        ],
        "skill_candidates": [
            {"title": "t", "change_summary": lines, "new_skill": "\n".join([skill, *lines])}
        ]
        if lines
        else [],
    }
    summary = [
        {
            "failure_type": "colour unknown",
            "items": [match["id"] for match in _CASE.finditer(call.text)],
            "description": "d",
        }
    ]
    return {"failure_summary": summary, "patch": patch}


def read_corpus(call: Call) -> dict[str, Any]:
    """The reply of an optimizer that reads all rollouts at once."""
    edits = [{"op": "append", "content": line, "kinds": [line.split()[1]]} for line in rules(call)]
    return {"reasoning": "seen", "failures": [], "edits": edits}


def merge(call: Call) -> dict[str, Any]:
    merged: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(_NUMBERED.findall(section(call.text, "proposals"))):
        merged.setdefault(text, {**json.loads(text), "sources": []})["sources"].append(number)
    found = list(merged.values())
    return {
        "reasoning": "joined",
        "edits": found,
        "revise_suggestions": found,
        "skill_candidates": found,
    }


def rewrite(call: Call) -> dict[str, Any]:
    lines = re.findall(r"^- .* means .*$", section(call.text, "suggestions"), re.MULTILINE)
    return {
        "change_summary": lines,
        "new_skill": "\n".join([section(call.text, "current_skill"), *lines]),
    }


def section(text: str, name: str) -> str:
    match = re.search(rf"^<{name}>\n(.*?)\n</{name}>$", text, re.DOTALL | re.MULTILINE)
    return match[1] if match else ""


OPTIMIZER: dict[str, Reply] = {
    "reflect.failure": lambda call: json.dumps(analyse(call)),
    "reflect.corpus": lambda call: json.dumps(read_corpus(call)),
    "reflect.diagnosis": lambda call: json.dumps(analyse(call)),
    "reflect.success": json.dumps({"success_patterns": ["short"], "patch": {"edits": []}}),
    "merge": lambda call: json.dumps(merge(call)),
    "rank": lambda call: json.dumps(
        {"selected_indices": list(range(len(_NUMBERED.findall(call.text))))}
    ),
    "rewrite": lambda call: json.dumps(rewrite(call)),
    "lr_autonomous": json.dumps({"learning_rate": 1}),
    "diagnose": json.dumps({"instruction": "Say which rule you used."}),
    "slow_update": json.dumps({"slow_update_content": "Name every colour once."}),
    "meta_skill": json.dumps({"meta_skill_content": "Short rules were kept."}),
    "appendix_consolidate": json.dumps({"notes": ["Look twice."]}),
    "probe": "ok",
}


@dataclass
class Script:
    """The server's replies. `optimizer` replaces stages, `agent` the agent's answers; a reply may
    be a function of the call.

    A reply names the request it answers in its `model` field, so a journal shows which requests it
    holds the answers of.
    """

    optimizer: Mapping[str, Reply] = field(default_factory=dict)
    agent: Callable[[Call], Answer] | None = None
    judge: Reply = ""

    def __call__(self, call: Call) -> Any:
        scripted = self._reply(call)
        if not isinstance(scripted, str | dict):
            return scripted
        message = {"content": scripted} if isinstance(scripted, str) else scripted
        return JSONResponse(completion(message, fingerprint(call)))

    def _reply(self, call: Call) -> Any:
        if call.body["model"] == "optimizer" or call.stage == "probe":
            reply = {**OPTIMIZER, **self.optimizer}[call.stage]
        elif call.body["model"] == "judge":
            reply = self.judge
        else:
            reply = self.agent or knowing
        return reply(call) if callable(reply) else reply


def knowing(call: Call) -> str:
    return answer(system(call), task(call))


def system(call: Call) -> str:
    return "\n".join(
        message["content"] for message in call.body["messages"] if message["role"] == "system"
    )


def task(call: Call) -> str:
    return next(
        message["content"] for message in call.body["messages"] if message["role"] == "user"
    )


def fingerprint(call: Call) -> str:
    return hashlib.sha256(json.dumps(call.body, sort_keys=True).encode()).hexdigest()


@dataclass
class TrainingProject:
    """A project folder and its server. Settings are dotted: `train={"num_epochs": 1}` or
    `**{"train.num_epochs": 1}`.
    """

    folder: Path
    server: ChatServer
    settings: list[str] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        return self.server.calls

    def asked(self, stage: str) -> list[Call]:
        return [call for call in self.calls if call.stage == stage]

    def config(self) -> dict[str, Any]:
        models = {
            name: {"id": f"openai/{name}", "base_url": self.server.url}
            for name in ("agent", "optimizer")
        }
        return {
            "model": models,
            "train": {"num_epochs": 1, "batch_size": 8},
            "optimizer": {"proposer": "reflect"},  # test_corpus_run.py reads all at once
            "evaluation": {"preflight": False},
            "env": {
                "skill": str(self.folder / "SKILL.md"),
                "tasks": str(self.folder / "tasks.jsonl"),
                "grader": "exact",
            },
        }

    def inputs(self, *settings: str) -> Inputs:
        return read_inputs(load_config(self.config(), [*self.settings, *settings]))

    async def train(
        self,
        *settings: str,
        run: str = "run",
        force: bool = False,
        listeners: Iterable[Listener] = (),
        control: Control | None = None,
    ) -> TrainingResult:
        return await start(
            self.inputs(*settings),
            self.folder / run,
            force=force,
            listeners=list(listeners),
            control=control,
        )

    def events(self, kind: type[Event], run: str = "run") -> list[Any]:
        view = RunDirectory.read(self.folder / run)
        try:
            return [stored.event for stored in view.events.read() if isinstance(stored.event, kind)]
        finally:
            view.close()

    def history(self, run: str = "run") -> list[dict[str, Any]]:
        return json.loads((self.folder / run / "history.json").read_text())

    def summary(self, run: str = "run") -> dict[str, Any]:
        return json.loads((self.folder / run / "summary.json").read_text())

    def best(self, run: str = "run") -> str:
        return (self.folder / run / "best_skill.md").read_text()


def write_project(folder: Path, rows: Sequence[Mapping[str, Any]], skill: str = SKILL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(skill)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def readable(run: Path) -> dict[str, Any]:
    """Every readable file of a run, clock fields aside."""
    found = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if (
            path.is_file()
            and not name.startswith(("journal.sqlite", ".", "handoff/"))
            and name != "run.lock"
        ):
            found[name] = timeless(_content(path))
    return found


def _content(path: Path) -> Any:
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else text


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(inner) for name, inner in value.items() if name not in CLOCKS}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the files that differ."""
    return sorted(
        name for name in {*one, *other} if one.get(name, "missing") != other.get(name, "missing")
    )


def answered(run: Path) -> Counter[str]:
    """Requests whose answers are in a run's journal."""
    view = RunDirectory.read(run)
    try:
        return Counter(json.loads(entry.json)["model"] for entry in view.journal.entries("call/"))
    finally:
        view.close()
