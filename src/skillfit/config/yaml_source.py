"""Where settings come from: YAML files with `_base_`, mappings and `key=value` overrides, each key
with the place it was set.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from skillfit.errors import InputError

BASE = "_base_"
_ROLES = ("agent", "optimizer", "judge")


@dataclass(frozen=True, slots=True)
class Place:
    """Who set a key: a line of a file, an override, or the caller."""

    name: str
    folder: Path
    line: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name

    @property
    def without_value(self) -> str:
        """The place, for a message about what may be a secret: an override's name holds its value."""
        return str(self) if self.line else self.name.partition("=")[0]


@dataclass(frozen=True, slots=True)
class Settings:
    """Nested settings, and per dotted key the place that set it last."""

    data: dict[str, Any]
    places: dict[str, Place] = field(default_factory=dict)

    @classmethod
    def of(cls, key: str, value: Any, place: Place) -> Settings:
        """One dotted key."""
        for part in reversed(key.split(".")):
            value = {part: value}
        return cls(value, {key: place})

    def over(self, base: Settings) -> Settings:
        """These settings on top of `base`: sections merge, everything else replaces."""
        return Settings(_merge(base.data, self.data), {**base.places, **self.places})

    def place(self, key: str) -> Place:
        """The place of the key, or of the nearest section around it."""
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        return self.places.get(key) or next(
            iter(self.places.values()), Place("the settings", Path.cwd())
        )


def read_source(source: Path | str | Mapping[str, Any]) -> Settings:
    """A YAML file with everything it inherits, or a mapping as it is."""
    if isinstance(source, Mapping):
        data = _plain(source)
        return Settings(
            data, dict.fromkeys((key for key, _ in walk(data)), Place("the settings", Path.cwd()))
        )
    return _read_file(Path(source).absolute(), ())


def read_overrides(
    overrides: Sequence[str] | Mapping[str, Any], texts: Container[str] = ()
) -> Settings:
    """`a.b=c` each; values are YAML, so numbers, lists and null mean what they look like. Or dotted
    keys with their values. Paths are relative to here. `texts`: keys that hold nothing but text,
    where `command: ./x` is no mapping.
    """
    settings = Settings({})
    if isinstance(overrides, Mapping):
        for key, given in overrides.items():
            settings = Settings.of(key, _plain(given), Place("the settings", Path.cwd())).over(
                settings
            )
        return settings
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise InputError(f"The override {text!r} is not of the form key.sub=value.")
        try:
            read = yaml.load(value, Loader=_Loader) if value.strip() else ""
        except yaml.YAMLError as error:
            if key not in texts:
                raise InputError(
                    f"The override {text!r} has a value that is not YAML: {_problem(error)}."
                ) from error
            read = {}
        if key in texts and isinstance(read, (dict, list)):
            read = value.strip()
        settings = Settings.of(key, read, Place(f"the override {text}", Path.cwd())).over(settings)
    return settings


def walk(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting in nested data, sections too, with its dotted key; the entries of a list go by
    the list's.
    """
    if isinstance(data, Mapping):
        for name, value in data.items():
            yield f"{key}.{name}".lstrip("."), value
            yield from walk(value, f"{key}.{name}".lstrip("."))
    elif isinstance(data, list):
        for value in data:
            yield key, value
            yield from walk(value, key)


def _read_file(path: Path, chain: tuple[Path, ...]) -> Settings:
    if path in chain:
        names = " -> ".join(str(step) for step in (*chain, path))
        raise InputError(f"{BASE} goes round in a circle: {names}.")
    own = _parse(path)
    bases = own.data.pop(BASE, [])
    settings = Settings({})
    for base in bases if isinstance(bases, list) else [bases]:
        if not isinstance(base, str):
            raise InputError(
                f"{own.place(BASE)}: {BASE} must be a path or a list of paths, not {base!r}."
            )
        target = (path.parent / base).resolve()
        if not target.is_file():
            raise InputError(
                f"{own.place(BASE)}: {BASE} names {base}, but there is no file {target}."
            )
        settings = _read_file(target, (*chain, path)).over(settings)
    return own.over(settings)


def _parse(path: Path) -> Settings:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"Cannot read the config {path}: {reason}.") from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = loader.construct_document(node) if node else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise InputError(f"{where}: not valid YAML: {_problem(error)}.") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {error}.") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: a config is a mapping of sections, not {type(data).__name__}.")
    places = (
        {key: Place(str(path), path.parent, line) for key, line in _lines(node, path)}
        if node
        else {}
    )
    return Settings(_plain(data), places)


def _lines(
    node: yaml.Node, path: Path, prefix: str = "", around: tuple[yaml.Node, ...] = ()
) -> Iterator[tuple[str, int]]:
    """Dotted keys and their lines. A key given twice would lose one of its values unseen: refused."""
    line = node.start_mark.line + 1
    if node in around:
        raise InputError(f"{path}:{line}: {prefix.rstrip('.')} contains itself.")
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _lines(item, path, prefix, (*around, node))
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = f"{prefix}{key_node.value}", key_node.start_mark.line + 1
        if key in seen and key_node.value != "<<":
            raise InputError(f"{path}:{line}: {key} is set twice (before on line {seen[key]}).")
        seen[key] = line
        yield key, line
        yield from _lines(value_node, path, f"{key}.", (*around, node))


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        if isinstance(below, str) and key in _ROLES and isinstance(value, dict):
            below = {"id": below}  # `agent: openai/x` below, `agent: {temperature: 0}` on top
        merged[key] = (
            _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
        )
    return merged


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _problem(error: yaml.YAMLError) -> str:
    return (getattr(error, "problem", None) or str(error)).rstrip(".")


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values: `off` and `4:4:2` are text, `1e-4` is a number."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first
    )
