"""Find gates, proposers, batch samplers, executors and other replaceable parts by name, and load
the user's own Python files.

A name is one of skillfit's own, an entry point of another package (group `skillfit.gates`,
`skillfit.proposers`, …), or `file.py:name` relative to the config file. Nothing is imported
before its name is used.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
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
        return load_object(name, base)
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


def load_object(reference: str, base: Path = Path()) -> Any:
    """The object that `file.py:name` refers to. The file is executed once per process."""
    file, _, name = reference.rpartition(":")
    path = (base / file).resolve()
    if not path.is_file():
        raise InputError(f"{reference}: {path} does not exist.", hint="Write path/to/file.py:name.")
    module = _load_module(path, path.stat().st_mtime_ns)
    if not hasattr(module, name):
        raise InputError(
            f"{path.name} has no {name!r}.",
            hint=f"It has: {', '.join(key for key in vars(module) if not key.startswith('_'))}.",
        )
    return getattr(module, name)


@cache
def _load_module(path: Path, version: int) -> Any:
    """The file as a module. A new `version` (modification time) loads it again. It is registered
    in `sys.modules` under a unique name, which dataclasses and pickle need.
    """
    name = f"skillfit_user_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # so that it can import files beside it
    with errors_in(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def errors_in(
    path: Path, *passing: type[Exception], hint: str = "Fix the error in this file."
) -> Iterator[None]:
    """Turn whatever a user's file raises into an `InputError` with file and line. Exceptions of the
    types `passing` are left as they are.
    """
    try:
        yield
    except passing:
        raise
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(path)
        ]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        raise InputError(f"{where}: {type(error).__name__}: {error}", hint=hint) from error
