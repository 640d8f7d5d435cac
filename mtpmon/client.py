"""HTTP to one llama-server. Every failure becomes one of a closed set of outcomes."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp

from mtpmon.model import Outcome
from mtpmon.wire import classify, error_message

_STREAM_LINE_BYTES = 1 << 20  # one chunk with hundreds of log-probabilities is ~50 kB


@dataclass(frozen=True, slots=True)
class Reply:
    """One finished exchange. ``body`` is empty unless the server answered."""

    outcome: Outcome
    detail: str = ""
    status: int = 0
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class RequestFailed(Exception):  # noqa: N818  an outcome, not a fault of the program
    """A request that did not end well, with its outcome and a sentence for the operator."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


class LlamaClient:
    """One llama-server's endpoint.

    A new connection for every request: the server closes idle ones after 5 s and any
    after 100 requests, which races with whoever reuses them.

    Args:
        url: base address, without a trailing slash.
        headers: sent with every request, the authorization included.
        ssl_context: how to verify an https server; ``None`` means the system's way.
        max_body_bytes: replies longer than this are refused while being read.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_body_bytes: int = 1 << 20,
    ) -> None:
        self.url = url
        self._max_body_bytes = max_body_bytes
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0, ssl=ssl_context or True),
            headers=headers,
            trust_env=False,
            read_bufsize=1 << 16,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    async def get(
        self, path: str, *, timeout_seconds: float, params: Mapping[str, str] | None = None
    ) -> Reply:
        """Fetch ``path``; never raises for anything a server or network can do."""
        return await self._exchange("GET", path, timeout_seconds, params=params)

    async def post(self, path: str, payload: object, *, timeout_seconds: float) -> bytes:
        """Send JSON, return the body.

        Raises:
            RequestFailed: with the outcome, when the answer is not a 200.
        """
        reply = await self._exchange("POST", path, timeout_seconds, json=payload)
        if reply.outcome is not Outcome.OK:
            raise RequestFailed(reply.outcome, reply.detail)
        return reply.body

    async def stream(self, path: str, payload: object) -> AsyncGenerator[bytes, None]:
        """Send JSON, yield the payload of each ``data:`` line until the server ends.

        Closing the iterator closes the connection, which frees the server's slot within
        one decode step. The caller owns the time limit.

        Raises:
            RequestFailed: the answer is not a 200, or the connection broke.
        """
        try:
            async with self._session.post(
                self.url + path,
                json=payload,
                allow_redirects=False,
                timeout=_NO_LIMIT,
            ) as response:
                if response.status != 200:
                    body = await _read_limited(response, self._max_body_bytes)
                    outcome = classify(response.status, body, path=path)
                    raise RequestFailed(outcome, _explain(outcome, response, body))
                async for payload_bytes in _events(response):
                    yield payload_bytes
        except _TRANSPORT_ERRORS as error:
            raise RequestFailed(*_failure(error)) from error

    async def _exchange(
        self, method: str, path: str, timeout_seconds: float, **kwargs: Any
    ) -> Reply:
        try:
            # Not aiohttp's own limit: if it is reached in the moment in which our task is
            # cancelled, nested timers take back both, and the task goes on (aiohttp 3.14).
            async with (
                asyncio.timeout(timeout_seconds),
                self._session.request(
                    method,
                    self.url + path,
                    # A redirect may lead to another host, which must not see our key.
                    allow_redirects=False,
                    timeout=_NO_LIMIT,
                    **kwargs,
                ) as response,
            ):
                body = await _read_limited(response, self._max_body_bytes)
        except RequestFailed as failed:
            return Reply(failed.outcome, failed.detail)
        except _TRANSPORT_ERRORS as error:
            return Reply(*_failure(error, timeout_seconds))
        outcome = classify(response.status, body, path=path)
        detail = "" if outcome is Outcome.OK else _explain(outcome, response, body)
        return Reply(outcome, detail, response.status, body, response.headers)


_NO_LIMIT = aiohttp.ClientTimeout(total=None)
_TRANSPORT_ERRORS = (aiohttp.ClientError, TimeoutError, OSError, aiohttp.http.HttpProcessingError)


def _failure(error: BaseException, timeout_seconds: float | None = None) -> tuple[Outcome, str]:
    """The outcome of a request that got no (whole) answer."""
    if isinstance(error, TimeoutError):
        limit = f" within {timeout_seconds:g} s" if timeout_seconds is not None else ""
        return Outcome.TIMEOUT, f"no complete answer{limit}"
    if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
        return Outcome.TLS, f"TLS: {error}; check tls.ca_file, or whether the URL is http"
    if isinstance(error, aiohttp.ClientConnectorError):
        return Outcome.REFUSED, f"cannot connect: {error.strerror or error}"
    if isinstance(error, (aiohttp.ClientResponseError, aiohttp.http.HttpProcessingError)):
        return Outcome.MALFORMED, f"not valid HTTP: {_one_line(error)}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return Outcome.DISCONNECTED, f"the reply broke off: {_one_line(error)}"
    return Outcome.DISCONNECTED, f"connection lost: {_one_line(error) or type(error).__name__}"


def _one_line(error: BaseException, limit: int = 200) -> str:
    return " ".join(str(error).split())[:limit]


def _explain(outcome: Outcome, response: aiohttp.ClientResponse, body: bytes) -> str:
    """A sentence for an answer that is not a 200."""
    match outcome:
        case Outcome.REDIRECT:
            location = response.headers.get("Location", "nowhere")
            return f"redirected to {location!r}, not followed: put the final address in url"
        case Outcome.UNAUTHORIZED:
            return "the server wants an API key: set api_key_env or api_key_file"
        case Outcome.LOADING:
            return "the model is still loading"
        case Outcome.METRICS_DISABLED:
            return "start llama-server with --metrics"
        case _:
            return f"HTTP {response.status}: {' '.join(error_message(body).split())[:200]}"


async def _read_limited(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The (decompressed) body, refused as soon as it is longer than ``limit``."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > limit:
            raise RequestFailed(
                Outcome.TOO_LARGE, f"a reply of more than {limit} bytes: scrape.max_body_bytes"
            )
    return bytes(body)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Payloads of a server-sent event stream; llama-server writes one line per event.

    Older builds send failures as ``error:`` lines; they are passed on as payloads, since
    their JSON has the same form.
    """
    pending = bytearray()
    async for piece in response.content.iter_any():
        pending += piece
        if len(pending) > _STREAM_LINE_BYTES and b"\n" not in pending:
            raise RequestFailed(Outcome.TOO_LARGE, "a stream event of more than 1 MiB")
        while (end := pending.find(b"\n")) >= 0:
            line = bytes(pending[:end]).strip()
            del pending[: end + 1]
            kind, _, payload = line.partition(b":")
            if kind in (b"data", b"error") and payload.strip() != b"[DONE]":
                yield payload.strip()
