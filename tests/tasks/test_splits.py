"""Splits: disjoint, complete, deterministic, stratified, and near-duplicates never on two sides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.config.schema import SplitSection
from skillfit.errors import InputError
from skillfit.tasks import Item
from skillfit.tasks.item import Split
from skillfit.tasks.splits import (
    SPLITS,
    make_splits,
    similar_groups,
    split_items,
    split_named,
)

_WORDS = [
    f"{a}{b}"
    for a in ("ka", "lo", "mi", "su", "re", "to")
    for b in ("ban", "dor", "fel", "gim", "nar", "pul", "sev", "tik")
]


def sentence(seed: object, words: int = 30) -> str:
    return " ".join(random.Random(str(seed)).choices(_WORDS, k=words))


def items_of_types(types: list[str]) -> list[Item]:
    return [Item(str(at), {"input": sentence(at)}, type=kind) for at, kind in enumerate(types)]


ratios = st.tuples(*[st.integers(1, 9)] * 3).map(lambda parts: tuple(float(part) for part in parts))


@settings(max_examples=60)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60), ratios, st.integers(0, 99))
def test_generated_splits_use_every_item_once_and_match_the_ratio(
    types: list[str], ratio: tuple[float, float, float], seed: int
) -> None:
    items = items_of_types(types)
    made = make_splits(items, ratio, seed)
    assert sorted(item.id for split in made.values() for item in split) == sorted(
        item.id for item in items
    )
    for name, part in zip(SPLITS, ratio, strict=True):
        assert abs(len(made[name]) - len(items) * part / sum(ratio)) < 1
        assert all(item.split == name for item in made[name])


@settings(max_examples=60)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60), ratios, st.integers(0, 99))
def test_every_type_matches_the_ratio(
    types: list[str], ratio: tuple[float, float, float], seed: int
) -> None:
    made = make_splits(items_of_types(types), ratio, seed)
    for name, part in zip(SPLITS, ratio, strict=True):
        there = Counter(item.type for item in made[name])
        for kind, count in Counter(types).items():
            assert abs(there[kind] - count * part / sum(ratio)) < 2.5


@settings(max_examples=30)
@given(st.integers(5, 40), st.integers(0, 99), st.randoms())
def test_generated_splits_depend_on_ids_and_seed_and_not_on_order(
    count: int, seed: int, shuffle: random.Random
) -> None:
    items = items_of_types(["x"] * count)
    other = list(items)
    shuffle.shuffle(other)
    assert make_splits(items, (4, 4, 2), seed) == make_splits(other, (4, 4, 2), seed)


def test_another_seed_gives_other_splits() -> None:
    items = items_of_types(["x"] * 50)
    assert make_splits(items, (1, 1, 1), 0) != make_splits(items, (1, 1, 1), 1)


def test_skillopts_ratio_gives_its_counts() -> None:
    made = make_splits(items_of_types(["x"] * 177), (2, 1, 7), 42)
    assert [len(made[name]) for name in SPLITS] == [35, 18, 124]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=6, max_size=15), st.integers(0, 9))
def test_near_duplicates_are_in_the_same_split(sizes: list[int], seed: int) -> None:
    items = [
        Item(f"{family}.{member}", {"input": sentence(family, 60) + f" {'!' * member}"})
        for family, size in enumerate(sizes)
        for member in range(size)
    ]
    made = make_splits(items, (4, 4, 2), seed)
    home = {item.id: name for name in SPLITS for item in made[name]}
    assert len(home) == len(items)
    for family in range(len(sizes)):
        assert len({home[item.id] for item in items if item.id.startswith(f"{family}.")}) == 1


def test_a_changed_word_in_a_long_text_is_a_near_duplicate_and_another_text_is_not() -> None:
    text = sentence("base", 120)
    typo = text.replace(text.split()[60], "changed", 1)
    items = [
        Item("a", {"input": text}),
        Item("b", {"input": typo}),
        *(Item(str(at), {"input": sentence(at, 120)}) for at in range(20)),
    ]
    assert [group for group in similar_groups(items) if len(group) > 1] == [[0, 1]]


def test_items_made_from_one_template_are_not_duplicates() -> None:
    template = (
        "You are given an invoice from our archive. Read it with care, then say in one word which "
        "currency it uses. Invoice: {}"
    )
    items = [Item(str(at), {"input": template.format(sentence(at, 6))}) for at in range(12)]
    assert all(len(group) == 1 for group in similar_groups(items))


def grown(text: str, at: object) -> str:
    """A copy with another word at the end."""
    return f"{text} own{at}"


def edited(text: str, at: int) -> str:
    """A copy with another word somewhere."""
    words = text.split()
    words[random.Random(at).randrange(len(words))] = f"own{at}"
    return " ".join(words)


@pytest.mark.parametrize("copy", [grown, edited])
@pytest.mark.parametrize(
    ("copies", "count"), [(4, 40), (6, 40), (20, 40), (12, 200), (25, 1000), (300, 1000)]
)
def test_any_number_of_copies_stay_in_one_split(
    copies: int, count: int, copy: Callable[[str, int], str]
) -> None:
    texts = [copy(sentence("base", 150), at) for at in range(copies)] + [
        sentence(at, 150) for at in range(count - copies)
    ]
    groups = similar_groups([Item(str(at), {"input": text}) for at, text in enumerate(texts)])
    assert [group for group in groups if len(group) > 1] == [list(range(copies))]


def test_any_number_of_copies_across_given_splits_is_refused() -> None:
    copies = [
        Item(f"copy{at}", {"input": grown(sentence("base"), at)}, split=SPLITS[at % 3])
        for at in range(6)
    ]
    with pytest.raises(
        InputError, match="1 group of near-duplicate items is in more than one split: copy0"
    ):
        split_items([*given_splits(20, 20, 20), *copies], SplitSection())


def test_copies_similar_only_to_their_original_are_grouped_with_it() -> None:
    base = sentence("base", 60)
    texts = [
        *(edited(base, at) for at in range(100)),
        base,
        *(sentence(at, 60) for at in range(400)),
    ]
    groups = similar_groups([Item(str(at), {"input": text}) for at, text in enumerate(texts)])
    assert [len(group) for group in groups if len(group) > 1] == [101]


@pytest.mark.parametrize("words", [1, 3, 10])
@pytest.mark.parametrize("count", [12, 40, 400])
def test_a_template_shared_by_all_items_groups_nothing(count: int, words: int) -> None:
    before, after = sentence("before", 100), sentence("after", 60)
    contents = [" ".join(f"own{at}x{word}" for word in range(words)) for at in range(count)]
    items = [
        Item(str(at), {"input": f"{before} {content} {after}"})
        for at, content in enumerate(contents)
    ]
    assert all(len(group) == 1 for group in similar_groups(items))


@pytest.mark.parametrize("templates", [2, 3, 8])
def test_several_templates_group_nothing_and_copies_with_them_are_found(templates: int) -> None:
    texts = [
        f"{sentence(f'template {at % templates}', 150)} {sentence(at, 12)}" for at in range(120)
    ]
    items = [
        Item(str(at), {"input": text})
        for at, text in enumerate([*texts, grown(texts[0], "a"), grown(texts[1], "b")])
    ]
    assert [group for group in similar_groups(items) if len(group) > 1] == [[0, 120], [1, 121]]


def test_a_near_duplicate_with_a_long_template_is_found() -> None:
    template = sentence("template", 60)
    text = sentence("base", 200)
    typo = text.replace(text.split()[100], "changed", 1)
    others = [Item(str(at), {"input": f"{template} {sentence(at, 200)}"}) for at in range(20)]
    items = [
        Item("a", {"input": f"{template} {text}"}),
        *others,
        Item("b", {"input": f"{template} {typo}"}),
    ]
    assert [group for group in similar_groups(items) if len(group) > 1] == [[0, 21]]


def test_the_same_question_about_two_pictures_is_two_items(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(name.encode())
    items = [
        Item(name, {"input": "What is the total?", "images": [name]}, base=tmp_path)
        for name in ("a.png", "b.png")
    ]
    assert similar_groups(items) == [[0], [1]]


def test_an_operator_distinguishes_items_and_a_question_mark_does_not() -> None:
    texts = ["what is 2 + 2", "What is  2 + 2?", "what is 2 - 2"]
    assert similar_groups([Item(text, {"input": text}) for text in texts]) == [[0, 1], [2]]


def given_splits(*counts: int) -> list[Item]:
    return [
        Item(f"{name}{at}", {"input": sentence(f"{name}{at}")}, split=name)
        for name, count in zip(SPLITS, counts, strict=True)
        for at in range(count)
    ]


def test_given_splits_are_kept_in_order_and_caps_take_the_first() -> None:
    caps: dict[Split, int] = {"train": 2, "selection": 0, "test": 9}
    splits = split_items(given_splits(6, 5, 3), SplitSection(limit=5), caps=caps)
    assert [item.id for item in splits.train] == ["train0", "train1"]
    assert (len(splits.selection), len(splits.test)) == (5, 3)


def test_near_duplicates_across_given_splits_are_refused_by_name() -> None:
    items = [
        *given_splits(5, 5, 1),
        Item("copy", {"input": sentence("train0").upper()}, split="test"),
    ]
    with pytest.raises(InputError, match=r"train0 \(train\) ~ copy \(test\)"):
        split_items(items, SplitSection())


def test_ratio_mode_redistributes_given_splits() -> None:
    splits = split_items(given_splits(20, 0, 0), SplitSection(split_mode="ratio"))
    assert [len(part) for part in (splits.train, splits.selection, splits.test)] == [8, 8, 4]


def test_split_dir_mode_without_splits_is_refused() -> None:
    with pytest.raises(InputError, match="tasks have no splits"):
        split_items(items_of_types(["x"] * 20), SplitSection(split_mode="split_dir"))


def test_some_items_without_a_split_are_refused() -> None:
    with pytest.raises(InputError, match=r"1 item has no split \(first: odd\)"):
        split_items([*given_splits(5, 5, 0), Item("odd", {"input": "odd"})], SplitSection())


def test_a_small_selection_is_used_with_a_warning_or_merged_into_train_on_request() -> None:
    items = items_of_types(["x"] * 8)
    splits = split_items(items, SplitSection())
    assert len(splits.selection) == 3 and not splits.fit_only
    assert "3 selection items (train 3, test 2): with fewer than 4" in splits.warnings[0]
    splits = split_items(items, SplitSection(allow_fit_only=True))
    assert splits.fit_only and "unverified" in splits.warnings[0]
    assert splits.selection == splits.train
    assert len(splits.train) + len(splits.test) == 8
    assert not {item.id for item in splits.train} & {item.id for item in splits.test}


def test_no_selection_items_at_all_are_refused() -> None:
    with pytest.raises(InputError, match=r"0 selection items .*env.allow_fit_only"):
        split_items(given_splits(5, 0, 5), SplitSection())


def test_near_duplicates_across_given_splits_can_be_accepted_with_a_warning() -> None:
    items = [
        *given_splits(5, 5, 1),
        Item("copy", {"input": sentence("train0").upper()}, split="test"),
    ]
    splits = split_items(items, SplitSection(allow_duplicates=True))
    assert "train0 (train) ~ copy (test)" in splits.warnings[0]
    assert len(splits.test) == 2


REFERENCE = {
    "train": ["7", "9", "5"],
    "val": ["6", "14"],
    "test": ["10", "12", "8", "1", "2", "13", "15", "4", "11", "0", "3"],
}


def test_the_shuffle_method_divides_as_skillopt_does() -> None:
    """Expected ids: skillopt 0.2.0, SplitDataLoader(split_mode="ratio", split_ratio="2:1:7")."""
    items = items_of_types(["x", "y"] * 8)
    splits = split_items(
        items, SplitSection(split_method="shuffle", split_ratio="2:1:7", split_seed=42)
    )
    assert [item.id for item in splits.train] == REFERENCE["train"]
    assert [item.id for item in splits.selection] == REFERENCE["val"]
    assert [item.id for item in splits.test] == REFERENCE["test"]
    assert {item.split for item in splits.test} == {"test"}


def test_a_task_that_runs_its_items_is_split_by_id_when_their_text_is_the_same() -> None:
    same = [Item(str(at), {"input": "Help the customer."}) for at in range(20)]
    assert len(similar_groups(same)) == 1
    assert len(similar_groups(same, whole_rows=True)) == 20
    rows = [
        Item(str(at), {"input": "Help the customer.", "metadata": {"case": sentence(at)}})
        for at in range(20)
    ]
    copy = Item("copy", {"input": "Help the customer.", "metadata": {"case": sentence(3) + "!"}})
    groups = similar_groups([*rows, copy], whole_rows=True)
    assert [group for group in groups if len(group) > 1] == [[3, 20]]


def test_every_known_name_of_a_split_is_accepted() -> None:
    names = ["train", "val", "valid_seen", "test", "valid_unseen"]
    assert [split_named(name) for name in names] == [
        "train",
        "selection",
        "selection",
        "test",
        "test",
    ]
    with pytest.raises(InputError, match=r"no split 'tset'.*valid_unseen"):
        split_named("tset")


def test_ten_items_are_enough_at_the_default_ratio() -> None:
    splits = split_items(items_of_types(["x"] * 10), SplitSection())
    assert [len(part) for part in (splits.train, splits.selection, splits.test)] == [4, 4, 2]
    assert not splits.fit_only


def copies(count: int, others: int = 0) -> list[Item]:
    texts = ["What is the capital of the country that I live in now?"] * count
    texts += [sentence(at) for at in range(others)]
    return [Item(f"i{at:02d}", {"input": text}) for at, text in enumerate(texts)]


def test_copies_that_leave_no_selection_items_are_reported_with_a_hint() -> None:
    with pytest.raises(InputError) as raised:
        split_items(copies(12), SplitSection())
    message, hint = raised.value.message, raised.value.hint
    assert "12 of 12 items have nearly the same text (i00 ~ i01 ~ i02 ~ i03 and 8 more)" in message
    assert "stay in one split" in message and "have 12/0/0 items instead of 5/5/2" in message
    assert "env.split_method: shuffle and env.allow_duplicates: true" in hint
    apart = SplitSection(split_method="shuffle", allow_duplicates=True)
    assert len(split_items(copies(12), apart).selection) == 5


def test_copies_that_make_a_split_much_smaller_are_reported() -> None:
    splits = split_items(copies(10, others=3), SplitSection())
    assert "have 10/3/0 items instead of 5/5/3" in splits.small_split_warning
    assert "10 of 13 items" in splits.small_split_warning
    assert not any("nearly the same" in warning for warning in splits.warnings)


def test_a_few_copies_that_fit_their_split_are_not_reported() -> None:
    assert split_items(copies(3, others=17), SplitSection()).small_split_warning == ""
