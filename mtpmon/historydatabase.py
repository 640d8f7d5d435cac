"""The database of a history: connecting to it if it is ours, its schema, making room in it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

BUSY_SECONDS = 0.5
APPLICATION_ID = 0x6D74706D  # "mtpm": tells our files from other programs'

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
TABLES = ("probes", "events", "rollups")
HEADER = b"SQLite format 3\0"
_OLDEST_SHARE = 16
PAGES = 256  # in the log before they go into the file; freed at once
NO_DATABASE = "is no database of mtpmon's, so it is left alone"
MOVE_AWAY = "move it away, or name another file as history.path"
_NOT_OURS = "is another program's database"
_NAME_OURS = "name the file that history.path names in the configuration of mtpmon run"
_OWN_FILE = "name a file of its own as history.path"


class Refused(Exception):  # noqa: N818 - says what happened, as `Preempted` does
    """The file is not one to write to."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


def connect(path: Path) -> sqlite3.Connection:
    """Connect to a database of ours, made if it is not there, and bring its schema up to date.

    Raises:
        Refused: the file is not ours, or cannot be used as it is.
        sqlite3.Error, OSError: it is corrupt, or the disk does not play along.
    """
    if path.exists() and not path.is_file():
        raise Refused("is not a file", _OWN_FILE)
    # SQLite takes a file of a few bytes for an empty one, and would write over it.
    if path.exists() and not _may_be_database(path):
        raise Refused(NO_DATABASE, MOVE_AWAY)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    connection.text_factory = _lenient
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Connect to a database of ours, to read what a running mtpmon writes.

    Args:
        path: absolute.

    Raises:
        Refused: it is not there, not ours, or of another schema.
        sqlite3.Error, OSError: it is corrupt, or the disk does not play along.
    """
    if not path.is_file():
        raise Refused("is not there", _NAME_OURS)
    if not _may_be_database(path):
        raise Refused(NO_DATABASE, _NAME_OURS)
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None
    )
    connection.text_factory = _lenient
    try:
        _check_readable(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _lenient(text: bytes) -> str:
    """One bad byte must cost one record, not all that are read with it."""
    return text.decode("utf-8", "replace")


def _may_be_database(path: Path) -> bool:
    """Whether a file is empty or begins as SQLite's files do."""
    with path.open("rb") as file:
        return file.read(len(HEADER)) in (b"", HEADER)


def _prepare(connection: sqlite3.Connection) -> None:
    """Make sure that the database is ours, of a schema we know, and can be written to."""
    application, version = pragma(connection, "application_id"), _schema_of(connection)
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if application != APPLICATION_ID and (application or version or tables):
        raise Refused(_NOT_OURS, _OWN_FILE)
    if not tables:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise Refused(
            f"cannot have a write-ahead log, only {mode!r}", "put history.path on a local disk"
        )
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {1024**2}")
    with transaction(connection):  # writes each time: finds out whether that can be done
        version = _schema_of(connection)  # again: another process may have been faster
        for statement in chain.from_iterable(MIGRATIONS[version:]):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _check_readable(connection: sqlite3.Connection) -> None:
    """Refuse what is not ours, or older than what we read."""
    if pragma(connection, "application_id") != APPLICATION_ID:
        raise Refused(_NOT_OURS, _NAME_OURS)
    if (version := _schema_of(connection)) < len(MIGRATIONS):
        raise Refused(
            f"has schema {version}, this mtpmon reads {len(MIGRATIONS)}",
            "start mtpmon run with it once, which brings it up to date",
        )


def _schema_of(connection: sqlite3.Connection) -> int:
    version = pragma(connection, "user_version")
    if version > len(MIGRATIONS):
        raise Refused(
            f"was written by a newer mtpmon: its schema is {version},"
            f" this one knows up to {len(MIGRATIONS)}",
            "update mtpmon, or name another file as history.path",
        )
    return version


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is done within, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # some errors have rolled it back already
            connection.execute("ROLLBACK")
        raise


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """One of SQLite's numbers about a database."""
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def used_bytes(connection: sqlite3.Connection) -> int:
    """What the pages that hold something take, the log left out."""
    pages = pragma(connection, "page_count") - pragma(connection, "freelist_count")
    return pages * pragma(connection, "page_size")


def thin(connection: sqlite3.Connection) -> bool:
    """Delete the oldest sixteenth of each table, in the order of writing; false if all is gone.

    Not by time: one wrong clock would take everything with it.
    """
    deleted = 0
    with transaction(connection):
        for table in TABLES:
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
