"""Findings about a server's counters: which there are, and whether they are right. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from mtpmon.derive import advance, opened
from mtpmon.facts import Facts, Finding, Level
from mtpmon.model import Amount, Counters, ProbeResult, Usage
from mtpmon.trust import Reason, Reconciliation, distrust, known_build, mismatch, reconcile

_OTHER_BUILD = "use another build of llama.cpp"


def counter_findings(facts: Facts) -> Iterator[Finding]:
    """Judge the counters after the test probe, and against what its replies said."""
    counters = latest_counters(facts)
    if counters is None:
        return
    yield from _offered(counters)
    test = _test(facts)
    if test is not None and test.compared is None:
        yield Finding(
            "server",
            "warning",
            "served others during the test, so its counters were not checked",
            "run this again when it is idle",
        )
    elif test is not None and test.compared is not None and not test.compared.off_tokens:
        yield Finding("server", "ok", "has counters that agree with its replies")
    yield from _doubted(facts, test)


def latest_counters(facts: Facts) -> Counters | None:
    """The server's counters when they were last seen."""
    if facts.after is not None and facts.after.counters is not None:
        return facts.after.counters
    return facts.server.counters


def undrafted(probe: ProbeResult) -> bool:
    """Whether a probe came out without any draft."""
    return probe.speculating is not None and not probe.speculating.timings.draft_tokens


def _offered(counters: Counters) -> Iterator[Finding]:
    if counters.bad_lines:
        yield Finding(
            "server",
            "warning",
            f"has {counters.bad_lines} unreadable lines in /metrics",
            "see whether something in between changes them",
        )
    if counters.drafts is None:
        yield Finding(
            "server",
            "warning",
            "has no speculative counters in /metrics: its build is older than they are",
            "use a newer llama.cpp; b10434, for one, has them",
        )
    elif counters.accepted_by_position is not None:
        yield Finding("server", "ok", "counts drafts, and accepted tokens by draft position")
    elif counters.drafts.value:
        yield Finding(
            "server",
            "warning",
            "counts drafts, but not accepted tokens by draft position",
            "use a newer llama.cpp; b10434, for one, does",
        )
    else:
        yield Finding("server", "ok", "counts drafts; none so far")


class _Test(NamedTuple):
    """What the counters and the replies say of the test probe, and how far that is apart.

    ``compared`` is ``None`` if others were served meanwhile.
    """

    counted: Usage
    sent: Usage
    compared: Reconciliation | None


def _test(facts: Facts) -> _Test | None:
    before, after = facts.server.counters, latest_counters(facts)
    if before is None or after is None or after.drafts is None:
        return None
    if facts.probe is None or facts.sent is None or undrafted(facts.probe):
        return None
    counted = advance(opened(before), after).ledger.usage()
    return _Test(counted, facts.sent, reconcile(counted, facts.sent))


def doubts(facts: Facts) -> frozenset[Reason]:
    """Why the server's speculative counters should not be believed."""
    test = _test(facts)
    return distrust(
        latest_counters(facts),
        build_number=_build_number(facts),
        mismatch_share=mismatch([test.compared] if test and test.compared else []),
    )


def _build_number(facts: Facts) -> int | None:
    return facts.server.props.build_number if facts.server.props is not None else None


_DOUBTS: dict[Reason, tuple[Level, str]] = {
    Reason.ALWAYS_ACCEPTED: ("warning", "has kept each token it ever drafted, by its counters"),
    Reason.ABOVE_ONE: ("problem", "has kept more tokens than it drafted, by its counters"),
    Reason.RISING_POSITIONS: (
        "problem",
        "has kept a draft position more often than the one before, by its counters",
    ),
    Reason.SUM_MISMATCH: (
        "problem",
        "has counts by draft position that do not add up to its accepted tokens",
    ),
}


def _doubted(facts: Facts, test: _Test | None) -> Iterator[Finding]:
    reasons = doubts(facts)
    if test is not None and Reason.PROBE_MISMATCH in reasons:
        text = f"counts wrong: {_kept(test.counted)} by /metrics, {_kept(test.sent)} by its replies"
        yield Finding("server", "problem", text, _OTHER_BUILD)
    known = known_build(_build_number(facts))
    if known is not None and Reason.KNOWN_BUILD in reasons:
        text = f"is of a build that may miscount: {known.fault} ({known.reference})"
        yield Finding("server", "warning", text, _OTHER_BUILD)
    for reason, (level, text) in _DOUBTS.items():
        if reason in reasons:
            yield Finding("server", level, text, _OTHER_BUILD)


def _kept(usage: Usage) -> str:
    accepted, drafted = usage.accepted_tokens or Amount(0), usage.draft_tokens or Amount(0)
    return f"{accepted.value:g} of {drafted.value:g} kept"
