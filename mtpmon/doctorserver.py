"""Findings about a server by itself. Pure."""

from collections.abc import Iterator

from mtpmon.doctorcounters import counter_findings
from mtpmon.facts import Facts, Finding, Topic, answers
from mtpmon.model import Outcome, ProbeResult, Props, Scrape, State


def server_findings(facts: Facts) -> Iterator[Finding]:
    """Judge the server itself: is it there, does it draft, are its counters there and right."""
    look = facts.server
    yield reached("server", look, key_given=facts.key_given)
    if answers(look) or look.props is not None:
        yield from _identity(look.props)
    if look.state is State.METRICS_DISABLED:
        yield Finding(
            "server",
            "problem",
            "has /metrics turned off",
            "start llama-server with --metrics",
        )
    if facts.probe is not None:
        yield _drafting(facts.probe)
    yield from counter_findings(facts)


def reached(topic: Topic, look: Scrape, *, key_given: bool) -> Finding:
    """Whether a server answers, and if not, why."""
    prefix = "" if topic == "server" else "target_only_"
    match look.state:
        case State.READY | State.METRICS_DISABLED:
            return Finding(
                topic, "ok", f"answers {'with the API key given' if key_given else 'without a key'}"
            )
        case State.SLEEPING:
            return Finding(
                topic, "warning", look.detail, "send it a request, then run this again for the rest"
            )
        case State.LOADING:
            return Finding(topic, "problem", look.detail, "run this again in a while")
        case State.UNAUTHORIZED if key_given:
            return Finding(
                topic, "problem", "refuses the API key", "compare it with llama-server's --api-key"
            )
        case State.UNAUTHORIZED:
            return Finding(
                topic,
                "problem",
                "wants an API key",
                f"set {prefix}api_key_env or {prefix}api_key_file;"
                f" on the command line --{prefix.replace('_', '-')}api-key-env",
            )
        case _:
            advice = _ADVICE.get(look.outcome, "see whether {}url leads to llama-server itself")
            return Finding(topic, "problem", look.detail, advice.format(prefix))


_START = "start llama-server there, or correct {}url"
_ADVICE: dict[Outcome, str] = {
    Outcome.REFUSED: _START,
    Outcome.TIMEOUT: _START,
    Outcome.STALLED: "wait if it is busy with a long prompt, else see its log",
    Outcome.ROUTER: "set model for this server in the configuration",
}


def _identity(props: Props | None) -> Iterator[Finding]:
    if props is None:
        yield Finding(
            "server",
            "warning",
            "does not answer /props: build, model and sleep stay unknown",
            "let whatever is in between pass /props on",
        )
        return
    slots = f"{props.slots} slot{'' if props.slots == 1 else 's'}" if props.slots else ""
    parts = [f"build {props.build or 'unknown'}", props.model, props.quantization, slots]
    yield Finding("server", "ok", ", ".join(part for part in parts if part))
    if not props.chat_template:
        yield Finding(
            "server",
            "warning",
            "has no chat template, so probes are written in a default one",
            "use a model file that has one, or --chat-template",
        )


def _drafting(probe: ProbeResult) -> Finding:
    ours = probe.speculating
    if ours is None:
        return Finding(
            "server", "problem", f"fails a test probe: {probe.detail}", "see llama-server's log"
        )
    tokens, drafted = ours.timings.generated_tokens, ours.timings.draft_tokens or 0
    if not drafted:
        return Finding(
            "server",
            "problem",
            f"does not draft: {tokens} test tokens came without",
            "start llama-server with --spec-type draft-mtp and a model that has an MTP head",
        )
    return Finding(
        "server",
        "ok",
        f"drafts: {ours.timings.accepted_tokens or 0} of {drafted} draft tokens kept,"
        f" in a test of {tokens} tokens",
    )
