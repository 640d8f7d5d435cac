"""Telling systemd how it goes: ready, alive, stopping. Anywhere else nothing is said.

The protocol is one datagram to the socket that the environment names; see sd_notify(3).
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress


def notify(state: str, *, environment: Mapping[str, str] = os.environ) -> None:
    """Send a state such as ``READY=1``.

    Whoever supervises may be gone; that is no reason to end.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # an abstract socket, which has no file
        address = "\0" + address[1:]
    with (
        suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out,
    ):
        out.setblocking(False)
        out.sendto(state.encode(), address)


def watchdog_seconds(*, environment: Mapping[str, str] = os.environ) -> float | None:
    """How often a sign of life is wanted: half the time after which we would be ended.

    Returns:
        Seconds; ``None`` if nobody waits for one, or for that of another process.
    """
    try:
        limit = int(environment.get("WATCHDOG_USEC", "")) / 1e6
    except ValueError:
        return None
    if environment.get("WATCHDOG_PID") not in (None, str(os.getpid())) or limit <= 0:
        return None
    return limit / 2


async def alive_forever(*, environment: Mapping[str, str] = os.environ) -> None:
    """Give signs of life for as long as the event loop turns; return at once if none is wanted."""
    seconds = watchdog_seconds(environment=environment)
    while seconds is not None:
        notify("WATCHDOG=1", environment=environment)
        await asyncio.sleep(seconds)
