"""Items from files: every way of writing them, and the errors when they are wrong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from skillfit.config.schema import EnvSection
from skillfit.errors import InputError
from skillfit.tasks import Item, Task, load_task
from skillfit.tasks.graders import build_grader, check_items
from skillfit.tasks.item import RowAt
from skillfit.tasks.rows import Row, items_of, read_rows


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def load(path: Path, **fields: str) -> list[Item]:
    return items_of(read_rows(path), fields)


def test_a_row_may_use_any_of_the_documented_names(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "input": "one", "answer": "1"},
        {"id": "b", "prompt": "two", "expected": 2},
        {"id": "c", "messages": [{"role": "user", "content": "three"}], "answers": ["3", "three"]},
    ]
    items = load(write_jsonl(tmp_path / "t.jsonl", rows))
    assert [item.input for item in items] == ["one", "two", "three"]
    assert [item.answers for item in items] == [("1",), ("2",), ("3", "three")]


def test_columns_are_mapped_by_fields_and_others_are_kept_for_the_grader(tmp_path: Path) -> None:
    (item,) = load(
        write_jsonl(tmp_path / "t.jsonl", [{"question": "q", "gold": "g", "unit": "km"}]),
        input="question",
        answer="gold",
    )
    assert (item.input, item.answers) == ("q", ("g",))
    assert item.content()["unit"] == "km"


def test_an_unknown_field_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'answers'"):
        load(write_jsonl(tmp_path / "t.jsonl", [{"input": "q"}]), answrs="gold")


def test_a_missing_input_is_an_error_with_line_columns_and_a_hint(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"input": "fine"}, {"query": "q", "gold": "g"}])
    with pytest.raises(
        InputError, match=r"t\.jsonl:2: no input\. Columns here: query, gold\..*env\.fields"
    ):
        load(path)


def test_a_column_that_env_fields_names_and_no_row_has_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"input": "a", "gold": "x"}, {"input": "b"}])
    assert [item.answers for item in load(path, answers="gold")] == [("x",), ()]
    with pytest.raises(InputError, match=r"env\.fields\.answers: no row has a column 'golds'"):
        load(path, answers="golds")
    with pytest.raises(InputError, match=r"t\.jsonl:1: no column 'text', which env\.fields\.input"):
        load(write_jsonl(tmp_path / "t.jsonl", [{"query": "a"}]), input="text")


def test_a_malformed_line_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"input": "a"}\n\n{"input": \n')
    with pytest.raises(InputError, match=r"t\.jsonl:3: not valid JSON"):
        load(tmp_path / "t.jsonl")


def test_a_line_that_is_not_an_object_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"input": "a"}\n[1]\n')
    with pytest.raises(InputError, match=r"t\.jsonl:2: expected an object"):
        load(tmp_path / "t.jsonl")


def test_a_lone_surrogate_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(
        '{"input": "whole \\ud83d\\ude00"}\n{"input": "half \\ud83d"}\n'
    )
    with pytest.raises(InputError, match=r"t\.jsonl:2: half a surrogate pair.*ud83d"):
        load(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("name", "text"), [("t.jsonl", "\n\n"), ("t.json", "[]"), ("t.csv", "input,answer\n")]
)
def test_an_empty_file_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="no items"):
        load(tmp_path / name)


def test_an_id_used_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "t.jsonl",
        [{"id": 1, "input": "a"}, {"id": 2, "input": "b"}, {"id": "1", "input": "c"}],
    )
    with pytest.raises(InputError, match=r"t\.jsonl:1 and .*t\.jsonl:3: id '1' is used twice"):
        load(path)


def test_the_same_row_twice_without_ids_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", [{"input": "a"}, {"input": "a"}])
    with pytest.raises(InputError, match="the same row is there twice"):
        load(path)


def test_a_blank_input_is_refused_unless_there_are_messages(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "a"}]
    rows = [{"input": " ", "messages": said}, {"input": " \n\t"}]
    assert len(load(write_jsonl(tmp_path / "messages.jsonl", rows[:1]))) == 1
    with pytest.raises(InputError, match=r"t\.jsonl:2: the input is blank"):
        load(write_jsonl(tmp_path / "t.jsonl", rows))


def test_ids_may_be_zero_or_false(tmp_path: Path) -> None:
    items = load(
        write_jsonl(
            tmp_path / "t.jsonl",
            [{"id": 0, "input": "a"}, {"id": 1, "input": "b"}, {"id": False, "input": "c"}],
        )
    )
    assert [item.id for item in items] == ["0", "1", "False"]


@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_column_is_ignored(tmp_path: Path, nothing: str | None) -> None:
    turns = [{"role": "user", "content": "hello"}]
    empty = dict.fromkeys(
        ("id", "input", "answers", "type", "split", "files", "images", "reference", "weight"),
        nothing,
    )
    (item,) = load(write_jsonl(tmp_path / "t.jsonl", [{**empty, "messages": turns}]))
    (same,) = load(write_jsonl(tmp_path / "s.jsonl", [{"messages": turns}]))
    assert (item.input, item.answers, item.type, item.split, item.weight) == (
        "hello",
        (),
        "",
        None,
        1.0,
    )
    assert (item.reference, item.attachments()) == ("", ())
    assert (item.id, item.fingerprint()) == (same.id, same.fingerprint())
    (plain,) = load(
        write_jsonl(
            tmp_path / "p.jsonl", [{"input": "q", "messages": nothing, "answers": [nothing, "x"]}]
        )
    )
    assert (plain.messages[0].content, plain.answers[-1]) == ("q", "x")


def test_a_null_gold_answer_counts_as_missing(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "t.jsonl", [{"id": "a", "input": "q", "answers": None}])
    with pytest.raises(InputError, match=r"item a \(q\): has no answer"):
        load_task(EnvSection(tasks="t.jsonl", folder=str(tmp_path)))


@pytest.mark.parametrize("answer", ["NaN", "-Infinity", "1e999", '["a", {"b": [Infinity]}]'])
def test_nan_and_infinite_answers_are_refused_with_their_line(tmp_path: Path, answer: str) -> None:
    path = tmp_path / "tasks.jsonl"
    first = '{"input": "a", "answer": 1.5, "note": NaN}'
    path.write_text(f'{first}\n{{"input": "b", "answer": {answer}}}\n')
    with pytest.raises(InputError, match=r"tasks\.jsonl:2: the answer is or contains (nan|-?inf)"):
        items_of(read_rows(path), {})
    path.write_text(first)
    assert items_of(read_rows(path), {})[0].answers == ("1.5",)


def test_an_answer_that_contains_itself_is_refused() -> None:
    answer: list[Any] = []
    answer.append(answer)
    with pytest.raises(InputError, match=r"items\[0\]: nested too deeply"):
        Task([{"id": 1, "input": "a", "answer": answer}])


def test_rows_nested_too_deeply_are_reported(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"input": ' + "[" * 100_000 + "\n")
    with pytest.raises(InputError, match=r"t\.jsonl:1: nested too deeply"):
        load(tmp_path / "t.jsonl")


def test_generated_ids_depend_on_content_and_not_on_position(tmp_path: Path) -> None:
    rows = [{"input": "a", "answer": "1"}, {"input": "b", "answer": "2"}]
    forward = load(write_jsonl(tmp_path / "f.jsonl", rows))
    backward = load(write_jsonl(tmp_path / "b.jsonl", rows[::-1]))
    assert [item.id for item in forward] == [item.id for item in backward[::-1]]


def test_csv_cells_may_contain_lists(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "id,prompt,answers,type\n1,q,\"['x', 'y']\",easy\n2,q2,plain,\n"
    )
    first, second = load(tmp_path / "t.csv")
    assert (first.answers, first.type) == (("x", "y"), "easy")
    assert second.answers == ("plain",)


@pytest.mark.parametrize(
    "cell", ["{1, 2}", "{(1, 2): 3}", "[b'x']", "[...]", "[" * 5000, "[1, {'a', 'b'}]"]
)
def test_a_csv_cell_that_is_not_valid_json_is_text(tmp_path: Path, cell: str) -> None:
    (tmp_path / "t.csv").write_text(f'input,answer\n"{cell}","{cell}"\n')
    (item,) = load(tmp_path / "t.csv")
    assert (item.input, item.answers) == (cell, (cell,))


def test_a_csv_line_of_the_wrong_length_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("input,answer\nq,a\nq\n")
    with pytest.raises(InputError, match=r"t\.csv:3"):
        load(tmp_path / "t.csv")


def test_big_rows_stay_on_disk_and_read_back_the_same(tmp_path: Path) -> None:
    rows = [
        {"id": str(number), "input": "x" * 10_000 + str(number), "answer": "é"}
        for number in range(3)
    ]
    items = load(write_jsonl(tmp_path / "t.jsonl", [{"id": "small", "input": "s"}, *rows]))
    assert isinstance(items[0].row, dict)
    assert all(isinstance(item.row, RowAt) for item in items[1:])
    assert [item.input for item in items[1:]] == [row["input"] for row in rows]
    assert items[2].answers == ("é",)
    assert items[2].fingerprint() == Item("1", rows[1]).fingerprint()


def test_a_fingerprint_changes_with_the_meaning_and_not_with_the_split(tmp_path: Path) -> None:
    plain, moved, changed = (
        Item("a", row)
        for row in (
            {"input": "q", "answer": "1"},
            {"input": "q", "answer": "1", "split": "test", "weight": 2},
            {"input": "q", "answer": "2"},
        )
    )
    assert plain.fingerprint() == moved.fingerprint() != changed.fingerprint()


def test_files_and_images_are_beside_the_tasks_file_and_in_the_fingerprint(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t.csv").write_text("1")
    (tmp_path / "p.jpg").write_bytes(b"jpeg")
    path = write_jsonl(
        tmp_path / "t.jsonl", [{"input": "q", "files": ["data/t.csv"], "images": ["p.jpg"]}]
    )
    (item,) = load(path)
    assert item.files == {"data/t.csv": tmp_path / "data" / "t.csv"}
    assert item.images[0].media_type == "image/jpeg"
    assert item.messages[-1].images == item.images
    (tmp_path / "p.jpg").write_bytes(b"another")
    (again,) = load(path)
    assert again.fingerprint() != item.fingerprint()


def test_a_missing_file_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t\.jsonl:1: .*gone\.txt does not exist"):
        load(write_jsonl(tmp_path / "t.jsonl", [{"input": "q", "files": ["gone.txt"]}]))


@pytest.mark.parametrize(
    "row",
    [
        {"messages": "hello"},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"input": "q", "weight": "heavy"},
        {"input": "q", "split": "tain"},
        {"input": "q", "split": ["train"]},
        {"input": "q", "files": 5},
        {"input": "q", "files": [5]},
        {"input": "q", "files": {"a.txt": None}},
        {"input": "q", "images": {"t.jsonl": "t.jsonl"}},
        {"messages": []},
    ],
)
def test_bad_values_are_refused_with_their_line(tmp_path: Path, row: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"t\.jsonl:1"):
        load(write_jsonl(tmp_path / "t.jsonl", [row]))


def test_a_conversation_keeps_its_turns() -> None:
    turns = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    item = Item("x", {"messages": [*turns, {"role": "user", "content": "c"}]})
    assert [(turn.role, turn.content) for turn in item.messages][-2:] == [
        ("assistant", "b"),
        ("user", "c"),
    ]
    assert item.input == "a\n\nc"


def test_folders_give_the_splits(tmp_path: Path) -> None:
    for name, suffix, count in (("train", "json", 3), ("valid", "jsonl", 4), ("test", "csv", 2)):
        (tmp_path / name).mkdir()
        rows = [
            {"id": f"{name}{number}", "input": f"{name} question {number}", "answer": "1"}
            for number in range(count)
        ]
        file = tmp_path / name / f"items.{suffix}"
        if suffix == "csv":
            file.write_text(
                "id,input,answer\n" + "".join(f"{row['id']},{row['input']},1\n" for row in rows)
            )
        else:
            file.write_text(
                json.dumps(rows) if suffix == "json" else "\n".join(map(json.dumps, rows))
            )
    task = load_task(EnvSection(tasks=".", folder=str(tmp_path)))
    assert [len(split) for split in (task.train, task.selection, task.test)] == [3, 4, 2]
    assert task.selection[0].id == "valid0"


def test_a_folder_without_train_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    with pytest.raises(InputError, match="no train/"):
        load_task(EnvSection(tasks=str(tmp_path)))


def test_a_missing_path_is_refused_with_the_accepted_forms(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a file nor a folder"):
        load_task(EnvSection(tasks="nope.jsonl", folder=str(tmp_path)))


def test_a_context_is_sent_to_the_agent(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "question": "Who?", "context": "Anna left. Ben stayed.", "answers": ["Ben"]},
        {"id": "b", "input": "Why?", "context": ["one", "two"]},
        {
            "id": "c",
            "messages": [
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": "Hi"},
                {"role": "user", "content": "Who?"},
            ],
            "context": "Anna left.",
        },
    ]
    first, second, third = load(write_jsonl(tmp_path / "t.jsonl", rows))
    asked = "## Context\nAnna left. Ben stayed.\n\n## Question\nWho?"
    assert first.input == asked and [turn.content for turn in first.messages] == [asked]
    assert second.messages[0].content == "## Context\none\n\ntwo\n\n## Question\nWhy?"
    assert [turn.content for turn in third.messages] == [
        "Hello",
        "Hi",
        "## Context\nAnna left.\n\n## Question\nWho?",
    ]


def test_a_single_answer_is_a_list_for_graders_in_python(tmp_path: Path) -> None:
    rows = [{"id": "a", "input": "q", "answer": "Paris"}, {"id": "b", "input": "q2", "answer": 7}]
    first, second = load(write_jsonl(tmp_path / "t.jsonl", rows))
    assert first.as_dict()["answers"] == ["Paris"] and second.as_dict()["answers"] == [7]
    assert "" not in first.as_dict()["answers"]


def test_files_outside_the_folder_of_the_tasks_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("key")
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "fine.txt").write_text("fine")
    for row in (
        {"input": "q", "files": ["../secret.txt"]},
        {"input": "q", "files": {"a.txt": str(tmp_path / "secret.txt")}},
        {"input": "q", "files": ["link.txt"]},
        {"input": "q", "images": ["../secret.txt"]},
    ):
        with pytest.raises(
            InputError, match=r"t\.jsonl:1: .* is outside the folder of the tasks, "
        ):
            load(write_jsonl(folder / "t.jsonl", [row]))
    row = {"input": "q", "files": [str(folder / "fine.txt")]}
    assert load(write_jsonl(folder / "t.jsonl", [row]))[0].files == {
        "fine.txt": folder / "fine.txt"
    }


def test_files_may_also_be_in_the_corpus(tmp_path: Path) -> None:
    for name in ("tasks", "corpus"):
        (tmp_path / name).mkdir()
    (tmp_path / "corpus" / "doc.txt").write_text("shared")
    rows = [{"input": f"q{at}", "answer": "a", "files": ["../corpus/doc.txt"]} for at in range(5)]
    write_jsonl(tmp_path / "tasks" / "t.jsonl", rows)
    settings = EnvSection(tasks="t.jsonl", folder=str(tmp_path / "tasks"))
    with pytest.raises(InputError, match=r"is outside the folder.*env\.corpus"):
        load_task(settings)
    task = load_task(settings.model_copy(update={"corpus": str(tmp_path / "corpus")}))
    assert list(task.items[0].files) == ["doc.txt"]


def test_files_of_a_split_folder_may_be_beside_the_splits(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "p.png").write_bytes(b"png")
    for name, count in (("train", 2), ("val", 4)):
        (tmp_path / name).mkdir()
        rows = [
            {"input": f"{name} {at}", "answer": "1", "images": "../pages/p.png"}
            for at in range(count)
        ]
        write_jsonl(tmp_path / name / "items.jsonl", rows)
    items = load_task(EnvSection(tasks=".", folder=str(tmp_path))).items
    assert len(items) == 6 and all(item.images[0].path.is_file() for item in items)


def test_a_folder_in_files_includes_every_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "a.txt").write_text("a")
    (tmp_path / "docs" / "deep" / "b.txt").write_text("b")
    (item,) = load(write_jsonl(tmp_path / "t.jsonl", [{"input": "q", "files": ["docs"]}]))
    assert list(item.files) == ["docs/a.txt", "docs/deep/b.txt"]
    (tmp_path / "docs" / "deep" / "link").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match="is outside the folder"):
        load(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"input": "q", "answer": ' + "9" * 5000 + "}", "too many digits"),
        ('{"input": "q", "weight": ' + "9" * 400 + "}", "weight .* is not a number above 0"),
        ('{"input": "q", "weight": 1e308}', "weight 1e\\+308 is not between 1e-06 and 1e\\+06"),
        ('{"input": "q", "weight": 1e-308}', "weight 1e-308 is not between 1e-06 and 1e\\+06"),
        ('{"input": "q", "x": ' + "[" * 600 + "]" * 600 + "}", "nested too deeply"),
        ('{"input": "q", "image_detail": "huge"}', "unknown image_detail 'huge'"),
    ],
)
def test_huge_numbers_and_deep_nesting_are_reported(
    tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "t.jsonl").write_text('{"input": "fine"}\n' + line + "\n")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        with pytest.raises(InputError, match=rf"t\.jsonl:2: .*{message}"):
            load(tmp_path / "t.jsonl")
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("name", ["tasks.jsonl", "evals.json", "folder"])
def test_a_named_pipe_as_tasks_is_an_error_and_does_not_hang(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / name
    if name == "folder":
        (pipe / "train").mkdir(parents=True)
        pipe = pipe / "train" / "items.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="not a regular file"):
        load_task(EnvSection(tasks=name, folder=str(tmp_path)))


def test_a_named_pipe_among_the_files_of_an_item_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is not a regular file"):
        load(write_jsonl(tmp_path / "t.jsonl", [{"input": "q", "files": ["pipe"]}]))


def test_a_folder_with_one_file_of_all_items_is_enough(tmp_path: Path) -> None:
    rows = [{"id": str(number), "input": f"item {number}", "answer": "1"} for number in range(20)]
    (tmp_path / "items.json").write_text(json.dumps(rows))
    task = load_task(EnvSection(tasks=".", folder=str(tmp_path)))
    assert [len(split) for split in (task.train, task.selection, task.test)] == [8, 8, 4]


def test_long_cells_of_csv_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"input,answer\n{'word ' * 40_000},a\n")
    (item,) = load(tmp_path / "t.csv")
    assert len(item.input) == 200_000


ROWS = [{"ticket": "Grüße, wo ist das Paket?", "label": "shipping"}, {"ticket": "b", "label": "c"}]
TABLE = 'ticket{0}label\n"Grüße, wo ist das Paket?"{0}shipping\nb{0}c\n'


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_csv_files_of_spreadsheets_are_read(tmp_path: Path, delimiter: str, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes(TABLE.format(delimiter).encode(encoding))
    assert [row.values for row in read_rows(tmp_path / "a.csv")] == ROWS


def test_a_file_that_is_not_utf8_is_refused_with_line_and_cause(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(TABLE.format(";").encode("cp1252"))
    (tmp_path / "a.jsonl").write_bytes('{"input": "ü"}\n'.encode("utf-16"))
    with pytest.raises(InputError, match=r"a\.csv:2: not UTF-8 text \(byte 0xfc\)") as caught:
        list(read_rows(tmp_path / "a.csv"))
    assert "Windows-1252" in caught.value.hint and "CSV UTF-8" in caught.value.hint
    with pytest.raises(InputError, match="not UTF-8 text") as caught:
        list(read_rows(tmp_path / "a.jsonl"))
    assert "It is UTF-16" in caught.value.hint


def test_an_input_that_is_no_number_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"input": "a", "answer": "b"}\n{"input": NaN}\n')
    with pytest.raises(InputError, match=r"tasks\.jsonl:2: the input is nan"):
        items_of(read_rows(tmp_path / "tasks.jsonl"), {})


def test_a_json_array_in_a_jsonl_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('[\n {"input": "a"}\n]\n')
    with pytest.raises(InputError, match="a JSON array, but") as caught:
        list(read_rows(tmp_path / "a.jsonl"))
    assert "Name the file .json." in caught.value.hint


def test_names_that_may_be_typos_are_named(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"inptu": "a"}\n')
    with pytest.raises(InputError, match="no such file") as caught:
        list(read_rows(tmp_path / "task.jsonl"))
    assert "Did you mean 'tasks.jsonl'?" in caught.value.hint
    with pytest.raises(InputError, match="no input") as caught:
        items_of(read_rows(tmp_path / "tasks.jsonl"), {})
    assert "Is 'inptu' meant as 'input'?" in caught.value.hint
    items = items_of([Row({"input": "a", "anwser": "b"}, "here")], {})
    with pytest.raises(InputError, match="has no answer") as caught:
        check_items(build_grader("exact"), items)
    assert "Is 'anwser' meant as 'answer'?" in caught.value.hint
