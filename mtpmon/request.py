"""The decode steps of one request, what is known of it, and how long that counts."""

import itertools
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from mtpmon.model import Baseline, Identity, ProbeOutcome, ProbeResult, Props, Step
from mtpmon.spread import Counts
from mtpmon.tally import Tally, tally_of_steps

CLOCK_SLACK_SECONDS = 300.0
Arm = Literal["speculating", "target_only", "switched_off"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The decode steps of one request, in order, sent while the server had no other.

    ``pair`` is shared by the requests of one interleaved comparison (both arms, however
    often each). ``whole``: ``steps`` is all there was. ``switched_off``: the speculating
    server itself, told not to draft.
    """

    arm: Arm
    steps: tuple[Step, ...]
    unix_seconds: float
    task: str = ""
    prompt: str = ""
    pair: str | None = None
    whole: bool = True
    context_tokens: int = 0
    identity: Identity = Identity()


class Expiry(StrEnum):
    """Why a measurement no longer holds."""

    OLD = "old"
    RESTARTED = "restarted"
    BUILD_CHANGED = "build_changed"
    MODEL_CHANGED = "model_changed"


def requests_of(result: ProbeResult) -> tuple[Request, ...]:
    """The requests of a completed probe; none of another."""
    if result.outcome is not ProbeOutcome.COMPLETED:
        return ()
    pair = f"{result.prompt_id}@{result.unix_seconds!r}"
    other: Arm = "switched_off" if result.baseline is Baseline.SWITCH else "target_only"
    arms: tuple[Arm, Arm] = ("speculating", other)
    return tuple(
        Request(
            arm=arm,
            steps=completion.stream.steps,
            unix_seconds=result.unix_seconds,
            task=result.task,
            prompt=result.prompt_id,
            pair=pair,
            whole=completion.stream.resolved and completion.finished,
            context_tokens=completion.timings.prompt_tokens
            + completion.timings.cached_tokens
            + completion.timings.generated_tokens,
            identity=result.identity,
        )
        for arm, completion in zip(arms, (result.speculating, result.target_only), strict=True)
        if completion is not None
    )


def identity_of(props: Props | None, start_token: str | None) -> Identity:
    """What measurements of a server that says this of itself hold for."""
    return Identity(
        build=props.build if props is not None else None,
        model=props.model if props is not None else None,
        start_token=start_token,
    )


def changed(measured: Identity, now: Identity) -> Expiry | None:
    """What has changed since something was measured; ``None``: nothing, as far as is known.

    A model or build that changed is named before the restart that comes with it.
    """
    changes = (
        (measured.model, now.model, Expiry.MODEL_CHANGED),
        (measured.build, now.build, Expiry.BUILD_CHANGED),
        (measured.start_token, now.start_token, Expiry.RESTARTED),
        (measured.target_only_start_token, now.target_only_start_token, Expiry.RESTARTED),
    )
    for before, after, reason in changes:
        if before is not None and after is not None and before != after:
            return reason
    return None


def expiry(
    measured_unix_seconds: float,
    measured: Identity,
    *,
    now: float,
    identity: Identity,
    max_age_seconds: float,
) -> Expiry | None:
    """Why what was measured then no longer holds now; ``None`` if it does."""
    reason = changed(measured, identity)
    if reason is not None:
        return reason
    age = now - measured_unix_seconds
    # From the future: by a clock that was ahead then, so nobody knows how old it is.
    return Expiry.OLD if age > max_age_seconds or age < -CLOCK_SLACK_SECONDS else None


def current(
    requests: Iterable[Request], *, now: float, identity: Identity, max_age_seconds: float
) -> list[Request]:
    """Those that still hold: what two builds cost must not be mixed."""
    return [
        request
        for request in requests
        if expiry(
            request.unix_seconds,
            request.identity,
            now=now,
            identity=identity,
            max_age_seconds=max_age_seconds,
        )
        is None
    ]


def longest_draft(requests: Iterable[Request]) -> int:
    """The most tokens that any step drafted: what the server is set to, as far as is seen."""
    return max((step.drafted for r in requests for step in r.steps), default=0)


def cut_drafts(request: Request, longest: int) -> tuple[bool, ...]:
    """Which steps had a draft cut short by the end of the generation, to nothing at last.

    The tokens that a step and those after it emit are what was left to generate when it
    began; a draft of one token less, if it is not of full length, was cut. Where some steps
    are missing that is not known: none is then.
    """
    if not request.whole:
        return (False,) * len(request.steps)
    left = sum(1 + step.kept for step in request.steps)
    found = []
    for step in request.steps:
        found.append(step.drafted < longest and step.drafted == left - 1)
        left -= 1 + step.kept
    return tuple(found)


def sample_of_traffic(requests: Sequence[Request]) -> dict[str, list[Step]]:
    """What the answers of a speculating server say about longer ones, by prompt.

    Steps whose draft was cut are left out: probes are short, and such steps are rare in
    what users send. Greedy answers to one prompt are the same, and seeing one twice is no
    more evidence than seeing it once: equal answers count once.
    """
    longest = longest_draft(requests)
    answers: set[tuple[str, tuple[tuple[int, int], ...]]] = set()
    found: dict[str, list[Step]] = {}
    for place, request in enumerate(requests):
        prompt = request.prompt or f"request {place}"
        answer = (prompt, tuple((step.drafted, step.kept) for step in request.steps))
        if request.arm != "speculating" or answer in answers:
            continue
        answers.add(answer)
        steps = zip(request.steps, cut_drafts(request, longest), strict=True)
        found.setdefault(prompt, []).extend(step for step, cut in steps if not cut)
    return found


def kept_by_prompt(requests: Sequence[Request]) -> Counts:
    """How many steps kept 0, 1, … tokens, for each prompt of ``sample_of_traffic``."""
    tallies = (tally_of_steps(steps) for steps in sample_of_traffic(requests).values())
    return [tally.histogram for tally in tallies if tally is not None]


def tally_of_requests(requests: Sequence[Request]) -> Tally | None:
    """All of ``sample_of_traffic`` together; ``None`` if nothing was drafted."""
    return tally_of_steps(itertools.chain.from_iterable(sample_of_traffic(requests).values()))
