"""Should a kind of work be done with drafting? A grade, by stated limits of the speed-up."""

from enum import StrEnum

import msgspec

from mtpmon.model import Bounded


class Grade(StrEnum):
    """How far drafting is to be recommended."""

    RECOMMENDED = "recommended"
    MARGINAL = "marginal"
    NOT_RECOMMENDED = "not_recommended"


class GradeRules(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the speed-up, as speed over speed.

    From ``recommended`` on the gain is one that users notice. From ``marginal`` on there is
    one; below, drafting slows down or breaks even, and is not worth the memory of its head.

    Raises:
        ValueError: the limits are not in order.
    """

    recommended: float = 1.2
    marginal: float = 1.02

    def __post_init__(self) -> None:
        if not 0 < self.marginal <= self.recommended:
            raise ValueError(
                f"the limit of marginal, {self.marginal:g}, must be above 0 and not above"
                f" that of recommended, {self.recommended:g}"
            )


class Graded(msgspec.Struct, frozen=True):
    """A grade. ``certain``: both bounds of the speed-up have it as well."""

    grade: Grade
    certain: bool


def grade(speedup: Bounded, rules: GradeRules) -> Graded:
    """The grade of a measured or modelled speed-up."""
    value, *bounds = (_grade(s, rules) for s in (speedup.value, speedup.lower, speedup.upper))
    return Graded(value, all(each is value for each in bounds))


def _grade(speedup: float, rules: GradeRules) -> Grade:
    if speedup >= rules.recommended:
        return Grade.RECOMMENDED
    return Grade.MARGINAL if speedup >= rules.marginal else Grade.NOT_RECOMMENDED
