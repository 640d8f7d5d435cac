"""Grades of the speed-up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.grade import Grade, Graded, GradeRules, grade
from mtpmon.model import Bounded

RULES = GradeRules(recommended=1.2, marginal=1.05)


@pytest.mark.parametrize(
    ("speedup", "letter"),
    [
        (1.2, Grade.RECOMMENDED),
        (1.199, Grade.MARGINAL),
        (1.05, Grade.MARGINAL),
        (1.049, Grade.NOT_RECOMMENDED),
        (0.5, Grade.NOT_RECOMMENDED),
    ],
)
def test_limits_are_where_the_better_grade_begins(speedup: float, letter: Grade) -> None:
    """At the limit, not past it."""
    assert grade(Bounded(speedup, speedup, speedup), RULES) == Graded(letter, certain=True)


def test_a_grade_is_certain_if_both_bounds_have_it() -> None:
    """Neither of them may be across a limit."""
    assert grade(Bounded(1.3, 1.21, 1.4), RULES).certain
    assert not grade(Bounded(1.3, 1.19, 1.4), RULES).certain
    assert not grade(Bounded(1.1, 1.06, 1.21), RULES).certain


@pytest.mark.parametrize(("recommended", "marginal"), [(1.0, 1.1), (1.2, 0.0), (1.2, -1.0)])
def test_limits_out_of_order_are_refused(recommended: float, marginal: float) -> None:
    """There would be a grade that nothing gets."""
    with pytest.raises(ValueError, match="limit of marginal"):
        GradeRules(recommended=recommended, marginal=marginal)


@given(st.floats(0, 5), st.floats(0, 5))
def test_a_faster_server_has_no_worse_grade(a: float, b: float) -> None:
    """In the order recommended, marginal, not recommended."""
    order = list(Grade)
    slow, fast = (order.index(grade(Bounded(x, x, x), RULES).grade) for x in (min(a, b), max(a, b)))
    assert fast <= slow
