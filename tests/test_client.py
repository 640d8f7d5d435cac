"""Every failure of a far end becomes one of a closed set of outcomes."""

import asyncio
import gzip
import json
import random
import ssl
import time
from contextlib import aclosing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpmon.client import LlamaClient, RequestFailed
from mtpmon.model import Outcome, Scrape
from mtpmon.scrape import scrape
from tests.captures import http
from tests.far_end import FakeLlama, raw_server, response, says

METRICS = http("b11434/metrics-after.http")[1]
PROPS = b'{"model_alias":"m"}'


async def get(url: str, *, limit: int = 1 << 20, timeout: float = 5) -> tuple[Outcome, str]:
    async with LlamaClient(url, max_body_bytes=limit) as client:
        reply = await client.get("/metrics", timeout_seconds=timeout)
        return reply.outcome, reply.detail


async def look(url: str, **options: object) -> Scrape:
    async with LlamaClient(url) as client:
        return await scrape(
            client,
            timeout_seconds=2,
            monotonic=time.monotonic,
            wall=time.time,
            **options,  # type: ignore[arg-type]
        )


CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nllamacpp:tokens_predicted_total 1"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (response(b"x"), Outcome.OK, ""),
        (response(b"", status="401 Unauthorized"), Outcome.UNAUTHORIZED, "api_key_env"),
        (response(b"", status="501 Not Implemented"), Outcome.METRICS_DISABLED, "--metrics"),
        (response(b"", status="404 Not Found"), Outcome.HTTP_ERROR, "HTTP 404"),
        (response(b"<h1>\nBad</h1>", status="502 Bad Gateway"), Outcome.HTTP_ERROR, "HTTP 502"),
        (
            response(b'{"error":{"message":"Loading model"}}', status="503 Unavailable"),
            Outcome.LOADING,
            "loading",
        ),
        (
            response(b"", status="302 Found", headers="Location: http://evil.example/\r\n"),
            Outcome.REDIRECT,
            "evil.example",
        ),
        (b"", Outcome.DISCONNECTED, "connection lost"),
        (CUT, Outcome.DISCONNECTED, "broke off"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Outcome.MALFORMED, "not valid HTTP"),
        (b"\x16\x03\x01\x00\x05garbage\r\n\r\n", Outcome.MALFORMED, "not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", Outcome.MALFORMED, "not valid HTTP"),
        (CHUNKED + b"zz\r\nabc\r\n", Outcome.MALFORMED, "not valid HTTP"),
        (CHUNKED + b"5\r\nabc", Outcome.DISCONNECTED, "broke off"),
        (
            response(b"not gzip", headers="Content-Encoding: gzip\r\n"),
            Outcome.DISCONNECTED,
            "broke off",
        ),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20000 + b"\r\n\r\n", Outcome.MALFORMED, "HTTP"),
    ],
)
async def test_answers_become_outcomes(answer: bytes, outcome: Outcome, words: str) -> None:
    """With a sentence that tells the operator what to do or what was there."""
    async with says(answer) as url:
        found, detail = await get(url)
    assert found is outcome
    assert words in detail
    assert "\n" not in detail


async def test_a_refused_connection_is_told_apart() -> None:
    """Nothing listens."""
    async with says(b"") as url:
        pass
    assert (await get(url))[0] is Outcome.REFUSED


async def test_an_unknown_host_is_unreachable() -> None:
    """Names that do not resolve."""
    assert (await get("http://no-such-host.invalid:1"))[0] is Outcome.REFUSED


async def test_silence_times_out() -> None:
    """Accepted, and then nothing."""

    async def silent(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with raw_server(silent) as url:
        found, detail = await get(url, timeout=0.2)
    assert found is Outcome.TIMEOUT
    assert "0.2 s" in detail


async def test_a_post_that_fails_says_how() -> None:
    """The outcome and the sentence travel in the exception; a 200 gives the body."""
    async with FakeLlama().serving() as url, LlamaClient(url) as client:
        assert b"tokens" in await client.post("/tokenize", {}, timeout_seconds=2)
        with pytest.raises(RequestFailed, match="HTTP 404") as failed:
            await client.post("/nothing", {}, timeout_seconds=2)
    assert failed.value.outcome is Outcome.HTTP_ERROR


async def test_a_slow_drip_times_out() -> None:
    """Bytes keep coming, the end does not: the limit is on the whole exchange."""

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with raw_server(drip) as url:
        assert (await get(url, timeout=0.3))[0] is Outcome.TIMEOUT


async def test_an_endless_body_is_cut_at_the_limit() -> None:
    """Memory is bounded, whatever is sent."""
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    async with raw_server(flood) as url:
        found, detail = await get(url, limit=100_000)
    assert found is Outcome.TOO_LARGE
    assert "max_body_bytes" in detail
    assert sent < 50_000_000


async def test_a_compressed_bomb_is_cut_at_the_limit() -> None:
    """The limit is on what comes out of the decompressor."""
    bomb = gzip.compress(b"\0" * 50_000_000)
    async with says(response(bomb, headers="Content-Encoding: gzip\r\n")) as url:
        assert (await get(url, limit=1_000_000))[0] is Outcome.TOO_LARGE


async def test_tls_to_a_plain_server_is_told_apart() -> None:
    """The URL says https, the other end speaks http."""
    async with FakeLlama().serving() as url:
        found, detail = await get(url.replace("http:", "https:"))
    assert found is Outcome.TLS
    assert "whether the URL is http" in detail


async def test_a_redirect_is_not_followed_with_our_key() -> None:
    """The other host never hears from us."""
    heard = []

    async def listen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(1)

    async with raw_server(listen) as other:
        answer = response(b"", status="307 Moved", headers=f"Location: {other}/metrics\r\n")
        async with says(answer) as url, LlamaClient(url, headers={"Authorization": "k"}) as client:
            assert (await client.get("/metrics", timeout_seconds=2)).outcome is Outcome.REDIRECT
            with pytest.raises(RequestFailed):
                await client.post("/tokenize", {}, timeout_seconds=2)
    assert heard == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_an_outcome(answer: bytes, after_status: bool) -> None:
    """No answer raises anything."""

    async def run() -> None:
        head = b"HTTP/1.1 200 OK\r\n" if after_status else b""
        async with says(head + answer) as url:
            found, _ = await get(url, timeout=1)
            assert isinstance(found, Outcome)

    asyncio.run(run())


# --- streams ---


async def stream(url: str) -> list[bytes]:
    async with LlamaClient(url) as client, aclosing(client.stream("/completion", {})) as payloads:
        return [payload async for payload in payloads]


async def test_events_are_taken_apart() -> None:
    """Whatever pieces they come in; comments and the end mark are nothing."""
    body = b'data: {"a":1}\n\n: ping\n\nerror: {"error":{}}\n\ndata: [DONE]\n\n'

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for byte in body:
            writer.write(bytes([byte]))
            await writer.drain()

    async with raw_server(script) as url:
        assert await stream(url) == [b'{"a":1}', b'{"error":{}}']


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (response(b"", status="400 Bad Request"), Outcome.HTTP_ERROR),
        (response(b"", status="401 Unauthorized"), Outcome.UNAUTHORIZED),
        (CUT, Outcome.DISCONNECTED),
        (b"", Outcome.DISCONNECTED),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_200_000, Outcome.TOO_LARGE),
    ],
)
async def test_a_stream_that_fails_says_how(answer: bytes, outcome: Outcome) -> None:
    """The same outcomes as for whole replies."""
    async with says(answer) as url:
        with pytest.raises(RequestFailed) as failed:
            await stream(url)
    assert failed.value.outcome is outcome


async def test_leaving_a_stream_closes_the_connection() -> None:
    """So the server can free its slot at once."""
    closed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n")
        await writer.drain()
        await reader.read()
        closed.set()

    async with raw_server(script) as url, LlamaClient(url) as client:
        async with aclosing(client.stream("/completion", {})) as payloads:
            async for payload in payloads:
                assert payload == b"1"
                break
        await asyncio.wait_for(closed.wait(), 2)


# --- scrape ---


async def test_a_scrape_asks_props_first() -> None:
    """Which neither wakes a sleeping server nor keeps one awake."""
    fake = FakeLlama()
    async with fake.serving() as url:
        found = await look(url)
    assert found.outcome is Outcome.OK
    assert found.counters is not None
    assert found.counters.start_token == "1"
    assert found.props is not None
    assert [path for _, path in fake.requests] == ["/props", "/metrics"]


async def test_a_sleeping_server_is_left_alone() -> None:
    """Its metrics, a cached copy or an alarm clock, are not asked for."""
    fake = FakeLlama(props={"is_sleeping": True})
    async with fake.serving() as url:
        found = await look(url)
    assert found.outcome is Outcome.SLEEPING
    assert [path for _, path in fake.requests] == ["/props"]


async def test_a_loading_server_is_no_error() -> None:
    """503 with those words."""
    fake = FakeLlama(loading=True)
    async with fake.serving() as url:
        assert (await look(url)).outcome is Outcome.LOADING


@pytest.mark.parametrize("body", [b"[]", b"<html>"])
async def test_metrics_alone_will_do(body: bytes) -> None:
    """A proxy that passes on /metrics and answers /props with its own page."""
    answers = iter([body, METRICS])

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response(next(answers)))
        await writer.drain()

    async with raw_server(script) as url:
        found = await look(url)
    assert found.outcome is Outcome.OK
    assert found.props is None


async def test_a_missing_props_page_will_do() -> None:
    """404 on /props, metrics fine."""
    fake = FakeLlama(status={"/props": 404})
    async with fake.serving() as url:
        assert (await look(url)).outcome is Outcome.OK


async def test_disabled_metrics_still_show_the_props() -> None:
    """What the server says of itself is known all the same."""
    fake = FakeLlama(status={"/metrics": 501})
    async with fake.serving() as url:
        found = await look(url)
    assert found.outcome is Outcome.METRICS_DISABLED
    assert found.props is not None


async def test_another_program_is_malformed() -> None:
    """Metrics of something else."""
    fake = FakeLlama(metrics=b"up 1\n")
    async with fake.serving() as url:
        found = await look(url)
    assert found.outcome is Outcome.MALFORMED
    assert "llama-server" in found.detail


async def test_a_stalled_server_is_told_apart() -> None:
    """It answers /props, from another thread, and not /metrics; within the time for both."""
    fake = FakeLlama(metrics_delay_seconds=30)
    async with fake.serving() as url:
        found = await look(url)
    assert found.outcome is Outcome.STALLED
    assert found.props is not None
    assert found.duration_seconds < 2.5


async def test_a_server_that_answers_nothing_is_no_stalled_one() -> None:
    """Not even /props."""
    fake = FakeLlama(delay_seconds=30)
    async with fake.serving() as url:
        assert (await look(url)).outcome is Outcome.TIMEOUT


async def test_metrics_can_be_left_alone() -> None:
    """To let the server sleep."""
    fake = FakeLlama()
    async with fake.serving() as url:
        found = await look(url, with_metrics=False)
    assert found.outcome is Outcome.PROPS_ONLY
    assert found.counters is None
    assert [path for _, path in fake.requests] == ["/props"]


# --- routers ---


def models(**statuses: str | None) -> bytes:
    """A router's list of models."""
    entries: list[object] = [
        {"id": name, **({} if value is None else {"status": {"value": value}})}
        for name, value in statuses.items()
    ]
    return json.dumps({"data": [*entries, 5, {"id": 7, "aliases": ["odd"]}]}).encode()


@pytest.mark.parametrize(
    ("status", "outcome", "asked"),
    [
        ("loaded", Outcome.OK, True),
        (None, Outcome.OK, True),
        ("unloaded", Outcome.NOT_LOADED, False),
        ("sleeping", Outcome.SLEEPING, False),
        ("loading", Outcome.LOADING, False),
        ("downloading", Outcome.LOADING, False),
        ("something new", Outcome.NOT_LOADED, False),
    ],
)
async def test_only_a_loaded_model_is_asked_about(
    status: str | None, outcome: Outcome, asked: bool
) -> None:
    """Asking a router for a model may load it; where it is in memory, loading is ruled out."""
    fake = FakeLlama(models=models(qwen=status, glm="loaded"))
    async with fake.serving() as url:
        found = await look(url, model="qwen")
    assert found.outcome is outcome
    rest = [path for _, path in fake.requests if path != "/models"]
    query = "?model=qwen&autoload=false"
    assert rest == (["/props" + query, "/metrics" + query] if asked else [])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (models(glm="loaded"), "models: glm"),
        (b'{"data":[]}', "models: none"),
        (b'{"data":5}', "no list of models"),
        (b"<html>", "not a JSON object"),
    ],
)
async def test_a_model_that_is_not_there_is_said_so(body: bytes, words: str) -> None:
    """With the names there are."""
    fake = FakeLlama(models=body)
    async with fake.serving() as url:
        found = await look(url, model="qwen")
    assert found.outcome is Outcome.MALFORMED
    assert words in found.detail


async def test_a_router_that_is_loading_is_loading() -> None:
    """Whatever is asked first."""
    fake = FakeLlama(loading=True)
    async with fake.serving() as url:
        assert (await look(url, model="qwen")).outcome is Outcome.LOADING


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (models(qwen="loaded", glm="unloaded"), "(qwen, glm"),
        (b"<html>", "see /models"),
    ],
)
async def test_a_router_without_a_model_says_what_to_set(body: bytes, words: str) -> None:
    """Its /metrics would be an error."""
    fake = FakeLlama(props={"role": "router"}, models=body)
    async with fake.serving() as url:
        found = await look(url)
    assert found.outcome is Outcome.ROUTER
    assert "set model" in found.detail
    assert words in found.detail


def test_a_client_takes_a_tls_context() -> None:
    """For a private certificate authority."""

    async def run() -> None:
        async with LlamaClient(
            "https://127.0.0.1:1", ssl_context=ssl.create_default_context()
        ) as c:
            assert (await c.get("/", timeout_seconds=1)).outcome is Outcome.REFUSED

    asyncio.run(run())


async def test_a_task_that_is_cancelled_ends_whatever_limit_is_reached_then() -> None:
    """Time limits and cancellations meet by the hundred here; one that is lost hangs the daemon."""
    draw = random.Random(1)

    async with says(response(b"x" * 100_000)) as url:

        async def looks(client: LlamaClient) -> None:
            while True:
                await client.get("/metrics", timeout_seconds=draw.uniform(0.0, 0.004))

        for _ in range(300):
            async with LlamaClient(url) as client:
                task = asyncio.create_task(looks(client))
                await asyncio.sleep(draw.uniform(0.0, 0.01))
                task.cancel()
                done, _ = await asyncio.wait([task], timeout=5.0)
                assert done
                assert task.cancelled()
