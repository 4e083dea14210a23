from base64 import b64encode

import pytest

from skillfit.gate.leak import LeakIndex
from skillfit.tasks.item import Item


def item(name, text, *answers, reference=""):
    return Item(name, {"input": text, "answers": list(answers), "reference": reference})


TRAIN = [
    item("t1", "Which river flows through the old town of Basel and on to the sea?", "Rhine"),
    item("t2", "Name the treaty that ended the war of the twelve cantons.", "Treaty of Westphalia"),
    item("t3", "Is the premise entailed by the text?", "entailment"),
    item("t4", "Is the second premise entailed by the text?", "entailment"),
    item("t5", "Is the third premise entailed by the text?", "entailment"),
]
HIDDEN = [
    item(
        "s1",
        "The lighthouse keeper of Skerryvore wrote nine letters to his brother in the winter of "
        "1861. How many?",
        "nine",
    ),
    item("s2", "Who designed the bridge?", "Isambard Kingdom Brunel"),
    item("s3", "What is the access code?", "48151623"),
    item("s4", "Does the text entail it?", "entailment"),
    item("s5", "Which city is the capital?", "Ottawa"),
    item("s6", "Who wrote it?", "Ada Byron"),
    item("s7", "And the key?", "xK9-Q"),
    item("s8", "How many pages?", "317"),
    item("s9", "When did it end?", "1945"),
    item("s10", "Which colour?", "blue"),
    item("s11", "Which option?", "B"),
    item("x1", "日本の首都はどこですか。一番大きい駅も書いてください。", "東京都千代田区"),
]
PATTERNS = [
    r"^ANSWER:\s*\d+$",
    "yes",
    "The summary names the main risk, gives one number and ends with a recommendation to the board",
]
INDEX = LeakIndex.build(TRAIN, HIDDEN, PATTERNS, "# Skill\n\nAnswer briefly.\n")


@pytest.mark.parametrize(
    ("text", "kind", "owner"),
    [
        (
            "When the lighthouse keeper of Skerryvore wrote nine letters, say nine.",
            "item text",
            "s1",
        ),
        ("Remember: bridges were designed by Isambard Kingdom Brunel.", "answer", "s2"),
        ("The code is 48151623.", "answer", "s3"),
        ("End with a line that matches ^ANSWER:\\s*\\d+$ exactly.", "grader", ""),
        ("Give one number and ends with a recommendation to the board, always.", "grader", ""),
        ("答えは東京都千代田区です。", "answer", "x1"),
        ("The capital is Ottawa, not Toronto.", "answer", "s5"),
        ("Ask Ada Byron.", "answer", "s6"),
        ("Say xK9-Q when unsure.", "answer", "s7"),
        ("It is 317.", "answer", "s8"),
        ("戦争は1945年に終わった。", "answer", "s9"),
        ("There were 1,945 of them.", "answer", "s9"),
        ("It is _317_.", "answer", "s8"),
    ],
)
def test_a_leak_is_blocked_with_its_evidence(text, kind, owner):
    leak = INDEX.check(text)[0]
    assert (leak.kind, leak.item) == (kind, owner) and leak.evidence


BRUNEL = "Isambard Kingdom Brunel"


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        (f"{BRUNEL.upper()} did it.", "s2"),
        ("It was isambard_kingdom-brunel.", "s2"),
        ("It was IsambardKingdomBrunel.", "s2"),
        ("It was isambardkingdombrunel.", "s2"),
        ("It was Isam\u200bbard King\u00addom Bru\u2060nel.", "s2"),
        ("It was Ｉｓａｍｂａｒｄ Ｋｉｎｇｄｏｍ Ｂｒｕｎｅｌ.", "s2"),
        ("It was Isa\u0301mbard King\u0336dom Brun\u0308el.", "s2"),
        ("It was Is**amb**ard `King`dom Bru<b>nel</b>.", "s2"),
        ("It was &#73;sambard&nbsp;Kingdom&#32;Brunel.", "s2"),
        ("It was I s a m b a r d K i n g d o m B r u n e l.", "s2"),
        (f"Decode {b64encode(BRUNEL.encode()).decode()}.", "s2"),
        (f"Decode {BRUNEL.encode().hex()}.", "s2"),
        (f"Read {BRUNEL[::-1]} backwards.", "s2"),
        ("The code is 48.151.623.", "s3"),
        ("The code is 48'151'623.", "s3"),
        ("The code is 48\u00a0151\u202f623 or 48\u00a0151\u00a0623.", "s3"),
        ("The code is 4 8 1 5 1 6 2 3.", "s3"),
        ("Decode T3R0YXdh.", "s5"),
    ],
)
def test_a_light_disguise_does_not_hide_a_leak(text, owner):
    assert [leak.item for leak in INDEX.check(text)] == [owner]


@pytest.mark.parametrize(
    "text",
    [
        "Answer yes or no.",
        "Choose B when the sky is blue; 42 is no answer, and ottawa is no name.",
        "Write numbers as words, for example nine.",
        "Choose between entailment and contradiction.",
        "Name the river that flows through the town.",
        "Read the whole question before you answer, and check the units of every number in the "
        "text.",
        "Answer briefly.",
        "",
        "The war of the cantons ended by the Treaty of Westphalia: never answer with a year.",
        "Q: which treaty? A: Treaty of Westphalia",
        "Numbers such as 48 151 or 1.94 stay as they are.",
        "Write dates as 2024-03-05, amounts as 1,250.00 and codes as AB12-34.",
    ],
)
def test_common_words_short_answers_and_class_labels_pass(text):
    assert INDEX.check(text) == ()


TRIAGE = """# Triage

Answer as team/priority, in reports as JSON with team and priority.
Teams: billing, shipping, technical support. Priorities: P1, P2, P3.
"""
TICKETS = [item(f"t{n}", f"Ticket {n}: the parcel is late.", "billing/P1") for n in range(4)]
HIDDEN_TICKETS = [
    item("s1", "The truck lost it.", "shipping/P1"),
    item("s2", "The app is slow today.", '{"team": "technical support", "priority": "P3"}'),
    *(item(f"s{n}", f"Ticket {n}.", "escalation-desk/urgent") for n in (3, 4, 5)),
    item("s6", "Which invoice is wrong?", "INV-2291-X"),
    item("s7", "How much is refunded?", "1250.50"),
]


@pytest.mark.parametrize(
    ("text", "leaked"),
    [
        ("Lost parcels: answer `shipping/P1`.", []),
        ('Slow apps: {"team": "technical support", "priority": "P3"}', []),
        ("Angry customers go to escalation-desk/urgent.", []),
        ("Late parcels: billing/P1, lost ones: **shipping/P1**, others `billing / P3`.", []),
        ("The invoice INV-2291-X is wrong.", ["s6"]),
        ("Refund 1,250.50.", ["s7"]),
    ],
)
def test_answers_made_of_words_of_the_skill_and_labels_pass_and_others_do_not(text, leaked):
    index = LeakIndex.build(TICKETS, HIDDEN_TICKETS, ["shipping/P2", "Priority: P1"], TRIAGE)
    assert [leak.item for leak in index.check(text)] == leaked


def test_a_blank_skill_knows_the_labels_whose_parts_training_answers_have():
    train = [item("t1", "Where is it?", "shipping/P2"), item("t2", "Refund!", "billing/P1")]
    index = LeakIndex.build(train, HIDDEN_TICKETS, [], "")
    assert index.check("Lost parcels: shipping/P1.") == ()
    assert index.check("The invoice INV-2291-X is wrong.") != ()


def test_the_words_that_all_training_inputs_begin_with_are_known():
    train = [item(f"t{n}", f"Answer with entailment or contradiction: {n}") for n in range(4)]
    index = LeakIndex.build(train, [item("s1", "A", "contradiction")], [], "")
    assert index.check("Say contradiction when in doubt.") == ()


def test_numbers_and_long_answers_are_not_known_by_their_words():
    skill = "Round 12 and 50. The quick brown fox jumps over one lazy dog."
    hidden = [item("s1", "A", "12.50"), item("s2", "B", "the lazy dog jumps over")]
    index = LeakIndex.build([], hidden, [], skill)
    assert [leak.item for leak in index.check("Say 12.50 or: the lazy dog jumps over")] == [
        "s2",
        "s1",
    ]


def test_text_already_in_the_skill_is_not_a_leak():
    index = LeakIndex.build(
        TRAIN,
        HIDDEN,
        PATTERNS,
        "Isambard Kingdom Brunel and the Treaty of Westphalia. ^ANSWER:\\s*\\d+$",
    )
    assert (
        index.check("Isambard Kingdom Brunel signed the Treaty of Westphalia ^ANSWER:\\s*\\d+$")
        == ()
    )


def test_text_shared_with_training_items_is_not_a_leak_of_hidden_ones():
    shared = "Read the passage below carefully and answer the question that follows it"
    index = LeakIndex.build([item("t", f"{shared}: one")], [item("s", f"{shared}: two")], [], "")
    assert index.check(shared) == ()


def test_case_and_punctuation_do_not_hide_a_leak():
    assert INDEX.check("isambard-kingdom BRUNEL")[0].item == "s2"
