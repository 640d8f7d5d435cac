"""What docs/change-detection.md says of delays is what the code does."""

import re
from pathlib import Path

import numpy as np
import pytest

from bench.detection import mean_delay
from bench.detectionknown import BEFORE, WEEK_STEPS, rolling_delay, rolling_threshold
from tests.fleet import bound

PAGE = Path(__file__).parent.parent / "docs" / "change-detection.md"


def documented(name: str) -> list[list[str]]:
    """Rows of a table of the page, without its head."""
    found = re.search(
        rf"<!-- table: {name} -->\n(.*?)<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    lines = [line.strip("| ").split(" | ") for line in found[1].split("\n") if line]
    return [[cell.replace("*", "").strip() for cell in line] for line in lines[2:]]


def delays() -> dict[str, list[str]]:
    return {name: cells for name, *cells in documented("delay")}


@pytest.mark.parametrize(("place", "after"), [(0, 0.50), (1, 0.75)])
def test_delays_are_as_documented_and_near_the_bound(place: int, after: float) -> None:
    """One false alarm a week: at most 1.5 times the information bound, on the page and here."""
    table = delays()
    needed = bound(BEFORE, after, WEEK_STEPS)
    assert float(table["information bound"][place]) == round(needed)
    for size in (1, 10):
        row = table[f"mtpmon, batches of {size}"]
        assert float(row[place + 2]) <= 1.5
        assert float(row[place]) / needed == pytest.approx(float(row[place + 2]), abs=0.02)
    found = mean_delay(after, 10, scale=0.2)
    assert found <= 1.5 * needed
    assert found == pytest.approx(float(table["mtpmon, batches of 10"][place]), rel=0.15)


def test_the_rolling_mean_is_as_documented() -> None:
    """Beside it, with a threshold tuned to the same rate of false alarms; 400 steps wide."""
    rng = np.random.default_rng(1)
    threshold = rolling_threshold(rng, 400, 4_000_000)
    found = rolling_delay(rng, 400, threshold, 0.50, 300)
    assert found == pytest.approx(float(delays()["rolling mean of 400"][0]), rel=0.15)


def test_no_alarm_is_more_frequent_than_allowed() -> None:
    """In every row of the page; suspicions may be."""
    rows = documented("false_alarms")
    assert len(rows) >= 9
    for row in rows:
        assert float(row[4].split(" ")[0]) <= 1.0


def test_half_the_acceptance_is_always_told_and_another_mix_never() -> None:
    """On the page, without probes; tasks that were there before."""
    for row in documented("mix"):
        if row[1] == "acceptance × 0.5":
            assert row[4] == "100%"
        elif row[1].startswith("all") and "unseen" not in row[1]:
            assert row[4] == "0%"
