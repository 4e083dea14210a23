"""Keep finished runs in a folder, so that a measurement can be stopped and continued."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept:
    """Results by key. Without a folder every result is computed again."""

    folder: Path | None = None

    def get(self, kind: Callable[..., T], key: tuple[object, ...], make: Callable[[], T]) -> T:
        """The result kept under `key`, or a new one. `kind` is its dataclass."""
        if self.folder is None:
            return make()
        path = self.folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}.json"
        if path.exists():
            return kind(**json.loads(path.read_text(encoding="utf-8")))
        result: Any = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(asdict(result)), encoding="utf-8")
        draft.rename(path)
        return kind(**asdict(result))


NOTHING_KEPT = Kept()
