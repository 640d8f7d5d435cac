"""What a capture holds, what it is fit for, and what comes of comparing with one."""

import gzip
import json
import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.capture import (
    FORMAT,
    TOKENIZER_SAMPLES,
    VERSION,
    Capture,
    CapturedPrompt,
    CaptureError,
    NewerCaptureError,
    Provenance,
    Sampling,
    ServerFacts,
    Tokenizer,
    Use,
    captured_prompt,
    decode,
    encode,
    holds,
    plain_requests,
    recorded,
    refusals,
    server_facts,
    text_sha256,
    tokenizer_of,
)
from mtpmon.commands.tables import tables
from mtpmon.commands.terminal import console
from mtpmon.cost import plain_step
from mtpmon.evaluate import Pair, evaluate
from mtpmon.forced import Forced
from mtpmon.model import (
    Baseline,
    Completion,
    Position,
    ProbeResult,
    Props,
    Step,
    StepStream,
    Timings,
    TopToken,
    Variant,
)
from mtpmon.report import report
from mtpmon.rolling import rolling
from mtpmon.suite import Prompt
from mtpmon.wire import WireError, model_meta
from tests.captures import raw

PROMPT = Prompt(id="p", task="code", text="hello")
OTHER = Prompt(id="q", task="essay", text="good bye")
IDS = (1, 2, 3)
untimed = settings(deadline=None)  # a busy machine is no failure
SERVER = ServerFacts(
    build="b11434-abc",
    model="m",
    model_file="m.gguf",
    quantization="Q4_K",
    parameters=7,
    model_bytes=9,
    tokenizer=Tokenizer("f" * 64, 32),
)


def top(*probabilities: float) -> tuple[TopToken, ...]:
    return tuple(TopToken(10 + i, math.log(p)) for i, p in enumerate(probabilities))


def answer(
    said: tuple[int | None, ...] = (10, 11, 10),
    probabilities: tuple[float, ...] = (0.6, 0.3),
    steps: tuple[Step, ...] = (Step(0, 0, 0.01), Step(0, 0, 0.02)),
) -> Completion:
    return Completion(
        positions=tuple(
            Position(token, "x" if token else "", top(*probabilities)) for token in said
        ),
        timings=Timings(
            prompt_tokens=3,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=len(said),
            generation_seconds=0.03,
        ),
        stream=StepStream(steps=steps),
        wall_seconds=0.2,
    )


def entry(
    prompt: Prompt = PROMPT, said: Completion | None = None, *, ids: tuple[int, ...] = IDS
) -> CapturedPrompt:
    return captured_prompt(prompt, ids, said or answer(), unix_seconds=5.0)


def capture(
    *prompts: CapturedPrompt, server: ServerFacts = SERVER, drafted: bool = False, k: int = 64
) -> Capture:
    return Capture(
        provenance=Provenance(
            mtpmon="0.1.0",
            date="2026-06-28T00:00:00+00:00",
            unix_seconds=5.0,
            server=server,
            sampling=Sampling(tokens=3, top_logprobs=k, seed=1),
            drafted=drafted,
        ),
        prompts=prompts or (entry(),),
    )


# --- the file -----------------------------------------------------------------------------

natural = st.integers(0, 2**40)
finite = st.floats(0, 1e9)
texts = st.text(st.characters(codec="utf-8"), max_size=9)
tokenizers = st.builds(Tokenizer, texts, st.none() | natural)


@st.composite
def prompts_of(draw: st.DrawFn, name: str) -> CapturedPrompt:
    length = draw(st.integers(0, 4))
    several: dict[str, Any] = {"min_size": length, "max_size": length}
    tops = st.lists(st.tuples(natural, st.floats(-1e38, 1.0)), max_size=3).map(tuple)
    return CapturedPrompt(
        id=name,
        task=draw(texts),
        text_sha256=draw(texts),
        unix_seconds=draw(finite),
        prompt_ids=tuple(draw(st.lists(natural, min_size=1, max_size=4))),
        ids=tuple(draw(st.lists(st.none() | natural, **several))),
        texts=tuple(draw(st.lists(texts, **several))),
        tops=tuple(draw(st.lists(tops, **several))),
        timings=draw(
            st.builds(
                Timings,
                prompt_tokens=natural,
                prompt_seconds=finite,
                cached_tokens=natural,
                generated_tokens=natural,
                generation_seconds=finite,
                draft_tokens=st.none() | natural,
                accepted_tokens=st.none() | natural,
            )
        ),
        stream=draw(
            st.builds(
                StepStream,
                steps=st.lists(st.builds(Step, natural, natural, finite), max_size=3).map(tuple),
                unresolved_draft_tokens=natural,
                unresolved_accepted_tokens=natural,
                unresolved_seconds=finite,
            )
        ),
        wall_seconds=draw(finite),
    )


@st.composite
def captures(draw: st.DrawFn) -> Capture:
    names = draw(st.lists(texts, min_size=1, max_size=3, unique=True))
    optional: dict[str, Any] = {
        name: draw(st.none() | texts) for name in ("build", "model", "model_file", "quantization")
    }
    counts: dict[str, Any] = {
        name: draw(st.none() | natural)
        for name in ("parameters", "model_bytes", "context_tokens", "slots")
    }
    return Capture(
        provenance=Provenance(
            mtpmon=draw(texts),
            date=draw(texts),
            unix_seconds=draw(finite),
            server=ServerFacts(**optional, **counts, tokenizer=draw(tokenizers)),
            sampling=Sampling(tokens=draw(natural), top_logprobs=draw(natural), seed=draw(natural)),
            drafted=draw(st.booleans()),
            requests_processing=draw(st.none() | natural),
            note=draw(texts),
        ),
        prompts=tuple(draw(prompts_of(name)) for name in names),
    )


@untimed
@given(captures())
def test_a_file_holds_what_was_put_in(found: Capture) -> None:
    """Whatever a capture says is read back as it was, and equal ones give equal bytes."""
    data = encode(found)
    again = decode(data)
    assert again == found
    assert encode(again) == data


@untimed
@given(st.binary(max_size=60))
def test_anything_else_is_refused(data: bytes) -> None:
    """Bytes that are no capture raise a CaptureError and nothing else, zipped or not."""
    for case in (data, gzip.compress(data)):
        with pytest.raises(CaptureError, match=r"is not a capture|is cut short"):
            decode(case)


@untimed
@given(st.integers(0, 10**6))
def test_a_cut_file_is_refused(place: int) -> None:
    """A capture that lost its end at any place is refused."""
    data = encode(capture())
    with pytest.raises(CaptureError):
        decode(data[: place % len(data)])


def test_a_file_too_large_is_refused() -> None:
    """What unpacks to more than the limit is refused before it is unpacked whole."""
    with pytest.raises(CaptureError, match="unpacks to more than 100 bytes"):
        decode(gzip.compress(b" " * 10**6), most_bytes=100)


def changed(**keys: Any) -> bytes:
    """A capture's file with keys of its top level or its first prompt changed."""
    tree = json.loads(gzip.decompress(encode(capture())))
    for key, value in keys.items():
        (tree if key in tree else tree["prompts"][0])[key] = value
    return gzip.compress(json.dumps(tree).encode())


def test_a_newer_format_is_told_apart() -> None:
    """A file of a later mtpmon is named as such, whatever else is in it."""
    with pytest.raises(NewerCaptureError, match=f"format version {VERSION + 1}"):
        decode(changed(version=VERSION + 1, prompts="another form"))


def test_another_format_is_refused() -> None:
    """A JSON document of another kind is named."""
    with pytest.raises(CaptureError, match=r"its format is 'mtpmon\.probe/1'"):
        decode(changed(format="mtpmon.probe/1"))
    assert json.loads(gzip.decompress(encode(capture())))["format"] == FORMAT


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"prompts": []}, "there is no prompt in it"),
        ({"prompts": 2 * msgspec.to_builtins((entry(),))}, "a prompt is in it twice"),
        ({"prompt_ids": []}, "the prompt 'p' has no tokens"),
        ({"texts": []}, "the answer to 'p' has lists of different lengths"),
        ({"ids": [1, 2, -3]}, "Expected `int` >= 0"),
        ({"tops": [[[1, 2.0]], [], []]}, "Expected `float` <= 1.0"),
        ({"timings": None}, "Expected `object`, got `null`"),
    ],
)
def test_a_damaged_capture_is_refused(keys: dict[str, Any], words: str) -> None:
    """One that contradicts itself is refused with what is wrong."""
    with pytest.raises(CaptureError, match=f"is a damaged capture: {words}"):
        decode(changed(**keys))


# --- what is kept -------------------------------------------------------------------------


def test_distributions_are_ranked_and_rounded() -> None:
    """Likeliest first, ties by token id, to a millionth of a nat."""
    said = Completion(
        positions=(Position(2, "x", (TopToken(9, -1.0), TopToken(8, -1.0), TopToken(7, -1 / 3))),),
        timings=answer().timings,
        stream=StepStream(),
        wall_seconds=0,
    )
    assert entry(said=said).tops == (((7, -0.333333), (8, -1.0), (9, -1.0)),)


def test_a_captured_answer_has_no_times() -> None:
    """Its times are of another day, so it can make no speed-up and no step cost."""
    said = entry().completion()
    assert [position.id for position in said.positions] == [10, 11, 10]
    assert said.timings.generation_seconds == said.wall_seconds == 0
    assert said.stream == StepStream()


def test_what_is_kept_of_a_server() -> None:
    """Of a path only the file's name is kept, whichever way its slashes lean."""
    meta = model_meta(raw("b11434/models.json"), None)
    assert meta == {"n_vocab": 465, "n_params": 225176, "size": 900704}
    tokenizer = tokenizer_of([[1, 2], [3]], meta["n_vocab"])
    for path in ("/models/a/toy.gguf", r"C:\models\toy.gguf", "toy.gguf"):
        facts = server_facts(Props(model="toy", model_path=path, slots=2), tokenizer, meta)
        assert (facts.model, facts.model_file, facts.slots) == ("toy", "toy.gguf", 2)
        assert (facts.parameters, facts.model_bytes) == (225176, 900704)
    assert server_facts(Props(), tokenizer, {}).model_file is None


def test_models_that_are_not_told() -> None:
    """A list without the model, with several, or without numbers says nothing of them."""
    unknown = {"n_vocab": None, "n_params": None, "size": None}
    assert model_meta(raw("b11434/models.json"), "another") == unknown
    assert model_meta(raw("b11434/models.json"), "toy.gguf")["n_vocab"] == 465
    two = b'{"data":[7, {"id":"a"}, {"id":"b","aliases":["c"],"meta":{"n_vocab":3}}]}'
    assert model_meta(two, None) == unknown
    assert model_meta(two, "a") == unknown
    assert model_meta(two, "c") == {**unknown, "n_vocab": 3}
    with pytest.raises(WireError, match="no list of models"):
        model_meta(b'{"data": {}}', None)


def test_a_fingerprint_is_of_all_samples() -> None:
    """Other tokens of any sample, or another border between samples, make another one."""
    assert len(TOKENIZER_SAMPLES) == len(set(TOKENIZER_SAMPLES)) > 5
    fingerprints = {
        tokenizer_of(ids, None).sha256 for ids in ([[1, 2], [3]], [[1], [2, 3]], [[12], [3]], [[1]])
    }
    assert len(fingerprints) == 4


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (Tokenizer("a", 7), False),
        (Tokenizer("a"), False),
        (Tokenizer("a", 8), True),
        (Tokenizer("b", 7), True),
        (Tokenizer("b"), True),
    ],
)
def test_tokenizers_that_differ(other: Tokenizer, differs: bool) -> None:
    """By their tokens, or by sizes that both tell."""
    assert Tokenizer("a", 7).differs(other) == other.differs(Tokenizer("a", 7)) == differs


# --- what it is fit for -------------------------------------------------------------------


def refused(
    found: Capture, use: Use, server: ServerFacts = SERVER, *prompts: Prompt, k: int = 64
) -> tuple[str, ...]:
    return refusals(found, use, server=server, prompts=prompts or (OTHER, PROMPT), top_logprobs=k)


def like(**keys: Any) -> ServerFacts:
    return msgspec.structs.replace(SERVER, **keys)


@pytest.mark.parametrize("use", Use)
def test_what_fits_is_not_refused(use: Use) -> None:
    """A capture of the same server and a prompt of the suite is fit for both uses."""
    assert refused(capture(), use) == ()


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize(
    ("found", "server", "prompts", "k", "words"),
    [
        (capture(), like(tokenizer=Tokenizer("0")), (), 64, "another tokenizer"),
        (capture(), like(tokenizer=Tokenizer("f" * 64, 33)), (), 64, "another tokenizer"),
        (capture(), SERVER, (OTHER,), 64, "none of the prompts"),
        (capture(), SERVER, (Prompt("p", "code", "changed"),), 64, "none of the prompts"),
        (capture(k=32), SERVER, (), 64, r"32 log-probabilities .* probes ask for 64"),
    ],
)
def test_what_fits_neither_use(
    use: Use, found: Capture, server: ServerFacts, prompts: tuple[Prompt, ...], k: int, words: str
) -> None:
    """Another tokenizer, other prompts or another number of log-probabilities is named."""
    (why,) = refused(found, use, server, *prompts, k=k)
    assert re.search(words, why)


@pytest.mark.parametrize(
    ("captured", "server", "words"),
    [
        (SERVER, like(model_file="n.gguf"), "another model: m.gguf, the server has n.gguf"),
        (like(model_file=None, model="n"), SERVER, "another model: n, the server has m"),
        (
            like(model_file=None, model=None),
            SERVER,
            "another model: not known, the server has m.gguf",
        ),
        (
            like(model_file=None, model=None),
            like(model_file=None, model=None),
            "another model: not known, the server has not known",
        ),
        (
            SERVER,
            like(quantization="Q8_0"),
            "parameters and bytes were Q4_K, 7, 9 and are Q8_0, 7, 9",
        ),
        (SERVER, like(model_bytes=8), "another model of the same name"),
        (SERVER, like(build="b1"), "another build: b11434-abc, the server is b1"),
        (SERVER, like(build=None), "another build: b11434-abc, the server is not known"),
        (
            like(build=None),
            like(build=None),
            "another build: not known, the server is not known",
        ),
    ],
)
def test_what_fits_no_baseline(captured: ServerFacts, server: ServerFacts, words: str) -> None:
    """Another model or build is named, as baseline; unknown ones count as different."""
    found = capture(server=captured)
    (why,) = refused(found, Use.BASELINE, server)
    assert words in why
    assert refused(found, Use.REFERENCE, server) == ()


def test_an_alias_is_no_other_model() -> None:
    """The same file under another alias, and numbers that one does not tell, are the same."""
    found = capture(server=like(model="alias", quantization=None, parameters=None))
    assert refused(found, Use.BASELINE) == ()
    found = capture(server=like(build="b0-unknown"))
    assert refused(found, Use.BASELINE, like(build="b0-unknown")) == ()


def test_a_server_that_drafted_is_no_baseline() -> None:
    """It may be a reference: its distributions are its target's all the same."""
    (why,) = refused(capture(drafted=True), Use.BASELINE)
    assert "the captured server drafted" in why
    assert refused(capture(drafted=True), Use.REFERENCE) == ()


def test_all_that_speaks_against_one_is_named() -> None:
    """Not only the first reason."""
    server = like(tokenizer=Tokenizer("0"), model_file="n", build="b1")
    found = refused(capture(drafted=True, k=1), Use.BASELINE, server, OTHER)
    assert len(found) == 6


# --- matching and steps -------------------------------------------------------------------


def test_only_the_very_same_prompt_matches() -> None:
    """By id, text and tokens: another chat template makes another prompt."""
    found = capture(entry(), entry(OTHER))
    assert recorded(found, OTHER, [1, 2, 3]) == found.prompts[1]
    assert recorded(found, PROMPT, [1, 2]) is None
    assert recorded(found, Prompt("p", "code", "hallo"), IDS) is None
    assert recorded(found, Prompt("r", "code", "hello"), IDS) is None
    assert recorded(None, PROMPT, IDS) is None
    assert holds(found, PROMPT)
    assert not holds(found, Prompt("r", "code", "hello"))
    assert found.prompts[0].text_sha256 == text_sha256("hello")


def test_plain_steps_come_from_servers_that_do_not_draft() -> None:
    """The captured steps measure a plain step; those of a server that drafted do not."""
    steps = tuple(Step(0, 0, 0.01) for _ in range(9))
    several = [entry(Prompt(f"p{i}", "code", "x"), answer(steps=steps)) for i in range(4)]
    requests = plain_requests(capture(*several))
    assert [request.prompt for request in requests] == ["p0", "p1", "p2", "p3"]
    assert {request.context_tokens for request in requests} == {6}
    assert requests[0].identity.build == SERVER.build
    cost = plain_step(requests, confidence=0.95)
    assert cost is not None
    assert cost.seconds.value == pytest.approx(0.01)
    assert plain_requests(capture(*several, drafted=True)) == ()


# --- compared -----------------------------------------------------------------------------


def compared(ours: Completion, said: Completion, **keys: Any) -> ProbeResult:
    pair = Pair(ours, entry(said=said).completion(), baseline=Baseline.CAPTURE)
    return evaluate(pair, PROMPT, server="a", unix_seconds=0, duration_seconds=1, **keys)


def test_a_longer_capture_is_compared_as_far_as_needed() -> None:
    """Answers of drawn length, or longer than the captured one, do not look like divergences."""
    for ours, said, tokens in (
        ((10, 11), (10, 11, 10, 11), 2),
        ((10, 11, 10), (10, 11), 2),
        ((10, None), (10, None, 11), 1),
        ((10, 11), (10, None, 11), 1),
        ((None, None), (None, 12), 0),
    ):
        found = compared(answer(ours), answer(said))
        assert found.comparison is not None
        assert found.comparison.exact
        assert found.comparison.tokens == tokens
        assert found.baseline is Baseline.CAPTURE
        assert found.speculating is not None
        assert len(found.speculating.positions) == len(ours)


def test_a_capture_shows_where_an_answer_parts() -> None:
    """With the captured margin there, and the KLD of the positions up to there."""
    found = compared(answer((10, 12, 10), (0.5, 0.4)), answer((10, 11, 10)))
    assert found.comparison is not None
    assert found.comparison.first_divergence == 1
    assert found.comparison.divergence_margin_nats == pytest.approx(math.log(2), abs=1e-6)
    assert found.next_token is not None
    assert found.next_token.nats > 0.01
    assert len(found.after_speculation) == 1
    assert found.positions is not None
    assert (found.positions.comparable, found.positions.diverged) == (2, 1)


def test_of_a_sampled_answer_only_the_next_token_is_compared() -> None:
    """Its tokens may be any."""
    found = compared(answer((12, 13)), answer(), variant=Variant(temperature=1.0))
    assert found.comparison is None
    assert found.next_token is not None


def test_captured_answers_make_no_speed_up() -> None:
    """Three pairs with a capture would be enough for a false one."""
    found = rolling([compared(answer(), answer())] * 4, confidence=0.95)
    assert found.tasks["code"].speedup is None
    assert found.tasks["code"].target_only_tokens_per_second is None
    assert found.exact_sequences == 1


def drifted(*indices: int) -> ProbeResult:
    reference = tuple(
        Forced(index=index, target=top(0.6, 0.3), speculating=top(0.3, 0.6)) for index in indices
    )
    empty = Forced(index=9, target=top(0.6), speculating=())
    pair = Pair(answer(), None, reference=(*reference, empty))
    return evaluate(pair, PROMPT, server="a", unix_seconds=0, duration_seconds=1)


def test_drift_from_a_reference() -> None:
    """After the prompt and along the captured answer, apart; missing ones do not count."""
    found = drifted(0, 1, 2)
    nats = 0.6 * math.log(2) - 0.3 * math.log(2)
    assert found.reference_next_token is not None
    assert found.reference_next_token.nats == pytest.approx(nats)
    assert len(found.reference_forced) == 2
    assert found.next_token is None
    assert drifted(1).reference_next_token is None


def test_rolling_figures_of_a_reference() -> None:
    """Over all positions of all probes; none without a reference."""
    found = rolling([drifted(0, 1, 2), drifted(0), drifted()], confidence=0.95)
    assert found.reference_kld is not None
    assert found.reference_kld.positions == 4
    assert found.reference_top1 == 0
    assert found.reference_coverage == pytest.approx(0.9)
    assert found.kld == {}
    assert rolling([drifted()], confidence=0.95).reference_kld is None


def test_the_table_of_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for next tokens, one for tokens along the captured answers, in 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    found = report([drifted(0, 1, 2), drifted(0)], tasks=["code"], confidence=0.95)
    assert [(row.at, row.positions) for row in found.reference] == [
        ("next_token", 2),
        ("teacher_forced", 2),
    ]
    out = console()
    with out.capture() as captured:
        out.print(*tables(found))
    printed = captured.get()
    assert "KLD from the captured reference" in printed
    (row,) = [line for line in printed.splitlines() if line.startswith("along its answers")]
    assert row.split()[3] == "2"
    assert row.split()[-1] == "0/2"
    assert report([drifted()], tasks=["code"], confidence=0.95).reference == ()
