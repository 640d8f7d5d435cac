"""Metrics of changes found on a server, each as a row."""

from collections.abc import Iterator

from mtpmon.exportrow import Row, Sample, known
from mtpmon.shift.evidence import DIRECTIONS
from mtpmon.shift.server import Change, Figure
from mtpmon.snapshot import ServerSnapshot


def _shift_rows(figure: Figure, of: str) -> list[Row]:
    """Whether a change of a figure stands, and since when."""

    def standing(server: ServerSnapshot) -> Change | None:
        return server.shifts.standing.get(figure)

    def shift(server: ServerSnapshot) -> Iterator[Sample]:
        change = standing(server)
        if change is not None or figure in server.shifts.ready:
            for direction in DIRECTIONS:
                found = change is not None and change.direction is direction
                yield from known(float(found), direction.value)

    def start(server: ServerSnapshot) -> Iterator[Sample]:
        change = standing(server)
        if change is not None:
            yield from known(change.began_unix_seconds, change.direction.value)

    stem = f"mtpmon_{figure.value}_shift"
    return [
        Row(
            stem,
            "gauge",
            ("direction",),
            f"1 while a change of {of} stands, 0 if none was found. No sample until enough of"
            " the server's past is known.",
            shift,
        ),
        Row(
            f"{stem}_start_timestamp_seconds",
            "gauge",
            ("direction",),
            f"When the standing change of {of} began, estimated, in Unix seconds.",
            start,
        ),
    ]


SHIFTS: tuple[Row, ...] = (
    *_shift_rows(Figure.ACCEPTANCE, "acceptance"),
    *_shift_rows(Figure.DECODE_SPEED, "the full verification steps a second that probes see"),
    *_shift_rows(Figure.KLD, "the KL divergence after speculation that probes see"),
    Row(
        "mtpmon_shifts_total",
        "counter",
        ("figure", "direction"),
        "Changes found, by figure and direction.",
        lambda s: [
            ((figure.value, direction.value), float(s.shifts.totals.get((figure, direction), 0)))
            for figure in Figure
            for direction in DIRECTIONS
        ],
    ),
)
