"""Letting a server fall asleep although we watch it.

llama-server can unload its model when idle. On many builds a read of ``/metrics`` counts as
use: polled every few seconds, the server would never sleep. ``/props`` does not count, but
does not tell whether anything was served either. So once an idle server may be on its way to
sleep, its metrics are left alone for as long as it would need, and only then read once.
"""

from mtpmon.model import Outcome, Scrape, State

# From here on reading the metrics was seen not to reset the idle timer.
FIRST_INDIFFERENT_BUILD = 11434
# Where the server's idle time is not configured it is searched for, in these bounds.
FIRST_GUESS_SECONDS, LAST_GUESS_SECONDS = 60.0, 3600.0


class Rest:
    """When to leave a server's metrics alone. Fed with every look at it.

    Args:
        sleep_idle_seconds: the server's own ``--sleep-idle-seconds``, if it is known.
    """

    def __init__(self, sleep_idle_seconds: float | None) -> None:
        self._known_seconds = sleep_idle_seconds
        self._guess_seconds = FIRST_GUESS_SECONDS
        self._has_slept = False
        self._read_at: float | None = None
        self._resting = False
        self._indifferent = False

    @property
    def possible(self) -> bool:
        """Whether the server is one that sleeps: it is configured so, or was seen to."""
        return self._known_seconds is not None or self._has_slept

    def seen(self, look: Scrape) -> None:
        """Take in one look."""
        number = look.props.build_number if look.props is not None else None
        self._indifferent = number is not None and number >= FIRST_INDIFFERENT_BUILD
        if look.state is State.SLEEPING:
            # A model that a router has unloaded is not one that sleeps by itself.
            self._has_slept |= look.outcome is Outcome.SLEEPING
            self._guess_seconds = FIRST_GUESS_SECONDS
            self._read_at = None
        elif look.outcome is Outcome.OK:
            if self._resting:  # it stayed awake for the whole time: allow it more
                self._guess_seconds = min(2 * self._guess_seconds, LAST_GUESS_SECONDS)
            self._resting = False
            self._read_at = look.monotonic_seconds

    def busy(self) -> None:
        """Something was served, so the wait begins anew."""
        self._guess_seconds = FIRST_GUESS_SECONDS

    def lasts(self, now: float) -> bool:
        """Whether an idle server's metrics should still be left alone."""
        if not self.possible or self._indifferent or self._read_at is None:
            return False
        lasts = now - self._read_at < self._wait_seconds()
        self._resting = self._resting or lasts
        return lasts

    def _wait_seconds(self) -> float:
        if self._known_seconds is not None:
            # The server's timer has started with our read, and it looks at it now and then.
            return 1.1 * self._known_seconds + 2.0
        return self._guess_seconds
