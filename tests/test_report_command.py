"""``mtpmon report``: a history on disk, read while mtpmon may be writing it."""

import json
import sqlite3
import stat
from pathlib import Path

import msgspec
import pytest

from mtpmon.commands.report import ReportDocument
from mtpmon.historyfile import HistoryFile
from mtpmon.historyrows import Record, event_record, probe_record, rollup_record
from mtpmon.record import Event, EventKind
from tests.command_line import mtpmon
from tests.test_eras import HOUR, MINUTE, START, UPGRADED, minute, probe

PAST = "--since", "100000d"


def records() -> list[Record]:
    """An hour with one build and an hour with another that keeps fewer tokens."""
    traffic = [minute(MINUTE * n, 80 + n % 3) for n in range(1, 61)]
    traffic += [minute(MINUTE * n, 50 + n % 3) for n in range(61, 121)]
    probes = [probe(60.0 * n, f"p{n}", kept=70 + n) for n in range(5)]
    probes += [probe(HOUR + 60.0 * n, f"p{n}", kept=40 + n) for n in range(5)]
    return [
        *map(event_record, UPGRADED),
        *map(rollup_record, traffic),
        *map(probe_record, probes),
    ]


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.db"
    file = HistoryFile(path, max_bytes=1 << 30)
    file.write(records())
    file.close()
    return path


async def test_tables_say_what_an_upgrade_changed(history: Path) -> None:
    ran = await mtpmon("report", "--history", history, *PAST)
    assert (ran.code, ran.err) == (0, "")
    for words in (
        "Users' traffic",
        "What changed after 2023-11-14 23:20",
        "users' acceptance",
        "-30.0 points",
        "14 blocks",
        "probes' acceptance, by prompt",
        "5 prompts",
        "worse",
        "Probes since 2023-11-14 23:20",
        "By task",
    ):
        assert words in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100
    assert "…" not in ran.out.partition("draft acceptance   ")[0], "no cell is cut"


async def test_the_document_holds_the_same(history: Path, tmp_path: Path) -> None:
    """Also from a configuration, and with nothing but what was asked for."""
    config = tmp_path / "mtpmon.yaml"
    config.write_text("history: {path: history.db}\nevidence: {confidence: 0.9}\n")
    ran = await mtpmon("report", "--config", config, "--server", "a", "--json", *PAST)
    assert (ran.code, ran.err) == (0, "")
    document = msgspec.json.decode(ran.out, type=ReportDocument)
    assert json.loads(ran.out)["schema"] == "mtpmon.report/1"
    assert document.confidence == 0.9
    (server,) = document.servers
    assert [era.build for era in server.record.eras] == ["b1", "b2"]
    (changes,) = server.record.changes
    assert {c.figure for c in changes} == {
        "live_acceptance",
        "live_decode_speed",
        "probe_acceptance",
        "probe_speedup",
    }


def snapshot(path: Path) -> bytes:
    return path.read_bytes()


async def test_a_history_that_is_being_written_is_read_as_it_is(history: Path) -> None:
    """Nothing is changed by it, not even where nothing may be written."""
    writer = HistoryFile(history, max_bytes=1 << 30)
    late = Event(server="b", unix_seconds=START + 9, kind=EventKind.BUILD, after="b9")
    writer.write(
        [event_record(late), rollup_record(msgspec.structs.replace(minute(60), server="b"))]
    )
    before = snapshot(history)
    ran = await mtpmon("report", "--history", history, "--server", "b", *PAST)
    assert ran.code == 0
    assert "b9" in ran.out
    assert snapshot(history) == before
    writer.close()


async def test_one_unreadable_probe_costs_one_probe(history: Path) -> None:
    writer = HistoryFile(history, max_bytes=1 << 30)
    good = probe_record(probe(5.0))
    writer.write([Record(good.kind, good.statement, (*good.values[:-1], "{"), 1)])
    writer.close()
    ran = await mtpmon("report", "--history", history, *PAST)
    assert ran.code == 0
    assert "1 probes could not be read and are left out" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--config: the configuration keeps no history; set history.path in it"),
        (["--history", "absent.db"], "--history: absent.db is not there; name the file"),
        (["--history", "/dev/null"], "--history: /dev/null is not there"),
        (["--history", "HISTORY", "--since", "soon"], "--since: 'soon' is no length of time"),
        (["--history", "HISTORY", "--since", "0s"], "--since: '0s' is no length of time"),
        (["--history", "HISTORY", "--server", "z"], "--server: the history knows no 'z'; it has a"),
        (["--history", "TEXT"], "is no database of mtpmon's"),
    ],
)
async def test_what_cannot_be_reported(
    history: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    text = tmp_path / "text.db"
    text.write_text("not a database at all, but long enough")
    named = {"HISTORY": str(history), "TEXT": str(text)}
    ran = await mtpmon("report", *(named.get(word, word) for word in arguments))
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


async def test_an_older_or_foreign_database_is_told_apart(tmp_path: Path) -> None:
    """It is only read, so it is not brought up to date either."""
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    ran = await mtpmon("report", "--history", foreign)
    assert (ran.code, ran.out) == (2, "")
    assert "is another program's database" in ran.err
    older = tmp_path / "older.db"
    file = HistoryFile(older, max_bytes=1 << 30)
    file.open()
    file.close()
    with sqlite3.connect(older) as connection:
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    ran = await mtpmon("report", "--history", older)
    assert "has schema 0, this mtpmon reads 1; start mtpmon run with it once" in ran.err


async def test_an_empty_history_is_not_fine(tmp_path: Path) -> None:
    """In a directory that nothing may be written to, as for another user's history."""
    path = tmp_path / "history.db"
    file = HistoryFile(path, max_bytes=1 << 30)
    file.open()
    file.close()
    path.chmod(stat.S_IRUSR)
    ran = await mtpmon("report", "--history", path)
    assert (ran.code, ran.out, ran.err) == (1, "the history is empty\n", "")
