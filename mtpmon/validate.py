"""Is an answer one that figures can be made of? Validators over one completion.

A fault of the *request* (no text, another length than asked for) makes the probe useless:
its speed and acceptance belong to something else than was asked. A fault of the *text* (a
loop, broken characters) is the model's: such a probe stays completed, since the server did
what it was asked, and is flagged, since drafts of a loop are nearly always right and flatter
the acceptance.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from mtpmon.model import Baseline, Completion, ProbeOutcome, ProbeResult, Step
from mtpmon.steps import accepted_by_position

REPLACEMENT: Final = "\ufffd"
FEWEST_TOKENS: Final = 16
NGRAM: Final = 4
SHORTEST_TAIL: Final = 24  # tokens; of fewer it cannot be told whether they repeat for ever
REPETITIONS: Final = 4
NEAR_ONE: Final = 0.9


class Validator(StrEnum):
    """What can be wrong with an answer. The closed set of label values.

    ``empty_reply``: no text, or nothing but white space.
    ``wrong_length``: not as many tokens as asked for, where ends of text were to be ignored.
    ``repetition_loop``: the answer ends in a loop, see `repetition_loop`.
    ``invalid_utf8``: replacement characters stand in the text, see `invalid_utf8`.
    """

    EMPTY_REPLY = "empty_reply"
    WRONG_LENGTH = "wrong_length"
    REPETITION_LOOP = "repetition_loop"
    INVALID_UTF8 = "invalid_utf8"


FATAL: Final = (Validator.EMPTY_REPLY, Validator.WRONG_LENGTH)


def empty_reply(completion: Completion) -> bool:
    """Whether there is no text in the answer: white space at most.

    Of an answer of fewer than `FEWEST_TOKENS` nothing is said: it may be the line feeds that
    the real one begins with.
    """
    enough = completion.timings.generated_tokens >= FEWEST_TOKENS
    return enough and not _text(completion).strip()


def wrong_length(completion: Completion, *, tokens: int) -> bool:
    """Whether there are not exactly ``tokens`` tokens."""
    return completion.timings.generated_tokens != tokens


def invalid_utf8(completion: Completion) -> bool:
    """Whether bytes of the answer are no UTF-8: the server sends U+FFFD in their place.

    Not at the very end, where the last token may be half a character.
    """
    return REPLACEMENT in _text(completion).rstrip(REPLACEMENT)


def repetition_loop(completion: Completion) -> bool:
    """Whether the answer ends in a loop.

    Both must hold of its second half:

    - it repeats itself: on average every run of `NGRAM` tokens in it is there `REPETITIONS`
      times or more;
    - drafts of it were nearly all kept: at every position of a draft, the last one like the
      first, a share of `NEAR_ONE` or more. Where nothing was drafted this says nothing.

    Code that repeats its *shape* (a table of cases, a list of fields) has drafts as good as a
    loop's, but its names and numbers change, so few runs recur. A table of one and the same
    value is a loop by this definition. An answer whose half is shorter than `SHORTEST_TAIL`
    is never one.
    """
    ids = [position.id for position in completion.positions]
    tail = ids[len(ids) // 2 :]
    if len(tail) < SHORTEST_TAIL:
        return False
    runs = [tuple(tail[i : i + NGRAM]) for i in range(len(tail) - NGRAM + 1)]
    if len(runs) < REPETITIONS * len(set(runs)):
        return False
    return all(share >= NEAR_ONE for share in _curve(completion.stream.steps, len(tail)))


def _curve(steps: Sequence[Step], tokens: int) -> Iterator[float]:
    """The share kept at each position of those drafts that made the last ``tokens`` tokens."""
    last: list[Step] = []
    made = 0
    for step in reversed(steps):
        made += 1 + step.kept
        if made > tokens:
            break
        last.append(step)
    for position, kept in enumerate(accepted_by_position(last)):
        yield kept / sum(step.drafted > position for step in last)


_OF_THE_TEXT: Final[Mapping[Validator, Callable[[Completion], bool]]] = {
    Validator.REPETITION_LOOP: repetition_loop,
    Validator.INVALID_UTF8: invalid_utf8,
}


def validated(result: ProbeResult, *, tokens: int) -> ProbeResult:
    """A completed probe, with what is wrong with its answers written down.

    ``invalid`` is about the speculating server's answer. A target-only answer that is empty
    or of another length fails the probe too, since nothing can be compared with it; its
    loops and its characters are not the watched server's.

    Args:
        result: any probe; one that did not complete is returned as it is.
        tokens: how many were asked for.
    """
    ours, theirs = result.speculating, result.target_only
    if result.outcome is not ProbeOutcome.COMPLETED or ours is None:
        return result
    fatal = _fatal(ours, tokens)
    flags = [name for name, fails in _OF_THE_TEXT.items() if fails(ours)]
    result = replace(result, invalid=tuple(name.value for name in (*fatal, *flags)))
    detail = _complaint("the server", ours, fatal, tokens)
    # A captured answer was made for a length of its own: both are compared as far as they go.
    if not detail and theirs is not None and result.baseline is not Baseline.CAPTURE:
        detail = _complaint("the target-only arm", theirs, _fatal(theirs, tokens), tokens)
    return replace(result, outcome=ProbeOutcome.FAILED, detail=detail) if detail else result


def _fatal(completion: Completion, tokens: int) -> list[Validator]:
    found = []
    if empty_reply(completion):
        found.append(Validator.EMPTY_REPLY)
    if wrong_length(completion, tokens=tokens):
        found.append(Validator.WRONG_LENGTH)
    return found


def _complaint(who: str, completion: Completion, fatal: Sequence[Validator], tokens: int) -> str:
    if Validator.WRONG_LENGTH in fatal:
        count = completion.timings.generated_tokens
        return f"{who} generated {count} of {tokens} tokens: is the context long enough?"
    return f"{who} answered without any text" if fatal else ""


def _text(completion: Completion) -> str:
    return "".join(position.text for position in completion.positions)
