"""The file of a history: one SQLite database, used by one thread.

What goes wrong with it is told as `HistoryFileError`, with what the operator can do; the next
use then opens it anew, so that a file which is well again is taken up again.

Committed rows survive the end of the process, SIGKILL included. A power cut may cost the
latest of them, never the file (write-ahead log, ``synchronous=NORMAL``).
"""

import fcntl
import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from mtpmon.model import Bounded, ProbeOutcome, ProbeResult
from mtpmon.record import Event, EventKind, Operation, RecordKind, Rollup

APPLICATION_ID = 0x6D74706D  # "mtpm": tells our files from other programs'
BUSY_SECONDS = 0.5

# Each entry takes a file from the schema of its index to the next one. Entries are only ever
# added: files of every earlier version exist. ``unix_seconds`` comes before what is long, so
# that looking for old rows does not read it.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE probes (
            id INTEGER PRIMARY KEY,
            server TEXT NOT NULL,
            unix_seconds REAL NOT NULL,
            outcome TEXT NOT NULL,
            task TEXT NOT NULL,
            result TEXT NOT NULL
        )""",
        "CREATE INDEX probes_by_outcome ON probes (server, outcome)",
        "CREATE INDEX probes_by_time ON probes (unix_seconds)",
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY,
            server TEXT NOT NULL,
            unix_seconds REAL NOT NULL,
            kind TEXT NOT NULL,
            before TEXT,
            after TEXT,
            detail TEXT NOT NULL
        )""",
        "CREATE INDEX events_by_time ON events (unix_seconds, server)",
        """CREATE TABLE rollups (
            id INTEGER PRIMARY KEY,
            server TEXT NOT NULL,
            unix_seconds REAL NOT NULL,
            seconds REAL NOT NULL,
            drafts REAL,
            draft_tokens REAL,
            accepted_tokens REAL,
            accepted_by_position TEXT,
            generated_tokens REAL,
            generation_seconds REAL,
            acceptance REAL,
            acceptance_lower REAL,
            acceptance_upper REAL,
            acceptance_length REAL,
            acceptance_length_lower REAL,
            acceptance_length_upper REAL
        )""",
        "CREATE INDEX rollups_by_time ON rollups (unix_seconds, server)",
    ),
)
_TABLES = ("probes", "events", "rollups")
_HEADER = b"SQLite format 3\0"
_HEADER_BYTES = 72  # up to and with the application id
# SQLite's own locks: whoever has a write-ahead-log database open holds a lock in this range.
_LOCK_START, _LOCK_BYTES = 0x40000000, 512
_OLDEST_SHARE = 16
_PAGES = 256  # in the log before they go into the file; freed at once
_NO_DATABASE = "is no database of mtpmon's, so it is left alone"
_MOVE_AWAY = "move it away, or name another file as history.path"
_NOT_OURS = "is another program's database"
_NAME_OURS = "name the file that history.path names in the configuration of mtpmon run"
_OWN_FILE = "name a file of its own as history.path"

_decoder = msgspec.json.Decoder(ProbeResult)


class HistoryFileError(Exception):
    """The file could not be used. ``problem`` is about the file, ``fix`` for the operator."""

    def __init__(self, operation: Operation, problem: str, fix: str) -> None:
        super().__init__(f"{operation.value}: {problem}; {fix}")
        self.operation = operation
        self.problem = problem
        self.fix = fix


class _Refused(Exception):  # noqa: N818 - says what happened, as `Preempted` does
    """The file is not one to write to."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


class Record(msgspec.Struct, frozen=True):
    """One row to be: what it is, its table and its values, ready to be written."""

    kind: RecordKind
    statement: str
    values: tuple[Any, ...]
    size_bytes: int


class FoundProbes(msgspec.Struct, frozen=True):
    """Probes read back, oldest first; ``unreadable`` rows were left out."""

    results: tuple[ProbeResult, ...]
    unreadable: int


class HistoryFile:
    """A history's file. All methods block, and must be called from one thread.

    Args:
        path: where it is; made if it is not there, its directory is not.
        retention_seconds: rows older than this are deleted.
        max_bytes: greatest size on disk, the write-ahead log included; the oldest rows go.
        read_only: to read what a running mtpmon writes, changing nothing.
    """

    def __init__(
        self,
        path: Path,
        *,
        retention_seconds: float = math.inf,
        max_bytes: int = 0,
        read_only: bool = False,
    ) -> None:
        self._path = path.absolute()
        self._read_only = read_only
        self._retention_seconds = retention_seconds
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        self._corrupt = False
        self.moved_to: Path | None = None

    # --- opening ------------------------------------------------------------------------

    def open(self) -> int:
        """Open it, make it if need be, bring it up to date; gives the size on disk in bytes.

        A corrupt file that is known to be ours and used by nobody is renamed to
        ``<name>.corrupt-<n>``, which ``moved_to`` then tells, and a new one is made.
        """
        with self._usable(Operation.OPEN):
            return self._size_bytes()

    def close(self) -> None:
        """Close it; it may be used again, which opens it."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            # Closing writes what is in the log into the file, which may fail as well.
            with suppress(sqlite3.Error):
                connection.close()

    @contextmanager
    def _usable(self, operation: Operation) -> Iterator[sqlite3.Connection]:
        """The open connection; turns whatever goes wrong with the file into one error."""
        doing = Operation.OPEN
        try:
            if self._connection is None:
                self._connection = self._opened()
            doing = operation
            yield self._connection
        except (sqlite3.Error, OSError, _Refused) as error:
            self._corrupt |= _is_corrupt(error)
            self.close()
            problem, fix = _explained(error, self._path)
            raise HistoryFileError(doing, problem, fix) from error

    def _opened(self) -> sqlite3.Connection:
        if self._read_only:
            return self._connected_to_read()
        if not self._corrupt:
            try:
                return self._connected()
            except sqlite3.DatabaseError as error:
                if not _is_corrupt(error):
                    raise
                self._corrupt = True
        self.moved_to = _set_aside(self._path)
        self._corrupt = False
        return self._connected()

    def _connected(self) -> sqlite3.Connection:
        if self._path.exists() and not self._path.is_file():
            raise _Refused("is not a file", _OWN_FILE)
        # SQLite takes a file of a few bytes for an empty one, and would write over it.
        if self._path.exists() and not _may_be_database(self._path):
            raise _Refused(_NO_DATABASE, _MOVE_AWAY)
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.text_factory = _lenient
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connected_to_read(self) -> sqlite3.Connection:
        if not self._path.is_file():
            raise _Refused("is not there", _NAME_OURS)
        if not _may_be_database(self._path):
            raise _Refused(_NO_DATABASE, _NAME_OURS)
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
        connection.text_factory = _lenient
        try:
            _check_readable(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    # --- writing ------------------------------------------------------------------------

    def write(self, records: Sequence[Record]) -> int:
        """Add rows, all or none of them; gives the size on disk in bytes."""
        with self._usable(Operation.WRITE) as connection:
            with _transaction(connection):
                for record in records:
                    connection.execute(record.statement, record.values)
            return self._size_bytes()

    def trim(self, unix_seconds: float, stop: Callable[[], bool] = lambda: False) -> int:
        """Delete what is too old; if the file is too large, the oldest of each kind as well.

        Args:
            unix_seconds: now.
            stop: asked from time to time; true to leave the rest for another time.

        Returns:
            The size on disk in bytes.
        """
        with self._usable(Operation.TRIM) as connection:
            with _transaction(connection):
                for table in _TABLES:
                    connection.execute(
                        f"DELETE FROM {table} WHERE unix_seconds < ?",  # noqa: S608
                        (unix_seconds - self._retention_seconds,),
                    )
            if self._size_bytes() > self._max_bytes:
                # To three quarters, so that it is not done again for each row.
                most = self._max_bytes * 3 // 4
                while _used_bytes(connection) > most and not stop() and _thin(connection):
                    pass
            while _pragma(connection, "freelist_count") and not stop():
                # Fetched: each step of the statement frees a page.
                connection.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return self._size_bytes()

    def _size_bytes(self) -> int:
        """What the database and its log take on disk."""
        total = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                total += _beside(self._path, suffix).stat().st_size
        return total

    # --- reading ------------------------------------------------------------------------

    def servers(self) -> tuple[str, ...]:
        """All that something is known of, in the order of their names."""
        each = " UNION ".join(f"SELECT server FROM {table}" for table in _TABLES)  # noqa: S608
        with self._usable(Operation.READ) as connection:
            rows = connection.execute(f"{each} ORDER BY 1").fetchall()
        return tuple(name for (name,) in rows)

    def probes(
        self,
        server: str,
        outcomes: Iterable[ProbeOutcome],
        limit: int,
        *,
        since_unix_seconds: float = 0.0,
    ) -> FoundProbes:
        """The latest probes of a server that ended in one of ``outcomes``."""
        wanted = [outcome.value for outcome in outcomes]
        marks = ", ".join("?" * len(wanted))
        with self._usable(Operation.READ) as connection:
            rows = connection.execute(
                "SELECT result FROM probes"  # noqa: S608
                f" WHERE server = ? AND outcome IN ({marks}) AND unix_seconds >= ?"
                " ORDER BY id DESC LIMIT ?",
                (server, *wanted, since_unix_seconds, limit),
            ).fetchall()
        results = []
        for (text,) in reversed(rows):
            # A record of another version may lack what this one cannot do without.
            with suppress(msgspec.MsgspecError, TypeError):
                results.append(_decoder.decode(text))
        return FoundProbes(tuple(results), len(rows) - len(results))

    def events(self, server: str, since_unix_seconds: float) -> tuple[Event, ...]:
        """A server's changes, oldest first; kinds this version does not know are left out."""
        with self._usable(Operation.READ) as connection:
            rows = connection.execute(
                "SELECT unix_seconds, kind, before, after, detail FROM events"
                " WHERE server = ? AND unix_seconds >= ? ORDER BY unix_seconds, id",
                (server, since_unix_seconds),
            ).fetchall()
        known = {kind.value: kind for kind in EventKind}
        return tuple(
            Event(
                server=server,
                unix_seconds=unix_seconds,
                kind=known[kind],
                before=before,
                after=after,
                detail=detail,
            )
            for unix_seconds, kind, before, after, detail in rows
            if kind in known
        )

    def rollups(self, server: str, since_unix_seconds: float) -> tuple[Rollup, ...]:
        """A server's rollups, oldest first."""
        names = ", ".join(_ROLLUP_COLUMNS)
        with self._usable(Operation.READ) as connection:
            rows = connection.execute(
                f"SELECT {names} FROM rollups"  # noqa: S608
                " WHERE server = ? AND unix_seconds >= ? ORDER BY unix_seconds, id",
                (server, since_unix_seconds),
            ).fetchall()
        return tuple(_rollup(dict(zip(_ROLLUP_COLUMNS, row, strict=True))) for row in rows)


# --- rows -------------------------------------------------------------------------------------

_COUNTS = ("drafts", "draft_tokens", "accepted_tokens", "generated_tokens", "generation_seconds")
_BOUNDED = ("acceptance", "acceptance_length")
_ROLLUP_COLUMNS = (
    "server",
    "unix_seconds",
    "seconds",
    *_COUNTS,
    "accepted_by_position",
    *(f"{name}{part}" for name in _BOUNDED for part in ("", "_lower", "_upper")),
)


def probe_record(result: ProbeResult) -> Record:
    """A probe as a row: JSON, and beside it what is searched for."""
    text = msgspec.json.encode(result).decode()
    return _record(
        RecordKind.PROBE,
        "probes",
        {
            "server": result.server,
            "unix_seconds": result.unix_seconds,
            "outcome": result.outcome.value,
            "task": result.task,
            "result": text,
        },
        size_bytes=len(text),
    )


def event_record(event: Event) -> Record:
    """A change as a row."""
    values = {**msgspec.structs.asdict(event), "kind": event.kind.value}
    return _record(RecordKind.EVENT, "events", values)


def rollup_record(rollup: Rollup) -> Record:
    """A minute of traffic as a row."""
    values: dict[str, Any] = {
        name: getattr(rollup, name) for name in ("server", "unix_seconds", "seconds", *_COUNTS)
    }
    if rollup.accepted_by_position is not None:
        values["accepted_by_position"] = json.dumps(rollup.accepted_by_position)
    for name in _BOUNDED:
        found: Bounded | None = getattr(rollup, name)
        if found is not None:
            values[name] = found.value
            values[f"{name}_lower"], values[f"{name}_upper"] = found.lower, found.upper
    return _record(RecordKind.ROLLUP, "rollups", values)


def _record(kind: RecordKind, table: str, values: dict[str, Any], *, size_bytes: int = 0) -> Record:
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608
    return Record(kind, statement, tuple(values.values()), size_bytes + len(statement))


def _rollup(row: dict[str, Any]) -> Rollup:
    positions = row["accepted_by_position"]
    return Rollup(
        **{name: row[name] for name in ("server", "unix_seconds", "seconds", *_COUNTS)},
        acceptance=_bounded(row, "acceptance"),
        acceptance_length=_bounded(row, "acceptance_length"),
        accepted_by_position=None if positions is None else tuple(json.loads(positions)),
    )


def _bounded(row: dict[str, Any], name: str) -> Bounded | None:
    if row[name] is None:
        return None
    return Bounded(row[name], row[f"{name}_lower"], row[f"{name}_upper"])


# --- the database -----------------------------------------------------------------------------


def _prepare(connection: sqlite3.Connection) -> None:
    """Make sure that the database is ours, of a schema we know, and can be written to."""
    application, version = _pragma(connection, "application_id"), _schema_of(connection)
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if application != APPLICATION_ID and (application or version or tables):
        raise _Refused(_NOT_OURS, _OWN_FILE)
    if not tables:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise _Refused(
            f"cannot have a write-ahead log, only {mode!r}", "put history.path on a local disk"
        )
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {1024**2}")
    with _transaction(connection):  # writes each time: finds out whether that can be done
        version = _schema_of(connection)  # again: another process may have been faster
        for statement in chain.from_iterable(MIGRATIONS[version:]):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _check_readable(connection: sqlite3.Connection) -> None:
    """Refuse what is not ours, or older than what we read."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise _Refused(_NOT_OURS, _NAME_OURS)
    if (version := _schema_of(connection)) < len(MIGRATIONS):
        raise _Refused(
            f"has schema {version}, this mtpmon reads {len(MIGRATIONS)}",
            "start mtpmon run with it once, which brings it up to date",
        )


def _schema_of(connection: sqlite3.Connection) -> int:
    version = _pragma(connection, "user_version")
    if version > len(MIGRATIONS):
        raise _Refused(
            f"was written by a newer mtpmon: its schema is {version},"
            f" this one knows up to {len(MIGRATIONS)}",
            "update mtpmon, or name another file as history.path",
        )
    return version


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # some errors have rolled it back already
            connection.execute("ROLLBACK")
        raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")


def _thin(connection: sqlite3.Connection) -> bool:
    """Delete the oldest sixteenth of each table, in the order of writing; false if all is gone.

    Not by time: one wrong clock would take everything with it.
    """
    deleted = 0
    with _transaction(connection):
        for table in _TABLES:
            first, last = connection.execute(
                f"SELECT min(id), max(id) FROM {table}"  # noqa: S608
            ).fetchone()
            if first is not None:
                share = (last - first) // _OLDEST_SHARE
                deleted += connection.execute(
                    f"DELETE FROM {table} WHERE id <= ?",  # noqa: S608
                    (first + share,),
                ).rowcount
    return deleted > 0


# --- what goes wrong --------------------------------------------------------------------------


def _code(error: BaseException) -> int:
    """SQLite's primary result code; Python's own errors have none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_corrupt(error: BaseException) -> bool:
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _explained(error: Exception, path: Path) -> tuple[str, str]:
    """What is wrong, and what to do about it."""
    if isinstance(error, _Refused):
        return error.problem, error.fix
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "is locked", "find out which program holds it, and end that"
        case sqlite3.SQLITE_FULL:
            return "the disk is full", "free space, or lower history.max_bytes"
        case sqlite3.SQLITE_READONLY:
            return "is read-only", "let mtpmon's user write to it and to its directory"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return f"is corrupt: {error}", "it will be moved aside if that is safe"
        case sqlite3.SQLITE_CANTOPEN if not path.parent.is_dir():
            return "its directory is not there", f"make the directory {path.parent}"
        case sqlite3.SQLITE_CANTOPEN:
            return (
                f"cannot be opened: {error}",
                "let mtpmon's user write to it and to its directory",
            )
    return f"cannot be used: {error}", "see whether its disk is well"


def _lenient(text: bytes) -> str:
    """One bad byte must cost one record, not all that are read with it."""
    return text.decode("utf-8", "replace")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _may_be_database(path: Path) -> bool:
    """Whether a file is empty or begins as SQLite's files do."""
    with path.open("rb") as file:
        return file.read(len(_HEADER)) in (b"", _HEADER)


def _set_aside(path: Path) -> Path:
    """Rename a corrupt database, and its log with it, to a name that is free.

    Only what is beyond doubt ours and open nowhere: another program's file stays where it
    is, and a file that somebody writes to must not be renamed under them.

    Returns:
        Its new name.

    Raises:
        _Refused: it stays.
    """
    if path.is_symlink() or not path.is_file():
        raise _Refused("is corrupt, and no plain file, so it is left alone", _MOVE_AWAY)
    with path.open("r+b") as file:
        header = file.read(_HEADER_BYTES)
        ours = APPLICATION_ID.to_bytes(4, "big")
        if not (header.startswith(_HEADER) and header.endswith(ours)):
            raise _Refused(_NO_DATABASE, _MOVE_AWAY)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_BYTES, _LOCK_START)
        except OSError as error:
            problem = "is corrupt and in use elsewhere, so it is left alone"
            raise _Refused(problem, "end the other program that has it open") from error
        place = _renamed(path)
        # A log left behind would be taken for the new file's.
        with suppress(FileNotFoundError):
            _beside(path, "-wal").rename(_beside(place, "-wal"))
        with suppress(FileNotFoundError):
            _beside(path, "-shm").unlink()
    return place


def _renamed(path: Path) -> Path:
    number = 1
    while True:
        place = _beside(path, f".corrupt-{number}")
        try:
            os.link(path, place)  # unlike a rename, never over something that is there
        except FileExistsError:
            number += 1
            continue
        path.unlink()
        return place
