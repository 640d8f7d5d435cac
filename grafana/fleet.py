"""*Fleet*: many servers against each other, and by build and quantization."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import table

from grafana.frame import framed
from grafana.layout import Cell, Dashboard, Line, Section, placed
from grafana.looks import (
    COUNT,
    NATS,
    NOT_MEASURED,
    NOT_SEEN,
    SHARE,
    STATE_COLOURS,
    TIMES,
    TOKENS_PER_SECOND,
    VERDICT_COLOURS,
)
from grafana.now import ranking
from grafana.overtime import graph, heat, timeline
from grafana.parts import Query, Text
from grafana.promql import (
    DECODE,
    MANY,
    MARGIN,
    MARGIN_LOWER,
    MARGIN_UPPER,
    MODELLED,
    THROUGHPUT,
    WINDOW,
    how_many,
    live,
    measured_speedup,
    number,
    series,
    value,
)
from grafana.tables import Column, matrix

UID = "mtpmon-fleet"
SHOWN = 10  # servers in each ranking
_MARGIN = value(MARGIN, MANY, window=WINDOW)


def built() -> Dashboard:
    """The dashboard."""
    builder = framed(
        UID,
        "mtpmon / Fleet",
        "Many servers: where drafting pays and where it costs, and what that has to do with their"
        " builds and quantizations.",
        many_servers=True,
        hours=24,
    )
    return placed(
        builder,
        [
            Section(None, [_heat(), _verdicts(), _rankings()]),
            Section("By build and quantization", _groups()),
            Section("Over time", [_totals(), _spread()]),
        ],
    )


def _heat() -> Line:
    # The colour scale comes from the data: the largest margin of any server in the chosen time,
    # either way, is 1.
    ever = f"{series(MARGIN, MANY, window=WINDOW)}"
    largest = f"scalar(max(max_over_time(abs({ever})[$__range:$__interval] @ end())))"
    panel = heat(
        Text(
            "Margin",
            "A row for each server, time to the right. Green: acceptance above breakeven, red:"
            " below, yellow: about equal. The colour is the margin as a share of the largest"
            " margin, either way, of all servers in the chosen time, so full green or full red is"
            " the strongest seen here, not a fixed number. A gap: no traffic, or no cost measured.",
        ),
        SHARE,
        Query(f"{_MARGIN} / {largest}", "{{server}}"),
    )
    return Line(10, Cell("fleet-heat", 24, panel))


def _verdicts() -> Line:
    panel = timeline(
        Text(
            "Verdict",
            "What can be said for certain of each server, over time: the same margins with their"
            " bounds.",
            NOT_SEEN,
        ),
        number("mtpmon_verdict", MANY, "verdict", list(VERDICT_COLOURS)),
        VERDICT_COLOURS,
        "{{server}}",
    )
    return Line(9, Cell("fleet-verdict", 24, panel))


def _rankings() -> Line:
    least, most = (value(bound, MANY, window=WINDOW) for bound in (MARGIN_LOWER, MARGIN_UPPER))
    top = ranking(
        Text(
            "Highest margins, at least",
            "The servers on which drafting gains most for certain: lower bounds, largest first.",
        ),
        SHARE,
        Query(f"sort_desc(topk({SHOWN}, {least}))", "{{server}}"),
        signed=True,
    )
    bottom = ranking(
        Text(
            "Lowest margins, at most",
            "The servers on which drafting loses most for certain: upper bounds, smallest first."
            " Red ones would be faster without drafting.",
        ),
        SHARE,
        Query(f"sort(bottomk({SHOWN}, {most}))", "{{server}}"),
        signed=True,
    )
    return Line(9, Cell("fleet-top", 12, top), Cell("fleet-bottom", 12, bottom))


def _groups() -> Sequence[Line]:
    return [
        Line(
            8,
            Cell("fleet-builds", 12, _grouped("build", "Builds")),
            Cell("fleet-quantizations", 12, _grouped("quantization", "Quantizations")),
        ),
        Line(8, Cell("fleet-models", 24, _servers())),
    ]


def _with(label: str, metric: str) -> str:
    """A figure by server, with a label of what runs there."""
    return f"{metric} * on (server) group_left ({label}) {_what_runs(label)}"


def _what_runs(label: str) -> str:
    """1 for each server, with a label of what runs there; ``unknown`` where it is empty."""
    info = f"max by (server, {label}) ({series('mtpmon_server_info', MANY)})"
    return f'label_replace({info}, "{label}", "unknown", "{label}", "")'


def _grouped(label: str, title: str) -> table.Panel:
    def by(how: str, metric: str) -> str:
        return f"{how} by ({label}) ({_with(label, metric)})"

    modelled = value(MODELLED, MANY, window=WINDOW)
    kld = value("mtpmon_kld_nats", MANY, stat="mean", at="after_speculation")
    paying = value("mtpmon_verdict", MANY, verdict="paying")
    costing = value("mtpmon_verdict", MANY, verdict="costing")
    return matrix(
        Text(
            title,
            "Servers with the same one, together. Means are over servers, unweighted. They differ"
            " in traffic as well: a difference here is a reason to look, not a proof.",
            NOT_SEEN,
        ),
        label,
        [
            Column("servers", f"count by ({label}) ({_what_runs(label)})"),
            Column("paying", by("sum", paying)),
            Column("costing", by("sum", costing)),
            Column("mean margin", by("avg", _MARGIN), SHARE, signed=True),
            Column("lowest margin", by("min", _MARGIN), SHARE, signed=True),
            Column("mean speed-up", by("avg", modelled), TIMES),
            Column("mean KLD", by("avg", kld), NATS, unknown=NOT_MEASURED),
        ],
        sorted_by="mean margin",
    )


def _servers() -> table.Panel:
    labels = ("build", "model", "quantization", "draft_n_max")
    info = f"max by (server, {', '.join(labels)}) ({series('mtpmon_server_info', MANY)})"
    least, most = (value(bound, MANY, window=WINDOW) for bound in (MARGIN_LOWER, MARGIN_UPPER))
    return matrix(
        Text(
            "What runs where",
            "One row for each server; its name leads to its page. Sort by a column to find what"
            " the good ones have in common.",
            NOT_SEEN,
        ),
        "server",
        [
            Column("build", info, label="build", unknown=NOT_SEEN),
            Column("margin at least", least, SHARE, signed=True),
            Column("margin at most", most, SHARE, signed=True),
            Column("speed-up, probes", measured_speedup(MANY), TIMES, unknown=NOT_MEASURED),
            Column("one stream", live(DECODE, MANY), TOKENS_PER_SECOND),
        ],
        also=labels[1:],
        linked=True,
    )


def _totals() -> Line:
    verdicts = graph(
        Text(
            "Servers by verdict",
            "How many servers gain, lose, cannot be told, or have no data. The red layer is what"
            " turning drafting off would make faster.",
            NOT_SEEN,
        ),
        COUNT,
        [Query(how_many("mtpmon_verdict", MANY, "verdict"), "{{verdict}}")],
        colours=VERDICT_COLOURS,
        stacked=True,
    )
    states = graph(
        Text("Servers by state", "How many are ready, asleep, or out of reach.", NOT_SEEN),
        COUNT,
        [Query(f"{how_many('mtpmon_server_state', MANY, 'state')} > 0", "{{state}}")],
        colours=STATE_COLOURS,
        stacked=True,
    )
    throughput = graph(
        Text(
            "Throughput of the fleet",
            "Tokens of all streams of all servers over wall time. Servers in the middle of long"
            " requests are missing from it until one ends.",
        ),
        TOKENS_PER_SECOND,
        [Query(f"sum({live(THROUGHPUT, MANY)})", "all servers")],
    )
    return Line(
        8,
        Cell("fleet-verdicts", 8, verdicts),
        Cell("fleet-states", 8, states),
        Cell("fleet-throughput", 8, throughput),
    )


def _spread() -> Line:
    def quantiles(expr: str) -> Sequence[Query]:
        # Quartiles and ends: how far the fleet is apart.
        return [
            Query(f"min({expr})", "lowest"),
            Query(f"quantile(0.25, {expr})", "lower quartile"),
            Query(f"quantile(0.5, {expr})", "median"),
            Query(f"quantile(0.75, {expr})", "upper quartile"),
            Query(f"max({expr})", "highest"),
        ]

    margin = graph(
        Text(
            "Spread of margins",
            "Of all servers with traffic. All lines falling together: something they share"
            " changed, such as a build. Only the lowest: one server.",
        ),
        SHARE,
        quantiles(_MARGIN),
    )
    speed_up = graph(
        Text("Spread of speed-ups", "Modelled of users' traffic. 1 is breakeven."),
        TIMES,
        quantiles(value(MODELLED, MANY, window=WINDOW)),
    )
    return Line(8, Cell("fleet-margins", 12, margin), Cell("fleet-speedups", 12, speed_up))
