"""Two scrapes make an interval: what a server did between them, restarts included.

A server's counters start again at 0 with its process and are printed rounded. The ledger
keeps one running total for each: what earlier processes had counted, plus the present
reading, minus where we came in. Since it always adds readings and never differences, the
rounding of one reading is all the error a total ever has (plus one for each restart).
"""

from collections.abc import Callable, Iterable
from itertools import zip_longest

import msgspec

from mtpmon.model import Amount, Counters, Reading, Usage

TRACKED = (
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "generated_tokens",
    "generation_seconds",
    "prompt_tokens",
)
# Two steps of a long draft. Seen were one or two steps, and fourteen where one takes 0.5 ms.
MOST_STEPS_AFTER_A_CUT = 2
MOST_TOKENS_AFTER_A_CUT = 16


class Track(msgspec.Struct, frozen=True):
    """One counter across restarts: ``carried`` from earlier processes, then ``last - base``."""

    base: Reading
    last: Reading
    carried: float = 0.0
    carried_error: float = 0.0

    def amount(self) -> Amount:
        """The total since we came in; the base cancels in every difference of totals."""
        return Amount(
            self.carried + self.last.value - self.base.value,
            self.last.quantum / 2,
            self.carried_error,
        )

    def restarted(self) -> "Track":
        """The same total at the birth of a new process, whose counters are 0."""
        total = self.amount()
        zero = Reading(0.0)
        return Track(zero, zero, total.value, total.carried_error + total.error)


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """A server's running totals. Start one with ``opened``, then ``advance`` it."""

    start_token: str | None
    tracks: dict[str, Track]
    positions_carried: tuple[int, ...] = ()
    positions_base: tuple[int, ...] | None = None
    positions_last: tuple[int, ...] = ()
    restarts: int = 0
    suspect: bool = False

    def usage(self) -> Usage:
        """Totals since the first scrape."""
        positions = None
        if self.positions_base is not None:
            positions = added(
                self.positions_carried, subtracted(self.positions_last, self.positions_base)
            )
        amounts = {name: track.amount() for name, track in self.tracks.items()}
        return Usage(
            drafts=amounts.get("drafts"),
            draft_tokens=amounts.get("draft_tokens"),
            accepted_tokens=amounts.get("accepted_tokens"),
            accepted_by_position=positions,
            generated_tokens=amounts.get("generated_tokens"),
            generation_seconds=amounts.get("generation_seconds"),
            prompt_tokens=amounts.get("prompt_tokens"),
        )


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger after one more scrape. ``held``: the scrape contradicted what was known."""

    ledger: Ledger
    restarted: bool = False
    held: bool = False


def opened(counters: Counters) -> Ledger:
    """A ledger whose baseline is ``counters``: its totals are all 0."""
    tracks = {name: Track(value, value) for name, value in _readings(counters)}
    base = counters.accepted_by_position
    if base is None and _nothing_drafted(counters.drafts):
        base = ()
    return Ledger(
        start_token=counters.start_token,
        tracks=tracks,
        positions_base=base,
        positions_last=base or (),
    )


def advance(ledger: Ledger, counters: Counters) -> Advance:
    """Add one scrape to a ledger.

    A new start token is a restart: all that the new process has counted is new. So is a
    counter that fell, but without a new token only when the next scrape agrees: a body
    garbled once must not make the totals jump when the true value comes back. A series
    that is absent keeps its last reading until it returns.
    """
    new_token = (
        None not in (ledger.start_token, counters.start_token)
        and ledger.start_token != counters.start_token
    )
    if not new_token and _fell(ledger, counters):
        if not ledger.suspect:
            return Advance(ledger=msgspec.structs.replace(ledger, suspect=True), held=True)
        new_token = True
    if new_token:
        ledger = _restarted(ledger)
    tracks = dict(ledger.tracks)
    for name, value in _readings(counters):
        old = tracks.get(name)
        if old is not None:
            tracks[name] = msgspec.structs.replace(old, last=value)
        else:  # a series seen for the first time: an upgrade brought it, or a bad line hid it
            tracks[name] = Track(Reading(0.0) if new_token else value, value)
    base, last = ledger.positions_base, ledger.positions_last
    if counters.accepted_by_position is not None:
        last = counters.accepted_by_position
        base = last if base is None else base
    return Advance(
        ledger=msgspec.structs.replace(
            ledger,
            start_token=counters.start_token or ledger.start_token,
            tracks=tracks,
            positions_base=base,
            positions_last=last,
            suspect=False,
        ),
        restarted=new_token,
    )


def _restarted(ledger: Ledger) -> Ledger:
    return msgspec.structs.replace(
        ledger,
        tracks={name: track.restarted() for name, track in ledger.tracks.items()},
        positions_carried=ledger.usage().accepted_by_position or (),
        positions_base=(),
        positions_last=(),
        restarts=ledger.restarts + 1,
    )


def _readings(counters: Counters) -> Iterable[tuple[str, Reading]]:
    for name in TRACKED:
        value: Reading | None = getattr(counters, name)
        if value is not None:
            yield name, value


def _nothing_drafted(drafts: Reading | None) -> bool:
    """Whether the absence of per-position series means "none yet" and not "unknown"."""
    return drafts is not None and drafts.value == 0


def _fell(ledger: Ledger, counters: Counters) -> bool:
    if any(
        name in ledger.tracks and value.value < ledger.tracks[name].last.value
        for name, value in _readings(counters)
    ):
        return True
    positions = counters.accepted_by_position
    return positions is not None and any(
        change < 0 for change in subtracted(positions, ledger.positions_last)
    )


# --- arithmetic of usages -----------------------------------------------------------------


def added(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Elementwise sum of two per-position counts; the shorter one counts 0 beyond its end."""
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))


def subtracted(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Elementwise ``a - b``, as ``added``."""
    return added(a, tuple(-n for n in b))


def _each(
    a: Usage, b: Usage, combine: Callable[[Amount, Amount], Amount]
) -> dict[str, Amount | None]:
    """``combine`` for every amount known in both."""
    found: dict[str, Amount | None] = {}
    for name in TRACKED:
        x, y = getattr(a, name), getattr(b, name)
        found[name] = combine(x, y) if x is not None and y is not None else None
    return found


def _positions(
    a: Usage, b: Usage, combine: Callable[[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]
) -> tuple[int, ...] | None:
    if a.accepted_by_position is None or b.accepted_by_position is None:
        return None
    return combine(a.accepted_by_position, b.accepted_by_position)


def total(a: Usage, b: Usage) -> Usage:
    """The usage of both. Unknown in either is unknown in the sum."""

    def add(x: Amount, y: Amount) -> Amount:
        return Amount(x.value + y.value, x.error + y.error, x.carried_error + y.carried_error)

    return msgspec.structs.replace(
        a,
        **_each(a, b, add),
        accepted_by_position=_positions(a, b, added),
        positions_error=a.positions_error + b.positions_error,
        requests=a.requests + b.requests,
    )


def difference(later: Usage, earlier: Usage) -> Usage:
    """What happened between two totals of one ledger.

    The errors of the two readings add up. What restarts cost is in the difference only if
    the restart lies between.
    """

    def subtract(x: Amount, y: Amount) -> Amount:
        return Amount(x.value - y.value, x.error + y.error, x.carried_error - y.carried_error)

    return msgspec.structs.replace(
        later,
        **_each(later, earlier, subtract),
        accepted_by_position=_positions(later, earlier, subtracted),
        positions_error=later.positions_error - earlier.positions_error,
        requests=later.requests - earlier.requests,
    )


def nothing() -> Usage:
    """A usage of exactly nothing."""
    zero = Amount(0.0)
    return Usage(
        drafts=zero,
        draft_tokens=zero,
        accepted_tokens=zero,
        accepted_by_position=(),
        generated_tokens=zero,
        generation_seconds=zero,
        prompt_tokens=zero,
    )


def without(server: Usage, own: Usage) -> Usage:
    """What users did: the server's usage less our own, never below 0.

    Our own share is exact while the server's total is rounded, so the rest may come out
    negative by less than its error. Both are differences over the same interval.
    """

    def rest(everybody: Amount, ours: Amount) -> Amount:
        return Amount(
            max(everybody.value - ours.value, 0.0), everybody.half_width + ours.half_width
        )

    def positions(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(max(n, 0) for n in subtracted(a, b))

    return msgspec.structs.replace(
        server,
        **_each(server, own, rest),
        accepted_by_position=_positions(server, own, positions),
        positions_error=server.positions_error + own.positions_error,
    )


def risen(before: Usage, now: Usage) -> Usage:
    """``now``, but nothing in it below ``before``; what is not known now stays as it was.

    For counters that are differences: our own share is exact and the server's total
    rounded, so what is left for users may step back by up to one quantum.
    """

    def higher(old: Amount, new: Amount) -> Amount:
        return new if new.value >= old.value else msgspec.structs.replace(new, value=old.value)

    def highest(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(max(pair) for pair in zip_longest(a, b, fillvalue=0))

    amounts = {
        name: amount or getattr(now, name) or getattr(before, name)
        for name, amount in _each(before, now, higher).items()
    }
    positions = _positions(before, now, highest)
    if positions is None:
        positions = now.accepted_by_position or before.accepted_by_position
    return msgspec.structs.replace(
        now,
        **amounts,
        accepted_by_position=positions,
        requests=max(before.requests, now.requests),
    )


def settled(grown: Usage, ours: Usage, *, at_rest: bool, blind: bool) -> Usage | None:
    """What our requests cost a server, told from its counters since one of them was cut off.

    A server goes on for some steps before it notices; from us only a lower bound is known.
    Once it has counted the request, what it counted beyond that is those steps, unless a
    user's request ended too. None did if no prompt but ours was counted. One did if another
    prompt was, and nothing runs any more. In between, little is taken for ours, and is the
    error: two steps of a long draft, or what our own error says that it may be.

    Args:
        grown: what the server counted since the look before ours began.
        ours: what we know our requests to have cost it.
        at_rest: whether no request was running when it was looked at.
        blind: whether the one cut off had not answered yet, so that ours lacks its prompt.

    Returns:
        The better of what is known then, or ``None`` when the server has not counted it yet.
    """
    rest = {name: _apart(getattr(grown, name), getattr(ours, name)) for name in TRACKED}
    tokens, prompts = rest["generated_tokens"], rest["prompt_tokens"]
    if tokens is None or prompts is None or ours.generated_tokens is None:
        return ours
    if tokens.value < -tokens.error:
        return None
    alone = prompts == Amount(0.0)
    another_ended = at_rest and not blind and prompts.value > prompts.error
    few = max(MOST_TOKENS_AFTER_A_CUT, ours.generated_tokens.half_width)
    if not alone and (another_ended or tokens.value > few + tokens.error):
        return _left_open(ours) if blind else ours
    found = msgspec.structs.replace(
        ours,
        **{
            name: _with_rest(getattr(ours, name), more, sure=alone)
            for name, more in rest.items()
            if name != "prompt_tokens"
        },
    )
    if grown.accepted_by_position is None or ours.accepted_by_position is None:
        return found
    more = tuple(
        max(n, 0) for n in subtracted(grown.accepted_by_position, ours.accepted_by_position)
    )
    if not alone and sum(more) > few:
        return found
    return msgspec.structs.replace(
        found,
        accepted_by_position=added(ours.accepted_by_position, more),
        positions_error=0.0 if alone else float(sum(more)),
    )


def _left_open(ours: Usage) -> Usage:
    """Ours, if it may have cost some steps more."""

    def more(amount: Amount | None, extra: float) -> Amount | None:
        if amount is None:
            return None
        return Amount(amount.value, amount.error, amount.carried_error + extra)

    tokens = MOST_TOKENS_AFTER_A_CUT
    return msgspec.structs.replace(
        ours,
        drafts=more(ours.drafts, MOST_STEPS_AFTER_A_CUT),
        draft_tokens=more(ours.draft_tokens, tokens),
        accepted_tokens=more(ours.accepted_tokens, tokens),
        generated_tokens=more(ours.generated_tokens, tokens),
        positions_error=ours.positions_error + tokens,
    )


def _apart(counted: Amount | None, known: Amount | None) -> Amount | None:
    """How much more a server has counted than we know of. Our own error is what is sought."""
    if counted is None or known is None:
        return None
    return Amount(counted.value - known.value, counted.half_width)


def _with_rest(known: Amount | None, rest: Amount | None, *, sure: bool) -> Amount | None:
    """``known`` with what was counted beyond it, where rounding lets that be seen."""
    if known is None or rest is None:
        return known
    if rest.value > rest.error:
        return Amount(known.value + rest.value, 0.0, rest.error + (0.0 if sure else rest.value))
    return known if rest.error else Amount(known.value)


def has_traffic(users: Usage) -> bool:
    """Whether a user's generation ended in an interval, beyond what rounding can feign."""
    if sum(users.accepted_by_position or ()) > users.positions_error:
        return True
    tokens = users.generated_tokens
    return tokens is not None and tokens.value > tokens.half_width
