"""How far values scatter: means that outliers do not move, and steps that resemble each other."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from mtpmon.student import student_t_quantile

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Counts = Sequence[Sequence[float]]
"""One histogram per request (or batch): entry k is how many steps kept k tokens."""

CUT_SHARE = 6  # one value in so many is cut from each end
PRIOR_REQUESTS = 10.0  # what a prior weighs, in requests


class Location(msgspec.Struct, frozen=True):
    """A mean, its standard error, and the degrees of freedom of that."""

    value: float
    error: float
    degrees: int

    def half_width(self, confidence: float) -> float:
        """How far Student-t bounds lie from the mean on either side."""
        return t_quantile(confidence, self.degrees) * self.error


@cache
def t_quantile(confidence: float, degrees: int) -> float:
    """Two-sided Student quantile."""
    return student_t_quantile(0.5 + confidence / 2, degrees)


@cache
def normal_quantile(confidence: float) -> float:
    """Two-sided normal quantile."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def robust_mean(values: Sequence[float] | Array) -> Location:
    """The mean without a sixth of the values at each end, and its error after Tukey-McLaughlin.

    The error comes from the values with those ends pulled in to the nearest one left, so what
    is cut still counts as scatter. Fewer than six values are all kept: a wild one among
    them shows in the error.

    Raises:
        ValueError: fewer than two values.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    if n < 2:
        raise ValueError("a spread needs two values")
    cut = n // CUT_SHARE
    core = ordered[cut : n - cut]
    pulled_in = np.clip(ordered, core[0], core[-1])
    squares = float(np.sum((pulled_in - pulled_in.mean()) ** 2))
    left = n - 2 * cut
    return Location(float(core.mean()), math.sqrt(squares / (left * (left - 1))), left - 1)


def group_medians(values: Array, groups: Indices, count: int) -> Array:
    """The median of each of ``count`` groups; NaN for one without values."""
    order = np.lexsort((values, groups))
    ordered = values[order]
    edges = np.searchsorted(groups[order], np.arange(count + 1))
    sizes = np.diff(edges)
    found = np.full(count, np.nan)
    some = sizes > 0
    starts, sizes = edges[:-1][some], sizes[some]
    found[some] = (ordered[starts + (sizes - 1) // 2] + ordered[starts + sizes // 2]) / 2
    return found


def kept_correlation(counts: Counts) -> float:
    """How alike the kept lengths of one request are: the intraclass correlation, 0 to 1.

    From a one-way analysis of variance with requests of unequal size. It does not depend
    on the length of requests, so it carries over to traffic whose requests are longer:
    ``1 + (steps - 1) · correlation`` is the design effect of requests of so many steps, if
    likeness does not fade along a request, and an upper bound of it if it does.

    0 where nothing can be said: fewer than two requests, or no more steps than requests.
    """
    table = _table(counts)
    sizes = table.sum(axis=1)
    table, sizes = table[sizes > 0], sizes[sizes > 0]
    requests, steps = len(sizes), float(sizes.sum())
    if requests < 2 or steps <= requests:
        return 0.0
    lengths = np.arange(table.shape[1])
    means = table @ lengths / sizes
    mean = float(means @ sizes) / steps
    between = float(sizes @ (means - mean) ** 2) / (requests - 1)
    within = float((table * (lengths[None, :] - means[:, None]) ** 2).sum()) / (steps - requests)
    size = (steps - float(sizes @ sizes) / steps) / (requests - 1)
    total = between + (size - 1) * within
    return max((between - within) / total, 0.0) if total > 0 else 0.0


def expected_design_effect(correlation: float, steps_per_request: float) -> float:
    """The design effect of requests of so many steps.

    Exact if likeness does not fade along a request, an upper bound if it does. Of requests
    of unequal length the long ones weigh more: the mean to give is Σ steps² / Σ steps.
    """
    return 1.0 + max(steps_per_request - 1.0, 0.0) * correlation


def design_effect(counts: Counts, *, prior: float = 1.0) -> float:
    """Variance of the mean kept length over that of independent steps, at least 1.

    The squared deviations of requests (or of batches of whole requests, such as what a
    server counted between two looks) over what independent steps would give. Few requests
    say little, so the result is pulled towards ``prior``, which weighs as much as
    ten requests.
    """
    table = _table(counts)
    sizes = table.sum(axis=1)
    table = table[sizes > 0]
    requests, steps = len(table), float(sizes.sum())
    lengths = np.arange(table.shape[1], dtype=np.float64)
    mean = float(table.sum(axis=0) @ lengths) / steps if steps else 0.0
    independent = float(table.sum(axis=0) @ (lengths - mean) ** 2)
    if requests < 2 or independent <= 0:
        return max(prior, 1.0)
    between = float(np.sum((table @ (lengths - mean)) ** 2)) * requests / (requests - 1)
    seen = between / independent
    return max((requests * seen + PRIOR_REQUESTS * prior) / (requests + PRIOR_REQUESTS), 1.0)


def clustered_error(counts: Counts, influence: Sequence[float] | Array) -> Location:
    """The error of a mean over steps whose requests are known.

    Nothing is assumed about how alike the steps of a request are; requests are taken to be
    independent.

    Args:
        counts: a histogram for each request, at least two of them with steps.
        influence: for each kept length, what a step that kept it adds to the mean; longer
            ones add as much as the last.

    Raises:
        ValueError: fewer than two requests have steps.
    """
    table = _table(counts, len(influence))
    sizes = table.sum(axis=1)
    table = table[sizes > 0]
    requests, steps = len(table), float(sizes.sum())
    if requests < 2:
        raise ValueError("a spread needs two requests")
    values = np.pad(np.asarray(influence), (0, table.shape[1] - len(influence)), mode="edge")
    mean = float(table.sum(axis=0) @ values) / steps
    squares = float(np.sum((table @ (values - mean)) ** 2))
    return Location(mean, math.sqrt(squares * requests / (requests - 1)) / steps, requests - 1)


def _table(counts: Counts, least_width: int = 1) -> Array:
    """Histograms, padded to one length."""
    table = np.zeros((len(counts), max([least_width, *map(len, counts)])))
    for row, each in zip(table, counts, strict=True):
        row[: len(each)] = each
    return table
