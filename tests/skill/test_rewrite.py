from __future__ import annotations

import pytest

from skillfit.skill import Skill, rewrite

SLOW = "<!-- SLOW_UPDATE_START -->\nguidance\n<!-- SLOW_UPDATE_END -->"
HAND = "<!-- PROTECTED_START -->\nby  hand\n<!-- PROTECTED_END -->"
HEAD = "---\nname: x\n---\n"
SKILL = Skill.from_text(f"{HEAD}# Old\n\n{HAND}\n\nold text\n\n{SLOW}\n")


def test_regions_the_rewrite_dropped_come_back_at_the_end() -> None:
    assert rewrite(SKILL, "# New\n").text == f"{HEAD}# New\n\n{HAND}\n\n{SLOW}\n"


def test_regions_stay_where_the_rewrite_has_them() -> None:
    assert (
        rewrite(SKILL, f"# New\n\n{HAND}\n\nnew text\n\n{SLOW}\n").text
        == f"{HEAD}# New\n\n{HAND}\n\nnew text\n\n{SLOW}\n"
    )


def test_a_changed_region_is_put_right() -> None:
    new = (
        f"# New\n\n{HAND.replace('hand', 'model')}\n\nnew\n\n{SLOW.replace('guidance', 'nothing')}"
    )
    assert rewrite(SKILL, new).body == f"# New\n\n{HAND}\n\nnew\n\n{SLOW}\n"


def test_regions_keep_their_order_and_are_not_doubled() -> None:
    assert (
        rewrite(SKILL, f"{SLOW}\n\nmiddle\n\n{HAND}\n\n{SLOW}").body
        == f"{HAND}\n\n{SLOW}\n\nmiddle\n"
    )


def test_an_invented_region_becomes_plain_text() -> None:
    plain = Skill.from_text("# Old\n")
    assert rewrite(plain, f"# New\n\n{HAND}").text == "# New\n\n\nby  hand\n"


def test_frontmatter_in_the_rewrite_is_not_taken_over() -> None:
    assert (
        rewrite(SKILL, "---\nname: other\n---\n# New").text == f"{HEAD}# New\n\n{HAND}\n\n{SLOW}\n"
    )


@pytest.mark.parametrize("nothing", ["", " \n\n", "---\nname: y\n---\n"])
def test_an_empty_rewrite_changes_nothing(nothing: str) -> None:
    assert rewrite(SKILL, nothing) is SKILL


def test_an_unclosed_fence_protects_what_follows_it_through_a_rewrite() -> None:
    skill = Skill.from_text("# T\n\n<!-- PROTECTED_START -->\nmine\n\nalso mine\n")
    new = rewrite(skill, "# New\n\n<!-- PROTECTED_START -->\nyours\n\nmore")
    assert new.text.startswith("# New") and new.text.endswith(
        "<!-- PROTECTED_START -->\nmine\n\nalso mine\n"
    )
