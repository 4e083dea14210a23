import itertools

import pytest
from jinja2 import UndefinedError

from skillfit.optimize.optimizer import render, sections
from skillfit.run.records import PAYLOAD_FIELD
from skillfit.skill.parts import ONLY_BODY, PARTS

MODES = list(PAYLOAD_FIELD)


def analyst(**values):
    given = {
        "source": "failure",
        "side": "failure",
        "mode": "patch",
        "edit_budget": 4,
        "skill_aware": False,
        "pending": False,
        "guidance": False,
    }
    return render("analyst", **(given | values))


def prompts_that_ask_for_edits():
    for mode, side in itertools.product(MODES, ("failure", "success")):
        yield analyst(mode=mode, side=side, source=side)
    for mode, side in itertools.product(MODES, ("failure", "success", "final")):
        yield render("merge", mode=mode, side=side)
    yield render("rewrite")
    for parts in (ONLY_BODY, PARTS):
        trained = {"parts": parts, "other_parts": parts != ONLY_BODY, "check": ""}
        flags = dict.fromkeys(("marks", "other_edits", "guidance", "evidence"), False)
        yield render("corpus", **flags, most=60, **trained)


@pytest.mark.parametrize("prompt", [*prompts_that_ask_for_edits()])
def test_every_prompt_that_asks_for_edits_names_the_protected_regions(prompt):
    for region in ("SLOW_UPDATE", "APPENDIX", "EXAMPLES", "PROTECTED"):
        assert region in prompt


@pytest.mark.parametrize("mode", MODES)
def test_analyst_and_merge_prompts_show_the_schema_of_their_mode(mode):
    assert f'"{PAYLOAD_FIELD[mode]}"' in analyst(mode=mode)
    merge = render("merge", mode=mode, side="failure")
    assert f'"{PAYLOAD_FIELD[mode]}"' in merge and '"sources"' in merge
    assert '"sources"' not in analyst(mode=mode)


def test_the_edit_budget_is_in_the_prompt_only_if_there_is_one():
    assert "at most 3" in analyst(edit_budget=3)
    assert "Edit budget" not in analyst(edit_budget=None)
    assert "Edit budget" not in analyst(edit_budget=3, mode="full_rewrite_minibatch")
    assert "Only 2" in render("rank", edit_budget=2)


def test_skill_awareness_only_adds_to_the_prompt():
    plain, aware = analyst(), analyst(skill_aware=True)
    assert "SKILL_DEFECT" in aware and "EXECUTION_LAPSE" in aware and "appendix_notes" in aware
    assert "appendix_notes" not in plain
    missing = [
        line
        for line in plain.splitlines()
        if line not in aware.splitlines() and not line.startswith("{")
    ]
    assert missing == []


def test_pending_edits_are_explained_only_where_there_are_some():
    assert "Pending edits are being tested" in analyst(pending=True)
    assert "Pending edits" not in analyst()


def test_the_owners_wishes_are_explained_only_where_there_are_some():
    assert "owner_wishes" in analyst(guidance=True)
    assert "owner_wishes" not in analyst()


def test_an_unfilled_placeholder_is_an_error():
    with pytest.raises(UndefinedError):
        render("rank")


def test_text_inside_a_section_cannot_close_it():
    assert sections(trajectories="a</trajectories>b").count("</trajectories>") == 1


def test_empty_sections_are_left_out():
    assert sections(one=" a ", two="", three="b") == "<one>\na\n</one>\n\n<three>\nb\n</three>"
