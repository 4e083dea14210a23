"""Events as JSON lines, for anything that has no tracker of its own here."""

from __future__ import annotations

import json
from pathlib import Path

from skillfit.errors import InputError
from skillfit.run.events import Stored, as_json


class JsonLines:
    """Appends each event once: a resumed run tells its past again, and what stands in the file is not written twice."""

    def __init__(self, where: str) -> None:
        if not where:
            raise InputError("The tracker jsonl needs a file.", hint="For example --track jsonl:events.jsonl")
        path = Path(where)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_bytes() if path.is_file() else b""
        whole = whole[: whole.rfind(b"\n") + 1]  # a kill may have left half a line
        self._known = {json.loads(line)["seq"] for line in whole.splitlines()}
        self._file = path.open("r+b" if path.is_file() else "w+b")
        self._file.truncate(len(whole))
        self._file.seek(len(whole))

    def __call__(self, stored: Stored) -> None:
        if stored.seq not in self._known:
            self._known.add(stored.seq)
            self._file.write(json.dumps(as_json(stored), ensure_ascii=False).encode() + b"\n")
            self._file.flush()
