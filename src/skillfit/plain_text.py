"""Text for people: untrusted text made safe, long text shortened, amounts written out.

Models, task files and servers can send terminal escape sequences, direction overrides and invisible
characters. Printed as they are, these can hide or fake what a person reads, for example in a diff
under review. `visible` replaces them with backslash escapes.

`shorten`, `one_line` and `head_and_tail` fit a text into a number of characters. The other
functions format counts, dollars, times, scores and intervals, and turn names in the records of a
run into words. Terminal, report, studio and messages use all of these.
"""

from __future__ import annotations

import re
import unicodedata

# Everything that is not letters, marks, numbers, punctuation, symbols or spaces, plus the invisible
# characters that Unicode counts as marks (variation selectors) or letters (fillers).
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_HIDDEN_RANGES = ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF), (0x115F, 0x1160))
_HIDDEN_CHARACTERS = frozenset("\u034f\u17b4\u17b5\u3164\uffa0")
# Needed inside words of some scripts and inside emoji; harmless between characters beyond ASCII.
_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")
# Fast path: text of printable ASCII, tabs and newlines needs no change.
_NEEDS_A_LOOK = re.compile(r"[^\n\t\x20-\x7e]")
_NOTE = 40  # room for the note about what `head_and_tail` left out


def visible(text: str) -> str:
    r"""Replace control and invisible characters by escapes (`\x1b`, `\u202e`).

    Tabs, newlines and CRLF line ends stay as they are. So do ordinary characters of every script.
    """
    if not _NEEDS_A_LOOK.search(text):
        return text
    shown = []
    for position, character in enumerate(text):
        hide = _is_hidden(character) and not _is_harmless_here(text, position)
        shown.append(_escape(character) if hide else character)
    return "".join(shown)


def _is_hidden(character: str) -> bool:
    if character in "\n\t":
        return False
    code = ord(character)
    return (
        unicodedata.category(character) in _HIDDEN_CATEGORIES
        or any(first <= code <= last for first, last in _HIDDEN_RANGES)
        or character in _HIDDEN_CHARACTERS
    )


def _is_harmless_here(text: str, position: int) -> bool:
    """Return whether the character is a carriage return that is part of a CRLF, or a joiner within
    a word or an emoji.
    """
    character = text[position]
    if character == "\r":
        return text[position + 1 : position + 2] == "\n"
    if character not in _JOINERS:
        return False
    before, after = text[position - 1 : position], text[position + 1 : position + 2]
    return after == "\u20e3" or (before > "\x7f" and not _is_hidden(before))  # or a keycap emoji


def _escape(character: str) -> str:
    code = ord(character)
    if character == "\r":
        return "\\r"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def shorten(text: str, limit: int) -> str:
    """Return the beginning of the text within `limit` characters, with an ellipsis if a part is
    left out.
    """
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def last_part(text: str, limit: int) -> str:
    """Return the end of the text within `limit` characters, with an ellipsis if a part is left
    out.
    """
    return text if len(text) <= limit else f"…{text[len(text) - limit + 1 :].lstrip()}"


def one_line(text: str, limit: int) -> str:
    """Return the beginning of the text in one line of at most `limit` characters."""
    # Splitting is slow for megabytes, and most characters of a text are not spaces.
    return shorten(" ".join(text[: 20 * limit].split()), limit)


def head_and_tail(text: str, limit: int, head: float = 0.5) -> str:
    """Return the beginning and the end of the text within `limit` characters, and between them how
    much is left out.

    `head` is the share of the beginning.
    """
    if len(text) <= limit:
        return text
    keep = max(0, limit - _NOTE)
    first = int(keep * head)
    last = keep - first
    left_out = len(text) - keep
    return f"{text[:first]}\n[… {left_out:,} characters left out …]\n{text[len(text) - last :]}"


def quantity(number: int, noun: str, plural: str = "") -> str:
    """Format a number of things: "1 item", "1,200 items"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def rounded(number: float) -> str:
    """Format a count with the digits that an estimate has: "9,500", "17k", "1.8M"."""
    if number < 10_000:
        return f"{number:,.0f}"
    return f"{number / 1e3:,.0f}k" if number < 999_500 else f"{number / 1e6:,.1f}M"


def dollars(usd: float | None) -> str:
    """Format dollars; small amounts have up to four decimals. Return "" for an unknown price."""
    if usd is None:
        return ""
    if usd >= 0.1 or usd == 0:
        return f"${usd:,.2f}"
    return f"${usd:.4f}".rstrip("0") if usd >= 0.0001 else "below $0.0001"


def rounded_dollars(usd: float) -> str:
    """Format dollars with the digits that an estimate has: "$1,200", "$12.35", "$0.0035"."""
    if usd >= 100:
        return f"${usd:,.0f}"
    if usd >= 0.1 or usd == 0:
        return f"${usd:.2f}"
    return f"${usd:.2g}" if usd >= 0.0001 else "<$0.0001"


def duration(seconds: float) -> str:
    """Format a time span, rounded: "2 h 5 min", "45 min", "1.5 min", "40 s", "2.4 s"."""
    minutes = seconds / 60
    if round(minutes) >= 60:
        return f"{round(minutes) // 60} h {round(minutes) % 60} min"
    if round(minutes, 1) >= 10:
        return f"{minutes:.0f} min"
    if round(seconds) >= 60:
        return f"{minutes:.1f} min"
    return f"{seconds:.0f} s" if round(seconds, 1) >= 10 else f"{seconds:.1f} s"


def budget_amount(cap: str, value: float) -> str:
    """Format an amount of what a cap of the budget counts: "$5.00", "10 min", "1,000 calls"."""
    if cap == "usd":
        return dollars(value)
    return duration(value * 60) if cap == "minutes" else quantity(int(value), cap.removesuffix("s"))


def percent(score: float) -> str:
    return f"{score * 100:.1f}".removesuffix(".0") + "\u00a0%"


def points(difference: float) -> str:
    """Format a difference of scores in percentage points, with a real minus sign."""
    # Rounded first: 0.3625 reads the same whether it was computed as 0.36249999 or 0.36250001.
    return f"{round(difference * 100, 6):+z.1f}".replace("-", "−")


def mean_score(score: float) -> str:
    """Format a mean score as terminals show it: "0.412"."""
    return f"{score:.3f}"


def score_with_interval(score: float, low: float, high: float) -> str:
    """Format a mean score and its interval: "0.412 (0.35 … 0.48)". Scores are never below 0."""
    return f"{mean_score(score)} ({max(0.0, low):.2f} … {high:.2f})"


def score_change(difference: float) -> str:
    """Format a difference of mean scores: "+0.120", and "+0.000" for what rounds to nothing."""
    return f"{difference:+z.3f}"


def with_interval(difference: float, low: float, high: float) -> str:
    """Format a difference of mean scores and its interval: "+0.120 (+0.05 … +0.19)"."""
    return f"{score_change(difference)} ({change_interval(low, high)})"


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def change_interval(low: float, high: float) -> str:
    """Format the interval of a difference of mean scores: "+0.05 … +0.19"."""
    return f"{low:+z.2f} … {high:+z.2f}"


# Actions, finish reasons and stages of a run as people read them.
_WORDS = {
    "accept": "accepted",
    "accept_new_best": "accepted, new best",
    "force_accept": "accepted without a test",
    "reject": "rejected",
    "skip_no_patches": "skipped: no edits proposed",
    "skip_no_change": "skipped: the edits change nothing",
    "skip_no_rewrite": "skipped: no usable rewrite",
    "skip_leak": "skipped: the leak check refused the candidate",
    "inject_placeholder": "added placeholder",
    "no_content": "nothing to add",
    "unchanged": "the same text again",
    "refused": "not added",
    "join_pool": "added as a pending edit",
    "skip_first_epoch": "skipped: the first epoch has none before it to compare with",
    "skip_same_skill": "skipped: the epoch left the skill as it was",
    "skip_last_epoch": "skipped: no epoch follows that could use it",
    "budget": "budget reached",
    "infrastructure": "failed",
    "preflight": "check",
    "rollout": "training rollouts",
    "gate": "measuring edits",
    "compose": "final skill",
    "composed": "final skill",
    "ship": "ship test",
    "test": "test split",
}


def display_name(name: str) -> str:
    """Return a name in the records as terminal and pages show it. One without an entry in `_WORDS`
    loses its underscores: "slow_update" becomes "slow update", "step_0003" becomes "step 3" and
    "slow_update_epoch_02" becomes "slow update 2".
    """
    return _WORDS.get(name) or re.sub(r"(_epoch)?_0*(?=\d)|_", " ", name)


# The stages by what a run does in them. Calls are recorded under names of their own.
_WORK = {
    "check": ("preflight", "probe"),
    "writing edits": (
        *("reflect", "aggregate", "merge", "select", "rank", "lr_autonomous", "update", "rewrite"),
        *("diagnose", "slow_update", "meta_skill", "appendix", "appendix_consolidate"),
    ),
    "measuring": (
        *("baseline", "rollout", "diagnosis", "gate", "prune", "compose", "final"),
        *("grading", "judge", "evaluate", "ablate", "compare"),
    ),
    "ship test": ("ship", "test"),
}
_WORK_IN = {stage: work for work, stages in _WORK.items() for stage in stages}


def work_name(stage: str, role: str = "optimizer") -> str:
    """Return what a run does in a stage, as screens, estimates and bills show it: "check",
    "writing edits", "measuring" or "ship test". `role`: whose calls these are; only the
    optimizer writes. A stage of a user's part has its own name.
    """
    work = _WORK_IN.get(stage.partition(".")[0]) or display_name(stage)
    return "measuring" if work == "writing edits" and role != "optimizer" else work


def note_text(verdict: str, text: str) -> str:
    """Write what a person says about an answer: "wrong: it names the old queue"."""
    return f"{verdict}: {text.strip()}" if text.strip() else verdict


def label_of(name: str) -> str:
    """Return the name of a measurement or decision as people read it: "step 3", "initial", "best",
    "measuring 1".
    """
    plain = name.removeprefix("test_").removeprefix("ship_")
    if plain.startswith("prune_"):
        plain = plain.replace("prune", work_name("prune"), 1)
    return display_name("initial" if plain == "baseline" else plain)
