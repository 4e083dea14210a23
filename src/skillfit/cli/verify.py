"""`verify`: check that a skill still scores as recorded."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from skillfit.atomic_write import write_whole
from skillfit.cli.evaluate import Repeats, evaluate_in_terminal, with_agent
from skillfit.cli.output import Json, Overrides, relative_path, show
from skillfit.cli.train import config_inputs, inputs_of_run, open_training_run
from skillfit.errors import Exit, InputError
from skillfit.plain_text import mean_score, p_value, quantity, visible

if TYPE_CHECKING:
    from pydantic import ValidationError

    from skillfit.intervals import Interval
    from skillfit.report import RunDetails
    from skillfit.run.budget import Budget
    from skillfit.run.events import RolloutFinished
    from skillfit.skill import Skill
    from skillfit.training.inputs import Inputs
    from skillfit.training.measure import Measured


# Phases that may have measured the best skill. Training rollouts are the last resort: they measured
# the initial skill of a run that changed nothing.
_LATEST_FIRST = ("ship", "compose", "final", "gate", "baseline", "rollout")
_SUSPICIOUS = 0.05  # one-sided p-value below which a drop is looked at again, and then counts


@dataclass(frozen=True, slots=True)
class VerifyRecord:
    """What a run measured of its best skill."""

    config: dict[str, Any]  # the settings of the run, with absolute paths
    skill: str  # the best skill's document
    means: dict[str, float]  # item -> mean score, from the freshest rollouts there are
    tokens: dict[str, float] = field(default_factory=dict)  # item -> mean tokens of these rollouts
    files: dict[str, str] = field(default_factory=dict)  # of the best skill that edits may change

    @classmethod
    def of_run(cls, path: Path) -> VerifyRecord:
        from skillfit.skill.parts import part_texts, with_trained

        run = open_training_run(path)
        if run.finished is None:
            raise InputError(
                f"The run in {path} has not finished.", hint=f"Resume with: skillfit resume {path}"
            )
        inputs = inputs_of_run(path)
        parts = inputs.config.optimizer.parts
        best = with_trained(inputs.skill, run.best_skill, parts)
        second_grader = run.config.evaluation.ship_grader is not None
        means, tokens = _item_means(path, best.hash, second_grader)
        files = part_texts(best, parts)
        return cls(inputs.config.model_dump(mode="json"), best.text, means, tokens, files)

    @classmethod
    def read(cls, path: Path) -> VerifyRecord:
        from pydantic import ValidationError

        from skillfit.config import map_paths
        from skillfit.run.store import load

        try:
            record = load(cls, path.read_bytes())
        except OSError as error:
            raise _not_a_record(path, f"it cannot be read ({error.strerror})") from error
        except ValidationError as error:
            raise _not_a_record(path, _wrong_field(error)) from error
        if problem := record.problem():
            raise _not_a_record(path, problem)
        folder = path.parent.resolve()
        config = map_paths(record.config, lambda _, name: _from_folder(name, folder))
        return replace(record, config=config)

    def problem(self) -> str:
        """Say what is wrong with values that have the right types; empty: nothing."""
        from skillfit.config import describe_keys

        env = self.config.get("env")
        if not isinstance(env, dict):
            return "config.env is missing"
        for described in describe_keys():
            section, _, key = described.key.rpartition(".")
            is_text = section == "env" and described.type in ("str", "str | null")
            if is_text and not isinstance(env.get(key) or "", str):
                return f"config.env.{key} should be text"
        for item, mean in self.means.items():
            if not 0 <= mean <= 1:
                return f"means.{item} should be a score from 0 to 1"
        for item, count in self.tokens.items():
            if not 0 <= count < math.inf:
                return f"tokens.{item} should be a number of tokens"
        return ""

    def over_models(self) -> VerifyRecord:
        """Return the record of a run with `model.agents` as one of a single model: means over the
        models.
        """
        from skillfit.config.schema import settings_of_run
        from skillfit.intervals import mean

        models = settings_of_run(self.config).model.by_name()

        def merged(values: Mapping[str, float]) -> dict[str, float]:
            found: defaultdict[str, list[float]] = defaultdict(list)
            for item, value in values.items():
                ending = next((f"@{one}" for one in models if item.endswith(f"@{one}")), "")
                found[item.removesuffix(ending)].append(value)
            return {item: mean(several) for item, several in found.items()}

        return replace(self, means=merged(self.means), tokens=merged(self.tokens))

    def write(self, path: Path) -> None:
        """Write the record, with paths relative to the file, so that it works in every checkout."""
        from skillfit.config import map_paths

        folder = path.parent.resolve()
        config = map_paths(self.config, lambda _, name: _to_folder(name, folder))
        portable = replace(self, config=config)
        text = json.dumps(asdict(portable), indent=1, ensure_ascii=False)
        write_whole(path, f"{text}\n".encode())


def _wrong_field(error: ValidationError) -> str:
    """Say why a file is no record."""
    from skillfit.settings import expected_value

    first = error.errors()[0]
    key = visible(".".join(map(str, first["loc"])))
    if not key:
        return "it is not a JSON object"
    if first["type"] == "missing":
        return f"{key} is missing"
    return f"{key} should be {expected_value(first)}"


def _not_a_record(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is neither a run nor a record of one: {why}.",
        hint="Restore it, or write a new one: skillfit verify RUN --save FILE",
    )


def _to_folder(path: str, folder: Path) -> str:
    """Return the path as seen from the folder. One that has only the root in common with the
    folder, such as that of an installed program, stays as it is.
    """
    if not Path(path).is_absolute():  # the name of a task source
        return path
    try:
        shared = os.path.commonpath([path, folder])
    except ValueError:  # another drive
        return path
    return path if shared == Path(shared).anchor else relative_path(path, folder)


def _from_folder(path: str, folder: Path) -> str:
    """Return the absolute form of a path in a record that is in the folder."""
    if not path.startswith("."):
        return path
    return os.path.normpath(folder / path)


def _item_means(
    path: Path, skill_hash: str, second_grader: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean score of each item, and its mean tokens, in the latest phase that measured
    the skill.
    """
    from skillfit.intervals import mean
    from skillfit.report import open_details

    phases: defaultdict[str, defaultdict[str, list[tuple[float, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with open_details(path) as details:
        for rollout in details.rollouts():
            if rollout.skill_hash != skill_hash:
                continue
            hard = rollout.hard
            if hard is not None and rollout.phase == "ship" and second_grader:
                hard = _by_training_grader(details, rollout)
            if hard is not None:
                phases[rollout.phase][rollout.item].append((hard, rollout.tokens))
    measured = next((phases[phase] for phase in _LATEST_FIRST if phases[phase]), None)
    if measured is None:
        raise InputError(
            f"The run in {path} has no measurement of its best skill.",
            hint=f"Continue the run with `skillfit resume {path}`, or train again.",
        )
    rows = sorted(measured.items())
    return (
        {item: mean([hard for hard, _ in found]) for item, found in rows},
        {item: mean([tokens for _, tokens in found]) for item, found in rows},
    )


def _by_training_grader(details: RunDetails, rollout: RolloutFinished) -> float | None:
    """Return what the grader trained on, which `verify` grades with, gave a rollout that the ship
    grader scored.
    """
    outcome = details.outcome(rollout.rollout)
    return outcome.score.trained[0] if outcome and outcome.score and outcome.score.trained else None


@dataclass(frozen=True, slots=True)
class RecordComparison:
    """A new measurement beside the recorded one, on the items that both have."""

    recorded: float  # mean score
    measured: float  # mean score
    p_value: float  # that a drop this big is luck, one-sided
    items: int
    saving: Interval | None = None  # share of a rollout's tokens; None: none are recorded

    @property
    def costs_more(self) -> bool:
        """Whether rollouts take more tokens for sure."""
        return self.saving is not None and self.saving.high < 0


def compare_with_record(record: VerifyRecord, now: Measured) -> RecordComparison:
    """Compare results with the record, paired by item. Items that only one side has do not count;
    without any in common the comparison is refused.
    """
    from skillfit.gate.samples import sign_flip_p
    from skillfit.intervals import interval, mean

    before, after = record.means, now.means
    shared = [item for item in before if item in after]
    if not shared:
        raise InputError(
            "No item of the record was measured.", hint="The tasks have changed since: train again."
        )
    drops = [before[item] - after[item] for item in shared]
    tokens = now.tokens
    saved = [1 - tokens[item] / record.tokens[item] for item in shared if record.tokens.get(item)]
    return RecordComparison(
        mean([before[item] for item in shared]),
        mean([after[item] for item in shared]),
        sign_flip_p(drops) if sum(drops) > 0 else 1.0,
        len(shared),
        interval(saved) if saved else None,
    )


class VerifyJson(TypedDict):
    model: str
    verdict: str
    recorded: float
    measured: float
    p_value: float
    items: int
    saving: tuple[float, float, float] | None  # share of tokens saved, with its 90 % interval


def verify_command(
    recorded: Annotated[
        Path, typer.Argument(help="A run's directory, or a record written with --save.")
    ],
    overrides: Overrides = None,
    skill: Annotated[
        Path | None, typer.Option(help="The skill to measure; default: the run's best.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model in place of the agent's; several: each by itself."),
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
    """Check that a skill still scores as recorded. For CI and model upgrades. A drop is measured
    again before it counts (exit 8). With --model, another model runs it.

    Example: skillfit verify runs/first model.agent=openai/gpt-5.1-mini
    """
    from skillfit.skill import Skill
    from skillfit.skill.parts import with_parts, with_trained

    record = VerifyRecord.of_run(recorded) if recorded.is_dir() else VerifyRecord.read(recorded)
    if save is not None:
        record.write(save)
        return show({"record": str(save)}, f"Wrote {save}.", as_json)
    found = []
    for name in model or [""]:
        inputs = config_inputs(
            record.config, [*(overrides or ()), *with_agent(name)], training=False
        )
        trained = with_parts(Skill.from_text(record.skill), record.files)
        best = with_trained(inputs.skill, trained, inputs.config.optimizer.parts)
        before = record.over_models() if name else record
        checked = _verify(before, inputs, Skill.load(skill) if skill else best, repeats)
        found.append((inputs.config.model.named("agent"), checked))
    lines = [
        f"{name}: {checked.text}" if len(found) > 1 else checked.text for name, checked in found
    ]
    data = [checked.as_json(name) for name, checked in found]
    show(data if len(found) > 1 else data[0], "\n".join(lines), as_json)
    regression = any(checked.regression for _, checked in found)
    raise typer.Exit(int(Exit.REGRESSION if regression else Exit.OK))


def _tokens_text(compared: RecordComparison) -> str:
    saving = compared.saving
    if saving is None or saving.low <= 0 <= saving.high:
        return ""
    change, word = (saving, "fewer") if saving.mean > 0 else (-saving, "more")
    share = f"{change.mean:.0%} {word} tokens in a rollout"
    return f" {share} than recorded ({change.low:.0%} to {change.high:.0%})."


@dataclass(frozen=True, slots=True)
class Verification:
    """The last comparison with the record."""

    comparison: RecordComparison
    regression: bool  # a second measurement confirmed it
    twice: bool  # the first measurement seemed to show a regression, and this is the second one

    @property
    def verdict(self) -> str:
        return "regression" if self.regression else "ok"

    @property
    def text(self) -> str:
        compared = self.comparison
        recorded, measured = mean_score(compared.recorded), mean_score(compared.measured)
        items = quantity(compared.items, "item")
        text = f"{self.verdict}: recorded {recorded}, now {measured} on {items} "
        text += f"({p_value(compared.p_value)}).{_tokens_text(compared)}"
        return f"{text} Measured twice." if self.twice else text

    def as_json(self, model: str) -> VerifyJson:
        compared = self.comparison
        return VerifyJson(
            model=model,
            verdict=self.verdict,
            recorded=compared.recorded,
            measured=compared.measured,
            p_value=compared.p_value,
            items=compared.items,
            saving=astuple(compared.saving) if compared.saving else None,
        )


def _verify(record: VerifyRecord, inputs: Inputs, skill: Skill, repeats: int) -> Verification:
    """Measure once. Only when the skill seems to have become worse, measure again. Where a cheaper
    skill was the objective, more tokens are worse, too.
    """
    wants_cheaper = inputs.config.evaluation.objective == "cheaper"

    def is_worse(found: RecordComparison) -> bool:
        return found.p_value <= _SUSPICIOUS or (wants_cheaper and found.costs_more)

    budgets: list[Budget] = []  # the caps hold for both measurements together
    first = _measure_again(record, inputs, skill, repeats, "verify/1", budgets)
    if not is_worse(first):
        return Verification(first, regression=False, twice=False)
    second = _measure_again(record, inputs, skill, repeats, "verify/2", budgets)
    return Verification(second, regression=is_worse(second), twice=True)


def _measure_again(
    record: VerifyRecord,
    inputs: Inputs,
    skill: Skill,
    repeats: int,
    series: str,
    budgets: list[Budget],
) -> RecordComparison:
    """Compare new rollouts with the record, in a run directory that is deleted afterwards."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="skillfit-") as folder:
        (measured,) = evaluate_in_terminal(
            inputs,
            {"skill": skill},
            Path(folder) / "run",
            split="all",
            only=record.means,
            repeats=repeats,
            series=series,
            budgets=budgets,
        )
    return compare_with_record(record, measured)


COMMANDS = (verify_command,)
