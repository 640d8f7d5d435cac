"""What a server offers, and hence what will and will not be measured. Pure.

``mtpmon.examine`` gathers the facts; here they become sentences, each with what to change.
"""

from collections.abc import Iterator

from mtpmon.capture import Use
from mtpmon.doctorcaptures import capture_findings, fits
from mtpmon.doctorcounters import doubts, latest_counters, undrafted
from mtpmon.doctorpaying import paying_findings
from mtpmon.doctorserver import reached, server_findings
from mtpmon.facts import Facts, Finding, answers
from mtpmon.model import Baseline, ProbeResult, Props, State

SAME_NATS = 1e-3
"""Next-token KLD up to which two servers are taken to have the same weights.

One file in one kind of backend gives 0, in two kinds a rounding error; a 4-bit quantization
is some hundredths of a nat away from its original.
"""


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Judge the facts: the server, its twin, its captures, its history, what will be measured."""
    return (
        *server_findings(facts),
        *_target_only(facts),
        *capture_findings(facts),
        *paying_findings(facts),
        *_measured(facts),
    )


# --- the target-only twin -----------------------------------------------------------------


def _target_only(facts: Facts) -> Iterator[Finding]:
    if facts.target_only_url is None and _switchable(facts.probe):
        yield Finding(
            "target_only", "ok", "none needed: the server does not draft when a request says so"
        )
    elif facts.target_only_url is None and fits(facts, Use.BASELINE):
        yield Finding(
            "target_only",
            "ok",
            "none needed: the baseline capture stands in for it, but for the speed-up",
        )
    elif facts.target_only_url is None:
        yield Finding(
            "target_only",
            "warning",
            "nothing to compare the server with",
            "start a second llama-server with the same model and without --spec-type, and set"
            " target_only_url to its address; on the command line --target-only-url. Or capture"
            " this server while it runs without --spec-type: mtpmon capture, baseline_capture",
        )
    look = facts.target_only
    if look is None:
        return
    yield reached("target_only", look, key_given=facts.target_only_key_given)
    if facts.target_only_drafted:
        yield Finding(
            "target_only",
            "problem",
            "drafts as well",
            "start it without --spec-type, or set target_only_url to one that is",
        )
    known = None not in (facts.tokens, facts.target_only_tokens)
    if known and facts.tokens != facts.target_only_tokens:
        yield Finding(
            "target_only",
            "problem",
            "has another tokenizer: it is another model",
            "start it with the same model file",
        )
    yield from _builds(facts.server.props, look.props)
    if facts.probe is not None and facts.probe.target_only is not None:
        yield Finding("target_only", "ok", "does not draft")
        yield _weights(facts.probe)


def _switchable(probe: ProbeResult | None) -> bool:
    # One that never drafts obeys any switch.
    return probe is not None and probe.baseline is Baseline.SWITCH and not undrafted(probe)


def _builds(ours: Props | None, theirs: Props | None) -> Iterator[Finding]:
    if ours is not None and theirs is not None and ours.build != theirs.build:
        yield Finding(
            "target_only",
            "warning",
            f"is another build, {theirs.build}: differences may come from that",
            "start both with the same llama-server",
        )


def _weights(probe: ProbeResult) -> Finding:
    found = probe.next_token
    if found is None:
        return Finding(
            "target_only",
            "warning",
            "or the server gave no log-probabilities, so no KLD can be had",
            "use a build that answers n_probs",
        )
    if found.nats > SAME_NATS:
        return Finding(
            "target_only",
            "warning",
            f"predicts another next token: a KLD of {found.nats:.3g} nats before any draft",
            "start it with the same model file and the same kind of backend",
        )
    return Finding(
        "target_only", "ok", f"predicts the same next token: a KLD of {found.nats:.3g} nats"
    )


# --- what will be measured ----------------------------------------------------------------

_NOTHING_WHILE: dict[State, str] = {
    State.SLEEPING: "the server sleeps; mtpmon does not wake it",
    State.LOADING: "the server loads its model",
    State.METRICS_DISABLED: "/metrics is off, since only there it shows that the server is idle"
    " and may be probed; `mtpmon probe` measures all the same",
    State.UNAUTHORIZED: "the server refuses us",
    State.UNREACHABLE: "the server cannot be reached",
    State.MALFORMED: "the server is not understood",
}


def _measured(facts: Facts) -> Iterator[Finding]:
    """A line for each kind of figure that ``mtpmon run`` has."""
    nothing_while = _NOTHING_WHILE.get(facts.server.state)
    if nothing_while is not None:
        yield _no(f"nothing, while {nothing_while}")
        return
    counters = latest_counters(facts)
    if facts.probe is not None and undrafted(facts.probe):
        yield _no("live acceptance: there is none while nothing is drafted")
    elif counters is None or counters.drafts is None:
        yield _no("live acceptance: not without speculative counters")
    elif doubts(facts):
        yield _no("live acceptance, as wrong as the counters may be; figures of probes are not")
    elif counters.accepted_by_position is None and counters.drafts.value:
        yield _yes("live acceptance and acceptance length, with wider bounds")
        yield _no("live acceptance by draft position: not without its counters")
    else:
        yield _yes("live acceptance, acceptance length, acceptance by draft position")
    yield _yes("live decode speed and throughput")
    yield from _by_probes(facts)


def _by_probes(facts: Facts) -> Iterator[Finding]:
    probe = facts.probe
    if not facts.probed:
        yield _no("figures of probes: not while the configuration turns them off")
    elif facts.target_only_url is not None and not answers(facts.target_only):
        yield _no("figures of probes: each one fails while the target-only server does not answer")
    elif facts.target_only_drafted:
        yield _no("figures of probes: each one fails while the target-only server drafts")
    elif probe is None or probe.speculating is None:
        yield _no("figures of probes: they would fail as the test did")
    else:
        yield _yes("acceptance and decode speed by task, from probes while the server is idle")
        if fits(facts, Use.BASELINE):
            yield _yes("exact sequences and first divergences, against the captured baseline")
            yield _no("speed-up: not without a target-only server beside it")
        elif probe.target_only is None:
            yield _no("speed-up and exact sequences: not without a target-only server")
        else:
            yield _yes("speed-up, exact sequences and first divergences, from probes of both")
        if probe.next_token is not None or probe.forced:
            yield _yes("KLD and regret, from asking the target about single tokens")
        else:
            yield _no("KLD: not without log-probabilities")
        if fits(facts, Use.REFERENCE):
            yield _yes("KLD from the captured reference")


def _yes(text: str) -> Finding:
    return Finding("measured", "ok", text)


def _no(text: str) -> Finding:
    return Finding("measured", "warning", text)
