"""`skillfit ablate`: what each line of a skill is worth, and cutting those that earn nothing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillfit.cli.output import Json, Overrides, console, show, table
from skillfit.cli.train import RunOption, attend, read

if TYPE_CHECKING:
    from rich.console import RenderableType

    from skillfit.run.events import AblationFinished
    from skillfit.training.inputs import Inputs
    from skillfit.training.measure import Ablation

_SHOWN = 60  # characters of a line in the table


def ablate(
    config: Annotated[Path, typer.Argument(help="The YAML config.")],
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
    """Which lines of this skill earn their tokens? Leaves random parts of the skill out and
    estimates what each one is worth. No optimizer is needed.

    Example: skillfit ablate skillfit.yaml --rollouts 300
    """
    from skillfit.api import default_run
    from skillfit.cli.terminal import CountingTerminal
    from skillfit.errors import InputError
    from skillfit.report.ablation_report import write_ablation_report
    from skillfit.training.measure import ablate as measure

    if by not in ("line", "paragraph"):
        raise InputError(f"--by {by}: unknown.", hint="Use line or paragraph.")
    inputs = read(config, overrides, training=False)
    path = run or default_run(inputs, "ablate")
    terminal = CountingTerminal(console(stderr=True))
    found: Ablation = attend(
        path,
        terminal,
        lambda control: measure(
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
        found.event, inputs.skill.name, path / "report.html", inputs.skill.text
    )
    applied = apply and _apply(inputs, found)
    data = {**_data(found.event), "run": str(path), "report": str(report), "applied": applied}
    show(data, _table(found.event), as_json)
    if not as_json:
        print(_summary(found.event, report, config, apply, applied))


def _apply(inputs: Inputs, found: Ablation) -> bool:
    """Write the shorter skill to its place. False when nothing is cut."""
    from skillfit.skill.document import find_document

    if found.shorter is None or not inputs.config.env.skill:
        return False
    found.shorter.save(find_document(Path(inputs.config.env.skill)))
    return True


def _data(event: AblationFinished) -> dict[str, Any]:
    return {
        "score": asdict(event.score),
        "rollouts": event.rollouts,
        "tokens_before": event.tokens_before,
        "tokens_after": event.tokens_after,
        "comparison": asdict(event.comparison) if event.comparison else None,
        "holds": event.holds,
        "units": [asdict(unit) for unit in event.units],
    }


def _table(event: AblationFinished) -> RenderableType:
    from skillfit.plain_text import visible

    rows = []
    for unit in event.units:
        text = visible(" ".join(unit.text.split()))
        rows.append(
            (
                unit.id,
                f"{unit.mean:+.3f}",
                f"{unit.low:+.3f} … {unit.high:+.3f}",
                unit.tokens,
                unit.decision,
                text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…",
            )
        )
    return table(("line", "worth", "80 %", "tokens", "", "text"), rows)


def _summary(
    event: AblationFinished, report: Path, config: Path, asked: bool, applied: bool
) -> str:
    cut = [unit for unit in event.units if unit.decision == "cut"]
    saved = event.tokens_before - event.tokens_after
    lines = [f"{event.rollouts} rollouts; score of the whole skill about {event.score.mean:.2f}."]
    if not cut:
        lines.append("Nothing can be cut with confidence; more rollouts narrow the intervals.")
    elif applied:
        lines.append(f"Cut {len(cut)} parts: {saved} of {event.tokens_before} tokens saved.")
    elif asked:
        lines.append("Nothing was cut: the shorter skill did worse on fresh rollouts.")
    else:
        lines.append(
            f"{len(cut)} parts can go: {saved} of {event.tokens_before} tokens per call. "
            f"Cut them with: skillfit ablate {config} --apply"
        )
    lines.append(f"Report: {report}")
    return "\n".join(lines)


COMMANDS = (ablate,)
