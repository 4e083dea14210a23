"""The optimizer as an agent in a folder: what it is given, and what is made of what it leaves."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skillfit.errors import InfrastructureError
from skillfit.models import ModelSpec, Reply, Request, Usage
from skillfit.models.protocol import ToolCall
from skillfit.models.providers.scripted import ScriptedModel
from skillfit.optimize.agent_changes import checked_counts
from skillfit.optimize.agent_folder import AgentFolder, read_left_behind
from skillfit.optimize.context import Context, ItemAttempts
from skillfit.optimize.material import Material
from skillfit.optimize.optimizer import edits_of
from skillfit.rollout.outcome import Arm
from skillfit.run.budget import BudgetReached
from skillfit.run.control import Interrupted
from skillfit.run.records import EditEffect
from skillfit.sandbox.programs import best_isolation
from skillfit.skill import Edit, Skill
from skillfit.tasks.item import Item
from tests.optimize.agent_bench import CASES, GOOD, ITEMS, SKILL, Bench, written
from tests.optimize.scripted_optimizer import item, outcome, scripted
from tests.training.agent_optimizer import Worker

MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path) -> MakeBench:
    """Builds benches with the coding-agent program; `extra` and `last` are its code before and
    after its work.
    """

    def make(*, extra: str = "", last: str = "", **more: Any) -> Bench:
        worker = Worker(tmp_path / "worker", extra=extra, last=last)
        options = {"file": str(worker.folder / "worker.yaml")}
        spec = ModelSpec(id="cli/worker", options=options)
        (tmp_path / "run").mkdir(exist_ok=True)
        optimizer = scripted(lambda _: "").optimizer
        return Bench(tmp_path / "run", spec, optimizer, **more)

    return make


async def test_the_program_edits_a_copy_and_its_changes_become_single_edits(
    bench: MakeBench,
) -> None:
    made = bench()
    found = await made.propose()
    assert written(found) == GOOD
    [patch] = found.patches
    assert [proposal.items for proposal in patch.proposals] == [
        ("blue0", "blue1", "blue2"),
        ("green0", "green1", "green2"),
    ]
    assert [edit.label for edit in edits_of(patch.proposals)] == ["name it", "name it"]
    assert not patch.merge and not patch.budgeted
    assert not made.discarded
    [row] = made.journal.bill().rows
    assert (row.stage, row.role, row.model) == ("reflect.agent", "optimizer", "cli/worker")
    assert row.usage == Usage(calls=1, input=3000, output=200, usd=0.05)


async def test_a_session_is_run_once_and_its_notes_come_back(bench: MakeBench) -> None:
    made = bench()
    await made.propose()
    made.journal.close()
    again = bench(extra="sys.exit('started again')")  # as another process of the same run
    assert written(await again.propose()) == GOOD
    again.journal.close()
    third = bench(last="end(notes.read_text())")
    await third.propose()
    [patch] = (await third.propose(Context(2))).patches
    assert patch.reasoning == "Failing: blue green\nFailing: blue green\n"


def rows_of(folder: AgentFolder) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(folder.files["rollouts/index.csv"])))


def folder_of(
    cases: Sequence[ItemAttempts] = CASES, context: Context | None = None, **more: Any
) -> AgentFolder:
    context = context or Context(1)
    material = Material.of(context.history, cases)
    return AgentFolder.of(SKILL, material, context, more.pop("notes", {}), **more)


def test_the_folder_holds_every_training_rollout_as_a_file_and_a_row() -> None:
    earlier = ItemAttempts(ITEMS[0], (outcome("green0", 1.0, answer="g"),))
    effect = EditEffect(
        "s0001e01", 1, Edit("append", "", "- blue means b."), "dropped", -0.1, -0.2, 0.0, 0.1, 30
    )
    arm = Arm(SKILL, ("s0001e02",))
    case = replace(CASES[0], arms=(arm,))
    context = Context(2, history=(earlier,), effects=(effect,))
    folder = folder_of([case, *CASES[1:]], context, notes={"mine.md": "Look at blue."})
    rows = rows_of(folder)
    assert len(rows) == 10 and {row["kind"] for row in rows} == {"red", "green", "blue"}
    [row] = [row for row in rows if row["item"] == "green0" and row["round"] == "newest"]
    assert (row["result"], row["score"], row["edits"], row["turns"]) == (
        *("failed", "0", "s0001e02", "1"),
    )
    assert row["grader"] == "expected another letter"
    assert "thinking about green0" in folder.files[row["file"]]
    [pair] = [text for name, text in folder.files.items() if name.startswith("pairs/")]
    assert "#### Succeeded" in pair and "#### Failed" in pair
    [edit] = json.loads(folder.files["edits.json"])
    assert (edit["status"], edit["effect"], edit["interval"]) == ("dropped", -0.1, [-0.2, 0.0])
    assert folder.files["notes/mine.md"] == "Look at blue."


def test_selection_and_test_items_are_never_written() -> None:
    for split in ("selection", "test"):
        hidden = Item("h1", {"input": "hidden", "answers": ["x"]}, split=split)
        with pytest.raises(ValueError, match="may only see training items"):
            folder_of([ItemAttempts(hidden, (outcome("h1", 0.0),))])


def test_names_of_items_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    odd = [replace(item(name), type="odd") for name in ("../../etc/x", "/abs", "a\nb", "ü" * 300)]
    folder = folder_of([ItemAttempts(one, (outcome(one.id, 0.0),)) for one in odd])
    folder.write(tmp_path / "work")
    assert {path.name for path in tmp_path.iterdir()} == {"work"}
    assert len(list((tmp_path / "work" / "rollouts").glob("000*.md"))) == 4


HOSTILE = {
    "writes outside": ("open('{outside}', 'w').write('x')", "", GOOD, ""),
    "protected": (
        "",
        "skill.write_text(skill.read_text().replace('Never say more', 'Always say more'))",
        GOOD,
        "protected region",
    ),
    "frontmatter": (
        "",
        "skill.write_text(skill.read_text().replace('name: colours', 'name: mine'))",
        GOOD,
        "frontmatter",
    ),
    "linked document": (
        "",
        "skill.unlink(); skill.symlink_to('/etc/passwd')",
        [],
        "skill/SKILL.md is a link",
    ),
    "linked folder": (
        "",
        "os.rename('skill', 'other'); os.symlink('other', 'skill')",
        [],
        "skill/SKILL.md is a link",
    ),
    "linked notes": (
        "",
        "import shutil; shutil.rmtree('notes'); os.symlink('/etc', 'notes')",
        GOOD,
        "notes is a link",
    ),
    "hard link": (
        "",
        "skill.unlink(); os.link('changes.md', skill)",
        [],
        "not a regular file of its own",
    ),
    "pipe": ("", "skill.unlink(); os.mkfifo(skill)", [], "not a regular file"),
    "folder": ("", "skill.unlink(); os.mkdir(skill)", [], "not a regular file"),
    "removed": ("", "skill.unlink()", [], "was removed"),
    "huge document": ("", "skill.write_text('x' * 5_000_000)", [], "more than 1,000,000 bytes"),
    "huge notes": ("", "notes.write_bytes(b'x' * 90_000_000)", GOOD, "more than 200,000 bytes"),
    "many notes": (
        "",
        "[pathlib.Path('notes/%d' % n).write_text('x') for n in range(500)]",
        GOOD,
        "more than 40 notes",
    ),
    "no text": ("", "skill.write_bytes(skill.read_bytes() + bytes([255, 254, 0]))", None, ""),
    "many lines": (
        "",
        "skill.write_text(skill.read_text() + '- x y.\\n' * 90_000)",
        [],
        "more than 2,000 lines",
    ),
    "other files": (
        "",
        "pathlib.Path('skill/references/why.md').write_text('no'); "
        "pathlib.Path('skill/new.py').write_text('x')",
        GOOD,
        "2 other files of the skill changed",
    ),
    "nothing": ("end('All is well.')", "", [], ""),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_agent_gains_nothing(bench: MakeBench, tmp_path: Path, name: str) -> None:
    extra, last, expected, problem = HOSTILE[name]
    outside = tmp_path / "outside.txt"
    code = extra.replace("{outside}", str(outside))
    if name == "writes outside":
        if not best_isolation().hides_files:
            pytest.skip("no isolation here")
        code = f"try: {code}\nexcept OSError: pass"
    made = bench(extra=code, last=last)
    found = await made.propose()
    if expected is not None:
        assert written(found) == expected
    assert problem in made.discarded
    assert not outside.exists()
    assert all("root:" not in content for _, _, content in written(found))


async def test_files_of_trained_parts_may_change(bench: MakeBench) -> None:
    made = bench(
        last="pathlib.Path('skill/references/why.md').write_text('because it is\\n')\n"
        "pathlib.Path('skill/references/new.md').write_text('# New\\n\\n- One.\\n')\n"
        "os.makedirs('skill/scripts'); os.symlink('/etc/passwd', 'skill/scripts/a.py')\n"
        "pathlib.Path('skill/scripts/b.py').write_text('print(1)\\n'); os.mkfifo('skill/pipe')\n"
        "pathlib.Path('skill/other.md').write_text('x')",
        parts=("body", "references", "scripts"),
    )
    found = await made.propose()
    [patch] = found.patches
    others = [(edit.op, edit.file) for edit in edits_of(patch.proposals) if edit.file]
    assert others == [
        ("append", "references/new.md"),
        ("replace", "references/why.md"),
        ("write", "scripts/b.py"),
    ]
    assert written(found)[: len(GOOD)] == GOOD
    assert "skill/scripts/a.py is a link" in made.discarded
    assert "2 other files of the skill changed (other.md, pipe)" in made.discarded


async def test_the_files_of_the_task_are_out_of_reach(bench: MakeBench, tmp_path: Path) -> None:
    if not best_isolation().hides_files:
        pytest.skip("no isolation here")
    (tmp_path / "tasks.jsonl").write_text("the hidden answer")
    look = f"""
try:
    seen = pathlib.Path({str(tmp_path / "tasks.jsonl")!r}).read_text()
except OSError:
    seen = "nothing"
end("I saw: " + seen)
"""
    [patch] = (await bench(extra=look).propose()).patches
    assert patch.reasoning == "I saw: nothing"


NEVER_ENDS = "print(json.dumps(dict(type='message', text='so far')), flush=True); time.sleep(600)"


@pytest.mark.timeout(120)
async def test_a_session_that_never_ends_counts_with_what_it_changed(bench: MakeBench) -> None:
    made = bench(last=NEVER_ENDS, minutes=0.1)
    assert written(await made.propose()) == GOOD
    assert "the time limit of 0.1 minutes" in made.discarded
    again = bench(extra="sys.exit('started again')", minutes=0.1)
    assert written(await again.propose()) == GOOD


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of skillfit, in this test alone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr("skillfit.sandbox.programs._root", None)
    return folder


@pytest.mark.timeout(120)
@pytest.mark.parametrize("worked", [True, False])
async def test_a_stop_ends_a_session(bench: MakeBench, scratch: Path, worked: bool) -> None:
    hang = "pathlib.Path('waiting').touch(); time.sleep(600)"
    made = bench(last=hang) if worked else bench(extra=hang)
    proposing = asyncio.ensure_future(made.propose())
    while not list(scratch.glob("**/work/waiting")):  # noqa: ASYNC110  # another process writes it
        await asyncio.sleep(0.05)
    made.budget.stop(Interrupted())
    if not worked:
        with pytest.raises(Interrupted):
            await proposing
        assert not made.journal.count("paid/")
        return
    assert written(await proposing) == GOOD
    assert "Stopped" in made.discarded


async def test_a_program_that_fails_before_it_changed_anything_stops_the_run(
    bench: MakeBench,
) -> None:
    made = bench(extra="sys.exit('boom')")
    with pytest.raises(InfrastructureError, match="boom"):
        await made.propose()
    assert not made.journal.count("paid/")


async def test_a_program_that_fails_later_counts_with_what_it_changed(bench: MakeBench) -> None:
    made = bench(last="sys.exit('boom')")
    assert written(await made.propose()) == GOOD
    assert "boom" in made.discarded


async def test_a_cap_that_is_reached_starts_no_session(bench: MakeBench) -> None:
    made = bench(caps={"calls": 1})
    await made.propose()
    with pytest.raises(BudgetReached):
        await made.propose(Context(2))


async def test_a_program_with_a_dollar_limit_gets_it_from_the_budget(bench: MakeBench) -> None:
    made = bench(extra="end(' '.join(sys.argv[1:]))", caps={"usd": 2.0})
    [patch] = (await made.propose()).patches
    assert patch.reasoning == "work --max-usd 0.500000"
    assert made.budget.spent.usd == pytest.approx(0.05)


async def test_a_session_that_reaches_its_limit_too_early_gets_a_larger_one(
    bench: MakeBench,
) -> None:
    small = """
if float(sys.argv[-1]) < 1:
    print("LIMIT REACHED", file=sys.stderr)
    sys.exit(1)
"""
    assert written(await bench(extra=small, caps={"usd": 2.0}).propose()) == GOOD


def use(tool: str, **arguments: str) -> Reply:
    call = ToolCall("c1", tool, json.dumps(arguments))
    return Reply("", (call,), "tool_calls", Usage(calls=1, input=50, output=10))


def with_model(folder: Path, *replies: Reply | str | Exception, **more: Any) -> Bench:
    model = ScriptedModel(list(replies), context_window=more.pop("window", 128_000))
    optimizer = replace(scripted(lambda _: "").optimizer, model=model)
    folder.mkdir()
    return Bench(folder, ModelSpec(id="openai/x"), optimizer, **more)


async def test_a_model_works_with_tools(tmp_path: Path) -> None:
    made = with_model(
        tmp_path / "run",
        use("search", text="failed", path="rollouts/index.csv"),
        use("edit", path="skill/SKILL.md", old="- red means r.", new="- red means r.\n- blue: b."),
        use("write", path="changes.md", content="- `- blue: b.` | items: blue1 | purpose: blue"),
        use("finish", answer="Done; 6 of 9 rollouts failed, 4 of 9 rollouts of red failed."),
    )
    found = await made.propose()
    [patch] = found.patches
    assert written(found) == [("append", "", "- blue: b.")]
    assert patch.proposals[0].items == ("blue1",)
    assert patch.reasoning.startswith("Done; 6 of 9 rollouts failed, 4 of 9 [counted: 0 of 3")


@pytest.mark.parametrize(
    "call",
    [
        use("write", path="../../x", content="x"),
        use("read", path="/etc/passwd"),
        # bubblewrap shows an empty file in its place
        use("python", code="assert 'root' in open('/etc/shadow').read()"),
        use("run_command", command="id"),
        use("edit", path="skill/SKILL.md", old="letter", new="x"),
        use("nothing"),
    ],
)
async def test_misuse_of_a_tool_is_told_to_the_model(tmp_path: Path, call: Reply) -> None:
    if call.tool_calls[0].name == "python" and not best_isolation().hides_files:
        pytest.skip("no isolation here")
    made = with_model(tmp_path / "run", call, use("finish", answer="gave up"))
    assert written(await made.propose()) == []
    request: Request = made.optimizer.model.requests[-1]  # type: ignore[attr-defined]
    told = request.messages[-1].content
    assert "error" in told or "Error" in told
    assert "root:" not in told


async def test_old_results_make_room_in_a_small_window(tmp_path: Path) -> None:
    reads = [use("python", code=f"print('{n}' * 12_000)") for n in range(6)]
    made = with_model(tmp_path / "run", *reads, use("finish", answer="x"), window=16_000)
    await made.propose()
    sizes = [
        sum(len(message.content) for message in request.messages)
        for request in made.optimizer.model.requests  # type: ignore[attr-defined]
    ]
    assert max(sizes) < 4 * 16_000
    assert "left out" in made.optimizer.model.requests[-1].messages[3].content  # type: ignore[attr-defined]


async def test_a_model_that_never_ends_is_ended(tmp_path: Path) -> None:
    made = with_model(tmp_path / "run", *[use("list")] * 100)
    await made.propose()
    assert "Ended after" in made.discarded


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("6 of 9 rollouts failed", ""),
        ("3 of 9 succeeded", ""),
        ("3 of 3 blue rollouts failed", ""),
        ("16 of 50 rollouts failed", "wrong: there are 9 rollouts"),
        ("5 of 9 rollouts failed", "counted: 6 of 9 rollouts failed"),
        ("2 of 9 rollouts of blue failed", "counted: 3 of 3 rollouts failed"),
        ("Of red, 3 of 3 succeeded and 1 of 3 of blue failed", ""),
        ("In red, 2 of 8 items failed", "counted: 6 of 9 rollouts failed"),
        ("4 of the 6 failed ones repeat the word", ""),
        ("7 of 9 replies are long", ""),
        ("version 1.2 of 2021", ""),
        ("on 3 of 2021", ""),
    ],
)
def test_counts_are_checked_against_the_rollouts(text: str, marked: str) -> None:
    checked = checked_counts(f"First. {text}. Last.", Material.of((), CASES))
    assert checked.startswith("First. ") and checked.endswith(". Last.")
    assert marked in checked and ("[" in checked) == bool(marked)


def test_a_pipe_or_a_dangling_link_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    files = {"scripts/__init__.py": b"", "references/why.md": b"because"}
    folder = AgentFolder(
        Skill.from_text("# A\n", files=files), {}, ("body", "references", "scripts")
    )
    folder.write(tmp_path)
    (tmp_path / "skill/scripts/__init__.py").unlink()
    os.mkfifo(tmp_path / "skill/scripts/__init__.py")
    (tmp_path / "skill/references/why.md").unlink()
    (tmp_path / "skill/references/why.md").symlink_to("nowhere")
    left = read_left_behind(tmp_path, folder)
    assert not left.files
    assert "skill/references/why.md is a link" in left.problems
    assert "skill/scripts/__init__.py is not a regular file of its own" in left.problems
