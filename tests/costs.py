"""Step costs as plain numbers, for tests of what is made of them."""

from mtpmon.cost import AgainstPlain, CutCost, LengthCost, PlainSource, StepCosts
from mtpmon.model import Bounded, Identity
from mtpmon.spread import Location
from mtpmon.tally import Tally


def exactly(value: float) -> Location:
    return Location(value, 0.0, 10)


def against(
    ratio: Bounded | float,
    *,
    source: PlainSource = PlainSource.PAIR,
    excess: float = 1.0,
    undrafted_ratio: float = 1.0,
) -> AgainstPlain:
    return AgainstPlain(
        source=source,
        ratio=ratio if isinstance(ratio, Bounded) else Bounded(ratio, ratio, ratio),
        excess=excess,
        seconds=Bounded(0.01, 0.01, 0.01),
        undrafted_ratio=undrafted_ratio,
        pairs=10,
    )


def step_costs_of(
    plain: AgainstPlain | None,
    *,
    longest: int = 3,
    relative: dict[int, float | Location] | None = None,
    cut: dict[int, float | Location] | None = None,
    startup: float | None = None,
    rollback: tuple[float, ...] | None = None,
    rollback_errors: tuple[float, ...] | None = None,
    mix: Tally | None = None,
) -> StepCosts:
    """Costs of a server set to ``longest``; by default every drafting step costs the same."""
    lengths = {longest: 1.0} if relative is None else relative
    return StepCosts(
        plain=plain,
        step_seconds=Bounded(0.02, 0.02, 0.02),
        longest=longest,
        lengths=tuple(
            LengthCost(
                drafted=n,
                steps=100,
                relative=_location(r),
                kept_seconds=None,
                rejected_seconds=None,
            )
            for n, r in sorted(lengths.items())
        ),
        cut=tuple(
            CutCost(drafted=n, requests=20, relative=_location(r))
            for n, r in sorted((cut or {}).items())
        ),
        startup=exactly(startup) if startup is not None else None,
        rollback=rollback or (0.0,) * longest,
        rollback_errors=rollback_errors or (0.0,) * longest,
        mix=mix or Tally(drafts=100, draft_tokens=100.0 * longest, by_position=(50.0,) * longest),
        requests=20,
        first_unix_seconds=0.0,
        last_unix_seconds=1000.0,
        context_tokens=(100, 200),
        identity=Identity(),
    )


def _location(value: float | Location) -> Location:
    return value if isinstance(value, Location) else exactly(value)
