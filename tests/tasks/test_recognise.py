"""Recognising a tasks file: columns, formats, a grader that fits, rows as they will be sent."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError
from skillfit.tasks import Item, load_task
from skillfit.tasks.graders import build_grader
from skillfit.tasks.recognise import RecognisedTasks, propose_grader, recognise, try_grader

CITIES = ["Paris", "Rome", "Oslo", "Cairo", "Lima", "Quito", "Delhi", "Tokyo", "Accra", "Riga"]


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


async def recognised(folder: Path, text: str, name: str = "tasks.jsonl") -> RecognisedTasks:
    (folder / name).write_text(text)
    found = await recognise(folder / name)
    # What is proposed loads as it is.
    if not found.grader.needs_judge:
        task = load_task(
            EnvSection(tasks=str(found.path), grader=found.grader.setting, fields=found.fields)
        )
        assert len(task.items) == found.count
    return found


async def test_columns_with_other_names_are_mapped(tmp_path: Path) -> None:
    rows = [
        {
            "Question ID": f"q{at}",
            "Query": f"Capital number {at}?",
            "gold_answer": city,
            "Category": ["near", "far"][at % 2],
            "fold": ["train", "val"][at % 2],
            "note": "x",
        }
        for at, city in enumerate(CITIES)
    ]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.fields == {
        "id": "Question ID",
        "input": "Query",
        "answers": "gold_answer",
        "type": "Category",
        "split": "fold",
    }
    assert (found.format, found.count, found.problems) == ("jsonl", 10, ())
    assert found.env["fields"]["input"] == "Query" and found.env["grader"] == "normalized"


async def test_usual_names_need_no_mapping_and_three_rows_are_shown_as_sent(tmp_path: Path) -> None:
    rows = [
        {"id": str(at), "question": f"Where, {at}?", "context": f"In {city}.", "answer": city}
        for at, city in enumerate(CITIES)
    ]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.fields == {} and "fields" not in found.env
    assert [example.id for example in found.examples] == ["0", "1", "2"]
    (turn,) = found.examples[0].messages
    assert (turn.role, turn.content) == ("user", "## Context\nIn Paris.\n\n## Question\nWhere, 0?")
    assert found.examples[0].expected == ("Paris",)


async def test_csv_tsv_json_and_folders_are_read(tmp_path: Path) -> None:
    rows = [{"query": f"{at} + {at}", "total": at * 2} for at in range(1, 11)]
    for name, delimiter in (("t.csv", ","), ("t.tsv", "\t")):
        table = io.StringIO()
        writer = csv.DictWriter(table, ["query", "label"], delimiter=delimiter)
        writer.writeheader()
        writer.writerows({"query": row["query"], "label": row["total"]} for row in rows)
        found = await recognised(tmp_path, table.getvalue(), name)
        assert (found.format, found.count, found.grader.setting) == (name[2:], 10, "numeric")
    listed = [{"query": row["query"], "label": row["total"]} for row in rows]
    found = await recognised(tmp_path, json.dumps({"version": 1, "data": listed}), "t.json")
    assert (found.format, found.count) == ("json", 10)
    by_id = {f"item {at}": row for at, row in enumerate(listed)}
    found = await recognised(tmp_path, json.dumps(by_id), "t.json")
    assert found.examples[0].id == "item 0"
    for split in ("train", "val"):
        (tmp_path / "folder" / split).mkdir(parents=True)
        part = listed[:5] if split == "train" else listed[5:]
        (tmp_path / "folder" / split / "items.json").write_text(json.dumps(part))
    assert (await recognise(tmp_path / "folder")).format == "folder"


async def test_evals_json_is_graded_by_its_assertions(tmp_path: Path) -> None:
    evals = [{"id": at, "prompt": f"Do {at}", "assertions": ["It is done."]} for at in range(3)]
    found = await recognised(tmp_path, json.dumps({"evals": evals}), "evals.json")
    assert (found.format, found.grader.setting, found.grader.needs_judge) == (
        "evals.json",
        "checklist",
        True,
    )
    assert found.env == {"tasks": str(tmp_path / "evals.json")}


@pytest.mark.parametrize(
    ("answers", "setting"),
    [
        (CITIES, "normalized"),
        (["refund", "delivery", "account"] * 5, {"exact": {"ignore_case": True}}),
        (["B", "A", "D", "C", "E", "a"], "choice"),
        ([3, 14.5, "-7", "1,200", "$5", "12%"], "numeric"),
        (["First 2 + 3.\n#### 5", "So 4 * 3.\n#### 12"], "numeric"),
        ([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}], "json_fields"),
        ([["Paris", "City of Paris"], ["Rome"], ["Oslo", "Kristiania"]], "normalized"),
        (["a rather longer answer of several plain words", *CITIES], "exact"),
    ],
)
async def test_the_grader_fits_the_answers(answers: list[Any], setting: Any) -> None:
    items = [
        Item(str(at), {"input": f"Question {at}", "answers": answer})
        for at, answer in enumerate(answers)
    ]
    proposal = await propose_grader(items)
    assert proposal.setting == setting and proposal.trial is not None
    assert proposal.trial.clean and proposal.trial.gold >= len(items)
    assert proposal.trial.wrong >= 2 * len(items) - 1 and proposal.why


async def test_items_with_choices_use_the_choice_grader_and_send_them(tmp_path: Path) -> None:
    rows = [
        {"question": f"Which of {at}?", "options": ["one", "two", "three"], "answer": at % 3}
        for at in range(9)
    ]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.grader.setting == "choice" and found.grader.trial is not None
    assert found.grader.trial.clean
    assert found.examples[0].messages[0].content == "Which of 0?\n\nA. one\nB. two\nC. three"


async def test_code_with_tests_is_run(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": f"Write a function that adds {at}.",
            "canonical_solution": f"def add(x):\n    return x + {at}",
            "tests": f"assert add(1) == {1 + at}",
        }
        for at in range(3)
    ]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.grader.setting == {"code": {"column": "tests"}}
    assert found.fields == {"answers": "canonical_solution"}
    assert found.grader.trial is not None and found.grader.trial.clean
    assert found.grader.trial.gold == 3


async def test_long_answers_go_to_a_judge_with_the_answer_as_reference(tmp_path: Path) -> None:
    rows = [
        {"query": f"Why {at}?", "response": f"Because {at} " + "is so " * 20} for at in range(5)
    ]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.grader.needs_judge and found.grader.trial is None
    assert isinstance(found.grader.setting, dict) and "rubric" in found.grader.setting
    assert found.fields["reference"] == "response"
    assert found.problems == ()


async def test_alpaca_rows_keep_their_instruction(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Name the capital.", "input": f"country {at}", "output": city}
        for at, city in enumerate(CITIES)
    ]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.fields == {"input": "instruction", "context": "input", "answers": "output"}
    assert "Name the capital." in found.examples[0].messages[0].content
    assert "country 0" in found.examples[0].messages[0].content


async def test_conversation_columns_with_other_names_are_mapped(tmp_path: Path) -> None:
    rows = [
        {"chat": [{"role": "user", "content": f"Hello {at}"}], "text": "x", "label": city}
        for at, city in enumerate(CITIES)
    ]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.fields == {"messages": "chat", "answers": "label"}


async def test_a_grader_that_passes_wrong_answers_is_reported(tmp_path: Path) -> None:
    items = [
        Item(city, {"input": city, "answers": [city], "choices": ["Paris", "Rome"]})
        for city in ("Paris", "Rome")
    ]
    trial = await try_grader(build_grader({"regex": "."}), items)
    assert not trial.clean and "Rome" in trial.wrong_passed[0]
    assert (await try_grader(build_grader("choice"), items)).clean


async def test_items_without_an_answer_are_a_problem(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"input": f"q{at}", "answer": "x"} for at in range(5)]
    found = await recognised(tmp_path, jsonl([*rows, {"id": "odd", "input": "no answer"}]))
    assert found.problems[0] == "1 item has no answer, the first is odd."


async def test_columns_the_user_has_chosen_are_kept(tmp_path: Path) -> None:
    rows = [{"text": f"t{at}", "query": f"q{at}", "label": city} for at, city in enumerate(CITIES)]
    (tmp_path / "t.jsonl").write_text(jsonl(rows))
    found = await recognise(tmp_path / "t.jsonl", fields={"input": "text"})
    assert found.fields == {"input": "text", "answers": "label"}


async def test_a_file_without_any_input_is_refused_with_its_columns(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(jsonl([{"foo": 1, "bar": 2}]))
    with pytest.raises(InputError, match=r"t\.jsonl:1: no input\. Columns here: foo, bar"):
        await recognise(tmp_path / "t.jsonl")
    (tmp_path / "t.jsonl").write_text("[1]\n")
    with pytest.raises(InputError, match=r"t\.jsonl: a JSON array, but"):
        await recognise(tmp_path / "t.jsonl")
    (tmp_path / "t.json").write_text(jsonl([{"input": "a"}, {"input": "b"}]))
    with pytest.raises(InputError, match=r"name the file \.jsonl"):
        await recognise(tmp_path / "t.json")


async def test_the_only_remaining_column_is_used_as_the_answers_and_reported(
    tmp_path: Path,
) -> None:
    rows = [
        {"message": f"Case {at} is about {city}.", "queue": city} for at, city in enumerate(CITIES)
    ]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.fields == {"input": "message", "answers": "queue"}
    assert "'queue'" in found.problems[0]
    unclear = await recognised(tmp_path, jsonl([row | {"desk": "3"} for row in rows]))
    assert "answers" not in unclear.fields
    assert "--field answers=COLUMN): 'queue', 'desk'." in unclear.problems[0]


async def test_a_spreadsheet_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "tasks.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError) as refused:
        await recognise(tmp_path / "tasks.xlsx")
    assert "CSV" in refused.value.hint


async def test_columns_with_custom_names_are_guessed_and_reported(tmp_path: Path) -> None:
    lines = ["Case No.,What the citizen wrote,Right bin"]
    for at in range(12):
        thing, waste_bin = (("jar", "glass"), ("peel", "bio"), ("box", "paper"))[at % 3]
        lines.append(f"W/{at},Where do I throw the {thing} number {at}?,{waste_bin}")
    found = await recognised(tmp_path, "\n".join(lines), "waste.csv")
    assert found.fields == {
        "id": "Case No.",
        "input": "What the citizen wrote",
        "answers": "Right bin",
    }
    assert len(found.problems) == 3
    assert "task texts are taken from the column 'What the citizen wrote'" in found.problems[2]


async def test_the_input_is_not_guessed_when_two_columns_qualify(tmp_path: Path) -> None:
    rows = [
        {"first": f"This is the text {at} of it.", "second": f"And this is text {at} too."}
        for at in range(8)
    ]
    (tmp_path / "t.jsonl").write_text(jsonl(rows))
    with pytest.raises(InputError, match="no input") as refused:
        await recognise(tmp_path / "t.jsonl")
    assert "--field input=" in refused.value.hint


@pytest.mark.parametrize("name", ["reference", "rationale"])
async def test_short_references_are_answers_and_no_long_texts(tmp_path: Path, name: str) -> None:
    labels = ["billing/P2", "tech/P1", "shipping/P3"]
    rows = [{"input": f"What about ticket {at}?", name: labels[at % 3]} for at in range(12)]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.grader.setting == {"exact": {"ignore_case": True}} and not found.grader.needs_judge
    assert found.examples[0].expected == ("billing/P2",)


async def test_an_object_as_input_is_shown_as_json(tmp_path: Path) -> None:
    rows = [{"input": {"text": f"Grüße {at}", "ok": True}, "answer": "a"} for at in range(4)]
    found = await recognised(tmp_path, jsonl(rows))
    assert found.examples[0].messages[0].content == '{"text": "Grüße 0", "ok": true}'


async def test_remarks_about_columns_name_the_option_that_changes_them(tmp_path: Path) -> None:
    rows = [{"Case text": f"How do I do {at} things?", "one": "x", "two": "y"} for at in range(9)]
    (tmp_path / "tasks.jsonl").write_text(jsonl(rows))
    found = await recognise(tmp_path / "tasks.jsonl")
    assert any("--field input=COLUMN" in problem for problem in found.problems)
    assert any("--field answers=COLUMN" in problem for problem in found.problems)
