"""*Server*: what drafts keep, position by position, and what steps cost."""

from collections.abc import Sequence

from grafana.figures import banded
from grafana.layout import Cell, Line
from grafana.looks import BLUE, COUNT, GREEN, NOT_MEASURED, SECONDS, SHARE, TIMES, TOKENS, setting
from grafana.now import bars, figure
from grafana.overtime import graph
from grafana.parts import Query, Text
from grafana.promql import ONE, WINDOW, bounds, kept_lengths, live, per_second, value

_GAIN = "mtpmon_best_draft_gain_ratio"


def drafts() -> Sequence[Line]:
    """The section."""
    return [Line(9, *_pictures()), Line(8, *_histories()), Line(8, *_costs()), Line(7, *_counts())]


def _pictures() -> Sequence[Cell]:
    waterfall = bars(
        Text(
            "Acceptance by position",
            "Share of verification steps that kept the token at each place of the draft. It can"
            " only fall. The second bar is the share among the steps that kept the token before:"
            " where it drops, longer drafts stop helping. Position 0 is the first drafted token.",
        ),
        SHARE,
        "position",
        [
            Query(live("mtpmon_position_acceptance_ratio", ONE, "position"), "of all steps"),
            Query(
                live("mtpmon_position_conditional_acceptance_ratio", ONE, "position"),
                "of those that kept the one before",
            ),
        ],
        axis="draft position",
    )
    lengths = bars(
        Text(
            "Tokens kept by a step",
            "Share of verification steps that kept exactly so many drafted tokens, of users and of"
            " probes. Much at 0 is wasted drafting; much at the right end asks for longer drafts."
            " A step also yields one token of the target's own.",
        ),
        SHARE,
        "position",
        [Query(kept_lengths(ONE, "live"), "users"), Query(kept_lengths(ONE, "probe"), "probes")],
        axis="tokens kept",
    )
    cost = bars(
        Text(
            "Step cost by draft length",
            "What a decode step takes with so many drafted tokens, typical of recent probes; 0 is"
            " a plain step. The bar of a full draft over the bar at 0 is the number of tokens that"
            " a step must yield to break even. It holds for the load and context of probes.",
            NOT_MEASURED,
        ),
        SECONDS,
        "draft_tokens",
        [Query(value("mtpmon_step_seconds", ONE, "draft_tokens"), "a step")],
        axis="tokens drafted",
    )
    return (
        Cell("server-positions", 8, waterfall),
        Cell("server-kept", 8, lengths),
        Cell("server-step-cost", 8, cost),
    )


def _histories() -> Sequence[Cell]:
    positions = graph(
        Text(
            "Acceptance by position, over time",
            "The bars above, as lines. All falling together: other traffic, or a fault of the"
            " draft head. Only deep ones falling: drafts are longer than they are good for.",
        ),
        SHARE,
        [
            Query(
                live("mtpmon_position_acceptance_ratio", ONE, "position"),
                "position {{position}}",
            )
        ],
    )
    kept = graph(
        Text(
            "Tokens kept by a step, over time",
            "The distribution of users' steps; the layers add up to 100 %. A layer that grows at"
            " the bottom (0 kept) is loss, one that grows at the top is gain.",
        ),
        SHARE,
        [Query(kept_lengths(ONE, "live"), "{{position}} kept")],
        stacked=True,
    )
    length = graph(
        Text(
            "Acceptance length",
            "Tokens that a verification step yields on average, the target's own included, with"
            " bounds. Over the cost of a step in plain steps it is the speed-up.",
        ),
        TOKENS,
        bands=[
            banded(
                "mtpmon_acceptance_length_tokens",
                ONE,
                "acceptance length",
                BLUE,
                traffic="live",
                window=WINDOW,
            )
        ],
    )
    return (
        Cell("server-positions-history", 8, positions),
        Cell("server-kept-history", 8, kept),
        Cell("server-length", 8, length),
    )


def _costs() -> Sequence[Cell]:
    seconds = graph(
        Text(
            "Step cost by draft length, over time",
            "Seconds of a step by the tokens it drafted; 0 is a plain step. Both rising together:"
            " a slower machine. Only drafting ones rising: drafting got dearer.",
            NOT_MEASURED,
        ),
        SECONDS,
        [Query(value("mtpmon_step_seconds", ONE, "draft_tokens"), "{{draft_tokens}} drafted")],
    )
    ratio = graph(
        Text(
            "Cost of a step, in plain steps",
            "Verification step over plain step, with bounds, and the acceptance length beside it:"
            " drafting pays where the green line runs above the shade. A baseline of the server's"
            " own undrafted steps flatters drafting; the lower bounds of the margin allow for it.",
            NOT_MEASURED,
        ),
        TIMES,
        [Query(live("mtpmon_acceptance_length_tokens", ONE), "tokens a step yields")],
        bands=[banded("mtpmon_step_cost_ratio", ONE, "cost of a step", BLUE)],
        colours={"tokens a step yields": GREEN},
    )
    low, high = bounds(_GAIN)
    advice = figure(
        Text(
            "Gain of the advised draft length",
            "How much faster the advised draft length is than the present one: at least, expected"
            " and at most. All 0: the present one stays. Step costs were measured one request at a"
            " time, in contexts up to so many tokens deep.",
            NOT_MEASURED,
        ),
        SHARE,
        [
            Query(value("mtpmon_best_draft_tokens", ONE), "advised tokens"),
            Query(value(low, ONE), "gain at least"),
            Query(value(_GAIN, ONE), "gain expected"),
            Query(value(high, ONE), "gain at most"),
            Query(value("mtpmon_step_cost_context_tokens", ONE), "measured up to (tokens deep)"),
        ],
        named=True,
    )
    for tokens in ("advised tokens", "measured up to (tokens deep)"):
        advice = advice.override_by_name(tokens, [setting("unit", COUNT)])
    return (
        Cell("server-step-seconds", 8, seconds),
        Cell("server-step-ratio", 8, ratio),
        Cell("server-advice", 8, advice),
    )


def _counts() -> Sequence[Cell]:
    steps = graph(
        Text(
            "Drafting",
            "Verification steps, tokens drafted and tokens kept of users' traffic, per second,"
            " from counters that survive restarts of the server.",
        ),
        "cps",
        [
            Query(per_second("mtpmon_drafts_total", ONE, traffic="live"), "steps"),
            Query(per_second("mtpmon_draft_tokens_total", ONE, traffic="live"), "drafted"),
            Query(per_second("mtpmon_accepted_tokens_total", ONE, traffic="live"), "kept"),
        ],
    )
    by_position = graph(
        Text(
            "Tokens kept, by position",
            "Drafted tokens kept per second, by place in the draft: exact counts, while the"
            " server's totals are printed with six digits.",
        ),
        "cps",
        [
            Query(
                per_second(
                    "mtpmon_position_accepted_tokens_total", ONE, "position", traffic="live"
                ),
                "position {{position}}",
            )
        ],
        stacked=True,
    )
    coverage = graph(
        Text(
            "Steps that draft",
            "Share of users' decode steps that drafted. Low: the server often does not draft, and"
            " acceptance alone says little. Many short requests make it look too low.",
        ),
        SHARE,
        [Query(live("mtpmon_draft_coverage_ratio", ONE), "drafting steps")],
    )
    return (
        Cell("server-drafting", 8, steps),
        Cell("server-position-rate", 8, by_position),
        Cell("server-coverage", 8, coverage),
    )
