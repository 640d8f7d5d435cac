"""The board's part about probes: the latest of them, and what they say together."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from mtpmon.compare import DivergenceKind, divergence_kind
from mtpmon.cost import PlainStep, plain_step
from mtpmon.model import NOT_RUN, Identity, ProbeOutcome, ProbeResult
from mtpmon.request import Request, changed
from mtpmon.rolling import ProbeFigures, divergences_of, matrix, rolling
from mtpmon.snapshot import DIVERGENCE_BUCKETS, ProbeTotals
from mtpmon.worth import Measured, WorthRules, graded, measure

FAILURES_KEPT = 20
RECENT_PROBES = 5


class ProbeBoard:
    """What a server's board holds of its probes. Only ``ServerBoard`` touches it.

    Args:
        kept: how many completed probes rolling figures are of.
        confidence: of the bounds of rolling figures.
        rules: how evidence of cost becomes an answer.

    Attributes:
        figures: rolling ones, of the server as it is now.
        measured: what probes say of the cost of steps.
        grades: the viability matrix, by cell.
        succeeded: whether the last probe that ran completed; ``None`` before the first.
        last_success_unix_seconds: when the last completed one began.
        capture_usable: by use, whether the capture configured for it fits the server.
    """

    def __init__(self, *, kept: int, confidence: float, rules: WorthRules) -> None:
        self._confidence = confidence
        self._rules = rules
        self.figures = ProbeFigures()
        self.measured = Measured()
        self.grades = graded({}, rules.grades)
        self.succeeded: bool | None = None
        self.last_success_unix_seconds: float | None = None
        self.capture_usable: Mapping[str, bool] = {}
        self._results: deque[ProbeResult] = deque(maxlen=kept)
        self._failures: deque[ProbeResult] = deque(maxlen=FAILURES_KEPT)
        self._evidence: deque[ProbeResult] = deque(maxlen=kept)
        self._measured_of = self._rolled_for = Identity()
        self._captured_step: PlainStep | None = None
        self._outcomes: Counter[ProbeOutcome] = Counter()
        self._comparable = self._missing = self._diverged = self._clamped = 0
        self._divergence_counts = [0] * (len(DIVERGENCE_BUCKETS) + 1)
        self._divergence_sum = 0.0
        self._divergence_kinds: Counter[DivergenceKind | None] = Counter()
        self._invalid: Counter[str] = Counter()

    def ended(self, result: ProbeResult) -> None:
        """A probe of the server as it is now is over, or could not run."""
        self._outcomes[result.outcome] += 1
        if result.outcome in NOT_RUN:
            return
        self._invalid.update(result.invalid)
        self._keep(result)
        if result.outcome is not ProbeOutcome.COMPLETED:
            return
        self._roll(result.identity)
        self._measure(result.identity, result.unix_seconds)
        self._count(result)

    def _count(self, result: ProbeResult) -> None:
        """Add a completed probe to the totals."""
        if result.positions is not None:
            self._comparable += result.positions.comparable
            self._missing += result.positions.missing
            self._diverged += result.positions.diverged
        self._clamped += sum(d.clamped for d in divergences_of(result))
        if result.comparison is not None and result.comparison.first_divergence is not None:
            self._divergence_kinds[divergence_kind(result.comparison)] += 1
            place = result.comparison.first_divergence
            bucket = sum(place > bound for bound in DIVERGENCE_BUCKETS)
            self._divergence_counts[bucket] += 1
            self._divergence_sum += place

    def look_for_change(self, identity: Identity, now: float) -> None:
        """Let go of what an earlier process or build of the server said or cost."""
        if self._results and self._rolled_for != identity:
            self._roll(identity)
        if self._evidence and self._measured_of != identity:
            self._measure(identity, now)

    def restore(self, results: Iterable[ProbeResult], identity: Identity) -> None:
        """Take up probes of before mtpmon started: in rolling figures, not in totals.

        Args:
            results: completed ones and failures, oldest first.
            identity: of the server now.
        """
        for result in results:
            self._keep(result, lately=False)
        self._roll(identity)

    def captures_checked(self, usable: Mapping[str, bool], plain: Sequence[Request]) -> None:
        """Which captures fit the server as it is now.

        Args:
            usable: by use; nothing is known of others.
            plain: requests captured while it did not draft.
        """
        self.capture_usable = dict(usable)
        self._captured_step = plain_step(plain, confidence=self._rules.confidence)

    @property
    def results(self) -> Sequence[ProbeResult]:
        """Completed probes, oldest first, as many as rolling figures hold."""
        return tuple(self._results)

    @property
    def failures(self) -> Sequence[ProbeResult]:
        """Probes that went wrong; kept apart, so that good ones do not push them out."""
        return tuple(self._failures)

    @property
    def last(self) -> ProbeResult | None:
        """The latest completed one."""
        return self._results[-1] if self._results else None

    def recent(self) -> tuple[ProbeResult, ...]:
        """The latest that ran, however they ended, latest first."""
        latest = (
            *islice(reversed(self._results), RECENT_PROBES),
            *islice(reversed(self._failures), RECENT_PROBES),
        )
        ordered = sorted(latest, key=lambda result: result.unix_seconds, reverse=True)
        return tuple(ordered[:RECENT_PROBES])

    def totals(self) -> ProbeTotals:
        """Counts over all of them since mtpmon started."""
        return ProbeTotals(
            outcomes=dict(self._outcomes),
            comparable=self._comparable,
            missing=self._missing,
            diverged=self._diverged,
            clamped=self._clamped,
            divergence_positions=tuple(self._divergence_counts),
            divergence_position_sum=self._divergence_sum,
            divergence_kinds={kind: self._divergence_kinds[kind] for kind in DivergenceKind},
            invalid=dict(self._invalid),
        )

    def _keep(self, result: ProbeResult, *, lately: bool = True) -> None:
        """Keep a probe for what it adds to figures.

        What it says of the cost of steps holds for one process of the server: if it ran
        before mtpmon started, only a start token tells that this is still the same one.
        """
        self.succeeded = result.outcome is ProbeOutcome.COMPLETED
        if not self.succeeded:
            self._failures.append(result)
            return
        self._results.append(result)
        self.last_success_unix_seconds = result.unix_seconds
        known = lately or result.identity.start_token is not None
        if known and result.variant.depth_tokens == 0:  # deep contexts cost otherwise
            self._evidence.append(result)

    def _roll(self, identity: Identity) -> None:
        """Rolling figures of this process: what two builds, or two settings, said is not mixed."""
        self._rolled_for = identity
        self.figures = rolling(_of(self._results, identity), confidence=self._confidence)

    def _measure(self, identity: Identity, now: float) -> None:
        """Work out what probes say of the cost of steps, for the server as it is now."""
        self._measured_of = identity
        self.measured = measure(
            self._evidence,
            identity=identity,
            now=now,
            previous=self.measured,
            rules=self._rules,
            capture=self._captured_step,
        )
        cells = matrix(_of(self._evidence, identity), confidence=self._confidence)
        speedups = {cell: found.speedup for cell, found in cells.items()}
        self.grades = graded(speedups, self._rules.grades)


def _of(results: Iterable[ProbeResult], identity: Identity) -> tuple[ProbeResult, ...]:
    """Those of the server as it is now, as far as is known."""
    return tuple(result for result in results if changed(result.identity, identity) is None)
