"""A change in one sentence: what, from what to what, when, and what happened just before."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from mtpmon.pagetext import SPACE, duration, nats
from mtpmon.record import Event, EventKind
from mtpmon.shift.evidence import Direction
from mtpmon.shift.found import NEAR_SECONDS, Ending
from mtpmon.shift.server import Change, Figure

NAMES: Mapping[Figure, str] = {
    Figure.ACCEPTANCE: "acceptance",
    Figure.DECODE_SPEED: "decode speed",
    Figure.KLD: "KL divergence",
}
_MOVED = {Direction.FALL: "fell", Direction.RISE: "rose"}
_ENDINGS = {
    Ending.RECOVERED: "it is back now",
    Ending.RELEARNED: "it has stayed so long that it is the usual level now",
    Ending.REPLANNED: "since then the server was changed, and is judged anew",
}
_WRITTEN: Mapping[Figure, Callable[[float], str]] = {
    Figure.ACCEPTANCE: lambda value: f"{value:.2f}",
    Figure.DECODE_SPEED: lambda value: f"{value:.3g}",
    Figure.KLD: nats,
}
_UNITS = {Figure.ACCEPTANCE: "", Figure.DECODE_SPEED: " steps/s", Figure.KLD: " nats"}


def in_words(change: Change, *, now: float | None = None) -> str:
    """``acceptance fell from 0.82 to 0.61 at 14:03 UTC, 2 m after the server restarted``.

    Args:
        change: which.
        now: Unix seconds; the start's date is left out if it is today's. Else it is that of
            the detection.
    """
    written = _WRITTEN[change.figure]
    today = change.detected_unix_seconds if now is None else now
    said = (
        f"{NAMES[change.figure]} {_MOVED[change.direction]} from {written(change.before)}"
        f" to {written(change.after)}{_UNITS[change.figure]}"
        f" at {_clock(change.began_unix_seconds, today)}"
    )
    if change.causes:
        said += f", {_cause(change)}"
    return f"{said}; {_ENDINGS[change.ending]}" if change.ending is not None else said


def _clock(unix_seconds: float, today: float) -> str:
    then = datetime.fromtimestamp(unix_seconds, UTC)
    same_day = then.date() == datetime.fromtimestamp(today, UTC).date()
    return then.strftime("%H:%M UTC" if same_day else "%Y-%m-%d %H:%M UTC")


def _cause(change: Change) -> str:
    """What happened nearest to the start, and what else did in the same moment.

    The start is an estimate: nearer to it than a minute, nothing is before or after.
    """
    first = change.causes[0]
    later = change.began_unix_seconds - first.unix_seconds
    when = "about when"
    if later >= NEAR_SECONDS:
        when = f"{duration(later).replace(SPACE, ' ')} after"
    near = [c for c in change.causes if abs(c.unix_seconds - first.unix_seconds) < NEAR_SECONDS]
    rebuilt = any(event.kind is EventKind.BUILD for event in near)
    build = None if rebuilt else change.build  # or it would be named twice
    return f"{when} {' and '.join(dict.fromkeys(_what(event, build) for event in near))}"


def _what(event: Event, build: str | None) -> str:
    if event.kind is EventKind.RESTART:
        return "the server restarted" + (f" with build {build}" if build is not None else "")
    return f"the {event.kind.value} changed from {event.before} to {event.after}"
