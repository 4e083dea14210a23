"""Generate the parts of the documentation that come from the code.

- `<!-- generate: NAME -->` up to `<!-- end -->` holds a generated table. It is committed, so that a
  code host shows it; `python -m docs._hooks.write_reference` brings it up to date.
- `[FILE](../FILE)<!-- include -->` is a link on a code host. On the site the file takes its place.
  `<!-- include: FILE -->` does the same without a link.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillfit.models.failures import Policy
    from skillfit.sandbox.programs import Isolation

ROOT = Path(__file__).parents[2]
_GENERATED = re.compile(
    r"^<!-- generate: (\w+) -->\n(?:(?:(?!<!-- generate:).)*?^<!-- end -->\n)?",
    re.MULTILINE | re.DOTALL,
)
_LINKED = re.compile(r"^\[[^\]]+\]\((?:\.\./)+([^)]+)\)<!-- include -->$", re.MULTILINE)
_INCLUDED = re.compile(r"^<!-- include: (.+?) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    linked = _LINKED.sub(lambda found: _include(found[1]), fill_generated(markdown))
    return _INCLUDED.sub(lambda found: _include(found[1]), linked)


def fill_generated(markdown: str) -> str:
    """The page with every generated table as the code gives it now."""

    def table(found: re.Match[str]) -> str:
        name = found[1]
        return f"<!-- generate: {name} -->\n\n{GENERATORS[name]()}\n\n<!-- end -->\n"

    return _GENERATED.sub(table, markdown)


def _include(file: str) -> str:
    """A result file; its headings go one level down."""
    path = ROOT / file
    if not path.is_file():
        return f"*`{file}` does not exist: it was not measured in this checkout.*"
    text = re.sub(r"^# .+\n", "", path.read_text(encoding="utf-8"), count=1)
    return re.sub(r"^#", "##", text, flags=re.MULTILINE)


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append(
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
        )
    return "\n".join(lines)


def _wrap(text: str) -> str:
    """The paragraphs of a text in lines of at most 100 columns."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(
        textwrap.fill(paragraph, 100, break_long_words=False, break_on_hyphens=False)
        for paragraph in paragraphs
    )


def config() -> str:
    """Every setting by section. All roles have the same keys of a model, shown once."""
    from skillfit.config import describe_keys

    sections: dict[str, list[tuple[str, ...]]] = {}
    for key in describe_keys():
        if re.match(r"model\.(optimizer|judge)\.", key.key):
            continue
        section = key.key.partition(".")[0] if "." in key.key else "top level"
        section = "model.agent" if key.key.startswith("model.agent.") else section
        sections.setdefault(section, []).append(
            (f"`{key.key}`", _plain_type(key.type), _default(key.default), key.doc)
        )
    parts = []
    for section, rows in sections.items():
        note = (
            "\n`model.optimizer` and `model.judge` take the same keys.\n"
            if section == "model.agent"
            else ""
        )
        parts.append(f"## {section}\n{note}\n{_table(('key', 'type', 'default', 'meaning'), rows)}")
    return "\n\n".join(parts)


def _plain_type(text: str) -> str:
    return re.sub(r"\bstr\b", "text", text.replace("typing.", ""))


def _default(value: Any) -> str:
    if value is None or value in ("", (), {}):
        return ""
    return f"`{json.dumps(value, ensure_ascii=False, default=str)}`".replace('"', "")


def recipes() -> str:
    from skillfit.config.schema import RECIPES

    rows = [
        (f"`{name}`", f"`{section}.{key}`", f"`{json.dumps(value)}`".replace('"', ""))
        for name, sections in RECIPES.items()
        for section, keys in sections.items()
        for key, value in keys.items()
    ]
    return _table(("recipe", "sets", "to"), rows)


def commands() -> str:
    """Every command from the program itself."""
    import typer

    from skillfit.cli.app import app

    group: Any = typer.main.get_command(app)
    return "\n\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    """One command; a group of commands lists them below itself."""
    about, _, example = inspect.cleandoc(command.help or "").partition("Example:")
    if subcommands := getattr(command, "commands", {}):
        parts = [_command(f"{name} {sub}", inner) for sub, inner in subcommands.items()]
        return "\n\n".join([f"## {name}\n\n{_wrap(about)}", *(f"#{part}" for part in parts)])
    usage = " ".join(part for part in command.collect_usage_pieces(_context(command, name)))
    options = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
    shown = f"```sh\n{example.strip()}\n```\n\n" if example else ""
    return f"## {name}\n\n{_wrap(about)}\n\n{shown}`skillfit {name} {usage}`\n\n" + _table(
        ("argument or option", "meaning", "default"), options
    )


def _context(command: Any, name: str) -> Any:
    return command.make_context(name, [], resilient_parsing=True)


def _parameter(parameter: Any) -> tuple[str, str, str]:
    named = (
        ", ".join(f"`{option}`" for option in parameter.opts)
        if parameter.param_type_name == "option"
        else f"`{parameter.name}`"
    )
    default = (
        ""
        if parameter.default in (None, False, "", [], ()) or callable(parameter.default)
        else f"`{parameter.default}`"
    )
    return named, getattr(parameter, "help", "") or "", default


def exit_codes() -> str:
    from skillfit.errors import MEANINGS

    rows = [
        (f"`{int(code)}`", code.name.lower().replace("_", " "), about)
        for code, about in MEANINGS.items()
    ]
    return _table(("code", "name", "meaning"), rows)


def events() -> str:
    from skillfit.run import events as module
    from skillfit.run.events import Event, Unknown

    docs = {
        node.name: ast.get_docstring(node) or ""
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef)
    }
    rows = [
        (
            f"`{name}`",
            ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind)),
            docs.get(name, ""),
        )
        for name, kind in Event.kinds.items()
        if kind is not Unknown and kind.__module__ == module.__name__
    ]
    return _table(("kind", "fields", "meaning"), rows)


def providers() -> str:
    from skillfit.models import known_providers

    rows = [
        (f"`{one.name}/…`", one.about, " or ".join(f"`{key}`" for key in one.keys) or "none")
        for one in known_providers()
    ]
    return _table(("model id", "what it is", "key, from the environment"), rows)


def programs() -> str:
    from skillfit.agents.cli_programs import DESCRIPTIONS, load_description

    found = [load_description(path.stem) for path in sorted(DESCRIPTIONS.glob("*.yaml"))]
    rows = [
        (
            f"`cli/{one.name}`",
            f"`{one.program}`",
            f"`{one.skills}`",
            " or ".join(f"`{key}`" for key in one.keys[:2]),
            ", ".join(f"`{name}`" for name in one.options) or "",
        )
        for one in found
    ]
    return _table(("model id", "program", "skill is put in", "key", "own options"), rows)


def graders() -> str:
    from skillfit.tasks.graders import BUILT_IN

    rows = []
    for name, kind in BUILT_IN.items():
        own = [field for field in kind.model_fields if field != "extract"]
        rows.append(
            (
                f"`{name}`",
                inspect.cleandoc(kind.__doc__ or ""),
                ", ".join(f"`{field}`" for field in own),
            )
        )
    return _table(("grader", "what it does", "settings"), rows)


def failures() -> str:
    """Every kind of failure, from the policy. Neighbours that are treated alike share a row."""
    from skillfit.models.failures import POLICIES

    rows = []
    for done, group in groupby(POLICIES.items(), lambda entry: _what_the_run_does(entry[1])):
        kinds = dict(group)
        meanings = "; ".join(policy.meaning for policy in kinds.values())
        rows.append((", ".join(f"`{kind}`" for kind in kinds), meanings, done))
    return _table(("kind", "what happened", "what the run does"), rows)


def _what_the_run_does(policy: Policy) -> str:
    from skillfit.models.registry import ModelSpec

    if policy.fatal:
        return "stops at once; resume it after the fix"
    if policy.pending:
        return "stops at the end of the stage; resume it after the answer"
    done = []
    if policy.shorten:
        done.append("sends an analyst's prompt once more, shorter")
    if policy.retry in ("at_once", "after_wait"):
        default = ModelSpec.model_fields["retries"].default
        most = f"`retries` times (default {default})"
        if policy.most_retries is not None:
            most = _times(policy.most_retries)
        done.append(f"repeats the call up to {most}")
    if policy.rollout_retries:
        done.append(f"repeats the rollout {_times(policy.rollout_retries)}")
    if policy.larger_limit:
        done.append("repeats the rollout with a larger limit, if the budget has room")
    end = "continues without the reply" if policy.lost else "counts the rollout as failed"
    return ", then ".join([*done, end])


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def stand_in() -> str:
    """The description of the stand-in program of an example, as a code block."""
    description = (ROOT / "examples" / "cli-agent" / "stand-in.yaml").read_text(encoding="utf-8")
    return f"```yaml\n{description.rstrip()}\n```"


def benchmarks() -> str:
    """The options of every benchmark, from its function."""
    from importlib import import_module

    from skillfit.extensions import BENCHMARKS

    parts = []
    for name, module in BENCHMARKS.items():
        function = getattr(import_module(f"skillfit.plugins.benchmarks.{module}"), name)
        parameters = inspect.signature(function).parameters.values()
        options = [option for option in parameters if option.kind is option.KEYWORD_ONLY]
        shown = ", ".join(f"`{option.name}` ({json.dumps(option.default)})" for option in options)
        about = " ".join(inspect.cleandoc(function.__doc__ or "").split())
        parts.append(_wrap(f"**{name}.** {shown}. {about}"))
    return "\n\n".join(parts)


def isolations() -> str:
    """The ways to isolate a program, the strongest first."""
    from skillfit.sandbox.programs import ISOLATIONS

    rows = [
        (
            f"`{one.name}`",
            "the system's and its own" if one.hides_files else "all that you can read",
            _other_processes(one),
            "cut" if one.cuts_network else "open",
            "its own" if one.own_namespaces else "shared",
            "yes" if one.full else "no",
        )
        for one in ISOLATIONS
    ]
    columns = ("files it can read", "other processes", "network, when off", "/dev/shm", "full")
    return _table(("isolation", *columns), rows)


def _other_processes(isolation: Isolation) -> str:
    if isolation.own_namespaces:
        return "hidden"
    return "command lines" if isolation.hides_processes else "command lines and environment"


def comparisons() -> str:
    """The files of `skillfit compare` in bench/comparisons: a row per way and number of rollouts."""
    from skillfit.plain_text import dollars, score_with_interval, with_interval
    from skillfit.plugins.compare.results import FORMAT

    rows = []
    for path in sorted((ROOT / "bench" / "comparisons").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise SystemExit(f"{path}: format {found['format']}, expected {FORMAT}.")
        task = f"{found['task']} ({found['test_items']} test items)"
        models = f"{found['agent']}, {found['optimizer'] or 'no optimizer'}"
        for row in found["rows"]:
            gain = row["gain_interval"]
            rows.append(
                (
                    task,
                    models,
                    row["way"],
                    str(row["budget"]),
                    score_with_interval(row["score"], *row["interval"]),
                    with_interval(row["gain"] or 0.0, *gain) if gain else "",
                    dollars(row["cost"]["usd"]),
                    f"{found['date']}, skillfit {found['version']}",
                )
            )
    columns = ("task", "agent, optimizer", "way", "rollouts", "test score (90 %)", "gain (90 %)")
    return _table((*columns, "cost", "when"), rows) if rows else "None were sent yet."


GENERATORS: dict[str, Callable[[], str]] = {
    "isolations": isolations,
    "config": config,
    "recipes": recipes,
    "commands": commands,
    "exit_codes": exit_codes,
    "events": events,
    "failures": failures,
    "providers": providers,
    "programs": programs,
    "graders": graders,
    "stand_in": stand_in,
    "benchmarks": benchmarks,
    "comparisons": comparisons,
}
