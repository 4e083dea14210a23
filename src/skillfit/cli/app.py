"""The `skillfit` command. Commands live beside this file; heavy imports happen inside them."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from types import TracebackType
from typing import Annotated, Any, TypedDict

import typer
from typer.core import TyperCommand

from skillfit import __version__
from skillfit.cli import (
    ablate,
    apply,
    compare,
    doctor,
    draft,
    estimate,
    evaluate,
    init,
    reference,
    runs,
    serve,
    set_up,
    train,
    trigger,
    verify,
)
from skillfit.cli.output import docstring_paragraphs, runnable
from skillfit.errors import Exit, InputError, SkillfitError

_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG)

_BROKEN_PIPE = 128 + 13  # as shells report a program that SIGPIPE ended

_GROUPS = {
    "Start": ("demo", "init", "check", "train", "report", "apply"),
    "More about a run": ("ls", "tag", "show", "diff", "studio", "steer", "resume", "export"),
    "Measure": ("estimate", "eval", "verify", "ablate", "compare", "trigger"),
    "Skills, tasks and models": ("lint", "tasks", "data", "models", "doctor", "docs"),
    "Ways in": ("skill", "mcp", "ci"),
}


class _TextArguments(TyperCommand):
    """A command whose last argument may be `-5` or `- A line of a list.`, and whose options take no
    values.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        texts = [text for text in args if re.match(r"-[\d\s]", text)]
        if texts and "--" not in args:
            args = [*(text for text in args if text not in texts), "--", *texts]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="skillfit",
    help="Train agent skills: a better SKILL.md, with the evidence that it is better.",
    epilog=(
        "New here? `skillfit demo` trains a small skill in under a minute, with no "
        "key and no network."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _register(app: typer.Typer) -> None:
    """Add the commands, in the order and under the headings of `_GROUPS`."""
    modules = (
        ablate,
        apply,
        compare,
        doctor,
        estimate,
        evaluate,
        init,
        reference,
        runs,
        serve,
        train,
        verify,
    )
    commands = {
        command.__name__.removesuffix("_command"): command
        for module in modules
        for command in module.COMMANDS
    }
    groups = {
        "tasks": draft.tasks_app,
        "data": init.data_app,
        "trigger": trigger.trigger_app,
        "skill": set_up.skill_app,
        "ci": set_up.ci_app,
    }
    for heading, names in _GROUPS.items():
        for name in names:
            if name in groups:
                app.add_typer(groups.pop(name), name=name, rich_help_panel=heading)
                continue
            command = commands.pop(name)
            kind = _TextArguments if name == "steer" else None
            paragraphs = docstring_paragraphs(command)
            app.command(
                name,
                cls=kind,
                rich_help_panel=heading,
                help="\n\n".join(paragraphs),
                short_help=re.split(r"(?<=[.?!]) ", paragraphs[0])[0],  # in the list of commands
            )(command)
    assert not commands and not groups, "a command has no heading"


_register(app)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    if version:
        print(f"skillfit {__version__}")
        raise typer.Exit
    if debug:
        os.environ["SKILLFIT_DEBUG"] = "1"


def main(argv: list[str] | None = None) -> None:
    """Run a command. Every foreseen error ends as one sentence, a hint and its exit code; an
    unforeseen one as a sentence and a log.
    """
    with _quiet_without_reader():
        _run(sys.argv[1:] if argv is None else argv)


@contextmanager
def _quiet_without_reader() -> Iterator[None]:
    """End without a message when nobody reads the output any more, as after `| head -1`."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as end:
        # typer and rich turn the error into an exit.
        if not any(isinstance(one, BrokenPipeError) for one in (end, end.__context__)):
            raise
        # Python flushes stdout once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_BROKEN_PIPE)


def _run(arguments: list[str]) -> None:
    sys.excepthook = _report_bug
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that lacks a character shows a question mark for it.
            stream.reconfigure(errors="replace")
    try:
        with _explain_refusals():
            # Calling `app` itself would put typer's excepthook in place of ours.
            typer.main.get_command(app)(args=arguments, prog_name="skillfit")
    except SkillfitError as error:
        if os.environ.get("SKILLFIT_DEBUG"):
            traceback.print_exception(error)
        hint = f"\n  {runnable(error.hint)}" if error.hint else ""
        # Waiting for a person, and a stop that was asked for, are no errors.
        label = "" if error.exit_code in (Exit.HANDOFF, Exit.INTERRUPTED) else "error: "
        print(f"{label}{runnable(error.message.rstrip())}{hint}", file=sys.stderr)
        if "--json" in arguments:
            print(json.dumps(_error_json(error)))
        sys.exit(int(error.exit_code))
    except SystemExit as end:
        wrong = _argument_error(end)
        if wrong is not None and "--json" in arguments:
            print(json.dumps(_error_json(wrong)))
        raise


def _argument_error(end: SystemExit) -> InputError | None:
    """Return the error in the arguments that typer printed before it ended the command, if any."""
    # Its class is in click or in typer, depending on typer's version. Only the method is the same.
    format_message = getattr(end.__context__, "format_message", None)
    if format_message is None:
        return None
    return InputError(format_message(), hint="The option --help lists the arguments.")


class ErrorJson(TypedDict):
    """What a command with --json prints instead of its result."""

    finish_reason: str
    error: str
    hint: str
    exit_code: int


def _error_json(error: SkillfitError) -> ErrorJson:
    return ErrorJson(
        finish_reason=error.exit_code.name.lower(),
        error=error.message,
        hint=error.hint,
        exit_code=int(error.exit_code),
    )


@contextmanager
def _explain_refusals() -> Iterator[None]:
    """Turn file-system errors that the user can fix into input errors."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS or error.filename is None:
            raise
        hint = "Check its owner and mode, and the room on the disk, or give another path."
        raise InputError(f"Cannot use {error.filename}: {error.strerror}.", hint=hint) from error


def _report_bug(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if os.environ.get("SKILLFIT_DEBUG"):
        sys.__excepthook__(kind, error, trace)
        return
    handle, name = tempfile.mkstemp(prefix="skillfit-error-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as log:
        traceback.print_exception(kind, error, trace, file=log)
    reason = traceback.format_exception_only(kind, error)[-1].strip()
    print(
        f"error: skillfit itself failed ({reason}). The traceback is in {name}; --debug shows it.",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
