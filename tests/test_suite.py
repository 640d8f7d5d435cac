"""The prompts that are sent, how, and in what order."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpmon.suite import (
    DEFAULT_TASKS,
    DEFAULT_VARIANT,
    SEEDS,
    TASKS,
    Case,
    Prompt,
    Suite,
    Turns,
    Variant,
    builtin_suite,
    cases,
    coverage,
    cycle,
    deep_text,
    rotation,
    sampling_seed,
    select,
    sentences_for,
    variants,
)


def _suite(sizes: dict[str, int]) -> Suite:
    return Suite(
        tuple(Prompt(f"{task}-{i}", task, "x") for task, n in sizes.items() for i in range(n))
    )


SUITES = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.integers(1, 6), min_size=1, max_size=5
).map(_suite)
SEEDS_OF_ORDERS = st.integers(0, 2**32)
WAYS = st.builds(
    variants,
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3),
    st.lists(st.sampled_from([None, True, False]), min_size=1, max_size=3),
    st.lists(st.sampled_from([0, 1000, 8000]), min_size=1, max_size=2),
)
EVERY_TASK = builtin_suite(TASKS)


# --- prompts ---


def test_default_suite_has_the_five_tasks_in_order() -> None:
    """The tasks of the viability study are the default, best drafted first."""
    assert builtin_suite().tasks == DEFAULT_TASKS == TASKS[:5]


def test_every_task_has_six_to_eight_prompts() -> None:
    """No task rests on a few prompts, and a pass over the suite stays short."""
    counts = Counter(prompt.task for prompt in EVERY_TASK.prompts)
    assert tuple(counts) == TASKS
    assert all(6 <= n <= 8 for n in counts.values())


def test_prompt_ids_and_texts_are_unique() -> None:
    """An id names one prompt, and no prompt is sent twice under two names."""
    prompts = EVERY_TASK.prompts
    assert len({p.id for p in prompts}) == len({p.text for p in prompts}) == len(prompts)


def test_prompts_are_tidy() -> None:
    """An id starts with its task; a text, code apart, is one line without blanks around it."""
    for prompt in EVERY_TASK.prompts:
        assert prompt.id.startswith(f"{prompt.task}-")
        if prompt.task != "long_code_review":
            assert prompt.text == " ".join(prompt.text.split())


def test_reviews_are_long() -> None:
    """Each holds one block of 60 to 120 lines of code."""
    for prompt in builtin_suite(["long_code_review"]).prompts:
        question, code, rest = prompt.text.split("```")
        assert question.strip()
        assert not rest.strip()
        assert 60 <= len(code.splitlines()) - 1 <= 120


def test_builtin_suite_can_be_narrowed() -> None:
    """Only the tasks asked for are returned, in the order asked for."""
    assert builtin_suite(["essay", "cpp_code"]).tasks == ("essay", "cpp_code")


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


def test_prompts_are_selected_by_task() -> None:
    """In the order of the tasks; prompts of one task from different places come together."""
    a, b, more = Prompt("1", "a", "x"), Prompt("2", "b", "x"), Prompt("3", "a", "x")
    assert select([a, b, more], ["b", "a"]).prompts == (b, a, more)
    assert select([a, b], ["a"]).prompts == (a,)


# --- the order of prompts ---


def test_empty_suite_has_no_rotation() -> None:
    """Asking for prompts where there are none fails at once."""
    with pytest.raises(ValueError, match="without prompts"):
        rotation(Suite(()), 1)
    with pytest.raises(ValueError, match="without prompts"):
        cases(Suite(()), (), 1)


@settings(deadline=None)
@given(SUITES, SEEDS_OF_ORDERS)
def test_any_window_visits_every_task_once(suite: Suite, seed: int) -> None:
    """Tasks take turns, wherever one starts to look."""
    n = len(suite.tasks)
    tasks = [p.task for p in itertools.islice(rotation(suite, seed), 6 * n)]
    for start in range(len(tasks) - n + 1):
        assert set(tasks[start : start + n]) == set(suite.tasks)


@settings(deadline=None)
@given(SUITES, SEEDS_OF_ORDERS)
def test_each_prompt_once_per_cycle_of_its_task(suite: Suite, seed: int) -> None:
    """A task's prompts are all used before one of them is used again."""
    drawn = list(itertools.islice(rotation(suite, seed), 18 * len(suite.tasks)))
    for task in suite.tasks:
        own = [p for p in suite.prompts if p.task == task]
        used = [p for p in drawn if p.task == task]
        for start in range(0, len(used) - len(own) + 1, len(own)):
            assert set(used[start : start + len(own)]) == set(own)


@settings(deadline=None)
@given(SUITES, WAYS, SEEDS_OF_ORDERS)
def test_orders_depend_on_their_arguments_only(
    suite: Suite, ways: tuple[Variant, ...], seed: int
) -> None:
    """Equal suites, variants and seeds give equal orders."""
    one, two = (list(itertools.islice(cases(suite, ways, seed), 40)) for _ in range(2))
    assert one == two


def test_order_differs_between_cycles_and_seeds() -> None:
    """The order is drawn anew for every cycle, and by every seed."""
    suite = builtin_suite()
    n = len(suite.prompts)
    drawn = list(itertools.islice(rotation(suite, 1), 2 * n))
    assert drawn[:n] != drawn[n:]
    assert drawn[:n] != list(itertools.islice(rotation(suite, 2), n))


# --- variants ---


def test_the_default_variant_is_always_there() -> None:
    """First, and once, whatever is listed."""
    assert variants([0.0], [None], [0]) == (DEFAULT_VARIANT,)
    assert variants([0.7], [None], [0]) == (DEFAULT_VARIANT, Variant(temperature=0.7))
    found = variants([0.0, 0.7], [None, True], [0, 4096])
    assert len(found) == len(set(found)) == 8
    assert found[0] == DEFAULT_VARIANT


@settings(deadline=None)
@given(st.integers(0, SEEDS - 1), st.integers(0, 10**12))
def test_a_seed_is_never_random(seed: int, draw: int) -> None:
    """Neighbouring draws differ, and none is the value that llama-server takes for random."""
    assert 0 <= sampling_seed(seed, draw) < 2**32 - 1
    assert sampling_seed(seed, draw) != sampling_seed(seed, draw + 1)


# --- the order of cases ---


def test_without_other_variants_cases_are_the_rotation() -> None:
    """Every prompt is asked in the default variant, as before there were others."""
    suite = builtin_suite()
    plain = [Case(prompt) for prompt in itertools.islice(rotation(suite, 3), 90)]
    assert list(itertools.islice(cases(suite, (DEFAULT_VARIANT,), 3), 90)) == plain
    assert list(itertools.islice(cases(suite, (), 3), 90)) == plain


@settings(deadline=None)
@given(SUITES, WAYS, SEEDS_OF_ORDERS)
def test_every_second_case_is_the_default_one(
    suite: Suite, ways: tuple[Variant, ...], seed: int
) -> None:
    """In the order it would have alone; the cases between are all the others."""
    drawn = list(itertools.islice(cases(suite, ways, seed), 60))
    step = 2 if len(ways) > 1 else 1
    usual = [case.prompt for case in drawn[::step]]
    assert usual == list(itertools.islice(rotation(suite, seed), len(usual)))
    assert all(case.variant == DEFAULT_VARIANT for case in drawn[::step])
    if step == 2:
        assert all(case.variant != DEFAULT_VARIANT for case in drawn[1::2])


@settings(deadline=None)
@given(SUITES, WAYS, SEEDS_OF_ORDERS)
def test_everything_is_covered_in_the_stated_time(
    suite: Suite, ways: tuple[Variant, ...], seed: int
) -> None:
    """Every prompt has been asked in every variant by then, and not one probe earlier for all."""
    length = cycle(suite, ways)
    drawn = set(itertools.islice(cases(suite, ways, seed), length))
    assert drawn == {Case(prompt, way) for prompt in suite.prompts for way in ways}
    assert coverage(suite, ways, 2.5) == 2.5 * length


def test_the_stated_time_is_not_too_long() -> None:
    """With tasks of one size, the last of all cases comes with the last probe of a cycle."""
    suite, ways = _suite({"a": 3, "b": 3}), variants([0.0, 0.5, 1.0], [None], [0])
    assert cycle(suite, ways) == 2 * 3 * 2 * 2
    early = set(itertools.islice(cases(suite, ways, 1), cycle(suite, ways) - 1))
    assert len(early) == 6 * 3 - 1


@settings(deadline=None)
@given(SUITES, WAYS, SEEDS_OF_ORDERS)
def test_each_task_is_asked_in_each_variant_in_turn(
    suite: Suite, ways: tuple[Variant, ...], seed: int
) -> None:
    """As many visits of a task as there are other variants show each of them once."""
    others = len(ways) - 1
    if not others:
        return
    drawn = list(itertools.islice(cases(suite, ways, seed), 2 * len(suite.tasks) * others * 3))
    for task in suite.tasks:
        seen = [case.variant for case in drawn[1::2] if case.prompt.task == task]
        for start in range(len(seen) - others + 1):
            assert len(set(seen[start : start + others])) == others


def test_deep_and_shallow_contexts_alternate() -> None:
    """A costly case is seldom the next of the other ones after a costly one."""
    ways = variants([0.0, 0.5, 1.0], [None, True], [0, 8000])
    drawn = itertools.islice(cases(builtin_suite(["code"]), ways, 1), 1, 44, 2)
    deep = [case.variant.depth_tokens > 0 for case in drawn]
    # Of eleven other variants six are deep, so once in a round two of them meet.
    assert sum(a and b for a, b in itertools.pairwise(deep)) <= 2
    assert Counter(deep)[True] == 12


# --- turns ---


@pytest.mark.parametrize("tasks", [("code",), DEFAULT_TASKS, TASKS])
@pytest.mark.parametrize("temperatures", [[0.0], [0.0, 0.7], [0.0, 0.7, 1.0]])
def test_both_arms_go_first_in_every_cell(
    tasks: tuple[str, ...], temperatures: list[float]
) -> None:
    """Whatever the number of tasks and variants: for each, every second time, and over all."""
    turns, ways = Turns(), variants(temperatures, [None], [0])
    first: dict[tuple[str, Variant], list[int]] = {}
    order = itertools.islice(cases(builtin_suite(tasks), ways, 1), 24 * len(tasks) * len(ways))
    for case in order:
        first.setdefault((case.prompt.task, case.variant), []).append(turns.next(case) % 2)
    assert len(first) == len(tasks) * len(ways)
    for seen in first.values():
        assert all(a != b for a, b in itertools.pairwise(seen))
    begun = Counter(seen[0] for seen in first.values())
    assert abs(begun[0] - begun[1]) <= 1


# --- depth ---


def test_no_sentences_leave_the_prompt_alone() -> None:
    """Depth 0 is the prompt itself."""
    prompt = builtin_suite().prompts[0]
    assert deep_text(prompt, 0) == prompt.text


def test_filler_is_natural_and_the_same_each_time() -> None:
    """Whole sentences in front, the prompt at the end; more sentences go on where fewer end."""
    prompt = builtin_suite().prompts[0]
    short, long = deep_text(prompt, 3), deep_text(prompt, 60)
    assert long == deep_text(prompt, 60)
    assert long.endswith(f"\n\n{prompt.text}")
    filler = long.split("\n\n")[1]
    assert filler.startswith(short.split("\n\n")[1])
    sentences = filler.split(". ")
    assert len(sentences) == 60
    assert len(set(sentences)) == 60
    assert all(15 <= len(sentence.split()) <= 32 for sentence in sentences)


def test_prompts_have_filler_of_their_own() -> None:
    """No prefix is shared that a server could keep."""
    one, two = builtin_suite().prompts[:2]
    assert deep_text(one, 5).split("\n\n")[1] != deep_text(two, 5).split("\n\n")[1]


@settings(deadline=None)
@given(st.integers(-(10**6), 10**6), st.integers(1, 100), st.integers(0, 10**5))
def test_filler_is_no_longer_than_wanted(wanted: int, sentences: int, tokens: int) -> None:
    """At the length of the sample, a number of sentences that fits, and the largest such."""
    found = sentences_for(wanted, sample_sentences=sentences, sample_tokens=tokens)
    assert found >= 0
    assert found * tokens <= max(wanted, 0) * sentences
    if wanted > 0 and tokens:
        assert (found + 1) * tokens > wanted * sentences
