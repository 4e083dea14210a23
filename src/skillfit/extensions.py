"""Find gates, proposers, batch samplers, executors and other replaceable parts by name.

A name is one of skillfit's own, an entry point of another package (group `skillfit.gates`,
`skillfit.proposers`, …), or `file.py:name` relative to the config file. Nothing is imported
before its name is used.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from skillfit.errors import InputError, did_you_mean


def find_extension(kind: str, name: str, built_in: Mapping[str, str], base: Path = Path()) -> Any:
    """The object that `name` stands for. `kind` is the word in messages and groups: "gate".

    `built_in` maps names to "module:attribute"; `base` is the folder that file.py is relative to.
    """
    if name in built_in:
        return _attribute(kind, name, built_in[name])
    if ".py:" in name:
        return _from_file(kind, name, base)
    group = f"skillfit.{kind}s"
    found = list(entry_points(group=group, name=name))
    if found:
        return found[0].load()
    known = sorted({*built_in, *(entry.name for entry in entry_points(group=group))})
    raise InputError(
        f"Unknown {kind} {name!r}.",
        hint=did_you_mean(name, known) or f"Available: {', '.join(known)}, or file.py:name.",
    )


def _attribute(kind: str, name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise InputError(
            f"The {kind} {name!r} needs the package {error.name!r}.",
            hint=f"pip install 'skillfit[{name}]'",
        ) from error


def _from_file(kind: str, name: str, base: Path) -> Any:
    file, _, attribute = name.rpartition(":")
    path = base / file
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise InputError(f"The {kind} {name!r}: there is no file {file}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise InputError(f"The {kind} {name!r}: {file} has no {attribute!r}.") from None
