"""The storage of a run: one writer, many readers.

`RunLock` holds a run directory for one process. It is a lock of the operating system, which ends
with its process. `in_use` asks whether a process holds it.

`RunDatabase` is the SQLite file of a run: one writing connection, or read-only connections for
everybody else. It owns one connection and is the only code that touches `sqlite3`. It gives three
guarantees that the journal and the event log rely on:

- **Threads.** Every statement runs under a lock and fetches all its rows before it returns. Several
  threads may share a database; `close` waits for the statement in progress and may be called
  twice; a statement after `close` raises `RunClosed`. For reads in parallel, open one per thread.
- **The first failed write is the last one.** A full disk, a file system that became read-only or a
  deleted run directory puts the database into a failed state. From then on each write, and each
  `ensure_writable` before new work, raises the same error.
- **Errors name the run** and what to do: `RunNotWritable`, `DamagedRun`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar
from urllib.parse import quote

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from skillfit.errors import InputError, SkillfitError
from skillfit.models.secrets import hide_keys_in_use

T = TypeVar("T")
Redact = Callable[[str], str]

FORMAT = 1  # of a run's tables and records: count up when older ones cannot be read any more
JOURNAL = "journal.sqlite"
DATABASE = (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", f"{JOURNAL}-journal")
LOCK = "run.lock"
CONFIG_FILE = "config.json"
FEEDBACK = "feedback.json"  # what people said about answers, where a run is exported
HANDOFF = "handoff"  # the folder of a run where prompts wait for their answers
UNPROVEN_SKILL = "unproven_skill.md"
_PATIENCE = 0.3  # seconds: longer than `in_use` in another process holds the lock
_PAGE = 500  # rows per page of `in_pages`
_AHEAD = 100  # numbers that `ReadAhead` fetches together
_KEPT_AHEAD = 10 * _AHEAD
_CLOSING_TIMEOUT_MS = 200  # how long closing waits for readers before it leaves the WAL file
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# A table that was removed, or a record that was changed.
_BAD_CONTENT = re.compile(r"no such (table|column)|malformed JSON|Could not decode to UTF-8")
_NOT_WRITABLE = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)


class RunNotWritable(InputError):
    """The run's files cannot be written any more. Everything recorded before is kept."""


class DamagedRun(InputError):
    """The run's journal cannot be read: it was truncated or overwritten by something else."""


class RunClosed(SkillfitError):
    """The run was closed while it was still in use."""


class RunLock:
    """Holds a run directory for this process. The lock file says which process that is."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK
        self._lock = FileLock(self._path, thread_local=False, on_acquired=_write_holder)
        try:
            self._lock.acquire(timeout=_PATIENCE)
        except Timeout as error:
            raise InputError(
                f"The run in {directory} is in use by {_read_holder(self._path) or 'a process'}.",
                hint="Wait for it, or end it. A new run needs another directory.",
            ) from error

    def release(self) -> None:
        self._lock.release()

    def remove(self) -> None:
        """Release the lock and delete its file."""
        if os.name == "nt":  # there an open file cannot be deleted
            self.release()
        self._path.unlink(missing_ok=True)
        self.release()


def in_use(directory: Path) -> bool:
    """Return whether a process writes this run now. Changes nothing."""
    path = directory / LOCK
    if not path.is_file():
        return False
    holder = _read_holder(path)
    if holder is not None and holder.is_dead():
        return False  # without touching the lock, which a run that starts now could be taking
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    except PermissionError:  # the run of another user, or on a read-only disk
        return False
    lock.release()
    return False


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a run, or held it last."""

    pid: int
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_here(self) -> bool:
        """Return whether that process is one of this machine."""
        return self.host == socket.gethostname()

    def is_dead(self) -> bool:
        """Return whether that process is known to have ended."""
        if os.name == "nt" or not self.is_here():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            return False
        return False


def read_holder(directory: Path) -> Holder | None:
    """Return the process that holds the run in a directory, or held it last; None where none is
    known.
    """
    return _read_holder(directory / LOCK)


def _write_holder(descriptor: int) -> None:
    # The first byte stays blank: on Windows it is the locked one, which others cannot read.
    text = f" {json.dumps({'pid': os.getpid(), 'host': socket.gethostname()})}"
    os.ftruncate(descriptor, 0)
    os.write(descriptor, text.encode())


def _read_holder(path: Path) -> Holder | None:
    """Return the last holder; None where the file does not say."""
    try:
        with path.open("rb") as file:
            file.seek(1 if os.name == "nt" else 0)
            holder = json.loads(file.read())
        return Holder(int(holder["pid"]), str(holder["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Rows:
    """The complete result of a statement."""

    def __init__(self, rows: list[Any], last_id: int) -> None:
        self._rows = rows
        self.last_id = last_id

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)


class RunDatabase:
    """One connection to the SQLite file of a run, safe to share between threads."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self.readonly = readonly
        self._lock = threading.RLock()
        self._failure: SkillfitError | None = None
        self._on_failure: list[Callable[[SkillfitError], None]] = []
        self._connection: sqlite3.Connection | None
        try:
            self._connection = _connect_readonly(path) if readonly else _connect(path)
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from error
        self._files = _file_state(path) or _FileState(0, 0, 0, None)
        try:
            self._require_format()
        except BaseException:
            self._connection.close()
            raise

    def _require_format(self) -> None:
        """Raise for a run that this version cannot read. A new file gets this version's number."""
        found = self.execute("PRAGMA user_version").fetchone()[0]
        if found == FORMAT:
            return
        if self.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise InputError(
                f"The run in {self.path.parent} was recorded by another version of skillfit: "
                f"its format is {found}, and this version reads format {FORMAT}.",
                hint="Use that version, or start a new run in another directory with --run.",
            )
        if not self.readonly:
            self.execute(f"PRAGMA user_version = {FORMAT}")

    def execute(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """Run one statement. Writes go through `write`, which checks that they can be kept."""
        with self._lock:
            if self._connection is None:
                raise RunClosed(f"The run in {self.path.parent} was closed.")
            try:
                cursor = self._connection.execute(statement, values)
                return Rows(cursor.fetchall(), cursor.lastrowid or 0)
            except sqlite3.DatabaseError as error:
                raise self._explained(error) from error

    def create(self, tables: str) -> None:
        """Create what is missing of these tables."""
        with self._lock:
            for statement in filter(str.strip, tables.split(";")):
                self.execute(statement)

    def write(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run a statement and commit it; the id of the row added. After the first failure every
        further write raises the same error.
        """
        if self.readonly:
            raise RunNotWritable(f"{self.path} was opened for reading only.")
        self.ensure_writable()
        try:
            written = self.execute(statement, values).last_id
        except InputError as error:
            self.fail(error)
            raise
        # SQLite does not notice that its file was deleted: it keeps writing to the deleted file.
        self.ensure_writable()
        return written

    def ensure_writable(self) -> None:
        """Raise if an earlier write failed, or the file is no longer where it was opened. Ask
        this before work that would be lost if it could not be recorded.
        """
        if self._failure is None and not self.readonly:
            found = _file_state(self.path)
            if found is None or found[:2] != self._files[:2]:
                self.fail(
                    RunNotWritable(
                        f"The run directory {self.path.parent} was deleted or moved during the "
                        "run.",
                        hint="Nothing more was sent. Put it back and run the same command again, "
                        "or start a new run.",
                    )
                )
            elif found.was_cut(self._files):
                self.fail(damaged(self.path, "something else cut it off during the run"))
            else:
                self._files = found
        if self._failure is not None:
            raise self._failure

    def fail(self, error: SkillfitError) -> None:
        """Enter the failed state: nothing can be recorded any more, because of `error`."""
        if self._failure is None:
            self._failure = error
            for listener in self._on_failure:
                listener(error)

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def on_failure(self, listener: Callable[[SkillfitError], None]) -> None:
        """Call `listener` once if a write fails."""
        self._on_failure.append(listener)

    def close(self) -> None:
        """Wait for the statement in progress and close. The writer leaves one complete file: no
        WAL beside it, unless a reader still uses that.
        """
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is None:
                return
            try:
                if not self.readonly and not self.failed:
                    _fold_wal_in(connection)
            finally:
                connection.close()

    def _explained(self, error: sqlite3.DatabaseError) -> Exception:
        """Return the error in words, where it is about the file and not about the statement."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return disk_full(str(self.path))
        # The one writer never breaks a constraint of its own tables.
        broken = isinstance(error, sqlite3.IntegrityError)
        if broken or code in _DAMAGED or _BAD_CONTENT.search(str(error)):
            return damaged(self.path, str(error))
        if code == sqlite3.SQLITE_BUSY:
            return InputError(
                f"The journal {self.path} is locked by another program.",
                hint="Close the program that has it open, and run the same command again.",
            )
        if code in _NOT_WRITABLE:
            return RunNotWritable(
                f"Cannot access the journal {self.path}: {error}.",
                hint="Check that the directory exists, its permissions, and free space and quota "
                "of the disk. Everything recorded so far is kept.",
            )
        return error


class Store:
    """A table of the run's database, and the sequence number of each key in it."""

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
        """Open the file. `beside`: another store of this file, whose connection serves both. Two
        connections would discard each other's cached pages at every write.
        """
        self._db: RunDatabase = (
            RunDatabase(path, readonly=readonly) if beside is None else beside._db
        )
        self._redact = redact
        self._readonly = readonly
        if readonly:
            self._require_table(path)
        else:
            self._db.create(self._tables)
        # A reader looks keys up in the file, which another process may still be filling.
        self._known: dict[str, int] = (
            {} if readonly else dict(self._db.execute(f"SELECT key, seq FROM {self._keyed}"))
        )

    def _require_table(self, path: Path) -> None:
        query = "SELECT 1 FROM sqlite_master WHERE name = ?"
        if not self._db.execute(query, (self._keyed,)).fetchone():
            self._db.close()
            if others := other_files(path.parent):
                raise emptied(path, others)
            raise InputError(
                f"{path} is empty: no run was started there.",
                hint="Give the directory named with --run.",
            )

    @classmethod
    def open_readonly(cls, path: Path) -> Self:
        """Open the file for other processes and threads, also while the run is being written."""
        return cls(path, readonly=True)

    @property
    def path(self) -> Path:
        return self._db.path

    @property
    def empty(self) -> bool:
        """Whether the writer has recorded nothing."""
        return not self._known

    def newest(self) -> int:
        """Return the number of the last record, 0 when there is none."""
        return int(self._db.execute(f"SELECT max(seq) FROM {self._keyed}").fetchone()[0] or 0)

    @property
    def failed(self) -> bool:
        """Whether a write failed: nothing more can be recorded."""
        return self._db.failed

    def ensure_writable(self) -> None:
        """Raise if what is done next could not be recorded."""
        self._db.ensure_writable()

    def fail(self, error: SkillfitError) -> None:
        """Record nothing more, because of `error`."""
        self._db.fail(error)

    def on_failure(self, listener: Callable[[SkillfitError], None]) -> None:
        """Call `listener` once if a write fails."""
        self._db.on_failure(listener)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Show everything read inside as of one moment, also while another process writes."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()

    def _decoded(self, kind: type[T], data: str | bytes, what: str) -> T:
        """Parse a record as a value of this type. What cannot be read is a `DamagedRun`."""
        try:
            return load(kind, data)
        except (TypeError, ValueError) as error:  # ValidationError is a ValueError
            raise damaged(self.path, f"{what} cannot be read") from error

    def _require_text(self, *columns: object) -> None:
        """Raise `DamagedRun` unless these columns of a record are text."""
        if not all(isinstance(column, str) for column in columns):
            raise damaged(self.path, "a record has bytes in place of text")

    def _time(self, recorded: object) -> float:
        """Check that a recorded moment or duration is a number of seconds, and return it."""
        if not isinstance(recorded, int | float):
            raise damaged(self.path, "the time of a record is not a number")
        return recorded

    def _write(self, statement: str, values: Sequence[object]) -> int:
        """Execute and commit the statement; return the number of the row added."""
        return self._db.write(statement, values)


def disk_full(where: str) -> RunNotWritable:
    return RunNotWritable(
        f"No room left on the disk while writing {where}.",
        hint="Free some space and run the same command again: everything recorded so far is kept.",
    )


class _FileState(NamedTuple):
    """The file of a database, and the sizes of it and its WAL. While a writer has them open, both
    only grow, unless a checkpoint of another program empties the WAL.
    """

    device: int
    inode: int
    size: int
    wal: int | None  # None: there is no WAL

    def was_cut(self, before: _FileState) -> bool:
        if self.size < before.size or (self.wal is None and before.wal is not None):
            return True
        return 0 < (self.wal or 0) < (before.wal or 0)


def _file_state(path: Path) -> _FileState | None:
    """Return the state of a database's files; None when it is not there."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        wal: int | None = Path(f"{path}-wal").stat().st_size
    except FileNotFoundError:
        wal = None
    return _FileState(found.st_dev, found.st_ino, found.st_size, wal)


def _connect(path: Path) -> sqlite3.Connection:
    """Open a connection in autocommit mode. With WAL and synchronous=NORMAL a committed row
    survives a crash of the process.
    """
    _refuse_truncated(path)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def _connect_readonly(path: Path) -> sqlite3.Connection:
    _refuse_truncated(path)
    address = f"file:{quote(str(path))}?mode=ro"
    try:
        return _open_uri(address)
    except sqlite3.OperationalError:
        if Path(f"{path}-wal").exists():
            raise
    # A folder without write permission has no place for the WAL's shared memory. Without a WAL
    # file the database is complete as it is.
    return _open_uri(f"{address}&immutable=1")


def _open_uri(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def _refuse_truncated(path: Path) -> None:
    """Refuse a file whose end was cut off: SQLite opens it, and fails later at some page. The
    header says how many pages there must be; while a WAL exists, the rest may be in that.
    """
    wal = Path(f"{path}-wal")
    if not path.is_file() or (wal.exists() and wal.stat().st_size):
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(100)
    if size == 0 or not header.startswith(b"SQLite format 3\0"):
        return  # a new file, or one that SQLite itself refuses
    page_size = int.from_bytes(header[16:18]) or 1
    pages = int.from_bytes(header[28:32])
    if size < pages * (65536 if page_size == 1 else page_size):
        raise damaged(path, "its end is missing")


def damaged(path: Path, why: str) -> DamagedRun:
    return DamagedRun(
        f"The journal {path} is damaged: {why}.",
        hint=f"Restore {path.parent} from a copy, or start a new run with `skillfit train "
        "--force-new`; the old one is moved aside.",
    )


def emptied(path: Path, others: Sequence[str]) -> DamagedRun:
    """Return the error for a journal without records beside other files of a run."""
    are = "is" if len(others) == 1 else "are"
    return damaged(path, f"it is empty, but {', '.join(others[:3])} {are} there")


def other_files(run: Path) -> list[str]:
    """List the files that an empty run would not have created."""
    names = (entry.name for entry in run.iterdir())
    return sorted(
        name for name in names if name not in (*DATABASE, LOCK) and not name.startswith(".")
    )


def _fold_wal_in(connection: sqlite3.Connection) -> None:
    """Move what is in the WAL into the database file, and leave WAL mode so that readers of the
    finished run need no further files. Readers that are connected can prevent either; then the
    records stay in the WAL, from where the next open reads them.
    """
    connection.execute(f"PRAGMA busy_timeout={_CLOSING_TIMEOUT_MS}")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_LOCKED,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
        ):
            raise


def in_pages(
    db: RunDatabase, query: str, *arguments: object, after: int = 0
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query that ends with `seq > ? ORDER BY seq LIMIT ?` and gives seq first.
    Nothing stays open between pages, so a slow reader never blocks the writer.
    """
    while page := db.execute(query, (*arguments, after, _PAGE)).fetchall():
        yield from page
        after = page[-1][0]


class ReadAhead:
    """Rows of a table by number. A resumed run asks for its records in about the order in which
    they were recorded, so each query also fetches some of the rows that follow.

    `query` gives the number first and ends with `seq >= ? AND seq < ?`. Use it for rows that never
    change.
    """

    def __init__(self, db: RunDatabase, query: str) -> None:
        self._db, self._query = db, query
        self._rows: dict[int, tuple[Any, ...]] = {}

    def row(self, seq: int) -> tuple[Any, ...]:
        if seq not in self._rows:
            if len(self._rows) > _KEPT_AHEAD:  # asked for in another order: these are of no use
                self._rows.clear()
            found = self._db.execute(self._query, (seq, seq + _AHEAD))
            self._rows |= {row[0]: row for row in found}
        if seq not in self._rows:
            raise damaged(self._db.path, f"record {seq} is missing")
        return self._rows.pop(seq)


def dump(kind: type[T], value: T) -> bytes:
    return _adapter(kind).serializer.to_json(value)


def load(kind: type[T], text: str | bytes) -> T:
    value: T = _adapter(kind).validator.validate_json(text)
    return value


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)  # costs a thousand times more to build than to use
    return _ADAPTERS[kind]
