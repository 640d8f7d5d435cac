"""Servers for the far end of a test: real sockets that say what they are told to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from tests.captures import http, raw

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(script: Script) -> AsyncIterator[str]:
    """A TCP server that runs ``script`` for each connection; yields its URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def says(answer: bytes) -> AsyncIterator[str]:
    """A server that sends these bytes and closes."""

    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    async with raw_server(script) as url:
        yield url


def response(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    """An HTTP reply with a length."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@dataclass
class FakeLlama:
    """A llama-server whose counters and answers a test sets. HTTP is real.

    ``requests`` holds method and path of all that was asked of it.
    """

    props: dict[str, object] = field(
        default_factory=lambda: msgspec.json.decode(raw("b11434/props.json"))
    )
    metrics: bytes = field(default_factory=lambda: http("b11434/metrics-after.http")[1])
    start_token: str | None = "1"
    loading: bool = False
    status: Mapping[str, int] = field(default_factory=dict)
    delay_seconds: float = 0.0
    requests: list[tuple[str, str]] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)
    stream_delay_seconds: float = 0.0
    closed_streams: int = 0
    models: bytes = field(default_factory=lambda: raw("b11434/models.json"))
    metrics_delay_seconds: float = 0.0

    def counters(self, **values: float) -> None:
        """Set ``/metrics`` to these llama-server series."""
        lines = []
        for name, value in values.items():
            place = name.removeprefix("position_")
            if place != name:
                name = f'spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}'  # noqa: PLW2901
            lines.append(f"llamacpp:{name} {value:g}\n")
        self.metrics = "".join(lines).encode()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a free loopback port; yields the URL."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        await asyncio.sleep(self.delay_seconds)
        if self.loading:
            error = {"error": {"message": "Loading model", "code": 503}}
            return web.json_response(error, status=503)
        if request.path in self.status:
            return web.Response(status=self.status[request.path], text="told to fail")
        match request.path:
            case "/props":
                return web.json_response(self.props)
            case "/models" | "/v1/models":
                return web.Response(body=self.models)
            case "/metrics":
                await asyncio.sleep(self.metrics_delay_seconds)
                headers = {"Process-Start-Time-Unix": self.start_token} if self.start_token else {}
                return web.Response(body=self.metrics, headers=headers)
            case "/apply-template":
                return web.Response(body=raw("b11434/apply-template.json"))
            case "/tokenize":
                return web.Response(body=raw("b11434/tokenize.json"))
            case "/completion":
                return await self._stream(request)
            case _:
                return web.Response(status=404, text="no such thing")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        try:
            asked = (await request.json()).get("n_predict", 0)
            for event in shortened(self.events, asked):
                await answer.write(b"data: " + event + b"\n\n")
                await asyncio.sleep(self.stream_delay_seconds)
        except ConnectionError:
            self.closed_streams += 1
        return answer


def shortened(events: list[bytes], tokens: int) -> list[bytes]:
    """A recorded stream as it would be for fewer tokens; as it is for as many or more."""
    try:
        chunks = [msgspec.json.decode(event) for event in events]
        if not chunks or chunks[-1]["tokens_predicted"] <= tokens or tokens < 1:
            return events
        kept = [chunk for chunk in chunks if chunk["tokens_predicted"] <= tokens]
        end = {**chunks[-1], "tokens_predicted": tokens, "timings": kept[-1]["timings"]}
    except (msgspec.DecodeError, KeyError, TypeError):
        return events  # recorded to be broken
    return [msgspec.json.encode(chunk) for chunk in (*kept, end)]
