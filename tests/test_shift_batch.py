"""What change detection looks at."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.model import (
    Amount,
    ProbeOutcome,
    Usage,
    Variant,
)
from mtpmon.shift.batch import batch_of, batch_of_probe, kld_of_probe, metered, pace_of_probe
from tests.fleet import shares
from tests.shifting import probe, usage


def test_a_position_is_tried_by_the_steps_that_kept_the_one_before() -> None:
    """The counts of a batch follow from per-position counters alone."""
    found = batch_of(usage(100, 90, 70, 50), began=1, ended=2)
    assert found is not None
    assert (found.steps, found.trials, found.kept) == (100, (100, 90, 70), (90, 70, 50))
    assert (found.began_unix_seconds, found.ended_unix_seconds) == (1, 2)


def test_positions_that_were_not_drafted_are_left_out() -> None:
    """A server set to shorter drafts has not failed at the longer ones."""
    found = batch_of(usage(100, 90, 0, 0, width=1.0), began=0, ended=1)
    assert found is not None
    assert (found.trials, found.kept) == ((100,), (90,))


def test_totals_make_one_position_that_varies_more() -> None:
    """Without per-position counters all draft tokens are trials, with the spread of a chain."""
    totals = msgspec.structs.replace(usage(100, error=5), accepted_by_position=None)
    totals = msgspec.structs.replace(totals, accepted_tokens=Amount(200, 5))
    found = batch_of(totals, began=0, ended=1)
    assert found is not None
    assert (found.steps, found.trials, found.kept) == (100, (300,), (200,))
    assert (found.trials_error, found.kept_error, found.spread) == (15, 5, 7 / 3)
    assert not found.by_position


@pytest.mark.parametrize("acceptance", [0.3, 0.5, 0.8, 0.95])
def test_the_spread_of_totals_is_an_upper_bound(acceptance: float) -> None:
    """The kept tokens of a three-token chain vary at most 7/3 as much as single tokens."""
    kept = np.arange(4)
    p = shares(acceptance)
    variance = float(p @ kept**2 - (p @ kept) ** 2)
    assert variance <= 7 / 3 * 3 * acceptance * (1 - acceptance)


@pytest.mark.parametrize(
    "unusable",
    [
        Usage(),
        usage(0, 0, 0, 0),
        usage(-10, 5, 3, 1),
        usage(100, 90, 95, 10),  # more kept at a position than came to it
        usage(100),  # no position seen yet
        msgspec.structs.replace(usage(100), accepted_by_position=None, draft_tokens=None),
    ],
)
def test_what_cannot_be_told_is_no_batch(unusable: Usage) -> None:
    """Nothing drafted, or counts that contradict each other."""
    assert batch_of(unusable, began=0, ended=1) is None


def test_without_the_drafted_total_all_positions_count() -> None:
    """The mean draft length only serves to leave positions out."""
    found = batch_of(msgspec.structs.replace(usage(10, 5, 0), draft_tokens=None), began=0, ended=1)
    assert found is not None
    assert found.trials == (10, 5)


def test_the_first_look_is_where_counting_starts() -> None:
    """What the server had counted before is nobody's change."""
    _, found = metered(None, usage(1000, 900, 800), usage(0), 5)
    assert found is None


def test_our_own_share_is_taken_off() -> None:
    """A batch is what users did."""
    meter, _ = metered(None, usage(1000, 900, 800), usage(0), 5)
    _, found = metered(meter, usage(1100, 980, 860), usage(20, 10, 5), 10)
    assert found is not None
    assert (found.steps, found.kept) == (80, (70, 55))


def test_an_idle_night_is_not_part_of_the_next_batch() -> None:
    """A change that begins in the morning must not be dated to the evening."""
    meter, _ = metered(None, usage(1000, 900, 800), usage(0), 0)
    for hour in range(1, 9):
        meter, found = metered(meter, usage(1000, 900, 800), usage(0), 3600.0 * hour)
        assert found is None
    _, found = metered(meter, usage(1100, 990, 880), usage(0), 8 * 3600.0 + 5)
    assert found is not None
    assert found.began_unix_seconds == 8 * 3600


def test_kept_tokens_wait_for_the_drafts_that_rounding_hides() -> None:
    """Counting one without the other would look like a rise, and then like a fall."""
    meter, _ = metered(None, usage(1e6, 900, 800, error=5), usage(0), 0)
    meter, hidden = metered(meter, usage(1e6, 904, 803, error=5), usage(0), 5)
    assert hidden is None
    _, found = metered(meter, usage(1e6 + 10, 909, 807, error=5), usage(0), 10)
    assert found is not None
    assert (found.steps, found.kept, found.began_unix_seconds) == (10, (9, 7), 0)
    assert found.trials_error == 10


@given(st.lists(st.integers(0, 400), min_size=1, max_size=30), st.sampled_from([1, 10, 100]))
def test_batches_add_up_to_what_was_counted(steps: list[int], quantum: int) -> None:
    """Rounding of the totals never adds up over batches, and nothing is counted twice."""
    drafts, kept, meter = 10**7, 0, None
    total = total_kept = 0.0
    for count, more in enumerate([0, *steps, 2 * quantum]):
        drafts, kept = drafts + more, kept + more // 2
        shown = usage(round(drafts / quantum) * quantum, kept, error=quantum / 2, width=1)
        meter, found = metered(meter, shown, usage(0), float(count))
        if found is not None:
            total, total_kept = total + found.steps, total_kept + found.kept[0]
    assert total_kept <= kept
    assert abs(total - (drafts - 10**7)) <= 3 * quantum


def test_a_server_without_counters_gives_nothing() -> None:
    """Old builds are watched through probes alone."""
    meter, _ = metered(None, Usage(), Usage(), 0)
    assert metered(meter, Usage(), Usage(), 5)[1] is None


def test_a_probe_tells_how_long_each_draft_was() -> None:
    """A draft that was cut is not taken for a rejection; plain steps are none."""
    found = batch_of_probe(probe((3, 3), (3, 1), (2, 2), (0, 0), (3, 0)))
    assert found is not None
    assert (found.steps, found.trials, found.kept) == (4, (4, 3, 1), (3, 2, 1))
    assert (found.began_unix_seconds, found.ended_unix_seconds) == (100, 109)


def test_probes_asked_differently_are_different_strata() -> None:
    """A task at another temperature has another acceptance."""
    warm = msgspec.structs.replace(probe((3, 1)), variant=Variant(temperature=0.7))
    found = {b.stratum for b in map(batch_of_probe, (probe((3, 1)), warm)) if b is not None}
    assert len(found) == 2


def test_probes_that_failed_or_did_not_draft_tell_nothing() -> None:
    """No batch, no step time, no divergence."""
    failed = msgspec.structs.replace(probe((3, 1)), outcome=ProbeOutcome.FAILED)
    for result in (failed, probe((0, 0))):
        assert batch_of_probe(result) is None
        assert pace_of_probe(result) is None
        assert kld_of_probe(result) is None


def test_step_time_is_the_median_of_full_steps() -> None:
    """Cut drafts cost less, and one stall is no change."""
    result = probe(*[(3, 1)] * 7, (2, 1))
    assert pace_of_probe(result) == (math.log(0.02), "code, 0, None, 0")
    assert pace_of_probe(probe((3, 1))) is None


def test_the_divergence_of_a_probe_is_its_mean() -> None:
    """One value for each probe: its positions are not independent."""
    found = kld_of_probe(probe((3, 1), klds=(0.0, 0.5)))
    assert found is not None
    assert found[0] == 0.25
