"""Means that outliers do not move, and steps that resemble each other."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.spread import (
    clustered_error,
    design_effect,
    expected_design_effect,
    group_medians,
    kept_correlation,
    normal_quantile,
    robust_mean,
    t_quantile,
)

finite = st.floats(-1e6, 1e6)


def test_a_few_values_are_all_used() -> None:
    """Up to five: the ordinary mean, its error, and one degree of freedom less than values."""
    found = robust_mean([1.0, 2.0, 4.0, 8.0, 9.0])
    assert found.value == 4.8
    assert found.error == pytest.approx(statistics.stdev([1, 2, 4, 8, 9]) / math.sqrt(5))
    assert found.degrees == 4


def test_a_sixth_is_cut_from_each_end() -> None:
    """Twelve values: two from each, and the error of those left pulled in, by hand."""
    values = [-90.0, -80.0, 1, 2, 3, 4, 5, 6, 7, 8, 500, 600]
    found = robust_mean(values)
    pulled_in = [1.0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8]
    squares = sum((x - statistics.fmean(pulled_in)) ** 2 for x in pulled_in)
    assert found.value == 4.5
    assert found.error == pytest.approx(math.sqrt(squares / (8 * 7)))
    assert found.degrees == 7


@given(st.lists(finite, min_size=6, max_size=40), st.floats(1e7, 1e12))
def test_one_wild_value_moves_the_mean_no_further_than_a_high_one(
    values: list[float], wild: float
) -> None:
    """Of six or more, however wild it is."""
    high = max(values) + 1
    assert robust_mean([*values, wild]).value == robust_mean([*values, high]).value


@given(st.lists(finite, min_size=2, max_size=40), st.floats(-100, 100))
def test_a_robust_mean_moves_with_its_values(values: list[float], by: float) -> None:
    """Shift all, and the mean shifts; its error does not change."""
    before, after = robust_mean(values), robust_mean([v + by for v in values])
    assert after.value == pytest.approx(before.value + by, abs=1e-3)
    assert after.error == pytest.approx(before.error, rel=1e-6, abs=1e-3)


def test_a_single_value_has_no_spread() -> None:
    """There would be no error to give."""
    with pytest.raises(ValueError, match="two values"):
        robust_mean([1.0])


def test_bounds_of_a_robust_mean_hold_95_per_cent_of_the_time() -> None:
    """Normal values, five to thirty of them."""
    rng = np.random.default_rng(1)
    for size in (5, 8, 30):
        found = [robust_mean(row) for row in rng.standard_normal((2000, size))]
        held = statistics.fmean(abs(f.value) <= f.half_width(0.95) for f in found)
        assert 0.93 <= held <= 0.97, size


def test_quantiles_are_two_sided() -> None:
    """95 % of a normal variable within 1.96, and of t with 4 degrees within 2.776."""
    assert normal_quantile(0.95) == pytest.approx(1.959964)
    assert t_quantile(0.95, 4) == pytest.approx(2.776445)


@given(
    st.lists(st.tuples(st.integers(0, 5), finite), max_size=60),
)
def test_group_medians_are_medians(pairs: list[tuple[int, float]]) -> None:
    """Of each group, and NaN of an empty one."""
    groups = np.array([g for g, _ in pairs], dtype=np.intp)
    found = group_medians(np.array([v for _, v in pairs]), groups, 6)
    for group in range(6):
        values = [v for g, v in pairs if g == group]
        if values:
            assert found[group] == pytest.approx(statistics.median(values))
        else:
            assert math.isnan(found[group])


# --- likeness within requests ---


def kept(rng: np.random.Generator, requests: int, steps: int, spread: float) -> list[list[int]]:
    """Requests of steps that keep 0 or 1 token, with a chance that differs by request."""
    chances = np.clip(0.5 + spread * rng.standard_normal(requests), 0, 1)
    ones = rng.binomial(steps, chances)
    return [[steps - int(n), int(n)] for n in ones]


def test_correlation_is_the_share_of_variance_between_requests() -> None:
    """Chances with standard deviation 0.15 about one half: 0.0225 of 0.25."""
    rng = np.random.default_rng(2)
    found = kept_correlation(kept(rng, 4000, 20, 0.15))
    assert found == pytest.approx(0.09, abs=0.01)


def test_correlation_does_not_depend_on_the_length_of_requests() -> None:
    """Which is what lets it be measured on short probes."""
    rng = np.random.default_rng(3)
    short, long = (kept_correlation(kept(rng, 4000, n, 0.15)) for n in (10, 80))
    assert short == pytest.approx(long, abs=0.015)


def test_independent_steps_have_no_correlation_and_no_design_effect() -> None:
    """A thousand requests of 50 steps."""
    counts = kept(np.random.default_rng(4), 1000, 50, 0.0)
    assert kept_correlation(counts) < 0.01
    assert design_effect(counts) == pytest.approx(1, abs=0.15)


def test_requests_that_are_all_alike_inside_have_correlation_1() -> None:
    """And a design effect of their length, but for the sample's own mean."""
    counts = [[10, 0], [0, 10]] * 500
    assert kept_correlation(counts) == pytest.approx(1)
    assert design_effect(counts) == pytest.approx(10, rel=0.02)


@pytest.mark.parametrize(
    "counts",
    [[], [[5, 5]], [[1, 0], [0, 1]], [[0, 0], [3, 4]], [[4, 0], [4, 0]]],
    ids=["none", "one request", "a step each", "one of two is empty", "no variance"],
)
def test_too_little_shows_no_correlation(counts: list[list[int]]) -> None:
    """Nothing is claimed."""
    assert kept_correlation(counts) == 0


@pytest.mark.parametrize("counts", [[], [[5, 5]], [[0, 0], [3, 4]], [[4, 0], [4, 0]]])
def test_too_little_leaves_the_prior(counts: list[list[int]]) -> None:
    """A design effect known from elsewhere, or none."""
    assert design_effect(counts, prior=3.0) == 3.0
    assert design_effect(counts) == 1.0
    assert design_effect(counts, prior=0.2) == 1.0


def test_many_requests_outweigh_the_prior() -> None:
    """Ten weigh as much as it does."""
    counts = [[10, 0], [0, 10]]
    few, many = (design_effect(counts * n, prior=1.0) for n in (5, 500))
    assert few == pytest.approx((10 * 10 * 10 / 9 + 10) / 20)
    assert many == pytest.approx(10, rel=0.02)


def test_the_measured_design_effect_is_the_one_that_correlation_predicts() -> None:
    """Requests of unequal length, where the long ones weigh more."""
    rng = np.random.default_rng(5)
    lengths = (10, 40, 100)
    counts = [c for n in lengths for c in kept(rng, 3000, n, 0.15)]
    steps = sum(n * n for n in lengths) / sum(lengths)
    predicted = expected_design_effect(kept_correlation(counts), steps)
    assert predicted == pytest.approx(1 + (72.67 - 1) * 0.09, rel=0.1)
    assert design_effect(counts) == pytest.approx(predicted, rel=0.1)
    assert expected_design_effect(0.5, 0.0) == 1.0


def test_clustered_error_equals_the_formula() -> None:
    """Three requests by hand: residuals 4, 1 and -5 of 12 steps, mean 1/2."""
    counts = [[1, 9], [0, 2, 0], [0, 0], [6, 0]]
    found = clustered_error(counts, [0.0, 1.0])
    mean = 11 / 18
    residuals = [9 - 10 * mean, 2 - 2 * mean, 0 - 6 * mean]
    assert found.value == pytest.approx(mean)
    assert found.error == pytest.approx(math.sqrt(sum(r * r for r in residuals) * 3 / 2) / 18)
    assert found.degrees == 2


def test_clusters_of_one_step_are_independent_steps() -> None:
    """Then the error is that of a sample mean."""
    values = [0, 1, 1, 1, 0, 1]
    found = clustered_error([[1 - v, v] for v in values], [0.0, 1.0])
    assert found.error == pytest.approx(statistics.stdev(values) / math.sqrt(6))


def test_kept_lengths_without_an_influence_of_their_own_have_the_last_one() -> None:
    """And influences of lengths that nothing kept do not matter."""
    counts = [[1, 2, 3], [2, 1, 1]]
    assert clustered_error(counts, [0.0, 1.0]) == clustered_error(counts, [0.0, 1.0, 1.0, 7.0])


def test_one_request_shows_no_spread_between_requests() -> None:
    """An empty second one does not count."""
    with pytest.raises(ValueError, match="two requests"):
        clustered_error([[3, 4], [0, 0]], [0.0, 1.0])


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), max_size=20))
def test_whatever_was_kept_likeness_is_possible(counts: list[list[int]]) -> None:
    """A correlation in 0 to 1 and a finite design effect of at least 1."""
    assert 0 <= kept_correlation(counts) <= 1 + 1e-9
    assert 1 <= design_effect(counts) < math.inf
