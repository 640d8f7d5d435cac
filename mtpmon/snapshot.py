"""What readers of the board take: all that is known at one moment, as frozen values."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from mtpmon.compare import DivergenceKind
from mtpmon.grade import Graded
from mtpmon.model import Counters, Outcome, ProbeOutcome, ProbeResult, Props, State, Usage
from mtpmon.record import HistoryFigures
from mtpmon.rolling import ProbeFigures
from mtpmon.shift.server import ShiftFigures
from mtpmon.trend import Trend
from mtpmon.trust import Reason
from mtpmon.window import TrafficFigures
from mtpmon.worth import Cell, Measured, Paying

DIVERGENCE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Source(StrEnum):
    """Where a server's acceptance can come from."""

    COUNTERS = "counters"
    PROBES = "probes"
    NONE = "none"


class ProbeTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over all probes of a server since mtpmon started."""

    outcomes: Mapping[ProbeOutcome, int]
    comparable: int
    missing: int
    diverged: int
    clamped: int
    divergence_positions: tuple[int, ...]
    divergence_position_sum: float
    divergence_kinds: Mapping[DivergenceKind, int] = {}
    invalid: Mapping[str, int] = {}


class ServerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one server at one moment. ``None``: not known.

    ``live`` and ``own`` are totals since mtpmon started. ``windows`` is by traffic
    (``live``, ``probe``), then by width in seconds. ``waiting_seconds``: how long requests
    have been running without one ending, so that the counters could not move. ``source``:
    where acceptance can come from. ``mismatch``: share of drafted tokens by which the
    counters disagree with what probes reported. ``capture_usable``: by use, whether the
    capture configured for it fits the server. ``recent_probes``: the latest few that ran,
    latest first.
    """

    name: str
    probed: bool
    paired: bool
    state: State | None
    detail: str
    since_unix_seconds: float | None
    props: Props | None
    counters: Counters | None
    scrapes: Mapping[Outcome, int]
    scrape_duration_seconds: float | None
    bad_lines: int
    contradictions: int
    restarts: int
    live: Usage | None
    own: Usage
    windows: Mapping[str, Mapping[float, TrafficFigures]]
    waiting_seconds: float | None
    source: Source | None = None
    distrust: frozenset[Reason] = frozenset()
    mismatch: float | None = None
    measured: Measured = Measured()
    paying: Paying = Paying()
    trend: Trend = Trend()
    grades: Mapping[Cell, Graded] = {}
    probe_totals: ProbeTotals
    probe_figures: ProbeFigures
    probe_timeout_seconds: float
    last_probe: ProbeResult | None
    recent_probes: tuple[ProbeResult, ...] = ()
    probe_succeeded: bool | None
    last_success_unix_seconds: float | None
    capture_usable: Mapping[str, bool] = {}
    shifts: ShiftFigures = ShiftFigures()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole board at one moment."""

    unix_seconds: float
    servers: tuple[ServerSnapshot, ...]
    windows_seconds: tuple[float, ...]
    config_reload_successful: bool = True
    server_files_successful: bool | None = None
    history: HistoryFigures | None = None


def deciding(windows_seconds: Sequence[float]) -> float:
    """The window that verdicts are over: the middle one of those configured."""
    return windows_seconds[len(windows_seconds) // 2]
