"""A llama-server in a few lines, with a fault of speculation that can be planted.

Its model has a state that every token moves, as recurrent layers have. Drafts are made with the
state that was there before, so some are rejected, and what they did to it must then be undone. With
``leak`` above 0 that is done badly: a share of it stays. Nothing else is wrong with such a
server, and a request that does not draft is answered rightly.

`tests/test_planted_fault_real.py` holds it to what a real server does.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from aiohttp import web

Array = npt.NDArray[np.float64]

VOCABULARY = 256  # bytes; the answer is written in letters
STATE = 12
STEP_SECONDS = 1e-3


@dataclass
class Slot:
    """What the server holds of the last request: tokens it has read, and the state after."""

    ids: tuple[int, ...] = ()
    state: Array = field(default_factory=lambda: np.zeros(STATE))


@dataclass
class Simulated:
    """A server with one slot.

    Args:
        draft_n_max: most tokens to draft in a step; 0 is a target-only server.
        drafting_cost: what a step that drafts takes, in plain steps.
        leak: share of what a rejected draft did to the state that is not undone.
        seed: of the weights.
    """

    draft_n_max: int = 3
    drafting_cost: float = 1.0
    leak: float = 0.0
    seed: int = 1
    kept: list[int] = field(default_factory=list)
    drafts: int = 0
    draft_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    _slot: Slot = field(default_factory=Slot)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self._bigrams = rng.normal(0, 2, (VOCABULARY, VOCABULARY))
        letters = np.arange(VOCABULARY)
        self._bigrams[:, (letters < 97) | (letters > 122)] -= 12
        self._keeps = np.linspace(
            0.3, 0.99, STATE
        )  # of itself at each token: short and long memory
        self._embed = rng.normal(0, 1, (VOCABULARY, STATE))
        self._read_out = rng.normal(0, 0.5, (VOCABULARY, STATE))
        self.kept = [0] * self.draft_n_max

    # --- the model ---

    def _after(self, state: Array, ids: Sequence[int]) -> Array:
        if not ids:
            return state
        ages = np.arange(len(ids) - 1, -1, -1)[:, None]
        moved = np.sqrt(1 - self._keeps**2) * self._embed[list(ids)]
        found: Array = self._keeps ** len(ids) * state + (self._keeps**ages * moved).sum(axis=0)
        return found

    def _logprobs(self, state: Array, last: int) -> Array:
        logits = self._bigrams[last] + self._read_out @ state
        logits = logits - logits.max()
        found: Array = logits - np.log(np.exp(logits).sum())
        return found

    def _prompt(self, ids: tuple[int, ...], *, cached: bool) -> Array:
        """The state after a prompt; what is held of it already is not read again."""
        held = len(self._slot.ids)
        if cached and held and ids[:held] == self._slot.ids:
            return self._after(self._slot.state, ids[held:])
        return self._after(np.zeros(STATE), ids)

    # --- decoding ---

    def generate(self, ids: tuple[int, ...], wanted: int, top: int, *, cached: bool) -> list[Any]:
        """The chunks of a greedy answer."""
        state, said = self._prompt(ids, cached=cached), [*ids]
        first = self._logprobs(state, said[-1])
        said.append(int(first.argmax()))
        chunks = [self._chunk(said, 1, 0.0, (0, 0), _tops(first, top))]
        drafted, accepted, seconds = 0, 0, 0.0
        while (made := len(said) - len(ids)) < wanted:
            draft = self._draft(state, said[-1], min(self.draft_n_max, wanted - made - 1))
            tokens, state, logprobs = self._verify(state, said[-1], draft)
            drafted, accepted = drafted + len(draft), accepted + len(tokens) - 1
            seconds += STEP_SECONDS * (self.drafting_cost if draft else 1.0)
            self._count(draft, len(tokens) - 1)
            for token in tokens:
                said.append(token)
                tops = _tops(logprobs, top) if not draft else []
                made = len(said) - len(ids)
                chunks.append(self._chunk(said, made, seconds, (drafted, accepted), tops))
        self.tokens += wanted
        self.seconds += seconds
        self._slot = Slot(tuple(said[:-1]), state)
        end = {**chunks[-1], "content": "", "tokens": [], "stop": True}
        end.pop("completion_probabilities", None)
        return [*chunks, end]

    def _draft(self, state: Array, last: int, most: int) -> list[int]:
        found: list[int] = []
        for _ in range(most):
            found.append(int(self._logprobs(state, found[-1] if found else last).argmax()))
        return found

    def _verify(
        self, state: Array, last: int, draft: Sequence[int]
    ) -> tuple[list[int], Array, Array]:
        """The tokens of a step, the state before the last of them, and what it was drawn from."""
        tokens: list[int] = []
        for place in range(len(draft) + 1):
            state = self._after(state, [tokens[-1] if tokens else last])
            logprobs = self._logprobs(state, tokens[-1] if tokens else last)
            tokens.append(int(logprobs.argmax()))
            if place < len(draft) and tokens[-1] != draft[place]:
                ahead = self._after(state, draft[place:])
                state = state + self.leak * (ahead - state)
                break
        return tokens, state, logprobs

    def _count(self, draft: Sequence[int], kept: int) -> None:
        self.drafts += bool(draft)
        self.draft_tokens += len(draft)
        for place in range(kept):
            self.kept[place] += 1

    @staticmethod
    def _chunk(
        said: Sequence[int], made: int, seconds: float, draft: tuple[int, int], tops: list[Any]
    ) -> dict[str, Any]:
        timings: dict[str, Any] = {
            "cache_n": 0,
            "prompt_n": len(said) - made,
            "prompt_ms": 1.0,
            "predicted_n": made,
            "predicted_ms": 1e3 * seconds,
        }
        if draft[0]:
            timings |= {"draft_n": draft[0], "draft_n_accepted": draft[1]}
        token = said[-1]
        chunk: dict[str, Any] = {
            "content": chr(token),
            "tokens": [token],
            "stop": False,
            "tokens_predicted": made,
            "timings": timings,
        }
        if tops:
            chunk["completion_probabilities"] = [
                {"id": token, "token": chr(token), "logprob": tops[0]["logprob"]}
                | {"top_logprobs": tops}
            ]
        return chunk

    # --- HTTP ---

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on a free loopback port; yields the URL."""
        app = web.Application()
        app.router.add_post("/apply-template", self._template)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/completion", self._completion)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _template(self, request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        return web.json_response({"prompt": "".join(m["content"] for m in messages)})

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": list((await request.json())["content"].encode())})

    async def _completion(self, request: web.Request) -> web.Response:
        asked = await request.json()
        chunks = self.generate(
            tuple(asked["prompt"]),
            asked["n_predict"],
            asked["n_probs"],
            cached=asked["cache_prompt"],
        )
        body = b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)
        return web.Response(body=body, content_type="text/event-stream")

    async def _metrics(self, _: web.Request) -> web.Response:
        positions = {
            f'spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}': kept
            for place, kept in enumerate(self.kept)
        }
        series = {
            "tokens_predicted_total": self.tokens,
            "tokens_predicted_seconds_total": self.seconds,
            "spec_decode_num_drafts_total": self.drafts,
            "spec_decode_num_draft_tokens_total": self.draft_tokens,
            "spec_decode_num_accepted_tokens_total": sum(self.kept),
            "requests_processing": 0,
            "requests_deferred": 0,
            **positions,
        }
        lines = (f"llamacpp:{name} {value}\n" for name, value in series.items())
        return web.Response(text="".join(lines))


def _tops(logprobs: Array, top: int) -> list[dict[str, Any]]:
    best = np.argsort(-logprobs, kind="stable")[:top]
    return [{"id": int(t), "token": chr(t), "logprob": float(logprobs[t])} for t in best]
