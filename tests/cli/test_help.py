"""`skillfit --help`, and the completion of commands in a shell."""

import os
import re
import subprocess

from tests.cli.cli_project import COMMAND, Shell


def test_help_begins_with_the_six_commands_that_a_new_user_needs(shell: Shell) -> None:
    panels = re.findall(r"╭─ (.+?) ─+╮\n(.*?)╰", shell("--help").out, re.DOTALL)
    listed = {name: re.findall(r"^│ ([a-z]+) ", text, re.MULTILINE) for name, text in panels[1:]}
    assert next(iter(listed.items())) == (
        "Start",
        ["demo", "init", "check", "train", "report", "apply"],
    )
    assert sum(map(len, listed.values())) == 29


def test_a_shell_completes_commands() -> None:
    asked = {"COMP_WORDS": "skillfit es", "COMP_CWORD": "1", "_SKILLFIT_COMPLETE": "complete_bash"}
    done = subprocess.run(
        COMMAND, env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["estimate"], done.stderr
    script = subprocess.run(
        [*COMMAND, "--show-completion", "bash"], capture_output=True, text=True, check=False
    )
    assert "complete_bash" in script.stdout and "complete -o default" in script.stdout
