from skillfit.gate.candidates import clusters, propose
from skillfit.skill import Edit
from tests.gate.scripted import BASE


def appends(*names):
    return [Edit("append", content=f"- {name}") for name in names]


def contents(candidate):
    return [edit.content.removeprefix("- ") for edit in candidate.edits]


def test_the_whole_patch_comes_first_and_then_patches_twice_as_wide_from_all_edits():
    found = propose(BASE, appends("a", "b"), spare=appends(*"cdefg"))
    assert [(c.label, contents(c)) for c in found] == [
        ("whole patch", ["a", "b"]),
        ("wide patch 1", ["a", "b", "c", "d"]),
        ("wide patch 2", ["e", "f", "g"]),
    ]


def test_a_patch_without_spare_edits_races_alone():
    assert [c.label for c in propose(BASE, appends("a", "b", "c"))] == ["whole patch"]


def test_clusters_and_single_edits_of_the_patch_race_when_asked_for():
    sources = [["i1"], ["i2"], ["i1"], ["i2"], ["i3"]]
    found = propose(
        BASE, appends(*"abcd"), spare=appends("e"), sources=sources, limit=9, finest="edit"
    )
    assert [(c.label, contents(c)) for c in found] == [
        ("whole patch", ["a", "b", "c", "d"]),
        ("wide patch 1", ["a", "b", "c", "d", "e"]),
        ("cluster 1", ["a", "c"]),
        ("cluster 2", ["b", "d"]),
        *[(f"edit {number}", [name]) for number, name in enumerate("abcd", start=1)],
    ]
    assert (
        propose(
            BASE, appends(*"abcd"), spare=appends("e"), sources=sources, limit=9, finest="cluster"
        )
        == found[:4]
    )


def test_there_are_at_most_as_many_candidates_as_asked_for():
    assert (
        len(propose(BASE, appends("a"), spare=appends(*"bcdefg"), limit=3))
        == 3
        < len(propose(BASE, appends("a"), spare=appends(*"bcdefg")))
    )


def test_spare_edits_that_come_from_the_same_items_or_share_a_target_stay_together():
    edits = [
        *appends("a", "b", "c"),
        Edit("insert_after", "Do the task.", "x"),
        Edit("replace", "Do the task.", "y"),
    ]
    groups = clusters(edits, [["i1"], ["i2"], ["i1"]], 2)
    assert [[edit.content for edit in group] for group in groups] == [
        ["- a", "- c"],
        ["- b", "x"],
        ["y"],
    ]
    assert [edit.content for edit in clusters([edits[3], edits[0], edits[4]], [], 2)[0]] == [
        "x",
        "y",
    ]


def test_candidates_that_change_nothing_or_the_same_thing_are_left_out():
    nothing = Edit("replace", "not in the skill", "x")
    found = propose(BASE, [nothing], spare=[*appends("a"), *appends("a")])
    assert [contents(c) for c in found] == [["a"]]
    assert propose(BASE, []) == []


def test_only_edits_that_took_effect_belong_to_a_candidate():
    [found] = propose(BASE, [*appends("a"), Edit("delete", "not in the skill")])
    assert contents(found) == ["a"]


def test_the_token_ceiling_holds_for_every_candidate():
    found = propose(BASE, appends("a"), spare=appends("long " * 200), max_tokens=BASE.tokens + 20)
    assert [contents(c) for c in found] == [["a"]]
