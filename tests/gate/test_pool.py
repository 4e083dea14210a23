"""The pool: joining, drawing subsets, deciding."""

from hypothesis import given, settings
from hypothesis import strategies as st

from skillfit.gate import Candidate
from skillfit.gate.pool import (
    CROWDED,
    DROP_Z,
    FINAL_WORTH_Z,
    HARMLESS_ROLLOUTS,
    LONGEST_PENDING,
    PROMOTE_Z,
    THIN_ROLLOUTS,
    Decisions,
    Pool,
    apply_one_by_one,
    same_meaning,
)
from skillfit.gate.regression import Contrast, Estimate
from skillfit.run.records import KindEffect
from skillfit.skill import Edit, Skill, apply_edits
from tests.gate.scripted_measure import items

BASE = Skill.from_text("# Skill\n\nAlpha.\n\nBeta.\n\nGamma.\n")


def append(text):
    return Edit("append", content=f"- {text}")


def pool_of(*edits, base=BASE, sources=(), removals=False, step=1, max_tokens=None, loss=None):
    pool = Pool(base, max_tokens, loss)
    pool.join(Candidate(base, edits, sources, step=step, removes_initial_text=removals))
    return pool


def believed(pool, key, z, *, rollouts=100, harm=0.5):
    """Give an edit an estimate."""
    one = pool.edits[key]
    mean = 0.02 * z
    one.estimate = Estimate(
        Contrast(0.1 * z, 0.1), mean, mean - 0.03, mean + 0.03, 0.5, harm, rollouts
    )


def status(pool):
    return {one.id: one.status for one in pool.edits.values()}


# Joining


def test_edits_get_stable_ids_by_step_and_number():
    pool = pool_of(append("one"), append("two"))
    pool.join(Candidate(BASE, (append("three"),), step=2))
    pool.join(Candidate(BASE, (append("four"),), step=1))
    assert list(pool.edits) == ["s0001e01", "s0001e02", "s0002e01", "s0001e03"]


def test_an_exact_or_near_duplicate_does_not_join_again():
    pool = pool_of(append("Round all amounts to two decimals before you answer the question"))
    again = append("Round all amounts to two decimals before you answer the question!")
    joined = pool.join(Candidate(BASE, (again,), step=2))
    assert [one.status for one in joined] == ["dropped"]
    assert joined[0].reason == "repeats s0001e01 (pending)" and joined[0].duplicate_of == "s0001e01"


def test_another_number_or_a_negation_is_not_a_duplicate():
    long = "when the question asks for an amount of money in any currency whatsoever"
    for one, other in (
        (f"Round to 2 decimals {long}", f"Round to 3 decimals {long}"),
        (f"Do round {long}", f"Do not round {long}"),
    ):
        assert not same_meaning(append(one), append(other))


def test_a_dropped_edit_stays_dropped_when_it_is_proposed_again():
    pool = pool_of(append("one"))
    believed(pool, "s0001e01", -3)
    pool.drop("s0001e01", "effect -0.060")
    joined = pool.join(Candidate(BASE, (append("one"),), step=2))
    assert joined[0].status == "dropped"
    assert joined[0].reason == "repeats s0001e01 (dropped: effect -0.060)"


def test_a_dropped_edit_with_little_evidence_may_join_again_under_its_id():
    pool = pool_of(append("one"))
    believed(pool, "s0001e01", -3, rollouts=THIN_ROLLOUTS - 1)
    pool.drop("s0001e01", "effect -0.060")
    pool.join(Candidate(BASE, (append("one"),), step=2))
    assert status(pool) == {"s0001e01": "pending"}


def test_an_edit_that_cannot_be_applied_is_dropped_with_the_reason():
    pool = pool_of(Edit("replace", "Nowhere.", "Text."))
    assert pool.edits["s0001e01"].status == "dropped"
    assert "cannot be applied" in pool.edits["s0001e01"].reason


def test_an_edit_over_the_token_ceiling_is_dropped():
    pool = pool_of(append("word " * 400), max_tokens=50)
    assert "tokens" in pool.edits["s0001e01"].reason


def test_two_edits_of_the_same_text_exclude_each_other():
    pool = pool_of(Edit("replace", "Beta.", "One."), Edit("replace", "Beta.", "Two."))
    assert pool.edits["s0001e01"].rivals == {"s0001e02"}


def test_an_edit_of_a_pending_edits_text_depends_on_it_and_is_dropped_with_it():
    pool = pool_of(append("new rule"), Edit("replace", "new rule", "newer rule"))
    assert pool.edits["s0001e02"].needs == {"s0001e01"}
    pool.drop("s0001e01", "harmful")
    assert status(pool) == {"s0001e01": "dropped", "s0001e02": "dropped"}
    assert pool.edits["s0001e02"].reason == "depends on s0001e01, which was dropped"


def test_a_rejoined_edit_is_applied_after_its_dependency():
    late = Edit("insert_after", "new text.", "More.")
    pool = pool_of(late, Edit("replace", "Alpha.", "new text."), late)
    assert status(pool) == {"s0001e01": "pending", "s0001e02": "pending"}
    assert pool.edits["s0001e01"].needs == {"s0001e02"}
    assert pool.apply(["s0001e01", "s0001e02"]).edits == ("s0001e01", "s0001e02")


# Drawing

NAMES = st.sampled_from(["one", "two", "three", "four"])
EDITS = st.one_of(
    st.builds(lambda name: append(f"rule {name}"), NAMES),
    st.builds(
        lambda target, name: Edit("replace", target, f"{name} text."),
        st.sampled_from(["Alpha.", "Beta.", "Gamma."]),
        NAMES,
    ),
    st.builds(lambda target: Edit("delete", target), st.sampled_from(["Alpha.", "Beta."])),
    st.builds(
        lambda target, name: Edit("insert_after", target, f"after {name}."),
        st.sampled_from(["Alpha.", "rule one", "rule two", "one text."]),
        NAMES,
    ),
)
POOLS = st.lists(EDITS, min_size=1, max_size=12).map(lambda edits: pool_of(*edits))


@settings(max_examples=150)
@given(POOLS, st.integers(0, 1000), st.sets(st.integers(0, 11)))
def test_rivals_are_never_combined_and_dependencies_always_are(pool, seed, promoted):
    for at, one in enumerate(list(pool.edits.values())):
        ready = all(pool.edits[key].status == "promoted" for key in one.needs)
        if at in promoted and one.status == "pending" and ready:
            pool.promote(one.id, "test")
    for arm in pool.draw(str(seed), 12, pool.shares()):
        on = set(arm.edits)
        for key in on:
            assert not pool.edits[key].rivals & on
            assert pool.edits[key].needs <= on
            assert pool.edits[key].status != "dropped"


@settings(max_examples=100)
@given(POOLS, st.integers(0, 1000))
def test_the_text_of_an_arm_is_the_base_with_its_edits(pool, seed):
    for arm in pool.draw(str(seed), 8, pool.shares()):
        edits = [one.edit for one in pool.edits.values() if one.id in arm.edits]
        assert apply_one_by_one(BASE, edits).skill.hash == arm.skill.hash
        assert arm.skill.body.count("rule one") <= 1


@settings(max_examples=50)
@given(st.lists(EDITS, min_size=1, max_size=12), st.integers(0, 1000))
def test_draws_depend_only_on_the_key(edits, seed):
    one, two = pool_of(*edits), pool_of(*edits)
    assert one.draw(str(seed), 8, one.shares()) == two.draw(str(seed), 8, two.shares())
    arms = one.draw(str(seed), 8, one.shares())
    assert one.assign("key", arms, items(9)) == two.assign("key", arms, items(9))


def test_a_new_edit_is_in_half_of_the_arms_and_arms_are_used_evenly():
    pool = pool_of(*(append(f"rule {at}") for at in range(10)))
    arms = pool.draw("key", 16, pool.shares())
    for key in pool.edits:
        assert sum(key in arm.edits for arm in arms) == 8
    assigned = pool.assign("key", arms, items(48))
    assert {assigned.count(arm) for arm in arms} == {48 // len(arms)}


def test_likely_helpful_edits_are_in_more_arms_than_likely_harmful_ones():
    pool = pool_of(append("good"), append("bad"))
    for key, probability in (("s0001e01", 0.99), ("s0001e02", 0.01)):
        pool.edits[key].estimate = Estimate(Contrast(0, 1), 0, 0, 0, probability, 0.5, 50)
    assert pool.shares() == {"s0001e01": 0.85, "s0001e02": 0.15}


def test_uncertain_promoted_edits_are_left_out_of_a_tenth_of_the_rollouts():
    pool = pool_of(append("sure"), append("unsure"))
    believed(pool, "s0001e01", 3)
    believed(pool, "s0001e02", 1.7)
    for key in ("s0001e01", "s0001e02"):
        pool.promote(key, "test")
    assert pool.shares() == {"s0001e01": 1.0, "s0001e02": 0.9}
    arms = pool.draw("key", 20, pool.shares())
    assert {arm.edits for arm in arms} == {("s0001e01", "s0001e02"), ("s0001e01",)}


@settings(max_examples=50)
@given(st.lists(st.sets(st.integers(0, 7), max_size=2), min_size=1, max_size=6), st.integers())
def test_an_item_avoids_edits_written_from_it_alone_where_an_arm_without_them_exists(sources, seed):
    named = tuple(tuple(f"i{at:03d}" for at in sorted(found)) for found in sources)
    pool = pool_of(*(append(f"rule {at}") for at in range(len(sources))), sources=named)
    arms = pool.draw(str(seed), 8, pool.shares())

    def carries_own(arm, item):
        return any(pool.edits[key].sources == {item.id} for key in arm.edits)

    for item, arm in zip(items(8), pool.assign(str(seed), arms, items(8)), strict=True):
        avoidable = any(not carries_own(other, item) for other in arms)
        assert not (carries_own(arm, item) and avoidable)


# Deciding


def test_clear_effects_are_decided_at_once_and_no_others_are_decided_at_all():
    """However long an unclear edit has been measured, nothing forces a decision."""
    pool = pool_of(*(append(text) for text in ("good", "bad", "fair", "poor", "new")))
    believed(pool, "s0001e01", PROMOTE_Z + 0.1)
    believed(pool, "s0001e02", DROP_Z - 0.1)
    believed(pool, "s0001e03", PROMOTE_Z - 0.1, rollouts=10_000)
    believed(pool, "s0001e04", DROP_Z + 0.1, rollouts=10_000)
    assert pool.decide() == Decisions(promote=("s0001e01",), drop=("s0001e02",))
    assert status(pool)["s0001e05"] == "pending"


def test_an_edit_of_a_crowded_pool_is_decided_by_the_sign_of_its_effect_in_time():
    pool = pool_of(append("better"), append("worse"), append("unknown"))
    believed(pool, "s0001e01", 0.1)
    believed(pool, "s0001e02", -0.1)
    for entry in pool.pending():
        entry.judgements = LONGEST_PENDING
    assert pool.decide() == Decisions()
    others = tuple(append(f"rule {number}") for number in range(CROWDED - 2))
    pool.join(Candidate(BASE, others, step=2))
    assert pool.decide() == Decisions(promote=("s0001e01",), drop=("s0001e02",))


def test_a_promoted_edit_is_dropped_again_when_its_effect_vanishes():
    pool = pool_of(append("good"))
    believed(pool, "s0001e01", 2)
    pool.promote("s0001e01", "test")
    believed(pool, "s0001e01", -0.2)
    assert pool.decide().drop == ()
    believed(pool, "s0001e01", -0.4)
    assert pool.decide().drop == ("s0001e01",)


def test_the_better_of_two_rivals_is_promoted_and_the_other_must_beat_it():
    pool = pool_of(Edit("replace", "Beta.", "One."), Edit("replace", "Beta.", "Two."))
    believed(pool, "s0001e01", 2)
    believed(pool, "s0001e02", 3)
    assert pool.decide().promote == ("s0001e02",)
    pool.promote("s0001e02", "test")
    assert pool.signs("s0001e01") == {"s0001e01": 1.0, "s0001e02": -1.0}
    pool.promote("s0001e01", "test")
    assert status(pool) == {"s0001e01": "promoted", "s0001e02": "dropped"}
    assert pool.edits["s0001e02"].reason == "replaced by s0001e01"


def test_an_edit_is_not_promoted_before_its_dependency():
    pool = pool_of(append("new rule"), Edit("replace", "new rule", "newer rule"))
    believed(pool, "s0001e01", 0.5)
    believed(pool, "s0001e02", 3)
    assert pool.decide().promote == ()
    believed(pool, "s0001e01", 2)
    assert pool.decide().promote == ("s0001e01", "s0001e02")


def test_a_removal_is_promoted_when_it_is_unlikely_to_cost_score():
    pool = pool_of(Edit("delete", "Beta."), removals=True, step=0)
    assert pool.shares() == {"s0000e01": 0.1}
    believed(pool, "s0000e01", 0.1, harm=0.1, rollouts=HARMLESS_ROLLOUTS - 1)
    assert pool.decide().promote == ()
    believed(pool, "s0000e01", 0.1, harm=0.3)
    assert pool.decide().promote == ()
    believed(pool, "s0000e01", 0.1, harm=0.1)
    assert pool.decide().promote == ("s0000e01",)


def test_useless_text_is_left_out_more_often_than_text_that_may_be_needed():
    pool = pool_of(Edit("delete", "Beta."), removals=True, step=0)
    believed(pool, "s0000e01", -0.5, harm=0.7)
    assert pool.shares() == {"s0000e01": 0.1}
    believed(pool, "s0000e01", 0.0, harm=0.4)
    assert 0.1 < pool.shares()["s0000e01"] < 0.5
    believed(pool, "s0000e01", 0.5, harm=0.22)
    assert pool.shares() == {"s0000e01": 0.5}


def test_needed_text_stays_and_text_that_was_needed_is_restored():
    pool = pool_of(Edit("delete", "Alpha."), Edit("delete", "Beta."), removals=True, step=0)
    believed(pool, "s0000e01", -1.5, harm=0.9)
    assert pool.decide() == Decisions()
    believed(pool, "s0000e01", -2.5, harm=0.99, rollouts=HARMLESS_ROLLOUTS - 1)
    assert pool.decide() == Decisions()
    believed(pool, "s0000e01", -2.5, harm=0.99)
    assert pool.decide().drop == ("s0000e01",)
    pool.promote("s0000e02", "test")
    believed(pool, "s0000e02", -0.5)
    assert "s0000e02" not in pool.decide().drop
    believed(pool, "s0000e02", -1.5)
    assert "s0000e02" in pool.decide().drop


def test_the_final_skill_omits_text_without_expected_loss():
    pool = pool_of(*(Edit("delete", text) for text in ("Alpha.", "Beta.")), removals=True, step=0)
    believed(pool, "s0000e01", 0.1)
    believed(pool, "s0000e02", -0.1)
    assert pool.worthwhile() == ["s0000e01"]


def test_the_final_skill_has_every_edit_that_is_more_likely_to_help_than_not():
    names = ("kept", "faded", "hopeful", "doubtful", "new")
    pool = pool_of(*(append(text) for text in names))
    above, below = FINAL_WORTH_Z + 0.05, FINAL_WORTH_Z - 0.05
    for key, z in zip(pool.edits, (above, below, above, below), strict=False):
        believed(pool, key, z)
    for key in ("s0001e01", "s0001e02"):
        pool.promote(key, "test")
    assert FINAL_WORTH_Z == 0
    assert pool.worthwhile() == ["s0001e01", "s0001e03"]


LENGTHY = "Look at each of the numbers in the question twice before you write any of them down"


def test_under_a_token_ceiling_the_final_skill_has_the_edits_that_gain_most_per_token():
    edits = append(LENGTHY), append("Be exact."), append("Use digits.")
    short = apply_edits(BASE, edits[1:]).skill.tokens
    pool = pool_of(*edits, max_tokens=max(short, apply_edits(BASE, edits[:1]).skill.tokens))
    for key, z in (("s0001e01", 1.5), ("s0001e02", 0.9), ("s0001e03", 0.5)):
        believed(pool, key, z)
    assert pool.worthwhile() == ["s0001e02", "s0001e03"]
    pool.promote("s0001e01", "certain")
    assert pool.worthwhile() == ["s0001e02", "s0001e03"]


def test_under_a_token_ceiling_edits_that_the_user_wants_stay_and_deletions_make_room():
    base = Skill.from_text(f"# Skill\n\nDo the task.\n\n- {LENGTHY}.\n")
    delete = Edit("delete", target=f"- {LENGTHY}.")
    ceiling = apply_edits(base, [append("Be exact.")]).skill.tokens
    pool = pool_of(
        delete, append("Be exact."), append("Use digits."), base=base, max_tokens=ceiling
    )
    for key, z in (("s0001e01", -1.0), ("s0001e02", 0.5), ("s0001e03", 2.0)):
        believed(pool, key, z)
    pool.edits["s0001e02"].pinned = True
    pool.promote("s0001e02", "wanted")
    assert pool.worthwhile() == ["s0001e02"]
    believed(pool, "s0001e01", 1.0)
    assert pool.worthwhile() == ["s0001e01", "s0001e02", "s0001e03"]


def test_under_a_token_ceiling_an_edit_comes_with_the_text_that_it_is_anchored_in():
    first, second = append("Be exact."), Edit("replace", "Be exact.", "Be exact in all dates.")
    ceiling = pool_of(first, second).apply(["s0001e01", "s0001e02"]).skill.tokens
    pool = pool_of(first, second, append(LENGTHY), max_tokens=ceiling)
    for key, z in (("s0001e01", 0.1), ("s0001e02", 3.0), ("s0001e03", 1.0)):
        believed(pool, key, z)
    assert pool.worthwhile() == ["s0001e01", "s0001e02"]


def test_the_final_skill_has_the_better_of_two_rivals():
    pool = pool_of(Edit("replace", "Beta.", "One."), Edit("replace", "Beta.", "Two."))
    believed(pool, "s0001e01", 1)
    believed(pool, "s0001e02", 0.5)
    assert pool.worthwhile() == ["s0001e01"]
    believed(pool, "s0001e02", 1.5)
    assert pool.worthwhile() == ["s0001e02"]


def test_the_final_skill_has_no_edit_without_the_text_that_it_is_anchored_in():
    pool = pool_of(append("new rule"), Edit("replace", "new rule", "newer rule"))
    believed(pool, "s0001e01", -0.5)
    believed(pool, "s0001e02", 1)
    assert pool.worthwhile() == []


def test_applicable_pending_edits_stay_pending_after_a_new_document():
    pool = pool_of(append("kept"), append("waiting"), Edit("replace", "Beta.", "Lost."))
    pool.promote("s0001e01", "test")
    document = Skill.from_text("# Other\n\nAlpha.\n")
    pool.rebase(document)
    assert status(pool) == {
        "s0001e01": "promoted",
        "s0001e02": "pending",
        "s0001e03": "dropped",
    }
    assert pool.incumbent.skill.hash == document.hash and pool.incumbent.edits == ()


def test_promoted_edits_are_removed_with_a_replaced_document():
    pool = pool_of(append("kept"))
    pool.promote("s0001e01", "test")
    pool.rebase(Skill.from_text("# Other\n"), replaces="replaced by the document of step_0002")
    assert status(pool) == {"s0001e01": "dropped"}
    assert pool.edits["s0001e01"].reason == "replaced by the document of step_0002"


# Where a shorter skill is wanted


def test_removals_may_cost_a_little_together_and_additions_must_be_measured_to_help():
    lines = [Edit("delete", target=text) for text in ("Alpha.", "Beta.", "Gamma.")]
    pool = pool_of(*lines, removals=True, step=0, loss=0.05)
    pool.join(Candidate(BASE, (append("sure"), append("likely")), step=1))
    for key, z in zip(pool.edits, (-1, -1.4, -1.2, 2, 1), strict=True):
        believed(pool, key, z)
    assert pool.worthwhile() == ["s0000e01", "s0000e03", "s0001e01"]
    plain = pool_of(*lines, removals=True, step=0)
    for key, z in zip(plain.edits, (-1, -1.4, 0.5), strict=True):
        believed(plain, key, z)
    assert plain.worthwhile() == ["s0000e03"]


def test_text_is_left_out_more_often_where_a_shorter_skill_is_wanted():
    line = Edit("delete", target="Alpha.")
    shares = [pool_of(line, removals=True, step=0, loss=loss).shares() for loss in (None, 0.05)]
    assert shares == [{"s0000e01": 0.1}, {"s0000e01": 0.3}]


def test_an_edit_that_hurts_one_type_is_not_kept_where_every_type_counts():
    hurt = KindEffect("model b", 20, 40, mean=-0.2, low=-0.3, high=-0.1)
    for every_type, kept in ((False, ["s0001e01", "s0001e02"]), (True, ["s0001e02"])):
        pool = Pool(BASE, every_type=every_type)
        pool.join(Candidate(BASE, (append("one"), append("two")), step=1))
        for key in pool.edits:
            believed(pool, key, 2)
        pool.edits["s0001e01"].kinds = (hurt,)
        assert pool.worthwhile() == kept
        assert list(pool.decide().promote) == kept
        pool.edits["s0001e01"].pinned = True
        assert "s0001e01" in pool.decide().promote
