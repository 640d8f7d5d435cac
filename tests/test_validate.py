"""Which answers are found wanting, and what that means for their probe."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mtpmon.model import (
    Baseline,
    Completion,
    Position,
    ProbeOutcome,
    ProbeResult,
    Step,
    StepStream,
    Timings,
)
from mtpmon.validate import (
    SHORTEST_TAIL,
    Validator,
    empty_reply,
    invalid_utf8,
    repetition_loop,
    validated,
    wrong_length,
)


def answer(
    words: list[str], *, kept: float = 1.0, drafting: bool = True, generated: int | None = None
) -> Completion:
    """One of these tokens; of each three drafted, this share of the steps kept all, others none.

    Equal words are equal tokens.
    """
    ids = {word: place for place, word in enumerate(dict.fromkeys(words))}
    steps: list[Step] = []
    made, share = 1, 0.0
    while made < len(words):
        share += kept
        good = drafting and share >= 1
        if good:
            share -= 1
        left = len(words) - made
        drafted = min(3, left - 1) if drafting else 0
        steps.append(Step(drafted, drafted if good else 0, 0.01))
        made += 1 + steps[-1].kept
    return Completion(
        positions=tuple(Position(ids[word], word) for word in words),
        timings=Timings(
            prompt_tokens=5,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=len(words) if generated is None else generated,
            generation_seconds=1,
        ),
        stream=StepStream(steps=tuple(steps)),
        wall_seconds=1,
    )


def tokens(text: str) -> list[str]:
    """Words, numbers, blanks and signs apart, about as tokenizers do it."""
    found, word = [], ""
    for character in text:
        if character.isalnum():
            word += character
            continue
        found += [word, character] if word else [character]
        word = ""
    return found + ([word] if word else [])


PROSE = [f"word{i}" for i in range(40)]
CASES = tokens(
    "\n".join(f'        case {i}: return "{name}";' for i, name in enumerate("abcdefghijklmnop"))
)
ROWS = tokens(
    "\n".join(
        f'    {{ .id = {i}, .name = "{chr(97 + i)}", .size = {i * 7}, .used = false }},'
        for i in range(12)
    )
)
TESTS = tokens(
    "\n".join(
        f"def test_add_{a}_{b}():\n    assert add({a}, {b}) == {a + b}\n"
        for a, b in [(1, 2), (3, 5), (8, 13), (21, 34), (55, 89), (4, 6), (10, 15), (7, 9)]
    )
)


# --- repetition loops ---


@pytest.mark.parametrize("period", range(1, 9))
def test_a_loop_is_found(period: int) -> None:
    """Also when it begins in the middle of the answer."""
    loop = [f"again{i % period}" for i in range(80)]
    assert repetition_loop(answer(loop))
    assert repetition_loop(answer(PROSE + loop))


def test_a_loop_of_a_sentence_is_found() -> None:
    """Long phrases too, if they come often enough in the second half."""
    phrase = tokens("I am sorry, but I cannot say. ")
    assert repetition_loop(answer(PROSE + phrase * 12))
    assert not repetition_loop(answer(PROSE + phrase * 3))


@pytest.mark.parametrize("code", [CASES, ROWS, TESTS], ids=["cases", "rows", "tests"])
@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_code_that_repeats_its_shape_is_no_loop(code: list[str], kept: float) -> None:
    """Though every draft of it is kept: names and numbers change."""
    assert len(code) > 2 * SHORTEST_TAIL
    assert not repetition_loop(answer(code, kept=kept))


def test_a_repetition_that_drafts_badly_is_no_loop() -> None:
    """A model that is in a loop is certain of it; this one was not."""
    loop = ["tick", "tock"] * 40
    assert repetition_loop(answer(loop, kept=1.0))
    assert not repetition_loop(answer(loop, kept=0.8))


def test_drafts_before_the_loop_do_not_hide_it() -> None:
    """Only those count that made the part that repeats."""
    bad, good = answer(PROSE, kept=0.0), answer(["tick"] * 80, kept=1.0)
    both = answer(PROSE + ["tick"] * 80)
    steps = (*bad.stream.steps, *good.stream.steps)
    assert repetition_loop(replace(both, stream=StepStream(steps=steps)))


def test_a_loop_with_steps_that_are_not_known_is_found() -> None:
    """Those that are known decide."""
    whole = answer(["tick"] * 80)
    part = replace(whole, stream=StepStream(steps=whole.stream.steps[-2:]))
    assert repetition_loop(part)


def test_a_loop_without_drafts_is_found() -> None:
    """A server that does not draft can be in a loop as well."""
    assert repetition_loop(answer(["tick"] * 80, drafting=False))


def test_a_table_of_one_value_counts_as_a_loop() -> None:
    """It cannot be told from one by what was said."""
    assert repetition_loop(answer(tokens("{" + "0, " * 60)))


def test_of_a_short_answer_nothing_is_said() -> None:
    """A few equal tokens are no loop yet."""
    assert not repetition_loop(answer(["tick"] * (2 * SHORTEST_TAIL - 2)))
    assert repetition_loop(answer(["tick"] * (2 * SHORTEST_TAIL)))


@settings(deadline=None)
@given(st.permutations(range(60)), st.floats(0, 1))
def test_words_that_all_differ_are_no_loop(order: list[int], kept: float) -> None:
    """However good the drafts."""
    assert not repetition_loop(answer([str(i) for i in order], kept=kept))


# --- the others ---


def test_an_empty_reply_has_no_text() -> None:
    """White space is none; a short answer may well begin with it."""
    assert empty_reply(answer(["\n", " "] * 10))
    assert empty_reply(answer([""] * 20))
    assert not empty_reply(answer([*["\n"] * 19, "x"]))
    assert not empty_reply(answer(["\n", "\n"]))


def test_a_wrong_length_is_any_other() -> None:
    """Ends of text are ignored, so there are exactly as many tokens as asked for."""
    assert not wrong_length(answer(["a"] * 5), tokens=5)
    assert wrong_length(answer(["a"] * 5), tokens=6)
    assert wrong_length(answer(["a"] * 5), tokens=4)


def test_broken_characters_are_found() -> None:
    """But not at the end, where the answer may be cut within a character."""
    assert invalid_utf8(answer(["a", "\ufffd", "b"]))
    assert invalid_utf8(answer(["a\ufffdb", "\ufffd"]))
    assert not invalid_utf8(answer(["naïve ", "\ufffd\ufffd"]))
    assert not invalid_utf8(answer(["你", "好"]))


# --- what it means for a probe ---


def result(
    ours: Completion | None,
    theirs: Completion | None = None,
    outcome: ProbeOutcome = ProbeOutcome.COMPLETED,
) -> ProbeResult:
    return ProbeResult(
        server="a",
        prompt_id="p",
        task="code",
        unix_seconds=1,
        duration_seconds=1,
        outcome=outcome,
        speculating=ours,
        target_only=theirs,
    )


GOOD = answer(PROSE)


def test_a_good_probe_stays_as_it_is() -> None:
    """Nothing is written down."""
    assert validated(result(GOOD, GOOD), tokens=40) == result(GOOD, GOOD)
    assert validated(result(GOOD), tokens=40) == result(GOOD)


@pytest.mark.parametrize(
    ("ours", "asked", "names", "detail"),
    [
        (answer([""] * 20), 20, ["empty_reply"], "the server answered without any text"),
        (GOOD, 64, ["wrong_length"], "the server generated 40 of 64 tokens: is the context"),
        (answer([""] * 20), 5, ["empty_reply", "wrong_length"], "the server generated 20 of 5"),
    ],
)
def test_an_answer_to_something_else_fails_the_probe(
    ours: Completion, asked: int, names: list[str], detail: str
) -> None:
    """Its figures would be about another request; the reason is there, and so is the answer."""
    found = validated(result(ours, GOOD), tokens=asked)
    assert found.outcome is ProbeOutcome.FAILED
    assert list(found.invalid) == names
    assert detail in found.detail
    assert found.speculating == ours


def test_a_bad_text_flags_the_probe() -> None:
    """The server did what it was asked, so its speed counts."""
    loop = answer(["\ufffd", "x"] * 40)
    found = validated(result(loop, loop), tokens=80)
    assert found.outcome is ProbeOutcome.COMPLETED
    assert found.invalid == (Validator.REPETITION_LOOP, Validator.INVALID_UTF8)
    assert found.detail == ""


@pytest.mark.parametrize("theirs", [answer([""] * 40), answer(["x"] * 39)])
def test_a_bad_baseline_fails_the_probe(theirs: Completion) -> None:
    """But is not held against the watched server."""
    found = validated(result(GOOD, theirs), tokens=40)
    assert found.outcome is ProbeOutcome.FAILED
    assert found.invalid == ()
    assert found.detail.startswith("the target-only arm")


def test_a_captured_answer_may_have_another_length() -> None:
    """It was asked for at another time."""
    captured = replace(result(GOOD, answer(["x"] * 64)), baseline=Baseline.CAPTURE)
    assert validated(captured, tokens=40) == captured


def test_loops_of_the_baseline_are_its_own() -> None:
    """They are no fault of the watched server."""
    found = validated(result(GOOD, answer(["tick"] * 40)), tokens=40)
    assert found == result(GOOD, answer(["tick"] * 40))


def test_what_did_not_complete_is_left_alone() -> None:
    """There is no answer to judge, or it is judged already."""
    failed = result(answer([""] * 20), outcome=ProbeOutcome.FAILED)
    assert validated(failed, tokens=20) is failed
    skipped = result(None)
    assert validated(skipped, tokens=20) is skipped
