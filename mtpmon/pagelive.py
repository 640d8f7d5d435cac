"""The part of the status page about users' traffic: windows side by side."""

from collections.abc import Sequence

from mtpmon.board import ServerSnapshot, Snapshot, Source
from mtpmon.markup import Html, h, together
from mtpmon.model import Outcome, State
from mtpmon.pagetext import (
    LENGTH,
    NO_DATA,
    PERCENT,
    SPEED,
    bar,
    bounded,
    duration,
    figure,
    plural,
    reason_words,
    state_words,
)
from mtpmon.trust import Reason
from mtpmon.window import TrafficFigures

_NO_COUNTERS: dict[Source | None, str] = {
    Source.PROBES: "This build does not count drafts: only probes show its acceptance.",
    Source.NONE: "This build does not count drafts, and no probe has drafted so far.",
}
_FIT_A_PHONE = 3  # windows; more have to scroll there, so the keyboard must reach them


def live_traffic(server: ServerSnapshot, snapshot: Snapshot) -> Html:
    """What users' requests showed, one column for each window."""
    windows = _windows(server, snapshot.windows_seconds)
    scrolls = len(windows) > _FIT_A_PHONE
    return h(
        "section",
        h("h3", "Live traffic"),
        _activity(server) if server.waiting_seconds is not None else None,
        h("p", _NO_COUNTERS[server.source]) if server.source in _NO_COUNTERS else None,
        _doubts(server) if server.distrust else None,
        h("p", _nothing(server, windows, snapshot.unix_seconds))
        if all(is_empty(figures) for _, figures in windows)
        else _table(server, windows, snapshot.unix_seconds),
        tabindex="0" if scrolls else None,
        aria_label="live traffic by window" if scrolls else None,
    )


def is_empty(figures: TrafficFigures) -> bool:
    """Whether a window has nothing to show; a throughput of 0 is no traffic."""
    return not figures.throughput_tokens_per_second and all(
        part is None
        for part in (
            figures.acceptance,
            figures.acceptance_length,
            figures.draft_coverage,
            figures.decode_tokens_per_second,
        )
    )


def prominent(
    server: ServerSnapshot, windows_seconds: Sequence[float]
) -> tuple[float, TrafficFigures]:
    """The shortest window that has an acceptance, or else the longest."""
    windows = _windows(server, windows_seconds)
    return next((w for w in windows if w[1].acceptance is not None), windows[-1])


def why_no_acceptance(
    server: ServerSnapshot, figures: TrafficFigures, width_seconds: float, *, now: float
) -> str:
    """Why a window shows no acceptance, in a few words."""
    if not is_empty(figures):
        drafts = server.live.drafts if server.live is not None else None
        if drafts is None:
            return "drafting not reported"
        return "too few drafts" if drafts.value else "nothing drafted"
    # Do not speak of more time than the server is known to have been there.
    seen_seconds = width_seconds
    if server.state is State.READY and server.since_unix_seconds is not None:
        seen_seconds = min(max(now - server.since_unix_seconds, 0.0), width_seconds)
    if figures.throughput_tokens_per_second == 0:
        return f"no traffic in {duration(seen_seconds)}"
    if server.waiting_seconds:
        return f"no request ended in {duration(seen_seconds)}"
    return NO_DATA


def _windows(
    server: ServerSnapshot, windows_seconds: Sequence[float]
) -> list[tuple[float, TrafficFigures]]:
    found = server.windows.get("live", {})
    return [(width, found.get(width, TrafficFigures())) for width in windows_seconds]


def _activity(server: ServerSnapshot) -> Html:
    if not server.waiting_seconds:
        return h("p", "No request is running.", class_="now")
    return h(
        "p",
        h("b", "Waiting:"),
        f" requests have been running for {duration(server.waiting_seconds)} without one ending.",
        class_="now",
    )


def _doubts(server: ServerSnapshot) -> Html:
    build_number = server.props.build_number if server.props is not None else None
    off = None
    if server.mismatch is not None and Reason.PROBE_MISMATCH in server.distrust:
        off = (
            f"; they are off by {PERCENT.written(server.mismatch)} of the tokens drafted in probes"
        )
    return h(
        "p",
        h("b", "Acceptance may be wrong: "),
        reason_words(server.distrust, build_number),
        off,
        ".",
        class_="todo calm" if server.distrust == {Reason.KNOWN_BUILD} else "todo bad",
    )


def _nothing(
    server: ServerSnapshot, windows: Sequence[tuple[float, TrafficFigures]], now: float
) -> str:
    """One sentence in place of a table without a single figure."""
    if server.state is not State.READY and not server.windows:
        return f"No data: {state_words(server.state).name}."
    if server.counters is None:
        return f"No data: {server.detail or 'the last usable look is too long ago'}."
    width, figures = windows[-1]
    why = why_no_acceptance(server, figures, width, now=now)
    if why == NO_DATA and server.scrapes.get(Outcome.OK, 0) < 2:
        return "No data yet: it takes two looks at the server."
    return f"{why[0].upper()}{why[1:]}."


def _table(
    server: ServerSnapshot, windows: Sequence[tuple[float, TrafficFigures]], now: float
) -> Html:
    positions = max(len(figures.positions) for _, figures in windows)
    labels = (
        "Acceptance",
        *(f"position {position}" for position in range(positions)),
        "Acceptance length",
        "Draft coverage",
        "Decode speed",
        "Throughput",
        "Measured over",
    )
    rows = [[h("th", label, scope="row")] for label in labels]
    for width, figures in windows:
        why = why_no_acceptance(server, figures, width, now=now)
        if is_empty(figures):
            rows[0].append(h("td", why, rowspan=str(len(rows)), class_="gap"))
            continue
        for row, cell in zip(rows, _column(figures, positions, why), strict=True):
            row.append(cell)
    head = [
        h("th", "window", scope="col"),
        *(h("th", duration(width), scope="col") for width, _ in windows),
    ]
    return h("table", h("tr", *head), *(h("tr", *row) for row in rows), class_="live")


def _column(figures: TrafficFigures, positions: int, missing: str) -> list[Html]:
    """The cells of one window, in the order of the labels."""
    kept = [*figures.positions, *[None] * (positions - len(figures.positions))]
    evidence = h("i", NO_DATA)
    if figures.drafts is not None and figures.span_seconds is not None:
        span = h("small", f"in {duration(figures.span_seconds)}")
        evidence = together(plural(figures.drafts, "draft"), " ", span)
    return [
        h(
            "td",
            bounded(figures.acceptance, PERCENT, missing),
            style=bar(figures.acceptance),
        ),
        *(
            h(
                "td",
                figure(share, PERCENT),
                style=f"--v:{share:.1%}" if share is not None else None,
            )
            for share in kept
        ),
        h("td", bounded(figures.acceptance_length, LENGTH, missing)),
        h("td", figure(figures.draft_coverage, PERCENT)),
        h("td", bounded(figures.decode_tokens_per_second, SPEED)),
        h("td", figure(figures.throughput_tokens_per_second, SPEED)),
        h("td", evidence),
    ]
