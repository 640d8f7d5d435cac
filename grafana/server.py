"""*Server*: one server, from whether drafting pays down to what the monitor costs."""

from grafana.figures import against_breakeven, banded
from grafana.frame import framed
from grafana.layout import Cell, Dashboard, Line, Section, placed
from grafana.looks import (
    BLUE,
    COUNT,
    GREEN,
    NOT_MEASURED,
    NOT_SEEN,
    ORANGE,
    RED,
    SHARE,
    STATE_COLOURS,
    TIMES,
    TOKENS,
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
    MARGIN,
    MODELLED,
    ONE,
    SHIFTS,
    WINDOW,
    firing,
    live,
    measured_speedup,
    number,
    series,
    value,
)
from grafana.serverdrafts import drafts
from grafana.servermonitor import monitor
from grafana.serverquality import quality
from grafana.servertasks import tasks
from grafana.servertraffic import traffic
from grafana.tables import Column, matrix

UID = "mtpmon-server"


def built() -> Dashboard:
    """The dashboard."""
    builder = framed(
        UID,
        "mtpmon / Server",
        "One llama-server: does drafting pay, position by position and task by task; did it change"
        " what the model says; how fast is it; what does the monitor cost.",
        many_servers=False,
        hours=6,
    )
    sections = [
        Section(None, [_now(), _identity()]),
        Section("Does drafting pay?", _worth()),
        Section("What drafts keep, and what they cost", drafts()),
        Section("Tasks, by probes", tasks()),
        Section("Did drafting change what the model says?", quality()),
        Section("Traffic and speed", traffic()),
        Section("Monitor itself", monitor(), folded=True),
    ]
    return placed(builder, sections)


def _now() -> Line:
    def now(key: str, text: Text, unit: str, expr: str, *, signed: bool = False) -> Cell:
        return Cell(key, 3, figure(text, unit, [Query(expr, text.title)], signed=signed))

    def word(key: str, text: Text, metric: str, label: str, colours: dict[str, str]) -> Cell:
        query = Query(number(metric, ONE, label, list(colours)), text.title)
        return Cell(key, 3, figure(text, COUNT, [query], colours=colours, numbered=True))

    return Line(
        4,
        word(
            "server-state-now",
            Text(
                "State",
                "What the server's last answer was. Figures move only while it is ready.",
                NOT_SEEN,
            ),
            "mtpmon_server_state",
            "state",
            dict(STATE_COLOURS),
        ),
        word(
            "server-verdict-now",
            Text(
                "Verdict",
                "Does drafting pay on users' traffic? paying and costing are for certain, at the"
                " configured confidence; undecided: the bounds still hold 0; no data: no traffic,"
                " no cost measured, or too few steps. It is over the middle one of mtpmon's"
                " windows, whichever is chosen above.",
                NOT_SEEN,
            ),
            "mtpmon_verdict",
            "verdict",
            dict(VERDICT_COLOURS),
        ),
        now(
            "server-acceptance-now",
            Text("Acceptance", "Share of users' drafted tokens that were kept, in the window."),
            SHARE,
            live(ACCEPTANCE, ONE),
        ),
        now(
            "server-breakeven-now",
            Text(
                "Breakeven",
                "The acceptance at which drafting neither gains nor loses, from what probes found"
                " a step to cost. Needs a probe that completed, and traffic. Above 100 % it"
                " cannot be reached.",
                "no cost or no traffic",
            ),
            SHARE,
            value(BREAKEVEN, ONE, window=WINDOW),
        ),
        now(
            "server-margin-now",
            Text(
                "Margin",
                "Acceptance less breakeven. Green above 0, red below; whether that is more than"
                " chance is the verdict's business.",
                "no cost or no traffic",
            ),
            SHARE,
            value(MARGIN, ONE, window=WINDOW),
            signed=True,
        ),
        now(
            "server-speedup-now",
            Text(
                "Speed-up",
                "Modelled of users' traffic in the window: 1.3 × is 30 % faster than without"
                " drafting, below 1 × it is slower.",
                "no cost or no traffic",
            ),
            TIMES,
            value(MODELLED, ONE, window=WINDOW),
        ),
        now(
            "server-decode-now",
            Text("Decode speed", "Tokens per second that one user's answer is written at."),
            TOKENS_PER_SECOND,
            live(DECODE, ONE),
        ),
        now(
            "server-advice-now",
            Text(
                "Advised draft length",
                "The draft length that is faster for certain than the present one, or the present"
                " one. 0: turn drafting off.",
                NOT_MEASURED,
            ),
            TOKENS,
            value("mtpmon_best_draft_tokens", ONE),
        ),
    )


def _identity() -> Line:
    info = series("mtpmon_server_info", ONE)
    labels = ("build", "model", "quantization", "context_tokens", "slots", "draft_n_max")
    one_row = f"max by (server, {', '.join(labels)}) ({info})"
    what = matrix(
        Text(
            "What runs",
            "What the server says of itself; an empty cell where it does not. The longest draft is"
            " known once something was drafted. After a change two rows show for a few minutes.",
            NOT_SEEN,
        ),
        "server",
        [
            Column("build", one_row, label="build"),
        ],
        also=labels[1:],
    )
    shifts = figure(
        Text(
            "Changes that stand",
            "Figures that a sequential test finds changed against their own recent past, and the"
            " direction. Marked on the time axes with the moment they began.",
            "none known",
        ),
        COUNT,
        [
            Query(
                f"{value(f'mtpmon_{name}_shift', ONE, 'direction')} == 1",
                f"{words} {{{{direction}}}}",
            )
            for name, words in SHIFTS
        ],
        names_only=True,
    ).override_by_regexp(".*", [fixed(ORANGE)])
    alerts = figure(
        Text(
            "Firing alerts",
            "Alerts of mtpmon's rules that fire now, for this server or for mtpmon itself. The"
            " rules must be loaded into this Prometheus.",
            "none fires",
        ),
        COUNT,
        [Query(f"count by (alertname) ({firing()})", "{{alertname}}")],
        names_only=True,
    ).override_by_regexp(".*", [fixed(RED)])
    return Line(
        4,
        Cell("server-info", 12, what),
        Cell("server-shifts", 6, shifts),
        Cell("server-alerts", 6, alerts),
    )


def _worth() -> list[Line]:
    margin = graph(
        Text(
            "Margin",
            "Acceptance less breakeven, with bounds that hold what is not known of both. All of"
            " the shade above 0: drafting pays. All below: it costs. 0 within: undecided. Wide"
            " shades want more traffic or more probes.",
            "no cost or no traffic",
        ),
        SHARE,
        bands=[banded(MARGIN, ONE, "margin", BLUE, window=WINDOW)],
    )
    speed_up = graph(
        Text(
            "Speed-up",
            "Modelled: of users' traffic, acceptance length over step cost, with bounds. Measured:"
            " decode speed of probes with and without drafting, mean over tasks. They differ"
            " because users ask other things than probes do; 1 is breakeven.",
            NOT_MEASURED,
        ),
        TIMES,
        [Query(measured_speedup(ONE), "measured, all tasks")],
        bands=[banded(MODELLED, ONE, "modelled", BLUE, window=WINDOW)],
        colours={"measured, all tasks": GREEN},
    )
    verdict = timeline(
        Text(
            "Verdict",
            "Since when each verdict holds. It changes only when the evidence is clear or has"
            " lasted.",
            NOT_SEEN,
        ),
        number("mtpmon_verdict", ONE, "verdict", list(VERDICT_COLOURS)),
        VERDICT_COLOURS,
        "verdict",
    )
    state = timeline(
        Text("State", "What the server's answers said, over time.", NOT_SEEN),
        number("mtpmon_server_state", ONE, "state", list(STATE_COLOURS)),
        STATE_COLOURS,
        "state",
    )
    return [
        Line(
            9,
            Cell("server-acceptance", 12, against_breakeven("Acceptance against breakeven", ONE)),
            Cell("server-margin", 12, margin),
        ),
        Line(7, Cell("server-speedup", 12, speed_up), Cell("server-verdict", 12, verdict)),
        Line(3, Cell("server-state", 24, state)),
    ]
