"""Figures, times and states in words for people. Unknown is "no data", never 0."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from mtpmon.cost import PlainSource
from mtpmon.grade import Grade
from mtpmon.markup import Html, h, together
from mtpmon.model import Bounded, Outcome, ProbeOutcome, State
from mtpmon.request import Expiry
from mtpmon.trust import Reason, known_build
from mtpmon.verdict import Verdict

NO_DATA = "no data"
SPACE = "\N{NO-BREAK SPACE}"  # keeps a number and its unit on one line
_THOUSANDS = "\N{NARROW NO-BREAK SPACE}"
_MINUS = "\N{MINUS SIGN}"
_NATS_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Unit:
    """How a kind of figure is written: what follows it and how many decimals it has."""

    suffix: str
    decimals: Callable[[float], int]
    factor: float = 1.0
    most: float = math.inf

    def bare(self, value: float, decimals: int) -> str:
        rounded = round(value * self.factor, decimals) + 0.0  # what rounds to -0 is 0
        return f"{rounded:,.{decimals}f}".replace(",", _THOUSANDS).replace("-", _MINUS)

    def written(self, value: float) -> str:
        """With its unit. What is not 0 (or not all) does not read as if it were."""
        decimals = self.decimals(value * self.factor)
        text, step = self.bare(value, decimals), 10.0**-decimals
        if value > 0 and round(value * self.factor, decimals) == 0:
            text = f"<{step:.{decimals}f}"
        elif value < self.most and text == self.bare(self.most, decimals):
            text = f">{self.most * self.factor - step:.{decimals}f}"
        return text + self.suffix


def _three_digits(value: float) -> int:
    if value < 10:
        return 2
    return 1 if value < 100 else 0


PERCENT = Unit(SPACE + "%", lambda _: 1, factor=100, most=1.0)
POINTS = Unit(SPACE + "points", lambda _: 1, factor=100)
SPEED = Unit(SPACE + "tok/s", _three_digits)
PLAIN_SPEED = Unit("", _three_digits)
LENGTH = Unit("", lambda _: 2)
TIMES = Unit("×", lambda _: 2)


def figure(value: float | None, unit: Unit, missing: str = NO_DATA) -> Html:
    """A number for people, or why there is none."""
    if value is None or not math.isfinite(value):
        return h("i", missing)
    return together(unit.written(value))


def bounded(value: Bounded | None, unit: Unit, missing: str = NO_DATA) -> Html:
    """``78.3 % (76.1–80.4)``, or why there is none. Bounds have the value's decimals."""
    if value is None or not math.isfinite(value.value):
        return h("i", missing)
    written = unit.written(value.value)
    if not (math.isfinite(value.lower) and math.isfinite(value.upper)):
        return together(written)
    decimals = unit.decimals(value.value * unit.factor)
    lower, upper = unit.bare(value.lower, decimals), unit.bare(value.upper, decimals)
    between = f"{SPACE}to{SPACE}" if lower.startswith(_MINUS) else "–"
    return together(written, " ", h("small", f"({lower}{between}{upper})"))


def bar(
    value: Bounded | None,
    place: Callable[[float], float] = lambda share: share,
    *,
    mark: float | None = None,
) -> str | None:
    """The style of a cell that draws a value and its bounds under its text.

    Args:
        value: what to draw.
        place: where on the bar a number is, 0 to 1.
        mark: another number to mark on it, if it has a place there.
    """
    if value is None or not all(map(math.isfinite, (value.value, value.lower, value.upper))):
        return None
    lower, middle, upper = map(place, (value.lower, value.value, value.upper))
    style = f"--l:{lower:.1%};--v:{middle:.1%};--u:{upper:.1%}"
    marked = place(mark) if mark is not None else -1.0
    return f"{style};--b:{marked:.1%}" if 0 <= marked <= 1 else style


def count(value: float) -> str:
    """``1 234``."""
    return f"{value:,.0f}".replace(",", _THOUSANDS)


def plural(number: float, noun: str) -> str:
    """``1 slot``, ``4 slots``."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def nats(value: float, *, like: float | None = None) -> str:
    """A small number written out: one under the other, sizes can be compared at a glance.

    Args:
        value: in nats.
        like: as many decimals as this number gets with one significant digit; without it
            ``value`` gets two digits of its own.
    """
    size = abs(value) / 10 if like is None else abs(like)
    decimals = min(max(-math.floor(math.log10(size)), 2), _NATS_DECIMALS) if size > 0 else 2
    text = f"{value:.{decimals}f}"
    return text if float(text) or not value else f"<{10.0**-decimals:.{decimals}f}"


def duration(seconds: float) -> str:
    """``45 s``, ``5 m``, ``2 h 5 m``, ``3 d 4 h``: two units at most."""
    if 0 < seconds < 1:
        return f"{seconds:.1f}{SPACE}s"
    left = max(round(seconds), 0)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size}{SPACE}{unit}")
            left %= size
        elif parts:
            break
        if len(parts) == 2:
            break
    return SPACE.join(parts) or f"0{SPACE}s"


def moment(unix_seconds: float, *, now: float) -> str:
    """A time of day in UTC, with the date when it is another one, and how long ago it was."""
    then = datetime.fromtimestamp(unix_seconds, UTC)
    same_day = then.date() == datetime.fromtimestamp(now, UTC).date()
    text = then.strftime("%H:%M:%S UTC" if same_day else "%Y-%m-%d %H:%M:%S UTC")
    return f"{text} ({duration(now - unix_seconds)} ago)"


@dataclass(frozen=True, slots=True)
class StateWords:
    """A state for people. ``mood``: ``good``, ``calm`` (nothing to do) or ``bad``."""

    mood: str
    name: str
    advice: str = ""


NOT_LOOKED_AT = StateWords(
    "calm", "not looked at yet", "The first look comes within one scrape interval."
)
STATES: dict[State, StateWords] = {
    State.READY: StateWords("good", "ready"),
    State.LOADING: StateWords(
        "calm", "loading", "Wait for the model. If it takes much longer than usual, see its log."
    ),
    State.SLEEPING: StateWords(
        "calm", "sleeping", "Nothing to do: the next request of a user wakes it."
    ),
    State.UNAUTHORIZED: StateWords(
        "bad",
        "key refused",
        "Put the key that llama-server was started with (--api-key) where api_key_env or"
        " api_key_file of this server points, then reload mtpmon (SIGHUP).",
    ),
    State.METRICS_DISABLED: StateWords("bad", "metrics off", "Start llama-server with --metrics."),
    State.UNREACHABLE: StateWords(
        "bad",
        "unreachable",
        "See whether llama-server runs, and whether its url in the configuration is right.",
    ),
    State.MALFORMED: StateWords(
        "bad",
        "not understood",
        "See whether url, and behind a router model, lead to llama-server itself and not to"
        " something else, such as a proxy's own page.",
    ),
}


def state_words(state: State | None) -> StateWords:
    """What to call a state, and what to do about it."""
    return NOT_LOOKED_AT if state is None else STATES[state]


PROBE_OUTCOMES: dict[ProbeOutcome, str] = {
    ProbeOutcome.COMPLETED: "completed",
    ProbeOutcome.SKIPPED_BUSY: "skipped: server busy",
    ProbeOutcome.SKIPPED_SLEEPING: "skipped: server asleep",
    ProbeOutcome.SKIPPED_IDLE: "skipped: server left to fall asleep",
    ProbeOutcome.SKIPPED_BUDGET: "skipped: budget spent",
    ProbeOutcome.SKIPPED_NOT_READY: "skipped: server not ready",
    ProbeOutcome.PREEMPTED: "given up for a user's request",
    ProbeOutcome.BASELINE_DRAFTED: "target-only server drafted",
    ProbeOutcome.TIMEOUT: "out of time",
    ProbeOutcome.FAILED: "failed",
}


VERDICTS: dict[Verdict, StateWords] = {
    Verdict.PAYING: StateWords("good", "MTP is paying"),
    Verdict.COSTING: StateWords("bad", "MTP is costing"),
    Verdict.UNDECIDED: StateWords("calm", "MTP is undecided"),
    Verdict.NO_DATA: StateWords("calm", "no data"),
}
GRADES: dict[Grade, StateWords] = {
    Grade.RECOMMENDED: StateWords("good", "recommended"),
    Grade.MARGINAL: StateWords("calm", "marginal"),
    Grade.NOT_RECOMMENDED: StateWords("bad", "not recommended"),
}
PLAIN_SOURCES: dict[PlainSource, str] = {
    PlainSource.PAIR: "from the target-only server",
    PlainSource.CAPTURE: "from what was captured without drafting",
    PlainSource.SWITCH: "from this server with drafting switched off by request",
    PlainSource.UNDRAFTED: "from steps of this server that drafted nothing",
}
EXPIRIES: dict[Expiry, str] = {
    Expiry.OLD: "it is too old",
    Expiry.RESTARTED: "the server has restarted since",
    Expiry.BUILD_CHANGED: "the build has changed since",
    Expiry.MODEL_CHANGED: "the model has changed since",
}


_REASONS: dict[Reason, str] = {
    Reason.PROBE_MISMATCH: "the counters disagree with what probes reported",
    Reason.ABOVE_ONE: "more tokens are counted as accepted than as drafted",
    Reason.ALWAYS_ACCEPTED: "all drafted tokens are counted as accepted",
    Reason.RISING_POSITIONS: "later positions are kept more often than earlier ones",
    Reason.SUM_MISMATCH: "positions do not add up to the total",
    Reason.KNOWN_BUILD: "this build is known to miscount",
}


def reason_words(reasons: Collection[Reason], build_number: int | None) -> str:
    """Why counters should not be believed, what was seen before what is known of the build."""
    words = [text for reason, text in _REASONS.items() if reason in reasons]
    build = known_build(build_number)
    if Reason.KNOWN_BUILD in reasons and build is not None:
        words[-1] += f" ({build.reference}: {build.fault})"
    return "; ".join(words)


def outcome_words(outcome: Outcome) -> str:
    """How looks at a server ended."""
    return "ok" if outcome is Outcome.OK else outcome.value.replace("_", " ")
