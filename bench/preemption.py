"""What mtpmon costs a user: time to first token with and without probes, and throughput.

One real server with one slot, probes as often as they are allowed. Requests with and without
mtpmon alternate, so that drift of the machine falls on both alike:

    python bench/preemption.py [--requests 200] [--saturated 8]
"""

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp

from mtpmon.board import BoardSettings, ServerBoard
from mtpmon.client import LlamaClient
from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer
from mtpmon.model import ProbeOutcome
from mtpmon.probe import Arms, ProbeSettings
from mtpmon.suite import Variant, builtin_suite, cases
from mtpmon.watch import Clock, Timing, Watcher
from mtpmon.window import Evidence

DEEP = ModelSpec(trunk_blocks=24)
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


def quantile(values: list[float], share: float) -> float:
    """Linear between order statistics."""
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


async def run(requests: int, saturated: int) -> None:
    """Measure and print."""
    rng = random.Random(7)
    times: dict[bool, list[float]] = {True: [], False: []}
    rates: dict[bool, list[float]] = {True: [], False: []}
    async with (
        LlamaServer(None, cached_model(DEEP)) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
    ):
        watched = watcher(server.url)
        for number, on in zip(range(2 * requests), itertools.cycle((True, False)), strict=False):
            pause = rng.uniform(0.1, 0.5)
            if on:
                async with watching(watched):
                    await asyncio.sleep(pause)
                    times[on].append(await first_token_seconds(session, server.url, number))
            else:
                await asyncio.sleep(pause)
                times[on].append(await first_token_seconds(session, server.url, number))
        outcomes = watched.board.snapshot(monotonic_seconds=time.monotonic()).probe_totals.outcomes
        for on in itertools.islice(itertools.cycle((True, False, False, True)), saturated):
            if on:
                async with watching(watched):
                    rates[on].append(await throughput(session, server.url, 3.0))
            else:
                rates[on].append(await throughput(session, server.url, 3.0))
        await watched.arms.close()
    print(f"time to first token, {requests} requests each, milliseconds")
    print(f"{'':14}{'median':>10}{'p99':>10}")
    found = {}
    for on in (False, True):
        values = [1e3 * t for t in times[on]]
        found[on] = statistics.median(values), quantile(values, 0.99)
        name = "with mtpmon" if on else "without"
        print(f"{name:14}{found[on][0]:10.1f}{found[on][1]:10.1f}")
    print(
        f"{'added':14}{found[True][0] - found[False][0]:10.1f}"
        f"{found[True][1] - found[False][1]:10.1f}"
    )
    done = {o.value: n for o, n in outcomes.items()}
    print(f"probes: {done}; preempted ones gave way: {outcomes.get(ProbeOutcome.PREEMPTED, 0)}")
    ratio = statistics.fmean(rates[True]) / statistics.fmean(rates[False])
    print(f"throughput under saturating load, with / without: {ratio:.3f}")


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--saturated", type=int, default=8, help="3 s blocks, with and without")
    options = parser.parse_args()
    asyncio.run(run(options.requests, options.saturated))
    return 0


if __name__ == "__main__":
    sys.exit(main())
