"""*Overview*: all servers at a glance, for a wall and for three in the morning."""

from collections.abc import Sequence

from grafana.figures import against_breakeven
from grafana.frame import framed
from grafana.layout import Cell, Dashboard, Line, Section, placed
from grafana.looks import (
    COUNT,
    NATS,
    NOT_MEASURED,
    NOT_SEEN,
    RED,
    SHARE,
    STATE_COLOURS,
    TIMES,
    TOKENS_PER_SECOND,
    VERDICT_COLOURS,
    fixed,
)
from grafana.now import figure
from grafana.overtime import graph, timeline
from grafana.parts import Query, Text
from grafana.promql import (
    ACCEPTANCE,
    BREAKEVEN,
    DECODE,
    MANY,
    MARGIN_LOWER,
    MARGIN_UPPER,
    MODELLED,
    THROUGHPUT,
    WINDOW,
    firing,
    holding,
    how_many,
    live,
    measured_speedup,
    number,
    series,
    value,
)
from grafana.tables import Column, matrix

UID = "mtpmon-overview"
MEASURED = measured_speedup(MANY)
KLD = value("mtpmon_kld_nats", MANY, stat="mean", at="after_speculation")


def built() -> Dashboard:
    """The dashboard."""
    builder = framed(
        UID,
        "mtpmon / Overview",
        "Every watched llama-server: does drafting pay on its traffic, is it well, what fires."
        " Read the first line; click a server's name for the rest.",
        many_servers=True,
        hours=3,
    )
    return placed(
        builder,
        [
            Section(None, [_glance(), _table(), _history()]),
            Section("Acceptance against breakeven, by server", [_acceptances()]),
            Section("Servers compared", _compared()),
        ],
    )


def _glance() -> Line:
    verdicts = figure(
        Text(
            "Servers by verdict",
            "paying: drafting makes users' traffic faster, for certain. costing: slower, for"
            " certain; turn it off or look at the server. undecided: the bounds still hold 0."
            " no data: no traffic, no cost measured yet, or too few verification steps.",
            NOT_SEEN,
        ),
        COUNT,
        [Query(how_many("mtpmon_verdict", MANY, "verdict"), "{{verdict}}")],
        named=True,
        colours=VERDICT_COLOURS,
    )
    states = figure(
        Text(
            "Servers by state",
            "What each llama-server's last answer was. Only ready ones are measured. sleeping is"
            " healthy: mtpmon does not wake a server. unreachable, unauthorized, metrics disabled"
            " and malformed need a hand.",
            NOT_SEEN,
        ),
        COUNT,
        [Query(f"{how_many('mtpmon_server_state', MANY, 'state')} > 0", "{{state}}")],
        named=True,
        colours=STATE_COLOURS,
    )
    alerts = figure(
        Text(
            "Firing alerts",
            "Alerts of mtpmon's rules that fire now, by name. The rules must be loaded into this"
            " Prometheus; without them nothing fires, whatever happens.",
            "none fires",
        ),
        COUNT,
        [Query(f"count by (alertname) ({firing()})", "{{alertname}}")],
        named=True,
    ).override_by_regexp(".*", [fixed(RED)])
    worst = figure(
        Text(
            "Lowest margin, at best",
            "The server whose margin's upper bound is the lowest: acceptance less breakeven, as"
            " high as chance allows. Red means that drafting costs there for certain. Green does"
            " not mean that all pay: see the verdicts.",
        ),
        SHARE,
        [Query(f"bottomk(1, {value(MARGIN_UPPER, MANY, window=WINDOW)})", "{{server}}")],
        signed=True,
        named=True,
    )
    return Line(
        5,
        Cell("overview-verdicts", 7, verdicts),
        Cell("overview-states", 7, states),
        Cell("overview-alerts", 5, alerts),
        Cell("overview-worst", 5, worst),
    )


def _table() -> Line:
    state = holding("mtpmon_server_state", MANY, "state")
    verdict = holding("mtpmon_verdict", MANY, "verdict")
    least, most = (value(bound, MANY, window=WINDOW) for bound in (MARGIN_LOWER, MARGIN_UPPER))
    modelled = value(MODELLED, MANY, window=WINDOW)
    restarts = f"increase({series('mtpmon_server_restarts_total', MANY)}[$__range])"
    alerts = series("ALERTS", MANY, alertname="~Mtpmon.*", alertstate="firing")
    columns = [
        Column("state", state, label="state", unknown=NOT_SEEN, colours=STATE_COLOURS),
        Column("verdict", verdict, label="verdict", unknown=NOT_SEEN, colours=VERDICT_COLOURS),
        Column("acceptance", live(ACCEPTANCE, MANY), SHARE),
        Column("breakeven", value(BREAKEVEN, MANY, window=WINDOW), SHARE),
        Column("margin at least", least, SHARE, signed=True),
        Column("margin at most", most, SHARE, signed=True),
        Column("speed-up, modelled", modelled, TIMES),
        Column("speed-up, probes", MEASURED, TIMES, unknown=NOT_MEASURED),
        Column("one stream", live(DECODE, MANY), TOKENS_PER_SECOND),
        Column("all streams", live(THROUGHPUT, MANY), TOKENS_PER_SECOND),
        Column("KLD", KLD, NATS, unknown=NOT_MEASURED),
        # There for every server, so that one never looked at has a row as well.
        Column("restarts", f"round(max by (server) ({restarts}))", COUNT, unknown=NOT_SEEN),
        Column("alerts", f"count by (server) ({alerts})", COUNT, unknown="none"),
    ]
    text = Text(
        "Servers",
        "One row for each server; its name leads to its own page. Live figures are over the"
        " chosen window. Drafting pays for certain where the margin is green in both columns and"
        " costs where both are red. Speed-up: modelled of users' traffic, and measured by probes,"
        " mean of all tasks. KLD: mean divergence after speculation, a lower bound; it needs a"
        " second server or a capture. Restarts: of llama-server, in the chosen time.",
        NOT_SEEN,
    )
    table = matrix(text, "server", columns, linked=True, sorted_by="margin at least")
    return Line(9, Cell("overview-servers", 24, table))


def _history() -> Line:
    verdicts = timeline(
        Text(
            "Verdict",
            "Since when each verdict holds. A verdict changes only when the evidence is clear or"
            " has lasted, so a change here is worth a look.",
            NOT_SEEN,
        ),
        number("mtpmon_verdict", MANY, "verdict", list(VERDICT_COLOURS)),
        VERDICT_COLOURS,
        "{{server}}",
    )
    states = timeline(
        Text(
            "State",
            "What each server's answers said, over time. A gap: mtpmon itself was not scraped.",
            NOT_SEEN,
        ),
        number("mtpmon_server_state", MANY, "state", list(STATE_COLOURS)),
        STATE_COLOURS,
        "{{server}}",
    )
    return Line(7, Cell("overview-verdict", 12, verdicts), Cell("overview-state", 12, states))


def _acceptances() -> Line:
    panel = against_breakeven("$server", MANY).repeat("server").repeat_direction("h")
    return Line(8, Cell("overview-acceptance", 24, panel.max_per_row(3)))


def _compared() -> Sequence[Line]:
    def by_server(key: str, text: Text, unit: str, expr: str) -> Cell:
        return Cell(key, 12, graph(text, unit, [Query(expr, "{{server}}")], linked=True))

    speed_up = by_server(
        "overview-speedup",
        Text(
            "Speed-up, modelled",
            "What drafting makes of users' traffic in the chosen window: acceptance length over"
            " the cost of a step, as probes measured it. 1 is breakeven. Bounds are on the"
            " server's page.",
        ),
        TIMES,
        value(MODELLED, MANY, window=WINDOW),
    )
    margin = by_server(
        "overview-margin",
        Text(
            "Margin, at least",
            "Lower bound of acceptance less breakeven. A server above 0 pays for certain; below 0"
            " it may pay or not.",
        ),
        SHARE,
        value(MARGIN_LOWER, MANY, window=WINDOW),
    )
    decode = by_server(
        "overview-decode",
        Text(
            "Decode speed of one stream",
            "How fast one user's answer is written. Falls with load as well as with acceptance.",
        ),
        TOKENS_PER_SECOND,
        live(DECODE, MANY),
    )
    kld = by_server(
        "overview-kld",
        Text(
            "KL divergence after speculation",
            "Mean over recent probes of how far the speculating server's token distribution is"
            " from the target's, after the same tokens: a lower bound. Near 0 is health; a step"
            " up after an upgrade is not.",
            NOT_MEASURED,
        ),
        NATS,
        KLD,
    )
    return [Line(8, speed_up, margin), Line(8, decode, kld)]
