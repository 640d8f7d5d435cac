"""One look at one server: fetch, parse, stamp."""

from collections.abc import Callable

from mtpmon.client import LlamaClient, Reply
from mtpmon.model import Counters, Outcome, Props, Scrape
from mtpmon.wire import WireError, parse_metrics, parse_props

START_TOKEN_HEADER = "Process-Start-Time-Unix"  # noqa: S105  a header's name


async def scrape(
    client: LlamaClient,
    *,
    timeout_seconds: float,
    monotonic: Callable[[], float],
    wall: Callable[[], float],
    model: str | None = None,
    overlaps: Callable[[], bool] = lambda: False,
) -> Scrape:
    """Ask ``/props``, and unless the server sleeps, ``/metrics``. Never raises for a server.

    ``/props`` first, since it neither wakes a sleeping server nor keeps one awake; on some
    builds ``/metrics`` does both.

    Args:
        client: the server.
        timeout_seconds: for both requests together.
        monotonic: clock for intervals, in seconds.
        wall: clock for timestamps, in Unix seconds.
        model: which model of a router to ask about.
        overlaps: asked at the end, whether a request of ours was in flight meanwhile.
    """
    began = monotonic()
    params = {"model": model} if model else None

    def finished(
        outcome: Outcome,
        detail: str = "",
        props: Props | None = None,
        counters: Counters | None = None,
    ) -> Scrape:
        now = monotonic()
        return Scrape(
            monotonic_seconds=now,
            unix_seconds=wall(),
            duration_seconds=now - began,
            outcome=outcome,
            detail=detail,
            props=props,
            counters=counters,
            overlapped=overlaps(),
        )

    reply = await client.get("/props", timeout_seconds=timeout_seconds, params=params)
    props = _props(reply)
    if props is None and reply.outcome not in (Outcome.OK, Outcome.HTTP_ERROR):
        return finished(reply.outcome, reply.detail)
    if props is not None and props.sleeping:
        return finished(Outcome.SLEEPING, "the server sleeps; it is left alone", props)
    remaining = max(began + timeout_seconds - monotonic(), 0.001)
    reply = await client.get("/metrics", timeout_seconds=remaining, params=params)
    if reply.outcome is not Outcome.OK:
        return finished(reply.outcome, reply.detail, props)
    try:
        counters = parse_metrics(reply.body, start_token=reply.headers.get(START_TOKEN_HEADER))
    except WireError as error:
        return finished(Outcome.MALFORMED, str(error), props)
    return finished(Outcome.OK, props=props, counters=counters)


def _props(reply: Reply) -> Props | None:
    """Its value, or ``None``: a proxy may pass ``/metrics`` on and nothing else."""
    if reply.outcome is not Outcome.OK:
        return None
    try:
        return parse_props(reply.body)
    except WireError:
        return None
