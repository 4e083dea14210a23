"""What the settings of SkillOpt mean here: the contents of skillopt.yaml, with types."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from skillfit.config.yaml_source import read_source


class SkillOptTable(BaseModel):
    """The contents of skillopt.yaml, which explains each part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flat_signs: list[str]
    signs: dict[str, list[str]]
    own_signs: dict[str, list[str]]
    first_release_words: dict[str, str]
    flat_names: dict[str, str]
    same_meaning: dict[str, list[str]]
    renamed: dict[str, str]
    translated_by_code: dict[str, str]
    aliases: dict[str, dict[str, list[str]]]
    providers: dict[str, str]
    plain_openai: list[str]
    backend_aliases: dict[str, list[str]]
    fills_both_roles: list[str]
    takes_effort: list[str]
    families: dict[str, dict[str, str]]
    values: dict[str, dict[str, str]]
    key_variables: dict[str, str]
    path_options: list[str]
    no_meaning: list[str]
    defaults: dict[str, list[Any]]

    @cached_property
    def moves(self) -> dict[str, str]:
        """Flat name there -> key here, for values that mean the same."""
        moves = dict(self.renamed)
        for section, names in self.same_meaning.items():
            for name in names:
                moves[name] = f"{section}.{name}"
        return moves

    def flat(self, key: str) -> str:
        """The flat name of a structured or flat key, in the words of the later releases."""
        section, _, name = key.rpartition(".")
        words = [self.first_release_words.get(word, word) for word in name.split("_")]
        name = "_".join(words)
        return self.flat_names.get(f"{section}.{name}" if section else name, name)

    def backend(self, name: Any) -> str:
        """The usual name of a backend."""
        plain = str(name).lower().replace("-", "_")
        for backend, aliases in self.backend_aliases.items():
            if plain in aliases:
                return backend
        return plain

    def knows(self, name: str) -> bool:
        """Whether SkillOpt has a setting of this flat name that is not translated."""
        shared = _without_role(name)
        in_family = any(shared in family for family in self.families.values())
        return shared in self.no_meaning or shared in self.defaults or in_family

    def is_default(self, name: str, value: Any) -> bool:
        return value in self.defaults.get(_without_role(name), [])

    def key_here(self, key: str) -> str:
        """The key of skillfit for a key of SkillOpt that has another name here; else empty."""
        name = self.flat(key)
        return self.renamed.get(name) or self.translated_by_code.get(name, "")


@cache
def table() -> SkillOptTable:
    """The translation table."""
    return SkillOptTable.model_validate(read_source(Path(__file__).with_name("skillopt.yaml")).data)


def _without_role(name: str) -> str:
    return name.removeprefix("optimizer_").removeprefix("target_")
