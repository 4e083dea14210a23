"""Events as JSON lines, for anything that has no tracker of its own here."""

from __future__ import annotations

import json
import os
from pathlib import Path

from skillfit.errors import InputError
from skillfit.run.events import RunStarted, Stored, as_json

_BEGINNING = b'{"seq": '  # of every line


class JsonLines:
    """Appends each event of one run once: a resumed run tells its past again, and what stands in
    the file is not written twice.
    """

    def __init__(self, where: str) -> None:
        if not where:
            raise InputError(
                "The tracker jsonl needs a file.", hint="For example --track jsonl:events.jsonl"
            )
        self._path = path = Path(where)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        if any(line[: len(_BEGINNING)] != _BEGINNING[: len(line)] for line in lines):
            raise InputError(f"{path} holds other things than events.", hint="Give another file.")
        whole = [line for line in lines if line.endswith(b"\n")]  # a kill may have left half a line
        events = [json.loads(line) for line in whole]
        self._known = {event["seq"] for event in events}
        self._run = next(
            (event["run"] for event in events if event["kind"] == RunStarted.__name__), ""
        )
        self._file = path.open("r+b" if path.is_file() else "w+b")
        self._file.truncate(sum(map(len, whole)))
        self._file.seek(0, os.SEEK_END)

    def __call__(self, stored: Stored) -> None:
        if isinstance(stored.event, RunStarted):
            self._run = self._run or stored.event.run
            if self._run != stored.event.run:
                raise InputError(
                    f"{self._path} holds the events of another run ({self._run}).",
                    hint="Give each run its own file.",
                )
        if stored.seq not in self._known:
            self._known.add(stored.seq)
            self._file.write(json.dumps(as_json(stored), ensure_ascii=False).encode() + b"\n")
            self._file.flush()
