"""The status page's chart: acceptance against its breakeven over the last hours."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from mtpmon.markup import Html, h
from mtpmon.model import Bounded
from mtpmon.pagetext import PERCENT, bounded, duration
from mtpmon.snapshot import ServerSnapshot
from mtpmon.trend import Trend, TrendPoint

WIDTH, HEIGHT = 600, 200
GAP_SPACINGS = 3.0  # without a point for so long, nothing was known
FEWEST_POINTS = 3
GRID = (0.25, 0.5, 0.75)

Part = Callable[[TrendPoint], Bounded | None]


def trend(server: ServerSnapshot, now: float) -> Html | None:
    """The chart up to now, in unix seconds; once there is something to draw.

    Points come with usable looks at the server. Without any lately, nothing is known of now.
    """
    points = server.trend.points
    known = [point for point in points if point.acceptance is not None]
    if len(known) < FEWEST_POINTS:
        return None
    last, began = points[-1], points[0].unix_seconds
    if now < last.unix_seconds:  # the clock was set back
        return None
    current = now - last.unix_seconds <= GAP_SPACINGS * server.trend.spacing_seconds
    ended = last.unix_seconds if current else now
    span = duration(ended - began)

    def x(point: TrendPoint) -> int:
        return round((point.unix_seconds - began) / (ended - began) * WIDTH)

    drawing = h(
        "svg",
        *(
            h("line", x1="0", x2=f"{WIDTH}", y1=_y(share), y2=_y(share), class_="grid")
            for share in GRID
        ),
        *_drawn(server.trend, x, lambda point: point.breakeven, "even"),
        *_drawn(server.trend, x, lambda point: point.acceptance, "accepted"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=_in_words(known, span),
    )
    return h(
        "figure",
        h(
            "figcaption",
            h("span", "acceptance", class_="key accepted"),
            " ",
            bounded(last.acceptance, PERCENT, "no traffic now") if current else "not known now",
            *(
                (
                    " ",
                    h("span", "breakeven", class_="key even"),
                    " ",
                    bounded(last.breakeven, PERCENT) if current else "not known now",
                )
                if any(point.breakeven is not None for point in points)
                else ()
            ),
        ),
        h("div", _scale(), drawing, class_="chart"),
        h("p", h("span", f"{span} ago"), h("span", "now"), class_="ends"),
        class_="trend",
    )


def _y(share: float) -> str:
    return str(round(HEIGHT * (1 - min(max(share, 0.0), 1.0))))


def _scale() -> Html:
    """What the height means; the words for readers who do not see it are the drawing's."""
    marks = (h("span", PERCENT.bare(share, 0) + PERCENT.suffix) for share in (1.0, 0.5, 0.0))
    return h("div", *marks, class_="scale", aria_hidden="true")


def _drawn(shown: Trend, x: Callable[[TrendPoint], int], part: Part, name: str) -> Iterator[Html]:
    """Bounds as an area and the value as a line, one for each stretch without a gap."""
    for run in _runs(shown, part):
        known = [(x(point), found) for point in run if (found := part(point)) is not None]
        upper = [f"{place},{_y(found.upper)}" for place, found in known]
        lower = [f"{place},{_y(found.lower)}" for place, found in reversed(known)]
        line = " ".join(f"{place},{_y(found.value)}" for place, found in known)
        yield h("polygon", points=" ".join(upper + lower), class_=f"range {name}")
        yield h("polyline", points=line, class_=f"line {name}")


def _runs(shown: Trend, part: Part) -> Iterable[Sequence[TrendPoint]]:
    """Stretches in which the figure was known all the time."""
    runs: list[list[TrendPoint]] = []
    before: TrendPoint | None = None
    for point in shown.points:
        if part(point) is None:
            before = None
            continue
        near = GAP_SPACINGS * shown.spacing_seconds
        if before is None or point.unix_seconds - before.unix_seconds > near:
            runs.append([])
        runs[-1].append(point)
        before = point
    return runs


def _in_words(known: Sequence[TrendPoint], span: str) -> str:
    values = [point.acceptance.value for point in known if point.acceptance is not None]
    evens = [point.breakeven.value for point in known if point.breakeven is not None]
    words = (
        f"Acceptance in the last {span}: between {PERCENT.written(min(values))} and"
        f" {PERCENT.written(max(values))}, {PERCENT.written(values[-1])} at the last."
    )
    if evens:
        words += f" Its breakeven at the last: {PERCENT.written(evens[-1])}."
    return words
