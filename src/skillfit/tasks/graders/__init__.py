"""Graders by name: `exact`, `{numeric: {rel: 0.01}}`, `{regex: '^\\d+$'}`, `{all: [normalized, {rubric: …}]}`, `file.py:grade`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ValidationError

from skillfit.errors import InputError
from skillfit.models.protocol import Model
from skillfit.tasks.attempt import Grader
from skillfit.tasks.graders.base import BuiltIn
from skillfit.tasks.graders.code import Code
from skillfit.tasks.graders.compose import Composed
from skillfit.tasks.graders.judge import Checklist, JudgeGrader, Pairwise, Rubric
from skillfit.tasks.graders.python import Python
from skillfit.tasks.graders.text import F1, Anls, Contains, Exact, Normalized, Regex
from skillfit.tasks.graders.values import Choice, JsonFields, Numeric
from skillfit.tasks.item import Item

BUILT_IN: Mapping[str, type[BuiltIn]] = {
    kind.name: kind
    for kind in (
        Exact,
        Normalized,
        Contains,
        Regex,
        Choice,
        Numeric,
        F1,
        Anls,
        JsonFields,
        Code,
        Rubric,
        Pairwise,
        Checklist,
        Python,
    )
}
_COMPOSITIONS = ("all", "any", "mean")

__all__ = ["BUILT_IN", "BuiltIn", "all_patterns", "build_grader", "check_items", "without_judges"]


def build_grader(setting: str | Mapping[str, Any] | Grader, *, judge: Model | None = None, base: Path = Path()) -> Grader:
    """The grader a setting names. `base` is the folder that `file.py:grade` is relative to."""
    if isinstance(setting, str):
        setting = {"python": setting} if ".py:" in setting else {setting: {}}
    if not isinstance(setting, Mapping):
        return setting
    named = [key for key in setting if key in BUILT_IN or key in _COMPOSITIONS]
    others = [key for key in setting if key not in named and not (key == "weights" and named == ["mean"])]
    if len(named) != 1 or others:
        unknown = str((others or named or ["nothing"])[0])
        near = difflib.get_close_matches(unknown, [*BUILT_IN, *_COMPOSITIONS], n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join([*BUILT_IN, *_COMPOSITIONS])}; one at the top."
        raise InputError(f"env.grader: {unknown!r} does not name one grader.", hint=hint)
    if named[0] in _COMPOSITIONS:
        return _composed(named[0], setting, judge, base)
    return _built_in(BUILT_IN[named[0]], setting[named[0]], judge, base)


def check_items(grader: Grader, items: Iterable[Item]) -> None:
    """Refuse, before anything is paid for, an item that the grader cannot grade."""
    parts = _leaves(grader)
    for item in items if parts else ():
        item = item.loaded()
        for part in parts:
            if why := part.problem(item):
                raise InputError(
                    f"item {item.id}: {why}.", hint="Change the item, map its column with env.fields, or choose another env.grader."
                )


def all_patterns(grader: Grader, items: Iterable[Item]) -> tuple[str, ...]:
    """What would give the grader away: its own rules, and those that items bring to it."""
    parts = [part for part in _leaves(grader) if type(part).patterns_of is not BuiltIn.patterns_of]
    rows = (item.loaded() for item in items) if parts else ()
    return tuple(dict.fromkeys([*grader.patterns(), *(rule for item in rows for part in parts for rule in part.patterns_of(item))]))


def without_judges(grader: Grader) -> Grader | None:
    """What is left of a grader when nobody is asked: None when all of it is a judge."""
    if isinstance(grader, Composed):
        kept = [(left, weight) for part, weight in zip(grader.parts, grader.weights, strict=True) if (left := without_judges(part))]
        return Composed(grader.how, tuple(left for left, _ in kept), tuple(weight for _, weight in kept)) if kept else None
    return None if isinstance(grader, JudgeGrader) else grader


def _leaves(grader: Grader) -> list[BuiltIn]:
    if isinstance(grader, Composed):
        return [leaf for part in grader.parts for leaf in _leaves(part)]
    return [grader] if isinstance(grader, BuiltIn) else []


def _composed(how: str, setting: Mapping[str, Any], judge: Model | None, base: Path) -> Grader:
    parts = setting[how]
    weights = setting.get("weights", [1.0] * len(parts) if isinstance(parts, list) else [])
    if not isinstance(parts, list) or not parts:
        raise InputError(f"env.grader.{how}: expected a list of graders.")
    if (
        not isinstance(weights, list)
        or len(weights) != len(parts)
        or not all(isinstance(one, (int, float)) and one > 0 for one in weights)
    ):
        raise InputError(f"env.grader.weights: expected {len(parts)} numbers above 0, found {weights!r}.")
    built = tuple(build_grader(part, judge=judge, base=base) for part in parts)
    return Composed(cast(Literal["all", "any", "mean"], how), built, tuple(float(weight) for weight in weights))


def _built_in(kind: type[BuiltIn], settings: Any, judge: Model | None, base: Path) -> BuiltIn:
    if not isinstance(settings, Mapping):
        settings = {kind.short: settings} if kind.short and settings is not None else settings or {}
    try:
        return kind.model_validate(settings, context={"judge": judge, "base": base})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["env.grader", kind.name, *(str(part) for part in first["loc"])])
        near = difflib.get_close_matches(str(first["loc"][-1]) if first["loc"] else "", kind.model_fields, n=1)
        hint = (
            f"Did you mean {near[0]!r}?"
            if near and first["type"] == "extra_forbidden"
            else f"Settings: {', '.join(kind.model_fields)}."
        )
        raise InputError(f"{where}: {first['msg']}.", hint=hint) from error
