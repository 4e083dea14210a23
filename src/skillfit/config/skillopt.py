"""Reads a config of the reference system (SkillOpt), structured or flat, as it is. reference.yaml
says what its keys mean here.

Keys with no meaning here are warned about, unless they are empty or at the reference's own default.
Keys in the file that belong to skillfit (`budget`, `evaluation.gate`, …) may stand beside them and
go through untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from skillfit.config.keys import SECTIONS, describe_keys
from skillfit.config.yaml_source import Place, Settings, read_source
from skillfit.models.secrets import redact


class Table(BaseModel):
    """What the reference's keys mean here (reference.yaml says what each part is)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flat_signs: list[str]
    signs: dict[str, list[str]]
    own_signs: dict[str, list[str]]
    flat_names: dict[str, str]
    same_meaning: dict[str, list[str]]
    renamed: dict[str, str]
    aliases: dict[str, dict[str, list[str]]]
    providers: dict[str, str]
    backend_aliases: dict[str, list[str]]
    fills_both_roles: list[str]
    plain_openai: list[str]
    families: dict[str, dict[str, str]]
    values: dict[str, dict[str, str]]
    key_variables: dict[str, str]
    no_meaning: list[str]
    defaults: dict[str, Any]

    @cached_property
    def moves(self) -> dict[str, str]:
        same = {
            name: f"{section}.{name}"
            for section, names in self.same_meaning.items()
            for name in names
        }
        return {**same, **self.renamed}

    def flat(self, key: str) -> str:
        return self.flat_names.get(key, key.rpartition(".")[2])

    def backend(self, name: Any) -> str:
        plain = str(name).lower().replace("-", "_")
        return next(
            (backend for backend, aliases in self.backend_aliases.items() if plain in aliases),
            plain,
        )

    def knows(self, name: str) -> bool:
        plain = name.removeprefix("optimizer_").removeprefix("target_")
        return (
            plain in self.no_meaning
            or plain in self.defaults
            or any(plain in family for family in self.families.values())
        )


@cache
def table() -> Table:
    return Table.model_validate(read_source(Path(__file__).with_suffix(".yaml")).data)


def is_reference(data: Mapping[str, Any]) -> bool:
    """Does this look like a config of the reference system?"""
    known = table()
    return not _shows(data, known.own_signs) and (
        _shows(data, known.signs) or any(name in data for name in known.flat_signs)
    )


def _shows(data: Mapping[str, Any], signs: Mapping[str, list[str]]) -> bool:
    sections = {name: data[name] for name in signs if isinstance(data.get(name), Mapping)}
    return any(name in section for title, section in sections.items() for name in signs[title])


def translate(settings: Settings, overrides: Settings, warn: Callable[[str], None]) -> Settings:
    """The settings in skillfit's words. Overrides may use either vocabulary."""
    ours = {described.key for described in describe_keys()}
    theirs, above = _divided(overrides, ours)
    translation = _Translation(theirs.over(settings), ours, warn)
    translation.run()
    return above.over(translation.result)


def _divided(overrides: Settings, ours: set[str]) -> tuple[Settings, Settings]:
    theirs, above = Settings({}), Settings({})
    for key, place in overrides.places.items():
        value: Any = overrides.data
        for part in key.split("."):
            value = value[part]
        one = Settings.of(key, value, place)
        if key in ours and key != "model.optimizer":
            above = one.over(above)
        else:
            theirs = one.over(theirs)
    return theirs, above


@dataclass(frozen=True, slots=True)
class _Given:
    value: Any
    key: str  # as the file has it


@dataclass
class _Translation:
    settings: Settings
    ours: set[str]
    warn: Callable[[str], None]
    table: Table = field(default_factory=table)
    used: set[str] = field(default_factory=set)
    result: Settings = field(default_factory=lambda: Settings({}))

    def run(self) -> None:
        self.given = dict(_flatten(self.settings.data))
        self.put("recipe", "paper", "recipe")
        for name, key in self.table.moves.items():
            self.move(key, name)
        for name, values in self.table.aliases.items():
            self.move(
                f"optimizer.{name}",
                name,
                words={alias: value for value, aliases in values.items() for alias in aliases},
            )
        self._drop_keys()
        self._skill_and_tasks()
        for role, theirs in (("agent", "target"), ("optimizer", "optimizer")):
            self._model(role, theirs)
        self._rest()

    def get(self, *names: str) -> _Given | None:
        """The first of the names that says something. All of them are dealt with."""
        self.used.update(names)
        found = (self.given[name] for name in names if name in self.given)
        return next((given for given in found if given.value not in (None, "", [])), None)

    def put(self, key: str, value: Any, source: str) -> None:
        self.result = Settings.of(key, value, self.settings.place(source)).over(self.result)

    def move(self, key: str, *names: str, words: Mapping[str, str] | None = None) -> None:
        """What the first of the names says becomes our key's, in our words."""
        if (given := self.get(*names)) is not None:
            self.put(key, (words or {}).get(str(given.value).lower(), given.value), given.key)

    def move_path(self, key: str, *names: str) -> None:
        if (given := self.get(*names)) is not None:
            self.put(key, _found(str(given.value), self.settings.place(given.key)), given.key)

    def say(self, key: str, message: str) -> None:
        self.warn(f"{self.settings.place(key)}: {key} {message}")

    def _drop_keys(self) -> None:
        for name in [name for name in self.given if name.endswith("_api_key")]:
            given = self.get(name)
            if given is None:
                continue
            variable = next(
                (
                    variable
                    for family, variable in self.table.key_variables.items()
                    if family in name
                ),
                "AZURE_OPENAI_API_KEY",
            )
            prefix = name.partition("_")[0]
            if prefix in ("optimizer", "target"):  # a role's own key keeps a variable of its own
                variable = f"{prefix.upper()}_{variable}"
                self.put(
                    f"model.{'agent' if prefix == 'target' else prefix}.key_env",
                    variable,
                    given.key,
                )
            self.say(
                given.key,
                f"holds a key and is ignored. Put the key into the environment variable {variable}.",
            )

    def _skill_and_tasks(self) -> None:
        self.move_path("env.skill", "skill_init")
        name, data = self.get("env"), self.get("split_dir", "data_path")
        self.move("env.tasks", "env")
        self.move_path("env.tasks", "split_dir", "data_path")
        if data is not None and name is not None:
            self.say(
                name.key,
                f"= {name.value} does not choose a grader here: say with env.grader how the items of {data.key} are graded.",
            )

    def _model(self, role: str, theirs: str) -> None:
        name = self.get(f"{theirs}_model")
        provider = self.table.providers.get(self._backend(theirs), "")
        mode = self.get(f"{theirs}_azure_openai_auth_mode", "azure_openai_auth_mode")
        family = self.table.families.get(provider, {})
        if provider == "azure/" and mode is not None and mode.value in self.table.plain_openai:
            provider, family = (
                "openai/",
                {"azure_openai_endpoint": "base_url", "azure_endpoint": "base_url"},
            )
        if name is None:
            return
        ours = str(name.value).partition("/")[0] + "/" in {
            prefix.partition("/")[0] + "/" for prefix in self.table.providers.values()
        }
        self.put(f"model.{role}.id", name.value if ours else f"{provider}{name.value}", name.key)
        if provider == "anthropic/":
            self.say(
                name.key,
                "was asked through the claude command there; here it is Anthropic's API (ANTHROPIC_API_KEY), or cli/claude.",
            )
        if provider not in ("cli/cursor/", "cli/copilot/"):
            self.move(f"model.{role}.reasoning_effort", "reasoning_effort")
        if role == "agent" and not provider.startswith("cli/"):
            self.move(f"model.{role}.max_tokens", "max_completion_tokens")
        for name_there, setting in family.items():
            names = (f"{theirs}_{name_there}", name_there)
            given = self.get(*names)
            if (
                role == "optimizer"
                and setting == "max_tokens"
                and given
                and given.value == self.table.defaults.get(name_there)
            ):
                continue  # a ceiling nobody chose, which cut analysts' replies short
            self.move(f"model.{role}.{setting}", *names, words=self.table.values.get(setting))

    def _backend(self, theirs: str) -> str:
        """A role's own backend, else what the label for the whole run means for that role."""
        own, label = self.get(f"{theirs}_backend"), self.get("model_backend")
        named = self.table.backend(own.value) if own is not None else ""
        whole = self.table.backend(label.value) if label is not None else ""
        if named not in ("", "openai_chat"):
            return named
        fills = whole in self.table.fills_both_roles or theirs == "target"
        return whole if whole and fills else named or "openai_chat"

    def _rest(self) -> None:
        """What is left: skillfit's own keys go through, the rest has no meaning here and is said,
        mistakes become errors later.
        """
        for name, given in self.given.items():
            if name in self.used:
                continue
            if given.key in self.ours:
                self.put(given.key, given.value, given.key)
            elif given.value in (None, "", [], 0, self.table.defaults.get(name)):
                continue
            elif self.table.knows(name) or given.key.startswith("env."):
                self.say(
                    given.key, f"= {redact(repr(given.value))} has no meaning here and is ignored."
                )
            else:
                self.put(given.key, given.value, given.key)


def _flatten(data: Mapping[str, Any]) -> Iterator[tuple[str, _Given]]:
    for section, value in data.items():
        if isinstance(value, Mapping) and section in SECTIONS:
            for name, item in value.items():
                key = f"{section}.{name}"
                yield table().flat(key), _Given(item, key)
        else:
            yield section, _Given(value, section)


def _found(text: str, place: Place) -> str:
    """A path of the reference is relative to where its command was run: mostly its repository, some
    folders above the config.
    """
    folders = (place.folder, Path.cwd(), *place.folder.parents)
    return str(
        next((folder / text for folder in folders if (folder / text).exists()), Path.cwd() / text)
    )
