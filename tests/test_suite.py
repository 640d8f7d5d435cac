"""The prompts that are sent, and their order."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.suite import TASKS, Prompt, Suite, builtin_suite, rotation


def _suite(sizes: dict[str, int]) -> Suite:
    return Suite(
        tuple(Prompt(f"{task}-{i}", task, "x") for task, n in sizes.items() for i in range(n))
    )


SUITES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.integers(1, 6), min_size=1, max_size=5
).map(_suite)
SEEDS = st.integers(0, 2**32)


def test_builtin_suite_has_the_five_tasks_in_order() -> None:
    """The tasks of the viability study are there, best drafted first."""
    assert builtin_suite().tasks == TASKS


def test_every_task_has_six_to_eight_prompts() -> None:
    """No task rests on a few prompts, and a pass over the suite stays short."""
    counts = Counter(prompt.task for prompt in builtin_suite().prompts)
    assert all(6 <= n <= 8 for n in counts.values())


def test_prompt_ids_and_texts_are_unique() -> None:
    """An id names one prompt, and no prompt is sent twice under two names."""
    prompts = builtin_suite().prompts
    assert len({p.id for p in prompts}) == len({p.text for p in prompts}) == len(prompts)


def test_prompts_are_tidy() -> None:
    """An id starts with its task, and a text is one line without blanks around it."""
    for prompt in builtin_suite().prompts:
        assert prompt.id.startswith(f"{prompt.task}-")
        assert prompt.text == " ".join(prompt.text.split())


def test_builtin_suite_can_be_narrowed() -> None:
    """Only the tasks asked for are returned, in the order asked for."""
    assert builtin_suite(["essay", "code"]).tasks == ("essay", "code")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (["poetry"], "there is no task 'poetry'; there are code, factual, analysis, essay"),
        (["code", "code"], "a task is named twice in code, code"),
    ],
)
def test_builtin_suite_refuses_by_name(tasks: list[str], message: str) -> None:
    """A task that cannot be served is named, with what there is."""
    with pytest.raises(ValueError, match=message):
        builtin_suite(tasks)


def test_empty_suite_has_no_rotation() -> None:
    """Asking for prompts where there are none fails at once."""
    with pytest.raises(ValueError, match="without prompts"):
        rotation(Suite(()), 1)


@settings(deadline=None)
@given(SUITES, SEEDS)
def test_any_window_visits_every_task_once(suite: Suite, seed: int) -> None:
    """Tasks take turns, wherever one starts to look."""
    n = len(suite.tasks)
    tasks = [p.task for p in itertools.islice(rotation(suite, seed), 6 * n)]
    for start in range(len(tasks) - n + 1):
        assert set(tasks[start : start + n]) == set(suite.tasks)


@settings(deadline=None)
@given(SUITES, SEEDS)
def test_each_prompt_once_per_cycle_of_its_task(suite: Suite, seed: int) -> None:
    """A task's prompts are all used before one of them is used again."""
    drawn = list(itertools.islice(rotation(suite, seed), 18 * len(suite.tasks)))
    for task in suite.tasks:
        own = [p for p in suite.prompts if p.task == task]
        used = [p for p in drawn if p.task == task]
        for start in range(0, len(used) - len(own) + 1, len(own)):
            assert set(used[start : start + len(own)]) == set(own)


@settings(deadline=None)
@given(SUITES, SEEDS)
def test_rotation_depends_on_suite_and_seed_only(suite: Suite, seed: int) -> None:
    """Equal suites and seeds give equal orders."""
    one, two = (list(itertools.islice(rotation(suite, seed), 40)) for _ in range(2))
    assert one == two


def test_order_differs_between_cycles_and_seeds() -> None:
    """The order is drawn anew for every cycle, and by every seed."""
    suite = builtin_suite()
    n = len(suite.prompts)
    drawn = list(itertools.islice(rotation(suite, 1), 2 * n))
    assert drawn[:n] != drawn[n:]
    assert drawn[:n] != list(itertools.islice(rotation(suite, 2), n))
