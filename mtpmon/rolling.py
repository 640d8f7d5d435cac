"""The last few hundred probes of a server, made into rolling figures."""

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from mtpmon.kld import KldSummary, summary
from mtpmon.model import Bounded, Completion, Divergence, ProbeOutcome, ProbeResult
from mtpmon.student import student_t_quantile
from mtpmon.suite import DEFAULT_VARIANT

FEWEST_PAIRS = 3  # below this a spread is not worth the name


class TaskFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What probes of one task measured. Tokens per second are decode steps', one stream."""

    probes: int
    last_unix_seconds: float
    acceptance: float | None
    acceptance_length: float | None
    tokens_per_second: float | None
    target_only_tokens_per_second: float | None
    speedup: Bounded | None


class ProbeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the probes in the window say together. ``None``: nothing to say it from.

    ``exact_sequences`` and ``token_match`` are ratios over compared sequences and their
    tokens, ``top1_agreement`` and ``coverage`` over comparable positions. ``regret`` (nats)
    and ``emitted_best`` (a ratio) are over the emitted tokens that the target was asked about.
    The ``reference`` figures are over all positions compared with a captured reference.
    """

    probes: int = 0
    tasks: dict[str, TaskFigures] = {}
    exact_sequences: float | None = None
    token_match: float | None = None
    kld: dict[str, KldSummary] = {}
    kld_coverage: float | None = None
    top1_agreement: float | None = None
    regret: KldSummary | None = None
    emitted_best: float | None = None
    divergence_margin_nats: float | None = None
    reference_kld: KldSummary | None = None
    reference_top1: float | None = None
    reference_coverage: float | None = None


def rolling(results: Sequence[ProbeResult], *, confidence: float) -> ProbeFigures:
    """Figures over ``results``; those that did not complete do not count.

    Figures by task are over probes in the default variant alone, so that they do not jump
    when others are configured: for those see `matrix`. What compares answers is over all
    greedy probes, however deep.
    """
    completed = [r for r in results if r.outcome is ProbeOutcome.COMPLETED]
    usual = [r for r in completed if r.variant == DEFAULT_VARIANT]
    compared = [r.comparison for r in completed if r.comparison is not None]
    tokens = sum(c.tokens for c in compared)
    klds = {
        "next_token": [r.next_token for r in completed if r.next_token is not None],
        "after_speculation": [d for r in completed for d in r.after_speculation],
        "teacher_forced": [d for r in completed for d in r.teacher_forced],
    }
    everything = [d for found in klds.values() for d in found]
    forced = [token for r in completed for token in r.forced]
    drifts = [drift for r in completed for drift in reference_divergences_of(r)]
    margins = [c.divergence_margin_nats for c in compared if c.divergence_margin_nats is not None]
    return ProbeFigures(
        probes=len(completed),
        tasks={
            task: task_figures([r for r in usual if r.task == task], confidence=confidence)
            for task in dict.fromkeys(r.task for r in usual)
        },
        exact_sequences=_mean(c.exact for c in compared),
        token_match=sum(c.matches for c in compared) / tokens if tokens else None,
        kld={at: summary([d.nats for d in found]) for at, found in klds.items() if found},
        kld_coverage=_mean(d.coverage for d in everything),
        top1_agreement=_mean(d.top1_agrees for d in everything),
        regret=summary([token.regret_nats for token in forced]) if forced else None,
        emitted_best=_mean(token.rank == 0 for token in forced),
        divergence_margin_nats=statistics.median(margins) if margins else None,
        reference_kld=summary([d.nats for d in drifts]) if drifts else None,
        reference_top1=_mean(d.top1_agrees for d in drifts),
        reference_coverage=_mean(d.coverage for d in drifts),
    )


def matrix(
    results: Sequence[ProbeResult], *, confidence: float
) -> dict[tuple[str, float, bool | None], TaskFigures]:
    """Where drafting pays: figures by task, temperature and thinking.

    Over completed probes with nothing before the prompt: depth changes what a step costs,
    and cells of mixed depth could not be compared. Cells without a probe are not there.
    """
    cells: dict[tuple[str, float, bool | None], list[ProbeResult]] = {}
    for result in results:
        way = result.variant
        if result.outcome is ProbeOutcome.COMPLETED and way.depth_tokens == 0:
            cells.setdefault((result.task, way.temperature, way.thinking), []).append(result)
    return {cell: task_figures(found, confidence=confidence) for cell, found in cells.items()}


def task_figures(results: Sequence[ProbeResult], *, confidence: float) -> TaskFigures:
    """Figures over completed probes of one kind."""
    ours = [r.speculating for r in results if r.speculating is not None]
    baselines = [r.target_only for r in results if r.target_only is not None]
    drafted = sum(c.timings.draft_tokens or 0 for c in ours)
    accepted = sum(c.timings.accepted_tokens or 0 for c in ours)
    # Acceptance length needs every step told apart; where hidden ones exist it is not known.
    steps = sum(1 for c in ours for step in c.stream.steps if step.drafted)
    resolved = all(not c.stream.unresolved_draft_tokens for c in ours)
    return TaskFigures(
        probes=len(results),
        last_unix_seconds=max((r.unix_seconds for r in results), default=0.0),
        acceptance=accepted / drafted if drafted else None,
        acceptance_length=1 + accepted / steps if steps and resolved else None,
        tokens_per_second=decode_rate(ours),
        target_only_tokens_per_second=decode_rate(baselines),
        speedup=paired_speedup(results, confidence=confidence),
    )


def paired_speedup(results: Sequence[ProbeResult], *, confidence: float) -> Bounded | None:
    """Decode speed of the speculating arm over the target-only one, pair by pair.

    The mean of log ratios with Student-t bounds: pairs share their prompt and moment, so
    what slows both cancels. Assumes pairs to be independent of each other. Answers less than
    half as long as the longest do not count: their first and last steps are not typical.
    """
    lengths = [r.speculating.timings.generated_tokens for r in results if r.speculating]
    enough = max(lengths, default=0) / 2
    ratios = []
    for result in results:
        if result.speculating is not None and result.target_only is not None:
            if result.speculating.timings.generated_tokens < enough:
                continue
            ours, theirs = decode_rate([result.speculating]), decode_rate([result.target_only])
            if ours and theirs:
                ratios.append(math.log(ours / theirs))
    if len(ratios) < FEWEST_PAIRS:
        return None
    mean = statistics.fmean(ratios)
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    half = student_t_quantile(0.5 + confidence / 2, len(ratios) - 1) * error
    return Bounded(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def decode_rate(completions: Sequence[Completion]) -> float | None:
    """Tokens per second of decode steps: a request's first token is the prompt's."""
    tokens = sum(c.timings.generated_tokens - 1 for c in completions)
    seconds = math.fsum(c.timings.generation_seconds for c in completions)
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def _mean(values: Iterable[float]) -> float | None:
    held = list(values)
    return statistics.fmean(held) if held else None


def divergences_of(result: ProbeResult) -> Iterable[Divergence]:
    """All distributions compared in one probe with the target's."""
    if result.next_token is not None:
        yield result.next_token
    yield from result.after_speculation
    yield from result.teacher_forced


def reference_divergences_of(result: ProbeResult) -> Iterable[Divergence]:
    """All distributions of one probe that were compared with a captured reference's."""
    if result.reference_next_token is not None:
        yield result.reference_next_token
    yield from result.reference_forced
