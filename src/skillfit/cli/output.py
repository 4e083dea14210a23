"""What commands print: results on stdout for people or as one line of JSON, progress on stderr."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillfit.plain_text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings on top of the config: key.sub=value.", show_default=False),
]


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def warn(message: str) -> None:
    console(stderr=True).print(f"warning: {message}", markup=False, soft_wrap=True)


def show(data: Any, shown: RenderableType, as_json: bool) -> None:
    """The result, in the form that was asked for."""
    if as_json:
        print(
            json.dumps(data, default=str)
        )  # ASCII: it arrives whole whatever the terminal's encoding
    else:
        console().print(shown, soft_wrap=isinstance(shown, str), markup=False)


def table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Table:
    from rich.table import Table

    made = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        made.add_column(column, overflow="fold" if number == len(columns) - 1 else "ellipsis")
    for row in rows:
        made.add_row(*(cell if hasattr(cell, "__rich_console__") else str(cell) for cell in row))
    return made


def coloured_diff(text: str) -> RenderableType:
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan"}
    lines = [Text(visible(line), styles.get(line[:1], "")) for line in text.splitlines()]
    return Text("\n").join(lines)
