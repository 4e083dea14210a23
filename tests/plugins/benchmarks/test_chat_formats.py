"""The chat benchmarks read the formats in which their data is published, and name what is wrong."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError
from skillfit.plugins.benchmarks.prepare import make
from skillfit.plugins.benchmarks.questions import choices_in, show_results
from skillfit.tasks import load_task
from skillfit.tasks.item import Attempt, Item
from skillfit.tasks.task import Task
from tests.plugins.benchmarks.sample_training import Lab, sample_task

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a4944415478da6360000000020001e221bc330000000049454e44ae426082"
)


def loaded(reference: str, base: Path, **options: Any) -> Task:
    return load_task(
        EnvSection(tasks=reference, folder=str(base), grader="exact", task_args=options)
    )


def dump(path: Path, rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


# docvqa


def test_docvqa_reads_csv_with_answers_as_python_lists(tmp_path: Path) -> None:
    (tmp_path / "docvqa_images").mkdir()
    (tmp_path / "docvqa_images" / "q7.png").write_bytes(PIXEL)
    for split in ("train", "val", "test"):
        (tmp_path / "splits" / split).mkdir(parents=True)
        with (tmp_path / "splits" / split / "items.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["questionId", "question", "answer", "image_path", "topic"])
            question = f"What is in {split}? document_path: documents/x.png"
            writer.writerow([split, question, "['11', '11 %']", "docvqa_images/q7.png", "form"])
    with pytest.raises(InputError, match="data_root"):
        loaded("docvqa:splits", tmp_path)
    task = loaded("docvqa:splits", tmp_path, data_root=".")
    first = next(item for item in task.items if item.id == "train")
    assert (first.input, first.answers) == ("What is in train?", ("11", "11 %"))
    assert first.images[0].path == tmp_path / "docvqa_images" / "q7.png"


def test_docvqa_reads_the_publishers_json(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "a_1.png").write_bytes(PIXEL)
    row = {
        "questionId": 337,
        "question": "what is the date?",
        "image": "documents/a_1.png",
        "docId": 279,
        "answers": ["1/8/93"],
        "data_split": "val",
    }
    dump(tmp_path / "val_v1.0.json", {"dataset_name": "docvqa", "data": [row]})
    (item,) = loaded("docvqa:.", tmp_path).items
    assert (item.id, item.answers) == ("337", ("1/8/93",))


def test_docvqa_from_parquet_writes_its_images(tmp_path: Path, no_user_data: Path) -> None:
    pytest.importorskip("pyarrow")
    from tests.plugins.benchmarks.test_prepare import parquet

    image = {"bytes": PIXEL, "path": None}
    row = {"questionId": "5", "question": "q?", "answers": ["a"], "image": image, "docId": "9"}
    (tmp_path / "validation-0.parquet").write_bytes(parquet([row]))
    result = make("docvqa", tmp_path / "validation-0.parquet")
    assert result.counts == {"items": 1}
    (item,) = loaded("docvqa", tmp_path).items
    assert item.images[0].path.parent == no_user_data / "docvqa" / "files"
    assert item.images[0].path.read_bytes() == PIXEL


def test_a_missing_image_is_named_with_its_row(tmp_path: Path) -> None:
    row = {"questionId": "5", "question": "q?", "answers": ["a"], "image": "gone.png"}
    dump(tmp_path / "rows.json", [row])
    with pytest.raises(InputError, match=r"rows.json: item 1: the image gone.png"):
        loaded("docvqa:rows.json", tmp_path)


# mathverse


def test_choices_are_found_in_the_question() -> None:
    for text in ("Find x.\nChoices:\nA:2\nB:3 cm\nC:4", "Find x. Choices: A. 2 B. 3 cm C. 4"):
        found = [(option.label, option.text) for option in choices_in(text)]
        assert found == [("A", "2"), ("B", "3 cm"), ("C", "4")]
    assert choices_in("Find AB.") == []


def test_mathverse_uses_one_version_of_each_problem() -> None:
    lite = sample_task("mathverse")
    everything = sample_task("mathverse", task_args={"problem_version": "all"})
    assert len(everything.items) == 2 * len(lite.items)
    dominant = sample_task("mathverse", task_args={"problem_version": "Text Dominant"})
    assert {item.id for item in dominant.items} == {item.id for item in lite.items}
    assert dominant.items[0].input.endswith(lite.items[0].input)
    with pytest.raises(InputError, match="no items"):
        sample_task("mathverse", task_args={"problem_version": "Vision Only"})


def test_mathverse_can_show_analysts_the_text_version() -> None:
    plain = sample_task("mathverse")
    task = sample_task("mathverse", task_args={"use_text_dominant_reference": True})
    assert all(item.reference.endswith(item.input) for item in task.items)
    assert {item.reference for item in plain.items} == {""}


# babyvision and mmrb


def test_babyvision_reads_choices_by_position_and_free_answers(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(PIXEL)
    common = {"question": "Where?", "image": "1.png", "type": "t", "subtype": "Maze", "coT": "look"}
    rows = [
        {"taskId": 1, "ansType": "choice", "options": ["x", "y"], "choiceAns": 1, **common},
        {"taskId": 2, "ansType": "blank", "options": [], "blankAns": "(1, 2)", **common},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "meta_data.jsonl").write_text(lines)
    choice, blank = sorted(loaded("babyvision:.", tmp_path).items, key=lambda item: item.id)
    assert choice.answers == ("B",) and choice.input == "Where?\n\nA. x\nB. y"
    assert blank.answers == ("(1, 2)",) and blank.reference == "look"
    assert choice.type == "Maze"


@pytest.mark.parametrize(
    "answer",
    [
        "<answer>7</answer>",
        "So it grows by two. Answer[7]",
        "Therefore \\boxed{7}.",
        "The answer is 7.",
        "The answer: 7",
        "Counting again:\n7",
    ],
)
async def test_mmrb_finds_the_answer_in_its_usual_forms(answer: str) -> None:
    task = sample_task("mmrb")
    assert task.grader is not None
    item = Item("1", {"input": "How many?", "answers": ["7"]})
    assert (await task.grader.grade(item, Attempt(answer))).hard == 1


@pytest.mark.parametrize("answer", ["17", "7 or 8", "70", "-7", ""])
async def test_mmrb_does_not_accept_an_answer_that_contains_the_gold_one(answer: str) -> None:
    task = sample_task("mmrb")
    assert task.grader is not None
    item = Item("1", {"input": "How many?", "answers": ["7"]})
    assert (await task.grader.grade(item, Attempt(f"<answer>{answer}</answer>"))).hard == 0


# livemathematicianbench


def published_month(tmp_path: Path, count: int, right: str = "") -> Path:
    """Rows as in the publisher's monthly files; `right`: a text that is always the right choice."""
    rows = []
    for number in range(1, count + 1):
        texts = [f"statement {number}-{letter}" for letter in "VWXYZ"]
        texts[number % 5] = right or texts[number % 5]
        rows.append(
            {
                "no": number,
                "paper_link": "http://arxiv.org/abs/2511.00001v1",
                "theorem": f"Theorem {number}.",
                "sketch": f"Idea {number}.",
                "theorem_type": ["Existence"],
                "mcq": {
                    "question": f"Which statement about object {number * 37} holds?",
                    "choices": [
                        {"label": label, "text": text}
                        for label, text in zip("ABCDE", texts, strict=True)
                    ],
                    "correct_choice": {"label": "ABCDE"[number % 5], "text": texts[number % 5]},
                },
            }
        )
    return dump(tmp_path / "data" / "202511" / "qa_202511_final.json", rows)


def test_livemathematicianbench_reads_the_publishers_monthly_files(tmp_path: Path) -> None:
    published_month(tmp_path, 20)
    task = loaded("livemathematicianbench:data", tmp_path)
    assert {item.id for item in task.items} == {f"202511:{number}" for number in range(1, 21)}
    for item in task.items:
        choices = item.content()["choices"]
        assert sorted(choices) == list("ABCDE") and item.answers[0] in choices.values()
        assert "Theorem" not in item.input and "Idea" not in item.input
    shown = loaded("livemathematicianbench:data", tmp_path, use_theorem=True, use_sketch=True)
    assert all("Theorem" in item.input and "Idea" in item.input for item in shown.items)


def test_items_with_a_choice_that_is_always_right_can_be_left_out(tmp_path: Path) -> None:
    rows = json.loads(published_month(tmp_path, 20).read_text())
    for row in rows[:5]:
        row["mcq"]["choices"][0]["text"] = "Yes, but a stronger result can be proven."
        row["mcq"]["correct_choice"] = row["mcq"]["choices"][0]
    dump(tmp_path / "data" / "202511" / "qa_202511_final.json", rows)
    phrase = "a stronger result can be proven"
    task = loaded("livemathematicianbench:data", tmp_path, leave_out=phrase)
    assert {item.id for item in task.items} == {f"202511:{number}" for number in range(6, 21)}


def test_choices_are_shuffled_for_each_item_in_the_same_way_every_time(tmp_path: Path) -> None:
    published_month(tmp_path, 200, right="")
    first = loaded("livemathematicianbench:data", tmp_path)
    again = loaded("livemathematicianbench:data", tmp_path)
    assert [item.input for item in first.items] == [item.input for item in again.items]

    def places(task: Task) -> Counter[int]:
        found = Counter[int]()
        for item in task.items:
            found[list(item.content()["choices"].values()).index(item.answers[0])] += 1
        return found

    assert min(places(first)[place] for place in range(5)) > 20
    as_published = loaded("livemathematicianbench:data", tmp_path, shuffle_choices=False)
    assert set(places(as_published).values()) == {40}
    other = loaded("livemathematicianbench:data", tmp_path, shuffle_seed=7)
    assert [item.input for item in other.items] != [item.input for item in first.items]


def test_the_shortcut_audit_finds_a_phrase_that_is_always_right(
    tmp_path: Path, make_lab: Callable[..., Lab]
) -> None:
    phrase = "A stronger statement than any other option can be proven."
    path = published_month(tmp_path, 40, right=phrase)
    lab = make_lab(solve=lambda call: "<answer>A</answer>")
    checks = lab.check(f"livemathematicianbench:{path}")
    assert checks["shortcut"]["verdict"] == "warn"
    assert "majority answer" in checks["shortcut"]["message"]


# sealqa


def test_sealqa_shows_search_results_in_every_form() -> None:
    results = [{"title": "T", "url": "u", "date": "2020", "snippet": "s"}, "plain"]
    shown = "[1] T\nu\n2020\ns\n\n[2] plain"
    assert show_results(results) == show_results(json.dumps(results)) == shown
    assert show_results(" some text ") == "some text"
    assert show_results("[not json") == "[not json"
    assert show_results("[" * 100_000) == "[" * 100_000
    assert show_results(None) == ""


def test_sealqa_reads_csv_and_needs_a_judge(tmp_path: Path) -> None:
    with (tmp_path / "seal-0.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "answer", "topic", "search_results"])
        writer.writerow(["Who won?", "Ann", "sports", "Ann won, says the paper."])
    (item,) = loaded("sealqa:seal-0.csv", tmp_path, max_evidence_chars=7).items
    assert item.input == "## Search results\n\nAnn won\n\n## Question\n\nWho won?"
    with pytest.raises(InputError, match=r"needs model.judge"):
        load_task(EnvSection(tasks="sealqa:seal-0.csv", folder=str(tmp_path)))
