"""`skillfit data`: prepare the public data of the built-in benchmarks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skillfit.cli.output import Json, console, show, table

if TYPE_CHECKING:
    from skillfit.benchmarks.prepare import Prepared

app = typer.Typer(
    help="Prepare the data of the built-in benchmarks.",
    no_args_is_help=True,
    add_completion=False,
)
Name = Annotated[str, typer.Argument(help="The benchmark, for example searchqa.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the benchmarks, their licences, and which of them have data here.

    Example: skillfit data list
    """
    from skillfit.benchmarks.benchmark import (
        MANIFEST,
        benchmark_names,
        data_home,
        find_benchmark,
        prepared,
    )

    found = [find_benchmark(name) for name in benchmark_names()]
    rows = [
        {
            "name": benchmark.name,
            "prepared": (prepared(benchmark.name) / MANIFEST).is_file(),
            "licence": benchmark.licence,
            "homepage": benchmark.homepage,
        }
        for benchmark in found
    ]
    cells = [
        (row["name"], "yes" if row["prepared"] else "no", row["licence"], row["homepage"])
        for row in rows
    ]
    shown = table(("benchmark", "prepared", "licence of the data", "from"), cells)
    shown.columns[0].no_wrap = True  # other columns are wrapped first
    show({"folder": str(data_home()), "benchmarks": rows}, shown, as_json)


@app.command("get")
def get(
    name: Name,
    mirror: Annotated[
        str, typer.Option(help="Address to download from instead: replaces scheme and host.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Download a benchmark's public data and prepare it, with its published splits.

    Example: skillfit data get searchqa
    """
    from skillfit.benchmarks import prepare

    progress = console(stderr=True)
    result = prepare.get(
        name, mirror=mirror, report=lambda line: progress.print(line, markup=False, soft_wrap=True)
    )
    _show(result, as_json)


@app.command("make")
def make(
    name: Name,
    source: Annotated[
        Path, typer.Option("--from", help="File or folder with the data as its publisher has it.")
    ],
    splits: Annotated[
        Path | None,
        typer.Option(help="Folder with lists of ids: train/, val/ and test/, items.json in each."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prepare a benchmark from a local copy of its data.

    Example: skillfit data make spreadsheetbench --from spreadsheetbench_verified_400
    """
    from skillfit.benchmarks import prepare

    _show(prepare.make(name, source, splits=splits), as_json)


def _show(result: Prepared, as_json: bool) -> None:
    counts = ", ".join(f"{count} {split}" for split, count in result.counts.items())
    lines = [
        f"{result.title}",
        f"  items     {counts}",
        f"  licence   {result.licence}",
        f"  source    {result.source}",
    ]
    for file in result.files:
        checked = ", as the publisher says" if file.verified else ""
        lines.append(f"  sha256    {file.sha256}  {Path(file.path).name}{checked}")
    lines.append(f"  prepared  {result.folder}")
    lines.append(f"Use it with: env: {{tasks: {result.name}}}")
    show(asdict(result), "\n".join(lines), as_json)
