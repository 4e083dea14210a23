"""Where settings come from: YAML files with `_base_`, mappings, and `key=value` overrides.

`PlacedSettings` keeps the place that set a key, so that errors can name a line or an override. YAML
is read strictly: with the plain values of version 1.2, without keys that are set twice, and with
limits on size and depth.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from skillfit.errors import InputError, near_file
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import ROLES
from skillfit.plain_text import shorten
from skillfit.skill.document import BOM, decode_text, read_regular_file

BASE = "_base_"
FROM_PYTHON = "the settings"  # the name of the place of settings that are in no file
# Settings that are one value also where they are a mapping, {name: settings}: they are not merged.
_WHOLE_VALUES = ("env.grader", "evaluation.ship_grader")
# Far above any real config. YAML aliases can make a few lines stand for billions of values.
_FILE_LIMIT = 1_000_000
_VALUE_LIMIT = 20_000
_DEPTH_LIMIT = 50
_LONGEST_NUMBER = 400


@dataclass(frozen=True, slots=True)
class SettingPlace:
    """What set a key: a line of a file, an override, or the caller of the Python API."""

    name: str
    folder: Path  # relative paths in the value start here
    line: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name

    @property
    def without_value(self) -> str:
        """The place, for a message about a possible secret. The name of an override contains its
        value, which must not be shown.
        """
        return str(self) if self.line else self.name.partition("=")[0]


@dataclass(frozen=True, slots=True)
class PlacedSettings:
    """Nested settings, and for each dotted key the place that set it last.

    `origin` is named for keys without a recorded place.
    """

    data: JsonObject
    places: dict[str, SettingPlace] = field(default_factory=dict)
    origin: SettingPlace | None = None

    @classmethod
    def of(cls, key: str, value: Any, place: SettingPlace) -> PlacedSettings:
        """Return settings with one dotted key."""
        for part in reversed(key.split(".")):
            value = {part: value}
        return cls(value, {key: place})

    def over(self, base: PlacedSettings) -> PlacedSettings:
        """Return these settings on top of `base`: sections are merged, other values replaced.

        A grader replaces the one in `base`. A key inside it, as of the override
        `env.grader.exact.ignore_case=false`, changes the one in `base`.
        """
        replaced = tuple(key for key in _WHOLE_VALUES if self._sets_whole(key))
        inside = tuple(f"{key}." for key in replaced)
        below = {key: place for key, place in base.places.items() if not key.startswith(inside)}
        return PlacedSettings(
            _merge_settings(base.data, self.data, replaced),
            {**below, **self.places},
            self.origin or base.origin,
        )

    def _sets_whole(self, key: str) -> bool:
        """Return whether the value of a key is set here, not only keys inside it."""
        section, _, name = key.rpartition(".")
        values = self.data.get(section)
        if not isinstance(values, dict) or name not in values:
            return False
        if key in self.places:
            return True
        return section in self.places and not any(
            place.startswith(f"{key}.") for place in self.places
        )

    def place(self, key: str) -> SettingPlace:
        """Return the place that set a key, or something inside it, or else the section around
        it.
        """
        if key in self.places:
            return self.places[key]
        for name in reversed(self.places):
            if name.startswith(f"{key}."):
                return self.places[name]
        while key:
            key = key.rpartition(".")[0]
            if key in self.places:
                return self.places[key]
        return self.origin or SettingPlace(FROM_PYTHON, Path.cwd())


def _merge_settings(
    base: Mapping[str, Any], top: Mapping[str, Any], whole: Container[str], section: str = ""
) -> JsonObject:
    """Put `top` on top of `base`. `whole` are dotted keys whose values replace those of `base`."""
    merged = dict(base)
    for key, value in top.items():
        below, dotted = merged.get(key), f"{section}{key}"
        if isinstance(below, str) and key in ROLES and isinstance(value, dict):
            below = {"id": below}  # `agent: openai/x` below, `agent: {temperature: 0}` on top
        if isinstance(below, dict) and isinstance(value, dict) and dotted not in whole:
            merged[key] = _merge_settings(below, value, whole, f"{dotted}.")
        else:
            merged[key] = value
    return merged


def read_source(source: Path | str | Mapping[str, Any]) -> PlacedSettings:
    """Return the settings of a YAML file with everything it inherits, or of a mapping."""
    if not isinstance(source, Mapping):
        return _read_with_bases(Path(source).absolute(), ())
    data = _plain_copy(source)
    place = SettingPlace(FROM_PYTHON, Path.cwd())
    return PlacedSettings(data, {key: place for key, _ in walk(data)}, place)


def read_overrides(
    overrides: Sequence[str] | Mapping[str, Any], text_keys: Container[str] = ()
) -> PlacedSettings:
    """Return settings from `a.b=c` texts, or from a mapping of dotted keys to values.

    In texts, values are YAML: numbers, lists and null mean what they look like. For `text_keys`,
    which hold only text, a value such as `command: ./x` is not read as a mapping. Relative paths
    start in the current folder.
    """
    settings = PlacedSettings({})
    if isinstance(overrides, Mapping):
        place = SettingPlace(FROM_PYTHON, Path.cwd())
        for key, value in overrides.items():
            settings = PlacedSettings.of(key, _plain_copy(value), place).over(settings)
        return settings
    for text in overrides:
        key, equals, value = text.partition("=")
        shown = shorten(text, 100)
        if not equals or not all(key.split(".")):
            raise InputError(f"The override {shown!r} is not of the form key.sub=value.")
        place = SettingPlace(f"command-line override {shown}", Path.cwd())
        parsed = _override_value(shown, value, key in text_keys)
        settings = PlacedSettings.of(key, parsed, place).over(settings)
    return settings


def _override_value(shown: str, value: str, is_text: bool) -> Any:
    try:
        parsed = _parse_yaml(value).data if value.strip() else ""
    except _NotYaml as error:
        if not is_text:
            raise InputError(
                f"The override {shown!r} has a value that is not valid YAML: {error.problem}."
            ) from error
        return value.strip()
    return value.strip() if is_text and isinstance(parsed, (dict, list)) else _plain_copy(parsed)


def read_text(text: str) -> Any:
    """Return the value of a YAML text, as a person types it for an option."""
    try:
        return _plain_copy(_parse_yaml(text).data)
    except _NotYaml as error:
        raise InputError(f"{shorten(text, 100)!r} is not valid YAML: {error.problem}.") from error


def walk(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in nested data with its dotted key, sections included. Entries of a list
    have the key of the list.
    """
    if isinstance(data, Mapping):
        for name, value in data.items():
            below = f"{key}.{name}" if key else str(name)
            yield below, value
            yield from walk(value, below)
    elif isinstance(data, list):
        for value in data:
            yield key, value
            yield from walk(value, key)


def _plain_copy(value: Any) -> Any:
    """Return a copy with plain dicts and lists, string keys, and paths as strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain_copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_copy(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _read_with_bases(path: Path, chain: tuple[Path, ...]) -> PlacedSettings:
    """Return a file on top of the files that its `_base_` names. `chain` are the files that led
    here.
    """
    if path in chain:
        names = " -> ".join(str(step) for step in (*chain, path))
        raise InputError(f"Circular {BASE}: {names}.", hint=f"Remove one of the {BASE} lines.")
    own = _read_own(path)
    bases = own.data.pop(BASE, [])
    settings = PlacedSettings({})
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
        settings = _read_with_bases(target, (*chain, path)).over(settings)
    return own.over(settings)


def _read_own(path: Path) -> PlacedSettings:
    """Return the settings in one file, without what it inherits."""
    parsed = _parse_file(path, "config")
    if parsed.data is None:
        return PlacedSettings({}, origin=SettingPlace(str(path), path.parent))
    if not isinstance(parsed.data, dict):
        kind = type(parsed.data).__name__
        raise InputError(f"{path}: a config is a mapping of sections, not {kind}.")
    places = {
        key: SettingPlace(str(path), path.parent, line)
        for key, line in _key_lines(parsed.node, path)
    }
    return PlacedSettings(_plain_copy(parsed.data), places, SettingPlace(str(path), path.parent))


def _key_lines(node: yaml.Node | None, path: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield dotted keys and their lines. Refuse a key that is set twice: one value would be
    lost.
    """
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _key_lines(item, path, prefix)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = f"{prefix}{key_node.value}", key_node.start_mark.line + 1
        if key in seen and key_node.value != "<<":
            raise InputError(f"{path}:{line}: {key} is set twice (before on line {seen[key]}).")
        seen[key] = line
        yield key, line
        yield from _key_lines(value_node, path, f"{key}.")


def read_yaml(path: Path) -> Any:
    """Return the value in a YAML file that is no config, read as strictly as one."""
    return _plain_copy(_parse_file(path, "file").data)


def _parse_file(path: Path, what: str) -> _ParsedYaml:
    try:
        data = read_regular_file(path, _FILE_LIMIT)
        if data is None:
            raise InputError(f"The {what} {path} is larger than {_FILE_LIMIT:,} bytes.")
    except OSError as error:
        hint = ""
        if isinstance(error, FileNotFoundError) and what == "config":
            hint = near_file(path) or "Check the path, or write a config with: skillfit init"
        elif isinstance(error, IsADirectoryError):
            hint = f"Give a file, such as {path / 'skillfit.yaml'}"
        raise InputError(f"Cannot read the {what} {path}: {error.strerror}.", hint=hint) from error
    try:
        return _parse_yaml(decode_text(data, path).removeprefix(BOM))
    except _NotYaml as error:
        where = f"{path}:{error.line}:{error.column}" if error.line else str(path)
        raise InputError(f"{where}: not valid YAML: {error.problem}.") from error


@dataclass(frozen=True, slots=True)
class _ParsedYaml:
    data: Any
    node: yaml.Node | None


class _NotYaml(Exception):
    """The text is not YAML that a config may contain. `line` and `column` are 0 when unknown."""

    def __init__(self, problem: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(problem)
        self.problem = problem.rstrip(".")
        self.line = mark.line + 1 if mark else 0
        self.column = mark.column + 1 if mark else 0


def _parse_yaml(text: str) -> _ParsedYaml:
    try:
        loader = _YamlLoader(text)
        node = loader.get_single_node()
        if node is None:
            return _ParsedYaml(None, None)
        _expanded_size(node, {}, 0)
        return _ParsedYaml(loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        raise _NotYaml(error.problem or str(error), error.problem_mark) from error
    except yaml.YAMLError as error:
        raise _NotYaml(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise _NotYaml("it is nested too deeply") from error


def _expanded_size(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """Count how many values a node stands for when all aliases in it are replaced by what they
    name.

    Raises when there are too many, when they are nested too deeply, or when a node contains itself.
    `known` holds the sizes of finished nodes, and 0 for those that this call is inside of.
    """
    if id(node) in known:
        if known[id(node)] == 0:
            raise _NotYaml("a value contains itself", node.start_mark)
        return known[id(node)]
    if depth > _DEPTH_LIMIT:
        raise _NotYaml("it is nested too deeply", node.start_mark)
    known[id(node)] = 0
    size = 1
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    for child in children:
        size += _expanded_size(child, known, depth + 1)
        if size > _VALUE_LIMIT:
            raise _NotYaml(
                f"with its aliases it has more than {_VALUE_LIMIT:,} values", node.start_mark
            )
    known[id(node)] = size
    return size


class _YamlLoader(yaml.SafeLoader):
    """YAML with the plain values of version 1.2: `off` and `4:4:2` are text, `1e-4` is a number.
    Tags for anything but text, numbers, booleans, null, lists and mappings are refused.
    """

    def number(self, node: yaml.Node) -> int | float:
        text = str(self.construct_scalar(node)) if isinstance(node, yaml.ScalarNode) else ""
        if len(text) > _LONGEST_NUMBER:
            raise yaml.constructor.ConstructorError(
                None, None, f"a number with {len(text)} characters", node.start_mark
            )
        try:
            if node.tag.endswith(":float"):
                return float(text.lower().replace(".inf", "inf"))
            return int(text, 16 if text.startswith("0x") else 10)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"{text!r} is not a number", node.start_mark
            ) from error

    def boolean(self, node: yaml.Node) -> bool:
        text = str(self.construct_scalar(node)) if isinstance(node, yaml.ScalarNode) else ""
        if text.lower() not in ("true", "false"):
            raise yaml.constructor.ConstructorError(
                None, None, f"{text!r} is neither true nor false", node.start_mark
            )
        return text.lower() == "true"


def _yaml_tag(name: str) -> str:
    return f"tag:yaml.org,2002:{name}"


_YamlLoader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in (
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
    _YamlLoader.add_implicit_resolver(_yaml_tag(_name), re.compile(f"^(?:{_pattern})$"), _first)

_YamlLoader.yaml_constructors = {
    tag: yaml.SafeLoader.yaml_constructors[tag]
    for tag in (_yaml_tag("null"), _yaml_tag("str"), _yaml_tag("seq"), _yaml_tag("map"), None)
}
_YamlLoader.add_constructor(_yaml_tag("int"), _YamlLoader.number)
_YamlLoader.add_constructor(_yaml_tag("float"), _YamlLoader.number)
_YamlLoader.add_constructor(_yaml_tag("bool"), _YamlLoader.boolean)
