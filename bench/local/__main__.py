"""`python -m bench.local RUN [RUN …]`: what runs with local models measured, read from their
directories.

Make a run with `skillfit demo --model local/PATH.gguf --dir DIR`; its run directory is DIR/run.
Writes bench/local/results.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from skillfit.run.directory import RunDirectory
from skillfit.run.events import (
    EvaluationFinished,
    GateDecided,
    RolloutFinished,
    RunStarted,
    ShipTested,
    StepFinished,
)

HERE = Path(__file__).parent


def told(path: Path) -> list[str]:
    """One run as a section: its curve, its verdicts, its claim."""
    view = RunDirectory.read(path)
    events = [stored.event for stored in view.events.read()]
    started = next(event for event in events if isinstance(event, RunStarted))
    verdicts = {event.name: event for event in events if isinstance(event, GateDecided)}
    actions = {
        f"step_{event.step:04d}": event.action
        for event in events
        if isinstance(event, StepFinished)
    }
    rollouts = [
        event for event in events if isinstance(event, RolloutFinished) and event.status == "scored"
    ]
    seconds = sum(event.seconds for event in rollouts) / max(1, len(rollouts))
    model = Path(started.config["model"]["agent"]["id"]).name
    lines = [
        f"## {model}",
        "",
        "| measured | items | score | verdict | paired difference (90 %) |",
        "|---|---|---|---|---|",
    ]
    for event in events:
        if isinstance(event, EvaluationFinished):
            verdict = verdicts.get(event.name)
            low, high = verdict.evidence["interval"] if verdict else (0.0, 0.0)
            difference = (
                f"{verdict.evidence['difference']:+.3f} ({low:+.2f} … {high:+.2f})"
                if verdict
                else ""
            )
            lines.append(
                f"| {event.name} | {event.scored} {event.split} | {event.hard:.3f} | {actions.get(event.name, '')} | {difference} |"
            )
    for event in events:
        if isinstance(event, ShipTested):
            low, high = event.interval
            lines += [
                "",
                f"Ship test: **{event.verdict}**, {event.difference:+.3f} ({low:+.2f} … {high:+.2f}).",
            ]
    minutes = view.journal.fact("minutes", float) or 0.0
    limit = started.config["model"]["agent"]["max_tokens"]
    spent = f"{len(rollouts)} rollouts, {seconds:.1f} s each with two in flight, {minutes:.0f} minutes in all"
    lines += ["", f"{spent}; answers of at most {limit} tokens.", ""]
    view.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.local", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    asked = parser.parse_args()
    head = [
        "# A real skill on small local models",
        "",
        "SQL with house rules on a shop database: queries are executed, their rows compared. No optimizer model: edits are",
        "worked examples.",
        "Made by `skillfit demo --model local/PATH.gguf --dir DIR` and read with `python -m bench.local DIR/run`.",
        "",
    ]
    text = "\n".join([*head, *(line for run in asked.runs for line in told(run))])
    (HERE / "results.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
