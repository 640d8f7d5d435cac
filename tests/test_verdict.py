"""The verdict: four answers that hold still."""

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.model import Bounded
from mtpmon.verdict import Standing, Verdict, VerdictRules, decide

Array = npt.NDArray[np.float64]
RULES = VerdictRules(min_steps=200, settle_seconds=100)
PAYING, COSTING = Verdict.PAYING, Verdict.COSTING
UNDECIDED, NO_DATA = Verdict.UNDECIDED, Verdict.NO_DATA


def around(middle: float, half: float = 0.1) -> Bounded:
    return Bounded(middle, middle - half, middle + half)


def after(
    looks: Iterable[tuple[float, Bounded | None]],
    start: Verdict | None = None,
    rules: VerdictRules = RULES,
) -> Standing:
    """What holds after looks at (time, margin)."""
    standing = Standing(start, 0.0) if start is not None else None
    for now, margin in looks:
        standing = decide(standing, margin=margin, steps=1000, now=now, rules=rules)
    assert standing is not None
    return standing


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [
        (around(0.11), PAYING),
        (around(0.1), UNDECIDED),
        (around(0.0), UNDECIDED),
        (around(-0.1), UNDECIDED),
        (around(-0.11), COSTING),
        (None, NO_DATA),
    ],
)
def test_the_first_verdict_is_what_the_bounds_show(
    margin: Bounded | None, verdict: Verdict
) -> None:
    """At once: there is nothing yet to hold on to."""
    assert after([(5.0, margin)]) == Standing(verdict, 5.0)


def test_too_few_steps_are_no_data_whatever_they_show() -> None:
    """The stated minimum, and half of it to go on."""
    margin = around(0.5)

    def verdict(before: Verdict, steps: float) -> Verdict:
        standing = Standing(before, 0.0)
        return decide(standing, margin=margin, steps=steps, now=1.0, rules=RULES).verdict

    assert [verdict(NO_DATA, n) for n in (199, 200)] == [NO_DATA, PAYING]
    assert [verdict(PAYING, n) for n in (99, 100)] == [NO_DATA, PAYING]


def test_a_verdict_is_kept_while_the_middle_of_the_interval_is_on_its_side() -> None:
    """However long 0 lies in the interval."""
    later = [(float(t), around(0.01)) for t in range(0, 10_000, 100)]
    assert after(later, PAYING) == Standing(PAYING, 0.0)
    other = [(float(t), around(-0.01)) for t in range(0, 10_000, 100)]
    assert after(other, COSTING) == Standing(COSTING, 0.0)


@pytest.mark.parametrize("before", [PAYING, COSTING])
def test_a_verdict_is_lost_when_the_middle_has_been_on_the_other_side_long_enough(
    before: Verdict,
) -> None:
    """Until then it leans."""
    margin = around(-0.05 if before is PAYING else 0.05)
    assert after([(10.0, margin)], before) == Standing(before, 0.0, UNDECIDED, 10.0)
    assert after([(10.0, margin), (109.0, margin)], before).verdict is before
    assert after([(10.0, margin), (110.0, margin)], before) == Standing(UNDECIDED, 110.0)


def test_a_lean_that_breaks_off_begins_anew() -> None:
    """Ninety seconds, a moment of doubt, and ninety more do not add up."""
    looks = [(10.0, around(-0.05)), (100.0, around(0.05)), (110.0, around(-0.05))]
    assert after([*looks, (209.0, around(-0.05))], PAYING).verdict is PAYING
    assert after([*looks, (210.0, around(-0.05))], PAYING).verdict is UNDECIDED


def test_a_lean_towards_another_verdict_begins_anew() -> None:
    """From doubt to the opposite."""
    looks = [(10.0, around(-0.05)), (60.0, around(-0.15))]
    assert after(looks, PAYING) == Standing(PAYING, 0.0, COSTING, 60.0)
    assert after([*looks, (160.0, around(-0.15))], PAYING) == Standing(COSTING, 160.0)


def test_clear_evidence_changes_a_verdict_at_once() -> None:
    """An interval farther from 0 than half its width, on either side."""
    assert after([(10.0, around(-0.21))], PAYING) == Standing(COSTING, 10.0)
    assert after([(10.0, around(0.21))], COSTING) == Standing(PAYING, 10.0)
    assert after([(10.0, around(-0.19))], PAYING).verdict is PAYING


def test_data_that_end_and_begin_change_a_verdict_at_once() -> None:
    """An idle server has no verdict, and one that wakes has what it shows."""
    assert after([(10.0, None)], PAYING) == Standing(NO_DATA, 10.0)
    assert after([(10.0, around(0.11))], NO_DATA) == Standing(PAYING, 10.0)


def test_a_verdict_that_stays_keeps_its_date() -> None:
    """And forgets what it leaned to."""
    leaning = Standing(PAYING, 3.0, UNDECIDED, 50.0)
    found = decide(leaning, margin=around(0.5), steps=1000, now=60.0, rules=RULES)
    assert found == Standing(PAYING, 3.0)


def test_bounds_that_are_open_on_one_side_are_judged_by_both() -> None:
    """A flattered margin: what is kept is kept by the middle, not by its value."""
    flattered = Bounded(0.3, -0.5, 0.4)
    looks = [(10.0, flattered), (110.0, flattered)]
    assert after(looks, PAYING).verdict is UNDECIDED


# --- how still ---

HALF_WINDOW = VerdictRules(settle_seconds=150)
LOOKS_A_DAY = 17_280


def windows(rng: np.random.Generator, truth: Array) -> list[Bounded]:
    """Margins in standard errors, of windows of 60 looks 5 s apart."""
    looks = rng.standard_normal(len(truth)) * math.sqrt(60) + truth
    sums = np.concatenate([[0.0], np.cumsum(looks)])
    return [around(float(x), 1.96) for x in (sums[60:] - sums[:-60]) / 60]


def run(margins: list[Bounded], rules: VerdictRules | None) -> list[Verdict]:
    """Verdicts by rule, or by the bounds alone."""
    found: list[Verdict] = []
    standing: Standing | None = None
    for place, margin in enumerate(margins):
        before = standing if rules is not None else None
        standing = decide(
            before, margin=margin, steps=480, now=5.0 * place, rules=rules or HALF_WINDOW
        )
        found.append(standing.verdict)
    return found


def changes(verdicts: list[Verdict]) -> int:
    return sum(a is not b for a, b in pairwise(verdicts))


def test_on_the_border_a_verdict_does_not_flap() -> None:
    """A day with the bound on 0 half of the time: some 10 changes, where bounds make 1000."""
    margins = windows(np.random.default_rng(1), np.full(LOOKS_A_DAY, 1.96))
    assert changes(run(margins, None)) > 500
    assert changes(run(margins, HALF_WINDOW)) <= 20


@pytest.mark.parametrize("truth", [0.0, 0.5, 1.0, 3.0])
def test_nowhere_does_a_verdict_flap(truth: float) -> None:
    """At most one change in six windows, with the margin anywhere."""
    margins = windows(np.random.default_rng(2), np.full(LOOKS_A_DAY, truth))
    assert changes(run(margins, HALF_WINDOW)) <= 288 / 6


@pytest.mark.parametrize(("size", "most_seconds"), [(6.0, 60), (15.0, 60)])
def test_a_real_change_is_told_hardly_later(size: float, most_seconds: float) -> None:
    """From margins well above 0 to as far below: within a minute of what bounds alone show.

    The median of 30 changes; the window itself takes 150 s to see half of one.
    """
    rng = np.random.default_rng(3)
    truth = np.concatenate([np.full(120, size), np.full(240, -size)])
    late = []
    for _ in range(30):
        margins = windows(rng, truth)
        ours, alone = run(margins, HALF_WINDOW), run(margins, None)
        late.append(5.0 * (ours.index(COSTING) - alone.index(COSTING)))
    assert min(late) >= 0
    assert float(np.median(late)) <= most_seconds


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.tuples(st.floats(-1, 1), st.floats(0, 1))),
            st.floats(0, 500),
            st.floats(0, 200),
        ),
        max_size=40,
    )
)
def test_whatever_is_seen_a_verdict_is_possible(
    looks: list[tuple[tuple[float, float] | None, float, float]],
) -> None:
    """Never paying with bounds below 0 for long, nor the other way round; dates do not fall."""
    standing: Standing | None = None
    now = 0.0
    contrary_since: float | None = None
    for interval, steps, pause in looks:
        now += pause
        margin = around(*interval) if interval is not None else None
        before = standing
        standing = decide(standing, margin=margin, steps=steps, now=now, rules=RULES)
        assert standing.since_unix_seconds <= now
        assert before is None or standing.since_unix_seconds >= before.since_unix_seconds
        assert (standing.leaning is None) == (standing.leaning_since_unix_seconds is None)
        if standing.verdict is NO_DATA or margin is None:
            contrary_since = None
            continue
        contrary = (standing.verdict is PAYING and margin.upper < 0) or (
            standing.verdict is COSTING and margin.lower > 0
        )
        if not contrary:
            contrary_since = None
        elif contrary_since is None:
            contrary_since = now
        else:
            assert now - contrary_since < RULES.settle_seconds
