"""A naive exporter beside mtpmon, on the same real servers: what each prints in each trap.

    python bench/naive.py

Takes about two minutes. Prints a Markdown table for the build at hand. Where the variable
MTPMON_LLAMA_SERVER_OLD names a build without speculative counters, that one is asked too.

The naive exporter does what a first attempt would: it divides differences of counters as they
are printed, passes gauges on, and says 0 where nothing moved.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import structlog
from aiohttp import web

from mtpmon.config import Address, Config, Listen, Probe, Scrape, Server
from mtpmon.daemon import Daemon
from mtpmon.demo.model import DEEP, ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer

INTERVAL = 0.5
LIMIT_SECONDS = 180
MOST_SECONDS_OF_TRAFFIC = 40
PROMPTS = ("a function that", "once upon a time", "why do people", "the price of the")
SPEC = "llamacpp:spec_decode_num_"
LIVE = 'server="a",traffic="live"'
NOTHING = "no sample"

Samples = Mapping[str, float]


def samples(text: str) -> dict[str, float]:
    """Name and labels → value."""
    pairs = (line.rpartition(" ") for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, _, value in pairs}


async def fetch(url: str) -> str:
    """A body, by a connection of its own."""
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return await reply.text()


async def complete(server: LlamaServer, prompt: str, tokens: int, **more: object) -> Samples:
    """A user's greedy request; returns its ``timings``."""
    body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, "temperature": 0}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/completion", json={**body, "cache_prompt": False, **more}) as r,
    ):
        timings: dict[str, float] = (await r.json())["timings"]
        return timings


# --- the naive exporter -------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What the naive exporter prints after one scrape."""

    up: int
    acceptance: float = 0.0
    tokens_per_second: float = 0.0
    decode: float = 0.0
    busy: float = 0.0
    gauge: float = 0.0
    started: str = ""
    generated: float = 0.0


@dataclass
class Naive:
    """Scrapes a server as often as mtpmon does."""

    url: str
    interval: float = INTERVAL
    looks: list[Look] = field(default_factory=list)
    _before: tuple[float, Samples] | None = None

    async def run(self) -> None:
        """For ever, by one connection that is kept."""
        async with aiohttp.ClientSession() as session:
            while True:
                self.looks.append(await self.look(session))
                await asyncio.sleep(self.interval)

    async def look(self, session: aiohttp.ClientSession) -> Look:
        """One scrape."""
        try:
            async with session.get(f"{self.url}/metrics") as reply:
                text, status = await reply.text(), reply.status
                token = reply.headers.get("Process-Start-Time-Unix", "0")
        except (aiohttp.ClientError, TimeoutError):
            return Look(0)
        if status != 200:
            return Look(0)
        now, found = time.monotonic(), samples(text)
        before, self._before = self._before, (now, found)
        if before is None:
            return Look(1)
        change = {name: value - before[1].get(name, 0.0) for name, value in found.items()}
        generated = change["llamacpp:tokens_predicted_total"]
        seconds = change["llamacpp:tokens_predicted_seconds_total"]
        drafted = change.get(f"{SPEC}draft_tokens_total", 0.0)
        accepted = change.get(f"{SPEC}accepted_tokens_total", 0.0)
        return Look(
            up=1,
            acceptance=accepted / drafted if drafted else 0.0,
            tokens_per_second=generated / (now - before[0]),
            decode=generated / seconds if seconds else 0.0,
            busy=seconds / (now - before[0]),
            gauge=found["llamacpp:predicted_tokens_seconds"],
            started=datetime.fromtimestamp(int(token), UTC).date().isoformat(),
            generated=found["llamacpp:tokens_predicted_total"],
        )


# --- mtpmon beside it ---------------------------------------------------------------------


def configuration(*servers: Server, probing: bool, interval: float = INTERVAL) -> Config:
    """Fast looks; probes as often as they are allowed, or none."""
    return Config(
        servers=servers,
        scrape=Scrape(interval_seconds=interval, timeout_seconds=0.9 * interval),
        windows_seconds=(2.0, 3600.0),
        probe=Probe(
            enabled=probing,
            interval_seconds=0.5,
            timeout_seconds=5.0,
            idle_for_seconds=0.2,
            time_share=1.0,
            tokens_per_hour=10**9,
        ),
        listen=Listen(address=Address("127.0.0.1", 0)),
    )


@asynccontextmanager
async def mtpmon(config: Config) -> AsyncIterator[Callable[[], Awaitable[Samples]]]:
    """A daemon in this process; yields a reader of its metrics."""
    daemon, started = Daemon(config), asyncio.Event()
    task = asyncio.create_task(daemon.run(started=started.set))
    await started.wait()

    async def metrics() -> Samples:
        return samples(await fetch(f"{daemon.url}/metrics"))

    try:
        yield metrics
    finally:
        daemon.stop()
        await task


@dataclass
class Both:
    """The naive exporter and mtpmon on one server."""

    naive: Naive
    metrics: Callable[[], Awaitable[Samples]]

    async def settle(self) -> Samples:
        """What mtpmon says when it has had the time to see all."""
        await asyncio.sleep(2.5 * INTERVAL)
        return await self.metrics()


@asynccontextmanager
async def both(url: str, *, probing: bool = False, **server: object) -> AsyncIterator[Both]:
    """Run both until the block ends."""
    watched = Server(name="a", url=url, **server)  # type: ignore[arg-type]
    async with mtpmon(configuration(watched, probing=probing)) as metrics:
        naive = Naive(url)
        task = asyncio.create_task(naive.run())
        try:
            await asyncio.sleep(2.5 * INTERVAL)
            yield Both(naive, metrics)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def state(found: Samples, server: str = "a") -> str:
    """The state mtpmon gives a server."""
    start, end = 'mtpmon_server_state{server="' + server + '",state="', '"}'
    hot = [n for n, value in found.items() if n.startswith(start) and value == 1]
    return hot[0].removeprefix(start).removesuffix(end) if hot else NOTHING


def figure(found: Samples, name: str, window: str = "1h", digits: int = 3) -> str:
    """A live figure of mtpmon, with its bounds where it has any."""

    def read(metric: str) -> float | None:
        return found.get(f'{metric}{{{LIVE},window="{window}"}}')

    value = read(name)
    if value is None:
        return NOTHING
    stem, _, unit = name.partition("_tokens_per_second" if "_tokens_per" in name else "_ratio")
    unit = name.removeprefix(stem)
    low, high = read(f"{stem}_lower{unit}"), read(f"{stem}_upper{unit}")
    bounds = f" ({low:.{digits}f} to {high:.{digits}f})" if low is not None and high else ""
    return f"{value:.{digits}f}{bounds}"


def live_total(found: Samples, name: str) -> float:
    """A total of users' traffic."""
    return found.get(f"mtpmon_{name}_total{{{LIVE}}}", 0.0)


def span(values: list[float], digits: int = 2) -> str:
    """Least to greatest."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}" if values else NOTHING


# --- the traps ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One trap: what is true, and what each of the two printed."""

    trap: str
    truth: str
    naive: str
    ours: str


@asynccontextmanager
async def aged(server: LlamaServer, years: int) -> AsyncIterator[str]:
    """The same server as if it had counted to ``years`` before: printed with six digits."""

    async def answer(request: web.Request) -> web.Response:
        text = await fetch(f"{server.url}{request.path_qs}")
        if request.path != "/metrics":
            return web.Response(text=text, content_type="application/json")
        lines = []
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            old = {"drafts": years, "draft_tokens": 3 * years, "accepted_tokens": 2 * years}
            stem = name.removeprefix(SPEC).removesuffix("_total")
            if stem in old:
                line = f"{name} {float(value) + old[stem]:g}"  # noqa: PLW2901
            elif stem.startswith("accepted_tokens_per_pos") and name[0] != "#":
                line = f"{name} {int(value) + 2 * years // 3}"  # noqa: PLW2901
            lines.append(line + "\n")
        return web.Response(text="".join(lines))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def six_digits() -> Row:
    """Counters of ten million, read through a proxy that adds so much to a real server's."""
    async with (
        LlamaServer(None, cached_model(ModelSpec())) as server,
        aged(server, 10**7) as url,
        both(url) as watched,
    ):
        drafted = accepted = 0.0
        began = time.monotonic()
        found: Samples = {}
        while figure(found, "mtpmon_acceptance_ratio") == NOTHING:
            timings = await complete(server, PROMPTS[int(drafted) % 4], 400)
            drafted += timings["draft_n"]
            accepted += timings["draft_n_accepted"]
            found = await watched.metrics()
            if time.monotonic() - began > MOST_SECONDS_OF_TRAFFIC:
                break
    naive = [look.acceptance for look in watched.naive.looks[3:-3]]
    return Row(
        "six digits: counters of 10 million",
        f"acceptance {accepted / drafted:.3f}",
        f"acceptance {span(naive)}",
        "acceptance: no sample until the error is below 1 %, then"
        f" {figure(found, 'mtpmon_acceptance_ratio')}",
    )


async def moves_at_the_end() -> list[Row]:
    """One long request, and then nothing."""
    async with LlamaServer(None, cached_model(DEEP)) as server, both(server.url) as watched:
        await complete(server, PROMPTS[0], 100)
        await asyncio.sleep(3)
        idle, idle_looks = await watched.settle(), watched.naive.looks[-2:]
        began = time.monotonic()
        task = asyncio.create_task(complete(server, PROMPTS[1], 1500))
        await asyncio.wait({task}, timeout=3)
        running, during = await watched.metrics(), watched.naive.looks[-2:]
        timings = await task
        wall = time.monotonic() - began
        after = await watched.settle()
        spike = max(look.tokens_per_second for look in watched.naive.looks[-6:])
    waiting = running['mtpmon_figures_waiting_seconds{server="a"}']
    figures = ("mtpmon_acceptance_ratio", "mtpmon_throughput_tokens_per_second")
    return [
        Row(
            "counters move at the end: while a request runs",
            "not known yet",
            f"acceptance {during[-1].acceptance:.2f}, {during[-1].tokens_per_second:.0f} tok/s",
            f"acceptance: {figure(running, figures[0], '2s')}, tok/s:"
            f" {figure(running, figures[1], '2s')}; waiting for {waiting:.1f} s",
        ),
        Row(
            "… and when it ends",
            f"{timings['predicted_n'] / wall:.0f} tok/s for {wall:.1f} s",
            f"{spike:.0f} tok/s for {INTERVAL} s",
            f"{figure(after, figures[1], '2s', 0)} tok/s",
        ),
        Row(
            "… and with no request at all",
            "no acceptance, 0 tok/s",
            f"acceptance {idle_looks[-1].acceptance:.2f}",
            f"acceptance: {figure(idle, figures[0], '2s')},"
            f" {figure(idle, figures[1], '2s', 0)} tok/s",
        ),
    ]


async def first_token() -> Row:
    """Requests of two tokens, of which one takes a decode step."""
    async with LlamaServer(None, cached_model(DEEP)) as server, both(server.url) as watched:
        tokens = seconds = 0.0
        for place in range(8):
            timings = await complete(server, f"{PROMPTS[place % 4]} {place}", 2)
            tokens += timings["predicted_n"]
            seconds += timings["predicted_ms"] / 1e3
            await asyncio.sleep(1.2 * INTERVAL)
        found = await watched.settle()
    return Row(
        "the first token is free: requests of 2 tokens",
        f"{(tokens - 8) / seconds:.0f} tok/s",
        f"{tokens / seconds:.0f} tok/s",
        f"{figure(found, 'mtpmon_decode_tokens_per_second', digits=0)} tok/s",
    )


async def restart() -> list[Row]:
    """Kill -9 after some traffic."""
    async with LlamaServer(None, cached_model(ModelSpec())) as server, both(server.url) as watched:
        tokens = (await complete(server, PROMPTS[0], 400))["predicted_n"]
        await watched.settle()
        started = watched.naive.looks[-1].started
        server.kill()
        await server.restart()
        tokens += (await complete(server, PROMPTS[1], 100))["predicted_n"]
        found = await watched.settle()
        looks = watched.naive.looks
    restarts = found['mtpmon_server_restarts_total{server="a"}']
    return [
        Row(
            "restart: 400 tokens, kill -9, 100 tokens",
            f"{tokens:.0f} tokens, 1 restart",
            f"{looks[-1].generated:.0f} tokens, at worst"
            f" {min(look.tokens_per_second for look in looks):.0f} tok/s",
            f"{live_total(found, 'generated_tokens'):.0f} tokens, {restarts:.0f} restart",
        ),
        Row(
            "`Process-Start-Time-Unix` of a server started just now",
            datetime.now(UTC).date().isoformat(),
            f"started {started}",
            "an opaque token, compared for being the same",
        ),
    ]


async def own_probes() -> Row:
    """Users who write fiction while probes go through all tasks."""
    async with (
        LlamaServer(None, cached_model(ModelSpec())) as server,
        both(server.url, probing=True) as watched,
    ):
        drafted = accepted = tokens = 0.0
        for place in range(6):
            timings = await complete(server, f"a dragon and a fox in the forest, {place}", 80)
            drafted += timings["draft_n"]
            accepted += timings["draft_n_accepted"]
            tokens += timings["predicted_n"]
            await asyncio.sleep(1.5)
        found = await watched.settle()
        counted = samples(await fetch(f"{server.url}/metrics"))
    theirs = counted[f"{SPEC}accepted_tokens_total"] / counted[f"{SPEC}draft_tokens_total"]
    return Row(
        "the monitor's own probes",
        f"users: acceptance {accepted / drafted:.3f}, {tokens:.0f} tokens",
        f"acceptance {theirs:.3f}, {counted['llamacpp:tokens_predicted_total']:.0f} tokens",
        f"acceptance {figure(found, 'mtpmon_acceptance_ratio')},"
        f" {live_total(found, 'generated_tokens'):.0f} tokens",
    )


async def sleeping() -> Row:
    """Two servers that sleep after 2 s without a request, one for each monitor."""
    sleepy = ["--sleep-idle-seconds", "2"]
    file = cached_model(ModelSpec())
    async with (
        LlamaServer(None, file, extra_args=sleepy) as one,
        LlamaServer(None, file, extra_args=sleepy) as two,
    ):
        watched = Server(name="a", url=two.url, sleep_idle_seconds=2.0)
        naive = Naive(one.url)
        task = asyncio.create_task(naive.run())
        async with mtpmon(configuration(watched, probing=False)) as metrics:
            await asyncio.sleep(6)
            asleep = [json.loads(await fetch(f"{s.url}/props"))["is_sleeping"] for s in (one, two)]
            found = await metrics()
        task.cancel()
    said = [f"the server {'sleeps' if each else 'is kept awake'}" for each in asleep]
    return Row(
        "`--sleep-idle-seconds 2`, 6 s later",
        "asleep",
        f"up {naive.looks[-1].up}, {naive.looks[-1].tokens_per_second:.0f} tok/s; {said[0]}",
        f"state {state(found)}; {said[1]}",
    )


class Router(LlamaServer):
    """A `llama-server` that loads the models of a directory when they are asked for."""

    def command(self) -> list[str]:
        """Returns the usual command line, with a directory."""
        words = super().command()
        words[words.index("--model")] = "--models-dir"
        return words

    async def loaded(self) -> str:
        """Returns what it says of its only model."""
        status: str = json.loads(await fetch(f"{self.url}/models"))["data"][0]["status"]["value"]
        return status


async def router() -> Row:
    """A router whose only model nobody has asked for."""
    with TemporaryDirectory() as directory:
        (Path(directory) / "one.gguf").symlink_to(cached_model(ModelSpec()))
        async with Router(None, directory) as server:
            async with both(server.url, model="one") as watched:
                found = await watched.settle()
                left = await server.loaded()
            await fetch(f"{server.url}/metrics?model=one")
            after = await server.loaded()
    return Row(
        "router, model not loaded",
        "not loaded",
        f"up {watched.naive.looks[-1].up}; with `?model=` the model is {after}",
        f"state {state(found)}, outcome not_loaded; the model is {left}",
    )


async def refusals() -> list[Row]:
    """Servers that answer with something else than metrics."""
    file = cached_model(ModelSpec())
    rows = []
    for trap, server in (
        ("no `--metrics`", LlamaServer(None, file, metrics=False)),
        ("`--api-key`, not given to the monitor", LlamaServer(None, file, api_key="secret")),
    ):
        async with server, both(server.url) as watched:
            found = await watched.settle()
            up = watched.naive.looks[-1].up
        rows.append(Row(trap, "the server runs", f"up {up}", f"state {state(found)}"))
    return rows


async def loading() -> Row:
    """A server that loads 40 MB while it is looked at ten times a second."""
    server = LlamaServer(None, cached_model(ModelSpec(trunk_blocks=24, embedding=256)))
    seen: list[str] = []
    async with server:
        server.kill()
        watched = Server(name="a", url=server.url)
        async with mtpmon(configuration(watched, probing=False, interval=0.1)) as metrics:

            async def watch() -> None:
                while True:
                    seen.append(state(await metrics()))
                    await asyncio.sleep(0.05)

            naive = Naive(server.url, interval=0.1)
            tasks = [asyncio.create_task(naive.run()), asyncio.create_task(watch())]
            await asyncio.sleep(0.5)
            await server.restart()
            await asyncio.sleep(1)
            for task in tasks:
                task.cancel()
    ups = "".join(str(look.up) for look in naive.looks)
    return Row(
        "starting",
        "connection refused, then 503 while loading, then ready",
        f"up {'0, then 1' if '01' in ups else ups}",
        "state " + ", then ".join(dict.fromkeys(s for s in seen if s != NOTHING)),
    )


async def second_scraper() -> Row:
    """Somebody else reads /metrics 20 times a second."""
    async with LlamaServer(None, cached_model(ModelSpec())) as server:
        thief = asyncio.create_task(Naive(server.url, interval=0.05).run())
        async with both(server.url) as watched:
            tokens = seconds = 0.0
            for place in range(8):
                timings = await complete(server, PROMPTS[place % 4], 300)
                tokens += timings["predicted_n"] - 1
                seconds += timings["predicted_ms"] / 1e3
                await asyncio.sleep(INTERVAL)
            found = await watched.settle()
        thief.cancel()
    gauges = [look.gauge for look in watched.naive.looks[2:-3]]
    return Row(
        "a second scraper empties the gauges",
        f"{tokens / seconds:.0f} tok/s",
        f"`predicted_tokens_seconds` {span(gauges, 0)}",
        f"{figure(found, 'mtpmon_decode_tokens_per_second', digits=0)} tok/s",
    )


async def many_slots() -> Row:
    """Four requests at once on four slots."""
    async with (
        LlamaServer(None, cached_model(DEEP), slots=4) as server,
        both(server.url) as watched,
    ):
        done = await asyncio.gather(*(complete(server, p, 200) for p in PROMPTS))
        found = await watched.settle()
    seconds = sum(t["predicted_ms"] for t in done) / 1e3
    tokens = sum(t["predicted_n"] for t in done)
    busiest = max(look.busy for look in watched.naive.looks)
    return Row(
        "several slots: four requests at once",
        f"each stream {(tokens - 4) / seconds:.0f} tok/s",
        f"the server was busy {busiest:.0%} of the time",
        f"each stream {figure(found, 'mtpmon_decode_tokens_per_second', digits=0)} tok/s",
    )


async def missing_probabilities() -> Row:
    """What comes out of verification steps has no log-probabilities."""
    file = cached_model(ModelSpec())
    async with (
        LlamaServer(None, file) as server,
        LlamaServer(None, file, speculate=False) as twin,
        both(server.url, probing=True, target_only_url=twin.url) as watched,
    ):
        url = f"{server.url}/completion"
        body = {"prompt": PROMPTS[0], "n_predict": 64, "temperature": -1, "n_probs": 8}
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
            places = (await reply.json())["completion_probabilities"]
        for _ in range(20):
            await asyncio.sleep(INTERVAL)
            found = await watched.metrics()
            if found.get('mtpmon_probes_total{outcome="completed",server="a"}', 0) >= 3:
                break
    certain = sum(place["logprob"] == 0 and not place["top_logprobs"] for place in places)
    counts = {
        result: found.get(f'mtpmon_kld_positions_total{{result="{result}",server="a"}}', 0)
        for result in ("comparable", "missing")
    }
    return Row(
        "missing log-probabilities",
        "not available",
        f"p = 1 for {certain} of {len(places)} tokens",
        f"{counts['missing']:.0f} positions missing, {counts['comparable']:.0f} compared",
    )


async def old_build() -> list[Row]:
    """Short requests to a build that counts whole milliseconds and no drafts."""
    binary = os.environ.get("MTPMON_LLAMA_SERVER_OLD")
    if not binary:
        return []
    async with (
        LlamaServer(binary, cached_model(ModelSpec())) as server,
        both(server.url) as watched,
    ):
        tokens = seconds = drafted = accepted = 0.0
        for place in range(8):
            timings = await complete(server, PROMPTS[place % 4], 6)
            tokens += timings["predicted_n"]
            seconds += timings["predicted_ms"] / 1e3
            drafted += timings["draft_n"]
            accepted += timings["draft_n_accepted"]
            await asyncio.sleep(1.2 * INTERVAL)
        found = await watched.settle()
        counted = samples(await fetch(f"{server.url}/metrics"))
    printed = counted["llamacpp:tokens_predicted_seconds_total"]
    return [
        Row(
            "an old build: no speculative counters",
            f"acceptance {accepted / drafted:.3f}",
            f"acceptance {watched.naive.looks[-1].acceptance:.2f}",
            f"acceptance: {figure(found, 'mtpmon_acceptance_ratio')}",
        ),
        Row(
            "… and whole milliseconds: requests of 6 tokens",
            f"{(tokens - 8) / seconds:.0f} tok/s",
            f"{tokens / printed:.0f} tok/s",
            f"{figure(found, 'mtpmon_decode_tokens_per_second', digits=0)} tok/s",
        ),
    ]


TRAPS: tuple[Callable[[], Awaitable[Row | list[Row]]], ...] = (
    six_digits,
    moves_at_the_end,
    many_slots,
    first_token,
    restart,
    own_probes,
    sleeping,
    router,
    loading,
    refusals,
    second_scraper,
    missing_probabilities,
    old_build,
)


async def main() -> int:
    """Run all and print the table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print("| trap | true | naive | mtpmon |")
    print("| --- | --- | --- | --- |")
    async with asyncio.timeout(LIMIT_SECONDS):
        for trap in TRAPS:
            found = await trap()
            for row in found if isinstance(found, list) else [found]:
                print(f"| {row.trap} | {row.truth} | {row.naive} | {row.ours} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
