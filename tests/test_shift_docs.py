"""What docs/change-detection.md says of delays is what the code does."""

import re
from pathlib import Path

import numpy as np
import pytest

from bench.detection import mean_delay
from bench.detectionknown import BEFORE, WEEK_STEPS, rolling_delay, rolling_threshold
from tests.fleet import bound

PAGE = Path(__file__).parent.parent / "docs" / "change-detection.md"


def documented(name: str) -> dict[str, list[str]]:
    """Rows of a table of the page, by their first cell."""
    found = re.search(
        rf"<!-- table: {name} -->\n(.*?)<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    rows = [
        [cell.strip(" *") for cell in line.strip("|").split("|")] for line in found[1].split("\n")
    ]
    return {row[0].replace("*", ""): row[1:] for row in rows if len(row) > 1}


@pytest.mark.parametrize(("place", "after"), [(0, 0.50), (1, 0.75)])
def test_delays_are_as_documented_and_near_the_bound(place: int, after: float) -> None:
    """One false alarm a week: at most 1.5 times the information bound, on the page and here."""
    table = documented("delay")
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
    assert found == pytest.approx(float(documented("delay")["rolling mean of 400"][0]), rel=0.15)


def test_no_alarm_is_more_frequent_than_allowed() -> None:
    """In every row of the page; suspicions may be."""
    for row in documented("false_alarms").values():
        if row[0].isdigit():
            assert float(row[3].split(" ")[0]) <= 1.0


def test_the_end_of_the_mix_table_is_about_falls() -> None:
    """A change of the mix raises next to no alarm; half the acceptance always does."""
    text = PAGE.read_text(encoding="utf-8")
    falls = re.findall(r"^\| [^|]+ \| acceptance × 0\.5 \|(.*)\|$", text, re.MULTILINE)
    assert falls
    for row in falls:
        assert row.split("|")[2].strip() == "100%"
