"""What a history is made of, besides probes: events, and a row a minute of users' traffic."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from mtpmon.derive import difference, nothing
from mtpmon.model import Amount, Bounded, Props, Scrape, Usage
from mtpmon.window import Evidence, Sample, accepted_amount, figures


class EventKind(StrEnum):
    """What changed on a server. ``shift``: a figure, by change detection."""

    STATE = "state"
    RESTART = "restart"
    BUILD = "build"
    MODEL = "model"
    SHIFT = "shift"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something changed from ``before`` to ``after``.

    ``before`` is ``None`` for the first look since mtpmon started.
    """

    server: str
    unix_seconds: float
    kind: EventKind
    before: str | None = None
    after: str | None = None
    detail: str = ""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Users' totals at one usable scrape."""

    monotonic_seconds: float
    unix_seconds: float
    live: Usage


class Rollup(msgspec.Struct, frozen=True, kw_only=True):
    """Users' traffic in the ``seconds`` before ``unix_seconds``. ``None``: not known.

    Counts may be off by what the server rounds; that is within the bounds of ``acceptance``
    and ``acceptance_length``, which are ``None`` where it could be too much.
    """

    server: str
    unix_seconds: float
    seconds: float
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_by_position: tuple[int, ...] | None = None
    generated_tokens: float | None = None
    generation_seconds: float | None = None
    acceptance: Bounded | None = None
    acceptance_length: Bounded | None = None


class Operation(StrEnum):
    """What was done to a history when it failed. The closed set of operation labels."""

    OPEN = "open"
    WRITE = "write"
    READ = "read"
    TRIM = "trim"


class RecordKind(StrEnum):
    """What a history holds. The closed set of record labels."""

    PROBE = "probe"
    EVENT = "event"
    ROLLUP = "rollup"


class HistoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How a history does. ``size_bytes`` is ``None`` while it cannot be used."""

    usable: bool
    size_bytes: int | None
    errors: Mapping[Operation, int]
    dropped: Mapping[RecordKind, int]


def changes(
    server: str, last: Scrape | None, props: Props | None, found: Scrape
) -> Iterator[Event]:
    """What ``found`` shows to be other than the look before, and the properties known then."""

    def event(kind: EventKind, before: str | None, after: str, detail: str = "") -> Event:
        return Event(
            server=server,
            unix_seconds=found.unix_seconds,
            kind=kind,
            before=before,
            after=after,
            detail=detail,
        )

    if last is None or last.state is not found.state:
        before = last.state.value if last is not None else None
        yield event(EventKind.STATE, before, found.state.value, found.detail)
    if found.props is None:
        return
    known = props or Props()
    for kind, old, new in (
        (EventKind.BUILD, known.build, found.props.build),
        (EventKind.MODEL, known.model, found.props.model),
    ):
        if new is not None and new != old:
            yield event(kind, old, new)


def rollup(server: str, before: Mark | None, now: Mark | None, evidence: Evidence) -> Rollup | None:
    """Users' traffic between two marks; ``None`` if no time lies between them."""
    if before is None or now is None or now.monotonic_seconds <= before.monotonic_seconds:
        return None
    seconds = now.monotonic_seconds - before.monotonic_seconds
    usage = difference(now.live, before.live)
    # A window of its own, so that bounds mean here what they mean everywhere.
    found = figures(
        [
            Sample(
                monotonic_seconds=mark.monotonic_seconds,
                server=mark.live,
                own=nothing(),
                at_rest=True,
                moved=True,
            )
            for mark in (before, now)
        ],
        live=True,
        width_seconds=seconds,
        evidence=evidence,
    )
    return Rollup(
        server=server,
        unix_seconds=now.unix_seconds,
        seconds=seconds,
        drafts=_value(usage.drafts),
        draft_tokens=_value(usage.draft_tokens),
        accepted_tokens=_value(accepted_amount(usage)),
        accepted_by_position=usage.accepted_by_position,
        generated_tokens=_value(usage.generated_tokens),
        generation_seconds=_value(usage.generation_seconds),
        acceptance=found.acceptance,
        acceptance_length=found.acceptance_length,
    )


def _value(amount: Amount | None) -> float | None:
    return amount.value if amount is not None else None
