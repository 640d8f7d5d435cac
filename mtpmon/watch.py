"""Watching one server: when to scrape it, when to probe it, and what to write down."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import msgspec
import structlog

from mtpmon.board import ServerBoard
from mtpmon.budget import Budget
from mtpmon.capture import Usable, holds
from mtpmon.captured import Captures
from mtpmon.evaluate import Pair, evaluate
from mtpmon.forced import drawn_length
from mtpmon.guard import Preempted, yielding
from mtpmon.model import Baseline, Outcome, ProbeOutcome, ProbeResult, Props, Scrape, State, Variant
from mtpmon.probe import Arms, Books, ProbeFailed, ProbeSettings, probe
from mtpmon.rest import Rest
from mtpmon.scrape import scrape
from mtpmon.shift.words import in_words
from mtpmon.suite import DEFAULT_VARIANT, Case, Prompt, Turns, sampling_seed
from mtpmon.validate import validated

SETTLING_LOOKS_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Clock:
    """The two clocks: monotonic seconds for intervals, Unix seconds for timestamps."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When things happen, in seconds."""

    scrape_interval_seconds: float
    scrape_timeout_seconds: float
    probe_interval_seconds: float
    probe_timeout_seconds: float
    idle_for_seconds: float
    sleep_idle_seconds: float | None = None


@dataclass(slots=True, kw_only=True)
class Watcher:
    """Scrapes one server for ever, and probes it when it is idle.

    Args:
        arms: the server, and its target-only twin if there is one.
        board: where facts go.
        cases: endless; what to probe with. ``None``: this server is not probed.
        settings: how to probe.
        timing: when.
        clock: the time.
        budget: what probes may cost; anything, by default.
        captures: what it, or another, said once, to compare with.
        model: which model of a router to watch.
    """

    arms: Arms
    board: ServerBoard
    cases: Iterator[Case] | None
    settings: ProbeSettings
    timing: Timing
    clock: Clock
    budget: Budget = field(default_factory=lambda: Budget(time_share=1, tokens_per_hour=10**9))
    captures: Captures | None = None
    model: str | None = None
    _quiet_since: float | None = field(default=None, init=False)
    _served_since_probe: bool = field(default=False, init=False)
    _probes: int = field(default=0, init=False)
    _switch: Baseline = field(default=Baseline.SINGLE, init=False)
    _switch_tried: int | None = field(default=None, init=False)
    _rest: Rest = field(init=False)
    _logged: Outcome | State | None = field(default=None, init=False)
    _look_now: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def __post_init__(self) -> None:
        self._rest = Rest(self.timing.sleep_idle_seconds)

    @property
    def _log(self) -> structlog.typing.FilteringBoundLogger:
        log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        return log.bind(server=self.board.name)

    # --- scraping -----------------------------------------------------------------------

    async def scrape_forever(self, *, offset_seconds: float = 0.0) -> None:
        """Look at the server once every interval, the first time after ``offset_seconds``.

        The offset keeps many servers from being looked at in the same moment. After a
        probe there is an extra look, since those that overlapped it could not be used, and
        some more after one that was cut off, until the server has counted it.
        """
        interval = self.timing.scrape_interval_seconds
        due = self.clock.monotonic() + offset_seconds
        await asyncio.sleep(offset_seconds)
        while True:
            self._look_now.clear()  # before the look: a probe may end while it is under way
            await self.look()
            due = max(due + interval, self.clock.monotonic())
            pause = due - self.clock.monotonic()
            if self.board.settling:
                pause = min(pause, SETTLING_LOOKS_SECONDS)
            try:
                async with asyncio.timeout(pause):
                    await self._look_now.wait()
            except TimeoutError:
                if self.clock.monotonic() >= due:
                    continue
            due -= interval  # an extra look does not move the schedule

    async def look(self, *, with_metrics: bool = False) -> Scrape:
        """One look at the server, written on the board.

        Args:
            with_metrics: also when they would better be left alone to let the server sleep.
        """
        async with self._looking:  # or an older answer could be written after a newer one
            return await self._look(with_metrics=with_metrics)

    async def _look(self, *, with_metrics: bool) -> Scrape:
        mark = self.board.overlap_mark()
        resting = self._quiet_since is not None and self._rest.lasts(self.clock.monotonic())
        found = await scrape(
            self.arms.speculating,
            timeout_seconds=self.timing.scrape_timeout_seconds,
            monotonic=self.clock.monotonic,
            wall=self.clock.wall,
            model=self.model,
            with_metrics=with_metrics or not resting,
            overlaps=lambda: mark is None or self.board.overlap_mark() != mark,
        )
        self.board.scraped(found)
        self._rest.seen(found)
        self._note_quiet(found)
        self._log_change(found)
        self._log_shifts()
        answering = found.outcome in (Outcome.OK, Outcome.METRICS_DISABLED)
        if answering and await self.check_captures(found.props):
            self._log_captures()
        return found

    async def check_captures(self, props: Props | None) -> bool:
        """Judge whether the captures fit the server, once for each of its processes.

        Args:
            props: what it has just said of itself; it must be ready.

        Returns:
            Whether there is news.
        """
        if self.captures is None:
            return False
        news = await self.captures.check(
            self.arms.speculating,
            props,
            restarts=self.board.restarts,
            model=self.model,
            timeout_seconds=self.timing.scrape_timeout_seconds,
        )
        if news:
            self.board.captures_checked(
                {use.value: not why for use, why in self.captures.reasons.items()},
                self.captures.plain_requests(),
            )
        return news

    def _log_captures(self) -> None:
        reasons = self.captures.reasons if self.captures is not None else {}
        for use, why in reasons.items():
            if why:
                self._log.warning("capture_refused", use=use.value, detail="; ".join(why))
            else:
                self._log.info("capture_usable", use=use.value)

    def _note_quiet(self, found: Scrape) -> None:
        """Remember since when no request but ours has been seen on the server."""
        counters = found.counters
        if found.overlapped or self.board.settling or found.outcome is Outcome.PROPS_ONLY:
            return
        if counters is None or counters.requests_processing != 0 or counters.requests_deferred:
            self._quiet_since = None
            self._served_since_probe |= counters is not None
            self._rest.busy()
        elif self._quiet_since is None or self.board.moved:
            self._quiet_since = found.monotonic_seconds
            if self.board.moved:
                self._served_since_probe = True
                self._rest.busy()

    def _log_change(self, found: Scrape) -> None:
        """One line for a problem, not one for each scrape that has it."""
        kind = found.state if found.state is State.READY else found.outcome
        if kind == self._logged:
            return
        self._logged = kind
        if found.state is State.READY:
            props = found.props
            self._log.info(
                "server_ready",
                build=props.build if props is not None else None,
                model=props.model if props is not None else None,
            )
        elif found.state in (State.LOADING, State.SLEEPING):
            self._log.info("server_" + found.outcome.value, detail=found.detail)
        else:
            self._log.warning("scrape_failed", outcome=found.outcome.value, detail=found.detail)

    def _log_shifts(self) -> None:
        """One line for each change of a figure, and one when it is over."""
        for change in self.board.shift_news():
            log = self._log.bind(
                figure=change.figure.value,
                direction=change.direction.value,
                before=round(change.before, 4),
                after=round(change.after, 4),
                detail=in_words(change),
            )
            if change.ending is None:
                log.warning("shift_found")
            else:
                log.info("shift_ended", ending=change.ending.value)

    # --- probing ------------------------------------------------------------------------

    async def probe_forever(self) -> None:
        """Probe once every interval, if the server is idle then."""
        if self.cases is None:
            return
        interval = self.timing.probe_interval_seconds
        turns = Turns()
        while True:
            began = self.clock.monotonic()
            refusal = await self._wait_for_idle(began + interval)
            if refusal is not None:
                self._skip(refusal)
                continue
            began = self.clock.monotonic()
            case = next(self.cases)
            turn = turns.next(case)
            # Every second greedy answer has a drawn length; the arms change places every two,
            # so that both lengths are asked for in both orders.
            drawn = turn % 2 == 1 and case.variant.greedy
            length = drawn_length(self.settings.tokens, seed=self._probes) if drawn else None
            tokens_before = self.board.own_tokens
            result = await self.probe_once(
                case.prompt,
                variant=case.variant,
                baseline_first=turn // 2 % 2 == 1,
                tokens=length,
            )
            self._served_since_probe = False
            self.board.probed(result)
            self._log_probe(result)
            self._log_shifts()
            self._look_now.set()
            now = self.clock.monotonic()
            self.budget.spend(
                now, seconds=now - began, tokens=self.board.own_tokens - tokens_before
            )
            if result.outcome is ProbeOutcome.PREEMPTED:
                self.budget.gave_way()
            else:
                self.budget.completed()
            await asyncio.sleep(max(began + self.budget.patience * interval - now, 0.0))

    async def _wait_for_idle(self, deadline: float) -> ProbeOutcome | None:
        """Wait until the server may be probed; at ``deadline``, why it still may not.

        The last scrape may be an interval old, so there is a fresh look before each yes.
        """
        step = min(self.timing.scrape_interval_seconds, 1.0)
        while True:
            refusal = self._refusal()
            if refusal is None:
                await self.look(with_metrics=True)
                refusal = self._refusal()
            if refusal is None or self.clock.monotonic() >= deadline:
                return refusal
            await asyncio.sleep(step)

    def _refusal(self) -> ProbeOutcome | None:
        """Why the server must not be probed now, or ``None``."""
        last = self.board.last_scrape
        if last is None or last.state not in (State.READY, State.SLEEPING):
            return ProbeOutcome.SKIPPED_NOT_READY
        if last.state is State.SLEEPING:
            return ProbeOutcome.SKIPPED_SLEEPING
        if not self.budget.allows(self.clock.monotonic()):
            return ProbeOutcome.SKIPPED_BUDGET
        if self._rest.possible and not self._served_since_probe:
            return ProbeOutcome.SKIPPED_IDLE  # or our probes alone would keep it awake
        quiet_since = self._quiet_since
        if quiet_since is None:
            return ProbeOutcome.SKIPPED_BUSY
        quiet_seconds = self.clock.monotonic() - quiet_since
        return ProbeOutcome.SKIPPED_BUSY if quiet_seconds < self.timing.idle_for_seconds else None

    def _skip(self, outcome: ProbeOutcome) -> None:
        self.board.probed(
            ProbeResult(
                server=self.board.name,
                prompt_id="",
                task="",
                unix_seconds=self.clock.wall(),
                duration_seconds=0.0,
                outcome=outcome,
            )
        )
        self._log.debug("probe_skipped", outcome=outcome.value)

    async def probe_once(
        self,
        prompt: Prompt,
        *,
        variant: Variant = DEFAULT_VARIANT,
        baseline_first: bool,
        tokens: int | None = None,
    ) -> ProbeResult:
        """Run one probe within its time limit; whatever goes wrong becomes its outcome.

        Args:
            prompt: what to ask.
            variant: in which way.
            baseline_first: which arm begins.
            tokens: to generate, if not as many as the settings say.
        """
        seed = self.settings.seed
        settings = replace(
            self.settings,
            tokens=tokens or self.settings.tokens,
            seed=seed if variant.greedy else sampling_seed(seed, self._probes),
            variant=variant,
        )
        began, started = self.clock.monotonic(), self.clock.wall()
        self._probes += 1
        captures = self.captures.usable if self.captures is not None else Usable()
        baseline = self._baseline(prompt, captures)
        pair: Pair | None = None
        outcome, detail = ProbeOutcome.COMPLETED, ""
        try:
            async with asyncio.timeout(self.timing.probe_timeout_seconds):
                running = probe(
                    self.arms,
                    prompt,
                    settings,
                    baseline=baseline,
                    baseline_first=baseline_first,
                    forced_seed=self._probes,
                    books=Books(
                        began=self.board.probe_request_began,
                        ended=self.board.probe_request_ended,
                        clock=self.clock.monotonic,
                    ),
                    captures=captures,
                )
                pair = await yielding(
                    running,
                    self.arms.speculating,
                    own_requests=self.board.own_requests,
                    model=self.model,
                )
        except Preempted:
            outcome = ProbeOutcome.PREEMPTED
            detail = "given up for somebody else's request"
        except TimeoutError:
            outcome = ProbeOutcome.TIMEOUT
            detail = (
                f"not done within probe.timeout, {self.timing.probe_timeout_seconds:g} s:"
                " raise it or lower probe.tokens"
            )
        except ProbeFailed as failed:
            outcome, detail = failed.outcome, failed.detail
        duration = self.clock.monotonic() - began
        if pair is not None:
            self._learn_switch(baseline, pair.baseline)
            found = evaluate(
                pair,
                prompt,
                variant=variant,
                server=self.board.name,
                unix_seconds=started,
                duration_seconds=duration,
            )
            return validated(found, tokens=settings.tokens)
        return ProbeResult(
            server=self.board.name,
            prompt_id=prompt.id,
            task=prompt.task,
            variant=variant,
            unix_seconds=started,
            duration_seconds=duration,
            outcome=outcome,
            detail=detail,
        )

    def _baseline(self, prompt: Prompt, captures: Usable) -> Baseline:
        """The best way to a baseline: a second server, a capture, a switch that may work."""
        if self.arms.target_only is not None:
            return Baseline.PAIR
        if captures.baseline is not None and holds(captures.baseline, prompt):
            return Baseline.CAPTURE
        if self._switch_tried == self.board.restarts:
            return self._switch
        return Baseline.SWITCH

    def _learn_switch(self, tried: Baseline, found: Baseline | None) -> None:
        """Remember, for this process of the server, whether its switch works."""
        if tried is not Baseline.CAPTURE and found is not None:
            self._switch, self._switch_tried = found, self.board.restarts

    def _log_probe(self, result: ProbeResult) -> None:
        log = self._log.bind(
            prompt=result.prompt_id,
            task=result.task,
            seconds=round(result.duration_seconds, 3),
        )
        if result.variant != DEFAULT_VARIANT:
            log = log.bind(**msgspec.structs.asdict(result.variant))
        if result.invalid:
            log = log.bind(invalid=list(result.invalid))
        if result.outcome is ProbeOutcome.PREEMPTED:
            log.info("probe_preempted")
            return
        if result.outcome is not ProbeOutcome.COMPLETED:
            log.warning("probe_failed", outcome=result.outcome.value, detail=result.detail)
            return
        ours = result.speculating
        drafted = ours.timings.draft_tokens if ours is not None else None
        log.info(
            "probe_completed",
            drafted=drafted,
            accepted=ours.timings.accepted_tokens if ours is not None else None,
            exact=result.comparison.exact if result.comparison is not None else None,
        )
