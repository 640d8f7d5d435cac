"""What the detector of acceptance has learned of a server, and how it takes over a new level."""

import msgspec
import numpy as np

from mtpmon.shift.evidence import Array, Bank, Truth, bank, emptied

TILTS: Array = np.asarray(0.2 * 1.5 ** np.arange(8), dtype=np.float64)
"""Sizes of change looked for: how much the log-odds of keeping a draft token move."""
LEVELS = 64  # bins of the share of draft tokens kept, 0…1


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over batches. Older ones weigh less.

    ``trials``, ``kept``: [..., strata, positions], the level. ``squares``, ``information``,
    ``information_squares``: of each batch's residual r = Σ (kept - expected) and its variance
    v if draft tokens were independent: Σ r², Σ v, Σ v². ``levels``: a histogram of the share
    kept in short stretches. ``ratios``, ``ratio_squares``: [..., references, directions,
    sizes], of the likelihood ratios of ``batches`` batches. ``runs``: of `RUN` batches in a
    row; ``run_squares``: Σ (Σ r)² of these, ``run_parts``: Σ Σ r².
    """

    trials: Array
    kept: Array
    squares: Array
    information: Array
    information_squares: Array
    levels: Array
    ratios: Array
    ratio_squares: Array
    batches: Array
    runs: Array
    run_squares: Array
    run_parts: Array


def faded(learned: Learned, level: float, scatter: float) -> Learned:
    faded = {name: getattr(learned, name) * scatter for name in Learned.__struct_fields__}
    return Learned(**faded | {"trials": learned.trials * level, "kept": learned.kept * level})


def summed(a: Learned, b: Learned) -> Learned:
    return Learned(
        **{name: getattr(a, name) + getattr(b, name) for name in Learned.__struct_fields__}
    )


def chosen(mask: Truth, a: Learned, b: Learned) -> Learned:
    """``a`` where the mask is true, else ``b``."""

    def either(x: Array, y: Array) -> Array:
        return np.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, y)

    return Learned(
        **{name: either(getattr(a, name), getattr(b, name)) for name in Learned.__struct_fields__}
    )


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """A detector of changes in kept draft tokens.

    ``settled`` is the reference. ``pending`` may belong to a change: it joins ``settled`` when
    the evidence is gone, or replaces its level when the change has become the new normal.
    ``ranged``: tasks are not known, so a range of levels is normal; ``edges``: its ends, as
    tilts. ``ready``: the last batch could have shown a change. ``replanned``: a planned change
    is being taken in.
    """

    ranged: bool
    strata: tuple[str, ...]
    by_position: bool
    settled: Learned
    pending: Learned
    cell_trials: Array
    cell_kept: Array
    run_sum: Array
    run_part: Array
    edges: Array
    unexplained: Array
    bank: Bank
    rate_steps: Array
    rate_seconds: Array
    ready: Truth
    batches: int = 0
    last_unix_seconds: float | None = None
    replanned: bool = False


def counts(*shape: int, ranged: bool, positions: int = 1, strata: tuple[str, ...] = ()) -> Counts:
    """A detector that knows nothing yet; ``shape``: of the leading dimensions."""
    zero = np.zeros(shape)
    sizes = (*shape, 2 if ranged else 1, 2, len(TILTS))
    level = np.zeros((*shape, len(strata), positions))
    nothing = Learned(
        trials=level,
        kept=level,
        squares=zero,
        information=zero,
        information_squares=zero,
        levels=np.zeros((*shape, LEVELS)),
        ratios=np.zeros(sizes),
        ratio_squares=np.zeros(sizes),
        batches=zero,
        runs=zero,
        run_squares=zero,
        run_parts=zero,
    )
    return Counts(
        ranged=ranged,
        strata=strata,
        by_position=True,
        settled=nothing,
        pending=nothing,
        cell_trials=zero,
        cell_kept=zero,
        run_sum=zero,
        run_part=zero,
        edges=np.zeros((*shape, 2)),
        unexplained=np.ones((*shape, sizes[-3])),
        bank=bank(*sizes),
        rate_steps=zero,
        rate_seconds=zero,
        ready=np.zeros(shape, dtype=np.bool_),
    )


def grown(detector: Counts, strata: int, positions: int) -> Counts:
    """Room for more strata and positions."""
    if not strata and not positions:
        return detector
    room = [(0, strata), (0, positions)]

    def more(learned: Learned) -> Learned:
        return msgspec.structs.replace(
            learned, trials=np.pad(learned.trials, room), kept=np.pad(learned.kept, room)
        )

    return msgspec.structs.replace(
        detector, settled=more(detector.settled), pending=more(detector.pending)
    )


def replanning(detector: Counts) -> Counts:
    nothing = faded(detector.pending, 0.0, 0.0)
    return msgspec.structs.replace(
        detector, pending=nothing, bank=emptied(detector.bank), replanned=True
    )


def rebased(detector: Counts) -> Counts:
    """What was pending is the level from now on; how requests scatter stays known."""
    settled, pending = detector.settled, detector.pending
    return msgspec.structs.replace(
        detector,
        settled=msgspec.structs.replace(
            settled,
            trials=pending.trials,
            kept=pending.kept,
            levels=settled.levels + pending.levels,
        ),
        pending=faded(pending, 0.0, 0.0),
        bank=emptied(detector.bank),
        batches=0,
        run_sum=np.zeros_like(detector.run_sum),
        run_part=np.zeros_like(detector.run_part),
        replanned=False,
    )


def resumed(old: Counts, latest: Counts) -> Counts:
    """The old reference holds again; what was pending belonged to something else."""
    return msgspec.structs.replace(
        old,
        pending=faded(old.pending, 0.0, 0.0),
        bank=emptied(old.bank),
        rate_steps=latest.rate_steps,
        rate_seconds=latest.rate_seconds,
        last_unix_seconds=latest.last_unix_seconds,
    )
