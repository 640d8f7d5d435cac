"""The file of a history: one SQLite database, used by one thread.

What goes wrong with it is told as `HistoryFileError`, with what the operator can do; the next
use then opens it anew, so that a file which is well again is taken up again.

Committed rows survive the end of the process, SIGKILL included. A power cut may cost the
latest of them, never the file (write-ahead log, ``synchronous=NORMAL``).
"""

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mtpmon.historydatabase import (
    PAGES,
    TABLES,
    Refused,
    connect,
    connect_to_read,
    pragma,
    thin,
    transaction,
    used_bytes,
)
from mtpmon.historyfaults import HistoryFileError, beside, explained, is_corrupt, set_aside
from mtpmon.historyrows import (
    EVENT_COLUMNS,
    ROLLUP_COLUMNS,
    FoundProbes,
    Record,
    event_record,
    events_of,
    probe_record,
    probes_of,
    rollup_of,
    rollup_record,
)
from mtpmon.model import ProbeOutcome
from mtpmon.record import Event, Operation, Rollup

__all__ = [
    "FoundProbes",
    "HistoryFile",
    "HistoryFileError",
    "Record",
    "event_record",
    "probe_record",
    "rollup_record",
]


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
        except (sqlite3.Error, OSError, Refused) as error:
            self._corrupt |= is_corrupt(error)
            self.close()
            problem, fix = explained(error, self._path)
            raise HistoryFileError(doing, problem, fix) from error

    def _opened(self) -> sqlite3.Connection:
        if self._read_only:
            return connect_to_read(self._path)
        if not self._corrupt:
            try:
                return connect(self._path)
            except sqlite3.DatabaseError as error:
                if not is_corrupt(error):
                    raise
                self._corrupt = True
        self.moved_to = set_aside(self._path)
        self._corrupt = False
        return connect(self._path)

    # --- writing ------------------------------------------------------------------------

    def write(self, records: Sequence[Record]) -> int:
        """Add rows, all or none of them; gives the size on disk in bytes."""
        with self._usable(Operation.WRITE) as connection:
            with transaction(connection):
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
            with transaction(connection):
                for table in TABLES:
                    connection.execute(
                        f"DELETE FROM {table} WHERE unix_seconds < ?",  # noqa: S608
                        (unix_seconds - self._retention_seconds,),
                    )
            if self._size_bytes() > self._max_bytes:
                # To three quarters, so that it is not done again for each row.
                most = self._max_bytes * 3 // 4
                while used_bytes(connection) > most and not stop() and thin(connection):
                    pass
            while pragma(connection, "freelist_count") and not stop():
                # Fetched: each step of the statement frees a page.
                connection.execute(f"PRAGMA incremental_vacuum({PAGES})").fetchall()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return self._size_bytes()

    def _size_bytes(self) -> int:
        """What the database and its log take on disk."""
        total = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                total += beside(self._path, suffix).stat().st_size
        return total

    # --- reading ------------------------------------------------------------------------

    def servers(self) -> tuple[str, ...]:
        """All that something is known of, in the order of their names."""
        each = " UNION ".join(f"SELECT server FROM {table}" for table in TABLES)  # noqa: S608
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
        return probes_of([text for (text,) in reversed(rows)])

    def events(self, server: str, since_unix_seconds: float) -> tuple[Event, ...]:
        """A server's changes, oldest first; kinds this version does not know are left out."""
        names = ", ".join(EVENT_COLUMNS)
        with self._usable(Operation.READ) as connection:
            rows = connection.execute(
                f"SELECT {names} FROM events"  # noqa: S608
                " WHERE server = ? AND unix_seconds >= ? ORDER BY unix_seconds, id",
                (server, since_unix_seconds),
            ).fetchall()
        return events_of(server, rows)

    def rollups(self, server: str, since_unix_seconds: float) -> tuple[Rollup, ...]:
        """A server's rollups, oldest first."""
        names = ", ".join(ROLLUP_COLUMNS)
        with self._usable(Operation.READ) as connection:
            rows = connection.execute(
                f"SELECT {names} FROM rollups"  # noqa: S608
                " WHERE server = ? AND unix_seconds >= ? ORDER BY unix_seconds, id",
                (server, since_unix_seconds),
            ).fetchall()
        return tuple(map(rollup_of, rows))
