"""A change that was found: which way, since when, from what to what, and what was near."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from mtpmon.record import Event, EventKind
from mtpmon.shift.evidence import DIRECTIONS, Bank, Direction

NEAR_SECONDS = 60.0


class Source(StrEnum):
    """Whose traffic showed a shift of acceptance."""

    LIVE = "live"
    PROBES = "probes"
    BOTH = "both"


class Phase(StrEnum):
    """What a detector is doing. ``suspected``: acceptance moved, tasks may explain it."""

    LEARNING = "learning"
    WATCHING = "watching"
    SUSPECTED = "suspected"
    SHIFTED = "shifted"


class Ending(StrEnum):
    """How a shift ended. ``relearned``: its level became the reference."""

    RECOVERED = "recovered"
    RELEARNED = "relearned"
    REPLANNED = "replanned"


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was detected.

    ``before`` and ``after`` are means since ``began_unix_seconds``, the likeliest start: what
    the same observations would have been at the reference, and what they were. Kept draft
    tokens per step for acceptance (mean acceptance length is one more), else the value's unit.
    """

    direction: Direction
    began_unix_seconds: float
    detected_unix_seconds: float
    before: float
    after: float
    source: Source | None = None
    ending: Ending | None = None
    ended_unix_seconds: float | None = None


def described(evidence: Bank, place: tuple[int, int, int], now: float) -> Shift:
    amount = max(float(evidence.amount[place]), 1.0)
    return Shift(
        direction=DIRECTIONS[place[1]],
        began_unix_seconds=float(evidence.began[place]),
        detected_unix_seconds=now,
        before=float(evidence.expected[place]) / amount,
        after=float(evidence.seen[place]) / amount,
    )


def closed(shift: Shift, ending: Ending, now: float | None) -> Shift:
    return msgspec.structs.replace(shift, ending=ending, ended_unix_seconds=now)


def returned(change: float, full: float, share: float) -> bool:
    """Whether a change is nearer, by so much, to none than to the full one of a shift."""
    return abs(change) < share * abs(change - full)


def causes(events: Iterable[Event], shift: Shift) -> tuple[Event, ...]:
    """What happened to the server near the start of a shift, nearest first.

    The start is an estimate: it may be off by part of the time that detection took. What came
    after the detection is no cause. Nor is what was only seen for the first time, or a server
    that could not be reached for a while.
    """
    found = [event for event in events if is_cause(event) and near(event.unix_seconds, shift)]
    return tuple(sorted(found, key=lambda e: abs(e.unix_seconds - shift.began_unix_seconds)))


def is_cause(event: Event) -> bool:
    """Whether it can have changed a figure: no first sight, and no look that failed."""
    return event.kind is EventKind.RESTART or (
        event.kind is not EventKind.STATE and event.before is not None
    )


def near(unix_seconds: float, shift: Shift) -> bool:
    """Whether a moment is near the start of a shift, and not after its detection."""
    began, detected = shift.began_unix_seconds, shift.detected_unix_seconds
    reach = NEAR_SECONDS + (detected - began) / 2
    return abs(unix_seconds - began) <= reach and unix_seconds <= detected
