"""One shadow probe: the same prompt with and without drafting.

The prompt becomes token ids once, on the speculating server, so both arms continue the
very same sequence, greedily. Then the target is asked, token by token, what it would have
said at some places of the speculative answer. The probe knows nothing of schedules: the
caller decides when it may run and cancels it when it must stop.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from mtpmon.client import LlamaClient, RequestFailed
from mtpmon.evaluate import Pair, usage_of
from mtpmon.forced import Forced, chosen_positions, known_prefix
from mtpmon.model import Baseline, Completion, Outcome, ProbeOutcome, TopToken, Usage
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

Request = Mapping[str, object]
# Builds up to b9093 or so drafted less or not at all for a request that asked for it; newer
# ones ignore this. Which it was, the timings of the answer tell.
SWITCH_OFF = {"speculative.n_max": 0, "speculative.n_min": 0}


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
    """How a probe asks: tokens to generate, log-probabilities per token, sampling seed.

    ``forced_positions``: how many tokens of the answer the target is asked about.
    """

    tokens: int = 64
    top_logprobs: int = 64
    seed: int = 1
    model: str | None = None
    forced_positions: int = 0


class ProbeFailed(Exception):  # noqa: N818  an outcome, not a fault of the program
    """A probe that cannot be used, with its outcome and a sentence for the operator."""

    def __init__(self, outcome: ProbeOutcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Books:
    """Who is told of each request to the watched server, and the clock.

    ``began`` is called before it, ``ended`` with what it cost the server, however it ended.
    """

    began: Callable[[], None]
    ended: Callable[[Usage], None]
    clock: Callable[[], float]


async def probe(
    arms: Arms,
    prompt: Prompt,
    settings: ProbeSettings,
    *,
    baseline: Baseline,
    baseline_first: bool,
    forced_seed: int,
    books: Books,
) -> Pair:
    """Run one prompt through the speculating server and its baseline.

    Args:
        arms: the servers.
        prompt: what to ask.
        settings: how to ask.
        baseline: what to compare with. ``switch`` is a try: what the timings of the answer
            say is believed, and the pair tells whether it came off.
        baseline_first: callers alternate it, so that drift of the machine cancels out.
        forced_seed: draws the positions at which the target is asked.
        books: told of requests to the watched server.

    Raises:
        ProbeFailed: no usable pair came out.
    """
    asking = _Asking(arms, settings, books)
    try:
        ids = await _token_ids(arms.speculating, prompt, settings)
        request = completion_request(
            ids,
            tokens=settings.tokens,
            top_logprobs=settings.top_logprobs,
            seed=settings.seed,
            model=settings.model,
        )
        other = await asking.baseline(request, baseline) if baseline_first else None
        speculating = await asking.watched(request)
        if not baseline_first:
            other = await asking.baseline(request, baseline)
        if other is not None and other.timings.draft_tokens:
            if baseline is Baseline.PAIR:
                raise ProbeFailed(
                    ProbeOutcome.BASELINE_DRAFTED,
                    f"the target-only server drafted {other.timings.draft_tokens} tokens: start"
                    " it without --spec-type, or point target_only_url at one that is",
                )
            other, baseline = None, Baseline.SINGLE
        forced = await asking.forced(ids, request, speculating, forced_seed)
    except RequestFailed as failed:
        raise ProbeFailed(_probe_outcome(failed.outcome), failed.detail) from failed
    except WireError as error:
        raise ProbeFailed(ProbeOutcome.FAILED, str(error)) from error
    return Pair(speculating, other, forced, baseline)


@dataclass(frozen=True, slots=True)
class _Asking:
    """The requests of one probe."""

    arms: Arms
    settings: ProbeSettings
    books: Books

    async def watched(self, request: Request) -> Completion:
        """Ask the watched server, on the books."""
        self.books.began()
        return await self._generate(self.arms.speculating, request, self.books.ended)

    async def baseline(self, request: Request, kind: Baseline) -> Completion | None:
        """The same without drafting, if there is a way."""
        if kind is Baseline.PAIR and self.arms.target_only is not None:
            return await self._generate(self.arms.target_only, request, _ignore)
        if kind is Baseline.SWITCH:
            return await self.watched({**request, **SWITCH_OFF})
        return None

    async def forced(
        self, ids: Sequence[int], request: Request, answer: Completion, seed: int
    ) -> tuple[Forced, ...]:
        """The target's distributions at some positions of ``answer``.

        Each prefix extends the one before, which the server still holds: so here alone its
        prompt cache is used, and a position costs about one decode step.
        """
        said = known_prefix(answer.positions)
        found = []
        for index in chosen_positions(len(said), self.settings.forced_positions, seed=seed):
            one = {
                **request,
                "prompt": [*ids, *said[:index]],
                "n_predict": 1,
                "cache_prompt": True,
            }
            if self.arms.target_only is not None:
                target = await self._generate(self.arms.target_only, one, _ignore)
                speculating = _first_top(await self.watched(one))
            else:
                target, speculating = await self.watched(one), ()
            found.append(Forced(index=index, target=_first_top(target), speculating=speculating))
        return tuple(found)

    async def _generate(
        self, client: LlamaClient, request: Request, ended: Callable[[Usage], None]
    ) -> Completion:
        chunks: list[Chunk] = []
        began = self.books.clock()
        whole: Completion | None = None
        path = "/completion?autoload=false" if self.settings.model else "/completion"
        try:
            async with aclosing(client.stream(path, request)) as payloads:
                async for payload in payloads:
                    chunks.append(parse_chunk(payload))
                    if chunks[-1].stop:
                        break
            whole = assemble(chunks, wall_seconds=self.books.clock() - began)
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


def _first_top(completion: Completion) -> tuple[TopToken, ...]:
    return completion.positions[0].top if completion.positions else ()


def _probe_outcome(outcome: Outcome) -> ProbeOutcome:
    if outcome is Outcome.LOADING:
        return ProbeOutcome.SKIPPED_NOT_READY
    return ProbeOutcome.TIMEOUT if outcome is Outcome.TIMEOUT else ProbeOutcome.FAILED


async def _token_ids(
    client: LlamaClient, prompt: Prompt, settings: ProbeSettings
) -> tuple[int, ...]:
    """The prompt as the server's own chat template and tokenizer make it."""
    extra = {"model": settings.model} if settings.model else {}
    query = "?autoload=false" if settings.model else ""
    messages = {"messages": [{"role": "user", "content": prompt.text}]}
    body = await client.post(f"/apply-template{query}", {**messages, **extra}, timeout_seconds=10)
    text = {"content": parse_prompt(body), "add_special": True}
    body = await client.post(f"/tokenize{query}", {**text, **extra}, timeout_seconds=10)
    return parse_tokens(body)


def _salvaged(chunks: list[Chunk]) -> Completion | None:
    """What an unfinished stream is known to have generated."""
    try:
        return assemble(chunks, wall_seconds=0.0)
    except WireError:
        return None


def _ignore(_: Usage) -> None:
    """The target-only server's load is not the watched server's."""
