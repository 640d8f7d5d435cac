"""The daemon beside servers, users whose traffic is known, and a reader who misses nothing.

While a test runs, mtpmon's own ``/metrics`` is read ten times a second and every sample of
every reading is checked: against what must hold always, and against what the users' requests
are known to have put into the server's counters.
"""

import asyncio
import json
import math
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, combinations, pairwise, zip_longest
from pathlib import Path

import aiohttp
import pytest

from mtpmon.config import Address, Config, Listen, Probe, Scrape, Server
from mtpmon.daemon import LOOK_SECONDS, Daemon
from mtpmon.demo.server import LlamaServer

READINGS_PER_SECOND = 10
LONGEST = "1h"  # a window that holds all of any test


def configuration(
    *servers: Server,
    probing: bool = False,
    interval: float = 0.3,
    tokens: int = 64,
    windows: tuple[float, ...] = (60.0, 3600.0),
    probe: Probe | None = None,
) -> Config:
    return Config(
        servers=servers,
        scrape=Scrape(interval_seconds=interval, timeout_seconds=interval * 0.9),
        windows_seconds=windows,
        probe=probe
        or Probe(
            enabled=probing,
            interval_seconds=0.3,
            timeout_seconds=10.0,
            idle_for_seconds=0.3,
            time_share=1.0,
            tokens_per_hour=10**9,
            tokens=tokens,
        ),
        listen=Listen(address=Address("127.0.0.1", 0)),
    )


@asynccontextmanager
async def running(
    config: Config, *, path: Path | None = None, look_seconds: float = LOOK_SECONDS
) -> AsyncIterator[Daemon]:
    """A daemon in this process; a fault in it fails the test."""
    daemon = Daemon(config, path=path, look_seconds=look_seconds)
    started = asyncio.Event()
    task = asyncio.create_task(daemon.run(started=started.set))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        if not task.done():
            yield daemon
    finally:
        daemon.stop()
        await task


async def fetch(url: str, **headers: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as reply:
        return await reply.text()


async def complete(server: LlamaServer, prompt: str, tokens: int, **options: object) -> None:
    """One user's request."""
    payload = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True, **options}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/completion", json=payload) as reply,
    ):
        assert reply.status == 200
        await reply.read()


def samples(text: str) -> dict[str, float]:
    """Sample with labels → value."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


# --- users, and what they are known to have cost ------------------------------------------


@dataclass(frozen=True)
class Counts:
    """What requests put into a server's counters."""

    tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    kept: tuple[int, ...] = ()
    seconds: float = 0.0
    requests: int = 0

    @property
    def accepted(self) -> int:
        return sum(self.kept)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.tokens + other.tokens,
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            tuple(a + b for a, b in zip_longest(self.kept, other.kept, fillvalue=0)),
            self.seconds + other.seconds,
            self.requests + other.requests,
        )

    def __sub__(self, other: "Counts") -> "Counts":
        return self + Counts(
            -other.tokens,
            -other.drafts,
            -other.draft_tokens,
            tuple(-n for n in other.kept),
            -other.seconds,
            -other.requests,
        )

    @property
    def exact(self) -> tuple[object, ...]:
        """All that is a whole number, for comparing; trailing zeros say nothing."""
        kept = list(self.kept)
        while kept and not kept[-1]:
            kept.pop()
        return self.tokens, self.drafts, self.draft_tokens, tuple(kept)


@dataclass
class Request:
    """One user's request. ``counts`` is of its reply; ``lost``: its server died under it."""

    began: float
    ended: float | None = None
    counts: Counts = Counts()
    lost: bool = False


class Users:
    """Users of one server. Greedy, seeded; what each reply says it cost is added up.

    Args:
        url: of the server, or a function that tells it.
        model: of a router.
    """

    def __init__(self, url: str, *, model: str | None = None, key: str | None = None) -> None:
        self.url = url
        self.requests: list[Request] = []
        self._extra = {"model": model} if model else {}
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def ask(
        self,
        prompt: str,
        tokens: int,
        *,
        first: Callable[[], None] = lambda: None,
        **options: object,
    ) -> Counts:
        """One request; returns what it cost. ``first`` is called when its first token is there."""
        request = Request(time.monotonic())
        self.requests.append(request)
        payload = {
            "prompt": prompt,
            "n_predict": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "seed": 1,
            "cache_prompt": False,
            "stream": True,
            "timings_per_token": True,
            **self._extra,
            **options,
        }
        timings: list[dict[str, float]] = []
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers) as session,
                session.post(
                    f"{self.url}/completion",
                    json=payload,
                    timeout=aiohttp.ClientTimeout(total=None),
                ) as reply,
            ):
                assert reply.status == 200, await reply.text()
                async for line in reply.content:
                    if line.startswith(b"data: {"):
                        timings.append(json.loads(line[6:])["timings"])
                        if len(timings) == 1:
                            first()
        except aiohttp.ClientError:
            request.lost = True
            raise
        request.counts = _counts(timings)
        request.ended = time.monotonic()
        return request.counts

    @property
    def total(self) -> Counts:
        """Of all that have ended."""
        return sum((r.counts for r in self.requests if r.ended is not None), Counts())


def _counts(timings: Sequence[Mapping[str, float]]) -> Counts:
    """From the cumulative timings of a stream: each change of ``draft_n`` is one draft."""
    kept: list[int] = []
    drafts = drafted = accepted = 0
    for point in timings:
        if (now := int(point.get("draft_n", 0))) != drafted:
            drafts, drafted = drafts + 1, now
            length = int(point["draft_n_accepted"]) - accepted
            accepted += length
            kept += [0] * (length - len(kept))
            for place in range(length):
                kept[place] += 1
    last = timings[-1]
    assert drafted == last.get("draft_n", 0)
    assert accepted == last.get("draft_n_accepted", 0)
    return Counts(
        int(last["predicted_n"]), drafts, drafted, tuple(kept), last["predicted_ms"] / 1e3, 1
    )


# --- readings of mtpmon's own metrics -----------------------------------------------------

Labels = tuple[tuple[str, str], ...]
_SAMPLE = re.compile(r"(?P<name>[a-z_0-9]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Reading:
    """One reading of mtpmon's ``/metrics``; when it was asked for and when it was there."""

    began: float
    ended: float
    metrics: Mapping[str, Mapping[Labels, float]]

    def value(self, metric: str, **labels: str) -> float | None:
        """The sample with exactly these labels."""
        return self.metrics.get(metric, {}).get(tuple(sorted(labels.items())))

    def sum(self, metric: str, **labels: str) -> float:
        """Of all samples that have these labels."""
        wanted = set(labels.items())
        return sum(v for k, v in self.metrics.get(metric, {}).items() if wanted <= set(k))

    def hot(self, metric: str, label: str, **labels: str) -> str | None:
        """Which of a one-hot metric's values is 1."""
        wanted = set(labels.items())
        for found, value in self.metrics.get(metric, {}).items():
            if value == 1 and wanted <= set(found):
                return dict(found)[label]
        return None

    def state(self, server: str = "a") -> str | None:
        return self.hot("mtpmon_server_state", "state", server=server)

    def looks(self, server: str = "a") -> float:
        """Looks at the server so far, whatever came of them."""
        return self.sum("mtpmon_scrapes_total", server=server)

    def of_live(self, metric: str, server: str = "a") -> list[tuple[str, float]]:
        """Window and value of each sample of users' traffic."""
        found = [(dict(labels), v) for labels, v in self.metrics.get(metric, {}).items()]
        wanted = {"server": server, "traffic": "live"}.items()
        return [(labels["window"], v) for labels, v in found if wanted <= labels.items()]

    def live(self, server: str = "a") -> Counts | None:
        """Users' totals, if there are any yet."""

        def total(name: str) -> int:
            return int(self.value(f"mtpmon_{name}_total", server=server, traffic="live") or 0)

        if self.value("mtpmon_generated_tokens_total", server=server, traffic="live") is None:
            return None
        series = self.metrics.get("mtpmon_position_accepted_tokens_total", {})
        kept = {
            int(dict(labels)["position"]): int(value)
            for labels, value in series.items()
            if {("server", server), ("traffic", "live")} <= set(labels)
        }
        seconds = self.value("mtpmon_generation_seconds_total", server=server, traffic="live")
        return Counts(
            total("generated_tokens"),
            total("drafts"),
            total("draft_tokens"),
            tuple(kept[i] for i in range(len(kept))),
            seconds or 0.0,
        )


def parsed(text: str, *, began: float = 0.0, ended: float = 0.0) -> Reading:
    """Take an exposition apart."""
    metrics: dict[str, dict[Labels, float]] = defaultdict(dict)
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        assert match is not None, line
        labels = tuple(sorted(_LABEL.findall(match["labels"] or "")))
        assert labels not in metrics[match["name"]], f"twice: {line}"
        metrics[match["name"]][labels] = float(match["value"])
    return Reading(began, ended, metrics)


def impossible(now: Reading, before: Reading | None) -> list[str]:
    """What cannot be true in a reading, whatever the servers did."""
    wrong = [
        f"{name} {dict(labels)}: {value} is {fault}"
        for name, series in now.metrics.items()
        for labels, value in series.items()
        for fault in _faults(now, name, labels, value)
    ]
    for name in ("mtpmon_position_acceptance_ratio", "mtpmon_position_accepted_tokens_total"):
        for labels, values in _by_position(now.metrics.get(name, {})).items():
            if any(later > earlier for earlier, later in pairwise(values)):
                wrong.append(f"{name} {dict(labels)} rises: {values}")
    for name in ("mtpmon_server_state", "mtpmon_acceptance_source"):
        hot: dict[str, float] = defaultdict(float)
        for labels, value in now.metrics.get(name, {}).items():
            hot[dict(labels)["server"]] += value
        wrong += [f"{name} of {server}: {n} are hot" for server, n in hot.items() if n != 1]
    return wrong + (list(_fallen(now, before)) if before is not None else [])


def _faults(now: Reading, name: str, labels: Labels, value: float) -> Iterable[str]:
    """What is wrong with one sample."""
    named = dict(labels)
    if not math.isfinite(value):
        yield "no number"
    is_share = name.endswith("_ratio") and not re.search("speedup|margin", name)
    if is_share and not 0 <= value <= 1:
        yield "no share"
    if "_lower_" in name:
        middle = now.value(name.replace("_lower_", "_"), **named)
        high = now.value(name.replace("_lower_", "_upper_"), **named)
        if middle is None or high is None or not value <= middle <= high:
            yield f"no bound of {middle} to {high}"
    if name == "mtpmon_up" and (value == 1) != (now.state(named["server"]) == "ready"):
        yield f"not the state {now.state(named['server'])}"


def _fallen(now: Reading, before: Reading) -> Iterable[str]:
    for name, series in before.metrics.items():
        if name.endswith(("_total", "_count", "_bucket")):
            for labels, old in series.items():
                new = now.value(name, **dict(labels))
                if new is None or new < old:
                    yield f"{name} {dict(labels)} went from {old} to {new}"


def _by_position(series: Mapping[Labels, float]) -> dict[Labels, list[float]]:
    found: dict[Labels, list[tuple[int, float]]] = defaultdict(list)
    for labels, value in series.items():
        rest = tuple(pair for pair in labels if pair[0] != "position")
        found[rest].append((int(dict(labels)["position"]), value))
    return {labels: [v for _, v in sorted(pairs)] for labels, pairs in found.items()}


# --- the reader ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Claim:
    """Live totals as published, and the requests that had begun by then.

    ``sure``: what had ended by then is in the totals.
    """

    reading: Reading
    server: str
    live: Counts
    requests: tuple[Request, ...]
    sure: float

    @property
    def open(self) -> bool:
        """Whether some of the requests have not ended yet."""
        return any(r.ended is None and not r.lost for r in self.requests)

    @property
    def busy(self) -> bool:
        """Whether a request was running throughout the look that was published."""
        return any(
            not r.lost
            and r.began < self.sure - 1
            and (r.ended is None or r.ended > self.reading.began)
            for r in self.requests
        )

    def matching(self) -> Counts | None:
        """The total of all requests that had ended for sure and some of the others, if it is it."""
        certain: list[Counts] = []
        rest: list[Counts] = []
        for r in self.requests:
            if not r.lost and r.ended is not None:
                (certain if r.ended <= self.sure else rest).append(r.counts)
        base = sum(certain, Counts())
        assert len(rest) <= 12, "too many requests at once to tell them apart"
        for some in chain.from_iterable(combinations(rest, n) for n in range(len(rest) + 1)):
            total = sum(some, base)
            if total.exact == self.live.exact:
                return total
        return None


@dataclass
class Reader:
    """Reads a daemon's ``/metrics`` all the time and checks every sample.

    Args:
        daemon: whose.
        users: by server; the live figures must be theirs. A server without users here is
            held to what must be true of any.
        one_by_one: users' requests did not overlap, so that the figures of short windows can
            be checked too.
        per_second: readings.
    """

    daemon: Daemon
    users: Mapping[str, Users] = field(default_factory=dict)
    one_by_one: bool = True
    per_second: float = READINGS_PER_SECOND
    readings: list[Reading] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    _fresh: asyncio.Event = field(default_factory=asyncio.Event)
    _restarted: bool = False
    _claims: list["_Claim"] = field(default_factory=list)

    @property
    def latest(self) -> Reading:
        return self.readings[-1]

    async def reload(self) -> None:
        """Make the daemon read its configuration; what it watches anew is counted anew."""
        await self.daemon.reload()
        self._restarted = True

    async def read_forever(self) -> None:
        due = time.monotonic()
        async with aiohttp.ClientSession() as session:
            while True:
                await self._read(session)
                due = max(due + 1 / self.per_second, time.monotonic())
                await asyncio.sleep(due - time.monotonic())

    async def _read(self, session: aiohttp.ClientSession) -> None:
        sure = {name: self._taken_in(name) for name in self.users}
        began = time.monotonic()
        async with session.get(f"{self.daemon.url}/metrics") as reply:
            text = await reply.text()
        now = parsed(text, began=began, ended=time.monotonic())
        before = self.readings[-1] if self.readings and not self._restarted else None
        self._restarted = False
        self.wrong += impossible(now, before)
        for name, users in self.users.items():
            live = now.live(name)
            if live is not None:
                self._claims.append(_Claim(now, name, live, tuple(users.requests), sure[name]))
        self._judge()
        self.readings.append(now)
        self._fresh.set()
        self._fresh = asyncio.Event()

    def _judge(self) -> None:
        found = [(claim, self._untrue(claim)) for claim in self._claims]
        self._claims = [claim for claim, wrong in found if wrong is None]
        self.wrong += chain.from_iterable(wrong or () for _, wrong in found)

    def _taken_in(self, server: str) -> float:
        """What ended before this moment is in the figures: the start of the look behind them."""
        samples = self.daemon.board[server]._history.samples
        timeout = self.daemon._config.scrape.timeout_seconds
        return samples[-1].monotonic_seconds - timeout if samples else 0.0

    def _untrue(self, claim: "_Claim") -> list[str] | None:
        """Where live figures are not those of the requests; ``None`` while that is open."""
        truth = claim.matching()
        if truth is None:
            if claim.open:
                return None  # counted, it seems, before the reply has reached its user
            known = [r.counts.exact for r in claim.requests if not r.lost]
            return [f"live totals {claim.live.exact} are not those of requests {known}"]
        now, server, wrong = claim.reading, claim.server, []
        if abs(claim.live.seconds - truth.seconds) > 1e-3 * truth.seconds + 1e-6:
            wrong.append(f"generation took {truth.seconds} s, not {claim.live.seconds}")
        for window, value in now.of_live("mtpmon_acceptance_ratio", server):
            since = [Counts()] if window == LONGEST else self._earlier(claim.requests, truth)
            if since and not any(_ratio_is(truth - begin, value) for begin in since):
                wrong.append(f"acceptance {value} over {window} is of no requests")
            if window == LONGEST:
                wrong += _wrong_figures(now, truth, server)
        for window, value in now.of_live("mtpmon_throughput_tokens_per_second", server):
            if value == 0 and claim.busy:
                wrong.append(f"throughput 0 over {window}, but a request runs")
        return wrong

    def _earlier(self, requests: Iterable[Request], truth: Counts) -> list[Counts]:
        """Totals at which a window may have begun; none if that cannot be told."""
        if not self.one_by_one:
            return []
        found, total = [Counts()], Counts()
        for request in requests:
            if not request.lost:
                total += request.counts
                found.append(total)
        return [each for each in found if each.tokens < truth.tokens]

    # --- waiting ---

    async def until(
        self, condition: Callable[[Reading], object], *, seconds: float = 60.0, what: str = ""
    ) -> Reading:
        """Wait for a reading of which ``condition`` holds; a wrong sample ends the wait."""
        deadline = time.monotonic() + seconds
        while True:
            assert not self.wrong, self.complaint()
            if self.task is not None and self.task.done():
                self.task.result()
            if self.readings and condition(self.latest):
                return self.latest
            left = deadline - time.monotonic()
            assert left > 0, f"not within {seconds} s: {what}"
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._fresh.wait()

    async def counted(self, server: str = "a", *, seconds: float = 60.0) -> Reading:
        """Wait until all that the users have been told is in the live totals."""
        users = self.users[server]

        def all_there(now: Reading) -> bool:
            live = now.live(server)
            return live is not None and live.exact == users.total.exact

        return await self.until(all_there, seconds=seconds, what=f"{users.total} counted")

    def mark(self, server: str = "a") -> float:
        """Looks at the server so far. Call it when something happens to the server."""
        return float(sum(self.daemon.board[server]._scrapes.values()))

    async def soon(
        self,
        condition: Callable[[Reading], object],
        *,
        since: float,
        server: str = "a",
        looks: int = 2,
        what: str = "",
    ) -> Reading:
        """Wait until ``condition`` holds, which it must within ``looks`` looks since a ``mark``.

        One look may have been under way when it happened; the next one began after it. Looks
        keep their rhythm, so two of them are two intervals.
        """

        def shown(now: Reading) -> bool:
            if condition(now):
                return True
            passed = now.looks(server) - since
            assert passed < looks, f"{passed} looks later not {what}; state {now.state(server)}"
            return False

        return await self.until(shown, what=what)

    async def state(self, wanted: str, *, since: float, server: str = "a") -> Reading:
        """Wait for a state, which must show within two looks since a ``mark``."""
        return await self.soon(
            lambda now: now.state(server) == wanted, since=since, server=server, what=wanted
        )

    def between(self, began: float, ended: float) -> list[Reading]:
        """The readings that were asked for and answered in between."""
        return [r for r in self.readings if began <= r.began and r.ended <= ended]

    def close(self) -> None:
        """At the end no sample was wrong, and none is left to be explained."""
        self._judge()
        assert not self.wrong, self.complaint()
        assert not self._claims, f"{self._claims[0].live} was of no requests that ended"

    def complaint(self) -> str:
        return f"{len(self.wrong)} wrong samples, first of all:\n" + "\n".join(self.wrong[:10])


def _ratio_is(counts: Counts, value: float) -> bool:
    return counts.draft_tokens > 0 and value == pytest.approx(
        counts.accepted / counts.draft_tokens, rel=1e-12
    )


def _wrong_figures(now: Reading, truth: Counts, server: str) -> list[str]:
    """What the figures of a window that holds all of ``truth`` get wrong."""
    wrong = []
    window = {"server": server, "traffic": "live", "window": LONGEST}
    for place, kept in enumerate(truth.kept):
        value = now.value("mtpmon_position_acceptance_ratio", **window, position=str(place))
        if value != pytest.approx(kept / truth.drafts, rel=1e-12):
            wrong.append(f"position {place}: {value}, not {kept} / {truth.drafts}")
    length = now.value("mtpmon_acceptance_length_tokens", **window)
    if length != pytest.approx(1 + truth.accepted / truth.drafts, rel=1e-12):
        wrong.append(f"length {length}, not 1 + {truth.accepted} / {truth.drafts}")
    low = now.value("mtpmon_decode_lower_tokens_per_second", **window)
    high = now.value("mtpmon_decode_upper_tokens_per_second", **window)
    if low is not None and high is not None and truth.requests:
        speed = (truth.tokens - truth.requests) / truth.seconds
        if not low * 0.999 <= speed <= high * 1.001:
            wrong.append(f"decode speed {speed} is not in {low} to {high}")
    return wrong


@asynccontextmanager
async def read(
    config: Config,
    users: Mapping[str, Users] | None = None,
    *,
    path: Path | None = None,
    one_by_one: bool = True,
    per_second: float = READINGS_PER_SECOND,
) -> AsyncIterator[Reader]:
    """A daemon whose every sample is checked until the block ends."""
    async with running(config, path=path) as daemon:
        reader = Reader(daemon, users or {}, one_by_one=one_by_one, per_second=per_second)
        reader.task = task = asyncio.create_task(reader.read_forever())
        try:
            yield reader
            await reader.until(lambda _: True)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        reader.close()


# --- servers with ways of their own -------------------------------------------------------


class Router(LlamaServer):
    """A `llama-server` that loads the models of a directory when they are asked for."""

    def command(self) -> list[str]:
        words = super().command()
        words[words.index("--model")] = "--models-dir"
        return words

    def kill(self) -> None:
        """With the processes it has started, which are of its group."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        super().kill()

    async def statuses(self) -> dict[str, str]:
        """Model → whether it is loaded."""
        listing = json.loads(await fetch(f"{self.url}/models"))
        return {each["id"]: each["status"]["value"] for each in listing["data"]}

    async def load(self, model: str) -> None:
        await self._order("load", model, until="loaded")

    async def unload(self, model: str) -> None:
        await self._order("unload", model, until="unloaded")

    async def _order(self, what: str, model: str, *, until: str) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/models/{what}", json={"model": model}) as reply,
        ):
            assert reply.status == 200, await reply.text()
        async with asyncio.timeout(60):
            while (await self.statuses())[model] != until:
                await asyncio.sleep(0.05)
