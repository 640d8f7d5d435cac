"""What a real server can do to a monitor, and what the monitor says meanwhile."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec
import pytest

from mtpmon.board import ServerBoard
from mtpmon.compose import read_config
from mtpmon.config import Config, Probe, Server
from mtpmon.demo.model import DEEP, ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer, free_port
from mtpmon.model import ProbeOutcome, Usage
from tests.rig import (
    Counts,
    Reading,
    Router,
    Users,
    complete,
    configuration,
    fetch,
    read,
    samples,
)

pytestmark = [pytest.mark.real, pytest.mark.slow]

PROMPTS = ("a function that", "once upon a time", "why do people", "the price of the")
INTERVAL = 0.5
WIDE = ModelSpec(trunk_blocks=24, embedding=256)  # 40 MB, so that loading it takes a while


@pytest.fixture(scope="session")
def deep() -> Path:
    """A model that takes its time: some 5 ms a step."""
    return cached_model(DEEP)


def watching(server: LlamaServer, interval: float = INTERVAL, **more: object) -> Config:
    config = configuration(Server(name="a", url=server.url, **more), interval=interval)  # type: ignore[arg-type]
    return msgspec.structs.replace(config, windows_seconds=(3.0, 3600.0))


async def tokens_in(seconds: float, server: LlamaServer) -> int:
    """About how many tokens one request gets in that time, as fast as the machine is now."""
    sample = await Users(server.url).ask("how fast is it", 60)
    return round(seconds * sample.tokens / sample.seconds)


async def traffic(users: Users, requests: int, *, tokens: int = 60) -> None:
    """One user's requests, one after the other."""
    for place in range(requests):
        await users.ask(PROMPTS[place % len(PROMPTS)], tokens + 7 * place)


@asynccontextmanager
async def request_running(users: Users, tokens: int) -> AsyncIterator[asyncio.Task[Counts]]:
    """A long request that has begun to answer; whatever becomes of it is the block's business."""
    answering = asyncio.Event()
    task = asyncio.create_task(users.ask("tell me everything", tokens, first=answering.set))
    try:
        async with asyncio.timeout(60):
            await answering.wait()
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, aiohttp.ClientError):
            await task


def ratio(reading: Reading, window: str = "1h", server: str = "a") -> float | None:
    return dict(reading.of_live("mtpmon_acceptance_ratio", server)).get(window)


async def test_a_kill_in_mid_traffic_loses_only_what_never_ended(deep: Path) -> None:
    """A kill -9, a new process: one restart, totals go on, the request cut off never counts."""
    async with LlamaServer(None, deep) as server:
        users = Users(server.url)
        async with read(watching(server), {"a": users}) as reader:
            await reader.state("ready", since=0)
            await traffic(users, 2)
            await reader.counted()
            async with request_running(users, 4000) as cut:
                since = reader.mark()
                server.kill()
                await reader.state("unreachable", since=since)
                await asyncio.wait({cut})
            await server.restart()
            now = await reader.state("ready", since=reader.mark())
            assert now.value("mtpmon_server_restarts_total", server="a") == 1
            await traffic(users, 2)
            now = await reader.counted()
    assert [r.lost for r in users.requests] == [False, False, True, False, False]
    assert now.value("mtpmon_server_restarts_total", server="a") == 1
    assert ratio(now) is not None


def restarts(reading: Reading, server: str = "a") -> float | None:
    return reading.value("mtpmon_server_restarts_total", server=server)


def waiting(reading: Reading) -> float | None:
    return reading.value("mtpmon_figures_waiting_seconds", server="a")


def speed(reading: Reading, window: str = "3s") -> float | None:
    return dict(reading.of_live("mtpmon_throughput_tokens_per_second")).get(window)


async def test_a_crash_loop_is_counted(model: Path) -> None:
    """Three restarts are three, and what each process served is in the totals."""
    async with LlamaServer(None, model) as server:
        users = Users(server.url)
        async with read(watching(server), {"a": users}) as reader:
            await reader.state("ready", since=0)
            await traffic(users, 1)
            await reader.counted()
            for number in (1, 2, 3):
                server.kill()
                await server.restart()
                await reader.soon(
                    lambda now, n=number: restarts(now) == n,  # type: ignore[misc]
                    since=reader.mark(),
                    what="counted as a restart",
                )
                await traffic(users, 1)
                now = await reader.counted()
    assert restarts(now) == 3
    assert now.state() == "ready"
    assert ratio(now) is not None


@pytest.mark.slow
async def test_a_stopped_server_goes_stale_and_comes_back(deep: Path) -> None:
    """SIGSTOP for 30 s: unreachable at once, no figure outlives the stated age, SIGCONT heals."""
    async with LlamaServer(None, deep) as server:
        users = Users(server.url)
        config = watching(server, 1.0)
        long = await tokens_in(3, server)
        async with read(config, {"a": users}) as reader:
            await reader.state("ready", since=0)
            await traffic(users, 2)
            before = await reader.counted()
            assert ratio(before) is not None
            async with request_running(users, long) as running:
                await reader.until(waiting, what="a request seen")
                since, stopped = reader.mark(), time.monotonic()
                server.pause()
                await reader.state("unreachable", since=since)
                await asyncio.sleep(max(stopped + 30 - time.monotonic(), 0))
                since, resumed = reader.mark(), time.monotonic()
                server.resume()
                await reader.state("ready", since=since)
                await running
            now = await reader.counted()
        age = config.scrape.stale_after_effective_seconds
    assert restarts(now) == 0
    assert ratio(now) is not None
    while_stopped = reader.between(stopped, resumed)
    assert len(while_stopped) > 100
    for each in while_stopped:
        # The last good look began before the stop, and may have ended just before it.
        assert each.live() == before.live()
        if each.began > stopped + age:
            assert ratio(each) is None
            assert speed(each, "1h") is None
            assert waiting(each) is None
            assert each.sum("mtpmon_server_requests") == 0
        elif each.ended < stopped + age - 1 - config.scrape.timeout_seconds:
            assert ratio(each) is not None
            assert waiting(each)


async def test_a_server_that_is_not_there_yet_is_waited_for() -> None:
    """The monitor first: unreachable, perhaps loading, ready, and nothing measured in between."""
    server = LlamaServer(None, cached_model(WIDE), port=free_port())
    users = Users(server.url)
    async with read(watching(server), {"a": users}) as reader:
        await reader.state("unreachable", since=0)
        async with server:
            await reader.state("ready", since=reader.mark())
            await traffic(users, 2)
            now = await reader.counted()
    states = [reading.state() for reading in reader.readings]
    before = reader.readings[: states.index("ready")]
    assert {each.state() for each in before} <= {None, "unreachable", "loading"}
    assert all(each.live() is None for each in before)
    assert restarts(now) == 0
    assert ratio(now) is not None


async def test_a_key_is_asked_for_until_it_is_right(model: Path, tmp_path: Path) -> None:
    """No key, a wrong key: unauthorized, no figure; the right one after a reload: measured."""
    async with LlamaServer(None, model, api_key="right") as server:
        users = Users(server.url, key="right")
        path, key = tmp_path / "mtpmon.yaml", tmp_path / "key"

        def configure(extra: str) -> Config:
            path.write_text(
                f"servers: [{{name: a, url: '{server.url}'{extra}}}]\n"
                "scrape: {interval: 500ms, timeout: 400ms}\n"
                "windows: [3s, 1h]\n"
                "probe: {enabled: false}\n"
                "listen: {address: '127.0.0.1:0'}\n"
            )
            return read_config(path)

        key.write_text("wrong")
        key.chmod(0o600)
        async with read(configure(""), {"a": users}, path=path) as reader:
            await reader.state("unauthorized", since=0)
            configure(f", api_key_file: '{key}'")
            await reader.reload()
            await reader.state("unauthorized", since=0)
            assert all(each.live() is None for each in reader.readings)
            right = tmp_path / "right"
            right.write_text("right")
            right.chmod(0o600)
            configure(f", api_key_file: '{right}'")
            await reader.reload()
            await reader.state("ready", since=0)
            await traffic(users, 1)
            now = await reader.counted()
    assert ratio(now) is not None


async def test_metrics_that_are_switched_off_are_named(model: Path) -> None:
    """Without --metrics: metrics_disabled and no figure; with them again it is measured."""
    async with LlamaServer(None, model, metrics=False) as server:
        users = Users(server.url)
        async with read(watching(server), {"a": users}) as reader:
            await reader.state("metrics_disabled", since=0)
            await traffic(Users(server.url), 1)  # of which no trace can be left
            await asyncio.sleep(2 * INTERVAL)
            for each in reader.readings:
                assert each.state() != "ready"
                assert each.live() is None
            server.metrics = True
            await server.restart()
            await reader.state("ready", since=reader.mark())
            await traffic(users, 1)
            now = await reader.counted()
    assert now.value("mtpmon_scrapes_total", server="a", outcome="metrics_disabled")
    assert ratio(now) is not None


async def test_a_second_scraper_takes_nothing_from_us(model: Path) -> None:
    """Somebody else reads /metrics 20 times a second, which empties its gauges: no figure moves."""
    async with LlamaServer(None, model) as server:
        users = Users(server.url)

        async def steal() -> None:
            async with aiohttp.ClientSession() as session:
                while True:
                    async with session.get(f"{server.url}/metrics") as reply:
                        stolen.append(samples(await reply.text()))
                    await asyncio.sleep(0.05)

        stolen: list[dict[str, float]] = []
        thief = asyncio.create_task(steal())
        async with read(watching(server), {"a": users}) as reader:
            await reader.state("ready", since=0)
            for _ in range(4):
                await traffic(users, 2)
                await asyncio.sleep(INTERVAL / 2)
            now = await reader.counted()
        thief.cancel()
    gauges = [each["llamacpp:predicted_tokens_seconds"] for each in stolen]
    assert 0 in gauges[-10:]  # the thief's own figures are of no use either
    assert ratio(now) is not None


async def test_four_slots_at_once_are_told_apart(deep: Path) -> None:
    """Overlapping requests end in any order, and every reading is of some of them, whole."""
    async with LlamaServer(None, deep, slots=4) as server:
        users = Users(server.url)
        async with read(watching(server), {"a": users}, one_by_one=False) as reader:
            await reader.state("ready", since=0)
            async with asyncio.TaskGroup() as group:
                for place, prompt in enumerate(PROMPTS):
                    group.create_task(users.ask(prompt, 40 + 20 * place))
                    group.create_task(users.ask(prompt[::-1], 40))
            now = await reader.counted()
    busiest = max(
        each.value("mtpmon_server_requests", server="a", state="processing") or 0
        for each in reader.readings
    )
    assert busiest >= 2
    assert users.total.requests == 8
    assert ratio(now) is not None


async def test_a_long_request_is_unknown_and_not_zero(deep: Path) -> None:
    """Busy without an end: no ratio, no throughput, and a gauge that says for how long."""
    async with LlamaServer(None, deep) as server:
        users = Users(server.url)
        # What becomes of the request at the end is nobody's business: the reading ends first.
        async with AsyncExitStack() as last, read(watching(server), {"a": users}) as reader:
            await reader.state("ready", since=0)
            await traffic(users, 1)
            await reader.counted()
            # The short window leaves the request behind: nothing happens, which is known.
            idle = await reader.until(lambda now: speed(now) == 0, what="idle")
            assert ratio(idle, "3s") is None
            assert waiting(idle) == 0
            began = time.monotonic()
            await last.enter_async_context(request_running(users, 4000))
            await reader.until(lambda now: (waiting(now) or 0) > 4, what="waiting")
            waited = time.monotonic()
    busy = [each for each in reader.between(began, waited) if waiting(each)]
    assert len(busy) > 10
    waits = [waiting(each) or 0 for each in busy]
    assert waits == sorted(waits)
    assert waits[-1] <= waited - began
    for each in busy:
        assert ratio(each, "3s") is None
        assert speed(each) is None
        assert dict(each.of_live("mtpmon_decode_tokens_per_second")).get("3s") is None


def probing(server: LlamaServer, interval: float = INTERVAL, **probe: object) -> Config:
    often = {"interval_seconds": 0.3, "idle_for_seconds": 0.1, "timeout_seconds": 5}
    unlimited = {"time_share": 1, "tokens_per_hour": 10**9}
    found = Probe(**{**often, **unlimited, **probe})  # type: ignore[arg-type]
    return msgspec.structs.replace(watching(server, interval), probe=found)


async def own_and_counted(
    board: ServerBoard, server: LlamaServer
) -> tuple[Usage, dict[str, float]]:
    """What we say our requests cost and what the server counted, at a moment without any."""
    async with asyncio.timeout(60):
        while True:
            mark = board.overlap_mark()
            counted = samples(await fetch(f"{server.url}/metrics"))
            if (
                mark is not None
                and mark == board.overlap_mark()
                and not board.settling
                and counted["llamacpp:requests_processing"] == 0
            ):
                return board.snapshot(monotonic_seconds=time.monotonic()).own, counted
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("depth", [2, 24])
async def test_cut_off_probes_cost_what_we_say(depth: int) -> None:
    """Cut off in mid-stream and alone: our account is the server's, and nothing is a user's."""
    async with LlamaServer(None, cached_model(ModelSpec(trunk_blocks=depth))) as server:
        users = Users(server.url)
        config = probing(server, timeout_seconds=0.15, tokens=4000)
        async with read(config, {"a": users}) as reader:
            board = reader.daemon.board["a"]
            await reader.until(lambda _: len(board.failures) >= 8, what="probes cut off")
            own, counted = await own_and_counted(board, server)
            now = await reader.until(lambda now: now.live() is not None)
    assert {r.outcome for r in board.failures} == {ProbeOutcome.TIMEOUT}
    live = now.live()
    assert live is not None
    assert live.exact == Counts().exact
    assert counted["llamacpp:tokens_predicted_total"] > 8
    for name, known in (
        ("tokens_predicted_total", own.generated_tokens),
        ("spec_decode_num_drafts_total", own.drafts),
        ("spec_decode_num_draft_tokens_total", own.draft_tokens),
        ("spec_decode_num_accepted_tokens_total", own.accepted_tokens),
    ):
        assert known is not None
        assert abs(counted[f"llamacpp:{name}"] - known.value) <= known.half_width
    assert own.generated_tokens is not None
    assert own.generated_tokens.half_width <= 8 * len(board.failures)  # two steps of four tokens


async def test_a_user_who_cuts_a_probe_off_gets_no_token_of_it(deep: Path) -> None:
    """Probes that give way: live totals are the users' own, to the token and the position."""
    async with LlamaServer(None, deep) as server:
        users = Users(server.url)
        config = probing(server, timeout_seconds=0.9, tokens=4000)
        # Long enough for a look between the cut and the end of the request that caused it.
        long = await tokens_in(1.5, server)
        async with read(config, {"a": users}) as reader:
            board = reader.daemon.board["a"]
            for prompt in PROMPTS[:3]:
                await reader.until(lambda _: board.overlap_mark() is None, what="a probe")
                await asyncio.sleep(0.2)
                await users.ask(prompt, long)
            now = await reader.counted()
    assert now.value("mtpmon_probes_total", server="a", outcome="preempted")
    assert now.sum("mtpmon_generated_tokens_total", traffic="probe") > 0


async def test_users_figures_are_the_same_with_probes_and_without(model: Path) -> None:
    """The same greedy requests, probed every second and not at all: equal counts, equal ratio."""
    found = []
    for enabled in (True, False):
        async with LlamaServer(None, model) as server:
            users = Users(server.url)
            config = probing(server, enabled=enabled, interval_seconds=1)
            async with read(config, {"a": users}) as reader:
                await reader.state("ready", since=0)
                for _ in range(3):
                    await traffic(users, 4)
                    if enabled:
                        seen = len(reader.daemon.board["a"].results)
                        await reader.until(
                            lambda _, n=seen: len(reader.daemon.board["a"].results) > n,  # type: ignore[misc]
                            what="a probe",
                        )
                now = await reader.counted()
        found.append((users.total.exact, ratio(now)))
        probes = now.value("mtpmon_probes_total", server="a", outcome="completed")
        assert bool(probes) == enabled
    assert found[0] == found[1]
    assert found[0][1] is not None


async def test_a_restart_takes_no_user_with_it_when_a_probe_was_cut_off(deep: Path) -> None:
    """What a probe had from a process that died is not subtracted from the next one's users."""
    async with LlamaServer(None, deep) as server:
        users = Users(server.url)
        config = probing(server, interval_seconds=3600, timeout_seconds=60, tokens=4000)
        async with read(config, {"a": users}) as reader:
            board = reader.daemon.board["a"]
            await reader.until(lambda _: board.overlap_mark() is None, what="a probe")
            await asyncio.sleep(1)
            server.kill()
            await reader.until(lambda _: board.overlap_mark() is not None, what="its end")
            await server.restart()
            await reader.soon(lambda now: restarts(now) == 1, since=reader.mark(), what="restarted")
            await traffic(users, 2, tokens=20)
            now = await reader.counted()
    assert now.sum("mtpmon_generated_tokens_total", traffic="probe") > 20
    assert restarts(now) == 1


# --- servers that sleep -------------------------------------------------------------------

SLEEP = 3


async def asleep(server: LlamaServer) -> bool:
    """Whether it says so. Asking neither wakes it nor keeps it awake."""
    return bool(json.loads(await fetch(f"{server.url}/props"))["is_sleeping"])


async def falls_asleep(server: LlamaServer, *, within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if await asleep(server):
            return True
        await asyncio.sleep(0.1)
    return False


def wakings(server: LlamaServer) -> int:
    return server.log_path.read_text(errors="replace").count("handle_sleep: server is exiting")


def sleeper(model: Path) -> LlamaServer:
    return LlamaServer(None, model, extra_args=["--sleep-idle-seconds", str(SLEEP)])


@pytest.mark.slow
async def test_a_server_we_watch_sleeps_on_time_and_in_peace(deep: Path) -> None:
    """Watched every second and probed, it sleeps when due, is not woken, and nothing is lost."""
    interval = 1.0
    async with sleeper(deep) as server:
        users = Users(server.url)
        config = probing(server, interval, idle_for_seconds=0.5, interval_seconds=3600)
        watched = msgspec.structs.replace(config.servers[0], sleep_idle_seconds=float(SLEEP))
        config = msgspec.structs.replace(config, servers=(watched,))
        long = await tokens_in(1, server)
        async with read(config, {"a": users}) as reader:
            board = reader.daemon.board["a"]
            await reader.state("ready", since=0)
            # An idle server's metrics are left alone, so it may take a few requests to be seen.
            while not (reader.latest.live() or Counts()).tokens:
                await users.ask("a function that", long)
            await reader.counted()
            # One probe may follow what users did. It is the last that the server serves, and
            # the look after it the last that counts as use.
            await reader.until(lambda _: len(board.results) == 1, what="a probe")
            await users.ask("why", 3)
            assert await falls_asleep(server, within=SLEEP + 2 * interval + 1)
            await reader.state("sleeping", since=reader.mark())
            fell_asleep = time.monotonic()
            await asyncio.sleep(1.1 * SLEEP + 2 + interval)
            assert await asleep(server)
            assert wakings(server) == 0
            slept = reader.between(fell_asleep, time.monotonic())
            assert {each.state() for each in slept} == {"sleeping"}
            assert len(board.results) == 1
            async with request_running(users, 2 * long) as awake:
                await reader.state("ready", since=reader.mark())
                await awake
            now = await reader.counted()
            assert wakings(server) == 1
    assert restarts(now) == 0
    assert ratio(now) is not None


async def test_a_server_found_asleep_is_left_in_peace(deep: Path) -> None:
    """Its idle time not configured: not woken, measured when a user wakes it, and asleep again."""
    async with sleeper(deep) as server:
        users = Users(server.url)
        long = await tokens_in(2, server)
        assert await falls_asleep(server, within=SLEEP + 2)
        async with read(watching(server, 1.0), {"a": users}) as reader:
            await reader.state("sleeping", since=0)
            await reader.until(lambda now: now.looks() >= 3)
            assert await asleep(server)
            assert wakings(server) == 0
            async with request_running(users, long) as awake:
                await reader.state("ready", since=reader.mark())
                await awake
            now = await reader.counted()
            assert ratio(now) is not None
            assert await falls_asleep(server, within=SLEEP + 3)
            await reader.state("sleeping", since=reader.mark())
        assert wakings(server) == 1


async def test_an_idle_time_that_is_not_known_is_not_guarded(model: Path) -> None:
    """Not configured and never seen: such a server sleeps if its build lets a read be no use."""
    async with sleeper(model) as server, sleeper(model) as control:

        async def read_control() -> None:
            while True:
                await fetch(f"{control.url}/metrics")
                await asyncio.sleep(1)

        reading = asyncio.create_task(read_control())
        async with read(watching(server, 1.0)) as reader:
            await reader.state("ready", since=0)
            sleeps = await falls_asleep(control, within=SLEEP + 3)
            assert await asleep(server) == sleeps
            await reader.state("sleeping" if sleeps else "ready", since=reader.mark())
        reading.cancel()


# --- a router -----------------------------------------------------------------------------


async def test_a_routers_models_are_watched_and_never_loaded(model: Path, tmp_path: Path) -> None:
    """Each model by name: one nobody loads stays unloaded, one that users load is measured."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.gguf").symlink_to(model)
    async with Router(None, tmp_path) as router:
        users = Users(router.url, model="one")
        one, two = (
            Server(name=n, url=router.url, model=m) for n, m in (("a", "one"), ("b", "two"))
        )
        config = msgspec.structs.replace(probing(router, interval_seconds=1), servers=(one, two))
        async with read(config, {"a": users}) as reader:
            for name in ("a", "b"):
                await reader.state("sleeping", since=0, server=name)
            await reader.until(lambda now: min(now.looks("a"), now.looks("b")) >= 3)
            assert await router.statuses() == {"one": "unloaded", "two": "unloaded"}
            await router.load("one")
            await reader.state("ready", since=reader.mark())
            await reader.until(lambda now: now.live() is not None, what="measured")
            await traffic(users, 2)
            now = await reader.counted()
            assert ratio(now) is not None
            board = reader.daemon.board["a"]
            await reader.until(lambda _: len(board.results) >= 1, what="a probe of it")
            await router.unload("one")
            await reader.state("sleeping", since=reader.mark())
            looks = reader.latest.looks() + 3
            await reader.until(lambda now: now.looks() >= looks)
            assert await router.statuses() == {"one": "unloaded", "two": "unloaded"}
            await router.load("one")
            await reader.state("ready", since=reader.mark())
            await traffic(users, 2)
            await reader.counted()
        assert (await router.statuses())["two"] == "unloaded"
    assert {each.state("b") for each in reader.readings} <= {None, "sleeping"}
    outcomes = {"server": "b", "outcome": "not_loaded"}
    assert reader.latest.value("mtpmon_scrapes_total", **outcomes) == reader.latest.looks("b")


# --- a build without speculative counters -------------------------------------------------

OLD = os.environ.get("MTPMON_LLAMA_SERVER_OLD")

if OLD:  # one such build can be had by compiling it; without it a recorded one must do

    async def test_a_real_old_build_is_measured_by_probes_and_says_so(model: Path) -> None:
        """No speculative counters: acceptance is the probes', no live one is made up."""
        async with LlamaServer(OLD, model) as server:
            async with read(probing(server)) as reader:
                board = reader.daemon.board["a"]
                await reader.until(lambda _: len(board.results) >= 3, what="probes")
                await complete(server, "a function that", 60)
                now = await reader.until(lambda now: now.live() != Counts(), what="a user")
            reported = sum(
                r.speculating.timings.draft_tokens or 0 for r in board.results if r.speculating
            )
        assert reported > 100
        assert now.hot("mtpmon_acceptance_source", "source") == "probes"
        acceptance = {"server": "a", "traffic": "probe", "window": "1h"}
        assert now.value("mtpmon_acceptance_ratio", **acceptance)
        for each in reader.readings:
            assert each.of_live("mtpmon_acceptance_ratio") == []
            assert each.value("mtpmon_drafts_total", server="a", traffic="live") is None
