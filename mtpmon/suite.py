"""Which prompts are sent, and in what order."""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

import yaml

TASKS: Final = ("code", "factual", "analysis", "essay", "creative")
"""The built-in tasks, from the one that is drafted best to the one that is drafted worst."""


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


def builtin_suite(tasks: Sequence[str] | None = None) -> Suite:
    """Returns the prompts that come with mtpmon.

    Args:
        tasks: Only these, in this order; by default all five.

    Raises:
        ValueError: There is no such task, or one is named twice.
    """
    chosen = TASKS if tasks is None else tuple(tasks)
    for task in chosen:
        if task not in TASKS:
            raise ValueError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"a task is named twice in {', '.join(chosen)}")
    folder = resources.files("mtpmon") / "prompts"
    return Suite(tuple(itertools.chain.from_iterable(_read(folder, task) for task in chosen)))


def rotation(suite: Suite, seed: int) -> Iterator[Prompt]:
    """Yields prompts for ever, evenly over tasks and over the prompts of each task.

    Tasks take turns, so that any run of as many prompts as there are tasks visits each task once.
    A task's prompts are all used before one is used again; then their order is drawn anew. Equal
    suites and seeds give equal orders.

    Raises:
        ValueError: The suite is empty.
    """
    if not suite.prompts:
        raise ValueError("a suite without prompts has no rotation")
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    tasks = list(suite.tasks)
    rng.shuffle(tasks)
    decks = [_deck([p for p in suite.prompts if p.task == task], rng.random()) for task in tasks]
    return itertools.chain.from_iterable(zip(*decks, strict=True))


def _deck(prompts: list[Prompt], seed: float) -> Iterator[Prompt]:
    rng = random.Random(seed)  # noqa: S311 - an order, not a secret
    while True:
        rng.shuffle(prompts)
        yield from prompts


def _read(folder: Traversable, task: str) -> Iterable[Prompt]:
    text = (folder / f"{task}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    return [Prompt(entry["id"], task, entry["text"]) for entry in document["prompts"]]
