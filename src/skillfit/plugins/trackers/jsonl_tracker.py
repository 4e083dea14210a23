"""Events as JSON lines, for programs without a tracker of their own here."""

from __future__ import annotations

import json
import os
from pathlib import Path

from skillfit.errors import InputError
from skillfit.run.events import RunStarted, Stored, as_json

_LINE_START = b'{"seq": '


class JsonlTracker:
    """Appends each event of one run once. Events that are in the file already, from before a
    resume, are not written again.
    """

    def __init__(self, where: str, run: Path) -> None:
        if not where:
            raise InputError(
                "The tracker jsonl needs a file.", hint="For example --track jsonl:events.jsonl"
            )
        self._path = path = Path(where)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        if any(line[: len(_LINE_START)] != _LINE_START[: len(line)] for line in lines):
            raise InputError(
                f"{path} holds other things than events.", hint="Give another file after jsonl:."
            )
        complete = [line for line in lines if line.endswith(b"\n")]  # a kill can leave half a line
        self._known: set[int] = set()
        self._run = ""
        for line in complete:
            event = json.loads(line)
            self._known.add(event["seq"])
            if event["kind"] == RunStarted.__name__:
                self._run = event["run"]
        self._file = path.open("r+b" if path.is_file() else "w+b")
        self._file.truncate(sum(map(len, complete)))
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

    def close(self) -> None:
        self._file.close()
