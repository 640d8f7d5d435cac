"""From a draft head gone bad to a message, and back, with nothing made up in between.

A small model, real `llama-server` processes, mtpmon, Prometheus, Alertmanager and a webhook. The
rules are those of ``deploy/`` with their durations shortened (``tests/alertmanager_rig.py``).
"""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from mtpmon.config import Address, Config, History, Listen, Probe, Scrape, Server, Verdict
from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer, free_port
from mtpmon.suite import builtin_suite
from tests.alertmanager_rig import (
    Webhook,
    alertmanager,
    alertmanager_config,
    all_rules,
    prometheus_config,
    shortened,
    webhook,
)
from tests.prometheus_rig import prometheus, query
from tests.rig import complete, running

pytestmark = [pytest.mark.real, pytest.mark.slow]

# Of 24 blocks, so that a good draft pays on a processor.
GOOD = ModelSpec(trunk_blocks=24, head_noise=0.0)
BAD = ModelSpec(trunk_blocks=24, head_noise=6.0)
BAD_AND_SMALL = ModelSpec(head_noise=6.0)

# Within which a message must be there. With the durations of the rules as they are used here.
ALERT_SECONDS = 60.0
RESOLVED_SECONDS = 60.0

# Series that a rule names and that cannot be there in this run, and why.
ABSENT = {
    "mtpmon_server_state": "",
}

SELECTOR = re.compile(r"\b(mtpmon[_:][a-z0-9_:]+|up)\b\s*(\{[^}]*\})?")


def configuration(
    watched: LlamaServer, twin: LlamaServer, idle: LlamaServer, sleepy: LlamaServer, directory: Path
) -> Config:
    return Config(
        servers=(
            Server(name="used", url=watched.url, target_only_url=twin.url),
            Server(name="idle", url=idle.url),
            Server(name="asleep", url=sleepy.url, sleep_idle_seconds=2.0),
        ),
        scrape=Scrape(interval_seconds=0.5, timeout_seconds=0.4),
        windows_seconds=(4.0, 10.0, 3600.0),
        probe=Probe(
            interval_seconds=0.5,
            timeout_seconds=0.5 * 20,
            idle_for_seconds=0.3,
            time_share=1.0,
            tokens_per_hour=10**9,
            tokens=32,
            forced_positions=2,
            top_logprobs=16,
            tasks=("creative",),
            rolling=16,
        ),
        verdict=Verdict(min_steps=60, settle_seconds=2.0),
        history=History(path=directory / "history.db"),
        listen=Listen(address=Address("127.0.0.1", free_port())),
    )


@dataclass
class Stage:
    """All that runs."""

    watched: LlamaServer
    sleepy: LlamaServer
    prometheus: str
    told: Webhook

    async def ask(self, expr: str) -> bool:
        """Whether an expression has a value."""
        return bool(await asyncio.to_thread(query, self.prometheus, expr))

    async def until(self, expr: str, *, seconds: float) -> float:
        """Wait until an expression has a value; returns the seconds that it took."""
        began = time.monotonic()
        while not await self.ask(expr):
            waited = time.monotonic() - began
            assert waited < seconds, f"not within {seconds:g} s: {expr}; {self.told.summary()}"
            await asyncio.sleep(0.2)
        return time.monotonic() - began


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    good, small = cached_model(GOOD), cached_model(BAD_AND_SMALL)
    cached_model(BAD)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        watched = await enter(LlamaServer(None, good))
        twin = await enter(LlamaServer(None, good, speculate=False))
        idle = await enter(LlamaServer(None, small))
        sleepy = await enter(LlamaServer(None, small, extra_args=("--sleep-idle-seconds", "2")))
        config = configuration(watched, twin, idle, sleepy, directory)
        told = await enter(webhook())
        places = [directory / name for name in ("alertmanager", "prometheus")]
        for place in places:
            place.mkdir()
        address = await asyncio.to_thread(
            stack.enter_context, alertmanager(alertmanager_config(told.url), places[0])
        )
        await enter(running(config))
        port = config.listen.address.port
        text = prometheus_config(places[1], mtpmon=f"127.0.0.1:{port}", alertmanager=address)
        url = await asyncio.to_thread(stack.enter_context, prometheus(text, places[1]))
        yield Stage(watched, sleepy, url, told)


@asynccontextmanager
async def users(server: LlamaServer) -> AsyncIterator[None]:
    """Who asks, four times in a row, and then leaves room for a probe; over and over."""
    prompts = [prompt.text for prompt in builtin_suite(["creative"]).prompts]

    async def ask() -> None:
        for count, prompt in enumerate(itertools.cycle(prompts)):
            # One that is restarted under a user drops him.
            with suppress(aiohttp.ClientError, AssertionError):
                await complete(server, prompt, 96, temperature=0, cache_prompt=False)
            await asyncio.sleep(1.5 if count % 4 == 3 else 0.02)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


async def test_a_worse_head_is_told_and_its_repair_too(tmp_path: Path) -> None:
    """Told within `ALERT_SECONDS` by label and text, over within `RESOLVED_SECONDS`.

    Nothing is told before, of servers that are idle or asleep with the bad head, or of the same
    change while nobody uses the server.
    """
    async with stage(tmp_path) as now:
        await complete(now.sleepy, "once upon a time", 60)
        async with users(now.watched):
            good = await now.until(
                'mtpmon_verdict{server="used",verdict="paying"} == 1', seconds=60
            )
            await asyncio.sleep(5)
            assert not now.told.told, now.told.summary()

            await now.watched.restart(model=cached_model(BAD))
            began = time.monotonic()
            names = "MtpmonAcceptanceBelowBreakeven"
            for severity in ("warning", "page"):
                await now.told.until(
                    lambda: any(t.name == names and t.path == "/" + severity for t in now.told.told),
                    seconds=ALERT_SECONDS,
                    what=severity,
                )
                print(severity, "after", time.monotonic() - began)
            print(now.told.summary())
            for t in now.told.told: print(t)
            await now.watched.restart(model=cached_model(GOOD))
            began = time.monotonic()
            await now.told.until(lambda: not now.told.standing(), seconds=RESOLVED_SECONDS, what="resolved")
            print("resolved after", time.monotonic() - began)
            await asyncio.sleep(15)
            print(now.told.summary())
        print("paying after", good)
