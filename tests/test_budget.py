"""What probes may cost."""

from mtpmon.budget import Budget


def budget(share: float = 0.1, tokens: int = 1000) -> Budget:
    return Budget(time_share=share, tokens_per_hour=tokens)


def test_the_first_probe_is_free() -> None:
    """Nothing was spent yet."""
    assert budget().allows(0)


def test_time_is_limited_to_a_share() -> None:
    """Six seconds are a tenth of a minute; more must wait until it is less than a tenth."""
    held = budget()
    held.spend(10, seconds=6, tokens=1)
    assert held.allows(10)
    held.spend(20, seconds=6, tokens=1)
    assert not held.allows(20)
    assert not held.allows(123)
    assert held.allows(125)


def test_tokens_are_limited_by_the_hour() -> None:
    """What was spent an hour ago is forgotten."""
    held = budget(share=1)
    held.spend(0, seconds=1, tokens=600)
    held.spend(1800, seconds=1, tokens=600)
    assert not held.allows(1801)
    assert not held.allows(3600)
    assert held.allows(3601)


def test_giving_way_makes_patient() -> None:
    """Up to eight intervals; each undisturbed probe halves it."""
    held = budget()
    assert held.patience == 1
    for expected in (2, 4, 8, 8):
        held.gave_way()
        assert held.patience == expected
    for expected in (4, 2, 1, 1):
        held.completed()
        assert held.patience == expected
