"""Graders by name: `exact`, `{numeric: {rel: 0.01}}`, `{regex: '^\\d+$'}`, `file.py:grade`,
`{all: [normalized, {rubric: …}]}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import ValidationError

from skillfit.errors import InputError, did_you_mean
from skillfit.extensions import extension_names, find_extension, name_of
from skillfit.models.protocol import Model
from skillfit.plain_text import one_line, quantity
from skillfit.sandbox.known_good import KnownGood
from skillfit.settings import setting_problems
from skillfit.tasks.graders.built_in import (
    F1,
    GRADER_KEY,
    Anls,
    BuiltIn,
    Choice,
    Composed,
    Contains,
    Exact,
    GraderContext,
    JsonFields,
    Normalized,
    Numeric,
    Regex,
)
from skillfit.tasks.graders.external import (
    Checklist,
    Code,
    JudgeGrader,
    Pairwise,
    Python,
    Rubric,
    as_grader,
)
from skillfit.tasks.item import (
    LARGEST_WEIGHT,
    SMALLEST_WEIGHT,
    Grader,
    GraderLike,
    Item,
    similar_column,
)

_COMPARE = (Exact, Normalized, Contains, Regex, Choice, Numeric, F1, Anls, JsonFields)
_ASK = (Rubric, Pairwise, Checklist)
BUILT_IN: Mapping[str, type[BuiltIn]] = {
    kind.name: kind for kind in (*_COMPARE, Code, *_ASK, Python)
}
_COMPOSITIONS = ("all", "any", "mean")
_EXAMPLE = "Write a name, such as exact, or {name: settings}."

__all__ = [
    "BUILT_IN",
    "all_patterns",
    "build_grader",
    "check_items",
    "golds",
    "known_good_programs",
    "without_judges",
]


def build_grader(
    setting: GraderLike,
    *,
    judge: Model | None = None,
    base: Path = Path(),
    key: str = GRADER_KEY,
) -> Grader:
    """Return the grader that a setting describes. `file.py:grade` is relative to the folder `base`.
    Other names are entry points of group `skillfit.graders`. Errors name the `key` of the setting.
    """
    if isinstance(setting, str):
        setting = {"python": setting} if ".py:" in setting else {setting: {}}
    if not isinstance(setting, Mapping):
        return as_grader(setting, name_of(setting), key=key)
    if not setting:
        raise InputError(f"{key}: an empty mapping names no grader.", hint=_EXAMPLE)
    known = [*BUILT_IN, *_COMPOSITIONS]
    if not set(setting) <= set(known):
        known += extension_names("grader")
    graders = [name for name in setting if name in known]
    settings = ["weights"] if graders == ["mean"] else []
    if unknown := [str(name) for name in setting if name not in (*graders, *settings)]:
        hint = did_you_mean(unknown[0], known) or f"Known: {', '.join(known)}; one at the top."
        raise InputError(f"{key}: {unknown[0]!r} is not a grader.", hint=hint)
    if len(graders) > 1:
        raise InputError(
            f"{key} names {len(graders)} graders: {', '.join(graders)}.",
            hint="Name one, or put them in a list under all, any or mean.",
        )
    name = graders[0]
    given = GraderContext(judge, base, key)
    if name in _COMPOSITIONS:
        return _composed(name, setting, given)
    found = find_extension("grader", name, BUILT_IN, setting=key)
    if isinstance(found, type) and issubclass(found, BuiltIn):
        return _built_in(found, setting[name], given)
    return as_grader(found, name, setting[name], key=key)


def check_items(grader: Grader, items: Iterable[Item]) -> None:
    """Raise an error if the grader cannot grade one of the items."""
    parts = _leaves(grader)
    for item in items if parts else ():
        item = item.loaded()
        for part in parts:
            if why := part.problem(item):
                raise InputError(
                    f"item {item.id} ({one_line(item.input, 60)}): {why}.",
                    hint=similar_column(item.content(), "answers")
                    + "Change the item, map its column with env.fields (for skillfit init: --field "
                    "answers=COLUMN), or choose another env.grader.",
                )


def golds(grader: Grader, item: Item) -> tuple[str, ...]:
    """Return the answers that must score 1. Of a composition they are those of the part with the
    fewest: `contains` with `every` has one, in which all gold answers of the item are joined.
    """
    if isinstance(grader, Composed):
        return min(filter(None, (golds(part, item) for part in grader.parts)), key=len, default=())
    return grader.golds(item) if isinstance(grader, BuiltIn) else item.answers


def known_good_programs(grader: Grader, items: Sequence[Item]) -> list[KnownGood]:
    """Return the programs that must work here before this grader can grade these items."""
    found = (part.known_good(items) for part in _leaves(grader))
    return [known for known in found if known is not None]


def all_patterns(grader: Grader, items: Iterable[Item]) -> tuple[str, ...]:
    """Return the texts that would reveal the grader in a skill: its own and the items'."""
    found = dict.fromkeys(grader.patterns())
    parts = [part for part in _leaves(grader) if type(part).patterns_of is not BuiltIn.patterns_of]
    for item in items if parts else ():
        item = item.loaded()
        for part in parts:
            found |= dict.fromkeys(part.patterns_of(item))
    return tuple(found)


def without_judges(grader: Grader) -> Grader | None:
    """Return the grader without its parts that ask a judge model; None if nothing is left."""
    if not isinstance(grader, Composed):
        return None if isinstance(grader, JudgeGrader) else grader
    parts, weights = [], []
    for part, weight in zip(grader.parts, grader.weights, strict=True):
        kept = without_judges(part)
        if kept is not None:
            parts.append(kept)
            weights.append(weight)
    return Composed(grader.how, tuple(parts), tuple(weights)) if parts else None


def _leaves(grader: Grader) -> list[BuiltIn]:
    if isinstance(grader, Composed):
        return [leaf for part in grader.parts for leaf in _leaves(part)]
    return [grader] if isinstance(grader, BuiltIn) else []


def _composed(how: str, setting: Mapping[str, Any], given: GraderContext) -> Grader:
    parts, key = setting[how], given.key
    if not isinstance(parts, list) or not parts:
        raise InputError(f"{key}.{how}: expected a list of graders.")
    weights = setting.get("weights", [1.0] * len(parts))
    numbers = isinstance(weights, list) and all(
        isinstance(one, (int, float))
        and not isinstance(one, bool)
        and SMALLEST_WEIGHT <= one <= LARGEST_WEIGHT
        for one in weights
    )
    if not numbers or len(weights) != len(parts):
        raise InputError(
            f"{key}.weights: expected {quantity(len(parts), 'number')} from "
            f"{SMALLEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, found {weights!r}."
        )
    built = tuple(
        build_grader(part, judge=given.judge, base=given.base, key=f"{key}.{how}") for part in parts
    )
    return Composed(
        cast(Literal["all", "any", "mean"], how), built, tuple(float(weight) for weight in weights)
    )


def _built_in(kind: type[BuiltIn], settings: Any, given: GraderContext) -> BuiltIn:
    if not isinstance(settings, Mapping):
        bare_value = bool(kind.short) and settings is not None
        settings = {kind.short: settings} if bare_value else settings or {}
    try:
        return kind.model_validate(settings, context=given)
    except ValidationError as error:
        problem = next(setting_problems(error, kind, settings, f"{given.key}.{kind.name}"))
        hint = ""
        if problem.unknown:
            name, known = problem.key.rpartition(".")[2], problem.beside
            hint = did_you_mean(name, known) or f"Settings: {', '.join(known)}."
        raise InputError(problem.sentence, hint=hint) from error
