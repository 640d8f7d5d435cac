"""What goes wrong with a history's file, in words; a corrupt one is set aside."""

import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from mtpmon.historydatabase import APPLICATION_ID, HEADER, MOVE_AWAY, NO_DATABASE, Refused
from mtpmon.record import Operation

_HEADER_BYTES = 72  # up to and with the application id
# SQLite's own locks: whoever has a write-ahead-log database open holds a lock in this range.
_LOCK_START, _LOCK_BYTES = 0x40000000, 512


class HistoryFileError(Exception):
    """The file could not be used. ``problem`` is about the file, ``fix`` for the operator."""

    def __init__(self, operation: Operation, problem: str, fix: str) -> None:
        super().__init__(f"{operation.value}: {problem}; {fix}")
        self.operation = operation
        self.problem = problem
        self.fix = fix


def _code(error: BaseException) -> int:
    """SQLite's primary result code; Python's own errors have none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_corrupt(error: BaseException) -> bool:
    """Whether SQLite says that a file is no sound database."""
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def explained(error: Exception, path: Path) -> tuple[str, str]:
    """What is wrong, and what to do about it."""
    if isinstance(error, Refused):
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


def set_aside(path: Path) -> Path:
    """Rename a corrupt database, and its log with it, to a name that is free.

    Only what is beyond doubt ours and open nowhere: another program's file stays where it
    is, and a file that somebody writes to must not be renamed under them.

    Returns:
        Its new name.

    Raises:
        Refused: it stays.
    """
    if path.is_symlink() or not path.is_file():
        raise Refused("is corrupt, and no plain file, so it is left alone", MOVE_AWAY)
    with path.open("r+b") as file:
        header = file.read(_HEADER_BYTES)
        ours = APPLICATION_ID.to_bytes(4, "big")
        if not (header.startswith(HEADER) and header.endswith(ours)):
            raise Refused(NO_DATABASE, MOVE_AWAY)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_BYTES, _LOCK_START)
        except OSError as error:
            problem = "is corrupt and in use elsewhere, so it is left alone"
            raise Refused(problem, "end the other program that has it open") from error
        place = _renamed(path)
        # A log left behind would be taken for the new file's.
        with suppress(FileNotFoundError):
            beside(path, "-wal").rename(beside(place, "-wal"))
        with suppress(FileNotFoundError):
            beside(path, "-shm").unlink()
    return place


def _renamed(path: Path) -> Path:
    number = 1
    while True:
        place = beside(path, f".corrupt-{number}")
        try:
            os.link(path, place)  # unlike a rename, never over something that is there
        except FileExistsError:
            number += 1
            continue
        path.unlink()
        return place


def beside(path: Path, suffix: str) -> Path:
    """A file whose name is that of another and a suffix."""
    return path.with_name(path.name + suffix)
