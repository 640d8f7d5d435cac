"""Out of the way: notice that a user is waiting while a probe runs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mtpmon.client import LlamaClient
from mtpmon.model import Outcome
from mtpmon.wire import WireError, parse_metrics

POLL_SECONDS = 0.05  # with one decode step, the most that a user's request is held up
Result = TypeVar("Result")


class Preempted(Exception):  # noqa: N818  an outcome, not a fault of the program
    """A user's request came while a probe ran."""


async def yielding(
    work: Awaitable[Result],
    client: LlamaClient,
    *,
    own_requests: Callable[[], tuple[int, int]],
    model: str | None = None,
) -> Result:
    """Run ``work``, but give up at once when the server has somebody else to serve.

    Giving up cancels ``work``, which closes its connection, which frees the server's slot
    within one decode step.

    Args:
        work: the probe.
        client: the server that is watched meanwhile.
        own_requests: how many of the server's requests are ours now, and a number that
            changes when one begins or ends.
        model: which model of a router it is.

    Raises:
        Preempted: somebody else's request was running or waiting.
    """
    probing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_somebody_else(client, own_requests, model))
    try:
        await asyncio.wait({probing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not probing.done():
            raise Preempted
        return probing.result()
    finally:
        probing.cancel()
        watching.cancel()
        # Both must be over before the caller goes on: accounts are settled on the way out.
        await asyncio.gather(probing, watching, return_exceptions=True)
        if watching.done() and not watching.cancelled():
            watching.result()


async def _somebody_else(
    client: LlamaClient, own_requests: Callable[[], tuple[int, int]], model: str | None
) -> None:
    """Return when the server processes more than our requests, or lets one wait."""
    params = {"model": model, "autoload": "false"} if model else None
    while True:
        await asyncio.sleep(POLL_SECONDS)
        ours, mark = own_requests()
        reply = await client.get("/metrics", timeout_seconds=2.0, params=params)
        if reply.outcome is not Outcome.OK or own_requests()[1] != mark:
            continue  # one of ours began or ended meanwhile: the answer may be of either time
        try:
            counters = parse_metrics(reply.body)
        except WireError:
            continue
        if counters.requests_deferred or (counters.requests_processing or 0) > ours:
            return
