"""The reference in its own environment: made when missing, given stand-ins for the prompt
files its wheel lacks, and run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.parity import world
from bench.parity.outcome import Outcome, read_json, read_outcome
from bench.parity.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".bench" / "skillopt"
REQUIREMENT = "skillopt==0.2.0"
_DRIVER = Path(__file__).with_name("driver.py")

# What each prompt is for, in a line. The scripted models read the stage and nothing else.
_ROLES = {
    "analyst_error": "Say how the skill should change, given trajectories that failed.",
    "analyst_success": "Say how the skill should change, given trajectories that succeeded.",
    "merge_failure": "Merge proposals that come from failures.",
    "merge_success": "Merge proposals that come from successes.",
    "merge_final": "Merge both lists; lessons of failures come first.",
    "ranking": "Choose the proposals to apply.",
    "rewrite_skill": "Write the skill anew with the suggestions carried out.",
    "slow_update": "Write guidance for the protected memory from two epochs of the same tasks.",
    "lr_autonomous": "Say how many of the proposals may enter.",
    "meta_skill": "Write advice for whoever edits the skill next.",
}
_VARIANTS = {
    "analyst_error": 2,
    "analyst_success": 2,
    "merge_failure": 2,
    "merge_success": 2,
    "merge_final": 2,
    "ranking": 1,
}
_SUFFIXES = ("", "_rewrite", "_full_rewrite")


class ReferenceFailed(Exception):
    """The reference did not run to its end."""


def ready() -> Path:
    """The interpreter of SkillOpt's environment, with everything in place."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    package = _package(python)
    if package is None:
        subprocess.run([python, "-m", "pip", "install", "--quiet", REQUIREMENT], check=True)
        package = _package(python)
    if package is None:
        raise ReferenceFailed(
            f"{REQUIREMENT} was installed into {ENVIRONMENT} but cannot be imported there."
        )
    write_prompts(package)
    return python


def write_prompts(package: Path) -> None:
    """Put stand-ins where the wheel lacks its prompt files."""
    for name, role in _ROLES.items():
        for suffix in _SUFFIXES[: 1 + _VARIANTS.get(name, 0)]:
            _write(package / "prompts" / f"{name}{suffix}.md", f"[stage: {name}]\n{role}\n")
    rollout = "[stage: rollout]\n{skill_section}Answer with <answer>…</answer>.\n"
    _write(package / "envs" / "searchqa" / "prompts" / "rollout_system.md", rollout)


def _package(python: Path) -> Path | None:
    """Where SkillOpt is installed; None before it is."""
    where = "import skillopt, pathlib; print(pathlib.Path(skillopt.__file__).parent)"
    found = subprocess.run([python, "-c", where], capture_output=True, text=True)
    return None if found.returncode else Path(found.stdout.strip())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def run(scenarios: Sequence[Scenario], url: str, folder: Path) -> dict[str, Outcome]:
    """The outcome of each scenario, by name."""
    names = [scenario.name for scenario in scenarios]
    command = [str(ready()), str(_DRIVER), url, str(folder), *names]
    environment = {name: value for name, value in os.environ.items() if "OPENAI" not in name}
    log = folder / "driver.log"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        for line in process.stdout or ():
            out.write(line)
            if line.startswith("PARITY DONE"):
                print(f"  reference: {line.split()[-1]}", file=sys.stderr, flush=True)
    if process.wait():
        raise ReferenceFailed("\n".join(log.read_text(encoding="utf-8").splitlines()[-20:]))
    return {scenario.name: read(scenario, folder / scenario.name) for scenario in scenarios}


def read(scenario: Scenario, folder: Path) -> Outcome:
    """What a finished run decided, and the facts about it in which its defects show."""
    out = folder / "out"
    skills: dict[str, str] = read_json(folder / "rollouts.json")
    history = read_json(out / "history.json")
    final = (out / "skills" / f"skill_v{len(history):04d}.md").read_text()
    outcome = read_outcome(scenario, out, final)
    believed = best = _true_score(scenario, world.SKILL)
    steps = []
    for row, record in zip(outcome.steps, history, strict=True):
        step = f"steps/step_{row.step:04d}"
        incumbent = skills.get(f"{step}/rollout") or skills[f"{step}/batch_0/rollout"]
        unmeasured = _unmeasured(scenario, incumbent, believed, best)
        steps.append(replace(row, facts=(*unmeasured, *_mishaps(out / step, incumbent))))
        believed, best = record["current_score"], record["best_score"]
    facts = _unmeasured(scenario, final, believed, best)
    return replace(outcome, steps=tuple(steps), facts=facts)


def _unmeasured(
    scenario: Scenario, incumbent: str, believed: float, best: float
) -> tuple[str, ...]:
    """Whether the score of the current skill belongs to another skill, and whether it would have
    been the best.
    """
    true = _true_score(scenario, incumbent)
    stale = ("stale_score",) if abs(true - believed) > 1e-9 else ()
    return (*stale, "unmeasured_best") if true > best + 1e-9 else stale


def _true_score(scenario: Scenario, skill: str) -> float:
    evaluation = scenario.settings()["evaluation"]
    return world.score(
        scenario.seed,
        skill,
        str(evaluation["gate_metric"]),
        limit=int(str(evaluation["sel_env_num"])),
    )


def _mishaps(step: Path, incumbent: str) -> list[str]:
    """Defects in the handling of a step's edits."""
    candidate = step / "candidate_skill.md"
    if not candidate.exists():
        return []
    text = candidate.read_text()
    facts = ["unchanged"] if text == incumbent else []
    if world.parts(incumbent)[1] != world.parts(text)[1]:
        facts.append("memory_touched")
    report = step / "edit_apply_report.json"
    statuses = {edit["status"] for edit in read_json(report)} if report.exists() else set()
    if "error" in statuses:
        facts.append("edit_lost")
    if any("fallback" in status for status in statuses):
        facts.append("anchor_missed")
    return facts
