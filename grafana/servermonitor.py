"""*Server*: what the monitor does and costs, and whether its figures can be believed."""

from collections.abc import Sequence

from grafana.layout import Cell, Line
from grafana.looks import (
    AGO,
    BYTES,
    COUNT,
    GREEN,
    NOT_MEASURED,
    NOT_SEEN,
    ORANGE,
    RED,
    SECONDS,
    SHARE,
    TIMES,
    fixed,
    setting,
)
from grafana.now import figure
from grafana.overtime import graph
from grafana.parts import Query, Text
from grafana.promql import ONE, of_this_program, per_second, series, value

NO_HISTORY = "no history configured"


def monitor() -> Sequence[Line]:
    """The section."""
    return [
        Line(8, *_cost()),
        Line(8, *_probes()),
        Line(5, *_trust()),
        Line(7, *_scrapes()),
        Line(4, *_program()),
    ]


def _cost() -> Sequence[Cell]:
    share = (
        f"{per_second('mtpmon_generated_tokens_total', ONE, traffic='probe')}"
        f" / sum by (server) (rate({series('mtpmon_generated_tokens_total', ONE)}"
        "[$__rate_interval]))"
    )
    tokens = graph(
        Text(
            "Share of tokens that are the monitor's",
            "Tokens that probes generated, of all. High on an idle server is harmless: probes run"
            " only when nobody waits, and end when somebody comes.",
        ),
        SHARE,
        [Query(share, "probes")],
    )
    cpu = graph(
        Text(
            "Processor time of mtpmon",
            "Share of one processor that the monitoring process itself takes, for all its servers.",
            NOT_SEEN,
        ),
        SHARE,
        [
            Query(
                of_this_program("rate(process_cpu_seconds_total[$__rate_interval])"),
                "{{instance}}",
            )
        ],
    )
    memory = graph(
        Text("Memory of mtpmon", "Resident memory of the monitoring process.", NOT_SEEN),
        BYTES,
        [Query(of_this_program("process_resident_memory_bytes"), "{{instance}}")],
    )
    return (
        Cell("server-probe-share", 8, tokens),
        Cell("server-cpu", 8, cpu),
        Cell("server-memory", 8, memory),
    )


def _probes() -> Sequence[Cell]:
    outcomes = graph(
        Text(
            "Probes by outcome",
            "Per hour. skipped ones gave way before they began, preempted ones while they ran: both"
            " are as it should be on a busy server. failed and timeout are not.",
            NOT_SEEN,
        ),
        COUNT,
        [
            Query(
                "sum by (server, outcome)"
                f" (increase({series('mtpmon_probes_total', ONE)}[1h])) > 0",
                "{{outcome}}",
            )
        ],
        stacked=True,
    )
    duration = graph(
        Text(
            "Duration of probes",
            "Of the last completed probe, both arms, against the longest it may take.",
            NOT_MEASURED,
        ),
        SECONDS,
        [
            Query(value("mtpmon_probe_duration_seconds", ONE), "duration"),
            Query(value("mtpmon_probe_timeout_seconds", ONE), "limit"),
        ],
        colours={"limit": RED},
        dashed=["limit"],
    )
    invalid = graph(
        Text(
            "Answers found wanting",
            "Per hour, by what is wrong with them: empty, cut short, looping, not text.",
            NOT_SEEN,
        ),
        COUNT,
        [
            Query(
                "sum by (server, validator)"
                f" (increase({series('mtpmon_probe_invalid_total', ONE)}[1h]))",
                "{{validator}}",
            )
        ],
    )
    return (
        Cell("server-probes", 8, outcomes),
        Cell("server-probe-duration", 8, duration),
        Cell("server-probe-invalid", 8, invalid),
    )


def _trust() -> Sequence[Cell]:
    success = value("mtpmon_probe_last_success_timestamp_seconds", ONE)
    last = figure(
        Text(
            "Last probe",
            "When the last completed probe began, and whether the last one that ran did complete.",
            NOT_MEASURED,
        ),
        AGO,
        [
            Query(f"{success} * 1000", "last completed"),
            Query(value("mtpmon_probe_success", ONE), "the last one completed"),
        ],
        named=True,
    ).override_by_name("the last one completed", [setting("unit", "bool_yes_no")])
    compared = figure(
        Text(
            "Compared with",
            "What probes take for the answer without drafting: a second server (pair), a capture,"
            " the server with drafting switched off (switch), or single undrafted tokens. And"
            " where live acceptance comes from.",
            NOT_MEASURED,
        ),
        COUNT,
        [
            Query(f"{value('mtpmon_probe_baseline', ONE, 'baseline')} == 1", "{{baseline}}"),
            Query(f"{value('mtpmon_acceptance_source', ONE, 'source')} == 1", "live: {{source}}"),
        ],
        names_only=True,
    )
    distrust = figure(
        Text(
            "Reasons to distrust the counters",
            "Why mtpmon does not believe this build's speculative counters. While any stands,"
            " live figures may be wrong; probes' figures are not affected.",
            "none known",
        ),
        COUNT,
        [Query(f"{value('mtpmon_figures_untrusted', ONE, 'reason')} == 1", "{{reason}}")],
        names_only=True,
    ).override_by_regexp(".*", [fixed(RED)])
    mismatch = figure(
        Text(
            "Counters against probes",
            "By how many drafted tokens, of those that probes reported, the server's counters"
            " disagree. 0 % is right.",
            NOT_MEASURED,
        ),
        SHARE,
        [Query(value("mtpmon_accounting_mismatch_ratio", ONE), "mismatch")],
    )
    captures = figure(
        Text(
            "Captures",
            "Whether the captures configured for this server fit it as it runs now: yes or no; the"
            " log says why not.",
            "none configured",
        ),
        "bool_yes_no",
        [Query(value("mtpmon_capture_usable", ONE, "use"), "{{use}}")],
        named=True,
    )
    likeness = figure(
        Text(
            "Design effect",
            "How much the likeness of one request's steps widens the bounds of live figures: 1 is"
            " independent steps; code and prose mixed make it large.",
        ),
        TIMES,
        [Query(value("mtpmon_design_effect_ratio", ONE), "design effect")],
    )
    return (
        Cell("server-last-probe", 5, last),
        Cell("server-baseline", 4, compared),
        Cell("server-distrust", 4, distrust),
        Cell("server-mismatch", 3, mismatch),
        Cell("server-captures", 4, captures),
        Cell("server-design-effect", 4, likeness),
    )


def _scrapes() -> Sequence[Cell]:
    outcomes = graph(
        Text(
            "Looks at the server by outcome",
            "Per second. ok, and props_only for a server that is left to fall asleep, are health.",
            NOT_SEEN,
        ),
        "cps",
        [Query(f"{per_second('mtpmon_scrapes_total', ONE, 'outcome')} > 0", "{{outcome}}")],
        stacked=True,
    )
    duration = graph(
        Text(
            "Duration of a look, and whether it worked",
            "How long the server took to answer. It answers between decode steps, so long ones are"
            " long steps. The green line is 1 while looks work and 0 while they do not.",
            NOT_SEEN,
        ),
        SECONDS,
        [
            Query(value("mtpmon_scrape_duration_seconds", ONE), "duration"),
            Query(value("mtpmon_up", ONE), "up"),
        ],
        colours={"up": GREEN},
    ).override_by_name(
        "up", [setting("unit", "bool_on_off"), setting("custom.axisPlacement", "right")]
    )
    oddities = graph(
        Text(
            "What was held back",
            "Per hour: lines of the server's metrics that could not be read, scrapes held back"
            " since a counter fell without a restart, restarts, and divergences that rounding had"
            " made negative.",
            NOT_SEEN,
        ),
        COUNT,
        [
            Query(f"sum by (server) (increase({series(metric, ONE)}[1h]))", words)
            for metric, words in (
                ("mtpmon_scrape_bad_lines_total", "bad lines"),
                ("mtpmon_scrape_contradictions_total", "contradictions"),
                ("mtpmon_server_restarts_total", "restarts"),
                ("mtpmon_kld_clamped_total", "divergences clamped"),
            )
        ],
        colours={"bad lines": ORANGE},
    )
    return (
        Cell("server-scrapes", 8, outcomes),
        Cell("server-scrape-duration", 8, duration),
        Cell("server-oddities", 8, oddities),
    )


def _program() -> Sequence[Cell]:
    version = figure(
        Text("Version of mtpmon", "What runs here, on which Python.", NOT_SEEN),
        COUNT,
        [Query("mtpmon_build_info", "{{version}}, Python {{python}}")],
        names_only=True,
    )
    reload = figure(
        Text(
            "Configuration read well",
            "no: the last reload was refused and the configuration before it is in use; the log"
            " says why.",
            NOT_SEEN,
        ),
        "bool_yes_no",
        [
            Query("mtpmon_config_last_reload_successful", "{{instance}}"),
            Query("mtpmon_server_files_last_read_successful", "{{instance}} files of servers"),
        ],
    )
    history = figure(
        Text(
            "History",
            "Whether the record of probes on disk can be used, and its size.",
            NO_HISTORY,
        ),
        BYTES,
        [
            Query("mtpmon_history_usable", "usable"),
            Query("mtpmon_history_bytes", "size"),
        ],
        named=True,
    ).override_by_name("usable", [setting("unit", "bool_yes_no")])
    lost = figure(
        Text(
            "History: errors and lost records",
            "In the last day. Anything but 0 is in the log.",
            NO_HISTORY,
        ),
        COUNT,
        [
            Query(
                "sum by (operation) (increase(mtpmon_history_errors_total[1d]))", "{{operation}}"
            ),
            Query(
                "sum by (record) (increase(mtpmon_history_dropped_records_total[1d]))",
                "{{record}} lost",
            ),
        ],
        named=True,
    )
    return (
        Cell("server-version", 6, version),
        Cell("server-reload", 4, reload),
        Cell("server-history", 5, history),
        Cell("server-history-errors", 9, lost),
    )
