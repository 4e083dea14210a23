"""`ablate`: estimate how much each part of a skill adds to its score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from skillfit.cli.interrupts import run_in_terminal
from skillfit.cli.output import Json, Overrides, console, rich_table, shell_line, show
from skillfit.cli.train import ConfigFile, RunOption, config_inputs
from skillfit.errors import InputError
from skillfit.plain_text import (
    quantity,
    score_change,
    score_with_interval,
    shorten,
    visible,
    with_interval,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from skillfit.run.events import AblationFinished
    from skillfit.run.records import Evidence, ScoreEstimate, UnitWorth
    from skillfit.training.inputs import Inputs
    from skillfit.training.measure import Ablation


FORMER = "former_skill"  # what --apply replaced, in the run's folder
_LINE_LENGTH = 60  # characters of a line in the table


def ablate_command(
    config: ConfigFile,
    overrides: Overrides = None,
    rollouts: Annotated[
        int | None, typer.Option(min=20, help="Rollouts to spend; default: about 12 per line.")
    ] = None,
    by: Annotated[str, typer.Option(help="line or paragraph.")] = "line",
    run: RunOption = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Cut what can go without loss, after a comparison on fresh rollouts."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Estimate how much each part of a skill adds to its score. Rollouts leave random parts out; no
    optimizer is needed.

    Example: skillfit ablate skillfit.yaml --rollouts 300
    """
    from skillfit.api import default_run_path
    from skillfit.cli.terminal import CountingTerminal
    from skillfit.report.html_report import write_ablation_report
    from skillfit.training.measure import ablate_skill

    if by not in ("line", "paragraph"):
        raise InputError(f"--by {by}: unknown.", hint="Use line or paragraph.")
    inputs = config_inputs(config, overrides, training=False)
    path = run or default_run_path(inputs, "ablate")
    terminal = CountingTerminal(console(stderr=True))
    ablation: Ablation = run_in_terminal(
        terminal,
        lambda control: ablate_skill(
            inputs,
            path,
            rollouts=rollouts,
            by="paragraph" if by == "paragraph" else "line",
            check=apply,
            listeners=[terminal],
            control=control,
        ),
    )
    report = write_ablation_report(
        ablation.event, inputs.skill.name, path / "report.html", inputs.skill.text
    )
    applied = apply and write_shorter(inputs, ablation, path / FORMER)
    data = _ablation_json(ablation.event, path, report, applied)
    show(data, _ablation_table(ablation.event), as_json)
    if not as_json:
        options = [config, *(overrides or ()), *(["--by", by] if by != "line" else [])]
        options += ["--run", str(run)] if run else []
        command = shell_line("ablate", *options, "--apply")
        print(_ablation_text(ablation.event, report, command, apply, applied))


def write_shorter(inputs: Inputs, ablation: Ablation, former: Path) -> bool:
    """Write the shorter skill to its place, and the former one into the run's folder. Return False
    when nothing is cut. Raises `InputError` where the skill is another one by now.
    """
    from skillfit.skill.parts import load_trained, save_trained

    if ablation.shorter is None:
        return False
    if load_trained(inputs.config.env.skill).hash != inputs.skill.hash:
        raise InputError(
            f"The skill {inputs.config.env.skill} changed while it was measured: nothing was cut.",
            hint="Run the same command on the new text.",
        )
    inputs.skill.save(former)
    save_trained(inputs.config.env.skill, ablation.shorter)
    return True


class AblationJson(TypedDict):
    score: ScoreEstimate
    rollouts: int
    tokens_before: int
    tokens_after: int
    comparison: Evidence | None
    holds: bool | None
    units: list[UnitWorth]
    run: str
    report: str
    applied: bool


def _ablation_json(event: AblationFinished, run: Path, report: Path, applied: bool) -> AblationJson:
    return AblationJson(
        score=event.score,
        rollouts=event.rollouts,
        tokens_before=event.tokens_before,
        tokens_after=event.tokens_after,
        comparison=event.comparison,
        holds=event.holds,
        units=event.units,
        run=str(run),
        report=str(report),
        applied=applied,
    )


def _ablation_table(event: AblationFinished) -> RenderableType:
    from skillfit.run.records import kinds_text

    rows = []
    for unit in event.units:
        text = shorten(visible(" ".join(unit.text.split())), _LINE_LENGTH)
        acts_on = visible(kinds_text(unit.kinds))
        rows.append(
            (
                unit.id,
                with_interval(unit.mean, unit.low, unit.high),
                unit.tokens,
                unit.decision,
                f"{text} ({acts_on})" if acts_on else text,
            )
        )
    return rich_table(("line", "worth (80 %)", "tokens", "", "text"), rows)


def _ablation_text(
    event: AblationFinished, report: Path, command: str, asked: bool, applied: bool
) -> str:
    cut = [unit for unit in event.units if unit.decision == "cut"]
    saved = event.tokens_before - event.tokens_after
    score = score_with_interval(event.score.mean, event.score.low, event.score.high)
    lines = [f"{event.rollouts} rollouts; score of the whole skill about {score}."]
    parts = quantity(len(cut), "part")
    if event.all_zero:
        lines.append(
            "No rollout scored above 0, so nothing is known about the lines. "
            "Run `skillfit check` first."
        )
    elif not cut:
        lines.append("Nothing can be cut with confidence; more rollouts narrow the intervals.")
    elif not event.shorter_skill:
        lines.append("Nothing is cut: the skill would be empty.")
    elif applied:
        lines.append(f"Cut {parts}: {saved} of {event.tokens_before} tokens saved.")
        if event.comparison is not None:
            lines.append(
                f"On {event.comparison.rollouts} fresh rollouts the score changed by "
                f"{score_change(event.comparison.difference)}."
            )
        lines.append(f"The former skill, to undo this: {report.parent / FORMER}")
    elif asked and event.comparison is not None:
        compared = event.comparison
        lines.append(
            "Nothing was cut: fresh rollouts did not show that the shorter skill is as good. "
            f"The score changed by {score_change(compared.difference)}; "
            f"{compared.coverage:.0%} of {compared.rollouts} rollouts were scored."
        )
    else:
        lines.append(
            f"{parts} can go: {saved} of {event.tokens_before} tokens per call. "
            f"Cut them with: {command}"
        )
    lines.append(f"Report: {report}")
    return "\n".join(lines)


COMMANDS = (ablate_command,)
