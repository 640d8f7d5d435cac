"""The detector of changes in kept draft tokens: one more batch."""

import msgspec
import numpy as np

from mtpmon.shift.batch import Batch
from mtpmon.shift.evidence import SIGNS, Array, Truth, collected, highest
from mtpmon.shift.learned import LEVELS, Counts, Learned, chosen, faded, summed
from mtpmon.shift.levels import CELL_TRIALS, level_range
from mtpmon.shift.settings import LONGEST_PAUSE_SECONDS, RATE_MEMORY_SECONDS, Settings
from mtpmon.shift.yardstick import Yardstick, yardstick

RANGE_EVERY = 20  # batches after which the range is computed anew
FEWEST_BEYOND = 5  # batches that it takes to be out of the range
RUN = 32  # batches in a row whose sum shows whether they have something in common
KNOWN_STEPS = 100.0  # a reference of fewer steps says nothing about how requests scatter
MOST_EVIDENCE = 10.0  # of one batch, when its likelihood ratio is averaged


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A detector after one more batch.

    ``scores``: the batch's evidence. ``excess``: all evidence, above its threshold. ``hot``:
    some is above half of it, so that the reference must not learn what may be a change.
    ``weight``: what a step of a usual batch counts for, since steps of one request are alike.
    """

    detector: Counts
    scores: Array
    excess: Array
    hot: Truth
    weight: Array

    @property
    def crossed(self) -> tuple[int, int, int] | None:
        """Of one server: where evidence against the reference is above its threshold."""
        return highest(self.excess[:1])


def counted(
    detector: Counts,
    trials: Array,
    kept: Array,
    settings: Settings,
    *,
    batch: Batch,
    stratum: int,
) -> Step:
    """Add a batch to a detector.

    Args:
        detector: of all servers.
        trials: [..., positions], by server, as are ``kept``; positions left out: not drafted.
        kept: of these.
        settings: how to detect.
        batch: times and errors, common to all servers.
        stratum: its place in ``detector.strata``.
    """
    began, ended = batch.began_unix_seconds, batch.ended_unix_seconds
    measure = yardstick(detector, stratum, settings)
    if detector.ranged and detector.batches % RANGE_EVERY == 0:
        edges, explained = level_range(detector, measure)
        detector = msgspec.structs.replace(
            detector,
            edges=edges,
            unexplained=np.stack([np.ones_like(explained), 1 - explained], axis=-1),
        )
        measure = yardstick(detector, stratum, settings)
    width, missing = trials.shape[-1], measure.seen.shape[-1] - trials.shape[-1]
    if missing:
        room = [(0, 0)] * (trials.ndim - 1) + [(0, missing)]
        trials, kept = np.pad(trials, room), np.pad(kept, room)
    trials, kept = trials / batch.spread, kept / batch.spread
    tried, got = np.where(measure.seen, trials, 0.0), np.where(measure.seen, kept, 0.0)
    information = np.sum(tried * measure.chances * (1 - measure.chances), axis=-1)
    information = np.maximum(information, 0.0)[..., None]
    weight = measure.caution[..., None] / (1 + measure.unexplained * information)
    parts = (
        measure.gain[..., None] * got[..., None, None, None, :]
        - measure.cost * tried[..., None, None, None, :]
    ) * weight[..., None, None, None]
    margin = (
        batch.trials_error * np.abs(measure.cost[..., 0]) + batch.kept_error * np.abs(measure.gain)
    ) / batch.spread
    thresholds = measure.thresholds + margin
    lasting = batch.lasting_error / batch.spread * np.abs(measure.gain)  # at least as much as cost
    scores = np.sum(parts, axis=-1) - lasting * weight[..., None, None]
    # What rounding adds to one batch and takes from the next must not look like scatter.
    ratios = np.sum(parts[..., measure.exact], axis=-1) if batch.trials_error else scores
    ratios = ratios - margin if measure.exact.start == 0 else ratios
    most = np.where(measure.ends, thresholds / FEWEST_BEYOND, np.inf)
    scores, ratios = np.minimum(scores, most), np.minimum(ratios, most)
    ratios = np.exp(np.minimum(np.where(measure.active, ratios, 0.0), MOST_EVIDENCE))
    scores = np.where(measure.active, scores - measure.surplus, 0.0)
    steps = trials[..., 0] if batch.by_position else np.full_like(trials[..., 0], batch.steps)
    evidence = collected(
        detector.bank,
        scores,
        began=began,
        amount=steps,
        seen=np.sum(got, axis=-1) * batch.spread,
        expected=trials[..., 0] * np.sum(measure.reached[..., :width], axis=-1) * batch.spread,
    )
    small = SIGNS * (evidence.seen - evidence.expected) < settings.least_change * evidence.expected
    dropped = (evidence.score >= thresholds) & small
    score = np.where(dropped, 0.0, np.minimum(evidence.score, 2 * thresholds))
    evidence = msgspec.structs.replace(evidence, score=score)
    excess = np.where(measure.active, evidence.score - thresholds, -np.inf)

    last = detector.last_unix_seconds if detector.last_unix_seconds is not None else began
    passed = max(ended - last, 0.0)
    news, rest = _news(detector, measure, trials, kept, ratios, stratum=stratum, batch=batch)
    hot = np.any(evidence.score > measure.thresholds / 2, axis=(-3, -2, -1))
    waits = hot | detector.replanned
    idle = min(passed, settings.memory_seconds / 24)
    aged = faded(
        detector.settled,
        0.5 ** (idle / settings.memory_seconds),
        0.5 ** (idle / settings.range_seconds),
    )
    pending = summed(detector.pending, news)
    pause = min(max(began - last, 0.0), LONGEST_PAUSE_SECONDS)
    took = pause + max(ended - began, 0.0)
    rate_fade = 0.5 ** (took / RATE_MEMORY_SECONDS)
    return Step(
        detector=msgspec.structs.replace(
            detector,
            settled=chosen(waits, detector.settled, summed(aged, pending)),
            pending=chosen(waits, pending, faded(pending, 0.0, 0.0)),
            **rest,
            batches=detector.batches + 1,
            bank=evidence,
            rate_steps=detector.rate_steps * rate_fade + np.maximum(steps, 0.0),
            rate_seconds=detector.rate_seconds * rate_fade + took,
            last_unix_seconds=ended,
            ready=np.any(measure.active, axis=(-3, -2, -1)),
        ),
        scores=scores,
        excess=excess,
        hot=np.asarray(hot),
        weight=measure.weight,
    )


def _news(
    detector: Counts,
    measure: Yardstick,
    trials: Array,
    kept: Array,
    ratios: Array,
    *,
    stratum: int,
    batch: Batch,
) -> tuple[Learned, dict[str, Array]]:
    """What there is to learn from a batch, and what is not long enough yet to learn from.

    Level from all positions; scatter and range from those after the first, where there are
    any: their counts are exact however large they are.
    """
    exact = measure.exact
    known = measure.known_steps >= KNOWN_STEPS
    tried = np.where(measure.seen, trials, 0.0)[..., exact]
    got = np.where(measure.seen, kept, 0.0)[..., exact]
    chances = measure.chances[..., exact]
    here = np.maximum(np.sum(tried * chances * (1 - chances), axis=-1), 0.0) * known
    residual = np.sum(got - tried * chances, axis=-1)
    rounding = 0.0
    if exact.start == 0:  # uniform errors of two readings, or four
        rounding = (batch.trials_error**2 + batch.kept_error**2) / (6 * batch.spread**2)
    own_error = 1 + here / np.maximum(measure.known_information, 1e-9)
    row = np.zeros_like(detector.settled.trials)
    row_kept = row.copy()
    row[..., stratum, :], row_kept[..., stratum, :] = trials, kept
    cell_trials = detector.cell_trials + np.sum(trials[..., exact], axis=-1)
    cell_kept = detector.cell_kept + np.sum(kept[..., exact], axis=-1)
    full = cell_trials >= max(CELL_TRIALS, 40 * (batch.trials_error if exact.start == 0 else 0.0))
    share = cell_kept / np.where(full, cell_trials, 1.0)
    place = np.clip(np.floor(share * LEVELS), 0, LEVELS - 1)
    entry = full[..., None] & (np.arange(LEVELS) == place[..., None])
    square = np.where(known, (residual**2 - rounding) / own_error, 0.0)
    run_sum = detector.run_sum + np.where(known, residual / np.sqrt(own_error), 0.0)
    run_part = detector.run_part + square
    ends = float((detector.batches + 1) % RUN == 0)
    return (
        Learned(
            trials=row,
            kept=row_kept,
            squares=square,
            information=here,
            information_squares=here**2,
            levels=entry.astype(np.float64),
            ratios=ratios,
            ratio_squares=ratios**2,
            batches=np.ones_like(here),
            runs=np.full_like(here, ends),
            run_squares=ends * run_sum**2,
            run_parts=ends * run_part,
        ),
        {
            "cell_trials": np.where(full, 0.0, cell_trials),
            "cell_kept": np.where(full, 0.0, cell_kept),
            "run_sum": (1 - ends) * run_sum,
            "run_part": (1 - ends) * run_part,
        },
    )
