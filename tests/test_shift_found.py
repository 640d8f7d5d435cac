"""What is said of a change."""

from mtpmon.record import Event, EventKind
from mtpmon.shift.evidence import Direction
from mtpmon.shift.found import Shift, causes


def event(at: float, kind: EventKind = EventKind.RESTART, before: str | None = "x") -> Event:
    return Event(server="a", unix_seconds=at, kind=kind, before=before, after="y")


def test_causes_are_what_happened_near_the_start_and_before_the_alarm() -> None:
    """Nearest first; looks that failed and first sights are none."""
    shift = Shift(
        direction=Direction.FALL,
        began_unix_seconds=1000,
        detected_unix_seconds=1400,
        before=2.4,
        after=1.2,
    )
    near, nearer = event(800, EventKind.BUILD), event(1100)
    others = (
        event(500),
        event(1000, EventKind.STATE),
        event(1000, EventKind.MODEL, before=None),
        event(1401),
    )
    assert causes([near, *others, nearer], shift) == (nearer, near)
