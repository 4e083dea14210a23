"""A small world in which every answer is known: notes of six kinds, rules that help or harm, an
agent that follows them to the letter, and an optimizer whose proposals depend only on the *set* of
kinds it is shown, the skill, and its earlier advice.

Nothing here depends on the order or the grouping of trajectories, so two systems that group them
differently still get the same information. Pure functions of a seed; standard library only, because
SkillOpt's interpreter reads it too.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

KINDS = range(6)
TITLE = "# Reading desk"
SKILL = f"{TITLE}\n\nAnswer from the note alone.\n"
REGION_START, REGION_END = "<!-- SLOW_UPDATE_START -->", "<!-- SLOW_UPDATE_END -->"
APPENDIX_START, APPENDIX_END = "<!-- APPENDIX_START -->", "<!-- APPENDIX_END -->"
_REGIONS = {REGION_START: REGION_END, APPENDIX_START: APPENDIX_END}
SIZES = {"train": 36, "val": 24, "test": 12}

RULE = re.compile(r"\[(r\d-\w+)\]")
NOTE = re.compile(r"\b([a-z]+\d\d-k(\d))\b")
_WORDS = re.findall(
    r"\w+",
    "amber basin candle drift ember fable garnet harbour island juniper kettle lantern meadow "
    "nectar orchard pebble quarry "
    "ribbon saddle thicket umber velvet willow yarrow zephyr anchor bramble copper dune falcon "
    "glacier hollow ivory",
)


@dataclass(frozen=True)
class Action:
    """One change to ask for: add a rule, drop one, put `rule` in place of `old`, or something
    without effect.
    """

    op: str  # add, drop, swap, nothing, cut_memory
    rule: str
    old: str = ""


def draw(*names: object) -> float:
    """A number in 0..1 that depends on the names alone."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


# The task


def items(seed: int, split: str) -> list[dict[str, object]]:
    """SearchQA items; `input` says context and question once more in one text."""
    rows: list[dict[str, object]] = []
    for number in range(SIZES[split]):
        kind = int(draw(seed, split, number, "kind") * len(KINDS))
        note = f"{split}{number:02d}-k{kind}"
        context = " ".join(random.Random(f"{seed}/{note}").choices(_WORDS, k=40))
        question = f"What does note {note} say?"
        rows.append(
            {
                "id": note,
                "question": question,
                "context": context,
                "answers": [gold(note)],
                "input": f"## Context\n{context}\n\n## Question\n{question}",
            }
        )
    return rows


def gold(note: str) -> str:
    return f"reading {hashlib.sha256(note.encode()).hexdigest()[:6]}"


def answer(seed: int, note: str, text: str) -> str:
    """The agent's answer to a note under the skill `text`. A wrong answer shares a word
    with the right one.
    """
    return f"<answer>{gold(note) if right(seed, note, text) else 'reading unclear'}</answer>"


def right(seed: int, note: str, text: str) -> bool:
    kind = int(note[-1])
    rules = set(RULE.findall(text))
    if any(breaks(rule, kind, half=draw(seed, note, "half") < 0.5) for rule in rules):
        return False
    difficulty = draw(seed, note, "difficulty")
    reads = not rules.isdisjoint({f"r{kind}-good", f"r{kind}-shady", f"r{kind}-fine"})
    return difficulty < 0.2 or (reads and (difficulty < 0.75 or f"r{kind}-careful" in rules))


def breaks(rule: str, kind: int, *, half: bool) -> bool:
    """`shady` helps its own kind and spoils half of another one; `harm` spoils half of its own."""
    own, flavour = int(rule[1]), rule[3:]
    return half and (
        (flavour == "harm" and own == kind)
        or (flavour == "shady" and (own + 1) % len(KINDS) == kind)
    )


def score(seed: int, text: str, metric: str = "hard", split: str = "val", limit: int = 0) -> float:
    """The true score of a skill."""
    rows = items(seed, split)[: limit or None]
    hits = sum(right(seed, str(row["id"]), text) for row in rows) / len(rows)
    soft = hits + (1 - hits) * 0.5  # F1 of `reading unclear` against `reading xyz`
    return {"hard": hits, "soft": soft, "mixed": 0.5 * hits + 0.5 * soft}[metric]


# The optimizer's decisions


def rule_text(rule: str, mark: str = "") -> str:
    return f"{mark}[{rule}] A note of kind {rule[1]} is read the {rule[3:]} way."


def parts(skill: str) -> tuple[str, str]:
    """The skill's own text, and its protected regions from the first marker on."""
    at = min((at for start in _REGIONS if (at := skill.find(start)) >= 0), default=len(skill))
    return skill[:at], skill[at:]


def without_spacing(skill: str) -> str:
    """The skill without blank lines and empty regions, with its regions in one order and the notes
    of its appendix sorted: what the two systems write alike.
    """
    body, regions = parts(skill)
    found = []
    for start, end in _REGIONS.items():
        _, _, after = regions.partition(start)
        lines = [line for line in after.partition(end)[0].splitlines() if line.strip()]
        if start == APPENDIX_START:
            lines = sorted(line for line in lines if line.startswith("- "))
        found += [start, *lines] if lines else []
    return "\n".join([*(line for line in body.splitlines() if line.strip()), *found])


def from_failures(
    seed: int, kinds: Iterable[int], skill: str, tried: Iterable[str]
) -> list[Action]:
    """Two untried rules for each kind that failed, and edits of rules that may spoil it."""
    known, body, tried = set(RULE.findall(skill)), set(RULE.findall(parts(skill)[0])), set(tried)
    actions = []
    for kind in sorted(set(kinds)):
        menu = sorted(
            ("good", "shady", "careful", "plain", "harm"),
            key=lambda flavour: draw(seed, kind, flavour, "menu"),
        )
        new = [rule for flavour in menu if (rule := f"r{kind}-{flavour}") not in known | tried]
        actions += [Action("add", rule) for rule in new[:2]]
        if (harm := f"r{kind}-harm") in body - tried:
            actions.append(Action("drop", harm))
        other = (kind - 1) % len(KINDS)
        if (shady := f"r{other}-shady") in body - tried:
            fine = f"r{other}-fine"
            swap = draw(seed, shady, "swap") < 0.5 and fine not in known | tried
            actions.append(Action("swap", fine, shady) if swap else Action("drop", shady))
    return actions


def from_successes(
    seed: int, kinds: Iterable[int], skill: str, tried: Iterable[str]
) -> list[Action]:
    """Tips for some kinds: harmless and useless, but they use up a tight edit budget."""
    known = set(RULE.findall(skill)) | set(tried)
    tips = [f"r{kind}-tip" for kind in sorted(set(kinds)) if draw(seed, kind, "tip") < 0.4]
    return [Action("add", tip) for tip in tips if tip not in known]


def nothing(kinds: Iterable[int]) -> Action:
    return Action("nothing", f"r{min(kinds)}-ghost")


def priority(seed: int, rule: str, advice: str) -> tuple[int, float]:
    """One order for all, changed by the optimizer's own memory. Edits from failures come first,
    edits without effect last.
    """
    rank = {"cut": -1, "tip": 1, "ghost": 2}.get(rule[3:], 0)
    return rank, draw(seed, rule, advice, "priority")


def at_the_top(seed: int, rule: str) -> bool:
    """Where a new rule goes: below the title, or at the end."""
    return draw(seed, rule, "place") < 0.3


def notes(seed: int, kinds: Iterable[int]) -> list[str]:
    """Reminders for the appendix, about some of the kinds that failed."""
    return [
        f"Read notes of kind {kind} to their end."
        for kind in sorted(set(kinds))
        if draw(seed, kind, "note") < 0.8
    ]


def learning_rate(seed: int, skill: str) -> object:
    """How many edits may enter, in one of the forms in which models say it. At most 3: SkillOpt
    cuts the proposals of an analyst to the configured number, and the systems group trajectories
    differently, so they need not have the same number of proposals.
    """
    rules = sorted(RULE.findall(skill))
    rate = 1 + int(draw(seed, *rules, "rate") * 3)
    forms: list[object] = [rate, float(rate), f"about {rate}", f"{rate} edits"]
    return forms[int(draw(seed, *rules, "form") * len(forms))]


def rewritten(
    seed: int,
    skill: str,
    actions: Iterable[Action],
    *,
    mark: str = "",
    forgetful: bool = False,
) -> str:
    """The skill after these actions, in order. `mark`: how a line with a rule begins. The protected
    regions stay as they are unless the writer is `forgetful`.
    """
    body, memory = parts(skill)
    lines = [line for line in body.split("\n") if line.strip()]
    for action in actions:
        text = rule_text(action.rule, mark)
        if action.op == "add":
            lines.insert(1 if at_the_top(seed, action.rule) else len(lines), text)
        elif action.op == "drop":
            lines.remove(text)
        elif action.op == "swap":
            lines[lines.index(rule_text(action.old, mark))] = text
    written = "\n\n".join(lines)
    keeps = memory.strip() and not forgetful
    return (f"{written}\n\n{memory.strip()}" if keeps else written) + "\n"


def between(skill: str, new: str) -> list[Action]:
    """The actions that lead from one skill to a rewritten one."""
    before, after = (set(RULE.findall(parts(text)[0])) for text in (skill, new))
    swaps = [
        Action("swap", rule, f"{rule[:3]}shady")
        for rule in sorted(after - before)
        if rule.endswith("fine")
    ]
    drops = before - after - {swap.old for swap in swaps}
    adds = [Action("add", rule) for rule in sorted(after - before) if not rule.endswith("fine")]
    return [*swaps, *adds, *(Action("drop", rule) for rule in sorted(drops))]


def guidance(seed: int, kinds: dict[str, set[int]], slip: str) -> str:
    """The slow update's text: a remark, sometimes nothing, and with a `slip` rules that change
    what the agent does.
    """
    weak = sorted(kinds["regressed"] | kinds["persistent_fail"])
    if not any(kinds.values()) or (draw(seed, *weak, "silent") < 0.1 and not slip):
        return ""
    said = (
        f"Look twice at notes of kind {', '.join(map(str, weak)) or 'any'}; "
        f"{len(kinds['improved'])} kinds got better."
    )
    if slip == "helpful":
        return said + "".join(
            f"\n{rule_text(f'r{kind}-{flavour}')}"
            for kind in weak[:2]
            for flavour in ("good", "careful")
        )
    if slip == "harmful":
        strong = sorted(kinds["stable_success"] | kinds["improved"])
        return said + "".join(f"\n{rule_text(f'r{kind}-harm')}" for kind in strong[:2])
    return said


def advice(seed: int, kinds: dict[str, set[int]], before: str) -> str:
    """The meta skill: a tag that changes the optimizer's priorities."""
    if not any(kinds.values()):
        return ""
    spelled = [f"{name}:{sorted(found)}" for name, found in sorted(kinds.items())]
    return f"advice-tag-{int(draw(seed, *spelled, before) * 1e6)}"
