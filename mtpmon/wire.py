"""Everything known about llama-server's bytes, turned into the nouns of ``model``.

Pure: bytes and text in, frozen values out. Bad input costs as little as possible: one bad
line costs one line, one bad field one field. What cannot be understood at all raises
``WireError`` with a sentence for the operator.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from mtpmon.model import (
    Completion,
    Counters,
    Outcome,
    Position,
    Props,
    Reading,
    Timings,
    TopToken,
)
from mtpmon.steps import steps

MAX_POSITIONS = 1024  # a draft is a handful of tokens; a body that claims more is broken


class WireError(ValueError):
    """A reply that cannot be what its address promises. The text is for the operator."""


# --- /metrics -----------------------------------------------------------------------------

_LINE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{(?P<labels>(?:[^\"{}]|\"(?:[^\"\\]|\\.)*\")*)\})?"
    r"[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?[ \t]*"
)
_NUMBER = re.compile(r"\+?(?P<mantissa>\d+(?:\.(?P<decimals>\d*))?)(?:[eE](?P<exponent>[+-]?\d+))?")
_POSITION = re.compile(r'(?:^|,)\s*position="(\d{1,4})"')

_POSITION_SERIES = "spec_decode_num_accepted_tokens_per_pos"
# `prompt_tokens_seconds` and `predicted_tokens_seconds` are never used: a read by anyone
# resets them, so a second scraper would take our samples.

_STREAM_DIGITS = 6  # significant digits of a C++ stream at default precision


def reading(text: str, *, whole: bool = True) -> Reading | None:
    """A printed counter with its resolution, or ``None`` if it is not a counter value.

    A C++ stream prints six significant digits and switches to an exponent at 1e6. So an
    integer without exponent is exact, however long; ``1.04e+06`` is known to ± 5.

    Args:
        text: the value as printed; NaN, infinities and negatives are no counter values.
        whole: whether the counter counts things. Of one that does not, ``1`` may be 1.000001.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value = float(text)
    if not math.isfinite(value):
        return None
    decimals, exponent = match["decimals"], match["exponent"]
    if whole and exponent is None and not decimals:
        return Reading(value)
    digits = match["mantissa"].replace(".", "").lstrip("0")
    if value == 0:
        return Reading(value)
    last_place = int(exponent or 0) - len(decimals or "")
    if len(digits) <= _STREAM_DIGITS:  # trailing zeros are not printed, so they are meant
        last_place = math.floor(math.log10(value)) - (_STREAM_DIGITS - 1)
    return Reading(value, 10.0**last_place)


def parse_metrics(body: bytes, *, start_token: str | None = None) -> Counters:
    """Parse a llama-server ``/metrics`` body.

    A line that cannot be read is counted in ``bad_lines`` and costs itself only; so does
    a last line without a line end, since a cut number looks like a valid smaller one.
    Two different values for one series cost that series.

    Args:
        body: the reply's bytes, any encoding.
        start_token: the ``Process-Start-Time-Unix`` header, opaque.

    Raises:
        WireError: nothing in the body is a llama-server series.
    """
    series, bad = _split_lines(body)
    if not series:
        raise WireError(
            "no llama-server series in the reply to /metrics: is this the address of a"
            f" llama-server? It begins with {_excerpt(body)}"
        )
    values: dict[str, Reading] = {}
    per_position: dict[int, int] = {}
    for (name, place), texts in series.items():
        value = reading(texts[0], whole=not name.endswith("_seconds"))
        must_be_exact = place is not None
        if value is None or len(set(texts)) > 1 or (must_be_exact and value.quantum):
            bad += 1
        elif place is not None:
            per_position[place] = int(value.value)
        else:
            values[name] = value
    gapless = set(per_position) == set(range(len(per_position)))

    def whole(name: str) -> int | None:
        return int(values[name].value) if name in values else None

    return Counters(
        start_token=start_token,
        drafts=values.get("spec_decode_num_drafts"),
        draft_tokens=values.get("spec_decode_num_draft_tokens"),
        accepted_tokens=values.get("spec_decode_num_accepted_tokens"),
        accepted_by_position=tuple(per_position[i] for i in range(len(per_position)))
        if per_position and gapless
        else None,
        generated_tokens=values.get("tokens_predicted"),
        generation_seconds=values.get("tokens_predicted_seconds"),
        prompt_tokens=values.get("prompt_tokens"),
        prompt_seconds=values.get("prompt_seconds"),
        cached_prompt_tokens=values.get("prompt_tokens_cached"),
        requests_processing=whole("requests_processing"),
        requests_deferred=whole("requests_deferred"),
        bad_lines=bad,
    )


def _split_lines(body: bytes) -> tuple[dict[tuple[str, int | None], list[str]], int]:
    """The server's own series as (name, position) -> values printed, and the bad lines.

    Series of other programs, such as a proxy's, are neither.
    """
    lines = body.decode("utf-8", errors="replace").split("\n")
    bad = 1 if lines.pop().strip() else 0
    series: dict[tuple[str, int | None], list[str]] = {}
    for raw in lines:
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            bad += 1
            continue
        name = _series(match["name"])
        if name is None:
            continue
        place = None
        if name == _POSITION_SERIES:
            found = _POSITION.search(match["labels"] or "")
            if found is None or int(found[1]) >= MAX_POSITIONS:
                bad += 1
                continue
            place = int(found[1])
        series.setdefault((name, place), []).append(match["value"])
    return series, bad


def _series(name: str) -> str | None:
    """The series name without prefix and ``_total``, or ``None`` if it is not the server's.

    Some collectors turn the colon of the prefix into an underscore.
    """
    for prefix in ("llamacpp:", "llamacpp_"):
        if name.startswith(prefix):
            return name.removeprefix(prefix).removesuffix("_total")
    return None


def _excerpt(body: bytes, limit: int = 60) -> str:
    """The beginning of a body, safe to print on one line."""
    return repr(body[:limit].decode("utf-8", errors="replace"))


# --- /props, /v1/models, errors -----------------------------------------------------------


def _object(body: bytes, what: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(
            f"the reply to {what} is not a JSON object; it begins with {_excerpt(body)}"
        ) from error


_BUILD = re.compile(r"b(\d+)-")


def parse_props(body: bytes) -> Props:
    """Parse a ``/props`` body; a field of an unexpected type counts as absent.

    Builds from a source archive call themselves ``b0-unknown`` or ``b1-…``: their number
    says nothing, so ``build_number`` is ``None``.

    Raises:
        WireError: the body is not a JSON object.
    """
    data = _object(body, "/props")
    build = _text(data, "build_info")
    number = _BUILD.match(build or "")
    settings = data.get("default_generation_settings")
    path = _text(data, "model_path")
    alias = _text(data, "model_alias")
    return Props(
        build=build,
        build_number=int(number[1]) if number and int(number[1]) > 1 else None,
        # Some builds give the path as the alias. A name such as org/model stays whole.
        model=path.rsplit("/", 1)[-1] if path and alias in (None, path) else alias,
        model_path=path,
        quantization=_text(data, "model_ftype"),
        context_tokens=_whole(settings, "n_ctx") if isinstance(settings, dict) else None,
        slots=_whole(data, "total_slots"),
        sleeping=data.get("is_sleeping") is True,
        metrics_enabled=_flag(data, "endpoint_metrics"),
        slots_enabled=_flag(data, "endpoint_slots"),
        router=data.get("role") == "router",
        chat_template=bool(_text(data, "chat_template")),
    )


def _text(data: Mapping[str, Any], key: str) -> str | None:
    value = data.get(key)
    return value if isinstance(value, str) and value else None


def _whole(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(data: Mapping[str, Any], key: str) -> bool | None:
    value = data.get(key)
    return value if isinstance(value, bool) else None


def model_statuses(body: bytes) -> dict[str, str | None]:
    """Model names (aliases too) of a ``/models`` reply → a router's status of each.

    A server of a single model gives no status: ``None``.

    Raises:
        WireError: there is no list of models.
    """
    entries = _object(body, "/models").get("data")
    if not isinstance(entries, list):
        raise WireError(f"no list of models in the reply to /models: {_excerpt(body)}")
    found: dict[str, str | None] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        status = entry.get("status")
        value = _text(status, "value") if isinstance(status, dict) else None
        aliases = entry.get("aliases")
        for name in (entry.get("id"), *(aliases if isinstance(aliases, list) else ())):
            if isinstance(name, str):
                found[name] = value
    return found


def model_meta(body: bytes, model: str | None) -> dict[str, int | None]:
    """What a ``/v1/models`` reply says of a model: ``n_vocab``, ``n_params``, ``size``.

    Args:
        body: the reply.
        model: which one of a router; of a server with one model it need not be named.

    Returns:
        Those numbers; ``None`` for one that is not told.

    Raises:
        WireError: there is no list of models.
    """
    entries = _object(body, "/v1/models").get("data")
    if not isinstance(entries, list):
        raise WireError(f"no list of models in the reply to /v1/models: {_excerpt(body)}")
    named = [entry for entry in entries if isinstance(entry, dict)]
    if model is not None:
        named = [e for e in named if model in (e.get("id"), *_listed(e.get("aliases")))]
    meta = named[0].get("meta") if len(named) == 1 else None
    found = meta if isinstance(meta, dict) else {}
    return {key: _whole(found, key) for key in ("n_vocab", "n_params", "size")}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def error_message(body: bytes) -> str:
    """The message of a llama-server error reply, or the beginning of whatever it is."""
    try:
        error = _object(body, "a request").get("error")
    except WireError:
        return _excerpt(body)
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return str(error) if isinstance(error, str) else _excerpt(body)


def classify(status: int, body: bytes, *, path: str) -> Outcome:
    """What an HTTP status and body mean. ``path`` is the one asked for."""
    if status == 200:
        return Outcome.OK
    if 300 <= status < 400:
        return Outcome.REDIRECT
    if status in (401, 403):
        return Outcome.UNAUTHORIZED
    if status == 503 and "loading model" in error_message(body).lower():
        return Outcome.LOADING
    if status == 501 and path == "/metrics":
        return Outcome.METRICS_DISABLED
    return Outcome.HTTP_ERROR


# --- prompts and completions --------------------------------------------------------------


def parse_prompt(body: bytes) -> str:
    """The prompt string of an ``/apply-template`` reply.

    Raises:
        WireError: there is none.
    """
    prompt = _object(body, "/apply-template").get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise WireError(f"no prompt in the reply to /apply-template: {_excerpt(body)}")
    return prompt


def parse_tokens(body: bytes) -> tuple[int, ...]:
    """The token ids of a ``/tokenize`` reply.

    Raises:
        WireError: they are not a non-empty list of integers.
    """
    tokens = _object(body, "/tokenize").get("tokens")
    if not isinstance(tokens, list) or not tokens or not all(type(t) is int for t in tokens):
        raise WireError(f"no token ids in the reply to /tokenize: {_excerpt(body)}")
    return tuple(tokens)


def template_request(
    text: str, *, thinking: bool | None = None, model: str | None = None
) -> dict[str, Any]:
    """An ``/apply-template`` request for one user message.

    Args:
        text: what the user says.
        thinking: asks the template for it or against it; one that knows no such switch
            ignores it. ``None`` leaves it alone.
        model: which one of a router.
    """
    switch = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
    return {
        **({"model": model} if model else {}),
        "messages": [{"role": "user", "content": text}],
        **switch,
    }


def completion_request(
    prompt_ids: Sequence[int],
    *,
    tokens: int,
    top_logprobs: int,
    seed: int,
    temperature: float = 0.0,
    model: str | None = None,
) -> dict[str, Any]:
    """A streaming ``/completion`` request that shows every decode step.

    A negative temperature is llama-server's "greedy, and still report probabilities": what
    it gets for 0. The prompt cache stays out: a cached prefix would make one arm's timings
    differ.
    """
    return {
        **({"model": model} if model else {}),
        "prompt": list(prompt_ids),
        "n_predict": tokens,
        "n_probs": top_logprobs,
        "temperature": temperature if temperature > 0 else -1,
        "seed": seed,
        "stream": True,
        "timings_per_token": True,
        "return_tokens": True,
        "ignore_eos": True,
        "cache_prompt": False,
    }


class _Top(msgspec.Struct):
    id: int
    token: str = ""
    logprob: float | None = None


class _Probability(msgspec.Struct):
    id: int
    token: str = ""
    top_logprobs: list[_Top] = []


class _Timings(msgspec.Struct):
    predicted_n: int
    predicted_ms: float
    prompt_n: int = 0
    prompt_ms: float = 0.0
    cache_n: int = 0
    draft_n: int | None = None
    draft_n_accepted: int | None = None

    def value(self) -> Timings:
        return Timings(
            prompt_tokens=self.prompt_n,
            prompt_seconds=self.prompt_ms / 1e3,
            cached_tokens=self.cache_n,
            generated_tokens=self.predicted_n,
            generation_seconds=self.predicted_ms / 1e3,
            draft_tokens=self.draft_n,
            accepted_tokens=self.draft_n_accepted,
        )


class Chunk(msgspec.Struct):
    """One event of a ``/completion`` stream, as sent."""

    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    tokens_predicted: int = 0
    timings: _Timings | None = None
    completion_probabilities: list[_Probability] = []
    error: Any = None


_chunk_decoder = msgspec.json.Decoder(Chunk)


def parse_chunk(payload: bytes) -> Chunk:
    """Decode the payload of one ``data:`` line of a ``/completion`` stream.

    Raises:
        WireError: it is not a completion chunk, or it carries the server's error.
    """
    try:
        chunk = _chunk_decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(
            f"a chunk of the reply to /completion cannot be read ({error}):"
            f" it begins with {_excerpt(payload)}"
        ) from error
    if chunk.error is not None:
        raise WireError(f"the server broke off the completion: {error_message(payload)}")
    return chunk


def assemble(chunks: Iterable[Chunk], *, wall_seconds: float) -> Completion | None:
    """Put the chunks of one stream together; ``None`` if it broke off before any timings.

    Streams leave out the tokens inside an unfinished multi-byte character; each chunk's
    ``tokens_predicted`` tells where it belongs, and the places left out become positions
    without an id.

    Raises:
        WireError: the counts are impossible.
    """
    positions: list[Position] = []
    points: list[Timings] = []
    finished = False
    for chunk in chunks:
        if chunk.timings is not None:
            points.append(chunk.timings.value())
        _fill(positions, chunk.tokens_predicted - len(chunk.tokens))
        tops = {p.id: _tops(p.top_logprobs) for p in chunk.completion_probabilities}
        for i, token in enumerate(chunk.tokens):
            text = chunk.content if i == len(chunk.tokens) - 1 else ""
            positions.append(Position(token, text, tops.get(token, ())))
        finished = finished or chunk.stop
    if not points:
        return None
    try:
        stream = steps(points)
    except ValueError as error:
        raise WireError(f"impossible timings along the completion stream: {error}") from error
    return Completion(
        positions=tuple(positions),
        timings=points[-1],
        stream=stream,
        wall_seconds=wall_seconds,
        finished=finished,
    )


def _fill(positions: list[Position], length: int) -> None:
    if not len(positions) <= length <= len(positions) + MAX_POSITIONS:
        raise WireError(f"the completion stream jumped from token {len(positions)} to {length}")
    positions.extend([Position(None, "")] * (length - len(positions)))


def _tops(entries: Iterable[_Top]) -> tuple[TopToken, ...]:
    """Top-k entries; ``null`` log-probabilities (the server's infinities) are left out."""
    return tuple(TopToken(t.id, t.logprob, t.token) for t in entries if t.logprob is not None)
