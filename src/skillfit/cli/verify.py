"""`skillfit verify`: measure a skill again and compare it with what its run recorded. The record is
small enough to keep in a repository.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skillfit.atomic_write import write_whole
from skillfit.cli.evaluate import Repeats, measure
from skillfit.cli.output import Json, Overrides, show
from skillfit.cli.train import read, stored
from skillfit.errors import Exit, InputError
from skillfit.plain_text import mean_score

if TYPE_CHECKING:
    from skillfit.run.budget import Spending
    from skillfit.run.directory import RunView
    from skillfit.run.events import RolloutFinished
    from skillfit.run.records import RecordedConfig
    from skillfit.skill import Skill
    from skillfit.training.inputs import Inputs

_PATHS = ("skill", "tasks", "folder", "corpus")  # settings that hold absolute paths in a run
_LATEST_FIRST = ("ship", "compose", "final", "gate", "baseline")  # phases on the selection split
_SUSPICIOUS = 0.05  # one-sided p-value below which a drop is looked at again, and then counts


@dataclass(frozen=True, slots=True)
class Record:
    """What a run measured of its best skill."""

    config: RecordedConfig
    skill: str  # the best skill's document
    means: dict[str, float]  # selection item -> mean score, from the freshest rollouts there are

    @classmethod
    def of_run(cls, path: Path) -> Record:
        from skillfit.api import Run

        run = Run.open(path)
        if run.finished is None:
            raise InputError(
                f"The run in {path} has not finished.", hint=f"Resume with: skillfit resume {path}"
            )
        best = stored(path).skill.with_document(run.best_skill)
        means = _item_means(path, best.hash, run.config.evaluation.ship_grader is not None)
        return cls(run.story.config, run.best_skill.text, means)

    @classmethod
    def read(cls, path: Path) -> Record:
        from skillfit.run.records import RecordedConfig

        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            record = cls(**{**data, "config": RecordedConfig(data["config"])})
            return record.with_paths(path.parent, _from_folder)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path} is neither a run nor a record of one.",
                hint="Write one: skillfit verify RUN --save FILE",
            ) from error

    def write(self, path: Path) -> None:
        """Paths are written relative to the file, so that a record works in every checkout."""
        portable = self.with_paths(path.parent, _to_folder)
        data = {"config": portable.config.root, "skill": self.skill, "means": self.means}
        write_whole(path, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())

    def with_paths(self, folder: Path, convert: Callable[[str, Path], str]) -> Record:
        """The record with the paths of skill, tasks and corpus converted."""
        env = {
            key: convert(value, folder.resolve()) if key in _PATHS and value else value
            for key, value in self.config.root["env"].items()
        }
        return replace(self, config=type(self.config)({**self.config.root, "env": env}))


def _to_folder(path: str, folder: Path) -> str:
    if not Path(path).is_absolute():  # the name of a task source
        return path
    try:
        relative = Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # another drive
        return path
    return relative if relative.startswith(".") else f"./{relative}"


def _from_folder(path: str, folder: Path) -> str:
    return os.path.normpath(folder / path) if path.startswith(".") else path


def _item_means(path: Path, skill_hash: str, second_grader: bool) -> dict[str, float]:
    """The mean score of each selection item, from the latest phase that measured the skill."""
    from skillfit.gate.samples import mean
    from skillfit.run.directory import RunDirectory
    from skillfit.run.events import RolloutFinished

    phases: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with closing(RunDirectory.read(path)) as view:
        for entry in view.events.read():
            event = entry.event
            if not isinstance(event, RolloutFinished) or event.skill_hash != skill_hash:
                continue
            hard = event.hard
            if hard is not None and event.phase == "ship" and second_grader:
                hard = _by_trained(view, event)
            if hard is not None:
                phases[event.phase][event.item].append(hard)
    measured = next((phases[phase] for phase in _LATEST_FIRST if phases[phase]), None)
    if measured is None:
        raise InputError(
            f"The run in {path} has no measurement of its best skill on the selection split."
        )
    return {item: mean(scores) for item, scores in sorted(measured.items())}


def _by_trained(view: RunView, event: RolloutFinished) -> float | None:
    """What the grader trained on, which `verify` grades with, gave a rollout that the ship grader
    scored.
    """
    from skillfit.rollout.outcome import Outcome

    outcome = view.journal.get(event.rollout, Outcome)
    return outcome.score.trained[0] if outcome and outcome.score and outcome.score.trained else None


@dataclass(frozen=True, slots=True)
class RecordComparison:
    recorded: float
    measured: float
    p_value: float  # that a drop this big is luck, one-sided
    items: int


def compare(before: Mapping[str, float], now: Mapping[str, float]) -> RecordComparison:
    """Paired by item. Items that only one side has do not count; without any in common there is
    nothing to say.
    """
    from skillfit.gate.samples import mean, sign_flip_p

    shared = [item for item in before if item in now]
    if not shared:
        raise InputError(
            "No item of the record was measured.", hint="The tasks have changed since: train again."
        )
    drops = [before[item] - now[item] for item in shared]
    old, new = mean([before[item] for item in shared]), mean([now[item] for item in shared])
    return RecordComparison(old, new, sign_flip_p(drops) if sum(drops) > 0 else 1.0, len(shared))


def verify(
    recorded: Annotated[
        Path, typer.Argument(help="A run's directory, or a record written with --save.")
    ],
    overrides: Overrides = None,
    skill: Annotated[
        Path | None, typer.Option(help="The skill to measure; default: the run's best.")
    ] = None,
    repeats: Repeats = 2,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write the run's record to this file and end: small enough for a repository."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Does the skill still do as well as recorded? For CI and model upgrades. A drop is measured
    again before it counts (exit 8).

    Example: skillfit verify runs/first model.agent=openai/gpt-5.1-mini
    """
    from skillfit.skill import Skill

    record = Record.of_run(recorded) if recorded.is_dir() else Record.read(recorded)
    if save is not None:
        record.write(save)
        return show({"record": str(save)}, f"Wrote {save}.", as_json)
    inputs = read(record.config.root, overrides, training=False)
    best = inputs.skill.with_document(Skill.from_text(record.skill))
    checked = _verify(record, inputs, Skill.load(skill) if skill else best, repeats)
    found, verdict = checked.comparison, "regression" if checked.regression else "ok"
    text = (
        f"{verdict}: recorded {mean_score(found.recorded)}, now {mean_score(found.measured)} on "
        f"{found.items} items (p = {found.p_value:.3f})."
    )
    show(
        {"verdict": verdict, **asdict(found)},
        text + (" Measured twice." if checked.regression else ""),
        as_json,
    )
    raise typer.Exit(int(Exit.REGRESSION if checked.regression else Exit.OK))


@dataclass(frozen=True, slots=True)
class Verification:
    comparison: RecordComparison
    regression: bool  # a drop that a second measurement confirmed


def _verify(record: Record, inputs: Inputs, skill: Skill, repeats: int) -> Verification:
    """Measure once. Only when the score seems to have dropped, measure again."""
    from skillfit.run.budget import Spending

    spending = Spending()  # the caps hold for both measurements together
    first = _measure_again(record, inputs, skill, repeats, "verify/1", spending)
    if first.p_value > _SUSPICIOUS:
        return Verification(first, False)
    second = _measure_again(record, inputs, skill, repeats, "verify/2", spending)
    if second.p_value > _SUSPICIOUS:
        return Verification(first, False)
    return Verification(second, True)


def _measure_again(
    record: Record, inputs: Inputs, skill: Skill, repeats: int, series: str, spending: Spending
) -> RecordComparison:
    """Compare new rollouts with the record, in a run directory that is deleted afterwards."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="skillfit-") as folder:
        (measured,) = measure(
            inputs,
            {"skill": skill},
            Path(folder) / "run",
            split="selection",
            repeats=repeats,
            series=series,
            spending=spending,
        )
    return compare(record.means, measured.means)


COMMANDS = (verify,)
