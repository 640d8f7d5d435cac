"""Word to systemd, over real sockets."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mtpmon.supervisor import alive_forever, notify, watchdog_seconds
from tests.command_line import ended, started


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """The supervisor's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(address)
        found.settimeout(60)
        yield found


def test_a_state_arrives(tmp_path: Path) -> None:
    """At a socket with a file and at one without."""
    name = f"mtpmon-test-{os.getpid()}"
    for bound, told in ((str(tmp_path / "s"), str(tmp_path / "s")), (f"\0{name}", f"@{name}")):
        with listening(bound) as supervisor:
            notify("READY=1", environment={"NOTIFY_SOCKET": told})
            assert supervisor.recv(100) == b"READY=1"


def test_nobody_need_listen(tmp_path: Path) -> None:
    """Without a supervisor, or with one that has gone, nothing happens."""
    notify("READY=1", environment={})
    notify("READY=1", environment={"NOTIFY_SOCKET": str(tmp_path / "gone")})


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
    ],
)
def test_how_often_a_sign_of_life_is_wanted(
    environment: dict[str, str], seconds: float | None
) -> None:
    """Twice in the time that systemd waits, and only of the process it waits for."""
    assert watchdog_seconds(environment=environment) == seconds


async def test_signs_of_life_come_again_and_again(tmp_path: Path) -> None:
    """As long as the event loop turns; without a watchdog there are none."""
    address = str(tmp_path / "s")
    with listening(address) as supervisor:
        await alive_forever(environment={"NOTIFY_SOCKET": address})
        supervisor.setblocking(False)
        with pytest.raises(BlockingIOError):
            supervisor.recv(100)
        loop = asyncio.get_running_loop()
        environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000"}
        task = asyncio.create_task(alive_forever(environment=environment))
        for _ in range(3):
            assert await loop.sock_recv(supervisor, 100) == b"WATCHDOG=1"
        task.cancel()


async def test_run_says_when_it_listens(tmp_path: Path) -> None:
    """As `Type=notify` and `WatchdogSec=` want it."""
    config = tmp_path / "mtpmon.yaml"
    config.write_text(
        "servers: [{name: a, url: 'http://127.0.0.1:1'}]\nlisten: {address: '127.0.0.1:0'}\n"
    )
    address = str(tmp_path / "s")
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "50000"}
    with listening(address) as supervisor:
        async with started("run", "--config", config, env=environment) as process:
            heard = {await asyncio.to_thread(supervisor.recv, 100) for _ in range(6)}
            process.send_signal(signal.SIGTERM)
            ran = await ended(process)
    assert heard == {b"READY=1", b"WATCHDOG=1"}
    assert ran.code == 0, ran.err
