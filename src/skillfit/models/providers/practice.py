"""The practice models, which need no language model: they follow rules.

They are for learning skillfit, for trying a config in CI, and for tests. Everything around them
(journal, gate, report) is real, and the answers of the agent depend on the skill. `temperature`,
`max_tokens` and `reasoning_effort` have no effect, so that a config of a real model can be tried
with them.

The agent follows the rules of a skill that it understands, and otherwise guesses. Anywhere in the
skill it understands
- routing rules such as "Mentions of refund, invoice or charge mean billing." and "Tickets about
  login go to account."; a word stands for its other forms too (charge, charged, charges), and a
  label for itself;
- "label alone" or "only the label": without one of them it answers in a sentence;
- "lower case": without it the answer is capitalised;
- "full sentences": it then answers in a sentence, whatever else the skill says;
- "when unsure, answer X";
- worked examples, when one is similar to the task.

The optimizer reads failed trajectories, counts words and proposes edits. Some of its proposals
help, some do nothing, and some do harm, on purpose: the gate has to tell them apart.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
from collections import Counter
from dataclasses import dataclass

from skillfit.errors import InputError
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import Reply, Request, Usage
from skillfit.models.registry import Setup

_RULE = re.compile(
    r"(?:mentions?(?: of)?|\w+ about)\s+(?P<words>[^.\n]+?),?\s+"
    r"(?:means?|go(?:es)? to|belongs? to)\s+[`\"*]*(?P<label>[\w-]+)",
    re.IGNORECASE,
)
_UNSURE = re.compile(r"when unsure,? answer\s+[`\"*]*(?P<label>[\w-]+)", re.IGNORECASE)
_EXAMPLE = re.compile(
    r"Input:\n\n(`{3,})\n(?P<input>.*?)\n\1\n\nOutput:\n\n(`{3,})\n(?P<output>.*?)\n\3", re.DOTALL
)
_SLIP = 0.06  # share of tasks where it overlooks a rule
_GUESS = 0.25  # share of the tasks without a rule where it names one of the skill's labels
_ALIKE = 0.45  # share of common words that makes an example similar
_ENDING = re.compile(r"(?:'s|ing|ed|es|s|e|y)$")


def practice_answer(skill: str, task: str, seed: int) -> str:
    """Return the agent's answer. The same skill, task and seed always give the same answer."""
    luck = random.Random(hashlib.sha256(f"{seed}\n{task}".encode()).digest())
    slips, guesses, turn = luck.random(), luck.random(), luck.random()
    label = _by_example(skill, task) or _by_rule(skill, task)
    known = sorted({match["label"].lower() for match in _RULE.finditer(skill)}) or ["general"]
    if label is None:
        fallback = _UNSURE.search(skill)
        guess = known[int(turn * len(known))] if guesses < _GUESS else "general"
        label = fallback["label"].lower() if fallback else guess
    elif slips < _SLIP:
        label = known[int(turn * len(known))]
    return _phrase(label, skill.lower())


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z][a-z'-]+", text.lower())


def stem(word: str) -> str:
    """Return the word without its ending, roughly."""
    cut = _ENDING.sub("", word)
    return cut if len(cut) >= 3 else word


def _by_rule(skill: str, task: str) -> str | None:
    """Return the label whose rules share the most words with the task; of equal ones the later."""
    rules: dict[str, set[str]] = {}
    for match in _RULE.finditer(skill):
        label = match["label"].lower()
        rules[label] = rules.pop(label, {stem(label)}) | {
            stem(word) for word in _words(match["words"])
        }
    found = {stem(word) for word in _words(task)}
    hits = {label: len(found & known) for label, known in rules.items()}
    best = max(reversed(hits), key=hits.__getitem__, default=None)
    return best if best and hits[best] else None


def _by_example(skill: str, task: str) -> str | None:
    """Return the answer of the worked example most similar to the task, if it is similar enough."""
    task_words = set(_words(task))
    best, answer = 0.0, ""
    for match in _EXAMPLE.finditer(skill):
        example_words = set(_words(match["input"]))
        common = len(task_words & example_words) / max(1, len(task_words | example_words))
        best, answer = max((best, answer), (common, match["output"]))
    return answer.strip().lower() if best >= _ALIKE else None


def _phrase(label: str, skill: str) -> str:
    shown = label if "lower case" in skill or "lowercase" in skill else label.capitalize()
    brief = "label alone" in skill or "only the label" in skill
    if "full sentences" in skill or not brief:
        return f"I would send this to {shown}."
    return shown


_ITEM = re.compile(
    r"^### Item (?P<id>\S+).*?$(?P<rest>.*?)(?=^### Item |\Z)", re.DOTALL | re.MULTILINE
)
_TASK = re.compile(r"Task:\n(?P<task>.*?)\n\n", re.DOTALL)
_EXPECTED = re.compile(r"Expected answer[^\n]*:\n(?P<label>[^\n]+)")
_ANSWER = re.compile(r"^\[(?:assistant|answer)\] (?P<answer>.+)$", re.MULTILINE)
_NUMBERED = re.compile(r"^\[(\d+)\] [^{\n]*(\{.*\})$", re.MULTILINE)
# Words that say nothing about the topic of a text.
_COMMON = frozenset(
    _words(
        """
        a about after again all already also although always and another any anything are ask
        because been before below but can can't cannot come comes could day days did does doesn't
        done down each even ever every few find first for found four from get give go goes going
        good got had half has have haven't hello help her here him his home hour how i'd i'm into
        isn't it its just keep kept know last late later let like long look made make many may mine
        minute month more most much must myself near need never new next nobody none not nothing now
        number off often old once one only open other our ours out over own part please put said
        same say says second see seems send sent she should show shows since small some someone
        something soon still such sure take than thank that the their them then there these they
        thing this those three time times today took try two under until upon use used very want
        wants was week weeks well went were what when where which while who why will with within
        without won't work works would write wrong year years yesterday yet you your yours
        """
    )
)
# Words that people use for the topics of a help desk. Where a task has some, rules name only these.
_TOPICS = frozenset(
    _words(
        """
        access account activate address adapter app balance battery bill billing box broken browser
        button cable camera card charge charged charger code courier crash crashes damaged defective
        delete delivered delivery device disk driver email error exchange faulty firewall form
        freeze freezes headset install installed internet invoice keyboard label laptop letterbox
        license lock locked login logged mailbox monitor mouse network package parcel password
        payment permission photo pictures pin plugin price printer profile projector receipt refund
        refunded register registered replacement return returned router scanner screen sender server
        shipment shipping signal sign software storage subscription switch tax tracking update
        upload username version video voucher vpn warehouse warranty website wifi
        """
    )
)
_USELESS = (
    "Read the whole text before answering, because details come late.",
    "Think about what the writer needs most.",
    "Stay calm and helpful even when the writer is upset.",
)
_HARMFUL = (
    "Answer in full sentences, so that the reader feels heard.",
    "When unsure, answer general.",
)
# Tickets that the practice optimizer drafts: what they are about, and what is said about it.
_THINGS = (
    ("billing", "my invoice of last month"),
    ("delivery", "the parcel with the lamp"),
    ("account", "my password and the second email address"),
    ("returns", "the return label for two pairs of shoes"),
    ("technical", "the app on my old tablet"),
    ("billing", "a refund for the cancelled chair"),
    ("delivery", "your courier at the back door"),
    ("account", "the login page for my brother"),
    ("returns", "an exchange of the broken kettle"),
    ("technical", "the error after the update"),
    ("billing", "a second charge on the card"),
)
_TROUBLES = (
    "Since Monday {} keeps me busy, and nobody answers the phone.",
    "Hello, could you look at {} once more? I wrote about it in April already.",
    "I am not happy at all: {} is still not what was promised.",
    "My mother asks whether {} can wait until she is back from Lisbon.",
    "Quick question about {}.",
    "You said that somebody would call me because of {}. Three days, no call!",
    "{}: please tell me what to do next, step by step.",
    "After an hour in your chat I still do not know how {} works here.",
)
_RULE_WORDS = 4
_RULES = 3  # proposed by one analyst
FORMAT_RULE = (
    "Answer with the label alone, in lower case: anything else cannot be read by the system "
    "behind you."
)


@dataclass(frozen=True, slots=True)
class PracticeCase:
    item: str
    task: str
    expected: str
    answer: str


def practice_reply(stage: str, prompt: str) -> str:
    """Return the optimizer's reply to the prompt of a stage: JSON of the requested form."""
    luck = random.Random(prompt)
    if stage.startswith("reflect"):
        return json.dumps(_analyst(prompt, luck, failures=stage != "reflect.success"))
    if stage == "merge":
        return json.dumps(_merge(prompt))
    if stage == "draft_tasks":
        return json.dumps(_draft(prompt))
    simple: JsonObject = {
        "rank": {
            "reasoning": "in the order given",
            "selected_indices": [int(number) for number, _ in _NUMBERED.findall(prompt)],
        },
        "lr_autonomous": {
            "learning_rate": 2,
            "reasoning": "small steps",
            "confidence": "medium",
            "risk_notes": [],
        },
        "rewrite": {
            "reasoning": "",
            "change_summary": ["suggestions added"],
            "new_skill": _rewritten(prompt),
        },
        "slow_update": {
            "reasoning": "seen over the epoch",
            "slow_update_content": "Rules that name words beat rules that ask for care.",
        },
        "meta_skill": {
            "reasoning": "seen over the epoch",
            "meta_skill_content": "Edits that name words were kept most often.",
        },
        "diagnose": {"reasoning": "", "instruction": "Say which rule of the skill you used."},
        "appendix_consolidate": {"notes": ["Check the form of the answer."]},
    }
    return json.dumps(
        simple.get(stage, {"reasoning": "the practice optimizer does not know this stage"})
    )


def _draft(prompt: str) -> JsonObject:
    """Draft support tickets for a triage skill, as many as asked for."""
    asked = re.search(r"Write (\d+) tasks", prompt)
    present = _section(prompt, "tasks_that_are_there")
    tickets = [
        {
            "reasoning": f"{thing} is a matter of {label}",
            "input": _TROUBLES[(at + turn) % len(_TROUBLES)].format(thing),
            "answer": label,
            "type": label,
        }
        for turn in range(len(_TROUBLES))
        for at, (label, thing) in enumerate(_THINGS)
    ]
    new = [ticket for ticket in tickets if ticket["input"] not in present]
    return {"check": "exact", "tasks": new[: int(asked[1]) if asked else 20]}


def _analyst(prompt: str, luck: random.Random, *, failures: bool) -> JsonObject:
    if not failures:
        return {
            "success_patterns": ["the answer is short"],
            "patch": {"reasoning": "nothing to add", "edits": []},
        }
    skill = _section(prompt, "current_skill")
    cases = _cases(_section(prompt, "trajectories"))
    rules = _rules(cases, skill)
    edits = [_append(rule) for rule in rules[:_RULES]]
    talks = [
        case
        for case in cases
        if case.expected.lower() in _words(case.answer) and case.answer.strip() != case.expected
    ]
    if talks and FORMAT_RULE not in skill:
        edits.insert(0, _append(FORMAT_RULE))
    if luck.random() < 0.5 or not edits:
        edits.append(_append(luck.choice(_USELESS)))
    if luck.random() < 0.4:
        edits.insert(luck.randrange(len(edits) + 1), _append(luck.choice(_HARMFUL)))
    summary = [
        {
            "failure_type": f"sent away from {label}",
            "items": items,
            "description": "a word was not known",
        }
        for label, items in _by_label(cases).items()
    ]
    return {
        "failure_summary": summary,
        "patch": {"reasoning": "words that failed tasks share", **_as_all_modes(edits, skill)},
    }


def _rules(cases: list[PracticeCase], skill: str) -> list[str]:
    """Write a rule for each label, from the words that its failed tasks share and those of other
    labels do not have. The most needed rule comes first.
    """
    known = {stem(word) for word in _words(skill)} | _COMMON
    rules = []
    for label, items in sorted(
        _by_label(cases).items(), key=lambda entry: (-len(entry[1]), entry[0])
    ):
        inside = Counter(
            stem(word)
            for case in cases
            if case.expected == label
            for word in dict.fromkeys(_words(case.task))
        )
        outside = {
            stem(word) for case in cases if case.expected != label for word in _words(case.task)
        }
        shown = {
            stem(word): word for case in cases for word in _words(case.task) if word not in _COMMON
        }
        new = shown.keys() - outside - known
        telling = [shown[root] for root, _ in inside.most_common() if root in new and len(root) > 2]
        telling = [word for word in telling if word in _TOPICS] or telling
        if telling and items:
            *first, last = telling[:_RULE_WORDS]
            rules.append(
                f"Mentions of {', '.join(first) + ' or ' if first else ''}{last} mean {label}."
            )
    return rules


def _by_label(cases: list[PracticeCase]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for case in cases:
        grouped.setdefault(case.expected, []).append(case.item)
    return grouped


def _merge(prompt: str) -> JsonObject:
    merged: dict[str, JsonObject] = {}
    for number, text in _NUMBERED.findall(_section(prompt, "proposals")):
        entry = json.loads(text)
        merged.setdefault(json.dumps(entry, sort_keys=True), {**entry, "sources": []})[
            "sources"
        ].append(int(number))
    entries = sorted(merged.values(), key=lambda entry: -len(entry["sources"]))
    name = next((name for name, key in _PAYLOADS.items() if entries and key in entries[0]), "edits")
    return {"reasoning": "equal proposals joined", name: entries}


_PAYLOADS = {"edits": "op", "revise_suggestions": "instruction", "skill_candidates": "new_skill"}


def _as_all_modes(edits: list[dict[str, str]], skill: str) -> JsonObject:
    lines = [edit["content"] for edit in edits]
    suggestions = [
        {"type": "add_rule", "title": "a rule", "motivation": "failed tasks", "instruction": line}
        for line in lines
    ]
    whole = "\n".join(
        [skill.replace("(empty)", "").strip(), "", *(f"- {line}" for line in lines)]
    ).strip()
    candidates = (
        [{"title": "rules added", "change_summary": lines, "new_skill": whole}] if lines else []
    )
    return {"edits": edits, "revise_suggestions": suggestions, "skill_candidates": candidates}


def _append(content: str) -> dict[str, str]:
    return {"op": "append", "target": "", "content": f"- {content}"}


def _rewritten(prompt: str) -> str:
    skill = _section(prompt, "current_skill").replace("(empty)", "").strip()
    added = [
        line
        for line in _section(prompt, "suggestions").splitlines()
        if line and not re.match(r"\d+\. |Why: ", line)
    ]
    return "\n".join(
        [
            skill,
            *(
                line if line.startswith("- ") else f"- {line}"
                for line in added
                if line not in skill
            ),
        ]
    )


def _cases(text: str) -> list[PracticeCase]:
    cases = []
    for match in _ITEM.finditer(text):
        rest = match["rest"]
        task, expected, answers = _TASK.search(rest), _EXPECTED.search(rest), _ANSWER.findall(rest)
        if task and expected and answers and "Result: failed" in rest:
            cases.append(
                PracticeCase(
                    match["id"], task["task"], expected["label"].strip(), answers[-1].strip()
                )
            )
    return cases


def _section(prompt: str, name: str) -> str:
    match = re.search(rf"^<{name}>\n(.*?)\n</{name}>$", prompt, re.DOTALL | re.MULTILINE)
    return match[1] if match else ""


_MODELS = ("agent", "optimizer")
_SECONDS = 0.02  # about the time of a call, so that progress is visible


@dataclass(frozen=True, slots=True)
class PracticeModel:
    """The provider of `practice/agent` and `practice/optimizer`."""

    name: str
    endpoint: str = "practice"
    slots: int | None = None
    context_window: int | None = None

    async def send(self, request: Request) -> Reply:
        prompt = "\n\n".join(message.content for message in request.messages)
        await asyncio.sleep(_SECONDS * (0.5 + random.Random(prompt).expovariate(2)))
        if self.name == "optimizer":
            text = practice_reply(request.stage, prompt)
        else:
            skill = "\n".join(one.content for one in request.messages if one.role == "system")
            task = "\n".join(one.content for one in request.messages if one.role == "user")
            text = practice_answer(skill, task, request.seed or 0)
        usage = Usage(calls=1, input=len(prompt) // 4 + 1, output=len(text) // 4 + 1)
        return Reply(text, usage=usage, model=f"practice/{self.name}")

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def practice(setup: Setup) -> PracticeModel:
    """Make `practice/agent` or `practice/optimizer`."""
    setup.takes(base_url=False, key_env=False)
    if setup.name not in _MODELS:
        raise InputError(
            f"There is no practice model {setup.name!r}.",
            hint="There are practice/agent and practice/optimizer.",
        )
    return PracticeModel(setup.name)
