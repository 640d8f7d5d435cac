"""Which prompts are sent, how, and in what order."""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

import yaml

from mtpmon.model import Variant

__all__ = [
    "DEFAULT_TASKS",
    "DEFAULT_VARIANT",
    "TASKS",
    "Case",
    "Prompt",
    "Suite",
    "Turns",
    "Variant",
    "builtin_suite",
    "cases",
    "coverage",
    "cycle",
    "deep_text",
    "rotation",
    "sampling_seed",
    "select",
    "sentences_for",
    "variants",
]

DEFAULT_TASKS: Final = ("code", "factual", "analysis", "essay", "creative")
"""What is probed unless configured, from what is drafted best to what is drafted worst."""

TASKS: Final = (
    *DEFAULT_TASKS,
    "python_code",
    "cpp_code",
    "explain",
    "summarise",
    "factual_qa",
    "translation",
    "short_creative",
    "stepwise_maths",
    "long_code_review",
)
"""The built-in tasks: the default ones, then the categories that users compare builds by."""

DEFAULT_VARIANT: Final = Variant()
"""Greedy, thinking left to the chat template, nothing before the prompt."""

SEEDS: Final = 2**32 - 1
"""How many seeds of sampling there are: one more is llama-server's "random"."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message.

    Attributes:
        id: Unique in its suite.
        task: The kind of work it asks for, a label of results.
        text: What the user says, without any chat template.
    """

    id: str
    task: str
    text: str


@dataclass(frozen=True, slots=True)
class Suite:
    """Prompts to choose from; of one task they need not be neighbours."""

    prompts: tuple[Prompt, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks, in the order of their first prompts."""
        return tuple(dict.fromkeys(prompt.task for prompt in self.prompts))


@dataclass(frozen=True, slots=True)
class Case:
    """What one probe asks: a prompt, and the way to ask it."""

    prompt: Prompt
    variant: Variant = DEFAULT_VARIANT


# --- prompts --------------------------------------------------------------------------------


def builtin_suite(tasks: Sequence[str] | None = None) -> Suite:
    """Returns the prompts that come with mtpmon.

    Args:
        tasks: Only these, in this order; by default the default ones.

    Raises:
        ValueError: There is no such task, or one is named twice.
    """
    chosen = DEFAULT_TASKS if tasks is None else tuple(tasks)
    for task in chosen:
        if task not in TASKS:
            raise ValueError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"a task is named twice in {', '.join(chosen)}")
    folder = resources.files("mtpmon") / "prompts"
    return Suite(tuple(itertools.chain.from_iterable(_read(folder, task) for task in chosen)))


def select(prompts: Iterable[Prompt], tasks: Sequence[str]) -> Suite:
    """Returns the prompts of ``tasks``, in the order of the tasks."""
    held = tuple(prompts)
    return Suite(tuple(prompt for task in tasks for prompt in held if prompt.task == task))


def _read(folder: Traversable, task: str) -> Iterable[Prompt]:
    text = (folder / f"{task}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return [Prompt(entry["id"], task, entry["text"]) for entry in document["prompts"]]


# --- variants -------------------------------------------------------------------------------


def variants(
    temperatures: Iterable[float], thinking: Iterable[bool | None], depths: Iterable[int]
) -> tuple[Variant, ...]:
    """Returns every combination, each once, after the default variant.

    The default one always is among them: sampled sequences may differ without any fault, so
    without greedy probes nothing could be said of what drafting does to answers.
    """
    combined = (
        Variant(temperature=temperature, thinking=thought, depth_tokens=depth)
        for temperature, thought, depth in itertools.product(
            tuple(temperatures), tuple(thinking), tuple(depths)
        )
    )
    return tuple(dict.fromkeys((DEFAULT_VARIANT, *combined)))


def sampling_seed(seed: int, draw: int) -> int:
    """Returns the seed of the ``draw``-th sampled probe, never llama-server's "random"."""
    return (seed + draw) % SEEDS


# --- order ----------------------------------------------------------------------------------


def rotation(suite: Suite, seed: int) -> Iterator[Prompt]:
    """Yields prompts for ever, evenly over tasks and over the prompts of each task.

    Tasks take turns, so that any run of as many prompts as there are tasks visits each task once.
    A task's prompts are all used before one is used again; then their order is drawn anew. Equal
    suites and seeds give equal orders.

    Raises:
        ValueError: The suite is empty.
    """
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    decks = [_deck(prompts, rng.random()) for prompts in _by_task(suite, rng)]
    return itertools.chain.from_iterable(zip(*decks, strict=True))


def cases(suite: Suite, ways: Sequence[Variant], seed: int) -> Iterator[Case]:
    """Yields cases for ever: every second one in the default variant, the others in turn.

    Prompts in the default variant come in the order of ``rotation``. Between them tasks take
    turns as well, each with another variant than the last time; of one task and variant all
    prompts are used before one is used again. Shallow and deep contexts alternate, so that a
    costly probe does not follow another. Equal arguments give equal orders.

    Args:
        suite: What to ask.
        ways: How; the default variant is asked whether it is among them or not.
        seed: Of the order.

    Raises:
        ValueError: The suite is empty.
    """
    usual = (Case(prompt) for prompt in rotation(suite, seed))
    others = _by_cost(ways)
    if not others:
        return usual
    between = _between(suite, others, random.Random(f"{seed} between"))  # noqa: S311 - an order
    return itertools.chain.from_iterable(zip(usual, between, strict=True))


def cycle(suite: Suite, ways: Sequence[Variant]) -> int:
    """Returns after how many cases every prompt has been asked in every variant."""
    largest = max(sum(p.task == task for p in suite.prompts) for task in suite.tasks)
    others = len(_by_cost(ways))
    return len(suite.tasks) * largest * (2 * others or 1)


def coverage(suite: Suite, ways: Sequence[Variant], interval_seconds: float) -> float:
    """Returns the seconds after which every prompt has been asked in every variant.

    Args:
        suite: What is asked.
        ways: How.
        interval_seconds: From one probe to the next; a busy server takes longer.
    """
    return cycle(suite, ways) * interval_seconds


class Turns:
    """Counts cases, each task and variant on its own: for what takes turns, such as the arms.

    One count for all would not do: with an even number of tasks, or every second case in the
    same variant, a task would have the same arm first every time, and whatever favours the
    second one would look like a speed-up.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[str, Variant], int] = {}

    def next(self, case: Case) -> int:
        """Returns the number of this turn: one more each time, from another start in each count."""
        cell = (case.prompt.task, case.variant)
        turn = self._next.setdefault(cell, len(self._next))
        self._next[cell] = turn + 1
        return turn


def _by_task(suite: Suite, rng: random.Random) -> list[list[Prompt]]:
    if not suite.prompts:
        raise ValueError("a suite without prompts has no rotation")
    tasks = list(suite.tasks)
    rng.shuffle(tasks)
    return [[p for p in suite.prompts if p.task == task] for task in tasks]


def _deck(prompts: list[Prompt], seed: float) -> Iterator[Prompt]:
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    while True:
        rng.shuffle(prompts)
        yield from prompts


def _by_cost(ways: Sequence[Variant]) -> tuple[Variant, ...]:
    """All but the default variant, a shallow one and a deep one by turns."""
    others = sorted({way for way in ways if way != DEFAULT_VARIANT}, key=_cost)
    half = (len(others) + 1) // 2
    pairs = itertools.zip_longest(others[:half], others[half:])
    return tuple(way for pair in pairs for way in pair if way is not None)


def _cost(way: Variant) -> tuple[int, float, int]:
    """What sets the cost first; the rest only makes the order certain."""
    return way.depth_tokens, way.temperature, (None, False, True).index(way.thinking)


def _between(suite: Suite, others: Sequence[Variant], rng: random.Random) -> Iterator[Case]:
    decks = [
        [_deck(list(prompts), rng.random()) for _ in others] for prompts in _by_task(suite, rng)
    ]
    visit = 0
    while True:
        for place, deck in enumerate(decks):
            which = (visit + place) % len(others)
            yield Case(next(deck[which]), others[which])
        visit += 1


# --- depth ----------------------------------------------------------------------------------

_WHO: Final = (
    "The harbour master", "A retired surveyor", "Our neighbour", "The night porter",
    "A visiting botanist", "The town archivist", "My older cousin", "The ferry captain",
    "A young apprentice", "The museum guard", "The baker across the road", "An old clockmaker",
    "The station manager", "A student of law", "The lighthouse keeper", "The new librarian",
)  # fmt: skip
_DID: Final = (
    "kept a careful list of", "wanted to know more about", "had long forgotten",
    "spoke at length about", "spent a whole winter on", "made several drawings of",
    "asked everyone for news of", "could not explain", "wrote two letters concerning",
    "laughed about", "took great pride in", "lost all patience with", "began to repair",
    "measured once again",
)  # fmt: skip
_WHAT: Final = (
    "the broken weather vane", "a box of unlabelled keys", "the first map of the valley",
    "the tides of that autumn", "a bridge that was never built", "the price of copper wire",
    "seven jars of plum jam", "the echo under the railway arch", "a rumour from the coast",
    "the old irrigation channels", "a clock with only one hand", "the missing pages of the ledger",
    "some unusually blue tiles", "the orchard behind the mill", "a photograph without a date",
    "the rules of an obscure card game",
)  # fmt: skip
_WHEN: Final = (
    "in the spring", "after the flood", "on a quiet Tuesday", "before the road was paved",
    "when the shops had closed", "during the long strike", "a year later", "at the first frost",
    "early in the morning", "while the others were away", "on the last day of the fair",
    "in those days",
)  # fmt: skip
_AFTER: Final = (
    "and nobody thought it strange", "although the weather was poor", "which surprised the mayor",
    "and that was the end of the matter", "but the answer came too late",
    "so the meeting was moved to Friday", "because there was little else to do",
    "and a short note about it survives", "yet no two accounts agree",
    "as the minutes of the council show",
)  # fmt: skip


def deep_text(prompt: Prompt, sentences: int) -> str:
    """Returns a prompt's text after so many sentences of something else.

    They are ordinary English of some 22 words, the same for a prompt each time; fewer are a
    beginning of more.
    """
    if sentences == 0:
        return prompt.text
    rng = random.Random(prompt.id)  # noqa: S311 - a text, not a secret
    filler = " ".join(_sentence(rng) for _ in range(sentences))
    return f"Some notes that I have collected:\n\n{filler}\n\nNow something else.\n\n{prompt.text}"


def sentences_for(wanted_tokens: int, *, sample_sentences: int, sample_tokens: int) -> int:
    """Returns how many sentences make about so many tokens, and no more by the sample's length.

    Args:
        wanted_tokens: Of filler; negative counts as none.
        sample_sentences: A number of sentences that was tokenized,
        sample_tokens: and how many tokens came out.
    """
    return max(wanted_tokens, 0) * sample_sentences // max(sample_tokens, 1)


def _sentence(rng: random.Random) -> str:
    who, did, what, when, after = (rng.choice(part) for part in (_WHO, _DID, _WHAT, _WHEN, _AFTER))
    return f"{who} {did} {what} {when}, {after}."
