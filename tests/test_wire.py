"""What llama-server's bytes mean."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpmon.model import Counters, Outcome, Reading, TopToken
from mtpmon.wire import (
    WireError,
    assemble,
    classify,
    completion_request,
    error_message,
    model_statuses,
    parse_chunk,
    parse_metrics,
    parse_prompt,
    parse_props,
    parse_tokens,
    reading,
    template_request,
)
from tests.captures import BUILDS, events, http, raw


def six_digits(value: float) -> str:
    """A number as a C++ stream prints it."""
    return f"{value:g}"


@pytest.mark.parametrize(
    ("text", "value", "quantum"),
    [
        ("0", 0, 0),
        ("578", 578, 0),
        ("999999", 999_999, 0),
        ("1.04e+06", 1_040_000, 10),
        ("1.04003e+06", 1_040_030, 10),
        ("1e+09", 1e9, 10_000),
        ("1040003", 1_040_003, 0),
        ("0.148479", 0.148479, 1e-6),
        ("73.2591", 73.2591, 1e-4),
        ("73.25", 73.25, 1e-4),
        ("0.002", 0.002, 1e-8),
        ("1.5", 1.5, 1e-5),
        ("1234567.25", 1234567.25, 0.01),
        ("5.0", 5, 1e-5),
        ("0.0", 0, 0),
        ("+7", 7, 0),
    ],
)
def test_reading_knows_its_resolution(text: str, value: float, quantum: float) -> None:
    """Six significant digits, or as many as were printed."""
    found = reading(text)
    assert found is not None
    assert found.value == value
    assert found.quantum == pytest.approx(quantum)


@pytest.mark.parametrize("text", ["NaN", "nan", "Inf", "+Inf", "-1", "1e999", "", "1_000", "0x10"])
def test_what_no_counter_can_be_is_no_reading(text: str) -> None:
    """NaN, infinities, negatives and other spellings are refused."""
    assert reading(text) is None


@given(st.integers(0, 10**15))
def test_the_true_count_is_within_half_a_quantum_of_what_is_printed(count: int) -> None:
    """The promise that all later error bounds rest on."""
    found = reading(six_digits(count))
    assert found is not None
    assert abs(found.value - count) <= found.quantum / 2


@given(st.floats(1e-6, 1e12))
def test_the_true_seconds_are_within_half_a_quantum(seconds: float) -> None:
    """The same for what is no whole number."""
    found = reading(six_digits(seconds), whole=False)
    assert found is not None
    assert abs(found.value - seconds) <= found.quantum / 2 * (1 + 1e-9) + 1e-12


def test_a_body_of_a_new_build_is_read_whole() -> None:
    """b11434 after some speculative requests."""
    headers, body = http("b11434/metrics-after.http")
    found = parse_metrics(body, start_token=headers["Process-Start-Time-Unix"])
    assert found == Counters(
        start_token="551916215",
        drafts=found.drafts,
        draft_tokens=Reading(593),
        accepted_tokens=found.accepted_tokens,
        accepted_by_position=found.accepted_by_position,
        generated_tokens=Reading(578),
        generation_seconds=Reading(0.148479, 1e-6),
        prompt_tokens=Reading(192),
        prompt_seconds=Reading(0.232167, 1e-6),
        cached_prompt_tokens=Reading(16),
        requests_processing=0,
        requests_deferred=0,
        bad_lines=0,
    )
    assert found.accepted_by_position is not None
    assert found.accepted_tokens == Reading(sum(found.accepted_by_position))


def test_an_old_build_has_no_speculative_counters() -> None:
    """b10142: absent is None, not 0."""
    found = parse_metrics(http("b10142/metrics-after.http")[1])
    assert (found.drafts, found.draft_tokens, found.accepted_by_position) == (None, None, None)
    assert found.generated_tokens == Reading(66)


def test_positions_are_exact_where_the_total_is_rounded() -> None:
    """189 + 66 + 0 = 255 as captured; the position series is an integer of any length."""
    found = parse_metrics(http("b10434/metrics-six-digits.http")[1])
    assert found.prompt_tokens == Reading(1.04e6, 10)
    assert found.accepted_by_position == (189, 66, 0)
    assert found.accepted_tokens == Reading(255)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("moment", ["idle", "busy", "after"])
def test_captured_bodies_have_no_bad_line(build: str, moment: str) -> None:
    """What real servers send is all understood."""
    assert parse_metrics(http(f"{build}/metrics-{moment}.http")[1]).bad_lines == 0


GOOD = b"llamacpp:tokens_predicted_total 7\n"
POSITION = b"llamacpp:spec_decode_num_accepted_tokens_per_pos_total"


@pytest.mark.parametrize(
    ("extra", "bad"),
    [
        (b"", 0),
        (b"# HELP x y\n\n  \n", 0),
        (b"other_program_total 5\n", 0),
        (b"llamacpp:requests_processing 1\n", 0),
        (b"\xff\xfe garbage\n", 1),
        (b"llamacpp:prompt_tokens_total\n", 1),
        (b"llamacpp:prompt_tokens_total NaN\n", 1),
        (b"llamacpp:prompt_tokens_total -4\n", 1),
        (b'llamacpp:prompt_tokens_total{a="b} 4\n', 1),
        (b"llamacpp:prompt_tokens_total 4", 1),
        (b"llamacpp:prompt_tokens_total 4\nllamacpp:prompt_tokens_total 5\n", 1),
        (POSITION + b" 4\n", 1),
        (POSITION + b'{position="9999"} 4\n', 1),
        (POSITION + b'{position="0"} 4.5\n', 1),
        (POSITION + b'{position="0"} 1.5e+06\n', 1),
    ],
)
def test_a_bad_line_costs_only_itself(extra: bytes, bad: int) -> None:
    """It is counted, what it would have said is unknown, and the rest is kept."""
    found = parse_metrics(GOOD + extra)
    assert found.generated_tokens == Reading(7)
    assert found.prompt_tokens is None
    assert found.accepted_by_position is None
    assert found.bad_lines == bad


def test_a_repeated_line_that_says_the_same_is_fine() -> None:
    """Only a contradiction makes a series unknown."""
    found = parse_metrics(GOOD + GOOD)
    assert (found.generated_tokens, found.bad_lines) == (Reading(7), 0)


def test_a_gap_in_the_positions_makes_them_unknown() -> None:
    """Positions 0 and 2 without 1 cannot be counts of one draft."""
    body = GOOD + POSITION + b'{position="0"} 5\n' + POSITION + b'{position="2"} 1\n'
    assert parse_metrics(body).accepted_by_position is None


@pytest.mark.parametrize("prefix", [b"llamacpp:", b"llamacpp_"])
@pytest.mark.parametrize("suffix", [b"", b"_total"])
def test_spellings_of_a_series_are_the_same_series(prefix: bytes, suffix: bytes) -> None:
    """With or without _total, and with the colon some collectors replace."""
    body = prefix + b"spec_decode_num_drafts" + suffix + b"  12 1700000000000\r\n"
    assert parse_metrics(body).drafts == Reading(12)


@pytest.mark.parametrize("body", [b"", b"<html>hello</html>", b"up 1\n", b"\x00\x01\x02"])
def test_a_body_without_any_series_is_refused(body: bytes) -> None:
    """HTML of a proxy, another exporter, nothing at all."""
    with pytest.raises(WireError, match="is this the address of a llama-server"):
        parse_metrics(body)


@given(st.binary(max_size=400))
def test_any_bytes_are_counters_or_a_wire_error(body: bytes) -> None:
    """Nothing else comes out of the parser."""
    for text in (body, GOOD + body):
        try:
            assert parse_metrics(text).bad_lines >= 0
        except WireError:
            continue


@given(st.data())
def test_a_cut_body_never_yields_a_smaller_count(data: st.DataObject) -> None:
    """A number cut in the middle looks valid; the line end it lacks gives it away."""
    body = http("b11434/metrics-after.http")[1]
    whole = parse_metrics(body)
    cut = data.draw(st.integers(200, len(body)))
    found = parse_metrics(body[:cut])
    for field in ("drafts", "draft_tokens", "generated_tokens", "prompt_tokens"):
        assert getattr(found, field) in (None, getattr(whole, field))


# --- /props ---


@pytest.mark.parametrize(
    ("build", "number"), [("b10142", None), ("b10434", None), ("b11434", None)]
)
def test_captured_props_are_read(build: str, number: int | None) -> None:
    """Builds made from an archive do not know their number."""
    found = parse_props(raw(f"{build}/props.json"))
    assert found.model == "toy.gguf"
    assert found.slots == 1
    assert found.context_tokens == 4096
    assert found.metrics_enabled is True
    assert found.build_number == number
    assert found.sleeping is False
    assert found.router is False
    assert found.chat_template is True


def test_props_of_a_release_build_have_a_number() -> None:
    """The number behind the b."""
    assert parse_props(b'{"build_info":"b6123-a1b2c3"}').build_number == 6123


def test_fields_of_the_wrong_type_count_as_absent() -> None:
    """One odd field does not cost the others."""
    body = json.dumps(
        {
            "total_slots": "four",
            "model_alias": 7,
            "model_path": "/models/big.gguf",
            "default_generation_settings": [],
            "is_sleeping": "yes",
            "endpoint_metrics": 1,
            "build_info": None,
            "role": "router",
        }
    ).encode()
    found = parse_props(body)
    assert found.model == "big.gguf"
    assert (found.slots, found.context_tokens, found.metrics_enabled) == (None, None, None)
    assert found.sleeping is False
    assert found.router is True


@pytest.mark.parametrize("body", [b"", b"[1]", b"<html>", b"\xff", b"{" * 5000, b'{"a":1'])
def test_props_that_are_no_object_are_refused(body: bytes) -> None:
    """With a sentence that says what was there instead."""
    with pytest.raises(WireError, match="not a JSON object"):
        parse_props(body)


# --- errors ---


@pytest.mark.parametrize(
    ("status", "body", "path", "outcome"),
    [
        (200, b"", "/metrics", Outcome.OK),
        (302, b"", "/metrics", Outcome.REDIRECT),
        (401, http("errors/metrics-no-key.http")[1], "/metrics", Outcome.UNAUTHORIZED),
        (403, b"<html>", "/metrics", Outcome.UNAUTHORIZED),
        (501, http("errors/metrics-disabled.http")[1], "/metrics", Outcome.METRICS_DISABLED),
        (501, b"", "/slots", Outcome.HTTP_ERROR),
        (503, b'{"error":{"message":"Loading model"}}', "/props", Outcome.LOADING),
        (503, b"<html>Service unavailable</html>", "/props", Outcome.HTTP_ERROR),
        (404, b"", "/metrics", Outcome.HTTP_ERROR),
        (500, b"", "/metrics", Outcome.HTTP_ERROR),
    ],
)
def test_statuses_mean_outcomes(status: int, body: bytes, path: str, outcome: Outcome) -> None:
    """Each answer belongs to exactly one outcome."""
    assert classify(status, body, path=path) is outcome


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (http("b10434/bad-json.http")[1], "parse_error"),
        (b'{"error":"plain"}', "plain"),
        (b'{"error":5}', "error"),
        (b"<html>no</html>", "<html>"),
    ],
)
def test_error_messages_are_found(body: bytes, message: str) -> None:
    """The server's own words where there are any."""
    assert message in error_message(body)


# --- prompts ---


def test_captured_prompt_and_tokens_are_read() -> None:
    """/apply-template and /tokenize as recorded."""
    assert parse_prompt(raw("b11434/apply-template.json")) == "user: hi\nassistant:"
    assert parse_tokens(raw("b11434/tokenize.json"))[:2] == (1, 343)


@pytest.mark.parametrize("body", [b"{}", b'{"prompt":""}', b'{"prompt":3}'])
def test_a_missing_prompt_is_refused(body: bytes) -> None:
    """An empty prompt would probe nothing."""
    with pytest.raises(WireError, match="no prompt"):
        parse_prompt(body)


@pytest.mark.parametrize("body", [b"{}", b'{"tokens":[]}', b'{"tokens":[1,true]}'])
def test_missing_tokens_are_refused(body: bytes) -> None:
    """Ids are integers, and there is at least one."""
    with pytest.raises(WireError, match="no token ids"):
        parse_tokens(body)


def test_a_message_goes_to_the_template() -> None:
    """With a switch for thinking only where it is asked for; a router's model is named."""
    message = {"messages": [{"role": "user", "content": "hi"}]}
    assert template_request("hi") == message
    assert template_request("hi", model="m") == {"model": "m", **message}
    for thinking in (True, False):
        assert template_request("hi", thinking=thinking) == {
            **message,
            "chat_template_kwargs": {"enable_thinking": thinking},
        }


def test_a_sampled_request_has_its_temperature_and_seed() -> None:
    """All else stays as in a greedy one."""
    greedy = completion_request([1], tokens=8, top_logprobs=4, seed=3)
    sampled = completion_request([1], tokens=8, top_logprobs=4, seed=7, temperature=0.8)
    assert sampled == {**greedy, "temperature": 0.8, "seed": 7}


def test_the_request_is_greedy_and_shows_every_step() -> None:
    """The fields that the method depends on; a router's model is named."""
    found = completion_request([1, 2], tokens=8, top_logprobs=4, seed=3, model="m")
    assert found["temperature"] < 0
    assert found["timings_per_token"] is True
    assert found["stream"] is True
    assert found["cache_prompt"] is False
    assert found["ignore_eos"] is True
    assert (found["prompt"], found["n_predict"], found["n_probs"]) == ([1, 2], 8, 4)
    assert found["model"] == "m"
    assert "model" not in completion_request([1], tokens=8, top_logprobs=4, seed=3)


# --- streams ---


@pytest.mark.parametrize("build", BUILDS)
def test_a_captured_stream_is_put_together(build: str) -> None:
    """Every token in place, the first with its distribution, the steps adding up."""
    chunks = [parse_chunk(p) for p in events(f"{build}/completion-mtp-stream.sse")]
    found = assemble(chunks, wall_seconds=1.5)
    assert found is not None
    assert found.finished
    assert found.timings.generated_tokens == len(found.positions) == 24
    assert (found.timings.draft_tokens, found.timings.accepted_tokens) == (23, 15)
    assert found.stream.resolved
    assert sum(s.drafted for s in found.stream.steps) == 23
    assert sum(s.kept for s in found.stream.steps) == 15
    first = found.stream.steps[0]
    assert (first.drafted, first.kept) == (3, 1)
    assert found.positions[0].id == 300
    assert found.positions[0].top[0].id == 300
    assert found.positions[1].top == ()
    assert found.wall_seconds == 1.5


def chunk(n: int, *tokens: int, **more: object) -> bytes:
    timings = {"predicted_n": n, "predicted_ms": float(n)}
    return json.dumps(
        {"tokens": tokens, "tokens_predicted": n, "content": "x", "timings": timings, **more}
    ).encode()


def test_tokens_left_out_of_the_stream_keep_their_places() -> None:
    """A character of three tokens arrives with its last one."""
    payloads = [chunk(1, 5), chunk(4, 8), chunk(4, stop=True)]
    found = assemble(map(parse_chunk, payloads), wall_seconds=0)
    assert found is not None
    assert [p.id for p in found.positions] == [5, None, None, 8]


def test_tokens_left_out_at_the_end_are_counted() -> None:
    """The final chunk says how many there were."""
    found = assemble(map(parse_chunk, [chunk(1, 5), chunk(3, stop=True)]), wall_seconds=0)
    assert found is not None
    assert [p.id for p in found.positions] == [5, None, None]


def test_two_tokens_in_one_chunk_share_its_text() -> None:
    """The text belongs to the last of them."""
    found = assemble([parse_chunk(chunk(2, 5, 6))], wall_seconds=0)
    assert found is not None
    assert [(p.id, p.text) for p in found.positions] == [(5, ""), (6, "x")]


def test_a_chunk_without_timings_is_tokens_only() -> None:
    """A build that sends timings only at the end still yields its totals."""
    plain = json.dumps({"tokens": [5], "tokens_predicted": 1, "content": "x"}).encode()
    found = assemble(map(parse_chunk, [plain, chunk(1, stop=True)]), wall_seconds=0)
    assert found is not None
    assert found.timings.generated_tokens == 1


def test_an_unfinished_stream_is_marked() -> None:
    """What was seen before it broke off is still known."""
    found = assemble([parse_chunk(chunk(1, 5))], wall_seconds=0)
    assert found is not None
    assert not found.finished
    assert assemble([], wall_seconds=0) is None


@pytest.mark.parametrize(
    "payloads",
    [
        [chunk(3, 5), chunk(2, 6)],
        [chunk(1, 5), chunk(10**6, 6)],
        [
            chunk(1, 5, timings={"predicted_n": 5, "predicted_ms": 1}),
            chunk(2, 6, timings={"predicted_n": 2, "predicted_ms": 1}),
        ],
    ],
)
def test_impossible_counts_are_refused(payloads: list[bytes]) -> None:
    """Counts that fall or leap."""
    with pytest.raises(WireError):
        assemble(map(parse_chunk, payloads), wall_seconds=0)


def test_a_null_logprob_is_left_out() -> None:
    """JSON has no infinity; the server writes null."""
    top = [{"id": 5, "logprob": -0.5, "token": "a"}, {"id": 6, "logprob": None, "token": "b"}]
    probabilities = [{"id": 5, "token": "a", "logprob": -0.5, "top_logprobs": top}]
    found = assemble(
        [parse_chunk(chunk(1, 5, completion_probabilities=probabilities))], wall_seconds=0
    )
    assert found is not None
    assert found.positions[0].top == (TopToken(5, -0.5, "a"),)


@pytest.mark.parametrize("payload", [b"", b"[]", b"{", b'{"tokens":"x"}', b"\xff", b"[" * 5000])
def test_a_chunk_that_cannot_be_read_is_refused(payload: bytes) -> None:
    """Cut, binary, wrongly typed or absurdly nested."""
    with pytest.raises(WireError, match="cannot be read"):
        parse_chunk(payload)


def test_an_error_in_the_stream_is_the_servers_word() -> None:
    """Overflow of the context while generating, for instance."""
    with pytest.raises(WireError, match="broke off the completion: too long"):
        parse_chunk(b'{"error":{"code":400,"message":"too long"}}')


def test_a_quantum_is_a_power_of_ten() -> None:
    """Rounding steps do not drift in floating point."""
    found = reading("1.23457e+08")
    assert found is not None
    assert math.log10(found.quantum) == 3


def test_a_routers_models_are_known_by_all_their_names() -> None:
    body = b"""{"data": [
        {"id": "qwen", "aliases": ["default", 3], "status": {"value": "loaded"}},
        {"id": "glm", "status": {"value": "unloaded"}},
        {"id": "plain"}, {"id": "odd", "status": "loaded", "aliases": "none"},
        {"id": 7}, "junk"
    ]}"""
    assert model_statuses(body) == {
        "qwen": "loaded",
        "default": "loaded",
        "glm": "unloaded",
        "plain": None,
        "odd": None,
    }


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data": {}}', b"<html>"])
def test_a_reply_without_a_list_of_models_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="/models"):
        model_statuses(body)
