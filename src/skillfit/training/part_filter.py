"""Refuse edits of parts that are not trained, and scripts that do not work.

A script that an edit writes must compile and pass its own check before any rollout carries it: the
command of `optimizer.script_check`, or the script itself with --self-check. Both run isolated, in a
copy of the skill's folder. The result is recorded, so that a resumed run decides the same.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from skillfit.config.schema import OptimizerSection
from skillfit.errors import InputError
from skillfit.optimize.optimizer import Proposal
from skillfit.plain_text import one_line
from skillfit.run.events import Discarded, Event
from skillfit.run.paid import PaidEffects
from skillfit.sandbox.known_good import KnownGood
from skillfit.sandbox.programs import Isolation, run_untrusted, scratch_folder
from skillfit.skill import WRITE_OP, Edit, Skill, apply_edits
from skillfit.skill.parts import part_of, part_text
from skillfit.tasks.item import stable_hash

SELF_CHECK = "--self-check"
_CHECK_SECONDS = 30.0
_MOST_SCRIPTS = 10  # of a step that are checked
_SHOWN = 300  # characters of what a check printed
_COMPILE = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')"
_INTERPRETERS = {
    ".py": "python",
    ".sh": "sh",
    ".bash": "bash",
    ".js": "node",
    ".mjs": "node",
    ".cjs": "node",
}
_SYNTAX_CHECKS: dict[str, tuple[str, ...]] = {
    "python": ("-I", "-c", _COMPILE),
    "sh": ("-n",),
    "bash": ("-n",),
    "node": ("--check",),
}


@dataclass(frozen=True, slots=True)
class PartFilter:
    """Keeps edits out of the gate that no rollout may carry."""

    settings: OptimizerSection
    isolation: Isolation | None  # of scripts; None: no scripts are trained
    paid: PaidEffects
    emit: Callable[[Event], None]

    async def usable(
        self, proposals: Sequence[Proposal], skills: Sequence[Skill], step: int
    ) -> tuple[Proposal, ...]:
        """Return the proposals that may be tried; events say why others may not. An edit must
        apply to one of the `skills`, the incumbent first.
        """
        kept, scripts = list[Proposal](), 0
        for proposal in proposals:
            edit = proposal.edit
            problem = self._untrained(edit) if edit is not None else ""
            if edit is not None and not problem and _writes_script(edit):
                scripts += 1
                problem = (
                    await self.script_problem(edit, skills)
                    if scripts <= _MOST_SCRIPTS
                    else f"a step checks {_MOST_SCRIPTS} scripts at most"
                )
            if edit is None or not problem:
                kept.append(proposal)
                continue
            text = one_line(edit.content or edit.target, 80)
            what = f"edit of {one_line(edit.file, 80) or 'the body'}: {text}"
            self.emit(Discarded(step=step, stage="parts", what=what, reason=problem))
        return tuple(kept)

    def _untrained(self, edit: Edit) -> str:
        """Say that the part which an edit changes is not trained; empty: it is."""
        if part_of(edit.file) in self.settings.parts:
            return ""
        trained = ", ".join(self.settings.parts)
        named = one_line(edit.file, 80) or "the body"
        return f"optimizer.parts lets edits change {trained}, not {named}"

    async def script_problem(self, edit: Edit, skills: Sequence[Skill]) -> str:
        """Say why the script that an edit writes does not work; empty: it does, or the edit applies
        to none of the skills, for which the gate refuses it.
        """
        assert self.isolation is not None, "scripts are trained, so an isolation was chosen"
        applied = (apply_edits(skill, [edit]) for skill in skills)
        skill = next((found.skill for found in applied if found.edits), None)
        if skill is None:
            return ""
        command = self.settings.script_check
        name = f"script/{stable_hash([edit.file, skill.hash, command])}"
        work = partial(check_script, skill, edit.file, command, self.isolation)
        async with self.paid.until_stopped():
            return await self.paid.record(name, work, returns=str, stage="reflect")


def _writes_script(edit: Edit) -> bool:
    return part_of(edit.file) == "scripts" and bool(edit.content.strip())


async def check_script(skill: Skill, file: str, command: str, isolation: Isolation) -> str:
    """Say why a script of a skill does not work; empty: it compiles and passes its check."""
    text = part_text(skill, file) or ""
    name = _interpreter(file, text)
    interpreter = sys.executable if name == "python" else shutil.which(name) if name else None
    if name and interpreter is None:
        return f"nothing here can check {file}: there is no {name} on this machine"
    runs: list[tuple[str, list[str]]] = []
    if interpreter and (arguments := _SYNTAX_CHECKS.get(name)):
        runs.append((f"{file} does not compile", [interpreter, *arguments, file]))
    missing = ""
    if command:
        own = [part.replace("{script}", file) for part in shlex.split(command)]
        runs.append((f"{file} fails {command!r}", own))
    elif interpreter is None:
        missing = f"nothing says which program runs {file}: its first line is not like #!/bin/sh"
    elif SELF_CHECK not in text:
        missing = f"{file} has no {SELF_CHECK}, and optimizer.script_check names no other check"
    else:
        runs.append((f"{file} fails its {SELF_CHECK}", [interpreter, file, SELF_CHECK]))
    with scratch_folder("script") as folder:
        skill.save(folder / "skill")
        for problem, argv in runs:
            done = await run_untrusted(
                argv, cwd=folder / "skill", timeout=_CHECK_SECONDS, isolation=isolation
            )
            if done.code != 0:
                printed = (done.stderr or done.stdout).strip().rpartition("\n")[2]
                ended = done.killed or f"exit {done.code}"
                return f"{problem} ({ended}): {one_line(printed, _SHOWN)}"
    return missing


def _interpreter(file: str, text: str) -> str:
    """Return the program that runs a script, by its first line or its ending; empty: unknown."""
    first = text.partition("\n")[0]
    if first.startswith("#!"):
        words = [word for word in first[2:].split() if not word.startswith("-")]
        names = [PurePosixPath(word).name for word in words]
        name = next((name for name in names if name != "env"), "")
        return "python" if name.startswith("python") else name
    return _INTERPRETERS.get(PurePosixPath(file).suffix, "")


def known_good_script(isolation: Isolation) -> KnownGood:
    """Return the smallest script that works. Where it does not, no script would."""
    file, text = "scripts/check.py", f"import sys\nsys.exit(sys.argv[1:] != ['{SELF_CHECK}'])\n"
    skill = apply_edits(Skill(), [Edit(WRITE_OP, content=text, file=file)]).skill
    run = partial(check_script, skill, file, "")
    return KnownGood("scripts that edits write", isolation, run)


def refuse_missing_check(settings: OptimizerSection, skill: Skill) -> None:
    """Raise an error where optimizer.script_check cannot be run: it runs in the skill's folder."""
    hint = f"Correct it, or leave it out: scripts then check themselves with {SELF_CHECK}."
    try:
        words = shlex.split(settings.script_check)
    except ValueError as error:
        raise InputError(f"optimizer.script_check: {error}.", hint=hint) from error
    if not words or "{script}" in words[0]:
        return
    program = words[0].removeprefix("./")
    if "/" not in words[0]:
        if shutil.which(program) is None:
            problem = f"there is no program {program!r} on this machine"
            raise InputError(f"optimizer.script_check: {problem}.", hint=hint)
    elif not Path(program).is_absolute() and not skill.modes.get(program, 0) & 0o100:
        raise InputError(
            f"optimizer.script_check: the skill's folder has no program {program}.", hint=hint
        )
