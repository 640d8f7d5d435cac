"""Captures on disk, and whether they fit the server that is watched."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mtpmon.capture import (
    MOST_BYTES,
    TOKENIZER_SAMPLES,
    Capture,
    CaptureError,
    NewerCaptureError,
    ServerFacts,
    Usable,
    Use,
    decode,
    encode,
    plain_requests,
    refusals,
    server_facts,
    tokenizer_of,
)
from mtpmon.client import LlamaClient, RequestFailed
from mtpmon.model import Outcome, Props
from mtpmon.request import Request
from mtpmon.suite import Prompt
from mtpmon.wire import WireError, model_meta, parse_tokens

NOT_JUDGED = "the server did not tokenize, so it was not judged"


def read_capture(path: Path) -> Capture:
    """Read a capture file.

    Raises:
        NewerCaptureError: a later mtpmon wrote it.
        CaptureError: it cannot be read, or is no capture.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise CaptureError(f"cannot be read: {error.strerror}") from error
    return decode(data)


def write_capture(path: Path, capture: Capture) -> int:
    """Write a capture file, whole or not at all, over one that is there. Returns its size.

    Raises:
        OSError: it cannot be written.
    """
    data = encode(capture)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    return len(data)


async def facts_of(
    client: LlamaClient, props: Props, *, model: str | None, timeout_seconds: float
) -> ServerFacts:
    """What a server says of itself and its tokenizer.

    Args:
        client: the server.
        props: what ``/props`` has said.
        model: which one of a router; it is not loaded for this.
        timeout_seconds: for each request.

    Raises:
        RequestFailed: it does not tokenize now.
        WireError: it answers something else.
    """
    extra = {"model": model} if model else {}
    query = "?autoload=false" if model else ""
    tokenized = []
    for sample in TOKENIZER_SAMPLES:
        request = {"content": sample, "add_special": True, **extra}
        body = await client.post(f"/tokenize{query}", request, timeout_seconds=timeout_seconds)
        tokenized.append(parse_tokens(body))
    reply = await client.get("/v1/models", timeout_seconds=timeout_seconds)
    meta: Mapping[str, int | None] = {}
    if reply.outcome is Outcome.OK:
        with suppress(WireError):
            meta = model_meta(reply.body, model)
    return server_facts(props, tokenizer_of(tokenized, meta.get("n_vocab")), meta)


@dataclass(slots=True, kw_only=True)
class Captures:
    """The captures configured for one server.

    Args:
        held: what was read for each use, or why it can never be used.
        prompts: what the server is probed with.
        top_logprobs: how many log-probabilities a probe asks for.

    Attributes:
        reasons: after a check, why each cannot be used; empty for one that can. Nothing is
            known of a use that is not in it.
    """

    held: Mapping[Use, Capture | str]
    prompts: Sequence[Prompt]
    top_logprobs: int
    reasons: Mapping[Use, tuple[str, ...]] = field(default_factory=dict, init=False)
    _checked: tuple[object, ...] | None = field(default=None, init=False)
    _props: Props = field(default_factory=Props, init=False)

    @property
    def usable(self) -> Usable:
        """Those that may be compared with now."""
        fit = {use: self.held[use] for use, reasons in self.reasons.items() if not reasons}
        reference, baseline = fit.get(Use.REFERENCE), fit.get(Use.BASELINE)
        return Usable(
            reference=reference if isinstance(reference, Capture) else None,
            baseline=baseline if isinstance(baseline, Capture) else None,
        )

    def refused(self) -> dict[Use, tuple[str, ...]]:
        """Why each one that is configured cannot be used now; empty for one that can."""
        return {use: self.reasons.get(use, (NOT_JUDGED,)) for use in self.held}

    def plain_requests(self) -> tuple[Request, ...]:
        """Requests from which the plain step's cost can be measured; none if none hold."""
        baseline = self.usable.baseline
        return plain_requests(baseline) if baseline is not None else ()

    async def check(
        self,
        client: LlamaClient,
        props: Props | None,
        *,
        restarts: int,
        model: str | None,
        timeout_seconds: float,
    ) -> bool:
        """Judge the captures, unless this very server has been judged before.

        Args:
            client: the server, which must be ready.
            props: what it has just said of itself; ``None``: nothing this time.
            restarts: how often it has been seen to restart.
            model: which one of a router.
            timeout_seconds: for each request.

        Returns:
            Whether ``reasons`` are new. While the server cannot be asked, nothing is usable.
        """
        self._props = props or self._props
        seen = self._props
        now = (restarts, seen.build, seen.model, seen.model_path, seen.quantization)
        if now == self._checked:
            return False
        self._checked, self.reasons = None, {}
        try:
            server = await facts_of(client, seen, model=model, timeout_seconds=timeout_seconds)
        except (RequestFailed, WireError):
            return True
        self._checked = now
        self.reasons = {
            use: (held,)
            if isinstance(held, str)
            else refusals(
                held,
                use,
                server=server,
                prompts=self.prompts,
                top_logprobs=self.top_logprobs,
            )
            for use, held in self.held.items()
        }
        return True


def read_for_use(path: Path) -> Capture | str:
    """A capture, or why it can never be used; what is no capture at all is a mistake.

    Raises:
        CaptureError: it cannot be read, or is no capture.
    """
    try:
        return read_capture(path)
    except NewerCaptureError as error:
        return f"it {error}"
