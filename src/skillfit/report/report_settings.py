"""The settings of a run for a page: what differs from the defaults, and the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillfit.config import Config
from skillfit.models.provider import ModelSpec


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run: those that differ from the defaults, and the others."""

    changed: tuple[Setting, ...]
    default: tuple[Setting, ...]


def settings_of_config(config: Mapping[str, Any]) -> Settings:
    usual = {
        setting.key: setting.value for setting in flat_settings(Config().model_dump(mode="json"))
    }
    for role in ("agent", "optimizer", "judge"):
        for setting in flat_settings(ModelSpec(id="").model_dump(mode="json"), f"model.{role}."):
            usual.setdefault(setting.key, setting.value)
    pairs = flat_settings(config)
    home = str(Path.home())
    shown = [Setting(pair.key, pair.value.replace(home, "~").strip('"')) for pair in pairs]
    same = [usual.get(pair.key) == pair.value for pair in pairs]
    return Settings(
        changed=tuple(one for one, usual in zip(shown, same, strict=True) if not usual),
        default=tuple(one for one, usual in zip(shown, same, strict=True) if usual),
    )


def flat_settings(value: Mapping[str, Any], prefix: str = "") -> list[Setting]:
    """Dotted keys with their values as JSON."""
    rows: list[Setting] = []
    for name, item in value.items():
        if isinstance(item, Mapping) and item:
            rows += flat_settings(item, f"{prefix}{name}.")
        else:
            rows.append(Setting(prefix + name, json.dumps(item, ensure_ascii=False, default=str)))
    return rows
