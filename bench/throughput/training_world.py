"""A task that can be trained, with known truth, for whole training runs on the loopback server.

Notes belong to eight kinds. The chance that the agent reads a note right is a logistic of its
kind's level, the note's own difficulty and the effects of the rules in the skill: 30 % of all rules
help one or two kinds, 40 % do nothing and 30 % harm, as in the default world of `bench.gate`. The
optimizer knows nothing about that. From every two or three trajectories it is shown, it writes one
new rule, in whatever form the asking system wants.

Standard library only: the peers' interpreters read it too.
"""

import json
import math
import random
import re
from functools import lru_cache

from bench.throughput.world import draw

KINDS = 8
SIZES = {"train": 160, "val": 40}
POPULATION = 400  # unseen notes: the true score is the mean chance over them
RULES_PER_TRAJECTORY = 0.4
LEVEL, SPREAD = -0.6, 1.0  # of the chances without any rule, in logits
LONGEST = 10  # times the mean; latencies are cut there
SKILL = "# Reading notes\n\nRead the note and answer with its reading.\n"
_NOTE = re.compile(r"note ((?:train|val)-\d{4})\b")
_RULE = re.compile(r"rule-([0-9a-f]{10})\b")
_NUMBERED = re.compile(r"^\[(\d+)\] ", re.MULTILINE)
_NUMBERED_JSON = re.compile(r"^\[(\d+)\] [^{\n]*(\{.*\})$", re.MULTILINE)
GEPA_PROMPT = re.compile(
    r"following instructions to perform a task for me:\n```\n(.*?)\n```\n", re.DOTALL
)


# The task


def question(note):
    return f"What is the reading of note {note}?"


def gold(note):
    return f"reading {int(draw('gold', note) * 16**6):06x}"


def notes(split):
    return [f"{split}-{number:04d}" for number in range(SIZES[split])]


def rows(split):
    """The items of a split, as SkillOpt's SearchQA and skillfit's loader read them."""
    context = "The archive keeps a reading for every note."
    return [
        {"id": note, "question": question(note), "context": context, "answers": [gold(note)]}
        for note in notes(split)
    ]


def write(folder):
    """The initial skill and the items, where the contestants read them: skill.md and
    items/SPLIT/items.json.
    """
    (folder / "skill.md").write_text(SKILL)
    for split in SIZES:
        (folder / "items" / split).mkdir(parents=True)
        (folder / "items" / split / "items.json").write_text(json.dumps(rows(split)))


# The truth


def chance(seed, note, rules):
    kind = int(note.rpartition("-")[2]) % KINDS
    level = random.Random(f"{seed}/kind/{kind}").gauss(LEVEL, 0.8)
    logit = level + random.Random(f"{seed}/note/{note}").gauss(0, SPREAD)
    logit += sum(effect(seed, rule)[kind] for rule in rules)
    return 1 / (1 + math.exp(-logit))


@lru_cache(maxsize=100_000)
def effect(seed, rule):
    """Logits that a rule adds, by kind of note."""
    luck = random.Random(f"{seed}/rule/{rule}")
    which = luck.random()
    sign = 1 if which < 0.3 else -1 if which > 0.7 else 0
    by_kind = [0.0] * KINDS
    for kind in luck.sample(range(KINDS), luck.choice((1, 2))):
        by_kind[kind] += sign * luck.uniform(0.3, 1.3)
    if sign > 0 and luck.random() < 0.3:
        by_kind[luck.randrange(KINDS)] -= luck.uniform(0.15, 0.65)
    return by_kind


def true_score(seed, skill):
    rules = sorted(set(_RULE.findall(skill)))
    return sum(chance(seed, f"test-{at:04d}", rules) for at in range(POPULATION)) / POPULATION


# The models


def is_agent(model):
    return model.startswith("agent")


def latency(mean, *names):
    """Seconds: log-normal with this mean, one in a hundred above six times the mean."""
    luck = random.Random("/".join(map(str, names)))
    return min(LONGEST * mean, mean * luck.lognormvariate(-0.5, 1.0))


def agent_reply(seed, system, user, attempt):
    """`attempt`: how often this note was asked before with these rules."""
    asked = _NOTE.findall(user)
    if not asked:  # skillfit's probe
        return "ok"
    note = asked[-1]
    rules = sorted(set(_RULE.findall(system)))
    right = draw("coin", seed, note, attempt, *rules) < chance(seed, note, rules)
    return f"<answer>{gold(note) if right else 'unclear'}</answer>"


def optimizer_reply(stage, prompt):
    """What the optimizer writes, in the form that the asking system expects."""
    if found := GEPA_PROMPT.search(prompt):
        shown = _NOTE.findall(prompt[found.end() :])
        rules = "\n".join(_new_rules(prompt, len(set(shown))))
        return f"```\n{found[1]}\n{rules}\n```"
    if stage.startswith(("reflect", "analyst")):
        rules = _new_rules(prompt, len(set(_NOTE.findall(prompt))))
        edits = [{"op": "append", "target": "", "content": rule} for rule in rules]
        if stage == "reflect.corpus":
            return json.dumps({"reasoning": "scripted", "failures": [], "edits": edits})
        return json.dumps(
            {
                "batch_size": len(edits),
                "failure_summary": [],
                "success_patterns": [],
                "patch": {"reasoning": "scripted", "edits": edits},
            }
        )
    if stage.startswith("merge"):
        return json.dumps({"reasoning": "scripted", "edits": merged(prompt)})
    if stage.startswith("rank"):
        numbers = sorted(set(map(int, _NUMBERED.findall(prompt))))
        random.Random(prompt).shuffle(numbers)
        return json.dumps({"reasoning": "scripted", "selected_indices": numbers})
    text = {f"{stage}_content": "Read each note twice."}
    return json.dumps({"reasoning": "scripted", **text})


def _new_rules(prompt, trajectories):
    luck = random.Random(prompt)
    count = math.ceil(RULES_PER_TRAJECTORY * trajectories)
    names = [f"{luck.getrandbits(40):010x}" for _ in range(count)]
    return [f"- rule-{name}: look at the {_word(luck)} before the {_word(luck)}." for name in names]


def _word(luck):
    return "".join(luck.choice("aeioubdgklmnprst") for _ in range(6))


def merged(prompt):
    """All proposals as they are: skillfit numbers them, SkillOpt sends patches as JSON."""
    numbered = _NUMBERED_JSON.findall(prompt)
    if numbered:
        return [_edit(json.loads(text)) | {"sources": [int(number)]} for number, text in numbered]
    patches = json.loads(prompt[prompt.index("\n[\n") :])
    return [_edit(entry) for patch in patches for entry in patch["edits"]]


def _edit(entry):
    return {name: entry[name] for name in ("op", "target", "content") if name in entry}
