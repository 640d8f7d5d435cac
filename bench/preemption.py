"""What mtpmon costs a user: time to first token with and without probes, and throughput.

One real server with one slot, probes as often as they are allowed. Requests with and without
mtpmon alternate, so that drift of the machine falls on both alike. With ``--keep FILE`` each run
adds its samples to those in the file and prints them all, so that it can be done in pieces:

    python -m bench.preemption [--requests 200] [--without-gap 100] [--saturated 8] [--keep FILE]
"""

import argparse
import asyncio
import logging
import math
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import structlog

from mtpmon.board import BoardSettings, ServerBoard
from mtpmon.client import LlamaClient
from mtpmon.demo.model import DEEP, cached_model
from mtpmon.demo.server import LlamaServer
from mtpmon.probe import Arms, ProbeSettings
from mtpmon.suite import Variant, builtin_suite, cases
from mtpmon.watch import Clock, Timing, Watcher
from mtpmon.window import Evidence

BLOCK = 10  # requests without a gap between changes of watching
CLOCK = Clock(monotonic=time.monotonic, wall=time.time)


def watcher(url: str) -> Watcher:
    """One that probes whenever it may."""
    settings = BoardSettings(
        windows_seconds=(60.0,),
        stale_after_seconds=60.0,
        evidence=Evidence(),
        rolling_probes=64,
        probe_timeout_seconds=30.0,
    )
    return Watcher(
        arms=Arms(LlamaClient(url)),
        board=ServerBoard("bench", settings, probed=True),
        cases=cases(builtin_suite(), [Variant()], 1),
        settings=ProbeSettings(tokens=64, top_logprobs=64, forced_positions=8),
        timing=Timing(
            scrape_interval_seconds=0.2,
            scrape_timeout_seconds=0.19,
            probe_interval_seconds=0.2,
            probe_timeout_seconds=30.0,
            idle_for_seconds=0.0,
        ),
        clock=CLOCK,
    )


@asynccontextmanager
async def watching(watched: Watcher) -> AsyncIterator[None]:
    """Run it for the length of the block."""
    tasks = [
        asyncio.create_task(watched.scrape_forever()),
        asyncio.create_task(watched.probe_forever()),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def first_token_seconds(session: aiohttp.ClientSession, url: str, number: int) -> float:
    """Time from sending a user's request to its first token."""
    payload = {
        "prompt": f"request number {number}: write a function that",
        "n_predict": 8,
        "stream": True,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    began = time.perf_counter()
    async with session.post(f"{url}/completion", json=payload) as reply:
        first = 0.0
        async for line in reply.content:
            if line.startswith(b"data:") and not first:
                first = time.perf_counter() - began
    return first


async def throughput(session: aiohttp.ClientSession, url: str, seconds: float) -> float:
    """Tokens per second of requests that follow each other without a gap."""
    tokens = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        payload = {"prompt": "once upon a time", "n_predict": 64, "ignore_eos": True}
        async with session.post(f"{url}/completion", json=payload) as reply:
            tokens += (await reply.json())["tokens_predicted"]
    return tokens / (time.perf_counter() - began)


def _both() -> dict[str, list[float]]:
    return {"with": [], "without": []}


def quantile(values: list[float], share: float) -> float:
    """Linear between order statistics."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


@dataclass
class Samples:
    """What was measured, with and without mtpmon.

    ``paused`` and ``without_gap``: seconds to first token of requests after a pause, and of
    such as follow each other at once. ``rates``: tokens per second of whole blocks.
    ``outcomes``: of probes.
    """

    paused: dict[str, list[float]] = field(default_factory=_both)
    without_gap: dict[str, list[float]] = field(default_factory=_both)
    rates: dict[str, list[float]] = field(default_factory=_both)
    outcomes: dict[str, int] = field(default_factory=dict)


async def measure(found: Samples, requests: int, without_gap: int, saturated: int) -> None:
    """Add a run."""
    rng = random.Random(7 + len(found.paused["with"]))
    async with (
        LlamaServer(None, cached_model(DEEP)) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):
        watched = watcher(server.url)
        for number in range(2 * requests):
            pause = rng.uniform(0.1, 0.5)
            async with either(watched, number % 2 == 0) as name:
                await asyncio.sleep(pause)
                seconds = await first_token_seconds(session, server.url, number)
                found.paused[name].append(seconds)
        for block in range(2 * math.ceil(without_gap / BLOCK)):
            async with either(watched, block % 4 in (0, 3)) as name:
                for number in range(BLOCK):
                    seconds = await first_token_seconds(session, server.url, number)
                    found.without_gap[name].append(seconds)
        for block in range(saturated):
            async with either(watched, block % 4 in (0, 3)) as name:
                found.rates[name].append(await throughput(session, server.url, 3.0))
        seen = watched.board.snapshot(monotonic_seconds=time.monotonic()).probe_totals.outcomes
        for outcome, count in seen.items():
            found.outcomes[outcome.value] = found.outcomes.get(outcome.value, 0) + count
        await watched.arms.close()


@asynccontextmanager
async def either(watched: Watcher, on: bool) -> AsyncIterator[str]:  # noqa: FBT001
    """With mtpmon running, or without."""
    if not on:
        yield "without"
        return
    async with watching(watched):
        yield "with"


def lines(found: Samples) -> Iterator[str]:
    """What came out."""
    for title, times in (
        ("after a pause", found.paused),
        ("one after another, no idle gap", found.without_gap),
    ):
        if not times["with"]:
            continue
        yield f"time to first token {title}, {len(times['with'])} requests each, milliseconds"
        yield f"{'':14}{'median':>10}{'p99':>10}{'max':>10}"
        rows = {name: _figures(times[name]) for name in ("without", "with")}
        rows["added"] = tuple(b - a for a, b in zip(rows["without"], rows["with"], strict=True))
        for name, figures in rows.items():
            yield f"{name:14}{''.join(f'{1e3 * each:10.1f}' for each in figures)}"
    yield f"probes: {found.outcomes}"
    if found.rates["with"]:
        ratio = statistics.fmean(found.rates["with"]) / statistics.fmean(found.rates["without"])
        pairs = zip(found.rates["with"], found.rates["without"], strict=True)
        spread = sorted(a / b for a, b in pairs)
        yield (
            f"throughput under saturating load, with / without: {ratio:.3f}"
            f" ({spread[0]:.3f} to {spread[-1]:.3f} in {len(spread)} pairs of blocks)"
        )


def _figures(values: list[float]) -> tuple[float, ...]:
    return statistics.median(values), quantile(values, 0.99), max(values)


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="after pauses, of each kind")
    parser.add_argument("--without-gap", type=int, default=100, help="without, of each kind")
    parser.add_argument("--saturated", type=int, default=8, help="3 s blocks, with and without")
    parser.add_argument("--keep", type=Path, help="a file of samples to add to")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    found = Samples()
    if options.keep is not None and options.keep.exists():
        found = msgspec.json.decode(options.keep.read_bytes(), type=Samples)
    asyncio.run(measure(found, options.requests, options.without_gap, options.saturated))
    if options.keep is not None:
        options.keep.write_bytes(msgspec.json.encode(found))
    print("\n".join(lines(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
