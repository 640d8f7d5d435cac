"""*Server*: how much it does and how fast."""

from collections.abc import Sequence

from grafana.figures import banded
from grafana.layout import Cell, Line
from grafana.looks import BLUE, COUNT, NOT_SEEN, SECONDS, TOKENS_PER_SECOND
from grafana.overtime import graph
from grafana.parts import Query, Text
from grafana.promql import DECODE, ONE, THROUGHPUT, WINDOW, live, per_second, value


def traffic() -> Sequence[Line]:
    """The section."""
    decode = graph(
        Text(
            "Decode speed of one stream",
            "How fast one user's answer is written, without its first token. The lower bound"
            " assumes as many requests as the counters allow; short requests widen it.",
        ),
        TOKENS_PER_SECOND,
        bands=[banded(DECODE, ONE, "decode speed", BLUE, traffic="live", window=WINDOW)],
    )
    throughput = graph(
        Text(
            "Throughput",
            "Tokens of all streams over wall time, idle time included. It moves when requests end;"
            " while long ones run there may be none.",
        ),
        TOKENS_PER_SECOND,
        [Query(live(THROUGHPUT, ONE), "users")],
    )
    generated = graph(
        Text(
            "Tokens generated",
            "Per second, of users and of mtpmon's probes: how much of the server's work is the"
            " monitor's.",
            NOT_SEEN,
        ),
        TOKENS_PER_SECOND,
        [Query(per_second("mtpmon_generated_tokens_total", ONE, "traffic"), "{{traffic}}")],
        stacked=True,
    )
    requests = graph(
        Text(
            "Requests",
            "Being processed, and waiting for a slot, at mtpmon's last look. Deferred ones mean"
            " that users wait; probes then give way.",
            NOT_SEEN,
        ),
        COUNT,
        [Query(value("mtpmon_server_requests", ONE, "state"), "{{state}}")],
    )
    busy = graph(
        Text(
            "Time spent generating",
            "Seconds of generation per second, summed over streams: 1 is one stream busy all the"
            " time. Counted when a request ends, so long ones show as steps.",
            NOT_SEEN,
        ),
        COUNT,
        [Query(per_second("mtpmon_generation_seconds_total", ONE, "traffic"), "{{traffic}}")],
        stacked=True,
    )
    span = graph(
        Text(
            "What figures cover",
            "Seconds that the chosen window really covers: more than its name where the server's"
            " six digits would hide too much, less after a start. And how long requests have run"
            " without one ending: those are in no figure yet.",
            NOT_SEEN,
        ),
        SECONDS,
        [
            Query(live("mtpmon_window_span_seconds", ONE), "window covers"),
            Query(value("mtpmon_figures_waiting_seconds", ONE), "running without an end"),
        ],
    )
    return [
        Line(
            8,
            Cell("server-decode", 8, decode),
            Cell("server-throughput", 8, throughput),
            Cell("server-generated", 8, generated),
        ),
        Line(
            7,
            Cell("server-requests", 8, requests),
            Cell("server-busy", 8, busy),
            Cell("server-span", 8, span),
        ),
    ]
