"""What only a server that is told what to say can do to a monitor."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from aiohttp import web

from mtpmon.board import SETTLING_SECONDS, ServerBoard
from mtpmon.client import LlamaClient
from mtpmon.config import Config, Probe, Server
from mtpmon.derive import MOST_TOKENS_AFTER_A_CUT, nothing, settled
from mtpmon.model import Amount, Outcome, Usage
from mtpmon.model import Reading as Counted
from mtpmon.rest import Rest
from tests.captures import events, http, raw
from tests.far_end import FakeLlama, raw_server, response
from tests.rig import LONGEST, Reading, configuration, read
from tests.test_board import board, scrape, seen
from tests.test_rest import look
from tests.test_window import live, sample, usage

INTERVAL = 0.2


def watching(*servers: Server, interval: float = INTERVAL, probe: Probe | None = None) -> Config:
    config = configuration(*servers, interval=interval, probe=probe)
    return msgspec.structs.replace(config, windows_seconds=(4.0, 3600.0))


# --- six digits, through the whole daemon -------------------------------------------------

LOOKS = 36
LOOKS_A_REQUEST = 5


@dataclass
class Aged(FakeLlama):
    """A server that has counted to ``start`` already, exactly, and prints six digits of it.

    At every fifth look a request has ended, of some ``drafts`` drafts.
    """

    start: int = 0
    drafts: int = 0
    looks: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.start + self.drafts)
        self._steps = self._tokens = self.start
        self._positions = [self.start * n // 5 for n in (4, 3, 2)]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            self._say()
        return await super()._answer(request)

    def _say(self) -> None:
        if self.looks and len(self.looks) % LOOKS_A_REQUEST == 0:
            self._request()
        totals = (self._steps, 3 * self._steps, *self._positions)
        self.looks.append((time.monotonic(), totals))
        counts = {
            "spec_decode_num_drafts_total": self._steps,
            "spec_decode_num_draft_tokens_total": 3 * self._steps,
            "spec_decode_num_accepted_tokens_total": sum(self._positions),
            "tokens_predicted_total": self._tokens,
            "tokens_predicted_seconds_total": self._tokens / 77,
            "prompt_tokens_total": self._tokens,
            "requests_processing": 0,
            "requests_deferred": 0,
        }
        lines = [f"llamacpp:{name} {count:g}\n" for name, count in counts.items()]
        name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
        lines += [f'{name}{{position="{i}"}} {n}\n' for i, n in enumerate(self._positions)]
        self.metrics = "".join(lines).encode()

    def _request(self) -> None:
        steps = int(self._rng.integers(self.drafts // 5, 2 * self.drafts))
        self._steps += steps
        self._tokens += 1 + steps
        for place in range(3):
            steps = int(self._rng.binomial(steps, 0.8))
            self._positions[place] += steps
            self._tokens += steps

    def exact(self, at: float) -> tuple[int, ...] | None:
        """What it had counted when a look that ended ``at`` read it."""
        before = [totals for when, totals in self.looks if when <= at]
        return before[-1] if before else None


def off(now: Reading, name: str, fake: Aged, ends: Iterable[float]) -> list[str]:
    """Published ratios whose bounds do not hold the exact one of the span they state.

    ``ends``: of the looks that may be the latest one.
    """
    wrong = []
    for window, value in now.of_live("mtpmon_acceptance_ratio", name):
        named = {"server": name, "traffic": "live", "window": window}
        span = now.value("mtpmon_window_span_seconds", **named)
        low, high = (
            now.value(f"mtpmon_acceptance_{bound}_ratio", **named) for bound in ("lower", "upper")
        )
        assert span is not None
        assert low is not None
        assert high is not None
        ratios = []
        for end in ends:
            first, last = fake.exact(end - span + 1e-6), fake.exact(end)
            if first is not None and last is not None and last[1] > first[1]:
                ratios.append((sum(last[2:]) - sum(first[2:])) / (last[1] - first[1]))
        if not any(low <= r <= high and abs(value - r) <= 0.0101 * r for r in ratios):
            wrong.append(f"{name}, {window}: {low} ≤ {value} ≤ {high} is none of {ratios}")
    return wrong


@pytest.mark.slow
async def test_six_digits_publish_no_wrong_acceptance() -> None:
    """From 1e6 to 1e9: within its own bounds of the exact value, or not published."""
    servers = {
        f"{kind} {start:.0e}": Aged(start=start, drafts=drafts)
        for start in (10**6, 10**7, 10**8, 10**9)
        for kind, drafts in (("usual", 200), ("heavy", start // 50))
        if start < 10**8 or kind == "heavy"
    }
    published = dict.fromkeys(servers, 0)
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(fake.serving()) for fake in servers.values()]
        watched = [Server(name=n, url=u) for n, u in zip(servers, urls, strict=True)]
        # Six servers on one event loop: the readings must leave the looks some time.
        config = watching(*watched, interval=2 * INTERVAL)
        reader = await stack.enter_async_context(read(config, per_second=4))
        ends: dict[str, list[float]] = {name: [] for name in servers}

        def check(now: Reading) -> bool:
            for name, fake in servers.items():
                samples = reader.daemon.board[name]._history.samples
                ends[name] = [*ends[name], samples[-1].monotonic_seconds][-2:]
                reader.wrong += off(now, name, fake, ends[name])
                published[name] += len(now.of_live("mtpmon_acceptance_ratio", name))
            return all(len(fake.looks) >= LOOKS for fake in servers.values())

        everywhere = list(servers)
        await reader.until(
            lambda now: all(now.live(name) is not None for name in everywhere), what="all seen"
        )
        now = await reader.until(check, seconds=120, what="looks")
    for name, fake in servers.items():
        live = now.live(name)
        assert live is not None
        first, last = fake.looks[0][1], fake.looks[-1][1]
        assert all(0 <= n <= b - a for n, a, b in zip(live.kept, first[2:], last[2:], strict=True))
    assert {name for name, count in published.items() if count} == {
        "usual 1e+06",  # where a few requests are a hundred times what printing rounds away
        *(name for name in servers if name.startswith("heavy")),
    }


# --- loading, and an old build ------------------------------------------------------------


async def test_a_loading_server_is_no_failure_and_has_no_figures() -> None:
    """A 503 while the model loads is a state of its own; what came before stays unsaid."""
    fake = FakeLlama(loading=True)
    async with fake.serving() as url, read(watching(Server(name="a", url=url))) as reader:
        await reader.state("loading", since=0)
        await reader.until(lambda now: now.looks() >= 4)
        assert all(each.live() is None for each in reader.readings)
        assert reader.latest.value("mtpmon_scrapes_total", server="a", outcome="refused") == 0
        fake.loading = False
        await reader.state("ready", since=reader.mark())
        now = await reader.until(lambda now: now.live() is not None)
    assert now.sum("mtpmon_generated_tokens_total", traffic="live") == 0
    assert now.sum("mtpmon_server_restarts_total") == 0


@dataclass
class Old(FakeLlama):
    """A build without speculative counters, as captured: what it streams says that it drafts."""

    tokens: int = 66

    def __post_init__(self) -> None:
        self.props = msgspec.json.decode(raw("b10142/props.json"))
        self.events = events("b10142/completion-mtp-stream.sse")
        self._captured = http("b10142/metrics-after.http")[1]
        self.metrics = self._captured

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = await super()._stream(request)
        self.tokens += 24
        said = f"llamacpp:tokens_predicted_total {self.tokens}\n".encode()
        kept = [x for x in self._captured.splitlines(keepends=True) if b"predicted_total " not in x]
        self.metrics = b"".join([*kept, said])
        return answer


async def test_an_old_build_is_measured_by_probes_and_says_so() -> None:
    """No speculative counters: acceptance is the probes', no live one is made up."""
    fake = Old()
    probe = Probe(
        interval_seconds=0.3, timeout_seconds=3, idle_for_seconds=0, tokens=24, forced_positions=0
    )
    async with fake.serving() as url:
        config = watching(Server(name="a", url=url), probe=probe)
        async with read(config) as reader:
            await reader.until(
                lambda now: now.hot("mtpmon_acceptance_source", "source") == "none",
                what="known to have no counters",
            )
            acceptance = {"server": "a", "traffic": "probe", "window": LONGEST}
            now = await reader.until(
                lambda now: now.value("mtpmon_acceptance_ratio", **acceptance), what="probes"
            )
            await asyncio.sleep(2 * INTERVAL)
    assert now.hot("mtpmon_acceptance_source", "source") == "probes"
    assert now.value("mtpmon_acceptance_ratio", **acceptance) == pytest.approx(15 / 23)
    for each in reader.readings:
        assert each.of_live("mtpmon_acceptance_ratio") == []
        assert each.value("mtpmon_drafts_total", server="a", traffic="live") is None
        assert each.value("mtpmon_accepted_tokens_total", server="a", traffic="live") is None


# --- requests of ours that were cut off ---------------------------------------------------


def cost(
    tokens: float, *positions: int, prompt: float | None = 50, error: float = 0.0, requests: int = 1
) -> Usage:
    """Of requests that drafted three tokens a step."""
    drafts = tokens - 1 - sum(positions)
    return Usage(
        drafts=Amount(drafts, 0, error),
        draft_tokens=Amount(3 * drafts, 0, error),
        accepted_tokens=Amount(sum(positions), 0, error),
        accepted_by_position=positions,
        generated_tokens=Amount(tokens, 0, error),
        generation_seconds=Amount(tokens / 100),
        prompt_tokens=None if prompt is None else Amount(prompt),
        positions_error=error,
        requests=requests,
    )


CUT = cost(20, 6, 4, 3, error=8)


def test_a_cut_off_request_alone_cost_what_was_counted() -> None:
    """No prompt but ours: all is ours, however much, and nothing is left open."""
    found = settled(cost(220, 60, 40, 30), CUT, at_rest=True, blind=False)
    assert found == cost(220, 60, 40, 30)


def test_a_cut_off_request_that_is_not_counted_yet_is_waited_for() -> None:
    """The server has counted less than it has told us."""
    assert settled(cost(5, 1, prompt=0), CUT, at_rest=False, blind=False) is None


def test_little_is_ours_while_a_user_is_served() -> None:
    """Their prompt is counted, they are not: the rest is the steps after the cut, and the error."""
    found = settled(cost(26, 9, 5, 4, prompt=90), CUT, at_rest=False, blind=False)
    assert found is not None
    assert found.generated_tokens == Amount(26, 0, 6)
    assert found.accepted_by_position == (9, 5, 4)
    assert found.positions_error == 5
    assert found.prompt_tokens == Amount(50)


@pytest.mark.parametrize(
    ("grown", "at_rest"),
    [
        (cost(26, 9, 5, 4, prompt=90), True),
        (cost(21 + MOST_TOKENS_AFTER_A_CUT, 6, 4, 3, prompt=90), False),
        (cost(26, 9, 5, 4, prompt=None), True),
        (msgspec.structs.replace(cost(26, 9, 5, 4), generated_tokens=None), True),
    ],
)
def test_a_user_who_was_served_keeps_what_is_theirs(grown: Usage, at_rest: bool) -> None:
    """They ended, or may have, or there is no telling: ours stays as it was."""
    assert settled(grown, CUT, at_rest=at_rest, blind=False) == CUT


def test_a_stream_read_late_may_have_cost_more() -> None:
    """As much as its own error says is taken for ours beside a user, and one token more is not."""
    late = cost(20, 6, 4, 3, error=40)
    found = settled(cost(60, 20, 12, 8, prompt=90), late, at_rest=False, blind=False)
    assert found is not None
    assert found.generated_tokens == Amount(60, 0, 40)
    assert settled(cost(61, 20, 12, 8, prompt=90), late, at_rest=False, blind=False) == late


def test_positions_may_be_too_many_where_tokens_are_rounded() -> None:
    """Printed at 1e8 a user's request need not show in the tokens; in exact positions it does."""
    rounded = Amount(0, 1000, 0)
    grown = msgspec.structs.replace(
        cost(26, 60, 40, 30), generated_tokens=rounded, prompt_tokens=rounded
    )
    found = settled(grown, CUT, at_rest=True, blind=False)
    assert found is not None
    assert found.accepted_by_position == CUT.accepted_by_position
    assert found.generated_tokens == CUT.generated_tokens


def test_what_is_not_counted_by_position_is_not_settled_by_position() -> None:
    """A build without those series, or without any of drafts."""
    grown = msgspec.structs.replace(cost(26, 9, 5, 4), accepted_by_position=None, drafts=None)
    found = settled(grown, CUT, at_rest=True, blind=False)
    assert found is not None
    assert found.generated_tokens == Amount(26)
    assert found.drafts == CUT.drafts
    assert found.accepted_by_position == CUT.accepted_by_position


def test_a_request_cut_off_before_it_answered_may_be_counted() -> None:
    """Its prompt is not known to us; the few tokens are its own."""
    blind = msgspec.structs.replace(nothing(), generated_tokens=Amount(0, 0, 1), requests=1)
    found = settled(cost(4, 2, 0, 0), blind, at_rest=True, blind=True)
    assert found is not None
    assert found.generated_tokens == Amount(4, 0, 4)


def test_what_a_request_cut_off_before_it_answered_may_have_cost_stays_open() -> None:
    """A user's request ended too, so that its few tokens cannot be told from theirs."""
    blind = Usage(generated_tokens=Amount(0, 0, 1), drafts=Amount(0), prompt_tokens=Amount(0))
    found = settled(cost(200, 50, 40, 30, prompt=90), blind, at_rest=True, blind=True)
    assert found is not None
    assert found.generated_tokens == Amount(0, 0, 1 + MOST_TOKENS_AFTER_A_CUT)
    assert found.drafts == Amount(0, 0, 2)
    assert found.accepted_tokens is None


@pytest.mark.parametrize(("left_open", "published"), [(10, True), (30, False)])
def test_what_is_left_open_is_in_the_bounds(left_open: float, published: bool) -> None:
    """A few tokens widen them; of more than a tenth of all there is no figure."""
    before = sample(0, nothing(), moved=False)
    own = msgspec.structs.replace(
        nothing(), draft_tokens=Amount(0, 0, left_open), positions_error=left_open
    )
    after = sample(60, usage(60, 50, 40, 30, requests=1), own=own)
    sure = live([before, sample(60, usage(60, 50, 40, 30, requests=1))]).acceptance
    found = live([before, after]).acceptance
    assert sure is not None
    assert (found is not None) == published
    if found is not None:
        assert found.value == sure.value
        assert found.lower < sure.lower - 0.03
        assert found.upper > sure.upper + 0.03


def test_whole_milliseconds_are_inside_the_bounds() -> None:
    """Old builds cut each request's time to them: eight requests of six tokens in 33.6 ms."""
    first = Usage(generated_tokens=Amount(0), generation_seconds=Amount(0), prompt_tokens=Amount(0))
    later = Usage(
        generated_tokens=Amount(48),
        generation_seconds=Amount(0.031, 5e-9),
        prompt_tokens=Amount(32),
        requests=8,
    )
    found = live([sample(0, first, moved=False), sample(60, later)]).decode_tokens_per_second
    assert found is not None
    assert found.lower <= (48 - 8) / 0.0336 <= found.upper


async def test_each_request_has_a_connection_of_its_own() -> None:
    """The server closes idle ones just when the next scrape begins."""
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(response(b"{}"))
        await writer.drain()
        await reader.read()  # kept open, until the client closes it

    async with raw_server(script) as url, LlamaClient(url) as client:
        for _ in range(3):
            reply = await client.get("/props", timeout_seconds=5)
            assert reply.outcome is Outcome.OK
    assert connections == 3


def cut_off(server: ServerBoard, usage: Usage = CUT) -> None:
    server.probe_request_began()
    server.probe_request_ended(usage)


def test_looks_wait_until_a_cut_off_request_is_counted() -> None:
    """While the server has not, nothing new is said; then what it counted is ours."""
    server = board()
    server.scraped(scrape(0, 0))
    cut_off(server, cost(15, 5, 2, prompt=5, error=8))
    server.scraped(scrape(1, 0, processing=1))
    assert (server.settling, len(server._history)) == (True, 1)
    server.scraped(scrape(2, 1))
    assert (server.settling, len(server._history)) == (False, 2)
    found = seen(server, 2)
    assert found.own.generated_tokens == Amount(21)
    assert found.live is not None
    assert found.live.generated_tokens == Amount(0)
    assert found.mismatch is None


def test_a_cut_off_request_that_never_shows_is_let_go() -> None:
    """A server may be busy with others for ever."""
    server = board()
    blind = msgspec.structs.replace(nothing(), generated_tokens=Amount(0, 0, 1), requests=1)
    server.scraped(scrape(0, 0))
    cut_off(server, blind)
    server.scraped(scrape(1, 0, processing=1))
    assert (server.settling, len(server._history)) == (True, 1)
    server.scraped(scrape(1 + SETTLING_SECONDS, 0, processing=1))
    assert (server.settling, len(server._history)) == (False, 2)


def test_a_request_cut_off_before_it_answered_shows_by_its_first_tokens() -> None:
    """A user is served next and not counted yet: what little was counted is ours."""
    server = board()
    server.scraped(scrape(0, 0))
    cut_off(server, msgspec.structs.replace(nothing(), generated_tokens=Amount(0, 0, 1)))
    server.scraped(scrape(1, 0, processing=1))
    look = scrape(2, 0, processing=1)
    assert look.counters is not None
    counters = msgspec.structs.replace(
        look.counters, generated_tokens=Counted(1), prompt_tokens=Counted(9)
    )
    assert server.settling
    server.scraped(msgspec.structs.replace(look, counters=counters))
    found = seen(server, 2)
    assert found.own.generated_tokens == Amount(1, 0, 1)
    assert found.live is not None
    assert found.live.generated_tokens is not None
    assert found.live.generated_tokens.value == 0
    assert len(server._history) == 2


def test_what_a_dead_process_did_for_us_is_not_taken_from_users() -> None:
    """It was never seen in counters, so subtracting it would make users' tokens vanish."""
    server = board()
    server.scraped(scrape(0, 0))
    cut_off(server)
    server.scraped(scrape(1, 3, token="u"))
    found = seen(server, 1)
    assert found.restarts == 1
    assert found.live is not None
    assert found.live.generated_tokens == Amount(63)
    assert found.own.generated_tokens == CUT.generated_tokens
    assert not server.settling


def test_a_model_that_a_router_unloaded_is_not_one_that_sleeps() -> None:
    """When it is loaded it is looked at like any other."""
    rest = Rest(None)
    rest.seen(look(0, Outcome.NOT_LOADED))
    rest.seen(look(1))
    assert not rest.possible
    assert not rest.lasts(2)
