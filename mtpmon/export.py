"""Every metric, once, as a row; and a collector that turns a snapshot into samples.

A row's function yields ``(label values, value)`` from one server's snapshot. Unknown is no
sample, never 0. Names and labels are a contract: dashboards and alerts depend on them, and
``docs/metrics.md`` is checked against this table.
"""

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from mtpmon import __version__
from mtpmon.compare import DivergenceKind
from mtpmon.cost import StepCosts
from mtpmon.duration import format_duration
from mtpmon.grade import Grade
from mtpmon.kld import KldSummary
from mtpmon.model import Amount, Baseline, Bounded, Outcome, ProbeOutcome, State, Usage
from mtpmon.payoff import Payoff
from mtpmon.record import HistoryFigures, Operation, RecordKind
from mtpmon.rolling import TaskFigures
from mtpmon.shift.evidence import DIRECTIONS
from mtpmon.shift.server import Change, Figure
from mtpmon.snapshot import DIVERGENCE_BUCKETS, ServerSnapshot, Snapshot, Source
from mtpmon.trust import Reason
from mtpmon.validate import Validator
from mtpmon.verdict import Verdict
from mtpmon.window import TrafficFigures, accepted_amount

Kind = Literal["gauge", "counter", "info", "histogram"]
Sample = tuple[tuple[str, ...], float]
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. ``labels`` come after ``server``; ``samples`` gives their values in order.

    For an ``info`` the label values are those of its labels and the value is ignored.
    """

    name: str
    kind: Kind
    labels: Labels
    help: str
    samples: Callable[[ServerSnapshot], Iterable[Sample]]


# --- how samples come out of a snapshot ---------------------------------------------------


def _known(value: float | None, *labels: str) -> Iterator[Sample]:
    if value is not None and math.isfinite(value):
        yield labels, float(value)


def _value(read: Callable[[ServerSnapshot], float | None]) -> Callable[..., Iterator[Sample]]:
    """A metric with no labels but ``server``."""
    return lambda server: _known(read(server))


def _traffic(read: Callable[[TrafficFigures], float | None]) -> Callable[..., Iterator[Sample]]:
    """A metric of each traffic's windows."""

    def samples(server: ServerSnapshot) -> Iterator[Sample]:
        for traffic, windows in server.windows.items():
            for seconds, figures in windows.items():
                yield from _known(read(figures), traffic, format_duration(seconds))

    return samples


def _traffic_positions(
    read: Callable[[TrafficFigures], tuple[float, ...]],
) -> Callable[..., Iterator[Sample]]:
    def samples(server: ServerSnapshot) -> Iterator[Sample]:
        for traffic, windows in server.windows.items():
            for seconds, figures in windows.items():
                for position, value in enumerate(read(figures)):
                    yield from _known(value, traffic, format_duration(seconds), str(position))

    return samples


def _usages(server: ServerSnapshot) -> Iterator[tuple[str, Usage]]:
    if server.live is not None:
        yield "live", server.live
    yield "probe", server.own


def _total(read: Callable[[Usage], Amount | None]) -> Callable[..., Iterator[Sample]]:
    """A counter of each traffic."""

    def samples(server: ServerSnapshot) -> Iterator[Sample]:
        for traffic, usage in _usages(server):
            amount = read(usage)
            yield from _known(amount.value if amount is not None else None, traffic)

    return samples


def _position_totals(server: ServerSnapshot) -> Iterator[Sample]:
    for traffic, usage in _usages(server):
        for position, count in enumerate(usage.accepted_by_position or ()):
            yield from _known(count, traffic, str(position))


def _by_task(read: Callable[[TaskFigures], float | None]) -> Callable[..., Iterator[Sample]]:
    def samples(server: ServerSnapshot) -> Iterator[Sample]:
        for task, figures in server.probe_figures.tasks.items():
            yield from _known(read(figures), task)

    return samples


def _arm_rates(server: ServerSnapshot) -> Iterator[Sample]:
    for task, figures in server.probe_figures.tasks.items():
        yield from _known(figures.tokens_per_second, task, "speculating")
        yield from _known(figures.target_only_tokens_per_second, task, "target_only")


_KLD_STATS: Mapping[str, Callable[[KldSummary], float | None]] = {
    "mean": lambda s: s.mean_nats,
    "standard_error": lambda s: s.standard_error_nats,
    "p50": lambda s: s.p50_nats,
    "p95": lambda s: s.p95_nats,
    "p99": lambda s: s.p99_nats,
    "max": lambda s: s.max_nats,
}


def _kld(server: ServerSnapshot) -> Iterator[Sample]:
    for at, found in server.probe_figures.kld.items():
        for stat, read in _KLD_STATS.items():
            yield from _known(read(found), stat, at)


def _kld_positions(server: ServerSnapshot) -> Iterator[Sample]:
    totals = server.probe_totals
    yield from _known(totals.comparable, "comparable")
    yield from _known(totals.missing, "missing")
    yield from _known(totals.diverged, "diverged")


def _state(server: ServerSnapshot) -> Iterator[Sample]:
    if server.state is not None:
        for state in State:
            yield from _known(float(server.state is state), state.value)


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


def _middle(bounded: Bounded | None) -> float | None:
    return bounded.value if bounded is not None else None


def _lower(bounded: Bounded | None) -> float | None:
    return bounded.lower if bounded is not None else None


def _upper(bounded: Bounded | None) -> float | None:
    return bounded.upper if bounded is not None else None


def _bounded_rows(
    stem: str,
    unit: str,
    labels: Labels,
    text: str,
    samples: Callable[[Callable[[Bounded | None], float | None]], Callable[..., Iterator[Sample]]],
) -> list[Row]:
    """A figure and its bounds; the unit stays last in their names."""
    return [
        Row(f"{stem}_{unit}", "gauge", labels, text, samples(_middle)),
        Row(f"{stem}_lower_{unit}", "gauge", labels, f"Lower bound: {text}", samples(_lower)),
        Row(f"{stem}_upper_{unit}", "gauge", labels, f"Upper bound: {text}", samples(_upper)),
    ]


_WINDOW = ("traffic", "window")
_ONLY = ()

_OBSERVED: tuple[Row, ...] = (
    # --- the server ---
    Row(
        "mtpmon_up",
        "gauge",
        _ONLY,
        "1 if the last scrape of llama-server's /metrics worked, 0 if not.",
        _value(lambda s: None if s.state is None else float(s.state is State.READY)),
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
                *_known(s.counters.requests_processing, "processing"),
                *_known(s.counters.requests_deferred, "deferred"),
            ]
            if s.counters is not None
            else []
        ),
    ),
    Row(
        "mtpmon_server_restarts_total",
        "counter",
        _ONLY,
        "Restarts of the server seen: its start token changed or its counters fell.",
        _value(lambda s: s.restarts),
    ),
    Row(
        "mtpmon_figures_waiting_seconds",
        "gauge",
        _ONLY,
        "How long requests have been running without one ending. Counters move only when a"
        " request ends, so what runs is not in the figures yet.",
        _value(lambda s: s.waiting_seconds),
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
        _ONLY,
        "Share of drafted tokens by which the server's counters disagree with what mtpmon's"
        " probes reported, over recent probes that ran alone.",
        _value(lambda s: s.mismatch),
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
        _ONLY,
        "Duration of the last scrape.",
        _value(lambda s: s.scrape_duration_seconds),
    ),
    Row(
        "mtpmon_scrape_bad_lines_total",
        "counter",
        _ONLY,
        "Lines of the server's /metrics that could not be used; each cost only itself.",
        _value(lambda s: s.bad_lines),
    ),
    Row(
        "mtpmon_scrape_contradictions_total",
        "counter",
        _ONLY,
        "Scrapes held back since a counter fell without a restart; the next one decides.",
        _value(lambda s: s.contradictions),
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
    *_bounded_rows(
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
    *_bounded_rows(
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
    *_bounded_rows(
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
    # --- probes ---
    Row(
        "mtpmon_probes_total",
        "counter",
        ("outcome",),
        "Shadow probes, by outcome.",
        lambda s: [((o.value,), float(s.probe_totals.outcomes.get(o, 0))) for o in ProbeOutcome],
    ),
    Row(
        "mtpmon_probe_invalid_total",
        "counter",
        ("validator",),
        "Probes whose answer was found wanting: empty_reply and wrong_length fail the probe,"
        " repetition_loop and invalid_utf8 flag it.",
        lambda s: [((v.value,), float(s.probe_totals.invalid.get(v, 0))) for v in Validator],
    ),
    Row(
        "mtpmon_probe_success",
        "gauge",
        _ONLY,
        "1 if the last probe that ran completed, 0 if not.",
        _value(lambda s: None if s.probe_succeeded is None else float(s.probe_succeeded)),
    ),
    Row(
        "mtpmon_probe_duration_seconds",
        "gauge",
        _ONLY,
        "Duration of the last completed probe, both arms.",
        _value(lambda s: s.last_probe.duration_seconds if s.last_probe is not None else None),
    ),
    Row(
        "mtpmon_probe_timeout_seconds",
        "gauge",
        _ONLY,
        "Longest a probe may take.",
        _value(lambda s: s.probe_timeout_seconds if s.probed else None),
    ),
    Row(
        "mtpmon_probe_last_success_timestamp_seconds",
        "gauge",
        _ONLY,
        "When the last completed probe began, in Unix time.",
        _value(lambda s: s.last_success_unix_seconds),
    ),
    Row(
        "mtpmon_probe_figures_timestamp_seconds",
        "gauge",
        ("task",),
        "When the last probe that this task's figures rest on began, in Unix time.",
        _by_task(lambda f: f.last_unix_seconds),
    ),
    Row(
        "mtpmon_probe_acceptance_ratio",
        "gauge",
        ("task",),
        "Share of drafted tokens that were kept in recent probes of this task.",
        _by_task(lambda f: f.acceptance),
    ),
    Row(
        "mtpmon_probe_tokens_per_second",
        "gauge",
        ("task", "arm"),
        "Decode speed of recent probes of this task, by arm.",
        _arm_rates,
    ),
    *_bounded_rows(
        "mtpmon_speedup",
        "ratio",
        ("task",),
        "Decode speed of the speculating arm over the target-only one, paired by probe.",
        lambda part: _by_task(lambda f: part(f.speedup)),
    ),
    Row(
        "mtpmon_exact_sequence_ratio",
        "gauge",
        _ONLY,
        "Share of recent probes whose two arms said the same to the last token.",
        _value(lambda s: s.probe_figures.exact_sequences),
    ),
    Row(
        "mtpmon_token_match_ratio",
        "gauge",
        _ONLY,
        "Share of tokens of recent probes at which both arms agree, position by position.",
        _value(lambda s: s.probe_figures.token_match),
    ),
    Row(
        "mtpmon_first_divergence_position",
        "histogram",
        _ONLY,
        "Where the arms first differed, 0-based, in probes in which they did.",
        lambda s: [
            *(
                ((floatToGoString(bound),), float(count))  # type: ignore[no-untyped-call]
                for bound, count in zip(
                    (*DIVERGENCE_BUCKETS, math.inf),
                    accumulate(s.probe_totals.divergence_positions),
                    strict=True,
                )
            ),
            (("sum",), s.probe_totals.divergence_position_sum),
        ],
    ),
    Row(
        "mtpmon_divergences_total",
        "counter",
        ("kind",),
        "First divergences by kind: a rounding tie between the target's two best tokens, a"
        " real one, or unknown for want of the target's distribution.",
        lambda s: [
            ((kind.value,), float(s.probe_totals.divergence_kinds.get(kind, 0)))
            for kind in DivergenceKind
        ],
    ),
    Row(
        "mtpmon_divergence_margin_nats",
        "gauge",
        _ONLY,
        "Median gap between the target's two best tokens where recent probes first differed:"
        " near 0 is a rounding tie.",
        _value(lambda s: s.probe_figures.divergence_margin_nats),
    ),
    Row(
        "mtpmon_kld_nats",
        "gauge",
        ("stat", "at"),
        "KL divergence of the speculating server's token distributions from the target's over"
        " recent probes: a lower bound from top-k lists.",
        _kld,
    ),
    Row(
        "mtpmon_kld_positions_total",
        "counter",
        ("result",),
        "Positions of probes: comparable, log-probabilities missing, or after a divergence.",
        _kld_positions,
    ),
    Row(
        "mtpmon_kld_clamped_total",
        "counter",
        _ONLY,
        "Divergences in which rounding had made a mass or the sum negative.",
        _value(lambda s: s.probe_totals.clamped),
    ),
    Row(
        "mtpmon_kld_coverage_ratio",
        "gauge",
        _ONLY,
        "Probability mass that the shared top-k lists cover, on average.",
        _value(lambda s: s.probe_figures.kld_coverage),
    ),
    Row(
        "mtpmon_regret_nats",
        "gauge",
        ("stat",),
        "How much likelier the target finds its best token than the one emitted, over tokens"
        " of recent speculative answers; 0 for greedy decoding without fault.",
        lambda s: (
            [
                sample
                for stat, read in _KLD_STATS.items()
                for sample in _known(read(s.probe_figures.regret), stat)
            ]
            if s.probe_figures.regret is not None
            else []
        ),
    ),
    Row(
        "mtpmon_emitted_best_ratio",
        "gauge",
        _ONLY,
        "Share of the tokens of recent speculative answers that are the target's best.",
        _value(lambda s: s.probe_figures.emitted_best),
    ),
    Row(
        "mtpmon_probe_baseline",
        "gauge",
        ("baseline",),
        "1 for what probes compare with: a second server (pair), what it said while it did"
        " not draft (capture), the same one with drafting switched off by request (switch), or"
        " one undrafted token at a time (single).",
        lambda s: (
            [((each.value,), float(s.last_probe.baseline is each)) for each in Baseline]
            if s.last_probe is not None
            else []
        ),
    ),
    Row(
        "mtpmon_capture_usable",
        "gauge",
        ("use",),
        "1 if the capture configured for this use (reference, baseline) fits the server as it"
        " runs now, 0 if it is refused; the log says why.",
        lambda s: [((use,), float(usable)) for use, usable in s.capture_usable.items()],
    ),
    Row(
        "mtpmon_reference_kld_nats",
        "gauge",
        ("stat",),
        "KL divergence of the server's undrafted token distributions from a captured"
        " reference's, after recent prompts and along the captured answers: a lower bound.",
        lambda s: (
            [
                sample
                for stat, read in _KLD_STATS.items()
                for sample in _known(read(s.probe_figures.reference_kld), stat)
            ]
            if s.probe_figures.reference_kld is not None
            else []
        ),
    ),
    Row(
        "mtpmon_reference_top1_match_ratio",
        "gauge",
        _ONLY,
        "Share of those positions at which the server finds the reference's token likeliest.",
        _value(lambda s: s.probe_figures.reference_top1),
    ),
    Row(
        "mtpmon_reference_coverage_ratio",
        "gauge",
        _ONLY,
        "The reference's probability mass on tokens that both lists hold, on average.",
        _value(lambda s: s.probe_figures.reference_coverage),
    ),
    Row(
        "mtpmon_top1_agreement_ratio",
        "gauge",
        _ONLY,
        "Share of comparable positions at which both arms find the same token likeliest.",
        _value(lambda s: s.probe_figures.top1_agreement),
    ),
)

# --- what it is worth ---


def _step_seconds(server: ServerSnapshot) -> Iterator[Sample]:
    costs = server.measured.costs
    if costs is None:
        return
    if costs.plain is not None:
        yield from _known(costs.plain.seconds.value, "0")
    for length in costs.lengths:
        seconds = length.relative.value * costs.step_seconds.value
        yield from _known(seconds, str(length.drafted))


def _cost(
    read: Callable[[StepCosts], Bounded | None],
) -> Callable[[ServerSnapshot], Bounded | None]:
    def found(server: ServerSnapshot) -> Bounded | None:
        return read(server.measured.costs) if server.measured.costs is not None else None

    return found


def _one(
    read: Callable[[ServerSnapshot], Bounded | None],
) -> Callable[[Callable[[Bounded | None], float | None]], Callable[..., Iterator[Sample]]]:
    """A bounded figure with no labels but ``server``."""
    return lambda part: lambda server: _known(part(read(server)))


def _paid(
    read: Callable[[Payoff], Bounded],
) -> Callable[[Callable[[Bounded | None], float | None]], Callable[..., Iterator[Sample]]]:
    """A bounded figure of live traffic, by window."""

    def rows(part: Callable[[Bounded | None], float | None]) -> Callable[..., Iterator[Sample]]:
        def samples(server: ServerSnapshot) -> Iterator[Sample]:
            for seconds, payoff in server.paying.windows.items():
                yield from _known(part(read(payoff)), format_duration(seconds))

        return samples

    return rows


def _task_paid(
    read: Callable[[Payoff], Bounded],
) -> Callable[[Callable[[Bounded | None], float | None]], Callable[..., Iterator[Sample]]]:
    """A bounded figure of probes, by task."""

    def rows(part: Callable[[Bounded | None], float | None]) -> Callable[..., Iterator[Sample]]:
        def samples(server: ServerSnapshot) -> Iterator[Sample]:
            for task, payoff in server.measured.tasks.items():
                yield from _known(part(read(payoff)), task)

        return samples

    return rows


def _verdict(server: ServerSnapshot) -> Iterator[Sample]:
    standing = server.paying.verdict
    if standing is not None:
        for verdict in Verdict:
            yield from _known(float(standing.verdict is verdict), verdict.value)


def _task_verdicts(server: ServerSnapshot) -> Iterator[Sample]:
    for task, standing in server.measured.task_verdicts.items():
        for verdict in Verdict:
            yield from _known(float(standing.verdict is verdict), task, verdict.value)


_THINKING = {True: "on", False: "off", None: "default"}


def _grades(server: ServerSnapshot) -> Iterator[Sample]:
    for (task, temperature, thinking), graded in server.grades.items():
        for grade in Grade:
            labels = task, f"{temperature:g}", _THINKING[thinking], grade.value
            yield from _known(float(graded.grade is grade), *labels)


def _advised(server: ServerSnapshot) -> float | None:
    advice = server.measured.advice
    if advice is None:
        return None
    return advice.advised if advice.advised is not None else advice.present


def _gain(server: ServerSnapshot) -> Bounded | None:
    advice, depth = server.measured.advice, _advised(server)
    if advice is None or depth is None:
        return None
    option = advice.option(int(depth))
    return option.gain_bounds if option is not None else None


WORTH: tuple[Row, ...] = (
    Row(
        "mtpmon_step_seconds",
        "gauge",
        ("draft_tokens",),
        "Typical cost of a decode step by draft length; 0 is a plain step.",
        _step_seconds,
    ),
    *_bounded_rows(
        "mtpmon_step_cost",
        "ratio",
        _ONLY,
        "Cost of a verification step over that of a plain decode step.",
        _one(_cost(lambda costs: costs.plain.ratio if costs.plain is not None else None)),
    ),
    *_bounded_rows(
        "mtpmon_modelled_speedup",
        "ratio",
        ("window",),
        "Speed-up of live traffic by the cost model: acceptance length over step cost.",
        _paid(lambda p: p.speedup),
    ),
    *_bounded_rows(
        "mtpmon_speedup_disagreement",
        "ratio",
        _ONLY,
        "Modelled over measured speed-up, pair by pair; 1 where the cost model holds.",
        _one(lambda s: s.measured.disagreement),
    ),
    *_bounded_rows(
        "mtpmon_breakeven_acceptance",
        "ratio",
        ("window",),
        "Acceptance at which drafting neither gains nor loses on live traffic; above 1 it"
        " cannot be reached.",
        _paid(lambda p: p.breakeven),
    ),
    *_bounded_rows(
        "mtpmon_acceptance_margin",
        "ratio",
        ("window",),
        "Acceptance of live traffic less its breakeven: above 0 drafting pays.",
        _paid(lambda p: p.margin),
    ),
    *_bounded_rows(
        "mtpmon_task_breakeven_acceptance",
        "ratio",
        ("task",),
        "Breakeven acceptance of probes of a task.",
        _task_paid(lambda p: p.breakeven),
    ),
    *_bounded_rows(
        "mtpmon_task_acceptance_margin",
        "ratio",
        ("task",),
        "Acceptance of probes of a task less its breakeven: above 0 drafting pays.",
        _task_paid(lambda p: p.margin),
    ),
    Row(
        "mtpmon_verdict",
        "gauge",
        ("verdict",),
        "1 for the answer to whether drafting pays on live traffic, 0 for the others.",
        _verdict,
    ),
    Row(
        "mtpmon_task_verdict",
        "gauge",
        ("task", "verdict"),
        "The same for what probes of a task say.",
        _task_verdicts,
    ),
    Row(
        "mtpmon_task_grade",
        "gauge",
        ("task", "temperature", "thinking", "grade"),
        "1 for the grade of drafting for this task and sampling, by measured speed-up.",
        _grades,
    ),
    Row(
        "mtpmon_best_draft_tokens",
        "gauge",
        _ONLY,
        "Draft length that is faster for certain than the present one, or the present one."
        " 0: turn drafting off.",
        _value(_advised),
    ),
    *_bounded_rows(
        "mtpmon_best_draft_gain",
        "ratio",
        _ONLY,
        "Gain in speed at that draft length: 0.07 is 7 % faster.",
        _one(_gain),
    ),
    Row(
        "mtpmon_design_effect_ratio",
        "gauge",
        _ONLY,
        "How much the likeness of one request's steps widens the bounds of live figures:"
        " variance of a mean over that of independent steps.",
        _value(lambda s: s.paying.design_effect),
    ),
)


# --- changes ------------------------------------------------------------------------------


def _shift_rows(figure: Figure, of: str) -> list[Row]:
    """Whether a change of a figure stands, and since when."""

    def standing(server: ServerSnapshot) -> Change | None:
        return server.shifts.standing.get(figure)

    def shift(server: ServerSnapshot) -> Iterator[Sample]:
        change = standing(server)
        if change is not None or figure in server.shifts.ready:
            for direction in DIRECTIONS:
                found = change is not None and change.direction is direction
                yield from _known(float(found), direction.value)

    def start(server: ServerSnapshot) -> Iterator[Sample]:
        change = standing(server)
        if change is not None:
            yield from _known(change.began_unix_seconds, change.direction.value)

    stem = f"mtpmon_{figure.value}_shift"
    return [
        Row(
            stem,
            "gauge",
            ("direction",),
            f"1 while a change of {of} stands, 0 if none was found. No sample until enough of"
            " the server's past is known.",
            shift,
        ),
        Row(
            f"{stem}_start_timestamp_seconds",
            "gauge",
            ("direction",),
            f"When the standing change of {of} began, estimated, in Unix seconds.",
            start,
        ),
    ]


_SHIFTS: tuple[Row, ...] = (
    *_shift_rows(Figure.ACCEPTANCE, "acceptance"),
    *_shift_rows(Figure.DECODE_SPEED, "the full verification steps a second that probes see"),
    *_shift_rows(Figure.KLD, "the KL divergence after speculation that probes see"),
    Row(
        "mtpmon_shifts_total",
        "counter",
        ("figure", "direction"),
        "Changes found, by figure and direction.",
        lambda s: [
            ((figure.value, direction.value), float(s.shifts.totals.get((figure, direction), 0)))
            for figure in Figure
            for direction in DIRECTIONS
        ],
    ),
)
METRICS: tuple[Row, ...] = (*_OBSERVED, *WORTH, *_SHIFTS)

# Metrics of mtpmon itself, which belong to no server: name -> (type, labels, help).
OWN_METRICS: Mapping[str, tuple[Kind, Labels, str]] = {
    "mtpmon_build_info": ("info", _ONLY, "Version of mtpmon and of Python."),
    "mtpmon_config_last_reload_successful": (
        "gauge",
        _ONLY,
        "1 if the configuration was read well the last time, 0 if the one before is in use.",
    ),
    "mtpmon_server_files_last_read_successful": (
        "gauge",
        _ONLY,
        "1 if the files of `server_files` could be used the last time, 0 if not; the log says why.",
    ),
    "mtpmon_history_usable": (
        "gauge",
        _ONLY,
        "1 if the history could be used the last time, 0 if not; the log says why.",
    ),
    "mtpmon_history_bytes": ("gauge", _ONLY, "Size of the history on disk."),
    "mtpmon_history_errors_total": (
        "counter",
        ("operation",),
        "Operations on the history that failed, and records that could not be read.",
    ),
    "mtpmon_history_dropped_records_total": (
        "counter",
        ("record",),
        "Records given up since too many waited to be written.",
    ),
}


class BoardCollector(Collector):
    """Renders a snapshot taken at the moment of the scrape.

    Args:
        snapshot: takes it.
    """

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Nothing: so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics that have samples."""
        snapshot = self._snapshot()
        for row in METRICS:
            family = _family(row, snapshot.servers)
            if family.samples:
                yield family
        own = InfoMetricFamily("mtpmon_build", OWN_METRICS["mtpmon_build_info"][2], labels=())
        own.add_metric((), {"version": __version__, "python": platform.python_version()})
        yield own
        name = "mtpmon_config_last_reload_successful"
        yield GaugeMetricFamily(
            name, OWN_METRICS[name][2], value=float(snapshot.config_reload_successful)
        )
        if snapshot.server_files_successful is not None:
            name = "mtpmon_server_files_last_read_successful"
            value = float(snapshot.server_files_successful)
            yield GaugeMetricFamily(name, OWN_METRICS[name][2], value=value)
        if snapshot.history is not None:
            yield from _history(snapshot.history)


def _history(history: HistoryFigures) -> Iterator[Metric]:
    """The metrics of a history that is configured."""
    name = "mtpmon_history_usable"
    yield GaugeMetricFamily(name, OWN_METRICS[name][2], value=float(history.usable))
    if history.size_bytes is not None:
        name = "mtpmon_history_bytes"
        yield GaugeMetricFamily(name, OWN_METRICS[name][2], value=float(history.size_bytes))
    counts = {
        "mtpmon_history_errors_total": {o.value: history.errors.get(o, 0) for o in Operation},
        "mtpmon_history_dropped_records_total": {
            kind.value: history.dropped.get(kind, 0) for kind in RecordKind
        },
    }
    for name, by_label in counts.items():
        _, labels, text = OWN_METRICS[name]
        family = CounterMetricFamily(name, text, labels=labels)
        for label, number in by_label.items():
            family.add_metric([label], number)
        yield family


def _family(row: Row, servers: Iterable[ServerSnapshot]) -> Metric:
    labels = ("server", *row.labels)
    match row.kind:
        case "info":
            info = InfoMetricFamily(row.name.removesuffix("_info"), row.help, labels=["server"])
            for server in servers:
                for values, _ in row.samples(server):
                    info.add_metric([server.name], dict(zip(row.labels, values, strict=True)))
            return info
        case "histogram":
            histogram = HistogramMetricFamily(row.name, row.help, labels=labels)
            for server in servers:
                *buckets, (_, total) = row.samples(server)
                histogram.add_metric(
                    [server.name], [(bound[0], count) for bound, count in buckets], total
                )
            return histogram
        case _:
            kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
            family = kind(row.name, row.help, labels=labels)
            for server in servers:
                for values, value in row.samples(server):
                    family.add_metric([server.name, *values], value)
            return family


def render_reference() -> str:
    """Write the table of ``docs/metrics.md``."""
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for row in METRICS:
        labels = ", ".join(f"`{label}`" for label in ("server", *row.labels))
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} |")
    for name, (kind, own_labels, text) in OWN_METRICS.items():
        shown = "".join(f" `{label}`" for label in own_labels)
        lines.append(f"| `{name}` | {kind} |{shown} | {text} |")
    return "\n".join(lines) + "\n"
