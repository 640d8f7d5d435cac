"""Metrics of a server and its traffic: state, totals, windows, each as a row."""

from collections.abc import Callable, Iterator

from mtpmon.duration import format_duration
from mtpmon.exportrow import UNLABELLED, Row, Sample, Samples, bounded_rows, known, unlabelled
from mtpmon.model import Amount, Outcome, State, Usage
from mtpmon.snapshot import ServerSnapshot, Source
from mtpmon.trust import Reason
from mtpmon.window import TrafficFigures, accepted_amount

_WINDOW = ("traffic", "window")


def _state(server: ServerSnapshot) -> Iterator[Sample]:
    if server.state is not None:
        for state in State:
            yield from known(float(server.state is state), state.value)


def _info(server: ServerSnapshot) -> Iterator[Sample]:
    props = server.props
    if props is not None:
        yield (
            (
                props.build or "",
                props.model or "",
                props.quantization or "",
                "" if props.context_tokens is None else str(props.context_tokens),
                "" if props.slots is None else str(props.slots),
                str(len(server.counters.accepted_by_position))
                if server.counters is not None and server.counters.accepted_by_position
                else "",
            ),
            1.0,
        )


def _traffic(read: Callable[[TrafficFigures], float | None]) -> Samples:
    """A metric of each traffic's windows."""

    def samples(server: ServerSnapshot) -> Iterator[Sample]:
        for traffic, windows in server.windows.items():
            for seconds, figures in windows.items():
                yield from known(read(figures), traffic, format_duration(seconds))

    return samples


def _traffic_positions(read: Callable[[TrafficFigures], tuple[float, ...]]) -> Samples:
    def samples(server: ServerSnapshot) -> Iterator[Sample]:
        for traffic, windows in server.windows.items():
            for seconds, figures in windows.items():
                for position, value in enumerate(read(figures)):
                    yield from known(value, traffic, format_duration(seconds), str(position))

    return samples


def _usages(server: ServerSnapshot) -> Iterator[tuple[str, Usage]]:
    if server.live is not None:
        yield "live", server.live
    yield "probe", server.own


def _total(read: Callable[[Usage], Amount | None]) -> Samples:
    """A counter of each traffic."""

    def samples(server: ServerSnapshot) -> Iterator[Sample]:
        for traffic, usage in _usages(server):
            amount = read(usage)
            yield from known(amount.value if amount is not None else None, traffic)

    return samples


def _position_totals(server: ServerSnapshot) -> Iterator[Sample]:
    for traffic, usage in _usages(server):
        for position, count in enumerate(usage.accepted_by_position or ()):
            yield from known(count, traffic, str(position))


SERVER: tuple[Row, ...] = (
    # --- the server ---
    Row(
        "mtpmon_up",
        "gauge",
        UNLABELLED,
        "1 if the last scrape of llama-server's /metrics worked, 0 if not.",
        unlabelled(lambda s: None if s.state is None else float(s.state is State.READY)),
    ),
    Row(
        "mtpmon_server_state",
        "gauge",
        ("state",),
        "1 for the state the server is in, 0 for the others.",
        _state,
    ),
    Row(
        "mtpmon_server_info",
        "info",
        ("build", "model", "quantization", "context_tokens", "slots", "draft_n_max"),
        "What the server says of itself; empty where it does not.",
        _info,
    ),
    Row(
        "mtpmon_server_requests",
        "gauge",
        ("state",),
        "Requests the server was processing, or had deferred, at the last scrape.",
        lambda s: (
            [
                *known(s.counters.requests_processing, "processing"),
                *known(s.counters.requests_deferred, "deferred"),
            ]
            if s.counters is not None
            else []
        ),
    ),
    Row(
        "mtpmon_server_restarts_total",
        "counter",
        UNLABELLED,
        "Restarts of the server seen: its start token changed or its counters fell.",
        unlabelled(lambda s: s.restarts),
    ),
    Row(
        "mtpmon_figures_waiting_seconds",
        "gauge",
        UNLABELLED,
        "How long requests have been running without one ending. Counters move only when a"
        " request ends, so what runs is not in the figures yet.",
        unlabelled(lambda s: s.waiting_seconds),
    ),
    Row(
        "mtpmon_acceptance_source",
        "gauge",
        ("source",),
        "1 for where the server's acceptance comes from: its counters, only mtpmon's probes"
        " (builds without speculative counters), or nowhere.",
        lambda s: (
            [((each.value,), float(s.source is each)) for each in Source]
            if s.source is not None
            else []
        ),
    ),
    Row(
        "mtpmon_figures_untrusted",
        "gauge",
        ("reason",),
        "1 for each reason not to believe the server's speculative counters.",
        lambda s: (
            [((each.value,), float(each in s.distrust)) for each in Reason]
            if s.counters is not None
            else []
        ),
    ),
    Row(
        "mtpmon_accounting_mismatch_ratio",
        "gauge",
        UNLABELLED,
        "Share of drafted tokens by which the server's counters disagree with what mtpmon's"
        " probes reported, over recent probes that ran alone.",
        unlabelled(lambda s: s.mismatch),
    ),
    Row(
        "mtpmon_scrapes_total",
        "counter",
        ("outcome",),
        "Scrapes of the server, by outcome.",
        lambda s: [((o.value,), float(s.scrapes.get(o, 0))) for o in Outcome],
    ),
    Row(
        "mtpmon_scrape_duration_seconds",
        "gauge",
        UNLABELLED,
        "Duration of the last scrape.",
        unlabelled(lambda s: s.scrape_duration_seconds),
    ),
    Row(
        "mtpmon_scrape_bad_lines_total",
        "counter",
        UNLABELLED,
        "Lines of the server's /metrics that could not be used; each cost only itself.",
        unlabelled(lambda s: s.bad_lines),
    ),
    Row(
        "mtpmon_scrape_contradictions_total",
        "counter",
        UNLABELLED,
        "Scrapes held back since a counter fell without a restart; the next one decides.",
        unlabelled(lambda s: s.contradictions),
    ),
    # --- totals ---
    Row(
        "mtpmon_drafts_total",
        "counter",
        ("traffic",),
        "Verification steps (drafts).",
        _total(lambda u: u.drafts),
    ),
    Row(
        "mtpmon_draft_tokens_total",
        "counter",
        ("traffic",),
        "Tokens drafted.",
        _total(lambda u: u.draft_tokens),
    ),
    Row(
        "mtpmon_accepted_tokens_total",
        "counter",
        ("traffic",),
        "Drafted tokens that were kept.",
        _total(accepted_amount),
    ),
    Row(
        "mtpmon_position_accepted_tokens_total",
        "counter",
        ("traffic", "position"),
        "Drafted tokens that were kept, by 0-based place in the draft. Exact.",
        _position_totals,
    ),
    Row(
        "mtpmon_generated_tokens_total",
        "counter",
        ("traffic",),
        "Tokens generated.",
        _total(lambda u: u.generated_tokens),
    ),
    Row(
        "mtpmon_generation_seconds_total",
        "counter",
        ("traffic",),
        "Time spent generating, summed over streams.",
        _total(lambda u: u.generation_seconds),
    ),
    # --- windows ---
    Row(
        "mtpmon_window_span_seconds",
        "gauge",
        _WINDOW,
        "Time that the window's ratios cover: more than its name says where the server's"
        " rounding would hide too much, less if mtpmon has not watched that long.",
        _traffic(lambda f: f.span_seconds),
    ),
    *bounded_rows(
        "mtpmon_acceptance",
        "ratio",
        _WINDOW,
        "Share of drafted tokens that were kept.",
        lambda part: _traffic(lambda f: part(f.acceptance)),
    ),
    Row(
        "mtpmon_position_acceptance_ratio",
        "gauge",
        (*_WINDOW, "position"),
        "Share of verification steps that kept the token at this 0-based place in the draft.",
        _traffic_positions(lambda f: f.positions),
    ),
    Row(
        "mtpmon_position_conditional_acceptance_ratio",
        "gauge",
        (*_WINDOW, "position"),
        "The same, among the steps that kept the token before it.",
        _traffic_positions(lambda f: f.conditional_positions),
    ),
    *bounded_rows(
        "mtpmon_acceptance_length",
        "tokens",
        _WINDOW,
        "Mean tokens a verification step yields, the target's own one included.",
        lambda part: _traffic(lambda f: part(f.acceptance_length)),
    ),
    Row(
        "mtpmon_draft_coverage_ratio",
        "gauge",
        _WINDOW,
        "Share of decode steps that drafted.",
        _traffic(lambda f: f.draft_coverage),
    ),
    *bounded_rows(
        "mtpmon_decode",
        "tokens_per_second",
        _WINDOW,
        "Decode speed of one stream, without each request's first token, which is the prompt's.",
        lambda part: _traffic(lambda f: part(f.decode_tokens_per_second)),
    ),
    Row(
        "mtpmon_throughput_tokens_per_second",
        "gauge",
        _WINDOW,
        "Tokens of all streams over wall time.",
        _traffic(lambda f: f.throughput_tokens_per_second),
    ),
)
