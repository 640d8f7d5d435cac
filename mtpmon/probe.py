"""One shadow probe: the same prompt through the speculating and the target-only server.

The prompt becomes token ids once, on the speculating server, so both arms continue the
very same sequence, greedily. The probe knows nothing of schedules: the caller decides when
it may run and cancels it when it must stop.
"""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from mtpmon.client import LlamaClient, RequestFailed
from mtpmon.evaluate import Pair, usage_of
from mtpmon.model import Completion, Outcome, ProbeOutcome, Usage
from mtpmon.suite import Prompt
from mtpmon.wire import (
    Chunk,
    WireError,
    assemble,
    completion_request,
    parse_chunk,
    parse_prompt,
    parse_tokens,
)


@dataclass(frozen=True, slots=True)
class Arms:
    """The servers a probe talks to. Without a ``target_only`` one there is no comparison."""

    speculating: LlamaClient
    target_only: LlamaClient | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self.speculating.close()
        if self.target_only is not None:
            await self.target_only.close()


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """How a probe asks: tokens to generate, log-probabilities per token, sampling seed."""

    tokens: int = 64
    top_logprobs: int = 64
    seed: int = 1
    model: str | None = None


class ProbeFailed(Exception):  # noqa: N818  an outcome, not a fault of the program
    """A probe that cannot be used, with its outcome and a sentence for the operator."""

    def __init__(self, outcome: ProbeOutcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


async def probe(
    arms: Arms,
    prompt: Prompt,
    settings: ProbeSettings,
    *,
    baseline_first: bool,
    request_began: Callable[[], None],
    request_ended: Callable[[Usage], None],
    clock: Callable[[], float],
) -> Pair:
    """Run one prompt through both arms.

    Args:
        arms: the servers.
        prompt: what to ask.
        settings: how to ask.
        baseline_first: callers alternate it, so that drift of the machine cancels out.
        request_began: called before the request to the speculating server.
        request_ended: told what that request cost the server, however it ended.
        clock: monotonic seconds.

    Raises:
        ProbeFailed: no usable pair came out.
    """
    try:
        ids = await _token_ids(arms.speculating, prompt, settings)
        request = completion_request(
            ids,
            tokens=settings.tokens,
            top_logprobs=settings.top_logprobs,
            seed=settings.seed,
            model=settings.model,
        )
        baseline = None
        if arms.target_only is not None and baseline_first:
            baseline = await _generate(arms.target_only, request, clock, _ignore)
        request_began()
        speculating = await _generate(arms.speculating, request, clock, request_ended)
        if arms.target_only is not None and not baseline_first:
            baseline = await _generate(arms.target_only, request, clock, _ignore)
    except RequestFailed as failed:
        raise ProbeFailed(_probe_outcome(failed.outcome), failed.detail) from failed
    except WireError as error:
        raise ProbeFailed(ProbeOutcome.FAILED, str(error)) from error
    if baseline is not None and baseline.timings.draft_tokens:
        raise ProbeFailed(
            ProbeOutcome.BASELINE_DRAFTED,
            f"the target-only server drafted {baseline.timings.draft_tokens} tokens: start it"
            " without --spec-type, or point target_only_url at one that is",
        )
    return Pair(speculating, baseline)


def _probe_outcome(outcome: Outcome) -> ProbeOutcome:
    if outcome is Outcome.LOADING:
        return ProbeOutcome.SKIPPED_NOT_READY
    return ProbeOutcome.TIMEOUT if outcome is Outcome.TIMEOUT else ProbeOutcome.FAILED


async def _token_ids(
    client: LlamaClient, prompt: Prompt, settings: ProbeSettings
) -> tuple[int, ...]:
    """The prompt as the server's own chat template and tokenizer make it."""
    extra = {"model": settings.model} if settings.model else {}
    messages = {"messages": [{"role": "user", "content": prompt.text}]}
    body = await client.post("/apply-template", {**messages, **extra}, timeout_seconds=10)
    text = {"content": parse_prompt(body), "add_special": True}
    return parse_tokens(await client.post("/tokenize", {**text, **extra}, timeout_seconds=10))


async def _generate(
    client: LlamaClient,
    request: dict[str, object],
    clock: Callable[[], float],
    ended: Callable[[Usage], None],
) -> Completion:
    chunks: list[Chunk] = []
    began = clock()
    whole: Completion | None = None
    try:
        async with aclosing(client.stream("/completion", request)) as payloads:
            async for payload in payloads:
                chunks.append(parse_chunk(payload))
                if chunks[-1].stop:
                    break
        whole = assemble(chunks, wall_seconds=clock() - began)
    finally:
        # Also when cancelled: the server has counted what it generated up to here.
        ended(usage_of(whole or _salvaged(chunks)))
    if whole is None or not whole.finished:
        raise WireError("the completion stream ended without its final chunk")
    if len(whole.positions) != whole.timings.generated_tokens:
        raise WireError(
            f"the stream held {len(whole.positions)} tokens, its timings say"
            f" {whole.timings.generated_tokens}"
        )
    return whole


def _salvaged(chunks: list[Chunk]) -> Completion | None:
    """What an unfinished stream is known to have generated."""
    try:
        return assemble(chunks, wall_seconds=0.0)
    except WireError:
        return None


def _ignore(_: Usage) -> None:
    """The target-only server's load is not the watched server's."""
