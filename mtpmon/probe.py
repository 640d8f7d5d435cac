"""One shadow probe: the same prompt with and without drafting.

The prompt becomes token ids once, on the speculating server, so both arms continue the
very same sequence. After a greedy answer the target is asked, token by token, what it would
have said at some places of it. The probe knows nothing of schedules: the
caller decides when it may run and cancels it when it must stop.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from mtpmon.capture import CapturedPrompt, Usable, recorded
from mtpmon.client import LlamaClient, RequestFailed
from mtpmon.evaluate import Pair, usage_of
from mtpmon.forced import Forced, chosen_positions, known_prefix
from mtpmon.model import Baseline, Completion, Outcome, ProbeOutcome, TopToken, Usage, Variant
from mtpmon.suite import DEFAULT_VARIANT, Prompt, deep_text, sentences_for
from mtpmon.wire import (
    Chunk,
    WireError,
    assemble,
    completion_request,
    parse_chunk,
    parse_prompt,
    parse_props,
    parse_tokens,
    template_request,
)

Request = Mapping[str, object]
# Builds up to b9093 or so drafted less or not at all for a request that asked for it; newer
# ones ignore this. Which it was, the timings of the answer tell.
SWITCH_OFF = {"speculative.n_max": 0, "speculative.n_min": 0}
ASIDE_SECONDS = 10.0  # for what is asked besides completions
SAMPLE_SENTENCES = 40  # of filler, tokenized to learn how many make a depth
SPARE_TOKENS = 16  # of a context: a draft may reach beyond the last token that is kept


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

    ``forced_positions``: how many tokens of a greedy answer the target is asked about.
    """

    tokens: int = 64
    top_logprobs: int = 64
    seed: int = 1
    model: str | None = None
    forced_positions: int = 0
    variant: Variant = DEFAULT_VARIANT


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


NO_CAPTURES = Usable()


async def probe(
    arms: Arms,
    prompt: Prompt,
    settings: ProbeSettings,
    *,
    baseline: Baseline,
    baseline_first: bool,
    forced_seed: int,
    books: Books,
    captures: Usable = NO_CAPTURES,
) -> Pair:
    """Run one prompt through the speculating server and its baseline.

    Args:
        arms: the servers.
        prompt: what to ask.
        settings: how to ask.
        baseline: what to compare with. ``switch`` is a try: what the timings of the answer
            say is believed, and the pair tells whether it came off. ``capture`` is another:
            it may have nothing to these tokens.
        baseline_first: callers alternate it, so that drift of the machine cancels out.
        forced_seed: draws the positions at which the target is asked.
        books: told of requests to the watched server.
        captures: what to compare with besides, or instead of a second server.

    Raises:
        ProbeFailed: no usable pair came out.
    """
    asking = _Asking(arms, settings, books)
    try:
        ids = await _token_ids(arms, prompt, settings)
        request = completion_request(
            ids,
            tokens=settings.tokens,
            top_logprobs=settings.top_logprobs,
            seed=settings.seed,
            temperature=settings.variant.temperature,
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
        if baseline is Baseline.SWITCH and not speculating.timings.draft_tokens:
            # With nothing drafted either way, the switch has shown nothing.
            other, baseline = None, Baseline.SINGLE
        entry = None
        if baseline is Baseline.CAPTURE:
            entry = recorded(captures.baseline, prompt, ids)
            other = entry.completion() if entry is not None else None
            baseline = Baseline.CAPTURE if entry is not None else Baseline.SINGLE
        forced: tuple[Forced, ...] = ()
        if settings.variant.greedy:  # a sampled token may be any, so its rank says nothing
            forced = await asking.forced(ids, request, speculating, forced_seed, entry)
        drifted = recorded(captures.reference, prompt, ids)
        reference: tuple[Forced, ...] = ()
        if drifted is not None:
            reference = await asking.reference(ids, request, speculating, forced_seed, drifted)
    except RequestFailed as failed:
        raise ProbeFailed(_probe_outcome(failed.outcome), failed.detail) from failed
    except WireError as error:
        raise ProbeFailed(ProbeOutcome.FAILED, str(error)) from error
    return Pair(speculating, other, forced, baseline, ids, reference)


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
            return await self._target(self.arms.target_only, request)
        if kind is Baseline.SWITCH:
            return await self.watched({**request, **SWITCH_OFF})
        return None

    async def _target(self, client: LlamaClient, request: Request) -> Completion:
        """Ask the target-only server; a failure says that it was this one."""
        try:
            return await self._generate(client, request, _ignore)
        except RequestFailed as failed:
            detail = f"target-only server: {failed.detail}"
            raise RequestFailed(failed.outcome, detail) from failed
        except WireError as error:
            raise WireError(f"target-only server: {error}") from error

    async def forced(
        self,
        ids: Sequence[int],
        request: Request,
        answer: Completion,
        seed: int,
        captured: CapturedPrompt | None,
    ) -> tuple[Forced, ...]:
        """The target's distributions at some positions of ``answer``.

        Each prefix extends the one before, which the server still holds: so here alone its
        prompt cache is used, and a position costs about one decode step. As far as a
        ``captured`` answer is the same, the target's distributions are those captured.
        """
        said = known_prefix(answer.positions)
        found = []
        for index in chosen_positions(len(said), self.settings.forced_positions, seed=seed):
            one = _one_more(request, ids, said[:index])
            known = _known_top(captured, said[:index])
            if self.arms.target_only is not None:
                target = await self._target(self.arms.target_only, one)
                speculating = _first_top(await self.watched(one))
            elif known:
                speculating = _first_top(await self.watched(one))
                found.append(Forced(index=index, target=known, speculating=speculating))
                continue
            else:
                target, speculating = await self.watched(one), ()
            found.append(Forced(index=index, target=_first_top(target), speculating=speculating))
        return tuple(found)

    async def reference(
        self,
        ids: Sequence[int],
        request: Request,
        answer: Completion,
        seed: int,
        captured: CapturedPrompt,
    ) -> tuple[Forced, ...]:
        """The captured distributions and the watched server's own, after the same prefixes.

        The first one comes with the answer, since no draft precedes it; those along the
        captured answer are asked for, after a greedy answer only, as ``forced`` does.
        """
        found = [Forced(index=0, target=captured.top(0), speculating=_first_top(answer))]
        wanted = self.settings.forced_positions if self.settings.variant.greedy else 0
        said = known_prefix(captured.completion().positions)
        for index in chosen_positions(len(said), wanted, seed=seed):
            if index and captured.tops[index]:
                one = await self.watched(_one_more(request, ids, said[:index]))
                target = captured.top(index)
                found.append(Forced(index=index, target=target, speculating=_first_top(one)))
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
            seconds = self.books.clock() - began
            found = whole or _salvaged(chunks, wall_seconds=seconds)
            ended(usage_of(found, wanted=_wanted(request)))
        if whole is None or not whole.finished:
            raise WireError("the completion stream ended without its final chunk")
        if len(whole.positions) != whole.timings.generated_tokens:
            raise WireError(
                f"the stream held {len(whole.positions)} tokens, its timings say"
                f" {whole.timings.generated_tokens}"
            )
        return whole


def _one_more(request: Request, ids: Sequence[int], said: Sequence[int]) -> Request:
    """The request for the token after what was said, from what the server still holds."""
    return {**request, "prompt": [*ids, *said], "n_predict": 1, "cache_prompt": True}


def _wanted(request: Request) -> int | None:
    tokens = request.get("n_predict")
    return tokens if isinstance(tokens, int) else None


def _known_top(captured: CapturedPrompt | None, said: Sequence[int]) -> tuple[TopToken, ...]:
    """The captured distribution after ``said``; empty if something else was said then."""
    place = len(said)
    if captured is None or place >= len(captured.ids) or captured.ids[:place] != tuple(said):
        return ()
    return captured.top(place)


def _first_top(completion: Completion) -> tuple[TopToken, ...]:
    return completion.positions[0].top if completion.positions else ()


def _probe_outcome(outcome: Outcome) -> ProbeOutcome:
    if outcome is Outcome.LOADING:
        return ProbeOutcome.SKIPPED_NOT_READY
    return ProbeOutcome.TIMEOUT if outcome is Outcome.TIMEOUT else ProbeOutcome.FAILED


async def _token_ids(arms: Arms, prompt: Prompt, settings: ProbeSettings) -> tuple[int, ...]:
    """The prompt as the server's own chat template and tokenizer make it, as deep as asked for.

    Filler is cut to what leaves room for the answer in both contexts.
    """
    variant = settings.variant
    alone = await _tokenized(arms.speculating, prompt.text, settings)
    if not variant.depth_tokens:
        return alone
    sample = await _tokenized(arms.speculating, deep_text(prompt, SAMPLE_SENTENCES), settings)
    sample_tokens = len(sample) - len(alone)
    room = min([variant.depth_tokens, *[size async for size in _rooms(arms, settings)]])
    sentences = sentences_for(
        room - len(alone), sample_sentences=SAMPLE_SENTENCES, sample_tokens=sample_tokens
    )
    while sentences > 0:
        ids = await _tokenized(arms.speculating, deep_text(prompt, sentences), settings)
        if len(ids) <= room:
            return ids
        # At least one sentence less each time: some are longer than those of the sample.
        sentences -= 1 + sentences_for(
            len(ids) - room, sample_sentences=SAMPLE_SENTENCES, sample_tokens=sample_tokens
        )
    return alone


async def _tokenized(client: LlamaClient, text: str, settings: ProbeSettings) -> tuple[int, ...]:
    query = "?autoload=false" if settings.model else ""
    message = template_request(text, thinking=settings.variant.thinking, model=settings.model)
    body = await client.post(f"/apply-template{query}", message, timeout_seconds=ASIDE_SECONDS)
    content = {"content": parse_prompt(body), "add_special": True}
    extra = {"model": settings.model} if settings.model else {}
    body = await client.post(
        f"/tokenize{query}", {**content, **extra}, timeout_seconds=ASIDE_SECONDS
    )
    return parse_tokens(body)


async def _rooms(arms: Arms, settings: ProbeSettings) -> AsyncIterator[int]:
    """How long a prompt may be for each server that says how long its context is."""
    params = {"model": settings.model, "autoload": "false"} if settings.model else None
    for client in (arms.speculating, arms.target_only):
        if client is None:
            continue
        reply = await client.get("/props", timeout_seconds=ASIDE_SECONDS, params=params)
        if reply.outcome is not Outcome.OK:
            raise RequestFailed(reply.outcome, reply.detail)
        context_tokens = parse_props(reply.body).context_tokens
        if context_tokens is not None:
            yield context_tokens - settings.tokens - SPARE_TOKENS


def _salvaged(chunks: list[Chunk], *, wall_seconds: float) -> Completion | None:
    """What an unfinished stream is known to have generated."""
    try:
        return assemble(chunks, wall_seconds=wall_seconds)
    except WireError:
        return None


def _ignore(_: Usage) -> None:
    """The target-only server's load is not the watched server's."""
