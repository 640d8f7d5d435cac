"""The board: the one mutable object, latest values and windows for each server.

Tasks write facts onto it (a scrape, a probe begun, a probe ended); readers take a frozen
``snapshot``. What can be computed from facts is computed by pure functions, once per fact.
What probes say together is in a part of its own, ``boardprobes``.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from mtpmon.boardprobes import ProbeBoard
from mtpmon.derive import (
    Ledger,
    advance,
    difference,
    has_traffic,
    nothing,
    opened,
    risen,
    settled,
    total,
    without,
)
from mtpmon.model import (
    Counters,
    Identity,
    Outcome,
    ProbeOutcome,
    ProbeResult,
    Props,
    Scrape,
    Usage,
)
from mtpmon.record import Event, EventKind, HistoryFigures, Mark, Rollup, changes, rollup
from mtpmon.request import Request, identity_of
from mtpmon.shift.server import (
    Change,
    ShiftRules,
    Shifts,
    asked,
    happened,
    looked,
)
from mtpmon.shift.words import in_words
from mtpmon.snapshot import ServerSnapshot, Snapshot, Source, deciding
from mtpmon.trend import Trend, TrendPoint, extended
from mtpmon.trust import Reconciliation, distrust, mismatch, reconcile
from mtpmon.window import Evidence, History, Sample, TrafficFigures, figures
from mtpmon.worth import Paying, WorthRules, judge, live_design_effect

RECONCILIATIONS_KEPT = 50
SETTLING_SECONDS = 5.0  # how long a request of ours that was cut off may stay uncounted


class BoardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the board needs to know of the configuration."""

    windows_seconds: tuple[float, ...]
    stale_after_seconds: float
    evidence: Evidence
    rolling_probes: int
    worth: WorthRules = WorthRules()
    shift: ShiftRules = ShiftRules()
    probe_timeout_seconds: float


class ServerBoard:
    """One server's facts. Only the event loop's tasks touch it.

    Args:
        name: the server's.
        settings: what the board needs of the configuration.
        probed: whether it is probed.
        paired: whether it has a target-only twin.
        note: told of each probe that ran and each change, for the history.
    """

    def __init__(
        self,
        name: str,
        settings: BoardSettings,
        *,
        probed: bool = True,
        paired: bool = False,
        note: Callable[[ProbeResult | Event], None] = lambda _: None,
    ) -> None:
        self.name = name
        self._note = note
        self._settings = settings
        self._probed = probed
        self._paired = paired
        self._last: Scrape | None = None
        self._last_good: Scrape | None = None
        self._props: Props | None = None
        self._state_since: float | None = None
        self._scrapes: Counter[Outcome] = Counter()
        self._bad_lines = 0
        self._contradictions = 0
        self._ledger: Ledger | None = None
        self._own = nothing()
        self._uncounted = nothing()
        self._cut = self._cut_blindly = False
        self._settling_since: float | None = None
        self._live: Usage | None = None
        self._mark: Mark | None = None
        self._rolled_up: Mark | None = None
        self._history = History(keep_seconds=max(settings.windows_seconds))
        self._windows: dict[str, dict[float, TrafficFigures]] = {}
        self._waiting_since: float | None = None
        self._reconciled: deque[Reconciliation] = deque(maxlen=RECONCILIATIONS_KEPT)
        self._in_flight = 0
        self._probe_events = 0
        self._probes = ProbeBoard(
            kept=settings.rolling_probes,
            confidence=settings.evidence.confidence,
            rules=settings.worth,
        )
        self._paying = Paying()
        self._process_since = -math.inf
        self._trend = Trend()
        self._shifts = Shifts()
        self._shift_news: list[Change] = []

    # --- probes -------------------------------------------------------------------------

    def probe_request_began(self) -> None:
        """A request of ours is about to reach the server."""
        self._in_flight += 1
        self._probe_events += 1

    def probe_request_ended(self, usage: Usage) -> None:
        """It is over, and this is what it put into the server's counters."""
        self._in_flight -= 1
        self._probe_events += 1
        self._own = total(self._own, usage)
        tokens = usage.generated_tokens
        if tokens is not None and tokens.half_width:  # cut off: the server goes on for a little
            self._cut = True
            self._cut_blindly |= not tokens.value

    @property
    def own_tokens(self) -> int:
        """Tokens our requests have made the server generate."""
        return int(_generated(self._own))

    def own_requests(self) -> tuple[int, int]:
        """Requests of ours in flight, and a number that changes with each begin and end."""
        return self._in_flight, self._probe_events

    def overlap_mark(self) -> int | None:
        """Before and after a scrape: equal and not ``None`` if no request of ours overlapped."""
        return None if self._in_flight else self._probe_events

    def probed(self, result: ProbeResult) -> None:
        """A probe is over, or could not run."""
        result = msgspec.structs.replace(result, identity=self._identity())
        if result.prompt_id:  # else it was skipped before there was a prompt
            self._note(result)
        self._probes.ended(result)
        if result.outcome is ProbeOutcome.COMPLETED:
            self._watch(asked(self._shifts, result, self._settings.shift))

    def _identity(self) -> Identity:
        """What measurements of the server hold for."""
        ledger = self._ledger
        return identity_of(self._props, ledger.start_token if ledger is not None else None)

    def restore(self, results: Iterable[ProbeResult]) -> None:
        """Take up probes of before mtpmon started: in rolling figures, not in totals.

        Args:
            results: completed ones and failures, oldest first.
        """
        self._probes.restore(results, self._identity())

    def captures_checked(self, usable: Mapping[str, bool], plain: Sequence[Request] = ()) -> None:
        """Which captures fit the server as it is now.

        Args:
            usable: by use; nothing is known of others.
            plain: requests captured while it did not draft.
        """
        self._probes.captures_checked(usable, plain)

    @property
    def results(self) -> Sequence[ProbeResult]:
        """Completed probes, oldest first, as many as rolling figures hold."""
        return self._probes.results

    @property
    def failures(self) -> Sequence[ProbeResult]:
        """Probes that went wrong; kept apart, so that good ones do not push them out."""
        return self._probes.failures

    # --- scrapes ------------------------------------------------------------------------

    @property
    def last_scrape(self) -> Scrape | None:
        return self._last

    @property
    def restarts(self) -> int:
        """How often the server has been seen to restart."""
        return self._ledger.restarts if self._ledger is not None else 0

    @property
    def settling(self) -> bool:
        """Whether a request of ours that was cut off may still be running on the server."""
        return self._cut

    @property
    def moved(self) -> bool:
        """Whether a user's request had ended just before the latest usable scrape."""
        return bool(len(self._history)) and self._history.samples[-1].moved

    def scraped(self, scrape: Scrape) -> None:
        """Take in one look at the server."""
        for event in changes(self.name, self._last, self._props, scrape):
            self._happened(event)
        if self._last is None or self._last.state is not scrape.state:
            self._state_since = scrape.unix_seconds
        self._last = scrape
        self._scrapes[scrape.outcome] += 1
        self._props = scrape.props or self._props
        if scrape.outcome is Outcome.STALLED and self._waiting_since is None:
            self._waiting_since = scrape.monotonic_seconds
        counters = scrape.counters
        if counters is None:
            self._probes.look_for_change(self._identity(), scrape.unix_seconds)
            return
        self._last_good = scrape
        self._bad_lines += counters.bad_lines
        if scrape.overlapped:
            return  # the counters may or may not hold our own request's tokens
        if self._ledger is None:
            self._ledger = opened(counters)
        else:
            step = advance(self._ledger, counters)
            self._ledger = step.ledger
            if step.held:
                self._contradictions += 1
                return
            if step.restarted:
                self._process_since = scrape.monotonic_seconds
                self._reconciled.clear()
                self._forget_uncounted()
                self._happened(
                    Event(
                        server=self.name,
                        unix_seconds=scrape.unix_seconds,
                        kind=EventKind.RESTART,
                    )
                )
        server, cut = self._ledger.usage(), self._cut
        if not cut or self._settle(scrape, counters, server):
            self._add_sample(scrape, counters, server, reconcilable=not cut)

    def _happened(self, event: Event) -> None:
        self._note(event)
        self._watch(happened(self._shifts, event))

    def _watch(self, shifts: Shifts) -> None:
        """Take over what is known of changes, and note those that began or ended."""
        self._shifts = shifts
        for change in shifts.news:
            self._shift_news.append(change)
            self._note(
                Event(
                    server=self.name,
                    unix_seconds=change.detected_unix_seconds,
                    kind=EventKind.SHIFT,
                    before=f"{change.before:.4g}",
                    after=f"{change.after:.4g}",
                    detail=in_words(change),
                )
            )

    @property
    def _counted(self) -> Usage:
        """What we asked of the server, as far as its counters hold it."""
        return difference(self._own, self._uncounted)

    def _forget_uncounted(self) -> None:
        """A process died: what we had asked since the last look at it was not seen counted."""
        since = difference(self._counted, self._history.samples[-1].own)
        self._uncounted = total(self._uncounted, since)
        self._is_settled()

    def _settle(self, scrape: Scrape, counters: Counters, server: Usage) -> bool:
        """Whether a request of ours that was cut off has been counted; then its cost is known.

        One that stays uncounted for long is let go.
        """
        before = self._history.samples[-1]
        ours = difference(self._counted, before.own)
        found = settled(
            difference(server, before.server),
            ours,
            at_rest=_at_rest(counters),
            blind=self._cut_blindly,
        )
        # One that had not answered yet shows by the first tokens that are counted.
        unseen = self._cut_blindly and found is not None and _generated(found) <= _generated(ours)
        still_open = found is None or (unseen and not _at_rest(counters))
        if self._settling_since is None:
            self._settling_since = scrape.monotonic_seconds
        waited = scrape.monotonic_seconds - self._settling_since
        if still_open and waited < SETTLING_SECONDS:
            return False
        if found is not None:
            self._own = total(difference(self._own, ours), found)
        self._is_settled()
        return True

    def _is_settled(self) -> None:
        self._cut = self._cut_blindly = False
        self._settling_since = None

    def _add_sample(
        self, scrape: Scrape, counters: Counters, server: Usage, *, reconcilable: bool
    ) -> None:
        now = scrape.monotonic_seconds
        before = self._history.samples[-1] if len(self._history) else None
        own, moved = self._counted, False
        if before is not None:
            grown, ours = difference(server, before.server), difference(own, before.own)
            moved = has_traffic(without(grown, ours))
            agreement = reconcile(grown, ours) if reconcilable else None
            if agreement is not None:
                self._reconciled.append(agreement)
            seen = before.server.requests + (1 if moved else 0)
            server = msgspec.structs.replace(server, requests=seen)
        at_rest = _at_rest(counters)
        if at_rest:
            self._waiting_since = None
        elif moved or self._waiting_since is None:
            self._waiting_since = now
        self._watch(looked(self._shifts, server, own, scrape.unix_seconds, self._settings.shift))
        self._history.add(
            Sample(monotonic_seconds=now, server=server, own=own, at_rest=at_rest, moved=moved)
        )
        users = without(server, own)
        self._live = users if self._live is None else risen(self._live, users)
        self._mark = Mark(monotonic_seconds=now, unix_seconds=scrape.unix_seconds, live=self._live)
        self._rolled_up = self._rolled_up or self._mark
        self._windows = {
            traffic: {
                width: figures(
                    self._history.samples,
                    live=traffic == "live",
                    width_seconds=width,
                    evidence=self._settings.evidence,
                )
                for width in self._settings.windows_seconds
            }
            for traffic in ("live", "probe")
        }
        self._probes.look_for_change(self._identity(), scrape.unix_seconds)
        widths = self._settings.windows_seconds
        usages = self._usages_of_this_process()
        effect = self._paying.design_effect
        if moved or effect is None:
            effect = live_design_effect(
                self._history.samples, usages[widths[-1]], self._probes.measured.likeness
            )
        self._paying = judge(
            usages.items(),
            self._probes.measured,
            effect=effect,
            deciding_seconds=self._deciding_seconds,
            now=scrape.unix_seconds,
            previous=self._paying,
            rules=self._settings.worth,
        )
        self._trend = extended(self._trend, self._point(scrape.unix_seconds))

    def _usages_of_this_process(self) -> dict[float, Usage | None]:
        """What users' traffic did in each window, as far back as the server is the same process.

        Costs are measured anew after a restart; what an earlier process kept must not be held
        against them, since it may have had another head.
        """
        widths, samples = self._settings.windows_seconds, self._history.samples
        if self._process_since <= samples[0].monotonic_seconds:
            return {width: self._windows["live"][width].usage for width in widths}
        ours = [sample for sample in samples if sample.monotonic_seconds >= self._process_since]
        return {
            width: figures(
                ours, live=True, width_seconds=width, evidence=self._settings.evidence
            ).usage
            for width in widths
        }

    def _point(self, now: float) -> TrendPoint:
        """Where acceptance and breakeven stand now, in the window that verdicts are over."""
        width = self._deciding_seconds
        paid = self._paying.windows.get(width)
        return TrendPoint(
            unix_seconds=now,
            acceptance=self._windows["live"][width].acceptance,
            breakeven=paid.breakeven if paid is not None else None,
        )

    @property
    def _deciding_seconds(self) -> float:
        return deciding(self._settings.windows_seconds)

    # --- reading ------------------------------------------------------------------------

    def shift_news(self) -> tuple[Change, ...]:
        """Changes that began or ended since the last call."""
        news, self._shift_news = tuple(self._shift_news), []
        return news

    def roll_up(self) -> Rollup | None:
        """Users' traffic since the last call; ``None`` without a usable scrape since then."""
        before, self._rolled_up = self._rolled_up, self._mark
        return rollup(self.name, before, self._mark, self._settings.evidence)

    def snapshot(self, *, monotonic_seconds: float) -> ServerSnapshot:
        """All that is known now; figures older than ``stale_after_seconds`` are not."""
        last, good = self._last, self._last_good
        fresh = (
            good is not None
            and monotonic_seconds - good.monotonic_seconds <= self._settings.stale_after_seconds
        )
        stalled = last is not None and last.outcome is Outcome.STALLED
        waiting = None
        if fresh or stalled:
            since = self._waiting_since
            waiting = 0.0 if since is None else monotonic_seconds - since
        counters = good.counters if good is not None and fresh else None
        build_number = self._props.build_number if self._props is not None else None
        off = mismatch(list(self._reconciled))
        return ServerSnapshot(
            name=self.name,
            probed=self._probed,
            paired=self._paired,
            state=last.state if last is not None else None,
            detail=last.detail if last is not None else "not looked at yet",
            since_unix_seconds=self._state_since,
            props=self._props,
            counters=counters,
            scrapes=dict(self._scrapes),
            scrape_duration_seconds=last.duration_seconds if last is not None else None,
            bad_lines=self._bad_lines,
            contradictions=self._contradictions,
            restarts=self.restarts,
            live=self._live,
            own=self._own,
            windows=self._windows if fresh else {},
            waiting_seconds=waiting,
            source=self._source(),
            distrust=distrust(counters, build_number=build_number, mismatch_share=off),
            mismatch=off,
            probe_totals=self._probes.totals(),
            measured=self._probes.measured,
            paying=self._paying if fresh else Paying(),
            trend=self._trend,
            grades=self._probes.grades,
            probe_figures=self._probes.figures,
            probe_timeout_seconds=self._settings.probe_timeout_seconds,
            last_probe=self._probes.last,
            recent_probes=self._probes.recent(),
            probe_succeeded=self._probes.succeeded,
            last_success_unix_seconds=self._probes.last_success_unix_seconds,
            capture_usable=self._probes.capture_usable,
            shifts=self._shifts.figures,
        )

    def _source(self) -> Source | None:
        """Counters where the server has them; else probes that draft; ``None`` if not known."""
        if self._last_good is None or self._last_good.counters is None:
            return None
        if self._last_good.counters.drafts is not None:
            return Source.COUNTERS
        drafted = self._own.draft_tokens
        probes_draft = drafted is not None and drafted.value > 0
        return Source.PROBES if probes_draft else Source.NONE


def _generated(usage: Usage) -> float:
    return usage.generated_tokens.value if usage.generated_tokens is not None else 0.0


def _at_rest(counters: Counters) -> bool:
    return counters.requests_processing == 0 and not counters.requests_deferred


class Board:
    """All servers, in the order of the configuration."""

    def __init__(self, servers: Sequence[ServerBoard], windows_seconds: tuple[float, ...]) -> None:
        self._servers = {server.name: server for server in servers}
        self._windows_seconds = windows_seconds

    def __getitem__(self, name: str) -> ServerBoard:
        return self._servers[name]

    def __iter__(self) -> Iterator[ServerBoard]:
        return iter(self._servers.values())

    def snapshot(
        self,
        *,
        monotonic_seconds: float,
        unix_seconds: float,
        config_reload_successful: bool = True,
        server_files_successful: bool | None = None,
        history: HistoryFigures | None = None,
    ) -> Snapshot:
        return Snapshot(
            config_reload_successful=config_reload_successful,
            server_files_successful=server_files_successful,
            history=history,
            unix_seconds=unix_seconds,
            servers=tuple(server.snapshot(monotonic_seconds=monotonic_seconds) for server in self),
            windows_seconds=self._windows_seconds,
        )
