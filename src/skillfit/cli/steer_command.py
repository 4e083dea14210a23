"""`steer`: what a person decides about a run while it goes on, or before it is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillfit.cli.output import Json, show


def steer(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    action: Annotated[
        str,
        typer.Argument(
            help="veto, pin, reword, approve or decline an edit; budget; stop.",
        ),
    ],
    target: Annotated[
        str, typer.Argument(help="The edit's id, like s0003e02; for budget: usd, calls, …")
    ] = "",
    text: Annotated[str, typer.Argument(help="The new wording, or the new budget.")] = "",
    as_json: Json = False,
) -> None:
    """Decide about an edit, raise a budget or stop a run. A running run takes it up between steps,
    a stopped one when it is resumed; the decision is recorded in the run.

    Example: skillfit steer runs/first veto s0003e02
    """
    from skillfit.run.control import in_use, request_steering, stop_run

    if action == "stop":
        stop_run(run)
        return show(
            {"action": "stop", "run": str(run)},
            "Stopping: what is in progress finishes and is saved.",
            as_json,
        )
    request = request_steering(run, action, target, text)
    when = "after its present step" if in_use(run) else "when it is resumed"
    return show(
        {"number": request.number, "action": action, "target": target, "text": text},
        f"Noted. The run takes it up {when}.",
        as_json,
    )


COMMANDS = (steer,)
