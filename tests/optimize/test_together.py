"""The stages one after another, as the loop runs them, with the practice optimizer at the other
end.
"""

import pytest

from skillfit.models.providers.practice import practice_reply
from skillfit.optimize.context import Context
from skillfit.optimize.stages import (
    apply_proposals,
    merge_patches,
    rewrite_skill,
    select_proposals,
)
from skillfit.skill import Skill, slow_update_text, with_slow_update
from tests.optimize.scripted_optimizer import finished, item, outcome, reflect_on, scripted, text_of

LETTERS = {
    "billing": "My invoice shows a double charge on the receipt number",
    "travel": "The airline moved my flight and the luggage went missing",
    "health": "The doctor lost my prescription and the clinic is closed",
}
ITEMS = [
    item(f"{label}{n}", f"{text} {n}.", answers=[label])
    for n in range(4)
    for label, text in LETTERS.items()
]


@pytest.mark.parametrize("mode", ["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"])
async def test_a_step_learns_rules_from_failures_in_every_mode(mode):
    it = scripted(
        lambda request: practice_reply(request.stage, text_of(request)),
        skill_update_mode=mode,
        minibatch_size=4,
    )
    skill = with_slow_update(
        Skill.from_text("# Sorting letters\n\nAnswer with a label.\n"), "Look at the subject first."
    )
    outcomes = [outcome(each.id, 0, feedback="wrong label", answer="general") for each in ITEMS]
    context = Context(1, 3)
    reflection = await reflect_on(it.optimizer, skill, ITEMS, finished(outcomes), context)
    patch = await merge_patches(it.optimizer, skill, reflection.patches, step=1)
    selection = await select_proposals(it.optimizer, skill, patch, context, control="fixed")
    if mode == "patch":
        done = apply_proposals(skill, selection.proposals)
    else:
        done = await rewrite_skill(it.optimizer, skill, selection.proposals, context)
    assert len(reflection.patches) == 3 and not reflection.discarded
    assert all(proposal.support in (4, 8, 12) for proposal in patch.proposals)
    assert len(selection.proposals) <= 3
    assert done.changed and " mean " in done.skill.body
    assert done.skill.body.startswith("# Sorting letters\n\nAnswer with a label.")
    assert slow_update_text(done.skill) == "Look at the subject first."
    assert not it.discarded
