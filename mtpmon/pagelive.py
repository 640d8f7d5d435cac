"""The part of the status page about users' traffic: is it paying, and windows side by side."""

from collections.abc import Sequence

from mtpmon.markup import Html, h, together
from mtpmon.model import Bounded, Outcome, State
from mtpmon.pagetext import (
    EXPIRIES,
    LENGTH,
    NO_DATA,
    PERCENT,
    PLAIN_SOURCES,
    POINTS,
    SPEED,
    TIMES,
    VERDICTS,
    bar,
    bounded,
    count,
    duration,
    figure,
    moment,
    plural,
    reason_words,
    state_words,
)
from mtpmon.pagetrend import trend
from mtpmon.payoff import Payoff
from mtpmon.shift.words import in_words
from mtpmon.snapshot import ServerSnapshot, Snapshot, Source, deciding
from mtpmon.trust import Reason
from mtpmon.verdict import Verdict
from mtpmon.window import TrafficFigures

_NO_COUNTERS: dict[Source | None, str] = {
    Source.PROBES: "This build does not count drafts: only probes show its acceptance.",
    Source.NONE: "This build does not count drafts, and no probe has drafted so far.",
}
MOST_POSITIONS = 8  # n-gram drafts chained to the head's are up to 64 long
_FIT_A_PHONE = 3  # windows; more have to scroll there, so the keyboard must reach them


# --- is it paying? ------------------------------------------------------------------------


def verdict_of(server: ServerSnapshot) -> Verdict:
    """What is held of drafting now."""
    standing = server.paying.verdict
    return standing.verdict if standing is not None else Verdict.NO_DATA


def answer(server: ServerSnapshot, snapshot: Snapshot) -> Html:
    """The verdict with what it rests on, what to do, and what to doubt."""
    verdict, paid = verdict_of(server), _deciding(server, snapshot)
    words = VERDICTS[verdict]
    if paid is None or verdict is Verdict.NO_DATA:
        reason = why_no_verdict(server, snapshot)
        said = h("p", "Is MTP paying? ", h("b", words.name), f": {reason}.", class_="said")
    else:
        margin = _margin(paid, "its breakeven of ", PERCENT.written(paid.breakeven.value))
        end = _what_would_tell(paid) if paid.margin.lower <= 0 <= paid.margin.upper else "."
        said = h("p", h("b", words.name), ": ", margin, end, class_="said")
    return h(
        "div",
        said,
        _grounds(server, snapshot),
        *(
            h("p", h("b", "Change: "), in_words(change, now=snapshot.unix_seconds), ".")
            for change in server.shifts.standing.values()
        ),
        *(h("p", note) for note in _notes(server, paid, now=snapshot.unix_seconds)),
        class_=f"answer {words.mood}",
    )


def answer_in_short(server: ServerSnapshot, snapshot: Snapshot) -> Html:
    """The verdict in one cell."""
    verdict, paid = verdict_of(server), _deciding(server, snapshot)
    if paid is None or verdict is Verdict.NO_DATA:
        return h("td", h("i", why_no_verdict(server, snapshot) if server.windows else NO_DATA))
    words = VERDICTS[verdict]
    name = h("b", verdict.value, class_=f"mood {words.mood}")
    side = "above" if paid.margin.value >= 0 else "below"
    return h("td", name, " ", h("small", f"{POINTS.written(abs(paid.margin.value))} {side}"))


def why_no_verdict(server: ServerSnapshot, snapshot: Snapshot) -> str:
    """What a verdict lacks, in a few words."""
    measured, width = server.measured, deciding_seconds(snapshot)
    if not server.windows:
        if server.state is not State.READY:
            return state_words(server.state).name
        return server.detail or "the last usable look is too long ago"
    if server.source in _NO_COUNTERS:
        return "this build does not count drafts"
    if measured.costs is None:
        if not server.probed:
            return "no measured step cost, as this server is not probed"
        if measured.expiry is not None:
            why = EXPIRIES[measured.expiry]
            return f"the measured step cost holds no more: {why}; probes measure it anew"
        return "no measured step cost yet: probes need more time"
    if measured.costs.plain is None:
        return "no plain step to compare with: probes need a target-only server or a capture"
    paid = _deciding(server, snapshot)
    if paid is not None:
        return f"only {plural(paid.drafts, 'draft')} in {duration(width)}, too few"
    figures = server.windows.get("live", {}).get(width, TrafficFigures())
    if figures.acceptance is not None:
        return "acceptance by position is not counted"
    return why_no_acceptance(server, figures, width, now=snapshot.unix_seconds)


def deciding_seconds(snapshot: Snapshot) -> float:
    """The width of the window that the verdict is over."""
    return deciding(snapshot.windows_seconds)


def _deciding(server: ServerSnapshot, snapshot: Snapshot) -> Payoff | None:
    return server.paying.windows.get(deciding_seconds(snapshot))


def _what_would_tell(paid: Payoff) -> str:
    """What would narrow a margin whose bounds hold 0: the wider of its two parts decides."""
    ours, theirs = paid.acceptance, paid.breakeven
    traffic = ours.upper - ours.lower > theirs.upper - theirs.lower
    return (
        f", within its bounds on either side: more {'traffic' if traffic else 'probes'} would tell."
    )


def _margin(paid: Payoff, *breakeven: str) -> Html:
    """``acceptance 78.3 % is 23.1 points (21.0–25.2) above …``."""
    margin, side = paid.margin, "above "
    if margin.value < 0:
        margin, side = Bounded(-margin.value, -margin.upper, -margin.lower), "below "
    acceptance = PERCENT.written(paid.acceptance.value)
    return together(f"acceptance {acceptance} is ", bounded(margin, POINTS), " ", side, *breakeven)


def _grounds(server: ServerSnapshot, snapshot: Snapshot) -> Html | None:
    """Speed-up, step cost and advice, as far as they are known."""
    costs, paid = server.measured.costs, _deciding(server, snapshot)
    facts: list[tuple[str, Html | str]] = []
    if paid is not None:
        window = h("small", f"modelled, last {duration(deciding_seconds(snapshot))}")
        speedup = together(bounded(paid.speedup, TIMES), " ", window)
        facts.append(("speed-up of live traffic", speedup))
    if costs is not None and costs.plain is not None:
        least, most = costs.context_tokens
        source = h(
            "small",
            f"{PLAIN_SOURCES[costs.plain.source]}; one request at a time, contexts of"
            f" {count(least)} to {count(most)} tokens",
        )
        ratio = bounded(costs.plain.ratio, LENGTH)
        facts.append(("step cost", together(ratio, " plain steps, ", source)))
    if server.measured.advice_words is not None:
        facts.append(("advice", server.measured.advice_words))
    if not facts:
        return None
    return h("dl", *(h("div", h("dt", name), h("dd", value)) for name, value in facts))


def _notes(server: ServerSnapshot, paid: Payoff | None, *, now: float) -> list[str]:
    """What to know before believing it."""
    notes: list[str] = []
    standing, costs, off = (
        server.paying.verdict,
        server.measured.costs,
        server.measured.disagreement,
    )
    if standing is not None and standing.leaning is not None:
        since = ""
        if standing.leaning_since_unix_seconds is not None:
            since = f" since {moment(standing.leaning_since_unix_seconds, now=now)}"
        notes.append(
            f"It looks {standing.leaning.value}{since}; the verdict changes if that lasts."
        )
    if paid is not None and server.distrust:
        notes.append("Acceptance may be wrong, and the verdict with it: see live traffic.")
    if costs is not None and costs.plain is not None and costs.plain.source.flatters:
        notes.append(
            "The speed-up may be flattered: this plain step may cost up to"
            f" {TIMES.written(costs.plain.excess)} a true one, which the bounds allow for."
            " A target-only server would tell."
        )
    if off is not None and not off.lower <= 1 <= off.upper:
        which = "lower" if off.value > 1 else "higher"
        notes.append(
            f"The cost model is off: pairs of probes measure a {which} speed-up, modelled over"
            f" measured is {LENGTH.written(off.value)}"
            f" ({LENGTH.bare(off.lower, 2)}–{LENGTH.bare(off.upper, 2)})."
        )
    return notes


# --- windows ------------------------------------------------------------------------------


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
        trend(server, snapshot.unix_seconds),
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
    paying = server.paying.windows
    labels = (
        "Acceptance",
        *_position_labels(positions),
        *(("Breakeven", "Speed-up, modelled") if paying else ()),
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
        column = _column(figures, positions, why, paying.get(width))
        if paying:
            place = 1 + min(positions, MOST_POSITIONS + 1)
            column[place:place] = _worth(paying.get(width))
        for row, cell in zip(rows, column, strict=True):
            row.append(cell)
    head = [
        h("th", "window", scope="col"),
        *(h("th", duration(width), scope="col") for width, _ in windows),
    ]
    return h("table", h("tr", *head), *(h("tr", *row) for row in rows), class_="live")


def _position_labels(positions: int) -> list[str]:
    """A row for each of the first positions; one for all others that a long draft has."""
    labels = [f"position {position}" for position in range(min(positions, MOST_POSITIONS))]
    if positions > MOST_POSITIONS:
        labels.append(f"positions {MOST_POSITIONS} to {positions - 1}")
    return labels


def _worth(paid: Payoff | None) -> list[Html]:
    """Breakeven and speed-up of one window."""
    if paid is None:
        return [h("td", h("i", NO_DATA)), h("td", h("i", NO_DATA))]
    out_of_reach = " out of reach" if paid.breakeven.value > 1 else None
    return [
        h("td", bounded(paid.breakeven, PERCENT), out_of_reach, class_="mark"),
        h("td", bounded(paid.speedup, TIMES)),
    ]


def _column(
    figures: TrafficFigures, positions: int, missing: str, paid: Payoff | None
) -> list[Html]:
    """The cells of one window, in the order of the labels, without those of what it is worth."""
    kept = [*figures.positions, *[None] * (positions - len(figures.positions))]
    # A position is kept no more often than the one before it, so the first of the rest says all.
    kept = kept[: MOST_POSITIONS + 1]
    evidence = h("i", NO_DATA)
    if figures.drafts is not None and figures.span_seconds is not None:
        span = h("small", f"in {duration(figures.span_seconds)}")
        evidence = together(plural(figures.drafts, "draft"), " ", span)
    return [
        h(
            "td",
            bounded(figures.acceptance, PERCENT, missing),
            style=bar(figures.acceptance, mark=paid.breakeven.value if paid is not None else None),
        ),
        *(
            h(
                "td",
                "up to " if place == MOST_POSITIONS and share is not None else None,
                figure(share, PERCENT),
                style=f"--v:{share:.1%}" if share is not None else None,
            )
            for place, share in enumerate(kept)
        ),
        h("td", bounded(figures.acceptance_length, LENGTH, missing)),
        h("td", figure(figures.draft_coverage, PERCENT)),
        h("td", bounded(figures.decode_tokens_per_second, SPEED)),
        h("td", figure(figures.throughput_tokens_per_second, SPEED)),
        h("td", evidence),
    ]
