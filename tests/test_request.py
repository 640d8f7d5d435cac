"""Requests: where they come from, how long they count, what they say of longer ones."""

import pytest

from mtpmon.model import (
    Baseline,
    Completion,
    Identity,
    Position,
    ProbeOutcome,
    ProbeResult,
    Step,
    StepStream,
    Timings,
)
from mtpmon.request import (
    Expiry,
    Request,
    current,
    cut_drafts,
    expiry,
    kept_by_prompt,
    requests_of,
    sample_of_traffic,
    tally_of_requests,
)

IDENTITY = Identity(build="b1", model="m", start_token="s", target_only_start_token="t")


def completion(*steps: Step, unresolved: int = 0, finished: bool = True) -> Completion:
    return Completion(
        positions=(Position(1, "a"),),
        timings=Timings(
            prompt_tokens=7,
            prompt_seconds=0.1,
            cached_tokens=3,
            generated_tokens=5,
            generation_seconds=0.5,
        ),
        stream=StepStream(steps=steps, unresolved_draft_tokens=unresolved),
        wall_seconds=1.0,
        finished=finished,
    )


def result(**changes: object) -> ProbeResult:
    fields: dict[str, object] = {
        "server": "s",
        "prompt_id": "p1",
        "task": "code",
        "identity": IDENTITY,
        "unix_seconds": 50.5,
        "duration_seconds": 1.0,
        "outcome": ProbeOutcome.COMPLETED,
        "speculating": completion(Step(3, 2, 0.1)),
        "target_only": completion(Step(0, 0, 0.1)),
    }
    return ProbeResult(**(fields | changes))  # type: ignore[arg-type]


def test_a_probe_is_one_pair_of_requests() -> None:
    """Both arms, with all that is known of them."""
    ours, plain = requests_of(result())
    assert ours == Request(
        arm="speculating",
        steps=(Step(3, 2, 0.1),),
        unix_seconds=50.5,
        task="code",
        prompt="p1",
        pair="p1@50.5",
        whole=True,
        context_tokens=15,
        identity=IDENTITY,
    )
    assert plain.arm == "target_only"
    assert plain.pair == ours.pair


def test_a_baseline_by_switch_is_another_arm() -> None:
    """The speculating server's own plain steps are not a target-only server's."""
    arms = [r.arm for r in requests_of(result(baseline=Baseline.SWITCH))]
    assert arms == ["speculating", "switched_off"]


def test_a_single_server_gives_single_requests() -> None:
    """And a probe that did not complete gives none."""
    assert len(requests_of(result(target_only=None))) == 1
    assert requests_of(result(outcome=ProbeOutcome.FAILED)) == ()


@pytest.mark.parametrize(
    "of", [completion(Step(3, 2, 0.1), unresolved=2), completion(Step(3, 2, 0.1), finished=False)]
)
def test_a_request_with_steps_missing_is_not_whole(of: Completion) -> None:
    """Unresolved, or cut off."""
    assert not requests_of(result(speculating=of))[0].whole


# --- expiry ---


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        (IDENTITY, None),
        (Identity(build="b2", model="m2", start_token="x"), Expiry.MODEL_CHANGED),
        (Identity(build="b2", model="m", start_token="x"), Expiry.BUILD_CHANGED),
        (Identity(build="b1", model="m", start_token="x"), Expiry.RESTARTED),
        (Identity(target_only_start_token="x"), Expiry.RESTARTED),
        (Identity(), None),
    ],
)
def test_a_change_of_what_was_measured_ends_it(identity: Identity, reason: Expiry | None) -> None:
    """The deepest change is named; what is not known does not count as changed."""
    found = expiry(0.0, IDENTITY, now=10.0, identity=identity, max_age_seconds=100.0)
    assert found is reason


def test_age_ends_it_too() -> None:
    """Past the limit, not at it; what is stamped much later than now has no known age."""
    ages = (100.0, 100.1, -300.0, -300.1)
    found = [
        expiry(0.0, IDENTITY, now=now, identity=IDENTITY, max_age_seconds=100.0) for now in ages
    ]
    assert found == [None, Expiry.OLD, None, Expiry.OLD]


def test_requests_that_no_longer_hold_are_dropped_one_by_one() -> None:
    """An old one, one of another build, and one that holds."""
    old, other, good = (
        Request(arm="speculating", steps=(), unix_seconds=when, identity=identity)
        for when, identity in (
            (0.0, IDENTITY),
            (90.0, Identity(build="b0")),
            (90.0, IDENTITY),
        )
    )
    found = current([old, other, good], now=100.0, identity=IDENTITY, max_age_seconds=60.0)
    assert found == [good]


# --- what short answers say of long ones ---


def request(
    *steps: tuple[int, int], whole: bool = True, prompt: str = "", arm: str = "speculating"
) -> Request:
    return Request(
        arm=arm,  # type: ignore[arg-type]
        steps=tuple(Step(drafted, kept, 0.1) for drafted, kept in steps),
        unix_seconds=0.0,
        prompt=prompt,
        whole=whole,
    )


def test_drafts_that_fill_what_is_left_were_cut() -> None:
    """Eleven tokens to go: 3+1, 0+1, then 6 left is full length, 2 left is one, then none."""
    found = cut_drafts(request((3, 3), (3, 0), (3, 3), (1, 0), (0, 0)), 3)
    assert found == (False, False, False, True, True)


def test_short_drafts_amid_a_generation_were_not_cut() -> None:
    """The head gave up early: more was left to generate."""
    assert cut_drafts(request((3, 3), (1, 1), (0, 0), (3, 3)), 3) == (False,) * 4


def test_with_steps_missing_none_is_called_cut() -> None:
    """What was left at a step is not known."""
    assert cut_drafts(request((3, 3), (0, 0), whole=False), 3) == (False, False)


def test_cut_steps_are_no_sample_of_traffic() -> None:
    """Users' answers are long, and such steps rare."""
    found = sample_of_traffic([request((3, 2), (2, 2), prompt="a")])
    assert found == {"a": [Step(3, 2, 0.1)]}


def test_an_answer_seen_twice_counts_once() -> None:
    """Another answer to the same prompt counts with it; the other arm does not."""
    requests = [
        request((3, 2), (3, 3), prompt="a"),
        request((3, 2), (3, 3), prompt="a"),
        request((3, 0), (3, 3), prompt="a"),
        request((3, 2), (3, 3), prompt="b"),
        request((0, 0), (0, 0), (0, 0), prompt="a", arm="target_only"),
    ]
    assert kept_by_prompt(requests) == [(1, 0, 1, 2), (0, 0, 1, 1)]
    tally = tally_of_requests(requests)
    assert tally is not None
    assert tally.histogram == (1, 0, 2, 3)


def test_requests_without_a_prompt_are_prompts_of_their_own() -> None:
    """Equal or not."""
    assert len(kept_by_prompt([request((3, 2), (3, 3))] * 2)) == 2


def test_a_prompt_that_drafted_nothing_has_no_histogram() -> None:
    """Plain steps only."""
    assert kept_by_prompt([request((0, 0), (0, 0))]) == []
    assert tally_of_requests([]) is None
