"""One look at one server: fetch, parse, stamp."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mtpmon.client import LlamaClient, Reply
from mtpmon.model import Counters, Outcome, Props, Scrape
from mtpmon.wire import WireError, model_statuses, parse_metrics, parse_props

START_TOKEN_HEADER = "Process-Start-Time-Unix"  # noqa: S105  a header's name
# What a router says of a model that answers without being loaded first.
_IN_MEMORY = "loaded"
_ON_ITS_WAY = ("loading", "downloading")


Fetch = Callable[..., Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class _Found:
    outcome: Outcome
    detail: str = ""
    props: Props | None = None
    counters: Counters | None = None


async def scrape(
    client: LlamaClient,
    *,
    timeout_seconds: float,
    monotonic: Callable[[], float],
    wall: Callable[[], float],
    model: str | None = None,
    with_metrics: bool = True,
    overlaps: Callable[[], bool] = lambda: False,
) -> Scrape:
    """Ask ``/props``, and unless the server sleeps, ``/metrics``. Never raises for a server.

    ``/props`` first, since it neither wakes a sleeping server nor keeps one awake; on some
    builds ``/metrics`` does both. Behind a router the list of models comes before
    everything, since asking for a model may load it.

    Args:
        client: the server.
        timeout_seconds: for all requests together.
        monotonic: clock for intervals, in seconds.
        wall: clock for timestamps, in Unix seconds.
        model: which model of a router to ask about.
        with_metrics: ``False`` leaves ``/metrics`` alone.
        overlaps: asked at the end, whether a request of ours was in flight meanwhile.
    """
    began = monotonic()

    async def fetch(path: str, params: Mapping[str, str] | None = None) -> Reply:
        remaining = max(began + timeout_seconds - monotonic(), 0.001)
        return await client.get(path, timeout_seconds=remaining, params=params)

    found = await _look(fetch, model=model, with_metrics=with_metrics)
    now = monotonic()
    return Scrape(
        monotonic_seconds=now,
        unix_seconds=wall(),
        duration_seconds=now - began,
        outcome=found.outcome,
        detail=found.detail,
        props=found.props,
        counters=found.counters,
        overlapped=overlaps(),
    )


async def _look(fetch: Fetch, *, model: str | None, with_metrics: bool) -> _Found:
    params = None
    if model is not None:
        refusal = _refusal(await fetch("/models"), model)
        if refusal is not None:
            return refusal
        params = {"model": model, "autoload": "false"}
    reply = await fetch("/props", params)
    props = _props(reply)
    if props is None and reply.outcome not in (Outcome.OK, Outcome.HTTP_ERROR):
        return _Found(reply.outcome, reply.detail)
    if props is not None and props.sleeping:
        return _Found(Outcome.SLEEPING, "the server sleeps; it is left alone", props)
    if props is not None and props.router:
        return _Found(Outcome.ROUTER, await _router_advice(fetch), props)
    if not with_metrics:
        return _Found(Outcome.PROPS_ONLY, "idle; its metrics are left alone to let it sleep", props)
    reply = await fetch("/metrics", params)
    if reply.outcome is Outcome.TIMEOUT and props is not None:
        return _Found(Outcome.STALLED, f"/props answers, /metrics does not: {reply.detail}", props)
    if reply.outcome is not Outcome.OK:
        return _Found(reply.outcome, reply.detail, props)
    try:
        counters = parse_metrics(reply.body, start_token=reply.headers.get(START_TOKEN_HEADER))
    except WireError as error:
        return _Found(Outcome.MALFORMED, str(error), props)
    return _Found(Outcome.OK, props=props, counters=counters)


def _props(reply: Reply) -> Props | None:
    """Its value, or ``None``: a proxy may pass ``/metrics`` on and nothing else."""
    if reply.outcome is not Outcome.OK:
        return None
    try:
        return parse_props(reply.body)
    except WireError:
        return None


def _refusal(reply: Reply, model: str) -> _Found | None:
    """Why ``model`` must not be asked about now, or ``None``."""
    if reply.outcome is not Outcome.OK:
        return _Found(reply.outcome, reply.detail)
    try:
        statuses = model_statuses(reply.body)
    except WireError as error:
        return _Found(Outcome.MALFORMED, str(error))
    if model not in statuses:
        known = ", ".join(statuses) or "none"
        return _Found(Outcome.MALFORMED, f"there is no model {model!r} here; models: {known}")
    status = statuses[model]
    if status in (None, _IN_MEMORY):
        return None
    if status == "sleeping":
        return _Found(Outcome.SLEEPING, "the model sleeps; it is left alone")
    if status in _ON_ITS_WAY:
        return _Found(Outcome.LOADING, f"the router is {status} the model")
    return _Found(Outcome.NOT_LOADED, f"the router says {status}; it is not loaded by us")


async def _router_advice(fetch: Fetch) -> str:
    reply = await fetch("/models")
    try:
        names = ", ".join(model_statuses(reply.body)) if reply.outcome is Outcome.OK else ""
    except WireError:
        names = ""
    return f"this is a router: set model to one of its models ({names or 'see /models'})"
