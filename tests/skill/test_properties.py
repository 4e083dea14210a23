"""Protected regions never change: 11,000 generated edit sequences and rewrites, with text that
tries to break out of a region.
"""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from skillfit.optimize.optimizer import EditsReply
from skillfit.skill import (
    NOTE_OP,
    SLOW_UPDATE_OP,
    Edit,
    Example,
    Skill,
    appendix_notes,
    apply_edits,
    examples,
    rewrite,
    slow_update_text,
    with_consolidated_notes,
    with_notes,
    with_slow_update,
    with_trained_body,
)
from skillfit.skill.regions import (
    APPENDIX,
    EXAMPLES,
    MARKER,
    PROTECTED,
    SLOW_UPDATE,
    protected,
    scan,
    with_examples,
)

thousands = {"suppress_health_check": list(HealthCheck)}

MARKERS = [
    f"<!-- {kind}_{edge} -->"
    for kind in ("SLOW_UPDATE", "APPENDIX", "EXAMPLES", "PROTECTED")
    for edge in ("START", "END")
]
PLAIN = [
    "# Title\n",
    "## Rules\n\n",
    "- alpha rule\n",
    "- beta  rule\n",
    "1. gamma\n",
    "plain words, and more of them.\n",
    "\n",
]
PIECES = [
    *MARKERS,
    "<!--protected_start-->",
    "<!--\nPROTECTED_END\n-->",
    "<!-- PROTECTED_",
    "<!--",
    "START -->",
    "PROTECTED_START -->",
    "-->",
    "<!-- SLOW_UPDATE_<!-- APPENDIX_END -->START -->",
    "<!-- protected start -->",
    "<!—\u00a0PROTECTED\u200b-END\u00a0—>",
    "<!--\u00a0",
    *PLAIN,
    "---\nname: x\n---\n",
    "```\ncode\n```\n",
    "\n",
    "\n\n\n",
    " ",
    "\r\n",
    "\r",
    "\0",
    "\ud800",
    "\u2028",
    "é漢",
]
BLOCKS = [
    "<!-- PROTECTED_START -->\nkeep\n\n  this \n<!-- PROTECTED_END -->",
    "<!-- SLOW_UPDATE_START -->\nslow words\n<!-- SLOW_UPDATE_END -->",
    "<!-- APPENDIX_START -->\n## Execution Notes Appendix\n\n- alpha rule\n<!-- APPENDIX_END -->",
    "<!-- EXAMPLES_START -->\n## Examples\n<!-- EXAMPLES_END -->",
    "<!-- PROTECTED_START --><!-- PROTECTED_START -->a<!-- PROTECTED_END -->"
    "b<!-- PROTECTED_END -->",
    "<!-- PROTECTED_START -->never closed\n",
]
HEADS = ["", "", "---\nname: x\ndescription: words\n---\n", "---\nname: x\n---"]
OPS = ["append", "insert_after", "insert_after", "replace", "replace", "delete", "delete", "add"]


def spell(choices: list[str], raw: bytes) -> str:
    return "".join(choices[byte % len(choices)] for byte in raw)


def make_skill(raw: bytes) -> Skill:
    shape, body = raw[0], spell([*BLOCKS, *PIECES, *PLAIN, *PLAIN], raw[1:])
    head = HEADS[shape % 4]
    document = "\ufeff" * (shape % 3 == 0) + head + "\n" * head.endswith("x\n---") + body
    return Skill.from_text(
        document.replace("\r\n", "\n").replace("\n", "\r\n") if shape % 5 < 2 else document
    )


def make_edit(skill: Skill, raw: bytes) -> Edit:
    """Most targets are cut from the body, so they match, span regions and split markers."""
    op, length, body = raw[0], raw[1] % 64, skill.unix_body
    start = raw[2] * len(body) // 256
    target = body[start : start + length] if op >= 64 else spell(PIECES, raw[3 : 3 + length % 4])
    return Edit(OPS[op % 8], target, "new words" * (op % 3 > 0) + spell(PIECES, raw[7:]))


# One draw of bytes spells a whole text: thousands of drawn lists would take minutes.
text = st.binary(max_size=8).map(lambda raw: spell(PIECES, raw))
documents = st.binary(max_size=9).map(lambda raw: spell([*BLOCKS, *PIECES], raw))
skills = st.binary(min_size=1, max_size=10).map(make_skill)
patches = st.lists(st.binary(min_size=8, max_size=12), min_size=1, max_size=4)


def free_text(body: str) -> str:
    parts, at = [], 0
    for region in scan(body):
        parts.append(body[at : region.start])
        at = region.end
    return "\0".join([*parts, body[at:]])


def assert_sound(before: Skill, after: Skill) -> None:
    assert protected(after.body) == protected(before.body)
    assert not MARKER.search(free_text(after.body))
    assert after.head.rstrip("\r\n") == before.head.rstrip("\r\n")
    again = Skill.from_text(after.text)
    assert (again.head, again.body, again.hash) == (after.head, after.body, after.hash)


@pytest.mark.slow
@settings(max_examples=7000, **thousands)
@given(skills, patches, st.sampled_from([None, None, 10, 60]))
def test_no_sequence_of_edits_changes_a_protected_region(
    skill: Skill, plans: list[bytes], ceiling: int | None
) -> None:
    patch = [make_edit(skill, plan) for plan in plans]
    applied = apply_edits(skill, patch, max_tokens=ceiling)
    assert_sound(skill, applied.skill)
    assert [result.edit for result in applied.results] == patch
    assert all(
        result.applied or (result.status.startswith("skipped_") and result.reason)
        for result in applied.results
    )
    if not any(result.applied for result in applied.results):
        assert applied.skill == skill
    if ceiling is not None:
        assert applied.skill.tokens <= max(ceiling, skill.tokens)


region_edits = st.builds(
    Edit, st.sampled_from([SLOW_UPDATE_OP, NOTE_OP]), st.just(""), st.one_of(st.just(""), text)
)


@pytest.mark.slow
@settings(max_examples=1500, **thousands)
@given(skills, st.lists(region_edits, min_size=1, max_size=3), st.sampled_from([None, 10, 60]))
def test_region_edits_change_only_the_region_they_own(
    skill: Skill, patch: list[Edit], ceiling: int | None
) -> None:
    applied = apply_edits(skill, patch, max_tokens=ceiling)
    owned = {SLOW_UPDATE if edit.op == SLOW_UPDATE_OP else APPENDIX for edit in applied.edits}
    kept = [region for region in protected(skill.body) if region.kind not in owned]
    assert [region for region in protected(applied.skill.body) if region.kind not in owned] == kept
    assert not MARKER.search(free_text(applied.skill.body))
    assert applied.skill.head.rstrip("\r\n") == skill.head.rstrip("\r\n")
    if not applied.edits:
        assert applied.skill == skill
    if ceiling is not None:
        assert applied.skill.tokens <= max(ceiling, skill.tokens)
    for edit in applied.edits[-1:]:
        again = apply_edits(applied.skill, [edit]).results[0]
        assert again.status == "skipped_no_change"


@settings(max_examples=1500, **thousands)
@given(skills, documents)
def test_no_rewrite_changes_a_protected_region(skill: Skill, new_body: str) -> None:
    assert_sound(skill, rewrite(skill, new_body))


@settings(max_examples=500, **thousands)
@given(skills, skills, st.booleans())
@example(make_skill(b"\x00\x00"), make_skill(b"\x00\x00&"), False)  # mixed line ends
def test_a_trained_body_loses_no_protected_text(
    present: Skill, trained: Skill, same_skill: bool
) -> None:
    wanted = with_trained_body(present, trained, same_skill=same_skill)
    sources = [present] if same_skill or not trained.body.strip() else [present, trained]
    written = wanted.unix_body.replace("\r\n", "\n")  # the file keeps its own line ends
    for region in (region for skill in sources for region in scan(skill.unix_body)):
        assert region.kind != PROTECTED or region.text.replace("\r\n", "\n") in written
    assert wanted.head.rstrip() == present.head.rstrip()


@pytest.mark.slow
@settings(max_examples=1500, **thousands)
@given(
    skills,
    st.lists(
        st.one_of(
            st.tuples(
                st.just("edit"),
                st.builds(Edit, st.sampled_from(["append", "replace", "delete"]), text, text),
            ),
            st.tuples(st.just("rewrite"), text),
            st.tuples(st.just("slow"), text),
            st.tuples(st.just("notes"), st.lists(text, max_size=3)),
            st.tuples(
                st.just("examples"), st.lists(st.builds(Example, text, text, text), max_size=2)
            ),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_each_writer_changes_only_its_own_region(
    skill: Skill, moves: list[tuple[str, object]]
) -> None:
    for kind, value in moves:
        before = skill
        owned = {"slow": SLOW_UPDATE, "notes": APPENDIX, "examples": EXAMPLES}.get(kind)
        skill = _move(skill, kind, value)
        kept = [region for region in protected(before.body) if region.kind != owned]
        assert [region for region in protected(skill.body) if region.kind != owned] == kept
        if owned is not None and value:
            assert any(region.kind == owned for region in protected(skill.body))


def _move(skill: Skill, kind: str, value: object) -> Skill:
    if isinstance(value, Edit):
        return apply_edits(skill, [value]).skill
    if isinstance(value, str):
        return rewrite(skill, value) if kind == "rewrite" else with_slow_update(skill, value)
    assert isinstance(value, list)
    return with_notes(skill, value) if kind == "notes" else with_examples(skill, value)


json_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    text,
    st.lists(st.one_of(text, st.none()), max_size=2),
)
replies = st.one_of(
    json_values,
    st.dictionaries(text, text),
    st.dictionaries(
        st.sampled_from(
            ["op", "target", "content", "support_count", "source_type", "id", "label", "else"]
        ),
        st.one_of(
            json_values, st.sampled_from(["append", "Insert-After", "DELETE", "replace", "inf"])
        ),
    ),
)


@settings(max_examples=1000, **thousands)
@given(skills, st.one_of(st.none(), replies, st.lists(replies, max_size=4)))
def test_any_model_reply_gives_edits_that_apply_or_have_a_reason(
    skill: Skill, sent: object
) -> None:
    payloads = [entry.payload() for entry in EditsReply.model_validate({"edits": sent}).entries()]
    applied = apply_edits(skill, [edit for edit in payloads if isinstance(edit, Edit)])
    assert_sound(skill, applied.skill)
    assert all(result.edit.support_count == 1 and result.status for result in applied.results)


@settings(max_examples=500, **thousands)
@given(skills, st.lists(text, max_size=5), st.lists(text, max_size=5))
def test_existing_notes_are_never_added_again(
    skill: Skill, first: list[str], second: list[str]
) -> None:
    once = with_notes(skill, first)
    assert with_notes(once, first) == once
    assert with_notes(once, [note.upper() + " ." for note in appendix_notes(once)]) == once
    merged = with_consolidated_notes(once, second)
    assert with_consolidated_notes(merged, second) == merged == with_notes(merged, second)


@settings(max_examples=500, **thousands)
@given(skills, st.lists(st.builds(Example, st.text(), st.text(), st.text()), max_size=3), st.text())
def test_examples_and_slow_update_read_back_as_written(
    skill: Skill, written: list[Example], guidance: str
) -> None:
    expected = tuple(Example(_unix(one.input), _unix(one.output), one.item_id) for one in written)
    assert examples(with_examples(skill, written)) == expected
    assert slow_update_text(with_slow_update(skill, guidance)) == _unix(guidance).strip()


def _unix(value: str) -> str:
    """With Unix newlines, and without the characters that are never written into a skill."""
    lines = value.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(one for one in lines if one in "\n\t" or not _hides_text(one))


def _hides_text(character: str) -> bool:
    bidirectional = unicodedata.bidirectional(character)
    return unicodedata.category(character) == "Cc" or bidirectional in _OVERRIDES


_OVERRIDES = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@settings(max_examples=500, **thousands)
@given(st.text())
def test_any_text_round_trips_unchanged(document: str) -> None:
    skill = Skill.from_text(document)
    assert "\ufeff" * skill.bom + skill.text == document
    assert skill.with_body(skill.body) == skill
    assert apply_edits(skill, []).skill is skill
