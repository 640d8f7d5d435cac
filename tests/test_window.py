"""Windows, and figures with bounds that hold."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.derive import advance, difference, has_traffic, nothing, opened, total, without
from mtpmon.model import Amount, Bounded, Counters, Usage
from mtpmon.window import (
    Evidence,
    History,
    Sample,
    TrafficFigures,
    figures,
    kept_length_offsets,
    wilson,
)
from mtpmon.wire import reading

EVIDENCE = Evidence()


def usage(
    drafts: float = 0,
    *positions: int,
    tokens: float | None = None,
    seconds: float | None = None,
    requests: int = 0,
    draft_length: int = 3,
    prompt: float = 1e9,
) -> Usage:
    """Totals of a server that drafts ``draft_length`` tokens a step."""
    accepted = sum(positions)
    generated = drafts + accepted + requests if tokens is None else tokens
    return Usage(
        drafts=Amount(drafts),
        draft_tokens=Amount(drafts * draft_length),
        accepted_tokens=Amount(accepted),
        accepted_by_position=positions,
        generated_tokens=Amount(generated),
        generation_seconds=Amount(generated / 100 if seconds is None else seconds),
        prompt_tokens=Amount(prompt),
        requests=requests,
    )


def sample(
    at: float,
    server: Usage,
    *,
    own: Usage | None = None,
    at_rest: bool = True,
    moved: bool = True,
) -> Sample:
    return Sample(
        monotonic_seconds=at, server=server, own=own or nothing(), at_rest=at_rest, moved=moved
    )


def live(samples: Sequence[Sample], width: float = 60) -> TrafficFigures:
    return figures(samples, live=True, width_seconds=width, evidence=EVIDENCE)


IDLE = sample(0, usage(prompt=0), moved=False)


def test_nothing_is_said_of_places_behind_one_that_was_never_kept() -> None:
    found = live([IDLE, sample(60, usage(50, 20, 0, 0))])
    assert list(found.conditional_positions) == [0.4, 0]
    assert list(found.positions) == [0.4, 0, 0]


def test_decode_speed_does_without_prompt_tokens_where_a_server_counts_none() -> None:
    def told(at: float, tokens: float) -> Sample:
        counted = usage(tokens=tokens, seconds=tokens / 50, requests=int(at > 0))
        return sample(at, msgspec.structs.replace(counted, prompt_tokens=None, drafts=None))

    found = live([told(0, 0), told(60, 101)]).decode_tokens_per_second
    assert found is not None
    assert found.value == pytest.approx(100 / (101 / 50))
    assert found.lower == 0, "each token could have been a request of its own"


def test_figures_equal_those_computed_by_hand() -> None:
    """The reference's run: 310 of 378 drafted in 190 steps, (0.884, 0.747)."""
    later = sample(60, usage(190, 168, 142, draft_length=378 / 190, requests=1))  # type: ignore[arg-type]
    found = live([IDLE, later])
    assert found.acceptance is not None
    assert found.acceptance.value == 310 / 378
    assert found.positions == (168 / 190, 142 / 190)
    assert found.conditional_positions == pytest.approx((168 / 190, 142 / 168))
    assert found.acceptance_length is not None
    assert found.acceptance_length.value == pytest.approx(1 + 310 / 190)
    assert found.span_seconds == 60
    assert found.drafts == 190
    assert found.draft_coverage == 1
    assert found.throughput_tokens_per_second == 501 / 60


def test_one_sample_is_no_window() -> None:
    """There is nothing to take a difference of."""
    assert live([IDLE]) == TrafficFigures()


def test_a_window_is_the_difference_of_its_ends() -> None:
    """What came before it does not count, whatever was sampled inside it."""
    samples = [
        sample(0, usage(100, 90, 80)),
        sample(10, usage(200, 180, 160)),
        sample(20, usage(300, 200, 160)),
    ]
    found = live(samples, width=10)
    assert found.drafts == 100
    assert found.positions == (0.2, 0.0)


def test_an_idle_window_has_throughput_0_and_no_ratio() -> None:
    """Nothing happened: 0 tokens, and no acceptance to speak of."""
    samples = [
        sample(0, usage(100, 90)),
        sample(30, usage(100, 90), moved=False),
        sample(100, usage(100, 90), moved=False),
    ]
    assert live(samples, width=60) == TrafficFigures(throughput_tokens_per_second=0.0)


def test_a_busy_window_without_an_end_is_unknown() -> None:
    """A request runs; its tokens are counted when it ends, so nothing can be said yet."""
    samples = [
        sample(0, usage(100, 90)),
        sample(30, usage(100, 90), at_rest=False, moved=False),
        sample(100, usage(100, 90), at_rest=False, moved=False),
    ]
    assert live(samples, width=60) == TrafficFigures()


def test_throughput_is_taken_between_ends_of_requests() -> None:
    """A 100 s request counted in one moment is not spread over the last 5 s only."""
    samples = [sample(0, usage(0), at_rest=True, moved=False)]
    samples += [sample(t, usage(0), at_rest=False, moved=False) for t in range(5, 100, 5)]
    samples += [sample(100, usage(1000, 500, requests=1), at_rest=False)]
    samples += [sample(105, usage(1000, 500, requests=1), at_rest=False, moved=False)]
    found = live(samples, width=30)
    assert found.throughput_tokens_per_second == 1501 / 100


def test_throughput_needs_two_edges() -> None:
    """Busy since we came."""
    samples = [
        sample(0, usage(0), at_rest=False, moved=False),
        sample(60, usage(50, 20), at_rest=False),
    ]
    assert live(samples).throughput_tokens_per_second is None


def test_throughput_without_token_counters_is_unknown() -> None:
    """A server whose token series is missing."""
    server = Usage(accepted_by_position=(5,), drafts=Amount(10), draft_tokens=Amount(10))
    first = Usage(accepted_by_position=(), drafts=Amount(0), draft_tokens=Amount(0))
    found = live([sample(0, first), sample(60, server)])
    assert found.throughput_tokens_per_second is None
    assert found.draft_coverage is None
    assert found.acceptance is not None


def test_our_own_traffic_is_not_the_users() -> None:
    """Live figures are the server's less ours, and ours are their own."""
    own = usage(40, 10, 5, requests=2)
    samples = [IDLE, sample(60, total(usage(100, 90, 80, requests=3), own), own=own)]
    assert live(samples).positions == (0.9, 0.8)
    probes = figures(samples, live=False, width_seconds=60, evidence=EVIDENCE)
    assert probes.positions == (0.25, 0.125)
    assert probes.throughput_tokens_per_second == 57 / 60


def test_no_probe_in_the_window_is_no_figure() -> None:
    """Users' traffic alone says nothing of probes; their throughput was 0."""
    samples = [IDLE, sample(60, usage(100, 90))]
    probes = figures(samples, live=False, width_seconds=60, evidence=EVIDENCE)
    assert probes == TrafficFigures(throughput_tokens_per_second=0.0)


def test_without_position_counts_the_total_will_do() -> None:
    """With bounds that assume the least about how kept lengths spread."""
    server = Usage(drafts=Amount(200), draft_tokens=Amount(600), accepted_tokens=Amount(300))
    start = Usage(drafts=Amount(0), draft_tokens=Amount(0), accepted_tokens=Amount(0))
    found = live([sample(0, start), sample(60, server)])
    exact = live([IDLE, sample(60, usage(200, 150, 100, 50))])
    assert found.acceptance is not None
    assert exact.acceptance is not None
    assert found.acceptance.value == exact.acceptance.value == 0.5
    assert found.acceptance.lower < exact.acceptance.lower
    assert found.acceptance.upper > exact.acceptance.upper
    assert found.positions == ()


@pytest.mark.parametrize(
    ("drafts", "positions"),
    [(100, (50, 60)), (100, (101,)), (0, ()), (100, (301,))],
)
def test_impossible_counts_give_no_positions(drafts: int, positions: tuple[int, ...]) -> None:
    """A later position kept more often than an earlier one, or than there were steps."""
    found = live([IDLE, sample(60, usage(drafts, *positions))])
    assert found.positions == ()


def test_more_kept_than_drafted_gives_no_ratio() -> None:
    """Acceptance above 1 is a fault of the source, not a figure."""
    assert live([IDLE, sample(60, usage(10, 10, 10, 10, 10))]).acceptance is None


def test_too_few_steps_give_no_ratio() -> None:
    """The configured minimum."""
    found = figures(
        [IDLE, sample(60, usage(29, 20, 10))],
        live=True,
        width_seconds=60,
        evidence=Evidence(min_drafts=30),
    )
    assert found.acceptance is None
    assert found.decode_tokens_per_second is not None


def test_first_tokens_are_not_decode_steps() -> None:
    """10 requests of 11 tokens took 100 decode steps in 10 s: 10/s, where naive is 11/s."""
    found = live([IDLE, sample(60, usage(0, tokens=110, seconds=10, requests=10))])
    assert found.decode_tokens_per_second is not None
    assert found.decode_tokens_per_second.value == 10
    assert found.decode_tokens_per_second.upper == 10


def test_unseen_requests_are_inside_the_bounds() -> None:
    """Ten requests ended within one scrape interval, which shows one: the bounds know."""
    server = usage(50, 30, 10, tokens=50 + 40 + 10, seconds=10, requests=1, draft_length=2)
    found = live([IDLE, sample(60, server)]).decode_tokens_per_second
    assert found is not None
    assert found.lower == pytest.approx(9)
    assert found.upper == pytest.approx(9.9)
    few = usage(0, tokens=100, seconds=10, requests=1, prompt=4)
    found = live([IDLE, sample(60, few)]).decode_tokens_per_second
    assert found is not None
    assert found.lower == pytest.approx(9.6)


def test_undrafted_steps_lower_the_coverage() -> None:
    """100 decode steps, 60 of them drafted."""
    server = usage(60, 30, tokens=1 + 100 + 30, requests=1)
    assert live([IDLE, sample(60, server)]).draft_coverage == 0.6


# --- bounds ---


def test_wilson_bounds_are_the_known_ones() -> None:
    """8 of 10 at 95 %: Wilson 1927 gives 0.490 to 0.943."""
    low, high = wilson(0.8, 10, EVIDENCE.z)
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)


def test_bounds_from_positions_use_the_whole_distribution() -> None:
    """Against the sample standard deviation of the kept lengths themselves."""
    lengths = [0] * 30 + [1] * 20 + [2] * 10 + [3] * 40
    positions = [sum(k > i for k in lengths) for i in range(3)]
    mean = sum(lengths) / 100
    deviation = math.sqrt(sum((k - mean) ** 2 for k in lengths) / 99)
    below, above = kept_length_offsets(100, sum(lengths), positions, longest=3, z=2)
    assert below == above == pytest.approx(2 * deviation / 10)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=300),
    st.booleans(),
    st.floats(1, 5),
)
def test_bounds_hold_the_value_and_are_wider_for_alike_steps(
    lengths: list[int],
    with_positions: bool,
    effect: float,
) -> None:
    """Any kept lengths; a design effect never narrows."""
    positions = [sum(k > i for k in lengths) for i in range(4)] if with_positions else None

    def offsets(design_effect: float) -> tuple[float, float]:
        return kept_length_offsets(
            len(lengths),
            sum(lengths),
            positions,
            longest=4,
            z=1.96,
            design_effect=design_effect,
        )

    below, above = offsets(1)
    assert below >= 0
    assert above >= 0
    wide_below, wide_above = offsets(effect)
    assert wide_below >= below - 1e-9
    assert wide_above >= above - 1e-9


def test_bounds_cover_the_truth_as_often_as_they_say() -> None:
    """Independent steps, 300 a window: 95 % bounds hold the true length 93 to 97 % of the time."""
    rng = random.Random(5)
    conditional = (0.85, 0.8, 0.7)
    truth = 0.85 + 0.85 * 0.8 + 0.85 * 0.8 * 0.7
    held = 0
    for _ in range(1500):
        positions = [0, 0, 0]
        for _ in range(300):
            for place, chance in enumerate(conditional):
                if rng.random() >= chance:
                    break
                positions[place] += 1
        mean = sum(positions) / 300
        below, above = kept_length_offsets(300, sum(positions), positions, longest=3, z=1.96)
        held += mean - below <= truth <= mean + above
    assert 0.93 <= held / 1500 <= 0.97


# --- six digits ---


class Server:
    """Counts exactly, prints six digits."""

    def __init__(self, start: int, rng: random.Random) -> None:
        self.rng = rng
        self.drafts = self.tokens = start
        self.draft_tokens = 3 * start
        self.positions = [start * 4 // 5, start * 3 // 5, start * 2 // 5]

    def request(self) -> None:
        self.tokens += 1
        for _ in range(self.rng.randint(20, 200)):
            self.drafts += 1
            self.draft_tokens += 3
            self.tokens += 1
            for place in range(3):
                if self.rng.random() > 0.8:
                    break
                self.positions[place] += 1
                self.tokens += 1

    def printed(self) -> Counters:
        def text(count: float) -> str:
            return f"{count:g}"

        return Counters(
            start_token="a",
            drafts=reading(text(self.drafts)),
            draft_tokens=reading(text(self.draft_tokens)),
            accepted_tokens=reading(text(sum(self.positions))),
            accepted_by_position=tuple(self.positions),
            generated_tokens=reading(text(self.tokens)),
            generation_seconds=reading(text(self.tokens / 77), whole=False),
        )

    def exact(self) -> tuple[int, int, int]:
        return self.drafts, self.draft_tokens, sum(self.positions)


# Where an hour of this traffic is at least 100 times what two readings round away.
RESOLVABLE = {(10**6, 5), (10**6, 60), (10**7, 5)}


@pytest.mark.parametrize("start", [10**6, 10**7, 10**8, 10**9])
@pytest.mark.parametrize("gap_seconds", [5, 60])
def test_six_digits_never_make_a_wrong_acceptance(start: int, gap_seconds: int) -> None:
    """At every instant what is published holds the exact ratio of the span it states."""
    server = Server(start, random.Random(start + gap_seconds))
    ledger = opened(server.printed())
    history = History(keep_seconds=3600)
    truth: dict[float, tuple[int, int, int]] = {}
    published = 0
    before: Usage | None = None
    for tick in range(0, 3900, 5):
        if tick and tick % gap_seconds == 0:
            server.request()
        ledger = advance(ledger, server.printed()).ledger
        now = ledger.usage()
        moved = before is not None and has_traffic(without(difference(now, before), nothing()))
        before = now
        truth[tick] = server.exact()
        history.add(sample(tick, now, at_rest=True, moved=moved))
        for width in (60, 300, 3600):
            found = live(history.samples, width=width)
            if found.acceptance is None:
                continue
            published += 1
            assert found.span_seconds is not None
            first = truth[tick - found.span_seconds]
            drafts, drafted, kept = (b - a for a, b in zip(first, truth[tick], strict=True))
            assert found.acceptance.lower <= kept / drafted <= found.acceptance.upper
            assert abs(found.acceptance.value - kept / drafted) <= 0.0101 * kept / drafted
            assert found.acceptance_length is not None
            assert (
                found.acceptance_length.lower <= 1 + kept / drafts <= found.acceptance_length.upper
            )
    assert bool(published) == ((start, gap_seconds) in RESOLVABLE)


# --- anything at all ---

grown = st.tuples(
    st.integers(0, 10**5),
    st.lists(st.integers(0, 10**5), max_size=4),
    st.integers(0, 10**6),
    st.booleans(),
    st.booleans(),
    st.floats(0, 1e3),
)


@settings(max_examples=200)
@given(st.lists(grown, min_size=1, max_size=15), st.booleans(), st.floats(1, 1000))
def test_whatever_the_counts_are_figures_stay_possible(
    steps: list[tuple[int, list[int], int, bool, bool, float]],
    of_users: bool,
    width: float,
) -> None:
    """Ratios in 0 to 1, positions that do not rise, bounds around their value."""
    server, samples = nothing(), [sample(0, nothing(), moved=False)]
    for place, (drafts, positions, tokens, at_rest, moved, error) in enumerate(steps, start=1):
        more = Usage(
            drafts=Amount(drafts, 0, error),
            draft_tokens=Amount(tokens),
            accepted_tokens=Amount(tokens // 2),
            accepted_by_position=tuple(positions),
            generated_tokens=Amount(tokens, 0, error),
            generation_seconds=Amount(tokens / 100, 0, error / 1e6),
            prompt_tokens=Amount(5),
            requests=1,
        )
        server = total(server, more)
        samples.append(
            sample(7.0 * place, server, own=server, at_rest=at_rest, moved=moved)
            if not of_users
            else sample(7.0 * place, server, at_rest=at_rest, moved=moved)
        )
    found = figures(samples, live=of_users, width_seconds=width, evidence=EVIDENCE)

    def possible(bounded: Bounded | None, most: float) -> None:
        if bounded is not None:
            assert 0 <= bounded.lower <= bounded.value <= bounded.upper <= most

    possible(found.acceptance, 1)
    possible(found.acceptance_length, math.inf)
    possible(found.decode_tokens_per_second, math.inf)
    assert all(0 <= p <= 1 for p in found.positions + found.conditional_positions)
    assert list(found.positions) == sorted(found.positions, reverse=True)
    assert found.draft_coverage is None or 0 <= found.draft_coverage <= 1
    assert found.throughput_tokens_per_second is None or found.throughput_tokens_per_second >= 0


# --- history ---


def test_history_keeps_where_the_longest_window_starts() -> None:
    """One sample at or before the horizon, nothing older."""
    history = History(keep_seconds=100)
    for tick in range(0, 1000, 7):
        history.add(sample(tick, usage(tick)))
    times = [s.monotonic_seconds for s in history.samples]
    assert times[0] <= times[-1] - 100 < times[1]


def test_history_is_bounded_and_forgets_no_movement() -> None:
    """Older samples thin out to an even grid; what moved is merged into what stays."""
    history = History(keep_seconds=1000, recent=32, older=32)
    for tick in range(3000):
        history.add(sample(tick, usage(tick), moved=tick in (2100, 2500)))
    times = [s.monotonic_seconds for s in history.samples]
    assert times == sorted(set(times))
    assert times[-32:] == list(range(2968, 3000))
    assert len(times) <= 32 + 2 * 32 + 2
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) <= 1000 / 32 + 1
    assert sum(s.moved for s in history.samples) == 2
