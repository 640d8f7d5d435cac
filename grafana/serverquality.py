"""*Server*: whether drafting changed what the model says, and whether the server drifted."""

from collections.abc import Sequence

from grafana.layout import Cell, Line
from grafana.looks import COUNT, GREEN, NATS, NOT_MEASURED, NOT_SEEN, ORANGE, PURPLE, RED, SHARE
from grafana.now import histogram
from grafana.overtime import graph
from grafana.parts import Query, Text
from grafana.promql import ONE, per_second, series, value

KLD = "mtpmon_kld_nats"
REFERENCE = "mtpmon_reference_kld_nats"


def quality() -> Sequence[Line]:
    """The section."""
    return [
        Line(8, *_sequences()),
        Line(8, *_divergences()),
        Line(8, *_distances()),
        Line(8, *_reference()),
        Line(7, *_evidence()),
    ]


def _sequences() -> Sequence[Cell]:
    same = graph(
        Text(
            "Same answer with and without drafting",
            "Of recent greedy probes: share whose two answers are the same to the last token, share"
            " of tokens that are equal place by place, share of comparable positions with the same"
            " likeliest token. Exact sequences below 100 % are usual: a batch rounds differently."
            " Look at the kind of divergence before you call it a fault.",
            NOT_MEASURED,
        ),
        SHARE,
        [
            Query(value("mtpmon_exact_sequence_ratio", ONE), "exact sequences"),
            Query(value("mtpmon_token_match_ratio", ONE), "equal tokens"),
            Query(value("mtpmon_top1_agreement_ratio", ONE), "same likeliest token"),
        ],
    )
    best = graph(
        Text(
            "Tokens that are the target's best",
            "Share of tokens of recent speculative answers that the target itself finds likeliest,"
            " asked one at a time without a draft. Greedy decoding without fault: 100 %, with any"
            " number of servers.",
            NOT_MEASURED,
        ),
        SHARE,
        [Query(value("mtpmon_emitted_best_ratio", ONE), "emitted is best")],
    )
    regret = graph(
        Text(
            "Regret",
            "How much likelier the target finds its best token than the one emitted. 0 is right;"
            " a thousandth is a rounding tie; whole nats are a fault of speculation.",
            NOT_MEASURED,
        ),
        NATS,
        [Query(value("mtpmon_regret_nats", ONE, "stat"), "{{stat}}")],
    )
    return (
        Cell("server-exact", 8, same),
        Cell("server-best", 8, best),
        Cell("server-regret", 8, regret),
    )


def _divergences() -> Sequence[Cell]:
    kinds = graph(
        Text(
            "First divergences by kind",
            "Probes whose answers parted, in the last hour. tie: the target's two best tokens were"
            " as good as equal there, so rounding decides. real: they were not; many of these are"
            " a fault. unknown: the target's distribution was not there.",
            NOT_SEEN,
        ),
        COUNT,
        [
            Query(
                f"sum by (server, kind) (increase({series('mtpmon_divergences_total', ONE)}[1h]))",
                "{{kind}}",
            )
        ],
        colours={"tie": GREEN, "real": RED, "unknown": ORANGE},
    )
    where = histogram(
        Text(
            "Where answers first differ",
            "Probes of the chosen time by the position of their first divergence: up to the number"
            " below each bar. All early: prefill differs. Spread out: rounding.",
            NOT_SEEN,
        ),
        COUNT,
        f"sum by (le) (increase({series('mtpmon_first_divergence_position_bucket', ONE)}"
        "[$__range]))",
    )
    close = graph(
        Text(
            "How close the call was",
            "Median gap between the target's two best tokens where recent probes first differed."
            " Near 0: rounding ties. Large: the speculating server says something else.",
            NOT_MEASURED,
        ),
        NATS,
        [Query(value("mtpmon_divergence_margin_nats", ONE), "gap at the divergence")],
    )
    return (
        Cell("server-divergences", 8, kinds),
        Cell("server-divergence-positions", 8, where),
        Cell("server-divergence-margin", 8, close),
    )


def _distances() -> Sequence[Cell]:
    mean = graph(
        Text(
            "KL divergence, mean",
            "Of the speculating server's token distributions from the target's: lower bounds from"
            " top-k lists. next token: after the prompt, where no draft can matter; not 0 means"
            " that the two servers are not alike. after speculation: after the same tokens,"
            " written by drafts. teacher forced: undrafted, along that answer.",
            NOT_MEASURED,
        ),
        NATS,
        [Query(value(KLD, ONE, "at", stat="mean"), "{{at}}")],
    )
    error = value(KLD, ONE, stat="standard_error", at="after_speculation")
    tails = graph(
        Text(
            "KL divergence after speculation, tails",
            "Median, 95th and 99th percentile, largest, and the standard error of the mean. A"
            " fault that hits few positions shows here before it moves the mean.",
            NOT_MEASURED,
        ),
        NATS,
        [
            Query(
                value(KLD, ONE, "stat", stat="~p50|p95|p99|max", at="after_speculation"),
                "{{stat}}",
            ),
            Query(error, "standard error"),
        ],
    )
    return (
        Cell("server-kld", 12, mean),
        Cell("server-kld-tails", 12, tails),
    )


def _reference() -> Sequence[Cell]:
    drift = graph(
        Text(
            "Drift from the reference",
            "KL divergence of the server's undrafted distributions from a captured reference's,"
            " such as the BF16 original: what the quantization and the build cost. It should be"
            " flat; a step marks another build or model. Needs a capture in the configuration.",
            "no reference",
        ),
        NATS,
        [Query(value(REFERENCE, ONE, "stat", stat="~mean|p50|p95|p99|max"), "{{stat}}")],
        colours={"mean": PURPLE},
    )
    reference = graph(
        Text(
            "Agreement with the reference",
            "Share of positions at which the server finds the reference's token likeliest, and how"
            " much of the reference's probability both lists hold. Low coverage: the divergence is"
            " a weak lower bound.",
            "no reference",
        ),
        SHARE,
        [
            Query(value("mtpmon_reference_top1_match_ratio", ONE), "same token"),
            Query(value("mtpmon_reference_coverage_ratio", ONE), "coverage"),
        ],
    )
    return (
        Cell("server-drift", 12, drift),
        Cell("server-reference", 12, reference),
    )


def _evidence() -> Sequence[Cell]:
    positions = graph(
        Text(
            "Positions compared",
            "Positions of probes per second: comparable ones feed the KL divergence; missing ones"
            " have no log-probabilities, which is what the server gives for most drafted tokens;"
            " diverged ones come after different tokens. Only the first kind says anything.",
            NOT_SEEN,
        ),
        "cps",
        [Query(per_second("mtpmon_kld_positions_total", ONE, "result"), "{{result}}")],
        stacked=True,
    )
    coverage = graph(
        Text(
            "Probability seen",
            "Probability mass that the compared top-k lists share, on average. Near 100 % the KL"
            " divergence is nearly exact; far below it is a weak lower bound.",
            NOT_MEASURED,
        ),
        SHARE,
        [Query(value("mtpmon_kld_coverage_ratio", ONE), "coverage")],
    )
    shifts = graph(
        Text(
            "Changes found",
            "Changes found per hour, by figure and direction. They are marked on the time axes at"
            " the moment they began.",
            NOT_SEEN,
        ),
        COUNT,
        [
            Query(
                "sum by (server, figure, direction) "
                f"(increase({series('mtpmon_shifts_total', ONE)}[1h]))",
                "{{figure}} {{direction}}",
            )
        ],
    )
    return (
        Cell("server-kld-positions", 8, positions),
        Cell("server-kld-coverage", 8, coverage),
        Cell("server-shift-history", 8, shifts),
    )
