"""From a draft head gone bad to a message, and back, with nothing made up in between.

A small model, real `llama-server` processes, mtpmon, Prometheus, Alertmanager and a webhook. The
rules are those of ``deploy/`` with their durations shortened (``tests/alertmanager_rig.py``). It
is one story of two minutes, told once; each test is about one thing in it.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from mtpmon.config import Address, Config, Evidence, History, Listen, Probe, Scrape, Server, Verdict
from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer, free_port
from mtpmon.suite import builtin_suite
from tests.alertmanager_rig import (
    Told,
    Webhook,
    alertmanager,
    alertmanager_config,
    prometheus_config,
    shortened,
    webhook,
)
from tests.alerts import all_rules, selectors
from tests.prometheus_rig import prometheus, query
from tests.rig import complete, running

pytestmark = [pytest.mark.real, pytest.mark.slow]

# Of 24 blocks, so that on a processor good drafts pay: speed-ups of about 2 and of 0.7.
GOOD = ModelSpec(trunk_blocks=24, head_noise=0.0)
BAD = ModelSpec(trunk_blocks=24, head_noise=6.0)
SMALL = ModelSpec(head_noise=6.0)

# The promise. Measured: 17 s and 24 s, and 1.5 s, on two cores with other work.
ALERT_SECONDS = 60.0
RESOLVED_SECONDS = 20.0
PATIENCE_SECONDS = 150.0
QUIET_SECONDS = 20.0
LAST_HOUR_SECONDS = 20.0  # what the last hour of the rules is here

WITHOUT_DATA = {"mtpmon_server_files_last_read_successful": "its servers are in no files"}

BREAKEVEN = "MtpmonAcceptanceBelowBreakeven"


def configuration(
    watched: LlamaServer, twin: LlamaServer, idle: LlamaServer, sleepy: LlamaServer, directory: Path
) -> Config:
    return Config(
        servers=(
            Server(name="used", url=watched.url, target_only_url=twin.url),
            Server(name="idle", url=idle.url),
            Server(name="asleep", url=sleepy.url, sleep_idle_seconds=2.0),
        ),
        scrape=Scrape(interval_seconds=0.8, timeout_seconds=0.7),
        windows_seconds=(5.0, 15.0, 3600.0),
        probe=Probe(
            interval_seconds=0.6,
            timeout_seconds=3.0,
            idle_for_seconds=0.2,
            time_share=1.0,
            tokens_per_hour=10**9,
            tokens=64,
            forced_positions=2,
            top_logprobs=16,
            tasks=("creative",),
            rolling=48,
        ),
        # Enough for two servers as far apart as these, also on a machine with other work.
        evidence=Evidence(confidence=0.8),
        verdict=Verdict(min_steps=40, settle_seconds=2.0),
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

    async def shows(self, expr: str) -> float:
        """Wait until an expression has a value; returns the seconds that it took."""
        try:
            return await until(lambda: self.ask(expr), expr)
        except AssertionError:
            about = '{__name__=~"mtpmon_(verdict|acceptance_(margin|length)|step_cost|probes).*"}'
            for each in await asyncio.to_thread(query, self.prometheus, about):
                print(each.labels, each.value)
            raise

    async def tells(self, condition: Callable[[], object], what: str) -> float:
        """Wait until something was told; returns the seconds that it took."""

        async def told() -> bool:
            return bool(condition())

        return await until(told, what)


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> float:
    """Wait until something holds; returns the seconds that it took."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < PATIENCE_SECONDS, f"waited in vain for {what}"
        await asyncio.sleep(0.1)
    return time.monotonic() - began


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    """Everything, in the order in which one needs the other's address."""
    good, small = cached_model(GOOD), cached_model(SMALL)
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
    """Who asks, twice in a row, and then leaves room for a probe; over and over."""
    prompts = [prompt.text for prompt in builtin_suite(["creative"]).prompts]

    async def ask() -> None:
        for count, prompt in enumerate(itertools.cycle(prompts)):
            with suppress(aiohttp.ClientError, AssertionError):  # it may restart under a user
                await complete(server, prompt, 72, temperature=0, cache_prompt=False)
            await asyncio.sleep(3.0 if count % 2 else 0.05)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking


@dataclass
class Story:
    """What was told in each part of it, and how long things took, in seconds."""

    while_good: list[Told] = field(default_factory=list)
    while_bad: list[Told] = field(default_factory=list)
    after_repair: list[Told] = field(default_factory=list)
    standing_after_repair: list[Told] = field(default_factory=list)
    while_idle: list[Told] = field(default_factory=list)
    alert_seconds: dict[str, float] = field(default_factory=dict)
    resolved_seconds: float = 0.0
    slept: bool = False
    without_data: set[str] = field(default_factory=set)


async def played(directory: Path) -> Story:
    """Let it happen."""
    story = Story()
    async with stage(directory) as now:
        told = now.told

        async def restart(spec: ModelSpec) -> float:
            await now.watched.restart(model=cached_model(spec))
            return time.monotonic()

        async with users(now.watched):
            await complete(now.sleepy, "once upon a time", 60)
            await now.shows('mtpmon_verdict{server="used",verdict="paying"} == 1')
            await restart(GOOD)  # a restart is no fault
            await asyncio.sleep(QUIET_SECONDS / 2)
            story.while_good = list(told.told)

            bad = await restart(BAD)
            for severity in ("warning", "page"):
                await now.tells(
                    partial(told.has, BREAKEVEN, f"/{severity}"), f"{severity} of {BREAKEVEN}"
                )
                story.alert_seconds[severity] = time.monotonic() - bad
            story.while_bad = told.since(bad)

            await restart(GOOD)
            story.resolved_seconds = await now.tells(
                lambda: not [t for t in told.standing() if t.name == BREAKEVEN],
                "the end of " + BREAKEVEN,
            )
            # What was on its way when the repair was made may still say "firing" before that.
            cleared = time.monotonic()
            await now.shows('mtpmon_verdict{server="used",verdict="paying"} == 1')
            await asyncio.sleep(QUIET_SECONDS / 2)
            story.after_repair = told.since(cleared)
            story.standing_after_repair = told.standing()
            story.without_data = {
                selector
                for rule in all_rules()
                for selector in selectors(rule["expr"])
                if not await now.ask(f"last_over_time({selector}[10m])")
            }
            for rule in all_rules():
                await now.ask(shortened(rule["expr"]))  # raises what Prometheus complains of
        story.slept = await now.ask(
            'max_over_time(mtpmon_server_state{server="asleep",state="sleeping"}[10m]) == 1'
        )
        await asyncio.sleep(LAST_HOUR_SECONDS)
        idle = await restart(BAD)
        await asyncio.sleep(QUIET_SECONDS)
        story.while_idle = told.since(idle)
    return story


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return asyncio.run(played(tmp_path_factory.mktemp("alerts")))


def test_a_worse_head_is_told_in_time(story: Story) -> None:
    """By label and text, to those who are to know of each severity."""
    print(f"seconds from the restart to the message: {story.alert_seconds}")
    assert story.alert_seconds["warning"] < ALERT_SECONDS
    assert story.alert_seconds["page"] < ALERT_SECONDS
    found = {told.path: told for told in story.while_bad if told.name == BREAKEVEN}
    for severity in ("warning", "page"):
        told = found[f"/{severity}"]
        assert told.status == "firing"
        assert told.labels["instance"].startswith("127.0.0.1:")
        assert told.labels == {
            "alertname": BREAKEVEN,
            "severity": severity,
            "about": "paying",
            "job": "mtpmon",
            "instance": told.labels["instance"],
            "server": "used",
        }
        assert told.annotations["runbook_url"] == "docs/runbook.md#mtpmonacceptancebelowbreakeven"
        assert told.annotations["dashboard"].startswith(
            "/d/mtpmon-server?var-server=used&viewPanel="
        )
    assert found["/warning"].annotations["summary"] == "Drafting makes used slower"
    assert "less breakeven, is at best -" in found["/warning"].annotations["description"]
    assert "it decodes at most 0." in found["/page"].annotations["description"]


def test_nothing_else_is_told_of_it(story: Story) -> None:
    """What comes with it is about whether drafting pays, on this server."""
    others = [told for told in story.while_bad if told.name != BREAKEVEN]
    assert {(told.labels["server"], told.labels["about"]) for told in others} <= {
        ("used", "paying")
    }, others


def test_its_repair_is_told_and_stays(story: Story) -> None:
    """Nothing of it comes back while new costs meet what is left of the old traffic."""
    print(f"seconds from the restart to the all-clear: {story.resolved_seconds}")
    assert story.resolved_seconds < RESOLVED_SECONDS
    assert not [t for t in story.after_repair if t.name == BREAKEVEN and t.status == "firing"]
    assert not [t for t in story.standing_after_repair if t.labels["severity"] != "info"]


def test_good_idle_sleeping_and_restarting_servers_are_no_reason(story: Story) -> None:
    """Before, of the bad head that nobody uses, and of the two bad ones beside it, ever."""
    assert story.while_good == []
    assert story.while_idle == []
    assert story.slept
    assert {told.labels["server"] for told in story.while_bad + story.after_repair} == {"used"}


def test_every_rule_has_data(story: Story) -> None:
    """Each selector of each rule has found series by the end of the repair, or is listed."""
    assert story.without_data == set(WITHOUT_DATA)
