"""Writes the items of the swebench sample: an issue for each bug in its two small repositories, the
patch that fixes it and the hidden tests that show it. Run it after changing a repository or
anything below:

    python -m bench.samples.repositories

The results are committed. The patches are made by git.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import skillfit.plugins.benchmarks

SAMPLE = Path(skillfit.plugins.benchmarks.__file__).parent / "swebench" / "sample"


@dataclass(frozen=True)
class Bug:
    """An issue: its text, what fixes it in the module, and hidden tests."""

    split: str
    issue: str
    before: str
    after: str
    test: str


BUGS: dict[str, list[Bug]] = {
    "wordmill": [
        Bug(
            "train",
            "slug() leaves hyphens at the ends\n\n`slug('What?')` gives 'what-'. There should be "
            "no hyphen at the beginning or the end.",
            'return re.sub(r"[^a-z0-9]+", "-", title.lower())',
            'return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")',
            'def test_no_hyphen_at_the_ends():\n    assert slug("(What?)") == "what"\n',
        ),
        Bug(
            "train",
            "wrap() loses the last line\n\n`wrap('one two', 20)` returns an empty list instead of "
            "['one two'].",
            "        line += word + \" \"\n    return lines",
            "        line += word + \" \"\n    return [*lines, line.strip()] if line else lines",
            'def test_the_last_line_is_kept():\n    assert wrap("one two", 20) == ["one two"]\n',
        ),
        Bug(
            "train",
            "initials() fails on double spaces\n\n`initials('Ada  Lovelace')` raises IndexError.",
            'name.split(" ")',
            "name.split()",
            'def test_more_spaces():\n    assert initials(" Ada  Lovelace ") == "AL"\n',
        ),
        Bug(
            "val",
            "count_words() ignores words with capitals\n\nThe documentation promises that case "
            "does not matter, but `count_words('So so')` counts only one `so`.",
            'r"[a-z\']+", text)',
            'r"[a-z\']+", text.lower())',
            'def test_case_does_not_matter():\n    assert count_words("So so") == {"so": 2}\n',
        ),
        Bug(
            "val",
            "shorten() returns texts that are too long\n\nThe result of `shorten('abcdef', 4)` has "
            "five characters. The ellipsis should be within the limit, and a text of exactly the "
            "limit should stay as it is.",
            "    if len(text) < limit:\n        return text\n    return text[:limit] + \"…\"",
            "    if len(text) <= limit:\n        return text\n    return text[: limit - 1] + \"…\"",
            'def test_the_limit_includes_the_ellipsis():\n'
            '    assert shorten("abcdef", 4) == "abc…"\n'
            '    assert shorten("abcd", 4) == "abcd"\n',
        ),
        Bug(
            "val",
            "is_palindrome() stumbles over punctuation\n\n`is_palindrome('Madam, in Eden, I\\'m "
            "Adam')` should be true.",
            'letters = text.lower().replace(" ", "")',
            'letters = [letter for letter in text.lower() if letter.isalnum()]',
            'def test_punctuation_does_not_matter():\n'
            '    assert is_palindrome("Madam, in Eden, I\'m Adam")\n',
        ),
        Bug(
            "test",
            "plural() is wrong for zero\n\nIt says `0 item`; it should be `0 items`.",
            'if count > 1 else ""',
            'if count != 1 else ""',
            'def test_zero_is_plural():\n    assert plural(0, "item") == "0 items"\n',
        ),
    ],
    "tallybook": [
        Bug(
            "train",
            "parse_amount() loses cents\n\n`parse_amount('0.29')` gives 28.",
            "return int(float(text) * 100)",
            "return round(float(text) * 100)",
            'def test_cents_are_kept():\n    assert parse_amount("0.29") == 29\n',
        ),
        Bug(
            "train",
            "format_amount() drops zeros\n\n`format_amount(1205)` gives '12.5'.",
            '{cents % 100}"',
            '{cents % 100:02d}"',
            'def test_two_digits():\n    assert format_amount(1205) == "12.05"\n',
        ),
        Bug(
            "val",
            "split_evenly() loses money\n\n`sum(split_evenly(100, 3))` is 99. The first shares "
            "should get the remaining cents.",
            "    return [cents // people] * people",
            "    share, rest = divmod(cents, people)\n"
            "    return [share + (at < rest) for at in range(people)]",
            "def test_the_shares_add_up():\n    assert split_evenly(100, 3) == [34, 33, 33]\n",
        ),
        Bug(
            "val",
            "Ledgers share their entries\n\nTwo ledgers made with `Ledger()` have the same "
            "entries.",
            "    def __init__(self, entries=[]):\n        self.entries = entries",
            "    def __init__(self, entries=()):\n        self.entries = list(entries)",
            "def test_ledgers_are_apart():\n    Ledger().add(\"a\", 1)\n"
            "    assert Ledger().entries == []\n",
        ),
        Bug(
            "test",
            "balance() mixes accounts\n\nThe balance of `rent` includes the entries of "
            "`parents`.",
            "if account in name)",
            "if account == name)",
            "def test_names_must_be_equal():\n    ledger = Ledger([(\"parents\", 5)])\n"
            "    assert ledger.balance(\"rent\") == 0\n",
        ),
        Bug(
            "test",
            "accounts() lists accounts twice\n\nAn account with two entries appears twice.",
            "return sorted(name for name, _ in self.entries)",
            "return sorted({name for name, _ in self.entries})",
            "def test_each_account_once():\n    ledger = Ledger([(\"a\", 1), (\"a\", 2)])\n"
            "    assert ledger.accounts() == [\"a\"]\n",
        ),
    ],
}  # fmt: skip


def diff(folder: Path, files: dict[str, str]) -> str:
    """The patch that git makes of new contents of files; the folder is left as it was."""
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    git(folder, "add", "--all")
    patch = git(folder, "diff", "--cached")
    git(folder, "reset", "-q", "--hard")
    return patch


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=sample", "-c", "user.email=sample@example.org"]
    command = ["git", *who, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def tests_in(text: str, file: str) -> list[str]:
    names = [line.partition("(")[0][4:] for line in text.splitlines() if line.startswith("def ")]
    return [f"{file}::{name}" for name in names]


def rows_of(name: str) -> dict[str, list[dict[str, object]]]:
    module, test_file = f"{name}.py", f"tests/test_{name}.py"
    repository = SAMPLE / "repos" / name
    source = (repository / module).read_text(encoding="utf-8")
    tests = (repository / test_file).read_text(encoding="utf-8")
    rows: dict[str, list[dict[str, object]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / name
        shutil.copytree(repository, folder)
        git(folder, "init", "-q")
        git(folder, "add", "--all")
        git(folder, "commit", "-q", "-m", "base")
        for number, bug in enumerate(BUGS[name], 1):
            assert source.count(bug.before) == 1, bug.issue
            patch = diff(folder, {module: source.replace(bug.before, bug.after)})
            test_patch = diff(folder, {test_file: f"{tests}\n\n{bug.test}"})
            row: dict[str, object] = {
                "instance_id": f"sample__{name}-{number}",
                "repo": f"sample/{name}",
                "base_commit": "",
                "repository": f"../repos/{name}",
                "problem_statement": bug.issue,
                "hints_text": "",
                "patch": patch,
                "test_patch": test_patch,
                "FAIL_TO_PASS": json.dumps(tests_in(bug.test, test_file)),
                "PASS_TO_PASS": json.dumps(tests_in(tests, test_file)),
            }
            rows.setdefault(bug.split, []).append(row)
    return rows


def main() -> None:
    splits: dict[str, list[dict[str, object]]] = {}
    for name in BUGS:
        for split, rows in rows_of(name).items():
            splits.setdefault(split, []).extend(rows)
    for split, rows in splits.items():
        (SAMPLE / split).mkdir(exist_ok=True)
        text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
        (SAMPLE / split / "items.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
