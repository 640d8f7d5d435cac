"""A running daemon whose servers are listed in files that change."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from mtpmon.compose import read_config
from mtpmon.config import ConfigError
from mtpmon.daemon import Daemon
from tests.command_line import mtpmon, until
from tests.far_end import FakeLlama
from tests.rig import running

LOOK_SECONDS = 0.05
USABLE = "mtpmon_server_files_last_read_successful"


@dataclass
class Fleet:
    """Some servers, a file that lists them, and the daemon that reads it."""

    path: Path
    urls: Mapping[str, str]
    fakes: Mapping[str, FakeLlama]
    daemon: Daemon
    log: list[MutableMapping[str, Any]] = field(default_factory=list)

    def write(self, text: str) -> None:
        """Replace the file as it should be done: by a rename."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)

    def lists(self, *names: str, **labels: str) -> None:
        """Write a good file."""
        self.write(self.listing(*names, **labels))

    def listing(self, *names: str, **labels: str) -> str:
        """What a good file holds."""
        return listing({name: self.urls[name] for name in names}, **labels)

    async def watches(self, *names: str) -> None:
        """Wait until these are watched and have been looked at."""
        await until(lambda: {board.name for board in self.daemon.board} == set(names))
        await until(lambda: all(board.last_scrape is not None for board in self.daemon.board))

    async def metrics(self) -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.daemon.url}/metrics") as reply,
        ):
            return await reply.text()

    def events(self, event: str) -> list[MutableMapping[str, Any]]:
        return [entry for entry in self.log if entry["event"] == event]


def listing(urls: Mapping[str, str], **labels: str) -> str:
    """A file of servers, each named."""
    return json.dumps(
        [
            {
                "targets": [url.removeprefix("http://")],
                "labels": {"__mtpmon_name__": name, **labels},
            }
            for name, url in urls.items()
        ]
    )


@asynccontextmanager
async def fleet(directory: Path, *first: str) -> AsyncIterator[Fleet]:
    """Three servers, of which the file lists ``first``."""
    async with AsyncExitStack() as stack:
        fakes = {name: FakeLlama() for name in "abc"}
        urls = {
            name: await stack.enter_async_context(fake.serving()) for name, fake in fakes.items()
        }
        listed, path = directory / "fleet.json", directory / "mtpmon.yaml"
        listed.write_text(listing({name: urls[name] for name in first}))
        path.write_text(
            "server_files: [fleet.json]\n"
            "scrape: {interval: 200ms, timeout: 150ms}\n"
            "probe: {enabled: false}\n"
            "listen: {address: '127.0.0.1:0'}\n"
        )
        log = stack.enter_context(capture_logs())
        config = read_config(path)
        daemon = await stack.enter_async_context(
            running(config, path=path, look_seconds=LOOK_SECONDS)
        )
        yield Fleet(listed, urls, fakes, daemon, log)


async def test_servers_come_and_go_and_the_others_go_on(tmp_path: Path) -> None:
    """A watcher that stays is the same one; one that goes asks nothing more and has no samples."""
    async with fleet(tmp_path, "a", "b") as it:
        await it.watches("a", "b")
        text = await it.metrics()
        assert f"{USABLE} 1.0" in text
        assert 'mtpmon_up{server="b"} 1.0' in text
        kept = it.daemon.board["a"]
        it.lists("a", "c")
        await it.watches("a", "c")
        assert it.daemon.board["a"] is kept
        text = await it.metrics()
        assert 'server="b"' not in text
        assert 'mtpmon_up{server="c"} 1.0' in text
        asked = len(it.fakes["b"].requests)
        looks = len(it.fakes["a"].requests)
        await until(lambda: len(it.fakes["a"].requests) > looks + 6)
        assert len(it.fakes["b"].requests) == asked
        (change,) = it.events("server_files_changed")
        assert (change["gone"], change["new"]) == (["b"], ["c"])
        # Another setting of a server is another watcher, of it alone.
        other = it.daemon.board["c"]
        first, second = (json.loads(it.listing(name)) for name in "ac")
        second[0]["labels"]["__mtpmon_sleep_idle__"] = "5m"
        it.write(json.dumps(first + second))
        await until(lambda: it.daemon.board["c"] is not other)
        assert it.daemon.board["a"] is kept
        it.write("[]")
        await it.watches()
        assert "mtpmon_up{" not in await it.metrics()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ('[{"targets": ["a:1"', "not YAML"),
        ('[{"targets": ["x:1"]}, {"targets": ["x:1"]}]', "'x:1' is also the name of"),
        (
            '[{"targets": ["x:1"], "labels": {"__mtpmon_api_key_file__": "absent"}}]',
            "the file cannot be read",
        ),
    ],
)
async def test_a_bad_file_changes_nothing_and_shows(tmp_path: Path, text: str, words: str) -> None:
    """In the log, once, and in a metric; when it is good again, that shows as well."""
    async with fleet(tmp_path, "a") as it:
        await it.watches("a")
        kept = it.daemon.board["a"]
        it.write(text)
        await until(lambda: it.daemon.snapshot().server_files_successful is False)
        await asyncio.sleep(6 * LOOK_SECONDS)
        (failure,) = it.events("server_files_failed")
        assert words in str(failure["detail"])
        assert it.daemon.board["a"] is kept
        assert f"{USABLE} 0.0" in await it.metrics()
        it.lists("a", "b")
        await it.watches("a", "b")
        assert it.daemon.board["a"] is kept
        assert f"{USABLE} 1.0" in await it.metrics()
        assert len(it.events("server_files_usable_again")) == 1


async def test_a_cure_elsewhere_is_noticed(tmp_path: Path) -> None:
    """A key that appears makes a file good that has not changed."""
    async with fleet(tmp_path, "a") as it:
        it.lists("a", __mtpmon_api_key_file__="key")
        await until(lambda: it.events("server_files_failed"))
        (tmp_path / "key").write_text("secret")
        await until(lambda: it.events("server_files_usable_again"))


async def test_a_reload_reads_the_files_as_well(tmp_path: Path) -> None:
    """All or nothing: with a bad file the reload is refused."""
    async with fleet(tmp_path, "a") as it:
        it.lists("a", "b")
        assert await it.daemon.reload() == "watching a, b"
        it.write("{}")
        with pytest.raises(ConfigError, match="a mapping is not a list"):
            await it.daemon.reload()
        assert it.daemon.snapshot().config_reload_successful is False
        it.write("[]")
        assert await it.daemon.reload() == "watching no server"


async def test_a_bad_file_at_the_start_ends_it(tmp_path: Path) -> None:
    """As any bad configuration does."""
    config = tmp_path / "mtpmon.yaml"
    config.write_text("server_files: [absent.json]\n")
    for command in ("check", "run", "doctor"):
        ran = await mtpmon(command, "--config", config)
        assert (ran.code, ran.out) == (2, "")
        assert "absent.json, file: cannot be read: No such file or directory" in ran.err
    (tmp_path / "absent.json").write_text("[]")
    ran = await mtpmon("doctor", "--config", config)
    assert (ran.code, ran.out) == (2, "")
    assert "--config: names no server: its files of servers list none at present" in ran.err
    (tmp_path / "absent.json").write_text('[{"targets": ["a:1"]}]')
    ran = await mtpmon("check", "--config", config)
    assert (ran.code, ran.err) == (0, "")
    assert f"{config} is fine: 1 server\n  a:1: http://a:1, probed every 1m" in ran.out
