"""Metrics of probes: how they end, how fast, what the two arms said, each as a row."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.utils import floatToGoString

from mtpmon.compare import DivergenceKind
from mtpmon.exportrow import UNLABELLED, Row, Sample, Samples, bounded_rows, known, unlabelled
from mtpmon.kld import KldSummary
from mtpmon.model import Baseline, ProbeOutcome
from mtpmon.rolling import TaskFigures
from mtpmon.snapshot import DIVERGENCE_BUCKETS, ServerSnapshot
from mtpmon.validate import Validator


def _by_task(read: Callable[[TaskFigures], float | None]) -> Samples:
    def samples(server: ServerSnapshot) -> Iterator[Sample]:
        for task, figures in server.probe_figures.tasks.items():
            yield from known(read(figures), task)

    return samples


def _arm_rates(server: ServerSnapshot) -> Iterator[Sample]:
    for task, figures in server.probe_figures.tasks.items():
        yield from known(figures.tokens_per_second, task, "speculating")
        yield from known(figures.target_only_tokens_per_second, task, "target_only")


_KLD_STATS: Mapping[str, Callable[[KldSummary], float | None]] = {
    "mean": lambda s: s.mean_nats,
    "standard_error": lambda s: s.standard_error_nats,
    "p50": lambda s: s.p50_nats,
    "p95": lambda s: s.p95_nats,
    "p99": lambda s: s.p99_nats,
    "max": lambda s: s.max_nats,
}


def _stats(found: KldSummary | None, *labels: str) -> Iterator[Sample]:
    if found is not None:
        for stat, read in _KLD_STATS.items():
            yield from known(read(found), stat, *labels)


def _kld(server: ServerSnapshot) -> Iterator[Sample]:
    for at, found in server.probe_figures.kld.items():
        yield from _stats(found, at)


def _kld_positions(server: ServerSnapshot) -> Iterator[Sample]:
    totals = server.probe_totals
    yield from known(totals.comparable, "comparable")
    yield from known(totals.missing, "missing")
    yield from known(totals.diverged, "diverged")


PROBES: tuple[Row, ...] = (
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
        UNLABELLED,
        "1 if the last probe that ran completed, 0 if not.",
        unlabelled(lambda s: None if s.probe_succeeded is None else float(s.probe_succeeded)),
    ),
    Row(
        "mtpmon_probe_duration_seconds",
        "gauge",
        UNLABELLED,
        "Duration of the last completed probe, both arms.",
        unlabelled(lambda s: s.last_probe.duration_seconds if s.last_probe is not None else None),
    ),
    Row(
        "mtpmon_probe_timeout_seconds",
        "gauge",
        UNLABELLED,
        "Longest a probe may take.",
        unlabelled(lambda s: s.probe_timeout_seconds if s.probed else None),
    ),
    Row(
        "mtpmon_probe_last_success_timestamp_seconds",
        "gauge",
        UNLABELLED,
        "When the last completed probe began, in Unix time.",
        unlabelled(lambda s: s.last_success_unix_seconds),
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
    *bounded_rows(
        "mtpmon_speedup",
        "ratio",
        ("task",),
        "Decode speed of the speculating arm over the target-only one, paired by probe.",
        lambda part: _by_task(lambda f: part(f.speedup)),
    ),
    Row(
        "mtpmon_exact_sequence_ratio",
        "gauge",
        UNLABELLED,
        "Share of recent probes whose two arms said the same to the last token.",
        unlabelled(lambda s: s.probe_figures.exact_sequences),
    ),
    Row(
        "mtpmon_token_match_ratio",
        "gauge",
        UNLABELLED,
        "Share of tokens of recent probes at which both arms agree, position by position.",
        unlabelled(lambda s: s.probe_figures.token_match),
    ),
    Row(
        "mtpmon_first_divergence_position",
        "histogram",
        UNLABELLED,
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
        UNLABELLED,
        "Median gap between the target's two best tokens where recent probes first differed:"
        " near 0 is a rounding tie.",
        unlabelled(lambda s: s.probe_figures.divergence_margin_nats),
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
        UNLABELLED,
        "Divergences in which rounding had made a mass or the sum negative.",
        unlabelled(lambda s: s.probe_totals.clamped),
    ),
    Row(
        "mtpmon_kld_coverage_ratio",
        "gauge",
        UNLABELLED,
        "Probability mass that the shared top-k lists cover, on average.",
        unlabelled(lambda s: s.probe_figures.kld_coverage),
    ),
    Row(
        "mtpmon_regret_nats",
        "gauge",
        ("stat",),
        "How much likelier the target finds its best token than the one emitted, over tokens"
        " of recent speculative answers; 0 for greedy decoding without fault.",
        lambda s: _stats(s.probe_figures.regret),
    ),
    Row(
        "mtpmon_emitted_best_ratio",
        "gauge",
        UNLABELLED,
        "Share of the tokens of recent speculative answers that are the target's best.",
        unlabelled(lambda s: s.probe_figures.emitted_best),
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
        lambda s: _stats(s.probe_figures.reference_kld),
    ),
    Row(
        "mtpmon_reference_top1_match_ratio",
        "gauge",
        UNLABELLED,
        "Share of those positions at which the server finds the reference's token likeliest.",
        unlabelled(lambda s: s.probe_figures.reference_top1),
    ),
    Row(
        "mtpmon_reference_coverage_ratio",
        "gauge",
        UNLABELLED,
        "The reference's probability mass on tokens that both lists hold, on average.",
        unlabelled(lambda s: s.probe_figures.reference_coverage),
    ),
    Row(
        "mtpmon_top1_agreement_ratio",
        "gauge",
        UNLABELLED,
        "Share of comparable positions at which both arms find the same token likeliest.",
        unlabelled(lambda s: s.probe_figures.top1_agreement),
    ),
)
