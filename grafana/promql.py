"""Expressions that panels ask, over mtpmon's own metrics alone: no recording rules needed.

Duplicates, from two mtpmon that watch the same server, fall together by ``max``. Unknown stays
no sample: nothing here fills gaps with 0.
"""

from collections.abc import Iterable, Sequence

ONE = 'server="$server"'
MANY = 'server=~"$server"'
WINDOW = "$window"
# Figures that changes are detected in: as in their metrics' names, and in words.
SHIFTS = (
    ("acceptance", "acceptance"),
    ("decode_speed", "decode speed"),
    ("kld", "KL divergence"),
)
# Alerts of mtpmon itself belong to no server and are of interest beside any.
_SERVER_OR_NONE = 'server=~"${server:regex}|"'


def series(metric: str, servers: str = "", /, **labels: str) -> str:
    """A selector; a value that begins with ``~`` is a regular expression."""
    matchers = [servers] if servers else []
    for name, value in labels.items():
        operator = "=~" if value.startswith("~") else "="
        matchers.append(f'{name}{operator}"{value.removeprefix("~")}"')
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def value(metric: str, servers: str, *by: str, **labels: str) -> str:
    """A gauge, by server and by the labels ``by``."""
    return f"max by ({', '.join(('server', *by))}) ({series(metric, servers, **labels)})"


def live(metric: str, servers: str, *by: str) -> str:
    """A figure of users' traffic in the chosen window."""
    return value(metric, servers, *by, traffic="live", window=WINDOW)


def bounds(metric: str) -> tuple[str, str]:
    """Names of the bounds of a metric: they stand before its unit."""
    for unit in ("tokens_per_second", "ratio", "tokens"):
        stem = metric.removesuffix(f"_{unit}")
        if stem != metric:
            return f"{stem}_lower_{unit}", f"{stem}_upper_{unit}"
    raise ValueError(f"{metric} has no unit that bounds are known with")


def per_second(counter: str, servers: str, *by: str, **labels: str) -> str:
    """The rate of a counter, by server and by the labels ``by``."""
    wanted = series(counter, servers, **labels)
    return f"sum by ({', '.join(('server', *by))}) (rate({wanted}[$__rate_interval]))"


def holding(metric: str, servers: str, label: str) -> str:
    """Of a gauge that is 1 for one value of ``label``: that value, as a label."""
    return f"max by (server, {label}) ({series(metric, servers)} == 1)"


def number(metric: str, servers: str, label: str, values: Sequence[str]) -> str:
    """The same as the place of that value among ``values``, which a panel can colour."""
    terms = (
        f"{place} * {value(metric, servers, **{label: each})}" for place, each in enumerate(values)
    )
    return " + ".join(terms)


def how_many(metric: str, servers: str, label: str) -> str:
    """Servers by the value that holds for them."""
    return f"sum by ({label}) (max by (server, {label}) ({series(metric, servers)}))"


def firing() -> str:
    """Alerts that fire, of the chosen servers or of none."""
    return series("ALERTS", _SERVER_OR_NONE, alertname="~Mtpmon.*", alertstate="firing")


MARGIN = "mtpmon_acceptance_margin_ratio"
MARGIN_LOWER, MARGIN_UPPER = bounds(MARGIN)


BREAKEVEN = "mtpmon_breakeven_acceptance_ratio"
ACCEPTANCE = "mtpmon_acceptance_ratio"
MODELLED = "mtpmon_modelled_speedup_ratio"
DECODE = "mtpmon_decode_tokens_per_second"
THROUGHPUT = "mtpmon_throughput_tokens_per_second"


def measured_speedup(servers: str) -> str:
    """Of probes, over all tasks. Ratios are averaged by their logarithms."""
    return f"exp(avg by (server) (ln({value('mtpmon_speedup_ratio', servers, 'task')})))"


def acceptance_by_worth(servers: str) -> Iterable[tuple[str, str]]:
    """Live acceptance, cut by what its margin's bounds say: name of the part, expression."""
    acceptance = live(ACCEPTANCE, servers)
    above = f"{value(MARGIN_LOWER, servers, window=WINDOW)} > 0"
    below = f"{value(MARGIN_UPPER, servers, window=WINDOW)} < 0"
    known = value(MARGIN, servers, window=WINDOW)
    undecided = f"({acceptance} and on (server) {known}) unless on (server) ({above})"
    return (
        ("acceptance, pays", f"{acceptance} and on (server) ({above})"),
        ("acceptance, costs", f"{acceptance} and on (server) ({below})"),
        ("acceptance, undecided", f"{undecided} unless on (server) ({below})"),
        ("acceptance, no breakeven", f"{acceptance} unless on (server) {known}"),
    )


def kept_lengths(servers: str, traffic: str) -> str:
    """Share of verification steps that kept exactly so many tokens; the label is ``position``.

    Steps that kept exactly i are those that kept position i - 1 and not i. PromQL cannot add to
    a label, but ``p(i - 1) = p(i) / c(i)``, with c the conditional acceptance, which gives all
    up to the deepest position ever kept; those that kept it are the rest, labelled by how many
    positions were ever kept. Where none was, all steps kept 0.
    """
    labels = {"traffic": traffic, "window": WINDOW}
    kept = value("mtpmon_position_acceptance_ratio", servers, "position", **labels)
    among = value("mtpmon_position_conditional_acceptance_ratio", servers, "position", **labels)
    broke_off = f"({kept} > 0) / {among} - {kept}"
    deepest = (
        f'count_values by (server) ("position", count by (server) ({kept} > 0))'
        f" * on (server) group_left () min by (server) ({kept} > 0)"
    )
    none = f'label_replace(1 + (max by (server) ({kept}) == 0), "position", "0", "", "")'
    return f"({broke_off}) or ({deepest}) or ({none})"


def of_this_program(expr: str) -> str:
    """Only the processes that export mtpmon's metrics: ``process_*`` has no server."""
    return f"{expr} and on (job, instance) mtpmon_build_info"
