"""The nouns: frozen values that cross file borders. Units are in the field names.

Counter values come with the resolution they were printed at: llama-server prints six
significant digits, so a counter of ten million is known to the nearest hundred only.
"""

from enum import StrEnum
from typing import Literal

import msgspec


class State(StrEnum):
    """What a llama-server is, as far as its answers tell. Exactly one holds at a time."""

    READY = "ready"
    LOADING = "loading"
    SLEEPING = "sleeping"
    UNAUTHORIZED = "unauthorized"
    METRICS_DISABLED = "metrics_disabled"
    UNREACHABLE = "unreachable"
    MALFORMED = "malformed"


class Outcome(StrEnum):
    """How one look at a llama-server ended. The closed set of outcome labels.

    ``props_only``: its metrics were left alone, so that it can fall asleep. ``not_loaded``:
    the router has not loaded the model. ``stalled``: it answers ``/props`` and not
    ``/metrics``, so its main loop is busy with one long step, or hangs. ``router``: a
    router, and no model is configured.
    """

    OK = "ok"
    PROPS_ONLY = "props_only"
    LOADING = "loading"
    SLEEPING = "sleeping"
    NOT_LOADED = "not_loaded"
    UNAUTHORIZED = "unauthorized"
    METRICS_DISABLED = "metrics_disabled"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    DISCONNECTED = "disconnected"
    TLS = "tls"
    REDIRECT = "redirect"
    HTTP_ERROR = "http_error"
    TOO_LARGE = "too_large"
    ROUTER = "router"
    MALFORMED = "malformed"


STATE_OF_OUTCOME: dict[Outcome, State] = {
    Outcome.OK: State.READY,
    Outcome.PROPS_ONLY: State.READY,
    Outcome.LOADING: State.LOADING,
    Outcome.SLEEPING: State.SLEEPING,
    # A router's model that is not in memory, like one that sleeps, comes with a request.
    Outcome.NOT_LOADED: State.SLEEPING,
    Outcome.UNAUTHORIZED: State.UNAUTHORIZED,
    Outcome.METRICS_DISABLED: State.METRICS_DISABLED,
    Outcome.REFUSED: State.UNREACHABLE,
    Outcome.TIMEOUT: State.UNREACHABLE,
    Outcome.STALLED: State.UNREACHABLE,
    Outcome.DISCONNECTED: State.UNREACHABLE,
    Outcome.TLS: State.UNREACHABLE,
    Outcome.REDIRECT: State.MALFORMED,
    Outcome.HTTP_ERROR: State.MALFORMED,
    Outcome.TOO_LARGE: State.MALFORMED,
    Outcome.ROUTER: State.MALFORMED,
    Outcome.MALFORMED: State.MALFORMED,
}


class Reading(msgspec.Struct, frozen=True):
    """A counter as printed. The true value lies within ``value`` ± ``quantum`` / 2."""

    value: float
    quantum: float = 0.0


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """One llama-server ``/metrics`` body. ``None`` means the series was not there.

    ``accepted_by_position`` has one exact count for each draft position, 0-based.
    ``start_token`` is opaque: it changes when the server process does and is not a time.
    """

    start_token: str | None = None
    drafts: Reading | None = None
    draft_tokens: Reading | None = None
    accepted_tokens: Reading | None = None
    accepted_by_position: tuple[int, ...] | None = None
    generated_tokens: Reading | None = None
    generation_seconds: Reading | None = None
    prompt_tokens: Reading | None = None
    prompt_seconds: Reading | None = None
    cached_prompt_tokens: Reading | None = None
    requests_processing: int | None = None
    requests_deferred: int | None = None
    bad_lines: int = 0


class Props(msgspec.Struct, frozen=True, kw_only=True):
    """What ``/props`` says about a server. Absent fields are ``None``."""

    build: str | None = None
    build_number: int | None = None
    model: str | None = None
    model_path: str | None = None
    quantization: str | None = None
    context_tokens: int | None = None
    slots: int | None = None
    sleeping: bool = False
    metrics_enabled: bool | None = None
    slots_enabled: bool | None = None
    router: bool = False
    chat_template: bool = False


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one server.

    ``overlapped`` is true when a probe's request was in flight at any time during the
    look: the counters then may or may not hold that request's tokens.
    """

    monotonic_seconds: float
    unix_seconds: float
    duration_seconds: float
    outcome: Outcome
    detail: str = ""
    counters: Counters | None = None
    props: Props | None = None
    overlapped: bool = False

    @property
    def state(self) -> State:
        return STATE_OF_OUTCOME[self.outcome]


class Amount(msgspec.Struct, frozen=True):
    """A quantity known to lie within ``value`` ± (``error`` + ``carried_error``).

    ``carried_error`` is what restarts of the server have added to a running total; in a
    difference of two totals it is what the restarts in between have added.
    """

    value: float
    error: float = 0.0
    carried_error: float = 0.0

    @property
    def half_width(self) -> float:
        return self.error + self.carried_error


class Bounded(msgspec.Struct, frozen=True):
    """An estimate with its confidence bounds, ``lower`` ≤ ``value`` ≤ ``upper``."""

    value: float
    lower: float
    upper: float


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What some traffic did to a server: counts since a common origin, or a difference.

    ``None``: not known (the server has no such series). ``accepted_by_position`` is
    exact, but for ``positions_error`` tokens in all that a request of ours which was cut off
    has left open. ``requests`` is exact for probes and a lower bound for live traffic.
    """

    drafts: Amount | None = None
    draft_tokens: Amount | None = None
    accepted_tokens: Amount | None = None
    accepted_by_position: tuple[int, ...] | None = None
    generated_tokens: Amount | None = None
    generation_seconds: Amount | None = None
    prompt_tokens: Amount | None = None
    positions_error: float = 0.0
    requests: int = 0


class TopToken(msgspec.Struct, frozen=True):
    """One entry of a top-k list: token id, natural-log probability, text."""

    id: int
    logprob: float
    text: str = ""


class Position(msgspec.Struct, frozen=True):
    """One generated token.

    ``id`` is ``None`` where the server did not tell it (streams leave out the tokens
    inside an unfinished multi-byte character). ``top`` is empty where the server gave no
    distribution: *not available*, never "probability 1".
    """

    id: int | None
    text: str
    top: tuple[TopToken, ...] = ()


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """The ``timings`` object of a reply. ``draft_tokens`` is ``None`` if nothing was drafted."""

    prompt_tokens: int
    prompt_seconds: float
    cached_tokens: int
    generated_tokens: int
    generation_seconds: float
    draft_tokens: int | None = None
    accepted_tokens: int | None = None


class Step(msgspec.Struct, frozen=True):
    """One decode step: tokens drafted (0: plain), how many of them were kept, its cost."""

    drafted: int
    kept: int
    seconds: float


class StepStream(msgspec.Struct, frozen=True, kw_only=True):
    """The decode steps of one generation, in order.

    The ``unresolved`` amounts belong to steps that cannot be told apart; with ``steps``
    they add up to the totals. Such steps kept few tokens more often than others did, so a
    figure from ``steps`` alone flatters the draft head when there are any.
    """

    steps: tuple[Step, ...] = ()
    unresolved_draft_tokens: int = 0
    unresolved_accepted_tokens: int = 0
    unresolved_seconds: float = 0.0

    @property
    def resolved(self) -> bool:
        """Whether ``steps`` is all there was."""
        return not (
            self.unresolved_draft_tokens
            or self.unresolved_accepted_tokens
            or self.unresolved_seconds
        )


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One generation: its tokens, totals and decode steps; whole unless ``finished`` is false."""

    positions: tuple[Position, ...]
    timings: Timings
    stream: StepStream
    wall_seconds: float
    finished: bool = True


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two greedy sequences from one prompt, position by position.

    ``matches`` also counts coincidences after a divergence. ``first_divergence`` is
    ``None`` when the sequences are equal. ``divergence_margin_nats`` is the baseline's gap
    between its two best tokens there: near 0 for a rounding tie.
    """

    tokens: int
    matches: int
    matched_prefix: int
    first_divergence: int | None
    divergence_margin_nats: float | None

    @property
    def exact(self) -> bool:
        return self.first_divergence is None


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """KL(P‖Q) of two top-k lists, in nats: a proven lower bound of the true one.

    ``coverage`` is P's probability mass on the shared tokens. ``clamped``: rounding had
    made a leftover mass or the sum (slightly) negative.
    """

    nats: float
    coverage: float
    shared_tokens: int
    top1_agrees: bool
    clamped: bool = False


class ForcedToken(msgspec.Struct, frozen=True, kw_only=True):
    """What the target thought of one emitted token.

    ``rank`` is 0 for its best. ``None`` for a token outside the top-k list, whose
    ``regret_nats`` (best log-probability minus the token's) is then a lower bound.
    """

    index: int
    logprob: float | None
    rank: int | None
    regret_nats: float


class Baseline(StrEnum):
    """What a probe compares the speculating server with. The closed set of label values.

    ``pair``: a second server that does not draft. ``capture``: what the same server said
    once while it did not draft. ``switch``: the same server, which was seen to honour a
    per-request off switch. ``single``: the same server, one undrafted token at a time.
    """

    PAIR = "pair"
    CAPTURE = "capture"
    SWITCH = "switch"
    SINGLE = "single"


class ProbeOutcome(StrEnum):
    """How a probe ended. Only ``completed`` ones feed the figures."""

    COMPLETED = "completed"
    SKIPPED_BUSY = "skipped_busy"
    SKIPPED_SLEEPING = "skipped_sleeping"
    SKIPPED_IDLE = "skipped_idle"
    SKIPPED_BUDGET = "skipped_budget"
    SKIPPED_NOT_READY = "skipped_not_ready"
    PREEMPTED = "preempted"
    BASELINE_DRAFTED = "baseline_drafted"
    TIMEOUT = "timeout"
    FAILED = "failed"


NOT_RUN = (
    ProbeOutcome.SKIPPED_BUSY,
    ProbeOutcome.SKIPPED_SLEEPING,
    ProbeOutcome.SKIPPED_IDLE,
    ProbeOutcome.SKIPPED_BUDGET,
    ProbeOutcome.SKIPPED_NOT_READY,
    ProbeOutcome.PREEMPTED,
)
"""Outcomes that say nothing of the server: the probe gave way, or never began."""


ArmName = Literal["speculating", "target_only"]


class PositionKinds(msgspec.Struct, frozen=True, kw_only=True):
    """How many positions could be compared.

    ``comparable``: both distributions are there, after the same prefix. ``missing``: the
    prefix is the same, a distribution is not there. ``diverged``: the prefixes differ.
    """

    comparable: int
    missing: int
    diverged: int


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A way to ask a prompt. The default one is what figures by task are about.

    ``temperature`` 0 is greedy. ``thinking`` ``None`` leaves it to the chat template.
    ``depth_tokens``: about how deep the context is where the answer starts; 0 is the prompt
    alone.
    """

    temperature: float = 0.0
    thinking: bool | None = None
    depth_tokens: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a measurement holds for. ``None``: not known, which never counts as changed.

    ``start_token`` is llama-server's own, another one for each of its processes.
    """

    build: str | None = None
    model: str | None = None
    start_token: str | None = None
    target_only_start_token: str | None = None


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One shadow probe: one prompt through both arms (or one, without a baseline).

    ``next_token`` compares the distributions after the prompt, which no draft can touch;
    ``after_speculation`` those at later positions of the speculative answer, above all the
    last; ``teacher_forced`` those of both servers, undrafted, along that answer. ``forced``
    is what the target thought of the answer's tokens. ``reference_next_token`` and
    ``reference_forced`` compare a captured reference's distributions with the server's own,
    undrafted, after the prompt and along the captured answer. ``invalid`` names the
    validators that the speculating server's answer did not pass. ``identity`` is the
    server's at that time.
    """

    server: str
    prompt_id: str
    task: str
    variant: Variant = Variant()
    identity: Identity = Identity()
    unix_seconds: float
    duration_seconds: float
    outcome: ProbeOutcome
    detail: str = ""
    invalid: tuple[str, ...] = ()
    speculating: Completion | None = None
    target_only: Completion | None = None
    comparison: Comparison | None = None
    next_token: Divergence | None = None
    after_speculation: tuple[Divergence, ...] = ()
    teacher_forced: tuple[Divergence, ...] = ()
    forced: tuple[ForcedToken, ...] = ()
    baseline: Baseline | None = None
    positions: PositionKinds | None = None
    reference_next_token: Divergence | None = None
    reference_forced: tuple[Divergence, ...] = ()
