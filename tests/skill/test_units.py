"""Units can be removed from a skill in any combination; headings and protected text stay."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillfit.skill import Skill, Unit, apply_edits, units, without
from skillfit.skill.regions import protected
from tests.skill.test_properties import make_skill

DOCUMENT = """---
name: refunds
description: d
---
# Refunds

Read the order first.
It is in the tool `orders`.

## Rules

- Check the date.
  It is in UTC.
- Ask for a receipt
  before you refund.

  Photos count too.
- Be brief.

| days | refund |
|------|--------|
| 14   | full   |

```python
def refund():

    return 1
```

## Tone

Be polite and
never rude.

<!-- PROTECTED_START -->
Never promise a refund.
<!-- PROTECTED_END -->

## Last

Close the ticket.
"""
SKILL = Skill.from_text(DOCUMENT)


def texts(found: tuple[Unit, ...]) -> list[str]:
    return [unit.text for unit in found]


def test_paragraphs_lists_tables_and_code_blocks_are_units() -> None:
    found = units(SKILL, "paragraph")
    assert [(unit.id, unit.start, unit.end) for unit in found] == [
        ("L7-8", 7, 8),
        ("L12-18", 12, 18),
        ("L20-22", 20, 22),
        ("L24-28", 24, 28),
        ("L32-33", 32, 33),
        ("L39-41", 39, 41),
    ]
    lines = DOCUMENT.split("\n")
    assert all(unit.text == "\n".join(lines[unit.start - 1 : unit.end]) for unit in found)
    assert found[0].tokens == 13


def test_by_line_a_list_item_and_a_line_that_ends_a_sentence_are_units() -> None:
    assert texts(units(SKILL, "line")) == [
        "Read the order first.",
        "It is in the tool `orders`.",
        "- Check the date.\n  It is in UTC.",
        "- Ask for a receipt\n  before you refund.\n\n  Photos count too.",
        "- Be brief.",
        "| days | refund |\n|------|--------|\n| 14   | full   |",
        "```python\ndef refund():\n\n    return 1\n```",
        "Be polite and\nnever rude.",
        "## Last\n\nClose the ticket.",
    ]


def test_a_heading_goes_with_the_text_that_is_its_whole_section() -> None:
    skill = Skill.from_text(
        "# T\n\nIntro.\n\n## A\n\nOne.\n\n## B\n\nTwo.\n\nThree.\n\n### C\n\nx\n"
    )
    assert texts(units(skill)) == ["Intro.", "## A\n\nOne.", "Two.", "Three.", "### C\n\nx"]


def test_units_are_removed_without_a_gap() -> None:
    found = {unit.id: unit for unit in units(SKILL)}
    shorter = without(SKILL, [found["L20-22"], found["L39-41"], found["L7-8"]])
    expected = DOCUMENT
    for cut in (
        "Read the order first.\nIt is in the tool `orders`.\n\n",
        "| days | refund |\n|------|--------|\n| 14   | full   |\n\n",
        "\n## Last\n\nClose the ticket.\n",
    ):
        expected = expected.replace(cut, "")
    assert shorter.text == expected


def test_a_removal_is_an_edit_that_names_its_lines() -> None:
    unit = units(SKILL)[1]
    assert (unit.removal.op, unit.removal.id) == ("delete", "L12-18")
    assert unit.removal.label == "remove lines 12-18"
    assert apply_edits(SKILL, [unit.removal]).results[0].status == "applied_delete"


def test_text_that_stands_in_two_places_is_no_unit() -> None:
    skill = Skill.from_text("- same\n- other\n\ntext between\n\n- same\n- third\n")
    assert texts(units(skill, "line")) == ["- other", "text between", "- third"]


def test_text_beside_a_protected_region_is_a_unit_and_text_on_its_lines_is_not() -> None:
    body = "before\n<!-- PROTECTED_START -->\nkept\n<!-- PROTECTED_END --> tail\nafter\n"
    assert texts(units(Skill.from_text(body))) == ["before", "after"]


def test_a_list_that_interrupts_a_paragraph_is_a_unit_of_its_own() -> None:
    skill = Skill.from_text("Do this:\n1. first\n   ```\n- not an item\n   ```\n2) second\nlazy\n")
    assert texts(units(skill)) == [
        "Do this:",
        "1. first\n   ```\n- not an item\n   ```\n2) second\nlazy",
    ]
    assert texts(units(skill, "line"))[1:] == [
        "1. first\n   ```\n- not an item\n   ```",
        "2) second\nlazy",
    ]


def test_a_comment_over_several_lines_stays_whole() -> None:
    skill = Skill.from_text("a <!-- one\n\n# two\n\n- three --> b\n\nc\n")
    assert texts(units(skill, "line")) == ["a <!-- one\n\n# two\n\n- three --> b", "c"]


def test_rules_and_underlined_headings_are_no_units() -> None:
    skill = Skill.from_text("Title\n=====\n\none\n\n---\n\n* * *\n\nSub\n---\n\ntwo\n\nthree\n")
    assert texts(units(skill)) == ["one", "two", "three"]


@pytest.mark.parametrize("body", ["", "\n\n", "# Only\n\n## Headings\n", "```\nopen"])
def test_a_body_without_text_has_at_most_one_unit(body: str) -> None:
    assert len(units(Skill.from_text(body))) <= 1


def test_a_unit_of_another_skill_is_refused() -> None:
    with pytest.raises(ValueError, match="L1 is not a unit of this skill"):
        without(SKILL, units(Skill.from_text("elsewhere\n")))


def nonblank(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()]


PIECES = [
    "# Heading\n",
    "## Sub\n\n",
    "- item one.\n",
    "- item one, and\n  more of it\n",
    "1. numbered\n",
    "  - nested\n",
    "words that end here.\n",
    "words that go on\n",
    "words",
    "xwords\n",
    "| a | b |\n|---|---|\n",
    "```\ncode\n\n```\n",
    "```\n",
    "> quote\n",
    "---\n",
    "===\n",
    "<!--\n",
    "-->\n",
    "PROTECTED_START -->\n",
    "PROTECTED_END",
    "<!-- PROTECTED_START -->\nkept\n<!-- PROTECTED_END -->\n",
    "<!-- PROTECTED_START -->",
    "<!-- note\n\nmore -->\n",
    "key: value\n",
    "\n",
    "\n",
    "\n\n\n",
    " ",
    "\t",
    "\r\n",
    "\r",
]
markdown = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text("ab -#\n", max_size=4)), max_size=24
).map(lambda pieces: Skill.from_text("".join(pieces)))
hostile = st.binary(min_size=1, max_size=10).map(make_skill)


@pytest.mark.slow
@settings(max_examples=4000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(markdown, hostile), st.sampled_from(["paragraph", "line"]), st.data())
def test_any_subset_of_units_can_be_removed_in_any_order(
    skill: Skill, by: str, data: st.DataObject
) -> None:
    found = units(skill, by)  # type: ignore[arg-type]
    document = skill.text.replace("\r\n", "\n") if skill.newline == "\r\n" else skill.text
    lines = document.split("\n")
    assert all(unit.text == "\n".join(lines[unit.start - 1 : unit.end]) for unit in found)
    assert all(one.end < other.start for one, other in pairwise(found))
    chosen = data.draw(st.permutations(found)) if found else []
    chosen = chosen[: data.draw(st.integers(0, len(found)))]
    shorter = without(skill, chosen)
    gone = {number for unit in chosen for number in range(unit.start - 1, unit.end)}
    kept = [line for number, line in enumerate(lines) if number not in gone]
    assert nonblank(shorter.text.split("\n")) == nonblank(kept)
    assert protected(shorter.body) == protected(skill.body)
    assert shorter.head.rstrip("\r\n") == skill.head.rstrip("\r\n")
    assert without(skill, sorted(chosen, key=lambda unit: unit.start)).text == shorter.text
