"""The demo: two real servers, user-like traffic and the daemon that watches them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mtpmon.config import Address, Config, Listen, Probe, Scrape, Server
from mtpmon.daemon import Daemon
from mtpmon.demo.model import DEEP, cached_model
from mtpmon.demo.server import HOST, LlamaServer
from mtpmon.demo.traffic import run_traffic
from mtpmon.suite import builtin_suite

NAME: Final = "demo"
USUAL_PORT: Final = 9765
SEED: Final = 1
REQUESTS_PER_SECOND: Final = 0.3  # probes give way to users, and some must come through
MAX_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class Demo:
    """What runs, and where it answers."""

    daemon: Daemon
    url: str
    target_only_url: str


@asynccontextmanager
async def demo(llama_server: Path) -> AsyncIterator[Demo]:
    """Start everything; when the block ends, in whatever way, everything is gone.

    Args:
        llama_server: the binary.

    Raises:
        ServerError: a server does not start.
        ExceptionGroup: a fault of the daemon or the traffic.
    """
    model = cached_model(DEEP)
    async with AsyncExitStack() as stack:
        speculating = await stack.enter_async_context(LlamaServer(llama_server, model))
        target_only = await stack.enter_async_context(
            LlamaServer(llama_server, model, speculate=False)
        )
        daemon = Daemon(configuration(speculating.url, target_only.url))
        async with asyncio.TaskGroup() as group:
            started = asyncio.Event()
            group.create_task(daemon.run(started=started.set))
            await started.wait()
            stop_traffic = asyncio.Event()
            traffic = run_traffic(
                speculating.url,
                builtin_suite(),
                seed=SEED,
                requests_per_second=REQUESTS_PER_SECOND,
                max_tokens=MAX_TOKENS,
                stop=stop_traffic,
            )
            group.create_task(traffic)
            try:
                yield Demo(daemon, speculating.url, target_only.url)
            finally:
                daemon.stop()
                stop_traffic.set()


def configuration(url: str, target_only_url: str) -> Config:
    """Everything faster than the defaults, so that there is something to see in a minute."""
    return Config(
        servers=(Server(name=NAME, url=url, target_only_url=target_only_url),),
        scrape=Scrape(interval_seconds=1.0, timeout_seconds=0.9),
        probe=Probe(
            interval_seconds=3.0, timeout_seconds=3.0, idle_for_seconds=0.0, time_share=1.0
        ),
        listen=Listen(address=Address(HOST, _port())),
    )


def _port() -> int:
    """The usual port, or 0 for any free one if it is taken."""
    with socket.socket() as trial:
        # As the daemon will bind: a port whose last owner has just gone is free.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT
