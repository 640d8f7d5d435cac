"""What is kept on disk, what comes back, and what happens when the disk does not play along."""

import asyncio
import contextlib
import multiprocessing
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

import mtpmon.historydatabase
import mtpmon.historyfile
from mtpmon.board import ServerBoard
from mtpmon.config import Address, Config, Listen, Probe, Scrape, Server
from mtpmon.config import History as HistoryConfig
from mtpmon.daemon import Daemon
from mtpmon.demo.server import LlamaServer
from mtpmon.history import History
from mtpmon.model import (
    Amount,
    Bounded,
    Outcome,
    ProbeOutcome,
    ProbeResult,
    Props,
    State,
)
from mtpmon.record import Event, EventKind, Mark, Operation, RecordKind, Rollup, changes, rollup
from mtpmon.window import Evidence
from tests.history_writer import DAY, MIB, NOW, history, opened, result, write_probes
from tests.test_board import OWN, SETTINGS, failed, scrape, seen
from tests.test_watch import until

MAGIC = b"SQLite format 3\0"


EVENT = Event(
    server="a",
    unix_seconds=NOW,
    kind=EventKind.BUILD,
    before="b1",
    after="b2",
    detail="x",
)
ROLLUP = Rollup(
    server="a",
    unix_seconds=NOW,
    seconds=60.0,
    drafts=10.0,
    draft_tokens=30.0,
    accepted_tokens=10.0,
    accepted_by_position=(7, 3, 0),
    generated_tokens=21.0,
    generation_seconds=1.0,
    acceptance=Bounded(1 / 3, 0.2, 0.5),
    acceptance_length=Bounded(2.0, 1.6, 2.5),
)


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, looked at from outside."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def names(results: tuple[ProbeResult, ...]) -> list[str]:
    return [found.prompt_id for found in results]


def count(path: Path, table: str) -> int:
    with database(path) as connection:
        number: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
    return number


# --- what comes back ---


async def test_what_is_recorded_comes_back(tmp_path: Path) -> None:
    """Probes, changes and rollups are read as they were written, after a restart as well."""
    path = tmp_path / "history.db"
    async with opened(path) as kept:
        kept.record_probe(result(1))
        kept.record_event(EVENT)
        kept.record_rollup(ROLLUP)
        bare = Rollup(server="a", unix_seconds=NOW + 60, seconds=60.0)
        kept.record_rollup(bare)
        assert await kept.recent_probes("a", 10) == (result(1),)
    async with opened(path) as kept:
        assert await kept.recent_probes("a", 10) == (result(1),)
        assert await kept.events("a", NOW) == (EVENT,)
        assert await kept.rollups("a", NOW) == (ROLLUP, bare)
        assert await kept.rollups("a", NOW + 1) == (bare,)
        assert await kept.events("b", NOW) == ()
        figures = kept.figures()
    assert figures.usable
    assert figures.size_bytes is not None
    assert figures.size_bytes > 0
    assert not figures.errors
    assert not figures.dropped


async def test_the_latest_probes_come_back_in_order(tmp_path: Path) -> None:
    """Of one server, of the outcomes asked for, oldest first, no more than asked for."""
    async with opened(tmp_path / "history.db") as kept:
        for number in range(6):
            kept.record_probe(result(number))
            kept.record_probe(result(number, server="b"))
            kept.record_probe(result(10 + number, outcome=ProbeOutcome.TIMEOUT))
        assert names(await kept.recent_probes("a", 3)) == ["p3", "p4", "p5"]
        wrong = (ProbeOutcome.FAILED, ProbeOutcome.TIMEOUT)
        assert names(await kept.recent_probes("a", 2, outcomes=wrong)) == ["p14", "p15"]
        assert await kept.recent_probes("c", 3) == ()


async def test_a_record_of_another_version_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """Unknown fields are passed over, missing ones get defaults; what cannot be is left out."""
    path = tmp_path / "history.db"
    async with opened(path) as kept:
        for number in range(4):
            kept.record_probe(result(number))
    with database(path) as connection:
        for key, change in (
            (1, "json_set(result, '$.of_later', json('[1]'))"),
            (2, "json_remove(result, '$.positions', '$.after_speculation')"),
            (3, "json_remove(result, '$.duration_seconds')"),
        ):
            connection.execute(f"UPDATE probes SET result = {change} WHERE id = ?", (key,))  # noqa: S608
    with capture_logs() as logs:
        async with opened(path) as kept:
            found = await kept.recent_probes("a", 10)
            assert kept.figures().errors == {Operation.READ: 1}
            assert kept.figures().usable
    older = msgspec.structs.replace(result(1), positions=None, after_speculation=())
    assert found == (result(0), older, result(3))
    assert [(log["event"], log["records"]) for log in logs] == [("history_records_skipped", 1)]


async def test_a_bad_byte_costs_one_record(tmp_path: Path) -> None:
    """Text that is not UTF-8 does not keep the others from being read."""
    path = tmp_path / "history.db"
    async with opened(path) as kept:
        kept.record_probe(result(0))
        kept.record_probe(result(1))
    with database(path) as connection:
        connection.execute("UPDATE probes SET result = CAST(x'ff7b' AS TEXT) WHERE id = 1")
    async with opened(path) as kept:
        assert names(await kept.recent_probes("a", 10)) == ["p1"]


async def test_changes_of_a_kind_of_later_are_passed_over(tmp_path: Path) -> None:
    """A newer version may have written them into the same schema."""
    path = tmp_path / "history.db"
    async with opened(path) as kept:
        kept.record_event(EVENT)
    with database(path) as connection:
        connection.execute(
            "INSERT INTO events (server, unix_seconds, kind, detail) VALUES ('a', 2e9, 'new', '')"
        )
    async with opened(path) as kept:
        assert await kept.events("a", 0) == (EVENT,)


async def test_an_older_schema_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it held is still there, and what is new can be used."""
    path = tmp_path / "history.db"
    async with opened(path) as kept:
        kept.record_probe(result(1))
    more = (*mtpmon.historydatabase.MIGRATIONS, ("ALTER TABLE probes ADD COLUMN note TEXT",))
    monkeypatch.setattr(mtpmon.historydatabase, "MIGRATIONS", more)
    async with opened(path) as kept:
        assert names(await kept.recent_probes("a", 10)) == ["p1"]
    with database(path) as connection:
        assert connection.execute("SELECT note FROM probes").fetchall() == [(None,)]
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)


async def test_the_file_is_set_up_to_be_safe_and_to_shrink(tmp_path: Path) -> None:
    """Write-ahead log, space given back, and marked as ours."""
    path = tmp_path / "history.db"
    async with opened(path):
        pass
    with database(path) as connection:
        for pragma, value in (
            ("journal_mode", "wal"),
            ("auto_vacuum", 2),
            ("user_version", len(mtpmon.historydatabase.MIGRATIONS)),
            ("application_id", mtpmon.historydatabase.APPLICATION_ID),
        ):
            assert connection.execute(f"PRAGMA {pragma}").fetchone() == (value,)


# --- limits ---


async def test_what_is_too_old_goes(tmp_path: Path) -> None:
    """At the start, whatever its kind; what is not stays."""
    path = tmp_path / "history.db"
    old = NOW - 31 * DAY
    async with opened(path) as kept:
        for moment in (old, NOW):
            kept.record_probe(result(1, unix_seconds=moment))
            kept.record_event(msgspec.structs.replace(EVENT, unix_seconds=moment))
            kept.record_rollup(msgspec.structs.replace(ROLLUP, unix_seconds=moment))
    async with opened(path):
        pass
    assert [count(path, table) for table in ("probes", "events", "rollups")] == [1, 1, 1]
    with database(path) as connection:
        assert connection.execute("SELECT unix_seconds FROM probes").fetchone() == (NOW,)


async def test_what_becomes_too_old_goes_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From time to time, without a restart."""
    monkeypatch.setattr("mtpmon.history.TRIM_SECONDS", 0.05)
    path, clock = tmp_path / "history.db", [NOW]
    async with opened(path, wall=lambda: clock[0]) as kept:
        kept.record_probe(result(1))
        assert await kept.flush()
        assert count(path, "probes") == 1
        clock[0] += 31 * DAY
        await until(lambda: count(path, "probes") == 0)


async def test_the_size_has_a_limit(tmp_path: Path) -> None:
    """However much is written: the file stays below it, the latest rows of each kind are there."""
    path, limit = tmp_path / "history.db", MIB
    async with opened(path, max_bytes=limit) as kept:
        for number in range(1500):
            kept.record_probe(result(number))
            kept.record_event(msgspec.structs.replace(EVENT, unix_seconds=NOW + number))
            if number % 50 == 0:
                await kept.flush()
                size = kept.figures().size_bytes
                assert size is not None
                # One batch more than the limit is seen before something is done about it.
                assert size < 1.5 * limit
        latest = await kept.recent_probes("a", 5)
        changed = await kept.events("a", 0)
    assert path.stat().st_size <= limit
    assert names(latest) == [f"p{number}" for number in range(1495, 1500)]
    assert changed[-1].unix_seconds == NOW + 1499
    kept_rows = count(path, "probes")
    assert 100 < kept_rows < 1500
    assert 0.5 < count(path, "events") / kept_rows < 2


async def test_a_limit_below_any_row_keeps_nothing(tmp_path: Path) -> None:
    """And does not try for ever."""
    path = tmp_path / "history.db"
    async with opened(path, max_bytes=1000) as kept:
        kept.record_probe(result(1))
        assert await kept.flush()
        assert await kept.recent_probes("a", 5) == ()
        assert kept.figures().usable


async def test_a_full_queue_drops_rollups_first(tmp_path: Path) -> None:
    """The oldest of them, counted; then the oldest of the rest; nothing else is lost."""
    path = tmp_path / "history.db"
    kept = history(path, queue_records=4)
    for number in range(3):
        kept.record_rollup(msgspec.structs.replace(ROLLUP, unix_seconds=NOW + number))
    for number in range(3):
        kept.record_probe(result(number))
    assert kept.figures().dropped == {RecordKind.ROLLUP: 2}
    for number in range(3, 6):
        kept.record_probe(result(number))
    assert kept.figures().dropped == {RecordKind.ROLLUP: 3, RecordKind.PROBE: 2}
    await kept.open()
    assert names(await kept.recent_probes("a", 10)) == ["p2", "p3", "p4", "p5"]
    await kept.close()


async def test_the_queue_is_bounded_in_bytes(tmp_path: Path) -> None:
    """A few large probes fill it as many small ones do."""
    kept = history(tmp_path / "history.db", queue_bytes=20_000)
    for number in range(100):
        kept.record_probe(result(number))
    await kept.open()
    found = names(await kept.recent_probes("a", 100))
    assert 5 < len(found) < 20
    assert found[-1] == "p99"
    assert kept.figures().dropped[RecordKind.PROBE] == 100 - len(found)
    await kept.close()


async def test_recording_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    """While the file is locked, nothing else waits."""
    path = tmp_path / "history.db"
    async with opened(path) as kept:
        with database(path) as other:
            other.execute("BEGIN EXCLUSIVE")
            longest, before = 0.0, time.monotonic()
            for number in range(40):
                kept.record_probe(result(number))
                await asyncio.sleep(0.01)
                longest, before = max(longest, time.monotonic() - before), time.monotonic()
            other.execute("ROLLBACK")
        await until(lambda: kept.figures().usable)
        assert len(await kept.recent_probes("a", 100)) == 40
    assert longest < 0.3  # a wait for the lock takes longer


# --- what goes wrong ---


def inside(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def content(path: Path) -> bytes:
    return path.read_bytes()


async def unusable(path: Path, **options: Any) -> dict[str, Any]:
    """Use a history that cannot be; gives the one thing it said."""
    with capture_logs() as logs:
        async with opened(path, **options) as kept:
            kept.record_probe(result(1))
            await asyncio.sleep(0.2)  # it tries again meanwhile, and does not say so
            assert await kept.recent_probes("a", 10) == ()
            figures = kept.figures()
        assert kept.figures().dropped == {RecordKind.PROBE: 1}
    assert not figures.usable
    assert figures.size_bytes is None
    assert figures.errors[Operation.OPEN] >= 2
    (said,) = logs
    assert said["event"] == "history_unavailable"
    assert said["log_level"] == "warning"
    assert said["history"] == str(path)
    return dict(said)


async def written(kept: History) -> None:
    """Wait until all that was recorded is on disk."""
    async with asyncio.timeout(10):
        while not await kept.flush():
            await asyncio.sleep(0.01)


async def recorded(path: Path) -> bytes:
    """A good history with 50 probes; gives what is in the file."""
    async with opened(path) as kept:
        for number in range(50):
            kept.record_probe(result(number))
    return content(path)


@pytest.mark.parametrize("length", [100, 4096, 20_000])
async def test_a_truncated_file_is_moved_aside(tmp_path: Path, length: int) -> None:
    """It is ours and nobody's else, so a new one takes its place, and what is left is kept."""
    path = tmp_path / "history.db"
    whole = await recorded(path)
    assert len(whole) > 2 * length
    path.write_bytes(whole[:length])
    (tmp_path / "history.db-wal").write_bytes(b"of before")
    with capture_logs() as logs:
        async with opened(path) as kept:
            kept.record_probe(result(1))
            assert names(await kept.recent_probes("a", 10)) == ["p1"]
            assert kept.figures().usable
    aside = tmp_path / "history.db.corrupt-1"
    assert aside.read_bytes() == whole[:length]
    assert [(log["event"], log["moved_to"]) for log in logs] == [("history_corrupt", str(aside))]


async def test_files_moved_aside_are_never_overwritten(tmp_path: Path) -> None:
    """Each gets the next free number."""
    path = tmp_path / "history.db"
    whole = await recorded(path)
    for number in (1, 2):
        path.write_bytes(whole[: number * 5000])
        async with opened(path):
            pass
        assert (tmp_path / f"history.db.corrupt-{number}").read_bytes() == whole[: number * 5000]
    assert (tmp_path / "history.db.corrupt-1").read_bytes() == whole[:5000]


async def test_damage_anywhere_does_not_end_the_recording(tmp_path: Path) -> None:
    """Whichever page is garbage, and whenever that is met: what comes next is recorded."""
    whole = await recorded(tmp_path / "good.db")
    met = 0
    for page in range(1, len(whole) // 4096):
        path = tmp_path / f"{page}.db"
        path.write_bytes(whole[: page * 4096] + b"\xa5" * 4096 + whole[(page + 1) * 4096 :])
        async with opened(path) as kept:
            await kept.recent_probes("a", 100)
            kept.record_probe(result(77))
            await written(kept)
            for _ in range(2):  # the first may be what meets it
                found = await kept.recent_probes("a", 100)
                kept.record_event(EVENT)
                await written(kept)
            assert kept.figures().usable
        aside = (tmp_path / f"{page}.db.corrupt-1").exists()
        assert aside or found[-1] == result(77)
        met += aside
    assert met > 3


async def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    """An error that is in no list is quoted, and writing goes on when it is over."""
    path = tmp_path / "history.db"
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs() as logs:
        async with opened(path) as kept:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, usual[1]))
            try:
                for number in range(200):
                    kept.record_probe(result(number))
                assert not await kept.flush()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, usual)
            await until(lambda: kept.figures().usable)
            assert len(await kept.recent_probes("a", 1000)) == 200
    assert [log["event"] for log in logs] == ["history_unavailable", "history_recovered"]
    assert logs[0]["problem"].startswith("cannot be used: disk I/O error")


@pytest.mark.parametrize(
    "theirs", [b"not a database, but somebody's notes\n" * 40, b"x", MAGIC + bytes(200)]
)
async def test_what_is_not_known_to_be_ours_is_left_alone(tmp_path: Path, theirs: bytes) -> None:
    """Garbage may be a file that somebody needs: it stays as it is, and that is said."""
    path = tmp_path / "history.db"
    path.write_bytes(theirs)
    said = await unusable(path)
    assert said["problem"] == "is no database of mtpmon's, so it is left alone"
    assert said["fix"] == "move it away, or name another file as history.path"
    assert path.read_bytes() == theirs
    assert inside(tmp_path) == [path]


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    """It is well, and not ours."""
    path = tmp_path / "history.db"
    with database(path) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    before = path.read_bytes()
    said = await unusable(path)
    assert said["problem"] == "is another program's database"
    assert path.read_bytes() == before


async def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    """Zero bytes hold nothing that could be lost."""
    path = tmp_path / "history.db"
    path.touch()
    async with opened(path) as kept:
        kept.record_probe(result(1))
    assert count(path, "probes") == 1


async def test_a_directory_is_no_file(tmp_path: Path) -> None:
    """It is said, and nothing in it is touched."""
    said = await unusable(tmp_path)
    assert said["problem"] == "is not a file"
    assert inside(tmp_path) == []


async def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    """A typing error must not fill another disk."""
    said = await unusable(tmp_path / "none" / "history.db")
    assert said["problem"] == "its directory is not there"
    assert said["fix"] == f"make the directory {tmp_path / 'none'}"
    assert inside(tmp_path) == []


async def test_a_link_to_a_corrupt_file_is_left_alone(tmp_path: Path) -> None:
    """Whoever made it knows what it leads to."""
    path, real = tmp_path / "history.db", tmp_path / "real.db"
    whole = await recorded(real)
    real.write_bytes(whole[:20_000])
    path.symlink_to(real)
    said = await unusable(path)
    assert said["problem"] == "is corrupt, and no plain file, so it is left alone"
    assert real.read_bytes() == whole[:20_000]


@contextmanager
def ordinary_user() -> Iterator[Path]:
    """A directory of a user whom permissions bind, as whom the block then runs."""
    with tempfile.TemporaryDirectory() as name:
        directory, user = Path(name), os.geteuid()
        if user == 0:
            os.chown(directory, 65534, 65534)
            os.seteuid(65534)
        try:
            yield directory
        finally:
            os.seteuid(user)
            directory.chmod(0o700)


async def test_a_read_only_directory_is_said(tmp_path: Path) -> None:
    """Nothing can be made in it."""
    with ordinary_user() as directory:
        directory.chmod(0o555)
        said = await unusable(directory / "history.db")
    assert said["problem"] == "cannot be opened: unable to open database file"
    assert said["fix"] == "let mtpmon's user write to it and to its directory"


async def test_a_read_only_file_is_said(tmp_path: Path) -> None:
    """It may be read, but what cannot be written to is no use."""
    with ordinary_user() as directory:
        path = directory / "history.db"
        await recorded(path)
        path.chmod(0o444)
        said = await unusable(path)
    assert said["problem"] == "is read-only"


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
connection.close()
"""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Another process has the file locked."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield


async def test_a_locked_file_is_taken_up_when_it_is_free(tmp_path: Path) -> None:
    """Nothing that was recorded meanwhile is lost."""
    path = tmp_path / "history.db"
    await recorded(path)
    with capture_logs() as logs:
        with held(path):
            kept = history(path)
            assert not await kept.open()
            task = asyncio.create_task(kept.write_forever())
            kept.record_probe(result(99))
            began = time.monotonic()
            assert await kept.recent_probes("a", 1) == ()
            assert time.monotonic() - began < 2
            assert not kept.figures().usable
        await until(lambda: kept.figures().usable)
        assert names(await kept.recent_probes("a", 1)) == ["p99"]
        await kept.close()
        await task
    assert [log["event"] for log in logs] == ["history_unavailable", "history_recovered"]
    assert logs[0]["problem"] == "is locked"


async def test_a_lock_does_not_delay_the_end(tmp_path: Path) -> None:
    """Closing gives up what it cannot write, and counts it."""
    path = tmp_path / "history.db"
    await recorded(path)
    with held(path):
        kept = history(path)
        await kept.open()
        kept.record_probe(result(99))
        began = time.monotonic()
        await kept.close()
        await kept.close()
    assert time.monotonic() - began < 1.5
    assert kept.figures().dropped == {RecordKind.PROBE: 1}


async def test_a_corrupt_file_in_use_is_left_alone(tmp_path: Path) -> None:
    """Whoever has it open would go on writing to a file that is no longer there."""
    path = tmp_path / "history.db"
    whole = await recorded(path)
    with held(path):
        with path.open("r+b") as file:
            file.truncate(20_000)
        kept = mtpmon.historyfile.HistoryFile(path, retention_seconds=DAY, max_bytes=MIB)
        kept._corrupt = True
        with pytest.raises(mtpmon.historyfile.HistoryFileError, match="in use elsewhere"):
            kept.open()
    assert path.read_bytes() == whole[:20_000]


async def test_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    """A version that knows it will go on with it."""
    path = tmp_path / "history.db"
    await recorded(path)
    with database(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    said = await unusable(path)
    assert said["problem"] == (
        f"was written by a newer mtpmon: its schema is 99,"
        f" this one knows up to {len(mtpmon.historydatabase.MIGRATIONS)}"
    )
    assert said["fix"] == "update mtpmon, or name another file as history.path"
    assert path.read_bytes() == before


async def test_a_full_disk_is_said_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written stays, what comes waits for space, and is written once there is."""
    path = tmp_path / "history.db"
    await recorded(path)

    def small(path: Path) -> sqlite3.Connection:
        connection = mtpmon.historydatabase.connect(path)
        connection.execute("PRAGMA max_page_count = 1")  # no page more than it has
        return connection

    monkeypatch.setattr(mtpmon.historyfile, "connect", small)
    with capture_logs() as logs:
        async with opened(path) as kept:
            for number in range(100, 140):
                kept.record_probe(result(number))
            await until(lambda: not kept.figures().usable)
            assert count(path, "probes") == 50
            monkeypatch.undo()
            await until(lambda: kept.figures().usable)
            assert names(await kept.recent_probes("a", 1)) == ["p139"]
            assert not kept.figures().dropped
    assert count(path, "probes") == 90
    assert [log["event"] for log in logs] == ["history_unavailable", "history_recovered"]
    assert logs[0]["problem"] == "the disk is full"
    assert logs[0]["fix"] == "free space, or lower history.max_bytes"


# --- kill -9 ---


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing_that_was_written(tmp_path: Path) -> None:
    """SIGKILL at any moment: the file is sound, and all that was acknowledged is in it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.history_writer", "pytest"])
    chance = random.Random(4)
    highest, rounds, everything = -1, 100, 0
    for number in range(rounds):
        if number % 10 == 0:  # a new file, so that its making is interrupted as well
            highest = -1
        path = tmp_path / f"{number // 10}.db"
        ours, theirs = context.Pipe(duplex=False)
        writer = context.Process(target=write_probes, args=(path, highest + 1, theirs))
        writer.start()
        theirs.close()
        if number % 3:
            assert ours.poll(10)  # it writes; else it may not even have made the file
        time.sleep(chance.uniform(0, 0.06))
        writer.kill()
        writer.join()
        assert writer.exitcode == -9
        last, first = highest, highest + 1
        with contextlib.suppress(EOFError):
            while True:
                last = ours.recv()
        ours.close()
        writer.close()
        with database(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

        async def reopened(path: Path = path) -> list[int]:
            async with opened(path) as kept:
                found = await kept.recent_probes("a", 1_000_000)
                assert kept.figures().usable
            return [int(each.prompt_id[1:]) for each in found]

        present = asyncio.run(reopened())
        # One more may be there: written, and killed before it was said.
        assert present == list(range(len(present)))
        assert len(present) - 1 in (last, last + 1)
        highest = len(present) - 1
        everything += highest + 1 - first
        assert not list(tmp_path.glob("*.corrupt-*"))
    assert everything > rounds


# --- the parts around it ---


def test_changes_are_told_apart() -> None:
    """State, build and model, each only when it is another one."""
    first = scrape(0, 0)
    assert [(e.kind, e.before, e.after) for e in changes("a", None, None, first)] == [
        (EventKind.STATE, None, "ready"),
        (EventKind.MODEL, None, "m"),
    ]
    assert list(changes("a", first, first.props, scrape(5, 1))) == []
    (gone,) = changes("a", first, first.props, failed(5, Outcome.REFUSED))
    assert (gone.before, gone.after, gone.detail) == ("ready", "unreachable", "because")
    newer = msgspec.structs.replace(scrape(9, 1), props=Props(model="m", build="b2"))
    (upgraded,) = changes("a", first, Props(model="m", build="b1"), newer)
    assert (upgraded.kind, upgraded.before, upgraded.after) == (EventKind.BUILD, "b1", "b2")


def test_a_rollup_is_what_users_did_between_two_marks() -> None:
    """Counts are differences, bounds those of a window of that length."""
    twice = msgspec.structs.replace(
        OWN,
        drafts=Amount(20),
        draft_tokens=Amount(60),
        accepted_by_position=(14, 6, 0),
        generated_tokens=Amount(42),
        generation_seconds=Amount(2),
    )
    before = Mark(monotonic_seconds=10, unix_seconds=NOW, live=OWN)
    now = Mark(monotonic_seconds=70, unix_seconds=NOW + 60, live=twice)
    found = rollup("a", before, now, Evidence())
    assert found is not None
    assert (found.seconds, found.unix_seconds) == (60, NOW + 60)
    assert (found.drafts, found.draft_tokens, found.accepted_tokens) == (10, 30, 10)
    assert found.accepted_by_position == (7, 3, 0)
    assert (found.generated_tokens, found.generation_seconds) == (21, 1)
    assert found.acceptance is not None
    assert found.acceptance.lower < found.acceptance.value == 1 / 3 < found.acceptance.upper
    assert found.acceptance_length is not None
    assert found.acceptance_length.value == 2
    quiet = rollup("a", before, msgspec.structs.replace(now, live=OWN), Evidence())
    assert quiet is not None
    assert (quiet.drafts, quiet.acceptance) == (0, None)
    assert rollup("a", before, before, Evidence()) is None
    assert rollup("a", None, now, Evidence()) is None
    unknown = msgspec.structs.replace(OWN, drafts=None)
    found = rollup("a", before, msgspec.structs.replace(now, live=unknown), Evidence())
    assert found is not None
    assert found.drafts is None


def test_the_board_rolls_up_since_the_last_time() -> None:
    """The first from the first look on; none without a new look."""
    server = ServerBoard("a", SETTINGS)
    assert server.roll_up() is None
    server.scraped(scrape(0, 1))
    server.scraped(scrape(60, 3))
    found = server.roll_up()
    assert found is not None
    assert (found.drafts, found.seconds) == (20, 60)
    assert server.roll_up() is None
    server.scraped(scrape(90, 4))
    found = server.roll_up()
    assert found is not None
    assert (found.drafts, found.seconds) == (10, 30)


def test_the_board_notes_probes_and_changes() -> None:
    """What ran, states, restarts; not that a probe was skipped, and nothing that is the same."""
    noted: list[ProbeResult | Event] = []
    server = ServerBoard("a", SETTINGS, note=noted.append)
    server.scraped(scrape(0, 3))
    server.scraped(scrape(5, 4))
    server.scraped(scrape(10, 0, token="other"))
    server.probed(result(1))
    skipped = result(outcome=ProbeOutcome.SKIPPED_BUSY, prompt_id="")
    server.probed(skipped)
    server.probed(result(2, outcome=ProbeOutcome.PREEMPTED))
    kinds = [found.kind if isinstance(found, Event) else found.prompt_id for found in noted]
    assert kinds == [EventKind.STATE, EventKind.MODEL, EventKind.RESTART, "p1", "p2"]


def test_restored_probes_are_in_figures_and_in_no_total() -> None:
    """Rolling figures are those of one run; counters begin at 0; nothing is noted again."""
    noted: list[ProbeResult | Event] = []
    whole, resumed = ServerBoard("a", SETTINGS), ServerBoard("a", SETTINGS, note=noted.append)
    results = [result(number, comparison=None) for number in range(3)]
    wrong = result(3, outcome=ProbeOutcome.FAILED)
    for each in [*results, wrong]:
        whole.probed(each)
    resumed.restore([*results, wrong])
    one, other = seen(whole, 0), seen(resumed, 0)
    assert one.probe_figures.probes == 3
    assert other.probe_figures == one.probe_figures
    assert resumed.results == whole.results
    assert resumed.failures == whole.failures
    assert other.probe_succeeded is False
    assert other.last_success_unix_seconds == NOW + 2
    totals = other.probe_totals
    assert (totals.outcomes, totals.comparable, totals.clamped) == ({}, 0, 0)
    assert sum(totals.divergence_positions) == 0
    assert noted == []


@asynccontextmanager
async def daemon(url: str, path: Path, *, rolling: int = 8) -> AsyncIterator[Daemon]:
    """A daemon that probes one server as often as it can."""
    config = Config(
        servers=(Server(name="a", url=url),),
        scrape=Scrape(interval_seconds=0.3, timeout_seconds=0.27),
        windows_seconds=(60.0,),
        probe=Probe(
            interval_seconds=0.3,
            timeout_seconds=10.0,
            idle_for_seconds=0.0,
            rolling=rolling,
            tokens=16,
        ),
        history=HistoryConfig(path=path),
        listen=Listen(address=Address("127.0.0.1", 0)),
    )
    found = Daemon(config)
    started = asyncio.Event()
    task = asyncio.create_task(found.run(started=started.set))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        if not task.done():
            yield found
    finally:
        found.stop()
        await task


@pytest.mark.real
async def test_the_daemon_goes_on_where_it_was(model: Path, tmp_path: Path) -> None:
    """Rolling figures are those of before the restart, totals begin anew, events are kept."""
    path = tmp_path / "history.db"
    async with LlamaServer(None, model) as server, daemon(server.url, path) as first:
        board = first.board["a"]
        await until(lambda: len(board.results) >= 4, seconds=30)
        await until(lambda: board.last_scrape is not None and not board.last_scrape.overlapped)
    before = seen(board, 0)
    assert before.probe_figures.probes >= 4
    # The server is gone, so nothing new is measured.
    async with daemon(server.url, path) as second:
        await until(lambda: second.board["a"].last_scrape is not None)
        snapshot = second.snapshot()
        (after,) = snapshot.servers
        assert second.board["a"].results == board.results
    assert after.state is State.UNREACHABLE
    assert after.probe_figures == before.probe_figures
    assert after.last_success_unix_seconds == before.last_success_unix_seconds
    assert ProbeOutcome.COMPLETED not in after.probe_totals.outcomes
    assert after.probe_totals.comparable == 0
    assert snapshot.history is not None
    assert snapshot.history.usable
    kept = history(path, wall=time.time)
    await kept.open()
    events = await kept.events("a", 0)
    rollups = await kept.rollups("a", 0)
    await kept.close()
    states = [event.after for event in events if event.kind is EventKind.STATE]
    assert states[0] == State.READY.value
    assert states[-1] == State.UNREACHABLE.value
    assert rollups  # the part of a minute before the end


@pytest.mark.real
async def test_the_daemon_goes_on_without_a_history(model: Path, tmp_path: Path) -> None:
    """A file that cannot be used is said and shown, and probes go on."""
    async with LlamaServer(None, model) as server:
        with capture_logs() as logs:
            async with daemon(server.url, tmp_path) as running:
                await until(lambda: len(running.board["a"].results) >= 1, seconds=30)
                figures = running.snapshot().history
    assert figures is not None
    assert not figures.usable
    assert [log["problem"] for log in logs if log["event"] == "history_unavailable"] == [
        "is not a file"
    ]
