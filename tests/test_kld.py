"""The bound on KL(P‖Q) against exact divergences over whole vocabularies."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.kld import divergence, summary
from mtpmon.model import TopToken

Distribution = list[float]
ROUNDING = 1e-3
"""How far a leftover mass may be off: what the module allows for."""


@st.composite
def distributions(draw: st.DrawFn, *, count: int, most: float = 12.0) -> list[Distribution]:
    """Draw so many distributions over one small vocabulary, flat or peaked."""
    size = draw(st.integers(2, 12))
    logits = st.lists(st.floats(-most, most), min_size=size, max_size=size)
    return [normalized([math.exp(x) for x in draw(logits)]) for _ in range(count)]


def normalized(weights: Distribution) -> Distribution:
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def top(masses: Distribution, k: int) -> list[TopToken]:
    likeliest = sorted(range(len(masses)), key=lambda token: -masses[token])
    return [TopToken(token, math.log(masses[token])) for token in likeliest[:k]]


def listed(**masses: float) -> list[TopToken]:
    """``listed(t7=0.5)``: token 7 with probability one half."""
    return [TopToken(int(name[1:]), math.log(mass)) for name, mass in masses.items()]


def exact(p: Distribution, q: Distribution) -> float:
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@given(distributions(count=2), st.integers(1, 12), st.integers(1, 12))
def test_the_bound_is_never_above_the_exact_divergence(
    pair: list[Distribution], k_p: int, k_q: int
) -> None:
    """Whatever is cut off from either list, the bound holds."""
    p, q = pair
    bound = divergence(top(p, k_p), top(q, k_q)).nats
    assert 0.0 <= bound <= exact(p, q) + 1e-12


@given(distributions(count=2), st.integers(1, 12), st.integers(1, 12), st.randoms())
def test_the_bound_holds_for_lists_that_are_not_the_likeliest_tokens(
    pair: list[Distribution], k_p: int, k_q: int, rng: random.Random
) -> None:
    """No step of the derivation needs the lists to hold the likeliest tokens."""
    p, q = pair
    some_p = rng.sample(top(p, len(p)), min(k_p, len(p)))
    some_q = rng.sample(top(q, len(q)), min(k_q, len(q)))
    assert divergence(some_p, some_q).nats <= exact(p, q) + 1e-12


@given(distributions(count=2))
def test_longer_lists_never_lower_the_bound(pair: list[Distribution]) -> None:
    """Each further pair of entries refines the partition, up to the exact divergence."""
    p, q = pair
    bounds = [divergence(top(p, k), top(q, k)).nats for k in range(1, len(p) + 1)]
    for shorter, longer in pairwise(bounds):
        assert longer >= shorter - 1e-11
    assert bounds[-1] == pytest.approx(exact(p, q), abs=1e-11)


@given(distributions(count=2, most=4.0), st.integers(1, 12))
def test_the_shortfall_is_bounded_by_what_the_lists_leave_out(
    pair: list[Distribution], k: int
) -> None:
    """What is lost is P's unshared mass times how uneven the log-ratios are within it."""
    p, q = pair
    found = divergence(top(p, k), top(q, k))
    shared = {e.id for e in top(p, k)} & {e.id for e in top(q, k)}
    rest = [token for token in range(len(p)) if token not in shared]
    if not rest:
        allowed = 0.0
    else:
        mass_p, mass_q = sum(p[t] for t in rest), sum(q[t] for t in rest)
        worst = max(math.log(p[t] / q[t]) for t in rest)
        uneven = mass_p * (worst - math.log(mass_p / mass_q))
        blurred = mass_p * math.log1p(ROUNDING / mass_q) + ROUNDING * abs(math.log(mass_p / mass_q))
        allowed = uneven + blurred
    assert exact(p, q) - found.nats <= allowed + 1e-11


@given(st.floats(0.05, 0.9), st.floats(0.05, 0.9), st.floats(0.0, 0.9), st.floats(0.0, 0.9))
def test_no_greater_bound_follows_from_two_lists(
    unshared_p: float, unshared_q: float, share_p: float, share_q: float
) -> None:
    """Some pair of distributions behind the lists has a divergence as low as the bound."""
    p = listed(t0=(1 - unshared_p) * 0.9, t1=unshared_p * (1 - share_p) * 0.9)
    q = listed(t0=(1 - unshared_q) * 0.9, t2=unshared_q * (1 - share_q) * 0.9)
    p0, a = (math.exp(e.logprob) for e in p)
    q0, b = (math.exp(e.logprob) for e in q)
    u, v = 1 - p0 - a, 1 - q0 - b
    # Of all that P may have put on token 2, and Q on token 1, the pair of least divergence.
    on_2 = u * np.linspace(1e-6, 1 - 1e-6, 400)[:, None]
    on_1 = v * np.linspace(1e-6, 1 - 1e-6, 400)[None, :]
    least = np.min(
        p0 * math.log(p0 / q0)
        + a * np.log(a / on_1)
        + on_2 * np.log(on_2 / b)
        + (u - on_2) * np.log((u - on_2) / (v - on_1))
    )
    bound = divergence(p, q).nats
    slope = a / v + abs(math.log(u / b)) + abs(math.log((a + u) / (b + v))) + (a + u) / (b + v)
    assert bound - 1e-9 <= least <= bound + ROUNDING * slope + 0.02


@given(distributions(count=1), st.integers(1, 12))
def test_equal_lists_have_no_divergence(alone: list[Distribution], k: int) -> None:
    """A list against itself is exactly 0, with its whole listed mass as coverage."""
    (p,) = alone
    found = divergence(top(p, k), top(p, k))
    assert found.nats == 0.0
    assert found.top1_agrees
    assert found.shared_tokens == min(k, len(p))
    assert found.coverage == pytest.approx(min(1.0, math.fsum(sorted(p)[-k:])))


@given(distributions(count=2), st.integers(1, 12), st.randoms())
def test_the_order_of_a_list_does_not_matter(
    pair: list[Distribution], k: int, rng: random.Random
) -> None:
    """Shuffled lists give the same value to the last bit."""
    p, q = top(pair[0], k), top(pair[1], k)
    shuffled_p, shuffled_q = rng.sample(p, len(p)), rng.sample(q, len(q))
    assert divergence(shuffled_p, shuffled_q) == divergence(p, q)


@given(distributions(count=2, most=6.0))
def test_float32_lists_of_a_whole_vocabulary_give_the_exact_divergence(
    pair: list[Distribution],
) -> None:
    """Rounding of the log-probabilities costs next to nothing when nothing is cut off."""
    p, q = pair
    rounded = [
        [TopToken(t, float(np.float32(math.log(mass)))) for t, mass in enumerate(masses)]
        for masses in (p, q)
    ]
    assert divergence(rounded[0], rounded[1]).nats == pytest.approx(exact(p, q), abs=2e-5)


@given(distributions(count=1), st.floats(-9e-4, 9e-4))
def test_a_common_factor_on_one_list_costs_only_its_square(
    alone: list[Distribution], error: float
) -> None:
    """A normalizer that float32 got wrong by 0.09 % does not pass for a divergence."""
    (p,) = alone
    scaled = [TopToken(e.id, e.logprob + error) for e in top(p, len(p))]
    assert divergence(top(p, len(p)), scaled).nats <= error**2 + 1e-12


def test_disjoint_lists_are_far_apart() -> None:
    """Two certain models that disagree do not hide in one common tail."""
    found = divergence(listed(t1=0.9), listed(t2=0.9))
    assert 1.74 < found.nats <= 0.8 * math.log(9)
    assert (found.shared_tokens, found.coverage, found.top1_agrees) == (0, 0.0, False)


def test_disjoint_lists_of_little_mass_say_nothing() -> None:
    """If each list fits into what the other leaves over, the distributions may be equal."""
    assert divergence(listed(t1=0.4), listed(t2=0.4)).nats == 0.0


def test_one_token_lists_make_two_cells() -> None:
    """Lists of length one compare that token's probability and nothing else."""
    found = divergence(listed(t1=0.7), listed(t1=0.5))
    binary = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
    assert found.nats == pytest.approx(binary, abs=ROUNDING)
    assert found.nats <= binary
    assert found.coverage == pytest.approx(0.7)


def test_nothing_left_over_by_q_stays_finite() -> None:
    """A Q list of sum 1 against a P with a tail means a tail as large as rounding hides."""
    found = divergence(listed(t1=0.5, t2=0.4), listed(t1=0.5, t2=0.5))
    p, q = [0.5, 0.4, 0.1], normalized([0.5, 0.5, ROUNDING])
    assert found.nats == pytest.approx(exact(p, q), abs=1e-6)
    assert found.nats <= exact(p, q) + ROUNDING**2


def test_nothing_left_over_by_p_is_no_trouble() -> None:
    """A P without a tail needs no logarithm of it."""
    found = divergence(listed(t1=0.5, t2=0.5), listed(t1=0.5, t2=0.4))
    assert found.nats == pytest.approx(0.5 * math.log(1.25), abs=10 * ROUNDING)
    assert found.nats <= 0.5 * math.log(1.25)


def test_listed_mass_where_q_lists_everything_else() -> None:
    """P's certain token, absent from a Q that leaves nothing over, is finite and large."""
    found = divergence(listed(t1=1.0), listed(t2=1.0))
    assert math.log(1 / ROUNDING) - 1 < found.nats < math.log(1 / ROUNDING) + 1


@pytest.mark.parametrize("zero", [-math.inf, -3.4028234663852886e38, -800.0])
def test_probability_zero_is_not_listed(zero: float) -> None:
    """Neither −inf nor float32's lowest makes an infinite or a false divergence."""
    p, q = listed(t1=0.6, t2=0.4), [*listed(t1=0.9), TopToken(2, zero)]
    assert divergence(p, q) == divergence(p, q[:1])
    assert math.isfinite(divergence(p, q).nats)
    assert divergence(q, p) == divergence(q[:1], p)


def test_the_smallest_probabilities_do_not_overflow() -> None:
    """A ratio beyond the range of floats is still a number."""
    found = divergence(listed(t1=1.0), [TopToken(1, -744.0), *listed(t2=1.0)])
    assert found.nats == pytest.approx(744.0, abs=1.5)


def test_a_negative_leftover_is_clamped_and_flagged() -> None:
    """Listed probabilities a rounding above 1 leave nothing over, not less."""
    over, whole = listed(t1=0.5, t2=0.500001), listed(t1=0.5, t2=0.5)
    assert divergence(over, whole).clamped
    assert divergence(whole, over).clamped
    assert divergence(over, whole).coverage == 1.0
    assert divergence(over, whole).nats == pytest.approx(0.0, abs=1e-11)
    assert not divergence(listed(t1=0.5), listed(t1=0.4)).clamped


def test_a_negative_sum_is_clamped_and_flagged() -> None:
    """Some sums over lists that agree to ten digits round to below zero: they become 0."""
    near = 1 + 2**-36
    found = [divergence(listed(t1=m / 99), listed(t1=m / 99 * near)) for m in range(1, 99)]
    clamped = [each for each in found if each.clamped]
    assert clamped
    assert all(each.nats == 0.0 for each in clamped)
    assert all(0.0 <= each.nats < 1e-15 for each in found)


@pytest.mark.parametrize(
    ("p", "q", "agrees"),
    [
        (listed(t1=0.5, t2=0.3), listed(t2=0.3, t1=0.5), True),
        (listed(t1=0.5, t2=0.3), listed(t2=0.5, t1=0.3), False),
        (listed(t1=0.4, t2=0.4), listed(t2=0.5, t1=0.3), True),
        (listed(t1=0.4, t2=0.4), listed(t3=0.4, t2=0.4), True),
        (listed(t1=0.4, t2=0.4), listed(t3=0.4, t4=0.4), False),
    ],
)
def test_top1_agreement_needs_one_likeliest_token_in_common(
    p: list[TopToken], q: list[TopToken], *, agrees: bool
) -> None:
    """Which of two tied tokens a server lists first is not a disagreement."""
    assert divergence(p, q).top1_agrees is agrees


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "an empty list is no distribution"),
        (listed(t1=0.5) * 2, "a token is listed twice"),
        ([TopToken(1, math.nan)], "a log-probability is not a number or far above 0"),
        ([TopToken(1, math.inf)], "a log-probability is not a number or far above 0"),
        ([TopToken(1, 800.0)], "a log-probability is not a number or far above 0"),
        ([TopToken(1, -math.inf)], "the listed probabilities sum to 0"),
        (listed(t1=0.7, t2=0.4), r"the listed probabilities sum to 1\.1"),
    ],
)
def test_what_is_no_distribution_is_refused(bad: list[TopToken], message: str) -> None:
    """Missing or malformed lists raise on either side: they never pass for p = 1."""
    for p, q in ((bad, listed(t1=1.0)), (listed(t1=1.0), bad)):
        with pytest.raises(ValueError, match=message):
            divergence(p, q)


def test_summary_in_nats_and_bits() -> None:
    """A mean of 0.0731382442 nats is 0.1055161823 bits, a published pair of figures."""
    found = summary([0.0731382442 - 0.05, 0.0731382442 + 0.05])
    assert found.mean_nats == pytest.approx(0.0731382442, abs=1e-12)
    assert found.mean_bits == pytest.approx(0.1055161823, abs=1e-10)


@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=300))
def test_summary_statistics_are_the_usual_ones(values: list[float]) -> None:
    """Quantiles interpolate as numpy's do by default; the error is the sample's over √n."""
    found = summary(values)
    assert found.positions == len(values)
    assert found.mean_nats == pytest.approx(np.mean(values))
    assert found.standard_error_nats == pytest.approx(
        np.std(values, ddof=1) / math.sqrt(len(values)), abs=1e-9
    )
    assert [found.p50_nats, found.p95_nats, found.p99_nats, found.max_nats] == pytest.approx(
        list(np.quantile(values, [0.5, 0.95, 0.99, 1.0])), abs=1e-9
    )


def test_summary_of_one_value_has_no_standard_error() -> None:
    """The spread of one value is unknown, not 0."""
    found = summary([0.25])
    assert found.standard_error_nats is None
    assert (found.mean_nats, found.p50_nats, found.p99_nats, found.max_nats) == (0.25,) * 4


def test_summary_of_nothing_is_refused() -> None:
    """No values have no mean."""
    with pytest.raises(ValueError, match="no divergences to summarize"):
        summary([])
