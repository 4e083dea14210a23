"""A user's gate, proposer, sampler or executor in a run: its errors and wrong results name it.

skillfit's own parts are not guarded: an exception in one of them is a bug of skillfit and must look
like one.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from traceback import FrameSummary, StackSummary
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import skillfit
from skillfit.errors import InputError, SkillfitError
from skillfit.extensions import is_built_in, missing_members
from skillfit.gate.base import NotMeasured
from skillfit.training.step_log import current_step

FIX = "Fix its code; --debug shows the traceback."
_PACKAGE = Path(skillfit.__file__).parent


class PartFailed(InputError):
    """A user's part raised an exception or returned something else than it must. What was paid for
    is saved: the run can be resumed after the part is fixed.
    """

    def __init__(self, kind: str, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind  # gate, proposer, sampler or executor

    def in_run(self, run: Path, *, from_python: bool) -> PartFailed:
        """The same with how to continue. `from_python`: the part was not named in the config."""
        how = (
            "Call train again to resume." if from_python else f"Resume with: skillfit resume {run}"
        )
        hint = f"{self.hint} Everything so far is saved. {how}"
        return PartFailed(self.kind, self.message, hint=hint)


Problem = Callable[..., str]  # of a result and the arguments that led to it; empty: none


def guarded(
    kind: str, part: Any, protocol: type, source: str, checks: Mapping[str, Problem] | None = None
) -> Any:
    """The part, guarded if it is a user's. `source` is what the user wrote, for messages. `checks`
    has more checks of results, by method; types are checked for all.
    """
    if is_built_in(part):
        return part
    file = getattr(sys.modules.get(type(part).__module__), "__file__", None) or ""
    return _GuardedPart(_Origin(kind, source, file), part, protocol, checks or {})


@dataclass(frozen=True, slots=True)
class _Origin:
    kind: str  # gate, proposer, sampler or executor
    source: str  # what the user wrote
    file: str  # empty: the part's class was written in a notebook


class _GuardedPart:
    """Passes everything on to a user's part. Members of the protocol are guarded, and so are the
    judgements that a gate begins.
    """

    def __init__(
        self, origin: _Origin, part: Any, protocol: type, checks: Mapping[str, Problem]
    ) -> None:
        self._origin, self._part, self._protocol = origin, part, protocol
        self._checks = checks

    def __getattr__(self, name: str) -> Any:
        expected = inspect.getattr_static(self._protocol, name, None)
        if expected is None:
            return getattr(self._part, name)
        if isinstance(expected, property):
            with self._errors():
                value = getattr(self._part, name)
            return self._checked(name, value, expected.fget)
        call = self._await if inspect.iscoroutinefunction(expected) else self._call
        return partial(call, name, expected)

    def _call(self, name: str, expected: Any, *arguments: Any, **named: Any) -> Any:
        with self._errors():
            result = getattr(self._part, name)(*arguments, **named)
        return self._checked(name, result, expected, arguments)

    async def _await(self, name: str, expected: Any, *arguments: Any, **named: Any) -> Any:
        with self._errors():
            result = await getattr(self._part, name)(*arguments, **named)
        return self._checked(name, result, expected, arguments)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """skillfit's own errors (budget, Ctrl-C, model errors) pass through."""
        try:
            yield
        except (SkillfitError, NotMeasured):
            raise
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            frames = traceback.extract_tb(error.__traceback__)
            place = _place(frames, self._origin.file)
            hint = FIX if place == frames[-1] else f"It was raised in {_shown(frames[-1])}. {FIX}"
            raise self._failed(f"{what} ({_shown(place)})", hint) from error

    def _checked(self, name: str, result: Any, expected: Any, arguments: Sequence[Any] = ()) -> Any:
        wanted = get_type_hints(expected)["return"]
        problem = ""
        if wanted is NoneType:
            return result  # nobody reads it
        if not _is_a(result, wanted):
            found = "None" if result is None else type(result).__name__
            problem = f"{found} instead of {_type_name(wanted)}"
        elif name in self._checks:
            problem = self._checks[name](result, *arguments)
        if problem:
            raise self._failed(f"{name} gave {problem}.", "Fix its code (docs/extending.md).")
        if _is_protocol(wanted):
            return _GuardedPart(self._origin, result, wanted, self._checks)
        return result

    def _failed(self, what: str, hint: str) -> PartFailed:
        step = current_step()
        when = f" in step {step}" if step else ""
        message = f"The {self._origin.kind} {self._origin.source} failed{when}: {what}"
        return PartFailed(self._origin.kind, message, hint=hint)


def _place(frames: StackSummary, file: str) -> FrameSummary:
    """The line of the user's code that an exception comes from: the last one in the part's file,
    else the last one outside of skillfit, else the last one.
    """
    in_file = [frame for frame in frames if frame.filename == file]
    outside = [frame for frame in frames if _PACKAGE not in Path(frame.filename).parents]
    return (in_file or outside or frames)[-1]


def _shown(frame: FrameSummary) -> str:
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _is_a(value: Any, wanted: Any) -> bool:
    """Whether a value has the type of an annotation, its elements included."""
    if get_origin(wanted) in (Union, UnionType):
        return any(_is_a(value, option) for option in get_args(wanted))
    if _is_protocol(wanted):
        return not missing_members(value, wanted)
    kind = get_origin(wanted) or wanted
    if kind is wanted or not issubclass(kind, Sequence):
        return isinstance(value, Real if kind is float else kind)
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    return all(_is_a(element, get_args(wanted)[0]) for element in value)


def _is_protocol(wanted: Any) -> bool:
    return bool(getattr(wanted, "_is_protocol", False))


def _type_name(wanted: Any) -> str:
    """An annotation as people write it: `Proposals or a list of Patch`."""
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(_type_name(option) for option in get_args(wanted))
    if get_origin(wanted) is not None:
        return f"a list of {_type_name(get_args(wanted)[0])}"
    return "None" if wanted is NoneType else str(wanted.__name__)
