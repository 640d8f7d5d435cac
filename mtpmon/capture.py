"""What a server once said to the suite's prompts, kept in a file to compare with later.

A capture holds, for each prompt, the answer's tokens, their distributions and what each
decode step cost, and where all that comes from. It serves as a *reference* (how far has a
quantized model drifted from this one?) or as a *baseline* (what does this very server say,
and what does a step cost it, without drafting?). Which of the two it is fit for is judged
here; docs/captures.md describes the file.
"""

import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from mtpmon.model import Completion, Identity, Position, Props, StepStream, Timings, TopToken
from mtpmon.request import Request
from mtpmon.suite import Prompt

FORMAT: Final = "mtpmon.capture"
VERSION: Final = 1
MOST_BYTES: Final = 512 * 1024**2  # unpacked; 40 prompts of 64 tokens and 64 entries are 4 MB
DECIMALS: Final = 6  # of a log-probability: the server's own float32 is not much better

# What tokenizers take apart differently: merges, digits, indentation, casing, scripts.
TOKENIZER_SAMPLES: Final = (
    "Drafting 3 tokens: naïve façade, 你好, 🙂!",
    "def f(x):\n    return x ** 2  # 1234567890\n",
    "  Leading and trailing spaces\t\tand tabs  ",
    "ANTIDISESTABLISHMENTARIANISM antidisestablishmentarianism",
    "Привет, мир! مرحبا بالعالم שלום नमस्ते こんにちは",
    'https://example.org/a?b=c&d=%20 {"json": [1, 2.5e-3, null]}',
    "<|im_start|>user\n<s>[INST] </s><|endoftext|>",
)


class CaptureError(ValueError):
    """Bytes that are no usable capture. The text is for the operator."""


class NewerCaptureError(CaptureError):
    """A capture written by a later mtpmon, in a format that this one does not know."""


class Use(StrEnum):
    """What a capture is compared with the watched server for. The closed set of labels."""

    REFERENCE = "reference"
    BASELINE = "baseline"


class Tokenizer(msgspec.Struct, frozen=True):
    """A tokenizer: SHA-256 over what it makes of the samples, and its size if it is told."""

    sha256: str
    vocabulary: int | None = None

    def differs(self, other: "Tokenizer") -> bool:
        """Whether the two are certainly not the same; a size that is not told says nothing."""
        sizes = (self.vocabulary, other.vocabulary)
        return self.sha256 != other.sha256 or (None not in sizes and sizes[0] != sizes[1])


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself. ``model_file`` is a name without its directories."""

    build: str | None = None
    model: str | None = None
    model_file: str | None = None
    quantization: str | None = None
    parameters: int | None = None
    model_bytes: int | None = None
    context_tokens: int | None = None
    slots: int | None = None
    tokenizer: Tokenizer


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the prompts were asked; always greedily, at ``temperature`` 0."""

    tokens: int
    top_logprobs: int
    seed: int
    temperature: float = 0.0


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a capture comes from.

    ``drafted``: the server was seen to draft. ``requests_processing``: those of others when
    the capture began; ``None`` if it does not tell.
    """

    mtpmon: str
    date: str
    unix_seconds: float
    server: ServerFacts
    sampling: Sampling
    drafted: bool
    requests_processing: int | None = None
    note: str = ""


_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Logprob = Annotated[float, msgspec.Meta(le=1.0)]


class CapturedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and its answer.

    ``ids``, ``texts`` and ``tops`` have one entry for each generated token. An id is
    ``None``, and a text empty, inside a character that the stream had not finished. A top
    list holds token ids and natural-log probabilities, likeliest first; it is empty where the
    server gave no distribution.
    """

    id: str
    task: str
    text_sha256: str
    unix_seconds: float
    prompt_ids: tuple[_Natural, ...]
    ids: tuple[_Natural | None, ...]
    texts: tuple[str, ...]
    tops: tuple[tuple[tuple[_Natural, _Logprob], ...], ...]
    timings: Timings
    stream: StepStream
    wall_seconds: float

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError(f"the prompt {self.id!r} has no tokens")
        if not len(self.ids) == len(self.texts) == len(self.tops):
            raise ValueError(f"the answer to {self.id!r} has lists of different lengths")

    def top(self, index: int) -> tuple[TopToken, ...]:
        """The distribution at a position; empty where there is none."""
        return tuple(TopToken(token, logprob) for token, logprob in self.tops[index])

    def completion(self) -> Completion:
        """The answer, to compare another with. Without times: they are of another day."""
        return Completion(
            positions=tuple(
                Position(token, text, self.top(index))
                for index, (token, text) in enumerate(zip(self.ids, self.texts, strict=True))
            ),
            timings=Timings(
                prompt_tokens=len(self.prompt_ids),
                prompt_seconds=0.0,
                cached_tokens=0,
                generated_tokens=len(self.ids),
                generation_seconds=0.0,
            ),
            stream=StepStream(),
            wall_seconds=0.0,
        )


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A whole capture: what it is, where it comes from, what was said."""

    format: str = FORMAT
    version: int = VERSION
    provenance: Provenance
    prompts: tuple[CapturedPrompt, ...]

    def __post_init__(self) -> None:
        names = [prompt.id for prompt in self.prompts]
        if not names:
            raise ValueError("there is no prompt in it")
        if len(set(names)) != len(names):
            raise ValueError("a prompt is in it twice")


class Usable(msgspec.Struct, frozen=True, kw_only=True):
    """The captures that a server may be compared with now."""

    reference: Capture | None = None
    baseline: Capture | None = None


# --- the file -----------------------------------------------------------------------------


class _Head(msgspec.Struct):
    format: str
    version: int


def encode(capture: Capture) -> bytes:
    """Write a capture: gzip over JSON. Equal captures give equal bytes."""
    return gzip.compress(msgspec.json.encode(capture, order="deterministic"), mtime=0)


def decode(data: bytes, *, most_bytes: int = MOST_BYTES) -> Capture:
    """Read a capture.

    Args:
        data: what ``encode`` wrote.
        most_bytes: that it may unpack to.

    Raises:
        NewerCaptureError: a later mtpmon wrote it.
        CaptureError: it is something else, cut short, or contradicts itself.
    """
    text = _unpacked(data, most_bytes)
    try:
        head = msgspec.json.decode(text, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CaptureError(f"is not a capture of mtpmon: {error}") from error
    if head.format != FORMAT:
        raise CaptureError(f"is not a capture of mtpmon: its format is {head.format!r}")
    if head.version > VERSION:
        raise NewerCaptureError(
            f"has format version {head.version}, this mtpmon reads up to {VERSION}: upgrade it"
        )
    try:
        return msgspec.json.decode(text, type=Capture)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CaptureError(f"is a damaged capture: {error}") from error


def _unpacked(data: bytes, most_bytes: int) -> bytes:
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        text = unpacking.decompress(data, most_bytes)
    except zlib.error as error:
        raise CaptureError("is not a capture of mtpmon: it is not gzip, or damaged") from error
    if not unpacking.eof:
        size = f"unpacks to more than {most_bytes} bytes"
        raise CaptureError(size if len(text) == most_bytes else "is cut short")
    return text


# --- making one ---------------------------------------------------------------------------


def tokenizer_of(tokenized: Sequence[Sequence[int]], vocabulary: int | None) -> Tokenizer:
    """A tokenizer's fingerprint, from what it made of ``TOKENIZER_SAMPLES``."""
    lines = "\n".join(",".join(map(str, ids)) for ids in tokenized)
    return Tokenizer(hashlib.sha256(lines.encode()).hexdigest(), vocabulary)


def server_facts(props: Props, tokenizer: Tokenizer, meta: Mapping[str, int | None]) -> ServerFacts:
    """What is kept of a server's ``/props`` and of its list of models."""
    path = props.model_path
    return ServerFacts(
        build=props.build,
        model=props.model,
        model_file=path.replace("\\", "/").rsplit("/", 1)[-1] if path is not None else None,
        quantization=props.quantization,
        parameters=meta.get("n_params"),
        model_bytes=meta.get("size"),
        context_tokens=props.context_tokens,
        slots=props.slots,
        tokenizer=tokenizer,
    )


def captured_prompt(
    prompt: Prompt, prompt_ids: Sequence[int], answer: Completion, *, unix_seconds: float
) -> CapturedPrompt:
    """What is kept of one answer. Log-probabilities are rounded to a millionth of a nat."""
    return CapturedPrompt(
        id=prompt.id,
        task=prompt.task,
        text_sha256=text_sha256(prompt.text),
        unix_seconds=unix_seconds,
        prompt_ids=tuple(prompt_ids),
        ids=tuple(position.id for position in answer.positions),
        texts=tuple(position.text for position in answer.positions),
        tops=tuple(_ranked(position.top) for position in answer.positions),
        timings=answer.timings,
        stream=answer.stream,
        wall_seconds=answer.wall_seconds,
    )


def text_sha256(text: str) -> str:
    """The fingerprint of a prompt's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _ranked(top: Sequence[TopToken]) -> tuple[tuple[int, float], ...]:
    ordered = sorted(top, key=lambda entry: (-entry.logprob, entry.id))
    return tuple((entry.id, round(entry.logprob, DECIMALS)) for entry in ordered)


# --- using one ----------------------------------------------------------------------------


def holds(capture: Capture, prompt: Prompt) -> bool:
    """Whether this prompt, with this text, is in a capture."""
    return _entry(capture, prompt) is not None


def recorded(
    capture: Capture | None, prompt: Prompt, prompt_ids: Sequence[int]
) -> CapturedPrompt | None:
    """What a capture has to a prompt, if it came to the server as these very tokens.

    Another chat template, thinking mode or text before the prompt makes other tokens, and
    what follows them is not comparable.
    """
    entry = _entry(capture, prompt) if capture is not None else None
    return entry if entry is not None and entry.prompt_ids == tuple(prompt_ids) else None


def _entry(capture: Capture, prompt: Prompt) -> CapturedPrompt | None:
    sha256 = text_sha256(prompt.text)
    for entry in capture.prompts:
        if entry.id == prompt.id:
            return entry if entry.text_sha256 == sha256 else None
    return None


def plain_requests(capture: Capture) -> tuple[Request, ...]:
    """The decode steps of the captured requests, from which a plain step's cost is measured.

    Empty for a server that drafted: its steps are not plain.
    """
    origin = capture.provenance
    if origin.drafted:
        return ()
    identity = Identity(build=origin.server.build, model=origin.server.model)
    return tuple(
        Request(
            arm="target_only",
            steps=entry.stream.steps,
            unix_seconds=entry.unix_seconds,
            task=entry.task,
            prompt=entry.id,
            whole=entry.stream.resolved,
            context_tokens=entry.timings.prompt_tokens
            + entry.timings.cached_tokens
            + entry.timings.generated_tokens,
            identity=identity,
        )
        for entry in capture.prompts
    )


def refusals(
    capture: Capture,
    use: Use,
    *,
    server: ServerFacts,
    prompts: Sequence[Prompt],
    top_logprobs: int,
) -> tuple[str, ...]:
    """Why a capture must not be compared with a server; empty if it may.

    Args:
        capture: what was said.
        use: what for; a baseline must be of the same model and build, a reference need not.
        server: the one that is watched.
        prompts: what it is probed with.
        top_logprobs: how many log-probabilities a probe asks for.
    """
    origin, found = capture.provenance, []
    if origin.server.tokenizer.differs(server.tokenizer):
        found.append("it is from another tokenizer")
    if not any(holds(capture, prompt) for prompt in prompts):
        found.append("it has none of the prompts that are probed with")
    if origin.sampling.top_logprobs != top_logprobs:
        found.append(
            f"it has {origin.sampling.top_logprobs} log-probabilities for a token (n_probs), probes"
            f" ask for {top_logprobs}"
        )
    if use is Use.BASELINE:
        found += _strangeness(origin.server, server)
        if origin.drafted:
            found.append("the captured server drafted: capture it started without --spec-type")
    return tuple(found)


def _strangeness(captured: ServerFacts, server: ServerFacts) -> list[str]:
    """What makes a server another one than the captured one. A name not told is another."""
    found = []
    names = [(captured.model_file, server.model_file), (captured.model, server.model)]
    both_known = next((pair for pair in names if None not in pair), None)
    details = (
        (captured.quantization, server.quantization),
        (captured.parameters, server.parameters),
        (captured.model_bytes, server.model_bytes),
    )
    if both_known is None or both_known[0] != both_known[1]:
        ours, theirs = both_known or names[0]
        found.append(f"it is of another model: {_said(ours)}, the server has {_said(theirs)}")
    elif any(None not in pair and pair[0] != pair[1] for pair in details):
        ours, theirs = (", ".join(map(_said, side)) for side in zip(*details, strict=True))
        found.append(
            "it is of another model of the same name: quantization, parameters and bytes were"
            f" {ours} and are {theirs}"
        )
    if captured.build is None or captured.build != server.build:
        ours, theirs = _said(captured.build), _said(server.build)
        found.append(f"it is of another build: {ours}, the server is {theirs}")
    return found


def _said(value: object) -> str:
    return "not known" if value is None else str(value)
