"""What probes may cost: a share of wall time, tokens an hour, and fewer where users come often."""

from collections import deque

WINDOW_SECONDS = 3600.0
MOST_DOUBLINGS = 3


class Budget:
    """Keeps count of what probes have cost within the last hour.

    Args:
        time_share: of wall time that probes may run, 0 to 1.
        tokens_per_hour: that probes may generate on the watched server.
    """

    def __init__(self, *, time_share: float, tokens_per_hour: int) -> None:
        self._time_share = time_share
        self._tokens_per_hour = tokens_per_hour
        self._spent: deque[tuple[float, float, int]] = deque()
        self._began: float | None = None
        self._doublings = 0

    def spend(self, now: float, *, seconds: float, tokens: int) -> None:
        """A probe that ran for ``seconds`` has ended."""
        if self._began is None:
            self._began = now - seconds
        self._spent.append((now, seconds, tokens))

    def allows(self, now: float) -> bool:
        """Whether another probe may begin.

        The share is of the last hour, or of the time since the first probe and at least a
        minute: so that the first probes need not wait, and a slow server's do.
        """
        while self._spent and now - self._spent[0][0] > WINDOW_SECONDS:
            self._spent.popleft()
        if self._began is None:
            return True
        span = min(max(now - self._began, 60.0), WINDOW_SECONDS)
        seconds = sum(spent for _, spent, _ in self._spent)
        tokens = sum(used for _, _, used in self._spent)
        return seconds <= self._time_share * span and tokens < self._tokens_per_hour

    def gave_way(self) -> None:
        """A probe was given up for a user: the next ones come less often."""
        self._doublings = min(self._doublings + 1, MOST_DOUBLINGS)

    def completed(self) -> None:
        """A probe ran to its end undisturbed."""
        self._doublings = max(self._doublings - 1, 0)

    @property
    def patience(self) -> int:
        """How many intervals to leave between probes, for want of quiet."""
        return int(2**self._doublings)
