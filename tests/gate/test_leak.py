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
        ("The war of the cantons ended by the Treaty of Westphalia.", "training answer", "t2"),
        ("答えは東京都千代田区です。", "answer", "x1"),
        ("The capital is Ottawa, not Toronto.", "answer", "s5"),
        ("Ask Ada Byron.", "answer", "s6"),
        ("Say xK9-Q when unsure.", "answer", "s7"),
        ("It is 317.", "answer", "s8"),
        ("戦争は1945年に終わった。", "answer", "s9"),
        ("There were 1,945 of them.", "answer", "s9"),
    ],
)
def test_a_leak_is_blocked_with_its_evidence(text, kind, owner):
    leak = INDEX.check(text)[0]
    assert (leak.kind, leak.item) == (kind, owner) and leak.evidence


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
    ],
)
def test_common_words_short_answers_and_class_labels_pass(text):
    assert INDEX.check(text) == ()


def test_training_answers_are_allowed_in_examples_but_hidden_ones_are_not():
    assert INDEX.check("Q: which treaty? A: Treaty of Westphalia", examples=True) == ()
    assert INDEX.check("Q: who? A: Isambard Kingdom Brunel", examples=True) != ()


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
