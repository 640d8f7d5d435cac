"""Two top-k lists of next-token probabilities → a proven lower bound of KL(P‖Q)."""

import math
import statistics
from collections.abc import Sequence

import msgspec

from mtpmon.model import Divergence, TopToken

# llama-server divides float32 exponentials by their float32 running sum. Over a vocabulary of
# 250 000 that sum misses up to 6e-4 (measured on simulated logits), and so does what a list
# leaves over, 1 - Σp: below this, leftovers are not told apart.
_ROUNDING = 1e-3
# More mass than this above 1 is not rounding: the list is no distribution.
_EXCESS = 1e-2


class KldSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a set of divergences looks like, in nats.

    ``standard_error_nats`` is the sample standard deviation over √n, ``None`` for a single
    value. It takes the positions as independent: neighbours in one text are not quite.
    """

    positions: int
    mean_nats: float
    standard_error_nats: float | None
    p50_nats: float
    p95_nats: float
    p99_nats: float
    max_nats: float

    @property
    def mean_bits(self) -> float:
        return self.mean_nats / math.log(2)


def divergence(p: Sequence[TopToken], q: Sequence[TopToken]) -> Divergence:
    """Bound KL(P‖Q) from below by what two top-k lists say.

    Merging outcomes never raises a KL divergence (data processing), so any partition of
    the vocabulary whose masses are known on both sides bounds it. Here each shared token
    is a cell of its own, and the others form two cells: B, the tokens only Q lists, and N,
    those Q does not list. Write a for P's mass on tokens only P lists, b for Q's on B, and
    u, v for what P and Q leave unlisted. Q's masses are then b on B and v on N. P's mass y
    on B is not listed, so 0 ≤ y ≤ u, and a + u - y is left for N. The sum of both cells is
    convex in y. Its minimum is where P's masses are in the ratio b : v, which is the same
    as one cell (a + u against b + v) for everything not shared; if that asks for y > u,
    which is a·b > u·v, the minimum is at y = u. No greater bound follows from the listed
    masses: some pair of distributions has both them and this divergence. Two disjoint lists
    of 0.9 each thus show 1.75 nats, where one lumped tail would show 0.

    A cell adds p·ln(p/q) - p + q. Over a whole partition that is KL, but every term is
    non-negative by itself and flat at p = q, so rounded masses cost the square of the
    rounding. What a list leaves over may really be larger by the rounding of float32: the
    least sum over that range is taken, so the bound stays one, and finite, where Q's list
    leaves nothing over and P's does.

    Entries of probability zero (-inf, or float32's lowest) count as not listed.

    Args:
        p: The reference's list, in any order, natural-log probabilities; it may hold the
            whole vocabulary.
        q: The candidate's list, likewise; it need not be as long.

    Returns:
        The bound in nats, P's mass on the shared tokens, their number, and whether the
        likeliest tokens agree. Tied tokens are all likeliest: one in common is enough.
        ``clamped`` says that rounding had made a leftover mass or the sum negative.

    Raises:
        ValueError: A list is no distribution: empty (not available is not "p = 1"), one
            token twice, a log-probability that is not a number, all zero, or a sum above 1.01.
    """
    masses_p, masses_q = _masses(p), _masses(q)
    shared = masses_p.keys() & masses_q.keys()
    coverage = math.fsum(masses_p[token] for token in shared)
    only_p = math.fsum(mass for token, mass in masses_p.items() if token not in shared)
    only_q = math.fsum(mass for token, mass in masses_q.items() if token not in shared)
    left_p = 1.0 - math.fsum(masses_p.values())
    left_q = 1.0 - math.fsum(masses_q.values())
    cells = [_cell(masses_p[token], masses_q[token]) for token in shared]
    cells.append(_unshared(only_p, max(left_p, 0.0), only_q, max(left_q, 0.0)))
    nats = math.fsum(cells)
    return Divergence(
        nats=max(nats, 0.0),
        coverage=min(coverage, 1.0),
        shared_tokens=len(shared),
        top1_agrees=not _likeliest(masses_p).isdisjoint(_likeliest(masses_q)),
        clamped=min(left_p, left_q, nats) < 0.0,
    )


def summary(values: Sequence[float]) -> KldSummary:
    """Summarize divergences.

    Args:
        values: Divergences in nats, in any order.

    Returns:
        Their summary. Quantiles interpolate linearly between order statistics, the lowest
        being the 0th and the highest the 100th percentile (Hyndman and Fan's type 7).

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("no divergences to summarize")
    ordered = sorted(values)
    return KldSummary(
        positions=len(ordered),
        mean_nats=statistics.fmean(ordered),
        standard_error_nats=(
            statistics.stdev(ordered) / math.sqrt(len(ordered)) if len(ordered) > 1 else None
        ),
        p50_nats=_quantile(ordered, 0.50),
        p95_nats=_quantile(ordered, 0.95),
        p99_nats=_quantile(ordered, 0.99),
        max_nats=ordered[-1],
    )


def _masses(top: Sequence[TopToken]) -> dict[int, float]:
    if not top:
        raise ValueError("an empty list is no distribution")
    if len({entry.id for entry in top}) != len(top):
        raise ValueError("a token is listed twice")
    if not all(entry.logprob < 1.0 for entry in top):
        raise ValueError("a log-probability is not a number or far above 0")
    masses = {entry.id: mass for entry in top if (mass := math.exp(entry.logprob)) > 0.0}
    total = math.fsum(masses.values())
    if not 0.0 < total <= 1.0 + _EXCESS:
        raise ValueError(f"the listed probabilities sum to {total:.6g}")
    return masses


def _unshared(only_p: float, left_p: float, only_q: float, left_q: float) -> float:
    """The least that the unshared tokens can add: a, u, b and v of the derivation."""
    on_b = _nearest(only_q, left_p)
    on_n = _nearest(only_p, left_q)
    if only_p * only_q > on_b * on_n:
        return _cell(on_b, only_q) + _cell(only_p, on_n)
    p, q = only_p + left_p, only_q + left_q
    return _cell(p, _nearest(p, q)) if p > q else _cell(_nearest(q, p), q)


def _nearest(wanted: float, leftover: float) -> float:
    """The value nearest to the one wanted that the leftover mass may really have."""
    return min(max(wanted, leftover), leftover + _ROUNDING)


def _cell(p: float, q: float) -> float:
    # A leftover of zero meets only another one: the smaller side has been raised.
    return p * (math.log(p) - math.log(q)) - p + q if p != q else 0.0


def _likeliest(masses: dict[int, float]) -> frozenset[int]:
    best = max(masses.values())
    return frozenset(token for token, mass in masses.items() if mass == best)


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = math.ceil(place)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
