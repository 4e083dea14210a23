"""The SQLite file of a run: opened for its one writer or for readers, with the disk's troubles put
into words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

from pydantic import TypeAdapter

from skillfit.errors import InputError
from skillfit.models.secrets import hide_keys_in_use

Redact = Callable[[str], str]

_PAGE = 500
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class Store:
    """A table of the run's SQLite file, and the sequence number of each key in it. One writer
    process; any number of readers.
    """

    _tables: ClassVar[str]
    _keyed: ClassVar[str]  # the table with `key` and `seq`

    def __init__(
        self,
        path: Path,
        *,
        redact: Redact = hide_keys_in_use,
        readonly: bool = False,
        beside: Store | None = None,
    ) -> None:
        """`beside`: another store of this file, whose connection serves both. Two would drop each
        other's pages at every write.
        """
        if beside is None:
            self._db = open_store(path, "" if readonly else self._tables, readonly=readonly)
        else:
            self._db = beside._db
            self._db.executescript(self._tables)
        self._redact = redact
        if (
            readonly
            and not self._db.execute(
                "SELECT 1 FROM sqlite_master WHERE name = ?", (self._keyed,)
            ).fetchone()
        ):
            self._db.close()
            raise InputError(
                f"{path} is empty: no run has begun there.",
                hint="Give the directory named with --run.",
            )
        # a reader looks keys up in the file, which another process may still be filling
        self._readonly = readonly
        self._known: dict[str, int] = (
            {} if readonly else dict(self._db.execute(f"SELECT key, seq FROM {self._keyed}"))
        )

    @classmethod
    def open_readonly(cls, path: Path) -> Self:
        """For faces and other processes, also while the run is alive."""
        return cls(path, readonly=True)

    @property
    def empty(self) -> bool:
        """Whether the writer has nothing in it."""
        return not self._known

    def close(self) -> None:
        self._db.close()

    def _write(self, statement: str, values: Sequence[object]) -> int:
        """Committed when it returns, with the number of the row added. On a full disk nothing is,
        and the file stays whole.
        """
        try:
            return self._db.execute(statement, values).lastrowid or 0
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in _FULL:
                raise disk_full("the journal") from error
            raise


def disk_full(where: str) -> InputError:
    return InputError(
        f"No room left on the disk while writing {where}.",
        hint="Free some space and run the same command again: everything recorded so far is kept.",
    )


def open_store(path: Path, tables: str, *, readonly: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode. WAL with synchronous=NORMAL: a committed row survives the
    death of the process.
    """
    try:
        return _connect_readonly(path) if readonly else _connect(path, tables)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in _FULL:
            raise disk_full(str(path)) from error
        raise InputError(
            f"Cannot open the journal {path}: {error}.",
            hint="Check that the run directory exists and its permissions.",
        ) from error
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"The journal {path} is damaged: {error}.",
            hint="Start a new run with --force-new; the old one is kept aside.",
        ) from error


def _connect(path: Path, tables: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.executescript(tables)
    return db


def _connect_readonly(path: Path) -> sqlite3.Connection:
    address = f"file:{quote(str(path))}?mode=ro"
    db = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
    try:
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        db.close()
        if Path(f"{path}-wal").exists():
            raise
        # A folder nobody may write to has no place for WAL's shared memory; without a WAL the file
        # is all there is.
        db = sqlite3.connect(
            f"{address}&immutable=1", uri=True, isolation_level=None, check_same_thread=False
        )
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
    return db


def in_pages(
    db: sqlite3.Connection, query: str, *arguments: object, after: int = 0
) -> Iterator[tuple[Any, ...]]:
    """Rows of a query that ends with `seq > ? ORDER BY seq LIMIT ?` and gives seq first. No cursor
    stays open between pages, so a slow reader keeps nobody from writing.
    """
    while page := db.execute(query, (*arguments, after, _PAGE)).fetchall():
        yield from page
        after = page[-1][0]


def dump(kind: Any, value: Any) -> bytes:
    return _adapter(kind).serializer.to_json(value)


def load(kind: Any, text: str | bytes) -> Any:
    return _adapter(kind).validator.validate_json(text)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)  # costs a thousand times more to build than to use
