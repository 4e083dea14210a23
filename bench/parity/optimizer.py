"""The scripted models behind the server: read a prompt of either system, decide in the world's
terms, reply in JSON.

The two systems word their prompts differently and expect the same replies, so only the reading
knows which one is asking.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.parity import world
from bench.parity.scenario import Scenario
from bench.parity.world import Action

STAGE = re.compile(r"\[stage: (\w+)\]")
_ENTRY = re.compile(r"^\[(\d+)\] .*$", re.MULTILINE)
_JSON_ENTRY = re.compile(r"^\[\d+\] \w+, \d+ items: (\{.*\})$", re.MULTILINE)
_TRAJECTORY = re.compile(r"^### (?:Trajectory \d+ \(id=|Item )([a-z]+\d\d-k\d)", re.MULTILINE)
_COMPARED = re.compile(
    r"^#### Task ([a-z]+\d\d-k\d):.*\n- Prev epoch: (\w+).*\n- Curr epoch: (\w+)", re.MULTILINE
)
_PAIR = re.compile(
    r"^([a-z]+\d\d-k\d): (improved|regressed|persistent_fail|stable_success)$", re.MULTILINE
)
_CATEGORY = {
    ("FAIL", "PASS"): "improved",
    ("PASS", "FAIL"): "regressed",
    ("FAIL", "FAIL"): "persistent_fail",
    ("PASS", "PASS"): "stable_success",
}
_PAYLOAD = {
    "patch": "edits",
    "rewrite_from_suggestions": "revise_suggestions",
    "full_rewrite_minibatch": "skill_candidates",
}
_NAMED = re.compile(r"\{(r\d-\w+)\}")


@dataclass(frozen=True)
class Prompt:
    """A request, read from the prompt of either system."""

    scenario: Scenario
    stage: str
    system: str
    user: str

    def section(self, ours: str, theirs: str) -> str:
        """A named part: between tags in ours, between second-level headings in theirs."""
        if found := re.search(rf"<{ours}>\n(.*?)\n</{ours}>", self.user, re.DOTALL):
            return found[1]
        found = re.search(
            rf"^## {re.escape(theirs)}[^\n]*\n(.*?)(?=\n\n## |\Z)",
            self.user,
            re.DOTALL | re.MULTILINE,
        )
        return found[1] if found else ""

    @property
    def skill(self) -> str:
        return self.section("current_skill", "Current Skill").strip() + "\n"

    @property
    def advice(self) -> str:
        found = re.search(r"advice-tag-\d+", self.user)
        return found[0] if found else ""

    @property
    def tried(self) -> set[str]:
        """Rules among the edits that were rejected earlier in this epoch."""
        memory = self.section("previous_steps", "Previous Steps in This Epoch")
        pattern = world.RULE if self.scenario.mode == "patch" else _NAMED
        return {rule for rule in pattern.findall(memory) if not rule.endswith("ghost")}

    @property
    def kinds(self) -> set[int]:
        return {int(note[-1]) for note in _TRAJECTORY.findall(self.user)}

    def compared(self) -> dict[str, set[int]]:
        """Kinds of notes by how they fared under the previous and the current skill."""
        pairs = [
            (note, _CATEGORY[before, after]) for note, before, after in _COMPARED.findall(self.user)
        ]
        pairs += _PAIR.findall(self.user)
        return {
            name: {int(note[-1]) for note, category in pairs if category == name}
            for name in _CATEGORY.values()
        }


def reply(prompt: Prompt) -> str:
    seed = prompt.scenario.seed
    if prompt.stage == "probe":  # skillfit's probe
        return "ok"
    if prompt.stage == "rollout":
        notes = world.NOTE.findall(prompt.user)
        return world.answer(seed, notes[-1][0], prompt.system)
    if prompt.stage == "lr_autonomous":
        silent = prompt.scenario.probe == "no_rate" and world.REGION_START not in prompt.skill
        rate = 0 if silent else world.learning_rate(seed, prompt.skill)
        return json.dumps({"reasoning": "scripted", "learning_rate": rate})
    if prompt.stage in ("slow_update", "meta_skill"):
        kinds, slow = prompt.compared(), prompt.stage == "slow_update"
        text = (
            world.guidance(seed, kinds, prompt.scenario.slip)
            if slow
            else world.advice(seed, kinds, prompt.advice)
        )
        return json.dumps({"reasoning": "scripted", f"{prompt.stage}_content": text})
    stages = {
        "failure": _analyst,
        "success": _analyst,
        "merge": _merge,
        "rank": _rank,
        "rewrite": _rewrite,
    }
    return json.dumps(stages[prompt.stage](prompt))


def _ordered(prompt: Prompt, actions: Sequence[Action]) -> list[Action]:
    unique = {action.rule: action for action in actions}.values()
    return sorted(
        unique, key=lambda action: world.priority(prompt.scenario.seed, action.rule, prompt.advice)
    )


def _analyst(prompt: Prompt) -> dict[str, Any]:
    mind = world.from_failures if prompt.stage == "failure" else world.from_successes
    actions = mind(prompt.scenario.seed, prompt.kinds, prompt.skill, prompt.tried) or [
        world.nothing(prompt.kinds)
    ]
    probe, remembers = prompt.scenario.probe, world.REGION_START in prompt.skill
    if probe == "cut_memory" and remembers:
        actions.append(Action("cut_memory", "r0-cut"))
    actions = [] if probe == "silence" and not remembers else _ordered(prompt, actions)
    kinds = [
        {"failure_type": f"kind {kind}", "count": 1, "description": "misread"}
        for kind in sorted(prompt.kinds)
    ]
    found = (
        {"failure_summary": kinds}
        if prompt.stage == "failure"
        else {"success_patterns": ["read with care"]}
    )
    aware, failed = prompt.scenario.extra == "skill_aware", prompt.stage == "failure"
    notes = (
        {"appendix_notes": world.notes(prompt.scenario.seed, prompt.kinds) if failed else []}
        if aware
        else {}
    )
    return {
        "batch_size": len(_TRAJECTORY.findall(prompt.user)),
        **found,
        "patch": _patch(prompt, actions),
        **notes,
    }


def _patch(prompt: Prompt, actions: Sequence[Action]) -> dict[str, Any]:
    mode = prompt.scenario.mode
    if mode == "patch":
        entries = [_edit(prompt.scenario, action) for action in actions]
    elif mode == "rewrite_from_suggestions":
        entries = [_suggestion(action) for action in actions]
    else:
        entries = [_candidate(prompt, actions)] if actions else []
    return {"reasoning": "scripted", _PAYLOAD[mode]: entries}


def _edit(scenario: Scenario, action: Action) -> dict[str, Any]:
    mark = scenario.mark
    if action.op == "cut_memory":
        return {"op": "delete", "target": f"\n\n{world.REGION_START}", "content": ""}
    if action.op == "drop":
        gap = "" if mark else "\n\n"
        text = world.rule_text(action.rule, mark)
        return {"op": "delete", "target": f"{gap}{text}", "content": ""}
    if action.op == "swap":
        return {
            "op": "replace",
            "target": world.rule_text(action.old, mark),
            "content": world.rule_text(action.rule, mark),
        }
    if action.op == "nothing":
        return {"op": "replace", "target": f"[{action.rule}]", "content": "what nobody wrote"}
    content = world.rule_text(action.rule, mark)
    if world.at_the_top(scenario.seed, action.rule):
        target = "# A heading that is not there" if scenario.probe == "lost_anchor" else world.TITLE
        return {"op": "insert_after", "target": target, "content": content}
    return {
        "op": "append",
        "target": None if scenario.probe == "null_target" else "",
        "content": content,
    }


def _suggestion(action: Action) -> dict[str, Any]:
    instead = f" {{{action.old}}}" if action.old else ""
    return {
        "type": {"add": "add_rule", "drop": "remove_rule", "swap": "clarify"}.get(
            action.op, "compress"
        ),
        "title": f"{action.op}{instead} {{{action.rule}}}",
        "motivation": "scripted",
        "instruction": f"{action.op}{instead} {{{action.rule}}}",
        "priority_hint": "high",
    }


def _candidate(prompt: Prompt, actions: Sequence[Action]) -> dict[str, Any]:
    names = " ".join(f"{{{action.rule}}}" for action in actions)
    forgetful = prompt.scenario.probe == "forgetful"
    text = world.rewritten(
        prompt.scenario.seed,
        prompt.skill,
        actions,
        mark=prompt.scenario.mark,
        forgetful=forgetful,
    )
    return {
        "title": f"try {names}",
        "change_summary": [action.op for action in actions],
        "new_skill": text,
    }


def _merge(prompt: Prompt) -> dict[str, Any]:
    entries = _proposals(prompt)
    mode = prompt.scenario.mode
    if mode == "full_rewrite_minibatch":
        actions = [
            action
            for entry in entries
            for action in world.between(prompt.skill, entry["new_skill"])
        ]
        return _patch(prompt, _ordered(prompt, actions) or [world.nothing([0])])
    unique = {json.dumps(entry): entry for entry in entries}.values()
    listed = sorted(
        unique,
        key=lambda entry: world.priority(
            prompt.scenario.seed, _rule_of(json.dumps(entry)), prompt.advice
        ),
    )
    return {"reasoning": "scripted", _PAYLOAD[mode]: listed}


def _proposals(prompt: Prompt) -> list[dict[str, Any]]:
    """The proposals to merge, as they were sent."""
    fields = (
        "op",
        "target",
        "content",
        "type",
        "title",
        "motivation",
        "instruction",
        "priority_hint",
        "change_summary",
        "new_skill",
    )
    entries = [json.loads(text) for text in _JSON_ENTRY.findall(prompt.user)]
    if not entries:
        patches = json.loads(prompt.user[prompt.user.index("\n[\n") :])
        entries = [entry for patch in patches for entry in patch[_PAYLOAD[prompt.scenario.mode]]]
    return [{name: entry[name] for name in fields if name in entry} for entry in entries]


def _rank(prompt: Prompt) -> dict[str, Any]:
    lines = {int(found[1]): found[0] for found in _ENTRY.finditer(prompt.user)}
    seed = prompt.scenario.seed
    best = sorted(
        lines, key=lambda number: world.priority(seed, _rule_of(lines[number]), prompt.advice)
    )
    return {"reasoning": "scripted", "selected_indices": best}


def _rule_of(text: str) -> str:
    """The rule a written proposal is about: of a swap, the new one, which is named last."""
    found = world.RULE.findall(text) or _NAMED.findall(text)
    return found[-1] if found else "r0-cut"


def _rewrite(prompt: Prompt) -> dict[str, Any]:
    said = re.findall(r"\b(add|drop|swap|nothing)((?: \{r\d-\w+\})+)", _instructions(prompt))
    actions = [
        Action(op, names[-1], names[0] if len(names) > 1 else "")
        for op, text in said
        if (names := _NAMED.findall(text))
    ]
    forgetful = prompt.scenario.probe == "forgetful"
    text = world.rewritten(
        prompt.scenario.seed,
        prompt.skill,
        list(dict.fromkeys(actions)),
        mark=prompt.scenario.mark,
        forgetful=forgetful,
    )
    return {
        "reasoning": "scripted",
        "change_summary": [action.op for action in actions],
        "new_skill": text,
    }


def _instructions(prompt: Prompt) -> str:
    return prompt.section("suggestions", "Selected Revise Suggestions")
