"""What the examination of a server concludes from each kind of fact."""

from typing import Any

import pytest
from msgspec.structs import replace

from mtpmon.capture import Use
from mtpmon.depth import DepthAdvice
from mtpmon.doctor import SAME_NATS, diagnose
from mtpmon.evaluate import usage_of
from mtpmon.facts import CaptureFacts, Facts, Finding, Level, Topic
from mtpmon.model import (
    STATE_OF_OUTCOME,
    Baseline,
    Completion,
    Counters,
    Divergence,
    ForcedToken,
    Outcome,
    ProbeOutcome,
    ProbeResult,
    Props,
    Reading,
    Scrape,
    State,
    Step,
    StepStream,
    Timings,
)
from mtpmon.worth import Measured
from tests.page_snapshots import MEASURED

PROPS = Props(
    build="b10434-abc",
    model="small.gguf",
    quantization="Q4_K - Medium",
    slots=2,
    chat_template=True,
)
BEFORE = Counters(
    drafts=Reading(10),
    draft_tokens=Reading(30),
    accepted_tokens=Reading(20),
    accepted_by_position=(10, 6, 4),
    generated_tokens=Reading(100),
    requests_processing=0,
)
STEPS = (Step(3, 3, 0.01), Step(3, 1, 0.01), Step(3, 0, 0.01))
AFTER = replace(
    BEFORE,
    drafts=Reading(13),
    draft_tokens=Reading(39),
    accepted_tokens=Reading(24),
    accepted_by_position=(12, 7, 5),
    generated_tokens=Reading(108),
)
SENT = usage_of(
    Completion(
        positions=(),
        timings=Timings(
            prompt_tokens=5,
            prompt_seconds=0.0,
            cached_tokens=0,
            generated_tokens=8,
            generation_seconds=0.03,
            draft_tokens=9,
            accepted_tokens=4,
        ),
        stream=StepStream(steps=STEPS),
        wall_seconds=0.05,
    )
)
SAME = Divergence(nats=0.0, coverage=0.99, shared_tokens=60, top1_agrees=True)


def look(outcome: Outcome = Outcome.OK, **fields: Any) -> Scrape:
    scrape = Scrape(
        monotonic_seconds=0.0, unix_seconds=0.0, duration_seconds=0.0, outcome=outcome, props=PROPS
    )
    return replace(scrape, **fields)


def completion(drafted: int | None, accepted: int | None) -> Completion:
    return Completion(
        positions=(),
        timings=Timings(
            prompt_tokens=5,
            prompt_seconds=0.0,
            cached_tokens=0,
            generated_tokens=8,
            generation_seconds=0.03,
            draft_tokens=drafted,
            accepted_tokens=accepted,
        ),
        stream=StepStream(steps=STEPS if drafted else ()),
        wall_seconds=0.05,
    )


def probed(**fields: Any) -> ProbeResult:
    probe = ProbeResult(
        server="s",
        prompt_id="p",
        task="code",
        unix_seconds=0.0,
        duration_seconds=0.1,
        outcome=ProbeOutcome.COMPLETED,
        speculating=completion(9, 4),
        target_only=completion(None, None),
        next_token=SAME,
    )
    return replace(probe, **fields)


FINE = Facts(
    target_only_url="http://b",
    key_given=False,
    target_only_key_given=False,
    probed=True,
    server=look(counters=BEFORE),
    target_only=look(Outcome.METRICS_DISABLED),
    tokens=(1, 2, 3),
    target_only_tokens=(1, 2, 3),
    probe=probed(),
    sent=SENT,
    after=look(counters=AFTER),
)
ALONE = replace(
    FINE,
    target_only_url=None,
    target_only=None,
    target_only_tokens=None,
    probe=probed(target_only=None, next_token=None),
)


def found(facts: Facts, topic: Topic) -> dict[str, Level]:
    """Text to level, of one topic."""
    return {f.text: f.level for f in diagnose(facts) if f.topic == topic}


def the(facts: Facts, topic: Topic, part: str) -> Finding:
    """The one finding of a topic with ``part`` in its text."""
    (finding,) = [f for f in diagnose(facts) if f.topic == topic and part in f.text]
    return finding


def test_all_is_fine() -> None:
    """A drafting server with right counters and a true twin has no finding but ok."""
    assert {finding.level for finding in diagnose(FINE)} == {"ok"}
    assert found(FINE, "server") == {
        "answers without a key": "ok",
        "build b10434-abc, small.gguf, Q4_K - Medium, 2 slots": "ok",
        "drafts: 4 of 9 draft tokens kept, in a test of 8 tokens": "ok",
        "counts drafts, and accepted tokens by draft position": "ok",
        "has counters that agree with its replies": "ok",
    }
    assert found(FINE, "target_only") == {
        "answers without a key": "ok",
        "does not draft": "ok",
        "predicts the same next token: a KLD of 0 nats": "ok",
    }
    assert found(FINE, "measured") == {
        "live acceptance, acceptance length, acceptance by draft position": "ok",
        "live decode speed and throughput": "ok",
        "acceptance and decode speed by task, from probes while the server is idle": "ok",
        "speed-up, exact sequences and first divergences, from probes of both": "ok",
        "KLD and regret, from asking the target about single tokens": "ok",
    }


def test_every_problem_and_warning_of_a_server_says_what_to_do() -> None:
    """No trouble with a server or its twin goes without advice."""
    troubled = [
        *(replace(FINE, server=look(outcome, detail="x"), probe=None) for outcome in Outcome),
        *(replace(FINE, target_only=look(outcome, detail="x"), probe=None) for outcome in Outcome),
        replace(FINE, probe=probed(speculating=None)),
        replace(ALONE, probe=probed(target_only=None, speculating=completion(None, None))),
        replace(FINE, target_only_tokens=(1, 2)),
        replace(FINE, probe=probed(next_token=None)),
    ]
    for facts in troubled:
        for finding in diagnose(facts):
            wanting = finding.topic != "measured" and finding.level != "ok"
            assert bool(finding.advice) == wanting, finding


@pytest.mark.parametrize(
    ("outcome", "key_given", "level", "text"),
    [
        (Outcome.LOADING, False, "problem", "no way there"),
        (Outcome.SLEEPING, False, "warning", "no way there"),
        (Outcome.NOT_LOADED, False, "warning", "no way there"),
        (Outcome.UNAUTHORIZED, False, "problem", "wants an API key"),
        (Outcome.UNAUTHORIZED, True, "problem", "refuses the API key"),
        (Outcome.REFUSED, False, "problem", "no way there"),
        (Outcome.HTTP_ERROR, False, "problem", "no way there"),
        (Outcome.ROUTER, False, "problem", "no way there"),
        (Outcome.OK, True, "ok", "answers with the API key given"),
    ],
)
def test_how_a_server_answers(
    outcome: Outcome, *, key_given: bool, level: Level, text: str
) -> None:
    """Each state of a server, and of a twin, has its sentence and level."""
    there = look(outcome, detail="no way there")
    server = replace(FINE, server=there, key_given=key_given, probe=None, after=None)
    twin = replace(FINE, target_only=there, target_only_key_given=key_given, probe=None)
    assert the(server, "server", text).level == level
    assert the(twin, "target_only", text).level == level


@pytest.mark.parametrize(
    ("outcome", "advice"),
    [
        (Outcome.REFUSED, "start llama-server there, or correct url"),
        (Outcome.STALLED, "wait if it is busy with a long prompt, else see its log"),
        (Outcome.ROUTER, "set model for this server in the configuration"),
        (Outcome.REDIRECT, "see whether url leads to llama-server itself"),
    ],
)
def test_advice_fits_the_failure(outcome: Outcome, advice: str) -> None:
    """What to do depends on what is wrong, not only on the state it leads to."""
    facts = replace(FINE, server=look(outcome, detail="x"), probe=None, after=None)
    assert the(facts, "server", "x").advice == advice


def test_key_advice_names_the_keys_of_the_right_server() -> None:
    """The twin has API keys of its own, and so has the advice."""
    locked = look(Outcome.UNAUTHORIZED)
    server = the(replace(FINE, server=locked, probe=None), "server", "wants")
    twin = the(replace(FINE, target_only=locked, probe=None), "target_only", "wants")
    assert "set api_key_env or api_key_file" in server.advice
    assert "--api-key-env" in server.advice
    assert "set target_only_api_key_env or target_only_api_key_file" in twin.advice
    assert "--target-only-api-key-env" in twin.advice


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_nothing_is_measured_in_any_other_state(state: State) -> None:
    """What the daemon cannot scrape it cannot measure: one line says so, and why."""
    outcome = next(o for o, s in STATE_OF_OUTCOME.items() if s is state)
    facts = replace(FINE, server=look(outcome), probe=None, after=None)
    (text,) = found(facts, "measured")
    assert text.startswith("nothing, while ")


def test_metrics_off() -> None:
    """Without /metrics a test can still show drafting, but the server counts as a problem."""
    facts = replace(
        FINE, server=look(Outcome.METRICS_DISABLED), after=look(Outcome.METRICS_DISABLED)
    )
    assert the(facts, "server", "/metrics turned off").advice == "start llama-server with --metrics"
    assert the(facts, "server", "drafts: ").level == "ok"
    assert "`mtpmon probe` measures all the same" in the(facts, "measured", "nothing").text


def test_asleep() -> None:
    """Of a sleeping server only what /props says is told, and of a model not loaded nothing."""
    asleep = look(Outcome.SLEEPING, detail="the server sleeps; it is left alone")
    facts = replace(ALONE, server=asleep, probe=None, after=None)
    assert list(found(facts, "server")) == [
        "the server sleeps; it is left alone",
        "build b10434-abc, small.gguf, Q4_K - Medium, 2 slots",
    ]
    absent = look(Outcome.NOT_LOADED, detail="the router says unloaded", props=None)
    assert list(found(replace(facts, server=absent), "server")) == ["the router says unloaded"]


def test_no_props() -> None:
    """A proxy that hides /props leaves build and model unknown, which is a warning."""
    facts = replace(FINE, server=look(props=None, counters=BEFORE))
    assert the(facts, "server", "/props").level == "warning"


def test_bare_props() -> None:
    """What /props does not say is left out, and a missing chat template is a warning."""
    facts = replace(FINE, server=look(props=Props(slots=1), counters=BEFORE))
    assert "build unknown, 1 slot" in found(facts, "server")
    assert the(facts, "server", "chat template").level == "warning"
    bare = replace(FINE, server=look(props=Props(), counters=BEFORE))
    assert "build unknown" in found(bare, "server")


def test_failed_probe() -> None:
    """A test probe that fails is a problem with its reason, and so would be all probes."""
    failed = probed(
        outcome=ProbeOutcome.FAILED, detail="HTTP 400: no", speculating=None, target_only=None
    )
    facts = replace(FINE, probe=failed)
    assert the(facts, "server", "fails a test probe: HTTP 400: no").level == "problem"
    assert the(facts, "measured", "would fail as the test did").level == "warning"
    assert the(facts, "measured", "live acceptance").level == "ok"


def test_server_that_does_not_draft() -> None:
    """No draft in a test is a problem, and then there is no acceptance to measure."""
    facts = replace(
        FINE,
        probe=probed(speculating=completion(None, None)),
        after=look(counters=replace(BEFORE, generated_tokens=Reading(108))),
    )
    assert the(facts, "server", "does not draft: 8 test tokens").level == "problem"
    assert not [text for text in found(facts, "server") if "agree" in text]
    assert the(facts, "measured", "live acceptance").level == "warning"


def test_all_draft_tokens_refused() -> None:
    """A draft of which nothing was kept is a draft all the same."""
    facts = replace(FINE, probe=probed(speculating=completion(9, None)))
    assert the(facts, "server", "drafts: 0 of 9").level == "ok"


def without(counters: Counters, *names: str) -> Counters:
    return replace(counters, **dict.fromkeys(names))


def test_old_build_without_speculative_counters() -> None:
    """An old build can be probed, but has no live acceptance."""
    names = ("drafts", "draft_tokens", "accepted_tokens", "accepted_by_position")
    facts = replace(
        FINE,
        server=look(counters=without(BEFORE, *names)),
        after=look(counters=without(AFTER, *names)),
    )
    assert the(facts, "server", "no speculative counters").level == "warning"
    assert not [text for text in found(facts, "server") if "agree" in text]
    assert the(facts, "measured", "live acceptance").level == "warning"
    assert the(facts, "measured", "speed-up").level == "ok"


def test_counters_without_positions() -> None:
    """Drafts counted, but not by position: acceptance is measured, its distribution is not."""
    facts = replace(
        FINE,
        server=look(counters=without(BEFORE, "accepted_by_position")),
        after=look(counters=without(AFTER, "accepted_by_position")),
    )
    assert the(facts, "server", "not accepted tokens by draft position").level == "warning"
    assert the(facts, "measured", "wider bounds").level == "ok"
    assert the(facts, "measured", "by draft position").level == "warning"


def test_nothing_drafted_so_far() -> None:
    """Counts by position come with the first draft: until then their absence is fine."""
    unused = Counters(drafts=Reading(0), generated_tokens=Reading(0), draft_tokens=Reading(0))
    facts = replace(FINE, server=look(counters=unused), probe=None, after=None)
    assert the(facts, "server", "none so far").level == "ok"
    assert the(facts, "measured", "acceptance by draft position").level == "ok"


def test_unreadable_lines() -> None:
    """Broken lines in /metrics are counted and told."""
    facts = replace(FINE, after=look(counters=replace(AFTER, bad_lines=2)))
    assert the(facts, "server", "2 unreadable lines").level == "warning"


def test_lost_after_the_test() -> None:
    """If the last look fails, the counters of the first one are judged."""
    facts = replace(FINE, after=look(Outcome.TIMEOUT))
    assert the(facts, "server", "counts drafts").level == "ok"


def test_counters_that_are_wrong() -> None:
    """Counters that say other than the reply to the test are a problem, with both numbers."""
    wrong = replace(AFTER, accepted_tokens=Reading(29), accepted_by_position=(12, 9, 8))
    facts = replace(FINE, after=look(counters=wrong))
    assert the(facts, "server", "counts wrong").level == "problem"
    assert the(facts, "server", "counts wrong: 9 of 9 kept by /metrics, 4 of 9 kept by its replies")
    assert the(facts, "measured", "live acceptance, as wrong as the counters").level == "warning"
    assert not [text for text in found(facts, "server") if "agree" in text]


def test_counters_within_their_rounding_are_right() -> None:
    """A counter printed to the nearest ten agrees with what lies within it."""
    rounded = replace(AFTER, accepted_tokens=Reading(20, 10), draft_tokens=Reading(40, 10))
    the(replace(FINE, after=look(counters=rounded)), "server", "counters that agree")


def test_counters_that_are_missing_contradict_nothing() -> None:
    """A single absent counter is not a wrong one, and in a complaint it is nothing."""
    before, after = (without(counters, "accepted_tokens") for counters in (BEFORE, AFTER))
    facts = replace(FINE, server=look(counters=before), after=look(counters=after))
    the(facts, "server", "counters that agree")
    wrong = look(counters=replace(after, draft_tokens=Reading(99)))
    the(replace(facts, after=wrong), "server", "counts wrong: 0 of 69 kept")


@pytest.mark.parametrize(
    ("counters", "level", "text"),
    [
        (
            replace(AFTER, accepted_by_position=(100, 60, 40), accepted_tokens=Reading(200)),
            "problem",
            "more tokens than it drafted",
        ),
        (
            replace(AFTER, accepted_by_position=(5, 12, 7)),
            "problem",
            "a draft position more often than the one before",
        ),
        (replace(AFTER, accepted_tokens=Reading(25)), "problem", "do not add up"),
        (
            Counters(drafts=Reading(300), draft_tokens=Reading(900), accepted_tokens=Reading(900)),
            "warning",
            "each token it ever drafted",
        ),
    ],
)
def test_counters_that_cannot_be(counters: Counters, level: Level, text: str) -> None:
    """Counters that contradict themselves are told, without any test."""
    facts = replace(FINE, server=look(counters=counters), probe=None, after=None)
    assert the(facts, "server", text).level == level


def test_build_that_is_known_to_miscount() -> None:
    """A build with a public report is a warning that names it, also where a test agrees."""
    old = replace(PROPS, build_number=9000)
    facts = replace(FINE, server=look(props=old, counters=BEFORE))
    finding = the(facts, "server", "may miscount")
    assert finding.level == "warning"
    assert "llama.cpp#" in finding.text
    the(facts, "server", "counters that agree")


def test_others_during_the_test() -> None:
    """Counters are not checked against a test that was not alone."""
    busy = replace(AFTER, generated_tokens=Reading(300), draft_tokens=Reading(99))
    facts = replace(FINE, after=look(counters=busy))
    assert the(facts, "server", "served others").level == "warning"


def test_no_twin() -> None:
    """Without a twin nothing can be compared, which is a warning and no problem."""
    assert the(ALONE, "target_only", "nothing to compare").level == "warning"
    assert the(ALONE, "measured", "speed-up").level == "warning"
    assert the(ALONE, "measured", "by task").level == "ok"


def test_server_that_drafts_on_request_only() -> None:
    """A server that a request can keep from drafting is its own twin."""
    switched = probed(target_only=completion(None, None), baseline=Baseline.SWITCH)
    facts = replace(ALONE, probe=switched)
    assert the(facts, "target_only", "none needed").level == "ok"
    assert the(facts, "measured", "speed-up").level == "ok"


def test_server_that_never_drafts_proves_no_switch() -> None:
    """That nothing is drafted on request says nothing where nothing is drafted anyway."""
    plain = completion(None, None)
    probe = probed(speculating=plain, target_only=plain, baseline=Baseline.SWITCH)
    assert the(replace(ALONE, probe=probe), "target_only", "nothing to compare")


def test_asking_about_single_tokens_needs_no_twin() -> None:
    """Without a twin the target can still be asked what it thinks of emitted tokens."""
    token = ForcedToken(index=7, logprob=-0.1, rank=0, regret_nats=0.0)
    single = probed(target_only=None, next_token=None, forced=(token,), baseline=Baseline.SINGLE)
    assert the(replace(ALONE, probe=single), "measured", "KLD and regret").level == "ok"
    assert the(ALONE, "measured", "KLD").level == "warning"


def test_twin_that_does_not_answer() -> None:
    """A twin that is down makes every probe fail, not just the comparison."""
    facts = replace(
        FINE, target_only=look(Outcome.REFUSED, detail="cannot connect"), probe=ALONE.probe
    )
    assert the(facts, "target_only", "cannot connect").level == "problem"
    assert "each one fails" in the(facts, "measured", "figures of probes").text


def test_twin_that_drafts() -> None:
    """A twin that drafts is none: a problem, and every probe would fail."""
    facts = replace(FINE, target_only_drafted=True, probe=ALONE.probe)
    assert the(facts, "target_only", "drafts as well").level == "problem"
    assert "each one fails" in the(facts, "measured", "figures of probes").text


def test_twin_with_another_tokenizer() -> None:
    """Another tokenizer is proof of another model."""
    facts = replace(FINE, target_only_tokens=(1, 2))
    assert the(facts, "target_only", "another tokenizer").level == "problem"


def test_tokenizer_that_is_not_told() -> None:
    """A server that does not tokenize proves nothing."""
    facts = replace(FINE, target_only_tokens=None)
    assert not [text for text in found(facts, "target_only") if "tokenizer" in text]


def test_twin_of_another_build() -> None:
    """Another build is a warning; without /props there is nothing to say."""
    other = look(props=replace(PROPS, build="b11434-x"))
    assert the(replace(FINE, target_only=other), "target_only", "b11434-x").level == "warning"
    for silent in (
        replace(FINE, target_only=look(props=None)),
        replace(FINE, server=look(props=None)),
    ):
        assert not [text for text in found(silent, "target_only") if "another build" in text]


@pytest.mark.parametrize(("nats", "level"), [(SAME_NATS, "ok"), (2 * SAME_NATS, "warning")])
def test_twin_with_other_weights(nats: float, level: Level) -> None:
    """Before any draft, twins predict the same; beyond rounding they are no twins."""
    facts = replace(FINE, probe=probed(next_token=replace(SAME, nats=nats)))
    assert the(facts, "target_only", "KLD").level == level


def test_twin_without_log_probabilities() -> None:
    """Where a distribution is missing there is no KLD, which is a warning and not a KLD of 0."""
    facts = replace(FINE, probe=probed(next_token=None))
    assert the(facts, "target_only", "no KLD").level == "warning"


def test_probes_turned_off() -> None:
    """A server that the configuration does not probe has live figures only."""
    facts = replace(FINE, probed=False)
    assert the(facts, "measured", "figures of probes").level == "warning"
    assert len(found(facts, "measured")) == 3


# --- captures -----------------------------------------------------------------------------

FITTING = CaptureFacts(
    use=Use.BASELINE, refused=(), prompts=38, asked=40, told=True, origin="small.gguf, b10434"
)
CAPTURED = replace(
    ALONE,
    captures=(FITTING,),
    probe=probed(target_only=completion(None, None), baseline=Baseline.CAPTURE),
)


def test_without_a_capture_nothing_is_said_of_one() -> None:
    """Nobody needs to have one."""
    assert found(FINE, "captures") == {}


def test_a_baseline_capture_that_fits_stands_in_for_a_second_server() -> None:
    """But for the speed-up, which needs both in the same minute."""
    assert found(CAPTURED, "captures") == {
        "the baseline capture fits, with 38 of 40 prompts: small.gguf, b10434": "ok"
    }
    assert the(CAPTURED, "target_only", "none needed: the baseline capture").level == "ok"
    assert the(CAPTURED, "measured", "against the captured baseline").level == "ok"
    assert the(CAPTURED, "measured", "speed-up").level == "warning"
    assert not [text for text in found(CAPTURED, "measured") if "reference" in text]


def test_a_capture_that_is_refused_is_a_problem_with_its_reasons() -> None:
    """All else goes on as without it."""
    refused = replace(FITTING, refused=("it is of another build", "it drafted"), told=None)
    facts = replace(ALONE, captures=(refused,))
    finding = the(facts, "captures", "not used: it is of another build; it drafted")
    assert finding.level == "problem"
    assert "without --spec-type" in finding.advice
    assert the(facts, "target_only", "nothing to compare").level == "warning"
    assert the(facts, "measured", "speed-up and exact sequences: not without").level == "warning"


def test_a_capture_whose_prompts_come_as_other_tokens_is_no_use() -> None:
    """It fits by its name, and yet every probe goes on without it."""
    facts = replace(ALONE, captures=(replace(FITTING, told=False),))
    assert the(facts, "captures", "other tokens").level == "warning"
    assert the(facts, "target_only", "nothing to compare").level == "warning"


def test_a_capture_that_could_not_be_judged_is_no_problem_yet() -> None:
    """The server sleeps, or refuses us: nothing is known of the capture."""
    waiting = replace(FITTING, refused=("the server did not tokenize",), judged=False, told=None)
    facts = replace(ALONE, captures=(waiting,))
    assert the(facts, "captures", "cannot be judged: the server did not").level == "warning"


def test_a_reference_capture_that_fits_adds_a_figure() -> None:
    """Beside whatever else there is."""
    reference = replace(FITTING, use=Use.REFERENCE, told=None)
    facts = replace(FINE, captures=(reference,))
    assert the(facts, "captures", "the reference capture fits").level == "ok"
    assert the(facts, "measured", "KLD from the captured reference").level == "ok"
    assert the(facts, "measured", "from probes of both").level == "ok"


# --- is it paying? ---


def test_what_the_history_says_is_told_in_words() -> None:
    """What a step costs, each task by its side of breakeven, and what to change."""
    advised = replace(
        MEASURED,
        advice=DepthAdvice(present=3, options=(), best=1, advised=1),
        advice_words="lower --spec-draft-n-max from 3 to 1: expected +7 % ± 2 %",
    )
    assert found(replace(FINE, measured=advised), "paying") == {
        "a verification step costs 2.66 (2.63–2.68) plain ones, from the target-only server": "ok",
        "paying: code (acceptance 82.3 %, breakeven 55.2 %),"
        " factual (acceptance 69.4 %, breakeven 55.2 %)": "ok",
        "undecided: analysis (acceptance 54.2 %, breakeven 55.2 %)": ("ok"),
        "costing: creative (acceptance 47.2 %, breakeven 55.2 %)": ("warning"),
        "lower --spec-draft-n-max from 3 to 1: expected +7 % ± 2 %": "warning",
    }
    none_sure = DepthAdvice(present=3, options=(), best=1, advised=None)
    keep = replace(advised, advice=none_sure, advice_words="keep", task_verdicts={})
    said = found(replace(FINE, measured=keep), "paying")
    assert (len(said), said["keep"]) == (2, "ok")
    assert len(found(replace(FINE, measured=replace(MEASURED, advice=None)), "paying")) == 4


def test_a_history_that_says_nothing_yet_says_what_to_do() -> None:
    """Too few probes of this process, or a file that cannot be read; none at all is no topic."""
    few = the(replace(FINE, measured=Measured()), "paying", "too few probes")
    assert (few.level, "mtpmon bench" in few.advice) == ("warning", True)
    broken = replace(FINE, history_problem="the history h.db is locked")
    assert the(broken, "paying", "not known: the history h.db is locked").level == "warning"
    assert found(FINE, "paying") == {}
